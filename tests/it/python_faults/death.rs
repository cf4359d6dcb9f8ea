//! Processes that end while their model serves: idle, in `execute`, with a batch sent ahead, beneath a call of another
//! model, in `is_ready`, in `finalize`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::python_faults::{Deed, IN_TURN, Outcome, PythonServer, interpreter, is_alive, kill, run, unhealthy, until};
use crate::support::http;
use crate::support::metrics::metric;
use crate::support::over::Over;
use serde_json::json;

/// Time limit for the answer to clients of an ended process: milliseconds, or longer on a busy machine. The code that they
/// ask for takes a minute.
const AT_ONCE: Duration = Duration::from_secs(15);
/// A start of a process, on a busy machine.
const START_MAX: Duration = Duration::from_secs(20);

/// Code that writes the id of its process into a file, then runs until that ends.
fn for_ever(mark: &Path) -> String {
    format!("print(os.getpid(), file=open('{}', 'w'), flush=True); time.sleep(60)", mark.display())
}

/// Waits until such code runs, and returns the id of its process.
fn wait_running(mark: &Path) -> u32 {
    let id = || std::fs::read_to_string(mark).ok()?.trim().parse().ok();
    until("it runs", START_MAX, || id().is_some());
    id().unwrap()
}

/// Sends a request on a thread of its own. Returns its outcome, and the instant of it.
fn spawn(server: SocketAddr, model: &'static str, code: String) -> thread::JoinHandle<(Outcome, Instant)> {
    thread::spawn(move || (run(server, model, &code), Instant::now()))
}

/// Time that the interpreter takes to start and import numpy, without a server.
fn bare_start() -> Duration {
    let flag = interpreter().unwrap();
    let python = flag.split_once("interpreter=").unwrap().1;
    let start = Instant::now();
    assert!(Command::new(python).args(["-c", "import numpy"]).status().unwrap().success());
    start.elapsed()
}

#[test]
fn a_killed_process_costs_the_batch_that_it_runs_and_no_other() {
    let config = format!("instance_group {{ count: 2 kind: KIND_CPU }} {IN_TURN}");
    let pair = Deed { config: &config, ..Deed::named("pair") };
    let Some(served) = PythonServer::start(&[Deed::named("m"), Deed::named("other"), pair], &[]) else { return };
    let (address, mark) = (served.server.http(), served.folder.path().join("mark"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        let others: Vec<_> = ["other", "pair"]
            .map(|model| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut count = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        assert_eq!(run(address, model, "result = 7"), Ok("7".to_owned()), "{model}");
                        count += 1;
                        thread::sleep(Duration::from_millis(2));
                    }
                    count
                })
            })
            .into();
        let bare = bare_start();
        let check_next = |model: &str, old: u32, after: &str| {
            let start = Instant::now();
            let new = served.pid(model);
            let took = start.elapsed();
            println!("{model}, killed {after}: the next request took {took:?}, a bare start {bare:?}");
            assert!(new != old && took < START_MAX, "{took:?}");
        };
        for round in 0..2 {
            for model in ["m", "pair"] {
                let old = served.pid(model);
                kill(old, "KILL");
                if model == "m" {
                    check_next(model, old, "while idle");
                }
                until("the process is reaped", AT_ONCE, || !is_alive(old));
                let mark = mark.with_extension(format!("{model}{round}"));
                let running = spawn(address, model, for_ever(&mark));
                let runner = wait_running(&mark);
                let killed = Instant::now();
                kill(runner, "KILL");
                let (outcome, at) = running.join().unwrap();
                let text = outcome.clone().unwrap_err().1;
                assert!(["m_0_0", "pair_0_0", "pair_0_1"].iter().any(|name| outcome == unhealthy(name)), "{text}");
                let told = at.duration_since(killed);
                println!("{model}: told after {told:?}");
                assert!(told < AT_ONCE, "{told:?}");
                check_next(model, runner, "while it ran");
            }
        }
        drop(over);
        for other in others {
            assert!(other.join().unwrap() > 10, "the others were asked all the time");
        }
    });
    assert!(served.is_ready("m") && served.is_ready("pair"));
    assert_eq!(served.children().len(), 4, "{}", served.server.log());
    // The reason is in the log, for each process that was lost.
    assert!(served.log_count(&["m_0_0", "killed by signal 9 (SIGKILL)"]) >= 4, "{}", served.server.log());
}

