//! The KServe v2 protocol with Triton's extensions: routes, requests, responses. Pure.

pub mod check;
pub mod classification;
pub mod grpc;
pub mod infer;
pub mod repository;
pub mod rest;
pub mod route;
pub mod shared_memory;
pub mod timing;

#[cfg(test)]
pub(crate) mod testing;
