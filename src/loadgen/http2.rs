//! gRPC from the client's side, on the `h2` crate, which reads and writes a pair of buffers here
//! and no socket: it is driven by whoever has bytes for it, wakes nobody, and can be replaced by
//! any codec that takes bytes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Buf, Bytes, BytesMut};
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::loadgen::exchange::{Exchange, Finished};
use crate::loadgen::failure::{Failure, Kind};
use crate::loadgen::request::{Method, Outgoing};

/// Bytes that the server may send before we make room: no reply waits for it.
const WINDOW: u32 = 1 << 30;
/// Bytes of a DATA frame that we accept: fewer frames for a large tensor.
const FRAME_SIZE_MAX: u32 = 1 << 20;
/// Bytes that wait in `h2` for the server to make room, for each stream.
const SEND_BUFFER_SIZE: usize = 1 << 30;
/// Streams that are opened before the server has said how many it takes: no server should take
/// fewer (RFC 9113 §6.5.2).
const STREAMS_FIRST: usize = 100;
/// Bytes that are written at once.
const OUTPUT_SIZE_MAX: usize = 256 * 1024;

/// One connection.
pub struct Http2 {
    pipe: Rc<RefCell<Pipe>>,
    state: State,
    is_woken: Arc<Flag>,
    waker: Waker,
    authority: String,
    fields: HeaderMap,
    keeps_bodies: bool,
    /// Requests for which the server has no room yet.
    waiting: VecDeque<(usize, Outgoing)>,
    streams: Vec<Stream>,
    /// Heads of requests, ready to be copied.
    heads: Vec<(Method, Request<()>)>,
    output: Vec<u8>,
    output_at: usize,
    finished: VecDeque<Finished>,
}

type Handshake = dyn Future<Output = Result<(SendRequest<Bytes>, Connection<Transport, Bytes>), h2::Error>>;

enum State {
    Handshake(Pin<Box<Handshake>>),
    Open(Box<Connection<Transport, Bytes>>, SendRequest<Bytes>),
    Closed,
}

/// One place for a stream: it is used again, with its waker.
struct Stream {
    flag: Arc<Flag>,
    waker: Waker,
    call: Option<Call>,
}

struct Call {
    token: usize,
    /// Kept so that the body goes on being sent; resets the stream where the call is given up.
    send: SendStream<Bytes>,
    reply: Reply,
}

enum Reply {
    Head(ResponseFuture),
    Body(RecvStream, BytesMut),
}

impl Http2 {
    /// A connection to an authority; fields are added to every request.
    pub fn new(authority: &str, fields: &[(String, String)], keeps_bodies: bool) -> Self {
        let pipe = Rc::new(RefCell::new(Pipe::default()));
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(FRAME_SIZE_MAX)
            .max_send_buffer_size(SEND_BUFFER_SIZE)
            .initial_max_send_streams(STREAMS_FIRST)
            .enable_push(false);
        let transport = Transport(Rc::clone(&pipe));
        let handshake = Box::pin(async move { builder.handshake(transport).await });
        let host = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        let own = fields.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("host"));
        let own = own.filter_map(|(name, value)| {
            Some((HeaderName::try_from(name.as_str()).ok()?, HeaderValue::try_from(value.as_str()).ok()?))
        });
        let is_woken = Flag::raised();
        Self {
            pipe,
            state: State::Handshake(handshake),
            waker: Waker::from(Arc::clone(&is_woken)),
            is_woken,
            authority: host.map_or(authority, |(_, value)| value).to_owned(),
            fields: own.collect(),
            keeps_bodies,
            waiting: VecDeque::new(),
            streams: Vec::new(),
            heads: Vec::new(),
            output: Vec::new(),
            output_at: 0,
            finished: VecDeque::new(),
        }
    }

    /// Lets `h2` do all it can with the bytes it has.
    fn drive(&mut self) -> Result<(), Failure> {
        while self.is_woken.take() {
            self.drive_connection()?;
            self.send_waiting()?;
            for stream in &mut self.streams {
                if stream.flag.take() {
                    self.finished.extend(stream.poll(self.keeps_bodies));
                }
            }
        }
        Ok(())
    }

    fn drive_connection(&mut self) -> Result<(), Failure> {
        let mut context = Context::from_waker(&self.waker);
        if let State::Handshake(handshake) = &mut self.state {
            match handshake.as_mut().poll(&mut context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok((send, connection))) => self.state = State::Open(Box::new(connection), send),
                Poll::Ready(Err(error)) => return Err(failure(&error)),
            }
        }
        if let State::Open(connection, _) = &mut self.state {
            match Pin::new(connection).poll(&mut context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.state = State::Closed,
                Poll::Ready(Err(error)) => {
                    self.state = State::Closed;
                    return Err(failure(&error));
                }
            }
        }
        Ok(())
    }

    fn send_waiting(&mut self) -> Result<(), Failure> {
        let mut context = Context::from_waker(&self.waker);
        while let State::Open(_, send) = &mut self.state {
            let Some((_, outgoing)) = self.waiting.front() else { break };
            match send.poll_ready(&mut context) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(failure(&error)),
            }
            let head = head(&mut self.heads, outgoing.method, &self.authority, &self.fields)?;
            let (reply, mut stream) = send.send_request(head, false).map_err(|error| failure(&error))?;
            stream.send_data(outgoing.bytes.clone(), true).map_err(|error| failure(&error))?;
            let Some((token, _)) = self.waiting.pop_front() else { break };
            let call = Call { token, send: stream, reply: Reply::Head(reply) };
            // The connection has something to write, and the stream something to wait for.
            self.is_woken.raise();
            match self.streams.iter_mut().find(|stream| stream.call.is_none()) {
                Some(stream) => stream.begin(call),
                None => self.streams.push(Stream::new(call)),
            }
        }
        Ok(())
    }
}

