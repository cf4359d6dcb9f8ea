//! The pieces that messages are made of, both ways. Reading never goes beyond the message, and allocates at most the
//! size that it has read.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::limits::PYTHON_TEXT_SIZE_MAX;
use crate::python::json;
use crate::python::message::frame::put_sized;
use crate::python::message::{ClaimedResponse, ClaimedTensor, MessageError, Span};
use backend::details::RequestDetails;
use base::error::{Code, Error};
use base::limits::{PARAMETERS_MAX, RANK_MAX, REQUEST_TENSORS_MAX, SEQUENCE_ID_SIZE_MAX};
use base::tensor::{Datatype, Shape, Tensor};
use model::CorrelationId;
use model::parameters::Parameters;

/// The flag of a datatype whose tensor has a span of its own: its offset is that in the region, and the slot and the
/// region follow its dimensions.
const OWN_SPAN: u8 = 0x80;

/// Reads a message from its front.
pub struct PieceReader<'a> {
    rest: &'a [u8],
}

impl<'a> PieceReader<'a> {
    /// A reader of a whole body.
    pub const fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Ends the message: no bytes may be left.
    pub const fn finish(self) -> Result<(), MessageError> {
        if self.rest.is_empty() { Ok(()) } else { Err(MessageError::Trailing) }
    }

