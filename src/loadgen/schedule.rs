//! The arrivals of an open loop: when each request is due, independent of earlier answers. Pure: offsets from the start of
//! the load, computed from a rate and a seed.

use std::time::Duration;

use crate::loadgen::random::Random;

/// The distribution of the gaps between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Equal gaps.
    Constant,
    /// Exponential gaps: independent arrivals, as from many clients.
    Poisson,
}

/// The arrivals of one load thread, in order.
///
/// ```
/// use std::time::Duration;
///
/// use deuteron::loadgen::schedule::{Distribution, Schedule, ThreadShare};
///
/// let share = ThreadShare { index: 1, count: 2 };
/// let mut schedule = Schedule::new(1000.0, Distribution::Constant, 42, share);
/// assert_eq!(schedule.next_due(), Duration::from_millis(1));
/// assert_eq!(schedule.next_due(), Duration::from_millis(3));
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    distribution: Distribution,
    /// Requests per second of all threads.
    rate: f64,
    share: ThreadShare,
    random: Random,
    index: u64,
    /// The last arrival drawn, in seconds from the start.
    drawn: f64,
}

/// One load thread among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadShare {
    /// The thread's index, from 0.
    pub index: usize,
    /// The number of threads, at least 1.
    pub count: usize,
}

impl Schedule {
    /// The arrivals of one thread. `rate` is that of all threads together, in requests per second.
    pub const fn new(rate: f64, distribution: Distribution, seed: u64, share: ThreadShare) -> Self {
        // Independent Poisson processes add up to one with the sum of their rates, so each thread draws its own.
        let random = Random::new(seed.wrapping_add((share.index as u64).wrapping_mul(0x9e37_79b9)));
        Self { distribution, rate, share, random, index: 0, drawn: 0.0 }
    }

    /// Returns the time at which the next request is due, from the start.
    pub fn next_due(&mut self) -> Duration {
        let threads = self.share.count.max(1) as f64;
        let seconds = match self.distribution {
            // Computed from the index, so that rounding errors do not add up.
            Distribution::Constant => (self.index as f64).mul_add(threads, self.share.index as f64) / self.rate,
            Distribution::Poisson => {
                self.drawn -= (1.0 - self.random.next_unit()).ln() * threads / self.rate;
                self.drawn
            }
        };
        self.index += 1;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: ThreadShare = ThreadShare { index: 0, count: 1 };

    fn arrivals(mut schedule: Schedule, count: usize) -> Vec<Duration> {
        (0..count).map(|_| schedule.next_due()).collect()
    }

    #[test]
    fn a_constant_rate_is_exact_however_long_it_runs() {
        let mut schedule = Schedule::new(3000.0, Distribution::Constant, 1, ALONE);
        let last = (0..=3_000_000).map(|_| schedule.next_due()).last().unwrap();
        assert_eq!(last, Duration::from_secs(1000));
    }

    #[test]
    fn threads_at_a_constant_rate_take_turns() {
        let share = |index| Schedule::new(1000.0, Distribution::Constant, 1, ThreadShare { index, count: 2 });
        assert_eq!(arrivals(share(0), 3), [0, 2, 4].map(Duration::from_millis));
        assert_eq!(arrivals(share(1), 3), [1, 3, 5].map(Duration::from_millis));
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() {
        for count in [1, 4] {
            let share = ThreadShare { index: count - 1, count };
            let times = arrivals(Schedule::new(1000.0, Distribution::Poisson, 42, share), 100_000);
            let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let want = 0.001 * count as f64;
            assert!((mean / want - 1.0).abs() < 0.02, "{mean}");
            assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "an exponential's deviation is its mean");
        }
    }

    #[test]
    fn a_seed_decides_the_arrivals_and_each_thread_has_its_own() {
        let draw = |seed, index| {
            arrivals(Schedule::new(100.0, Distribution::Poisson, seed, ThreadShare { index, count: 2 }), 50)
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
    }
}
