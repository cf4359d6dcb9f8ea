//! A server that the system denies resources: descriptors, pinning, system calls that sandboxes forbid, space on a
//! disk. It goes on as far as it can, at little cost, and reports it once.

use std::io;
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::http::{self, Connection};
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::skipped::skip_unless_ci;

const INFER: &str = "/v2/models/identity_fp32/infer";
const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;

/// CPU time that a process has used.
fn cpu_time(id: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
    let (_, rest) = text.rsplit_once(") ").unwrap();
    let ticks: u64 = rest.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
}

#[test]
fn a_server_without_free_descriptors_waits_for_some_at_no_cost() {
    for io in ["--io=auto", "--io=epoll", "--io=glommio"] {
        let folder = repository::write(Flavour::Deuteron);
        let ports = Ports::free();
        let command = Server::command(folder.path(), &["--shards=2", io], ports);
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n 256; exec \"$@\"", "sh"]).arg(command.get_program()).args(command.get_args());
        let server = Server::start(limited, ports);
        let before = server.log().lines().count();
        let mut first = Connection::open(server.http()).unwrap();
        let request = http::request("POST", INFER, &[], BODY);
        let (begin, rest) = request.split_at(request.len() - 1);
        first.send(begin).unwrap();
        thread::sleep(Duration::from_millis(100));
        let held: Vec<_> = (0..400).filter_map(|_| TcpStream::connect(server.http()).ok()).collect();
        assert!(held.len() > 300);
        thread::sleep(Duration::from_millis(500));
        let (start, used) = (Instant::now(), cpu_time(server.id()));
        thread::sleep(Duration::from_secs(3));
        let share = (cpu_time(server.id()) - used).as_secs_f64() / start.elapsed().as_secs_f64();
        assert!(share <= 0.05, "{io}: {share:.3} of a core");
        let lines = server.log().lines().count() - before;
        assert!((1..=10).contains(&lines), "{io}: {lines} lines:\n{}", server.log());
        // A connection with a request is served as ever; an idle one makes room.
        first.send(rest).unwrap();
        assert_eq!(first.receive().unwrap().status, 200, "{io}");
        let served = |held: Vec<TcpStream>| {
            drop(held);
            let start = Instant::now();
            assert_eq!(http::post(server.http(), INFER, BODY).unwrap().status, 200, "{io}");
            start.elapsed()
        };
        // Other work on the machine makes it later now and then.
        let mut took = vec![served(held)];
        took.resize_with(5, || served((0..400).filter_map(|_| TcpStream::connect(server.http()).ok()).collect()));
        let limit = Duration::from_millis(if cfg!(debug_assertions) { 250 } else { 100 });
        assert!(took.iter().min() < Some(&limit), "{io}: {took:?}");
    }
}

/// Answers two system calls with an error and lets all else pass.
fn forbid(calls: [(i64, i32); 2]) -> impl FnMut() -> io::Result<()> {
    let jump = |call: i64, error: i32| {
        let number = u32::try_from(call).expect("numbers of calls are small");
        [
            libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: number },
            libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | error.unsigned_abs() },
        ]
    };
    let [[one, two], [three, four]] = calls.map(|(call, error)| jump(call, error));
    let load = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let allow = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let mut filter = [load, one, two, three, four, allow];
    move || {
        let program = libc::sock_fprog { len: 6, filter: filter.as_mut_ptr() };
        #[expect(unsafe_code, reason = "two prctl(2) that no crate here has")]
        // SAFETY: the program outlives the call, which copies it.
        let outcome = unsafe {
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
                failed => failed,
            }
        };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[test]
fn a_sandbox_without_openat2_or_pinning_serves_all_the_same() {
    for (error, io) in [(libc::ENOSYS, "--io=auto"), (libc::EPERM, "--io=epoll"), (libc::EPERM, "--io=glommio")] {
        let folder = repository::write(Flavour::Deuteron);
        repository::add(folder.path(), "square", repository::SQUARE, None);
        let ports = Ports::free();
        let mut command = Server::command(folder.path(), &["--shards=2", io], ports);
        #[expect(unsafe_code, reason = "the profile must be that of the child alone")]
        // SAFETY: between fork and exec it makes two system calls and allocates nothing.
        unsafe {
            command.pre_exec(forbid([(libc::SYS_openat2, error), (libc::SYS_sched_setaffinity, libc::EPERM)]));
        }
        let mut server = Server::start(command, ports);
        assert_eq!(http::post(server.http(), INFER, BODY).unwrap().status, 200);
        let log = server.log();
        assert!(log.contains("shard 0 cannot be pinned to core") && log.contains("runs where it may"), "{log}");
        assert_eq!(http::get(server.http(), "/v2/models/square/ready").unwrap().status, 200);
        assert!(server.stop().success());
    }
}

#[test]
fn a_full_disk_for_traces_stops_nothing() {
    let folder = repository::write(Flavour::Deuteron);
    let flags = ["rate=1", "level=TIMESTAMPS", "triton,file=/dev/full", "triton,log-frequency=1"];
    let flags = flags.map(|setting| format!("--trace-config={setting}"));
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let mut server = Server::deuteron(folder.path(), &flags);
    for _ in 0..100 {
        assert_eq!(http::post(server.http(), INFER, BODY).unwrap().status, 200);
    }
    assert!(server.stop().success());
    let lines = server.log().lines().filter(|line| line.contains("trace")).count();
    assert!(lines <= 10, "{}", server.log());
}

/// Debian's package faketime.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

