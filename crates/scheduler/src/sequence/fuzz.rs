//! Checks that the sequence batcher's invariants hold for any sequence of calls. Called by the fuzz
//! target `sequences`, and by a test that replays its corpus. A ledger beside it records requests
//! and sequences: each request leaves once, a sequence runs in order, one request at a time, from
//! its start and in one slot, and no request is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::fuzz::{FuzzChoices, TIME_MAX};
use crate::sequence::{
    BrokenRequest, RunId, SequenceBatch, SequenceEntry, SequencePolicy, Sequences, SlotStrategy, UnstartedRequest,
};
use crate::{Claims, Policy, ShapeKey};
use base::time::Instant;

/// Reads any bytes as a policy and calls of the batcher. A panic is a finding.
pub fn check_any_calls(input: &[u8]) {
    let mut choices = FuzzChoices(input);
    let mut check = CheckedSequences::new(policy(&mut choices));
    while choices.has_more() {
        check.step(&mut choices);
    }
    check.finish();
}

fn policy(choices: &mut FuzzChoices<'_>) -> SequencePolicy {
    let slots = 1 + usize::from(choices.below(4));
    let queue_delay_max = if choices.flag() { choices.duration() } else { Duration::ZERO };
    let strategy = if choices.flag() {
        SlotStrategy::Direct { queue_delay_max, slots_least: usize::from(choices.below(4)).min(slots) }
    } else {
        let rows_max = u32::from(choices.below(4));
        SlotStrategy::Oldest(Policy { rows_max, is_batched: true, queue_delay_max, ..Policy::default() })
    };
    SequencePolicy {
        strategy,
        instances: 1 + usize::from(choices.below(3)),
        slots,
        idle_max: Duration::from_micros(1 + u64::from(choices.byte()) * 4),
        is_iterative: choices.below(4) == 0,
    }
}

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SequenceFate {
    Waiting,
    Cancelled,
    Ran,
    Broken,
}

/// The record of a request: a token is its place in the ledger.
#[derive(Debug)]
struct SequenceRecord {
    /// The number of its sequence.
    sequence: u64,
    /// Its place in the order of the sequence. A request that runs again keeps its first place.
    order: usize,
    is_start: bool,
    shape: i64,
    fate: SequenceFate,
}

/// The record of a sequence.
#[derive(Debug, Default)]
struct SequenceCourse {
    /// Its instance and slot, once it has run there.
    place: Option<(usize, usize)>,
    /// The order of its request that ran last.
    ran: Option<usize>,
    /// True if its next request must be one that starts.
    has_ended: bool,
}

#[derive(Default)]
struct SequenceLedger(Vec<SequenceRecord>);

impl SequenceLedger {
    fn record(&mut self, token: usize) -> &mut SequenceRecord {
        self.0.get_mut(token).expect("a token is one that was given")
    }

    fn waiting(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, record)| record.fate == SequenceFate::Waiting).map(|(token, _)| token)
    }
}

impl Claims<usize> for SequenceLedger {
    fn is_waiting(&mut self, token: &usize) -> bool {
        self.record(*token).fate == SequenceFate::Waiting
    }

    fn claim(&mut self, token: &usize) -> bool {
        let is_waiting = self.is_waiting(token);
        if is_waiting {
            self.record(*token).fate = SequenceFate::Ran;
        }
        is_waiting
    }
}

/// An instance, as its worker sees it.
#[derive(Clone, Debug, Default)]
struct FuzzInstance {
    is_busy: bool,
    is_down: bool,
}

/// The batcher, the ledger beside it, and the time.
struct CheckedSequences {
    sequences: Sequences<u8, usize>,
    ledger: SequenceLedger,
    courses: BTreeMap<u64, SequenceCourse>,
    instances: Vec<FuzzInstance>,
    /// Requests of iterative sequences that ran and are not over.
    flights: Vec<(usize, RunId)>,
    now: Instant,
}

impl CheckedSequences {
    fn new(policy: SequencePolicy) -> Self {
        Self {
            ledger: SequenceLedger::default(),
            courses: BTreeMap::new(),
            instances: vec![FuzzInstance::default(); policy.instances],
            sequences: Sequences::new(policy),
            flights: Vec::new(),
            now: Instant::ZERO,
        }
    }

    fn step(&mut self, choices: &mut FuzzChoices<'_>) {
        match choices.below(12) {
            0..=3 => self.request(choices),
            4 | 5 => {
                let instance = self.instance(choices);
                self.poll(instance);
            }
            6 => {
                let instance = self.instance(choices);
                self.done(instance);
            }
            7 => self.advance(self.now + choices.duration()),
            8 => {
                if let Some(at) = self.sequences.poll_timeout() {
                    self.advance(at);
                }
            }
            9 => self.leave(choices),
            10 => self.end_flight(choices),
            _ => self.lose_or_restore(choices),
        }
        self.take_broken();
        self.check_counts();
    }

