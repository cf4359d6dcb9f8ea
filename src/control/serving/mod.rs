//! From loaded versions to the threads that serve them: the plan of queues, workers and cores, the start and the stop of
//! threads, and the shares of rate limits. Called at start by `server`, and by the control thread for each later load.

pub mod instance_update;
pub mod plan;
pub mod rate_limit;
pub mod threads;
