//! The fifth state of the server: its workers and shards run, and so do the threads beside them. The shards listen, and
//! the server is not ready yet.

use std::convert::Infallible;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::control::loading::model_loader::ModelLoader;
use crate::control::machine::process_memory::MemoryLimit;
use crate::control::machine::{cores, host_watch, memory_watch, pin_watch, thread_watch};
use crate::control::outside::access_files::AccessFiles;
use crate::control::outside::shared_memory::{self, SharedMemoryReceivers};
use crate::control::outside::trace::TraceThread;
use crate::control::outside::watched_files::FileWaker;
use crate::control::serving::plan::{PlannedModel, ServerPlan};
use crate::control::serving::threads::{EndedHook, FatalHook, WorkerGroup, start_shards};
use crate::control::thread::load_job::LoadContext;
use crate::control::thread::model_record::{ModelRecords, VersionRecord};
use crate::control::thread::{ControlMessage, ControlThread};
use crate::error::Error;
use crate::log;
use crate::runtime::ring::spin::Spin;
use crate::server::begun::{BegunServer, end_on_failure};
use crate::server::listeners::Listeners;
use crate::server::planned::PlannedServer;
use crate::server::stand_in::StandIn;
use crate::settings::{Pinning, Settings, SpinTime};
use crate::shard::server_context::ServerContext;
use crate::shard::thread::ShardParts;

/// The server with all its threads, before clients learn of it.
pub(super) struct StartedServer {
    /// The threads of the shards.
    pub(super) shards: Vec<JoinHandle<()>>,
    /// The records of all models, with the versions that serve.
    pub(super) models: ModelRecords,
    /// The part of the control thread that loads share.
    pub(super) context: LoadContext,
    /// Closes when the last worker has ended.
    pub(super) ended: mpsc::Receiver<Infallible>,
    /// The thread that writes traces, if tracing can be on.
    pub(super) traces: Option<TraceThread>,
    pub(super) server_context: Arc<ServerContext>,
    /// The shards and workers with their cores, for the log.
    pub(super) threads: String,
    pub(super) but_failed: String,
    pub(super) stand_in: Option<StandIn>,
    pub(super) loader: Arc<ModelLoader>,
    pub(super) listeners: Listeners,
    pub(super) begun: BegunServer,
}

impl PlannedServer {
    /// Starts the threads, the shards last. `purge` makes the allocator return free pages.
    ///
    /// # Errors
    /// `Unavailable` if a thread is refused or another process listens on an address, and the error of the first instance
    /// that cannot be made.
    pub(super) fn start(mut self, purge: fn()) -> Result<StartedServer, Error> {
        let threads = describe_threads(&self.plan, &self.settings);
        let ServerPlan { server_context, planned, cores } = self.plan;
        start_watches(self.files, &self.begun.waker, &self.settings, &server_context, purge);
        let traces = start_owners(self.receivers, &self.loader, &server_context, &self.settings)?;
        let (thread_hooks, ended) = self.begun.thread_hooks();
        self.cache_library.map(|cache| cache.start(&thread_hooks.running)).transpose()?;
        let context = LoadContext {
            settings: self.settings,
            loader: Arc::clone(&self.loader),
            repositories: self.repositories,
            limiter: self.limiter,
            server_context: Arc::clone(&server_context),
            cores,
            thread_hooks,
            messages: self.begun.messages.clone(),
        };
        let failure = end_on_failure(&self.begun.messages, &self.begun.deadline);
        let (models, shards) = start_threads(&context, planned, self.models, &mut self.listeners, &failure)?;
        Ok(StartedServer {
            shards,
            models,
            context,
            ended,
            traces,
            server_context,
            threads,
            but_failed: self.but_failed,
            stand_in: self.stand_in,
            loader: self.loader,
            listeners: self.listeners,
            begun: self.begun,
        })
    }
}

/// Starts the threads that own what shards only use: the regions of shared memory, if they are
/// allowed, and the files of traces or the connection to their collector.
fn start_owners(
    receivers: Option<SharedMemoryReceivers>,
    loader: &Arc<ModelLoader>,
    server_context: &Arc<ServerContext>,
    settings: &Settings,
) -> Result<Option<TraceThread>, Error> {
    loader.services().gateway.connect(server_context);
    if let Some(receivers) = receivers {
        let loader = Arc::clone(loader);
        shared_memory::start(receivers, server_context, Box::new(move || loader.gpus().clone()))?;
    }
    TraceThread::start(&server_context.traces, &settings.trace)
}

/// Starts the watches of outside changes: the files of TLS and of API keys, and the memory of the
/// process.
fn start_watches(
    files: AccessFiles,
    waker: &FileWaker,
    settings: &Settings,
    server_context: &Arc<ServerContext>,
    purge: fn(),
) {
    files.watch(server_context, waker);
    watch_memory(settings, server_context, purge);
}

