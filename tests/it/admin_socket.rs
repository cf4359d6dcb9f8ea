//! `--admin-socket` on the server as a process: calls that change the server are served on a Unix socket and nowhere
//! else, to those who may use its file; the file comes and goes with the server, also after a kill and a hand-over.

use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::front_ends::{self, ALIASES, REDIRECT};
use crate::policy::{GRPC, HTTP};
use crate::support::folder::Folder;
use crate::support::h2;
use crate::support::http::{self, Connection, Response};
use crate::support::over::Over;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::skipped::skip_unless_ci;

/// A place for a socket: in the system's folder for temporary files, since a socket's path has at most 107 bytes.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("deuteron-admin-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("admin")
    }

    fn flag(&self) -> String {
        format!("--admin-socket={}", self.socket().display())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const EXPLICIT: &[&str] = &[
    "--model-control-mode=explicit",
    "--load-model=identity_fp32",
    "--allow-client-shm=true",
    "--allow-log-settings=true",
];

fn server(place: &Place, flags: &[&str]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let flag = place.flag();
    let server = Server::deuteron(folder.path(), &[EXPLICIT, &[&flag], flags].concat());
    (folder, server)
}

fn open(socket: &Path) -> std::io::Result<Connection<UnixStream>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(Connection::over(stream))
}

fn ask(socket: &Path, method: &str, path: &str, body: &[u8]) -> std::io::Result<Response> {
    let mut connection = open(socket)?;
    connection.send(&http::request(method, path, &[], body))?;
    connection.receive_to(method)
}

fn text(answer: &Response) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

const CLOSED: &str =
    "loads, unloads, traces, log settings and shared memory are served on the Unix socket of --admin-socket alone";

/// Returns true if a category of the interface changes the server; the index only shows it.
fn is_admin(category: &str, path: &str) -> bool {
    matches!(category, "shared-memory" | "trace" | "logging")
        || category == "model-repository" && !path.ends_with("ndex")
}

