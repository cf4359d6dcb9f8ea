//! The phase of a connection, from the client's first SETTINGS to its end, and the progress of a
//! drain.

use base::time::Instant;

/// The phase of a connection (RFC 9113 §3.4, §5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionPhase {
    /// The client's SETTINGS are awaited (§3.4).
    Preface,
    /// Frames of all types are exchanged.
    Serving,
    /// A fault of the peer ended the connection; GOAWAY is the last frame.
    Failed,
}

/// Progress of a drain (§6.8): a first GOAWAY that excludes no stream, a second one a round trip later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainState {
    /// No drain.
    No,
    /// The first GOAWAY is out, until the PING sent with it comes back or this instant passes.
    Announced(Instant),
    /// The second GOAWAY is out: no further streams are accepted.
    Final,
}

/// Phase, drain and end of a connection. Each only moves forward.
#[derive(Debug)]
pub(super) struct Http2Lifecycle {
    phase: ConnectionPhase,
    drain: DrainState,
    /// True if the peer sent GOAWAY: it opens no further streams.
    has_peer_left: bool,
    /// True if the peer acknowledged our SETTINGS: before that, it cannot keep to them.
    are_settings_acknowledged: bool,
    /// True if the connection is over, whatever is unsent.
    is_ended: bool,
}

impl Http2Lifecycle {
    pub(super) const fn new() -> Self {
        Self {
            phase: ConnectionPhase::Preface,
            drain: DrainState::No,
            has_peer_left: false,
            are_settings_acknowledged: false,
            is_ended: false,
        }
    }

    /// SETTINGS arrived, the first ones or later ones.
    pub(super) fn handle_settings(&mut self) {
        debug_assert_ne!(self.phase, ConnectionPhase::Failed, "a connection that failed reads no frames");
        self.phase = ConnectionPhase::Serving;
    }

    /// The peer acknowledged our SETTINGS.
    pub(super) const fn handle_settings_acknowledgement(&mut self) {
        self.are_settings_acknowledged = true;
    }

    /// A fault of the peer was found.
    pub(super) fn handle_fault(&mut self) {
        debug_assert_ne!(self.phase, ConnectionPhase::Failed, "a connection fails once");
        self.phase = ConnectionPhase::Failed;
    }

    /// The peer sent GOAWAY.
    pub(super) const fn handle_peer_goaway(&mut self) {
        self.has_peer_left = true;
    }

    /// The connection is over: the peer closed its side, or reads nothing.
    pub(super) const fn end(&mut self) {
        self.is_ended = true;
    }

    /// The first GOAWAY of a drain was queued; the second is due at `until`.
    pub(super) fn announce_drain(&mut self, until: Instant) {
        debug_assert!(self.can_announce_drain(), "a drain is announced once, before it is final");
        self.drain = DrainState::Announced(until);
    }

    /// The second GOAWAY was queued.
    pub(super) fn finish_drain(&mut self) {
        debug_assert_ne!(self.drain, DrainState::Final, "the last GOAWAY of a drain is sent once");
        self.drain = DrainState::Final;
    }

    /// Returns the time at which the second GOAWAY of a drain is due.
    pub(super) const fn drain_timeout(&self) -> Option<Instant> {
        if let DrainState::Announced(at) = self.drain { Some(at) } else { None }
    }

    /// Returns true if a drain can begin.
    pub(super) fn can_announce_drain(&self) -> bool {
        self.drain == DrainState::No && self.phase != ConnectionPhase::Failed
    }

    /// Returns true if new streams are ignored.
    pub(super) fn is_drain_final(&self) -> bool {
        self.drain == DrainState::Final
    }

    /// Returns true if the peer sent GOAWAY and we did not answer it with ours yet.
    pub(super) fn is_goaway_due(&self) -> bool {
        self.has_peer_left && self.phase == ConnectionPhase::Serving && !self.is_drain_final()
    }

    pub(super) const fn phase(&self) -> ConnectionPhase {
        self.phase
    }

    pub(super) fn has_failed(&self) -> bool {
        self.phase == ConnectionPhase::Failed
    }

    /// Returns true if the peer knows our SETTINGS.
    pub(super) const fn are_settings_acknowledged(&self) -> bool {
        self.are_settings_acknowledged
    }

    pub(super) const fn is_ended(&self) -> bool {
        self.is_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_announced_and_then_final() {
        let mut lifecycle = Http2Lifecycle::new();
        lifecycle.handle_settings();
        assert!(lifecycle.can_announce_drain() && !lifecycle.is_goaway_due());
        lifecycle.announce_drain(Instant::from_micros(7));
        assert_eq!((lifecycle.drain_timeout(), lifecycle.can_announce_drain()), (Some(Instant::from_micros(7)), false));
        lifecycle.handle_peer_goaway();
        assert!(lifecycle.is_goaway_due() && !lifecycle.is_drain_final());
        lifecycle.finish_drain();
        assert_eq!((lifecycle.drain_timeout(), lifecycle.is_goaway_due()), (None, false));
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "a connection that failed reads no frames")]
    fn a_connection_that_failed_does_not_serve_again() {
        let mut lifecycle = Http2Lifecycle::new();
        lifecycle.handle_fault();
        lifecycle.handle_settings();
    }
}
