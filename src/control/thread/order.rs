//! Actions on models, from clients' requests and from repository scans: one at a time per model. Nothing here
//! reads a file: that is left to the load threads.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::model_loader::ServingVersions;
use crate::control::machine::spawn::spawn;
use crate::control::repository::repositories::RepositoryScan;
use crate::control::repository::uploaded_files::UploadedFiles;
use crate::control::thread::load_job::{FinishedLoad, LoadJob, ModelOrigin, ReadyVersion};
use crate::control::thread::model_record::{ModelRecord, VersionRecord};
use crate::control::thread::{BusyModel, ControlMessage, ControlThread, PendingAction};
use crate::error::{Code, Error};
use crate::log;
use crate::model::ensemble;
use crate::model::name::split_qualified;
use crate::model::repository::ChangeMark;
use crate::model::repository::changes::{ModelAction, VersionChanges, actions};
use crate::model::repository::index::{LoadProgress, RepositoryOverview};
use crate::protocol::repository::{LoadOrder, LoadPlace, RepositoryOrder, check_without_code};
use crate::runtime::clock;
use crate::settings::Compat;
use crate::shard::services::control_request::{ControlLease, ControlReply, OrderOrigin};

impl ControlThread {
    /// Handles a client's load, unload or index request. While the server drains the reply is
    /// dropped, which answers the client with a refusal.
    pub(super) fn handle_order(&mut self, order: RepositoryOrder, reply: ControlReply) {
        if self.is_draining {
            return;
        }
        let origin = reply.lease().and_then(ControlLease::origin).cloned();
        if let (Some(origin), Some(target)) = (&origin, order.model()) {
            let targets = self.namesakes(target);
            let targets = if targets.is_empty() { vec![target.to_owned()] } else { targets };
            if let Some(caller) = targets.iter().find_map(|target| self.find_waiting_caller(origin, target)) {
                let caller = split_qualified(caller).1;
                return reply.send(Err(Error::unavailable(format!(
                    "model '{target}' cannot be loaded or unloaded for '{caller}': its own load waits for that of \
                     '{caller}'"
                ))));
            }
            targets.iter().for_each(|target| self.order_waits.handle_order(origin, target));
        }
        self.carry_out(order, reply);
        if origin.is_some() {
            // The thread of a load that waits for this order is free for others.
            self.start_jobs();
        }
    }

