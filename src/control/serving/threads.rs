//! Starts and stops the server's threads: each shard pinned to one core, workers and their engines' threads pinned to
//! the cores of their placement. A panic is logged at once: in a worker it loses the instance, in a shard it ends the
//! server.

use std::cell::Cell;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::backend::{Instance, Threads, threads};
use crate::control::machine::cores;
use crate::control::machine::spawn::spawn;
use crate::control::serving::plan::WorkerPlacement;
use crate::error::Error;
use crate::log;
use crate::model::KnownInstance;
use crate::queue::model_queue::ModelQueue;
use crate::queue::parking::InstanceStage;
use crate::queue::served_model::{Placement, ServedModel};
use crate::queue::worker::{self, WorkerPlace, panic_text};
use crate::runtime::clock;
use crate::runtime::executor::pin;
use crate::shard::thread::{self, ShardParts};
use crate::time::Instant;

/// Workers whose cores a log line shows.
const WORKERS_SHOWN: usize = 16;
/// Instances that take as long are a line for a user, who waits for them.
const MAKING_SHOWN: Duration = Duration::from_millis(100);

/// Called with the reason when a thread hits a fault that the server cannot survive. Called from any thread.
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// Called on a thread at its end.
pub type EndedHook = Arc<dyn Fn() + Send + Sync>;

/// The calls by which worker threads report their end. Each has a clone.
#[derive(Clone)]
pub struct ThreadHooks {
    /// Nothing is ever sent: the channel closes when the last worker has dropped its clone.
    pub running: mpsc::Sender<Infallible>,
    /// Called by each worker at its end.
    pub ended: EndedHook,
}

/// The worker threads of one model version. Dropping it tells them to end.
pub struct WorkerGroup {
    started: StartedWorkers,
    /// Workers whose places others have taken: their instances left.
    replaced: Vec<WorkerThread>,
}

/// The workers that were started together, before they are known to run.
pub struct StartedWorkers {
    served: Arc<ServedModel>,
    workers: Vec<WorkerThread>,
    running: Arc<AtomicUsize>,
    began: Instant,
    ready: mpsc::Receiver<Result<Instant, Error>>,
}

/// One worker.
struct WorkerThread {
    placement: WorkerPlacement,
    end: WorkerEnd,
    thread: JoinHandle<()>,
}

/// True once a worker has ended and its instance is freed.
pub type WorkerEnd = Arc<AtomicBool>;

/// The workers of a version that serves, for a load thread that updates its instances.
#[derive(Clone)]
pub struct ServingWorkers {
    /// The model version.
    pub served: Arc<ServedModel>,
    /// The places of the workers that have not ended.
    pub placements: Vec<WorkerPlacement>,
    running: Arc<AtomicUsize>,
}

impl ServingWorkers {
    /// Returns the instances, but for those that have left.
    pub fn known(&self) -> Vec<KnownInstance> {
        let Placement::Worker(model_queue) = &self.served.placement else { return Vec::new() };
        let known = |WorkerPlacement { parking, seat, .. }: &WorkerPlacement| {
            let stage = model_queue.parking(*parking)?.stage();
            let is_leaving = stage == InstanceStage::Leaving;
            let is_known = !matches!(stage, InstanceStage::Ending | InstanceStage::Gone);
            is_known.then(|| KnownInstance { index: *parking, seat: seat.clone(), is_leaving })
        };
        self.placements.iter().filter_map(known).collect()
    }
}

/// Reports the end of a worker when it is dropped: also when the worker panics.
struct WorkerExit {
    running: Arc<AtomicUsize>,
    end: WorkerEnd,
    thread_hooks: ThreadHooks,
}

impl Drop for WorkerExit {
    fn drop(&mut self) {
        // Before the hook: the control thread reads the count when the hook's message arrives.
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.end.store(true, Ordering::SeqCst);
        (self.thread_hooks.ended)();
    }
}

/// Reports once that a thread has started, or the reason that it could not. Dropped without a
/// report, it reports a failure, so that the starting thread never waits forever.
struct StartSignal(Cell<Option<StartSender>>);

