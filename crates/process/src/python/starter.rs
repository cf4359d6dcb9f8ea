//! Starts the processes of one Python model: at its load all instances at once, later another in the place of one that
//! was lost, and those of instances that an update adds.

#![expect(clippy::disallowed_types, reason = "taken when a process is started or an update comes, never for a batch")]

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::python::context::{ModelProgram, PythonModelContext, PythonOptions};
use crate::python::cores::ProcessShare;
use crate::python::environment::general_threads;
use crate::python::host::PythonHost;
use crate::python::inbox::InstanceInbox;
use crate::python::instance::{PythonInstance, StartedProcess};
use crate::python::json::JsonItem;
use crate::python::link::{ProcessEnds, PythonLink};
use crate::python::memory::{RequestMemory, ResponseMemory};
use crate::python::message::{self, Capabilities, MessageError};
use crate::python::process::PythonProcess;
use crate::python::program::LibraryStart;
use crate::python::region::RequestRegion;
use crate::python::template::TemplateSlot;
use crate::python::{BOOT, MODULES, ProcessCommand, ProcessProgram};
use base::error::Error;
use base::tensor::Datatype;
use model::{InstanceGroup, InstanceSeat, ModelSpec};

/// The interval at which a start is checked beside the events of its process.
pub(super) const START_PAUSE: Duration = Duration::from_millis(100);
/// The same if several start at once, and the events of one only wake the thread.
const STARTS_PAUSE: Duration = Duration::from_millis(5);

/// The parameters of the processes of a model.
pub(super) struct ProcessStarter {
    pub(super) context: Arc<PythonModelContext>,
    pub(super) host: Arc<PythonHost>,
    pub(super) message: StartMessage,
    /// Names and datatypes of the inputs.
    pub(super) inputs: Vec<(String, Datatype)>,
    pub(super) places: CurrentPlaces,
    pub(super) template: TemplateSlot,
    pub(super) mode: StartMode,
}

/// The instances of a model, and the configuration that they are told.
#[derive(Clone, Default)]
pub(super) struct StartPlaces {
    groups: Vec<InstanceGroup>,
    /// By the names of the instances. Those of instances that left stay.
    seats: BTreeMap<String, InstanceSeat>,
    /// The configuration, in JSON.
    config: Arc<str>,
}

/// The instances as the last update left them.
#[derive(Default)]
pub(super) struct CurrentPlaces(Mutex<Arc<StartPlaces>>);

impl CurrentPlaces {
    /// Those of a load.
    pub(super) fn new(places: StartPlaces) -> Self {
        Self(Mutex::new(Arc::new(places)))
    }

    fn get(&self) -> Arc<StartPlaces> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, places: Arc<StartPlaces>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = places;
    }
}

impl StartPlaces {
    /// The instances of a configuration.
    pub(super) fn new(spec: &ModelSpec) -> Self {
        let seats = spec.instance_groups.iter().flat_map(InstanceGroup::seats).collect::<Vec<_>>();
        Self::default().updated(spec, &seats)
    }

    /// No instances, to complete a configuration.
    pub(super) fn of_config(config: &str) -> Self {
        Self { config: config.into(), ..Self::default() }
    }

    /// The same with these seats, after an update to this configuration.
    pub(super) fn updated(&self, spec: &ModelSpec, seats: &[InstanceSeat]) -> Self {
        let added = seats.iter().map(|seat| (seat.name.clone(), seat.clone()));
        Self {
            groups: spec.instance_groups.clone(),
            seats: self.seats.clone().into_iter().chain(added).collect(),
            config: Arc::clone(&spec.config_json),
        }
    }

    /// The number of instances.
    pub(super) fn count(&self) -> u64 {
        self.groups.iter().map(InstanceGroup::instance_count).sum()
    }
}

/// The contents of INIT for a process.
pub(super) enum StartMessage {
    /// The library that it opens, and the model.
    Library(Arc<dyn LibraryStart>),
    /// The place of the files of a Python model.
    Python(ModelPlace),
}

