//! Our connection and the `h2` crate's client, joined by two pipes in memory. Bytes decide the behaviour of both: the
//! requests, the size of the windows, the cuts of the pipes, the cancelled calls. In every case a call that is not
//! cancelled gets its own answer, whole, and after a drain both sides end without a fault. Used by a test and by a fuzz
//! target.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use deuteron::connection::http2::{
    CallStatus, ConnectionEvent, Http2Connection, Http2Settings, MessageDelivery, NextMessage,
};
use deuteron::policy::KeepAlivePolicy;
use deuteron::time::Instant;
use deuteron::wire::http2::PREFACE;
use deuteron::wire::message::{BodyBuffer, Reply};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Calls of one connection.
const CALLS_MAX: usize = 20;
/// Bytes of a message: more than every window here.
const MESSAGE_SIZE_MAX: usize = 90_000;
/// Bytes that wait in the client's pipe at most.
const PIPE_SIZE: usize = 64 * 1024;
/// Rounds after which a call that has not ended never will.
const ROUNDS_MAX: usize = 200_000;

/// Runs one connection as the input decides.
pub fn exchange(input: &[u8]) {
    let mut choices = Choices::new(input);
    let mut server = Server::new(&mut choices);
    let mut client = Client::new(&mut choices);
    while choices.are_left() {
        match choices.below(8) {
            0 | 1 => client.ask(&mut choices),
            2 => client.give_up(&mut choices),
            3 => client.send_more(&mut choices),
            4 => client.read(&mut choices),
            5 => server.take(&client.pipe, choices.size(3_000)),
            6 => server.give(&client.pipe, choices.size(3_000)),
            _ => client.drive(),
        }
    }
    settle(&mut client, &mut server, |client| client.calls.iter().all(Call::has_ended), "a call has no answer");
    client.calls.iter().for_each(Call::check);
    server.connection.begin_drain(Instant::ZERO);
    client.sender = None;
    settle(&mut client, &mut server, |client| client.is_closed, "a drain does not end the connection");
    server.connection.handle_end();
    assert!(server.connection.is_finished(), "the connection has seen its end");
}

/// Moves whole pieces until the condition holds.
fn settle(client: &mut Client, server: &mut Server, is_over: impl Fn(&Client) -> bool, what: &str) {
    let mut idle_rounds = 0;
    for _ in 0..ROUNDS_MAX {
        let moved = client.pipe.borrow().moved;
        client.drive();
        client.finish_all();
        if is_over(client) {
            return;
        }
        server.take(&client.pipe, usize::MAX);
        server.give(&client.pipe, usize::MAX);
        idle_rounds = if client.pipe.borrow().moved == moved { idle_rounds + 1 } else { 0 };
        if idle_rounds > 2 {
            server.wait();
        }
        client.pipe.borrow_mut().has_ended |= server.connection.is_finished() && !server.connection.has_output();
    }
    panic!("{what}");
}

/// The bytes that decide on everything.
struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    fn are_left(&self) -> bool {
        !self.rest.is_empty()
    }

    fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        usize::from(*first)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.byte() % bound
    }

    /// Often small, now and then large, edges more often than others.
    fn size(&mut self, max: usize) -> usize {
        const EDGES: [usize; 8] = [0, 1, 5, 9, 255, 16_379, 16_384, 65_535];
        match self.byte() {
            edge @ 0..64 => EDGES[edge % EDGES.len()].min(max),
            small @ 64..192 => small.min(max),
            large => (large * 256 + self.byte()) * 7 % (max + 1),
        }
    }
}

/// A body without alignment.
struct Plain(Vec<u8>);

