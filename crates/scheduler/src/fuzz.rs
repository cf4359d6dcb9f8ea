//! Checks that the scheduler's invariants hold for any sequence of calls. Called by the fuzz target
//! `scheduler`, and by a test that replays its corpus. A ledger beside it records the arrival and
//! the end of each request: each leaves once, in order, in a batch that its model can run, and no
//! request is forgotten.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{
    Claims, Entry, EntryBatch, Expired, Expiry, Policy, QueuePolicy, Refused, Scheduler, ShapeKey, TimeoutAction,
};
use base::policy::AdmissionRule;
use base::time::Instant;

/// The bytes chosen by a fuzzer; zeros once the input is used up.
pub struct FuzzChoices<'a>(pub &'a [u8]);

impl FuzzChoices<'_> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u8) -> u8 {
        self.byte() % bound
    }

    /// Returns true for half of all bytes.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A short time, or with the highest bytes a very long one.
    pub fn duration(&mut self) -> Duration {
        match self.byte() {
            byte @ 0..=249 => Duration::from_micros(u64::from(byte)),
            byte => Duration::from_secs(1 << (u32::from(byte - 250) * 6)),
        }
    }

    /// Returns true if bytes are left.
    pub const fn has_more(&self) -> bool {
        !self.0.is_empty()
    }
}

/// Reads any bytes as a policy and calls of the scheduler. A panic is a finding.
pub fn check_any_calls(input: &[u8]) {
    let mut choices = FuzzChoices(input);
    let mut run = CheckedRun::new(policy(&mut choices));
    while choices.has_more() {
        run.step(&mut choices);
    }
    run.finish();
}

fn policy(choices: &mut FuzzChoices<'_>) -> Policy {
    let rows_max = u32::from(choices.below(12));
    let mut rows_preferred: Vec<u32> = (0..choices.below(3)).map(|_| u32::from(choices.below(12))).collect();
    rows_preferred.retain(|rows| (1..=rows_max).contains(rows));
    rows_preferred.sort_unstable();
    rows_preferred.dedup();
    let priority_levels = u64::from(choices.below(4));
    let queue_default = queue_policy(choices);
    let by_level = |level| choices.flag().then(|| (level, queue_policy(choices)));
    let queue_by_level: BTreeMap<_, _> = (1..=priority_levels).filter_map(by_level).collect();
    Policy {
        rows_max,
        is_batched: choices.flag(),
        entries_max: 1 + usize::from(choices.below(24)),
        rows_preferred,
        queue_delay_max: if choices.flag() { choices.duration() } else { Duration::ZERO },
        latency_target: choices.flag().then(|| choices.duration()),
        admission: AdmissionRule::None,
        splits_rows: false,
        rows_differ: false,
        preserves_order: false,
        priority_levels,
        priority_default: priority_levels.div_ceil(2),
        queue_default,
        queue_by_level,
        #[cfg(feature = "test-hooks")]
        hold: crate::hold::FirstBatchHold::default(),
    }
}

