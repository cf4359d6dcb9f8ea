//! HTTP/2 requests on the `h2` crate alone: no gRPC library stands between the test and the wire.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Version};

/// One gRPC call with fields of the test's own. Returns the trailers, or the head if that has the status.
pub fn call(address: SocketAddr, path: &str, fields: &[(&str, &str)], message: &[u8]) -> BTreeMap<String, String> {
    let called = call_framed(address, path, fields, framed(0, message));
    if called.head.contains_key("grpc-status") { called.head } else { called.trailers }
}

/// A message with its prefix, whose first byte says whether it is compressed.
pub fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    let size = u32::try_from(message.len()).expect("a small message").to_be_bytes();
    [&[flag], &size[..], message].concat()
}

/// Result of a call.
pub struct Called {
    pub head: BTreeMap<String, String>,
    /// The messages of the answer, with their prefixes.
    pub body: Vec<u8>,
    pub trailers: BTreeMap<String, String>,
}

impl Called {
    /// The field with the status at its end.
    pub fn status(&self) -> &str {
        self.head.get("grpc-status").or_else(|| self.trailers.get("grpc-status")).expect("a call has a status")
    }

    /// The text of its error.
    pub fn text(&self) -> &str {
        self.head.get("grpc-message").or_else(|| self.trailers.get("grpc-message")).map_or("", |text| text)
    }
}

/// One gRPC call whose content, framed, is the test's own.
pub fn call_framed(address: SocketAddr, path: &str, fields: &[(&str, &str)], content: Vec<u8>) -> Called {
    let mut request = request(address, path).header("content-type", "application/grpc").header("te", "trailers");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.body(()).expect("the fields are valid");
    run(address, |mut sender| async move {
        let (response, mut stream) = sender.send_request(request, false).expect("the request is sent");
        stream.send_data(content.into(), true).expect("the message is sent");
        let response = response.await.expect("an answer comes");
        let head = texts(response.headers());
        let (mut answer, mut body) = (response.into_body(), Vec::new());
        while let Some(chunk) = answer.data().await {
            let chunk = chunk.expect("the body is whole");
            body.extend_from_slice(&chunk);
            answer.flow_control().release_capacity(chunk.len()).expect("the room was taken");
        }
        let trailers = texts(&answer.trailers().await.expect("the trailers are whole").unwrap_or_default());
        Called { head, body, trailers }
    })
}

/// One POST. Returns its status and body.
pub fn post(address: SocketAddr, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let (status, _, body) = post_with(address, path, &[], body);
    (status, body)
}

