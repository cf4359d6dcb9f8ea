//! The check of a model for `deuteron doctor`: its configuration, its files, its devices and its engine, by the same
//! steps as a load. It neither loads the model nor runs its code, so a load may still fail later.

use std::sync::Arc;

use crate::control::engines::engine::EngineName;
use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::load_log::{has_named_engine, served_with};
use crate::control::loading::model_loader::{ModelLoader, ModelLocation, OpenedConfig};
use crate::error::Error;
use crate::model::config::ConfigDraft;
use crate::model::ensemble::ComposingModels;
use crate::model::platform::PYTORCH_BACKEND;
use crate::model::{ModelSpec, PythonModel};

/// A model without a known fault.
#[derive(Debug, Default)]
pub struct ExaminedModel {
    /// The versions that would serve, with their configurations, the highest first; empty if only the model's own code
    /// completes its configuration.
    pub versions: Vec<(u64, Arc<ModelSpec>)>,
    /// The engine, for a person.
    pub engine: String,
    /// The interpreter that the model brings; `None` if it is a Python model without one.
    pub python: Option<PythonModel>,
}

impl ModelLoader {
    /// Checks the versions that a load would load. An ensemble is checked against the models that were examined before.
    ///
    /// # Errors
    /// The first fault, as the load reports it.
    pub fn examine(
        &self,
        location: ModelLocation<'_>,
        composing_models: &ComposingModels,
    ) -> Result<ExaminedModel, LoadFailure> {
        let _lease = location.source.lease(location.directory)?;
        let opened = self.open(location)?;
        let mut examined = ExaminedModel { python: opened.draft.python()?, ..ExaminedModel::default() };
        for version in opened.versions.iter().copied() {
            let failed = |error| LoadFailure::Version(version, error);
            if !opened.composing.is_empty() {
                let OpenedConfig { draft, labels, composing, .. } = &opened;
                let completed = self.completion().complete(location.source, location.directory, version, draft, labels);
                let resolved =
                    composing_models.resolve(completed.map_err(failed)?).map_err(LoadFailure::Composition)?;
                examined.versions.push((version, Arc::new(resolved)));
                examined.engine = format!("an ensemble of {}", composing.join(", "));
                continue;
            }
            let (spec, engine) = self.examine_version(location, &opened, version).map_err(failed)?;
            examined.versions.extend(spec.map(|spec| (version, spec)));
            examined.engine = engine;
        }
        Ok(examined)
    }

    /// Returns the configuration of a version, unless only the model's own code completes it, and the engine.
    fn examine_version(
        &self,
        location: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
    ) -> Result<(Option<Arc<ModelSpec>>, String), Error> {
        let ModelLocation { source, directory } = location;
        self.check_file(location, opened, version)?;
        let folder = directory.version_path(version);
        let draft = self.with_devices(&opened.draft)?;
        if self.completion().needs_code(source, &folder, &draft)? {
            return Ok((None, draft.backend().to_owned()));
        }
        let spec = Arc::new(self.completion().complete(source, directory, version, &draft, &opened.labels)?);
        self.pin(source, &folder, &draft, &spec)?;
        let engine = self.engine_text(&spec)?;
        Ok((Some(spec), engine))
    }

    /// Returns the draft with the devices of this machine, as [`ModelLoader::complete_config`] completes it.
    fn with_devices(&self, draft: &ConfigDraft) -> Result<ConfigDraft, Error> {
        let is_library = draft.library().is_some();
        if self.host_gpus.is_off() || !(is_library || draft.may_use_gpu()) {
            return Ok(draft.clone());
        }
        let takes_auto = self.settings.uses_gpu_unasked && (is_library || draft.python()?.is_none());
        Ok(draft.clone().with_gpus(self.host_gpus.support(takes_auto)))
    }

    /// Returns the engine of a model for a person.
    fn engine_text(&self, spec: &ModelSpec) -> Result<String, Error> {
        if spec.backend == PYTORCH_BACKEND && spec.python.is_none() && spec.library.is_none() {
            // The choice may compile for half a minute.
            return Ok("PyTorch".to_owned());
        }
        if has_named_engine(spec) && spec.is_on_gpu() && !spec.is_on_cpu() {
            return Ok("an engine on GPUs, chosen when it is loaded".to_owned());
        }
        let backend = self.engines.choose(spec)?;
        let engine = has_named_engine(spec).then(|| EngineName::of(Some(backend)));
        Ok(served_with(spec, engine.as_ref(), Some(backend)))
    }
}
