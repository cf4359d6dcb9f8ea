//! The other side: the process with an engine. It loads the model of one order, makes an instance,
//! and runs one batch after the other, until the server's end of the socket is gone.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam_queue::SegQueue;

use crate::isolation::engine_process::too_large;
use crate::isolation::message::{
    ClaimedRequest, EngineOrder, RegionMessage, answer_parts, decode_batch, encode_answers, encode_outcome, span,
};
use crate::isolation::run_limit;
use crate::isolation::socket::{EngineFrame, EngineSocket};
use crate::python::message::{MessageError, Span};
use crate::python::region::{ReleasedSlots, RequestRegion, ResponseRegion, TensorPolicy, take_tensor};
use backend::{
    Answer, AnswerSink, Batch, Instance, LoadedModel, Request, Responder, Threads, Ticket, answering_myself,
    run_to_end, threads,
};
use base::crash::{self, RunLabel};
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};
use base::time::{Clock, Stamps};

/// Serves one server. `load` loads a model, from its opened file if there is one.
///
/// # Errors
/// If the server is gone, or sends an invalid message.
pub fn serve(
    socket: EngineSocket,
    clock: Clock,
    load: impl FnOnce(&EngineOrder, Option<OwnedFd>) -> Result<Box<dyn LoadedModel>, Error>,
) -> io::Result<()> {
    let (EngineFrame::Load(size), files) = socket.receive(None)? else { return Err(unexpected()) };
    let mut files = files.into_iter();
    let (Some(requests), Some(responses)) = (files.next(), files.next()) else { return Err(unexpected()) };
    let (requests, responses) = (ResponseRegion::of_server(requests)?, RequestRegion::of_server(responses)?);
    let order = requests.copy_out(&span(0, size), 0, size).and_then(|order| EngineOrder::decode(&order));
    let order = order.map_err(io::Error::other)?;
    let model = load(&order, files.next());
    let version = order.directory.file_name().and_then(|name| name.to_str()?.parse().ok());
    let (run_memory_max, model_name) = (order.run_memory_max, order.model);
    let mut worker = EngineWorker { socket, clock, requests, responses, run_memory_max, model_name, version };
    worker.reply_outcome(model.as_ref().map(drop))?;
    let Ok(model) = model else { return Ok(()) };
    let mut next = worker.socket.receive(None)?.0;
    while let EngineFrame::Instance(count) = next {
        let count = usize::try_from(count).unwrap_or(1);
        next = threads::enter(count, |threads| worker.run_instance(&*model, threads))?;
    }
    Err(unexpected())
}

/// The state that the process shares with the server.
struct EngineWorker {
    socket: EngineSocket,
    clock: Clock,
    /// The region that the server writes.
    requests: Arc<ResponseRegion>,
    /// The region that the server reads.
    responses: RequestRegion,
    /// The maximum bytes of a run, and of the responses to a batch.
    run_memory_max: u64,
    /// Of its model, for the line of a crash.
    model_name: String,
    /// Of its model, where its directory says it.
    version: Option<u64>,
}

impl EngineWorker {
    /// Makes an instance and runs batches, until another kind of order comes.
    fn run_instance(&mut self, model: &dyn LoadedModel, threads: &Threads) -> io::Result<EngineFrame> {
        run_limit::lift();
        let made = model.new_instance(threads);
        self.reply_outcome(made.as_ref().map(drop))?;
        let Ok(mut instance) = made else { return Ok(self.socket.receive(None)?.0) };
        run_limit::set(self.run_memory_max);
        loop {
            match self.socket.receive(None)? {
                (EngineFrame::Run(size), _) => self.run_batch(&mut *instance, size)?,
                (EngineFrame::Requests, files) => {
                    let file = files.into_iter().next().ok_or_else(unexpected)?;
                    self.requests = ResponseRegion::of_server(file)?;
                }
                (frame, _) => return Ok(frame),
            }
        }
    }

