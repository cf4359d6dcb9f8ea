//! Forming batches: a pure state machine between the queue of one model version and its instances.
//! It is told what arrives and what time it is; an instance that becomes idle asks it for a batch,
//! and is told when to ask again. It knows no tensors, reads no clock and takes no lock. Bounds:
//! [`Policy::entries_max`]. Beside it stand what decides who may wait ([`Admission`],
//! [`Forecast`]) and what keeps responses in order ([`Ordering`]).

mod admission;
pub mod ensemble;
mod forecast;
mod ordering;
mod policy;
mod queue;
pub mod rate;
mod run_time;
pub mod sequence;
mod tuning;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use smallvec::SmallVec;

pub use crate::scheduler::admission::{Admission, QueueBounds, QueueFull};
pub use crate::scheduler::forecast::Forecast;
pub use crate::scheduler::ordering::{Ordering, ResponseTurn};
pub use crate::scheduler::policy::{Policy, QueuePolicy, TimeoutAction};
pub use crate::scheduler::run_time::RunTimes;

use crate::scheduler::queue::{Queue, QueuePlace, Rank};
use crate::scheduler::tuning::Tuning;
use crate::time::Instant;

/// What two entries must share to be in one batch: which inputs they have, and the shapes of those
/// but for the batch axis. Empty where the model leaves neither open.
pub type ShapeKey = SmallVec<[i64; 4]>;

/// One request in the queue.
#[derive(Clone, Debug)]
pub struct Entry<T> {
    /// The caller's name for it.
    pub token: T,
    /// Its rows; none counts as one.
    pub rows: u32,
    /// What it may be batched with.
    pub shape_key: ShapeKey,
    /// When it arrived.
    pub queued_at: Instant,
    /// Its `priority` parameter; 0 for none.
    pub priority: u64,
    /// Its `timeout` parameter; zero for none.
    pub timeout: Duration,
    /// When its client will have given up.
    pub deadline: Option<Instant>,
}

/// Who may still be put into a batch: the callers' side of exactly once. An entry that does not
/// wait any more (its client left, its shard withdrew it) is forgotten when it is met.
pub trait Claims<T> {
    /// Whether an entry still waits.
    fn is_waiting(&mut self, token: &T) -> bool;

    /// Takes an entry, once and for all; false where it has gone.
    fn claim(&mut self, token: &T) -> bool;
}

/// Entries that left the queue together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryBatch<T> {
    /// Their tokens, in queue order.
    pub tokens: Vec<T>,
    /// The sum of their rows.
    pub rows: u32,
    /// Why now.
    pub released: ReleaseReason,
}

/// Why a batch was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReleaseReason {
    /// One of its entries would be late if it waited for others.
    Deadline,
    /// Its oldest entry has waited as long as it may.
    Delay,
    /// The next entry would make it too large, or it is as large as it gets.
    Full,
    /// An instance was idle, and nothing says to wait.
    Idle,
    /// It has a preferred size.
    Preferred,
    /// The next entry has another shape.
    Shape,
}

/// An entry that waits no more because its time is over. It was not claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired<T> {
    /// Its token.
    pub token: T,
    /// What passed.
    pub cause: Expiry,
}

/// What an entry did not live to see the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expiry {
    /// The deadline of its client.
    Deadline,
    /// Its queue timeout, in a level that rejects.
    Timeout,
}

/// The queue is full of entries: this one is given back.
#[derive(Clone, Debug)]
pub struct Refused<T>(pub Entry<T>);

/// The queue of one model version and the rule by which batches leave it.
#[derive(Debug)]
pub struct Scheduler<T> {
    /// What holds now: as configured, but for what the tuning narrows.
    policy: Policy,
    configured: Policy,
    times: RunTimes,
    /// Where there is a latency target.
    tuning: Option<Tuning>,
    queue: Queue<QueuedEntry<T>>,
    /// What befalls entries next, one alarm each at most.
    alarms: BTreeSet<TimeoutAlarm>,
    expired: VecDeque<Expired<T>>,
    ask_at: Option<Instant>,
    rows_wanted: u32,
    entry_count: u64,
}