    /// Returns the caller, if any, whose load would wait for itself if it waited for this model.
    fn find_waiting_caller<'a>(&self, origin: &'a OrderOrigin, target: &str) -> Option<&'a String> {
        let is_circular = |caller: &&String| {
            let waits_for = |model: &str| if model == *caller { vec![target.to_owned()] } else { self.awaited(model) };
            self.busy.contains_key(*caller) && ensemble::find_cycle(caller, waits_for).is_some()
        };
        origin.callers.iter().find(is_circular)
    }

    fn carry_out(&mut self, order: RepositoryOrder, reply: ControlReply) {
        match order {
            RepositoryOrder::Index { only_ready } => self.start_listing(only_ready, reply),
            RepositoryOrder::Load(load) => {
                // A model that brings code runs here already: it could as well write the files.
                let is_of_model = reply.lease().and_then(ControlLease::origin).is_some();
                let is_open = is_of_model || self.context.settings.allows_model_code_upload;
                match self.hosted_conflict(&load).or_else(|| check_without_code(&load).err().filter(|_| !is_open)) {
                    Some(refusal) => reply.send(Err(refusal)),
                    None => self.schedule(load.name.clone(), PendingAction::Load(Box::new(load), reply)),
                }
            }
            RepositoryOrder::Unload { name, with_dependents } => {
                let mut names = self.namesakes(&name);
                let last = names.pop().unwrap_or(name);
                for name in names {
                    self.schedule(name, PendingAction::Unload(None, with_dependents));
                }
                self.schedule(last, PendingAction::Unload(Some(reply), with_dependents));
            }
        }
    }

    /// Returns the reason that a model cannot be loaded from the host's path: it is there already,
    /// or another has its name.
    fn hosted_conflict(&self, load: &LoadOrder) -> Option<Error> {
        let LoadPlace::Hosted { name, .. } = &load.place else { return None };
        let is_of_host = |model: &ModelRecord| model.hosted.as_ref().is_some_and(|hosted| hosted.name == *name);
        let is_there = self.models.values().any(is_of_host)
            || self.busy.values().any(|busy| busy.hosted_name.as_ref() == Some(name))
            || self.busy.contains_key(&load.name)
            || self.models.get(&load.name).is_some_and(|model| !model.serving.is_empty());
        let text = || format!("model '{}' is loaded already, or another of its name is; unload it first", load.name);
        is_there.then(|| Error::new(Code::Conflict, text()))
    }

    /// Returns the known models of a name, in any namespace.
    fn namesakes(&self, name: &str) -> Vec<String> {
        let known = self.models.keys().chain(self.busy.keys()).filter(|known| split_qualified(known).1 == name);
        let known: BTreeSet<&String> = known.collect();
        known.into_iter().cloned().collect()
    }

    /// A client's load is for these models, one after the other: the reply goes from each to the next.
    pub(super) fn handle_namesakes_found(&mut self, job: LoadJob, names: Vec<String>) {
        self.loads_running = self.loads_running.saturating_sub(1);
        self.start_jobs();
        let (Some(busy), ModelOrigin::Requested(load)) = (self.busy.remove(&job.name), job.origin) else { return };
        if self.is_draining {
            return;
        }
        let mut loads = names.into_iter().map(|name| {
            let load = LoadOrder { name: name.clone(), ..(*load).clone() };
            (name, Box::new(load))
        });
        if let Some((name, first)) = loads.next() {
            self.schedule(name, PendingAction::LoadNamesakes(first, loads.collect(), busy.reply));
        }
        self.run_queued_actions(job.name.clone(), busy.queued);
        self.resume_ensembles(&job.name);
        for (model, unload) in busy.unloads_beneath {
            self.schedule(model, unload);
        }
    }

    /// Starts an action on a model, or queues it until the model's current load has ended.
    pub(super) fn schedule(&mut self, name: String, action: PendingAction) {
        if let Some(ensemble) = self.loading_ensemble_of(&name, &action) {
            return ensemble.unloads_beneath.push((name, action));
        }
        match self.busy.get_mut(&name) {
            Some(busy) => busy.queued.push_back(action),
            None => self.start_action(name, action),
        }
    }

    /// Returns the loading ensemble that has the model as a step, if a client wants the model
    /// unloaded: the ensemble loads first, as in Triton. A model that unloads another never waits
    /// for it, since its own load may be what the ensemble waits for.
    fn loading_ensemble_of(&mut self, name: &str, action: &PendingAction) -> Option<&mut BusyModel> {
        let PendingAction::Unload(Some(reply), _) = action else { return None };
        if reply.lease().and_then(ControlLease::origin).is_some() {
            return None;
        }
        let models = &self.models;
        let is_made_of = |ensemble: &str| {
            models.get(ensemble).is_some_and(|model| model.composing.iter().any(|composing| composing == name))
        };
        let mut loading = self.busy.iter_mut().filter(|(_, busy)| !busy.is_revalidation);
        loading.find(|(ensemble, _)| *ensemble != name && is_made_of(ensemble)).map(|(_, busy)| busy)
    }

    fn start_action(&mut self, name: String, action: PendingAction) {
        let (is_requested, is_revalidation) = (
            matches!(
                action,
                PendingAction::LoadScanned(..) | PendingAction::Load(..) | PendingAction::LoadNamesakes(..)
            ),
            matches!(action, PendingAction::Revalidate),
        );
        let mut namesakes = Vec::new();
        let (origin, reply) = match action {
            PendingAction::Unload(reply, with_composing) => return self.unload(&name, reply, with_composing),
            PendingAction::LoadScanned(origin, directory) => (ModelOrigin::Known(origin, directory), None),
            PendingAction::Load(load, reply) => (ModelOrigin::Requested(load), Some(reply)),
            PendingAction::LoadNamesakes(load, others, reply) => {
                namesakes = others;
                (ModelOrigin::Requested(load), reply)
            }
            PendingAction::LoadWanted => {
                let load = LoadOrder { name: name.clone(), ..LoadOrder::default() };
                (ModelOrigin::Requested(Box::new(load)), None)
            }
            PendingAction::LoadDependency(root) => {
                let place = root.map(LoadPlace::Beside).unwrap_or_default();
                let load = LoadOrder { name: name.clone(), place, ..LoadOrder::default() };
                (ModelOrigin::Requested(Box::new(load)), None)
            }
            PendingAction::Revalidate => match self.models.get(&name).and_then(|model| model.ensemble_origin.clone()) {
                Some(origin) => (origin, None),
                // The ensemble was unloaded meanwhile.
                None => return,
            },
        };
        let hosted_name = match &origin {
            ModelOrigin::Requested(load) => match &load.place {
                LoadPlace::Hosted { name, .. } => Some(name.clone()),
                LoadPlace::Repositories | LoadPlace::Beside(_) => None,
            },
            ModelOrigin::Known(..) => None,
        };
        let busy = BusyModel { reply, is_requested, is_revalidation, namesakes, hosted_name, ..BusyModel::default() };
        self.busy.insert(name.clone(), busy);
        let began = u64::try_from(clock::now().since(crate::time::Instant::ZERO).as_millis()).unwrap_or(u64::MAX);
        let progress = Arc::new(LoadProgress::new(began));
        let others = self.models.iter().filter(|(other, _)| **other != name);
        let worker_cores =
            others.flat_map(|(_, model)| model.serving.values().flat_map(|version| version.worker_group.cores()));
        let worker_cores = worker_cores.collect();
        let (mut serving_marks, mut serving, mut instances) = (ServingVersions::default(), Vec::new(), None);
        if let Some(model) = self.models.get_mut(&name) {
            (serving_marks, serving) = (model.serving_versions(), model.serving.keys().copied().collect());
            instances = model.serving_instances();
            model.loading = Some(Arc::clone(&progress));
            // A scan may find hundreds of models that changed.
            self.is_overview_due = true;
        }
        self.jobs.push_back(LoadJob {
            name,
            origin,
            serving_marks,
            serving,
            instances,
            worker_cores,
            composing_models: None,
            progress,
        });
        self.start_jobs();
    }

    /// A load has found a model that was not known: the index shows it from now on.
    pub(super) fn handle_model_found(&mut self, name: String, progress: Arc<LoadProgress>) {
        if self.busy.contains_key(&name) && !self.models.contains_key(&name) {
            let is_on_demand = self.is_on_demand(&name);
            let model = self.models.entry(name).or_default();
            (model.loading, model.is_on_demand) = (Some(progress), is_on_demand);
            self.publish_overview();
        }
    }

    /// A load thread has ended.
    pub(super) fn handle_load_finished(&mut self, finished: FinishedLoad) {
        self.loads_running = self.loads_running.saturating_sub(1);
        self.start_jobs();
        self.handle_memory_freed();
        if finished.outcome.as_ref().is_err_and(|failure| failure.error().code() == Code::OutOfMemory) {
            self.context.server_context.memory.board.count_load_refused();
        }
        self.finish_load(finished);
    }

    /// Applies the outcome of a load, then runs the actions that waited for its end. Also called
    /// for a load that failed before it got a thread.
    pub(super) fn finish_load(&mut self, finished: FinishedLoad) {
        let FinishedLoad { name, found, outcome, updated, took } = finished;
        if self.is_draining {
            return;
        }
        let BusyModel { mut reply, mut queued, is_requested, unloads_beneath, mut namesakes, .. } =
            self.busy.remove(&name).unwrap_or_default();
        if let Some(model) = self.models.get_mut(&name) {
            model.loading = None;
        }
        let mut uploaded_files = None;
        let is_on_demand = self.on_demand.is_some();
        if let Some(found) = found {
            let model = self.models.entry(name.clone()).or_default();
            (model.origin, model.mark, model.is_uploaded) = (found.origin, found.mark, found.is_uploaded);
            (model.loading, model.is_gone) = (None, false);
            model.is_requested |= is_requested;
            model.is_on_demand = is_on_demand && !model.is_requested;
            model.loads.time += took;
            uploaded_files = found.uploaded_files;
            if outcome.is_ok() {
                (model.hosted, model.hosted_root) = (found.hosted, found.hosted_root);
            }
        }
        let mut rest = None;
        let outcome = self.recheck_ensemble(&name, outcome, &mut queued);
        if !namesakes.is_empty() {
            let (next, load) = namesakes.remove(0);
            rest = Some((next, load, if outcome.is_ok() { reply.take() } else { None }));
        }
        let (waits, outcome) = self.settle_wants(&name, is_requested, outcome);
        match outcome {
            Ok((ready, changes)) => {
                let leaving = self.adopt_instances(&name, updated);
                let replies = self.answer_when_left(leaving, reply.into_iter().chain(waits).collect());
                self.replace_versions(&name, ready, uploaded_files, &changes, replies);
            }
            Err(failure) => {
                drop(uploaded_files);
                self.handle_failure(&name, &failure, reply);
            }
        }
        if let Some((next, load, reply)) = rest {
            self.schedule(next, PendingAction::LoadNamesakes(load, namesakes, reply));
        }
        self.run_queued_actions(name.clone(), queued);
        self.resume_ensembles(&name);
        for (model, unload) in unloads_beneath {
            self.schedule(model, unload);
        }
    }

    /// Runs the actions that waited for the end of a load. The first that starts a load queues the rest again.
    fn run_queued_actions(&mut self, name: String, queued: VecDeque<PendingAction>) {
        for action in queued {
            self.schedule(name.clone(), action);
        }
    }

    /// The new versions serve from now on, and the old ones are retired.
    fn replace_versions(
        &mut self,
        name: &str,
        ready: Vec<ReadyVersion>,
        uploaded_files: Option<Arc<UploadedFiles>>,
        changes: &VersionChanges,
        replies: Vec<ControlReply>,
    ) {
        let Some(model) = self.models.get_mut(name) else { return };
        model.shared = (!model.is_uploaded).then_some(model.mark.shared);
        model.settings = changes.settings;
        let has_changed = !ready.is_empty() || !changes.retired.is_empty();
        if has_changed {
            model.loads.succeeded += 1;
        }
        let mut retired = Self::retire_versions(model, name, &changes.retired);
        let mut added = Vec::with_capacity(ready.len());
        for ReadyVersion { served, handles, worker_group, took, files_size, basis } in ready {
            let number = served.version;
            let mark = model.mark.versions.iter().find(|(have, _)| *have == number).map_or(0, |(_, mark)| *mark);
            let version = VersionRecord {
                served,
                worker_group,
                mark,
                took,
                files_size,
                basis,
                uploaded_files: uploaded_files.clone(),
            };
            if let Some(old) = model.serving.insert(number, version) {
                retired.push((name.to_owned(), old));
            }
            model.past.remove(&number);
            added.push(handles);
        }
        model.forget_failures();
        model.forget_deleted_versions();
        model.forget_ensemble();
        if has_changed {
            let numbers: Vec<_> = model.serving.keys().map(u64::to_string).collect();
            log::info(&format!("'{name}' serves version {}", numbers.join(", ")));
        }
        self.publish(added, retired, replies);
        self.handle_cached(name);
        if has_changed {
            self.revalidate_dependents(name);
        }
    }

    fn handle_failure(&mut self, name: &str, failure: &LoadFailure, reply: Option<ControlReply>) {
        log::error(&failure.log_text(name));
        let is_refused = matches!(failure, LoadFailure::Refused(_));
        if let Some(model) = self.models.get_mut(name).filter(|_| !is_refused) {
            model.loads.failed += 1;
            model.handle_failure(failure);
        }
        match failure {
            LoadFailure::Composition(_) => self.unload_broken_ensemble(name),
            _ => self.publish_overview(),
        }
        if let Some(reply) = reply {
            let follows_triton = self.context.settings.compat == Compat::Triton;
            reply.send(Err(failure.answer(split_qualified(name).1, follows_triton)));
        }
    }

    /// Unloads all versions of a model and, if asked for, of the composing models that nothing else uses. An
    /// unknown model counts as unloaded.
    pub(super) fn unload(&mut self, name: &str, reply: Option<ControlReply>, with_composing: bool) {
        let mut names = vec![name.to_owned()];
        if with_composing {
            names.extend(self.only_for(name));
        }
        let mut all = Vec::new();
        let mut changed = Vec::new();
        for name in names {
            let Some(model) = self.models.get_mut(&name) else { continue };
            let numbers: Vec<u64> = model.serving.keys().copied().collect();
            let retired = Self::retire_versions(model, &name, &numbers);
            (model.shared, model.settings) = (None, None);
            (model.is_requested, model.ensemble_origin) = (false, None);
            (model.hosted, model.hosted_root) = (None, None);
            model.composing.clear();
            model.forget_failures();
            if !retired.is_empty() {
                log::info(&format!("unloading '{name}'"));
                changed.push(name);
            } else if model.is_gone || model.past.is_empty() {
                self.models.remove(&name);
            }
            all.extend(retired);
        }
        self.publish(Vec::new(), all, reply.into_iter().collect());
        changed.iter().for_each(|name| self.revalidate_dependents(name));
    }

    /// A repository scan has ended: loads new and changed models, and unloads those that
    /// disappeared.
    pub(super) fn handle_scan(&mut self, mut scan: RepositoryScan) {
        if self.is_draining {
            return;
        }
        self.is_scanning = false;
        self.scan_at = if std::mem::take(&mut self.scans_again) { Some(clock::now()) } else { self.next_scan_at() };
        // A model that is loading is left out: its record is not up to date. The next scan sees it.
        let idle = self.models.iter().filter(|(name, _)| !self.busy.contains_key(*name));
        let known: Vec<_> = idle.map(|(name, model)| model.known(name)).collect();
        let mut has_refused = false;
        for action in actions(&known, &scan.sightings) {
            if self.busy.contains_key(action.name()) {
                continue;
            }
            match action {
                ModelAction::Load { name, origin } => {
                    if let Some(directory) = scan.directories.remove(&(origin, name.clone())) {
                        self.schedule(name, PendingAction::LoadScanned(origin, Box::new(directory)));
                    }
                }
                ModelAction::Refuse { name, why } => has_refused |= self.record_refusal(name, why),
                ModelAction::Unload { name, why } => {
                    let model = self.models.entry(name.clone()).or_default();
                    model.is_gone = why.is_none();
                    if model.is_gone || !model.serving.is_empty() {
                        self.schedule(name.clone(), PendingAction::Unload(None, false));
                    }
                    has_refused |= why.is_some_and(|why| self.record_refusal(name, why));
                }
            }
        }
        if has_refused {
            self.publish_overview();
        }
    }

    /// Records the reason that a model in a repository cannot be loaded. Returns false when the
    /// last scan found the same.
    fn record_refusal(&mut self, name: String, why: String) -> bool {
        let model = self.models.entry(name.clone()).or_default();
        if !model.handle_refusal(&why) {
            return false;
        }
        log::error(&format!("failed to poll model '{name}': {why}"));
        // With an empty mark the next scan finds any directory changed, and tries again.
        model.mark = ChangeMark::default();
        true
    }

    /// Handles a client's index request. One listing of the repositories answers all requests that
    /// wait for it.
    fn start_listing(&mut self, only_ready: bool, reply: ControlReply) {
        self.index_requests.push((only_ready, reply));
        self.list_repositories();
    }

    /// Lists the repositories on a thread of its own, unless one does already.
    pub(super) fn list_repositories(&mut self) {
        if std::mem::replace(&mut self.is_listing, true) {
            return;
        }
        let context = Arc::clone(&self.context);
        let body = move || drop(context.messages.send(ControlMessage::NamesListed(context.repositories.names())));
        if let Err(error) = spawn("repository-list".to_owned(), body) {
            self.handle_names_listed(Err(error));
        }
    }

    /// The repositories were listed: answers all waiting index requests.
    pub(super) fn handle_names_listed(&mut self, names: Result<Vec<(String, bool)>, Error>) {
        self.is_listing = false;
        self.handle_listed(&names);
        let models = self.models.iter().map(|(name, model)| model.current_overview(name)).collect();
        let overview = RepositoryOverview::new(models);
        for (only_ready, reply) in self.index_requests.drain(..) {
            reply.send(match &names {
                Ok(names) => Ok(overview.index(names, only_ready)),
                Err(error) => {
                    log::error(&format!("cannot list the model repositories: {error}"));
                    Err(Error::internal("the model repositories cannot be listed"))
                }
            });
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::control::engines::model_services::ModelServices;
    use crate::control::loading::model_loader::ModelLoader;
    use crate::control::outside::access_files::AccessFiles;
    use crate::control::outside::notify::ServiceNotifier;
    use crate::control::repository::repositories::Repositories;
    use crate::control::serving::plan::{ContextLinks, ContextSources, ServerPlan};
    use crate::control::serving::threads::ThreadHooks;
    use crate::control::thread::ProcessSurroundings;
    use crate::control::thread::hand_over::Successor;
    use crate::control::thread::load_job::LoadContext;
    use crate::model::repository::index::IndexEntry;
    use crate::queue::one_shot::OneShotReceiver;
    use crate::settings::{ControlMode, Settings};
    use crate::shard::mailbox::ControlSender;
    use crate::shard::services::control_request::ControlRequests;

    fn control() -> ControlThread {
        control_with(Settings::default())
    }

    /// A control thread that never runs a load, because it has no threads for them.
    pub(in crate::control) fn control_with(settings: Settings) -> ControlThread {
        let (mode, load_threads, shards) = (ControlMode::Explicit, 0, Some(1));
        let settings = Settings { control_mode: mode, load_threads, shards, repositories: Vec::new(), ..settings };
        let settings = Arc::new(settings);
        let (messages, receiver) = channel();
        let loader = Arc::new(ModelLoader::new(&settings, ModelServices::new()).unwrap());
        let ignored: ControlSender = Arc::new(|_| {});
        let certificates = AccessFiles::load(&settings).unwrap();
        let sources = ContextSources::new(&loader, &certificates);
        let ServerPlan { server_context, cores, .. } =
            ServerPlan::new(&settings, Vec::new(), &ignored, sources, ContextLinks::default()).unwrap();
        let context = LoadContext {
            repositories: Arc::new(Repositories::open(&settings).unwrap()),
            settings,
            loader,
            limiter: None,
            server_context,
            cores,
            thread_hooks: ThreadHooks { running: channel().0, ended: Arc::new(|| {}) },
            messages,
        };
        let successor = Successor { program: "/nowhere".into(), arguments: Vec::new(), sockets: Vec::new() };
        let (notifier, limit_end) = (ServiceNotifier::default(), Box::new(|| ()) as _);
        let surroundings = ProcessSurroundings { notifier, watchdog: None, successor, limit_end };
        ControlThread::new(Arc::new(context), receiver, Default::default(), surroundings)
    }

    type Outcome = Option<Result<Vec<IndexEntry>, Error>>;

    #[test]
    fn an_order_of_a_model_that_is_loaded_frees_a_thread_and_never_closes_a_circle() {
        let (mut control, requests) = (control(), ControlRequests::default());
        let load = |control: &mut ControlThread, name: &str, caller: Option<&str>| {
            let order = RepositoryOrder::Load(LoadOrder { name: name.to_owned(), ..LoadOrder::default() });
            let origin = caller.map(|caller| Arc::new(OrderOrigin { callers: vec![caller.to_owned()] }));
            let (reply, outcome) = requests.admit(&order, origin).unwrap();
            control.handle_order(order, reply);
            outcome
        };
        let polled = |outcome: &mut OneShotReceiver<Vec<IndexEntry>>| -> Outcome {
            futures_lite::future::block_on(futures_lite::future::poll_once(outcome))
        };
        let mut a = load(&mut control, "a", None);
        assert_eq!((control.loads_running, control.jobs.len()), (0, 1), "there is no thread for it");
        let mut executing = load(&mut control, "c", Some("other"));
        assert_eq!((control.loads_running, control.jobs.len()), (0, 2), "a model that serves has none to lend");
        let mut b = load(&mut control, "b", Some("a"));
        assert_eq!((control.loads_running, control.jobs.len()), (1, 2), "the load of 'a' waits for that of 'b'");
        let mut c = load(&mut control, "c", Some("b"));
        assert_eq!((control.loads_running, control.jobs.len()), (2, 1));
        let refused = |target: &str, caller: &str| {
            Some(Err(Error::unavailable(format!(
                "model '{target}' cannot be loaded or unloaded for '{caller}': its own load waits for that of '{caller}'"
            ))))
        };
        for (target, caller) in [("a", "b"), ("a", "c"), ("b", "c")] {
            assert_eq!(polled(&mut load(&mut control, target, Some(caller))), refused(target, caller));
        }
        assert_eq!(polled(&mut load(&mut control, "a", Some("other"))), None, "it only waits");
        assert!([&mut a, &mut b, &mut c, &mut executing].into_iter().all(|outcome| polled(outcome).is_none()));
        // 'b' has ended, and with it the wait of 'a' and its own code.
        let broken = LoadFailure::from(Error::internal("it is broken"));
        control.handle_load_finished(FinishedLoad::without_model("b".to_owned(), Err(broken)));
        assert!(polled(&mut b).is_some_and(|outcome| outcome.is_err()));
        assert_eq!(polled(&mut load(&mut control, "c", Some("a"))), None);
    }

    #[test]
    fn the_state_of_all_models_is_published_once_however_many_begin_to_load() {
        let mut control = control();
        for name in ["a", "b", "c"] {
            control.models.entry(name.to_owned()).or_default();
            control.schedule(name.to_owned(), PendingAction::LoadWanted);
        }
        assert_eq!(control.jobs.len(), 3);
        control.publish_due();
        control.publish_due();
        assert_eq!(control.change_count, 1);
    }

    #[test]
    fn a_path_of_the_host_is_loaded_once_and_under_a_name_that_is_free() {
        let (mut control, requests) = (control(), ControlRequests::default());
        let mut load = |name: &str, model: &str| {
            let place = LoadPlace::Hosted { name: name.to_owned(), path: "/models/a/model".to_owned() };
            let order = RepositoryOrder::Load(LoadOrder { name: model.to_owned(), place, ..LoadOrder::default() });
            let (reply, mut outcome) = requests.admit(&order, None).unwrap();
            control.handle_order(order, reply);
            let polled = futures_lite::future::block_on(futures_lite::future::poll_once(&mut outcome));
            polled.map(|outcome| outcome.map_err(|error| error.code()))
        };
        assert_eq!(load("h1", "a"), None, "it loads");
        for (name, model) in [("h1", "a"), ("h1", "b"), ("h2", "a")] {
            assert_eq!(load(name, model), Some(Err(Code::Conflict)), "{name} {model}");
        }
        assert_eq!(load("h2", "b"), None);
    }
}
