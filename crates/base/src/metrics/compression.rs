//! The shards' counters for compressed requests and responses.

use std::fmt::Write;

use crate::metrics::{Counter, ShardCells, head};

/// The counters of one shard for compression.
#[derive(Debug, Default)]
pub struct CompressionCells {
    /// Bodies and messages that were inflated.
    pub inflated: Counter,
    /// Bytes that they were inflated to.
    pub inflated_size: Counter,
    /// Bodies and messages that could not be inflated, or not within a limit.
    pub inflate_refused: Counter,
    /// Responses that were compressed.
    pub deflated: Counter,
    /// Bytes that they became smaller by.
    pub saved_size: Counter,
    /// Responses that were not compressed because too many others were.
    pub deflate_skipped: Counter,
}

/// Appends the metrics of all shards.
pub(super) fn encode(out: &mut String, shards: &[&ShardCells]) {
    let mut single = |name: &str, help: &str, counter: fn(&CompressionCells) -> &Counter| {
        let total: u64 = shards.iter().map(|cells| counter(&cells.compression).get()).sum();
        head(out, name, "counter", help);
        let _ = writeln!(out, "{name} {total}");
    };
    single("deuteron_inflated_total", "Compressed bodies and messages that were inflated", |cells| &cells.inflated);
    single("deuteron_inflated_bytes_total", "Bytes that they were inflated to", |cells| &cells.inflated_size);
    let help = "Compressed bodies and messages that are damaged, or larger than a limit";
    single("deuteron_inflate_refused_total", help, |cells| &cells.inflate_refused);
    single("deuteron_responses_compressed_total", "Responses that were compressed", |cells| &cells.deflated);
    let help = "Bytes that responses became smaller by";
    single("deuteron_responses_compressed_saved_bytes_total", help, |cells| &cells.saved_size);
    let help = "Responses sent as they are because too many others were being compressed";
    single("deuteron_responses_compression_skipped_total", help, |cells| &cells.deflate_skipped);
}
