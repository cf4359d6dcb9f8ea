//! The python-host thread with real processes. `/bin/sh -c` stands for `python3 -c`: it starts in a millisecond.

#![expect(clippy::disallowed_types, reason = "lines that the thread logs")]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::*;
use crate::python::environment::{Interpreter, InterpreterSource};
use crate::python::exit::ExitReason;
use crate::python::program::ProcessProgram;

/// The time for which a test waits for an expected event.
const SOON: Duration = Duration::from_secs(20);

/// The lines that all hosts of the tests have logged. Each test has names of its own.
static LINES: Mutex<Vec<(LogLevel, String)>> = Mutex::new(Vec::new());

const LOG: HostLog = HostLog { line: log, has_room: || true };

/// The log of one test, which gets room when the test says so. Without room it takes no line, and keeps the caller.
const FULL_LOG: HostLog = HostLog { line: wait_and_log, has_room: || HAS_ROOM.load(Ordering::SeqCst) };

static HAS_ROOM: AtomicBool = AtomicBool::new(false);

fn wait_and_log(level: LogLevel, text: &str) {
    let until = clock() + 2 * SOON;
    while !HAS_ROOM.load(Ordering::SeqCst) && clock() < until {
        thread::park_timeout(Duration::from_millis(2));
    }
    log(level, text);
}

fn log(level: LogLevel, text: &str) {
    if text.starts_with("flood: ") {
        FLOOD.fetch_add(1, Ordering::Relaxed);
        return;
    }
    LINES.lock().unwrap().push((level, text.to_owned()));
}

/// Lines of a process that prints without end.
static FLOOD: AtomicUsize = AtomicUsize::new(0);

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

/// A clock that a test may set forward; only one does.
fn skipping_clock() -> Instant {
    clock() + Duration::from_nanos(SKIPPED.load(Ordering::SeqCst))
}

/// A clock that is a second later each time that it is asked.
fn hurrying_clock() -> Instant {
    static ASKED: AtomicU64 = AtomicU64::new(0);
    Instant::ZERO + Duration::from_secs(ASKED.fetch_add(1, Ordering::SeqCst))
}

static SKIPPED: AtomicU64 = AtomicU64::new(0);

fn skip(time: Duration) {
    SKIPPED.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::SeqCst);
}

fn host() -> Arc<PythonHost> {
    PythonHost::start("python-host", LOG, clock, std::env::vars_os().collect()).unwrap()
}

/// The command that runs a test of this file alone, in a process of its own.
fn alone(test: &str, wrapper: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap().into_os_string();
    let mut words: Vec<OsString> = wrapper.iter().map(OsString::from).chain([program]).collect();
    let arguments = ["--exact", "--nocapture", "--test-threads=1"].map(OsString::from);
    words.extend(arguments.into_iter().chain([format!("python::host::tests::{test}").into()]));
    let mut command = Command::new(words.remove(0));
    command.args(words).env(ALONE, "1");
    command
}

/// Returns true if this is the process of [`alone`].
fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

const ALONE: &str = "TEST_RUNS_ALONE";

