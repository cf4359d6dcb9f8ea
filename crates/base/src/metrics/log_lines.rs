//! The lines that the log did not write.

use std::fmt::Write;

use crate::metrics::head;

/// Appends the counts of log lines that were not written, by reason.
pub fn encode_log_lines(out: &mut String, losses: &[(&str, u64)]) {
    let name = "deuteron_log_lines_dropped_total";
    head(out, name, "counter", "Lines of the log that were not written, by reason");
    for (reason, count) in losses {
        let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {count}");
    }
}
