//! The control thread: handles the load, unload and index requests of clients, scans the model repositories,
//! loads models beside those that serve, and sends every shard the changes. All decisions are made on this one
//! thread. Loads, scans and listings block, so they run on threads of their own and report back by
//! [`ControlMessage`]; the control thread itself never blocks on them and always handles a signal.
//!
//! Retiring a version: every shard applies the change and sends no further requests to the
//! version's queue; then the queue is stopped, its workers run what still waits and exit; when they
//! have exited and every shard has dropped its handle after its last request, the version is freed.

mod ensemble;
pub mod hand_over;
pub mod initial_load;
pub mod instance_job;
mod life;
pub mod load_job;
pub mod model_cache;
pub mod model_record;
mod on_demand;
mod order;
mod order_waits;
mod retire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::control::machine::process_memory;
use crate::control::machine::spawn::spawn;
use crate::control::outside::notify::{ServiceNotifier, Watchdog};
use crate::control::repository::repositories::RepositoryScan;
use crate::control::thread::hand_over::{HandOverEnd, Successor};
use crate::control::thread::instance_job::LeavingInstances;
use crate::control::thread::load_job::{FinishedLoad, LoadContext, LoadJob};
use crate::control::thread::model_record::{ModelRecord, ModelRecords, VersionRecord};
use crate::control::thread::on_demand::OnDemand;
use crate::control::thread::order_waits::OrderWaits;
use crate::control::thread::retire::{PendingChange, RetiringVersion};
use crate::error::Error;
use crate::log;
use crate::model::repository::ModelDirectory;
use crate::model::repository::index::{LoadProgress, RepositoryOverview, VersionState};
use crate::protocol::repository::LoadOrder;
use crate::protocol::trace::TraceOrder;
use crate::queue::served_model::ServedModel;
use crate::runtime::clock;
use crate::settings::ControlMode;
use crate::shard::mailbox::{ControlEvent, ModelChange, ModelHandle, ShardNews};
use crate::shard::services::control_request::ControlReply;
use crate::shard::services::trace_settings::{PublishedTraces, TraceReply};
use crate::time::Instant;
use crate::trace::TraceTable;

/// A message to the control thread.
pub enum ControlMessage {
    /// The model to load is an ensemble of these models; the job goes back, to run again when they are loaded.
    EnsembleFound(Box<LoadJob>, Vec<String>),
    /// A thread hit a fault that the server cannot survive: drain and exit with an error.
    Failed,
    /// The server that was started to take over serves, or has ended.
    HandOverEnded(HandOverEnd),
    /// Give the sockets to a new server (SIGUSR2).
    HandOverOrdered,
    /// A load takes so long that others load meanwhile.
    LoadSlow,
    /// A load has ended.
    LoadFinished(Box<FinishedLoad>),
    /// A load has found its model in a repository: the index shows it from now on.
    ModelFound(String, Arc<LoadProgress>),
    /// The model that a client wants loaded is in these namespaces; the job goes back, to be done
    /// in each of them.
    NamesakesFound(Box<LoadJob>, Vec<String>),
    /// The model names in the repositories, each with true if more than one repository has it.
    NamesListed(Result<Vec<(String, bool)>, Error>),
    /// The result of a repository scan.
    Scanned(RepositoryScan),
    /// A request from a client, or an event, from a shard.
    Shard(ControlEvent),
    /// Read again the files that may have changed (SIGHUP).
    Reload,
    /// A shard's thread has ended.
    ShardEnded,
    /// The process received this signal.
    Signal(i32),
    /// Log the state of the server (SIGUSR1).
    StateAsked,
    /// A worker's thread has ended.
    WorkerEnded,
}

/// Delay between a load or unload and the trim of free memory. A trim stalls every thread that allocates, so
/// there is one for a burst of loads.
const TRIM_DELAY: Duration = Duration::from_secs(1);

