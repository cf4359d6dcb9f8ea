//! The models of one shard: [`LocalModel`] is its hold on a model version, a producer of the workers' queue or an instance
//! of its own; [`ModelTable`] finds them by name. Nothing here is locked; what is served changes by messages
//! (`shard::mailbox`).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::{Instance, Threads};
use crate::error::Error;
use crate::model::repository::index::RepositoryOverview;
use crate::queue::queue_producer::QueueProducer;
use crate::queue::served_model::{Placement, ServedModel};
use crate::shard::ensemble_steps::EnsembleSteps;
use crate::shard::mailbox::{ControlEvent, ControlSender, HandleRoute, ModelChange, ModelHandle};

/// One shard's hold on a model version. Lives on its shard, until the last request that uses it has
/// its answer; what it is made of goes back to the control thread then.
pub struct LocalModel {
    served: Arc<ServedModel>,
    route: InstanceRoute,
    /// Whether the shard's own instance died and could not be made anew.
    is_dead: Cell<bool>,
    tell: ControlSender,
}

/// How a shard reaches an instance.
pub enum InstanceRoute {
    /// Its own.
    Inline(RefCell<Box<dyn Instance>>),
    /// The workers', by a producer.
    Lane(RefCell<QueueProducer>),
    /// By those of other models.
    Ensemble(EnsembleSteps),
    /// No longer: it was given back.
    Gone,
}

impl LocalModel {
    /// A shard's hold, as the control thread made it.
    pub fn new(hold: ModelHandle, tell: &ControlSender) -> Self {
        let route = match hold.route {
            HandleRoute::Ensemble => InstanceRoute::Ensemble(EnsembleSteps::default()),
            HandleRoute::Lane(producer) => InstanceRoute::Lane(RefCell::new(producer)),
            HandleRoute::Instance(instance) => InstanceRoute::Inline(RefCell::new(instance)),
        };
        Self { served: hold.served, route, is_dead: Cell::new(false), tell: Arc::clone(tell) }
    }

    /// The same at the start of the server, when the shard makes what runs inside it itself.
    pub fn begin(
        served: Arc<ServedModel>,
        producer: Option<QueueProducer>,
        threads: &Threads,
        tell: &ControlSender,
    ) -> Result<Self, Error> {
        let route = match (producer, &served.placement) {
            (Some(producer), _) => HandleRoute::Lane(producer),
            (None, Placement::Ensemble(_)) => HandleRoute::Ensemble,
            (None, _) => HandleRoute::Instance(served.loaded.new_instance(threads)?),
        };
        Ok(Self::new(ModelHandle { served, route }, tell))
    }

    /// The model version.
    pub const fn served(&self) -> &Arc<ServedModel> {
        &self.served
    }

    /// Says whether the shard's own instance lives after a run.
    pub fn set_alive(&self, is_alive: bool) {
        match (self.is_dead.replace(!is_alive), is_alive) {
            (false, false) => self.served.handle_instance_lost(),
            (true, true) => self.served.handle_instance_restored(),
            _ => {}
        }
    }

    /// Whether what is queued for it is not served any more: another version, or none, is instead.
    pub fn is_stopped(&self) -> bool {
        matches!(&self.route, InstanceRoute::Lane(producer) if producer.borrow().model_queue().is_stopped())
    }

    /// How to reach an instance.
    pub const fn route(&self) -> &InstanceRoute {
        &self.route
    }
}

impl Drop for LocalModel {
    fn drop(&mut self) {
        let route = match std::mem::replace(&mut self.route, InstanceRoute::Gone) {
            InstanceRoute::Inline(instance) => HandleRoute::Instance(instance.into_inner()),
            InstanceRoute::Lane(producer) => HandleRoute::Lane(producer.into_inner()),
            InstanceRoute::Ensemble(_) => HandleRoute::Ensemble,
            InstanceRoute::Gone => return,
        };
        (self.tell)(ControlEvent::Released(ModelHandle { served: Arc::clone(&self.served), route }));
    }
}

