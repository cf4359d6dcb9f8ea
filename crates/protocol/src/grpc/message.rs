//! Reads `ModelInferRequest` in one pass, borrowing names and contents from the bytes of the message. It accepts,
//! refuses and means the same as `prost` (`differential` compares them): the last occurrence of a singular field
//! counts, repeated messages merge, unknown fields are skipped, strings are UTF-8. It is read before the model is
//! known; [`super::decode()`] checks it against the model. Bounded by the limits on tensors, parameters and
//! dimensions of one request.

pub use crate::framing::UNREADABLE;
use bytes::Bytes;
use smallvec::SmallVec;

use base::error::{Code, Error};
use base::limits::{PARAMETERS_MAX, RANK_MAX, REQUEST_TENSORS_MAX};
use base::tensor::Shape;
use wire::protobuf::{MessageFields, WireError, WireType, fields};

/// A `ModelInferRequest`, borrowed from its bytes.
#[derive(Clone, Debug)]
pub struct InferMessage<'a> {
    bytes: &'a Bytes,
    /// `model_name`.
    pub model_name: &'a str,
    /// `model_version`; empty lets the server choose.
    pub model_version: &'a str,
    /// `id`.
    pub id: &'a str,
    /// `parameters`.
    pub parameters: InferParameters<'a>,
    /// `inputs`.
    pub inputs: SmallVec<[InputTensor<'a>; 2]>,
    /// `outputs`.
    pub outputs: SmallVec<[OutputTensor<'a>; 2]>,
    raw: SmallVec<[&'a [u8]; 2]>,
}

/// One `InferInputTensor`.
#[derive(Clone, Debug)]
pub struct InputTensor<'a> {
    /// `name`.
    pub name: &'a str,
    /// `datatype`, as the client spells it.
    pub datatype: &'a str,
    /// `shape`.
    pub shape: Shape,
    /// `parameters`.
    pub parameters: InferParameters<'a>,
    /// `contents`, if present.
    pub contents: Option<Contents<'a>>,
}

/// The typed contents of an input (`InferTensorContents`). The first pass only checks them and
/// notes the fields that have values; the values are read again when the datatype is known to
/// match.
#[derive(Clone, Debug)]
pub struct Contents<'a> {
    /// All fields of the input around it, in which contents may occur several times.
    input: MessageFields<'a>,
    /// Bit `n` is set if field number `n` has values.
    filled: u16,
}

/// One `InferRequestedOutputTensor`.
#[derive(Clone, Debug)]
pub struct OutputTensor<'a> {
    /// `name`.
    pub name: &'a str,
    /// `parameters`.
    pub parameters: InferParameters<'a>,
}

/// One `parameters` map, in the order of the message; of entries with the same key the last counts.
#[derive(Clone, Debug, Default)]
pub struct InferParameters<'a> {
    entries: SmallVec<[(&'a str, InferParameter<'a>); 2]>,
}

/// One `InferParameter`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum InferParameter<'a> {
    /// `bool_param`.
    Bool(bool),
    /// `double_param`.
    Double(f64),
    /// `int64_param`.
    Int64(i64),
    /// `string_param`.
    Str(&'a str),
    /// `uint64_param`.
    Uint64(u64),
    /// No value is set.
    #[default]
    Unset,
}

/// The reason why a request could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// More of something than its limit.
    Limit {
        /// The items of which there are too many.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// The bytes are not such a message.
    Wire(WireError),
}

impl From<WireError> for ReadError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Limit { what, max } => Self::invalid(format!("a request has at most {max} {what}, got more")),
            ReadError::Wire(_) => Self::new(Code::Internal, UNREADABLE),
        }
    }
}

/// Field number of `raw_input_contents`. The first occurrence is aligned in its buffer as the message is received.
pub const RAW_INPUT_CONTENTS: u32 = 7;

/// The model of a request and the size of its inputs, read without a look at their contents: cheap,
/// however large they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InferOutline<'a> {
    /// `model_name`.
    pub model_name: &'a str,
    /// `model_version`.
    pub model_version: &'a str,
    /// `id`.
    pub id: &'a str,
    /// Bytes of `inputs`, which hold typed contents.
    pub inputs_size: usize,
}