/// The control thread's state.
pub struct ControlThread {
    context: Arc<LoadContext>,
    messages: Receiver<ControlMessage>,
    models: ModelRecords,
    /// The models whose load is queued or running, by name, qualified if they have namespaces. At most one load per
    /// model.
    busy: BTreeMap<String, BusyModel>,
    /// Loads that wait for one of `--model-load-thread-count` threads.
    jobs: VecDeque<LoadJob>,
    loads_running: usize,
    /// The orders that models gave, perhaps while they are loaded.
    order_waits: OrderWaits,
    /// Changes that some shards have not applied yet, by number.
    pending: BTreeMap<u64, PendingChange>,
    /// Changes published so far; the number of the last one.
    change_count: u64,
    /// True if the shards are sent the state of all models once the current message is handled.
    is_overview_due: bool,
    retiring: Vec<RetiringVersion>,
    /// Instances that updates removed and clients wait for.
    leaving: Vec<LeavingInstances>,
    /// Index requests that wait for the listing of the repositories: true if only ready models are
    /// asked for, and the reply.
    index_requests: Vec<(bool, ControlReply)>,
    is_listing: bool,
    /// The models that are loaded on demand; `None` if all are loaded at start.
    on_demand: Option<OnDemand>,
    /// The instant of the next scan of the repositories; `None` while a scan runs, and without
    /// polling.
    scan_at: Option<Instant>,
    /// The instant of the next trim of free memory.
    trim_at: Option<Instant>,
    /// Shards whose threads still run.
    shards_running: usize,
    is_draining: bool,
    has_failed: bool,
    /// The instant at which the drain begins after `--drain-delay`; `None` before a signal.
    drain_at: Option<Instant>,
    is_scanning: bool,
    /// True if a reload came while a scan ran, which may have passed the changed files.
    scans_again: bool,
    /// The process id of the server that was started to take over, until it serves.
    successor: Option<u32>,
    surroundings: ProcessSurroundings,
    /// The trace settings.
    traces: Arc<TraceTable>,
}

/// The control thread's links to the process and its surroundings.
pub struct ProcessSurroundings {
    /// The supervisor that started the server.
    pub notifier: ServiceNotifier,
    /// The instant at which it next expects to hear that the server works, if it does.
    pub watchdog: Option<Watchdog>,
    /// The start of a new server that takes over.
    pub successor: Successor,
    /// Called when a drain begins: ends the process if the drain takes too long.
    pub limit_end: Box<dyn Fn() + Send>,
}

/// A model whose load is queued or running.
#[derive(Default)]
struct BusyModel {
    /// The client that asked for the load, if one did.
    reply: Option<ControlReply>,
    /// True if the model was asked for by itself, and not only as a step of an ensemble.
    is_requested: bool,
    /// The host's name of the model, if it is loaded from the host's path.
    hosted_name: Option<String>,
    /// True if this load only checks an ensemble against its composing models again, because one
    /// changed.
    is_revalidation: bool,
    /// The job of an ensemble, and the models whose loads it waits for.
    awaiting: Option<(Box<LoadJob>, BTreeSet<String>)>,
    /// The models of the same name in other namespaces that the client's load is for too, after this one.
    namesakes: Vec<(String, Box<LoadOrder>)>,
    /// Actions on the model that wait until this load has ended.
    queued: VecDeque<PendingAction>,
    /// For an ensemble: unloads of its composing models, by their names, that wait until this load has ended.
    unloads_beneath: Vec<(String, PendingAction)>,
}

/// An action on one model. Actions on the same model run one at a time.
pub enum PendingAction {
    /// A client asked for the load.
    Load(Box<LoadOrder>, ControlReply),
    /// The same for one of several models of a name, and then the others. Without a reply when one
    /// has failed.
    LoadNamesakes(Box<LoadOrder>, Vec<(String, Box<LoadOrder>)>, Option<ControlReply>),
    /// An ensemble needs the model as a step. With the path of the host that the ensemble is at.
    LoadDependency(Option<String>),
    /// Requests wait for the model.
    LoadWanted,
    /// A repository scan found the model new or changed: the repository's index, and what it found there.
    LoadScanned(usize, Box<ModelDirectory>),
    /// The model is an ensemble and a composing model changed.
    Revalidate,
    /// A client asked for the unload, or, without a reply, the model disappeared from its repository. The flag:
    /// also unload the composing models that nothing else uses.
    Unload(Option<ControlReply>, bool),
}

impl ControlThread {
    /// Takes over a server whose models are loaded and whose shards run.
    pub fn new(
        context: Arc<LoadContext>,
        messages: Receiver<ControlMessage>,
        models: ModelRecords,
        surroundings: ProcessSurroundings,
    ) -> Self {
        let shards = context.server_context.control_link.mailboxes.len();
        let on_demand = OnDemand::new(&context.settings);
        let mut control = Self {
            traces: Arc::clone(&context.server_context.traces.initial),
            context,
            messages,
            models,
            busy: BTreeMap::new(),
            jobs: VecDeque::new(),
            loads_running: 0,
            order_waits: OrderWaits::default(),
            pending: BTreeMap::new(),
            change_count: 0,
            is_overview_due: false,
            retiring: Vec::new(),
            leaving: Vec::new(),
            index_requests: Vec::new(),
            is_listing: false,
            on_demand,
            scan_at: None,
            trim_at: None,
            shards_running: shards,
            is_draining: false,
            has_failed: false,
            drain_at: None,
            is_scanning: false,
            scans_again: false,
            successor: None,
            surroundings,
        };
        control.scan_at = control.next_scan_at();
        control.handle_started();
        control
    }

