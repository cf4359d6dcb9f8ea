//! API keys on the server as a process: permissions over every protocol, path and method; bounds that hold exactly over
//! all shards; a file that changes while clients are connected; and third-party clients with keys.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::front_ends::{self, ALIASES, REDIRECT};
use crate::policy::{GRPC, HTTP};
use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::h2;
use crate::support::http::{self, Response};
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::skipped::skip_unless_ci;
use crate::tls::files::{Files, KeyKind, replace};
use deuteron::protocol::keys::KeyDigest;

/// A key for each class, and one that does not exist.
const KEYS: [(&str, &str); 4] =
    [("infer", "s3cret-infer"), ("read", "s3cret-read"), ("metrics", "s3cret-metrics"), ("admin", "s3cret-admin")];
const WRONG: &str = "s3cret-wrong";

/// An entry of the file.
pub(crate) fn entry(name: &str, key: &str, classes: &str, more: &str) -> String {
    let digest = KeyDigest::of_key(key.as_bytes()).hex();
    format!("[[key]]\nname = \"{name}\"\nsha256 = \"{digest}\"\nclasses = [{classes}]\n{more}\n")
}

/// A file with these contents, and the flag for it.
pub(crate) struct KeyFile {
    _folder: Folder,
    path: PathBuf,
}

