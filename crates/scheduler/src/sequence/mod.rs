//! The sequence batcher: a pure state machine between the requests of sequences and the slots of a model version's
//! instances. A sequence has a slot of one instance from its first request to its end, so that its state can stay
//! there. While all slots are taken it waits in the backlog, first come first served. Like [`super::Scheduler`] it gets
//! arrivals and the time from its caller, knows no tensors, reads no clock and takes no lock. It is generic over the id
//! of a sequence and the caller's token. Bounded by the slots, and by the requests that the caller lets wait: each
//! sequence in the backlog has at least one. Rules and order are Triton's (`sequence_batch_scheduler.cc`).

mod alarm;
mod batch;
mod entry;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod instance;
mod run;
mod slots;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use crate::sequence::alarm::SequenceAlarm;
use crate::sequence::instance::InstanceSlots;
use crate::sequence::run::{RunningRequest, SequencePlace, SequenceRequest, SequenceTable};
use crate::{Claims, Policy};
use base::time::Instant;

pub use crate::sequence::entry::{
    BrokenRequest, RunId, SequenceBatch, SequenceBatchRow, SequenceEnd, SequenceEntry, SequencePolicy, SlotStrategy,
    UnstartedRequest,
};

/// The sequences of one model version.
#[derive(Debug)]
pub struct Sequences<K, T> {
    policy: SequencePolicy,
    /// The sequences that can be continued, by id. A sequence whose last request has arrived is no
    /// longer here, though its requests may still wait: the id is free for a new sequence.
    open: HashMap<K, usize>,
    runs: SequenceTable<K, T>,
    instances: Vec<InstanceSlots>,
    /// The batch policy of a new instance, with the oldest strategy.
    former: Option<Policy>,
    /// Sequences that wait for a slot, by number, which is the order in which they began.
    backlog: BTreeMap<u64, usize>,
    /// The next timer of each sequence that has one: idle for too long, or waited too long for a slot.
    alarms: BTreeSet<SequenceAlarm>,
    broken: VecDeque<BrokenRequest<T>>,
    ends: [u64; SequenceEnd::ALL.len()],
    /// Requests that were to continue a sequence which does not exist here.
    unknown_count: u64,
    entry_count: usize,
    /// Requests in flight, where sequences are iterative.
    flight_count: usize,
    /// Counts sequences, offers and runs, to give each a number that is never used again.
    number: u64,
    is_draining: bool,
}

impl<K: Clone + Eq + Hash, T> Sequences<K, T> {
    /// Without sequences.
    pub fn new(policy: SequencePolicy) -> Self {
        let former = match &policy.strategy {
            SlotStrategy::Direct { .. } => None,
            // No bound of its own: the slots bound the offers, and withdrawn ones are dropped when they are met.
            SlotStrategy::Oldest(oldest) => Some(Policy { entries_max: usize::MAX, ..oldest.clone() }),
        };
        let instances = (0..policy.instances).map(|_| InstanceSlots::new(former.clone())).collect();
        Self {
            policy,
            open: HashMap::new(),
            runs: SequenceTable::default(),
            instances,
            former,
            backlog: BTreeMap::new(),
            alarms: BTreeSet::new(),
            broken: VecDeque::new(),
            ends: [0; SequenceEnd::ALL.len()],
            unknown_count: 0,
            entry_count: 0,
            flight_count: 0,
            number: 0,
            is_draining: false,
        }
    }

    /// A request arrived. The caller keeps arrival order, and passes in all arrivals before it polls at a later time.
    ///
    /// # Errors
    /// [`UnstartedRequest`] if its sequence does not exist and the request does not start one.
    pub fn handle_request(&mut self, entry: SequenceEntry<K, T>, now: Instant) -> Result<(), UnstartedRequest<T>> {
        // Only the timers that had expired when the request arrived. A sequence whose request waited in a ring
        // meanwhile was not idle.
        self.handle_alarms(entry.queued_at);
        let SequenceEntry { token, id, is_start, is_end, shape_key, queued_at, timeout } = entry;
        let running = self.open.get(&id).copied();
        if running.is_none() && !is_start {
            self.unknown_count += 1;
            return Err(UnstartedRequest { token });
        }
        let run = running.unwrap_or_else(|| self.begin(&id, queued_at));
        let timeout_at = (!timeout.is_zero()).then(|| queued_at + timeout);
        self.clear_alarm(run);
        if let Some(held) = self.runs.get_mut(run) {
            if is_start {
                held.started_at = queued_at;
            }
            // A new request continues it, although a client left before.
            held.is_abandoned = false;
            held.queue.push_back(SequenceRequest { token, is_start, is_end, shape_key, queued_at, timeout_at });
            self.entry_count += 1;
        }
        if is_end {
            self.open.remove(&id);
        }
        self.attend(run, now);
        self.invariants();
        Ok(())
    }