/// Logs the memory limit of the process, and starts the watch of its use.
fn watch_memory(settings: &Settings, server_context: &ServerContext, purge: fn()) {
    let limit = MemoryLimit::new(settings);
    log::info(&format!("memory: the process may have {}", limit.text()));
    memory_watch::start(&limit, &server_context.memory, purge);
}

/// Starts the thread that reads the machine's figures, if metrics with them are served.
fn watch_host(settings: &Settings, loader: &Arc<ModelLoader>, server_context: &ServerContext) {
    if settings.metrics.is_some() && settings.metrics_config.shows_cpu {
        // Weak: the loader's leftovers are removed when the last owner drops it.
        let loader = Arc::downgrade(loader);
        let pinned_used = move || loader.upgrade().map_or(0, |loader| loader.pinned_used() as u64);
        host_watch::start(&server_context.metrics.host, settings.metrics_config.interval, pinned_used);
    }
    let loader = Arc::downgrade(loader);
    let processes = move || loader.upgrade().map(|loader| loader.model_processes()).unwrap_or_default();
    thread_watch::start(&server_context.metrics.host, processes);
    if pin_watch::is_wanted(settings) {
        pin_watch::start(&server_context.metrics.host);
    }
}

/// Starts workers, then shards, and returns when all of them serve. Shards last: they listen, and a request that
/// arrives must find its worker running.
fn start_threads(
    context: &LoadContext,
    planned: Vec<PlannedModel>,
    mut models: ModelRecords,
    listeners: &mut Listeners,
    failure: &FatalHook,
) -> Result<(ModelRecords, Vec<JoinHandle<()>>), Error> {
    watch_host(&context.settings, &context.loader, &context.server_context);
    let mut shards: Vec<Vec<_>> = context.server_context.control_link.mailboxes.iter().map(|_| Vec::new()).collect();
    let placements = planned.iter().flat_map(|planned| &planned.placements);
    let worker_cores: Vec<_> = placements.flat_map(|placement| placement.cores.iter().copied()).collect();
    for PlannedModel { served, producers, placements, took, files_size, basis } in planned {
        let worker_group = WorkerGroup::start(&served, &placements, &context.thread_hooks)?;
        for (shard, producer) in shards.iter_mut().zip(producers) {
            shard.push((Arc::clone(&served), producer));
        }
        let model = models.entry(served.spec.qualified_name()).or_default();
        let number = served.version;
        let mark = model.mark.versions.iter().find(|(have, _)| *have == number).map_or(0, |(_, mark)| *mark);
        model.shared = Some(model.mark.shared);
        let version = VersionRecord { served, worker_group, mark, took, files_size, basis, uploaded_files: None };
        model.serving.insert(number, version);
    }
    for version in models.values_mut().flat_map(|model| model.serving.values_mut()) {
        version.took += version.worker_group.wait()?;
    }
    let overview = ControlThread::overview(&models);
    let sockets = listeners.listen(shards.len())?;
    let parts = shards.into_iter().zip(sockets).enumerate().map(|(index, (models, sockets))| ShardParts {
        index,
        core: context.cores.shards.get(index).copied().filter(|_| context.cores.is_pinned),
        spin: spin(context, index, &worker_cores),
        server_context: Arc::clone(&context.server_context),
        models,
        overview: Arc::clone(&overview),
        sockets,
    });
    let messages = context.messages.clone();
    let ended: EndedHook = Arc::new(move || drop(messages.send(ControlMessage::ShardEnded)));
    let shards = start_shards(parts.collect(), &ended, failure)?;
    Ok((models, shards))
}

/// Returns the time for which a shard looks for work before it sleeps.
fn spin(context: &LoadContext, shard: usize, worker_cores: &[usize]) -> Spin {
    match context.settings.spin {
        SpinTime::Fixed(time) => Spin::Fixed(time),
        SpinTime::Auto => {
            let available = cores::available().len();
            let may_spin = context.cores.may_spin(shard, available, worker_cores.iter().copied());
            if may_spin { Spin::Auto } else { Spin::Off }
        }
    }
}

fn describe_threads(plan: &ServerPlan, settings: &Settings) -> String {
    let why_not = if settings.pinning == Pinning::Off { "--pin" } else { "the control group limits the CPU time" };
    let shards = match plan.cores.is_pinned {
        true => format!("{} shards on cores {}", plan.cores.shards.len(), cores::text(&plan.cores.shards)),
        false => format!("{} shards, not pinned: {why_not}", plan.cores.shards.len()),
    };
    let placements = || plan.planned.iter().flat_map(|planned| &planned.placements);
    let workers: Vec<_> = placements().flat_map(|placement| placement.cores.iter().copied()).collect();
    if workers.is_empty() {
        return format!("{shards}, no workers");
    }
    if !plan.cores.is_pinned {
        return format!("{shards}, {} workers", placements().count());
    }
    format!("{shards}, {} workers on cores {}", placements().count(), cores::text(&workers))
}