#[test]
fn what_changes_the_server_is_closed_on_every_port_and_open_on_the_socket() {
    let place = Place::new("matrix");
    let flag = place.flag();
    // With a socket of its own, beside the ports of hosting services.
    let hosted = front_ends::serve(&[&flag]);
    let server = &hosted.server;
    let mut differences = Vec::new();
    let mut check = |what: String, status: u16, body: &[u8], is_closed: bool| {
        let body = String::from_utf8_lossy(body);
        let is_refused = status == 403 && body == format!(r#"{{"error":"{CLOSED}"}}"#);
        if is_refused != is_closed {
            differences.push(format!("{what}: {status} {body}"));
        }
    };
    for (category, paths) in HTTP {
        for path in *paths {
            for address in [server.http(), server.grpc()] {
                for method in ["GET", "POST", "OPTIONS"] {
                    let answer = http::exchange(address, &http::request(method, path, &[], b"{}")).unwrap();
                    check(format!("{method} {path}"), answer.status, &answer.body, is_admin(category, path));
                }
                let (status, _, body) = h2::post_with(address, path, &[("x-api-key", "any")], b"{}");
                check(format!("HTTP/2 {path}"), status, &body, is_admin(category, path));
            }
            let answer = ask(&place.socket(), "POST", path, b"{}").unwrap();
            check(format!("{path} on the socket"), answer.status, &answer.body, false);
        }
    }
    for (is_vertex, path, redirect, category) in ALIASES {
        let address = if *is_vertex { hosted.vertex_ai } else { hosted.sagemaker };
        for method in ["GET", "POST", "DELETE", "FOO"] {
            let fields: Vec<_> = (!redirect.is_empty()).then_some((REDIRECT, *redirect)).into_iter().collect();
            let answer = http::exchange(address, &http::request(method, path, &fields, b"{}")).unwrap();
            let only_shows = path.starts_with("/models") && method == "GET";
            let is_closed = is_admin(category, redirect) && !only_shows;
            check(format!("{method} {path} {redirect}"), answer.status, &answer.body, is_closed);
        }
    }
    for (category, methods) in GRPC {
        for method in methods.split(' ') {
            let trailers = h2::call(server.grpc(), &format!("/inference.GRPCInferenceService/{method}"), &[], &[]);
            let is_refused = trailers["grpc-status"] == "7" && trailers["grpc-message"] == CLOSED;
            if is_refused != is_admin(category, method) {
                differences.push(format!("{method}: {trailers:?}"));
            }
        }
    }
    assert_eq!(differences, Vec::<String>::new());
    let log = server.log();
    assert!(log.contains("with --admin-socket SageMaker cannot load and unload models"), "{log}");
    assert!(log.contains(&format!("Started admin service at {}", place.socket().display())), "{log}");
}

#[test]
fn the_socket_loads_traces_logs_and_registers_by_every_way_of_the_sockets() {
    let folder = Folder::new("admin");
    let keys = folder.path().join("keys.toml");
    let digest = protocol::keys::KeyDigest::of_key(b"k").hex();
    fs::write(&keys, format!("[[key]]\nname='a'\nsha256='{digest}'\nclasses=['admin']\n")).unwrap();
    let keys = format!("--api-keys-file={}", keys.display());
    for io in ["auto", "epoll", "glommio"] {
        let place = Place::new(io);
        let (_folder, mut server) = server(
            &place,
            &[&format!("--io={io}"), &keys, "--http-restricted-api=model-repository:own=v", "--shards=2"],
        );
        let socket = place.socket();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        // One connection for all: it needs neither a key nor a header.
        let mut connection = open(&socket).unwrap();
        let mut ask = |method: &str, path: &str, body: &[u8]| {
            connection.send(&http::request(method, path, &[], body)).unwrap();
            let answer = connection.receive_to(method).unwrap();
            (answer.status, text(&answer))
        };
        assert_eq!(ask("POST", "/v2/repository/models/identity_int8/load", b"{}").0, 200, "{io}");
        assert_eq!(ask("GET", "/v2/models/identity_int8/ready", b"").0, 200, "{io}");
        assert_eq!(ask("GET", "/v2/models/identity_int8", b"").0, 200, "{io}");
        assert_eq!(ask("POST", "/v2/repository/models/identity_int8/unload", b"{}").0, 200, "{io}");
        assert_eq!(ask("POST", "/v2/logging", br#"{"log_verbose_level":0}"#).0, 200, "{io}");
        assert_eq!(ask("GET", "/v2/trace/setting", b"").0, 200, "{io}");
        assert_eq!(ask("GET", "/v2/systemsharedmemory/status", b"").0, 200, "{io}");
        // A body and an answer larger than any buffer between them.
        let values = vec!["1.5"; 200_000].join(",");
        let body =
            format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[1,200000],"data":[{values}]}}]}}"#);
        let (status, answer) = ask("POST", "/v2/models/identity_fp32/infer", body.as_bytes());
        assert!(status == 200 && answer.contains(&values), "{io}: {status}");
        let key = [("x-api-key", "k"), ("own", "v")];
        let load = http::request("POST", "/v2/repository/models/identity_int8/load", &key, b"{}");
        let answer = http::exchange(server.http(), &load).unwrap();
        assert_eq!(
            (answer.status, text(&answer)),
            (403, format!(r#"{{"error":"{CLOSED}"}}"#)),
            "{io}: a key changes nothing"
        );
        if let Some(status) = curl(&socket, &["-X", "POST", "-d", "{}"], "/v2/repository/models/identity_int8/load") {
            assert_eq!(status, "1.1 200", "{io}");
            let h2c = ["--http2-prior-knowledge", "-X", "POST", "-d", "{}"];
            assert_eq!(curl(&socket, &h2c, "/v2/repository/models/identity_int8/unload").unwrap(), "2 200", "{io}");
        } else {
            skip_unless_ci("curl is not installed");
        }
        assert!(server.stop().success(), "{io}: {}", server.log());
        assert!(!socket.exists(), "{io}: the file goes with the server");
    }
}

