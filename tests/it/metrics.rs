//! `/metrics` on the server as a process: beside that of tritonserver 2.51, as Prometheus reads it, and by the flags.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::server::Server;
use crate::support::{h2, http, repository};
use serde_json::{Value, json};

const IDENTITY: &str = "backend: 'identity' max_batch_size: 8
    input { name: 'IN' data_type: TYPE_FP32 dims: 2 } output { name: 'OUT' data_type: TYPE_FP32 dims: 2 }";
const ENSEMBLE: &str = "platform: 'ensemble' max_batch_size: 8 response_cache { enable: true }
    input { name: 'IN' data_type: TYPE_FP32 dims: 2 } output { name: 'OUT' data_type: TYPE_FP32 dims: 2 }
    ensemble_scheduling { step { model_name: 'ident' model_version: -1
    input_map { key: 'IN' value: 'IN' } output_map { key: 'OUT' value: 'OUT' } } }";
const EXPLICIT: [&str; 3] = ["--shards=1", "--model-control-mode=explicit", "--load-model=*"];

fn server(folder: &Folder, flags: &[&str]) -> Server {
    repository::add(folder.path(), "ident", IDENTITY, None);
    repository::add(folder.path(), "cached", &format!("{IDENTITY} response_cache {{ enable: true }}"), None);
    repository::add(folder.path(), "ens", ENSEMBLE, None);
    repository::add(folder.path(), "dec", repository::SQUARE, None);
    Server::deuteron(folder.path(), &[&EXPLICIT, flags].concat())
}

fn page(server: &Server) -> String {
    String::from_utf8(http::get(server.metrics(), "/metrics").unwrap().body).unwrap()
}

fn infer(server: &Server, model: &str) {
    let input = json!({"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]});
    let body = json!({ "inputs": [input] }).to_string();
    let answer = http::post(server.http(), &format!("/v2/models/{model}/infer"), body.as_bytes()).unwrap();
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, &body["outputs"][0]["data"]), (200, &json!([1.0, 2.0])), "{body}");
}

/// Asks the decoupled model for one response.
fn infer_decoupled(server: &Server) {
    let input = Message::new().bytes(1, "IN").bytes(2, "INT32").packed(3, &[1]);
    let request = Message::new().bytes(1, "dec").message(5, input).bytes(7, 1_i32.to_le_bytes()).into_bytes();
    let (came, end) =
        Client::new(server.grpc()).stream("/inference.GRPCInferenceService/ModelStreamInfer", &[], vec![request]);
    assert!(end.is_ok() && !came.is_empty(), "{end:?}");
}

/// The value of a series.
fn value(page: &str, series: &str) -> f64 {
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{series} is not in\n{page}")).parse().unwrap()
}

/// Families by name: their two heads, and their series without values.
fn families(text: &str) -> BTreeMap<String, (Vec<String>, BTreeSet<String>)> {
    let (mut families, mut now) = (BTreeMap::<String, (Vec<String>, BTreeSet<String>)>::new(), String::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(head) = line.strip_prefix("# ") {
            now = head.split(' ').nth(1).unwrap().to_owned();
            families.entry(now.clone()).or_default().0.push(line.to_owned());
        } else if let Some(family) = families.get_mut(&now) {
            let name_and_labels = line.rfind('}').map_or_else(|| line.split(' ').next().unwrap(), |end| &line[..=end]);
            family.1.insert(name_and_labels.to_owned());
        }
    }
    families
}

/// Checks a page as `promtool check metrics` and a scrape do: each family once and together, heads before series, no
/// series twice, values that are numbers, and buckets that add up.
fn check_format(page: &str) {
    let (mut kinds, mut seen, mut series) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::<&str, f64>::new());
    let mut now = "";
    for line in page.lines() {
        if let Some(head) = line.strip_prefix("# HELP ") {
            now = head.split(' ').next().unwrap();
            assert!(seen.insert(now), "{now} comes twice");
        } else if let Some(head) = line.strip_prefix("# TYPE ") {
            let (name, kind) = head.split_once(' ').unwrap();
            assert_eq!(name, now, "HELP is before TYPE");
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            kinds.insert(name, kind);
        } else {
            let (name, number) = line.rsplit_once(' ').unwrap();
            let number: f64 = number.replace("+Inf", "inf").parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(series.insert(name, number).is_none(), "{line} comes twice");
            let bare = name.split('{').next().unwrap();
            let suffixes: &[&str] = match kinds.get(now) {
                Some(&"histogram") => &["_bucket", "_sum", "_count"],
                Some(&"summary") => &["", "_sum", "_count"],
                Some(_) => &[""],
                None => panic!("{line} has no head"),
            };
            assert!(suffixes.iter().any(|suffix| bare == format!("{now}{suffix}")), "{line} is no series of {now}");
        }
    }
    for (name, all) in &series {
        let Some(count) =
            name.find(",le=\"+Inf\"").map(|at| format!("{}}}", name[..at].replacen("_bucket{", "_count{", 1)))
        else {
            continue;
        };
        assert_eq!(series.get(count.as_str()), Some(all), "{name}");
    }
}

