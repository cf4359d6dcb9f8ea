//! The backend called directly, without a server around it: datatypes at the boundary, memory, and
//! a batch of which a part is wrong.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use deuteron::backend::threads::enter;
use deuteron::backend::{Answer, AnswerSink, Backend, Batch, LoadedModel, Request, Responder, Ticket};
use deuteron::engines::Onnxruntime;
use deuteron::error::{Code, Error};
use deuteron::model::ModelSpec;
use deuteron::model::config::{CompletionRules, ConfigDraft};
use deuteron::tensor::{AlignedBuffer, Datatype, Tensor, strings};
use deuteron::time::{Instant, Stamps};

use crate::support::folder::Folder;
use crate::support::onnx::builder::{BOOL, FLOAT, INT8, INT16, INT32, INT64, Onnx, UINT8};

const UINT16: i64 = 4;
const STRING: i64 = 8;
const FLOAT16: i64 = 10;
const DOUBLE: i64 = 11;
const UINT32: i64 = 12;
const UINT64: i64 = 13;
const BFLOAT16: i64 = 16;

/// One library is opened in a process.
fn onnxruntime() -> Option<&'static Onnxruntime> {
    static ONNXRUNTIME: OnceLock<Option<Onnxruntime>> = OnceLock::new();
    let open = || Some(Onnxruntime::open(&super::library(super::environment()?)).unwrap());
    ONNXRUNTIME.get_or_init(open).as_ref()
}

fn spec(config: &str) -> Arc<ModelSpec> {
    let text = format!("backend: 'onnxruntime' {config}");
    let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
    Arc::new(draft.complete(None, &Default::default(), CompletionRules::default()).unwrap())
}

fn load(engine: &Onnxruntime, config: &str, file: &[u8]) -> Result<Box<dyn LoadedModel>, Error> {
    let folder = Folder::new("engine");
    std::fs::write(folder.path().join("model.onnx"), file).unwrap();
    let spec = spec(config);
    let model = engine.load(&spec, folder.path());
    // Instances read the file again; the folder must stay until then.
    model.inspect(|_| std::mem::forget(folder))
}

struct Kept(Sender<(Ticket, Answer)>);

impl AnswerSink for Kept {
    fn push(&self, ticket: Ticket, answer: Answer) {
        self.0.send((ticket, answer)).unwrap();
    }

    fn wake(&self) {}
}

/// Runs one batch, on an instance of its own, and returns the answer to each request.
fn run(model: &dyn LoadedModel, requests: Vec<(Vec<Tensor>, u32)>) -> Vec<Result<Vec<Tensor>, Error>> {
    let (sender, receiver): (_, Receiver<(Ticket, Answer)>) = channel();
    let sink: Arc<dyn AnswerSink> = Arc::new(Kept(sender));
    let rows = requests.iter().map(|(_, rows)| rows).sum();
    let request = |(index, (inputs, rows))| {
        let ticket = Ticket { index, generation: 0 };
        let responder = Responder::new(Arc::clone(&sink), ticket, Stamps::default());
        Request { inputs, rows, responder, sequence: None, details: None }
    };
    let requests: Vec<_> = (0..).zip(requests).map(request).collect();
    let count = requests.len();
    let batch = Batch { requests, rows, clock: || Instant::ZERO, ended: Vec::new() };
    enter(1, |threads| model.new_instance(threads).unwrap().run(batch));
    let mut answers: Vec<_> = receiver.try_iter().collect();
    answers.sort_by_key(|(ticket, _)| ticket.index);
    assert_eq!(answers.len(), count, "each is answered once");
    answers.into_iter().map(|(_, answer)| answer.outputs).collect()
}

fn tensor(datatype: Datatype, shape: &[i64], contents: &[u8]) -> Tensor {
    let mut buffer = AlignedBuffer::with_capacity(contents.len());
    buffer.extend_from_slice(contents);
    Tensor { datatype, shape: shape.iter().copied().collect(), contents: buffer.freeze() }
}

fn floats(shape: &[i64], values: &[f32]) -> Tensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(Datatype::Fp32, shape, &bytes)
}

