//! Traces on the server as a process: the settings over HTTP and gRPC, the files, and spans to a collector that answers,
//! is silent or is gone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use deuteron::wire::proto::otlp::any_value::Value as Attribute;
use deuteron::wire::proto::otlp::{ExportTraceServiceRequest, ResourceSpans, Span};
use deuteron::wire::proto::tei::EmbedRequest;
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::h2;
use crate::support::http::{self, Response};
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::repository;
use crate::support::server::Server;
use crate::text_folders::add_models;

/// Time limit for a change to show.
const WAIT_MAX: Duration = Duration::from_secs(20);

const PAIR: &str = "max_batch_size: 8 input { name: 'INPUT0' data_type: TYPE_FP32 dims: -1 }
    output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: -1 }";

fn models() -> Folder {
    let folder = Folder::new("trace");
    repository::add(folder.path(), "identity", &format!("backend: 'identity' {PAIR}"), None);
    let placement = "parameters { key: 'placement' value { string_value: 'worker' } }";
    repository::add(
        folder.path(),
        "worker",
        &format!("backend: 'identity' dynamic_batching {{ }} {placement} {PAIR}"),
        None,
    );
    let step = |model: &str, input: &str, output: &str| {
        format!(
            "{{ model_name: '{model}' model_version: -1 input_map {{ key: 'INPUT0' value: '{input}' }}
            output_map {{ key: 'OUTPUT0' value: '{output}' }} }}"
        )
    };
    let steps = [step("identity", "INPUT0", "between"), step("worker", "between", "OUTPUT0")].join(",");
    let ensemble = format!("platform: 'ensemble' {PAIR} ensemble_scheduling {{ step [ {steps} ] }}");
    repository::add(folder.path(), "ensemble", &ensemble, None);
    folder
}

