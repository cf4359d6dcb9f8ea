//! Several batches at once in one process, in threads and as coroutines: that they are, and faults while several run.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::python_faults::{Deed, Outcome, PythonServer, concurrency, run, unhealthy, until};
use crate::support::http;
use serde_json::Value;

/// A start of a process, or the steps of a few requests, on a busy machine.
const STEP_MAX: Duration = Duration::from_secs(20);

/// Code of a model whose calls meet: `meet(n)` returns when `n` calls are inside at once.
const MEETING: &str = "
import asyncio, threading
inside, most, counting = 0, 0, threading.Lock()
def enter(change):
    global inside, most
    with counting:
        inside += change
        most = max(most, inside)
def peak():
    return most
def waited(is_over):
    while not is_over():
        time.sleep(0.001)
async def awaited(is_over):
    while not is_over():
        await asyncio.sleep(0.001)
def meet(count):
    enter(1)
    return wait(lambda: most >= count)
def hold(path):
    open(path + '.inside', 'w').close()
    return wait(lambda: os.path.exists(path))
";

/// The two kinds of `execute`, with the word that waits in each, and the parameter that has four batches run at once. The
/// default of coroutines is more.
fn kinds() -> [(Deed<'static>, &'static str); 2] {
    static CODE: [std::sync::OnceLock<String>; 3] = [const { std::sync::OnceLock::new() }; 3];
    let [threads, coroutines, config] = &CODE;
    let threads = threads.get_or_init(|| format!("{MEETING}wait = waited\n"));
    let coroutines = coroutines.get_or_init(|| format!("{MEETING}wait = awaited\n"));
    let config = config.get_or_init(|| concurrency("8"));
    [
        (Deed { import: threads, config, ..Deed::named("m") }, ""),
        (Deed { import: coroutines, is_async: true, ..Deed::named("m") }, "await "),
    ]
}

/// Sends a request on a thread of its own.
fn spawn(served: &PythonServer, code: String) -> thread::JoinHandle<Outcome> {
    let server = served.server.http();
    thread::spawn(move || run(server, "m", &code))
}

/// Code that is inside until a file exists.
fn held(word: &str, file: &Path, then: &str) -> String {
    format!("{word}hold('{}')\n{then}", file.display())
}

fn wait_inside(file: &Path) {
    let mark = format!("{}.inside", file.display());
    until("it is inside", STEP_MAX, || Path::new(&mark).exists());
}

#[test]
fn eight_calls_are_inside_one_process_at_once_and_counted_one_by_one() {
    for (deed, word) in kinds() {
        let Some(served) = PythonServer::start(&[deed], &[]) else { return };
        let calls: Vec<_> = (0..8).map(|_| spawn(&served, format!("{word}meet(8)\nresult = os.getpid()"))).collect();
        let mut processes: Vec<_> = calls.into_iter().map(|call| call.join().unwrap().unwrap()).collect();
        processes.dedup();
        assert_eq!(processes.len(), 1, "{processes:?}");
        let stats = http::get(served.server.http(), "/v2/models/m/stats").unwrap();
        let stats: Value = serde_json::from_slice(&stats.body).unwrap();
        let of = |path: &str| stats["model_stats"][0].pointer(path).and_then(Value::as_u64);
        let counts = ["/inference_count", "/execution_count", "/inference_stats/success/count"].map(of);
        assert_eq!(counts, [Some(8); 3], "{stats}");
        let times = ["success", "compute_infer"].map(|part| of(&format!("/inference_stats/{part}/ns")).unwrap());
        assert!(times[1] > 0 && times[1] <= times[0], "{stats}");
    }
}

