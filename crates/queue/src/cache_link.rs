//! The shards' link to a response cache that servers share, or that is a library. Each connection to
//! it, or each thread that calls it, has a lane: a bounded queue in bytes and number. A shard pushes
//! into no closed lane and into none whose thread is stuck, and a full one refuses at once, so that a
//! cache that is gone, slow or silent costs a request its lookup's time limit at most. No lock, and
//! no wait here: the shard awaits the reply with a timer beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::one_shot::{Lease, OneShotSender};
use crate::sized_queue::{QueuedSize, SizedQueue};
use base::error::Error;
use base::metrics::CacheLaneCells;
use base::tensor::Tensor;
use base::time::Instant;
use model::ModelSpec;
use model::parameters::Parameters;

/// Lookups and answers that wait for one connection to a shared response cache: as many as it moves
/// in a lookup's time. Beyond it a lookup is a miss, and an answer is not stored; both are counted.
const CACHE_JOBS_MAX: usize = 1_024;
/// Bytes of their tensors, which may keep the buffers of whole batches.
const CACHE_JOBS_SIZE_MAX: usize = 64 * 1024 * 1024;

/// The key of an answer in the cache.
pub type AnswerKey = [u8; 32];

/// The kind of a cache that is not in the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// A library written for Triton.
    Library,
    /// Redis.
    Redis,
}

/// The lanes to one cache.
pub struct CacheLink {
    /// The kind of the cache: its metrics differ.
    pub kind: CacheKind,
    lanes: Box<[Arc<CacheLane>]>,
    /// The most time that a request waits for the cache.
    pub lookup_timeout: Duration,
    /// The time that a lookup may wait for its turn on a connection.
    pub wait_timeout: Duration,
}

/// The lane to one connection: any number of shards, and one thread that reads.
pub struct CacheLane {
    /// The jobs that wait.
    pub jobs: SizedQueue<CacheJob>,
    /// True if there is a connection.
    is_open: AtomicBool,
    /// The begin of a call that the thread cannot leave by itself, in nanoseconds; 0 outside of one.
    called_at: AtomicU64,
    /// The thread's counters.
    pub cells: CacheLaneCells,
}

/// A job of the cache for a shard.
pub enum CacheJob {
    /// Looks for an answer; no longer after an instant.
    Look(CacheQuestion, Instant, LookupReply),
    /// Stores an answer.
    Store(AnswerKey, Vec<Tensor>),
}

/// The parts of a request on which its answer depends.
pub struct CacheQuestion {
    /// The model version that answers, then those that an ensemble reaches.
    pub models: Vec<Arc<ModelSpec>>,
    /// The inputs.
    pub inputs: Vec<Tensor>,
    /// The client's parameters.
    pub parameters: Parameters,
    /// The indices of the outputs that an ensemble is asked for; empty for other models.
    pub outputs: Vec<usize>,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq)]
pub enum CacheFinding {
    /// The outputs.
    Found(Vec<Tensor>),
    /// It had no turn in time.
    Late,
    /// Nothing is stored under this key, or something that is not an answer.
    Missing(AnswerKey),
    /// The cache could not be asked.
    Unknown,
}

/// The reason that a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneRefusal {
    /// There is no connection, or every thread is stuck in the cache.
    Closed,
    /// Too many jobs, or bytes, wait.
    Full,
}

/// Answers a lookup.
pub type LookupReply = OneShotSender<CacheFinding, LookupLease>;

/// A lookup's place: the lane's queue bounds them.
pub struct LookupLease;

impl Lease for LookupLease {
    fn closed() -> Error {
        Error::unavailable("the connection to the cache is lost")
    }
}

impl CacheLink {
    /// Creates `lanes` lanes, closed.
    pub fn new(kind: CacheKind, lanes: usize, lookup_timeout: Duration, wait_timeout: Duration) -> Self {
        Self { kind, lanes: (0..lanes.max(1)).map(|_| Arc::default()).collect(), lookup_timeout, wait_timeout }
    }

    /// Returns the lanes.
    pub fn lanes(&self) -> &[Arc<CacheLane>] {
        &self.lanes
    }

    /// Hands a job to the first lane with a connection whose thread is not stuck, from the one at an index on.
    ///
    /// # Errors
    /// If there is no such lane, or it is full.
    pub fn push(&self, from: usize, now: Instant, job: CacheJob) -> Result<(), LaneRefusal> {
        let count = self.lanes.len();
        let from = from.checked_rem(count).unwrap_or(0);
        let mut lanes = self.lanes.iter().cycle().skip(from).take(count);
        let lane = lanes.find(|lane| lane.takes_jobs(now, self.lookup_timeout)).ok_or(LaneRefusal::Closed)?;
        lane.push(job)
    }

    /// Ends the threads: no further jobs come.
    pub fn end(&self) {
        self.lanes.iter().for_each(|lane| lane.jobs.end());
    }
}

impl Default for CacheLane {
    fn default() -> Self {
        Self {
            jobs: SizedQueue::new(CACHE_JOBS_MAX, CACHE_JOBS_SIZE_MAX),
            is_open: AtomicBool::new(false),
            called_at: AtomicU64::new(0),
            cells: CacheLaneCells::default(),
        }
    }
}

impl CacheLane {
    /// Returns true if there is a connection, and the thread is in no call that takes longer than a lookup may.
    fn takes_jobs(&self, now: Instant, lookup_timeout: Duration) -> bool {
        let called_at = self.called_at.load(Ordering::Relaxed);
        let is_stuck = called_at > 0 && now.since(Instant::from_nanos(called_at)) > lookup_timeout;
        self.is_open.load(Ordering::Acquire) && !is_stuck
    }

