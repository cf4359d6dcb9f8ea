use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::gpu::trial::{instance, product, row};
use backend::gpu::device::Gpu;
use backend::gpu::fake::Fake;
use backend::gpu::lease::{DeviceTensors, TensorLease};
use backend::trial::{TrialAnswers, tensor};
use backend::{RequestDetails, run_to_end};
use base::error::Code;
use base::tensor::Tensor;
use base::time::Instant;

thread_local! {
    static NOW: Cell<Instant> = const { Cell::new(Instant::ZERO) };
}

fn clock() -> Instant {
    NOW.get()
}

const PLENTY: usize = 1 << 20;

struct Trial {
    fake: Arc<Fake>,
    gpu: Arc<Gpu>,
    figures: Arc<GpuInstanceFigures>,
    instance: GpuInstance,
    answers: Vec<TrialAnswers>,
}

impl Trial {
    fn new(rows_max: u32) -> Self {
        let fake = Fake::new(1);
        let gpu = fake.gpu(PLENTY, PLENTY);
        let figures = Arc::new(GpuInstanceFigures::default());
        let instance = instance(&gpu, rows_max, &figures).unwrap();
        fake.take_timeline();
        Self { fake, gpu, figures, instance, answers: Vec::new() }
    }

    /// Runs a batch with a request for each row.
    fn run(&mut self, rows: &[(f32, f32)]) {
        let answers = TrialAnswers::default();
        let requests = rows.iter().map(|(first, second)| (vec![row(*first, *second)], 1)).collect();
        let mut batch = answers.batch(requests);
        batch.clock = clock;
        self.instance.run(batch);
        self.answers.push(answers);
    }

    fn poll(&mut self) -> InFlightState {
        self.instance.poll_flight(clock)
    }

    /// Returns the outcomes of the requests of a batch: outputs, or the code.
    fn outcome(&self, batch: usize, requests: u32) -> Vec<Result<Vec<Tensor>, Code>> {
        let outputs = self.answers[batch].outputs(requests);
        outputs.into_iter().map(|outputs| outputs.map_err(|error| error.code())).collect()
    }
}

/// Counts its calls.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_batch_is_uploaded_while_the_one_before_it_computes_and_each_end_wakes() {
    let mut trial = Trial::new(4);
    let calls = Arc::new(Calls::default());
    trial.instance.set_waker(Waker::from(Arc::clone(&calls)));
    trial.fake.hold();
    trial.run(&[(1.0, 2.0), (3.0, 4.0)]);
    let flight = trial.poll();
    assert_eq!((flight.batches, flight.has_room, flight.look_again), (1, true, Some(GPU_POLL)));
    // The first batch was uploaded: begin, in, uploaded.
    (0..3).for_each(|_| assert!(trial.fake.step(0)));
    trial.run(&[(5.0, 6.0)]);
    (0..3).for_each(|_| assert!(trial.fake.step(1)));
    assert_eq!((trial.poll().batches, trial.poll().has_room), (2, false));
    trial.fake.finish(0);
    let flight = trial.poll();
    assert_eq!((flight.batches, flight.has_room, flight.ended_batch.map(|(rows, _)| rows)), (1, true, Some(2)));
    assert_eq!(trial.outcome(0, 2), [Ok(vec![product(1.0, 2.0)]), Ok(vec![product(3.0, 4.0)])]);
    trial.fake.finish(1);
    assert_eq!(trial.poll().batches, 0);
    assert_eq!(trial.outcome(1, 1), [Ok(vec![product(5.0, 6.0)])]);
    assert_eq!(calls.0.load(Ordering::SeqCst), 2);
    let want = "+s0 in 256\n+s0 matmul 2x2x3\n+s0 out 24\n+s0 wake\n-s0 in 256\n\
                +s1 in 256\n+s1 matmul 1x2x3\n+s1 out 12\n+s1 wake\n-s1 in 256\n\
                -s0 matmul 2x2x3\n-s0 out 24\n-s0 wake\n\
                -s1 matmul 1x2x3\n-s1 out 12\n-s1 wake\n";
    assert_eq!(trial.fake.take_timeline(), want);
    assert_eq!((trial.figures.batches_done.get(), trial.figures.flights_peak.get()), (2, 2));
}

