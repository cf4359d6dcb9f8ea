//! Loads models: configuration, labels, engine, placement. [`ModelLoader::load_version`] is the one way
//! from a model's directory to a model version that can be placed, at start and at run time. Runs
//! on the control thread's helpers; nothing here knows a shard.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::gpu::{GpuModel, Gpus};
use crate::backend::stateful::begun_inputs;
use crate::backend::{Backend, EnsembleModel, LoadedModel, StatefulModel, Threads, threads};
use crate::control::engine::Engines;
use crate::control::gpu_engine::{GpuEngine, HostGpus};
use crate::control::model_source::ModelSource;
use crate::control::placement::{self, InstanceSite, PlacementChoice};
use crate::control::warm_up;
use crate::error::{Code, Error};
use crate::limits::{LABELS_SIZE_MAX, MODEL_SIZE_MAX, SEQUENCE_STATE_BYTES_MAX};
use crate::log;
use crate::metrics::GpuBoard;
use crate::model::config::{CompletionRules, ConfigDraft};
use crate::model::ensemble::ComposingModels;
use crate::model::labels::Labels;
use crate::model::onnx::OnnxSignature;
use crate::model::onnx::external_data::external_files;
use crate::model::repository::changes::{VersionChanges, version_changes};
use crate::model::repository::index::{LoadProgress, LoadStage};
use crate::model::repository::{ChangeMark, ModelDirectory};
use crate::model::{InstanceGroup, ModelSpec, QueueRules, RateRules, SequenceStrategy, VersionPolicy};
use crate::queue::rate_limiter::{RateLimiter, RateRegistration};
use crate::runtime::clock;
use crate::scheduler::rate::{Demand, Need, RateError, Supply};
use crate::scheduler::sequence::{SequencePolicy, SlotStrategy};
use crate::scheduler::{Policy, QueuePolicy, TimeoutAction};
use crate::settings::{RateResource, Settings};
use crate::time::Instant;

/// One model version, ready to be placed.
pub struct LoadedVersion {
    /// Its checked configuration.
    pub spec: Arc<ModelSpec>,
    /// Its version.
    pub version: u64,
    /// Where its instances come from.
    pub model: Arc<dyn LoadedModel>,
    /// Where they run.
    pub choice: PlacementChoice,
    /// How long its load took.
    pub took: Duration,
    /// Those that take resources, where there is a rate limit.
    pub registration: Option<RateRegistration>,
}

impl LoadedVersion {
    /// The groups whose instances have a worker thread each, those that are passive last.
    pub fn worker_groups(&self) -> impl Iterator<Item = &InstanceGroup> {
        let groups = || self.spec.instance_groups.iter().filter(|_| self.choice.site == InstanceSite::Worker);
        groups().filter(|group| !group.is_passive).chain(groups().filter(|group| group.is_passive))
    }

    /// What each instance needs that takes batches, in their order.
    fn demands(&self) -> impl Iterator<Item = Demand> {
        let active = self.worker_groups().filter(|group| !group.is_passive);
        active.flat_map(|group| group.instances().map(|(_, gpu)| demand(&group.rate, gpu)))
    }

    /// How it serves sequences, where it does; the number of instances is the queue's.
    pub fn sequence_policy(&self) -> Option<SequencePolicy> {
        let sequence = self.spec.sequence.as_ref()?;
        let rows_max = self.spec.rows_max;
        let rows = usize::try_from(rows_max).unwrap_or(usize::MAX).max(1);
        let (strategy, slots) = match &sequence.strategy {
            SequenceStrategy::Direct { queue_delay_max, utilization_min } => {
                // The least count whose share of the slots is enough.
                let least = (0..=rows).find(|count| *count as f64 >= f64::from(*utilization_min) * rows as f64);
                (SlotStrategy::Direct { queue_delay_max: *queue_delay_max, slots_least: least.unwrap_or(rows) }, rows)
            }
            SequenceStrategy::Oldest { candidates_max, rows_preferred, queue_delay_max } => {
                let (rows_preferred, queue_delay_max) = (rows_preferred.clone(), *queue_delay_max);
                let is_batched = rows_max > 0;
                let policy = Policy { rows_max, is_batched, rows_preferred, queue_delay_max, ..Policy::default() };
                (SlotStrategy::Oldest(policy), usize::try_from(*candidates_max).unwrap_or(usize::MAX))
            }
        };
        let (idle_max, is_iterative) = (sequence.idle_max, sequence.is_iterative);
        Some(SequencePolicy { strategy, instances: 0, slots, idle_max, is_iterative })
    }

