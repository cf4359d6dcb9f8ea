//! One HTTP/2 connection, on the `h2` crate: a task for the connection and one for each stream.
//! gRPC by its content type, anything else as a plain message. Lives on its shard.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_lite::{FutureExt, future};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::{BODY_STEP_SIZE, BODY_TIMEOUT, COALESCE_SIZE_MAX, STREAMS_MAX, WRITE_TIMEOUT};
use crate::metrics::Departure;
use crate::shard::connections::{Membership, Verdict, Watch};
use crate::shard::io::Socket;
use crate::shard::{Shard, clock, grpc, runtime, service};
use crate::time::Instant;
use crate::wire::http1::Refusal;
use crate::wire::message::{Fields, Message, Method, Reply};

/// Bytes of a DATA frame that we accept: fewer frames for a large tensor.
const FRAME_SIZE_MAX: u32 = 1024 * 1024;
/// Bytes of one stream that a client may send before we ask for more.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// The same for a connection.
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes of replies that wait for a slow reader, for each stream.
const SEND_BUFFER_SIZE: usize = 1024 * 1024;
/// Streams that may be reset by us before a peer that provokes it is sent away.
const LOCAL_RESETS_MAX: usize = 1_024;

/// Serves a connection whose first bytes were read already.
pub async fn run(shard: &Rc<Shard>, socket: Socket, first: Bytes, membership: &Membership) {
    let watch = Rc::clone(membership.watch());
    let mut builder = h2::server::Builder::new();
    builder
        .max_frame_size(FRAME_SIZE_MAX)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(crate::limits::HEAD_SIZE_MAX).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER_SIZE)
        .max_local_error_reset_streams(Some(LOCAL_RESETS_MAX));
    let mut handshake = pin!(builder.handshake::<_, Bytes>(Transport { socket, first }));
    let connection = poll_fn(|context| {
        watch.register(context);
        if let Poll::Ready(outcome) = handshake.as_mut().poll(context) {
            return Poll::Ready(outcome.ok());
        }
        // A drain lets it finish: the requests that follow the preface were sent already.
        if watch.take_verdict() == Some(Verdict::Timeout) { Poll::Ready(None) } else { Poll::Pending }
    });
    if let Some(connection) = connection.await {
        watch.set_deadline(None);
        serve(shard, connection, &watch).await;
    }
}

type Connection = h2::server::Connection<Transport, Bytes>;

async fn serve(shard: &Rc<Shard>, mut connection: Connection, watch: &Rc<Watch>) {
    let mut is_draining = false;
    loop {
        let accepted = poll_fn(|context| {
            watch.register(context);
            if shard.connections.is_draining() && !std::mem::replace(&mut is_draining, true) {
                connection.graceful_shutdown();
            }
            connection.poll_accept(context)
        })
        .await;
        // A broken connection ends its streams: their tasks find out by themselves.
        let Some(Ok((request, respond))) = accepted else { return };
        let shard = Rc::clone(shard);
        runtime::spawn(async move {
            let cells = Arc::clone(&shard.cells);
            if AssertUnwindSafe(stream(shard, request, respond)).catch_unwind().await.is_err() {
                cells.panics.add(1);
            }
        })
        .detach();
    }
}

async fn stream(shard: Rc<Shard>, request: Request<RecvStream>, respond: SendResponse<Bytes>) {
    let (head, body) = request.into_parts();
    let content_type = head.headers.get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    // RFC: gRPC over HTTP/2, "Content-Type": application/grpc, with or without a suffix.
    if content_type.is_some_and(|value| value.starts_with(b"application/grpc")) {
        grpc::serve(&shard, &head, body, respond).await;
    } else {
        let _ = serve_message(&shard, &head, body, respond).await;
    }
}

