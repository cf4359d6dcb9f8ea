//! Writes the model repository of the tests, in two flavours that differ in the backend alone: one for Deuteron
//! (built-in `identity`, ONNX), one for a `tritonserver` that has only the Python backend.

use std::{fmt::Write as _, fs, path::Path};

use super::{folder::Folder, onnx};

/// Adds up the inputs of a sequence, on two instances.
pub const SUMS: &str = "backend: 'sequence' max_batch_size: 4 instance_group { count: 2 }
    input { name: 'INPUT' data_type: TYPE_INT32 dims: 1 } output { name: 'OUTPUT' data_type: TYPE_INT32 dims: 1 }
    sequence_batching { max_sequence_idle_microseconds: 30000000 control_input [
    { name: 'START' control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } },
    { name: 'READY' control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } } ] }";
/// Answers each element of a request by itself, each after its delay (decoupled).
pub const REPEAT: &str = "backend: 'repeat' model_transaction_policy { decoupled: true }
    input [ { name: 'IN' data_type: TYPE_INT32 dims: -1 }, { name: 'DELAY' data_type: TYPE_UINT32 dims: -1 },
    { name: 'WAIT' data_type: TYPE_UINT32 dims: 1 } ]
    output [ { name: 'OUT' data_type: TYPE_INT32 dims: 1 }, { name: 'IDX' data_type: TYPE_UINT32 dims: 1 } ]";
/// Answers a number as many times as it says (decoupled).
pub const SQUARE: &str = "backend: 'square' model_transaction_policy { decoupled: true }
    input { name: 'IN' data_type: TYPE_INT32 dims: 1 } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";

/// The server of the repository.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Flavour {
    /// `backend: "identity"`, and ONNX files.
    Deuteron,
    /// `backend: "python"` with a `model.py`.
    Triton,
}

/// A model's computation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    /// `OUTPUT0 = INPUT0 + INPUT1`, `OUTPUT1 = INPUT0 - INPUT1`.
    AddSub,
    /// `OUTPUTn = INPUTn`.
    Identity,
}

/// One model: a row of the table below.
#[derive(Clone, Copy, Debug)]
struct Model {
    name: &'static str,
    kind: Kind,
    /// `max_batch_size`.
    rows_max: u32,
    /// The datatype in `config.pbtxt`, and the dims, of each input and of the output of the same number.
    tensors: &'static [(&'static str, &'static str)],
    /// One label per line, for `OUTPUT0`.
    labels: Option<&'static str>,
    /// `execute_delay_ms`.
    delay_ms: u32,
}

const IDENTITY: Model = Model { name: "", kind: Kind::Identity, rows_max: 8, tensors: &[], labels: None, delay_ms: 0 };

const FRUIT: &str = "apple\nbanana\ncherry\npickle\n";

const MODELS: &[Model] = &[
    Model { name: "identity_bool", tensors: &[("BOOL", "-1")], ..IDENTITY },
    Model { name: "identity_int8", tensors: &[("INT8", "-1")], ..IDENTITY },
    Model { name: "identity_int16", tensors: &[("INT16", "-1")], ..IDENTITY },
    Model { name: "identity_int32", tensors: &[("INT32", "-1")], ..IDENTITY },
    Model { name: "identity_int64", tensors: &[("INT64", "-1")], ..IDENTITY },
    Model { name: "identity_uint8", tensors: &[("UINT8", "-1")], ..IDENTITY },
    Model { name: "identity_uint16", tensors: &[("UINT16", "-1")], ..IDENTITY },
    Model { name: "identity_uint32", tensors: &[("UINT32", "-1")], ..IDENTITY },
    Model { name: "identity_uint64", tensors: &[("UINT64", "-1")], ..IDENTITY },
    Model { name: "identity_fp16", tensors: &[("FP16", "-1")], ..IDENTITY },
    Model { name: "identity_bf16", tensors: &[("BF16", "-1")], ..IDENTITY },
    Model { name: "identity_fp32", tensors: &[("FP32", "-1")], ..IDENTITY },
    Model { name: "identity_fp64", tensors: &[("FP64", "-1")], ..IDENTITY },
    Model { name: "identity_bytes", tensors: &[("STRING", "-1")], ..IDENTITY },
    Model { name: "identity_bytes_one", tensors: &[("STRING", "1")], ..IDENTITY },
    Model { name: "identity_nobatch", rows_max: 0, tensors: &[("FP32", "4")], ..IDENTITY },
    Model { name: "identity_raw", tensors: &[("FP32", "4")], ..IDENTITY },
    Model { name: "identity_square", tensors: &[("FP32", "-1, -1")], ..IDENTITY },
    Model { name: "identity_two", tensors: &[("FP32", "-1"), ("INT32", "-1")], ..IDENTITY },
    Model { name: "classify", tensors: &[("FP32", "4")], labels: Some(FRUIT), ..IDENTITY },
    Model { name: "classify_int", tensors: &[("INT32", "4")], ..IDENTITY },
    Model { name: "classify_nobatch", rows_max: 0, tensors: &[("FP32", "4")], labels: Some(FRUIT), ..IDENTITY },
    Model { name: "slow", tensors: &[("FP32", "-1")], delay_ms: 300, ..IDENTITY },
    Model { name: "addsub", kind: Kind::AddSub, tensors: &[("INT32", "16"), ("INT32", "16")], ..IDENTITY },
];

/// Writes all models, each in version 1.
pub fn write(flavour: Flavour) -> Folder {
    let folder = Folder::new("repository");
    for model in MODELS {
        write_model(model, flavour, &folder.path().join(model.name)).expect("the folder is ours");
    }
    folder
}

