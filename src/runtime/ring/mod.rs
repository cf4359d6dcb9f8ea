//! Our own executor for a shard's thread, on one io_uring (or epoll): tasks, timers and I/O
//! operations, in turns. Each turn runs the tasks that were ready at its beginning, then enters the
//! kernel once, which submits every operation that the tasks started and collects every completion.
//! If no task is ready the thread sleeps in that call until an operation completes, a timer
//! expires, or another thread wakes a task. Tasks that would hold up the others yield
//! (`turns`). glommio's executor needs three rings and a system call for each read and write;
//! `docs/decisions/` has the figures.

mod buffers;
mod driver;
mod epoll;
mod operation;
pub(super) mod pieces;
pub mod spin;
mod stream;
pub(super) mod timers;
mod turns;
mod uring;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_task::Builder;
use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::runtime::clock;
use crate::time::Instant;

use crate::runtime::ring::driver::IoDriver;
use crate::runtime::ring::pieces::PieceSize;
use crate::runtime::ring::spin::{Spin, SpinPolicy};
use crate::runtime::ring::stream::PIECES_TIME_MAX;
use crate::runtime::ring::timers::{TimerKey, TimerQueue};
use crate::runtime::ring::turns::{ReadyTasks, TaskId, TurnPolicy};

pub use crate::runtime::ring::driver::DriverKind;
pub use crate::runtime::ring::stream::{RingAcceptor, RingStream};

/// Largest reply buffer, in bytes, that is kept for the next reply.
const SPARE_SIZE_MAX: usize = 64 * 1024;
/// The age of a turn from which on a connection that has much to move, and is new to that, yields.
const LATE_TURN_NEW: Duration = Duration::from_micros(500);
/// The same for a connection that is not new to it, and takes less time than bulk tasks. If it
/// were shorter, 64 connections with bodies of 150 KB would yield with their partial bodies in
/// memory. Received and answered one after the other, each finds the caches warm and takes a
/// third less CPU.
const LATE_TURN: Duration = Duration::from_millis(2);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Ring>>> = const { RefCell::new(None) };
}

/// A handle on a task; dropping it cancels the task.
pub type RingTask<T> = async_task::Task<T, TaskId>;
/// A task that is ready to run.
pub(super) type Runnable = async_task::Runnable<TaskId>;

/// The executor of one thread. Stays on its shard.
pub struct Ring {
    driver: RefCell<IoDriver>,
    timers: RefCell<TimerQueue>,
    /// Tasks that this thread woke.
    ready: RefCell<ReadyTasks<Runnable>>,
    turns: RefCell<TurnPolicy>,
    /// Turns that have begun.
    turn_number: Cell<u64>,
    /// The instant since which low-priority tasks wait, if any do.
    low_priority_since: Cell<Option<Instant>>,
    /// Tasks ever spawned.
    spawned: Cell<TaskId>,
    /// True if tasks woken now count as closing.
    is_closing: Cell<bool>,
    /// The running task and its state.
    running: Cell<RunningTask>,
    /// The bytes that move at once.
    pieces: Cell<PieceSize>,
    remote: Arc<RemoteQueue>,
    /// The eventfd of `remote`, by a second descriptor that operations can own. Duplicated when the ring is created: a
    /// shard that has run out of descriptors later could not hear other threads.
    event: Rc<OwnedFd>,
    /// The error of reading the eventfd. Other threads can no longer wake this one, so it ends.
    failure: Cell<Option<io::Error>>,
    /// The time for which it looks for work before it sleeps.
    spin: Cell<SpinPolicy>,
    /// Tasks that the last turn ran.
    tasks: Cell<usize>,
    /// The instant since which it waits for work; true if it has slept without looking.
    waiting: Cell<Option<(Instant, bool)>>,
    /// The total time that it has waited.
    idle: Cell<Duration>,
}

/// A task while it runs.
#[derive(Clone, Copy, Default)]
struct RunningTask {
    id: TaskId,
    /// True if it runs as a low-priority task.
    is_low_priority: bool,
    /// True if it yields when it is woken next.
    yields: bool,
}

/// The part of a ring that other threads use.
struct RemoteQueue {
    /// Tasks that other threads woke.
    woken: SegQueue<Runnable>,
    /// True if the thread sleeps or is about to.
    is_parked: AtomicBool,
    /// An eventfd; a write to it ends the sleep.
    event: OwnedFd,
}

