//! The bounds that several modules of this crate share, each with its reason.

use std::time::Duration;

use base::limits::{LOG_QUEUE_SIZE_MAX, LOG_TEXT_SIZE_MAX, PYTHON_CONCURRENCY_MAX};

/// Bytes of one message between server and Python process: text, as tensors are in shared memory.
pub const PYTHON_FRAME_SIZE_MAX: usize = 64 * 1024 * 1024;
/// Bytes that may wait until a Python process reads them: two of the largest messages. One that
/// goes on asking without reading the replies is ended.
pub const PYTHON_UNSENT_SIZE_MAX: usize = 2 * PYTHON_FRAME_SIZE_MAX;
/// Bytes that the read buffer of a Python process keeps after a large message.
pub const PYTHON_BUFFER_KEPT: usize = 1024 * 1024;
/// Bytes of an error's text that a Python process is told; the rest is cut off.
pub const PYTHON_TEXT_SIZE_MAX: usize = 1024 * 1024;
/// Bytes below which a Python model's output is copied out of the process's memory: less than that is copied in the
/// time of a few system calls, and its slot is free at once. Larger ones are sent from where they are.
pub const PYTHON_VIEW_SIZE_MIN: usize = 64 * 1024;
/// Released objects of one kind of hosted backends whose memory is not used again at once: a second release of one of these
/// is seen as such. Backends that release twice do so within a batch.
pub const HOSTED_SHELLS_KEPT: usize = 256;
/// Released objects of one kind whose memory is kept at all: a burst is not kept forever.
pub const HOSTED_SHELLS_MAX: usize = 4_096;
/// Requests of one instance of a hosted backend without their last answer: beyond that it gets no other batch.
pub const HOSTED_OPEN_REQUESTS_MAX: usize = 4_096;
/// Bytes of a region between the server and the process of an isolated ONNX model at first. A larger one takes its place
/// when a batch needs it.
pub const ENGINE_REGION_SIZE: usize = 1024 * 1024;
/// Bytes of a region shared with a process that stay in memory after a batch that needed more: a batch of images. Less
/// would take and give back pages with each such batch; more would keep the largest batch for as long as the process runs.
pub const ENGINE_REGION_KEPT: u64 = 16 * 1024 * 1024;
/// Times in a row that a process's memory is free again after small batches before the pages of larger ones are given back:
/// requests of mixed sizes would take them anew with each large one.
pub const ENGINE_REGION_SMALL_USES: u32 = 64;
/// Requests of one Python instance whose batch has ended and that a response sender still answers: a decoupled model
/// that never ends its requests must not collect them without bound. Beyond it the instance gets no batch.
pub const PYTHON_OPEN_REQUESTS_MAX: usize = 4096;
/// Batches that await something in one Python process at once (`async def execute`), where the model does not say: enough
/// to hide awaits of many times its own computation. Each keeps its inputs in shared memory, and more batches at once are
/// smaller ones.
pub const PYTHON_COROUTINES_DEFAULT: usize = 16;
/// Calls of other models, or orders, that one Python process may have in flight.
pub const PYTHON_CALLS_MAX: usize = 1024;
/// Bytes of a line of the log that a Python process prints; longer ones are logged in pieces. As long as a terminal's
/// screen, and a traceback has far shorter ones.
pub const PYTHON_LINE_SIZE_MAX: usize = 8 * 1024;
/// Bytes of the last lines of standard error kept of each Python process, to show why it did not
/// start: a traceback.
pub const PYTHON_STDERR_KEPT_MAX: usize = 16 * 1024;
/// Bytes that are read at once of what a Python process prints: few, since all other processes wait for the same thread.
pub const PYTHON_READ_SIZE: usize = 8 * 1024;
/// Bytes that are read from a pipe of a Python process after its end: a process that it has started may print on for
/// ever.
pub const PYTHON_DRAIN_SIZE_MAX: usize = 1024 * 1024;
/// Time from SIGTERM to SIGKILL for a Python process that did not end by itself in its grace:
/// enough for a program to remove its temporary files.
pub const PYTHON_TERMINATE_WAIT: Duration = Duration::from_secs(5);
/// Time from the order to fork a Python process to its first byte. A fork takes milliseconds; a machine that takes longer
/// swaps, and an ordinary start is not quicker there, but does not depend on another process.
pub const PYTHON_FORK_WAIT: Duration = Duration::from_secs(5);
/// Bytes of the files of a packed Python environment. Those with CUDA libraries have ten gigabytes; a small archive
/// could otherwise fill any disk.
pub const ARCHIVE_SIZE_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// Batches of one instance of a hosted backend that its reports may still be about: a backend that takes a batch before it has
/// reported on the one before has two or three, and one that never reports keeps these.
pub const HOSTED_EXECUTIONS_KEPT: usize = 16;
/// Answered requests of one process that its backend may still report on: those of the batches that it may have, with as many
/// requests as are open.
pub const HOSTED_ANSWERS_KEPT: usize = HOSTED_OPEN_REQUESTS_MAX;
const _: () =
    assert!(PYTHON_LINE_SIZE_MAX < LOG_TEXT_SIZE_MAX && LOG_TEXT_SIZE_MAX < LOG_QUEUE_SIZE_MAX, "a line fits");
const _: () = assert!(PYTHON_LINE_SIZE_MAX <= PYTHON_STDERR_KEPT_MAX, "the last line is kept");
const _: () = assert!(PYTHON_READ_SIZE <= PYTHON_DRAIN_SIZE_MAX, "something is read after the end");
const _: () = assert!(PYTHON_COROUTINES_DEFAULT <= PYTHON_CONCURRENCY_MAX, "the default may be set too");
const _: () = assert!(PYTHON_TEXT_SIZE_MAX < PYTHON_FRAME_SIZE_MAX, "a text fits into a message");
const _: () = assert!(ENGINE_REGION_SIZE as u64 <= ENGINE_REGION_KEPT, "the first region is kept");
const _: () = assert!(HOSTED_SHELLS_KEPT < HOSTED_SHELLS_MAX, "kept memory is used again");
