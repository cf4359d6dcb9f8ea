//! What a thread counts that reads the operator's files anew when they change.

use std::fmt::Write;

use crate::metrics::{Counter, head};

/// Changes of files; the thread that reads them alone writes.
#[derive(Debug, Default)]
pub struct ReloadCells {
    /// Those that are in use.
    pub succeeded: Counter,
    /// Those that are not, because something is wrong with them.
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
