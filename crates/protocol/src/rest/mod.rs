//! REST: request bodies to [`InferRequest`](super::infer::InferRequest)s and operations, results and errors to
//! replies. Decoding borrows the body; encoding passes tensors on without a copy. Pure; bounded by the size of the
//! body and the limits on inputs, parameters and JSON values.

pub mod data;
pub mod decode;
pub mod encode;
pub(super) mod fault;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod generate;
pub mod hosted;
pub mod logging;
pub(crate) mod misspelt;
pub mod openapi;
pub mod predict;
pub mod raw;
pub mod repository;
pub mod server;
pub mod shared_memory;
pub mod statistics;

pub use decode::{HeaderLength, decode};
pub use encode::{encode, error_reply, json_output_size};

#[cfg(test)]
mod tests;