    /// A client left a sequence: it cancelled one of its requests, or closed the stream that they came on. `since` is
    /// when the last request that the client knows of arrived: a sequence that started later is another one.
    pub fn handle_departure(&mut self, id: &K, since: Instant, now: Instant, claims: &mut impl Claims<T>) {
        let Some(run) = self.open.get(id).copied() else { return };
        let Some(held) = self.runs.get_mut(run).filter(|held| held.started_at <= since) else { return };
        match held.queue.front() {
            // Another client continues it. Cancelled requests behind this one are met in their turn.
            Some(front) if claims.is_waiting(&front.token) => {}
            Some(_) => self.break_run(run, SequenceEnd::Cancel, now, claims),
            None if held.flight.is_some() => held.is_abandoned = true,
            None => self.end(run, SequenceEnd::Cancel, now),
        }
        self.invariants();
    }

    /// The instance finished its batch.
    pub fn handle_done(&mut self, instance: usize, now: Instant) {
        for run in self.take_in_flight(instance) {
            let Some(held) = self.runs.get_mut(run) else { continue };
            held.flight = None;
            held.active_at = now;
            if held.is_abandoned && held.queue.is_empty() {
                self.end(run, SequenceEnd::Cancel, now);
            } else {
                self.attend(run, now);
            }
        }
        self.invariants();
    }

    /// A request that ran is to run again, with this token, before the later requests of its sequence.
    ///
    /// # Errors
    /// [`UnstartedRequest`] if its sequence has ended meanwhile.
    pub fn handle_rescheduled(
        &mut self,
        flight: RunId,
        token: T,
        now: Instant,
        claims: &mut impl Claims<T>,
    ) -> Result<(), UnstartedRequest<T>> {
        let Some(RunningRequest { shape_key, .. }) = self.take_flight(flight, now) else {
            return Err(UnstartedRequest { token });
        };
        let Some(held) = self.runs.get_mut(flight.run) else { return Err(UnstartedRequest { token }) };
        let is_abandoned = held.is_abandoned || !claims.is_waiting(&token);
        held.queue.push_front(SequenceRequest {
            token,
            is_start: false,
            is_end: false,
            shape_key,
            queued_at: now,
            timeout_at: None,
        });
        self.entry_count += 1;
        if is_abandoned {
            self.break_run(flight.run, SequenceEnd::Cancel, now, claims);
        } else {
            self.attend(flight.run, now);
        }
        self.invariants();
        Ok(())
    }

    /// A request that ran had its last answer, which ends its sequence. Later requests with the same id continue from
    /// the next one that starts a sequence.
    pub fn handle_finished(&mut self, flight: RunId, now: Instant, claims: &mut impl Claims<T>) {
        if self.take_flight(flight, now).is_some() {
            self.break_run(flight.run, SequenceEnd::Model, now, claims);
        }
        self.invariants();
    }

    /// The instance was lost, and with it the state of its sequences. If it was not recreated at once (`is_renewed`),
    /// it gets no sequences before [`Self::handle_instance_restored`].
    pub fn handle_instance_lost(
        &mut self,
        instance: usize,
        is_renewed: bool,
        now: Instant,
        claims: &mut impl Claims<T>,
    ) {
        self.take_in_flight(instance);
        let Some(lost) = self.instances.get_mut(instance) else { return };
        lost.is_down = !is_renewed;
        lost.ended.clear();
        let runs: Vec<usize> = lost.runs().collect();
        for run in runs {
            self.lose_flight(run);
            if self.runs.get(run).is_some_and(|held| held.has_run) {
                self.break_run(run, SequenceEnd::Instance, now, claims);
            }
            if self.runs.get(run).is_none() {
                continue;
            }
            if is_renewed {
                self.attend(run, now);
            } else {
                self.unplace(run);
            }
        }
        self.fill(now);
        self.invariants();
    }

