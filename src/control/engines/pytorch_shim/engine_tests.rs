//! The engine on the stand-in for torch (`tests/pytorch/stand_in`), whose modules are a few lines of text. Torch itself is
//! tried by `.ci/run frameworks`.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::testing::stand_in_shim;
use crate::backend::threads::enter;
use crate::backend::trial::{self, TrialAnswers, TrialTensor, tensor};
use crate::backend::{Backend, LoadedModel};
use crate::engines::pytorch::Pytorch;
use crate::error::Error;
use crate::model::ModelSpec;
use crate::tensor::{Datatype, Tensor};

const FP32: Datatype = Datatype::Fp32;

fn engine() -> &'static Pytorch {
    static ENGINE: OnceLock<Pytorch> = OnceLock::new();
    ENGINE.get_or_init(|| Pytorch::open(stand_in_shim(), |_| {}).unwrap())
}

/// Loads a module of these lines.
fn load(spec: ModelSpec, lines: &str) -> Result<Box<dyn LoadedModel>, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("deuteron-pytorch-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let lines: Vec<_> = lines.lines().map(str::trim).collect();
    fs::write(folder.join("model.pt"), lines.join("\n")).unwrap();
    let spec = Arc::new(ModelSpec { default_model_filename: "model.pt".to_owned(), ..spec });
    let file = fs::File::open(folder.join("model.pt")).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    // Opened, as the server has it: the path may lead elsewhere by the time of a second instance.
    engine().load_opened(&spec, &folder, file.as_fd())
}

/// The answers of an instance to each batch.
fn run(model: &dyn LoadedModel, batches: &[&[(Vec<Tensor>, u32)]]) -> Vec<Vec<Result<Vec<Tensor>, String>>> {
    enter(3, |threads| {
        let mut instance = model.new_instance(threads).unwrap();
        let answer = |batch: &&[(Vec<Tensor>, u32)]| {
            let answers = TrialAnswers::default();
            instance.run(answers.batch(batch.to_vec()));
            let told = |outcome: Result<Vec<Tensor>, Error>| outcome.map_err(|error| error.text().to_owned());
            answers.outputs(batch.len() as u32).into_iter().map(told).collect()
        };
        batches.iter().map(answer).collect()
    })
}

fn row(numbers: &[f32]) -> (Vec<Tensor>, u32) {
    (vec![tensor(&[1, numbers.len() as i64], numbers)], 1)
}

/// A model `x` to `y`, of four numbers in a row.
fn rows_spec() -> ModelSpec {
    trial::spec(8, &[("x", FP32, &[4])], &[("y__0", FP32, &[4])])
}

#[test]
fn requests_are_gathered_into_one_run_and_its_rows_are_cut_apart() {
    let model = load(rows_spec(), "stand-in\nargument x Tensor\ndouble x").unwrap();
    let two = (vec![tensor(&[2, 4], &[5_f32, 6., 7., 8., 9., 10., 11., 12.])], 2);
    let got = run(&*model, &[&[row(&[1., 2., 3., 4.]), two], &[row(&[0.5; 4])]]);
    let doubled = |shape: &[i64], numbers: &[f32]| Ok(vec![tensor(shape, numbers)]);
    let second = [10_f32, 12., 14., 16., 18., 20., 22., 24.];
    assert_eq!(got[0], [doubled(&[1, 4], &[2., 4., 6., 8.]), doubled(&[2, 4], &second)]);
    assert_eq!(got[1], [doubled(&[1, 4], &[1.; 4])]);
    assert_eq!((engine().name(), model.may_run_inline()), ("PyTorch 9.8.7", false));
}

