//! The threads that an engine computes on. A worker, or a shard with inline models, runs from start to
//! end inside [`enter`], so that it is a thread of the engine's pool and a run starts on it
//! directly: from a foreign thread each run would wake another thread and wait for it.
//!
//! The operating system sees one more thread for each [`enter`]: the caller, which only waits.

use std::ffi::CString;
use std::sync::Arc;
use std::thread;

use rten::ThreadPool;

/// A pool of engine threads, and the GPU of the instance that they run, if it is on one. The thread that
/// was given this by [`enter`] belongs to the pool.
///
/// ```
/// use backend::threads::enter;
///
/// let count = enter(2, |threads| threads.count());
/// assert_eq!(count, 2);
/// ```
#[derive(Clone)]
pub struct Threads {
    pool: Arc<ThreadPool>,
    count: usize,
    gpu: Option<u32>,
    instance: Option<Arc<InstanceIdentity>>,
}

/// The identity of an instance that is made: for backends whose instances differ by more than their
/// threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIdentity {
    /// Its name, as Triton builds it (`model_0_1`).
    pub name: String,
    /// The cores that its worker thread is pinned to.
    pub cores: Vec<usize>,
}

impl Threads {
    /// These threads with a GPU, or without one.
    pub fn on(&self, gpu: Option<u32>) -> Self {
        Self { gpu, ..self.clone() }
    }

    /// These threads for the instance of this name on these cores.
    pub fn of_instance(&self, name: &str, cores: &[usize]) -> Self {
        let identity = InstanceIdentity { name: name.to_owned(), cores: cores.to_vec() };
        Self { instance: Some(Arc::new(identity)), ..self.clone() }
    }

    /// The instance that is made on these threads; `None` if its identity does not matter.
    pub fn instance(&self) -> Option<&InstanceIdentity> {
        self.instance.as_deref()
    }

    /// The GPU that an instance on these threads computes on, if any, by its index.
    pub const fn gpu(&self) -> Option<u32> {
        self.gpu
    }

    /// The number of threads, including the one that runs the instance.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The engine's pool.
    pub const fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }
}

/// Runs `body` on a thread of a new pool of `count` threads (at least one) and returns its result;
/// a panic in it is passed on. With one thread the engine computes on that very thread.
///
/// The thread of `body` has the name of the caller's, which waits for it: `top -H` shows it.
///
/// New threads inherit the caller's affinity: to pin all of them, pin the caller first; to pin only
/// the thread of `body`, do so in `body`.
pub fn enter<R: Send>(count: usize, body: impl FnOnce(&Threads) -> R + Send) -> R {
    let count = count.max(1);
    let pool = Arc::new(ThreadPool::with_num_threads(count));
    let threads = Threads { pool: Arc::clone(&pool), count, gpu: None, instance: None };
    let name = CString::new(thread::current().name().unwrap_or_default()).unwrap_or_default();
    pool.run(|| {
        // Only for people who read thread names.
        let _ = rustix::thread::set_name(&name);
        body(&threads)
    })
}

#[cfg(test)]
mod tests {
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
    fn the_thread_of_the_body_has_the_name_of_the_callers() {
        let named = thread::Builder::new().name("a-name".to_owned());
        let inside = named.spawn(|| enter(1, |_| std::fs::read_to_string("/proc/thread-self/comm").unwrap()));
        assert_eq!(inside.unwrap().join().unwrap(), "a-name\n");
    }

    #[test]
    fn a_panic_of_the_body_reaches_the_caller() {
        let outcome = std::panic::catch_unwind(|| enter(1, |_| panic!("on purpose")));
        assert_eq!(outcome.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
        assert_eq!(enter(0, |threads| threads.count()), 1);
    }
}
