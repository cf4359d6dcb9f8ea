//! Budgets for frames that give the server nothing to do: frames that move nothing, and streams that are opened to be
//! reset. Each kind has a budget for a stretch of time. Work that is really done pays some back, so that a busy, honest
//! client never comes near.

use std::time::Duration;

use crate::limits::{CONTINUATIONS_MAX, SERVER_RESETS_MAX};
use base::limits::{BUDGET_INTERVAL, CLIENT_RESETS_MAX, CONTROL_FRAMES_MAX, HEAD_SIZE_MAX, HEAD_TIMEOUT};
use base::time::Instant;
use wire::http2::error::{ErrorCode, PeerFault};

/// The bounds whose end is the end of the connection: GOAWAY(ENHANCE_YOUR_CALM) names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2Limit {
    /// `CLIENT_RESETS_MAX`, `--http2-resets-max`.
    ClientResets,
    /// `CONTINUATIONS_MAX`.
    Continuations,
    /// `CONTROL_FRAMES_MAX`, `--http2-control-frames-max`.
    ControlFrames,
    /// `HEAD_SIZE_MAX`, of the block as it comes.
    FieldBlock,
    /// `HEAD_SIZE_MAX`, of the fields as they are decoded.
    FieldList,
    /// `HEAD_TIMEOUT`.
    FrameTime,
    /// `PING_STRIKES_MAX`, `--grpc-http2-max-ping-strikes`.
    PingStrikes,
    /// `SERVER_RESETS_MAX`.
    ServerResets,
}

impl Http2Limit {
    /// All of them, in their order.
    pub const ALL: [Self; 8] = [
        Self::ClientResets,
        Self::Continuations,
        Self::ControlFrames,
        Self::FieldBlock,
        Self::FieldList,
        Self::FrameTime,
        Self::PingStrikes,
        Self::ServerResets,
    ];

    /// Its name as a label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::ClientResets => "client_resets",
            Self::Continuations => "continuations",
            Self::ControlFrames => "control_frames",
            Self::FieldBlock => "field_block",
            Self::FieldList => "field_list",
            Self::FrameTime => "frame_time",
            Self::PingStrikes => "ping_strikes",
            Self::ServerResets => "server_resets",
        }
    }

    /// The reason that the connection ended, for a person. `max` is the bound in force.
    fn text(self, max: u32, head_timeout: Duration) -> String {
        let seconds = BUDGET_INTERVAL.as_secs();
        match self {
            Self::ClientResets => {
                format!("too many streams were reset: CLIENT_RESETS_MAX (--http2-resets-max) is {max} in {seconds} s")
            }
            Self::Continuations => {
                format!("too many CONTINUATION frames in one field block: CONTINUATIONS_MAX is {CONTINUATIONS_MAX}")
            }
            Self::ControlFrames => format!(
                "too many frames that move nothing: CONTROL_FRAMES_MAX (--http2-control-frames-max) is {max} in \
                 {seconds} s"
            ),
            Self::FieldBlock => {
                format!("a field block, or SETTINGS, is too large: HEAD_SIZE_MAX is {HEAD_SIZE_MAX} bytes")
            }
            Self::FieldList => format!("the fields of a request are too large: HEAD_SIZE_MAX is {HEAD_SIZE_MAX} bytes"),
            Self::FrameTime => {
                let seconds = head_timeout.as_secs_f64();
                format!("a frame did not arrive in time: HEAD_TIMEOUT (--http-head-timeout) is {seconds} s")
            }
            // gRPC's clients know these words, and wait longer between their PINGs from then on (proposal A8).
            Self::PingStrikes => "too_many_pings".to_owned(),
            Self::ServerResets => {
                format!("too many streams had to be reset: SERVER_RESETS_MAX is {SERVER_RESETS_MAX} in {seconds} s")
            }
        }
    }
}

/// Frames that move nothing and are paid for by a message: twice what the C core of gRPC needs.
const FRAMES_PER_MESSAGE: u32 = 8;

/// Frames or resets in a stretch of time.
#[derive(Clone, Copy, Debug)]
struct BudgetMeter {
    max: u32,
    spent: u32,
    since: Instant,
}

impl BudgetMeter {
    const fn new(max: u32) -> Self {
        Self { max, spent: 0, since: Instant::ZERO }
    }

    /// One more; false where that is the last that there is.
    fn spend(&mut self, now: Instant) -> bool {
        if now.since(self.since) >= BUDGET_INTERVAL {
            (self.spent, self.since) = (0, now);
        }
        debug_assert!(
            self.spent <= self.max,
            "a connection ends when its budget is spent: {} of {}",
            self.spent,
            self.max
        );
        self.spent += 1;
        self.spent < self.max
    }

    const fn earn(&mut self, count: u32) {
        self.spent = self.spent.saturating_sub(count);
    }
}

