//! Connections as pure state machines.

pub mod http1;
pub mod http2;
mod input;
