use std::path::PathBuf;

use super::*;
use backend::gpu::fake::Fake;
use backend::trial::{TrialAnswers, no_clock, retyped, tensor};
use backend::{OutputNeed, OutputNeeds, run_to_end};
use base::error::Code;
use base::limits::GPU_RESTARTS_MAX;
use base::tensor::{Datatype, Tensor, strings};
use model::config::{CompletionRules, ConfigDraft, GpuSupport};
use model::onnx_builder::{FLOAT, INT32, INT64, Onnx, UINT8};

#[path = "../../../../tests/support/python.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod python;
#[path = "../../../../tests/support/skipped.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod skipped;

/// The settings of [`python`] and [`skipped`].
mod folder {
    pub fn target() -> std::path::PathBuf {
        // The test runs as `target/debug/deps/NAME`.
        let path = std::env::current_exe().unwrap();
        path.ancestors().nth(3).unwrap().to_owned()
    }
}

const FLOAT16: i64 = 10;
const DOUBLE: i64 = 11;
const STRING: i64 = 8;
const PLENTY: usize = 1 << 24;

/// The library of the wheel for the CPU; `None` if no environment can be made. A process opens one.
fn engine() -> Option<&'static Onnxruntime> {
    static ENGINE: OnceLock<Option<Onnxruntime>> = OnceLock::new();
    let open = || {
        let environment = python::Environment::shared()?;
        let folder = environment.packages().join("onnxruntime/capi");
        let mut paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let is_library = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("libonnxruntime.so");
        Some(Onnxruntime::open(&paths.find(is_library).expect("the wheel has it")).unwrap())
    };
    ENGINE.get_or_init(open).as_ref()
}

/// A model on a fake GPU, which the CPU replaces, and the same on the CPU.
struct Trial {
    fake: Arc<Fake>,
    on_gpu: Box<dyn LoadedModel>,
    on_cpu: Box<dyn LoadedModel>,
}

impl Trial {
    fn new(engine: &'static Onnxruntime, config: &str, file: &[u8]) -> Self {
        Self::with_memory(engine, config, file, PLENTY, true)
    }

    fn with_memory(engine: &'static Onnxruntime, config: &str, file: &[u8], memory: usize, later: bool) -> Self {
        let fake = Fake::new(1);
        let directory = folder::target().join(format!("tmp/onnxruntime-{}", std::process::id()));
        let directory = directory.join(format!("{:p}", Arc::as_ptr(&fake)));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("model.onnx"), file).unwrap();
        let spec = |devices: &[u32]| {
            let draft =
                ConfigDraft::new("m", Some(format!("backend: 'onnxruntime' {config}").as_bytes()), &[]).unwrap();
            let gpus = GpuSupport { devices: devices.to_vec(), takes_auto: true, ..GpuSupport::default() };
            let spec = draft.with_gpus(gpus).complete(None, &Default::default(), CompletionRules::default());
            Arc::new(spec.unwrap())
        };
        let gpus = fake.gpus(memory, memory);
        let backend = OnnxruntimeOnGpus { device: SessionDevice::Host, ..engine.on_gpus(&gpus, later) };
        // Opened, as the server does: the path may go.
        let load = |backend: &dyn Backend, spec: &Arc<ModelSpec>| {
            let file = std::fs::File::open(directory.join("model.onnx")).unwrap();
            backend.load_opened(spec, &directory, std::os::fd::AsFd::as_fd(&file)).unwrap()
        };
        let (on_gpu, on_cpu) = (load(&backend, &spec(&[0])), load(engine, &spec(&[])));
        std::fs::remove_dir_all(&directory).unwrap();
        fake.take_timeline();
        Self { fake, on_gpu, on_cpu }
    }

    fn instance(&self) -> Result<Box<dyn Instance>, Error> {
        threads::enter(1, |threads| self.on_gpu.new_instance(&threads.on(Some(0))))
    }

    /// Runs a batch on both, and returns the outcome, which must be the same.
    fn check(&self, instance: &mut dyn Instance, requests: Vec<(Vec<Tensor>, u32)>) {
        let mut reference = threads::enter(1, |threads| self.on_cpu.new_instance(threads)).unwrap();
        let count = requests.len() as u32;
        let (got, want) = (outcome(instance, requests.clone()), outcome(&mut *reference, requests));
        assert_eq!(got, want);
        assert!(got.len() as u32 == count && got.iter().all(Result::is_ok), "{got:?}");
    }
}

