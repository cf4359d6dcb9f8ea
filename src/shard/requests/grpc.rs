//! gRPC calls on the streams of an HTTP/2 connection: a call is answered by the protocol code, a model or the control
//! thread, and ends with its status (gRPC over HTTP/2).

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use crate::budget::ReceiveReservation;
use crate::connection::http2::{CallDeadline, CallFault, CallStatus, MessageDelivery, NextMessage};
use crate::error::Error;
use crate::limits::TYPED_INLINE_MAX;
use crate::metrics::Departure;
use crate::policy::PolicyProtocol;
use crate::protocol::check;
use crate::protocol::grpc::encode::FramedParts;
use crate::protocol::grpc::message::UNREADABLE;
use crate::protocol::grpc::repository::RepositoryRpc;
use crate::protocol::grpc::service::ControlRpc;
use crate::protocol::grpc::{self, InferMessage, Rpc, reflection as protocol_reflection, service};
use crate::protocol::orca;
use crate::protocol::policy::{self, ForwardedFields};
use crate::protocol::repository::not_explicit;
use crate::protocol::route::{RegionAction, version_of};
use crate::protocol::shared_memory::{self, RegionKind, Regions};
use crate::protocol::text::TeiRpc;
use crate::protocol::timing::Timing;
use crate::protocol::trace;
use crate::runtime::{clock, executor};
use crate::shard::Shard;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::admission::{AdmittedRequest, StreamClient};
use crate::shard::requests::compression;
use crate::shard::requests::grpc_call::{end, fault_error, forwarded};
use crate::shard::requests::http2_link::{AdmittedCall, Http2Link};
use crate::shard::requests::infer::{Arrival, RequestMetrics};
use crate::shard::requests::infer_pipeline::{self, NoHooks, PipelineInput, PipelineOutput};
use crate::shard::requests::offload::{DecodedAhead, decode_typed_ahead};
use crate::shard::requests::stream::{self, StreamCall, StreamFault};
use crate::shard::requests::tei::{self, TeiStreamCall};
use crate::shard::requests::tracing::{FrontTrace, check_traced};
use crate::time::Instant;
use crate::wire::compression::{Coding, ContentCoding, GRPC_CODINGS};
use crate::wire::http2::StreamId;

/// The interval of a health watch's checks of the status.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// The task that takes the messages of a streaming call one by one.
pub enum MessageConsumer {
    /// [`stream_infer`].
    Infer(StreamCall),
    /// [`reflection`].
    Reflection(AdmittedRequest),
    /// [`tei::stream`].
    Tei(TeiStreamCall),
}

/// An admitted call, by the delivery of its messages.
enum BeginningCall {
    Infer(StreamClient),
    Reflection(AdmittedRequest),
    Tei(TeiRpc, StreamClient),
    Unary(AdmittedCall),
}

/// Admits a call by its path and its client.
fn admitted(shard: &Shard, link: &Http2Link, stream: StreamId, is_post: bool) -> Result<BeginningCall, Error> {
    link.with(|connection| {
        if !is_post {
            return Err(Error::unsupported("gRPC calls are made with POST"));
        }
        let rpc = Rpc::from_path(connection.path(stream))?;
        let field = |name: &str| connection.field(stream, name);
        let (protocol, part, rights) = (PolicyProtocol::Grpc, rpc.part(), link.rights);
        Ok(match rpc {
            Rpc::ModelStreamInfer => {
                BeginningCall::Infer(shard.requests.admission.admit_stream(protocol, part, rights, field)?)
            }
            Rpc::TeiStream(tei) => {
                BeginningCall::Tei(tei, shard.requests.admission.admit_stream(protocol, part, rights, field)?)
            }
            Rpc::ServerReflectionInfo => {
                BeginningCall::Reflection(shard.requests.admission.admit(protocol, part, rights, field)?)
            }
            rpc => BeginningCall::Unary(AdmittedCall {
                rpc,
                admission: shard.requests.admission.admit(protocol, part, rights, field)?,
            }),
        })
    })
}