/// Reasons for families, or series, that differ from Triton's here.
const DIFFERENCES: [(&str, &str); 1] = [(
    "nv_inference_request_summary_us",
    "tritonserver 2.51 leaves models with a response cache out; its help says that it has them",
)];

#[test]
fn families_have_the_names_labels_and_texts_of_tritonserver() {
    let folder = Folder::new("metrics-triton");
    let flags =
        ["summary_latencies=true", "histogram_latencies=true"].map(|setting| format!("--metrics-config={setting}"));
    let server = server(&folder, &["--cache-config=local,size=1048576", &flags[0], &flags[1]]);
    ["ident", "cached", "cached", "ens", "ens"].iter().for_each(|model| infer(&server, model));
    infer_decoupled(&server);
    // Another thread samples the CPUs.
    let start = Instant::now();
    while !page(&server).contains("nv_cpu_utilization") && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let page = page(&server);
    check_format(&page);
    let ours = families(&page);
    let theirs = families(include_str!("../oracle/recorded_metrics.txt"));
    assert_eq!(theirs.len(), 34);
    for (name, (heads, series)) in theirs {
        let Some((own_heads, own_series)) = ours.get(&name) else { panic!("{name} is not in\n{page}") };
        assert_eq!(own_heads, &heads);
        if DIFFERENCES.iter().all(|(other, _)| *other != name) {
            assert_eq!(own_series, &series, "{name}");
        } else {
            assert!(own_series.is_superset(&series) && *own_series != series, "{name} is no difference any more");
        }
    }
    // Triton counts a hit as a success that is not an inference.
    for model in ["cached", "ens"] {
        let of = |name: &str| value(&page, &format!("{name}{{model=\"{model}\",version=\"1\"}}"));
        let names =
            ["request_success", "count", "exec_count", "queue_summary_us_count", "compute_infer_summary_us_count"];
        assert_eq!(names.map(|name| of(&format!("nv_inference_{name}"))), [2.0, 1.0, 1.0, 2.0, 1.0], "{model}");
        assert_eq!(["hits", "misses"].map(|name| of(&format!("nv_cache_num_{name}_per_model"))), [1.0, 1.0], "{model}");
    }
    assert_eq!(value(&page, "nv_inference_count{model=\"ident\",version=\"1\"}"), 2.0, "one by the ensemble");
    assert_eq!(
        ["hits", "misses", "entries"].map(|name| value(&page, &format!("nv_cache_num_{name}"))),
        [2.0, 2.0, 2.0]
    );
    let first = "nv_inference_first_response_histogram_ms_bucket{model=\"dec\",version=\"1\",le=\"5000\"}";
    assert_eq!(value(&page, first), 1.0);
}

#[test]
fn the_parser_of_openmetrics_reads_every_sample_of_the_plain_page_by_its_name() {
    let Some(environment) = Environment::create("openapi", "tests/openapi/requirements.txt", &["python3"]) else {
        return;
    };
    let folder = Folder::new("metrics");
    let server = server(&folder, &["--cache-config=local,size=1048576", "--metrics-config=summary_latencies=true"]);
    ["ident", "cached", "ens"].iter().for_each(|model| infer(&server, model));
    let accept = [("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")];
    let answer = http::exchange(server.metrics(), &http::request("GET", "/metrics", &accept, b"")).unwrap();
    let kind = answer.header("content-type");
    assert_eq!(kind, Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    let file = folder.path().join("page");
    fs::write(&file, answer.body).unwrap();
    let program = format!(
        "from prometheus_client.openmetrics.parser import text_string_to_metric_families as read; \
         print(*sorted({{sample.name for family in read(open({:?}).read()) for sample in family.samples}}))",
        file.display().to_string()
    );
    let read = environment.evaluate(&program);
    let read: BTreeSet<_> = read.split(' ').collect();
    let page = page(&server);
    let plain = page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split(['{', ' ']).next());
    // Gauges of other threads may have come between the two pages.
    let plain: BTreeSet<_> = plain.collect();
    assert!(read.is_subset(&plain) && read.len() > 40, "{:?}", read.difference(&plain));
}