impl BodyBuffer for Plain {
    fn announced(_: usize, _: usize) -> Self {
        Self(Vec::new())
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn resize(&mut self, size: usize) {
        self.0.resize(size, 0);
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn freeze(self) -> Bytes {
        Bytes::from(self.0)
    }
}

struct Server {
    connection: Http2Connection<Plain, ()>,
    /// Bytes of the preface that are still to come: the reader of the socket takes them.
    preface_left: usize,
    now: Instant,
}

impl Server {
    fn new(choices: &mut Choices<'_>) -> Self {
        let settings = Http2Settings {
            streams_max: 1 + choices.below(CALLS_MAX) as u32,
            stream_window_size: 65_535 + choices.size(70_000) as u32,
            connection_window_size: 65_535 + choices.size(70_000) as u32,
            client_resets_max: 1_000,
            control_frames_max: 1_000_000,
            // The clock here jumps to the next timer.
            keep_alive: KeepAlivePolicy { time: None, ..KeepAlivePolicy::default() },
            ..Http2Settings::default()
        };
        Self {
            connection: Http2Connection::new(settings, Instant::ZERO),
            preface_left: PREFACE.len(),
            now: Instant::ZERO,
        }
    }

    /// Reads `size` bytes.
    fn take(&mut self, pipe: &RefCell<Pipe>, size: usize) {
        let mut pipe = pipe.borrow_mut();
        let mut left = size.min(pipe.outgoing.len());
        let preface = left.min(self.preface_left);
        drop(pipe.outgoing.split_to(preface));
        self.preface_left -= preface;
        left -= preface;
        while left > 0 {
            let space = self.connection.input_space(usize::MAX);
            let count = space.len().min(left);
            if count == 0 {
                break;
            }
            let piece = pipe.outgoing.split_to(count);
            pipe.seen.take(&piece);
            space[..count].copy_from_slice(&piece);
            left -= count;
            self.connection.handle_input(count, self.now);
            self.handle_events();
        }
    }

    /// Writes `size` bytes.
    fn give(&mut self, pipe: &RefCell<Pipe>, size: usize) {
        let mut left = size;
        loop {
            self.connection.prepare_transmit(self.now);
            let parts = self.connection.transmit_parts().collect::<Vec<_>>().concat();
            let count = parts.len().min(left);
            if count == 0 {
                break;
            }
            pipe.borrow_mut().incoming.extend_from_slice(&parts[..count]);
            pipe.borrow_mut().moved += count;
            self.connection.handle_transmitted(count, self.now);
            left -= count;
        }
        self.handle_events();
    }

    /// Lets the time pass until a timer is due. Bytes that a client sends behind an answer are awaited for a short
    /// time.
    fn wait(&mut self) {
        self.now = self.connection.poll_timeout().map_or(self.now, |at| at.max(self.now));
        self.connection.handle_timeout(self.now);
        self.handle_events();
    }

    /// Sends back the received bytes.
    fn handle_events(&mut self) {
        let (connection, now) = (&mut self.connection, self.now);
        while let Some(event) = connection.poll_event(now) {
            match event {
                ConnectionEvent::Call { stream, .. } => match connection.path(stream) {
                    b"/each" => connection.accept_call(stream, MessageDelivery::Each),
                    b"/refused" => {
                        let status = CallStatus { code: 5, text: "no%20such".to_owned(), fields: Default::default() };
                        connection.end_call(stream, Some(status), now);
                    }
                    _ => connection.accept_call(stream, MessageDelivery::One(())),
                },
                ConnectionEvent::Message { stream, message } => {
                    connection.send_reply(stream, Reply::new(200, "text/plain", message.body), now);
                }
                ConnectionEvent::Whole { stream, message, .. } => connection.send_answer(stream, framed(message), now),
                ConnectionEvent::Next(stream) => loop {
                    match connection.take_next(stream).expect("the client's calls are well made") {
                        NextMessage::Message(message) => connection.send_message(stream, framed(message), now),
                        NextMessage::Nothing => break,
                        NextMessage::End => break connection.end_call(stream, None, now),
                    }
                },
                ConnectionEvent::Reset { stream, .. } => connection.handle_gone(stream),
                // Answered already.
                ConnectionEvent::Refused(_) => {}
                ConnectionEvent::Fault { stream, fault } => panic!(
                    "the client's calls are well made: {fault:?} {stream:?} {}",
                    connection.path(stream).escape_ascii()
                ),
            }
        }
    }
}

fn framed(message: Bytes) -> [Bytes; 2] {
    let size = u32::try_from(message.len()).expect("it came with such a size").to_be_bytes();
    [Bytes::from([&[0], &size[..]].concat()), message]
}

/// The kind of request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// A plain message and its body.
    Rest,
    /// A call with one message.
    One,
    /// A call with several.
    Each,
    /// A call that is refused.
    Refused,
}

struct Call {
    ask: Ask,
    want: Vec<u8>,
    unsent: Bytes,
    stream: Option<SendStream<Bytes>>,
    head: Option<ResponseFuture>,
    body: Option<RecvStream>,
    got: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_given_up: bool,
}

impl Call {
    fn has_ended(&self) -> bool {
        self.is_given_up || self.head.is_none() && self.body.is_none()
    }

