//! Metrics of GPUs: NVML's figures of each device, under Triton's names (`metrics.cc`), the memory
//! that this server allocated on it, and the GPU executor's counters for a model. An unknown figure
//! has no row.

use std::fmt::{Display, Formatter, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::{ModelFigures, head};

/// The figures of all GPUs; set once, when the devices are found.
pub type GpuBoard = OnceLock<Vec<GpuCells>>;

/// A figure that may be unknown.
#[derive(Debug)]
pub struct Gauge(AtomicU64);

impl Default for Gauge {
    fn default() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }
}

/// Not 0: a device without power use differs from one that does not report it.
const UNKNOWN: u64 = u64::MAX;

impl Gauge {
    /// Sets it; `None` for unknown.
    pub fn set(&self, value: Option<u64>) {
        self.0.store(value.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Returns the figure; `None` if it is unknown.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|value| *value != UNKNOWN)
    }
}

/// The figures of one GPU, written by the thread that watches the GPUs.
#[derive(Debug, Default)]
pub struct GpuCells {
    /// The UUID of the device: its label in all rows.
    pub uuid: String,
    /// Utilization in percent.
    pub utilization: Gauge,
    /// Bytes of device memory.
    pub memory_total: Gauge,
    /// Bytes of device memory in use, by any process.
    pub memory_used: Gauge,
    /// Bytes of device memory that this server allocated for its models.
    pub memory_taken: Gauge,
    /// Power usage in milliwatts.
    pub power_usage: Gauge,
    /// Power limit in milliwatts.
    pub power_limit: Gauge,
    /// Energy since the driver was loaded, in millijoules.
    pub energy: Gauge,
}

/// The GPU executor's counters for one model version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFigures {
    /// Batches enqueued.
    pub begun: u64,
    /// Batches that gave outputs.
    pub done: u64,
    /// The most batches of one instance in flight at a time.
    pub flights_peak: u64,
    /// Device time in microseconds, by stage (upload, compute, download).
    pub stages: [(&'static str, u64); 3],
    /// Failures, by kind (memory, transient, sticky, hang).
    pub failures: [(&'static str, u64); 4],
    /// Instances that were restarted.
    pub restarts: u64,
}

/// One metric family of a device: name, kind, help, the figure, and the divisor from its unit to the metric's.
type GpuFamily = (&'static str, &'static str, &'static str, fn(&GpuCells) -> &Gauge, u32);

const FAMILIES: [GpuFamily; 7] = [
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", |gpu| &gpu.utilization, 100),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", |gpu| &gpu.memory_total, 1),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", |gpu| &gpu.memory_used, 1),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", |gpu| &gpu.power_usage, 1000),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", |gpu| &gpu.power_limit, 1000),
    (
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the driver was loaded",
        |gpu| &gpu.energy,
        1000,
    ),
    (
        "deuteron_gpu_memory_taken_bytes",
        "gauge",
        "GPU memory allocated by this server's models",
        |gpu| &gpu.memory_taken,
        1,
    ),
];

/// The names of all families that have rows on a machine with GPUs.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|family| family.0).chain(MODEL_FAMILIES.iter().map(|family| family.0))
}

/// Appends the metrics of all GPUs.
pub fn encode(out: &mut String, gpus: &[GpuCells]) {
    for (name, kind, help, figure, divisor) in FAMILIES {
        let rows: Vec<_> = gpus.iter().filter_map(|gpu| Some((&gpu.uuid, figure(gpu).get()?))).collect();
        if !rows.is_empty() {
            head(out, name, kind, help);
        }
        for (uuid, value) in rows {
            #[expect(clippy::cast_precision_loss, reason = "a figure to read, far below 2^53")]
            let value = value as f64 / f64::from(divisor);
            let _ = writeln!(out, "{name}{{gpu_uuid=\"{uuid}\"}} {value}");
        }
    }
}

/// Rows of a model's metric: `(label, label value, value)`; the label is empty without one.
type LabelledValues = Vec<(&'static str, &'static str, MetricNumber)>;

/// A value of a metric.
enum MetricNumber {
    Count(u64),
    /// A time, which is written in seconds.
    Micros(u64),
}

impl Display for MetricNumber {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Micros(micros) => write!(f, "{}.{:06}", micros / 1_000_000, micros % 1_000_000),
        }
    }
}

/// One metric family of a model: name, kind, help and rows.
type ModelFamily = (&'static str, &'static str, &'static str, fn(&GpuFigures) -> LabelledValues);

const MODEL_FAMILIES: [ModelFamily; 5] = [
    (
        "deuteron_gpu_batches_total",
        "counter",
        "Batches on GPUs: enqueued (begun), and finished with outputs (done)",
        |gpu| {
            vec![("state", "begun", MetricNumber::Count(gpu.begun)), ("state", "done", MetricNumber::Count(gpu.done))]
        },
    ),
    ("deuteron_gpu_flights_peak", "gauge", "Most batches of one instance in flight on its GPU at a time", |gpu| {
        vec![("", "", MetricNumber::Count(gpu.flights_peak))]
    }),
    ("deuteron_gpu_time_seconds_total", "counter", "Time of GPUs in seconds, by stage", |gpu| {
        gpu.stages.iter().map(|(stage, time)| ("stage", *stage, MetricNumber::Micros(*time))).collect()
    }),
    ("deuteron_gpu_failures_total", "counter", "Failures on GPUs, by kind", |gpu| {
        gpu.failures.iter().map(|(kind, count)| ("kind", *kind, MetricNumber::Count(*count))).collect()
    }),
    ("deuteron_gpu_restarts_total", "counter", "Restarts of instances on GPUs", |gpu| {
        vec![("", "", MetricNumber::Count(gpu.restarts))]
    }),
];

/// Appends the GPU metrics of all models; nothing if no model is on a GPU.
pub fn encode_models(out: &mut String, models: &[ModelFigures<'_>]) {
    if models.iter().all(|model| model.gpu.is_none()) {
        return;
    }
    for (name, kind, help, rows) in MODEL_FAMILIES {
        head(out, name, kind, help);
        for model in models {
            let (labels, version) = (model.labels, model.version);
            for (label, value, number) in model.gpu.iter().flat_map(rows) {
                let own = if label.is_empty() { String::new() } else { format!(",{label}=\"{value}\"") };
                let model = model.name;
                let _ = writeln!(out, "{name}{{{labels}model=\"{model}\",version=\"{version}\"{own}}} {number}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_figure_of_a_gpu_has_a_row_and_an_unknown_one_has_none() {
        let gpus = [GpuCells { uuid: "GPU-1".to_owned(), ..GpuCells::default() }, GpuCells::default()];
        let mut out = String::new();
        encode(&mut out, &gpus);
        assert_eq!(out, "", "nothing is known");
        gpus[0].utilization.set(Some(75));
        gpus[0].power_usage.set(Some(350_250));
        gpus[0].memory_total.set(Some(85_899_345_920));
        encode(&mut out, &gpus);
        let rows: Vec<_> = out.lines().filter(|line| !line.starts_with('#')).collect();
        let want = [
            "nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.75",
            "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-1\"} 85899345920",
            "nv_gpu_power_usage{gpu_uuid=\"GPU-1\"} 350.25",
        ];
        assert_eq!(rows, want);
        gpus[0].utilization.set(None);
        out.clear();
        encode(&mut out, &gpus);
        assert!(!out.contains("utilization"));
    }
}
