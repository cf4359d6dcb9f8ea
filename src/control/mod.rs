//! The control thread once the server serves: it takes the orders of clients, looks at the
//! repositories, has models loaded beside those that serve, and hands every shard what changes. It
//! decides alone and in one thread; loads, looks and listings run on threads of their own and come
//! back as [`ControlMessage`]s, so that it always answers a signal.
//!
//! A version that serves no more goes this way: every shard takes the change up; then the queue is
//! stopped, so that its workers serve what waits and end; when they have, and the last request of
//! each shard has its answer, it is freed.

pub mod beneath;
pub mod cores;
pub mod engine;
mod ensemble;
pub mod gpu_check;
pub mod gpu_engine;
pub mod initial_load;
mod internal_sink;
pub mod load;
pub mod load_job;
pub mod model_record;
pub mod model_source;
pub mod onnxruntime_library;
mod order;
pub mod placement;
pub mod plan;
pub mod repositories;
mod retire;
pub mod shared_memory;
pub mod spawn;
pub mod threads;
pub mod trim_memory;
pub mod uploaded_files;
pub mod warm_up;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::control::load_job::{FinishedLoad, LoadContext, LoadJob};
use crate::control::model_record::{ModelRecord, ModelRecords, VersionRecord};
use crate::control::repositories::RepositoryScan;
use crate::control::retire::{PendingChange, RetiringVersion};
use crate::control::spawn::spawn;
use crate::error::Error;
use crate::log;
use crate::model::repository::ModelDirectory;
use crate::model::repository::index::{LoadProgress, RepositoryOverview, VersionState};
use crate::protocol::repository::LoadOrder;
use crate::queue::served_model::ServedModel;
use crate::runtime::clock;
use crate::settings::ControlMode;
use crate::shard::control_request::ControlReply;
use crate::shard::mailbox::{ControlEvent, ModelChange, ModelHandle};
use crate::time::Instant;

/// What the control thread hears of.
pub enum ControlMessage {
    /// A shard tells something.
    Told(ControlEvent),
    /// A signal came.
    Signal(i32),
    /// The server cannot go on.
    Failed,
    /// A shard's thread has ended.
    ShardEnded,
    /// A worker's thread has ended.
    WorkerEnded,
    /// A load has found its model.
    Begun(String, Arc<LoadProgress>),
    /// A load has found an ensemble of these models.
    Composed(Box<LoadJob>, Vec<String>),
    /// A load has ended.
    Finished(Box<FinishedLoad>),
    /// The repositories were looked at.
    Looked(RepositoryScan),
    /// The names in the repositories were listed.
    Listed(Result<Vec<(String, bool)>, Error>),
}

/// How long after a load or an unload memory is given back.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// The control thread's state.
pub struct ControlThread {
    tools: Arc<LoadContext>,
    events: Receiver<ControlMessage>,
    models: ModelRecords,
    /// The models with a load under way.
    busy: BTreeMap<String, BusyModel>,
    /// Loads that wait for a thread.
    jobs: VecDeque<LoadJob>,
    running: usize,
    /// Changes that not every shard has taken up.
    pending: BTreeMap<u64, PendingChange>,
    changes: u64,
    retiring: Vec<RetiringVersion>,
    /// Who waits for the names in the repositories.
    listing: Vec<(bool, ControlReply)>,
    look_at: Option<Instant>,
    /// When memory that loads and unloads left behind is given back.
    trim_at: Option<Instant>,
    shards_left: usize,
    is_draining: bool,
    has_failed: bool,
}

/// A load that is under way.
#[derive(Default)]
struct BusyModel {
    /// Who asked for it.
    reply: Option<ControlReply>,
    /// Whether somebody wants the model for its own sake.
    is_asked: bool,
    /// Whether it is only held against what it is made of again, as that is now.
    is_again: bool,
    /// The load of an ensemble, and the models whose loads it waits for.
    awaiting: Option<(Box<LoadJob>, BTreeSet<String>)>,
    /// What is to be done about the model afterwards.
    waiting: VecDeque<PendingAction>,
}

/// Something to be done about a model when its turn comes.
pub enum PendingAction {
    /// A client wants it loaded.
    Load(Box<LoadOrder>, ControlReply),
    /// A look at the repositories found it new or changed.
    Follow(usize, Box<ModelDirectory>),
    /// An ensemble is made of it.
    Need,
    /// It is an ensemble, and what it is made of has changed.
    Again,
    /// A client wants it unloaded, perhaps with what only it is made of; or it has gone.
    Unload(Option<ControlReply>, bool),
}

impl ControlThread {
    /// The control thread of a server whose shards run.
    pub fn new(tools: Arc<LoadContext>, events: Receiver<ControlMessage>, models: ModelRecords) -> Self {
        let shards = tools.server_context.control_link.mailboxes.len();
        let mut control = Self {
            tools,
            events,
            models,
            busy: BTreeMap::new(),
            jobs: VecDeque::new(),
            running: 0,
            pending: BTreeMap::new(),
            changes: 0,
            retiring: Vec::new(),
            listing: Vec::new(),
            look_at: None,
            trim_at: None,
            shards_left: shards,
            is_draining: false,
            has_failed: false,
        };
        control.look_at = control.next_look();
        control
    }

    /// Serves until a signal, or a failure, has ended all shards; whether it failed.
    pub fn run(&mut self) -> bool {
        while self.shards_left > 0 {
            match self.next_event() {
                Some(event) => self.handle_event(event),
                None => self.handle_time(),
            }
        }
        self.has_failed
    }

    /// What is known of all models.
    pub fn overview(models: &ModelRecords) -> Arc<RepositoryOverview> {
        Arc::new(RepositoryOverview { models: models.iter().map(|(name, model)| model.overview(name)).collect() })
    }

