//! The batching policy of one model version: Triton's `dynamic_batching` as plain numbers, read by
//! the scheduler, by admission and by the shard that owns a request's timer. Never changes while
//! the model is served. Bounded by the configuration file: only levels with a policy of their own
//! take memory.

use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(feature = "test-hooks")]
use crate::hold::FirstBatchHold;
use base::limits::QUEUE_REQUESTS_MAX;
use base::policy::AdmissionRule;

/// The batching policy of one model version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rows in one batch; 0 or 1 where every request runs alone.
    pub rows_max: u32,
    /// True if entries may share a batch (`dynamic_batching`).
    pub is_batched: bool,
    /// Entries that may be in memory, including cancelled ones.
    pub entries_max: usize,
    /// Sizes at which a batch closes, ascending (`preferred_batch_size`); empty for `rows_max`
    /// alone.
    pub rows_preferred: Vec<u32>,
    /// The longest time that a batch waits to grow (`max_queue_delay_microseconds`).
    pub queue_delay_max: Duration,
    /// The latency that batch sizes and delays are chosen for, from measured run times (`target_latency_us`).
    pub latency_target: Option<Duration>,
    /// The rule by which requests are refused at once (`--admission`).
    pub admission: AdmissionRule,
    /// True if the rows of one request may run on several instances.
    pub splits_rows: bool,
    /// True if rows of one shape differ in length once they are there, so that instances divide batches into runs by themselves
    /// ([`PaddedRuns`](crate::PaddedRuns)): a batch of more rows costs what its rows cost.
    pub rows_differ: bool,
    /// True if responses leave in the order in which their requests came (`preserve_ordering`).
    pub preserves_order: bool,
    /// Number of priority levels, 1 being the highest; 0 for a single queue.
    pub priority_levels: u64,
    /// The level of a request that names none or an unknown one.
    pub priority_default: u64,
    /// The policy of levels that have none of their own (`default_queue_policy`).
    pub queue_default: QueuePolicy,
    /// Policies by level (`priority_queue_policy`).
    pub queue_by_level: BTreeMap<u64, QueuePolicy>,
    /// The numbers of requests that the first batch waits for.
    #[cfg(feature = "test-hooks")]
    pub hold: FirstBatchHold,
}

/// Timeouts and length of the queue of one priority level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePolicy {
    /// The action for a request whose timeout has passed.
    pub timeout_action: TimeoutAction,
    /// The queue timeout of every request; zero for none.
    pub timeout_default: Duration,
    /// True if a request may shorten it (`allow_timeout_override`).
    pub may_override: bool,
    /// Requests that may wait; 0 if the level has no bound of its own.
    pub entries_max: usize,
}

/// The action for a request whose queue timeout has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeoutAction {
    /// It goes behind all requests of its level whose timeout has not passed.
    Delay,
    /// It is refused.
    #[default]
    Reject,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rows_max: 0,
            is_batched: false,
            entries_max: QUEUE_REQUESTS_MAX,
            rows_preferred: Vec::new(),
            queue_delay_max: Duration::ZERO,
            latency_target: None,
            admission: AdmissionRule::None,
            splits_rows: false,
            rows_differ: false,
            preserves_order: false,
            priority_levels: 0,
            priority_default: 0,
            queue_default: QueuePolicy::default(),
            queue_by_level: BTreeMap::new(),
            #[cfg(feature = "test-hooks")]
            hold: FirstBatchHold::default(),
        }
    }
}

impl Policy {
    /// The level of a request with this `priority` parameter. Without levels it is 0.
    pub const fn level(&self, priority: u64) -> u64 {
        match priority {
            _ if self.priority_levels == 0 => 0,
            0 => self.priority_default,
            priority if priority > self.priority_levels => self.priority_default,
            priority => priority,
        }
    }

