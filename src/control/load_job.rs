//! One load while the server runs: from the model's directory to instances that stand ready beside
//! those that serve. Runs on a thread of its own, of which there are `--model-load-thread-count` at
//! a time; nothing that serves is touched.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::backend::threads;
use crate::control::ControlMessage;
use crate::control::cores::CorePlan;
use crate::control::load::{LoadFailure, LoadedVersion, ModelLoader, ModelLocation, ServingVersions, register};
use crate::control::plan::PlannedModel;
use crate::control::repositories::Repositories;
use crate::control::threads::{ThreadHooks, WorkerGroup};
use crate::control::uploaded_files::UploadedFiles;
use crate::error::Error;
use crate::model::config::ConfigDraft;
use crate::model::ensemble::ComposingModels;
use crate::model::parse::text::Notation;
use crate::model::repository::changes::VersionChanges;
use crate::model::repository::index::{LoadProgress, LoadStage};
use crate::model::repository::{ChangeMark, ModelDirectory};
use crate::protocol::repository::LoadOrder;
use crate::queue::rate_limiter::RateLimiter;
use crate::queue::served_model::{Placement, ServedModel};
use crate::queue::worker::panic_text;
use crate::runtime::clock;
use crate::settings::Settings;
use crate::shard::ServerContext;
use crate::shard::mailbox::{HandleRoute, ModelHandle};

/// What every load works with.
pub struct LoadContext {
    /// How the server was asked to run.
    pub settings: Arc<Settings>,
    /// Loads model versions.
    pub loader: Arc<ModelLoader>,
    /// Where models lie.
    pub repositories: Arc<Repositories>,
    /// Hands out the resources that models share, where there is a rate limit.
    pub limiter: Option<Arc<RateLimiter>>,
    /// What all threads share.
    pub server_context: Arc<ServerContext>,
    /// Which cores are whose.
    pub cores: CorePlan,
    /// Where workers say that they have ended.
    pub thread_hooks: ThreadHooks,
    /// Where the outcome goes.
    pub events: Sender<ControlMessage>,
}

/// What is to be loaded.
pub struct LoadJob {
    /// The model.
    pub name: String,
    /// Where it lies.
    pub place: ModelOrigin,
    /// What serves of it and need not be loaded again.
    pub held: ServingVersions,
    /// The versions that serve.
    pub serving: Vec<u64>,
    /// The cores of each worker that will stay.
    pub taken: Vec<Vec<usize>>,
    /// The models that there are, where it is known to be an ensemble.
    pub members: Option<ComposingModels>,
    /// How far it is.
    pub progress: Arc<LoadProgress>,
}

/// Where a model lies.
#[derive(Clone)]
pub enum ModelOrigin {
    /// That is to be found out, for what a client asks.
    Asked(Box<LoadOrder>),
    /// In one of the repositories.
    Known(usize, Box<ModelDirectory>),
}

/// A model that was found.
pub struct LocatedModel {
    /// Which of the repositories has it; none where a client brought it.
    pub origin: Option<usize>,
    /// What lies there.
    pub mark: ChangeMark,
    /// Whether a client brought its configuration, or all of it: the next load starts anew.
    pub is_brought: bool,
    /// The files that it brought.
    pub uploaded_files: Option<Arc<UploadedFiles>>,
}

/// The versions that stand ready, and what becomes of those that serve.
pub type LoadOutcome = Result<(Vec<ReadyVersion>, VersionChanges), LoadFailure>;

/// What came of a load.
pub struct FinishedLoad {
    /// The model.
    pub name: String,
    /// The model as it was found; none where there is none.
    pub found: Option<LocatedModel>,
    /// What came of it.
    pub outcome: LoadOutcome,
    /// How long it took.
    pub took: Duration,
}

/// A model version that is ready to serve, and does not yet. Dropped, its workers end.
pub struct ReadyVersion {
    /// The model version.
    pub served: Arc<ServedModel>,
    /// For each shard, its part of it.
    pub holds: Vec<ModelHandle>,
    /// Its workers.
    pub worker_group: WorkerGroup,
    /// The cores of each.
    pub cores: Vec<Vec<usize>>,
    /// How long its load took.
    pub took: Duration,
}

