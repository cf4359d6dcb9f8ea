//! An ONNX graph under construction, and the file that it becomes: operators by `model::onnx::message`, and constants
//! that stay views of the safetensors files until the file is written, in one pass, into memory of its exact size.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use base::error::Error;
use model::onnx::message::{
    AttributeMessage, DimensionMessage, GraphMessage, ModelMessage, NodeMessage, OperatorSetMessage, ShapeMessage,
    TensorMessage, TensorTypeMessage, TypeMessage, ValueMessage, element,
};

use crate::limits::MODEL_SIZE_MAX;
use crate::operators::Operators;
use crate::weights::{SafeTensors, WeightType, WeightView};

/// The elements of a constant.
pub(crate) enum ConstantSource<'a> {
    /// A matrix `[outputs, inputs]`, transposed: `[inputs, outputs]`.
    Columns { view: WeightView<'a>, inputs: usize },
    /// FP32.
    Floats(Vec<f32>),
    /// INT64.
    Longs(Vec<i64>),
    /// A tensor as it is.
    Plain(WeightView<'a>),
}

/// A graph under construction.
pub(crate) struct OnnxDraft<'a> {
    pub(crate) operators: Operators,
    weights: &'a SafeTensors<'a>,
    /// The prefix that a file may have before the names of the encoder's tensors: `bert.`.
    prefix: &'static str,
    used: BTreeSet<&'a str>,
    nodes: Vec<NodeMessage>,
    constants: Vec<Constant<'a>>,
    /// Scalars and small lists that are there already.
    shared: BTreeMap<String, String>,
    inputs: Vec<ValueMessage>,
    outputs: Vec<ValueMessage>,
    count: usize,
}

struct Constant<'a> {
    name: String,
    dims: Vec<i64>,
    contents: ConstantSource<'a>,
}

impl<'a> OnnxDraft<'a> {
    pub(crate) fn new(operators: Operators, weights: &'a SafeTensors<'a>, prefix: &'static str) -> Self {
        Self {
            operators,
            weights,
            prefix,
            used: BTreeSet::new(),
            nodes: Vec::new(),
            constants: Vec::new(),
            shared: BTreeMap::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            count: 0,
        }
    }

