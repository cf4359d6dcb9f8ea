//! Threads that are pinned to a core that others keep busy (`--pin=auto`): the kernel cannot move them to an idle core, and
//! each wake-up waits for the others' time to end. Such a thread gets all cores for a while.
//!
//! ```text
//! pinned ── waits a fifth of its work, twice ─► all cores ── 60 s, doubled each time ─► pinned
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::control::machine::cores;
use crate::control::machine::spawn::spawn;
use crate::log;
use crate::metrics::HostCells;
use crate::runtime::clock;
use crate::settings::{Pinning, Settings};
use crate::time::Instant;

/// The pause between two looks: hundreds of wake-ups of a thread that serves some load.
const INTERVAL: Duration = Duration::from_secs(1);
/// The share of its work, waiting and running, as a divisor, that a thread may wait for its core. A wake-up on an idle core
/// waits for some microseconds and runs for tens; one behind another program waits for milliseconds.
const WAIT_PART: u32 = 5;
/// Waiting between two looks that is no reason: a thread with so little to do.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Looks in a row that must all find that: a burst of the server's own work is over before.
const LOOKS: u32 = 2;
/// The time with all cores after the first time; a machine that is shared once is probably shared again.
const FREE_MIN: Duration = Duration::from_secs(60);
/// The longest such time.
const FREE_MAX: Duration = Duration::from_secs(3_600);

/// One look at a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinLook {
    /// Its id.
    pub thread: i32,
    /// The time that it has run since its start.
    pub ran: Duration,
    /// The time that it has waited for a core since its start.
    pub waited: Duration,
    /// The cores that it may use.
    pub cores: Vec<usize>,
}

/// The cores that a thread is to have from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinChange {
    /// The id of the thread.
    pub thread: i32,
    /// Its cores.
    pub cores: Vec<usize>,
}

/// A thread since it was first seen.
#[derive(Debug)]
struct Watched {
    ran: Duration,
    waited: Duration,
    /// Looks in a row that found it waiting.
    waits: u32,
    /// Its own cores and the end of the time with all of them, while it has that.
    free: Option<(Vec<usize>, Instant)>,
    /// The next time with all cores.
    pause: Duration,
}

/// The threads of the process.
#[derive(Debug, Default)]
pub struct PinWatch(BTreeMap<i32, Watched>);

impl PinWatch {
    /// Takes a look at all threads, and returns the changes. `all` are the cores of the process.
    pub fn poll(&mut self, now: Instant, looks: &[PinLook], all: &[usize]) -> Vec<PinChange> {
        self.0.retain(|thread, _| looks.iter().any(|look| look.thread == *thread));
        looks.iter().filter_map(|look| self.poll_thread(now, look, all)).collect()
    }

    fn poll_thread(&mut self, now: Instant, look: &PinLook, all: &[usize]) -> Option<PinChange> {
        let first = Watched { ran: look.ran, waited: look.waited, waits: 0, free: None, pause: FREE_MIN };
        let watched = self.0.entry(look.thread).or_insert(first);
        let (ran, waited) = (look.ran.saturating_sub(watched.ran), look.waited.saturating_sub(watched.waited));
        (watched.ran, watched.waited) = (look.ran, look.waited);
        if let Some((own, _)) = watched.free.take_if(|(_, until)| now >= *until) {
            watched.waits = 0;
            return Some(PinChange { thread: look.thread, cores: own });
        }
        let is_pinned = watched.free.is_none() && look.cores.len() < all.len();
        let has_waited = is_pinned && waited >= WAIT_MIN && waited.saturating_mul(WAIT_PART) >= ran + waited;
        watched.waits = if has_waited { watched.waits + 1 } else { 0 };
        if watched.waits < LOOKS {
            return None;
        }
        watched.waits = 0;
        watched.free = Some((look.cores.clone(), now + watched.pause));
        watched.pause = watched.pause.saturating_mul(2).min(FREE_MAX);
        Some(PinChange { thread: look.thread, cores: all.to_vec() })
    }
}

/// Returns true if threads may leave their cores: no flag names cores.
pub fn is_wanted(settings: &Settings) -> bool {
    settings.pinning == Pinning::Auto && settings.worker_cores.is_none() && settings.host_policies.is_empty()
}

