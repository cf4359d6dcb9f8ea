//! The last state of the server: it serves, and its clients, its supervisor and the log know. The main thread is the
//! control thread until a signal or a failure ends the server, and then ends the other threads.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::control::loading::model_loader::ModelLoader;
use crate::control::machine::process_memory;
use crate::control::outside::notify::{self, Watchdog};
use crate::control::outside::trace::TraceThread;
use crate::control::thread::hand_over::Successor;
use crate::control::thread::model_record::ModelRecords;
use crate::control::thread::{ControlThread, ProcessSurroundings};
use crate::limits::WORKERS_END_TIMEOUT;
use crate::log::{self, PlainTarget};
use crate::runtime::clock;
use crate::server::end_at_once;
use crate::server::listeners::Listeners;
use crate::server::stand_in::StandIn;
use crate::server::start_summary;
use crate::server::started::StartedServer;
use crate::settings::{LogFormat, Settings};
use crate::shard::server_context::ServerContext;

/// The server while it serves.
pub(super) struct ReadyServer {
    control: ControlThread,
    shards: Vec<JoinHandle<()>>,
    traces: Option<TraceThread>,
    ended: mpsc::Receiver<Infallible>,
    server_context: Arc<ServerContext>,
    loader: Arc<ModelLoader>,
    listeners: Listeners,
}

impl StartedServer {
    /// Lets clients in: ends the stand-in, and tells all that wait for the server that it is ready.
    pub(super) fn serve(mut self) -> ReadyServer {
        let loading_ended = clock::now();
        process_memory::trim();
        self.stand_in.into_iter().for_each(StandIn::end);
        self.server_context.lifecycle.start();
        let (settings, but_failed, threads) = (&self.context.settings, &self.but_failed, &self.threads);
        let loading = loading_ended.since(self.begun.began);
        log_ready(&self.listeners, &self.models, settings, but_failed, loading, threads);
        notify::write_ready_file(settings.ready_file.as_deref(), &self.listeners.describe(std::process::id()));
        // Before an older server learns of it, and ends: a supervisor must know this one by then.
        self.begun.notifier.tell(&format!("READY=1\nSTATUS=Serving{but_failed} {threads}"));
        self.listeners.tell_ready();
        let deadline = self.begun.deadline;
        let surroundings = ProcessSurroundings {
            notifier: self.begun.notifier,
            watchdog: self.begun.watchdog.map(|timeout| Watchdog::new(timeout, clock::now())),
            successor: Successor {
                // If the system does not show it, its name: a search finds it as the shell did.
                program: self.begun.program.unwrap_or_else(|_| PathBuf::from("deuteron")),
                arguments: std::env::args_os().skip(1).collect(),
                sockets: self.listeners.take_copies(),
            },
            limit_end: Box::new(move || deadline.start(Duration::ZERO)),
        };
        ReadyServer {
            control: ControlThread::new(Arc::new(self.context), self.begun.receiver, self.models, surroundings),
            shards: self.shards,
            traces: self.traces,
            ended: self.ended,
            server_context: self.server_context,
            loader: self.loader,
            listeners: self.listeners,
        }
    }
}

impl ReadyServer {
    /// Serves until a signal or a failure ends the server. Returns the exit code for `main`.
    pub(super) fn run(mut self) -> ExitCode {
        let has_failed = self.control.run();
        // Its models go with it, which tells their workers to end.
        drop(self.control);
        // A panic was logged when it happened.
        self.shards.into_iter().for_each(|shard| drop(shard.join()));
        self.traces.into_iter().for_each(TraceThread::end);
        self.server_context.shared_cache.iter().for_each(|link| link.end());
        self.listeners.end(self.server_context.lifecycle.is_handed_over());
        end_workers(&self.ended, &self.loader, has_failed);
        if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
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
            log::warning(
                "a model still computes or loads, or the response cache does not return; the server ends without waiting for its thread",
            );
            return false;
        }
    }
    true
}
