//! The place of a model's instances: inline in the shards if a run of one row takes less than the
//! hop to a worker and back, otherwise on workers. Measured before the model serves, with rows of
//! zeros. The same runs tell a model that can never run from one that does not accept zeros, and
//! find outputs whose shape the model's file declares wrongly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::backend::batch::fits;
use crate::backend::blame;
use crate::backend::text::ShapeText;
use crate::backend::{Batch, Computation, Instance, LoadedModel, Request, Threads};
use crate::control::engines::internal_sink::InternalSink;
use crate::control::loading::batch_axis;
use crate::error::{Code, Error};
use crate::limits::{BATCH_ROWS_RESERVED_MAX, INLINE_LONGEST_MAX};
use crate::model::config::ConfigDraft;
use crate::model::platform::{ONNX_BACKEND, OPENVINO_BACKEND};
use crate::model::{Batching, InstanceGroup, ModelSpec, QueueRules, TensorSpec};
use crate::runtime::clock;
use crate::settings::Settings;
use crate::tensor::{AlignedBuffer, Datatype, Shape, Tensor, byte_size, element_count};

/// Run time of one row up to which a model runs inside the shard: about the cost of a hop to a worker and back, which
/// is two thread wake-ups.
const INLINE_RUN_MAX: Duration = Duration::from_micros(50);
/// Run time of a typical batch from which a model's workers share the cores of the shards. A server that spends most of its
/// time in such runs leaves the shards idle, and a shard waits for a core that computes far less long than one run.
const HEAVY_RUN_MIN: Duration = Duration::from_micros(500);

/// Measured runs. The shortest counts: every disturbance makes a run longer.
const RUNS: usize = 5;
/// The time of runs after which no further one is needed: no disturbance hides a run that could be
/// inline for this long.
const RUNS_TIME_MAX: Duration = Duration::from_millis(20);
/// The size of a variable dimension in the large trial request: a long sequence. The small one uses 1.
const VARIABLE_SIZE: i64 = 512;
/// The size of a variable dimension in a typical request: a text of some sentences, a small image. A token alone takes a
/// transformer a tenth of the time, and less than that of others.
const TYPICAL_SIZE: i64 = 128;
/// The rows of a typical batch of a model that batches.
const TYPICAL_ROWS: u32 = 8;
/// Bytes of one input above which a model is not tried: a long sequence of a large model. Images have some megabytes.
const TRIAL_SIZE_MAX: usize = 16 * 1024 * 1024;

/// The configuration parameter that sets the place of a model. The served configuration shows it
/// with the choice made.
pub const PARAMETER: &str = "placement";

/// The place of a model's instances, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub struct PlacementChoice {
    /// The place.
    pub site: InstanceSite,
    /// The reason, for the log; empty without one.
    pub why: String,
    /// The shortest run of one row; `None` if it was not measured.
    pub run: Option<Duration>,
    /// The findings of the runs, for the log.
    pub warnings: Vec<String>,
    /// True if an output lacks the rows of its batch, so that requests must not be batched.
    pub runs_apart: bool,
    /// Why the first axis, from which `max_batch_size` was derived, is not a batch axis; `None` if it is, or nothing was
    /// derived.
    pub no_batch_axis: Option<String>,
    /// The reason why the first axis is not the batch axis that its configuration says; a warning tells it.
    pub mixes_rows: Option<String>,
    /// Which cores its workers need.
    pub load: WorkerLoad,
}

impl PlacementChoice {
    /// Creates a choice that needed no run.
    pub fn new(site: InstanceSite, why: impl Into<String>) -> Self {
        Self {
            site,
            why: why.into(),
            run: None,
            warnings: Vec::new(),
            runs_apart: false,
            no_batch_axis: None,
            mixes_rows: None,
            load: WorkerLoad::Light,
        }
    }

    fn worker(why: impl Into<String>) -> Self {
        Self::new(InstanceSite::Worker, why)
    }

