//! One instance of a Python model: it posts batches to its process, answers them when the process has, and serves the
//! process's own calls. No thread waits inside Python: the worker's thread sleeps on its queue and on the process at
//! once.
//!
//! A process that ends, runs too long or breaks the protocol costs the batches that it ran. A batch that was sent ahead
//! and not begun is left for the next process of the instance.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::limits::PYTHON_OPEN_REQUESTS_MAX;
use crate::python::context::{ModelProgram, PythonModelContext};
use crate::python::flights::{BatchInFlight, Flights};
use crate::python::inbox::InstanceInbox;
use crate::python::link::PythonLink;
use crate::python::memory::{NewRegion, OpenedSpan, RequestMemory, ResponseMemory};
use crate::python::message::{
    self, Capabilities, ClaimedResponse, ClaimedTensor, ExecuteHead, ExecuteRequest, MainMessage, MessageError,
    RegionSide, RequestTimes, Span, SpanLayout,
};
use crate::python::open_calls::OpenCalls;
use crate::python::process::PythonProcess;
use crate::python::region::TensorPolicy;
use crate::python::reports::OpenReports;
use crate::python::sent_request::SentRequest;
use backend::custom_metrics::ProcessMetrics;
use backend::{Batch, InFlightState, Instance, Request, RunWatch};
use base::error::{Code, Error};
use base::tensor::{Datatype, Shape, Tensor};
use base::time::{Clock, Instant};

/// The longest time between two polls while a batch is in flight: the delay after which a departed
/// client is noticed.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// The time to wait for the reason of an end, to log it: a process closes its sockets a little
/// before it ends.
const END_REASON_WAIT: Duration = Duration::from_millis(100);

/// One process and the batches sent to it.
pub struct PythonInstance {
    pub(super) model: Arc<PythonModelContext>,
    pub(super) name: Arc<str>,
    pub(super) link: PythonLink,
    pub(super) process: PythonProcess,
    pub(super) requests: RequestMemory,
    pub(super) responses: ResponseMemory,
    pub(super) inbox: Arc<InstanceInbox>,
    pub(super) calls: OpenCalls,
    pub(super) metrics: ProcessMetrics,
    /// Batches that were sent and not answered.
    pub(super) flights: Flights,
    /// Batches for whose inputs the shared memory has no room beside those that run.
    held: Vec<Vec<Request>>,
    /// Requests whose batch has ended and that a response sender answers later.
    open: HashMap<u64, SentRequest>,
    /// The reports that may still come.
    reports: OpenReports,
    /// The state of the process at its start.
    start: StartState,
    next_batch: u64,
    next_request: u64,
    ended_batch: Option<(u32, Duration)>,
    /// True if that ran alone.
    was_alone: bool,
    /// True if the process has answered a batch since its start.
    has_answered: bool,
    is_warm: bool,
    is_lost: bool,
    /// True if it is lost because it was ended, for a reason that is in the log.
    is_ended_by_us: bool,
    /// The time limit of runs, if a process of this program has one; and whether a run has reached
    /// it.
    watch: Option<Arc<RunWatch>>,
    overrun: Option<Error>,
    /// Free slots of the process, on their way to it.
    released: Vec<u32>,
    /// The buffer of encoded messages, kept for its memory.
    out: Vec<u8>,
}

/// The progress of a process's start.
enum StartState {
    Failed(Error),
    Pending,
    Ready(Capabilities),
    /// It was started to complete a configuration only.
    Completed(String),
}

/// A process that was just started, and what it shares with the server.
pub(super) struct StartedProcess {
    /// The server's ends of its sockets.
    pub(super) link: PythonLink,
    pub(super) process: PythonProcess,
    /// The memory of its inputs.
    pub(super) requests: RequestMemory,
    /// The memory of its outputs.
    pub(super) responses: ResponseMemory,
}

