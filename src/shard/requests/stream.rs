//! `ModelStreamInfer`: many requests on one stream, and their responses. Up to
//! [`STREAM_REQUESTS_MAX`] requests are in flight; nothing is read while responses wait to be sent.
//! Responses keep the order of their requests, except those of decoupled models, which are sent as
//! they arrive. A request that is refused is answered in band, and the stream goes on.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::backend::{Answer, AnswerPart};
use crate::budget::ReceiveReservation;
use crate::connection::http2::{CallFault, NextMessage};
use crate::error::{Code, Error};
use crate::limits::{STREAM_REQUESTS_MAX, STREAM_SEQUENCES_MAX};
use crate::metrics::Departure;
use crate::model::{CorrelationId, SequenceMark};
use crate::protocol::grpc::encode::{self, FramedParts};
use crate::protocol::grpc::message::{InferOutline, UNREADABLE};
use crate::protocol::grpc::{self, InferMessage};
use crate::protocol::infer::InferRequest;
use crate::protocol::policy::{self, ForwardedFields};
use crate::protocol::route::version_of;
use crate::protocol::shared_memory::Regions;
use crate::queue::model_queue::ModelQueue;
use crate::queue::request_slots::PartSink;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::models::model_table::LocalModel;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::admission::{AdmittedRequest, StreamClient};
use crate::shard::requests::compression::{self, AnswerCompression};
use crate::shard::requests::http2_link::Http2Link;
use crate::shard::requests::infer::{Arrival, InferOutcome, RequestMetrics};
use crate::shard::requests::infer_pipeline::{self, PipelineHooks, PipelineInput, PipelineOutput};
use crate::shard::requests::offload::{DecodedAhead, decode_typed_ahead, large_typed};
use crate::shard::requests::refusal_run::RefusalRun;
use crate::shard::requests::regions;
use crate::shard::requests::response_counter::{CountedResponse, DecoupledRequest};
use crate::time::Instant;
use crate::wire::compression::Coding;
use crate::wire::http2::StreamId;

/// A call of the stream, as it began.
pub struct StreamCall {
    /// The client's deadline for the stream.
    pub deadline: Option<Instant>,
    /// The header fields that are forwarded to the models.
    pub forwarded: Option<ForwardedFields>,
    /// The client of its requests.
    pub client: StreamClient,
}

/// Answers the requests of a stream until its client ends it and all are answered.
///
/// # Errors
/// The failure of the stream itself; a refused request is answered in band and is not an error
/// here.
pub async fn run(
    shard: Rc<Shard>,
    link: &Rc<Http2Link>,
    stream: StreamId,
    call: StreamCall,
    departure: Rc<Cell<Departure>>,
    reports_load: bool,
) -> Result<(), StreamFault> {
    let StreamCall { deadline, forwarded, client } = call;
    let begun = Rc::new(BegunSequences::default());
    let compression = compression::answer_compression(&shard, link, stream);
    let mut streaming = StreamInfer {
        shard,
        link: Rc::clone(link),
        stream,
        deadline,
        forwarded: forwarded.map(Rc::new),
        client,
        departure,
        begun,
        compression,
        reports_load,
        preparing: None,
        requests: VecDeque::new(),
        is_half_closed: false,
    };
    poll_fn(|context| streaming.poll(context)).await
}

/// Triton's text for streams and their requests during a drain.
const SHUTTING_DOWN: &str = "GRPC server is shutting down and has stopped accepting new requests.";

/// The reason why a stream fails.
pub enum StreamFault {
    /// The gRPC framing is wrong, or the call was too late or too large.
    Call(CallFault),
    /// A message that is not a request, or an error that ends the stream as in Triton.
    Request(Error),
}

struct StreamInfer {
    shard: Rc<Shard>,
    link: Rc<Http2Link>,
    stream: StreamId,
    deadline: Option<Instant>,
    /// The header fields of the stream that are forwarded to the model of each request.
    forwarded: Option<Rc<ForwardedFields>>,
    /// The client of its requests.
    client: StreamClient,
    departure: Rc<Cell<Departure>>,
    begun: Rc<BegunSequences>,
    /// The compression of its responses; `None` if they are not compressed.
    compression: Option<AnswerCompression>,
    /// True if its end reports the load: then each request keeps the measurements going.
    reports_load: bool,
    /// The latest message, if it is compressed, or too large for the shard to read. Until it is
    /// prepared no other message is taken, so that requests keep their order.
    preparing: Option<Pin<Box<dyn Future<Output = Prepared>>>>,
    /// Requests in flight, in the order they arrived.
    requests: VecDeque<StreamRequest>,
    is_half_closed: bool,
}

