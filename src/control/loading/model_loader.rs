//! Loads models: configuration, labels, engine, placement. [`ModelLoader::load_version`] is the only path from a
//! model's directory to a loaded version, at start and at run time. Runs on load threads; knows nothing of shards.

pub mod examination;
pub mod regrouped;
mod risks;
mod trial_runs;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::gpu::Gpus;
use crate::backend::{Backend, EnsembleModel, LoadedModel, RunMemory, Threads, threads};
use crate::control::engines::config_completion::{ConfigCompletion, LibraryCompletion, read_labels};
use crate::control::engines::engine::{EngineName, Engines};
use crate::control::engines::gpu_engine::{GpuEngine, HostGpus};
use crate::control::engines::hosted_backends;
use crate::control::engines::isolation::{self, EngineProcesses};
use crate::control::engines::library_isolation::LibraryIsolation;
use crate::control::engines::model_services::ModelServices;
use crate::control::engines::python;
use crate::control::engines::pytorch_engine::{self, PytorchEngine};
use crate::control::loading::agents::StartedAgents;
use crate::control::loading::batch_axis;
use crate::control::loading::checksum::VerifiedFiles;
use crate::control::loading::engine_load::EngineLoad;
use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::load_log::{
    check_accelerators, has_named_engine, log_cpu_fallback, log_loaded, log_unused_accelerators, served_with,
};
use crate::control::loading::load_probe::ProbeFindings;
use crate::control::loading::load_trial::LoadTrials;
use crate::control::loading::loaded_version::{LoadBasis, LoadedVersion};
use crate::control::loading::model_loader::risks::KnownRisks;
use crate::control::loading::model_loader::trial_runs::{TrialEngines, TrialSubject, VersionFiles};
use crate::control::loading::placement::{InstanceSite, PlacementChoice};
use crate::control::loading::warm_up;
use crate::control::machine::process_memory;
use crate::control::machine::run_watcher::RunWatcher;
use crate::control::repository::hub_graph;
use crate::control::repository::model_identity::{self, HashedFiles};
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::pinned_files::PinnedFiles;
use crate::crash::{self, RunLabel};
use crate::engines::gpu::GpuModel;
use crate::error::Error;
use crate::limits::MODEL_SIZE_MAX;
use crate::log;
use crate::metrics::GpuBoard;
use crate::model::config::ConfigDraft;
use crate::model::ensemble::ComposingModels;
use crate::model::labels::Labels;
use crate::model::platform::{ONNX_FILENAME, PYTHON_FILENAME, PYTORCH_BACKEND};
use crate::model::repository::changes::{VersionChanges, version_changes};
use crate::model::repository::index::{LoadProgress, LoadStage};
use crate::model::repository::{ChangeMark, ModelDirectory};
use crate::model::{ModelIdentity, ModelSpec, VersionPolicy};
use crate::process::isolation::IsolatedBackend;
use crate::process::python::ModelProcess;
use crate::process::triton::{AgentHost, TritonHost};
use crate::process::triton_process::IsolatedLibraries;
use crate::runtime::clock;
use crate::settings::{Compat, Settings};
use crate::time::Instant;
use crate::transformer::Operators;

/// A model's directory and the source that its files are read from.
#[derive(Clone, Copy)]
pub struct ModelLocation<'a> {
    /// The source that files are read from.
    pub source: &'a ModelSource,
    /// The listing of the model's directory.
    pub directory: &'a ModelDirectory,
}

/// A model's configuration as read, before it is completed for each version.
pub struct OpenedConfig {
    draft: ConfigDraft,
    labels: BTreeMap<String, Arc<Labels>>,
    /// The versions that the version policy selects, the highest first.
    pub versions: Vec<u64>,
    /// The composing models of an ensemble.
    composing: Vec<String>,
    /// Its files that have checksums.
    verified: VerifiedFiles,
}

/// A hash of what all versions share but for the version policy.
fn settings_mark(draft: &ConfigDraft, directory: &ModelDirectory) -> u64 {
    draft.mark_without_policy() ^ directory.mark.files
}

/// The versions of a model that serve while it is loaded again. A version whose marks did not change is not loaded.
#[derive(Clone, Debug, Default)]
pub struct ServingVersions {
    /// The mark of what all versions share (configuration, labels); `None` to load all again.
    pub shared: Option<u64>,
    /// The same but for the version policy.
    pub settings: Option<u64>,
    /// Each version's number and the mark of its directory.
    pub versions: Vec<(u64, u64)>,
}

