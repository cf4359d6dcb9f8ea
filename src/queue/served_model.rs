//! One model version that is served, as all threads share it: its configuration, where its instances run, what is counted
//! of it; and how a batch runs on one of its instances so that a panic of the engine costs the batch alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::backend::gpu::GpuInstanceFigures;
use crate::backend::{Batch, Instance, LoadedModel};
use crate::error::Error;
use crate::metrics::{GpuFigures, ModelCells, ModelFigures, SequenceFigures};
use crate::model::ModelSpec;
use crate::queue::model_queue::{ModelQueue, SequenceCounts, batch_sizes};
use crate::queue::semaphore::Semaphore;
use crate::scheduler::ReleaseReason;
use crate::scheduler::sequence::SequenceEnd;

/// One model version that is served.
pub struct ServedModel {
    /// Its checked configuration.
    pub spec: Arc<ModelSpec>,
    /// Its version.
    pub version: u64,
    /// Where its instances come from.
    pub loaded: Arc<dyn LoadedModel>,
    /// Where its instances run.
    pub placement: Placement,
    /// What each shard counts of it.
    pub cells: Box<[ModelCells]>,
    /// The shortest run of one row before it served, where it was measured.
    run: Option<Duration>,
    dead: AtomicUsize,
}

/// Where the instances of a model version run.
#[derive(Clone)]
pub enum Placement {
    /// Inside each shard: a run costs less than a hop.
    Inline,
    /// On worker threads, which the shards queue.
    Worker(Arc<ModelQueue>),
    /// There are none: its steps run other models. The permits of each, where their number is bounded.
    Ensemble(Arc<[Arc<Semaphore>]>),
}

impl ServedModel {
    /// A model version for so many shards; ready.
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
        let cells = (0..shards).map(|_| ModelCells::new(sizes)).collect();
        Self { spec, version, loaded, placement, cells, run: None, dead: AtomicUsize::new(0) }
    }

    /// The same with how long one row takes.
    pub fn measured(self, run: Option<Duration>) -> Self {
        Self { run, ..self }
    }

    /// Whether it can serve: none of its instances is being made anew.
    pub fn is_ready(&self) -> bool {
        self.dead.load(Ordering::Relaxed) == 0
    }

    /// One of its instances died and could not be made anew.
    pub fn handle_death(&self) {
        self.dead.fetch_add(1, Ordering::Relaxed);
    }

    /// A dead instance was made anew.
    pub fn handle_revival(&self) {
        self.dead.fetch_sub(1, Ordering::Relaxed);
    }

    /// What there is to show of it. What runs inside the shards waits for nothing: its batches
    /// left because an instance was idle.
    pub fn figures(&self) -> ModelFigures<'_> {
        let model_queue = match &self.placement {
            Placement::Inline | Placement::Ensemble(_) => None,
            Placement::Worker(model_queue) => Some(model_queue),
        };
        let parkings = model_queue.map_or(&[][..], |model_queue| model_queue.parkings());
        let inline: u64 = self.cells.iter().map(ModelCells::executions).sum();
        let releases = ReleaseReason::ALL.iter().map(|reason| {
            let by_workers = model_queue.map_or(0, |model_queue| model_queue.released(*reason) as u64);
            (reason.as_str(), by_workers + if *reason == ReleaseReason::Idle { inline } else { 0 })
        });
        ModelFigures {
            name: &self.spec.name,
            version: self.version,
            labels: &self.spec.metric_labels,
            is_cached: self.spec.is_cached,
            cells: self.cells.iter().collect(),
            workers: model_queue.map(|model_queue| model_queue.batches()),
            releases: releases.collect(),
            pending: model_queue.map_or(0, |model_queue| model_queue.waiting() as u64),
            placement: match &self.placement {
                Placement::Ensemble(_) => "ensemble",
                Placement::Inline => "inline",
                Placement::Worker(_) => "worker",
            },
            run: self.run,
            instances: parkings.iter().map(|parking| (parking.name(), parking.batches())).collect(),
            wakes: model_queue.map_or(0, |model_queue| model_queue.wakes() as u64),
            late: model_queue.map_or(0, |model_queue| model_queue.late() as u64),
            sequences: model_queue.and_then(|model_queue| model_queue.sequences()).map(sequence_figures),
            gpu: self.loaded.gpu_figures().map(|figures| gpu_figures(&figures)),
        }
    }
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
        ends: SequenceEnd::ALL.iter().map(|end| (end.as_str(), counts.ended(*end) as u64)).collect(),
    }
}

/// What became of an instance in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// It lives.
    Well,
    /// It died, and was made anew: what it kept is gone.
    Renewed,
    /// It died, and could not be made anew.
    Dead,
}

/// Runs a batch and survives a panic of the engine: the batch's requests are answered by their
/// responders, and the instance is made anew.
pub fn run_guarded(
    instance: &mut Box<dyn Instance>,
    batch: Batch,
    renew: impl FnOnce() -> Result<Box<dyn Instance>, Error>,
) -> RunOutcome {
    if catch_unwind(AssertUnwindSafe(|| instance.run(batch))).is_ok() {
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

/// Makes an instance anew that was lost, which has answered for all that it had. What it holds is given
/// back before: there may not be enough for two.
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

/// Stands where an instance was, until there is another.
struct GoneInstance;

impl Instance for GoneInstance {
    fn run(&mut self, batch: Batch) {
        let error = Error::unavailable("the instance was lost and cannot be made anew for now; try again");
        batch.requests.into_iter().for_each(|request| request.responder.send(Err(error.clone())));
    }
}
