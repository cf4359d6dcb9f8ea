//! A process with a backend: it opens the library and loads the model that the server names, and
//! then runs one batch after the other, until it has to finalize. A second thread reads the
//! messages beside batches.

#![expect(clippy::disallowed_types, reason = "the loaded model, taken when it is asked whether it is ready")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use crate::python::files::receive_with_files;
use crate::python::message::process_side::{
    AuxOrder, ExecuteOrder, MainOrder, OrderedRequest, decode_aux_order, decode_order, put_completed, put_finalized,
    put_initialized, put_log, put_ready, put_refused, put_release,
};
use crate::python::message::{LogLevel, MessageError, RegionSide, ReplyValue};
use crate::python::region::TensorPolicy;
use crate::triton::{HostServices, HostedDraft, InstancePlace, MetricSource, TritonHost};
use crate::triton_process::answers::{BatchAnswers, SentReports};
use crate::triton_process::calls::RemoteServer;
use crate::triton_process::link::{FrameReceiver, ProcessLink, Waiting, end_process};
use crate::triton_process::memory::{LentInputs, ProcessMemory};
use crate::triton_process::order::{InstanceOrder, LibraryOrder, encode_changes};
use backend::gateway::{Gateway, NestedReply};
use backend::{
    AnswerSink, Batch, Instance, LoadedModel, OutputNeed, OutputNeeds, Request, Responder, Ticket, answering_myself,
    threads,
};
use base::crash::{self, RunLabel};
use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};
use base::time::{Clock, Stamps};
use model::ModelSpec;

/// Descriptors of the first message: the aux socket and a region of each side.
const START_FILES: usize = 3;

/// The destination of log lines of backends, which do not identify their model.
static LINK: OnceLock<Arc<ProcessLink>> = OnceLock::new();

/// Serves the server behind a socket until it asks for the end.
///
/// # Errors
/// If the server sends an invalid message.
pub fn serve(main: OwnedFd, clock: Clock) -> io::Result<()> {
    let (mut count, mut files) = ([0; 4], VecDeque::new());
    // No modules follow: a Python process would get them.
    if receive_with_files(&main, &mut count, &mut files)? != count.len() || files.len() != START_FILES {
        return Err(unexpected(MessageError::Value("the first message")));
    }
    let mut file = || files.pop_front().ok_or_else(|| unexpected(MessageError::Value("the first message")));
    let (aux, inputs, outputs) = (file()?, file()?, file()?);
    let again = |socket: &OwnedFd| socket.as_fd().try_clone_to_owned();
    let link = Arc::new(ProcessLink::new(again(&main)?, again(&aux)?));
    let memory = ProcessMemory::new(&link, inputs, outputs)?;
    LINK.get_or_init(|| Arc::clone(&link));
    let process = Arc::new(HostProcess { link, memory, clock, model: Mutex::new(None) });
    let reader = Arc::clone(&process);
    thread::Builder::new().name("server-replies".to_owned()).spawn(move || reader.read_aux(FrameReceiver::new(aux)))?;
    process.run(FrameReceiver::new(main))
}

fn unexpected(error: MessageError) -> io::Error {
    io::Error::other(error)
}

/// Logs in the server.
fn log(level: LogLevel, text: &str) {
    if let Some(link) = LINK.get() {
        link.send_aux(|out| put_log(level, text, out));
    }
}

/// A process with a backend.
struct HostProcess {
    link: Arc<ProcessLink>,
    memory: Arc<ProcessMemory>,
    clock: Clock,
    /// The model, while it serves.
    model: Mutex<Option<Arc<dyn LoadedModel>>>,
}

