//! Rights that the operator gives to clients: restricted parts of the interface, over every protocol and by every path
//! to them; header fields that reach models; and the answer to a wrong method.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::python_models::zoo::Models;
use crate::support::folder::Folder;
use crate::support::python::Environment;
use crate::support::repository::{self, Flavour};
use crate::support::server::{Ports, Server};
use crate::support::skipped::skip_unless_ci;
use crate::support::{h2, http};

/// Every category with its paths and RPCs, and true for an RPC whose call ends by itself.
pub(crate) const HTTP: &[(&str, &[&str])] = &[
    ("health", &["/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/versions/1/ready"]),
    (
        "metadata",
        &[
            "/",
            "/v2",
            "/v2?verbose=1",
            "/v2/docs",
            "/v2/docs/openapi.json",
            "/v2/models/m",
            "/v2/models/m/versions/1",
            "/v2/models/m/docs/openapi.json",
        ],
    ),
    (
        "inference",
        &[
            "/v2/models/m/infer",
            "/v2/models/m/versions/1/infer",
            "/v2/models/m/generate",
            "/v2/models/m/versions/1/generate_stream",
        ],
    ),
    (
        "shared-memory",
        &[
            "/v2/systemsharedmemory/status",
            "/v2/systemsharedmemory/region/r/register",
            "/v2/cudasharedmemory/unregister",
        ],
    ),
    ("model-config", &["/v2/models/m/config", "/v2/models/m/versions/1/config"]),
    (
        "model-repository",
        &[
            "/v2/repository/index",
            "/v2/repository/r/index",
            "/v2/repository/models/m/load",
            "/v2/repository/models/m/unload",
            "/v2/repository/r/models/m/load",
        ],
    ),
    ("statistics", &["/v2/models/stats", "/v2/models/m/stats", "/v2/models/m/versions/1/stats"]),
    ("trace", &["/v2/trace/setting", "/v2/models/m/trace/setting"]),
    ("logging", &["/v2/logging"]),
];

pub(crate) const GRPC: &[(&str, &str)] = &[
    ("health", "ServerLive ServerReady ModelReady"),
    ("metadata", "ServerMetadata ModelMetadata"),
    ("inference", "ModelInfer ModelStreamInfer"),
    ("shared-memory", "SystemSharedMemoryStatus SystemSharedMemoryRegister SystemSharedMemoryUnregister"),
    ("shared-memory", "CudaSharedMemoryStatus CudaSharedMemoryRegister CudaSharedMemoryUnregister"),
    ("model-config", "ModelConfig"),
    ("model-repository", "RepositoryIndex RepositoryModelLoad RepositoryModelUnload"),
    ("statistics", "ModelStatistics"),
    ("trace", "TraceSetting"),
    ("logging", "LogSettings"),
];

const SECRET: &str = "v=a:1";

/// Flags that restrict each category with its own key.
fn restrict_all() -> Vec<String> {
    let flags = HTTP.iter().flat_map(|(category, _)| {
        [
            format!("--http-restricted-api={category}:http-{category}={SECRET}"),
            format!("--grpc-restricted-protocol={category}:{category}={SECRET}"),
        ]
    });
    flags.collect()
}

/// A server of the models of the tests.
fn serve(flags: &[String]) -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let server = Server::deuteron(folder.path(), &flags);
    (folder, server)
}

