//! The question of `deuteron health`, and its address. Pure: arguments and variables are passed in.

use std::net::{IpAddr, Ipv4Addr};

use clap::{Arg, ArgAction, ArgMatches};

use crate::{ReadFile, arguments, read_any};
use flags::Variables;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const HTTP_PORT: u16 = 8000;
const GRPC_PORT: u16 = 8001;

/// The address of a server that a command asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedServer {
    /// The host and the port, as in a URL.
    pub authority: String,
    /// True for `https://`.
    pub has_tls: bool,
}

/// A question to a server, for the health checks of containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthQuestion {
    /// The server.
    pub server: AskedServer,
    /// The path of the question.
    pub path: String,
    /// True if it asks whether the server lives, and not whether it is ready.
    pub is_live: bool,
}

/// Returns the arguments of the command.
pub fn health_arguments() -> [Arg; 2] {
    [
        Arg::new("url").long("url").value_name("URL").help(
            "Where the server is; https:// for TLS [default: http://127.0.0.1:8000, or the port without TLS that the \
             variables and the file of DEUTERON_CONFIG say]",
        ),
        Arg::new("live")
            .long("live")
            .action(ArgAction::SetTrue)
            .help("Check that the server is live, instead of ready"),
    ]
}

impl HealthQuestion {
    /// Reads the arguments. The error is one line for a person.
    pub fn read(matches: &ArgMatches, variables: Variables, read_file: ReadFile) -> Result<Self, String> {
        let is_live = matches.get_flag("live");
        let own = if is_live { "/v2/health/live" } else { "/v2/health/ready" };
        let (server, path) = match matches.get_one::<String>("url") {
            None => {
                let authority = local(variables, read_file).unwrap_or_else(|| format!("{LOOPBACK}:{HTTP_PORT}"));
                (AskedServer { authority, has_tls: false }, "")
            }
            Some(url) => AskedServer::split(url)?,
        };
        let path = if path.is_empty() || path == "/" { own } else { path };
        Ok(Self { server, path: path.to_owned(), is_live })
    }
}

impl AskedServer {
    /// Reads a URL; its path does not count.
    ///
    /// # Errors
    /// A line for a person.
    pub fn read(url: &str) -> Result<Self, String> {
        Self::split(url).map(|(server, _)| server)
    }

