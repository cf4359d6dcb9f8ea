//! Checks that the first axis of a model is a batch axis: rows run alone and the same rows run together must give the
//! same answers. Called by `placement`, with the instance that it measures, before the model serves. A derived
//! `max_batch_size` stands only where the runs demonstrate it; a stated one always, with a warning.
//!
//! Bounded by `TRIES_MAX` runs that look for inputs which the model takes, by the number of sets, of which two are enough
//! for a model whose shortest run takes `SLOW_RUN_MIN`, and by the sizes of `batch_axis::rows`.

pub mod answers;
pub mod rows;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Batch, Instance, LoadedModel, Request, Threads, run_to_end};
use crate::control::engines::internal_sink::InternalSink;
use crate::control::loading::batch_axis::answers::{AnswerComparison, BatchAnswer, Noise, Tolerance, compare, differ};
use crate::control::loading::batch_axis::rows::{Fill, Row, RowShape, join};
use crate::error::Error;
use crate::log;
use crate::model::platform::{ENGINE_BACKENDS, PYTORCH_BACKEND, TENSORFLOW_BACKEND};
use crate::model::{InstanceGroup, ModelSpec};
use crate::runtime::clock;
use crate::tensor::Tensor;

/// The shortest run from which two sets of two rows must be enough, so that the load stays short.
const SLOW_RUN_MIN: Duration = Duration::from_millis(2);
/// Runs that look for a size of the open dimensions and for values which the model takes.
const TRIES_MAX: usize = 30;
/// Sizes of the open dimensions, in the order in which they are tried: a short text, then what fits anything, then
/// images and windows of a signal.
const OPEN_SIZES: [i64; 8] = [8, 1, 32, 224, 64, 16, 512, 3];
/// The largest value of integers, in the order in which they are tried: ids of words, places in a small table, flags, zero.
const INTEGERS_MAX: [u64; 4] = [100, 7, 1, 0];
/// Sets of rows that must have shown the same before an axis counts as demonstrated.
const AGREED_MIN: usize = 2;
/// One row's run time from which a stated batch axis is not checked: the check costs three of them.
const GLANCE_RUN_MAX: Duration = Duration::from_secs(1);

/// Bytes of the files of a model with a stated batch axis above which it is not loaded a second time to be checked.
const COPY_SIZE_MAX: u64 = 64 * 1024 * 1024;

/// The purpose of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisCheck {
    /// To demonstrate a derived batch axis.
    Derived,
    /// To warn if a stated batch axis, along which requests are batched, is not one.
    Stated,
}

/// The check that a model needs; `None` if its requests never share a run, or it is code of its own, which knows its rows.
pub fn needed(spec: &ModelSpec) -> Option<AxisCheck> {
    let is_graph = ENGINE_BACKENDS.contains(&spec.backend.as_str()) && spec.library.is_none() && spec.python.is_none();
    // The model sees all elements of a batch in one dimension, and what the server says of their requests.
    let is_ragged = !spec.batch_inputs.is_empty() || spec.inputs.iter().any(|input| input.is_ragged);
    if !is_graph || is_ragged || (spec.is_on_gpu() && spec.rows_max < 2) {
        return None;
    }
    let shares_runs = spec.rows_max > 1 && (spec.batching.is_some() || spec.sequence.is_some());
    let stated = shares_runs.then_some(AxisCheck::Stated);
    if spec.is_batch_axis_derived { Some(AxisCheck::Derived) } else { stated }
}

/// Checks a model that `placement` does not try. One that may keep what it was given is loaded a second time for that, by
/// `load`; with a stated batch axis only if its files are small.
///
/// # Errors
/// Those of the engine, when it makes the instance.
pub fn check_apart(
    spec: &Arc<ModelSpec>,
    kind: AxisCheck,
    model: &dyn LoadedModel,
    threads: &Threads,
    files_size: u64,
    load: impl FnOnce(&Arc<ModelSpec>) -> Result<Box<dyn LoadedModel>, Error>,
) -> Result<Option<String>, Error> {
    let keeps = [PYTORCH_BACKEND, TENSORFLOW_BACKEND].contains(&spec.backend.as_str());
    // Of a model that serves sequences the engine's own: states and controls are inputs like others.
    let checked = spec.sequence.as_ref().map_or(spec, |sequence| &sequence.engine);
    let gpu = spec.instance_groups.iter().flat_map(InstanceGroup::instances).find_map(|(_, gpu)| gpu);
    if !keeps && spec.sequence.is_none() {
        let mut instance = model.new_instance(&threads.on(gpu))?;
        return Ok(check(checked, &mut *instance, kind, None));
    }
    if kind == AxisCheck::Stated && files_size > COPY_SIZE_MAX {
        return Ok(None);
    }
    let copy = load(checked)?;
    let mut instance = copy.new_instance(&threads.on(gpu))?;
    Ok(check(checked, &mut *instance, kind, None))
}