    /// How it batches.
    pub fn policy(&self) -> Policy {
        let rows_max = self.spec.rows_max;
        let Some(batching) = &self.spec.batching else { return Policy { rows_max, ..Policy::default() } };
        // The largest batch alone is what is preferred where nothing is.
        let rows_preferred = Some(batching.rows_preferred.clone()).filter(|sizes| *sizes != [rows_max]);
        Policy {
            rows_max,
            is_batched: true,
            rows_preferred: rows_preferred.unwrap_or_default(),
            queue_delay_max: batching.queue_delay_max,
            latency_target: batching.latency_target,
            preserves_order: batching.preserves_order,
            priority_levels: batching.priority_levels,
            priority_default: batching.priority_default,
            queue_default: queue_policy(&batching.queue_default),
            queue_by_level: batching
                .queue_by_level
                .iter()
                .map(|(level, rules)| (*level, queue_policy(rules)))
                .collect(),
            ..Policy::default()
        }
    }
}

/// An instance on the CPU is on device 0, as in Triton.
fn demand(rules: &RateRules, gpu: Option<u32>) -> Demand {
    let needs = rules.resources.iter().map(|resource| Need {
        name: resource.name.clone(),
        is_global: resource.is_global,
        count: resource.count.into(),
    });
    Demand { device: gpu.unwrap_or(0), priority: rules.priority, needs: needs.collect() }
}

fn queue_policy(rules: &QueueRules) -> QueuePolicy {
    QueuePolicy {
        timeout_action: if rules.is_delaying { TimeoutAction::Delay } else { TimeoutAction::Reject },
        timeout_default: rules.timeout_default,
        may_override: rules.may_override,
        entries_max: usize::try_from(rules.entries_max).unwrap_or(usize::MAX),
    }
}

/// A model, and the path that holds it.
#[derive(Clone, Copy)]
pub struct ModelLocation<'a> {
    /// Its files are read beneath this.
    pub source: &'a ModelSource,
    /// What of it lies there.
    pub directory: &'a ModelDirectory,
}

/// The configuration of a model, read, and what it asks for.
pub struct OpenedConfig {
    draft: ConfigDraft,
    labels: BTreeMap<String, Arc<Labels>>,
    /// The versions that its policy serves, the highest first.
    pub versions: Vec<u64>,
    /// The models that it is made of, where it is an ensemble.
    composing: Vec<String>,
}

/// What serves of a model while it is loaded again.
#[derive(Clone, Debug, Default)]
pub struct ServingVersions {
    /// The mark of what all its versions share; none where all are to be loaded again.
    pub shared: Option<u64>,
    /// Its versions, each with the mark of its directory.
    pub versions: Vec<(u64, u64)>,
}

/// Why a model is not loaded.
#[derive(Clone, Debug)]
pub enum LoadFailure {
    /// There is no such model, or there are several.
    Absent(Error),
    /// Its directory or its configuration will not do.
    Config(Error),
    /// It is an ensemble, and what it is made of will not do.
    Composition(Error),
    /// It has no version that its policy serves.
    Policy(Error),
    /// This version will not do.
    Version(u64, Error),
}

impl LoadFailure {
    /// What happened.
    pub const fn error(&self) -> &Error {
        match self {
            Self::Absent(error) | Self::Composition(error) | Self::Config(error) => error,
            Self::Policy(error) | Self::Version(_, error) => error,
        }
    }

    /// What the index says: with the kind of the failure where a version had one, as Triton does.
    pub fn reason(&self) -> String {
        match self {
            Self::Version(_, error) => format!("{}: {error}", kind(error.code())),
            other => other.error().text().to_owned(),
        }
    }

    /// What a client is told who asked for the load, in Triton's words
    /// (`model_repository_manager.cc`), and why, where Triton tells that to its log alone.
    pub fn told(&self, name: &str) -> Error {
        let unpolled = format!("failed to load '{name}', failed to poll from model repository");
        match self {
            Self::Absent(_) => Error::internal(unpolled),
            Self::Config(error) => Error::internal(format!("{unpolled}: {error}")),
            Self::Composition(error) | Self::Policy(error) => {
                Error::invalid(format!("load failed for model '{name}': {error}\n"))
            }
            Self::Version(version, _) => {
                let state = format!("version {version} is at UNAVAILABLE state: {};\n", self.reason());
                Error::invalid(format!("load failed for model '{name}': {state}"))
            }
        }
    }
}

