//! The threads of the server: shards pinned to a core each, workers and the threads that their
//! engines compute on kept to the cores of their place. A panic of a thread is told at once: a
//! worker's costs its instance, a shard's ends the server.

use std::cell::Cell;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::backend::{Instance, Threads, threads};
use crate::error::Error;
use crate::limits::WORKERS_END_TIMEOUT;
use crate::server::plan::{Plan, WorkerPlace};
use crate::server::{cores, log};
use crate::shard::executor::{self, Parts};
use crate::shard::models::{Placement, Served};
use crate::shard::runtime::pin;
use crate::shard::worker::panic_text;
use crate::shard::{Addresses, World, worker};

/// What is done, and with which words, when the server cannot go on. Called from any thread.
pub type Failure = Arc<dyn Fn(&str) + Send + Sync>;

/// The running threads.
pub struct Fleet {
    world: Arc<World>,
    shards: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    /// Closed when the last worker has ended.
    ended: mpsc::Receiver<Infallible>,
}

/// What a thread says when it has started, or why it could not: once, and by itself where it ends
/// before.
struct Started(Cell<Option<mpsc::Sender<Result<(), Error>>>>);

impl Started {
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

impl Drop for Started {
    fn drop(&mut self) {
        self.tell(Err(Error::internal("a thread ended before it served")));
    }
}

impl Fleet {
    /// Starts workers, then shards; returns when all of them serve.
    pub fn start(plan: Plan, addresses: Addresses, failure: Failure) -> Result<Self, Error> {
        let Plan { world, lanes, workers, cores } = plan;
        let (running, ended) = mpsc::channel();
        let mut fleet = Self { world: Arc::clone(&world), shards: Vec::new(), workers: Vec::new(), ended };
        let (started, ready) = mpsc::channel();
        for place in &workers {
            fleet.start_worker(place, Started::by(&started), running.clone())?;
        }
        drop(running);
        wait(&ready, workers.len())?;
        let count = lanes.len();
        for (index, lanes) in lanes.into_iter().enumerate() {
            let core = cores.shards.get(index).copied();
            let (world, addresses) = (Arc::clone(&world), addresses.of_shard(index));
            let parts = Parts { index, core, world, lanes, addresses };
            fleet.start_shard(parts, Started::by(&started), Arc::clone(&failure))?;
        }
        wait(&ready, count)?;
        Ok(fleet)
    }

    /// Waits until the shards have drained, then ends the workers. One that computes on is left
    /// behind: its answers have no reader.
    pub fn join(&mut self) {
        for shard in self.shards.drain(..) {
            // What became of it was told when it happened.
            let _ = shard.join();
        }
        self.stop_workers();
        if self.ended.recv_timeout(WORKERS_END_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
            return log::warning("a model still computes; its worker is left behind");
        }
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                log::error("a worker ended with a panic");
            }
        }
    }

    fn stop_workers(&self) {
        for served in &self.world.served {
            if let Placement::Worker(feed) = &served.placement {
                feed.stop();
            }
        }
    }

    fn start_worker(
        &mut self,
        place: &WorkerPlace,
        started: Started,
        running: mpsc::Sender<Infallible>,
    ) -> Result<(), Error> {
        let Some(served) = self.world.served.get(place.model).map(Arc::clone) else { return Ok(()) };
        let Placement::Worker(feed) = &served.placement else { return Ok(()) };
        let (feed, place, warn) = (Arc::clone(feed), place.clone(), self.world.warn);
        let name = format!("w{}-{}", place.seat, served.spec.name);
        let worker = spawn(name.clone(), move || {
            // Dropped with the thread.
            let _running = running;
            if let Err(error) = pin(&place.cores) {
                let cores = cores::text(&place.cores);
                log::warning(&format!("worker '{name}' cannot be kept on cores {cores}: {error}"));
            }
            // The engine's threads take over where this one is kept.
            threads::enter(place.cores.len(), move |threads| match make_instance(&served, &place, threads) {
                Ok(instance) => {
                    started.tell(Ok(()));
                    if let Err(panic) = worker::run(&served, &feed, place.seat, instance, threads, warn) {
                        log::error(&format!("worker '{name}' panicked, and its instance is lost: {panic}"));
                    }
                }
                Err(error) => started.tell(Err(error)),
            });
        })?;
        self.workers.push(worker);
        Ok(())
    }

    fn start_shard(&mut self, parts: Parts, started: Started, failure: Failure) -> Result<(), Error> {
        let (name, index) = (format!("shard-{}", parts.index), parts.index);
        let shard = spawn(name.clone(), move || {
            let tell = move |outcome: Result<&'static str, Error>| {
                started.tell(outcome.map(|name| tell_sockets(index, name)));
            };
            let run = move || threads::enter(1, move |threads| executor::run(parts, threads, tell));
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failure(&format!("{name} failed, the server ends: {error}")),
                Err(panic) => failure(&format!("{name} panicked, the server ends: {}", panic_text(&*panic))),
            }
        })?;
        self.shards.push(shard);
        Ok(())
    }
}

/// Makes the instance of a worker. Threads that it was configured to have besides a worker's only
/// one share the cores of all workers like it.
fn make_instance(served: &Served, place: &WorkerPlace, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
    if place.cores.len() > 1 {
        return served.loaded.new_instance(threads);
    }
    // What cannot be done was told before.
    let _ = pin(&place.shared);
    let outcome = served.loaded.new_instance(threads);
    let _ = pin(&place.cores);
    outcome
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
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
