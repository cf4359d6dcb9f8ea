//! REST: from an HTTP message to its reply, over HTTP/1.1 and HTTP/2 alike. The route selects the
//! answerer: the protocol code, a model, or the control thread.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::budget::ReceiveReservation;
use crate::error::{Code, Error};
use crate::limits::{JSON_INLINE_MAX, JSON_OUTPUT_INLINE_MAX};
use crate::metrics::{Departure, ModelStatistics};
use crate::model::ModelSpec;
use crate::policy::PolicyProtocol;
use crate::protocol::check;
use crate::protocol::cors::CorsMark;
use crate::protocol::front_end::FrontEnd;
use crate::protocol::grpc::service::{ModelFacts, ServerFacts};
use crate::protocol::infer::InferRequest;
use crate::protocol::logging::{LogState, LogUpdate};
use crate::protocol::orca::{self, LoadFormat};
use crate::protocol::path::decode_names;
use crate::protocol::policy::{self, ForwardedFields};
use crate::protocol::rest::{self, HeaderLength, raw, server};
use crate::protocol::route::{Delivery, ModelPath, PathEndpoint, Route, unavailable_model};
use crate::protocol::shared_memory::Regions;
use crate::protocol::text::{TextPath, error_reply as text_error_reply};
use crate::protocol::timing::{self, Timing};
use crate::queue::served_model::ServedModel;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::connections::ConnectionRights;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::admission::AdmittedRequest;
use crate::shard::requests::compression::{self, InflatedKind};
use crate::shard::requests::generate::{self, GenerateMessage};
use crate::shard::requests::infer::{Arrival, RequestMetrics};
use crate::shard::requests::infer_pipeline::{self, NoHooks, PipelineInput, PipelineOutput};
use crate::shard::requests::offload::{DecodedAhead, decode_ahead};
use crate::shard::requests::predict::InferForm;
use crate::shard::requests::reply_stream::ReplyStream;
use crate::shard::requests::rest_control::answer_control;
use crate::shard::requests::text::TextMessage;
use crate::shard::requests::text_instances;
use crate::shard::requests::tracing::{FrontTrace, HttpTrace, ShownFailure};
use crate::shard::services::hosted;
use crate::shard::services::logging;
use crate::time::Instant;
use crate::trace::TraceFront;
use crate::wire::compression::{AcceptedCoding, ContentCoding, HTTP_CODINGS};
use crate::wire::message::{Fields, Message, Method, Reply};
use crate::wire::trace_context::TraceContext;

/// The circumstances of an HTTP message.
pub struct HttpArrival<'a> {
    /// The records of its course.
    pub records: RequestRecords<'a>,
    /// The destination of an answer in parts.
    pub stream: ReplyStream,
    /// The rights of its connection.
    pub rights: ConnectionRights,
    /// The paths that its port serves.
    pub front_end: FrontEnd,
}

/// The records of the course of a message.
#[derive(Clone, Copy)]
pub struct RequestRecords<'a> {
    /// The instant at which its last byte was read.
    pub received: Instant,
    /// The client's way of leaving, if it leaves before its answer.
    pub departure: &'a Cell<Departure>,
    /// The entry of the access log.
    pub entry: &'a AccessEntry,
    /// The rest of its trace until the reply is sent.
    pub http_trace: &'a HttpTrace,
}

/// A request of a model.
#[derive(Clone, Copy)]
struct ModelRequest<'a> {
    path: ModelPath<'a>,
    fields: &'a Fields,
    /// The paths that its port serves.
    front_end: FrontEnd,
    form: InferForm,
}

/// The body of a request, and the receive memory that it takes.
struct ReceivedBody {
    bytes: Bytes,
    memory: ReceiveReservation,
}

/// The start of a trace.
#[derive(Clone, Copy)]
struct TracedArrival<'a> {
    http_trace: &'a HttpTrace,
    received: Instant,
    /// The header fields, which may name the client's own trace.
    fields: &'a Fields,
}

