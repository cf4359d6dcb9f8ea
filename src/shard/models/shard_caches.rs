//! The response caches that a shard looks into.

use std::cell::RefCell;

use crate::metrics::CacheCells;
use crate::shard::ServerContext;
use crate::shard::models::response_cache::ResponseCache;
use crate::shard::models::shared_cache::SharedCache;

/// The response caches that a shard looks into.
pub struct ShardCaches {
    /// Its equal share of the server's, if the server has one.
    pub own: Option<RefCell<ResponseCache>>,
    /// The one that it shares with other servers, if there is one.
    pub shared: Option<SharedCache>,
}

impl ShardCaches {
    /// The caches of the shard of this index.
    pub fn new(server_context: &ServerContext, index: usize) -> Self {
        let shards = server_context.metrics.shard_cells.len();
        let size = server_context.memory.cache_size.checked_div(shards).filter(|size| *size > 0);
        Self {
            own: size.map(|size| RefCell::new(ResponseCache::new(size))),
            shared: server_context.redis.clone().map(|link| SharedCache::new(link, index)),
        }
    }

    /// Drops the shard's own answers.
    pub fn clear(&self, cells: &CacheCells) {
        if let Some(cache) = &self.own {
            let mut cache = cache.borrow_mut();
            cache.clear();
            cache.show(cells);
        }
    }
}
