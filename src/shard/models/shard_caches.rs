//! The response caches that a shard looks into, and the answers that it leaves there.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::pressure::MemoryStep;
use crate::protocol::infer::InferRequest;
use crate::runtime::clock;
use crate::shard::models::model_table::{LocalModel, ModelTable};
use crate::shard::models::response_cache::{EnsembleParts, ResponseCache};
use crate::shard::models::shared_cache::{CacheLookup, MissedKey, SharedCache};
use crate::shard::server_context::ShardContext;
use crate::tensor::Tensor;
use crate::time::{Instant, Stamps};

/// The response caches that a shard looks into.
pub struct ShardCaches {
    pub(super) context: ShardContext,
    /// Its equal share of the server's, if the server has one.
    pub(super) own: Option<RefCell<ResponseCache>>,
    /// The one that it shares with other servers, if there is one.
    pub shared: Option<SharedCache>,
}

impl ShardCaches {
    /// The caches of a shard.
    pub fn new(context: ShardContext) -> Self {
        let shards = context.server.metrics.shard_cells.len();
        let size = context.server.memory.cache_size.checked_div(shards).filter(|size| *size > 0);
        Self {
            own: size.map(|size| RefCell::new(ResponseCache::new(size))),
            shared: context.server.shared_cache.clone().map(|link| SharedCache::new(link, context.index)),
            context,
        }
    }

    /// Drops the shard's own answers.
    pub fn clear(&self) {
        if let Some(cache) = &self.own {
            let mut cache = cache.borrow_mut();
            cache.clear();
            cache.show(&self.context.cells.cache);
        }
    }

    /// Looks the request up in the shard's own cache and counts a hit; `None` if the model's answers are not cached.
    pub(in crate::shard) fn look_up(
        &self,
        table: &ModelTable,
        model: &Rc<LocalModel>,
        request: &InferRequest,
        received: Instant,
    ) -> Option<CacheLookup> {
        let served = model.served();
        let cache = self.own.as_ref().filter(|_| served.spec.is_cached)?;
        let mut parts = EnsembleParts::default();
        if served.spec.ensemble.is_some() {
            if request.sequence.mark().is_some() {
                // A step may have a state.
                return None;
            }
            parts.models = table.reached(model).iter().map(|model| Arc::clone(&model.served().spec)).collect();
            parts.outputs = request.plan.outputs.iter().map(|output| output.index).collect();
        }
        let mut cache = cache.borrow_mut();
        let began = clock::now();
        let key = cache.key(&served.spec, &request.inputs, &request.parameters, &parts);
        Some(match cache.find(&key) {
            Some(outputs) => self.hit(model, outputs, received, began),
            None => CacheLookup::Miss(MissedKey::Own(key, parts.models), self.count_miss(began)),
        })
    }

    /// Caches an answer that was looked up before. The cost of the miss is the time of the lookup plus that of the
    /// insertion. `None` for an answer with parameters, which is not cached: they may speak of this one run, and without
    /// them (as Triton caches) it would be another answer.
    pub(in crate::shard) fn remember(
        &self,
        table: &ModelTable,
        model: &Rc<LocalModel>,
        key: MissedKey,
        outputs: Option<&[Tensor]>,
        looked_up: Duration,
    ) {
        let began = clock::now();
        let is_short = self.context.server.memory.gives_up(MemoryStep::KeepAlive);
        match (key, &self.own, outputs) {
            (_, _, None) => {}
            (MissedKey::Own(..), _, _) if is_short => self.clear(),
            (MissedKey::Own(key, steps), Some(cache), Some(outputs)) => {
                let mut cache = cache.borrow_mut();
                cache.insert(key, &model.served().spec, steps, outputs);
                cache.show(&self.context.cells.cache);
            }
            (MissedKey::Shared(Some(miss)), _, Some(outputs)) => self.store_shared(table, model, miss, outputs),
            (MissedKey::Own(..) | MissedKey::Shared(None), _, _) => {}
        }
        let now = clock::now();
        let took = now.since(began);
        self.context.cells.cache.insertion_duration.add_duration(took);
        if let Some(cells) = model.served().cells.get(self.context.index) {
            cells.count_cache_miss(looked_up + took, clock::epoch_millis(now));
        }
    }

    /// A lookup that began at an instant found an answer.
    pub(super) fn hit(
        &self,
        model: &LocalModel,
        outputs: Vec<Tensor>,
        received: Instant,
        began: Instant,
    ) -> CacheLookup {
        let now = clock::now();
        if let Some(cells) = model.served().cells.get(self.context.index) {
            cells.count_cache_hit(received, began, now, clock::epoch_millis(now));
        }
        self.context.cells.cache.hits.add(1);
        self.context.cells.cache.lookup_duration.add_duration(now.since(began));
        let stamps = Stamps { received, batched: began, input_end: began, infer_end: began, output_end: now };
        CacheLookup::Hit(outputs, stamps)
    }

    /// Counts a miss of a lookup that began at an instant; returns its duration.
    pub(super) fn count_miss(&self, began: Instant) -> Duration {
        let took = clock::now().since(began);
        self.context.cells.cache.misses.add(1);
        self.context.cells.cache.lookup_duration.add_duration(took);
        took
    }
}