#[test]
fn a_clock_that_jumps_an_hour_either_way_moves_no_timer() {
    if !std::path::Path::new(FAKETIME).exists() {
        return skip_unless_ci("there is no libfaketime");
    }
    let folder = repository::write(Flavour::Deuteron);
    let place = Folder::new("clock");
    let clock = place.path().join("clock");
    let set = |offset: &str| std::fs::write(&clock, offset).unwrap();
    set("+0");
    let ports = Ports::free();
    let mut command = Server::command(folder.path(), &["--shards=1", "--drain-delay=1", "--access-log=1"], ports);
    command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut server = Server::start(command, ports);
    let mut kept = Connection::open(server.http()).unwrap();
    for offset in ["+3600", "-3600", "+0", "+86400"] {
        set(offset);
        let start = Instant::now();
        // A run of 0.3 s, on a connection that was idle across the jump.
        kept.send(&http::request("POST", "/v2/models/slow/infer", &[], BODY)).unwrap();
        assert_eq!(kept.receive().unwrap().status, 200, "{offset}");
        assert!(start.elapsed() < Duration::from_secs(15), "{offset}: {:?}", start.elapsed());
        assert_eq!(http::get(server.http(), "/v2/health/ready").unwrap().status, 200);
    }
    set("-86400");
    let start = Instant::now();
    assert!(server.stop().success());
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(20), "{took:?}");
}

/// The threads of a server's two shards, once both wait for their sockets.
fn shard_threads(server: &Server) -> Vec<String> {
    let start = Instant::now();
    loop {
        let found = waiting_shard_threads(server);
        if found.len() == 2 {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{found:?} wait for sockets");
        thread::sleep(Duration::from_millis(5));
    }
}

fn waiting_shard_threads(server: &Server) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap().flatten();
    let read = |task: &std::fs::DirEntry, file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
    // The other thread of this name waits for the shard itself, in futex(2).
    let waits = [libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_io_uring_enter].map(|call| call.to_string());
    let is_shard = |task: &std::fs::DirEntry| {
        read(task, "comm").starts_with("shard-")
            && waits.iter().any(|call| read(task, "syscall").split(' ').next() == Some(call))
    };
    tasks.filter(is_shard).map(|task| task.file_name().into_string().unwrap()).collect()
}

/// Lets system calls of these threads fail until it is dropped.
struct Faults(std::process::Child);

impl Faults {
    fn inject(threads: &[String], what: &str) -> Option<Self> {
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-o", "/dev/null", &format!("--inject={what}")]);
        strace.args(threads.iter().flat_map(|thread| ["-p", thread]));
        let child = strace.spawn().ok()?;
        // It is attached when the threads name their tracer.
        let start = Instant::now();
        let is_traced = |thread: &String| {
            let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
            !status.lines().any(|line| line == "TracerPid:\t0")
        };
        while !threads.iter().all(is_traced) {
            assert!(start.elapsed() < Duration::from_secs(10), "strace cannot attach");
            thread::sleep(Duration::from_millis(5));
        }
        Some(Self(child))
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        // It detaches from the threads; killed, it would leave them stopped.
        let id = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_shard_that_ends_takes_the_server_with_it_when_the_others_have_answered() {
    for (io, fault) in
        [("--io=epoll", "epoll_wait,epoll_pwait:error=EBADF"), ("--io=ring", "io_uring_enter:error=ENXIO")]
    {
        let folder = repository::write(Flavour::Deuteron);
        let mut server = Server::deuteron(folder.path(), &["--shards=2", io]);
        let threads = shard_threads(&server);
        let request = http::request("POST", "/v2/models/slow/infer", &[], BODY);
        let mut clients: Vec<_> = (0..12).map(|_| Connection::open(server.http()).unwrap()).collect();
        clients.iter_mut().for_each(|client| client.send(&request).unwrap());
        let Some(faults) = Faults::inject(&threads[1..], fault) else { return skip_unless_ci("no strace") };
        let answers: Vec<_> =
            clients.iter_mut().map(|client| client.receive().ok().map(|answer| answer.status)).collect();
        drop(faults);
        let answered = answers.iter().filter(|status| **status == Some(200)).count();
        let closed = answers.iter().filter(|status| status.is_none()).count();
        assert!(answered > 0 && closed > 0 && answered + closed == answers.len(), "{io}: {answers:?}");
        assert_eq!(server.wait().code(), Some(1), "{io}");
        let log = server.log();
        assert!(log.contains("failed, the server ends: its sockets failed"), "{log}");
    }
}

#[test]
fn connections_that_cannot_be_accepted_for_a_while_cost_nothing_and_are_served_later() {
    for error in ["ENOBUFS", "EPROTO", "EPERM"] {
        let folder = repository::write(Flavour::Deuteron);
        let mut server = Server::deuteron(folder.path(), &["--shards=2", "--io=epoll"]);
        let before = server.log().lines().count();
        let threads = shard_threads(&server);
        let Some(faults) = Faults::inject(&threads, &format!("accept4:error={error}")) else {
            return skip_unless_ci("no strace");
        };
        let mut clients: Vec<_> = (0..8).map(|_| Connection::open(server.http()).unwrap()).collect();
        let request = http::request("POST", INFER, &[], BODY);
        clients.iter_mut().for_each(|client| client.send(&request).unwrap());
        let (start, used) = (Instant::now(), cpu_time(server.id()));
        thread::sleep(Duration::from_secs(1));
        let share = (cpu_time(server.id()) - used).as_secs_f64() / start.elapsed().as_secs_f64();
        assert!(share <= 0.1, "{error}: {share:.3} of a core");
        let lines = server.log().lines().count() - before;
        assert!(lines <= 10, "{error}: {lines} lines:\n{}", server.log());
        drop(faults);
        let start = Instant::now();
        for client in &mut clients {
            assert_eq!(client.receive().unwrap().status, 200, "{error}");
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{error}: {took:?}");
        assert!(server.stop().success());
    }
}