/// A call begins: accepts it with the way its messages are delivered, or refuses it. Returns the consumer of a
/// streaming call.
pub fn begin(
    shard: &Shard,
    link: &Http2Link,
    stream: StreamId,
    is_post: bool,
    deadline: CallDeadline,
) -> Option<MessageConsumer> {
    let rpc = admitted(shard, link, stream, is_post);
    let has_known_coding = link.connection.borrow().message_coding(stream) != ContentCoding::Unknown;
    let rpc = rpc.and_then(|rpc| match (deadline, rpc) {
        // gRPC over HTTP/2, "Compression"; the head of the answer lists the supported encodings.
        _ if !has_known_coding => Err(Error::unsupported(format!(
            "the grpc-encoding of the call is not supported, expected one of: {GRPC_CODINGS}"
        ))),
        (CallDeadline::Malformed, _) => {
            Err(Error::invalid("grpc-timeout is not a number of at most 8 digits and one of H M S m u n"))
        }
        (_, rpc) => Ok(rpc),
    });
    let is_unary = |wanted: fn(&Rpc) -> bool| {
        rpc.as_ref().is_ok_and(|call| matches!(call, BeginningCall::Unary(call) if wanted(&call.rpc)))
    };
    let (is_infer, is_tei) = (is_unary(|rpc| *rpc == Rpc::ModelInfer), is_unary(|rpc| matches!(rpc, Rpc::Tei(_))));
    let (plan, each) = match rpc {
        Ok(BeginningCall::Infer(client)) => (
            MessageDelivery::Each,
            Some(MessageConsumer::Infer(StreamCall {
                deadline: if let CallDeadline::At(at) = deadline { Some(at) } else { None },
                forwarded: forwarded(shard, link, stream),
                client,
            })),
        ),
        Ok(BeginningCall::Reflection(admission)) => {
            (MessageDelivery::Each, Some(MessageConsumer::Reflection(admission)))
        }
        Ok(BeginningCall::Tei(rpc, client)) => {
            let at = if let CallDeadline::At(at) = deadline { Some(at) } else { None };
            let call = TeiStreamCall::new(shard, link, stream, (rpc, client), at);
            (MessageDelivery::Each, Some(MessageConsumer::Tei(call)))
        }
        Ok(BeginningCall::Unary(call)) => (MessageDelivery::One(call), None),
        Err(ref error) => {
            shard.services.traces.refuse_call(link, stream, error);
            end(link, stream, Some(error));
            return None;
        }
    };
    let keeps_fields = is_tei || (is_infer && shard.server_context.policy.grpc.forwarded.is_some());
    link.with(|connection| {
        if !keeps_fields {
            // They are not read any longer, and the call may last.
            drop(connection.take_fields(stream));
        }
        connection.accept_call(stream, plan);
    });
    each
}

/// Answers the requests of a stream. If the future is dropped before its end, `departure` holds the
/// client's way of leaving.
pub async fn stream_infer(
    shard: Rc<Shard>,
    link: Rc<Http2Link>,
    stream: StreamId,
    call: StreamCall,
    departure: Rc<Cell<Departure>>,
) {
    let reports_load = shard.server_context.service.tells_load || link.with(|connection| connection.asked(stream)).load;
    let served = stream::run(Rc::clone(&shard), &link, stream, call, departure, reports_load);
    let outcome = served.await;
    if outcome.is_ok()
        && reports_load
        && let Some(trailer) = load_trailer(&shard)
    {
        let status = CallStatus { fields: SmallVec::from_iter([trailer]), ..ok() };
        return link.with(|connection| connection.end_call(stream, Some(status), clock::now()));
    }
    let fault = outcome.err().map(|fault| match fault {
        StreamFault::Call(fault) => fault_error(fault),
        StreamFault::Request(error) => error,
    });
    end(&link, stream, fault.as_ref());
}

/// Ends a call whose request cannot be read.
pub fn refuse(shard: &Shard, link: &Http2Link, stream: StreamId, fault: CallFault) {
    let error = fault_error(fault);
    shard.services.traces.refuse_call(link, stream, &error);
    end(link, stream, Some(&error));
}

