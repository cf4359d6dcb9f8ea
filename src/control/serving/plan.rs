//! The plan of threads and cores: for each model version its queue, the parking and the cores of each worker, and the
//! cores of the shards. Made at start, after the models are loaded and before any thread starts, and again for each
//! version that is loaded later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::RunMemory;
use crate::backend::custom_metrics::CustomMetrics;
use crate::control::loading::loaded_version::{LoadBasis, LoadedVersion};
use crate::control::loading::model_loader::ModelLoader;
use crate::control::loading::placement::{InstanceSite, WorkerLoad};
use crate::control::machine::cores::{self, CorePlan, CoreRequest};
use crate::control::machine::cpu_quota::{cores_for, cpu_quota};
use crate::control::machine::process_memory;
use crate::control::machine::spawn::spawn;
use crate::control::outside::access_files::AccessFiles;
use crate::control::outside::certificates::Certificates;
use crate::control::outside::trace::trace_link;
use crate::error::Error;
use crate::limits::{GRPC_MESSAGE_SIZE_MAX, PING_INTERVAL_MIN};
use crate::log;
use crate::metrics::{GpuBoard, HostCells, LatencyOptions, LoadBoard, ShardCells, StoreCells, TeiBatchCells};
use crate::model::{InstanceGroup, InstanceSeat, ModelSpec};
use crate::policy::{ConsoleRules, KeepAlivePolicy};
use crate::pressure::MemoryBoard;
use crate::protocol::front_end::{FrontEnds, Invocation, SageMakerPaths, VertexAiPaths};
use crate::protocol::route::Delivery;
use crate::queue::cache_link::CacheLink;
use crate::queue::job_pool::JobPool;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::model_queue::{ModelQueue, QueuedSequences};
use crate::queue::parking::Parking;
use crate::queue::rate_limiter::RateRegistration;
use crate::queue::semaphore::Semaphore;
use crate::queue::served_model::{Placement, ServedModel};
use crate::runtime::executor::IoPath;
use crate::scheduler::{Policy, QueueBounds};
use crate::settings::{Compat, ControlMode, InvocationKind, Io, Pinning, ResponseCompression, Settings};
use crate::shard::connections::receive_budget::ProcessReceiveBudget;
use crate::shard::lifecycle::Lifecycle;
use crate::shard::mailbox::{ControlSender, ShardMailbox};
#[cfg(feature = "test-hooks")]
use crate::shard::server_context::GrpcDelays;
use crate::shard::server_context::{
    ConnectionLimits, ControlLink, KeyOptions, MemoryBudgets, MetricsSources, RequestPolicy, RuntimeOptions,
    ServerContext, ServiceOptions, TlsOptions,
};
use crate::shard::services::control_request::ControlRequests;
use crate::shard::services::shared_memory::SharedMemoryClient;
use crate::wire::compression::deflate::DeflateLevel;

/// Niceness of the threads that read large bodies: a tenth of a shard's share of a core that both must have.
const JOB_NICENESS: i32 = 10;
/// Share of the process's memory, as a divisor, for requests that are being received (`--receive-memory-bytes-max`): as
/// much again may wait in queues, be computed with and be on its way out.
const RECEIVE_MEMORY_PART: usize = 4;
/// Bytes of one gRPC message with `--compat=triton`: tritonserver's fixed bound (`MAX_GRPC_MESSAGE_SIZE`).
const GRPC_MESSAGE_SIZE_MAX_TRITON: usize = i32::MAX as usize;

/// The plan of the whole server at start.
pub struct ServerPlan {
    /// The part that all threads share.
    pub server_context: Arc<ServerContext>,
    /// The model versions.
    pub planned: Vec<PlannedModel>,
    /// The cores of shards and workers.
    pub cores: CorePlan,
}

/// The plan of one model version.
pub struct PlannedModel {
    /// The model version.
    pub served: Arc<ServedModel>,
    /// The producer of each shard for the version's queue; `None` for a model without a queue.
    pub producers: Vec<Option<QueueProducer>>,
    /// The placement of each of its workers.
    pub placements: Vec<WorkerPlacement>,
    /// The duration of its load.
    pub took: Duration,
    /// The bytes of its files.
    pub files_size: u64,
    /// The basis of updates of its instances.
    pub basis: Option<Arc<LoadBasis>>,
}

