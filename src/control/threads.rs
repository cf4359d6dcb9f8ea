//! The threads of the server: shards pinned to a core each, workers and the threads that their
//! engines compute on kept to the cores of their place. A panic of a thread is told at once: a
//! worker's costs its instance, a shard's ends the server.

use std::cell::Cell;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::backend::{Instance, Threads, threads};
use crate::control::cores;
use crate::control::plan::WorkerPlacement;
use crate::error::Error;
use crate::log;
use crate::queue::model_queue::ModelQueue;
use crate::queue::worker;
use crate::queue::worker::panic_text;
use crate::runtime::executor::pin;
use crate::shard::model_table::{Placement, ServedModel};
use crate::shard::thread;
use crate::shard::thread::ShardParts;

/// What is done, and with which words, when the server cannot go on. Called from any thread.
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Called when a thread has ended, on that thread.
pub type EndedHook = Arc<dyn Fn() + Send + Sync>;

/// What every worker thread is given to say that it has ended.
#[derive(Clone)]
pub struct ThreadHooks {
    /// Held by each until it ends; nobody sends.
    pub running: mpsc::Sender<Infallible>,
    /// Called by each when it ends.
    pub ended: EndedHook,
}

/// The worker threads of one model version. Dropped, they are told to end.
pub struct WorkerGroup {
    model_queue: Option<Arc<ModelQueue>>,
    workers: Vec<JoinHandle<()>>,
    left: Arc<AtomicUsize>,
    ready: mpsc::Receiver<Result<(), Error>>,
}

/// What a worker leaves behind at its end, however it comes.
struct WorkerExit {
    left: Arc<AtomicUsize>,
    thread_hooks: ThreadHooks,
}

impl Drop for WorkerExit {
    fn drop(&mut self) {
        self.left.fetch_sub(1, Ordering::SeqCst);
        (self.thread_hooks.ended)();
    }
}

/// What a thread says when it has started, or why it could not: once, and by itself where it ends
/// before.
struct StartSignal(Cell<Option<mpsc::Sender<Result<(), Error>>>>);

impl StartSignal {
    fn by(sender: &mpsc::Sender<Result<(), Error>>) -> Self {
        Self(Cell::new(Some(sender.clone())))
    }

    fn tell(&self, outcome: Result<(), Error>) {
        if let Some(sender) = self.0.take() {
            // Nobody listens where another thread has failed.
            let _ = sender.send(outcome);
        }
    }
}

impl Drop for StartSignal {
    fn drop(&mut self) {
        self.tell(Err(Error::internal("a thread ended before it served")));
    }
}

impl WorkerGroup {
    /// Starts the workers of a model version; they make their instances while the caller goes on.
    pub fn begin(
        served: &Arc<ServedModel>,
        places: &[WorkerPlacement],
        thread_hooks: &ThreadHooks,
    ) -> Result<Self, Error> {
        let (started, ready) = mpsc::channel();
        let mut worker_group = Self { model_queue: None, workers: Vec::new(), left: Arc::default(), ready };
        let Placement::Worker(model_queue) = &served.placement else { return Ok(worker_group) };
        worker_group.model_queue = Some(Arc::clone(model_queue));
        for place in places {
            worker_group.left.fetch_add(1, Ordering::SeqCst);
            let leaving = WorkerExit { left: Arc::clone(&worker_group.left), thread_hooks: thread_hooks.clone() };
            let started = StartSignal::by(&started);
            worker_group.workers.push(start_worker(
                Arc::clone(served),
                Arc::clone(model_queue),
                place.clone(),
                (started, leaving),
            )?);
        }
        Ok(worker_group)
    }

    /// Waits until all its instances are made; fails where one cannot be.
    pub fn wait(&self) -> Result<(), Error> {
        wait(&self.ready, self.workers.len())
    }

    /// Tells the workers to end: each finishes its batch, and what waits.
    pub fn stop(&self) {
        if let Some(model_queue) = &self.model_queue {
            model_queue.stop();
        }
    }