/// The head of a call, made once for each method.
fn head(
    heads: &mut Vec<(Method, Request<()>)>,
    method: Method,
    authority: &str,
    fields: &HeaderMap,
) -> Result<Request<()>, Failure> {
    if let Some((_, head)) = heads.iter().find(|(have, _)| *have == method) {
        return Ok(head.clone());
    }
    let uri = Uri::builder().scheme("http").authority(authority).path_and_query(method.path()).build();
    let uri = uri.map_err(|error| Failure::new(Kind::Malformed, error.to_string()))?;
    let mut head = Request::new(());
    *head.method_mut() = http::Method::POST;
    *head.uri_mut() = uri;
    *head.headers_mut() = fields.clone();
    head.headers_mut().insert(http::header::TE, HeaderValue::from_static("trailers"));
    head.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    heads.push((method, head.clone()));
    Ok(head)
}

impl Stream {
    fn new(call: Call) -> Self {
        let flag = Flag::raised();
        Self { waker: Waker::from(Arc::clone(&flag)), flag, call: Some(call) }
    }

    fn begin(&mut self, call: Call) {
        self.call = Some(call);
        self.flag.raise();
    }

    /// Reads on; the call, once it has ended.
    fn poll(&mut self, keeps_bodies: bool) -> Option<Finished> {
        let call = self.call.as_mut()?;
        let mut context = Context::from_waker(&self.waker);
        let Poll::Ready(outcome) = call.poll(&mut context, keeps_bodies) else { return None };
        let token = call.token;
        self.call = None;
        Some(Finished { token, outcome })
    }
}

impl Call {
    fn poll(&mut self, context: &mut Context<'_>, keeps_bodies: bool) -> Poll<Result<Bytes, Failure>> {
        loop {
            match &mut self.reply {
                Reply::Head(reply) => {
                    let reply = match std::task::ready!(Pin::new(reply).poll(context)) {
                        Ok(reply) => reply,
                        Err(error) => return Poll::Ready(Err(failure(&error))),
                    };
                    let (head, body) = reply.into_parts();
                    if head.status != http::StatusCode::OK {
                        return Poll::Ready(Err(Failure::new(Kind::Http(head.status.as_u16()), "")));
                    }
                    // Trailers-Only: the status stands in the head (PROTOCOL-HTTP2.md, "Responses").
                    if head.headers.contains_key("grpc-status") {
                        return Poll::Ready(status(&head.headers).map(|()| Bytes::new()));
                    }
                    self.reply = Reply::Body(body, BytesMut::new());
                }
                Reply::Body(body, kept) => {
                    while let Some(part) = std::task::ready!(body.poll_data(context)) {
                        let part = match part {
                            Ok(part) => part,
                            Err(error) => return Poll::Ready(Err(failure(&error))),
                        };
                        let _ = body.flow_control().release_capacity(part.len());
                        if keeps_bodies {
                            kept.extend_from_slice(&part);
                        }
                    }
                    let trailers = match std::task::ready!(body.poll_trailers(context)) {
                        Ok(trailers) => trailers.unwrap_or_default(),
                        Err(error) => return Poll::Ready(Err(failure(&error))),
                    };
                    return Poll::Ready(status(&trailers).and_then(|()| message(kept)));
                }
            }
        }
    }
}

/// The message behind its prefix.
fn message(kept: &mut BytesMut) -> Result<Bytes, Failure> {
    let mut bytes = std::mem::take(kept).freeze();
    bytes.advance(bytes.len().min(crate::wire::grpc::PREFIX_SIZE));
    Ok(bytes)
}

/// What the trailers say became of the call.
fn status(trailers: &HeaderMap) -> Result<(), Failure> {
    let code = trailers.get("grpc-status").and_then(|value| value.to_str().ok()?.parse().ok());
    let text = || {
        let text = trailers.get("grpc-message").map(|value| percent_decoded(value.as_bytes()));
        text.unwrap_or_default()
    };
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::new(Kind::Grpc(code), text())),
        None => Err(Failure::new(Kind::Malformed, "no grpc-status")),
    }
}

