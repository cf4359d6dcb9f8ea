//! Where a model's instances run: inline in the shards if a run of one row takes less than the hop to a worker and back,
//! otherwise on workers. Measured before the model serves, with rows of zeros.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::backend::{Batch, Instance, LoadedModel, Request, Threads};
use crate::control::internal_sink::InternalSink;
use crate::error::Error;
use crate::limits::{INLINE_LONGEST_MAX, INLINE_RUN_MAX};
use crate::model::{Batching, InstanceGroup, ModelSpec, QueueRules, TensorSpec};
use crate::runtime::clock;
use crate::settings::Settings;
use crate::tensor::{AlignedBuffer, Shape, Tensor, byte_size, element_count};

/// Measured runs. The shortest counts: every disturbance makes a run longer.
const RUNS: usize = 5;
/// The size of a variable dimension in the large trial request: a long sequence. The small one uses 1.
const VARIABLE_SIZE: i64 = 512;
/// Bytes of one input above which a model is not measured and runs on workers: a run on more takes longer than a hop.
const TRIAL_SIZE_MAX: usize = 1024 * 1024;

/// The configuration parameter that sets where a model runs. The served configuration shows it with the choice made.
pub const PARAMETER: &str = "placement";

/// Where the instances of a model will run, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct PlacementChoice {
    /// Where they run.
    pub site: InstanceSite,
    /// The reason, for the log.
    pub why: String,
    /// The shortest run of one row; none if it was not measured.
    pub run: Option<Duration>,
}

/// Where the instances of a model run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceSite {
    /// Nowhere: an ensemble has no instances.
    Ensemble,
    /// Inside each shard.
    Inline,
    /// On worker threads.
    Worker,
}

impl InstanceSite {
    /// The value of the parameter [`PARAMETER`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ensemble => "ensemble",
            Self::Inline => "inline",
            Self::Worker => "worker",
        }
    }
}

/// Why the instances of a model need threads of their own; none if they may run inline.
pub fn bound_by(spec: &ModelSpec, settings: &Settings) -> Option<&'static str> {
    let groups = &spec.instance_groups;
    if groups.iter().any(|group| group.is_passive) {
        return Some("one of its instance groups is passive");
    }
    if spec.is_on_gpu() {
        return Some("its instances are on a GPU");
    }
    if groups.iter().any(|group| settings.host_policies.contains_key(&group.host_policy)) {
        return Some("a host policy says where it runs");
    }
    let takes = |group: &InstanceGroup| group.rate.resources.iter().any(|resource| resource.count > 0);
    (settings.is_rate_limited && groups.iter().any(takes)).then_some("its instances take resources")
}

/// Chooses where the instances run. `parameters { key: "placement" value: { string_value: "inline" | "worker" } }` in
/// the configuration decides if it is there; otherwise the model is measured.
///
/// # Errors
/// `InvalidArgument` for another value of the parameter, or for `inline` when the model needs threads of its own.
pub fn choose(
    spec: &ModelSpec,
    loaded: &dyn LoadedModel,
    threads: &Threads,
    bound_by: Option<&str>,
) -> Result<PlacementChoice, Error> {
    let worker = |why: &str| PlacementChoice { site: InstanceSite::Worker, why: why.to_owned(), run: None };
    let bound_by = bound_by.or_else(|| (!loaded.may_run_inline()).then(|| loaded.why_not_inline()));
    match (spec.parameters.get(PARAMETER).map(String::as_str), bound_by) {
        (Some("worker"), _) => return Ok(worker("configured")),
        (Some("inline"), Some(why)) => {
            return Err(Error::invalid(format!(
                "model '{}' cannot be placed inline: {why}; remove the parameter '{PARAMETER}'",
                spec.name
            )));
        }
        (Some("inline"), None) => {
            return Ok(PlacementChoice { site: InstanceSite::Inline, why: "configured".to_owned(), run: None });
        }
        (Some(other), _) => {
            return Err(Error::invalid(format!(
                "parameter '{PARAMETER}' of model '{}' is '{other}', expected 'inline' or 'worker'",
                spec.name
            )));
        }
        (None, Some(why)) => return Ok(worker(why)),
        (None, None) => {}
    }
    if spec.batching.as_ref().is_some_and(|batching| has_queue(batching, spec.rows_max)) {
        return Ok(worker("its configuration asks for a queue"));
    }
    choose_measured(spec, &mut loaded.new_instance(threads)?)
}

