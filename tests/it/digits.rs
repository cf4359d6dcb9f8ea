//! The example model, on all of its held-out scans: the answers over HTTP and gRPC agree with the
//! engine called directly, and the accuracy is that of the README.

use std::path::{Path, PathBuf};

use crate::support::protobuf::Message;
use crate::support::server::Server;
use deuteron::tensor::strings::Strings;
use prost::Message as _;
use rten_tensor::AsView as _;

const SCAN: usize = 64;
const CLASSES: usize = 10;
const ROWS: usize = 60;

struct Scan {
    pixels: Vec<f32>,
    label: usize,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/digits")
}

fn held_out() -> Vec<Scan> {
    let bytes = std::fs::read(folder().join("held_out.bin")).unwrap();
    let scans: Vec<_> = bytes
        .chunks_exact(SCAN + 1)
        .map(|scan| Scan {
            pixels: scan[..SCAN].iter().map(|pixel| f32::from(*pixel)).collect(),
            label: usize::from(scan[SCAN]),
        })
        .collect();
    assert_eq!(scans.len(), 540);
    scans
}

fn server() -> Server {
    Server::deuteron(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models"), &["--shards=1"])
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]])).collect()
}

fn raw(scans: &[Scan]) -> Vec<u8> {
    scans.iter().flat_map(|scan| &scan.pixels).flat_map(|pixel| pixel.to_le_bytes()).collect()
}

/// The engine's answer without a server around it.
fn direct(scans: &[Scan]) -> Vec<f32> {
    let model = rten::Model::load_file(folder().join("1/model.onnx")).unwrap();
    let (input, output) = (model.node_id("pixels").unwrap(), model.node_id("probabilities").unwrap());
    let mut all = Vec::new();
    for scan in scans {
        let pixels = rten_tensor::Tensor::from_data(&[1, SCAN], scan.pixels.clone());
        let mut outputs = model.run(vec![(input, pixels.into())], &[output], None).unwrap();
        let probabilities: rten_tensor::Tensor<f32> = outputs.remove(0).try_into().unwrap();
        all.extend(probabilities.iter().copied());
    }
    all
}

/// The probabilities of a batch, by the binary extension over HTTP.
fn by_http(server: &Server, scans: &[Scan]) -> Vec<f32> {
    let rows = scans.len();
    let head = format!(
        r#"{{"inputs":[{{"name":"pixels","datatype":"FP32","shape":[{rows},{SCAN}],"parameters":{{"binary_data_size":{}}}}}],"parameters":{{"binary_data_output":true}}}}"#,
        rows * SCAN * 4
    );
    let body = [head.as_bytes(), &raw(scans)].concat();
    let length = head.len().to_string();
    let headers = [("Inference-Header-Content-Length", length.as_str())];
    let request = crate::support::http::request("POST", "/v2/models/digits/infer", &headers, &body);
    let response = crate::support::http::exchange(server.http(), &request).unwrap();
    assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
    let json: usize = response.header("Inference-Header-Content-Length").unwrap().parse().unwrap();
    floats(&response.body[json..])
}

fn grpc_request(scans: &[Scan], classes: i64) -> Vec<u8> {
    let rows = i64::try_from(scans.len()).unwrap();
    let input = Message::new().bytes(1, "pixels").bytes(2, "FP32").packed(3, &[rows, 64]);
    let request = Message::new().bytes(1, "digits").message(5, input);
    let wanted = Message::new().bytes(1, "probabilities");
    let wanted = if classes == 0 {
        wanted
    } else {
        let parameter = Message::new().bytes(1, "classification").message(2, Message::new().int(2, classes));
        wanted.message(2, parameter)
    };
    request.message(6, wanted).bytes(7, raw(scans)).into_bytes()
}

/// The raw contents of the one output, over gRPC.
fn by_grpc(client: &crate::support::grpc::Client, scans: &[Scan], classes: i64) -> Vec<u8> {
    let answer = client.call("/inference.GRPCInferenceService/ModelInfer", &grpc_request(scans, classes)).unwrap();
    let answer = wire::proto::inference::ModelInferResponse::decode(&answer[..]).unwrap();
    assert_eq!(answer.raw_output_contents.len(), 1);
    answer.raw_output_contents[0].to_vec()
}

fn best(row: &[f32]) -> usize {
    (0..CLASSES).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap()
}

#[test]
fn every_held_out_scan_gets_the_engines_answer_over_http_and_grpc() {
    let scans = held_out();
    let server = server();
    let client = crate::support::grpc::Client::new(server.grpc());
    let want = direct(&scans);
    let http: Vec<f32> = scans.chunks(ROWS).flat_map(|scans| by_http(&server, scans)).collect();
    let grpc: Vec<f32> = scans.chunks(ROWS).flat_map(|scans| floats(&by_grpc(&client, scans, 0))).collect();
    let agrees =
        |got: &[f32]| got.len() == want.len() && got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-5);
    assert!(agrees(&http) && agrees(&grpc));
    let singles: Vec<f32> = scans.iter().flat_map(|scan| by_http(&server, std::slice::from_ref(scan))).collect();
    assert_eq!(singles, want, "one row at a time the very same bits");

    let right = scans.iter().zip(want.chunks(CLASSES)).filter(|(scan, row)| best(row) == scan.label).count();
    let accuracy = format!("{:.2} %", right as f64 * 100.0 / scans.len() as f64);
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    assert!(readme.contains(&accuracy), "the README does not tell the accuracy of {accuracy}");
}

#[test]
fn classification_over_grpc_names_the_class_that_the_probabilities_name() {
    let names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    let scans = held_out();
    let server = server();
    let client = crate::support::grpc::Client::new(server.grpc());
    let want = direct(&scans);
    let mut classes = Vec::new();
    for scans in scans.chunks(ROWS) {
        let contents = by_grpc(&client, scans, 1);
        classes.extend(Strings::new(&contents).map(|text| String::from_utf8(text.unwrap().to_vec()).unwrap()));
    }
    assert_eq!(classes.len(), scans.len());
    for (text, row) in classes.iter().zip(want.chunks(CLASSES)) {
        let index = best(row);
        assert!(text.ends_with(&format!(":{index}:{}", names[index])), "{text}, expected {index}");
    }
}

#[test]
fn the_readmes_request_files_are_answered_with_a_seven() {
    let server = server();
    let read = |name: &str| std::fs::read(folder().join(name)).unwrap();
    let response = crate::support::http::post(server.http(), "/v2/models/digits/infer", &read("request.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    let output = &json["outputs"][0];
    assert_eq!((&output["datatype"], &output["shape"]), (&"BYTES".into(), &serde_json::json!([1, 3])), "{json}");
    let top: Vec<_> = output["data"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    assert!(top[0].starts_with("0.99") && top[0].ends_with(":7:seven"), "{top:?}");

    for (file, length) in [("request.bin", "172"), ("raw.bin", "0")] {
        let headers = [("Inference-Header-Content-Length", length)];
        let request = crate::support::http::request("POST", "/v2/models/digits/infer", &headers, &read(file));
        let response = crate::support::http::exchange(server.http(), &request).unwrap();
        assert_eq!(response.status, 200, "{file}: {}", String::from_utf8_lossy(&response.body));
        let head: usize =
            response.header("Inference-Header-Content-Length").map_or(0, |length| length.parse().unwrap());
        if file == "raw.bin" {
            assert_eq!(best(&floats(&response.body[head..])), 7);
        }
    }
}