    /// Runs until all shards have ended, after a signal or a failure. Returns true after a failure.
    pub fn run(&mut self) -> bool {
        while self.shards_running > 0 {
            match self.next_message() {
                Some(message) => self.handle_message(message),
                None => self.handle_timeout(),
            }
            self.publish_due();
        }
        self.has_failed
    }

    /// Returns the state of all models, for readiness and the index.
    pub fn overview(models: &ModelRecords) -> Arc<RepositoryOverview> {
        Arc::new(RepositoryOverview::new(models.iter().map(|(name, model)| model.overview(name)).collect()))
    }

    /// A load or unload has freed memory: schedules a trim, unless one is scheduled already.
    fn handle_memory_freed(&mut self) {
        self.trim_at.get_or_insert(clock::now() + TRIM_DELAY);
    }

    fn handle_timeout(&mut self) {
        let now = clock::now();
        if self.trim_at.is_some_and(|at| at <= now) {
            self.trim_at = None;
            process_memory::trim();
            log::info("returned the memory that loads and unloads had freed to the system");
        }
        if self.scan_at.is_some_and(|at| at <= now) {
            self.start_scan();
        }
        if self.drain_at.is_some_and(|at| at <= now) {
            self.drain();
        }
        self.feed_watchdog(now);
    }

