//! What runs a shard's tasks: our own ring, by io_uring or by epoll, or glommio's executor. The shard's thread has one of
//! them; these functions find it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use glommio::{Latency, LocalExecutorBuilder, Placement, Shares};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::runtime::clock;
use crate::runtime::ring;
use crate::runtime::ring::{DriverKind, Ring, SleepFuture};
use crate::time::Instant;

/// Entries of a shard's rings: one for each socket that waits; more are queued by glommio.
const RING_DEPTH: usize = 1024;

/// The way of a shard's sockets (`--io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPath {
    /// Our own ring where the kernel has what it needs, else epoll.
    #[default]
    Auto,
    /// Readiness and system calls, for where io_uring is forbidden.
    Epoll,
    /// glommio's sockets.
    Glommio,
    /// Our own ring, or nothing.
    Ring,
}

/// What runs the tasks of one thread.
pub enum Runtime {
    /// glommio's executor.
    Glommio(Box<glommio::LocalExecutor>),
    /// Our own ring.
    Ring(Box<Ring>),
}

/// A task, until it is done.
pub enum Task<T: 'static> {
    /// Of glommio.
    Glommio(glommio::Task<T>),
    /// Of our own ring.
    Ring(async_task::Task<T>),
}

impl Runtime {
    /// Makes one for this thread, pinned to a core.
    pub fn new(path: IoPath, core: Option<usize>, spin: Duration) -> io::Result<Self> {
        let ring = match path {
            IoPath::Auto => Some(Ring::new(DriverKind::Uring, spin).or_else(|_| Ring::new(DriverKind::Epoll, spin))?),
            IoPath::Epoll => Some(Ring::new(DriverKind::Epoll, spin)?),
            IoPath::Ring => Some(Ring::new(DriverKind::Uring, spin)?),
            IoPath::Glommio => None,
        };
        if let Some(ring) = ring {
            if let Some(id) = core {
                pin(&[id])?;
            }
            return Ok(Self::Ring(Box::new(ring)));
        }
        let pinning = core.map_or(Placement::Unbound, Placement::Fixed);
        // No disk I/O of ours: the smallest registered memory there is.
        let builder = LocalExecutorBuilder::new(pinning).io_memory(0).ring_depth(RING_DEPTH).spin_before_park(spin);
        let executor = builder.make().map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self::Glommio(Box::new(executor)))
    }

    /// The name, as the log has it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Glommio(_) => "glommio",
            Self::Ring(ring) => match ring.kind() {
                DriverKind::Epoll => "epoll",
                DriverKind::Uring => "ring",
            },
        }
    }

    /// Runs a future to its end, and the tasks that it spawns.
    pub fn run<T: 'static>(self, future: impl Future<Output = T> + 'static) -> io::Result<T> {
        match self {
            Self::Glommio(executor) => Ok(executor.run(future)),
            Self::Ring(ring) => ring.run(future),
        }
    }
}

impl<T> Task<T> {
    /// Lets it run without anybody waiting for it.
    pub fn detach(self) {
        match self {
            Self::Glommio(task) => drop(task.detach()),
            Self::Ring(task) => task.detach(),
        }
    }

    /// Ends it where it waits.
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
    match ring::current() {
        Some(_) => Task::Ring(ring::spawn(future)),
        None => Task::Glommio(glommio::spawn_local(future)),
    }
}

/// Starts a task that must run so soon after it was woken, however busy the thread is. On our own
/// ring every task runs once in each turn.
pub fn spawn_urgent<T: 'static>(latency: Duration, future: impl Future<Output = T> + 'static) -> Task<T> {
    if ring::current().is_some() {
        return Task::Ring(ring::spawn(future));
    }
    let queue = glommio::executor().create_task_queue(Shares::default(), Latency::Matters(latency), "urgent");
    Task::Glommio(glommio::spawn_local_into(future, queue).expect("the queue was just made"))
}

/// Keeps this thread, and those that it starts, on some cores.
pub fn pin(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}

/// Waits until an instant.
pub async fn sleep_until(at: Instant) {
    match ring::current() {
        Some(ring) => SleepFuture::until(ring, at).await,
        None => glommio::timer::sleep(at.since(clock::now())).await,
    }
}

/// Waits for so long.
pub async fn sleep(duration: Duration) {
    sleep_until(clock::now() + duration).await;
}
