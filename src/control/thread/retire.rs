//! Retiring a model version: when every shard has dropped its handle and the workers have run what waited, the
//! control thread frees it. No shard frees a model: that can take long.

use std::sync::Arc;

use crate::control::thread::ControlThread;
use crate::control::thread::model_record::VersionRecord;
use crate::log;
use crate::model::repository::index::{UNLOADED, VersionState};
use crate::queue::served_model::{Placement, ServedModel};
use crate::scheduler::sequence::SequenceEnd;
use crate::shard::mailbox::ModelHandle;
use crate::shard::services::control_request::ControlReply;

/// A published change that some shards have not applied yet.
pub struct PendingChange {
    /// Shards that have not applied it.
    pub left: usize,
    /// The clients that are answered when all shards have applied it.
    pub replies: Vec<ControlReply>,
    /// The versions whose queues are stopped when all shards have applied it. Not earlier: a shard
    /// that has not applied the change still sends requests there.
    pub stopped: Vec<Arc<ServedModel>>,
}

/// A version that was removed and is not freed yet.
pub struct RetiringVersion {
    name: String,
    version: VersionRecord,
    /// Shards that still have a handle to it.
    handles: usize,
}

impl RetiringVersion {
    /// Creates a version of the model `name` to which `handles` shards have a handle.
    pub const fn new(name: String, version: VersionRecord, handles: usize) -> Self {
        Self { name, version, handles }
    }

    fn is_over(&self) -> bool {
        self.handles == 0 && self.version.worker_group.has_ended()
    }
}

impl ControlThread {
    /// A shard has applied a change. After the last one: stops the queues of the removed versions and answers the
    /// clients.
    pub(super) fn handle_change_applied(&mut self, number: u64) {
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

    /// A shard has sent back its handle to a model version, which its requests no longer use.
    pub(super) fn handle_released(&mut self, handle: ModelHandle) {
        let retiring = self.retiring.iter_mut().find(|retiring| Arc::ptr_eq(&retiring.version.served, &handle.served));
        // When the server ends, shards return the handles of versions that were never retired.
        if let Some(retiring) = retiring {
            retiring.handles = retiring.handles.saturating_sub(1);
        }
        drop(handle);
        self.finish_retiring();
    }

    /// Frees the versions to which no shard has a handle and whose workers have ended.
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
            let open_sequences = open_sequences(&served);
            drop(served);
            drop(uploaded_files);
            log::info(&format!("freed '{name}' version {number}{open_sequences}"));
            let is_left = self.retiring.iter().any(|other| other.name == name && other.number() == number);
            let Some(model) = self.models.get_mut(&name) else { continue };
            if let Some(past) = model.past.get_mut(&number).filter(|past| past.0 == VersionState::Unloading && !is_left)
            {
                *past = (VersionState::Unavailable, UNLOADED.to_owned());
            }
            model.forget_deleted_versions();
            let is_over = !model.past.values().any(|past| past.0 == VersionState::Unloading);
            if model.is_gone && model.serving.is_empty() && is_over && !self.busy.contains_key(&name) {
                self.models.remove(&name);
            }
        }
        self.handle_memory_freed();
        self.publish_overview();
    }
}

/// Returns a text for the log: the number of a version's sequences that were still open when its
/// workers ended.
fn open_sequences(served: &ServedModel) -> String {
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