/// A unary call whose message was received.
pub struct UnaryCall {
    /// Its stream.
    pub stream: StreamId,
    /// The call.
    pub call: AdmittedCall,
    /// The message.
    pub message: Bytes,
    /// Its encoding; `None` if it is plain.
    pub coding: Option<Coding>,
    /// The receive memory that it takes.
    pub memory: ReceiveReservation,
    /// The client's deadline.
    pub deadline: Option<Instant>,
}

/// Answers a unary call. If the future is dropped before its end, `departure` holds the client's
/// way of leaving.
pub async fn answer(shard: Rc<Shard>, link: Rc<Http2Link>, call: UnaryCall, departure: Rc<Cell<Departure>>) {
    let UnaryCall { stream, call: AdmittedCall { rpc, admission }, mut message, coding, mut memory, deadline } = call;
    let path = || link.with(|connection| connection.path(stream).to_vec());
    let entry = AccessEntry::of_grpc(&shard, path, message.len(), clock::now(), link.peer);
    entry.note_client(&admission);
    if coding.is_some() && rpc != Rpc::ModelInfer {
        message = match compression::plain_message(&shard, coding, message, &mut memory).await {
            Ok(message) => message,
            Err(error) => {
                entry.settle(error.code().on_wire().1.into());
                return end(&link, stream, Some(&error));
            }
        };
    }
    let mut front_trace = None;
    #[cfg(feature = "test-hooks")]
    if rpc == Rpc::ModelInfer {
        executor::sleep(shard.server_context.service.grpc_delays.infer).await;
    }
    let outcome = match rpc {
        Rpc::ModelInfer => {
            let request_metrics = RequestMetrics::open(&shard.cells, &departure);
            let (service, asked) = (&shard.server_context.service, link.with(|connection| connection.asked(stream)));
            let is_timed = service.tells_timing || asked.timing;
            let trace = shard.services.traces.open_call(&link, stream);
            let told = ToldFields::take(&shard, &link, stream);
            let (own_trace, entry) = (trace.clone(), &entry);
            let call = InferCall { message, coding, memory, told, deadline, is_timed, trace: own_trace, entry };
            let mut outcome = infer(&shard, call).await;
            if asked.load || service.tells_load {
                report_load(&shard, &mut outcome);
            }
            if let (Ok((parts, _)), Some(compression)) =
                (&mut outcome, compression::answer_compression(&shard, &link, stream))
            {
                let whole = std::mem::take(parts);
                *parts = Box::pin(compression::deflate_message(&shard, Some(compression), whole)).await;
            }
            request_metrics.settle(&outcome);
            // Ends when the answer is handed over.
            front_trace = trace.inspect(|trace| shard.services.traces.end_call(trace, "", outcome.as_ref().err()));
            outcome
        }
        Rpc::Tei(rpc) => {
            let call = tei::TeiCall { rpc, message, memory, deadline, stream, entry: &entry };
            tei::answer(&shard, &link, call, &departure).await.map(|answer| (smallvec![answer], None))
        }
        Rpc::ModelReady => model_ready(&shard, &message).await.map(|answer| (smallvec![answer], None)),
        Rpc::Control(rpc) => control(&shard, rpc, &message, deadline).await.map(|answer| (smallvec![answer], None)),
        Rpc::Repository(rpc) => repository(&shard, rpc, &message).await.map(|answer| (answer, None)),
        Rpc::TraceSetting => trace_setting(&shard, &message).await.map(|answer| (smallvec![answer], None)),
        Rpc::SharedMemory(kind, action) => regions(&shard, kind, action, &message).await.map(|answer| (answer, None)),
        Rpc::Watch => return watch(&shard, &link, stream).await,
        Rpc::ModelStreamInfer | Rpc::ServerReflectionInfo | Rpc::TeiStream(_) => {
            Err(Error::internal("the call was answered before"))
        }
    };
    #[cfg(feature = "test-hooks")]
    {
        let delays = &shard.server_context.service.grpc_delays;
        executor::sleep(if rpc == Rpc::ModelInfer { delays.infer_answer } else { delays.answer }).await;
    }
    finish(&link, stream, &entry, outcome);
    drop(front_trace);
}