    /// Whether all have ended.
    pub fn has_ended(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    /// Waits for the ends of the threads.
    pub fn join(mut self) {
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                log::error("a worker ended with a panic");
            }
        }
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start_worker(
    served: Arc<ServedModel>,
    model_queue: Arc<ModelQueue>,
    place: WorkerPlacement,
    (started, leaving): (StartSignal, WorkerExit),
) -> Result<JoinHandle<()>, Error> {
    let name = format!("w{}-{}", place.parking, served.spec.name);
    spawn(name.clone(), move || {
        // Dropped last of all.
        let leaving = leaving;
        if let Err(error) = pin(&place.cores) {
            let cores = cores::text(&place.cores);
            log::warning(&format!("worker '{name}' cannot be kept on cores {cores}: {error}"));
        }
        // The engine's threads take over where this one is kept.
        threads::enter(place.cores.len(), move |threads| {
            let threads = &threads.on(place.gpu);
            match make_instance(&served, &place, threads) {
                Ok(instance) => {
                    started.tell(Ok(()));
                    if let Err(panic) =
                        worker::run(&served, &model_queue, place.parking, instance, threads, log::warning)
                    {
                        log::error(&format!("worker '{name}' panicked, and its instance is lost: {panic}"));
                    }
                }
                Err(error) => started.tell(Err(error)),
            }
        });
        drop(leaving);
    })
}

/// Starts the shards and returns when all of them serve. `ended` is called as each ends, `failure`
/// where one does so before its time.
pub fn start_shards(
    parts: Vec<ShardParts>,
    ended: &EndedHook,
    failure: &FatalHook,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let (started, ready) = mpsc::channel();
    let count = parts.len();
    let mut shards = Vec::with_capacity(count);
    for parts in parts {
        shards.push(start_shard(parts, StartSignal::by(&started), Arc::clone(ended), Arc::clone(failure))?);
    }
    wait(&ready, count)?;
    Ok(shards)
}

fn start_shard(
    parts: ShardParts,
    started: StartSignal,
    ended: EndedHook,
    failure: FatalHook,
) -> Result<JoinHandle<()>, Error> {
    let (name, index) = (format!("shard-{}", parts.index), parts.index);
    spawn(name.clone(), move || {
        let tell = move |outcome: Result<&'static str, Error>| {
            started.tell(outcome.map(|name| tell_sockets(index, name)));
        };
        let run = move || threads::enter(1, move |threads| thread::run(parts, threads, tell));
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failure(&format!("{name} failed, the server ends: {error}")),
            Err(panic) => failure(&format!("{name} panicked, the server ends: {}", panic_text(&*panic))),
        }
        ended();
    })
}

/// Makes the instance of a worker. Threads that it was configured to have besides a worker's only
/// one share the cores of all workers like it.
fn make_instance(served: &ServedModel, place: &WorkerPlacement, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
    if place.cores.len() > 1 {
        return served.loaded.new_instance(threads);
    }
    // What cannot be done was told before.
    let _ = pin(&place.shared);
    let outcome = served.loaded.new_instance(threads);
    let _ = pin(&place.cores);
    outcome
}

/// Starts a thread.
pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let thread = std::thread::Builder::new().name(name).spawn(body);
    thread.map_err(|error| Error::unavailable(format!("cannot start a thread: {error}")))
}

fn wait(ready: &mpsc::Receiver<Result<(), Error>>, count: usize) -> Result<(), Error> {
    for _ in 0..count {
        match ready.recv() {
            Ok(outcome) => outcome?,
            Err(_) => return Err(Error::internal("a thread ended before it served")),
        }
    }
    Ok(())
}

/// Says by what a shard moves its bytes; aloud where it may be for want of io_uring.
fn tell_sockets(index: usize, name: &str) {
    log::verbose(&format!("shard {index} runs on {name}"));
    if index == 0 && name == "epoll" {
        log::info(
            "sockets are served by epoll: io_uring was not asked for, is forbidden, or is older than Linux 6.1's",
        );
    }
}
