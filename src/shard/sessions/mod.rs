//! The life of one connection, from its first bytes over TLS, HTTP/1.1 or HTTP/2 to its last reply. Moves bytes
//! between the socket and the machines of `connection`, and hands each message to `shard::requests`.

pub mod accept;
pub mod http1;
pub mod http2;
pub mod metrics_endpoint;
pub mod session;
pub mod shard_sessions;
pub mod tls;
