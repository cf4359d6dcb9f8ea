//! The messages of an ONNX file as structs, for a backend that rewrites a graph before its engine
//! reads it. Raw bytes of weights stay views of the file. Fields that change no result (texts,
//! metadata, quantization annotations) are dropped. Nesting is bounded by protobuf's own limit on
//! depth. Lists are packed only where `onnx.proto` says so: the embedded engine's reader requires
//! that.

use bytes::Bytes;
use prost::Message;

use base::error::Error;

/// `TensorProto.DataType`, of the datatypes that an engine computes on.
pub mod element {
    /// 32-bit float.
    pub const FLOAT: i32 = 1;
    /// Unsigned byte.
    pub const UINT8: i32 = 2;
    /// Signed byte.
    pub const INT8: i32 = 3;
    /// Signed, 4 bytes.
    pub const INT32: i32 = 6;
    /// Signed, 8 bytes.
    pub const INT64: i32 = 7;
    /// One byte, 0 or 1.
    pub const BOOL: i32 = 9;
    /// 16-bit float.
    pub const FLOAT16: i32 = 10;
    /// 64-bit float.
    pub const DOUBLE: i32 = 11;
}

/// `ModelProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelMessage {
    /// The version of the format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The graph.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphMessage>,
    /// The operator sets that it needs.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetMessage>,
    /// Functions of its own.
    #[prost(bytes = "bytes", repeated, tag = "25")]
    pub functions: Vec<Bytes>,
}

/// `OperatorSetIdProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OperatorSetMessage {
    /// Empty for ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Its version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GraphMessage {
    /// Its operators, each after those that it reads.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeMessage>,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorMessage>,
    /// Its inputs, in old files with its constants.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueMessage>,
    /// Its outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueMessage>,
    /// The known types of the values between.
    #[prost(message, repeated, tag = "13")]
    pub value_info: Vec<ValueMessage>,
    /// Sparse constants.
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub sparse_initializer: Vec<Bytes>,
}

/// `NodeProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NodeMessage {
    /// The names of its inputs; empty if an optional one is left out.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// The names of its outputs.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Its own name, which may be empty.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Its attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeMessage>,
    /// The operator's domain; empty for ONNX's own.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AttributeMessage {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// A float.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// A text.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    /// A tensor.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorMessage>,
    /// A graph.
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphMessage>,
    /// Floats.
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    /// Integers.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Texts.
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    /// `AttributeType`.
    #[prost(int32, tag = "20")]
    pub kind: i32,
    /// A sparse tensor.
    #[prost(bytes = "bytes", optional, tag = "22")]
    pub sparse_tensor: Option<Bytes>,
}

/// `TensorProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorMessage {
    /// Its dimensions.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Its datatype, one of [`element`].
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Elements, as floats.
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    /// Elements, as 32-bit integers.
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    /// Elements, as texts.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    /// Elements, as 64-bit integers.
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    /// Its name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Elements, as bytes.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    /// Elements, as doubles.
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    /// Elements, as unsigned 64-bit integers.
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    /// The location of its elements, if in another file.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<PairMessage>,
    /// 1 if its elements are in another file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// `StringStringEntryProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PairMessage {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `ValueInfoProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueMessage {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeMessage>,
}

/// `TypeProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypeMessage {
    /// If it is a tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeMessage>,
    /// If it is a sequence.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub sequence_type: Option<Bytes>,
    /// If it is a map.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub map_type: Option<Bytes>,
    /// If it is optional.
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub optional_type: Option<Bytes>,
}

/// `TypeProto.Tensor`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorTypeMessage {
    /// The datatype, one of [`element`].
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// The dimensions; absent if the file does not say.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<ShapeMessage>,
}

/// `TensorShapeProto`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ShapeMessage {
    /// Its dimensions.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionMessage>,
}

/// `TensorShapeProto.Dimension`: a size, a symbol or neither.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DimensionMessage {
    /// The size.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// The symbol.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

