//! The models of one shard: [`LocalModel`] is its handle of a model version, which owns a producer of the model queue
//! or an instance; [`ModelTable`] finds them by name. Nothing here is locked: changes arrive as messages
//! (`shard::mailbox`) and are applied between two requests.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::{Instance, Threads};
use crate::error::Error;
use crate::model::repository::index::{RepositoryOverview, StartCounts};
use crate::queue::given_up::watch_inline;
use crate::queue::model_queue::ModelQueue;
use crate::queue::model_queue::queue_producer::QueueProducer;
use crate::queue::served_model::{Placement, ServedModel};
use crate::shard::mailbox::{ControlEvent, ControlSender, HandleRoute, ModelChange, ModelHandle};
use crate::shard::models::ensemble_steps::EnsembleSteps;
use crate::shard::server_context::ShardContext;

/// One shard's handle of a model version. Each request that runs on the version holds a reference; when the last one is
/// dropped, the parts go back to the control thread, which frees them.
pub struct LocalModel {
    served: Arc<ServedModel>,
    route: InstanceRoute,
    /// True if the shard's own instance failed and could not be recreated.
    is_dead: Cell<bool>,
    control: ControlSender,
}

/// A model queue, held by a count of references that is this shard's own: that of the `Arc` is written by all.
pub type LocalQueue = Rc<Arc<ModelQueue>>;

/// The route of a shard to an instance.
pub enum InstanceRoute {
    /// An instance of its own, run inside the shard.
    Inline(RefCell<Box<dyn Instance>>),
    /// The workers' instances, through a producer of the model queue, and that queue.
    Queue(RefCell<QueueProducer>, LocalQueue),
    /// No instance: an ensemble's steps run on other models.
    Ensemble(EnsembleSteps),
    /// Its parts were sent back. Seen only inside `drop`.
    Released,
}

impl LocalModel {
    /// A handle that the control thread sent.
    pub fn new(handle: ModelHandle, control: &ControlSender) -> Self {
        let route = match handle.route {
            HandleRoute::Ensemble => InstanceRoute::Ensemble(EnsembleSteps::default()),
            HandleRoute::Queue(producer) => {
                let model_queue = Rc::new(Arc::clone(producer.model_queue()));
                InstanceRoute::Queue(RefCell::new(producer), model_queue)
            }
            HandleRoute::Instance(mut instance) => {
                watch_inline(&handle.served, &mut *instance);
                InstanceRoute::Inline(RefCell::new(instance))
            }
        };
        Self { served: handle.served, route, is_dead: Cell::new(false), control: Arc::clone(control) }
    }

    /// A handle at the start of the server, when the shard itself makes the instance that runs inside it.
    ///
    /// # Errors
    /// The error of the backend that makes the instance.
    pub fn begin(
        served: Arc<ServedModel>,
        producer: Option<QueueProducer>,
        threads: &Threads,
        control: &ControlSender,
    ) -> Result<Self, Error> {
        let route = match (producer, &served.placement) {
            (Some(producer), _) => HandleRoute::Queue(producer),
            (None, Placement::Ensemble(_)) => HandleRoute::Ensemble,
            (None, _) => HandleRoute::Instance(served.loaded.new_instance(threads)?),
        };
        Ok(Self::new(ModelHandle { served, route }, control))
    }

    /// The model version.
    pub const fn served(&self) -> &Arc<ServedModel> {
        &self.served
    }

    /// Records after a run whether the shard's own instance still works, and reports a change to the model version.
    pub fn set_alive(&self, is_alive: bool) {
        match (self.is_dead.replace(!is_alive), is_alive) {
            (false, false) => self.served.handle_instance_lost(),
            (true, true) => self.served.handle_instance_restored(),
            _ => {}
        }
    }

    /// Returns true if its queue was stopped because the version was unloaded or replaced: requests
    /// queued now are not served.
    pub fn is_stopped(&self) -> bool {
        matches!(&self.route, InstanceRoute::Queue(_, model_queue) if model_queue.is_stopped())
    }

