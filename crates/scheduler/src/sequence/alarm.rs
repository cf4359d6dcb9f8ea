//! The one alarm of each sequence: idle too long in a slot, or a request that waited too long for one.

use std::hash::Hash;

use crate::sequence::run::SequencePlace;
use crate::sequence::{BrokenRequest, SequenceEnd, Sequences};
use base::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SequenceAlarm {
    pub(super) at: Instant,
    number: u64,
    run: usize,
}

impl<K: Clone + Eq + Hash, T> Sequences<K, T> {
    pub(super) fn handle_alarms(&mut self, now: Instant) {
        while let Some(alarm) = self.alarms.first().copied().filter(|alarm| alarm.at <= now) {
            self.alarms.pop_first();
            if self.backlog.contains_key(&alarm.number) {
                self.expire(alarm.run, now);
            } else {
                self.end(alarm.run, SequenceEnd::Idle, now);
            }
        }
    }

    /// Ends the sequences under one id in the backlog that have a request past its timeout.
    fn expire(&mut self, run: usize, now: Instant) {
        let Some(held) = self.runs.get_mut(run) else { return };
        held.alarm_at = None;
        let id = held.id.clone();
        let (expired, count, is_last) = held.take_expired(now);
        self.entry_count -= expired.len();
        self.broken
            .extend(expired.into_iter().map(|entry| BrokenRequest { token: entry.token, end: SequenceEnd::Timeout }));
        if held.queue.is_empty() {
            (1..count).for_each(|_| self.count(SequenceEnd::Timeout));
            return self.end(run, SequenceEnd::Timeout, now);
        }
        if is_last && self.open.get(&id) == Some(&run) {
            // The last sequence expired: a later request without START must not continue one of those before it.
            self.open.remove(&id);
        }
        (0..count).for_each(|_| self.count(SequenceEnd::Timeout));
        self.set_alarm(run);
    }

    pub(super) fn set_alarm(&mut self, run: usize) {
        self.clear_alarm(run);
        let Some(held) = self.runs.get_mut(run) else { return };
        let at = match held.place {
            SequencePlace::Backlog => held.queue.iter().filter_map(|entry| entry.timeout_at).min(),
            SequencePlace::Slot { .. } => Some(held.active_at + self.policy.idle_max),
        };
        held.alarm_at = at;
        self.alarms.extend(at.map(|at| SequenceAlarm { at, number: held.number, run }));
        debug_assert!(self.alarms.len() <= self.runs.len(), "a sequence has one alarm at most");
    }

    pub(super) fn clear_alarm(&mut self, run: usize) {
        let Some(held) = self.runs.get_mut(run) else { return };
        if let Some(at) = held.alarm_at.take() {
            self.alarms.remove(&SequenceAlarm { at, number: held.number, run });
        }
    }
}
