//! What will run where: a parking for each instance on a worker, the resources that it takes, and the
//! cores of all threads. Made when the models are loaded and before any thread starts, and for each
//! model version that comes later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::control::cores::{self, CorePlan, CoreRequest};
use crate::control::load::LoadedVersion;
use crate::control::placement::InstanceSite;
use crate::control::trim_memory;
use crate::error::Error;
use crate::limits::RECEIVE_MEMORY_PART;
use crate::log;
use crate::metrics::{GpuBoard, ShardCells};
use crate::model::{InstanceGroup, ModelSpec};
use crate::queue::model_queue::ModelQueue;
use crate::queue::parking::Parking;
use crate::queue::queue_producer::QueueProducer;
use crate::queue::rate_limiter::RateRegistration;
use crate::queue::semaphore::Semaphore;
use crate::queue::served_model::{Placement, ServedModel};
use crate::runtime::executor::IoPath;
use crate::scheduler::{Policy, QueueBounds};
use crate::settings::{ControlMode, Io, Settings};
use crate::shard::ServerContext;
use crate::shard::control_request::ControlRequests;
use crate::shard::lifecycle::Lifecycle;
use crate::shard::mailbox::{ControlSender, ShardMailbox};
use crate::shard::receive_budget::ProcessReceiveBudget;
use crate::shard::shared_memory::SharedMemoryClient;

/// What will run where, from the start.
pub struct ServerPlan {
    /// What all threads share.
    pub server_context: Arc<ServerContext>,
    /// The model versions.
    pub planned: Vec<PlannedModel>,
    /// Which cores are whose.
    pub cores: CorePlan,
}

/// A model version with a way for each shard and a place for each worker.
pub struct PlannedModel {
    /// The model version.
    pub served: Arc<ServedModel>,
    /// For each shard, its producer; none where the model runs inside it.
    pub producers: Vec<Option<QueueProducer>>,
    /// The places of its worker threads.
    pub places: Vec<WorkerPlacement>,
    /// How long its load took.
    pub took: Duration,
}

/// The place of one worker thread.
#[derive(Clone, Debug)]
pub struct WorkerPlacement {
    /// The instance's parking among the model's.
    pub parking: usize,
    /// The cores of its threads.
    pub cores: Vec<usize>,
    /// The cores that it shares out with others.
    pub shared: Vec<usize>,
    /// The GPU of its instance, where it is on one.
    pub gpu: Option<u32>,
}

impl ServerPlan {
    /// Plans for models.
    pub fn new(
        settings: &Settings,
        models: Vec<LoadedVersion>,
        tell: &ControlSender,
        gpus: &Arc<GpuBoard>,
        regions: Option<SharedMemoryClient>,
    ) -> Result<Self, Error> {
        models.iter().for_each(|loaded| warn_of_unknown_policies(settings, loaded));
        let cores = CorePlan::new(&cores::available(), &core_request(settings, &models))?;
        let places = places(settings, &models, &cores);
        let shards = cores.shards.len();
        let planned = models.into_iter().zip(places).map(|(loaded, places)| plan(settings, loaded, shards, places));
        let planned = planned.collect();
        Ok(Self {
            server_context: Arc::new(ServerContext { regions, ..server_context(settings, shards, tell, gpus) }),
            planned,
            cores,
        })
    }
}

