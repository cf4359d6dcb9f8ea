//! The types of [`super`] on top of loom, with faults that can be planted to see that the model
//! check finds them. Loom has no matching ring, queue or waker: those are stand-ins that order at
//! most as much as the originals do. Used by the model check only.

#![allow(missing_docs, reason = "each does what its original is documented to do")]

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use loom::sync::Notify;
use loom::sync::atomic::AtomicUsize;
use loom::thread::yield_now;

pub use crate::wake_file::SleepEnd;
pub use loom::sync::{Mutex, MutexGuard};

/// The part that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A compare-and-swap is a load and then a store.
    Claim,
    /// A subtraction is a load and then a store.
    Countdown,
    /// Fences order nothing.
    Fence,
    /// A wake-up of a [`WakeFile`] that comes before the sleep is lost.
    File,
    /// A swap is a load and then a store.
    Swap,
    /// An `unpark` that comes before `park` is lost.
    Token,
}

thread_local! {
    /// The fault of the check that runs on this thread: loom runs all threads of a check on one.
    static FAULT: Cell<Option<PlantedFault>> = const { Cell::new(None) };
}

/// Plants a fault, or removes it.
pub fn plant(fault: Option<PlantedFault>) {
    FAULT.set(fault);
}

fn is_planted(fault: PlantedFault) -> bool {
    FAULT.get() == Some(fault)
}

/// `std::sync::atomic::fence`.
pub fn fence(ordering: Ordering) {
    if !is_planted(PlantedFault::Fence) {
        loom::sync::atomic::fence(ordering);
    }
}

/// `std::sync::atomic::AtomicBool`, as far as it is used.
#[derive(Default)]
pub struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub fn load(&self, ordering: Ordering) -> bool {
        self.0.load(ordering)
    }

    pub fn store(&self, value: bool, ordering: Ordering) {
        self.0.store(value, ordering);
    }

    pub fn swap(&self, value: bool, ordering: Ordering) -> bool {
        if !is_planted(PlantedFault::Swap) {
            return self.0.swap(value, ordering);
        }
        let have = self.0.load(ordering);
        self.0.store(value, ordering);
        have
    }
}

/// `std::sync::atomic::AtomicU8`, as far as it is used.
#[derive(Default)]
pub struct AtomicU8(loom::sync::atomic::AtomicU8);

impl AtomicU8 {
    pub fn load(&self, ordering: Ordering) -> u8 {
        self.0.load(ordering)
    }

    pub fn swap(&self, value: u8, ordering: Ordering) -> u8 {
        if !is_planted(PlantedFault::Swap) {
            return self.0.swap(value, ordering);
        }
        let have = self.0.load(ordering);
        self.0.store(value, ordering);
        have
    }
}

/// `std::sync::atomic::AtomicI64`, as far as it is used.
pub struct AtomicI64(loom::sync::atomic::AtomicI64);

impl AtomicI64 {
    pub fn new(value: i64) -> Self {
        Self(loom::sync::atomic::AtomicI64::new(value))
    }

    pub fn load(&self, ordering: Ordering) -> i64 {
        self.0.load(ordering)
    }

    pub fn store(&self, value: i64, ordering: Ordering) {
        self.0.store(value, ordering);
    }

    pub fn fetch_sub(&self, value: i64, ordering: Ordering) -> i64 {
        if !is_planted(PlantedFault::Countdown) {
            return self.0.fetch_sub(value, ordering);
        }
        let have = self.0.load(ordering);
        self.0.store(have - value, ordering);
        have
    }
}

/// `std::sync::atomic::AtomicU64`, as far as it is used.
pub struct AtomicU64(loom::sync::atomic::AtomicU64);

impl AtomicU64 {
    pub fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    pub fn load(&self, ordering: Ordering) -> u64 {
        self.0.load(ordering)
    }

    pub fn store(&self, value: u64, ordering: Ordering) {
        self.0.store(value, ordering);
    }

    pub fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
        self.0.fetch_add(value, ordering)
    }

    pub fn compare_exchange(&self, old: u64, new: u64, success: Ordering, failure: Ordering) -> Result<u64, u64> {
        // A value that a failed check drops has no thread left to agree with.
        if std::thread::panicking() {
            return Err(new);
        }
        if !is_planted(PlantedFault::Claim) {
            return self.0.compare_exchange(old, new, success, failure);
        }
        let have = self.0.load(failure);
        if have != old {
            return Err(have);
        }
        self.0.store(new, success);
        Ok(old)
    }
}

/// `std::thread::Thread`; a token makes the next `park` return. Loom's own mistakes a thread that waits for a lock for
/// one that is parked.
#[derive(Clone)]
pub struct Thread(Arc<Parker>);

