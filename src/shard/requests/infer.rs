//! From a checked request to its outputs: through the model queue, the shard's own instance, an ensemble or the
//! response cache. However a request ends (answered, refused, expired, cancelled), it is counted exactly once.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;

use crate::backend::details::CallChain;
use crate::backend::gpu::DeviceTensors;
use crate::backend::{
    self, Answer, AnswerPart, Batch, Instance, OutputNeed, OutputNeeds, Request, RequestDetails, Responder, Ticket,
};
use crate::error::{Code, Error};
use crate::limits::QUEUE_LOOK_PAUSE;
use crate::metrics::{Departure, FailureReason, ModelCells, ShardCells, StepTimes};
use crate::model::parameters::Parameters;
use crate::model::{CorrelationId, ModelSpec, SequenceMark};
use crate::policy::AdmissionRule;
use crate::protocol::check;
use crate::protocol::infer::{InferRequest, OutputPlan, ResponsePlan};
use crate::protocol::keys::KeyClient;
use crate::queue::completions::Completions;
use crate::queue::given_up::watch_inline;
use crate::queue::model_queue::ModelQueue;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::queued_request::{QueueRefusal, QueuedRequest, RequestSize, timeout_expired};
use crate::queue::request_slots::{PartSink, PendingAnswer};
use crate::queue::served_model::{RunOutcome, run_guarded};
use crate::runtime::clock;
use crate::runtime::executor;
#[cfg(test)]
use crate::runtime::simulation::{SimulatedFault, is_planted};
use crate::scheduler::{Entry, ShapeKey, TimeoutAction};
use crate::shard::Shard;
use crate::shard::deadline::unless_late;
use crate::shard::models::model_table::{InstanceRoute, LocalModel, LocalQueue};
use crate::shard::models::shared_cache::CacheLookup;
use crate::shard::requests::call_chain::check_free;
use crate::shard::requests::request_details::{id_only, in_sequence, on_device_too, take_details};
use crate::tensor::Tensor;
use crate::time::{Instant, Stamps};
use crate::trace::ActiveTrace;

/// Counts one inference request of the shard, from its last byte to its answer. Dropped before it is settled, it counts
/// as cancelled: its task is dropped only when the client has left.
pub struct RequestMetrics<'a> {
    cells: Arc<ShardCells>,
    departure: &'a Cell<Departure>,
    is_settled: bool,
}

impl<'a> RequestMetrics<'a> {
    /// A request was received. `departure` holds the way in which its client left, if it leaves
    /// before the answer.
    pub fn open(cells: &Arc<ShardCells>, departure: &'a Cell<Departure>) -> Self {
        cells.received.add(1);
        Self { cells: Arc::clone(cells), departure, is_settled: false }
    }

    /// The request was answered, with outputs or an error.
    pub fn settle<T>(mut self, outcome: &Result<T, Error>) {
        self.is_settled = true;
        match outcome {
            Ok(_) => self.cells.succeeded.add(1),
            Err(error) => self.cells.count_refused(error.code()),
        }
    }
}

impl Drop for RequestMetrics<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.cells.count_cancelled(self.departure.get());
        }
    }
}

/// A request with its ticket, before it is queued or run.
pub(super) struct Submission {
    pub(super) ticket: Ticket,
    pub(super) inputs: Vec<Tensor>,
    pub(super) rows: u32,
    priority: u64,
    timeout: Duration,
    sequence: Option<SequenceMark>,
    arrival: Arrival,
    sink: Option<Rc<dyn PartSink>>,
    output_needs: OutputNeeds,
    details: Option<Arc<RequestDetails>>,
    /// Its number among the shares of one request, which must not run together; `None` for a whole request.
    share: Option<u32>,
}

/// The queue of a model's instances, as the shard reaches it.
#[derive(Clone, Copy)]
pub(super) struct QueueRoute<'a> {
    pub(super) model: &'a Rc<LocalModel>,
    pub(super) producer: &'a RefCell<QueueProducer>,
    pub(super) model_queue: &'a LocalQueue,
}

