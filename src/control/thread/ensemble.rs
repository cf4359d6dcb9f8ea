//! Ensembles while models are loaded and unloaded: the load of an ensemble waits for the loads of its composing
//! models, and it is checked against them again whenever one changes. An ensemble that no longer fits is
//! unloaded, with the reason in the index, and loaded again when its composing models fit again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::control::loading::load_failure::LoadFailure;
use crate::control::thread::load_job::{FinishedLoad, LoadJob, LoadOutcome, ModelOrigin, ReadyVersion};
use crate::control::thread::{ControlThread, ModelRecord, PendingAction};
use crate::error::{Code, Error};
use crate::log;
use crate::model::ModelSpec;
use crate::model::ensemble::{self, ComposingModels};
use crate::model::name::split_qualified;
use crate::model::repository::changes::{Dependence, only_for};

impl ControlThread {
    /// Handles a model to load that is an ensemble: the load goes on when none of its composing
    /// models is still loading. In explicit mode those that do not serve yet, or changed on disk,
    /// are loaded for it.
    pub(super) fn handle_ensemble_found(&mut self, job: Box<LoadJob>, composing: Vec<String>) {
        self.loads_running = self.loads_running.saturating_sub(1);
        self.start_jobs();
        let name = job.name.clone();
        if self.is_draining || !self.busy.contains_key(&name) {
            return;
        }
        let root = match &job.origin {
            ModelOrigin::Requested(load) => load.place.root().map(str::to_owned),
            ModelOrigin::Known(..) => None,
        };
        if let Some(taken) = self.step_of_other_host(root.as_deref(), &composing) {
            let text = format!("its step '{taken}' has the name of a model that serves from another path of the host");
            let outcome = Err(LoadFailure::Refused(Error::new(Code::Conflict, text)));
            return self.finish_load(FinishedLoad::without_model(name, outcome));
        }
        let model = self.models.entry(name.clone()).or_default();
        model.composing.clone_from(&composing);
        model.ensemble_origin = Some(job.origin.clone());
        if let ModelOrigin::Known(origin, directory) = &job.origin {
            (model.origin, model.mark) = (Some(*origin), directory.mark.clone());
        }
        if let Some(from) = ensemble::find_cycle(&name, |model| self.waits_for(model, &name, &composing)) {
            let (own, from) = (split_qualified(&name).1, split_qualified(&from).1);
            let outcome = Err(LoadFailure::Composition(ensemble::cycle_error(own, from)));
            return self.finish_load(FinishedLoad::without_model(name, outcome));
        }
        // A revalidation must not load what a client has unloaded.
        let is_revalidation = self.busy.get(&name).is_some_and(|busy| busy.is_revalidation);
        let is_explicit = self.context.settings.loads_when_asked() && !is_revalidation;
        let mut awaited = BTreeSet::new();
        for needed in composing {
            // A model whose files or configuration a client sent is not replaced by the repository's.
            let is_uploaded = |model: &ModelRecord| model.is_uploaded && !model.serving.is_empty();
            if is_explicit && !self.busy.contains_key(&needed) && !self.models.get(&needed).is_some_and(is_uploaded) {
                // A model that serves from the server's own repositories stays.
                let is_own = |model: &ModelRecord| model.hosted_root.is_none() && !model.serving.is_empty();
                let beside = root.clone().filter(|_| !self.models.get(&needed).is_some_and(is_own));
                self.schedule(needed.clone(), PendingAction::LoadDependency(beside));
            }
            awaited.insert(needed);
        }
        awaited.retain(|needed| self.busy.contains_key(needed));
        if awaited.is_empty() {
            self.start_ensemble_load(*job);
        } else if let Some(busy) = self.busy.get_mut(&name) {
            busy.awaiting = Some((job, awaited));
        }
    }

