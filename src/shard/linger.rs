//! Closes a connection whose peer may still be sending. Closing a socket with unread input sends a reset, and the
//! peer's kernel may then discard the last reply before it is read. So the input is read and discarded first, up
//! to a timeout and a number of bytes.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use crate::limits::READ_SIZE;
use crate::runtime::clock;
use crate::runtime::socket::ByteStream;
use crate::shard::connections::{ConnectionWatch, WakeReason};

/// Bytes that are read and discarded at most.
const LINGER_SIZE_MAX: usize = 1024 * 1024;

/// Shuts down the sending side and reads until the peer has closed too, the timeout has passed or the limit is reached.
///
/// # Errors
/// The socket's error.
pub async fn linger<S: ByteStream>(socket: &mut S, watch: &ConnectionWatch, timeout: Duration) -> io::Result<()> {
    socket.shutdown_write().await?;
    watch.set_deadline(Some(clock::now() + timeout));
    let (mut scratch, mut left) = (vec![0; READ_SIZE], LINGER_SIZE_MAX);
    while left > 0 {
        let count = poll_fn(|context| {
            watch.register(context);
            match watch.take_wake_reason() {
                // What it still reads is held by nobody.
                None | Some(WakeReason::Weighed) => {}
                Some(WakeReason::Drain | WakeReason::Evicted | WakeReason::Timeout) => return Poll::Ready(Ok(0)),
            }
            socket.poll_read(context, &mut scratch)
        })
        .await?;
        if count == 0 {
            break;
        }
        left = left.saturating_sub(count);
    }
    Ok(())
}
