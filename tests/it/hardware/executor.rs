//! Overhead of the GPU executor for a batch of one row, beside the same copies, products and kernels enqueued by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use deuteron::backend::gpu::{Gpus, MemoryLimits, cuda};
use deuteron::backend::{Answer, AnswerSink, Batch, Instance, LoadedModel, Request, Responder, Ticket, threads};
use deuteron::engines::gpu::program::{ProgramBatch, ProgramSource};
use deuteron::engines::gpu::{GpuModel, GpuPlan};
use deuteron::model::ModelSpec;
use deuteron::model::config::{CompletionRules, ConfigDraft, GpuSupport};
use deuteron::model::onnx::OnnxSignature;
use deuteron::runtime::clock;
use deuteron::tensor::{AlignedBuffer, Datatype, Tensor};
use deuteron::time::Stamps;

use super::Scale;

const DIGITS: &[u8] = include_bytes!("../../../examples/models/digits/1/model.onnx");
const ROW_SIZE: usize = 64 * 4;
const OUTPUT_SIZE: usize = 10 * 4;

/// Measures and prints.
pub fn print(scale: &Scale) {
    let driver = cuda::find().expect("it was found before");
    let gpus = Gpus::of_driver(&driver, MemoryLimits { device: usize::MAX, pinned: 1 << 26 });
    let device = gpus.all().first().expect("there is a device").properties().index;
    let spec = spec(device);
    let plan = Arc::new(GpuPlan::new(DIGITS, &spec).expect("the example is planned"));
    let model = GpuModel::new(&spec, Arc::clone(&plan) as _, &gpus, None);
    let made = threads::enter(1, |threads| model.new_instance(&threads.on(Some(device))));
    let mut instance = made.expect("an instance is made");
    let bare = by_hand(&gpus, device, &plan, scale.rounds);
    let polled = executed(&mut *instance, scale.rounds, || {});
    instance.set_waker(Waker::from(Arc::new(Unpark(thread::current()))));
    let woken = executed(&mut *instance, scale.rounds, thread::park);
    println!("\ndigits, one row at a time, of {} rounds{}", scale.rounds, scale.note());
    println!("| way | p50 µs | p99 µs | beyond the bare calls, p50 µs |\n|---|---|---|---|");
    for (way, times) in [("bare calls", &bare), ("executor, polled", &polled), ("executor, woken", &woken)] {
        let added = times.at(50) - bare.at(50);
        println!("| {way} | {:.1} | {:.1} | {added:.1} |", times.at(50), times.at(99));
    }
    println!("goal: 30 µs at most beyond the bare calls");
}

fn spec(device: u32) -> Arc<ModelSpec> {
    let text = "backend: 'onnxruntime' max_batch_size: 64 instance_group { kind: KIND_GPU }";
    let support = GpuSupport { devices: vec![device], takes_auto: true, ..GpuSupport::default() };
    let draft = ConfigDraft::new("digits", Some(text.as_bytes()), &[]).expect("it is well-formed").with_gpus(support);
    let signature = OnnxSignature::decode(DIGITS).expect("the example is a model");
    let spec = draft.complete(Some(&signature), &BTreeMap::new(), CompletionRules::default());
    Arc::new(spec.expect("it goes with the example"))
}

/// Microseconds, sorted.
struct Times(Vec<f64>);

impl Times {
    fn of(rounds: usize, mut run: impl FnMut()) -> Self {
        // The first loads code.
        (0..rounds.div_ceil(10)).for_each(|_| run());
        let round = |_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e6
        };
        let mut times: Vec<f64> = (0..rounds).map(round).collect();
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    fn at(&self, percent: usize) -> f64 {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }
}

/// Upload, plan, download, and a look at the event until it was passed.
fn by_hand(gpus: &Gpus, device: u32, plan: &GpuPlan, rounds: usize) -> Times {
    let opened = gpus.find(device).expect("it is there").open().expect("a context is made");
    let program = plan.place(&opened).expect("there is memory");
    let (context, sizes) = (opened.context(), plan.sizes());
    let mut blas = context.new_blas().expect("cuBLASLt is installed");
    let stream = context.new_stream().expect("a stream is made");
    let event = context.new_event(false).expect("an event is made");
    let alloc = |size: usize| context.alloc(size).expect("there is memory");
    let (input, output, scratch) = (alloc(ROW_SIZE), alloc(OUTPUT_SIZE), alloc(sizes.scratch.max(256)));
    let [staged, results] = [ROW_SIZE, OUTPUT_SIZE].map(|size| context.alloc_pinned(size).expect("there is memory"));
    // SAFETY: `ROW_SIZE` bytes were just taken, and no stream knows them.
    unsafe { staged.write_bytes(0, ROW_SIZE) };
    let times = Times::of(rounds, || {
        // SAFETY: the memory is pinned, of that size, and not touched before the event was passed.
        unsafe { context.copy_in(stream, staged.as_ptr(), input, ROW_SIZE) }.expect("it is enqueued");
        let (inputs, outputs, blas) = ([input], [output], Some(&mut *blas));
        let mut work = ProgramBatch {
            opened: &opened,
            stream,
            blas,
            rows: 1,
            inputs: &inputs,
            staged: &[],
            outputs: &outputs,
            table: 0,
            scratch,
        };
        program.enqueue(&mut work).expect("it is enqueued");
        // SAFETY: as above.
        unsafe { context.copy_out(stream, output, results.as_ptr(), OUTPUT_SIZE) }.expect("it is enqueued");
        context.record(event, stream).expect("it is enqueued");
        while !context.is_passed(event).expect("nothing fails") {
            std::hint::spin_loop();
        }
    });
    [input, output, scratch].into_iter().for_each(|pointer| context.free(pointer));
    // SAFETY: the last copy was waited for.
    [staged, results].into_iter().for_each(|pointer| unsafe { context.free_pinned(pointer) });
    // SAFETY: both were made here, and are no longer used.
    unsafe {
        context.end_event(event);
        context.end_stream(stream);
    }
    times
}

fn executed(instance: &mut dyn Instance, rounds: usize, pause: fn()) -> Times {
    let kept: Arc<dyn AnswerSink> = Arc::new(Dropped);
    let mut contents = AlignedBuffer::with_capacity(ROW_SIZE);
    contents.extend_from_slice(&[0; ROW_SIZE]);
    let tensor = Tensor { datatype: Datatype::Fp32, shape: [1, 64].into_iter().collect(), contents: contents.freeze() };
    Times::of(rounds, || {
        let mut responder = Responder::new(Arc::clone(&kept), Ticket { index: 0, generation: 0 }, Stamps::default());
        responder.set_batch(1, true);
        let request = Request { inputs: vec![tensor.clone()], rows: 1, responder, sequence: None, details: None };
        instance.run(Batch { requests: vec![request], rows: 1, clock: clock::now, ended: Vec::new() });
        while instance.poll_flight(clock::now).batches > 0 {
            pause();
        }
    })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Takes the answers, all of which must be outputs.
struct Dropped;

impl AnswerSink for Dropped {
    fn push(&self, _ticket: Ticket, answer: Answer) {
        answer.outputs.expect("a batch gives outputs");
    }

    fn wake(&self) {}
}
