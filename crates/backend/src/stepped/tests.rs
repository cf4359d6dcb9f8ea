//! Tests of models with steps: the requests of an instance, and its calls of other models.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::SegQueue;

use super::*;
use crate::gateway::{NestedCall, NestedOrder, NestedReply};
use crate::limits::{STEP_CALLS_MAX, STEP_REQUESTS_MAX};
use crate::trial::{TrialAnswers, no_clock, spec, tensor};
use crate::{Batch, threads};
use base::error::Code;
use base::tensor::Datatype::Fp32;
use model::parameters::Parameters;
use steps::StepList;

#[test]
fn a_step_that_panics_fails_its_request() {
    let error = guarded::<()>(|| std::panic::panic_any("a fault")).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert_eq!(guarded(|| Ok(1)), Ok(1));
}

/// A gateway whose calls wait for the test.
#[derive(Default)]
struct Calls(SegQueue<NestedCall>);

impl Gateway for Calls {
    fn infer(&self, call: NestedCall) {
        self.0.push(call);
    }

    fn control(&self, _: NestedOrder) {
        unreachable!("steps give no orders")
    }
}

impl Calls {
    fn take(&self) -> Option<NestedCall> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// Answers the next call with its input, doubled.
    fn double(&self) {
        let call = self.take().expect("a call waits");
        let doubled: Vec<f32> = values(&call.inputs[0].1).iter().map(|value| value * 2.0).collect();
        reply(&call, Ok(vec![("out".to_owned(), tensor(&call.inputs[0].1.shape.clone(), &doubled))]));
    }
}

fn reply(call: &NestedCall, outputs: Result<Vec<(String, Tensor)>, Error>) {
    call.replies.push(NestedReply { outputs, parameters: Parameters::default(), is_final: true });
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// An engine that adds one to each value, in one batch.
struct AddOne;

impl LoadedModel for AddOne {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(Self))
    }

    fn may_run_inline(&self) -> bool {
        true
    }
}

impl Instance for AddOne {
    fn run(&mut self, batch: Batch) {
        for request in batch.requests {
            let more: Vec<f32> = values(&request.inputs[0]).iter().map(|value| value + 1.0).collect();
            request.responder.send(Ok(vec![tensor(&request.inputs[0].shape.clone(), &more)]));
        }
    }
}

/// A model `m` from `x` to `y`, FP32 `[-1]` in rows, with these steps, around [`AddOne`] (`a` to `b`) if they have a model.
fn instance(steps: &str, calls: &Arc<Calls>) -> Box<dyn Instance> {
    let model = model(steps, Some(caller(calls))).unwrap();
    threads::enter(1, |threads| model.new_instance(threads)).unwrap()
}

fn caller(calls: &Arc<Calls>) -> StepCaller {
    StepCaller { gateway: Arc::clone(calls) as Arc<dyn Gateway>, model: "m".into(), version: 3 }
}

fn model(steps: &str, caller: Option<StepCaller>) -> Result<SteppedModel, Error> {
    let list = StepList::read(steps, &|_, _| Err("no file".to_owned())).unwrap();
    let mut outer = spec(8, &[("x", Fp32, &[2])], &[("y", Fp32, &[2])]);
    let has_model = list.has_model();
    let engine = has_model.then(|| Arc::new(spec(8, &[("a", Fp32, &[2])], &[("b", Fp32, &[2])])));
    outer.steps = Some(Arc::new(ModelSteps::new(steps, list, &outer, engine).unwrap()));
    SteppedModel::new(&Arc::new(outer), has_model.then(|| Box::new(AddOne) as Box<dyn LoadedModel>), caller)
}