fn body(id: &str) -> Vec<u8> {
    let input = json!({ "name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 2] });
    json!({ "id": id, "inputs": [input] }).to_string().into_bytes()
}

fn infer(server: &Server, model: &str) -> Response {
    http::post(server.http(), &format!("/v2/models/{model}/infer"), &body("r")).unwrap()
}

fn infer_well(server: &Server, model: &str) {
    let response = infer(server, model);
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
}

/// A call of gRPC, with metadata.
fn call(server: &Server, model: &str, metadata: &[(&'static str, &'static str)]) {
    let contents: Vec<u8> = [0.5_f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 2]);
    let request = Message::new().bytes(1, model).bytes(3, "g").message(5, input).bytes(7, contents);
    let path = "/inference.GRPCInferenceService/ModelInfer";
    Client::new(server.grpc()).call_with(path, metadata, &request.into_bytes()).unwrap();
}

fn set(server: &Server, model: &str, settings: &Value) -> (u16, Value) {
    let model = if model.is_empty() { String::new() } else { format!("/models/{model}") };
    let path = format!("/v2{model}/trace/setting");
    let response = http::post(server.http(), &path, settings.to_string().as_bytes()).unwrap();
    (response.status, serde_json::from_slice(&response.body).unwrap())
}

/// The flags of a server that traces every request to a file.
fn flags(file: &Path, more: &[&str]) -> Vec<String> {
    let all = ["--shards=2", "--trace-config=rate=1"].iter().chain(more).map(|flag| (*flag).to_owned());
    all.chain([format!("--trace-config=triton,file={}", file.display())]).collect()
}

fn serve(models: &Folder, flags: &[String]) -> Server {
    Server::deuteron(models.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The entries of a trace file, by trace: names of timestamps in order, and everything else.
#[derive(Debug, Default)]
struct Traced {
    head: Value,
    names: Vec<String>,
    times: Vec<u64>,
    tensors: Vec<String>,
}

fn read(path: &Path) -> BTreeMap<u64, Traced> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let mut traces: BTreeMap<u64, Traced> = BTreeMap::new();
    for entry in entries {
        let traced = traces.entry(entry["id"].as_u64().unwrap()).or_default();
        if let Some(times) = entry["timestamps"].as_array() {
            traced.names.extend(times.iter().map(|time| time["name"].as_str().unwrap().to_owned()));
            traced.times.extend(times.iter().map(|time| time["ns"].as_u64().unwrap()));
        } else if entry["tensor"].is_object() {
            let tensor = &entry["tensor"];
            let field = |name: &str| tensor[name].as_str().unwrap();
            let activity = entry["activity"].as_str().unwrap();
            let [name, data, shape, kind] = ["name", "data", "shape", "dtype"].map(field);
            traced.tensors.push(format!("{activity} {name} {data} {shape} {kind}"));
        } else {
            traced.head = entry;
        }
    }
    traces
}

/// The entries of a file that is about to be written: the file may exist before they do.
fn read_when(path: &Path, is_there: impl Fn(&BTreeMap<u64, Traced>) -> bool) -> BTreeMap<u64, Traced> {
    let start = Instant::now();
    loop {
        if fs::read_to_string(path).is_ok_and(|text| serde_json::from_str::<Value>(&text).is_ok()) {
            let traces = read(path);
            if is_there(&traces) || start.elapsed() > WAIT_MAX {
                return traces;
            }
        }
        assert!(start.elapsed() < WAIT_MAX, "{} is not written", path.display());
        thread::sleep(Duration::from_millis(10));
    }
}

const MODEL_EVENTS: [&str; 7] = [
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
];

fn front_events(protocol: &str) -> Vec<String> {
    let [receive, send] = if protocol == "HTTP" { ["HTTP_RECV", "HTTP_SEND"] } else { ["GRPC_WAITREAD", "GRPC_SEND"] };
    vec![
        format!("{receive}_START"),
        format!("{receive}_END"),
        "INFER_RESPONSE_COMPLETE".to_owned(),
        format!("{send}_START"),
        format!("{send}_END"),
    ]
}

#[test]
fn tritonclient_reads_sets_and_clears_settings_over_both_protocols() {
    let Some(environment) = Environment::shared() else { return };
    let (models, out) = (models(), Folder::new("trace-out"));
    let file = out.path().join("t.json");
    let server = serve(&models, &flags(&file, &["--trace-config=level=TIMESTAMPS"]));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trace/check.py");
    let mut command = Command::new(environment.python());
    command.arg(script).arg(&file).args([server.http().to_string(), server.grpc().to_string()]);
    let output = command.output().expect("the interpreter starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.trim() == "ok", "{text}{errors}\n{}", server.log());
}

#[test]
fn settings_that_cannot_be_are_refused_with_tritons_texts() {
    let models = models();
    let server = Server::deuteron(models.path(), &["--shards=1"]);
    let told = http::get(server.http(), "/v2/trace/setting").unwrap();
    let want = r#"{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"","trace_mode":"triton"}"#;
    assert_eq!((told.status, std::str::from_utf8(&told.body).unwrap()), (200, want));
    assert_eq!(told.header("content-type"), Some("application/json"));
    let refused = |model: &str, settings: Value, status: u16, text: &str| {
        assert_eq!(set(&server, model, &settings), (status, json!({ "error": text })), "{settings}");
    };
    let no_file = "Attempting to set invalid trace setting :trace file name is not given";
    refused("", json!({ "trace_level": ["TIMESTAMPS"] }), 400, no_file);
    refused("worker", json!({ "trace_level": ["TENSORS"] }), 400, no_file);
    refused("nope", json!({}), 400, "Request for unknown model : nope");
    let fixed = "trace file location can not be updated through network protocol";
    refused("", json!({ "trace_file": "x" }), 501, fixed);
    refused("", json!({ "trace_count": "-5" }), 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-5");
    let empty = http::post(server.http(), "/v2/trace/setting", b"").unwrap();
    assert_eq!(empty.status, 400);
    let of_version = http::get(server.http(), "/v2/models/worker/versions/1/trace/setting").unwrap();
    assert_eq!(of_version.status, 404);
    // Settings can be changed and read while tracing is off.
    let (status, told) = set(&server, "", &json!({ "trace_rate": "7", "log_frequency": "3" }));
    assert_eq!((status, &told["trace_rate"], &told["log_frequency"]), (200, &json!("7"), &json!("3")));
    infer_well(&server, "identity");
    let metadata = http::get(server.http(), "/v2").unwrap();
    assert!(String::from_utf8_lossy(&metadata.body).contains(r#""statistics","trace""#));
}

#[test]
fn a_file_has_every_request_with_its_times_in_order_and_is_json_at_any_time() {
    let (models, out) = (models(), Folder::new("trace-out"));
    let file = out.path().join("t.json");
    let mut server = serve(&models, &flags(&file, &["--trace-config=level=TIMESTAMPS"]));
    infer_well(&server, "worker");
    let whole = |trace: &Traced| trace.names.len() == 12;
    let first = read_when(&file, |traces| traces.values().all(whole));
    let trace = &first[&1];
    assert_eq!(trace.head, json!({ "id": 1, "model_name": "worker", "model_version": 1, "request_id": "r" }));
    let mut want: Vec<String> = MODEL_EVENTS.map(str::to_owned).into();
    want.extend(front_events("HTTP"));
    assert_eq!(trace.names, want, "those of the model, then those of the front");
    let at = |name: &str| trace.times[trace.names.iter().position(|have| have == name).unwrap()];
    let order = [
        "HTTP_RECV_START",
        "HTTP_RECV_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
        "INFER_RESPONSE_COMPLETE",
        "HTTP_SEND_START",
        "HTTP_SEND_END",
    ];
    assert!(order.map(at).is_sorted(), "{trace:?}");
    call(&server, "identity", &[]);
    infer_well(&server, "ensemble");
    assert!(server.stop().success(), "{}", server.log());
    let traces = read(&file);
    assert_eq!(traces.len(), 5, "{traces:#?}");
    let by =
        |name: &str| -> Vec<&Traced> { traces.values().filter(|trace| trace.head["model_name"] == name).collect() };
    let grpc = by("identity").into_iter().find(|trace| trace.head["request_id"] == "g").unwrap();
    assert!(grpc.names.ends_with(&front_events("GRPC")), "{grpc:?}");
    let [ensemble] = by("ensemble")[..] else { panic!("{traces:#?}") };
    assert_eq!(ensemble.names[..3], ["REQUEST_START", "QUEUE_START", "REQUEST_END"]);
    let children = traces.values().filter(|trace| trace.head["parent_id"] == ensemble.head["id"]);
    let children: Vec<_> = children.map(|trace| trace.head["model_name"].as_str().unwrap()).collect();
    assert_eq!(children, ["identity", "worker"]);
}

#[test]
fn rate_count_and_log_frequency_choose_traces_and_files() {
    let (models, out) = (models(), Folder::new("trace-out"));
    let file = out.path().join("t.json");
    let numbered = |index: u32| out.path().join(format!("t.json.{index}"));
    let mut server = serve(&models, &flags(&file, &[]));
    let on = |more: Value| {
        let mut settings = json!({ "trace_level": ["TIMESTAMPS"] });
        settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(set(&server, "", &settings).0, 200);
    };
    let infer_often = |count: usize| (0..count).for_each(|_| infer_well(&server, "identity"));
    // Two of six requests.
    on(json!({ "trace_rate": "3", "log_frequency": "2" }));
    infer_often(6);
    assert_eq!(read_when(&numbered(0), |_| true).len(), 2);
    // Three of five, then no further ones; the remaining count is reported.
    on(json!({ "trace_rate": "1", "log_frequency": "0", "trace_count": "3" }));
    infer_often(2);
    let told = || {
        let response = http::get(server.http(), "/v2/trace/setting").unwrap();
        serde_json::from_slice::<Value>(&response.body).unwrap()["trace_count"].clone()
    };
    assert_eq!(told(), "1");
    infer_often(3);
    assert_eq!(read_when(&numbered(1), |_| true).len(), 3);
    assert_eq!(told(), "0");
    // One in its file, and one left when the setting is replaced.
    on(json!({ "trace_count": null, "log_frequency": "2" }));
    infer_often(3);
    assert_eq!(read_when(&numbered(2), |_| true).len(), 2);
    on(json!({ "trace_level": ["OFF"] }));
    assert_eq!(read_when(&numbered(3), |_| true).len(), 1);
    infer_often(2);
    // One model alone, to the file without a number.
    assert_eq!(set(&server, "worker", &json!({ "trace_level": ["TIMESTAMPS"], "log_frequency": "0" })).0, 200);
    infer_often(2);
    infer_well(&server, "worker");
    assert!(server.stop().success(), "{}", server.log());
    let traces = read(&file);
    let heads: Vec<_> = traces.values().map(|trace| &trace.head["model_name"]).collect();
    assert_eq!(heads, ["worker"]);
    assert!(!numbered(4).exists());
}

#[test]
fn tensors_are_recorded_by_the_level_of_that_name() {
    let (models, out) = (models(), Folder::new("trace-out"));
    let file = out.path().join("t.json");
    let mut server = serve(&models, &flags(&file, &["--trace-level=TENSORS"]));
    infer_well(&server, "worker");
    assert!(server.stop().success(), "{}", server.log());
    let traces = read(&file);
    let want = ["TENSOR_QUEUE_INPUT INPUT0 0.5,2.0 1,2 FP32", "TENSOR_BACKEND_OUTPUT OUTPUT0 0.5,2.0 1,2 FP32"];
    assert_eq!(traces[&1].tensors, want);
    assert!(traces[&1].names.is_empty() && traces[&1].head.is_null(), "times were not asked for, as in Triton");
}

#[test]
fn a_file_that_cannot_be_written_costs_traces_and_one_line_of_the_log() {
    let (models, out) = (models(), Folder::new("trace-out"));
    let file = out.path().join("none").join("t.json");
    let mut server = serve(&models, &flags(&file, &["--trace-config=level=TIMESTAMPS"]));
    (0..5).for_each(|_| infer_well(&server, "identity"));
    wait_for_metric(&server, "deuteron_trace_spans_dropped_total", 15);
    assert!(server.stop().success());
    assert_eq!(server.log().matches("failed creating trace file").count(), 1, "{}", server.log());
}

/// Waits until a metric is at least `least`.
fn wait_for_metric(server: &Server, name: &str, least: u64) {
    let start = Instant::now();
    while crate::support::metrics::metric(server.metrics(), name) < least {
        assert!(start.elapsed() < WAIT_MAX, "{name} does not come to {least}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A collector of OTLP over HTTP, with its received requests.
struct Collector {
    address: SocketAddr,
    taken: Receiver<ExportTraceServiceRequest>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, taken) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let request = Self::take(&stream.unwrap());
                if sender.send(request).is_err() {
                    return;
                }
            }
        });
        Self { address, taken }
    }

    fn take(stream: &TcpStream) -> ExportTraceServiceRequest {
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_ascii_lowercase());
        }
        assert_eq!(head[0], "post /v1/traces http/1.1");
        assert!(head.contains(&"content-type: application/x-protobuf".to_owned()), "{head:?}");
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let mut stream = stream;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        ExportTraceServiceRequest::decode(&body[..]).unwrap()
    }

    /// The next spans, and their attributes of the server.
    fn next(&self) -> ResourceSpans {
        let request = self.taken.recv_timeout(WAIT_MAX).expect("spans come");
        let [spans] = &request.resource_spans[..] else { panic!("{request:?}") };
        spans.clone()
    }

    /// Reads exactly `count` spans.
    fn spans(&self, count: usize) -> Vec<Span> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.next().scope_spans.remove(0).spans);
        }
        assert_eq!(all.len(), count, "{all:#?}");
        all
    }
}