/// Runs a test in a process of its own.
fn run_alone(test: &str, wrapper: &[&str]) {
    let output = alone(test, wrapper).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn shell(boot: &'static str) -> ProcessProgram {
    python(PathBuf::from("/bin/sh"), boot)
}

fn python(path: PathBuf, boot: &'static str) -> ProcessProgram {
    let interpreter = Interpreter { path, source: InterpreterSource::Path, environment: None, archive: None };
    ProcessProgram::Python { interpreter, boot, threads: 1, is_template: false }
}

/// Starts a script; the other end of its main socket.
fn start(host: &PythonHost, name: &str, boot: &'static str) -> (PythonProcess, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let name = name.to_owned();
    let command =
        ProcessCommand { name, program: shell(boot), main: theirs.into(), cores: vec![], memory: Arc::default() };
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
    // A descriptor that exec would not close.
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

/// Returns true if a process is gone, or a zombie that another one has to reap.
fn is_gone(pid: &str) -> bool {
    wait_until(|| {
        let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (status.is_empty() || status.contains(") Z")).then_some(true)
    })
}

#[test]
fn an_end_is_asked_for_then_ordered_then_forced() {
    let host = PythonHost::start("python-host", LOG, skipping_clock, std::env::vars_os().collect()).unwrap();
    let (stubborn, _main) =
        start(&host, "stubborn", "trap 'echo term' TERM; echo $$; while :; do sleep 1000 & wait $!; done");
    let (polite, _other) = start(&host, "polite", "trap 'echo bye; exit 0' TERM; echo $$; sleep 1000 & wait $!");
    let (quick, main) = start(&host, "quick", "echo $$; read line; echo end");
    let pids = ["stubborn", "polite", "quick"].map(wait_for_line);
    let has = |name: &str, line: &str| logged(name).iter().any(|(_, text)| text == line);
    let hour = Duration::from_secs(3_600);
    stubborn.end(hour);
    polite.end(hour);
    quick.end(hour);
    drop(main);
    assert!(is_gone(&pids[2]));
    wait_until(|| has("quick", "end").then_some(()));
    assert!(!has("polite", "bye") && !has("stubborn", "term"));
    skip(hour);
    host.wake.wake();
    assert!(is_gone(&pids[1]));
    wait_until(|| has("polite", "bye").then_some(()));
    wait_until(|| has("stubborn", "term").then_some(()));
    assert!(fs::exists(format!("/proc/{}", pids[0])).unwrap());
    skip(PYTHON_TERMINATE_WAIT);
    host.wake.wake();
    assert!(is_gone(&pids[0]));
}

#[test]
fn the_end_of_the_host_ends_all_processes() {
    let host = host();
    let (process, _main) = start(&host, "stopped", "sleep 1000");
    let (ending, main) = start(&host, "ending", "read line; echo done");
    let orders = host.orders.clone();
    ending.end(SOON);
    // It has ended by itself within its grace when the host is gone.
    drop(main);
    drop(host);
    assert_eq!(process.has_ended(), Some(ExitReason::Killed(9)));
    assert_eq!(says(&logged("ending")), [(LogLevel::Info, "done")]);
    assert!(orders.send(HostOrder::Stop).is_err(), "the thread is gone");
}

#[test]
fn a_process_that_does_not_end_does_not_keep_the_server() {
    let (orders, receiver) = channel();
    let mut host = HostThread::new(receiver, LOG, hurrying_clock, Vec::new()).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let (name, boot) = ("endless".to_owned(), "sleep 1000");
    let command =
        ProcessCommand { name, program: shell(boot), main: theirs.into(), cores: vec![], memory: Arc::default() };
    let process = host.start(command).unwrap();
    // The thread never learns of its end, as with a process that a driver keeps in the kernel.
    epoll::delete(&host.epoll, process.pidfd()).unwrap();
    orders.send(HostOrder::Stop).unwrap();
    let wake = Arc::clone(&host.wake);
    let thread = thread::spawn(move || {
        host.run();
        host.processes.len()
    });
    wait_until(|| {
        wake.wake();
        thread.is_finished().then_some(())
    });
    assert_eq!(thread.join().unwrap(), 1);
    wait_until(|| process.has_ended());
}

#[test]
fn an_interpreter_that_cannot_be_started_is_named() {
    let host = host();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let program = python(PathBuf::from("/nowhere/python3"), "");
    let name = "absent".to_owned();
    let refused =
        host.spawn(ProcessCommand { name, program, main: theirs.into(), cores: vec![], memory: Arc::default() });
    let text = refused.map(|process| process.pid()).unwrap_err().text().to_owned();
    let want =
        "the Python interpreter '/nowhere/python3' (python3 in PATH) could not be started: No such file or directory";
    assert!(text.starts_with(want), "{text}");
}

#[test]
fn a_process_that_prints_without_end_does_not_keep_others_from_starting() {
    let host = host();
    let (flood, _main) = start(&host, "flood", "while :; do echo y; done");
    wait_until(|| (FLOOD.load(Ordering::Relaxed) > 10_000).then_some(()));
    let (other, _other) = start(&host, "beside", "echo here");
    assert_eq!(other.wait_ended(SOON), Some(ExitReason::Exited(0)));
    flood.kill();
    assert_eq!(flood.wait_ended(SOON), Some(ExitReason::Killed(9)));
}

/// A clock that stands still: no wait for the log is over.
fn still_clock() -> Instant {
    Instant::ZERO
}

#[test]
fn a_process_whose_output_the_log_has_no_room_for_waits_alone() {
    let host = PythonHost::start("python-host", FULL_LOG, still_clock, std::env::vars_os().collect()).unwrap();
    // More than a pipe and a read take; without end, the lines would fill the memory of a slow machine.
    let (talker, main) = start(&host, "talker", "read line; echo said; yes more | head -n 40000; exec sleep 1000");
    let (last, last_main) = start(&host, "last", "read line; echo words; exit 3");
    for main in [&main, &last_main] {
        rustix::io::write(main, b"\n").unwrap();
    }
    wait_until(|| last.has_ended());
    // Others start and end meanwhile.
    let starting = Arc::clone(&host);
    let other = thread::spawn(move || {
        let (other, _main) = start(&starting, "silent", "exit 5");
        other.wait_ended(SOON)
    });
    wait_until(|| other.is_finished().then_some(()));
    assert_eq!(other.join().unwrap(), Some(ExitReason::Exited(5)));
    assert!(logged("talker").is_empty() && logged("last").is_empty());
    HAS_ROOM.store(true, Ordering::SeqCst);
    assert_eq!(last.wait_ended(SOON), Some(ExitReason::Exited(3)), "told when its words are logged");
    assert_eq!(says(&logged("last")), [(LogLevel::Info, "words")]);
    wait_until(|| (logged("talker").len() > 1_000).then_some(()));
    assert_eq!(says(&logged("talker"))[..2], [(LogLevel::Info, "said"), (LogLevel::Info, "more")]);
    talker.kill();
    assert_eq!(talker.wait_ended(SOON), Some(ExitReason::Killed(9)));
}

#[test]
fn what_a_log_that_nobody_reads_has_no_room_for_is_handed_to_it_after_a_while() {
    let log = HostLog { line: log, has_room: || false };
    let host = PythonHost::start("python-host", log, clock, std::env::vars_os().collect()).unwrap();
    let (process, _main) = start(&host, "unread", "echo one; exit 3");
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Exited(3)));
    assert_eq!(says(&logged("unread")), [(LogLevel::Info, "one")]);
}