fn outcome(instance: &mut dyn Instance, requests: Vec<(Vec<Tensor>, u32)>) -> Vec<Result<Vec<Tensor>, Error>> {
    let (answers, count) = (TrialAnswers::default(), requests.len() as u32);
    run_to_end(instance, answers.batch(requests));
    answers.outputs(count)
}

fn code(outcome: &Result<Vec<Tensor>, Error>) -> Option<Code> {
    outcome.as_ref().err().map(Error::code)
}

/// `input` or `output`, with these dims.
fn io(side: &str, name: &str, datatype: Datatype, dims: &str) -> String {
    let name_in_config = if datatype == Datatype::Bytes { "STRING" } else { datatype.name() };
    format!("{side} {{ name: '{name}' data_type: TYPE_{name_in_config} dims: [ {dims} ] }} ")
}

fn addsub(datatype: Datatype) -> String {
    let ios = [("input", "INPUT0"), ("input", "INPUT1"), ("output", "OUTPUT0"), ("output", "OUTPUT1")];
    format!("max_batch_size: 8 {}", ios.map(|(side, name)| io(side, name, datatype, "16")).concat())
}

/// Rows of 16 values that count from one.
fn rows(datatype: Datatype, count: usize, first: u8) -> Tensor {
    let shape = [count as i64, 16];
    let values = (0..count * 16).map(|index| first.wrapping_add(index as u8));
    match datatype {
        Datatype::Fp32 => tensor(&shape, &values.map(f32::from).collect::<Vec<_>>()),
        Datatype::Fp64 => tensor(&shape, &values.map(f64::from).collect::<Vec<_>>()),
        Datatype::Int32 => tensor(&shape, &values.map(i32::from).collect::<Vec<_>>()),
        Datatype::Int64 => tensor(&shape, &values.map(i64::from).collect::<Vec<_>>()),
        Datatype::Uint8 => tensor(&shape, &values.collect::<Vec<_>>()),
        Datatype::Fp16 => {
            let bytes: Vec<u8> = values.flat_map(|value| half::f16::from(value).to_le_bytes()).collect();
            let tensor = tensor(&shape, &bytes);
            retyped(tensor, datatype)
        }
        other => panic!("no rows of {other:?}"),
    }
}

#[test]
fn a_program_gives_what_an_instance_on_the_cpu_does_for_batches_of_any_rows_and_datatypes() {
    let Some(engine) = engine() else { return };
    let datatypes = [
        (Datatype::Fp32, FLOAT),
        (Datatype::Fp64, DOUBLE),
        (Datatype::Int32, INT32),
        (Datatype::Int64, INT64),
        (Datatype::Uint8, UINT8),
        (Datatype::Fp16, FLOAT16),
    ];
    for (datatype, onnx) in datatypes {
        let is_kept = matches!(datatype, Datatype::Uint8 | Datatype::Fp16);
        // The library adds no such numbers on the CPU.
        let file = match is_kept {
            true => Onnx::default()
                .node("Identity", &["INPUT0"], &["OUTPUT1"], &[])
                .node("Identity", &["INPUT1"], &["OUTPUT0"], &[])
                .input("INPUT0", onnx, &[-1, 16])
                .input("INPUT1", onnx, &[-1, 16])
                .output("OUTPUT0", onnx, &[-1, 16])
                .output("OUTPUT1", onnx, &[-1, 16])
                .into_bytes(),
            false => Onnx::addsub(onnx),
        };
        let trial = Trial::new(engine, &addsub(datatype), &file);
        let mut instance = trial.instance().unwrap();
        let (allocations, calls) = (trial.fake.allocations(), trial.fake.foreign_calls());
        for count in 1..=8_usize {
            let requests =
                (0..count as u8).map(|index| (vec![rows(datatype, 1, index), rows(datatype, 1, 50 + index)], 1));
            trial.check(&mut *instance, requests.collect());
            let whole = vec![rows(datatype, count, 3), rows(datatype, count, 9)];
            trial.check(&mut *instance, vec![(whole, count as u32)]);
        }
        let timeline = trial.fake.take_timeline();
        assert!(timeline.contains(" out ") && !timeline.contains(" in "), "it is a program: {timeline}");
        assert_eq!(trial.fake.allocations(), allocations, "no batch takes memory");
        assert_eq!(trial.fake.foreign_calls(), calls + 16, "and none leaves the driver in another context");
        let figures = trial.on_gpu.gpu_figures().unwrap();
        assert_eq!((figures.batches_begun.get(), figures.batches_done.get()), (16, 16));
        drop(instance);
        assert_eq!(trial.fake.held(), 0);
    }
}

