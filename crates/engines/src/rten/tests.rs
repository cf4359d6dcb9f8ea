use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use backend::threads::enter;
use backend::trial::{TrialAnswers, retyped, spec, tensor};
use base::error::Code;
use base::tensor::{Datatype, Tensor};
use model::onnx_builder::{BOOL, FLOAT, INT8, INT16, INT32, INT64, Onnx, UINT8};
use model::{BatchInput, BatchInputKind};

/// A version's directory with one file in it, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn with(name: &str, file: &[u8]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("deuteron-rten-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join(name), file).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn load(spec: ModelSpec, file: &[u8]) -> Result<Box<dyn LoadedModel>, Error> {
    let directory = Directory::with("model.onnx", file);
    Rten::default().load(&Arc::new(spec), &directory.0)
}

fn refusal(spec: ModelSpec, file: &[u8]) -> String {
    load(spec, file).err().map(|error| error.text().to_owned()).unwrap_or_default()
}

/// Runs one batch on an instance of its own.
fn run(spec: ModelSpec, file: &[u8], requests: Vec<(Vec<Tensor>, u32)>) -> Vec<Result<Vec<Tensor>, Error>> {
    let count = requests.len() as u32;
    let answers = TrialAnswers::default();
    let model = load(spec, file).unwrap();
    let batch = answers.batch(requests);
    enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
    answers.outputs(count)
}

fn addsub_spec(datatype: Datatype) -> ModelSpec {
    let io = |name| (name, datatype, &[16_i64][..]);
    spec(8, &[io("INPUT0"), io("INPUT1")], &[io("OUTPUT0"), io("OUTPUT1")])
}

#[test]
fn a_file_that_was_opened_is_what_is_loaded_whatever_lies_at_its_path_by_now() {
    let directory = Directory::with("model.onnx", &Onnx::addsub(FLOAT));
    let path = directory.0.join("model.onnx");
    let file = fs::File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    let spec = Arc::new(addsub_spec(Datatype::Fp32));
    assert!(Rten::default().load(&spec, &directory.0).is_err(), "by its path it is another");
    assert!(Rten::default().load_opened(&spec, &directory.0, file.as_fd()).is_ok());
}

#[test]
fn a_file_that_keeps_tensors_in_another_is_found_by_its_path_which_is_where_that_lies() {
    let add = Onnx::default().node("Add", &["x", "b"], &["y"], &[]).external("b", &[2], "w.data");
    let directory = Directory::with("model.onnx", &add.input("x", FLOAT, &[2]).output("y", FLOAT, &[2]).into_bytes());
    fs::write(directory.0.join("w.data"), [1_f32, 2.0].map(f32::to_le_bytes).concat()).unwrap();
    let file = fs::File::open(directory.0.join("model.onnx")).unwrap();
    let io = |name| [(name, Datatype::Fp32, &[2_i64][..])];
    let spec = Arc::new(spec(0, &io("x"), &io("y")));
    let loaded = Rten::default().load(&spec, &directory.0);
    assert!(loaded.is_ok(), "{:?}", loaded.err());
    assert!(Rten::default().load_opened(&spec, &directory.0, file.as_fd()).is_err(), "it is not whole");
}

#[test]
fn sums_and_differences_come_back_row_by_row() {
    let row = |value: f32| [value; 16];
    let input = |values: &[f32]| {
        tensor(&[values.len() as i64, 16], &values.iter().flat_map(|value| row(*value)).collect::<Vec<_>>())
    };
    let requests = vec![(vec![input(&[1.0]), input(&[10.0])], 1), (vec![input(&[2.0, 3.0]), input(&[20.0, 30.0])], 2)];
    let got: Vec<_> =
        run(addsub_spec(Datatype::Fp32), &Onnx::addsub(FLOAT), requests).into_iter().map(Result::unwrap).collect();
    assert_eq!(got[0], [input(&[11.0]), input(&[-9.0])]);
    assert_eq!(got[1], [input(&[22.0, 33.0]), input(&[-18.0, -27.0])]);
}