    /// The route to an instance.
    pub const fn route(&self) -> &InstanceRoute {
        &self.route
    }
}

impl Drop for LocalModel {
    fn drop(&mut self) {
        let route = match std::mem::replace(&mut self.route, InstanceRoute::Released) {
            InstanceRoute::Inline(instance) => HandleRoute::Instance(instance.into_inner()),
            InstanceRoute::Queue(producer, _) => HandleRoute::Queue(producer.into_inner()),
            InstanceRoute::Ensemble(_) => HandleRoute::Ensemble,
            InstanceRoute::Released => return,
        };
        (self.control)(ControlEvent::Released(ModelHandle { served: Arc::clone(&self.served), route }));
    }
}

/// The models of one shard by name and version.
pub struct ModelTable {
    by_name: RefCell<HashMap<Box<str>, Vec<Rc<LocalModel>>>>,
    /// The names that models of several namespaces have: requests for them are refused.
    ambiguous: RefCell<HashSet<Box<str>>>,
    overview: RefCell<Arc<RepositoryOverview>>,
    pub(super) context: ShardContext,
}

impl ModelTable {
    /// A table of these models; `overview` describes all, those that do not serve included.
    pub fn new(
        models: impl IntoIterator<Item = LocalModel>,
        overview: Arc<RepositoryOverview>,
        context: ShardContext,
    ) -> Self {
        let (by_name, ambiguous) = (RefCell::default(), RefCell::new(ambiguous_names(&overview)));
        let new = Self { by_name, ambiguous, overview: RefCell::new(overview), context };
        models.into_iter().for_each(|model| new.insert(model));
        new
    }

    /// Applies a change. A removed version goes back to the control thread when its last request is answered.
    pub fn handle_change(&self, change: ModelChange) {
        self.ambiguous.replace(ambiguous_names(&change.overview));
        self.overview.replace(change.overview);
        for removed in &change.removed {
            let mut by_name = self.by_name.borrow_mut();
            if let Some(versions) = by_name.get_mut(removed.spec.name.as_str()) {
                versions.retain(|model| !Arc::ptr_eq(&model.served, removed));
                if versions.is_empty() {
                    by_name.remove(removed.spec.name.as_str());
                }
            }
        }
        change
            .added
            .into_iter()
            .for_each(|handle| self.insert(LocalModel::new(handle, &self.context.server.control_link.control)));
    }

    fn insert(&self, model: LocalModel) {
        let mut by_name = self.by_name.borrow_mut();
        let versions = by_name.entry(model.served.spec.name.as_str().into()).or_default();
        let key = |model: &LocalModel| (model.served.version, model.served.spec.namespace.clone());
        versions.retain(|have| key(have) != key(&model));
        versions.push(Rc::new(model));
        versions.sort_by_key(|model| std::cmp::Reverse(model.served.version));
    }

