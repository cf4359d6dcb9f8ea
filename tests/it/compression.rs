//! Compressed requests and answers over HTTP/1.1, HTTP/2 and gRPC: every coding, refusals, the limits, other requests
//! meanwhile, and clients from PyPI.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use crate::support::folder::Folder;
use crate::support::h2::{self, call_framed, framed};
use crate::support::http::{self, Connection, Response};
use crate::support::metrics::metric;
use crate::support::protobuf::Message;
use crate::support::python::Environment;
use crate::support::repository::{self, Flavour};
use crate::support::server::Server;

const PATH: &str = "/v2/models/identity_fp32/infer";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
const LENGTH: &str = "Inference-Header-Content-Length";

/// Encodes a body as `coding` says; `raw` is DEFLATE without zlib's head.
fn encode(coding: &str, body: &[u8]) -> Vec<u8> {
    let level = Compression::fast();
    match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), level);
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
        "deflate" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
        "raw" => {
            let mut encoder = DeflateEncoder::new(Vec::new(), level);
            encoder.write_all(body).unwrap();
            encoder.finish().unwrap()
        }
        "zstd" => {
            let mut out = Vec::with_capacity(zstd_safe::compress_bound(body.len()));
            zstd_safe::compress(&mut out, body, 1).unwrap();
            out
        }
        _ => body.to_vec(),
    }
}

fn decode(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => drop(GzDecoder::new(body).read_to_end(&mut out).unwrap()),
        "deflate" => drop(ZlibDecoder::new(body).read_to_end(&mut out).unwrap()),
        "zstd" => {
            out.reserve(64 << 20);
            zstd_safe::decompress(&mut out, body).unwrap();
        }
        _ => out.extend_from_slice(body),
    }
    out
}

/// Answers that a shard compresses at a time (`COMPRESSIONS_MAX`).
const ANSWERS_MAX: u64 = 64;

#[test]
fn of_many_answers_at_a_time_the_rest_is_sent_as_it_is_and_counted() {
    const ANSWERS: u64 = ANSWERS_MAX + 16;
    let folder = Folder::new("compressions");
    // One batch answers all requests, so that all compressions begin at about the same time.
    let config = format!(
        "backend: 'identity' max_batch_size: {ANSWERS}
         dynamic_batching {{ preferred_batch_size: {ANSWERS} max_queue_delay_microseconds: 20000000 }}
         input {{ name: 'INPUT0' data_type: TYPE_FP32 dims: -1 }} output {{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: -1 }}"
    );
    repository::add(folder.path(), "identity_fp32", &config, None);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    // Several slices each, so that few are done before all have begun.
    let (body, length) = binary(200_000);
    let fields = [("Accept-Encoding", "gzip"), (LENGTH, &length)];
    let request = http::request("POST", PATH, &fields, &body);
    let codings: Vec<bool> = thread::scope(|scope| {
        let clients: Vec<_> = (0..ANSWERS)
            .map(|_| {
                scope.spawn(|| {
                    let answer = http::exchange(server.http(), &request).unwrap();
                    assert_eq!(answer.status, 200);
                    let coding = answer.header("Content-Encoding");
                    let plain = decode(coding.unwrap_or_default(), &answer.body);
                    assert!(plain.ends_with(&body[body.len() - 800_000..]), "{coding:?}");
                    coding.is_some()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let compressed = codings.iter().filter(|is_coded| **is_coded).count() as u64;
    assert!((ANSWERS_MAX..ANSWERS).contains(&compressed), "{compressed} of {ANSWERS}");
    let count = |name: &str| metric(server.metrics(), name);
    assert_eq!(count("deuteron_responses_compressed_total"), compressed);
    assert_eq!(count("deuteron_responses_compression_skipped_total"), ANSWERS - compressed);
}

/// A request for `count` numbers as JSON.
fn json(count: usize) -> Vec<u8> {
    let numbers: Vec<String> = (0..count).map(|index| (index % 100).to_string()).collect();
    let numbers = numbers.join(",");
    format!(r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{count}],"datatype":"FP32","data":[{numbers}]}}]}}"#)
        .into_bytes()
}

/// The same with binary data both ways, and the size of its JSON.
fn binary(count: usize) -> (Vec<u8>, String) {
    let size = 4 * count;
    let mut body = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{count}],"datatype":"FP32","parameters":{{"binary_data_size":{size}}}}}],"outputs":[{{"name":"OUTPUT0","parameters":{{"binary_data":true}}}}]}}"#
    )
    .into_bytes();
    let length = body.len().to_string();
    (0..count).for_each(|index| body.extend_from_slice(&((index % 100) as f32).to_le_bytes()));
    (body, length)
}

