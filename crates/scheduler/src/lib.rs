//! Forms batches: a pure state machine between the queue of one model version and its instances.
//! The caller passes in arrivals and the time; an idle instance polls for a batch and learns when
//! to poll again. It knows no tensors, reads no clock and takes no lock. Bounded by
//! [`Policy::entries_max`]. The same room admits requests ([`Admission`], [`Forecast`]), and keeps
//! responses in order ([`Ordering`]); [`RowShares`] splits large requests, [`PaddedRuns`] batches with rows of different lengths.

mod admission;
pub mod ensemble;
mod forecast;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod hold;
mod limits;
mod ordering;
mod padded_runs;
mod policy;
mod queue;
pub mod rate;
mod returns;
mod row_cost;
mod row_shares;
mod run_time;
pub mod sequence;
mod tuning;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use smallvec::SmallVec;

pub use crate::admission::{Admission, QueueBounds, QueueFull};
pub use crate::forecast::Forecast;
pub use crate::ordering::{Ordering, ResponseTurn};
pub use crate::padded_runs::{PaddedRuns, RowGroup};
pub use crate::policy::{Policy, QueuePolicy, TimeoutAction};
pub use crate::row_cost::RowCosts;
pub use crate::row_shares::RowShares;
pub use crate::run_time::RunTimes;

use crate::queue::{Queue, QueuePlace, Rank};
use crate::returns::Returns;
use crate::tuning::Tuning;
use base::limits::BATCH_REQUESTS_MAX;
use base::time::Instant;

/// The key that two entries must share to be in one batch: their inputs, and the shapes of those
/// without the batch axis. Empty if the model fixes both.
pub type ShapeKey = SmallVec<[i64; 4]>;

/// One request in the queue.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// The caller's value for the request; the scheduler only passes it on.
    pub token: T,
    /// Its rows; 0 counts as 1.
    pub rows: u32,
    /// Only entries with equal keys share a batch.
    pub shape_key: ShapeKey,
    /// Its arrival time.
    pub queued_at: Instant,
    /// Its `priority` parameter; 0 for none.
    pub priority: u64,
    /// Its `timeout` parameter; zero for none.
    pub timeout: Duration,
    /// The time at which its client gives up.
    pub deadline: Option<Instant>,
}

/// The caller's side of exactly-once: tells which entries may still go into a batch. An entry that
/// no longer waits (its client left, its shard withdrew it) stays in the queue until the scheduler
/// meets it and drops it.
pub trait Claims<T> {
    /// Returns true if an entry still waits.
    fn is_waiting(&mut self, token: &T) -> bool;

    /// Takes an entry for a batch, at most once; false if it was withdrawn.
    fn claim(&mut self, token: &T) -> bool;
}

/// Entries that left the queue together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryBatch<T> {
    /// Their tokens, in queue order.
    pub tokens: Vec<T>,
    /// The sum of their rows.
    pub rows: u32,
    /// The reason for its release.
    pub released: ReleaseReason,
}

/// The reason for the release of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseReason {
    /// One of its entries would miss its deadline if the batch waited longer.
    Deadline,
    /// Its oldest entry has waited for the full delay.
    Delay,
    /// It has its largest size, or the next entry would not fit.
    Full,
    /// An instance was idle, and there was no reason to wait.
    Idle,
    /// It has a preferred size.
    Preferred,
    /// The next entry has another shape.
    Shape,
}

/// An entry that left the queue because a timer expired. It is not claimed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired<T> {
    /// Its token.
    pub token: T,
    /// The timer that expired.
    pub cause: Expiry,
}

/// The timer that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// The deadline of its client.
    Deadline,
    /// Its queue timeout, in a level that rejects.
    Timeout,
}

/// The queue is full; the entry is returned.
#[derive(Clone, Debug)]
pub struct Refused<T>(pub Entry<T>);

/// The queue of one model version and the rule by which batches leave it.
#[derive(Debug)]
pub struct Scheduler<T> {
    /// The policy in force: the configured one, with sizes narrowed by the tuning.
    policy: Policy,
    configured: Policy,
    times: RunTimes,
    /// `None` without a latency target.
    tuning: Option<Tuning>,
    /// `None` unless the policy leaves the size to the cost of a row and all requests so far had
    /// one shape.
    row_costs: Option<RowCosts>,
    /// `None` under the same conditions.
    returns: Option<Returns>,
    /// That shape; `None` before the first request.
    shape_key: Option<ShapeKey>,
    queue: Queue<QueuedEntry<T>>,
    /// The next timer of each entry that has one.
    alarms: BTreeSet<TimeoutAlarm>,
    expired: VecDeque<Expired<T>>,
    /// The time at which an idle instance must poll again.
    ask_at: Option<Instant>,
    rows_wanted: u32,
    /// Entries that ever arrived; numbers the next one.
    entry_count: u64,
}