struct Parker {
    token: Notify,
    is_parked: std::sync::atomic::AtomicBool,
}

loom::thread_local! {
    static CURRENT: Thread = Thread(Arc::new(Parker::new()));
}

impl Parker {
    fn new() -> Self {
        Self { token: Notify::new(), is_parked: false.into() }
    }

    /// Wakes the thread that waits, or the next that will, unless the fault is planted.
    fn notify(&self, fault: PlantedFault) {
        if self.is_parked.load(Ordering::Relaxed) || !is_planted(fault) {
            self.token.notify();
        }
    }

    fn wait(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
        self.token.wait();
        self.is_parked.store(false, Ordering::Relaxed);
    }
}

impl Thread {
    pub fn unpark(&self) {
        self.0.notify(PlantedFault::Token);
    }

    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

/// `std::thread::current`.
pub fn current() -> Thread {
    CURRENT.with(Thread::clone)
}

/// `std::thread::park`.
pub fn park() {
    current().0.wait();
}

/// `std::thread::park_timeout`, whose time is never over: no timer rescues a thread.
pub fn park_timeout(_: Duration) {
    park();
}

/// `runtime::wake_file::WakeFile`, whose other file is never readable and whose time is never over.
pub struct WakeFile(Parker);

impl WakeFile {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Parker::new()))
    }

    pub fn wake(&self) {
        self.0.notify(PlantedFault::File);
    }

    pub fn sleep(&self, _source: Option<BorrowedFd<'_>>, _timeout: Option<Duration>) -> SleepEnd {
        self.0.wait();
        SleepEnd::Woken
    }
}

/// `rtrb::RingBuffer`: as there, each side keeps the other's position as it saw it last.
pub struct RingBuffer<T> {
    // Never contended: the thread that has it does not yield.
    slots: Box<[std::sync::Mutex<Option<T>>]>,
    head: AtomicUsize,
    tail: AtomicUsize,
}

/// `rtrb::Producer`.
pub struct Producer<T> {
    ring: Arc<RingBuffer<T>>,
    tail: usize,
    head_seen: usize,
}

/// `rtrb::Consumer`.
pub struct Consumer<T> {
    ring: Arc<RingBuffer<T>>,
    head: usize,
    tail_seen: Cell<usize>,
}

/// `rtrb::PushError`.
#[derive(Debug)]
pub enum PushError<T> {
    Full(T),
}

impl<T> RingBuffer<T> {
    #[expect(clippy::new_ret_no_self, reason = "as rtrb's")]
    pub fn new(capacity: usize) -> (Producer<T>, Consumer<T>) {
        let slots = (0..capacity).map(|_| std::sync::Mutex::new(None)).collect();
        let ring = Arc::new(Self { slots, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) });
        let producer = Producer { ring: Arc::clone(&ring), tail: 0, head_seen: 0 };
        (producer, Consumer { ring, head: 0, tail_seen: Cell::new(0) })
    }

    fn swap(&self, position: usize, value: Option<T>) -> Option<T> {
        std::mem::replace(&mut self.slots[position % self.slots.len()].lock().unwrap(), value)
    }
}

impl<T> Producer<T> {
    pub fn push(&mut self, value: T) -> Result<(), PushError<T>> {
        let is_full = |head| self.tail - head == self.ring.slots.len();
        if is_full(self.head_seen) {
            let head = self.ring.head.load(Ordering::Acquire);
            if is_full(head) {
                return Err(PushError::Full(value));
            }
            self.head_seen = head;
        }
        assert!(self.ring.swap(self.tail, Some(value)).is_none(), "the slot is free");
        self.tail += 1;
        self.ring.tail.store(self.tail, Ordering::Release);
        Ok(())
    }
}

impl<T> Producer<T> {
    pub fn slots(&self) -> usize {
        self.ring.slots.len() - (self.tail - self.ring.head.load(Ordering::Acquire))
    }
}

impl<T> Consumer<T> {
    pub fn pop(&mut self) -> Result<T, ()> {
        if self.is_empty() {
            return Err(());
        }
        let value = self.ring.swap(self.head, None).expect("it was pushed");
        self.head += 1;
        self.ring.head.store(self.head, Ordering::Release);
        Ok(value)
    }

    pub fn is_empty(&self) -> bool {
        if self.tail_seen.get() == self.head {
            self.tail_seen.set(self.ring.tail.load(Ordering::Acquire));
        }
        self.tail_seen.get() == self.head
    }
}

