//! Server processes: started on free ports, awaited until ready, stopped when dropped.

use std::{
    env,
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    ops::Range,
    os::fd::IntoRawFd,
    path::Path,
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{folder::Folder, http};

/// Time limit from a server's start until it is ready.
const START_MAX: Duration = Duration::from_secs(60);
/// Time limit from SIGTERM to a server's end.
const STOP_MAX: Duration = Duration::from_secs(60);

/// Time without a change after which a log counts as whole.
const LOG_PAUSE: Duration = Duration::from_millis(20);
/// Most looks at a log that keeps growing.
const LOG_LOOKS_MAX: usize = 50;

/// The ports of one server.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// HTTP/1.1.
    pub http: u16,
    /// gRPC.
    pub grpc: u16,
    /// `/metrics`.
    pub metrics: u16,
}

impl Ports {
    /// Three ports without a listener until this process ends: the system hands out none of them, and other tests take
    /// others. A server may load for long before it listens.
    pub fn free() -> Self {
        super::time_limit::watch();
        let [http, grpc, metrics] = std::array::from_fn(|_| free_port());
        Self { http, grpc, metrics }
    }
}

/// Ports outside of the range that Linux assigns by itself (`ip_local_port_range`), and without a well-known service.
const PORTS: Range<u32> = 12_000..32_000;

/// A port that no other test process on this machine takes: this one holds the lock of a file of that name until it
/// ends.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = env::temp_dir().join("deuteron-test-ports");
    fs::create_dir_all(&folder).expect("the folder for temporary files can be written");
    let count = PORTS.end - PORTS.start;
    for _ in 0..count {
        let offset = process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let port = u16::try_from(PORTS.start + offset).expect("all of them are ports");
        let file = File::create(folder.join(port.to_string())).expect("the folder for temporary files can be written");
        if file.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            // Held until the process ends.
            let _ = file.into_raw_fd();
            return port;
        }
    }
    panic!("no port is free");
}

/// A running server.
pub struct Server {
    child: Child,
    log: Folder,
    /// The ports on which it listens.
    pub ports: Ports,
}

impl Server {
    /// Starts Deuteron on a model repository, with further flags, and waits until it is ready.
    pub fn deuteron(repository: &Path, flags: &[&str]) -> Self {
        let ports = Ports::free();
        Self::start(Self::command(repository, flags, ports), ports)
    }

    /// The command that starts Deuteron on these ports.
    pub fn command(repository: &Path, flags: &[&str], ports: Ports) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_deuteron"));
        command.arg("serve").arg(repository).args(flags);
        // The embedded engine serves models that choose none, in any environment of the tests.
        if !flags.iter().any(|flag| flag.contains("onnxruntime,")) {
            command.arg("--backend-config=onnxruntime,engine=embedded");
        }
        for (flag, port) in
            [("--http-port", ports.http), ("--grpc-port", ports.grpc), ("--metrics-port", ports.metrics)]
        {
            command.arg(flag).arg(port.to_string());
        }
        command
    }

    /// Starts any server and waits until `/v2/health/ready` answers 200.
    pub fn start(command: Command, ports: Ports) -> Self {
        Self::start_within(START_MAX, command, ports)
    }

    /// The same for a server with much to load.
    pub fn start_within(start_max: Duration, mut command: Command, ports: Ports) -> Self {
        let log = Folder::new("server");
        let file = File::create(log.path().join("log")).expect("the folder is ours");
        let copy = file.try_clone().expect("a file can be duplicated");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let mut server = Self { child, log, ports };
        server.wait_ready(start_max);
        server
    }

    /// Its address for HTTP/1.1.
    pub fn http(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.http).into()
    }

    /// Its address for gRPC.
    pub fn grpc(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.grpc).into()
    }

    /// Its address for metrics.
    pub fn metrics(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.metrics).into()
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Bytes that the process holds in memory.
    pub fn resident(&self) -> usize {
        let text = fs::read_to_string(format!("/proc/{}/statm", self.id())).expect("the server runs");
        let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("it is a number") * 4096
    }

    /// Its output so far, standard output and error in one. A thread of the server writes it, perhaps a moment after
    /// the answer to a client: so it is read until it stays the same for `LOG_PAUSE`.
    pub fn log(&self) -> String {
        let read = || fs::read(self.log.path().join("log")).unwrap_or_default();
        let mut bytes = read();
        for _ in 0..LOG_LOOKS_MAX {
            thread::sleep(LOG_PAUSE);
            let before = std::mem::replace(&mut bytes, read());
            if before == bytes {
                break;
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns true if the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to end (SIGTERM) and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < STOP_MAX {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the server did not end in {STOP_MAX:?}:\n{}", self.log());
    }

    /// Kills it, and returns when the process is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is ours");
    }

    /// Sends a signal by name, as `kill` knows it; a process that is gone is left alone.
    pub fn signal(&self, name: &str) {
        let _ = Command::new("kill").arg("-s").arg(name).arg(self.id().to_string()).stderr(Stdio::null()).status();
    }

    fn wait_ready(&mut self, start_max: Duration) {
        let start = Instant::now();
        while start.elapsed() < start_max {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the server ended with {status} before it was ready:\n{}", self.log());
            }
            let ready = http::get(self.http(), "/v2/health/ready");
            // If health is restricted, or the port has TLS, the refusal says that the server listens.
            let has_tls = |body: &[u8]| String::from_utf8_lossy(body).contains("this port has TLS");
            if ready.is_ok_and(|response| matches!(response.status, 200 | 403) || has_tls(&response.body)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the server was not ready in {start_max:?}:\n{}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server whose test is over may end in any way, but it must end.
        self.signal("TERM");
        let start = Instant::now();
        while self.is_running() && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
