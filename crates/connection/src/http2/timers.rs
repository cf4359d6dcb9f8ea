//! The timers of a connection that belong to no stream.

use std::time::Duration;

use base::limits::BODY_STEP_SIZE;
use base::time::Instant;

/// The times at which something is due that belongs to no stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionTimers {
    /// The frame that has begun must be complete.
    pub(super) frame: Option<Instant>,
    /// The field block that has begun must be complete.
    pub(super) block: Option<Instant>,
    /// The socket must have taken `BODY_STEP_SIZE` bytes, or all output.
    pub(super) write: Option<Instant>,
    /// Bytes that the socket took since `write` was set.
    moved: usize,
    /// A connection without streams begins to end.
    pub(super) idle: Option<Instant>,
    /// The buffers of an idle connection are freed.
    pub(super) rest: Option<Instant>,
    /// Streams that wait for memory ask for it again.
    pub(super) starved: Option<Instant>,
}

impl ConnectionTimers {
    /// The timers of a new connection, whose first frame must be complete at `frame`.
    pub(super) fn new(frame: Instant) -> Self {
        Self { frame: Some(frame), ..Self::default() }
    }

    /// The earliest of them.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.frame, self.block, self.write, self.idle, self.rest, self.starved].into_iter().flatten().min()
    }

    /// Output waits for the socket: starts the write timer unless it runs.
    pub(super) fn handle_output(&mut self, now: Instant, timeout: Duration) {
        if self.write.is_none() {
            (self.write, self.moved) = (Some(now + timeout), 0);
        }
    }

    /// The socket took `count` bytes. A peer that takes a little now and then does not move the timer.
    pub(super) fn handle_transmitted(&mut self, count: usize, is_all: bool, now: Instant, timeout: Duration) {
        self.moved = self.moved.saturating_add(count);
        if is_all {
            self.write = None;
        } else if self.moved >= BODY_STEP_SIZE {
            (self.write, self.moved) = (Some(now + timeout), 0);
        }
        debug_assert!(self.write.is_none() || self.moved < BODY_STEP_SIZE, "a step that was made restarts the timer");
    }

    /// Stops all timers but the one for output: GOAWAY still has to leave.
    pub(super) fn keep_write(&mut self) {
        *self = Self { write: self.write, moved: self.moved, ..Self::default() };
    }
}
