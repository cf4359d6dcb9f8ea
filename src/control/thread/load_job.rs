//! One load while the server runs: from the model's directory to instances that are ready to serve. Runs on a
//! thread of its own, at most `--model-load-thread-count` at a time, and touches nothing that serves: the control
//! thread publishes the result.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::backend::threads;
use crate::control::loading::hosted_files::{self, HostedFiles};
use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::loaded_version::{LoadBasis, LoadedVersion};
use crate::control::loading::model_loader::regrouped::RegroupedModel;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation, ServingVersions};
use crate::control::machine::cores::CorePlan;
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::repositories::Repositories;
use crate::control::repository::uploaded_files::UploadedFiles;
use crate::control::serving::instance_update::{PreparedUpdate, UpdateSite, UpdatedVersion};
use crate::control::serving::plan::{PlannedModel, RunTimePlaces};
use crate::control::serving::rate_limit;
use crate::control::serving::threads::{ThreadHooks, WorkerGroup};
use crate::control::thread::ControlMessage;
use crate::control::thread::instance_job::{ServingInstances, log_reload};
use crate::error::{Code, Error};
use crate::log;
use crate::model::config::{ConfigDraft, ConfigSurroundings};
use crate::model::ensemble::ComposingModels;
use crate::model::name::is_model_name;
use crate::model::parse::text::Notation;
use crate::model::repository::changes::VersionChanges;
use crate::model::repository::index::{HostedModel, LoadProgress, LoadStage};
use crate::model::repository::{ChangeMark, ModelDirectory};
use crate::protocol::repository::{LoadOrder, LoadPlace};
use crate::queue::rate_limiter::RateLimiter;
use crate::queue::served_model::{Placement, ServedModel};
use crate::queue::worker::panic_text;
use crate::runtime::clock;
use crate::settings::Settings;
use crate::shard::ServerContext;
use crate::shard::mailbox::{HandleRoute, ModelHandle};

/// Shared by the control thread and all loads.
pub struct LoadContext {
    /// The server's settings.
    pub settings: Arc<Settings>,
    /// Loads model versions.
    pub loader: Arc<ModelLoader>,
    /// The model repositories.
    pub repositories: Arc<Repositories>,
    /// The rate limiter; `None` without `--rate-limit`.
    pub limiter: Option<Arc<RateLimiter>>,
    /// The part that all threads of the server share.
    pub server_context: Arc<ServerContext>,
    /// The cores of shards and workers.
    pub cores: CorePlan,
    /// The calls by which worker threads report their end.
    pub thread_hooks: ThreadHooks,
    /// The channel to the control thread.
    pub messages: Sender<ControlMessage>,
}

impl LoadContext {
    /// Returns a function that is true if the server drains: no client waits for a load then.
    fn is_ending(&self) -> impl Fn() -> bool + '_ {
        || self.server_context.lifecycle.is_draining()
    }
}

/// Loads, and retries up to `--model-load-retry-count` times while a version fails. As in Triton, a
/// fault of a configuration or an ensemble is not retried.
pub fn with_retries<T>(
    name: &str,
    settings: &Settings,
    is_ending: impl Fn() -> bool,
    mut load: impl FnMut() -> Result<T, LoadFailure>,
) -> Result<T, LoadFailure> {
    let mut outcome = load();
    for retry in 1..=settings.repository_rules.load_retries {
        let Err(LoadFailure::Version(..)) = &outcome else { break };
        if is_ending() {
            break;
        }
        if let Err(failure) = &outcome {
            let of = settings.repository_rules.load_retries;
            log::warning(&format!("{}; loading it again ({retry} of {of})", failure.log_text(name)));
        }
        outcome = load();
    }
    outcome
}