#[test]
fn what_still_refers_to_an_input_after_a_run_has_a_copy_of_it() {
    // The module gives its input back, keeps it until the next run, and writes into it.
    let outputs: [TrialTensor<'_>; 2] = [("same__0", FP32, &[2]), ("kept__1", FP32, &[2])];
    let spec = trial::spec(0, &[("x", FP32, &[2])], &outputs);
    let model = load(spec, "stand-in\nargument x Tensor\nsame x\nkept x\nkeep x").unwrap();
    let one = |numbers: [f32; 2]| (vec![tensor(&[2], &numbers)], 1);
    let batches: [&[_]; 3] = [&[one([1., 2.])], &[one([3., 4.])], &[one([5., 6.])]];
    // The inputs are gone by the time when the answers are read.
    let got = run(&*model, &batches);
    let both = |same: [f32; 2], kept: [f32; 2]| vec![Ok(vec![tensor(&[2], &same), tensor(&[2], &kept)])];
    assert_eq!(got, [both([1., 2.], [1., 2.]), both([3., 4.], [1., 2.]), both([5., 6.], [3., 4.])]);

    let spec = trial::spec(0, &[("x", FP32, &[2])], &[("y__0", FP32, &[2])]);
    let model = load(spec, "stand-in\nargument x Tensor\nadd_in_place x").unwrap();
    let input = tensor(&[2], &[1_f32, 2.]);
    let got = run(&*model, &[&[(vec![input.clone()], 1)], &[(vec![input.clone()], 1)]]);
    assert_eq!(got, [[Ok(vec![tensor(&[2], &[2_f32, 3.])])], [Ok(vec![tensor(&[2], &[2_f32, 3.])])]]);
    assert_eq!(input, tensor(&[2], &[1_f32, 2.]), "a request's own bytes are nobody's to change");
}

#[test]
fn an_output_that_the_module_changes_later_was_copied_and_each_instance_has_its_own_module() {
    let spec = |sharing: &str| {
        let mut spec = trial::spec(0, &[("x", FP32, &[1])], &[("n__0", Datatype::Int64, &[1])]);
        spec.parameters.insert("ENABLE_WEIGHT_SHARING".to_owned(), sharing.to_owned());
        spec
    };
    let lines = "stand-in\nargument x Tensor\ncount";
    let one = || (vec![tensor(&[1], &[0_f32])], 1);
    let count = |number: i64| vec![Ok(vec![tensor(&[1], &[number])])];
    let own = load(spec("false"), lines).unwrap();
    assert_eq!(run(&*own, &[&[one()], &[one()]]), [count(1), count(2)]);
    assert_eq!(run(&*own, &[&[one()], &[one()]]), [count(1), count(2)], "a second instance");
    let shared = load(spec("true"), lines).unwrap();
    assert_eq!(run(&*shared, &[&[one()], &[one()]]), [count(1), count(2)]);
    assert_eq!(run(&*shared, &[&[one()]]), [count(3)], "the same module");
}

#[test]
fn arguments_are_bound_by_name_and_a_dictionary_by_its_keys() {
    let inputs: [TrialTensor<'_>; 2] = [("b", FP32, &[1]), ("a", FP32, &[1])];
    let outputs: [TrialTensor<'_>; 2] = [("second__1", FP32, &[1]), ("first__0", FP32, &[1])];
    let request = || vec![(vec![tensor(&[1], &[2_f32]), tensor(&[1], &[1_f32])], 1)];
    let want = [[Ok(vec![tensor(&[1], &[4_f32]), tensor(&[1], &[1_f32])])]];
    let lines = "stand-in\nargument a Tensor\nargument b Tensor\nsame a\ndouble b";
    let model = load(trial::spec(0, &inputs, &outputs), lines).unwrap();
    assert_eq!(run(&*model, &[&request()]), want);
    let outputs: [TrialTensor<'_>; 2] = [("b__1", FP32, &[1]), ("a__0", FP32, &[1])];
    let lines = "stand-in\nargument d Dict[str,Tensor]\nentry d a\nentry d b";
    let model = load(trial::spec(0, &inputs, &outputs), lines).unwrap();
    assert_eq!(run(&*model, &[&request()]), [[Ok(vec![tensor(&[1], &[2_f32]), tensor(&[1], &[1_f32])])]]);
}

#[test]
fn strings_are_lists_in_both_directions() {
    let strings = |texts: &[&str]| {
        let contents: Vec<u8> =
            texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()).collect();
        Tensor { datatype: Datatype::Bytes, shape: vec![texts.len() as i64].into(), contents: contents.into() }
    };
    let io: [TrialTensor<'_>; 1] = [("words", Datatype::Bytes, &[])];
    let spec = trial::spec(8, &io, &io);
    let model = load(spec, "stand-in\nargument words List[str]\nopen\nupper words").unwrap();
    let got = run(&*model, &[&[(vec![strings(&["a", ""])], 2), (vec![strings(&["bé"])], 1)]]);
    assert_eq!(got, [[Ok(vec![strings(&["A", ""])]), Ok(vec![strings(&["Bé"])])]]);
}

#[test]
fn what_a_run_returns_is_compared_with_the_configuration() {
    let fails = |lines: &str, output: TrialTensor<'_>, want: &str| {
        let spec = trial::spec(8, &[("x", FP32, &[1])], &[output]);
        let model = load(spec, &format!("stand-in\nargument x Tensor\nopen\n{lines}")).unwrap();
        let request = (vec![tensor(&[2, 1], &[1_f32, 2.])], 2);
        assert_eq!(run(&*model, &[&[request]]), [[Err(want.to_owned())]], "{lines}");
    };
    let output = ("y__0", FP32, &[1][..]);
    let want = "model 'm': configuration expects datatype TYPE_FP16 for output 'y__0', model provides TYPE_FP32";
    fails("double x", ("y__0", Datatype::Fp16, &[1]), want);
    fails("first_row x", output, "output 'y__0' of model 'm' must have shape [2,1] but came with [1,1]");
    fails("scalar", ("y__0", Datatype::Int64, &[1]), "output 'y__0' is a scalar which is not supported.");
    let want = "The output y__1 in the model configuration refers to an output index which doesn't exist. This model has 1 \
                outputs";
    fails("double x", ("y__1", FP32, &[1]), want);
    let execute = |why: &str| format!("PyTorch execute failure: {why}");
    let want = "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a \
                List / Dictionary of Tensors or a Scalar";
    fails("number", output, &execute(want));
    fails("numbers", output, &execute("output must be of type Tensor or List[str], received List[int]"));
    let want = "output at index 1 must be of type Tensor or List[str], received List[int]";
    fails("double x\nnumbers", output, &execute(want));
    fails("fail_strangely", output, &execute("torch threw what is no exception of C++"));
}

#[test]
fn a_request_that_fails_fails_alone_and_its_text_tells_no_places() {
    let model = load(rows_spec(), "stand-in\nargument x Tensor\nopen\nfail_if_negative x").unwrap();
    let (good, bad) = (|| row(&[1., 0., 0., 0.]), || row(&[-1., 0., 0., 0.]));
    // The stand-in reads the first number of a batch.
    let got = run(&*model, &[&[bad(), good()]]);
    let text = "PyTorch execute failure: RuntimeError: negative";
    assert_eq!(got, [[Err(text.to_owned()), Ok(good().0)]]);
}

#[test]
fn runs_are_set_as_the_parameters_say() {
    let state = |parameters: &[(&str, &str)]| {
        let mut spec = trial::spec(0, &[("x", FP32, &[1])], &[("state__0", Datatype::Int64, &[6])]);
        spec.parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let model = load(spec, "stand-in\nargument x Tensor\nstate").unwrap();
        let got = run(&*model, &[&[(vec![tensor(&[1], &[0_f32])], 1)]]).remove(0).remove(0).unwrap().remove(0);
        bytemuck::cast_slice::<u8, i64>(&got.contents).to_vec()
    };
    // Threads, optimised, inference mode, executor, profiling, fuser. The last three stay as they are unless given.
    assert_eq!(state(&[])[..3], [3, 1, 1]);
    let off = ["ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER"].map(|key| (key, "false"));
    assert_eq!(state(&off)[3..], [0, 0, 0]);
    assert_eq!(state(&off.map(|(key, _)| (key, "true")))[3..], [1, 1, 1]);
    let parameters =
        [("DISABLE_OPTIMIZED_EXECUTION", "true"), ("INFERENCE_MODE", "false"), ("INTRA_OP_THREAD_COUNT", "2")];
    assert_eq!(state(&parameters)[..3], [2, 0, 0]);
    let refused = load(
        ModelSpec { parameters: [("INFERENCE_MODE".to_owned(), "on".to_owned())].into(), ..rows_spec() },
        "stand-in\nargument x Tensor\nsame x",
    );
    assert!(refused.err().unwrap().text().contains("expected true or false"));
}

#[test]
fn a_file_that_is_none_and_a_shim_that_is_none_are_refused_with_the_reason() {
    let refused = |lines: &str| load(rows_spec(), lines).err().unwrap().text().to_owned();
    let want = "failed to load model 'm': PytorchStreamReader failed reading zip archive: not a ZIP archive";
    assert_eq!(refused("no TorchScript at all"), want);
    assert_eq!(refused(""), want);
    let want = "unable to load model 'm', configuration expects 1 inputs, model provides 2";
    assert_eq!(refused("stand-in\nargument x Tensor\nargument z Tensor\nsame x"), want);
    let missing = engine().load(&Arc::new(rows_spec()), Path::new("/nowhere")).err().unwrap();
    assert_eq!(missing.text(), "unable to find 'model.onnx' for model 'm'");
    let open = |path: &str| Pytorch::open(Path::new(path), |_| {}).err().unwrap();
    assert!(open("/nowhere/shim.so").starts_with("it cannot be loaded: "));
    assert!(open("/proc/self/exe").starts_with("it "), "a program is no shim");
}
