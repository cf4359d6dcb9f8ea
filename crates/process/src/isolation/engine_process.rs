//! One process with an engine, as the server sees it: sends orders, and waits for the reply or the
//! end.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::isolation::message::{
    ClaimedAnswer, RegionMessage, batch_parts, decode_answers, decode_outcome, encode_batch, span,
};
use crate::isolation::socket::{EngineFrame, EngineSocket, SocketState};
use crate::limits::{ENGINE_REGION_KEPT, ENGINE_REGION_SIZE};
use crate::python::ProcessCommand;
use crate::python::ProcessProgram;
use crate::python::exit::ExitReason;
use crate::python::host::PythonHost;
use crate::python::message::{ClaimedTensor, MessageError, Span};
use crate::python::process::PythonProcess;
use crate::python::region::{ReleasedSlots, RequestRegion, ResponseRegion, TensorPolicy, take_tensor};
use backend::Request;
use base::error::{Code, Error};
use base::metrics::Gauge;
use base::tensor::Tensor;
use model::ModelSpec;

/// The time to wait for the end of a process, to report its reason.
const END_WAIT: Duration = Duration::from_secs(1);

/// A process that has loaded a model, and the memory that it shares with the server.
pub(super) struct EngineProcess {
    process: Arc<PythonProcess>,
    socket: EngineSocket,
    requests: RequestRegion,
    responses: Arc<ResponseRegion>,
    /// Tensors are copied out of the region, so that no slot is ever in use for long.
    released: Arc<ReleasedSlots>,
    /// The maximum bytes of a region.
    region_max: u64,
    /// True if it has answered a batch.
    pub(super) has_answered: bool,
}

/// The reason why a process did not carry out an order.
#[derive(Debug)]
pub(super) enum EngineFailure {
    /// It has ended, or is no longer usable and was killed.
    Lost(String),
    /// It goes on; only this order is refused.
    Refused(Error),
}

/// The answer to one request.
pub(super) struct EngineAnswer {
    pub(super) batch_rows: u32,
    pub(super) is_first: bool,
    /// Since the process began with the batch.
    pub(super) input_end: Duration,
    pub(super) infer_end: Duration,
    pub(super) outputs: Result<Vec<Tensor>, Error>,
}

/// The process that is started for a model.
pub(super) struct EngineCommand<'a> {
    /// The name of the instance, for the log.
    pub(super) name: &'a str,
    /// The command of the server's own program.
    pub(super) command: &'static str,
    /// The gauge of the memory of the model's processes.
    pub(super) memory: &'a Arc<Gauge>,
}

/// An order to load a model.
pub(super) struct EncodedOrder<'a> {
    /// The encoding of an `EngineOrder`.
    pub(super) bytes: &'a [u8],
    /// The model's file, if the process gets it open.
    pub(super) file: Option<&'a OwnedFd>,
}

/// A process that has no order yet, with its ends of what it shares with the server.
struct NewEngine {
    process: PythonProcess,
    socket: EngineSocket,
    requests: RequestRegion,
    responses: Arc<ResponseRegion>,
}

impl EngineProcess {
    /// Starts a process on an encoded order. `timeout` is for the load.
    pub(super) fn start(
        host: &PythonHost,
        command: &EngineCommand<'_>,
        order: &EncodedOrder<'_>,
        timeout: Option<Duration>,
        region_max: u64,
    ) -> Result<Self, EngineFailure> {
        let EngineCommand { name, command, memory } = *command;
        let refused = |error: io::Error| {
            EngineFailure::Refused(Error::unavailable(format!("the process of a model cannot be started: {error}")))
        };
        let (socket, end) = EngineSocket::pair().map_err(refused)?;
        let program = ProcessProgram::Own { command, threads: None };
        let process = host.spawn(ProcessCommand {
            name: name.to_owned(),
            program,
            main: end,
            cores: Vec::new(),
            memory: Arc::clone(memory),
        });
        let process = process.map_err(EngineFailure::Refused)?;
        let size = region_size(order.bytes.len() as u64);
        let regions =
            RequestRegion::new(size).and_then(|region| Ok((region, ResponseRegion::new(ENGINE_REGION_SIZE)?)));
        let (requests, responses) = regions.map_err(refused)?;
        Self::load(NewEngine { process, socket, requests, responses }, order, timeout, region_max)
    }

    /// Sends a new process its order.
    fn load(
        engine: NewEngine,
        order: &EncodedOrder<'_>,
        timeout: Option<Duration>,
        region_max: u64,
    ) -> Result<Self, EngineFailure> {
        let NewEngine { process, socket, mut requests, responses } = engine;
        let EncodedOrder { bytes: order, file } = *order;
        let written = requests.write(0, order);
        written.map_err(|error| EngineFailure::Refused(Error::internal(error.to_string())))?;
        let (process, released) = (Arc::new(process), Arc::default());
        let mut started = Self { process, socket, requests, responses, released, region_max, has_answered: false };
        let files = [Some(started.requests.fd()), Some(started.responses.fd()), file.map(AsFd::as_fd)];
        let files: Vec<BorrowedFd<'_>> = files.into_iter().flatten().collect();
        let sent = started.socket.send(EngineFrame::Load(order.len() as u64), &files);
        sent.map_err(|error| started.lost(&error, timeout))?;
        started.wait_outcome(timeout)?;
        Ok(started)
    }

