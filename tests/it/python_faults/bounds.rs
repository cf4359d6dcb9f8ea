//! Memory between the server and a process: it grows as far as the flag lets it, and beyond that requests fail.

use crate::python_faults::{Deed, IN_TURN, PythonServer};
use crate::support::http;
use serde_json::{Value, json};

const MIB: usize = 1024 * 1024;
const MORE_TENSORS: &str = "input { name: 'X' data_type: TYPE_UINT8 dims: -1 optional: true }
    output { name: 'Y' data_type: TYPE_UINT8 dims: -1 }";
/// Sums up the input.
const SUM: &str =
    "x = pb_utils.get_input_tensor_by_name(request, 'X').as_numpy(); result = (x.size, int(x.sum(dtype=np.int64)))";

/// One region of 1 MiB that may grow to 8.
fn start() -> Option<PythonServer> {
    let deeds = [Deed { config: MORE_TENSORS, ..Deed::named("m") }];
    PythonServer::start(
        &deeds,
        &["--python-memory-bytes-max=8388608", "--backend-config=python,shm-default-byte-size=1048576"],
    )
}

/// Runs code with an input `X`: `result`, and the bytes of `Y`; or the error.
fn run(served: &PythonServer, code: &str, x: &[u8]) -> Result<(String, Vec<u8>), (u16, String)> {
    let head = json!({
        "inputs": [
            {"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [code]},
            {"name": "X", "datatype": "UINT8", "shape": [x.len()], "parameters": {"binary_data_size": x.len()}}
        ],
        "outputs": [{"name": "RESULT"}, {"name": "Y", "parameters": {"binary_data": true}}]
    })
    .to_string();
    let size = head.len().to_string();
    let body = [head.as_bytes(), x].concat();
    let headers = [("Inference-Header-Content-Length", size.as_str())];
    // It fails if the answer does not come for long: nothing hangs.
    let answer =
        http::exchange(served.server.http(), &http::request("POST", "/v2/models/m/infer", &headers, &body)).unwrap();
    let end = answer.header("Inference-Header-Content-Length").map_or(answer.body.len(), |size| size.parse().unwrap());
    let (head, rest) = answer.body.split_at(end);
    let head: Value = serde_json::from_slice(head).unwrap();
    if answer.status != 200 {
        return Err((answer.status, head["error"].as_str().unwrap().to_owned()));
    }
    Ok((head["outputs"][0]["data"][0].as_str().unwrap().to_owned(), rest.to_vec()))
}

#[test]
fn memory_grows_up_to_the_flag_and_beyond_it_requests_and_responses_are_refused_by_its_name() {
    let Some(served) = start() else { return };
    let pid = served.pid("m");
    for size in [10, 3 * MIB, MIB, 8 * MIB - 4096, 5] {
        let (result, _) = run(&served, SUM, &vec![3; size]).unwrap();
        assert_eq!(result, format!("({size}, {})", 3 * size));
    }
    let (status, text) = run(&served, SUM, &vec![3; 8 * MIB + 1]).unwrap_err();
    println!("{status} {text}");
    assert!(text.contains("--python-memory-bytes-max") && text.contains("8388608"), "{status} {text}");
    for size in [10, 3 * MIB, MIB, 8 * MIB - 4096, 5] {
        let code = format!("more = [pb_utils.Tensor('Y', np.full({size}, 7, np.uint8))]");
        let (_, y) = run(&served, &code, &[1]).unwrap();
        assert!(y.len() == size && y.iter().all(|byte| *byte == 7), "{size}: {}", y.len());
    }
    let code = format!("more = [pb_utils.Tensor('Y', np.zeros({}, np.uint8))]", 8 * MIB + 1);
    let (status, text) = run(&served, &code, &[1]).unwrap_err();
    println!("{status} {text}");
    assert!(status == 500 && text.contains("--python-memory-bytes-max"), "{status} {text}");
    assert_eq!(served.pid("m"), pid, "a refusal costs nothing");
}

#[test]
fn a_model_that_keeps_its_inputs_gets_errors_once_the_memory_is_full_and_never_hangs() {
    let Some(served) = start() else { return };
    let pid = served.pid("m");
    let keep = "x = pb_utils.get_input_tensor_by_name(request, 'X').as_numpy(); model.kept.append(x); result = len(model.kept)";
    let x = vec![9; MIB - 4096];
    let mut kept = 0;
    let (status, text) = loop {
        match run(&served, keep, &x) {
            Ok((result, _)) => {
                kept += 1;
                assert_eq!(result, kept.to_string());
            }
            Err(error) => break error,
        }
    };
    println!("{kept} of {} bytes were kept; then {status} {text}", x.len());
    // All regions together have 1 + 2 + 4 + 8 MiB.
    assert!((7..=15).contains(&kept), "{kept}");
    assert!(text.contains("--python-memory-bytes-max"), "{text}");
    // Small requests still find room, and the kept tensors are unchanged.
    let check = "result = all((x == 9).all() for x in model.kept)";
    assert_eq!(run(&served, check, &[1]).unwrap().0, "True");
    assert!(run(&served, keep, &x).is_err());
    assert_eq!(run(&served, "model.kept.clear()", &[1]).unwrap().0, "");
    for _ in 0..20 {
        assert_eq!(run(&served, SUM, &x).unwrap().0, format!("({}, {})", x.len(), 9 * x.len()));
    }
    assert_eq!(served.pid("m"), pid);
}

#[test]
fn calls_of_other_models_beyond_what_an_instance_may_have_in_flight_are_refused_at_once() {
    let target = Deed { config: IN_TURN, ..Deed::named("target") };
    let Some(served) = PythonServer::start(&[Deed::named("caller"), target], &[]) else { return };
    // The first keeps the target busy until all were made, and those beyond the bound are refused. Calls reach a model by way
    // of its shard, in no certain order: so the others come when the first runs.
    let [began, end] = ["began", "end"].map(|file| served.folder.path().join(file));
    let code = format!(
        "import asyncio
began, end = {began:?}, {end:?}
hold = 'open(%r, \"w\").close()\\nwhile not os.path.exists(%r): time.sleep(0.01)' % (began, end)
def call(code):
    tensor = pb_utils.Tensor('CODE', np.array([code], dtype=object))
    request = pb_utils.InferenceRequest(model_name='target', requested_output_names=['RESULT'], inputs=[tensor])
    return asyncio.ensure_future(request.async_exec())
async def run():
    calls = [call(hold)]
    while not os.path.exists(began):
        await asyncio.sleep(0.01)
    calls += [call('') for _ in range(1029)]
    pending = calls
    while len(pending) > 1024:
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    open(end, 'w').close()
    return await asyncio.gather(*calls)
answers = asyncio.run(run())
os.remove(began)
os.remove(end)
errors = [answer.error().message() for answer in answers if answer.has_error()]
result = (len(answers), len(errors), *set(errors))"
    );
    let text = "this instance has 1024 calls of other models in flight (the limit)";
    assert_eq!(served.well("caller", &code), format!("(1030, 6, '{text}')"));
    assert_eq!(served.well("caller", &code), format!("(1030, 6, '{text}')"), "those that were answered count no more");
}
