//! The server: loads the models, starts workers and shards, and turns the main thread into the control thread until a
//! signal ends the server. No inference request passes through here.

pub mod doctor;
pub mod show;
mod stand_in;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::control::certificates::{CertificateWaker, Certificates};
use crate::control::initial_load::{InitialLoad, StartWatch};
use crate::control::load_job::LoadContext;
use crate::control::load_trial::LoadTrials;
use crate::control::model_loader::ModelLoader;
use crate::control::model_record::{ModelRecords, VersionRecord};
use crate::control::model_services::ModelServices;
use crate::control::plan::{PlannedModel, ServerPlan};
use crate::control::repositories::Repositories;
use crate::control::shared_memory::SharedMemoryReceivers;
use crate::control::spawn::spawn;
use crate::control::threads::{EndedHook, FatalHook, ThreadHooks, WorkerGroup, start_shards};
use crate::control::trace::TraceThread;
use crate::control::{
    ControlMessage, ControlThread, cores, host_watch, initial_load, isolated_engine, process_memory, python,
    rate_limit, shared_memory, trial_process, uploaded_files,
};
use crate::error::Error;
use crate::limits::{END_MARGIN, WORKERS_END_TIMEOUT};
use crate::log::{self, PlainTarget};
use crate::model::repository::index::StartProgress;
use crate::runtime::{clock, socket as sockets};
use crate::server::stand_in::StandIn;
use crate::settings::{ControlMode, Settings};
use crate::shard::Addresses;
use crate::shard::mailbox::ControlSender;
use crate::shard::server_context::ServerContext;
use crate::shard::thread::ShardParts;