#[test]
fn a_classifier_gives_each_row_its_own_probabilities() {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let file = Onnx::default()
        .constant("weights", FLOAT, &[2, 3], &floats(&[1.0, 0.0, -1.0, 0.0, 1.0, -1.0]))
        .constant("bias", FLOAT, &[3], &floats(&[0.0, 0.0, 0.5]))
        .node("MatMul", &["x", "weights"], &["product"], &[])
        .node("Add", &["product", "bias"], &["sum"], &[])
        .node("Relu", &["sum"], &["hidden"], &[])
        .node("Softmax", &["hidden"], &["y"], &[("axis", -1)])
        .input("x", FLOAT, &[-1, 2])
        .output("y", FLOAT, &[-1, 3]);
    let spec = spec(8, &[("x", Datatype::Fp32, &[2])], &[("y", Datatype::Fp32, &[3])]);
    let rows = [[2.0_f32, 0.0], [0.0, 3.0], [-1.0, -1.0]];
    let requests = vec![(vec![tensor(&[1, 2], &rows[0])], 1), (vec![tensor(&[2, 2], &rows[1..].concat())], 2)];
    let got = run(spec, &file.into_bytes(), requests);
    let got: Vec<u8> = got.into_iter().flat_map(|outputs| outputs.unwrap().remove(0).contents).collect();
    let got: Vec<f32> = got.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let want = rows.iter().flat_map(|[a, b]| {
        let scores = [*a, *b, 0.5 - a - b].map(|score| score.max(0.0).exp());
        scores.map(|score| score / scores.iter().sum::<f32>())
    });
    assert_eq!(got.len(), 9);
    for (got, want) in got.into_iter().zip(want) {
        assert!((got - want).abs() < 1e-6, "{got} {want}");
    }
}

#[test]
fn whole_numbers_of_64_bits_are_exact_within_32_and_fail_alone_beyond() {
    let input = |value: i64| tensor(&[1, 16], &[value; 16]);
    let requests =
        vec![(vec![input(1), input(5)], 1), (vec![input(1), input(1 << 40)], 1), (vec![input(-7), input(2)], 1)];
    let wide = vec![(vec![input(1 << 30), input(1 << 30)], 1)];
    let got = run(addsub_spec(Datatype::Int64), &Onnx::addsub(INT64), requests);
    assert_eq!(got[0].as_ref().unwrap(), &[input(6), input(-4)]);
    assert_eq!(got[2].as_ref().unwrap(), &[input(-5), input(-9)]);
    let error = got[1].as_ref().unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(
        error.text(),
        "input 'INPUT1' of model 'm': the embedded engine computes INT64 in 32 bits and cannot take the value \
         1099511627776; serve the model with ONNX Runtime for values beyond [-2147483648, 2147483647]"
    );
    // Values that would wrap in 32 bits are refused as well, once the graph has found them.
    let got = run(addsub_spec(Datatype::Int64), &Onnx::addsub(INT64), wide);
    let error = got[0].as_ref().unwrap_err();
    let want = "model 'm': operator Add has an INT64 result on these inputs beyond 32 bits, in which the embedded engine \
                computes; serve the model with ONNX Runtime (--backend-config=onnxruntime,library=PATH); the inputs were \
                'INPUT0' [1,16], 'INPUT1' [1,16]";
    assert_eq!((error.code(), error.text()), (Code::InvalidArgument, want));
}

#[test]
fn every_datatype_that_the_engine_holds_passes_through_it() {
    let check = |onnx: i64, input: Tensor| {
        let file = Onnx::default().node("Identity", &["x"], &["y"], &[]).input("x", onnx, &[-1, 2]).output(
            "y",
            onnx,
            &[-1, 2],
        );
        let spec = spec(8, &[("x", input.datatype, &[2])], &[("y", input.datatype, &[2])]);
        let file = file.into_bytes();
        let rows = input.shape[0] as u32;
        let got = run(spec, &file, vec![(vec![input.clone()], rows), (vec![input.clone()], rows)]);
        for output in got {
            assert_eq!(output.unwrap(), std::slice::from_ref(&input), "{:?}", input.datatype);
        }
    };
    check(FLOAT, tensor(&[1, 2], &[1.5_f32, -0.0]));
    check(INT32, tensor(&[1, 2], &[i32::MIN, i32::MAX]));
    check(INT64, tensor(&[2, 2], &[i64::from(i32::MIN), -1, 0, i64::from(i32::MAX)]));
    check(INT8, tensor(&[1, 2], &[i8::MIN, i8::MAX]));
    check(UINT8, tensor(&[1, 2], &[0_u8, 255]));
    check(BOOL, retyped(tensor(&[1, 2], &[0_u8, 1]), Datatype::Bool));
    // 1.5 and the least subnormal, in FP16.
    let contents = vec![0x00, 0x3e, 0x01, 0x00].into();
    check(10, Tensor { datatype: Datatype::Fp16, shape: smallvec::smallvec![1, 2], contents });
}