const LIST: &str = r#"{"steps": [
    {"step": "infer", "model": "other", "version": 4, "inputs": {"in": "x"}, "outputs": {"out": "y"}}
]}"#;
const BY_ROW: &str = r#"{"steps": [
    {"step": "infer", "model": "other", "rows": 1, "inputs": {"in": "x"}, "outputs": {"out": "y"}}
]}"#;
const BEFORE: &str = r#"{"steps": [
    {"step": "infer", "model": "other", "inputs": {"in": "x"}, "outputs": {"out": "a"}},
    {"step": "model"},
    {"step": "cast", "input": "b", "output": "y", "datatype": "FP32"}
]}"#;
const BEHIND: &str = r#"{"steps": [
    {"step": "cast", "input": "x", "output": "a", "datatype": "FP32"},
    {"step": "model"},
    {"step": "infer", "model": "other", "inputs": {"in": "b"}, "outputs": {"out": "y"}}
]}"#;

fn row(first: f32) -> (Vec<Tensor>, u32) {
    (vec![tensor(&[1, 2], &[first, 0.5])], 1)
}

fn flight(instance: &mut dyn Instance) -> (usize, bool) {
    let state = instance.poll_flight(no_clock);
    (state.batches, state.has_room)
}

fn first_values(answers: &TrialAnswers, count: u32) -> Vec<f32> {
    answers.outputs(count).into_iter().map(|outputs| values(&outputs.unwrap()[0])[0]).collect()
}

#[test]
fn requests_wait_for_another_model_side_by_side_and_are_answered_in_any_order() {
    let (calls, answers) = (Arc::default(), TrialAnswers::default());
    let mut instance = instance(LIST, &calls);
    instance.run(answers.batch(vec![row(1.0), row(2.0)]));
    assert_eq!((calls.len(), flight(&mut *instance)), (2, (2, true)));
    let first = calls.take().unwrap();
    assert_eq!((first.model.as_str(), first.version, first.allows_no_rows), ("other", Some(4), true));
    assert_eq!((first.inputs[0].0.as_str(), &first.outputs[..]), ("in", &["out".to_owned()][..]));
    let callers: Vec<_> = first.details.chain.links().map(|link| (&*link.model, link.version)).collect();
    assert_eq!(callers, [("m", 3)]);
    calls.double();
    assert_eq!(flight(&mut *instance), (1, true), "the second has its answer");
    reply(&first, Ok(vec![("out".to_owned(), tensor(&[1, 2], &[7.0_f32, 8.0]))]));
    assert_eq!(flight(&mut *instance), (0, true));
    assert_eq!(first_values(&answers, 2), [7.0, 4.0]);
}

#[test]
fn rows_become_calls_at_the_same_time_whose_outputs_are_joined() {
    let (calls, answers) = (Arc::default(), TrialAnswers::default());
    let mut instance = instance(BY_ROW, &calls);
    let x: Vec<f32> = (0..6).map(|value| value as f32).collect();
    instance.run(answers.batch(vec![(vec![tensor(&[3, 2], &x)], 3)]));
    assert_eq!((calls.len(), flight(&mut *instance)), (3, (1, true)));
    let first = calls.take().unwrap();
    assert_eq!(&first.inputs[0].1.shape[..], [1, 2]);
    calls.double();
    calls.double();
    assert_eq!(flight(&mut *instance), (1, true));
    reply(&first, Ok(vec![("out".to_owned(), tensor(&[1, 2], &[0.0_f32, 2.0]))]));
    assert_eq!(flight(&mut *instance), (0, true));
    let outputs = answers.outputs(1).remove(0).unwrap();
    assert_eq!((&outputs[0].shape[..], values(&outputs[0])), (&[3, 2][..], vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]));
}