/// One model to load.
pub struct LoadJob {
    /// The model's name, qualified if it has a namespace.
    pub name: String,
    /// The place of the model.
    pub origin: ModelOrigin,
    /// The versions that serve, with their change marks: a version whose mark is the same is not loaded again.
    pub serving_marks: ServingVersions,
    /// The numbers of the versions that serve.
    pub serving: Vec<u64>,
    /// The instances of those, if they may be updated without a load.
    pub instances: Option<ServingInstances>,
    /// The cores of each worker of all other models: the new workers go to the cores with the fewest.
    pub worker_cores: Vec<Vec<usize>>,
    /// All known models, for an ensemble whose composing models are loaded; `None` in the first run
    /// of a job.
    pub composing_models: Option<ComposingModels>,
    /// The progress of the load; the shards show it.
    pub progress: Arc<LoadProgress>,
}

/// The place of a model.
#[derive(Clone)]
pub enum ModelOrigin {
    /// In the repository with this index, found by a scan.
    Known(usize, Box<ModelDirectory>),
    /// Named by a client's load request: in the request's files, or in any repository that has the
    /// name.
    Requested(Box<LoadOrder>),
}

/// A model that was found.
pub struct LocatedModel {
    /// The index of its repository; `None` for a model that a client uploaded.
    pub origin: Option<usize>,
    /// The marks of its directory, for the next scan to compare.
    pub mark: ChangeMark,
    /// True if a client sent its configuration or its files. Then the next load loads every version
    /// again.
    pub is_uploaded: bool,
    /// The files that the client sent.
    pub uploaded_files: Option<Arc<UploadedFiles>>,
    /// The host's name for it, if it is at the host's path.
    pub hosted: Option<Arc<HostedModel>>,
    /// The host's directory that it was found in.
    pub hosted_root: Option<String>,
}

/// The versions that are ready to serve, and the serving ones that stay or go.
pub type LoadOutcome = Result<(Vec<ReadyVersion>, VersionChanges), LoadFailure>;

/// The result of a load.
pub struct FinishedLoad {
    /// The model's name.
    pub name: String,
    /// The model that was found; `None` if it was not.
    pub found: Option<LocatedModel>,
    /// The ready versions, or the reason that the load failed.
    pub outcome: LoadOutcome,
    /// The versions whose instances were updated; if there are any, no version was loaded.
    pub updated: Vec<UpdatedVersion>,
    /// The duration of the load.
    pub took: Duration,
}

impl FinishedLoad {
    /// The end of a load before its model was found.
    pub const fn without_model(name: String, outcome: LoadOutcome) -> Self {
        Self { name, found: None, outcome, updated: Vec::new(), took: Duration::ZERO }
    }
}

/// A model version with instances and workers, which no shard knows yet. Its workers end when it is dropped.
pub struct ReadyVersion {
    /// The model version.
    pub served: Arc<ServedModel>,
    /// One handle for each shard, in the order of the mailboxes.
    pub handles: Vec<ModelHandle>,
    /// Its workers.
    pub worker_group: WorkerGroup,
    /// The duration of its load.
    pub took: Duration,
    /// The bytes of its files.
    pub files_size: u64,
    /// The basis of updates of its instances.
    pub basis: Option<Arc<LoadBasis>>,
}

impl LoadJob {
    /// Runs the load and reports to the control thread in every case: also after a panic, since the model would
    /// stay busy forever.
    pub fn run(self, context: &LoadContext) {
        let began = clock::now();
        let namesakes = match &self.origin {
            // A client's name stands for the model in each namespace that has it. With files it is
            // a model of its own.
            ModelOrigin::Requested(load)
                if load.files.is_empty() && load.place == LoadPlace::Repositories && is_model_name(&load.name) =>
            {
                context.repositories.namesakes(&load.name)
            }
            _ => Vec::new(),
        };
        if !namesakes.is_empty() {
            drop(context.messages.send(ControlMessage::NamesakesFound(Box::new(self), namesakes)));
            return;
        }
        // An ensemble must wait for its composing models, and not on this thread: with one load
        // thread it would wait forever. The job goes back to the control thread.
        let composing = if self.composing_models.is_none() { self.composing(context) } else { Vec::new() };
        if !composing.is_empty() {
            drop(context.messages.send(ControlMessage::EnsembleFound(Box::new(self), composing)));
            return;
        }
        let name = self.name.clone();
        let (mut found, mut updated) = (None, Vec::new());
        let outcome = catch_unwind(AssertUnwindSafe(|| self.load(context, &mut found, &mut updated)));
        let outcome = outcome.unwrap_or_else(|panic| {
            Err(LoadFailure::from(Error::internal(format!("its load panicked: {}", panic_text(&*panic)))))
        });
        let took = clock::now().since(began);
        // Fails only when the server has ended.
        let finished = FinishedLoad { name, found, outcome, updated, took };
        let _ = context.messages.send(ControlMessage::LoadFinished(Box::new(finished)));
    }

