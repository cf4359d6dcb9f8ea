//! gRPC calls on the streams of `h2`: gathers the messages, asks the protocol or a model, and
//! sends the answer with its status (gRPC over HTTP/2). Lives on its shard.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_lite::future;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Response};

use crate::error::{Code, Error};
use crate::metrics::Departure;
use crate::protocol::grpc::encode::Parts;
use crate::protocol::grpc::{self, InferMessage, Rpc, reflection, service, status};
use crate::protocol::route::version_of;
use crate::shard::dispatch::{Account, Arrival};
use crate::shard::http2::{Pace, next_chunk, next_chunk_until, send_parts, unless_reset};
use crate::shard::{Shard, clock, runtime};
use crate::tensor::AlignedBuffer;
use crate::time::Instant;
use crate::wire::grpc::{Gatherer, timeout};

/// How often a health watch looks whether the answer changed.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);
/// The field of `ModelInferRequest` whose payload is put on a boundary: `raw_input_contents`.
const RAW_CONTENTS: u32 = 7;

/// Serves one call to its end.
pub async fn serve(shard: &Rc<Shard>, head: &http::request::Parts, body: RecvStream, respond: SendResponse<Bytes>) {
    let timeout = head.headers.get("grpc-timeout").map(|value| timeout(value.as_bytes()));
    let deadline = timeout.flatten().map(|timeout| clock::now() + timeout);
    let mut call = Call { shard, body, respond, deadline, gatherer: gatherer(shard), rest: Bytes::new(), pace: None };
    let rpc = if head.method == http::Method::POST {
        Rpc::from_path(head.uri.path().as_bytes())
    } else {
        Err(Error::unsupported("gRPC calls are made with POST"))
    };
    let rpc = rpc.and_then(|rpc| match timeout {
        Some(None) => Err(Error::invalid("grpc-timeout is not a number of at most 8 digits and one of H M S m u n")),
        _ => Ok(rpc),
    });
    // A client that has gone, or broke its stream, gets no answer.
    let _ = match rpc {
        Ok(Rpc::ModelInfer) => call.model_infer().await,
        Ok(Rpc::Control(control)) => call.control(control).await,
        Ok(Rpc::ServerReflectionInfo) => call.reflection().await,
        Ok(Rpc::Watch) => call.watch().await,
        Ok(Rpc::Unbuilt(name)) => call.finish(Err(service::unbuilt(name))).await,
        Err(error) => call.finish(Err(error)).await,
    };
}

fn gatherer(shard: &Shard) -> Gatherer<AlignedBuffer> {
    Gatherer::new(shard.world.grpc_message_size_max, RAW_CONTENTS)
}

/// One call on its way.
struct Call<'a> {
    shard: &'a Rc<Shard>,
    body: RecvStream,
    respond: SendResponse<Bytes>,
    deadline: Option<Instant>,
    gatherer: Gatherer<AlignedBuffer>,
    /// What came after the last message.
    rest: Bytes,
    /// How fast the message must come; a stream of messages may rest between them.
    pace: Option<Pace>,
}

/// Why a call ended without its client being told.
struct Gone;

impl From<h2::Error> for Gone {
    fn from(_: h2::Error) -> Self {
        Self
    }
}