/// A `ModelInferRequest` for `count` numbers.
fn message(count: usize) -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, i64::try_from(count).unwrap()]);
    let contents: Vec<u8> = (0..count).flat_map(|index| ((index % 100) as f32).to_le_bytes()).collect();
    Message::new().bytes(1, "identity_fp32").message(5, input).bytes(7, contents).into_bytes()
}

fn post(address: SocketAddr, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Response {
    http::exchange(address, &http::request("POST", path, fields, body)).unwrap()
}

/// Waits until no memory is held for requests.
fn wait_free(server: &Server) {
    let start = Instant::now();
    while metric(server.metrics(), "deuteron_receive_memory_bytes") > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "memory is held");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_body_of_every_coding_means_what_the_plain_one_does() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let mut count = 0;
    for (body, fields) in [
        (json(3), vec![]),
        (json(5_000), vec![]),
        (binary(2).0, vec![(LENGTH, binary(2).1)]),
        (binary(300_000).0, vec![(LENGTH, binary(300_000).1)]),
    ] {
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let want = post(server.http(), PATH, &fields, &body);
        assert_eq!(want.status, 200, "{}", String::from_utf8_lossy(&want.body));
        for coding in ["gzip", "deflate", "raw", "zstd", "identity"] {
            let coded = encode(coding, &body);
            let name = if coding == "raw" { "deflate" } else { coding };
            let fields = [&fields[..], &[("Content-Encoding", name)]].concat();
            let got = post(server.http(), PATH, &fields, &coded);
            assert_eq!((got.status, got.header(LENGTH)), (200, want.header(LENGTH)), "{coding}");
            assert!(got.body == want.body, "{coding} of {} bytes", body.len());
            let lower: Vec<_> = fields.iter().map(|(name, value)| (name.to_lowercase(), *value)).collect();
            let lower: Vec<_> = lower.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            let (status, _, got) = h2::post_with(server.http(), PATH, &lower, &coded);
            assert!(status == 200 && got == want.body, "{coding} of {} bytes over HTTP/2: {status}", body.len());
            count += 2 * u64::from(coding != "identity");
        }
        // Two members of gzip are one body.
        let (one, two) = body.split_at(body.len() / 2);
        let coded = [encode("gzip", one), encode("gzip", two)].concat();
        let got = post(server.http(), PATH, &[&fields[..], &[("content-encoding", "gzip")]].concat(), &coded);
        assert!(got.status == 200 && got.body == want.body, "two members");
        count += 1;
    }
    assert_eq!(metric(server.metrics(), "deuteron_inflated_total"), count);
    // Any POST may be encoded.
    let plain = post(server.http(), "/v2/repository/index", &[], b"{\"ready\":true}");
    let fields = [("Content-Encoding", "zstd")];
    let coded = post(server.http(), "/v2/repository/index", &fields, &encode("zstd", b"{\"ready\":true}"));
    assert_eq!((coded.status, coded.body), (200, plain.body));
    let broken = post(server.http(), "/v2/repository/index", &fields, b"{\"ready\":true}");
    assert_eq!(broken.status, 400);
    wait_free(&server);
}