#[test]
fn a_batch_that_was_sent_ahead_is_run_by_the_next_process() {
    let Some(served) = PythonServer::start(&[Deed { config: IN_TURN, ..Deed::named("m") }], &[]) else { return };
    let (address, mark) = (served.server.http(), served.folder.path().join("mark"));
    for round in 0..2 {
        let old = served.pid("m");
        let mark = mark.with_extension(round.to_string());
        let first = spawn(address, "m", for_ever(&mark));
        assert_eq!(wait_running(&mark), old);
        let second = spawn(address, "m", "result = (os.getpid(), len(requests))".to_owned());
        thread::sleep(Duration::from_millis(30));
        kill(old, "KILL");
        assert_eq!(first.join().unwrap().0, unhealthy("m_0_0"));
        let (second, _) = second.join().unwrap();
        assert_eq!(second, Ok(format!("({}, 1)", served.pid("m"))));
    }
}

#[test]
fn a_request_that_a_sender_was_to_answer_fails_with_its_process() {
    let Some(served) = PythonServer::start(&[Deed::named("m")], &[]) else { return };
    let address = served.server.http();
    let keep = "model.kept.append(request.get_response_sender()); result = None".to_owned();
    let waiting = [(); 3].map(|()| spawn(address, "m", keep.clone()));
    until("all three wait", START_MAX, || served.well("m", "result = len(model.kept)") == "3");
    let (pid, killed) = (served.pid("m"), Instant::now());
    kill(pid, "KILL");
    for request in waiting {
        let (outcome, at) = request.join().unwrap();
        assert_eq!(outcome, unhealthy("m_0_0"));
        assert!(at.duration_since(killed) < AT_ONCE, "{:?}", at.duration_since(killed));
    }
    assert_ne!(served.pid("m"), pid);
}

#[test]
fn batches_that_were_not_begun_stay_apart_and_are_sent_again_only_once() {
    let Some(served) = PythonServer::start(&[Deed::named("m")], &[]) else { return };
    let address = served.server.http();
    let old = served.pid("m");
    kill(old, "STOP");
    let waiting = [(); 2].map(|()| spawn(address, "m", "result = len(requests)".to_owned()));
    thread::sleep(Duration::from_millis(50));
    kill(old, "KILL");
    for request in waiting {
        // The model takes no batches: each call has one request, whatever happened.
        assert_eq!(request.join().unwrap().0, Ok("1".to_owned()));
    }
    // A request that ends its process and says that the batch has not begun would be run for ever.
    let hidden = "import mmap, gc\n\
        for one in [one for one in gc.get_objects() if type(one) is mmap.mmap]:\n    one[0:8] = bytes(8)\n\
        os._exit(3)";
    let start = Instant::now();
    assert_eq!(served.run("m", hidden), unhealthy("m_0_0"));
    assert!(start.elapsed() < START_MAX, "{:?}", start.elapsed());
    until("it serves again", START_MAX, || served.run("m", "result = 1").is_ok());
}

#[test]
fn a_sequence_whose_state_was_lost_is_not_continued_by_a_process_that_never_saw_its_start() {
    let config = "sequence_batching { max_sequence_idle_microseconds: 60000000 }";
    let Some(served) = PythonServer::start(&[Deed { config, ..Deed::named("m") }], &[]) else { return };
    let address = served.server.http();
    let step = move |code: &str, start: bool| {
        let body = json!({
            "inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]}],
            "parameters": {"sequence_id": 5, "sequence_start": start, "sequence_end": false}
        });
        let answer = http::post(address, "/v2/models/m/infer", body.to_string().as_bytes()).unwrap();
        (answer.status, String::from_utf8(answer.body).unwrap())
    };
    let count = "model.kept.append(1); result = len(model.kept)";
    assert_eq!(step(count, true).0, 200);
    let (status, text) = step(count, false);
    assert!(status == 200 && text.contains("\"2\""), "{text}");
    let pid = served.children()[0];
    kill(pid, "STOP");
    let next = thread::spawn(move || step(count, false));
    thread::sleep(Duration::from_millis(50));
    kill(pid, "KILL");
    let (status, text) = next.join().unwrap();
    assert!(status >= 400, "the sequence goes on without its first two: {text}");
    let (status, text) = step(count, true);
    assert!(status == 200 && text.contains("\"1\""), "{status} {text}");
}