fn exporting(address: SocketAddr, more: &[&str]) -> Vec<String> {
    let fixed = ["--shards=2", "--trace-config=mode=opentelemetry", "--trace-config=level=TIMESTAMPS"];
    let url = format!("--trace-config=opentelemetry,url=http://{address}/v1/traces");
    let delay = "--trace-config=opentelemetry,bsp_schedule_delay=50";
    fixed.iter().chain(more).chain([&delay]).map(|flag| (*flag).to_owned()).chain([url]).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name}: {spans:#?}"))
}

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| event.name.as_str()).collect()
}

fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let text = |value: &Attribute| match value {
        Attribute::StringValue(text) => text.clone(),
        Attribute::IntValue(number) => number.to_string(),
    };
    let all = span.attributes.iter();
    all.map(|pair| (pair.key.as_str(), text(pair.value.as_ref().unwrap().value.as_ref().unwrap()))).collect()
}

#[test]
fn a_collector_gets_spans_with_tritons_names_below_those_of_the_client() {
    let (models, collector) = (models(), Collector::start());
    let more = [
        "--trace-config=rate=1",
        "--trace-config=opentelemetry,resource=test.key=test.value",
        "--trace-config=opentelemetry,resource=service.name=test_triton",
    ];
    let mut server = serve(&models, &exporting(collector.address, &more));
    infer_well(&server, "worker");
    let mut first = collector.next();
    let resource: Vec<_> = first.resource.unwrap().attributes.into_iter().map(|pair| pair.key).collect();
    assert_eq!(resource, ["test.key", "service.name"]);
    let mut spans = first.scope_spans.remove(0).spans;
    spans.extend(collector.spans(3 - spans.len()));
    let [root, model, compute] = ["InferRequest", "worker", "compute"].map(|name| named(&spans, name));
    assert_eq!(events(root), front_events("HTTP"));
    assert_eq!(events(model), ["REQUEST_START", "QUEUE_START", "REQUEST_END"]);
    assert_eq!(events(compute), MODEL_EVENTS[2..6]);
    assert!(root.parent_span_id.is_empty());
    assert_eq!((&model.parent_span_id, &compute.parent_span_id), (&root.span_id, &model.span_id));
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id && span.trace_id.len() == 16));
    assert_eq!([root.kind, model.kind, compute.kind], [2, 1, 1], "a server's, and internal ones");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    assert!(now.abs_diff(u128::from(root.start_time_unix_nano)) < 60_000_000_000, "it is the time of day");
    assert!(
        root.start_time_unix_nano <= model.start_time_unix_nano && model.end_time_unix_nano <= root.end_time_unix_nano
    );
    let attributes = attributes(model);
    assert_eq!(
        (attributes["triton.model_name"].as_str(), attributes["triton.model_version"].as_str()),
        ("worker", "1")
    );
    assert_eq!((attributes["triton.request_id"].as_str(), attributes["triton.trace_parent_id"].as_str()), ("r", "0"));

    infer_well(&server, "ensemble");
    let spans = collector.spans(6);
    let [root, ensemble, first] = ["InferRequest", "ensemble", "identity"].map(|name| named(&spans, name));
    assert_eq!((&ensemble.parent_span_id, &first.parent_span_id), (&root.span_id, &ensemble.span_id));
    assert_eq!(named(&spans, "worker").parent_span_id, ensemble.span_id);
    assert_eq!(spans.iter().filter(|span| span.name == "compute").count(), 2);

    // The settings' answer names the collector.
    let told = http::get(server.http(), "/v2/trace/setting").unwrap();
    let told: Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!((&told["trace_mode"], &told["bsp_schedule_delay"]), (&json!("opentelemetry"), &json!("50")));
    assert!(told.get("trace_file").is_none() && told["url"].is_string(), "{told}");

    // The last spans are sent at the end of the server.
    call(&server, "identity", &[]);
    assert!(server.stop().success(), "{}", server.log());
    assert_eq!(events(named(&collector.spans(3), "InferRequest")), front_events("GRPC"));
}

