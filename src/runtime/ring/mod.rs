//! Our own executor for a shard's thread, on one io_uring (or epoll): tasks, timers and I/O operations, in turns. Each
//! turn runs the tasks that were ready at its beginning, then enters the kernel once, which submits every operation
//! that the tasks started and collects every completion. If no task is ready the thread sleeps in that call until an
//! operation completes, a timer expires, or another thread wakes a task. glommio's executor needs three rings and a
//! system call for each read and write; `docs/decisions/` has the figures.

mod buffers;
mod driver;
mod epoll;
mod operation;
mod stream;
pub(super) mod timers;
mod uring;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll};
use std::time::Duration;

use async_task::{Runnable, Task};
use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::runtime::clock;
use crate::time::Instant;

use crate::runtime::ring::driver::IoDriver;
use crate::runtime::ring::timers::{TimerKey, TimerQueue};

pub use crate::runtime::ring::driver::DriverKind;
pub use crate::runtime::ring::stream::{RingAcceptor, RingStream};

/// Largest reply buffer, in bytes, that is kept for the next reply.
const SPARE_SIZE_MAX: usize = 64 * 1024;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Ring>>> = const { RefCell::new(None) };
}

/// The executor of one thread. Stays on its shard.
pub struct Ring {
    driver: RefCell<IoDriver>,
    timers: RefCell<TimerQueue>,
    /// Tasks that this thread woke.
    ready: RefCell<VecDeque<Runnable>>,
    remote: Arc<RemoteQueue>,
    /// The eventfd of `remote`, by a second descriptor that operations can own. Duplicated when the ring is created: a
    /// shard that has run out of descriptors later could not hear other threads.
    event: Rc<OwnedFd>,
    /// Why reading the eventfd failed. Other threads cannot wake this one any more, so it ends.
    failure: Cell<Option<io::Error>>,
    /// How long it polls for work before it sleeps.
    spin: Duration,
}

/// The part of a ring that other threads use.
struct RemoteQueue {
    /// Tasks that other threads woke.
    woken: SegQueue<Runnable>,
    /// Whether the thread sleeps, or is about to.
    is_parked: AtomicBool,
    /// An eventfd; a write to it ends the sleep.
    event: OwnedFd,
}

impl Ring {
    /// A ring for this thread.
    ///
    /// # Errors
    /// Where the kernel's io_uring is too old or forbidden, or there are no descriptors left.
    pub fn new(kind: DriverKind, spin: Duration) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        let own = Rc::new(event.try_clone()?);
        let remote = RemoteQueue { woken: SegQueue::new(), is_parked: AtomicBool::new(false), event };
        Ok(Self {
            driver: RefCell::new(IoDriver::new(kind)?),
            timers: RefCell::default(),
            ready: RefCell::default(),
            remote: Arc::new(remote),
            event: own,
            failure: Cell::new(None),
            spin,
        })
    }

    /// The kind of its I/O driver.
    pub fn kind(&self) -> DriverKind {
        self.driver.borrow().kind()
    }

    /// Runs a future to its end, together with all tasks that are spawned meanwhile; these are dropped at the end.
    ///
    /// # Errors
    /// Where entering the kernel fails, or the eventfd cannot be read any more.
    pub fn run<T: 'static>(self, future: impl Future<Output = T> + 'static) -> io::Result<T> {
        let ring = Rc::new(self);
        CURRENT.set(Some(Rc::clone(&ring)));
        let _leaving = RingGuard;
        let done = Rc::new(Cell::new(None));
        let outcome = Rc::clone(&done);
        spawn(async move { outcome.set(Some(future.await)) }).detach();
        spawn(listen(Rc::clone(&ring))).detach();
        loop {
            ring.run_ready();
            if let Some(value) = done.take() {
                return Ok(value);
            }
            if let Some(error) = ring.failure.take() {
                return Err(error);
            }
            ring.enter()?;
        }
    }

    /// Runs each task that is ready now once. Tasks that become ready meanwhile run in the next turn, so that a task
    /// that wakes itself cannot keep the thread from its I/O.
    fn run_ready(&self) {
        let now = clock::begin_turn();
        loop {
            let due = self.timers.borrow_mut().poll_due(now);
            let Some(waker) = due else { break };
            waker.wake();
        }
        while let Some(task) = self.remote.woken.pop() {
            self.ready.borrow_mut().push_back(task);
        }
        let count = self.ready.borrow().len();
        for _ in 0..count {
            let task = self.ready.borrow_mut().pop_front();
            let Some(task) = task else { return };
            task.run();
        }
    }

    fn enter(&self) -> io::Result<()> {
        if self.has_ready() || self.spin_for_work()? {
            return self.driver.borrow_mut().turn(Some(Duration::ZERO));
        }
        // Dekker's handshake with `RemoteQueue::wake`: it pushes a task, then reads the flag; we set the flag, then
        // check for tasks. With a fence between the two steps on both sides, either we see its task or it sees us
        // parked.
        self.remote.is_parked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let wait = if self.has_ready() {
            Some(Duration::ZERO)
        } else {
            let timeout = self.timers.borrow().poll_timeout();
            timeout.map(|at| at.since(clock::now()))
        };
        let outcome = self.driver.borrow_mut().turn(wait);
        self.remote.is_parked.store(false, Ordering::SeqCst);
        outcome
    }

    /// Polls for work for as long as the flag says, and returns whether there is some.
    fn spin_for_work(&self) -> io::Result<bool> {
        if self.spin.is_zero() {
            return Ok(false);
        }
        let until = clock::now() + self.spin;
        loop {
            self.driver.borrow_mut().turn(Some(Duration::ZERO))?;
            let now = clock::now();
            if self.has_ready() || self.timers.borrow().poll_timeout().is_some_and(|at| at <= now) {
                return Ok(true);
            }
            if now >= until {
                return Ok(false);
            }
        }
    }

    /// Drops all tasks, to break a cycle: tasks have references to the ring, and the ring to tasks, in its queues or
    /// through the wakers of their operations and timers.
    fn drop_tasks(&self) {
        loop {
            let mut wakers = self.driver.borrow_mut().take_wakers();
            wakers.extend(self.timers.borrow_mut().take_wakers());
            let mut tasks = Vec::from(self.ready.take());
            // A task that loses its last waker is scheduled once more, to be dropped.
            tasks.extend(std::iter::from_fn(|| self.remote.woken.pop()));
            if wakers.is_empty() && tasks.is_empty() {
                return;
            }
        }
    }

    fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty() || !self.remote.woken.is_empty()
    }
}

