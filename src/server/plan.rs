//! What will run where: a seat for each instance on a worker, the resources that it takes, and the
//! cores of all threads. Made once, when the models are loaded and before any thread starts.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{Io, Settings};
use crate::error::Error;
use crate::metrics::ShardCells;
use crate::model::InstanceGroup;
use crate::scheduler::Policy;
use crate::scheduler::rate::Pools;
use crate::server::cores::{self, Cores, Wishes};
use crate::server::load::Loaded;
use crate::server::log;
use crate::server::placement::Site;
use crate::shard::World;
use crate::shard::feed::{Bounds, Feed, Lane, Seat};
use crate::shard::lifecycle::Lifecycle;
use crate::shard::limiter::Limiter;
use crate::shard::models::{Placement, Served};
use crate::shard::runtime::IoPath;

/// What will run where.
pub struct Plan {
    /// What all threads share.
    pub world: Arc<World>,
    /// For each shard, its lane of each model that runs on workers, by the model's place.
    pub lanes: Vec<Vec<Option<Lane>>>,
    /// The place of each worker thread.
    pub workers: Vec<WorkerPlace>,
    /// Which cores are whose.
    pub cores: Cores,
}

/// The place of one worker thread.
#[derive(Clone, Debug)]
pub struct WorkerPlace {
    /// The model's place among the served.
    pub model: usize,
    /// The instance's seat among the model's.
    pub seat: usize,
    /// The cores of its threads.
    pub cores: Vec<usize>,
    /// The cores that it shares out with others.
    pub shared: Vec<usize>,
}

impl Plan {
    /// Plans for models and the resources that they share.
    pub fn new(settings: &Settings, models: Vec<Loaded>, pools: Pools) -> Result<Self, Error> {
        warn_of_unknown_policies(settings, &models);
        let cores = Cores::new(&cores::available(), &wishes(settings, &models))?;
        let workers = places(settings, &models, &cores);
        let shards = cores.shards.len();
        let seats: Vec<Vec<Arc<Seat>>> = models.iter().map(seats).collect();
        let limiter = settings.is_rate_limited.then(|| Arc::new(limiter(pools, &seats)));
        let bounds = Bounds { requests: settings.queue_requests_max, bytes: settings.queue_bytes_max };
        let mut lanes: Vec<Vec<Option<Lane>>> = (0..shards).map(|_| Vec::new()).collect();
        let mut served = Vec::with_capacity(models.len());
        for (loaded, seats) in models.into_iter().zip(seats) {
            let placement = match loaded.choice.site {
                Site::Inline => {
                    lanes.iter_mut().for_each(|lanes| lanes.push(None));
                    Placement::Inline
                }
                Site::Worker => {
                    let policy = Policy { refuses_late: settings.refuses_late, ..loaded.policy() };
                    let sequences = loaded.sequence_policy().map(|policy| (loaded.spec.name.clone(), policy));
                    let (feed, ends) = Feed::with_seats(policy, bounds, shards, seats, limiter.clone(), sequences);
                    lanes.iter_mut().zip(ends).for_each(|(lanes, end)| lanes.push(Some(end)));
                    Placement::Worker(feed)
                }
            };
            let run = loaded.choice.run;
            let model = Served::new(loaded.spec, loaded.version, loaded.model, placement, shards);
            served.push(Arc::new(model.measured(run)));
        }
        Ok(Self { world: Arc::new(world(settings, served, shards)), lanes, workers, cores })
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

/// The seats of a model's instances, in the order of [`instances`].
fn seats(loaded: &Loaded) -> Vec<Arc<Seat>> {
    let mut rate_ids = loaded.rate_ids.clone();
    let seat = |(group, name): (&InstanceGroup, String)| {
        let seat = Seat::new(name);
        if group.is_passive {
            return seat.passive();
        }
        match rate_ids.next() {
            Some(id) => seat.limited(id),
            None => seat,
        }
    };
    instances(loaded).map(seat).map(Arc::new).collect()
}

fn limiter(pools: Pools, seats: &[Vec<Arc<Seat>>]) -> Limiter {
    let limited = seats.iter().flatten().filter_map(|seat| Some((seat.rate_id()?, Arc::clone(seat))));
    let by_id: BTreeMap<usize, Arc<Seat>> = limited.collect();
    Limiter::new(pools.into_rate(), by_id.into_values().collect())
}

/// The instances of a model that have a worker thread, with their names.
fn instances(loaded: &Loaded) -> impl Iterator<Item = (&InstanceGroup, String)> {
    loaded.worker_groups().flat_map(|group| group.instance_names().map(move |name| (group, name)))
}

fn policy<'a>(settings: &'a Settings, group: &InstanceGroup) -> Option<&'a Vec<usize>> {
    settings.host_policies.get(&group.host_policy)
}

fn wishes(settings: &Settings, models: &[Loaded]) -> Wishes {
    let groups = || models.iter().flat_map(Loaded::worker_groups);
    let named: BTreeMap<_, _> =
        groups().filter_map(|group| Some((group.host_policy.clone(), policy(settings, group)?.clone()))).collect();
    let free = groups().filter(|group| policy(settings, group).is_none());
    Wishes {
        shards: settings.shards,
        worker_cores: settings.worker_cores.clone(),
        policy_cores: named.into_iter().collect(),
        workers: free.map(|group| usize::try_from(group.count).unwrap_or(usize::MAX)).fold(0, usize::saturating_add),
    }
}

/// Those who follow one host policy share its cores, all others share the workers' cores.
fn places(settings: &Settings, models: &[Loaded], cores: &Cores) -> Vec<WorkerPlace> {
    let key = |group: &InstanceGroup| policy(settings, group).map(|_| group.host_policy.clone());
    let mut counts: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for (group, _) in models.iter().flat_map(instances) {
        *counts.entry(key(group)).or_default() += 1;
    }
    let mut dealt: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let mut places = Vec::new();
    for (model, loaded) in models.iter().enumerate() {
        for (seat, (group, _)) in instances(loaded).enumerate() {
            let key = key(group);
            let count = counts.get(&key).copied().unwrap_or(1);
            let index = dealt.entry(key).or_default();
            let all = policy(settings, group).unwrap_or(&cores.workers);
            places.push(WorkerPlace { model, seat, cores: cores::share(all, *index, count), shared: all.clone() });
            *index += 1;
        }
    }
    places
}

/// Triton runs them anywhere and says nothing.
fn warn_of_unknown_policies(settings: &Settings, models: &[Loaded]) {
    for loaded in models {
        for group in &loaded.spec.instance_groups {
            let is_default = matches!(group.host_policy.as_str(), "cpu" | "model");
            if !is_default && policy(settings, group).is_none() {
                let (name, policy) = (&loaded.spec.name, &group.host_policy);
                log::warning(&format!("'{name}' names the host policy '{policy}', which no --host-policy describes"));
            }
        }
    }
}
