//! The simulator's parts: what happens ([`plan`]), the world in which it does ([`world`]), what a
//! batch should be ([`reference`]), the same for sequences ([`sequence`]), and schedulers that are wrong on purpose ([`fault`]).
#![allow(clippy::indexing_slicing, reason = "the simulator's own numbers index its own tables")]

pub mod fault;
pub mod plan;
pub mod random;
pub mod reference;
pub mod sequence;
pub mod world;