impl KeyFile {
    pub(crate) fn new(text: &str) -> Self {
        let folder = Folder::new("keys");
        let path = folder.path().join("keys.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Self { _folder: folder, path }
    }

    /// With a key for each class, named after it.
    fn of_classes() -> Self {
        let entries = KEYS.iter().map(|(class, key)| entry(&format!("for-{class}"), key, &format!("'{class}'"), ""));
        Self::new(&entries.collect::<String>())
    }

    pub(crate) fn flag(&self) -> String {
        format!("--api-keys-file={}", self.path.display())
    }
}

fn server(file: &KeyFile, flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let own = file.flag();
    let all: Vec<&str> = std::iter::once(own.as_str()).chain(flags.iter().copied()).collect();
    let server = Server::deuteron(folder.path(), &all);
    (folder, server)
}

/// The classes that open the endpoint; `None` if it needs no key.
fn openers(class: Option<&'static str>) -> Option<Vec<&'static str>> {
    class.map(|class| if class == "metrics" { vec!["metrics", "read"] } else { vec![class] })
}

/// The class that a category asks for; the index and lists only show, and ask for another.
fn class_of(category: &str, only_shows: bool) -> Option<&'static str> {
    match category {
        "health" => None,
        "inference" => Some("infer"),
        "metadata" | "model-config" | "statistics" => Some("read"),
        "model-repository" if only_shows => Some("read"),
        _ => Some("admin"),
    }
}

/// A name and its value.
type HeaderField = (&'static str, String);

/// A client's credentials in each of the forms, and the class of its key: `None` without a key, `wrong` for an unknown
/// one.
fn callers() -> Vec<(Option<&'static str>, Vec<HeaderField>)> {
    let mut callers = vec![(None, vec![]), (None, vec![("authorization", "Basic eDp5".to_owned())])];
    for (class, key) in KEYS.into_iter().chain([("wrong", WRONG)]) {
        callers.push((Some(class), vec![("authorization", format!("Bearer {key}"))]));
        callers.push((Some(class), vec![("x-api-key", key.to_owned())]));
    }
    callers
}

/// The expected refusal; `None` if the caller is let in.
fn refusal(class: Option<&'static str>, caller: Option<&str>) -> Option<(u16, String)> {
    let openers = openers(class)?;
    let class = class.unwrap_or_default();
    match caller {
        None => Some((
            401,
            format!("an API key of class '{class}' is needed: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"),
        )),
        Some("wrong") => Some((401, "the API key is not known".to_owned())),
        Some(own) if openers.contains(&own) => None,
        Some(own) => Some((403, format!("the API key 'for-{own}' lacks the class '{class}'"))),
    }
}

/// Compares an answer with the expected one. Returns the difference, if any.
fn difference(
    what: &str,
    (status, body, challenge): (u16, &[u8], Option<&str>),
    want: Option<(u16, String)>,
) -> Option<String> {
    let body = String::from_utf8_lossy(body);
    let is_right = match &want {
        Some((code, text)) => {
            status == *code
                && body == format!(r#"{{"error":"{text}"}}"#)
                && (challenge == Some("Bearer")) == (*code == 401)
        }
        None => status != 401 && !body.contains("the API key ") && !body.contains("an API key of class"),
    };
    (!is_right).then(|| format!("{what}: {status} {body} {challenge:?}, and not {want:?}"))
}

fn borrowed(fields: &[HeaderField]) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

#[test]
fn every_endpoint_asks_for_a_key_that_is_good_for_it_by_any_protocol_and_method() {
    let file = KeyFile::of_classes();
    let (_folder, server) = server(&file, &["--log-verbose=1", "--access-log=1"]);
    let (mut differences, mut asked) = (Vec::new(), 0);
    for (category, paths) in HTTP {
        for path in *paths {
            let class = class_of(category, path.ends_with("/index"));
            // POST to the root is a text for the only model.
            let class_of_post = if *path == "/" { class_of("inference", false) } else { class };
            for (index, (caller, fields)) in callers().into_iter().enumerate() {
                let (want, fields) = (|class| refusal(class, caller), borrowed(&fields));
                for method in ["GET", "POST", "OPTIONS"] {
                    let address = if index % 2 == 0 { server.http() } else { server.grpc() };
                    let answer = http::exchange(address, &http::request(method, path, &fields, b"{}")).unwrap();
                    let challenge = answer.header("www-authenticate");
                    let got = (answer.status, &answer.body[..], challenge);
                    differences.extend(difference(
                        &format!("{method} {path} {fields:?}"),
                        got,
                        want(if method == "POST" { class_of_post } else { class }),
                    ));
                    asked += 1;
                }
                let address = if index % 2 == 0 { server.grpc() } else { server.http() };
                let (status, head, body) = h2::post_with(address, path, &fields, b"{}");
                let got = (status, &body[..], head.get("www-authenticate").map(String::as_str));
                differences.extend(difference(&format!("HTTP/2 {path} {fields:?}"), got, want(class_of_post)));
                asked += 1;
            }
        }
    }
    assert_eq!((differences, asked), (Vec::<String>::new(), 32 * 12 * 4));
    assert_eq!(http::get(server.http(), "/v3").unwrap().status, 404, "what is nowhere needs no key");
    let log = server.log();
    assert!(log.contains("key=\"for-read\"") && !log.contains("s3cret"), "{log}");
}

#[test]
fn every_rpc_asks_for_a_key_that_is_good_for_it() {
    let file = KeyFile::of_classes();
    let (_folder, server) = server(&file, &[]);
    let service = "/inference.GRPCInferenceService";
    let mut rpcs: Vec<_> = GRPC
        .iter()
        .flat_map(|(category, methods)| methods.split(' ').map(|method| (*category, format!("{service}/{method}"))))
        .collect();
    rpcs.extend(["Check", "List"].map(|method| ("health", format!("/grpc.health.v1.Health/{method}"))));
    for service in ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"] {
        rpcs.push(("metadata", format!("/{service}/ServerReflectionInfo")));
    }
    for (category, method) in
        [("metadata", "Info/Info"), ("inference", "Embed/Embed"), ("inference", "Embed/EmbedStream")]
    {
        rpcs.push((category, format!("/tei.v1.{method}")));
    }
    assert_eq!(rpcs.len(), 27);
    let mut differences = Vec::new();
    for (category, path) in rpcs {
        let class = class_of(category, path.ends_with("RepositoryIndex"));
        for (index, (caller, fields)) in callers().into_iter().enumerate() {
            let address = if index % 2 == 0 { server.grpc() } else { server.http() };
            let trailers: BTreeMap<_, _> = h2::call(address, &path, &borrowed(&fields), &[]);
            let text = |name: &str| trailers.get(name).cloned().unwrap_or_default();
            let got = (text("grpc-status"), text("grpc-message"));
            let is_right = match refusal(class, caller) {
                Some((code, text)) => got == (if code == 401 { "16" } else { "7" }.to_owned(), text),
                None => !matches!(got.0.as_str(), "7" | "16") && !got.1.contains("API key"),
            };
            if !is_right {
                differences.push(format!("{path} {fields:?}: {got:?}"));
            }
        }
    }
    assert_eq!(differences, Vec::<String>::new());
    assert!(!server.log().contains("s3cret"));
}

#[test]
fn every_alias_of_a_hosting_service_asks_for_a_key_too() {
    let file = KeyFile::of_classes();
    let hosted = front_ends::serve(&[&file.flag()]);
    let (mut differences, mut asked) = (Vec::new(), 0);
    for (is_vertex, path, redirect, category) in ALIASES {
        let address = if *is_vertex { hosted.vertex_ai } else { hosted.sagemaker };
        for method in ["GET", "POST", "DELETE", "PUT", "OPTIONS", "FOO"] {
            let only_shows = redirect.ends_with("/index")
                || path.starts_with("/models") && category == &"model-repository" && method == "GET";
            let class = if *redirect == "metrics" { Some("metrics") } else { class_of(category, only_shows) };
            for (index, (caller, fields)) in callers().into_iter().enumerate() {
                // Half of the callers each time: the method before tried the other form of a key.
                if (index + method.len()) % 2 == 0 {
                    continue;
                }
                let mut fields = borrowed(&fields);
                fields.extend((!redirect.is_empty()).then_some((REDIRECT, *redirect)));
                let answer = http::exchange(address, &http::request(method, path, &fields, b"{}")).unwrap();
                let got = (answer.status, &answer.body[..], answer.header("www-authenticate"));
                let what = format!("{method} {path} {redirect} {fields:?}");
                differences.extend(difference(&what, got, refusal(class, caller)));
                asked += 1;
            }
        }
    }
    assert_eq!((differences, asked), (Vec::<String>::new(), ALIASES.len() * 6 * 6));
}

#[test]
fn the_metrics_ask_for_a_key_and_show_who_has_asked() {
    let file = KeyFile::of_classes();
    let (_folder, server) = server(&file, &[]);
    let ask = |fields: &[(&str, &str)], path: &str| {
        http::exchange(server.metrics(), &http::request("GET", path, fields, b"")).unwrap()
    };
    for (caller, fields) in callers() {
        for (path, class) in [("/metrics", "metrics"), ("/nothing", "metrics"), ("/console/logs/0", "admin")] {
            let answer = ask(&borrowed(&fields), path);
            let got = (answer.status, &answer.body[..], answer.header("www-authenticate"));
            assert_eq!(difference(path, got, refusal(Some(class), caller)), None);
        }
        // The page that asks for the key.
        assert_eq!(ask(&borrowed(&fields), "/").status, 200);
    }
    let text = ask(&[("x-api-key", "s3cret-metrics")], "/metrics").body;
    let text = String::from_utf8(text).unwrap();
    for line in [
        "deuteron_api_key_requests_total{key=\"for-metrics\"} 5",
        "deuteron_api_key_requests_total{key=\"for-read\"} 4",
        "deuteron_api_key_refused_total{key=\"for-infer\",reason=\"class\"} 6",
        "deuteron_access_refused_total{reason=\"missing\"} 6",
        "deuteron_access_refused_total{reason=\"unknown\"} 6",
        "deuteron_access_refused_total{reason=\"class\"} 14",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("s3cret"));
}

const INFER: &str = "/v2/models/identity_uint8/infer";
const SLOW: &str = "/v2/models/slow/infer";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","datatype":"UINT8","shape":[1,3],"data":[1,2,3]}]}"#;
const SLOW_BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}"#;

fn infer(address: SocketAddr, path: &str, key: &str) -> Response {
    let body = if path == SLOW { SLOW_BODY } else { BODY };
    http::exchange(address, &http::request("POST", path, &[("x-api-key", key)], body)).unwrap()
}

fn slow_message() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 1]);
    Message::new().bytes(1, "slow").bytes(3, "r").message(5, input).bytes(7, 1_f32.to_le_bytes()).into_bytes()
}