    /// Memory is free in pieces: it is given back a little later, once for a burst.
    fn handle_memory_freed(&mut self) {
        self.trim_at.get_or_insert(clock::now() + TRIM_PAUSE);
    }

    fn handle_time(&mut self) {
        let now = clock::now();
        if self.trim_at.is_some_and(|at| at <= now) {
            self.trim_at = None;
            trim_memory::give_back();
            log::info("gave memory back that loads and unloads had left free");
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look();
        }
    }

    /// The next event; none when the repositories are due to be looked at, or memory to be given back.
    fn next_event(&self) -> Option<ControlMessage> {
        let Some(at) = self.look_at.into_iter().chain(self.trim_at).min() else {
            return self.events.recv().ok().or(Some(ControlMessage::Failed));
        };
        match self.events.recv_timeout(at.since(clock::now())) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            // It holds a sender itself.
            Err(RecvTimeoutError::Disconnected) => Some(ControlMessage::Failed),
        }
    }

    fn handle_event(&mut self, event: ControlMessage) {
        match event {
            ControlMessage::Told(ControlEvent::Ordered(order, reply)) => self.handle_order(order, reply),
            ControlMessage::Told(ControlEvent::Changed(number)) => self.handle_changed(number),
            ControlMessage::Told(ControlEvent::Released(hold)) => self.handle_released(hold),
            ControlMessage::Signal(signal) => self.handle_signal(signal),
            ControlMessage::Failed => {
                self.has_failed = true;
                self.drain();
            }
            ControlMessage::ShardEnded => self.shards_left = self.shards_left.saturating_sub(1),
            ControlMessage::WorkerEnded => self.finish_retiring(),
            ControlMessage::Begun(name, progress) => self.handle_begun(name, progress),
            ControlMessage::Composed(job, composing) => self.handle_composed(job, composing),
            ControlMessage::Finished(finished) => self.handle_finished(*finished),
            ControlMessage::Looked(look) => self.handle_look(look),
            ControlMessage::Listed(names) => self.handle_listed(names),
        }
    }

    fn handle_signal(&mut self, signal: i32) {
        // Nobody may be reading any more; the drain goes on.
        let _ = writeln!(io::stdout(), "Signal ({signal}) received.");
        if !self.is_draining {
            log::info(&format!("draining after signal {signal}"));
            self.drain();
        }
    }

    /// From now on nothing is loaded; orders that wait are refused.
    fn drain(&mut self) {
        self.is_draining = true;
        (self.look_at, self.trim_at) = (None, None);
        self.tools.server_context.lifecycle.drain();
        self.busy.clear();
        self.jobs.clear();
        self.listing.clear();
        self.pending.clear();
    }

    fn next_look(&self) -> Option<Instant> {
        let settings = &self.tools.settings;
        let is_polled = settings.control_mode == ControlMode::Poll && settings.repository_poll > Duration::ZERO;
        is_polled.then(|| clock::now() + settings.repository_poll)
    }

    /// Has the repositories looked at.
    fn look(&mut self) {
        // Not again before it came back.
        self.look_at = None;
        let tools = Arc::clone(&self.tools);
        let body = move || drop(tools.events.send(ControlMessage::Looked(tools.repositories.look())));
        if let Err(error) = spawn("look".to_owned(), body) {
            log::error(&format!("cannot look at the repositories: {error}"));
            self.look_at = self.next_look();
        }
    }

    /// Starts loads, as many as may run.
    fn start_jobs(&mut self) {
        while self.running < self.tools.settings.load_threads {
            let Some(job) = self.jobs.pop_front() else { return };
            self.running += 1;
            let (tools, name) = (Arc::clone(&self.tools), job.name.clone());
            if let Err(error) = spawn(format!("load-{name}"), move || job.run(&tools)) {
                self.handle_finished(FinishedLoad {
                    name,
                    found: None,
                    outcome: Err(error.into()),
                    took: Duration::ZERO,
                });
            }
        }
    }

    /// Hands every shard what changes. `replies` are answered when all have taken it up.
    fn publish(
        &mut self,
        come: Vec<Vec<ModelHandle>>,
        retired: Vec<(String, VersionRecord)>,
        replies: Vec<ControlReply>,
    ) {
        self.changes += 1;
        let number = self.changes;
        let overview = Self::overview(&self.models);
        let gone: Vec<Arc<ServedModel>> = retired.iter().map(|(_, version)| Arc::clone(&version.served)).collect();
        let shards = self.tools.server_context.control_link.mailboxes.len();
        self.pending.insert(number, PendingChange { left: shards, replies, stopped: gone.clone() });
        self.retiring.extend(retired.into_iter().map(|(name, version)| RetiringVersion::new(name, version, shards)));
        let mut come: Vec<_> = come.into_iter().map(Vec::into_iter).collect();
        for mailbox in &self.tools.server_context.control_link.mailboxes {
            // What runs inside a shard was made with that shard's threads.
            let come = come.iter_mut().filter_map(Iterator::next).collect();
            mailbox.push(ModelChange { number, overview: Arc::clone(&overview), removed: gone.clone(), added: come });
        }
    }

    /// Shows what is known now.
    fn publish_overview(&mut self) {
        self.publish(Vec::new(), Vec::new(), Vec::new());
    }

    /// Takes versions out of a model; they show as unloading until the last request has its answer.
    fn take_out(model: &mut ModelRecord, name: &str, numbers: &[u64]) -> Vec<(String, VersionRecord)> {
        let mut taken = Vec::new();
        for number in numbers {
            if let Some(version) = model.serving.remove(number) {
                model.past.insert(*number, (VersionState::Unloading, String::new()));
                taken.push((name.to_owned(), version));
            }
        }
        taken
    }
}