/// One POST with fields of the test's own. Returns its status, fields and body.
pub fn post_with(
    address: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> (u16, BTreeMap<String, String>, Vec<u8>) {
    let request = fields.iter().fold(request(address, path), |request, (name, value)| request.header(*name, *value));
    let request = request.body(()).expect("the fields are valid");
    let bytes = Bytes::copy_from_slice(body);
    run(address, |mut sender| async move {
        let (response, mut stream) = sender.send_request(request, false).expect("the request is sent");
        stream.send_data(bytes, true).expect("the body is sent");
        let response = response.await.expect("an answer comes");
        let (status, fields) = (response.status().as_u16(), texts(response.headers()));
        let (mut body, mut whole) = (response.into_body(), Vec::new());
        while let Some(chunk) = body.data().await {
            let chunk = chunk.expect("the body is whole");
            whole.extend_from_slice(&chunk);
            body.flow_control().release_capacity(chunk.len()).expect("the room was taken");
        }
        (status, fields, whole)
    })
}

/// One POST whose body never ends. Returns the status of its answer.
pub fn post_part(address: SocketAddr, path: &str, fields: &[(&str, &str)], body: &[u8]) -> u16 {
    let request = fields.iter().fold(request(address, path), |request, (name, value)| request.header(*name, *value));
    let request = request.body(()).expect("the fields are valid");
    let bytes = Bytes::copy_from_slice(body);
    run(address, |mut sender| async move {
        let (response, mut stream) = sender.send_request(request, false).expect("the request is sent");
        stream.send_data(bytes, false).expect("the part is sent");
        response.await.expect("an answer comes").status().as_u16()
    })
}

/// Begins a gRPC call with an empty message and waits for the head of its answer; then the
/// connection closes under it.
pub fn leave(address: SocketAddr, path: &str) {
    let request = request(address, path).header("content-type", "application/grpc").header("te", "trailers");
    let request = request.body(()).expect("the fields are valid");
    run(address, |mut sender| async move {
        let (response, mut stream) = sender.send_request(request, false).expect("the request is sent");
        stream.send_data(Bytes::from_static(&[0; 5]), true).expect("the message is sent");
        response.await.expect("an answer begins");
    });
}

/// Sends the same message over and over on one call, at most `size_max` bytes, as long as the server takes more, and
/// reads nothing of the answer. Returns the number of bytes sent when the server stopped reading, or all.
pub fn flood(address: SocketAddr, path: &str, message: &[u8], size_max: usize, then: impl FnOnce()) -> usize {
    let size = u32::try_from(message.len()).expect("a small message").to_be_bytes();
    let framed = Bytes::from([&[0], &size[..], message].concat().repeat(100));
    let request = request(address, path).header("content-type", "application/grpc").header("te", "trailers");
    let request = request.body(()).expect("the fields are valid");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    run_with(&builder, address, |mut sender| async move {
        let (_response, mut stream) = sender.send_request(request, false).expect("the request is sent");
        let mut sent = 0;
        while sent < size_max {
            stream.reserve_capacity(framed.len());
            let room = std::future::poll_fn(|context| stream.poll_capacity(context));
            match tokio::time::timeout(std::time::Duration::from_secs(1), room).await {
                Ok(Some(Ok(room))) if room >= framed.len() => {
                    stream.send_data(framed.clone(), false).expect("the stream is open");
                    sent += framed.len();
                }
                Ok(Some(Ok(_))) => {}
                _ => break,
            }
        }
        then();
        sent
    })
}

/// Sends a call whose message is a head and then a part over and over, and never holds more than a part of it. Returns
/// the number of bytes at the answer's end that repeat the part, and the status.
pub fn echo(address: SocketAddr, path: &str, head: &[u8], part: Bytes, count: usize) -> (usize, Option<String>) {
    let size = u32::try_from(head.len() + part.len() * count).expect("a message's size has four bytes");
    let head = Bytes::from([&[0], &size.to_be_bytes()[..], head].concat());
    let request = request(address, path).header("content-type", "application/grpc").header("te", "trailers");
    let request = request.body(()).expect("the fields are valid");
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 24).initial_connection_window_size(1 << 24);
    run_with(&builder, address, |mut sender| async move {
        let (response, mut stream) = sender.send_request(request, false).expect("the request is sent");
        stream.send_data(head, false).expect("the head is sent");
        'sending: for number in 1..=count {
            let mut rest = part.clone();
            while !rest.is_empty() {
                stream.reserve_capacity(rest.len());
                let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
                // The server may have answered already.
                let Some(Ok(room)) = room else { break 'sending };
                let now = rest.split_to(room.min(rest.len()));
                stream.send_data(now, number == count && rest.is_empty()).expect("the part is sent");
            }
        }
        let response = response.await.expect("an answer comes");
        let status = |fields: &HeaderMap| texts(fields).remove("grpc-status");
        if let Some(status) = status(response.headers()) {
            return (0, Some(status));
        }
        let (mut body, mut got, want) = (response.into_body(), 0, part.len() * count);
        let mut skipped = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.expect("the body is whole");
            body.flow_control().release_capacity(chunk.len()).expect("the room was taken");
            // The bytes before the tensor are few, and the last of them differs from the part's first.
            let skip = if got == 0 { chunk.iter().position(|byte| *byte == part[0]).unwrap_or(chunk.len()) } else { 0 };
            skipped.extend_from_slice(&chunk[..skip]);
            let mut rest = &chunk[skip..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(part.len() - got % part.len()));
                let is_same = part[got % part.len()..].starts_with(now);
                assert!(is_same, "the answer differs behind {got} bytes of {want}");
                got += now.len();
                rest = later;
            }
        }
        assert!(skipped.len() < 200, "{} bytes before the tensor", skipped.len());
        (got, status(&body.trailers().await.expect("the trailers are whole").unwrap_or_default()))
    })
}

fn request(address: SocketAddr, path: &str) -> http::request::Builder {
    Request::builder().method("POST").version(Version::HTTP_2).uri(format!("http://{address}{path}"))
}

fn texts(fields: &HeaderMap) -> BTreeMap<String, String> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    fields.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn run<T, F: Future<Output = T>>(address: SocketAddr, work: impl FnOnce(SendRequest<Bytes>) -> F) -> T {
    run_with(&h2::client::Builder::new(), address, work)
}

