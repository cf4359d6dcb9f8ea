//! The integration tests whose windows are narrow: refusals and timeouts to the millisecond, and the figures of the
//! load generator. They are a program of their own, since cargo runs programs one after the other, and `it` keeps every
//! core busy.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test waits, on the real clock, shares, and fails by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

mod balancers;
mod loadgen;
mod overload;

use std::sync::{Condvar, Mutex};

/// Concurrent tests of this program, whatever `RUST_TEST_THREADS` says.
const TURNS: usize = 2;

/// A permit of a semaphore, which every test here holds while it runs.
struct Turn;

static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

fn turn() -> Turn {
    let mut taken = GIVEN_BACK.wait_while(TAKEN.lock().unwrap(), |taken| *taken == TURNS).unwrap();
    *taken += 1;
    Turn
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap() -= 1;
        GIVEN_BACK.notify_one();
    }
}