/// The place of a model's files.
pub(super) struct ModelPlace {
    pub(super) model_directory: PathBuf,
    pub(super) version_directory: PathBuf,
    pub(super) file: PathBuf,
    pub(super) module: String,
    pub(super) backend_directory: Option<PathBuf>,
}

/// The purpose of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartMode {
    /// To complete its configuration and end.
    Complete,
    /// To run batches.
    Serve,
    /// To import the model and fork the processes of its instances.
    Template,
}

impl StartMode {
    /// Its name in INIT.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Serve => "serve",
            Self::Template => "template",
        }
    }
}

/// An instance whose process does not run yet.
pub(super) struct OpenedInstance {
    inbox: Arc<InstanceInbox>,
    pub(super) link: PythonLink,
    requests: RequestMemory,
    responses: ResponseMemory,
}

impl OpenedInstance {
    /// The descriptors of its regions.
    pub(super) fn regions(&self) -> Result<[BorrowedFd<'_>; 2], Error> {
        match (self.requests.first(), self.responses.first()) {
            (Some(requests), Some(responses)) => Ok([requests.fd(), responses.fd()]),
            _ => Err(Error::internal("a process has two regions")),
        }
    }
}

impl ProcessStarter {
    /// Starts the processes of all instances at once: each takes as long as its imports.
    ///
    /// # Errors
    /// The first error of any of them.
    pub(super) fn start_all(&self) -> Result<(Vec<PythonInstance>, Capabilities), Error> {
        let places = self.places();
        self.start_these(places.seats.keys())
    }

    /// Starts the processes of the instances of these names at once.
    ///
    /// # Errors
    /// The first error of any of them.
    pub(super) fn start_these<'a>(
        &self,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<(Vec<PythonInstance>, Capabilities), Error> {
        let mut starting = Vec::new();
        let mut names = names.peekable();
        if let Some(first) = names.peek()
            && let Some(instance) = self.prepare_template(first)?
        {
            starting.push(instance);
            names.next();
        }
        for name in names {
            starting.push(self.start(name)?);
        }
        let capabilities = wait_all(&mut starting)?;
        Ok((starting, capabilities))
    }

    /// Starts another process in the place of a lost one, unless that ended too soon after its
    /// start, and gives it the requests that the lost one had not begun.
    ///
    /// # Errors
    /// The reason why it does not start. Requests that waited for it are answered.
    pub(super) fn restart(&self, name: &str) -> Result<PythonInstance, Error> {
        let outcome = self.try_restart(name);
        let unbegun = self.context.take_unbegun(name);
        match outcome {
            Ok(mut instance) => {
                instance.resume(unbegun);
                Ok(instance)
            }
            Err(error) => {
                let requests = unbegun.into_iter().flatten();
                requests.for_each(|request| request.responder.send(Err(self.context.lost(name, None))));
                Err(error)
            }
        }
    }

    fn try_restart(&self, name: &str) -> Result<PythonInstance, Error> {
        self.context.handle_restart(name)?;
        let started = self.start(name).and_then(|instance| {
            let mut starting = [instance];
            wait_all(&mut starting)?;
            let [instance] = starting;
            Ok(instance)
        });
        // No caller asked for this start, so the error is only logged.
        started.inspect_err(|error| self.context.log_fault(name, &format!("cannot be started again: {error}")))
    }

    /// The instances.
    pub(super) fn places(&self) -> Arc<StartPlaces> {
        self.places.get()
    }

    /// Sets the instances.
    pub(super) fn set_places(&self, places: Arc<StartPlaces>) {
        self.places.set(places);
    }

    /// Starts the process of an instance and sends it its first messages; it initializes meanwhile.
    pub(super) fn start(&self, name: &str) -> Result<PythonInstance, Error> {
        if let Some(instance) = self.fork(name) {
            return Ok(instance);
        }
        self.spawn(name, self.mode)
    }

