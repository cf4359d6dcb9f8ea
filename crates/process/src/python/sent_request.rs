//! A request that a process has, until it is answered.

use std::sync::Arc;

use crate::python::region::TensorPolicy;
use crate::python::reports::AnsweredRequest;
use backend::{ExecutionCounter, Request};
use base::error::Error;
use base::tensor::Tensor;
use base::time::Instant;

/// A request that the process has.
pub(super) struct SentRequest {
    /// The request, whose inputs are kept so that it can be sent again; `None` once it was
    /// answered.
    pub(super) request: Option<Request>,
    /// The instant at which the process began it, as far as the server can tell.
    pub(super) began: Instant,
    /// True if the process has reported the times of its run.
    pub(super) has_times: bool,
    /// A response without the final flag, of a model that is not decoupled: it is sent with the flag.
    pub(super) held: Option<Result<Vec<Tensor>, Error>>,
    /// Counts the reports on it; `None` for a process that makes none.
    pub(super) counter: Option<Arc<dyn ExecutionCounter>>,
}

impl SentRequest {
    pub(super) fn new(mut request: Request, sent: Instant, is_reported: bool) -> Self {
        request.responder.stamps.input_end = sent;
        let counter = request.responder.executions().filter(|_| is_reported).cloned();
        Self { request: Some(request), began: sent, has_times: false, held: None, counter }
    }

    /// The part of its last answer that a report on it corrects; `None` if none can come.
    pub(super) fn to_answered(&self, is_success: bool) -> Option<AnsweredRequest> {
        let (counter, request) = (self.counter.as_ref()?, self.request.as_ref()?);
        // One whose client has left counts as cancelled, and no report changes that.
        let counted = (!request.responder.has_left()).then_some((is_success, request.responder.stamps));
        Some(AnsweredRequest { counter: Arc::clone(counter), rows: request.rows, counted })
    }

    /// Outputs of a step of an ensemble may go to another engine, which must not see them change while it reads.
    pub(super) fn policy(&self) -> TensorPolicy {
        let details = self.request.as_ref().and_then(|request| request.details.as_ref());
        if details.is_some_and(|details| details.is_step) { TensorPolicy::Copy } else { TensorPolicy::View }
    }

    /// The rows of the request; 0 once it was answered.
    pub(super) fn rows(&self) -> u32 {
        self.request.as_ref().map_or(0, |request| request.rows)
    }

    pub(super) fn stamp(&mut self, infer_end: Instant, output_end: Instant) {
        if let Some(request) = &mut self.request {
            let stamps = &mut request.responder.stamps;
            stamps.infer_end = if self.has_times { stamps.infer_end } else { infer_end };
            stamps.output_end = output_end;
        }
    }

    /// Takes the request out, to answer it.
    pub(super) fn take(&mut self) -> Self {
        let counter = self.counter.clone();
        Self { request: self.request.take(), began: self.began, has_times: self.has_times, held: None, counter }
    }

    pub(super) fn set_parameters(&mut self, parameters: model::parameters::Parameters) {
        if let Some(request) = &mut self.request {
            request.responder.set_parameters(parameters);
        }
    }

    pub(super) fn answer(&mut self, outcome: Result<Vec<Tensor>, Error>) {
        if let Some(request) = self.request.take() {
            request.responder.send(outcome);
        }
    }

    pub(super) fn send_more(&mut self, outcome: Result<Vec<Tensor>, Error>) {
        if let Some(request) = &mut self.request {
            request.responder.send_part(outcome);
        }
    }

    pub(super) fn reschedule(mut self, outputs: Vec<Tensor>) {
        if let Some(request) = self.request.take() {
            request.responder.reschedule(outputs);
        }
    }

    /// The final flag came, or no response can follow.
    pub(super) fn end(&mut self, is_decoupled: bool) {
        match (self.held.take(), self.request.take()) {
            (Some(outcome), Some(request)) => request.responder.send(outcome),
            (None, Some(request)) if is_decoupled => request.responder.end(),
            (None, Some(request)) => request.responder.send(Err(Error::internal(
                "the model gave no response: its execute returned None and no response sender is left",
            ))),
            (_, None) => {}
        }
    }

    pub(super) fn fail(mut self, error: &Error) {
        self.answer(Err(error.clone()));
    }
}
