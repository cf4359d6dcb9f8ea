//! What goes into [`Sequences`](super::Sequences) and what comes out: the policy, requests, batches, and how a sequence
//! ends.

use std::time::Duration;

use crate::scheduler::{Policy, ReleaseReason, ShapeKey};
use crate::time::Instant;

/// How one model version serves sequences.
#[derive(Clone, Debug)]
pub struct SequencePolicy {
    /// How the requests of its sequences become batches.
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

/// How the requests of sequences become batches.
#[derive(Clone, Debug)]
pub enum SlotStrategy {
    /// A slot is a row of the batch: a batch has at most one request of each slot.
    Direct {
        /// How long a batch waits for more of its slots to be ready.
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
    /// Whether it is the first.
    pub is_start: bool,
    /// Whether it is the last.
    pub is_end: bool,
    /// Only requests with equal keys share a batch.
    pub shape_key: ShapeKey,
    /// When it arrived.
    pub queued_at: Instant,
    /// How long it may wait for a slot; zero for no limit.
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
    /// Why it left now.
    pub released: ReleaseReason,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceBatchRow<T> {
    /// The slot of its instance.
    pub slot: usize,
    /// The request; `None` where the slot has none that fits this batch.
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

/// What ends a sequence.
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
    /// What ended the sequence.
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
