//! The program: loads the models, starts workers and shards, waits for a signal, drains and ends.
//! Runs on the control thread; no request passes here.

pub mod beneath;
pub mod engine;
pub mod library;
pub mod load;
pub mod log;
pub mod placement;
pub mod threads;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{Io, Settings};
use crate::error::Error;
use crate::metrics::ShardCells;
use crate::scheduler::Policy;
use crate::server::load::Loaded;
use crate::server::placement::Choice;
use crate::server::threads::Fleet;
use crate::shard::feed::{Bounds, Feed, Lane};
use crate::shard::lifecycle::Lifecycle;
use crate::shard::models::{Placement, Served};
use crate::shard::runtime::IoPath;
use crate::shard::{Addresses, World, clock, io as sockets};

/// Serves until a signal ends it; what `main` returns.
pub fn run(settings: &Settings) -> ExitCode {
    log::start(settings.log);
    match serve(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error(&format!("creating server: {error}"));
            let _ = writeln!(io::stderr(), "error: creating server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(settings: &Settings) -> Result<(), Error> {
    // Before any thread starts, so that all inherit nothing but this thread's way of taking them.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| Error::internal(error.to_string()))?;
    let began = clock::now();
    let models = load::load_all(settings)?;
    let loaded = clock::now();
    let addresses = claim_addresses(settings)?;
    let plan = Plan::new(settings, models);
    let mut fleet = Fleet::start(&plan.world, plan.lanes, addresses, &plan.seats)?;
    plan.world.lifecycle.start();
    announce(addresses, &plan.world);
    log::info(&format!(
        "ready after {} ms, of which the models took {} ms to load; {} shards, {} workers",
        clock::now().since(crate::time::Instant::ZERO).as_millis(),
        loaded.since(began).as_millis(),
        plan.world.shard_cells.len(),
        plan.seats.len(),
    ));
    if let Some(signal) = signals.forever().next() {
        // Nobody may be reading any more; the drain goes on.
        let _ = writeln!(io::stdout(), "Signal ({signal}) received.");
        log::info(&format!("draining after signal {signal}"));
    }
    plan.world.lifecycle.drain();
    fleet.join();
    log::info("ended");
    Ok(())
}

/// What will run where.
struct Plan {
    world: Arc<World>,
    /// For each shard, its lane of each model that runs on workers, by the model's place.
    lanes: Vec<Vec<Option<Lane>>>,
    /// A place for each worker thread: its model's place, and its seat there.
    seats: Vec<Seat>,
}

/// The place of one worker thread.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The model's place among the served.
    pub model: usize,
    /// The instance's place among the model's.
    pub index: usize,
}

impl Plan {
    fn new(settings: &Settings, models: Vec<Loaded>) -> Self {
        let workers = models.iter().map(Loaded::worker_count).sum();
        let shards = settings.shards.unwrap_or_else(|| default_shards(threads::cores().len(), workers));
        let bounds = Bounds { requests: settings.queue_requests_max, bytes: settings.queue_bytes_max };
        let mut lanes: Vec<Vec<Option<Lane>>> = (0..shards).map(|_| Vec::new()).collect();
        let (mut served, mut seats) = (Vec::new(), Vec::new());
        for (model, loaded) in models.into_iter().enumerate() {
            let instances = loaded.worker_count();
            seats.extend((0..instances).map(|index| Seat { model, index }));
            let placement = match &loaded.choice {
                Choice::Inline(_) => {
                    lanes.iter_mut().for_each(|lanes| lanes.push(None));
                    Placement::Inline
                }
                Choice::Worker(_) => {
                    let policy = Policy { refuses_late: settings.refuses_late, ..loaded.policy() };
                    let (feed, ends) = Feed::new(policy, bounds, shards, instances);
                    lanes.iter_mut().zip(ends).for_each(|(lanes, end)| lanes.push(Some(end)));
                    Placement::Worker(feed)
                }
            };
            served.push(Arc::new(Served::new(loaded.spec, loaded.version, loaded.model, placement, shards)));
        }
        Self { world: Arc::new(world(settings, served, shards)), lanes, seats }
    }
}

fn world(settings: &Settings, served: Vec<Arc<Served>>, shards: usize) -> World {
    World {
        id: settings.id.clone(),
        served,
        shard_cells: (0..shards).map(|_| Arc::new(ShardCells::default())).collect(),
        lifecycle: Lifecycle::new(shards),
        strict_readiness: settings.strict_readiness,
        http_input_size_max: settings.http_input_size_max,
        grpc_message_size_max: settings.grpc_message_size_max,
        connections_max: settings.connections_max,
        http2_streams_max: settings.http2_streams_max,
        http2_resets_max: settings.http2_resets_max,
        http2_control_frames_max: settings.http2_control_frames_max,
        exit_timeout: settings.exit_timeout,
        io: match settings.io {
            Io::Auto => IoPath::Auto,
            Io::Glommio => IoPath::Glommio,
            Io::Ring => IoPath::Ring,
        },
        spin: settings.spin,
        warn: log::warning,
    }
}

/// A shard on every core where nothing else runs. Models that run on workers compute much longer
/// than a shard works for them: they get three quarters of the cores, which their instances share.
fn default_shards(cores: usize, workers: usize) -> usize {
    if workers == 0 { cores.max(1) } else { cores.saturating_sub(workers).min(cores / 4).max(1) }
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
    fn shards_take_all_cores_or_leave_most_of_them_to_the_workers() {
        for (cores, workers, want) in
            [(1, 0, 1), (2, 0, 2), (64, 0, 64), (2, 1, 1), (2, 5, 1), (4, 1, 1), (8, 2, 2), (64, 4, 16), (64, 60, 4)]
        {
            assert_eq!(default_shards(cores, workers), want, "{cores} cores, {workers} workers");
        }
    }
}
