//! Updates of the instances of a model that serves, if only its instance groups have changed: no version is loaded then. As
//! in Triton, its sequences, its waiting requests and its counts go on. A load tries this first, on its thread; the
//! control thread takes over the result.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::model_loader::regrouped::{LoadedBefore, RegroupedModel, RegroupedSpec};
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::control::serving::instance_update::{PreparedUpdate, UpdateSite, UpdatedVersion, why_reloaded};
use crate::control::serving::threads::{ServingWorkers, WorkerEnd};
use crate::control::thread::ControlThread;
use crate::log;
use crate::queue::parking::InstanceStage;
use crate::queue::served_model::{Placement, ServedModel};
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
    leaving: Vec<LeavingInstance>,
    replies: Vec<ControlReply>,
}

/// An instance that leaves, unless a later update has it stay.
pub(super) struct LeavingInstance {
    served: Arc<ServedModel>,
    parking: usize,
    end: WorkerEnd,
}

/// Logs that a model whose instance groups alone have changed is loaded.
pub(super) fn log_reload(name: &str, why: &str) {
    log::info(&format!("'{name}' is loaded again for its new instance groups: {why}"));
}

impl ServingInstances {
    /// Returns the versions with their new instance groups; `None` if the model must be loaded.
    pub(super) fn regrouped(
        &self,
        loader: &ModelLoader,
        location: ModelLocation<'_>,
        is_limited: bool,
    ) -> Option<RegroupedModel> {
        let before: Vec<LoadedBefore> = self.versions.iter().map(|(before, _)| before.clone()).collect();
        let regrouped = loader.regrouped(location, &before)?;
        let mut reasons = regrouped.specs.iter().zip(&self.versions).filter_map(|(new, (_, workers))| match new {
            RegroupedSpec { is_of_backend: true, .. } => Some("its backend may prefer some"),
            RegroupedSpec { spec, .. } => why_reloaded(&workers.served, spec, is_limited),
        });
        if let Some(why) = reasons.next() {
            if regrouped.has_changed {
                log_reload(&location.directory.name, why);
            }
            return None;
        }
        Some(regrouped)
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
    /// The instances of these versions were updated: takes over their new workers, and returns the instances that leave.
    pub(super) fn adopt_instances(&mut self, name: &str, updated: Vec<UpdatedVersion>) -> Vec<LeavingInstance> {
        let Some(model) = self.models.get_mut(name).filter(|_| !updated.is_empty()) else { return Vec::new() };
        model.loads.succeeded += 1;
        let mut all_leaving = Vec::new();
        for UpdatedVersion { version, basis, workers, leaving } in updated {
            let Some(record) = model.serving.get_mut(&version) else { continue };
            let served = &record.served;
            let leaver = |(parking, end)| LeavingInstance { served: Arc::clone(served), parking, end };
            all_leaving.extend(record.worker_group.ends(&leaving).map(leaver));
            workers.into_iter().for_each(|workers| record.worker_group.adopt(workers));
            record.basis = Some(basis);
        }
        // Instances that stay after all are waited for no longer.
        self.finish_leaving();
        all_leaving
    }

    /// Returns the clients that are answered now: none while instances are leaving.
    pub(super) fn answer_when_left(
        &mut self,
        leaving: Vec<LeavingInstance>,
        replies: Vec<ControlReply>,
    ) -> Vec<ControlReply> {
        let leaving = LeavingInstances { leaving, replies };
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
        self.leaving.iter().all(LeavingInstance::is_over)
    }
}

impl LeavingInstance {
    fn is_over(&self) -> bool {
        let has_stayed = match &self.served.placement {
            Placement::Worker(model_queue) => {
                model_queue.parking(self.parking).is_some_and(|parking| parking.stage() == InstanceStage::Serving)
            }
            Placement::Inline | Placement::Ensemble(_) => false,
        };
        has_stayed || self.end.load(Ordering::SeqCst)
    }
}
