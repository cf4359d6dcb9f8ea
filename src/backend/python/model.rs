//! Loads Python models: starts the processes of all instances of a version, waits until each has initialized, and keeps
//! them until the workers take them. An instance that is lost gets a new process, at once the first time, and then after
//! pauses that grow.

#![expect(clippy::disallowed_types, reason = "taken when an instance is made or lost, never for a batch")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::backend::custom_metrics::{CustomMetrics, ProcessMetrics};
use crate::backend::gateway::Gateway;
use crate::backend::python::archive::Archives;
use crate::backend::python::environment::{Interpreter, InterpreterSearch, refuse_start};
use crate::backend::python::exit::ExitReason;
use crate::backend::python::host::{LogLine, PythonHost};
use crate::backend::python::inbox::{InboxItem, InstanceInbox};
use crate::backend::python::instance::PythonInstance;
use crate::backend::python::json::JsonItem;
use crate::backend::python::link::PythonLink;
use crate::backend::python::memory::{RequestMemory, ResponseMemory};
use crate::backend::python::message::{self, LogLevel, MessageError};
use crate::backend::python::process::PythonProcess;
use crate::backend::python::{BOOT, BOOT_REFUSAL, MODULES, ProcessCommand};
use crate::backend::{Backend, Batch, InFlightState, Instance, LoadedModel, ReadyReply, Request, Threads};
use crate::error::Error;
use crate::limits::{PYTHON_FINALIZE_MAX, PYTHON_RESTART_PAUSE_MAX, PYTHON_RESTART_PAUSE_MIN};
use crate::model::{InstanceGroup, ModelSpec, PythonModel, TensorSpec};
use crate::tensor::Datatype;
use crate::time::{Clock, Instant};

/// How often a start is looked at beside the events of the process.
const START_PAUSE: Duration = Duration::from_millis(100);
/// How long the end of a process that could not start is waited for, to say why.
const START_END_WAIT: Duration = Duration::from_secs(2);

/// The backend of Python models. One per server.
pub struct PythonBackend {
    options: Arc<PythonOptions>,
    /// The thread that starts processes, from the first model on.
    host: OnceLock<Result<Arc<PythonHost>, Error>>,
}

/// What all Python models share.
pub struct PythonOptions {
    /// Reads the server's environment.
    pub variables: fn() -> Vec<(OsString, OsString)>,
    /// The interpreter of models without an environment of their own (`--backend-config=python,interpreter=PATH`).
    pub interpreter: Option<PathBuf>,
    /// Unpacks packed environments.
    pub archives: Archives,
    /// Looks up a variable of the server's environment.
    pub variable: fn(&str) -> Option<OsString>,
    /// Where models register metrics of their own.
    pub metrics: Arc<CustomMetrics>,
    /// Calls of other models.
    pub gateway: Arc<dyn Gateway>,
    /// Takes log lines.
    pub log: LogLine,
    /// Whether models see that verbose lines are logged.
    pub is_verbose: bool,
    /// The clock of the server.
    pub clock: Clock,
    /// Bytes of a region at first.
    pub region_size: u64,
    /// The most bytes of one region (`--python-memory-bytes-max`).
    pub region_size_max: u64,
    /// Where Python-based backends are (`--backend-directory`).
    pub backend_directory: PathBuf,
    /// How long finalize may take when the server ends.
    pub exit_timeout: Duration,
}

/// One loaded version: what its instances share.
pub(super) struct PythonModelShared {
    pub(super) name: String,
    pub(super) version: u64,
    /// Names and datatypes of the inputs.
    inputs: Vec<(String, Datatype)>,
    /// Names and datatypes of the outputs.
    pub(super) outputs: Vec<(String, Datatype)>,
    pub(super) is_decoupled: bool,
    pub(super) execute_timeout: Option<Duration>,
    pub(super) gateway: Arc<dyn Gateway>,
    groups: Vec<InstanceGroup>,
    config: Arc<str>,
    options: Arc<PythonOptions>,
    host: Arc<PythonHost>,
    interpreter: Interpreter,
    place: ModelPlace,
    /// Whether the model has `is_ready`.
    has_opinion: AtomicBool,
    state: Mutex<InstanceStates>,
}

