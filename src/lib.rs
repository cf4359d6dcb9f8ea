//! Deuteron, a light inference server: ONNX and Python models over HTTP/1.1 and gRPC.
//!
//! `docs/architecture.md` describes the path of a request, the threads, and the layers with the
//! imports that each may have.

pub mod backend;
pub mod budget;
pub mod cli;
pub mod connection;
pub mod control;
pub mod crash;
pub mod error;
pub mod flags;
pub mod limits;
pub mod loadgen;
pub mod log;
pub mod metrics;
pub mod model;
pub mod policy;
pub mod pressure;
pub mod protocol;
pub mod queue;
pub mod runtime;
pub mod scheduler;
pub mod server;
pub mod settings;
pub mod shard;
pub mod tensor;
pub mod time;
pub mod trace;
pub mod wire;