#[test]
fn bodies_that_cannot_be_read_are_the_clients_mistake() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let mut refused = 0;
    let mut check = |coding: &str, body: &[u8], status: u16, text: &str| {
        let plain = post(server.http(), PATH, &[("content-encoding", coding)], body);
        let got = String::from_utf8_lossy(&plain.body).into_owned();
        assert!(plain.status == status && got.contains(text), "{coding}: {} {got}", plain.status);
        let accepted = (status == 415).then_some("gzip, deflate, zstd");
        assert_eq!(plain.header("Accept-Encoding"), accepted, "{coding}");
        let (over, fields, body) = h2::post_with(server.http(), PATH, &[("content-encoding", coding)], body);
        assert_eq!((over, String::from_utf8_lossy(&body).into_owned()), (status, got), "{coding} over HTTP/2");
        assert_eq!(fields.get("accept-encoding").map(String::as_str), accepted, "{coding} over HTTP/2");
        refused += u64::from(status != 415) * 2;
    };
    let body = json(400);
    for unknown in ["br", "compress", "gzip, gzip", "deflate, gzip", "gzip;q=1"] {
        check(unknown, &body, 415, "Unsupported compression type");
    }
    for name in ["gzip", "deflate", "zstd"] {
        let (coding, coded) = (name, encode(name, &body));
        check(coding, b"", 400, "nothing to be decompressed");
        check(coding, &coded[..1], 400, "it is cut off");
        check(coding, &coded[..coded.len() - 1], 400, "it is cut off");
        check(coding, &body, 400, "cannot be inflated");
        let trailing = if coding == "deflate" { "bytes follow its end" } else { "it is damaged" };
        check(coding, &[&coded[..], b"more"].concat(), 400, trailing);
        check(coding, &encode(coding, b"{"), 400, "Missing a name for object member");
        // The reference encoder writes no checksum of zstd.
        if name != "zstd" {
            check(coding, &[&coded[..30], &[0xff; 30], &coded[60..]].concat(), 400, "cannot be inflated");
        }
    }
    // Those of one object's beginning were inflated.
    assert_eq!(metric(server.metrics(), "deuteron_inflate_refused_total"), refused - 6);
    assert_eq!(metric(server.metrics(), "deuteron_requests_refused_total{reason=\"unsupported_media\"}"), 10);
    // An unknown model is refused first, and nothing is inflated for it.
    let fields = [("content-encoding", "gzip")];
    assert_eq!(post(server.http(), "/v2/models/nope/infer", &fields, &body).status, 404);
    assert_eq!(post(server.http(), PATH, &fields, &encode("gzip", &body)).status, 200);
    wait_free(&server);
}

#[test]
fn what_inflates_beyond_a_limit_is_refused_and_names_its_flag() {
    let folder = repository::write(Flavour::Deuteron);
    let flags = ["--shards=1", "--http-max-input-size=3000000", "--grpc-max-message-size=2000000"];
    let server = Server::deuteron(folder.path(), &flags);
    let check = |coding: &str, size: usize, status: u16, text: &str| {
        let got = post(server.http(), PATH, &[("content-encoding", coding)], &encode(coding, &vec![b' '; size]));
        let body = String::from_utf8_lossy(&got.body).into_owned();
        assert!(got.status == status && body.contains(text), "{coding} {size}: {} {body}", got.status);
    };
    for coding in ["gzip", "deflate", "zstd"] {
        check(coding, 3_000_000, 400, "The document is empty");
        check(coding, 3_000_001, 413, "--http-max-input-size");
        check(coding, 100_000_000, 413, "--http-max-input-size");
    }
    let gzip = [("grpc-encoding", "gzip")];
    let called = call_framed(server.grpc(), INFER, &gzip, framed(1, &encode("gzip", &vec![0; 2_000_001])));
    assert!(called.status() == "8" && called.text().contains("--grpc-max-message-size"), "{}", called.text());
    wait_free(&server);

    // Even within the size limit, a few kilobytes may not become the largest body.
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let zeros = |coding: &str, size: usize| {
        let got = post(server.http(), PATH, &[("content-encoding", coding)], &encode(coding, &vec![0; size]));
        (got.status, String::from_utf8_lossy(&got.body).into_owned())
    };
    let (status, text) = zeros("zstd", 60_000_000);
    assert!(status == 413 && text.contains("more than 1100 times"), "{status} {text}");
    assert_eq!(zeros("zstd", 16_000_000).0, 400, "it is inflated, and no JSON");
    assert_eq!(zeros("gzip", 60_000_000).0, 400, "it is inflated, and no JSON");
    wait_free(&server);

    let small = Server::deuteron(folder.path(), &["--shards=1", "--receive-memory-bytes-max=4000000"]);
    let got = post(small.http(), PATH, &[("content-encoding", "gzip")], &encode("gzip", &vec![b' '; 8_000_000]));
    let body = String::from_utf8_lossy(&got.body).into_owned();
    assert!(got.status == 413 && body.contains("--receive-memory-bytes-max"), "{} {body}", got.status);
    let called = call_framed(small.grpc(), INFER, &gzip, framed(1, &encode("gzip", &vec![0; 8_000_000])));
    assert!(called.status() == "8" && called.text().contains("--receive-memory-bytes-max"), "{}", called.text());
    assert_eq!(metric(small.metrics(), "deuteron_receive_memory_refused_total"), 2);
    wait_free(&small);
}

