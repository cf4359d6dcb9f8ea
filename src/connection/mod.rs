//! Connections as pure state machines.

pub mod http1;
