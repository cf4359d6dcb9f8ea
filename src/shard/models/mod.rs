//! The models of one shard: handles of versions, changes, readiness, waits for models that are loaded on demand, and
//! caches of answers.

pub mod ensemble_steps;
pub mod model_table;
mod on_demand;
mod reached_models;
pub mod readiness;
pub mod response_cache;
pub mod shard_caches;
pub mod shared_cache;
mod shared_lookup;
