//! The threads of the server: shards pinned to a core each, workers on the cores that are left.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use core_affinity::CoreId;

use crate::backend::threads;
use crate::error::Error;
use crate::limits::WORKERS_END_TIMEOUT;
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
        let (running, ended) = mpsc::channel();
        let mut fleet = Self { world: Arc::clone(world), shards: Vec::new(), workers: Vec::new(), ended };
        let (started, ready) = mpsc::channel();
        let left = cores.get(lanes.len()..).filter(|left| !left.is_empty()).unwrap_or(&cores);
        for (index, seat) in seats.iter().enumerate() {
            let (first, threads) = share(index, seats.len(), left.len());
            let own: Vec<_> = left.iter().cycle().skip(first).take(threads).copied().collect();
            fleet.start_worker(seat, own, Started::by(&started), running.clone())?;
        }
        drop(running);
        wait(&ready, seats.len())?;
        let count = lanes.len();
        for (index, lanes) in lanes.into_iter().enumerate() {
            let core = cores.get(index % cores.len().max(1)).map(|core| core.id);
            let (world, addresses) = (Arc::clone(world), addresses.of_shard(index));
            fleet.start_shard(Parts { index, core, world, lanes, addresses }, Started::by(&started))?;
        }
        wait(&ready, count)?;
        Ok(fleet)
    }

    /// Waits until the shards have drained, then ends the workers. One that computes on is left
    /// behind: its answers have no reader.
    pub fn join(&mut self) {
        for shard in self.shards.drain(..) {
            if shard.join().is_err() {
                log::error("a shard ended with a panic");
            }
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
        seat: &Seat,
        cores: Vec<CoreId>,
        started: Started,
        running: mpsc::Sender<Infallible>,
    ) -> Result<(), Error> {
        let Some(served) = self.world.served.get(seat.model).map(Arc::clone) else { return Ok(()) };
        let Placement::Worker(feed) = &served.placement else { return Ok(()) };
        let (feed, seat) = (Arc::clone(feed), seat.index);
        let name = format!("w{seat}-{}", served.spec.name);
        let worker = spawn(name, move || {
            // Dropped with the thread.
            let _running = running;
            threads::enter(cores.len(), move |threads| {
                let outcome = served.loaded.new_instance(threads);
                // Afterwards, so that threads which the instance was configured to have besides
                // this one are not bound to its core.
                if let Some(core) = cores.first().filter(|_| cores.len() == 1) {
                    core_affinity::set_for_current(*core);
                }
                match outcome {
                    Ok(instance) => {
                        started.tell(Ok(()));
                        worker::run(&served, &feed, seat, instance, threads);
                    }
                    Err(error) => {
                        started.tell(Err(error));
                    }
                }
            });
        })?;
        self.workers.push(worker);
        Ok(())
    }

    fn start_shard(&mut self, parts: Parts, started: Started) -> Result<(), Error> {
        let shard = spawn(format!("shard-{}", parts.index), move || {
            threads::enter(1, move |threads| {
                let index = parts.index;
                executor::run(parts, threads, move |outcome| {
                    started.tell(outcome.map(|name| log::verbose(&format!("shard {index} runs on {name}"))));
                });
            });
        })?;
        self.shards.push(shard);
        Ok(())
    }
}

/// The first core and the count of cores of one of the workers: all cores are shared out, and no
/// core twice while there are enough.
fn share(index: usize, workers: usize, cores: usize) -> (usize, usize) {
    let (each, more) = (cores / workers.max(1), cores % workers.max(1));
    if each == 0 {
        return (index % cores.max(1), 1);
    }
    (index * each + index.min(more), each + usize::from(index < more))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_has_one_worker_where_there_are_enough() {
        let shares = |workers: usize, cores: usize| -> Vec<_> {
            (0..workers).map(|index| share(index, workers, cores)).collect()
        };
        assert_eq!(shares(1, 1), [(0, 1)]);
        assert_eq!(shares(1, 3), [(0, 3)]);
        assert_eq!(shares(2, 3), [(0, 2), (2, 1)]);
        assert_eq!(shares(3, 8), [(0, 3), (3, 3), (6, 2)]);
        assert_eq!(shares(3, 2), [(0, 1), (1, 1), (0, 1)]);
    }
}
