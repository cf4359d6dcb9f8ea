//! Formats: bytes to values and back. No word of inference, no I/O.

pub mod base64;
pub mod grpc;
pub mod hpack;
pub mod http1;
pub mod http2;
pub mod json;
pub mod message;
pub mod placed;
pub mod proto;
pub mod protobuf;
pub mod toml;