fn choose_measured(spec: &ModelSpec, instance: &mut Box<dyn Instance>) -> Result<PlacementChoice, Error> {
    let worker = |why: &str, run| Ok(PlacementChoice { site: InstanceSite::Worker, why: why.to_owned(), run });
    let Some(run) = measure(spec, instance, TrialRun { rows: 1, variable_size: 1 }) else {
        return worker("one row of zeros could not be measured", None);
    };
    let why = format!("one row takes {run:?}");
    if run > INLINE_RUN_MAX {
        return worker(&why, Some(run));
    }
    // The largest request must not hold up the shard's connections either.
    let largest = TrialRun { rows: i64::from(spec.rows_max.max(1)), variable_size: VARIABLE_SIZE };
    match measure(spec, instance, largest) {
        Some(longest) if longest <= INLINE_LONGEST_MAX => {
            Ok(PlacementChoice { site: InstanceSite::Inline, why, run: Some(run) })
        }
        Some(longest) => worker(&format!("a large request takes {longest:?}"), Some(run)),
        None => worker("how long a large request takes is not known", Some(run)),
    }
}

/// The size of a trial request: rows, and elements of each variable dimension.
#[derive(Clone, Copy)]
struct TrialRun {
    rows: i64,
    variable_size: i64,
}

/// Whether the configuration asks for something that only a queue does: delay, preferred sizes, priority levels, queue
/// rules, order, a latency target. An inline model has no queue.
fn has_queue(batching: &Batching, rows_max: u32) -> bool {
    let sizes_differ = batching.rows_preferred.iter().any(|rows| *rows != rows_max);
    let has_rules = batching.queue_default != QueueRules::default() || !batching.queue_by_level.is_empty();
    sizes_differ
        || !batching.queue_delay_max.is_zero()
        || batching.priority_levels > 0
        || has_rules
        || batching.preserves_order
        || batching.latency_target.is_some()
}

/// The shortest of [`RUNS`] runs with zeros; `None` if the request is too large or the model fails it.
fn measure(spec: &ModelSpec, instance: &mut Box<dyn Instance>, trial: TrialRun) -> Option<Duration> {
    let inputs: Vec<Tensor> = spec.inputs.iter().map(|input| zeros(spec, input, trial)).collect::<Option<_>>()?;
    let rows = u32::try_from(trial.rows).ok()?;
    let mut shortest = None;
    for _ in 0..RUNS {
        let sink = Arc::new(InternalSink::default());
        let began = clock::now();
        let responder = sink.responder(0, rows);
        let requests = vec![Request { inputs: inputs.clone(), rows, responder, sequence: None, details: None }];
        let batch = Batch { requests, rows, clock: clock::now, ended: Vec::new() };
        let run = std::panic::AssertUnwindSafe(|| instance.run(batch));
        std::panic::catch_unwind(run).ok()?;
        sink.pop()?.outputs.ok()?;
        let took = clock::now().since(began);
        shortest = Some(shortest.map_or(took, |shortest: Duration| shortest.min(took)));
    }
    shortest
}

