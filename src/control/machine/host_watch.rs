//! The thread that looks at the machine for the metrics, every `--metrics-interval-ms`: reading `/proc` takes longer the
//! more CPUs there are, so no shard does it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::control::machine::spawn::spawn;
use crate::log;
use crate::metrics::{CpuTimes, HostCells, memory};

/// Starts the thread. It ends when the cells have been dropped. `pinned_used`: bytes of pinned
/// memory in use.
pub fn start(cells: &Arc<HostCells>, interval: Duration, pinned_used: impl Fn() -> u64 + Send + 'static) {
    let cells = Arc::downgrade(cells);
    let started = spawn("host-watch".to_owned(), move || {
        let mut before = None;
        while let Some(cells) = cells.upgrade() {
            let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
            let now = CpuTimes::decode(&read("/proc/stat"));
            // Before the second look it is the mean since the machine started.
            let utilization = now.and_then(|now| now.utilization_since(&before.unwrap_or_default()));
            cells.cpu_utilization.set(utilization.or_else(|| cells.cpu_utilization.get()));
            let (total, used) = memory(&read("/proc/meminfo")).unzip();
            cells.memory_total.set(total);
            cells.memory_used.set(used);
            cells.pinned_used.set(Some(pinned_used()));
            before = now.or(before);
            drop(cells);
            std::thread::park_timeout(interval);
        }
    });
    if let Err(error) = started {
        log::warning(&format!("/metrics has no rows of CPUs: {error}"));
    }
}
