//! Loads the models at start: all in the repositories, or those that flags name. Several load at a time, and the log
//! says what is still loading. Ensembles are loaded last, each after its composing models.

mod examination;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::control::loading::load_display::status_line;
use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::loaded_version::LoadedVersion;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation, ServingVersions};
use crate::control::repository::repositories::Repositories;
use crate::control::serving::rate_limit;
use crate::control::thread::load_job::{ModelOrigin, with_retries};
use crate::control::thread::model_record::ModelRecords;
use crate::error::Error;
use crate::log::{self, LogTerminal};
use crate::model::ensemble::{self, ComposingModels};
use crate::model::repository::ModelDirectory;
use crate::model::repository::changes::{ModelAction, actions};
use crate::model::repository::index::{
    LoadProgress, LoadStage, ModelOverview, RepositoryOverview, StartCounts, StartProgress,
};
use crate::queue::rate_limiter::RateLimiter;
use crate::queue::worker::panic_text;
use crate::runtime::clock;
use crate::settings::{Compat, ControlMode, Settings};
use crate::time::Instant;

pub use examination::{Examine, ModelFinding, examine};

/// The interval at which the log lists the models that still load.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which a terminal shows it.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);

/// The result of the loads at start.
#[derive(Default)]
pub struct InitialLoad {
    /// The loaded versions, by name, the highest version of each first.
    pub loaded: Vec<LoadedVersion>,
    /// The records of all models, also of those that failed.
    pub models: ModelRecords,
    /// The reasons that models were not loaded, by name.
    pub errors: BTreeMap<String, Error>,
}

/// The receivers of the loads' progress.
#[derive(Clone, Copy)]
pub struct StartWatch<'a> {
    /// Counts the models, and those that are loaded.
    pub start: &'a Arc<StartProgress>,
    /// Called with the state of all models once they are known.
    pub found: &'a dyn Fn(&RepositoryOverview),
}

/// One model to load.
struct LoadTask {
    /// The index of its repository.
    origin: usize,
    directory: ModelDirectory,
    progress: Arc<LoadProgress>,
    /// The composing models of an ensemble.
    composing: Vec<String>,
    /// True if it is loaded by itself, and not only as a step of an ensemble.
    is_requested: bool,
}

/// One model whose load has ended.
struct FinishedTask {
    task: LoadTask,
    /// The versions, and a hash of what they share but for the version policy.
    outcome: Result<(Vec<LoadedVersion>, Option<u64>), LoadFailure>,
    took: Duration,
}

/// Loads the models that the flags ask for.
///
/// # Errors
/// When a repository cannot be read, or a model fails to load and `--exit-on-error` is on.
pub fn load(
    settings: &Settings,
    loader: &ModelLoader,
    repositories: &Repositories,
    limiter: Option<&Arc<RateLimiter>>,
    watch: StartWatch<'_>,
) -> Result<InitialLoad, Error> {
    let mut initial = InitialLoad::default();
    let tasks = initial.find_tasks(settings, repositories)?;
    if tasks.is_empty() && initial.models.is_empty() {
        check_may_be_empty(settings)?;
    }
    let tasks = with_composing(tasks, settings, loader, repositories);
    let StartWatch { start, found } = watch;
    start.set_all(tasks.len());
    found(&overview(&tasks, start));
    let (ensembles, others): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| !task.composing.is_empty());
    for done in load_in_parallel(others.into(), settings.load_threads, start, loader, repositories) {
        initial.record(done, limiter);
    }
    initial.load_ensembles(ensembles, start, loader, repositories);
    if !initial.errors.is_empty() && settings.exit_on_error {
        return Err(Error::internal(format!(
            "Internal - failed to load all models: {}; --exit-on-error=false starts the server without them",
            initial.failed_text()
        )));
    }
    initial.loaded.sort_by(|a, b| (&a.spec.name, b.version).cmp(&(&b.spec.name, a.version)));
    Ok(initial)
}

