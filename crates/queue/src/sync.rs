//! The synchronisation types of this room: atomics and fences, locks, thread parking, wake files, rings, cells, queues and
//! wakers.
//! With the feature `loom` they are loom's, so that `sync/tests.rs` can run the very same code in every order that the
//! memory model allows (`.ci/run interleave`); otherwise those of the standard library and of four crates. `SegQueue`
//! has one reader and `SharedQueue` any number: the same type here, two different ones under loom.

#![cfg_attr(
    not(all(test, feature = "loom")),
    expect(clippy::disallowed_types, reason = "the locks of `model_queue.rs` and `response_order.rs`")
)]

#[cfg(all(test, feature = "loom"))]
mod checked;
#[cfg(all(test, feature = "loom"))]
mod tests;

#[cfg(all(test, feature = "loom"))]
pub use crate::sync::checked::*;
#[cfg(not(all(test, feature = "loom")))]
pub use {
    crate::wake_file::{SleepEnd, WakeFile},
    atomic_waker::AtomicWaker,
    crossbeam_queue::{SegQueue, SegQueue as SharedQueue},
    crossbeam_utils::atomic::AtomicCell,
    rtrb::{Consumer, Producer, PushError, RingBuffer},
    std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, fence},
    std::sync::{Mutex, MutexGuard},
    std::thread::{Thread, current, park, park_timeout},
};