#[test]
fn one_request_has_at_most_so_many_calls_and_one_instance_so_many_requests() {
    let (calls, answers) = (Arc::<Calls>::default(), TrialAnswers::default());
    let list = BY_ROW.replace("\"x\"", "\"many\"").replace("\"y\"", "\"all\"");
    let many = format!(
        r#"{{"steps": [{{"step": "shape", "input": "x", "output": "many", "reshape": [-1, 1]}}, {}, {}]}}"#,
        list.trim_start_matches("{\"steps\": [").trim_end_matches("]}"),
        r#"{"step": "shape", "input": "all", "output": "y", "reshape": [-1, 2]}"#,
    );
    let mut one = instance(&many, &calls);
    let rows = STEP_CALLS_MAX / 2 + 1;
    let x: Vec<f32> = (0..2 * rows).map(|value| value as f32).collect();
    let batch = answers.batch(vec![(vec![tensor(&[rows as i64, 2], &x)], rows as u32)]);
    one.run(batch);
    assert_eq!(calls.len(), STEP_CALLS_MAX);
    let mut answered = 0;
    while calls.len() > 0 {
        calls.double();
        answered += 1;
        one.poll_flight(no_clock);
    }
    assert_eq!(answered, 2 * rows);
    let doubled: Vec<f32> = x.iter().map(|value| value * 2.0).collect();
    assert_eq!(values(&answers.outputs(1).remove(0).unwrap()[0]), doubled);

    let mut clients = Vec::new();
    let mut full = instance(LIST, &calls);
    for requests in 1..=STEP_REQUESTS_MAX {
        let client = TrialAnswers::default();
        full.run(client.batch(vec![row(1.0)]));
        clients.push(client);
        assert_eq!(flight(&mut *full), (requests, requests < STEP_REQUESTS_MAX));
    }
    calls.double();
    assert_eq!(flight(&mut *full), (STEP_REQUESTS_MAX - 1, true));
    drop(full);
}

#[test]
fn the_model_between_runs_behind_the_calls_of_the_steps_before_it() {
    let (calls, answers) = (Arc::default(), TrialAnswers::default());
    let mut instance = instance(BEFORE, &calls);
    instance.run(answers.batch(vec![row(1.0), row(5.0)]));
    calls.double();
    calls.double();
    assert_eq!(flight(&mut *instance), (0, true));
    let both = answers.take(2);
    assert_eq!(both.iter().map(|answer| answer.batch_rows).collect::<Vec<_>>(), [2, 2], "they ran together");
    let first: Vec<_> = both.into_iter().map(|answer| values(&answer.outputs.unwrap()[0])[0]).collect();
    assert_eq!(first, [3.0, 11.0]);
}

#[test]
fn steps_behind_the_model_call_too() {
    let (calls, answers) = (Arc::default(), TrialAnswers::default());
    let mut instance = instance(BEHIND, &calls);
    instance.run(answers.batch(vec![row(1.0)]));
    assert_eq!(calls.len(), 0, "the answer waits for the instance's next look");
    assert_eq!((flight(&mut *instance), calls.len()), ((1, true), 1));
    calls.double();
    assert_eq!(flight(&mut *instance), (0, true));
    assert_eq!(first_values(&answers, 1), [4.0]);
}

