//! The answers of one request, shared by the request, its responses and its factories, which
//! outlive each other in any order. Even if a backend leaves something out, the client gets its
//! last answer once: at the latest when nothing refers to it.
//!
//! A response is handed to the server when it is sent, whether the backend has released its request or not; the reports on
//! the request, before or after it, correct its count. That of a model with states, given during its run, is kept until the
//! backend reports on the request, releases it, or its run returns, whichever comes first: a backend may update a state after
//! it has sent the response.

#![expect(clippy::disallowed_types, reason = "responses come from any thread; held for one answer")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::execution::ResponseReports;
use crate::triton::instance_object::{InstanceShared, OpenPlace};
use crate::triton::model_object::HostedTensors;
use crate::triton::services;
use crate::triton::types::RESPONSE_FINAL;
use backend::{Responder, announce_answers, is_answering};
use base::error::Error;
use base::metrics::{RequestReport, StageTimes, WorkReport};
use base::tensor::{Shape, Tensor};
use base::time::{Clock, Instant, Stamps};
use model::parameters::Parameters;

/// The answers of one request.
pub(super) struct HostedAnswers {
    tensors: Arc<HostedTensors>,
    clock: Clock,
    /// The instant at which its run began.
    began: Instant,
    /// Its rows.
    rows: u32,
    /// True while its run goes on and it was not released.
    is_in_run: AtomicBool,
    reports: Arc<ResponseReports>,
    state: Mutex<AnswerState>,
}

struct AnswerState {
    /// `None` once the last answer is given.
    responder: Option<(Responder, OpenPlace)>,
    /// The answer of a model that is not decoupled, not handed over yet.
    held: Option<UnsentAnswer>,
    has_answered: bool,
    /// New values of states, by their output.
    states: SmallVec<[(usize, Tensor); 2]>,
    /// The backend's report: true for a success, and its times.
    report: Option<(bool, StageTimes)>,
    /// The last answer as the server counts it: true for outputs, and its stamps. Taken by the report.
    counted: Option<(bool, Stamps)>,
}

struct UnsentAnswer {
    outcome: Result<Vec<Tensor>, Error>,
    parameters: Parameters,
    /// True if it was sent as the last.
    is_final: bool,
}

impl HostedAnswers {
    /// The answers of a request whose run begins.
    pub(super) fn new(
        tensors: &Arc<HostedTensors>,
        responder: Responder,
        rows: u32,
        (clock, began): (Clock, Instant),
        reports: Arc<ResponseReports>,
        shared: &Arc<InstanceShared>,
    ) -> Self {
        let state = AnswerState {
            responder: Some((responder, shared.begin())),
            held: None,
            has_answered: false,
            states: SmallVec::new(),
            report: None,
            counted: None,
        };
        let (is_in_run, state) = (AtomicBool::new(true), Mutex::new(state));
        Self { tensors: Arc::clone(tensors), clock, began, rows, is_in_run, reports, state }
    }

    /// The way of reports on its responses.
    pub(super) const fn response_reports(&self) -> &Arc<ResponseReports> {
        &self.reports
    }

    pub(super) const fn tensors(&self) -> &Arc<HostedTensors> {
        &self.tensors
    }

    /// Returns true if an answer is no longer needed.
    pub(super) fn is_cancelled(&self) -> bool {
        self.lock().responder.as_ref().is_none_or(|(responder, _)| responder.has_left())
    }