    fn check(&self) {
        if self.is_given_up {
            return;
        }
        let status = self.trailers.as_ref().and_then(|trailers| trailers.get("grpc-status")?.to_str().ok());
        let want = match self.ask {
            Ask::Rest => None,
            Ask::One | Ask::Each => Some("0"),
            Ask::Refused => Some("5"),
        };
        assert_eq!(status, want);
        assert!(self.got == self.want, "{} bytes came, {} were asked for", self.got.len(), self.want.len());
    }

    /// Hands `size` bytes of the body to the client.
    fn send(&mut self, size: usize) {
        let Some(stream) = &mut self.stream else { return };
        let part = self.unsent.split_to(size.min(self.unsent.len()));
        let is_last = self.unsent.is_empty();
        // The server may have answered and closed the stream already.
        if stream.send_data(part, is_last).is_err() || is_last {
            self.stream = None;
        }
    }

    /// Reads what there is.
    fn poll(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        if let Some(head) = &mut self.head {
            let Poll::Ready(reply) = Pin::new(head).poll(&mut context) else { return };
            // Above the bound on streams, before the client knew it or while others were being reset: not processed.
            if reply.as_ref().is_err_and(|error| error.reason() == Some(h2::Reason::REFUSED_STREAM)) {
                self.is_given_up = true;
                return;
            }
            let (head, body) = reply.expect("it is answered").into_parts();
            assert_eq!(head.status, 200);
            if head.headers.contains_key("grpc-status") {
                self.trailers = Some(head.headers);
            }
            (self.head, self.body) = (None, Some(body));
        }
        let Some(body) = &mut self.body else { return };
        while let Poll::Ready(part) = body.poll_data(&mut context) {
            let Some(part) = part else {
                let Poll::Ready(trailers) = body.poll_trailers(&mut context) else { return };
                self.trailers = trailers.expect("the trailers are well made").or(self.trailers.take());
                self.body = None;
                return;
            };
            let part = part.expect("the body is whole");
            self.got.extend_from_slice(&part);
            body.flow_control().release_capacity(part.len()).expect("it was taken");
        }
    }
}

struct Client {
    pipe: Rc<RefCell<Pipe>>,
    sender: Option<SendRequest<Bytes>>,
    connection: Pin<Box<dyn Future<Output = Result<(), h2::Error>>>>,
    is_closed: bool,
    calls: Vec<Call>,
}

impl Client {
    fn new(choices: &mut Choices<'_>) -> Self {
        let pipe = Rc::new(RefCell::new(Pipe::default()));
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(500 + choices.size(70_000) as u32)
            .initial_connection_window_size(65_535 + choices.size(70_000) as u32)
            .max_frame_size(16_384 + choices.size(70_000) as u32)
            .header_table_size(choices.size(8_192) as u32)
            .max_send_buffer_size(CALLS_MAX * 2 * MESSAGE_SIZE_MAX)
            .enable_push(false);
        let mut handshake = Box::pin(builder.handshake::<_, Bytes>(Transport(Rc::clone(&pipe))));
        let Poll::Ready(joined) = handshake.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("a client waits for nobody to begin");
        };
        let (sender, connection) = joined.expect("the preface is written");
        Self { pipe, sender: Some(sender), connection: Box::pin(connection), is_closed: false, calls: Vec::new() }
    }

    /// A call that is given up before its head was written: h2 0.4.20 resets the stream, which was never opened. Then
    /// the server must end the connection (RFC 9113 §5.1), and other calls have no answer.
    fn breaks_rules(&self) -> bool {
        self.pipe.borrow().seen.resets_idle
    }