/// Loads model versions. Shared by all load threads.
pub struct ModelLoader {
    settings: Arc<Settings>,
    engines: Engines,
    run_memory: Arc<RunMemory>,
    host_gpus: HostGpus,
    services: ModelServices,
    run_watcher: RunWatcher,
    /// `None` if loads are never tried.
    trials: Option<LoadTrials>,
    /// True if the server serves already.
    has_started: AtomicBool,
    /// True if Python models are loaded, which starts their processes.
    runs_python: bool,
    /// `None` in a process that is one already.
    engine_processes: Option<EngineProcesses>,
    library_isolation: Option<LibraryIsolation>,
    /// `None` without agents that are libraries.
    agents: Option<AgentHost>,
}

impl ModelLoader {
    /// Opens the engine library that the flags name, if they name one. `services` are for models with code of their
    /// own.
    ///
    /// # Errors
    /// `InvalidArgument` for an unusable library; `Unavailable` without a required engine or GPU.
    pub fn new(settings: &Arc<Settings>, services: ModelServices) -> Result<Self, Error> {
        pytorch_engine::check_named(&settings.backend_config.pytorch)?;
        let mut engines = Engines::new(&settings.backend_config)?;
        engines.frameworks().open_named()?;
        // Only for tests of Triton's examples, whose servers otherwise stand in for others.
        if cfg!(feature = "test-hooks") && settings.compat == Compat::Triton {
            engines = engines.as_tritons(&services.metrics);
        }
        let engines = engines.with_python(Arc::new(python::engine(settings, &services)));
        let engines = engines.with_host(Arc::new(hosted_backends::host(settings, &services)));
        let agents = hosted_backends::agents(settings, &services);
        let loader = Self { agents, ..Self::of(settings, engines, services) };
        loader.host_gpus.check_required()?;
        Ok(loader)
    }

