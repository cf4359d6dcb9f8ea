//! gRPC: the KServe v2 inference service, `grpc.health.v1` and `grpc.reflection`. Request messages in as bytes,
//! response messages out as bytes. HTTP/2 around them is the business of `connection::http2` and the shard.

pub mod contents;
pub mod decode;
#[cfg(any(test, feature = "fuzz"))]
pub mod differential;
pub mod encode;
pub mod logging;
pub mod message;
pub mod reflection;
pub mod repository;
pub mod service;
pub mod shared_memory;
pub mod statistics;
pub mod status;

pub use decode::decode;
pub use encode::encode;
pub use message::InferMessage;
pub use service::Rpc;

#[cfg(test)]
mod tests;
