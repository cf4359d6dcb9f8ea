//! The server: loads the models, starts workers and shards, and turns the main thread into the control thread until a
//! signal ends the server. No inference request passes through here.

mod admin_socket;
pub mod doctor;
pub mod health;
pub mod key;
mod listeners;
pub mod show;
mod stand_in;
mod start_summary;
mod stop_signals;

use std::convert::Infallible;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::control::engines::model_services::ModelServices;
use crate::control::engines::{isolated_backend, isolated_engine, python};
use crate::control::loading::load_trial::LoadTrials;
use crate::control::loading::model_loader::ModelLoader;
use crate::control::loading::trial_process;
use crate::control::machine::process_memory::MemoryLimit;
use crate::control::machine::spawn::spawn;
use crate::control::machine::{cores, host_watch, memory_watch, pin_watch, process_memory, thread_watch};
use crate::control::outside::access_files::AccessFiles;
use crate::control::outside::notify::{ServiceNotifier, Watchdog};
use crate::control::outside::redis::RedisLink;
use crate::control::outside::shared_memory::SharedMemoryReceivers;
use crate::control::outside::trace::TraceThread;
use crate::control::outside::watched_files::FileWaker;
use crate::control::outside::{notify, redis, shared_memory};
use crate::control::repository::repositories::Repositories;
use crate::control::repository::uploaded_files;
use crate::control::serving::plan::{PlannedModel, ServerPlan, choose_default_model};
use crate::control::serving::rate_limit;
use crate::control::serving::threads::{EndedHook, FatalHook, ThreadHooks, WorkerGroup, start_shards};
use crate::control::thread::hand_over::Successor;
use crate::control::thread::initial_load::{InitialLoad, StartWatch};
use crate::control::thread::load_job::LoadContext;
use crate::control::thread::model_record::{ModelRecords, VersionRecord};
use crate::control::thread::{ControlMessage, ControlThread, ProcessSurroundings, initial_load};
use crate::crash;
use crate::crash::signal::CrashOutput;
use crate::error::Error;
use crate::limits::{END_MARGIN, WORKERS_END_TIMEOUT};
use crate::log::{self, LogTerminal, PlainTarget};
use crate::model::repository::index::StartProgress;
use crate::runtime::clock;
use crate::runtime::ring::spin::Spin;
use crate::server::listeners::Listeners;
use crate::server::stand_in::StandIn;
use crate::server::stop_signals::{StopSignals, StopStep};
use crate::settings::{Compat, ControlMode, LogFormat, Pinning, Settings, SpinTime, Supervision};
use crate::shard::mailbox::ControlSender;
use crate::shard::server_context::ServerContext;
use crate::shard::thread::ShardParts;

/// Time after which a second signal counts (`--second-signal-after-ms`): wrappers forward theirs in milliseconds.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_secs(1);

/// Serves until a signal or a failure ends the server. Returns the exit code for `main`. `terminal`
/// receives the log without a file, `purge` makes the allocator return free pages.
pub fn run(settings: &Settings, supervision: &Supervision, terminal: Option<LogTerminal>, purge: fn()) -> ExitCode {
    let inherited = listeners::inherit(supervision);
    // Held to the end: the last lines are written then.
    let guard = log::start_thread(settings.log, settings.log_file.as_deref(), terminal).map_err(Error::unavailable);
    let is_json = settings.log.format == LogFormat::Json;
    crash::signal::install(CrashOutput { file: settings.log_file.as_deref(), is_json });
    match guard.as_ref().map_err(Clone::clone).and_then(|_| serve(settings, supervision, inherited, purge)) {
        Ok(code) => code,
        Err(error) => {
            tell_failure(settings, &error);
            ExitCode::FAILURE
        }
    }
}

/// Reports once the reason that the server did not start: on standard error like tritonserver. A
/// log in a file has it too, and one in JSON has only lines of JSON.
fn tell_failure(settings: &Settings, error: &Error) {
    let has_file = settings.log_file.is_some();
    let is_json = !has_file && settings.log.error && settings.log.format == LogFormat::Json;
    if has_file || is_json {
        log::error(&format!("creating server: {error}"));
    }
    if !is_json {
        log::plain(PlainTarget::Error, &format!("error: creating server: {error}\n"));
    }
}

