//! The services of a shard beside inference: metrics, the console, settings of log and traces, shared memory, orders to
//! the control thread.

pub mod console;
pub mod control_request;
pub mod hosted;
pub mod logging;
pub mod metrics_text;
pub mod shard_services;
pub mod shared_memory;
pub mod trace_settings;
