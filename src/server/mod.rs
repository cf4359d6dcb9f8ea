//! The program: loads the models, starts workers and shards, and becomes the control thread, which
//! has models loaded and unloaded until a signal ends the server. No request passes here.

pub mod show;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::initial_load::InitialLoad;
use crate::control::load::ModelLoader;
use crate::control::load_job::LoadContext;
use crate::control::model_record::{ModelRecords, VersionRecord};
use crate::control::plan::{PlannedModel, ServerPlan};
use crate::control::repositories::Repositories;
use crate::control::spawn::spawn;
use crate::control::threads::{EndedHook, FatalHook, ThreadHooks, WorkerGroup, start_shards};
use crate::control::{
    ControlMessage, ControlThread, cores, initial_load, load, shared_memory, trim_memory, uploaded_files,
};
use crate::error::Error;
use crate::limits::WORKERS_END_TIMEOUT;
use crate::log;
use crate::runtime::{clock, socket as sockets};
use crate::settings::{ControlMode, Settings};
use crate::shard::Addresses;
use crate::shard::mailbox::ControlSender;
use crate::shard::thread::ShardParts;

/// Serves until a signal ends it; what `main` returns.
pub fn run(settings: &Settings) -> ExitCode {
    log::start(settings.log);
    match serve(settings) {
        Ok(code) => code,
        Err(error) => {
            log::error(&format!("creating server: {error}"));
            let _ = writeln!(io::stderr(), "error: creating server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: &Settings) -> Result<ExitCode, Error> {
    settings.warnings.iter().for_each(|warning| log::warning(warning));
    // Before any thread starts, so that all inherit nothing but this thread's way of taking them.
    let signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| Error::internal(error.to_string()))?;
    let (events, heard) = mpsc::channel();
    pass_on(signals, &events)?;
    let began = clock::now();
    // Two servers on one port are told before the models take their time.
    claim_addresses(settings)?;
    let settings = Arc::new(settings.clone());
    if settings.control_mode == ControlMode::Explicit {
        match uploaded_files::sweep() {
            0 => {}
            count => log::info(&format!("removed the files of {count} loads that another server left behind")),
        }
    }
    let loader = Arc::new(ModelLoader::new(&settings)?);
    let repositories = Arc::new(Repositories::open(&settings)?);
    let limiter = load::limiter(&settings);
    let InitialLoad { loaded, models } = initial_load::load(&settings, &loader, &repositories, limiter.as_ref())?;
    let loading_ended = clock::now();
    let addresses = claim_addresses(&settings)?;
    let told = events.clone();
    // Nobody listens any more where the server has ended.
    let control: ControlSender = Arc::new(move |what| drop(told.send(ControlMessage::Told(what))));
    let (shared_memory_client, ends) = shared_memory::shared_memory_client(&settings).unzip();
    let plan = ServerPlan::new(&settings, loaded, &control, loader.gpus(), shared_memory_client)?;
    let threads = describe(&plan);
    let ServerPlan { server_context, planned, cores } = plan;
    if let Some(ends) = ends {
        let loader = Arc::clone(&loader);
        shared_memory::begin(ends, &server_context, Box::new(move || loader.devices().clone()))?;
    }
    let (thread_hooks, ended) = thread_hooks(&events);
    let tools = LoadContext {
        settings,
        loader,
        repositories,
        limiter,
        server_context: Arc::clone(&server_context),
        cores,
        thread_hooks,
        events: events.clone(),
    };
    let (models, shards) = begin(&tools, planned, models, addresses)?;
    trim_memory::give_back();
    server_context.lifecycle.start();
    announce(addresses, &models);
    log::info(&format!(
        "ready after {} ms, of which the models took {} ms to load; {threads}",
        clock::now().since(crate::time::Instant::ZERO).as_millis(),
        loading_ended.since(began).as_millis(),
    ));
    let has_failed = ControlThread::new(Arc::new(tools), heard, models).run();
    for shard in shards {
        // What became of it was told when it happened.
        let _ = shard.join();
    }
    // Those who serve were told to end when the control thread let go of them. One that computes on
    // is left behind: its answers have no reader.
    if ended.recv_timeout(WORKERS_END_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
        log::warning("a model still computes, or loads; its thread is left behind");
    }
    log::info("ended");
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Hands signals on to the control thread.
fn pass_on(mut signals: Signals, events: &mpsc::Sender<ControlMessage>) -> Result<(), Error> {
    let events = events.clone();
    let body = move || {
        for signal in signals.forever() {
            if events.send(ControlMessage::Signal(signal)).is_err() {
                return;
            }
        }
    };
    spawn("signals".to_owned(), body).map(drop)
}

fn thread_hooks(events: &mpsc::Sender<ControlMessage>) -> (ThreadHooks, mpsc::Receiver<std::convert::Infallible>) {
    let (running, ended) = mpsc::channel();
    let events = events.clone();
    (ThreadHooks { running, ended: Arc::new(move || drop(events.send(ControlMessage::WorkerEnded))) }, ended)
}

/// Starts workers, then shards; returns when all of them serve.
fn begin(
    tools: &LoadContext,
    planned: Vec<PlannedModel>,
    mut models: ModelRecords,
    addresses: Addresses,
) -> Result<(ModelRecords, Vec<JoinHandle<()>>), Error> {
    let mut shards: Vec<Vec<_>> = tools.server_context.control_link.mailboxes.iter().map(|_| Vec::new()).collect();
    for PlannedModel { served, producers, places, took } in planned {
        let worker_group = WorkerGroup::begin(&served, &places, &tools.thread_hooks)?;
        for (shard, producer) in shards.iter_mut().zip(producers) {
            shard.push((Arc::clone(&served), producer));
        }
        let model = models.entry(served.spec.name.clone()).or_default();
        let number = served.version;
        let mark = model.mark.versions.iter().find(|(have, _)| *have == number).map_or(0, |(_, mark)| *mark);
        let cores = places.into_iter().map(|place| place.cores).collect();
        model.shared = Some(model.mark.shared);
        model.serving.insert(number, VersionRecord { served, worker_group, cores, mark, took, uploaded_files: None });
    }
    for version in models.values().flat_map(|model| model.serving.values()) {
        version.worker_group.wait()?;
    }
    let overview = ControlThread::overview(&models);
    let parts = shards.into_iter().enumerate().map(|(index, models)| ShardParts {
        index,
        core: tools.cores.shards.get(index).copied(),
        server_context: Arc::clone(&tools.server_context),
        models,
        overview: Arc::clone(&overview),
        addresses: addresses.of_shard(index),
    });
    let events = tools.events.clone();
    let ended: EndedHook = Arc::new(move || drop(events.send(ControlMessage::ShardEnded)));
    let shards = start_shards(parts.collect(), &ended, &end_on_failure(&tools.events))?;
    Ok((models, shards))
}

/// What a shard does that cannot go on: the server drains the others and ends, as after a signal,
/// with an error.
fn end_on_failure(events: &mpsc::Sender<ControlMessage>) -> FatalHook {
    let events = events.clone();
    Arc::new(move |text: &str| {
        log::error(text);
        drop(events.send(ControlMessage::Failed));
    })
}

fn describe(plan: &ServerPlan) -> String {
    let shards = format!("{} shards on cores {}", plan.cores.shards.len(), cores::text(&plan.cores.shards));
    let places = || plan.planned.iter().flat_map(|planned| &planned.places);
    let workers: Vec<_> = places().flat_map(|place| place.cores.iter().copied()).collect();
    if workers.is_empty() {
        return format!("{shards}, no workers");
    }
    format!("{shards}, {} workers on cores {}", places().count(), cores::text(&workers))
}

/// The addresses to listen on, found free, with ports chosen where any would do.
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

fn announce(addresses: Addresses, models: &ModelRecords) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_any_thread_reaches_the_control_thread() {
        let (events, heard) = mpsc::channel();
        let failure = end_on_failure(&events);
        let thread = std::thread::spawn(move || failure("a thread of the tests fails, as it should"));
        assert!(matches!(heard.recv(), Ok(ControlMessage::Failed)));
        thread.join().unwrap();
    }
}