#[test]
fn a_call_that_fails_fails_its_request_and_withdraws_the_others() {
    let (calls, answers) = (Arc::<Calls>::default(), TrialAnswers::default());
    let mut by_row = instance(BY_ROW, &calls);
    by_row.run(answers.batch(vec![(vec![tensor(&[2, 2], &[0.0_f32; 4])], 2)]));
    let (first, second) = (calls.take().unwrap(), calls.take().unwrap());
    reply(&first, Err(Error::unavailable("not ready")));
    assert_eq!(flight(&mut *by_row), (0, true));
    assert!(second.state.is_cancelled());
    let error = answers.outputs(1).remove(0).unwrap_err();
    assert_eq!((error.code(), error.text()), (Code::Unavailable, "step 1 (infer): not ready"));
    reply(&second, Ok(Vec::new()));
    assert_eq!(flight(&mut *by_row), (0, true), "a late reply changes nothing");

    let check = |steps: &str, outputs: &[&[i64]], want: &str| {
        let (calls, answers) = (Arc::<Calls>::default(), TrialAnswers::default());
        let mut instance = instance(steps, &calls);
        instance.run(answers.batch(vec![(vec![tensor(&[2, 2], &[0.0_f32; 4])], 2)]));
        instance.poll_flight(no_clock);
        for shape in outputs {
            let count: i64 = shape.iter().product();
            let output = tensor(shape, &vec![0.0_f32; count as usize]);
            reply(&calls.take().unwrap(), Ok(vec![("out".to_owned(), output)]));
        }
        instance.poll_flight(no_clock);
        let error = answers.outputs(1).remove(0).unwrap_err();
        assert_eq!((error.code(), error.text()), (Code::Internal, want));
    };
    let apart = "step 1 (infer): the outputs of the model 'other' for 1 rows at a time do not fit together: each must have its \
                 rows first, and otherwise one shape; without \"rows\", one call has all of them";
    check(BY_ROW, &[&[1, 2], &[1, 3]], apart);
    check(BY_ROW, &[&[1, 2], &[2, 2]], apart);
    let shape = "output 'y' of model 'm' must be FP32 with shape [2,2], but the steps made FP32 with shape [2,3]";
    check(LIST, &[&[2, 3]], shape);
    check(BEHIND, &[&[2, 3]], shape);
    let (calls, answers) = (Arc::<Calls>::default(), TrialAnswers::default());
    let mut instance = instance(LIST, &calls);
    instance.run(answers.batch(vec![row(1.0)]));
    reply(&calls.take().unwrap(), Ok(Vec::new()));
    instance.poll_flight(no_clock);
    let error = answers.outputs(1).remove(0).unwrap_err();
    assert_eq!(error.text(), "step 1 (infer): the model 'other' gave no output 'out'");
}

#[test]
fn the_inputs_of_a_call_by_rows_have_the_same_rows() {
    let steps = r#"{"steps": [
        {"step": "shape", "input": "x", "output": "flat", "reshape": [-1]},
        {"step": "infer", "model": "other", "rows": 1, "inputs": {"in": "x", "scale": "flat"}, "outputs": {"out": "y"}}
    ]}"#;
    let (calls, answers) = (Arc::<Calls>::default(), TrialAnswers::default());
    instance(steps, &calls).run(answers.batch(vec![(vec![tensor(&[2, 2], &[0.0_f32; 4])], 2)]));
    let error = answers.outputs(1).remove(0).unwrap_err();
    let want = "step 2 (infer): the inputs must have the same rows, but 'in' has 2 and 'scale' has 4";
    assert_eq!((error.code(), error.text()), (Code::InvalidArgument, want));
}

#[test]
fn a_client_that_leaves_and_an_instance_that_ends_withdraw_their_calls() {
    let calls = Arc::<Calls>::default();
    let answers = TrialAnswers::default();
    let mut first = instance(LIST, &calls);
    let batch = answers.batch(vec![row(1.0)]);
    answers.leave();
    first.run(batch);
    let state = first.poll_flight(no_clock);
    assert!(state.look_again.is_some_and(|time| time <= Duration::from_millis(100)));
    assert!(calls.take().unwrap().state.is_cancelled());

    let left = TrialAnswers::default();
    let mut second = instance(LIST, &calls);
    second.run(left.batch(vec![row(1.0)]));
    let call = calls.take().unwrap();
    assert!(!call.state.is_cancelled());
    drop(second);
    assert!(call.state.is_cancelled());
    assert_eq!(left.outputs(1).remove(0).unwrap_err().code(), Code::Internal, "nothing answered it");
}

#[test]
fn steps_that_call_need_a_way_to_the_server_and_do_not_run_inline() {
    let error = model(LIST, None).err().unwrap();
    assert_eq!(error.text(), "a step runs the model 'other', which cannot be reached here");
    let calls = Arc::default();
    let model = model(LIST, Some(caller(&calls))).unwrap();
    assert!(!model.may_run_inline());
}