impl From<Error> for LoadFailure {
    fn from(error: Error) -> Self {
        Self::Config(error)
    }
}

/// A code in the words of Triton's `Status`.
const fn kind(code: Code) -> &'static str {
    match code {
        Code::AlreadyExists => "Already exists",
        Code::Cancelled => "Cancelled",
        Code::Internal => "Internal",
        Code::InvalidArgument | Code::TooLarge | Code::MethodNotAllowed => "Invalid argument",
        Code::NotFound => "Not found",
        Code::Unavailable | Code::DeadlineExceeded | Code::Exhausted => "Unavailable",
        Code::Unknown => "Unknown",
        Code::Unsupported => "Unsupported",
    }
}

/// Loads model versions. Shared by the helpers of the control thread.
pub struct ModelLoader {
    settings: Arc<Settings>,
    engines: Engines,
    machine: HostGpus,
}

impl ModelLoader {
    /// Opens what engines the flags name.
    pub fn new(settings: &Arc<Settings>) -> Result<Self, Error> {
        let engines = Engines::new(&settings.backend_config.onnxruntime)?;
        Ok(Self { settings: Arc::clone(settings), engines, machine: HostGpus::new(settings) })
    }

    /// The GPUs of this machine, which are looked for when this is first asked.
    pub fn devices(&self) -> &Gpus {
        self.machine.gpus()
    }

    /// What is known of the GPUs.
    pub const fn gpus(&self) -> &Arc<GpuBoard> {
        self.machine.board()
    }

    /// Loads what is wanted of a model and does not serve as it lies there. One version that fails
    /// fails them all.
    pub fn load_model(
        &self,
        location: ModelLocation<'_>,
        held: &ServingVersions,
        members: &ComposingModels,
        progress: &LoadProgress,
    ) -> Result<(Vec<LoadedVersion>, VersionChanges), LoadFailure> {
        progress.set_stage(LoadStage::Reading);
        let opened = self.open(location)?;
        if !opened.composing.is_empty() {
            return self.load_ensemble(location, held, &opened, members);
        }
        let ChangeMark { shared, versions } = &location.directory.mark;
        let mark = |version: u64| versions.iter().find(|(have, _)| *have == version).map_or(0, |(_, mark)| *mark);
        let wanted: Vec<_> = opened.versions.iter().map(|version| (*version, mark(*version))).collect();
        let changes = version_changes(&held.versions, &wanted, held.shared == Some(*shared));
        progress.set_stage(LoadStage::Loading);
        let mut loaded = Vec::with_capacity(changes.loaded.len());
        for version in &changes.loaded {
            progress.set_versions(loaded.len(), changes.loaded.len());
            let outcome = self.load_version(location, &opened, *version);
            loaded.push(outcome.map_err(|error| LoadFailure::Version(*version, error))?);
        }
        Ok((loaded, changes))
    }

    /// Loads an ensemble: held against the models that it is made of, every time.
    fn load_ensemble(
        &self,
        location: ModelLocation<'_>,
        held: &ServingVersions,
        opened: &OpenedConfig,
        members: &ComposingModels,
    ) -> Result<(Vec<LoadedVersion>, VersionChanges), LoadFailure> {
        let wanted: Vec<_> = opened.versions.iter().map(|version| (*version, 0)).collect();
        let changes = version_changes(&held.versions, &wanted, false);
        let mut loaded = Vec::with_capacity(changes.loaded.len());
        for version in &changes.loaded {
            let began = clock::now();
            let OpenedConfig { draft, labels, .. } = opened;
            let spec = complete(location.source, location.directory, *version, draft, labels, &self.settings);
            let spec = spec.map_err(|error| LoadFailure::Version(*version, error))?;
            let spec = Arc::new(members.resolve(spec).map_err(LoadFailure::Composition)?);
            let took = clock::now().since(began);
            log::info(&format!("loaded '{}' version {version}, made of {}", spec.name, opened.composing.join(", ")));
            let choice =
                PlacementChoice { site: InstanceSite::Ensemble, why: "it is an ensemble".to_owned(), run: None };
            loaded.push(LoadedVersion {
                spec,
                version: *version,
                model: Arc::new(EnsembleModel),
                choice,
                took,
                registration: None,
            });
        }
        Ok((loaded, changes))
    }