    /// Adds an operator with one output.
    pub(crate) fn node(&mut self, operator: &str, inputs: &[&str], attribute: Vec<AttributeMessage>) -> String {
        let output = self.fresh(operator);
        self.nodes.push(NodeMessage {
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.clone()],
            name: output.clone(),
            op_type: operator.to_owned(),
            attribute,
            domain: String::new(),
        });
        output
    }

    /// A value that is written once for all operators that read it.
    pub(crate) fn once(&mut self, key: &str, write: impl FnOnce(&mut Self) -> String) -> String {
        if let Some(value) = self.shared.get(key) {
            return value.clone();
        }
        let value = write(self);
        self.shared.insert(key.to_owned(), value.clone());
        value
    }

    /// Adds an operator that splits its input along the last axis into equal parts.
    pub(crate) fn split(&mut self, input: &str, size: i64, count: usize) -> Vec<String> {
        let sizes = self.longs(&vec![size; count]);
        let first = self.node("Split", &[input, &sizes], vec![AttributeMessage::integer("axis", -1)]);
        let others: Vec<_> = (1..count).map(|_| self.fresh("Split")).collect();
        if let Some(node) = self.nodes.last_mut() {
            node.output.extend(others.iter().cloned());
        }
        std::iter::once(first).chain(others).collect()
    }

    fn fresh(&mut self, operator: &str) -> String {
        self.count += 1;
        format!("{operator}_{}", self.count)
    }

    /// Adds a constant.
    pub(crate) fn constant(&mut self, name: &str, dims: &[usize], contents: ConstantSource<'a>) -> String {
        self.count += 1;
        let name = format!("{name}_{}", self.count);
        let dims = dims.iter().map(|&size| size as i64).collect();
        self.constants.push(Constant { name: name.clone(), dims, contents });
        name
    }

    /// A table that several operators may read: one constant for all.
    pub(crate) fn table(&mut self, name: &str, dims: &[usize], view: WeightView<'a>) -> String {
        self.once(&format!("table {name}"), |draft| draft.constant(name, dims, ConstantSource::Plain(view)))
    }

    /// A scalar, FP32.
    pub(crate) fn scalar(&mut self, value: f32) -> String {
        self.once(&format!("float {:x}", value.to_bits()), |draft| {
            draft.constant("scalar", &[], ConstantSource::Floats(vec![value]))
        })
    }

    /// A list, INT64.
    pub(crate) fn longs(&mut self, values: &[i64]) -> String {
        self.integers(&[values.len()], values)
    }

    /// A scalar, INT64.
    pub(crate) fn long(&mut self, value: i64) -> String {
        self.integers(&[], &[value])
    }

    fn integers(&mut self, dims: &[usize], values: &[i64]) -> String {
        self.once(&format!("long {} {values:?}", dims.len()), |draft| {
            draft.constant("sizes", dims, ConstantSource::Longs(values.to_vec()))
        })
    }

    /// Adds an input, INT64 `[batch, sequence]`.
    pub(crate) fn input(&mut self, name: &str) -> String {
        let dims = [symbol("batch"), symbol("sequence")];
        self.inputs.push(value_of(name, element::INT64, dims.into()));
        name.to_owned()
    }

    /// Makes a value an output, FP32 `[batch]`, with `sequence` if it is per token, and the sizes behind these.
    pub(crate) fn output(&mut self, value: &str, name: &str, is_per_token: bool, sizes: &[usize]) {
        let mut dims = vec![symbol("batch")];
        dims.extend(is_per_token.then(|| symbol("sequence")));
        dims.extend(sizes.iter().map(|&size| DimensionMessage { dim_value: Some(size as i64), dim_param: None }));
        self.outputs.push(value_of(name, element::FLOAT, dims));
        for node in &mut self.nodes {
            node.input.iter_mut().chain(&mut node.output).filter(|other| *other == value).for_each(|other| {
                name.clone_into(other);
            });
        }
    }

    /// Returns true if the encoder has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Finds a tensor by its name with the encoder's prefix, or without; a LayerNorm's also under the names of
    /// TensorFlow's checkpoints.
    fn find(&self, name: &str) -> Option<(&'a str, &'a crate::weights::WeightTensor<'a>)> {
        let old = match name.rsplit_once("LayerNorm.") {
            Some((before, "weight")) => Some(format!("{before}LayerNorm.gamma")),
            Some((before, "bias")) => Some(format!("{before}LayerNorm.beta")),
            _ => None,
        };
        [Some(name.to_owned()), old].into_iter().flatten().find_map(|name| {
            let weights = self.weights;
            weights.find(&format!("{}{name}", self.prefix)).or_else(|| weights.find(&name))
        })
    }

    /// Takes a tensor of the encoder or of a head.
    ///
    /// # Errors
    /// `InvalidArgument` if it is missing, or has another shape or a datatype that weights do not have.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<WeightView<'a>, Error> {
        let Some((full, tensor)) = self.find(name) else {
            let files = self.weights.files();
            return Err(Error::invalid(format!("{files}: tensor '{name}' is missing; expected shape {shape:?}")));
        };
        let file = tensor.file;
        if tensor.shape != shape {
            let given = &tensor.shape;
            let text = format!("{file}: tensor '{full}' has shape {given:?}, expected {shape:?} by config.json");
            return Err(Error::invalid(text));
        }
        if matches!(tensor.view.element, WeightType::Other(_)) {
            let text = format!("{file}: tensor '{full}' has a datatype of integers or F64, expected F32, F16 or BF16");
            return Err(Error::invalid(text));
        }
        self.used.insert(full);
        Ok(tensor.view)
    }

    /// Checks that no tensor was left over that could change the results. `is_idle` says of a name without prefix that
    /// the model computes the same without it.
    ///
    /// # Errors
    /// `InvalidArgument` with the file and the name.
    pub(crate) fn check_unused(&self, is_idle: impl Fn(&str) -> bool) -> Result<(), Error> {
        let left = self
            .weights
            .iter()
            .find(|(name, _)| !self.used.contains(name) && !is_idle(name.strip_prefix(self.prefix).unwrap_or(name)));
        match left {
            None => Ok(()),
            Some((name, tensor)) => Err(Error::invalid(format!(
                "{}: tensor '{name}' of shape {:?} is not part of the model that config.json describes",
                tensor.file, tensor.shape
            ))),
        }
    }

    /// The same nodes, inputs and outputs without a tensor.
    pub(crate) fn without_constants(self) -> Self {
        Self { constants: Vec::new(), ..self }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// `TooLarge` if it exceeds protobuf's limit.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>, Error> {
        let constants: Vec<_> = self.constants.into_iter().map(EncodedConstant::new).collect();
        let graph = GraphMessage {
            node: self.nodes,
            name: "graph".to_owned(),
            input: self.inputs,
            output: self.outputs,
            ..GraphMessage::default()
        };
        let opset_import = vec![OperatorSetMessage { domain: String::new(), version: OPERATOR_SET }];
        let model = ModelMessage { ir_version: IR_VERSION, opset_import, ..ModelMessage::default() };
        let graph_size = graph.encoded_len() + constants.iter().map(EncodedConstant::field_size).sum::<usize>();
        let size = model.encoded_len() + field_size(GRAPH, graph_size);
        if size > MODEL_SIZE_MAX {
            return Err(Error::too_large(format!(
                "the model needs {size} bytes as an ONNX file in FP32, and such a file has at most {MODEL_SIZE_MAX}; \
                 export it to ONNX with external data"
            )));
        }
        let mut out = Vec::with_capacity(size);
        model.encode_raw(&mut out);
        encode_field(GRAPH, graph_size, &mut out);
        graph.encode_raw(&mut out);
        constants.iter().for_each(|constant| constant.write(&mut out));
        debug_assert_eq!(out.len(), size, "the size was counted beforehand");
        Ok(out)
    }
}