    /// The choice for the model of a draft: the batch axis of a folder of the hub was stated by this server, and not by a person.
    pub fn of_draft(self, draft: &ConfigDraft) -> Self {
        if !draft.is_of_hub() || self.mixes_rows.is_none() {
            return self;
        }
        Self { no_batch_axis: self.mixes_rows, mixes_rows: None, ..self }
    }

    /// Notes why the first axis is not a batch axis: a stated one stays, with a warning.
    pub fn note_batch_axis(&mut self, spec: &ModelSpec, why: Option<String>) {
        match why {
            Some(why) if spec.is_batch_axis_derived => self.no_batch_axis = Some(why),
            Some(why) => {
                self.warnings.push(format!(
                    "the rows of '{}' depend on each other, and requests share batches as its configuration says: {why}; \
                     max_batch_size: 0 runs each request alone",
                    spec.name
                ));
                self.mixes_rows = Some(why);
            }
            None => {}
        }
    }
}

/// Which cores the workers of a model need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerLoad {
    /// Their runs are so long, or may be, that they divide all cores among themselves, those of the shards too.
    Heavy,
    /// Cores without a shard: their runs are about as short as the work of a shard for a request.
    Light,
    /// None of their own: they wait for a process, or for threads that are not theirs.
    Waiting,
}

/// The place of the instances of a model.
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
    /// Returns the value of the parameter [`PARAMETER`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ensemble => "ensemble",
            Self::Inline => "inline",
            Self::Worker => "worker",
        }
    }
}

/// Returns the reason that the instances of a model need threads of their own; `None` if they may
/// run inline.
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
    (settings.rate_limit.is_on && groups.iter().any(takes)).then_some("its instances take resources")
}

/// Chooses the place of the instances, and tries an ONNX model on the CPU in any case.
/// `depends_on_values`: true if a run on zeros may fail although others do not. `parameters { key:
/// "placement" value: { string_value: "inline" | "worker" } }` in the configuration decides if it
/// is there; otherwise the model is measured.
///
/// # Errors
/// `InvalidArgument` for another value of the parameter, or for `inline` when the model needs threads of its own; the
/// engine's, when the model fails and so would on any input.
pub fn choose(
    spec: &ModelSpec,
    loaded: &dyn LoadedModel,
    threads: &Threads,
    bound_by: Option<&str>,
    depends_on_values: bool,
) -> Result<PlacementChoice, Error> {
    let decided = decide(spec, loaded, bound_by)?;
    let is_tried = is_tried(spec);
    let axis = batch_axis::needed(spec).filter(|_| is_tried);
    let decided = match decided {
        Some(choice) if !is_tried => return Ok(PlacementChoice { load: unmeasured(spec, loaded), ..choice }),
        decided => decided.map(|choice| PlacementChoice { load: unmeasured(spec, loaded), ..choice }),
    };
    let instance = loaded.new_instance(threads)?;
    let mut trial = Trial { spec, instance, findings: BTreeMap::new(), runs_apart: false, shortest: None };
    let mut choice = trial.choose(decided, depends_on_values)?;
    let why = axis.and_then(|kind| batch_axis::check(spec, &mut *trial.instance, kind, trial.shortest));
    let why = why.filter(|_| spec.is_batch_axis_derived || !trial.runs_apart);
    choice.warnings = trial.findings.into_values().collect();
    choice.runs_apart = trial.runs_apart;
    choice.note_batch_axis(spec, why);
    Ok(choice)
}

/// Returns true if a model runs here in any case: one of an engine on the CPU, but not of TensorFlow's, which may keep
/// its inputs.
pub fn is_tried(spec: &ModelSpec) -> bool {
    let is_engine = [ONNX_BACKEND, OPENVINO_BACKEND].contains(&spec.backend.as_str());
    is_engine && spec.library.is_none() && spec.is_on_cpu() && spec.sequence.is_none()
}

