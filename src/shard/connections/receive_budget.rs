//! The memory for requests while they are received (`--receive-memory-bytes-max`): one budget for
//! the process, from which each shard leases bytes as it needs them. A shard has no smaller limit
//! of its own: a client's few connections may all be on one shard, and an equal share of many
//! shards could be less than one body. Requests are counted in the shard's own memory; the shared
//! counter is touched only when a lease grows or shrinks, in steps of [`RECEIVE_LEASE_SIZE`]. The
//! other shards lack the bytes that idle shards keep leased, so a small budget is leased byte by
//! byte.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::budget::{ReceiveBudget, ReceiveReservation, Shortage};
use crate::limits::RECEIVE_LEASE_SIZE;
use crate::metrics::ShardCells;
#[cfg(test)]
use crate::runtime::simulation::{SimulatedFault, is_planted};

/// The budget of the process.
#[derive(Debug)]
pub struct ProcessReceiveBudget {
    size_max: usize,
    /// Bytes that a shard leases at a time, and keeps when it is idle; 0 to lease exactly what is reserved.
    lease_size: usize,
    /// Only a count: it publishes no other memory, so relaxed ordering is enough.
    leased: AtomicUsize,
    /// Bytes that may be leased until the memory of the process is next measured, and the process's
    /// limit.
    room: AtomicUsize,
    limit: usize,
}

impl ProcessReceiveBudget {
    /// A budget of this many bytes for `shards` shards.
    pub const fn new(size_max: usize, shards: usize) -> Self {
        // An idle shard keeps up to two steps: a request that needs most of the budget must not be
        // refused because of them.
        let kept_max = shards.saturating_mul(2 * RECEIVE_LEASE_SIZE);
        let lease_size = if kept_max <= size_max / KEPT_PART { RECEIVE_LEASE_SIZE } else { 0 };
        Self::with_lease_size(size_max, lease_size)
    }

    const fn with_lease_size(size_max: usize, lease_size: usize) -> Self {
        let room = AtomicUsize::new(usize::MAX);
        Self { size_max, lease_size, leased: AtomicUsize::new(0), room, limit: usize::MAX }
    }

    /// The same in a process with a memory limit of `limit` bytes for all purposes.
    #[must_use]
    pub fn within(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Sets the bytes left of the process's limit: nothing further is leased until this is called
    /// again.
    pub fn set_room(&self, size: usize) {
        self.room.store(size, Ordering::Relaxed);
    }

    /// Leases `usual` bytes, or the rest if that is less; `None` if less than `least` is left.
    fn lease(&self, least: usize, usual: usize) -> Option<usize> {
        let grant =
            |leased: usize| Some(self.size_max - leased).filter(|left| *left >= least).map(|left| left.min(usual));
        let update = |leased: usize| grant(leased).map(|granted| leased + granted);
        let before = self.leased.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok()?;
        let granted = grant(before)?;
        let take = |room: usize| Some(room.min(granted)).filter(|part| *part >= least).map(|part| room - part);
        match self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(room) => {
                self.return_lease(granted - room.min(granted));
                Some(room.min(granted))
            }
            Err(_) => {
                self.return_lease(granted);
                None
            }
        }
    }

    fn shortage(&self) -> Shortage {
        match self.room.load(Ordering::Relaxed) < RECEIVE_LEASE_SIZE {
            true => Shortage::Pressed { limit: self.limit },
            false => Shortage::Busy { size_max: self.size_max },
        }
    }

    fn return_lease(&self, size: usize) {
        let before = self.leased.fetch_sub(size, Ordering::Relaxed);
        debug_assert!(before >= size && before <= self.size_max, "what is returned was leased, within the bound");
    }
}

/// Idle shards may keep one part in this many of the budget; of a smaller budget they keep nothing.
const KEPT_PART: usize = 32;

/// One shard's lease of the budget, and the part that its requests have reserved.
#[derive(Debug)]
pub struct ShardReceiveBudget {
    process: Arc<ProcessReceiveBudget>,
    leased: Cell<usize>,
    reserved: Cell<usize>,
    cells: Arc<ShardCells>,
}