impl<'a> RequestRecords<'a> {
    /// The start of the message's trace.
    const fn traced(&self, fields: &'a Fields) -> TracedArrival<'a> {
        TracedArrival { http_trace: self.http_trace, received: self.received, fields }
    }
}

/// Returns the reply to a message, whose body it takes; `None` if it went to the stream in parts and is complete. If the
/// future is dropped before, the client has left, and `departure` holds its way of leaving. The message is borrowed
/// because a future holds what it is given twice.
pub async fn handle_message(
    shard: &Rc<Shard>,
    message: &mut Message,
    mut memory: ReceiveReservation,
    arrival: HttpArrival<'_>,
) -> Option<Reply> {
    let HttpArrival { records, stream, rights, front_end } = arrival;
    let (method, mut body) = (message.method, std::mem::take(&mut message.body));
    let Message { path, fields, .. } = &*message;
    // Made again below: a value that is kept while the request runs counts in each connection.
    let cors = || cors_mark(shard, front_end, fields);
    let restrictions = &shard.server_context.policy.http.restrictions;
    if let Some(reply) = cors().and_then(|mark| mark.preflight(method, fields, restrictions)) {
        return Some(reply);
    }
    let (path, redirect) = (decode_names(path), front_end.redirect(fields));
    let redirect = redirect.as_deref().map(decode_names);
    let find = || shard.server_context.front_ends.find(front_end, &path, redirect.as_deref());
    // The admission is held until the reply is complete.
    let (mut route, admission) = admitted(shard, method, find(), fields, rights);
    records.entry.note_client(&admission);
    let hosted_model = hosted::invoked_model(shard, &route);
    route = hosted_model.as_ref().map_or(route, hosted::inference);
    let read_asked = || AskedFields::read(fields, front_end);
    // An inference looks up its model first, and generate takes no encoded body.
    let is_later =
        matches!(route, Ok(Route::ModelInfer(_) | Route::ModelGenerate(..) | Route::ModelPredict(_)) | Err(_));
    if !body.is_empty() && !is_later {
        match plain_body(shard, &read_asked(), body.clone(), &mut memory).await {
            Ok(plain) => body = plain,
            Err(error) => route = Err(error),
        }
    }
    let body = ReceivedBody { bytes: body, memory };
    let outcome = match route {
        Ok(Route::ModelInfer(path) | Route::ModelPredict(path)) => {
            let form = if matches!(route, Ok(Route::ModelPredict(_))) { InferForm::Predict } else { InferForm::V2 };
            run_infer(shard, ModelRequest { path, fields, front_end, form }, body, records).await
        }
        Ok(Route::ModelGenerate(path, delivery)) => {
            let stream = (delivery == Delivery::Stream).then_some(stream);
            let request = ModelRequest { path, fields, front_end, form: InferForm::V2 };
            // Boxed: large, and few requests are of this kind.
            match Box::pin(run_generate(shard, request, body, stream, (records, cors()))).await.transpose() {
                Some(outcome) => outcome,
                None => return None,
            }
        }
        Ok(Route::Text(path, model)) => Ok(Box::pin(run_text(shard, (path, model), fields, body, records)).await),
        // Boxed: these are rare.
        Ok(route) => Box::pin(answer_control(shard, route, method, fields, &body.bytes)).await,
        Err(error) => Err(traced(shard, records.traced(fields), find(), error, front_end)),
    };
    let mut reply = outcome.unwrap_or_else(|error| {
        let error = if hosted_model.is_some() { rest::hosted::invocation_failure(error) } else { error };
        let mut reply = refusal(shard, find(), method, &error, front_end);
        shard.server_context.report_load(&mut reply, read_asked().load_format);
        reply
    });
    if let Some(mark) = cors() {
        mark.apply(&mut reply);
    }
    Some(reply)
}

/// The fields of an answer to a page of another origin; `None` unless a flag allows such.
pub fn cors_mark(shard: &Shard, front_end: FrontEnd, fields: &Fields) -> Option<CorsMark> {
    let origins = &shard.server_context.policy.http.cors;
    if front_end == FrontEnd::Kserve { CorsMark::of(origins, fields) } else { None }
}

/// Runs an inference, and counts and traces it.
async fn run_infer(
    shard: &Rc<Shard>,
    request: ModelRequest<'_>,
    body: ReceivedBody,
    records: RequestRecords<'_>,
) -> Result<Reply, Error> {
    let ModelRequest { path, fields, front_end, form } = request;
    let request_metrics = RequestMetrics::open(&shard.cells, records.departure);
    let trace = open_trace(shard, records.traced(fields));
    let outcome = infer(shard, request, body, records, trace.clone()).await;
    request_metrics.settle(&outcome);
    end_trace(shard, records.http_trace, trace, path.name, outcome.as_ref().err(), front_end);
    outcome.map_err(|error| if form == InferForm::V2 { with_missing_length(error, fields, front_end) } else { error })
}

/// Runs a generate request; returns the reply, unless it went to the stream.
async fn run_generate(
    shard: &Rc<Shard>,
    request: ModelRequest<'_>,
    body: ReceivedBody,
    stream: Option<ReplyStream>,
    (records, cors): (RequestRecords<'_>, Option<CorsMark>),
) -> Result<Option<Reply>, Error> {
    let ModelRequest { path, fields, front_end, .. } = request;
    let RequestRecords { received, departure, entry, http_trace } = records;
    let asked = AskedFields::read(fields, front_end);
    let (is_coded, load_format) = (asked.coding != ContentCoding::Identity, asked.load_format_of(shard));
    let sequence_field = asked.sequence_id;
    let trace = open_trace(shard, records.traced(fields));
    let (forwarded, name) = (forwarded(shard, fields), path.name);
    let message = GenerateMessage {
        path,
        is_coded,
        body: body.bytes,
        memory: body.memory,
        received,
        entry,
        trace: trace.clone(),
        forwarded,
        load_format,
        cors,
        sequence_field,
    };
    let outcome = generate::run(shard, message, stream, departure).await;
    end_trace(shard, http_trace, trace, name, outcome.as_ref().err(), front_end);
    outcome.map(|reply| {
        reply.map(|mut reply| {
            shard.server_context.report_load(&mut reply, load_format);
            reply
        })
    })
}

/// Runs a call of the text interfaces.
async fn run_text(
    shard: &Rc<Shard>,
    (path, model): (TextPath, Option<&str>),
    fields: &Fields,
    body: ReceivedBody,
    records: RequestRecords<'_>,
) -> Reply {
    let ReceivedBody { bytes: body, memory } = body;
    let (trace, forwarded) = (open_trace(shard, records.traced(fields)), forwarded(shard, fields));
    let RequestRecords { received, departure, entry, http_trace } = records;
    let message = TextMessage { path, model, body, memory, received, departure, entry, http_trace, trace, forwarded };
    let mut reply = text_instances::run(shard, message).await;
    shard.server_context.report_load(&mut reply, AskedFields::read(fields, FrontEnd::Kserve).load_format_of(shard));
    reply
}

/// Adds to a fault in the JSON that the header is missing which says where it ends, if the content type says that the
/// body is binary.
fn with_missing_length(error: Error, fields: &Fields, front_end: FrontEnd) -> Error {
    let is_binary = || fields.get("content-type").is_some_and(raw::is_binary);
    if error.code() != Code::MalformedJson
        || front_end != FrontEnd::Kserve
        || fields.get(front_end.length_field()).is_some()
        || !is_binary()
    {
        return error;
    }
    raw::with_missing_length(error)
}

/// The header fields of a request that go on to its model.
fn forwarded(shard: &Shard, fields: &Fields) -> Option<ForwardedFields> {
    let policy = &shard.server_context.policy.http;
    policy::forwarded(policy, PolicyProtocol::Http, shard.requests.admission.needs_keys(), || Some(fields))
}

/// Returns the field with the methods that a path supports: a refused method is answered with it (RFC 9110 §15.5.6).
fn allow_field(found: Result<PathEndpoint<'_>, Error>) -> (&'static str, Bytes) {
    let allow = found.map(|endpoint| endpoint.allow()).unwrap_or_default();
    ("Allow", Bytes::from_static(allow.as_bytes()))
}

/// Returns the reply for a message that was refused, or whose request failed.
fn refusal(
    shard: &Shard,
    found: Result<PathEndpoint<'_>, Error>,
    method: Method,
    error: &Error,
    front_end: FrontEnd,
) -> Reply {
    let mut reply = error_reply(shard, error, front_end);
    // A refusal until later is told as by a text model; other refusals are the policy's own.
    let text_path = found.as_ref().ok().and_then(|endpoint| endpoint.text_path(method));
    if let Some(told) = text_path.map(|path| text_error_reply(path, error)).filter(|told| told.status == 429) {
        reply = Reply { status: told.status, body: told.body, ..reply };
    }
    if error.code() == Code::MethodNotAllowed {
        reply.fields.push(allow_field(found));
    }
    reply
}

/// Returns the reply for an error.
fn error_reply(shard: &Shard, error: &Error, front_end: FrontEnd) -> Reply {
    let mut reply = rest::error_reply(error);
    reply.status = error_status(shard, error.code(), front_end);
    if error.code() == Code::UnsupportedMedia {
        // Lists the codings that a body may have (RFC 9110 §15.5.16).
        reply.fields.push(("Accept-Encoding", Bytes::from_static(HTTP_CODINGS.as_bytes())));
    }
    reply
}

/// Returns the status of the reply for an error.
fn error_status(shard: &Shard, code: Code, front_end: FrontEnd) -> u16 {
    let shown = match code {
        // Triton's port of SageMaker has 400 for it.
        Code::MalformedJson if front_end != FrontEnd::SageMaker => Code::Internal,
        Code::TooLarge => Code::InvalidArgument,
        other => other,
    };
    if shard.server_context.service.follows_triton { shown.on_wire().0 } else { code.on_wire().0 }
}

/// The failure of a request as the client of a front end sees it.
fn shown_failure<'a>(shard: &Shard, error: &'a Error, front_end: FrontEnd) -> ShownFailure<'a> {
    ShownFailure { code: error_status(shard, error.code(), front_end), text: error.text() }
}

