//! What a batch should be, written a second time, from the words of Triton's documentation and
//! without an eye on cost: over the whole queue, in order.

use deuteron::scheduler::Policy;
use deuteron::time::Instant;

/// One request that waits.
#[derive(Clone, Copy)]
pub struct Waiting {
    pub rows: u32,
    pub shape: i64,
    pub queued_at: Instant,
}

/// How many of the queue an idle instance should run; `None` to wait.
pub fn release(policy: &Policy, queue: &[Waiting], now: Instant) -> Option<usize> {
    let first = queue.first()?;
    if !policy.is_batched {
        return Some(1);
    }
    let delay = policy.queue_delay_max;
    let rows_max = policy.rows_max.max(1);
    let rows = |count: usize| queue[..count].iter().map(|waiting| waiting.rows.max(1)).sum::<u32>();
    let largest = policy.rows_preferred.iter().copied().max().unwrap_or(rows_max);
    let is_preferred = |count: &usize| match policy.rows_preferred.as_slice() {
        [] => rows(*count) == rows_max,
        sizes => sizes.contains(&rows(*count)),
    };
    // One batch: of one shape, and not too large unless it is one request.
    let is_batch = |count: &usize| {
        queue[..*count].iter().all(|waiting| waiting.shape == first.shape) && (rows(*count) <= rows_max || *count == 1)
    };
    let most = (1..=queue.len()).take_while(is_batch).last()?;
    let is_late = !delay.is_zero() && queue[..most].iter().any(|waiting| now.since(waiting.queued_at) >= delay);
    let preferred = (1..=most).rev().find(is_preferred);
    // None to be had: as many as come before the largest preferred size is passed.
    let before = || (1..=most).find(|count| *count < queue.len() && rows(count + 1) > largest);
    match preferred.or_else(before) {
        Some(count) if !is_late => Some(count),
        _ if most < queue.len() || rows(most) >= largest || is_late || delay.is_zero() => Some(most),
        _ => None,
    }
}
