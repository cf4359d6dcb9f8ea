//! Reads the signatures of a SavedModel (`saved_model.pb`): the names of a model's inputs and
//! outputs, and the tensors of its graph behind them. The graph itself, which may be large, is
//! skipped. Field numbers are those of `saved_model.proto`, `meta_graph.proto`,
//! `tensor_shape.proto` and `types.proto`.

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod state;
#[cfg(test)]
mod testing;

use std::collections::BTreeMap;

use crate::limits::MODEL_TENSORS_MAX;
use crate::signature::{ModelSignature, SignatureTensor};
use base::error::Error;
use base::limits::RANK_MAX;
use base::tensor::{Datatype, Shape};
use wire::json::{Document, ValueKind};
use wire::protobuf::{WireError, fields};

/// The file in a SavedModel's directory.
pub const SAVED_MODEL_FILE: &str = "saved_model.pb";

/// The parameter that chooses a graph by its tag, and the default tag.
pub const GRAPH_TAG: (&str, &str) = ("TF_GRAPH_TAG", "serve");

/// The parameter that chooses a signature, and the default signature.
pub const SIGNATURE_DEF: (&str, &str) = ("TF_SIGNATURE_DEF", "serving_default");

/// The signature of the operation that initializes a graph, which is not for clients.
const INIT_SIGNATURE: &str = "__saved_model_init_op";

/// Graphs of a SavedModel that are read; it has one for each set of tags.
const GRAPHS_MAX: usize = 64;
/// Signatures of a graph that are read.
const SIGNATURES_MAX: usize = 1024;

/// The graphs of a SavedModel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedModel {
    graphs: Vec<MetaGraph>,
}

/// `MetaGraphDef`: the tags of a graph and its signatures, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct MetaGraph {
    tags: Vec<String>,
    signatures: BTreeMap<String, SavedSignature>,
}

/// `SignatureDef`: the inputs and outputs of a function of the model, each by the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedSignature {
    /// Its inputs.
    pub inputs: Vec<SavedTensor>,
    /// Its outputs.
    pub outputs: Vec<SavedTensor>,
}

/// `TensorInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedTensor {
    /// Its name in the signature, and the datatype and shape.
    pub tensor: SignatureTensor,
    /// The tensor of the graph, as `operation:index`; empty for one that is sparse or of several parts.
    pub place: String,
}

/// The signature that a model is served by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenSignature {
    /// The tag of its graph.
    pub tag: String,
    /// Its name.
    pub name: String,
    /// Its inputs and outputs.
    pub signature: SavedSignature,
}

impl ChosenSignature {
    /// Its inputs and outputs, as a configuration has them.
    pub fn tensors(&self) -> ModelSignature {
        let tensors = |list: &[SavedTensor]| list.iter().map(|one| one.tensor.clone()).collect();
        ModelSignature { inputs: tensors(&self.signature.inputs), outputs: tensors(&self.signature.outputs) }
    }
}

impl SavedModel {
    /// Reads the bytes of a `saved_model.pb`.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not a SavedModel.
    pub fn decode(file: &[u8]) -> Result<Self, Error> {
        let refuse = |why: &str| Error::invalid(format!("not a SavedModel that can be used: {SAVED_MODEL_FILE} {why}"));
        let graphs = read_graphs(file).map_err(|_| refuse("is cut short or not protobuf"))?;
        if graphs.is_empty() { Err(refuse("has no graph")) } else { Ok(Self { graphs }) }
    }

    /// The reason why OpenVINO, which cannot choose a graph or a signature, may run another one;
    /// `None` if it cannot.
    pub fn why_not_alone(&self, chosen: &ChosenSignature) -> Option<String> {
        if self.graphs.len() > 1 {
            return Some(format!("it has {} graphs", self.graphs.len()));
        }
        let ChosenSignature { tag, name, .. } = chosen;
        let is_usual = (tag.as_str(), name.as_str()) == (GRAPH_TAG.1, SIGNATURE_DEF.1);
        (!is_usual).then(|| format!("its signature is '{name}' with the tag '{tag}'"))
    }