    /// Creates a loader for a process that tries one load: without Python.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_trial(settings: &Arc<Settings>) -> Result<Self, Error> {
        let engines = Engines::new(&settings.backend_config)?;
        Ok(Self {
            engine_processes: None,
            library_isolation: None,
            ..Self::of(settings, engines, ModelServices::new())
        })
    }

    fn of(settings: &Arc<Settings>, engines: Engines, services: ModelServices) -> Self {
        let (host_gpus, run_watcher) = (HostGpus::new(settings), RunWatcher::default());
        let run_memory = Arc::new(RunMemory::new(process_memory::run_max(settings)));
        let engines = engines.with_pytorch(settings.backend_config.pytorch.clone());
        Self {
            settings: Arc::clone(settings),
            engines: engines.with_run_memory(Arc::clone(&run_memory)),
            run_memory,
            host_gpus,
            library_isolation: Some(LibraryIsolation::new(settings, &services)),
            services,
            run_watcher,
            trials: None,
            has_started: AtomicBool::new(false),
            runs_python: true,
            engine_processes: Some(EngineProcesses::default()),
            agents: None,
        }
    }

    /// Has loads tried in processes of their own first.
    pub fn with_trials(self, trials: LoadTrials) -> Self {
        Self { trials: Some(trials), ..self }
    }

    /// Returns the server's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The models at start are loaded.
    pub fn handle_started(&self) {
        self.has_started.store(true, Ordering::SeqCst);
    }

    /// Returns the number of slow loads, beside which as many others may run.
    pub fn slow_loads(&self) -> usize {
        self.trials.as_ref().map_or(0, LoadTrials::slow)
    }

    /// Returns the watcher of all models' runs.
    pub const fn run_watcher(&self) -> &RunWatcher {
        &self.run_watcher
    }

    /// Returns a loader for configurations alone: Python models are completed, but not loaded.
    pub fn without_python_models(self) -> Self {
        Self { runs_python: false, ..self }
    }

    /// Returns the server's services for models with code of their own.
    pub const fn services(&self) -> &ModelServices {
        &self.services
    }

    /// Returns true if any model finalizes now, which takes a limited time.
    pub fn is_finalizing(&self) -> bool {
        let is_hosted = self.engines.host().is_some_and(TritonHost::is_finalizing);
        let is_isolated = self.library_isolation.as_ref().is_some_and(LibraryIsolation::is_finalizing);
        is_hosted || is_isolated || self.engines.python().is_some_and(|python| python.is_finalizing())
    }

    /// The processes of all models.
    pub fn model_processes(&self) -> Vec<ModelProcess> {
        let of_python = self.engines.python().map(|python| python.processes());
        let of_engines = self.engine_processes.as_ref().map(EngineProcesses::running);
        let of_libraries = self.library_isolation.as_ref().map(LibraryIsolation::running);
        [of_python, of_engines, of_libraries].into_iter().flatten().flatten().collect()
    }

    /// Ends the backends that are shared libraries: no model is left, and the server ends.
    pub fn finalize_backends(&self) {
        self.engines.host().into_iter().for_each(TritonHost::finalize);
    }

    /// Returns the GPUs of this machine. The first call searches for them.
    pub fn gpus(&self) -> &Gpus {
        self.host_gpus.gpus()
    }

    /// Returns the bytes of pinned memory in use.
    pub fn pinned_used(&self) -> usize {
        self.host_gpus.pinned_used()
    }

    /// Returns the memory budget for runs of the embedded engine.
    pub const fn run_memory(&self) -> &Arc<RunMemory> {
        &self.run_memory
    }

    /// Returns the metrics of the GPUs.
    pub const fn gpu_board(&self) -> &Arc<GpuBoard> {
        self.host_gpus.board()
    }

    /// Loads the versions that the version policy selects and that do not already serve unchanged.
    ///
    /// # Errors
    /// The reason that nothing is published: one version that fails, fails the whole load.
    pub fn load_model(
        &self,
        location: ModelLocation<'_>,
        serving: &ServingVersions,
        composing_models: &ComposingModels,
        progress: &LoadProgress,
    ) -> Result<(Vec<LoadedVersion>, VersionChanges), LoadFailure> {
        progress.set_stage(LoadStage::Reading);
        let _lease = location.source.lease(location.directory)?;
        let own = (location.source, location.directory);
        let agents = StartedAgents::begin(self.agents.as_ref(), own, &self.settings)?;
        let place = agents.as_ref().and_then(StartedAgents::place);
        let location = place.map_or(location, |(source, directory)| ModelLocation { source, directory });
        let opened = self.open(location)?;
        let (mut loaded, changes) = self.load_opened(location, &opened, serving, composing_models, progress)?;
        opened.verified.check(&location.source.repository)?;
        if let Some(agents) = agents {
            agents.handle_loaded(&mut loaded);
        }
        Ok((loaded, changes))
    }

    fn load_opened(
        &self,
        location: ModelLocation<'_>,
        opened: &OpenedConfig,
        serving: &ServingVersions,
        composing_models: &ComposingModels,
        progress: &LoadProgress,
    ) -> Result<(Vec<LoadedVersion>, VersionChanges), LoadFailure> {
        if !opened.composing.is_empty() {
            return self.load_ensemble(location, serving, opened, composing_models);
        }
        let ChangeMark { shared, versions, .. } = &location.directory.mark;
        let mark = |version: u64| versions.iter().find(|(have, _)| *have == version).map_or(0, |(_, mark)| *mark);
        let wanted: Vec<_> = opened.versions.iter().map(|version| (*version, mark(*version))).collect();
        // Another version policy is no reason to load the versions again that it still selects.
        let settings = Some(settings_mark(&opened.draft, location.directory));
        let is_same = serving.shared == Some(*shared) || serving.settings == settings;
        let changes = VersionChanges { settings, ..version_changes(&serving.versions, &wanted, is_same) };
        progress.set_stage(LoadStage::Loading);
        let mut loaded = Vec::with_capacity(changes.loaded.len());
        for version in &changes.loaded {
            progress.set_versions(loaded.len(), changes.loaded.len());
            let outcome = self.load_version(location, opened, *version);
            loaded.push(outcome.map_err(|error| LoadFailure::Version(*version, error))?);
        }
        Ok((loaded, changes))
    }

    /// Loads an ensemble. All its versions are checked against the composing models every time, whatever their marks:
    /// those models may have changed.
    fn load_ensemble(
        &self,
        location: ModelLocation<'_>,
        serving: &ServingVersions,
        opened: &OpenedConfig,
        composing_models: &ComposingModels,
    ) -> Result<(Vec<LoadedVersion>, VersionChanges), LoadFailure> {
        let wanted: Vec<_> = opened.versions.iter().map(|version| (*version, 0)).collect();
        let changes = version_changes(&serving.versions, &wanted, false);
        let mut loaded = Vec::with_capacity(changes.loaded.len());
        for version in &changes.loaded {
            let began = clock::now();
            let OpenedConfig { draft, labels, .. } = opened;
            let spec = self.completion().complete(location.source, location.directory, *version, draft, labels);
            let spec = spec.map_err(|error| LoadFailure::Version(*version, error))?;
            let mut spec = composing_models.resolve(spec).map_err(LoadFailure::Composition)?;
            self.identify(&mut spec, |spec| Some(model_identity::without_files(spec, *version)));
            let spec = Arc::new(spec);
            let took = clock::now().since(began);
            log::info(&format!("loaded ensemble '{}' version {version} of {}", spec.name, opened.composing.join(", ")));
            let choice = PlacementChoice::new(InstanceSite::Ensemble, "it is an ensemble");
            loaded.push(LoadedVersion {
                configured: Arc::clone(&spec),
                spec,
                version: *version,
                model: Arc::new(EnsembleModel),
                choice,
                took,
                files_size: 0,
                registration: None,
                basis: None,
                run_limit: None,
            });
        }
        Ok((loaded, changes))
    }

    /// Returns the composing models of an ensemble; empty for other models, and when the
    /// configuration cannot be read: the load then fails with the reason.
    pub fn composing(&self, ModelLocation { source, directory }: ModelLocation<'_>) -> Vec<String> {
        source.draft(directory, &self.settings).map(|draft| draft.composing()).unwrap_or_default()
    }

    /// Reads a model's configuration and labels, and applies the version policy.
    ///
    /// # Errors
    /// [`LoadFailure::Config`] for an unreadable or invalid file, [`LoadFailure::Policy`] when no version is selected.
    pub fn open(&self, ModelLocation { source, directory }: ModelLocation<'_>) -> Result<OpenedConfig, LoadFailure> {
        let name = &directory.name;
        if directory.configs.is_empty() && directory.given.is_none() && self.settings.auto_complete {
            let is_python = directory.beside.iter().any(|file| file == PYTHON_FILENAME);
            let file = if is_python { PYTHON_FILENAME } else { ONNX_FILENAME };
            directory.check_has_version(file).map_err(LoadFailure::NoModel)?;
        }
        let draft = source.draft(directory, &self.settings)?;
        // Before all other checks, as Triton's agents come before the configuration is checked.
        let verified = VerifiedFiles::verify(source, directory, &draft.checksums()?)?;
        if let Err(missing) = directory.check_has_version(draft.model_filename()) {
            return Err(draft.stated_fault().map_or(LoadFailure::Policy(missing), LoadFailure::Config));
        }
        draft.notes().iter().for_each(|note| log::info(&format!("'{name}': {note}")));
        if self.host_gpus.is_off() && draft.asks_for_gpu() {
            log::warning(&format!("'{name}' asks for a GPU and is served on the CPU: --gpu=off is given"));
        }
        // A Python model that completes its configuration sees it like this, too.
        let draft = if self.host_gpus.is_off() { draft.without_gpus() } else { draft };
        let labels = read_labels(source, directory, &draft)?;
        let choice = directory.choose_versions(&draft.version_policy()).map_err(LoadFailure::Policy)?;
        if let VersionPolicy::Specific(_) = draft.version_policy() {
            for version in &choice.missing {
                log::warning(&format!("'{name}' has no version {version}, which its version policy names"));
            }
        }
        let composing = draft.composing();
        Ok(OpenedConfig { draft, labels, versions: choice.versions, composing, verified })
    }

    /// Loads one version of a model, checks its warm-up and decides where it runs. If the load on a GPU fails and the
    /// configuration does not require a GPU, the model is loaded on the CPU.
    ///
    /// # Errors
    /// The error of the configuration, the engine, the warm-up or the placement.
    pub fn load_version(
        &self,
        location: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
    ) -> Result<LoadedVersion, Error> {
        let loaded = self.try_load_version(location, opened, version);
        if let (Some(host), Some(_)) = (self.engines.host(), opened.draft.library()) {
            // A model that was initialized to complete its configuration and was not loaded is finalized.
            host.forget(&location.source.root.join(location.directory.version_path(version)), version);
        }
        loaded
    }

    fn try_load_version(
        &self,
        location: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
    ) -> Result<LoadedVersion, Error> {
        let began = clock::now();
        self.check_file(location, opened, version)?;
        let is_wanted = |trials: &&LoadTrials| trials.wants(!self.has_started.load(Ordering::SeqCst));
        let trials = self.trials.as_ref().filter(is_wanted);
        let is_framework = opened.draft.framework_filename().is_some();
        // Before its configuration is completed: for that, too, a library reads the file.
        let mut findings = ProbeFindings::default();
        if let Some(trials) = trials.filter(|_| is_framework) {
            findings = trials.run(location.source, location.directory, version)?;
        }
        let completed = self.complete_config(location, &opened.draft, &opened.labels, version)?;
        check_accelerators(self.engines.missing_accelerators(&completed.spec)?, self.settings.strict_accelerators)?;
        // Found before the trial, whose process has little time and memory for a compiler.
        let is_native = opened.draft.pytorch_filename().is_some()
            && matches!(self.engines.pytorch(&completed.spec)?, PytorchEngine::Native(_));
        let may_be_tried = (opened.draft.onnx_filename().is_some() || is_native) && !completed.spec.is_on_gpu();
        let known = match may_be_tried {
            true => self.known_risks(location, version, &completed.spec, trials)?,
            false => KnownRisks { trust: self.trust(location, version, &completed.spec), findings },
        };
        log_unused_accelerators(&completed.spec);
        let loaded = self.load_or_use_cpu(location, opened, version, completed, began, &known)?;
        let Some(why) = &loaded.choice.no_batch_axis else { return Ok(loaded) };
        batch_axis::log_refuted(&loaded.spec, why);
        // Before the second copy is there.
        drop(loaded.model);
        let completed = if opened.draft.is_of_hub() {
            self.complete_row_by_row(location, opened, version)?
        } else {
            let draft = opened.draft.clone().without_batch_axis();
            self.complete_config(location, &draft, &opened.labels, version)?
        };
        self.load_or_use_cpu(location, opened, version, completed, began, &known)
    }

    fn load_or_use_cpu(
        &self,
        location: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
        completed: CompletedConfig<'_>,
        began: Instant,
        known: &KnownRisks,
    ) -> Result<LoadedVersion, Error> {
        match (self.load_completed(location, opened, version, &completed, began, known), completed.cpu_spec) {
            (Err(why), Some(spec)) => {
                log_cpu_fallback(&spec, &why);
                log_unused_accelerators(&spec);
                let completed = CompletedConfig { spec, gpu_engine: None, cpu_spec: None };
                self.load_completed(location, opened, version, &completed, began, known)
            }
            (outcome, _) => outcome,
        }
    }
}

