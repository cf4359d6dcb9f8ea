//! The threads of the server: shards pinned to a core each, workers on the cores that are left.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use core_affinity::CoreId;

use crate::backend::threads;
use crate::error::Error;
use crate::server::{Seat, log};
use crate::shard::executor::{self, Parts};
use crate::shard::feed::Lane;
use crate::shard::models::Placement;
use crate::shard::{Addresses, World, worker};

/// The running threads.
pub struct Fleet {
    world: Arc<World>,
    shards: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

/// What a thread says when it has started, or why it could not.
type Started = mpsc::Sender<Result<(), Error>>;

/// The cores this process may use.
pub fn cores() -> Vec<CoreId> {
    core_affinity::get_core_ids().filter(|cores| !cores.is_empty()).unwrap_or_else(|| vec![CoreId { id: 0 }])
}

impl Fleet {
    /// Starts workers, then shards; returns when all of them serve.
    pub fn start(
        world: &Arc<World>,
        lanes: Vec<Vec<Option<Lane>>>,
        addresses: Addresses,
        seats: &[Seat],
    ) -> Result<Self, Error> {
        let cores = cores();
        let mut fleet = Self { world: Arc::clone(world), shards: Vec::new(), workers: Vec::new() };
        let (started, ready) = mpsc::channel();
        let left = cores.get(lanes.len()..).filter(|left| !left.is_empty()).unwrap_or(&cores);
        for (index, seat) in seats.iter().enumerate() {
            let threads = (left.len() / seats.len()).max(1);
            let first = index.wrapping_mul(threads) % left.len().max(1);
            let own: Vec<_> = left.iter().cycle().skip(first).take(threads).copied().collect();
            fleet.start_worker(seat, own, started.clone())?;
        }
        wait(&ready, seats.len())?;
        let count = lanes.len();
        for (index, lanes) in lanes.into_iter().enumerate() {
            let core = cores.get(index % cores.len().max(1)).map(|core| core.id);
            let (world, addresses) = (Arc::clone(world), addresses.of_shard(index));
            fleet.start_shard(Parts { index, core, world, lanes, addresses }, started.clone())?;
        }
        wait(&ready, count)?;
        Ok(fleet)
    }

    /// Waits until the shards have drained, then ends the workers.
    pub fn join(&mut self) {
        for shard in self.shards.drain(..) {
            if shard.join().is_err() {
                log::error("a shard ended with a panic");
            }
        }
        self.stop_workers();
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

    fn start_worker(&mut self, seat: &Seat, cores: Vec<CoreId>, started: Started) -> Result<(), Error> {
        let Some(served) = self.world.served.get(seat.model).map(Arc::clone) else { return Ok(()) };
        let Placement::Worker(feed) = &served.placement else { return Ok(()) };
        let (feed, seat) = (Arc::clone(feed), seat.index);
        let name = format!("w{seat}-{}", served.spec.name);
        let worker = spawn(name, move || {
            threads::enter(cores.len(), |threads| {
                if let Some(core) = cores.first().filter(|_| cores.len() == 1) {
                    core_affinity::set_for_current(*core);
                }
                match served.loaded.new_instance(threads) {
                    Ok(instance) => {
                        let _ = started.send(Ok(()));
                        worker::run(&served, &feed, seat, instance, threads);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            });
        })?;
        self.workers.push(worker);
        Ok(())
    }

    fn start_shard(&mut self, parts: Parts, started: Started) -> Result<(), Error> {
        let shard = spawn(format!("shard-{}", parts.index), move || {
            threads::enter(1, |threads| {
                executor::run(parts, threads, |outcome| {
                    let _ = started.send(outcome);
                });
            });
        })?;
        self.shards.push(shard);
        Ok(())
    }
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
