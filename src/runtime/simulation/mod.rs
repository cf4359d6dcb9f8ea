//! A runtime for tests in which nothing is left to chance: one thread, a clock that jumps to the next timer, tasks polled
//! in an order drawn from a seed, and connections that are memory. `clock`, `executor` and `socket` lead here on a
//! thread that is inside [`run`]; all that is above them is the server's own code. Only in the tests of this crate.

mod fault;
mod link;
mod listener;
mod timeline;

pub use self::fault::{SimulatedFault, is_planted, plant};
pub use self::link::{ClientEnd, LinkRules, ReadOutcome, SimulatedStream};
pub use self::listener::{SimulatedListener, connect, listener, open_port};
pub use self::timeline::{note, recent};

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_task::Builder;

use crate::loadgen::random::Random;
use crate::runtime::ring::timers::{TimerKey, TimerQueue};
use crate::runtime::ring::{RingTask, Runnable};
use crate::runtime::simulation::listener::Port;
use crate::runtime::simulation::timeline::Timeline;
use crate::time::Instant;

/// The wall clock at the beginning of a simulation, in milliseconds since the epoch.
pub const EPOCH_MILLIS: u64 = 1_700_000_000_000;

/// The instant at which a simulation begins: not zero, so that an earlier time can be expressed.
const BEGIN: Instant = Instant::from_micros(1_000_000);

/// The longest that one step of a task takes, in nanoseconds.
const STEP_MAX: u64 = 4_000;

/// Steps after which a simulation counts as one that never ends.
const STEPS_MAX: u64 = 400_000;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Simulation>>> = const { RefCell::new(None) };
}

/// The reason why a simulation did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulationEnd {
    /// Nothing is ready, no timer runs, and the future is not done.
    Dry,
    /// Tasks went on for [`STEPS_MAX`] steps.
    Endless,
}

/// Something that a task waits for without a waker.
type Condition = Box<dyn Fn() -> bool>;

/// The state of one run.
struct Simulation {
    now: Cell<Instant>,
    random: RefCell<Random>,
    ready: RefCell<Vec<Runnable>>,
    timers: RefCell<TimerQueue>,
    /// Conditions without a waker, checked after each step.
    conditions: RefCell<Vec<(Condition, Waker)>>,
    ports: RefCell<HashMap<RawFd, Rc<Port>>>,
    timeline: RefCell<Timeline>,
}

/// Runs a future to its end on this thread, with the tasks that it spawns, which are dropped at the end.
///
/// # Errors
/// If it has no end.
pub fn run<T: 'static>(seed: u64, future: impl Future<Output = T> + 'static) -> Result<T, SimulationEnd> {
    let simulation = Rc::new(Simulation {
        now: Cell::new(BEGIN),
        random: RefCell::new(Random::new(seed)),
        ready: RefCell::default(),
        timers: RefCell::default(),
        conditions: RefCell::default(),
        ports: RefCell::default(),
        timeline: RefCell::default(),
    });
    CURRENT.set(Some(Rc::clone(&simulation)));
    let _leaving = SimulationGuard;
    let done = Rc::new(Cell::new(None));
    let outcome = Rc::clone(&done);
    spawn(async move { outcome.set(Some(future.await)) }).detach();
    for _ in 0..STEPS_MAX {
        simulation.wake_due();
        if let Some(value) = done.take() {
            return Ok(value);
        }
        if let Some(task) = simulation.draw() {
            task.run();
            let took = simulation.random.borrow_mut().next_below(STEP_MAX);
            simulation.now.set(simulation.now.get() + Duration::from_nanos(took));
        } else {
            let next = simulation.timers.borrow().poll_timeout();
            let Some(at) = next else { return Err(SimulationEnd::Dry) };
            simulation.now.set(simulation.now.get().max(at));
        }
    }
    Err(SimulationEnd::Endless)
}

impl Simulation {
    /// The next task to run: any of those that are ready.
    fn draw(&self) -> Option<Runnable> {
        let mut ready = self.ready.borrow_mut();
        let count = ready.len() as u64;
        let index = if count > 1 { self.random.borrow_mut().next_below(count) } else { 0 };
        (count > 0).then(|| ready.swap_remove(usize::try_from(index).unwrap_or(0)))
    }

