//! Finds out that only the instance groups of a model have changed, and completes the new ones.

use std::sync::Arc;

use crate::control::engines::config_completion::completion_rules;
use crate::control::loading::loaded_version::LoadBasis;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation, settings_mark};
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

/// The versions that serve with new instance groups.
pub struct RegroupedModel {
    /// Their configurations, in the order of the versions.
    pub specs: Vec<RegroupedSpec>,
    /// False if they are those of before, written in another way.
    pub has_changed: bool,
    /// The mark of all but the version policy, as of a load.
    pub settings: u64,
}

/// A configuration with new instance groups.
pub struct RegroupedSpec {
    /// The configuration.
    pub spec: Arc<ModelSpec>,
    /// The basis of the next update, with the configuration that the model's code is told.
    pub basis: Arc<LoadBasis>,
    /// The configuration that the model's code was told last.
    pub told: Arc<ModelSpec>,
    /// True if the model's backend, which is a shared library, chooses the instances.
    pub is_of_backend: bool,
}

impl ModelLoader {
    /// Returns the versions that serve with the new instance groups; `None` unless these are all that has changed in the
    /// model's directory and configuration, but for a version policy that selects the same. A configuration that cannot be
    /// read has changed.
    pub fn regrouped(&self, location: ModelLocation<'_>, serving: &[LoadedBefore]) -> Option<RegroupedModel> {
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
        if serving.iter().all(|before| draft.has_groups_of(&before.basis.draft)) {
            return None;
        }
        let is_of_backend = draft.library().is_some() && !draft.has_instance_groups();
        let (settings, read) = (settings_mark(&draft, directory), draft.clone());
        let draft = self.with_known_gpus(draft);
        let rules = completion_rules(&self.settings, draft.backend());
        let with_groups = |spec: &ModelSpec| spec.with_groups_of(&draft, rules).map(Arc::new).ok();
        let regrouped = |LoadedBefore { spec, basis, .. }: &LoadedBefore| {
            let (spec, configured) = (with_groups(spec)?, with_groups(&basis.configured)?);
            let told = Arc::clone(&basis.configured);
            let basis = Arc::new(LoadBasis::new(&read, &configured, basis.files, basis.load));
            Some(RegroupedSpec { spec, basis, told, is_of_backend })
        };
        let specs: Vec<_> = serving.iter().map(regrouped).collect::<Option<_>>()?;
        let has_changed =
            specs.iter().zip(serving).any(|(new, old)| new.spec.instance_groups != old.spec.instance_groups);
        Some(RegroupedModel { specs, has_changed, settings })
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
