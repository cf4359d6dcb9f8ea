//! One served model version, as all threads share it: its configuration, the place of its
//! instances, and its counters. Also runs a batch on an instance so that a panic of the engine
//! costs only that batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::model_queue::{ModelQueue, SequenceCounts, batch_sizes};
use crate::one_shot::OneShotReceiver;
use crate::parking::{InstanceStage, Parking};
use crate::readiness::Readiness;
use crate::run_limit::RunLimit;
use crate::semaphore::Semaphore;
use crate::shown_spec::ShownSpec;
use backend::gpu::GpuInstanceFigures;
use backend::{Batch, Instance, LoadedModel};
use base::crash::{self, RunLabel};
use base::error::Error;
use base::metrics::{
    BatchCells, FIRST_RESPONSE_BOUNDS, Gauge, GpuFigures, LatencyOptions, ModelCells, ModelFigures, PaddingCells,
    ReportCells, SequenceFigures,
};
use base::time::Instant;
use model::ModelSpec;
use model::spec::{ROWS_CHOSEN_PARAMETER, SERVED_ENGINE_PARAMETER, SERVED_ENGINE_VERSION_PARAMETER};
use scheduler::ReleaseReason;
use scheduler::sequence::SequenceEnd;

/// One served model version.
pub struct ServedModel {
    /// Its checked configuration at its load: an update changes the instance groups alone, and [`Self::current_spec`]
    /// has them.
    pub spec: Arc<ModelSpec>,
    /// Its version.
    pub version: u64,
    /// The maker of its instances.
    pub loaded: Arc<dyn LoadedModel>,
    /// The place of its instances.
    pub placement: Placement,
    /// Its counters, one set per shard: on cache lines that no other shard writes.
    pub cells: Box<[CachePadded<ModelCells>]>,
    /// The shortest run of one row during warm-up, if it was measured.
    run: Option<Duration>,
    /// Instances that were lost and could not be recreated yet.
    lost: AtomicUsize,
    /// Instances that were lost just now and are being recreated for the first time.
    renewing: AtomicUsize,
    /// The readiness question to its own code.
    readiness: Arc<Readiness>,
    /// The time limit of its runs, if they have one.
    run_limit: Option<RunLimit>,
    /// Its configuration with the instance groups of now.
    current: ShownSpec,
}

/// The place of the instances of a model version.
#[derive(Clone)]
pub enum Placement {
    /// Inside each shard: a run costs less than a hop.
    Inline,
    /// On worker threads, which take batches from this queue.
    Worker(Arc<ModelQueue>),
    /// It has no instances: its steps run other models. One semaphore per step whose requests in flight are bounded.
    Ensemble(Arc<[Arc<Semaphore>]>),
}

impl ServedModel {
    /// Creates a model version for `shards` shards; ready at once.
    pub fn new(
        spec: Arc<ModelSpec>,
        version: u64,
        loaded: Arc<dyn LoadedModel>,
        placement: Placement,
        shards: usize,
    ) -> Self {
        let sizes = match &placement {
            Placement::Inline | Placement::Ensemble(_) => batch_sizes(spec.rows_max),
            Placement::Worker(_) => 0,
        };
        let cells = (0..shards).map(|_| CachePadded::new(ModelCells::new(sizes))).collect();
        Self {
            current: ShownSpec::new(&spec),
            spec,
            version,
            loaded,
            placement,
            cells,
            run: None,
            lost: AtomicUsize::new(0),
            renewing: AtomicUsize::new(0),
            readiness: Arc::default(),
            run_limit: None,
        }
    }

    /// Names one of its instances in the line of a crash.
    pub fn label<'a>(&'a self, instance: &'a str) -> RunLabel<'a> {
        RunLabel { model: &self.spec.name, version: Some(self.version), instance }
    }

    /// Sets the time limit of its runs.
    pub fn limited(self, run_limit: Option<RunLimit>) -> Self {
        Self { run_limit, ..self }
    }

    /// Sets the duration of a run of one row.
    pub fn measured(self, run: Option<Duration>) -> Self {
        Self { run, ..self }
    }

    /// Sets the distributions of durations that it counts.
    pub fn with_latencies(self, options: &LatencyOptions) -> Self {
        let bounds = self.spec.first_response_bounds.as_deref().unwrap_or(&FIRST_RESPONSE_BOUNDS);
        let bounds = self.spec.is_decoupled.then_some(bounds);
        let with =
            |cells: CachePadded<ModelCells>| CachePadded::new(cells.into_inner().with_latencies(options, bounds));
        let cells = self.cells.into_iter().map(with).collect();
        Self { cells, ..self }
    }

    /// Returns the time limit of its runs, if they have one.
    pub const fn run_limit(&self) -> Option<&RunLimit> {
        self.run_limit.as_ref()
    }

    /// Returns true if it can serve: no instance is lost for longer than it takes to recreate it.
    pub fn is_ready(&self) -> bool {
        self.lost.load(Ordering::Relaxed) == 0
    }