/// Sends the answer of a unary call, or its error.
fn finish(
    link: &Http2Link,
    stream: StreamId,
    entry: &AccessEntry,
    outcome: Result<(FramedParts, Option<CallStatus>), Error>,
) {
    match outcome {
        Ok((parts, end)) => {
            entry.note_sent(parts.iter().map(Bytes::len).sum());
            entry.settle(0);
            link.with(|connection| connection.send_answer_and_status(stream, parts, end, clock::turn()));
        }
        Err(error) => {
            entry.settle(error.code().on_wire().1.into());
            end(link, stream, Some(&error));
        }
    }
}

async fn control(
    shard: &Rc<Shard>,
    rpc: ControlRpc,
    message: &[u8],
    deadline: Option<Instant>,
) -> Result<Bytes, Error> {
    if let Some(name) = rpc.wanted_model(message) {
        shard.models.want(&name, deadline).await?;
    }
    service::answer(rpc, message, &**shard)
}

async fn model_ready(shard: &Shard, message: &[u8]) -> Result<Bytes, Error> {
    let (name, version) = service::ready_question(message)?;
    service::ready_answer(shard.models.is_told_ready(&name, version).await)
}

async fn repository(shard: &Rc<Shard>, rpc: RepositoryRpc, message: &[u8]) -> Result<FramedParts, Error> {
    if rpc != RepositoryRpc::Index && !shard.server_context.service.is_controlled {
        return Err(not_explicit());
    }
    let entries = shard.server_context.send_control_request(rpc.order(message)?).await?;
    rpc.answer(entries).map(|answer| smallvec![answer])
}

async fn trace_setting(shard: &Rc<Shard>, message: &[u8]) -> Result<Bytes, Error> {
    let (model, order) = trace::grpc::question(message)?;
    check_traced(&shard.models, &model)?;
    if let Some(order) = order? {
        shard.server_context.send_trace_order(order).await?;
    }
    trace::grpc::answer(&shard.services.traces.table(), &model)
}

async fn regions(
    shard: &Rc<Shard>,
    kind: RegionKind,
    action: RegionAction,
    message: &[u8],
) -> Result<FramedParts, Error> {
    let is_on = shard.server_context.shared_memory.is_some();
    if !is_on && action != RegionAction::Status {
        return Err(shared_memory::disabled());
    }
    let order = grpc::shared_memory::order(kind, action, message)?;
    let found = if is_on {
        shard.server_context.send_region_request(order).await?
    } else {
        shared_memory::without_regions(&order)?
    };
    grpc::shared_memory::answer(kind, action, found).map(|answer| smallvec![answer])
}

/// Answers the messages of a reflection call one by one.
/// The admission is held to its end.
pub async fn reflection(shard: Rc<Shard>, link: Rc<Http2Link>, stream: StreamId, _admission: AdmittedRequest) {
    let outcome = loop {
        let answer = match link.next(stream).await {
            Ok(NextMessage::End | NextMessage::Nothing) => break Ok(()),
            Ok(NextMessage::Message(message)) => {
                let (coding, mut memory) = (link.coding(stream), link.take_memory(stream));
                let message = compression::plain_message(&shard, coding, message, &mut memory).await;
                message.and_then(|message| protocol_reflection::answer(&message))
            }
            Err(fault) => Err(fault_error(fault)),
        };
        match answer {
            Ok(answer) => link.with(|connection| connection.send_message(stream, [answer], clock::now())),
            Err(error) => break Err(error),
        }
        link.room(stream).await;
    };
    end(&link, stream, outcome.err().as_ref());
}

/// Sends the server's health now and after each change, until the client leaves or the server
/// drains.
async fn watch(shard: &Rc<Shard>, link: &Http2Link, stream: StreamId) {
    let mut sent = None;
    loop {
        let is_ready = shard.is_ready();
        if sent.replace(is_ready) != Some(is_ready) {
            match service::health(is_ready) {
                Ok(answer) => link.with(|connection| connection.send_message(stream, [answer], clock::now())),
                Err(error) => return end(link, stream, Some(&error)),
            }
        }
        if shard.connections.is_draining() {
            return end(link, stream, None);
        }
        executor::sleep(WATCH_INTERVAL).await;
    }
}

