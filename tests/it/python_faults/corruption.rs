//! Model code that corrupts the sockets and the memory shared by its process and the server. The batch fails, the
//! process is replaced, and other models notice nothing.

use std::time::Duration;

use crate::python_faults::{Deed, PythonServer, is_alive, kill, unhealthy, until};

/// A wait that is as long fails the test: what is waited for never comes.
const HANGS: Duration = Duration::from_secs(60);
/// `execute_timeout_ms` of a model that is to be ended for another reason, which comes first on a busy machine too.
const LATE: &str = "parameters { key: 'execute_timeout_ms' value { string_value: '15000' } }";
/// The same where what cannot be told from a long batch is ended by it.
const SOON: &str = "parameters { key: 'execute_timeout_ms' value { string_value: '2500' } }";

fn deeds(timeout: &str) -> [Deed<'_>; 2] {
    [Deed { config: timeout, ..Deed::named("m") }, Deed::named("other")]
}

/// Runs each piece of code, which would take a minute: it must fail before its time is up, and cost no other anything.
fn check_fatal(served: &mut PythonServer, codes: &[&str]) {
    let other = served.pid("other");
    for code in codes {
        let pid = served.pid("m");
        assert_eq!(served.run("m", code), unhealthy("m_0_0"), "{code}\n{}", served.server.log());
        assert_eq!(served.pid("other"), other, "{code}");
        assert_ne!(served.pid("m"), pid, "{code}");
        until("the old process is gone", HANGS, || !is_alive(pid));
    }
    assert!(served.server.is_running());
    assert_eq!(served.children().len(), 2, "{}", served.server.log());
    let lines = served.log_count(&["m_0_0", "its Python process"]);
    assert_eq!(lines, codes.len(), "one line each: {}", served.server.log());
}

#[test]
fn bytes_that_are_no_messages_end_the_process() {
    let Some(mut served) = PythonServer::start(&deeds(LATE), &[]) else { return };
    check_fatal(
        &mut served,
        &[
            "[os.write(fd, b'\\xff' * 5000) for fd in sockets()]; time.sleep(60)",
            "[os.write(fd, bytes(5000)) for fd in sockets()]; time.sleep(60)",
            "[os.write(fd, b'\\xff\\xff\\xff\\xff\\x03') for fd in sockets()]; time.sleep(60)",
            "[os.write(fd, b'\\x01\\x00\\x00\\x04\\x03') for fd in sockets()]; time.sleep(60)",
            "[os.write(fd, b'POST / HTTP/1.1\\r\\n\\r\\n') for fd in sockets()]; time.sleep(60)",
            "[os.close(fd) for fd in sockets()]; time.sleep(60)",
            "[socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR) for fd in sockets()]; time.sleep(60)",
        ],
    );
    assert_eq!(served.log_count(&["m_0_0", "broke the protocol"]), 5, "{}", served.server.log());
}

