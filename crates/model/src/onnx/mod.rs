//! Reads the signature of an ONNX file: its inputs, its outputs and the operator sets it needs. Called when a model is
//! loaded, on files of any size: weights and nodes are skipped by their length and not copied. Does not check whether
//! an engine can run the graph.

mod axes;
mod class_names;
pub mod external_data;
pub mod graph;
pub mod initializer;
pub mod message;
pub mod trust;
pub mod weights;
pub mod work;
pub mod wrapped_outputs;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::labels::{ClassNames, Labels};
use crate::limits::MODEL_TENSORS_MAX;
use crate::onnx::wrapped_outputs::unwrap_outputs;
use base::error::Error;
use base::limits::RANK_MAX;
use base::tensor::{Datatype, Shape};

/// The inputs, outputs and operator sets of an ONNX file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnnxSignature {
    /// Required inputs, in the order of the file: those without an initial value.
    pub inputs: Vec<OnnxTensor>,
    /// Optional inputs: those with an initial value, if the protocol can carry them. Empty for files before IR
    /// version 4, which list their weights in the same way.
    pub initialized: Vec<OnnxTensor>,
    /// Outputs, in the order of the file.
    pub outputs: Vec<OnnxTensor>,
    /// The classes of outputs that the file has as maps and that are served as tensors, and those of
    /// [`Self::add_class_names`].
    pub labels: BTreeMap<String, Arc<Labels>>,
    /// `(name, reason)` of outputs that the protocol cannot carry. A configuration may leave them out.
    pub outputs_refused: Vec<(String, String)>,
    /// The operator sets: domain (empty for ONNX's own) and version.
    pub operator_sets: Vec<(String, i64)>,
    /// `(name, symbol)` of the required inputs and of the outputs whose first dimension has a symbol.
    pub first_axes: Vec<(String, String)>,
}

/// One input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxTensor {
    /// Its name.
    pub name: String,
    /// Its datatype.
    pub datatype: Datatype,
    /// Its dimensions, -1 for a variable size; `None` if the file does not say, which is common for outputs.
    pub shape: Option<Shape>,
}

impl OnnxSignature {
    /// Reads the signature from the bytes of a file.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is not ONNX or an input cannot be served.
    pub fn decode(file: &[u8]) -> Result<Self, Error> {
        let decoded = match unwrap_outputs(file) {
            Some(unwrapped) => {
                Self::read(&unwrapped.bytes).map(|signature| Self { labels: unwrapped.labels, ..signature })
            }
            None => Self::read(file),
        };
        decoded.map_err(|reason| Error::invalid(format!("not an ONNX file that can be used: {reason}")))
    }

    /// Adds the names of classes to the outputs of scores without: those of a configuration beside the file, or those in the file.
    pub fn add_class_names(&mut self, file: &[u8], beside: Option<&ClassNames>) {
        let of_file = if beside.is_none() { class_names::class_names(file) } else { None };
        let (labels, is_sure) = match (beside, of_file) {
            (Some(names), _) => (names.labels.clone(), names.is_classifier),
            (None, Some(labels)) => (labels, true),
            (None, None) => return,
        };
        let labels = Arc::new(labels);
        let is_float = |output: &&OnnxTensor| {
            matches!(output.datatype, Datatype::Bf16 | Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64)
        };
        let scores: Vec<_> = self.outputs.iter().filter(is_float).collect();
        for output in &scores {
            let classes = output.shape.as_ref().and_then(|shape| shape.last().copied()).filter(|size| *size >= 0);
            let is_meant = match classes {
                Some(size) => usize::try_from(size) == Ok(labels.len()),
                None => is_sure && scores.len() == 1,
            };
            if is_meant && !self.labels.contains_key(&output.name) {
                self.labels.insert(output.name.clone(), Arc::clone(&labels));
            }
        }
    }

    fn read(file: &[u8]) -> Result<Self, String> {
        let (mut graph, mut ir_version) = (None, 0);
        let mut operator_sets = Vec::new();
        for field in OnnxFields::new(file) {
            match field? {
                (1, OnnxField::Varint(version)) => ir_version = version,
                (7, OnnxField::Bytes(bytes)) => graph = Some(bytes),
                (8, OnnxField::Bytes(bytes)) if operator_sets.len() < OPERATOR_SETS_MAX => {
                    operator_sets.push(read_operator_set(bytes)?);
                }
                _ => {}
            }
        }
        let graph = graph.ok_or("it has no graph")?;
        let (mut inputs, outputs) = read_graph(graph)?;
        let initialized = take_initialized(graph, &mut inputs)?;
        let mut signature = Self { operator_sets, ..Self::default() };
        if ir_version >= IR_VERSION_OF_DEFAULTS {
            for input in initialized {
                signature.initialized.extend(read_value(input)?.ok());
            }
        }
        for value in inputs.iter().chain(&outputs) {
            if let Some(symbol) = axes::first_symbol(value)? {
                signature.first_axes.push((text(find(value, 1)?.unwrap_or_default())?, symbol));
            }
        }
        for input in inputs {
            signature.inputs.push(read_value(input)?.map_err(|(_, reason)| reason)?);
        }
        for output in outputs {
            match read_value(output)? {
                Ok(tensor) => signature.outputs.push(tensor),
                Err(refused) => signature.outputs_refused.push(refused),
            }
        }
        Ok(signature)
    }
}

