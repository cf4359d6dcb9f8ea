//! The server's services for models that have code of their own: it calls other models for them,
//! and shows their metrics. Made before the models load; the gateway refuses until the shards run.

use std::sync::Arc;

use crate::backend::custom_metrics::CustomMetrics;
use crate::metrics::{self, TeiBatchCells};
use crate::settings::{CacheSettings, Compat};
use crate::shard::gateway::ShardGateway;

/// The services for models, one set for a server.
#[derive(Clone)]
pub struct ModelServices {
    /// Calls of models to other models, and model control.
    pub gateway: Arc<ShardGateway>,
    /// The metrics that models create.
    pub metrics: Arc<CustomMetrics>,
    /// The runs of text models; `None` if they are not counted.
    pub text_batches: Option<Arc<TeiBatchCells>>,
}

impl ModelServices {
    /// Returns the services of a server whose shards do not run yet.
    pub fn new() -> Self {
        Self { gateway: Arc::default(), metrics: CustomMetrics::new(metrics::own_names()), text_batches: None }
    }

    /// The same for a server with this cache: a library may report the metrics of the cache as a whole itself.
    pub fn beside_cache(cache: &CacheSettings) -> Self {
        if cache.library.is_none() {
            return Self::new();
        }
        let reserved = metrics::own_names().into_iter().filter(|name| !metrics::is_reported_by_libraries(name));
        Self { metrics: CustomMetrics::new(reserved.collect()), ..Self::new() }
    }

    /// Counts the runs of text models, if the metrics of text-embeddings-inference are shown.
    pub fn for_clients_of(self, compat: Compat) -> Self {
        Self { text_batches: (compat == Compat::Tei).then(Arc::default), ..self }
    }
}

impl Default for ModelServices {
    fn default() -> Self {
        Self::new()
    }
}
