//! The memory for requests while they are received (`--receive-memory-bytes-max`): one budget for the process, from
//! which each shard leases what it needs. A shard has no smaller limit of its own: a client's few connections may all
//! be on one shard, and an equal share of many shards could be less than one body. Requests are counted in the shard's
//! own memory; the shared counter is touched only when a lease grows or shrinks, in steps of [`RECEIVE_LEASE_SIZE`].

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::budget::ReceiveBudget;
use crate::limits::RECEIVE_LEASE_SIZE;
use crate::metrics::ShardCells;

/// The budget of the process.
#[derive(Debug)]
pub struct ProcessReceiveBudget {
    size_max: usize,
    /// Only a count: it publishes no other memory, so relaxed ordering is enough.
    leased: AtomicUsize,
}

impl ProcessReceiveBudget {
    /// A budget of this many bytes.
    pub const fn new(size_max: usize) -> Self {
        Self { size_max, leased: AtomicUsize::new(0) }
    }

    /// Leases `usual` bytes, or what is left where that is less; `None` where less than `least` is left.
    fn lease(&self, least: usize, usual: usize) -> Option<usize> {
        let grant =
            |leased: usize| Some(self.size_max - leased).filter(|left| *left >= least).map(|left| left.min(usual));
        let update = |leased: usize| grant(leased).map(|granted| leased + granted);
        let before = self.leased.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok()?;
        grant(before)
    }

    fn return_lease(&self, size: usize) {
        let before = self.leased.fetch_sub(size, Ordering::Relaxed);
        debug_assert!(before >= size && before <= self.size_max, "what is returned was leased, within the bound");
    }
}

/// One shard's lease of the budget, and what its requests have reserved of it.
#[derive(Debug)]
pub struct ShardReceiveBudget {
    process: Arc<ProcessReceiveBudget>,
    leased: Cell<usize>,
    reserved: Cell<usize>,
    cells: Arc<ShardCells>,
}

impl ShardReceiveBudget {
    /// An empty lease; `cells` shows what is reserved.
    pub const fn new(process: Arc<ProcessReceiveBudget>, cells: Arc<ShardCells>) -> Self {
        Self { process, leased: Cell::new(0), reserved: Cell::new(0), cells }
    }

    fn set_reserved(&self, size: usize) {
        self.reserved.set(size);
        self.cells.receive_memory.set(u64::try_from(size).unwrap_or(u64::MAX));
    }
}

impl ReceiveBudget for ShardReceiveBudget {
    fn reserve(&self, size: usize) -> bool {
        let Some(total) = self.reserved.get().checked_add(size) else { return false };
        if let Some(missing) = total.checked_sub(self.leased.get()).filter(|missing| *missing > 0) {
            let usual = missing.max(RECEIVE_LEASE_SIZE);
            let Some(granted) = self.process.lease(missing, usual) else { return false };
            self.leased.set(self.leased.get() + granted);
        }
        self.set_reserved(total);
        debug_assert!(total <= self.leased.get(), "what is reserved was leased");
        true
    }

    fn release(&self, size: usize) {
        debug_assert!(size <= self.reserved.get(), "only reserved bytes are released");
        let left = self.reserved.get().saturating_sub(size);
        self.set_reserved(left);
        // One step is kept, so that occasional small requests do not touch the shared counter.
        let spare = self.leased.get() - left;
        if spare > 2 * RECEIVE_LEASE_SIZE {
            self.leased.set(left + RECEIVE_LEASE_SIZE);
            self.process.return_lease(spare - RECEIVE_LEASE_SIZE);
        }
    }

    fn size_max(&self) -> usize {
        self.process.size_max
    }
}

impl Drop for ShardReceiveBudget {
    fn drop(&mut self) {
        self.process.return_lease(self.leased.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(process: &Arc<ProcessReceiveBudget>) -> ShardReceiveBudget {
        ShardReceiveBudget::new(Arc::clone(process), Arc::default())
    }

    #[test]
    fn one_shard_may_lease_all_of_it_and_no_byte_more() {
        let process = Arc::new(ProcessReceiveBudget::new(3 * RECEIVE_LEASE_SIZE + 5));
        let one = shard(&process);
        assert!(one.reserve(1) && one.reserve(3 * RECEIVE_LEASE_SIZE + 4) && !one.reserve(1));
        assert_eq!(one.cells.receive_memory.get(), 3 * RECEIVE_LEASE_SIZE as u64 + 5);
        assert!(!one.reserve(usize::MAX));
        one.release(1);
        assert!(!one.reserve(2) && one.reserve(1));
        drop(one);
        assert_eq!(process.leased.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bytes_that_one_shard_returns_another_may_lease() {
        let process = Arc::new(ProcessReceiveBudget::new(8 * RECEIVE_LEASE_SIZE));
        let (one, two) = (shard(&process), shard(&process));
        assert!(one.reserve(6 * RECEIVE_LEASE_SIZE) && !two.reserve(3 * RECEIVE_LEASE_SIZE));
        one.release(6 * RECEIVE_LEASE_SIZE);
        assert_eq!(one.cells.receive_memory.get(), 0);
        assert!(two.reserve(7 * RECEIVE_LEASE_SIZE), "all but what the other keeps");
        assert!(one.reserve(RECEIVE_LEASE_SIZE) && !one.reserve(1) && !two.reserve(1));
    }

    #[test]
    fn small_requests_do_not_touch_the_shared_counter() {
        let process = Arc::new(ProcessReceiveBudget::new(8 * RECEIVE_LEASE_SIZE));
        let one = shard(&process);
        for _ in 0..1_000 {
            assert!(one.reserve(1_000));
            assert_eq!(process.leased.load(Ordering::Relaxed), RECEIVE_LEASE_SIZE);
            one.release(1_000);
        }
    }
}
