//! Ensembles among the models that come and go: their loads wait for those of what they are made of, and
//! they are held against it again whenever it changes. One that cannot serve any more is taken out with
//! the reason, and comes back when what was missing does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::ControlMode;
use crate::control::load_failure::LoadFailure;
use crate::control::load_job::{FinishedLoad, LoadJob, LoadOutcome, ModelOrigin, ReadyVersion};
use crate::control::{ControlThread, PendingAction};
use crate::log;
use crate::model::ModelSpec;
use crate::model::ensemble::{self, ComposingModels};
use crate::model::repository::changes::{Dependence, only_for};

impl ControlThread {
    /// A load has found an ensemble: it goes on when nothing of what it is made of loads any more. In
    /// explicit mode what does not serve yet, or was changed, is loaded for it.
    pub(super) fn handle_composed(&mut self, job: Box<LoadJob>, composing: Vec<String>) {
        self.running = self.running.saturating_sub(1);
        self.start_jobs();
        let name = job.name.clone();
        if self.is_draining || !self.busy.contains_key(&name) {
            return;
        }
        let model = self.models.entry(name.clone()).or_default();
        model.composing.clone_from(&composing);
        model.place = Some(job.place.clone());
        if let ModelOrigin::Known(origin, directory) = &job.place {
            (model.origin, model.mark) = (Some(*origin), directory.mark.clone());
        }
        if let Some(from) = ensemble::circle(&name, |model| self.waits_for(model, &name, &composing)) {
            let outcome = Err(LoadFailure::Composition(ensemble::circular(&name, &from)));
            return self.finish(FinishedLoad { name, found: None, outcome, took: std::time::Duration::ZERO });
        }
        // What was unloaded on request stays so where the ensemble is only looked at again.
        let is_again = self.busy.get(&name).is_some_and(|busy| busy.is_again);
        let is_explicit = self.tools.settings.control_mode == ControlMode::Explicit && !is_again;
        let mut awaited = BTreeSet::new();
        for needed in composing {
            // What a client brought for it stays.
            let is_brought = |model: &crate::control::ModelRecord| model.is_brought && !model.serving.is_empty();
            if is_explicit && !self.busy.contains_key(&needed) && !self.models.get(&needed).is_some_and(is_brought) {
                self.want(needed.clone(), PendingAction::Need);
            }
            awaited.insert(needed);
        }
        awaited.retain(|needed| self.busy.contains_key(needed));
        if awaited.is_empty() {
            self.go_on_with(*job);
        } else if let Some(busy) = self.busy.get_mut(&name) {
            busy.awaiting = Some((job, awaited));
        }
    }

    /// The models that the load of a model waits for.
    fn waits_for(&self, model: &str, name: &str, composing: &[String]) -> Vec<String> {
        if model == name {
            return composing.to_vec();
        }
        let awaiting = self.busy.get(model).and_then(|busy| busy.awaiting.as_ref());
        awaiting.map(|(_, awaited)| awaited.iter().cloned().collect()).unwrap_or_default()
    }

    /// A load has ended: those that waited for it alone go on.
    pub(super) fn release(&mut self, name: &str) {
        let mut jobs = Vec::new();
        for busy in self.busy.values_mut() {
            let Some((_, awaited)) = &mut busy.awaiting else { continue };
            if awaited.remove(name) && awaited.is_empty() {
                jobs.extend(busy.awaiting.take().map(|(job, _)| job));
            }
        }
        jobs.into_iter().for_each(|job| self.go_on_with(*job));
    }

    fn go_on_with(&mut self, job: LoadJob) {
        let members = Some(self.members());
        self.jobs.push_back(LoadJob { members, ..job });
        self.start_jobs();
    }