impl PlannedModel {
    /// Plans for a model version that is loaded while others serve. Its workers go where the
    /// fewest are: `taken` are the cores of each worker there is.
    pub fn later(
        settings: &Settings,
        loaded: LoadedVersion,
        cores: &CorePlan,
        taken: &[Vec<usize>],
    ) -> Result<Self, Error> {
        warn_of_unknown_policies(settings, &loaded);
        let groups = || instances(&loaded).map(|(group, ..)| policy(settings, group));
        let (available, free) = (cores::available(), groups().filter(Option::is_none).count());
        let mut least = cores::least_taken(&cores.workers, taken, free).into_iter();
        let mut places = Vec::new();
        let of_policy = groups().filter(Option::is_some).count();
        for (parking, (group, _, gpu)) in instances(&loaded).enumerate() {
            places.push(match policy(settings, group) {
                Some(all) => {
                    cores::check(&format!("the host policy of '{}'", loaded.spec.name), all, &available)?;
                    WorkerPlacement { parking, cores: cores::share(all, parking, of_policy), shared: all.clone(), gpu }
                }
                None => {
                    let own = least.next().unwrap_or_else(|| cores.workers.clone());
                    WorkerPlacement { parking, cores: own, shared: cores.workers.clone(), gpu }
                }
            });
        }
        Ok(plan(settings, loaded, cores.shards.len(), places))
    }
}

fn plan(settings: &Settings, loaded: LoadedVersion, shards: usize, places: Vec<WorkerPlacement>) -> PlannedModel {
    let bounds = QueueBounds { requests: settings.queue_requests_max, bytes: settings.queue_bytes_max };
    let parkings = parkings(&loaded);
    let (placement, producers) = match loaded.choice.site {
        InstanceSite::Ensemble => (Placement::Ensemble(permits(&loaded.spec)), (0..shards).map(|_| None).collect()),
        InstanceSite::Inline => (Placement::Inline, (0..shards).map(|_| None).collect()),
        InstanceSite::Worker => {
            let policy = Policy { refuses_late: settings.refuses_late, ..loaded.policy() };
            let sequences = loaded.sequence_policy().map(|policy| (loaded.spec.name.clone(), policy));
            let (model_queue, producers) =
                ModelQueue::with_parkings(policy, bounds, shards, parkings, loaded.registration, sequences);
            (Placement::Worker(model_queue), producers.into_iter().map(Some).collect())
        }
    };
    let (run, took) = (loaded.choice.run, loaded.took);
    let served = ServedModel::new(loaded.spec, loaded.version, loaded.model, placement, shards);
    PlannedModel { served: Arc::new(served.measured(run)), producers, places, took }
}

/// The permits of each step of an ensemble, where their number is bounded.
fn permits(spec: &ModelSpec) -> Arc<[Arc<Semaphore>]> {
    let bounded = spec.ensemble.iter().filter(|ensemble| ensemble.in_flight_max > 0);
    let of_step = |most: u32| Arc::new(Semaphore::new(most));
    bounded.flat_map(|ensemble| ensemble.steps.iter().map(move |_| of_step(ensemble.in_flight_max))).collect()
}

/// Bytes of memory for requests that come in.
fn receive_memory(settings: &Settings) -> usize {
    settings.receive_memory_bytes_max.unwrap_or_else(|| trim_memory::limit() / RECEIVE_MEMORY_PART)
}

fn server_context(settings: &Settings, shards: usize, tell: &ControlSender, gpus: &Arc<GpuBoard>) -> ServerContext {
    ServerContext {
        id: settings.id.clone(),
        shard_cells: (0..shards).map(|_| Arc::new(ShardCells::default())).collect(),
        gpus: Arc::clone(gpus),
        lifecycle: Lifecycle::new(shards),
        mailboxes: (0..shards).map(|_| ShardMailbox::default()).collect(),
        tell: Arc::clone(tell),
        orders: ControlRequests::default(),
        regions: None,
        is_controlled: settings.control_mode == ControlMode::Explicit,
        strict_readiness: settings.strict_readiness,
        receive_budget: Arc::new(ProcessReceiveBudget::new(receive_memory(settings))),
        http_input_size_max: settings.http_input_size_max,
        grpc_message_size_max: settings.grpc_message_size_max,
        connections_max: settings.connections_max,
        http2_streams_max: settings.http2_streams_max,
        http2_resets_max: settings.http2_resets_max,
        http2_control_frames_max: settings.http2_control_frames_max,
        cache_size: settings.cache_size,
        exit_timeout: settings.exit_timeout,
        io: match settings.io {
            Io::Auto => IoPath::Auto,
            Io::Epoll => IoPath::Epoll,
            Io::Glommio => IoPath::Glommio,
            Io::Ring => IoPath::Ring,
        },
        spin: settings.spin,
        tells_timing: settings.tells_timing,
        warn: log::warning,
    }
}