/// The models of one shard by name and version. Lives on its shard.
pub struct ModelTable {
    by_name: RefCell<HashMap<Box<str>, Vec<Rc<LocalModel>>>>,
    overview: RefCell<Arc<RepositoryOverview>>,
    tell: ControlSender,
}

impl ModelTable {
    /// Takes the models in.
    pub fn new(
        models: impl IntoIterator<Item = LocalModel>,
        overview: Arc<RepositoryOverview>,
        tell: ControlSender,
    ) -> Self {
        let new = Self { by_name: RefCell::default(), overview: RefCell::new(overview), tell };
        models.into_iter().for_each(|model| new.insert(model));
        new
    }

    /// Takes a change up, between two requests. What is served no more is given back when nothing
    /// of it waits for an answer.
    pub fn handle_change(&self, change: ModelChange) {
        self.overview.replace(change.overview);
        for gone in &change.gone {
            let mut by_name = self.by_name.borrow_mut();
            if let Some(versions) = by_name.get_mut(gone.spec.name.as_str()) {
                versions.retain(|model| !Arc::ptr_eq(&model.served, gone));
                if versions.is_empty() {
                    by_name.remove(gone.spec.name.as_str());
                }
            }
        }
        change.come.into_iter().for_each(|hold| self.insert(LocalModel::new(hold, &self.tell)));
    }

    fn insert(&self, model: LocalModel) {
        let mut by_name = self.by_name.borrow_mut();
        let versions = by_name.entry(model.served.spec.name.as_str().into()).or_default();
        versions.retain(|have| have.served.version != model.served.version);
        versions.push(Rc::new(model));
        versions.sort_by_key(|model| std::cmp::Reverse(model.served.version));
    }

    /// The versions of a model that serve, in ascending order, as Triton lists them.
    pub fn versions(&self, name: &str) -> Vec<u64> {
        let by_name = self.by_name.borrow();
        let versions = by_name.get(name).map_or(&[][..], Vec::as_slice);
        versions.iter().rev().map(|model| model.served.version).collect()
    }

    /// A version of a model; where none is named the highest that is ready, or the highest where
    /// none is.
    pub fn find(&self, name: &str, version: Option<u64>) -> Result<Rc<LocalModel>, Error> {
        let by_name = self.by_name.borrow();
        let versions = by_name.get(name).map_or(&[][..], Vec::as_slice);
        let found = match version {
            Some(version) => versions.iter().find(|model| model.served.version == version),
            None => versions.iter().find(|model| model.served.is_ready()).or_else(|| versions.first()),
        };
        found.map(Rc::clone).ok_or_else(|| self.overview.borrow().refusal(name, version))
    }

    /// What is known of all models.
    pub fn overview(&self) -> Arc<RepositoryOverview> {
        Arc::clone(&self.overview.borrow())
    }

    /// Whether every instance of all models lives.
    pub fn are_alive(&self) -> bool {
        self.by_name.borrow().values().flatten().all(|model| model.served.is_ready())
    }

    /// All model versions that serve, by name, the highest version of each first.
    pub fn served(&self) -> Vec<Arc<ServedModel>> {
        let by_name = self.by_name.borrow();
        let mut served: Vec<_> = by_name.values().flatten().map(|model| Arc::clone(&model.served)).collect();
        served.sort_by(|one, other| (&one.spec.name, other.version).cmp(&(&other.spec.name, one.version)));
        served
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::backend::{Batch, LoadedModel};
    use crate::model::config::{CompletionRules, ConfigDraft};
    use crate::model::repository::index::{ModelOverview, UNLOADED, VersionOverview, VersionState};
    use crate::queue::sync::SegQueue;

    struct Nothing;

    impl LoadedModel for Nothing {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(Self))
        }