/// Reports the instant at which a thread had started, or the reason that it could not.
type StartSender = mpsc::Sender<Result<Instant, Error>>;

impl StartSignal {
    fn new(sender: &StartSender) -> Self {
        Self(Cell::new(Some(sender.clone())))
    }

    fn send(&self, outcome: Result<(), Error>) {
        if let Some(sender) = self.0.take() {
            // Fails only when the starter has given up because another thread failed.
            let _ = sender.send(outcome.map(|()| clock::now()));
        }
    }
}

impl Drop for StartSignal {
    fn drop(&mut self) {
        self.send(Err(Error::internal("a thread ended before it was ready")));
    }
}

impl WorkerGroup {
    /// Starts the workers of a model version and returns at once. Each makes its own instance, in parallel:
    /// [`WorkerGroup::wait`] waits for them.
    ///
    /// # Errors
    /// `Unavailable` when a thread cannot be started.
    pub fn start(
        served: &Arc<ServedModel>,
        placements: &[WorkerPlacement],
        thread_hooks: &ThreadHooks,
    ) -> Result<Self, Error> {
        let (sender, ready) = mpsc::channel();
        let (began, running) = (clock::now(), Arc::default());
        let started = StartedWorkers { served: Arc::clone(served), workers: Vec::new(), running, began, ready };
        let mut worker_group = Self { started, replaced: Vec::new() };
        worker_group.started.start(placements, thread_hooks, &sender)?;
        Ok(worker_group)
    }

    /// Waits until all instances are made, and returns how long that took: zero for a model without workers.
    ///
    /// # Errors
    /// The error of the first instance that cannot be made.
    pub fn wait(&self) -> Result<Duration, Error> {
        let StartedWorkers { workers, began, ready, .. } = &self.started;
        let took = wait(ready, workers.len())?.map_or(Duration::ZERO, |ended| ended.since(*began));
        self.started.log_made(took);
        Ok(took)
    }

    /// Returns the workers, for an update of the instances.
    pub fn serving(&self) -> ServingWorkers {
        let StartedWorkers { served, workers, running, .. } = &self.started;
        let placements = workers.iter().filter(|worker| !worker.has_ended()).map(|worker| worker.placement.clone());
        ServingWorkers { served: Arc::clone(served), placements: placements.collect(), running: Arc::clone(running) }
    }

    /// Takes over workers that were added.
    pub fn adopt(&mut self, added: StartedWorkers) {
        let is_taken = |worker: &WorkerThread| {
            added.workers.iter().any(|added| added.placement.parking == worker.placement.parking)
        };
        let (replaced, kept) = std::mem::take(&mut self.started.workers).into_iter().partition(is_taken);
        self.started.workers = kept;
        self.started.workers.extend(added.workers);
        self.replaced.extend::<Vec<_>>(replaced);
        // Their threads have ended, and need no wait.
        self.replaced.retain(|worker| !worker.has_ended());
    }

    /// Returns the ends of the workers in these parkings.
    pub fn ends(&self, parkings: &[usize]) -> impl Iterator<Item = (usize, WorkerEnd)> {
        let workers = self.started.workers.iter().filter(|worker| parkings.contains(&worker.placement.parking));
        workers.map(|worker| (worker.placement.parking, Arc::clone(&worker.end)))
    }

    /// Returns the cores that each worker computes on.
    pub fn cores(&self) -> impl Iterator<Item = Vec<usize>> {
        let workers = self.started.workers.iter().filter(|worker| !worker.has_ended());
        workers.map(|worker| worker.placement.computes_on().to_vec())
    }

    /// Stops the queue: the workers run what waits in it and end.
    pub fn stop(&self) {
        let served = &self.started.served;
        if let Placement::Worker(model_queue) = &served.placement {
            model_queue.stop();
            served.loaded.handle_unload();
        }
    }

    /// Returns true if all workers have ended.
    pub fn has_ended(&self) -> bool {
        self.started.running.load(Ordering::SeqCst) == 0
    }

