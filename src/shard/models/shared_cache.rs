//! The response cache that servers share or that is a library, on the side of a shard: it hands a
//! lookup to a thread with a connection, or to one that calls the library, and awaits the reply, with a limit on the time, and hands over answers to
//! store. After any failure the lookup is a miss.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::model::ModelSpec;
use crate::queue::cache_link::{AnswerKey, CacheJob, CacheLink, LaneRefusal};
use crate::shard::models::model_table::LocalModel;
use crate::shard::models::response_cache::CacheKey;
use crate::tensor::Tensor;
use crate::time::{Instant, Stamps};

/// A shard's part of a shared cache.
pub struct SharedCache {
    pub(super) link: Arc<CacheLink>,
    /// The lane of the next job, so that all lanes have as much to do.
    next_lane: Cell<usize>,
}

impl SharedCache {
    /// The link to the cache; the shards begin at different lanes.
    pub const fn new(link: Arc<CacheLink>, shard: usize) -> Self {
        Self { link, next_lane: Cell::new(shard) }
    }

    pub(super) fn push(&self, now: Instant, job: CacheJob) -> Result<(), LaneRefusal> {
        let lane = self.next_lane.get();
        self.next_lane.set(lane.wrapping_add(1));
        self.link.push(lane, now, job)
    }
}

/// The key under which an answer is stored, and the model versions that it was looked up for.
pub struct SharedMiss {
    pub(super) key: AnswerKey,
    pub(super) models: Vec<Rc<LocalModel>>,
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