/// One request in flight.
struct StreamRequest {
    /// The request's future, polled by the stream's own task; `None` if the request was refused at
    /// once.
    work: Option<Pin<Box<dyn Future<Output = Outcome>>>>,
    done: Option<Outcome>,
    /// True if its response waits for those of earlier requests. False for decoupled models.
    is_ordered: bool,
}

/// The result of preparing a message: an error ends the stream.
type Prepared = Result<PreparedMessage, Error>;

/// A message as its request begins.
struct PreparedMessage {
    message: Bytes,
    memory: ReceiveReservation,
    /// Its request if it was decoded ahead, or the error.
    ahead: Result<DecodedAhead, Error>,
}

/// A message whose request is admitted.
struct AdmittedMessage {
    message: Bytes,
    memory: ReceiveReservation,
    /// Held until the request has ended.
    admission: AdmittedRequest,
}

/// A request's last response, `None` if it was sent already; or the error that ends the stream.
type Outcome = Result<Option<FramedParts>, Error>;

impl StreamInfer {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), StreamFault>> {
        // Remembered for this turn only: between turns the models may change.
        let mut refused = None;
        let outcome = self.advance(context, &mut refused);
        self.send_refusals(refused.as_mut());
        outcome
    }

    fn advance(
        &mut self,
        context: &mut Context<'_>,
        refused: &mut Option<RefusalRun>,
    ) -> Poll<Result<(), StreamFault>> {
        loop {
            for request in self.requests.iter_mut().filter(|request| request.done.is_none()) {
                let Some(work) = &mut request.work else { continue };
                if let Poll::Ready(outcome) = work.as_mut().poll(context) {
                    request.done = Some(outcome);
                }
            }
            self.begun.handle_queued();
            if let Err(error) = self.send() {
                return Poll::Ready(Err(StreamFault::Request(error)));
            }
            if let Some(preparing) = &mut self.preparing {
                let Poll::Ready(prepared) = preparing.as_mut().poll(context) else { return Poll::Pending };
                self.preparing = None;
                if let Err(fault) = prepared.and_then(|prepared| self.begin(prepared, refused)) {
                    return Poll::Ready(Err(StreamFault::Request(fault)));
                }
                continue;
            }
            if self.is_half_closed {
                return if self.requests.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
            }
            // Sequences that have begun go on, until `--exit-timeout-secs`: their state is only
            // here.
            if self.shard.connections.is_draining() && self.begun.is_empty() {
                let fault = StreamFault::Request(Error::unavailable(SHUTTING_DOWN));
                return if self.requests.is_empty() { Poll::Ready(Err(fault)) } else { Poll::Pending };
            }
            if self.requests.len() >= STREAM_REQUESTS_MAX || !self.link.has_room(self.stream) {
                return Poll::Pending;
            }
            match self.link.take_next(self.stream) {
                Ok(NextMessage::Nothing) => return Poll::Pending,
                Ok(NextMessage::End) => self.is_half_closed = true,
                Ok(NextMessage::Message(message)) => {
                    let memory = self.link.take_memory(self.stream);
                    let coding = self.link.coding(self.stream);
                    if coding.is_some() || large_typed(&message).is_some() || self.shard.models.is_wanted_by(&message) {
                        let shard = Rc::clone(&self.shard);
                        self.preparing = Some(Box::pin(prepare(shard, coding, message, memory)));
                        continue;
                    }
                    let prepared = PreparedMessage { message, memory, ahead: Ok(None) };
                    if let Err(fault) = self.begin(prepared, refused) {
                        return Poll::Ready(Err(StreamFault::Request(fault)));
                    }
                }
                Err(fault) => return Poll::Ready(Err(StreamFault::Call(fault))),
            }
        }
    }

    /// Sends finished responses in order, as long as the connection has room. An error ends the stream.
    fn send(&mut self) -> Result<(), Error> {
        let mut index = 0;
        let mut is_first = true;
        while let Some(request) = self.requests.get_mut(index) {
            let may_go = !request.is_ordered || is_first;
            if request.done.is_some() && may_go {
                if !self.link.has_room(self.stream) {
                    return Ok(());
                }
                if let Some(parts) = request.done.take().transpose()?.flatten() {
                    self.link.with(|connection| connection.send_message(self.stream, parts, clock::now()));
                }
                self.requests.remove(index);
                continue;
            }
            is_first &= !request.is_ordered;
            index += 1;
        }
        Ok(())
    }

    /// Starts a request. Its future is polled before the next message is read, and queues the request in that first
    /// poll: so requests of one sequence reach the queue in their order. An error ends the stream, since a message that
    /// cannot be parsed has no id to answer in band with.
    fn begin(
        &mut self,
        PreparedMessage { message, memory, ahead }: PreparedMessage,
        refused: &mut Option<RefusalRun>,
    ) -> Result<(), Error> {
        if self.reports_load {
            self.shard.server_context.metrics.load.ask();
        }
        let entry = self.access_entry(&message);
        let Some(admission) = self.admit(&message, refused.as_mut(), &entry)? else { return Ok(()) };
        match ahead.and_then(|decoded| self.shard.requests.admission.check_memory().map(|()| decoded)) {
            Ok(None) => {}
            Ok(Some(decoded)) => {
                self.send_refusals(refused.as_mut());
                let (model, id) = (Rc::clone(&decoded.0), decoded.1.plan.id.clone());
                entry.note_model(&model, &id);
                let admitted = AdmittedMessage { message, memory, admission };
                self.start(model, id, admitted, Some(decoded), entry);
                return Ok(());
            }
            Err(error) if error.code() == Code::Internal => {
                entry.settle(error.code().on_wire().1.into());
                return Err(error);
            }
            Err(error) => {
                self.send_refusals(refused.as_mut());
                let id = InferOutline::read(&message).unwrap_or_default().id;
                let answer = encode::encode_failure(id, error.text()).unwrap_or_default();
                self.refuse(refused.insert(RefusalRun::new(message, error.code(), &answer)), &entry);
                return Ok(());
            }
        }
        if let Some(run) = refused.as_mut().filter(|run| run.covers(&message)) {
            note_message(&entry, &message);
            self.refuse(run, &entry);
            return Ok(());
        }
        self.send_refusals(refused.as_mut());
        note_message(&entry, &message);
        let request = InferMessage::read(&message).map_err(|_| Error::internal(UNREADABLE))?;
        let version = version_of(request.model_version);
        let model = match version.and_then(|version| self.shard.models.find(request.model_name, version)) {
            Ok(model) => model,
            // No future for these: a client can send hundreds of thousands a second of the same refused request, so
            // the answer is kept and sent again.
            Err(error) => {
                let answer = encode::encode_failure(request.id, error.text()).unwrap_or_default();
                drop(request);
                self.refuse(refused.insert(RefusalRun::new(message, error.code(), &answer)), &entry);
                return Ok(());
            }
        };
        let id = request.id.to_owned();
        drop(request);
        entry.note_model(&model, &id);
        self.start(model, id, AdmittedMessage { message, memory, admission }, None, entry);
        Ok(())
    }

    /// Admits a request of the stream's client. One beyond its bounds is refused like any other; a
    /// client whose key is gone loses the stream.
    fn admit(
        &mut self,
        message: &Bytes,
        refused: Option<&mut RefusalRun>,
        entry: &AccessEntry,
    ) -> Result<Option<AdmittedRequest>, Error> {
        match self.shard.requests.admission.admit_next(&self.client) {
            Ok(admission) => {
                entry.note_client(&admission);
                Ok(Some(admission))
            }
            Err(error) if error.code() == Code::RateLimited => {
                self.send_refusals(refused.map(|run| &mut *run));
                let id = InferOutline::read(message).unwrap_or_default().id;
                let answer = encode::encode_failure(id, error.text()).unwrap_or_default();
                // Alone: the next equal message may pass.
                let mut run = RefusalRun::new(message.clone(), error.code(), &answer);
                self.refuse(&mut run, entry);
                self.send_refusals(Some(&mut run));
                Ok(None)
            }
            Err(error) => {
                entry.settle(error.code().on_wire().1.into());
                Err(error)
            }
        }
    }

    /// Starts a request of a model that is served.
    fn start(
        &mut self,
        model: Rc<LocalModel>,
        id: String,
        admitted: AdmittedMessage,
        ahead: DecodedAhead,
        entry: AccessEntry,
    ) {
        let AdmittedMessage { message, memory, admission } = admitted;
        let is_ordered = !model.served().spec.is_decoupled;
        let compression = self.compression;
        let responses = Rc::new(StreamResponses {
            shard: Rc::clone(&self.shard),
            link: Rc::clone(&self.link),
            stream: self.stream,
            entry: entry.clone(),
            compression,
            model: RefCell::new(None),
        });
        let arrival = Arrival::of_client(clock::now(), self.deadline, entry.payer());
        let trace = self.shard.services.traces.open_call(&self.link, self.stream);
        let (shard, departure, begun) = (Rc::clone(&self.shard), Rc::clone(&self.departure), Rc::clone(&self.begun));
        let wants_status = self.link.with(|connection| connection.wants_status(self.stream));
        let forwarded = self.forwarded.clone();
        let work = async move {
            let _admission = admission;
            let request_metrics = RequestMetrics::open(&shard.cells, &departure);
            let mut hooks = StreamHooks {
                shard: Rc::clone(&shard),
                responses,
                begun,
                sequence: None,
                counted: CountedResponse::default(),
            };
            let input = PipelineInput { memory, arrival, is_timed: false, trace: trace.clone() };
            let mut outcome = answer(&shard, &model, message, ahead, forwarded, input, &mut hooks).await;
            if let (Ok(Some(response)), true) = (&mut outcome, compression.is_some()) {
                let whole = std::mem::take(response);
                *response = Box::pin(compression::deflate_message(&shard, compression, whole)).await;
            }
            request_metrics.settle(&outcome);
            // Its answer is sent in the same turn, unless those before it are awaited.
            if let Some(trace) = &trace {
                shard.services.traces.end_call(trace, &model.served().spec.name, outcome.as_ref().err());
            }
            let status = outcome.as_ref().err().map_or(0, |error| error.code().on_wire().1);
            let outcome = in_band(outcome, &model, &id, hooks.counted.has_run, wants_status);
            if let Ok(Some(parts)) = &outcome {
                entry.note_sent(parts.iter().map(Bytes::len).sum());
            }
            entry.settle(status.into());
            outcome
        };
        self.requests.push_back(StreamRequest { work: Some(Box::pin(work)), done: None, is_ordered });
    }

    /// The entry in the access log of the request in a message.
    fn access_entry(&self, message: &Bytes) -> AccessEntry {
        let path = || self.link.with(|connection| connection.path(self.stream).to_vec());
        AccessEntry::of_grpc(&self.shard, path, message.len(), clock::turn(), self.link.peer)
    }

    /// Answers a refused request, in order after those in flight.
    fn refuse(&mut self, run: &mut RefusalRun, entry: &AccessEntry) {
        entry.note_sent(run.size());
        entry.settle(run.code().on_wire().1.into());
        self.shard.cells.received.add(1);
        self.shard.cells.count_refused(run.code());
        self.shard.services.traces.refuse_call(
            &self.link,
            self.stream,
            &Error::new(run.code(), "refused within a stream"),
        );
        if !self.requests.is_empty() {
            let answer = FramedParts::from_iter([run.answer()]);
            self.requests.push_back(StreamRequest { work: None, done: Some(Ok(Some(answer))), is_ordered: true });
        } else if let Some(answers) = run.push() {
            self.link.with(|connection| connection.send_message(self.stream, [answers], clock::turn()));
        }
    }

    /// Sends the refusals that wait for equal ones. Called before anything else is queued or sent.
    fn send_refusals(&self, run: Option<&mut RefusalRun>) {
        if let Some(answers) = run.and_then(RefusalRun::take) {
            self.link.with(|connection| connection.send_message(self.stream, [answers], clock::turn()));
        }
    }
}