    /// The models that one is made of, where it is an ensemble; none where that cannot be told, which its
    /// load will.
    pub fn composing(&self, ModelLocation { source, directory }: ModelLocation<'_>) -> Vec<String> {
        source.draft(directory, &self.settings).map(|draft| draft.composing()).unwrap_or_default()
    }

    /// Reads the configuration of a model, and labels.
    pub fn open(&self, ModelLocation { source, directory }: ModelLocation<'_>) -> Result<OpenedConfig, LoadFailure> {
        let name = &directory.name;
        let draft = source.draft(directory, &self.settings)?;
        draft.notes().iter().for_each(|note| log::info(&format!("'{name}': {note}")));
        let labels = read_labels(source, directory, &draft)?;
        let choice = directory.choose_versions(&draft.version_policy()).map_err(LoadFailure::Policy)?;
        if let VersionPolicy::Specific(_) = draft.version_policy() {
            for version in &choice.missing {
                log::warning(&format!("'{name}' has no version {version}, which its version policy names"));
            }
        }
        let composing = draft.composing();
        Ok(OpenedConfig { draft, labels, versions: choice.versions, composing })
    }

    /// Loads one version of a model, warms it up and decides where it runs. One that nobody asked to have
    /// on a GPU runs on the CPU where its load fails there.
    pub fn load_version(
        &self,
        location: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
    ) -> Result<LoadedVersion, Error> {
        let began = clock::now();
        let settled = self.settle(location, opened, version)?;
        match (self.load_settled(location, opened, version, &settled, began), settled.on_cpu) {
            (Err(why), Some(spec)) => {
                tell_fallback(&spec, &why);
                let settled = CompletedConfig { spec, gpu_engine: None, on_cpu: None };
                self.load_settled(location, opened, version, &settled, began)
            }
            (outcome, _) => outcome,
        }
    }
}

/// What is decided of a version before it is loaded.
struct CompletedConfig<'a> {
    spec: Arc<ModelSpec>,
    /// What its instances on GPUs run, where it has any.
    gpu_engine: Option<GpuEngine<'a>>,
    /// The same on the CPU alone, where nobody asked for a GPU.
    on_cpu: Option<Arc<ModelSpec>>,
}

fn tell_fallback(spec: &ModelSpec, why: &Error) {
    log::info(&format!("'{}' runs on the CPU and not on a GPU: {why}", spec.name));
}

