//! Threads for work that would hold a shard longer than its other tasks may wait, such as a tensor
//! of megabytes in JSON. A shard hands a job over and awaits its outcome; a receiver that is
//! dropped takes it back, unless it runs. The jobs that wait have no bound here: each holds memory
//! of its request, which is bounded where it is received.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Thread, park};

use crossbeam_queue::SegQueue;

use crate::one_shot::{Lease, OneShotReceiver, one_shot};
use base::error::Error;

/// The pool. The threads end when it is dropped, each after the job that it runs. Without threads, as by default, the
/// work is done at once.
#[derive(Default)]
pub struct JobPool {
    shared: Arc<JobQueue>,
    threads: Vec<Thread>,
}

#[derive(Default)]
struct JobQueue {
    jobs: SegQueue<Box<dyn FnOnce() + Send>>,
    is_ending: AtomicBool,
}

/// The lease that keeps the channel of a job open, without a bound here.
struct JobLease;

impl Lease for JobLease {
    fn closed() -> Error {
        Error::unavailable("Server is stopping")
    }
}

impl JobPool {
    /// Creates a pool of `count` threads, which `spawn` starts.
    ///
    /// # Errors
    /// As `spawn`.
    pub fn new(count: usize, spawn: impl Fn(Box<dyn FnOnce() + Send>) -> Result<Thread, Error>) -> Result<Self, Error> {
        let mut pool = Self { shared: Arc::default(), threads: Vec::with_capacity(count) };
        for _ in 0..count {
            let shared = Arc::clone(&pool.shared);
            pool.threads.push(spawn(Box::new(move || shared.run()))?);
        }
        Ok(pool)
    }

    /// Has `work` done by one of the threads. A panic in it is an error of this server.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> OneShotReceiver<T> {
        let (sender, receiver) = one_shot(JobLease);
        self.shared.jobs.push(Box::new(move || {
            if sender.is_awaited() {
                let outcome = catch_unwind(AssertUnwindSafe(work));
                sender.send(outcome.unwrap_or_else(|_| Err(Error::internal("the server failed to read the request"))));
            }
        }));
        if self.threads.is_empty() {
            self.shared.jobs.pop().into_iter().for_each(|job| job());
        }
        // There are few threads, and a job takes long: waking all is simple, and no job waits
        // beside an idle thread.
        self.threads.iter().for_each(Thread::unpark);
        receiver
    }
}

impl Drop for JobPool {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.threads.iter().for_each(Thread::unpark);
    }
}

impl JobQueue {
    fn run(&self) {
        while !self.is_ending.load(Ordering::Acquire) {
            match self.jobs.pop() {
                Some(job) => job(),
                // A push meanwhile unparks, so that this returns at once.
                None => park(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use futures_lite::future::block_on;

    use super::*;

    fn pool(count: usize) -> JobPool {
        JobPool::new(count, |body| Ok(thread::spawn(body).thread().clone())).unwrap()
    }

    #[test]
    fn jobs_run_on_the_threads_and_side_by_side() {
        let pool = pool(2);
        let (one, two) = (mpsc::channel(), mpsc::channel());
        // Each waits for the other.
        let first = pool.run(move || Ok(one.0.send(thread::current().id()).map(|()| two.1.recv().unwrap()).unwrap()));
        let second = pool.run(move || Ok(two.0.send(thread::current().id()).map(|()| one.1.recv().unwrap()).unwrap()));
        let (first, second) = (block_on(first).unwrap(), block_on(second).unwrap());
        assert!(first != second && first != thread::current().id());
        let many: Vec<_> = (0..1_000).map(|value| pool.run(move || Ok(value))).collect();
        assert_eq!(block_on(JobPool::default().run(|| Ok(thread::current().id()))), Ok(thread::current().id()));
        assert!(many.into_iter().map(|job| block_on(job).unwrap()).eq(0..1_000));
    }

    #[test]
    fn a_job_that_nobody_awaits_is_not_run_and_a_panic_is_an_error() {
        let pool = pool(1);
        let (go, gate) = mpsc::channel::<()>();
        let first = pool.run(move || Ok(gate.recv().is_ok()));
        drop(pool.run(|| -> Result<(), Error> { panic!("it was run") }));
        let last = pool.run(|| -> Result<(), Error> { panic!("planned") });
        go.send(()).unwrap();
        assert_eq!(block_on(first), Ok(true));
        assert_eq!(block_on(last).unwrap_err().code(), base::error::Code::Internal);
        assert_eq!(block_on(pool.run(|| Ok(7))), Ok(7), "the thread goes on");
    }

    #[test]
    fn the_threads_end_with_the_pool_and_what_waits_is_refused() {
        let (go, gate) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel::<()>();
        let pool = JobPool::new(1, |body| {
            let ended = ended.clone();
            let thread = thread::spawn(move || {
                body();
                drop(ended);
            });
            Ok(thread.thread().clone())
        })
        .unwrap();
        drop(ended);
        let (began, begin) = mpsc::channel::<()>();
        let running = pool.run(move || Ok(began.send(()).is_ok() && gate.recv().is_ok()));
        begin.recv().unwrap();
        let waiting = pool.run(|| Ok(()));
        drop(pool);
        go.send(()).unwrap();
        assert_eq!(block_on(running), Ok(true));
        assert!(end.recv().is_err(), "the thread has ended");
        assert_eq!(block_on(waiting).unwrap_err().text(), "Server is stopping");
    }
}