impl ModelLoader {
    /// The form of the graph of a model, if it is written at load.
    fn operators(&self, spec: &ModelSpec) -> Operators {
        let is_written = hub_graph::is_written(&spec.default_model_filename);
        if is_written { self.engines.operators(spec) } else { Operators::default() }
    }

    /// Opens the model file and its files of tensors, if they fit into the memory.
    fn pin(
        &self,
        source: &ModelSource,
        folder: &str,
        draft: &ConfigDraft,
        spec: &ModelSpec,
    ) -> Result<PinnedFiles, Error> {
        let pinned = PinnedFiles::new(source, folder, draft, self.operators(spec))?;
        process_memory::check_files(&spec.name, pinned.files_size, &self.settings)?;
        Ok(pinned)
    }

    /// Refuses, before it is read, a model file larger than the memory. A missing one fails later.
    fn check_file(&self, location: ModelLocation<'_>, opened: &OpenedConfig, version: u64) -> Result<(), Error> {
        let ModelLocation { source, directory } = location;
        let draft = &opened.draft;
        draft.check_backend()?;
        let name = draft.onnx_filename().or_else(|| draft.tree_filename()).or_else(|| draft.pytorch_filename());
        let Some(name) = name else { return Ok(()) };
        let path = format!("{}/{name}", directory.version_path(version));
        let size = source.repository.open_file(&path).and_then(|file| file.metadata()).map_or(0, |known| known.len());
        process_memory::check_files(&directory.name, size, &self.settings)
    }
}

