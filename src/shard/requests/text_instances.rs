//! Calls of the text interfaces over HTTP, and TEI's path for Vertex AI: a call with several bodies, which run together.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use crate::budget::ReceiveReservation;
use crate::error::Error;
use crate::limits::STREAM_REQUESTS_MAX;
use crate::protocol::text::{self as protocol_text, TextPath, TextTask};
use crate::shard::Shard;
use crate::shard::requests::infer::{Arrival, RequestMetrics};
use crate::shard::requests::tei_metrics;
use crate::shard::requests::text::{self, AnsweredText, TextMessage, TextWork};
use crate::shard::requests::tracing::ShownFailure;
use crate::wire::message::Reply;

/// Runs a call, and returns its answer or its refusal, whose form is that of its path.
pub async fn run(shard: &Rc<Shard>, message: TextMessage<'_>) -> Reply {
    let TextMessage { path, model, ref trace, departure, http_trace, .. } = message;
    let trace = trace.clone();
    let request_metrics = RequestMetrics::open(&shard.cells, departure);
    let outcome = match path {
        TextPath::Vertex => answer(shard, message).await,
        _ => text::answer(shard, message).await,
    };
    request_metrics.settle(&outcome);
    let reply = match outcome {
        Ok(reply) => reply,
        Err(error) => {
            let reply = protocol_text::error_reply(path, &error);
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

/// Runs the bodies of a call, and returns their answers in order or the first refusal.
async fn answer(shard: &Rc<Shard>, message: TextMessage<'_>) -> Result<Reply, Error> {
    let TextMessage { model, body, mut memory, received, entry, trace, forwarded, .. } = message;
    text::check_size(body.len())?;
    memory.grow(body.len().saturating_mul(2))?;
    let named = match model {
        Some(name) => Some(name.to_owned()),
        None => protocol_text::named_model(&body)?,
    };
    let name = text::text_model(shard, TextPath::Vertex, named.as_deref())?;
    let arrival = Arrival::of_client(received, None, entry.payer());
    shard.models.want(&name, arrival.deadline).await?;
    let task = TextTask::of(&shard.models.find(&name, None)?.served().spec).ok_or_else(|| text::not_of_texts(&name))?;
    let calls = protocol_text::instances(&body, task);
    let calls = calls.inspect_err(|error| tei_metrics::count_unread(shard, error))?;
    drop(body);
    let id = text::id_of(received);
    // One request has one trace: that of its first body.
    let mut trace = trace;
    let mut works = calls.into_iter().map(|request| {
        // The memory of the whole call is held until its end.
        let (memory, arrival) = (ReceiveReservation::default(), arrival.clone());
        let (trace, forwarded) = (trace.take(), forwarded.clone());
        let model = Some(name.as_str());
        let call = TextWork { request, model, memory, arrival, entry, trace, forwarded, is_streamed: false };
        let encode = |AnsweredText { request, served, outcome, times }| {
            protocol_text::encode(&request, &served.spec, &outcome, text::facts(&id, times))
        };
        Box::pin(text::run_call(shard, call, encode)) as RunningText<'_>
    });
    let answers = together(&mut works).await?;
    drop(memory);
    Ok(protocol_text::reply(protocol_text::predictions(&answers)))
}

/// A body that runs.
type RunningText<'a> = Pin<Box<dyn Future<Output = TextAnswer> + 'a>>;

/// The JSON of its answer, or its refusal.
type TextAnswer = Result<Vec<u8>, Error>;

/// Runs works together, [`STREAM_REQUESTS_MAX`] at a time as those of a stream; returns their results in order.
async fn together<'a>(works: &mut impl Iterator<Item = RunningText<'a>>) -> Result<Vec<Vec<u8>>, Error> {
    let mut running: VecDeque<(RunningText<'a>, Option<TextAnswer>)> = VecDeque::new();
    let mut answers = Vec::new();
    poll_fn(|context| {
        loop {
            let room = STREAM_REQUESTS_MAX.saturating_sub(running.len());
            running.extend(works.by_ref().take(room).map(|work| (work, None)));
            let before = running.len();
            if before == 0 {
                return Poll::Ready(Ok(()));
            }
            for (work, answer) in running.iter_mut().filter(|(_, answer)| answer.is_none()) {
                if let Poll::Ready(outcome) = work.as_mut().poll(context) {
                    *answer = Some(outcome);
                }
            }
            while let Some(answer) = running.front_mut().and_then(|(_, answer)| answer.take()) {
                running.pop_front();
                answers.push(answer?);
            }
            if running.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await
    .map(|()| answers)
}
