//! Finds out that only the instance groups of a model have changed, and completes the new ones.

use std::sync::Arc;

use crate::control::engines::config_completion::completion_rules;
use crate::control::loading::loaded_version::LoadBasis;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::model::ModelSpec;
use crate::model::config::{ConfigDraft, GpuSupport};

/// A version that serves, as it was loaded.
#[derive(Clone)]
pub struct LoadedBefore {
    /// Its number.
    pub version: u64,
    /// The mark of its directory.
    pub mark: u64,
    /// Its basis.
    pub basis: Arc<LoadBasis>,
    /// Its configuration, with the instance groups of now.
    pub spec: Arc<ModelSpec>,
}

/// A configuration with new instance groups.
pub struct RegroupedSpec {
    /// The configuration.
    pub spec: Arc<ModelSpec>,
    /// The same without the server's decisions, for the model's code.
    pub configured: Arc<ModelSpec>,
    /// The one before, which the model's code was told last.
    pub told: Arc<ModelSpec>,
    /// True if the model's backend, which is a shared library, chooses the instances.
    pub is_of_backend: bool,
}

impl ModelLoader {
    /// Returns the configurations of the versions that serve with the new instance groups; `None` unless these are all
    /// that has changed in the model's directory and configuration. A configuration that cannot be read has changed.
    pub fn regrouped(&self, location: ModelLocation<'_>, serving: &[LoadedBefore]) -> Option<Vec<RegroupedSpec>> {
        let ModelLocation { source, directory } = location;
        let _lease = source.lease(directory).ok()?;
        let draft = source.draft(directory, &self.settings).ok()?;
        let draft = if self.host_gpus.is_off() { draft.without_gpus() } else { draft };
        let wanted = directory.choose_versions(&draft.version_policy()).ok()?.versions;
        let is_same = |before: &LoadedBefore| {
            wanted.contains(&before.version)
                && directory.mark.versions.contains(&(before.version, before.mark))
                && directory.mark.files == before.basis.files
                && draft.differs_in_instances_alone(&before.basis.draft, &before.spec)
        };
        if serving.len() != wanted.len() || !serving.iter().all(is_same) {
            return None;
        }
        let is_of_backend = draft.library().is_some() && !draft.has_instance_groups();
        let draft = self.with_known_gpus(draft);
        let rules = completion_rules(&self.settings, draft.backend());
        let with_groups = |spec: &ModelSpec| spec.with_groups_of(&draft, rules).map(Arc::new).ok();
        let regrouped = |LoadedBefore { spec, basis, .. }: &LoadedBefore| {
            let (spec, configured) = (with_groups(spec)?, with_groups(&basis.configured)?);
            Some(RegroupedSpec { spec, configured, told: Arc::clone(&basis.configured), is_of_backend })
        };
        let new: Vec<_> = serving.iter().map(regrouped).collect::<Option<_>>()?;
        let has_changed =
            new.iter().zip(serving).any(|(new, old)| new.spec.instance_groups != old.spec.instance_groups);
        has_changed.then_some(new)
    }

    /// The draft with the GPUs that a load would give its groups.
    fn with_known_gpus(&self, draft: ConfigDraft) -> ConfigDraft {
        let is_hosted = draft.library().is_some();
        let gpus = match draft.python() {
            _ if self.host_gpus.is_off() || (!is_hosted && !draft.may_use_gpu()) => GpuSupport::default(),
            Ok(Some(_)) => self.host_gpus.support(false),
            _ => self.host_gpus.support(self.settings.uses_gpu_unasked),
        };
        draft.with_gpus(gpus)
    }
}
