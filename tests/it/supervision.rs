//! A server under a supervisor: its messages to systemd's notify socket, sockets that were opened for it, health checks
//! by `deuteron health`, and directories as stores leave them.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::onnx;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::skipped::skip_unless_ci;

/// A notify socket, and its messages so far.
struct Supervisor {
    socket: UnixDatagram,
    told: Vec<String>,
}

impl Supervisor {
    fn new(folder: &Path) -> Self {
        let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, told: Vec::new() }
    }

    /// Reads until a line with this beginning comes. Returns its rest.
    fn wait_for_rest(&mut self, begin: &str) -> String {
        loop {
            let mut space = [0; 4096];
            let size = self.socket.recv(&mut space).unwrap_or_else(|error| panic!("{begin}: {error}: {:?}", self.told));
            let text = String::from_utf8(space[..size].to_vec()).unwrap();
            self.told.push(text.clone());
            if let Some(rest) = text.lines().find_map(|line| line.strip_prefix(begin)) {
                return rest.to_owned();
            }
        }
    }

    /// Reads until a message comes. Returns the messages before it.
    fn wait_for(&mut self, line: &str) -> Vec<String> {
        let from = self.told.len();
        loop {
            let mut space = [0; 4096];
            let size = self.socket.recv(&mut space).unwrap_or_else(|error| panic!("{line}: {error}: {:?}", self.told));
            let text = String::from_utf8(space[..size].to_vec()).unwrap();
            self.told.push(text.clone());
            if text.lines().any(|told| told == line) {
                return self.told[from..].to_vec();
            }
        }
    }
}

#[test]
fn a_supervisor_is_told_when_the_server_is_ready_reloads_and_leaves() {
    let folder = repository::write(Flavour::Deuteron);
    let place = Folder::new("notify");
    let mut supervisor = Supervisor::new(place.path());
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &["--shards=1", "--drain-delay=1"], ports);
    command.env("NOTIFY_SOCKET", place.path().join("notify"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let before = supervisor.wait_for("READY=1");
    let ready = http::get(([127, 0, 0, 1], ports.http).into(), "/v2/health/ready").unwrap().status;
    assert_eq!((ready, &*before[0], before.len()), (200, "STATUS=Loading models", 2), "{before:?}");
    let signal = |name: &str| Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    signal("HUP");
    let reload = supervisor.wait_for("READY=1");
    assert!(reload.len() == 2 && reload[0].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reload:?}");
    signal("TERM");
    supervisor.wait_for("STOPPING=1");
    assert_eq!(http::get(([127, 0, 0, 1], ports.http).into(), "/v2/health/live").unwrap().status, 200, "it leaves");
    assert!(supervisor.wait_for("STATUS=Draining").len() <= 2);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!supervisor.told.concat().contains("WATCHDOG"), "nobody asked");
}

#[test]
fn a_supervisor_is_told_which_process_takes_over() {
    let folder = repository::write(Flavour::Deuteron);
    let place = Folder::new("notify");
    let mut supervisor = Supervisor::new(place.path());
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &["--shards=1"], ports);
    command.env("NOTIFY_SOCKET", place.path().join("notify"));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    supervisor.wait_for("READY=1");
    let signal = |name: &str, id: u32| Command::new("kill").args(["-s", name, &id.to_string()]).status().unwrap();
    signal("USR2", child.id());
    let heir: u32 = supervisor.wait_for_rest("MAINPID=").parse().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_ne!(heir, child.id());
    assert_eq!(http::get(([127, 0, 0, 1], ports.http).into(), "/v2/health/ready").unwrap().status, 200);
    let ready = supervisor.told.iter().filter(|told| told.contains("READY=1")).count();
    assert_eq!(ready, 2, "the new one was ready before the old one left: {:?}", supervisor.told);
    signal("TERM", heir);
    supervisor.wait_for("STOPPING=1");
}

#[test]
fn the_watchdog_is_fed_until_the_server_stands_still() {
    let folder = repository::write(Flavour::Deuteron);
    let place = Folder::new("watchdog");
    let mut supervisor = Supervisor::new(place.path());
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &["--shards=2"], ports);
    command.env("NOTIFY_SOCKET", place.path().join("notify")).env("WATCHDOG_USEC", "400000");
    let server = Server::start(command, ports);
    supervisor.wait_for("READY=1");
    let start = Instant::now();
    (0..10).for_each(|_| drop(supervisor.wait_for("WATCHDOG=1")));
    let took = start.elapsed();
    assert!(took > Duration::from_millis(1_500) && took < Duration::from_secs(6), "every 0.2 s: {took:?}");
    // A stopped process does nothing: the supervisor gets no further messages.
    server.signal("STOP");
    thread::sleep(Duration::from_millis(100));
    supervisor.socket.set_nonblocking(true).unwrap();
    while supervisor.socket.recv(&mut [0; 4096]).is_ok() {}
    thread::sleep(Duration::from_millis(800));
    assert!(supervisor.socket.recv(&mut [0; 4096]).is_err());
    server.signal("CONT");
    supervisor.socket.set_nonblocking(false).unwrap();
    supervisor.wait_for("WATCHDOG=1");
}