#[test]
fn code_that_ends_its_process_fails_its_batch_and_an_exception_does_not_end_it() {
    let callee = Deed { config: "instance_group { count: 2 kind: KIND_CPU }", ..Deed::named("callee") };
    let Some(served) = PythonServer::start(&[Deed::named("m"), callee], &[]) else { return };
    for (code, reason) in [
        ("os._exit(3)", "exit status 3"),
        ("crash()", "killed by signal 11 (SIGSEGV)"),
        ("os.abort()", "killed by signal 6 (SIGABRT)"),
    ] {
        let pid = served.pid("m");
        assert_eq!(served.run("m", code), unhealthy("m_0_0"), "{code}");
        assert_ne!(served.pid("m"), pid, "{code}");
        // The log's own thread writes the line, perhaps after the next answer on a busy machine.
        until("the log says why", AT_ONCE, || served.log_count(&["m_0_0", reason]) > 0);
        assert_eq!(served.log_count(&["m_0_0", reason]), 1, "{code}: {}", served.server.log());
        // The caller of a model whose process ends gets its error, and stays.
        let caller = served.pid("m");
        let call = format!(
            "r = pb_utils.InferenceRequest(model_name='callee', requested_output_names=['RESULT'], \
             inputs=[pb_utils.Tensor('CODE', np.array([{code:?}], dtype=object))]).exec()\n\
             result = r.error().message() if r.has_error() else r"
        );
        let text = served.well("m", &call);
        assert!(text.contains("Stub process 'callee_0_") && text.contains("is not healthy."), "{text}");
        assert_eq!(served.pid("m"), caller);
        assert_eq!(served.well("callee", "result = 1"), "1");
    }
    let restarts = |model| format!("deuteron_instance_restarts_total{{model=\"{model}\",version=\"1\"}}");
    for model in ["m", "callee"] {
        // The other instance of the callee may have answered before this one was back.
        until("each is started again", START_MAX, || metric(served.server.metrics(), &restarts(model)) == 3);
    }
    let pid = served.pid("m");
    let (status, text) = served.run("m", "sys.exit(3)").unwrap_err();
    assert!(status == 500 && text.contains("message: SystemExit: 3"), "{text}");
    assert_eq!(served.pid("m"), pid);
}

#[test]
fn an_end_in_is_ready_means_no_and_the_model_serves_again() {
    let exits = Deed { is_ready: Some("os._exit(3)"), ..Deed::named("exits") };
    let raises = Deed { is_ready: Some("sys.exit(3)"), ..Deed::named("raises") };
    let Some(served) = PythonServer::start(&[exits, raises], &[]) else { return };
    let pid = served.pid("raises");
    assert!(!served.is_ready("raises"));
    assert_eq!(served.pid("raises"), pid);
    let took = [(); 3].map(|()| {
        let pid = served.pid("exits");
        let start = Instant::now();
        assert!(!served.is_ready("exits"));
        let took = start.elapsed();
        assert_ne!(served.pid("exits"), pid);
        took
    });
    // One that only says nothing is asked for five seconds. Other work on the machine makes some later.
    assert!(took.iter().min() < Some(&Duration::from_secs(3)), "{took:?}");
}

#[test]
fn an_end_in_finalize_ends_the_unload() {
    let ends = [
        ("exits", "os._exit(3)"),
        ("crashes", "crash()"),
        ("raises", "sys.exit(3)"),
        ("fails", "raise ValueError('no')"),
    ];
    let deeds = ends.map(|(name, finalize)| Deed { finalize, ..Deed::named(name) });
    let flags = ["--model-control-mode=explicit"];
    let Some(served) = PythonServer::start(&deeds, &flags) else { return };
    for (name, _) in ends {
        assert_eq!(served.load(name).0, 200, "{}", served.server.log());
        let pid = served.pid(name);
        let start = Instant::now();
        assert_eq!(served.unload(name).0, 200);
        until("its process is gone", AT_ONCE, || !is_alive(pid));
        println!("{name}: gone after {:?}", start.elapsed());
    }
    assert_eq!(served.log_count(&["ValueError: no"]), 1, "{}", served.server.log());
    until("all are reaped", AT_ONCE, || served.children().is_empty());
}

#[test]
fn a_model_is_not_ready_only_while_no_process_can_be_started() {
    let flag = crate::support::folder::Folder::new("cannot");
    let file = flag.path().join("fail");
    let initialize = format!("if os.path.exists('{}'):\n    raise ValueError('not now')", file.display());
    let Some(served) = PythonServer::start(&[Deed { initialize: &initialize, ..Deed::named("m") }], &[]) else {
        return;
    };
    let pid = served.pid("m");
    std::fs::write(&file, "").unwrap();
    kill(pid, "KILL");
    until("it is not ready", START_MAX, || !served.is_ready("m"));
    let start = Instant::now();
    let (status, text) = served.run("m", "result = 1").unwrap_err();
    println!("meanwhile: {status} {text} after {:?}", start.elapsed());
    assert!(status == 503 && text.contains("try again") && start.elapsed() < START_MAX, "{status} {text}");
    std::fs::remove_file(&file).unwrap();
    let back = until("it is ready", START_MAX, || served.is_ready("m"));
    println!("ready after {back:?}");
    assert_eq!(served.well("m", "result = 1"), "1");
}