    /// Returns true if any version of a model serves.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.borrow().contains_key(name)
    }

    /// The serving versions of a model in ascending order, as Triton lists them.
    pub fn versions(&self, name: &str) -> Vec<u64> {
        let by_name = self.by_name.borrow();
        let versions = by_name.get(name).map_or(&[][..], Vec::as_slice);
        versions.iter().rev().map(|model| model.served.version).collect()
    }

    /// A version of a model. Without a version: the highest ready one, or the highest of all if no
    /// version is ready.
    ///
    /// # Errors
    /// If no such version serves: not found, or unavailable with the state that it is in. Invalid
    /// if several namespaces have the name.
    pub fn find(&self, name: &str, version: Option<u64>) -> Result<Rc<LocalModel>, Error> {
        self.check_unambiguous(name)?;
        self.find_where(name, version, |_| true)
    }

    /// Refuses a name that models of several namespaces have.
    ///
    /// # Errors
    /// Invalid, in Triton's words.
    pub fn check_unambiguous(&self, name: &str) -> Result<(), Error> {
        let ambiguous = self.ambiguous.borrow();
        if ambiguous.is_empty() || !ambiguous.contains(name) {
            return Ok(());
        }
        Err(self.overview.borrow().ambiguity(name))
    }

    /// The same in one namespace: the model of an ensemble's step.
    ///
    /// # Errors
    /// If no such version serves.
    pub fn find_in(&self, namespace: &str, name: &str, version: Option<u64>) -> Result<Rc<LocalModel>, Error> {
        self.find_where(name, version, |model| model.served.spec.namespace == namespace)
    }

    fn find_where(
        &self,
        name: &str,
        version: Option<u64>,
        is_meant: impl Fn(&LocalModel) -> bool,
    ) -> Result<Rc<LocalModel>, Error> {
        let by_name = self.by_name.borrow();
        let versions = || by_name.get(name).map_or(&[][..], Vec::as_slice).iter().filter(|model| is_meant(model));
        let found = match version {
            Some(version) => versions().find(|model| model.served.version == version),
            None => versions().find(|model| model.served.is_ready()).or_else(|| versions().next()),
        };
        found.map(Rc::clone).ok_or_else(|| self.overview.borrow().refusal(name, version))
    }

    /// The loads of the start, until the server has started.
    pub fn start_counts(&self) -> Option<StartCounts> {
        self.overview.borrow().start.as_ref().map(|start| start.counts())
    }

    /// The state of all models.
    pub fn overview(&self) -> Arc<RepositoryOverview> {
        Arc::clone(&self.overview.borrow())
    }

    /// Returns true if all serving versions have working instances.
    pub fn are_alive(&self) -> bool {
        self.by_name.borrow().values().flatten().all(|model| model.served.is_ready())
    }

    /// All serving versions, sorted by name, the highest version of each first.
    pub fn served(&self) -> Vec<Arc<ServedModel>> {
        let by_name = self.by_name.borrow();
        let mut served: Vec<_> = by_name.values().flatten().map(|model| Arc::clone(&model.served)).collect();
        served.sort_by(|one, other| (&one.spec.name, other.version).cmp(&(&other.spec.name, one.version)));
        served
    }
}