#[derive(Debug)]
struct QueuedEntry<T> {
    entry: Entry<T>,
    number: u64,
    /// The time at which its queue timeout passes; `None` once it has.
    timeout_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TimeoutAlarm {
    at: Instant,
    /// The entry's number: alarms of the same instant fire in arrival order.
    number: u64,
    place: QueuePlace,
}

impl<T> Scheduler<T> {
    /// An empty queue.
    pub fn new(policy: Policy) -> Self {
        Self {
            configured: policy.clone(),
            times: RunTimes::new(),
            tuning: policy.latency_target.map(Tuning::new),
            row_costs: (policy.learns_row_costs() && !policy.rows_differ).then(|| RowCosts::new(policy.rows_max())),
            returns: policy.learns_row_costs().then(Returns::default),
            shape_key: None,
            policy,
            queue: Queue::new(),
            alarms: BTreeSet::new(),
            expired: VecDeque::new(),
            ask_at: None,
            rows_wanted: 0,
            entry_count: 0,
        }
    }

    /// A request arrived; the caller keeps arrival order.
    ///
    /// # Errors
    /// [`Refused`] if the queue is full. Cancelled entries count too: [`Self::evict_cancelled`]
    /// makes room.
    pub fn handle_request(&mut self, entry: Entry<T>, now: Instant) -> Result<(), Refused<T>> {
        if self.len() >= self.policy.entries_max {
            return Err(Refused(entry));
        }
        if let Some(tuning) = &mut self.tuning {
            tuning.handle_request(entry.queued_at);
        }
        self.compare_shape(&entry.shape_key);
        if let Some(returns) = &mut self.returns {
            returns.handle_request(entry.rows, entry.queued_at);
        }
        let level = self.policy.level(entry.priority);
        let timeout = self.policy.queue(level).timeout(entry.timeout);
        let timeout_at = timeout.map(|timeout| entry.queued_at + timeout);
        let held = QueuedEntry { entry, number: self.entry_count, timeout_at };
        self.entry_count += 1;
        let place = self.queue.push(Rank { level, is_delayed: false }, held);
        self.set_alarm(place);
        // Any arrival may complete a batch, so an idle instance polls at once.
        self.ask_at = Some(now);
        self.invariants();
        Ok(())
    }

    /// An instance ran a batch of `rows` rows in `took`.
    pub fn handle_run(&mut self, rows: u32, took: Duration) {
        self.times.handle_run(rows, took);
        if let Some(tuning) = &self.tuning {
            let limit = tuning.rows_limit(&self.configured, &self.times);
            let preferred = self.configured.rows_preferred.iter().copied();
            self.policy.rows_preferred = preferred.filter(|rows| *rows <= limit).collect();
            self.policy.rows_max = limit;
            let most = self.configured.rows_max().max(self.configured.rows_preferred_max());
            debug_assert!((1..=most).contains(&limit), "tuning stays within the configuration");
        }
    }

    /// An instance ran a batch of `rows` rows in `took`, with nothing else at the same time.
    pub fn handle_lone_run(&mut self, rows: u32, took: Duration, now: Instant) {
        if let Some(returns) = &mut self.returns {
            returns.handle_run(rows, took, now);
        }
        if let Some(costs) = &mut self.row_costs {
            costs.handle_run(rows, took);
            self.policy.rows_max = costs.rows_limit();
        }
    }

    /// Returns the batch that an idle instance should run, in queue order, or `None` if nothing
    /// should run before [`Self::poll_timeout`].
    pub fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<T>) -> Option<EntryBatch<T>> {
        loop {
            let (count, released) = self.poll_release(now, claims)?;
            // All of them may have been withdrawn between the scan and the claims: then scan again.
            if let Some(batch) = self.take_batch(count, released, claims) {
                if let Some(costs) = &mut self.row_costs {
                    costs.handle_batch(batch.rows);
                    self.policy.rows_max = costs.rows_limit();
                }
                if let Some(returns) = &mut self.returns {
                    returns.handle_batch();
                }
                self.ask_at = (self.queue.len() > 0).then_some(now);
                self.invariants();
                return Some(batch);
            }
        }
    }