impl Submission {
    /// A share of its rows, with a ticket of its own.
    pub(super) fn share(&self, index: u32, ticket: Ticket, inputs: Vec<Tensor>, rows: u32) -> Self {
        debug_assert!(self.sink.is_none() && self.sequence.is_none(), "only requests with one answer are split");
        Self {
            ticket,
            inputs,
            rows,
            priority: self.priority,
            timeout: self.timeout,
            sequence: None,
            arrival: self.arrival.clone(),
            sink: None,
            output_needs: self.output_needs.clone(),
            details: self.details.clone(),
            share: Some(index),
        }
    }

    /// Its entry in a model queue. A request outside of a sequence gets one of its own if the
    /// model's are iterative.
    fn into_queued(self, spec: &ModelSpec, model_queue: &ModelQueue, completions: Arc<Completions>) -> QueuedRequest {
        let Self { ticket, inputs, rows, priority, sequence, arrival, output_needs, details, .. } = self;
        let mark = sequence.filter(|_| spec.sequence.is_some());
        let own = if mark.is_none() { model_queue.new_sequence() } else { None };
        let details = match &own {
            Some(own) if spec.takes_details() => Some(in_sequence(details, own)),
            _ => details,
        };
        let mark = mark.or(own);
        let said = details.as_ref().map_or(0, |details| details.parameters.size());
        let size = inputs.iter().map(|input| input.contents.len()).fold(said, usize::saturating_add);
        let level = model_queue.policy().level(priority);
        let (stamps, again) = (Stamps { received: arrival.received, ..Stamps::default() }, None);
        QueuedRequest { completions, ticket, inputs, rows, size, level, mark, stamps, output_needs, details, again }
    }
}

/// The answer of a model to a request.
pub struct InferOutcome {
    /// The outputs, in the order of the model's.
    pub outputs: Vec<Tensor>,
    /// The parameters of the model's answer; `None` for most.
    pub parameters: Option<Box<Parameters>>,
    /// The outputs that the response sends, and their form.
    pub plan: ResponsePlan,
    /// The instants at which the stages ended.
    pub stamps: Stamps,
}

/// The arrival of a request, its deadline, and its callers.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The instant at which its last byte was read.
    pub received: Instant,
    /// The client's deadline: an answer after it is useless.
    pub deadline: Option<Instant>,
    /// The number of nested ensembles around it; 0 for a request of a client.
    pub depth: usize,
    /// The models whose calls led to it; empty for a request of a client.
    pub chain: CallChain,
    /// Its trace, if it is traced.
    pub trace: Option<Arc<ActiveTrace>>,
    /// Its tensors that lie on a device.
    pub on_device: Option<Arc<DeviceTensors>>,
    /// The client that pays for the tokens of its texts, if they have a rate.
    pub payer: Option<Arc<KeyClient>>,
}

impl Arrival {
    /// The arrival of a client's request that is not traced; `payer` as in [`Self::payer`].
    pub fn of_client(received: Instant, deadline: Option<Instant>, payer: Option<Arc<KeyClient>>) -> Self {
        Self { received, deadline, depth: 0, chain: CallChain::default(), trace: None, on_device: None, payer }
    }
}

impl Shard {
    /// Runs a request on a model version. `sink` takes all but the last answer of a decoupled
    /// model; the last may be its end alone. `has_run` is set if an instance ran the request,
    /// successfully or not. The future may be dropped: a request that is in no batch yet is
    /// withdrawn.
    ///
    /// # Errors
    /// The model's error, or the reason why the request was refused: no ticket, a full queue, a
    /// timeout, an unloaded version.
    pub async fn infer(
        self: &Rc<Self>,
        model: &Rc<LocalModel>,
        request: InferRequest,
        arrival: Arrival,
        sink: Option<Rc<dyn PartSink>>,
        has_run: &Cell<bool>,
    ) -> Result<(InferOutcome, AnswerPart), Error> {
        // Never a decoupled model: a configuration that asks to cache its answers is refused at load.
        let lookup = if self.caches.shared.is_some() && model.served().spec.is_cached {
            Box::pin(self.caches.look_up_shared(&self.models, model, &request, arrival.received, arrival.deadline))
                .await
        } else {
            self.caches.look_up(&self.models, model, &request, arrival.received)
        };
        if let Some(CacheLookup::Hit(outputs, stamps)) = lookup {
            return Ok((InferOutcome { outputs, parameters: None, plan: request.plan, stamps }, AnswerPart::Last));
        }
        if let InstanceRoute::Ensemble(steps) = model.route() {
            // As in Triton, an error of a step is the ensemble's answer, not a refusal.
            has_run.set(true);
            let (inferred, part) = Box::pin(self.infer_ensemble(model, steps, request, arrival, sink)).await?;
            self.remember(model, lookup, &inferred);
            return Ok((inferred, part));
        }
        let (begun, model_metrics, plan) = self.begin(model, request, arrival, sink)?;
        let answer = match begun {
            BegunRequest::Inline(pending) => Ok(self.inline_answer(model, pending).await),
            BegunRequest::Queued(waiting) => waiting.answer().await,
            BegunRequest::Shared(shares) => shares.await,
            BegunRequest::Refused(error) => Err(error),
        };
        let part = answer.as_ref().map_or(AnswerPart::Last, |answer| answer.part);
        has_run.set(answer.as_ref().is_ok_and(Answer::has_run));
        let spec = &model.served().spec;
        let shaped = |outputs: Vec<Tensor>| if part == AnswerPart::End { Ok(outputs) } else { spec.to_client(outputs) };
        let answer = answer.map(|answer| Answer { outputs: answer.outputs.and_then(shaped), ..answer });
        let inferred = model_metrics.settle(answer, plan)?;
        self.remember(model, lookup, &inferred);
        Ok((inferred, part))
    }