/// The parkings of a model's instances, in the order of [`instances`].
fn parkings(loaded: &LoadedVersion) -> Vec<Arc<Parking>> {
    let mut rate_ids = loaded.registration.iter().flat_map(RateRegistration::ids);
    let parking = |(group, name, _): (&InstanceGroup, String, Option<u32>)| {
        let parking = Parking::new(name);
        if group.is_passive {
            return parking.passive();
        }
        match rate_ids.next() {
            Some(id) => parking.limited(id),
            None => parking,
        }
    };
    instances(loaded).map(parking).map(Arc::new).collect()
}

/// The instances of a model that have a worker thread, with their names and GPUs.
fn instances(loaded: &LoadedVersion) -> impl Iterator<Item = (&InstanceGroup, String, Option<u32>)> {
    loaded.worker_groups().flat_map(|group| group.instances().map(move |(name, gpu)| (group, name, gpu)))
}

fn policy<'a>(settings: &'a Settings, group: &InstanceGroup) -> Option<&'a Vec<usize>> {
    settings.host_policies.get(&group.host_policy)
}

fn core_request(settings: &Settings, models: &[LoadedVersion]) -> CoreRequest {
    let groups = || models.iter().flat_map(LoadedVersion::worker_groups);
    let named: BTreeMap<_, _> =
        groups().filter_map(|group| Some((group.host_policy.clone(), policy(settings, group)?.clone()))).collect();
    let free = groups().filter(|group| policy(settings, group).is_none());
    CoreRequest {
        shards: settings.shards,
        worker_cores: settings.worker_cores.clone(),
        policy_cores: named.into_iter().collect(),
        workers: free
            .map(|group| usize::try_from(group.instance_count()).unwrap_or(usize::MAX))
            .fold(0, usize::saturating_add),
    }
}

/// Of the workers of each model. Those who follow one host policy share its cores, all others
/// share the workers' cores.
fn places(settings: &Settings, models: &[LoadedVersion], cores: &CorePlan) -> Vec<Vec<WorkerPlacement>> {
    let key = |group: &InstanceGroup| policy(settings, group).map(|_| group.host_policy.clone());
    let mut counts: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for (group, ..) in models.iter().flat_map(instances) {
        *counts.entry(key(group)).or_default() += 1;
    }
    let mut dealt: BTreeMap<Option<String>, usize> = BTreeMap::new();
    let mut place = |(parking, (group, _, gpu)): (usize, (&InstanceGroup, String, Option<u32>))| {
        let key = key(group);
        let count = counts.get(&key).copied().unwrap_or(1);
        let index = dealt.entry(key).or_default();
        let all = policy(settings, group).unwrap_or(&cores.workers);
        let own = cores::share(all, *index, count);
        *index += 1;
        WorkerPlacement { parking, cores: own, shared: all.clone(), gpu }
    };
    models.iter().map(|loaded| instances(loaded).enumerate().map(&mut place).collect()).collect()
}

/// Triton runs them anywhere and says nothing.
fn warn_of_unknown_policies(settings: &Settings, loaded: &LoadedVersion) {
    for group in &loaded.spec.instance_groups {
        let is_default = matches!(group.host_policy.as_str(), "cpu" | "model") || !group.gpus.is_empty();
        if !is_default && policy(settings, group).is_none() {
            let (name, policy) = (&loaded.spec.name, &group.host_policy);
            log::warning(&format!("'{name}' names the host policy '{policy}', which no --host-policy describes"));
        }
    }
}