/// Opens the metrics to every client, so that tests can read them.
const OPEN_METRICS: &str = "[anonymous]\nclasses = ['metrics']\n";

#[test]
fn so_many_requests_of_a_client_are_in_flight_and_not_one_more_on_all_shards_together() {
    let file = KeyFile::new(
        &(entry("a", "ka", "'infer'", "concurrency = 3") + &entry("b", "kb", "'infer'", "") + OPEN_METRICS),
    );
    let (_folder, server) = server(&file, &["--shards=2", "--model-control-mode=none"]);
    for round in 0..3 {
        let barrier = Barrier::new(16);
        let outcomes: Vec<String> = thread::scope(|scope| {
            let http = (0..8).map(|index| {
                let (barrier, server) = (&barrier, &server);
                let address = if index % 2 == 0 { server.http() } else { server.grpc() };
                scope.spawn(move || {
                    barrier.wait();
                    let answer = infer(address, SLOW, "ka");
                    assert_eq!(answer.header("retry-after"), (answer.status == 429).then_some("1"), "{answer:?}");
                    answer.status.to_string()
                })
            });
            let http: Vec<_> = http.collect();
            let grpc = (0..8).map(|_| {
                let (barrier, server) = (&barrier, &server);
                scope.spawn(move || {
                    barrier.wait();
                    let fields = [("authorization", "Bearer ka")];
                    let path = "/inference.GRPCInferenceService/ModelInfer";
                    let trailers = h2::call(server.grpc(), path, &fields, &slow_message());
                    let pushback = trailers.get("grpc-retry-pushback-ms").map(String::as_str);
                    assert_eq!(pushback, (trailers["grpc-status"] == "8").then_some("1000"), "{trailers:?}");
                    trailers["grpc-status"].clone()
                })
            });
            let grpc: Vec<_> = grpc.collect();
            http.into_iter().chain(grpc).map(|thread| thread.join().unwrap()).collect()
        });
        let admitted = outcomes.iter().filter(|outcome| matches!(outcome.as_str(), "200" | "0")).count();
        let refused = outcomes.iter().filter(|outcome| matches!(outcome.as_str(), "429" | "8")).count();
        assert_eq!((admitted, refused), (3, 13), "round {round}: {outcomes:?}");
    }
    assert_eq!(infer(server.http(), INFER, "kb").status, 200, "others have their own");
    let metric = |name: &str| crate::support::metrics::metric(server.metrics(), name);
    assert_eq!(metric("deuteron_api_key_refused_total{key=\"a\",reason=\"concurrency\"}"), 39);
    assert_eq!(metric("deuteron_api_key_requests_total{key=\"a\"}"), 9);
}