impl ModelLoader {
    /// The configuration of a version, and what its instances on GPUs run, where it has any.
    fn settle(
        &self,
        ModelLocation { source, directory }: ModelLocation<'_>,
        OpenedConfig { draft, labels, .. }: &OpenedConfig,
        version: u64,
    ) -> Result<CompletedConfig<'_>, Error> {
        let complete =
            |draft: &ConfigDraft| complete(source, directory, version, draft, labels, &self.settings).map(Arc::new);
        if !draft.may_use_gpu() {
            return Ok(CompletedConfig { spec: complete(draft)?, gpu_engine: None, on_cpu: None });
        }
        let with = |takes_auto| complete(&draft.clone().with_gpus(self.machine.support(takes_auto)));
        let spec = with(self.settings.uses_gpu_unasked)?;
        if !spec.is_on_gpu() {
            return Ok(CompletedConfig { spec, gpu_engine: None, on_cpu: None });
        }
        let on_cpu = Some(with(false)?).filter(|on_cpu| !on_cpu.is_on_gpu());
        let folder = directory.version_path(version);
        let file = source.read(&format!("{folder}/{}", spec.default_model_filename), MODEL_SIZE_MAX)?;
        let reference = || {
            let opening = PinnedFiles::new(source, &folder, draft)?;
            opening.load(self.engines.choose(&spec)?, &spec, &source.root.join(&folder))
        };
        match (self.machine.choose(&spec, &file, &self.engines, reference), on_cpu) {
            (Ok(gpu_engine), on_cpu) => Ok(CompletedConfig { spec, gpu_engine: Some(gpu_engine), on_cpu }),
            (Err(why), Some(on_cpu)) => {
                tell_fallback(&spec, &why);
                Ok(CompletedConfig { spec: on_cpu, gpu_engine: None, on_cpu: None })
            }
            (Err(why), None) => {
                let asked = format!("model '{}' has an instance group of KIND_GPU and cannot run there: ", spec.name);
                Err(why.with_prefix(&asked))
            }
        }
    }

    fn load_settled(
        &self,
        ModelLocation { source, directory }: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
        CompletedConfig { spec, gpu_engine, .. }: &CompletedConfig<'_>,
        began: Instant,
    ) -> Result<LoadedVersion, Error> {
        let path = source.root.join(directory.version_path(version));
        let on_cpu = || self.engines.choose(spec);
        let backend = match gpu_engine {
            Some(GpuEngine::Onnxruntime(engine)) => Some(engine as &dyn Backend),
            Some(GpuEngine::Plan(_)) if !spec.is_on_cpu() => None,
            Some(GpuEngine::Plan(_)) | None => Some(on_cpu()?),
        };
        let (model, choice) = threads::enter(1, |threads: &Threads| {
            let read = |path: &str, size_max| source.read(&directory.file(path), size_max);
            let opening = PinnedFiles::new(source, &directory.version_path(version), &opened.draft)?;
            let model = match (gpu_engine, backend) {
                (Some(GpuEngine::Plan(plan)), backend) => {
                    let on_cpu = backend.map(|backend| opening.load(backend, spec, &path)).transpose()?;
                    let model = GpuModel::new(spec, Arc::clone(plan) as _, self.machine.gpus(), on_cpu);
                    warm_up::warmed(Box::new(model), spec, &[], read)?
                }
                (_, Some(backend)) => load_engine(backend, spec, (&path, &opening), &self.settings, read)?,
                (_, None) => return Err(Error::internal("a model has no instance anywhere")),
            };
            opening.check(source)?;
            if !spec.warm_ups.is_empty() {
                // What fails is to fail the load, and not the first worker.
                let first = spec.instance_groups.iter().flat_map(InstanceGroup::instances).next();
                drop(model.new_instance(&threads.on(first.and_then(|(_, gpu)| gpu)))?);
            }
            let choice = placement::choose(spec, &*model, threads, placement::bound_by(spec, &self.settings))?;
            Ok::<_, Error>((model, choice))
        })?;
        let took = clock::now().since(began);
        let place = match choice.site {
            InstanceSite::Ensemble => "in its steps",
            InstanceSite::Inline => "inline",
            InstanceSite::Worker => "on workers",
        };
        log::info(&format!(
            "loaded '{}' version {version} with {} in {took:?}, runs {place} ({})",
            spec.name,
            backend.map_or("the GPU's plan", |backend| backend.name()),
            choice.why
        ));
        let spec = Arc::new(spec.with_parameter(placement::PARAMETER, choice.site.as_str())?);
        Ok(LoadedVersion { spec, version, model: Arc::from(model), choice, took, registration: None })
    }
}

/// A model's file as it was opened beneath the repository. Where it keeps tensors in other files the engine
/// goes by its path; what the paths lead to lies beneath the repository, and must be the same before and
/// after.
struct PinnedFiles {
    file: Option<PinnedFile>,
}

struct PinnedFile {
    file: File,
    /// Its path and those of the files in which it keeps tensors, each with its stamp.
    stamps: Vec<(String, u64)>,
}