    fn run_batch(&mut self, instance: &mut dyn Instance, size: u64) -> io::Result<()> {
        let began = (self.clock)();
        let sink = Arc::new(AnswerCollector::default());
        let requests = self.take_requests(size, &sink).map_err(io::Error::other)?;
        let count = requests.len();
        let rows = requests.iter().fold(0_u32, |sum, request| sum.saturating_add(request.rows));
        let batch = Batch { requests, rows, clock: self.clock, ended: Vec::new() };
        let label = RunLabel { model: &self.model_name, version: self.version, instance: "" };
        // The server knows the ids.
        let note = crash::note(label, std::iter::empty());
        answering_myself(|| run_to_end(instance, batch));
        drop(note);
        let mut answers = sink.take();
        if answers.len() != count {
            return Err(io::Error::other("a request was not answered once"));
        }
        for outputs in answers.iter_mut().map(|answer| &mut answer.outputs) {
            if let Err(error) = outputs {
                *error = run_limit::explain(error.clone(), &self.model_name, self.run_memory_max);
            }
        }
        let mut message = encode_answers(&answers, began).map_err(io::Error::other)?;
        if message.size() > self.run_memory_max {
            let error = too_large("outputs", message.size(), self.run_memory_max);
            for answer in answers.iter_mut().filter(|answer| answer.outputs.is_ok()) {
                answer.outputs = Err(error.clone());
            }
            message = encode_answers(&answers, began).map_err(io::Error::other)?;
        }
        self.reply(&message, answer_parts(&answers))
    }

    fn take_requests(&self, size: u64, sink: &Arc<AnswerCollector>) -> Result<Vec<Request>, MessageError> {
        let head = self.requests.copy_out(&span(0, size), 0, size)?;
        let behind = span(size, 0).offset;
        let end = self.requests.size() as u64;
        let span = span(size, end.checked_sub(behind).ok_or(MessageError::Range)?);
        let claims = decode_batch(&head)?;
        let rows = claims.iter().fold(0_u32, |sum, claim| sum.saturating_add(claim.rows));
        (0..)
            .zip(&claims)
            .map(|(index, claim)| {
                let ticket = Ticket { index, generation: 0 };
                let mut responder = Responder::new(Arc::clone(sink) as Arc<dyn AnswerSink>, ticket, Stamps::default());
                responder.set_batch(rows, index == 0);
                let inputs = self.take_inputs(&span, claim)?;
                Ok(Request { inputs, rows: claim.rows, responder, sequence: None, details: None })
            })
            .collect()
    }

    /// The inputs of a request. Large ones stay in the region, which the server leaves alone until it has the reply.
    fn take_inputs(&self, span: &Span, claim: &ClaimedRequest) -> Result<Vec<Tensor>, MessageError> {
        let released = Arc::new(ReleasedSlots::default());
        let take = |input: &Option<_>| match input {
            Some(claim) => {
                let lease = released.lease(span);
                take_tensor(&self.requests, span, &lease, claim, TensorPolicy::View).map(|(tensor, _)| tensor)
            }
            None => Ok(Tensor { datatype: Datatype::Bytes, shape: Shape::new(), contents: bytes::Bytes::new() }),
        };
        claim.inputs.iter().map(take).collect()
    }

    fn reply_outcome(&mut self, outcome: Result<(), &Error>) -> io::Result<()> {
        let head = encode_outcome(outcome);
        let span = span(head.len() as u64, 0);
        self.reply(&RegionMessage { head, span }, std::iter::empty())
    }

    /// Writes a reply and announces it; asks for a larger region first if it needs one.
    fn reply<'a>(&mut self, message: &RegionMessage, parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        if message.size() > self.responses.size() as u64 {
            self.socket.send(EngineFrame::Room(message.size()), &[])?;
            let (EngineFrame::Responses, files) = self.socket.receive(None)? else { return Err(unexpected()) };
            self.responses = RequestRegion::of_server(files.into_iter().next().ok_or_else(unexpected)?)?;
        }
        let written = self.responses.write(0, &message.head);
        written.and_then(|()| self.responses.write_parts(&message.span, parts)).map_err(io::Error::other)?;
        self.socket.send(EngineFrame::Done(message.head.len() as u64), &[])
    }
}

fn unexpected() -> io::Error {
    io::Error::other("the server sent what it does not send")
}

/// Collects the answers to a batch.
#[derive(Default)]
struct AnswerCollector {
    answers: SegQueue<(Ticket, Answer)>,
}

impl AnswerCollector {
    /// All answers, in the order of the requests.
    fn take(&self) -> Vec<Answer> {
        let mut answers: Vec<_> = std::iter::from_fn(|| self.answers.pop()).collect();
        answers.sort_by_key(|(ticket, _)| ticket.index);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

impl AnswerSink for AnswerCollector {
    fn push(&self, ticket: Ticket, answer: Answer) {
        self.answers.push((ticket, answer));
    }

    /// No thread sleeps here: the batch has ended when the answers are read.
    fn wake(&self) {}
}
