//! The counters of a thread that rereads the operator's files when they change.

use std::fmt::Write;

use crate::metrics::{Counter, head};

/// Changes of files; only the thread that reads them writes.
#[derive(Debug, Default)]
pub struct ReloadCells {
    /// Changes that are in use.
    pub succeeded: Counter,
    /// Changes that are not in use, because something is wrong with them.
    pub failed: Counter,
}

impl ReloadCells {
    /// Appends them as a family.
    pub(super) fn encode(&self, out: &mut String, name: &str, help: &str) {
        head(out, name, "counter", help);
        for (result, counter) in [("failed", &self.failed), ("succeeded", &self.succeeded)] {
            let _ = writeln!(out, "{name}{{result=\"{result}\"}} {}", counter.get());
        }
    }
}
