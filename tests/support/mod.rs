//! Shared by the integration tests: free ports, temporary folders, server processes, a raw HTTP/1.1 client, a raw gRPC
//! client, a Python environment, and the writer of model repositories.
//!
//! Each test binary includes it with `mod support;`. It knows nothing of the crate under test but the path of its
//! binary. Every wait has a time after which the test fails.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "tests wait for real servers, on the real clock")]
#![allow(clippy::disallowed_types, reason = "tests of one binary run side by side")]
#![allow(clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

pub mod callgrind;
pub mod escape;
pub mod folder;
pub mod gate;
pub mod gpu;
pub mod grpc;
pub mod h2;
pub mod http;
pub mod metrics;
pub mod onnx;
pub mod over;
pub mod protobuf;
pub mod python;
pub mod repository;
pub mod server;
pub mod skipped;
pub mod time_limit;
pub mod triton;
pub mod wait;
