//! The models that are served. [`Served`] is shared by all threads; [`LocalModel`] is one shard's
//! hold on it: its lane to the workers, or its own instance. Nothing here is locked.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::backend::{Batch, Instance, LoadedModel, Threads};
use crate::error::Error;
use crate::metrics::{ModelCells, ModelFigures, SequenceFigures};
use crate::model::ModelSpec;
use crate::scheduler::Released;
use crate::scheduler::sequence::End;
use crate::shard::feed::{Feed, Lane, SequenceCounts, batch_sizes};

/// One model version that is served.
pub struct Served {
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
    /// On worker threads, which the shards feed.
    Worker(Arc<Feed>),
}

impl Served {
    /// A model version for so many shards; ready.
    pub fn new(
        spec: Arc<ModelSpec>,
        version: u64,
        loaded: Arc<dyn LoadedModel>,
        placement: Placement,
        shards: usize,
    ) -> Self {
        let sizes = match &placement {
            Placement::Inline => batch_sizes(spec.rows_max),
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
        let feed = match &self.placement {
            Placement::Inline => None,
            Placement::Worker(feed) => Some(feed),
        };
        let seats = feed.map_or(&[][..], |feed| feed.seats());
        let inline: u64 = self.cells.iter().map(ModelCells::executions).sum();
        let releases = Released::ALL.iter().map(|reason| {
            let by_workers = feed.map_or(0, |feed| feed.released(*reason) as u64);
            (reason.as_str(), by_workers + if *reason == Released::Idle { inline } else { 0 })
        });
        ModelFigures {
            name: &self.spec.name,
            version: self.version,
            cells: self.cells.iter().collect(),
            workers: feed.map(|feed| feed.batches()),
            releases: releases.collect(),
            pending: feed.map_or(0, |feed| feed.waiting() as u64),
            placement: if feed.is_some() { "worker" } else { "inline" },
            run: self.run,
            instances: seats.iter().map(|seat| (seat.name(), seat.batches())).collect(),
            wakes: feed.map_or(0, |feed| feed.wakes() as u64),
            late: feed.map_or(0, |feed| feed.late() as u64),
            sequences: feed.and_then(|feed| feed.sequences()).map(sequence_figures),
        }
    }
}

fn sequence_figures(counts: &SequenceCounts) -> SequenceFigures {
    SequenceFigures {
        active: counts.active() as u64,
        backlogged: counts.backlogged() as u64,
        ends: End::ALL.iter().map(|end| (end.as_str(), counts.ended(*end) as u64)).collect(),
    }
}

/// One shard's hold on a model version. Lives on its shard.
pub struct LocalModel {
    served: Arc<Served>,
    way: Way,
    /// Whether the shard's own instance died and could not be made anew.
    is_dead: Cell<bool>,
}

/// How a shard reaches an instance.
pub enum Way {
    /// Its own.
    Inline(RefCell<Box<dyn Instance>>),
    /// The workers', by a lane.
    Lane(RefCell<Lane>),
}

impl LocalModel {
    /// A shard's hold: with a lane where the model runs on workers, with an instance of its own
    /// where it runs inline.
    pub fn new(served: Arc<Served>, lane: Option<Lane>, threads: &Threads) -> Result<Self, Error> {
        let way = match lane {
            Some(lane) => Way::Lane(RefCell::new(lane)),
            None => Way::Inline(RefCell::new(served.loaded.new_instance(threads)?)),
        };
        Ok(Self { served, way, is_dead: Cell::new(false) })
    }

    /// The model version.
    pub const fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Says whether the shard's own instance lives after a run.
    pub fn set_alive(&self, is_alive: bool) {
        match (self.is_dead.replace(!is_alive), is_alive) {
            (false, false) => self.served.handle_death(),
            (true, true) => self.served.handle_revival(),
            _ => {}
        }
    }

    /// How to reach an instance.
    pub const fn way(&self) -> &Way {
        &self.way
    }
}

/// What became of an instance in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
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
) -> Ran {
    if catch_unwind(AssertUnwindSafe(|| instance.run(batch))).is_ok() {
        return Ran::Well;
    }
    match catch_unwind(AssertUnwindSafe(renew)) {
        Ok(Ok(new)) => {
            *instance = new;
            Ran::Renewed
        }
        Ok(Err(_)) | Err(_) => Ran::Dead,
    }
}

/// The models of one shard by name and version. Lives on its shard.
#[derive(Default)]
pub struct LocalModels {
    by_name: HashMap<Box<str>, Vec<Rc<LocalModel>>>,
}

impl LocalModels {
    /// Takes the models in.
    pub fn new(models: impl IntoIterator<Item = LocalModel>) -> Self {
        let mut by_name: HashMap<Box<str>, Vec<Rc<LocalModel>>> = HashMap::new();
        for model in models {
            by_name.entry(model.served.spec.name.as_str().into()).or_default().push(Rc::new(model));
        }
        for versions in by_name.values_mut() {
            versions.sort_by_key(|model| std::cmp::Reverse(model.served.version));
        }
        Self { by_name }
    }

    /// The versions of a model, highest first; empty where there is no such model.
    pub fn versions(&self, name: &str) -> &[Rc<LocalModel>] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// A version of a model, the highest where none is named; the texts are Triton's.
    pub fn find(&self, name: &str, version: Option<u64>) -> Result<&Rc<LocalModel>, Error> {
        let versions = self.versions(name);
        let Some(highest) = versions.first() else {
            return Err(Error::not_found(format!("Request for unknown model: '{name}' is not found")));
        };
        let Some(version) = version else { return Ok(highest) };
        let found = versions.iter().find(|model| model.served.version == version);
        found.ok_or_else(|| {
            Error::not_found(format!("Request for unknown model: '{name}' version {version} is not found"))
        })
    }

    /// All model versions.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<LocalModel>> {
        self.by_name.values().flatten()
    }
}