#[test]
fn a_client_gets_its_burst_and_then_its_rate_on_all_shards_together() {
    let file = KeyFile::new(&(entry("a", "ka", "'infer'", "rate = 20\nburst = 4") + OPEN_METRICS));
    let (_folder, server) = server(&file, &["--shards=2"]);
    let start = Instant::now();
    let ask = |address: SocketAddr| {
        let mut admitted = 0_u32;
        let mut connection = http::Connection::open(address).unwrap();
        while start.elapsed() < Duration::from_secs(1) {
            connection.send(&http::request("POST", INFER, &[("x-api-key", "ka")], BODY)).unwrap();
            let answer = connection.receive().unwrap();
            match answer.status {
                200 => admitted += 1,
                429 => assert_eq!(answer.header("retry-after"), Some("1")),
                _ => panic!("{answer:?}"),
            }
            thread::sleep(Duration::from_millis(5));
        }
        admitted
    };
    let admitted: u32 = thread::scope(|scope| {
        let addresses = [server.http(), server.grpc(), server.http(), server.grpc()];
        let threads: Vec<_> = addresses.map(|address| scope.spawn(move || ask(address))).into_iter().collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // The first four, then at most one for each 50 ms since; hardly fewer unless the machine stalls.
    let most = 4 + u32::try_from(start.elapsed().as_millis() / 50).unwrap() + 1;
    assert!(admitted <= most && admitted >= 4 + 10, "{admitted} of {most}");
    let name = "deuteron_api_key_requests_total{key=\"a\"}";
    assert_eq!(crate::support::metrics::metric(server.metrics(), name), u64::from(admitted));
}

const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

fn message() -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "UINT8").packed(3, &[1, 3]);
    Message::new().bytes(1, "identity_uint8").bytes(3, "r").message(5, input).bytes(7, [1, 2, 3]).into_bytes()
}

/// Returns true if a response of a stream is an error that contains this text.
fn says(response: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(response).contains(text)
}

#[test]
fn each_request_of_a_stream_counts_and_a_key_that_is_gone_ends_it() {
    let file = KeyFile::new(&entry("a", "ka", "'infer'", "rate = 0.01\nburst = 3"));
    let (_folder, server) = server(&file, &[]);
    let client = Client::new(server.grpc());
    let (came, end) = client.stream(STREAM, &[("x-api-key", "ka")], vec![message(); 5]);
    let refused: Vec<bool> = came.iter().map(|response| says(response, "exceeds its request rate")).collect();
    assert_eq!(refused, [false, false, false, true, true]);
    assert!(end.is_ok(), "the stream goes on: {end:?}");
    let (came, end) = client.stream(STREAM, &[("x-api-key", "kb")], vec![message()]);
    let end = end.unwrap_err();
    assert!(came.is_empty() && end.code() == tonic::Code::Unauthenticated, "{end:?}");

    replace(&file.path, (entry("a", "ka", "'infer'", "") + &entry("b", "kb", "'infer'", "")).as_bytes());
    reload(&server, 1);
    let mut stream = client.open_stream_with(STREAM, &[("x-api-key", "ka")], message()).unwrap();
    for _ in 0..3 {
        assert!(!says(&stream.receive().unwrap().unwrap(), "API key"));
        assert!(stream.send(message()));
    }
    assert!(!says(&stream.receive().unwrap().unwrap(), "API key"));
    replace(&file.path, entry("a", "kc", "'infer'", "").as_bytes());
    reload(&server, 2);
    let start = Instant::now();
    let end = loop {
        stream.send(message());
        match stream.receive() {
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(20), "the stream goes on"),
            Err(end) => break end,
        }
    };
    assert_eq!((end.code(), end.message()), (tonic::Code::Unauthenticated, "the API key is not known"));
}

