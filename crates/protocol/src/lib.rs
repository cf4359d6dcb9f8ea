//! The KServe v2 protocol with Triton's extensions, over REST and gRPC: paths to routes, bodies to checked requests,
//! results to responses. Pure functions of their arguments: no I/O, no clock. Called by the shard.

pub mod cache_entry;
pub mod check;
pub mod classification;
pub mod cors;
pub mod framing;
pub mod front_end;
pub mod grpc;
pub mod infer;
pub mod keys;
pub mod limits;
pub mod logging;
pub mod orca;
mod outputs;
pub mod path;
pub mod policy;
pub mod repository;
pub mod rest;
pub mod route;
pub mod shared_memory;
pub mod text;
pub mod timing;
pub mod trace;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