/// The budgets of one connection, and what it ran out of.
#[derive(Debug)]
pub(super) struct PeerBudgets {
    control_frames: BudgetMeter,
    client_resets: BudgetMeter,
    server_resets: BudgetMeter,
    exceeded: Option<Http2Limit>,
    head_timeout: Duration,
}

impl PeerBudgets {
    pub(super) const fn new(control_frames_max: u32, client_resets_max: u32) -> Self {
        Self {
            control_frames: BudgetMeter::new(control_frames_max),
            client_resets: BudgetMeter::new(client_resets_max),
            server_resets: BudgetMeter::new(SERVER_RESETS_MAX),
            exceeded: None,
            head_timeout: HEAD_TIMEOUT,
        }
    }

    /// The same, which say this time where a frame came too slowly.
    pub(super) const fn with_head_timeout(self, head_timeout: Duration) -> Self {
        Self { head_timeout, ..self }
    }

    /// A frame came that moves nothing.
    pub(super) fn handle_control_frame(&mut self, now: Instant) -> Result<(), PeerFault> {
        if self.control_frames.spend(now) { Ok(()) } else { Err(self.exceed(Http2Limit::ControlFrames)) }
    }

    /// A client reset a stream.
    pub(super) fn handle_client_reset(&mut self, now: Instant) -> Result<(), PeerFault> {
        if self.client_resets.spend(now) { Ok(()) } else { Err(self.exceed(Http2Limit::ClientResets)) }
    }

    /// We reset a stream because of what its client did.
    pub(super) fn handle_server_reset(&mut self, now: Instant) -> Result<(), PeerFault> {
        if self.server_resets.spend(now) { Ok(()) } else { Err(self.exceed(Http2Limit::ServerResets)) }
    }

    /// Content moved, in either direction: a WINDOW_UPDATE or two are due for it, and a PING.
    pub(super) fn handle_content(&mut self, size: usize) {
        self.control_frames.earn(u32::try_from(size / 1024).unwrap_or(u32::MAX));
    }

    /// An answer went out whole.
    pub(super) const fn handle_answer(&mut self) {
        self.handle_message();
        self.client_resets.earn(1);
    }

    /// A message of a call is on its way out. However small, it and the one that it answers cost a client
    /// frames: gRPC's C core sends DATA, a WINDOW_UPDATE for each window and, at times, a PING.
    pub(super) const fn handle_message(&mut self) {
        self.control_frames.earn(FRAMES_PER_MESSAGE);
    }

    /// A bound was reached: the end of the connection.
    pub(super) fn exceed(&mut self, limit: Http2Limit) -> PeerFault {
        self.exceeded = Some(limit);
        let max = match limit {
            Http2Limit::ClientResets => self.client_resets.max,
            _ => self.control_frames.max,
        };
        PeerFault::of_connection(ErrorCode::EnhanceYourCalm, limit.text(max, self.head_timeout))
    }

    /// Which bound ended the connection, if one did.
    pub(super) const fn exceeded(&self) -> Option<Http2Limit> {
        self.exceeded
    }
}

const _: () = assert!(CONTROL_FRAMES_MAX > 0 && CLIENT_RESETS_MAX > 0, "a budget has something in it");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_is_paid_back_by_work_and_begins_anew_in_time() {
        let mut budgets = PeerBudgets::new(5, 3);
        let now = Instant::ZERO;
        for _ in 0..4 {
            assert_eq!(budgets.handle_control_frame(now), Ok(()));
        }
        budgets.handle_content(2_047);
        assert_eq!(budgets.handle_control_frame(now), Ok(()));
        let fault = budgets.handle_control_frame(now).unwrap_err();
        assert_eq!((fault.code, fault.is_of_connection), (ErrorCode::EnhanceYourCalm, true));
        assert!(fault.text.contains("--http2-control-frames-max) is 5 in 10 s"), "{}", fault.text);
        assert_eq!(budgets.exceeded(), Some(Http2Limit::ControlFrames));
        assert_eq!(budgets.handle_control_frame(now + BUDGET_INTERVAL), Ok(()));

        let mut budgets = PeerBudgets::new(5, 3);
        for _ in 0..100 {
            assert_eq!(budgets.handle_client_reset(now), Ok(()));
            budgets.handle_answer();
        }
        assert_eq!(budgets.handle_client_reset(now), Ok(()));
        assert_eq!(budgets.handle_client_reset(now), Ok(()));
        assert!(budgets.handle_client_reset(now).is_err_and(|fault| fault.text.contains("--http2-resets-max) is 3")));
    }

    #[test]
    fn every_limit_has_a_name_of_its_own_and_says_its_bound() {
        for (index, limit) in Http2Limit::ALL.into_iter().enumerate() {
            assert_eq!(limit as usize, index);
            let text = limit.text(7, HEAD_TIMEOUT);
            let is_known = ["_MAX", "_TIMEOUT", "too_many_pings"].iter().any(|word| text.contains(word));
            assert!(is_known, "{limit:?}: {text}");
        }
    }
}