    /// Returns the composing models of an ensemble; empty for other models, and when the
    /// configuration cannot be read: the load that follows then fails with the reason.
    fn composing(&self, context: &LoadContext) -> Vec<String> {
        let compose = |source: &ModelSource, directory: &ModelDirectory| {
            context.loader.composing(ModelLocation { source, directory })
        };
        let (origin, steps) = match &self.origin {
            ModelOrigin::Known(origin, directory) => {
                let source = context.repositories.source(*origin);
                (Some(*origin), source.map(|source| compose(source, directory)).unwrap_or_default())
            }
            // An uploaded ensemble has only its configuration: there are no files to look at.
            ModelOrigin::Requested(load) if !load.files.is_empty() => {
                let config = load.config.as_deref().unwrap_or_default();
                let surroundings = ConfigSurroundings::of_files(Some(&[]));
                let draft = ConfigDraft::read(&self.name, Notation::Json, config.as_bytes(), surroundings);
                (None, draft.map(|draft| draft.composing()).unwrap_or_default())
            }
            ModelOrigin::Requested(load) => {
                let located = find((**load).clone(), &context.repositories, &context.settings);
                let Ok(located) = located else { return Vec::new() };
                let source = located.source(&context.repositories);
                let steps = source.map(|source| compose(source, &located.directory)).unwrap_or_default();
                if located.hosted.is_some() {
                    // At a host's path there are no namespaces.
                    return steps;
                }
                (located.origin, steps)
            }
        };
        steps.iter().map(|step| context.repositories.step_model(origin, step)).collect()
    }

