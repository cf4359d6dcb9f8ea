//! What the control thread knows of one model: the versions that serve, what became of others, how
//! its loads went; and what of that is shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::control::load_failure::LoadFailure;
use crate::control::load_job::ModelOrigin;
use crate::control::model_loader::ServingVersions;
use crate::control::threads::WorkerGroup;
use crate::control::uploaded_files::UploadedFiles;
use crate::model::ensemble::ComposingModel;
use crate::model::repository::ChangeMark;
use crate::model::repository::changes::KnownModel;
use crate::model::repository::index::{
    LoadCounts, LoadProgress, ModelOverview, UNLOADED, VersionOverview, VersionState,
};
use crate::queue::served_model::ServedModel;

/// The models that were found and asked for, by name.
pub type ModelRecords = BTreeMap<String, ModelRecord>;

/// A model that was found and asked for.
#[derive(Default)]
pub struct ModelRecord {
    /// Which of the repositories it came from.
    pub origin: Option<usize>,
    /// What lay there at its last load, whatever came of that.
    pub mark: ChangeMark,
    /// The mark of what all its versions share, of those that serve.
    pub shared: Option<u64>,
    /// The versions that serve.
    pub serving: BTreeMap<u64, VersionRecord>,
    /// What became of versions that do not.
    pub past: BTreeMap<u64, (VersionState, String)>,
    /// Why its last load failed.
    pub failure: Option<String>,
    /// What its loads came to.
    pub loads: LoadCounts,
    /// The load that is under way.
    pub loading: Option<Arc<LoadProgress>>,
    /// Whether a client brought something of it with its last load.
    pub is_brought: bool,
    /// The models that it is made of, where it is an ensemble that is wanted.
    pub composing: Vec<String>,
    /// Where it lies, where it is such an ensemble: it is loaded again when one of those changes.
    pub place: Option<ModelOrigin>,
    /// Whether its last load failed for what it is made of.
    pub is_invalid: bool,
    /// Whether it was loaded for its own sake, and not for an ensemble's alone.
    pub is_asked: bool,
    /// Whether it is to be forgotten once nothing of it serves: it lies in no repository any more.
    pub is_gone: bool,
}

/// A version that serves.
pub struct VersionRecord {
    /// What all threads share of it.
    pub served: Arc<ServedModel>,
    /// Its workers.
    pub worker_group: WorkerGroup,
    /// The cores of each.
    pub cores: Vec<Vec<usize>>,
    /// The mark of its directory.
    pub mark: u64,
    /// How long its load took.
    pub took: Duration,
    /// The files that a client brought for it.
    pub uploaded_files: Option<Arc<UploadedFiles>>,
}

impl ModelRecord {
    /// What its next load need not load again.
    pub fn held(&self) -> ServingVersions {
        let versions = self.serving.iter().map(|(number, version)| (*number, version.mark)).collect();
        ServingVersions { shared: self.shared, versions }
    }

    /// What ensembles may be made of.
    pub fn member(&self) -> ComposingModel {
        let versions = self.serving.iter().rev();
        // As Triton tells what became of a version.
        let state = |(number, (state, reason)): (&u64, &(VersionState, String))| {
            let is_why = *state == VersionState::Unavailable && self.failure.as_ref() == Some(reason);
            is_why.then(|| format!("version {number} is at UNAVAILABLE state: {reason};"))
        };
        let failure = self.past.iter().find_map(state).or_else(|| self.failure.clone());
        ComposingModel {
            versions: versions.map(|(number, version)| (*number, Arc::clone(&version.served.spec))).collect(),
            failure,
            is_invalid: self.is_invalid,
        }
    }

    /// What is compared with the next look at the repositories.
    pub fn known(&self, name: &str) -> KnownModel {
        KnownModel { name: name.to_owned(), origin: self.origin, mark: self.mark.clone() }
    }

    /// A load failed; what serves goes on.
    pub fn handle_failure(&mut self, failure: &LoadFailure) {
        let text = failure.reason();
        self.is_invalid = matches!(failure, LoadFailure::Composition(_));
        match failure {
            LoadFailure::Version(version, _) if !self.serving.contains_key(version) => {
                self.past.insert(*version, (VersionState::Unavailable, text.clone()));
                // Where others serve, each of them says so too.
                self.failure = Some(text);
            }
            _ => self.failure = Some(text),
        }
    }

    /// Forgets what became of versions that did not load.
    pub fn forget_failures(&mut self) {
        self.failure = None;
        self.is_invalid = false;
        self.past.retain(|_, (state, reason)| *state == VersionState::Unloading || reason == UNLOADED);
    }

    /// Forgets what it was made of where what serves is no ensemble.
    pub fn forget_composing(&mut self) {
        if self.serving.values().all(|version| version.served.spec.ensemble.is_none()) {
            self.composing.clear();
            self.place = None;
        }
    }

    /// Forgets versions that were taken out and no longer lie there.
    pub fn forget_gone(&mut self) {
        let Self { past, mark, .. } = self;
        let lies_there = |number: &u64| mark.versions.iter().any(|(have, _)| have == number);
        past.retain(|number, (_, reason)| reason != UNLOADED || lies_there(number));
    }

    /// What is to be told of it now: an instance that died shows too, which the shards see by
    /// themselves.
    pub fn overview_now(&self, name: &str) -> ModelOverview {
        let mut overview = self.overview(name);
        for version in &mut overview.versions {
            if self.serving.get(&version.version).is_some_and(|serving| !serving.served.is_ready()) {
                version.state = VersionState::Unavailable;
                version.reason = "an instance died and is made anew".to_owned();
            }
        }
        overview
    }

    /// What is shown of it.
    pub fn overview(&self, name: &str) -> ModelOverview {
        let serving = self.serving.iter().map(|(number, version)| VersionOverview {
            version: *number,
            state: VersionState::Ready,
            reason: String::new(),
            load_time: Some(version.took),
        });
        let past = self.past.iter().filter(|(number, _)| !self.serving.contains_key(number));
        let past = past.map(|(number, (state, reason))| VersionOverview {
            version: *number,
            state: *state,
            reason: reason.clone(),
            load_time: None,
        });
        let mut versions: Vec<_> = serving.chain(past).collect();
        versions.sort_by_key(|version| version.version);
        ModelOverview {
            name: name.to_owned(),
            versions,
            failure: self.failure.clone(),
            loading: self.loading.clone(),
            loads: self.loads,
        }
    }
}