    fn drive(&mut self) {
        if self.breaks_rules() {
            self.calls.iter_mut().for_each(|call| call.is_given_up = true);
        }
        if !self.is_closed
            && let Poll::Ready(end) = self.connection.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            if !self.breaks_rules() {
                end.expect("the server keeps to the protocol");
            }
            self.is_closed = true;
        }
    }

    fn ask(&mut self, choices: &mut Choices<'_>) {
        if self.breaks_rules() {
            return;
        }
        let Some(sender) = self.sender.as_mut().filter(|_| self.calls.len() < CALLS_MAX) else { return };
        let Poll::Ready(ready) = sender.poll_ready(&mut Context::from_waker(Waker::noop())) else { return };
        ready.expect("the connection is open");
        let ask = [Ask::Rest, Ask::One, Ask::Each, Ask::Refused][choices.below(4)];
        let path = ["/", "/one", "/each", "/refused"][ask as usize];
        let mut body = Vec::new();
        for _ in 0..if ask == Ask::Each { choices.below(4) } else { 1 } {
            let size = choices.size(MESSAGE_SIZE_MAX);
            if ask != Ask::Rest {
                body.extend_from_slice(&[0]);
                body.extend_from_slice(&(size as u32).to_be_bytes());
            }
            let tag = self.calls.len() as u8;
            body.extend((0..size).map(|index| tag.wrapping_mul(31).wrapping_add(index as u8)));
        }
        let mut request = Request::post(format!("http://localhost{path}")).header("x-call", self.calls.len());
        if ask != Ask::Rest {
            request = request.header("content-type", "application/grpc").header("te", "trailers");
        }
        let request = request.body(()).expect("the fields are valid");
        let (head, stream) = sender.send_request(request, false).expect("it is sent");
        let mut call = Call {
            ask,
            want: if ask == Ask::Refused { Vec::new() } else { body.clone() },
            unsent: Bytes::from(body),
            stream: Some(stream),
            head: Some(head),
            body: None,
            got: Vec::new(),
            trailers: None,
            is_given_up: false,
        };
        call.send(choices.size(MESSAGE_SIZE_MAX));
        self.calls.push(call);
    }

    fn pick(&mut self, choices: &mut Choices<'_>) -> Option<&mut Call> {
        let count = self.calls.len().max(1);
        self.calls.get_mut(choices.below(count))
    }

    fn give_up(&mut self, choices: &mut Choices<'_>) {
        let Some(call) = self.pick(choices).filter(|call| !call.has_ended()) else { return };
        call.is_given_up = true;
        // Dropping all handles of a stream resets it.
        (call.stream, call.head, call.body) = (None, None, None);
    }

    fn send_more(&mut self, choices: &mut Choices<'_>) {
        let size = choices.size(MESSAGE_SIZE_MAX);
        if let Some(call) = self.pick(choices) {
            call.send(size);
        }
    }

    fn read(&mut self, choices: &mut Choices<'_>) {
        if self.breaks_rules() {
            return;
        }
        if let Some(call) = self.pick(choices).filter(|call| !call.is_given_up) {
            call.poll();
        }
    }

    fn finish_all(&mut self) {
        for call in self.calls.iter_mut().filter(|call| !call.is_given_up) {
            call.send(usize::MAX);
            call.poll();
        }
    }
}

/// The bytes between the two.
#[derive(Debug, Default)]
struct Pipe {
    incoming: BytesMut,
    outgoing: BytesMut,
    has_ended: bool,
    /// Bytes that were written either way.
    moved: usize,
    /// Frames that the server has read.
    seen: SeenFrames,
}

/// Follows the client's frames, to tell whether it keeps to the protocol itself.
#[derive(Debug, Default)]
struct SeenFrames {
    /// The head of a frame as far as it came, and the bytes of a payload that are to come.
    head: Vec<u8>,
    payload_left: usize,
    stream_max: u32,
    resets_idle: bool,
}

impl SeenFrames {
    fn take(&mut self, mut bytes: &[u8]) {
        const HEADERS: u8 = 1;
        const RST_STREAM: u8 = 3;
        while let Some(first) = bytes.first() {
            if self.payload_left > 0 {
                let count = self.payload_left.min(bytes.len());
                (self.payload_left, bytes) = (self.payload_left - count, &bytes[count..]);
                continue;
            }
            self.head.push(*first);
            bytes = &bytes[1..];
            if let [high, middle, low, kind, _, stream @ ..] = &self.head[..]
                && let Ok(stream) = <[u8; 4]>::try_from(stream)
            {
                let stream = u32::from_be_bytes(stream);
                self.resets_idle |= *kind == RST_STREAM && stream > self.stream_max;
                if *kind == HEADERS {
                    self.stream_max = self.stream_max.max(stream);
                }
                self.payload_left = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
                self.head.clear();
            }
        }
    }
}

/// The client's end of the pipe.
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
        let size = bytes.len().min(PIPE_SIZE.saturating_sub(pipe.outgoing.len()));
        if size == 0 && !bytes.is_empty() {
            return Poll::Pending;
        }
        pipe.outgoing.extend_from_slice(&bytes[..size]);
        pipe.moved += size;
        Poll::Ready(Ok(size))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
