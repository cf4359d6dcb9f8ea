//! The start of a connection: its first bytes tell HTTP/1.1 from HTTP/2, on every port (RFC 9113 §3.4: the client's
//! preface).

use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::Poll;

use crate::connection::tls::HANDSHAKE_RECORD;
use crate::limits::{INPUT_SIZE_MIN, LINGER_TIMEOUT};
use crate::metrics::ClientTimer;
use crate::protocol::front_end::FrontEnd;
use crate::runtime::clock;
use crate::runtime::socket::ByteStream;
use crate::shard::Shard;
use crate::shard::connections::linger::linger;
use crate::shard::connections::{ConnectionGuard, WakeReason};
use crate::shard::sessions::{http1, http2};
use crate::wire::http1::HttpRefusal;
use crate::wire::http1::reply::{self, BodyFraming, ConnectionOption};
use crate::wire::http2::PREFACE;

/// Serves one connection to its end.
pub async fn run<S: ByteStream>(shard: &Rc<Shard>, mut socket: S, connection_guard: &ConnectionGuard) {
    let Some(first) = read_first(shard, &mut socket, connection_guard, Awaited::Protocol).await else { return };
    if !S::IS_ENCRYPTED && first.first() == Some(&HANDSHAKE_RECORD) {
        shard.cells.framing_errors.add(1);
        return refuse(socket, connection_guard, PLAIN_PORT).await;
    }
    // Boxed: the futures are large, and a connection that has sent nothing yet should not take their memory.
    if first.starts_with(PREFACE) {
        return Box::pin(http2::run(shard, socket, first, connection_guard)).await;
    }
    if socket.has_negotiated_h2() {
        // RFC 9113 §3.4: such a client does not speak HTTP/2, so it gets no answer, and no other
        // protocol is guessed.
        shard.cells.framing_errors.add(1);
        let _ = linger(&mut socket, connection_guard.watch(), LINGER_TIMEOUT).await;
        return;
    }
    run_http1(shard, socket, first, connection_guard, FrontEnd::Kserve).await;
}

/// Serves a port of a hosting service, which speaks HTTP/1.1 alone.
pub async fn run_hosting<S: ByteStream>(
    shard: &Rc<Shard>,
    socket: S,
    connection_guard: &ConnectionGuard,
    front_end: FrontEnd,
) {
    run_http1(shard, socket, Vec::new(), connection_guard, front_end).await;
}

/// Serves HTTP/1.1. A connection that is idle between two requests takes as little memory as one
/// before its first.
async fn run_http1<S: ByteStream>(
    shard: &Rc<Shard>,
    mut socket: S,
    mut first: Vec<u8>,
    connection_guard: &ConnectionGuard,
    front_end: FrontEnd,
) {
    while let Some(resting) = Box::pin(http1::run(shard, socket, first, connection_guard, front_end)).await {
        socket = resting;
        let next = read_first(shard, &mut socket, connection_guard, Awaited::Request).await;
        let Some(next) = next else { return };
        first = next;
    }
}

/// The text for a client of TLS at a port without it.
const PLAIN_PORT: &str =
    "this port has no TLS: connect with http://, or start the server with --http-use-ssl or --grpc-use-ssl";

/// Answers a client that speaks another protocol than its port does, and closes.
pub async fn refuse<S: ByteStream>(mut socket: S, connection_guard: &ConnectionGuard, text: &str) {
    let (mut out, reply) = (Vec::new(), HttpRefusal::new(400, text.to_owned()).into_reply());
    reply::encode_head(&reply, ConnectionOption::Close, BodyFraming::Length, &mut out);
    reply.body.iter().for_each(|part| out.extend_from_slice(part));
    // The kernel takes at least this many bytes at once from a connection that has sent none
    // before.
    if socket.try_write_vectored(&[IoSlice::new(&out)]).is_ok() {
        let _ = linger(&mut socket, connection_guard.watch(), LINGER_TIMEOUT).await;
    }
}

/// The meaning of the next bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// The first ones, which tell the protocol.
    Protocol,
    /// The next request of HTTP/1.1.
    Request,
}

/// Reads the next bytes, of a new connection until they are a preface or cannot become one; `None`
/// if the peer left or the timeout passed before.
async fn read_first<S: ByteStream>(
    shard: &Shard,
    socket: &mut S,
    connection_guard: &ConnectionGuard,
    awaited: Awaited,
) -> Option<Vec<u8>> {
    let (watch, timeouts) = (connection_guard.watch(), &shard.server_context.connection_limits.timeouts);
    let (until, timer) = match awaited {
        Awaited::Protocol => (clock::now() + timeouts.head, ClientTimer::Head),
        Awaited::Request => (watch.active_at() + timeouts.idle, ClientTimer::Idle),
    };
    watch.set_deadline(Some(until));
    let mut first = Vec::new();
    loop {
        let count = poll_fn(|context| {
            watch.register(context);
            // On the stack: a silent connection has no buffer.
            let mut space = [0; INPUT_SIZE_MIN];
            if let Poll::Ready(count) = socket.poll_read(context, &mut space) {
                let read = space.get(..count.unwrap_or(0)).unwrap_or_default();
                first.extend_from_slice(read);
                return Poll::Ready(read.len());
            }
            match watch.take_wake_reason() {
                None | Some(WakeReason::Weighed) => Poll::Pending,
                Some(WakeReason::Drain) if clock::now() < watch.quiet_at() => {
                    watch.set_deadline(Some(watch.quiet_at()));
                    Poll::Pending
                }
                Some(WakeReason::Drain | WakeReason::Evicted) => Poll::Ready(0),
                Some(WakeReason::Timeout) => {
                    shard.cells.count_timeouts(timer, 1);
                    Poll::Ready(0)
                }
            }
        })
        .await;
        let is_open = awaited == Awaited::Protocol && PREFACE.starts_with(&first);
        if count == 0 && (first.is_empty() || is_open) {
            if S::IS_ENCRYPTED {
                socket.end_output();
            }
            return None;
        }
        if !is_open || first.len() >= PREFACE.len() {
            return Some(first);
        }
    }
}