/// The completed configuration of a version, and the engine of its instances on GPUs.
struct CompletedConfig<'a> {
    spec: Arc<ModelSpec>,
    /// `None` without instances on GPUs.
    gpu_engine: Option<GpuEngine<'a>>,
    /// The configuration with all instances on the CPU, if it does not require a GPU.
    cpu_spec: Option<Arc<ModelSpec>>,
}

impl ModelLoader {
    fn completion(&self) -> ConfigCompletion<'_> {
        ConfigCompletion {
            settings: &self.settings,
            python: self.engines.python(),
            host: self.engines.host(),
            isolated: self.library_isolation.as_ref().map(|isolated| isolated as &dyn LibraryCompletion),
            frameworks: self.engines.frameworks(),
            is_row_by_row: false,
        }
    }

    /// Completes the configuration of a folder of the hub whose rows depend on each other.
    fn complete_row_by_row(
        &self,
        ModelLocation { source, directory }: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
    ) -> Result<CompletedConfig<'_>, Error> {
        let completion = ConfigCompletion { is_row_by_row: true, ..self.completion() };
        let spec = completion.complete(source, directory, version, &opened.draft, &opened.labels)?;
        Ok(CompletedConfig { spec: Arc::new(spec), gpu_engine: None, cpu_spec: None })
    }

    /// Completes the configuration of a version and chooses the engine of its instances on GPUs.
    fn complete_config(
        &self,
        ModelLocation { source, directory }: ModelLocation<'_>,
        draft: &ConfigDraft,
        labels: &BTreeMap<String, Arc<Labels>>,
        version: u64,
    ) -> Result<CompletedConfig<'_>, Error> {
        if draft.library().is_some() && !self.host_gpus.is_off() {
            // Like a Python model, a hosted backend uses its GPUs by itself.
            let draft = draft.clone().with_gpus(self.host_gpus.support(self.settings.uses_gpu_unasked));
            let spec = self.completion().complete(source, directory, version, &draft, labels).map(Arc::new)?;
            return Ok(CompletedConfig { spec, gpu_engine: None, cpu_spec: None });
        }
        let complete =
            |draft: &ConfigDraft| self.completion().complete(source, directory, version, draft, labels).map(Arc::new);
        if self.host_gpus.is_off() || !draft.may_use_gpu() {
            return Ok(CompletedConfig { spec: complete(draft)?, gpu_engine: None, cpu_spec: None });
        }
        // A Python model uses its GPU by itself: the server only tells each process its index.
        if draft.python()?.is_some() {
            let spec = complete(&draft.clone().with_gpus(self.host_gpus.support(false)))?;
            return Ok(CompletedConfig { spec, gpu_engine: None, cpu_spec: None });
        }
        let with = |takes_auto| complete(&draft.clone().with_gpus(self.host_gpus.support(takes_auto)));
        let spec = with(self.settings.uses_gpu_unasked)?;
        if !spec.is_on_gpu() {
            return Ok(CompletedConfig { spec, gpu_engine: None, cpu_spec: None });
        }
        // A second completion in which KIND_AUTO means CPU: the fallback, unless a group is of KIND_GPU.
        let cpu_spec = Some(with(false)?).filter(|cpu_spec| !cpu_spec.is_on_gpu());
        let folder = directory.version_path(version);
        let file = source.read(&format!("{folder}/{}", spec.default_model_filename), MODEL_SIZE_MAX)?;
        let reference = || {
            let pinned = PinnedFiles::new(source, &folder, draft, self.operators(&spec))?;
            pinned.load(self.engines.choose(&spec)?, &spec, &source.root.join(&folder))
        };
        match (self.host_gpus.choose(&spec, &file, &self.engines, reference), cpu_spec) {
            (Ok(gpu_engine), cpu_spec) => Ok(CompletedConfig { spec, gpu_engine: Some(gpu_engine), cpu_spec }),
            (Err(why), Some(cpu_spec)) => {
                log_cpu_fallback(&spec, &why);
                Ok(CompletedConfig { spec: cpu_spec, gpu_engine: None, cpu_spec: None })
            }
            (Err(why), None) => {
                let prefix = format!("model '{}' has an instance group of KIND_GPU and cannot run there: ", spec.name);
                Err(Error::new(why.code(), format!("{prefix}{why}; --gpu=off serves it on the CPU")))
            }
        }
    }

    fn load_completed(
        &self,
        ModelLocation { source, directory }: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
        CompletedConfig { spec, gpu_engine, .. }: &CompletedConfig<'_>,
        began: Instant,
        known: &KnownRisks,
    ) -> Result<LoadedVersion, Error> {
        let run_limit = self.run_watcher.limit(spec, &self.settings)?;
        if (spec.python.is_some() || spec.library.is_some()) && !self.runs_python {
            return Ok(LoadedVersion::not_loaded(spec, version, run_limit));
        }
        let (processes, isolated_library) = self.processes(spec, known)?;
        let path = source.root.join(directory.version_path(version));
        let backend = match isolated_library {
            Some(isolated) => Some(isolated as &dyn Backend),
            None => self.backend(spec, gpu_engine.as_ref())?,
        };
        let mut used = backend;
        let (model, choice, hashed, files_size) = threads::enter(1, |threads: &Threads| {
            let _note = crash::note(RunLabel::of_load(&spec.name, version), std::iter::empty());
            let read = |path: &str, size_max| source.read(&directory.file(path), size_max);
            let pinned = self.pin(source, &directory.version_path(version), &opened.draft, spec)?;
            let hashed = self.hash_files(source, directory, spec, version, &pinned);
            let model = match (gpu_engine, backend) {
                (Some(GpuEngine::Plan(plan)), backend) => {
                    let on_cpu = backend.map(|backend| pinned.load(backend, spec, &path)).transpose()?;
                    let model = GpuModel::new(spec, Arc::clone(plan) as _, self.host_gpus.gpus(), on_cpu);
                    warm_up::with_warm_up(Box::new(model), spec, &[], read)?
                }
                (_, Some(backend)) => {
                    let load = |backend: &dyn Backend| {
                        let isolated = self.isolated(processes, backend, source, &pinned)?;
                        let backend = isolated.as_ref().map_or(backend, |isolated| isolated as &dyn Backend);
                        self.engine_load(spec, version, &path, &pinned).run(backend, read)
                    };
                    let (model, engine) = self.load_or_fall_back(backend, spec, &load)?;
                    used = Some(engine);
                    model
                }
                (_, None) => return Err(Error::internal("the model has no instances")),
            };
            pinned.check(source)?;
            let is_read_again = !pinned.is_opened() || processes.is_some();
            let model = if is_read_again { opened.verified.guard(source, model)? } else { model };
            let subject = TrialSubject { spec, model: &*model, threads };
            let files = VersionFiles { source, pinned: &pinned, path: &path };
            let choice = self.try_runs(subject, TrialEngines { processes, used }, files)?.of_draft(&opened.draft);
            Ok::<_, Error>((model, choice, hashed, pinned.files_size))
        })?;
        let took = clock::now().since(began);
        let is_plan = matches!(gpu_engine, Some(GpuEngine::Plan(_)));
        let engine = has_named_engine(spec).then(|| EngineName::of(used.filter(|_| !is_plan)));
        let with = served_with(spec, engine.as_ref(), used);
        if choice.no_batch_axis.is_none() {
            log_loaded(spec, version, &with, took, &choice);
        }
        let is_isolated = processes.is_some() || isolated_library.is_some();
        let decisions = trial_runs::decisions(&choice, engine.as_ref(), is_isolated);
        let (configured, mut spec) = (Arc::clone(spec), spec.with_parameters(&decisions)?);
        if choice.runs_apart {
            spec.batching = None;
        }
        known.apply(&mut spec, is_isolated);
        self.identify(&mut spec, |spec| hashed.and_then(|hashed| hashed.identity(source, spec, version, &with)));
        let basis = LoadBasis::new(&opened.draft, &configured, directory.mark.files, choice.load);
        let (spec, model, registration, basis) = (Arc::new(spec), Arc::from(model), None, Some(Arc::new(basis)));
        Ok(LoadedVersion { spec, configured, version, model, choice, took, files_size, registration, basis, run_limit })
    }
}

