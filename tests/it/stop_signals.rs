//! A stop signal that reaches a server more than once, as from wrappers that forward a signal which their process group
//! has received too: `timeout`, a shell, a Python parent, the control group of a systemd unit, the init of a container.
//! No request is lost to it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::folder::Folder;
use crate::support::http::Connection;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::skipped::{skip, skip_unless_ci};
use crate::support::wait::wait_until;

const BODY: &[u8] = br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[2]}]}"#;

/// Beyond the time of any test: a second signal never counts.
const NEVER: &str = "--second-signal-after-ms=3600000";

/// A shell that forwards the signals that it receives, as scripts at the start of containers do.
const FORWARDING: &str = r#""$@" & server=$!
trap 'kill -TERM $server' TERM
trap 'kill -INT $server' INT
wait $server; code=$?
while kill -0 $server 2>/dev/null; do wait $server; code=$?; done
exit $code"#;

/// A parent that ends its child's process group, and then the child.
const PARENT: &str = r"import os, signal, subprocess, sys
child = subprocess.Popen(sys.argv[1:], start_new_session=True)
def end(number, frame):
    os.killpg(child.pid, number)
    child.send_signal(number)
signal.signal(signal.SIGTERM, end)
sys.exit(child.wait())";

/// A server behind a wrapper, both in a process group of their own. Without a wrapper it leads the group.
struct Wrapped {
    _folder: Folder,
    server: Server,
}

impl Wrapped {
    fn start(wrapper: &[&str], flags: &[&str]) -> Self {
        let folder = repository::write(Flavour::Deuteron);
        let ports = Ports::free();
        let plain = Server::command(folder.path(), &[&["--exit-timeout-secs=120"], flags].concat(), ports);
        let mut command = Command::new(wrapper.first().map_or(plain.get_program(), |program| program.as_ref()));
        if let Some((_, arguments)) = wrapper.split_first() {
            command.args(arguments).arg(plain.get_program());
        }
        command.args(plain.get_args()).process_group(0);
        Self { _folder: folder, server: Server::start(command, ports) }
    }

    /// A request whose head has arrived and whose body has not: it is in flight for as long as the test wants.
    fn begin_request(&self) -> Connection {
        let mut connection = Connection::open(self.server.http()).unwrap();
        let (path, size) = ("/v2/models/identity_fp32/infer", BODY.len());
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n\r\n");
        connection.send(head.as_bytes()).unwrap();
        let mut begin = [0; 12];
        wait_until("the server awaits the body", || connection.stream().peek(&mut begin).unwrap() == begin.len());
        assert_eq!(&begin, b"HTTP/1.1 100");
        connection
    }

    /// Sends the body of the request: it is answered, and the server ends as after one signal.
    fn finish(mut self, name: &str, mut request: Connection) {
        request.send(BODY).unwrap();
        assert_eq!(request.receive().unwrap().status, 200, "{name}: {}", self.server.log());
        let status = self.server.wait();
        assert_eq!(status.code(), Some(0), "{name}: {}", self.server.log());
    }

    fn waits_for_log(&self, what: &str) {
        wait_until(what, || self.server.log().contains(what));
    }

    /// Sends a signal to a process, or to a group by its negative id.
    fn kill(&self, signal: &str, id: i64) {
        let sent = Command::new("kill").args(["-s", signal, "--", &id.to_string()]).stderr(Stdio::null()).status();
        assert!(sent.unwrap().success());
    }

    /// The wrapper, or the server without one.
    fn id(&self) -> i64 {
        self.server.id().into()
    }

