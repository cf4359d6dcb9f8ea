//! The update of the instances of a version that serves: new ones are made beside those that serve, and when all of them
//! are there the version takes the new set. Instances that leave end when their runs and their sequences have. Runs on a
//! load thread; touches nothing that serves before [`PreparedUpdate::commit`].

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::control::loading::loaded_version::LoadBasis;
use crate::control::loading::model_loader::regrouped::RegroupedSpec;
use crate::control::loading::placement::WorkerLoad;
use crate::control::serving::plan::RunTimePlaces;
use crate::control::serving::threads::{ServingWorkers, StartedWorkers, ThreadHooks};
use crate::error::Error;
use crate::log;
use crate::model::{InstanceSeat, InstanceUpdate, ModelSpec};
use crate::queue::model_queue::{InstanceChange, ModelQueue};
use crate::queue::served_model::{Placement, ServedModel};
use crate::runtime::clock;

/// Returns the reason that a version must be loaded again for these instance groups; `None` if they can be changed while
/// it serves.
pub fn why_reloaded(served: &ServedModel, new: &ModelSpec, has_limiter: bool) -> Option<&'static str> {
    let old = served.current_spec();
    let groups = || old.instance_groups.iter().chain(&new.instance_groups);
    let gpus =
        |spec: &ModelSpec| spec.instance_groups.iter().flat_map(|group| group.gpus.clone()).collect::<BTreeSet<_>>();
    match &served.placement {
        Placement::Inline => Some("its instances are in the shards"),
        Placement::Ensemble(_) => Some("it is an ensemble"),
        Placement::Worker(_) if has_limiter => {
            Some("its instances are registered with the rate limiter (--rate-limit)")
        }
        Placement::Worker(_) if groups().any(|group| group.is_passive) => Some("an instance group is passive"),
        Placement::Worker(_) if gpus(&old) != gpus(new) => Some("its GPUs change"),
        Placement::Worker(_) if old.is_on_cpu() != new.is_on_cpu() => Some("the kinds of its groups change"),
        Placement::Worker(_) if served.lost() > 0 => Some("an instance is lost"),
        Placement::Worker(_) => None,
    }
}

/// The resources of the server for new instances.
#[derive(Clone, Copy)]
pub struct UpdateSite<'a> {
    /// The cores of new workers.
    pub places: RunTimePlaces<'a>,
    /// The calls by which worker threads report their end.
    pub thread_hooks: &'a ThreadHooks,
}

/// An update whose new instances are made and take no batches yet. Must be committed or given up.
pub struct PreparedUpdate {
    served: Arc<ServedModel>,
    model_queue: Arc<ModelQueue>,
    spec: Arc<ModelSpec>,
    /// The basis of the next update, with the configuration that the model's code is told.
    basis: Arc<LoadBasis>,
    /// The configuration that it was told last.
    told: Arc<ModelSpec>,
    update: InstanceUpdate,
    /// The parkings of the new instances.
    joined: Vec<usize>,
    /// Instances that an earlier update removed and that stay now.
    stayed: Vec<usize>,
    workers: Option<StartedWorkers>,
}

/// A version whose instances were updated.
pub struct UpdatedVersion {
    /// Its number.
    pub version: u64,
    /// The basis of its next update.
    pub basis: Arc<LoadBasis>,
    /// The workers of the new instances; `None` without any.
    pub workers: Option<StartedWorkers>,
    /// The parkings of the instances that leave and have no sequences to wait for.
    pub leaving: Vec<usize>,
}