    /// Returns the step of an ensemble at a path of the host whose name a model of another such
    /// path has.
    fn step_of_other_host<'a>(&self, root: Option<&str>, composing: &'a [String]) -> Option<&'a String> {
        let is_of_other = |needed: &&String| {
            let found = self.models.get(*needed).filter(|model| !model.serving.is_empty());
            found.and_then(|model| model.hosted_root.as_deref()).is_some_and(|have| Some(have) != root)
        };
        root?;
        composing.iter().find(is_of_other)
    }

    /// Returns the models whose loads the load of `model` waits for. `name` is the ensemble that is
    /// about to wait for `composing` and is not in `busy.awaiting` yet.
    fn waits_for(&self, model: &str, name: &str, composing: &[String]) -> Vec<String> {
        if model == name {
            return composing.to_vec();
        }
        self.awaited(model)
    }

    /// Returns the models whose loads the load of `model` waits for: those of its steps, and those
    /// that its own code has ordered.
    pub(super) fn awaited(&self, model: &str) -> Vec<String> {
        let Some(busy) = self.busy.get(model) else { return Vec::new() };
        let mut awaited = self.order_waits.waits_for(model);
        awaited.extend(busy.awaiting.iter().flat_map(|(_, awaited)| awaited.iter().cloned()));
        awaited
    }

    /// A load has ended: starts the ensembles that waited for it and for nothing else.
    pub(super) fn resume_ensembles(&mut self, name: &str) {
        let mut jobs = Vec::new();
        for busy in self.busy.values_mut() {
            let Some((_, awaited)) = &mut busy.awaiting else { continue };
            if awaited.remove(name) && awaited.is_empty() {
                jobs.extend(busy.awaiting.take().map(|(job, _)| job));
            }
        }
        jobs.into_iter().for_each(|job| self.start_ensemble_load(*job));
    }

    fn start_ensemble_load(&mut self, job: LoadJob) {
        let composing_models = Some(self.composing_models());
        self.jobs.push_back(LoadJob { composing_models, ..job });
        self.start_jobs();
    }

    /// Checks a loaded ensemble once more when its load has ended: its composing models may have changed
    /// meanwhile. An ensemble equal to the one that serves is dropped from the outcome. Other models pass through.
    pub(super) fn recheck_ensemble(
        &self,
        name: &str,
        outcome: LoadOutcome,
        queued: &mut VecDeque<PendingAction>,
    ) -> LoadOutcome {
        let (mut ready, mut changes) = outcome?;
        if ready.iter().all(|ready| ready.served.spec.ensemble.is_none()) {
            return Ok((ready, changes));
        }
        let members = self.composing_models();
        for ReadyVersion { served, .. } in &ready {
            let resolved = members.resolve((*served.spec).clone()).map_err(LoadFailure::Composition)?;
            if !is_same(&resolved, &served.spec) {
                queued.push_back(PendingAction::Revalidate);
            }
        }
        let serving = self.models.get(name).map(|model| &model.serving);
        ready.retain(|ReadyVersion { served, .. }| {
            let same = serving.and_then(|serving| serving.get(&served.version));
            !same.is_some_and(|same| is_same(&same.served.spec, &served.spec))
        });
        let is_loaded = |version: &u64| ready.iter().any(|ready| ready.served.version == *version);
        let (loaded, kept) = changes.loaded.iter().copied().partition(is_loaded);
        changes.loaded = loaded;
        changes.kept.extend::<Vec<u64>>(kept);
        Ok((ready, changes))
    }

    fn composing_models(&self) -> ComposingModels {
        ComposingModels {
            models: self.models.iter().map(|(name, model)| (name.clone(), model.composing_model())).collect(),
        }
    }

    /// A model has changed: checks the ensembles with a step that uses it. Those that no longer fit are
    /// unloaded, those that would look different are loaded again.
    pub(super) fn revalidate_dependents(&mut self, changed: &str) {
        let members = self.composing_models();
        // A model in another namespace may take the place of a step's model.
        let plain = split_qualified(changed).1;
        let (mut broken, mut again) = (Vec::new(), Vec::new());
        for (name, model) in self.models.iter().filter(|(name, _)| *name != changed) {
            let is_made_of = |spec: &ModelSpec| {
                spec.ensemble.as_ref().is_some_and(|ensemble| ensemble.steps.iter().any(|step| step.model == plain))
            };
            let mut serving = model.serving.values().map(|version| &version.served.spec);
            let Some(spec) = serving.find(|spec| is_made_of(spec)) else {
                if model.serving.is_empty()
                    && model.composing.iter().any(|composing| split_qualified(composing).1 == plain)
                {
                    again.push(name.clone());
                }
                continue;
            };
            match members.resolve((**spec).clone()) {
                Err(error) => broken.push((name.clone(), error)),
                Ok(resolved) if !is_same(&resolved, spec) => again.push(name.clone()),
                Ok(_) => {}
            }
        }
        for (name, error) in broken {
            log::error(&format!("unloading ensemble '{name}', which no longer fits its composing models: {error}"));
            if let Some(model) = self.models.get_mut(&name) {
                (model.failure, model.failed_version) = (Some(error.text().to_owned()), None);
                model.is_invalid = true;
            }
            self.unload_broken_ensemble(&name);
        }
        for name in again {
            let will_see = |busy: &crate::control::thread::BusyModel| {
                busy.awaiting.is_some() || busy.queued.iter().any(|action| matches!(action, PendingAction::Revalidate))
            };
            if !self.busy.get(&name).is_some_and(will_see) {
                self.schedule(name, PendingAction::Revalidate);
            }
        }
    }

    /// Unloads an ensemble that cannot serve, and checks the ensembles that use it as a step.
    pub(super) fn unload_broken_ensemble(&mut self, name: &str) {
        let Some(model) = self.models.get_mut(name) else { return };
        let numbers: Vec<u64> = model.serving.keys().copied().collect();
        let retired = Self::retire_versions(model, name, &numbers);
        (model.shared, model.settings) = (None, None);
        let has_changed = !retired.is_empty();
        self.publish(Vec::new(), retired, Vec::new());
        if has_changed {
            self.revalidate_dependents(name);
        }
    }

    /// Returns the models that only the ensemble `name` uses, that no client asked for, and that
    /// are not loading.
    pub(super) fn only_for(&self, name: &str) -> Vec<String> {
        let dependence = |(name, model): (&String, &ModelRecord)| {
            let is_requested = model.is_requested || self.busy.contains_key(name);
            (name.clone(), Dependence { composing: model.composing.clone(), is_asked: is_requested })
        };
        let all: BTreeMap<_, _> = self.models.iter().map(dependence).collect();
        only_for(name, &all)
    }
}

/// Returns true if a newly resolved ensemble equals the one that serves.
fn is_same(resolved: &ModelSpec, serving: &ModelSpec) -> bool {
    let mut labels = resolved.outputs.iter().zip(&serving.outputs);
    resolved.config_message == serving.config_message
        && resolved.ensemble == serving.ensemble
        && labels.all(|(one, other)| one.labels == other.labels)
}
