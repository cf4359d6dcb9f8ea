//! Updates of the instances of a model that serves, if only its instance groups have changed: no version is loaded then. As
//! in Triton, its sequences, its waiting requests and its counts go on. A load tries this first, on its thread; the
//! control thread takes over the result.

use std::sync::atomic::Ordering;

use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::model_loader::regrouped::{LoadedBefore, RegroupedSpec};
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::control::serving::instance_update::{PreparedUpdate, UpdateSite, UpdatedVersion, why_reloaded};
use crate::control::serving::threads::{ServingWorkers, WorkerEnd};
use crate::control::thread::ControlThread;
use crate::log;
use crate::shard::services::control_request::ControlReply;

/// The instances of a model that serves from a repository.
pub struct ServingInstances {
    /// The index of the repository.
    pub origin: usize,
    /// The versions that serve.
    pub versions: Vec<(LoadedBefore, ServingWorkers)>,
}

/// Instances that leave, and the clients that are answered when they are gone.
pub struct LeavingInstances {
    ends: Vec<WorkerEnd>,
    replies: Vec<ControlReply>,
}

/// Logs that a model whose instance groups alone have changed is loaded.
pub(super) fn log_reload(name: &str, why: &str) {
    log::info(&format!("'{name}' is loaded again for its new instance groups: {why}"));
}

impl ServingInstances {
    /// Returns the configurations of the versions with their new instance groups; `None` if the model must be loaded.
    pub(super) fn regrouped(
        &self,
        loader: &ModelLoader,
        location: ModelLocation<'_>,
        is_limited: bool,
    ) -> Option<Vec<RegroupedSpec>> {
        let before: Vec<LoadedBefore> = self.versions.iter().map(|(before, _)| before.clone()).collect();
        let specs = loader.regrouped(location, &before)?;
        let mut reasons = specs.iter().zip(&self.versions).filter_map(|(new, (_, workers))| match new {
            RegroupedSpec { is_of_backend: true, .. } => Some("its backend may prefer some"),
            RegroupedSpec { spec, .. } => why_reloaded(&workers.served, spec, is_limited),
        });
        if let Some(why) = reasons.next() {
            log_reload(&location.directory.name, why);
            return None;
        }
        Some(specs)
    }

    /// Makes the new instances of all versions, or none; `None` if a queue has too few places.
    ///
    /// # Errors
    /// [`LoadFailure::Version`] if an instance cannot be made.
    pub(super) fn prepare(
        &self,
        site: UpdateSite<'_>,
        specs: &[RegroupedSpec],
    ) -> Result<Option<Vec<PreparedUpdate>>, LoadFailure> {
        let mut prepared = Vec::with_capacity(specs.len());
        for ((before, workers), new) in self.versions.iter().zip(specs) {
            match PreparedUpdate::new(site, workers, new, before.basis.load) {
                Ok(Some(update)) => prepared.push(update),
                other => {
                    prepared.into_iter().for_each(PreparedUpdate::give_up);
                    return other.map(|_| None).map_err(|error| LoadFailure::Version(before.version, error));
                }
            }
        }
        Ok(Some(prepared))
    }
}

impl ControlThread {
    /// The instances of these versions were updated: takes over their new workers, and returns the ends of those that
    /// leave.
    pub(super) fn adopt_instances(&mut self, name: &str, updated: Vec<UpdatedVersion>) -> Vec<WorkerEnd> {
        let Some(model) = self.models.get_mut(name).filter(|_| !updated.is_empty()) else { return Vec::new() };
        model.loads.succeeded += 1;
        let mut ends = Vec::new();
        for UpdatedVersion { version, workers, leaving } in updated {
            let Some(record) = model.serving.get_mut(&version) else { continue };
            ends.extend(record.worker_group.ends(&leaving));
            workers.into_iter().for_each(|workers| record.worker_group.adopt(workers));
        }
        ends
    }

    /// Returns the clients that are answered now: none while instances are leaving.
    pub(super) fn answer_when_left(&mut self, ends: Vec<WorkerEnd>, replies: Vec<ControlReply>) -> Vec<ControlReply> {
        let leaving = LeavingInstances { ends, replies };
        if leaving.are_gone() {
            return leaving.replies;
        }
        self.leaving.push(leaving);
        Vec::new()
    }

    /// A worker has ended: answers the clients whose updates waited for it.
    pub(super) fn finish_leaving(&mut self) {
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.leaving).into_iter().partition(LeavingInstances::are_gone);
        self.leaving = left;
        if !gone.is_empty() {
            self.handle_memory_freed();
        }
        gone.into_iter().flat_map(|gone| gone.replies).for_each(|reply| self.reply_when_applied(reply));
    }
}

impl LeavingInstances {
    fn are_gone(&self) -> bool {
        self.ends.iter().all(|end| end.load(Ordering::SeqCst))
    }
}
