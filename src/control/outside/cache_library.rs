//! The threads that call a response cache that is a library (`process::triton::HostedCache`). A thread takes the jobs of its
//! lane (`queue::cache_link`) one by one: shards neither hash nor wait for foreign code. A thread that is stuck in the cache
//! gets no further jobs, and with all of them stuck requests do not ask.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use bytes::Bytes;

use crate::control::machine::spawn::spawn;
use crate::error::Error;
use crate::limits::{CACHE_LIBRARY_LOOKUP_TIMEOUT, CACHE_LIBRARY_THREADS, CACHE_VALUE_SIZE_MAX};
use crate::log;
use crate::process::triton::HostedCache;
use crate::protocol::cache_entry;
use crate::queue::cache_link::{AnswerKey, CacheFinding, CacheJob, CacheKind, CacheLane, CacheLink, CacheQuestion};
use crate::runtime::clock;
use crate::settings::Settings;
use crate::tensor::Tensor;

/// The shards' way to a response cache in Redis or in a library.
pub type SharedCacheLink = Arc<CacheLink>;

/// An opened library, before its threads run.
pub struct LibraryCache {
    cache: Arc<HostedCache>,
    link: SharedCacheLink,
}

impl LibraryCache {
    /// The cache with closed lanes to it.
    pub fn new(cache: HostedCache) -> Self {
        let timeout = CACHE_LIBRARY_LOOKUP_TIMEOUT;
        let link = CacheLink::new(CacheKind::Library, CACHE_LIBRARY_THREADS, timeout, timeout);
        Self { cache: Arc::new(cache), link: Arc::new(link) }
    }

    /// Returns the shards' way to the cache.
    pub fn link(&self) -> SharedCacheLink {
        Arc::clone(&self.link)
    }

    /// Starts the threads. The last one to end finalizes the cache, and then drops the last clone of `running`.
    ///
    /// # Errors
    /// `Unavailable` when the system refuses a thread.
    pub fn start(self, running: &mpsc::Sender<Infallible>) -> Result<(), Error> {
        let logged = Arc::new(LoggedFailures::default());
        self.link.lanes().iter().enumerate().try_for_each(|(index, lane)| {
            let thread = LibraryThread {
                cache: Arc::clone(&self.cache),
                lane: Arc::clone(lane),
                logged: Arc::clone(&logged),
                _running: running.clone(),
            };
            spawn(format!("cache-{index}"), move || thread.run()).map(drop)
        })
    }
}

/// Looks for the library that is the response cache, without opening it, and says for a person what comes of it; `None` if no
/// library is the cache.
///
/// # Errors
/// As [`HostedCache::find`].
pub fn examine(settings: &Settings) -> Option<Result<String, Error>> {
    let library = settings.cache.library.as_ref()?;
    let found = HostedCache::find(&settings.cache_directory, &library.name);
    Some(found.map(|_| format!("the library of the cache '{}': found, not opened", library.name)))
}

/// One thread in the cache. The order of the fields is that of their end.
struct LibraryThread {
    lane: Arc<CacheLane>,
    cache: Arc<HostedCache>,
    logged: Arc<LoggedFailures>,
    _running: mpsc::Sender<Infallible>,
}

/// The kinds of failures that the log has: one line each, since each request may have one. Counters have all.
#[derive(Default)]
struct LoggedFailures {
    lookup: AtomicBool,
    store: AtomicBool,
}

impl LibraryThread {
    fn run(self) {
        self.lane.jobs.set_reader();
        self.lane.set_open(true);
        while !self.lane.jobs.is_ending() {
            match self.lane.jobs.pop() {
                Some(CacheJob::Look(_, due, reply)) if due <= clock::now() => reply.send(Ok(CacheFinding::Late)),
                Some(CacheJob::Look(question, _, reply)) => reply.send(Ok(self.look_up(&question))),
                Some(CacheJob::Store(key, outputs)) => self.store(&key, &outputs),
                None => std::thread::park(),
            }
        }
    }

    fn look_up(&self, question: &CacheQuestion) -> CacheFinding {
        let models = question.models.iter().map(|model| &**model);
        let key = cache_entry::key(models, &question.inputs, &question.parameters, &question.outputs);
        let (Some(key), Some(spec)) = (key, question.models.first()) else { return CacheFinding::Unknown };
        match self.call(|cache| cache.look_up(&cache_entry::text(&key), CACHE_VALUE_SIZE_MAX)) {
            Ok(Some(value)) => match cache_entry::decode(&key, spec, &value) {
                Some(outputs) => return CacheFinding::Found(outputs),
                None => self.lane.cells.damaged.add(1),
            },
            Ok(None) => {}
            Err(error) => {
                self.lane.cells.lookups_failed.add(1);
                log_once(&self.logged.lookup, "a lookup", &error);
            }
        }
        CacheFinding::Missing(key)
    }

    fn store(&self, key: &AnswerKey, outputs: &[Tensor]) {
        let value = cache_entry::encode(key, outputs).filter(|value| value.len() <= CACHE_VALUE_SIZE_MAX);
        let Some(value) = value else { return self.lane.cells.stores_failed.add(1) };
        if let Err(error) = self.call(|cache| cache.store(&cache_entry::text(key), Bytes::from(value))) {
            self.lane.cells.stores_failed.add(1);
            log_once(&self.logged.store, "an insertion", &error);
        }
    }

    /// Calls the cache, and lets shards see for how long.
    fn call<T>(&self, call: impl FnOnce(&HostedCache) -> Result<T, Error>) -> Result<T, Error> {
        self.lane.set_called(Some(clock::now()));
        let outcome = call(&self.cache);
        self.lane.set_called(None);
        outcome
    }
}

/// However the thread ends, no request waits for it afterwards.
impl Drop for LibraryThread {
    fn drop(&mut self) {
        self.lane.set_open(false);
    }
}

fn log_once(logged: &AtomicBool, what: &str, error: &Error) {
    if !logged.swap(true, Ordering::Relaxed) {
        log::warning(&format!("{what} in the response cache failed, others are only counted: {error}"));
    }
}