impl ModelLoader {
    fn engine_load<'a>(
        &'a self,
        spec: &'a Arc<ModelSpec>,
        version: u64,
        path: &'a Path,
        files: &'a PinnedFiles,
    ) -> EngineLoad<'a> {
        let (state_bytes_max, services) = (self.settings.sequence_state_bytes_max, &self.services);
        EngineLoad { spec, version, path, files, state_bytes_max, services }
    }

    /// Hashes the files of a version before they are loaded, if a cache is shared with other
    /// servers or a library; `None` without one, and if a file cannot be read.
    fn hash_files(
        &self,
        source: &ModelSource,
        directory: &ModelDirectory,
        spec: &ModelSpec,
        version: u64,
        pinned: &PinnedFiles,
    ) -> Option<HashedFiles> {
        // Neither for a process that tries a load nor for a shared library: its files are unknown.
        let is_hosted = spec.library.is_some();
        if !self.settings.cache.is_shared() || self.engine_processes.is_none() || is_hosted {
            return None;
        }
        let backend_file = spec.python.as_ref().filter(|python| python.is_backend && !python.is_own());
        let backend_file =
            backend_file.map(|python| self.settings.backend_directory.join(&spec.backend).join(&python.file));
        let outside = backend_file.map(std::fs::File::open).transpose();
        let hashed = outside.and_then(|outside| HashedFiles::new(source, directory, version, pinned.paths(), outside));
        let warn =
            |error: &std::io::Error| log::warning(&format!("the files of '{}' cannot be hashed: {error}", spec.name));
        hashed.inspect_err(warn).ok()
    }

    /// Sets a version's identity if servers share a cache. Without one its answers are not cached.
    fn identify(&self, spec: &mut ModelSpec, identity: impl FnOnce(&ModelSpec) -> Option<ModelIdentity>) {
        if !self.settings.cache.is_shared() || self.engine_processes.is_none() {
            return;
        }
        spec.identity = identity(spec);
        if spec.identity.is_none() && spec.is_cached {
            let name = &spec.name;
            log::warning(&format!(
                "answers of '{name}' are not cached: its files changed while they were loaded, or cannot be read"
            ));
            spec.is_cached = false;
        }
    }

    /// Returns true for a PyTorch model that runs in processes of Python already.
    fn runs_torch_in_python(&self, spec: &ModelSpec) -> Result<bool, Error> {
        let is_pytorch = spec.backend == PYTORCH_BACKEND && spec.library.is_none() && spec.python.is_none();
        Ok(is_pytorch && matches!(self.engines.pytorch(spec)?, PytorchEngine::Python(_)))
    }

    /// Returns the backend of a model in processes of its own; `None` if it runs in the server.
    fn isolated(
        &self,
        processes: Option<&EngineProcesses>,
        backend: &dyn Backend,
        source: &ModelSource,
        pinned: &PinnedFiles,
    ) -> Result<Option<IsolatedBackend>, Error> {
        let isolated =
            |processes: &EngineProcesses| processes.backend(&self.settings, &self.engines, backend, source, pinned);
        processes.map(isolated).transpose()
    }

    /// Loads a model with a backend, or with another that may run it where that refuses it. Returns which it was.
    fn load_or_fall_back<'a>(
        &'a self,
        backend: &'a dyn Backend,
        spec: &ModelSpec,
        load: &LoadWith<'_>,
    ) -> Result<(Box<dyn LoadedModel>, &'a dyn Backend), Error> {
        let first = match load(backend) {
            Ok(model) => return Ok((model, backend)),
            Err(error) => error,
        };
        let Some(other) = self.engines.frameworks().fallback(spec, backend) else { return Err(first) };
        let both = |second: Error| match second == first {
            true => second,
            false => Error::new(second.code(), format!("{second}; before: {first}")),
        };
        let model = load(other).map_err(both)?;
        let (name, refused_by, other_name) = (&spec.name, backend.name(), other.name());
        log::info(&format!("'{name}' falls back to {other_name}, since {refused_by} does not run it: {first}"));
        Ok((model, other))
    }

    /// Returns the backend of a model in the server; `None` if all instances are of a GPU plan.
    fn backend<'b>(
        &'b self,
        spec: &ModelSpec,
        gpu_engine: Option<&'b GpuEngine<'b>>,
    ) -> Result<Option<&'b dyn Backend>, Error> {
        Ok(match gpu_engine {
            Some(GpuEngine::Onnxruntime(engine)) => Some(engine as &dyn Backend),
            Some(GpuEngine::Plan(_)) if !spec.is_on_cpu() => None,
            Some(GpuEngine::Plan(_)) | None => Some(self.engines.choose(spec)?),
        })
    }

    /// The starters of the processes of a model that runs in such: one for an engine, one for a library; `None` for
    /// others.
    fn processes(
        &self,
        spec: &ModelSpec,
        known: &KnownRisks,
    ) -> Result<(Option<&EngineProcesses>, Option<&IsolatedLibraries>), Error> {
        let is_isolated = isolation::is_isolated(spec, &self.settings)? && !self.runs_torch_in_python(spec)?;
        let library = self.library_isolation.as_ref().map(|isolated| isolated.of(spec)).transpose()?;
        let asked = self.engine_processes.as_ref().filter(|_| is_isolated);
        Ok((asked.or_else(|| self.unasked_processes(spec, known)), library.flatten()))
    }
}