#[test]
fn answers_are_compressed_as_the_client_likes_best() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let body = json(5_000);
    let want = post(server.http(), PATH, &[], &body);
    let mut compressed = 0;
    for (accept, coding) in [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("zstd", "zstd"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip, br, zstd", "deflate"),
        ("gzip;q=0.5, zstd;q=0.8, deflate;q=0.1", "zstd"),
        ("identity;q=0, *", "gzip"),
        ("identity, gzip", ""),
        ("gzip;q=0", ""),
        ("*", ""),
        ("br", ""),
        ("", ""),
    ] {
        let got = post(server.http(), PATH, &[("Accept-Encoding", accept)], &body);
        let named = (!coding.is_empty()).then_some(coding);
        assert_eq!((got.status, got.header("Content-Encoding")), (200, named), "{accept}");
        assert!(decode(coding, &got.body) == want.body, "{accept}");
        let (_, fields, over) = h2::post_with(server.http(), PATH, &[("accept-encoding", accept)], &body);
        assert_eq!(fields.get("content-encoding").map(String::as_str), named, "{accept} over HTTP/2");
        assert!(decode(coding, &over) == want.body, "{accept} over HTTP/2");
        assert!(named.is_none() || got.body.len() < want.body.len() / 4, "{accept}: {} bytes", got.body.len());
        compressed += u64::from(named.is_some()) * 2;
    }
    assert_eq!(metric(server.metrics(), "deuteron_responses_compressed_total"), compressed);
    assert!(metric(server.metrics(), "deuteron_responses_compressed_saved_bytes_total") > 0);

    // Binary data: the length counts the inflated answer.
    let (body, length) = binary(10_000);
    let want = post(server.http(), PATH, &[(LENGTH, &length)], &body);
    for coding in ["gzip", "deflate", "zstd"] {
        let got = post(server.http(), PATH, &[(LENGTH, &length), ("accept-encoding", coding)], &body);
        assert_eq!((got.header(LENGTH), got.header("Content-Encoding")), (want.header(LENGTH), Some(coding)));
        assert!(decode(coding, &got.body) == want.body && got.body.len() < want.body.len() / 2, "{coding}");
    }
    // An answer that is small, does not become smaller, is no inference or is an error stays uncompressed.
    let gzip = [("accept-encoding", "gzip")];
    let small = post(server.http(), PATH, &gzip, &json(3));
    assert_eq!((small.status, small.header("Content-Encoding")), (200, None));
    let forced = post(server.http(), PATH, &[("accept-encoding", "gzip, identity;q=0")], &json(3));
    assert_eq!(forced.header("Content-Encoding"), Some("gzip"));
    assert_eq!(decode("gzip", &forced.body), small.body);
    let mut state = 7_u32;
    let noise: Vec<u8> = (0..40_000)
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            [(state >> 24) as u8]
        })
        .collect();
    let (body, length) = binary(10_000);
    let noisy = [&body[..length.parse().unwrap()], &noise].concat();
    let plain = post(server.http(), PATH, &[(LENGTH, &length), ("accept-encoding", "gzip")], &noisy);
    assert_eq!((plain.status, plain.header("Content-Encoding")), (200, None));
    assert!(plain.body.ends_with(&noise));
    let index = post(server.http(), "/v2/repository/index", &gzip, b"{}");
    assert!(index.body.len() > 1_024 && index.header("Content-Encoding").is_none());
    let error = post(server.http(), &format!("/v2/models/{}/infer", "n".repeat(250)), &gzip, b"{}");
    assert_eq!((error.status, error.header("Content-Encoding")), (404, None));
}