#[test]
fn only_the_last_lines_of_standard_error_are_kept() {
    let host = host();
    let (process, _main) = start(&host, "verbose", "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo line $i >&2; done");
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Exited(0)));
    let kept = process.stderr();
    assert!(kept.ends_with("line 4999\nline 5000\n") && !kept.contains("line 1\n"), "{}", kept.len());
    assert!(kept.len() <= 2 * crate::limits::PYTHON_STDERR_KEPT_MAX);
    assert_eq!(logged("verbose").len(), 5_000);
}

#[test]
fn a_process_goes_before_the_server_where_memory_runs_out() {
    let host = host();
    let (process, main) = start(&host, "memory", "read line; cat /proc/$$/oom_score_adj");
    rustix::io::write(&main, b"\n").unwrap();
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Exited(0)));
    let own: i32 = fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse().unwrap();
    assert_eq!(wait_for_line("memory"), (own + 500).min(1_000).to_string());
}

#[test]
fn a_process_is_kept_to_its_cores_until_it_gets_others() {
    let of = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect::<Vec<_>>();
    let all = of(sched_getaffinity(None).unwrap());
    let host = host();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let cores = vec![all[0], CpuSet::MAX_CPU];
    let (name, boot) = ("cores".to_owned(), "sleep 1000");
    let process = ProcessCommand { name, program: shell(boot), main: theirs.into(), cores, memory: Arc::default() };
    let process = host.spawn(process).unwrap();
    let pid = Pid::from_raw(process.pid().cast_signed());
    assert_eq!(of(sched_getaffinity(pid).unwrap()), all[..1]);
    process.set_cores(&all);
    assert_eq!(of(sched_getaffinity(pid).unwrap()), all);
    process.set_cores(&[]);
    assert_eq!(of(sched_getaffinity(pid).unwrap()), all);
    process.kill();
    process.wait_ended(SOON);
    process.set_cores(&all[..1]);
}

