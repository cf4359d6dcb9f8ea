//! Wire formats: bytes to values and back. Knows nothing of inference (except for the generated [`proto`]) and does
//! no I/O. A decoder answers with a value, "not yet" or an error, and never consumes part of a unit.

pub mod base64;
mod body_buffer;
pub mod compression;
pub mod grpc;
pub mod hpack;
pub mod http1;
pub mod http2;
pub mod json;
mod limits;
pub mod message;
pub mod placed;
pub mod proto;
pub mod protobuf;
pub mod resp;
pub mod safetensors;
pub mod toml;
pub mod trace_context;
pub mod x509;
