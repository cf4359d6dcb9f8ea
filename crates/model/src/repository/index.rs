//! The state of all models, including those that are loading, failed or unloaded. The control
//! thread builds a [`RepositoryOverview`] after every change and sends it to every shard, which
//! answers readiness, the repository index, and requests for missing versions from it. Bounded by
//! the models that were ever requested or found.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::name::split_qualified;
use base::error::Error;

/// Triton's reason for a version that was unloaded on request.
pub const UNLOADED: &str = "unloaded";
/// Triton's reason for a model that two repositories have.
pub const DUPLICATE: &str = "model appears in two or more repositories";

/// The state of a model version, as Triton names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionState {
    /// Its load is in progress.
    Loading,
    /// It serves.
    Ready,
    /// It does not serve; the reason says why.
    Unavailable,
    /// It accepts no new requests and finishes those in flight.
    Unloading,
}

impl VersionState {
    /// Its name in the repository index.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Loading => "LOADING",
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// One entry of the repository index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// Its version, if one is known.
    pub version: Option<u64>,
    /// Its state; `None` if it was never loaded.
    pub state: Option<VersionState>,
    /// The reason for this state; may be empty.
    pub reason: String,
}

/// All models that were ever requested to load.
#[derive(Clone, Debug, Default)]
pub struct RepositoryOverview {
    /// The models, sorted by name.
    pub models: Vec<ModelOverview>,
    /// The progress of the server's start, while it answers for models that are still to be loaded
    /// (`--listen-first`).
    pub start: Option<Arc<StartProgress>>,
}

/// The number of loads at start, and of those that have ended. Written by the thread that loads the
/// models, read by shards, which show it to people.
#[derive(Debug, Default)]
pub struct StartProgress {
    done: AtomicUsize,
    all: AtomicUsize,
}

/// The loads of a start at one moment.
#[derive(Clone, Copy, Debug)]
pub struct StartCounts {
    /// Loads that have ended.
    pub done: usize,
    /// All loads; 0 until the models have been found.
    pub all: usize,
}

impl StartProgress {
    /// Sets the number of models to load.
    pub fn set_all(&self, all: usize) {
        self.all.store(all, Ordering::Relaxed);
    }

    /// One more load has ended, with any outcome.
    pub fn handle_loaded(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// The loads so far.
    pub fn counts(&self) -> StartCounts {
        StartCounts { done: self.done.load(Ordering::Relaxed), all: self.all.load(Ordering::Relaxed) }
    }

    /// Returns the refusal of a request until the server has started.
    pub fn refusal(&self) -> Error {
        let StartCounts { done, all } = self.counts();
        let so_far = if all == 0 { "none is found yet".to_owned() } else { format!("{done} of {all} are loaded") };
        Error::unavailable(format!(
            "the server still loads its models, {so_far}; try again when /v2/health/ready answers 200"
        ))
    }
}

/// The state of one model.
#[derive(Clone, Debug, Default)]
pub struct ModelOverview {
    /// Its name.
    pub name: String,
    /// The namespace of its repository; empty without `--model-namespacing`.
    pub namespace: String,
    /// Its versions, in ascending order.
    pub versions: Vec<VersionOverview>,
    /// The reason why its last load failed, if it failed before any version was loaded.
    pub failure: Option<String>,
    /// The version that the failure is about; `None` where it is the whole model.
    pub failed_version: Option<u64>,
    /// The progress of its load, if one is running.
    pub loading: Option<Arc<LoadProgress>>,
    /// True if the entry found is not a model: a directory without a configuration and without
    /// versions, or a name that several repositories have. The server is ready without it, as
    /// Triton's is without what it could not poll.
    pub is_no_model: bool,
    /// True if it is loaded on demand, and unloaded when others need its room: the server is ready
    /// without it.
    pub is_on_demand: bool,
    /// Counts of its loads.
    pub loads: LoadCounts,
    /// The name that the server's host gave it, if it was loaded from the host's path.
    pub hosted: Option<Arc<HostedModel>>,
}

/// A model that was loaded from a path of the host of the server (`POST /models` of SageMaker).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedModel {
    /// The host's name for it.
    pub name: String,
    /// Its directory, as the host sees it.
    pub url: String,
}

/// The state of one version of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionOverview {
    /// Its number.
    pub version: u64,
    /// Its state.
    pub state: VersionState,
    /// The reason for this state; may be empty.
    pub reason: String,
    /// The duration of its last successful load.
    pub load_time: Option<Duration>,
}