    /// The signature to serve, by the parameters [`GRAPH_TAG`] and [`SIGNATURE_DEF`] as far as they
    /// are set. Without a name, and if the default is missing, it is any other, as in Triton.
    ///
    /// # Errors
    /// `InvalidArgument` if no signature has the name, or it has a tensor that cannot be served.
    pub fn choose(&self, tag: Option<&str>, name: Option<&str>) -> Result<ChosenSignature, Error> {
        let is_set = |text: &&str| !text.is_empty();
        let tag = tag.filter(is_set).unwrap_or(GRAPH_TAG.1);
        let graph = self.graphs.iter().find(|graph| graph.tags.iter().any(|have| have == tag)).ok_or_else(|| {
            let tags = self.graphs.iter().flat_map(|graph| graph.tags.iter().map(String::as_str));
            Error::invalid(format!(
                "the SavedModel has no graph with the tag '{tag}' ({}); it has {}",
                GRAPH_TAG.0,
                listed(tags)
            ))
        })?;
        let named = name.filter(is_set);
        let served = || graph.signatures.iter().filter(|(name, _)| *name != INIT_SIGNATURE);
        let found = match named {
            Some(name) => graph.signatures.get_key_value(name),
            None => graph.signatures.get_key_value(SIGNATURE_DEF.1).or_else(|| served().next()),
        };
        let (name, signature) = found.ok_or_else(|| {
            Error::invalid(format!(
                "the SavedModel has no signature '{}' ({}); it has {}",
                named.unwrap_or(SIGNATURE_DEF.1),
                SIGNATURE_DEF.0,
                listed(served().map(|(name, _)| name.as_str()))
            ))
        })?;
        let sparse = signature.inputs.iter().chain(&signature.outputs).find(|tensor| tensor.place.is_empty());
        if let Some(sparse) = sparse {
            return Err(Error::invalid(format!(
                "'{}' of signature '{name}' is a sparse or composite tensor, which the protocol cannot carry",
                sparse.tensor.name
            )));
        }
        Ok(ChosenSignature { tag: tag.to_owned(), name: name.clone(), signature: signature.clone() })
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.take(NAMES_SHOWN).map(|name| format!("'{name}'")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Names that an error lists.
const NAMES_SHOWN: usize = 10;

/// `SavedModel`: `meta_graphs` (2).
fn read_graphs(file: &[u8]) -> Result<Vec<MetaGraph>, WireError> {
    let mut graphs = Vec::new();
    for field in fields(file) {
        if let (2, value) = field?
            && graphs.len() < GRAPHS_MAX
        {
            graphs.push(read_graph(value.as_bytes()?)?);
        }
    }
    Ok(graphs)
}

/// `MetaGraphDef`: `meta_info_def` (1) with `tags` (4), `signature_def` (5).
fn read_graph(bytes: &[u8]) -> Result<MetaGraph, WireError> {
    let mut graph = MetaGraph::default();
    for field in fields(bytes) {
        match field? {
            (1, value) => {
                for field in fields(value.as_bytes()?) {
                    if let (4, value) = field? {
                        graph.tags.push(value.as_str()?.to_owned());
                    }
                }
            }
            (5, value) if graph.signatures.len() < SIGNATURES_MAX => {
                let (name, signature) = read_entry(value.as_bytes()?)?;
                graph.signatures.insert(name.to_owned(), read_signature(signature)?);
            }
            _ => {}
        }
    }
    Ok(graph)
}

/// An entry of a map: its key (1) and its value (2).
fn read_entry(bytes: &[u8]) -> Result<(&str, &[u8]), WireError> {
    let (mut key, mut value): (_, &[u8]) = ("", &[]);
    for field in fields(bytes) {
        match field? {
            (1, text) => key = text.as_str()?,
            (2, message) => value = message.as_bytes()?,
            _ => {}
        }
    }
    Ok((key, value))
}

/// `SignatureDef`: `inputs` (1), `outputs` (2).
fn read_signature(bytes: &[u8]) -> Result<SavedSignature, WireError> {
    let (mut inputs, mut outputs) = (BTreeMap::new(), BTreeMap::new());
    for field in fields(bytes) {
        let (tensors, entry) = match field? {
            (1, entry) => (&mut inputs, entry),
            (2, entry) => (&mut outputs, entry),
            _ => continue,
        };
        let (name, tensor) = read_entry(entry.as_bytes()?)?;
        // One more than the limit is kept, so that the model is refused by its number.
        if tensors.len() <= MODEL_TENSORS_MAX {
            tensors.insert(name.to_owned(), read_tensor(name, tensor)?);
        }
    }
    Ok(SavedSignature { inputs: inputs.into_values().collect(), outputs: outputs.into_values().collect() })
}

/// `TensorInfo`: `name` (1), `dtype` (2), `tensor_shape` (3).
fn read_tensor(name: &str, bytes: &[u8]) -> Result<SavedTensor, WireError> {
    let (mut place, mut datatype, mut shape) = (String::new(), None, Some(Shape::new()));
    for field in fields(bytes) {
        match field? {
            (1, value) => value.as_str()?.clone_into(&mut place),
            (2, value) => datatype = datatype_of(value.as_varint()?),
            (3, value) => shape = read_shape(value.as_bytes()?)?,
            _ => {}
        }
    }
    Ok(SavedTensor { tensor: SignatureTensor { name: name.to_owned(), datatype, shape }, place })
}

/// `TensorShapeProto`: `dim` (2) with `size` (1), `unknown_rank` (3).
fn read_shape(bytes: &[u8]) -> Result<Option<Shape>, WireError> {
    let mut shape = Shape::new();
    for field in fields(bytes) {
        match field? {
            (2, value) => {
                let mut size = 0;
                for field in fields(value.as_bytes()?) {
                    if let (1, value) = field? {
                        size = value.as_varint()?.cast_signed();
                    }
                }
                shape.push(size.max(-1));
            }
            (3, value) if value.as_varint()? != 0 => return Ok(None),
            _ => {}
        }
        if shape.len() > RANK_MAX {
            return Ok(None);
        }
    }
    Ok(Some(shape))
}

/// The operations of a file of `TF_INIT_OPS_FILE`: `{"init_ops": ["name", …]}`. `None` for any
/// other content.
pub fn init_operations(text: &[u8]) -> Option<Vec<String>> {
    let document = Document::parse(text, &[]).ok()?;
    let listed = document.root().get("init_ops")?;
    let ValueKind::Array { .. } = listed.kind() else { return None };
    listed.elements().map(|name| name.as_str().map(str::to_owned)).collect()
}

/// The numbers of `DataType` in `types.proto`, which are also those of the C interface.
const DATATYPES: [(u64, Datatype); 14] = [
    (1, Datatype::Fp32),
    (2, Datatype::Fp64),
    (3, Datatype::Int32),
    (4, Datatype::Uint8),
    (5, Datatype::Int16),
    (6, Datatype::Int8),
    (7, Datatype::Bytes),
    (9, Datatype::Int64),
    (10, Datatype::Bool),
    (14, Datatype::Bf16),
    (17, Datatype::Uint16),
    (19, Datatype::Fp16),
    (22, Datatype::Uint32),
    (23, Datatype::Uint64),
];

/// The datatype of one of TensorFlow's numbers; `None` if the protocol lacks it.
pub fn datatype_of(number: u64) -> Option<Datatype> {
    DATATYPES.into_iter().find(|(have, _)| *have == number).map(|(_, datatype)| datatype)
}

/// TensorFlow's number of a datatype.
pub fn number_of(datatype: Datatype) -> u64 {
    DATATYPES.into_iter().find(|(_, have)| *have == datatype).map_or(0, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow::testing::{message, text};
    use wire::protobuf::put_varint;

    fn varint(number: u32, value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(u64::from(number << 3), &mut out);
        put_varint(value.cast_unsigned(), &mut out);
        out
    }

    /// `name place datatype dims`, as in `x in:0 1 -1,16`; `?` for an unknown rank.
    fn tensor(number: u32, line: &str) -> Vec<u8> {
        let words: Vec<_> = line.split(' ').collect();
        let shape = match words[3] {
            "?" => vec![varint(3, 1)],
            dims => dims.split(',').map(|size| message(2, &[varint(1, size.parse().unwrap())])).collect(),
        };
        let place = if words[1] == "-" { message(4, &[]) } else { text(1, words[1]) };
        let facts = [place, varint(2, words[2].parse().unwrap()), message(3, &shape)];
        message(number, &[text(1, words[0]), message(2, &facts)])
    }

    fn signature(name: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
        let inputs = inputs.iter().map(|line| tensor(1, line));
        let body: Vec<_> = inputs.chain(outputs.iter().map(|line| tensor(2, line))).collect();
        message(5, &[text(1, name), message(2, &body)])
    }

    fn graph(tags: &[&str], signatures: &[Vec<u8>]) -> Vec<u8> {
        let tags: Vec<_> = tags.iter().map(|tag| text(4, tag)).collect();
        // A graph is skipped, whatever its contents.
        message(2, &[message(1, &tags), message(2, &[b"graph".to_vec()]), signatures.concat()])
    }

    fn file() -> Vec<u8> {
        let usual = signature("serving_default", &["x in:0 1 -1,16"], &["z call:1 9 -1", "a call:0 14 ?"]);
        let others = [signature("__saved_model_init_op", &[], &["noop n 0 ?"]), signature("b", &["t s:0 7 -1"], &[])];
        [varint(1, 1), graph(&["serve"], &[usual, others.concat()]), graph(&["train", "gpu"], &[others.concat()])]
            .concat()
    }

    #[test]
    fn signatures_are_read_with_names_datatypes_and_shapes() {
        let chosen = SavedModel::decode(&file()).unwrap().choose(None, None).unwrap();
        let shown = |tensors: &[SavedTensor]| {
            let tensors = tensors.iter().map(|SavedTensor { tensor, place }| {
                let datatype = tensor.datatype.map(Datatype::name);
                format!("{} {place} {datatype:?} {:?}", tensor.name, tensor.shape.as_deref())
            });
            tensors.collect::<Vec<_>>()
        };
        assert_eq!(shown(&chosen.signature.inputs), ["x in:0 Some(\"FP32\") Some([-1, 16])"]);
        let outputs = ["a call:0 Some(\"BF16\") None", "z call:1 Some(\"INT64\") Some([-1])"];
        assert_eq!(shown(&chosen.signature.outputs), outputs, "by the order of names");
        assert_eq!(chosen.tensors().inputs.len(), 1);
    }

    #[test]
    fn parameters_choose_graph_and_signature_and_what_is_not_there_is_told() {
        let model = SavedModel::decode(&file()).unwrap();
        let why_not = |file: &[u8], name| {
            let model = SavedModel::decode(file).unwrap();
            model.why_not_alone(&model.choose(None, name).unwrap()).unwrap_or_default()
        };
        assert_eq!(why_not(&file(), None), "it has 2 graphs");
        let pair = [signature("serving_default", &[], &[]), signature("b", &[], &[])].concat();
        let one = graph(&["serve"], &[pair]);
        assert_eq!(why_not(&one, None), "");
        assert_eq!(why_not(&one, Some("b")), "its signature is 'b' with the tag 'serve'");
        let check = |tag: Option<&str>, name: Option<&str>, want: Result<&str, &str>| {
            let got = model.choose(tag, name).map(|chosen| chosen.name);
            assert_eq!(got.map_err(|error| error.text().to_owned()), want.map(str::to_owned).map_err(str::to_owned));
        };
        check(None, Some("b"), Ok("b"));
        check(None, Some(""), Ok("serving_default"));
        check(Some("gpu"), None, Ok("b"));
        let absent = "the SavedModel has no signature 'c' (TF_SIGNATURE_DEF); it has 'b', 'serving_default'";
        check(None, Some("c"), Err(absent));
        let absent = "the SavedModel has no graph with the tag 'tpu' (TF_GRAPH_TAG); it has 'serve', 'train', 'gpu'";
        check(Some("tpu"), None, Err(absent));
        let sparse = graph(&["serve"], &[signature("serving_default", &["x - 1 -1,16"], &[])]);
        let why = SavedModel::decode(&sparse).unwrap().choose(None, None).unwrap_err();
        assert!(why.text().starts_with("'x' of signature 'serving_default' is a sparse"), "{why}");
        let none = graph(&["serve"], &[signature("__saved_model_init_op", &[], &[])]);
        let why = SavedModel::decode(&none).unwrap().choose(None, None).unwrap_err();
        assert_eq!(why.text(), "the SavedModel has no signature 'serving_default' (TF_SIGNATURE_DEF); it has none");
    }

    #[test]
    fn initial_operations_are_a_list_of_names() {
        let read = |text: &str| init_operations(text.as_bytes());
        assert_eq!(read(r#"{"init_ops": ["a", "b/c"]}"#), Some(vec!["a".to_owned(), "b/c".to_owned()]));
        assert_eq!(read(r#"{"init_ops": []}"#), Some(vec![]));
        for other in ["", "[]", "{}", r#"{"init_ops": "a"}"#, r#"{"init_ops": [1]}"#] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_saved_model_is_refused() {
        let why = |bytes: &[u8]| SavedModel::decode(bytes).unwrap_err().text().to_owned();
        assert_eq!(why(b""), "not a SavedModel that can be used: saved_model.pb has no graph");
        let whole = file();
        let cut = whole.get(..whole.len() - 3).unwrap();
        assert_eq!(why(cut), "not a SavedModel that can be used: saved_model.pb is cut short or not protobuf");
        for datatype in Datatype::ALL {
            assert_eq!(datatype_of(number_of(datatype)), Some(datatype));
        }
        assert_eq!(datatype_of(8), None, "COMPLEX64");
    }
}