    /// Keeps an answer that the cache lacked.
    fn remember(&self, model: &Rc<LocalModel>, lookup: Option<CacheLookup>, inferred: &InferOutcome) {
        if let Some(CacheLookup::Miss(key, took)) = lookup {
            let outputs = inferred.parameters.is_none().then_some(&inferred.outputs[..]);
            self.caches.remember(&self.models, model, key, outputs, took);
        }
    }

    /// Queues a request, or runs it on the shard's own instance. Not a future: what it needs for that is large, and would count
    /// in the memory of each connection.
    fn begin<'a>(
        self: &'a Rc<Self>,
        model: &'a Rc<LocalModel>,
        mut request: InferRequest,
        arrival: Arrival,
        sink: Option<Rc<dyn PartSink>>,
    ) -> Result<(BegunRequest<'a>, ModelMetrics, ResponsePlan), Error> {
        check_free(&arrival.chain, model.served())?;
        let spec = &model.served().spec;
        spec.check_axes(&request.inputs).map_err(|error| error.with_prefix(&check::prefix(&request.plan.id)))?;
        let ticket = self.requests.open_ticket()?;
        let on_device = arrival.on_device.clone();
        let details = if spec.takes_details() {
            take_details(&mut request, arrival.deadline, arrival.depth > 0, &arrival.chain, arrival.trace.as_ref())
        } else {
            id_only(&request)
        };
        let InferRequest { inputs, rows, priority, timeout, sequence, plan, .. } = request;
        let model_metrics = ModelMetrics::open(model, self.index, rows, arrival.received);
        let (sequence, mut output_needs) = (sequence.mark(), output_needs(spec, &plan));
        for (index, _) in on_device.iter().flat_map(|tensors| &tensors.outputs) {
            if let Some(need) = output_needs.0.get_mut(*index) {
                *need = OutputNeed::Nothing;
            }
        }
        let details = match on_device {
            None => details,
            Some(_) => Some(on_device_too(details, on_device)),
        };
        let share = None;
        let submission = Submission {
            ticket,
            inputs,
            rows,
            priority,
            timeout,
            sequence,
            arrival,
            sink,
            output_needs,
            details,
            share,
        };
        let begun = match model.route() {
            InstanceRoute::Inline(instance) => BegunRequest::Inline(self.run_inline(model, instance, submission)),
            InstanceRoute::Queue(producer, model_queue) => {
                let queue = QueueRoute { model, producer, model_queue };
                match if asks_for_more(spec, &plan) { 1 } else { model_queue.row_shares(rows) } {
                    0 | 1 => self
                        .submit(queue, submission, &plan.id)
                        .map_or_else(BegunRequest::Refused, BegunRequest::Queued),
                    shares => BegunRequest::Shared(Box::pin(self.enqueue_shares(
                        queue,
                        submission,
                        shares,
                        plan.id.to_string(),
                    ))),
                }
            }
            InstanceRoute::Ensemble(_) | InstanceRoute::Released => {
                self.requests.slots.release(submission.ticket);
                BegunRequest::Refused(Error::unavailable("the model version was unloaded"))
            }
        };
        Ok((begun, model_metrics, plan))
    }

    /// Runs a request on the shard's own instance, whose answer is there then.
    fn run_inline(
        self: &Rc<Self>,
        model: &Rc<LocalModel>,
        instance: &RefCell<Box<dyn Instance>>,
        submission: Submission,
    ) -> PendingAnswer {
        let Submission { ticket, inputs, rows, arrival, sink, details, .. } = submission;
        let completions = self.requests.slots.completions();
        completions.claim(ticket);
        let pending = self.requests.slots.pending(ticket, || ()).with_sink(sink);
        let stamps = Stamps { received: arrival.received, batched: clock::now(), ..Stamps::default() };
        let mut responder = Responder::new(Arc::clone(completions) as Arc<dyn backend::AnswerSink>, ticket, stamps);
        responder.set_batch(rows, true);
        let requests = vec![Request { inputs, rows, responder, sequence: None, details }];
        let batch = Batch { requests, rows, clock: clock::now, ended: Vec::new() };
        let served = model.served();
        if let Some(cells) = served.cells.get(self.index) {
            cells.count_execution();
        }
        let renew = || {
            let mut instance = served.loaded.new_instance(&self.threads)?;
            watch_inline(served, &mut *instance);
            Ok(instance)
        };
        let run = || run_guarded(&mut instance.borrow_mut(), batch, served.label("inline"), renew);
        model.set_alive(backend::answering_myself(run) != RunOutcome::Dead);
        self.requests.slots.drain();
        pending
    }

    async fn inline_answer(&self, model: &Rc<LocalModel>, pending: PendingAnswer) -> Answer {
        let answer = pending.await;
        // As in Triton, a batch counts only if one of its requests succeeded.
        if let Some(cells) = model.served().cells.get(self.index).filter(|_| answer.outputs.is_ok()) {
            cells.batches.count(answer.batch_rows, &answer.stamps);
        }
        answer
    }

    /// Queues a request for the instances of a model.
    ///
    /// # Errors
    /// The queue's refusal; unavailable if the version was unloaded.
    pub(super) fn submit(
        self: &Rc<Self>,
        queue: QueueRoute<'_>,
        mut submission: Submission,
        id: &str,
    ) -> Result<QueuedAnswer, Error> {
        let QueueRoute { model, producer, model_queue } = queue;
        let spec = &model.served().spec;
        let mut shape_key = shape_key(spec, &submission.inputs);
        shape_key.extend(submission.share.map(i64::from));
        let Submission { ticket, rows, priority, timeout, .. } = submission;
        let (received, deadline, sink) =
            (submission.arrival.received, submission.arrival.deadline, submission.sink.take());
        let token = submission.into_queued(spec, model_queue, Arc::clone(self.requests.slots.completions()));
        let sequence = token.mark.as_ref().map(|mark| mark.id.clone());
        let room = token.room();
        let queued_at = clock::now();
        // With admission by deadline, the client's own timeout limits the whole request, not only its time in the
        // queue.
        let is_bounded = model_queue.policy().admission == AdmissionRule::Deadline && !timeout.is_zero();
        let asked = is_bounded.then(|| received + timeout);
        let due = deadline.into_iter().chain(asked).min();
        let entry = Entry { token, rows, shape_key, queued_at, priority, timeout, deadline: due };
        let submitted = producer.borrow_mut().submit(entry);
        match submitted {
            Ok(true) => self.requests.deferred_wakes.handle_submission(model_queue),
            Ok(false) => {}
            Err(refusal) => {
                self.requests.slots.release(ticket);
                return Err(Error::overloaded(format!("{}{}", check::prefix(id), refusal_text(refusal))));
            }
        }
        let is_stopped = model_queue.is_stopped();
        let queue = Rc::clone(model_queue);
        let mut pending = self.requests.slots.pending(ticket, move || leave(&queue, room)).with_sink(sink);
        // The version may be unloaded while this request is submitted, and its workers may end before they see the
        // entry. The fence in `submit` lies between the entry and this check: either the workers see the entry, or this
        // task sees that the queue was stopped, and withdraws.
        if is_stopped && pending.withdraw() {
            return Err(Error::unavailable(format!("{}the model version was unloaded", check::prefix(id))));
        }
        if let Some(id) = sequence {
            let sequence = SequenceGuard { model_queue: Arc::clone(model_queue), id: Some(id), since: queued_at };
            let timeout_at = (!timeout.is_zero()).then(|| queued_at + timeout);
            return Ok(QueuedAnswer { pending, sequence: Some(sequence), timeout_at, deadline });
        }
        let queue = model_queue.policy().queue(room.level);
        let is_rejected = queue.timeout_action == TimeoutAction::Reject;
        let timeout_at = queue.timeout(timeout).filter(|_| is_rejected).map(|timeout| queued_at + timeout);
        let timeout_at = timeout_at.into_iter().chain(asked).min();
        Ok(QueuedAnswer { pending, sequence: None, timeout_at, deadline })
    }
}

