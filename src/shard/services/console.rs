//! The console: a page at `/` of the metrics port that shows the server while it runs. The page
//! itself is a few files; it reads `/metrics`, the log's last lines, and the endpoints of REST that
//! describe the server or run a model. Of what changes the server it reaches the load and unload of a model, with an API
//! key.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::limits::METRICS_LOOK_PAUSE;
use crate::log;
use crate::policy::{ConsoleAudience, ConsoleRules};
use crate::runtime::executor;
use crate::wire::json::writer;
use crate::wire::message::{Fields, Message, Method, Reply};

/// The content that the page may load and its use by others: its own files, in no frame.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const PAGE: &[u8] = include_bytes!("../../console/index.html");
const STYLE: &[u8] = include_bytes!("../../console/console.css");
/// The script and its modules, by path.
const SCRIPTS: [(&[u8], &[u8]); 8] = [
    (b"/console/chart.js", include_bytes!("../../console/chart.js")),
    (b"/console/console.js", include_bytes!("../../console/console.js")),
    (b"/console/ensemble.js", include_bytes!("../../console/ensemble.js")),
    (b"/console/input.js", include_bytes!("../../console/input.js")),
    (b"/console/metrics.js", include_bytes!("../../console/metrics.js")),
    (b"/console/page.js", include_bytes!("../../console/page.js")),
    (b"/console/picture.js", include_bytes!("../../console/picture.js")),
    (b"/console/server.js", include_bytes!("../../console/server.js")),
];

/// Scripts that the page loads later, and for some models alone.
const LATER_SCRIPTS: [(&[u8], &[u8]); 1] = [(b"/console/text.js", include_bytes!("../../console/text.js"))];

/// The path of the log's lines; the number of the first one wanted follows.
const LOG_PATH: &[u8] = b"/console/logs/";
/// The path of the facts about the server that the page needs and no protocol has.
const SERVER_PATH: &[u8] = b"/console/server";

/// The fields that proxies add: the origin of a request that they pass on is not known.
const OF_PROXIES: [&str; 4] = ["forwarded", "via", "x-forwarded-for", "x-real-ip"];

/// The page should load at once, over a slow line too.
pub const CONSOLE_SIZE_MAX: usize = 72 * 1024;
/// So should the form of a model.
pub const CONSOLE_LATER_SIZE_MAX: usize = 12 * 1024;

const _: () = assert!(PAGE.len() + STYLE.len() + size_of_all(&SCRIPTS) <= CONSOLE_SIZE_MAX, "the console is small");
const _: () = assert!(size_of_all(&LATER_SCRIPTS) <= CONSOLE_LATER_SIZE_MAX, "its later parts are small");

const fn size_of_all(mut scripts: &[(&[u8], &[u8])]) -> usize {
    let mut size = 0;
    while let [(_, bytes), others @ ..] = scripts {
        size += bytes.len();
        scripts = others;
    }
    size
}

/// The console's part that a request to the metrics port asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleRequest {
    /// A file of the page: its content type and its bytes.
    File(&'static str, &'static [u8]),
    /// The log's lines from this number on.
    Log(u64),
    /// The port of HTTP, and the flags that models may be run, loaded and unloaded.
    Server,
    /// A path of REST that changes nothing.
    Rest,
    /// The load or unload of a model.
    Change,
}

/// Returns true if a connection is shown the console.
pub fn is_shown(audience: ConsoleAudience, peer: impl FnOnce() -> Option<SocketAddr>) -> bool {
    match audience {
        ConsoleAudience::All => true,
        ConsoleAudience::None => false,
        ConsoleAudience::Loopback => peer().is_some_and(|peer| peer.ip().to_canonical().is_loopback()),
    }
}