    /// Starts a program as the process of an instance, or as the template of which it is the first.
    pub(super) fn spawn(&self, name: &str, mode: StartMode) -> Result<PythonInstance, Error> {
        let (opened, ends) = self.open()?;
        let ProcessShare { cores, threads } = self.share(name);
        let modules = if self.context.program.is_library() { &[] } else { MODULES };
        let mut start = Vec::new();
        message::put_start(modules, &mut start).map_err(|error| self.too_large(&error))?;
        let [requests, responses] = opened.regions()?;
        let files = [ends.aux.as_fd(), requests, responses];
        let sent = opened.link.main.send_with_descriptors(&start, &files).map_err(|error| self.cannot(&error))?;
        let is_template = mode == StartMode::Template;
        let process = self.host.spawn(ProcessCommand {
            name: if is_template { format!("{} (template)", self.context.name) } else { name.to_owned() },
            program: self.program(threads, is_template),
            main: ends.main,
            cores,
            memory: Arc::clone(&self.context.memory),
        })?;
        let mut instance = self.begin(name, opened, process)?;
        instance.link.main.send(start.get(sent..).unwrap_or_default());
        self.send_init(&mut instance, name, mode)?;
        Ok(instance)
    }

    /// Opens what the process of an instance shares with the server.
    pub(super) fn open(&self) -> Result<(OpenedInstance, ProcessEnds), Error> {
        let inbox = Arc::new(InstanceInbox::new()?);
        let (link, ends) = PythonLink::open(inbox.file()).map_err(|error| self.cannot(&error))?;
        let PythonOptions { region_size, region_limit, .. } = *self.context.options;
        let requests = RequestMemory::new(region_size, region_limit)?;
        let responses = ResponseMemory::new(region_size, region_limit)?;
        Ok((OpenedInstance { inbox, link, requests, responses }, ends))
    }

    /// The instance of a process that runs.
    pub(super) fn begin(
        &self,
        name: &str,
        opened: OpenedInstance,
        process: PythonProcess,
    ) -> Result<PythonInstance, Error> {
        let OpenedInstance { inbox, link, requests, responses } = opened;
        link.watch(process.pidfd()).map_err(|error| self.cannot(&error))?;
        let started = StartedProcess { link, process, requests, responses };
        Ok(PythonInstance::new(Arc::clone(&self.context), name, started, inbox))
    }

    /// Sends INIT to a process.
    pub(super) fn send_init(&self, instance: &mut PythonInstance, name: &str, mode: StartMode) -> Result<(), Error> {
        let places = self.places();
        let mut frame = Vec::new();
        match &self.message {
            StartMessage::Library(start) => message::put_init_bytes(&start.order(places.seats.get(name)), &mut frame),
            StartMessage::Python(place) => {
                let [requests, responses] = [
                    instance.requests.first().map(RequestRegion::size),
                    instance.responses.first().map(|region| region.size()),
                ];
                let sizes = [requests.unwrap_or(0), responses.unwrap_or(0)];
                self.put_init(place, &places, name, mode, sizes, &mut frame)
            }
        }
        .map_err(|error| self.too_large(&error))?;
        instance.link.main.send(&frame);
        instance.link.flush();
        Ok(())
    }

    /// The cores and threads of an instance's process.
    pub(super) fn share(&self, name: &str) -> ProcessShare {
        let places = self.places();
        let own = places.seats.get(name).map(|seat| &seat.group);
        self.context.options.cores.share(&places.groups, own)
    }

    /// The number of instances with this share.
    pub(super) fn count_of(&self, share: &ProcessShare) -> u64 {
        let places = self.places();
        let cores = &self.context.options.cores;
        let alike = places.groups.iter().filter(|group| cores.share(&places.groups, Some(group)) == *share);
        alike.map(InstanceGroup::instance_count).sum()
    }

    pub(super) fn cannot(&self, error: &io::Error) -> Error {
        Error::unavailable(format!("cannot start a {}: {error}", self.context.program.process()))
    }

    fn too_large(&self, error: &MessageError) -> Error {
        let noun = self.context.program.process();
        Error::internal(format!("a message to a {noun} cannot be written: {error}"))
    }