impl HostProcess {
    fn run(&self, mut main: FrameReceiver) -> io::Result<()> {
        let order = main.next(|frame| match decode_order(frame)? {
            MainOrder::Init(order) => LibraryOrder::decode(order),
            _ => Err(MessageError::Value("the order of the messages")),
        });
        let order = order.and_then(|order| order).map_err(unexpected)?;
        let server = || Arc::new(RemoteServer { link: Arc::clone(&self.link), memory: Arc::clone(&self.memory) });
        let services = HostServices {
            log,
            is_verbose: order.is_verbose,
            is_remote: true,
            clock: self.clock,
            metrics: server() as Arc<dyn MetricSource>,
            gateway: server() as Arc<dyn Gateway>,
        };
        let host = TritonHost::new(&services, order.options.clone());
        let mut out = Vec::new();
        let mut instance = None;
        match self.load(&host, &order) {
            Ok(Loaded::Completed(document)) => put_completed(&document, &mut out).map_err(unexpected)?,
            Ok(Loaded::Serves(made)) => {
                let has_ready = made.has_ready;
                instance = Some(made);
                put_initialized(has_ready, &mut out);
            }
            Err(error) => put_refused(&error, &mut out),
        }
        self.link.send_main(&out);
        loop {
            let next = main.next(|frame| match decode_order(frame)? {
                MainOrder::Execute(batch) => Ok(Some(batch)),
                MainOrder::Finalize => Ok(None),
                MainOrder::Init(_) => Err(MessageError::Value("the order of the messages")),
            });
            match (next.and_then(|next| next).map_err(unexpected)?, &mut instance) {
                (Some(batch), Some(instance)) => self.execute(instance, batch).map_err(unexpected)?,
                (Some(_), None) => return Err(unexpected(MessageError::Value("the order of the messages"))),
                (None, instance) => return self.finalize(instance.take(), &host),
            }
        }
    }

    fn load(&self, host: &TritonHost, order: &LibraryOrder) -> Result<Loaded, Error> {
        let Some(instance) = &order.instance else {
            let changes = host.complete(&HostedDraft {
                name: &order.name,
                qualified_name: &order.qualified_name,
                version: order.version,
                version_directory: &order.version_directory,
                backend: &order.backend,
                file: &order.file,
                config: &order.config,
            })?;
            return Ok(Loaded::Completed(encode_changes(&changes)));
        };
        let InstanceOrder { place, .. } = instance;
        let spec = Arc::new(instance.spec(order)?);
        let loaded = host.load_instance(&spec, &order.version_directory, InstancePlace::clone(place))?;
        let loaded: Arc<dyn LoadedModel> = Arc::from(loaded);
        let made = threads::enter(1, |threads| loaded.new_instance(&threads.of_instance(&place.name, &[])))?;
        // A question that comes back was not asked: the backend has no such code.
        let has_ready = loaded.ask_ready(Box::new(|_| {})).is_none();
        *self.model.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
        Ok(Loaded::Serves(LoadedInstance { spec, instance: made, has_ready }))
    }

    /// Runs a batch. The message of its end follows the answers that it has by then.
    fn execute(&self, loaded: &mut LoadedInstance, order: ExecuteOrder) -> Result<(), MessageError> {
        let ExecuteOrder { batch, span, released, requests } = order;
        self.memory.begin(batch);
        self.memory.release(&released);
        let began = (self.clock)();
        let first = requests.first().map_or(0, |request| request.request);
        let answers = BatchAnswers::new(&self.link, &self.memory, first, requests.len(), began);
        let inputs = self.memory.inputs(span);
        if span.size > 0 {
            self.memory.forget_before(span.region);
        }
        let requests = (0..).zip(requests).map(|(index, ordered)| {
            let ticket = Ticket { index, generation: 0 };
            let sink = Arc::clone(&answers) as Arc<dyn AnswerSink>;
            let mut responder = Responder::new(sink, ticket, Stamps::default());
            responder.count_in(Arc::new(SentReports { link: Arc::clone(&self.link), batch, request: ordered.request }));
            request(&loaded.spec, &inputs, ordered, responder)
        });
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let rows = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let batch_of_requests = Batch { requests, rows, clock: self.clock, ended: Vec::new() };
        let label = RunLabel { model: &loaded.spec.name, version: None, instance: "" };
        let note = crash::note(label, batch_of_requests.ids());
        answering_myself(|| loaded.instance.run(batch_of_requests));
        drop(note);
        answers.handle_run_end(batch, inputs.give_back());
        Ok(())
    }

    fn finalize(&self, instance: Option<LoadedInstance>, host: &TritonHost) -> io::Result<()> {
        drop(instance);
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(model);
        host.finalize();
        let mut out = Vec::new();
        put_finalized(&mut out);
        self.link.send_main(&out);
        Ok(())
    }

    /// Handles messages beside batches, without end. Nothing here waits for the backend.
    fn read_aux(&self, mut aux: FrameReceiver) {
        loop {
            let order = aux.next(decode_aux_order).and_then(|order| order);
            let Ok(order) = order else { end_process() };
            let file = if let AuxOrder::Region(..) = &order { aux.take_file() } else { None };
            if self.handle_aux(order, file).is_err() {
                end_process();
            }
        }
    }

