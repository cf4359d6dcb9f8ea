//! The open connections of one shard, their deadlines and their wakers. One periodic sweep checks all deadlines: they
//! are moved with every request, and a timer per connection would cost more than it is worth for timeouts of seconds.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use slab::Slab;

use crate::limits::DRAIN_GRACE;
use crate::time::Instant;

/// Why a connection was woken although its socket has no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The server drains: finish and accept no more requests.
    Drain,
    /// Its deadline has passed.
    Timeout,
}

/// One connection's deadline, waker and last wake reason, shared by the connection and the sweep.
#[derive(Default)]
pub struct ConnectionWatch {
    active_at: Cell<Instant>,
    deadline: Cell<Option<Instant>>,
    wake_reason: Cell<Option<WakeReason>>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionWatch {
    /// The connection was opened or answered: its client may be about to send a request.
    pub fn set_active(&self, now: Instant) {
        self.active_at.set(now);
    }

    /// From when on a drain may close it silently: right after an answer the next request may already be on its way.
    pub fn quiet_at(&self) -> Instant {
        self.active_at.get() + DRAIN_GRACE
    }

    /// When to wake the connection if nothing happens. Discards a timeout of the previous deadline.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        if self.wake_reason.get() == Some(WakeReason::Timeout) {
            self.wake_reason.set(None);
        }
        self.deadline.set(deadline);
    }

    /// Why the connection was woken, if by the sweep or the drain; returned once.
    pub fn take_wake_reason(&self) -> Option<WakeReason> {
        self.wake_reason.take()
    }

    /// Registers the task to wake; cheap when it is the same as before.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|have| have.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    fn wake(&self, wake_reason: WakeReason) {
        self.wake_reason.set(Some(wake_reason));
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// The connections of one shard.
pub struct Connections {
    watches: RefCell<Slab<Rc<ConnectionWatch>>>,
    count_max: usize,
    is_draining: Cell<bool>,
}

/// An entry in the table, removed when this is dropped.
pub struct ConnectionGuard {
    connections: Rc<Connections>,
    key: usize,
    watch: Rc<ConnectionWatch>,
}

impl Connections {
    /// A table for at most `count_max` connections.
    pub fn new(count_max: usize) -> Self {
        Self { watches: RefCell::default(), count_max, is_draining: Cell::new(false) }
    }

    /// Enters a connection that was opened just now; `None` when there are too many.
    pub fn enter(self: &Rc<Self>, now: Instant) -> Option<ConnectionGuard> {
        let mut watches = self.watches.borrow_mut();
        if watches.len() >= self.count_max {
            return None;
        }
        let watch = Rc::new(ConnectionWatch::default());
        watch.set_active(now);
        if self.is_draining() {
            watch.wake(WakeReason::Drain);
        }
        let key = watches.insert(Rc::clone(&watch));
        Some(ConnectionGuard { connections: Rc::clone(self), key, watch })
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.watches.borrow().len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the server drains.
    pub fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Wakes the connections whose deadline has passed.
    pub fn sweep(&self, now: Instant) {
        for (_, watch) in self.watches.borrow().iter() {
            if watch.deadline.get().is_some_and(|deadline| deadline <= now) {
                watch.deadline.set(None);
                watch.wake(WakeReason::Timeout);
            }
        }
    }

    /// Wakes all connections, to finish what they have and close.
    pub fn drain(&self) {
        self.is_draining.set(true);
        for (_, watch) in self.watches.borrow().iter() {
            watch.wake(WakeReason::Drain);
        }
    }
}

impl ConnectionGuard {
    /// This connection's entry.
    pub const fn watch(&self) -> &Rc<ConnectionWatch> {
        &self.watch
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.watches.borrow_mut().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses_connections_until_one_closes() {
        let connections = Rc::new(Connections::new(2));
        let (one, two) = (connections.enter(Instant::ZERO).unwrap(), connections.enter(Instant::ZERO).unwrap());
        assert!(connections.enter(Instant::ZERO).is_none());
        drop(one);
        assert!(connections.enter(Instant::ZERO).is_some());
        drop(two);
        assert!(connections.is_empty());
    }

    #[test]
    fn the_sweep_wakes_those_that_are_due_once_and_the_drain_all() {
        let connections = Rc::new(Connections::new(2));
        let (due, later) = (connections.enter(Instant::ZERO).unwrap(), connections.enter(Instant::ZERO).unwrap());
        due.watch().set_deadline(Some(Instant::from_micros(5)));
        later.watch().set_deadline(Some(Instant::from_micros(6)));
        connections.sweep(Instant::from_micros(5));
        assert_eq!(
            (due.watch().take_wake_reason(), later.watch().take_wake_reason()),
            (Some(WakeReason::Timeout), None)
        );
        connections.sweep(Instant::from_micros(5));
        assert_eq!(due.watch().take_wake_reason(), None);
        connections.sweep(Instant::from_micros(6));
        later.watch().set_deadline(Some(Instant::from_micros(9)));
        assert_eq!(later.watch().take_wake_reason(), None, "another wait has begun");
        connections.drain();
        assert!(connections.is_draining());
        assert_eq!(
            (due.watch().take_wake_reason(), later.watch().take_wake_reason()),
            (Some(WakeReason::Drain), Some(WakeReason::Drain))
        );
    }
}
