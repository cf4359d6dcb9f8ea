//! Deuteron, a light inference server: ONNX and Python models over HTTP/1.1 and gRPC.
//!
//! `docs/architecture.md` describes the path of a request, the threads, and the layers with the
//! imports that each may have.

pub use backend;
pub use base::{budget, crash, error, limits, metrics, policy, pressure, tensor, time};
pub use connection;
pub use engines;
pub use flags;
pub use hub;
pub use model;
pub use process;
pub use protocol;
pub use queue;
pub use scheduler;
pub use settings;
pub use steps;
pub use trace;
pub use transformer;
pub use wire;

pub mod cli;
pub mod client;
pub mod control;
pub mod loadgen;
pub mod log;
pub mod runtime;
pub mod server;
pub mod shard;