    /// Returns true if no bytes are left.
    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], MessageError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(MessageError::End)?;
        self.rest = rest;
        Ok(*array)
    }

    fn bytes(&mut self, size: usize) -> Result<&'a [u8], MessageError> {
        let (bytes, rest) = self.rest.split_at_checked(size).ok_or(MessageError::End)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub fn u8(&mut self) -> Result<u8, MessageError> {
        self.array().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, MessageError> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn f64(&mut self) -> Result<f64, MessageError> {
        self.array().map(f64::from_le_bytes)
    }

    /// A byte that is 0 or 1.
    pub fn flag(&mut self) -> Result<bool, MessageError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MessageError::Value("a flag")),
        }
    }

    pub fn str16(&mut self) -> Result<&'a str, MessageError> {
        let size = usize::from(self.u16()?);
        self.text(size)
    }

    pub fn str32(&mut self) -> Result<&'a str, MessageError> {
        let size = usize::try_from(self.u32()?).map_err(|_| MessageError::End)?;
        self.text(size)
    }

    /// Bytes after their 32-bit size.
    pub fn bytes32(&mut self) -> Result<&'a [u8], MessageError> {
        let size = usize::try_from(self.u32()?).map_err(|_| MessageError::End)?;
        self.bytes(size)
    }

    /// A text of its own after its 32-bit size.
    pub fn string32(&mut self) -> Result<String, MessageError> {
        self.str32().map(str::to_owned)
    }

    /// A path after its 32-bit size, of any bytes.
    pub fn path32(&mut self) -> Result<PathBuf, MessageError> {
        self.bytes32().map(|bytes| PathBuf::from(OsString::from_vec(bytes.to_vec())))
    }

    fn text(&mut self, size: usize) -> Result<&'a str, MessageError> {
        std::str::from_utf8(self.bytes(size)?).map_err(|_| MessageError::Text)
    }

    /// `count` items, each read by `read`. The count is a claim: room grows with the items.
    pub fn list<T>(
        &mut self,
        count: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, MessageError>,
    ) -> Result<Vec<T>, MessageError> {
        (0..count).map(|_| read(self)).collect()
    }

    /// A list after its 16-bit count, of at most `count_max` items.
    pub fn list16<T>(
        &mut self,
        count_max: usize,
        read: impl FnMut(&mut Self) -> Result<T, MessageError>,
    ) -> Result<Vec<T>, MessageError> {
        let count = usize::from(self.u16()?);
        if count > count_max { Err(MessageError::Count) } else { self.list(count, read) }
    }

    /// A list after its 32-bit count.
    pub fn list32<T>(
        &mut self,
        read: impl FnMut(&mut Self) -> Result<T, MessageError>,
    ) -> Result<Vec<T>, MessageError> {
        let count = self.count32()?;
        self.list(count, read)
    }

    /// A 32-bit count: a claim, so that memory for its items grows with the message alone.
    pub fn count32(&mut self) -> Result<usize, MessageError> {
        usize::try_from(self.u32()?).map_err(|_| MessageError::Count)
    }

    /// Slots after their 32-bit count.
    pub fn slots(&mut self) -> Result<Vec<u32>, MessageError> {
        let count = self.count32()?;
        let size = count.checked_mul(size_of::<u32>()).ok_or(MessageError::End)?;
        let (slots, _) = self.bytes(size)?.as_chunks();
        Ok(slots.iter().map(|slot| u32::from_le_bytes(*slot)).collect())
    }

    pub fn span(&mut self) -> Result<Span, MessageError> {
        Ok(Span { slot: self.u32()?, region: self.u16()?, offset: self.u64()?, size: self.u64()? })
    }

    /// The description after the index or the name of a tensor.
    pub fn tensor(&mut self) -> Result<ClaimedTensor, MessageError> {
        let code = self.u8()?;
        let datatype = datatype_of(code & !OWN_SPAN).ok_or(MessageError::Value("a datatype"))?;
        let rank = usize::from(self.u8()?);
        if rank > RANK_MAX {
            return Err(MessageError::Count);
        }
        let (offset, size) = (self.u64()?, self.u64()?);
        let shape = (0..rank).map(|_| self.i64()).collect::<Result<Shape, _>>()?;
        if code & OWN_SPAN == 0 {
            return Ok(ClaimedTensor { datatype, shape, offset, size, own_span: None });
        }
        let own_span = Span { slot: self.u32()?, region: self.u16()?, offset, size };
        Ok(ClaimedTensor { datatype, shape, offset: 0, size, own_span: Some(own_span) })
    }

    pub fn named_tensor(&mut self) -> Result<(String, ClaimedTensor), MessageError> {
        Ok((self.str16()?.to_owned(), self.tensor()?))
    }

    /// JSON after its size; empty for no parameters.
    pub fn parameters(&mut self) -> Result<Parameters, MessageError> {
        match self.str32()? {
            "" => Ok(Parameters::default()),
            text => json::decode_parameters(text, PARAMETERS_MAX).ok_or(MessageError::Json),
        }
    }

    pub fn details(&mut self) -> Result<RequestDetails, MessageError> {
        let id = self.string32()?;
        let correlation_id = match self.u8()? {
            0 => None,
            1 => Some(CorrelationId::Number(self.u64()?)),
            2 => match self.str32()? {
                text if text.len() <= SEQUENCE_ID_SIZE_MAX => Some(CorrelationId::Text(text.into())),
                _ => return Err(MessageError::Count),
            },
            _ => return Err(MessageError::Value("a correlation id")),
        };
        Ok(RequestDetails {
            id,
            correlation_id,
            flags: self.u32()?,
            timeout: Duration::from_micros(self.u64()?),
            priority: self.u64()?,
            parameters: self.parameters()?,
            trace: Some(self.str32()?).filter(|trace| !trace.is_empty()).map(str::to_owned),
            ..RequestDetails::default()
        })
    }

    /// A response with tensors by index.
    pub fn response(&mut self) -> Result<ClaimedResponse, MessageError> {
        Ok(match self.u8()? {
            0 => ClaimedResponse::None,
            1 => {
                let (parameters, tensors) = self.outputs()?;
                ClaimedResponse::Outputs { parameters, tensors }
            }
            2 => ClaimedResponse::Error(self.error()?),
            3 => {
                let (parameters, tensors) = self.outputs()?;
                ClaimedResponse::Rescheduled { parameters, tensors }
            }
            _ => return Err(MessageError::Value("a response")),
        })
    }

    /// The code of an error, then its text.
    pub fn error(&mut self) -> Result<Error, MessageError> {
        let code = code_of(self.u8()?);
        Ok(Error::new(code, self.string32()?))
    }

    fn outputs(&mut self) -> Result<(Parameters, Vec<(u16, ClaimedTensor)>), MessageError> {
        let parameters = self.parameters()?;
        Ok((parameters, self.list16(REQUEST_TENSORS_MAX, |reader| Ok((reader.u16()?, reader.tensor()?)))?))
    }
}

