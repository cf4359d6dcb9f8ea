//! One series of a metric family of models: its labels and its value, which any thread changes and any thread reads.
//! Nothing else is published through a value, so all accesses are relaxed; the sum and the buckets of a histogram may
//! be a few observations apart.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::custom_metrics::{MetricKind, MetricOperation};
use base::error::Error;

/// One series.
pub struct MetricSeries {
    kind: MetricKind,
    labels: Vec<(String, String)>,
    /// The value, or the sum of a histogram: the bits of a double.
    value: AtomicU64,
    /// The upper bounds of a histogram's buckets, each with the count of the values above the bound before; the last
    /// counts those above all.
    buckets: Box<[f64]>,
    counts: Box<[AtomicU64]>,
}

impl MetricSeries {
    /// A series with value zero.
    pub(super) fn new(kind: MetricKind, labels: Vec<(String, String)>, buckets: &[f64]) -> Self {
        let counts = if kind == MetricKind::Histogram { buckets.len() + 1 } else { 0 };
        Self {
            kind,
            labels,
            value: AtomicU64::new(0.0_f64.to_bits()),
            buckets: buckets.into(),
            counts: (0..counts).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Its labels, sorted by name.
    pub fn labels(&self) -> &[(String, String)] {
        &self.labels
    }

    /// Its value; the sum of a histogram.
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.value.load(Ordering::Relaxed))
    }

    /// Each bucket of a histogram: its upper bound, infinite for the last, and the number of values
    /// in it alone.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.buckets.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Changes the value, if the kind allows it.
    pub fn update(&self, operation: MetricOperation, value: f64) -> Result<(), Error> {
        self.kind.check(operation, value)?;
        match operation {
            MetricOperation::Increment => self.add(value),
            MetricOperation::Set => self.value.store(value.to_bits(), Ordering::Relaxed),
            MetricOperation::Observe => {
                // The first bucket whose bound is not below the value; NaN is above all.
                let index = self.buckets.iter().position(|bound| value <= *bound).unwrap_or(self.buckets.len());
                if let Some(count) = self.counts.get(index) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                self.add(value);
            }
        }
        Ok(())
    }

    /// The value of a counter or gauge.
    pub(super) fn value(&self) -> Result<f64, Error> {
        if self.kind == MetricKind::Histogram { Err(unsupported(self.kind, "Value")) } else { Ok(self.sum()) }
    }

    fn add(&self, value: f64) {
        let sum = |bits: u64| Some((f64::from_bits(bits) + value).to_bits());
        let _ = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }
}

impl MetricKind {
    /// Checks that a metric of this kind can be changed in this way.
    ///
    /// # Errors
    /// `Unsupported`, or `InvalidArgument` for the value, in Triton's words.
    pub fn check(self, operation: MetricOperation, value: f64) -> Result<(), Error> {
        let name = match (self, operation) {
            (Self::Counter, MetricOperation::Increment) if value < 0.0 => {
                return Err(Error::invalid(
                    "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
                ));
            }
            (Self::Counter | Self::Gauge, MetricOperation::Increment)
            | (Self::Gauge, MetricOperation::Set)
            | (Self::Histogram, MetricOperation::Observe) => return Ok(()),
            (_, MetricOperation::Increment) => "Increment",
            (_, MetricOperation::Observe) => "Observe",
            (_, MetricOperation::Set) => "Set",
        };
        Err(unsupported(self, name))
    }
}

/// Triton's refusal of an operation that a kind does not have (`metric_family.cc`).
fn unsupported(kind: MetricKind, operation: &str) -> Error {
    let kind = kind.as_str().to_ascii_uppercase();
    Error::unsupported(format!("TRITONSERVER_METRIC_KIND_{kind} does not support {operation}"))
}
