//! The end of the server, by signals or by a hand-over, and the other effects of signals on the
//! control thread: reload, state, hand-over.
//!
//! ```text
//! SIGTERM ─► not ready ─ --drain-delay ─► drain: no new connection, streams end ─ --exit-timeout-secs ─► end
//! SIGUSR2 ─► a new server starts ─ it serves ─► drain, the sockets are the new one's
//!                                └ it ends ──► as before
//! ```

use crate::control::thread::hand_over::{self, HandOverEnd};
use crate::control::thread::{ControlMessage, ControlThread};
use crate::log::{self, PlainTarget};
use crate::runtime::clock;
use crate::settings::{ControlMode, Io};
use crate::time::Instant;

impl ControlThread {
    /// Handles a signal to end: the server leaves, and drains when balancers had time to see it.
    pub(super) fn handle_signal(&mut self, signal: i32) {
        log::plain(PlainTarget::Output, &format!("Signal ({signal}) received.\n"));
        if self.is_draining || self.drain_at.is_some() {
            return;
        }
        if let Some(id) = self.successor.take() {
            // It would serve on, but a signal to this server means both.
            log::info(&format!("stopping process {id} too, which was to take over"));
            hand_over::stop(id);
        }
        let delay = self.context.settings.drain_delay;
        if delay.is_zero() {
            log::info(&format!("draining after signal {signal}"));
            return self.drain();
        }
        log::info(&format!("not ready after signal {signal}; drains in {delay:?} (--drain-delay)"));
        self.context.server_context.lifecycle.leave();
        self.surroundings.notifier.tell(&format!("STOPPING=1\nSTATUS=Not ready, drains in {delay:?}"));
        self.drain_at = Some(clock::now() + delay);
    }

    /// Starts the drain: no model is loaded from now on. Dropping the queued requests drops their
    /// replies, which answers them with a refusal.
    pub(super) fn drain(&mut self) {
        if self.is_draining {
            return;
        }
        self.end_loads();
        self.surroundings.notifier.tell("STOPPING=1\nSTATUS=Draining");
        self.context.server_context.lifecycle.drain();
    }

    fn end_loads(&mut self) {
        (self.surroundings.limit_end)();
        self.is_draining = true;
        (self.scan_at, self.trim_at, self.drain_at) = (None, None, None);
        self.busy.clear();
        self.jobs.clear();
        self.index_requests.clear();
        self.pending.clear();
        self.leaving.clear();
    }

    /// Reads again the files that may have changed since the start, without losing a request. The
    /// thread that received the signal has reopened the log's file, and has the files of TLS read.
    pub(super) fn reload(&mut self) {
        if self.is_draining {
            return;
        }
        self.surroundings.notifier.tell_reloading();
        if self.context.settings.control_mode == ControlMode::Poll {
            log::info("polling the model repositories after SIGHUP");
            if self.is_scanning {
                self.scans_again = true;
            } else {
                self.start_scan();
            }
        }
        self.surroundings.notifier.tell("READY=1");
    }

    /// Logs the current activity of the server, in one line.
    pub(super) fn log_state(&self) {
        let server_context = &self.context.server_context;
        let sum = |count: &dyn Fn(&crate::metrics::ShardCells) -> u64| -> u64 {
            server_context.metrics.shard_cells.iter().map(|cells| count(cells)).fold(0, u64::wrapping_add)
        };
        let opened = sum(&|cells| cells.connections_opened.get());
        let closed = sum(&|cells| cells.connections_closed.get());
        let received = sum(&|cells| cells.received.get());
        let succeeded = sum(&|cells| cells.succeeded.get());
        let models = self.models.values().filter(|model| !model.serving.is_empty()).count();
        let stage = match (self.is_draining, self.drain_at.is_some(), self.successor) {
            (true, ..) => "draining".to_owned(),
            (_, true, _) => "not ready, drains soon".to_owned(),
            (_, _, Some(id)) => format!("serving, process {id} is to take over"),
            _ => "serving".to_owned(),
        };
        log::info(&format!(
            "state: {stage} for {} s on {} shards; {models} of {} models serve, {} loads run or wait; {} connections open; \
             {received} requests received, {succeeded} succeeded; {} of {} bytes of memory used",
            clock::now().since(Instant::ZERO).as_secs(),
            server_context.metrics.shard_cells.len(),
            self.models.len(),
            self.busy.len(),
            opened.saturating_sub(closed),
            server_context.memory.board.used(),
            server_context.memory.board.limit(),
        ));
    }

    /// Starts a new server that takes over, unless one was started already or this one leaves.
    pub(super) fn start_hand_over(&mut self) {
        if self.is_draining || self.drain_at.is_some() || self.successor.is_some() {
            return log::warning("no hand-over: one is under way, or the server ends");
        }
        let messages = self.context.messages.clone();
        let ended = move |end| drop(messages.send(ControlMessage::HandOverEnded(end)));
        if self.context.settings.io == Io::Glommio {
            return log::error("no hand-over: --io=glommio cannot give up its sockets; use --io=auto, ring or epoll");
        }
        if self.context.settings.exits_with_stdin {
            return log::error(
                "no hand-over: with --exit-with-stdin this server belongs to the process that started it",
            );
        }
        match self.surroundings.successor.start(ended) {
            Ok(id) => {
                log::info(&format!("started process {id} to take over, after SIGUSR2"));
                self.successor = Some(id);
            }
            Err(error) => log::error(&format!("no hand-over: {error}")),
        }
    }

    /// The new server serves, and this one drains; or it has failed, and this one goes on.
    pub(super) fn handle_hand_over(&mut self, end: HandOverEnd) {
        match end {
            HandOverEnd::Failed(why) => {
                if self.successor.take().is_some() {
                    log::error(&format!("no hand-over, this server goes on: {why}"));
                }
            }
            // After a signal both end.
            HandOverEnd::Serves(_) if self.successor.take().is_none() => {}
            HandOverEnd::Serves(id) => {
                log::info(&format!("handed over to process {id}; draining"));
                self.end_loads();
                self.surroundings.notifier.tell(&format!("MAINPID={id}"));
                self.context.server_context.lifecycle.hand_over();
            }
        }
    }

    /// Tells the supervisor that the server works, if it expects that and it is true.
    pub(super) fn feed_watchdog(&mut self, now: Instant) {
        let Some(watchdog) = self.surroundings.watchdog.as_mut().filter(|watchdog| watchdog.poll_timeout() <= now)
        else {
            return;
        };
        // Shards that have drained no longer beat.
        match watchdog.handle_timeout(&self.context.server_context.lifecycle.beats(), now) {
            Err(shard) if !self.is_draining => {
                log::error(&format!("shard {shard} is stuck: the supervisor's watchdog is no longer notified"));
            }
            _ => self.surroundings.notifier.tell("WATCHDOG=1"),
        }
    }
}
