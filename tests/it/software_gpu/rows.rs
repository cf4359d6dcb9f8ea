//! Rows that lie on the device: tensors in CUDA shared memory, and kernels that move elements within a row. Launches,
//! and copies by direction, are counted in the software GPU's trace.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use serde_json::json;

use super::machine::{Machine, until};
use super::{gpu_metric, text};
use crate::control::base64;
use crate::support::folder::Folder;
use crate::support::http::Response;
use crate::support::onnx::{FLOAT, Onnx};
use crate::support::server::Server;
use crate::support::{http, repository};

const ROW: usize = 4 * 6;
const OUTPUT_ROW: usize = 6 * 7;
/// The table of a batch's moves of boxes: three of 136 bytes.
const TABLE: usize = 3 * 136;
/// The table of a part that is gathered or scattered.
const PART: usize = 24;

/// `t` is each row reversed, `y` its product with a weight and `t` side by side.
fn turned() -> Vec<u8> {
    let weight: Vec<u8> = (0..12_i32).flat_map(|index| ((index * 5 % 7 - 3) as f32 / 4.0).to_le_bytes()).collect();
    Onnx::default()
        .constant("w", FLOAT, &[4, 3], &weight)
        .node_listed("Transpose", &["x"], &["t"], ("perm", &[0, 2, 1]))
        .node("MatMul", &["t", "w"], &["p"], &[])
        .node("Concat", &["p", "t"], &["y"], &[("axis", -1)])
        .input("x", FLOAT, &[-1, 4, 6])
        .output("y", FLOAT, &[-1, 6, 7])
        .into_bytes()
}

/// `gpu` on the GPU, with further configuration, and `cpu`, the same on the CPU.
fn models(more: &str) -> Folder {
    let folder = Folder::new("gpu-rows");
    let config = |name: &str, kind: &str, more: &str| {
        format!(
            "name: \"{name}\" backend: \"onnxruntime\" max_batch_size: 8 instance_group {{ kind: {kind} count: 1 }}\n{more}"
        )
    };
    repository::add(folder.path(), "gpu", &config("gpu", "KIND_GPU", more), Some(&turned()));
    repository::add(folder.path(), "cpu", &config("cpu", "KIND_CPU", ""), Some(&turned()));
    folder
}

/// Memory that a client shares: a file, which the software GPU opens by its path.
struct ClientMemory {
    path: PathBuf,
    size: usize,
}

impl ClientMemory {
    fn new(floats: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpu-rows-{}-{number}", std::process::id()));
        assert!(path.as_os_str().len() < 64, "it is a handle");
        fs::write(&path, vec![0xff; floats * 4]).unwrap();
        Self { path, size: floats * 4 }
    }

    fn register(&self, server: &Server, name: &str, device: u32) {
        let mut handle = self.path.to_str().unwrap().as_bytes().to_vec();
        handle.resize(64, 0);
        let body = json!({ "raw_handle": { "b64": base64(&handle) }, "device_id": device, "byte_size": self.size });
        let path = format!("/v2/cudasharedmemory/region/{name}/register");
        let response = http::post(server.http(), &path, body.to_string().as_bytes()).unwrap();
        assert_eq!(response.status, 200, "{}", text(&response));
    }

    fn write(&self, at: usize, values: &[f32]) {
        let mut bytes = fs::read(&self.path).unwrap();
        bytes[at * 4..(at + values.len()) * 4].copy_from_slice(bytemuck::cast_slice(values));
        // In place: this file is the one that is mapped.
        std::io::Write::write_all(&mut fs::OpenOptions::new().write(true).open(&self.path).unwrap(), &bytes).unwrap();
    }

