//! One request while it waits in a model queue, its share of the queue's bounds, and the reasons
//! that it may be refused.

use std::sync::Arc;
use std::time::Duration;

use crate::completions::Completions;
use backend::{OutputNeeds, RequestDetails, Responder, Ticket};
use base::error::{Code, Error};
use base::tensor::Tensor;
use base::time::Stamps;
use model::SequenceMark;

/// A request in a model queue.
pub struct QueuedRequest {
    /// The completions of the shard that the answer goes to.
    pub completions: Arc<Completions>,
    /// Names the request inside its shard.
    pub ticket: Ticket,
    /// Its tensors, in the order of the model's inputs. While it is queued they are in `completions` instead, so that
    /// a shard that withdraws it frees them at once.
    pub inputs: Vec<Tensor>,
    /// Its rows.
    pub rows: u32,
    /// Bytes of its tensors and parameters.
    pub size: usize,
    /// Its priority level, as [`Policy::level`](scheduler::Policy::level) maps it.
    pub level: u64,
    /// Its place in a sequence, if the model serves sequences.
    pub mark: Option<SequenceMark>,
    /// Only `received` is set while it waits.
    pub stamps: Stamps,
    /// Its client's needs of each output.
    pub output_needs: OutputNeeds,
    /// Its details beside its tensors, of which models that do not look have only the id; `None` without any. While it
    /// is queued it is in `completions`, as the tensors are.
    pub details: Option<Arc<RequestDetails>>,
    /// The responder of a request that ran before and is to run again (iterative sequences). It was claimed and left
    /// the bounds at its first run.
    pub again: Option<Responder>,
}

/// One request's share of the bounds of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSize {
    /// Its priority level, as [`Policy::level`](scheduler::Policy::level) maps it.
    pub level: u64,
    /// Its rows.
    pub rows: u32,
    /// Bytes of its tensors.
    pub size: usize,
}

/// The reason that a request is not admitted to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// A bound is reached.
    Full,
    /// The forecast says that its answer would be this much later than its deadline.
    Late(Duration),
    /// The forecast says that it would wait until this long after its queue timeout or deadline.
    Stuck(Duration),
}

impl QueuedRequest {
    /// Creates a request of one row and one byte, at the default level.
    #[cfg(any(test, feature = "testing"))]
    pub fn plain(ticket: Ticket, completions: Arc<Completions>) -> Self {
        Self {
            completions,
            ticket,
            inputs: Vec::new(),
            rows: 1,
            size: 1,
            level: 0,
            mark: None,
            stamps: Stamps::default(),
            output_needs: OutputNeeds::default(),
            details: None,
            again: None,
        }
    }

    /// Returns its share of the queue's bounds.
    pub const fn room(&self) -> RequestSize {
        RequestSize { level: self.level, rows: self.rows, size: self.size }
    }

    /// Takes its tensors and details out of the completions. The caller must have settled its claim.
    pub(super) fn take_inputs(&mut self) {
        // A request that ran before was claimed then and has carried them since.
        if self.again.is_none() {
            (self.inputs, self.details) = self.completions.take_inputs(self.ticket);
        }
    }
}

/// Returns the error of a request whose queue timeout passed.
pub fn timeout_expired() -> Error {
    Error::unavailable("Request timeout expired")
}

/// Returns the error of a request whose client's deadline passed.
pub fn deadline_exceeded() -> Error {
    Error::new(Code::DeadlineExceeded, "Deadline Exceeded")
}
