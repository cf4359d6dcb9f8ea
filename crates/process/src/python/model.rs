//! Loads Python models: starts the processes of all instances of a version, and keeps them until the workers take them.
//! An instance that is lost gets a new process, at once if it has ever answered, else after pauses that grow.

#![expect(clippy::disallowed_types, reason = "taken when an instance is made, never for a batch")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::python::context::{ModelProgram, PythonModelContext, PythonOptions};
use crate::python::environment::InterpreterSearch;
use crate::python::host::PythonHost;
use crate::python::inbox::{InboxItem, InstanceInbox};
use crate::python::instance::PythonInstance;
use crate::python::roster::ModelProcess;
use crate::python::starter::{
    CurrentPlaces, ModelPlace, ProcessStarter, START_PAUSE, StartMessage, StartMode, StartPlaces,
};
use crate::python::template::TemplateSlot;
use backend::{Backend, Batch, Computation, InFlightState, Instance, LoadedModel, ReadyReply, Threads};
use base::error::Error;
use base::metrics::Gauge;
use base::time::Clock;
use model::{InstanceSeat, ModelSpec, PythonModel, TensorSpec};

/// The number of times that a shard tries to take the lock of the instances. Each try takes some
/// nanoseconds, and so does each holder.
const LOCK_TRIES: usize = 1024;

/// The backend of Python models. One per server.
pub struct PythonBackend {
    options: Arc<PythonOptions>,
    /// The thread that starts processes, from the first model on.
    host: OnceLock<Result<Arc<PythonHost>, Error>>,
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
    /// The program of its process.
    pub python: &'a PythonModel,
    /// The configuration so far, in JSON.
    pub config: &'a str,
}

/// A loaded version.
struct LoadedPythonModel {
    starter: ProcessStarter,
    /// True if the model has `is_ready`.
    has_opinion: AtomicBool,
    /// Bytes of memory that its processes had when they had started, as far as known of those that came later.
    process_size: AtomicU64,
    instances: Arc<Mutex<InstancePool>>,
}

/// The instances of a version.
#[derive(Default)]
struct InstancePool {
    /// The instances that are made and not taken yet, by name.
    ready_made: HashMap<String, PythonInstance>,
    /// The inboxes of the live instances.
    inboxes: Vec<Weak<InstanceInbox>>,
}

impl InstancePool {
    /// Keeps new instances until their workers take them.
    fn keep(&mut self, started: Vec<PythonInstance>) {
        self.inboxes.retain(|inbox| inbox.strong_count() > 0);
        for instance in started {
            self.inboxes.push(Arc::downgrade(&instance.inbox));
            self.ready_made.insert(instance.name.to_string(), instance);
        }
    }
}

impl PythonBackend {
    /// A backend with these options.
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
        let context = self.context(name, version, python, &place)?;
        let starter = ProcessStarter {
            context: Arc::new(context),
            host: self.host()?,
            message: StartMessage::Python(place),
            inputs: Vec::new(),
            places: CurrentPlaces::new(StartPlaces::of_config(config)),
            template: TemplateSlot::default(),
            mode: StartMode::Complete,
        };
        starter.complete(name)
    }

    /// The processes that run.
    pub fn processes(&self) -> Vec<ModelProcess> {
        self.host.get().and_then(|host| host.as_ref().ok()).map(|host| host.processes()).unwrap_or_default()
    }

    /// Returns true if the process of any instance finalizes now.
    pub fn is_finalizing(&self) -> bool {
        self.options.finalizing.load(Ordering::SeqCst) > 0
    }

    fn host(&self) -> Result<Arc<PythonHost>, Error> {
        let PythonOptions { host_log, clock, variables, .. } = *self.options;
        self.host.get_or_init(|| PythonHost::start("python-host", host_log, clock, variables())).clone()
    }

    /// The place of a model's files. `directory` is that of the version.
    fn place(&self, python: &PythonModel, backend: &str, version: u64, directory: &Path) -> ModelPlace {
        // Models see these paths, and may change the directory that they run in.
        let directory = &std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let backend_directory = python.is_backend.then(|| self.options.backend_directory.join(backend));
        ModelPlace {
            model_directory: directory.parent().unwrap_or(directory).to_owned(),
            version_directory: directory.to_owned(),
            file: backend_directory.as_deref().unwrap_or(directory).join(&python.file),
            module: python.module_name(version),
            backend_directory,
        }
    }

    fn context(
        &self,
        name: &str,
        version: u64,
        python: &PythonModel,
        place: &ModelPlace,
    ) -> Result<PythonModelContext, Error> {
        let variables = (self.options.variables)();
        let variable = |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let search = InterpreterSearch {
            execution_environment: python.environment.as_deref(),
            model_directory: &place.model_directory,
            configured: self.options.interpreter.as_deref(),
            variable: &variable,
            archives: &self.options.archives,
        };
        // The runners of other frameworks import these, which start threads.
        let forks = if python.is_own() { Some(false) } else { python.forks.or(self.options.forks) };
        let program = ModelProgram::Python {
            interpreter: search.find()?,
            execute_timeout: python.execute_timeout,
            concurrency: python.concurrency,
            forks,
        };
        Ok(PythonModelContext::new(name, version, program, &self.options))
    }
}

