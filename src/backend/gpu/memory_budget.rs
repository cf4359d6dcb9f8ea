//! How much memory of one kind is taken, counted before the driver is asked, and how much may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::gpu::driver::{DriverError, GpuFault};

/// Bytes that are taken of one kind of memory, and how many may be.
#[derive(Debug)]
pub struct MemoryBudget {
    what: String,
    flag: &'static str,
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl MemoryBudget {
    /// An account of some memory, which a flag bounds; no bytes are taken.
    pub fn new(what: String, flag: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { what, flag, limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    /// Bytes that are taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that were taken at a time.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Bytes that may be.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn take(&self, size: usize) -> Result<(), DriverError> {
        let within = |used: usize| used.checked_add(size).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within) {
            Ok(before) => {
                self.peak.fetch_max(before + size, Ordering::Relaxed);
                Ok(())
            }
            Err(used) => {
                let Self { what, flag, limit, .. } = self;
                let text =
                    format!("{size} bytes of {what} are wanted, {used} of {limit} are taken; {flag} sets how many");
                Err(DriverError { fault: GpuFault::Memory, text })
            }
        }
    }

    pub(super) fn give_back(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }
}