#[test]
fn curl_asks_for_compression_and_understands_it() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let body = json(5_000);
    let want = post(server.http(), PATH, &[], &body);
    let file = Folder::new("curl");
    std::fs::write(file.path().join("body"), encode("gzip", &body)).unwrap();
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--noproxy", "*", "--compressed", "--header", "Content-Encoding: gzip"])
        .arg("--data-binary")
        .arg(format!("@{}", file.path().join("body").display()))
        .arg(format!("http://{}{PATH}", server.http()))
        .output()
        .expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == want.body);
    assert_eq!(metric(server.metrics(), "deuteron_responses_compressed_total"), 1);
}

/// The messages of an answer with their flags.
fn messages(mut body: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut messages = Vec::new();
    while let Some((prefix, rest)) = body.split_first_chunk::<5>() {
        let size = u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize;
        let (message, rest) = rest.split_at(size);
        messages.push((prefix[0], message.to_vec()));
        body = rest;
    }
    assert!(body.is_empty());
    messages
}

#[test]
fn messages_of_grpc_are_inflated_in_calls_and_streams() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    for count in [1, 100, 200_000] {
        let message = message(count);
        let want = call_framed(server.grpc(), INFER, &[], framed(0, &message));
        assert_eq!((want.status(), want.head["grpc-accept-encoding"].as_str()), ("0", "identity, deflate, gzip"));
        for coding in ["gzip", "deflate"] {
            let fields = [("grpc-encoding", coding), ("grpc-accept-encoding", "identity, deflate, gzip")];
            let got = call_framed(server.grpc(), INFER, &fields, framed(1, &encode(coding, &message)));
            assert_eq!(got.status(), "0", "{coding} {count}: {}", got.text());
            assert!(got.body == want.body && !got.head.contains_key("grpc-encoding"), "{coding} {count}");
            // A message may stay as it is.
            let got = call_framed(server.grpc(), INFER, &fields, framed(0, &message));
            assert!(got.body == want.body, "{coding} {count}");
        }
    }
    let gzip = [("grpc-encoding", "gzip")];
    let ready = "/inference.GRPCInferenceService/ServerReady";
    let got = call_framed(server.grpc(), ready, &gzip, framed(1, &encode("gzip", b"")));
    assert_eq!((got.status(), got.body.as_slice()), ("0", &[0, 0, 0, 0, 2, 8, 1][..]));

    // A stream, where some messages are compressed and a large one is in front.
    let sizes = [150_000, 2, 3_000, 4];
    let content: Vec<u8> = sizes
        .iter()
        .enumerate()
        .flat_map(|(index, count)| {
            let message = message(*count);
            if index % 2 == 0 { framed(1, &encode("gzip", &message)) } else { framed(0, &message) }
        })
        .collect();
    let plain: Vec<u8> = sizes.iter().flat_map(|count| framed(0, &message(*count))).collect();
    let want = call_framed(server.grpc(), STREAM, &[], plain);
    let got = call_framed(server.grpc(), STREAM, &gzip, content);
    assert_eq!((got.status(), want.status()), ("0", "0"), "{}", got.text());
    assert_eq!(messages(&want.body).len(), 4);
    assert!(got.body == want.body, "in the order of the requests");
}