/// Has the file read again, and waits until the log shows the outcome of this reload.
fn reload(server: &Server, times: usize) {
    server.signal("HUP");
    let start = Instant::now();
    while server.log().matches("the file of API keys has changed").count() < times {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", server.log());
        thread::sleep(Duration::from_millis(20));
    }
    // The shards apply it in their next turn.
    thread::sleep(Duration::from_millis(50));
}

#[test]
fn a_changed_file_is_in_use_without_a_lost_connection_and_a_broken_one_is_not() {
    let open = |text: String| text + OPEN_METRICS;
    let file = KeyFile::new(&open(entry("a", "old", "'infer'", "")));
    let (_folder, server) = server(&file, &[]);
    let mut connections = [server.http(), server.grpc()].map(|address| http::Connection::open(address).unwrap());
    let mut admitted = 0;
    let mut statuses = |key: &str| {
        let statuses = connections.each_mut().map(|connection| {
            connection
                .send(&http::request("POST", INFER, &[("authorization", &format!("Bearer {key}"))], BODY))
                .unwrap();
            connection.receive().unwrap().status
        });
        admitted += statuses.iter().filter(|status| **status == 200).count() as u64;
        statuses
    };
    let mut are_soon = |key: &str, want: u16| {
        let start = Instant::now();
        while statuses(key) != [want; 2] {
            assert!(start.elapsed() < Duration::from_secs(20), "{key} is never {want}");
        }
    };
    are_soon("old", 200);
    are_soon("new", 401);
    let both = entry("a", "old", "'infer'", "").replace("sha256 = ", "sha256 = [");
    let both = both.replacen("\"\nclasses", &format!("\", \"{}\"]\nclasses", KeyDigest::of_key(b"new").hex()), 1);
    replace(&file.path, open(both).as_bytes());
    reload(&server, 1);
    are_soon("new", 200);
    are_soon("old", 200);
    replace(&file.path, open(entry("a", "new", "'infer'", "")).as_bytes());
    reload(&server, 2);
    are_soon("old", 401);
    are_soon("new", 200);
    // A broken file is ignored: the previous keys stay in use.
    replace(&file.path, b"[[key]]\nname = \"a\"\nsha256 = \"s3cret\"\n");
    reload(&server, 3);
    assert_eq!((statuses("old"), statuses("new")), ([401; 2], [200; 2]));
    fs::remove_file(&file.path).unwrap();
    reload(&server, 4);
    assert_eq!(statuses("new"), [200; 2]);
    let log = server.log();
    assert!(log.contains("keys.toml', line 3: sha256 has 64 hexadecimal digits"), "{log}");
    assert!(log.contains("keys.toml' cannot be read: ") && !log.contains("s3cret"), "{log}");
    let metric = |name: &str| crate::support::metrics::metric(server.metrics(), name);
    assert_eq!(metric("deuteron_api_keys_reloads_total{result=\"succeeded\"}"), 2);
    assert_eq!(metric("deuteron_api_keys_reloads_total{result=\"failed\"}"), 2);
    assert_eq!(metric("deuteron_api_key_requests_total{key=\"a\"}"), admitted, "it is counted by its name");
}