#[test]
fn truths_are_computed_with() {
    let file =
        Onnx::default().node("Not", &["x"], &["y"], &[]).input("x", BOOL, &[-1]).output("y", BOOL, &[-1]).into_bytes();
    let truths = |values: &[u8]| retyped(tensor(&[values.len() as i64], values), Datatype::Bool);
    let spec = spec(0, &[("x", Datatype::Bool, &[-1])], &[("y", Datatype::Bool, &[-1])]);
    let got = run(spec, &file, vec![(vec![truths(&[0, 1, 7])], 1)]);
    assert_eq!(got[0].as_ref().unwrap(), &[truths(&[1, 0, 0])]);
}

#[test]
fn indices_of_64_bits_are_widened_on_the_way_out() {
    let attributes = [("axis", 1), ("keepdims", 0)];
    let file = Onnx::default().node("ArgMax", &["x"], &["y"], &attributes).input("x", FLOAT, &[-1, 3]).output(
        "y",
        INT64,
        &[-1],
    );
    let mut spec = spec(8, &[("x", Datatype::Fp32, &[3])], &[("y", Datatype::Int64, &[1])]);
    spec.outputs[0].model_shape.truncate(1);
    let got = run(spec, &file.into_bytes(), vec![(vec![tensor(&[2, 3], &[0_f32, 9.0, 1.0, 5.0, 0.0, 0.0])], 2)]);
    assert_eq!(got[0].as_ref().unwrap(), &[tensor(&[2], &[1_i64, 0])]);
}

#[test]
fn a_scalar_is_a_tensor_of_one_for_clients() {
    let file = Onnx::default()
        .node("Add", &["x", "k"], &["y"], &[])
        .node("Identity", &["k"], &["z"], &[])
        .input("x", FLOAT, &[-1])
        .input("k", FLOAT, &[])
        .output("y", FLOAT, &[-1])
        .output("z", FLOAT, &[])
        .into_bytes();
    let fp32 = Datatype::Fp32;
    let spec = spec(0, &[("x", fp32, &[-1]), ("k", fp32, &[1])], &[("y", fp32, &[-1]), ("z", fp32, &[1])]);
    let got = run(spec, &file, vec![(vec![tensor(&[2], &[1_f32, 2.0]), tensor(&[1], &[5_f32])], 1)]);
    assert_eq!(got[0].as_ref().unwrap(), &[tensor(&[2], &[6_f32, 7.0]), tensor(&[1], &[5_f32])]);
}

#[test]
fn without_a_batch_axis_requests_run_one_by_one() {
    let file = Onnx::default()
        .node("Neg", &["x"], &["y"], &[])
        .input("x", FLOAT, &[-1])
        .output("y", FLOAT, &[-1])
        .into_bytes();
    let spec = spec(0, &[("x", Datatype::Fp32, &[-1])], &[("y", Datatype::Fp32, &[-1])]);
    let got = run(spec, &file, vec![(vec![tensor(&[1], &[1_f32])], 1), (vec![tensor(&[2], &[2_f32, 3.0])], 1)]);
    assert_eq!(got[0].as_ref().unwrap(), &[tensor(&[1], &[-1_f32])]);
    assert_eq!(got[1].as_ref().unwrap(), &[tensor(&[2], &[-2_f32, -3.0])]);
}

#[test]
fn an_output_that_loses_the_batch_axis_is_told_to_every_request() {
    let attributes = [("keepdims", 1)];
    let file = Onnx::default()
        .constant("axes", INT64, &[1], &0_i64.to_le_bytes())
        .node("ReduceSum", &["x", "axes"], &["y"], &attributes)
        .input("x", FLOAT, &[-1, 2])
        .output("y", FLOAT, &[-1, 2]);
    let spec = spec(8, &[("x", Datatype::Fp32, &[2])], &[("y", Datatype::Fp32, &[2])]);
    let input = tensor(&[1, 2], &[1_f32, 2.0]);
    let got = run(spec, &file.into_bytes(), vec![(vec![input.clone()], 1), (vec![input], 1)]);
    for output in got {
        let error = output.unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert_eq!(error.text(), "output 'y' of model 'm' must have shape [2,2] but came with [1,2]");
    }
}

