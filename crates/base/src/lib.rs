//! The ground that all else stands on: errors, limits, time, tensors, budgets and metrics. No I/O but the notes of a
//! crash, no clock, nothing asynchronous.

pub mod budget;
pub mod crash;
pub mod error;
pub mod limits;
pub mod metrics;
pub mod policy;
pub mod pressure;
pub mod tensor;
pub mod time;
