//! Backends that need no engine, under the names that Triton's own examples have: what tests, benchmarks and first steps
//! are made of.

pub mod accumulate;
pub mod decoupled;
pub mod identity;
pub mod iterative;
