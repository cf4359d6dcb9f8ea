//! Models that are loaded when they are first asked for (`--model-cache-bytes-max`): the control
//! thread's part. Requests wait for a load, which starts if the model is in a repository and has
//! not failed just now. When the load is over, the least recently used model leaves
//! ([`ModelCache`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::control::loading::load_failure::LoadFailure;
use crate::control::thread::load_job::LoadOutcome;
use crate::control::thread::model_cache::{ModelCache, ModelUse};
use crate::control::thread::model_record::ModelRecord;
use crate::control::thread::{ControlThread, PendingAction};
use crate::error::{Code, Error};
use crate::log;
use crate::metrics::ModelCacheCells;
use crate::model::repository::index::RepositoryOverview;
use crate::queue::served_model::ServedModel;
use crate::runtime::clock;
use crate::settings::Settings;
use crate::shard::services::control_request::ControlReply;
use crate::time::Instant;

/// The age of a listing of the repositories that may say a model is missing: they are listed at
/// most this often, whatever names clients ask for.
const MODEL_LISTING_AGE: Duration = Duration::from_secs(1);
/// The first pause after a failed load on demand; doubled by each further failure.
const MODEL_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The longest of these pauses.
const MODEL_RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The control thread's state of these models.
pub struct OnDemand {
    cache: ModelCache,
    /// Requests that wait for a load, by model.
    waits: BTreeMap<String, Vec<ControlReply>>,
    /// Requests for models that the last listing does not have.
    unlisted: Vec<(String, ControlReply)>,
    /// The models of the repositories, as last listed.
    listed: BTreeSet<String>,
    listed_at: Option<Instant>,
    /// Models whose last load failed.
    failed: BTreeMap<String, FailedWant>,
}

/// A model that is not loaded again for a while.
struct FailedWant {
    until: Instant,
    pause: Duration,
    error: Error,
}

impl OnDemand {
    /// Creates it as the flags say; `None` if models are loaded at start.
    pub fn new(settings: &Settings) -> Option<Self> {
        let size_max = settings.model_cache.size_max?;
        Some(Self {
            cache: ModelCache::new(size_max),
            waits: BTreeMap::new(),
            unlisted: Vec::new(),
            listed: BTreeSet::new(),
            listed_at: None,
            failed: BTreeMap::new(),
        })
    }

    fn wait(&mut self, name: &str, reply: ControlReply) {
        let waits = self.waits.entry(name.to_owned()).or_default();
        // Requests whose clients have left make room for others.
        waits.retain(ControlReply::is_awaited);
        waits.push(reply);
    }

    /// Returns the reason that a model is not loaded now; `None` if it may be.
    fn refusal(&self, name: &str, now: Instant) -> Option<Error> {
        let failed = self.failed.get(name).filter(|failed| now < failed.until)?;
        Some(failed.error.clone().with_retry_after(failed.until.since(now)))
    }

    /// A load has failed for which requests have waited.
    fn handle_failed(&mut self, name: &str, failure: &LoadFailure, now: Instant) -> Error {
        if let LoadFailure::Absent(_) = failure {
            self.listed.remove(name);
            return RepositoryOverview::default().refusal(name, None);
        }
        let before = self.failed.get(name).map_or(Duration::ZERO, |failed| failed.pause);
        let pause = (before * 2).clamp(MODEL_RETRY_PAUSE, MODEL_RETRY_PAUSE_MAX);
        // In the words of a load request's answer, which has no path of the server.
        let why = failure.answer(name, false);
        let why = why.text().trim_end_matches(['\n', ';']);
        let text = format!("model '{name}' cannot be loaded: {why}; it is tried again in {pause:?}");
        let is_too_large = failure.error().code() == Code::OutOfMemory;
        let code = if is_too_large { Code::OutOfMemory } else { Code::Unavailable };
        let error = Error::new(code, text);
        self.failed.insert(name.to_owned(), FailedWant { until: now + pause, pause, error: error.clone() });
        error.with_retry_after(pause)
    }
}

impl ControlThread {
    /// A request has come for a model that does not serve on its shard. While the server drains the reply is dropped, which
    /// answers the client with a refusal.
    pub(super) fn handle_wanted(&mut self, name: String, reply: ControlReply) {
        let now = clock::now();
        let Some(on_demand) = self.on_demand.as_mut().filter(|_| !self.is_draining) else { return };
        if self.models.get(&name).is_some_and(|model| !model.serving.is_empty()) {
            // It serves since; the shard is told so before the reply.
            return self.reply_when_applied(reply);
        }
        if self.busy.contains_key(&name) {
            return on_demand.wait(&name, reply);
        }
        if let Some(refusal) = on_demand.refusal(&name, now) {
            return reply.send(Err(refusal));
        }
        if on_demand.listed.contains(&name) {
            on_demand.wait(&name, reply);
            return self.schedule(name, PendingAction::LoadWanted);
        }
        if on_demand.listed_at.is_some_and(|at| now.since(at) < MODEL_LISTING_AGE) {
            return reply.send(Err(RepositoryOverview::default().refusal(&name, None)));
        }
        on_demand.unlisted.retain(|(_, reply)| reply.is_awaited());
        on_demand.unlisted.push((name, reply));
        self.list_repositories();
    }