    /// Returns true if [`Self::poll_batch`] would return a batch now. If not, it leaves the same
    /// state as that call.
    pub fn poll_ready(&mut self, now: Instant, claims: &mut impl Claims<T>) -> bool {
        self.poll_release(now, claims).is_some()
    }

    /// The next expired entry, which the caller answers if it can claim it.
    #[inline]
    pub fn poll_expired(&mut self, now: Instant) -> Option<Expired<T>> {
        self.handle_alarms(now);
        self.expired.pop_front()
    }

    /// Returns the time at which an idle instance must call [`Self::poll_batch`] again even if
    /// nothing arrives: at the end of the delay, or when the timer of an entry expires.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ask_at.into_iter().chain(self.poll_expired_timeout()).min()
    }

    /// Returns the rows missing until the next wake-up, after [`Self::poll_batch`] returned `None`:
    /// before that many rows of the same shape have arrived, it has no batch earlier than at
    /// [`Self::poll_timeout`]. 0 if every arrival may complete a batch.
    pub const fn rows_wanted(&self) -> u32 {
        self.rows_wanted
    }

    /// Returns the time at which [`Self::poll_expired`] must be called again, whether or not an
    /// instance is idle.
    #[inline]
    pub fn poll_expired_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|alarm| alarm.at)
    }

    /// Nothing more will arrive: batches no longer wait to grow.
    pub fn handle_drain(&mut self) {
        self.policy.queue_delay_max = Duration::ZERO;
        self.tuning = None;
        self.returns = None;
    }

    /// Drops all entries that no longer wait. Takes time in proportion to the queue's length.
    pub fn evict_cancelled(&mut self, claims: &mut impl Claims<T>) {
        let mut next = self.queue.first();
        while let Some(place) = next {
            next = self.queue.next(place);
            if self.queue.get(place).is_some_and(|held| !claims.is_waiting(&held.entry.token)) {
                self.take(place);
            }
        }
        self.expired.retain(|expired| claims.is_waiting(&expired.token));
        self.invariants();
    }

    /// Entries in memory: those that wait, cancelled ones that were not met yet, and expired ones that were not polled
    /// yet.
    #[inline]
    pub fn len(&self) -> usize {
        self.queue.len() + self.expired.len()
    }

    /// Returns true if no entry is in memory.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The policy in force.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the run times of batches.
    pub const fn times(&self) -> &RunTimes {
        &self.times
    }

    /// Returns the cost of a row by size of batch; `None` if the size does not follow from it.
    #[inline]
    pub const fn row_costs(&self) -> Option<&RowCosts> {
        self.row_costs.as_ref()
    }

    /// Rows of a batch that closes because it is large enough.
    #[inline]
    pub fn rows_full(&self) -> u32 {
        if self.policy.is_batched { self.policy.rows_preferred_max() } else { 1 }
    }

    /// Rows of different shapes cost differently in batches of any size: from the second shape on the size is as configured.
    fn compare_shape(&mut self, shape_key: &ShapeKey) {
        if self.row_costs.is_some() && self.shape_key.get_or_insert_with(|| shape_key.clone()) != shape_key {
            self.row_costs = None;
            self.returns = None;
            self.policy.rows_max = self.configured.rows_max;
        }
    }

    /// Returns the number of entries that should leave now, and the reason. If `None`, sets the
    /// time to poll again.
    fn poll_release(&mut self, now: Instant, claims: &mut impl Claims<T>) -> Option<(usize, ReleaseReason)> {
        self.handle_alarms(now);
        let scan = self.scan(claims);
        let close = self.close(&scan, now);
        let release = scan.release(&self.policy, close, now);
        debug_assert!(release.is_none_or(|(count, _)| (1..=scan.count).contains(&count)), "what leaves was scanned");
        debug_assert!(release.is_some() || scan.count == 0 || close.is_some(), "what stays has a time to leave");
        if release.is_none() {
            self.ask_at = close.map(|close| close.at);
            let missing = close.map_or(u32::MAX, |close| close.missing);
            self.rows_wanted = scan.rows_wanted(&self.policy).min(missing);
        }
        release
    }

    fn handle_alarms(&mut self, now: Instant) {
        while let Some(alarm) = self.alarms.first().copied().filter(|alarm| alarm.at <= now) {
            self.alarms.pop_first();
            self.handle_alarm(alarm.place, now);
        }
        self.invariants();
    }

    fn invariants(&self) {
        debug_assert!(self.len() <= self.policy.entries_max, "the bound on entries holds");
        debug_assert!(self.alarms.len() <= self.queue.len(), "an entry has one alarm at most, and none once it left");
        debug_assert!(self.entry_count >= self.queue.len() as u64, "each has a number of its own");
        debug_assert!(
            self.poll_timeout().is_some() || self.queue.len() == 0,
            "while entries wait there is a next poll"
        );
    }

    fn handle_alarm(&mut self, place: QueuePlace, now: Instant) {
        let Some(rank) = self.queue.rank(place) else { return };
        let Some(held) = self.queue.get_mut(place) else { return };
        let is_dead = held.entry.deadline.is_some_and(|deadline| deadline <= now);
        let is_delayed = self.policy.queue(rank.level).timeout_action == TimeoutAction::Delay;
        if is_delayed && !is_dead {
            held.timeout_at = None;
            self.queue.move_to(place, Rank { is_delayed: true, ..rank });
            self.set_alarm(place);
        } else if let Some(held) = self.queue.take(place) {
            let cause = if is_dead { Expiry::Deadline } else { Expiry::Timeout };
            self.expired.push_back(Expired { token: held.entry.token, cause });
        }
    }

    /// Returns the time at which a batch that may still grow leaves all the same, and the reason;
    /// `None` if it does not wait at all.
    fn close(&mut self, scan: &BatchScan, now: Instant) -> Option<BatchClose> {
        let oldest = scan.oldest?;
        let delay = self.policy.queue_delay_max;
        let delayed = (!delay.is_zero()).then(|| oldest + delay);
        let closed = |at| BatchClose { at, released: ReleaseReason::Delay, missing: u32::MAX };
        let held = match (&self.tuning, &mut self.returns) {
            (Some(tuning), _) => {
                let until = tuning.hold_until(scan.rows, self.policy.rows_preferred_max(), oldest, &self.times)?;
                closed(delayed.map_or(until, |delayed| delayed.min(until)))
            }
            (None, Some(returns)) => {
                let (at, missing) = returns.poll_hold(scan.rows, self.policy.rows_max(), now, &self.times)?;
                BatchClose { at, released: ReleaseReason::Idle, missing }
            }
            (None, None) => closed(delayed?),
        };
        let run = self.times.bound(scan.rows);
        let late = scan.deadline.zip(run).map(|(deadline, run)| deadline - run);
        Some(match late {
            Some(at) if at < held.at => BatchClose { at, released: ReleaseReason::Deadline, ..held },
            _ => held,
        })
    }

    /// Scans the queue as far as one batch may reach, dropping cancelled entries on the way.
    fn scan(&mut self, claims: &mut impl Claims<T>) -> BatchScan {
        let mut scan = BatchScan::default();
        let mut next = self.queue.first();
        while let Some(place) = next.filter(|_| scan.end.is_none()) {
            next = self.queue.next(place);
            let Some(held) = self.queue.get(place) else { break };
            if !claims.is_waiting(&held.entry.token) {
                self.take(place);
                continue;
            }
            let first = scan.first.and_then(|first| self.queue.get(first));
            let is_alike = first.is_none_or(|first| first.entry.shape_key == held.entry.shape_key);
            scan.first.get_or_insert(place);
            scan.add(&held.entry, is_alike, &self.policy);
        }
        scan
    }

    fn take_batch(
        &mut self,
        count: usize,
        released: ReleaseReason,
        claims: &mut impl Claims<T>,
    ) -> Option<EntryBatch<T>> {
        let mut tokens = Vec::with_capacity(count);
        let mut rows = 0_u32;
        for _ in 0..count {
            let Some(entry) = self.queue.first().and_then(|place| self.take(place)) else { break };
            if claims.claim(&entry.token) {
                rows = rows.saturating_add(entry.rows.max(1));
                tokens.push(entry.token);
            }
        }
        debug_assert!(
            tokens.len() <= 1 || rows <= self.policy.rows_max(),
            "a batch is too large only where one request is"
        );
        (!tokens.is_empty()).then_some(EntryBatch { tokens, rows, released })
    }

    fn take(&mut self, place: QueuePlace) -> Option<Entry<T>> {
        let held = self.queue.take(place)?;
        if let Some(at) = held.alarm_at() {
            let was_set = self.alarms.remove(&TimeoutAlarm { at, number: held.number, place });
            debug_assert!(was_set, "an entry with a timer has an alarm");
        }
        Some(held.entry)
    }

    fn set_alarm(&mut self, place: QueuePlace) {
        let Some(held) = self.queue.get(place) else { return };
        if let Some(at) = held.alarm_at() {
            self.alarms.insert(TimeoutAlarm { at, number: held.number, place });
        }
    }
}

