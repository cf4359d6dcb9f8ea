//! Waiting for what a server comes to by itself.

use std::thread;
use std::time::{Duration, Instant};

/// The longest wait: a machine whose cores are all taken needs tens of seconds for what an idle one does at once.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Waits until it is so; `what` names it for the panic of a test that waited in vain.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < WAIT_MAX, "{what}: it never comes");
        thread::sleep(Duration::from_millis(5));
    }
}