impl LoadJob {
    /// Loads, and says what came of it, whatever happens.
    pub fn run(self, tools: &LoadContext) {
        let began = clock::now();
        // An ensemble is loaded when what it is made of is.
        let composing = if self.members.is_none() { self.composing(tools) } else { Vec::new() };
        if !composing.is_empty() {
            drop(tools.events.send(ControlMessage::Composed(Box::new(self), composing)));
            return;
        }
        let name = self.name.clone();
        let mut found = None;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.load(tools, &mut found)));
        let outcome = outcome.unwrap_or_else(|panic| {
            Err(LoadFailure::from(Error::internal(format!("its load panicked: {}", panic_text(&*panic)))))
        });
        let took = clock::now().since(began);
        // Nobody listens where the server has ended.
        let _ = tools.events.send(ControlMessage::Finished(Box::new(FinishedLoad { name, found, outcome, took })));
    }

    /// The models that it is made of; none where that cannot be told, which its load will.
    fn composing(&self, tools: &LoadContext) -> Vec<String> {
        let place = match &self.place {
            ModelOrigin::Known(origin, directory) => Some((*origin, (**directory).clone())),
            // All that it brings is its configuration.
            ModelOrigin::Asked(load) if !load.files.is_empty() => {
                let config = load.config.as_deref().unwrap_or_default();
                let draft = ConfigDraft::read(&self.name, Notation::Json, config.as_bytes(), Some(&[]));
                return draft.map(|draft| draft.composing()).unwrap_or_default();
            }
            ModelOrigin::Asked(load) => find((**load).clone(), &tools.repositories)
                .ok()
                .and_then(|((origin, directory), ..)| Some((origin?, directory))),
        };
        let Some((origin, directory)) = place else { return Vec::new() };
        let source = tools.repositories.source(origin);
        source.map(|source| tools.loader.composing(ModelLocation { source, directory: &directory })).unwrap_or_default()
    }

    fn load(
        self,
        tools: &LoadContext,
        found: &mut Option<LocatedModel>,
    ) -> Result<(Vec<ReadyVersion>, VersionChanges), LoadFailure> {
        self.progress.set_stage(LoadStage::Reading);
        let (directory, is_brought, uploaded_files) = match self.place {
            ModelOrigin::Known(origin, directory) => ((Some(origin), *directory), false, None),
            ModelOrigin::Asked(load) => find(*load, &tools.repositories)?,
        };
        let (origin, directory) = directory;
        *found = Some(LocatedModel {
            origin,
            mark: directory.mark.clone(),
            is_brought,
            uploaded_files: uploaded_files.clone(),
        });
        // Only now it is known that there is such a model.
        let _ = tools.events.send(ControlMessage::Begun(self.name.clone(), Arc::clone(&self.progress)));
        let source = uploaded_files.as_deref().map(UploadedFiles::source);
        let source = source.or_else(|| tools.repositories.source(origin?));
        let source = source.ok_or_else(|| Error::internal("its repository is gone"))?;
        // What a client brings is loaded whatever serves.
        let held = if is_brought { ServingVersions::default() } else { self.held };
        let location = ModelLocation { source, directory: &directory };
        let members = self.members.unwrap_or_default();
        let (loaded, mut changes) = tools.loader.load_model(location, &held, &members, &self.progress)?;
        if is_brought {
            changes.retired = self.serving.iter().copied().filter(|have| !changes.loaded.contains(have)).collect();
        }
        let loaded = register(loaded, tools.limiter.as_ref())?;
        self.progress.set_stage(LoadStage::Starting);
        let mut taken = self.taken;
        let mut standing = Vec::with_capacity(loaded.len());
        for loaded in loaded {
            let version = loaded.version;
            let outcome = stand(loaded, tools, &mut taken);
            standing.push(outcome.map_err(|error| LoadFailure::Version(version, error))?);
        }
        Ok((standing, changes))
    }
}

/// What was found: by its origin, whether a client brought something of it, and its files.
type LocatedFiles = ((Option<usize>, ModelDirectory), bool, Option<Arc<UploadedFiles>>);

/// Looks for what a client asks for, or takes what it brings.
fn find(load: LoadOrder, repositories: &Repositories) -> Result<LocatedFiles, LoadFailure> {
    if load.files.is_empty() {
        let (origin, directory) = repositories.find(&load.name).map_err(LoadFailure::Absent)?;
        let given = load.config.map(|config| (Notation::Json, config));
        let is_brought = given.is_some();
        return Ok((
            (Some(origin), ModelDirectory { given: given.or(directory.given), ..directory }),
            is_brought,
            None,
        ));
    }
    let Some(config) = load.config.clone() else {
        let text = "its files were brought without the load parameter 'config', which must come with them";
        return Err(LoadFailure::Config(Error::invalid(text)));
    };
    let uploaded_files = UploadedFiles::new(&load)
        .map_err(|error| Error::internal(format!("the files that were brought cannot be written: {error}")))?;
    let entry = uploaded_files.source().repository.list_model(&load.name);
    let directory = ModelDirectory { given: Some((Notation::Json, config)), ..ModelDirectory::from_entry(&entry)? };
    Ok(((None, directory), true, Some(Arc::new(uploaded_files))))
}

/// Makes the instances of a loaded model version.
fn stand(loaded: LoadedVersion, tools: &LoadContext, taken: &mut Vec<Vec<usize>>) -> Result<ReadyVersion, Error> {
    let PlannedModel { served, producers, places, took } =
        PlannedModel::later(&tools.settings, loaded, &tools.cores, taken)?;
    let worker_group = WorkerGroup::begin(&served, &places, &tools.thread_hooks)?;
    let mut holds = Vec::with_capacity(producers.len());
    for (mailbox, producer) in tools.server_context.control_link.mailboxes.iter().zip(producers) {
        let route = match (producer, &served.placement) {
            (Some(producer), _) => HandleRoute::Queue(producer),
            (None, Placement::Ensemble(_)) => HandleRoute::Ensemble,
            (None, _) => {
                let threads = mailbox.threads().ok_or_else(|| Error::unavailable("a shard is not running yet"))?;
                // The shard's one thread is the shard's, now: an instance that ran its warm-up there would
                // wait for it for ever.
                let mut instance = threads::enter(1, |own| served.loaded.new_instance(own))?;
                instance.set_threads(threads);
                HandleRoute::Instance(instance)
            }
        };
        holds.push(ModelHandle { served: Arc::clone(&served), route });
    }
    worker_group.wait()?;
    let cores: Vec<_> = places.into_iter().map(|place| place.cores).collect();
    taken.extend(cores.iter().cloned());
    Ok(ReadyVersion { served, holds, worker_group, cores, took })
}
