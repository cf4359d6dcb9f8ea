//! An asynchronous semaphore: bounds the requests that one step of an ensemble may have in flight
//! at a time, over all shards (`max_inflight_requests`). Waiters are granted permits in order, by
//! any thread that releases one. There is no lock, and no semaphore for an ensemble without such a
//! bound. No deadlock: a step has a permit only while its model has the request, and that waits for
//! no other permits but those of steps inside it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::sync::{AtomicU64, AtomicWaker, SharedQueue, fence};

/// The permits of one step. A permit is either counted in `taken` or free; a waiter that was granted one owns it, even
/// before its task has run.
///
/// ```
/// use std::sync::Arc;
///
/// use queue::semaphore::Semaphore;
///
/// let semaphore = Arc::new(Semaphore::new(1));
/// let permit = futures_lite::future::block_on(semaphore.acquire());
/// assert_eq!(semaphore.taken(), 1);
/// drop(permit);
/// assert_eq!(semaphore.taken(), 0);
/// ```
pub struct Semaphore {
    most: u64,
    taken: AtomicU64,
    waiting: SharedQueue<Arc<SemaphoreWaiter>>,
    /// The approximate number of `waiting` that have given up.
    gone: AtomicU64,
}

/// Cancelled waiters after which the queue is swept: without a bound it would grow as long as no
/// permit is released.
const GONE_MAX: u64 = 1_024;

/// One waiter. Its state changes once, from waiting to granted or to gone, by compare-and-swap: so a permit is never
/// granted to a waiter that has given up.
struct SemaphoreWaiter {
    state: AtomicU64,
    waker: AtomicWaker,
}

const WAITING: u64 = 0;
const GRANTED: u64 = 1;
const GONE: u64 = 2;

/// One request in flight; dropping it releases the permit.
pub struct SemaphorePermit {
    permits: Arc<Semaphore>,
}

/// Resolves to a permit when one is free.
pub struct AcquireFuture {
    permits: Arc<Semaphore>,
    waiter: Option<Arc<SemaphoreWaiter>>,
}

impl Semaphore {
    /// Creates a semaphore of `most` permits, at least one.
    pub fn new(most: u32) -> Self {
        Self {
            most: u64::from(most.max(1)),
            taken: AtomicU64::new(0),
            waiting: SharedQueue::new(),
            gone: AtomicU64::new(0),
        }
    }

    /// Waits for a permit.
    pub fn acquire(self: &Arc<Self>) -> AcquireFuture {
        AcquireFuture { permits: Arc::clone(self), waiter: None }
    }

    /// Returns the permits that are taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        self.change(|taken| (taken < self.most).then_some(taken + 1))
    }

    fn untake(&self) {
        self.change(|taken| {
            // Under loom a fault is planted in the counting, and another promise is to find it.
            debug_assert!(taken > 0 || cfg!(feature = "loom"), "a permit that is given back was taken");
            Some(taken.saturating_sub(1))
        });
    }

    fn change(&self, change: impl Fn(u64) -> Option<u64>) -> bool {
        let mut taken = self.taken.load(Ordering::SeqCst);
        loop {
            let Some(wanted) = change(taken) else { return false };
            debug_assert!(wanted <= self.most, "no more permits are taken than there are");
            match self.taken.compare_exchange(taken, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => taken = now,
            }
        }
    }

    fn give_back(&self) {
        self.untake();
        self.hand_on();
    }

    /// A waiter gave up: removes all cancelled waiters once there are many. Otherwise only a
    /// release would meet them.
    fn sweep(&self) {
        if self.gone.fetch_add(1, Ordering::Relaxed) < GONE_MAX {
            return;
        }
        self.gone.store(0, Ordering::Relaxed);
        for _ in 0..self.waiting.len() {
            let Some(waiter) = self.waiting.pop() else { break };
            if waiter.state.load(Ordering::SeqCst) == WAITING {
                self.waiting.push(waiter);
            }
        }
        // A waiter that was out of the queue for a moment may have been missed by a release.
        self.hand_on();
    }

    /// Grants free permits to waiters. A permit is taken before a waiter is popped; if there is no waiter it is put
    /// back, and the queue is checked once more: a waiter that came meanwhile found no free permit.
    fn hand_on(&self) {
        while self.take() {
            match self.waiting.pop() {
                Some(waiter) if waiter.become_state(GRANTED) => waiter.waker.wake(),
                Some(_) => self.untake(),
                None => {
                    self.untake();
                    // Dekker's handshake with `AcquireFuture::poll`: it pushes, then counts; we count, then check.
                    fence(Ordering::SeqCst);
                    if self.waiting.is_empty() {
                        return;
                    }
                }
            }
        }
    }
}