/// A plain message: REST over HTTP/2.
async fn serve_message(
    shard: &Rc<Shard>,
    head: &http::request::Parts,
    mut body: RecvStream,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let size_max = shard.world.http_input_size_max;
    let mut gathered = crate::tensor::AlignedBuffer::with_alignment_at(prefix_size(head), 0);
    let mut pace = Pace::new(clock::now());
    loop {
        let Some(chunk) = next_chunk_until(&mut body, pace.due()).await else {
            let reply = Refusal::new(408, "the request body did not arrive in time").into_reply();
            return send_reply(&mut respond, &reply, false).await;
        };
        let Some(chunk) = chunk? else { break };
        pace.handle_chunk(chunk.len(), clock::now());
        if gathered.len() + chunk.len() > size_max {
            let reply = crate::protocol::rest::error_reply(&crate::error::Error::too_large(format!(
                "request size exceeds the maximum allowed input size of {size_max} bytes. \
                 Use --http-max-input-size to increase the limit."
            )));
            return send_reply(&mut respond, &reply, false).await;
        }
        gathered.extend_from_slice(&chunk);
    }
    let message = into_message(head, gathered.freeze());
    let is_head = message.method == Method::Head;
    let departure = Cell::new(Departure::StreamReset);
    let work = service::handle_message(shard, message, clock::now(), &departure);
    let Some(reply) = unless_reset(&mut respond, work, &departure).await else { return Ok(()) };
    send_reply(&mut respond, &reply, is_head).await
}