#[derive(Debug)]
struct QueuedEntry<T> {
    entry: Entry<T>,
    number: u64,
    /// When its queue timeout passes, while it has not.
    timeout_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TimeoutAlarm {
    at: Instant,
    /// The entry's number: of those that are due together, the first to come is the first.
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
            policy,
            queue: Queue::new(),
            alarms: BTreeSet::new(),
            expired: VecDeque::new(),
            ask_at: None,
            rows_wanted: 0,
            entry_count: 0,
        }
    }

    /// A request arrived. Entries come in arrival order. Given back where the queue is full, those
    /// that have gone included; [`Self::evict_cancelled`] makes room.
    pub fn handle_request(&mut self, entry: Entry<T>, now: Instant) -> Result<(), Refused<T>> {
        if self.len() >= self.policy.entries_max {
            return Err(Refused(entry));
        }
        if let Some(tuning) = &mut self.tuning {
            tuning.handle_request(entry.queued_at);
        }
        let level = self.policy.level(entry.priority);
        let timeout = self.policy.queue(level).timeout(entry.timeout);
        let timeout_at = timeout.map(|timeout| entry.queued_at + timeout);
        let held = QueuedEntry { entry, number: self.entry_count, timeout_at };
        self.entry_count += 1;
        let place = self.queue.push(Rank { level, is_delayed: false }, held);
        self.set_alarm(place);
        self.ask_at = Some(now);
        self.invariants();
        Ok(())
    }

    /// An instance ran a batch of so many rows in so long.
    pub fn handle_run(&mut self, rows: u32, took: Duration) {
        self.times.handle_run(rows, took);
        if let Some(tuning) = &self.tuning {
            let limit = tuning.rows_limit(&self.configured, &self.times);
            let preferred = self.configured.rows_preferred.iter().copied();
            self.policy.rows_preferred = preferred.filter(|rows| *rows <= limit).collect();
            self.policy.rows_max = limit;
            let most = self.configured.rows_max().max(self.configured.rows_preferred_max());
            debug_assert!((1..=most).contains(&limit), "tuning narrows what is configured");
        }
    }

    /// An instance is idle: the batch it should run, in queue order, or `None` when nothing should
    /// run before [`Self::poll_timeout`].
    pub fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<T>) -> Option<EntryBatch<T>> {
        loop {
            let (count, released) = self.poll_release(now, claims)?;
            // Somebody else may have been faster with all of them: then there is another look.
            if let Some(batch) = self.take_batch(count, released, claims) {
                self.ask_at = (self.queue.len() > 0).then_some(now);
                self.invariants();
                return Some(batch);
            }
        }
    }

    /// Whether [`Self::poll_batch`] would have a batch now. Where it would not, it is as if that
    /// had been asked.
    pub fn poll_ready(&mut self, now: Instant, claims: &mut impl Claims<T>) -> bool {
        self.poll_release(now, claims).is_some()
    }

    /// The next entry whose time is over, for the caller to answer if it can claim it.
    pub fn poll_expired(&mut self, now: Instant) -> Option<Expired<T>> {
        self.handle_alarms(now);
        self.expired.pop_front()
    }

    /// When an idle instance must ask [`Self::poll_batch`] again even if nothing arrives: at the
    /// end of the delay, or when the time of an entry is over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.ask_at.into_iter().chain(self.poll_expired_timeout()).min()
    }

    /// After [`Self::poll_batch`] had nothing: so many rows must arrive, all of the same shape,
    /// before it has something earlier than at [`Self::poll_timeout`]. 0 where it depends.
    pub const fn rows_wanted(&self) -> u32 {
        self.rows_wanted
    }

    /// When [`Self::poll_expired`] must be asked again, whether or not an instance is idle.
    pub fn poll_expired_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|alarm| alarm.at)
    }

    /// Nothing will arrive any more: what waits needs not wait for others.
    pub fn handle_drain(&mut self) {
        self.policy.queue_delay_max = Duration::ZERO;
        self.tuning = None;
    }

    /// Forgets all that wait no more. Takes as long as the queue is.
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

    /// Entries that are held: those that wait, those that have gone and were not met yet, and
    /// those that expired and were not handed out yet.
    pub fn len(&self) -> usize {
        self.queue.len() + self.expired.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How it batches now.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How long batches take.
    pub const fn times(&self) -> &RunTimes {
        &self.times
    }

    /// Rows of a batch that closes because it is large enough.
    pub fn rows_full(&self) -> u32 {
        if self.policy.is_batched { self.policy.rows_preferred_max() } else { 1 }
    }

    /// How many entries should leave now, and why; or when to ask again.
    fn poll_release(&mut self, now: Instant, claims: &mut impl Claims<T>) -> Option<(usize, ReleaseReason)> {
        self.handle_alarms(now);
        let look = self.look(claims);
        let close = self.close(&look);
        let release = look.release(&self.policy, close, now);
        debug_assert!(release.is_none_or(|(count, _)| (1..=look.count).contains(&count)), "what leaves was looked at");
        debug_assert!(release.is_some() || look.count == 0 || close.is_some(), "what stays has a time to leave");
        if release.is_none() {
            self.ask_at = close.map(|close| close.at);
            self.rows_wanted = look.rows_wanted(&self.policy);
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
        debug_assert!(self.len() <= self.policy.entries_max, "no more is held than may be");
        debug_assert!(self.alarms.len() <= self.queue.len(), "an entry has one alarm at most, and who left none");
        debug_assert!(self.entry_count >= self.queue.len() as u64, "each has a number of its own");
        debug_assert!(self.poll_timeout().is_some() || self.queue.len() == 0, "what waits is asked for again");
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

    /// When a batch that may still grow leaves all the same; `None` where nothing holds it.
    fn close(&self, look: &BatchScan) -> Option<BatchClose> {
        let oldest = look.oldest?;
        let delay = self.policy.queue_delay_max;
        let delayed = (!delay.is_zero()).then(|| oldest + delay);
        let held = match &self.tuning {
            None => delayed?,
            Some(tuning) => {
                let until = tuning.hold_until(look.rows, self.policy.rows_preferred_max(), oldest, &self.times)?;
                delayed.map_or(until, |delayed| delayed.min(until))
            }
        };
        let run = self.times.bound(look.rows);
        let late = look.deadline.zip(run).map(|(deadline, run)| deadline - run);
        Some(match late {
            Some(at) if at < held => BatchClose { at, released: ReleaseReason::Deadline },
            _ => BatchClose { at: held, released: ReleaseReason::Delay },
        })
    }

    /// Looks along the queue as far as a batch may reach, and forgets what has gone on the way.
    fn look(&mut self, claims: &mut impl Claims<T>) -> BatchScan {
        let mut look = BatchScan::default();
        let mut next = self.queue.first();
        while let Some(place) = next.filter(|_| look.end.is_none()) {
            next = self.queue.next(place);
            let Some(held) = self.queue.get(place) else { break };
            if !claims.is_waiting(&held.entry.token) {
                self.take(place);
                continue;
            }
            let first = look.first.and_then(|first| self.queue.get(first));
            let is_alike = first.is_none_or(|first| first.entry.shape_key == held.entry.shape_key);
            look.first.get_or_insert(place);
            look.add(&held.entry, is_alike, &self.policy);
        }
        look
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
            debug_assert!(was_set, "who waits with a time has an alarm");
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

/// When a batch leaves though it may still grow, and why then.
#[derive(Clone, Copy, Debug)]
struct BatchClose {
    at: Instant,
    released: ReleaseReason,
}

/// The batch that could leave, as far as the queue was looked at.
#[derive(Default)]
struct BatchScan {
    first: Option<QueuePlace>,
    count: usize,
    rows: u32,
    oldest: Option<Instant>,
    /// The first of their deadlines.
    deadline: Option<Instant>,
    /// The best place to close it.
    mark: Option<(usize, ReleaseReason)>,
    /// Why it cannot grow.
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
            // Without a delay the mark is where it closes, however long the queue is.
            let is_closed = rows > policy.rows_preferred_max() && policy.queue_delay_max.is_zero();
            if !policy.is_batched {
                self.end = Some(ReleaseReason::Idle);
            } else if is_closed || rows > policy.rows_max() {
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

    /// How many rows are missing to the next size at which it closes. Where there are levels, new
    /// entries do not come last, and any may make a batch of those before it.
    fn rows_wanted(&self, policy: &Policy) -> u32 {
        if self.count == 0 || policy.priority_levels > 0 {
            return 0;
        }
        let next = policy.rows_preferred.iter().find(|rows| **rows > self.rows);
        next.copied().unwrap_or_else(|| policy.rows_preferred_max()).saturating_sub(self.rows)
    }

    /// How many entries should leave now, and why.
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