/// Where a model's files are.
struct ModelPlace {
    model_directory: PathBuf,
    version_directory: PathBuf,
    file: PathBuf,
    module: String,
    backend_directory: Option<PathBuf>,
}

/// A model whose own code completes its configuration.
pub struct PythonCompletion<'a> {
    /// The model's name.
    pub name: &'a str,
    /// The number of the version.
    pub version: u64,
    /// The directory of the version.
    pub version_directory: &'a Path,
    /// The name of its backend.
    pub backend: &'a str,
    /// What its process runs.
    pub python: &'a PythonModel,
    /// The configuration so far, in JSON.
    pub config: &'a str,
}

#[derive(Default)]
struct InstanceStates {
    /// Instances that are made and not taken yet, by name.
    ready_made: HashMap<String, PythonInstance>,
    /// Requests that a lost process had not begun, by instance.
    unbegun: HashMap<String, Vec<Request>>,
    /// When each instance was made last, and the pause before it may be made again.
    starts: HashMap<String, (Instant, Duration)>,
    /// The inboxes of those that live.
    inboxes: Vec<Weak<InstanceInbox>>,
}

/// A loaded version.
struct LoadedPythonModel {
    shared: Arc<PythonModelShared>,
}

impl PythonBackend {
    /// With these options.
    pub fn new(options: PythonOptions) -> Self {
        Self { options: Arc::new(options), host: OnceLock::new() }
    }

    /// Has a model complete its configuration (`auto_complete_config`). Takes as long as the model takes.
    ///
    /// # Errors
    /// The model's error.
    pub fn complete(&self, completion: &PythonCompletion<'_>) -> Result<String, Error> {
        let PythonCompletion { name, version, version_directory, backend, python, config } = *completion;
        let place = self.place(python, backend, version, version_directory);
        let shared = Arc::new(PythonModelShared {
            name: name.to_owned(),
            config: config.into(),
            ..self.shared(python, version, place)?
        });
        let mut instance = shared.start(&format!("{name}_autocomplete"), None, StartMode::Complete)?;
        loop {
            if let Some(completed) = instance.poll_completed()? {
                return Ok(completed);
            }
            instance.link.wait(START_PAUSE);
        }
    }

    fn host(&self) -> Result<Arc<PythonHost>, Error> {
        let PythonOptions { log, clock, variables, .. } = *self.options;
        self.host.get_or_init(|| PythonHost::start(log, clock, variables())).clone()
    }

    /// Where the files of a model are. `directory` is that of the version.
    fn place(&self, python: &PythonModel, backend: &str, version: u64, directory: &Path) -> ModelPlace {
        let backend_directory = python.is_backend.then(|| self.options.backend_directory.join(backend));
        ModelPlace {
            model_directory: directory.parent().unwrap_or(directory).to_owned(),
            version_directory: directory.to_owned(),
            file: backend_directory.as_deref().unwrap_or(directory).join(&python.file),
            module: python.module_name(version),
            backend_directory,
        }
    }