fn run_with<T, F: Future<Output = T>>(
    builder: &h2::client::Builder,
    address: SocketAddr,
    work: impl FnOnce(SendRequest<Bytes>) -> F,
) -> T {
    run_pinging(builder, address, |sender, _| work(sender))
}

fn run_pinging<T, F: Future<Output = T>>(
    builder: &h2::client::Builder,
    address: SocketAddr,
    work: impl FnOnce(SendRequest<Bytes>, h2::PingPong) -> F,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime needs nothing");
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(address).await.expect("the server listens");
        let (sender, mut connection) = builder.handshake(socket).await.expect("the server speaks HTTP/2");
        let pings = connection.ping_pong().expect("they are taken once");
        tokio::spawn(connection);
        work(sender.ready().await.expect("the connection takes a request"), pings).await
    })
}

/// Ends of the calls of a storm.
#[derive(Debug, Default)]
pub struct Ended {
    /// Calls with an answer.
    pub answered: u32,
    /// Calls that the client cancelled.
    pub cancelled: u32,
}

/// Calls on one connection, many at a time, each with one of the messages in turn; three of four are
/// cancelled: before their message, within it, behind it, or a little later.
pub fn cancel_storm(address: SocketAddr, path: &str, messages: &[&[u8]], calls: u32) -> Ended {
    // Frames of answers that the client no longer wants still count against its window.
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(64 << 20);
    run_with(&builder, address, |sender| async move {
        let mut ended = Ended::default();
        let mut running = tokio::task::JoinSet::new();
        for index in 0..calls {
            if running.len() >= 100 {
                count(&mut ended, running.join_next().await);
            }
            let request = request(address, path).header("content-type", "application/grpc").header("te", "trailers");
            let request = request.body(()).expect("the fields are valid");
            // The last of four calls is answered, and uses the last of the messages.
            let is_answered = index % 4 == 3;
            let message =
                if is_answered { messages[messages.len() - 1] } else { messages[index as usize % messages.len()] };
            let size = u32::try_from(message.len()).expect("a small message").to_be_bytes();
            let framed = Bytes::from([&[0], &size[..], message].concat());
            let sender = sender.clone();
            running.spawn(call_and_cancel(sender, request, framed, index, is_answered));
        }
        while let Some(one) = running.join_next().await {
            count(&mut ended, Some(one));
        }
        ended
    })
}

fn count(ended: &mut Ended, one: Option<Result<bool, tokio::task::JoinError>>) {
    match one.expect("one was running").expect("no call panics") {
        true => ended.answered += 1,
        false => ended.cancelled += 1,
    }
}

async fn call_and_cancel(
    sender: SendRequest<Bytes>,
    request: Request<()>,
    framed: Bytes,
    index: u32,
    is_answered: bool,
) -> bool {
    if is_answered {
        let response = loop {
            let mut sender = sender.clone().ready().await.expect("the connection lives");
            let (response, mut stream) = sender.send_request(request.clone(), false).expect("the request is sent");
            stream.send_data(framed.clone(), true).expect("the message is sent");
            match response.await {
                // Those that were reset count until their work is gone; a refused request was not processed, and may be
                // sent again (RFC 9113 §8.7).
                Err(error) if error.reason() == Some(h2::Reason::REFUSED_STREAM) => tokio::task::yield_now().await,
                response => break response.expect("an answer comes"),
            }
        };
        let mut body = response.into_body();
        while let Some(chunk) = body.data().await {
            let size = chunk.expect("the body is whole").len();
            body.flow_control().release_capacity(size).expect("the room was taken");
        }
        let trailers = body.trailers().await.expect("the trailers are whole").expect("a call has trailers");
        assert_eq!(trailers["grpc-status"], "0");
        return true;
    }
    let mut sender = sender.ready().await.expect("the connection lives");
    let (_response, mut stream) = sender.send_request(request, false).expect("the request is sent");
    match index / 4 % 4 {
        0 => {}
        1 => stream.send_data(framed.slice(..framed.len() / 2), false).expect("some of it is sent"),
        2 => stream.send_data(framed, true).expect("the message is sent"),
        _ => {
            stream.send_data(framed, true).expect("the message is sent");
            let pause = std::time::Duration::from_micros(u64::from(index * 37 % 3_000));
            tokio::time::sleep(pause).await;
        }
    }
    stream.send_reset(h2::Reason::CANCEL);
    false
}

