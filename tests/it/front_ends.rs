//! The front ends of hosting services on the server as a process: their paths, redirects and content types,
//! restrictions by the operator, and the models that SageMaker loads by their paths. The table of paths and routes is
//! in `protocol::front_end`; the requests are those of NVIDIA's L0_sagemaker and L0_vertex_ai.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http::{self, Response};
use crate::support::metrics::metric;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};

const SAGEMAKER_BINARY: &str = "application/vnd.sagemaker-triton.binary+json;json-header-size=";
const VERTEX_BINARY: &str = "application/vnd.vertex-ai-triton.binary+json;json-header-size=";
pub(crate) const REDIRECT: &str = "X-Vertex-Ai-Triton-Redirect";
const MODEL: &str = "identity_fp32";

/// A server with both front ends.
pub(crate) struct Hosted {
    pub(crate) server: Server,
    pub(crate) sagemaker: SocketAddr,
    pub(crate) vertex_ai: SocketAddr,
    models: Folder,
}

/// A command that starts a server with both front ends on ports of its own.
fn command(repository: &Path, flags: &[&str]) -> (Command, Ports, [SocketAddr; 2]) {
    let (ports, more) = (Ports::free(), Ports::free());
    let mut command = Server::command(repository, flags, ports);
    command.args(["--allow-sagemaker=true", "--allow-vertex-ai=true"]);
    command.arg(format!("--sagemaker-port={}", more.http)).arg(format!("--vertex-ai-port={}", more.grpc));
    command.envs([("AIP_PREDICT_ROUTE", "/predict"), ("AIP_HEALTH_ROUTE", "/health")]);
    command.env("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", MODEL);
    (command, ports, [more.http, more.grpc].map(|port| (Ipv4Addr::LOCALHOST, port).into()))
}

pub(crate) fn serve(flags: &[&str]) -> Hosted {
    let models = repository::write(Flavour::Deuteron);
    let default = format!("--vertex-ai-default-model={MODEL}");
    let flags = [&["--model-control-mode=explicit", "--load-model=*", &default], flags].concat();
    let (command, ports, [sagemaker, vertex_ai]) = command(models.path(), &flags);
    Hosted { server: Server::start(command, ports), sagemaker, vertex_ai, models }
}

fn ask(address: SocketAddr, method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Response {
    http::exchange(address, &http::request(method, path, fields, body)).unwrap()
}

fn text(answer: &Response) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

/// A request for the model, in JSON, and the same with binary tensors: the size of its JSON part, and all of it.
fn requests() -> (Vec<u8>, usize, Vec<u8>) {
    let json = |more: Value| {
        let mut input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1, 2]});
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"inputs": [input]})
    };
    let plain = json(json!({"data": [1.5, 2.5]})).to_string().into_bytes();
    let mut head = json(json!({"parameters": {"binary_data_size": 8}}));
    head["outputs"] = json!([{"name": "OUTPUT0", "parameters": {"binary_data": true}}]);
    let head = head.to_string().into_bytes();
    let tensor: Vec<u8> = [1.5_f32, 2.5].iter().flat_map(|value| value.to_le_bytes()).collect();
    (plain, head.len(), [head, tensor].concat())
}