/// Returns the console's part that a request asks for; `None` for other requests.
///
/// # Errors
/// `Forbidden` if it is for this machine alone and a proxy passes it on, or it does not name this
/// machine; if another site's page sends it, by a name that leads here or across sites; and if it
/// runs, loads or unloads a model and must not.
pub fn read(rules: ConsoleRules, message: &Message) -> Result<Option<ConsoleRequest>, Error> {
    let Some(request) = find(message) else { return Ok(None) };
    let audience = rules.audience;
    let is_passed_on = || OF_PROXIES.iter().any(|name| message.fields.get(name).is_some());
    if audience == ConsoleAudience::Loopback && is_passed_on() {
        let text = "the console is for this machine, and a proxy sent this request: see --console";
        return Err(Error::new(Code::Forbidden, text));
    }
    if matches!(request, ConsoleRequest::File(..)) {
        return Ok(Some(request));
    }
    let site = message.fields.get("sec-fetch-site");
    let is_across_sites = site.is_some_and(|site| site != b"same-origin" && site != b"none");
    if is_across_sites
        || is_of_another_page(&message.fields)
        || (audience == ConsoleAudience::Loopback && !is_of_this_machine(&message.fields))
    {
        let text = "the console answers its own page alone: open it as localhost or 127.0.0.1, or see --console";
        return Err(Error::new(Code::Forbidden, text));
    }
    if !rules.asks_models
        && request == ConsoleRequest::Rest
        && (message.path.ends_with(b"/infer") || is_decode(&message.path))
    {
        let text = "the console asks no model of a server whose HTTP port is off or asks for certificates";
        return Err(Error::new(Code::Forbidden, text));
    }
    if request == ConsoleRequest::Change && !rules.changes_models {
        let text = "the console loads and unloads models only for clients with an API key (--api-keys-file), and not where \
                    --admin-socket is given";
        return Err(Error::new(Code::Forbidden, text));
    }
    Ok(Some(request))
}

fn find(message: &Message) -> Option<ConsoleRequest> {
    let is_read = matches!(message.method, Method::Get | Method::Head);
    let path = &message.path[..];
    if is_read && let Some((_, bytes)) = SCRIPTS.iter().chain(&LATER_SCRIPTS).find(|(own, _)| *own == path) {
        return Some(ConsoleRequest::File("text/javascript; charset=utf-8", bytes));
    }
    match path {
        b"/" if is_read => Some(ConsoleRequest::File("text/html; charset=utf-8", PAGE)),
        b"/console.css" if is_read => Some(ConsoleRequest::File("text/css; charset=utf-8", STYLE)),
        b"/v2/repository/index" => Some(ConsoleRequest::Rest),
        _ if is_read && path == SERVER_PATH => Some(ConsoleRequest::Server),
        _ if is_read && path.starts_with(LOG_PATH) => {
            let number = str::from_utf8(path.strip_prefix(LOG_PATH)?).ok()?.parse();
            Some(ConsoleRequest::Log(number.ok()?))
        }
        _ if path.starts_with(b"/v2/models/") && path.ends_with(b"/infer") => Some(ConsoleRequest::Rest),
        _ if message.method == Method::Post && is_decode(path) => Some(ConsoleRequest::Rest),
        _ if message.method == Method::Post && is_change(path) => Some(ConsoleRequest::Change),
        _ if is_read && (path == b"/v2" || path.starts_with(b"/v2/")) => Some(ConsoleRequest::Rest),
        _ => None,
    }
}

/// Returns true for the paths that load or unload a model.
fn is_change(path: &[u8]) -> bool {
    path.starts_with(b"/v2/repository/models/") && (path.ends_with(b"/load") || path.ends_with(b"/unload"))
}

/// Returns true for the path that shows the tokens of a model: the form of texts has names for those of SPLADE.
fn is_decode(path: &[u8]) -> bool {
    path.starts_with(b"/models/") && path.ends_with(b"/decode")
}

