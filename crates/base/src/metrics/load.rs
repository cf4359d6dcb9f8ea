//! The load of the server, between the task that looks at it and the answers that report it. The
//! task looks only while requests ask for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::metrics::batches;
use crate::metrics::gpus::Gauge;
use crate::metrics::{BatchFigures, ModelFigures, nanos_of};

/// The load at the last look. One task writes, all shards read.
#[derive(Debug, Default)]
pub struct LoadBoard {
    is_asked: AtomicBool,
    /// Millionths of their time that the instances of the busiest group ran.
    pub utilization: Gauge,
    /// Requests in a thousand seconds.
    pub requests_per_1000s: Gauge,
    /// Millionths of its bound that the fullest queue holds.
    pub queue: Gauge,
}

impl LoadBoard {
    /// A request asks for the load.
    pub fn ask(&self) {
        // A load first: the line stays shared among the shards.
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
    }

    /// Marks all figures as unknown.
    pub fn clear(&self) {
        for gauge in [&self.utilization, &self.requests_per_1000s, &self.queue] {
            gauge.set(None);
        }
    }

    /// Returns true if a request has asked since the last call.
    pub fn take_asked(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }
}

impl ModelFigures<'_> {
    /// Time that its instances have run batches.
    pub fn busy(&self) -> Duration {
        let nanos = |batch: &BatchFigures| batch.compute_input + batch.compute_infer + batch.compute_output;
        Duration::from_nanos(batches::sum(self.batch_cells()).iter().map(nanos).sum())
    }
}

/// Millionths of `elapsed` that `instances` were busy for, at most all of it.
pub fn utilization(busy: Duration, instances: usize, elapsed: Duration) -> u64 {
    let all = u128::from(nanos_of(elapsed)) * instances as u128;
    let share = u128::from(nanos_of(busy)) * 1_000_000;
    share.checked_div(all).map_or(0, |share| u64::try_from(share.min(1_000_000)).unwrap_or(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_busy_for_a_share_of_their_time() {
        let seconds = Duration::from_secs;
        assert_eq!(utilization(seconds(1), 2, seconds(2)), 250_000);
        assert_eq!(utilization(seconds(9), 2, seconds(2)), 1_000_000);
        assert_eq!(utilization(seconds(1), 0, seconds(2)), 0);
        assert_eq!(utilization(seconds(1), 1, Duration::ZERO), 0);
    }

    #[test]
    fn the_board_knows_whether_it_was_asked() {
        let board = LoadBoard::default();
        assert!(!board.take_asked());
        board.ask();
        board.ask();
        assert!(board.take_asked() && !board.take_asked());
        board.queue.set(Some(1));
        board.clear();
        assert_eq!(board.queue.get(), None);
    }
}
