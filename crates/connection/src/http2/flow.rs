//! Flow control as a ledger (RFC 9113 §5.2, §6.9). The send window is a number that a change of settings can take below
//! zero. The receive window is split into three counts whose sum never changes.

use wire::http2::WINDOW_SIZE_MAX;

/// The window that a peer gave us, for a stream or for the connection: bytes granted less bytes sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendWindow {
    granted: i64,
    sent: i64,
}

impl SendWindow {
    pub(super) const fn new(size: u32) -> Self {
        Self { granted: size as i64, sent: 0 }
    }

    /// Bytes that may be sent.
    pub(super) fn room(self) -> usize {
        usize::try_from(self.size()).unwrap_or(0)
    }

    /// `size` bytes were sent, at most the room.
    pub(super) fn handle_sent(&mut self, size: usize) {
        debug_assert!(size <= self.room(), "{size} bytes do not fit into a window of {}", self.size());
        self.sent = self.sent.saturating_add_unsigned(size as u64);
        debug_assert!(size == 0 || self.size() >= 0, "only SETTINGS take a window below zero (§6.9.2)");
    }

    /// Bytes sent so far.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) const fn sent(self) -> i64 {
        self.sent
    }

    /// Grows by WINDOW_UPDATE or a change of SETTINGS_INITIAL_WINDOW_SIZE, which may be negative. False if the window is
    /// larger than allowed then (§6.9.1).
    pub(super) const fn grow(&mut self, by: i64) -> bool {
        self.granted = self.granted.saturating_add(by);
        self.size() <= WINDOW_SIZE_MAX as i64
    }

    /// Bytes of the window, which may be negative.
    pub(super) const fn size(self) -> i64 {
        self.granted.saturating_sub(self.sent)
    }
}

/// The window that we gave a peer. `room + held + owed` is its initial size at all times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveWindow {
    /// Bytes that the peer may still send.
    room: u32,
    /// Bytes received that still occupy memory of the window.
    held: u32,
    /// Bytes that became free, and that no WINDOW_UPDATE was sent for.
    owed: u32,
}

impl ReceiveWindow {
    pub(super) const fn new(size: u32) -> Self {
        Self { room: size, held: 0, owed: 0 }
    }

    /// A DATA frame of `size` bytes begins. False if the window has no room for it.
    pub(super) fn handle_frame(&mut self, size: usize) -> bool {
        let Some((size, room)) = u32::try_from(size).ok().and_then(|size| Some((size, self.room.checked_sub(size)?)))
        else {
            return false;
        };
        let total = self.total();
        self.room = room;
        self.held += size;
        debug_assert_eq!(self.total(), total, "room moved to held");
        true
    }

    /// `size` bytes received were stored or dropped.
    pub(super) fn give_back(&mut self, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX).min(self.held);
        let total = self.total();
        self.held -= size;
        self.owed += size;
        debug_assert_eq!(self.total(), total, "held moved to owed");
    }

    /// Returns true if `poll_update` has an update.
    pub(super) const fn is_update_due(self) -> bool {
        self.owed > 0 && self.owed >= self.total() / 2
    }

    /// Bytes that the peer may send after the next update.
    pub(super) const fn room_after_update(self) -> u32 {
        self.room + self.owed
    }

    /// Returns true if the peer may send nothing.
    pub(super) const fn is_used_up(self) -> bool {
        self.room == 0
    }

    /// The next WINDOW_UPDATE, once half of the window is owed: not one for each DATA frame.
    pub(super) const fn poll_update(&mut self) -> Option<u32> {
        if !self.is_update_due() {
            return None;
        }
        let (owed, total) = (self.owed, self.total());
        self.owed = 0;
        self.room += owed;
        debug_assert!(self.total() == total && self.room <= total, "owed moved to room");
        Some(owed)
    }

    /// Its initial size, as the sum of its parts.
    pub(super) const fn total(self) -> u32 {
        self.room + self.held + self.owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_may_send_is_never_more_than_it_began_with() {
        let mut window = ReceiveWindow::new(100);
        assert!(window.handle_frame(60) && !window.handle_frame(41) && window.handle_frame(40));
        assert!(!window.handle_frame(1) && window.handle_frame(0));
        window.give_back(49);
        assert_eq!((window.poll_update(), window.total()), (None, 100), "less than half");
        window.give_back(1);
        assert_eq!((window.poll_update(), window.total(), window.room), (Some(50), 100, 50));
        window.give_back(1_000);
        assert_eq!((window.poll_update(), window.total(), window.room), (Some(50), 100, 100), "what is held only");
        assert_eq!(window.poll_update(), None);
    }

    #[test]
    fn what_we_may_send_can_fall_below_zero_and_not_rise_above_the_largest_window() {
        let mut window = SendWindow::new(10);
        window.handle_sent(10);
        assert!(window.grow(-5) && window.room() == 0 && window.size() == -5);
        assert!(window.grow(6) && window.room() == 1);
        assert_eq!(window.sent(), 10);
        assert!(window.grow(0x7fff_fffe) && !window.grow(1));
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "11 bytes do not fit into a window of 10")]
    fn more_than_the_window_is_never_sent() {
        SendWindow::new(10).handle_sent(11);
    }
}
