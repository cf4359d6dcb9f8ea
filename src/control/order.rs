//! What is to be done about one model: clients' orders, and what a look at the repositories found;
//! one thing at a time for each model. What is decided here touches no file.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::control::load_failure::LoadFailure;
use crate::control::load_job::{FinishedLoad, LoadJob, ModelOrigin, ReadyVersion};
use crate::control::model_loader::ServingVersions;
use crate::control::model_record::VersionRecord;
use crate::control::repositories::RepositoryScan;
use crate::control::spawn::spawn;
use crate::control::uploaded_files::UploadedFiles;
use crate::control::{BusyModel, ControlMessage, ControlThread, PendingAction};
use crate::error::Error;
use crate::log;
use crate::model::repository::ChangeMark;
use crate::model::repository::changes::{ModelAction, VersionChanges, actions};
use crate::model::repository::index::{LoadProgress, RepositoryOverview};
use crate::protocol::repository::{LoadOrder, RepositoryOrder};
use crate::runtime::clock;
use crate::shard::control_request::ControlReply;

impl ControlThread {
    /// A client orders something. Once the server drains the reply is dropped, which refuses.
    pub(super) fn handle_order(&mut self, order: RepositoryOrder, reply: ControlReply) {
        if self.is_draining {
            return;
        }
        match order {
            RepositoryOrder::Index { only_ready } => self.list(only_ready, reply),
            RepositoryOrder::Load(load) => self.want(load.name.clone(), PendingAction::Load(Box::new(load), reply)),
            RepositoryOrder::Unload { name, with_dependents } => {
                self.want(name, PendingAction::Unload(Some(reply), with_dependents))
            }
        }
    }

    /// Does something about a model, or leaves it for when its load has ended.
    pub(super) fn want(&mut self, name: String, wanted: PendingAction) {
        match self.busy.get_mut(&name) {
            Some(busy) => busy.waiting.push_back(wanted),
            None => self.begin(name, wanted),
        }
    }

    fn begin(&mut self, name: String, wanted: PendingAction) {
        let (is_asked, is_again) = (
            matches!(wanted, PendingAction::Follow(..) | PendingAction::Load(..)),
            matches!(wanted, PendingAction::Again),
        );
        let (place, reply) = match wanted {
            PendingAction::Unload(reply, with_composing) => return self.unload(&name, reply, with_composing),
            PendingAction::Follow(origin, directory) => (ModelOrigin::Known(origin, directory), None),
            PendingAction::Load(load, reply) => (ModelOrigin::Asked(load), Some(reply)),
            PendingAction::Need => {
                (ModelOrigin::Asked(Box::new(LoadOrder { name: name.clone(), ..LoadOrder::default() })), None)
            }
            PendingAction::Again => match self.models.get(&name).and_then(|model| model.place.clone()) {
                Some(place) => (place, None),
                // It was unloaded meanwhile.
                None => return,
            },
        };
        self.busy.insert(name.clone(), BusyModel { reply, is_asked, is_again, ..BusyModel::default() });
        let began = u64::try_from(clock::now().since(crate::time::Instant::ZERO).as_millis()).unwrap_or(u64::MAX);
        let progress = Arc::new(LoadProgress::new(began));
        let others = self.models.iter().filter(|(other, _)| **other != name);
        let taken = others.flat_map(|(_, model)| model.serving.values().flat_map(|version| version.cores.clone()));
        let taken = taken.collect();
        let (mut held, mut serving) = (ServingVersions::default(), Vec::new());
        if let Some(model) = self.models.get_mut(&name) {
            (held, serving) = (model.held(), model.serving.keys().copied().collect());
            model.loading = Some(Arc::clone(&progress));
            self.publish_overview();
        }
        self.jobs.push_back(LoadJob { name, place, held, serving, taken, members: None, progress });
        self.start_jobs();
    }

    /// A load has found its model: it is known from now on.
    pub(super) fn handle_begun(&mut self, name: String, progress: Arc<LoadProgress>) {
        if self.busy.contains_key(&name) && !self.models.contains_key(&name) {
            self.models.entry(name).or_default().loading = Some(progress);
            self.publish_overview();
        }
    }

    /// A load has ended.
    pub(super) fn handle_finished(&mut self, finished: FinishedLoad) {
        self.running = self.running.saturating_sub(1);
        self.start_jobs();
        self.handle_memory_freed();
        self.finish(finished);
    }

    pub(super) fn finish(&mut self, finished: FinishedLoad) {
        let FinishedLoad { name, found, outcome, took } = finished;
        if self.is_draining {
            return;
        }
        let BusyModel { reply, mut waiting, is_asked, .. } = self.busy.remove(&name).unwrap_or_default();
        if let Some(model) = self.models.get_mut(&name) {
            model.loading = None;
        }
        let mut uploaded_files = None;
        if let Some(found) = found {
            let model = self.models.entry(name.clone()).or_default();
            (model.origin, model.mark, model.is_brought) = (found.origin, found.mark, found.is_brought);
            (model.loading, model.is_gone) = (None, false);
            model.is_asked |= is_asked;
            model.loads.time += took;
            uploaded_files = found.uploaded_files;
        }
        match self.settle(&name, outcome, &mut waiting) {
            Ok((standing, changes)) => self.replace(&name, (standing, uploaded_files), &changes, reply),
            Err(failure) => {
                drop(uploaded_files);
                self.handle_failure(&name, &failure, reply);
            }
        }
        self.go_on(name.clone(), waiting);
        self.release(&name);
    }

