//! Forms the batch of an idle instance: a row for each ready slot (direct), or the requests that have waited longest,
//! one per sequence (oldest).

use std::hash::Hash;
use std::time::Duration;

use crate::sequence::instance::RowOffer;
use crate::sequence::run::{RunningRequest, SequencePlace, SequenceRequest, SequenceTable};
use crate::sequence::{RunId, SequenceBatch, SequenceBatchRow, SequenceEnd, Sequences, SlotStrategy};
use crate::{Claims, ReleaseReason, ShapeKey};
use base::time::Instant;

impl<K: Clone + Eq + Hash, T> Sequences<K, T> {
    /// Returns the batch that the idle instance should run, or `None` if it should run nothing
    /// before [`Self::poll_timeout`].
    pub fn poll_batch(
        &mut self,
        instance: usize,
        now: Instant,
        claims: &mut impl Claims<T>,
    ) -> Option<SequenceBatch<T>> {
        self.handle_alarms(now);
        self.instances.get_mut(instance)?.handle_poll();
        let (rows, released) = match self.policy.strategy {
            SlotStrategy::Direct { queue_delay_max, slots_least } => {
                self.poll_direct(instance, queue_delay_max, slots_least, now, claims)
            }
            SlotStrategy::Oldest(_) => self.poll_oldest(instance, now, claims),
        }?;
        let ended = self.instances.get_mut(instance).map(|instance| std::mem::take(&mut instance.ended));
        self.invariants();
        Some(SequenceBatch { rows, ended: ended.unwrap_or_default(), released })
    }

    /// Returns true if [`Self::poll_batch`] would return a batch now; never false when it would.
    pub fn poll_ready(&mut self, instance: usize, now: Instant) -> bool {
        self.handle_alarms(now);
        let instance = self.instances.get(instance);
        instance.is_some_and(|instance| {
            !instance.ready.is_empty() || instance.former.as_ref().is_some_and(|former| !former.is_empty())
        })
    }

    fn poll_direct(
        &mut self,
        instance: usize,
        delay: Duration,
        slots_least: usize,
        now: Instant,
        claims: &mut impl Claims<T>,
    ) -> Option<(Vec<SequenceBatchRow<T>>, ReleaseReason)> {
        loop {
            self.break_cancelled(instance, now, claims);
            let (oldest, shape_key, count) = self.oldest_ready(instance)?;
            let due = oldest + delay;
            let is_enough = slots_least == 0 || delay.is_zero() || count >= slots_least;
            if !is_enough && now < due {
                self.instances.get_mut(instance)?.ask_at = Some(due);
                return None;
            }
            let rows = self.take_rows(instance, &shape_key, now, claims);
            if !rows.is_empty() {
                let released = match () {
                    () if count >= self.policy.slots => ReleaseReason::Full,
                    () if slots_least == 0 || delay.is_zero() => ReleaseReason::Idle,
                    () if is_enough => ReleaseReason::Preferred,
                    () => ReleaseReason::Delay,
                };
                return Some((rows, released));
            }
        }
    }

    /// Breaks the sequences of an instance whose next request was cancelled, until none is left. In a loop, since a
    /// freed slot goes to a sequence from the backlog, whose request may be cancelled too.
    fn break_cancelled(&mut self, instance: usize, now: Instant, claims: &mut impl Claims<T>) {
        loop {
            let Some(ready) = self.instances.get(instance) else { return };
            let fronts = ready.ready.iter().filter_map(|slot| ready.run(*slot));
            let gone: Vec<usize> = fronts
                .filter(|run| front(&self.runs, *run).is_some_and(|front| !claims.is_waiting(&front.token)))
                .collect();
            if gone.is_empty() {
                return;
            }
            gone.into_iter().for_each(|run| self.break_run(run, SequenceEnd::Cancel, now, claims));
        }
    }

    /// Returns the arrival time and the shape key of the longest waiting request, and the number of
    /// ready slots.
    fn oldest_ready(&self, instance: usize) -> Option<(Instant, ShapeKey, usize)> {
        let instance = self.instances.get(instance)?;
        let fronts = instance.ready.iter().filter_map(|slot| front(&self.runs, instance.run(*slot)?));
        let oldest = fronts.min_by_key(|front| front.queued_at)?;
        Some((oldest.queued_at, oldest.shape_key.clone(), instance.ready.len()))
    }

