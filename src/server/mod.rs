//! The program: loads the models, starts workers and shards, waits for a signal, drains and ends.
//! Runs on the control thread; no request passes here.

pub mod beneath;
pub mod cores;
pub mod engine;
pub mod library;
pub mod load;
pub mod log;
pub mod memory;
pub mod placement;
pub mod plan;
pub mod threads;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::Settings;
use crate::error::Error;
use crate::server::plan::Plan;
use crate::server::threads::{Failure, Fleet};
use crate::shard::{Addresses, World, clock, io as sockets};

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
    // Before any thread starts, so that all inherit nothing but this thread's way of taking them.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| Error::internal(error.to_string()))?;
    let began = clock::now();
    let (models, pools) = load::load_all(settings)?;
    let loaded = clock::now();
    let addresses = claim_addresses(settings)?;
    let plan = Plan::new(settings, models, pools)?;
    let world = Arc::clone(&plan.world);
    let threads = describe(&plan);
    let failed = Arc::new(AtomicBool::new(false));
    let mut fleet = Fleet::start(plan, addresses, end_on_failure(&signals, &failed))?;
    memory::give_back();
    world.lifecycle.start();
    announce(addresses, &world);
    log::info(&format!(
        "ready after {} ms, of which the models took {} ms to load; {threads}",
        clock::now().since(crate::time::Instant::ZERO).as_millis(),
        loaded.since(began).as_millis(),
    ));
    if let Some(signal) = signals.forever().next() {
        // Nobody may be reading any more; the drain goes on.
        let _ = writeln!(io::stdout(), "Signal ({signal}) received.");
        log::info(&format!("draining after signal {signal}"));
    }
    world.lifecycle.drain();
    fleet.join();
    log::info("ended");
    Ok(if failed.load(Ordering::SeqCst) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What a shard does that cannot go on: the server drains the others and ends, as after a signal,
/// with an error.
fn end_on_failure(signals: &Signals, failed: &Arc<AtomicBool>) -> Failure {
    let (handle, failed) = (signals.handle(), Arc::clone(failed));
    Arc::new(move |text: &str| {
        log::error(text);
        failed.store(true, Ordering::SeqCst);
        handle.close();
    })
}

fn describe(plan: &Plan) -> String {
    let shards = format!("{} shards on cores {}", plan.cores.shards.len(), cores::text(&plan.cores.shards));
    if plan.workers.is_empty() {
        return format!("{shards}, no workers");
    }
    let workers: Vec<_> = plan.workers.iter().flat_map(|worker| worker.cores.iter().copied()).collect();
    format!("{shards}, {} workers on cores {}", plan.workers.len(), cores::text(&workers))
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

fn announce(addresses: Addresses, world: &World) {
    if let Some(address) = addresses.grpc {
        log::info(&format!("Started GRPCInferenceService at {address}"));
    }
    if let Some(address) = addresses.http {
        log::info(&format!("Started HTTPService at {address}"));
    }
    if let Some(address) = addresses.metrics {
        log::info(&format!("Started Metrics Service at {address}"));
    }
    if world.served.is_empty() {
        log::warning("no model is served: the repositories hold none that loads");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_any_thread_ends_the_wait_for_a_signal() {
        let mut signals = Signals::new([signal_hook::consts::SIGUSR2]).unwrap();
        let failed = Arc::new(AtomicBool::new(false));
        let failure = end_on_failure(&signals, &failed);
        let thread = std::thread::spawn(move || failure("a thread of the tests fails, as it should"));
        assert_eq!(signals.forever().next(), None);
        thread.join().unwrap();
        assert!(failed.load(Ordering::SeqCst));
    }
}