#[test]
fn both_front_ends_run_their_model_in_json_and_binary() {
    let hosted = serve(&[]);
    let (plain, size, binary) = requests();
    let tensor = &binary[size..];
    for (address, path, content_type, health) in [
        (hosted.sagemaker, "/invocations", SAGEMAKER_BINARY, "/ping"),
        (hosted.vertex_ai, "/predict", VERTEX_BINARY, "/health"),
    ] {
        assert_eq!(ask(address, "GET", health, &[], b"").status, 200, "{health}");
        let answer = ask(address, "POST", path, &[("Content-Type", "application/json")], &plain);
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{}", text(&answer)));
        assert_eq!((answer.status, &value["model_name"]), (200, &json!(MODEL)), "{path}");
        assert_eq!(value["outputs"][0]["data"], json!([1.5, 2.5]), "{path}");
        let sized = format!("{content_type}{size}");
        let answer = ask(address, "POST", path, &[("Content-Type", &sized)], &binary);
        assert_eq!(answer.status, 200, "{path}: {}", text(&answer));
        assert!(answer.body.ends_with(tensor), "{path}");
        let json = (answer.body.len() - tensor.len()).to_string();
        match answer.header("inference-header-content-length") {
            Some(length) => assert_eq!((length, path), (json.as_str(), "/predict")),
            None => assert_eq!(answer.header("content-type"), Some(format!("{SAGEMAKER_BINARY}{json}").as_str())),
        }
        for wrong in ["x", "-123", "12345", "99999999999", ""] {
            let field = format!("{content_type}{wrong}");
            assert_eq!(ask(address, "POST", path, &[("Content-Type", &field)], &binary).status, 400, "{field}");
        }
        let field = format!("additional/{sized}");
        assert_eq!(ask(address, "POST", path, &[("Content-Type", &field)], &binary).status, 400);
        // The field of the protocol is ignored here.
        let length = size.to_string();
        let fields = [("Inference-Header-Content-Length", length.as_str())];
        assert_eq!(ask(address, "POST", path, &fields, &binary).status, 400, "{path}");
        // Neither the paths of the other ports nor another protocol can be reached.
        for other in ["/v2", "/v2/models/identity_fp32/infer", "/metrics", "/"] {
            assert_eq!(ask(address, "POST", other, &[], b"{}").status, 400, "{other}");
        }
        let mut connection = http::Connection::open(address).unwrap();
        connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        assert!(matches!(connection.receive().unwrap().status, 400 | 505), "{path}");
    }
    let name = format!(r#"nv_inference_request_success{{model="{MODEL}",version="1"}}"#);
    assert_eq!(metric(hosted.server.metrics(), &name), 4, "they count as others do");
}

#[test]
fn redirects_of_vertex_ai_read_what_other_ports_show_and_change_nothing() {
    let hosted = serve(&["--allow-client-shm=true"]);
    let (plain, ..) = requests();
    let redirected = |to: &str, body: &[u8]| ask(hosted.vertex_ai, "POST", "/predict", &[(REDIRECT, to)], body);
    for (to, method) in [
        ("v2", "GET"),
        ("v2/models/identity_int8", "GET"),
        ("v2/models/identity_int8/config", "GET"),
        ("v2/health/live", "GET"),
        ("v2/health/ready", "GET"),
        ("v2/models/identity_int8/ready", "GET"),
        ("v2/models/identity_int8/stats", "GET"),
        ("v2/systemsharedmemory/status", "GET"),
        ("v2/repository/index", "POST"),
        ("v2/models/none", "GET"),
    ] {
        let direct = ask(hosted.server.http(), method, &format!("/{to}"), &[], b"");
        let led = redirected(to, b"");
        assert_eq!((led.status, text(&led)), (direct.status, text(&direct)), "{to}");
    }
    assert!(text(&redirected("metrics", b"")).contains("nv_inference_count"));
    let answer = redirected("v2/models/identity_square/versions/1/infer", &{
        let mut value: Value = serde_json::from_slice(&plain).unwrap();
        value["inputs"][0]["shape"] = json!([1, 1, 2]);
        value.to_string().into_bytes()
    });
    assert_eq!(answer.status, 200, "{}", text(&answer));
    for closed in [
        "v2/repository/models/identity_fp32/unload",
        "v2/repository/models/identity_fp32/load",
        "v2/systemsharedmemory/unregister",
        "v2/cudasharedmemory/region/r/register",
    ] {
        assert_eq!(redirected(closed, b"{}").status, 403, "{closed}");
    }
    assert_eq!(ask(hosted.server.http(), "GET", "/v2/models/identity_fp32/ready", &[], b"").status, 200);
    for nowhere in ["v2/logging", "v2/trace/setting", "nothing", "/v2", ""] {
        assert_eq!(redirected(nowhere, b"{}").status, 400, "{nowhere}");
    }
    let get = ask(hosted.vertex_ai, "GET", "/predict", &[(REDIRECT, "v2")], b"");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
}

/// Port, path, redirect, and the category that each belongs to.
pub(crate) const ALIASES: &[(bool, &str, &str, &str)] = &[
    (false, "/ping", "", "health"),
    (false, "/invocations", "", "inference"),
    (false, "/models", "", "model-repository"),
    (false, "/models/", "", "model-repository"),
    (false, "/models/a", "", "model-repository"),
    (false, "/models/a/invoke", "", "inference"),
    (true, "/health", "", "health"),
    (true, "/predict", "", "inference"),
    (true, "/predict", "v2", "metadata"),
    (true, "/predict", "v2/health/live", "health"),
    (true, "/predict", "v2/models/m", "metadata"),
    (true, "/predict", "v2/models/m/ready", "health"),
    (true, "/predict", "v2/models/m/infer", "inference"),
    (true, "/predict", "v2/models/%6d/infer", "inference"),
    (true, "/predict", "v2/models/m/versions/1/infer", "inference"),
    (true, "/predict", "v2/models/m/config", "model-config"),
    (true, "/predict", "v2/models/m/stats", "statistics"),
    (true, "/predict", "v2/models/stats", "statistics"),
    (true, "/predict", "metrics", "statistics"),
    (true, "/predict", "v2/repository/index", "model-repository"),
    (true, "/predict", "v2/repository/r/index", "model-repository"),
    (true, "/predict", "v2/repository/models/m/load", "model-repository"),
    (true, "/predict", "v2/repository/models/m/unload", "model-repository"),
    (true, "/predict", "v2/systemsharedmemory/status", "shared-memory"),
    (true, "/predict", "v2/systemsharedmemory/region/r/register", "shared-memory"),
    (true, "/predict", "v2/cudasharedmemory/unregister", "shared-memory"),
];

#[test]
fn what_is_restricted_is_so_by_every_alias_and_method() {
    let categories =
        ["health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics"];
    let flags = categories.map(|category| format!("--http-restricted-api={category}:key-{category}=s3cret"));
    let hosted = serve(&flags.each_ref().map(String::as_str));
    let mut differences = Vec::new();
    let mut asked = 0;
    for (is_vertex, path, redirect, category) in ALIASES {
        let address = if *is_vertex { hosted.vertex_ai } else { hosted.sagemaker };
        let key = format!("key-{category}");
        let refused = format!(r#"{{"error":"This API is restricted, expecting header '{key}'"}}"#);
        let other = if *category == "health" { "key-metadata" } else { "key-health" };
        for method in ["GET", "POST", "DELETE", "PUT", "OPTIONS", "FOO"] {
            for (name, value, is_open) in [
                ("x", "y", false),
                (&key, "", false),
                (&key, "other", false),
                (other, "s3cret", false),
                (&key, "s3cret", true),
            ] {
                let mut fields = vec![(name, value)];
                fields.extend((!redirect.is_empty()).then_some((REDIRECT, *redirect)));
                let answer = ask(address, method, path, &fields, b"{}");
                let is_refused = answer.status == 403 && text(&answer) == refused;
                asked += 1;
                if is_refused == is_open {
                    let said = text(&answer);
                    differences.push(format!("{method} {path} {redirect} {name}={value}: {} {said}", answer.status));
                }
            }
        }
    }
    assert_eq!(asked, ALIASES.len() * 6 * 5);
    assert_eq!(differences, Vec::<String>::new());
    assert!(!hosted.server.log().contains("s3cret"));
}

const STEPS: &str = "platform: 'ensemble' max_batch_size: 8 input { name: 'A' data_type: TYPE_FP32 dims: -1 }
    output { name: 'B' data_type: TYPE_FP32 dims: -1 } ensemble_scheduling { step {
    model_name: 'hosted_step' model_version: -1 input_map { key: 'INPUT0' value: 'A' }
    output_map { key: 'OUTPUT0' value: 'B' } } }";
const STEP: &str = "backend: 'identity' max_batch_size: 8 input { name: 'INPUT0' data_type: TYPE_FP32 dims: -1 }
    output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: -1 }";

#[test]
fn sagemaker_loads_models_by_their_paths_invokes_and_unloads_them() {
    let host = Folder::new("sagemaker");
    let at = |path: &str| host.path().join(path);
    repository::add(&at("a1"), "model", &format!("name: 'any' {STEP}"), None);
    repository::add(&at("b2/model"), "all", STEPS, None);
    repository::add(&at("b2/model"), "hosted_step", STEP, None);
    repository::add(&at("c3/model"), "all", STEPS, None);
    repository::add(&at("c3/model"), "hosted_step", STEP, None);
    repository::add(&at("d4"), "model", "backend: 'none'", None);
    let root = host.path().to_str().unwrap();
    let flag = format!("--sagemaker-models-directory={root}");
    let hosted = serve(&[&flag, "--strict-readiness=false"]);
    let ask = |method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]| {
        ask(hosted.sagemaker, method, path, fields, body)
    };
    let load_as = |name: &str, path: &str, fields: &[(&str, &str)]| {
        let body = json!({"model_name": name, "url": format!("{root}/{path}")}).to_string();
        let answer = ask("POST", "/models", fields, body.as_bytes());
        (answer.status, text(&answer))
    };
    let load = |name: &str, path: &str| load_as(name, path, &[]);
    let get = |path: &str| {
        let answer = ask("GET", path, &[], b"");
        (answer.status, serde_json::from_slice::<Value>(&answer.body).unwrap_or_default())
    };
    assert_eq!(get("/models"), (200, json!({"models": []})), "the server's own are not the host's");
    assert_eq!(load("first", "a1/model"), (200, String::new()));
    assert_eq!(load("first", "a1/model").0, 409);
    assert_eq!(load(MODEL, "a1/model").0, 409, "the name of a model of the server");
    let first = json!({"modelName": "first", "modelUrl": format!("{root}/a1")});
    assert_eq!(get("/models"), (200, json!({"models": [first]})));
    assert_eq!(get("/models/first"), (200, first));
    assert_eq!(get(&format!("/models/{MODEL}")).0, 404);
    let (plain, size, binary) = requests();
    let answer = ask("POST", "/models/first/invoke", &[], &plain);
    let value: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, &value["model_name"]), (200, &json!("first")));
    let fields = [("Content-Type", format!("{SAGEMAKER_BINARY}{size}"))];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer = ask("POST", "/models/first/invoke", &fields, &binary);
    assert!(answer.header("content-type").is_some_and(|value| value.starts_with(SAGEMAKER_BINARY)));
    assert_eq!(ask("POST", "/models/none/invoke", &[], &plain).status, 404);
    assert_eq!(ask("POST", &format!("/models/{MODEL}/invoke"), &[], &plain).status, 404, "not the host's");

    // A model that a separate process tries first.
    repository::copy(&hosted.models.path().join("addsub"), &at("f6/model")).unwrap();
    assert_eq!(load("f6", "f6/model"), (200, String::new()));
    assert_eq!(ask("DELETE", "/models/f6", &[], b"").status, 200);

    // A hash, and the name of the archive that it stands for.
    let target = [("X-Amzn-SageMaker-Target-Model", "all.tar.gz")];
    assert_eq!(load_as("b2", "b2/model", &target), (200, String::new()));
    let ensemble = String::from_utf8(plain.clone()).unwrap().replace("INPUT0", "A");
    let answer = ask("POST", "/models/b2/invoke", &target, ensemble.as_bytes());
    let value: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, &value["model_name"]), (200, &json!("all.tar.gz")), "{value}");
    assert_eq!(get("/models/b2"), (200, json!({"modelName": "b2", "modelUrl": format!("{root}/b2/model")})));
    let (status, said) = load("c3", "c3/model");
    assert_eq!(status, 409, "{said}");
    assert!(said.contains("its step 'hosted_step' has the name of a model that serves from another path"), "{said}");

    for (path, want) in [
        ("d4/model", "'none'"),
        ("e5/model", "cannot open"),
        ("../model", "Invalid \\\"url\\\""),
        ("a1", "Invalid \\\"url\\\""),
        ("a1/model/../../b2/model", "Invalid \\\"url\\\""),
    ] {
        let (status, said) = load("wrong", path);
        assert!(status == 400 && said.contains(want), "{path}: {status} {said}");
    }
    assert_eq!(get("/models").1["models"].as_array().unwrap().len(), 2, "what failed is not listed");

    for name in ["first", "b2"] {
        assert_eq!(ask("DELETE", &format!("/models/{name}"), &[], b"").status, 200, "{name}");
        assert_eq!(ask("DELETE", &format!("/models/{name}"), &[], b"").status, 404, "{name}");
        assert_eq!(ask("POST", &format!("/models/{name}/invoke"), &[], &plain).status, 404, "{name}");
    }
    let ready = http::get(hosted.server.http(), "/v2/models/hosted_step/ready").unwrap();
    assert_ne!(ready.status, 200, "the step went with its ensemble");
    assert_eq!(get("/models"), (200, json!({"models": []})));
    assert_eq!(load("first", "a1/model"), (200, String::new()), "again");
    assert_eq!(load("c3", "c3/model"), (200, String::new()), "its step's name is free");
    assert_eq!(ask("DELETE", &format!("/models/{MODEL}"), &[], b"").status, 404, "the server's own stay");
}

