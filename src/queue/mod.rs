//! What shards and workers share: the queue of a model version, the completions of a shard, and the parking between
//! them. Everything here may be called from several threads, and meets by way of [`sync`], which the model check runs in
//! every order (`.ci/run interleave`). A shard never waits for a lock of this room.

pub mod completions;
pub mod model_queue;
pub mod one_shot;
pub mod parking;
pub mod rate_limiter;
pub mod response_order;
pub mod semaphore;
pub mod served_model;
pub mod sync;
pub mod worker;