#[test]
fn no_signal_is_ignored_or_blocked() {
    // Not of the shell, which blocks all signals while it starts a program.
    let masks = "exec grep -E '^Sig(Blk|Ign)' /proc/self/status";
    if !is_alone() {
        let wrapper = ["env", "--ignore-signal=HUP", "--block-signal=USR2"];
        return run_alone("no_signal_is_ignored_or_blocked", &wrapper);
    }
    // Without the two that the C library keeps for itself.
    let mask = |line: &str| u64::from_str_radix(line.split_once(":\t").unwrap().1, 16).unwrap() & !(3 << 31);
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = own.lines().filter(|line| line.starts_with("SigBlk") || line.starts_with("SigIgn"));
    assert!(own.map(mask).all(|mask| mask != 0));
    let host = host();
    let (process, _main) = start(&host, "signals", masks);
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Exited(0)));
    assert_eq!(logged("signals").iter().map(|(_, line)| mask(line)).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn a_process_does_not_outlive_a_server_that_was_killed() {
    if is_alone() {
        let host = host();
        let (process, _main) = start(&host, "survivor", "exec sleep 1000");
        println!("\npid {}", process.pid());
        wait_until(|| None::<()>);
    }
    let mut server = alone("a_process_does_not_outlive_a_server_that_was_killed", &[]);
    let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(server.stdout.take().unwrap()));
    let pid = lines.map(Result::unwrap).find_map(|line| Some(line.strip_prefix("pid ")?.to_owned())).unwrap();
    wait_until(|| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap().starts_with("sleep").then_some(()));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(is_gone(&pid));
}

#[test]
fn a_process_that_another_has_reaped_has_ended_for_an_unknown_reason() {
    if !is_alone() {
        return run_alone("a_process_that_another_has_reaped_has_ended_for_an_unknown_reason", &[]);
    }
    let (orders, receiver) = channel();
    let mut host = HostThread::new(receiver, LOG, clock, Vec::new()).unwrap();
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let (name, boot) = ("stolen".to_owned(), "exit 3");
    let command =
        ProcessCommand { name, program: shell(boot), main: theirs.into(), cores: vec![], memory: Arc::default() };
    let process = host.start(command).unwrap();
    rustix::process::wait(WaitOptions::empty()).unwrap().unwrap();
    orders.send(HostOrder::Stop).unwrap();
    host.wake.wake();
    host.run();
    assert!(host.processes.is_empty());
    assert_eq!(process.wait_ended(SOON), Some(ExitReason::Unknown));
}

#[test]
fn a_thousand_processes_leave_nothing_behind() {
    if !is_alone() {
        return run_alone("a_thousand_processes_leave_nothing_behind", &[]);
    }
    let host = host();
    let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let pages = || -> usize {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    };
    let round = |index: usize| {
        let (process, main) = start(&host, "many", "read line; exit");
        match index % 4 {
            0 => process.end(SOON),
            1 => drop(process),
            2 => process.kill(),
            _ => {
                drop(main);
                process.wait_ended(SOON).unwrap();
            }
        }
    };
    let nothing_left = || {
        // Without reaping any: that is the thread's task.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::All, options).is_err_and(|errno| errno == Errno::CHILD)
    };
    let settled = || {
        wait_until(|| nothing_left().then_some(()));
        // The thread closes the descriptors of a process after it was reaped: it has done so when it starts another.
        let (process, _main) = start(&host, "last", "exit");
        process.wait_ended(SOON).unwrap();
        drop(process);
        let (_process, _main) = start(&host, "last", "read line");
        (count("fd"), count("task"))
    };
    (0..100).for_each(round);
    let (before, pages_before) = (settled(), pages());
    (0..1_000).for_each(round);
    assert_eq!(settled(), before);
    let grown = pages().saturating_sub(pages_before);
    assert!(grown < 256, "a megabyte: {grown} pages");
}