/// Refuses a server without models that will never load one. It would be ready with nothing: most
/// likely a path is wrong, or its source of models has failed. tritonserver starts all the same.
fn check_may_be_empty(settings: &Settings) -> Result<(), Error> {
    let loads_later = settings.control_mode != ControlMode::None || settings.model_cache.size_max.is_some();
    if loads_later || !settings.exit_on_error || settings.compat == Compat::Triton {
        return Ok(());
    }
    let paths: Vec<_> = settings.repositories.iter().map(|path| format!("'{}'", path.display())).collect();
    Err(Error::invalid(format!(
        "there is no model in {}: expected an ONNX file, or directories such as NAME/1/model.onnx; with \
         --model-control-mode=poll or explicit models may come later, and --exit-on-error=false starts the server without",
        paths.join(", ")
    )))
}

impl InitialLoad {
    /// Finds the models to load. A repository that cannot be read is an error here, unlike for a later scan: at start
    /// it is most likely a mistyped path.
    fn find_tasks(&mut self, settings: &Settings, repositories: &Repositories) -> Result<VecDeque<LoadTask>, Error> {
        let is_explicit = settings.loads_when_asked();
        let mut tasks = VecDeque::new();
        if !is_explicit || settings.load_models.iter().any(|name| name == "*") {
            let mut scan = repositories.scan();
            if let Some(error) = scan.error {
                return Err(error);
            }
            for action in actions(&[], &scan.sightings) {
                match action {
                    ModelAction::Load { name, origin } => {
                        let directory = scan.directories.remove(&(origin, name));
                        tasks.extend(directory.map(|directory| task(origin, directory)));
                    }
                    ModelAction::Refuse { name, why } | ModelAction::Unload { name, why: Some(why) } => {
                        self.record_refusal(&name, why);
                    }
                    ModelAction::Unload { why: None, .. } => {}
                }
            }
        } else {
            let mut names = settings.load_models.clone();
            names.sort();
            names.dedup();
            for name in names {
                let namesakes = repositories.namesakes(&name);
                for name in if namesakes.is_empty() { vec![name] } else { namesakes } {
                    match repositories.find(&name) {
                        Ok((origin, directory)) => tasks.push_back(task(origin, directory)),
                        Err(error) => self.record_refusal(&name, error.text().to_owned()),
                    }
                }
            }
        }
        Ok(tasks)
    }

    /// Returns a text with the number of models that failed, and their names.
    fn failed_text(&self) -> String {
        let names: Vec<_> = self.errors.keys().take(5).map(|name| format!("'{name}'")).collect();
        let more = if self.errors.len() > names.len() { ", …" } else { "" };
        format!("{} of {} models failed ({}{more})", self.errors.len(), self.models.len(), names.join(", "))
    }

    /// Returns `, but 2 of 3 models failed ('a', 'b'),`; empty if none did.
    pub fn but_failed(&self) -> String {
        if self.errors.is_empty() { String::new() } else { format!(", but {},", self.failed_text()) }
    }

    /// Loads ensembles in dependency order, one at a time: no engine is involved, so this is quick.
    fn load_ensembles(
        &mut self,
        ensembles: Vec<LoadTask>,
        start: &StartProgress,
        loader: &ModelLoader,
        repositories: &Repositories,
    ) {
        let names: Vec<_> =
            ensembles.iter().map(|task| (task.directory.qualified_name(), task.composing.clone())).collect();
        let mut tasks: Vec<_> = ensembles.into_iter().map(Some).collect();
        for (index, refusal) in ensemble::load_order(&names) {
            let Some(task) = tasks.get_mut(index).and_then(Option::take) else { continue };
            let done = match refusal {
                Some(error) => {
                    FinishedTask { outcome: Err(LoadFailure::Composition(error)), took: Duration::ZERO, task }
                }
                None => run(task, loader, repositories, &self.composing_models()),
            };
            start.handle_loaded();
            // An ensemble has no instances, so it needs no resources of the rate limiter.
            self.record(done, None);
        }
    }