impl<'a> InferOutline<'a> {
    /// Reads it.
    ///
    /// # Errors
    ///
    /// A [`WireError`] if the bytes are not a message, or one of another type.
    pub fn read(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut outline = Self::default();
        for field in fields(bytes) {
            match field? {
                (1, wire) => outline.model_name = wire.as_str()?,
                (2, wire) => outline.model_version = wire.as_str()?,
                (3, wire) => outline.id = wire.as_str()?,
                (5, wire) => outline.inputs_size = outline.inputs_size.saturating_add(wire.as_bytes()?.len()),
                _ => {}
            }
        }
        Ok(outline)
    }
}

impl<'a> InferMessage<'a> {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// A [`ReadError`] if the bytes are not a `ModelInferRequest`, or a limit is exceeded.
    pub fn read(bytes: &'a Bytes) -> Result<Self, ReadError> {
        let mut message = Self {
            bytes,
            model_name: "",
            model_version: "",
            id: "",
            parameters: InferParameters::default(),
            inputs: SmallVec::new(),
            outputs: SmallVec::new(),
            raw: SmallVec::new(),
        };
        let mut fields = fields(bytes);
        while let Some(field) = fields.next() {
            let (number, wire) = field?;
            message.merge(number, wire, &fields)?;
        }
        Ok(message)
    }

    fn merge(&mut self, number: u32, wire: WireType<'a>, fields: &MessageFields<'a>) -> Result<(), ReadError> {
        match number {
            1 => self.model_name = wire.as_str()?,
            2 => self.model_version = wire.as_str()?,
            3 => self.id = wire.as_str()?,
            4 => self.parameters.merge(fields.inner(wire.as_bytes()?))?,
            5 => push(&mut self.inputs, InputTensor::read(fields.inner(wire.as_bytes()?))?, "inputs")?,
            6 => push(&mut self.outputs, OutputTensor::read(fields.inner(wire.as_bytes()?))?, "outputs")?,
            RAW_INPUT_CONTENTS => push(&mut self.raw, wire.as_bytes()?, "raw input contents")?,
            _ => {}
        }
        Ok(())
    }

    /// Number of `raw_input_contents`.
    #[inline]
    pub fn raw_count(&self) -> usize {
        self.raw.len()
    }

    /// One of the `raw_input_contents`, as a view of the message.
    #[inline]
    pub fn raw(&self, index: usize) -> Option<Bytes> {
        self.raw.get(index).map(|raw| self.bytes.slice_ref(raw))
    }
}

impl<'a> InputTensor<'a> {
    fn read(all: MessageFields<'a>) -> Result<Self, ReadError> {
        let mut input = Self {
            name: "",
            datatype: "",
            shape: Shape::new(),
            parameters: InferParameters::default(),
            contents: None,
        };
        let mut fields = all.clone();
        while let Some(field) = fields.next() {
            let (number, wire) = field?;
            match number {
                1 => input.name = wire.as_str()?,
                2 => input.datatype = wire.as_str()?,
                3 => input.merge_shape(wire)?,
                4 => input.parameters.merge(fields.inner(wire.as_bytes()?))?,
                CONTENTS => {
                    let contents = input.contents.get_or_insert_with(|| Contents { input: all.clone(), filled: 0 });
                    contents.merge(fields.inner(wire.as_bytes()?))?;
                }
                _ => {}
            }
        }
        Ok(input)
    }

    fn merge_shape(&mut self, wire: WireType<'_>) -> Result<(), ReadError> {
        for dimension in wire.as_varints()? {
            if self.shape.len() >= RANK_MAX {
                return Err(ReadError::Limit { what: "dimensions in one input", max: RANK_MAX });
            }
            self.shape.push(dimension?.cast_signed());
        }
        Ok(())
    }
}

const CONTENTS: u32 = 5;