impl Backend for PythonBackend {
    fn name(&self) -> &str {
        "python"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let Some(python) = &spec.python else { return Err(Error::internal("the model is no Python model")) };
        // Versions are directories with their number as the name.
        let version = directory.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let version = version.unwrap_or(1);
        let place = self.place(python, &spec.backend, version, directory);
        let tensors =
            |tensors: &[TensorSpec]| tensors.iter().map(|tensor| (tensor.name.clone(), tensor.datatype)).collect();
        let context = self.context(&spec.name, version, python, &place)?;
        let context = context.with_qualified_name(&spec.qualified_name());
        let is_checked = python.checks_outputs.unwrap_or(!self.options.passes_outputs);
        let context = context
            .with_outputs(tensors(&spec.outputs), spec.is_decoupled)
            .with_declared(is_checked.then(|| Arc::clone(spec)));
        let starter = ProcessStarter {
            context: Arc::new(context),
            host: self.host()?,
            message: StartMessage::Python(place),
            inputs: tensors(&spec.inputs),
            places: CurrentPlaces::new(StartPlaces::new(spec)),
            template: TemplateSlot::default(),
            mode: StartMode::Serve,
        };
        starter.load()
    }
}

impl ProcessStarter {
    /// Starts one process, and returns the configuration that it completed.
    ///
    /// # Errors
    /// The reason why it could not.
    pub(super) fn complete(&self, name: &str) -> Result<String, Error> {
        let mut instance = self.start(name)?;
        self.wait_completed(&mut instance)
    }

    /// Waits for what a process completes: a configuration, or the import of a template.
    ///
    /// # Errors
    /// The reason why it could not.
    pub(super) fn wait_completed(&self, instance: &mut PythonInstance) -> Result<String, Error> {
        let began = self.context.clock()();
        loop {
            if let Some(completed) = instance.poll_completed()? {
                return Ok(completed);
            }
            self.context.check_wanted()?;
            self.context.check_load_time(began)?;
            instance.link.wait(START_PAUSE);
        }
    }

    /// Starts the processes of all instances.
    ///
    /// # Errors
    /// The first error of any of them.
    pub(super) fn load(self) -> Result<Box<dyn LoadedModel>, Error> {
        let (started, capabilities) = self.start_all()?;
        let sizes = started.iter().map(|instance| instance.process.memory());
        let process_size = AtomicU64::new(sizes.sum::<u64>() + self.template.memory());
        let mut pool = InstancePool::default();
        pool.keep(started);
        let (starter, has_opinion) = (self, AtomicBool::new(capabilities.has_is_ready));
        Ok(Box::new(LoadedPythonModel { starter, has_opinion, process_size, instances: Arc::new(Mutex::new(pool)) }))
    }
}

