//! The python-host thread with real processes. `/bin/sh -c` stands for `python3 -c`: it starts in a millisecond.

#![expect(clippy::disallowed_types, reason = "lines that the thread logs")]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;

use super::*;
use crate::backend::python::environment::{Interpreter, InterpreterSource};
use crate::backend::python::exit::ExitReason;

/// How long a test waits for what is about to happen.
const SOON: Duration = Duration::from_secs(20);

/// What all hosts of the tests have logged. Each test has names of its own.
static LINES: Mutex<Vec<(LogLevel, String)>> = Mutex::new(Vec::new());

fn log(level: LogLevel, text: &str) {
    LINES.lock().unwrap().push((level, text.to_owned()));
}

fn logged(name: &str) -> Vec<(LogLevel, String)> {
    let lines = LINES.lock().unwrap();
    let of_name = |text: &str| Some(text.strip_prefix(name)?.strip_prefix(": ")?.to_owned());
    lines.iter().filter_map(|(level, text)| Some((*level, of_name(text)?))).collect()
}

#[expect(clippy::disallowed_methods, reason = "the clock of the tests")]
fn clock() -> Instant {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    Instant::ZERO + start.elapsed()
}

fn host() -> Arc<PythonHost> {
    PythonHost::start(log, clock, std::env::vars_os().collect()).unwrap()
}

fn shell() -> Interpreter {
    Interpreter { path: PathBuf::from("/bin/sh"), source: InterpreterSource::Path, environment: None, archive: None }
}

/// Starts a script; the other end of its main socket.
fn start(host: &PythonHost, name: &str, boot: &'static str) -> (PythonProcess, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let name = name.to_owned();
    let command = ProcessCommand { name, interpreter: shell(), boot, main: theirs.into(), cores: vec![], threads: 1 };
    (host.spawn(command).unwrap(), ours)
}

fn says(lines: &[(LogLevel, String)]) -> Vec<(LogLevel, &str)> {
    lines.iter().map(|(level, text)| (*level, text.as_str())).collect()
}

#[test]
fn what_a_process_prints_is_logged_before_its_end_is_told() {
    let host = host();
    let (process, _main) = start(&host, "prints", "printf 'one\\n\\ntwo'; echo why >&2; exit 3");
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Exited(3)));
    assert_eq!(process.has_ended().unwrap().to_string(), "exit status 3");
    let lines = logged("prints");
    let mut lines = says(&lines);
    lines.sort_by_key(|(level, _)| *level != LogLevel::Info);
    assert_eq!(lines, [(LogLevel::Info, "one"), (LogLevel::Info, "two"), (LogLevel::Warning, "why")]);
    assert_eq!(process.stderr(), "why\n");
}

#[test]
fn the_main_socket_is_descriptor_0_and_no_other_is_open() {
    // One that exec would not close.
    let (leaked, _other) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let host = host();
    let (process, main) = start(&host, "open", "read line; echo got $line; ls /proc/$$/fd; exit");
    rustix::io::write(&main, b"hello\n").unwrap();
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Exited(0)));
    assert!(leaked.as_raw_fd() > 2);
    assert_eq!(says(&logged("open")), ["got hello", "0", "1", "2"].map(|line| (LogLevel::Info, line)));
}

#[test]
fn a_killed_process_takes_with_it_what_it_has_started() {
    let host = host();
    let (process, _main) = start(&host, "group", "sleep 1000 & echo $!; wait");
    let child = wait_for_line("group");
    assert_eq!(process.has_ended(), None);
    process.kill();
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Killed(9)));
    assert_eq!(process.has_ended().unwrap().to_string(), "killed by signal 9 (SIGKILL)");
    assert!(is_gone(&child));

    // It ends by itself, or is dropped.
    let (process, _main) = start(&host, "orphan", "sleep 1000 & echo $!");
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Exited(0)));
    assert!(is_gone(&wait_for_line("orphan")));
    let (process, _main) = start(&host, "dropped", "echo $$; sleep 1000");
    let pid = wait_for_line("dropped");
    assert_eq!(pid, process.pid().to_string());
    drop(process);
    assert!(is_gone(&pid));
}

/// The first line that a process prints.
fn wait_for_line(name: &str) -> String {
    wait_until(|| logged(name).first().map(|(_, line)| line.clone()))
}

fn wait_until<T>(mut outcome: impl FnMut() -> Option<T>) -> T {
    let until = clock() + SOON;
    loop {
        if let Some(got) = outcome() {
            return got;
        }
        assert!(clock() < until, "it did not happen in time");
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// Whether a process is gone, or a zombie that another one has to reap.
fn is_gone(pid: &str) -> bool {
    wait_until(|| {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (status.is_empty() || status.contains(") Z")).then_some(true)
    })
}