#[test]
fn by_default_there_are_histograms_in_seconds_and_no_family_of_what_is_off() {
    let folder = Folder::new("metrics-default");
    let server = server(&folder, &["--allow-cpu-metrics=false"]);
    infer(&server, "ident");
    let page = page(&server);
    check_format(&page);
    for kind in ["request", "queue", "run"] {
        let series = format!("deuteron_{kind}_duration_seconds_bucket{{model=\"ident\",version=\"1\",le=\"+Inf\"}}");
        assert_eq!(value(&page, &series), 1.0);
    }
    for absent in ["nv_cache", "summary", "first_response", "nv_cpu", "nv_gpu"] {
        assert!(!page.contains(absent), "{absent}\n{page}");
    }
    assert!(page.contains("nv_inference_request_duration_us{"), "{page}");
}

#[test]
fn durations_may_be_left_out_and_quantiles_and_buckets_chosen() {
    let folder = Folder::new("metrics-chosen");
    let control = "model_metrics { metric_control {
        metric_identifier { family: 'nv_inference_first_response_histogram_ms' }
        histogram_options { buckets: [ 0.5, 60000 ] } } }";
    repository::add(folder.path(), "dec", &format!("{} {control}", repository::SQUARE), None);
    let settings = [
        "counter_latencies=false",
        "histogram_latencies=true",
        "summary_latencies=true",
        "summary_quantiles=0.75:0.05",
    ];
    let settings = settings.map(|setting| format!("--metrics-config={setting}"));
    let flags: Vec<&str> = settings.iter().map(String::as_str).chain(["--shards=1"]).collect();
    let server = Server::deuteron(folder.path(), &flags);
    let summary = "nv_inference_request_summary_us{model=\"dec\",version=\"1\",quantile=";
    assert!(page(&server).contains(&format!("{summary}\"0.75\"}} NaN\n")), "{}", page(&server));
    infer_decoupled(&server);
    let page = page(&server);
    check_format(&page);
    let count = value(&page, "nv_inference_request_summary_us_count{model=\"dec\",version=\"1\"}");
    assert_eq!(count, value(&page, "nv_inference_request_success{model=\"dec\",version=\"1\"}"));
    assert!(value(&page, &format!("{summary}\"0.75\"}}")) >= 0.0);
    assert!(!page.contains("quantile=\"0.5\"") && !page.contains("nv_inference_request_duration_us"), "{page}");
    let bucket = |bound: &str| {
        value(
            &page,
            &format!("nv_inference_first_response_histogram_ms_bucket{{model=\"dec\",version=\"1\",le=\"{bound}\"}}"),
        )
    };
    assert_eq!((bucket("60000"), bucket("+Inf")), (1.0, 1.0));
    let of_triton = "nv_inference_first_response_histogram_ms_bucket{model=\"dec\",version=\"1\",le=\"5000\"}";
    assert!(!page.contains(of_triton), "{page}");
}

#[test]
fn the_series_of_a_model_go_when_it_is_unloaded() {
    let folder = Folder::new("metrics-unloaded");
    let server = server(&folder, &[]);
    infer(&server, "ident");
    assert!(page(&server).contains("\"dec\""));
    let post = |action: &str| http::post(server.http(), &format!("/v2/repository/models/dec/{action}"), b"{}").unwrap();
    assert_eq!(post("unload").status, 200);
    let start = Instant::now();
    while page(&server).contains("\"dec\"") {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", page(&server));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(page(&server).contains("nv_inference_count{model=\"ident\",version=\"1\"} 1"));
    assert_eq!(post("load").status, 200);
    let page = page(&server);
    check_format(&page);
    assert!(page.contains("deuteron_model_loads_total{model=\"dec\",outcome=\"success\"} 2"), "{page}");
    assert!(page.contains("nv_model_load_duration_secs{model=\"dec\",version=\"1\"}"), "{page}");
}

