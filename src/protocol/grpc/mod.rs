//! gRPC: the service of the KServe v2 protocol, `grpc.health.v1` and `grpc.reflection`. Messages in
//! as bytes, messages out as bytes; what HTTP/2 does around them is the shard's.

pub mod contents;
pub mod decode;
pub mod differential;
pub mod encode;
pub mod framing;
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