impl ShardReceiveBudget {
    /// An empty lease; `cells` shows the reserved bytes.
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
            let usual = missing.max(self.process.lease_size);
            let Some(granted) = self.process.lease(missing, usual) else { return false };
            self.leased.set(self.leased.get() + granted);
        }
        self.set_reserved(total);
        debug_assert!(total <= self.leased.get(), "what is reserved was leased");
        true
    }

    fn release(&self, size: usize) {
        debug_assert!(size <= self.reserved.get(), "only reserved bytes are released");
        #[cfg(test)]
        let size = if is_planted(SimulatedFault::ReservationLeaked) { size.min(1_000) } else { size };
        let left = self.reserved.get().saturating_sub(size);
        self.set_reserved(left);
        // One step is kept, so that occasional small requests do not touch the shared counter.
        let (spare, kept) = (self.leased.get() - left, self.process.lease_size);
        if spare > 2 * kept {
            self.leased.set(left + kept);
            self.process.return_lease(spare - kept);
        }
    }

    fn adopt(&self, size: usize) {
        self.leased.set(self.leased.get() + size);
        self.set_reserved(self.reserved.get() + size);
    }

    fn size_max(&self) -> usize {
        self.process.size_max
    }

    fn shortage(&self) -> Shortage {
        self.process.shortage()
    }
}

/// The bytes that a job of another thread takes of the process's budget for a request that a shard
/// has begun to reserve for. Given back when this is dropped, unless the shard adopts it.
#[derive(Debug)]
pub struct JobReservation {
    process: Arc<ProcessReceiveBudget>,
    size: usize,
    is_short: bool,
}

/// The budget of a job while it runs. Bytes that the job gives back meanwhile go back with the
/// rest.
struct JobBudget {
    process: Arc<ProcessReceiveBudget>,
    leased: Cell<usize>,
}

impl JobReservation {
    /// Does work that reserves memory beside `size` bytes, which the shard holds.
    pub fn during<T>(
        process: &Arc<ProcessReceiveBudget>,
        size: usize,
        work: impl FnOnce(&mut ReceiveReservation) -> T,
    ) -> (T, Self) {
        let budget = Rc::new(JobBudget { process: Arc::clone(process), leased: Cell::new(0) });
        let mut memory = ReceiveReservation::beside(size, Some(Rc::clone(&budget) as Rc<dyn ReceiveBudget>));
        let outcome = work(&mut memory);
        let (size, is_short) = (budget.leased.get(), memory.is_short());
        (outcome, Self { process: Arc::clone(process), size, is_short })
    }

    /// Hands it over to the request's reservation on its shard.
    pub fn hand_over(mut self, memory: &mut ReceiveReservation) {
        memory.adopt(std::mem::take(&mut self.size), self.is_short);
    }
}

impl Drop for JobReservation {
    fn drop(&mut self) {
        self.process.return_lease(self.size);
    }
}

impl ReceiveBudget for JobBudget {
    fn reserve(&self, size: usize) -> bool {
        let is_granted = self.process.lease(size, size).is_some();
        self.leased.set(self.leased.get() + if is_granted { size } else { 0 });
        is_granted
    }

    fn release(&self, _: usize) {}

    fn adopt(&self, size: usize) {
        self.leased.set(self.leased.get() + size);
    }

    fn size_max(&self) -> usize {
        self.process.size_max
    }