/// The place of one worker thread.
#[derive(Clone, Debug)]
pub struct WorkerPlacement {
    /// The index of the worker's parking in the model's queue.
    pub parking: usize,
    /// The cores that its threads are pinned to.
    pub cores: Vec<usize>,
    /// The cores that it and other workers divide among themselves; `cores` is its part.
    pub shared: Vec<usize>,
    /// True if it is pinned to its cores: by a flag, or because the process has their time.
    pub is_pinned: bool,
    /// True if it only waits, for a process or for threads that are not its own.
    pub is_waiting: bool,
    /// Its instance.
    pub seat: InstanceSeat,
}

impl WorkerPlacement {
    /// Returns the cores that it is pinned to; empty if it is not pinned.
    pub fn pinned_to(&self) -> &[usize] {
        if self.is_pinned { &self.cores } else { &[] }
    }

    /// The cores that its engine computes on: as many as the engine has threads.
    pub fn computes_on(&self) -> &[usize] {
        if self.is_waiting { &[] } else { &self.cores }
    }
}

/// The parts of a [`ServerContext`] that exist before it.
#[derive(Clone, Copy)]
pub struct ContextSources<'a> {
    /// The metrics of the GPUs.
    pub gpus: &'a Arc<GpuBoard>,
    /// The metrics that models create.
    pub custom: &'a Arc<CustomMetrics>,
    /// The memory of runs.
    pub run_memory: &'a Arc<RunMemory>,
    /// The runs of text models, if they are counted.
    pub text_batches: Option<&'a Arc<TeiBatchCells>>,
    /// The files of TLS and of API keys.
    pub files: &'a AccessFiles,
}

impl<'a> ContextSources<'a> {
    /// The sources of a server with this loader and these files.
    pub fn new(loader: &'a ModelLoader, files: &'a AccessFiles) -> Self {
        let services = loader.services();
        Self {
            gpus: loader.gpu_board(),
            custom: &services.metrics,
            run_memory: loader.run_memory(),
            text_batches: services.text_batches.as_ref(),
            files,
        }
    }
}

/// The links of shards to other threads that only a server that serves models has.
#[derive(Default)]
pub struct ContextLinks {
    /// To the threads of shared memory, if clients may register regions.
    pub shared_memory: Option<SharedMemoryClient>,
    /// To the response cache in Redis or in a library, if there is one.
    pub shared_cache: Option<Arc<CacheLink>>,
    /// The figures of the stores among the repositories.
    pub stores: Vec<Arc<StoreCells>>,
}

impl ServerPlan {
    /// Plans the threads for the models that were loaded at start.
    ///
    /// # Errors
    /// `InvalidArgument` when a flag names a core that this process may not use.
    pub fn new(
        settings: &Settings,
        models: Vec<LoadedVersion>,
        control: &ControlSender,
        sources: ContextSources<'_>,
        links: ContextLinks,
    ) -> Result<Self, Error> {
        models.iter().for_each(|loaded| warn_of_unknown_policies(settings, &loaded.spec));
        let cores = CorePlan::new(&cores::available(), &core_request(settings, &models))?;
        let placements = placements(settings, &models, &cores);
        let shards = cores.shards.len();
        let planned =
            models.into_iter().zip(placements).map(|(loaded, placements)| plan(settings, loaded, shards, placements));
        let planned = planned.collect();
        let ContextLinks { shared_memory, shared_cache, stores } = links;
        Ok(Self {
            server_context: Arc::new(ServerContext {
                shared_memory,
                jobs: job_pool(shards)?,
                shared_cache,
                stores,
                ..server_context(settings, shards, control, sources)
            }),
            planned,
            cores,
        })
    }
}

impl PlannedModel {
    /// Plans a model version that is loaded while others serve. Its workers get the cores with the fewest workers:
    /// existing threads are not moved. `worker_cores` has the cores of each existing worker.
    ///
    /// # Errors
    /// `InvalidArgument` when a host policy names a core that this process may not use.
    pub fn at_run_time(
        settings: &Settings,
        loaded: LoadedVersion,
        cores: &CorePlan,
        worker_cores: &[Vec<usize>],
    ) -> Result<Self, Error> {
        let seats = instances(&loaded).map(|(seat, _)| seat).enumerate().collect();
        let placements =
            RunTimePlaces { settings, cores, worker_cores }.placements(&loaded.spec, loaded.choice.load, seats)?;
        Ok(plan(settings, loaded, cores.shards.len(), placements))
    }
}