    fn load(
        self,
        context: &LoadContext,
        found: &mut Option<LocatedModel>,
        updated: &mut Vec<UpdatedVersion>,
    ) -> Result<(Vec<ReadyVersion>, VersionChanges), LoadFailure> {
        self.progress.set_stage(LoadStage::Reading);
        let located = match &self.origin {
            ModelOrigin::Known(origin, directory) => LocatedFiles::of_repository(*origin, (**directory).clone()),
            ModelOrigin::Requested(load) => find((**load).clone(), &context.repositories, &context.settings)?,
        };
        let (directory, is_uploaded) = (&located.directory, located.is_uploaded);
        *found = Some(LocatedModel {
            origin: located.origin,
            mark: directory.mark.clone(),
            is_uploaded,
            uploaded_files: located.uploaded_files.clone(),
            hosted: located.hosted.as_ref().and_then(|files| files.model.clone()).map(Arc::new),
            hosted_root: located.hosted.as_ref().map(|files| files.root.clone()),
        });
        // Only now: a load of a name that does not exist must not add it to the index.
        let _ = context.messages.send(ControlMessage::ModelFound(self.name.clone(), Arc::clone(&self.progress)));
        let source = located.source(&context.repositories);
        let source = source.ok_or_else(|| Error::internal("its repository no longer exists"))?;
        if let Some(outcome) = self.update_instances(context, &located, source) {
            let settings;
            (*updated, settings) = outcome?;
            let settings = Some(settings);
            return Ok((Vec::new(), VersionChanges { kept: self.serving, settings, ..VersionChanges::default() }));
        }
        // Uploaded files replace all versions that serve; a configuration alone those for which it says something else.
        let serving_marks = match (is_uploaded, &located.uploaded_files) {
            (false, _) => self.serving_marks,
            (true, None) => ServingVersions { shared: None, ..self.serving_marks },
            (true, Some(_)) => ServingVersions::default(),
        };
        let location = ModelLocation { source, directory };
        let composing_models = self.composing_models.unwrap_or_default();
        // The instances of the last try are freed before the next one.
        let (ready, mut changes) = with_retries(&self.name, &context.settings, context.is_ending(), || {
            let (loaded, changes) =
                context.loader.load_model(location, &serving_marks, &composing_models, &self.progress)?;
            let loaded = rate_limit::register(loaded, context.limiter.as_ref())?;
            self.progress.set_stage(LoadStage::Starting);
            let mut worker_cores = self.worker_cores.clone();
            let mut ready = Vec::with_capacity(loaded.len());
            for loaded in loaded {
                let version = loaded.version;
                let outcome = make_ready(loaded, context, &mut worker_cores);
                ready.push(outcome.map_err(|error| LoadFailure::Version(version, error))?);
            }
            Ok((ready, changes))
        })
        .map_err(|failure| match failure {
            LoadFailure::Config(error) if is_uploaded && error.code() == Code::InvalidArgument => {
                LoadFailure::Uploaded(error)
            }
            other => other,
        })?;
        if is_uploaded {
            let VersionChanges { kept, loaded, .. } = &changes;
            let retired = self.serving.iter().copied().filter(|have| !loaded.contains(have) && !kept.contains(have));
            changes.retired = retired.collect();
        }
        Ok((ready, changes))
    }
}

impl LoadJob {
    /// Updates the instances of the versions that serve, all or none; returns the mark of their settings too. `None` if the
    /// model must be loaded.
    fn update_instances(
        &self,
        context: &LoadContext,
        located: &LocatedFiles,
        source: &ModelSource,
    ) -> Option<Result<(Vec<UpdatedVersion>, u64), LoadFailure>> {
        let serving = self.instances.as_ref().filter(|serving| located.origin == Some(serving.origin))?;
        let location = ModelLocation { source, directory: &located.directory };
        let RegroupedModel { specs, settings, .. } =
            serving.regrouped(&context.loader, location, context.limiter.is_some())?;
        self.progress.set_stage(LoadStage::Starting);
        let own = serving.versions.iter().flat_map(|(_, workers)| &workers.placements);
        let own = own.map(|placement| placement.computes_on().to_vec());
        let worker_cores: Vec<_> = self.worker_cores.iter().cloned().chain(own).collect();
        let places = RunTimePlaces { settings: &context.settings, cores: &context.cores, worker_cores: &worker_cores };
        let site = UpdateSite { places, thread_hooks: &context.thread_hooks };
        match with_retries(&self.name, &context.settings, context.is_ending(), || serving.prepare(site, &specs)) {
            Ok(Some(prepared)) => Some(Ok((prepared.into_iter().map(PreparedUpdate::commit).collect(), settings))),
            Ok(None) => {
                log_reload(&self.name, "its queue has no more places for instances that are added");
                None
            }
            Err(failure) => Some(Err(failure)),
        }
    }
}

/// The place of a model's files.
struct LocatedFiles {
    /// The index of its repository; `None` for an upload, and at the host's path.
    origin: Option<usize>,
    directory: ModelDirectory,
    /// True if a client sent anything for it.
    is_uploaded: bool,
    uploaded_files: Option<Arc<UploadedFiles>>,
    hosted: Option<HostedFiles>,
}

impl LocatedFiles {
    const fn of_repository(origin: usize, directory: ModelDirectory) -> Self {
        Self { origin: Some(origin), directory, is_uploaded: false, uploaded_files: None, hosted: None }
    }