/// Starts to look at the threads of this process. It ends when the cells have been dropped.
pub fn start(cells: &Arc<HostCells>) {
    let cells = Arc::downgrade(cells);
    let started = spawn("pin-watch".to_owned(), move || {
        let (mut watch, all) = (PinWatch::default(), cores::available());
        let mut is_told = false;
        while cells.strong_count() > 0 {
            for change in watch.poll(clock::now(), &looks(), &all) {
                let is_free = change.cores.len() == all.len();
                if apply(&change) && is_free && !is_told {
                    is_told = true;
                    log::info(
                        "other programs use the cores of pinned threads, which may run on all cores for a while (--pin)",
                    );
                }
            }
            std::thread::park_timeout(INTERVAL);
        }
    });
    if let Err(error) = started {
        log::warning(&format!("threads stay on their cores, even if other programs use these: {error}"));
    }
}

/// Returns true if the thread was still there.
fn apply(change: &PinChange) -> bool {
    let mut set = CpuSet::new();
    change.cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    Pid::from_raw(change.thread).is_some_and(|thread| sched_setaffinity(Some(thread), &set).is_ok())
}

/// Looks at the threads of this process now.
fn looks() -> Vec<PinLook> {
    let look = |name: &str| {
        let thread = name.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/self/task/{name}/schedstat")).ok()?;
        let set = sched_getaffinity(Some(Pid::from_raw(thread)?)).ok()?;
        let cores = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        let (ran, waited) = ran_and_waited(&stat)?;
        Some(PinLook { thread, ran, waited, cores })
    };
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads.filter_map(|entry| look(entry.file_name().to_str()?)).collect()
}

/// The first two fields of `schedstat`: nanoseconds in which it ran, and in which it was ready and had no core
/// (sched-stats.rst of Linux).
fn ran_and_waited(stat: &str) -> Option<(Duration, Duration)> {
    let mut fields = stat.split_ascii_whitespace().map(|field| field.parse().ok().map(Duration::from_nanos));
    Some((fields.next()??, fields.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [usize; 2] = [0, 1];

    /// A thread on core 0 that runs for 100 ms of each second and waits for `waits` ms; returns the seconds at which its cores
    /// change, with their new number.
    fn changes(waits: impl Fn(u64) -> u64, seconds: u64) -> Vec<(u64, usize)> {
        let (mut watch, mut ran, mut waited, mut cores) =
            (PinWatch::default(), Duration::ZERO, Duration::ZERO, vec![0]);
        let mut found = Vec::new();
        for second in 0..seconds {
            ran += Duration::from_millis(100);
            waited += Duration::from_millis(waits(second));
            let look = PinLook { thread: 7, ran, waited, cores: cores.clone() };
            let now = Instant::ZERO + Duration::from_secs(second);
            for change in watch.poll(now, &[look], &ALL) {
                cores = change.cores;
                found.push((second, cores.len()));
            }
        }
        found
    }

    #[test]
    fn a_thread_that_waits_for_its_core_has_all_of_them_for_a_while_and_longer_each_time() {
        assert_eq!(changes(|_| 24, 300), []);
        assert_eq!(changes(|_| 25, 70), [(2, 2), (62, 1), (64, 2)]);
        // One second of the server's own work is no other program.
        assert_eq!(changes(|second| if second % 2 == 0 { 900 } else { 0 }, 300), []);
        assert_eq!(changes(|second| if second < 10 { 500 } else { 0 }, 300), [(2, 2), (62, 1)]);
        assert_eq!(changes(|_| 500, 400), [(2, 2), (62, 1), (64, 2), (184, 1), (186, 2)]);
    }

    #[test]
    fn a_thread_with_all_cores_and_one_that_has_ended_are_left_alone() {
        let mut watch = PinWatch::default();
        let look = |thread, seconds: u64, cores: &[usize]| {
            let waited = Duration::from_secs(seconds);
            PinLook { thread, ran: Duration::ZERO, waited, cores: cores.to_vec() }
        };
        for second in 0..10 {
            let now = Instant::ZERO + Duration::from_secs(second);
            assert!(watch.poll(now, &[look(1, second, &ALL)], &ALL).is_empty());
            // Another thread each time, with the count of a long life.
            let short = look(i32::try_from(second).unwrap() + 2, 99, &[0]);
            assert!(watch.poll(now, &[short], &ALL).is_empty());
        }
    }

    #[test]
    fn this_thread_is_seen_with_its_cores_and_gets_others() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let seen = || looks().into_iter().find(|look| look.thread == own).unwrap();
        let before = seen();
        assert_eq!(before.cores, cores::available());
        assert!(apply(&PinChange { thread: own, cores: vec![before.cores[0]] }));
        assert_eq!(seen().cores, [before.cores[0]]);
        assert!(apply(&PinChange { thread: own, cores: before.cores.clone() }));
        assert_eq!(ran_and_waited("12 34 5\n"), Some((Duration::from_nanos(12), Duration::from_nanos(34))));
        assert_eq!(ran_and_waited("12"), None);
    }
}
