//! The inputs and outputs of [`Sequences`](super::Sequences): the policy, requests, batches, and
//! the reasons for a sequence's end.

use std::time::Duration;

use crate::{Policy, ReleaseReason, ShapeKey};
use base::time::Instant;

/// The policy by which one model version serves sequences.
#[derive(Clone, Debug)]
pub struct SequencePolicy {
    /// The strategy that forms batches from the requests of its sequences.
    pub strategy: SlotStrategy,
    /// Instances that take work.
    pub instances: usize,
    /// Slots of each instance: sequences that it serves at a time.
    pub slots: usize,
    /// A sequence without a request for this long ends.
    pub idle_max: Duration,
    /// Iterative sequences: a request may run many times, and its sequence ends with its last run. A run is in flight
    /// until [`handle_rescheduled`](super::Sequences::handle_rescheduled) or
    /// [`handle_finished`](super::Sequences::handle_finished).
    pub is_iterative: bool,
}

/// A strategy that forms batches from the requests of sequences.
#[derive(Clone, Debug)]
pub enum SlotStrategy {
    /// A slot is a row of the batch: a batch has at most one request of each slot.
    Direct {
        /// The longest time that a batch waits for more of its slots to be ready.
        queue_delay_max: Duration,
        /// With this many slots ready it does not wait.
        slots_least: usize,
    },
    /// The requests of an instance's sequences are batched as those of any model, one of each
    /// sequence at a time.
    Oldest(Policy),
}

/// One request of a sequence.
#[derive(Clone, Debug)]
pub struct SequenceEntry<K, T> {
    /// The caller's value for the request, which is only passed on.
    pub token: T,
    /// Its sequence.
    pub id: K,
    /// True if it is the first.
    pub is_start: bool,
    /// True if it is the last.
    pub is_end: bool,
    /// Only requests with equal keys share a batch.
    pub shape_key: ShapeKey,
    /// Its arrival time.
    pub queued_at: Instant,
    /// The longest time that it may wait for a slot; zero for no limit.
    pub timeout: Duration,
}

/// Requests that an instance runs together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceBatch<T> {
    /// Its rows, in order. With the direct strategy a row's index is its slot.
    pub rows: Vec<SequenceBatchRow<T>>,
    /// Slots whose sequences ended since the last batch, other than by their last request: their state must be dropped
    /// before this batch runs.
    pub ended: Vec<usize>,
    /// The reason for its release.
    pub released: ReleaseReason,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceBatchRow<T> {
    /// The slot of its instance.
    pub slot: usize,
    /// The request; `None` if the slot has no request that fits this batch.
    pub token: Option<T>,
    /// Names the run of the request.
    pub flight: Option<RunId>,
}

/// Names a request of a sequence while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId {
    pub(super) run: usize,
    /// Unique among all runs: indices of sequences are reused.
    pub(super) number: u64,
}

/// The reason for the end of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SequenceEnd {
    /// A client cancelled one of its requests, or closed the stream that they came on.
    Cancel,
    /// Its last request (END flag) ran.
    End,
    /// It had no request for too long.
    Idle,
    /// The instance with its state was lost.
    Instance,
    /// The model was done with it (iterative sequences).
    Model,
    /// A request with the START flag started it over.
    Restart,
    /// One of its requests waited too long for a slot.
    Timeout,
    /// Its model version was unloaded.
    Unload,
}

/// A request that is not accepted: its sequence does not exist, and it does not start one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstartedRequest<T> {
    /// Its token.
    pub token: T,
}

/// A request whose sequence ended while it waited. It is not claimed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRequest<T> {
    /// Its token.
    pub token: T,
    /// The reason for the end of the sequence.
    pub end: SequenceEnd,
}

impl SequenceEnd {
    /// All reasons, in the order of their names.
    pub const ALL: [Self; 8] =
        [Self::Cancel, Self::End, Self::Idle, Self::Instance, Self::Model, Self::Restart, Self::Timeout, Self::Unload];

    /// The name, as metrics have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::End => "end",
            Self::Idle => "idle",
            Self::Instance => "instance",
            Self::Model => "model",
            Self::Restart => "restart",
            Self::Timeout => "timeout",
            Self::Unload => "unload",
        }
    }
}