#[test]
fn messages_that_make_no_sense_end_the_process() {
    let Some(mut served) = PythonServer::start(&deeds(LATE), &[]) else { return };
    let say = |to: &str, frames: &str| {
        format!(
            "from struct import pack\nimport deuteron_channel as c\nf = c.frame\nspan = pack('<IHQQ', 9, 0, 64, 64)\n\
             none = bytes(22)\nc.process.{to}.send({frames})\ntime.sleep(60)"
        )
    };
    let text = "c.str32('{}')";
    let main = [
        // A second start, another batch, no batch at all, too few responses, memory outside of the region.
        format!("f(1, {text})"),
        format!("f(6, {text})"),
        "f(2, c.str32('late'))".to_owned(),
        "f(3, pack('<QB', 1 << 60, 1), none, pack('<BI', 0, 0))".to_owned(),
        "f(3, c.process.memory.first.map[:8], b'\\1', none, pack('<BI', 0, 0))".to_owned(),
        "f(3, c.process.memory.first.map[:8], b'\\1', pack('<IHQQ', 9, 0, 64, 1 << 40), pack('<BIBIHHBBQQq', 0, 1, 1, 0, 1, \
         0, 2, 1, 0, 1 << 40, 1 << 40))"
            .to_owned(),
        "f(3, c.process.memory.first.map[:8], b'\\1', pack('<IHQQ', 9, 77, 64, 8), pack('<BI', 0, 1), b'\\0')".to_owned(),
        "f(3, c.process.memory.first.map[:8], b'\\1', span, pack('<BIBIHHBBQQq', 0, 1, 1, 0, 1, 7, 2, 1, 0, 8, 8))".to_owned(),
        "f(3, c.process.memory.first.map[:8], b'\\1', span, pack('<BIBIHHBBQQq', 0, 1, 1, 0, 1, 0, 99, 1, 0, 8, 8))".to_owned(),
        "f(3, c.process.memory.first.map[:8], b'\\1', span, pack('<BIBIHHBBQQq', 0, 1, 1, 0, 1, 0, 2, 1, 0, 8, -8))".to_owned(),
        "f(3, c.process.memory.first.map[:8], b'\\1', none, pack('<BI', 0, 0xffffffff))".to_owned(),
        "f(9)".to_owned(),
    ];
    let aux = [
        "f(1, pack('<II', 1, 4_000_000_000))".to_owned(),
        "f(1, pack('<I', 0xffffffff))".to_owned(),
        "f(7, pack('<QQB', 1, 0, 0), b'\\1\\0m', pack('<q', -1))".to_owned(),
        "f(5, b'\\0' * 5, b'\\1\\0\\xff', c.str32('not UTF-8'))".to_owned(),
        "f(99)".to_owned(),
    ];
    let codes: Vec<_> = main
        .iter()
        .map(|frames| say("main", frames))
        .chain(aux.iter().map(|frames| say("aux.writer", frames)))
        .collect();
    check_fatal(&mut served, &codes.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn random_bytes_on_the_sockets_never_reach_the_server_itself() {
    let Some(mut served) = PythonServer::start(&deeds(SOON), &[]) else { return };
    let other = served.pid("other");
    for seed in 0..6 {
        // A plausible size and kind, then noise: the timeout ends a fault that looks like the start of a long message.
        let code = format!(
            "import random\nrandom.seed({seed})\n\
             for fd in sockets():\n    body = random.randbytes(random.randrange(1, 200))\n    \
             os.write(fd, len(body).to_bytes(4, 'little') + bytes((random.randrange(1, 16),)) + body[1:] + b'\\xff' * 64)\n\
             time.sleep(60)"
        );
        let (status, text) = served.run("m", &code).unwrap_err();
        assert_eq!(status, 500, "{seed}: {text}");
        assert_eq!(served.well("m", "result = 1"), "1", "{seed}");
    }
    assert_eq!(
        served.run("m", "[os.write(fd, b'\\0\\0\\0\\1\\3') for fd in sockets()]").map_err(|error| error.0),
        Err(500)
    );
    assert_eq!((served.pid("other"), served.server.is_running()), (other, true));
}

#[test]
fn what_a_model_writes_into_the_shared_memory_reaches_its_own_answers_only() {
    // Small regions are filled soon, on a busy machine too.
    let small = "--backend-config=python,shm-default-byte-size=1048576";
    let Some(mut served) = PythonServer::start(&deeds(LATE), &[small]) else { return };
    let (pid, other) = (served.pid("m"), served.pid("other"));
    let maps = "import gc, mmap\nmaps = [one for one in gc.get_objects() if type(one) is mmap.mmap]\n";
    for value in ["0x00", "0xff", "0x41"] {
        let fill = format!("{maps}for one in maps:\n    one[:] = bytes(({value},)) * len(one)\nresult = len(maps)");
        assert_eq!(served.well("m", &fill), "2");
        assert_eq!(served.well("m", "result = 3"), "3");
    }
    // Neither region can be shrunk or enlarged beneath the server.
    let resize = "import re\nrefused = 0\n\
        for line in open('/proc/self/maps'):\n    \
            if 'memfd' in line:\n        \
                for size in (0, 4096, 1 << 40):\n            \
                    try:\n                os.truncate('/proc/self/map_files/' + line.split()[0], size)\n            \
                    except OSError:\n                refused += 1\n\
        result = refused";
    assert_eq!(served.well("m", resize), "6");
    let reader = "import threading\n\
        def spoil():\n    \
            while True:\n        \
                for one in maps:\n            one[0:4096] = os.urandom(4096)\n\
        model.spoiler = threading.Thread(target=spoil, daemon=True)\nmodel.spoiler.start()\n";
    // Now and then this very answer is spoiled: the process is replaced by one that spoils nothing, at once or after a pause.
    until("one that spoils answers", HANGS, || served.run("m", &format!("{maps}{reader}")).is_ok());
    for _ in 0..100 {
        // Any answer is right: another thread overwrites the code that it is to run.
        let _ = served.run("m", "result = 'x' * 3000");
    }
    assert_eq!((served.pid("other"), served.server.is_running()), (other, true));
    // The last of these may have ended its process: then the one that is listed here may be gone before the signal.
    for id in served.children().into_iter().filter(|id| *id != other) {
        let _ = std::process::Command::new("kill").args(["-s", "KILL", &id.to_string()]).status();
    }
    until("it serves again", HANGS, || served.run("m", "result = os.getpid()").is_ok_and(|new| new != pid.to_string()));
}

#[test]
fn the_end_is_noticed_though_a_child_keeps_the_sockets() {
    let Some(served) = PythonServer::start(&deeds(LATE), &[]) else { return };
    // Past Python's own fork, which would close them; one in the group of its parent, one in a session of its own.
    for (fork, is_killed) in [("fork() == 0", true), ("fork() == 0 and libc.setsid() > 0", false)] {
        let file = served.folder.path().join(format!("child{is_killed}"));
        let code = format!(
            "libc = ctypes.CDLL(None)\nif libc.{fork}:\n    print(os.getpid(), file=open('{}', 'w'), flush=True)\n    \
             time.sleep(60)\n    os._exit(0)\nwhile not os.path.exists({file:?}) or not open({file:?}).read():\n    \
             time.sleep(0.01)\nos._exit(3)",
            file.display()
        );
        assert_eq!(served.run("m", &code), unhealthy("m_0_0"));
        assert_eq!(served.well("m", "result = 1"), "1");
        let child: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        if is_killed {
            until("the child goes with its parent", HANGS, || !is_alive(child));
        } else if is_alive(child) {
            kill(child, "KILL");
        }
    }
}