/// From this IR version on, an input with an initial value is an optional input; in earlier files it is a weight.
const IR_VERSION_OF_DEFAULTS: u64 = 4;

/// Operator sets that are read; a file lists one for each domain.
const OPERATOR_SETS_MAX: usize = 256;

/// Inputs, or outputs, that a graph may list, including weights: old files have thousands.
const GRAPH_VALUES_MAX: usize = 65_536;

/// The encoded messages of a graph's inputs and outputs.
type ValueMessages<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>);

/// `GraphProto`: the messages of `input` (11) and `output` (12).
fn read_graph(graph: &[u8]) -> Result<ValueMessages<'_>, String> {
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for field in OnnxFields::new(graph) {
        match field? {
            (11, OnnxField::Bytes(bytes)) => inputs.push(bytes),
            (12, OnnxField::Bytes(bytes)) => outputs.push(bytes),
            _ => {}
        }
        if inputs.len().max(outputs.len()) > GRAPH_VALUES_MAX {
            return Err(format!("its graph lists more than {GRAPH_VALUES_MAX} inputs or outputs"));
        }
    }
    if outputs.is_empty() {
        return Err("its graph has no output".to_owned());
    }
    if outputs.len() > MODEL_TENSORS_MAX {
        return Err(format!("its graph has {} outputs, more than {MODEL_TENSORS_MAX}", outputs.len()));
    }
    Ok((inputs, outputs))
}

/// Moves the inputs that have an initial value (`initializer` 5, `sparse_initializer` 15) out of `inputs` and returns
/// them. Up to IR version 3 those include every weight.
fn take_initialized<'a>(graph: &'a [u8], inputs: &mut Vec<&'a [u8]>) -> Result<Vec<&'a [u8]>, String> {
    let mut names = BTreeMap::new();
    for (index, input) in inputs.iter().enumerate() {
        names.insert(find(input, 1)?.unwrap_or_default(), index);
    }
    let mut is_initialized = vec![false; inputs.len()];
    for field in OnnxFields::new(graph) {
        let name = match field? {
            (5, OnnxField::Bytes(tensor)) => find(tensor, 8)?,
            (15, OnnxField::Bytes(sparse)) => find(find(sparse, 1)?.unwrap_or_default(), 8)?,
            _ => None,
        };
        let index = name.and_then(|name| names.get(name));
        if let Some(flag) = index.and_then(|index| is_initialized.get_mut(*index)) {
            *flag = true;
        }
    }
    let mut flags = is_initialized.into_iter();
    let (initialized, required) = inputs.iter().copied().partition(|_| flags.next().unwrap_or(false));
    *inputs = required;
    if inputs.len() > MODEL_TENSORS_MAX {
        return Err(format!("its graph has {} inputs, more than {MODEL_TENSORS_MAX}", inputs.len()));
    }
    Ok(initialized)
}

/// A tensor, or the name of one that cannot be served and the reason.
type ServedTensor = Result<OnnxTensor, (String, String)>;

/// `ValueInfoProto`: name (1) and type (2); only the tensor type (1) can be served.
fn read_value(value: &[u8]) -> Result<ServedTensor, String> {
    let name = text(find(value, 1)?.unwrap_or_default())?;
    if name.is_empty() {
        return Err("an input or output has no name".to_owned());
    }
    let kind = find(value, 2)?.unwrap_or_default();
    let Some(tensor) = find(kind, 1)? else {
        let reason = format!("'{name}' is {}, not a tensor", kind_name(kind)?);
        return Ok(Err((name, reason)));
    };
    let (mut element, mut shape) = (0, None);
    for field in OnnxFields::new(tensor) {
        match field? {
            (1, OnnxField::Varint(number)) => element = number,
            (2, OnnxField::Bytes(bytes)) => shape = Some(read_shape(bytes, &name)?),
            _ => {}
        }
    }
    let Some(datatype) = datatype(element) else {
        let reason =
            format!("'{name}' has the element type {element} of ONNX, which the KServe v2 protocol cannot carry");
        return Ok(Err((name, reason)));
    };
    Ok(Ok(OnnxTensor { name, datatype, shape }))
}