#[test]
fn messages_of_grpc_that_cannot_be_read_end_the_call_with_its_status() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let check = |path: &str, encoding: &str, content: Vec<u8>, status: &str, text: &str| {
        let fields: &[(&str, &str)] = if encoding.is_empty() { &[] } else { &[("grpc-encoding", encoding)] };
        let got = call_framed(server.grpc(), path, fields, content);
        assert_eq!(got.head.get("grpc-accept-encoding").map(String::as_str), Some("identity, deflate, gzip"));
        assert!(
            got.status() == status && got.text().contains(text),
            "{path} {encoding}: {} {}",
            got.status(),
            got.text()
        );
    };
    let message = message(100);
    let coded = encode("gzip", &message);
    for path in [INFER, STREAM, "/inference.GRPCInferenceService/ModelReady"] {
        for unknown in ["zstd", "snappy", "GZIP"] {
            check(path, unknown, framed(1, &coded), "12", "expected one of: identity, deflate, gzip");
        }
        check(path, "", framed(1, &coded), "13", "no grpc-encoding");
        check(path, "identity", framed(1, &coded), "13", "no grpc-encoding");
        check(path, "gzip", framed(1, &coded[..coded.len() - 9]), "3", "it is cut off");
        check(path, "gzip", framed(1, &message), "3", "it is damaged");
        check(path, "gzip", framed(1, b""), "3", "nothing to be decompressed");
        check(path, "gzip", framed(2, &coded), "13", "must be 0 or 1");
        check(path, "deflate", framed(1, &[&encode("deflate", &message)[..], b"x"].concat()), "3", "follow its end");
    }
    wait_free(&server);
}

#[test]
fn responses_of_grpc_are_compressed_where_a_flag_and_the_client_say_so() {
    let folder = repository::write(Flavour::Deuteron);
    repository::add(folder.path(), "square", repository::SQUARE, None);
    for level in ["low", "medium", "high"] {
        let flag = format!("--grpc-infer-response-compression-level={level}");
        let server = Server::deuteron(folder.path(), &["--shards=1", &flag]);
        let want = call_framed(server.grpc(), INFER, &[], framed(0, &message(50_000)));
        assert!(!want.head.contains_key("grpc-encoding"), "it was not asked for");
        let plain = messages(&want.body);
        for (accept, coding) in [("identity, deflate, gzip", "gzip"), ("identity,deflate", "deflate")] {
            let fields = [("grpc-accept-encoding", accept)];
            let got = call_framed(server.grpc(), INFER, &fields, framed(0, &message(50_000)));
            assert_eq!((got.status(), got.head["grpc-encoding"].as_str()), ("0", coding));
            let [(1, coded)] = &messages(&got.body)[..] else { panic!("{level} {coding}: one, compressed") };
            assert!(coded.len() < plain[0].1.len() / 4 && decode(coding, coded) == plain[0].1, "{level} {coding}");
            // A stream: the small response stays as it is.
            let requests = [framed(0, &message(50_000)), framed(0, &message(2))].concat();
            let want = messages(&call_framed(server.grpc(), STREAM, &[], requests.clone()).body);
            let got = call_framed(server.grpc(), STREAM, &fields, requests);
            assert_eq!((got.status(), got.head["grpc-encoding"].as_str()), ("0", coding));
            let got = messages(&got.body);
            assert_eq!(got.iter().map(|(flag, _)| *flag).collect::<Vec<_>>(), [1, 0]);
            assert!(decode(coding, &got[0].1) == want[0].1 && got[1].1 == want[1].1, "{level} {coding}");
        }
        // Errors and other calls are not compressed, and an error's head may say what its messages would be.
        let fields = [("grpc-accept-encoding", "gzip")];
        let failed = call_framed(server.grpc(), INFER, &fields, framed(0, &message(0)[..9]));
        assert_ne!(failed.status(), "0");
        let input = Message::new().bytes(1, "IN").bytes(2, "INT32").packed(3, &[1]);
        let square = Message::new().bytes(1, "square").message(5, input).bytes(7, 3_i32.to_le_bytes()).into_bytes();
        let got = call_framed(server.grpc(), STREAM, &fields, framed(0, &square));
        assert_eq!((got.status(), messages(&got.body).len()), ("0", 3), "a decoupled model");
        assert_eq!(metric(server.metrics(), "deuteron_responses_compressed_total"), 4);
    }
}