impl<T> QueuedEntry<T> {
    fn alarm_at(&self) -> Option<Instant> {
        self.timeout_at.into_iter().chain(self.entry.deadline).min()
    }
}

impl ReleaseReason {
    /// All reasons, in the order of their names.
    pub const ALL: [Self; 6] = [Self::Deadline, Self::Delay, Self::Full, Self::Idle, Self::Preferred, Self::Shape];

    /// The name, as metrics have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Delay => "delay",
            Self::Full => "full",
            Self::Idle => "idle",
            Self::Preferred => "preferred",
            Self::Shape => "shape",
        }
    }
}

/// The time at which a batch leaves though it may still grow, and the reason.
#[derive(Clone, Copy, Debug)]
struct BatchClose {
    at: Instant,
    released: ReleaseReason,
    /// The rows after which it leaves earlier, beside the sizes of the policy; the largest number if only those count.
    missing: u32,
}

/// The batch that could leave, as far as the queue was scanned.
#[derive(Default)]
struct BatchScan {
    first: Option<QueuePlace>,
    count: usize,
    rows: u32,
    oldest: Option<Instant>,
    /// The earliest of their deadlines.
    deadline: Option<Instant>,
    /// The number of entries after which to close it, as far as known, and the reason.
    mark: Option<(usize, ReleaseReason)>,
    /// The reason why it cannot grow.
    end: Option<ReleaseReason>,
}

