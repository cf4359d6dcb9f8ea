//! The messages of the aux socket: requests of a process to the server at any time, and the
//! replies.

use crate::python::message::frame::{Frame, put_frame, put_small_frame};
use crate::python::message::piece::{
    PieceReader, put_cut_text, put_error, put_parameters, put_slots, put_span, put_str16, put_tensor, put_u16, put_u32,
    put_u64,
};
use crate::python::message::{ClaimedTensor, MessageError, Span, SpanLayout};
use backend::RequestDetails;
use backend::custom_metrics::{MetricKind, MetricOperation};
use backend::gateway::NestedReply;
use base::error::Error;
use base::limits::{ORDER_PARAMETERS_MAX, REQUEST_TENSORS_MAX};
use model::parameters::ParameterValue;

/// A message of a process on the aux socket.
#[derive(Clone, Debug, PartialEq)]
pub enum AuxMessage {
    /// Calls another model.
    BlsCall(Box<BlsCall>),
    /// The responses of a call are no longer needed.
    BlsCancel(u64),
    /// One response of a decoupled call was consumed.
    BlsRead(u64),
    /// An order to the server.
    Control(Box<ControlCall>),
    /// Asks if a request was cancelled.
    IsCancelled {
        /// Names the reply.
        call: u64,
        /// The number of the request.
        request: u64,
    },
    /// A line for the log.
    Log {
        /// Its level.
        level: LogLevel,
        /// The caller's line.
        line: u32,
        /// The caller's file.
        file: String,
        /// The text.
        text: String,
    },
    /// A new metric of a family.
    Metric {
        /// Names the reply.
        call: u64,
        /// The id of the family.
        family: u32,
        /// Names and values of the labels.
        labels: Vec<(String, String)>,
        /// The bounds of the buckets, for a histogram.
        buckets: Vec<f64>,
    },
    /// A family, or a metric, is gone.
    MetricDrop {
        /// True for a metric, false for a family.
        is_metric: bool,
        /// Its id.
        id: u32,
    },
    /// A new family of metrics.
    MetricFamily {
        /// Names the reply.
        call: u64,
        /// The kind of its metrics.
        kind: MetricKind,
        /// Its name.
        name: String,
        /// Its help text.
        description: String,
    },
    /// Changes a metric.
    MetricUpdate {
        /// Its id.
        metric: u32,
        /// The operation.
        operation: MetricOperation,
        /// The amount, or the new value.
        value: f64,
    },
    /// Asks for a metric's value.
    MetricValue {
        /// Names the reply.
        call: u64,
        /// Its id.
        metric: u32,
    },
    /// The answer of the model's readiness check.
    Ready {
        /// Names the question.
        ask: u64,
        /// The answer.
        state: ReadyState,
    },
    /// An older response region is unused by the process.
    RegionDropped(u16),
    /// Slots of the request region that are no longer referenced by an array.
    Release(Vec<u32>),
    /// The response region has no room.
    Space {
        /// Names the reply.
        call: u64,
        /// The bytes that are needed at once.
        size: u64,
        /// No slot is in use that could be waited for, so that only a larger region helps.
        must_grow: bool,
    },
}

/// The requests on whose behalf a process calls another model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlsParent {
    /// All of one batch, by the number of its first request.
    Batch(u64),
    /// One request, by its number.
    Request(u64),
    /// The process does not know.
    Unknown,
}

/// A call of another model.
#[derive(Clone, Debug, PartialEq)]
pub struct BlsCall {
    /// Names the replies.
    pub call: u64,
    /// The requests that it is made for.
    pub parent: BlsParent,
    /// True if it takes any number of responses.
    pub is_decoupled: bool,
    /// The model.
    pub model: String,
    /// Its version; `None` for any.
    pub version: Option<u64>,
    /// Without a deadline and a chain.
    pub details: RequestDetails,
    /// The memory of the inputs, in the response region.
    pub span: Span,
    /// The requested outputs; empty for all.
    pub outputs: Vec<String>,
    /// The inputs by name.
    pub inputs: Vec<(String, ClaimedTensor)>,
}

/// An order to the server about a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlCall {
    /// Names the reply.
    pub call: u64,
    /// The model.
    pub model: String,
    /// The operation.
    pub operation: ControlOperation,
}

/// The operation of an order, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlOperation {
    /// Is it decoupled?
    IsDecoupled {
        /// The version; empty for any.
        version: String,
    },
    /// Is it ready?
    IsReady {
        /// The version as the model wrote it; empty for any.
        version: String,
    },
    /// Load it.
    Load {
        /// Its configuration (JSON, not looked at here); `None` to take the repository's.
        config: Option<String>,
        /// The memory of the files.
        span: Span,
        /// The files that replace those of the repository.
        files: Vec<ClaimedFile>,
    },
    /// Unload it.
    Unload {
        /// Also the models that only this one needs.
        with_dependents: bool,
    },
}

/// A file in the memory of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedFile {
    /// Its path, not checked.
    pub path: String,
    /// Its start in the span of its message.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