/// Starts a server with these sockets as descriptors from 3 on, as a supervisor does.
fn activated(repository: &Path, flags: &[&str], sockets: Vec<OwnedFd>, names: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
    command.arg("serve").arg(repository).args(flags).env("LISTEN_FDS", sockets.len().to_string());
    if !names.is_empty() {
        command.env("LISTEN_FDNAMES", names);
    }
    // The shell's process becomes the server's, so that its id is known.
    let mut shell = Command::new("sh");
    shell.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    #[expect(unsafe_code, reason = "descriptors are passed by their numbers")]
    // SAFETY: between fork and exec it makes system calls on descriptors that the closure owns, and allocates nothing.
    unsafe {
        shell.pre_exec(move || {
            for (number, socket) in (3..).zip(&sockets) {
                // dup2 onto itself would keep the close-on-exec flag.
                if socket.as_raw_fd() == number {
                    libc::fcntl(number, libc::F_SETFD, 0);
                } else if libc::dup2(socket.as_raw_fd(), number) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    shell
}

fn listeners(count: usize) -> (Vec<OwnedFd>, Vec<SocketAddr>) {
    // High numbers, so that no descriptor is overwritten by another on its way to its place.
    let one = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (rustix::io::fcntl_dupfd_cloexec(&listener, 200).unwrap(), address)
    };
    (0..count).map(|_| one()).unzip()
}

#[test]
fn sockets_that_were_opened_for_it_are_served_by_all_shards_and_left_open_at_the_end() {
    for io in ["--io=auto", "--io=epoll"] {
        let folder = repository::write(Flavour::Deuteron);
        let (sockets, addresses) = listeners(3);
        let kept: Vec<TcpListener> = sockets.iter().map(|socket| socket.try_clone().unwrap().into()).collect();
        let ports = Ports { metrics: addresses[0].port(), http: addresses[1].port(), grpc: addresses[2].port() };
        let flags = ["--shards=2", io];
        let mut server = Server::start(activated(folder.path(), &flags, sockets, "metrics:http:grpc"), ports);
        for _ in 0..50 {
            assert_eq!(http::get(server.http(), "/v2/health/live").unwrap().status, 200);
        }
        let grpc = crate::support::grpc::Client::new(server.grpc());
        assert_eq!(grpc.call("/inference.GRPCInferenceService/ServerLive", &[]).unwrap(), [8, 1]);
        assert!(crate::support::metrics::metric(server.metrics(), "deuteron_connections_open") > 0);
        assert_eq!(server.stop().code(), Some(0));
        // The supervisor still has them: a new connection waits for the next server.
        let waiting = std::net::TcpStream::connect(addresses[1]).unwrap();
        kept[1].set_nonblocking(true).unwrap();
        assert_eq!(kept[1].accept().unwrap().1, waiting.local_addr().unwrap(), "{io}");
    }
}

#[test]
fn the_program_of_systemd_that_activates_sockets_starts_a_server() {
    const PROGRAM: &str = "systemd-socket-activate";
    if Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip_unless_ci("there is no systemd-socket-activate");
    }
    let folder = repository::write(Flavour::Deuteron);
    let ports = Ports::free();
    let mut command = Command::new(PROGRAM);
    let listen = [ports.http, ports.grpc, ports.metrics].map(|port| format!("--listen=127.0.0.1:{port}"));
    command.args(listen).args(["--fdname=http:grpc:metrics", "--setenv=PATH"]).arg(env!("CARGO_BIN_EXE_deuteron"));
    command.arg("serve").arg(folder.path()).args(["--shards=2"]);
    // It starts the server when the first client connects, as the wait for its readiness does.
    let mut server = Server::start(command, ports);
    assert_eq!(http::get(server.http(), "/v2").unwrap().status, 200);
    assert!(crate::support::metrics::metric(server.metrics(), "deuteron_connections_open") > 0);
    assert!(server.stop().success(), "{}", server.log());
}

#[test]
fn passed_sockets_that_cannot_be_used_end_the_start_with_the_reason() {
    let folder = repository::write(Flavour::Deuteron);
    let refused = |flags: &[&str], names: &str| {
        let (sockets, _) = listeners(1);
        let output = activated(folder.path(), flags, sockets, names).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = refused(&[], "deuteron.socket");
    assert!(
        text.contains("'deuteron.socket'")
            && text.contains("expected http, grpc, metrics, sagemaker, vertex-ai or admin"),
        "{text}"
    );
    let text = refused(&["--io=glommio"], "http");
    assert!(text.contains("--io=glommio cannot leave the sockets"), "{text}");
    let bound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let high = rustix::io::fcntl_dupfd_cloexec(&bound, 200).unwrap();
    let output = activated(folder.path(), &[], vec![high], "http").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("passed for http cannot be used: it is no socket that listens"), "{text}");
}

fn deuteron(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_deuteron")).args(words).output().unwrap()
}

#[test]
fn a_health_check_tells_by_its_exit_code_whether_a_server_is_ready() {
    let folder = repository::write(Flavour::Deuteron);
    let mut server = Server::deuteron(folder.path(), &["--drain-delay=20", "--shards=1"]);
    let url = format!("--url=http://{}", server.http());
    let check = |words: &[&str], code: i32, want: &str| {
        let output = deuteron(words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && text.contains(want), "{words:?}: {:?} {text}", output.status);
    };
    check(&["health", &url], 0, "ready");
    check(&["health", &url, "--live"], 0, "live");
    check(&["health", &format!("{url}/v2/models/nothing/ready")], 1, "not ready");
    let by_variable = Command::new(env!("CARGO_BIN_EXE_deuteron"))
        .arg("health")
        .env("DEUTERON_HTTP_PORT", server.ports.http.to_string())
        .status();
    assert!(by_variable.unwrap().success());
    server.signal("TERM");
    let start = Instant::now();
    while deuteron(&["health", &url]).status.success() {
        assert!(start.elapsed() < Duration::from_secs(10), "it stays ready");
    }
    check(&["health", &url], 1, "answers 503");
    check(&["health", &url, "--live"], 0, "live");
    server.signal("TERM");
    server.wait();
    check(&["health", &url, "--live"], 1, "cannot be asked");
    check(&["health", "--url=grpc://a"], 2, "'grpc' is not supported");
}

/// Message of a server that does not start.
fn refused(path: &Path, flags: &[&str]) -> String {
    let output = Server::command(path, flags, Ports::free()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_directory_with_one_onnx_file_of_any_name_is_that_model() {
    let folder = Folder::new("lone");
    let model = onnx::addsub();
    std::fs::write(folder.path().join("my_model.onnx"), &model).unwrap();
    std::fs::write(folder.path().join("SUCCESS.hash"), "x").unwrap();
    let ready =
        |server: &Server, name: &str| http::get(server.http(), &format!("/v2/models/{name}/ready")).unwrap().status;
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    assert_eq!(ready(&server, "my_model"), 200);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--model-name=iris"]);
    assert_eq!(ready(&server, "iris"), 200);
    // With two files the choice is not clear.
    std::fs::write(folder.path().join("other.onnx"), &model).unwrap();
    let text = refused(folder.path(), &["--model-name=iris"]);
    assert!(text.contains("--model-name is for a path that holds one model"), "{text}");
}

#[test]
fn a_server_that_could_never_have_a_model_does_not_start() {
    let folder = Folder::new("empty");
    let text = refused(folder.path(), &[]);
    assert!(text.contains("there is no model in '") && text.contains("--model-control-mode=poll"), "{text}");
    for flags in [["--model-control-mode=explicit"], ["--exit-on-error=false"], ["--compat=triton"]] {
        let server = Server::deuteron(folder.path(), &flags);
        assert!(server.log().contains("no model is served yet"), "{flags:?}");
    }
}

#[test]
fn a_name_for_a_repository_is_refused_with_what_is_in_it() {
    let folder = Folder::new("several");
    repository::add(folder.path(), "square", repository::SQUARE, None);
    repository::add(folder.path(), "other", repository::SQUARE, None);
    let text = refused(folder.path(), &["--model-name=x"]);
    assert!(text.contains("is a repository of the models 'other', 'square': leave the flag out"), "{text}");
    let empty = Folder::new("nothing");
    let text = refused(empty.path(), &["--model-name=x"]);
    assert!(text.contains("is a repository of no model: expected an ONNX file"), "{text}");
}