fn words(shape: &[i64], words: &[&[u8]]) -> Tensor {
    let mut contents = Vec::new();
    words.iter().for_each(|word| strings::encode(word, &mut contents));
    tensor(Datatype::Bytes, shape, &contents)
}

fn io(side: &str, name: &str, datatype: Datatype, dims: &str) -> String {
    let name_in_config = if datatype == Datatype::Bytes { "STRING" } else { datatype.name() };
    format!("{side} {{ name: '{name}' data_type: TYPE_{name_in_config} dims: {dims} }} ")
}

/// `y` is `x`, of `[N, 2]`.
fn identity(onnx: i64) -> Vec<u8> {
    let graph = Onnx::default().node("Identity", &["x"], &["y"], &[]);
    graph.input("x", onnx, &[-1, 2]).output("y", onnx, &[-1, 2]).into_bytes()
}

fn pair(datatype: Datatype) -> String {
    format!("max_batch_size: 8 {}{}", io("input", "x", datatype, "2"), io("output", "y", datatype, "2"))
}

const ONNX: [(Datatype, i64); 14] = [
    (Datatype::Bool, BOOL),
    (Datatype::Uint8, UINT8),
    (Datatype::Uint16, UINT16),
    (Datatype::Uint32, UINT32),
    (Datatype::Uint64, UINT64),
    (Datatype::Int8, INT8),
    (Datatype::Int16, INT16),
    (Datatype::Int32, INT32),
    (Datatype::Int64, INT64),
    (Datatype::Fp16, FLOAT16),
    (Datatype::Bf16, BFLOAT16),
    (Datatype::Fp32, FLOAT),
    (Datatype::Fp64, DOUBLE),
    (Datatype::Bytes, STRING),
];

#[test]
fn every_datatype_goes_through_alone_and_in_a_batch_byte_for_byte() {
    let Some(engine) = onnxruntime() else { return };
    for (datatype, onnx) in ONNX {
        let model = load(engine, &pair(datatype), &identity(onnx)).unwrap();
        let rows = |count: i64, first: u8| match datatype {
            // Any bytes, among them a zero and invalid UTF-8.
            Datatype::Bytes => {
                let all: [&[u8]; 4] = [b"a\0b", b"", b"\xff\xfe", &[first; 300]];
                let part: Vec<_> = all.iter().copied().cycle().take(2 * count as usize).collect();
                words(&[count, 2], &part)
            }
            _ => {
                let size = datatype.size().unwrap() * 2 * count as usize;
                let byte = |index: usize| (first as usize + index) as u8;
                let is_bool = datatype == Datatype::Bool;
                let bytes: Vec<u8> =
                    (0..size).map(|index| if is_bool { byte(index) & 1 } else { byte(index) }).collect();
                tensor(datatype, &[count, 2], &bytes)
            }
        };
        let inputs = [rows(1, 3), rows(3, 50), rows(2, 9)];
        let alone = run(&*model, vec![(vec![inputs[1].clone()], 3)]);
        assert_eq!(alone, [Ok(vec![inputs[1].clone()])], "{datatype:?}");
        let together = inputs.iter().map(|input| (vec![input.clone()], input.shape[0] as u32)).collect();
        let want: Vec<_> = inputs.iter().map(|input| Ok(vec![input.clone()])).collect();
        assert_eq!(run(&*model, together), want, "{datatype:?}");
    }
}

#[test]
fn bytes_that_lie_anywhere_are_read_and_truths_are_one_or_zero() {
    let Some(engine) = onnxruntime() else { return };
    let crooked = |input: &Tensor| {
        let bytes = Bytes::from([&[0], &input.contents[..]].concat());
        Tensor { contents: bytes.slice(1..), ..input.clone() }
    };
    let input = floats(&[1, 2], &[1.5, -2.5]);
    let model = load(engine, &pair(Datatype::Fp32), &identity(FLOAT)).unwrap();
    assert_eq!(run(&*model, vec![(vec![crooked(&input)], 1)]), [Ok(vec![input])]);
    let model = load(engine, &pair(Datatype::Bool), &identity(BOOL)).unwrap();
    let got = run(&*model, vec![(vec![tensor(Datatype::Bool, &[1, 2], &[0, 255])], 1)]);
    assert_eq!(got, [Ok(vec![tensor(Datatype::Bool, &[1, 2], &[0, 1])])]);
}

