//! Metrics that backends make: `TRITONSERVER_MetricFamily` and `TRITONSERVER_Metric`, in the server's registry.

use std::sync::Arc;

use crate::triton::object::hosted_object;
use crate::triton::services::{self, BackendMetrics};
use backend::custom_metrics::{MetricKind, MetricOperation};
use base::error::Error;

/// A `TRITONSERVER_MetricFamily`.
pub(super) struct MetricFamilyObject(Arc<HostedFamily>);

hosted_object!(MetricFamilyObject, "metric family", 18);

/// A `TRITONSERVER_Metric`.
pub(super) struct HostedMetric {
    family: Arc<HostedFamily>,
    id: u32,
}

hosted_object!(HostedMetric, "metric", 19);

/// A `TRITONSERVER_MetricArgs`.
#[derive(Default)]
pub(super) struct MetricArgsObject {
    pub(super) buckets: std::sync::OnceLock<Box<[f64]>>,
}

hosted_object!(MetricArgsObject, "metric arguments", 20);

/// A family. Metrics are invalid without it, as in Triton, even if their objects outlive it.
struct HostedFamily {
    metrics: Box<dyn BackendMetrics>,
    id: u32,
    kind: MetricKind,
}

impl MetricFamilyObject {
    /// A family.
    ///
    /// # Errors
    /// The registry's error.
    pub(super) fn new(kind: u32, name: &str, description: &str) -> Result<Self, Error> {
        let kind = match kind {
            0 => MetricKind::Counter,
            1 => MetricKind::Gauge,
            2 => MetricKind::Histogram,
            kind => return Err(Error::invalid(format!("{kind} is no TRITONSERVER_MetricKind"))),
        };
        let metrics = services::get()?.metrics.metrics();
        let id = metrics.new_family(kind, name, description)?;
        Ok(Self(Arc::new(HostedFamily { metrics, id, kind })))
    }

    /// A metric of the family.
    ///
    /// # Errors
    /// The registry's error.
    pub(super) fn metric(&self, labels: Vec<(String, String)>, buckets: &[f64]) -> Result<HostedMetric, Error> {
        let id = self.0.metrics.new_metric(self.0.id, labels, buckets)?;
        Ok(HostedMetric { family: Arc::clone(&self.0), id })
    }

    pub(super) fn kind(&self) -> u32 {
        number(self.0.kind)
    }
}

impl Drop for MetricFamilyObject {
    fn drop(&mut self) {
        self.0.metrics.drop_family(self.0.id);
    }
}

impl HostedMetric {
    pub(super) fn update(&self, operation: MetricOperation, value: f64) -> Result<(), Error> {
        // Here as well as in the registry, which may be in another process and does not answer then.
        self.family.kind.check(operation, value)?;
        self.family.metrics.update(self.id, operation, value)
    }

    pub(super) fn value(&self) -> Result<f64, Error> {
        self.family.metrics.value(self.id)
    }

    pub(super) fn kind(&self) -> u32 {
        number(self.family.kind)
    }
}

impl Drop for HostedMetric {
    fn drop(&mut self) {
        self.family.metrics.drop_metric(self.id);
    }
}

/// `TRITONSERVER_MetricKind`.
const fn number(kind: MetricKind) -> u32 {
    match kind {
        MetricKind::Counter => 0,
        MetricKind::Gauge => 1,
        MetricKind::Histogram => 2,
    }
}