fn curl(socket: &Path, arguments: &[&str], path: &str) -> Option<String> {
    let mut command = Command::new("curl");
    command.args(["-s", "-o", "/dev/null", "-w", "%{http_version} %{http_code}", "--unix-socket"]).arg(socket);
    let output = command.args(arguments).arg(format!("http://admin{path}")).output().ok()?;
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_file_of_a_killed_server_is_no_hindrance_and_that_of_a_live_one_is() {
    let place = Place::new("stale");
    let (folder, mut first) = server(&place, &[]);
    let flag = place.flag();
    let command = || Server::command(folder.path(), &[EXPLICIT, &[&flag]].concat(), Ports::free());
    let output = command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is in use: another server listens there"), "{said}");
    assert_eq!(ask(&place.socket(), "GET", "/v2/trace/setting", b"").unwrap().status, 200, "and it listens still");
    first.kill();
    assert!(place.socket().exists(), "nobody has removed it");
    let ports = Ports::free();
    let mut second = Server::start(Server::command(folder.path(), &[EXPLICIT, &[&flag]].concat(), ports), ports);
    assert_eq!(ask(&place.socket(), "GET", "/v2/trace/setting", b"").unwrap().status, 200);
    second.stop();
    fs::write(place.socket(), "mine").unwrap();
    let said = String::from_utf8_lossy(&command().output().unwrap().stderr).into_owned();
    assert!(said.contains("cannot be used: there is a file that is no socket"), "{said}");
    assert_eq!(fs::read(place.socket()).unwrap(), b"mine");
    let nowhere = "--admin-socket=/nowhere/admin";
    let output = Server::command(folder.path(), &[nowhere], Ports::free()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("--admin-socket '/nowhere/admin' cannot be used"),
        "{said}"
    );
}

/// Kills a server that no other code waits for.
struct Successor(u32);

impl Drop for Successor {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-s", "KILL", &self.0.to_string()]).status();
    }
}

#[test]
fn a_server_that_takes_over_has_the_socket_without_a_moment_in_which_nobody_listens() {
    let place = Place::new("hand-over");
    let (_folder, mut first) = server(&place, &[]);
    let socket = place.socket();
    first.signal("USR2");
    let start = Instant::now();
    let (is_over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let successor = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let answer = ask(&socket, "GET", "/v2/trace/setting", b"");
                assert_eq!(answer.map(|answer| answer.status).ok(), Some(200), "after {asked:?}");
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = Over(&is_over);
        let id = loop {
            let log = first.log();
            let words = |line: &str| line.split_once("handed over to process ")?.1.split(';').next()?.parse().ok();
            if let Some(id) = log.lines().find_map(words) {
                break id;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no hand-over:\n{log}");
        };
        while first.is_running() {
            assert!(start.elapsed() < Duration::from_secs(60), "the older one stays:\n{}", first.log());
            thread::sleep(Duration::from_millis(2));
        }
        Successor(id)
    });
    assert!(asked.load(Ordering::Relaxed) > 10, "{asked:?}");
    assert_eq!(ask(&socket, "GET", "/v2/trace/setting", b"").unwrap().status, 200);
    let _ = Command::new("kill").args(["-s", "TERM", &successor.0.to_string()]).status();
    while socket.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "its file stays:\n{}", first.log());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_crowd_on_the_ports_leaves_the_socket_free_and_one_on_the_socket_makes_room() {
    let place = Place::new("crowd");
    let (_folder, server) = server(&place, &["--connections-max=1", "--shards=1"]);
    let busy = |address: SocketAddr| {
        let mut connection = Connection::open(address).unwrap();
        connection.send(b"GET /v2 HTTP/1.1\r\n").unwrap();
        connection
    };
    let _held: Vec<_> = (0..70).map(|_| busy(server.http())).collect();
    let first = open(&place.socket()).unwrap();
    let mut held: Vec<_> = (0..64).map(|_| open(&place.socket()).unwrap()).collect();
    // One connection above the bound: the one idle for longest makes room.
    let answer = ask(&place.socket(), "GET", "/v2/trace/setting", b"").unwrap();
    assert_eq!(answer.status, 200, "{}", text(&answer));
    let mut left = first;
    assert_eq!(left.stream().read(&mut [0]).unwrap_or(0), 0, "it gave its place up");
    let last = held.last_mut().unwrap();
    last.stream().write_all(&http::request("GET", "/v2/trace/setting", &[], b"")).unwrap();
    assert_eq!(last.receive().unwrap().status, 200);
}
