//! A queue that any thread pushes into and one thread polls, for as long as that thread runs. Nothing that is pushed is
//! left behind when it closes: the pusher gets it back, or the last poll sees it.

use std::sync::atomic::Ordering;

use crate::sync::{AtomicBool, SharedQueue, fence};

/// Values on their way to the thread that polls them.
pub struct ClosableQueue<T> {
    waiting: SharedQueue<T>,
    /// True while the owner polls.
    is_open: AtomicBool,
}

impl<T> Default for ClosableQueue<T> {
    /// A queue that is closed until its owner runs.
    fn default() -> Self {
        Self { waiting: SharedQueue::default(), is_open: AtomicBool::default() }
    }
}

impl<T> ClosableQueue<T> {
    /// The owner runs and polls from now on.
    pub fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// The owner is about to end. It polls until nothing is left afterwards.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::SeqCst);
        // Dekker's handshake with `push`: the last poll sees the pushed value, or `push` sees that the queue has closed.
        fence(Ordering::SeqCst);
    }

    /// Returns true while the owner polls.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Gives the owner a value; it must be woken then.
    ///
    /// # Errors
    /// A value, perhaps that of another thread, if the queue is closed.
    pub fn push(&self, value: T) -> Result<(), T> {
        if !self.is_open() {
            return Err(value);
        }
        self.waiting.push(value);
        fence(Ordering::SeqCst);
        if self.is_open() {
            return Ok(());
        }
        self.waiting.pop().map_or(Ok(()), Err)
    }

    /// The next value, in the order they came.
    pub fn poll(&self) -> Option<T> {
        self.waiting.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_queue_gives_back_what_comes_and_keeps_what_came_before() {
        let queue = ClosableQueue::default();
        assert_eq!(queue.push(1), Err(1), "it has not opened");
        queue.open();
        assert_eq!((queue.push(2), queue.push(3)), (Ok(()), Ok(())));
        queue.close();
        assert_eq!(queue.push(4), Err(4));
        assert_eq!([queue.poll(), queue.poll(), queue.poll()], [Some(2), Some(3), None]);
    }
}
