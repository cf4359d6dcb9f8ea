//! A queue to a thread that waits for a disk or a network, bounded in number and in bytes: any number of threads push, one
//! reads, and a push that finds no room takes no time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;

use crossbeam_queue::ArrayQueue;

/// A value that knows the memory that it keeps.
pub trait QueuedSize {
    /// The bytes that it keeps in memory: the same at each call.
    fn queued_size(&self) -> usize;
}

/// Values on their way to the thread that reads.
pub struct SizedQueue<T> {
    waiting: ArrayQueue<T>,
    /// The bytes of the values that wait.
    size: AtomicUsize,
    size_max: usize,
    is_ending: AtomicBool,
    reader: OnceLock<Thread>,
}

impl<T: QueuedSize> SizedQueue<T> {
    /// Creates an empty queue for `count_max` values, at least one, and for `size_max` bytes of them.
    pub fn new(count_max: usize, size_max: usize) -> Self {
        Self {
            waiting: ArrayQueue::new(count_max.max(1)),
            size: AtomicUsize::new(0),
            size_max,
            is_ending: AtomicBool::new(false),
            reader: OnceLock::new(),
        }
    }

    /// Hands a value over. The thread that reads is not woken ([`Self::wake`]).
    ///
    /// # Errors
    /// The value, if there is no room for it.
    pub fn push(&self, value: T) -> Result<(), T> {
        let size = value.queued_size();
        let before = self.size.fetch_add(size, Ordering::Relaxed);
        let fits = before.saturating_add(size) <= self.size_max;
        let pushed = if fits { self.waiting.push(value) } else { Err(value) };
        pushed.inspect_err(|_| {
            self.size.fetch_sub(size, Ordering::Relaxed);
        })
    }

    /// Takes the next value.
    pub fn pop(&self) -> Option<T> {
        let value = self.waiting.pop()?;
        self.size.fetch_sub(value.queued_size(), Ordering::Relaxed);
        Some(value)
    }

    /// Returns the number of values that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if no value waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Makes the calling thread the one that reads; [`Self::wake`] unparks it from now on.
    pub fn set_reader(&self) {
        self.reader.get_or_init(std::thread::current);
    }

    /// Unparks the thread that reads.
    pub fn wake(&self) {
        if let Some(reader) = self.reader.get() {
            reader.unpark();
        }
    }

    /// No further values come: the thread that reads ends when it has dealt with those that wait.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns true if no further values come.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl QueuedSize for Vec<u8> {
        fn queued_size(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn a_value_without_room_comes_back_and_keeps_no_place() {
        let queue = SizedQueue::new(2, 10);
        assert_eq!(queue.push(vec![0; 11]), Err(vec![0; 11]), "too large");
        assert_eq!(queue.push(vec![0; 6]), Ok(()));
        assert_eq!(queue.push(vec![0; 5]), Err(vec![0; 5]), "too many bytes");
        assert_eq!(queue.push(vec![0; 4]), Ok(()), "all bytes");
        assert_eq!(queue.push(Vec::new()), Err(Vec::new()), "too many");
        assert_eq!((queue.pop(), queue.len()), (Some(vec![0; 6]), 1));
        assert_eq!(queue.push(vec![0; 6]), Ok(()));
    }

    #[test]
    fn the_end_wakes_the_reader() {
        let queue = SizedQueue::<Vec<u8>>::new(1, 1);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                queue.set_reader();
                while !queue.is_ending() {
                    std::thread::park();
                }
            });
            // A thread that is not yet known to the queue sees the end before it parks.
            queue.end();
            queue.wake();
            reader.join().unwrap();
        });
    }
}