    /// Returns true if an instance can take a request: not all of them are lost or being recreated.
    pub fn has_instance(&self) -> bool {
        let renewing = self.renewing.load(Ordering::Relaxed);
        match &self.placement {
            Placement::Worker(model_queue) if renewing > 0 => self.lost() + renewing < model_queue.present_instances(),
            _ => true,
        }
    }

    /// Asks the model's own code whether it is ready; `None` if it has none. Callers at the same
    /// time share one question.
    ///
    /// # Errors
    /// `Unavailable` if too many callers wait for the answer.
    pub fn ask_ready(&self) -> Result<Option<OneShotReceiver<bool>>, Error> {
        self.readiness.ask(&*self.loaded)
    }

    /// Returns the time of its last answer with outputs, in milliseconds since the Unix epoch; 0 if
    /// never.
    pub fn answered_at(&self) -> u64 {
        self.cells.iter().map(|cells| cells.last_inference()).max().unwrap_or(0)
    }

    /// Returns true if it has sequences that are not over.
    pub fn has_sequences(&self) -> bool {
        match &self.placement {
            Placement::Inline | Placement::Ensemble(_) => false,
            Placement::Worker(model_queue) => model_queue.sequences().is_some_and(|counts| counts.active() > 0),
        }
    }

    /// Returns the bytes of memory of its own processes.
    pub fn process_size(&self) -> u64 {
        self.loaded.process_size()
    }

    /// Returns the number of instances that are lost and could not be recreated yet.
    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// One of its instances was lost, and is recreated while `renew` runs.
    pub fn renewing<T>(&self, renew: impl FnOnce() -> T) -> T {
        let _renewal = Renewal::begin(&self.renewing);
        renew()
    }

    /// One of its instances was lost and could not be recreated.
    pub fn handle_instance_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// A lost instance was recreated.
    pub fn handle_instance_restored(&self) {
        let before = self.lost.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "an instance is restored after it was lost");
    }

    /// Returns the time that each of its instance groups has been busy so far; empty for an
    /// ensemble. Passive groups do nothing. An inline model has an instance in each shard, as one
    /// group.
    pub fn group_loads(&self, now: Instant) -> Vec<GroupLoad> {
        let model_queue = match &self.placement {
            Placement::Ensemble(_) => return Vec::new(),
            Placement::Inline => return vec![GroupLoad { busy: self.figures().busy(), instances: self.cells.len() }],
            Placement::Worker(model_queue) => model_queue,
        };
        let is_counted = |parking: &&Arc<Parking>| !parking.is_passive() && parking.stage() == InstanceStage::Serving;
        let mut loads: Vec<GroupLoad> = Vec::new();
        for parking in model_queue.parkings().filter(is_counted) {
            let group = parking.group();
            loads.resize(loads.len().max(group + 1), GroupLoad { busy: Duration::ZERO, instances: 0 });
            if let Some(load) = loads.get_mut(group) {
                *load = GroupLoad { busy: load.busy + parking.busy(now), instances: load.instances + 1 };
            }
        }
        loads
    }

    /// Returns its figures, for metrics and statistics. Runs inside shards never wait in a queue,
    /// so they count as released because an instance was idle.
    pub fn figures(&self) -> ModelFigures<'_> {
        let model_queue = match &self.placement {
            Placement::Inline | Placement::Ensemble(_) => None,
            Placement::Worker(model_queue) => Some(model_queue),
        };
        let parkings = model_queue.into_iter().flat_map(|model_queue| model_queue.parkings());
        let is_there =
            |parking: &&Arc<Parking>| !matches!(parking.stage(), InstanceStage::Ending | InstanceStage::Gone);
        let inline: u64 = self.cells.iter().map(|cells| cells.executions()).sum();
        let releases = ReleaseReason::ALL.iter().map(|reason| {
            let by_workers = model_queue.map_or(0, |model_queue| model_queue.released(*reason) as u64);
            (reason.as_str(), by_workers + if *reason == ReleaseReason::Idle { inline } else { 0 })
        });
        let parameter = |name: &str| self.spec.parameters.get(name).map(String::as_str);
        let workers = model_queue.map(|model_queue| model_queue.batches());
        let corrections = workers.and_then(BatchCells::reports).map(ReportCells::corrections);
        ModelFigures {
            name: &self.spec.name,
            version: self.version,
            labels: &self.spec.metric_labels,
            is_cached: self.spec.is_cached,
            hides_durations: false,
            shows_exemplars: false,
            cells: self.cells.iter().map(|cells| &**cells).chain(corrections).collect(),
            workers,
            releases: releases.collect(),
            pending: model_queue.map_or(0, |model_queue| model_queue.pending() as u64),
            placement: match &self.placement {
                Placement::Ensemble(_) => "ensemble",
                Placement::Inline => "inline",
                Placement::Worker(_) => "worker",
            },
            engine: parameter(SERVED_ENGINE_PARAMETER).zip(parameter(SERVED_ENGINE_VERSION_PARAMETER)),
            run: self.run,
            instances: parkings.filter(is_there).map(|parking| (parking.name(), parking.batches())).collect(),
            pending_max: model_queue.map(|model_queue| model_queue.waiting_max() as u64),
            wakes: model_queue.map_or(0, |model_queue| model_queue.wakes() as u64),
            restarts: model_queue.map_or(0, |model_queue| model_queue.restarts() as u64),
            late: model_queue.map_or(0, |model_queue| model_queue.late() as u64),
            row_costs: model_queue.and_then(|model_queue| model_queue.row_costs()),
            padding: self.loaded.padding().map(PaddingCells::read),
            sequences: model_queue.and_then(|model_queue| model_queue.sequences()).map(sequence_figures),
            process_memory: self.loaded.process_memory().and_then(Gauge::get),
            gpu: self.loaded.gpu_figures().map(|figures| gpu_figures(&figures)),
        }
    }
}

