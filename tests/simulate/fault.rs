//! Schedulers that are wrong on purpose, around the real one, to see that the simulator finds it.

use deuteron::scheduler::{Batch, Claims, Entry, Expired, Refused, Scheduler};
use deuteron::time::Instant;

/// What the world asks of a scheduler.
pub trait Former {
    fn handle_request(&mut self, entry: Entry<usize>, now: Instant) -> Result<(), Refused<usize>>;
    fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<usize>) -> Option<Batch<usize>>;
    fn poll_expired(&mut self, now: Instant) -> Option<Expired<usize>>;
    fn poll_timeout(&self) -> Option<Instant>;
    fn poll_expired_timeout(&self) -> Option<Instant>;
    fn forget_gone(&mut self, claims: &mut impl Claims<usize>);
    fn len(&self) -> usize;
}

impl Former for Scheduler<usize> {
    fn handle_request(&mut self, entry: Entry<usize>, now: Instant) -> Result<(), Refused<usize>> {
        self.handle_request(entry, now)
    }

    fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<usize>) -> Option<Batch<usize>> {
        self.poll_batch(now, claims)
    }

    fn poll_expired(&mut self, now: Instant) -> Option<Expired<usize>> {
        self.poll_expired(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }

    fn poll_expired_timeout(&self) -> Option<Instant> {
        self.poll_expired_timeout()
    }

    fn forget_gone(&mut self, claims: &mut impl Claims<usize>) {
        self.forget_gone(claims);
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not see priorities.
    Blind,
    /// It never asks to be woken.
    Deaf,
    /// It loses the last entry of a batch.
    Forgetful,
    /// It makes one batch of two.
    Greedy,
    /// It does not look at what is there.
    Idle,
    /// It gives the first entry of a batch twice.
    Twice,
    /// It knows no timeouts and no deadlines.
    Undying,
}

/// A scheduler with a fault.
pub struct Faulty {
    inner: Scheduler<usize>,
    fault: Fault,
}

impl Faulty {
    pub fn new(inner: Scheduler<usize>, fault: Fault) -> Self {
        Self { inner, fault }
    }
}

impl Former for Faulty {
    fn handle_request(&mut self, mut entry: Entry<usize>, now: Instant) -> Result<(), Refused<usize>> {
        match self.fault {
            Fault::Blind => entry.priority = 0,
            Fault::Undying => {
                (entry.deadline, entry.queued_at) = (None, entry.queued_at + std::time::Duration::from_secs(1));
            }
            _ => {}
        }
        self.inner.handle_request(entry, now)
    }

    fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<usize>) -> Option<Batch<usize>> {
        if self.fault == Fault::Idle && self.inner.len() < 3 {
            return None;
        }
        let mut batch = self.inner.poll_batch(now, claims)?;
        match self.fault {
            Fault::Forgetful => drop(batch.tokens.pop()),
            Fault::Greedy => {
                if let Some(more) = self.inner.poll_batch(now, claims) {
                    batch.tokens.extend(more.tokens);
                    batch.rows += more.rows;
                }
            }
            Fault::Twice => batch.tokens.extend(batch.tokens.first().copied()),
            _ => {}
        }
        Some(batch)
    }

    fn poll_expired(&mut self, now: Instant) -> Option<Expired<usize>> {
        self.inner.poll_expired(now)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout().filter(|_| self.fault != Fault::Deaf)
    }

    fn poll_expired_timeout(&self) -> Option<Instant> {
        self.inner.poll_expired_timeout().filter(|_| self.fault != Fault::Deaf)
    }

    fn forget_gone(&mut self, claims: &mut impl Claims<usize>) {
        self.inner.forget_gone(claims);
    }

    fn len(&self) -> usize {
        self.inner.len()
    }
}
