//! `ModelStreamInfer` on the server as a process: errors that end a stream, statistics of each response, and answers
//! from the response cache.

use crate::support::folder::Folder;
use crate::support::grpc::Client;
use crate::support::protobuf::Message;
use crate::support::server::Server;
use crate::support::{http, metrics, repository};
use deuteron::wire::proto::inference as proto;
use prost::Message as _;
use serde_json::{Value, json};

const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
const CACHED: &str = "backend: 'identity' response_cache { enable: true }
    input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";

fn server(flags: &[&str]) -> (Folder, Server) {
    let folder = Folder::new("streams");
    repository::add(folder.path(), "square", repository::SQUARE, None);
    repository::add(folder.path(), "cached", CACHED, None);
    let server = Server::deuteron(folder.path(), flags);
    (folder, server)
}

fn request(model: &str, value: i32) -> Vec<u8> {
    let input = Message::new().bytes(1, "IN").bytes(2, "INT32").packed(3, &[1]);
    Message::new().bytes(1, model).bytes(3, "r").message(5, input).bytes(7, value.to_le_bytes()).into_bytes()
}

/// The received numbers, or the errors in band, and the status at the end.
fn play(server: &Server, metadata: &[(&'static str, &'static str)], requests: Vec<Vec<u8>>) -> (Vec<String>, String) {
    let (came, end) = Client::new(server.grpc()).stream(STREAM, metadata, requests);
    let shown = |answer: Vec<u8>| {
        let answer = proto::ModelStreamInferResponse::decode(answer.as_slice()).unwrap();
        let response = answer.infer_response.unwrap();
        assert_eq!(response.id, "r");
        match response.raw_output_contents.first() {
            Some(raw) => i32::from_le_bytes(raw[..].try_into().unwrap()).to_string(),
            None => answer.error_message,
        }
    };
    let end = end.map_or_else(|status| format!("{:?} {}", status.code(), status.message()), |()| "Ok".to_owned());
    (came.into_iter().map(shown).collect(), end)
}

#[test]
fn an_error_of_a_model_ends_a_stream_that_asks_for_it_and_is_in_band_otherwise() {
    let (_folder, server) = server(&["--shards=1"]);
    let requests = || vec![request("square", 1), request("nope", 1), request("square", -1)];
    let text = "model 'square' answers IN times, and IN is -1";
    let unknown = "Request for unknown model: 'nope' is not found";
    let (mut came, end) = play(&server, &[], requests());
    came.sort();
    assert_eq!((came, end.as_str()), (vec!["1".to_owned(), unknown.to_owned(), text.to_owned()], "Ok"));
    let (came, end) = play(&server, &[("triton_grpc_error", "true")], vec![request("square", -1)]);
    assert_eq!((came, end), (vec![], format!("InvalidArgument {text}")));
    // An error that no request of a model caused is in band, as Triton has it.
    let (came, end) = play(&server, &[("triton_grpc_error", "true")], vec![request("nope", 1), request("square", 1)]);
    assert_eq!((came.len(), end.as_str()), (2, "Ok"));
    let (came, end) = play(&server, &[("triton_grpc_error", "false")], vec![request("square", -1)]);
    assert_eq!((came, end.as_str()), (vec![text.to_owned()], "Ok"));
}

#[test]
fn statistics_tell_of_each_response_of_a_decoupled_model() {
    let (_folder, server) = server(&["--shards=1"]);
    for value in [2, 3, 0, -1] {
        play(&server, &[], vec![request("square", value)]);
    }
    let answer = http::get(server.http(), "/v2/models/square/stats").unwrap();
    let statistics: Value = serde_json::from_slice(&answer.body).unwrap();
    let responses = &statistics["model_stats"][0]["response_stats"];
    let counts = |place: &str| {
        let names = ["compute_infer", "compute_output", "success", "fail", "empty_response", "cancel"];
        names.map(|name| responses[place][name]["count"].as_u64().unwrap())
    };
    assert_eq!(counts("0"), [4, 2, 2, 1, 1, 0], "{responses}");
    assert_eq!(counts("1"), [2, 2, 2, 0, 0, 0], "{responses}");
    assert_eq!(counts("2"), [2, 1, 1, 0, 1, 0], "{responses}");
    assert_eq!(counts("3"), [1, 0, 0, 0, 1, 0], "{responses}");
    assert_eq!(responses.as_object().unwrap().len(), 4);
    let method = "/inference.GRPCInferenceService/ModelStatistics";
    let answer = Client::new(server.grpc()).call(method, &Message::new().bytes(1, "square").into_bytes()).unwrap();
    let answer = proto::ModelStatisticsResponse::decode(answer.as_slice()).unwrap();
    let of_grpc = &answer.model_stats[0].response_stats;
    assert_eq!((of_grpc.len(), of_grpc["3"].empty_response.as_ref().unwrap().count), (4, 1));
    let answer = http::get(server.http(), "/v2/models/cached/stats").unwrap();
    let statistics: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(statistics["model_stats"][0]["response_stats"], json!({}), "of a model that is not decoupled");
}

#[test]
fn a_response_that_is_an_error_is_a_failure_though_the_model_goes_on() {
    let folder = Folder::new("failing-parts");
    let counts = [("FAIL", 2), ("EMPTY", 1)].map(|(what, count)| {
        format!("parameters {{ key: 'CUSTOM_{what}_COUNT' value {{ string_value: '{count}' }} }}")
    });
    repository::add(folder.path(), "square", &format!("{}\n{}", repository::SQUARE, counts.concat()), None);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    play(&server, &[], vec![request("square", 4)]);
    let answer = http::get(server.http(), "/v2/models/square/stats").unwrap();
    let statistics: Value = serde_json::from_slice(&answer.body).unwrap();
    let responses = &statistics["model_stats"][0]["response_stats"];
    let became = |place: &str| {
        ["success", "fail", "empty_response"].map(|name| responses[place][name]["count"].as_u64().unwrap())
    };
    assert_eq!(["0", "1", "2", "3"].map(became), [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]], "{responses}");
}

#[test]
fn a_stream_is_answered_by_the_response_cache() {
    let (_folder, server) = server(&["--shards=1", "--cache-config=local,size=1000000"]);
    let (came, end) = play(&server, &[], vec![request("cached", 7)]);
    assert_eq!((came, end.as_str()), (vec!["7".to_owned()], "Ok"));
    let (came, end) = play(&server, &[], vec![request("cached", 7), request("cached", 8)]);
    assert_eq!((came, end.as_str()), (vec!["7".to_owned(), "8".to_owned()], "Ok"));
    let count = |name: &str| metrics::metric(server.metrics(), &format!("{name}{{model=\"cached\",version=\"1\"}}"));
    assert_eq!((count("nv_cache_num_hits_per_model"), count("nv_cache_num_misses_per_model")), (1, 2));
    // A unary call is answered from a stream's response.
    let body = br#"{"inputs":[{"name":"IN","shape":[1],"datatype":"INT32","data":[8]}]}"#;
    assert_eq!(http::post(server.http(), "/v2/models/cached/infer", body).unwrap().status, 200);
    assert_eq!(count("nv_cache_num_hits_per_model"), 2);
}
