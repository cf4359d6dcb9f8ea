//! The end of a model version: every shard has let go of it, its workers have served what waited,
//! and it is freed, on the control thread.

use std::sync::Arc;

use crate::control::ControlThread;
use crate::control::model_record::VersionRecord;
use crate::log;
use crate::model::repository::index::{UNLOADED, VersionState};
use crate::scheduler::sequence::SequenceEnd;
use crate::shard::control_request::ControlReply;
use crate::shard::mailbox::ModelHandle;
use crate::shard::model_table::{Placement, ServedModel};

/// A change that not every shard has taken up.
pub struct PendingChange {
    /// Shards that have not.
    pub left: usize,
    /// Who is answered then.
    pub replies: Vec<ControlReply>,
    /// What is stopped then: no shard queues anything there any more.
    pub stopped: Vec<Arc<ServedModel>>,
}

/// A version that serves no more.
pub struct RetiringVersion {
    name: String,
    version: VersionRecord,
    /// Shards that hold it still.
    holds: usize,
}

impl RetiringVersion {
    /// It was taken out of a model; so many shards hold it.
    pub const fn new(name: String, version: VersionRecord, holds: usize) -> Self {
        Self { name, version, holds }
    }

    fn is_over(&self) -> bool {
        self.holds == 0 && self.version.worker_group.has_ended()
    }
}

impl ControlThread {
    /// A shard has taken up a change.
    pub(super) fn handle_changed(&mut self, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        pending.left = pending.left.saturating_sub(1);
        if pending.left > 0 {
            return;
        }
        let Some(pending) = self.pending.remove(&number) else { return };
        for served in &pending.stopped {
            let retiring = self.retiring.iter().find(|retiring| Arc::ptr_eq(&retiring.version.served, served));
            retiring.into_iter().for_each(|retiring| retiring.version.worker_group.stop());
        }
        pending.replies.into_iter().for_each(|reply| reply.send(Ok(Vec::new())));
        self.finish_retiring();
    }

    /// A shard has let go of a model version.
    pub(super) fn handle_released(&mut self, hold: ModelHandle) {
        let retiring = self.retiring.iter_mut().find(|retiring| Arc::ptr_eq(&retiring.version.served, &hold.served));
        // At the end of the server it serves still.
        if let Some(retiring) = retiring {
            retiring.holds = retiring.holds.saturating_sub(1);
        }
        drop(hold);
        self.finish_retiring();
    }

    /// Frees what nobody holds any more.
    pub(super) fn finish_retiring(&mut self) {
        let (over, still) = std::mem::take(&mut self.retiring).into_iter().partition(RetiringVersion::is_over);
        self.retiring = still;
        let over: Vec<RetiringVersion> = over;
        if over.is_empty() {
            return;
        }
        for RetiringVersion { name, version, .. } in over {
            let number = version.served.version;
            let VersionRecord { served, worker_group, uploaded_files, .. } = version;
            worker_group.join();
            let unended = unended(&served);
            drop(served);
            drop(uploaded_files);
            log::info(&format!("freed '{name}' version {number}{unended}"));
            let is_left = self.retiring.iter().any(|other| other.name == name && other.number() == number);
            let Some(model) = self.models.get_mut(&name) else { continue };
            if let Some(past) = model.past.get_mut(&number).filter(|past| past.0 == VersionState::Unloading && !is_left)
            {
                *past = (VersionState::Unavailable, UNLOADED.to_owned());
            }
            model.forget_gone();
            let is_over = !model.past.values().any(|past| past.0 == VersionState::Unloading);
            if model.is_gone && model.serving.is_empty() && is_over && !self.busy.contains_key(&name) {
                self.models.remove(&name);
            }
        }
        self.handle_memory_freed();
        self.publish_overview();
    }
}

/// What became of the sequences of a version whose workers have ended.
fn unended(served: &ServedModel) -> String {
    let model_queue = match &served.placement {
        Placement::Ensemble(_) | Placement::Inline => None,
        Placement::Worker(model_queue) => model_queue.sequences(),
    };
    match model_queue.map_or(0, |sequences| sequences.ended(SequenceEnd::Unload)) {
        0 => String::new(),
        count => format!("; {count} sequences had not ended"),
    }
}

impl RetiringVersion {
    fn number(&self) -> u64 {
        self.version.served.version
    }
}