impl PinnedFiles {
    fn new(source: &ModelSource, directory: &str, draft: &ConfigDraft) -> Result<Self, Error> {
        let Some(name) = draft.onnx_filename() else { return Ok(Self { file: None }) };
        let path = format!("{directory}/{name}");
        let cannot_read = |error: std::io::Error| Error::invalid(format!("cannot read '{path}': {error}"));
        let mut file = source.repository.open_file(&path).map_err(cannot_read)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).and_then(|_| file.rewind()).map_err(cannot_read)?;
        let mut stamps = vec![(path.clone(), source.repository.stamp(&path))];
        let beside = path.rsplit_once('/').map_or("", |(beside, _)| beside);
        for place in external_files(&bytes)? {
            let told = |why: &str| Error::invalid(format!("'{path}' keeps tensors in '{place}', {why}"));
            // The paths of ONNX begin where the file lies, and go down only.
            if !Path::new(&place).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
                return Err(told("which does not lie beside it or below"));
            }
            let place = format!("{beside}/{place}");
            let opened = source.repository.open_file(&place);
            opened.map_err(|error| told(&format!("which cannot be read beneath the repository: {error}")))?;
            let stamp = source.repository.stamp(&place);
            stamps.push((place, stamp));
        }
        Ok(Self { file: Some(PinnedFile { file, stamps }) })
    }

    fn check(&self, source: &ModelSource) -> Result<(), Error> {
        let stamps = self.file.iter().flat_map(|opened| &opened.stamps);
        match stamps.into_iter().find(|(path, stamp)| source.repository.stamp(path) != *stamp) {
            Some((path, _)) => {
                Err(Error::unavailable(format!("'{path}' was changed while it was loaded; load it again")))
            }
            None => Ok(()),
        }
    }

    /// Loads it with an engine.
    fn load(&self, backend: &dyn Backend, spec: &Arc<ModelSpec>, path: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        match &self.file {
            Some(PinnedFile { file, stamps }) if stamps.len() == 1 => backend.load_opened(spec, path, file.as_fd()),
            _ => backend.load(spec, path),
        }
    }
}

/// Loads a model with its engine, whose instances are warm when they are made: one that serves
/// sequences as the engine sees it.
fn load_engine(
    backend: &dyn Backend,
    spec: &Arc<ModelSpec>,
    (path, opened): (&Path, &PinnedFiles),
    settings: &Settings,
    read: impl Fn(&str, usize) -> Result<Vec<u8>, Error>,
) -> Result<Box<dyn LoadedModel>, Error> {
    let load = |spec: &Arc<ModelSpec>| opened.load(backend, spec, path);
    let Some(sequence) = &spec.sequence else { return warm_up::warmed(load(spec)?, spec, &[], read) };
    let told = begun_inputs(sequence, spec.has_batch_axis());
    let inner = warm_up::warmed(load(&sequence.engine)?, &sequence.engine, &told, read)?;
    let bytes_max = settings.sequence_state_bytes_max;
    Ok(Box::new(StatefulModel::new(inner, spec, Arc::clone(sequence), bytes_max)))
}

/// What hands out the resources that all models share, where there is a rate limit.
pub fn limiter(settings: &Settings) -> Option<Arc<RateLimiter>> {
    let supply = |resource: &RateResource| Supply {
        name: resource.name.clone(),
        count: resource.count,
        device: resource.device,
    };
    let supplies = settings.rate_resources.iter().map(supply).collect();
    settings.is_rate_limited.then(|| Arc::new(RateLimiter::new(supplies)))
}

/// Sees to it that every instance of these versions can have what it needs. What they are registered
/// for they give back when they are dropped.
pub fn register(
    mut versions: Vec<LoadedVersion>,
    limiter: Option<&Arc<RateLimiter>>,
) -> Result<Vec<LoadedVersion>, LoadFailure> {
    for loaded in &mut versions {
        let demands: Vec<_> = loaded.demands().collect();
        let registration = limiter.map(|limiter| limiter.register(&demands)).transpose();
        let refused = |error: RateError| LoadFailure::Version(loaded.version, Error::invalid(error.to_string()));
        loaded.registration = registration.map_err(refused)?;
    }
    Ok(versions)
}

/// The configuration of a version with what its file says, checked.
pub fn complete(
    source: &ModelSource,
    directory: &ModelDirectory,
    version: u64,
    draft: &ConfigDraft,
    labels: &BTreeMap<String, Arc<Labels>>,
    settings: &Settings,
) -> Result<ModelSpec, Error> {
    let onnx = match draft.onnx_filename() {
        Some(file) => {
            let bytes = source.read(&format!("{}/{file}", directory.version_path(version)), MODEL_SIZE_MAX)?;
            Some(OnnxSignature::decode(&bytes)?)
        }
        None => None,
    };
    let states = read_states(source, directory, draft)?;
    let draft = draft.clone().with_state_files(states);
    let completion = completion(settings, draft.backend());
    let mut spec = draft.complete(onnx.as_ref(), labels, completion)?;
    if spec.is_cached && settings.cache_size == 0 {
        let name = &spec.name;
        log::warning(&format!("'{name}' has a response cache, but the server has none: see --cache-config"));
        spec.is_cached = false;
    }
    Ok(spec)
}