/// Inflates a message that is compressed, and has one decoded that is too large for the shard.
async fn prepare(
    shard: Rc<Shard>,
    coding: Option<Coding>,
    message: Bytes,
    mut memory: ReceiveReservation,
) -> Result<PreparedMessage, Error> {
    let message = compression::plain_message(&shard, coding, message, &mut memory).await?;
    let ahead = match shard.models.want_of(&message, None).await {
        Ok(()) => decode_typed_ahead(&shard, &message, &mut memory, grpc::decode::decode_streamed).await,
        Err(error) => Err(error),
    };
    Ok(PreparedMessage { message, memory, ahead })
}

/// The response to send for an outcome. As in Triton: an error of the model ends the stream if the
/// client wants its status, and a request that was refused before does not; all others are sent as
/// messages.
fn in_band(
    outcome: Result<Option<FramedParts>, Error>,
    model: &LocalModel,
    id: &str,
    has_run: bool,
    wants_status: bool,
) -> Result<Option<FramedParts>, Error> {
    let is_in_band = !wants_status || !has_run;
    match outcome {
        Err(error) if is_in_band && has_run => {
            Ok(encode::encode_run_failure(&model.served().spec.name, id, error.text(), true).ok())
        }
        Err(error) if is_in_band => Ok(encode::encode_failure(id, error.text()).ok()),
        outcome => outcome,
    }
}