impl<'a> Contents<'a> {
    /// Checks one occurrence and notes the fields that have values.
    fn merge(&mut self, fields: MessageFields<'a>) -> Result<(), WireError> {
        for field in fields {
            let (number, wire) = field?;
            let count = match number {
                1..=5 => wire.as_varints()?.check()?,
                6 => wire.as_fixed32s()?.len(),
                7 => wire.as_fixed64s()?.len(),
                8 => wire.as_bytes().map(|_| 1)?,
                _ => 0,
            };
            if count > 0 {
                self.filled |= 1 << number;
            }
        }
        Ok(())
    }

    /// Numbers of the fields that have values, ascending.
    pub fn filled(&self) -> impl Iterator<Item = u32> {
        (1..=8).filter(|number| self.filled >> number & 1 == 1)
    }

    /// All occurrences of one field, in order.
    pub fn occurrences(&self, number: u32) -> impl Iterator<Item = WireType<'a>> + Clone {
        // Dropping errors is safe: `read` has gone over the same bytes and would have returned them.
        let messages = self.input.clone().flatten().filter(|(number, _)| *number == CONTENTS);
        let messages = messages.filter_map(|(_, wire)| wire.as_bytes().ok());
        let input = self.input.clone();
        let all = messages.flat_map(move |bytes| input.inner(bytes).flatten());
        all.filter(move |(found, _)| *found == number).map(|(_, wire)| wire)
    }
}

impl<'a> OutputTensor<'a> {
    fn read(mut fields: MessageFields<'a>) -> Result<Self, ReadError> {
        let mut output = Self { name: "", parameters: InferParameters::default() };
        while let Some(field) = fields.next() {
            let (number, wire) = field?;
            match number {
                1 => output.name = wire.as_str()?,
                2 => output.parameters.merge(fields.inner(wire.as_bytes()?))?,
                _ => {}
            }
        }
        Ok(output)
    }
}

impl<'a> InferParameters<'a> {
    /// Adds one entry of the map.
    fn merge(&mut self, mut fields: MessageFields<'a>) -> Result<(), ReadError> {
        if self.entries.len() >= PARAMETERS_MAX {
            return Err(ReadError::Limit { what: "parameters in one place", max: PARAMETERS_MAX });
        }
        let (mut key, mut value) = ("", InferParameter::Unset);
        while let Some(field) = fields.next() {
            let (number, wire) = field?;
            match number {
                1 => key = wire.as_str()?,
                2 => value.merge(fields.inner(wire.as_bytes()?))?,
                _ => {}
            }
        }
        self.entries.push((key, value));
        Ok(())
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: &str) -> Option<InferParameter<'a>> {
        self.entries.iter().rev().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    /// Each key once, with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, InferParameter<'a>)> {
        // Quadratic, but in at most PARAMETERS_MAX entries, usually one or two.
        let is_last = |(index, (key, _)): &(usize, &(&str, _))| {
            !self.entries.iter().skip(index + 1).any(|(later, _)| later == key)
        };
        self.entries.iter().enumerate().filter(is_last).map(|(_, entry)| *entry)
    }
}

impl<'a> InferParameter<'a> {
    fn merge(&mut self, fields: MessageFields<'a>) -> Result<(), WireError> {
        for field in fields {
            let (number, wire) = field?;
            // A `oneof`: the last value counts, even after one of another type.
            *self = match number {
                1 => Self::Bool(wire.as_varint()? != 0),
                2 => Self::Int64(wire.as_varint()?.cast_signed()),
                3 => Self::Str(wire.as_str()?),
                4 => Self::Double(wire.as_double()?),
                5 => Self::Uint64(wire.as_varint()?),
                _ => continue,
            };
        }
        Ok(())
    }
}

fn push<T, const N: usize>(list: &mut SmallVec<[T; N]>, item: T, what: &'static str) -> Result<(), ReadError>
where
    [T; N]: smallvec::Array<Item = T>,
{
    if list.len() >= REQUEST_TENSORS_MAX {
        return Err(ReadError::Limit { what, max: REQUEST_TENSORS_MAX });
    }
    list.push(item);
    Ok(())
}