impl RemoteQueue {
    /// Another thread woke a task.
    fn wake(&self, task: Runnable) {
        self.woken.push(task);
        // The other half of the handshake with `Ring::enter`.
        fence(Ordering::SeqCst);
        if self.is_parked.load(Ordering::SeqCst) && self.is_parked.swap(false, Ordering::SeqCst) {
            // Fails only if the counter is full, and then the thread is being woken already. The swap makes sure that
            // of several threads only one pays for the system call.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

impl Drop for RemoteQueue {
    /// The last reference may be dropped by another thread, which must not drop this thread's tasks: they are leaked.
    fn drop(&mut self) {
        while let Some(task) = self.woken.pop() {
            std::mem::forget(task);
        }
    }
}

/// Reads the eventfd, over and over, so that a write to it ends a sleep.
async fn listen(ring: Rc<Ring>) {
    loop {
        let key = ring.driver.borrow_mut().read_event(&ring.event);
        let outcome = poll_fn(|context| ring.driver.borrow_mut().poll(&key, context)).await;
        if let Err(error) = outcome.result
            && !matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
        {
            return ring.failure.set(Some(error));
        }
    }
}

/// Clears [`CURRENT`] when the ring ends.
struct RingGuard;

impl Drop for RingGuard {
    fn drop(&mut self) {
        let ring = CURRENT.take();
        clock::end_turns();
        // Not during a panic: a task that panics in its own drop would then abort the process.
        if let Some(ring) = ring.filter(|_| !std::thread::panicking()) {
            ring.drop_tasks();
        }
    }
}

/// The ring of this thread, if it has one.
pub fn current() -> Option<Rc<Ring>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Starts a task on this thread's ring.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    let ring = current().expect("tasks are spawned inside `Ring::run`");
    let remote = Arc::clone(&ring.remote);
    let (task, handle) = async_task::spawn_local(future, move |task| schedule(&remote, task));
    task.schedule();
    handle
}

fn schedule(remote: &Arc<RemoteQueue>, task: Runnable) {
    // `try_with` fails in a thread that is ending. The task is dropped then: the ring it belonged to has ended as well.
    let elsewhere = CURRENT.try_with(|current| match current.borrow().as_ref() {
        Some(ring) if Arc::ptr_eq(&ring.remote, remote) => {
            ring.ready.borrow_mut().push_back(task);
            None
        }
        _ => Some(task),
    });
    if let Ok(Some(task)) = elsewhere {
        remote.wake(task);
    }
}

/// Resolves at an instant.
pub struct SleepFuture {
    ring: Rc<Ring>,
    at: Instant,
    key: Option<TimerKey>,
}

impl SleepFuture {
    /// Sleeps until an instant, on this thread's ring.
    pub const fn until(ring: Rc<Ring>, at: Instant) -> Self {
        Self { ring, at, key: None }
    }
}

impl Future for SleepFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if clock::now() >= this.at {
            return Poll::Ready(());
        }
        let mut timers = this.ring.timers.borrow_mut();
        match this.key {
            Some(key) => timers.replace(key, context.waker()),
            None => this.key = Some(timers.insert(this.at, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for SleepFuture {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.ring.timers.borrow_mut().remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
