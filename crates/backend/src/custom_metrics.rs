//! Metrics that models create (`pb_utils.MetricFamily`). As in Triton they are the server's:
//! families of equal names are one family, and metrics of it with equal labels one series,
//! independent of their creator, so that the instances of a model count together and a model that
//! is reloaded goes on counting. A family or series ends with the last object for it.
//!
//! One lock guards the table. Threads of instances hold it briefly, for each operation; a shard
//! only tries it, and reads the values after releasing it. Bounded by the `METRIC_` limits.

#![expect(clippy::disallowed_types, reason = "a table that threads of instances share; a shard only tries the lock")]

mod series;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use base::error::Error;
use base::limits::{METRIC_BUCKETS_MAX, METRIC_LABELS_MAX};

pub use crate::custom_metrics::series::MetricSeries;

/// Families of metrics that the models of a server may create: each is a block of every page of metrics.
const METRIC_FAMILIES_MAX: usize = 1_024;
/// Series of one metric family of models, that is, sets of labels: more belong into a log.
const METRIC_SERIES_MAX: usize = 4_096;
/// Objects for metric families and metrics that one process of a model may hold at a time.
const METRIC_OBJECTS_MAX: usize = 65_536;
/// Bytes of the name and value of one label, of a metric family's name and of its description, each.
const METRIC_TEXT_SIZE_MAX: usize = 1_024;

/// All metrics of models, one for a server.
pub struct CustomMetrics {
    /// Names of the server's own metrics, which models may not use.
    reserved: Vec<String>,
    families: Mutex<BTreeMap<String, SharedFamily>>,
}

/// The metrics that one process of a model has made: it names them by the ids given here. Dropped, it drops them.
pub struct ProcessMetrics {
    metrics: Arc<CustomMetrics>,
    objects: Mutex<MetricObjects>,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A sum that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Counts of values by size.
    Histogram,
}

/// An operation on a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricOperation {
    /// Adds a value.
    Increment,
    /// Counts a value in a histogram.
    Observe,
    /// Replaces the value.
    Set,
}

/// A family with its series, as it is shown. The values go on changing.
#[derive(Clone)]
pub struct MetricFamilyView {
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The kind of its series.
    pub kind: MetricKind,
    /// Its series, by their labels.
    pub series: Vec<Arc<MetricSeries>>,
}

/// One family. It exists as long as there are objects for it.
struct SharedFamily {
    kind: MetricKind,
    description: String,
    objects: usize,
    series: BTreeMap<LabelPairs, SharedSeries>,
}

struct SharedSeries {
    series: Arc<MetricSeries>,
    objects: usize,
}

/// Names and values of labels, sorted by name.
type LabelPairs = Vec<(String, String)>;

#[derive(Default)]
struct MetricObjects {
    families: BTreeMap<u32, String>,
    metrics: BTreeMap<u32, MetricObject>,
    next: u32,
}

struct MetricObject {
    family: u32,
    labels: LabelPairs,
    series: Arc<MetricSeries>,
}

impl CustomMetrics {
    /// A table without metrics; models may not use the reserved names.
    pub fn new(reserved: Vec<String>) -> Arc<Self> {
        Arc::new(Self { reserved, families: Mutex::default() })
    }

    /// A handle for the metrics of one process of a model, empty at first.
    pub fn for_process(self: &Arc<Self>) -> ProcessMetrics {
        ProcessMetrics { metrics: Arc::clone(self), objects: Mutex::default() }
    }