    fn handle_aux(&self, order: AuxOrder, file: Option<OwnedFd>) -> io::Result<()> {
        match order {
            AuxOrder::Region(side, number) => {
                let file = file.ok_or_else(|| unexpected(MessageError::Value("a region")))?;
                match side {
                    RegionSide::Request => self.memory.add_inputs(number, file)?,
                    RegionSide::Response => self.memory.add_outputs(number, file)?,
                }
            }
            AuxOrder::SpaceReply { call, outcome, released } => {
                self.memory.release(&released);
                if let Some(Waiting::Space(waiting)) = self.link.take_waiting(call) {
                    // The thread that asked waits.
                    let _ = waiting.send(outcome);
                }
            }
            AuxOrder::Reply { call, outcome } => match self.link.take_waiting(call) {
                Some(Waiting::Reply(waiting)) => drop(waiting.send(outcome)),
                Some(Waiting::Order(reply)) => {
                    reply(outcome.map(|value| value == ReplyValue::Bool(true)));
                }
                _ => {}
            },
            AuxOrder::BlsReply { call, is_final, span, outcome } => {
                let inputs = self.memory.inputs(span);
                let outputs = outcome.map(|(parameters, outputs)| {
                    let taken = outputs.into_iter().map(|(name, claim)| {
                        inputs.take(&claim, TensorPolicy::Copy).map(|tensor| (name, tensor)).map_err(unexpected)
                    });
                    taken.collect::<io::Result<Vec<_>>>().map(|outputs| (parameters, outputs))
                });
                if inputs.give_back() && span.size > 0 {
                    self.link.send_aux(|out| put_release(&[span.slot], out));
                }
                let (parameters, outputs) = match outputs {
                    Ok(taken) => taken.map(|(parameters, outputs)| (parameters, Ok(outputs)))?,
                    Err(error) => (Default::default(), Err(error)),
                };
                self.handle_nested_reply(call, NestedReply { outputs, parameters, is_final });
            }
            AuxOrder::IsReady(ask) => self.handle_is_ready(ask),
        }
        Ok(())
    }

    fn handle_nested_reply(&self, call: u64, reply: NestedReply) {
        let open = self.link.nested(call);
        if reply.is_final {
            self.link.take_waiting(call);
        }
        if let Some(open) = open {
            open.handle_reply(call, &self.link, reply);
        }
    }

    fn handle_is_ready(&self, ask: u64) {
        let link = Arc::clone(&self.link);
        let reply = Box::new(move |is_ready| link.send_aux(|out| put_ready(ask, is_ready, out)));
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match model {
            Some(model) => model.ask_ready(reply).into_iter().for_each(|reply| reply(true)),
            None => reply(false),
        }
    }
}

/// The result of a process's order.
enum Loaded {
    /// The configuration is complete: a document of changes.
    Completed(String),
    /// The instance serves.
    Serves(LoadedInstance),
}

/// The instance of a process.
struct LoadedInstance {
    spec: Arc<ModelSpec>,
    instance: Box<dyn Instance>,
    has_ready: bool,
}

/// A request as the host takes it. Large inputs stay in the memory of the message.
fn request(
    spec: &ModelSpec,
    inputs: &LentInputs,
    ordered: OrderedRequest,
    mut responder: Responder,
) -> Result<Request, MessageError> {
    let OrderedRequest { details, wanted, inputs: claims, .. } = ordered;
    let need = |index: usize| {
        let is_wanted = wanted.iter().any(|wanted| usize::from(*wanted) == index);
        if is_wanted { OutputNeed::Whole } else { OutputNeed::Nothing }
    };
    if wanted.len() < spec.outputs.len() {
        responder.output_needs = OutputNeeds((0..spec.outputs.len()).map(need).collect());
    }
    let absent = || Tensor { datatype: Datatype::Bytes, shape: Shape::new(), contents: bytes::Bytes::new() };
    let mut tensors: Vec<_> = spec.inputs.iter().map(|_| absent()).collect();
    for (index, claim) in claims {
        let place = tensors.get_mut(usize::from(index)).ok_or(MessageError::Value("the index of an input"))?;
        *place = inputs.take(&claim, TensorPolicy::View)?;
    }
    Ok(Request { inputs: tensors, rows: 1, responder, sequence: None, details: details.map(Arc::new) })
}