fn percent_decoded(text: &[u8]) -> String {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = if *first == b'%' { after.first_chunk::<2>() } else { None };
        match digits.and_then(|[high, low]| Some(hex(*high)? << 4 | hex(*low)?)) {
            Some(byte) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The end of a connection or stream that the server chose, or else a breach of the protocol.
fn failure(error: &h2::Error) -> Failure {
    let kind = if error.is_io() || error.is_remote() { Kind::Closed } else { Kind::Malformed };
    Failure::new(kind, error.to_string())
}

impl Exchange for Http2 {
    fn handle_request(&mut self, token: usize, request: &Outgoing) {
        self.waiting.push_back((token, request.clone()));
        self.is_woken.raise();
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.pipe.borrow_mut().incoming.extend_from_slice(bytes);
        self.is_woken.raise();
        self.drive()
    }

    fn handle_end(&mut self) {
        self.pipe.borrow_mut().has_ended = true;
        self.is_woken.raise();
        // What was in flight fails for the end of the connection, whatever `h2` calls it.
        let _ = self.drive();
        self.state = State::Closed;
    }

    fn handle_cancel(&mut self, token: usize) -> bool {
        self.waiting.retain(|(have, _)| *have != token);
        for stream in &mut self.streams {
            if let Some(mut call) = stream.call.take_if(|call| call.token == token) {
                call.send.send_reset(h2::Reason::CANCEL);
                self.is_woken.raise();
            }
        }
        true
    }

    fn poll_finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    fn poll_output(&mut self) -> Option<&[u8]> {
        if self.output_at >= self.output.len() {
            self.output.clear();
            self.output_at = 0;
            if self.drive().is_err() {
                self.state = State::Closed;
            }
            std::mem::swap(&mut self.output, &mut self.pipe.borrow_mut().outgoing);
            if self.output.len() >= OUTPUT_SIZE_MAX {
                // `h2` stopped where the buffer was full.
                self.is_woken.raise();
            }
        }
        self.output.get(self.output_at..).filter(|rest| !rest.is_empty())
    }

    fn handle_sent(&mut self, size: usize) {
        self.output_at += size;
    }

    fn is_over(&self) -> bool {
        matches!(self.state, State::Closed)
    }
}

/// Raised by a waker, taken by the loop.
#[derive(Debug)]
struct Flag(AtomicBool);

impl Flag {
    fn raised() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was raised. Only this thread wakes, so that a load and a store are enough.
    fn take(&self) -> bool {
        let is_raised = self.0.load(Ordering::Relaxed);
        if is_raised {
            self.0.store(false, Ordering::Relaxed);
        }
        is_raised
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.raise();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raise();
    }
}

/// The bytes between `h2` and whoever has the socket.
#[derive(Debug, Default)]
struct Pipe {
    incoming: BytesMut,
    outgoing: Vec<u8>,
    has_ended: bool,
}

/// `h2`'s end of the pipe.
#[derive(Debug)]
struct Transport(Rc<RefCell<Pipe>>);

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut pipe = self.0.borrow_mut();
        if pipe.incoming.is_empty() {
            return if pipe.has_ended { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let size = pipe.incoming.len().min(buffer.remaining());
        buffer.put_slice(&pipe.incoming.split_to(size));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.borrow_mut();
        let room = OUTPUT_SIZE_MAX.saturating_sub(pipe.outgoing.len());
        if room == 0 {
            return Poll::Pending;
        }
        let part = bytes.get(..bytes.len().min(room)).unwrap_or_default();
        pipe.outgoing.extend_from_slice(part);
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_status_are_decoded() {
        let check = |text: &str, want: &str| assert_eq!(percent_decoded(text.as_bytes()), want);
        check("plain", "plain");
        check("50%25 caf%C3%A9", "50% café");
        check("%zz%1", "%zz%1");
    }

    #[test]
    fn a_connection_begins_with_the_preface_and_waits_for_nobody() {
        let mut exchange = Http2::new("localhost:1", &[], true);
        let first = exchange.poll_output().unwrap().to_vec();
        assert!(first.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        exchange.handle_sent(first.len());
        exchange
            .handle_request(3, &Outgoing { method: Method::ModelInfer, bytes: Bytes::from_static(b"\0\0\0\0\x01x") });
        // HEADERS and DATA, without waiting for the server's SETTINGS (RFC 9113 §3.4).
        let sent = exchange.poll_output().unwrap().to_vec();
        assert!(sent.ends_with(b"\0\0\0\0\x01x"), "{sent:?}");
        assert!(!exchange.is_over());
    }

    #[test]
    fn a_peer_that_speaks_something_else_is_malformed() {
        let mut exchange = Http2::new("localhost:1", &[], true);
        exchange.handle_request(3, &Outgoing { method: Method::ModelInfer, bytes: Bytes::new() });
        let size = exchange.poll_output().unwrap().len();
        exchange.handle_sent(size);
        let error = exchange.handle_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_err();
        assert_eq!(error.kind, Kind::Malformed, "{error}");
    }
}