/// Which cores the workers of a model need whose runs are not measured. On GPUs they do not compute.
fn unmeasured(spec: &ModelSpec, loaded: &dyn LoadedModel) -> WorkerLoad {
    match loaded.computation() {
        Computation::Elsewhere => WorkerLoad::Waiting,
        Computation::OfAnyLength if !spec.is_on_gpu() => WorkerLoad::Heavy,
        Computation::OfAnyLength | Computation::Short => WorkerLoad::Light,
    }
}

/// Returns the choice that needs no measurement, if there is one.
fn decide(
    spec: &ModelSpec,
    loaded: &dyn LoadedModel,
    bound_by: Option<&str>,
) -> Result<Option<PlacementChoice>, Error> {
    let worker = |why: &str| Ok(Some(PlacementChoice::worker(why)));
    let bound_by = bound_by.or_else(|| (!loaded.may_run_inline()).then(|| loaded.why_not_inline()));
    match (spec.parameters.get(PARAMETER).map(String::as_str), bound_by) {
        (Some("worker"), _) => worker("configured"),
        (Some("inline"), Some(why)) => Err(Error::invalid(format!(
            "model '{}' cannot be placed inline: {why}; remove the parameter '{PARAMETER}'",
            spec.name
        ))),
        (Some("inline"), None) => Ok(Some(PlacementChoice::new(InstanceSite::Inline, "configured"))),
        (Some(other), _) => Err(Error::invalid(format!(
            "parameter '{PARAMETER}' of model '{}' is '{other}', expected 'inline' or 'worker'",
            spec.name
        ))),
        (None, Some(why)) => worker(why),
        (None, None) if spec.batching.as_ref().is_some_and(|batching| has_queue(batching, spec.rows_max)) => {
            worker("its configuration asks for a queue")
        }
        (None, None) => Ok(None),
    }
}

/// Runs of an instance that no client waits for.
struct Trial<'a> {
    spec: &'a ModelSpec,
    instance: Box<dyn Instance>,
    /// The warnings, by the index of the output.
    findings: BTreeMap<usize, String>,
    runs_apart: bool,
    /// The shortest run of one row of zeros; `None` if it failed.
    shortest: Option<Duration>,
}

/// The reason that a trial gave no time.
enum TrialFailure {
    /// An input is too large to try.
    Size,
    /// The run failed.
    Run(Error),
}