#[test]
fn a_later_batch_that_ends_first_is_answered_first() {
    let mut trial = Trial::new(4);
    trial.fake.hold();
    trial.run(&[(1.0, 0.0)]);
    trial.run(&[(0.0, 1.0)]);
    trial.fake.finish(1);
    assert_eq!(trial.poll().batches, 1);
    assert_eq!(trial.outcome(1, 1), [Ok(vec![product(0.0, 1.0)])]);
    assert_eq!(trial.outcome(0, 0), []);
    trial.fake.finish(0);
    trial.poll();
    assert_eq!(trial.outcome(0, 1), [Ok(vec![product(1.0, 0.0)])]);
}

#[test]
fn slots_are_used_again_and_no_batch_takes_memory() {
    let mut trial = Trial::new(4);
    let (allocations, held) = (trial.fake.allocations(), trial.fake.held());
    for round in 0..50 {
        let value = round as f32;
        let rows: Vec<_> = (0..=round % 4).map(|index| (value, index as f32)).collect();
        trial.run(&rows);
        assert_eq!(trial.poll().batches, 0);
        let want: Vec<_> = rows.iter().map(|(first, second)| Ok(vec![product(*first, *second)])).collect();
        assert_eq!(trial.outcome(round, want.len() as u32), want);
    }
    assert_eq!((trial.fake.allocations(), trial.fake.held()), (allocations, held));
    assert_eq!(trial.gpu.account().used() + trial.gpu.pinned_account().used(), held);
    drop(trial.instance);
    assert_eq!((trial.fake.held(), trial.gpu.account().used(), trial.gpu.pinned_account().used()), (0, 0, 0));
}

#[test]
fn what_fails_and_leaves_all_as_it_was_costs_its_batch_alone_and_only_when_its_stream_is_through() {
    for (call, fault, code) in [
        ("copy_in", GpuFault::Memory, Code::Unavailable),
        ("matmul", GpuFault::Transient, Code::Internal),
        ("copy_out", GpuFault::Transient, Code::Internal),
    ] {
        let mut trial = Trial::new(4);
        trial.fake.hold();
        trial.fake.fail_next(call, fault);
        trial.run(&[(1.0, 2.0)]);
        assert_eq!(trial.poll().batches, 1, "{call}: what was enqueued before goes on");
        trial.fake.finish(0);
        let flight = trial.poll();
        assert_eq!((flight.batches, flight.is_lost), (0, false), "{call}");
        assert_eq!(trial.outcome(0, 1), [Err(code)], "{call}");
        trial.run(&[(1.0, 2.0)]);
        trial.fake.finish(0);
        trial.poll();
        assert_eq!(trial.outcome(1, 1), [Ok(vec![product(1.0, 2.0)])], "{call}");
        let counted = trial.figures.failures_memory.get() + trial.figures.failures_transient.get();
        assert_eq!((counted, trial.figures.failures_sticky.get()), (1, 0), "{call}");
    }
}

#[test]
fn a_context_that_breaks_costs_the_instance_and_all_that_it_has_in_flight() {
    for call in ["copy_in", "matmul", "record", "wake", "is_passed"] {
        let mut trial = Trial::new(4);
        trial.fake.hold();
        trial.run(&[(1.0, 2.0)]);
        trial.fake.fail_next(call, GpuFault::Sticky);
        trial.run(&[(3.0, 4.0), (5.0, 6.0)]);
        let flight = trial.poll();
        assert!(flight.is_lost && flight.batches == 0, "{call}: {flight:?}");
        assert_eq!(trial.outcome(0, 1), [Err(Code::Unavailable)], "{call}");
        assert_eq!(trial.outcome(1, 2), [Err(Code::Unavailable), Err(Code::Unavailable)], "{call}");
        trial.run(&[(7.0, 8.0)]);
        assert_eq!(trial.outcome(2, 1), [Err(Code::Unavailable)], "{call}: it takes nothing any more");
        assert_eq!(trial.figures.failures_sticky.get(), 1, "{call}");
        drop(trial.instance);
        assert_eq!(trial.fake.held(), 0, "{call}: nothing writes in a broken context");
        trial.instance = instance(&trial.gpu, 4, &trial.figures).unwrap();
        assert_eq!(trial.fake.contexts(), 2, "{call}");
        trial.run(&[(1.0, 1.0)]);
        (0..8).for_each(|stream| trial.fake.finish(stream));
        trial.poll();
        assert_eq!(trial.outcome(3, 1), [Ok(vec![product(1.0, 1.0)])], "{call}: made anew, it serves");
    }
}