fn completion(settings: &Settings, backend: &str) -> CompletionRules {
    let default = CompletionRules::default();
    let rows_max_default = settings.backend_config.rows_max_default(backend).unwrap_or(default.rows_max_default);
    CompletionRules { is_on: settings.auto_complete, rows_max_default }
}

/// The label files that a configuration names.
pub fn read_labels(
    source: &ModelSource,
    directory: &ModelDirectory,
    draft: &ConfigDraft,
) -> Result<BTreeMap<String, Arc<Labels>>, Error> {
    let mut labels = BTreeMap::new();
    for name in draft.label_filenames() {
        let path = directory.file(name);
        let text = String::from_utf8(source.read(&path, LABELS_SIZE_MAX)?);
        let text = text.map_err(|_| Error::invalid(format!("'{path}' is not UTF-8")))?;
        labels.insert(name.to_owned(), Arc::new(Labels::from_text(&text)));
    }
    Ok(labels)
}

/// The initial states of sequences, from the files that the configuration names.
fn read_states(
    source: &ModelSource,
    directory: &ModelDirectory,
    draft: &ConfigDraft,
) -> Result<BTreeMap<String, Arc<[u8]>>, Error> {
    let mut states = BTreeMap::new();
    for name in draft.state_filenames() {
        let path = directory.file(&format!("initial_state/{name}"));
        states.insert(name, source.read(&path, SEQUENCE_STATE_BYTES_MAX)?.into());
    }
    Ok(states)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::backend::gpu::fake::Fake;
    use crate::backend::onnx_builder::{FLOAT, Onnx};
    use crate::settings::OnnxruntimeConfig;

    /// An engine that tells which way it was given a model.
    struct Told;

    impl Backend for Told {
        fn name(&self) -> &str {
            "told"
        }

        fn load(&self, _: &Arc<ModelSpec>, directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
            Err(Error::internal(format!("by its path {}", directory.display())))
        }

        fn load_opened(
            &self,
            _: &Arc<ModelSpec>,
            _: &Path,
            file: BorrowedFd<'_>,
        ) -> Result<Box<dyn LoadedModel>, Error> {
            let mut bytes = Vec::new();
            File::from(file.try_clone_to_owned().unwrap()).read_to_end(&mut bytes).unwrap();
            Err(Error::internal(format!("as it was opened, {} bytes", bytes.len())))
        }
    }

    /// An ONNX file that keeps a tensor in another, or in none.
    fn onnx(place: Option<&str>) -> Vec<u8> {
        let field = |number: u8, value: &[u8]| [&[number << 3 | 2, value.len() as u8], value].concat();
        let location = |place: &str| field(13, &[field(1, b"location"), field(2, place.as_bytes())].concat());
        field(7, &field(5, &place.map_or_else(|| field(8, b"w"), location)))
    }

    #[test]
    fn a_file_that_keeps_its_tensors_goes_as_it_was_opened_and_others_by_their_path() {
        let root = std::env::temp_dir().join(format!("deuteron-ways-{}", std::process::id()));
        let version = root.join("models/m/1");
        fs::create_dir_all(version.join("deep")).unwrap();
        for file in ["models/m/1/w.bin", "models/m/1/deep/w.bin", "models/m/x", "outside"] {
            fs::write(root.join(file), "weights").unwrap();
        }
        symlink(root.join("outside"), version.join("out")).unwrap();
        symlink("../x", version.join("in")).unwrap();
        symlink(&root, version.join("folder_out")).unwrap();
        let source = ModelSource::of_directory(root.join("models")).unwrap();
        let draft = ConfigDraft::new("m", Some(b"platform: 'onnxruntime_onnx'"), &[]).unwrap();
        let spec = {
            let text = b"backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: 1 } \
                         output { name: 'y' data_type: TYPE_FP32 dims: 1 }";
            let draft = ConfigDraft::new("m", Some(text), &[]).unwrap();
            Arc::new(draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap())
        };
        let told = |place: Option<&str>| {
            fs::write(version.join("model.onnx"), onnx(place)).unwrap();
            let opening = PinnedFiles::new(&source, "m/1", &draft);
            let outcome = opening.and_then(|opening| opening.load(&Told, &spec, Path::new("P")));
            outcome.err().unwrap().text().to_owned()
        };
        assert_eq!(told(None), "as it was opened, 7 bytes");
        for beneath in ["w.bin", "./w.bin", "deep/w.bin", "in"] {
            assert_eq!(told(Some(beneath)), "by its path P", "{beneath}");
        }
        let outside = root.join("outside").display().to_string();
        for place in ["../x", "../../../outside", "deep/../../x", &outside] {
            let want = format!("'m/1/model.onnx' keeps tensors in '{place}', which does not lie beside it or below");
            assert_eq!(told(Some(place)), want);
        }
        for place in ["out", "folder_out/outside", "absent", "deep"] {
            let want =
                format!("'m/1/model.onnx' keeps tensors in '{place}', which cannot be read beneath the repository");
            assert!(told(Some(place)).starts_with(&want), "{place}: {}", told(Some(place)));
        }
        // What it keeps there must be the same before and after, too.
        fs::write(version.join("model.onnx"), onnx(Some("w.bin"))).unwrap();
        let opening = PinnedFiles::new(&source, "m/1", &draft).unwrap();
        assert!(opening.check(&source).is_ok());
        fs::remove_file(version.join("w.bin")).unwrap();
        symlink(root.join("outside"), version.join("w.bin")).unwrap();
        let text = opening.check(&source).unwrap_err();
        assert_eq!(text.text(), "'m/1/w.bin' was changed while it was loaded; load it again");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_model_whose_file_is_swapped_while_it_loads_is_refused() {
        let root = std::env::temp_dir().join(format!("deuteron-swap-{}", std::process::id()));
        let version = root.join("models/m/1");
        fs::create_dir_all(&version).unwrap();
        fs::create_dir_all(root.join("elsewhere")).unwrap();
        for path in [version.join("model.onnx"), root.join("elsewhere/model.onnx")] {
            fs::write(path, onnx(None)).unwrap();
        }
        let source = ModelSource::of_directory(root.join("models")).unwrap();
        let draft = ConfigDraft::new("m", Some(b"platform: 'onnxruntime_onnx'"), &[]).unwrap();
        let open = || PinnedFiles::new(&source, "m/1", &draft);
        let told = |outcome: Result<(), Error>| outcome.err().map(|error| error.text().to_owned()).unwrap_or_default();
        let opened = open().unwrap();
        assert_eq!(told(opened.check(&source)), "");
        fs::rename(&version, root.join("models/m/away")).unwrap();
        symlink(root.join("elsewhere"), &version).unwrap();
        let swapped = "'m/1/model.onnx' was changed while it was loaded; load it again";
        assert_eq!(told(opened.check(&source)), swapped, "a directory that leads out");
        assert!(told(open().map(drop)).starts_with("cannot read 'm/1/model.onnx'"));
        fs::remove_file(&version).unwrap();
        fs::rename(root.join("models/m/away"), &version).unwrap();
        assert_eq!(told(opened.check(&source)), "");
        fs::remove_file(version.join("model.onnx")).unwrap();
        fs::write(version.join("model.onnx"), [onnx(None), onnx(None)].concat()).unwrap();
        assert_eq!(told(opened.check(&source)), swapped, "another file");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_no_engine_runs_on_a_gpu_is_on_the_cpu_where_nobody_asked_and_refused_with_both_reasons_where_one_did() {
        let root = std::env::temp_dir().join(format!("deuteron-gpu-load-{}", std::process::id()));
        let weights: Vec<u8> = [1.0_f32; 9].iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let graph =
            Onnx::default().constant("w", FLOAT, &[1, 1, 3, 3], &weights).node("Conv", &["x", "w"], &["y"], &[]);
        let file = graph.input("x", FLOAT, &[-1, 1, 4, 4]).output("y", FLOAT, &[-1, 1, 2, 2]).into_bytes();
        let settings = Settings { uses_gpu_unasked: true, ..Settings::default() };
        let loader = ModelLoader {
            settings: Arc::new(settings),
            engines: Engines::without(OnnxruntimeConfig::default(), "it is not here"),
            machine: HostGpus::of(Fake::new(1).gpus(1 << 20, 1 << 20)),
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
        let want = "model 'gpu' has an instance group of KIND_GPU and cannot run there: the GPU's plan: operator 'Conv', \
                    which gives 'y', is not among those that the GPU's plan has; ONNX Runtime: it is not here";
        assert_eq!(error.text(), want);
        fs::remove_dir_all(&root).unwrap();
    }
}