impl Trial<'_> {
    fn choose(&mut self, decided: Option<PlacementChoice>, depends_on_values: bool) -> Result<PlacementChoice, Error> {
        // A run that cannot be tried may take any time.
        let untried = |decided: Option<PlacementChoice>, why: &str| {
            let choice = decided.unwrap_or_else(|| PlacementChoice::worker(why));
            PlacementChoice { load: WorkerLoad::Heavy, ..choice }
        };
        let run = match self.measure(TrialRun { rows: 1, variable_size: 1, runs: RUNS }) {
            Ok(run) => run,
            Err(TrialFailure::Run(error)) if !depends_on_values && has_one_shape(self.spec) && is_engines(&error) => {
                return Err(error.with_prefix("it can never run, since a row of zeros fails: "));
            }
            Err(TrialFailure::Run(_)) => return Ok(untried(decided, "")),
            Err(TrialFailure::Size) => return Ok(untried(decided, "its inputs are large")),
        };
        self.shortest = Some(run);
        let choice = match decided {
            Some(choice) => choice,
            None => self.choose_measured(run),
        };
        let spec = self.spec;
        let is_batched = choice.site == InstanceSite::Worker && spec.rows_max > 1 && spec.batching.is_some();
        if is_batched && has_derived(spec) && !spec.is_batch_axis_derived {
            // Checks that a batch can be split, which the check of a derived batch axis shows, too. A failure is
            // ignored.
            let _ = self.measure(TrialRun { rows: 2, variable_size: 1, runs: 1 });
        }
        let load = if choice.site == InstanceSite::Worker { self.load(run) } else { WorkerLoad::Light };
        Ok(PlacementChoice { load, ..choice })
    }

    /// Which cores the workers need, by the time of a typical batch. One row of size 1 takes `run`. A batch that cannot be
    /// tried may take any time.
    fn load(&mut self, run: Duration) -> WorkerLoad {
        let heavy = |outcome: Result<Duration, TrialFailure>| outcome.map_or(true, |run| run >= HEAVY_RUN_MIN);
        let rows = if self.spec.batching.is_some() { i64::from(self.spec.rows_max.clamp(1, TYPICAL_ROWS)) } else { 1 };
        let row = TrialRun { rows: 1, variable_size: TYPICAL_SIZE, runs: RUNS };
        let is_heavy = run >= HEAVY_RUN_MIN
            || (has_variable_size(self.spec) && heavy(self.measure(row)))
            || (rows > 1 && heavy(self.measure(TrialRun { rows, ..row })));
        if is_heavy { WorkerLoad::Heavy } else { WorkerLoad::Light }
    }

    fn choose_measured(&mut self, run: Duration) -> PlacementChoice {
        let why = format!("one row takes {run:?}");
        let chosen = |site, why| PlacementChoice { run: Some(run), ..PlacementChoice::new(site, why) };
        if run > INLINE_RUN_MAX {
            return chosen(InstanceSite::Worker, why);
        }
        // The largest request must not hold up the shard's connections either.
        let rows = i64::from(self.spec.rows_max.max(1));
        if rows > i64::from(BATCH_ROWS_RESERVED_MAX) {
            return chosen(InstanceSite::Worker, format!("a request may have {rows} rows"));
        }
        match self.measure(TrialRun { rows, variable_size: VARIABLE_SIZE, runs: RUNS }) {
            Ok(longest) if longest <= INLINE_LONGEST_MAX => chosen(InstanceSite::Inline, why),
            Ok(longest) => chosen(InstanceSite::Worker, format!("a large request takes {longest:?}")),
            Err(_) => chosen(InstanceSite::Worker, "how long a large request takes is not known".to_owned()),
        }
    }

    /// Returns the shortest of several runs with zeros.
    fn measure(&mut self, trial: TrialRun) -> Result<Duration, TrialFailure> {
        let zeros = self.spec.inputs.iter().map(|input| zeros(self.spec, input, trial));
        let inputs: Vec<Tensor> = zeros.collect::<Option<_>>().ok_or(TrialFailure::Size)?;
        let rows = u32::try_from(trial.rows).map_err(|_| TrialFailure::Size)?;
        let (mut shortest, mut all) = (Duration::MAX, Duration::ZERO);
        for _ in 0..trial.runs {
            let sink = Arc::new(InternalSink::default());
            let began = clock::now();
            let responder = sink.responder(0, rows);
            let requests = vec![Request { inputs: inputs.clone(), rows, responder, sequence: None, details: None }];
            let batch = Batch { requests, rows, clock: clock::now, ended: Vec::new() };
            let run = std::panic::AssertUnwindSafe(|| self.instance.run(batch));
            // A panic is logged, and its responder has answered.
            let _ = std::panic::catch_unwind(run);
            let outputs = sink.pop().map_or_else(|| Err(Error::internal("it gave no answer")), |answer| answer.outputs);
            let outputs = outputs.map_err(TrialFailure::Run)?;
            let run = clock::now().since(began);
            (shortest, all) = (shortest.min(run), all + run);
            self.check_shapes(&outputs, trial.rows);
            if all >= RUNS_TIME_MAX {
                break;
            }
        }
        Ok(shortest)
    }

    /// Notes the outputs whose shape is not as the model's file declares.
    fn check_shapes(&mut self, outputs: &[Tensor], rows: i64) {
        let ModelSpec { name, .. } = self.spec;
        for (index, (output, tensor)) in self.spec.outputs.iter().zip(outputs).enumerate() {
            let lacks_rows = self.spec.has_batch_axis() && tensor.shape.first() != Some(&rows);
            if !output.is_derived || (!lacks_rows && fits(&output.model_shape, &tensor.shape)) {
                continue;
            }
            // The first finding counts, but missing rows take precedence over another size.
            if self.findings.contains_key(&index) && (!lacks_rows || self.runs_apart) {
                continue;
            }
            let apart = if lacks_rows { "; its requests are not batched" } else { "" };
            let (declared, came) = (ShapeText(&output.model_shape), ShapeText(&tensor.shape));
            let rows = if rows == 1 { "a row".to_owned() } else { format!("{rows} rows") };
            let text = format!(
                "the file of model '{name}' declares output '{}' as {declared}, but it is {came} for {rows} of zeros; \
                 clients get the shape that it has{apart}",
                output.name
            );
            self.findings.insert(index, text);
            self.runs_apart |= lacks_rows;
        }
    }
}