    /// All processes of the group, or of the control group of a systemd unit.
    fn group(&self) -> Vec<i64> {
        let listed = Command::new("ps").args(["-e", "-o", "pid=,pgid=,comm="]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let of_group = |line: &str| {
            let mut fields = line.split_whitespace();
            let (id, group, name) = (fields.next()?.parse().ok()?, fields.next()?.parse::<i64>().ok()?, fields.next()?);
            (group == self.id() && name != "ps").then_some(id)
        };
        listed.lines().filter_map(of_group).collect()
    }
}

/// Returns true if a program is there, which every machine of CI has.
fn is_there(program: &str) -> bool {
    let is_there = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    let is_there = is_there.is_ok_and(|status| status.success());
    if !is_there {
        skip_unless_ci(&format!("there is no {program}"));
    }
    is_there
}

#[test]
fn a_signal_that_comes_again_within_the_grace_period_is_logged_and_loses_no_request() {
    let wrapped = Wrapped::start(&[], &[NEVER]);
    let request = wrapped.begin_request();
    wrapped.kill("TERM", wrapped.id());
    wrapped.waits_for_log("draining after signal 15");
    for (signal, number) in [("TERM", 15), ("INT", 2)] {
        wrapped.kill(signal, wrapped.id());
        wrapped.waits_for_log(&format!("signal {number} is ignored: the server ends already"));
        wrapped.waits_for_log(&format!("Signal ({number}) received."));
    }
    wrapped.finish("again", request);
}

#[test]
fn a_signal_that_comes_after_the_grace_period_ends_the_server_at_once() {
    let mut wrapped = Wrapped::start(&[], &[]);
    let _request = wrapped.begin_request();
    wrapped.kill("TERM", wrapped.id());
    wrapped.waits_for_log("draining after signal 15");
    thread::sleep(Duration::from_millis(1_000));
    wrapped.kill("TERM", wrapped.id());
    assert_eq!(wrapped.server.wait().code(), Some(143));
    assert!(wrapped.server.log().contains("ended at once by a second signal (15)"), "{}", wrapped.server.log());
}

#[test]
fn with_the_answers_of_tritonserver_no_second_signal_counts() {
    let wrapped = Wrapped::start(&[], &["--compat=triton"]);
    let request = wrapped.begin_request();
    wrapped.kill("TERM", wrapped.id());
    wrapped.waits_for_log("draining after signal 15");
    thread::sleep(Duration::from_millis(1_000));
    wrapped.kill("TERM", wrapped.id());
    wrapped.waits_for_log("signal 15 is ignored, as by tritonserver");
    wrapped.finish("triton", request);
}

#[test]
fn the_end_of_standard_input_is_no_second_signal() {
    let folder = repository::write(Flavour::Deuteron);
    let ports = Ports::free();
    let flags = ["--exit-with-stdin=true", "--second-signal-after-ms=0", "--exit-timeout-secs=120"];
    let plain = Server::command(folder.path(), &flags, ports);
    // Standard input ends when the test creates the file.
    let end = folder.path().join("end");
    let script = format!("while [ ! -e '{}' ]; do sleep 0.01; done | \"$@\"", end.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(plain.get_program()).args(plain.get_args()).process_group(0);
    let wrapped = Wrapped { _folder: folder, server: Server::start(command, ports) };
    let request = wrapped.begin_request();
    let name = |id: &i64| std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name == "deuteron\n");
    let server = wrapped.group().into_iter().find(name).unwrap();
    wrapped.kill("TERM", server);
    wrapped.waits_for_log("draining after signal 15");
    std::fs::write(&end, "").unwrap();
    wrapped.waits_for_log("signal 15 is ignored");
    wrapped.finish("input", request);
}

#[test]
fn timeout_that_is_ended_loses_no_request() {
    // It forwards the signal to its child, and to its process group.
    let wrapped = Wrapped::start(&["timeout", "3600"], &[NEVER]);
    let request = wrapped.begin_request();
    wrapped.kill("TERM", wrapped.id());
    wrapped.waits_for_log("draining after signal 15");
    wrapped.finish("timeout", request);
    // The terminal sends the signal to the process group, and it forwards its own.
    let wrapped = Wrapped::start(&["timeout", "--foreground", "3600"], &[NEVER]);
    let request = wrapped.begin_request();
    wrapped.kill("INT", -wrapped.id());
    wrapped.waits_for_log("draining after signal 2");
    wrapped.finish("timeout --foreground", request);
}

#[test]
fn a_shell_that_forwards_what_its_group_has_received_loses_no_request() {
    let wrapped = Wrapped::start(&["sh", "-c", FORWARDING, "sh"], &[NEVER]);
    let request = wrapped.begin_request();
    wrapped.kill("TERM", -wrapped.id());
    wrapped.waits_for_log("draining after signal 15");
    wrapped.finish("a shell", request);
}

#[test]
fn a_python_parent_that_ends_group_and_child_loses_no_request() {
    if !is_there("python3") {
        return;
    }
    let wrapped = Wrapped::start(&["python3", "-c", PARENT], &[NEVER]);
    let request = wrapped.begin_request();
    wrapped.kill("TERM", wrapped.id());
    wrapped.waits_for_log("draining after signal 15");
    wrapped.finish("a Python parent", request);
}

/// systemd sends the signal to every process of a unit's control group (`KillMode=control-group`), also to a script that
/// forwards it. Without systemd as the first process, the processes of the group stand for those of the unit.
#[test]
fn a_unit_whose_script_forwards_signals_loses_no_request() {
    let wrapped = Wrapped::start(&["sh", "-c", FORWARDING, "sh"], &[NEVER]);
    let request = wrapped.begin_request();
    let processes = wrapped.group();
    assert_eq!(processes.len(), 2, "{processes:?}");
    processes.iter().for_each(|id| wrapped.kill("TERM", *id));
    wrapped.waits_for_log("draining after signal 15");
    wrapped.finish("a unit", request);
}

/// The same by systemd itself, which signals the script and the server and calls the unit's end a success.
#[test]
fn systemd_loses_no_request_of_a_unit_whose_script_forwards_signals() {
    if !is_there("systemctl") || !is_there("unshare") {
        return;
    }
    let may = Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "tmpfs", "/run"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return skip("this user may not mount in a namespace of its own");
    }
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/systemd/unit");
    let wrapped = Wrapped::start(&[unit, "/bin/sh", "-c", FORWARDING, "sh"], &[NEVER]);
    let request = wrapped.begin_request();
    wrapped.kill("TERM", wrapped.id());
    // Two signals that come while the first still waits for its thread are one: the log need not have both.
    wrapped.waits_for_log("draining after signal 15");
    wrapped.finish("systemd", request);
}

#[test]
fn the_init_of_a_container_loses_no_request() {
    if !is_there("tini") {
        return;
    }
    // With -g it signals the whole group of its child; -s as it is not the first process here.
    for wrapper in
        [&["tini", "-s", "-g", "--", "sh", "-c", FORWARDING, "sh"][..], &["tini", "-s", "--", "timeout", "3600"]]
    {
        let wrapped = Wrapped::start(wrapper, &[NEVER]);
        let request = wrapped.begin_request();
        wrapped.kill("TERM", wrapped.id());
        wrapped.waits_for_log("draining after signal 15");
        wrapped.finish("tini", request);
    }
}