    /// Has it make an instance, which replaces its current one.
    pub(super) fn make_instance(&mut self, threads: usize, timeout: Option<Duration>) -> Result<(), EngineFailure> {
        let sent = self.socket.send(EngineFrame::Instance(threads as u64), &[]);
        sent.map_err(|error| self.lost(&error, timeout))?;
        self.wait_outcome(timeout)
    }

    /// Has it run a batch, and returns the answers in the order of the requests.
    pub(super) fn run(
        &mut self,
        spec: &ModelSpec,
        requests: &[Request],
        timeout: Option<Duration>,
    ) -> Result<Vec<EngineAnswer>, EngineFailure> {
        let refused = |error: MessageError| EngineFailure::Refused(Error::internal(error.to_string()));
        let message = encode_batch(requests).map_err(refused)?;
        self.ensure_room(&message, timeout)?;
        let RegionMessage { head, span: parts } = &message;
        let written = self.requests.write(0, head);
        written.and_then(|()| self.requests.write_parts(parts, batch_parts(requests))).map_err(refused)?;
        let sent = self.socket.send(EngineFrame::Run(head.len() as u64), &[]);
        sent.map_err(|error| self.lost(&error, timeout))?;
        let size = self.wait_done(timeout)?;
        let answers = self.take_answers(spec, size, requests.len());
        let answers = answers.map_err(|error| self.break_off(&format!("sent an invalid message: {error}")))?;
        self.has_answered = true;
        self.give_back(message.size());
        Ok(answers)
    }

    /// Makes the next instance compute on these cores.
    pub(super) fn set_cores(&self, cores: &[usize]) {
        self.process.set_cores(cores);
    }

    /// The reason why it has ended; `None` while it runs. Does not wait.
    pub(super) fn has_ended(&self) -> Option<ExitReason> {
        self.process.has_ended()
    }

    /// Why it is lost between two batches; `None` while it can run another. A process that lives but has closed its
    /// socket is of no use, and its socket stays readable: a thread could not sleep on it.
    pub(super) fn poll_lost(&self) -> Option<String> {
        let ended = |reason: ExitReason| format!("its process ended ({reason})");
        if let Some(reason) = self.has_ended() {
            return Some(ended(reason));
        }
        let why = match self.socket.peek() {
            SocketState::Silent => return None,
            SocketState::Closed => "its process closed its socket and is killed",
            SocketState::Readable => "its process sent an unexpected message and is killed",
        };
        // One that ends closes its socket first, and its own reason is worth a moment.
        Some(self.process.wait_ended(END_WAIT).map_or_else(|| why.to_owned(), ended))
    }

    /// Readable when the process has ended, between batches.
    pub(super) const fn event_source(&self) -> &Arc<OwnedFd> {
        self.socket.file()
    }

    /// The process, to end it from another thread.
    pub(super) fn process(&self) -> Arc<PythonProcess> {
        Arc::clone(&self.process)
    }

    /// Ends it.
    pub(super) fn kill(&self) {
        self.process.kill();
    }

    fn ensure_room(&mut self, message: &RegionMessage, timeout: Option<Duration>) -> Result<(), EngineFailure> {
        let size = message.size();
        if size <= self.requests.size() as u64 {
            return Ok(());
        }
        if size > self.region_max {
            return Err(EngineFailure::Refused(too_large("inputs", size, self.region_max)));
        }
        let region = RequestRegion::new(region_size(size)).map_err(|error| no_memory(size, &error))?;
        let sent = self.socket.send(EngineFrame::Requests, &[region.fd()]);
        sent.map_err(|error| self.lost(&error, timeout))?;
        self.requests = region;
        Ok(())
    }

    fn wait_outcome(&mut self, timeout: Option<Duration>) -> Result<(), EngineFailure> {
        let size = self.wait_done(timeout)?;
        let head = self.responses.copy_out(&span(0, size), 0, size);
        match head.and_then(|head| decode_outcome(&head)) {
            Ok(outcome) => outcome.map_err(EngineFailure::Refused),
            Err(error) => Err(self.break_off(&format!("sent an invalid message: {error}"))),
        }
    }