#[test]
fn a_model_without_a_batch_axis_and_a_scalar_are_programs_too() {
    let Some(engine) = engine() else { return };
    let graph = Onnx::default().node("ReduceSum", &["x"], &["y"], &[("keepdims", 0)]);
    let file = graph.input("x", FLOAT, &[16]).output("y", FLOAT, &[]).into_bytes();
    let config = io("input", "x", Datatype::Fp32, "16") + &io("output", "y", Datatype::Fp32, "1");
    let trial = Trial::new(engine, &config, &file);
    let row = |first: u8| (vec![tensor(&[16], &[f32::from(first); 16])], 1);
    trial.check(&mut *trial.instance().unwrap(), vec![row(1), row(2), row(3)]);
    assert!(trial.fake.take_timeline().contains(" out 4\n"));
}

#[test]
fn two_batches_are_under_way_and_the_later_may_end_first() {
    let Some(engine) = engine() else { return };
    let trial = Trial::new(engine, &addsub(Datatype::Fp32), &Onnx::addsub(FLOAT));
    let mut instance = trial.instance().unwrap();
    trial.fake.hold();
    let batches = [2_usize, 3].map(|count| {
        (TrialAnswers::default(), vec![rows(Datatype::Fp32, count, 7), rows(Datatype::Fp32, count, 1)], count as u32)
    });
    for (answers, inputs, count) in &batches {
        instance.run(answers.batch(vec![(inputs.clone(), *count)]));
    }
    let flight = instance.poll_flight(no_clock);
    assert_eq!((flight.batches, flight.has_room), (2, false));
    // The streams of the load's trial instance are 0 and 1.
    for (index, stream) in [(1, 3), (0, 2)] {
        trial.fake.finish(stream);
        instance.poll_flight(no_clock);
        let (answers, inputs, count) = &batches[index];
        let mut reference = threads::enter(1, |threads| trial.on_cpu.new_instance(threads)).unwrap();
        assert_eq!(answers.outputs(1), outcome(&mut *reference, vec![(inputs.clone(), *count)]));
    }
}

#[test]
fn the_best_classes_are_found_on_the_device_in_fp32_alone() {
    let Some(engine) = engine() else { return };
    for (datatype, onnx, is_there) in [(Datatype::Fp32, FLOAT, true), (Datatype::Int32, INT32, false)] {
        let trial = Trial::new(engine, &addsub(datatype), &Onnx::addsub(onnx));
        let mut instance = trial.instance().unwrap();
        let answers = TrialAnswers::default();
        let mut batch = answers.batch(vec![(vec![rows(datatype, 1, 1), rows(datatype, 1, 1)], 1)]);
        batch.requests[0].responder.output_needs =
            OutputNeeds([OutputNeed::Classes(1), OutputNeed::Nothing].into_iter().collect());
        run_to_end(&mut *instance, batch);
        let outputs = answers.outputs(1).remove(0).unwrap();
        let timeline = trial.fake.take_timeline();
        assert_eq!(timeline.contains("topk_warp_32"), is_there, "{datatype:?} {timeline}");
        match is_there {
            true => assert_eq!(&*outputs[0].contents, [&5_u32.to_le_bytes()[..], b"32:15"].concat()),
            false => assert_eq!(outputs[0].contents.len(), 64, "all of it, whose best are found later"),
        }
    }
}

