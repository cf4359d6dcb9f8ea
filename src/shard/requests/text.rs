//! The interfaces of text models (`protocol::text`) over HTTP/1.1 and HTTP/2: a call finds its model, runs as an inference
//! request, and is answered in the form of its path.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use crate::budget::ReceiveReservation;
use crate::error::{Code, Error};
use crate::metrics::Departure;
use crate::model::ModelSpec;
use crate::protocol::limits::TEXT_BODY_SIZE_MAX;
use crate::protocol::policy::{self, ForwardedFields};
use crate::protocol::text::{
    self, AnswerFacts, TextModelFacts, TextOutcome, TextPath, TextRequest, TextTask, TextTimes,
};
use crate::queue::served_model::ServedModel;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::infer::Arrival;
use crate::shard::requests::infer_pipeline::{self, NoHooks, PipelineInput, PipelineOutput};
use crate::shard::requests::tei_metrics::{self, TeiCount};
use crate::shard::requests::tracing::{FrontTrace, HttpTrace};
use crate::time::Instant;
use crate::wire::message::Reply;

/// A call, as it was received.
pub struct TextMessage<'a> {
    /// Its path.
    pub path: TextPath,
    /// The model in its path, if there is one.
    pub model: Option<&'a str>,
    /// The body.
    pub body: Bytes,
    /// The receive memory that it takes.
    pub memory: ReceiveReservation,
    /// The instant at which its last byte was read.
    pub received: Instant,
    /// The client's way of leaving, if it leaves before its answer.
    pub departure: &'a Cell<Departure>,
    /// Its entry in the access log.
    pub entry: &'a AccessEntry,
    /// The rest of its trace until the reply is sent.
    pub http_trace: &'a HttpTrace,
    /// Its trace, if it may be traced.
    pub trace: Option<Rc<FrontTrace>>,
    /// The header fields that are forwarded to the model.
    pub forwarded: Option<ForwardedFields>,
}

/// A call of either protocol, read.
pub struct TextWork<'a> {
    /// The call.
    pub request: TextRequest,
    /// The model that it names outside of its body.
    pub model: Option<&'a str>,
    /// The receive memory that it takes.
    pub memory: ReceiveReservation,
    /// The instant at which its last byte was read, and its deadline.
    pub arrival: Arrival,
    /// Its entry in the access log.
    pub entry: &'a AccessEntry,
    /// Its trace, if it may be traced.
    pub trace: Option<Rc<FrontTrace>>,
    /// The header fields that are forwarded to the model.
    pub forwarded: Option<ForwardedFields>,
    /// True for a text of a stream.
    pub is_streamed: bool,
}

/// A call with its outcome.
pub struct AnsweredText {
    /// The call.
    pub request: TextRequest,
    /// The model that answered it.
    pub served: Arc<ServedModel>,
    /// The outcome.
    pub outcome: TextOutcome,
    /// Its work so far.
    pub times: TextTimes,
}

/// The models of the server, in the forms of OpenAI and KServe V1.
pub fn models_reply(shard: &Shard) -> Reply {
    with_names(shard, |names| text::reply(text::models_json(names)))
}

/// Hands over the names of the models that serve.
pub fn with_names(shard: &Shard, take: impl FnOnce(&[&str]) -> Reply) -> Reply {
    let served = shard.models.served();
    let mut names: Vec<_> = served.iter().map(|served| served.spec.name.as_str()).collect();
    names.dedup();
    take(&names)
}

/// The health of the server, as TEI reports it.
pub fn health_reply(shard: &Shard) -> Reply {
    text::health_reply(shard.is_ready())
}

/// A model of texts, as TEI describes it, or the refusal.
pub fn info_reply(shard: &Shard, named: Option<&str>) -> Reply {
    match info(shard, named) {
        Ok(facts) => text::reply(facts.json()),
        Err(error) => text::error_reply(TextPath::Embed, &error),
    }
}