/// Returns true if any output has the shape that the model's file declares.
fn has_derived(spec: &ModelSpec) -> bool {
    spec.outputs.iter().any(|output| output.is_derived)
}

/// Returns true if the size of a row depends on the request.
fn has_variable_size(spec: &ModelSpec) -> bool {
    let is_variable = |input: &TensorSpec| input.dims.iter().any(|size| *size < 0);
    spec.inputs.iter().any(is_variable)
}

/// Returns true if all inputs are floats of one size but for the rows. The values of others may be sizes and indices,
/// for which zeros may be invalid.
fn has_one_shape(spec: &ModelSpec) -> bool {
    let is_fixed = |input: &TensorSpec| {
        let is_float = matches!(input.datatype, Datatype::Bf16 | Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64);
        is_float && !input.is_shape_tensor && !input.is_ragged && input.dims.iter().all(|size| *size >= 0)
    };
    spec.batch_inputs.is_empty() && spec.sequence.is_none() && spec.inputs.iter().all(is_fixed)
}

/// Returns true if an error is the engine's own. One that blames a request of zeros would blame any.
fn is_engines(error: &Error) -> bool {
    match error.code() {
        Code::Internal | Code::Unsupported => true,
        _ => blame::blames_request(error.text()),
    }
}

/// A trial request: its rows, the elements of each variable dimension, and the number of its runs.
#[derive(Clone, Copy)]
struct TrialRun {
    rows: i64,
    variable_size: i64,
    runs: usize,
}