    /// Marks the begin of a call that the thread cannot leave by itself; `None` its end.
    pub fn set_called(&self, at: Option<Instant>) {
        let nanos = at.map_or(0, |at| at.as_nanos().max(1));
        self.called_at.store(nanos, Ordering::Relaxed);
    }

    fn push(&self, job: CacheJob) -> Result<(), LaneRefusal> {
        self.jobs.push(job).map_err(|_| LaneRefusal::Full)?;
        self.jobs.wake();
        Ok(())
    }

    /// Sets whether there is a connection. Jobs that wait for a lost one are dropped, which answers
    /// them.
    pub fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Release);
        self.cells.connections.set(is_open.into());
        if !is_open {
            // A job that comes beside this waits until its request gives up, or the thread takes it.
            while self.jobs.pop().is_some() {}
        }
    }
}

impl QueuedSize for CacheJob {
    fn queued_size(&self) -> usize {
        let of = |tensors: &[Tensor], more: usize| {
            tensors.iter().map(|tensor| tensor.contents.len()).fold(more, usize::saturating_add)
        };
        match self {
            Self::Look(question, ..) => of(&question.inputs, question.parameters.size()),
            Self::Store(_, outputs) => of(outputs, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::trial::tensor;

    fn store(size: usize) -> CacheJob {
        CacheJob::Store([0; 32], vec![tensor(&[size as i64], &vec![0_u8; size])])
    }

    fn link(lanes: usize) -> CacheLink {
        CacheLink::new(CacheKind::Redis, lanes, Duration::ZERO, Duration::ZERO)
    }

    #[test]
    fn a_lane_takes_so_many_jobs_and_bytes_while_it_is_open() {
        let link = link(1);
        assert_eq!(link.push(0, Instant::ZERO, store(1)), Err(LaneRefusal::Closed));
        link.lanes()[0].set_open(true);
        for _ in 0..CACHE_JOBS_MAX {
            assert_eq!(link.push(0, Instant::ZERO, store(1)), Ok(()));
        }
        assert_eq!(link.push(0, Instant::ZERO, store(1)), Err(LaneRefusal::Full), "too many");
        link.lanes()[0].set_open(false);
        link.lanes()[0].set_open(true);
        assert!(link.lanes()[0].jobs.pop().is_none(), "what waited is dropped with the connection");
        assert_eq!(link.push(0, Instant::ZERO, store(CACHE_JOBS_SIZE_MAX + 1)), Err(LaneRefusal::Full), "too large");
        assert_eq!(link.push(0, Instant::ZERO, store(CACHE_JOBS_SIZE_MAX)), Ok(()), "what was refused takes no room");
        assert_eq!(link.push(0, Instant::ZERO, store(1)), Err(LaneRefusal::Full));
        assert!(link.lanes()[0].jobs.pop().is_some());
        assert_eq!(link.push(0, Instant::ZERO, store(1)), Ok(()));
    }

    #[test]
    fn a_closed_lane_is_passed_over() {
        let link = link(3);
        link.lanes()[2].set_open(true);
        for from in 0..4 {
            assert_eq!(link.push(from, Instant::ZERO, store(1)), Ok(()), "{from}");
        }
        let waiting = |lane: usize| std::iter::from_fn(|| link.lanes()[lane].jobs.pop()).count();
        assert_eq!([waiting(0), waiting(1), waiting(2)], [0, 0, 4]);
        link.lanes()[0].set_open(true);
        for from in 0..4 {
            assert_eq!(link.push(from, Instant::ZERO, store(1)), Ok(()), "{from}");
        }
        // 0 and 3 begin at the first, 1 and 2 find the last.
        assert_eq!([waiting(0), waiting(1), waiting(2)], [2, 0, 2]);
    }

    #[test]
    fn a_lane_whose_thread_is_stuck_is_passed_over_until_it_returns() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let link = CacheLink::new(CacheKind::Library, 2, Duration::from_millis(50), Duration::ZERO);
        link.lanes().iter().for_each(|lane| lane.set_open(true));
        let waiting = || link.lanes().iter().map(|lane| lane.jobs.len()).collect::<Vec<_>>();
        link.lanes()[0].set_called(Some(at(100)));
        assert_eq!(link.push(0, at(150), store(1)), Ok(()));
        assert_eq!(waiting(), [1, 0], "not longer than a lookup may take");
        assert_eq!(link.push(0, at(151), store(1)), Ok(()));
        assert_eq!(waiting(), [1, 1]);
        link.lanes()[1].set_called(Some(at(110)));
        assert_eq!(link.push(0, at(200), store(1)), Err(LaneRefusal::Closed));
        link.lanes()[0].set_called(None);
        assert_eq!(link.push(1, at(200), store(1)), Ok(()));
        assert_eq!(waiting(), [2, 1]);
    }

    #[test]
    fn a_lookup_whose_connection_is_lost_is_answered() {
        let link = link(1);
        link.lanes()[0].set_open(true);
        let (reply, awaited) = crate::one_shot::one_shot(LookupLease);
        let question = CacheQuestion {
            models: Vec::new(),
            inputs: Vec::new(),
            parameters: Parameters::default(),
            outputs: Vec::new(),
        };
        assert_eq!(link.push(0, Instant::ZERO, CacheJob::Look(question, Instant::ZERO, reply)), Ok(()));
        link.lanes()[0].set_open(false);
        assert_eq!(futures_lite::future::block_on(awaited), Err(LookupLease::closed()));
    }
}