/// The cores that workers are placed on while others serve.
#[derive(Clone, Copy)]
pub struct RunTimePlaces<'a> {
    /// The server's settings.
    pub settings: &'a Settings,
    /// The cores of shards and workers.
    pub cores: &'a CorePlan,
    /// The cores of each existing worker: new ones get those with the fewest.
    pub worker_cores: &'a [Vec<usize>],
}

impl RunTimePlaces<'_> {
    /// Places the workers of new instances, each given with its parking.
    ///
    /// # Errors
    /// `InvalidArgument` when a host policy names a core that this process may not use.
    pub fn placements(
        self,
        spec: &ModelSpec,
        load: WorkerLoad,
        seats: Vec<(usize, InstanceSeat)>,
    ) -> Result<Vec<WorkerPlacement>, Error> {
        let Self { settings, cores, worker_cores } = self;
        warn_of_unknown_policies(settings, spec);
        let (available, is_waiting) = (cores::available(), load == WorkerLoad::Waiting);
        let of_policy = seats.iter().filter(|(_, seat)| host_policy_cores(settings, &seat.group).is_some()).count();
        let free_cores = if load == WorkerLoad::Light { &cores.workers } else { &cores.heavy };
        let mut least = cores::least_loaded(free_cores, worker_cores, seats.len() - of_policy).into_iter();
        let is_pinned = cores.is_pinned || settings.worker_cores.is_some();
        let place =
            |(index, (parking, seat)): (usize, (usize, InstanceSeat))| match host_policy_cores(settings, &seat.group) {
                Some(all) => {
                    cores::check(&format!("the host policy of '{}'", spec.name), all, &available)?;
                    let own = cores::share(all, index, of_policy);
                    Ok(WorkerPlacement { parking, cores: own, shared: all.clone(), is_pinned: true, is_waiting, seat })
                }
                None => {
                    let own = least.next().filter(|_| !is_waiting).unwrap_or_else(|| free_cores.clone());
                    Ok(WorkerPlacement { parking, cores: own, shared: free_cores.clone(), is_pinned, is_waiting, seat })
                }
            };
        seats.into_iter().enumerate().map(place).collect()
    }
}

fn plan(settings: &Settings, loaded: LoadedVersion, shards: usize, placements: Vec<WorkerPlacement>) -> PlannedModel {
    let bounds = QueueBounds { requests: settings.queue_requests_max, bytes: settings.queue_bytes_max };
    let parkings = parkings(&loaded);
    let (placement, producers) = match loaded.choice.site {
        InstanceSite::Ensemble => (Placement::Ensemble(permits(&loaded.spec)), (0..shards).map(|_| None).collect()),
        InstanceSite::Inline => (Placement::Inline, (0..shards).map(|_| None).collect()),
        InstanceSite::Worker => {
            // The limiter gives an instance its resources for a batch at a time.
            let splits_rows = settings.splits_rows && loaded.spec.has_separate_rows() && loaded.registration.is_none();
            let rows_differ = loaded.spec.steps.as_ref().is_some_and(|steps| steps.list.padding().is_some());
            let policy = Policy { admission: settings.admission, splits_rows, rows_differ, ..loaded.policy() };
            #[cfg(feature = "test-hooks")]
            let policy = Policy {
                hold: scheduler::hold::FirstBatchHold {
                    requests: settings.foreign.test_hooks.first_batch_requests,
                    backlogged: settings.foreign.test_hooks.first_batch_backlog,
                },
                ..policy
            };
            let model = || loaded.spec.name.clone();
            let sequences = loaded.sequence_policy().map(|policy| QueuedSequences { model: model(), policy });
            let (model_queue, producers) =
                ModelQueue::with_parkings(policy, bounds, shards, parkings, loaded.registration, sequences);
            (Placement::Worker(model_queue), producers.into_iter().map(Some).collect())
        }
    };
    let (run, took, files_size, basis) = (loaded.choice.run, loaded.took, loaded.files_size, loaded.basis);
    let served = ServedModel::new(loaded.spec, loaded.version, loaded.model, placement, shards);
    let served = served.measured(run).limited(loaded.run_limit).with_latencies(&latencies(settings));
    PlannedModel { served: Arc::new(served), producers, placements, took, files_size, basis }
}

/// Returns the latencies that the metrics have.
fn latencies(settings: &Settings) -> LatencyOptions {
    let config = &settings.metrics_config;
    LatencyOptions {
        hides_counters: !config.has_counters,
        has_histograms: config.has_histograms,
        has_summaries: config.has_summaries,
        quantiles: config.quantiles.clone(),
    }
}

