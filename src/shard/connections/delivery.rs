//! Detects a client that does not take the bytes that the kernel holds for it. The kernel's buffers
//! swallow whole answers, so that a successful write does not show that the client reads. Called by
//! a connection with the time and the kernel's counts; bounded by the write timeout. Two fields are
//! written for a send, and the kernel is asked once in the timeout.

use std::time::Duration;

use crate::limits::BODY_STEP_SIZE;
use crate::time::Instant;

/// The bytes that a client must take, and the deadline.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeliveryWatch {
    /// The instant of the next check; `None` while the client has everything.
    due: Option<Instant>,
    /// Bytes that it had to take when the period began or soon after.
    old: usize,
    /// Bytes that were sent later.
    new: usize,
}

/// The part of the timeout, as a divisor, in which sent bytes count as old: an answer is sent in
/// pieces.
const SOON_PART: u32 = 8;

impl DeliveryWatch {
    /// `count` bytes were given to the kernel.
    pub fn handle_sent(&mut self, count: usize, now: Instant, timeout: Duration) {
        let due = *self.due.get_or_insert(now + timeout);
        let is_soon = now + timeout - timeout / SOON_PART <= due;
        let sum = if is_soon { &mut self.old } else { &mut self.new };
        *sum = sum.saturating_add(count);
    }

    /// The instant at which the kernel is to be asked, even if nothing happens.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Checks the client if that is due: `unacknowledged` asks the kernel for the bytes that the
    /// client's machine has not taken yet. Returns true if the client has stalled: it took neither
    /// all old bytes nor [`BODY_STEP_SIZE`] bytes in the timeout.
    pub fn is_stalled(&mut self, now: Instant, timeout: Duration, unacknowledged: impl FnOnce() -> usize) -> bool {
        if self.due.is_none_or(|due| due > now) {
            return false;
        }
        let left = unacknowledged();
        if left == 0 {
            *self = Self::default();
            return false;
        }
        let taken = self.old.saturating_add(self.new).saturating_sub(left);
        if left > self.new && taken < BODY_STEP_SIZE {
            return true;
        }
        *self = Self { due: Some(now + timeout), old: left, new: 0 };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_stalls_that_takes_less_than_a_step_and_not_all() {
        let timeout = Duration::from_secs(30);
        let at = |seconds: u64| Instant::from_micros(seconds * 1_000_000);
        let check = |sent: usize, looks: &[usize], want: Option<usize>| {
            let mut delivery = DeliveryWatch::default();
            delivery.handle_sent(sent, at(0), timeout);
            assert_eq!(delivery.poll_timeout(), Some(at(30)));
            assert!(!delivery.is_stalled(at(29), timeout, || unreachable!("it is not due")));
            let stalled = looks.iter().enumerate().find_map(|(index, left)| {
                delivery.is_stalled(at(30 * (index as u64 + 1)), timeout, || *left).then_some(index)
            });
            assert_eq!(stalled, want, "{sent} {looks:?}");
        };
        check(200, &[0, 9], None);
        check(200, &[200], Some(0));
        check(200, &[1], Some(0));
        check(4_000_000, &[4_000_000], Some(0));
        check(4_000_000, &[4_000_000 - BODY_STEP_SIZE + 1], Some(0));
        check(4_000_000, &[4_000_000 - BODY_STEP_SIZE, 3_000_000, 2_999_999], Some(2));
        check(4_000_000, &[3_000_000, 0], None);
        // Bytes sent later have their own time, and do not make up for old ones.
        let later = |left: usize| {
            let mut delivery = DeliveryWatch::default();
            delivery.handle_sent(100, at(0), timeout);
            delivery.handle_sent(100, at(3), timeout);
            delivery.handle_sent(1_000_000, at(29), timeout);
            let is_stalled = delivery.is_stalled(at(30), timeout, || left);
            (is_stalled, delivery.poll_timeout())
        };
        assert_eq!(later(1_000_000), (false, Some(at(60))));
        assert_eq!(later(1_000_001), (true, Some(at(30))));
    }
}