impl Call<'_> {
    async fn model_infer(&mut self) -> Result<(), Gone> {
        let message = match self.only_message().await? {
            Ok(message) => message,
            Err(error) => return self.finish(Err(error)).await,
        };
        let departure = Cell::new(Departure::CallCancelled);
        let account = Account::open(&self.shard.cells, &departure);
        let work = infer(self.shard, message, self.deadline);
        let Some(outcome) = unless_reset(&mut self.respond, work, &departure).await else {
            return Err(Gone);
        };
        account.settle(&outcome);
        self.finish(outcome).await
    }

    async fn control(&mut self, control: service::Control) -> Result<(), Gone> {
        let answer = self.only_message().await?.and_then(|message| service::answer(control, &message, &**self.shard));
        self.finish(answer.map(|answer| [answer].into_iter().collect())).await
    }

    async fn reflection(&mut self) -> Result<(), Gone> {
        let mut stream = self.respond.send_response(head(), false)?;
        let outcome = loop {
            match self.next_message().await? {
                Ok(None) => break Ok(()),
                Ok(Some(message)) => match reflection::answer(&message) {
                    Ok(answer) => {
                        room(&mut stream).await?;
                        stream.send_data(answer, false)?;
                    }
                    Err(error) => break Err(error),
                },
                Err(error) => break Err(error),
            }
        };
        stream.send_trailers(trailers(outcome.as_ref().err()))?;
        Ok(())
    }

    /// Tells the server's health now and whenever it changes, until the client leaves or the
    /// server ends.
    async fn watch(&mut self) -> Result<(), Gone> {
        if let Err(error) = self.only_message().await? {
            return self.finish(Err(error)).await;
        }
        let mut stream = self.respond.send_response(head(), false)?;
        let mut told = None;
        loop {
            let is_ready = self.shard.world.is_ready();
            if told.replace(is_ready) != Some(is_ready) {
                match service::health(is_ready) {
                    Ok(answer) => stream.send_data(answer, false)?,
                    Err(error) => return Ok(stream.send_trailers(trailers(Some(&error)))?),
                }
            }
            if self.shard.connections.is_draining() {
                return Ok(stream.send_trailers(trailers(None))?);
            }
            let reset = poll_fn(|context| stream.poll_reset(context));
            // It fails where the connection broke: then the client has gone too.
            let is_gone = future::or(
                async {
                    let _ = reset.await;
                    true
                },
                async {
                    runtime::sleep(WATCH_INTERVAL).await;
                    false
                },
            );
            if is_gone.await {
                return Err(Gone);
            }
        }
    }

    /// The one message of a unary call.
    async fn only_message(&mut self) -> Result<Result<Bytes, Error>, Gone> {
        self.pace = Some(Pace::new(clock::now()));
        let message = match self.next_message().await? {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(Err(Error::internal("a unary call has one message, and none came"))),
            Err(error) => return Ok(Err(error)),
        };
        Ok(match self.next_message().await? {
            Ok(None) => Ok(message),
            Ok(Some(_)) => Err(Error::internal("a unary call has one message, and more came")),
            Err(error) => Err(error),
        })
    }

    async fn next_message(&mut self) -> Result<Result<Option<Bytes>, Error>, Gone> {
        loop {
            if !self.rest.is_empty() {
                match self.gatherer.handle_chunk(&mut self.rest) {
                    Ok(None) => {}
                    Ok(message) => return Ok(Ok(message)),
                    Err(error) => return Ok(Err(error.into())),
                }
                continue;
            }
            match self.next_chunk_in_time().await? {
                Ok(Some(chunk)) => self.rest = chunk,
                Ok(None) if self.gatherer.is_within_message() => return Ok(Err(status::truncated())),
                Ok(None) => return Ok(Ok(None)),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn next_chunk_in_time(&mut self) -> Result<Result<Option<Bytes>, Error>, Gone> {
        let due = self.deadline.into_iter().chain(self.pace.as_ref().map(Pace::due)).min();
        let Some(due) = due else { return Ok(Ok(next_chunk(&mut self.body).await?)) };
        let Some(chunk) = next_chunk_until(&mut self.body, due).await else {
            let is_deadline = self.deadline == Some(due);
            let text = if is_deadline { "Deadline Exceeded" } else { "the request did not arrive in time" };
            return Ok(Err(Error::new(Code::DeadlineExceeded, text)));
        };
        let chunk = chunk?;
        if let (Some(pace), Some(chunk)) = (&mut self.pace, &chunk) {
            pace.handle_chunk(chunk.len(), clock::now());
        }
        Ok(Ok(chunk))
    }

    async fn finish(&mut self, outcome: Result<Parts, Error>) -> Result<(), Gone> {
        match outcome {
            Ok(parts) => {
                let mut stream = self.respond.send_response(head(), false)?;
                send_parts(&mut stream, &parts, false).await?;
                stream.send_trailers(trailers(None))?;
            }
            Err(error) => {
                // Trailers-Only: the status in the head, and nothing after it.
                let mut response = head();
                response.headers_mut().extend(trailers(Some(&error)));
                if error.code() == Code::Unsupported {
                    // What a client that compresses needs to know (gRPC over HTTP/2, "Compression").
                    response.headers_mut().insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
                }
                self.respond.send_response(response, true)?;
            }
        }
        Ok(())
    }
}

async fn infer(shard: &Rc<Shard>, message: Bytes, deadline: Option<Instant>) -> Result<Parts, Error> {
    let received = clock::now();
    let request = InferMessage::read(&message).map_err(|_| Error::internal("Unable to parse request"))?;
    let version = version_of(request.model_version)?;
    let model = Rc::clone(shard.models.find(request.model_name, version)?);
    let served = model.served();
    let request = grpc::decode::decode(&served.spec, &request)?;
    let arrival = Arrival { received, deadline };
    let (outputs, plan) = shard.infer(&model, request, arrival).await?;
    grpc::encode(&served.spec, served.version, &plan, outputs)
}

/// Waits until the client's windows have room for what was sent before: what has none is kept in
/// memory, and a client that asks on without reading would fill it.
async fn room(stream: &mut SendStream<Bytes>) -> Result<(), Gone> {
    stream.reserve_capacity(1);
    while stream.capacity() == 0 {
        match poll_fn(|context| stream.poll_capacity(context)).await {
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Err(Gone),
        }
    }
    Ok(())
}

fn head() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn trailers(error: Option<&Error>) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    let Some(error) = error else {
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        return trailers;
    };
    let (status, text) = status::trailers(error);
    trailers.insert("grpc-status", HeaderValue::from(u16::from(status)));
    if let Ok(text) = HeaderValue::from_str(&text)
        && !text.is_empty()
    {
        trailers.insert("grpc-message", text);
    }
    trailers
}