/// Returns the figures of the machine before they are first read.
fn host_cells(settings: &Settings) -> HostCells {
    let cells = HostCells::default();
    cells.pinned_total.set(u64::try_from(settings.pinned_memory_bytes_max).ok());
    cells.pinned_used.set(Some(0));
    cells
}

/// Returns the semaphore of each step of an ensemble; empty without `max_inflight_requests`.
fn permits(spec: &ModelSpec) -> Arc<[Arc<Semaphore>]> {
    // 0 means no limit.
    let bounded = spec.ensemble.iter().filter(|ensemble| ensemble.in_flight_max > 0);
    let of_step = |most: u32| Arc::new(Semaphore::new(most));
    bounded.flat_map(|ensemble| ensemble.steps.iter().map(move |_| of_step(ensemble.in_flight_max))).collect()
}

/// Returns the memory of the process, and its part for requests that are being received.
fn memory(settings: &Settings, shards: usize) -> MemoryBudgets {
    let limit = process_memory::limit(settings);
    let receive = settings.receive_memory_bytes_max.unwrap_or(limit / RECEIVE_MEMORY_PART);
    MemoryBudgets {
        receive: Arc::new(ProcessReceiveBudget::new(receive, shards).within(limit)),
        cache_size: settings.cache.size,
        board: MemoryBoard::new(limit, shards),
    }
}

/// Returns the shared part of all threads of a server with `shards` shards, which has no shared
/// memory, no shared cache, and has not started.
pub fn server_context(
    settings: &Settings,
    shards: usize,
    control: &ControlSender,
    sources: ContextSources<'_>,
) -> ServerContext {
    let ContextSources { gpus, custom, run_memory, text_batches, files } = sources;
    ServerContext {
        service: service(settings),
        front_ends: front_ends(settings),
        policy: RequestPolicy {
            http: settings.http_policy.clone(),
            grpc: settings.grpc_policy.clone(),
            is_admin_closed: settings.admin_socket.is_some(),
        },
        connection_limits: connection_limits(settings),
        runtime: RuntimeOptions {
            io: match settings.io {
                Io::Auto => IoPath::Auto,
                Io::Epoll => IoPath::Epoll,
                Io::Glommio => IoPath::Glommio,
                Io::Ring => IoPath::Ring,
            },
            exit_timeout: settings.exit_timeout,
        },
        memory: Arc::new(memory(settings, shards)),
        metrics: MetricsSources {
            shard_cells: (0..shards).map(|_| Arc::new(shard_cells(text_batches.is_some()))).collect(),
            host: Arc::new(host_cells(settings)),
            load: LoadBoard::default(),
            interval: settings.metrics_config.interval,
            latencies: latencies(settings),
            model_cache: Default::default(),
            gpus: Arc::clone(gpus),
            custom: Arc::clone(custom),
            run_memory: Arc::clone(run_memory),
            text_batches: text_batches.map(Arc::clone),
        },
        jobs: JobPool::default(),
        lifecycle: Lifecycle::new(shards),
        control_link: ControlLink {
            control: Arc::clone(control),
            requests: ControlRequests::default(),
            model_wait: settings.model_cache.size_max.map(|_| settings.model_cache.wait),
            waits: ControlRequests::default(),
            mailboxes: (0..shards).map(|_| ShardMailbox::default()).collect(),
        },
        shared_memory: None,
        shared_cache: None,
        stores: Vec::new(),
        tls: tls_options(settings, &files.certificates),
        keys: KeyOptions {
            initial: files.keys.as_ref().map(|keys| Arc::new(keys.table(shards))),
            reloads: Arc::default(),
        },
        traces: trace_link(settings),
        // A closure, here and elsewhere, so that its place is the cause in its log lines.
        warn: |text| log::warning(text),
    }
}

/// The counters of a shard.
fn shard_cells(has_tei: bool) -> ShardCells {
    ShardCells { tei: has_tei.then(Box::default), ..ShardCells::default() }
}

