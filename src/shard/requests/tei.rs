//! gRPC of text-embeddings-inference (`tei.v1`): unary calls, and streams whose texts are answered in their order. A failure ends
//! the stream, as there. The metadata `model` names a model where several are loaded.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::budget::ReceiveReservation;
use crate::connection::http2::NextMessage;
use crate::error::{Code, Error};
use crate::limits::STREAM_REQUESTS_MAX;
use crate::metrics::Departure;
use crate::protocol::policy::ForwardedFields;
use crate::protocol::text::{self as protocol_text, RerankTexts, TeiRpc, TextRequest, TextTimes};
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::requests::access::AccessEntry;
use crate::shard::requests::admission::StreamClient;
use crate::shard::requests::http2_link::Http2Link;
use crate::shard::requests::infer::{Arrival, RequestMetrics};
use crate::shard::requests::tei_metrics;
use crate::shard::requests::text::{self, AnsweredText, TextWork};
use crate::shard::requests::tracing::FrontTrace;
use crate::shard::requests::{compression, grpc_call};
use crate::time::Instant;
use crate::wire::http2::StreamId;

/// A unary call.
pub struct TeiCall<'a> {
    /// The RPC.
    pub rpc: TeiRpc,
    /// The message, plain.
    pub message: Bytes,
    /// The receive memory that it takes.
    pub memory: ReceiveReservation,
    /// The client's deadline.
    pub deadline: Option<Instant>,
    /// Its stream.
    pub stream: StreamId,
    /// Its entry in the access log.
    pub entry: &'a AccessEntry,
}

/// A call with a stream of messages, as it began.
pub struct TeiStreamCall {
    /// The RPC.
    pub rpc: TeiRpc,
    /// The client of its messages.
    pub client: StreamClient,
    /// The model that its metadata names.
    pub model: Option<String>,
    /// The client's deadline for the stream.
    pub deadline: Option<Instant>,
    /// The header fields that are forwarded to the model.
    pub forwarded: Option<ForwardedFields>,
}

impl TeiStreamCall {
    /// The call of a stream that begins.
    pub fn new(
        shard: &Shard,
        link: &Http2Link,
        stream: StreamId,
        (rpc, client): (TeiRpc, StreamClient),
        deadline: Option<Instant>,
    ) -> Self {
        let (model, forwarded) = (model(link, stream), grpc_call::forwarded(shard, link, stream));
        Self { rpc, client, model, deadline, forwarded }
    }
}

/// A call that was read.
struct ReadCall {
    rpc: TeiRpc,
    request: TextRequest,
    model: Option<String>,
    memory: ReceiveReservation,
    arrival: Arrival,
    forwarded: Option<ForwardedFields>,
    /// True for a text of a stream.
    is_streamed: bool,
}

/// The model that the metadata of a call names.
pub fn model(link: &Http2Link, stream: StreamId) -> Option<String> {
    let own = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    link.with(|connection| connection.field(stream, "model").map(own))
}

/// Answers a unary call with a framed message.
///
/// # Errors
/// Those of the message, and of the model.
pub async fn answer(
    shard: &Rc<Shard>,
    link: &Http2Link,
    call: TeiCall<'_>,
    departure: &Cell<Departure>,
) -> Result<Bytes, Error> {
    let TeiCall { rpc, message, memory, deadline, stream, entry } = call;
    let model = model(link, stream);
    let forwarded = grpc_call::forwarded(shard, link, stream);
    if rpc == TeiRpc::Info {
        if let Some(name) = &model {
            shard.models.want(name, deadline).await?;
        }
        return text::info(shard, model.as_deref())?.framed();
    }
    let trace = shard.services.traces.open_call(link, stream);
    let request_metrics = RequestMetrics::open(&shard.cells, departure);
    let arrival = Arrival::of_client(clock::now(), deadline, entry.payer());
    let outcome = match read(shard, rpc, &message, memory) {
        Ok((request, memory)) => {
            let call = ReadCall { rpc, request, model, memory, arrival, forwarded, is_streamed: false };
            Box::pin(run(shard, call, entry, trace.clone())).await
        }
        Err(error) => Err(error),
    };
    request_metrics.settle(&outcome);
    if let Some(trace) = &trace {
        shard.services.traces.end_call(trace, "", outcome.as_ref().err());
    }
    outcome
}