/// Notes the request of a message, if the access log shows it; one that cannot be parsed ends the
/// stream.
fn note_message(entry: &AccessEntry, message: &Bytes) {
    if entry.is_open() {
        match InferMessage::read(message) {
            Ok(request) => entry.note_asked(request.model_name, None, request.id),
            Err(_) => entry.settle(Code::Internal.on_wire().1.into()),
        }
    }
}

/// Runs one request; returns its last response, or `None` if only the end of a decoupled answer is
/// left and the client did not ask to see it.
async fn answer(
    shard: &Rc<Shard>,
    model: &Rc<LocalModel>,
    message: Bytes,
    ahead: DecodedAhead,
    forwarded: Option<Rc<ForwardedFields>>,
    input: PipelineInput,
    hooks: &mut StreamHooks,
) -> Result<Option<FramedParts>, Error> {
    let served = model.served();
    let is_draining = shard.connections.is_draining();
    let decode = move |regions: Option<&Regions>, memory: &mut ReceiveReservation| {
        let mut request = match ahead {
            Some(decoded) => decoded.1,
            None => {
                let request = InferMessage::read(&message).map_err(|_| Error::internal(UNREADABLE))?;
                grpc::decode::decode_streamed(&served.spec, &request, regions, memory)?
            }
        };
        policy::forward(forwarded.as_deref(), &served.spec, &mut request)?;
        if is_draining && request.sequence.mark().is_none_or(|mark| mark.is_start) {
            return Err(Error::unavailable(SHUTTING_DOWN));
        }
        if let Some(shared) = &request.plan.shared {
            shared.check_streamed()?;
        }
        Ok((Rc::clone(model), request))
    };
    let PipelineOutput { outputs, parameters, plan, part, .. } =
        infer_pipeline::run(shard, input, decode, hooks).await?;
    if served.spec.ensemble.is_some() {
        // Later steps queued their requests long after this one was read: record that the stream knows of them.
        hooks.track_sequence();
    }
    match part {
        AnswerPart::End if plan.wants_empty_final => {
            encode::encode_end(&served.spec, served.version, &plan.id).map(Some)
        }
        AnswerPart::End => Ok(None),
        AnswerPart::Again | AnswerPart::Last | AnswerPart::More => {
            let own = parameters.as_deref();
            encode::encode_streamed(&served.spec, served.version, &plan, outputs, own, true).map(Some)
        }
    }
}