fn ambiguous_names(overview: &RepositoryOverview) -> HashSet<Box<str>> {
    overview.ambiguous_names().into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::backend::{Batch, LoadedModel};
    use crate::model::config::{CompletionRules, ConfigDraft};
    use crate::model::repository::index::{ModelOverview, UNLOADED, VersionOverview, VersionState};
    use crate::queue::sync::SegQueue;
    use crate::shard::trial;

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

    fn handle(served: &Arc<ServedModel>) -> ModelHandle {
        ModelHandle { served: Arc::clone(served), route: HandleRoute::Instance(Box::new(Nothing)) }
    }

    fn change(removed: &[&Arc<ServedModel>], added: &[&Arc<ServedModel>]) -> ModelChange {
        let (removed, added) =
            (removed.iter().map(|served| Arc::clone(served)), added.iter().map(|served| handle(served)));
        let version = VersionOverview {
            version: 9,
            state: VersionState::Unavailable,
            reason: UNLOADED.to_owned(),
            load_time: None,
        };
        let model = ModelOverview { name: "m".to_owned(), versions: vec![version], ..ModelOverview::default() };
        ModelChange {
            number: 1,
            overview: Arc::new(RepositoryOverview { models: vec![model], start: None }),
            removed: removed.collect(),
            added: added.collect(),
        }
    }

    /// An empty table, and the queue of the versions that it sends back.
    fn models() -> (ModelTable, Arc<SegQueue<u64>>) {
        let released = Arc::new(SegQueue::new());
        let sent = Arc::clone(&released);
        let control: ControlSender = Arc::new(move |what| {
            if let ControlEvent::Released(handle) = what {
                sent.push(handle.served.version);
            }
        });
        let context = Arc::new(trial::server_context(1, control));
        (ModelTable::new([], Arc::default(), ShardContext::new(&context, 0)), released)
    }

    fn found(models: &ModelTable, version: Option<u64>) -> Result<u64, String> {
        let model = models.find("m", version).map_err(|error| error.text().to_owned())?;
        Ok(model.served.version)
    }

    #[test]
    fn a_change_swaps_versions_and_releases_those_it_removes() {
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
        assert_eq!(models.versions("m"), [1, 2], "the old one was removed before, the new one stays");
        models.handle_change(change(&[&again, &one], &[]));
        assert_eq!((released.pop(), released.pop()), (Some(2), Some(1)));
        assert_eq!(found(&models, None), unknown("has no available versions"));
        assert_eq!(found(&models, Some(9)), unknown("version 9 is not at ready state"));
        assert!(models.served().is_empty());
    }

    #[test]
    fn a_version_is_released_when_its_last_request_has_its_answer() {
        let (models, released) = models();
        let one = served("m", 1);
        models.handle_change(change(&[], &[&one]));
        let (request, other) = (models.find("m", None).unwrap(), models.find("m", None).unwrap());
        models.handle_change(change(&[&one], &[]));
        drop(request);
        assert_eq!(released.pop(), None, "another request still uses it");
        drop(other);
        assert_eq!((released.pop(), released.pop()), (Some(1), None));
    }

    #[test]
    fn a_request_without_a_version_gets_the_highest_that_is_ready() {
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

    #[test]
    fn a_name_of_several_namespaces_is_ambiguous_and_a_step_finds_its_own() {
        let (models, _) = models();
        let of = |namespace: &str, version| {
            let plain = served("m", version);
            let spec = model::ModelSpec { namespace: namespace.to_owned(), ..(*plain.spec).clone() };
            Arc::new(ServedModel::new(Arc::new(spec), version, Arc::new(Nothing), Placement::Inline, 1))
        };
        let overview = |states: &[(&str, VersionState)]| {
            let model = |(namespace, state): &(&str, VersionState)| {
                let version = VersionOverview { version: 1, state: *state, reason: String::new(), load_time: None };
                let (name, namespace) = ("m".to_owned(), (*namespace).to_owned());
                ModelOverview { name, namespace, versions: vec![version], ..ModelOverview::default() }
            };
            Arc::new(RepositoryOverview::new(states.iter().map(model).collect()))
        };
        let (one, two) = (of("/a", 1), of("/b", 1));
        let both = [("/b", VersionState::Ready), ("/a", VersionState::Ready)];
        models.handle_change(ModelChange { overview: overview(&both), ..change(&[], &[&one, &two]) });
        let text = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve \
                    ambiguity.";
        assert_eq!(found(&models, None), Err(text.to_owned()));
        assert_eq!(found(&models, Some(1)), Err(text.to_owned()));
        for (namespace, served) in [("/a", &one), ("/b", &two)] {
            assert!(Arc::ptr_eq(&models.find_in(namespace, "m", None).unwrap().served, served));
            assert!(Arc::ptr_eq(&models.find_in(namespace, "m", Some(1)).unwrap().served, served));
        }
        assert!(models.find_in("/c", "m", None).is_err() && models.find_in("", "m", None).is_err());
        // A name may also mean a model that does not serve, but not one that is being removed.
        let failed = [("/a", VersionState::Ready), ("/b", VersionState::Unavailable)];
        models.handle_change(ModelChange { overview: overview(&failed), ..change(&[&two], &[]) });
        assert_eq!(found(&models, None), Err(text.to_owned()));
        let leaving = [("/a", VersionState::Ready), ("/b", VersionState::Unloading)];
        models.handle_change(ModelChange { overview: overview(&leaving), ..change(&[], &[]) });
        assert_eq!(found(&models, None), Ok(1));
    }
}
