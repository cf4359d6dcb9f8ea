//! The place in which the thread of one instance sleeps while its model queue has no work for it,
//! and the state by which other threads pick an idle instance. Any thread may read it and wake its
//! thread. The wake-up protocol is that of [`Parkings`](crate::parkings::Parkings).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8 as AtomicStage, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Wake;
use std::time::Duration;

use crate::sync::{self, AtomicBool, AtomicU8, SleepEnd, Thread, WakeFile, fence};
use base::time::{Clock, Instant};

/// The place in which an instance's thread sleeps. Its cache lines are its own: those of a model
/// are made one after the other.
#[derive(Default)]
#[repr(align(128))]
pub struct Parking {
    name: String,
    is_passive: bool,
    rate_id: Option<usize>,
    /// An [`InstanceStage`]. Written under the lock of the queue.
    stage: AtomicStage,
    /// The index of the instance group.
    group: AtomicUsize,
    /// A [`SleepKind`].
    sleep: AtomicU8,
    /// It has work and waits for resources of the rate limit: the thread that frees them wakes it.
    is_blocked: AtomicBool,
    /// Its instance has as many batches in flight as it can: the end of one wakes it.
    is_full: AtomicBool,
    /// Of the idle instances, the one with the lowest turn is woken.
    turn: AtomicU64,
    batches: AtomicU64,
    wakes: AtomicUsize,
    /// Times its instance was lost and another one was made in its place.
    restarts: AtomicUsize,
    /// Rows of the batch that it runs; 0 without one.
    rows: AtomicU32,
    /// The start of that batch, in nanoseconds.
    began: AtomicU64,
    /// The nanoseconds for which its instance had batches, up to `busy_since`.
    busy: AtomicU64,
    /// The instant at which it last took a batch after it had none, in nanoseconds; 0 without a
    /// batch.
    busy_since: AtomicU64,
    /// Set by the thread itself before it first sleeps.
    thread: OnceLock<Thread>,
    /// The file on which a thread sleeps that waits for a file as well, from the first time on; or another thread in
    /// its place.
    wake_file: OnceLock<WakeFile>,
}

/// The stage of an instance of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceStage {
    /// It has nothing left to do, and its thread is about to end.
    Ending,
    /// Its thread has ended, or never began: the place is free for another instance of its name.
    Gone,
    /// It is made, or is being made, and takes no batch yet.
    Joining,
    /// It ends when its batches in flight and its sequences have ended.
    Leaving,
    /// It takes batches.
    Serving,
}

impl InstanceStage {
    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Gone,
            4 => Self::Ending,
            2 => Self::Joining,
            3 => Self::Leaving,
            _ => Self::Serving,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Ending => 4,
            Self::Gone => 1,
            Self::Joining => 2,
            Self::Leaving => 3,
            Self::Serving => 0,
        }
    }
}

/// Kind of sleep of a parking's thread, or of the sleep that it is about to begin. The sleeper sets it before it sleeps
/// and the waker takes it, so that both mean the same: the thread sleeps with a file at one time and without one at
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SleepKind {
    Awake,
    /// On the wake file of the parking, perhaps beside another file.
    File,
    /// By the token of the thread.
    Token,
}

impl SleepKind {
    const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::File,
            2 => Self::Token,
            _ => Self::Awake,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Awake => 0,
            Self::File => 1,
            Self::Token => 2,
        }
    }
}

/// The longest sleep of a thread that should sleep on a file and could not open what wakes it then.
const FILE_PAUSE: Duration = Duration::from_millis(1);

