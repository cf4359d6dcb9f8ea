//! Reference for batches, written a second time, from the words of Triton's documentation and
//! without an eye on cost: over the whole queue, in order.

use std::time::Duration;

use base::time::Instant;
use scheduler::Policy;

/// One request that waits.
#[derive(Clone, Copy)]
pub struct Waiting {
    pub rows: u32,
    pub shape: i64,
    pub queued_at: Instant,
    pub deadline: Option<Instant>,
}

/// Run time of a batch of some rows; `None` if it is not known.
pub type RunBound<'a> = &'a dyn Fn(u32) -> Option<Duration>;

/// Number of requests that an idle instance should run from the front of the queue; `None` to wait.
pub fn release(policy: &Policy, queue: &[Waiting], run_bound: RunBound<'_>, now: Instant) -> Option<usize> {
    if queue.is_empty() || !policy.is_batched {
        return queue.first().map(|_| 1);
    }
    let largest = policy.rows_preferred.iter().copied().max().unwrap_or(policy.rows_max.max(1));
    let is_preferred = |count: &usize| match policy.rows_preferred.as_slice() {
        [] => rows(queue, *count) == policy.rows_max.max(1),
        sizes => sizes.contains(&rows(queue, *count)),
    };
    let most = most(policy, queue);
    let close_at = close_at(policy, queue, run_bound);
    let is_late = close_at.is_some_and(|at| at <= now);
    let preferred = (1..=most).rev().find(is_preferred);
    // No preferred size fits: as many as fit below the largest preferred size.
    let before = || (1..=most).find(|count| *count < queue.len() && rows(queue, count + 1) > largest);
    match preferred.or_else(before) {
        Some(count) if !is_late => Some(count),
        _ if most < queue.len() || rows(queue, most) >= largest || is_late || close_at.is_none() => Some(most),
        _ => None,
    }
}

/// Instant at which the front of the queue, as large as one batch may be, stops waiting for further
/// requests: one of its requests has waited as long as it may, or would be late. `None` if it does
/// not wait.
pub fn close_at(policy: &Policy, queue: &[Waiting], run_bound: RunBound<'_>) -> Option<Instant> {
    if policy.queue_delay_max.is_zero() || !policy.is_batched {
        return None;
    }
    let most = most(policy, queue);
    let run = run_bound(rows(queue, most));
    let late = queue[..most].iter().filter_map(|waiting| Some(waiting.deadline? - run?));
    queue[..most].iter().map(|waiting| waiting.queued_at + policy.queue_delay_max).chain(late).min()
}

/// Largest number of requests in one batch: of one shape, and not too large unless it is one
/// request.
fn most(policy: &Policy, queue: &[Waiting]) -> usize {
    let is_batch = |count: &usize| {
        queue[..*count].iter().all(|waiting| waiting.shape == queue[0].shape)
            && (rows(queue, *count) <= policy.rows_max.max(1) || *count == 1)
    };
    (1..=queue.len()).take_while(is_batch).last().unwrap_or(0)
}

fn rows(queue: &[Waiting], count: usize) -> u32 {
    queue[..count].iter().map(|waiting| waiting.rows.max(1)).sum()
}