    /// The repositories were listed: requests that wait for a model that is there now start its
    /// load.
    pub(super) fn handle_listed(&mut self, names: &Result<Vec<(String, bool)>, Error>) {
        let Some(on_demand) = &mut self.on_demand else { return };
        match names {
            Ok(names) => {
                on_demand.listed = names.iter().map(|(name, _)| name.clone()).collect();
                on_demand.listed_at = Some(clock::now());
                let unlisted = std::mem::take(&mut on_demand.unlisted);
                unlisted.into_iter().for_each(|(name, reply)| self.handle_wanted(name, reply));
            }
            Err(_) => {
                for (_, reply) in on_demand.unlisted.drain(..) {
                    reply.send(Err(Error::unavailable("the model repositories cannot be listed; try again later")));
                }
            }
        }
    }

    /// Returns the requests that waited for a load that is over, and its outcome for them: a model
    /// that is larger than the limit for all is not kept.
    pub(super) fn settle_wants(
        &mut self,
        name: &str,
        is_requested: bool,
        outcome: LoadOutcome,
    ) -> (Vec<ControlReply>, LoadOutcome) {
        let Some(on_demand) = &mut self.on_demand else { return (Vec::new(), outcome) };
        let waits = on_demand.waits.remove(name).unwrap_or_default();
        let size_max = on_demand.cache.size_max();
        let outcome = outcome.and_then(|(ready, changes)| {
            let size = ModelCache::size_of(ready.iter().map(|ready| (ready.files_size, ready.served.process_size())));
            if size <= size_max || is_requested {
                return Ok((ready, changes));
            }
            Err(LoadFailure::from(Error::new(
                Code::OutOfMemory,
                format!("it takes {size} bytes, and all models together may take {size_max} (--model-cache-bytes-max)"),
            )))
        });
        match &outcome {
            Ok(_) => {
                on_demand.failed.remove(name);
                (waits, outcome)
            }
            Err(failure) => {
                let error = on_demand.handle_failed(name, failure, clock::now());
                waits.into_iter().for_each(|reply| reply.send(Err(error.clone())));
                (Vec::new(), outcome)
            }
        }
    }

    /// A model serves new versions: models that no longer fit beside it leave.
    pub(super) fn handle_cached(&mut self, name: &str) {
        let Some(on_demand) = &mut self.on_demand else { return };
        let Some(model) = self.models.get(name) else { return };
        let size = model.serving.values().map(|version| (version.files_size, version.served.process_size()));
        let now = clock::now();
        on_demand.cache.handle_loaded(name, ModelCache::size_of(size), clock::epoch_millis(now));
        while let Some(leaving) = self.next_to_leave(name) {
            log::info(&format!("unloading '{leaving}' to make room for '{name}' (--model-cache-bytes-max)"));
            self.cache_cells().evictions.add(1);
            self.unload(&leaving, None, false);
        }
        self.show_cache();
    }

    /// Returns the model that leaves so that others have room, beside a model that was just loaded.
    fn next_to_leave(&self, newest: &str) -> Option<String> {
        let on_demand = self.on_demand.as_ref()?;
        on_demand.cache.next_to_leave(|name| match self.models.get(name) {
            Some(model) if name != newest && !self.busy.contains_key(name) && !self.is_step(name) => model_use(model),
            _ => ModelUse::Kept,
        })
    }

    /// Returns true if only waiting requests need a load in progress.
    pub(super) fn is_on_demand(&self, name: &str) -> bool {
        self.on_demand.is_some() && self.busy.get(name).is_some_and(|busy| !busy.is_requested)
    }

    /// Returns true if an ensemble that is loaded or loading has the model as a step.
    fn is_step(&self, name: &str) -> bool {
        let is_there = |(ensemble, model): (&String, &ModelRecord)| {
            (!model.serving.is_empty() || self.busy.contains_key(ensemble))
                && model.composing.iter().any(|step| step == name)
        };
        self.models.iter().any(is_there)
    }

    /// The server starts: models that a flag named are loaded already.
    pub(super) fn handle_started(&mut self) {
        if self.on_demand.is_some() {
            let names: Vec<String> = self.models.keys().cloned().collect();
            names.iter().for_each(|name| self.handle_cached(name));
            self.show_cache();
        }
    }

