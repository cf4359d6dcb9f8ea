//! The parts that shards and workers share: the queue of a model version, the completions of a
//! shard, and the parkings of instances. Everything here may be called from several threads. Its
//! atomics, locks and queues come from [`sync`], so that loom can run this code in every order of
//! its steps (`.ci/run interleave`). A shard never waits for a lock in here.

pub mod cache_link;
pub mod closable_queue;
pub mod completions;
pub mod deferred_wakes;
pub mod given_up;
pub mod job_pool;
pub mod limits;
pub mod model_queue;
pub mod one_shot;
pub mod parking;
pub mod parkings;
pub mod queued_request;
pub mod rate_limiter;
pub mod readiness;
pub mod request_slots;
pub mod response_order;
pub mod run_limit;
pub mod semaphore;
pub mod served_model;
pub mod shown_spec;
pub mod sized_queue;
pub mod sync;
#[cfg(test)]
pub mod testing;
pub mod trace_queue;
pub mod wake_file;
pub mod worker;