#[test]
fn a_batch_of_which_the_driver_cannot_tell_is_given_up_in_time() {
    NOW.set(Instant::ZERO);
    let mut trial = Trial::new(4);
    trial.fake.hold();
    trial.run(&[(1.0, 2.0)]);
    trial.fake.fail_next("is_passed", GpuFault::Transient);
    assert!(!trial.poll().is_lost, "the next look may tell");
    NOW.set(Instant::ZERO + GPU_RUN_MAX + Duration::from_nanos(1));
    trial.fake.fail_next("is_passed", GpuFault::Transient);
    assert!(trial.poll().is_lost);
    assert_eq!(trial.outcome(0, 1), [Err(Code::Unavailable)]);
}

#[test]
fn instances_that_share_a_context_are_all_lost_with_it_and_share_the_next() {
    let mut trial = Trial::new(4);
    let mut other = instance(&trial.gpu, 4, &trial.figures).unwrap();
    assert_eq!(trial.fake.contexts(), 1);
    let woken = Arc::new(Calls::default());
    other.set_waker(Waker::from(Arc::clone(&woken)));
    trial.fake.hold();
    trial.run(&[(1.0, 2.0)]);
    trial.fake.break_contexts();
    let lost = trial.poll();
    assert!(lost.is_lost, "it hears of it though nobody is woken");
    assert_eq!(woken.0.load(Ordering::SeqCst), 1, "and tells those that sleep");
    assert!(other.poll_flight(clock).is_lost, "idle as it is");
    drop((other, trial.instance));
    let _both = [(); 2].map(|()| instance(&trial.gpu, 4, &trial.figures).unwrap());
    assert_eq!(trial.fake.contexts(), 2);
}

#[test]
fn a_batch_that_does_not_end_is_given_up_and_its_memory_with_it() {
    NOW.set(Instant::ZERO);
    let mut trial = Trial::new(4);
    trial.fake.hold();
    trial.run(&[(1.0, 2.0)]);
    NOW.set(Instant::ZERO + GPU_RUN_MAX);
    assert!(!trial.poll().is_lost);
    NOW.set(Instant::ZERO + GPU_RUN_MAX + Duration::from_nanos(1));
    assert!(trial.poll().is_lost);
    let error = trial.answers[0].outputs(1).remove(0).unwrap_err();
    let want =
        "model 'm': its instance on the GPU was lost and is recreated: a batch was not done within 60s; try again";
    assert_eq!((error.code(), error.text()), (Code::Unavailable, want));
    let held = trial.fake.held();
    drop(trial.instance);
    assert_eq!(trial.fake.held(), held, "the device may still write there");
    trial.fake.finish(0);
    assert_eq!(trial.figures.hangs.get(), 1);
}

#[test]
fn an_end_that_nobody_tells_of_is_seen_at_the_next_look() {
    let mut trial = Trial::new(4);
    trial.fake.lose_wakes();
    let answers = TrialAnswers::default();
    let mut batch = answers.batch(vec![(vec![row(2.0, 1.0)], 1)]);
    batch.clock = clock;
    run_to_end(&mut trial.instance, batch);
    assert_eq!(answers.outputs(1), [Ok(vec![product(2.0, 1.0)])]);
}

#[test]
fn an_instance_that_ends_with_a_batch_in_flight_answers_it_and_leaves_its_memory() {
    let mut trial = Trial::new(4);
    trial.fake.hold();
    trial.run(&[(1.0, 2.0)]);
    drop(std::mem::replace(&mut trial.instance, instance(&trial.gpu, 4, &trial.figures).unwrap()));
    assert_eq!(trial.outcome(0, 1), [Err(Code::Internal)]);
    trial.fake.finish(0);
}