#[test]
fn a_text_has_the_spans_of_the_model_that_answers_it() {
    let (folder, collector) = (Folder::new("trace-texts"), Collector::start());
    add_models(folder.path());
    let flags = exporting(collector.address, &["--trace-config=rate=1", "--onnx-engine=embedded"]);
    let server = serve(&folder, &flags);
    let bodies = [
        ("/embed", json!({"inputs": "good"}), "words"),
        ("/models/mood/predict", json!({"inputs": "good"}), "mood"),
        ("/v1/embeddings", json!({"input": "good", "model": "words"}), "words"),
        ("/models/rank/vertex", json!({"instances": [{"query": "good", "texts": ["bad"]}]}), "rank"),
    ];
    for (path, body, name) in bodies {
        assert_eq!(http::post(server.http(), path, body.to_string().as_bytes()).unwrap().status, 200, "{path}");
        let spans = collector.spans(3);
        let [root, model, compute] = ["InferRequest", name, "compute"].map(|name| named(&spans, name));
        assert_eq!(events(root), front_events("HTTP"), "{path}");
        assert_eq!((&model.parent_span_id, &compute.parent_span_id), (&root.span_id, &model.span_id), "{path}");
        assert_eq!(attributes(model)["triton.model_name"], name, "{path}");
    }
    let inputs = EmbedRequest { inputs: "good".to_owned(), ..Default::default() };
    let client = Client::new(server.grpc());
    client.call_with("/tei.v1.Embed/Embed", &[("model", "words")], &inputs.encode_to_vec()).unwrap();
    let spans = collector.spans(3);
    assert_eq!(events(named(&spans, "InferRequest")), front_events("GRPC"));
    assert_eq!(named(&spans, "words").parent_span_id, named(&spans, "InferRequest").span_id);
}