/// Operators of ONNX 1.12, the oldest with LayerNormalization.
const OPERATOR_SET: i64 = 17;
/// The format of that release.
const IR_VERSION: i64 = 8;
/// `ModelProto.graph`.
const GRAPH: u32 = 7;
/// `GraphProto.initializer`.
const INITIALIZER: u32 = 5;
/// `TensorProto.raw_data`.
const RAW_DATA: u32 = 9;

/// A constant whose sizes are known.
struct EncodedConstant<'a> {
    /// All of the tensor but its elements.
    tensor: TensorMessage,
    contents: ConstantSource<'a>,
    contents_size: usize,
}

impl<'a> EncodedConstant<'a> {
    fn new(constant: Constant<'a>) -> Self {
        let Constant { name, dims, contents } = constant;
        let (data_type, contents_size) = match &contents {
            ConstantSource::Columns { view, .. } | ConstantSource::Plain(view) => (element::FLOAT, 4 * view.len()),
            ConstantSource::Floats(floats) => (element::FLOAT, 4 * floats.len()),
            ConstantSource::Longs(longs) => (element::INT64, 8 * longs.len()),
        };
        Self { tensor: TensorMessage { dims, data_type, name, ..TensorMessage::default() }, contents, contents_size }
    }

    fn size(&self) -> usize {
        self.tensor.encoded_len() + field_size(RAW_DATA, self.contents_size)
    }

    fn field_size(&self) -> usize {
        field_size(INITIALIZER, self.size())
    }

    fn write(&self, out: &mut Vec<u8>) {
        encode_field(INITIALIZER, self.size(), out);
        self.tensor.encode_raw(out);
        encode_field(RAW_DATA, self.contents_size, out);
        match &self.contents {
            ConstantSource::Plain(view) => view.write(out),
            ConstantSource::Floats(floats) => out.extend(floats.iter().flat_map(|value| value.to_le_bytes())),
            ConstantSource::Longs(longs) => out.extend(longs.iter().flat_map(|value| value.to_le_bytes())),
            ConstantSource::Columns { view, inputs } => write_columns(*view, *inputs, out),
        }
    }
}

fn write_columns(view: WeightView<'_>, inputs: usize, out: &mut Vec<u8>) {
    let begin = out.len();
    out.resize(begin + 4 * view.len(), 0);
    let place = out.get_mut(begin..).unwrap_or_default().as_chunks_mut::<4>().0;
    view.write_columns(inputs, place);
}

/// Bytes of a field with a length before it.
fn field_size(field: u32, size: usize) -> usize {
    key_len(field) + encoded_len_varint(size as u64) + size
}

fn encode_field(field: u32, size: usize, out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(size as u64, out);
}

fn symbol(name: &str) -> DimensionMessage {
    DimensionMessage { dim_value: None, dim_param: Some(name.to_owned()) }
}

fn value_of(name: &str, elem_type: i32, dim: Vec<DimensionMessage>) -> ValueMessage {
    let tensor_type = Some(TensorTypeMessage { elem_type, shape: Some(ShapeMessage { dim }) });
    ValueMessage { name: name.to_owned(), r#type: Some(TypeMessage { tensor_type, ..TypeMessage::default() }) }
}