/// A request on its way to its answer.
enum BegunRequest<'a> {
    /// It ran on the shard's own instance.
    Inline(PendingAnswer),
    Queued(QueuedAnswer),
    /// Its rows run on several instances. Boxed: few requests are split.
    Shared(Pin<Box<dyn Future<Output = Result<Answer, Error>> + 'a>>),
    Refused(Error),
}

/// A queued request, and the instants at which its answer would be late.
pub(super) struct QueuedAnswer {
    pending: PendingAnswer,
    /// Its sequence, if it belongs to one.
    sequence: Option<SequenceGuard>,
    timeout_at: Option<Instant>,
    deadline: Option<Instant>,
}

impl QueuedAnswer {
    /// The answer.
    ///
    /// # Errors
    /// A timeout or deadline that passed before; an unloaded version.
    pub(super) async fn answer(self) -> Result<Answer, Error> {
        let Self { pending, sequence, timeout_at, deadline } = self;
        match sequence {
            Some(sequence) => unless_late(sequence.answer(pending, timeout_at), deadline).await,
            None => unless_late(answer_unless_expired(pending, timeout_at), deadline).await,
        }
    }
}

/// The part of each output that the client asked for, so that an instance on a GPU copies only that
/// back, and a Python model or a hosted backend may ask for their names. Of another model on CPUs, all but
/// the outputs on request. Everything if the answers are cached: other requests may need the rest. New states
/// of a sequence are always needed whole.
fn output_needs(spec: &ModelSpec, plan: &ResponsePlan) -> OutputNeeds {
    let is_told = spec.is_on_gpu() || spec.is_python() || spec.library.is_some();
    let has_others = !spec.outputs_on_request().is_empty();
    if !(is_told || has_others) || spec.is_cached || plan.outputs.is_empty() {
        return OutputNeeds::default();
    }
    let is_usual = |index: usize| spec.outputs.get(index).is_some_and(|output| spec.is_usual_output(&output.name));
    let states = || spec.sequence.iter().flat_map(|sequence| &sequence.states);
    let output_need = |index| match plan.outputs.iter().find(|output| output.index == index) {
        _ if states().any(|state| state.output == index) => OutputNeed::Whole,
        None if !is_told && is_usual(index) => OutputNeed::Whole,
        None => OutputNeed::Nothing,
        Some(OutputPlan { class_count: 0, .. }) => OutputNeed::Whole,
        Some(OutputPlan { class_count, .. }) => OutputNeed::Classes(*class_count),
    };
    OutputNeeds((0..spec.outputs.len()).map(output_need).collect())
}