/// Serves until a signal or a failure ends the server. Returns the exit code for `main`.
pub fn run(settings: &Settings) -> ExitCode {
    // Held to the end: what was said last is written then.
    let guard = log::start_thread(settings.log, settings.log_file.as_deref()).map_err(Error::unavailable);
    match guard.as_ref().map_err(Clone::clone).and_then(|_| serve(settings)) {
        Ok(code) => code,
        Err(error) => {
            log::error(&format!("creating server: {error}"));
            log::plain(PlainTarget::Error, &format!("error: creating server: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// Ends the process without what a process does at its end, but for its log.
fn end_at_once(code: i32) -> ! {
    log::flush();
    exit(code)
}

/// Tries a load for a server that waits for it, and ends the process at once: without what a process does at its end,
/// which an engine may spend a while on.
pub fn try_load(settings: &Settings) -> ! {
    exit(trial_process::run(settings))
}

/// Runs the engine of an isolated model, and ends the process at once.
pub fn run_engine() -> ! {
    exit(isolated_engine::run())
}

fn serve(settings: &Settings) -> Result<ExitCode, Error> {
    settings.warnings.iter().for_each(|warning| log::warning(warning));
    let (messages, receiver) = mpsc::channel();
    let are_loaded = Arc::new(AtomicBool::new(false));
    let deadline = EndDeadline { timeout: settings.exit_timeout, is_finalizing: Arc::default() };
    // First of all: until the handlers are in place, a signal kills the process.
    let hangup = (settings.log_file.is_some() || settings.tls.is_any_on()).then(CertificateWaker::default);
    forward_signals(hangup.clone(), &messages, &are_loaded, deadline.clone())?;
    let began = clock::now();
    // Tried before the models load, so that a port in use is reported at once.
    let (addresses, certificates) = (claim_addresses(settings)?, Certificates::load(&settings.tls)?);
    let settings = Arc::new(settings.clone());
    let loader = Arc::new(model_loader(&settings, &messages)?);
    let repositories = Arc::new(Repositories::open(&settings)?);
    let limiter = rate_limit::limiter(&settings);
    let start = Arc::new(StartProgress::default());
    let stand_in =
        || StandIn::start(&settings, (&loader, &certificates), addresses, &start, &end_on_failure(&messages));
    let stand_in = settings.listens_first.then(stand_in).transpose()?;
    let found = |overview: &_| stand_in.iter().for_each(|stand_in| stand_in.show(overview));
    let watch = StartWatch { start: &start, found: &found };
    let initial = initial_load::load(&settings, &loader, &repositories, limiter.as_ref(), watch)?;
    let but_failed = initial.but_failed();
    let InitialLoad { loaded, models, .. } = initial;
    deadline.wait_for_finalizing(&loader);
    are_loaded.store(true, Ordering::SeqCst);
    loader.handle_started();
    let addresses = if stand_in.is_some() { addresses } else { claim_addresses(&settings)? };
    let sender = messages.clone();
    // Sending fails only when the control thread has ended.
    let control: ControlSender = Arc::new(move |event| drop(sender.send(ControlMessage::Shard(event))));
    let (shared_memory_client, receivers) = shared_memory::shared_memory_client(&settings).unzip();
    let sources = (loader.gpu_board(), &loader.services().metrics, loader.run_memory(), &certificates);
    let plan = ServerPlan::new(&settings, loaded, &control, sources, shared_memory_client)?;
    let threads = describe_threads(&plan);
    let ServerPlan { server_context, planned, cores } = plan;
    loader.services().gateway.connect(&server_context);
    certificates.watch(&server_context, &hangup.unwrap_or_default());
    let traces = start_owners(receivers, &loader, &server_context, &settings)?;
    let (thread_hooks, ended) = thread_hooks(&messages);
    let context = LoadContext {
        settings,
        loader: Arc::clone(&loader),
        repositories,
        limiter,
        server_context: Arc::clone(&server_context),
        cores,
        thread_hooks,
        messages: messages.clone(),
    };
    let (models, shards) = start_threads(&context, planned, models, addresses)?;
    let loading_ended = clock::now();
    process_memory::trim();
    stand_in.into_iter().for_each(StandIn::end);
    server_context.lifecycle.start();
    log_addresses(addresses, &models);
    log_ready(&but_failed, loading_ended.since(began), &threads);
    let has_failed = ControlThread::new(Arc::new(context), receiver, models).run();
    // A panic was logged when it happened.
    shards.into_iter().for_each(|shard| drop(shard.join()));
    traces.into_iter().for_each(TraceThread::end);
    let have_ended = wait_for_workers(&ended, &loader);
    log::info("ended");
    if !have_ended {
        // Without what a process does at its end: an engine's library must not be taken away from a thread that runs
        // it.
        end_at_once(i32::from(has_failed));
    }
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Starts the threads that own what shards only use: the regions of shared memory, where they are allowed, and the files
/// of traces or the connection to their collector.
fn start_owners(
    receivers: Option<SharedMemoryReceivers>,
    loader: &Arc<ModelLoader>,
    server_context: &Arc<ServerContext>,
    settings: &Settings,
) -> Result<Option<TraceThread>, Error> {
    if let Some(receivers) = receivers {
        let loader = Arc::clone(loader);
        shared_memory::start(receivers, server_context, Box::new(move || loader.gpus().clone()))?;
    }
    TraceThread::start(&server_context.traces, &settings.trace)
}

/// Starts to look at the machine, where metrics are served that show it.
fn watch_host(settings: &Settings, loader: &Arc<ModelLoader>, server_context: &ServerContext) {
    if settings.metrics.is_some() && settings.metrics_config.shows_cpu {
        // Weak: what the loader leaves behind is removed when the last owner drops it.
        let loader = Arc::downgrade(loader);
        let pinned_used = move || loader.upgrade().map_or(0, |loader| loader.pinned_used() as u64);
        host_watch::start(&server_context.metrics.host, settings.metrics_config.interval, pinned_used);
    }
}

/// What loads the models: now, and while the server serves.
fn model_loader(settings: &Arc<Settings>, messages: &mpsc::Sender<ControlMessage>) -> Result<ModelLoader, Error> {
    python::remove_stale();
    if settings.control_mode == ControlMode::Explicit {
        match uploaded_files::remove_stale() {
            0 => {}
            count => log::info(&format!("removed the files of {count} loads that another server left behind")),
        }
    }
    let messages = messages.clone();
    let trials = LoadTrials::new(settings, Box::new(move || drop(messages.send(ControlMessage::LoadSlow))));
    let loader = ModelLoader::new(settings, ModelServices::new())?.with_trials(trials);
    loader.run_watcher().start()?;
    Ok(loader)
}

/// Waits for the workers, which were told to end when the control thread dropped its models. One that still computes is
/// abandoned after a timeout: nobody waits for its answers any more. One whose model finalizes has the time for that.
/// Returns whether all have ended.
fn wait_for_workers(ended: &mpsc::Receiver<Infallible>, loader: &ModelLoader) -> bool {
    while ended.recv_timeout(WORKERS_END_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
        if !loader.is_finalizing() {
            log::warning("a model still computes or loads; the server ends without waiting for its thread");
            return false;
        }
    }
    true
}

/// Ends the process where its threads do not: a run may keep a shard or a worker for ever.
#[derive(Clone)]
struct EndDeadline {
    /// `--exit-timeout-secs`.
    timeout: Duration,
    /// Whether a model finalizes, which takes a limited time; set once the models are loaded.
    is_finalizing: Arc<OnceLock<Box<dyn Fn() -> bool + Send + Sync>>>,
}

impl EndDeadline {
    /// Waits longer while a model finalizes.
    fn wait_for_finalizing(&self, loader: &Arc<ModelLoader>) {
        // Weak: what the loader leaves behind is removed when the last owner drops it.
        let loader = Arc::downgrade(loader);
        let is_finalizing = move || loader.upgrade().is_some_and(|loader| loader.is_finalizing());
        let _ = self.is_finalizing.set(Box::new(is_finalizing));
    }

    /// Starts the thread that waits for the deadline. The process usually ends before.
    fn start(self) {
        let body = move || {
            let end_at = clock::now() + self.timeout + WORKERS_END_TIMEOUT + END_MARGIN;
            let is_finalizing = || self.is_finalizing.get().is_some_and(|is_finalizing| is_finalizing());
            while clock::now() < end_at || is_finalizing() {
                std::thread::park_timeout(end_at.since(clock::now()).max(END_MARGIN));
            }
            log::error("a shard still runs a model --exit-timeout-secs after the signal; the server ends without it");
            end_at_once(1);
        };
        if let Err(error) = spawn("end-deadline".to_owned(), body) {
            log::warning(&format!("the server may not end in --exit-timeout-secs: {error}"));
        }
    }
}

/// Starts the thread that forwards signals to the control thread. Until the models are loaded, a signal ends the server
/// at once: nobody is served yet, and a model's own code may take for ever. SIGHUP opens the log's file again, and reads
/// the files of TLS; without either it ends the process, as a terminal that is closed wants.
fn forward_signals(
    hangup: Option<CertificateWaker>,
    messages: &mpsc::Sender<ControlMessage>,
    are_loaded: &Arc<AtomicBool>,
    deadline: EndDeadline,
) -> Result<(), Error> {
    let reopening = hangup.is_some().then_some(SIGHUP);
    let signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(reopening));
    let mut signals = signals.map_err(|error| Error::internal(error.to_string()))?;
    let (messages, are_loaded) = (messages.clone(), Arc::clone(are_loaded));
    let mut deadline = Some(deadline);
    let body = move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                log::reopen();
                hangup.iter().filter_map(|waker| waker.get()).for_each(Thread::unpark);
                continue;
            }
            if !are_loaded.load(Ordering::SeqCst) {
                log::info(&format!("ended by signal {signal} before the models were loaded"));
                // As a shell names an end by a signal, which the first process of a container could not have otherwise.
                end_at_once(128 + signal);
            }
            if let Some(deadline) = deadline.take() {
                deadline.start();
            }
            if messages.send(ControlMessage::Signal(signal)).is_err() {
                return;
            }
        }
    };
    spawn("signals".to_owned(), body).map(drop)
}

/// The hooks for the workers, and the receiver whose channel closes when the last worker has ended.
fn thread_hooks(messages: &mpsc::Sender<ControlMessage>) -> (ThreadHooks, mpsc::Receiver<Infallible>) {
    let (running, ended) = mpsc::channel();
    let messages = messages.clone();
    (ThreadHooks { running, ended: Arc::new(move || drop(messages.send(ControlMessage::WorkerEnded))) }, ended)
}

/// Starts workers, then shards, and returns when all of them serve. Shards last: they listen, and a request that
/// arrives must find its worker running.
fn start_threads(
    context: &LoadContext,
    planned: Vec<PlannedModel>,
    mut models: ModelRecords,
    addresses: Addresses,
) -> Result<(ModelRecords, Vec<JoinHandle<()>>), Error> {
    watch_host(&context.settings, &context.loader, &context.server_context);
    let mut shards: Vec<Vec<_>> = context.server_context.control_link.mailboxes.iter().map(|_| Vec::new()).collect();
    for PlannedModel { served, producers, placements, took } in planned {
        let worker_group = WorkerGroup::start(&served, &placements, &context.thread_hooks)?;
        for (shard, producer) in shards.iter_mut().zip(producers) {
            shard.push((Arc::clone(&served), producer));
        }
        let model = models.entry(served.spec.name.clone()).or_default();
        let number = served.version;
        let mark = model.mark.versions.iter().find(|(have, _)| *have == number).map_or(0, |(_, mark)| *mark);
        let cores = placements.into_iter().map(|placement| placement.cores).collect();
        model.shared = Some(model.mark.shared);
        model.serving.insert(number, VersionRecord { served, worker_group, cores, mark, took, uploaded_files: None });
    }
    for version in models.values_mut().flat_map(|model| model.serving.values_mut()) {
        version.took += version.worker_group.wait()?;
    }
    let overview = ControlThread::overview(&models);
    let parts = shards.into_iter().enumerate().map(|(index, models)| ShardParts {
        index,
        core: context.cores.shards.get(index).copied(),
        server_context: Arc::clone(&context.server_context),
        models,
        overview: Arc::clone(&overview),
        addresses: addresses.of_shard(index),
    });
    let messages = context.messages.clone();
    let ended: EndedHook = Arc::new(move || drop(messages.send(ControlMessage::ShardEnded)));
    let shards = start_shards(parts.collect(), &ended, &end_on_failure(&context.messages))?;
    Ok((models, shards))
}

/// The hook for a shard that fails: the server drains the other shards and ends, as after a signal, but with an error.
fn end_on_failure(messages: &mpsc::Sender<ControlMessage>) -> FatalHook {
    let messages = messages.clone();
    Arc::new(move |text: &str| {
        log::error(text);
        drop(messages.send(ControlMessage::Failed));
    })
}

fn describe_threads(plan: &ServerPlan) -> String {
    let shards = format!("{} shards on cores {}", plan.cores.shards.len(), cores::text(&plan.cores.shards));
    let placements = || plan.planned.iter().flat_map(|planned| &planned.placements);
    let workers: Vec<_> = placements().flat_map(|placement| placement.cores.iter().copied()).collect();
    if workers.is_empty() {
        return format!("{shards}, no workers");
    }
    format!("{shards}, {} workers on cores {}", placements().count(), cores::text(&workers))
}

/// Checks that the addresses are free, and chooses the ports given as 0. The sockets are closed again: each shard opens
/// its own listener later.
fn claim_addresses(settings: &Settings) -> Result<Addresses, Error> {
    let claim = |endpoint: Option<(std::net::IpAddr, u16)>| -> Result<Option<SocketAddr>, Error> {
        let Some((address, port)) = endpoint else { return Ok(None) };
        let address = SocketAddr::new(address, port);
        let claimed = sockets::probe(address).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Error::unavailable(format!("Socket '{address}' already in use")),
            _ => Error::unavailable(format!("cannot listen on '{address}': {error}")),
        });
        claimed.map(Some)
    };
    Ok(Addresses { http: claim(settings.http)?, grpc: claim(settings.grpc)?, metrics: claim(settings.metrics)? })
}

fn log_addresses(addresses: Addresses, models: &ModelRecords) {
    if let Some(address) = addresses.grpc {
        log::info(&format!("Started GRPCInferenceService at {address}"));
    }
    if let Some(address) = addresses.http {
        log::info(&format!("Started HTTPService at {address}"));
    }
    if let Some(address) = addresses.metrics {
        log::info(&format!("Started Metrics Service at {address}"));
    }
    if models.values().all(|model| model.serving.is_empty()) {
        log::warning("no model is served yet");
    }
}

fn log_ready(but_failed: &str, loading: Duration, threads: &str) {
    let all = clock::now().since(crate::time::Instant::ZERO).as_millis();
    let loading = loading.as_millis();
    log::info(&format!("ready{but_failed} after {all} ms, of which the models took {loading} ms to load; {threads}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_any_thread_reaches_the_control_thread() {
        let (messages, receiver) = mpsc::channel();
        let failure = end_on_failure(&messages);
        let thread = std::thread::spawn(move || failure("a thread of the tests fails, as it should"));
        assert!(matches!(receiver.recv(), Ok(ControlMessage::Failed)));
        thread.join().unwrap();
    }
}
