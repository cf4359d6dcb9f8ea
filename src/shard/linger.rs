//! The end of a connection whose peer may not have read all yet: closing with input unread resets it,
//! and takes the last bytes from the peer's hands. So it is read on for a while, and thrown away.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use crate::limits::READ_SIZE;
use crate::runtime::clock;
use crate::runtime::socket::Socket;
use crate::shard::connections::ConnectionWatch;

/// Bytes that are read and thrown away.
const LINGER_SIZE_MAX: usize = 1024 * 1024;

/// Says that nothing more will be sent, and reads until the peer has closed too, or is given up.
pub async fn linger(socket: &mut Socket, watch: &ConnectionWatch, timeout: Duration) -> io::Result<()> {
    socket.shutdown_write().await?;
    watch.set_deadline(Some(clock::now() + timeout));
    let (mut scratch, mut left) = (vec![0; READ_SIZE], LINGER_SIZE_MAX);
    while left > 0 {
        let count = poll_fn(|context| {
            watch.register(context);
            if watch.take_verdict().is_some() {
                return Poll::Ready(Ok(0));
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