/// A binary request whose 60 MB do not compress well, so that it takes long to inflate, and its fields.
fn large() -> (Vec<u8>, String) {
    let count = 15_000_000;
    let (body, length) = binary(0);
    let json = String::from_utf8_lossy(&body).replace("[1,0]", &format!("[1,{count}]"));
    let json = json.replace("\"binary_data_size\":0", &format!("\"binary_data_size\":{}", 4 * count));
    drop(length);
    let mut body = json.into_bytes();
    let length = body.len().to_string();
    let mut state = 1_u32;
    body.extend((0..4 * count).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8 & 0x3f
    }));
    (encode("gzip", &body), length)
}

fn large_request((coded, length): &(Vec<u8>, String)) -> Vec<u8> {
    http::request("POST", PATH, &[("Content-Encoding", "gzip"), (LENGTH, length)], coded)
}

#[test]
fn other_requests_of_the_shard_run_while_a_large_body_is_inflated_and_a_client_that_leaves_stops_it() {
    let folder = repository::write(Flavour::Deuteron);
    let server = Server::deuteron(folder.path(), &["--shards=1"]);
    let request = large_request(&large());
    let (is_sent, is_answered) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut during, mut longest) = (0, Duration::ZERO);
    let took = thread::scope(|scope| {
        let large = scope.spawn(|| {
            let mut connection = Connection::open(server.http()).unwrap();
            connection.send(&request).unwrap();
            is_sent.store(true, Ordering::Relaxed);
            let start = Instant::now();
            let answer = connection.receive().unwrap();
            is_answered.store(true, Ordering::Relaxed);
            assert_eq!((answer.status, answer.body.len() > 60_000_000), (200, true));
            start.elapsed()
        });
        let mut connection = Connection::open(server.http()).unwrap();
        let small = http::request("POST", PATH, &[], &json(1));
        while metric(server.metrics(), "deuteron_inflated_total") == 0 && !is_answered.load(Ordering::Relaxed) {
            let was_sent = is_sent.load(Ordering::Relaxed);
            let start = Instant::now();
            for _ in 0..10 {
                connection.send(&small).unwrap();
                assert_eq!(connection.receive().unwrap().status, 200);
            }
            if was_sent {
                during += 10;
                longest = longest.max(start.elapsed());
            }
        }
        large.join().unwrap()
    });
    println!("{during} requests in {took:?}, the slowest ten took {longest:?}");
    assert!(during >= 20, "{during} requests were answered while 60 MB were inflated");
    // A shard that only inflated would let them wait to the end.
    assert!(longest < took / 3, "waited {longest:?} of {took:?}");

    // A client that leaves at once stops the inflation before its end.
    let inflated = metric(server.metrics(), "deuteron_inflated_total");
    let mut connection = Connection::open(server.http()).unwrap();
    connection.send(&request).unwrap();
    drop(connection);
    wait_free(&server);
    assert_eq!(metric(server.metrics(), "deuteron_inflated_total"), inflated);
    let left = "deuteron_requests_cancelled_total{reason=\"connection_closed\"}";
    assert_eq!(metric(server.metrics(), left), 1);
    assert_eq!(metric(server.metrics(), "deuteron_requests_in_flight"), 0);
}

#[test]
fn python_clients_compress_and_inflate() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/compression.py");
    let Some(environment) = Environment::shared() else { return };
    let folder = repository::write(Flavour::Deuteron);
    for flags in [&["--shards=1"][..], &["--shards=1", "--grpc-infer-response-compression-level=medium"]] {
        let server = Server::deuteron(folder.path(), flags);
        let output = Command::new(environment.python())
            .arg(&script)
            .args([server.http().to_string(), server.grpc().to_string()])
            .output()
            .expect("the interpreter starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(metric(server.metrics(), "deuteron_inflated_total"), 16, "{text}");
        let responses = metric(server.metrics(), "deuteron_responses_compressed_total");
        assert_eq!(responses, if flags.len() > 1 { 14 } else { 4 }, "{text}");
    }
}
