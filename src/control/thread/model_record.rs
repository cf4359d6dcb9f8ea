//! The control thread's record of one model: the versions that serve, the state of the others, the results of its
//! loads, and the overview of it for readiness and the index.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::loaded_version::LoadBasis;
use crate::control::loading::model_loader::ServingVersions;
use crate::control::loading::model_loader::regrouped::LoadedBefore;
use crate::control::repository::uploaded_files::UploadedFiles;
use crate::control::serving::threads::WorkerGroup;
use crate::control::thread::instance_job::ServingInstances;
use crate::control::thread::load_job::ModelOrigin;
use crate::model::ensemble::ComposingModel;
use crate::model::name::split_qualified;
use crate::model::repository::ChangeMark;
use crate::model::repository::changes::{KnownModel, NOT_UNIQUE};
use crate::model::repository::index::{
    DUPLICATE, HostedModel, LoadCounts, LoadProgress, ModelOverview, UNLOADED, VersionOverview, VersionState,
};
use crate::queue::served_model::ServedModel;

/// All models that were loaded, or whose load was tried, by name, qualified if they have namespaces.
pub type ModelRecords = BTreeMap<String, ModelRecord>;

/// One model.
#[derive(Default)]
pub struct ModelRecord {
    /// The index of the repository of its last load; `None` for an upload.
    pub origin: Option<usize>,
    /// The marks of its directory at its last load, also of a load that failed: a scan tries again only when they
    /// change.
    pub mark: ChangeMark,
    /// The mark of what all serving versions share (configuration, labels); `None` when the next
    /// load must load all versions again.
    pub shared: Option<u64>,
    /// The same but for the version policy, also of a configuration that a client sent.
    pub settings: Option<u64>,
    /// The versions that serve, by number.
    pub serving: BTreeMap<u64, VersionRecord>,
    /// The state of versions that do not serve, with the reason.
    pub past: BTreeMap<u64, (VersionState, String)>,
    /// The reason that its last load failed.
    pub failure: Option<String>,
    /// The version that it is about; `None` where it is the whole model.
    pub failed_version: Option<u64>,
    /// True if it failed since the files are not a model.
    pub is_no_model: bool,
    /// The number of loads that succeeded and failed, and their time.
    pub loads: LoadCounts,
    /// The progress of the load that runs.
    pub loading: Option<Arc<LoadProgress>>,
    /// True if a client sent the configuration or the files of its last load.
    pub is_uploaded: bool,
    /// The names of its composing models, if it is an ensemble that is loaded or to be loaded again.
    pub composing: Vec<String>,
    /// The place of such an ensemble, for its next load when one of its composing models changes.
    pub ensemble_origin: Option<ModelOrigin>,
    /// True if its last load failed because it does not fit its composing models.
    pub is_invalid: bool,
    /// True if it was loaded by itself, and not only as a step of an ensemble.
    pub is_requested: bool,
    /// True if it is loaded on demand, and leaves when others need its room.
    pub is_on_demand: bool,
    /// The host's name for it, if it serves from the host's path.
    pub hosted: Option<Arc<HostedModel>>,
    /// The host's directory that it was loaded from, by itself or as a step of an ensemble there.
    pub hosted_root: Option<String>,
    /// True if it is no longer in a repository: the record is removed when its last version is
    /// freed.
    pub is_gone: bool,
}

/// A version that serves.
pub struct VersionRecord {
    /// The part that all threads share.
    pub served: Arc<ServedModel>,
    /// Its workers.
    pub worker_group: WorkerGroup,
    /// The mark of its directory.
    pub mark: u64,
    /// The duration of its load.
    pub took: Duration,
    /// The bytes of its files.
    pub files_size: u64,
    /// The basis of updates of its instances.
    pub basis: Option<Arc<LoadBasis>>,
    /// The files that a client uploaded for it: removed with the last version that uses them.
    pub uploaded_files: Option<Arc<UploadedFiles>>,
}

impl ModelRecord {
    /// Returns the serving versions with their marks, for the next load to compare.
    pub fn serving_versions(&self) -> ServingVersions {
        let versions = self.serving.iter().map(|(number, version)| (*number, version.mark)).collect();
        ServingVersions { shared: self.shared, settings: self.settings, versions }
    }