/// Loads a model with a backend.
type LoadWith<'a> = dyn Fn(&dyn Backend) -> Result<Box<dyn LoadedModel>, Error> + 'a;

#[cfg(test)]
mod tests {
    mod python;

    use std::fs;

    use super::*;
    use crate::backend::gpu::fake::Fake;
    use crate::model::onnx_builder::{FLOAT, Onnx};
    use crate::settings::OnnxruntimeConfig;

    #[test]
    fn a_model_that_no_gpu_engine_runs_falls_back_to_the_cpu_and_kind_gpu_is_refused_with_both_reasons() {
        let root = std::env::temp_dir().join(format!("deuteron-gpu-load-{}", std::process::id()));
        let graph = Onnx::default().node("Ceil", &["x"], &["y"], &[]);
        let file = graph.input("x", FLOAT, &[-1, 4]).output("y", FLOAT, &[-1, 4]).into_bytes();
        let settings = Settings { uses_gpu_unasked: true, ..Settings::default() };
        let loader = ModelLoader {
            run_memory: Arc::default(),
            settings: Arc::new(settings),
            engines: Engines::without(OnnxruntimeConfig::default(), "it is not here"),
            host_gpus: HostGpus::of(Fake::new(1).gpus(1 << 20, 1 << 20)),
            services: ModelServices::new(),
            run_watcher: RunWatcher::default(),
            trials: None,
            has_started: AtomicBool::new(false),
            runs_python: true,
            engine_processes: None,
            library_isolation: None,
            agents: None,
        };
        let load = |name: &str, config: &str| {
            let version = root.join(name).join("1");
            fs::create_dir_all(&version).unwrap();
            fs::write(version.join("model.onnx"), &file).unwrap();
            fs::write(root.join(name).join("config.pbtxt"), config).unwrap();
            let source = ModelSource::of_directory(root.clone()).unwrap();
            let directory = ModelDirectory::from_entry(&source.repository.list_model(name)).unwrap();
            let location = ModelLocation { source: &source, directory: &directory };
            let opened = loader.open(location).map_err(|failure| failure.error().clone())?;
            loader.load_version(location, &opened, 1)
        };
        for (name, group) in [("none", ""), ("auto", "instance_group { kind: KIND_AUTO }")] {
            let loaded = load(name, group).unwrap();
            assert!(loaded.spec.is_on_cpu() && !loaded.spec.is_on_gpu(), "{name}");
        }
        let error = load("gpu", "instance_group { kind: KIND_GPU }").err().unwrap();
        let want = "model 'gpu' has an instance group of KIND_GPU and cannot run there: the GPU's plan: operator 'Ceil', \
                    which gives 'y', is not among those that the GPU's plan has; ONNX Runtime: it is not here; --gpu=off serves it on the CPU";
        assert_eq!(error.text(), want);
        fs::remove_dir_all(&root).unwrap();
    }
}
