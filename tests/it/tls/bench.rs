//! `deuteron bench` against servers with TLS, with certificates of the repository: the load goes over TLS, and each reason for
//! which it cannot is told with what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::folder::Folder;
use crate::support::metrics::metric;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

/// A file of the certificates of the tests.
pub fn file(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name);
    path.display().to_string()
}

/// A server with TLS on both ports, with mutual TLS on the one for gRPC.
pub fn server(folder: &Folder) -> Server {
    let mut flags = Vec::new();
    for (port, kind) in [("http", "use-ssl"), ("grpc", "use-ssl-mutual")] {
        flags.push(format!("--{port}-{kind}=true"));
        for (flag, name) in [("server-cert", "server.pem"), ("server-key", "server.key")] {
            flags.push(format!("--{port}-{flag}={}", file(name)));
        }
    }
    flags.push(format!("--grpc-root-cert={}", file("authority.pem")));
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Server::deuteron(folder.path(), &flags)
}

/// The exit code and the outputs, for authorities of the system that are these.
fn bench(system: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.args(["bench", "-m", "identity_uint8", "--request-count=40", "--shape=INPUT0:3", "--format=json"]);
    let output = command.args(arguments).env("SSL_CERT_FILE", file(system)).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_load_goes_over_tls_by_both_protocols() {
    let folder = repository::write(Flavour::Deuteron);
    let server = server(&folder);
    let (http, grpc) = (server.http().port(), server.grpc().port());
    let ca = format!("--ca={}", file("authority.pem"));
    let own = [format!("--cert={}", file("client.pem")), format!("--key={}", file("client.key"))];
    let check = |system: &str, url: &str, more: &[&str]| {
        let url = format!("--url={url}");
        let arguments = [&[url.as_str(), "--concurrency=4"], more].concat();
        let (code, out, err) = bench(system, &arguments);
        assert_eq!(code, Some(0), "{url}: {out}{err}");
        let report: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
        assert_eq!(report["succeeded"], 40, "{report}");
        assert!(report["url"].as_str().unwrap().starts_with("https://"), "{report}");
    };
    check("client.pem", &format!("https://localhost:{http}"), &[&ca]);
    // The authorities of the system, as the variable of other programs names them.
    check("authority.pem", &format!("https://127.0.0.1:{http}"), &[]);
    // The server's own certificate is enough.
    check("client.pem", &format!("https://localhost:{http}"), &[&format!("--ca={}", file("server.pem"))]);
    // By a name that the certificate does not have.
    check("client.pem", &format!("https://127.0.0.2:{http}"), &["--insecure"]);
    let with_own = [ca.as_str(), &own[0], &own[1]];
    check("client.pem", &format!("grpcs://localhost:{grpc}"), &[&with_own[..], &["-i", "grpc"]].concat());
    check("client.pem", &format!("https://localhost:{grpc}"), &with_own);
    // Each connection has one handshake, and the requests of metadata and statistics another.
    let handshakes = metric(server.metrics(), "deuteron_tls_handshakes_total{kind=\"full\"}");
    let resumed = metric(server.metrics(), "deuteron_tls_handshakes_total{kind=\"resumed\"}");
    assert!(handshakes + resumed >= 6 * 5, "{handshakes} and {resumed}");
}

#[test]
fn a_search_a_comparison_and_a_plot_go_over_tls() {
    let folder = repository::write(Flavour::Deuteron);
    let server = server(&folder);
    let url = format!("https://localhost:{}", server.http().port());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        command.args(["bench", "-m", "identity_uint8", "--shape=INPUT0:3", "-u", &url, "-p", "50"]).args(arguments);
        let output = command.env("SSL_CERT_FILE", file("authority.pem")).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        text
    };
    let plot = folder.path().join("plot.svg");
    let text = run(&["--search-slo=p50=30s", "--search-range=20:40", &format!("--plot={}", plot.display())]);
    assert!(text.contains("The highest rate that meets the goal: "), "{text}");
    assert!(fs::read_to_string(plot).unwrap().contains("identity_uint8, HTTP"));
    let text = run(&["--compare", &url, "--rounds=2", "--concurrency=2"]);
    assert!(text.contains("https://localhost:"), "{text}");
}

#[test]
fn a_server_that_cannot_be_measured_over_tls_is_told_with_what_to_do() {
    let folder = repository::write(Flavour::Deuteron);
    let (server, plain) = (server(&folder), Server::deuteron(folder.path(), &[]));
    let (http, grpc) = (server.http().port(), server.grpc().port());
    let ca = format!("--ca={}", file("authority.pem"));
    let check = |arguments: &[&str], want: &str| {
        let (code, out, err) = bench("client.pem", arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {out}{err}");
        assert!(err.contains(want), "{arguments:?}: {want:?} is not in {err:?}");
    };
    let at = |scheme: &str, host: &str, port: u16| format!("--url={scheme}://{host}:{port}");
    check(&[&at("https", "localhost", http)], "is not trusted: name its authority with --ca=FILE; --insecure");
    check(&[&at("https", "127.0.0.2", http), &ca], "has another name: ask it by one of its own; --insecure accepts it");
    check(&[&at("https", "localhost", plain.http().port()), &ca], "does not answer by TLS: use http://");
    check(&[&at("http", "localhost", http)], "HTTP 400");
    check(&[&at("grpc", "localhost", grpc), "-i", "grpc"], "or grpcs:// if it has TLS at this port");
    let required = "the server requires a client certificate: give it with --cert and --key";
    check(&[&at("grpcs", "localhost", grpc), "-i", "grpc", &ca], required);
    let own =
        |name: &str| [format!("--cert={}", file(&format!("{name}.pem"))), format!("--key={}", file("client.key"))];
    let [cert, key] = own("server");
    check(&[&at("https", "localhost", grpc), &ca, &cert, &key], "client.key is not that of the certificate");
    check(&[&at("https", "localhost", http), "--ca=/nowhere"], "--ca=/nowhere cannot be read: ");
    check(&[&at("https", "localhost", http), &format!("--ca={}", file("client.key"))], "client.key has no certificate");
    let [cert, key] = own("client");
    check(&[&at("https", "a_b..c", http), &ca, &cert, &key], "is neither a name nor an IP address");
}