/// The level of a line in a model's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// `log_error`.
    Error,
    /// `log_info`.
    Info,
    /// `log_verbose`.
    Verbose,
    /// `log_warn`.
    Warning,
}

/// The answer of a model's readiness check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyState {
    /// `is_ready` failed; the text of Python.
    Failed(String),
    /// It is not ready.
    No,
    /// It is ready.
    Yes,
}

/// One of the two regions between the server and a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionSide {
    /// The server writes it.
    Request,
    /// The process writes it.
    Response,
}

/// The reply to a process that has no room for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceOutcome<'a> {
    /// Slots were freed: look again.
    Again,
    /// A larger region was sent before this.
    Grown,
    /// There is no memory; the reason.
    Refused(&'a str),
}

/// The value in a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplyValue {
    /// Yes or no.
    Bool(bool),
    /// The id of a new family or metric.
    Id(u32),
    /// Only the confirmation that it was done.
    None,
    /// The value of a metric.
    Number(f64),
}

/// Reads one message.
///
/// # Errors
///
/// [`MessageError`] if it is not a message: the process is no longer usable.
pub fn decode_aux(frame: Frame<'_>) -> Result<AuxMessage, MessageError> {
    let mut reader = PieceReader::new(frame.body);
    let message = match frame.kind {
        1 => AuxMessage::Release(reader.slots()?),
        2 => AuxMessage::Space { call: reader.u64()?, size: reader.u64()?, must_grow: reader.flag()? },
        3 => AuxMessage::RegionDropped(reader.u16()?),
        4 => AuxMessage::IsCancelled { call: reader.u64()?, request: reader.u64()? },
        5 => AuxMessage::Log {
            level: log_level(reader.u8()?)?,
            line: reader.u32()?,
            file: reader.str16()?.to_owned(),
            text: reader.str32()?.to_owned(),
        },
        6 => AuxMessage::Ready { ask: reader.u64()?, state: ready_state(&mut reader)? },
        7 => AuxMessage::BlsCall(Box::new(bls_call(&mut reader)?)),
        8 => AuxMessage::BlsCancel(reader.u64()?),
        9 => AuxMessage::BlsRead(reader.u64()?),
        10 => AuxMessage::Control(Box::new(control_call(&mut reader)?)),
        11 => AuxMessage::MetricFamily {
            call: reader.u64()?,
            kind: metric_kind(reader.u8()?)?,
            name: reader.str16()?.to_owned(),
            description: reader.str16()?.to_owned(),
        },
        12 => AuxMessage::Metric {
            call: reader.u64()?,
            family: reader.u32()?,
            labels: labels(&mut reader)?,
            // 65,535 numbers at most are no burden.
            buckets: reader.list16(usize::from(u16::MAX), PieceReader::f64)?,
        },
        13 => AuxMessage::MetricUpdate {
            metric: reader.u32()?,
            operation: metric_operation(reader.u8()?)?,
            value: reader.f64()?,
        },
        14 => AuxMessage::MetricValue { call: reader.u64()?, metric: reader.u32()? },
        15 => AuxMessage::MetricDrop { is_metric: reader.flag()?, id: reader.u32()? },
        kind => return Err(MessageError::Kind(kind)),
    };
    reader.finish()?;
    Ok(message)
}

/// Appends REGION. It goes out with the region's descriptor.
pub fn put_region(side: RegionSide, region: u16, size: u64, out: &mut Vec<u8>) {
    put_small_frame(1, out, |out| {
        out.push(match side {
            RegionSide::Request => 0,
            RegionSide::Response => 1,
        });
        put_u16(region, out);
        put_u64(size, out);
    });
}

/// Appends SPACE_REPLY, with the slots of the response region that are free again.
pub fn put_space_reply(call: u64, outcome: SpaceOutcome<'_>, released: &[u32], out: &mut Vec<u8>) {
    put_small_frame(2, out, |out| {
        put_u64(call, out);
        match outcome {
            SpaceOutcome::Again => out.push(0),
            SpaceOutcome::Grown => out.push(1),
            SpaceOutcome::Refused(text) => {
                out.push(2);
                put_cut_text(text, out);
            }
        }
        put_slots(released, out);
    });
}

/// Appends REPLY.
pub fn put_reply(call: u64, outcome: Result<ReplyValue, &Error>, out: &mut Vec<u8>) {
    put_small_frame(3, out, |out| {
        put_u64(call, out);
        out.push(u8::from(outcome.is_err()));
        match outcome {
            Ok(ReplyValue::None) => out.push(0),
            Ok(ReplyValue::Bool(value)) => out.extend_from_slice(&[1, u8::from(value)]),
            Ok(ReplyValue::Number(value)) => {
                out.push(2);
                out.extend_from_slice(&value.to_le_bytes());
            }
            Ok(ReplyValue::Id(id)) => {
                out.push(3);
                put_u32(id, out);
            }
            Err(error) => put_error(error, out),
        }
    });
}