#[test]
fn an_output_of_another_datatype_is_found_at_load() {
    let file =
        Onnx::default().node("Neg", &["x"], &["y"], &[]).input("x", FLOAT, &[-1, 2]).output("y", INT16, &[-1, 2]);
    let spec = spec(8, &[("x", Datatype::Fp32, &[2])], &[("y", Datatype::Int32, &[2])]);
    assert_eq!(
        refusal(spec, &file.into_bytes()),
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for output 'y', model provides TYPE_FP32"
    );
}

/// A table of three values; a request asks for one by index.
fn table() -> (ModelSpec, Vec<u8>) {
    let values: Vec<u8> = [10_f32, 20.0, 30.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let file = Onnx::default()
        .constant("table", FLOAT, &[3], &values)
        .node("Gather", &["table", "x"], &["y"], &[("axis", 0)])
        .input("x", INT64, &[-1, 1])
        .output("y", FLOAT, &[-1, 1]);
    (spec(8, &[("x", Datatype::Int64, &[1])], &[("y", Datatype::Fp32, &[1])]), file.into_bytes())
}

#[test]
fn a_request_that_the_engine_fails_on_fails_alone() {
    let (spec, file) = table();
    let requests = [0, 7, 2].map(|index: i64| (vec![tensor(&[1, 1], &[index])], 1)).to_vec();
    let model = load(spec, &file).unwrap();
    let answers = TrialAnswers::default();
    let batch = answers.batch(requests);
    enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
    let got = answers.take(3);
    assert_eq!(got[0].outputs.as_ref().unwrap(), &[tensor(&[1, 1], &[10_f32])]);
    assert_eq!(got[2].outputs.as_ref().unwrap(), &[tensor(&[1, 1], &[30_f32])]);
    let error = got[1].outputs.as_ref().unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    let (before, after) = ("model 'm': operator ", "; the inputs were 'x' [1,1]");
    assert!(error.text().starts_with(before) && error.text().ends_with(after), "{error}");
    assert!(got.iter().all(|answer| answer.is_first && answer.batch_rows == 1));
}

#[test]
fn a_panic_of_the_engine_costs_its_request_and_not_the_instance() {
    let file = Onnx::default()
        .node("Div", &["x", "y"], &["z"], &[])
        .input("x", INT32, &[-1, 1])
        .input("y", INT32, &[-1, 1])
        .output("z", INT32, &[-1, 1])
        .into_bytes();
    let int32 = Datatype::Int32;
    let spec = spec(8, &[("x", int32, &[1]), ("y", int32, &[1])], &[("z", int32, &[1])]);
    let entry = |x: i32, y: i32| (vec![tensor(&[1, 1], &[x]), tensor(&[1, 1], &[y])], 1);
    let model = load(spec, &file).unwrap();
    let (before, after) = (TrialAnswers::default(), TrialAnswers::default());
    let batches = [before.batch(vec![entry(6, 2), entry(i32::MIN, -1)]), after.batch(vec![entry(8, 2)])];
    enter(1, |threads| {
        let mut instance = model.new_instance(threads).unwrap();
        batches.into_iter().for_each(|batch| instance.run(batch));
    });
    let got = before.outputs(2);
    assert_eq!(got[0].as_ref().unwrap(), &[tensor(&[1, 1], &[3])]);
    assert_eq!(got[1].as_ref().unwrap_err().text(), "model 'm': the embedded engine panicked on this request");
    assert_eq!(after.outputs(1).remove(0).unwrap(), [tensor(&[1, 1], &[4])]);
}

#[test]
fn instances_on_two_threads_share_a_model() {
    let (spec, file) = table();
    let model = load(spec, &file).unwrap();
    std::thread::scope(|scope| {
        for index in [0_i64, 1, 2, 0] {
            let model = &model;
            scope.spawn(move || {
                enter(2, |threads| {
                    let answers = TrialAnswers::default();
                    let mut instance = model.new_instance(threads).unwrap();
                    for _ in 0..20 {
                        instance.run(answers.batch(vec![(vec![tensor(&[1, 1], &[index])], 1)]));
                        let want = tensor(&[1, 1], &[10.0 * (index + 1) as f32]);
                        assert_eq!(answers.outputs(1).remove(0).unwrap(), [want]);
                    }
                });
            });
        }
    });
}

#[test]
fn what_the_engine_lacks_is_named_with_the_way_out() {
    let file = Onnx::default().node("TreeEnsemble", &["x"], &["y"], &[]).input("x", FLOAT, &[-1, 2]).output(
        "y",
        FLOAT,
        &[-1, 2],
    );
    let file = file.into_bytes();
    let io = |datatype| spec(8, &[("x", datatype, &[2])], &[("y", Datatype::Fp32, &[2])]);
    let text = refusal(io(Datatype::Fp32), &file);
    assert!(text.contains("operator TreeEnsemble: the engine does not have this operator"), "{text}");
    assert!(
        text.ends_with("; serve the model with ONNX Runtime (--backend-config=onnxruntime,library=PATH)"),
        "{text}"
    );
    for datatype in Datatype::ALL {
        let text = refusal(io(datatype), &Onnx::addsub(FLOAT));
        let is_held = datatype::held_as(datatype).is_some();
        assert_eq!(text.contains("does not have (it has BOOL"), !is_held, "{text}");
    }
    assert_eq!(
        refusal(io(Datatype::Fp64), &file),
        "unable to load model 'm': input 'x' is FP64, which the embedded engine does not have (it has BOOL, UINT8, INT8, \
         INT32, INT64, FP16 and FP32); serve the model with ONNX Runtime (--backend-config=onnxruntime,library=PATH)"
    );
}

#[test]
fn a_configuration_that_does_not_suit_the_model_is_refused_in_tritons_words() {
    let fp32 = Datatype::Fp32;
    let good: [(&str, Datatype, &[i64]); 2] = [("INPUT0", fp32, &[16]), ("INPUT1", fp32, &[16])];
    let output: (&str, Datatype, &[i64]) = ("OUTPUT1", fp32, &[16]);
    let check = |spec, want: &str| assert_eq!(refusal(spec, &Onnx::addsub(FLOAT)), want);
    check(spec(8, &good, &[output]), "");
    check(spec(8, &good, &[("OUTPUT1", fp32, &[-1])]), "");
    check(spec(8, &good[..1], &[output]), "unable to load model 'm', configuration expects 1 inputs, model provides 2");
    check(
        spec(8, &[good[0], ("X", fp32, &[16])], &[output]),
        "unexpected inference input 'X', allowed inputs are: INPUT0, INPUT1",
    );
    check(
        spec(8, &[good[0], ("OUTPUT0", fp32, &[16])], &[output]),
        "unexpected inference input 'OUTPUT0', allowed inputs are: INPUT0, INPUT1",
    );
    check(
        spec(8, &good, &[("X", fp32, &[16])]),
        "unexpected inference output 'X', allowed outputs are: OUTPUT0, OUTPUT1",
    );
    check(
        spec(8, &[good[0], ("INPUT1", Datatype::Int64, &[16])], &[output]),
        "unable to load model 'm', configuration expects datatype TYPE_INT64 for input 'INPUT1', model provides TYPE_FP32",
    );
    check(
        spec(8, &[good[0], ("INPUT1", fp32, &[16, 1])], &[output]),
        "model 'm', tensor 'INPUT1': the model expects 2 dimensions (shape [-1,16]) but the model configuration specifies 3 \
         dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making \
         complete shape [-1,16,1])",
    );
    check(
        spec(0, &[good[0], good[1]], &[output]),
        "model 'm', tensor 'INPUT0': the model expects 2 dimensions (shape [-1,16]) but the model configuration specifies 1 \
         dimensions (shape [16])",
    );
    let fixed = Onnx::default().node("Neg", &["x"], &["y"], &[]).input("x", FLOAT, &[1, 2]).output("y", FLOAT, &[1, 2]);
    assert_eq!(
        refusal(spec(8, &[("x", fp32, &[2])], &[("y", fp32, &[2])]), &fixed.into_bytes()),
        "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and the first \
         dimension must be -1; but shape expected by the model is [1,2]"
    );
}

#[test]
fn a_file_that_is_missing_broken_or_elsewhere_is_told() {
    let check = |file_name: &str, file: &[u8], want: &str| {
        let directory = Directory::with("model.onnx", file);
        let mut spec = addsub_spec(Datatype::Fp32);
        spec.default_model_filename = file_name.to_owned();
        let error = Rten::default().load(&Arc::new(spec), &directory.0).err().unwrap();
        assert!(error.text().contains(want), "{error}");
    };
    let file = Onnx::addsub(FLOAT);
    check("other.onnx", &file, "unable to find '");
    check("../model.onnx", &file, "must lie in the version's directory");
    check("/etc/passwd", &file, "must lie in the version's directory");
    check("model.onnx", b"not a model", "unable to load model 'm': not an ONNX file that can be used: ");
    check("model.onnx", b"", "not an ONNX file that can be used: it has no graph");
    for size in 1..file.len() {
        let code = load(addsub_spec(Datatype::Fp32), &file[..size]).err().map(|error| error.code());
        assert_ne!(code, Some(Code::Internal), "cut to {size} bytes");
    }
}

#[test]
fn a_model_file_may_have_any_name() {
    let directory = Directory::with("weights", &Onnx::addsub(FLOAT));
    let mut spec = addsub_spec(Datatype::Fp32);
    spec.default_model_filename = "weights".to_owned();
    assert!(Rten::default().load(&Arc::new(spec), &directory.0).unwrap().may_run_inline());
}

/// Sums the elements of each request, which it finds by `ENDS`, the accumulated counts after a
/// zero; and doubles them all.
fn segment_sums() -> Vec<u8> {
    let int = |value: i64| value.to_le_bytes();
    Onnx::default()
        .constant("zero", FLOAT, &[1], &0_f32.to_le_bytes())
        .constant("axis", INT64, &[], &int(0))
        .constant("begin", INT64, &[1], &int(0))
        .constant("one", INT64, &[1], &int(1))
        .constant("last", INT64, &[1], &int(-1))
        .constant("end", INT64, &[1], &int(i32::MAX.into()))
        .node("CumSum", &["X", "axis"], &["sums"], &[])
        .node("Concat", &["zero", "sums"], &["before"], &[("axis", 0)])
        .node("Gather", &["before", "ENDS"], &["marks"], &[("axis", 0)])
        .node("Slice", &["marks", "one", "end"], &["upper"], &[])
        .node("Slice", &["marks", "begin", "last"], &["lower"], &[])
        .node("Sub", &["upper", "lower"], &["flat"], &[])
        .node("Unsqueeze", &["flat", "one"], &["SUM"], &[])
        .node("Add", &["X", "X"], &["TWICE"], &[])
        .input("X", FLOAT, &[-1])
        .input("ENDS", INT32, &[-1])
        .output("SUM", FLOAT, &[-1, 1])
        .output("TWICE", FLOAT, &[-1])
        .into_bytes()
}

fn segment_spec() -> ModelSpec {
    let fp32 = Datatype::Fp32;
    let mut model = spec(8, &[("X", fp32, &[-1])], &[("SUM", fp32, &[1]), ("TWICE", fp32, &[-1])]);
    model.inputs[0].is_ragged = true;
    model.outputs[1].scatter_source = Some(0);
    let kind = BatchInputKind::AccumulatedElementCountWithZero;
    model.batch_inputs = vec![BatchInput { name: "ENDS".to_owned(), datatype: Datatype::Int32, kind, source: 0 }];
    model
}

#[test]
fn requests_of_different_shapes_share_a_ragged_batch_and_each_gets_its_own() {
    let parts: [&[f32]; 4] = [&[1.0, 2.0, 4.0], &[8.0], &[], &[16.0, 32.0]];
    let check = |parts: &[&[f32]]| {
        let requests = parts.iter().map(|part| (vec![tensor(&[1, part.len() as i64], part)], 1)).collect();
        let got = run(segment_spec(), &segment_sums(), requests);
        for (part, got) in parts.iter().zip(got) {
            let twice: Vec<_> = part.iter().map(|value| value * 2.0).collect();
            let want = [
                tensor(&[1, 1], &[part.iter().fold(0.0, |sum, value| sum + value)]),
                tensor(&[1, part.len() as i64], &twice),
            ];
            assert_eq!(got.unwrap(), want, "{part:?} of {parts:?}");
        }
    };
    check(&parts);
    // Alone, its bytes go to the engine in place.
    parts.iter().for_each(|part| check(&[part]));
}

#[test]
fn an_output_that_does_not_fit_the_shapes_of_its_input_is_an_error() {
    let mut model = segment_spec();
    model.outputs[0].scatter_source = Some(0);
    model.outputs[0].model_shape = [-1, -1].into_iter().collect();
    let got = run(model, &segment_sums(), vec![(vec![tensor(&[1, 3], &[1_f32, 2.0, 4.0])], 1)]).remove(0).unwrap_err();
    assert_eq!(got.text(), "output 'SUM' of model 'm' came in 4 bytes, but the shapes of input 'X' make 12",);
}

#[test]
fn a_ragged_input_or_a_batch_input_that_the_model_has_not_is_refused_at_load() {
    let matrix = Onnx::default().node("Neg", &["X"], &["SUM"], &[]).input("X", FLOAT, &[-1, 1]);
    let matrix = matrix.input("ENDS", INT32, &[-1]).output("SUM", FLOAT, &[-1, 1]).into_bytes();
    let mut model = segment_spec();
    model.outputs.truncate(1);
    assert_eq!(
        refusal(model.clone(), &matrix),
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for ragged input 'X', model \
         provides [-1,1]"
    );
    model.batch_inputs[0].name = "N".to_owned();
    assert_eq!(refusal(model.clone(), &segment_sums()), "unexpected inference input 'N', allowed inputs are: ENDS, X");
    model.batch_inputs[0] =
        BatchInput { name: "ENDS".to_owned(), datatype: Datatype::Fp32, ..model.batch_inputs[0].clone() };
    assert_eq!(
        refusal(model, &segment_sums()),
        "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'ENDS', model provides TYPE_INT32"
    );
}

#[test]
fn an_optional_input_is_the_models_own_value_when_it_is_left_out() {
    let file = |initial: &[f32]| {
        let raw: Vec<u8> = initial.iter().flat_map(|value| value.to_le_bytes()).collect();
        let onnx = Onnx::default().node("Add", &["x", "b"], &["y"], &[]).constant("b", FLOAT, &[2], &raw);
        onnx.input("x", FLOAT, &[2]).input("b", FLOAT, &[2]).output("y", FLOAT, &[2]).into_bytes()
    };
    let fp32 = Datatype::Fp32;
    let mut model = spec(0, &[("x", fp32, &[2]), ("b", fp32, &[2])], &[("y", fp32, &[2])]);
    model.inputs[1].is_optional = true;
    let left_out = || Tensor { datatype: fp32, shape: [].into_iter().collect(), contents: Default::default() };
    let x = || tensor(&[2], &[1_f32, 2.0]);
    let requests =
        vec![(vec![x(), left_out()], 1), (vec![x(), tensor(&[2], &[100_f32, 200.0])], 1), (vec![x(), left_out()], 1)];
    let got = run(model.clone(), &file(&[10.0, 20.0]), requests);
    let want = [[11_f32, 22.0], [101.0, 202.0], [11.0, 22.0]];
    assert_eq!(got, want.map(|values| Ok(vec![tensor(&[2], &values)])));

    assert_eq!(
        refusal(model.clone(), &Onnx::addsub(FLOAT)),
        "unable to load model 'm': input 'b' has no initial value"
    );
    model.inputs[1].model_shape = [3].into_iter().collect();
    assert_eq!(
        refusal(model, &file(&[10.0, 20.0])),
        "unable to load model 'm': input 'b' has an initial value FP32 [2], which its configuration excludes"
    );
}

#[test]
fn a_model_sees_the_batch_input_of_every_kind() {
    // As Triton's own test: each row of the output is the whole batch input, except for the shapes
    // of items, which are a row each.
    let spread = |dims: &[i64]| {
        let onnx = Onnx::default()
            .constant("first", INT64, &[1], &0_i64.to_le_bytes())
            .constant("second", INT64, &[1], &1_i64.to_le_bytes())
            .node("Div", &["N", "N"], &["ones"], &[])
            .node("Unsqueeze", &["ones", "second"], &["column"], &[])
            .input("X", FLOAT, &[-1])
            .input("N", FLOAT, &[-1])
            .input("B", FLOAT, dims)
            .output("Y", FLOAT, &[-1, -1]);
        let onnx = match dims {
            [_] => {
                onnx.node("Unsqueeze", &["B", "first"], &["row"], &[]).node("MatMul", &["column", "row"], &["Y"], &[])
            }
            _ => onnx.node("Mul", &["column", "B"], &["Y"], &[]),
        };
        onnx.into_bytes()
    };
    let check = |kind, want: [&[f32]; 2]| {
        let fp32 = Datatype::Fp32;
        let mut model = spec(8, &[("X", fp32, &[-1, -1])], &[("Y", fp32, &[-1])]);
        model.inputs[0].is_ragged = true;
        let batch_input = |name: &str, kind| BatchInput { name: name.to_owned(), datatype: fp32, kind, source: 0 };
        model.batch_inputs = vec![batch_input("N", BatchInputKind::ElementCount), batch_input("B", kind)];
        let file = spread(if kind == BatchInputKind::ItemShape { &[-1, 2] } else { &[-1] });
        let requests = vec![(vec![tensor(&[1, 4, 1], &[0_f32; 4])], 1), (vec![tensor(&[1, 1, 2], &[0_f32; 2])], 1)];
        let got = run(model, &file, requests);
        let want = want.map(|values| Ok(vec![tensor(&[1, values.len() as i64], values)]));
        assert_eq!(got, want, "{kind:?}");
    };
    check(BatchInputKind::ElementCount, [&[4.0, 2.0]; 2]);
    check(BatchInputKind::AccumulatedElementCount, [&[4.0, 6.0]; 2]);
    check(BatchInputKind::AccumulatedElementCountWithZero, [&[0.0, 4.0, 6.0]; 2]);
    check(BatchInputKind::MaxElementCountAsShape, [&[0.0; 4]; 2]);
    check(BatchInputKind::ItemShape, [&[4.0, 1.0], &[1.0, 2.0]]);
    check(BatchInputKind::ItemShapeFlatten, [&[4.0, 1.0, 1.0, 2.0]; 2]);
}

/// `y` is `x` in the shape in `s`: the rows, then the sizes of a request.
fn reshaping() -> (ModelSpec, Vec<u8>) {
    let (fp32, int64) = (Datatype::Fp32, Datatype::Int64);
    let mut model = spec(8, &[("x", fp32, &[4]), ("s", int64, &[2])], &[("y", fp32, &[-1, -1]), ("t", int64, &[2])]);
    for tensor in [&mut model.inputs[1], &mut model.outputs[1]] {
        tensor.is_shape_tensor = true;
        (tensor.shape, tensor.model_shape) = ([2].into_iter().collect(), [3].into_iter().collect());
    }
    let file = Onnx::default()
        .node("Reshape", &["x", "s"], &["y"], &[])
        .node("Identity", &["s"], &["t"], &[])
        .input("x", FLOAT, &[-1, 4])
        .input("s", INT64, &[3])
        .output("y", FLOAT, &[-1, -1, -1])
        .output("t", INT64, &[3]);
    (model, file.into_bytes())
}

#[test]
fn the_rows_of_the_batch_stand_before_the_values_of_a_shape_tensor() {
    let (model, file) = reshaping();
    let request = |rows: i64, first: f32| {
        let values: Vec<f32> = (0..rows * 4).map(|index| first + index as f32).collect();
        (vec![tensor(&[rows, 4], &values), tensor(&[2], &[1_i64, 4])], rows as u32, values)
    };
    let requests = [request(1, 0.0), request(2, 10.0), request(1, 20.0)];
    let batch = requests.iter().map(|(inputs, rows, _)| (inputs.clone(), *rows)).collect();
    let got = run(model.clone(), &file, batch);
    for (got, (inputs, rows, values)) in got.into_iter().zip(&requests) {
        let y = tensor(&[i64::from(*rows), 1, 4], values);
        assert_eq!(got, Ok(vec![y, inputs[1].clone()]));
    }
    let other = vec![tensor(&[1, 4], &[0_f32; 4]), tensor(&[2], &[2_i64, 2])];
    let alone = run(model.clone(), &file, vec![(other.clone(), 1)]).remove(0).unwrap();
    assert_eq!(alone[0].shape.as_slice(), [1, 2, 2]);
    let (inputs, rows, _) = request(1, 0.0);
    let got = run(model, &file, vec![(inputs, rows), (other, 1)]);
    assert!(got[0].is_ok() && got[1].is_err(), "no scheduler lets these share a batch: {got:?}");
}