    /// Returns the instances, for an update of them; `None` if nothing serves, or from elsewhere than a repository.
    pub fn serving_instances(&self) -> Option<ServingInstances> {
        let is_own = self.hosted.is_none() && self.hosted_root.is_none() && self.composing.is_empty();
        let origin = self.origin.filter(|_| is_own && !self.serving.is_empty())?;
        let versions = self.serving.iter().map(|(version, record)| {
            let basis = record.basis.clone().filter(|_| record.uploaded_files.is_none())?;
            let spec = record.served.current_spec();
            let before = LoadedBefore { version: *version, mark: record.mark, basis, spec };
            Some((before, record.worker_group.serving()))
        });
        Some(ServingInstances { origin, versions: versions.collect::<Option<_>>()? })
    }

    /// Returns the model as a possible step of ensembles.
    pub fn composing_model(&self) -> ComposingModel {
        let versions = self.serving.iter().rev();
        // In Triton's words for a version that failed.
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

    /// Returns the state that the next repository scan is compared with.
    pub fn known(&self, name: &str) -> KnownModel {
        KnownModel { name: name.to_owned(), origin: self.origin, mark: self.mark.clone() }
    }

    /// Records a failed load. Versions that serve keep serving.
    pub fn handle_failure(&mut self, failure: &LoadFailure) {
        let text = failure.reason();
        self.is_invalid = matches!(failure, LoadFailure::Composition(_));
        self.is_no_model = matches!(failure, LoadFailure::NoModel(_));
        match failure {
            LoadFailure::Version(version, _) => {
                if !self.serving.contains_key(version) {
                    self.past.insert(*version, (VersionState::Unavailable, text.clone()));
                }
                // Also as the model's failure: the index shows it with this version, also where that serves on.
                self.failed_version = Some(*version);
            }
            _ => self.failed_version = None,
        }
        self.failure = Some(text);
    }

    /// Records the reason that nothing in the repositories can be loaded under this name. Returns
    /// false if it is known.
    pub fn handle_refusal(&mut self, why: &str) -> bool {
        let is_no_model = why == NOT_UNIQUE;
        let reason = if is_no_model { DUPLICATE } else { why };
        if self.failure.as_deref() == Some(reason) {
            return false;
        }
        (self.is_no_model, self.failure, self.failed_version) = (is_no_model, Some(reason.to_owned()), None);
        self.loads.failed += 1;
        true
    }

    /// Forgets failed loads.
    pub fn forget_failures(&mut self) {
        (self.failure, self.failed_version) = (None, None);
        (self.is_invalid, self.is_no_model) = (false, false);
        self.past.retain(|_, (state, reason)| *state == VersionState::Unloading || reason == UNLOADED);
    }

    /// Forgets the composing models when the serving model is not an ensemble.
    pub fn forget_ensemble(&mut self) {
        if self.serving.values().all(|version| version.served.spec.ensemble.is_none()) {
            self.composing.clear();
            self.ensemble_origin = None;
        }
    }

    /// Forgets unloaded versions whose directories no longer exist.
    pub fn forget_deleted_versions(&mut self) {
        let Self { past, mark, .. } = self;
        let exists = |number: &u64| mark.versions.iter().any(|(have, _)| have == number);
        past.retain(|number, (_, reason)| reason != UNLOADED || exists(number));
    }

    /// Returns the overview for the index, with the current state of the instances: one that
    /// panicked shows until it is restarted. The shards need no such copy, they read the state
    /// themselves.
    pub fn current_overview(&self, name: &str) -> ModelOverview {
        let mut overview = self.overview(name);
        for version in &mut overview.versions {
            if self.serving.get(&version.version).is_some_and(|serving| !serving.served.is_ready()) {
                version.state = VersionState::Unavailable;
                version.reason = "an instance failed and is restarting".to_owned();
            }
        }
        overview
    }

    /// Returns the overview for readiness and the index.
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
        let (namespace, name) = split_qualified(name);
        ModelOverview {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            versions,
            failure: self.failure.clone(),
            failed_version: self.failed_version,
            loading: self.loading.clone(),
            is_no_model: self.is_no_model,
            is_on_demand: self.is_on_demand,
            loads: self.loads,
            hosted: self.hosted.clone(),
        }
    }
}