fn prefix_size(head: &http::request::Parts) -> usize {
    let value = head.headers.get("inference-header-content-length");
    value.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

fn into_message(head: &http::request::Parts, body: Bytes) -> Message {
    let mut fields = Fields::new();
    for (name, value) in &head.headers {
        fields.push(Bytes::copy_from_slice(name.as_str().as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
    }
    let method = Method::from_token(head.method.as_str().as_bytes());
    Message { method, path: Bytes::copy_from_slice(head.uri.path().as_bytes()), fields, body }
}

async fn send_reply(respond: &mut SendResponse<Bytes>, reply: &Reply, is_head: bool) -> Result<(), h2::Error> {
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.fields {
        response = response.header(*name, value.as_ref());
    }
    response = response.header(http::header::CONTENT_LENGTH, reply.body_size());
    let Ok(response) = response.body(()) else { return Ok(()) };
    let is_empty = is_head || reply.body_size() == 0;
    let mut stream = respond.send_response(response, is_empty)?;
    if !is_empty {
        send_parts(&mut stream, &reply.body, true).await?;
    }
    Ok(())
}

/// Sends parts on a stream: small ones at once as one frame, large ones as the client makes room.
/// A client that makes none for [`WRITE_TIMEOUT`] loses the stream.
pub async fn send_parts(stream: &mut SendStream<Bytes>, parts: &[Bytes], is_last: bool) -> Result<(), h2::Error> {
    let size: usize = parts.iter().map(Bytes::len).sum();
    if size <= COALESCE_SIZE_MAX {
        if let [whole] = parts {
            return stream.send_data(whole.clone(), is_last);
        }
        let mut whole = Vec::with_capacity(size);
        parts.iter().for_each(|part| whole.extend_from_slice(part));
        return stream.send_data(whole.into(), is_last);
    }
    let mut left = size;
    for part in parts {
        let mut rest = part.clone();
        while !rest.is_empty() {
            let room = room_in_time(stream, rest.len()).await?;
            let chunk = rest.split_to(room.min(rest.len()));
            left = left.saturating_sub(chunk.len());
            stream.send_data(chunk, is_last && left == 0)?;
        }
    }
    Ok(())
}

async fn room_in_time(stream: &mut SendStream<Bytes>, wanted: usize) -> Result<usize, h2::Error> {
    stream.reserve_capacity(wanted.min(SEND_BUFFER_SIZE));
    if stream.capacity() > 0 {
        return Ok(stream.capacity());
    }
    let room =
        async { poll_fn(|context| stream.poll_capacity(context)).await.unwrap_or_else(|| Err(Reason::CANCEL.into())) };
    let late = async {
        runtime::sleep(WRITE_TIMEOUT).await;
        Err(Reason::ENHANCE_YOUR_CALM.into())
    };
    let room = future::or(room, late).await;
    if room.is_err() {
        stream.send_reset(Reason::CANCEL);
    }
    room
}

/// The next bytes of a body, whose room in the windows is given back at once.
pub async fn next_chunk(body: &mut RecvStream) -> Result<Option<Bytes>, h2::Error> {
    match body.data().await {
        None => Ok(None),
        Some(chunk) => {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            Ok(Some(chunk))
        }
    }
}

/// The same, no later than an instant; `None` when that has come.
pub async fn next_chunk_until(body: &mut RecvStream, due: Instant) -> Option<Result<Option<Bytes>, h2::Error>> {
    let late = async {
        runtime::sleep_until(due).await;
        None
    };
    future::or(async { Some(next_chunk(body).await) }, late).await
}

/// How fast a body must come, as over HTTP/1.1: `BODY_STEP_SIZE` bytes, or its end, within
/// `BODY_TIMEOUT`.
pub struct Pace {
    due: Instant,
    moved: usize,
}

impl Pace {
    /// Of a body that begins.
    pub fn new(now: Instant) -> Self {
        Self { due: now + BODY_TIMEOUT, moved: 0 }
    }

    /// When more must have come.
    pub const fn due(&self) -> Instant {
        self.due
    }

    /// So many bytes came.
    pub fn handle_chunk(&mut self, size: usize, now: Instant) {
        self.moved = self.moved.saturating_add(size);
        if self.moved >= BODY_STEP_SIZE {
            *self = Self::new(now);
        }
    }
}

/// Runs some work to its end, unless the client resets the stream, or closes the connection, before:
/// `departure` says then which of them, before the work is dropped. Before, it says what a reset with
/// the code CANCEL is.
pub async fn unless_reset<T>(
    respond: &mut SendResponse<Bytes>,
    work: impl Future<Output = T>,
    departure: &Cell<Departure>,
) -> Option<T> {
    let mut work = pin!(work);
    let is_reset = Cell::new(false);
    poll_fn(|context| {
        if let Poll::Ready(outcome) = work.as_mut().poll(context) {
            return Poll::Ready(Some(outcome));
        }
        if !is_reset.get()
            && let Poll::Ready(reset) = respond.poll_reset(context)
        {
            is_reset.set(true);
            departure.set(match reset {
                // What a gRPC client does to cancel a call (gRPC over HTTP/2, "Errors").
                Ok(Reason::CANCEL) => departure.get(),
                Ok(_) => Departure::StreamReset,
                Err(_) => Departure::ConnectionClosed,
            });
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

/// A socket as `h2` wants it, with the bytes that were read before it took over.
struct Transport {
    socket: Socket,
    first: Bytes,
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let count = this.first.len().min(space.remaining());
            space.put_slice(&this.first.split_to(count));
            return Poll::Ready(Ok(()));
        }
        let count = std::task::ready!(this.socket.poll_read(context, space.initialize_unfilled()))?;
        space.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().socket.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// With vectored writes `h2` sends one frame a system call; without, it gathers small replies
    /// of many streams into one.
    fn is_write_vectored(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_moves_when_it_brings_a_step_and_not_byte_by_byte() {
        let mut pace = Pace::new(Instant::ZERO);
        let later = Instant::from_micros(1);
        pace.handle_chunk(BODY_STEP_SIZE - 1, later);
        assert_eq!(pace.due(), Instant::ZERO + BODY_TIMEOUT);
        pace.handle_chunk(1, later);
        assert_eq!(pace.due(), later + BODY_TIMEOUT);
        pace.handle_chunk(1, later + BODY_TIMEOUT);
        assert_eq!(pace.due(), later + BODY_TIMEOUT);
    }
}