/// Returns true if a request asks for an output that others do not get. It runs whole: such an output may have other dimensions
/// in each share, which would end the sharing of others' rows.
fn asks_for_more(spec: &ModelSpec, plan: &ResponsePlan) -> bool {
    let is_usual =
        |output: &OutputPlan| spec.outputs.get(output.index).is_none_or(|output| spec.is_usual_output(&output.name));
    !spec.outputs_on_request().is_empty() && !plan.outputs.iter().all(is_usual)
}

/// Guards a request of a sequence while it waits. Dropped before the answer, the client has left, and the sequence
/// ends: the request was withdrawn or its outcome is unknown, so later requests would run on a state that lacks it.
struct SequenceGuard {
    model_queue: Arc<ModelQueue>,
    id: Option<CorrelationId>,
    since: Instant,
}

impl SequenceGuard {
    /// The answer. When the request's timeout in the queue passes, this task itself makes the queue
    /// refuse expired requests, since all instances may be busy. If another thread has the queue's
    /// lock, it tries again shortly after: that thread may have checked just before the timeout
    /// passed.
    async fn answer(mut self, mut pending: PendingAnswer, timeout_at: Option<Instant>) -> Result<Answer, Error> {
        let mut poll_at = timeout_at;
        let answer = loop {
            let Some(at) = poll_at else { break pending.await };
            if let Some(answer) = answer_until(&mut pending, at).await {
                break answer;
            }
            let now = clock::now();
            poll_at = (!self.model_queue.refuse_expired(now)).then(|| now + QUEUE_LOOK_PAUSE);
        };
        self.id = None;
        Ok(answer)
    }
}

