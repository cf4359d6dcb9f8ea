//! HTTP/1.1, HTTP/2 and TLS connections as state machines without I/O: received bytes in, messages out; replies in,
//! bytes to send out. The shard owns the sockets and passes in the time.

pub mod http1;
pub mod http2;
mod input;
mod limits;
pub mod tls;
