//! Runs the models of hosted backends: opens a backend when its first model loads, initializes models and instances, and
//! executes batches on the workers. A backend may answer later and from its own threads.

#![expect(clippy::disallowed_types, reason = "taken when a model is loaded or an instance is made, never for a batch")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use smallvec::SmallVec;

use crate::execution::{HostedExecution, ResponseReports};
use crate::limits::HOSTED_OPEN_REQUESTS_MAX;
use crate::triton::abi;
use crate::triton::answers::HostedAnswers;
use crate::triton::backend_object::{HostedBackend, PreferredGroup};
use crate::triton::batcher::HostedBatcher;
use crate::triton::instance_object::{HostedCopy, InstanceObject, InstancePlace};
use crate::triton::library::BackendLibrary;
use crate::triton::model_object::{HostedIdentity, LibraryModel};
use crate::triton::object::{Handle, Owned};
use crate::triton::request::RequestObject;
use crate::triton::services::{self, HostOptions, HostServices};
use backend::{
    Backend, Batch, Computation, ExecutionCounter, InFlightState, Instance, LoadedModel, ReadyReply, Request, Threads,
};
use base::error::Error;
use base::time::Clock;
use model::{InstanceKind, InstanceSeat, ModelSpec};

/// The longest time between two polls while requests are open.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// The host of Triton's backends. One per server.
pub struct TritonHost {
    options: HostOptions,
    /// Opened backends by their file.
    backends: Mutex<BTreeMap<PathBuf, Arc<HostedBackend>>>,
    /// Models that were initialized to complete their configuration, until they are loaded.
    prepared: Mutex<HashMap<(PathBuf, u64), LibraryModel>>,
}

/// A model whose backend may complete its configuration.
pub struct HostedDraft<'a> {
    /// The model's name.
    pub name: &'a str,
    /// Its name in its namespace.
    pub qualified_name: &'a str,
    /// The number of the version.
    pub version: u64,
    /// The directory of the version.
    pub version_directory: &'a Path,
    /// The name of its backend.
    pub backend: &'a str,
    /// The file of the backend's library.
    pub file: &'a str,
    /// The configuration so far: JSON with all defaults.
    pub config: &'a str,
}

/// A backend's changes of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedChanges {
    /// The configuration, in JSON; `None` if the backend left it as it is.
    pub config: Option<String>,
    /// The instance groups that the backend prefers if the configuration has none.
    pub preferred: Vec<PreferredGroup>,
}

impl TritonHost {
    /// A host with these services and options. Opens nothing yet.
    pub fn new(services: &HostServices, options: HostOptions) -> Self {
        services::set(services);
        Self { options, backends: Mutex::default(), prepared: Mutex::default() }
    }

    /// Has a backend initialize a model and complete its configuration. The model is kept for [`Backend::load`].
    ///
    /// # Errors
    /// The backend's error, or that there is no such library.
    pub fn complete(&self, draft: &HostedDraft<'_>) -> Result<HostedChanges, Error> {
        let HostedDraft { name, qualified_name, version, version_directory, backend, file, config } = *draft;
        let hosted = self.backend(backend, &self.find(version_directory, backend, file)?)?;
        let identity = HostedIdentity { name, qualified_name, version, version_directory };
        let model = LibraryModel::new(&hosted, &identity, config, self.options.auto_complete)?;
        let changes = HostedChanges {
            config: model.take_completed().map(|config| config.to_string()),
            preferred: hosted.preferred.clone(),
        };
        lock(&self.prepared).insert((version_directory.to_owned(), version), model);
        Ok(changes)
    }

    /// Drops the model that [`Self::complete`] has kept of a version, if it was not loaded.
    pub fn forget(&self, version_directory: &Path, version: u64) {
        let model = lock(&self.prepared).remove(&(version_directory.to_owned(), version));
        // Outside of the lock: finalizing takes its time.
        drop(model);
    }

    /// Returns true if any model or instance is being finalized, and not for too long.
    pub fn is_finalizing(&self) -> bool {
        services::is_finalizing(self.options.finalize_max)
    }

    /// Finalizes all backends, at the end of the server. Their libraries stay open until the process has ended.
    pub fn finalize(&self) {
        let prepared = std::mem::take(&mut *lock(&self.prepared));
        drop(prepared);
        let backends = std::mem::take(&mut *lock(&self.backends));
        drop(backends);
    }

