//! The end of what threads of a test do beside it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells threads that it is over when it is dropped, so also by a test that fails: a scope waits for its threads, and
/// would wait for ever.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