    /// Takes the requests of all slots with this shape key, with an empty row for each slot in between.
    fn take_rows(
        &mut self,
        instance: usize,
        shape_key: &ShapeKey,
        now: Instant,
        claims: &mut impl Claims<T>,
    ) -> Vec<SequenceBatchRow<T>> {
        let Some(ready) = self.instances.get(instance) else { return Vec::new() };
        let fitting = ready.ready.iter().copied().filter_map(|slot| Some((slot, ready.run(slot)?)));
        let fitting: Vec<(usize, usize)> = fitting
            .filter(|(_, run)| front(&self.runs, *run).is_some_and(|front| front.shape_key == *shape_key))
            .collect();
        let mut rows: Vec<SequenceBatchRow<T>> = Vec::new();
        let mut gone = Vec::new();
        for (slot, run) in fitting {
            match self.take_front(run, claims) {
                Some((token, flight)) => {
                    rows.extend((rows.len()..slot).map(|slot| SequenceBatchRow { slot, token: None, flight: None }));
                    rows.push(SequenceBatchRow { slot, token: Some(token), flight: Some(flight) });
                }
                None => gone.push(run),
            }
        }
        gone.into_iter().for_each(|run| self.break_run(run, SequenceEnd::Cancel, now, claims));
        self.fill(now);
        debug_assert!(rows.iter().enumerate().all(|(slot, row)| row.slot == slot), "a row's index is its slot");
        debug_assert!(rows.len() <= self.policy.slots, "there are no more rows than slots");
        rows
    }

    fn poll_oldest(
        &mut self,
        instance: usize,
        now: Instant,
        claims: &mut impl Claims<T>,
    ) -> Option<(Vec<SequenceBatchRow<T>>, ReleaseReason)> {
        loop {
            let former = self.instances.get_mut(instance)?.former.as_mut()?;
            let mut offers = RowOffers { runs: &self.runs, claims, gone: Vec::new() };
            let batch = former.poll_batch(now, &mut offers);
            let ask_at = former.poll_timeout();
            let mut gone = offers.gone;
            let mut rows = Vec::new();
            let released = batch.as_ref().map_or(ReleaseReason::Idle, |batch| batch.released);
            for offer in batch.into_iter().flat_map(|batch| batch.tokens) {
                let Some(SequencePlace::Slot { slot, .. }) = self.runs.get(offer.run).map(|run| run.place) else {
                    continue;
                };
                match self.take_front(offer.run, claims) {
                    Some((token, flight)) => {
                        rows.push(SequenceBatchRow { slot, token: Some(token), flight: Some(flight) })
                    }
                    None => gone.push(offer),
                }
            }
            for offer in &gone {
                if self.runs.get(offer.run).is_some_and(|run| run.offer == Some(offer.number)) {
                    self.break_run(offer.run, SequenceEnd::Cancel, now, claims);
                }
            }
            self.fill(now);
            debug_assert!(rows.len() <= self.policy.slots, "a batch has one request of a sequence");
            if !rows.is_empty() {
                return Some((rows, released));
            }
            if gone.is_empty() {
                self.instances.get_mut(instance)?.ask_at = ask_at;
                return None;
            }
        }
    }

    /// Takes the first request of a sequence into a batch. The last request of a sequence frees its slot already, for
    /// the next batch.
    fn take_front(&mut self, run: usize, claims: &mut impl Claims<T>) -> Option<(T, RunId)> {
        let held = self.runs.get_mut(run)?;
        if !claims.claim(&held.queue.front()?.token) {
            return None;
        }
        let front = held.queue.pop_front()?;
        self.entry_count -= 1;
        if front.is_start {
            self.restart(run, SequenceEnd::Restart);
        }
        self.withdraw_offer(run);
        self.number += 1;
        let flight = RunId { run, number: self.number };
        let held = self.runs.get_mut(run)?;
        held.has_run = true;
        if front.is_end {
            self.finish(run, SequenceEnd::End);
            return Some((front.token, flight));
        }
        debug_assert!(held.flight.is_none(), "one request of a sequence runs at a time");
        held.flight = Some(RunningRequest { number: flight.number, shape_key: front.shape_key });
        if self.policy.is_iterative {
            // Its requests may outlast the batch: `handle_rescheduled` and `handle_finished` end them, not
            // `handle_done`.
            self.flight_count += 1;
        } else if let SequencePlace::Slot { instance, .. } = held.place
            && let Some(instance) = self.instances.get_mut(instance)
        {
            instance.in_flight.push((run, held.number));
        }
        Some((front.token, flight))
    }
}

fn front<K, T>(runs: &SequenceTable<K, T>, run: usize) -> Option<&SequenceRequest<T>> {
    runs.get(run)?.queue.front()
}

/// The claims of an oldest strategy's scheduler: an offer waits as long as it is current and its request waits.
struct RowOffers<'a, K, T, C> {
    runs: &'a SequenceTable<K, T>,
    claims: &'a mut C,
    /// Current offers whose request was cancelled.
    gone: Vec<RowOffer>,
}

impl<K, T, C: Claims<T>> Claims<RowOffer> for RowOffers<'_, K, T, C> {
    fn is_waiting(&mut self, offer: &RowOffer) -> bool {
        let Some(run) = self.runs.get(offer.run).filter(|run| run.offer == Some(offer.number)) else { return false };
        let is_waiting = run.queue.front().is_some_and(|front| self.claims.is_waiting(&front.token));
        if !is_waiting {
            self.gone.push(*offer);
        }
        is_waiting
    }

    /// The request itself is claimed when it is taken from its sequence.
    fn claim(&mut self, offer: &RowOffer) -> bool {
        self.is_waiting(offer)
    }
}
