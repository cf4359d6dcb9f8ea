//! The executor of a shard's tasks: our own ring, by io_uring or epoll, or glommio's executor. A
//! thread has one of them, and these functions find it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use glommio::{Latency, LocalExecutorBuilder, Placement, Shares};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::runtime::clock;
use crate::runtime::ring;
use crate::runtime::ring::spin::Spin;
use crate::runtime::ring::{DriverKind, Ring, RingTask, SleepFuture};
#[cfg(test)]
use crate::runtime::simulation;
use crate::time::Instant;

/// Entries of glommio's rings: one for each waiting socket; glommio queues more than that.
const RING_DEPTH: usize = 1024;

/// The way a shard does its network I/O (`--io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPath {
    /// Our own ring on io_uring if the kernel allows it, else on epoll.
    #[default]
    Auto,
    /// Our own ring on epoll, if io_uring is forbidden.
    Epoll,
    /// glommio's executor and sockets.
    Glommio,
    /// Our own ring on io_uring, or an error.
    Ring,
}

/// The executor of one thread.
pub enum Runtime {
    /// glommio's executor.
    Glommio(Box<glommio::LocalExecutor>),
    /// Our own ring.
    Ring(Box<Ring>),
}

/// A handle on a spawned task; dropping it cancels the task.
pub enum Task<T: 'static> {
    /// On glommio.
    Glommio(glommio::Task<T>),
    /// On our own ring.
    Ring(RingTask<T>),
}

impl Runtime {
    /// An executor for this thread, which looks for work for some time before it sleeps. glommio
    /// does not report its waits: there [`Spin::Auto`] does not spin.
    ///
    /// # Errors
    /// If the kernel lacks or forbids what the path needs.
    pub fn new(path: IoPath, spin: Spin) -> io::Result<Self> {
        let ring = match path {
            IoPath::Auto => Some(Ring::new(DriverKind::Uring, spin).or_else(|_| Ring::new(DriverKind::Epoll, spin))?),
            IoPath::Epoll => Some(Ring::new(DriverKind::Epoll, spin)?),
            IoPath::Ring => Some(Ring::new(DriverKind::Uring, spin)?),
            IoPath::Glommio => None,
        };
        if let Some(ring) = ring {
            return Ok(Self::Ring(Box::new(ring)));
        }
        let spin = if let Spin::Fixed(time) = spin { time } else { Duration::ZERO };
        // We do no disk I/O: no registered memory beyond glommio's minimum.
        let builder =
            LocalExecutorBuilder::new(Placement::Unbound).io_memory(0).ring_depth(RING_DEPTH).spin_before_park(spin);
        let executor = builder.make().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self::Glommio(Box::new(executor)))
    }

    /// Its name in the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Glommio(_) => "glommio",
            Self::Ring(ring) => match ring.kind() {
                DriverKind::Epoll => "epoll",
                DriverKind::Uring => "ring",
            },
        }
    }

    /// Runs a future to its end, together with the tasks that it spawns.
    ///
    /// # Errors
    /// If the ring fails; see [`Ring::run`].
    pub fn run<T: 'static>(self, future: impl Future<Output = T> + 'static) -> io::Result<T> {
        match self {
            Self::Glommio(executor) => Ok(executor.run(future)),
            Self::Ring(ring) => ring.run(future),
        }
    }
}

impl<T> Task<T> {
    /// Detaches the task: it runs on without a handle.
    pub fn detach(self) {
        match self {
            Self::Glommio(task) => drop(task.detach()),
            Self::Ring(task) => task.detach(),
        }
    }

    /// Cancels it at its next await point, and waits until it is dropped.
    pub async fn cancel(self) {
        match self {
            Self::Glommio(task) => drop(task.cancel().await),
            Self::Ring(task) => drop(task.cancel().await),
        }
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Self::Glommio(task) => Pin::new(task).poll(context),
            Self::Ring(task) => Pin::new(task).poll(context),
        }
    }
}

/// Starts a task on this thread.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    #[cfg(test)]
    if simulation::is_running() {
        return Task::Ring(simulation::spawn(future));
    }
    match ring::current() {
        Some(_) => Task::Ring(ring::spawn(future)),
        None => Task::Glommio(glommio::spawn_local(future)),
    }
}

/// Starts a task that must run within `latency` after it is woken, however busy the thread is. Our own ring needs
/// nothing special: each ready task runs once per turn.
pub fn spawn_urgent<T: 'static>(latency: Duration, future: impl Future<Output = T> + 'static) -> Task<T> {
    #[cfg(test)]
    if simulation::is_running() {
        return Task::Ring(simulation::spawn(future));
    }
    if ring::current().is_some() {
        return Task::Ring(ring::spawn(future));
    }
    let queue = glommio::executor().create_task_queue(Shares::default(), Latency::Matters(latency), "urgent");
    Task::Glommio(glommio::spawn_local_into(future, queue).expect("the queue was just made"))
}

/// Runs something that wakes many tasks of this thread at once, none of them urgent: on our own
/// ring they have low priority.
pub fn without_hurry(wake: impl FnOnce()) {
    match ring::current() {
        Some(ring) => ring.without_hurry(wake),
        None => wake(),
    }
}

/// Pins this thread, and those that it starts, to some cores.
///
/// # Errors
/// If none of the cores is available.
pub fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the time that this thread has slept or looked for work in vain; `None` on glommio, which
/// does not report it.
pub fn idle_time() -> Option<Duration> {
    ring::current().map(|ring| ring.idle_time())
}

/// Waits until an instant.
pub async fn sleep_until(at: Instant) {
    #[cfg(test)]
    if simulation::is_running() {
        return simulation::sleep_until(at).await;
    }
    match ring::current() {
        Some(ring) => SleepFuture::until(ring, at).await,
        None => glommio::timer::sleep(at.since(clock::now())).await,
    }
}

/// Waits for a duration.
pub async fn sleep(duration: Duration) {
    sleep_until(clock::now() + duration).await;
}