impl VersionOverview {
    /// Returns true if it was unloaded on request.
    pub fn is_unloaded(&self) -> bool {
        self.state == VersionState::Unavailable && self.reason == UNLOADED
    }
}

/// Counts of the loads of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Loads that succeeded.
    pub succeeded: u64,
    /// Loads that failed.
    pub failed: u64,
    /// Total duration of all loads.
    pub time: Duration,
}

impl RepositoryOverview {
    /// The overview of a server that has started.
    pub fn new(mut models: Vec<ModelOverview>) -> Self {
        models.sort_by(|one, other| (&one.name, &one.namespace).cmp(&(&other.name, &other.namespace)));
        Self { models, start: None }
    }

    /// The model with this name.
    pub fn find(&self, name: &str) -> Option<&ModelOverview> {
        self.find_all(name).first()
    }

    /// The models with this name, one for each namespace that has it.
    fn find_all(&self, name: &str) -> &[ModelOverview] {
        let begin = self.models.partition_point(|model| model.name.as_str() < name);
        let rest = self.models.get(begin..).unwrap_or_default();
        rest.get(..rest.partition_point(|model| model.name == name)).unwrap_or_default()
    }

    /// The names that several namespaces have, sorted. Models that were unloaded do not count.
    pub fn ambiguous_names(&self) -> Vec<&str> {
        let same = self.models.chunk_by(|one, other| one.name == other.name);
        let is_there = |model: &&ModelOverview| !model.is_leaving();
        let ambiguous = same.filter(|same| same.len() > 1 && same.iter().filter(is_there).count() > 1);
        ambiguous.filter_map(|same| same.first()).map(|model| model.name.as_str()).collect()
    }

    /// Triton's error for such a name.
    pub fn ambiguity(&self, name: &str) -> Error {
        let count = self.find_all(name).iter().filter(|model| !model.is_leaving()).count();
        Error::invalid(format!(
            "There are {count} identifiers of model '{name}' in global map, model namespace must be provided to resolve \
             ambiguity."
        ))
    }

    /// Returns true if a model is known, in this version if one is given, whether it serves or not.
    pub fn has(&self, name: &str, version: Option<u64>) -> bool {
        let is_it = |have: &VersionOverview| version.is_none_or(|version| have.version == version);
        self.find(name).is_some_and(|model| version.is_none() || model.versions.iter().any(is_it))
    }

    /// Returns true if every requested model serves in some version, or was unloaded on request.
    /// Triton's strict readiness also requires that no other version failed or is unloading; but a
    /// server whose old version goes on serving must not be taken out of service because a new one
    /// is broken.
    pub fn is_ready(&self) -> bool {
        self.models.iter().all(ModelOverview::is_ready)
    }

    /// The loads in progress, by model name.
    pub fn loading(&self) -> impl Iterator<Item = (&str, &LoadProgress)> {
        let all = self.models.iter().filter_map(|model| Some((model.name.as_str(), &**model.loading.as_ref()?)));
        all.filter(|(_, progress)| progress.stage() != LoadStage::Ended)
    }

    /// The error, with Triton's text, for a request to a version that does not serve, or to a model of which no version
    /// serves.
    pub fn refusal(&self, name: &str, version: Option<u64>) -> Error {
        if let Some(start) = &self.start {
            return start.refusal();
        }
        let unknown = |rest: &str| format!("Request for unknown model: '{name}' {rest}");
        let Some(model) = self.find(name) else { return Error::not_found(unknown("is not found")) };
        if model.is_on_demand && !model.is_serving() {
            // It was unloaded after the load that this request has waited for.
            return Error::unavailable(format!("model '{name}' is not loaded at the moment; try again"));
        }
        match version {
            None => Error::not_found(unknown("has no available versions")),
            Some(version) if model.versions.iter().any(|have| have.version == version) => {
                Error::unavailable(unknown(&format!("version {version} is not at ready state")))
            }
            Some(version) => Error::not_found(unknown(&format!("version {version} is not found"))),
        }
    }