/// The facts about a model of texts: the one that is named, or the only one. The caller has waited for the named one.
///
/// # Errors
/// `NotFound` if the server has no such model, `InvalidArgument` if there are several or the named one is another kind of model.
pub fn info(shard: &Shard, named: Option<&str>) -> Result<TextModelFacts, Error> {
    let name = match named {
        Some(name) => name.to_owned(),
        None => only_model(shard, "/info", |spec| TextTask::of(spec).is_some())?,
    };
    let model = shard.models.find(&name, None)?;
    let facts = TextModelFacts::new(&model.served().spec, env!("CARGO_PKG_VERSION"));
    facts.ok_or_else(|| not_of_texts(&name))
}

/// The refusal of a model of another kind.
pub fn not_of_texts(name: &str) -> Error {
    Error::invalid(format!("model '{name}' is not a model of texts"))
}

/// Runs a call of one body, and returns its answer.
///
/// # Errors
/// Those of the call, and of its model.
pub async fn answer(shard: &Rc<Shard>, message: TextMessage<'_>) -> Result<Reply, Error> {
    let TextMessage { path, model, body, mut memory, received, entry, trace, forwarded, .. } = message;
    check_size(body.len())?;
    // The texts are copied out of the body, and once more into a tensor.
    memory.grow(body.len().saturating_mul(2))?;
    let request = TextRequest::read(path, &body).inspect_err(|error| tei_metrics::count_unread(shard, error))?;
    drop(body);
    let arrival = Arrival::of_client(received, None, entry.payer());
    let call = TextWork { request, model, memory, arrival, entry, trace, forwarded, is_streamed: false };
    let id = id_of(received);
    let encode = |AnsweredText { request, served, outcome, times }| {
        let mut reply = text::reply(text::encode(&request, &served.spec, &outcome, facts(&id, times))?);
        reply.fields.extend(TextTimes { answered: clock::now(), ..times }.fields());
        Ok(reply)
    };
    run_call(shard, call, encode).await
}

/// The id of the answer to a call that was received at this instant.
pub fn id_of(received: Instant) -> String {
    format!("{:016x}", received.since(Instant::ZERO).as_nanos())
}

/// The facts of an answer besides its outputs.
pub fn facts(id: &str, times: TextTimes) -> AnswerFacts<'_> {
    AnswerFacts { id, created: clock::epoch_millis(clock::now()) / MILLIS_IN_SECOND, tokens: times.tokens }
}

const MILLIS_IN_SECOND: u64 = 1_000;

/// Checks the size of a call.
///
/// # Errors
/// `TooLarge` beyond [`TEXT_BODY_SIZE_MAX`].
pub fn check_size(size: usize) -> Result<(), Error> {
    if size <= TEXT_BODY_SIZE_MAX {
        return Ok(());
    }
    let text = format!("the body has {size} bytes, more than the {TEXT_BODY_SIZE_MAX} allowed here");
    Err(Error::new(Code::TooLarge, text))
}

/// Runs a call on its model, or on the tokenizer of that, and encodes the answer.
///
/// # Errors
/// Those of the call, of the model, of its queue, and of the encoding.
pub async fn run_call<T>(
    shard: &Rc<Shard>,
    call: TextWork<'_>,
    encode: impl FnOnce(AnsweredText) -> Result<T, Error>,
) -> Result<T, Error> {
    let TextWork { request, model, is_streamed, .. } = &call;
    let is_named = model.is_some() || request.model.is_some();
    let count = shard.cells.tei.as_deref().map(|cells| TeiCount::open(cells, request, is_named, *is_streamed));
    let outcome = run_model(shard, call, count.as_ref()).await;
    let Some(mut count) = count else { return encode(outcome?) };
    if let Ok(AnsweredText { served, outcome, times, .. }) = &outcome {
        count.handle_outcome(&served.spec, outcome, *times);
    }
    let answer = outcome.and_then(encode);
    count.settle(&answer);
    answer
}

