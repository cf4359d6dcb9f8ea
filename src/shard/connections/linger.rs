//! Closes a connection whose peer may still be sending. Closing a socket with unread input sends a
//! reset, and the part of the last reply that the peer's kernel has not taken by then is lost. So
//! the input is read and discarded first, up to a timeout and a number of bytes; after that number
//! it stays unread, until the peer has taken the reply.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use crate::limits::READ_SIZE;
use crate::runtime::clock;
use crate::runtime::socket::ByteStream;
use crate::shard::connections::{ConnectionWatch, WakeReason};

/// The maximum number of bytes that are read and discarded.
const LINGER_SIZE_MAX: usize = 1024 * 1024;

/// The pause between checks that the peer has taken the reply.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Shuts down the sending side and reads until the peer has closed too or the timeout has passed; once the limit of bytes is
/// reached, waits until the peer's kernel has all that was sent.
///
/// # Errors
/// The socket's error.
pub async fn linger<S: ByteStream>(socket: &mut S, watch: &ConnectionWatch, timeout: Duration) -> io::Result<()> {
    socket.shutdown_write().await?;
    let end = clock::now() + timeout;
    watch.set_deadline(Some(end));
    let (mut scratch, mut left) = (vec![0; READ_SIZE], LINGER_SIZE_MAX);
    while left > 0 {
        let count = poll_fn(|context| {
            watch.register(context);
            match watch.take_wake_reason() {
                // Bytes still read here are not held.
                None | Some(WakeReason::Weighed) => {}
                Some(WakeReason::Drain | WakeReason::Evicted | WakeReason::Timeout) => return Poll::Ready(Ok(0)),
            }
            socket.poll_read(context, &mut scratch)
        })
        .await?;
        if count == 0 {
            return Ok(());
        }
        left = left.saturating_sub(count);
    }
    // The end of the stream counts as a byte.
    while socket.unacknowledged() > 1 && clock::now() < end {
        watch.set_deadline(Some(end.min(clock::now() + LOOK_PAUSE)));
        let reason = poll_fn(|context| {
            watch.register(context);
            watch.take_wake_reason().map_or(Poll::Pending, Poll::Ready)
        });
        if matches!(reason.await, WakeReason::Drain | WakeReason::Evicted) {
            break;
        }
    }
    Ok(())
}
