//! The start of a connection: its first bytes tell HTTP/1.1 from HTTP/2, on every port (RFC 9113 §3.4: the client's
//! preface).

use std::future::poll_fn;
use std::io::IoSlice;
use std::rc::Rc;
use std::task::Poll;

use crate::connection::tls::HANDSHAKE_RECORD;
use crate::limits::{HEAD_TIMEOUT, INPUT_SIZE_MIN, LINGER_TIMEOUT};
use crate::runtime::clock;
use crate::runtime::socket::ByteStream;
use crate::shard::connections::{ConnectionGuard, WakeReason};
use crate::shard::linger::linger;
use crate::shard::{Shard, http1, http2};
use crate::wire::http1::HttpRefusal;
use crate::wire::http1::reply::{self, BodyFraming, ConnectionOption};
use crate::wire::http2::PREFACE;

/// Serves one connection to its end.
pub async fn run<S: ByteStream>(shard: &Rc<Shard>, mut socket: S, connection_guard: &ConnectionGuard) {
    connection_guard.watch().set_deadline(Some(clock::now() + HEAD_TIMEOUT));
    let Some(first) = read_first(&mut socket, connection_guard).await else { return };
    if !S::IS_ENCRYPTED && first.first() == Some(&HANDSHAKE_RECORD) {
        shard.cells.framing_errors.add(1);
        return refuse(socket, connection_guard, PLAIN_PORT).await;
    }
    // Boxed: the futures are large, and a connection that has sent nothing yet should not take their memory.
    if first.starts_with(PREFACE) {
        Box::pin(http2::run(shard, socket, first, connection_guard)).await;
    } else {
        Box::pin(http1::run(shard, socket, first, connection_guard)).await;
    }
}

/// What a client of TLS is told at a port without it.
const PLAIN_PORT: &str =
    "this port has no TLS: connect with http://, or start the server with --http-use-ssl or --grpc-use-ssl";

/// Answers a client that speaks another protocol than its port does, and closes.
pub async fn refuse<S: ByteStream>(mut socket: S, connection_guard: &ConnectionGuard, text: &str) {
    let (mut out, reply) = (Vec::new(), HttpRefusal::new(400, text.to_owned()).into_reply());
    reply::encode_head(&reply, ConnectionOption::Close, BodyFraming::Length, &mut out);
    reply.body.iter().for_each(|part| out.extend_from_slice(part));
    // As many bytes as this the kernel takes at once from a connection that has sent none before.
    if socket.try_write_vectored(&[IoSlice::new(&out)]).is_ok() {
        let _ = linger(&mut socket, connection_guard.watch(), LINGER_TIMEOUT).await;
    }
}

/// Reads until the bytes are a preface or cannot become one; `None` when the peer left or the timeout passed before.
async fn read_first<S: ByteStream>(socket: &mut S, connection_guard: &ConnectionGuard) -> Option<Vec<u8>> {
    let mut first = vec![0; INPUT_SIZE_MIN];
    let mut size = 0;
    let watch = connection_guard.watch();
    loop {
        let space = first.get_mut(size..)?;
        let count = poll_fn(|context| {
            watch.register(context);
            if let Poll::Ready(count) = socket.poll_read(context, space) {
                return Poll::Ready(count.unwrap_or(0));
            }
            match watch.take_wake_reason() {
                None => Poll::Pending,
                Some(WakeReason::Drain) if clock::now() < watch.quiet_at() => {
                    watch.set_deadline(Some(watch.quiet_at()));
                    Poll::Pending
                }
                Some(WakeReason::Drain | WakeReason::Timeout) => Poll::Ready(0),
            }
        })
        .await;
        size += count;
        let have = first.get(..size)?;
        if count == 0 && (size == 0 || PREFACE.starts_with(have)) {
            return None;
        }
        if !PREFACE.starts_with(have) || size >= PREFACE.len() {
            first.truncate(size);
            return Some(first);
        }
    }
}
