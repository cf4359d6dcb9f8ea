//! Metrics of the machine under Triton's names (`metrics.cc`): its CPUs and memory as `/proc` has
//! them, and the pinned memory that GPUs read. The caller passes in the texts; the control room
//! reads the files. An unknown figure has no row.

use std::fmt::Write;

use crate::metrics::gpus::Gauge;
use crate::metrics::head;

/// The figures of the machine, written by the thread that watches it.
#[derive(Debug, Default)]
pub struct HostCells {
    /// Share of the CPUs' time that was not idle, in millionths.
    pub cpu_utilization: Gauge,
    /// Bytes of memory.
    pub memory_total: Gauge,
    /// Bytes of memory that are not available.
    pub memory_used: Gauge,
    /// Processes of models that were found with more runnable threads than cores; not known before the first.
    pub short_of_cores: Gauge,
    /// Bytes of pinned memory that the server may take.
    pub pinned_total: Gauge,
    /// Bytes of pinned memory that it has taken.
    pub pinned_used: Gauge,
}

/// The time of all CPUs since the machine started, in its own unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    idle: u64,
    total: u64,
}

impl CpuTimes {
    /// From the text of `/proc/stat` (proc(5)).
    pub fn decode(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; the time of guests is part of user and nice.
        let times = line.split_ascii_whitespace().take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
        let idle = times.get(3)?.saturating_add(times.get(4).copied().unwrap_or(0));
        Some(Self { idle, total: times.iter().fold(0, |total, time| total.saturating_add(*time)) })
    }

    /// Returns the millionths of the time since an earlier look that were not idle; `None` if no
    /// time passed.
    pub fn utilization_since(&self, earlier: &Self) -> Option<u64> {
        let total = self.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        let idle = self.idle.saturating_sub(earlier.idle).min(total);
        Some((total - idle).saturating_mul(1_000_000) / total)
    }
}

/// Bytes of memory in all, and in use, from the text of `/proc/meminfo`.
pub fn memory(text: &str) -> Option<(u64, u64)> {
    let bytes = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok()?.checked_mul(1_024)
    };
    let total = bytes("MemTotal")?;
    Some((total, total.saturating_sub(bytes("MemAvailable")?)))
}

/// One family: name, help, the figure, and the divisor from its unit to the metric's.
type HostFamily = (&'static str, &'static str, fn(&HostCells) -> &Gauge, u32);

const FAMILIES: [HostFamily; 6] = [
    (
        "deuteron_processes_short_of_cores",
        "Processes of models that were found with more runnable threads than cores",
        |host| &host.short_of_cores,
        1,
    ),
    (
        "nv_pinned_memory_pool_total_bytes",
        "Pinned memory pool total memory size, in bytes",
        |host| &host.pinned_total,
        1,
    ),
    ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", |host| &host.pinned_used, 1),
    ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", |host| &host.cpu_utilization, 1_000_000),
    ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", |host| &host.memory_total, 1),
    ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", |host| &host.memory_used, 1),
];

/// The names of all families.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.0)
}

impl HostCells {
    /// Appends the known figures.
    pub fn encode(&self, out: &mut String) {
        for (name, help, figure, divisor) in FAMILIES {
            let Some(value) = figure(self).get() else { continue };
            head(out, name, "gauge", help);
            #[expect(clippy::cast_precision_loss, reason = "a figure to read, below 2^53 where it is no whole number")]
            let _ = match divisor {
                1 => writeln!(out, "{name} {value}"),
                _ => writeln!(out, "{name} {}", value as f64 / f64::from(divisor)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_what_was_not_idle_between_two_looks() {
        let look = |text: &str| CpuTimes::decode(text).unwrap();
        let before = look("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 2 3 4\n");
        assert_eq!(before, CpuTimes { idle: 800, total: 1_000 });
        let after = look("cpu  150 0 150 750 150 0 0 0 90 0\n");
        assert_eq!(after.utilization_since(&before), Some(500_000));
        assert_eq!(after.utilization_since(&after), None, "no time passed");
        assert_eq!(before.utilization_since(&after), None, "the counters went back");
        assert_eq!(look("cpu 1 2 3 4\n"), CpuTimes { idle: 4, total: 10 }, "an old kernel");
        for text in ["", "cpu0 1 2 3 4\n", "cpu  1 2 x 4\n", "cpu  1 2 3\n"] {
            assert_eq!(CpuTimes::decode(text), None, "{text}");
        }
    }

    #[test]
    fn memory_in_use_is_what_is_not_available() {
        let text = "MemTotal:       16384 kB\nMemFree:         100 kB\nMemAvailable:   12288 kB\n";
        assert_eq!(memory(text), Some((16_777_216, 4_194_304)));
        assert_eq!(memory("MemTotal:       16384 kB\n"), None);
        assert_eq!(memory("MemTotal: x kB\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn what_is_known_has_a_row() {
        let (cells, mut out) = (HostCells::default(), String::new());
        cells.encode(&mut out);
        assert_eq!(out, "");
        cells.cpu_utilization.set(Some(513_500));
        cells.memory_total.set(Some(25_276_502_016));
        cells.short_of_cores.set(Some(1));
        cells.encode(&mut out);
        let want = "# HELP deuteron_processes_short_of_cores Processes of models that were found with more runnable threads \
                    than cores\n# TYPE deuteron_processes_short_of_cores gauge\ndeuteron_processes_short_of_cores 1\n\
                    # HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]\n# TYPE nv_cpu_utilization gauge\n\
                    nv_cpu_utilization 0.5135\n\
                    # HELP nv_cpu_memory_total_bytes CPU total memory (RAM), in bytes\n\
                    # TYPE nv_cpu_memory_total_bytes gauge\nnv_cpu_memory_total_bytes 25276502016\n";
        assert_eq!(out, want);
    }
}
