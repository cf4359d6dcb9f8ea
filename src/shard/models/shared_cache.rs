//! The response cache that servers share, on the side of a shard: it hands a lookup to a thread
//! with a connection and awaits the reply, with a limit on the time, and hands over answers to
//! store. After any failure the lookup is a miss.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;

use crate::model::ModelSpec;
use crate::protocol::infer::InferRequest;
use crate::queue::cache_link::{AnswerKey, CacheFinding, CacheJob, CacheLink, CacheQuestion, LaneRefusal, LookupLease};
use crate::queue::one_shot::one_shot;
use crate::runtime::{clock, executor};
use crate::shard::Shard;
use crate::shard::models::model_table::LocalModel;
use crate::shard::models::response_cache::CacheKey;
use crate::tensor::Tensor;
use crate::time::{Instant, Stamps};

/// A shard's part of a shared cache.
pub struct SharedCache {
    link: Arc<CacheLink>,
    /// The lane of the next job, so that all lanes have as much to do.
    next_lane: Cell<usize>,
}

impl SharedCache {
    /// The link to the cache; the shards begin at different lanes.
    pub const fn new(link: Arc<CacheLink>, shard: usize) -> Self {
        Self { link, next_lane: Cell::new(shard) }
    }

    fn push(&self, job: CacheJob) -> Result<(), LaneRefusal> {
        let lane = self.next_lane.get();
        self.next_lane.set(lane.wrapping_add(1));
        self.link.push(lane, job)
    }
}

/// The key under which an answer is stored, and the model versions that it was looked up for.
pub struct SharedMiss {
    key: AnswerKey,
    models: Vec<Rc<LocalModel>>,
}

/// The result of a lookup in the response cache.
pub enum CacheLookup {
    /// The cached outputs.
    Hit(Vec<Tensor>, Stamps),
    /// Nothing is cached; the lookup took this time.
    Miss(MissedKey, Duration),
}

/// The place where the answer to a request that missed is cached.
pub enum MissedKey {
    /// In the shard's own cache, with these steps.
    Own(CacheKey, Vec<Arc<ModelSpec>>),
    /// In the cache that servers share; `None` if it could not be asked.
    Shared(Option<SharedMiss>),
}

impl Shard {
    /// A lookup that began at an instant found an answer.
    pub(in crate::shard) fn hit(
        &self,
        model: &LocalModel,
        outputs: Vec<Tensor>,
        received: Instant,
        began: Instant,
    ) -> CacheLookup {
        let now = clock::now();
        if let Some(cells) = model.served().cells.get(self.index) {
            cells.count_cache_hit(received, began, now, clock::epoch_millis(now));
        }
        self.cells.cache.hits.add(1);
        self.cells.cache.lookup_duration.add_duration(now.since(began));
        let stamps = Stamps { received, batched: began, input_end: began, infer_end: began, output_end: now };
        CacheLookup::Hit(outputs, stamps)
    }

    /// A lookup in the shared cache that began at an instant found none.
    fn missed(&self, miss: Option<SharedMiss>, began: Instant) -> CacheLookup {
        CacheLookup::Miss(MissedKey::Shared(miss), self.count_miss(began))
    }

    /// Counts a miss of a lookup that began at an instant; returns its duration.
    pub(in crate::shard) fn count_miss(&self, began: Instant) -> Duration {
        let took = clock::now().since(began);
        self.cells.cache.misses.add(1);
        self.cells.cache.lookup_duration.add_duration(took);
        took
    }

    /// Looks a request up in the shared cache; `None` if the model's answers are not cached there.
    /// Waits for `lookup_timeout` at most, and not beyond the client's deadline.
    pub(in crate::shard) async fn look_up_shared(
        &self,
        model: &Rc<LocalModel>,
        request: &InferRequest,
        received: Instant,
        deadline: Option<Instant>,
    ) -> Option<CacheLookup> {
        let shared = self.caches.shared.as_ref()?;
        let (models, outputs) = self.answering(model, request)?;
        let began = clock::now();
        let (reply, awaited) = one_shot(LookupLease);
        let question = CacheQuestion {
            models: models.iter().map(|model| Arc::clone(&model.served().spec)).collect(),
            inputs: request.inputs.clone(),
            parameters: request.parameters.clone(),
            outputs,
        };
        let cells = &self.cells.cache;
        let finding = match shared.push(CacheJob::Look(question, began + shared.link.wait_timeout, reply)) {
            Err(LaneRefusal::Closed) => CacheFinding::Unknown,
            Err(LaneRefusal::Full) => {
                cells.shared.lookups_full.add(1);
                // Counted here, not as a lookup without a connection.
                return Some(self.missed(None, began));
            }
            Ok(()) => {
                let until = (began + shared.link.lookup_timeout).min(deadline.unwrap_or(Instant::from_nanos(u64::MAX)));
                let late = async {
                    executor::sleep_until(until).await;
                    Ok(CacheFinding::Late)
                };
                // An error is a connection that was lost meanwhile.
                future::or(awaited, late).await.unwrap_or(CacheFinding::Unknown)
            }
        };
        match finding {
            CacheFinding::Found(outputs) => Some(self.hit(model, outputs, received, began)),
            CacheFinding::Missing(key) => Some(self.missed(Some(SharedMiss { key, models }), began)),
            CacheFinding::Late => {
                cells.shared.lookups_late.add(1);
                Some(self.missed(None, began))
            }
            CacheFinding::Unknown => {
                cells.shared.lookups_unconnected.add(1);
                Some(self.missed(None, began))
            }
        }
    }

    /// The model versions that answer, and the requested outputs of an ensemble; `None` if they
    /// have no identity, or a step may have a state.
    fn answering(&self, model: &Rc<LocalModel>, request: &InferRequest) -> Option<(Vec<Rc<LocalModel>>, Vec<usize>)> {
        let (mut models, mut outputs) = (vec![Rc::clone(model)], Vec::new());
        if model.served().spec.ensemble.is_some() {
            if request.sequence.mark().is_some() {
                return None;
            }
            models = self.reached(model);
            outputs.extend(request.plan.outputs.iter().map(|output| output.index));
        }
        let has_identity = |model: &Rc<LocalModel>| model.served().spec.identity.is_some();
        (!models.is_empty() && models.iter().all(has_identity)).then_some((models, outputs))
    }

    /// Hands an answer over to be stored. Not if a step of an ensemble was replaced since the
    /// lookup: the answer may be that of either.
    pub(in crate::shard) fn store_shared(&self, model: &Rc<LocalModel>, miss: SharedMiss, outputs: &[Tensor]) {
        let Some(shared) = &self.caches.shared else { return };
        if model.served().spec.ensemble.is_some() {
            let (before, after) = (miss.models.iter(), self.reached(model));
            if !before.map(Rc::as_ptr).eq(after.iter().map(Rc::as_ptr)) {
                return;
            }
        }
        if shared.push(CacheJob::Store(miss.key, outputs.to_vec())).is_err() {
            self.cells.cache.shared.stores_dropped.add(1);
        }
    }
}