impl Ring {
    /// A ring for this thread.
    ///
    /// # Errors
    /// If the kernel's io_uring is too old or forbidden, or there are no descriptors left.
    pub fn new(kind: DriverKind, spin: Spin) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        let own = Rc::new(event.try_clone()?);
        let remote = RemoteQueue { woken: SegQueue::new(), is_parked: AtomicBool::new(false), event };
        Ok(Self {
            driver: RefCell::new(IoDriver::new(kind)?),
            timers: RefCell::default(),
            ready: RefCell::default(),
            turns: RefCell::default(),
            turn_number: Cell::new(0),
            low_priority_since: Cell::new(None),
            spawned: Cell::new(0),
            is_closing: Cell::new(false),
            running: Cell::default(),
            pieces: Cell::default(),
            remote: Arc::new(remote),
            event: own,
            failure: Cell::new(None),
            spin: Cell::new(SpinPolicy::new(spin)),
            tasks: Cell::new(0),
            waiting: Cell::new(None),
            idle: Cell::new(Duration::ZERO),
        })
    }

    /// Returns the time that it has waited for work, asleep or not.
    pub fn idle_time(&self) -> Duration {
        self.idle.get()
    }

    /// The kind of its I/O driver.
    pub fn kind(&self) -> DriverKind {
        self.driver.borrow().kind()
    }

    /// Runs a future to its end, together with all tasks that are spawned meanwhile; these are dropped at the end.
    ///
    /// # Errors
    /// If entering the kernel fails, or the eventfd can no longer be read.
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

    /// Runs each ready task once, but only some of the low-priority ones. Tasks that become ready
    /// meanwhile run in the next turn, so that a task that wakes itself cannot keep the thread from
    /// its I/O.
    fn run_ready(&self) {
        let now = clock::begin_turn();
        self.turn_number.set(self.turn_number.get().wrapping_add(1));
        if let Some((since, has_slept)) = self.waiting.take() {
            self.end_wait(now.since(since), has_slept);
        }
        loop {
            let due = self.timers.borrow_mut().poll_due(now);
            let Some(waker) = due else { break };
            waker.wake();
        }
        while let Some(task) = self.remote.woken.pop() {
            self.ready.borrow_mut().interactive.push_back(task);
        }
        let count = self.ready.borrow().interactive.len();
        self.tasks.set(count);
        if self.turns.borrow().is_measuring() {
            self.run_measured(count, now);
        } else {
            for _ in 0..count {
                let task = self.ready.borrow_mut().interactive.pop_front();
                let Some(task) = task else { break };
                self.start(task, false);
            }
        }
        if count > 1 || self.ready.borrow().low_priority_count() > 0 {
            self.run_low_priority(now);
        }
    }

    /// Runs `count` interactive tasks; the bulk ones among them yield.
    fn run_measured(&self, count: usize, mut at: Instant) {
        for _ in 0..count {
            let task = self.ready.borrow_mut().interactive.pop_front();
            let Some(task) = task else { return };
            let cost = self.turns.borrow().cost(*task.metadata());
            match cost {
                Some(cost) => self.ready.borrow_mut().bulk.push_back((cost, task)),
                None => at = self.run_one(task, false, at),
            }
        }
    }

    fn start(&self, task: Runnable, is_low_priority: bool) {
        self.running.set(RunningTask { id: *task.metadata(), is_low_priority, yields: false });
        task.run();
    }

    /// Bytes that a connection moves at once, and makes room for.
    fn piece_size(&self) -> usize {
        self.pieces.get().get()
    }

    /// A connection has moved `count` bytes of something large since an instant, or only made room
    /// for them.
    fn handle_piece(&self, count: usize, since: Instant) {
        let mut pieces = self.pieces.get();
        pieces.handle_piece(count, clock::now().since(since));
        self.pieces.set(pieces);
    }

    /// Runs a task that may be bulk, from an instant on; returns when it has run.
    fn run_one(&self, task: Runnable, is_low_priority: bool, at: Instant) -> Instant {
        let id = *task.metadata();
        self.start(task, is_low_priority);
        let now = clock::now();
        self.turns.borrow_mut().handle_run(id, now.since(at));
        now
    }

    /// Runs low-priority tasks in a turn that began at an instant, and ends the turn.
    fn run_low_priority(&self, began: Instant) {
        // Tasks that wake themselves are in the next turn again.
        let count = self.ready.borrow().low_priority_count();
        let (start, has_pending) = (clock::now(), count > 0 && self.driver.borrow_mut().has_pending());
        let since = self.low_priority_since.get().unwrap_or(began);
        let (time, mut now) = (TurnPolicy::low_priority_time(start.since(since), has_pending), start);
        for _ in 0..time.map_or(0, |_| count) {
            let task = self.turns.borrow_mut().poll_low_priority(&mut self.ready.borrow_mut());
            let Some(task) = task else { break };
            self.tasks.set(self.tasks.get() + 1);
            now = self.run_one(task, true, now);
            if time.is_some_and(|time| now.since(start) >= time) {
                break;
            }
        }
        let has_left = self.ready.borrow().low_priority_count() > 0;
        self.low_priority_since.set(has_left.then_some(if time.is_some() { now } else { since }));
        self.turns.borrow_mut().handle_turn(now.since(began), has_left);
    }

    /// Wakes the task that waits for a connection that has ended. That is not urgent: if many end
    /// at once, connections that go on come first.
    fn wake_for_end(&self, waker: Waker) {
        self.without_hurry(|| waker.wake());
    }

    /// Runs a function that wakes tasks as low-priority ones.
    pub fn without_hurry(&self, wake: impl FnOnce()) {
        let _hurry = HurryGuard(&self.is_closing, self.is_closing.replace(true));
        wake();
    }

    /// Returns true if the running task should defer its bulk transfer (`is_new`: its first ones)
    /// because the turn has lasted long. The task yields when it is woken next.
    fn poll_yield(&self, is_new: bool) -> bool {
        let task = self.running.get();
        let late = if is_new { LATE_TURN_NEW } else { LATE_TURN };
        let yields = !task.is_low_priority && clock::now().since(clock::turn()) >= late;
        self.running.set(RunningTask { yields, ..task });
        yields
    }

    /// Names the turn and its part, interactive or low-priority: a task that yielded in this turn
    /// may go on in the second part.
    fn part_of_turn(&self) -> u64 {
        self.turn_number.get().wrapping_mul(2) | u64::from(self.running.get().is_low_priority)
    }

    fn enter(&self) -> io::Result<()> {
        if self.has_ready() {
            return self.driver.borrow_mut().turn(Some(Duration::ZERO));
        }
        let began = clock::now();
        let look = self.spin.get().poll_look(self.tasks.get());
        self.waiting.set(Some((began, look.is_zero())));
        if !look.is_zero() && self.look_for_work(began, look)? {
            return Ok(());
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
            let now = if look.is_zero() { began } else { clock::now() };
            timeout.map(|at| at.since(now))
        };
        let outcome = self.driver.borrow_mut().turn(wait);
        self.remote.is_parked.store(false, Ordering::SeqCst);
        outcome
    }

    /// Looks for work without sleeping; returns true if there is some.
    fn look_for_work(&self, began: Instant, look: Duration) -> io::Result<bool> {
        // Submits what was started.
        self.driver.borrow_mut().turn(Some(Duration::ZERO))?;
        let mut policy = self.spin.get();
        let mut now = began;
        let is_found = loop {
            if self.has_ready() || self.timers.borrow().poll_timeout().is_some_and(|at| at <= now) {
                policy.handle_found();
                break true;
            }
            now = clock::now();
            if now.since(began) >= look {
                policy.handle_vain(now.since(began));
                break false;
            }
            self.driver.borrow_mut().look()?;
        };
        self.spin.set(policy);
        Ok(is_found)
    }

    /// A wait of this length has ended, perhaps one without a look.
    fn end_wait(&self, waited: Duration, has_slept: bool) {
        self.idle.set(self.idle.get() + waited);
        if has_slept {
            let mut policy = self.spin.get();
            policy.handle_slept(waited, self.tasks.get());
            self.spin.set(policy);
        }
    }

    /// Drops all tasks, to break a cycle: tasks have references to the ring, and the ring to tasks, in its queues or
    /// through the wakers of their operations and timers.
    fn drop_tasks(&self) {
        loop {
            let mut wakers = self.driver.borrow_mut().take_wakers();
            wakers.extend(self.timers.borrow_mut().take_wakers());
            let ReadyTasks { interactive, bulk, closing } = self.ready.take();
            let mut tasks: Vec<_> =
                interactive.into_iter().chain(bulk.into_iter().map(|(_, task)| task)).chain(closing).collect();
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
            // Fails only if the counter is full, and then the thread is being woken already. The
            // swap makes sure that only one of several threads pays for the system call.
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

/// Restores the urgency of wake-ups, after a panic too.
struct HurryGuard<'a>(&'a Cell<bool>, bool);

impl Drop for HurryGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
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

/// Wakes the task of an operation. It is not urgent if the operation has found the end of its
/// connection.
fn wake(waker: Waker, is_end: bool) {
    match is_end.then(current).flatten() {
        Some(ring) => ring.wake_for_end(waker),
        None => waker.wake(),
    }
}

/// The ring of this thread, if it has one.
pub fn current() -> Option<Rc<Ring>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Starts a task on this thread's ring.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> RingTask<T> {
    let ring = current().expect("tasks are spawned inside `Ring::run`");
    let remote = Arc::clone(&ring.remote);
    let id = ring.spawned.get();
    ring.spawned.set(id + 1);
    let (task, handle) = Builder::new().metadata(id).spawn_local(move |_| future, move |task| schedule(&remote, task));
    task.schedule();
    handle
}

fn schedule(remote: &Arc<RemoteQueue>, task: Runnable) {
    // `try_with` fails in a thread that is ending. The task is dropped then: the ring it belonged to has ended as well.
    let elsewhere = CURRENT.try_with(|current| match current.borrow().as_ref() {
        Some(ring) if Arc::ptr_eq(&ring.remote, remote) => {
            let mut ready = ring.ready.borrow_mut();
            let running = ring.running.get();
            if ring.is_closing.get() {
                ready.closing.push_back(task);
            } else if running.yields && running.id == *task.metadata() {
                ready.bulk.push_back((PIECES_TIME_MAX, task));
            } else {
                ready.interactive.push_back(task);
            }
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