impl SemaphoreWaiter {
    /// Changes the state of a waiter that waits; returns false if it was changed before.
    fn become_state(&self, state: u64) -> bool {
        debug_assert!(state == GRANTED || state == GONE, "a waiter never waits again");
        self.state.compare_exchange(WAITING, state, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Future for AcquireFuture {
    type Output = SemaphorePermit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SemaphorePermit> {
        let permits = Arc::clone(&self.permits);
        let waiter = match &self.waiter {
            Some(waiter) => Arc::clone(waiter),
            // Waiters come first: a new request must not overtake them.
            None if permits.waiting.is_empty() && permits.take() => return Poll::Ready(SemaphorePermit { permits }),
            None => {
                let waiter = Arc::new(SemaphoreWaiter { state: AtomicU64::new(WAITING), waker: AtomicWaker::new() });
                waiter.waker.register(context.waker());
                permits.waiting.push(Arc::clone(&waiter));
                fence(Ordering::SeqCst);
                permits.hand_on();
                self.waiter = Some(Arc::clone(&waiter));
                waiter
            }
        };
        waiter.waker.register(context.waker());
        if waiter.state.load(Ordering::SeqCst) != GRANTED {
            return Poll::Pending;
        }
        self.waiter = None;
        Poll::Ready(SemaphorePermit { permits })
    }
}

impl Drop for AcquireFuture {
    fn drop(&mut self) {
        // A permit that was granted meanwhile goes to the next waiter.
        match self.waiter.take() {
            Some(waiter) if waiter.become_state(GONE) => self.permits.sweep(),
            Some(_) => self.permits.give_back(),
            None => {}
        }
    }
}

impl Drop for SemaphorePermit {
    fn drop(&mut self) {
        self.permits.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    fn now(acquire: &mut AcquireFuture) -> Option<SemaphorePermit> {
        block_on(poll_once(acquire))
    }

    #[test]
    fn so_many_are_out_and_those_who_wait_have_them_in_order() {
        let permits = Arc::new(Semaphore::new(2));
        let (mut one, mut two, mut three, mut four) =
            (permits.acquire(), permits.acquire(), permits.acquire(), permits.acquire());
        let first = now(&mut one).expect("there are two");
        let _second = now(&mut two).expect("there are two");
        assert!(now(&mut three).is_none() && now(&mut four).is_none());
        drop(first);
        assert!(now(&mut four).is_none(), "the third was before");
        let third = now(&mut three).expect("one was given back");
        assert_eq!(permits.taken(), 2);
        drop(third);
        assert!(now(&mut four).is_some());
    }

    #[test]
    fn one_who_leaves_hands_on_what_it_was_given() {
        let permits = Arc::new(Semaphore::new(1));
        let (mut one, mut two, mut three) = (permits.acquire(), permits.acquire(), permits.acquire());
        let first = now(&mut one).expect("there is one");
        assert!(now(&mut two).is_none() && now(&mut three).is_none());
        drop(first);
        drop(two);
        assert!(now(&mut three).is_some(), "it was granted to one who left without looking");
        assert_eq!(permits.taken(), 0);
        let (mut four, mut five) = (permits.acquire(), permits.acquire());
        let held = now(&mut four).expect("there is one");
        assert!(now(&mut five).is_none());
        drop(five);
        drop(held);
        assert!(permits.taken() == 0 && now(&mut permits.acquire()).is_some(), "one who left is passed over");
    }

    #[test]
    fn those_who_leave_are_forgotten_though_nothing_is_given_back() {
        let permits = Arc::new(Semaphore::new(1));
        let (mut one, mut last) = (permits.acquire(), permits.acquire());
        let held = now(&mut one).expect("there is one");
        assert!(now(&mut last).is_none());
        for _ in 0..10 * GONE_MAX {
            assert!(now(&mut permits.acquire()).is_none());
        }
        assert!(permits.waiting.len() <= 2 + GONE_MAX as usize, "{} wait", permits.waiting.len());
        drop(held);
        assert!(now(&mut last).is_some(), "who waits has its turn");
    }

    #[test]
    fn many_threads_pass_them_round_and_never_have_more() {
        let permits = Arc::new(Semaphore::new(3));
        let at_once = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let threads: Vec<_> = (0..8)
            .map(|index| {
                let (permits, at_once) = (Arc::clone(&permits), Arc::clone(&at_once));
                std::thread::spawn(move || {
                    for round in 0..2_000 {
                        let mut acquire = permits.acquire();
                        if (round + index) % 5 == 0 && now(&mut acquire).is_none() {
                            // Leaves while it waits.
                            continue;
                        }
                        if (round + index) % 5 == 0 {
                            continue;
                        }
                        let permit = block_on(acquire);
                        assert!(at_once.fetch_add(1, Ordering::SeqCst) < 3);
                        at_once.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no thread is stuck"));
        assert_eq!(permits.taken(), 0);
    }
}