    /// Returns the models loaded so far, as possible steps of ensembles.
    fn composing_models(&self) -> ComposingModels {
        let known = self.models.iter().map(|(name, model)| (name.clone(), model.composing_model()));
        let mut members = ComposingModels { models: known.collect() };
        for loaded in &self.loaded {
            let member = members.models.entry(loaded.spec.qualified_name()).or_default();
            member.versions.push((loaded.version, Arc::clone(&loaded.spec)));
            member.versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        }
        members
    }

    fn record_refusal(&mut self, name: &str, why: String) {
        log::error(&format!("failed to poll model '{name}': {why}"));
        self.models.entry(name.to_owned()).or_default().handle_refusal(&why);
        self.errors.insert(name.to_owned(), Error::invalid(why));
    }

    fn record(&mut self, done: FinishedTask, limiter: Option<&Arc<RateLimiter>>) {
        let FinishedTask { task, outcome, took } = done;
        let name = task.directory.qualified_name();
        let outcome = outcome.and_then(|(loaded, settings)| Ok((rate_limit::register(loaded, limiter)?, settings)));
        let model = self.models.entry(name.clone()).or_default();
        (model.origin, model.is_requested) = (Some(task.origin), task.is_requested);
        model.composing.clone_from(&task.composing);
        model.ensemble_origin =
            (!task.composing.is_empty()).then(|| ModelOrigin::Known(task.origin, Box::new(task.directory.clone())));
        model.mark = task.directory.mark;
        model.loads.time += took;
        match outcome {
            Ok((loaded, settings)) => {
                model.loads.succeeded += 1;
                model.settings = settings;
                self.loaded.extend(loaded);
            }
            Err(failure) => {
                log::error(&failure.log_text(&name));
                self.errors.insert(name.clone(), failure.error().clone());
                model.loads.failed += 1;
                model.handle_failure(&failure);
            }
        }
    }
}

/// Returns the state of all models before their loads.
fn overview(tasks: &[LoadTask], start: &Arc<StartProgress>) -> RepositoryOverview {
    let model = |task: &LoadTask| ModelOverview {
        name: task.directory.name.clone(),
        namespace: task.directory.namespace.clone(),
        loading: Some(Arc::clone(&task.progress)),
        ..ModelOverview::default()
    };
    let models: Vec<_> = tasks.iter().map(model).collect();
    RepositoryOverview { start: Some(Arc::clone(start)), ..RepositoryOverview::new(models) }
}

fn task(origin: usize, directory: ModelDirectory) -> LoadTask {
    LoadTask { origin, directory, progress: Arc::default(), composing: Vec::new(), is_requested: true }
}

/// Reads the composing models of the ensembles among the tasks. If flags name the models to load,
/// tasks for the composing models are added; otherwise all models of the repositories are in the
/// list already.
fn with_composing(
    mut tasks: VecDeque<LoadTask>,
    settings: &Settings,
    loader: &ModelLoader,
    repositories: &Repositories,
) -> Vec<LoadTask> {
    let mut all: Vec<LoadTask> = Vec::with_capacity(tasks.len());
    while let Some(mut next) = tasks.pop_front() {
        if let Some(source) = repositories.source(next.origin) {
            let steps = loader.composing(ModelLocation { source, directory: &next.directory });
            next.composing = steps.iter().map(|step| repositories.step_model(Some(next.origin), step)).collect();
        }
        let composing = next.composing.clone();
        all.push(next);
        if !settings.loads_when_asked() {
            continue;
        }
        for name in composing {
            let is_there = all.iter().chain(&tasks).any(|task| task.directory.qualified_name() == name);
            // A composing model that is not found fails the load of the ensemble later.
            if let (false, Ok((origin, directory))) = (is_there, repositories.find(&name)) {
                tasks.push_back(LoadTask { is_requested: false, ..task(origin, directory) });
            }
        }
    }
    all
}