/// Makes a pool with a thread for each shard: it reads large bodies as fast as all shards receive
/// them.
fn job_pool(shards: usize) -> Result<JobPool, Error> {
    JobPool::new(shards, |body| {
        let body = move || {
            // If the machine has no core for the thread, a shard that wakes up takes its place at
            // once.
            if let Err(error) = rustix::process::setpriority_process(None, JOB_NICENESS) {
                log::warning(&format!("what is read of large bodies delays other requests: {error}"));
            }
            body();
        };
        Ok(spawn("jobs".to_owned(), body)?.thread().clone())
    })
}

fn connection_limits(settings: &Settings) -> ConnectionLimits {
    ConnectionLimits {
        connections_max: settings.connections.count_max,
        address_connections_max: settings.connections.address_count_max,
        timeouts: settings.connections.timeouts,
        http_input_size_max: settings.http_input_size_max,
        grpc_message_size_max: settings.grpc_message_size_max.unwrap_or(match settings.compat {
            Compat::Protocol | Compat::Tei => GRPC_MESSAGE_SIZE_MAX,
            Compat::Triton => GRPC_MESSAGE_SIZE_MAX_TRITON,
        }),
        http2_streams_max: settings.http2_streams_max,
        http2_resets_max: settings.http2_resets_max,
        http2_control_frames_max: settings.http2_control_frames_max,
        keep_alive: keep_alive(settings),
    }
}

/// The rules of gRPC's PINGs. tritonserver counts early ones of a client that waits for an answer, too.
fn keep_alive(settings: &Settings) -> KeepAlivePolicy {
    let rules = settings.grpc_keep_alive;
    let tritons = (settings.compat == Compat::Triton).then_some(PING_INTERVAL_MIN);
    KeepAlivePolicy { ping_interval_min: rules.ping_interval_min.or(tritons), ..rules }
}

/// The options that clients see of the server as a whole.
fn service(settings: &Settings) -> ServiceOptions {
    ServiceOptions {
        id: settings.id.clone(),
        is_controlled: settings.control_mode == ControlMode::Explicit,
        strict_readiness: settings.strict_readiness,
        tells_timing: settings.tells_timing,
        tells_load: settings.metrics_config.tells_load,
        follows_triton: settings.compat == Compat::Triton,
        console: console_rules(settings),
        allows_log_settings: settings.allows_log_settings.unwrap_or(settings.compat == Compat::Triton),
        access_log_per_million: settings.access_log_per_million,
        #[cfg(feature = "test-hooks")]
        grpc_delays: GrpcDelays {
            answer: settings.foreign.test_hooks.grpc_answer_delay,
            infer: settings.foreign.test_hooks.grpc_infer_delay,
            infer_answer: settings.foreign.test_hooks.grpc_infer_answer_delay,
        },
        grpc_compression: match settings.grpc_compression {
            ResponseCompression::None => None,
            ResponseCompression::Low => Some(DeflateLevel::Low),
            ResponseCompression::Medium => Some(DeflateLevel::Medium),
            ResponseCompression::High => Some(DeflateLevel::High),
        },
    }
}

/// Returns the rules of the console: its contents, and its users.
fn console_rules(settings: &Settings) -> ConsoleRules {
    let tls = &settings.tls;
    let asks_models = settings.http.is_some() && (!tls.http.is_mutual || tls.metrics.is_mutual);
    ConsoleRules {
        audience: settings.console,
        port: settings.metrics.map(|(_, port)| port).filter(|port| *port != 0),
        has_tls: tls.metrics.has_tls(),
        http_port: settings.http.map(|(_, port)| port).filter(|port| *port != 0),
        has_http_tls: tls.http.has_tls(),
        asks_models,
        changes_models: asks_models && settings.api_keys_file.is_some() && settings.admin_socket.is_none(),
    }
}

/// Returns the services on the ports of hosting services.
fn front_ends(settings: &Settings) -> FrontEnds {
    let sagemaker = &settings.foreign.sagemaker;
    let sagemaker_paths = sagemaker.is_on.then(|| SageMakerPaths {
        pings_live: sagemaker.pings_live,
        model: sagemaker.model.clone(),
        invocation: match sagemaker.invocation {
            InvocationKind::Infer => Invocation::Infer,
            InvocationKind::Generate => Invocation::Generate(Delivery::Single),
            InvocationKind::GenerateStream => Invocation::Generate(Delivery::Stream),
        },
        models_root: sagemaker.models_root.clone(),
    });
    let vertex_ai = &settings.foreign.vertex_ai;
    let routes = vertex_ai.predict.clone().zip(vertex_ai.health.clone()).filter(|_| vertex_ai.is_on);
    let vertex_ai_paths = routes.map(|(predict, health)| VertexAiPaths {
        predict,
        health,
        model: vertex_ai.model.clone().unwrap_or_default(),
        shows_metrics: settings.metrics.is_some(),
    });
    FrontEnds { sagemaker: sagemaker_paths, vertex_ai: vertex_ai_paths }
}