impl PreparedUpdate {
    /// Makes the new instances of a version for these groups. `None` if its queue has too few places for them: the
    /// version must be loaded again.
    ///
    /// # Errors
    /// The reason that an instance cannot be made. All is as before then.
    pub fn new(
        site: UpdateSite<'_>,
        serving: &ServingWorkers,
        RegroupedSpec { spec, basis, told, .. }: &RegroupedSpec,
        load: WorkerLoad,
    ) -> Result<Option<Self>, Error> {
        let served = &serving.served;
        let Placement::Worker(model_queue) = &served.placement else { return Ok(None) };
        let (update, stayed) = plan(serving, model_queue, spec);
        let names: Vec<String> = update.added.iter().map(|(seat, _)| seat.name.clone()).collect();
        let joined = model_queue.join(&names);
        let has_room = joined.is_some();
        let mut prepared = Self {
            served: Arc::clone(served),
            model_queue: Arc::clone(model_queue),
            spec: Arc::clone(spec),
            basis: Arc::clone(basis),
            told: Arc::clone(told),
            update,
            joined: joined.unwrap_or_default(),
            stayed,
            workers: None,
        };
        if !has_room {
            prepared.give_up();
            return Ok(None);
        }
        match prepared.make(site, serving, load) {
            Ok(()) => Ok(Some(prepared)),
            Err(error) => {
                // Their places are free already.
                prepared.joined.clear();
                prepared.give_up();
                Err(error)
            }
        }
    }

    fn make(&mut self, site: UpdateSite<'_>, serving: &ServingWorkers, load: WorkerLoad) -> Result<(), Error> {
        let seats: Vec<InstanceSeat> = self.update.added.iter().map(|(seat, _)| seat.clone()).collect();
        let free = |error: Error| {
            self.model_queue.give_up(&self.joined);
            error
        };
        self.served.loaded.prepare_instances(&self.basis.configured, &seats).map_err(free)?;
        if seats.is_empty() {
            return Ok(());
        }
        let placed = self.joined.iter().copied().zip(seats).collect();
        let placements = site.places.placements(&self.spec, load, placed).map_err(free)?;
        self.workers = Some(StartedWorkers::add(serving, &placements, site.thread_hooks)?);
        Ok(())
    }

    /// Ends the new instances: the version keeps those that it has.
    pub fn give_up(self) {
        match self.workers {
            Some(workers) => workers.give_up(),
            None => self.model_queue.give_up(&self.joined),
        }
        let change = InstanceChange { serving: Vec::new(), leaving: self.stayed };
        self.model_queue.apply(&change, clock::now());
        // The instances are those of before.
        let _ = self.served.loaded.prepare_instances(&self.told, &[]);
    }

    /// The new instances take batches from now on, and those that are not wanted no others.
    pub fn commit(self) -> UpdatedVersion {
        let Self { served, model_queue, spec, basis, update, joined, workers, .. } = self;
        let added = joined.iter().zip(&update.added).map(|(index, (_, group))| (*index, *group));
        let serving = update.kept.iter().copied().chain(added).collect();
        let change = InstanceChange { serving, leaving: update.removed };
        served.handle_updated(spec);
        model_queue.apply(&change, clock::now());
        log::info(&format!(
            "updated the instances of '{}' version {} in place: {} kept, {} added, {} removed",
            served.spec.name,
            served.version,
            update.kept.len(),
            joined.len(),
            change.leaving.len(),
        ));
        // A sequence may go on for as long as its client likes.
        let leaving = if served.spec.sequence.is_some() { Vec::new() } else { change.leaving };
        UpdatedVersion { version: served.version, basis, workers, leaving }
    }
}

/// Plans the update, and has those instances stay that it keeps and that were leaving. An instance may end meanwhile: then
/// the plan is made again.
fn plan(serving: &ServingWorkers, model_queue: &ModelQueue, spec: &ModelSpec) -> (InstanceUpdate, Vec<usize>) {
    let mut stayed = Vec::new();
    loop {
        let known = serving.known();
        let update = InstanceUpdate::new(&known, &spec.instance_groups);
        let is_kept = |index: usize| update.kept.iter().any(|(kept, _)| *kept == index);
        let leaving = known.iter().filter(|instance| instance.is_leaving && is_kept(instance.index));
        let leaving: Vec<usize> = leaving.map(|instance| instance.index).collect();
        let (stay, gone): (Vec<_>, Vec<_>) =
            leaving.into_iter().partition(|index| model_queue.stay(*index, clock::now()));
        stayed.extend(stay);
        if gone.is_empty() {
            return (update, stayed);
        }
    }
}
