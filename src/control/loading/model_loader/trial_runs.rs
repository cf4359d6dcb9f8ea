//! The runs of a loaded model before it serves: its warm-up, those that choose its placement, and those that check its
//! batch axis. Called by the loader on load threads.

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Backend, LoadedModel, Threads};
use crate::control::engines::engine::EngineName;
use crate::control::engines::isolation::{EngineProcesses, ISOLATION};
use crate::control::loading::batch_axis;
use crate::control::loading::model_loader::ModelLoader;
use crate::control::loading::placement::{self, InstanceSite, PlacementChoice};
use crate::control::loading::warm_up;
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::pinned_files::PinnedFiles;
use crate::error::Error;
use crate::model::ModelSpec;
use crate::model::spec::{SERVED_ENGINE_PARAMETER, SERVED_ENGINE_VERSION_PARAMETER};

/// Returns the parameters that the served configuration shows of a load's decisions.
pub(super) fn decisions<'a>(
    choice: &PlacementChoice,
    engine: Option<&'a EngineName>,
    is_isolated: bool,
) -> Vec<(&'static str, &'a str)> {
    let mut decisions = vec![(placement::PARAMETER, choice.site.as_str())];
    if let Some(EngineName { engine, version }) = engine {
        decisions.extend([(SERVED_ENGINE_PARAMETER, *engine), (SERVED_ENGINE_VERSION_PARAMETER, version)]);
    }
    decisions.extend(is_isolated.then_some((ISOLATION, "process")));
    decisions
}

/// A loaded model that is tried.
#[derive(Clone, Copy)]
pub(super) struct TrialSubject<'a> {
    /// Its description: of the whole model, or of the part between its steps.
    pub(super) spec: &'a Arc<ModelSpec>,
    pub(super) model: &'a dyn LoadedModel,
    /// The threads that it runs on.
    pub(super) threads: &'a Threads,
}

/// The engines that can load the model again.
#[derive(Clone, Copy)]
pub(super) struct TrialEngines<'a> {
    /// Starts its processes, if it runs in such.
    pub(super) processes: Option<&'a EngineProcesses>,
    /// The backend that loaded it; `None` for a plan of a GPU.
    pub(super) used: Option<&'a dyn Backend>,
}

/// The files of a version.
#[derive(Clone, Copy)]
pub(super) struct VersionFiles<'a> {
    /// The repository.
    pub(super) source: &'a ModelSource,
    /// The files that were opened.
    pub(super) pinned: &'a PinnedFiles,
    /// The directory of the version, or its file.
    pub(super) path: &'a Path,
}

impl ModelLoader {
    /// Warms a model up, chooses its placement, and checks its batch axis.
    ///
    /// # Errors
    /// That of an instance, of its warm-up, or of a model that can never run.
    pub(super) fn try_runs(
        &self,
        subject: TrialSubject<'_>,
        engines: TrialEngines<'_>,
        files: VersionFiles<'_>,
    ) -> Result<PlacementChoice, Error> {
        let TrialSubject { spec, model, threads } = subject;
        let tried = warm_up::try_warm_up(spec, model, threads)?;
        let bound_by = placement::bound_by(spec, &self.settings);
        if let Some((engine, between)) = model.between_steps() {
            drop(tried);
            // The steps would refuse the zeros of a trial.
            let within = TrialSubject { spec: engine, model: between, threads };
            let mut choice = self.try_runs(within, engines, files)?;
            if choice.site == InstanceSite::Inline && !model.may_run_inline() {
                (choice.site, choice.why) = (InstanceSite::Worker, model.why_not_inline().to_owned());
            }
            return Ok(choice);
        }
        let mut choice = placement::choose(spec, &tried, threads, bound_by, files.pinned.depends_on_values)?;
        drop(tried);
        let no_axis = self.check_axis_apart(subject, engines, files)?;
        choice.note_batch_axis(spec, no_axis);
        Ok(choice)
    }

    /// Checks the batch axis of a model that `placement` does not try. Returns the reason if it is not one.
    fn check_axis_apart(
        &self,
        subject: TrialSubject<'_>,
        engines: TrialEngines<'_>,
        files: VersionFiles<'_>,
    ) -> Result<Option<String>, Error> {
        let TrialSubject { spec, model, threads } = subject;
        let VersionFiles { source, pinned, path } = files;
        let is_apart = !placement::is_tried(spec) && !self.runs_torch_in_python(spec)?;
        let kind = batch_axis::needed(spec).filter(|_| is_apart);
        let (Some(kind), Some(backend)) = (kind, engines.used) else { return Ok(None) };
        let load = |spec: &Arc<ModelSpec>| {
            let isolated = self.isolated(engines.processes, backend, source, pinned)?;
            pinned.load(isolated.as_ref().map_or(backend, |isolated| isolated as _), spec, path)
        };
        batch_axis::check_apart(spec, kind, model, threads, pinned.files_size, load)
    }
}