#[test]
fn a_client_that_sends_its_trace_is_traced_whatever_the_rate_is() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c12666c-b7ad6b7169242424-01";
    let (models, collector) = (models(), Collector::start());
    let server = serve(&models, &exporting(collector.address, &["--trace-config=rate=0"]));
    let is_childs = |span: &Span| {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let ids = [hex(&span.trace_id), hex(&span.parent_span_id)];
        assert_eq!(ids, ["0af7651916cd43dd8448eb211c12666c", "b7ad6b7169242424"]);
        assert_eq!(span.trace_state, "vendor=1");
    };
    infer_well(&server, "identity");
    let fields = [("traceparent", PARENT), ("tracestate", "vendor=1")];
    let request = http::request("POST", "/v2/models/identity/infer", &fields, &body("h"));
    assert_eq!(http::exchange(server.http(), &request).unwrap().status, 200);
    is_childs(named(&collector.spans(3), "InferRequest"));
    call(&server, "identity", &[("traceparent", "nonsense")]);
    call(&server, "identity", &fields);
    is_childs(named(&collector.spans(3), "InferRequest"));
}

/// Sends `count` inferences, and checks that each is quick.
fn infer_quickly(server: &Server, count: usize) {
    for _ in 0..count {
        let start = Instant::now();
        infer_well(server, "identity");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

#[test]
fn a_collector_that_is_gone_costs_spans_and_nothing_else() {
    let models = models();
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut server = serve(&models, &exporting(gone, &["--trace-config=rate=1"]));
    infer_quickly(&server, 20);
    wait_for_metric(&server, "deuteron_trace_spans_dropped_total", 60);
    assert_eq!(crate::support::metrics::metric(server.metrics(), "deuteron_trace_spans_total"), 0);
    assert!(server.stop().success());
    assert_eq!(server.log().matches("spans are lost").count(), 1, "{}", server.log());
}

#[test]
fn a_silent_collector_costs_spans_and_the_server_ends_in_time() {
    let models = models();
    // A peer that accepts, by its backlog, and stays silent.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let more = [
        "--trace-config=rate=1",
        "--trace-config=opentelemetry,bsp_max_queue_size=8",
        "--trace-config=opentelemetry,bsp_max_export_batch_size=4",
    ];
    let mut server = serve(&models, &exporting(silent.local_addr().unwrap(), &more));
    infer_quickly(&server, 30);
    // The queue is full while the first batch waits for its answer.
    wait_for_metric(&server, "deuteron_trace_spans_dropped_total", 40);
    let start = Instant::now();
    assert!(server.stop().success(), "{}", server.log());
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

/// A call of gRPC that fails: its status.
fn call_refused(server: &Server, model: &str, version: &str) -> i32 {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 2]);
    let message = Message::new().bytes(1, model).bytes(2, version).message(5, input).bytes(7, [0; 8]).into_bytes();
    let path = "/inference.GRPCInferenceService/ModelInfer";
    Client::new(server.grpc()).call_with(path, &[], &message).expect_err("it is refused").code() as i32
}