#[test]
fn a_bad_request_fails_alone_and_one_without_a_batch_axis_runs_alone() {
    let mut trial = Trial::new(4);
    let answers = TrialAnswers::default();
    let bad = tensor(&[1, 2], &[1_i32, 2]);
    let mut batch = answers.batch(vec![(vec![row(1.0, 2.0)], 1), (vec![bad], 1), (vec![row(3.0, 4.0)], 1)]);
    batch.clock = clock;
    run_to_end(&mut trial.instance, batch);
    let got = answers.take(3);
    assert_eq!(got[1].outputs.as_ref().map_err(Error::code), Err(Code::Internal));
    assert_eq!(got[2].outputs, Ok(vec![product(3.0, 4.0)]));
    assert_eq!([got[0].batch_rows, got[2].batch_rows], [2, 2]);

    let mut trial = Trial::new(0);
    let answers = TrialAnswers::default();
    let rows: Vec<_> = (0..3).map(|value| (vec![tensor(&[2], &[value as f32, 0.0])], 1)).collect();
    let mut batch = answers.batch(rows);
    batch.clock = clock;
    run_to_end(&mut trial.instance, batch);
    let firsts = answers.outputs(3).into_iter().map(|outputs| outputs.unwrap().remove(0).contents[..4].to_vec());
    assert_eq!(firsts.collect::<Vec<_>>(), [0.0_f32, 1.0, 2.0].map(|value| value.to_le_bytes().to_vec()));
}

#[test]
fn an_instance_that_memory_is_short_for_is_refused_and_leaves_nothing() {
    let fake = Fake::new(1);
    let gpu = fake.gpu(2_000, PLENTY);
    let figures = Arc::new(GpuInstanceFigures::default());
    let first = instance(&gpu, 4, &figures).unwrap();
    let error = instance(&gpu, 100, &figures).err().unwrap();
    assert!(error.fault == GpuFault::Memory && error.text.contains("--gpu-memory-bytes-max"), "{error}");
    drop(first);
    assert_eq!((fake.held(), gpu.account().used()), (0, 0));
    fake.remove_blas();
    assert!(instance(&gpu, 4, &figures).err().unwrap().text.contains("cuBLASLt"));
}

/// A request of one row with its input on the device, if it is given, and its output there, if wanted.
fn on_device(trial: &Trial, first: Option<(f32, f32)>, has_output: bool) -> Arc<DeviceTensors> {
    let opened = trial.gpu.opened().unwrap();
    let lease = |size| TensorLease::new(&opened, size).unwrap();
    let mut tensors = DeviceTensors::default();
    if let Some((first, second)) = first {
        let input = lease(8);
        opened.context().upload(bytemuck::cast_slice(&[first, second]), input.pointer()).unwrap();
        tensors.inputs.push((0, input));
    }
    if has_output {
        tensors.outputs.push((0, lease(12)));
    }
    Arc::new(tensors)
}

fn with_tensors(batch: &mut Batch, index: usize, tensors: &Arc<DeviceTensors>) {
    let request = &mut batch.requests[index];
    request.details = Some(Arc::new(RequestDetails { on_device: Some(Arc::clone(tensors)), ..Default::default() }));
    if !tensors.inputs.is_empty() {
        request.inputs[0].contents = bytes::Bytes::new();
    }
    if !tensors.outputs.is_empty() {
        request.responder.output_needs = backend::OutputNeeds([OutputNeed::Nothing].into_iter().collect());
    }
}

/// Returns the contents that a batch left in the memory for a request's output.
fn left(trial: &Trial, tensors: &DeviceTensors) -> Vec<f32> {
    let (lease, mut bytes) = (tensors.output(0).unwrap(), [0; 12]);
    trial.gpu.opened().unwrap().context().download(lease.pointer(), &mut bytes).unwrap();
    bytes.chunks(4).map(bytemuck::pod_read_unaligned).collect()
}