    fn source<'a>(&'a self, repositories: &'a Repositories) -> Option<&'a ModelSource> {
        let own = self.uploaded_files.as_deref().map(UploadedFiles::source);
        let own = own.or_else(|| self.hosted.as_ref().map(|files| &files.source));
        own.or_else(|| repositories.source(self.origin?))
    }
}

/// Finds the model of a client's load request in the repositories or at the path that it names, or writes the files that
/// came with it.
fn find(load: LoadOrder, repositories: &Repositories, settings: &Settings) -> Result<LocatedFiles, LoadFailure> {
    if let Some((directory, files)) = hosted_files::find(&load, settings)? {
        let hosted = Some(files);
        return Ok(LocatedFiles { origin: None, directory, is_uploaded: false, uploaded_files: None, hosted });
    }
    if load.files.is_empty() {
        let (origin, own) = repositories.find(&load.name).map_err(LoadFailure::Absent)?;
        let source = repositories.source(origin);
        let Some(config) = load.config else {
            if let Some(source) = source.filter(|source| source.is_store()) {
                check_operators(source, &own, None, settings)?;
            }
            return Ok(LocatedFiles::of_repository(origin, own));
        };
        let directory = ModelDirectory { given: Some((Notation::Json, config)), ..own.clone() };
        if let Some(source) = source {
            check_environment(source, &directory, Some(&own), settings)?;
            check_operators(source, &directory, Some(&own).filter(|_| !source.is_store()), settings)?;
        }
        return Ok(LocatedFiles { is_uploaded: true, ..LocatedFiles::of_repository(origin, directory) });
    }
    let Some(config) = load.config.clone() else {
        let text = "the load request has files but no parameter 'config', which they require";
        return Err(LoadFailure::Uploaded(Error::invalid(text)));
    };
    let uploaded_files = UploadedFiles::new(&load)
        .map_err(|error| Error::internal(format!("the uploaded files cannot be written: {error}")))?;
    let entry = uploaded_files.source().repository.list_model(&load.name);
    let directory = ModelDirectory { given: Some((Notation::Json, config)), ..ModelDirectory::from_entry(&entry)? };
    check_environment(uploaded_files.source(), &directory, None, settings)?;
    check_operators(uploaded_files.source(), &directory, None, settings)?;
    let uploaded_files = Some(Arc::new(uploaded_files));
    Ok(LocatedFiles { origin: None, directory, is_uploaded: true, uploaded_files, hosted: None })
}

/// Refuses a client's configuration that chooses the Python for a model, if clients must not bring
/// code. The choice of the repository's `own` configuration may stay, and files in a model's
/// directory there are the repository's too.
fn check_environment(
    source: &ModelSource,
    directory: &ModelDirectory,
    own: Option<&ModelDirectory>,
    settings: &Settings,
) -> Result<(), LoadFailure> {
    // A configuration that cannot be read is refused by its load.
    let environment = |directory| {
        let python = source.draft(directory, settings).and_then(|draft| draft.python());
        python.ok().flatten().and_then(|python| python.environment)
    };
    let Some(given) = environment(directory).filter(|_| !settings.allows_model_code_upload) else { return Ok(()) };
    let is_beneath = given.strip_prefix(MODEL_DIRECTORY).is_some_and(|path| path.split('/').all(|part| part != ".."));
    if own.is_some_and(|own| is_beneath || environment(own).as_ref() == Some(&given)) {
        return Ok(());
    }
    Err(LoadFailure::Refused(Error::invalid(
        "the configuration of a load request may name another EXECUTION_ENV_PATH than the repository's only with \
         --allow-model-code-upload=true",
    )))
}