#[test]
fn refused_requests_are_spans_of_a_server_with_their_status() {
    let (models, collector) = (models(), Collector::start());
    let more = [
        "--trace-config=rate=1",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--http-max-input-size=65536",
        "--grpc-max-message-size=65536",
    ];
    let server = serve(&models, &exporting(collector.address, &more));
    let span = |want: &str, is_error: bool| {
        let [span] = &collector.spans(1)[..] else { panic!("one") };
        assert_eq!((span.name.as_str(), span.kind), ("InferRequest", 2), "{span:#?}");
        assert_eq!(span.status.as_ref().map(|status| status.code), is_error.then_some(2), "{span:#?}");
        let mut attributes = attributes(span);
        let message = attributes.remove("error.message").expect("the reason is there");
        let all: Vec<_> = attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(all.join(" "), want, "{message}");
    };
    let post = |path: &str, body: &[u8], want: u16| {
        assert_eq!(http::post(server.http(), path, body).unwrap().status, want, "{path}");
    };
    post("/v2/models/none/infer", &body("r"), 404);
    span("http.response.status_code=404", false);
    post("/v2/models/identity/infer", b"{", 400);
    span("http.response.status_code=400", false);
    post("/v2/models/identity/generate", b"{", 400);
    span("http.response.status_code=400", false);
    assert_eq!(http::get(server.http(), "/v2/models/identity/infer").unwrap().status, 405);
    span("http.response.status_code=405", false);
    post("/v2/models/identity/infer", &[b' '; 70_000], 413);
    span("http.response.status_code=413", false);
    assert_eq!(call_refused(&server, "none", ""), 5);
    span("rpc.grpc.status_code=5 rpc.system=grpc", false);
    infer_well(&server, "identity");
    let answered = collector.spans(3);
    let root = named(&answered, "InferRequest");
    assert_eq!((attributes(root)["http.response.status_code"].as_str(), &root.status), ("200", &None));
    post("/v2/repository/models/identity/unload", b"", 200);
    post("/v2/models/identity/versions/1/infer", &body("r"), 503);
    span("error.type=503 http.response.status_code=503", true);
    assert_eq!(call_refused(&server, "identity", "1"), 14);
    span("error.type=UNAVAILABLE rpc.grpc.status_code=14 rpc.system=grpc", true);
    // Not an inference.
    assert_eq!(http::get(server.http(), "/v2/models/none").unwrap().status, 404);
    post("/v2/models/none/versions/7/infer", &body("r"), 404);
    span("http.response.status_code=404", false);
}