#[test]
fn rows_on_the_device_are_gathered_and_scattered_by_one_launch_each() {
    let mut trial = Trial::new(4);
    let [both, input, output] = [(Some((3.0, 4.0)), true), (Some((5.0, 6.0)), false), (None, true)]
        .map(|(first, has_output)| on_device(&trial, first, has_output));
    let answers = TrialAnswers::default();
    let rows = [(1.0, 2.0), (0.0, 0.0), (0.0, 0.0), (7.0, 8.0)];
    let mut batch = answers.batch(rows.iter().map(|(first, second)| (vec![row(*first, *second)], 1)).collect());
    [&both, &input, &output]
        .iter()
        .enumerate()
        .for_each(|(index, tensors)| with_tensors(&mut batch, index + 1, tensors));
    trial.fake.take_timeline();
    run_to_end(&mut trial.instance, batch);
    let timeline = trial.fake.take_timeline();
    let done: Vec<&str> = timeline.lines().filter_map(|line| line.strip_prefix("-s0 ")).collect();
    // Four rows of eight bytes, padded; two parts there and two back.
    let upload = format!("in {}", 256 + 4 * 24);
    assert_eq!(done, [&upload, "reshape_copy", "matmul 4x2x3", "reshape_copy", "out 48", "wake"]);
    let outputs = answers.outputs(4);
    assert_eq!(outputs[0].as_ref().unwrap(), &[product(1.0, 2.0)]);
    assert_eq!(outputs[2].as_ref().unwrap(), &[product(5.0, 6.0)]);
    for (index, tensors, (first, second)) in [(1, &both, (3.0, 4.0)), (3, &output, (7.0, 8.0))] {
        assert!(outputs[index].is_ok() && tensors.output(0).unwrap().is_written());
        assert_eq!(left(&trial, tensors), bytemuck::cast_slice::<u8, f32>(&product(first, second).contents));
    }
    // Alone, only the table is uploaded, and nothing is downloaded.
    let alone = on_device(&trial, Some((9.0, 1.0)), true);
    let answers = TrialAnswers::default();
    let mut batch = answers.batch(vec![(vec![row(0.0, 0.0)], 1)]);
    with_tensors(&mut batch, 0, &alone);
    trial.fake.take_timeline();
    run_to_end(&mut trial.instance, batch);
    let timeline = trial.fake.take_timeline();
    let done: Vec<&str> =
        timeline.lines().filter_map(|line| line.strip_prefix('-')?.split_once(' ')).map(|(_, what)| what).collect();
    assert_eq!(done, ["in 48", "reshape_copy", "matmul 1x2x3", "reshape_copy", "wake"]);
    assert_eq!(answers.outputs(1)[0].as_ref().unwrap()[0].contents.len(), 0);
    assert_eq!(left(&trial, &alone), bytemuck::cast_slice::<u8, f32>(&product(9.0, 1.0).contents));
}

#[test]
fn tensors_that_a_batch_may_not_use_are_refused_and_a_failure_leaves_none_written() {
    let mut trial = Trial::new(4);
    let code = |trial: &mut Trial, tensors: &Arc<DeviceTensors>| {
        let answers = TrialAnswers::default();
        let mut batch = answers.batch(vec![(vec![row(0.0, 0.0)], 1)]);
        with_tensors(&mut batch, 0, tensors);
        run_to_end(&mut trial.instance, batch);
        answers.outputs(1).remove(0).map_err(|error| error.code()).err()
    };
    let sound = on_device(&trial, Some((1.0, 1.0)), true);
    for call in ["copy_in", "launch", "matmul"] {
        trial.fake.fail_next(call, GpuFault::Transient);
        assert_eq!(code(&mut trial, &sound), Some(Code::Internal), "{call}");
        assert!(!sound.output(0).unwrap().is_written(), "{call}");
    }
    assert_eq!(code(&mut trial, &sound), None);
    assert!(sound.output(0).unwrap().is_written());
    let opened = trial.gpu.opened().unwrap();
    let sized = |input: usize, output: usize| {
        let lease = |size| TensorLease::new(&opened, size).unwrap();
        Arc::new(DeviceTensors { inputs: vec![(0, lease(input))], outputs: vec![(0, lease(output))] })
    };
    for (input, output) in [(8, 16), (4, 12), (16, 12)] {
        assert_eq!(code(&mut trial, &sized(input, output)), Some(Code::Internal), "{input} {output}");
    }
    // Memory of a replaced context: in the next one its address belongs to other memory.
    let stale = on_device(&trial, Some((1.0, 1.0)), false);
    let mut other = Trial::new(4);
    assert_eq!(code(&mut other, &stale), Some(Code::Unavailable));
    // An instance on another device could not access them.
    let answers = TrialAnswers::default();
    let mut batch = answers.batch(vec![(vec![row(0.0, 0.0)], 1)]);
    with_tensors(&mut batch, 0, &stale);
    let error = check_request(&trial.instance.spec, &batch.requests[0]).unwrap_err();
    assert!(error.text().starts_with("tensors on a device came to an instance"), "{error}");
}