    /// Finds the library of a backend as Triton does: beside the version, beside the model, then in the directory of
    /// backends.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not found, in Triton's words, or it leads out of the repository.
    fn find(&self, version_directory: &Path, backend: &str, file: &str) -> Result<PathBuf, Error> {
        let version_directory = std::path::absolute(version_directory).unwrap_or_else(|_| version_directory.to_owned());
        let model_directory = version_directory.parent().unwrap_or(&version_directory);
        let own = [&version_directory, model_directory].map(|directory| directory.join(file));
        if let Some(found) = own.into_iter().find(|path| path.is_file()) {
            let repository = model_directory.parent().and_then(|repository| repository.canonicalize().ok());
            let is_within = self.options.follows_links
                || repository.is_some_and(|root| found.canonicalize().is_ok_and(|real| real.starts_with(root)));
            return is_within.then_some(found).ok_or_else(|| {
                Error::invalid(format!(
                    "backend library '{file}' is a link that leads out of the repository, which --follow-links=false refuses"
                ))
            });
        }
        let shared = self.options.backend_directory.join(backend).join(file);
        if shared.is_file() {
            return Ok(shared);
        }
        Err(Error::invalid(format!(
            "unable to find backend library '{file}': searched the directories of the version and of the model, and \
             '{backend}' beneath --backend-directory"
        )))
    }

    /// The opened backend of a file.
    fn backend(&self, name: &str, path: &Path) -> Result<Arc<HostedBackend>, Error> {
        let mut backends = lock(&self.backends);
        if let Some(backend) = backends.get(path) {
            return Ok(Arc::clone(backend));
        }
        let library = BackendLibrary::open(path, &abi::symbols())?;
        let directory = path.parent().unwrap_or(path).to_string_lossy();
        let backend = Arc::new(HostedBackend::new(name, &directory, library, &self.options)?);
        backends.insert(path.to_owned(), Arc::clone(&backend));
        Ok(backend)
    }
}

impl Backend for TritonHost {
    fn name(&self) -> &str {
        "a hosted backend"
    }

    fn load(&self, spec: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let places = spec.instance_groups.iter().flat_map(InstancePlace::of_group).collect();
        self.load_places(spec, directory, places).map(|loaded| Box::new(loaded) as Box<dyn LoadedModel>)
    }
}

impl TritonHost {
    /// Loads a version with one instance, which [`LoadedModel::new_instance`] returns: another
    /// process's part of a model.
    ///
    /// # Errors
    /// The backend's error, or that there is no such library.
    pub fn load_instance(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        place: InstancePlace,
    ) -> Result<Box<dyn LoadedModel>, Error> {
        self.load_places(spec, directory, vec![place]).map(|loaded| Box::new(loaded) as Box<dyn LoadedModel>)
    }

    fn load_places(
        &self,
        spec: &Arc<ModelSpec>,
        directory: &Path,
        places: Vec<InstancePlace>,
    ) -> Result<LoadedHostedModel, Error> {
        let Some(library) = &spec.library else { return Err(Error::internal("the model has no backend to host")) };
        // Versions are directories with their number as the name.
        let version = directory.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
        let version = version.unwrap_or(1);
        let prepared = lock(&self.prepared).remove(&(directory.to_owned(), version));
        let model = match prepared {
            Some(model) => model,
            None => {
                let hosted = self.backend(&spec.backend, &self.find(directory, &spec.backend, &library.file)?)?;
                let qualified_name = &spec.qualified_name();
                let identity =
                    HostedIdentity { name: &spec.name, qualified_name, version, version_directory: directory };
                LibraryModel::new(&hosted, &identity, &spec.config_json, false)?
            }
        };
        model.handle_completed(spec);
        let model = Arc::new(model);
        let shared = self.options.backend_directory.join(&spec.backend);
        let batcher = HostedBatcher::find(spec, &model, directory, &shared, &abi::symbols())?.map(Arc::new);
        if places.iter().any(|place| place.kind != InstanceKind::Cpu) {
            model.backend().object.memory.handle_device();
        }
        let loaded = LoadedHostedModel { model, places: Mutex::default(), batcher, pool: Arc::default() };
        loaded.make_all(places)?;
        Ok(loaded)
    }
}

/// A loaded version.
struct LoadedHostedModel {
    model: Arc<LibraryModel>,
    /// The places of its instances, also of those that left.
    places: Mutex<Vec<InstancePlace>>,
    batcher: Option<Arc<HostedBatcher>>,
    pool: Arc<HostedPool>,
}