/// Ends the process without exit handlers, but for its log.
fn end_at_once(code: i32) -> ! {
    log::flush();
    exit(code)
}

/// Tries a load for a server that waits for it, and ends the process at once: without exit
/// handlers, in which an engine may spend a while.
pub fn try_load(settings: &Settings) -> ! {
    exit(trial_process::run(settings))
}

/// Runs the engine of an isolated model, and ends the process at once.
pub fn run_engine() -> ! {
    crash::signal::install(CrashOutput { file: None, is_json: false });
    exit(isolated_engine::run())
}

/// Runs a backend of Triton's in the process of its instance, and ends the process.
pub fn run_backend() -> ! {
    crash::signal::install(CrashOutput { file: None, is_json: false });
    exit(isolated_backend::run())
}

fn serve(
    settings: &Settings,
    supervision: &Supervision,
    inherited: std::io::Result<Vec<OwnedFd>>,
    purge: fn(),
) -> Result<ExitCode, Error> {
    let (messages, receiver) = mpsc::channel();
    let are_loaded = Arc::new(AtomicBool::new(false));
    let deadline = EndDeadline::new(settings.exit_timeout);
    // First of all: until the handlers are in place, a signal kills the process.
    let waker = FileWaker::default();
    forward_signals(settings, &messages, &are_loaded, &waker, deadline.clone())?;
    let program = std::env::current_exe();
    let notifier = ServiceNotifier::new(supervision.notify_socket.as_deref());
    notifier.tell("STATUS=Loading models");
    let began = clock::now();
    let (mut listeners, files, redis) = claim(settings, supervision, inherited)?;
    let mut settings = Arc::new(settings.clone());
    let loader = Arc::new(model_loader(&settings, &messages)?);
    let repositories = Arc::new(Repositories::open(&settings)?);
    let limiter = rate_limit::limiter(&settings);
    let start = Arc::new(StartProgress::default());
    let (owners, failure) = ((&*loader, &files), end_on_failure(&messages, &deadline));
    let stand_in = || StandIn::start(&settings, owners, listeners.listen_first()?, &start, &failure);
    let stand_in = settings.listens_first.then(stand_in).transpose()?;
    let found = |overview: &_| stand_in.iter().for_each(|stand_in| stand_in.show(overview));
    let watch = StartWatch { start: &start, found: &found };
    let initial = initial_load::load(&settings, &loader, &repositories, limiter.as_ref(), watch)?;
    let (but_failed, InitialLoad { loaded, models, .. }) = (initial.but_failed(), initial);
    choose_default_model(Arc::make_mut(&mut settings), &loaded)?;
    handle_loaded(&loader, &deadline, &are_loaded);
    let (shared_memory_client, receivers) = shared_memory::shared_memory_client(&settings).unzip();
    let sources = (loader.gpu_board(), &loader.services().metrics, loader.run_memory(), &files);
    let links = (shared_memory_client, redis, repositories.store_cells());
    let plan = ServerPlan::new(&settings, loaded, &control_sender(&messages), sources, links)?;
    let threads = describe_threads(&plan, &settings);
    let ServerPlan { server_context, planned, cores } = plan;
    start_watches(files, &waker, &settings, &server_context, purge);
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
    let (models, shards) = start_threads(&context, planned, models, &mut listeners, &failure)?;
    let loading_ended = clock::now();
    process_memory::trim();
    stand_in.into_iter().for_each(StandIn::end);
    server_context.lifecycle.start();
    log_ready(&listeners, &models, &context.settings, &but_failed, loading_ended.since(began), &threads);
    notify::write_ready_file(context.settings.ready_file.as_deref(), &listeners.describe(std::process::id()));
    // Before an older server learns of it, and ends: a supervisor must know this one by then.
    notifier.tell(&format!("READY=1\nSTATUS=Serving{but_failed} {threads}"));
    let surroundings = surroundings(notifier, supervision, program, &mut listeners, &deadline);
    let has_failed = ControlThread::new(Arc::new(context), receiver, models, surroundings).run();
    // A panic was logged when it happened.
    shards.into_iter().for_each(|shard| drop(shard.join()));
    traces.into_iter().for_each(TraceThread::end);
    server_context.redis.iter().for_each(|link| link.end());
    listeners.end(server_context.lifecycle.is_handed_over());
    end_workers(&ended, &loader, has_failed);
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Ends the server as SIGTERM does once standard input has ended, which it does with the process at its other side.
fn end_with_stdin(has_ended: &AtomicBool) {
    // The input is ignored; an error is an end too.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    log::info("standard input has ended, and the server with it (--exit-with-stdin)");
    has_ended.store(true, Ordering::SeqCst);
    let _ = signal_hook::low_level::raise(SIGTERM);
}

/// Claims the server's share of the machine and of other services. Before the models load, so that
/// a port in use, an unreadable certificate or a login that Redis refuses is reported at once.
fn claim(
    settings: &Settings,
    supervision: &Supervision,
    inherited: std::io::Result<Vec<OwnedFd>>,
) -> Result<(Listeners, AccessFiles, Option<RedisLink>), Error> {
    settings.warnings.iter().for_each(|warning| log::warning(warning));
    let no_paths = |why| Error::invalid(format!("failed to start Vertex AI service: {why}"));
    settings.foreign.vertex_ai.check().map_err(no_paths)?;
    let listeners = Listeners::claim(settings, supervision, inherited)?;
    let files = AccessFiles::load(settings)?;
    let redis = redis::start(settings)?;
    Ok((listeners, files, redis))
}

/// The first models are loaded: from now on a signal drains the server.
fn handle_loaded(loader: &Arc<ModelLoader>, deadline: &EndDeadline, are_loaded: &AtomicBool) {
    deadline.wait_for_finalizing(loader);
    are_loaded.store(true, Ordering::SeqCst);
    loader.handle_started();
}

/// Returns the shards' sender to the control thread.
fn control_sender(messages: &mpsc::Sender<ControlMessage>) -> ControlSender {
    let sender = messages.clone();
    // Sending fails only when the control thread has ended.
    Arc::new(move |event| drop(sender.send(ControlMessage::Shard(event))))
}

/// Returns the control thread's links to the process and its surroundings. An older server that
/// this one takes over from is told that this one serves. The path of the program is known from the
/// start, since its file may be replaced meanwhile.
fn surroundings(
    notifier: ServiceNotifier,
    supervision: &Supervision,
    program: std::io::Result<PathBuf>,
    listeners: &mut Listeners,
    deadline: &EndDeadline,
) -> ProcessSurroundings {
    listeners.tell_ready();
    let deadline = deadline.clone();
    ProcessSurroundings {
        notifier,
        watchdog: supervision.watchdog.map(|timeout| Watchdog::new(timeout, clock::now())),
        successor: Successor {
            // If the system does not show it, its name: a search finds it as the shell did.
            program: program.unwrap_or_else(|_| PathBuf::from("deuteron")),
            arguments: std::env::args_os().skip(1).collect(),
            sockets: listeners.take_copies(),
        },
        limit_end: Box::new(move || deadline.start(Duration::ZERO)),
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

/// Returns the loader of models: now, and while the server serves.
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

/// Ends the workers and the backends, the last to end.
fn end_workers(ended: &mpsc::Receiver<Infallible>, loader: &ModelLoader, has_failed: bool) {
    let have_ended = wait_for_workers(ended, loader);
    if have_ended {
        loader.finalize_backends();
    }
    log::info("ended");
    if !have_ended {
        // Without exit handlers: an engine's library must not be taken away from a thread that runs
        // it.
        end_at_once(i32::from(has_failed));
    }
}

/// Waits for the workers, which were told to end when the control thread dropped its models. One
/// that still computes is abandoned after a timeout: no client still waits for its answers. One
/// whose model finalizes has the time for that. Returns true if all have ended.
fn wait_for_workers(ended: &mpsc::Receiver<Infallible>, loader: &ModelLoader) -> bool {
    while ended.recv_timeout(WORKERS_END_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
        if !loader.is_finalizing() {
            log::warning("a model still computes or loads; the server ends without waiting for its thread");
            return false;
        }
    }
    true
}

/// Ends the process if its threads do not: a run may keep a shard or a worker forever.
#[derive(Clone)]
struct EndDeadline {
    /// `--exit-timeout-secs`.
    timeout: Duration,
    /// Returns true if a model finalizes, which takes a limited time; set once the models are
    /// loaded.
    is_finalizing: Arc<OnceLock<Box<dyn Fn() -> bool + Send + Sync>>>,
    is_started: Arc<AtomicBool>,
}

impl EndDeadline {
    fn new(timeout: Duration) -> Self {
        Self { timeout, is_finalizing: Arc::default(), is_started: Arc::default() }
    }

    /// Waits longer while a model finalizes.
    fn wait_for_finalizing(&self, loader: &Arc<ModelLoader>) {
        // Weak: the loader's leftovers are removed when the last owner drops it.
        let loader = Arc::downgrade(loader);
        let is_finalizing = move || loader.upgrade().is_some_and(|loader| loader.is_finalizing());
        let _ = self.is_finalizing.set(Box::new(is_finalizing));
    }

    /// Starts the thread that waits for the deadline of a drain that begins after `delay`. The process usually ends
    /// before. Only the first start counts.
    fn start(&self, delay: Duration) {
        if self.is_started.swap(true, Ordering::SeqCst) {
            return;
        }
        let deadline = self.clone();
        let body = move || {
            let end_at = clock::now() + delay + deadline.timeout + WORKERS_END_TIMEOUT + END_MARGIN;
            let is_finalizing = || deadline.is_finalizing.get().is_some_and(|is_finalizing| is_finalizing());
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

/// Starts the thread that forwards signals to the control thread. Until the models are loaded, a signal that ends the
/// server ends it at once: no client is served yet, and a model's own code may take for ever. So does a second one
/// later, after a grace period ([`StopSignals`]). The end of standard input counts as a first one with
/// `--exit-with-stdin`. SIGHUP reloads, and has the files of TLS read again; where the log goes to a terminal, that was
/// closed, and the server drains.
fn forward_signals(
    settings: &Settings,
    messages: &mpsc::Sender<ControlMessage>,
    are_loaded: &Arc<AtomicBool>,
    waker: &FileWaker,
    deadline: EndDeadline,
) -> Result<(), Error> {
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2]);
    let mut signals = signals.map_err(|error| Error::internal(error.to_string()))?;
    let has_input_ended = Arc::new(AtomicBool::new(false));
    // It raises one of them.
    if settings.exits_with_stdin {
        let has_ended = Arc::clone(&has_input_ended);
        spawn("stdin".to_owned(), move || end_with_stdin(&has_ended))?;
    }
    let (messages, are_loaded, delay) = (messages.clone(), Arc::clone(are_loaded), settings.drain_delay);
    let waker = Arc::clone(waker);
    let has_terminal = settings.log_file.is_none() && std::io::stderr().is_terminal();
    let again_after = second_signal_after(settings);
    let body = move || {
        let mut stop_signals = StopSignals::new(again_after);
        for signal in signals.forever() {
            let message = match signal {
                SIGUSR1 => ControlMessage::StateAsked,
                SIGUSR2 => ControlMessage::HandOverOrdered,
                SIGHUP if !has_terminal => {
                    log::reopen();
                    waker.get().into_iter().for_each(Thread::unpark);
                    ControlMessage::Reload
                }
                // Like a shell's code for an end by a signal, which the first process of a
                // container could not have otherwise.
                _ if !are_loaded.load(Ordering::SeqCst) => {
                    log::info(&format!("ended by signal {signal} before the models were loaded"));
                    end_at_once(128 + signal);
                }
                _ => {
                    let step = match has_input_ended.swap(false, Ordering::SeqCst) {
                        true => stop_signals.handle_end_of_input(clock::now()),
                        false => stop_signals.handle_signal(clock::now()),
                    };
                    match step {
                        StopStep::Drain => deadline.start(delay),
                        StopStep::End => {
                            log::warning(&format!("ended at once by a second signal ({signal})"));
                            end_at_once(128 + signal);
                        }
                        StopStep::Ignored(left) => log::info(&ignored_text(signal, left)),
                    }
                    ControlMessage::Signal(signal)
                }
            };
            if messages.send(message).is_err() {
                return;
            }
        }
    };
    spawn("signals".to_owned(), body).map(drop)
}

/// The grace period after the first signal that ends the server; `None` where the others are ignored, as by tritonserver.
fn second_signal_after(settings: &Settings) -> Option<Duration> {
    settings.second_signal_after.or_else(|| (settings.compat == Compat::Protocol).then_some(SECOND_SIGNAL_AFTER))
}

/// Says that a signal changed nothing, and what would.
fn ignored_text(signal: i32, left: Option<Duration>) -> String {
    match left {
        None => format!(
            "signal {signal} is ignored, as by tritonserver: the server ends already (--second-signal-after-ms=0 lets a \
             second one end it at once)"
        ),
        Some(left) => format!(
            "signal {signal} is ignored: the server ends already, and wrappers forward a signal that its process group \
             has received too; one more, {} ms from now or later, ends it at once (--second-signal-after-ms)",
            left.as_millis()
        ),
    }
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
    listeners: &mut Listeners,
    failure: &FatalHook,
) -> Result<(ModelRecords, Vec<JoinHandle<()>>), Error> {
    watch_host(&context.settings, &context.loader, &context.server_context);
    let mut shards: Vec<Vec<_>> = context.server_context.control_link.mailboxes.iter().map(|_| Vec::new()).collect();
    let placements = planned.iter().flat_map(|planned| &planned.placements);
    let worker_cores: Vec<_> = placements.flat_map(|placement| placement.cores.iter().copied()).collect();
    for PlannedModel { served, producers, placements, took, files_size } in planned {
        let worker_group = WorkerGroup::start(&served, &placements, &context.thread_hooks)?;
        for (shard, producer) in shards.iter_mut().zip(producers) {
            shard.push((Arc::clone(&served), producer));
        }
        let model = models.entry(served.spec.qualified_name()).or_default();
        let number = served.version;
        let mark = model.mark.versions.iter().find(|(have, _)| *have == number).map_or(0, |(_, mark)| *mark);
        let cores = placements.iter().map(|placement| placement.computes_on().to_vec()).collect();
        model.shared = Some(model.mark.shared);
        let version = VersionRecord { served, worker_group, cores, mark, took, files_size, uploaded_files: None };
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

/// Returns the hook for a shard that fails: the server drains the other shards and ends, as after a
/// signal, but with an error.
fn end_on_failure(messages: &mpsc::Sender<ControlMessage>, deadline: &EndDeadline) -> FatalHook {
    let (messages, deadline) = (messages.clone(), deadline.clone());
    Arc::new(move |text: &str| {
        log::error(text);
        deadline.start(Duration::ZERO);
        drop(messages.send(ControlMessage::Failed));
    })
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

fn log_ready(
    listeners: &Listeners,
    models: &ModelRecords,
    settings: &Settings,
    but_failed: &str,
    loading: Duration,
    threads: &str,
) {
    listeners.log();
    if settings.model_cache.size_max.is_some() {
        log::info("models are loaded when they are asked for (--model-cache-bytes-max)");
    } else if models.values().all(|model| model.serving.is_empty()) {
        log::warning("no model is served yet");
    }
    let all = clock::now().since(crate::time::Instant::ZERO).as_millis();
    let loading = loading.as_millis();
    log::info(&format!("ready{but_failed} after {all} ms, of which the models took {loading} ms to load; {threads}"));
    // A person at a terminal sees the addresses and the models at a glance.
    if log::terminal().is_some() && settings.log.info && settings.log.format != LogFormat::Json {
        let text = start_summary::text(&listeners.addresses(), settings.has_console(), models);
        log::plain(PlainTarget::Error, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_any_thread_reaches_the_control_thread() {
        let (messages, receiver) = mpsc::channel();
        let failure = end_on_failure(&messages, &EndDeadline::new(Duration::from_secs(3_600)));
        let thread = std::thread::spawn(move || failure("a thread of the tests fails, as it should"));
        assert!(matches!(receiver.recv(), Ok(ControlMessage::Failed)));
        thread.join().unwrap();
    }
}