    /// The repository index: all models in `names` and all known models. `names` are the models in
    /// the repositories, qualified by their namespaces if they have any, each with true if several
    /// repositories have it.
    pub fn index(&self, names: &[(String, bool)], only_ready: bool) -> Vec<IndexEntry> {
        let mut entries = Vec::new();
        let known = self.models.iter().map(|model| ((model.name.as_str(), model.namespace.as_str()), false));
        let listed = names.iter().map(|(name, is_duplicate)| {
            let (namespace, name) = split_qualified(name);
            ((name, namespace), *is_duplicate)
        });
        // Listed models replace known ones.
        let all: BTreeMap<(&str, &str), bool> = known.chain(listed).collect();
        for ((name, namespace), is_duplicate) in all {
            match self.find_all(name).iter().find(|model| model.namespace == namespace) {
                Some(model) => model.index(&mut entries),
                None if is_duplicate => entries.push(IndexEntry {
                    name: name.to_owned(),
                    version: None,
                    state: Some(VersionState::Unavailable),
                    reason: DUPLICATE.to_owned(),
                }),
                None => entries.push(IndexEntry { name: name.to_owned(), ..IndexEntry::default() }),
            }
        }
        entries.retain(|entry| !only_ready || entry.state == Some(VersionState::Ready));
        entries
    }
}

impl ModelOverview {
    /// Returns true if a version of it serves.
    pub fn is_serving(&self) -> bool {
        self.versions.iter().any(|version| version.state == VersionState::Ready)
    }

    fn is_ready(&self) -> bool {
        if self.is_no_model
            || self.is_on_demand
            || self.versions.iter().any(|version| version.state == VersionState::Ready)
        {
            return true;
        }
        self.is_unloaded()
    }

    /// Returns true if all its versions were unloaded, and it is not loaded again.
    pub fn is_unloaded(&self) -> bool {
        let is_wanted = self.versions.is_empty() || self.failure.is_some() || self.loading.is_some();
        !is_wanted && self.versions.iter().all(VersionOverview::is_unloaded)
    }

    /// Returns true if requests by its name do not find it: it was unloaded, or is being unloaded.
    fn is_leaving(&self) -> bool {
        let is_leaving = |version: &VersionOverview| version.state == VersionState::Unloading || version.is_unloaded();
        let is_wanted = self.versions.is_empty() || self.failure.is_some() || self.loading.is_some();
        !is_wanted && self.versions.iter().all(is_leaving)
    }

    fn index(&self, entries: &mut Vec<IndexEntry>) {
        let entry = |version, state, reason: &str| IndexEntry {
            name: self.name.clone(),
            version,
            state: Some(state),
            reason: reason.to_owned(),
        };
        let failure = self.failure.as_deref().unwrap_or_default();
        if self.versions.is_empty() {
            let state = if self.loading.is_some() { VersionState::Loading } else { VersionState::Unavailable };
            return entries.push(entry(None, state, failure));
        }
        for version in &self.versions {
            // A version that goes on serving after a failed load of its own, or of the whole model, shows that failure.
            let is_silent = version.reason.is_empty() || version.reason == UNLOADED;
            let is_of_it = self.failed_version.is_none_or(|failed| failed == version.version);
            let reason = if is_silent && is_of_it && !failure.is_empty() { failure } else { &version.reason };
            entries.push(entry(Some(version.version), version.state, reason));
        }
    }
}

/// The progress of a load: written by the loading thread, read by the shards. The fields are relaxed and may be
/// inconsistent with each other for a moment: they are only shown to people.
#[derive(Debug, Default)]
pub struct LoadProgress {
    /// The start of the load, in milliseconds since the server started.
    pub began_millis: u64,
    stage: AtomicU32,
    versions_done: AtomicU32,
    versions: AtomicU32,
}

/// The stage of a load, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// It waits for a load thread.
    Waiting,
    /// Files are listed and read.
    Reading,
    /// An engine loads a version.
    Loading,
    /// Instances are created.
    Starting,
    /// It is over.
    Ended,
}

impl LoadStage {
    const ALL: [Self; 5] = [Self::Waiting, Self::Reading, Self::Loading, Self::Starting, Self::Ended];

    /// Its name in the readiness reply.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Reading => "reading",
            Self::Loading => "loading",
            Self::Starting => "starting",
            Self::Ended => "ended",
        }
    }
}

impl LoadProgress {
    /// A load that begins `began_millis` after the server started.
    pub fn new(began_millis: u64) -> Self {
        Self { began_millis, ..Self::default() }
    }

    /// Sets the stage.
    pub fn set_stage(&self, stage: LoadStage) {
        self.stage.store(stage as u32, Ordering::Relaxed);
    }

