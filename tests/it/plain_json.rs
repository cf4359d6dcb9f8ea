//! Requests that a person or a page of a browser writes by hand: bytes as base64, lists and batches of `generate`, and the
//! lists of models by GET.

use serde_json::{Value, json};

use crate::support::folder::Folder;
use crate::support::http;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

fn serve() -> (Folder, Server) {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    (folder, server)
}

fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let answer = http::post(server.http(), path, body.to_string().as_bytes()).unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

#[test]
fn bytes_are_base64_in_both_directions_where_a_parameter_says_so() {
    let (_folder, server) = serve();
    let base64 = json!({"content_type": "base64"});
    let infer = |input_parameters: &Value, data: Value, outputs: Value| {
        let input = json!({"name": "INPUT0", "datatype": "BYTES", "shape": [2, 1], "data": data, "parameters": input_parameters});
        post(&server, "/v2/models/identity_bytes_one/infer", &json!({"inputs": [input], "outputs": outputs}))
    };
    let asked = json!([{"name": "OUTPUT0", "parameters": base64}]);
    let (status, answer) = infer(&base64, json!(["/wA=", "YQ"]), asked.clone());
    let output = json!({
        "name": "OUTPUT0", "datatype": "BYTES", "shape": [2, 1], "parameters": base64, "data": ["/wA=", "YQ=="]
    });
    assert_eq!((status, &answer["outputs"]), (200, &json!([output])));
    // In one direction alone.
    let (_, answer) = infer(&base64, json!(["YQ==", "Yg=="]), json!([{"name": "OUTPUT0"}]));
    assert_eq!(answer["outputs"][0]["data"], json!(["a", "b"]));
    let (_, answer) = infer(&json!({}), json!(["a", ""]), asked);
    assert_eq!(answer["outputs"][0]["data"], json!(["YQ==", ""]));
    let (status, answer) = infer(&base64, json!(["YQ==", "a b*"]), json!([{"name": "OUTPUT0"}]));
    let text = "element 1 of input 'INPUT0' is not base64 (RFC 4648, section 4), which its content_type states";
    assert_eq!((status, &answer["error"]), (400, &json!(text)));
}

#[test]
fn generate_takes_lists_as_batches_and_answers_them_as_such() {
    let (_folder, server) = serve();
    let generate = |model: &str, body: Value| post(&server, &format!("/v2/models/{model}/generate"), &body);
    let check = |model: &str, body: Value, want: Value| {
        let (status, answer) = generate(model, body.clone());
        assert_eq!((status, &answer["OUTPUT0"]), (200, &want), "{model} {body}: {answer}");
    };
    // A batch of strings, one a row, and one row of several.
    check("identity_bytes_one", json!({"INPUT0": ["a", "b", "c"]}), json!(["a", "b", "c"]));
    check("identity_bytes_one", json!({"INPUT0": [["a"], ["b"]]}), json!([["a"], ["b"]]));
    check("identity_bytes_one", json!({"INPUT0": "a"}), json!("a"));
    check("identity_bytes", json!({"INPUT0": ["a", "b"]}), json!(["a", "b"]));
    check("identity_bytes", json!({"INPUT0": [["a", "b"], ["c", "d"]]}), json!([["a", "b"], ["c", "d"]]));
    // Vectors of a fixed size: a flat list is cut into rows.
    check("identity_raw", json!({"INPUT0": [1, 2, 3, 4, 5, 6, 7, 8]}), json!([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
    check(
        "identity_raw",
        json!({"INPUT0": [[1, 2, 3, 4], [5, 6, 7, 8]]}),
        json!([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]),
    );
    let (status, answer) = generate("identity_bytes_one", json!({"INPUT0": vec!["a"; 9]}));
    assert_eq!(status, 400, "more rows than max_batch_size: {answer}");
    let rows = json!({"INPUT0": [[1], [2]], "INPUT1": [[3], [4]]});
    let (status, answer) = generate("identity_two", rows);
    assert_eq!((status, &answer["OUTPUT1"]), (200, &json!([[3], [4]])), "{answer}");
}

#[test]
fn models_and_the_index_are_read_by_get() {
    let (_folder, server) = serve();
    let get = |path: &str| -> Value { serde_json::from_slice(&http::get(server.http(), path).unwrap().body).unwrap() };
    let models = get("/v2/models");
    assert!(models["models"].as_array().unwrap().contains(&json!("addsub")), "{models}");
    let index = get("/v2/repository/index");
    assert_eq!((200, index.clone()), post(&server, "/v2/repository/index", &json!({})));
    assert_eq!(index.as_array().unwrap().len(), models["models"].as_array().unwrap().len());
}