/// Names the kind of a `TypeProto` that is not a tensor.
fn kind_name(kind: &[u8]) -> Result<&'static str, String> {
    for (field, name) in [(4, "a sequence"), (5, "a map"), (8, "a sparse tensor"), (9, "an optional value")] {
        if find(kind, field)?.is_some() {
            return Ok(name);
        }
    }
    Ok("of an unknown kind")
}

/// `TensorShapeProto`: each dimension (1) has a size (1), a symbol (2) or neither.
fn read_shape(shape: &[u8], name: &str) -> Result<Shape, String> {
    let mut dims = Shape::new();
    for field in OnnxFields::new(shape) {
        let (1, OnnxField::Bytes(dimension)) = field? else { continue };
        let mut size = -1;
        for part in OnnxFields::new(dimension) {
            if let (1, OnnxField::Varint(number)) = part? {
                // Protobuf's int64 is two's complement; some exporters write -1 for a variable size.
                size = number.cast_signed().max(-1);
            }
        }
        if dims.len() == RANK_MAX {
            return Err(format!("'{name}' has more than {RANK_MAX} dimensions"));
        }
        dims.push(size);
    }
    Ok(dims)
}

/// `OperatorSetIdProto`: domain (1) and version (2).
fn read_operator_set(bytes: &[u8]) -> Result<(String, i64), String> {
    let (mut domain, mut version) = (String::new(), 0);
    for field in OnnxFields::new(bytes) {
        match field? {
            (1, OnnxField::Bytes(bytes)) => domain = text(bytes)?,
            (2, OnnxField::Varint(number)) => version = number.cast_signed(),
            _ => {}
        }
    }
    Ok((domain, version))
}

/// `TensorProto.DataType`.
pub(super) const fn datatype(element: u64) -> Option<Datatype> {
    Some(match element {
        1 => Datatype::Fp32,
        2 => Datatype::Uint8,
        3 => Datatype::Int8,
        4 => Datatype::Uint16,
        5 => Datatype::Int16,
        6 => Datatype::Int32,
        7 => Datatype::Int64,
        8 => Datatype::Bytes,
        9 => Datatype::Bool,
        10 => Datatype::Fp16,
        11 => Datatype::Fp64,
        12 => Datatype::Uint32,
        13 => Datatype::Uint64,
        16 => Datatype::Bf16,
        _ => return None,
    })
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a name in it is not UTF-8".to_owned())
}

/// The last bytes field with this number: protobuf says that the last one counts.
pub(super) fn find(message: &[u8], wanted: u32) -> Result<Option<&[u8]>, String> {
    let mut found = None;
    for field in OnnxFields::new(message) {
        match field? {
            (number, OnnxField::Bytes(bytes)) if number == wanted => found = Some(bytes),
            _ => {}
        }
    }
    Ok(found)
}

/// The value of a protobuf field, by wire type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnnxField<'a> {
    Bytes(&'a [u8]),
    /// 4 or 8 bytes, little-endian.
    Fixed(&'a [u8]),
    Varint(u64),
}

/// Iterates over the fields of a protobuf message as `(number, value)`; ends after the first error.
pub(super) struct OnnxFields<'a> {
    rest: &'a [u8],
}

impl<'a> OnnxFields<'a> {
    pub(super) const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns true if all bytes were read.
    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes not read yet.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn read(&mut self) -> Option<(u32, OnnxField<'a>)> {
        let key = self.read_varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let field = match key & 7 {
            0 => OnnxField::Varint(self.read_varint()?),
            1 => OnnxField::Fixed(self.skip(8)?),
            2 => {
                let size = usize::try_from(self.read_varint()?).ok()?;
                OnnxField::Bytes(self.skip(size)?)
            }
            5 => OnnxField::Fixed(self.skip(4)?),
            _ => return None,
        };
        Some((number, field))
    }