/// The answer to an inference is sent from now on.
fn end_trace(
    shard: &Shard,
    http_trace: &HttpTrace,
    trace: Option<Rc<FrontTrace>>,
    model: &str,
    error: Option<&Error>,
    front_end: FrontEnd,
) {
    let Some(trace) = trace else { return };
    if let Some(error) = error {
        shard.services.traces.fail(&trace, model, shown_failure(shard, error, front_end));
    }
    http_trace.handle_sending(Some(trace));
}

/// Traces a request that is refused with a status and a text, if it asked a model for an inference.
fn trace_refusal(shard: &Shard, arrival: TracedArrival<'_>, model: Option<&str>, failure: ShownFailure<'_>) {
    if !shard.services.traces.is_on() {
        return;
    }
    if let Some((model, trace)) = model.zip(open_trace(shard, arrival)) {
        shard.services.traces.fail(&trace, model, failure);
        arrival.http_trace.handle_sending(Some(trace));
    }
}

/// Traces a request that is refused with an error, and returns the error.
fn traced(
    shard: &Shard,
    arrival: TracedArrival<'_>,
    found: Result<PathEndpoint<'_>, Error>,
    error: Error,
    front_end: FrontEnd,
) -> Error {
    let model = found.ok().and_then(|endpoint| endpoint.inferred_model());
    trace_refusal(shard, arrival, model, shown_failure(shard, &error, front_end));
    error
}