#[test]
fn requests_of_sequences_run_in_turn() {
    let (deed, word) = kinds()[1];
    let Some(served) = PythonServer::start(&[Deed { config: "sequence_batching { }", ..deed }], &[]) else { return };
    let server = served.server.http();
    let send = move |sequence: u64, number: u64| {
        let code = format!("enter(1)\n{word}asyncio.sleep(0.001)\nenter(-1)\nresult = peak() * 100 + {number}");
        let parameters =
            serde_json::json!({"sequence_id": sequence, "sequence_start": number == 0, "sequence_end": number == 9});
        let input = serde_json::json!({"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]});
        let body = serde_json::json!({"inputs": [input], "parameters": parameters}).to_string();
        http::post(server, "/v2/models/m/infer", body.as_bytes()).unwrap()
    };
    let clients: Vec<_> = (1..4)
        .map(|sequence| {
            thread::spawn(move || {
                for number in 0..10 {
                    let answer = send(sequence, number);
                    let text = String::from_utf8(answer.body).unwrap();
                    assert!(answer.status == 200 && text.contains(&format!("\"{}\"", 100 + number)), "{text}");
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn what_one_call_raises_fails_it_alone() {
    for (deed, word) in kinds() {
        let Some(served) = PythonServer::start(&[deed], &[]) else { return };
        let good: Vec<_> = (0..3).map(|_| spawn(&served, format!("{word}meet(4)\nresult = 'well'"))).collect();
        let (status, text) = served.run("m", &format!("{word}meet(4)\nraise ValueError('boom')")).unwrap_err();
        assert!(status == 500 && text.contains("ValueError: boom\n\nAt:\n") && !text.contains("threading"), "{text}");
        assert!(good.into_iter().all(|call| call.join().unwrap() == Ok("well".to_owned())));
    }
}

#[test]
fn a_process_that_ends_takes_the_calls_that_run_in_it() {
    for (deed, word) in kinds() {
        // The event loop has sockets too.
        let garbage =
            "import deuteron_channel\ndeuteron_channel.process.main.socket.sendall(b'x' * 99)\ntime.sleep(60)";
        for end in ["os.kill(os.getpid(), 9)", "crash()", "os._exit(0)", garbage] {
            let Some(served) = PythonServer::start(&[deed], &[]) else { return };
            let before = served.pid("m");
            let never = held(word, &served.folder.path().join("never"), "");
            let others = [0; 3].map(|_| spawn(&served, format!("{word}meet(4)\n{never}")));
            let code = format!("{word}meet(4)\n{end}");
            assert_eq!(served.run("m", &code), unhealthy("m_0_0"), "{end}");
            others.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), unhealthy("m_0_0"), "{end}"));
            assert_ne!(served.pid("m"), before);
        }
    }
}

#[test]
fn a_call_that_takes_too_long_is_told_so_and_those_beside_it_end_with_its_process() {
    for (deed, word) in kinds() {
        let timeout = "parameters { key: 'execute_timeout_ms' value { string_value: '2000' } }";
        let config = format!("{} {timeout}", deed.config);
        let Some(served) = PythonServer::start(&[Deed { config: &config, ..deed }], &[]) else { return };
        let before = served.pid("m");
        let [slow, beside] = ["slow", "beside"].map(|name| served.folder.path().join(name));
        let hangs = spawn(&served, held(word, &slow, ""));
        wait_inside(&slow);
        for _ in 0..10 {
            assert_eq!(served.well("m", "result = 1"), "1");
        }
        let other = spawn(&served, held(word, &beside, ""));
        let (status, text) = hangs.join().unwrap().unwrap_err();
        assert!(status == 500 && text.contains("did not end a batch within 2000 ms"), "{text}");
        // On a busy machine its own time may be over as well.
        let other = other.join().unwrap();
        let is_late = other.as_ref().is_err_and(|(_, text)| text.contains("did not end a batch within 2000 ms"));
        assert!(is_late || other == unhealthy("m_0_0"), "{other:?}");
        assert_ne!(served.pid("m"), before);
    }
}

#[test]
fn a_model_that_is_unloaded_ends_what_runs_before_finalize() {
    for (deed, word) in kinds() {
        let deed = Deed { finalize: "print('finalize with', inside, 'inside')", ..deed };
        let flags = ["--model-control-mode=explicit", "--load-model=m"];
        let Some(served) = PythonServer::start(&[deed], &flags) else { return };
        let calls = [0, 1, 2].map(|number| {
            let mark = served.folder.path().join(format!("call{number}"));
            let call = spawn(&served, format!("enter(1)\n{}\nenter(-1)\nresult = 'done'", held(word, &mark, "")));
            wait_inside(&mark);
            (call, mark)
        });
        let address = served.server.http();
        let unload = thread::spawn(move || http::post(address, "/v2/repository/models/m/unload", b"").unwrap().status);
        until("it is no longer ready", STEP_MAX, || !served.is_ready("m"));
        for (call, mark) in calls {
            fs::write(&mark, "").unwrap();
            assert_eq!(call.join().unwrap(), Ok("done".to_owned()));
        }
        assert_eq!(unload.join().unwrap(), 200);
        until("it has ended", STEP_MAX, || served.log_count(&["finalize with 0 inside"]) == 1);
    }
}

#[test]
fn a_client_that_leaves_cancels_its_own_call_and_no_other() {
    let (deed, _) = kinds()[0];
    let Some(served) = PythonServer::start(&[deed, Deed { name: "callee", ..deed }], &["--shards=1"]) else { return };
    let [left, stays] = ["left", "stays"].map(|name| served.folder.path().join(name));
    // The callee says how its request ended; `wait` looks for both ends.
    let code = |file: &Path| {
        let file = file.display();
        let inner = format!(
            "open('{file}.inside', 'w').close()\\nwait(lambda: request.is_cancelled() or os.path.exists('{file}'))\\n\
             open('{file}.ended', 'w').write(str(request.is_cancelled()))\\nresult = 'ended'"
        );
        format!(
            "tensor = pb_utils.Tensor('CODE', np.array([\"{inner}\"], dtype=object))\n\
             call = pb_utils.InferenceRequest(model_name='callee', inputs=[tensor], requested_output_names=['RESULT'])\n\
             answer = call.exec()\nresult = answer.error().message() if answer.has_error() else 'well'"
        )
    };
    let stays_call = spawn(&served, code(&stays));
    wait_inside(&stays);
    let input = serde_json::json!({"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code(&left)]});
    let body = serde_json::json!({ "inputs": [input] }).to_string();
    let mut connection = http::Connection::open(served.server.http()).unwrap();
    connection.send(&http::request("POST", "/v2/models/m/infer", &[], body.as_bytes())).unwrap();
    wait_inside(&left);
    drop(connection);
    let ended = |file: &Path| fs::read_to_string(format!("{}.ended", file.display())).unwrap_or_default();
    until("the call of the client that left is cancelled", STEP_MAX, || ended(&left) == "True");
    assert_eq!(ended(&stays), "");
    fs::write(&stays, "").unwrap();
    assert_eq!((stays_call.join().unwrap(), ended(&stays)), (Ok("well".to_owned()), "False".to_owned()));
}

#[test]
fn a_batch_waits_for_memory_that_the_batches_beside_it_have() {
    for (deed, word) in kinds() {
        let Some(served) = PythonServer::start(&[deed], &["--python-memory-bytes-max=1048576"]) else { return };
        // Two of them do not fit together.
        let padding = "#".repeat(700_000);
        let [first, second] = ["first", "second"].map(|name| served.folder.path().join(name));
        let one = spawn(&served, held(word, &first, &padding));
        wait_inside(&first);
        let other = spawn(&served, held(word, &second, &padding));
        let is_sent = || crate::support::metrics::batches_left(served.server.metrics(), "m") == 2;
        until("the second has left the queue", STEP_MAX, is_sent);
        assert!(!second.with_extension("inside").exists());
        fs::write(&first, "").unwrap();
        wait_inside(&second);
        fs::write(&second, "").unwrap();
        assert_eq!((one.join().unwrap(), other.join().unwrap()), (Ok(String::new()), Ok(String::new())));
    }
}
