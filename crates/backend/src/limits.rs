//! The bounds that several modules of this crate share, each with its reason.

use std::time::Duration;

use base::limits::BODY_SIZE_MAX;

/// Threads that send responses for a built-in decoupled model while its instance takes the next batch.
pub const DECOUPLED_THREADS_MAX: usize = 64;
/// Bytes of zeros that replace an optional input left out of a request: at most those of a request.
pub const LEFT_OUT_SIZE_MAX: usize = BODY_SIZE_MAX;
/// Time in which a run that was told to stop must return, or its instance is given up: one operator takes seconds at most.
pub const RUN_STOP_MAX: Duration = Duration::from_secs(10);
/// Bytes on a device for tensors in CUDA shared memory: some hundred requests of a megabyte. Others go over the host.
pub const GPU_LEASE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Calls of another model that the step of one request has in flight, if it makes one for a few rows each: several batches of
/// most models. The others follow as replies come.
pub const STEP_CALLS_MAX: usize = 64;
/// Requests of one instance whose steps wait for other models. Their tensors stay in memory; others wait in the queue, which
/// has its own bounds.
pub const STEP_REQUESTS_MAX: usize = 64;
/// Arguments of a kernel.
pub const GPU_KERNEL_ARGUMENTS_MAX: usize = 16;
/// Matrix products (layer and batch size) for which cuBLASLt's choice of algorithm is cached.
pub const GPU_MATMULS_KEPT_MAX: usize = 4_096;
