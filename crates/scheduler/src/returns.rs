//! Clients that ask again as soon as they are answered. Without this module eight such clients run in batches of one and
//! seven in turn: the first of them to come back finds an idle instance and runs alone, and the other seven wait for that
//! run. A batch then waits a moment for the clients that were just answered, if earlier ones came back that fast.
//! Pure; used by the scheduler where neither sizes, a delay nor a latency target are configured.
//!
//! The rows that come within the window after a run are counted after each run, also while no batch waits. Requests of an
//! open loop fill a window of an eighth of a run by an eighth, so that they count as clients that do not return. Arrivals
//! are told late: those of a window may come after the end of the next run, so it is judged then.

use std::time::Duration;

use crate::run_time::RunTimes;
use base::time::Instant;

/// The window after a run, as a part of the run: the most that a wait in vain costs.
const WINDOW_PART: u32 = 8;
/// Shorter runs have no window: waking a thread takes longer than the wait.
const RUN_MIN: Duration = Duration::from_millis(1);
/// The part of the answered rows that must come back for a run to count, and the share of such runs from which batches
/// wait.
const RETURNED_PART_MIN: f64 = 0.75;
const SHARE_MIN: f64 = 0.75;
/// Weight of a new run in the share: seven runs in a row reach [`SHARE_MIN`].
const SHARE_GAIN: f64 = 0.2;

/// The clients of a model that were answered last, and how often those before them came back at once.
#[derive(Clone, Debug, Default)]
pub struct Returns {
    /// The share of runs after which clients came back within the window, smoothed.
    share: f64,
    /// The window after the last run.
    window: Option<ReturnWindow>,
    /// The one before it, until it is judged.
    earlier: Option<ReturnWindow>,
    /// The later end of both: most requests come after it.
    last_until: Instant,
    /// True while a batch waits: then another run does not make the wait longer.
    is_held: bool,
}

#[derive(Clone, Copy, Debug)]
struct ReturnWindow {
    /// The end of the run, and the longest wait from then on.
    since: Instant,
    length: Duration,
    /// The end of all waits.
    until: Instant,
    /// Rows of the run that it follows, and of the requests that came within it.
    answered: u32,
    returned: u32,
}

impl Returns {
    /// A run of `rows` rows that took `took` ended now, with nothing else on its instance.
    pub fn handle_run(&mut self, rows: u32, took: Duration, now: Instant) {
        self.judge_earlier();
        let last = self.window.take();
        self.earlier = last;
        if took < RUN_MIN {
            return;
        }
        let length = took / WINDOW_PART;
        let until = now + length;
        let until = last.filter(|_| self.is_held).map_or(until, |last| last.until.min(until));
        self.window = Some(ReturnWindow { since: now, length, until, answered: rows.max(1), returned: 0 });
        self.last_until = self.last_until.max(until);
    }

    fn judge_earlier(&mut self) {
        let Some(earlier) = self.earlier.take() else { return };
        let has_returned = f64::from(earlier.returned) >= f64::from(earlier.answered) * RETURNED_PART_MIN;
        self.share += SHARE_GAIN * (f64::from(u8::from(has_returned)) - self.share);
        debug_assert!((0.0..=1.0).contains(&self.share), "a share of runs");
    }

    /// A request of `rows` rows arrived.
    pub fn handle_request(&mut self, rows: u32, queued_at: Instant) {
        if queued_at >= self.last_until {
            return;
        }
        for window in [&mut self.earlier, &mut self.window].into_iter().flatten() {
            if window.since <= queued_at && queued_at < window.until {
                window.returned = window.returned.saturating_add(rows.max(1));
            }
        }
    }

    /// A batch left the queue.
    pub const fn handle_batch(&mut self) {
        self.is_held = false;
    }

    /// Returns the time until which a batch of `rows` rows waits for clients to return, and the rows that are missing;
    /// `None` if it should leave now.
    pub fn poll_hold(&mut self, rows: u32, rows_max: u32, now: Instant, times: &RunTimes) -> Option<(Instant, u32)> {
        if self.earlier.is_some_and(|earlier| earlier.until <= now) {
            self.judge_earlier();
        }
        let window = self.window.filter(|_| self.share >= SHARE_MIN)?;
        let missing = window.answered.saturating_sub(window.returned).min(rows_max.saturating_sub(rows));
        let wait = saving(rows, missing, times).map_or(window.length, |saving| saving.min(window.length));
        let until = window.until.min(window.since + wait);
        if missing == 0 || until <= now {
            return None;
        }
        self.is_held = true;
        Some((until, missing))
    }
}