fn queue_policy(choices: &mut FuzzChoices<'_>) -> QueuePolicy {
    QueuePolicy {
        timeout_action: if choices.flag() { TimeoutAction::Delay } else { TimeoutAction::Reject },
        timeout_default: if choices.flag() { choices.duration() } else { Duration::ZERO },
        may_override: choices.flag(),
        entries_max: 0,
    }
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryFate {
    Waiting,
    Cancelled,
    InBatch,
    Expired,
}

/// The record of a request.
#[derive(Debug)]
struct EntryRecord {
    level: u64,
    rows: u32,
    shape: i64,
    deadline: Option<Instant>,
    timeout_at: Option<Instant>,
    is_rejected: bool,
    fate: EntryFate,
}

impl EntryRecord {
    /// Returns true if one of its timers has passed, so that its place in the queue is not that of
    /// its arrival.
    fn is_late(&self, now: Instant) -> bool {
        self.deadline.into_iter().chain(self.timeout_at).any(|at| at <= now)
    }
}

/// The requests in the order of their arrival: a token is the place here.
#[derive(Default)]
struct EntryLedger(Vec<EntryRecord>);

impl EntryLedger {
    fn waiting(&self) -> impl Iterator<Item = (usize, &EntryRecord)> {
        self.0.iter().enumerate().filter(|(_, record)| record.fate == EntryFate::Waiting)
    }

    fn record(&mut self, token: usize) -> &mut EntryRecord {
        self.0.get_mut(token).expect("a token is one that was given")
    }

    /// The request leaves, for the first time.
    fn settle(&mut self, token: usize, fate: EntryFate) {
        let record = self.record(token);
        assert_eq!(record.fate, EntryFate::Waiting, "{token} leaves once");
        record.fate = fate;
    }
}

impl Claims<usize> for EntryLedger {
    fn is_waiting(&mut self, token: &usize) -> bool {
        self.record(*token).fate == EntryFate::Waiting
    }

    fn claim(&mut self, token: &usize) -> bool {
        let is_waiting = self.is_waiting(token);
        if is_waiting {
            self.settle(*token, EntryFate::InBatch);
        }
        is_waiting
    }
}

/// A hundred years and more.
pub const TIME_MAX: Instant = Instant::from_nanos(u64::MAX / 4);

/// The scheduler, the ledger beside it, and the time.
struct CheckedRun {
    scheduler: Scheduler<usize>,
    configured: Policy,
    ledger: EntryLedger,
    now: Instant,
    is_draining: bool,
    /// A batch waits for clients to return for a part of a run.
    longest_run: Duration,
}

impl CheckedRun {
    fn new(policy: Policy) -> Self {
        let scheduler = Scheduler::new(policy.clone());
        Self {
            scheduler,
            configured: policy,
            ledger: EntryLedger::default(),
            now: Instant::ZERO,
            is_draining: false,
            longest_run: Duration::ZERO,
        }
    }

    fn step(&mut self, choices: &mut FuzzChoices<'_>) {
        match choices.below(8) {
            0..=2 => self.request(choices),
            3 => self.poll(),
            4 => self.advance(self.now + choices.duration()),
            5 => {
                let waiting: Vec<usize> = self.ledger.waiting().map(|(token, _)| token).collect();
                if let Some(token) = waiting.get(usize::from(choices.byte()) % waiting.len().max(1)) {
                    self.ledger.record(*token).fate = EntryFate::Cancelled;
                }
            }
            6 => {
                let (rows, took) = (u32::from(choices.byte()), choices.duration());
                self.scheduler.handle_run(rows, took);
                self.scheduler.handle_lone_run(rows, took, self.now);
                self.longest_run = self.longest_run.max(took);
            }
            _ => self.sweep_or_wait(choices),
        }
        self.expire();
        let waiting_count = self.ledger.waiting().count();
        assert!((waiting_count..=self.configured.entries_max).contains(&self.scheduler.len()), "none is forgotten");
    }

    fn request(&mut self, choices: &mut FuzzChoices<'_>) {
        if self.is_draining {
            return;
        }
        let token = self.ledger.0.len();
        let (rows, shape) = (u32::from(choices.below(14)), i64::from(choices.below(3)));
        let (priority, timeout) = (u64::from(choices.below(5)), choices.duration());
        let deadline = choices.flag().then(|| self.now + choices.duration());
        let shape_key = ShapeKey::from_slice(&[shape]);
        let level = self.configured.level(priority);
        let queue = self.configured.queue(level);
        let timeout_at = queue.timeout(timeout).map(|timeout| self.now + timeout);
        let is_rejected = queue.timeout_action == TimeoutAction::Reject;
        let is_full = self.scheduler.len() >= self.configured.entries_max;
        let entry = Entry { token, rows, shape_key, queued_at: self.now, priority, timeout, deadline };
        let refused = self.scheduler.handle_request(entry, self.now);
        assert_eq!(refused.is_err(), is_full, "only a full queue refuses");
        if let Err(Refused(entry)) = refused {
            assert_eq!(entry.token, token);
            return;
        }
        let (rows, fate) = (rows.max(1), EntryFate::Waiting);
        self.ledger.0.push(EntryRecord { level, rows, shape, deadline, timeout_at, is_rejected, fate });
    }

    /// Advances the clock, but stays far from the end of time, where it would stand still.
    fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to.min(TIME_MAX));
    }

    fn sweep_or_wait(&mut self, choices: &mut FuzzChoices<'_>) {
        if choices.flag() {
            self.scheduler.evict_cancelled(&mut self.ledger);
            assert_eq!(self.scheduler.len(), self.ledger.waiting().count(), "what was cancelled is gone");
        } else if let Some(at) = self.scheduler.poll_timeout() {
            self.advance(at);
        }
    }

    /// An instance is idle.
    fn poll(&mut self) {
        let before: Vec<usize> = self.ledger.waiting().map(|(token, _)| token).collect();
        let Some(batch) = self.scheduler.poll_batch(self.now, &mut self.ledger) else { return self.check_rest() };
        self.check_batch(&batch);
        self.check_order(&before, &batch);
    }

    /// Checks that the model can run the batch.
    fn check_batch(&self, batch: &EntryBatch<usize>) {
        let records: Vec<&EntryRecord> = batch.tokens.iter().filter_map(|token| self.ledger.0.get(*token)).collect();
        assert!(!records.is_empty() && records.len() == batch.tokens.len());
        assert_eq!(batch.rows, records.iter().map(|record| record.rows).sum::<u32>());
        let is_alone = records.len() == 1;
        assert!(is_alone || self.configured.is_batched && batch.rows <= self.configured.rows_max, "{batch:?}");
        assert!(records.windows(2).all(|pair| matches!(pair, [a, b] if a.shape == b.shape)), "one shape: {batch:?}");
        for record in records {
            assert!(record.deadline.is_none_or(|at| at > self.now), "nobody waits for it any more: {record:?}");
            assert!(!record.is_rejected || record.timeout_at.is_none_or(|at| at > self.now), "too late: {record:?}");
        }
    }

    /// Checks that no request is overtaken by a later one of the same level, or by a lower level.
    fn check_order(&self, before: &[usize], batch: &EntryBatch<usize>) {
        let is_left =
            |token: &&usize| self.ledger.0.get(**token).is_some_and(|record| record.fate == EntryFate::Waiting);
        for left in before.iter().filter(is_left) {
            let Some(other) = self.ledger.0.get(*left).filter(|other| !other.is_late(self.now)) else { continue };
            for token in &batch.tokens {
                let Some(taken) = self.ledger.0.get(*token) else { continue };
                assert!(taken.level <= other.level, "{token} of a lower level went before {left}");
                assert!(taken.level < other.level || token < left, "{token} overtook {left}");
            }
        }
        let places = batch.tokens.iter().filter_map(|token| Some((self.ledger.0.get(*token)?, token)));
        let on_time: Vec<_> = places.filter(|(record, _)| !record.is_late(self.now)).collect();
        let ranks: Vec<_> = on_time.iter().map(|(record, token)| (record.level, **token)).collect();
        assert!(ranks.is_sorted(), "a batch has its requests in order: {ranks:?}");
    }

    /// Checks that, when no batch can run, the time to ask again is known, and no batch could run
    /// before it.
    fn check_rest(&mut self) {
        let is_waiting = self.ledger.waiting().any(|(_, record)| !record.is_late(self.now));
        let timeout = self.scheduler.poll_timeout();
        assert!(timeout.is_none_or(|at| at > self.now), "the time to ask again is yet to come");
        let Some(at) = timeout else { return assert!(!is_waiting, "who waits is asked for") };
        if is_waiting && self.configured.latency_target.is_none() {
            let wait_max = self.configured.queue_delay_max.max(self.longest_run / 8);
            assert!(at <= self.now + wait_max, "no entry waits for longer than the delay");
        }
        let before = Instant::from_nanos(at.as_nanos() - 1);
        assert!(!self.scheduler.poll_ready(before, &mut self.ledger), "nothing runs before {at:?}");
        self.now = before;
    }

    fn expire(&mut self) {
        while let Some(Expired { token, cause }) = self.scheduler.poll_expired(self.now) {
            let now = self.now;
            let record = self.ledger.record(token);
            match cause {
                Expiry::Deadline => assert!(record.deadline.is_some_and(|at| at <= now), "{record:?}"),
                Expiry::Timeout => assert!(record.is_rejected && record.timeout_at.is_some_and(|at| at <= now)),
            }
            if record.fate != EntryFate::Cancelled {
                self.ledger.settle(token, EntryFate::Expired);
            }
        }
    }

    /// Ends the input: an instance that asks when it should takes all that is left.
    fn finish(mut self) {
        self.scheduler.handle_drain();
        self.is_draining = true;
        loop {
            let waiting_count = self.ledger.waiting().count();
            self.expire();
            self.poll();
            self.expire();
            if self.ledger.waiting().next().is_none() {
                break;
            }
            assert!(self.ledger.waiting().count() < waiting_count, "what waits while it drains leaves");
        }
        self.scheduler.evict_cancelled(&mut self.ledger);
        assert!(self.scheduler.is_empty() && self.scheduler.poll_timeout().is_none_or(|at| at <= self.now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::replay;

    #[test]
    fn the_corpus_its_changes_and_ten_thousand_runs_hold() {
        replay::corpus("fuzz/corpus/scheduler", check_any_calls);
        replay::generated(10_000, 200, check_any_calls);
    }

    #[test]
    #[should_panic(expected = "overtook")]
    fn a_request_that_is_overtaken_is_found() {
        let mut run = CheckedRun::new(Policy { rows_max: 1, ..Policy::default() });
        let mut choices = FuzzChoices(&[]);
        run.request(&mut choices);
        run.request(&mut choices);
        run.ledger.record(1).fate = EntryFate::InBatch;
        run.check_order(&[0, 1], &EntryBatch { tokens: vec![1], rows: 1, released: crate::ReleaseReason::Idle });
    }
}
