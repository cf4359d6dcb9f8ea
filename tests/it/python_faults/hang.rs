//! Code that does not come back, in `initialize`, `execute` and `finalize`: others go on, and the server still ends.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::python_faults::{Deed, IN_TURN, PythonServer, children, interpreter, is_alive, until};
use crate::support::folder::Folder;
use crate::support::server::{Ports, Server};

const START_MAX: Duration = Duration::from_secs(20);
/// Time limit for the end of a hanging process, on a busy machine: it would hang for ten minutes, and a model that ends by
/// itself has half a minute.
const END_MAX: Duration = Duration::from_secs(20);

/// Waits for the end of a server that was asked to end. Returns the time that it took.
fn stop(served: &mut PythonServer) -> Duration {
    let children = served.children();
    let start = Instant::now();
    assert!(served.server.stop().success(), "{}", served.server.log());
    let took = start.elapsed();
    until("the processes are gone", END_MAX, || !children.iter().any(|id| is_alive(*id)));
    took
}

#[test]
fn a_start_that_hangs_hinders_neither_other_models_nor_the_end_of_the_server() {
    let hangs = Deed { initialize: "time.sleep(600)", ..Deed::named("hangs") };
    let flags = ["--model-control-mode=explicit", "--load-model=well", "--exit-timeout-secs=2"];
    let Some(mut served) = PythonServer::start(&[Deed::named("well"), Deed::named("late"), hangs], &flags) else {
        return;
    };
    let address = served.server.http();
    let load = thread::spawn(move || {
        // The server may close the connection before it answers.
        let _ = crate::support::http::post(address, "/v2/repository/models/hangs/load", b"");
    });
    until("it starts", START_MAX, || served.children().len() == 2);
    assert_eq!(served.well("well", "result = 1"), "1");
    assert_eq!(served.load("late").0, 200);
    assert_eq!(served.well("late", "result = 2"), "2");
    assert!(!served.is_ready("hangs"));
    let took = stop(&mut served);
    println!("the server ended after {took:?}");
    assert!(took < END_MAX, "{took:?}");
    load.join().unwrap();
}

#[test]
fn a_server_that_waits_for_a_first_start_can_be_ended() {
    let Some(flag) = interpreter() else { return };
    let folder = Folder::new("first");
    Deed { initialize: "time.sleep(600)", ..Deed::named("hangs") }.write(folder.path());
    let ports = Ports::free();
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let mut server =
        Server::command(folder.path(), &[&flag, "--exit-timeout-secs=2"], ports).spawn().expect("it starts");
    until("it starts", START_MAX, || children(server.id()).len() == 1);
    let process = children(server.id())[0];
    thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    assert!(Command::new("kill").arg(server.id().to_string()).status().unwrap().success());
    until("the server ends", END_MAX, || server.try_wait().unwrap().is_some());
    println!("the server ended after {:?}", start.elapsed());
    until("the process is gone", END_MAX, || !is_alive(process));
}

#[test]
fn a_restart_that_hangs_does_not_keep_the_server_nor_an_unload() {
    let folder = Folder::new("restart");
    let file = folder.path().join("hang");
    let initialize = format!("if os.path.exists('{}'):\n    time.sleep(600)", file.display());
    let deeds = ["m", "n"].map(|name| Deed { initialize: &initialize, ..Deed::named(name) });
    let flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=2"];
    let Some(mut served) = PythonServer::start(&deeds, &flags) else { return };
    let processes = ["m", "n"].map(|model| served.pid(model));
    std::fs::write(&file, "").unwrap();
    processes.iter().for_each(|id| crate::python_faults::kill(*id, "KILL"));
    until("both start again", START_MAX, || {
        let now = served.children();
        now.len() == 2 && !now.iter().any(|id| processes.contains(id))
    });
    assert_eq!(served.unload("m").0, 200);
    until("the process of the model that was unloaded is gone", END_MAX, || served.children().len() == 1);
    let took = stop(&mut served);
    println!("the server ended after {took:?}");
    assert!(took < END_MAX, "{took:?}");
}

#[test]
fn a_batch_that_takes_too_long_is_answered_in_time_and_the_next_is_right() {
    // In threads a process may answer before it stops itself.
    let config = format!("{IN_TURN} parameters {{ key: 'execute_timeout_ms' value {{ string_value: '2000' }} }}");
    let deeds = [Deed { config: &config, ..Deed::named("m") }, Deed::named("other")];
    let Some(served) = PythonServer::start(&deeds, &[]) else { return };
    let want =
        "Python model 'm_0_0' did not end a batch within 2000 ms ('execute_timeout_ms') and its process was ended";
    // Sleeping, busy, deaf to signals, and stopped by itself.
    for code in [
        "time.sleep(60)",
        "while True: pass",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(60)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ] {
        let pid = served.pid("m");
        let start = Instant::now();
        let (status, text) = served.run("m", code).unwrap_err();
        let took = start.elapsed();
        println!("{code}: answered after {took:?}");
        assert_eq!((status, text.as_str()), (500, want), "{code}");
        assert!(took >= Duration::from_secs(2), "{code}: {took:?}");
        assert_ne!(served.pid("m"), pid);
        assert_eq!(served.well("other", "result = 1"), "1");
    }
    // One that ends in time is not touched, though all together take longer.
    let pid = served.pid("m");
    for _ in 0..4 {
        served.well("m", "time.sleep(0.6)");
    }
    assert_eq!(served.pid("m"), pid);
}

#[test]
fn a_finalize_that_hangs_ends_with_its_time() {
    let deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)";
    let deeds = ["m", "n"].map(|name| Deed { finalize: deaf, ..Deed::named(name) });
    let flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-timeout-secs=5"];
    let Some(mut served) = PythonServer::start(&deeds, &flags) else { return };
    let pid = served.pid("m");
    assert_eq!(served.unload("m").0, 200);
    assert!(is_alive(pid), "the model stops in the background");
    assert_eq!(served.well("n", "result = 1"), "1");
    let gone = until("its process is gone", END_MAX, || !is_alive(pid));
    println!("the process was gone after {gone:?}");
    assert_eq!(served.log_count(&["m_0_0", "finalize takes too long"]), 1, "{}", served.server.log());
    let took = stop(&mut served);
    println!("the server ended after {took:?}");
    assert!(took < END_MAX, "{took:?}");
}