/// Finds the model of predictions of Vertex AI among those that serve, if that is on.
///
/// # Errors
/// `InvalidArgument` if it is not one of them, or not named and not the only one; the texts are
/// tritonserver's.
pub fn choose_default_model(settings: &mut Settings, loaded: &[LoadedVersion]) -> Result<(), Error> {
    if !settings.foreign.vertex_ai.is_on {
        return Ok(());
    }
    let names: BTreeSet<&str> = loaded.iter().map(|loaded| loaded.spec.name.as_str()).collect();
    match &settings.foreign.vertex_ai.model {
        Some(model) if names.contains(model.as_str()) => Ok(()),
        Some(model) => Err(Error::invalid(format!(
            "failed to start Vertex AI service: Expect the default model '{model}' is loaded"
        ))),
        None if names.len() == 1 => {
            settings.foreign.vertex_ai.model = names.into_iter().next().map(str::to_owned);
            Ok(())
        }
        None => Err(Error::invalid(
            "failed to start Vertex AI service: Expect the model repository contains only a single model if default \
             model is not specified",
        )),
    }
}

fn tls_options(settings: &Settings, certificates: &Certificates) -> TlsOptions {
    TlsOptions {
        initial: Arc::clone(certificates.configs()),
        handshake_timeout: settings.tls.handshake_timeout,
        handshakes_max: settings.tls.handshakes_max,
        board: Arc::clone(certificates.board()),
    }
}

/// Returns the parking of each worker of a model, in the order of [`instances`]. Only active
/// instances are registered with the rate limiter, so only they take an id.
fn parkings(loaded: &LoadedVersion) -> Vec<Arc<Parking>> {
    let mut rate_ids = loaded.registration.iter().flat_map(RateRegistration::ids);
    let parking = |(InstanceSeat { name, group, .. }, index): (InstanceSeat, usize)| {
        let parking = Parking::new(name).of_group(index);
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

/// Returns the instances of a model that run on workers, each with the index of its group.
fn instances(loaded: &LoadedVersion) -> impl Iterator<Item = (InstanceSeat, usize)> {
    loaded.worker_groups().enumerate().flat_map(|(index, group)| group.seats().map(move |seat| (seat, index)))
}

/// Returns the cores of the host policy that a group follows; `None` if no flag describes it.
fn host_policy_cores<'a>(settings: &'a Settings, group: &InstanceGroup) -> Option<&'a Vec<usize>> {
    settings.host_policies.get(&group.host_policy)
}

fn core_request(settings: &Settings, models: &[LoadedVersion]) -> CoreRequest {
    let groups = || models.iter().flat_map(LoadedVersion::worker_groups);
    // Only these take cores from the shards: the others use the shards' own.
    let light = models.iter().filter(|loaded| loaded.choice.load == WorkerLoad::Light);
    let named: BTreeMap<_, _> = groups()
        .filter_map(|group| Some((group.host_policy.clone(), host_policy_cores(settings, group)?.clone())))
        .collect();
    let free = light.flat_map(LoadedVersion::worker_groups);
    let free = free.filter(|group| host_policy_cores(settings, group).is_none());
    CoreRequest {
        shards: settings.shards,
        worker_cores: settings.worker_cores.clone(),
        policy_cores: named.into_iter().collect(),
        workers: free
            .map(|group| usize::try_from(group.instance_count()).unwrap_or(usize::MAX))
            .fold(0, usize::saturating_add),
        quota: cpu_quota(&|path| std::fs::read_to_string(path).ok()).map(cores_for),
        is_unpinned: settings.pinning == Pinning::Off,
    }
}

