//! Real clients over HTTP/2: tonic, h2load, nghttp, curl and Node, messages of any size, many streams, calls that are
//! cancelled at any point. Clients that are not installed are skipped, but not in CI.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::support::protobuf::Message;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;
use crate::support::skipped::skip_unless_ci;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// The output of a client that ends well; `None` if it is not installed.
fn client(program: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        skip_unless_ci(&format!("{program} is not installed"));
        return None;
    };
    let Output { status, stdout, stderr } = output;
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{program}: {text}\n{}", String::from_utf8_lossy(&stderr));
    Some(text)
}

fn message(raw: &[u8]) -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "UINT8").packed(3, &[1, i64::try_from(raw.len()).unwrap()]);
    Message::new().bytes(1, "identity_uint8").message(5, input).bytes(7, raw).into_bytes()
}

fn metric(server: &Server, name: &str) -> u64 {
    let text = String::from_utf8(crate::support::http::get(server.metrics(), "/metrics").unwrap().body).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
}

#[test]
fn messages_of_any_size_come_back_bit_for_bit() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--grpc-max-message-size=200000000"]);
    let client = crate::support::grpc::Client::new(server.grpc());
    assert_eq!(client.call("/inference.GRPCInferenceService/ServerLive", &[]).unwrap(), [8, 1]);
    for size in [1, 2, 65_535, 65_536, 65_537, 4 << 20, 100 << 20] {
        let raw: Vec<u8> = (0..size).map(|index: u32| (index ^ (index >> 8) ^ (index >> 16)) as u8).collect();
        let answer = client.call(INFER, &message(&raw)).unwrap();
        assert!(answer.ends_with(&raw), "{size}");
    }
    let refused = client.call(INFER, &vec![0; 200_000_001]).unwrap_err();
    assert!(refused.message().contains("--grpc-max-message-size"), "{refused:?}");
    assert_eq!(metric(&server, "deuteron_requests_in_flight"), 0);
}

#[test]
fn a_message_of_a_gibibyte_comes_back_where_the_flag_allows_it() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--grpc-max-message-size=1100000000"]);
    // Bytes that do not occur before the tensor.
    let part: Vec<u8> = (0..1 << 20).map(|index: u32| 0xf0 | (index % 13) as u8).collect();
    let size = i64::from(1_u32 << 30);
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "UINT8").packed(3, &[1, size]);
    let mut head = Message::new().bytes(1, "identity_uint8").message(5, input).into_bytes();
    // Field 7 and its length, as a varint of five bytes.
    head.extend_from_slice(&[7 << 3 | 2, 0x80, 0x80, 0x80, 0x80, 0x04]);
    let echoed = crate::support::h2::echo(server.grpc(), INFER, &head, part.clone().into(), 1_024);
    assert_eq!(echoed, (1 << 30, Some("0".to_owned())));
    // One byte more than the flag allows is refused before it was sent (8: RESOURCE_EXHAUSTED).
    let refused = crate::support::h2::echo(server.grpc(), INFER, &head, part.into(), 1_050);
    assert_eq!(refused, (0, Some("8".to_owned())));
    assert_eq!(metric(&server, "deuteron_requests_in_flight"), 0);
}

#[test]
fn a_thousand_streams_on_one_connection_are_all_answered() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let raw = message(&[7; 100]);
    let file = folder.path().join("message");
    std::fs::write(&file, [&[0][..], &u32::try_from(raw.len()).unwrap().to_be_bytes(), &raw].concat()).unwrap();
    let url = format!("http://{}{INFER}", server.grpc());
    let file = file.to_str().unwrap();
    for (calls, connections, streams) in [("1000", "1", "1000"), ("20000", "8", "128")] {
        let arguments =
            ["-n", calls, "-c", connections, "-m", streams, "-d", file, "-H", "content-type: application/grpc", &url];
        let Some(text) = client("h2load", &arguments) else { return };
        assert!(text.contains(&format!("{calls} succeeded, 0 failed, 0 errored, 0 timeout")), "{text}");
    }
    assert_eq!(metric(&server, "deuteron_requests_succeeded_total"), 21_000);
}