#[test]
fn refused_bodies_are_spans_over_both_versions_of_http() {
    let (models, collector) = (models(), Collector::start());
    let more = ["--trace-config=rate=1", "--http-max-input-size=65536", "--http-body-timeout=1"];
    let server = serve(&models, &exporting(collector.address, &more));
    let path = "/v2/models/identity/infer";
    let span = |status: &str, text: &str| {
        let [span] = &collector.spans(1)[..] else { panic!("one") };
        let attributes = attributes(span);
        assert_eq!((span.name.as_str(), span.kind), ("InferRequest", 2), "{span:#?}");
        assert_eq!(attributes["http.response.status_code"], status, "{span:#?}");
        assert!(attributes["error.message"].contains(text), "{span:#?}");
    };
    let declared = [("content-length", "70000")];
    for address in [server.http(), server.grpc()] {
        assert_eq!(h2::post_part(address, path, &declared, b"{"), 413);
        span("413", "65536");
        assert_eq!(h2::post_part(address, path, &[], &[b' '; 65_535]), 408);
        span("408", "in time");
        assert_eq!(h2::post(address, path, &[b' '; 70_000]).0, 413);
        span("413", "65536");
    }
    let part = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{");
    assert_eq!(http::exchange(server.http(), part.as_bytes()).unwrap().status, 408);
    span("408", "in time");
    assert_eq!(http::post(server.http(), path, &[b' '; 70_000]).unwrap().status, 413);
    span("413", "65536");
    // Not an inference.
    assert_eq!(h2::post_part(server.http(), "/v2/models/identity", &declared, b"{"), 413);
    assert_eq!(h2::post_part(server.http(), path, &declared, b"{"), 413);
    span("413", "65536");
}

#[test]
fn refused_requests_are_sampled_as_others() {
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c12666c-b7ad6b7169242424-01";
    let (models, collector) = (models(), Collector::start());
    let out = Folder::new("trace-out");
    let keys = out.path().join("keys.toml");
    // Two requests of this key, and none for a quarter of an hour.
    let sum = "7b508dace774f8adc1b121c1812b740904be6dfd37e3b5e3579bc81fbf6f5553";
    let limited =
        format!("[[key]]\nname = \"a\"\nsha256 = \"{sum}\"\nclasses = [\"infer\"]\nrate = 0.001\nburst = 2\n");
    fs::write(&keys, limited + "[anonymous]\nclasses = [\"metrics\"]\n").unwrap();
    let keys = format!("--api-keys-file={}", keys.display());
    let server = serve(&models, &exporting(collector.address, &["--trace-config=rate=0", &keys]));
    let ask = |model: &str, fields: &[(&str, &str)]| {
        let fields = [fields, &[("x-api-key", "limited")]].concat();
        let request = http::request("POST", &format!("/v2/models/{model}/infer"), &fields, &body("r"));
        http::exchange(server.http(), &request).unwrap().status
    };
    assert_eq!(ask("none", &[]), 404, "left out by the rate");
    assert_eq!(ask("none", &[("traceparent", PARENT)]), 404);
    assert_eq!(attributes(&collector.spans(1)[0])["http.response.status_code"], "404");
    assert_eq!(ask("identity", &[]), 429);
    assert_eq!(ask("identity", &[("traceparent", PARENT)]), 429);
    let [span] = &collector.spans(1)[..] else { panic!("one") };
    let id: String = span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((id.as_str(), attributes(span)["http.response.status_code"].as_str()), (&PARENT[3..35], "429"));
}

#[test]
fn buckets_of_openmetrics_name_the_last_traced_request_in_them() {
    let Some(environment) = Environment::create("openapi", "tests/openapi/requirements.txt", &["python3"]) else {
        return;
    };
    let (models, collector) = (models(), Collector::start());
    let server = serve(&models, &exporting(collector.address, &["--trace-config=rate=1"]));
    infer_well(&server, "worker");
    let spans = collector.spans(3);
    let page = |accept: &str| {
        let request = http::request("GET", "/metrics", &[("Accept", accept)], b"");
        String::from_utf8(http::exchange(server.metrics(), &request).unwrap().body).unwrap()
    };
    assert!(!page("text/plain").lines().any(|line| line.contains(" # ")), "the plain format has none");
    let out = Folder::new("trace-out");
    let file = out.path().join("page");
    fs::write(&file, page("application/openmetrics-text")).unwrap();
    let program = format!(
        "from prometheus_client.openmetrics.parser import text_string_to_metric_families as read; \
         found = [(sample, sample.exemplar) for family in read(open({:?}).read()) for sample in family.samples \
         if sample.exemplar]; \
         print(*sorted(sample.name + ' ' + sample.labels['model'] + ' ' + exemplar.labels['trace_id'] + ' ' \
         + exemplar.labels['span_id'] + ' ' + str(exemplar.value <= float(sample.labels['le'])) + ' ' \
         + str(float(exemplar.timestamp) > 1.6e9) for sample, exemplar in found), sep='; ')",
        file.display().to_string()
    );
    let span = named(&spans, "worker");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ids = format!("worker {} {} True True", hex(&span.trace_id), hex(&span.span_id));
    let names = ["queue", "request", "run"].map(|name| format!("deuteron_{name}_duration_seconds_bucket {ids}"));
    assert_eq!(environment.evaluate(&program), names.join("; "));
}
