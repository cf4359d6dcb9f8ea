//! Measures the memory of the processes of models for the metrics. The thread that watches the processes calls it; shards
//! read only the figures.

use std::fs;
use std::sync::Arc;

use crate::metrics::Gauge;
use crate::process::python::ModelProcess;

/// The figures of the models that had processes at the last look. Bounded by the number of processes.
#[derive(Debug, Default)]
pub struct ModelMemory {
    measured: Vec<Arc<Gauge>>,
}

impl ModelMemory {
    /// Sets the figure of each model to the sum over its processes, and clears it for a model that has lost all of them.
    /// `size` returns the bytes of a process, `None` if it has ended.
    pub fn poll(&mut self, processes: &[ModelProcess], size: impl Fn(&ModelProcess) -> Option<u64>) {
        let mut sums: Vec<(Arc<Gauge>, u64)> = Vec::new();
        for process in processes {
            let Some(size) = size(process) else { continue };
            match sums.iter_mut().find(|(memory, _)| Arc::ptr_eq(memory, &process.memory)) {
                Some((_, sum)) => *sum = sum.saturating_add(size),
                None => sums.push((Arc::clone(&process.memory), size)),
            }
        }
        let is_lost = |memory: &&Arc<Gauge>| !sums.iter().any(|(other, _)| Arc::ptr_eq(memory, other));
        self.measured.iter().filter(is_lost).for_each(|memory| memory.set(None));
        sums.iter().for_each(|(memory, sum)| memory.set(Some(*sum)));
        self.measured = sums.into_iter().map(|(memory, _)| memory).collect();
    }
}

/// The resident memory of a process that no file backs. `None` if it has ended.
pub fn process_size(process: &ModelProcess) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", process.pid)).ok();
    // The kernel looks at each page for this, so others are not asked.
    let parts = if process.shares_pages { read("smaps_rollup") } else { None };
    decode(&read("status")?, parts.as_deref())
}

/// From the text of `/proc/PID/status` (proc_pid_status(5)): anonymous pages, and those of shared memory, which the
/// regions for tensors are. Pages of files are left out: all processes share those of libraries. `parts` is the text of
/// `smaps_rollup`, where an anonymous page of several processes counts in part.
fn decode(status: &str, parts: Option<&str>) -> Option<u64> {
    let bytes = |text: &str, name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok()?.checked_mul(1_024)
    };
    let part = parts.and_then(|parts| bytes(parts, "Pss_Anon:"));
    part.or_else(|| bytes(status, "RssAnon:"))?.checked_add(bytes(status, "RssShmem:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, memory: &Arc<Gauge>) -> ModelProcess {
        ModelProcess { name: pid.to_string(), pid, shares_pages: false, memory: Arc::clone(memory) }
    }

    #[test]
    fn memory_is_anonymous_and_shared_pages() {
        let text = "VmRSS:\t  16384 kB\nRssAnon:\t   100 kB\nRssFile:\t  9000 kB\nRssShmem:\t     20 kB\n";
        assert_eq!(decode(text, None), Some(120 * 1_024));
        assert_eq!(decode(text, Some("Pss:   70 kB\nPss_Anon:   25 kB\nPss_File:   9 kB\n")), Some(45 * 1_024));
        assert_eq!(decode(text, Some("Pss:   70 kB\n")), Some(120 * 1_024), "an older kernel");
        assert_eq!(decode("VmRSS:\t 1 kB\n", None), None, "a process that has ended has no memory");
        for shares_pages in [false, true] {
            let own = ModelProcess { shares_pages, ..process(std::process::id(), &Arc::default()) };
            assert!(process_size(&own).is_some_and(|size| size > 65_536));
        }
    }

    #[test]
    fn a_model_has_the_sum_of_its_processes_until_the_last_is_lost() {
        let [a, b] = [(); 2].map(|()| Arc::<Gauge>::default());
        let mut watch = ModelMemory::default();
        let mut check = |processes: &[ModelProcess], want: [Option<u64>; 2]| {
            watch.poll(processes, |process| (process.pid < 10).then_some(u64::from(process.pid)));
            assert_eq!([a.get(), b.get()], want);
        };
        check(&[process(1, &a), process(2, &a), process(3, &b)], [Some(3), Some(3)]);
        check(&[process(1, &a), process(12, &a)], [Some(1), None]);
        check(&[process(12, &a)], [None, None]);
        check(&[], [None, None]);
    }
}
