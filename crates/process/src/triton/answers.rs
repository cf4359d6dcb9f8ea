//! The answers of one request, shared by the request, its responses and its factories, which
//! outlive each other in any order. Even if a backend leaves something out, the client gets its
//! last answer once: at the latest when nothing refers to it.
//!
//! A response that is sent on the instance's own thread during its run is handed to the server when
//! the backend reports the times of the request, when it releases the request, or when the run
//! returns, whichever comes first: the server counts times with the answer, and wakes its shard
//! when the run returns, so that no thread waits for it.

#![expect(clippy::disallowed_types, reason = "responses come from any thread; held for one answer")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use crate::triton::instance_object::{InstanceShared, OpenPlace};
use crate::triton::model_object::HostedTensors;
use crate::triton::types::RESPONSE_FINAL;
use backend::{Responder, is_answering};
use base::error::Error;
use base::tensor::{Shape, Tensor};
use base::time::{Clock, Instant};
use model::parameters::Parameters;

/// The answers of one request.
pub(super) struct HostedAnswers {
    tensors: Arc<HostedTensors>,
    clock: Clock,
    /// The instant at which its run began.
    began: Instant,
    /// True while its run goes on and it was not released.
    is_in_run: AtomicBool,
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
    times: Option<ReportedTimes>,
}

struct UnsentAnswer {
    outcome: Result<Vec<Tensor>, Error>,
    parameters: Parameters,
    /// True if it was sent as the last.
    is_final: bool,
}

/// The times that a backend reports of a request, in nanoseconds of its own clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedTimes {
    pub(super) compute_start: u64,
    pub(super) compute_end: u64,
    pub(super) exec_end: u64,
}

impl HostedAnswers {
    /// The answers of a request whose run begins.
    pub(super) fn new(
        tensors: &Arc<HostedTensors>,
        responder: Responder,
        clock: Clock,
        began: Instant,
        shared: &Arc<InstanceShared>,
    ) -> Self {
        let state = AnswerState {
            responder: Some((responder, shared.begin())),
            held: None,
            has_answered: false,
            states: SmallVec::new(),
            times: None,
        };
        let (is_in_run, state) = (AtomicBool::new(true), Mutex::new(state));
        Self { tensors: Arc::clone(tensors), clock, began, is_in_run, state }
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
            let waits = is_answering() && self.is_in_run.load(Ordering::Acquire);
            if is_final && !waits {
                self.hand_over(&mut state);
            }
            return Ok(());
        }
        let outcome = outcome.map(|outputs| self.with_states(&mut state, outputs));
        let taken = if is_final { state.responder.take() } else { None };
        state.has_answered = true;
        if let Some((mut responder, open)) = taken {
            self.stamp(&mut responder, state.times);
            responder.set_parameters(parameters);
            drop(state);
            responder.send(outcome);
            drop(open);
        } else if let Some((responder, _)) = &mut state.responder {
            self.stamp(responder, None);
            responder.set_parameters(parameters);
            responder.send_part(outcome);
        }
        Ok(())
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
        Ok(())
    }

    /// The backend has reported the times of the request.
    pub(super) fn report(&self, times: ReportedTimes) {
        let mut state = self.lock();
        state.times = Some(times);
        self.hand_over_final(&mut state);
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
            self.stamp(&mut responder, state.times);
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
        if let Some((mut responder, _open)) = state.responder.take() {
            self.stamp(&mut responder, state.times);
            responder.set_parameters(parameters);
            state.has_answered = true;
            responder.send(outcome);
        }
    }

    /// No response follows.
    fn end(&self, state: &mut AnswerState) {
        if state.held.is_some() {
            return self.hand_over(state);
        }
        if let Some((mut responder, _open)) = state.responder.take() {
            self.stamp(&mut responder, state.times);
            if self.tensors.is_decoupled {
                responder.end();
            } else {
                let model = &self.tensors.model;
                let text = format!("the backend of model '{model}' ended this request without a response");
                responder.send(Err(Error::internal(text)));
            }
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
    fn stamp(&self, responder: &mut Responder, times: Option<ReportedTimes>) {
        let (stamps, now) = (&mut responder.stamps, (self.clock)());
        let ago = |time: u64, times: &ReportedTimes| {
            let before = Duration::from_nanos(times.exec_end.saturating_sub(time));
            (now - before).max(self.began)
        };
        stamps.input_end = times.map_or(self.began, |times| ago(times.compute_start, &times));
        stamps.infer_end = times.map_or(now, |times| ago(times.compute_end, &times)).max(stamps.input_end);
        stamps.output_end = now;
    }

    fn lock(&self) -> MutexGuard<'_, AnswerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HostedAnswers {
    /// No answer can follow. Without any answer the responder reports that.
    fn drop(&mut self) {
        let mut state = self.lock();
        let has_end = state.held.is_some() || (self.tensors.is_decoupled && state.has_answered);
        if has_end {
            self.end(&mut state);
        }
    }
}
