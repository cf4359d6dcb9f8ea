//! The models that are there when the server starts: all in the repositories, or those that flags
//! name. Several load at a time; a load that takes long is told of. Ensembles come last, each after the
//! models that it is made of.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::config::{ControlMode, Settings};
use crate::control::load_failure::LoadFailure;
use crate::control::load_job::ModelOrigin;
use crate::control::loaded_version::LoadedVersion;
use crate::control::model_loader::{ModelLoader, ModelLocation, ServingVersions};
use crate::control::model_record::ModelRecords;
use crate::control::rate_limit;
use crate::control::repositories::Repositories;
use crate::error::Error;
use crate::log;
use crate::model::ensemble::{self, ComposingModels};
use crate::model::repository::ModelDirectory;
use crate::model::repository::changes::{ModelAction, actions};
use crate::model::repository::index::LoadProgress;
use crate::queue::rate_limiter::RateLimiter;
use crate::runtime::clock;

/// How often a person is told what still loads.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// What was loaded.
pub struct InitialLoad {
    /// The model versions, by name, the highest version of each first.
    pub loaded: Vec<LoadedVersion>,
    /// What is known of all models that were asked for.
    pub models: ModelRecords,
}

/// One model that is to be loaded.
struct LoadTask {
    origin: usize,
    directory: ModelDirectory,
    progress: Arc<LoadProgress>,
    /// The models that it is made of, where it is an ensemble.
    composing: Vec<String>,
    /// Whether it is loaded for its own sake, and not for an ensemble's.
    is_asked: bool,
}

/// What came of it.
struct FinishedTask {
    task: LoadTask,
    outcome: Result<Vec<LoadedVersion>, LoadFailure>,
    took: Duration,
}

/// Loads what the flags ask for. A model that fails ends the server unless `--exit-on-error=false`.
pub fn load(
    settings: &Settings,
    loader: &ModelLoader,
    repositories: &Repositories,
    limiter: Option<&Arc<RateLimiter>>,
) -> Result<InitialLoad, Error> {
    let mut start = InitialLoad { loaded: Vec::new(), models: ModelRecords::new() };
    let tasks = start.find(settings, repositories)?;
    let tasks = with_composing(tasks, settings, loader, repositories);
    let (ensembles, others): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| !task.composing.is_empty());
    for done in load_side_by_side(others.into(), settings.load_threads, loader, repositories) {
        start.take(done, limiter);
    }
    start.load_ensembles(ensembles, loader, repositories);
    let has_failed = start.models.values().any(|model| model.failure.is_some());
    if has_failed && settings.exit_on_error {
        return Err(Error::internal("Internal - failed to load all models"));
    }
    start.loaded.sort_by(|a, b| (&a.spec.name, b.version).cmp(&(&b.spec.name, a.version)));
    Ok(start)
}

impl InitialLoad {
    /// What there is to load. Fails where a repository cannot be read at all: nobody waits for a mistyped
    /// path to come.
    fn find(&mut self, settings: &Settings, repositories: &Repositories) -> Result<VecDeque<LoadTask>, Error> {
        let is_explicit = settings.control_mode == ControlMode::Explicit;
        let mut tasks = VecDeque::new();
        if !is_explicit || settings.load_models.iter().any(|name| name == "*") {
            let mut look = repositories.look();
            if let Some(error) = look.error {
                return Err(error);
            }
            for action in actions(&[], &look.sightings) {
                match action {
                    ModelAction::Load { name, origin } => {
                        let directory = look.directories.remove(&(origin, name));
                        tasks.extend(directory.map(|directory| task(origin, directory)));
                    }
                    ModelAction::Refuse { name, why } | ModelAction::Unload { name, why: Some(why) } => {
                        self.refuse(&name, why);
                    }
                    ModelAction::Unload { why: None, .. } => {}
                }
            }
        } else {
            let mut names = settings.load_models.clone();
            names.sort();
            names.dedup();
            for name in names {
                match repositories.find(&name) {
                    Ok((origin, directory)) => tasks.push_back(task(origin, directory)),
                    Err(error) => self.refuse(&name, error.text().to_owned()),
                }
            }
        }
        Ok(tasks)
    }

    /// Loads ensembles, those first that others are made of.
    fn load_ensembles(&mut self, ensembles: Vec<LoadTask>, loader: &ModelLoader, repositories: &Repositories) {
        let names: Vec<_> =
            ensembles.iter().map(|task| (task.directory.name.clone(), task.composing.clone())).collect();
        let mut tasks: Vec<_> = ensembles.into_iter().map(Some).collect();
        for (index, refusal) in ensemble::order(&names) {
            let Some(task) = tasks.get_mut(index).and_then(Option::take) else { continue };
            let done = match refusal {
                Some(error) => {
                    FinishedTask { outcome: Err(LoadFailure::Composition(error)), took: Duration::ZERO, task }
                }
                None => run(task, loader, repositories, &self.members()),
            };
            // It takes no resources itself.
            self.take(done, None);
        }
    }

