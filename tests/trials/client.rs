//! Distinguishable requests, and a client that sends them: each has a nonce in its tensor and in its id, and only an
//! answer with both is its answer.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::subject::Subject;
use crate::support::grpc::Client;
use crate::support::http::{self, Connection, Response};
use crate::support::protobuf::Message;

pub const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
pub const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// A number that no other request of this process has. It is below 2^53, which every JSON reader keeps exactly.
pub fn nonce() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    (u64::from(std::process::id()) & 0xfffff) << 32 | next & 0xffff_ffff
}

pub fn path(model: &str) -> String {
    format!("/v2/models/{model}/infer")
}

/// The JSON of a request; `parameters` are members of that object.
pub fn json(nonce: u64, parameters: &str) -> Vec<u8> {
    let input = format!(r#"{{"name":"INPUT0","shape":[1,1],"datatype":"INT64","data":[{nonce}]}}"#);
    format!(r#"{{"id":"n{nonce}","parameters":{{{parameters}}},"inputs":[{input}]}}"#).into_bytes()
}

/// A whole HTTP/1.1 request.
pub fn request(model: &str, nonce: u64, parameters: &str) -> Vec<u8> {
    http::request("POST", &path(model), &[], &json(nonce, parameters))
}

/// The gRPC message of a request, with a timeout in microseconds or without.
pub fn message(model: &str, nonce: u64, timeout_us: Option<i64>) -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "INT64").packed(3, &[1, 1]);
    let mut message = Message::new().bytes(1, model).bytes(3, format!("n{nonce}"));
    if let Some(timeout) = timeout_us {
        message = message.message(4, Message::new().bytes(1, "timeout").message(2, Message::new().int(2, timeout)));
    }
    message.message(5, input).bytes(7, nonce.to_le_bytes()).into_bytes()
}

/// Returns true if a body of JSON answers the request with this nonce.
pub fn echoes_json(body: &[u8], nonce: u64) -> bool {
    let text = String::from_utf8_lossy(body);
    text.contains(&format!("\"id\":\"n{nonce}\"")) && text.contains(&format!("\"data\":[{nonce}]"))
}

/// Returns true if a gRPC message answers the request with this nonce.
pub fn echoes_message(message: &[u8], nonce: u64) -> bool {
    let has = |bytes: &[u8]| message.windows(bytes.len()).any(|window| window == bytes);
    has(format!("n{nonce}").as_bytes()) && has(&nonce.to_le_bytes())
}

/// Outcome of one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its own answer.
    Answered,
    /// An error with this HTTP status or gRPC code, and its text.
    Refused(Code, String),
    /// An answer to something else.
    Wrong(String),
    /// No answer.
    Lost(String),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Code {
    Http(u16),
    Grpc(u8),
}

impl Code {
    /// Returns true for a code that means an overloaded server.
    pub const fn is_busy(self) -> bool {
        matches!(self, Self::Http(429 | 503) | Self::Grpc(8 | 14))
    }

    /// Returns true for a code that means a timeout: Triton says 503 or UNAVAILABLE then.
    pub const fn is_late(self) -> bool {
        matches!(self, Self::Http(499 | 503 | 504) | Self::Grpc(1 | 4 | 14))
    }
}

/// A client with a connection of either protocol.
pub struct Asker {
    http: SocketAddr,
    kept: Option<Connection>,
    grpc: Client,
    model: &'static str,
    timeout: Option<Duration>,
    /// True if the last refusal had a Retry-After.
    pub had_retry_after: bool,
}

impl Asker {
    pub fn new(subject: &Subject, model: &'static str) -> Self {
        let grpc = Client::new(subject.grpc);
        Self { http: subject.http, kept: None, grpc, model, timeout: None, had_retry_after: false }
    }

    /// Sets the timeout of each request.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sends one and waits for its outcome.
    pub fn ask(&mut self, is_grpc: bool) -> Outcome {
        let nonce = nonce();
        if is_grpc { self.ask_grpc(nonce) } else { self.ask_http(nonce) }
    }

    fn ask_grpc(&self, nonce: u64) -> Outcome {
        let timeout = self.timeout.and_then(|timeout| i64::try_from(timeout.as_micros()).ok());
        match self.grpc.call(INFER, &message(self.model, nonce, timeout)) {
            Ok(answer) if echoes_message(&answer, nonce) => Outcome::Answered,
            Ok(answer) => Outcome::Wrong(format!("n{nonce} got {}", answer.escape_ascii())),
            // The client reports it itself, without a status from the server.
            Err(status) if status.message().contains("transport error") || status.message().contains("h2 protocol") => {
                Outcome::Lost(format!("gRPC: {status:?}"))
            }
            Err(status) => {
                let code = Code::Grpc(u8::try_from(i32::from(status.code())).unwrap_or(u8::MAX));
                Outcome::Refused(code, status.message().to_owned())
            }
        }
    }

    fn ask_http(&mut self, nonce: u64) -> Outcome {
        let parameters = self.timeout.map_or(String::new(), |timeout| format!("\"timeout\":{}", timeout.as_micros()));
        let request = request(self.model, nonce, &parameters);
        let was_kept = self.kept.is_some();
        let answer = match self.exchange(&request) {
            // Like every client that keeps connections: if one was closed while idle, the request is sent again.
            Err(_) if was_kept => self.exchange(&request),
            answer => answer,
        };
        match answer {
            Ok(answer) if answer.status == 200 && echoes_json(&answer.body, nonce) => Outcome::Answered,
            Ok(answer) if answer.status == 200 => {
                Outcome::Wrong(format!("n{nonce} got {}", answer.body.escape_ascii()))
            }
            Ok(answer) => {
                self.had_retry_after = answer.header("Retry-After").is_some();
                Outcome::Refused(Code::Http(answer.status), String::from_utf8_lossy(&answer.body).into_owned())
            }
            Err(error) => Outcome::Lost(format!("HTTP: {error}")),
        }
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<Response> {
        let mut connection = match self.kept.take() {
            Some(connection) => connection,
            None => Connection::open(self.http)?,
        };
        connection.send(request)?;
        let answer = connection.receive()?;
        let closes = answer.header("Connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        self.kept = (!closes).then_some(connection);
        Ok(answer)
    }
}

/// A pseudo-random sequence from a seed, so that a failure can be repeated.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Between 0 and 1.
    pub fn share(&mut self) -> f64 {
        self.below(1 << 30) as f64 / f64::from(1 << 30)
    }
}

/// The duration below which this share of the sorted durations lies.
pub fn percentile(times: &[Duration], share: f64) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    let index = (times.len() as f64 * share) as usize;
    times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Sleeps until an instant.
pub fn sleep_until(at: Instant) {
    let now = Instant::now();
    if at > now {
        std::thread::sleep(at - now);
    }
}
