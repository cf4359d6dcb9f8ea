//! The bounds of what tries a load, and of what engines that are foreign code are handed and may do.

use std::time::Duration;

/// Time that the trial of a load may take (`--load-timeout-secs`): models of several gigabytes take a minute, on a slow
/// disk more.
pub const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
/// Time after which a trial no longer counts among the loads that run at a time: most models load in a second, and a
/// file that keeps its engine for ever must not keep others waiting.
pub const LOAD_PLACE_MAX: Duration = Duration::from_secs(2);
/// Bytes of the memory that all empty tensors begin at: an engine that reads the first elements of one all the same finds
/// zeros. A page.
pub const EMPTY_TENSOR_BLOCK_SIZE: usize = 4096;
/// Threads whose runs are noted for the line of a crash: shards, workers and loads. A thread beyond these is not named.
pub const CRASH_SLOTS_MAX: usize = 512;
/// Bytes of such a note: the names of a model and an instance, and the ids of some requests.
pub const CRASH_TEXT_SIZE: usize = 384;
/// Lines that a crash of a thread without a note writes, one for each run in progress.
pub const CRASH_LINES_MAX: usize = 16;

const _: () = assert!(LOAD_PLACE_MAX.as_millis() < LOAD_TIMEOUT.as_millis(), "a load gives its place up before it is");
const _: () = assert!(CRASH_TEXT_SIZE.is_multiple_of(8), "a note is a number of whole words");
const _: () = assert!(EMPTY_TENSOR_BLOCK_SIZE >= super::TENSOR_ALIGNMENT, "the block is as aligned as tensors are");