/// Returns true if the configuration asks for a function of the queue: delay, preferred sizes,
/// priority levels, queue rules, order, a latency target. An inline model has no queue.
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
    use crate::settings::RateSettings;

    /// A model with these run times: of one row, and of more.
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

    /// A model whose runs take a time for each element of a row, or fail from a number of elements on.
    #[derive(Clone, Copy)]
    struct Sized {
        element: Duration,
        elements_max: i64,
        computation: Computation,
    }

    impl LoadedModel for Sized {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(*self))
        }

        fn may_run_inline(&self) -> bool {
            false
        }

        fn computation(&self) -> Computation {
            self.computation
        }
    }

    impl Instance for Sized {
        fn run(&mut self, batch: Batch) {
            for request in batch.requests {
                let elements: i64 = request.inputs[0].shape.iter().product();
                let until = clock::now() + self.element * u32::try_from(elements).unwrap();
                while clock::now() < until {
                    std::hint::spin_loop();
                }
                let is_refused = elements > self.elements_max;
                request.responder.send(if is_refused { Err(Error::internal("too many")) } else { Ok(Vec::new()) });
            }
        }
    }

    const OF_ANY_SIZE: Sized =
        Sized { element: Duration::ZERO, elements_max: i64::MAX, computation: Computation::OfAnyLength };

    #[test]
    fn a_model_is_heavy_by_a_typical_request_and_not_by_one_of_size_1() {
        let load = |input: &str, more: &str, model: Sized| {
            let choice = threads::enter(1, |threads| choose(&onnx_spec(input, more), &model, threads, None, true));
            choice.unwrap().load
        };
        let (open, fixed) = ("data_type: TYPE_FP32 dims: [ -1 ]", "data_type: TYPE_FP32 dims: [ 2 ]");
        // One element is far below the threshold, and a typical row above it.
        let element = HEAVY_RUN_MIN / 100;
        assert_eq!(load(open, "", Sized { element, ..OF_ANY_SIZE }), WorkerLoad::Heavy);
        // A row of two is below the threshold, and eight such rows above it: a model that batches runs them at once.
        let element = HEAVY_RUN_MIN / 10;
        assert_eq!(load(fixed, "dynamic_batching { }", Sized { element, ..OF_ANY_SIZE }), WorkerLoad::Heavy);
        // A run that cannot be tried may take any time.
        assert_eq!(load(open, "", Sized { elements_max: 1, ..OF_ANY_SIZE }), WorkerLoad::Heavy);
        assert_eq!(load(open, "", Sized { elements_max: 0, ..OF_ANY_SIZE }), WorkerLoad::Heavy);
        let large = "data_type: TYPE_FP32 dims: [ 9999999 ]";
        assert_eq!(load(large, "", OF_ANY_SIZE), WorkerLoad::Heavy);
        let short = Sized { computation: Computation::Short, ..OF_ANY_SIZE };
        assert_eq!(load(large, "", short), WorkerLoad::Heavy);
        assert_eq!(load(open, "", Sized { elements_max: 0, ..short }), WorkerLoad::Heavy);
    }

    #[test]
    fn a_model_whose_runs_are_not_measured_is_heavy_unless_it_only_waits_or_is_known_to_be_short() {
        let load = |groups: &str, computation| {
            let spec = spec(groups);
            unmeasured(&spec, &Sized { computation, ..OF_ANY_SIZE })
        };
        assert_eq!(load("", Computation::Elsewhere), WorkerLoad::Waiting);
        assert_eq!(load("", Computation::OfAnyLength), WorkerLoad::Heavy);
        assert_eq!(load("", Computation::Short), WorkerLoad::Light);
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
        threads::enter(1, |threads| choose(spec, &slow, threads, bound_by, true))
    }

    const FAST: Slow = Slow { one: Duration::ZERO, more: Duration::ZERO };

    #[test]
    fn a_model_runs_inline_where_one_row_and_a_large_request_are_within_their_budgets() {
        let check = |slow: Slow, site, why: &str| {
            let choice = chosen(&spec(""), slow, None).unwrap();
            assert!(choice.site == site && choice.why.starts_with(why), "{choice:?}");
            assert!(choice.run.unwrap() >= slow.one);
            let is_heavy = site == InstanceSite::Worker && choice.run.unwrap() >= HEAVY_RUN_MIN;
            assert!(choice.load == if is_heavy { WorkerLoad::Heavy } else { WorkerLoad::Light }, "{choice:?}");
        };
        check(Slow { one: HEAVY_RUN_MIN, ..FAST }, InstanceSite::Worker, "one row takes ");
        check(FAST, InstanceSite::Inline, "one row takes ");
        check(Slow { one: INLINE_RUN_MAX * 2, ..FAST }, InstanceSite::Worker, "one row takes ");
        check(Slow { more: INLINE_LONGEST_MAX * 2, ..FAST }, InstanceSite::Worker, "a large request takes ");
        check(Slow { more: INLINE_LONGEST_MAX / 8, ..FAST }, InstanceSite::Inline, "one row takes ");
        // A trial of that many rows could take more memory than the host has.
        let long = ModelSpec { rows_max: 1_048_576, ..spec("") };
        let choice = chosen(&long, FAST, None).unwrap();
        assert!(choice.site == InstanceSite::Worker && choice.why == "a request may have 1048576 rows", "{choice:?}");
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
        let limited =
            Settings { rate_limit: RateSettings { is_on: true, resources: Vec::new() }, ..Settings::default() };
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

    /// A model that gives this answer to every run.
    #[derive(Clone)]
    struct Answering(Result<Vec<Tensor>, Error>);

    impl LoadedModel for Answering {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Ok(Box::new(self.clone()))
        }

        fn may_run_inline(&self) -> bool {
            true
        }
    }

    impl Instance for Answering {
        fn run(&mut self, batch: Batch) {
            batch.requests.into_iter().for_each(|request| request.responder.send(self.0.clone()));
        }
    }

    fn onnx_spec(input: &str, more: &str) -> ModelSpec {
        let text = format!(
            "backend: 'onnxruntime' max_batch_size: 8 {more}\n\
             input {{ name: 'x' {input} }} output {{ name: 'y' data_type: TYPE_FP32 dims: [ 2 ] }}"
        );
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    fn tried(spec: &ModelSpec, model: &Answering, depends: bool) -> Result<PlacementChoice, Error> {
        threads::enter(1, |threads| choose(spec, model, threads, None, depends))
    }

    #[test]
    fn a_model_that_fails_on_any_input_is_refused_and_one_that_takes_no_zeros_is_not() {
        let failing = |code| Answering(Err(Error::new(code, "operator 'Conv' failed")));
        let refused = "it can never run, since a row of zeros fails: operator 'Conv' failed";
        let check = |input: &str, more: &str, code, depends, want: Result<&str, &str>| {
            let got = tried(&onnx_spec(input, more), &failing(code), depends);
            let got = got.as_ref().map(|choice| choice.why.as_str()).map_err(Error::text);
            assert_eq!(got, want, "{input} {more} {code:?} {depends}");
        };
        let fixed = "data_type: TYPE_FP32 dims: [ 2 ]";
        check(fixed, "", Code::Internal, false, Err(refused));
        check(fixed, "", Code::Unsupported, false, Err(refused));
        check(fixed, "dynamic_batching { max_queue_delay_microseconds: 9 }", Code::Internal, false, Err(refused));
        let queued = Ok("its configuration asks for a queue");
        check(fixed, "dynamic_batching { max_queue_delay_microseconds: 9 }", Code::Internal, true, queued);
        check(fixed, "", Code::Internal, true, Ok(""));
        check(fixed, "", Code::InvalidArgument, false, Ok(""));
        check("data_type: TYPE_FP32 dims: [ -1 ]", "", Code::Internal, false, Ok(""));
        check("data_type: TYPE_INT64 dims: [ 2 ]", "", Code::Internal, false, Ok(""));
        check("data_type: TYPE_FP32 dims: [ 9999999 ]", "", Code::Internal, false, Ok("its inputs are large"));
    }

    #[test]
    fn shapes_that_a_file_declares_wrongly_are_found_and_batches_without_rows_not_made() {
        let zeros = |shape: &[i64]| {
            let contents = AlignedBuffer::zeroed(4 * shape.iter().product::<i64>() as usize).freeze();
            Answering(Ok(vec![Tensor { datatype: Datatype::Fp32, shape: Shape::from_slice(shape), contents }]))
        };
        let mut spec =
            onnx_spec("data_type: TYPE_FP32 dims: [ 2 ]", "dynamic_batching { max_queue_delay_microseconds: 9 }");
        let check = |spec: &ModelSpec, shape: &[i64], want: Option<&str>, runs_apart: bool| {
            let choice = tried(spec, &zeros(shape), false).unwrap();
            assert_eq!(choice.runs_apart, runs_apart, "{shape:?}");
            match want {
                None => assert!(choice.warnings.is_empty(), "{choice:?}"),
                Some(want) => assert!(choice.warnings.len() == 1 && choice.warnings[0].contains(want), "{choice:?}"),
            }
        };
        check(&spec, &[7, 5], None, false);
        spec.outputs[0].is_derived = true;
        // It is the same for two rows.
        let apart = "declares output 'y' as [-1,2], but it is [1,2] for 2 rows of zeros; clients get the shape that it \
                     has; its requests are not batched";
        check(&spec, &[1, 2], Some(apart), true);
        spec.batching = None;
        check(&spec, &[8, 5], Some("[8,5] for a row of zeros; clients get the shape that it has; its requests"), true);
        spec.rows_max = 0;
        check(&spec, &[1, 2], None, false);
        check(&spec, &[3, 2], None, false);
        check(
            &spec,
            &[2],
            Some("as [-1,2], but it is [2] for a row of zeros; clients get the shape that it has"),
            false,
        );
    }
}