/// Answers the messages of a stream.
pub async fn stream(
    shard: Rc<Shard>,
    link: Rc<Http2Link>,
    stream: StreamId,
    call: TeiStreamCall,
    departure: Rc<Cell<Departure>>,
) {
    let outcome = if call.rpc == TeiRpc::Rerank {
        rerank(&shard, &link, stream, call, &departure).await
    } else {
        let requests = VecDeque::new();
        let mut texts =
            TextStream { shard, link: Rc::clone(&link), stream, call, departure, requests, has_ended: false };
        poll_fn(|context| texts.poll(context)).await
    };
    grpc_call::end(&link, stream, outcome.err().as_ref());
}

/// The texts of one stream that are being answered.
struct TextStream {
    shard: Rc<Shard>,
    link: Rc<Http2Link>,
    stream: StreamId,
    call: TeiStreamCall,
    departure: Rc<Cell<Departure>>,
    /// In the order in which they arrived.
    requests: VecDeque<StreamedText>,
    has_ended: bool,
}

/// A text of a stream: its work, and its answer once that is there.
struct StreamedText {
    work: Pin<Box<dyn Future<Output = Result<Bytes, Error>>>>,
    answer: Option<Result<Bytes, Error>>,
}

impl TextStream {
    /// Sends answers in order and takes messages while there is room; ends with the stream or its first failure.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            for request in self.requests.iter_mut().filter(|request| request.answer.is_none()) {
                if let Poll::Ready(answer) = request.work.as_mut().poll(context) {
                    request.answer = Some(answer);
                }
            }
            while self.link.has_room(self.stream)
                && let Some(answer) = self.requests.front_mut().and_then(|request| request.answer.take())
            {
                self.requests.pop_front();
                let answer = answer?;
                self.link.with(|connection| connection.send_message(self.stream, [answer], clock::now()));
            }
            if self.has_ended && self.requests.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if self.has_ended || self.requests.len() >= STREAM_REQUESTS_MAX || !self.link.has_room(self.stream) {
                return Poll::Pending;
            }
            match self.link.take_next(self.stream).map_err(grpc_call::fault_error)? {
                NextMessage::Nothing => return Poll::Pending,
                NextMessage::End => self.has_ended = true,
                NextMessage::Message(message) => {
                    let work = self.begin(message);
                    self.requests.push_back(StreamedText { work: Box::pin(work), answer: None });
                }
            }
        }
    }

    /// The work on a message.
    fn begin(&self, message: Bytes) -> impl Future<Output = Result<Bytes, Error>> + use<> {
        let (coding, mut memory) = (self.link.coding(self.stream), self.link.take_memory(self.stream));
        let (shard, link, stream) = (Rc::clone(&self.shard), Rc::clone(&self.link), self.stream);
        let TeiStreamCall { rpc, model, deadline, forwarded, .. } = &self.call;
        let (rpc, model, deadline, forwarded) = (*rpc, model.clone(), *deadline, forwarded.clone());
        let admitted = self.shard.requests.admission.admit_next(&self.call.client);
        let departure = Rc::clone(&self.departure);
        async move {
            let admission = admitted?;
            let path = || link.with(|connection| connection.path(stream).to_vec());
            let entry = AccessEntry::of_grpc(&shard, path, message.len(), clock::now(), link.peer);
            entry.note_client(&admission);
            let request_metrics = RequestMetrics::open(&shard.cells, &departure);
            let arrival = Arrival::of_client(clock::now(), deadline, entry.payer());
            let outcome = async {
                let message = compression::plain_message(&shard, coding, message, &mut memory).await?;
                let (request, memory) = read(&shard, rpc, &message, memory)?;
                let call = ReadCall { rpc, request, model, memory, arrival, forwarded, is_streamed: true };
                run(&shard, call, &entry, None).await
            };
            let outcome = outcome.await;
            request_metrics.settle(&outcome);
            settle(&entry, &outcome);
            outcome
        }
    }
}