/// The instances of a version.
#[derive(Default)]
struct HostedPool {
    /// The instances that are made and not taken yet, by name.
    ready_made: Mutex<HashMap<String, HostedInstance>>,
    /// The pointers of live instances, for the readiness check.
    live: Mutex<Vec<usize>>,
}

impl LoadedHostedModel {
    /// Makes all instances, as Triton does when it loads a model or updates its instances; at the same time if the
    /// backend allows it.
    fn make_all(&self, places: Vec<InstancePlace>) -> Result<(), Error> {
        if self.model.backend().library.has_ready() {
            self.model.caller.start();
        }
        let made: Vec<_> = if self.model.backend().is_parallel {
            thread::scope(|scope| {
                let started: Vec<_> = places.iter().map(|place| scope.spawn(|| self.make(place))).collect();
                let gone = || Err(Error::internal("the thread that makes an instance has ended"));
                started.into_iter().map(|thread| thread.join().unwrap_or_else(|_| gone())).collect()
            })
        } else {
            // The first failure is the last instance that is made.
            places
                .iter()
                .map(|place| self.make(place))
                .scan(false, |has_failed, made| {
                    let before = std::mem::replace(has_failed, *has_failed || made.is_err());
                    (!before).then_some(made)
                })
                .collect()
        };
        let made: Vec<HostedInstance> = made.into_iter().collect::<Result<_, _>>()?;
        let named = made.into_iter().map(|instance| (instance.copy.name.to_string(), instance));
        let mut ready_made = lock(&self.pool.ready_made);
        // Left by an update that failed before they were taken.
        let left = std::mem::replace(&mut *ready_made, named.collect());
        drop(ready_made);
        drop(left);
        let mut known = lock(&self.places);
        known.retain(|known| places.iter().all(|place| place.name != known.name));
        known.extend(places);
        Ok(())
    }

    fn make(&self, place: &InstancePlace) -> Result<HostedInstance, Error> {
        let copy = HostedCopy::new(&self.model, place)?;
        lock(&self.pool.live).push(copy.handle().address());
        let (batcher, pool) = (self.batcher.clone(), Arc::downgrade(&self.pool));
        Ok(HostedInstance { copy, batcher, pool, answers: Vec::new(), is_warm: false })
    }

    /// Any instance, for a trial before the workers take theirs; it goes back when it is dropped.
    fn borrow(&self) -> Result<Box<dyn Instance>, Error> {
        let mut ready_made = lock(&self.pool.ready_made);
        let name = ready_made.keys().min().cloned();
        let instance = name.and_then(|name| ready_made.remove(&name));
        let instance = instance.ok_or_else(|| Error::internal("no instance of the model is free for a trial"))?;
        Ok(Box::new(BorrowedCopy { instance: Some(instance), pool: Arc::downgrade(&self.pool) }))
    }
}

impl LoadedModel for LoadedHostedModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let Some(identity) = threads.instance() else { return self.borrow() };
        if let Some(instance) = lock(&self.pool.ready_made).remove(&identity.name) {
            return Ok(Box::new(instance));
        }
        let place = lock(&self.places).iter().find(|place| place.name == identity.name).cloned();
        let place = place.ok_or_else(|| Error::internal("an instance is not in any instance group"))?;
        Ok(Box::new(self.make(&place)?))
    }

    fn prepare_instances(&self, _: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        self.make_all(seats.iter().map(InstancePlace::of_seat).collect())
    }

    /// A backend may block, and is foreign code.
    fn may_run_inline(&self) -> bool {
        false
    }

    fn computation(&self) -> Computation {
        Computation::OfAnyLength
    }

    fn why_not_inline(&self) -> &str {
        "its backend may block"
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        if !self.model.backend().library.has_ready() {
            return Some(reply);
        }
        let (model, pool) = (Arc::clone(&self.model), Arc::clone(&self.pool));
        self.model.caller.call_back(Box::new(move || {
            let live = lock(&pool.live);
            let is_ready = |address: &usize| {
                let handle = Handle::<InstanceObject>::of_address(*address);
                model.backend().library.instance_ready(handle.any()).is_none_or(|outcome| outcome.is_ok())
            };
            reply(live.iter().all(is_ready));
        }));
        None
    }
}

/// An instance of a hosted backend.
struct HostedInstance {
    copy: HostedCopy,
    batcher: Option<Arc<HostedBatcher>>,
    /// The pool may have the instance: hence weak.
    pool: Weak<HostedPool>,
    /// The answers of the batch that runs, kept for its memory.
    answers: Vec<Arc<HostedAnswers>>,
    is_warm: bool,
}