impl Drop for SequenceGuard {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.model_queue.depart(id, self.since);
        }
    }
}

/// The answer, or a refusal if the request is still queued when its queue timeout passes. A request
/// that is in a batch by then runs to its answer.
async fn answer_unless_expired(mut pending: PendingAnswer, timeout_at: Option<Instant>) -> Result<Answer, Error> {
    let Some(timeout_at) = timeout_at else { return Ok(pending.await) };
    match answer_until(&mut pending, timeout_at).await {
        Some(answer) => Ok(answer),
        None if pending.withdraw() => Err(timeout_expired()),
        None => Ok(pending.await),
    }
}

/// The answer, if it comes before an instant.
async fn answer_until(pending: &mut PendingAnswer, at: Instant) -> Option<Answer> {
    let timer = async {
        sleep_until(at).await;
        None
    };
    future::or(async { Some(pending.await) }, timer).await
}

async fn sleep_until(at: Instant) {
    executor::sleep_until(at).await;
}

/// Counts one request of a model version, in every way that it may end. Dropped before it is
/// settled, it counts as cancelled.
pub(super) struct ModelMetrics {
    model: Rc<LocalModel>,
    shard: usize,
    rows: u32,
    received: Instant,
    is_settled: bool,
}

impl ModelMetrics {
    /// A request of this many rows reached a model.
    pub(super) fn open(model: &Rc<LocalModel>, shard: usize, rows: u32, received: Instant) -> Self {
        Self { model: Rc::clone(model), shard, rows, received, is_settled: false }
    }

    /// An ensemble request was answered or failed; `computed` is the time of its steps.
    pub(super) fn settle_ensemble(mut self, is_answered: bool, computed: &StepTimes) {
        self.is_settled = true;
        let Some(cells) = self.cells() else { return };
        let now = clock::now();
        if is_answered {
            cells.count_ensemble(now.since(self.received), computed, self.rows, clock::epoch_millis(now));
        } else {
            // As in Triton, the failed step and the reason are in the metrics of that step's model.
            cells.count_failure(FailureReason::Other, now.since(self.received));
        }
    }

    fn settle(mut self, answer: Result<Answer, Error>, plan: ResponsePlan) -> Result<InferOutcome, Error> {
        self.is_settled = true;
        match &answer {
            Ok(Answer { outputs: Ok(_), stamps, .. }) => {
                if let Some(cells) = self.cells() {
                    cells.count_success(stamps, self.rows, clock::epoch_millis(stamps.output_end));
                }
            }
            Ok(answer) if answer.has_run() && !answer.outputs.as_ref().is_err_and(is_refusal) => {
                self.count_failure(FailureReason::Backend);
            }
            refused => {
                let error = refused.as_ref().map_or_else(Some, |answer| answer.outputs.as_ref().err());
                // Its sequence has ended, since another request of it was cancelled.
                let is_cancelled = error.is_some_and(|error| error.code() == Code::Cancelled);
                self.count_failure(if is_cancelled { FailureReason::Canceled } else { FailureReason::Rejected });
            }
        }
        let Answer { outputs, parameters, stamps, .. } = answer?;
        Ok(InferOutcome { outputs: outputs?, parameters, plan, stamps })
    }

    fn count_failure(&self, reason: FailureReason) {
        if let Some(cells) = self.cells() {
            cells.count_failure(reason, clock::now().since(self.received));
        }
    }

    fn cells(&self) -> Option<&ModelCells> {
        self.model.served().cells.get(self.shard).map(|cells| &**cells)
    }
}

impl Drop for ModelMetrics {
    fn drop(&mut self) {
        if !self.is_settled {
            self.count_failure(FailureReason::Canceled);
        }
    }
}

