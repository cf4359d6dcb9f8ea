//! Backends that need no engine, for tests, benchmarks and first steps. Their names are those of Triton's test backends
//! and examples.

pub mod accumulate;
pub mod decoupled;
pub mod identity;
pub mod iterative;