/// Says that requests of a model are not batched, and why.
pub fn log_refuted(spec: &ModelSpec, why: &str) {
    log::info(&format!(
        "'{}' is not batched, since its first axis is not known to be a batch axis: {why}; max_batch_size above 0 in its \
         configuration says that it is",
        spec.name
    ));
}

/// Runs the check. Returns why the first axis is not a batch axis, or why that it is one cannot be demonstrated; `None`
/// if it is, and for a stated axis also if the runs say nothing. `run` is what one row took; without it the model counts as slow.
pub fn check(spec: &ModelSpec, instance: &mut dyn Instance, kind: AxisCheck, run: Option<Duration>) -> Option<String> {
    let mut rows = AxisRuns { spec, instance, tolerance: Tolerance::of(spec), tries: 0, fastest: run };
    match kind {
        AxisCheck::Derived => rows.demonstrate().err(),
        AxisCheck::Stated if run.is_some_and(|run| run > GLANCE_RUN_MAX) => None,
        AxisCheck::Stated => rows.glance(),
    }
}

/// The runs of one check.
struct AxisRuns<'a> {
    spec: &'a ModelSpec,
    instance: &'a mut dyn Instance,
    tolerance: Tolerance,
    tries: usize,
    /// The shortest run of a row so far, whatever else the machine does; `None` if the model counts as slow.
    fastest: Option<Duration>,
}

/// Result of one set of rows.
enum SetOutcome {
    /// Each row has the same answer alone and with others; and whether answers of different rows differ.
    Agrees(bool),
    /// An output has no part for each row.
    Apart(String),
    /// An answer depends on other rows.
    Differs(String),
    /// Nothing: the difference is small, and integers cannot be nudged to show that rounding makes as much.
    Rounded(String),
    /// Nothing, since the model does not take these rows, or answers the same row differently.
    Unclear(String),
}

/// The order of rows in the batches of one set.
type Orders = &'static [&'static [usize]];

