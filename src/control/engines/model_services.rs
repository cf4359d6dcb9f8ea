//! The server's services for models that have code of their own: it calls other models for them,
//! and shows their metrics. Made before the models load; the gateway refuses until the shards run.

use std::sync::Arc;

use crate::backend::custom_metrics::CustomMetrics;
use crate::metrics;
use crate::shard::gateway::ShardGateway;

/// The services for models, one set for a server.
#[derive(Clone)]
pub struct ModelServices {
    /// Calls of models to other models, and model control.
    pub gateway: Arc<ShardGateway>,
    /// The metrics that models create.
    pub metrics: Arc<CustomMetrics>,
}

impl ModelServices {
    /// Returns the services of a server whose shards do not run yet.
    pub fn new() -> Self {
        Self { gateway: Arc::default(), metrics: CustomMetrics::new(metrics::own_names()) }
    }
}

impl Default for ModelServices {
    fn default() -> Self {
        Self::new()
    }
}