    /// Returns all families with series, by name; `None` if another thread has the lock at this
    /// moment: try again.
    pub fn try_view(&self) -> Option<Vec<MetricFamilyView>> {
        let families = match self.families.try_lock() {
            Ok(families) => families,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let view = |(name, family): (&String, &SharedFamily)| MetricFamilyView {
            name: name.clone(),
            description: family.description.clone(),
            kind: family.kind,
            series: family.series.values().map(|shared| Arc::clone(&shared.series)).collect(),
        };
        Some(families.iter().filter(|(_, family)| !family.series.is_empty()).map(view).collect())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SharedFamily>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_family(&self, kind: MetricKind, name: &str, description: &str) -> Result<(), Error> {
        let mut families = self.lock();
        if let Some(family) = families.get_mut(name) {
            if family.kind != kind {
                return Err(Error::invalid(format!(
                    "metric family '{name}' exists as a {}, it cannot be a {} too",
                    family.kind.as_str(),
                    kind.as_str()
                )));
            }
            family.objects += 1;
            return Ok(());
        }
        if families.len() >= METRIC_FAMILIES_MAX {
            return Err(Error::unavailable(format!("models have {METRIC_FAMILIES_MAX} metric families (the limit)")));
        }
        let wanted = FamilyHead { name, kind };
        let mut taken = families.iter().map(|(name, family)| FamilyHead { name, kind: family.kind });
        if self.is_reserved(wanted) || taken.any(|other| are_mixed_up(wanted, other)) {
            return Err(Error::invalid(format!("the metric name '{name}' is taken, choose another")));
        }
        let (description, series) = (description.to_owned(), BTreeMap::new());
        families.insert(name.to_owned(), SharedFamily { kind, description, objects: 1, series });
        Ok(())
    }

    fn is_reserved(&self, wanted: FamilyHead<'_>) -> bool {
        // The kinds of the server's own metrics are not known here, so all are taken for
        // histograms.
        let own = |name: &String| {
            name == wanted.name || are_mixed_up(wanted, FamilyHead { name, kind: MetricKind::Histogram })
        };
        self.reserved.iter().any(own)
    }

    fn drop_family(&self, name: &str) {
        let mut families = self.lock();
        if let Some(family) = families.get_mut(name) {
            family.objects -= 1;
            if family.objects == 0 {
                debug_assert!(family.series.is_empty(), "an object for a metric goes before that for its family");
                families.remove(name);
            }
        }
    }

    fn add_metric(&self, name: &str, labels: &LabelPairs, buckets: &[f64]) -> Result<Arc<MetricSeries>, Error> {
        let mut families = self.lock();
        let family = families.get_mut(name).ok_or_else(invalidated)?;
        check_buckets(family.kind, buckets)?;
        if family.kind == MetricKind::Histogram && labels.iter().any(|(label, _)| label == "le") {
            return Err(Error::invalid("Invalid label name: 'le' is the label of a histogram's buckets"));
        }
        if let Some(shared) = family.series.get_mut(labels) {
            shared.objects += 1;
            return Ok(Arc::clone(&shared.series));
        }
        if family.series.len() >= METRIC_SERIES_MAX {
            let text = format!("metric family '{name}' has {METRIC_SERIES_MAX} sets of labels (the limit)");
            return Err(Error::unavailable(text));
        }
        let series = Arc::new(MetricSeries::new(family.kind, labels.clone(), buckets));
        family.series.insert(labels.clone(), SharedSeries { series: Arc::clone(&series), objects: 1 });
        Ok(series)
    }

    fn drop_metric(&self, name: &str, labels: &LabelPairs) {
        let mut families = self.lock();
        let Some(family) = families.get_mut(name) else { return };
        if let Some(shared) = family.series.get_mut(labels) {
            shared.objects -= 1;
            if shared.objects == 0 {
                family.series.remove(labels);
            }
        }
    }
}

impl ProcessMetrics {
    /// Makes a family, or an object for the family of this name. Returns its id.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is malformed or taken, or a family of another kind;
    /// `Unavailable` if the limit is reached.
    pub fn new_family(&self, kind: MetricKind, name: &str, description: &str) -> Result<u32, Error> {
        check_name(name)?;
        check_size("description of a metric family", description)?;
        let mut objects = self.lock();
        let id = objects.next_id()?;
        self.metrics.add_family(kind, name, description)?;
        objects.families.insert(id, name.to_owned());
        Ok(id)
    }

    /// Makes a metric of a family, or an object for the one with these labels. Only a histogram has
    /// buckets. Returns its id.
    ///
    /// # Errors
    /// `InvalidArgument` for malformed labels or buckets; `Internal` if the family was dropped;
    /// `Unavailable` if the limit is reached.
    pub fn new_metric(&self, family: u32, labels: Vec<(String, String)>, buckets: &[f64]) -> Result<u32, Error> {
        let labels = check_labels(labels)?;
        let mut objects = self.lock();
        let id = objects.next_id()?;
        let name = objects.families.get(&family).ok_or_else(invalidated)?;
        let series = self.metrics.add_metric(name, &labels, buckets)?;
        objects.metrics.insert(id, MetricObject { family, labels, series });
        Ok(id)
    }

    /// Changes the value of a metric.
    ///
    /// # Errors
    /// `Unsupported` for an operation that the kind does not have; `InvalidArgument` for a counter
    /// that would shrink; `Internal` if the metric was dropped. The texts are Triton's.
    pub fn update(&self, metric: u32, operation: MetricOperation, value: f64) -> Result<(), Error> {
        let series = self.series(metric).ok_or_else(|| {
            let verb = if operation == MetricOperation::Increment { "increment" } else { "set" };
            Error::internal(format!("Could not {verb} metric value. Metric has been invalidated."))
        })?;
        series.update(operation, value)
    }

    /// The value of a metric.
    ///
    /// # Errors
    /// `Unsupported` for a histogram; `Internal` if the metric was dropped. The texts are Triton's.
    pub fn value(&self, metric: u32) -> Result<f64, Error> {
        let gone = || Error::internal("Could not get metric value. Metric has been invalidated.");
        self.series(metric).ok_or_else(gone)?.value()
    }

    /// Drops the object for a family, and those for its metrics that this process made with it.
    pub fn drop_family(&self, family: u32) {
        let mut objects = self.lock();
        let Some(name) = objects.families.remove(&family) else { return };
        let own: Vec<u32> =
            objects.metrics.iter().filter(|(_, metric)| metric.family == family).map(|(id, _)| *id).collect();
        for metric in own.iter().filter_map(|id| objects.metrics.remove(id)) {
            self.metrics.drop_metric(&name, &metric.labels);
        }
        self.metrics.drop_family(&name);
    }

    /// Drops the object for a metric.
    pub fn drop_metric(&self, metric: u32) {
        let mut objects = self.lock();
        let Some(metric) = objects.metrics.remove(&metric) else { return };
        if let Some(name) = objects.families.get(&metric.family) {
            self.metrics.drop_metric(name, &metric.labels);
        }
    }

    /// The series of a metric, which may be changed without the lock of the table.
    pub fn series(&self, metric: u32) -> Option<Arc<MetricSeries>> {
        self.lock().metrics.get(&metric).map(|metric| Arc::clone(&metric.series))
    }

    fn lock(&self) -> MutexGuard<'_, MetricObjects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ProcessMetrics {
    fn drop(&mut self) {
        let families: Vec<u32> = self.lock().families.keys().copied().collect();
        families.into_iter().for_each(|family| self.drop_family(family));
    }
}

impl MetricObjects {
    /// An id that was never used.
    fn next_id(&mut self) -> Result<u32, Error> {
        if self.families.len() + self.metrics.len() >= METRIC_OBJECTS_MAX || self.next == u32::MAX {
            return Err(Error::unavailable(format!(
                "a process of a model has {METRIC_OBJECTS_MAX} metrics (the limit); make each once"
            )));
        }
        self.next += 1;
        Ok(self.next)
    }
}

impl MetricKind {
    /// Its name in the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A family as the head of its lines shows it.
#[derive(Clone, Copy)]
struct FamilyHead<'a> {
    name: &'a str,
    kind: MetricKind,
}

/// Returns true if the lines of one family would look like those of the other: a histogram has more
/// names than its own.
fn are_mixed_up(one: FamilyHead<'_>, other: FamilyHead<'_>) -> bool {
    let has_line = |histogram: FamilyHead<'_>, family: FamilyHead<'_>| {
        histogram.kind == MetricKind::Histogram
            && family
                .name
                .strip_prefix(histogram.name)
                .is_some_and(|rest| ["_bucket", "_count", "_sum"].contains(&rest))
    };
    has_line(one, other) || has_line(other, one)
}

fn invalidated() -> Error {
    Error::internal("Could not create metric. Metric family has been invalidated.")
}

fn check_size(what: &str, text: &str) -> Result<(), Error> {
    if text.len() > METRIC_TEXT_SIZE_MAX {
        return Err(Error::invalid(format!(
            "the {what} has {} bytes, at most {METRIC_TEXT_SIZE_MAX} are allowed",
            text.len()
        )));
    }
    Ok(())
}

/// Checks the name of a family as the Prometheus library of Triton does.
fn check_name(name: &str) -> Result<(), Error> {
    check_size("name of a metric family", name)?;
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let is_named = name.starts_with(|first: char| is_part(first) && !first.is_ascii_digit());
    if !is_named || !name.chars().all(is_part) || name.starts_with("__") {
        return Err(Error::invalid(format!(
            "Invalid metric name '{}': expected letters, digits, '_' and ':', not a digit or '__' first",
            name.escape_debug()
        )));
    }
    Ok(())
}

/// Checks labels in the same way, and sorts them.
fn check_labels(mut labels: Vec<(String, String)>) -> Result<LabelPairs, Error> {
    if labels.len() > METRIC_LABELS_MAX {
        return Err(Error::invalid(format!(
            "the metric has {} labels, at most {METRIC_LABELS_MAX} are allowed",
            labels.len()
        )));
    }
    for (name, value) in &labels {
        check_size("name of a label", name)?;
        check_size("value of a label", value)?;
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_named = name.starts_with(|first: char| is_part(first) && !first.is_ascii_digit());
        if !is_named || !name.chars().all(is_part) || name.starts_with("__") {
            return Err(Error::invalid(format!(
                "Invalid label name '{}': expected letters, digits and '_', not a digit or '__' first",
                name.escape_debug()
            )));
        }
    }
    labels.sort();
    // As in a dictionary, the last value of a name would win; a caller that sends one twice is at fault.
    if labels.windows(2).any(|pair| matches!(pair, [one, other] if one.0 == other.0)) {
        return Err(Error::invalid("a label of the metric is given twice"));
    }
    Ok(labels)
}

fn check_buckets(kind: MetricKind, buckets: &[f64]) -> Result<(), Error> {
    match kind {
        MetricKind::Counter | MetricKind::Gauge if buckets.is_empty() => return Ok(()),
        MetricKind::Counter | MetricKind::Gauge => {
            return Err(Error::invalid("Failed to create metric. Unexpected buckets found."));
        }
        MetricKind::Histogram => {}
    }
    if buckets.len() > METRIC_BUCKETS_MAX {
        return Err(Error::invalid(format!(
            "the histogram has {} buckets, at most {METRIC_BUCKETS_MAX} are allowed",
            buckets.len()
        )));
    }
    // False for NaN, too.
    if !buckets.is_sorted_by(|one, other| one < other) || buckets.iter().any(|bound| bound.is_nan()) {
        return Err(Error::invalid("Bucket Boundaries must be strictly sorted"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::error::Code;

    fn labels(text: &str) -> Vec<(String, String)> {
        let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.split_whitespace().filter_map(pair).collect()
    }

    fn server() -> Arc<CustomMetrics> {
        CustomMetrics::new(vec!["nv_inference_count".to_owned(), "deuteron_batch_size".to_owned()])
    }

    /// The series as `name{labels} value`, one in a line.
    fn shown(metrics: &CustomMetrics) -> String {
        let mut text = String::new();
        for family in metrics.try_view().unwrap() {
            for series in &family.series {
                let labels: Vec<_> = series.labels().iter().map(|(name, value)| format!("{name}={value}")).collect();
                text += &format!("{}{{{}}} {}\n", family.name, labels.join(","), series.sum());
            }
        }
        text
    }

    #[test]
    fn equal_names_and_labels_are_one_series_until_the_last_that_made_it_is_gone() {
        let server = server();
        let make = |process: &ProcessMetrics, given: &str| {
            let family = process.new_family(MetricKind::Counter, "c", "said first").unwrap();
            process.new_metric(family, labels(given), &[]).unwrap()
        };
        let (one, two) = (server.for_process(), server.for_process());
        let (of_one, of_two, other) = (make(&one, "b=2 a=1"), make(&two, "a=1 b=2"), make(&two, "a=9"));
        one.update(of_one, MetricOperation::Increment, 1.5).unwrap();
        two.update(of_two, MetricOperation::Increment, 2.0).unwrap();
        assert_eq!((one.value(of_one), two.value(of_two), two.value(other)), (Ok(3.5), Ok(3.5), Ok(0.0)));
        assert_eq!(shown(&server), "c{a=1,b=2} 3.5\nc{a=9} 0\n");
        drop(one);
        assert_eq!(shown(&server), "c{a=1,b=2} 3.5\nc{a=9} 0\n", "the other process has it still");
        two.drop_metric(other);
        assert_eq!(shown(&server), "c{a=1,b=2} 3.5\n");
        let gone = "Could not increment metric value. Metric has been invalidated.";
        assert_eq!(two.update(other, MetricOperation::Increment, 1.0), Err(Error::internal(gone)));
        assert!(two.value(other).unwrap_err().text().starts_with("Could not get metric value."));
        drop(two);
        assert_eq!(shown(&server), "");
        let again = server.for_process();
        assert!(again.new_family(MetricKind::Gauge, "c", "another kind now").is_ok(), "nothing of it is left");
        assert_eq!(shown(&server), "", "a family without series has no lines");
    }

    #[test]
    fn a_family_that_is_dropped_takes_its_metrics_along() {
        let server = server();
        let process = server.for_process();
        let family = |name: &str| process.new_family(MetricKind::Gauge, name, "").unwrap();
        let (one, same, other) = (family("g"), family("g"), family("h"));
        let metric = |family| process.new_metric(family, Vec::new(), &[]).unwrap();
        let (of_one, of_same, of_other) = (metric(one), metric(same), metric(other));
        process.update(of_other, MetricOperation::Set, -4.0).unwrap();
        process.drop_family(one);
        assert!(process.value(of_one).is_err() && process.value(of_same) == Ok(0.0));
        assert_eq!(shown(&server), "g{} 0\nh{} -4\n");
        process.drop_family(same);
        assert_eq!(shown(&server), "h{} -4\n");
        assert_eq!(process.new_metric(one, Vec::new(), &[]), Err(invalidated()));
        // Ids of other processes, and ids that were used, do nothing.
        process.drop_metric(of_one);
        process.drop_family(of_other);
        process.drop_family(999);
        assert_eq!(shown(&server), "h{} -4\n");
    }

    #[test]
    fn each_kind_has_its_operations() {
        let server = server();
        let process = server.for_process();
        let metric = |kind: MetricKind, buckets: &[f64]| {
            let family = process.new_family(kind, kind.as_str(), "").unwrap();
            process.new_metric(family, Vec::new(), buckets).unwrap()
        };
        let kinds = [
            metric(MetricKind::Counter, &[]),
            metric(MetricKind::Gauge, &[]),
            metric(MetricKind::Histogram, &[0.5, 2.0]),
        ];
        let allowed = |operation, value: f64| kinds.map(|metric| process.update(metric, operation, value).is_ok());
        assert_eq!(allowed(MetricOperation::Increment, 1.0), [true, true, false]);
        assert_eq!(allowed(MetricOperation::Increment, -3.0), [false, true, false]);
        assert_eq!(allowed(MetricOperation::Set, 7.0), [false, true, false]);
        assert_eq!(allowed(MetricOperation::Observe, 0.5), [false, false, true]);
        for value in [-1.0, 0.6, 2.0, 3.0, f64::INFINITY] {
            process.update(kinds[2], MetricOperation::Observe, value).unwrap();
        }
        let error = |operation| process.update(kinds[0], operation, -1.0).unwrap_err();
        let shrinks = "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.";
        assert_eq!(error(MetricOperation::Increment), Error::invalid(shrinks));
        let no_set = "TRITONSERVER_METRIC_KIND_COUNTER does not support Set";
        assert_eq!(error(MetricOperation::Set), Error::unsupported(no_set));
        assert_eq!((process.value(kinds[0]), process.value(kinds[1])), (Ok(1.0), Ok(7.0)));
        assert_eq!(process.value(kinds[2]).unwrap_err().code(), Code::Unsupported);
        let view = server.try_view().unwrap();
        let histogram = view.iter().find(|family| family.kind == MetricKind::Histogram).unwrap();
        let buckets: Vec<_> = histogram.series[0].buckets().collect();
        assert_eq!(buckets, [(0.5, 2), (2.0, 2), (f64::INFINITY, 2)], "a bound belongs to its bucket");
        assert_eq!(histogram.series[0].sum(), f64::INFINITY);
        let gauge = view.iter().find(|family| family.kind == MetricKind::Gauge).unwrap();
        assert_eq!(gauge.series[0].buckets().count(), 0);
    }

    #[test]
    fn names_labels_and_buckets_are_checked() {
        let server = server();
        let process = server.for_process();
        let name =
            |kind, name: &str| process.new_family(kind, name, "").map(drop).map_err(|error| error.text().to_owned());
        for good in ["a", "_b", "vllm:prompt_tokens_total", "C9"] {
            assert_eq!(name(MetricKind::Counter, good), Ok(()), "{good}");
        }
        for bad in ["", "9a", "a b", "a-b", "__a", "ä", "a\n"] {
            assert!(name(MetricKind::Counter, bad).unwrap_err().starts_with("Invalid metric name"), "{bad}");
        }
        let long = "n".repeat(METRIC_TEXT_SIZE_MAX + 1);
        assert!(name(MetricKind::Counter, &long).unwrap_err().contains("has 1025 bytes, at most 1024 are allowed"));
        assert!(process.new_family(MetricKind::Gauge, "g", &long).is_err());
        assert_eq!(
            name(MetricKind::Gauge, "a"),
            Err("metric family 'a' exists as a counter, it cannot be a gauge too".to_owned())
        );
        for taken in ["nv_inference_count", "deuteron_batch_size", "deuteron_batch_size_sum"] {
            let want = format!("the metric name '{taken}' is taken, choose another");
            assert_eq!(name(MetricKind::Counter, taken), Err(want));
        }
        assert_eq!(name(MetricKind::Counter, "nv_inference_counts"), Ok(()));
        assert_eq!(name(MetricKind::Counter, "h_count"), Ok(()));
        assert!(name(MetricKind::Histogram, "h").is_err(), "its lines would have the name of another family");
        assert_eq!(name(MetricKind::Histogram, "i"), Ok(()));
        assert!(name(MetricKind::Counter, "i_bucket").is_err());
        let counter = process.new_family(MetricKind::Counter, "a", "").unwrap();
        let histogram = process.new_family(MetricKind::Histogram, "i", "").unwrap();
        let metric = |family, given: &str, buckets: &[f64]| {
            process.new_metric(family, labels(given), buckets).map(drop).map_err(|error| error.text().to_owned())
        };
        assert_eq!(metric(counter, "le=1 a_9=x", &[]), Ok(()));
        assert!(metric(histogram, "le=1", &[1.0]).unwrap_err().starts_with("Invalid label name"));
        for bad in ["a:b=1", "9=1", "__a=1", "=1", "a-b=1"] {
            assert!(metric(counter, bad, &[]).unwrap_err().starts_with("Invalid label name"), "{bad}");
        }
        assert!(metric(counter, "a=1 a=2", &[]).is_err());
        assert!(metric(counter, &format!("a={long}"), &[]).is_err());
        let many: Vec<_> = (0..=METRIC_LABELS_MAX).map(|index| format!("a{index}=1")).collect();
        assert!(metric(counter, &many.join(" "), &[]).unwrap_err().contains("65 labels, at most 64"));
        assert!(metric(counter, "", &[1.0]).unwrap_err().contains("Unexpected buckets"));
        assert_eq!(metric(histogram, "a=1", &[f64::NEG_INFINITY, 1.0]), Ok(()));
        for bad in [&[2.0, 1.0][..], &[1.0, 1.0], &[f64::NAN], &[1.0, f64::NAN]] {
            assert_eq!(metric(histogram, "", bad), Err("Bucket Boundaries must be strictly sorted".to_owned()));
        }
        let buckets: Vec<_> = (0..=METRIC_BUCKETS_MAX).map(|bound| bound as f64).collect();
        assert!(metric(histogram, "", &buckets).unwrap_err().contains("257 buckets, at most 256"));
    }

    #[test]
    fn families_series_and_objects_are_bounded() {
        let server = server();
        let process = server.for_process();
        let first = process.new_family(MetricKind::Counter, "f0", "").unwrap();
        let metric = |index: usize| process.new_metric(first, labels(&format!("i={index}")), &[]);
        let metrics: Vec<_> = (0..METRIC_SERIES_MAX).map(|index| metric(index).unwrap()).collect();
        let want = "metric family 'f0' has 4096 sets of labels (the limit)";
        assert_eq!(metric(METRIC_SERIES_MAX), Err(Error::unavailable(want)));
        assert!(metric(0).is_ok(), "one that exists");
        process.drop_metric(metrics[7]);
        assert!(metric(METRIC_SERIES_MAX).is_ok(), "there is room again");
        for index in 1..METRIC_FAMILIES_MAX {
            process.new_family(MetricKind::Counter, &format!("f{index}"), "").unwrap();
        }
        let error = process.new_family(MetricKind::Counter, "g", "").unwrap_err();
        assert_eq!(error.text(), "models have 1024 metric families (the limit)");
        let mut made = 0;
        let error = loop {
            match process.new_family(MetricKind::Counter, "f1", "") {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(made + METRIC_FAMILIES_MAX + METRIC_SERIES_MAX + 1, METRIC_OBJECTS_MAX);
        assert!(error.text().contains("has 65536 metrics (the limit)"), "{error}");
        drop(process);
        assert!(server.for_process().new_family(MetricKind::Counter, "g", "").is_ok());
    }

    #[test]
    fn a_shard_that_finds_the_lock_taken_is_told_to_try_again() {
        let server = server();
        let held = server.lock();
        assert!(server.try_view().is_none());
        drop(held);
        assert!(server.try_view().is_some());
    }
}