    /// A model without a name and tensors.
    fn shared(&self, python: &PythonModel, version: u64, place: ModelPlace) -> Result<PythonModelShared, Error> {
        let search = InterpreterSearch {
            execution_environment: python.environment.as_deref(),
            model_directory: &place.model_directory,
            configured: self.options.interpreter.as_deref(),
            variable: &self.options.variable,
            archives: &self.options.archives,
        };
        Ok(PythonModelShared {
            name: String::new(),
            version,
            inputs: Vec::new(),
            outputs: Vec::new(),
            is_decoupled: false,
            execute_timeout: python.execute_timeout,
            gateway: Arc::clone(&self.options.gateway),
            groups: Vec::new(),
            config: "{}".into(),
            options: Arc::clone(&self.options),
            host: self.host()?,
            interpreter: search.find()?,
            place,
            has_opinion: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }
}

/// What a process is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartMode {
    /// To complete its configuration and end.
    Complete,
    /// To run batches.
    Serve,
}

impl Backend for PythonBackend {
    fn name(&self) -> &str {
        "python"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let Some(python) = &spec.python else { return Err(Error::internal("the model is no Python model")) };
        let version = directory.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let version = version.unwrap_or(1);
        let place = self.place(python, &spec.backend, version, directory);
        let tensors =
            |tensors: &[TensorSpec]| tensors.iter().map(|tensor| (tensor.name.clone(), tensor.datatype)).collect();
        let shared = Arc::new(PythonModelShared {
            name: spec.name.clone(),
            inputs: tensors(&spec.inputs),
            outputs: tensors(&spec.outputs),
            is_decoupled: spec.is_decoupled,
            groups: spec.instance_groups.clone(),
            config: Arc::clone(&spec.config_json),
            ..self.shared(python, version, place)?
        });
        // All start at once: each takes as long as its imports.
        let mut starting = Vec::new();
        for (group, name, gpu) in shared.instances() {
            let instance = shared.start(&name, Some((group, gpu)), StartMode::Serve)?;
            starting.push((name, instance));
        }
        shared.wait_all(&mut starting)?;
        shared.lock().ready_made.extend(starting);
        Ok(Box::new(LoadedPythonModel { shared }))
    }
}

impl LoadedModel for LoadedPythonModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let Some(identity) = threads.instance() else { return self.borrow_instance() };
        let ready_made = self.shared.lock().ready_made.remove(&identity.name);
        let instance = match ready_made {
            Some(instance) => instance,
            None => self.shared.restart(&identity.name)?,
        };
        instance.process.set_cores(&identity.cores);
        Ok(Box::new(instance))
    }

    /// The answers come from another process.
    fn may_run_inline(&self) -> bool {
        false
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        if !self.shared.has_opinion.load(Ordering::Relaxed) {
            return Some(reply);
        }
        let inbox = self.shared.lock().inboxes.iter().find_map(Weak::upgrade);
        match inbox {
            Some(inbox) => inbox.push(InboxItem::AskReady(reply)),
            None => reply(false),
        }
        None
    }
}

impl LoadedPythonModel {
    /// Any instance, for a trial before the workers take theirs; it goes back when it is dropped.
    fn borrow_instance(&self) -> Result<Box<dyn Instance>, Error> {
        let mut state = self.shared.lock();
        let name = state.ready_made.keys().min().cloned();
        let instance = name.as_ref().and_then(|name| state.ready_made.remove(name));
        let instance = instance.ok_or_else(|| Error::internal("no instance of the model is free for a trial"))?;
        Ok(Box::new(BorrowedInstance { instance: Some(instance), shared: Arc::clone(&self.shared) }))
    }
}

/// An instance that is used before a worker takes it.
struct BorrowedInstance {
    instance: Option<PythonInstance>,
    shared: Arc<PythonModelShared>,
}

impl Instance for BorrowedInstance {
    fn run(&mut self, batch: Batch) {
        if let Some(instance) = &mut self.instance {
            instance.run(batch);
        }
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        self.instance.as_mut().map_or_else(InFlightState::default, |instance| instance.poll_flight(clock))
    }
}

impl Drop for BorrowedInstance {
    fn drop(&mut self) {
        if let Some(instance) = self.instance.take() {
            let name = instance.name.to_string();
            self.shared.lock().ready_made.insert(name, instance);
        }
    }
}

impl PythonModelShared {
    /// The instances: their groups, names and GPUs.
    fn instances(&self) -> impl Iterator<Item = (&InstanceGroup, String, Option<u32>)> {
        self.groups.iter().flat_map(|group| group.instances().map(move |(name, gpu)| (group, name, gpu)))
    }