    fn read(&self, at: usize, count: usize) -> Vec<f32> {
        let bytes = fs::read(&self.path).unwrap();
        bytes[at * 4..(at + count) * 4].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn row_values(rows: usize, seed: usize) -> Vec<f32> {
    (0..rows * ROW).map(|index| ((index * 11 + seed * 7) % 31) as f32 / 8.0 - 2.0).collect()
}

/// Place of a request's tensor.
#[derive(Clone, Copy)]
enum Place {
    Message,
    /// In a region, behind this number of floats.
    Region(&'static str, usize),
}

fn ask(server: &Server, model: &str, rows: usize, seed: usize, [from, to]: [Place; 2]) -> Response {
    let region = |name: &str, at: usize, floats: usize| json!({ "shared_memory_region": name, "shared_memory_offset": at * 4, "shared_memory_byte_size": floats * 4 });
    let mut input = json!({ "name": "x", "datatype": "FP32", "shape": [rows, 4, 6] });
    match from {
        Place::Message => input["data"] = json!(row_values(rows, seed)),
        Place::Region(name, at) => input["parameters"] = region(name, at, rows * ROW),
    }
    let mut output = json!({ "name": "y" });
    if let Place::Region(name, at) = to {
        output["parameters"] = region(name, at, rows * OUTPUT_ROW);
    }
    let body = json!({ "inputs": [input], "outputs": [output] }).to_string();
    http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap()
}

/// The values of an answer in the message.
fn values(response: &Response) -> Vec<f32> {
    assert_eq!(response.status, 200, "{}", text(response));
    let value = serde_json::from_slice::<serde_json::Value>(&response.body).unwrap();
    value["outputs"][0]["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect()
}

/// The answer of the CPU.
fn wanted(server: &Server, rows: usize, seed: usize) -> Vec<f32> {
    values(&ask(server, "cpu", rows, seed, [Place::Message; 2]))
}

fn check(got: &[f32], want: &[f32], what: &str) {
    let is_near = |(got, want): (&f32, &f32)| (got - want).abs() < 1e-5;
    assert!(got.len() == want.len() && got.iter().zip(want).all(is_near), "{what}: {got:?} for {want:?}");
}

/// Copies and launches since a point in the log, without the products, sorted.
struct Traced<'a>(&'a Machine, usize);

impl<'a> Traced<'a> {
    fn begin(machine: &'a Machine) -> Self {
        Self(machine, machine.log().len())
    }

    fn lines(&self) -> Vec<String> {
        let log = self.0.log();
        let kinds = ["in: ", "out: ", "across: ", "launch: "];
        let mut lines: Vec<String> = log[self.1..]
            .lines()
            .filter(|line| kinds.iter().any(|kind| line.starts_with(kind)))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    }
}

/// Closes all regions, which are on `devices` devices, stops a server, and checks that it released everything to the
/// driver.
fn end(server: Server, machine: &Machine, devices: usize) {
    let before = contexts_ended(machine);
    let response = http::post(server.http(), "/v2/cudasharedmemory/unregister", b"").unwrap();
    assert_eq!(response.status, 200, "{}", text(&response));
    // Memory of clients is open in its own context on each device.
    until("they are closed", || contexts_ended(machine) == before + devices);
    super::end(server, machine);
}

fn contexts_ended(machine: &Machine) -> usize {
    machine.log().matches("end of a context").count()
}

const MOVES: [&str; 3] = ["launch: reshape_box"; 3];

fn traced() -> Option<Machine> {
    Machine::new().map(|machine| machine.with("TRACE", "1"))
}

#[test]
fn tensors_in_cuda_shared_memory_never_lie_on_the_host() {
    let Some(machine) = traced() else { return };
    let folder = models("");
    let server = machine.serve(folder.path(), &["--allow-client-shm=true"]);
    let memory = ClientMemory::new(1000);
    memory.register(&server, "r", 0);
    for (rows, seed) in [(1, 3), (3, 4), (8, 5), (2, 6)] {
        // Aligned to a float only.
        memory.write(5, &row_values(rows, seed));
        memory.write(301, &[f32::NAN; 600]);
        let trace = Traced::begin(&machine);
        let response = ask(&server, "gpu", rows, seed, [Place::Region("r", 5), Place::Region("r", 301)]);
        assert_eq!(response.status, 200, "{}", text(&response));
        let (input, output) = (rows * ROW * 4, rows * OUTPUT_ROW * 4);
        let mut want =
            vec![format!("across: {input}"), format!("across: {output}"), format!("in: {}", TABLE + 2 * PART)];
        want.extend(MOVES.map(str::to_owned));
        want.extend(["launch: reshape_copy"; 2].map(str::to_owned));
        want.sort();
        assert_eq!(trace.lines(), want, "{rows} rows");
        check(&memory.read(301, rows * OUTPUT_ROW), &wanted(&server, rows, seed), "in the region");
        assert!(memory.read(301 + rows * OUTPUT_ROW, 10).iter().all(|value| value.is_nan()), "and nothing behind it");
    }
    end(server, &machine, 1);
}

#[test]
fn a_batch_of_both_is_one_upload_one_gather_and_one_scatter() {
    let Some(machine) = traced() else { return };
    // A batch has eight rows, whenever they arrive.
    let folder = models("dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 20000000 }\n");
    let server = machine.serve(folder.path(), &["--allow-client-shm=true"]);
    let memory = ClientMemory::new(2000);
    memory.register(&server, "r", 0);
    let rows = [1, 2, 1, 3, 1];
    let places = [
        [Place::Message; 2],
        [Place::Region("r", 0), Place::Region("r", 1000)],
        [Place::Region("r", 100), Place::Message],
        [Place::Message, Place::Region("r", 1200)],
        [Place::Region("r", 201), Place::Region("r", 1403)],
    ];
    for turn in 0..3 {
        let seed = |index: usize| turn * 10 + index;
        for (index, [from, _]) in places.iter().enumerate() {
            if let Place::Region(_, at) = from {
                memory.write(*at, &row_values(rows[index], seed(index)));
            }
        }
        let trace = Traced::begin(&machine);
        let answers: Vec<Response> = thread::scope(|scope| {
            let ask = |index: usize| {
                let server = &server;
                scope.spawn(move || ask(server, "gpu", rows[index], turn * 10 + index, places[index]))
            };
            let asked: Vec<_> = (0..rows.len()).map(ask).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        let lines = trace.lines();
        for (index, response) in answers.iter().enumerate() {
            let want = wanted(&server, rows[index], seed(index));
            let got = match places[index][1] {
                Place::Message => values(response),
                Place::Region(_, at) => {
                    assert_eq!(response.status, 200, "{}", text(response));
                    memory.read(at, rows[index] * OUTPUT_ROW)
                }
            };
            check(&got, &want, &format!("turn {turn}, request {index}"));
        }
        // Eight rows, padded to 256 bytes, three parts there and three back.
        let upload = (8 * ROW * 4_usize).next_multiple_of(256) + TABLE + 6 * PART;
        let with = |kind: &str| lines.iter().filter(|line| line.starts_with(kind)).cloned().collect::<Vec<_>>();
        assert_eq!(with("in: "), [format!("in: {upload}")]);
        assert_eq!(with("out: "), [format!("out: {}", 8 * OUTPUT_ROW * 4)]);
        assert_eq!(with("launch: reshape_copy").len(), 2);
        assert_eq!(with("launch: reshape_box").len(), 3);
        assert_eq!(with("across: ").len(), 6);
    }
    assert_eq!(gpu_metric(&server, "batches_total", ",state=\"done\""), 3);
    end(server, &machine, 1);
}

#[test]
fn what_cannot_stay_on_the_device_goes_over_the_host_and_gives_the_same() {
    let Some(machine) = traced().map(|machine| machine.with("DEVICES", "2")) else { return };
    let folder = models("");
    let config = folder.path().join("gpu/config.pbtxt");
    let text_before = fs::read_to_string(&config).unwrap();
    fs::write(&config, text_before.replace("kind: KIND_GPU", "kind: KIND_GPU gpus: [ 0 ]")).unwrap();
    let server = machine.serve(folder.path(), &["--allow-client-shm=true"]);
    let (near, far) = (ClientMemory::new(1000), ClientMemory::new(1000));
    near.register(&server, "near", 0);
    far.register(&server, "far", 1);
    let want = wanted(&server, 2, 1);
    // On another device, and for a model on the CPU.
    for (model, memory, name) in [("gpu", &far, "far"), ("cpu", &far, "far"), ("cpu", &near, "near")] {
        memory.write(0, &row_values(2, 1));
        let trace = Traced::begin(&machine);
        let response = ask(&server, model, 2, 1, [Place::Region(name, 0), Place::Region(name, 500)]);
        assert_eq!(response.status, 200, "{}", text(&response));
        check(&memory.read(500, 2 * OUTPUT_ROW), &want, name);
        let is_moved = |line: &String| line.starts_with("across") || line.contains("reshape_copy");
        assert_eq!(trace.lines().into_iter().find(is_moved), None, "{model} {name}");
    }
    // Too little room: Triton's refusal, without a write.
    let body = json!({
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 4, 6], "data": row_values(1, 1) }],
        "outputs": [{ "name": "y", "parameters": { "shared_memory_region": "near", "shared_memory_byte_size": 100 } }],
    });
    let response = http::post(server.http(), "/v2/models/gpu/infer", body.to_string().as_bytes()).unwrap();
    assert!(response.status == 500 && text(&response).contains("should be at least 168 bytes"), "{}", text(&response));
    end(server, &machine, 2);
}

#[test]
fn a_region_outlives_its_requests_and_the_context_of_the_models() {
    let Some(machine) = traced().map(|machine| machine.with("DELAY_US", "20000")) else { return };
    let folder = models("");
    let server = machine.serve(folder.path(), &["--allow-client-shm=true"]);
    let memory = ClientMemory::new(1000);
    memory.register(&server, "r", 0);
    memory.write(0, &row_values(1, 2));
    let places = [Place::Region("r", 0), Place::Region("r", 500)];
    let want = wanted(&server, 1, 2);
    for round in 1..=2 {
        machine.fail("illegal@1");
        let lost = ask(&server, "gpu", 1, 2, places);
        assert_eq!(lost.status, 503, "{}", text(&lost));
        assert!(memory.read(500, OUTPUT_ROW).iter().all(|value| value.is_nan() || round > 1), "nothing was written");
        until("the instance is new", || gpu_metric(&server, "restarts_total", "") == round);
        let response = ask(&server, "gpu", 1, 2, places);
        assert_eq!(response.status, 200, "{}", text(&response));
        check(&memory.read(500, OUTPUT_ROW), &want, "after a new context");
    }
    // Unregistered while requests are under way: they end as before.
    let before = contexts_ended(&machine);
    thread::scope(|scope| {
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(&server, "gpu", 1, 2, places))).collect();
        until("one is in flight", || {
            gpu_metric(&server, "batches_total", ",state=\"begun\"")
                > gpu_metric(&server, "batches_total", ",state=\"done\"") + 2
        });
        let path = "/v2/cudasharedmemory/region/r/unregister";
        assert_eq!(http::post(server.http(), path, b"").unwrap().status, 200);
        for asked in asked {
            let response = asked.join().unwrap();
            assert!([200, 404].contains(&response.status), "{}", text(&response));
        }
    });
    // A region can be used until the last request that uses it has ended, which may be after its answer.
    until("no request uses the region", || contexts_ended(&machine) == before + 1);
    let gone = ask(&server, "gpu", 1, 2, places);
    assert!(gone.status == 404 && text(&gone).contains("Unable to find shared memory region"), "{}", text(&gone));
    end(server, &machine, 0);
}