    fn wake_due(&self) {
        loop {
            let due = self.timers.borrow_mut().poll_due(self.now.get());
            let Some(waker) = due else { break };
            waker.wake();
        }
        let mut index = 0;
        loop {
            let holds = self.conditions.borrow().get(index).map(|(holds, _)| holds());
            match holds {
                None => return,
                Some(false) => index += 1,
                Some(true) => {
                    let (_, waker) = self.conditions.borrow_mut().swap_remove(index);
                    waker.wake();
                }
            }
        }
    }

    /// Drops all tasks: they have references to this, and this to them.
    fn drop_tasks(&self) {
        loop {
            let mut wakers = self.timers.borrow_mut().take_wakers();
            wakers.extend(self.conditions.take().into_iter().map(|(_, waker)| waker));
            let tasks = self.ready.take();
            let ports = self.ports.take();
            if wakers.is_empty() && tasks.is_empty() && ports.is_empty() {
                return;
            }
        }
    }
}

/// Ends the simulation of this thread.
struct SimulationGuard;

impl Drop for SimulationGuard {
    fn drop(&mut self) {
        // Tasks that are dropped may still ask for the time, or wake each other.
        if let Some(simulation) = current().filter(|_| !std::thread::panicking()) {
            timeline::keep(simulation.timeline.take());
            simulation.drop_tasks();
        }
        CURRENT.set(None);
    }
}

fn current() -> Option<Rc<Simulation>> {
    CURRENT.with_borrow(Clone::clone)
}

fn running() -> Rc<Simulation> {
    current().expect("this is inside `run`")
}

/// Returns true if this thread is inside [`run`].
pub fn is_running() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// The time, on a thread that is inside [`run`].
pub fn now() -> Option<Instant> {
    CURRENT.with_borrow(|current| current.as_ref().map(|simulation| simulation.now.get()))
}

/// A number below a bound, from the seed.
pub fn below(bound: u64) -> u64 {
    running().random.borrow_mut().next_below(bound)
}

/// Returns true `percent` times of a hundred.
pub fn percent(percent: u64) -> bool {
    below(100) < percent
}

/// Starts a task.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> RingTask<T> {
    let (task, handle) = Builder::new().metadata(0).spawn_local(move |_| future, schedule);
    task.schedule();
    handle
}

fn schedule(task: Runnable) {
    // One that is woken after the end is dropped.
    if let Some(simulation) = current() {
        simulation.ready.borrow_mut().push(task);
    }
}

/// Waits until an instant.
pub async fn sleep_until(at: Instant) {
    let ignored = is_planted(SimulatedFault::TimerIgnored) && percent(20);
    SimulatedSleep { at: if ignored { at + Duration::from_secs(100_000) } else { at }, key: None }.await;
}

/// Waits for a duration.
pub async fn sleep(duration: Duration) {
    SimulatedSleep { at: running().now.get() + duration, key: None }.await;
}

/// Waits for a condition without a waker, at most until an instant; returns true if it holds.
pub async fn until(holds: impl Fn() -> bool + 'static, at: Option<Instant>) -> bool {
    let holds = Rc::new(holds);
    let mut sleep = at.map(|at| SimulatedSleep { at, key: None });
    poll_fn(|context| {
        if holds() {
            return Poll::Ready(true);
        }
        if sleep.as_mut().is_some_and(|sleep| Pin::new(sleep).poll(context).is_ready()) {
            return Poll::Ready(false);
        }
        let looked_at = Rc::clone(&holds);
        running().conditions.borrow_mut().push((Box::new(move || looked_at()), context.waker().clone()));
        Poll::Pending
    })
    .await
}

/// Resolves at an instant.
struct SimulatedSleep {
    at: Instant,
    key: Option<TimerKey>,
}

impl Future for SimulatedSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (this, simulation) = (self.get_mut(), running());
        if simulation.now.get() >= this.at {
            return Poll::Ready(());
        }
        let mut timers = simulation.timers.borrow_mut();
        match this.key {
            Some(key) => timers.replace(key, context.waker()),
            None => this.key = Some(timers.insert(this.at, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for SimulatedSleep {
    fn drop(&mut self) {
        if let (Some(key), Some(simulation)) = (self.key, current()) {
            simulation.timers.borrow_mut().remove(key);
        }
    }
}