    /// Waits for the next message; `None` when something else is due first.
    fn next_message(&self) -> Option<ControlMessage> {
        let watchdog_at = self.surroundings.watchdog.as_ref().map(Watchdog::poll_timeout);
        let Some(at) = [self.scan_at, self.trim_at, self.drain_at, watchdog_at].into_iter().flatten().min() else {
            return self.messages.recv().ok().or(Some(ControlMessage::Failed));
        };
        let left = at.since(clock::now());
        // Due work goes first: messages may come without a pause.
        if left.is_zero() {
            return None;
        }
        match self.messages.recv_timeout(left) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            // Cannot happen: the context of this thread has a sender.
            Err(RecvTimeoutError::Disconnected) => Some(ControlMessage::Failed),
        }
    }

    fn handle_message(&mut self, message: ControlMessage) {
        match message {
            ControlMessage::Shard(ControlEvent::Ordered(order, reply)) => self.handle_order(order, reply),
            ControlMessage::Shard(ControlEvent::Changed(number)) => self.handle_change_applied(number),
            ControlMessage::Shard(ControlEvent::Released(handle)) => self.handle_released(handle),
            ControlMessage::Shard(ControlEvent::Wanted(name, reply)) => self.handle_wanted(name, reply),
            ControlMessage::Shard(ControlEvent::TraceOrdered(order, reply)) => self.handle_trace_order(&order, reply),
            ControlMessage::Signal(signal) => self.handle_signal(signal),
            ControlMessage::Failed => {
                self.has_failed = true;
                self.drain();
            }
            ControlMessage::ShardEnded => self.shards_running = self.shards_running.saturating_sub(1),
            ControlMessage::WorkerEnded => {
                self.finish_leaving();
                self.finish_retiring();
            }
            ControlMessage::ModelFound(name, progress) => self.handle_model_found(name, progress),
            ControlMessage::EnsembleFound(job, composing) => self.handle_ensemble_found(job, composing),
            ControlMessage::HandOverEnded(end) => self.handle_hand_over(end),
            ControlMessage::HandOverOrdered => self.start_hand_over(),
            ControlMessage::LoadSlow => self.start_jobs(),
            ControlMessage::LoadFinished(finished) => self.handle_load_finished(*finished),
            ControlMessage::Scanned(scan) => self.handle_scan(scan),
            ControlMessage::NamesakesFound(job, names) => self.handle_namesakes_found(*job, names),
            ControlMessage::NamesListed(names) => self.handle_names_listed(names),
            ControlMessage::Reload => self.reload(),
            ControlMessage::StateAsked => self.log_state(),
        }
    }

    /// Changes trace settings and sends them to every shard; the last one that applies them answers
    /// the client.
    fn handle_trace_order(&mut self, order: &TraceOrder, reply: TraceReply) {
        let next = match self.traces.changed(&order.model, &order.change) {
            Ok(next) => Arc::new(next),
            Err(error) => return reply.send(Err(error)),
        };
        self.traces.handle_replaced(&next);
        self.traces = Arc::clone(&next);
        let server_context = &self.context.server_context;
        if let Some(queue) = &server_context.traces.queue {
            // The traces of settings that were replaced go to their file.
            queue.records.wake();
        }
        let published = Arc::new(PublishedTraces::new(next, reply));
        for mailbox in &server_context.control_link.mailboxes {
            mailbox.push(ShardNews::Traces(Arc::clone(&published)));
        }
    }

    fn next_scan_at(&self) -> Option<Instant> {
        let settings = &self.context.settings;
        let is_polled = settings.control_mode == ControlMode::Poll && settings.repository_poll > Duration::ZERO;
        is_polled.then(|| clock::now() + settings.repository_poll)
    }

    /// Scans the repositories on a thread of its own: a slow file system must not delay signals or clients.
    fn start_scan(&mut self) {
        // The next scan is scheduled when this one has reported, so that two never overlap.
        self.scan_at = None;
        self.is_scanning = true;
        let context = Arc::clone(&self.context);
        let body = move || drop(context.messages.send(ControlMessage::Scanned(context.repositories.scan())));
        if let Err(error) = spawn("repository-scan".to_owned(), body) {
            log::error(&format!("cannot scan the model repositories: {error}"));
            self.is_scanning = false;
            self.scan_at = self.next_scan_at();
        }
    }

    /// Starts queued loads, up to `--model-load-thread-count` at a time. A load that waits for an
    /// order of its own model does not count: the load it waits for may be in the queue. Nor does
    /// one whose trial takes long.
    fn start_jobs(&mut self) {
        let waiting = self.order_waits.waiting_loads(|model| self.busy.contains_key(model));
        let beside = waiting.saturating_add(self.context.loader.slow_loads());
        while self.loads_running < self.context.settings.load_threads.saturating_add(beside) {
            let Some(job) = self.jobs.pop_front() else { return };
            self.loads_running += 1;
            let (context, name) = (Arc::clone(&self.context), job.name.clone());
            if let Err(error) = spawn(format!("load-{name}"), move || job.run(&context)) {
                self.handle_load_finished(FinishedLoad::without_model(name, Err(error.into())));
            }
        }
    }

    /// Publishes a change to every shard's mailbox: `added` has for each new version one handle per shard,
    /// `retired` are the versions to remove. `replies` are answered when all shards have applied it: a client
    /// that was told "loaded" then reaches the model on any shard.
    fn publish(
        &mut self,
        added: Vec<Vec<ModelHandle>>,
        retired: Vec<(String, VersionRecord)>,
        replies: Vec<ControlReply>,
    ) {
        self.show_cache();
        self.is_overview_due = false;
        self.change_count += 1;
        let number = self.change_count;
        let overview = Self::overview(&self.models);
        let removed: Vec<Arc<ServedModel>> = retired.iter().map(|(_, version)| Arc::clone(&version.served)).collect();
        let shards = self.context.server_context.control_link.mailboxes.len();
        self.pending.insert(number, PendingChange { left: shards, replies, stopped: removed.clone() });
        self.retiring.extend(retired.into_iter().map(|(name, version)| RetiringVersion::new(name, version, shards)));
        let mut by_shard: Vec<_> = added.into_iter().map(Vec::into_iter).collect();
        for mailbox in &self.context.server_context.control_link.mailboxes {
            // In the order of the mailboxes: an inline instance was made with that shard's threads.
            let added = by_shard.iter_mut().filter_map(Iterator::next).collect();
            let change = ModelChange { number, overview: Arc::clone(&overview), removed: removed.clone(), added };
            mailbox.push(ShardNews::Models(change));
        }
    }

    /// Answers a request when all shards have applied what was published so far. Nothing new is published for it.
    fn reply_when_applied(&mut self, reply: ControlReply) {
        match self.pending.last_entry() {
            Some(mut last) => last.get_mut().replies.push(reply),
            None => reply.send(Ok(Vec::new())),
        }
    }

    /// Sends the shards the current state of all models, without a change of the models themselves.
    fn publish_overview(&mut self) {
        self.publish(Vec::new(), Vec::new(), Vec::new());
    }

    /// Does so if one message has changed the state of any number of models.
    fn publish_due(&mut self) {
        if self.is_overview_due {
            self.publish_overview();
        }
    }

    /// Removes versions from those that serve. The index shows them as unloading until they are freed.
    fn retire_versions(model: &mut ModelRecord, name: &str, numbers: &[u64]) -> Vec<(String, VersionRecord)> {
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