#[test]
fn a_batch_of_sequences_counts_with_its_empty_slots() {
    let folder = Folder::new("metrics-slots");
    let sums = repository::SUMS.replace("instance_group { count: 2 }", "instance_group { count: 1 }");
    repository::add(folder.path(), "sums", &sums, None);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    // The second sequence has the second slot; the first is empty in its batches.
    for (sequence, is_start) in [(1, true), (2, true), (2, false)] {
        let input = json!({"name": "INPUT", "shape": [1, 1], "datatype": "INT32", "data": [1]});
        let parameters = json!({"sequence_id": sequence, "sequence_start": is_start, "sequence_end": false});
        let body = json!({"inputs": [input], "parameters": parameters}).to_string();
        assert_eq!(http::post(server.http(), "/v2/models/sums/infer", body.as_bytes()).unwrap().status, 200);
    }
    let answer = http::get(server.http(), "/v2/models/sums/stats").unwrap();
    let statistics = serde_json::from_slice::<Value>(&answer.body).unwrap()["model_stats"][0].clone();
    let sizes = statistics["batch_stats"].as_array().unwrap().iter();
    let sizes: Vec<_> =
        sizes.map(|batch| (batch["batch_size"].clone(), batch["compute_infer"]["count"].clone())).collect();
    assert_eq!(sizes, [(json!(1), json!(1)), (json!(2), json!(2))], "{statistics}");
    assert_eq!((&statistics["inference_count"], &statistics["execution_count"]), (&json!(3), &json!(3)));
}