async fn run_model(shard: &Rc<Shard>, call: TextWork<'_>, count: Option<&TeiCount<'_>>) -> Result<AnsweredText, Error> {
    let TextWork { request: call, model, memory, arrival, entry, trace, forwarded, .. } = call;
    let name = model_name(shard, call.path, model.or(call.model.as_deref()), |spec| call.is_for(spec))?;
    entry.note_asked(&name, None, "");
    shard.models.want(&name, arrival.deadline).await?;
    let (received, characters) = (arrival.received, call.character_count());
    if call.path.is_of_tokenizer() {
        let model = shard.models.find(&name, None)?;
        entry.note_model(&model, "");
        let served = Arc::clone(model.served());
        count.inspect(|count| count.handle_model(&call, &served.spec, false));
        let (own, spec) = (call.clone(), Arc::clone(&served.spec));
        // Tokens take microseconds each, and a body may have a million.
        let outcome =
            Box::pin(shard.server_context.offload(move || text::tokens(&own, &spec, text::tokenizer(&spec)))).await?;
        drop(memory);
        let times = TextTimes { characters, received, ..TextTimes::default() };
        return Ok(AnsweredText { request: call, served, outcome, times });
    }
    let decode = |_: Option<&_>, _: &mut ReceiveReservation| {
        let model = shard.models.find(&name, None)?;
        let spec = &model.served().spec;
        let request = text::request(&call, spec);
        count.inspect(|count| count.handle_model(&call, spec, request.is_ok()));
        let mut request = request?;
        policy::forward(forwarded.as_ref(), spec, &mut request)?;
        entry.note_model(&model, "");
        Ok((model, request))
    };
    let input = PipelineInput { memory, arrival, is_timed: false, trace };
    let output = infer_pipeline::run(shard, input, decode, &mut NoHooks).await?;
    let PipelineOutput { model, outputs, stamps, .. } = output;
    let served = Arc::clone(model.served());
    let spec = &served.spec;
    let times = TextTimes {
        characters,
        tokens: text::token_count(spec, &outputs),
        is_on_gpu: spec.is_on_gpu(),
        has_tokenizer: text::tokenizer(spec).is_some(),
        // A model may answer without an engine that takes the stamps.
        stamps: Some(stamps).filter(|stamps| stamps.infer_end > stamps.received),
        received,
        answered: received,
    };
    Ok(AnsweredText { request: call, served, outcome: TextOutcome::Outputs(outputs), times })
}

/// The model of a call for any task: the one that it names, or the only one of texts.
///
/// # Errors
/// `NotFound` if the server has no such model, `InvalidArgument` if there are several.
pub fn text_model(shard: &Shard, path: TextPath, named: Option<&str>) -> Result<String, Error> {
    model_name(shard, path, named, |spec| TextTask::of(spec).is_some())
}

/// The model of a call: the one that it names, or the only one for its path.
fn model_name(
    shard: &Shard,
    path: TextPath,
    named: Option<&str>,
    fits: impl Fn(&ModelSpec) -> bool,
) -> Result<String, Error> {
    let Some(name) = named else { return only_model(shard, path.name(), fits) };
    // One that is loaded on demand is not there yet.
    if shard.models.has(name) || shard.models.is_wanted(name) {
        return Ok(name.to_owned());
    }
    let names = fitting_models(shard, fits).join(", ");
    Err(Error::not_found(format!("model '{name}' is not found; those for {} are: {names}", path.name())))
}

fn fitting_models(shard: &Shard, fits: impl Fn(&ModelSpec) -> bool) -> Vec<String> {
    let served = shard.models.served();
    let fitting = served.iter().filter(|served| fits(&served.spec));
    let mut names: Vec<_> = fitting.map(|served| served.spec.name.clone()).collect();
    names.dedup();
    names
}

fn only_model(shard: &Shard, path: &str, fits: impl Fn(&ModelSpec) -> bool) -> Result<String, Error> {
    match fitting_models(shard, fits).as_slice() {
        [name] => Ok(name.clone()),
        [] => Err(Error::not_found(format!("no model that is loaded answers {path}"))),
        [first, ..] => Err(Error::invalid(format!(
            "several models answer {path}: name one as \"model\", or in the path, as in /models/{first}{path}"
        ))),
    }
}