/// Returns true if the instance refused the request unrun, because its time was over.
fn is_refusal(error: &Error) -> bool {
    matches!(error.code(), Code::DeadlineExceeded | Code::Unavailable)
}

fn refusal_text(refusal: QueueRefusal) -> String {
    match refusal {
        QueueRefusal::Full => Error::QUEUE_FULL.to_owned(),
        QueueRefusal::Late(late) => {
            let late = late.as_micros();
            format!("by measured run times it would be answered {late} us after its deadline (--admission)")
        }
        QueueRefusal::Stuck(late) => {
            let late = late.as_micros();
            format!(
                "Request timeout expired: by measured run times it would wait until {late} us after its timeout \
                 (--admission=queue)"
            )
        }
    }
}

/// The properties that two requests of a model must share to be in one batch: the optional inputs
/// given, the sizes of variable dimensions (without the batch axis and ragged inputs), and the
/// values of shape tensors.
fn shape_key(spec: &ModelSpec, inputs: &[Tensor]) -> ShapeKey {
    let axis = usize::from(spec.has_batch_axis());
    let pairs = spec.inputs.iter().zip(inputs);
    let given = pairs.clone().filter(|(input, _)| input.is_optional);
    let given = given.map(|(_, tensor)| i64::from(tensor.is_given()));
    let values = pairs.clone().filter(|(input, _)| input.is_shape_tensor);
    let values = values.flat_map(|(_, tensor)| tensor.contents.iter().copied().map(i64::from));
    let variable = pairs.filter(|(input, _)| !input.is_ragged && input.dims.contains(&-1));
    let sizes = variable.flat_map(|(_, tensor)| tensor.shape.iter().skip(axis).copied());
    given.chain(values).chain(sizes).collect()
}