/// An inference over HTTP whose client asks for the load in this form.
fn infer_asking(server: &Server, format: Option<&str>) -> http::Response {
    let input = json!({"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]});
    let body = json!({ "inputs": [input] }).to_string();
    let asked = format.map(|format| format!("endpoint-load-metrics-format: {format}\r\n")).unwrap_or_default();
    let mut connection = http::Connection::open(server.http()).unwrap();
    let head =
        format!("POST /v2/models/ident/infer HTTP/1.1\r\nHost: x\r\n{asked}Content-Length: {}\r\n\r\n", body.len());
    connection.send(format!("{head}{body}").as_bytes()).unwrap();
    connection.receive().unwrap()
}

const LOAD: &str = "Endpoint-Load-Metrics";
const LOAD_TRAILER: &str = "endpoint-load-metrics-bin";

#[test]
fn who_asks_is_told_the_load() {
    let folder = Folder::new("metrics-load");
    let server = server(&folder, &["--metrics-interval-ms=50"]);
    // The first to ask starts the sampling.
    let start = Instant::now();
    let text = loop {
        let answer = infer_asking(&server, Some("text"));
        assert_eq!(answer.status, 200);
        if let Some(text) = answer.header(LOAD) {
            break text.to_owned();
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no report comes");
    };
    let pairs = text.strip_prefix("TEXT ").unwrap().split(',').map(|pair| pair.split_once('=').unwrap());
    let pairs: BTreeMap<&str, f64> = pairs.map(|(name, value)| (name, value.parse().unwrap())).collect();
    let names = ["cpu_utilization", "mem_utilization", "named_metrics.queue", "rps_fractional"];
    assert_eq!(pairs.keys().copied().collect::<Vec<_>>(), names);
    assert!(pairs["rps_fractional"] > 0.0, "{text}");
    assert!(names[..3].iter().all(|name| (0.0..=1.0).contains(&pairs[name])), "{text}");
    let json = infer_asking(&server, Some("json")).header(LOAD).unwrap().to_owned();
    let value: Value = serde_json::from_str(json.strip_prefix("JSON ").unwrap()).unwrap();
    assert!(value["rps_fractional"].is_number() && value["named_metrics"]["queue"].is_number(), "{json}");
    for format in [None, Some("xml")] {
        assert_eq!(infer_asking(&server, format).header(LOAD), None, "{format:?}");
    }
    let input = Message::new().bytes(1, "IN").bytes(2, "FP32").packed(3, &[1, 2]);
    let request = Message::new().bytes(1, "ident").message(5, input).bytes(7, [0; 8]).into_bytes();
    let method = "/inference.GRPCInferenceService/ModelInfer";
    let trailers = |fields| h2::call(server.grpc(), method, fields, &request);
    assert_eq!(trailers(&[]).get(LOAD_TRAILER), None);
    let trailers = trailers(&[("endpoint-load-metrics-format", "text")]);
    // The first field is a double with the number 1, 2 or 6: those that are 0 are left out.
    let report = trailers.get(LOAD_TRAILER).unwrap_or_else(|| panic!("{trailers:?}"));
    assert!(["C", "E", "M"].iter().any(|start| report.starts_with(start)) && report.len() > 30, "{report}");
}

/// Asks until there is a report.
fn until_reported<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(report) = ask() {
            return report;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no report comes");
    }
}

#[test]
fn streams_report_the_load_at_their_end_over_grpc_and_in_their_head_over_http() {
    let folder = Folder::new("metrics-load-streams");
    let server = server(&folder, &["--metrics-interval-ms=50"]);
    let input = Message::new().bytes(1, "IN").bytes(2, "FP32").packed(3, &[1, 2]);
    let request = Message::new().bytes(1, "ident").message(5, input).bytes(7, [0; 8]).into_bytes();
    let method = "/inference.GRPCInferenceService/ModelStreamInfer";
    let asking = [("endpoint-load-metrics-format", "text")];
    let report = until_reported(|| h2::call(server.grpc(), method, &asking, &request).remove(LOAD_TRAILER));
    assert!(["C", "E", "M"].iter().any(|start| report.starts_with(start)) && report.len() > 30, "{report}");
    let trailers = h2::call(server.grpc(), method, &[], &request);
    assert_eq!((trailers.get(LOAD_TRAILER), trailers["grpc-status"].as_str()), (None, "0"));
    for (delivery, kind) in [("generate", "application/json"), ("generate_stream", "text/event-stream; charset=utf-8")]
    {
        let path = format!("/v2/models/ident/{delivery}");
        let ask = |fields: &[(&str, &str)]| {
            let answer =
                http::exchange(server.http(), &http::request("POST", &path, fields, br#"{"IN":[1,2]}"#)).unwrap();
            assert_eq!((answer.status, answer.header("Content-Type")), (200, Some(kind)));
            answer.header(LOAD).map(str::to_owned)
        };
        let report = until_reported(|| ask(&asking));
        assert!(report.starts_with("TEXT cpu_utilization="), "{report}");
        assert_eq!(ask(&[]), None, "{delivery}");
    }
}

#[test]
fn the_load_is_that_of_the_busiest_group_while_it_runs() {
    let folder = Folder::new("metrics-load-groups");
    let slow = format!(
        "{IDENTITY} instance_group [ {{ name: 'active' count: 1 }}, {{ name: 'idle' count: 3 passive: true }} ]
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '1500' }} }}"
    );
    repository::add(folder.path(), "slow", &slow, None);
    repository::add(folder.path(), "ident", IDENTITY, None);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--metrics-interval-ms=50"]);
    let input = json!({"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]});
    let body = json!({ "inputs": [input] }).to_string();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| http::post(server.http(), "/v2/models/slow/infer", body.as_bytes()).unwrap());
        // A run in progress, on the only instance that gets work.
        let full = until_reported(|| {
            let report = infer_asking(&server, Some("json")).header(LOAD)?.to_owned();
            let value: Value = serde_json::from_str(report.strip_prefix("JSON ").unwrap()).unwrap();
            value["cpu_utilization"].as_f64().filter(|share| *share > 0.95 || running.is_finished())
        });
        assert!(full > 0.95, "{full}");
        assert_eq!(running.join().unwrap().status, 200);
    });
    // The load is zero once the run has ended.
    until_reported(|| {
        let report = infer_asking(&server, Some("json")).header(LOAD)?.to_owned();
        let value: Value = serde_json::from_str(report.strip_prefix("JSON ").unwrap()).unwrap();
        value["cpu_utilization"].as_f64().filter(|share| *share < 0.05)
    });
}

#[test]
fn by_a_flag_every_answer_reports_the_load() {
    let folder = Folder::new("metrics-reports");
    let server = server(&folder, &["--metrics-interval-ms=50", "--load-reports"]);
    let start = Instant::now();
    while infer_asking(&server, None).header(LOAD).is_none() {
        assert!(start.elapsed() < Duration::from_secs(10), "no report comes");
    }
}