#[test]
fn the_requests_of_a_batch_share_the_memory_of_its_outputs_which_outlives_the_model() {
    let Some(engine) = onnxruntime() else { return };
    let model = load(engine, &pair(Datatype::Fp32), &identity(FLOAT)).unwrap();
    let requests = vec![(vec![floats(&[1, 2], &[1.0, 2.0])], 1), (vec![floats(&[2, 2], &[3.0, 4.0, 5.0, 6.0])], 2)];
    let got: Vec<_> = run(&*model, requests).into_iter().map(|outputs| outputs.unwrap().remove(0)).collect();
    drop(model);
    assert_eq!(got[1].contents.as_ptr().addr() - got[0].contents.as_ptr().addr(), 8);
    assert_eq!(got, [floats(&[1, 2], &[1.0, 2.0]), floats(&[2, 2], &[3.0, 4.0, 5.0, 6.0])]);
}

#[test]
fn outputs_that_are_inputs_or_constants_stay_when_those_are_gone() {
    let Some(engine) = onnxruntime() else { return };
    let constant: Vec<u8> = [7.0_f32, 8.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let file = Onnx::default()
        .constant("c", FLOAT, &[2], &constant)
        .node("Identity", &["x"], &["y"], &[])
        .input("x", FLOAT, &[2])
        .output("y", FLOAT, &[2])
        .output("c", FLOAT, &[2])
        .output("x", FLOAT, &[2]);
    let fp32 = Datatype::Fp32;
    let config = io("input", "x", fp32, "2") + &["y", "c", "x"].map(|name| io("output", name, fp32, "2")).concat();
    let model = load(engine, &config, &file.into_bytes()).unwrap();
    let input = floats(&[2], &[1.0, 2.0]);
    let address = input.contents.as_ptr();
    let got = run(&*model, vec![(vec![input], 1)]).remove(0).unwrap();
    drop(model);
    assert!(got.iter().all(|output| output.contents.as_ptr() != address));
    assert_eq!(got, [floats(&[2], &[1.0, 2.0]), floats(&[2], &[7.0, 8.0]), floats(&[2], &[1.0, 2.0])]);
}

#[test]
fn a_request_that_fails_fails_alone_in_the_librarys_words() {
    let Some(engine) = onnxruntime() else { return };
    let table: Vec<u8> = [10.0_f32, 20.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let file = Onnx::default()
        .constant("table", FLOAT, &[2], &table)
        .node("Gather", &["table", "x"], &["y"], &[])
        .input("x", INT64, &[-1, 1])
        .output("y", FLOAT, &[-1, 1]);
    let config = format!(
        "max_batch_size: 8 {}{}",
        io("input", "x", Datatype::Int64, "1"),
        io("output", "y", Datatype::Fp32, "1")
    );
    let model = load(engine, &config, &file.into_bytes()).unwrap();
    let index = |index: i64| (vec![tensor(Datatype::Int64, &[1, 1], &index.to_le_bytes())], 1);
    let got = run(&*model, vec![index(0), index(5), index(1)]);
    assert_eq!(got[0], Ok(vec![floats(&[1, 1], &[10.0])]));
    assert_eq!(got[2], Ok(vec![floats(&[1, 1], &[20.0])]));
    let error = got[1].as_ref().unwrap_err();
    assert!(error.text().starts_with("model 'm': onnx runtime error 2: "), "{error}");
    assert!(error.text().contains("idx=5"), "{error}");
}

#[test]
fn a_model_that_gives_other_rows_than_it_got_fails_its_batch() {
    let Some(engine) = onnxruntime() else { return };
    let shape: Vec<u8> = [1_i64, -1].iter().flat_map(|value| value.to_le_bytes()).collect();
    let file = Onnx::default()
        .constant("shape", INT64, &[2], &shape)
        .node("Reshape", &["x", "shape"], &["y"], &[])
        .input("x", FLOAT, &[-1, 2])
        .output("y", FLOAT, &[-1, -1]);
    let fp32 = Datatype::Fp32;
    let config = format!("max_batch_size: 8 {}{}", io("input", "x", fp32, "2"), io("output", "y", fp32, "-1"));
    let model = load(engine, &config, &file.into_bytes()).unwrap();
    let rows = |value: f32| (vec![floats(&[1, 2], &[value, value])], 1);
    assert_eq!(run(&*model, vec![rows(1.0)]), [Ok(vec![floats(&[1, 2], &[1.0, 1.0])])]);
    for got in run(&*model, vec![rows(1.0), rows(2.0)]) {
        let error = got.unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert_eq!(error.text(), "output 'y' of model 'm' must have shape [2,-1] but came with [1,4]");
    }
}

#[test]
fn a_scalar_is_one_element_and_no_rows_are_no_bytes() {
    let Some(engine) = onnxruntime() else { return };
    let fp32 = Datatype::Fp32;
    let scalar = Onnx::default().node("Neg", &["x"], &["y"], &[]).input("x", FLOAT, &[]).output("y", FLOAT, &[]);
    let config = io("input", "x", fp32, "1") + &io("output", "y", fp32, "1");
    let model = load(engine, &config, &scalar.into_bytes()).unwrap();
    assert_eq!(run(&*model, vec![(vec![floats(&[1], &[4.0])], 1)]), [Ok(vec![floats(&[1], &[-4.0])])]);
    let open = Onnx::default().node("Neg", &["x"], &["y"], &[]).input("x", FLOAT, &[-1]).output("y", FLOAT, &[-1]);
    let config = io("input", "x", fp32, "-1") + &io("output", "y", fp32, "-1");
    let model = load(engine, &config, &open.into_bytes()).unwrap();
    let empty = Tensor { contents: Bytes::new(), ..floats(&[0], &[]) };
    assert_eq!(run(&*model, vec![(vec![empty.clone()], 1)]), [Ok(vec![empty])]);
}

#[test]
fn instances_on_two_threads_share_a_model() {
    let Some(engine) = onnxruntime() else { return };
    let model = load(engine, &pair(Datatype::Fp32), &identity(FLOAT)).unwrap();
    std::thread::scope(|scope| {
        for value in [1.0_f32, 2.0, 3.0] {
            let model = &*model;
            scope.spawn(move || {
                for _ in 0..20 {
                    let input = floats(&[1, 2], &[value, -value]);
                    assert_eq!(run(model, vec![(vec![input.clone()], 1)]), [Ok(vec![input])]);
                }
            });
        }
    });
}

#[test]
fn what_does_not_load_says_why() {
    let Some(engine) = onnxruntime() else { return };
    let refusal = |config: &str, file: &[u8]| load(engine, config, file).err().map(|error| error.text().to_owned());
    let check = |config: &str, file: &[u8], want: &str| {
        let text = refusal(config, file).unwrap_or_default();
        assert!(text.contains(want), "{want:?} is not in {text}");
    };
    let fp32 = Datatype::Fp32;
    check(&pair(fp32), b"not a model", "unable to load model 'm': onnx runtime error 7: ");
    let nonsense = Onnx::default().node("Nonsense", &["x"], &["y"], &[]);
    let nonsense = nonsense.input("x", FLOAT, &[-1, 2]).output("y", FLOAT, &[-1, 2]).into_bytes();
    check(&pair(fp32), &nonsense, "Nonsense");
    check(
        &pair(Datatype::Fp16),
        &identity(FLOAT),
        "configuration expects datatype TYPE_FP16 for input 'x', model provides TYPE_FP32",
    );
    let other = pair(fp32).replace("'x'", "'z'");
    check(&other, &identity(FLOAT), "unexpected inference input 'z', allowed inputs are: x");
    let other = pair(fp32).replace("'y'", "'z'");
    check(&other, &identity(FLOAT), "unexpected inference output 'z', allowed outputs are: y");
    check(&pair(fp32), &Onnx::addsub(FLOAT), "configuration expects 1 inputs, model provides 2");
    let missing = engine.load(&spec(&pair(fp32)), Path::new("/nowhere")).err().unwrap();
    assert_eq!(missing.text(), "unable to find 'model.onnx' for model 'm'");
    for size in (0..identity(FLOAT).len()).step_by(3) {
        assert_ne!(refusal(&pair(fp32), &identity(FLOAT)[..size]), None, "cut to {size} bytes");
    }
}