    /// Removes models that no longer serve from the account, and shows it.
    pub(super) fn show_cache(&mut self) {
        let Some(on_demand) = &mut self.on_demand else { return };
        let models = &self.models;
        on_demand.cache.retain(|name| models.get(name).is_some_and(|model| !model.serving.is_empty()));
        let cells = &self.context.server_context.metrics.model_cache;
        cells.size.set(on_demand.cache.size());
        cells.size_max.set(on_demand.cache.size_max());
    }

    fn cache_cells(&self) -> &ModelCacheCells {
        &self.context.server_context.metrics.model_cache
    }
}

/// Returns the use of a model that serves.
fn model_use(model: &ModelRecord) -> ModelUse {
    let mut versions = model.serving.values().map(|version| &version.served);
    if model.is_requested || model.is_uploaded || versions.clone().any(|served| served.has_sequences()) {
        return ModelUse::Kept;
    }
    ModelUse::AnsweredAt(versions.by_ref().map(|served| ServedModel::answered_at(served)).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::backend::EnsembleModel;
    use crate::backend::trial::spec;
    use crate::control::serving::threads::{ThreadHooks, WorkerGroup};
    use crate::control::thread::model_record::VersionRecord;
    use crate::control::thread::order::tests::control_with;
    use crate::model::repository::index::IndexEntry;
    use crate::queue::one_shot::OneShotReceiver;
    use crate::queue::served_model::Placement;
    use crate::settings::ModelCacheSettings;
    use crate::shard::services::control_request::ControlRequests;

    #[test]
    fn requests_that_find_their_model_served_have_nothing_published() {
        let model_cache = ModelCacheSettings { size_max: Some(1_000_000), ..ModelCacheSettings::default() };
        let mut control = control_with(Settings { model_cache, ..Settings::default() });
        let (spec, model) = (Arc::new(spec(0, &[], &[])), Arc::new(EnsembleModel));
        let served = Arc::new(ServedModel::new(spec, 1, model, Placement::Inline, 1));
        let hooks = ThreadHooks { running: channel().0, ended: Arc::new(|| {}) };
        let worker_group = WorkerGroup::start(&served, &[], &hooks).unwrap();
        let (mark, took, files_size, basis, uploaded_files) = (0, Duration::ZERO, 0, None, None);
        let version = VersionRecord { served, worker_group, mark, took, files_size, basis, uploaded_files };
        control.models.entry("m".to_owned()).or_default().serving.insert(1, version);
        let requests = ControlRequests::default();
        let ask = |control: &mut ControlThread| {
            let (reply, awaited) = requests.admit_wait(8).unwrap();
            control.handle_wanted("m".to_owned(), reply);
            awaited
        };
        let polled = |awaited: &mut OneShotReceiver<Vec<IndexEntry>>| {
            futures_lite::future::block_on(futures_lite::future::poll_once(awaited))
        };
        for _ in 0..3 {
            assert_eq!(polled(&mut ask(&mut control)), Some(Ok(Vec::new())));
        }
        control.publish_overview();
        let mut awaited = [ask(&mut control), ask(&mut control)];
        assert!(awaited.iter_mut().all(|awaited| polled(awaited).is_none()), "the shard has not applied it");
        control.handle_change_applied(control.change_count);
        assert!(awaited.iter_mut().all(|awaited| polled(awaited) == Some(Ok(Vec::new()))));
        assert_eq!(control.change_count, 1);
    }

    #[test]
    fn a_model_that_fails_is_left_alone_for_longer_each_time() {
        let model_cache = ModelCacheSettings { size_max: Some(1_000_000), ..ModelCacheSettings::default() };
        assert!(OnDemand::new(&Settings::default()).is_none());
        let mut on_demand = OnDemand::new(&Settings { model_cache, ..Settings::default() }).unwrap();
        let failure = LoadFailure::Version(1, Error::internal("it is broken"));
        let mut now = Instant::ZERO;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            let error = on_demand.handle_failed("m", &failure, now);
            let pause = Duration::from_secs(seconds);
            let text = format!(
                "model 'm' cannot be loaded: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: it is \
                 broken; it is tried again in {pause:?}"
            );
            assert_eq!((error.code(), error.text()), (Code::Unavailable, text.as_str()));
            let just_before = now + pause - Duration::from_millis(1);
            assert_eq!(on_demand.refusal("m", just_before).map(|error| error.text().to_owned()), Some(text));
            now = now + pause;
            assert!(on_demand.refusal("m", now).is_none(), "{seconds}");
        }
        let too_large = LoadFailure::from(Error::new(Code::OutOfMemory, "it takes 7 bytes"));
        assert_eq!(on_demand.handle_failed("l", &too_large, now).code(), Code::OutOfMemory);
        let absent = LoadFailure::Absent(Error::not_found("gone"));
        let error = on_demand.handle_failed("n", &absent, now);
        assert_eq!((error.code(), error.text()), (Code::NotFound, "Request for unknown model: 'n' is not found"));
        assert!(on_demand.refusal("n", now).is_none(), "it may come");
    }
}
