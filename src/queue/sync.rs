//! What threads meet at: atomics and fences, locks, parking, rings, cells, the queue of answers and its
//! waker. Whatever `shard/` shares between threads by a protocol of its own comes from here, so that
//! `sync/tests.rs` can run that very code in every order that the memory model allows (loom, feature
//! `loom`, `.ci/run interleave`). Everywhere else these are the types of the standard library and of
//! four crates. `SegQueue` has one reader, `SharedQueue` any number: the same type, and two under the check.

#![cfg_attr(
    not(all(test, feature = "loom")),
    expect(clippy::disallowed_types, reason = "the locks that `feed.rs` and `order.rs` account for")
)]

#[cfg(all(test, feature = "loom"))]
mod checked;
#[cfg(all(test, feature = "loom"))]
mod tests;

#[cfg(all(test, feature = "loom"))]
pub use crate::queue::sync::checked::*;
#[cfg(not(all(test, feature = "loom")))]
pub use {
    atomic_waker::AtomicWaker,
    crossbeam_queue::{SegQueue, SegQueue as SharedQueue},
    crossbeam_utils::atomic::AtomicCell,
    rtrb::{Consumer, Producer, PushError, RingBuffer},
    std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, fence},
    std::sync::{Mutex, MutexGuard},
    std::thread::{Thread, current, park, park_timeout},
};
