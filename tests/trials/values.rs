//! Rows 20 and 21: requests that are too large, and requests that are wrong.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::{INFER, path};
use crate::models::ECHO;
use crate::standard::{STANDARD, around};
use crate::subject::{PLAIN, Subject};
use crate::support::protobuf::Message;
use crate::support::{h2, http};
use crate::trial::{Played, Trial, mib};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends bytes on a connection of their own, as far as they are taken. Returns the status of the answer, and the
/// answer. A refused connection may be reset before all is sent.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Result<(u16, String), String> {
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let mut writer = stream.try_clone().map_err(|error| error.to_string())?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ = writer.write_all(bytes);
        });
        let (mut came, mut piece) = (Vec::new(), [0; 16 * 1024]);
        let outcome = loop {
            let text = String::from_utf8_lossy(&came).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
                let length = head
                    .lines()
                    .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
                if body.len() >= length.unwrap_or(0) {
                    break status.map(|status| (status, body.to_owned())).ok_or(text);
                }
            }
            match stream.read(&mut piece) {
                Ok(0) => break Err(format!("closed without an answer {text:?}")),
                Ok(count) => came.extend_from_slice(&piece[..count]),
                Err(error) => break Err(format!("no answer: {error}")),
            }
        };
        let _ = stream.shutdown(std::net::Shutdown::Both);
        outcome
    })
}

/// A request that is too large.
struct Bomb {
    name: &'static str,
    request: Vec<u8>,
    /// The expected statuses.
    want: &'static [u16],
    /// True if its body is bounded by the limit of bodies; other bombs have a megabyte.
    is_body: bool,
    /// Number of times that it is sent in the long form.
    times: usize,
}

/// The limit of Triton, and ours.
const BODY_MAX: usize = 64 << 20;