/// Answers a stream of the texts of one query, once all are there.
async fn rerank(
    shard: &Rc<Shard>,
    link: &Http2Link,
    stream: StreamId,
    call: TeiStreamCall,
    departure: &Cell<Departure>,
) -> Result<(), Error> {
    let TeiStreamCall { rpc, client, model, deadline, forwarded } = call;
    let admission = shard.requests.admission.admit_next(&client)?;
    let path = || link.with(|connection| connection.path(stream).to_vec());
    let entry = AccessEntry::of_grpc(shard, path, 0, clock::now(), link.peer);
    entry.note_client(&admission);
    let request_metrics = RequestMetrics::open(&shard.cells, departure);
    let outcome = async {
        let (mut texts, mut memory) = (RerankTexts::default(), None::<ReceiveReservation>);
        while let NextMessage::Message(message) = link.next(stream).await.map_err(grpc_call::fault_error)? {
            let (coding, mut own) = (link.coding(stream), link.take_memory(stream));
            let message = compression::plain_message(shard, coding, message, &mut own).await?;
            texts.push(&message)?;
            text::check_size(texts.size())?;
            match &mut memory {
                Some(memory) => memory.grow(message.len())?,
                None => memory = Some(own),
            }
        }
        let request = texts.call().inspect_err(|error| tei_metrics::count_unread(shard, error))?;
        let memory = memory.ok_or_else(|| Error::invalid("the stream has no message"))?;
        let arrival = Arrival::of_client(clock::now(), deadline, entry.payer());
        let call = ReadCall { rpc, request, model, memory, arrival, forwarded, is_streamed: false };
        run(shard, call, &entry, None).await
    };
    let outcome = Box::pin(outcome).await;
    request_metrics.settle(&outcome);
    settle(&entry, &outcome);
    let answer = outcome?;
    link.with(|connection| connection.send_message(stream, [answer], clock::now()));
    Ok(())
}

/// Reads a message, and takes the memory for the copies of its texts.
fn read(
    shard: &Shard,
    rpc: TeiRpc,
    message: &[u8],
    mut memory: ReceiveReservation,
) -> Result<(TextRequest, ReceiveReservation), Error> {
    text::check_size(message.len())?;
    memory.grow(message.len().saturating_mul(2))?;
    let request = rpc.call(message).inspect_err(|error| tei_metrics::count_unread(shard, error))?;
    Ok((request, memory))
}

/// Runs a call; returns its framed answer.
async fn run(
    shard: &Rc<Shard>,
    call: ReadCall,
    entry: &AccessEntry,
    trace: Option<Rc<FrontTrace>>,
) -> Result<Bytes, Error> {
    let ReadCall { rpc, request, model, memory, arrival, forwarded, is_streamed } = call;
    let call = TextWork { request, model: model.as_deref(), memory, arrival, entry, trace, forwarded, is_streamed };
    let encode = |AnsweredText { request, served, outcome, times }| {
        let times = TextTimes { answered: clock::now(), ..times };
        rpc.answer(&request, &served.spec, &outcome, &times)
    };
    text::run_call(shard, call, encode).await.map_err(|error| {
        let text = protocol_text::shown_text(&error);
        let code = if error.is_overload() { Code::Exhausted } else { error.code() };
        if text.len() == error.text().len() && code == error.code() { error } else { Error::new(code, text.to_owned()) }
    })
}

fn settle(entry: &AccessEntry, outcome: &Result<Bytes, Error>) {
    match outcome {
        Ok(answer) => {
            entry.note_sent(answer.len());
            entry.settle(0);
        }
        Err(error) => entry.settle(error.code().on_wire().1.into()),
    }
}