        fn may_run_inline(&self) -> bool {
            true
        }
    }

    impl Instance for Nothing {
        fn run(&mut self, _: Batch) {}
    }

    fn served(name: &str, version: u64) -> Arc<ServedModel> {
        let text = "backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }\n\
                    output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }";
        let draft = ConfigDraft::new(name, Some(text.as_bytes()), &[]).unwrap();
        let spec = Arc::new(draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap());
        Arc::new(ServedModel::new(spec, version, Arc::new(Nothing), Placement::Inline, 1))
    }

    fn hold(served: &Arc<ServedModel>) -> ModelHandle {
        ModelHandle { served: Arc::clone(served), route: HandleRoute::Instance(Box::new(Nothing)) }
    }

    fn change(gone: &[&Arc<ServedModel>], come: &[&Arc<ServedModel>]) -> ModelChange {
        let (gone, come) = (gone.iter().map(|served| Arc::clone(served)), come.iter().map(|served| hold(served)));
        let version = VersionOverview {
            version: 9,
            state: VersionState::Unavailable,
            reason: UNLOADED.to_owned(),
            load_time: None,
        };
        let model = ModelOverview { name: "m".to_owned(), versions: vec![version], ..ModelOverview::default() };
        ModelChange {
            number: 1,
            overview: Arc::new(RepositoryOverview { models: vec![model] }),
            gone: gone.collect(),
            come: come.collect(),
        }
    }

    /// No models, and the versions that are given back.
    fn models() -> (ModelTable, Arc<SegQueue<u64>>) {
        let released = Arc::new(SegQueue::new());
        let told = Arc::clone(&released);
        let tell: ControlSender = Arc::new(move |what| {
            if let ControlEvent::Released(hold) = what {
                told.push(hold.served.version);
            }
        });
        (ModelTable::new([], Arc::default(), tell), released)
    }

    fn found(models: &ModelTable, version: Option<u64>) -> Result<u64, String> {
        let model = models.find("m", version).map_err(|error| error.text().to_owned())?;
        Ok(model.served.version)
    }

    #[test]
    fn a_change_swaps_versions_and_gives_back_what_serves_no_more() {
        let (models, released) = models();
        let unknown = |rest: &str| Err(format!("Request for unknown model: 'm' {rest}"));
        assert_eq!(found(&models, None), unknown("is not found"));
        let (one, two, again) = (served("m", 1), served("m", 2), served("m", 2));
        models.handle_change(change(&[], &[&one, &two]));
        assert_eq!((found(&models, None), found(&models, Some(1)), models.versions("m")), (Ok(2), Ok(1), vec![1, 2]));
        models.handle_change(change(&[], &[&again]));
        assert_eq!((released.pop(), models.versions("m")), (Some(2), vec![1, 2]), "the same number, another version");
        assert!(Arc::ptr_eq(&models.find("m", Some(2)).unwrap().served, &again));
        models.handle_change(change(&[&two], &[]));
        assert_eq!(models.versions("m"), [1, 2], "the old one was gone, the new one stays");
        models.handle_change(change(&[&again, &one], &[]));
        assert_eq!((released.pop(), released.pop()), (Some(2), Some(1)));
        assert_eq!(found(&models, None), unknown("has no available versions"));
        assert_eq!(found(&models, Some(9)), unknown("version 9 is not at ready state"));
        assert!(models.served().is_empty());
    }

    #[test]
    fn a_version_is_given_back_when_its_last_request_has_its_answer() {
        let (models, released) = models();
        let one = served("m", 1);
        models.handle_change(change(&[], &[&one]));
        let (request, other) = (models.find("m", None).unwrap(), models.find("m", None).unwrap());
        models.handle_change(change(&[&one], &[]));
        drop(request);
        assert_eq!(released.pop(), None, "another request has it still");
        drop(other);
        assert_eq!((released.pop(), released.pop()), (Some(1), None));
    }

    #[test]
    fn who_names_no_version_gets_the_highest_that_is_ready() {
        let (models, _released) = models();
        let (one, two) = (served("m", 1), served("m", 2));
        models.handle_change(change(&[], &[&one, &two]));
        two.handle_instance_lost();
        assert_eq!((found(&models, None), found(&models, Some(2)), models.are_alive()), (Ok(1), Ok(2), false));
        one.handle_instance_lost();
        assert_eq!(found(&models, None), Ok(2), "as if all were ready");
        two.handle_instance_restored();
        one.handle_instance_restored();
        assert_eq!((found(&models, None), models.are_alive()), (Ok(2), true));
    }
}
