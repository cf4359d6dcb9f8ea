//! Metrics of the spans of traces.

use std::fmt::Write;

use crate::metrics::head;

/// Appends the spans of traces that were written or sent, and those that were dropped.
pub fn encode_traces(out: &mut String, written: u64, dropped: u64) {
    let written_help = "Spans of traces written to files or sent to a collector";
    let dropped_help = "Spans of traces dropped because the disk or the collector was slow or failed";
    let (spans, dropped_spans) = ("deuteron_trace_spans_total", "deuteron_trace_spans_dropped_total");
    for (name, help, value) in [(spans, written_help, written), (dropped_spans, dropped_help, dropped)] {
        head(out, name, "counter", help);
        let _ = writeln!(out, "{name} {value}");
    }
}