impl HostedInstance {
    /// The requests of a batch as the backend sees them.
    fn open(&mut self, requests: Vec<Request>, clock: Clock) -> SmallVec<[Handle<RequestObject>; 16]> {
        let began = clock();
        let model = self.copy.model();
        let mut handles = SmallVec::with_capacity(requests.len());
        let counter = requests.iter().find_map(|request| request.responder.executions());
        let execution = counter.map(|counter| Arc::new(HostedExecution::new(counter)));
        self.copy.set_execution(execution.clone());
        for Request { inputs, rows, mut responder, details, .. } in requests {
            // A row without a request counts nothing.
            let reports = Arc::new(ResponseReports::new(responder.executions().cloned()));
            if let Some(execution) = execution.as_ref().filter(|_| responder.executions().is_some()) {
                responder.count_in(Arc::clone(execution) as Arc<dyn ExecutionCounter>);
            }
            let tensors = match model.tensors() {
                Ok(tensors) => tensors,
                Err(error) => {
                    responder.send(Err(error));
                    continue;
                }
            };
            let needs = responder.output_needs.clone();
            let answers = HostedAnswers::new(tensors, responder, rows, (clock, began), reports, &self.copy.shared);
            let answers = Arc::new(answers);
            self.answers.push(Arc::clone(&answers));
            handles.push(Owned::new(RequestObject::new(model, answers, inputs, details, needs)).into_handle());
        }
        handles
    }

    /// Gives requests to the backend. If it fails, they are answered with its error, as Triton's
    /// core does.
    fn execute(&self, handles: &mut [Handle<RequestObject>]) {
        let model = self.copy.model();
        let chains = handles.iter().filter_map(|handle| handle.get().ok()?.details.as_ref());
        let chain = chains.map(|details| details.chain.clone()).max_by_key(|chain| chain.depth()).unwrap_or_default();
        let running = model.caller.begin(&self.copy.name, chain);
        let executed = model.backend().library.execute(self.copy.handle().any(), handles);
        drop(running);
        if let Err(error) = executed {
            for request in handles.iter().filter_map(|handle| handle.take().ok()) {
                request.answers.fail(&error);
            }
        }
    }
}

impl Instance for HostedInstance {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, .. } = batch;
        let mut handles = self.open(requests, clock);
        match self.batcher.clone() {
            None => self.execute(&mut handles),
            Some(batcher) => batcher.split(&mut handles, |part| self.execute(part)),
        }
        self.answers.drain(..).for_each(|answers| answers.handle_run_end());
    }

    fn poll_flight(&mut self, _clock: Clock) -> InFlightState {
        let open = self.copy.shared.open();
        InFlightState {
            batches: usize::from(open > 0),
            has_room: open < HOSTED_OPEN_REQUESTS_MAX,
            look_again: (open > 0).then_some(LOOK_PAUSE),
            ..InFlightState::default()
        }
    }

    fn set_waker(&mut self, waker: Waker) {
        self.copy.shared.set_waker(waker);
    }

    fn is_warm(&self) -> bool {
        self.is_warm
    }

    fn set_warm(&mut self) {
        self.is_warm = true;
    }
}

impl Drop for HostedInstance {
    fn drop(&mut self) {
        let address = self.copy.handle().address();
        if let Some(pool) = self.pool.upgrade() {
            lock(&pool.live).retain(|live| *live != address);
        }
    }
}

/// An instance that is used before a worker takes it.
struct BorrowedCopy {
    instance: Option<HostedInstance>,
    pool: Weak<HostedPool>,
}

impl Instance for BorrowedCopy {
    fn run(&mut self, batch: Batch) {
        if let Some(instance) = &mut self.instance {
            instance.run(batch);
        }
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        self.instance.as_mut().map_or_else(InFlightState::default, |instance| instance.poll_flight(clock))
    }

    fn is_warm(&self) -> bool {
        self.instance.as_ref().is_some_and(|instance| instance.is_warm)
    }

    fn set_warm(&mut self) {
        self.instance.iter_mut().for_each(Instance::set_warm);
    }
}

impl Drop for BorrowedCopy {
    fn drop(&mut self) {
        if let (Some(instance), Some(pool)) = (self.instance.take(), self.pool.upgrade()) {
            lock(&pool.ready_made).insert(instance.copy.name.to_string(), instance);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