/// Traces a request whose body is refused before it is complete.
pub fn trace_refused_body(
    shard: &Shard,
    http_trace: &HttpTrace,
    path: &Bytes,
    fields: &Fields,
    failure: ShownFailure<'_>,
) {
    let Some(front_end) = http_trace.front_end.filter(|_| shard.services.traces.is_on()) else { return };
    let (path, redirect) = (decode_names(path), front_end.redirect(fields));
    let redirect = redirect.as_deref().map(decode_names);
    let found = shard.server_context.front_ends.find(front_end, &path, redirect.as_deref());
    let model = found.ok().and_then(|endpoint| endpoint.inferred_model());
    trace_refusal(shard, TracedArrival { http_trace, received: clock::now(), fields }, model, failure);
}

/// Prepares for an inference that may be traced.
fn open_trace(shard: &Shard, arrival: TracedArrival<'_>) -> Option<Rc<FrontTrace>> {
    let TracedArrival { http_trace, received, fields } = arrival;
    shard.services.traces.open(TraceFront::Http, http_trace.began.get(), received, || {
        TraceContext::decode(fields.get("traceparent"), fields.get("tracestate"))
    })
}

/// Returns the route of a message that the operator's policy admits, and the admission that it
/// holds meanwhile. A restricted category is restricted for every method.
fn admitted<'a>(
    shard: &Shard,
    method: Method,
    found: Result<PathEndpoint<'a>, Error>,
    fields: &Fields,
    rights: ConnectionRights,
) -> (Result<Route<'a>, Error>, AdmittedRequest) {
    let endpoint = match found {
        Ok(endpoint) => endpoint,
        Err(error) => return (Err(error), AdmittedRequest::default()),
    };
    match shard.requests.admission.admit(PolicyProtocol::Http, endpoint.part(method), rights, |name| fields.get(name)) {
        Ok(admission) => (endpoint.route(method), admission),
        Err(error) => (Err(error), AdmittedRequest::default()),
    }
}