    /// The backend sends a response.
    ///
    /// # Errors
    /// `InvalidArgument` if the request has its last one.
    pub(super) fn send(
        &self,
        outcome: Result<Vec<Tensor>, Error>,
        parameters: Parameters,
        flags: u32,
    ) -> Result<(), Error> {
        let is_final = flags & RESPONSE_FINAL != 0;
        let mut state = self.lock();
        if state.responder.is_none() || state.held.as_ref().is_some_and(|held| held.is_final) {
            return Err(Error::invalid("the request has its last response already"));
        }
        if !self.tensors.is_decoupled {
            if state.held.is_some() {
                let model = &self.tensors.model;
                return Err(Error::invalid(format!(
                    "model '{model}' is not decoupled and sends one response, and this is another"
                )));
            }
            state.held = Some(UnsentAnswer { outcome, parameters, is_final });
            if is_final && !self.waits() {
                self.hand_over(&mut state);
                drop(state);
                announce_answers();
            }
            return Ok(());
        }
        let outcome = outcome.map(|outputs| self.with_states(&mut state, outputs));
        state.has_answered = true;
        if is_final {
            self.give(&mut state, parameters, outcome);
        } else if let Some((responder, _)) = &mut state.responder {
            self.stamp(responder, None);
            responder.set_parameters(parameters);
            responder.send_part(outcome);
        }
        drop(state);
        announce_answers();
        Ok(())
    }

    /// Returns true if an answer is kept until the run is over.
    fn waits(&self) -> bool {
        is_answering() && !self.tensors.states.is_empty() && self.is_in_run.load(Ordering::Acquire)
    }

    /// The backend sends flags without a response.
    ///
    /// # Errors
    /// `InvalidArgument` if the request has its last response.
    pub(super) fn send_flags(&self, flags: u32) -> Result<(), Error> {
        if flags & RESPONSE_FINAL == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        if state.responder.is_none() {
            return Err(Error::invalid("the request has its last response already"));
        }
        self.end(&mut state);
        drop(state);
        announce_answers();
        Ok(())
    }

    /// The backend reports on the request. Its first report counts.
    pub(super) fn report(&self, is_success: bool, times: StageTimes) {
        let mut state = self.lock();
        if state.report.is_none() {
            state.report = Some((is_success, times));
            self.hand_over_final(&mut state);
            self.count_report(&mut state);
        }
    }

    /// Corrects the count of the request, once both its last answer and its report are known.
    fn count_report(&self, state: &mut AnswerState) {
        if let Some((is_success, times)) = state.report
            && let Some((was_success, stamps)) = state.counted.take()
        {
            let report = RequestReport { rows: self.rows, was_success, stamps, is_success, times };
            self.reports.send(&WorkReport::Request(report));
        }
    }

    /// The backend has released the request.
    pub(super) fn handle_released(&self) {
        self.leave_run();
    }

    /// The run of the request's batch has returned.
    pub(super) fn handle_run_end(&self) {
        self.leave_run();
    }

    /// The run failed before the backend took the request.
    pub(super) fn fail(&self, error: &Error) {
        let mut state = self.lock();
        state.held =
            Some(UnsentAnswer { outcome: Err(error.clone()), parameters: Parameters::default(), is_final: true });
        self.hand_over(&mut state);
    }

    /// Checks that the request may run again.
    ///
    /// # Errors
    /// Triton's refusal if its model has no iterative sequences.
    pub(super) fn check_reschedules(&self) -> Result<(), Error> {
        if self.tensors.is_iterative { Ok(()) } else { Err(backend::reschedule_refused()) }
    }

    /// The backend releases the request to run again, with the states that it has updated.
    pub(super) fn reschedule(&self) {
        let mut state = self.lock();
        let outputs = self.with_states(&mut state, Vec::new());
        if let Some((mut responder, _open)) = state.responder.take() {
            self.stamp(&mut responder, state.report.map(|(_, times)| times));
            responder.reschedule(outputs);
        }
    }

    /// A new value of a state.
    ///
    /// # Errors
    /// `InvalidArgument` if the answer that would take it along was sent.
    pub(super) fn set_state(&self, output: usize, value: Tensor) -> Result<(), Error> {
        let mut state = self.lock();
        if state.responder.is_none() {
            return Err(Error::invalid("a state is updated before the last response of its request is sent"));
        }
        state.states.retain(|(known, _)| *known != output);
        state.states.push((output, value));
        Ok(())
    }

