//! The place of one instance at the queue of its model version: where its thread sleeps, and what
//! those who look for an idle instance know of it. Any thread may read it and wake its thread.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Wake;

use crate::queue::sync::{self, AtomicBool, Thread, fence};
use crate::time::{Clock, Instant};

/// Where an instance's thread sleeps.
#[derive(Default)]
pub struct Parking {
    name: String,
    is_passive: bool,
    rate_id: Option<usize>,
    is_parked: AtomicBool,
    /// Whether it has work and waits for resources: whoever gives them back wakes it.
    is_blocked: AtomicBool,
    /// Whether its instance has as much in flight as it takes: it is woken when some of that is done.
    is_full: AtomicBool,
    turn: AtomicU64,
    batches: AtomicU64,
    wakes: AtomicUsize,
    /// Rows of the batch that it runs, 0 for none, and when it began, in nanoseconds.
    rows: AtomicU32,
    began: AtomicU64,
    thread: OnceLock<Thread>,
}

impl Parking {
    /// The parking of an instance with a name.
    pub fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// The same for an instance that is loaded and given no work.
    pub fn passive(self) -> Self {
        Self { is_passive: true, ..self }
    }

    /// The same for an instance that takes resources, by its id among those that do.
    pub fn limited(self, rate_id: usize) -> Self {
        Self { rate_id: Some(rate_id), ..self }
    }

    /// The name of its instance.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its instance is given no work.
    pub const fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// The id of its instance among those that take resources.
    pub const fn rate_id(&self) -> Option<usize> {
        self.rate_id
    }

    /// Batches that its instance took.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Its instance took a batch.
    pub(super) fn count_batch(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Times its thread was woken.
    pub(super) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Its instance begins to run a batch.
    pub(super) fn set_run(&self, rows: u32, now: Instant) {
        self.began.store(now.as_nanos(), Ordering::Relaxed);
        let before = self.rows.swap(rows.max(1), Ordering::Relaxed);
        debug_assert_eq!(before, 0, "the run before was taken when its instance came back");
    }

    /// The rows of the batch that its instance ran, and when it began, if there was one.
    pub(super) fn take_run(&self) -> Option<(u32, Instant)> {
        let rows = self.rows.swap(0, Ordering::Relaxed);
        (rows > 0).then(|| (rows, Instant::from_nanos(self.began.load(Ordering::Relaxed))))
    }

    /// Of those that are idle the one with the least turn is woken.
    pub fn set_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Says whether it has work and waits for resources.
    pub fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::SeqCst);
    }

    /// Says whether its instance takes no batch for now.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    /// The calling thread is the one that sleeps here.
    pub(super) fn take(&self) {
        self.thread.get_or_init(sync::current);
    }

    /// Says whether its thread sleeps, or is about to; and whether it did before.
    pub(super) fn set_parked(&self, is_parked: bool) -> bool {
        self.is_parked.swap(is_parked, Ordering::SeqCst)
    }

    /// Whether its thread sleeps, or is about to.
    pub(super) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::SeqCst)
    }

    /// Wakes its thread if it sleeps, or is about to.
    pub fn unpark(&self) -> bool {
        // Most of the time it is awake: a load is cheaper than a swap.
        let was_parked = self.is_parked() && self.set_parked(false);
        if was_parked && let Some(thread) = self.thread.get() {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            thread.unpark();
        }
        was_parked
    }

    /// Sleeps until somebody wakes it, or until then.
    pub(super) fn park(&self, until: Option<Instant>, clock: Clock) {
        debug_assert!(self.thread.get().is_some(), "a thread that sleeps can be woken");
        while self.is_parked() {
            let Some(until) = until else {
                sync::park();
                continue;
            };
            let left = until.since(clock());
            if left.is_zero() {
                self.set_parked(false);
            } else {
                sync::park_timeout(left);
            }
        }
    }

    fn is_idle(&self) -> bool {
        let is_taken = self.is_blocked.load(Ordering::SeqCst) || self.is_full.load(Ordering::SeqCst);
        self.is_parked() && !is_taken && !self.is_passive
    }
}

/// What a batch in flight calls when it is done.
impl Wake for Parking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The handshake with `Feed::next_beside`: what is done is seen, or its thread is seen parked.
        fence(Ordering::SeqCst);
        self.unpark();
    }
}

/// Wakes the instance that has had the least of turns among those that sleep: work is shared
/// evenly, and by priority where there is a rate limit, however little of it there is.
pub fn wake_one(parkings: &[Arc<Parking>]) {
    // Somebody else may be faster with one: then another is looked for.
    while let Some(idle) =
        parkings.iter().filter(|parking| parking.is_idle()).min_by_key(|parking| parking.turn.load(Ordering::Relaxed))
    {
        if idle.unpark() {
            return;
        }
    }
}