    fn shortage(&self) -> Shortage {
        self.process.shortage()
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
        let process = Arc::new(ProcessReceiveBudget::with_lease_size(3 * RECEIVE_LEASE_SIZE + 5, RECEIVE_LEASE_SIZE));
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
    fn of_a_small_budget_an_idle_shard_keeps_nothing() {
        let least = 64 * 2 * RECEIVE_LEASE_SIZE;
        for (size_max, kept) in [(4_000_000, 0), (least - 1, 0), (least, RECEIVE_LEASE_SIZE)] {
            let process = Arc::new(ProcessReceiveBudget::new(size_max, 2));
            let (one, two) = (shard(&process), shard(&process));
            assert!(one.reserve(size_max) && !two.reserve(1));
            one.release(size_max);
            assert_eq!(process.leased.load(Ordering::Relaxed), kept, "{size_max}");
            assert!(two.reserve(size_max - kept), "{size_max}");
        }
    }

    #[test]
    fn bytes_that_one_shard_returns_another_may_lease() {
        let process = Arc::new(ProcessReceiveBudget::with_lease_size(8 * RECEIVE_LEASE_SIZE, RECEIVE_LEASE_SIZE));
        let (one, two) = (shard(&process), shard(&process));
        assert!(one.reserve(6 * RECEIVE_LEASE_SIZE) && !two.reserve(3 * RECEIVE_LEASE_SIZE));
        one.release(6 * RECEIVE_LEASE_SIZE);
        assert_eq!(one.cells.receive_memory.get(), 0);
        assert!(two.reserve(7 * RECEIVE_LEASE_SIZE), "all but what the other keeps");
        assert!(one.reserve(RECEIVE_LEASE_SIZE) && !one.reserve(1) && !two.reserve(1));
    }

    #[test]
    fn what_a_job_takes_counts_against_all_and_goes_over_to_its_request() {
        let process = Arc::new(ProcessReceiveBudget::with_lease_size(100, 0));
        let shard = Rc::new(shard(&process));
        let mut memory = ReceiveReservation::new(Some(Rc::clone(&shard) as Rc<dyn ReceiveBudget>));
        assert_eq!(memory.grow(40), Ok(()));
        let take = |size| JobReservation::during(&process, 40, move |memory| (memory.grow(size), memory.size()));
        let ((outcome, size), reservation) = take(30);
        assert_eq!((outcome, size, process.leased.load(Ordering::Relaxed)), (Ok(()), 70, 70));
        reservation.hand_over(&mut memory);
        assert_eq!((memory.size(), shard.cells.receive_memory.get(), memory.is_short()), (70, 70, false));
        // The result of a job that is no longer awaited is given back.
        drop(take(20));
        assert_eq!(process.leased.load(Ordering::Relaxed), 70);
        // A job that can never fit reports that, and the shard counts the shortage.
        for (size, is_passing) in [(31, true), (61, false)] {
            let ((outcome, _), reservation) = take(size);
            assert_eq!(outcome.unwrap_err().is_passing(), is_passing, "{size}");
            reservation.hand_over(&mut memory);
            assert!(memory.is_short() && memory.size() == 70);
        }
        drop(memory);
        assert_eq!((shard.cells.receive_memory.get(), process.leased.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn no_more_is_leased_than_the_process_has_left_until_the_next_look() {
        let process =
            Arc::new(ProcessReceiveBudget::with_lease_size(8 * RECEIVE_LEASE_SIZE, RECEIVE_LEASE_SIZE).within(9));
        let one = shard(&process);
        process.set_room(RECEIVE_LEASE_SIZE / 2);
        assert!(one.reserve(100) && process.leased.load(Ordering::Relaxed) == RECEIVE_LEASE_SIZE / 2, "what is left");
        assert!(!one.reserve(RECEIVE_LEASE_SIZE) && one.reserve(RECEIVE_LEASE_SIZE / 2 - 100));
        assert_eq!(one.shortage(), Shortage::Pressed { limit: 9 });
        one.release(RECEIVE_LEASE_SIZE / 2);
        assert!(!one.reserve(RECEIVE_LEASE_SIZE), "what came back may not have been freed yet");
        process.set_room(2 * RECEIVE_LEASE_SIZE);
        assert_eq!(one.shortage(), Shortage::Busy { size_max: 8 * RECEIVE_LEASE_SIZE });
        assert!(one.reserve(2 * RECEIVE_LEASE_SIZE) && !one.reserve(RECEIVE_LEASE_SIZE));
    }

    #[test]
    fn small_requests_do_not_touch_the_shared_counter() {
        let process = Arc::new(ProcessReceiveBudget::with_lease_size(8 * RECEIVE_LEASE_SIZE, RECEIVE_LEASE_SIZE));
        let one = shard(&process);
        for _ in 0..1_000 {
            assert!(one.reserve(1_000));
            assert_eq!(process.leased.load(Ordering::Relaxed), RECEIVE_LEASE_SIZE);
            one.release(1_000);
        }
    }
}