#[test]
fn what_is_wrong_with_the_file_ends_the_start_without_its_secret() {
    let folder = repository::write(Flavour::Deuteron);
    let refused = |flag: &str| {
        let output = Server::command(folder.path(), &[flag], Ports::free()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
        text
    };
    let file = KeyFile::new("[[key]]\nname = \"a\"\nkey = \"s3cret\"\n");
    assert!(refused(&file.flag()).contains("keys.toml', line 3: 'key' is not known here"));
    fs::write(&file.path, b"\xff").unwrap();
    assert!(refused(&file.flag()).contains("keys.toml' is no text in UTF-8"));
    fs::write(&file.path, vec![b'#'; 1024 * 1024 + 1]).unwrap();
    assert!(refused(&file.flag()).contains("has more than 1048576 bytes"));
    assert!(refused("--api-keys-file=/nowhere/keys").contains("--api-keys-file '/nowhere/keys' cannot be read: "));
}

#[test]
fn a_key_that_the_program_makes_opens_the_server_and_a_file_for_everybody_is_warned_of() {
    let make =
        |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_deuteron")).arg("key").args(arguments).output().unwrap();
    let made = make(&["team-a", "--class=infer", "--class", "read"]);
    assert!(made.status.success(), "{made:?}");
    let said = String::from_utf8(made.stderr).unwrap();
    let key = said.lines().find(|line| line.starts_with("dt_")).unwrap();
    let file = KeyFile::new(&String::from_utf8(made.stdout).unwrap());
    fs::set_permissions(&file.path, fs::Permissions::from_mode(0o644)).unwrap();
    let (_folder, server) = server(&file, &[]);
    assert_eq!(infer(server.http(), INFER, key).status, 200);
    assert_eq!(infer(server.http(), INFER, &key[..45]).status, 401);
    let log = server.log();
    assert!(log.contains("keys.toml' can be read or written by every user of this machine: chmod 0640"), "{log}");
    assert!(!log.contains(key));
    assert_eq!(make(&[]).status.code(), Some(2));
    let wrong = String::from_utf8(make(&["a", "--class=write"]).stderr).unwrap();
    assert!(wrong.contains("--class=write: expected admin, infer, metrics, read"), "{wrong}");
}

#[test]
fn keys_and_restrictions_must_both_be_right() {
    let file = KeyFile::of_classes();
    let (_folder, server) = server(&file, &["--http-restricted-api=inference,health:own=v"]);
    let ask = |path: &str, fields: &[(&str, &str)]| {
        let answer = http::exchange(server.http(), &http::request("POST", path, fields, BODY)).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).contains("This API is restricted"))
    };
    let key = ("x-api-key", "s3cret-infer");
    assert_eq!(ask(INFER, &[]), (401, false));
    assert_eq!(ask(INFER, &[("own", "v")]), (401, false));
    assert_eq!(ask(INFER, &[key]), (403, true));
    assert_eq!(ask(INFER, &[key, ("own", "v")]), (200, false));
    assert_eq!(ask("/v2/health/live", &[key]), (403, true), "health needs no key, and its restriction holds");
}

#[test]
fn curl_has_its_key_over_plain_and_tls() {
    let Some(files) = Files::new(KeyKind::Ecdsa) else { return };
    let file = KeyFile::of_classes();
    let flags = files.flags("grpc", false);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (_folder, server) = server(&file, &flags);
    let curl = |arguments: &[&str], tls: bool| {
        let url =
            if tls { format!("https://{}{INFER}", server.grpc()) } else { format!("http://{}{INFER}", server.http()) };
        let mut command = Command::new("curl");
        command.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_version} %{http_code}",
            "--cacert",
            &files.text("authority.pem"),
        ]);
        command.args(arguments).args(["-d", std::str::from_utf8(BODY).unwrap(), &url]);
        Some(String::from_utf8(command.output().ok()?.stdout).unwrap())
    };
    for (arguments, want) in [
        (&["--http1.1"][..], "1.1 401"),
        (&["--http1.1", "-H", "X-API-Key: s3cret-infer"], "1.1 200"),
        (&["--http1.1", "--oauth2-bearer", "s3cret-infer"], "1.1 200"),
        (&["--http1.1", "--oauth2-bearer", "s3cret-read"], "1.1 403"),
        (&["--http2-prior-knowledge", "--oauth2-bearer", "s3cret-infer"], "2 200"),
        (&["--http2-prior-knowledge", "-H", "x-api-key: s3cret-wrong"], "2 401"),
    ] {
        for tls in [false, true] {
            let Some(got) = curl(arguments, tls) else { return skip_unless_ci("curl is not installed") };
            assert_eq!(got, want, "{arguments:?} tls {tls}");
        }
    }
}

#[test]
fn clients_of_python_send_their_keys() {
    let Some(environment) = Environment::shared() else { return };
    let file = KeyFile::of_classes();
    let (_folder, server) = server(&file, &[]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/keys.py");
    let output = Command::new(environment.python())
        .arg(script)
        .args([server.http().to_string(), server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.ends_with("all passed\n"), "{text}\n{error}\n{}", server.log());
}