    /// The server, and the path of a URL.
    fn split(url: &str) -> Result<(Self, &str), String> {
        let (has_tls, rest) = match url.split_once("://") {
            None => (false, url),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => {
                return Err(format!(
                    "--url={url}: expected http://HOST:PORT or https://HOST:PORT, '{scheme}' is not supported"
                ));
            }
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("--url={url}: expected http://HOST:PORT"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let usual = if has_tls { 443 } else { 80 };
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{usual}") };
        Ok((Self { authority, has_tls }, path))
    }
}

/// Returns the address of a server that was started in the same surroundings, as the first process
/// of a container is: its HTTP port, or the gRPC port, which speaks HTTP too, if that alone has no
/// TLS. `None` without a port. The server reports faults of the surroundings.
fn local(variables: Variables, read_file: ReadFile) -> Option<String> {
    let [http, grpc] = plain_ports(variables, read_file);
    http.or(grpc).map(authority)
}

/// Returns the address for `deuteron bench` of a server that was started in the same surroundings, with gRPC or HTTP;
/// `None` if that is the default. Each port speaks both protocols.
pub fn local_address(is_grpc: bool, variables: Variables, read_file: ReadFile) -> Option<String> {
    let [http, grpc] = plain_ports(variables, read_file);
    let (found, usual) = if is_grpc { (grpc.or(http), GRPC_PORT) } else { (http.or(grpc), HTTP_PORT) };
    found.map(authority).filter(|found| *found != format!("{LOOPBACK}:{usual}"))
}

/// The ports of HTTP and of gRPC that have no TLS.
fn plain_ports(variables: Variables, read_file: ReadFile) -> [Option<(IpAddr, u16)>; 2] {
    let none = clap::Command::new("").no_binary_name(true).args(arguments()).get_matches_from([""; 0]);
    let settings = read_any(&none, variables, read_file).unwrap_or_default();
    let plain = |endpoint: Option<(IpAddr, u16)>, has_tls: bool| endpoint.filter(|(_, port)| *port != 0 && !has_tls);
    [plain(settings.http, settings.tls.http.has_tls()), plain(settings.grpc, settings.tls.grpc.has_tls())]
}

fn authority((address, port): (IpAddr, u16)) -> String {
    let host = match Some(address).filter(|address| !address.is_unspecified()) {
        Some(IpAddr::V6(address)) => format!("[{address}]"),
        Some(IpAddr::V4(address)) => address.to_string(),
        None => LOOPBACK.to_string(),
    };
    format!("{host}:{port}")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn read(arguments: &str, variables: &str) -> Result<String, String> {
        let command = clap::Command::new("health").args(health_arguments());
        let words = std::iter::once("health").chain(arguments.split_whitespace());
        let find = |name: &str| {
            variables.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(OsString::from)
        };
        let file = "http-port = 9001\nhttp-use-ssl = true\nhttp-server-cert = \"c\"\nhttp-server-key = \"k\"\n";
        let read_file = |path: &std::path::Path| match path.to_str() {
            Some("tls") => Ok(file.to_owned()),
            Some("plain") => Ok("http-port = 9001\n".to_owned()),
            _ => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
        };
        let question = HealthQuestion::read(&command.get_matches_from(words), &find, &read_file)?;
        let scheme = if question.server.has_tls { "https://" } else { "" };
        Ok(format!("{scheme}{} {}", question.server.authority, question.path))
    }

    #[test]
    fn the_server_of_the_same_container_is_asked_unless_a_url_is_given() {
        let check = |arguments: &str, variables: &str, want: &str| {
            assert_eq!(read(arguments, variables).unwrap(), want, "{arguments:?} {variables:?}");
        };
        check("", "", "127.0.0.1:8000 /v2/health/ready");
        check("--live", "", "127.0.0.1:8000 /v2/health/live");
        check("", "DEUTERON_HTTP_PORT=9000", "127.0.0.1:9000 /v2/health/ready");
        check("", "DEUTERON_HTTP_PORT=tcp://10.0.0.1:1", "127.0.0.1:8000 /v2/health/ready"); // Kubernetes sets it
        check("", "DEUTERON_HTTP_ADDRESS=10.1.2.3 DEUTERON_HTTP_PORT=9", "10.1.2.3:9 /v2/health/ready");
        check("", "DEUTERON_HTTP_ADDRESS=0.0.0.0", "127.0.0.1:8000 /v2/health/ready");
        check("", "DEUTERON_HTTP_ADDRESS=::1", "[::1]:8000 /v2/health/ready");
        check("", "DEUTERON_CONFIG=plain", "127.0.0.1:9001 /v2/health/ready");
        check("", "DEUTERON_CONFIG=plain DEUTERON_HTTP_PORT=9", "127.0.0.1:9 /v2/health/ready");
        check("", "DEUTERON_CONFIG=tls DEUTERON_GRPC_PORT=7", "127.0.0.1:7 /v2/health/ready");
        check("", "DEUTERON_CONFIG=absent", "127.0.0.1:8000 /v2/health/ready");
        check("--url=http://host:1234", "DEUTERON_HTTP_PORT=9000", "host:1234 /v2/health/ready");
        check("--url=http://host/ --live", "", "host:80 /v2/health/live");
        check("--url=https://host", "", "https://host:443 /v2/health/ready");
        check("--url=https://[::1]:8000/v2/models/m/ready", "", "https://[::1]:8000 /v2/models/m/ready");
        check("--url=[::1]:8000", "", "[::1]:8000 /v2/health/ready");
        check("--url=http://host:1/v2/models/m/ready", "", "host:1 /v2/models/m/ready");
    }

    #[test]
    fn a_measured_server_is_found_as_well() {
        let check = |is_grpc, name: &'static str, value: &'static str, want: Option<&str>| {
            let variable = |asked: &str| (asked == name).then(|| value.into());
            let found = local_address(is_grpc, &variable, &|_| Ok(String::new()));
            assert_eq!(found.as_deref(), want, "{name}={value}");
        };
        check(false, "NONE", "", None);
        check(true, "NONE", "", None);
        check(false, "DEUTERON_HTTP_PORT", "9000", Some("127.0.0.1:9000"));
        check(true, "DEUTERON_HTTP_PORT", "9000", None);
        check(true, "DEUTERON_GRPC_PORT", "9001", Some("127.0.0.1:9001"));
        check(true, "DEUTERON_ALLOW_GRPC", "false", Some("127.0.0.1:8000"));
    }

    #[test]
    fn a_url_that_cannot_be_asked_is_refused() {
        for (url, want) in [("grpc://host:1", "'grpc' is not supported"), ("https://", "expected http://HOST:PORT")] {
            let error = read(&format!("--url={url}"), "").unwrap_err();
            assert!(error.contains(want), "{url}: {error}");
        }
    }
}