/// The options in the header fields of a request, read in one pass.
#[derive(Default)]
struct AskedFields<'a> {
    /// The encoding of its body.
    coding: ContentCoding,
    /// The encodings that the client accepts for its answer: the values of `Accept-Encoding`.
    accepts: SmallVec<[&'a [u8]; 1]>,
    /// The value of the field with the size of the body's JSON part, as the client sent it.
    header_length: Option<&'a [u8]>,
    /// The type of its body.
    content_type: Option<&'a [u8]>,
    /// The value of `Accept`.
    accept: Option<&'a [u8]>,
    /// True if the client asks for the times of the stages.
    wants_timing: bool,
    /// The requested form of the load.
    load_format: Option<LoadFormat>,
    /// The sequence that it tells balancers.
    sequence_id: Option<&'a [u8]>,
}

impl<'a> AskedFields<'a> {
    fn read(fields: &'a Fields, front_end: FrontEnd) -> Self {
        let mut asked = Self::default();
        for (name, value) in fields.iter() {
            if name.eq_ignore_ascii_case(front_end.length_field().as_bytes()) {
                asked.header_length = asked.header_length.or(Some(value));
            } else if name.eq_ignore_ascii_case(b"Content-Type") {
                asked.content_type = asked.content_type.or(Some(value));
            } else if name.eq_ignore_ascii_case(b"Accept") {
                asked.accept = asked.accept.or(Some(value));
            } else if name.eq_ignore_ascii_case(b"Content-Encoding") {
                asked.coding = asked.coding.and(value);
            } else if name.eq_ignore_ascii_case(b"Accept-Encoding") {
                asked.accepts.push(value);
            } else if name.eq_ignore_ascii_case(timing::WANT.as_bytes()) {
                asked.wants_timing |= timing::is_wanted(value);
            } else if name.eq_ignore_ascii_case(orca::ASK.as_bytes()) {
                asked.load_format = asked.load_format.or(LoadFormat::of_value(value));
            } else if name.eq_ignore_ascii_case(check::SEQUENCE_FIELD.as_bytes()) {
                asked.sequence_id = asked.sequence_id.or(Some(value));
            }
        }
        asked
    }