/// Appends BLS_REPLY. The outputs lie in its span as [`SpanLayout`] places them.
///
/// # Errors
///
/// [`MessageError`] if there are too many outputs, or names are too long. An error as the reply
/// always passes.
pub fn put_bls_reply(call: u64, reply: &NestedReply, span: &Span, out: &mut Vec<u8>) -> Result<(), MessageError> {
    put_frame(4, out, |out| {
        put_u64(call, out);
        out.push(u8::from(reply.is_final));
        put_span(span, out);
        let outputs = match &reply.outputs {
            Ok(outputs) => outputs,
            Err(error) => {
                out.push(2);
                put_error(error, out);
                return Ok(());
            }
        };
        out.push(1);
        put_parameters(&reply.parameters, out);
        put_u16(u16::try_from(outputs.len()).map_err(|_| MessageError::Count)?, out);
        let mut layout = SpanLayout::default();
        for (name, tensor) in outputs {
            put_str16(name, out)?;
            put_tensor(tensor, layout.place(tensor.contents.len()), out)?;
        }
        Ok(())
    })
}

/// Appends IS_READY.
pub fn put_is_ready(ask: u64, out: &mut Vec<u8>) {
    put_small_frame(5, out, |out| put_u64(ask, out));
}

fn bls_call(reader: &mut PieceReader<'_>) -> Result<BlsCall, MessageError> {
    let (call, parent, flags) = (reader.u64()?, reader.u64()?, reader.u8()?);
    if flags > 3 {
        return Err(MessageError::Value("the flags of a call"));
    }
    Ok(BlsCall {
        call,
        parent: match parent {
            0 => BlsParent::Unknown,
            first if flags & 2 != 0 => BlsParent::Batch(first),
            request => BlsParent::Request(request),
        },
        is_decoupled: flags & 1 != 0,
        model: reader.str16()?.to_owned(),
        version: u64::try_from(reader.i64()?).ok(),
        details: reader.details()?,
        span: reader.span()?,
        outputs: reader.list16(REQUEST_TENSORS_MAX, |reader| Ok(reader.str16()?.to_owned()))?,
        inputs: reader.list16(REQUEST_TENSORS_MAX, PieceReader::named_tensor)?,
    })
}

/// All fields are always there; those that do not belong to the operation are ignored.
fn control_call(reader: &mut PieceReader<'_>) -> Result<ControlCall, MessageError> {
    let (call, operation) = (reader.u64()?, reader.u8()?);
    let (model, version) = (reader.str16()?.to_owned(), reader.str16()?);
    let (with_dependents, config, span) = (reader.flag()?, reader.str32()?, reader.span()?);
    let files = reader.list16(ORDER_PARAMETERS_MAX, |reader| {
        Ok(ClaimedFile { path: reader.str16()?.to_owned(), offset: reader.u64()?, size: reader.u64()? })
    })?;
    let operation = match operation {
        0 => {
            let config = Some(config).filter(|config| !config.is_empty()).map(str::to_owned);
            ControlOperation::Load { config, span, files }
        }
        1 => ControlOperation::Unload { with_dependents },
        2 => ControlOperation::IsReady { version: version.to_owned() },
        3 => ControlOperation::IsDecoupled { version: version.to_owned() },
        _ => return Err(MessageError::Value("the operation")),
    };
    Ok(ControlCall { call, model, operation })
}

fn labels(reader: &mut PieceReader<'_>) -> Result<Vec<(String, String)>, MessageError> {
    let label = |(name, value)| match value {
        ParameterValue::Text(text) => Ok((name, text)),
        _ => Err(MessageError::Json),
    };
    reader.parameters()?.0.into_iter().map(label).collect()
}

fn ready_state(reader: &mut PieceReader<'_>) -> Result<ReadyState, MessageError> {
    let (state, text) = (reader.u8()?, reader.str32()?);
    match state {
        0 => Ok(ReadyState::No),
        1 => Ok(ReadyState::Yes),
        2 => Ok(ReadyState::Failed(text.to_owned())),
        _ => Err(MessageError::Value("the state")),
    }
}

const fn log_level(number: u8) -> Result<LogLevel, MessageError> {
    match number {
        0 => Ok(LogLevel::Info),
        1 => Ok(LogLevel::Warning),
        2 => Ok(LogLevel::Error),
        3 => Ok(LogLevel::Verbose),
        _ => Err(MessageError::Value("the level")),
    }
}

const fn metric_kind(number: u8) -> Result<MetricKind, MessageError> {
    match number {
        0 => Ok(MetricKind::Counter),
        1 => Ok(MetricKind::Gauge),
        2 => Ok(MetricKind::Histogram),
        _ => Err(MessageError::Value("the kind of a family")),
    }
}

const fn metric_operation(number: u8) -> Result<MetricOperation, MessageError> {
    match number {
        0 => Ok(MetricOperation::Increment),
        1 => Ok(MetricOperation::Set),
        2 => Ok(MetricOperation::Observe),
        _ => Err(MessageError::Value("the operation of a metric")),
    }
}