#[test]
fn a_restricted_endpoint_answers_those_who_have_its_key_by_any_protocol_and_method() {
    let (_folder, server) = serve(&restrict_all());
    let mut asked = 0;
    for (category, paths) in HTTP {
        let key = format!("http-{category}");
        let want = format!(r#"{{"error":"This API is restricted, expecting header '{key}'"}}"#);
        for path in *paths {
            let check = |way: &str, status: u16, body: &[u8], is_open: bool| {
                let body = String::from_utf8_lossy(body);
                assert_eq!(status != 403 && body != want, is_open, "{way} {path}: {status} {body}");
                assert_eq!(status == 403, body == want, "{way} {path}: {status} {body}");
            };
            let other = HTTP.iter().find(|(other, _)| other != category).unwrap().0;
            let other = format!("http-{other}");
            for (fields, is_open) in [
                (vec![], false),
                (vec![(key.as_str(), "v=a:2")], false),
                (vec![(key.as_str(), "")], false),
                (vec![(other.as_str(), SECRET)], false),
                (vec![("triton-grpc-protocol-inference", SECRET)], false),
                (vec![(key.as_str(), SECRET)], true),
            ] {
                // POST to the root is a text for the only model: an inference, checked below.
                let is_root = *path == "/";
                for method in ["GET", "POST", "OPTIONS"].into_iter().filter(|method| !is_root || *method != "POST") {
                    for address in [server.http(), server.grpc()] {
                        let answer = http::exchange(address, &http::request(method, path, &fields, b"{}")).unwrap();
                        check(&format!("{method} {address} {fields:?}"), answer.status, &answer.body, is_open);
                        asked += 1;
                    }
                }
                for address in [server.http(), server.grpc()].into_iter().filter(|_| !is_root) {
                    let (status, _, body) = h2::post_with(address, path, &fields, b"{}");
                    check(&format!("HTTP/2 {address} {fields:?}"), status, &body, is_open);
                }
            }
        }
    }
    assert_eq!(asked, 32 * 6 * 6 - 6 * 2);
    for (fields, is_open) in [(vec![("http-metadata", SECRET)], false), (vec![("http-inference", SECRET)], true)] {
        let answer = http::exchange(server.http(), &http::request("POST", "/", &fields, b"{}")).unwrap();
        assert_eq!(answer.status != 403, is_open, "POST /: {}", String::from_utf8_lossy(&answer.body));
    }
    let metrics = http::get(server.metrics(), "/metrics").unwrap();
    assert_eq!(metrics.status, 200, "metrics are not restricted");
    assert_eq!(http::get(server.http(), "/v3").unwrap().status, 404, "what is nowhere needs no key");
    assert!(!server.log().contains(SECRET), "no secret is logged");
}

#[test]
fn a_restricted_rpc_answers_those_who_have_its_key() {
    let (_folder, server) = serve(&restrict_all());
    let call = |path: &str, fields: &[(&str, &str)]| {
        let mut answers = [server.grpc(), server.http()].map(|address| {
            let trailers: BTreeMap<_, _> = h2::call(address, path, fields, &[]);
            let text = |name: &str| trailers.get(name).cloned().unwrap_or_default();
            format!("{} {}", text("grpc-status"), text("grpc-message"))
        });
        assert_eq!(answers[0], answers[1], "{path}: the port makes no difference");
        std::mem::take(&mut answers[0])
    };
    let service = "/inference.GRPCInferenceService";
    let mut rpcs: Vec<_> = GRPC
        .iter()
        .flat_map(|(category, methods)| {
            methods.split(' ').map(move |method| (*category, format!("{service}/{method}")))
        })
        .collect();
    rpcs.extend(["Check", "List", "Watch"].map(|method| ("health", format!("/grpc.health.v1.Health/{method}"))));
    for service in ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"] {
        rpcs.push(("metadata", format!("/{service}/ServerReflectionInfo")));
    }
    for (category, method) in
        [("metadata", "Info/Info"), ("inference", "Embed/Embed"), ("inference", "Embed/EmbedStream")]
    {
        rpcs.push((category, format!("/tei.v1.{method}")));
    }
    assert_eq!(rpcs.len(), 28);
    for (category, path) in rpcs {
        let key = format!("triton-grpc-protocol-{category}");
        // As gRPC encodes a text: other than plain characters are in hexadecimal.
        let want = format!("14 This protocol is restricted, expecting header '{key}'");
        let other = if category == "health" { "trace" } else { "health" };
        let other = format!("triton-grpc-protocol-{other}");
        let (key, other) = (key.as_str(), other.as_str());
        for fields in [&[][..], &[(key, "v=a:2")], &[(key, "")], &[(other, SECRET)], &[(category, SECRET)]] {
            assert_eq!(call(&path, fields), want, "{path} {fields:?}");
        }
        // A permitted watch does not end.
        if !path.ends_with("Watch") {
            let answer = call(&path, &[(key, SECRET)]);
            assert!(!answer.contains("restricted"), "{path}: {answer}");
        }
    }
    assert_eq!(call("/inference.GRPCInferenceService/Nothing", &[]), "12 ");
    assert!(!server.log().contains(SECRET), "no secret is logged");
}