/// The hooks of a stream between the stages of one of its requests.
struct StreamHooks {
    shard: Rc<Shard>,
    responses: Rc<StreamResponses>,
    begun: Rc<BegunSequences>,
    /// The request's sequence, and the queues that it reaches.
    sequence: Option<(Vec<Arc<ModelQueue>>, SequenceMark)>,
    /// Counts the last response of a decoupled model, also if this is dropped because the client
    /// left.
    counted: CountedResponse,
}

impl StreamHooks {
    fn track_sequence(&self) {
        if let Some((model_queues, mark)) = &self.sequence {
            model_queues.iter().for_each(|model_queue| self.begun.track(model_queue, &mark.id, mark.is_end));
        }
    }
}

impl PipelineHooks for StreamHooks {
    fn handle_ready(&mut self, model: &Rc<LocalModel>, request: &InferRequest) -> Option<Rc<dyn PartSink>> {
        self.sequence = request.sequence.mark().map(|mark| (self.shard.models.sequence_queues(model), mark));
        self.track_sequence();
        let request = self.counted.begin(model, &request.plan, self.shard.index)?;
        *self.responses.model.borrow_mut() = Some(request);
        Some(Rc::clone(&self.responses) as Rc<dyn PartSink>)
    }

    fn handle_outcome(&mut self, outcome: &Result<(InferOutcome, AnswerPart), Error>, has_run: bool) {
        self.counted.settle(outcome, has_run);
    }
}