/// Places the workers of all models at start. Workers of one host policy share its cores evenly, over all models; all
/// other workers share the cores of [`CorePlan::workers`], and those of heavy models the cores of [`CorePlan::heavy`].
/// Workers that only wait have all of the latter, and take no part of them.
fn placements(settings: &Settings, models: &[LoadedVersion], cores: &CorePlan) -> Vec<Vec<WorkerPlacement>> {
    let pool = |loaded: &LoadedVersion, group: &InstanceGroup| match host_policy_cores(settings, group) {
        Some(_) => WorkerPool::Policy(group.host_policy.clone()),
        None => match loaded.choice.load {
            WorkerLoad::Heavy => WorkerPool::Heavy,
            WorkerLoad::Light => WorkerPool::Light,
            WorkerLoad::Waiting => WorkerPool::Waiting,
        },
    };
    let mut counts: BTreeMap<WorkerPool, usize> = BTreeMap::new();
    let computing = || models.iter().filter(|loaded| loaded.choice.load != WorkerLoad::Waiting);
    for (loaded, (seat, _)) in computing().flat_map(|loaded| instances(loaded).map(move |one| (loaded, one))) {
        *counts.entry(pool(loaded, &seat.group)).or_default() += 1;
    }
    let mut dealt: BTreeMap<WorkerPool, usize> = BTreeMap::new();
    let mut place = |loaded: &LoadedVersion, parking, seat: InstanceSeat| {
        let group = &seat.group;
        let pool = pool(loaded, group);
        let is_waiting = loaded.choice.load == WorkerLoad::Waiting;
        let count = counts.get(&pool).copied().unwrap_or(1);
        let index = dealt.entry(pool).or_default();
        let of_pool = if loaded.choice.load == WorkerLoad::Light { &cores.workers } else { &cores.heavy };
        let given = host_policy_cores(settings, group);
        let is_pinned = cores.is_pinned || given.is_some() || settings.worker_cores.is_some();
        let all = given.unwrap_or(of_pool);
        let own = if is_waiting { all.clone() } else { cores::share(all, *index, count) };
        *index += usize::from(!is_waiting);
        WorkerPlacement { parking, cores: own, shared: all.clone(), is_pinned, is_waiting, seat }
    };
    let mut of_model = |loaded| -> Vec<WorkerPlacement> {
        instances(loaded).enumerate().map(|(parking, (seat, _))| place(loaded, parking, seat)).collect()
    };
    models.iter().map(&mut of_model).collect()
}

/// Workers that divide the same cores among themselves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorkerPool {
    Heavy,
    Light,
    /// Workers that follow the host policy of this name.
    Policy(String),
    Waiting,
}

/// Warns of host policies that no flag describes. Triton ignores them silently.
fn warn_of_unknown_policies(settings: &Settings, spec: &ModelSpec) {
    for group in &spec.instance_groups {
        let is_default = matches!(group.host_policy.as_str(), "cpu" | "model") || !group.gpus.is_empty();
        if !is_default && host_policy_cores(settings, group).is_none() {
            let (name, policy) = (&spec.name, &group.host_policy);
            log::warning(&format!("'{name}' names the host policy '{policy}', which no --host-policy describes"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_message_may_be_as_large_as_tritons_where_its_flag_is_given() {
        let control: ControlSender = Arc::new(|_| {});
        let (gpus, custom, run_memory) = (Arc::default(), CustomMetrics::new(Vec::new()), Arc::new(RunMemory::new(1)));
        let size_max = |compat, grpc_message_size_max| {
            let settings = Settings { compat, grpc_message_size_max, ..Settings::default() };
            let certificates = AccessFiles::load(&settings).unwrap();
            let sources = ContextSources {
                gpus: &gpus,
                custom: &custom,
                run_memory: &run_memory,
                text_batches: None,
                files: &certificates,
            };
            let context = server_context(&settings, 1, &control, sources);
            context.connection_limits.grpc_message_size_max
        };
        assert_eq!(size_max(Compat::Protocol, None), 64 << 20);
        assert_eq!(size_max(Compat::Tei, None), 64 << 20);
        assert_eq!(size_max(Compat::Triton, None), (2 << 30) - 1);
        assert_eq!(size_max(Compat::Triton, Some(7)), 7, "the flag holds");
    }

    #[test]
    fn pings_of_a_waiting_client_are_bounded_as_tritons_where_that_is_asked_for() {
        let interval = |compat, given: Option<Duration>| {
            let mut settings = Settings { compat, ..Settings::default() };
            settings.grpc_keep_alive.ping_interval_min = given;
            keep_alive(&settings).ping_interval_min
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!((interval(Compat::Protocol, None), interval(Compat::Protocol, second)), (None, second));
        assert_eq!(interval(Compat::Triton, None), Some(Duration::from_secs(300)));
        assert_eq!(interval(Compat::Triton, second), second, "the flag holds");
    }
}