/// Refuses libraries with operators, which run inside the server, that a client's configuration or a store names. Those of the
/// repository's `own` configuration may stay.
fn check_operators(
    source: &ModelSource,
    directory: &ModelDirectory,
    own: Option<&ModelDirectory>,
    settings: &Settings,
) -> Result<(), LoadFailure> {
    if settings.allows_model_code_upload {
        return Ok(());
    }
    // A configuration that cannot be read is refused by its load.
    let libraries =
        |directory| source.draft(directory, settings).map_or_else(|_| Vec::new(), |it| it.operator_libraries());
    let given = libraries(directory);
    if given.is_empty() || own.is_some_and(|own| libraries(own) == given) {
        return Ok(());
    }
    Err(LoadFailure::Refused(Error::invalid(
        "'model_operations.op_library_filename' names code that would run inside the server: the configuration of a load \
         request, or of a store, may have it only with --allow-model-code-upload=true",
    )))
}

/// The beginning of a path in the model's directory, in `EXECUTION_ENV_PATH`.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY/";

/// Makes the instances of a loaded version and starts its workers. `worker_cores` gets the cores of the new ones.
fn make_ready(
    loaded: LoadedVersion,
    context: &LoadContext,
    worker_cores: &mut Vec<Vec<usize>>,
) -> Result<ReadyVersion, Error> {
    let PlannedModel { served, producers, placements, took, files_size, basis } =
        PlannedModel::at_run_time(&context.settings, loaded, &context.cores, worker_cores)?;
    let worker_group = WorkerGroup::start(&served, &placements, &context.thread_hooks)?;
    let mut handles = Vec::with_capacity(producers.len());
    for (mailbox, producer) in context.server_context.control_link.mailboxes.iter().zip(producers) {
        let route = match (producer, &served.placement) {
            (Some(producer), _) => HandleRoute::Queue(producer),
            (None, Placement::Ensemble(_)) => HandleRoute::Ensemble,
            (None, _) => {
                let threads = mailbox.threads().ok_or_else(|| Error::unavailable("a shard is not running yet"))?;
                // The shard's engine pool has one thread, the shard itself, which is busy serving: a warm-up run
                // submitted to it from here would block until the shard runs it, which it never does. So the
                // instance is made on a pool of this thread and moved to the shard's pool afterwards.
                let mut instance = threads::enter(1, |own| served.loaded.new_instance(own))?;
                instance.set_threads(threads);
                HandleRoute::Instance(instance)
            }
        };
        handles.push(ModelHandle { served: Arc::clone(&served), route });
    }
    let took = took + worker_group.wait()?;
    worker_cores.extend(worker_group.cores());
    Ok(ReadyVersion { served, handles, worker_group, took, files_size, basis })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use bytes::Bytes;

    use super::*;
    use crate::settings::RepositoryRules;

    #[test]
    fn a_version_that_fails_is_loaded_again_so_often_and_nothing_else_is() {
        let check = |retries: usize, fails: usize, failure: LoadFailure, is_ending: bool, want: (bool, usize)| {
            let mut loads = 0;
            let settings = Settings {
                repository_rules: RepositoryRules {
                    load_retries: retries,
                    has_namespaces: false,
                    refuses_links: false,
                },
                ..Settings::default()
            };
            let outcome = with_retries(
                "m",
                &settings,
                || is_ending,
                || {
                    loads += 1;
                    if loads > fails { Ok(()) } else { Err(failure.clone()) }
                },
            );
            assert_eq!((outcome.is_ok(), loads), want, "{retries} retries, {fails} failures: {failure:?}");
        };
        let version = || LoadFailure::Version(1, Error::internal("x"));
        check(0, 0, version(), false, (true, 1));
        check(0, 1, version(), false, (false, 1));
        check(3, 2, version(), false, (true, 3));
        check(3, 3, version(), false, (true, 4));
        check(3, 9, version(), false, (false, 4));
        check(3, 9, version(), true, (false, 1));
        for other in [LoadFailure::Config, LoadFailure::Composition, LoadFailure::NoModel, LoadFailure::Policy] {
            check(3, 1, other(Error::invalid("x")), false, (false, 1));
        }
    }

    #[test]
    fn a_load_request_chooses_no_python_without_the_flag() {
        let root = std::env::temp_dir().join(format!("deuteron-choice-{}", std::process::id()));
        fs::create_dir_all(root.join("m/1")).unwrap();
        fs::write(root.join("m/1/model.py"), "").unwrap();
        let environment =
            |path: &str| format!(r#"{{"parameters":{{"EXECUTION_ENV_PATH":{{"string_value":"{path}"}}}}}}"#);
        let own = r#"backend: "python" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/opt/own" } }"#;
        fs::write(root.join("m/config.pbtxt"), own).unwrap();
        let found = |allows_model_code_upload, config: &str, files: &[&str]| {
            let settings =
                Settings { repositories: vec![root.clone()], allows_model_code_upload, ..Settings::default() };
            let settings = Arc::new(settings);
            let repositories = Repositories::open(&settings).unwrap();
            let files = files.iter().map(|path| ((*path).to_owned(), Bytes::from_static(b"x"))).collect();
            let load =
                LoadOrder { name: "m".to_owned(), config: Some(config.to_owned()), files, ..LoadOrder::default() };
            find(load, &repositories, &settings).map(|_| ()).map_err(|failure| failure.error().text().to_owned())
        };
        let refused = |path: &str, files: &[&str]| {
            let text = found(false, &environment(path), files).unwrap_err();
            assert!(
                text.contains("may name another EXECUTION_ENV_PATH than the repository's only with --allow"),
                "{text}"
            );
            assert_eq!(found(true, &environment(path), files), Ok(()), "{path}");
        };
        refused("/tmp/other", &[]);
        refused("$$TRITON_MODEL_DIRECTORY/../x", &[]);
        refused("x$$TRITON_MODEL_DIRECTORY/env", &[]);
        for path in ["/opt/own", "$$TRITON_MODEL_DIRECTORY/env.tar.gz"] {
            assert_eq!(found(false, &environment(path), &[]), Ok(()), "{path}");
        }
        let uploaded = environment("$$TRITON_MODEL_DIRECTORY/1/env").replacen('{', r#"{"backend":"python","#, 1);
        assert!(found(false, &uploaded, &["1/env"]).is_err(), "the client's own directory");
        assert_eq!(found(true, &uploaded, &["1/env"]), Ok(()));
        let other = environment("/x").replacen('{', r#"{"backend":"identity","#, 1);
        assert_eq!(found(false, &other, &[]), Ok(()), "a parameter without a meaning");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_load_request_names_no_library_with_operators_without_the_flag() {
        let root = std::env::temp_dir().join(format!("deuteron-operators-{}", std::process::id()));
        fs::create_dir_all(root.join("m/1")).unwrap();
        fs::write(root.join("m/1/model.onnx"), "").unwrap();
        let config = |library: &str| format!(r#"{{"model_operations":{{"op_library_filename":["{library}"]}}}}"#);
        fs::write(root.join("m/config.pbtxt"), "model_operations { op_library_filename: 'own.so' }").unwrap();
        let found = |allows_model_code_upload, library: &str, files: &[&str]| {
            let settings =
                Settings { repositories: vec![root.clone()], allows_model_code_upload, ..Settings::default() };
            let settings = Arc::new(settings);
            let repositories = Repositories::open(&settings).unwrap();
            let files = files.iter().map(|path| ((*path).to_owned(), Bytes::from_static(b"x"))).collect();
            let load = LoadOrder { name: "m".to_owned(), config: Some(config(library)), files, ..LoadOrder::default() };
            find(load, &repositories, &settings).map(|_| ()).map_err(|failure| failure.error().text().to_owned())
        };
        let text = found(false, "other.so", &[]).unwrap_err();
        assert!(text.contains("may have it only with --allow-model-code-upload=true"), "{text}");
        assert!(found(false, "own.so", &["1/model.onnx"]).is_err(), "the client's own model");
        assert_eq!(found(false, "own.so", &[]), Ok(()), "the repository's own choice");
        assert_eq!(found(true, "other.so", &["1/model.onnx"]), Ok(()));
        fs::remove_dir_all(&root).unwrap();
    }
}