fn bombs(chunks: usize) -> Vec<Bomb> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    (0..BODY_MAX / 65_536 + 16).for_each(|_| gzip.write_all(&[b' '; 65_536]).expect("memory takes it"));
    let gzip = gzip.finish().expect("memory takes it");
    let echo = path(ECHO);
    let post = |fields: &str, body: &[u8]| {
        [format!("POST {echo} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes(), body].concat()
    };
    let json = |body: String| http::request("POST", &echo, &[], body.as_bytes());
    let input = r#"{"name":"INPUT0","shape":[1,1],"datatype":"INT64","data":[1]}"#;
    let inputs = vec![input; 10_000].join(",");
    let outputs: Vec<String> = (0..10_000).map(|index| format!(r#"{{"name":"O{index}"}}"#)).collect();
    let headers: String = (0..100_000).map(|index| format!("X-{index}: a\r\n")).collect();
    let product = input.replace("[1,1]", "[4294967296,4294967296]");
    let bomb = |name, request, want, is_body, times| Bomb { name, request, want, is_body, times };
    let gzip_fields = format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", gzip.len());
    let coded = "Transfer-Encoding: chunked\r\n";
    vec![
        bomb("gzip 1000:1", post(&gzip_fields, &gzip), &[400, 413], true, 5),
        bomb("Content-Length 2^63", post("Content-Length: 9223372036854775808\r\n", b""), &[400, 413], false, 1_000),
        bomb("one-byte chunks", post(coded, &b"1\r\n \r\n".repeat(chunks)), &[400, 413], true, 10),
        bomb(
            "100,000 headers",
            format!("GET /v2 HTTP/1.1\r\nHost: a\r\n{headers}\r\n").into(),
            &[400, 431],
            false,
            1_000,
        ),
        bomb("10,000 inputs", json(format!(r#"{{"inputs":[{inputs}]}}"#)), &[400], false, 200),
        bomb(
            "10,000 outputs",
            json(format!(r#"{{"inputs":[{input}],"outputs":[{}]}}"#, outputs.join(","))),
            &[400],
            false,
            200,
        ),
        bomb("JSON depth 100,000", json("[".repeat(100_000)), &[400], false, 200),
        bomb(
            "URI of 100 KB",
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(100_000)).into(),
            &[414],
            false,
            1_000,
        ),
        bomb("shape product 2^64", json(format!(r#"{{"inputs":[{product}]}}"#)), &[400], false, 1_000),
    ]
}

/// Row 20.
pub fn size_bombs(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    let bombs = bombs(trial.size(100_000, 1_000_000));
    around(trial, &subject, STANDARD, || {
        let (mut sent, mut peaks) = (0, Vec::new());
        for bomb in &bombs {
            let resident = subject.resident();
            subject.reset_peak();
            let outcome = send(subject.http, &bomb.request);
            let is_right = outcome.as_ref().is_ok_and(|(status, _)| bomb.want.contains(status));
            trial.check(is_right, || format!("{}: {outcome:.200?}, not {:?}", bomb.name, bomb.want));
            let peak = subject.peak() - resident;
            peaks.push((peak, bomb.name));
            // The largest body, a megabyte as for all others, and one for the buffers that it outgrew.
            let of_body = BODY_MAX as i64 + (2 << 20) + bomb.request.len() as i64;
            let (short, long) = if bomb.is_body { (of_body, of_body) } else { (16 << 20, 1 << 20) };
            trial.check_bytes(&format!("{}: peak", bomb.name), peak, short, long);
            for _ in 1..trial.size(3, bomb.times) {
                let again = send(subject.http, &bomb.request);
                let is_same = again.as_ref().is_ok_and(|(status, _)| bomb.want.contains(status));
                trial.check(is_same, || format!("{} again: {again:.200?}", bomb.name));
                sent += 1;
            }
            sent += 1;
        }
        peaks.sort_unstable();
        let (peak, name) = peaks.last().copied().unwrap_or_default();
        trial.figure(format!("{sent} bombs refused, largest peak {} ({name})", mib(peak)));
    });
    Ok(())
}

/// Sends each bomb and each wrong body once, while `goes_on` returns true.
pub fn send_each(subject: &Subject, sent: impl Fn(u16), goes_on: &impl Fn() -> bool) {
    let wrong = WRONG.iter().filter(|(_, text, _)| !text.starts_with('{')).map(|(model, text, _)| {
        let body = format!(r#"{{"inputs":[{{"name":"INPUT0",{text}}}]}}"#);
        http::request("POST", &path(model), &[], body.as_bytes())
    });
    for request in bombs(70_000).into_iter().map(|bomb| bomb.request).chain(wrong) {
        if !goes_on() {
            return;
        }
        // At a ceiling a connection may be closed without an answer: other clients' counts show the losses.
        sent(send(subject.http, &request).map_or(0, |(status, _)| status));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Wrong JSON: the model, the members of its one input (or, from `{` on, the whole body), and true if the error must
/// name the input: not if the JSON is broken, and not if the text is Triton's word for word, which scripts look for.
const WRONG: &[(&str, &str, bool)] = &[
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[2147483648]"#, true),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[-2147483649]"#, true),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[18446744073709551616]"#, true),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[1.5]"#, true),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":["1"]"#, false),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[true]"#, false),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[null]"#, false),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[NaN]"#, false),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[{}]"#, false),
    ("whole", r#""shape":[1,2],"datatype":"INT32","data":[1]"#, false),
    ("whole", r#""shape":[1,1],"datatype":"INT32","data":[1,2]"#, false),
    ("whole", r#""shape":[1,1],"datatype":"INT32""#, false),
    ("whole", r#""shape":[1,1],"datatype":"INT64","data":[1]"#, true),
    ("whole", r#""shape":[1,1],"datatype":"INT33","data":[1]"#, true),
    ("whole", r#""shape":[-1,1],"datatype":"INT32","data":[1]"#, false),
    ("whole", r#""shape":[1,0],"datatype":"INT32","data":[1]"#, false),
    ("whole", r#""shape":[0,1],"datatype":"INT32","data":[1]"#, false),
    ("whole", r#""shape":[9,1],"datatype":"INT32","data":[1,2,3,4,5,6,7,8,9]"#, false),
    ("whole", r#""shape":[1.5],"datatype":"INT32","data":[1]"#, false),
    ("whole", r#""shape":["1"],"datatype":"INT32","data":[1]"#, false),
    ("whole", r#""shape":[18446744073709551617],"datatype":"INT32","data":[1]"#, false),
    ("whole", r#""shape":[4294967296,4294967296],"datatype":"INT32","data":[1]"#, true),
    ("whole", r#""datatype":"INT32","data":[1]"#, false),
    ("natural", r#""shape":[1,1],"datatype":"UINT8","data":[-1]"#, true),
    ("natural", r#""shape":[1,1],"datatype":"UINT8","data":[256]"#, true),
    ("tiny", r#""shape":[1,1],"datatype":"INT8","data":[128]"#, true),
    ("tiny", r#""shape":[1,1],"datatype":"INT8","data":[-129]"#, true),
    ("logical", r#""shape":[1,1],"datatype":"BOOL","data":["true"]"#, false),
    ("logical", r#""shape":[1,1],"datatype":"BOOL","data":[1.5]"#, false),
    ("identity_fp32", r#""shape":[1,1],"datatype":"FP32","data":["x"]"#, false),
    ("identity_fp32", r#""shape":[1,1],"datatype":"FP32","data":[1e999]"#, false),
    ("texts", r#""shape":[1,1],"datatype":"BYTES","data":["\ud800"]"#, false),
    ("texts", r#""shape":[1,1],"datatype":"BYTES","data":[1]"#, false),
    ("whole", "{", false),
    ("whole", "{\"inputs\":7}", false),
    ("whole", "{\"inputs\":[]}", false),
    ("whole", r#"{"inputs":[{"name":"OTHER","shape":[1,1],"datatype":"INT32","data":[1]}]}"#, false),
    (
        "whole",
        r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":[1]},{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":[2]}]}"#,
        true,
    ),
    (
        "whole",
        r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":[1]}],"outputs":[{"name":"OUTPUT0"},{"name":"OUTPUT0"}]}"#,
        false,
    ),
    (
        "whole",
        r#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"INT32","data":[1]}],"outputs":[{"name":"OTHER"}]}"#,
        false,
    ),
];

/// Wrong tensors behind the JSON: the model, the datatype, the stated size, and the bytes.
const WRONG_TAILS: &[(&str, &str, &str, &[u8])] = &[
    ("whole", "INT32", "7", &[0; 7]),
    ("whole", "INT32", "4", &[0; 8]),
    ("whole", "INT32", "8", &[0; 4]),
    ("whole", "INT32", "-4", &[0; 4]),
    ("whole", "INT32", "18446744073709551620", &[0; 4]),
    ("texts", "BYTES", "6", &[255, 255, 255, 255, b'a', b'b']),
    ("texts", "BYTES", "6", &[9, 0, 0, 0, b'a', b'b']),
    ("texts", "BYTES", "6", &[1, 0, 0, 0, b'a', b'b']),
    ("texts", "BYTES", "3", &[1, 0, 0]),
];

/// Row 21.
pub fn wrong_values(trial: &Trial<'_>) -> Played {
    let subject = Subject::start(trial, PLAIN)?;
    around(trial, &subject, STANDARD, || {
        let start = Instant::now();
        let (mut tried, mut right, mut named) = (0, 0, 0);
        let mut hold = |what: &str, outcome: Result<(u16, String), String>, names: bool| {
            tried += 1;
            let is_right = outcome.as_ref().is_ok_and(|(status, _)| *status == 400);
            let is_named = outcome.as_ref().is_ok_and(|(_, text)| text.contains("INPUT0"));
            right += usize::from(is_right);
            named += usize::from(is_named);
            trial.check(is_right && (is_named || !names), || format!("{what:.160}: {outcome:.200?}"));
        };
        for (model, text, names) in WRONG {
            let body = match text.starts_with('{') {
                true => (*text).to_owned(),
                false => format!(r#"{{"inputs":[{{"name":"INPUT0",{text}}}]}}"#),
            };
            let request = http::request("POST", &path(model), &[], body.as_bytes());
            hold(text, send(subject.http, &request), *names);
        }
        let bad_text =
            [&br#"{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"BYTES","data":[""#[..], b"\xff\"]}]}"];
        hold("bad UTF-8", send(subject.http, &http::request("POST", &path("texts"), &[], &bad_text.concat())), false);
        for (model, datatype, size, tail) in WRONG_TAILS {
            let head = format!(
                r#"{{"inputs":[{{"name":"INPUT0","shape":[1,1],"datatype":"{datatype}","parameters":{{"binary_data_size":{size}}}}}]}}"#
            );
            let length = head.len().to_string();
            let fields = [("Inference-Header-Content-Length", length.as_str())];
            let request = http::request("POST", &path(model), &fields, &[head.as_bytes(), *tail].concat());
            hold(&format!("{datatype} of {size} bytes, {tail:?}"), send(subject.http, &request), false);
        }
        for (what, message) in wrong_messages() {
            let called = h2::call_framed(subject.grpc, INFER, &[], h2::framed(0, &message));
            // As HTTP statuses, so that one check fits both.
            let status = if called.status() == "3" { 400 } else { called.status().parse().unwrap_or(0) };
            hold(what, Ok((status, called.text().to_owned())), false);
        }
        trial.figure(format!(
            "{right}/{tried} by 400 or INVALID_ARGUMENT, {named} name the input, in {:.1} s",
            start.elapsed().as_secs_f64()
        ));
    });
    Ok(())
}

/// Wrong gRPC messages.
fn wrong_messages() -> Vec<(&'static str, Vec<u8>)> {
    let input = |datatype: &str, shape: &[i64]| Message::new().bytes(1, "INPUT0").bytes(2, datatype).packed(3, shape);
    let of = |model: &str, input: Message| Message::new().bytes(1, model).message(5, input);
    let raw = |model: &str, datatype: &str, shape: &[i64], bytes: &[u8]| {
        of(model, input(datatype, shape)).bytes(7, bytes).into_bytes()
    };
    // `int_contents` is field 2 of the contents.
    let typed = |model: &str, datatype: &str, value: i64| {
        of(model, input(datatype, &[1, 1]).message(5, Message::new().packed(2, &[value]))).into_bytes()
    };
    let both = of("whole", input("INT32", &[1, 1]).message(5, Message::new().packed(2, &[1]))).bytes(7, [0; 4]);
    let twice =
        of("whole", input("INT32", &[1, 1])).message(5, input("INT32", &[1, 1])).bytes(7, [0; 4]).bytes(7, [0; 4]);
    vec![
        ("gRPC, 7 bytes of INT32", raw("whole", "INT32", &[1, 1], &[0; 7])),
        ("gRPC, 8 bytes of INT32", raw("whole", "INT32", &[1, 1], &[0; 8])),
        ("gRPC, a negative dim", raw("whole", "INT32", &[-1, 1], &[0; 4])),
        ("gRPC, a zero dim with bytes", raw("whole", "INT32", &[1, 0], &[0; 4])),
        ("gRPC, a shape of 2^64", raw("whole", "INT32", &[1 << 32, 1 << 32], &[0; 4])),
        ("gRPC, another datatype", raw("whole", "FP32", &[1, 1], &[0; 4])),
        ("gRPC, a length that lies", raw("texts", "BYTES", &[1, 1], &[255, 255, 255, 255, b'a'])),
        ("gRPC, bytes behind the text", raw("texts", "BYTES", &[1, 1], &[1, 0, 0, 0, b'a', b'b'])),
        ("gRPC, 300 for INT8", typed("tiny", "INT8", 300)),
        ("gRPC, -129 for INT8", typed("tiny", "INT8", -129)),
        ("gRPC, raw and typed contents", both.into_bytes()),
        ("gRPC, an input twice", twice.into_bytes()),
        ("gRPC, no contents", of("whole", input("INT32", &[1, 1])).into_bytes()),
    ]
}