impl ServedModel {
    /// Returns the configuration as clients see it: with the rows of its batches, if they have
    /// fewer than they may since more cost more.
    pub fn shown_spec(&self) -> Arc<ModelSpec> {
        let costs = if let Placement::Worker(queue) = &self.placement { queue.row_costs() } else { None };
        let current = self.current.read();
        let shown = costs
            .filter(|costs| costs.chosen < current.rows_max)
            .and_then(|costs| current.with_parameters(&[(ROWS_CHOSEN_PARAMETER, &costs.chosen.to_string())]).ok());
        shown.map_or(current, Arc::new)
    }

    /// Returns the configuration with the instance groups of now.
    pub fn current_spec(&self) -> Arc<ModelSpec> {
        self.current.read()
    }

    /// Its instances were updated to those of this configuration, which differs in the instance groups alone.
    pub fn handle_updated(&self, spec: Arc<ModelSpec>) {
        self.current.replace(spec);
    }
}

/// The load of an instance group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLoad {
    /// The time that its instances had batches, together.
    pub busy: Duration,
    /// The number of its instances.
    pub instances: usize,
}

fn gpu_figures(figures: &GpuInstanceFigures) -> GpuFigures {
    let GpuInstanceFigures { upload_us, compute_us, download_us, .. } = figures;
    let GpuInstanceFigures { failures_memory, failures_transient, failures_sticky, hangs, .. } = figures;
    GpuFigures {
        begun: figures.batches_begun.get(),
        done: figures.batches_done.get(),
        flights_peak: figures.flights_peak.get(),
        stages: [("upload", upload_us.get()), ("compute", compute_us.get()), ("download", download_us.get())],
        failures: [
            ("memory", failures_memory.get()),
            ("transient", failures_transient.get()),
            ("sticky", failures_sticky.get()),
            ("hang", hangs.get()),
        ],
        restarts: figures.restarts.get(),
    }
}

fn sequence_figures(counts: &SequenceCounts) -> SequenceFigures {
    SequenceFigures {
        active: counts.active() as u64,
        backlogged: counts.backlogged() as u64,
        unknown: counts.unknown() as u64,
        ends: SequenceEnd::ALL.iter().map(|end| (end.as_str(), counts.ended(*end) as u64)).collect(),
    }
}

/// One more in a count until it is dropped, also by a panic.
struct Renewal<'a>(&'a AtomicUsize);

impl<'a> Renewal<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Renewal<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of an instance after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The instance is fine.
    Well,
    /// It was lost and recreated: its state is gone.
    Renewed,
    /// It was lost and could not be recreated.
    Dead,
}

/// Runs a batch, noted for the line of a crash, and survives a panic of the engine: the responders answer the batch's requests as they are dropped, and
/// the instance is recreated.
pub fn run_guarded(
    instance: &mut Box<dyn Instance>,
    batch: Batch,
    label: RunLabel<'_>,
    renew: impl FnOnce() -> Result<Box<dyn Instance>, Error>,
) -> RunOutcome {
    let note = crash::note(label, batch.ids());
    let outcome = catch_unwind(AssertUnwindSafe(|| instance.run(batch)));
    drop(note);
    if outcome.is_ok() {
        return RunOutcome::Well;
    }
    match catch_unwind(AssertUnwindSafe(renew)) {
        Ok(Ok(new)) => {
            *instance = new;
            RunOutcome::Renewed
        }
        Ok(Err(_)) | Err(_) => RunOutcome::Dead,
    }
}

/// Recreates a lost instance, which has answered all of its requests. The old one is dropped first: there may not be
/// enough memory for two.
pub fn renew_guarded(
    instance: &mut Box<dyn Instance>,
    renew: impl FnOnce() -> Result<Box<dyn Instance>, Error>,
) -> RunOutcome {
    *instance = Box::new(GoneInstance);
    match catch_unwind(AssertUnwindSafe(renew)) {
        Ok(Ok(new)) => {
            *instance = new;
            RunOutcome::Renewed
        }
        Ok(Err(_)) | Err(_) => RunOutcome::Dead,
    }
}

/// Placeholder between the old instance and the new one: it refuses all requests.
pub struct GoneInstance;

impl Instance for GoneInstance {
    fn run(&mut self, batch: Batch) {
        let error = Error::unavailable("the instance was lost and cannot be recreated yet; try again");
        batch.requests.into_iter().for_each(|request| request.responder.send(Err(error.clone())));
    }
}