    /// Returns true if the size of batches follows from the cost of their rows, since nothing else
    /// sets it.
    pub const fn learns_row_costs(&self) -> bool {
        self.is_batched
            && self.rows_max > 1
            && self.rows_preferred.is_empty()
            && self.queue_delay_max.is_zero()
            && self.latency_target.is_none()
    }

    /// The queue policy of a level.
    pub fn queue(&self, level: u64) -> &QueuePolicy {
        match self.priority_levels {
            0 => &self.queue_default,
            _ => self.queue_by_level.get(&level).unwrap_or(&self.queue_default),
        }
    }

    /// Rows in one batch, at least 1.
    pub(super) fn rows_max(&self) -> u32 {
        self.rows_max.max(1)
    }

    /// Returns true if a batch of `rows` rows closes.
    pub(super) fn is_preferred(&self, rows: u32) -> bool {
        match self.rows_preferred.as_slice() {
            [] => rows == self.rows_max(),
            sizes => sizes.binary_search(&rows).is_ok(),
        }
    }

    /// The largest size at which a batch closes.
    pub(super) fn rows_preferred_max(&self) -> u32 {
        self.rows_preferred.last().copied().unwrap_or_else(|| self.rows_max())
    }
}

impl QueuePolicy {
    /// Returns the longest wait of a request with this `timeout` parameter (zero for none). It may
    /// lower the default, but not raise it, and has no effect without a default.
    #[inline]
    pub fn timeout(&self, requested: Duration) -> Option<Duration> {
        let is_lower = self.may_override && !requested.is_zero() && requested < self.timeout_default;
        let timeout = if is_lower { requested } else { self.timeout_default };
        (!timeout.is_zero()).then_some(timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_outside_the_levels_is_the_default_level() {
        let policy = Policy { priority_levels: 3, priority_default: 2, ..Policy::default() };
        for (priority, level) in [(0, 2), (1, 1), (2, 2), (3, 3), (4, 2), (u64::MAX, 2)] {
            assert_eq!(policy.level(priority), level, "{priority}");
        }
        assert_eq!(Policy::default().level(7), 0);
    }

    #[test]
    fn a_level_without_a_policy_of_its_own_has_the_default() {
        let own = QueuePolicy { entries_max: 2, ..QueuePolicy::default() };
        let queue_default = QueuePolicy { entries_max: 9, ..QueuePolicy::default() };
        let queue_by_level = BTreeMap::from([(2, own)]);
        let policy = Policy { priority_levels: 3, queue_default, queue_by_level, ..Policy::default() };
        assert_eq!((policy.queue(1).entries_max, policy.queue(2).entries_max), (9, 2));
        let plain = Policy { priority_levels: 0, ..policy };
        assert_eq!(plain.queue(0).entries_max, 9);
    }

    #[test]
    fn a_requests_timeout_lowers_the_default_and_never_raises_it() {
        let check = |default: u64, may_override: bool, requested: u64, want: Option<u64>| {
            let timeout_default = Duration::from_micros(default);
            let policy = QueuePolicy { timeout_default, may_override, ..QueuePolicy::default() };
            let got = policy.timeout(Duration::from_micros(requested));
            assert_eq!(got, want.map(Duration::from_micros), "{default} {may_override} {requested}");
        };
        check(0, false, 0, None);
        check(0, true, 5, None);
        check(9, true, 0, Some(9));
        check(9, true, 5, Some(5));
        check(9, true, 20, Some(9));
        check(9, false, 5, Some(9));
    }

    #[test]
    fn without_preferred_sizes_the_largest_batch_is_the_one() {
        let policy = Policy { rows_max: 8, ..Policy::default() };
        assert_eq!((policy.is_preferred(8), policy.is_preferred(4), policy.rows_preferred_max()), (true, false, 8));
        let policy = Policy { rows_preferred: vec![2, 4], ..policy };
        assert_eq!((policy.is_preferred(8), policy.is_preferred(4), policy.rows_preferred_max()), (false, true, 4));
        assert_eq!(Policy::default().rows_preferred_max(), 1);
    }
}