pub fn put_u16(value: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub fn put_u32(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub fn put_u64(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// A count of 32 bits. One beyond is refused by the reader.
pub fn put_count(count: usize, out: &mut Vec<u8>) {
    put_u32(u32::try_from(count).unwrap_or(u32::MAX), out);
}

pub fn put_path(path: &Path, out: &mut Vec<u8>) {
    put_bytes32(path.as_os_str().as_bytes(), out);
}

pub fn put_str16(text: &str, out: &mut Vec<u8>) -> Result<(), MessageError> {
    put_u16(u16::try_from(text.len()).map_err(|_| MessageError::Count)?, out);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

pub fn put_str32(text: &str, out: &mut Vec<u8>) {
    put_bytes32(text.as_bytes(), out);
}

pub fn put_bytes32(bytes: &[u8], out: &mut Vec<u8>) {
    put_sized(out, |out| out.extend_from_slice(bytes));
}

/// A text of any length: the end of a very long one is cut off.
pub fn put_cut_text(text: &str, out: &mut Vec<u8>) {
    let (text, _) = text.split_at(text.floor_char_boundary(PYTHON_TEXT_SIZE_MAX));
    put_str32(text, out);
}

pub fn put_slots(slots: &[u32], out: &mut Vec<u8>) {
    put_count(slots.len(), out);
    slots.iter().for_each(|slot| put_u32(*slot, out));
}

pub fn put_span(span: &Span, out: &mut Vec<u8>) {
    put_u32(span.slot, out);
    put_u16(span.region, out);
    put_u64(span.offset, out);
    put_u64(span.size, out);
}

/// The description after the index or the name of a tensor.
pub fn put_tensor(tensor: &Tensor, offset: u64, out: &mut Vec<u8>) -> Result<(), MessageError> {
    let rank = u8::try_from(tensor.shape.len()).ok().filter(|rank| usize::from(*rank) <= RANK_MAX);
    out.extend_from_slice(&[datatype_code(tensor.datatype), rank.ok_or(MessageError::Count)?]);
    put_u64(offset, out);
    put_u64(tensor.contents.len() as u64, out);
    tensor.shape.iter().for_each(|dimension| out.extend_from_slice(&dimension.to_le_bytes()));
    Ok(())
}

pub fn put_parameters(parameters: &Parameters, out: &mut Vec<u8>) {
    put_sized(out, |out| {
        if !parameters.is_empty() {
            json::encode_parameters(parameters, out);
        }
    });
}

pub fn put_details(details: &RequestDetails, out: &mut Vec<u8>) {
    put_str32(&details.id, out);
    match &details.correlation_id {
        None => out.push(0),
        Some(CorrelationId::Number(number) | CorrelationId::Own(number)) => {
            out.push(1);
            put_u64(*number, out);
        }
        Some(CorrelationId::Text(text)) => {
            out.push(2);
            put_str32(text, out);
        }
    }
    put_u32(details.flags, out);
    put_u64(u64::try_from(details.timeout.as_micros()).unwrap_or(u64::MAX), out);
    put_u64(details.priority, out);
    put_parameters(&details.parameters, out);
    put_str32(details.trace.as_deref().unwrap_or_default(), out);
}

/// The code of an error, then its text.
pub fn put_error(error: &Error, out: &mut Vec<u8>) {
    out.push(code_number(error.code()));
    put_cut_text(error.text(), out);
}

/// The numbers of `TRITONSERVER_DataType`, in their order from 1.
const DATATYPES: [Datatype; 14] = [
    Datatype::Bool,
    Datatype::Uint8,
    Datatype::Uint16,
    Datatype::Uint32,
    Datatype::Uint64,
    Datatype::Int8,
    Datatype::Int16,
    Datatype::Int32,
    Datatype::Int64,
    Datatype::Fp16,
    Datatype::Fp32,
    Datatype::Fp64,
    Datatype::Bytes,
    Datatype::Bf16,
];

fn datatype_of(number: u8) -> Option<Datatype> {
    DATATYPES.get(usize::from(number).checked_sub(1)?).copied()
}

/// The number of a datatype in messages.
pub const fn datatype_code(datatype: Datatype) -> u8 {
    match datatype {
        Datatype::Bool => 1,
        Datatype::Uint8 => 2,
        Datatype::Uint16 => 3,
        Datatype::Uint32 => 4,
        Datatype::Uint64 => 5,
        Datatype::Int8 => 6,
        Datatype::Int16 => 7,
        Datatype::Int32 => 8,
        Datatype::Int64 => 9,
        Datatype::Fp16 => 10,
        Datatype::Fp32 => 11,
        Datatype::Fp64 => 12,
        Datatype::Bytes => 13,
        Datatype::Bf16 => 14,
    }
}

/// The meaning of `TRITONSERVER_Error_Code`; a number beyond it is the model's fault, as in Triton.
const fn code_of(number: u8) -> Code {
    match number {
        0 => Code::Unknown,
        2 => Code::NotFound,
        3 => Code::InvalidArgument,
        4 => Code::Unavailable,
        5 => Code::Unsupported,
        6 => Code::AlreadyExists,
        7 => Code::Cancelled,
        _ => Code::Internal,
    }
}

/// The number of a code; those that Triton lacks have the nearest, if there is one.
const fn code_number(code: Code) -> u8 {
    match code {
        Code::Unknown => 0,
        Code::Internal => 1,
        Code::NotFound => 2,
        Code::InvalidArgument | Code::MalformedJson | Code::TooLarge => 3,
        Code::DeadlineExceeded
        | Code::Exhausted
        | Code::Forbidden
        | Code::OutOfMemory
        | Code::RateLimited
        | Code::Restricted
        | Code::Unauthenticated
        | Code::Unavailable => 4,
        Code::MethodNotAllowed | Code::Unsupported | Code::UnsupportedMedia => 5,
        Code::AlreadyExists | Code::Conflict => 6,
        Code::Cancelled => 7,
    }
}