    fn leave_run(&self) {
        // The first of these events hands over; later responses are sent at once.
        if !self.is_in_run.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut state = self.lock();
        self.hand_over_final(&mut state);
    }

    fn hand_over_final(&self, state: &mut AnswerState) {
        if state.held.as_ref().is_some_and(|held| held.is_final) {
            self.hand_over(state);
        }
    }

    /// Gives the held answer to the server.
    fn hand_over(&self, state: &mut AnswerState) {
        let Some(UnsentAnswer { outcome, parameters, .. }) = state.held.take() else { return };
        let outcome = outcome.map(|outputs| self.with_states(state, outputs));
        self.give(state, parameters, outcome);
    }

    /// Gives the last answer.
    fn give(&self, state: &mut AnswerState, parameters: Parameters, outcome: Result<Vec<Tensor>, Error>) {
        if let Some((mut responder, _open)) = state.responder.take() {
            self.stamp(&mut responder, state.report.map(|(_, times)| times));
            responder.set_parameters(parameters);
            state.has_answered = true;
            // One whose client has left counts as cancelled, and no report changes that.
            state.counted = (!Self::is_known_to_have_left(&responder)).then_some((outcome.is_ok(), responder.stamps));
            responder.send(outcome);
            self.count_report(state);
        }
    }

    /// Returns true if the client of an answer has left. In a process only the server knows, which counts the answer.
    fn is_known_to_have_left(responder: &Responder) -> bool {
        let is_remote = services::get().is_ok_and(|services| services.is_remote);
        !is_remote && responder.has_left()
    }

    /// No response follows.
    fn end(&self, state: &mut AnswerState) {
        if state.held.is_some() {
            return self.hand_over(state);
        }
        if !self.tensors.is_decoupled {
            let model = &self.tensors.model;
            let text = format!("the backend of model '{model}' ended this request without a response");
            return self.give(state, Parameters::default(), Err(Error::internal(text)));
        }
        if let Some((mut responder, _open)) = state.responder.take() {
            self.stamp(&mut responder, state.report.map(|(_, times)| times));
            state.counted = Some((true, responder.stamps));
            responder.end();
            self.count_report(state);
        }
    }

    /// The outputs with the states that were updated. One that was not stays missing, which leaves it as it is.
    fn with_states(&self, state: &mut AnswerState, mut outputs: Vec<Tensor>) -> Vec<Tensor> {
        if self.tensors.states.is_empty() {
            return outputs;
        }
        let missing = self.tensors.outputs.iter().skip(outputs.len());
        outputs.extend(missing.map(|output| Tensor {
            datatype: output.datatype,
            shape: Shape::new(),
            contents: bytes::Bytes::new(),
        }));
        for (index, value) in state.states.drain(..) {
            if let Some(place) = outputs.get_mut(index).filter(|place| place.is_missing()) {
                *place = value;
            }
        }
        outputs
    }

    /// Sets the times: those that the backend reports, counted back from now, as far as they lie within the run.
    fn stamp(&self, responder: &mut Responder, times: Option<StageTimes>) {
        let (stamps, now) = (&mut responder.stamps, (self.clock)());
        stamps.input_end = times.map_or(self.began, |times| (now - times.output - times.infer).max(self.began));
        stamps.infer_end = times.map_or(now, |times| now - times.output).max(stamps.input_end);
        stamps.output_end = now;
    }

    fn lock(&self) -> MutexGuard<'_, AnswerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HostedAnswers {
    /// No answer can follow. Without any answer the responder reports that.
    fn drop(&mut self) {
        let state = &mut *self.lock();
        let has_end = state.held.is_some() || (self.tensors.is_decoupled && state.has_answered);
        if has_end {
            return self.end(state);
        }
        if let Some((responder, _)) = &mut state.responder {
            self.stamp(responder, None);
            state.counted = Some((false, responder.stamps));
            self.count_report(state);
        }
    }
}