fn zeros(spec: &ModelSpec, input: &TensorSpec, trial: TrialRun) -> Option<Tensor> {
    let datatype = input.datatype;
    let (pattern, has_axis) = match input.is_shape_tensor {
        true => (&input.shape, false),
        false => (&input.model_shape, spec.has_batch_axis()),
    };
    let size = |size: &i64| if *size < 0 { trial.variable_size } else { *size };
    let mut shape: Shape = pattern.iter().map(size).collect();
    if let Some(first) = shape.first_mut().filter(|_| has_axis) {
        *first = trial.rows;
    }
    let size = match byte_size(datatype, &shape).ok()? {
        Some(size) => size,
        // Empty strings: each has a length of four bytes, zero.
        None => element_count(&shape).ok()?.checked_mul(4)?,
    };
    let contents: Bytes = (size <= TRIAL_SIZE_MAX).then(|| AlignedBuffer::zeroed(size).freeze())?;
    Some(Tensor { datatype, shape, contents })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::backend::threads;
    use crate::model::config::{CompletionRules, ConfigDraft};

    /// A model whose runs take so long: one row, and more.
    #[derive(Clone, Copy)]
    struct Slow {
        one: Duration,
        more: Duration,
    }

    impl LoadedModel for Slow {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(*self))
        }

        fn may_run_inline(&self) -> bool {
            true
        }
    }

    impl Instance for Slow {
        fn run(&mut self, batch: Batch) {
            let until = clock::now() + if batch.rows > 1 { self.more } else { self.one };
            while clock::now() < until {
                std::hint::spin_loop();
            }
            batch.requests.into_iter().for_each(|request| request.responder.send(Ok(Vec::new())));
        }
    }

    fn spec(more: &str) -> ModelSpec {
        let text = format!(
            "backend: 'identity' max_batch_size: 8 {more}\n\
             input {{ name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }} output {{ name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }}"
        );
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    fn chosen(spec: &ModelSpec, slow: Slow, bound_by: Option<&str>) -> Result<PlacementChoice, Error> {
        threads::enter(1, |threads| choose(spec, &slow, threads, bound_by))
    }

    const FAST: Slow = Slow { one: Duration::ZERO, more: Duration::ZERO };

    #[test]
    fn a_model_runs_inline_where_one_row_and_a_large_request_are_within_their_budgets() {
        let check = |slow: Slow, site, why: &str| {
            let choice = chosen(&spec(""), slow, None).unwrap();
            assert!(choice.site == site && choice.why.starts_with(why), "{choice:?}");
            assert!(choice.run.unwrap() >= slow.one);
        };
        check(FAST, InstanceSite::Inline, "one row takes ");
        check(Slow { one: INLINE_RUN_MAX * 2, ..FAST }, InstanceSite::Worker, "one row takes ");
        check(Slow { more: INLINE_LONGEST_MAX * 2, ..FAST }, InstanceSite::Worker, "a large request takes ");
        check(Slow { more: INLINE_LONGEST_MAX / 8, ..FAST }, InstanceSite::Inline, "one row takes ");
    }

    #[test]
    fn a_configuration_decides_unless_something_binds_the_model_to_threads() {
        let placed =
            |site: &str| spec(&format!("parameters {{ key: 'placement' value {{ string_value: '{site}' }} }}"));
        let far = Slow { one: INLINE_RUN_MAX * 2, more: INLINE_LONGEST_MAX * 2 };
        assert_eq!(chosen(&placed("inline"), far, None).unwrap().site, InstanceSite::Inline);
        assert_eq!(chosen(&placed("worker"), FAST, None).unwrap().site, InstanceSite::Worker);
        assert_eq!(chosen(&spec(""), FAST, Some("so")).unwrap().why, "so");
        let error = chosen(&placed("inline"), FAST, Some("a reason")).unwrap_err();
        assert_eq!(error.text(), "model 'm' cannot be placed inline: a reason; remove the parameter 'placement'");
    }

    #[test]
    fn what_binds_a_model_to_threads_is_in_its_groups_and_in_the_flags() {
        let limited = Settings { is_rate_limited: true, ..Settings::default() };
        let policies = BTreeMap::from([("far".to_owned(), vec![0]), ("model".to_owned(), vec![0])]);
        let hosted = Settings { host_policies: policies, ..Settings::default() };
        let check = |groups: &str, settings: &Settings, want: Option<&str>| {
            assert_eq!(bound_by(&spec(&format!("instance_group [ {groups} ]")), settings), want, "{groups}");
        };
        let plain = Settings::default();
        check("{ count: 2 }", &limited, None);
        check("{ }, { passive: true }", &plain, Some("one of its instance groups is passive"));
        let resource = "{ rate_limiter { resources { name: 'r' count: 1 } } }";
        check(resource, &plain, None);
        check(resource, &limited, Some("its instances take resources"));
        check("{ rate_limiter { priority: 2 } }", &limited, None);
        check("{ host_policy: 'far' }", &plain, None);
        check("{ host_policy: 'far' }", &hosted, Some("a host policy says where it runs"));
        check("{ kind: KIND_MODEL }", &hosted, Some("a host policy says where it runs"));
        check("{ }", &hosted, None);
    }
}