/// Loads models on up to `threads` threads at a time.
fn load_in_parallel(
    mut tasks: VecDeque<LoadTask>,
    threads: usize,
    start: &StartProgress,
    loader: &ModelLoader,
    repositories: &Repositories,
) -> Vec<FinishedTask> {
    let mut all = Vec::with_capacity(tasks.len());
    let mut running: BTreeMap<String, (Arc<LoadProgress>, Instant)> = BTreeMap::new();
    let (ended, outcomes) = mpsc::channel();
    let mut watch = LoadWatch::new(clock::now());
    thread::scope(|scope| {
        while !tasks.is_empty() || !running.is_empty() {
            while running.len() < threads.saturating_add(loader.slow_loads()) {
                let Some(task) = tasks.pop_front() else { break };
                running.insert(task.directory.qualified_name(), (Arc::clone(&task.progress), clock::now()));
                let ended = ended.clone();
                scope.spawn(move || drop(ended.send(run(task, loader, repositories, &ComposingModels::default()))));
            }
            match outcomes.recv_timeout(watch.interval()) {
                Ok(done) => {
                    running.remove(&done.task.directory.qualified_name());
                    done.task.progress.set_stage(LoadStage::Ended);
                    start.handle_loaded();
                    all.push(done);
                }
                Err(RecvTimeoutError::Timeout) => watch.handle_time(&running, start, clock::now()),
                // Cannot happen: this thread has a sender.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    watch.end();
    all
}

fn run(task: LoadTask, loader: &ModelLoader, repositories: &Repositories, members: &ComposingModels) -> FinishedTask {
    let began = clock::now();
    let load = || {
        let gone = || Error::internal("its repository no longer exists");
        let source = repositories.source(task.origin).ok_or_else(gone)?;
        let location = ModelLocation { source, directory: &task.directory };
        // A signal while the server starts ends it at once: no load has to look for one.
        with_retries(
            &task.directory.name,
            loader.settings(),
            || false,
            || {
                loader
                    .load_model(location, &ServingVersions::default(), members, &task.progress)
                    .map(|(loaded, changes)| (loaded, changes.settings))
            },
        )
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
    let outcome = outcome
        .unwrap_or_else(|panic| Err(Error::internal(format!("its load panicked: {}", panic_text(&*panic))).into()));
    FinishedTask { outcome, took: clock::now().since(began), task }
}

/// Shows the progress of the loads: in the log now and then, or on a terminal all the time.
struct LoadWatch {
    terminal: Option<LogTerminal>,
    logged: Instant,
    has_status: bool,
}

impl LoadWatch {
    fn new(now: Instant) -> Self {
        Self { terminal: log::terminal(), logged: now, has_status: false }
    }

    /// Returns the time to wait for an outcome before [`LoadWatch::handle_time`].
    const fn interval(&self) -> Duration {
        if self.terminal.is_some() { STATUS_INTERVAL } else { PROGRESS_INTERVAL }
    }

    fn handle_time(
        &mut self,
        running: &BTreeMap<String, (Arc<LoadProgress>, Instant)>,
        start: &StartProgress,
        now: Instant,
    ) {
        if let Some(terminal) = self.terminal {
            let StartCounts { done, all } = start.counts();
            let models: Vec<_> = running.iter().map(|(name, (_, began))| (name.as_str(), now.since(*began))).collect();
            log::show_status(Some(&status_line(done, all, &models, terminal.columns)));
            self.has_status = true;
        } else if now.since(self.logged) >= PROGRESS_INTERVAL {
            self.logged = now;
            log_progress(running);
        }
    }

    /// All models are loaded.
    fn end(&self) {
        if self.has_status {
            log::show_status(None);
        }
    }
}

fn log_progress(running: &BTreeMap<String, (Arc<LoadProgress>, Instant)>) {
    let text = |(name, (progress, _)): (&String, &(Arc<LoadProgress>, Instant))| {
        let (done, versions) = progress.versions();
        format!("'{name}' ({}, {done} of {versions} versions)", progress.stage().as_str())
    };
    log::info(&format!("still loading {}", running.iter().map(text).collect::<Vec<_>>().join(", ")));
}
