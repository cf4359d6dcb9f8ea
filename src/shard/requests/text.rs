//! The interfaces of text models (`protocol::text`) over HTTP/1.1 and HTTP/2: a call finds its model, runs as an inference
//! request, and is answered in the form of its path.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;

use crate::budget::ReceiveReservation;
use crate::error::{Code, Error};
use crate::metrics::Departure;
use crate::model::ModelSpec;
use crate::protocol::limits::TEXT_BODY_SIZE_MAX;
use crate::protocol::policy::{self, ForwardedFields};
use crate::protocol::text::{self, AnswerFacts, TextPath, TextRequest, TextTask};
use crate::shard::Shard;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::infer::{Arrival, RequestMetrics};
use crate::shard::requests::infer_pipeline::{self, NoHooks, PipelineInput, PipelineOutput};
use crate::shard::requests::tracing::{FrontTrace, HttpTrace, ShownFailure};
use crate::tensor::{Datatype, Tensor};
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

/// Runs a call, and returns its answer or its refusal, whose form is that of its path.
pub async fn run(shard: &Rc<Shard>, message: TextMessage<'_>) -> Reply {
    let TextMessage { path, model, ref trace, departure, http_trace, .. } = message;
    let trace = trace.clone();
    let request_metrics = RequestMetrics::open(&shard.cells, departure);
    let outcome = infer(shard, message).await;
    request_metrics.settle(&outcome);
    let reply = match outcome {
        Ok(json) => text::reply(json),
        Err(error) => {
            let reply = text::error_reply(path, &error);
            if let Some(trace) = &trace {
                let failure = ShownFailure { code: reply.status, text: error.text() };
                shard.services.traces.fail(trace, model.unwrap_or_default(), failure);
            }
            reply
        }
    };
    if trace.is_some() {
        http_trace.handle_sending(trace);
    }
    reply
}

/// The models of the server, in the form of OpenAI.
pub fn models_reply(shard: &Shard) -> Reply {
    let served = shard.models.served();
    let mut names: Vec<_> = served.iter().map(|served| served.spec.name.as_str()).collect();
    names.dedup();
    text::reply(text::models_json(names.into_iter()))
}

async fn infer(shard: &Rc<Shard>, message: TextMessage<'_>) -> Result<Vec<u8>, Error> {
    let TextMessage { path, model, body, mut memory, received, entry, trace, forwarded, .. } = message;
    if body.len() > TEXT_BODY_SIZE_MAX {
        let (size, most) = (body.len(), TEXT_BODY_SIZE_MAX);
        return Err(Error::new(
            Code::TooLarge,
            format!("the body has {size} bytes, more than the {most} allowed here"),
        ));
    }
    // The texts are copied out of the body, and once more into a tensor.
    memory.grow(body.len().saturating_mul(2))?;
    let call = TextRequest::read(path, &body)?;
    let name = model_name(shard, &call, model.or(call.model.as_deref()))?;
    entry.note_asked(&name, None, "");
    shard.models.want(&name, None).await?;
    let decode = |_: Option<&_>, _: &mut ReceiveReservation| {
        let model = shard.models.find(&name, None)?;
        let spec = &model.served().spec;
        let mut request = text::request(&call, spec)?;
        policy::forward(forwarded.as_ref(), spec, &mut request)?;
        entry.note_model(&model, "");
        Ok((model, request))
    };
    let input = PipelineInput { memory, arrival: Arrival::of_client(received, None), is_timed: false, trace };
    let PipelineOutput { model, outputs, .. } = infer_pipeline::run(shard, input, decode, &mut NoHooks).await?;
    let spec = &model.served().spec;
    let id = format!("{:016x}", received.since(Instant::ZERO).as_nanos());
    text::encode(&call, spec, &outputs, AnswerFacts { id: &id, tokens: token_count(spec, &outputs) })
}

/// The model of a call: the one that it names, or the only one for its path.
fn model_name(shard: &Shard, call: &TextRequest, named: Option<&str>) -> Result<String, Error> {
    let path = call.path;
    let fitting = || {
        let served = shard.models.served();
        let mut names: Vec<_> = served
            .iter()
            .filter(|served| TextTask::of(&served.spec).is_some_and(|task| call.is_for(task)))
            .map(|served| served.spec.name.clone())
            .collect();
        names.dedup();
        names
    };
    if let Some(name) = named {
        // One that is loaded on demand is not there yet.
        if shard.models.has(name) || shard.models.is_wanted(name) {
            return Ok(name.to_owned());
        }
        let names = fitting().join(", ");
        return Err(Error::not_found(format!("model '{name}' is not found; those for {} are: {names}", path.name())));
    }
    match fitting().as_slice() {
        [name] => Ok(name.clone()),
        [] => Err(Error::not_found(format!("no model that is loaded answers {}", path.name()))),
        names => Err(Error::invalid(format!(
            "several models answer {}: name one as \"model\", or in the path, as in /models/{}{}",
            path.name(),
            names.first().map_or("", String::as_str),
            path.name()
        ))),
    }
}

/// The tokens of the texts, if the model counts them in the output `token_count`.
fn token_count(spec: &ModelSpec, outputs: &[Tensor]) -> Option<u64> {
    let tensor = outputs.get(spec.output_index("token_count")?)?;
    match tensor.datatype {
        Datatype::Int64 => {
            Some(tensor.contents.as_chunks().0.iter().map(|count| i64::from_le_bytes(*count).unsigned_abs()).sum())
        }
        Datatype::Int32 => {
            let counts = tensor.contents.as_chunks().0.iter();
            Some(counts.map(|count| u64::from(i32::from_le_bytes(*count).unsigned_abs())).sum())
        }
        _ => None,
    }
}