    /// Waits for all threads to end.
    pub fn join(mut self) {
        let replaced = std::mem::take(&mut self.replaced);
        replaced.into_iter().chain(self.started.workers.drain(..)).for_each(WorkerThread::join);
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.stop();
    }
}

impl StartedWorkers {
    /// Adds workers to a version that serves: their instances joined its queue, and take no batches yet.
    ///
    /// # Errors
    /// The error of the first instance that cannot be made; then all of these workers have ended, and their places are
    /// free.
    pub fn add(
        serving: &ServingWorkers,
        placements: &[WorkerPlacement],
        thread_hooks: &ThreadHooks,
    ) -> Result<Self, Error> {
        let (sender, ready) = mpsc::channel();
        let (served, running, began) = (Arc::clone(&serving.served), Arc::clone(&serving.running), clock::now());
        let mut added = Self { served, workers: Vec::new(), running, began, ready };
        let started = added.start(placements, thread_hooks, &sender);
        // All of them report: one that is still being made must not take the place of a later one.
        let outcomes: Vec<_> = added.workers.iter().map(|_| wait(&added.ready, 1)).collect();
        let made = started.and_then(|()| outcomes.into_iter().collect::<Result<Vec<_>, _>>());
        match made {
            Ok(instants) => {
                let last = instants.into_iter().flatten().max();
                added.log_made(last.map_or(Duration::ZERO, |ended| ended.since(added.began)));
                Ok(added)
            }
            Err(error) => {
                if let Placement::Worker(model_queue) = &added.served.placement {
                    model_queue.give_up(&placements.iter().map(|placement| placement.parking).collect::<Vec<_>>());
                }
                added.workers.into_iter().for_each(WorkerThread::join);
                Err(error)
            }
        }
    }

    /// Ends the workers, and waits for that: another update may give their places away.
    pub fn give_up(self) {
        if let Placement::Worker(model_queue) = &self.served.placement {
            model_queue.give_up(&self.workers.iter().map(|worker| worker.placement.parking).collect::<Vec<_>>());
        }
        self.workers.into_iter().for_each(WorkerThread::join);
    }

    fn start(
        &mut self,
        placements: &[WorkerPlacement],
        thread_hooks: &ThreadHooks,
        sender: &StartSender,
    ) -> Result<(), Error> {
        let Placement::Worker(model_queue) = &self.served.placement else { return Ok(()) };
        for placement in placements {
            self.running.fetch_add(1, Ordering::SeqCst);
            let (running, end, thread_hooks) = (Arc::clone(&self.running), WorkerEnd::default(), thread_hooks.clone());
            let exit = WorkerExit { running, end: Arc::clone(&end), thread_hooks };
            let (served, model_queue) = (Arc::clone(&self.served), Arc::clone(model_queue));
            let thread = start_worker(served, model_queue, placement.clone(), StartSignal::new(sender), exit)?;
            self.workers.push(WorkerThread { placement: placement.clone(), end, thread });
        }
        Ok(())
    }

    fn log_made(&self, took: Duration) {
        let ServedModel { spec, version, .. } = &*self.served;
        let instances = match self.workers.len() {
            0 => return,
            1 => "the instance".to_owned(),
            count => format!("{count} instances"),
        };
        let cores = cores_text(self.workers.iter().map(|worker| &worker.placement));
        let shown = log::duration_text(took);
        let line = format!("made {instances} of '{}' version {version} in {shown}, on cores {cores}", spec.name);
        if took < MAKING_SHOWN { log::verbose(&line) } else { log::info(&line) }
    }
}

impl WorkerThread {
    fn has_ended(&self) -> bool {
        self.end.load(Ordering::SeqCst)
    }

    fn join(self) {
        if self.thread.join().is_err() {
            log::error("a worker ended with a panic");
        }
    }
}

