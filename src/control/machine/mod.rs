//! The machine that the server runs on: its cores, its limits, its memory and its threads, and the threads that watch
//! them.

pub mod cores;
pub mod cpu_quota;
pub mod host_watch;
pub mod memory_watch;
pub mod model_memory;
pub mod pin_watch;
pub mod process_memory;
pub mod run_watcher;
pub mod spawn;
pub mod thread_watch;