#[test]
fn curl_and_nghttp_get_rest_over_http2() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let url = |path: &str| format!("http://{}{path}", server.http());
    let infer = url("/v2/models/identity_fp32/infer");
    let body = r#"{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[1.5,-2]}]}"#;
    let plain = ["--http2-prior-knowledge", "-sS", "-w", " %{http_code} %{http_version}"];
    if let Some(text) = client("curl", &[&plain[..], &["-d", body, &infer]].concat()) {
        assert!(text.contains("\"data\":[1.5,-2.0]") && text.ends_with(" 200 2"), "{text}");
        let waits = ["-H", "Expect: 100-continue", "-d", body, &infer];
        let text = client("curl", &[&plain[..], &waits].concat()).unwrap();
        assert!(text.contains("\"data\":[1.5,-2.0]") && text.ends_with(" 200 2"), "{text}");
        let head = client("curl", &[&plain[..], &["-I", &url("/v2/health/live")]].concat()).unwrap();
        assert!(head.contains("HTTP/2 200") && head.contains("content-length: "), "{head}");
        let large = folder.path().join("large");
        std::fs::write(&large, vec![b' '; 70 << 20]).unwrap();
        let large = format!("@{}", large.display());
        let text = client("curl", &[&plain[..], &["--data-binary", &large, &infer]].concat()).unwrap();
        assert!(text.contains("--http-max-input-size") && text.ends_with(" 413 2"), "{text}");
    }
    if let Some(text) = client("nghttp", &["-v", "-m", "20", &url("/v2"), &url("/v2/health/ready")]) {
        assert_eq!(text.matches(":status: 200").count(), 40, "{text}");
    }
}

#[test]
fn node_gets_rest_and_grpc_over_http2() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &[]);
    let script = r#"
const client = require('http2').connect('http://' + process.argv[1]);
client.on('error', (error) => { throw error; });
const ask = (head, body) => new Promise((resolve, reject) => {
  const stream = client.request(head);
  let status, trailers, parts = [];
  stream.on('response', (fields) => { status = fields[':status']; });
  stream.on('trailers', (fields) => { trailers = fields; });
  stream.on('data', (part) => parts.push(part));
  stream.on('error', reject);
  stream.on('end', () => resolve({ status, trailers, body: Buffer.concat(parts) }));
  stream.end(body);
});
(async () => {
  const values = Array.from({ length: 300 }, (_, index) => index);
  await Promise.all(values.map(async (value) => {
    const body = JSON.stringify({ inputs: [{ name: 'INPUT0', shape: [1, 1], datatype: 'FP32', data: [value] }] });
    const answer = await ask({ ':method': 'POST', ':path': '/v2/models/identity_fp32/infer' }, body);
    if (answer.status !== 200 || JSON.parse(answer.body).outputs[0].data[0] !== value) throw new Error(answer.body);
    const live = await ask({ ':method': 'POST', ':path': '/inference.GRPCInferenceService/ServerLive',
      'content-type': 'application/grpc', te: 'trailers' }, Buffer.alloc(5));
    if (live.trailers['grpc-status'] !== '0' || live.body.length !== 7) throw new Error(JSON.stringify(live));
  }));
  console.log('answered', values.length * 2);
  client.close();
})();
"#;
    let Some(text) = client("node", &["-e", script, &server.http().to_string()]) else { return };
    assert_eq!(text.trim(), "answered 600");
}

#[test]
fn calls_cancelled_at_any_point_leave_nothing_behind() {
    const CALLS: u32 = 5_000;
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1", "--http2-resets-max=100000"]);
    let input = |name: &str| {
        let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, 4]);
        Message::new().bytes(1, name).message(5, input).bytes(7, vec![0; 16]).into_bytes()
    };
    let ended =
        crate::support::h2::cancel_storm(server.grpc(), INFER, &[&input("slow"), &input("identity_fp32")], CALLS);
    assert_eq!(ended.answered + ended.cancelled, CALLS);
    assert!(ended.cancelled > CALLS / 2 && ended.answered > 100, "{ended:?}");
    let start = Instant::now();
    while metric(&server, "deuteron_requests_in_flight") > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "some are in flight");
        std::thread::sleep(Duration::from_millis(20));
    }
    let received = metric(&server, "deuteron_requests_received_total");
    let left = ["call_cancelled", "connection_closed", "stream_reset"];
    let left = left.map(|how| metric(&server, &format!("deuteron_requests_cancelled_total{{reason=\"{how}\"}}")));
    assert_eq!((left[1], left[2]), (0, 0), "all were cancelled");
    let sum = metric(&server, "deuteron_requests_succeeded_total") + left[0];
    let refused = metric(&server, "deuteron_requests_refused_total{reason=\"unavailable\"}");
    assert_eq!(received, sum + refused);
    assert_eq!(metric(&server, "nv_inference_pending_request_count{model=\"slow\",version=\"1\"}"), 0);
    assert_eq!(metric(&server, "deuteron_panics_total"), 0);
    crate::support::grpc::Client::new(server.grpc()).call(INFER, &input("identity_fp32")).unwrap();
}