impl AxisRuns<'_> {
    /// # Errors
    /// Why the axis is not demonstrated.
    fn demonstrate(&mut self) -> Result<(), String> {
        let shape = self.find_shape()?;
        let is_slow = self.is_slow();
        match self.try_sets(shape, is_slow) {
            // Other work made the runs before the sets long: a few sets show less than all.
            Ok(()) if is_slow && !self.is_slow() => self.try_sets(shape, false),
            outcome => outcome,
        }
    }

    fn is_slow(&self) -> bool {
        self.fastest.is_none_or(|run| run >= SLOW_RUN_MIN)
    }

    /// # Errors
    /// Why the axis is not demonstrated.
    fn try_sets(&mut self, shape: RowShape, is_slow: bool) -> Result<(), String> {
        let (mut agreed, mut varies, mut unclear) = (0, false, String::new());
        for (index, fills) in Fill::SETS.into_iter().enumerate() {
            if is_slow && agreed >= AGREED_MIN && varies {
                break;
            }
            let orders: Orders = match (is_slow, index) {
                _ if self.spec.is_on_gpu() && self.spec.rows_max < 3 => &[&[1, 0]],
                (true, 0) => &[&[1, 0, 1]],
                (true, _) => &[&[1, 0]],
                (false, 0) => &[&[0, 1, 2], &[2, 0]],
                (false, _) => &[&[2, 0, 1]],
            };
            let fills = if is_slow { fills.get(..2).unwrap_or(&fills) } else { &fills };
            match self.try_set(shape, fills, orders) {
                SetOutcome::Agrees(has_varied) => {
                    agreed += 1;
                    varies |= has_varied;
                }
                SetOutcome::Apart(text) | SetOutcome::Differs(text) => return Err(text),
                SetOutcome::Rounded(text) | SetOutcome::Unclear(text) => unclear = text,
            }
        }
        match (agreed >= AGREED_MIN, varies) {
            (true, true) => Ok(()),
            (true, false) => Err("all rows that were tried have the same answer, which shows nothing".to_owned()),
            (false, _) => Err(unclear),
        }
    }

    /// One run alone and one of two rows.
    fn glance(&mut self) -> Option<String> {
        let shape = self.find_shape().ok()?;
        let [fills, ..] = Fill::SETS;
        match self.try_set(shape, fills.get(..2)?, &[&[1, 0]]) {
            SetOutcome::Differs(text) => Some(text),
            // The engine sees outputs without rows itself, and runs their requests apart.
            SetOutcome::Agrees(_) | SetOutcome::Apart(_) | SetOutcome::Rounded(_) | SetOutcome::Unclear(_) => None,
        }
    }

    /// Finds a size of the open dimensions and a range of integers with which a row runs.
    fn find_shape(&mut self) -> Result<RowShape, String> {
        let has_open = self.spec.inputs.iter().any(RowShape::is_open);
        let sizes = if has_open { &OPEN_SIZES[..] } else { &OPEN_SIZES[..1] };
        let mut why = "its inputs are too large to be tried".to_owned();
        // Those of `Fill::Unit` are at most 1: larger ones are tried by the sets.
        let has_integers = self.spec.inputs.iter().any(RowShape::has_integers);
        for integer_max in [100, 0].into_iter().take(if has_integers { 2 } else { 1 }) {
            for open_size in sizes {
                let shape = RowShape { open_size: *open_size, integer_max };
                let Some(row) = Row::new(self.spec, shape, Fill::Unit, 0) else { continue };
                self.tries += 1;
                match self.run(&[&row]) {
                    Ok(_) => return Ok(shape),
                    Err(error) => why = format!("it takes none of the rows that were tried: {error}"),
                }
                if self.tries >= TRIES_MAX {
                    return Err(why);
                }
            }
        }
        Err(why)
    }

    fn try_set(&mut self, shape: RowShape, fills: &[Fill], orders: Orders) -> SetOutcome {
        let mut outcome = SetOutcome::Unclear(String::new());
        // A model may take the integers of one row and not those of another.
        let has_integers = self.spec.inputs.iter().any(RowShape::has_integers);
        let choices = INTEGERS_MAX.into_iter().filter(|max| *max <= shape.integer_max);
        for integer_max in choices.take(if has_integers { INTEGERS_MAX.len() } else { 1 }) {
            outcome = self.try_rows(RowShape { integer_max, ..shape }, fills, orders);
            if !matches!(outcome, SetOutcome::Unclear(_)) {
                break;
            }
        }
        outcome
    }

    fn try_rows(&mut self, shape: RowShape, fills: &[Fill], orders: Orders) -> SetOutcome {
        let made = fills.iter().enumerate().map(|(index, fill)| Row::new(self.spec, shape, *fill, index));
        let Some(rows) = made.collect::<Option<Vec<Row>>>() else {
            return SetOutcome::Unclear("its inputs are too large to be tried".to_owned());
        };
        let mut alone = Vec::with_capacity(rows.len());
        for row in &rows {
            match self.run(&[row]) {
                Ok(answer) => alone.push(answer),
                Err(error) => return SetOutcome::Unclear(format!("a row of trial values fails: {error}")),
            }
        }
        for order in orders {
            let batch: Vec<&Row> = order.iter().filter_map(|index| rows.get(*index)).collect();
            let together = match self.run(&batch) {
                Ok(together) => together,
                Err(error) => return SetOutcome::Differs(format!("{} rows fail together: {error}", batch.len())),
            };
            for (place, index) in order.iter().enumerate() {
                let (Some(row), Some(answer)) = (rows.get(*index), alone.get(*index)) else { continue };
                if let Some(outcome) =
                    self.judge(row, answer, BatchAnswer { outputs: together.as_slice(), place, count: order.len() })
                {
                    return outcome;
                }
            }
        }
        let varies = alone.windows(2).any(|pair| match pair {
            [one, other] => differ(one, other, self.tolerance),
            _ => false,
        });
        SetOutcome::Agrees(varies)
    }

    /// Compares a row's answer with its part of a batch's; `None` if they are the same.
    fn judge(&mut self, row: &Row, alone: &[Tensor], together: BatchAnswer<'_>) -> Option<SetOutcome> {
        let differences = match compare(self.spec, alone, together, self.tolerance) {
            AnswerComparison::Same => return None,
            AnswerComparison::Shape(text) => return Some(SetOutcome::Apart(text)),
            AnswerComparison::Values(differences) => differences,
        };
        // If a change as small as rounding changes the row's own answer as much, or the row's answer is never the same
        // twice, a difference does not show an effect of other rows.
        let noises: Vec<_> = [self.run(&[row]), self.run(&[&row.nudged()])].into_iter().flatten().collect();
        let has_integers_alone = self.spec.inputs.iter().all(RowShape::has_integers);
        let mut is_hidden = false;
        for difference in differences {
            let mut noises = noises.iter().map(|noise| difference.beside(alone, noise));
            match noises.find(|noise| *noise != Noise::Less) {
                // A variance of nearly equal numbers, as few small integers give, makes much of rounding.
                None if has_integers_alone && difference.is_small() => {
                    return Some(SetOutcome::Rounded(difference.text(self.spec)));
                }
                None => return Some(SetOutcome::Differs(difference.text(self.spec))),
                Some(Noise::Hides) => is_hidden = true,
                Some(Noise::Explains | Noise::Less) => {}
            }
        }
        is_hidden
            .then(|| SetOutcome::Unclear("its answers to one row differ as much when nothing else runs".to_owned()))
    }

    /// Runs rows as one batch.
    fn run(&mut self, rows: &[&Row]) -> Result<Vec<Tensor>, Error> {
        let inputs = join(rows);
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let sink = Arc::new(InternalSink::default());
        let responder = sink.responder(0, count);
        let requests = vec![Request { inputs, rows: count, responder, sequence: None, details: None }];
        let batch = Batch { requests, rows: count, clock: clock::now, ended: Vec::new() };
        let began = clock::now();
        let run = std::panic::AssertUnwindSafe(|| run_to_end(self.instance, batch));
        // A panic is logged, and its responder has answered.
        let _ = std::panic::catch_unwind(run);
        let took = clock::now().since(began);
        let outputs = sink.pop().map_or_else(|| Err(Error::internal("it gave no answer")), |answer| answer.outputs)?;
        self.fastest = self.fastest.map(|fastest| fastest.min(took));
        Ok(outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::trial::{spec, tensor};
    use crate::tensor::Datatype;

    /// Computes the values of a batch of rows of four; the number counts its runs.
    struct Computing<F> {
        compute: F,
        runs: usize,
    }

    impl<F: Fn(&[f32], usize) -> Result<Vec<f32>, Error> + Send> Instance for Computing<F> {
        fn run(&mut self, batch: Batch) {
            self.runs += 1;
            for request in batch.requests {
                let values: &[f32] = bytemuck::cast_slice(&request.inputs[0].contents);
                let answer = (self.compute)(values, self.runs);
                request.responder.send(answer.map(|values| vec![tensor(&[values.len() as i64 / 4, 4], &values)]));
            }
        }
    }

    type Compute = fn(&[f32], usize) -> Result<Vec<f32>, Error>;

    fn checked(compute: Compute, kind: AxisCheck) -> (Option<String>, usize) {
        checked_after(compute, kind, Duration::from_micros(10))
    }

    /// The same where a run took this long before.
    fn checked_after(compute: Compute, kind: AxisCheck, run: Duration) -> (Option<String>, usize) {
        let spec = spec(4, &[("x", Datatype::Fp32, &[4])], &[("y", Datatype::Fp32, &[4])]);
        let mut instance = Computing { compute, runs: 0 };
        let why = check(&spec, &mut instance, kind, Some(run));
        (why, instance.runs)
    }

    fn each(values: &[f32], compute: impl Fn(f32) -> f32) -> Vec<f32> {
        values.iter().copied().map(compute).collect()
    }

    #[test]
    fn rows_that_run_by_themselves_are_a_batch_axis_and_others_are_not() {
        let check = |compute: Compute, want: Option<&str>| {
            for kind in [AxisCheck::Derived, AxisCheck::Stated] {
                let (why, runs) = checked(compute, kind);
                assert!((1..60).contains(&runs), "{runs}");
                match (want, why) {
                    (None, None) => {}
                    (Some(want), Some(why)) => assert!(why.contains(want), "{why}"),
                    (want, why) => panic!("{kind:?}: {why:?} instead of {want:?}"),
                }
            }
        };
        check(|values, _| Ok(each(values, |value| value * 2.0 + 1.0)), None);
        // Another order of additions for each number of rows.
        check(|values, _| Ok(each(values, |value| value * (1.0 + values.len() as f32 * 1e-7))), None);
        let differs = "output 'y' of a row differs by up to ";
        check(|values, _| Ok(each(values, |value| value - values[0])), Some(differs));
        check(
            |values, _| {
                let mean = values.iter().sum::<f32>() / values.len() as f32;
                Ok(each(values, |value| value - mean))
            },
            Some(differs),
        );
        let (why, _) = checked(|values, _| Ok(values[..4].to_vec()), AxisCheck::Derived);
        assert_eq!(why.as_deref(), Some("output 'y' is [1,4] for a row and [1,4] for 3 rows"));
        check(
            |values, _| if values.len() > 4 { Err(Error::internal("one row")) } else { Ok(values.to_vec()) },
            Some("rows fail together: one row"),
        );
    }

    #[test]
    fn what_shows_nothing_demonstrates_nothing_and_contradicts_nothing() {
        let check = |compute: Compute, want: &str| {
            let (why, _) = checked(compute, AxisCheck::Derived);
            assert!(why.as_deref().is_some_and(|why| why.contains(want)), "{why:?}");
            assert_eq!(checked(compute, AxisCheck::Stated).0, None, "{want}");
        };
        check(|_, _| Err(Error::internal("no")), "it takes none of the rows that were tried: no");
        check(|values, _| Ok(each(values, |_| 1.0)), "all rows that were tried have the same answer");
        check(
            |values, runs| Ok(each(values, |value| value + runs as f32)),
            "its answers to one row differ as much when nothing else runs",
        );
    }

    #[test]
    fn rows_that_mix_only_at_some_values_are_found() {
        let flagged: Compute = |values, _| {
            let sum: f32 = values.iter().sum();
            Ok(each(values, |value| if value > 1.9 { sum } else { value }))
        };
        assert!(checked(flagged, AxisCheck::Derived).0.is_some());
        // Rows that the few sets of slow models do not have find this one, though the runs before were long.
        let rare: Compute = |values, _| {
            let most = |place: usize| values.iter().skip(place % 4).step_by(4).copied().fold(f32::MIN, f32::max);
            let one = |(place, value): (usize, &f32)| if *value > 1.9 { most(place) } else { *value };
            Ok(values.iter().enumerate().map(one).collect())
        };
        assert!(checked(rare, AxisCheck::Derived).0.is_some());
        assert!(checked_after(rare, AxisCheck::Derived, Duration::from_millis(5)).0.is_some());
        // A difference that is far below the magnitude of other rows.
        let quantized: Compute = |values, _| {
            let step = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs())) / 127.0;
            Ok(each(values, |value| (value / step).round() * step))
        };
        assert!(checked(quantized, AxisCheck::Derived).0.is_some());
    }

    #[test]
    fn only_graphs_whose_requests_share_runs_are_checked() {
        let graph = |rows_max: u32| {
            let spec = spec(rows_max, &[("x", Datatype::Fp32, &[4])], &[("y", Datatype::Fp32, &[4])]);
            ModelSpec { backend: "onnxruntime".to_owned(), ..spec }
        };
        let derived = ModelSpec { is_batch_axis_derived: true, ..graph(4) };
        assert_eq!(needed(&derived), Some(AxisCheck::Derived));
        assert_eq!(needed(&graph(4)), None, "without dynamic batching");
        let batched = |rows_max| ModelSpec { batching: Some(Default::default()), ..graph(rows_max) };
        assert_eq!(needed(&batched(4)), Some(AxisCheck::Stated));
        assert_eq!(needed(&batched(1)), None);
        assert_eq!(needed(&ModelSpec { backend: "identity".to_owned(), ..batched(4) }), None);
    }
}
