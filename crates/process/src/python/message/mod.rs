//! The messages between the server and a Python process, server side
//! (`docs/architecture/python.md`, "Protocol"). Pure: `instance` reads and writes the sockets. Data
//! from the process is a claim. Its sizes and counts are bounded here; `region` checks the place of
//! a tensor.

mod aux_socket;
mod frame;
mod main_socket;
mod piece;
pub mod process_side;

use std::fmt;

use base::error::Error;
use base::limits::TENSOR_ALIGNMENT;
use base::tensor::{Datatype, Shape};
use model::parameters::Parameters;

pub use self::aux_socket::{
    AuxMessage, BlsCall, BlsParent, ClaimedFile, ControlCall, ControlOperation, LogLevel, ReadyState, RegionSide,
    ReplyValue, SpaceOutcome, decode_aux, put_bls_reply, put_is_ready, put_region, put_reply, put_space_reply,
};
pub use self::frame::{Frame, FrameBuffer};
pub use self::main_socket::{
    Capabilities, ExecuteHead, ExecuteRequest, MainMessage, RequestTimes, WorkClaim, decode_main, put_execute,
    put_finalize, put_fork, put_init, put_init_bytes, put_start,
};
pub use self::piece::datatype_code;
pub(crate) use self::piece::{
    PieceReader, put_bytes32, put_count, put_cut_text, put_path, put_str32, put_tensor, put_u16, put_u32, put_u64,
};

/// The memory of one message: a part of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Names it when it is freed.
    pub slot: u32,
    /// Its region.
    pub region: u16,
    /// Its start in the region.
    pub offset: u64,
    /// Its bytes; 0 for no memory, and then there is no slot.
    pub size: u64,
}

/// A tensor as a process describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedTensor {
    /// Its datatype.
    pub datatype: Datatype,
    /// Its shape, of at most `RANK_MAX` dimensions; any of them may be negative.
    pub shape: Shape,
    /// Its start in its span.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// A span of its own; `None` if it lies in that of its message.
    pub own_span: Option<Span>,
}

/// The response of a process to one request.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimedResponse {
    /// The request fails.
    Error(Error),
    /// Nothing: a sender of the request answers.
    None,
    /// Outputs, by their index in the model.
    Outputs {
        /// The response's parameters.
        parameters: Parameters,
        /// At most `REQUEST_TENSORS_MAX`.
        tensors: Vec<(u16, ClaimedTensor)>,
    },
    /// The request runs again.
    Rescheduled {
        /// The response's parameters.
        parameters: Parameters,
        /// At most `REQUEST_TENSORS_MAX`.
        tensors: Vec<(u16, ClaimedTensor)>,
    },
}

/// The layout of the server's tensors in a span: one after the other in the order of the message,
/// each aligned. The encoders place by it, and so does the code that writes the tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanLayout {
    end: u64,
}

impl SpanLayout {
    /// Places the next `size` bytes; returns their offset in the span.
    pub const fn place(&mut self, size: usize) -> u64 {
        let offset = self.end.next_multiple_of(TENSOR_ALIGNMENT as u64);
        self.end = offset + size as u64;
        offset
    }

    /// The layout of tensors with these sizes.
    pub fn of(sizes: impl Iterator<Item = usize>) -> Self {
        let mut layout = Self::default();
        sizes.for_each(|size| {
            layout.place(size);
        });
        layout
    }

    /// The bytes that the span needs for the placed tensors.
    pub const fn size(&self) -> u64 {
        self.end
    }
}

/// The reason why a message of a process is refused, and the process with it; or why one cannot be
/// written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// More items, dimensions or letters than the limit.
    Count,
    /// It ends in the middle of a piece.
    End,
    /// A frame without a kind, or larger than the limit.
    FrameSize,
    /// Text that is not the JSON it should be.
    Json,
    /// No such message.
    Kind(u8),
    /// A tensor outside its span, or a span outside its region.
    Range,
    /// A tensor whose size is not that of its datatype and shape.
    Size,
    /// A BYTES tensor whose elements do not fill it, or are not as many as its shape says.
    Strings,
    /// Text that is not UTF-8.
    Text,
    /// Bytes after its last piece.
    Trailing,
    /// A piece with an invalid value; the piece.
    Value(&'static str),
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count => f.write_str("the message has more items, dimensions or letters than it may"),
            Self::End => f.write_str("the message ends too early"),
            Self::FrameSize => f.write_str("the size of the message is zero, or larger than any may be"),
            Self::Json => f.write_str("the message has unexpected JSON"),
            Self::Kind(kind) => write!(f, "there is no message of kind {kind}"),
            Self::Range => f.write_str("a tensor lies outside the memory of its message"),
            Self::Size => f.write_str("the size of a tensor does not fit its datatype and shape"),
            Self::Strings => f.write_str("the elements of a BYTES tensor do not fit its size and shape"),
            Self::Text => f.write_str("a text of the message is not UTF-8"),
            Self::Trailing => f.write_str("the message has bytes behind its end"),
            Self::Value(piece) => write!(f, "{piece} of the message has an unknown value"),
        }
    }
}

impl std::error::Error for MessageError {}

#[cfg(test)]
mod tests;