/// Sends all but the last response of a request to a decoupled model.
struct StreamResponses {
    shard: Rc<Shard>,
    link: Rc<Http2Link>,
    stream: StreamId,
    entry: AccessEntry,
    compression: Option<AnswerCompression>,
    model: RefCell<Option<DecoupledRequest>>,
}

impl PartSink for StreamResponses {
    fn has_room(&self) -> bool {
        self.link.has_room(self.stream)
    }

    fn take(&self, answer: Answer) {
        let model = self.model.borrow();
        let Some((model, plan, counter)) = &*model else { return };
        counter.count_part(&answer);
        let own = answer.parameters.as_deref();
        let served = model.served();
        // A part may be an error, after which the model goes on.
        let parts = answer.outputs.and_then(|outputs| served.spec.to_client(outputs)).and_then(|mut outputs| {
            regions::deliver_system(&served.spec, plan, &mut outputs)?;
            Ok(outputs)
        });
        let parts =
            parts.and_then(|outputs| encode::encode_streamed(&served.spec, served.version, plan, outputs, own, false));
        let parts = parts.or_else(|error| encode::encode_run_failure(&served.spec.name, &plan.id, error.text(), false));
        if let Ok(parts) = parts {
            // The task cannot wait here, and later responses may not overtake this one.
            let parts = compression::deflate_message_now(&self.shard, self.compression, parts);
            self.entry.note_sent(parts.iter().map(Bytes::len).sum());
            self.link.with(|connection| connection.send_message(self.stream, parts, clock::now()));
        }
    }
}

/// The sequences that the stream has begun and not ended. When the stream ends, so do they: no client will send their
/// next request. Bounded by [`STREAM_SEQUENCES_MAX`]; sequences beyond it end by their idle timeout.
#[derive(Default)]
struct BegunSequences {
    sequences: RefCell<Vec<(Arc<ModelQueue>, CorrelationId, Instant)>>,
    /// Indexes of sequences with a request that may not be queued yet.
    unqueued: RefCell<Vec<usize>>,
}

impl BegunSequences {
    fn is_empty(&self) -> bool {
        self.sequences.borrow().is_empty()
    }

    fn track(&self, model_queue: &Arc<ModelQueue>, id: &CorrelationId, is_end: bool) {
        self.handle_queued();
        let mut sequences = self.sequences.borrow_mut();
        let known = sequences.iter().position(|(other, known, _)| Arc::ptr_eq(other, model_queue) && known == id);
        match known {
            Some(index) if is_end => drop(sequences.swap_remove(index)),
            Some(index) => self.unqueued.borrow_mut().push(index),
            None if is_end || sequences.len() >= STREAM_SEQUENCES_MAX => {}
            None => {
                self.unqueued.borrow_mut().push(sequences.len());
                sequences.push((Arc::clone(model_queue), id.clone(), Instant::ZERO));
            }
        }
    }

    /// All tracked requests are queued by now: the stream knows of its sequences up to this instant. `depart` compares
    /// it, so that the end of this stream does not end a sequence that another client has restarted since.
    fn handle_queued(&self) {
        let mut sequences = self.sequences.borrow_mut();
        for index in self.unqueued.borrow_mut().drain(..) {
            if let Some((_, _, since)) = sequences.get_mut(index) {
                *since = clock::now();
            }
        }
    }
}

impl Drop for BegunSequences {
    fn drop(&mut self) {
        self.handle_queued();
        for (model_queue, id, since) in self.sequences.get_mut().drain(..) {
            model_queue.depart(id, since);
        }
    }
}