    /// What came of a load, by now: what an ensemble is made of may have changed while it loaded. One that
    /// is what serves already is left alone.
    pub(super) fn settle(
        &self,
        name: &str,
        outcome: LoadOutcome,
        waiting: &mut VecDeque<PendingAction>,
    ) -> LoadOutcome {
        let (mut standing, mut changes) = outcome?;
        if standing.iter().all(|standing| standing.served.spec.ensemble.is_none()) {
            return Ok((standing, changes));
        }
        let members = self.members();
        for ReadyVersion { served, .. } in &standing {
            let resolved = members.resolve((*served.spec).clone()).map_err(LoadFailure::Composition)?;
            if !is_same(&resolved, &served.spec) {
                waiting.push_back(PendingAction::Again);
            }
        }
        let serving = self.models.get(name).map(|model| &model.serving);
        standing.retain(|ReadyVersion { served, .. }| {
            let same = serving.and_then(|serving| serving.get(&served.version));
            !same.is_some_and(|same| is_same(&same.served.spec, &served.spec))
        });
        let is_loaded = |version: &u64| standing.iter().any(|standing| standing.served.version == *version);
        let (loaded, kept) = changes.loaded.iter().copied().partition(is_loaded);
        changes.loaded = loaded;
        changes.kept.extend::<Vec<u64>>(kept);
        Ok((standing, changes))
    }

    fn members(&self) -> ComposingModels {
        ComposingModels { models: self.models.iter().map(|(name, model)| (name.clone(), model.member())).collect() }
    }

    /// A model has changed: the ensembles that are made of it are held against it again.
    pub(super) fn revise(&mut self, changed: &str) {
        let members = self.members();
        let (mut broken, mut again) = (Vec::new(), Vec::new());
        for (name, model) in self.models.iter().filter(|(name, _)| *name != changed) {
            let is_made_of = |spec: &ModelSpec| {
                spec.ensemble.as_ref().is_some_and(|ensemble| ensemble.steps.iter().any(|step| step.model == changed))
            };
            let mut serving = model.serving.values().map(|version| &version.served.spec);
            let Some(spec) = serving.find(|spec| is_made_of(spec)) else {
                if model.serving.is_empty() && model.composing.iter().any(|composing| composing == changed) {
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
            log::error(&format!("'{name}' serves no more: {error}"));
            if let Some(model) = self.models.get_mut(&name) {
                (model.failure, model.is_invalid) = (Some(error.text().to_owned()), true);
            }
            self.break_up(&name);
        }
        for name in again {
            let will_see = |busy: &crate::control::BusyModel| {
                busy.awaiting.is_some() || busy.waiting.iter().any(|wanted| matches!(wanted, PendingAction::Again))
            };
            if !self.busy.get(&name).is_some_and(will_see) {
                self.want(name, PendingAction::Again);
            }
        }
    }

    /// An ensemble cannot serve: it is taken out, and what is made of it is looked at.
    pub(super) fn break_up(&mut self, name: &str) {
        let Some(model) = self.models.get_mut(name) else { return };
        let numbers: Vec<u64> = model.serving.keys().copied().collect();
        let retired = Self::take_out(model, name, &numbers);
        model.shared = None;
        let has_changed = !retired.is_empty();
        self.publish(Vec::new(), retired, Vec::new());
        if has_changed {
            self.revise(name);
        }
    }

    /// The models that are there for one alone, and that nothing is being done about.
    pub(super) fn only_for(&self, name: &str) -> Vec<String> {
        let dependence = |(name, model): (&String, &crate::control::ModelRecord)| {
            let is_asked = model.is_asked || self.busy.contains_key(name);
            (name.clone(), Dependence { composing: model.composing.clone(), is_asked })
        };
        let all: BTreeMap<_, _> = self.models.iter().map(dependence).collect();
        only_for(name, &all)
    }
}

/// Whether an ensemble that was held against its models again is what serves.
fn is_same(resolved: &ModelSpec, serving: &ModelSpec) -> bool {
    let mut labels = resolved.outputs.iter().zip(&serving.outputs);
    resolved.config_message == serving.config_message && labels.all(|(one, other)| one.labels == other.labels)
}
