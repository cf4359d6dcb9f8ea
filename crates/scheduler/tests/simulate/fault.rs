//! Schedulers that are wrong on purpose, around the real one, to see that the simulator finds it.

use std::cell::RefCell;
use std::time::Duration;

use base::time::Instant;
use scheduler::{Claims, Entry, EntryBatch, Expired, Ordering, Refused, RunTimes, Scheduler};

/// The world's interface to a scheduler, and to the ordering of responses.
pub trait Former {
    fn handle_request(&mut self, entry: Entry<usize>, now: Instant) -> Result<(), Refused<usize>>;
    fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<usize>) -> Option<EntryBatch<usize>>;
    fn poll_expired(&mut self, now: Instant) -> Option<Expired<usize>>;
    fn poll_timeout(&self) -> Option<Instant>;
    fn poll_expired_timeout(&self) -> Option<Instant>;
    fn evict_cancelled(&mut self, claims: &mut impl Claims<usize>);
    fn handle_run(&mut self, rows: u32, took: Duration);
    /// Measured run time of a batch of `rows` rows.
    fn run_bound(&self, rows: u32) -> Option<Duration>;
    fn len(&self) -> usize;

    fn poll_response(&self, ordering: &mut Ordering<usize>) -> Option<usize> {
        ordering.poll_response()
    }

    /// Number of times that admission is told of a request leaving the queue.
    fn leaves(&self) -> usize {
        1
    }
}

impl Former for Scheduler<usize> {
    fn handle_request(&mut self, entry: Entry<usize>, now: Instant) -> Result<(), Refused<usize>> {
        self.handle_request(entry, now)
    }

    fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<usize>) -> Option<EntryBatch<usize>> {
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

    fn evict_cancelled(&mut self, claims: &mut impl Claims<usize>) {
        self.evict_cancelled(claims);
    }

    fn handle_run(&mut self, rows: u32, took: Duration) {
        self.handle_run(rows, took);
    }

    fn run_bound(&self, rows: u32) -> Option<Duration> {
        self.times().bound(rows)
    }

    fn len(&self) -> usize {
        self.len()
    }
}

/// The planted fault.
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
    /// It sends the last response that is ready, not the first.
    Hasty,
    /// It ignores the waiting requests.
    Idle,
    /// It does not see deadlines while a batch may grow.
    Patient,
    /// It says twice of a request that it no longer waits.
    Restless,
    /// It gives the first entry of a batch twice.
    Twice,
    /// It knows no timeouts and no deadlines.
    Undying,
}

/// A scheduler with a fault.
pub struct Faulty {
    inner: Scheduler<usize>,
    /// The run times that the scheduler would keep.
    times: RunTimes,
    fault: Fault,
    ready: RefCell<Vec<usize>>,
}

impl Faulty {
    pub fn new(inner: Scheduler<usize>, fault: Fault) -> Self {
        Self { inner, times: RunTimes::new(), fault, ready: RefCell::default() }
    }
}

impl Former for Faulty {
    fn handle_request(&mut self, mut entry: Entry<usize>, now: Instant) -> Result<(), Refused<usize>> {
        match self.fault {
            Fault::Blind => entry.priority = 0,
            Fault::Undying => {
                (entry.deadline, entry.queued_at) = (None, entry.queued_at + Duration::from_secs(1));
            }
            _ => {}
        }
        self.inner.handle_request(entry, now)
    }

    fn poll_batch(&mut self, now: Instant, claims: &mut impl Claims<usize>) -> Option<EntryBatch<usize>> {
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

    fn evict_cancelled(&mut self, claims: &mut impl Claims<usize>) {
        self.inner.evict_cancelled(claims);
    }

    fn handle_run(&mut self, rows: u32, took: Duration) {
        if self.fault != Fault::Patient {
            self.inner.handle_run(rows, took);
        }
        self.times.handle_run(rows, took);
    }

    fn run_bound(&self, rows: u32) -> Option<Duration> {
        self.times.bound(rows)
    }

    fn poll_response(&self, ordering: &mut Ordering<usize>) -> Option<usize> {
        match self.fault {
            Fault::Hasty => {
                let mut ready = self.ready.borrow_mut();
                ready.extend(std::iter::from_fn(|| ordering.poll_response()));
                ready.pop()
            }
            _ => ordering.poll_response(),
        }
    }

    fn leaves(&self) -> usize {
        1 + usize::from(self.fault == Fault::Restless)
    }

    fn len(&self) -> usize {
        self.inner.len()
    }
}