impl BatchScan {
    /// The next entry in the queue. Triton's `GetDynamicBatch` marks the same places.
    fn add<T>(&mut self, entry: &Entry<T>, is_alike: bool, policy: &Policy) {
        let rows = self.rows.saturating_add(entry.rows.max(1));
        if self.count > 0 {
            if rows > policy.rows_preferred_max() && self.mark.is_none() {
                self.mark = Some((self.count, ReleaseReason::Full));
            }
            // Without a delay nothing after the mark matters: stop there, or a long queue is scanned for each batch.
            let is_closed = rows > policy.rows_preferred_max() && policy.queue_delay_max.is_zero();
            if !policy.is_batched {
                self.end = Some(ReleaseReason::Idle);
            } else if is_closed || rows > policy.rows_max() || self.count >= BATCH_REQUESTS_MAX {
                self.end = Some(ReleaseReason::Full);
            } else if !is_alike {
                self.end = Some(ReleaseReason::Shape);
            }
            if self.end.is_some() {
                return;
            }
        }
        self.count += 1;
        self.rows = rows;
        self.oldest = self.oldest.into_iter().chain([entry.queued_at]).min();
        self.deadline = self.deadline.into_iter().chain(entry.deadline).min();
        if policy.is_preferred(rows) {
            let released = if rows == policy.rows_max() { ReleaseReason::Full } else { ReleaseReason::Preferred };
            self.mark = Some((self.count, released));
        }
    }

    /// Rows missing to the next size at which it closes. 0 with priority levels: a new entry may go in front, and then
    /// any size may close a batch.
    fn rows_wanted(&self, policy: &Policy) -> u32 {
        if self.count == 0 || policy.priority_levels > 0 {
            return 0;
        }
        let next = policy.rows_preferred.iter().find(|rows| **rows > self.rows);
        next.copied().unwrap_or_else(|| policy.rows_preferred_max()).saturating_sub(self.rows)
    }

    /// Returns the number of entries that should leave now, and the reason.
    fn release(&self, policy: &Policy, close: Option<BatchClose>, now: Instant) -> Option<(usize, ReleaseReason)> {
        let late = close.filter(|close| close.at <= now).map(|close| close.released);
        match (self.mark, self.end) {
            _ if self.count == 0 => None,
            _ if !policy.is_batched => Some((1, ReleaseReason::Idle)),
            (Some(mark), _) if late.is_none() => Some(mark),
            (_, Some(end)) => Some((self.count, end)),
            _ if self.rows >= policy.rows_preferred_max() && late.is_none() => Some((self.count, ReleaseReason::Full)),
            _ if close.is_none() => Some((self.count, ReleaseReason::Idle)),
            _ => late.map(|released| (self.count, released)),
        }
    }
}

#[cfg(test)]
mod tests;