    /// Waits until the process has carried out the order; returns the size of its reply.
    fn wait_done(&mut self, timeout: Option<Duration>) -> Result<u64, EngineFailure> {
        loop {
            match self.socket.receive(timeout).map(|(frame, _)| frame) {
                Ok(EngineFrame::Done(size)) => return Ok(size),
                Ok(EngineFrame::Room(size)) if size <= self.region_max => {
                    let region = ResponseRegion::new(region_size(size));
                    self.responses = region.map_err(|error| self.break_off(&no_memory_text(size, &error)))?;
                    let sent = self.socket.send(EngineFrame::Responses, &[self.responses.fd()]);
                    sent.map_err(|error| self.lost(&error, timeout))?;
                }
                Ok(frame) => return Err(self.break_off(&format!("sent an invalid message: {frame:?}"))),
                Err(error) => return Err(self.lost(&error, timeout)),
            }
        }
    }

    fn take_answers(&self, spec: &ModelSpec, size: u64, requests: usize) -> Result<Vec<EngineAnswer>, MessageError> {
        let head = self.responses.copy_out(&span(0, size), 0, size)?;
        let end = self.responses.size() as u64;
        let behind = span(size, 0).offset;
        let span = span(size, end.checked_sub(behind).ok_or(MessageError::Range)?);
        let answers = decode_answers(&head, requests)?;
        answers.into_iter().map(|answer| self.take_answer(spec, &span, answer)).collect()
    }

    fn take_answer(&self, spec: &ModelSpec, span: &Span, claim: ClaimedAnswer) -> Result<EngineAnswer, MessageError> {
        let ClaimedAnswer { batch_rows, is_first, input_end, infer_end, outputs } = claim;
        let take = |output: &ClaimedTensor| {
            let lease = self.released.lease(&Span::default());
            take_tensor(&self.responses, span, &lease, output, TensorPolicy::Copy).map(|(tensor, _)| tensor)
        };
        let outputs = match outputs {
            // The process has checked its engine's results; an engine may have overwritten them.
            Ok(outputs) if !is_of(spec, &outputs) => return Err(MessageError::Value("an output")),
            Ok(outputs) => Ok(outputs.iter().map(take).collect::<Result<_, _>>()?),
            Err(error) => Err(error),
        };
        let (input_end, infer_end) = (Duration::from_nanos(input_end), Duration::from_nanos(infer_end));
        Ok(EngineAnswer { batch_rows, is_first, input_end, infer_end, outputs })
    }

    /// Gives memory back that only large batches need.
    fn give_back(&self, requests_size: u64) {
        // If the system refuses, the memory stays as it is.
        if requests_size > ENGINE_REGION_KEPT {
            let _ = self.requests.punch(ENGINE_REGION_KEPT..self.requests.size() as u64);
        }
        if self.responses.size() as u64 > ENGINE_REGION_KEPT {
            let _ = self.responses.punch(ENGINE_REGION_KEPT..self.responses.size() as u64);
        }
    }

    /// The process is gone, or does not answer.
    fn lost(&self, error: &io::Error, timeout: Option<Duration>) -> EngineFailure {
        if error.kind() == io::ErrorKind::TimedOut {
            let timeout = timeout.unwrap_or_default();
            return self.break_off(&format!("took longer than {timeout:?} (--load-timeout-secs)"));
        }
        // It closes its socket before it ends, and its own reason is worth a moment.
        let own_reason = self.process.wait_ended(END_WAIT);
        self.kill();
        let reason = own_reason.or_else(|| self.process.wait_ended(END_WAIT)).unwrap_or(ExitReason::Unknown);
        EngineFailure::Lost(format!("ended ({reason})"))
    }

    fn break_off(&self, why: &str) -> EngineFailure {
        self.kill();
        EngineFailure::Lost(format!("{why} and was killed"))
    }
}

/// Returns true if outputs are as many as the model's, of its datatypes.
fn is_of(spec: &ModelSpec, outputs: &[ClaimedTensor]) -> bool {
    let mut pairs = outputs.iter().zip(&spec.outputs);
    outputs.len() == spec.outputs.len() && pairs.all(|(output, expected)| output.datatype == expected.datatype)
}

/// Returns the bytes of a region with room for `size`. Only used pages take memory.
fn region_size(size: u64) -> usize {
    usize::try_from(size).ok().and_then(usize::checked_next_power_of_two).unwrap_or(usize::MAX).max(ENGINE_REGION_SIZE)
}

/// The error of a batch that is larger than a region may be.
pub(super) fn too_large(what: impl fmt::Display, size: u64, size_max: u64) -> Error {
    Error::new(
        Code::Exhausted,
        format!(
            "the {what} of a batch take {size} bytes of the memory that the server shares with the process of the \
             model, at most {size_max} (--run-memory-bytes-max)"
        ),
    )
}

fn no_memory(size: u64, error: &io::Error) -> EngineFailure {
    EngineFailure::Refused(Error::unavailable(no_memory_text(size, error)))
}

fn no_memory_text(size: u64, error: &io::Error) -> String {
    format!("could not get {size} bytes of shared memory: {error}")
}

#[cfg(test)]
mod tests;