#[test]
fn a_front_end_that_cannot_serve_ends_the_start() {
    let models = repository::write(Flavour::Deuteron);
    type Row<'a> = (&'a [&'a str], &'a [&'a str], &'a str);
    let rows: [Row<'_>; 4] = [
        (&[], &["AIP_PREDICT_ROUTE"], "API_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        (&[], &["AIP_HEALTH_ROUTE"], "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
        (&["--vertex-ai-default-model=subadd"], &[], "Expect the default model 'subadd' is loaded"),
        (&[], &[], "Expect the model repository contains only a single model if default model is not specified"),
    ];
    for (flags, removed, want) in rows {
        let (mut command, ..) = command(models.path(), flags);
        for name in removed {
            command.env_remove(name);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(want), "{flags:?} {removed:?}: {said}");
    }
}

#[test]
fn a_container_for_predictions_serves_them_and_what_is_asked_for() {
    let models = Folder::new("prediction");
    repository::add(models.path(), "only", STEP, None);
    let (mut command, ports, [sagemaker, vertex_ai]) = command(models.path(), &["--allow-http=true"]);
    command.env("AIP_MODE", "PREDICTION");
    let server = Server::start(command, ports);
    let (plain, ..) = requests();
    let answer = ask(vertex_ai, "POST", "/predict", &[], &plain);
    let value: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, &value["model_name"]), (200, &json!("only")), "the only model is the default");
    assert!(http::get(server.grpc(), "/v2").is_err(), "gRPC was not asked for");
    assert!(server.log().contains("Started Vertex AI HTTPService at "), "{}", server.log());
    assert!(server.log().contains("Started Sagemaker HTTPService at "), "{}", server.log());
    // The default model of SageMaker is not there.
    let answer = ask(sagemaker, "POST", "/invocations", &[], &plain);
    assert_eq!((answer.status, text(&answer).contains("Request for unknown model: 'identity_fp32'")), (404, true));
}
