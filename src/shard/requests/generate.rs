//! Generate: one request in plain JSON, answered by one object or by a stream of events, over
//! HTTP/1.1 and HTTP/2. A stream's responses leave as they come; waiting responses are bounded as
//! those of `ModelStreamInfer` are.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::Bytes;

use crate::backend::{Answer, AnswerPart};
use crate::budget::ReceiveReservation;
use crate::error::Error;
use crate::limits::JSON_INLINE_MAX;
use crate::metrics::Departure;
use crate::model::ModelSpec;
use crate::model::parameters::Parameters;
use crate::protocol::check;
use crate::protocol::cors::CorsMark;
use crate::protocol::infer::{InferRequest, ResponsePlan};
use crate::protocol::orca::LoadFormat;
use crate::protocol::policy::{self, ForwardedFields};
use crate::protocol::rest::generate;
use crate::protocol::route::ModelPath;
use crate::protocol::shared_memory::Regions;
use crate::queue::request_slots::PartSink;
use crate::shard::Shard;
use crate::shard::models::model_table::LocalModel;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::infer::{Arrival, InferOutcome, RequestMetrics};
use crate::shard::requests::infer_pipeline::{self, PipelineHooks, PipelineInput, PipelineOutput};
use crate::shard::requests::offload::{DecodedAhead, decode_ahead};
use crate::shard::requests::reply_stream::ReplyStream;
use crate::shard::requests::response_counter::{CountedResponse, DecoupledRequest};
use crate::shard::requests::tracing::FrontTrace;
use crate::tensor::Tensor;
use crate::time::Instant;
use crate::wire::message::Reply;

/// A request, as it was received.
pub struct GenerateMessage<'a> {
    /// The model.
    pub path: ModelPath<'a>,
    /// True if the body is compressed.
    pub is_coded: bool,
    /// The body.
    pub body: Bytes,
    /// The receive memory that it takes.
    pub memory: ReceiveReservation,
    /// The instant at which its last byte was read.
    pub received: Instant,
    /// Its entry in the access log.
    pub entry: &'a AccessEntry,
    /// Its trace, if it may be traced.
    pub trace: Option<Rc<FrontTrace>>,
    /// The header fields that are forwarded to the model.
    pub forwarded: Option<ForwardedFields>,
    /// The form in which the head of a stream reports the load, if it does.
    pub load_format: Option<LoadFormat>,
    /// The fields of its answer for pages of other origins.
    pub cors: Option<CorsMark>,
    /// The sequence that its client tells load balancers.
    pub sequence_field: Option<&'a [u8]>,
}

/// Runs a request. Its responses go to `stream` as events, and nothing is returned; without a
/// stream, or if nothing ran, the reply is returned.
///
/// # Errors
/// The refusal of the request, or the model's error if there is no stream.
pub async fn run(
    shard: &Rc<Shard>,
    message: GenerateMessage<'_>,
    stream: Option<ReplyStream>,
    departure: &Cell<Departure>,
) -> Result<Option<Reply>, Error> {
    let request_metrics = RequestMetrics::open(&shard.cells, departure);
    let load = message.load_format.map(|format| ReportedLoad { shard: Rc::clone(shard), format });
    let mut responses = GenerateResponses::new(stream, message.entry, load);
    responses.cors.clone_from(&message.cors);
    let responses = Rc::new(responses);
    let mut hooks = GenerateHooks {
        shard: Rc::clone(shard),
        responses: Rc::clone(&responses),
        counted: CountedResponse::default(),
    };
    let outcome = infer(shard, message, &mut hooks).await;
    let failed = outcome.as_ref().err().cloned();
    let ended = responses.end(outcome, hooks.counted.has_run);
    // An error that became an event still counts as an error.
    request_metrics.settle(&failed.or_else(|| ended.as_ref().err().cloned()).map_or(Ok(()), Err));
    ended
}

/// Runs a request; returns its last response, or `None` if only the end of a decoupled answer is
/// left.
async fn infer(
    shard: &Rc<Shard>,
    message: GenerateMessage<'_>,
    hooks: &mut GenerateHooks,
) -> Result<Option<Vec<u8>>, Error> {
    let GenerateMessage { path, is_coded, body, mut memory, received, entry, trace, forwarded, .. } = message;
    let sequence_field = message.sequence_field;
    entry.note_asked(path.name, path.version, "");
    shard.models.want(path.name, None).await?;
    let arrival = Arrival::of_client(received, None, entry.payer());
    let mut ahead: DecodedAhead = None;
    if body.len() > JSON_INLINE_MAX && !is_coded {
        let body = body.clone();
        let decode = move |spec: &ModelSpec, _: Option<&Regions>, memory: &mut ReceiveReservation| {
            generate::decode(spec, &body, memory)
        };
        ahead = decode_ahead(shard, path, &mut memory, decode).await?;
    }
    let decode = move |_: Option<&Regions>, memory: &mut ReceiveReservation| {
        let (model, mut request) = match ahead {
            Some(decoded) => *decoded,
            None => {
                let model = shard.models.find(path.name, path.version)?;
                if is_coded {
                    return Err(generate::coded());
                }
                let request = generate::decode(&model.served().spec, &body, memory)?;
                (model, request)
            }
        };
        check::sequence_field(sequence_field, request.sequence.id.as_ref())?;
        policy::forward(forwarded.as_ref(), &model.served().spec, &mut request)?;
        entry.note_model(&model, &request.plan.id);
        Ok((model, request))
    };
    let input = PipelineInput { memory, arrival, is_timed: false, trace };
    let PipelineOutput { model, outputs, parameters, plan, part, .. } =
        infer_pipeline::run(shard, input, decode, hooks).await?;
    match part {
        AnswerPart::End => Ok(None),
        AnswerPart::Again | AnswerPart::Last | AnswerPart::More => {
            encode(&model, &plan, outputs, parameters.as_deref()).map(Some)
        }
    }
}