    /// The instance was recreated.
    pub fn handle_instance_restored(&mut self, instance: usize, now: Instant) {
        if let Some(instance) = self.instances.get_mut(instance) {
            instance.is_down = false;
        }
        self.fill(now);
        self.invariants();
    }

    /// A new instance takes sequences from now on. Its index is a new one, or that of an instance that has left.
    pub fn handle_instance_added(&mut self, instance: usize, now: Instant) {
        while self.instances.len() <= instance {
            // Indices between are those of instances that are being made.
            let mut unused = InstanceSlots::new(self.former.clone());
            unused.is_leaving = true;
            self.instances.push(unused);
        }
        if let Some(added) = self.instances.get_mut(instance) {
            debug_assert!(added.is_vacant(), "an instance leaves after its last sequence");
            *added = InstanceSlots::new(self.former.clone());
        }
        self.fill(now);
        self.invariants();
    }

    /// The instance that was leaving stays.
    pub fn handle_instance_staying(&mut self, instance: usize, now: Instant) {
        if let Some(staying) = self.instances.get_mut(instance) {
            staying.is_leaving = false;
        }
        self.fill(now);
        self.invariants();
    }

    /// The instance gets no other sequences. Those that it has stay there until they end.
    pub fn handle_instance_leaving(&mut self, instance: usize) {
        if let Some(leaving) = self.instances.get_mut(instance) {
            leaving.is_leaving = true;
        }
    }

    /// Returns true if no sequence has a slot of the instance.
    pub fn is_vacant(&self, instance: usize) -> bool {
        self.instances.get(instance).is_none_or(InstanceSlots::is_vacant)
    }

    /// Nothing more will arrive: sequences in the backlog end now, the others once their requests have run, and batches
    /// no longer wait to grow.
    pub fn handle_drain(&mut self) {
        self.is_draining = true;
        match &mut self.policy.strategy {
            SlotStrategy::Direct { queue_delay_max, .. } => *queue_delay_max = Duration::ZERO,
            SlotStrategy::Oldest(_) => self.instances.iter_mut().for_each(InstanceSlots::handle_drain),
        }
        while let Some((_, run)) = self.backlog.pop_first() {
            self.clear_alarm(run);
            self.finish(run, SequenceEnd::Unload);
        }
        let is_idle = |run: &usize| self.runs.get(*run).is_some_and(|run| run.queue.is_empty() && run.flight.is_none());
        let idle: Vec<usize> = self.runs.indices().filter(is_idle).collect();
        idle.into_iter().for_each(|run| self.finish(run, SequenceEnd::Unload));
        self.invariants();
    }

    /// The model version is unloaded: ends all sequences.
    pub fn handle_unload(&mut self) {
        let runs: Vec<usize> = self.runs.indices().collect();
        for run in runs {
            self.clear_alarm(run);
            self.finish(run, SequenceEnd::Unload);
        }
        debug_assert!(self.runs.len() == 0 && self.open.is_empty(), "no sequence outlives its model");
        self.backlog.clear();
        self.instances.iter_mut().for_each(InstanceSlots::clear);
        self.invariants();
    }

    /// Ends the sequences whose next request was cancelled. Takes time in proportion to the number of sequences.
    pub fn evict_cancelled(&mut self, now: Instant, claims: &mut impl Claims<T>) {
        let runs: Vec<usize> = self.runs.indices().collect();
        for run in runs {
            let front = self.runs.get(run).and_then(|run| run.queue.front());
            if front.is_some_and(|front| !claims.is_waiting(&front.token)) {
                self.break_run(run, SequenceEnd::Cancel, now, claims);
            }
        }
        self.invariants();
    }

    /// The next request whose sequence has ended, for the caller to answer if it can claim it.
    #[inline]
    pub fn poll_broken(&mut self, now: Instant) -> Option<BrokenRequest<T>> {
        self.handle_alarms(now);
        self.broken.pop_front()
    }