impl LoadedModel for LoadedPythonModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let Some(identity) = threads.instance() else { return self.borrow_instance() };
        let ready_made = lock(&self.instances).ready_made.remove(&identity.name);
        // Its cores were set before its program was started: libraries have counted them since.
        match ready_made {
            Some(instance) => Ok(Box::new(instance)),
            None => Ok(Box::new(self.restart(&identity.name)?)),
        }
    }

    /// The answers come from another process.
    fn may_run_inline(&self) -> bool {
        false
    }

    fn computation(&self) -> Computation {
        Computation::Elsewhere
    }

    fn prepare_instances(&self, spec: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        let before = self.starter.places();
        self.starter.set_places(Arc::new(before.updated(spec, seats)));
        let outcome = self.starter.start_these(seats.iter().map(|seat| &seat.name));
        let (started, _) = outcome.inspect_err(|_| self.starter.set_places(Arc::clone(&before)))?;
        let sizes: Vec<u64> = started.iter().map(|instance| instance.process.memory()).collect();
        let had = self.process_size.load(Ordering::Relaxed).checked_div(before.count()).unwrap_or(0);
        let each = sizes.iter().sum::<u64>().checked_div(sizes.len() as u64).unwrap_or(had);
        self.process_size.store(each.saturating_mul(self.starter.places().count()), Ordering::Relaxed);
        let mut pool = lock(&self.instances);
        // Left by an update that failed before they were taken. Each waits for its process, so they end behind the lock.
        let left = std::mem::take(&mut pool.ready_made);
        pool.keep(started);
        drop(pool);
        drop(left);
        Ok(())
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        if !self.has_opinion.load(Ordering::Relaxed) {
            return Some(reply);
        }
        // Called on a shard, which never blocks on a lock: other threads hold this one for an
        // insertion or two.
        let pool = (0..LOCK_TRIES).find_map(|_| {
            std::hint::spin_loop();
            self.instances.try_lock().ok()
        });
        let mut inboxes: Vec<_> = pool.iter().flat_map(|pool| pool.inboxes.iter().filter_map(Weak::upgrade)).collect();
        if !self.starter.context.program.is_library() {
            // The instances of a Python model are alike; a backend is asked for each.
            inboxes.truncate(1);
        }
        match inboxes.pop() {
            Some(last) if inboxes.is_empty() => last.push(InboxItem::AskReady(reply)),
            Some(last) => ask_all(inboxes.into_iter().chain([last]).collect(), reply),
            None => reply(false),
        }
        None
    }

    fn why_not_inline(&self) -> &str {
        if self.starter.context.program.is_library() {
            "its backend is in a process of its own"
        } else {
            "it sleeps or waits"
        }
    }

    fn process_memory(&self) -> Option<&Gauge> {
        Some(&self.starter.context.memory)
    }

    fn handle_unload(&self) {
        self.starter.context.handle_unload();
        self.starter.template.handle_unload();
    }

    fn process_size(&self) -> u64 {
        self.process_size.load(Ordering::Relaxed)
    }

    fn refuses_while_lost(&self) -> bool {
        true
    }
}

/// Asks several instances: the model is ready if all its instances are.
fn ask_all(inboxes: Vec<Arc<InstanceInbox>>, reply: ReadyReply) {
    let shared = Arc::new(SharedReadyReply { left: AtomicUsize::new(inboxes.len()), reply: Mutex::new(Some(reply)) });
    for inbox in inboxes {
        let shared = Arc::clone(&shared);
        inbox.push(InboxItem::AskReady(Box::new(move |is_ready| shared.handle(is_ready))));
    }
}

/// The reply to one question that several instances answer: the first no, or the last yes.
struct SharedReadyReply {
    left: AtomicUsize,
    reply: Mutex<Option<ReadyReply>>,
}

impl SharedReadyReply {
    fn handle(&self, is_ready: bool) {
        let is_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last || !is_ready {
            let reply = self.reply.lock().unwrap_or_else(PoisonError::into_inner).take();
            reply.into_iter().for_each(|reply| reply(is_ready));
        }
    }
}

impl LoadedPythonModel {
    fn restart(&self, name: &str) -> Result<PythonInstance, Error> {
        let instance = self.starter.restart(name)?;
        let mut pool = lock(&self.instances);
        pool.inboxes.retain(|inbox| inbox.strong_count() > 0);
        pool.inboxes.push(Arc::downgrade(&instance.inbox));
        Ok(instance)
    }

    /// Any instance, for a trial before the workers take theirs; it goes back when it is dropped.
    fn borrow_instance(&self) -> Result<Box<dyn Instance>, Error> {
        let mut pool = lock(&self.instances);
        let name = pool.ready_made.keys().min().cloned();
        let instance = name.as_ref().and_then(|name| pool.ready_made.remove(name));
        let instance = instance.ok_or_else(|| Error::internal("no instance of the model is free for a trial"))?;
        Ok(Box::new(BorrowedInstance { instance: Some(instance), instances: Arc::clone(&self.instances) }))
    }
}

/// An instance that is used before a worker takes it.
struct BorrowedInstance {
    instance: Option<PythonInstance>,
    instances: Arc<Mutex<InstancePool>>,
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

    fn is_warm(&self) -> bool {
        self.instance.as_ref().is_some_and(|instance| instance.is_warm())
    }

    fn set_warm(&mut self) {
        self.instance.iter_mut().for_each(Instance::set_warm);
    }
}

impl Drop for BorrowedInstance {
    fn drop(&mut self) {
        if let Some(instance) = self.instance.take() {
            lock(&self.instances).ready_made.insert(instance.name.to_string(), instance);
        }
    }
}

fn lock(pool: &Mutex<InstancePool>) -> MutexGuard<'_, InstancePool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}