    fn instance(&self, choices: &mut FuzzChoices<'_>) -> usize {
        usize::from(choices.byte()) % self.instances.len()
    }

    fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to.min(TIME_MAX));
    }

    fn request(&mut self, choices: &mut FuzzChoices<'_>) {
        let token = self.ledger.0.len();
        let (id, shape) = (choices.below(6), i64::from(choices.below(2)));
        let (is_start, is_end) = (choices.flag(), choices.below(4) == 0);
        let timeout = if choices.flag() { choices.duration() } else { Duration::ZERO };
        let shape_key = ShapeKey::from_slice(&[shape]);
        // Known before the call: a request that is due at once may wait already while it is taken in.
        self.ledger.0.push(SequenceRecord { sequence: 0, order: token, is_start, shape, fate: SequenceFate::Waiting });
        let entry = SequenceEntry { token, id, is_start, is_end, shape_key, queued_at: self.now, timeout };
        if let Err(UnstartedRequest { token: refused }) = self.sequences.handle_request(entry, self.now) {
            assert!(refused == token && !is_start, "who starts a sequence is not refused");
            self.ledger.record(token).fate = SequenceFate::Broken;
            return;
        }
        let runs = &self.sequences.runs;
        let of_token =
            |run: &usize| runs.get(*run).is_some_and(|held| held.queue.back().is_some_and(|last| last.token == token));
        let run = runs.indices().find(of_token).and_then(|run| runs.get(run));
        self.ledger.record(token).sequence = run.expect("a request that is taken waits in a sequence").number;
    }

    fn poll(&mut self, instance: usize) -> bool {
        if self.instances.get(instance).is_none_or(|instance| instance.is_busy || instance.is_down) {
            return false;
        }
        let might = self.sequences.poll_ready(instance, self.now);
        let Some(batch) = self.sequences.poll_batch(instance, self.now, &mut self.ledger) else {
            assert!(self.sequences.instances.get(instance).is_some_and(|held| held.ask_at != Some(self.now)));
            return false;
        };
        assert!(might, "who says that nothing is ready has no batch");
        self.check_batch(instance, &batch);
        if let Some(held) = self.instances.get_mut(instance) {
            held.is_busy = true;
        }
        true
    }

    fn check_batch(&mut self, instance: usize, batch: &SequenceBatch<usize>) {
        let is_direct = matches!(self.sequences.policy.strategy, SlotStrategy::Direct { .. });
        assert!((1..=self.sequences.policy.slots).contains(&batch.rows.len()), "{batch:?}");
        let (mut slots, mut shapes, mut sequences) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for (index, row) in batch.rows.iter().enumerate() {
            assert!(
                row.slot < self.sequences.policy.slots && slots.insert(row.slot),
                "a slot is there once: {batch:?}"
            );
            assert!(!is_direct || row.slot == index, "a row is its slot");
            let Some(token) = row.token else { continue };
            let record = self.ledger.record(token);
            shapes.insert(record.shape);
            assert!(sequences.insert(record.sequence), "a batch has one request of a sequence");
            let (sequence, order, is_start) = (record.sequence, record.order, record.is_start);
            let course = self.courses.entry(sequence).or_default();
            assert!(course.place.is_none_or(|place| place == (instance, row.slot)), "{sequence} moved: {course:?}");
            assert!(course.ran.is_none_or(|ran| ran <= order), "{sequence} runs in order: {order}, {course:?}");
            let begins = course.ran.is_none() || course.has_ended;
            assert!(is_start || !begins, "{sequence} begins with its start: {token}, {course:?}");
            *course = SequenceCourse { place: Some((instance, row.slot)), ran: Some(order), has_ended: false };
            if self.sequences.policy.is_iterative {
                self.flights.extend(row.flight.map(|flight| (token, flight)));
            }
        }
        assert_eq!(shapes.len(), 1, "a batch has one shape, and something to run");
    }

    fn done(&mut self, instance: usize) {
        let Some(held) = self.instances.get_mut(instance).filter(|held| held.is_busy) else { return };
        held.is_busy = false;
        self.sequences.handle_done(instance, self.now);
    }

    /// A client cancels a request, or leaves its sequence; or the server evicts cancelled requests.
    fn leave(&mut self, choices: &mut FuzzChoices<'_>) {
        match choices.below(3) {
            0 => {
                let waiting: Vec<usize> = self.ledger.waiting().collect();
                if let Some(token) = waiting.get(usize::from(choices.byte()) % waiting.len().max(1)) {
                    self.ledger.record(*token).fate = SequenceFate::Cancelled;
                }
            }
            1 => {
                let (id, since) = (choices.below(6), self.now - choices.duration());
                self.sequences.handle_departure(&id, since, self.now, &mut self.ledger);
            }
            _ => self.sequences.evict_cancelled(self.now, &mut self.ledger),
        }
    }

    /// A request of an iterative sequence runs again, or is over.
    fn end_flight(&mut self, choices: &mut FuzzChoices<'_>) {
        if self.flights.is_empty() {
            return;
        }
        let (token, flight) = self.flights.swap_remove(usize::from(choices.byte()) % self.flights.len());
        if choices.flag() {
            return self.sequences.handle_finished(flight, self.now, &mut self.ledger);
        }
        let again = self.ledger.0.len();
        let SequenceRecord { sequence, order, shape, .. } = *self.ledger.record(token);
        self.ledger.0.push(SequenceRecord { sequence, order, is_start: false, shape, fate: SequenceFate::Waiting });
        let outcome = self.sequences.handle_rescheduled(flight, again, self.now, &mut self.ledger);
        if outcome.is_err() {
            self.ledger.record(again).fate = SequenceFate::Broken;
        }
    }

    fn lose_or_restore(&mut self, choices: &mut FuzzChoices<'_>) {
        let (instance, is_renewed) = (self.instance(choices), choices.flag());
        let Some(held) = self.instances.get_mut(instance) else { return };
        if held.is_down {
            held.is_down = false;
            return self.sequences.handle_instance_restored(instance, self.now);
        }
        *held = FuzzInstance { is_busy: false, is_down: !is_renewed };
        self.sequences.handle_instance_lost(instance, is_renewed, self.now, &mut self.ledger);
        for course in self.courses.values_mut().filter(|course| course.place.is_some_and(|(at, _)| at == instance)) {
            // Its state is gone: it begins anew, in any slot.
            *course = SequenceCourse { place: None, ran: course.ran, has_ended: true };
        }
    }

    fn take_broken(&mut self) {
        while let Some(BrokenRequest { token, .. }) = self.sequences.poll_broken(self.now) {
            let record = self.ledger.record(token);
            let (sequence, order) = (record.sequence, record.order);
            match record.fate {
                SequenceFate::Waiting => record.fate = SequenceFate::Broken,
                fate => assert_eq!(fate, SequenceFate::Cancelled, "{token} leaves once"),
            }
            if let Some(course) = self.courses.get_mut(&sequence) {
                course.has_ended |= course.ran.is_some_and(|ran| ran < order);
            }
        }
    }

    fn check_counts(&self) {
        let SequencePolicy { instances, slots, .. } = self.sequences.policy;
        assert!(self.sequences.active() <= instances * slots, "a sequence has a slot of its own");
        assert!(self.sequences.len() >= self.ledger.waiting().count(), "none is forgotten");
    }

    /// Ends the input. Workers that ask when they are told to, and after each batch, run all that
    /// is left.
    fn finish(mut self) {
        for instance in 0..self.instances.len() {
            if self.instances.get(instance).is_some_and(|held| held.is_down) {
                self.instances.iter_mut().skip(instance).take(1).for_each(|held| held.is_down = false);
                self.sequences.handle_instance_restored(instance, self.now);
            }
        }
        self.sequences.handle_drain();
        // No worker is told twice of the same work: those that are idle have asked already.
        for instance in 0..self.instances.len() {
            self.poll(instance);
        }
        loop {
            self.take_broken();
            let busy =
                (0..self.instances.len()).filter(|index| self.instances.get(*index).is_some_and(|held| held.is_busy));
            let busy: Vec<usize> = busy.collect();
            for instance in &busy {
                self.done(*instance);
                self.poll(*instance);
            }
            for (_, flight) in std::mem::take(&mut self.flights) {
                self.sequences.handle_finished(flight, self.now, &mut self.ledger);
            }
            let mut told = 0;
            while let Some(instance) = self.sequences.poll_attention(self.now) {
                told += 1;
                self.poll(instance);
            }
            self.take_broken();
            if busy.is_empty() && told == 0 && self.instances.iter().all(|held| !held.is_busy) {
                let Some(at) = self.sequences.poll_timeout().filter(|at| *at > self.now) else { break };
                self.now = at;
            }
        }
        let left: Vec<usize> = self.ledger.waiting().collect();
        assert!(left.is_empty(), "they wait and nobody is told: {left:?}");
        self.sequences.evict_cancelled(self.now, &mut self.ledger);
        self.take_broken();
        assert!(self.sequences.is_empty() && self.sequences.flights() == 0, "nothing is left in memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::replay;

    #[test]
    fn the_corpus_its_changes_and_ten_thousand_runs_hold() {
        replay::corpus("fuzz/corpus/sequences", check_any_calls);
        replay::generated(10_000, 300, check_any_calls);
    }

    #[test]
    #[should_panic(expected = "moved")]
    fn a_sequence_that_changes_its_slot_is_found() {
        let mut check = CheckedSequences::new(policy(&mut FuzzChoices(&[1, 0, 0, 2, 2, 0, 1])));
        // A start of sequence 0.
        check.request(&mut FuzzChoices(&[0, 0, 1, 1, 0]));
        let sequence = check.ledger.record(0).sequence;
        check.courses.insert(sequence, SequenceCourse { place: Some((1, 1)), ran: Some(0), has_ended: false });
        check.poll(0);
    }
}