/// A request left the queue of its model, because it was withdrawn.
fn leave(queue: &ModelQueue, room: RequestSize) {
    #[cfg(test)]
    if is_planted(SimulatedFault::PlaceKept) {
        return;
    }
    queue.leave(room);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::request_slots::RequestSlots;
    use crate::runtime::executor::{IoPath, Runtime};
    use crate::runtime::ring::spin::Spin;

    const TIMEOUT: Duration = Duration::from_millis(5);

    fn request_slots() -> Rc<RequestSlots> {
        Rc::new(RequestSlots::new(Arc::new(Completions::new())))
    }

    fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
        Runtime::new(IoPath::Auto, Spin::Off).unwrap().run(future).unwrap()
    }

    #[test]
    fn requests_share_a_batch_where_their_inputs_have_the_same_shapes_or_are_ragged() {
        use crate::backend::trial::{spec, tensor};
        let uint8 = crate::tensor::Datatype::Uint8;
        let mut model =
            spec(8, &[("a", uint8, &[2]), ("b", uint8, &[-1]), ("c", uint8, &[-1]), ("d", uint8, &[1])], &[]);
        // Sizes of `b` and `c` but for the rows, `-` if the input is left out, and if `d` is given.
        let key = |model: &ModelSpec, rows: i64, b: &str, c: &str, has_d: bool| {
            let input = |size: &str| match size.parse::<i64>() {
                Ok(size) => tensor(&[rows, size], &vec![0_u8; (rows * size) as usize]),
                Err(_) => Tensor { datatype: uint8, shape: Default::default(), contents: Default::default() },
            };
            let d = input(if has_d { "1" } else { "-" });
            shape_key(model, &[input("2"), input(b), input(c), d])
        };
        let same = key(&model, 1, "3", "4", true);
        assert_eq!(same, key(&model, 5, "3", "4", true), "rows may differ");
        assert_ne!(same, key(&model, 1, "4", "4", true));
        assert_ne!(same, key(&model, 1, "3", "5", true));
        model.inputs[1].is_ragged = true;
        assert_eq!(key(&model, 1, "3", "4", true), key(&model, 1, "9", "4", true), "a ragged input may differ");
        assert_ne!(key(&model, 1, "3", "4", true), key(&model, 1, "3", "5", true), "the other may not");
        model.inputs[2].is_optional = true;
        model.inputs[3].is_optional = true;
        let keys = [
            key(&model, 1, "3", "4", true),
            key(&model, 1, "3", "4", false),
            key(&model, 1, "3", "-", true),
            key(&model, 1, "3", "-", false),
            key(&model, 1, "3", "0", false),
            key(&model, 1, "3", "1", false),
        ];
        for (index, one) in keys.iter().enumerate() {
            assert!(keys.iter().skip(index + 1).all(|other| other != one), "{index}: {keys:?}");
        }
        model.inputs[0].is_shape_tensor = true;
        let values = |values: [u8; 2]| {
            let others =
                (0..3).map(|_| Tensor { datatype: uint8, shape: Default::default(), contents: Default::default() });
            let inputs: Vec<_> = std::iter::once(tensor(&[2], &values)).chain(others).collect();
            shape_key(&model, &inputs)
        };
        assert_eq!(values([1, 2]), values([1, 2]));
        assert_ne!(values([1, 2]), values([2, 1]), "the values of a shape tensor are the same in a batch");
        model.inputs.truncate(1);
        model.inputs[0].is_shape_tensor = false;
        assert!(key(&model, 1, "3", "4", true).is_empty(), "nothing may differ");
    }

    #[test]
    fn python_models_are_told_which_outputs_are_wanted_and_states_always_are() {
        use crate::model::config::{CompletionRules, ConfigDraft};
        let tensor = |side: &str, name: &str| format!("{side} {{ name: '{name}' data_type: TYPE_INT32 dims: 1 }} ");
        let state = "state { input_name: 's' output_name: 'c' data_type: TYPE_INT32 dims: 1 }";
        let tensors =
            [tensor("input", "x"), tensor("output", "a"), tensor("output", "b"), tensor("output", "c")].concat();
        let text = format!("backend: 'identity' {tensors} sequence_batching {{ {state} }}");
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        let model = draft.complete(None, &std::collections::BTreeMap::new(), CompletionRules::default()).unwrap();
        let planned = |index, class_count| OutputPlan { index, is_binary: false, is_base64: false, class_count };
        let check = |backend: &str, is_cached: bool, outputs: &[OutputPlan], want: &[OutputNeed]| {
            let spec = ModelSpec { is_cached, ..model.clone().run_by(backend) };
            let plan = ResponsePlan { outputs: outputs.iter().copied().collect(), ..ResponsePlan::default() };
            assert_eq!(output_needs(&spec, &plan).0.as_slice(), want, "{backend} {is_cached} {outputs:?}");
        };
        use OutputNeed::{Classes, Nothing, Whole};
        check("python", false, &[planned(1, 0)], &[Nothing, Whole, Whole]);
        check("python", false, &[planned(0, 3)], &[Classes(3), Nothing, Whole]);
        check("python", false, &[planned(2, 3)], &[Nothing, Nothing, Whole]);
        check("python", true, &[planned(1, 0)], &[]);
        check("identity", false, &[planned(1, 0)], &[]);
    }

    #[test]
    fn a_queued_request_is_refused_when_its_timeout_passes() {
        let (request_slots, count) = (request_slots(), Rc::new(Cell::new(0)));
        let (ticket, counter) = (request_slots.open().unwrap(), Rc::clone(&count));
        let pending = request_slots.pending(ticket, move || counter.set(counter.get() + 1));
        let took = run(async move {
            let start = clock::now();
            let error = answer_unless_expired(pending, Some(start + TIMEOUT)).await.err();
            assert_eq!(error, Some(timeout_expired()));
            clock::now().since(start)
        });
        assert!(took >= TIMEOUT && took < TIMEOUT * 20, "{took:?}");
        assert_eq!(count.get(), 1, "its queue place is free");
        assert!(!request_slots.completions().claim(ticket), "it never runs");
    }

    #[test]
    fn a_running_request_is_answered_after_its_timeout() {
        let request_slots = request_slots();
        let ticket = request_slots.open().unwrap();
        let pending = request_slots.pending(ticket, || panic!("a batch has it"));
        assert!(request_slots.completions().claim(ticket));
        let answer = run(async move {
            let start = clock::now();
            let backend = async {
                sleep_until(start + TIMEOUT * 3).await;
                let completions = Arc::clone(request_slots.completions()) as Arc<dyn backend::AnswerSink>;
                Responder::new(completions, ticket, Stamps::default()).send(Ok(Vec::new()));
                request_slots.drain();
                future::pending().await
            };
            future::or(answer_unless_expired(pending, Some(start + TIMEOUT)), backend).await
        });
        assert!(answer.is_ok_and(|answer| answer.outputs.is_ok()));
    }
}