/// The metadata of a call about its request.
struct ToldFields {
    /// The sequence that its client tells balancers.
    sequence: Option<Box<[u8]>>,
    /// The fields that are forwarded to the model.
    forwarded: Option<ForwardedFields>,
}

impl ToldFields {
    fn take(shard: &Shard, link: &Http2Link, stream: StreamId) -> Self {
        Self {
            sequence: link.with(|connection| connection.take_sequence_id(stream)),
            forwarded: forwarded(shard, link, stream),
        }
    }
}

/// A call for an inference.
struct InferCall<'a> {
    message: Bytes,
    /// The encoding of the message; `None` if it is plain.
    coding: Option<Coding>,
    /// The receive memory that the message takes.
    memory: ReceiveReservation,
    told: ToldFields,
    deadline: Option<Instant>,
    /// True if the trailers tell the times of the stages.
    is_timed: bool,
    trace: Option<Rc<FrontTrace>>,
    entry: &'a AccessEntry,
}

/// Returns the response to an inference, and its trailers if they carry more than the status OK.
async fn infer(shard: &Rc<Shard>, call: InferCall<'_>) -> Result<(FramedParts, Option<CallStatus>), Error> {
    let InferCall { message, coding, mut memory, told, deadline, is_timed, trace, entry } = call;
    let message = compression::plain_message(shard, coding, message, &mut memory).await?;
    shard.models.want_of(&message, deadline).await?;
    let mut ahead: DecodedAhead = None;
    if message.len() > TYPED_INLINE_MAX {
        ahead = Box::pin(decode_typed_ahead(shard, &message, &mut memory, grpc::decode::decode)).await?;
    }
    let arrival = Arrival::of_client(clock::now(), deadline, entry.payer());
    let decode = move |regions: Option<&Regions>, memory: &mut ReceiveReservation| {
        let (model, mut request) = match ahead {
            Some(decoded) => {
                entry.note_model(&decoded.0, &decoded.1.plan.id);
                *decoded
            }
            None => {
                let request = InferMessage::read(&message).map_err(|_| Error::internal(UNREADABLE))?;
                entry.note_asked(request.model_name, None, request.id);
                let version = version_of(request.model_version)?;
                let model = shard.models.find(request.model_name, version)?;
                entry.note_model(&model, request.id);
                let request = grpc::decode::decode(&model.served().spec, &request, regions, memory)?;
                (model, request)
            }
        };
        check::sequence_field(told.sequence.as_deref(), request.sequence.id.as_ref())?;
        policy::forward(told.forwarded.as_ref(), &model.served().spec, &mut request)?;
        Ok((model, request))
    };
    let input = PipelineInput { memory, arrival, is_timed, trace };
    let output = infer_pipeline::run(shard, input, decode, &mut NoHooks).await?;
    let PipelineOutput { model, outputs, parameters, plan, stamps, decoded_at, .. } = output;
    let served = model.served();
    let parts = grpc::encode(&served.spec, served.version, &plan, outputs, parameters.as_deref())?;
    let end = decoded_at.map(|decoded| timed_end(&Timing { stamps, decoded, encoded: clock::now() }));
    Ok((parts, end))
}

/// Adds the load to the trailers of a successful call, if it is known.
fn report_load(shard: &Shard, outcome: &mut Result<(FramedParts, Option<CallStatus>), Error>) {
    if let Ok((_, end)) = outcome
        && let Some(trailer) = load_trailer(shard)
    {
        end.get_or_insert_with(ok).fields.push(trailer);
    }
}

/// The load as a trailer, if it is known.
fn load_trailer(shard: &Shard) -> Option<(&'static str, Cow<'static, str>)> {
    shard.server_context.load_report().map(|report| (orca::TRAILER, Cow::Owned(report.base64())))
}

/// The status of a successful call.
const fn ok() -> CallStatus {
    CallStatus { code: 0, text: String::new(), fields: SmallVec::new_const() }
}

/// The trailers of a successful call with the times of its stages.
fn timed_end(timing: &Timing) -> CallStatus {
    let fields = SmallVec::from_iter([("server-timing", Cow::Owned(timing.text()))]);
    CallStatus { fields, ..ok() }
}
