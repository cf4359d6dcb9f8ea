//! The open connections of one shard: who may be woken when a timer ends or the server drains.
//! Lives on its shard. One sweep looks at all of them; no connection arms a timer of its own.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use slab::Slab;

use crate::limits::DRAIN_GRACE;
use crate::time::Instant;

/// Why a connection is woken though nothing arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The server drains: finish and take no more.
    Drain,
    /// The instant it waited for has come.
    Timeout,
}

/// What the sweep knows of one connection.
#[derive(Default)]
pub struct ConnectionWatch {
    active_at: Cell<Instant>,
    deadline: Cell<Option<Instant>>,
    wake_reason: Cell<Option<WakeReason>>,
    waker: RefCell<Option<Waker>>,
}

impl ConnectionWatch {
    /// The connection was opened, or answered: its client may be about to send.
    pub fn set_active(&self, now: Instant) {
        self.active_at.set(now);
    }

    /// From when on it may be closed without a word: a client that was active a moment before may
    /// have sent already.
    pub fn quiet_at(&self) -> Instant {
        self.active_at.get() + DRAIN_GRACE
    }

    /// When to wake the connection if nothing happens. The end of an earlier wait is forgotten.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        if self.wake_reason.get() == Some(WakeReason::Timeout) {
            self.wake_reason.set(None);
        }
        self.deadline.set(deadline);
    }

    /// The verdict, once.
    pub fn take_verdict(&self) -> Option<WakeReason> {
        self.wake_reason.take()
    }

    /// Remembers who to wake; cheap when it is the same task as before.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|have| have.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    fn judge(&self, wake_reason: WakeReason) {
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

/// A place in the table; leaves it when dropped.
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

    /// Takes a connection in that was opened just now; `None` when there are too many.
    pub fn enter(self: &Rc<Self>, now: Instant) -> Option<ConnectionGuard> {
        let mut watches = self.watches.borrow_mut();
        if watches.len() >= self.count_max {
            return None;
        }
        let watch = Rc::new(ConnectionWatch::default());
        watch.set_active(now);
        if self.is_draining() {
            watch.judge(WakeReason::Drain);
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

    /// Wakes those whose deadline has come.
    pub fn sweep(&self, now: Instant) {
        for (_, watch) in self.watches.borrow().iter() {
            if watch.deadline.get().is_some_and(|deadline| deadline <= now) {
                watch.deadline.set(None);
                watch.judge(WakeReason::Timeout);
            }
        }
    }

    /// Tells all of them to finish.
    pub fn drain(&self) {
        self.is_draining.set(true);
        for (_, watch) in self.watches.borrow().iter() {
            watch.judge(WakeReason::Drain);
        }
    }
}

impl ConnectionGuard {
    /// What the sweep knows of this connection.
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
    fn a_full_table_takes_no_more_until_one_leaves() {
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
        assert_eq!((due.watch().take_verdict(), later.watch().take_verdict()), (Some(WakeReason::Timeout), None));
        connections.sweep(Instant::from_micros(5));
        assert_eq!(due.watch().take_verdict(), None);
        connections.sweep(Instant::from_micros(6));
        later.watch().set_deadline(Some(Instant::from_micros(9)));
        assert_eq!(later.watch().take_verdict(), None, "another wait has begun");
        connections.drain();
        assert!(connections.is_draining());
        assert_eq!(
            (due.watch().take_verdict(), later.watch().take_verdict()),
            (Some(WakeReason::Drain), Some(WakeReason::Drain))
        );
    }
}
