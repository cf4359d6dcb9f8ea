//! GPUs: what NVML knows of each, under Triton's names (`metrics.cc`), and what we take of it; and what
//! the executor counts of a model there. A figure that is not known has no row.

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::{ModelFigures, head};

/// The GPUs, once somebody has looked for them.
pub type GpuBoard = OnceLock<Vec<GpuCells>>;

/// A figure that may not be known.
#[derive(Debug)]
pub struct Gauge(AtomicU64);

impl Default for Gauge {
    fn default() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }
}

const UNKNOWN: u64 = u64::MAX;

impl Gauge {
    /// Sets it.
    pub fn set(&self, value: Option<u64>) {
        self.0.store(value.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|value| *value != UNKNOWN)
    }
}

/// What is known of one GPU: written by the thread that watches it.
#[derive(Debug, Default)]
pub struct GpuCells {
    /// Its name in all rows.
    pub uuid: String,
    /// Percent.
    pub utilization: Gauge,
    /// Bytes.
    pub memory_total: Gauge,
    /// Bytes, by any process.
    pub memory_used: Gauge,
    /// Bytes that models here take.
    pub memory_taken: Gauge,
    /// Milliwatts.
    pub power_usage: Gauge,
    /// Milliwatts.
    pub power_limit: Gauge,
    /// Millijoules.
    pub energy: Gauge,
}

/// What the executor counts of one model version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFigures {
    /// Batches that were enqueued.
    pub begun: u64,
    /// Those that gave outputs.
    pub done: u64,
    /// The most that one instance had on its device at a time.
    pub flights_peak: u64,
    /// Microseconds of the device, by what it did.
    pub stages: [(&'static str, u64); 3],
    /// Failures, by what they left behind.
    pub failures: [(&'static str, u64); 4],
    /// Instances that were made anew.
    pub restarts: u64,
}

/// One family of rows: its name, kind and help, the figure, and what it is divided by.
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
    ("deuteron_gpu_memory_taken_bytes", "gauge", "GPU memory that models here take", |gpu| &gpu.memory_taken, 1),
];

/// Appends what is known of the GPUs.
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

/// What is counted of a model, by a label where there is one: `(label, value, count)`.
type LabelledCounts = Vec<(&'static str, &'static str, u64)>;

/// A family of a model's rows: its name, kind and help, and its rows.
type ModelFamily = (&'static str, &'static str, &'static str, fn(&GpuFigures) -> LabelledCounts);

const MODEL_FAMILIES: [ModelFamily; 5] = [
    (
        "deuteron_gpu_batches_total",
        "counter",
        "Batches on GPUs: those that began, and those that gave outputs",
        |gpu| vec![("state", "begun", gpu.begun), ("state", "done", gpu.done)],
    ),
    ("deuteron_gpu_flights_peak", "gauge", "Most batches of one instance that were on its GPU at a time", |gpu| {
        vec![("", "", gpu.flights_peak)]
    }),
    ("deuteron_gpu_time_us_total", "counter", "Time of GPUs, by what it went for", |gpu| {
        gpu.stages.iter().map(|(stage, time)| ("stage", *stage, *time)).collect()
    }),
    ("deuteron_gpu_failures_total", "counter", "Failures on GPUs, by what they left behind", |gpu| {
        gpu.failures.iter().map(|(kind, count)| ("kind", *kind, *count)).collect()
    }),
    ("deuteron_gpu_restarts_total", "counter", "Instances on GPUs that were made anew", |gpu| {
        vec![("", "", gpu.restarts)]
    }),
];

/// Appends what the executor counts of models on GPUs.
pub fn encode_models(out: &mut String, models: &[ModelFigures<'_>]) {
    if models.iter().all(|model| model.gpu.is_none()) {
        return;
    }
    for (name, kind, help, rows) in MODEL_FAMILIES {
        head(out, name, kind, help);
        for model in models {
            let (labels, version) = (model.labels, model.version);
            for (label, value, count) in model.gpu.iter().flat_map(rows) {
                let own = if label.is_empty() { String::new() } else { format!(",{label}=\"{value}\"") };
                let model = model.name;
                let _ = writeln!(out, "{name}{{{labels}model=\"{model}\",version=\"{version}\"{own}}} {count}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_a_gpu_has_a_row_and_what_is_not_has_none() {
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