impl PythonInstance {
    /// Wraps a process that was just started.
    pub(super) fn new(
        model: Arc<PythonModelContext>,
        name: &str,
        started: StartedProcess,
        inbox: Arc<InstanceInbox>,
    ) -> Self {
        let StartedProcess { link, process, requests, responses } = started;
        let metrics = model.new_metrics();
        Self {
            model,
            name: name.into(),
            link,
            process,
            requests,
            responses,
            inbox,
            calls: OpenCalls::default(),
            metrics,
            flights: Flights::default(),
            held: Vec::new(),
            open: HashMap::new(),
            reports: OpenReports::default(),
            start: StartState::Pending,
            next_batch: 1,
            next_request: 1,
            ended_batch: None,
            was_alone: true,
            has_answered: false,
            is_warm: false,
            is_lost: false,
            is_ended_by_us: false,
            watch: None,
            overrun: None,
            released: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Returns the capabilities that the process reported; `None` while it starts.
    ///
    /// # Errors
    /// The reason why it could not start.
    pub(super) fn poll_start(&mut self) -> Result<Option<&Capabilities>, Error> {
        self.look();
        match &self.start {
            StartState::Failed(error) => Err(error.clone()),
            StartState::Ready(capabilities) => Ok(Some(capabilities)),
            StartState::Pending | StartState::Completed(_) if self.is_lost => Err(self.start_error()),
            StartState::Pending | StartState::Completed(_) => Ok(None),
        }
    }

    /// Returns the configuration that the process completed; `None` while it works on it.
    ///
    /// # Errors
    /// The reason why it could not.
    pub(super) fn poll_completed(&mut self) -> Result<Option<String>, Error> {
        self.look();
        match &self.start {
            StartState::Failed(error) => Err(error.clone()),
            StartState::Completed(json) => Ok(Some(json.clone())),
            _ if self.is_lost => Err(self.start_error()),
            _ => Ok(None),
        }
    }

    /// It was a template, and is told to be this instance: its start begins.
    pub(super) fn begin_start(&mut self) {
        self.start = StartState::Pending;
        self.process.become_instance(&self.name);
    }

    /// The process ended before it reported anything.
    fn start_error(&self) -> Error {
        self.model.early_end(&self.name, &self.process, self.responses.has_program())
    }

    /// Sends batches that an earlier process of the instance had not begun.
    pub(super) fn resume(&mut self, batches: Vec<Vec<Request>>) {
        for requests in batches {
            let number = self.next_batch;
            self.post(requests);
            self.flights.set_resumed(number);
        }
    }

    /// Reads and handles the input.
    fn look(&mut self) {
        let events = self.link.poll();
        let handled = self.handle_main().and_then(|()| self.handle_aux());
        if events.has_inbox {
            self.inbox.handle_readable();
            self.handle_inbox();
        }
        let noun = self.model.program.process();
        if let Err(error) = handled {
            self.end_process(&format!("its {noun} broke the protocol and is ended: {error}"));
        }
        self.is_lost |= events.has_ended;
        self.link.flush();
        if !self.is_lost && self.link.is_stuffed() {
            self.end_process(&format!("its {noun} does not read the replies to what it asks, and is ended"));
        }
    }

    /// Ends a process that is no longer of use.
    fn end_process(&mut self, why: &str) {
        self.model.log_fault(&self.name, why);
        self.process.kill();
        (self.is_lost, self.is_ended_by_us) = (true, true);
    }

    fn handle_main(&mut self) -> Result<(), MessageError> {
        loop {
            let Some(frame) = self.link.main.input.poll_frame()? else { return Ok(()) };
            match message::decode_main(frame)? {
                MainMessage::Initialized(capabilities) if matches!(self.start, StartState::Pending) => {
                    let order = self.model.program.run_order(capabilities.is_async, self.model.is_decoupled);
                    self.flights.set_order(order);
                    self.start = StartState::Ready(capabilities);
                }
                MainMessage::Failed(text) if matches!(self.start, StartState::Pending) => {
                    self.start = StartState::Failed(Error::internal(text));
                }
                MainMessage::Refused(error) if matches!(self.start, StartState::Pending) => {
                    self.start = StartState::Failed(error);
                }
                MainMessage::Completed(json) if matches!(self.start, StartState::Pending) => {
                    self.start = StartState::Completed(json);
                }
                MainMessage::Responses { batch, inputs_free, span, outcome } => {
                    self.handle_responses(batch, inputs_free, span, outcome)?;
                }
                MainMessage::Send { request, is_final, is_closed, span, response } => {
                    self.handle_send(request, is_final, is_closed, span, response)?;
                }
                MainMessage::Times(times) => times.into_iter().for_each(|times| self.handle_times(times)),
                MainMessage::Awaits { batch } => {
                    let now = self.model.clock()();
                    let is_known = self.flights.handle_await(batch, now);
                    is_known.then_some(()).ok_or(MessageError::Value("the order of the messages"))?;
                }
                MainMessage::Report(claim) => {
                    let open = claim.request().and_then(|key| self.find(key)?.counter.clone());
                    self.reports.handle_report(&claim, open);
                }
                MainMessage::Finalized => {}
                MainMessage::Initialized(_)
                | MainMessage::Failed(_)
                | MainMessage::Refused(_)
                | MainMessage::Completed(_) => {
                    return Err(MessageError::Value("the order of the messages"));
                }
            }
        }
    }

    /// Sends a batch to the process.
    fn post(&mut self, requests: Vec<Request>) {
        if !self.held.is_empty() {
            return self.held.push(requests);
        }
        match self.try_post(requests) {
            Ok(()) => {}
            // The batches that run give their memory back.
            Err((requests, error)) if error.code() == Code::Exhausted && !self.flights.is_empty() => {
                self.held.push(requests);
            }
            Err((requests, error)) => {
                requests.into_iter().for_each(|request| request.responder.send(Err(error.clone())));
            }
        }
    }

    /// Sends the batches that waited for memory, as far as there is room now.
    fn post_held(&mut self) {
        std::mem::take(&mut self.held).into_iter().for_each(|requests| self.post(requests));
    }

    fn try_post(&mut self, mut requests: Vec<Request>) -> Result<(), (Vec<Request>, Error)> {
        let inputs = || requests.iter().flat_map(|request| &request.inputs);
        let layout = SpanLayout::of(inputs().map(|input| input.contents.len()));
        let (span, new) = match self.requests.allocate(layout.size()) {
            Ok(allocated) => allocated,
            Err(error) => return Err((requests, error)),
        };
        self.announce_region(new);
        self.requests.write(&span, inputs());
        self.collect_released();
        let (number, first) = (self.next_batch, self.next_request);
        let encoded = requests.iter().enumerate().map(|(index, request)| ExecuteRequest {
            request: first + index as u64,
            details: request.details.as_deref(),
            needs: &request.responder.output_needs,
            inputs: &request.inputs,
        });
        let output_count = u16::try_from(self.model.outputs.len()).unwrap_or(u16::MAX);
        let head = ExecuteHead { batch: number, span, released: &self.released, output_count };
        self.out.clear();
        if let Err(error) = message::put_execute(&head, encoded, &mut self.out) {
            self.requests.free(span.slot);
            let noun = self.model.program.process();
            return Err((requests, Error::invalid(format!("the batch cannot be sent to its {noun}: {error}"))));
        }
        self.link.main.send(&self.out);
        self.link.flush();
        self.released.clear();
        let rows = requests.iter().fold(0_u32, |sum, request| sum.saturating_add(request.rows));
        let began = self.model.clock()();
        let is_reported = self.model.program.is_library();
        if is_reported {
            self.reports.begin(number, &mut requests);
        }
        let sent = |request| SentRequest::new(request, began, is_reported);
        let requests: Vec<_> = requests.into_iter().map(sent).collect();
        self.next_batch += 1;
        self.next_request += requests.len() as u64;
        self.flights.push(BatchInFlight::new(number, first, (span.slot, rows), requests, began));
        Ok(())
    }

    /// Tells the process of a new request region, before a message names it.
    pub(super) fn announce_region(&mut self, new: Option<NewRegion>) {
        let Some(NewRegion { index, size, file }) = new else { return };
        let mut frame = Vec::new();
        message::put_region(RegionSide::Request, index, size, &mut frame);
        self.link.aux.send_file(frame, file);
    }

    /// Takes the slots of the process that are free.
    pub(super) fn collect_released(&mut self) {
        while let Some(slot) = self.responses.poll_released() {
            self.released.push(slot);
        }
    }

    /// The slots of the process that are free, for a message that names them.
    pub(super) fn take_released(&mut self) -> Vec<u32> {
        self.collect_released();
        std::mem::take(&mut self.released)
    }

    /// The process answers a batch: each of its requests, or all with one error.
    fn handle_responses(
        &mut self,
        number: u64,
        inputs_free: bool,
        span: Span,
        outcome: Result<Vec<ClaimedResponse>, String>,
    ) -> Result<(), MessageError> {
        let slot = self.flights.running_slot(number).ok_or(MessageError::Value("the order of the messages"))?;
        if inputs_free && slot != 0 && !self.requests.free(slot) {
            return Err(MessageError::Value("a slot"));
        }
        let now = self.model.clock()();
        let Some(flight) = self.flights.take(number, now) else { return Ok(()) };
        self.ended_batch = Some((flight.rows, now.since(flight.began)));
        self.was_alone = flight.is_alone && self.open.is_empty();
        self.has_answered = true;
        let BatchInFlight { first, mut requests, began, .. } = flight;
        requests.iter_mut().for_each(|running| running.began = began);
        match outcome {
            Err(text) => {
                self.model.log_fault(&self.name, &text);
                let error = Error::internal(text);
                requests.into_iter().for_each(|request| request.fail(&error));
                Ok(())
            }
            Ok(responses) if responses.len() != requests.len() => Err(self.fail_all(requests, MessageError::Count)),
            Ok(responses) => self.answer_batch(first, requests, responses, span, now),
        }
    }

    fn answer_batch(
        &mut self,
        first: u64,
        requests: Vec<SentRequest>,
        responses: Vec<ClaimedResponse>,
        span: Span,
        now: Instant,
    ) -> Result<(), MessageError> {
        let opened = match self.responses.open(span) {
            Ok(opened) => opened,
            Err(error) => return Err(self.fail_all(requests, error)),
        };
        let clock = self.model.clock();
        let mut requests = requests.into_iter();
        for ((response, mut running), key) in responses.into_iter().zip(requests.by_ref()).zip(first..) {
            running.stamp(now, clock());
            let outcome = match response {
                // Its sender answers, or did already.
                ClaimedResponse::None if running.request.is_some() => {
                    self.open.insert(key, running);
                    continue;
                }
                ClaimedResponse::None => continue,
                ClaimedResponse::Rescheduled { tensors, .. } => {
                    match self.outputs(&opened, tensors, running.policy()) {
                        Ok(outputs) => running.reschedule(outputs),
                        Err(error) => return Err(self.fail_all(std::iter::once(running).chain(requests), error)),
                    }
                    continue;
                }
                ClaimedResponse::Error(error) => Err(error),
                ClaimedResponse::Outputs { parameters, tensors } => {
                    running.set_parameters(parameters);
                    match self.outputs(&opened, tensors, running.policy()) {
                        Ok(outputs) => self.model.checked(outputs, running.rows()),
                        Err(error) => return Err(self.fail_all(std::iter::once(running).chain(requests), error)),
                    }
                }
            };
            running.answer(outcome);
        }
        Ok(())
    }

    /// The outputs of one response in the order of the model's; those that it lacks are empty.
    fn outputs(
        &self,
        opened: &OpenedSpan,
        claims: Vec<(u16, ClaimedTensor)>,
        policy: TensorPolicy,
    ) -> Result<Vec<Tensor>, MessageError> {
        let absent = |datatype: Datatype| Tensor { datatype, shape: Shape::new(), contents: bytes::Bytes::new() };
        let mut outputs: Vec<Tensor> = self.model.outputs.iter().map(|(_, datatype)| absent(*datatype)).collect();
        for (index, claim) in claims {
            let place = outputs.get_mut(usize::from(index)).ok_or(MessageError::Value("the index of an output"))?;
            *place = self.responses.take(opened, &claim, policy)?;
        }
        Ok(outputs)
    }

    /// A response sender of the process answers a request.
    fn handle_send(
        &mut self,
        key: u64,
        is_final: bool,
        is_closed: bool,
        span: Span,
        response: ClaimedResponse,
    ) -> Result<(), MessageError> {
        let opened = self.responses.open(span)?;
        let (policy, rows) =
            self.find(key).map_or((TensorPolicy::Copy, 0), |running| (running.policy(), running.rows()));
        let outcome = match response {
            ClaimedResponse::None => None,
            ClaimedResponse::Error(error) => Some((Default::default(), Err(error))),
            ClaimedResponse::Outputs { parameters, tensors } => {
                Some((parameters, self.model.checked(self.outputs(&opened, tensors, policy)?, rows)))
            }
            ClaimedResponse::Rescheduled { tensors, .. } => {
                let outputs = self.outputs(&opened, tensors, policy)?;
                if let Some(running) = self.find(key) {
                    running.take().reschedule(outputs);
                }
                self.open.remove(&key);
                return Ok(());
            }
        };
        let now = self.model.clock()();
        let is_decoupled = self.model.is_decoupled;
        // It is in its batch while execute runs, and among the open ones afterwards. An answered
        // one is in neither, which is not a fault: its sender may outlive it.
        let Some(running) = self.find(key) else { return Ok(()) };
        running.stamp(now, now);
        let is_success = outcome.as_ref().is_none_or(|(_, outcome)| outcome.is_ok());
        let answered = if is_final { running.to_answered(is_success) } else { None };
        if let Some((parameters, outcome)) = outcome {
            running.set_parameters(parameters);
            match outcome {
                outcome if is_final => running.answer(outcome),
                outcome if is_decoupled => running.send_more(outcome),
                outcome => running.held = Some(outcome),
            }
        }
        if is_final || is_closed {
            running.end(is_decoupled);
        }
        if self.open.get(&key).is_some_and(|running| running.request.is_none()) {
            self.open.remove(&key);
        }
        self.has_answered |= is_final && self.model.program.is_library();
        if let Some(answered) = answered {
            self.reports.handle_answered(key, answered);
        }
        Ok(())
    }

    /// The process reports the times of a request's run.
    fn handle_times(&mut self, RequestTimes { request, input_end, infer_end }: RequestTimes) {
        let now = self.model.clock()();
        let of_batch = self.flights.batch_of(request).map(|flight| flight.began);
        let Some(running) = self.find(request) else { return };
        let began = of_batch.unwrap_or(running.began);
        // A claim, as all input: it lies within the run.
        let at = |nanos: u64| (began + Duration::from_nanos(nanos)).min(now);
        if let Some(open) = &mut running.request {
            open.responder.stamps.input_end = at(input_end);
            open.responder.stamps.infer_end = at(infer_end).max(at(input_end));
            running.has_times = true;
        }
    }

    /// A request that the process has.
    pub(super) fn find(&mut self, key: u64) -> Option<&mut SentRequest> {
        match self.flights.find(key) {
            Some(running) => Some(running),
            None => self.open.get_mut(&key),
        }
    }

    /// The same, to look at.
    pub(super) fn get(&self, key: u64) -> Option<&SentRequest> {
        let in_batch = self.flights.batch_of(key).and_then(|flight| flight.get(key));
        in_batch.or_else(|| self.open.get(&key))
    }

    /// The requests that the process has.
    pub(super) fn running(&self) -> impl Iterator<Item = &Request> {
        let in_batches = self.flights.iter().flat_map(|flight| &flight.requests);
        in_batches.chain(self.open.values()).filter_map(|running| running.request.as_ref())
    }

    /// Fails requests that were taken out of their batch, because a message about them does not make sense.
    fn fail_all(&self, requests: impl IntoIterator<Item = SentRequest>, why: MessageError) -> MessageError {
        let error = self.model.lost(&self.name, None);
        requests.into_iter().for_each(|running| running.fail(&error));
        why
    }

    /// The process is gone: fails the requests that it ran, and leaves those that it had not begun
    /// for the next one.
    fn handle_lost(&mut self) {
        // Batches that ran beside one that took too long are not at fault.
        let (has_timed_out, now, limit) = (self.has_timed_out(), self.model.clock()(), self.time_limit());
        let is_bystander = |began| has_timed_out && limit.is_some_and(|limit| now.since(began) < limit);
        let (error, of_bystander) = (self.lost_error(), self.model.lost(&self.name, None));
        let begun = self.responses.begun_batch();
        let mut unbegun = Vec::new();
        for flight in self.flights.take_all() {
            let may_resume = flight.number > begun && !flight.is_resumed;
            let mut again = Vec::new();
            for mut running in flight.requests {
                // A request of a sequence needs the state that the process had.
                let is_free = |request: &mut Request| may_resume && request.sequence.is_none();
                match running.request.take_if(is_free) {
                    Some(request) => again.push(request),
                    None if is_bystander(flight.began) => running.fail(&of_bystander),
                    None => running.fail(&error),
                }
            }
            if !again.is_empty() {
                unbegun.push(again);
            }
        }
        for requests in std::mem::take(&mut self.held) {
            let (lost, again): (Vec<_>, Vec<_>) = requests.into_iter().partition(|request| request.sequence.is_some());
            lost.into_iter().for_each(|request| request.responder.send(Err(error.clone())));
            unbegun.extend((!again.is_empty()).then_some(again));
        }
        self.open.drain().for_each(|(_, running)| running.fail(&error));
        self.calls.cancel_all();
        self.log_lost();
        self.model.handle_lost(&self.name, unbegun, self.has_answered);
    }

    /// The error of the requests that a process had.
    fn lost_error(&mut self) -> Error {
        if let Some(error) = self.overrun.take() {
            return error;
        }
        match &self.model.program {
            ModelProgram::Python { execute_timeout: Some(timeout), .. } if self.has_timed_out() => {
                Error::internal(format!(
                    "Python model '{}' did not end a batch within {} ms ('execute_timeout_ms') and its process was ended",
                    self.name,
                    timeout.as_millis()
                ))
            }
            program => {
                // The reason of a library's end is worth a short wait.
                let reason = if program.is_library() { self.process.wait_ended(END_REASON_WAIT) } else { None };
                self.model.lost(&self.name, reason)
            }
        }
    }

    /// Logs the reason why the process is gone, if it was not logged yet. After the answers: it may
    /// take a moment.
    fn log_lost(&self) {
        if self.is_ended_by_us {
            return;
        }
        let reason = self.process.wait_ended(END_REASON_WAIT);
        let text = reason.map_or_else(|| "has closed its sockets".into(), |reason| format!("has ended: {reason}"));
        self.model.log_fault(&self.name, &format!("its {} {text}", self.model.program.process()));
    }

    /// The time limit of a batch.
    fn time_limit(&self) -> Option<Duration> {
        match self.model.program {
            ModelProgram::Python { execute_timeout, .. } => execute_timeout,
            ModelProgram::Library { .. } => self.watch.as_ref().map(|watch| watch.limit()),
        }
    }

    /// Returns the start of the longest run: of the batch that runs, and for a model with one
    /// response each also of requests that it answers after its run. The stream of a decoupled
    /// model has no time limit.
    fn oldest_run(&self) -> Option<Instant> {
        let is_counted = self.model.program.is_library() && !self.model.is_decoupled;
        let open = self.open.values().filter(|_| is_counted).map(|running| running.began).min();
        self.flights.oldest().map(|flight| flight.began).into_iter().chain(open).min()
    }

    /// Returns true if a run has exceeded its time limit.
    fn has_timed_out(&self) -> bool {
        let (Some(timeout), Some(began)) = (self.time_limit(), self.oldest_run()) else { return false };
        self.model.clock()().since(began) >= timeout
    }

    /// A run takes too long: the process is ended.
    fn handle_overrun(&mut self) {
        let Some(watch) = self.watch.clone().filter(|_| self.model.program.is_library()) else {
            return self.end_process("a batch takes longer than 'execute_timeout_ms': its Python process is ended");
        };
        self.overrun = Some(watch.handle_overrun());
        self.end_process("a run took too long: its process is killed");
    }

    /// The time until the next check without an event.
    fn look_again(&self, now: Instant) -> Option<Duration> {
        if self.flights.is_empty() && self.open.is_empty() {
            return None;
        }
        let timeout = self.time_limit().zip(self.oldest_run());
        let timeout = timeout.map(|(timeout, began)| (began + timeout).since(now));
        Some(timeout.map_or(LOOK_PAUSE, |timeout| timeout.min(LOOK_PAUSE)))
    }

    fn has_room(&self) -> bool {
        self.held.is_empty() && self.flights.has_room() && self.open.len() < PYTHON_OPEN_REQUESTS_MAX
    }

    /// Asks the process to finalize and waits for its end, then ends it.
    fn finish(&mut self) {
        // A library that has completed a configuration has a model to finalize.
        let has_completed = self.model.program.is_library() && matches!(self.start, StartState::Completed(_));
        if self.is_lost || !(has_completed || matches!(self.start, StartState::Ready(_))) {
            return self.process.kill();
        }
        let mut frame = Vec::new();
        message::put_finalize(&mut frame);
        self.link.main.send(&frame);
        let clock = self.model.clock();
        let until = clock() + self.model.finalize_timeout();
        self.model.options.finalizing.fetch_add(1, Ordering::SeqCst);
        while !self.is_lost && clock() < until {
            self.link.wait(LOOK_PAUSE);
            self.look();
        }
        self.model.options.finalizing.fetch_sub(1, Ordering::SeqCst);
        if !self.is_lost {
            let noun = self.model.program.process();
            self.model.log_fault(&self.name, &format!("finalize takes too long: its {noun} is ended"));
            self.process.kill();
        }
    }
}

impl Instance for PythonInstance {
    fn run(&mut self, batch: Batch) {
        self.post(batch.requests);
    }

    fn is_warm(&self) -> bool {
        self.is_warm
    }

    fn set_warm(&mut self) {
        self.is_warm = true;
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        self.look();
        if !self.is_lost && self.has_timed_out() {
            self.handle_overrun();
        }
        if self.is_lost {
            self.handle_lost();
            return InFlightState { is_lost: true, ..InFlightState::default() };
        }
        self.post_held();
        self.cancel_calls_of_departed();
        InFlightState {
            batches: self.flights.len() + self.held.len() + usize::from(!self.open.is_empty()),
            has_room: self.has_room(),
            look_again: self.look_again(clock()),
            ended_batch: self.ended_batch.take(),
            was_alone: self.was_alone,
            is_lost: false,
            ahead: self.flights.requests_ahead() + self.held.iter().map(Vec::len).sum::<usize>(),
            at_once: self.flights.at_once(),
        }
    }

    fn event_source(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(self.link.event_source()))
    }

    /// A Python model has a limit of its own.
    fn set_watch(&mut self, watch: Arc<RunWatch>) {
        self.watch = Some(watch);
    }
}

impl Drop for PythonInstance {
    fn drop(&mut self) {
        self.finish();
    }
}
