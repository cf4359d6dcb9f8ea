//! The check of a model for `deuteron doctor` and `deuteron check`: its configuration, its files, its devices and its
//! engine, by the same steps as a load. `doctor` loads no model; `check` loads small files, for an engine may refuse them.
//! Neither runs code of the model, so a load may still fail later.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::control::engines::engine::EngineName;
use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::load_log::{has_named_engine, served_with};
use crate::control::loading::model_loader::{ModelLoader, ModelLocation, OpenedConfig};
use crate::error::Error;
use crate::model::config::ConfigDraft;
use crate::model::ensemble::ComposingModels;
use crate::model::platform::PYTORCH_BACKEND;
use crate::model::spec::VersionPolicy;
use crate::model::{ModelSpec, PythonModel};

/// Bytes of a version's files with which `deuteron check` loads it: an engine reads them in a second or so.
pub const CHECK_LOAD_SIZE_MAX: u64 = 64 * 1024 * 1024;

/// Entries of a version's directory whose sizes are added up. Of more it is taken to be large.
const CHECK_ENTRIES_MAX: usize = 4096;

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
    /// The file of the shared library of Triton's that runs it, if one does.
    pub library: Option<String>,
    /// Parts of its configuration that have another effect than they say.
    pub warnings: Vec<String>,
    /// Fields without effect, and files that were not loaded.
    pub notes: Vec<String>,
}

/// Examines one version: its configuration, unless only the model's own code completes it, and its engine.
type ExamineVersion<'a> = &'a dyn Fn(&OpenedConfig, u64, &mut ExaminedModel) -> Result<(), Error>;

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
        self.examine_versions(location, composing_models, &|opened, version, examined| {
            self.examine_version(location, opened, version, examined)
        })
    }

    /// The same, but loads each version that an engine of this process runs and whose files have at most
    /// [`CHECK_LOAD_SIZE_MAX`] bytes, as a server does.
    ///
    /// # Errors
    /// As [`Self::examine`].
    pub fn try_out(
        &self,
        location: ModelLocation<'_>,
        composing_models: &ComposingModels,
    ) -> Result<ExaminedModel, LoadFailure> {
        self.examine_versions(location, composing_models, &|opened, version, examined| {
            let draft = &opened.draft;
            // Code of the model, a library of Triton's, and a shim that is compiled for half a minute.
            let is_foreign =
                draft.python()?.is_some() || draft.library().is_some() || draft.pytorch_filename().is_some();
            if is_foreign {
                return self.examine_version(location, opened, version, examined);
            }
            if !is_small(&location.source.root.join(location.directory.version_path(version))) {
                let mib = CHECK_LOAD_SIZE_MAX >> 20;
                examined.notes.push(format!(
                    "version {version} was not loaded, since its files have more than {mib} MiB, or are too many: `deuteron \
                     config show` loads it"
                ));
                return self.examine_version(location, opened, version, examined);
            }
            let loaded = self.load_version(location, opened, version)?;
            examined.engine = self.engine_text(&loaded.configured)?;
            examined.warnings.extend(self.engines.missing_accelerators(&loaded.configured)?);
            examined.versions.push((version, Arc::clone(&loaded.configured)));
            Ok(())
        })
    }

    fn examine_versions(
        &self,
        location: ModelLocation<'_>,
        composing_models: &ComposingModels,
        examine: ExamineVersion<'_>,
    ) -> Result<ExaminedModel, LoadFailure> {
        let _lease = location.source.lease(location.directory)?;
        let opened = self.open(location)?;
        let mut examined = self.noted(location, &opened)?;
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
            examine(&opened, version, &mut examined).map_err(failed)?;
        }
        Ok(examined)
    }

    /// Returns what is known of a model by its configuration alone.
    fn noted(&self, location: ModelLocation<'_>, opened: &OpenedConfig) -> Result<ExaminedModel, LoadFailure> {
        let draft = &opened.draft;
        let mut warnings = Vec::new();
        // The draft that is open has no groups of GPUs any longer.
        if self.host_gpus.is_off() && location.source.draft(location.directory, &self.settings)?.asks_for_gpu() {
            warnings.push("it asks for a GPU and is served on the CPU: --gpu=off is given".to_owned());
        }
        if let VersionPolicy::Specific(_) = draft.version_policy() {
            let missing =
                location.directory.choose_versions(&draft.version_policy()).map_err(LoadFailure::Policy)?.missing;
            warnings.extend(
                missing.iter().map(|version| format!("its version policy names version {version}, which is not there")),
            );
        }
        Ok(ExaminedModel {
            python: draft.python()?,
            library: draft.library().map(str::to_owned),
            warnings,
            notes: draft.notes().to_vec(),
            ..ExaminedModel::default()
        })
    }

    /// Adds the configuration of a version, unless only the model's own code completes it, and the engine.
    fn examine_version(
        &self,
        location: ModelLocation<'_>,
        opened: &OpenedConfig,
        version: u64,
        examined: &mut ExaminedModel,
    ) -> Result<(), Error> {
        let ModelLocation { source, directory } = location;
        self.check_file(location, opened, version)?;
        let folder = directory.version_path(version);
        let draft = self.with_devices(&opened.draft)?;
        if self.completion().needs_code(source, &folder, &draft)? {
            draft.backend().clone_into(&mut examined.engine);
            return Ok(());
        }
        let spec = Arc::new(self.completion().complete(source, directory, version, &draft, &opened.labels)?);
        self.pin(source, &folder, &draft, &spec)?;
        examined.engine = self.engine_text(&spec)?;
        examined.versions.push((version, spec));
        Ok(())
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

/// Returns true if a directory's files have at most [`CHECK_LOAD_SIZE_MAX`] bytes.
fn is_small(directory: &Path) -> bool {
    let (mut size, mut entries) = (0_u64, 0);
    let mut folders = vec![directory.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            let Ok(known) = fs::metadata(entry.path()) else { continue };
            match known.is_dir() {
                true => folders.push(entry.path()),
                false => size = size.saturating_add(known.len()),
            }
            if entries > CHECK_ENTRIES_MAX || size > CHECK_LOAD_SIZE_MAX {
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_small_up_to_its_bounds() {
        let root = std::env::temp_dir().join(format!("deuteron-small-{}", std::process::id()));
        fs::create_dir_all(root.join("1/more")).unwrap();
        // Files without contents on the disk.
        let file = fs::File::create(root.join("1/more/data")).unwrap();
        file.set_len(CHECK_LOAD_SIZE_MAX).unwrap();
        assert!(is_small(&root.join("1")));
        file.set_len(CHECK_LOAD_SIZE_MAX + 1).unwrap();
        assert!(!is_small(&root.join("1")));
        fs::create_dir_all(root.join("2")).unwrap();
        (0..CHECK_ENTRIES_MAX).for_each(|index| fs::write(root.join(format!("2/{index}")), "").unwrap());
        assert!(is_small(&root.join("2")));
        fs::write(root.join("2/last"), "").unwrap();
        assert!(!is_small(&root.join("2")));
        fs::remove_dir_all(&root).unwrap();
    }
}