    pub(super) fn program(&self, threads: usize, is_template: bool) -> ProcessProgram {
        let own = |command| ProcessProgram::Own { command, threads: Some(threads) };
        match (&self.context.program, &self.message) {
            (ModelProgram::Python { interpreter, .. }, _) => {
                ProcessProgram::Python { interpreter: interpreter.clone(), boot: BOOT, threads, is_template }
            }
            (ModelProgram::Library { .. }, StartMessage::Library(start)) => own(start.command()),
            (ModelProgram::Library { .. }, StartMessage::Python(_)) => own(""),
        }
    }

    /// The batches that a process gets at once, by the kind of its `execute`.
    fn at_once(&self, is_async: bool) -> usize {
        self.context.program.run_order(is_async, self.context.is_decoupled).bound()
    }

    /// Appends INIT.
    fn put_init(
        &self,
        place: &ModelPlace,
        places: &StartPlaces,
        name: &str,
        mode: StartMode,
        sizes: [usize; 2],
        out: &mut Vec<u8>,
    ) -> Result<(), MessageError> {
        use JsonItem::{Array, Bool, Integer, Null, Object, Raw, Text};
        let seat = places.seats.get(name);
        let kind = seat.map_or("CPU", |seat| seat.group.kind.as_str());
        let device = seat.and_then(|seat| seat.gpu).unwrap_or(0).to_string();
        let version = self.context.version.to_string();
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let [model, of_version, file] =
            [&place.model_directory, &place.version_directory, &place.file].map(|each| path(each));
        let backend = place.backend_directory.as_deref().map(path);
        let args = Object(vec![
            ("model_config", Text(&places.config)),
            ("model_instance_kind", Text(kind)),
            ("model_instance_name", Text(name)),
            ("model_instance_device_id", Text(&device)),
            ("model_repository", Text(&model)),
            ("model_version", Text(&version)),
            ("model_name", Text(&self.context.name)),
        ]);
        let number = |size: usize| Integer(i64::try_from(size).unwrap_or(i64::MAX));
        let threads = general_threads(&(self.context.options.variables)(), self.share(name).threads);
        let init = Object(vec![
            ("mode", Text(mode.as_str())),
            ("args", args),
            ("model_file", Text(&file)),
            ("model_directory", Text(&model)),
            ("version_directory", Text(&of_version)),
            ("module_name", Text(&place.module)),
            ("backend_directory", backend.as_deref().map_or(Null, Text)),
            ("config", Raw(&places.config)),
            ("inputs", Array(self.inputs.iter().map(tensor_item).collect())),
            ("outputs", Array(self.context.outputs.iter().map(tensor_item).collect())),
            ("decoupled", Bool(self.context.is_decoupled)),
            ("log_verbose", Bool(self.context.options.is_verbose)),
            ("region_sizes", Array(sizes.into_iter().map(number).collect())),
            ("threads", number(threads)),
            ("concurrency", Array([false, true].map(|is_async| number(self.at_once(is_async))).into())),
            ("server_version", Text(env!("CARGO_PKG_VERSION"))),
        ]);
        message::put_init(&init, out)
    }
}

/// Waits until all have initialized, and returns the capabilities that the last reported. They are
/// served meanwhile: a model may call the server from `initialize`.
fn wait_all(starting: &mut [PythonInstance]) -> Result<Capabilities, Error> {
    let pause = if starting.len() > 1 { STARTS_PAUSE } else { START_PAUSE };
    let began = starting.first().map(|instance| instance.model.clock()());
    loop {
        let (mut pending, mut capabilities) = (None, Capabilities::default());
        for instance in &mut *starting {
            match instance.poll_start()? {
                Some(found) => capabilities = found.clone(),
                None => pending = Some(instance),
            }
        }
        match pending {
            Some(instance) => {
                instance.model.check_wanted()?;
                instance.model.check_load_time(began.unwrap_or_default())?;
                instance.link.wait(pause);
            }
            None => return Ok(capabilities),
        }
    }
}

/// A tensor's name and the code of its datatype.
fn tensor_item((name, datatype): &(String, Datatype)) -> JsonItem<'_> {
    JsonItem::Array(vec![JsonItem::Text(name), JsonItem::Integer(message::datatype_code(*datatype).into())])
}