    /// What was loaded so far, for the ensembles that are made of it.
    fn members(&self) -> ComposingModels {
        let known = self.models.iter().map(|(name, model)| (name.clone(), model.member()));
        let mut members = ComposingModels { models: known.collect() };
        for loaded in &self.loaded {
            let member = members.models.entry(loaded.spec.name.clone()).or_default();
            member.versions.push((loaded.version, Arc::clone(&loaded.spec)));
            member.versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        }
        members
    }

    fn refuse(&mut self, name: &str, why: String) {
        log::error(&format!("failed to poll model '{name}': {why}"));
        let model = self.models.entry(name.to_owned()).or_default();
        model.failure = Some(why);
        model.loads.failed += 1;
    }

    fn take(&mut self, done: FinishedTask, limiter: Option<&Arc<RateLimiter>>) {
        let FinishedTask { task, outcome, took } = done;
        let name = task.directory.name.clone();
        let outcome = outcome.and_then(|loaded| rate_limit::register(loaded, limiter));
        let model = self.models.entry(name.clone()).or_default();
        (model.origin, model.is_asked) = (Some(task.origin), task.is_asked);
        model.composing.clone_from(&task.composing);
        model.place =
            (!task.composing.is_empty()).then(|| ModelOrigin::Known(task.origin, Box::new(task.directory.clone())));
        model.mark = task.directory.mark;
        model.loads.time += took;
        match outcome {
            Ok(loaded) => {
                model.loads.succeeded += 1;
                self.loaded.extend(loaded);
            }
            Err(failure) => {
                log::error(&format!("failed to load '{name}': {}", failure.error()));
                model.loads.failed += 1;
                model.handle_failure(&failure);
            }
        }
    }
}

fn task(origin: usize, directory: ModelDirectory) -> LoadTask {
    LoadTask { origin, directory, progress: Arc::default(), composing: Vec::new(), is_asked: true }
}

/// The same tasks with what ensembles among them are made of; where the flags name the models to load,
/// that is loaded too.
fn with_composing(
    mut tasks: VecDeque<LoadTask>,
    settings: &Settings,
    loader: &ModelLoader,
    repositories: &Repositories,
) -> Vec<LoadTask> {
    let mut all: Vec<LoadTask> = Vec::with_capacity(tasks.len());
    while let Some(mut next) = tasks.pop_front() {
        if let Some(source) = repositories.source(next.origin) {
            next.composing = loader.composing(ModelLocation { source, directory: &next.directory });
        }
        let composing = next.composing.clone();
        all.push(next);
        if settings.control_mode != ControlMode::Explicit {
            continue;
        }
        for name in composing {
            let is_there = all.iter().chain(&tasks).any(|task| task.directory.name == name);
            // One that is not found is missed when the ensemble is loaded.
            if let (false, Ok((origin, directory))) = (is_there, repositories.find(&name)) {
                tasks.push_back(LoadTask { is_asked: false, ..task(origin, directory) });
            }
        }
    }
    all
}

/// Loads so many at a time.
fn load_side_by_side(
    mut tasks: VecDeque<LoadTask>,
    threads: usize,
    loader: &ModelLoader,
    repositories: &Repositories,
) -> Vec<FinishedTask> {
    let mut all = Vec::with_capacity(tasks.len());
    let mut running: BTreeMap<String, Arc<LoadProgress>> = BTreeMap::new();
    let (ended, outcomes) = mpsc::channel();
    thread::scope(|scope| {
        while !tasks.is_empty() || !running.is_empty() {
            while running.len() < threads {
                let Some(task) = tasks.pop_front() else { break };
                running.insert(task.directory.name.clone(), Arc::clone(&task.progress));
                let ended = ended.clone();
                // Its outcome is awaited below.
                scope.spawn(move || drop(ended.send(run(task, loader, repositories, &ComposingModels::default()))));
            }
            match outcomes.recv_timeout(TELL_INTERVAL) {
                Ok(done) => {
                    running.remove(&done.task.directory.name);
                    all.push(done);
                }
                Err(RecvTimeoutError::Timeout) => tell(&running),
                // This thread holds a sender itself.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    all
}

fn run(task: LoadTask, loader: &ModelLoader, repositories: &Repositories, members: &ComposingModels) -> FinishedTask {
    let began = clock::now();
    let load = || {
        let gone = || Error::internal("its repository is gone");
        let source = repositories.source(task.origin).ok_or_else(gone)?;
        let location = ModelLocation { source, directory: &task.directory };
        loader.load_model(location, &ServingVersions::default(), members, &task.progress).map(|(loaded, _)| loaded)
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
    let outcome = outcome.unwrap_or_else(|panic| {
        Err(Error::internal(format!("its load panicked: {}", crate::queue::worker::panic_text(&*panic))).into())
    });
    FinishedTask { outcome, took: clock::now().since(began), task }
}

fn tell(running: &BTreeMap<String, Arc<LoadProgress>>) {
    let text = |(name, progress): (&String, &Arc<LoadProgress>)| {
        let (done, versions) = progress.versions();
        format!("'{name}' ({}, {done} of {versions} versions)", progress.stage().as_str())
    };
    log::info(&format!("still loading {}", running.iter().map(text).collect::<Vec<_>>().join(", ")));
}