/// `y = table[x]`, which fails if `x` is not an index.
fn gather() -> (String, Vec<u8>) {
    let table: Vec<u8> = [5.0_f32, 6.0, 7.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let graph = Onnx::default().constant("table", FLOAT, &[3], &table).node("Gather", &["table", "x"], &["y"], &[]);
    let file = graph.input("x", INT64, &[-1, 1]).output("y", FLOAT, &[-1, 1]).into_bytes();
    let config = io("input", "x", Datatype::Int64, "1") + &io("output", "y", Datatype::Fp32, "1");
    (format!("max_batch_size: 4 {config}"), file)
}

#[test]
fn a_request_that_the_model_refuses_fails_alone_and_its_batch_runs_apart() {
    let Some(engine) = engine() else { return };
    let (config, file) = gather();
    for later in [true, false] {
        let trial = Trial::with_memory(engine, &config, &file, PLENTY, later);
        let mut instance = trial.instance().unwrap();
        let row = |index: i64| (vec![tensor(&[1, 1], &[index])], 1);
        let got = outcome(&mut *instance, vec![row(2), row(9), row(0), row(1)]);
        assert_eq!(got.iter().map(code).collect::<Vec<_>>()[2..], [None, None]);
        let values: Vec<_> = [0, 2, 3].map(|index: usize| got[index].as_ref().unwrap()[0].contents.to_vec()).into();
        assert_eq!(values, [7.0_f32, 5.0, 6.0].map(|value| value.to_le_bytes().to_vec()));
        let text = got[1].as_ref().unwrap_err().text();
        assert!(
            text.starts_with("model 'm': ") && text.contains("onnx runtime error 2") && text.contains("idx=9"),
            "{text}"
        );
        assert!(!instance.poll_flight(no_clock).is_lost);
        assert_eq!(trial.fake.take_timeline().contains(" out "), later);
    }
}

#[test]
fn whatever_is_no_program_runs_as_on_the_cpu() {
    let Some(engine) = engine() else { return };
    let graph = Onnx::default().node("Identity", &["x"], &["y"], &[]).node("Shape", &["x"], &["size"], &[]);
    let graph = graph.input("x", STRING, &[-1, -1]).output("y", STRING, &[-1, -1]).output("size", INT64, &[2]);
    let config = io("input", "x", Datatype::Bytes, "-1, -1") + &io("output", "y", Datatype::Bytes, "-1, -1");
    let trial = Trial::new(engine, &(config + &io("output", "size", Datatype::Int64, "2")), &graph.into_bytes());
    let mut instance = trial.instance().unwrap();
    for shape in [[1, 2], [3, 1], [2, 2]] {
        let mut contents = Vec::new();
        (0..shape[0] * shape[1]).for_each(|index| strings::encode(&[0xff, index as u8, 0], &mut contents));
        let words = retyped(tensor(&shape, &contents), Datatype::Bytes);
        trial.check(&mut *instance, vec![(vec![words], 1)]);
    }
    // A dimension of any size besides the batch's, several requests at once.
    let graph = Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    let file = graph.input("x", FLOAT, &[-1, -1]).output("y", FLOAT, &[-1, -1]).into_bytes();
    let config = io("input", "x", Datatype::Fp32, "-1") + &io("output", "y", Datatype::Fp32, "-1");
    let trial = Trial::new(engine, &format!("max_batch_size: 8 {config}"), &file);
    let mut instance = trial.instance().unwrap();
    for width in [1, 5, 3] {
        let request = |index: usize| (vec![tensor(&[1, width as i64], &vec![index as f32; width])], 1);
        trial.check(&mut *instance, (0..4).map(request).collect());
    }
    assert_eq!(trial.fake.take_timeline(), "", "the library's own streams are not the executor's");
    let figures = trial.on_gpu.gpu_figures().unwrap();
    assert_eq!((figures.batches_begun.get(), figures.batches_done.get()), (3, 3));
}

#[test]
fn a_model_whose_slots_memory_is_short_for_runs_as_sessions_alone() {
    let Some(engine) = engine() else { return };
    let trial = Trial::with_memory(engine, &addsub(Datatype::Fp32), &Onnx::addsub(FLOAT), 1_000, true);
    let mut instance = trial.instance().unwrap();
    trial.check(&mut *instance, vec![(vec![rows(Datatype::Fp32, 8, 1), rows(Datatype::Fp32, 8, 2)], 8)]);
    assert_eq!(trial.fake.take_timeline(), "");
}

#[test]
fn an_instance_whose_device_broke_is_lost_and_the_next_waits_until_all_have_given_the_context_back() {
    let Some(engine) = engine() else { return };
    for later in [true, false] {
        let (config, file) = gather();
        let trial = Trial::with_memory(engine, &config, &file, PLENTY, later);
        let row = |index: i64| (vec![tensor(&[1, 1], &[index])], 1);
        let mut instances = [(); 2].map(|()| trial.instance().unwrap());
        trial.check(&mut *instances[0], vec![row(2)]);
        let contexts = trial.fake.contexts();
        trial.fake.break_contexts();
        let [mut first, mut second] = instances;
        // The library fails for a reason of its own here, and the driver is asked for the state of
        // the device.
        let lost = outcome(&mut *first, vec![row(9)]);
        assert_eq!(code(&lost[0]), Some(Code::Unavailable), "{lost:?}");
        let text = lost[0].as_ref().unwrap_err().text();
        assert!(text.contains("its instance on the GPU was lost and is recreated"), "{text}");
        assert!(first.poll_flight(no_clock).is_lost);
        assert!(second.poll_flight(no_clock).is_lost, "idle as it is");
        drop(first);
        let text = trial.instance().err().unwrap().text().to_owned();
        assert!(text.ends_with("the primary context of GPU 0 broke, and not all have given it back"), "{text}");
        drop(second);
        let mut next = trial.instance().unwrap();
        trial.check(&mut *next, vec![row(1)]);
        assert_eq!(trial.fake.contexts(), contexts + 1);
        let figures = trial.on_gpu.gpu_figures().unwrap();
        assert_eq!((figures.losses(), figures.restarts.get()), (2, 2), "the one that was refused was tried");
    }
}

#[test]
fn an_instance_that_breaks_again_and_again_is_not_made_anew_for_ever() {
    let Some(engine) = engine() else { return };
    let (config, file) = gather();
    for later in [true, false] {
        let trial = Trial::with_memory(engine, &config, &file, PLENTY, later);
        let bad = || vec![(vec![tensor(&[1, 1], &[9_i64])], 1)];
        for _ in 0..=GPU_RESTARTS_MAX {
            let mut instance = trial.instance().unwrap();
            trial.fake.break_contexts();
            assert_eq!(code(&outcome(&mut *instance, bad())[0]), Some(Code::Unavailable));
        }
        let error = trial.instance().err().unwrap();
        assert!(error.text().contains("were lost 5 times"), "{error}");
    }
}

#[test]
fn the_wheel_for_the_cpu_says_that_it_lacks_the_provider() {
    let Some(engine) = engine() else { return };
    let want = format!("{} was built without the CUDA provider (the wheel 'onnxruntime-gpu' has it)", engine.name());
    assert_eq!(engine.why_no_gpu(), Some(want.as_str()));
    assert_eq!(engine.why_no_tensorrt(), Some(want.replace("CUDA", "TensorRT").as_str()));
}
