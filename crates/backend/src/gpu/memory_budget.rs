//! A budget of bytes for one kind of memory. Bytes are taken from it before the driver is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::gpu::driver::{DriverError, GpuFault};

/// The bytes of one kind of memory that are in use, and their limit.
#[derive(Debug)]
pub struct MemoryBudget {
    /// The kind of memory, for the error.
    what: String,
    /// The flag that sets the limit, for the error.
    flag: &'static str,
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, which `flag` sets; none are in use.
    pub fn new(what: String, flag: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { what, flag, limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were in use at once.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// Bytes that may be in use.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Takes bytes from the budget. Relaxed orderings suffice: the count guards no other memory.
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

    /// Returns bytes to the budget.
    pub(super) fn give_back(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }
}