    /// The size of the JSON part of an inference, and true if the content type alone says that it has no JSON.
    fn json_length(&self, front_end: FrontEnd, form: InferForm, body: &[u8]) -> Result<(HeaderLength, bool), Error> {
        if form == InferForm::Predict {
            return Ok((HeaderLength::Absent, false));
        }
        if front_end == FrontEnd::Kserve && self.header_length.is_none() {
            let length = raw::deduced_length(self.content_type, body);
            return Ok((length, length != HeaderLength::Absent));
        }
        Ok((front_end.header_length(self.header_length, body.len())?, false))
    }

    /// The request of a body that is raw by its content type alone, with outputs in the form that the client accepts.
    fn of_raw(&self, decoded: Result<InferRequest, Error>) -> Result<InferRequest, Error> {
        let mut request = decoded.map_err(raw::with_missing_length)?;
        if raw::wants_json(self.accept) {
            request.plan.outputs.iter_mut().for_each(|output| output.is_binary = false);
        }
        Ok(request)
    }

    /// The form in which the answer reports the load: to this client, or to all.
    fn load_format_of(&self, shard: &Shard) -> Option<LoadFormat> {
        self.load_format.or(shard.server_context.service.tells_load.then_some(LoadFormat::Text))
    }
}

/// The body of a request, inflated if it is compressed.
async fn plain_body(
    shard: &Shard,
    asked: &AskedFields<'_>,
    body: Bytes,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    let coding = match asked.coding {
        ContentCoding::Identity => return Ok(body),
        ContentCoding::Coded(coding) => coding,
        ContentCoding::Unknown => return Err(compression::unknown_coding()),
    };
    // A front end's content type is not a number: its tensors are then copied if they need
    // alignment.
    let text = asked.header_length.and_then(|text| str::from_utf8(text).ok());
    let aligned_at = text.and_then(|text| text.parse().ok()).unwrap_or(0);
    // Boxed: it is large, and most bodies are plain.
    Box::pin(compression::inflate(shard, coding, InflatedKind::Body(aligned_at), body, memory)).await
}

