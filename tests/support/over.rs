//! The end of a test's background threads.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells threads that it is over when it is dropped, also by a test that fails: otherwise the scope would wait for its
/// threads for ever.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