impl ModelMessage {
    /// Reads a file.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not ONNX or its messages are nested too deep.
    pub fn read(file: Bytes) -> Result<Self, Error> {
        let model = <Self as Message>::decode(file);
        model.map_err(|error| Error::invalid(format!("not an ONNX file that can be used: {error}")))
    }
}

impl NodeMessage {
    /// The name of an input; `None` if it is left out.
    pub fn read_input(&self, index: usize) -> Option<&str> {
        self.input.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// The name of an output; `None` if it is left out.
    pub fn written(&self, index: usize) -> Option<&str> {
        self.output.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// An attribute.
    pub fn attribute(&self, name: &str) -> Option<&AttributeMessage> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// An integer attribute, or its default if it is missing.
    pub fn integer(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(default)
    }

    /// A float attribute, or its default if it is missing.
    pub fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name).and_then(|attribute| attribute.f).unwrap_or(default)
    }

    /// An attribute that is a list of integers; empty if it is missing.
    pub fn integers(&self, name: &str) -> &[i64] {
        self.attribute(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// A text attribute, or its default if it is missing or not UTF-8.
    pub fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        let text = self.attribute(name).and_then(|attribute| attribute.s.as_deref());
        text.and_then(|text| str::from_utf8(text).ok()).unwrap_or(default)
    }

    /// Sets an attribute.
    pub fn set(&mut self, attribute: AttributeMessage) {
        self.unset(&attribute.name);
        self.attribute.push(attribute);
    }

    /// Removes an attribute.
    pub fn unset(&mut self, name: &str) {
        self.attribute.retain(|attribute| attribute.name != name);
    }
}

impl AttributeMessage {
    fn named(name: &str, kind: i32) -> Self {
        Self { name: name.to_owned(), kind, ..Self::default() }
    }

    /// A float.
    pub fn float(name: &str, value: f32) -> Self {
        Self { f: Some(value), ..Self::named(name, 1) }
    }

    /// An integer.
    pub fn integer(name: &str, value: i64) -> Self {
        Self { i: Some(value), ..Self::named(name, 2) }
    }

    /// A tensor.
    pub fn tensor(name: &str, value: TensorMessage) -> Self {
        Self { t: Some(value), ..Self::named(name, 4) }
    }

    /// Integers.
    pub fn integers(name: &str, values: &[i64]) -> Self {
        Self { ints: values.to_vec(), ..Self::named(name, 7) }
    }
}

impl TensorMessage {
    /// Returns true if its elements are in another file.
    pub fn is_external(&self) -> bool {
        self.data_location == Some(1)
    }

    /// The INT64 elements that the file itself has.
    pub fn longs(&self) -> Vec<i64> {
        match &self.raw_data {
            Some(raw) => raw.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
            None => self.int64_data.clone(),
        }
    }

    /// The FP32 elements that the file itself has; empty if they are more than `count_max`.
    pub fn floats(&self, count_max: usize) -> Vec<f32> {
        match &self.raw_data {
            Some(raw) if raw.len() / 4 <= count_max => {
                raw.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            None if self.float_data.len() <= count_max => self.float_data.clone(),
            _ => Vec::new(),
        }
    }

    /// The location, offset and length of its elements in another file.
    pub fn place(&self) -> (&str, u64, Option<u64>) {
        let find = |key: &str| self.external_data.iter().find(|pair| pair.key == key).map(|pair| pair.value.as_str());
        let number = |key| find(key).and_then(|text| text.parse().ok());
        (find("location").unwrap_or_default(), number("offset").unwrap_or(0), number("length"))
    }
}

impl ValueMessage {
    /// The datatype and the dimensions, -1 for a variable size; `None` if it is not a tensor.
    pub fn tensor(&self) -> Option<(i32, Option<Vec<i64>>)> {
        let tensor = self.r#type.as_ref()?.tensor_type.as_ref()?;
        let size = |dim: &DimensionMessage| dim.dim_value.unwrap_or(-1);
        let dims = tensor.shape.as_ref().map(|shape| shape.dim.iter().map(size).collect());
        Some((tensor.elem_type, dims))
    }
}
