//! Batchers that are wrong on purpose, around the real one, to see that the simulator finds it.

use std::time::Duration;

use base::time::Instant;
use scheduler::Claims;
use scheduler::sequence::{
    BrokenRequest, RunId, SequenceBatch, SequenceEntry, SequencePolicy, Sequences, UnstartedRequest,
};

type Inner = Sequences<u64, usize>;

/// The planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It never asks to be woken.
    Deaf,
    /// It does not see that a sequence ended.
    Endless,
    /// It does not see that the model released a sequence.
    Eternal,
    /// It does not see that a request is to run again.
    Fleeting,
    /// It loses the last row of a batch.
    Forgetful,
    /// It does not end idle sequences.
    Immortal,
    /// It gives the rows of a batch each other's slots.
    Mixed,
    /// It does not wake an instance for new work.
    Silent,
    /// It continues a sequence that never began.
    Sticky,
    /// It gives the first row of a batch twice.
    Twice,
    /// It does not see that an instance died.
    Undying,
}

/// The batcher, with a fault or without.
pub struct Batcher {
    inner: Inner,
    fault: Option<Fault>,
}

impl Batcher {
    pub fn new(policy: &SequencePolicy, fault: Option<Fault>) -> Self {
        let mut policy = policy.clone();
        if fault == Some(Fault::Immortal) {
            policy.idle_max = Duration::from_secs(1);
        }
        Self { inner: Inner::new(policy), fault }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub fn handle_request(
        &mut self,
        mut entry: SequenceEntry<u64, usize>,
        now: Instant,
    ) -> Result<(), UnstartedRequest<usize>> {
        entry.is_start |= self.has(Fault::Sticky);
        entry.is_end &= !self.has(Fault::Endless);
        self.inner.handle_request(entry, now)
    }

    pub fn handle_departure(&mut self, id: u64, since: Instant, now: Instant, claims: &mut impl Claims<usize>) {
        self.inner.handle_departure(&id, since, now, claims);
    }

    pub fn handle_done(&mut self, instance: usize, now: Instant) {
        self.inner.handle_done(instance, now);
    }

    pub fn handle_rescheduled(
        &mut self,
        flight: RunId,
        token: usize,
        now: Instant,
        claims: &mut impl Claims<usize>,
    ) -> Result<(), UnstartedRequest<usize>> {
        if self.has(Fault::Fleeting) { Ok(()) } else { self.inner.handle_rescheduled(flight, token, now, claims) }
    }

    pub fn handle_finished(&mut self, flight: RunId, now: Instant, claims: &mut impl Claims<usize>) {
        if !self.has(Fault::Eternal) {
            self.inner.handle_finished(flight, now, claims);
        }
    }

    pub fn handle_instance_lost(
        &mut self,
        instance: usize,
        is_renewed: bool,
        now: Instant,
        claims: &mut impl Claims<usize>,
    ) {
        if self.has(Fault::Undying) {
            return self.inner.handle_done(instance, now);
        }
        self.inner.handle_instance_lost(instance, is_renewed, now, claims);
    }

    pub fn handle_instance_restored(&mut self, instance: usize, now: Instant) {
        self.inner.handle_instance_restored(instance, now);
    }

    pub fn poll_batch(
        &mut self,
        instance: usize,
        now: Instant,
        claims: &mut impl Claims<usize>,
    ) -> Option<SequenceBatch<usize>> {
        let mut batch = self.inner.poll_batch(instance, now, claims)?;
        match self.fault {
            Some(Fault::Forgetful) => drop(batch.rows.pop()),
            Some(Fault::Mixed) => {
                let tokens: Vec<_> = batch.rows.iter().rev().map(|row| row.token).collect();
                batch.rows.iter_mut().zip(tokens).for_each(|(row, token)| row.token = token);
            }
            Some(Fault::Twice) => batch.rows.extend(batch.rows.first().copied()),
            _ => {}
        }
        Some(batch)
    }

    pub fn poll_broken(&mut self, now: Instant) -> Option<BrokenRequest<usize>> {
        self.inner.poll_broken(now)
    }

    pub fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout().filter(|_| !self.has(Fault::Deaf))
    }

    pub fn poll_attention(&mut self, now: Instant) -> Option<usize> {
        self.inner.poll_attention(now).filter(|_| !self.has(Fault::Silent))
    }

    pub fn held(&self) -> usize {
        self.inner.len()
    }

    pub fn active(&self) -> usize {
        self.inner.active()
    }

    pub fn ended(&self, end: scheduler::sequence::SequenceEnd) -> u64 {
        self.inner.ended(end)
    }
}