    /// Returns the time at which an idle instance must call [`Self::poll_batch`] again even if
    /// nothing arrives.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let asked = self.instances.iter().filter_map(|instance| instance.ask_at);
        asked.chain(self.poll_broken_timeout()).min()
    }

    /// Returns the time at which [`Self::poll_broken`] must be called again, whether or not an
    /// instance is idle.
    #[inline]
    pub fn poll_broken_timeout(&self) -> Option<Instant> {
        if self.broken.is_empty() { self.alarms.first().map(|alarm| alarm.at) } else { Some(Instant::ZERO) }
    }

    /// An instance that should poll for a batch, because it has new work or its time to poll again has come. Each is
    /// named once for the same reason.
    #[inline]
    pub fn poll_attention(&mut self, now: Instant) -> Option<usize> {
        self.instances.iter_mut().position(|instance| instance.take_attention(now))
    }

    /// Requests in memory.
    #[inline]
    pub fn len(&self) -> usize {
        self.entry_count + self.broken.len()
    }

    /// Returns true if no request is in memory.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests of iterative sequences that run, or may be scheduled to run again.
    pub const fn flights(&self) -> usize {
        self.flight_count
    }

    /// Sequences that have a slot.
    #[inline]
    pub fn active(&self) -> usize {
        self.runs.len() - self.backlog.len()
    }

    /// Sequences that wait for a slot.
    #[inline]
    pub fn backlogged(&self) -> usize {
        self.backlog.len()
    }

    /// Requests of the sequences that wait for a slot.
    #[cfg(feature = "test-hooks")]
    pub fn backlogged_requests(&self) -> usize {
        self.backlog.values().filter_map(|run| self.runs.get(*run)).map(|run| run.queue.len()).sum()
    }

    /// Sequences that ended so far for a reason.
    #[inline]
    pub fn ended(&self, end: SequenceEnd) -> u64 {
        self.ends.get(end as usize).copied().unwrap_or(0)
    }

    /// Requests so far that were to continue a sequence which does not exist here: it never began here, or has ended.
    pub const fn unknown(&self) -> u64 {
        self.unknown_count
    }

    /// The policy.
    pub const fn policy(&self) -> &SequencePolicy {
        &self.policy
    }

    /// Breaks a sequence: drops its requests up to the next one that starts a sequence, and
    /// continues from there; ends it if there is no such request.
    fn break_run(&mut self, run: usize, end: SequenceEnd, now: Instant, claims: &mut impl Claims<T>) {
        self.clear_alarm(run);
        self.withdraw_offer(run);
        if self.policy.is_iterative {
            // Its next run would continue from state that is about to be dropped.
            self.lose_flight(run);
        }
        let Some(held) = self.runs.get_mut(run) else { return };
        while let Some(front) = held.queue.front() {
            let is_waiting = claims.is_waiting(&front.token);
            if front.is_start && is_waiting {
                break;
            }
            let Some(front) = held.queue.pop_front() else { break };
            self.entry_count -= 1;
            if is_waiting {
                self.broken.push_back(BrokenRequest { token: front.token, end });
            }
        }
        if held.queue.is_empty() {
            return self.end(run, end, now);
        }
        self.restart(run, end);
        self.attend(run, now);
    }

    /// A sequence starts over under the same id: counts the old one as ended if it had run.
    fn restart(&mut self, run: usize, end: SequenceEnd) {
        let Some(held) = self.runs.get_mut(run) else { return };
        if !std::mem::take(&mut held.has_run) {
            return;
        }
        let place = held.place;
        self.count(end);
        if let SequencePlace::Slot { instance, slot } = place
            // The request that restarts it has the START flag, which resets the state anyway.
            && end != SequenceEnd::Restart
            && let Some(instance) = self.instances.get_mut(instance)
        {
            instance.ended.push(slot);
        }
    }

    /// Ends a sequence, and gives its slot to the next in the backlog.
    fn end(&mut self, run: usize, end: SequenceEnd, now: Instant) {
        self.finish(run, end);
        self.fill(now);
    }

    /// Ends a sequence without filling its slot.
    fn finish(&mut self, run: usize, end: SequenceEnd) {
        self.clear_alarm(run);
        self.withdraw_offer(run);
        self.lose_flight(run);
        let Some(held) = self.runs.remove(run) else { return };
        if self.open.get(&held.id) == Some(&run) {
            self.open.remove(&held.id);
        }
        self.count(end);
        self.entry_count -= held.queue.len();
        self.broken.extend(held.queue.into_iter().map(|entry| BrokenRequest { token: entry.token, end }));
        match held.place {
            SequencePlace::Backlog => drop(self.backlog.remove(&held.number)),
            SequencePlace::Slot { instance, slot } => {
                let Some(instance) = self.instances.get_mut(instance) else { return };
                instance.give_slot(slot);
                if held.has_run && end != SequenceEnd::End {
                    instance.ended.push(slot);
                }
            }
        }
    }

    fn count(&mut self, end: SequenceEnd) {
        if let Some(count) = self.ends.get_mut(end as usize) {
            *count += 1;
        }
    }

    fn withdraw_offer(&mut self, run: usize) {
        let Some(held) = self.runs.get_mut(run) else { return };
        held.offer = None;
        if let SequencePlace::Slot { instance, slot } = held.place
            && let Some(instance) = self.instances.get_mut(instance)
        {
            instance.withdraw(slot);
        }
    }

    /// A request ended its run: takes the record of it, if it still is the one in flight of its sequence.
    fn take_flight(&mut self, flight: RunId, now: Instant) -> Option<RunningRequest> {
        let held = self.runs.get_mut(flight.run)?;
        let landed = held.flight.take_if(|have| have.number == flight.number)?;
        held.active_at = now;
        debug_assert!(self.flight_count > 0 || !self.policy.is_iterative, "a request that ends a run was in flight");
        self.flight_count -= usize::from(self.policy.is_iterative);
        Some(landed)
    }

    /// Drops the record of the request that runs: its outcome no longer concerns the sequence.
    fn lose_flight(&mut self, run: usize) {
        let lost = self.runs.get_mut(run).and_then(|held| held.flight.take());
        self.flight_count -= usize::from(self.policy.is_iterative && lost.is_some());
    }

    fn take_in_flight(&mut self, instance: usize) -> Vec<usize> {
        let in_flight = self.instances.get_mut(instance).map(|instance| std::mem::take(&mut instance.in_flight));
        let mut in_flight = in_flight.unwrap_or_default();
        // A sequence that ended meanwhile may have left its index to another one.
        in_flight.retain(|(run, number)| self.runs.get(*run).is_some_and(|run| run.number == *number));
        in_flight.into_iter().map(|(run, _)| run).collect()
    }

    /// Checks the invariants between two calls. Those that take time in proportion to the sequences
    /// run only while these are few, as in the simulator.
    fn invariants(&self) {
        debug_assert!(self.backlog.len() <= self.runs.len(), "the backlog holds sequences");
        debug_assert!(self.open.len() <= self.runs.len(), "each open id has a sequence");
        let is_full = |instance: &InstanceSlots| instance.free_slot(self.policy.slots).is_none();
        debug_assert!(
            self.backlog.is_empty() || self.instances.iter().all(is_full),
            "no sequence waits for a slot while one is free"
        );
        if self.runs.len() > INVARIANT_RUNS_MAX {
            return;
        }
        let runs = || self.runs.indices().filter_map(|run| self.runs.get(run));
        debug_assert_eq!(self.entry_count, runs().map(|run| run.queue.len()).sum::<usize>(), "each request is counted");
        let flights = runs().filter(|run| self.policy.is_iterative && run.flight.is_some()).count();
        debug_assert_eq!(self.flight_count, flights, "each request that runs is counted");
        let waiting = runs().filter(|run| run.place == SequencePlace::Backlog).count();
        debug_assert_eq!(self.backlog.len(), waiting, "a sequence has a slot or waits for one");
        debug_assert!(self.open.iter().all(|(id, run)| self.runs.get(*run).is_some_and(|run| run.id == *id)));
    }
}

/// Up to this many sequences a debug build recounts everything after each change.
const INVARIANT_RUNS_MAX: usize = 32;

#[cfg(test)]
mod tests;
