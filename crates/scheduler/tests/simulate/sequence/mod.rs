//! The simulator's world of sequences: clients that vanish, begin twice and leave, more sequences
//! than slots, instances that die; and a model whose answers show the sequence of their state.

pub mod fault;
pub mod plan;
pub mod world;