fn start_worker(
    served: Arc<ServedModel>,
    model_queue: Arc<ModelQueue>,
    placement: WorkerPlacement,
    started: StartSignal,
    exit: WorkerExit,
) -> Result<JoinHandle<()>, Error> {
    let name = format!("w{}-{}", placement.parking, served.spec.name);
    spawn(name.clone(), move || {
        // Moved in, to be dropped last: after the instance and the engine's threads.
        let exit = exit;
        if placement.is_pinned
            && let Err(error) = pin(&placement.cores)
        {
            let cores = cores::text(&placement.cores);
            log::warning(&format!("worker '{name}' cannot be pinned to cores {cores}: {error}"));
        }
        // After the pinning: the engine's threads inherit the cores of the thread that starts them.
        threads::enter(placement.computes_on().len(), move |threads| {
            let parking = model_queue.parking(placement.parking);
            let instance = parking.map_or("", |parking| parking.name());
            let threads = &threads.on(placement.seat.gpu).of_instance(instance, placement.pinned_to());
            match new_instance(&served, &placement, threads) {
                Ok(instance) => {
                    started.send(Ok(()));
                    let place = WorkerPlace {
                        served: Arc::clone(&served),
                        model_queue,
                        parking: placement.parking,
                        clock: clock::now,
                        warn: |text| log::warning(text),
                    };
                    if let Err(panic) = worker::run(&place, instance, threads) {
                        log::error(&format!("worker '{name}' panicked, and its instance is lost: {panic}"));
                    }
                }
                Err(error) => started.send(Err(error)),
            }
        });
        drop(exit);
    })
}

/// Returns the cores of each worker as a text: an engine computes with as many threads unless the
/// model says otherwise.
fn cores_text<'a>(placements: impl Iterator<Item = &'a WorkerPlacement>) -> String {
    let mut texts: Vec<_> = placements.map(|placement| cores::text(&placement.cores)).collect();
    texts.dedup();
    let more = if texts.len() > WORKERS_SHOWN { "; …" } else { "" };
    texts.truncate(WORKERS_SHOWN);
    texts.join("; ") + more
}

/// Starts the shards and returns when all of them serve. `ended` is called at the end of each, `failure` when one fails
/// or panics.
///
/// # Errors
/// The error of the first shard that cannot start.
pub fn start_shards(
    parts: Vec<ShardParts>,
    ended: &EndedHook,
    failure: &FatalHook,
) -> Result<Vec<JoinHandle<()>>, Error> {
    let (started, ready) = mpsc::channel();
    let count = parts.len();
    let mut shards = Vec::with_capacity(count);
    for parts in parts {
        shards.push(start_shard(parts, StartSignal::new(&started), Arc::clone(ended), Arc::clone(failure))?);
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
            started.send(outcome.map(|name| log_io_path(index, name)));
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

/// Makes the instance of a worker. A worker with one core is pinned to all the cores that it shares while the instance
/// is made: if the model is configured with more threads, these inherit the shared cores and do not pile up on that
/// one.
fn new_instance(
    served: &ServedModel,
    placement: &WorkerPlacement,
    threads: &Threads,
) -> Result<Box<dyn Instance>, Error> {
    if placement.cores.len() > 1 || !placement.is_pinned {
        return served.loaded.new_instance(threads);
    }
    // A failure to pin was logged at the worker's start.
    let _ = pin(&placement.shared);
    let outcome = served.loaded.new_instance(threads);
    let _ = pin(&placement.cores);
    outcome
}

/// Waits for `count` threads, and returns the instant at which the last of them had started.
fn wait(ready: &mpsc::Receiver<Result<Instant, Error>>, count: usize) -> Result<Option<Instant>, Error> {
    let mut last = None;
    for _ in 0..count {
        match ready.recv() {
            Ok(outcome) => last = last.max(Some(outcome?)),
            Err(_) => return Err(Error::internal("a thread ended before it was ready")),
        }
    }
    Ok(last)
}

/// Logs the way in which a shard does its I/O. Epoll is worth an info line, since it may be the
/// fallback.
fn log_io_path(index: usize, name: &str) {
    log::verbose(&format!("shard {index} runs on {name}"));
    if index == 0 && name == "epoll" {
        log::info(
            "sockets are served by epoll: io_uring was not asked for, is forbidden, or is older than Linux 6.1's",
        );
    }
}