async fn infer(
    shard: &Rc<Shard>,
    ModelRequest { path, fields, front_end, form }: ModelRequest<'_>,
    ReceivedBody { bytes: mut body, mut memory }: ReceivedBody,
    RequestRecords { received, entry, .. }: RequestRecords<'_>,
    trace: Option<Rc<FrontTrace>>,
) -> Result<Reply, Error> {
    let mut asked = AskedFields::read(fields, front_end);
    entry.note_asked(path.name, path.version, "");
    shard.models.want(path.name, None).await?;
    if asked.coding != ContentCoding::Identity {
        shard.models.find(path.name, path.version)?;
        body = plain_body(shard, &asked, body, &mut memory).await?;
    }
    let accepted = AcceptedCoding::from_fields(std::mem::take(&mut asked.accepts));
    let (load_format, forwarded) = (asked.load_format_of(shard), forwarded(shard, fields));
    let mut ahead: DecodedAhead = None;
    if body.len() > JSON_INLINE_MAX
        && let Ok((length, _)) = asked.json_length(front_end, form, &body)
        && length.of_body(body.len()).is_ok_and(|size| size > JSON_INLINE_MAX)
    {
        let body = std::mem::take(&mut body);
        let decode = move |spec: &ModelSpec, regions: Option<&Regions>, memory: &mut ReceiveReservation| {
            form.decode(spec, length, body, (regions, memory))
        };
        ahead = Box::pin(decode_ahead(shard, path, &mut memory, decode)).await?;
    }
    let input = PipelineInput {
        memory,
        arrival: Arrival::of_client(received, None, entry.payer()),
        is_timed: asked.wants_timing || shard.server_context.service.tells_timing,
        trace,
    };
    let decode = move |regions: Option<&Regions>, memory: &mut ReceiveReservation| {
        let (model, mut request) = match ahead {
            Some(decoded) => *decoded,
            None => {
                let model = shard.models.find(path.name, path.version)?;
                let (length, is_deduced) = asked.json_length(front_end, form, &body)?;
                let decoded = form.decode(&model.served().spec, length, body, (regions, memory));
                let request = if is_deduced { asked.of_raw(decoded) } else { decoded }?;
                (model, request)
            }
        };
        check::sequence_field(asked.sequence_id, request.sequence.id.as_ref())?;
        policy::forward(forwarded.as_ref(), &model.served().spec, &mut request)?;
        entry.note_model(&model, &request.plan.id);
        Ok((model, request))
    };
    let output = infer_pipeline::run(shard, input, decode, &mut NoHooks).await?;
    let PipelineOutput { model, outputs, parameters, plan, stamps, decoded_at, .. } = output;
    let served = model.served();
    let mut reply = if rest::json_output_size(&plan, &outputs) > JSON_OUTPUT_INLINE_MAX {
        let served = Arc::clone(served);
        let encode = move || form.encode(&served, &plan, outputs, parameters.as_deref());
        Box::pin(shard.server_context.offload(encode)).await?
    } else {
        form.encode(served, &plan, outputs, parameters.as_deref())?
    };
    if let Some(decoded) = decoded_at {
        let text = Timing { stamps, decoded, encoded: clock::now() }.text();
        reply.fields.push((timing::FIELD, Bytes::from(text)));
    }
    shard.server_context.report_load(&mut reply, load_format);
    front_end.shape_reply(&mut reply);
    if accepted.coding.is_none() || front_end != FrontEnd::Kserve {
        return Ok(reply);
    }
    Ok(Box::pin(compression::deflate_reply(shard, accepted, reply)).await)
}

impl ServerFacts for Shard {
    fn name(&self) -> &str {
        &self.server_context.service.id
    }

    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn extensions(&self) -> &[&str] {
        if self.server_context.shared_memory.is_some() {
            &server::EXTENSIONS_WITH_SHARED_MEMORY
        } else {
            &server::EXTENSIONS
        }
    }

    fn is_live(&self) -> bool {
        true
    }

    fn is_ready(&self) -> bool {
        Self::is_ready(self)
    }

    fn model(&self, name: &str, version: Option<u64>) -> Result<ModelFacts, Error> {
        let model = self.models.find(name, version)?;
        if !self.models.is_model_ready(&model) {
            let version = model.served().version;
            return Err(Error::unavailable(format!(
                "Request for unknown model: '{name}' version {version} is not at ready state"
            )));
        }
        let versions = match version {
            Some(version) => vec![version],
            None => self.models.versions(name),
        };
        Ok(ModelFacts { spec: model.served().shown_spec(), versions })
    }

    fn statistics(&self, name: Option<&str>, version: Option<u64>) -> Result<Vec<ModelStatistics>, Error> {
        let is_named = |served: &ServedModel| name.is_none_or(|name| served.spec.name == name);
        let served = self.models.served();
        let mut models: Vec<_> = served.iter().filter(|served| is_named(served)).collect();
        if let Some(name) = name {
            self.models.check_unambiguous(name)?;
            if models.is_empty() {
                return Err(unavailable_model(name));
            }
            models.retain(|served| version.is_none_or(|version| served.version == version));
            if models.is_empty() {
                return Err(Error::invalid(format!("requested model version is not available for model '{name}'")));
            }
        }
        models.sort_by_key(|served| (&served.spec.name, served.version));
        Ok(models.into_iter().map(|served| served.figures().statistics()).collect())
    }

    fn log_settings(&self, update: &LogUpdate) -> Result<LogState, Error> {
        logging::settings(update, self.server_context.service.allows_log_settings)
    }
}
