//! The memory that a run of the embedded engine may take: the engine refuses a run that needs more, a shard tells how many
//! it refused.

use std::sync::atomic::{AtomicU64, Ordering};

/// The limit on a run of the embedded engine, and the number of refused runs. One for the process.
#[derive(Debug)]
pub struct RunMemory {
    size_max: usize,
    refused: AtomicU64,
}

/// No bound, for tests.
impl Default for RunMemory {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl RunMemory {
    /// A limit of `size_max` bytes for each run.
    pub const fn new(size_max: usize) -> Self {
        Self { size_max, refused: AtomicU64::new(0) }
    }

    /// The limit, in bytes.
    pub const fn size_max(&self) -> usize {
        self.size_max
    }

    /// Counts a run that was refused.
    pub fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs that were refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