/// Adds a model of `examples/models` to a repository.
pub fn add_example(repository: &Path, name: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models").join(name);
    copy(&from, &repository.join(name)).expect("the example is in the repository");
}

/// Adds a model in version 1, with an ONNX file if it has one.
pub fn add(repository: &Path, name: &str, config: &str, file: Option<&[u8]>) {
    let version = repository.join(name).join("1");
    fs::create_dir_all(&version).expect("the folder is ours");
    fs::write(version.with_file_name("config.pbtxt"), config).expect("the folder is ours");
    if let Some(bytes) = file {
        fs::write(version.join("model.onnx"), bytes).expect("the folder is ours");
    }
}

/// Adds models whose configuration has more than their computation: reshape, one value a row, labels of each output.
pub fn add_configured(repository: &Path) {
    let onnx = onnx::Onnx::default().node("Add", &["x", "x"], &["y"], &[]);
    let twice = onnx.input("x", onnx::FLOAT, &[-1]).output("y", onnx::FLOAT, &[-1]).into_bytes();
    let scalar = |side: &str, name: &str| {
        format!("{side} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ 1 ] reshape: {{ shape: [ ] }} }}\n")
    };
    let scalars = scalar("input", "x") + &scalar("output", "y") + "max_batch_size: 8 platform: \"onnxruntime_onnx\"\n";
    add(repository, "scalars", &scalars, Some(&twice));
    add(repository, "scalars_generated", "", Some(&twice));
    let reshaped = "backend: \"identity\" max_batch_size: 8\n\
        input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1, 2, -1 ] reshape { shape: [ -1, 1, 2, -1 ] } }\n\
        output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ 1, -1, 2, -1 ] reshape { shape: [ -1, 1, 2, -1 ] } }\n";
    add(repository, "reshaped", reshaped, None);
    let mut labelled = "backend: \"identity\" max_batch_size: 8\n".to_owned();
    for (index, labels) in ["fruit.txt", "animals/pets.txt", ""].into_iter().enumerate() {
        let tensor = format!("data_type: TYPE_FP32 dims: 2 }}\noutput {{ name: \"OUTPUT{index}\"");
        let _ = writeln!(
            labelled,
            "input {{ name: \"INPUT{index}\" {tensor} data_type: TYPE_FP32 dims: 2 label_filename: \"{labels}\" }}"
        );
    }
    add(repository, "labelled", &labelled, None);
    let folder = repository.join("labelled");
    fs::create_dir(folder.join("animals")).expect("the folder is ours");
    fs::write(folder.join("fruit.txt"), "apple\nbanana\n").expect("the folder is ours");
    fs::write(folder.join("animals/pets.txt"), "cat\ndog\n").expect("the folder is ours");
}

/// Lets the requests of a model share batches.
pub fn set_batched(repository: &Path, name: &str) {
    let path = repository.join(name).join("config.pbtxt");
    let text = fs::read_to_string(&path).expect("the model was written") + "dynamic_batching { }\n";
    fs::write(path, text).expect("the folder is ours");
}

/// Copies a folder.
pub fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?
        } else {
            fs::copy(entry.path(), target).map(drop)?
        }
    }
    Ok(())
}

fn write_model(model: &Model, flavour: Flavour, folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder.join("1"))?;
    fs::write(folder.join("config.pbtxt"), config(model, flavour))?;
    if let Some(labels) = model.labels {
        fs::write(folder.join("labels.txt"), labels)?;
    }
    match (flavour, model.kind) {
        (Flavour::Deuteron, Kind::Identity) => Ok(()),
        (Flavour::Deuteron, Kind::AddSub) => fs::write(folder.join("1/model.onnx"), onnx::addsub()),
        (Flavour::Triton, Kind::Identity) => {
            fs::write(folder.join("1/model.py"), include_str!("../oracle/identity.py"))
        }
        (Flavour::Triton, Kind::AddSub) => fs::write(folder.join("1/model.py"), include_str!("../oracle/addsub.py")),
    }
}

/// The model's `config.pbtxt`.
fn config(model: &Model, flavour: Flavour) -> String {
    let backend = match (flavour, model.kind) {
        (Flavour::Triton, _) => "backend: \"python\"",
        (Flavour::Deuteron, Kind::Identity) => "backend: \"identity\"",
        (Flavour::Deuteron, Kind::AddSub) => "platform: \"onnxruntime_onnx\"",
    };
    let mut text = format!("name: \"{}\"\n{backend}\nmax_batch_size: {}\n", model.name, model.rows_max);
    let inputs = 0..model.tensors.len();
    inputs.for_each(|index| tensor(model, "input", index, &mut text));
    let outputs = 0..model.tensors.len();
    outputs.for_each(|index| tensor(model, "output", index, &mut text));
    if model.delay_ms > 0 {
        let _ = writeln!(
            text,
            "parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{}\" }} }}",
            model.delay_ms
        );
    }
    text
}

fn tensor(model: &Model, side: &str, index: usize, text: &mut String) {
    let (datatype, dims) = model.tensors[index];
    let labels = match (side, index, model.labels) {
        ("output", 0, Some(_)) => " label_filename: \"labels.txt\"",
        _ => "",
    };
    let name = side.to_uppercase();
    let _ = writeln!(text, "{side} {{ name: \"{name}{index}\" data_type: TYPE_{datatype} dims: [ {dims} ]{labels} }}");
}

#[test]
fn the_two_flavours_of_a_config_differ_in_the_backend_alone() {
    for model in MODELS {
        let [ours, theirs] = [Flavour::Deuteron, Flavour::Triton].map(|flavour| config(model, flavour));
        let differing: Vec<_> = ours.lines().zip(theirs.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!((ours.lines().count(), differing.len()), (theirs.lines().count(), 1), "{}", model.name);
    }
}