/// A client's way of leaving a request.
#[derive(Clone, Copy, Debug)]
pub enum Leave {
    /// It closes the connection.
    Close,
    /// It resets the stream with this code (RFC 9113 §7).
    Reset(u32),
}

/// Sends a whole request, waits until `then` returns, and leaves.
pub fn abandon(
    address: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
    body: &[u8],
    leave: Leave,
    then: impl FnOnce() + Send + 'static,
) {
    abandon_at(address, path, fields, (body, true), leave, then);
}

/// The same with an unfinished request.
pub fn abandon_part(
    address: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
    body: &[u8],
    leave: Leave,
    then: impl FnOnce() + Send + 'static,
) {
    abandon_at(address, path, fields, (body, false), leave, then);
}

fn abandon_at(
    address: SocketAddr,
    path: &str,
    fields: &[(&str, &str)],
    (body, is_whole): (&[u8], bool),
    leave: Leave,
    then: impl FnOnce() + Send + 'static,
) {
    let request = fields.iter().fold(request(address, path), |request, (name, value)| request.header(*name, *value));
    let request = request.body(()).expect("the fields are valid");
    let body = Bytes::copy_from_slice(body);
    run_pinging(&h2::client::Builder::new(), address, |mut sender, mut pings| async move {
        let (_response, mut stream) = sender.send_request(request, false).expect("the request is sent");
        stream.send_data(body, is_whole).expect("the body is sent");
        // The connection runs meanwhile.
        tokio::task::spawn_blocking(then).await.expect("the test goes on");
        if let Leave::Reset(code) = leave {
            stream.send_reset(code.into());
            // The connection sends it before it sends the ping, whose answer says that it was read: the end of the
            // connection comes later.
            tokio::task::yield_now().await;
            pings.ping(h2::Ping::opaque()).await.expect("the server answers");
        }
    });
}

/// Makes requests on one connection, all at once, each with a body of `size` bytes, sent as there is room for it until
/// the request is answered. Returns the fields of each answer.
pub fn upload(
    address: SocketAddr,
    requests: &[(&str, &[(&str, &str)])],
    start: &[u8],
    size: usize,
) -> Vec<BTreeMap<String, String>> {
    let build = |(path, fields): &(&str, &[(&str, &str)])| {
        let request =
            fields.iter().fold(request(address, path), |request, (name, value)| request.header(*name, *value));
        request.body(()).expect("the fields are valid")
    };
    let requests: Vec<_> = requests.iter().map(build).collect();
    let start = Bytes::copy_from_slice(start);
    run(address, |sender| async move {
        let mut running = tokio::task::JoinSet::new();
        for request in requests {
            let sender = sender.clone().ready().await.expect("the connection lives");
            running.spawn(upload_one(sender, request, start.clone(), size));
        }
        let mut answers = Vec::new();
        while let Some(answer) = running.join_next().await {
            answers.push(answer.expect("no upload panics"));
        }
        answers
    })
}

async fn upload_one(
    mut sender: SendRequest<Bytes>,
    request: Request<()>,
    start: Bytes,
    size: usize,
) -> BTreeMap<String, String> {
    let (response, mut stream) = sender.send_request(request, false).expect("the request is sent");
    let part = Bytes::from(vec![1; 64 * 1024]);
    let sending = async move {
        stream.send_data(start, false).expect("the start is sent");
        let mut left = size;
        while left > 0 {
            stream.reserve_capacity(left.min(part.len()));
            let Some(Ok(room)) = std::future::poll_fn(|context| stream.poll_capacity(context)).await else { break };
            let now = part.slice(..room.min(left).min(part.len()));
            left -= now.len();
            if stream.send_data(now, left == 0).is_err() {
                break;
            }
        }
        std::future::pending().await
    };
    let answering = async {
        let response = response.await.expect("an answer comes");
        let status = response.status().as_u16().to_string();
        let mut fields = texts(response.headers());
        fields.insert("status".to_owned(), status);
        let (mut body, mut text) = (response.into_body(), Vec::new());
        while let Some(chunk) = body.data().await {
            let Ok(chunk) = chunk else { break };
            let _ = body.flow_control().release_capacity(chunk.len());
            text.extend_from_slice(&chunk);
        }
        fields.insert("text".to_owned(), String::from_utf8_lossy(&text).into_owned());
        fields
    };
    futures_lite::future::or(answering, sending).await
}