/// Returns true if the request comes from a page of another address than its own. Browsers send
/// that for requests that do more than read.
fn is_of_another_page(fields: &Fields) -> bool {
    let own = fields.get("host").unwrap_or_default();
    fields.get("origin").is_some_and(|origin| {
        let address = [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| origin.strip_prefix(scheme));
        !address.is_some_and(|address| address.eq_ignore_ascii_case(own))
    })
}

/// Returns true if the client named this machine, as `localhost` or by an address that no other
/// has. A browser sends the name of the site whose page it shows, which may lead to any address; a
/// proxy on this machine sends the address that it was asked by.
fn is_of_this_machine(fields: &Fields) -> bool {
    let Some(host) = fields.get("host").and_then(|host| str::from_utf8(host).ok()) else { return false };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The address of the console, under the name by which the client asked another port; `None` if this client is not shown
/// it, or the name is not one of a machine.
pub fn link(rules: ConsoleRules, fields: &Fields) -> Option<String> {
    let port = rules.port?;
    let is_shown = match rules.audience {
        ConsoleAudience::All => true,
        ConsoleAudience::Loopback => is_of_this_machine(fields),
        ConsoleAudience::None => false,
    };
    let host = fields.get("host").and_then(|host| str::from_utf8(host).ok()).filter(|_| is_shown)?;
    let name = match host.rsplit_once(':') {
        // The last colon of an IPv6 address without a port is within its brackets.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    let scheme = if rules.has_tls { "https" } else { "http" };
    (!name.is_empty() && name.bytes().all(is_name)).then(|| format!("{scheme}://{name}:{port}/"))
}

/// A file of the page.
pub fn file_reply(content_type: &'static str, bytes: &'static [u8]) -> Reply {
    let mut reply = Reply::new(200, content_type, Bytes::from_static(bytes));
    let fields = [
        ("Content-Security-Policy", POLICY),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        // After an update the page is the new one.
        ("Cache-Control", "no-cache"),
    ];
    reply.fields.extend(fields.map(|(name, value)| (name, Bytes::from_static(value.as_bytes()))));
    reply
}

/// The port of HTTP, and the flags that models may be run, loaded and unloaded:
/// `{"http_port":8000,"http_tls":false,"asks_models":true,"changes_models":false}`.
pub fn server_reply(rules: ConsoleRules) -> Reply {
    let ConsoleRules { has_http_tls, asks_models, changes_models, .. } = rules;
    let port = rules.http_port.map_or("null".to_owned(), |port| port.to_string());
    let text = format!(
        "{{\"http_port\":{port},\"http_tls\":{has_http_tls},\"asks_models\":{asks_models},\
         \"changes_models\":{changes_models}}}"
    );
    Reply::new(200, "application/json", Bytes::from(text))
}

/// The log's lines from a number on: `{"next":7,"lines":["…"]}`.
pub async fn log_reply(after: u64) -> Reply {
    let (lines, next) = loop {
        match log::last_lines(after) {
            Some(found) => break found,
            None => executor::sleep(METRICS_LOOK_PAUSE).await,
        }
    };
    let mut text = format!("{{\"next\":{next},\"lines\":[").into_bytes();
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        writer::string(line, &mut text);
    }
    text.extend_from_slice(b"]}");
    Reply::new(200, "application/json", Bytes::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, path: &'static str, fields: &[(&str, &str)]) -> Message {
        let mut own = Fields::new();
        fields.iter().for_each(|(name, value)| own.push(name, value));
        Message { method, path: Bytes::from_static(path.as_bytes()), fields: own, body: Bytes::new() }
    }

    const HERE: ConsoleRules = ConsoleRules {
        audience: ConsoleAudience::Loopback,
        port: Some(8002),
        has_tls: false,
        http_port: Some(8000),
        has_http_tls: false,
        asks_models: true,
        changes_models: false,
    };
    const ALL: ConsoleRules = ConsoleRules { audience: ConsoleAudience::All, ..HERE };

    #[test]
    fn it_reads_all_asks_models_and_changes_nothing() {
        let host = [("Host", "127.0.0.1:8002")];
        let find = |method, path| read(HERE, &request(method, path, &host)).unwrap();
        for path in ["/", "/console.css", "/console/console.js", "/console/chart.js", "/console/text.js"] {
            assert!(matches!(find(Method::Get, path), Some(ConsoleRequest::File(..))), "{path}");
            assert_eq!(find(Method::Post, path), None, "{path}");
        }
        assert_eq!(find(Method::Get, "/console/logs/17"), Some(ConsoleRequest::Log(17)));
        assert_eq!(find(Method::Get, "/console/logs/x"), None);
        assert_eq!(find(Method::Get, "/console/server"), Some(ConsoleRequest::Server));
        for path in ["/v2", "/v2/models/m", "/v2/models/m/versions/1/config", "/v2/health/ready", "/v2/logging"] {
            assert_eq!(find(Method::Get, path), Some(ConsoleRequest::Rest), "{path}");
        }
        for path in ["/v2/repository/index", "/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/models/m/decode"]
        {
            assert_eq!(find(Method::Post, path), Some(ConsoleRequest::Rest), "{path}");
        }
        for path in [
            "/v2/repository/models/m",
            "/v2/logging",
            "/v2/trace/setting",
            "/v2/models/m/trace/setting",
            "/v2/systemsharedmemory/region/r/register",
            "/v2/models/m/generate",
            "/models/m/embed",
            "/decode",
        ] {
            assert_eq!(find(Method::Post, path), None, "{path}");
        }
        assert_eq!(find(Method::Get, "/metrics"), None);
        assert_eq!(find(Method::Get, "/models/m/decode"), None);
    }

    #[test]
    fn the_pages_of_other_sites_are_answered_nothing() {
        let read = |rules, fields: &[(&str, &str)]| read(rules, &request(Method::Get, "/v2", fields)).is_ok();
        let here = |fields: &[(&str, &str)]| read(HERE, fields);
        for host in ["127.0.0.1:8002", "localhost:8002", "LOCALHOST", "[::1]:8002", "127.9.9.9"] {
            assert!(here(&[("Host", host)]), "{host}");
            assert!(here(&[("Host", host), ("Sec-Fetch-Site", "same-origin")]), "{host}");
            assert!(!here(&[("Host", host), ("Sec-Fetch-Site", "cross-site")]), "{host}");
            assert!(!here(&[("Host", host), ("Sec-Fetch-Site", "same-site")]), "{host}");
        }
        for host in
            ["evil.example:8002", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7", "[fe80::1]", ""]
        {
            assert!(!here(&[("Host", host)]), "{host}");
        }
        assert!(!here(&[]));
        let there = ("Host", "node-7.cluster:8002");
        assert!(read(ALL, &[there]));
        assert!(!read(ALL, &[there, ("Sec-Fetch-Site", "cross-site")]));
        // A name of another site that leads here; browsers say nothing else of it without TLS.
        assert!(read(ALL, &[there, ("Origin", "http://node-7.cluster:8002")]));
        assert!(read(ALL, &[there, ("Origin", "https://NODE-7.cluster:8002")]));
        for origin in ["http://evil.example:8002", "http://node-7.cluster:8003", "null", ""] {
            assert!(!read(ALL, &[there, ("Origin", origin)]), "{origin}");
        }
    }

    #[test]
    fn what_a_proxy_on_this_machine_passes_on_is_refused() {
        let host = ("Host", "127.0.0.1:8002");
        for path in ["/", "/v2", "/console/logs/0"] {
            for name in ["Forwarded", "Via", "X-Forwarded-For", "X-Real-IP"] {
                let message = request(Method::Get, path, &[host, (name, "10.0.0.7")]);
                assert!(read(HERE, &message).is_err(), "{path} {name}");
                assert!(read(ALL, &message).is_ok(), "{path} {name}");
            }
        }
        assert!(read(HERE, &request(Method::Get, "/metrics", &[("Via", "1.1 x")])).unwrap().is_none(), "no console");
    }

    #[test]
    fn no_model_is_asked_by_a_way_that_asks_for_less_than_the_http_port() {
        let rules = ConsoleRules { asks_models: false, ..HERE };
        let host = [("Host", "127.0.0.1:8002")];
        for path in ["/v2/models/m/infer", "/models/m/decode"] {
            assert!(read(rules, &request(Method::Post, path, &host)).is_err(), "{path}");
        }
        assert!(read(rules, &request(Method::Get, "/v2/models/m", &host)).is_ok());
        let told = server_reply(ConsoleRules { http_port: None, ..rules }).body.concat();
        let want = br#"{"http_port":null,"http_tls":false,"asks_models":false,"changes_models":false}"#;
        assert_eq!(told, want);
    }

    #[test]
    fn models_are_loaded_and_unloaded_where_keys_say_for_whom() {
        let host = [("Host", "127.0.0.1:8002")];
        let with_keys = ConsoleRules { changes_models: true, ..HERE };
        for path in ["/v2/repository/models/m/load", "/v2/repository/models/m/unload"] {
            assert!(read(HERE, &request(Method::Post, path, &host)).is_err(), "{path}");
            assert_eq!(read(with_keys, &request(Method::Get, path, &host)).unwrap(), Some(ConsoleRequest::Rest));
            let change = read(with_keys, &request(Method::Post, path, &host)).unwrap();
            assert_eq!(change, Some(ConsoleRequest::Change), "{path}");
            let elsewhere = [host[0], ("Origin", "http://evil.example")];
            assert!(read(with_keys, &request(Method::Post, path, &elsewhere)).is_err(), "{path}");
        }
    }

    #[test]
    fn it_is_for_this_machine_unless_a_flag_says_more() {
        let shown = |audience, peer: Option<&str>| is_shown(audience, || peer.map(|peer| peer.parse().unwrap()));
        for peer in ["127.0.0.1:9", "127.8.8.8:9", "[::1]:9", "[::ffff:127.0.0.1]:9"] {
            assert!(shown(ConsoleAudience::Loopback, Some(peer)), "{peer}");
        }
        assert!(!shown(ConsoleAudience::Loopback, Some("10.0.0.1:9")));
        assert!(!shown(ConsoleAudience::Loopback, None));
        assert!(shown(ConsoleAudience::All, Some("10.0.0.1:9")));
        assert!(!shown(ConsoleAudience::None, Some("127.0.0.1:9")));
    }

    #[test]
    fn the_link_is_for_clients_that_are_shown_the_console() {
        let of = |rules, host: &str| link(rules, &request(Method::Get, "/", &[("Host", host)]).fields);
        let here = Some("http://localhost:8002/".to_owned());
        assert_eq!((of(HERE, "localhost:8000"), of(HERE, "localhost")), (here.clone(), here));
        assert_eq!(of(HERE, "[::1]:8000").as_deref(), Some("http://[::1]:8002/"));
        assert_eq!(of(HERE, "[::1]").as_deref(), Some("http://[::1]:8002/"));
        assert_eq!(of(HERE, "node-7:8000"), None);
        let tls = ConsoleRules { has_tls: true, ..ALL };
        assert_eq!(of(tls, "node-7:8000").as_deref(), Some("https://node-7:8002/"));
        for host in ["", ":8000", "a\"b", "<script>:1", "a/b"] {
            assert_eq!(of(ALL, host), None, "{host}");
        }
        assert_eq!(of(ConsoleRules { port: None, ..ALL }, "node-7:8000"), None);
        assert_eq!(of(ConsoleRules { audience: ConsoleAudience::None, ..ALL }, "localhost"), None);
    }
}