/// `crossbeam_utils::atomic::AtomicCell`: an exchange in one step, with the original's ordering.
pub struct AtomicCell<T> {
    exchanges: AtomicUsize,
    value: std::sync::Mutex<T>,
}

impl<T: Default> AtomicCell<T> {
    pub fn new(value: T) -> Self {
        Self { exchanges: AtomicUsize::new(0), value: std::sync::Mutex::new(value) }
    }

    pub fn take(&self) -> T {
        self.swap(T::default())
    }

    pub fn store(&self, value: T) {
        drop(self.swap(value));
    }

    fn swap(&self, value: T) -> T {
        if !std::thread::panicking() {
            self.exchanges.fetch_add(1, Ordering::AcqRel);
        }
        std::mem::replace(&mut *self.value.lock().unwrap(), value)
    }
}

/// `crossbeam_queue::SegQueue` with one reader. If an older push is under way, the original's `pop`
/// waits for it; this one finds nothing, and the pusher will wake.
pub struct SegQueue<T> {
    slots: [QueueCell<T>; SLOTS],
    tail: AtomicUsize,
    /// The shard's alone.
    head: std::sync::atomic::AtomicUsize,
}

/// A scenario has at most this many answers for one shard.
const SLOTS: usize = 4;

struct QueueCell<T> {
    value: std::sync::Mutex<Option<T>>,
    is_written: AtomicBool,
}

impl<T> Default for SegQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> SegQueue<T> {
    pub fn new() -> Self {
        let slot = |_| QueueCell { value: std::sync::Mutex::new(None), is_written: AtomicBool::new(false) };
        Self { slots: std::array::from_fn(slot), tail: AtomicUsize::new(0), head: 0.into() }
    }

    pub fn push(&self, value: T) {
        if std::thread::panicking() {
            return;
        }
        let slot = &self.slots[self.tail.fetch_add(1, Ordering::Relaxed)];
        *slot.value.lock().unwrap() = Some(value);
        slot.is_written.store(true, Ordering::Release);
    }

    pub fn pop(&self) -> Option<T> {
        let slot = self.slots.get(self.head.load(Ordering::Relaxed))?;
        if !slot.is_written.load(Ordering::Acquire) {
            return None;
        }
        self.head.fetch_add(1, Ordering::Relaxed);
        slot.value.lock().unwrap().take()
    }
}

/// The same for any number of readers, and with as many more steps to interleave: like the
/// original, a reader that has taken a place waits for the value that is being pushed to it. It
/// takes at most as many values as a scenario pushes.
pub struct SharedQueue<T> {
    slots: [QueueCell<T>; SLOTS],
    tail: AtomicUsize,
    head: AtomicUsize,
}

impl<T> Default for SharedQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> SharedQueue<T> {
    pub fn new() -> Self {
        let slot = |_| QueueCell { value: std::sync::Mutex::new(None), is_written: AtomicBool::new(false) };
        Self { slots: std::array::from_fn(slot), tail: AtomicUsize::new(0), head: AtomicUsize::new(0) }
    }

    pub fn push(&self, value: T) {
        if std::thread::panicking() {
            return;
        }
        // A compare-and-swap there too, sequentially consistent.
        let slot = &self.slots[self.tail.fetch_add(1, Ordering::SeqCst)];
        *slot.value.lock().unwrap() = Some(value);
        slot.is_written.store(true, Ordering::Release);
    }

    pub fn pop(&self) -> Option<T> {
        // A value that a failed check drops finds nothing left to do.
        if std::thread::panicking() {
            return None;
        }
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            // The original's own fence: no fault is planted there.
            loom::sync::atomic::fence(Ordering::SeqCst);
            if head == self.tail.load(Ordering::Relaxed) {
                return None;
            }
            match self.head.compare_exchange(head, head + 1, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let slot = &self.slots[head];
        while !slot.is_written.load(Ordering::Acquire) {
            yield_now();
        }
        slot.value.lock().unwrap().take()
    }

    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::SeqCst) == self.tail.load(Ordering::SeqCst)
    }

    pub fn len(&self) -> usize {
        self.tail.load(Ordering::SeqCst) - self.head.load(Ordering::SeqCst)
    }
}

/// `atomic_waker::AtomicWaker`.
pub struct AtomicWaker(Mutex<Option<Waker>>);

impl Default for AtomicWaker {
    fn default() -> Self {
        Self::new()
    }
}

impl AtomicWaker {
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub fn register(&self, waker: &Waker) {
        *self.0.lock().unwrap() = Some(waker.clone());
    }

    pub fn wake(&self) {
        if std::thread::panicking() {
            return;
        }
        let waker = self.0.lock().unwrap().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
