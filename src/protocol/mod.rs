//! The KServe v2 protocol with Triton's extensions: routes, requests, responses. Pure.

pub mod grpc;
pub mod infer;
pub mod rest;
pub mod route;
