//! `TRITONSERVER_Metric*`.

use crate::triton::abi::functions;
use crate::triton::metric::{HostedMetric, MetricArgsObject, MetricFamilyObject};
use crate::triton::object::{Handle, Items, Out, Owned, Text};
use crate::triton::parameter::{ParameterContents, ParameterObject};
use backend::custom_metrics::MetricOperation;
use base::error::Error;
use base::limits::{METRIC_BUCKETS_MAX, METRIC_LABELS_MAX};

functions! {
    TRITONSERVER_MetricFamilyNew(family: Out<Handle<MetricFamilyObject>>, kind: u32, name: Text, description: Text) {
        let (name, description) = (name.get("name of the family")?, description.get("description of the family")?);
        let owned = Owned::new(MetricFamilyObject::new(kind, &name, &description)?);
        family.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONSERVER_MetricFamilyDelete(family: Handle<MetricFamilyObject>) { family.delete() }

    TRITONSERVER_GetMetricFamilyKind(family: Handle<MetricFamilyObject>, kind: Out<u32>) {
        kind.set(family.get()?.kind())
    }

    TRITONSERVER_MetricArgsNew(arguments: Out<Handle<MetricArgsObject>>) {
        let owned = Owned::new(MetricArgsObject::default());
        arguments.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONSERVER_MetricArgsSetHistogram(arguments: Handle<MetricArgsObject>, buckets: Items<f64>, count: u64) {
        let arguments = arguments.get()?;
        if count > METRIC_BUCKETS_MAX as u64 {
            return Err(Error::invalid(format!("a histogram has {count} buckets, at most {METRIC_BUCKETS_MAX} are allowed")));
        }
        let set = arguments.buckets.set(buckets.get(count, "buckets")?.into());
        set.map_err(|_| Error::invalid("the metric arguments have their buckets already"))
    }

    TRITONSERVER_MetricArgsDelete(arguments: Handle<MetricArgsObject>) { arguments.delete() }

    TRITONSERVER_MetricNew(
        metric: Out<Handle<HostedMetric>>, family: Handle<MetricFamilyObject>, labels: Items<Handle<ParameterObject>>,
        count: u64
    ) {
        new_metric(metric, family, labels, count, &[])
    }

    TRITONSERVER_MetricNewWithArgs(
        metric: Out<Handle<HostedMetric>>, family: Handle<MetricFamilyObject>, labels: Items<Handle<ParameterObject>>,
        count: u64, arguments: Handle<MetricArgsObject>
    ) {
        let buckets = arguments.get_if_given()?.and_then(|arguments| arguments.buckets.get());
        new_metric(metric, family, labels, count, buckets.map_or(&[], |buckets| buckets))
    }

    TRITONSERVER_MetricDelete(metric: Handle<HostedMetric>) { metric.delete() }

    TRITONSERVER_MetricValue(metric: Handle<HostedMetric>, value: Out<f64>) { value.set(metric.get()?.value()?) }

    TRITONSERVER_MetricIncrement(metric: Handle<HostedMetric>, value: f64) {
        // As in Triton a gauge is decremented by a negative value.
        metric.get()?.update(MetricOperation::Increment, value)
    }

    TRITONSERVER_MetricSet(metric: Handle<HostedMetric>, value: f64) {
        metric.get()?.update(MetricOperation::Set, value)
    }

    TRITONSERVER_MetricObserve(metric: Handle<HostedMetric>, value: f64) {
        metric.get()?.update(MetricOperation::Observe, value)
    }

    TRITONSERVER_GetMetricKind(metric: Handle<HostedMetric>, kind: Out<u32>) { kind.set(metric.get()?.kind()) }
}

fn new_metric(
    metric: Out<Handle<HostedMetric>>,
    family: Handle<MetricFamilyObject>,
    labels: Items<Handle<ParameterObject>>,
    count: u64,
    buckets: &[f64],
) -> Result<(), Error> {
    let family = family.get()?;
    if count > METRIC_LABELS_MAX as u64 {
        return Err(Error::invalid(format!("a metric has {count} labels, at most {METRIC_LABELS_MAX} are allowed")));
    }
    let label = |label: &Handle<ParameterObject>| {
        let label = label.get()?;
        let name = label.name.to_string_lossy().into_owned();
        match &label.value {
            ParameterContents::Text(value) => Ok((name, value.to_string_lossy().into_owned())),
            _ => Err(Error::invalid(format!(
                "Parameter [{name}] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label."
            ))),
        }
    };
    let labels = labels.get(count, "labels")?.iter().map(label).collect::<Result<_, Error>>()?;
    let owned = Owned::new(family.metric(labels, buckets)?);
    metric.set(owned.handle())?;
    owned.into_handle();
    Ok(())
}