/// Returns the time that one run of all rows saves beside two runs; `None` for a size that never ran. A wait for as long as
/// it saves costs at most twice the best choice.
fn saving(rows: u32, missing: u32, times: &RunTimes) -> Option<Duration> {
    let all = rows.saturating_add(missing);
    if !times.has_run(all) {
        return None;
    }
    let apart = times.expected(rows)? + times.expected(missing)?;
    Some(apart.saturating_sub(times.expected(all)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Claims, Entry, Policy, Scheduler, ShapeKey};

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    struct AllWait;

    impl Claims<u64> for AllWait {
        fn is_waiting(&mut self, _: &u64) -> bool {
            true
        }

        fn claim(&mut self, _: &u64) -> bool {
            true
        }
    }

    /// The time of a run by its number of rows, in microseconds.
    type BatchTime = fn(u64) -> u64;

    /// One instance and its arrivals: clients that come back after an answer, or an open loop.
    struct Loop {
        scheduler: Scheduler<u64>,
        /// Arrivals to come, by time.
        arrivals: Vec<u64>,
        /// The batches so far, and the latencies of their requests.
        sizes: Vec<u32>,
        latencies: Vec<u64>,
    }

    impl Loop {
        fn new(policy: Policy, arrivals: Vec<u64>) -> Self {
            Self { scheduler: Scheduler::new(policy), arrivals, sizes: Vec::new(), latencies: Vec::new() }
        }

        fn admit(&mut self, now: u64) {
            self.arrivals.sort_unstable();
            let count = self.arrivals.partition_point(|at| *at <= now);
            for at in self.arrivals.drain(..count) {
                let (queued_at, shape_key, timeout) = (Instant::from_micros(at), ShapeKey::new(), Duration::ZERO);
                let entry = Entry { token: at, rows: 1, shape_key, queued_at, priority: 0, timeout, deadline: None };
                self.scheduler.handle_request(entry, Instant::from_micros(now)).unwrap();
            }
        }

        /// Plays `count` batches. An answered client comes back after `back(number)` microseconds; `None` if it does not.
        fn play(mut self, count: usize, batch_time: BatchTime, back: impl Fn(usize) -> Option<u64>) -> Self {
            let mut now = 0;
            while self.sizes.len() < count {
                self.admit(now);
                let at = Instant::from_micros(now);
                let Some(batch) = self.scheduler.poll_batch(at, &mut AllWait) else {
                    let timeout = self.scheduler.poll_timeout().map(|at| at.as_nanos() / 1000);
                    now = self.arrivals.first().copied().into_iter().chain(timeout).min().unwrap().max(now + 1);
                    continue;
                };
                let took = batch_time(u64::from(batch.rows));
                // Those that come meanwhile wait in the rings until the end of the run was told.
                now += took;
                self.sizes.push(batch.rows);
                for token in batch.tokens {
                    self.arrivals.extend(back(self.latencies.len()).map(|after| now + after));
                    self.latencies.push(now - token);
                }
                self.scheduler.handle_run(batch.rows, micros(took));
                self.scheduler.handle_lone_run(batch.rows, micros(took), Instant::from_micros(now));
            }
            self
        }

        /// The sizes of the last batches.
        fn tail(&self) -> &[u32] {
            &self.sizes[self.sizes.len() - 40..]
        }

        fn percentile(&self, part: f64) -> u64 {
            let mut last = self.latencies[self.latencies.len() / 2..].to_vec();
            last.sort_unstable();
            last[((last.len() - 1) as f64 * part) as usize]
        }
    }

    fn policy(rows_max: u32) -> Policy {
        Policy { is_batched: true, rows_max, ..Policy::default() }
    }

    /// As MiniLM: 6.9 ms for a text alone, 5.1 for each of eight.
    const fn text_time(rows: u64) -> u64 {
        1_800 + 5_100 * rows
    }

    /// Clients come back after 50 to 300 microseconds.
    fn soon(number: usize) -> Option<u64> {
        Some(50 + (number as u64 * 2_654_435_761) % 250)
    }

    #[test]
    fn clients_that_come_back_at_once_run_together() {
        let play = |clients: usize, policy: Policy| {
            let arrivals = (0..clients as u64).map(|client| client * 100).collect();
            Loop::new(policy, arrivals).play(20_000, text_time, soon)
        };
        for clients in [2, 5, 8] {
            let together = play(clients, policy(8));
            let others = together.tail().iter().filter(|rows| **rows as usize != clients).count();
            assert!(others <= 2, "trials of other sizes aside: {clients}, {:?}", together.tail());
            // With configured sizes no batch waits: clients run in turns.
            let apart = play(clients, Policy { rows_preferred: (1..=8).collect(), ..policy(8) });
            assert!(apart.tail().iter().all(|rows| (*rows as usize) < clients), "{clients}: {:?}", apart.tail());
            for part in [0.5, 0.99] {
                let (before, after) = (apart.percentile(part), together.percentile(part));
                assert!(after < before, "{clients} clients, {part}: {after} of {before} µs");
            }
            let tail = together.percentile(0.99) as f64 / together.percentile(0.5) as f64;
            assert!(tail < 1.05, "{clients} clients: p99 is {tail} of p50");
        }
    }

    #[test]
    fn no_batch_waits_for_clients_that_do_not_come_back() {
        // The share of the run times that the instance is idle while requests wait.
        let waits = |arrivals: Vec<u64>, batch_time: BatchTime, back: fn(usize) -> Option<u64>| {
            let mut trial = Loop::new(policy(8), arrivals).play(300, batch_time, back);
            let held = trial.scheduler.returns.as_mut().unwrap();
            held.handle_run(4, micros(8_000), Instant::from_micros(1 << 40));
            held.poll_hold(1, 8, Instant::from_micros((1 << 40) + 1), &RunTimes::new()).is_some()
        };
        let eight: Vec<u64> = (0..8).map(|client| client * 100).collect();
        assert!(waits(eight.clone(), text_time, soon), "the check finds those that do");
        assert!(!waits(eight.clone(), text_time, |_| Some(20_000)), "clients that think for 20 ms");
        assert!(!waits(eight, |_| 900, soon), "runs below a millisecond");
        let open = |gap: u64| (0..4_000).map(|number| number * gap + (number * 7_919) % gap).collect();
        for gap in [900, 2_000, 6_000] {
            assert!(!waits(open(gap), |rows| 3_000 + 400 * rows, |_| None), "an open loop, one in {gap} µs");
        }
    }

    #[test]
    fn rows_that_save_no_time_together_do_not_wait() {
        let arrivals: Vec<u64> = (0..8).map(|client| client * 100).collect();
        let trial = Loop::new(policy(8), arrivals).play(2_000, |rows| 5_000 * rows, soon);
        // Trials of sizes aside, the instance never waited while a request did: all time was spent running.
        let run: u64 = trial.sizes[1_000..].iter().map(|rows| 5_000 * u64::from(*rows)).sum();
        let rows: u64 = trial.sizes[1_000..].iter().map(|rows| u64::from(*rows)).sum();
        assert_eq!(run, 5_000 * rows);
        assert!(trial.percentile(0.99) <= 46_000, "{}", trial.percentile(0.99));
    }

    #[test]
    fn a_wait_ends_with_the_window_and_is_made_no_longer_by_another_run() {
        let (mut returns, times) = (Returns::default(), RunTimes::new());
        let at = Instant::from_micros;
        for run in 0..10 {
            returns.handle_run(2, micros(8_000), at(run * 10_000));
            assert_eq!(returns.poll_hold(1, 8, at(run * 10_000), &times).is_some(), run > 6, "after {run} runs");
            returns.handle_request(2, at(run * 10_000 + 1));
            returns.handle_batch();
        }
        returns.handle_run(4, micros(8_000), at(200_000));
        assert_eq!(returns.poll_hold(1, 8, at(200_000), &times), Some((at(201_000), 4)));
        returns.handle_request(3, at(200_100));
        assert_eq!(returns.poll_hold(4, 8, at(200_100), &times), Some((at(201_000), 1)));
        // Another instance ends a run meanwhile.
        returns.handle_run(4, micros(8_000), at(200_900));
        assert_eq!(returns.poll_hold(4, 8, at(200_900), &times), Some((at(201_000), 4)));
        assert_eq!(returns.poll_hold(4, 6, at(200_900), &times), Some((at(201_000), 2)));
        assert_eq!(returns.poll_hold(8, 8, at(200_900), &times), None, "a full batch");
        assert_eq!(returns.poll_hold(4, 8, at(201_000), &times), None, "the window is over");
    }
}