#[test]
fn what_is_wrong_with_a_restriction_ends_the_start_without_its_secret() {
    let folder = repository::write(Flavour::Deuteron);
    for (flags, want) in [
        (
            &[
                "--http-restricted-api=model-repository,health:k1=s3cret",
                "--http-restricted-api=metadata,health:k2=s3cret",
            ][..],
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (&["--http-restricted-api=model-reposit,health:k1=s3cret"], "unknown restricted api 'model-reposit'"),
        (&["--grpc-restricted-protocol=model-reposit:k1=s3cret"], "unknown restricted protocol 'model-reposit'"),
        (
            &["--grpc-restricted-protocol=health:k1=s3cret", "--grpc-restricted-protocol=health:k1=s3cret"],
            "restricted protocol 'health' can not be specified in multiple config groups",
        ),
        (&["--http-restricted-api=health=s3cret"], "option format is '<config name>:<setting>=<value>'"),
        (&["--http-header-forward-pattern=("], "expected a regular expression"),
    ] {
        let output = Server::command(folder.path(), flags, Ports::free()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        assert!(text.contains(want) && !text.contains("s3cret"), "{flags:?}: {text}");
    }
}

#[test]
fn curl_opens_what_is_restricted_with_a_header() {
    let (_folder, server) = serve(&["--http-restricted-api=model-config:admin-key=s3cret".to_owned()]);
    let curl = |more: &[&str]| {
        let url = format!("http://{}/v2/models/identity_fp32/config", server.http());
        let output = Command::new("curl").args(["-s", "-w", "%{http_code}", &url]).args(more).output().ok()?;
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let Some(refused) = curl(&[]) else { return skip_unless_ci("curl is not installed") };
    assert_eq!(refused, r#"{"error":"This API is restricted, expecting header 'admin-key'"}403"#);
    assert!(curl(&["-H", "Admin-Key: s3cret"]).unwrap().ends_with("}200"));
    assert!(curl(&["--http2-prior-knowledge", "-H", "admin-key: s3cret"]).unwrap().ends_with("}200"));
    assert!(curl(&["-X", "FOO"]).unwrap().ends_with("403"), "the key comes before the method");
    assert!(curl(&["-X", "FOO", "-H", "admin-key: s3cret"]).unwrap().ends_with("405"));
}

#[test]
fn a_method_that_is_not_allowed_is_told_which_are() {
    let (_folder, server) = serve(&[]);
    let check = |address, method: &str, path: &str, want: &str| {
        let answer = http::exchange(address, &http::request(method, path, &[], b"")).unwrap();
        assert_eq!((answer.status, answer.header("allow")), (405, Some(want)), "{method} {path}");
    };
    for method in ["POST", "OPTIONS", "DELETE", "PUT", "FOO"] {
        for path in ["/v2", "/v2/health/live", "/v2/models/m/ready", "/v2/models/m/stats", "/v2/models/stats"] {
            check(server.http(), method, path, "GET, HEAD");
        }
        check(server.metrics(), method, "/metrics", "GET, HEAD");
    }
    for method in ["GET", "HEAD", "OPTIONS"] {
        for path in ["/v2/models/m/infer", "/v1/models/m:predict", "/v2/systemsharedmemory/register"] {
            let answer = http::exchange(server.http(), &http::request(method, path, &[], b""));
            if method != "HEAD" {
                assert_eq!(answer.unwrap().header("allow"), Some("POST"), "{method} {path}");
            }
        }
    }
    check(server.http(), "PUT", "/v2/logging", "GET, HEAD, POST");
    let mut connection = http::Connection::open(server.http()).unwrap();
    connection.send(&http::request("HEAD", "/v2/models/m/infer", &[], b"")).unwrap();
    let answer = connection.receive_to("HEAD").unwrap();
    assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")));
    let (status, fields, _) = h2::post_with(server.grpc(), "/v2/health/live", &[], b"");
    assert_eq!((status, fields.get("allow").map(String::as_str)), (405, Some("GET, HEAD")));
}

#[test]
fn header_fields_reach_python_models_ensembles_and_their_calls() {
    let Some(models) = Models::new() else { return };
    let Some(environment) = Environment::shared() else { return };
    let config = "platform: 'ensemble' input { name: 'x' data_type: TYPE_INT32 dims: -1 }
        output { name: 'seen' data_type: TYPE_STRING dims: -1 }
        ensemble_scheduling { step { model_name: 'request_echo' model_version: -1
            input_map { key: 'x' value: 'x' } output_map { key: 'seen' value: 'seen' } } }";
    repository::add(models.path(), "echo_ensemble", config, None);
    let config = "backend: 'python' instance_group { kind: KIND_CPU }
        input { name: 'x' data_type: TYPE_INT32 dims: -1 } output { name: 'seen' data_type: TYPE_STRING dims: -1 }";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
    let caller = fs::read_to_string(folder.join("echo_caller.py")).unwrap();
    let flags = ["--http-header-forward-pattern=^my_.*|sequence_id", "--grpc-header-forward-pattern=my_|sequence_id"];
    let zoo = models.add("echo_caller", config, &caller).with("request_echo").serve(&flags);
    let output = Command::new(environment.python())
        .arg(folder.join("headers.py"))
        .args([zoo.server.http().to_string(), zoo.server.grpc().to_string()])
        .output()
        .expect("the interpreter starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}\n{}", String::from_utf8_lossy(&output.stderr), zoo.server.log());
    assert_eq!(text.lines().filter(|line| line.starts_with("ok ")).count(), 19, "{text}");
    let body =
        br#"{"parameters":{"my_a":"own","b":1},"inputs":[{"name":"x","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    let path = "/v2/models/request_echo/infer";
    let (status, _, answer) = h2::post_with(zoo.server.http(), path, &[("my_a", "2"), ("other", "3")], body);
    let text = String::from_utf8(answer).unwrap();
    assert!(status == 200 && text.contains(r#"parameters {\"b\": 1, \"my_a\": \"2\"}"#), "{status} {text}");
}
