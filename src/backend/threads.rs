//! The threads that an engine computes on. A worker, or a shard with inline models, runs its whole
//! life inside [`enter`], so that the engine finds itself on a thread of its own pool and starts
//! at once: from a foreign thread each run would wake another thread and wait for it.
//!
//! The operating system sees one more thread for each [`enter`]: the caller, which only waits.

use std::sync::Arc;

use rten::ThreadPool;

/// A pool of engine threads; the one that was handed it belongs to it. With them goes the GPU of the
/// instance that they run, where it has one.
#[derive(Clone)]
pub struct Threads {
    pool: Arc<ThreadPool>,
    count: usize,
    gpu: Option<u32>,
}

impl Threads {
    /// The same, beside a GPU.
    pub fn on(&self, gpu: Option<u32>) -> Self {
        Self { gpu, ..self.clone() }
    }

    /// The GPU that an instance on these threads computes on, if it does on one.
    pub const fn gpu(&self) -> Option<u32> {
        self.gpu
    }

    /// How many there are, with the one that runs the instance.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The engine's pool.
    pub(in crate::backend) const fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }
}

/// Runs `body` on a thread of a new pool of `count` threads (at least one) and returns what it
/// returns; a panic in it is passed on. With one thread the engine computes on that very thread.
///
/// New threads take over the caller's affinity: who wants all of them on one core pins itself
/// first; who wants to pin only the thread of `body` does so in `body`.
pub fn enter<R: Send>(count: usize, body: impl FnOnce(&Threads) -> R + Send) -> R {
    let count = count.max(1);
    let pool = Arc::new(ThreadPool::with_num_threads(count));
    let threads = Threads { pool: Arc::clone(&pool), count, gpu: None };
    pool.run(|| body(&threads))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn with_one_thread_the_engine_stays_on_the_thread_of_the_body() {
        let outside = thread::current().id();
        enter(1, |threads| {
            let body = thread::current().id();
            assert_ne!(body, outside);
            assert_eq!(threads.count(), 1);
            assert_eq!(threads.pool().run(|| thread::current().id()), body);
        });
    }

    #[test]
    fn a_panic_of_the_body_reaches_the_caller() {
        let outcome = std::panic::catch_unwind(|| enter(1, |_| panic!("on purpose")));
        assert_eq!(outcome.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(enter(0, |threads| threads.count()), 1);
    }
}