fn encode(
    model: &LocalModel,
    plan: &ResponsePlan,
    outputs: Vec<Tensor>,
    parameters: Option<&Parameters>,
) -> Result<Vec<u8>, Error> {
    let served = model.served();
    generate::encode(&served.spec, served.version, plan, outputs, parameters)
}

/// The hooks of a request between the stages.
struct GenerateHooks {
    shard: Rc<Shard>,
    responses: Rc<GenerateResponses>,
    /// Counts the last response of a decoupled model, also if this is dropped because the client
    /// left.
    counted: CountedResponse,
}

impl PipelineHooks for GenerateHooks {
    fn handle_ready(&mut self, model: &Rc<LocalModel>, request: &InferRequest) -> Option<Rc<dyn PartSink>> {
        let request = self.counted.begin(model, &request.plan, self.shard.index)?;
        *self.responses.request.borrow_mut() = Some(request);
        Some(Rc::clone(&self.responses) as Rc<dyn PartSink>)
    }

    fn handle_outcome(&mut self, outcome: &Result<(InferOutcome, AnswerPart), Error>, has_run: bool) {
        self.counted.settle(outcome, has_run);
    }
}

/// The load in the head of an answer.
struct ReportedLoad {
    /// The shard that it is of.
    shard: Rc<Shard>,
    format: LoadFormat,
}

/// The responses of one request: to its stream, or the first of them, kept.
struct GenerateResponses {
    stream: Option<ReplyStream>,
    /// The load that the head reports, if it does.
    load: Option<ReportedLoad>,
    /// The fields of the head for pages of other origins.
    cors: Option<CorsMark>,
    entry: AccessEntry,
    /// The status of the stream's head.
    status: Cell<u16>,
    count: Cell<usize>,
    first: RefCell<Option<Result<Vec<u8>, Error>>>,
    /// The encoding of a decoupled model's responses, and their counter.
    request: RefCell<Option<DecoupledRequest>>,
}

impl GenerateResponses {
    fn new(stream: Option<ReplyStream>, entry: &AccessEntry, load: Option<ReportedLoad>) -> Self {
        Self {
            stream,
            load,
            cors: None,
            entry: entry.clone(),
            status: Cell::default(),
            count: Cell::default(),
            first: RefCell::default(),
            request: RefCell::default(),
        }
    }

    fn begin(&self, stream: &ReplyStream, failure: Option<&Error>) {
        let mut head = generate::stream_reply(failure);
        self.status.set(head.status);
        if let Some(ReportedLoad { shard, format }) = &self.load {
            shard.server_context.report_load(&mut head, Some(*format));
        }
        if let Some(mark) = &self.cors {
            mark.apply(&mut head);
        }
        stream.begin(head);
    }

    fn push(&self, response: Result<Vec<u8>, Error>) {
        let is_first = self.count.replace(self.count.get().saturating_add(1)) == 0;
        match &self.stream {
            Some(stream) => {
                // Later errors cannot change the status.
                if is_first {
                    self.begin(stream, response.as_ref().err());
                }
                let event = generate::event(response);
                self.entry.note_sent(event.len());
                stream.send(event);
            }
            None if is_first => *self.first.borrow_mut() = Some(response),
            None => {}
        }
    }

    /// The request has ended. Returns the reply if there is no stream.
    fn end(&self, outcome: Result<Option<Vec<u8>>, Error>, has_run: bool) -> Result<Option<Reply>, Error> {
        match outcome {
            Ok(Some(last)) => self.push(Ok(last)),
            Ok(None) => {}
            Err(error) if has_run || self.count.get() > 0 => self.push(Err(error)),
            // Nothing ran.
            Err(error) => return Err(error),
        }
        match &self.stream {
            Some(stream) if self.count.get() == 0 => self.begin(stream, None),
            Some(_) => {}
            None => {
                let only = self.first.take().filter(|_| self.count.get() == 1);
                return only.ok_or_else(generate::not_one)?.map(|only| Some(generate::single_reply(only)));
            }
        }
        self.entry.settle(self.status.get());
        Ok(None)
    }
}

impl PartSink for GenerateResponses {
    fn has_room(&self) -> bool {
        self.stream.as_ref().is_none_or(ReplyStream::has_room)
    }

    fn take(&self, answer: Answer) {
        let request = self.request.borrow();
        let Some((model, plan, counter)) = &*request else { return };
        counter.count_part(&answer);
        if self.stream.is_none() && self.count.get() > 0 {
            // Only their number counts.
            return self.push(Ok(Vec::new()));
        }
        let outputs = answer.outputs.and_then(|outputs| model.served().spec.to_client(outputs));
        self.push(outputs.and_then(|outputs| encode(model, plan, outputs, answer.parameters.as_deref())));
    }
}