impl Parking {
    /// Creates the parking of an instance with a name.
    pub fn new(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Makes it the parking of a passive instance, which is loaded but given no work.
    pub fn passive(self) -> Self {
        Self { is_passive: true, ..self }
    }

    /// Makes it the parking of an instance under the rate limit, with its id there.
    pub fn limited(self, rate_id: usize) -> Self {
        Self { rate_id: Some(rate_id), ..self }
    }

    /// Makes it the parking of an instance of this group.
    pub fn of_group(self, group: usize) -> Self {
        self.set_group(group);
        self
    }

    /// Returns the index of the instance group.
    pub fn group(&self) -> usize {
        self.group.load(Ordering::Relaxed)
    }

    /// Sets the index of the instance group.
    pub(super) fn set_group(&self, group: usize) {
        self.group.store(group, Ordering::Relaxed);
    }

    /// Returns the stage of its instance.
    pub fn stage(&self) -> InstanceStage {
        InstanceStage::from_number(self.stage.load(Ordering::SeqCst))
    }

    /// Sets the stage of its instance. The caller has the lock of the queue.
    pub(super) fn set_stage(&self, stage: InstanceStage) {
        self.stage.store(stage.number(), Ordering::SeqCst);
    }

    /// Makes it the parking of another instance, whose thread is another: any thread may sleep here from now on.
    /// Returns false if there is no file descriptor for that.
    pub(super) fn reuse(&self) -> bool {
        self.share();
        self.set_full(false);
        self.wake_file.get().is_some()
    }

    /// Returns the name of its instance.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if its instance gets no work.
    pub const fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// Returns the id of its instance under the rate limit.
    pub const fn rate_id(&self) -> Option<usize> {
        self.rate_id
    }

    /// Returns the batches that its instance took.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Its instance took a batch.
    pub(super) fn count_batch(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the times that its thread was woken.
    pub(super) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Returns the times that its instance was lost and replaced.
    pub(super) fn restarts(&self) -> usize {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Another instance was made in the place of a lost one.
    pub(super) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Its instance begins to run a batch.
    pub(super) fn set_run(&self, rows: u32, now: Instant) {
        self.began.store(now.as_nanos(), Ordering::Relaxed);
        if self.busy_since.load(Ordering::Relaxed) == 0 {
            self.busy_since.store(now.as_nanos().max(1), Ordering::Relaxed);
        }
        let before = self.rows.swap(rows.max(1), Ordering::Relaxed);
        debug_assert_eq!(before, 0, "the run before was taken when its instance came back");
    }

    /// Takes the rows of the batch that its instance ran, and its start, if there was one.
    pub(super) fn take_run(&self) -> Option<(u32, Instant)> {
        let rows = self.rows.swap(0, Ordering::Relaxed);
        (rows > 0).then(|| (rows, Instant::from_nanos(self.began.load(Ordering::Relaxed))))
    }

    /// Its instance no longer has a batch.
    pub(super) fn handle_idle(&self, now: Instant) {
        let since = self.busy_since.load(Ordering::Relaxed);
        if since > 0 {
            let took = now.as_nanos().saturating_sub(since);
            // Before the time is added: a reader in between misses this time until it reads again,
            // and counts none twice.
            self.busy_since.store(0, Ordering::Relaxed);
            self.busy.store(self.busy.load(Ordering::Relaxed).saturating_add(took), Ordering::Release);
        }
    }

    /// Returns the time for which its instance had batches, with those that it has now.
    pub fn busy(&self, now: Instant) -> Duration {
        let ended = self.busy.load(Ordering::Acquire);
        let running = match self.busy_since.load(Ordering::Relaxed) {
            0 => 0,
            since => now.as_nanos().saturating_sub(since),
        };
        Duration::from_nanos(ended.saturating_add(running))
    }

    /// Sets its turn: of the idle instances, the one with the lowest is woken.
    pub fn set_turn(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Sets whether it has work and waits for resources.
    pub fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::SeqCst);
    }

    /// Sets whether its instance has no room for another batch.
    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    /// Makes the calling thread the one that sleeps here, on a file too if it has one.
    pub(super) fn take(&self, has_file: bool) {
        self.thread.get_or_init(sync::current);
        if has_file {
            self.share();
        }
    }

    /// Lets any thread sleep here: from the next sleep on, the wake file is woken and not the thread.
    pub(super) fn share(&self) {
        if self.wake_file.get().is_none()
            && let Ok(wake_file) = WakeFile::new()
        {
            self.wake_file.get_or_init(|| wake_file);
        }
    }

    /// Its thread is about to sleep. The caller looks for work once more afterwards, and clears the mark if it finds
    /// any.
    pub(super) fn announce(&self) {
        let kind = if self.wake_file.get().is_some() { SleepKind::File } else { SleepKind::Token };
        self.sleep.swap(kind.number(), Ordering::SeqCst);
        // The sleeper's half of Dekker's handshake: a thread that publishes work later sees the mark, or the caller's
        // second look sees the work.
        fence(Ordering::SeqCst);
    }

    /// Clears the mark that its thread sleeps or is about to, and returns whether it was set. A swap: of several threads
    /// that clear the mark, exactly one sees it set, and that one wakes the thread.
    pub(super) fn clear_parked(&self) -> bool {
        self.take_sleep() != SleepKind::Awake
    }

    fn take_sleep(&self) -> SleepKind {
        SleepKind::from_number(self.sleep.swap(SleepKind::Awake.number(), Ordering::SeqCst))
    }

    fn sleep(&self) -> SleepKind {
        SleepKind::from_number(self.sleep.load(Ordering::SeqCst))
    }

    /// Returns true if its thread sleeps, or is about to.
    pub(super) fn is_parked(&self) -> bool {
        self.sleep() != SleepKind::Awake
    }

    /// Wakes its thread if it sleeps, or is about to; returns true if so.
    pub fn unpark(&self) -> bool {
        // Usually it is awake, and a load does not take the cache line from other cores as a swap does.
        if !self.is_parked() {
            return false;
        }
        let kind = self.take_sleep();
        match (kind, self.wake_file.get(), self.thread.get()) {
            (SleepKind::Awake, ..) => return false,
            (SleepKind::File, Some(wake_file), _) => wake_file.wake(),
            (_, _, Some(thread)) => thread.unpark(),
            // A test has set the mark, and no thread sleeps.
            (_, _, None) => return true,
        }
        self.wakes.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Sleeps until another thread wakes it, until an instant, or until the file is readable.
    pub(super) fn park(&self, until: Option<Instant>, clock: Clock, file: Option<&OwnedFd>) {
        loop {
            // Both ways to sleep may end early, so the mark decides.
            let kind = self.sleep();
            if kind == SleepKind::Awake {
                return;
            }
            self.check_sleep(kind, until.is_some(), file.is_some());
            let left = until.map(|until| until.since(clock()));
            if left == Some(Duration::ZERO) {
                self.clear_parked();
                return;
            }
            match (kind, self.wake_file.get(), file) {
                (SleepKind::File, Some(wake_file), file) => {
                    if wake_file.sleep(file.map(AsFd::as_fd), left) == SleepEnd::Readable {
                        self.clear_parked();
                    }
                }
                // There was no descriptor for a wake file.
                (_, _, Some(_)) => {
                    sync::park_timeout(left.unwrap_or(FILE_PAUSE).min(FILE_PAUSE));
                    self.clear_parked();
                }
                (_, _, None) => left.map_or_else(sync::park, sync::park_timeout),
            }
        }
    }

    /// Checks that a waker can end the sleep: it knows only the mark.
    fn check_sleep(&self, kind: SleepKind, has_end: bool, has_file: bool) {
        let is_own = || self.thread.get().is_some_and(|thread| thread.id() == sync::current().id());
        debug_assert!(kind != SleepKind::File || self.wake_file.get().is_some(), "what it sleeps on is there");
        debug_assert!(kind == SleepKind::File || has_end || has_file || is_own(), "its token is the calling thread's");
    }

    pub(super) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// Returns true if it sleeps and would take a batch if it were woken.
    pub(super) fn is_idle(&self) -> bool {
        let is_taken = self.is_blocked.load(Ordering::SeqCst) || self.is_full.load(Ordering::SeqCst);
        self.is_parked() && !is_taken && !self.is_passive && self.stage() == InstanceStage::Serving
    }
}

/// The waker of batches in flight: the end of one wakes the instance's thread.
impl Wake for Parking {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The other half of the handshake with `ModelQueue::next_beside`: the thread sees the end of the batch, or this
        // sees the thread parked.
        fence(Ordering::SeqCst);
        self.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_busy_from_its_first_batch_until_it_has_none() {
        let (parking, at) = (Parking::default(), Instant::from_micros);
        let busy = |now: u64| parking.busy(at(now)).as_micros();
        assert_eq!(busy(5), 0);
        parking.set_run(1, at(10));
        assert_eq!(busy(13), 3, "while it runs");
        parking.take_run();
        // A second batch, while the first is in flight.
        parking.set_run(1, at(20));
        parking.take_run();
        parking.handle_idle(at(30));
        assert_eq!((busy(30), busy(99)), (20, 20));
        parking.handle_idle(at(40));
        assert_eq!(busy(99), 20, "it had none");
        parking.set_run(1, at(100));
        parking.take_run();
        parking.handle_idle(at(101));
        assert_eq!(busy(200), 21);
    }
}