    pub(super) fn read_varint(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn skip(&mut self, size: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(size)?;
        self.rest = rest;
        Some(bytes)
    }
}

impl<'a> Iterator for OnnxFields<'a> {
    type Item = Result<(u32, OnnxField<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field.ok_or_else(|| "it is cut short or not protobuf".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// The parts of `onnx.proto` that are read here, encoded by `prost`.
    mod onnx {
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Model {
            #[prost(int64, tag = "1")]
            pub ir_version: i64,
            #[prost(string, tag = "2")]
            pub producer_name: String,
            #[prost(message, optional, tag = "7")]
            pub graph: Option<Graph>,
            #[prost(message, repeated, tag = "8")]
            pub opset_import: Vec<OperatorSet>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct OperatorSet {
            #[prost(string, tag = "1")]
            pub domain: String,
            #[prost(int64, tag = "2")]
            pub version: i64,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Graph {
            #[prost(message, repeated, tag = "5")]
            pub initializer: Vec<Tensor>,
            #[prost(message, repeated, tag = "11")]
            pub input: Vec<ValueInfo>,
            #[prost(message, repeated, tag = "12")]
            pub output: Vec<ValueInfo>,
            #[prost(message, repeated, tag = "15")]
            pub sparse_initializer: Vec<Sparse>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Sparse {
            #[prost(message, optional, tag = "1")]
            pub values: Option<Tensor>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Tensor {
            #[prost(int64, repeated, tag = "1")]
            pub dims: Vec<i64>,
            #[prost(float, repeated, tag = "4")]
            pub float_data: Vec<f32>,
            #[prost(string, tag = "8")]
            pub name: String,
            #[prost(bytes = "vec", tag = "9")]
            pub raw_data: Vec<u8>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct ValueInfo {
            #[prost(string, tag = "1")]
            pub name: String,
            #[prost(message, optional, tag = "2")]
            pub r#type: Option<Type>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Type {
            #[prost(message, optional, tag = "1")]
            pub tensor_type: Option<TensorType>,
            #[prost(bytes = "vec", optional, tag = "4")]
            pub sequence_type: Option<Vec<u8>>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct TensorType {
            #[prost(int32, tag = "1")]
            pub elem_type: i32,
            #[prost(message, optional, tag = "2")]
            pub shape: Option<Shape>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Shape {
            #[prost(message, repeated, tag = "1")]
            pub dim: Vec<Dimension>,
        }
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct Dimension {
            #[prost(int64, optional, tag = "1")]
            pub dim_value: Option<i64>,
            #[prost(string, optional, tag = "2")]
            pub dim_param: Option<String>,
        }
    }

    /// `x:1[N,3,?]`: a name, an element type, and dimensions, each a size, a symbol or `?` for neither.
    fn value(text: &str) -> onnx::ValueInfo {
        let (name, rest) = text.split_once(':').unwrap();
        let (element, shape) = rest.split_once('[').map_or((rest, None), |(element, shape)| (element, Some(shape)));
        let dim = |text: &str| onnx::Dimension {
            dim_value: text.parse().ok(),
            dim_param: text.starts_with(char::is_alphabetic).then(|| text.to_owned()),
        };
        let dims = |text: &str| text.trim_end_matches(']').split(',').filter(|dim| !dim.is_empty()).map(dim).collect();
        let shape = shape.map(|shape| onnx::Shape { dim: dims(shape) });
        let tensor_type = Some(onnx::TensorType { elem_type: element.parse().unwrap(), shape });
        onnx::ValueInfo { name: name.to_owned(), r#type: Some(onnx::Type { tensor_type, sequence_type: None }) }
    }

    fn tensor(name: &str) -> onnx::Tensor {
        let raw_data = vec![0xff; 4096];
        onnx::Tensor { name: name.to_owned(), dims: vec![2, 2], float_data: vec![1.0; 4], raw_data }
    }

    fn model(inputs: &[&str], outputs: &[&str], weights: &[&str]) -> onnx::Model {
        let graph = onnx::Graph {
            initializer: weights.iter().map(|name| tensor(name)).collect(),
            input: inputs.iter().map(|text| value(text)).collect(),
            output: outputs.iter().map(|text| value(text)).collect(),
            sparse_initializer: vec![onnx::Sparse { values: Some(tensor("sparse")) }],
        };
        let set = |domain: &str, version| onnx::OperatorSet { domain: domain.to_owned(), version };
        onnx::Model {
            ir_version: 8,
            producer_name: "test".to_owned(),
            graph: Some(graph),
            opset_import: vec![set("", 17), set("ai.onnx.ml", 3)],
        }
    }

    fn shown(tensors: &[OnnxTensor]) -> String {
        let one = |tensor: &OnnxTensor| match &tensor.shape {
            Some(shape) => format!("{} {} {:?}", tensor.name, tensor.datatype.name(), shape.as_slice()),
            None => format!("{} {} ?", tensor.name, tensor.datatype.name()),
        };
        tensors.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn inputs_without_weights_and_outputs_are_read_in_order() {
        let bytes = model(
            &["x:1[N,3,?]", "w:1[2,2]", "sparse:1[2]", "ids:7[batch,-1,0]"],
            &["y:8[N,10]", "label:9[]", "unknown:16"],
            &["w", "bias"],
        )
        .encode_to_vec();
        let got = OnnxSignature::decode(&bytes).unwrap();
        assert_eq!(shown(&got.inputs), "x FP32 [-1, 3, -1]; ids INT64 [-1, -1, 0]");
        assert_eq!(shown(&got.initialized), "w FP32 [2, 2]; sparse FP32 [2]");
        assert_eq!(shown(&got.outputs), "y BYTES [-1, 10]; label BOOL []; unknown BF16 ?");
        assert_eq!(got.operator_sets, [(String::new(), 17), ("ai.onnx.ml".to_owned(), 3)]);
    }

    #[test]
    fn a_file_written_by_hand_is_read() {
        // ir_version 3, graph { output { name "y", type { tensor { elem 1, shape { dim { 5 } } } } } }.
        let bytes = [0x08, 3, 0x3a, 17, 0x62, 15, 0x0a, 1, b'y', 0x12, 10, 0x0a, 8, 0x08, 1, 0x12, 4, 0x0a, 2, 0x08, 5];
        let got = OnnxSignature::decode(&bytes).unwrap();
        assert_eq!((shown(&got.inputs), shown(&got.outputs)), (String::new(), "y FP32 [5]".to_owned()));
    }

    #[test]
    fn every_datatype_of_the_protocol_has_its_element_type() {
        let mut got: Vec<_> = (0..32).filter_map(datatype).collect();
        got.sort_by_key(|datatype| Datatype::ALL.iter().position(|other| other == datatype));
        assert_eq!(got, Datatype::ALL);
    }

    #[test]
    fn a_file_that_cannot_be_served_is_refused_with_its_reason() {
        let check = |bytes: &[u8], want: &str| {
            let got = OnnxSignature::decode(bytes).unwrap_err();
            assert_eq!(got.text(), format!("not an ONNX file that can be used: {want}"));
        };
        check(b"", "it has no graph");
        check(b"\x89PNG\r\n", "it is cut short or not protobuf");
        check(b"version https://git-lfs.github.com/spec/v1\n", "it is cut short or not protobuf");
        let whole = model(&["x:1[N]"], &["y:1[N]"], &[]).encode_to_vec();
        check(&whole[..whole.len() / 2], "it is cut short or not protobuf");
        check(&model(&["x:1[N]"], &[], &[]).encode_to_vec(), "its graph has no output");
        check(
            &model(&["x:14[N]"], &["y:1[N]"], &[]).encode_to_vec(),
            "'x' has the element type 14 of ONNX, which the KServe v2 protocol cannot carry",
        );
        check(&model(&[], &[":1"], &[]).encode_to_vec(), "an input or output has no name");
        let deep = format!("x:1[{}]", vec!["1"; RANK_MAX + 1].join(","));
        check(&model(&[&deep], &["y:1"], &[]).encode_to_vec(), "'x' has more than 32 dimensions");
        let many: Vec<_> = (0..=MODEL_TENSORS_MAX).map(|index| format!("x{index}:1")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        check(&model(&many, &["y:1"], &[]).encode_to_vec(), "its graph has 1025 inputs, more than 1024");
        check(&model(&[], &many, &[]).encode_to_vec(), "its graph has 1025 outputs, more than 1024");
    }

    #[test]
    fn an_output_that_cannot_be_served_does_not_refuse_the_file() {
        let mut sequence = model(&[], &["a:1", "b:1", "c:15[N]"], &[]);
        let graph = sequence.graph.as_mut().unwrap();
        graph.output[0].r#type = Some(onnx::Type { tensor_type: None, sequence_type: Some(vec![]) });
        let got = OnnxSignature::decode(&sequence.encode_to_vec()).unwrap();
        let reason = "'c' has the element type 15 of ONNX, which the KServe v2 protocol cannot carry".to_owned();
        assert_eq!(shown(&got.outputs), "b FP32 ?");
        let refused = [("a".to_owned(), "'a' is a sequence, not a tensor".to_owned()), ("c".to_owned(), reason)];
        assert_eq!(got.outputs_refused, refused);
    }

    #[test]
    fn no_cut_or_changed_byte_panics() {
        let whole = model(&["x:1[N,3]", "w:1[2]"], &["y:8[N]"], &["w"]).encode_to_vec();
        for at in 0..whole.len().min(200) {
            let _ = OnnxSignature::decode(&whole[..at]);
            for byte in [0x00, 0x0b, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = OnnxSignature::decode(&changed);
            }
        }
    }
}