    /// What waited for the end of a load has its turn.
    fn go_on(&mut self, name: String, waiting: VecDeque<PendingAction>) {
        for wanted in waiting {
            self.want(name.clone(), wanted);
        }
    }

    /// The new versions serve instead of the old.
    fn replace(
        &mut self,
        name: &str,
        (standing, uploaded_files): (Vec<ReadyVersion>, Option<Arc<UploadedFiles>>),
        changes: &VersionChanges,
        reply: Option<ControlReply>,
    ) {
        let Some(model) = self.models.get_mut(name) else { return };
        model.shared = (!model.is_brought).then_some(model.mark.shared);
        let has_changed = !standing.is_empty() || !changes.retired.is_empty();
        if has_changed {
            model.loads.succeeded += 1;
        }
        let mut retired = Self::take_out(model, name, &changes.retired);
        let mut come = Vec::with_capacity(standing.len());
        for ReadyVersion { served, holds, worker_group, cores, took } in standing {
            let number = served.version;
            let mark = model.mark.versions.iter().find(|(have, _)| *have == number).map_or(0, |(_, mark)| *mark);
            let version =
                VersionRecord { served, worker_group, cores, mark, took, uploaded_files: uploaded_files.clone() };
            if let Some(old) = model.serving.insert(number, version) {
                retired.push((name.to_owned(), old));
            }
            model.past.remove(&number);
            come.push(holds);
        }
        model.forget_failures();
        model.forget_gone();
        model.forget_composing();
        if has_changed {
            let numbers: Vec<_> = model.serving.keys().map(u64::to_string).collect();
            log::info(&format!("'{name}' serves version {}", numbers.join(", ")));
        }
        self.publish(come, retired, reply.into_iter().collect());
        if has_changed {
            self.revise(name);
        }
    }

    fn handle_failure(&mut self, name: &str, failure: &LoadFailure, reply: Option<ControlReply>) {
        log::error(&format!("failed to load '{name}': {}", failure.error()));
        if let Some(model) = self.models.get_mut(name) {
            model.loads.failed += 1;
            model.handle_failure(failure);
        }
        match failure {
            LoadFailure::Composition(_) => self.break_up(name),
            _ => self.publish_overview(),
        }
        if let Some(reply) = reply {
            reply.send(Err(failure.told(name)));
        }
    }

    /// Nothing of a model serves any more, nor, where that is asked for, of the models that only it is
    /// made of. One that is not known is unloaded already.
    fn unload(&mut self, name: &str, reply: Option<ControlReply>, with_composing: bool) {
        let mut names = vec![name.to_owned()];
        if with_composing {
            names.extend(self.only_for(name));
        }
        let mut all = Vec::new();
        let mut changed = Vec::new();
        for name in names {
            let Some(model) = self.models.get_mut(&name) else { continue };
            let numbers: Vec<u64> = model.serving.keys().copied().collect();
            let retired = Self::take_out(model, &name, &numbers);
            (model.shared, model.is_asked, model.place) = (None, false, None);
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
        changed.iter().for_each(|name| self.revise(name));
    }

    /// The repositories were looked at.
    pub(super) fn handle_look(&mut self, mut look: RepositoryScan) {
        if self.is_draining {
            return;
        }
        self.look_at = self.next_look();
        // What is being loaded is looked at again next time.
        let idle = self.models.iter().filter(|(name, _)| !self.busy.contains_key(*name));
        let known: Vec<_> = idle.map(|(name, model)| model.known(name)).collect();
        let mut has_refused = false;
        for action in actions(&known, &look.sightings) {
            if self.busy.contains_key(action.name()) {
                continue;
            }
            match action {
                ModelAction::Load { name, origin } => {
                    if let Some(directory) = look.directories.remove(&(origin, name.clone())) {
                        self.want(name, PendingAction::Follow(origin, Box::new(directory)));
                    }
                }
                ModelAction::Refuse { name, why } => has_refused |= self.refuse(name, why),
                ModelAction::Unload { name, why } => {
                    let model = self.models.entry(name.clone()).or_default();
                    model.is_gone = why.is_none();
                    if model.is_gone || !model.serving.is_empty() {
                        self.want(name.clone(), PendingAction::Unload(None, false));
                    }
                    has_refused |= why.is_some_and(|why| self.refuse(name, why));
                }
            }
        }
        if has_refused {
            self.publish_overview();
        }
    }

    /// A model cannot be loaded as it lies there; whether that is news.
    fn refuse(&mut self, name: String, why: String) -> bool {
        let model = self.models.entry(name.clone()).or_default();
        if model.failure.as_ref() == Some(&why) {
            return false;
        }
        log::error(&format!("failed to poll model '{name}': {why}"));
        model.failure = Some(why);
        // Whatever lies there next is news.
        model.mark = ChangeMark::default();
        model.loads.failed += 1;
        true
    }

    /// A client wants the index: the names in the repositories are listed for all who wait.
    fn list(&mut self, only_ready: bool, reply: ControlReply) {
        let is_first = self.listing.is_empty();
        self.listing.push((only_ready, reply));
        if !is_first {
            return;
        }
        let tools = Arc::clone(&self.tools);
        let body = move || drop(tools.events.send(ControlMessage::Listed(tools.repositories.names())));
        if let Err(error) = spawn("list".to_owned(), body) {
            self.handle_listed(Err(error));
        }
    }

    pub(super) fn handle_listed(&mut self, names: Result<Vec<(String, bool)>, Error>) {
        let models = self.models.iter().map(|(name, model)| model.overview_now(name)).collect();
        let overview = RepositoryOverview { models };
        for (only_ready, reply) in self.listing.drain(..) {
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