    fn lock(&self) -> MutexGuard<'_, InstanceStates> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn clock(&self) -> Clock {
        self.options.clock
    }

    pub(super) fn finalize_timeout(&self) -> Duration {
        self.options.exit_timeout.min(PYTHON_FINALIZE_MAX)
    }

    pub(super) fn log(&self, level: LogLevel, text: &str) {
        (self.options.log)(level, text);
    }

    pub(super) fn log_fault(&self, instance: &str, text: &str) {
        self.log(LogLevel::Error, &format!("{instance}: {text}"));
    }

    /// A process was lost: keeps the requests that it had not begun for the next one, which starts at once if this one
    /// has ever answered.
    pub(super) fn handle_lost(&self, instance: &str, unbegun: Vec<Request>, has_answered: bool) {
        let mut state = self.lock();
        if has_answered && let Some((_, pause)) = state.starts.get_mut(instance) {
            *pause = Duration::ZERO;
        }
        if !unbegun.is_empty() {
            state.unbegun.entry(instance.to_owned()).or_default().extend(unbegun);
        }
    }

    /// The error of a process that ended before its model was initialized.
    pub(super) fn early_end(&self, instance: &str, process: &PythonProcess) -> Error {
        process.kill();
        let Some(reason) = process.wait_ended(START_END_WAIT) else { return unhealthy(instance) };
        if reason == ExitReason::Exited(BOOT_REFUSAL) {
            return refuse_start(&self.interpreter, reason, &process.stderr());
        }
        self.log_fault(instance, &format!("its Python process ended while the model was initialized: {reason}"));
        unhealthy(instance)
    }

    /// The metrics of one process, which go with it.
    pub(super) fn new_metrics(&self) -> ProcessMetrics {
        self.options.metrics.for_process()
    }

    /// Starts the process of an instance and sends it what it needs; it initializes meanwhile.
    fn start(
        self: &Arc<Self>,
        name: &str,
        place: Option<(&InstanceGroup, Option<u32>)>,
        mode: StartMode,
    ) -> Result<PythonInstance, Error> {
        let inbox = Arc::new(InstanceInbox::new()?);
        let cannot = |error: std::io::Error| Error::unavailable(format!("cannot start a Python process: {error}"));
        let (link, ends) = PythonLink::open(inbox.file()).map_err(cannot)?;
        let PythonOptions { region_size, region_size_max, .. } = *self.options;
        let requests = RequestMemory::new(region_size, region_size_max)?;
        let responses = ResponseMemory::new(region_size, region_size_max)?;
        let (Some(request_region), Some(response_region)) = (requests.first(), responses.first()) else {
            return Err(Error::internal("a process has two regions"));
        };
        let cores = available_cores();
        let instances: u64 = self.groups.iter().map(InstanceGroup::instance_count).sum();
        let threads = cores.len() / usize::try_from(instances.max(1)).unwrap_or(usize::MAX);
        let too_large = |error| Error::internal(format!("a message to a Python process cannot be written: {error}"));
        let mut start = Vec::new();
        message::put_start(MODULES, &mut start).map_err(too_large)?;
        let files = [ends.aux.as_fd(), request_region.fd(), response_region.fd()];
        let sent = link.main.send_start(&start, &files).map_err(cannot)?;
        let process = self.host.spawn(ProcessCommand {
            name: name.to_owned(),
            interpreter: self.interpreter.clone(),
            boot: BOOT,
            main: ends.main,
            cores,
            threads: threads.max(1),
        })?;
        link.watch(process.pidfd()).map_err(cannot)?;
        let sizes = [request_region.size(), response_region.size()];
        let mut instance =
            PythonInstance::new(Arc::clone(self), name, (link, process), (requests, responses), Arc::clone(&inbox));
        instance.link.main.send(start.get(sent..).unwrap_or_default());
        let mut frame = Vec::new();
        self.put_init((name, place), mode, sizes, &mut frame).map_err(too_large)?;
        instance.link.main.send(&frame);
        instance.link.flush();
        let mut state = self.lock();
        state.inboxes.retain(|inbox| inbox.strong_count() > 0);
        state.inboxes.push(Arc::downgrade(&inbox));
        Ok(instance)
    }

    /// Waits until all have initialized. They are served meanwhile: a model may call the server from `initialize`.
    fn wait_all(&self, starting: &mut [(String, PythonInstance)]) -> Result<(), Error> {
        let pause = if starting.len() > 1 { START_PAUSE / 20 } else { START_PAUSE };
        loop {
            let mut pending = None;
            for (_, instance) in starting.iter_mut() {
                match instance.poll_start()? {
                    Some(capabilities) => self.has_opinion.store(capabilities.has_is_ready, Ordering::Relaxed),
                    None => pending = Some(instance),
                }
            }
            match pending {
                // One at a time is enough: the others are looked at after a pause.
                Some(instance) => instance.link.wait(pause),
                None => return Ok(()),
            }
        }
    }

    /// Starts another process in the place of a lost one, unless that ended too soon after its start.
    fn restart(self: &Arc<Self>, name: &str) -> Result<PythonInstance, Error> {
        let now = (self.options.clock)();
        let outcome = self.try_restart(name, now);
        let unbegun = self.lock().unbegun.remove(name).unwrap_or_default();
        match outcome {
            Ok(mut instance) => {
                instance.resume(unbegun);
                Ok(instance)
            }
            Err(error) => {
                unbegun.into_iter().for_each(|request| request.responder.send(Err(unhealthy(name))));
                Err(error)
            }
        }
    }

    fn try_restart(self: &Arc<Self>, name: &str, now: Instant) -> Result<PythonInstance, Error> {
        {
            let mut state = self.lock();
            let (last, pause) = state.starts.get(name).copied().unwrap_or_default();
            if now < last + pause {
                return Err(Error::unavailable(
                    "its process ended soon after its start; the next start is a little later",
                ));
            }
            // Taken back when the new process has answered: then the next start need not wait.
            let pause = (pause * 2).clamp(PYTHON_RESTART_PAUSE_MIN, PYTHON_RESTART_PAUSE_MAX);
            state.starts.insert(name.to_owned(), (now, pause));
        }
        let place = self.instances().find(|(_, have, _)| have == name).map(|(group, _, gpu)| (group, gpu));
        let instance = self.start(name, place, StartMode::Serve)?;
        let mut starting = [(name.to_owned(), instance)];
        self.wait_all(&mut starting)?;
        let [(_, instance)] = starting;
        Ok(instance)
    }

    /// Appends INIT.
    fn put_init(
        &self,
        (name, place): (&str, Option<(&InstanceGroup, Option<u32>)>),
        mode: StartMode,
        sizes: [usize; 2],
        out: &mut Vec<u8>,
    ) -> Result<(), MessageError> {
        use JsonItem::{Array, Bool, Integer, Null, Object, Raw, Text};
        let kind = place.map_or("CPU", |(group, _)| group.kind.as_str());
        let device = place.and_then(|(_, gpu)| gpu).unwrap_or(0).to_string();
        let version = self.version.to_string();
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let [model, of_version, file] =
            [&self.place.model_directory, &self.place.version_directory, &self.place.file].map(|each| path(each));
        let backend = self.place.backend_directory.as_deref().map(path);
        let args = Object(vec![
            ("model_config", Text(&self.config)),
            ("model_instance_kind", Text(kind)),
            ("model_instance_name", Text(name)),
            ("model_instance_device_id", Text(&device)),
            ("model_repository", Text(&model)),
            ("model_version", Text(&version)),
            ("model_name", Text(&self.name)),
        ]);
        let number = |size: usize| Integer(i64::try_from(size).unwrap_or(i64::MAX));
        let init = Object(vec![
            ("mode", Text(if mode == StartMode::Complete { "complete" } else { "serve" })),
            ("args", args),
            ("model_file", Text(&file)),
            ("model_directory", Text(&model)),
            ("version_directory", Text(&of_version)),
            ("module_name", Text(&self.place.module)),
            ("backend_directory", backend.as_deref().map_or(Null, Text)),
            ("config", Raw(&self.config)),
            ("inputs", Array(self.inputs.iter().map(tensor_item).collect())),
            ("outputs", Array(self.outputs.iter().map(tensor_item).collect())),
            ("decoupled", Bool(self.is_decoupled)),
            ("log_verbose", Bool(self.options.is_verbose)),
            ("region_sizes", Array(sizes.into_iter().map(number).collect())),
            ("server_version", Text(env!("CARGO_PKG_VERSION"))),
        ]);
        message::put_init(&init, out)
    }
}

/// A tensor's name and the code of its datatype.
fn tensor_item((name, datatype): &(String, Datatype)) -> JsonItem<'_> {
    JsonItem::Array(vec![JsonItem::Text(name), JsonItem::Integer(message::datatype_code(*datatype).into())])
}

/// Triton's error of a request whose process has ended.
pub(super) fn unhealthy(instance: &str) -> Error {
    Error::internal(format!("Stub process '{instance}' is not healthy."))
}

/// The cores that this thread may use.
fn available_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}
