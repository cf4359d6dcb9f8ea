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
    /// A sequence that brings no request for so long has ended.
    pub idle_max: Duration,
    /// Whether a request runs until its model is done with it, and its sequence with it (iterative
    /// sequences): it is under way until [`Sequences::handle_again`] or [`Sequences::handle_over`].
    pub is_iterative: bool,
}

/// How the requests of sequences become batches.
#[derive(Clone, Debug)]
pub enum SlotStrategy {
    /// A slot is a row of the batch: a batch has at most one request of each slot.
    Direct {
        /// A batch waits so long for more of its slots to be ready.
        queue_delay_max: Duration,
        /// With so many slots ready it does not wait.
        slots_least: usize,
    },
    /// The requests of an instance's sequences are batched as those of any model, one of each
    /// sequence at a time.
    Oldest(Policy),
}

/// One request of a sequence.
#[derive(Clone, Debug)]
pub struct SequenceEntry<K, T> {
    /// The caller's name for it.
    pub token: T,
    /// Its sequence.
    pub id: K,
    /// Whether it is the first.
    pub is_start: bool,
    /// Whether it is the last.
    pub is_end: bool,
    /// What it may be batched with.
    pub shape_key: ShapeKey,
    /// When it arrived.
    pub queued_at: Instant,
    /// How long it may wait for a slot; zero for as long as it takes.
    pub timeout: Duration,
}

/// Requests that an instance runs together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceBatch<T> {
    /// Its rows, in order. Of a direct batch the slot of a row is its place.
    pub rows: Vec<SequenceBatchRow<T>>,
    /// Slots whose sequences ended otherwise than by a request, since the batch before: what is kept
    /// of them is to be forgotten before this one runs.
    pub ended: Vec<usize>,
    /// Why now.
    pub released: ReleaseReason,
}

/// One row of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceBatchRow<T> {
    /// The slot of its instance.
    pub slot: usize,
    /// The request; `None` where the slot has none that fits this batch.
    pub token: Option<T>,
    /// The request while it runs.
    pub flight: Option<RunId>,
}

/// Names a request of a sequence while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunId {
    pub(super) run: usize,
    /// Tells it from others of the sequence, and of those that had its index.
    pub(super) number: u64,
}

/// What ends a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SequenceEnd {
    /// A client left one of its requests, or the stream that it came by.
    Cancel,
    /// Its last request, by the client's word.
    End,
    /// It brought no request for too long.
    Idle,
    /// The instance that held its state died.
    Instance,
    /// The model was done with it (iterative sequences).
    Model,
    /// A request that began it anew.
    Restart,
    /// One of its requests waited too long for a slot.
    Timeout,
    /// Its model version went.
    Unload,
}

/// A request that is not taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstartedRequest<T> {
    /// Its token: its sequence is not running, and it does not begin it.
    pub token: T,
}

/// A request that waits no more because its sequence has ended. It was not claimed.
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