    /// Sets the number of versions loaded, and of all versions to load.
    pub fn set_versions(&self, done: usize, all: usize) {
        self.versions_done.store(u32::try_from(done).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.versions.store(u32::try_from(all).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// The current stage.
    pub fn stage(&self) -> LoadStage {
        let stage = usize::try_from(self.stage.load(Ordering::Relaxed)).unwrap_or(0);
        LoadStage::ALL.get(stage).copied().unwrap_or(LoadStage::Waiting)
    }

    /// The number of versions loaded, and of all versions to load; both 0 until the versions are known.
    pub fn versions(&self) -> (u32, u32) {
        (self.versions_done.load(Ordering::Relaxed), self.versions.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(version: u64, state: VersionState, reason: &str) -> VersionOverview {
        VersionOverview { version, state, reason: reason.to_owned(), load_time: None }
    }

    fn model(name: &str, versions: Vec<VersionOverview>) -> ModelOverview {
        ModelOverview { name: name.to_owned(), versions, ..ModelOverview::default() }
    }

    fn failed(model: ModelOverview, why: &str) -> ModelOverview {
        ModelOverview { failure: Some(why.to_owned()), ..model }
    }

    fn failed_in(model: ModelOverview, version: u64, why: &str) -> ModelOverview {
        ModelOverview { failed_version: Some(version), ..failed(model, why) }
    }

    fn loading(model: ModelOverview) -> ModelOverview {
        ModelOverview { loading: Some(Arc::default()), ..model }
    }

    fn index(overview: &RepositoryOverview, names: &[(&str, bool)], only_ready: bool) -> String {
        let names: Vec<_> = names.iter().map(|(name, is_double)| ((*name).to_owned(), *is_double)).collect();
        let entries = overview.index(&names, only_ready);
        let text = |entry: IndexEntry| {
            let version = entry.version.map(|version| format!(" {version}")).unwrap_or_default();
            let state = entry.state.map(|state| format!(" {}", state.as_str())).unwrap_or_default();
            let reason = if entry.reason.is_empty() { String::new() } else { format!(" ({})", entry.reason) };
            format!("{}{version}{state}{reason}", entry.name)
        };
        entries.into_iter().map(text).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_server_is_ready_when_every_requested_model_serves() {
        use VersionState::{Loading, Ready, Unavailable, Unloading};
        let check = |model: ModelOverview, want| {
            let text = format!("{model:?}");
            assert_eq!(RepositoryOverview { models: vec![model], start: None }.is_ready(), want, "{text}");
        };
        assert!(RepositoryOverview::default().is_ready());
        let of = |state, reason| model("m", vec![version(1, state, reason)]);
        check(of(Ready, ""), true);
        check(of(Loading, ""), false);
        check(of(Unloading, ""), false);
        check(of(Unavailable, UNLOADED), true);
        check(of(Unavailable, "no file"), false);
        check(failed(of(Ready, ""), "the new one fails"), true);
        check(failed(of(Unavailable, UNLOADED), "loaded again, it fails"), false);
        check(loading(of(Ready, "")), true);
        check(loading(of(Unavailable, UNLOADED)), false);
        check(loading(model("m", vec![])), false);
        check(ModelOverview { is_no_model: true, ..failed(model("m", vec![]), "no version directory") }, true);
        check(failed(model("m", vec![]), "no configuration"), false);
        check(model("m", vec![version(1, Ready, ""), version(2, Unavailable, "x")]), true);
        check(model("m", vec![version(1, Unloading, ""), version(2, Ready, "")]), true);
        check(model("m", vec![version(1, Unavailable, UNLOADED), version(2, Unavailable, "x")]), false);
    }

    #[test]
    fn the_index_lists_all_models_with_their_states() {
        use VersionState::{Ready, Unavailable};
        let models = vec![
            failed(model("bad", vec![]), "why"),
            failed(model("kept", vec![version(2, Ready, "")]), "version 3 is broken"),
            loading(model("new", vec![])),
            failed_in(model("of_two", vec![version(1, Ready, ""), version(2, Unavailable, "two")]), 2, "two"),
            failed_in(model("of_two_kept", vec![version(1, Ready, ""), version(2, Ready, "")]), 2, "two"),
            model("off", vec![version(1, Unavailable, UNLOADED), version(2, Ready, "")]),
        ];
        let overview = RepositoryOverview { models, start: None };
        let names = [("bad", false), ("double", true), ("kept", false), ("never", false), ("off", false)];
        assert_eq!(
            index(&overview, &names, false),
            "bad UNAVAILABLE (why); double UNAVAILABLE (model appears in two or more repositories); \
             kept 2 READY (version 3 is broken); never; new LOADING; of_two 1 READY; of_two 2 UNAVAILABLE (two); \
             of_two_kept 1 READY; of_two_kept 2 READY (two); off 1 UNAVAILABLE (unloaded); off 2 READY"
        );
        assert_eq!(
            index(&overview, &names, true),
            "kept 2 READY (version 3 is broken); of_two 1 READY; of_two_kept 1 READY; of_two_kept 2 READY (two); off 2 READY"
        );
        assert_eq!(index(&RepositoryOverview::default(), &[], false), "");
    }

    #[test]
    fn a_version_that_does_not_serve_is_refused_in_tritons_words() {
        let models = vec![model("m", vec![version(1, VersionState::Unavailable, UNLOADED)])];
        let overview = RepositoryOverview { models, start: None };
        let check = |name: &str, version, want: &str| {
            let error = overview.refusal(name, version);
            let got = format!("{} {}", error.code().on_wire().0, error.text());
            assert_eq!(got, want);
        };
        check("x", None, "404 Request for unknown model: 'x' is not found");
        check("x", Some(1), "404 Request for unknown model: 'x' is not found");
        check("m", None, "404 Request for unknown model: 'm' has no available versions");
        check("m", Some(1), "503 Request for unknown model: 'm' version 1 is not at ready state");
        check("m", Some(2), "404 Request for unknown model: 'm' version 2 is not found");
    }

    #[test]
    fn until_the_server_has_started_every_request_is_told_how_far_it_is() {
        let start = Arc::new(StartProgress::default());
        let (ended, loads) = (Arc::new(LoadProgress::default()), loading(model("b", vec![])));
        ended.set_stage(LoadStage::Ended);
        let models = vec![ModelOverview { loading: Some(ended), ..model("a", vec![]) }, loads];
        let overview = RepositoryOverview { models, start: Some(Arc::clone(&start)) };
        let check = |name: &str, want: &str| {
            let error = overview.refusal(name, Some(1));
            assert_eq!((error.code().on_wire().0, error.text().contains(want)), (503, true), "{error}");
        };
        check("a", "none is found yet");
        start.set_all(2);
        start.handle_loaded();
        check("a", "1 of 2 are loaded");
        check("x", "1 of 2 are loaded");
        assert_eq!(overview.loading().map(|(name, _)| name).collect::<Vec<_>>(), ["b"]);
        assert!(!overview.is_ready());
    }

    #[test]
    fn progress_reads_back_as_it_was_set() {
        let progress = LoadProgress::new(7);
        assert_eq!((progress.stage(), progress.versions()), (LoadStage::Waiting, (0, 0)));
        for stage in LoadStage::ALL {
            progress.set_stage(stage);
            assert_eq!(progress.stage(), stage);
        }
        progress.set_versions(1, 3);
        assert_eq!((progress.versions(), progress.began_millis), ((1, 3), 7));
    }

    #[test]
    fn models_of_one_name_are_listed_each_and_counted_as_long_as_they_are_not_unloaded() {
        use VersionState::{Ready, Unavailable};
        let of = |namespace: &str, state, reason: &str| ModelOverview {
            namespace: namespace.to_owned(),
            ..model("m", vec![version(1, state, reason)])
        };
        let overview = |models| RepositoryOverview::new(models);
        let both = overview(vec![of("/b", Ready, ""), of("/a", Unavailable, "no file"), model("a", vec![])]);
        assert_eq!(both.ambiguous_names(), ["m"]);
        let names = [("/a/m", false), ("/c/m", false)];
        assert_eq!(index(&both, &names, false), "a UNAVAILABLE; m 1 UNAVAILABLE (no file); m 1 READY; m");
        let one = overview(vec![of("/b", Ready, ""), of("/a", Unavailable, UNLOADED)]);
        assert!(one.ambiguous_names().is_empty() && overview(Vec::new()).ambiguous_names().is_empty());
        assert_eq!(one.models.iter().map(|model| &*model.namespace).collect::<Vec<_>>(), ["/a", "/b"]);
    }
}
