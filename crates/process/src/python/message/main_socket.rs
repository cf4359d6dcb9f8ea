//! The messages of the main socket: one batch after the other, and the life of the model.

use std::time::Duration;

use crate::python::json::{self, JsonItem};
use crate::python::message::frame::{Frame, put_frame, put_sized, put_small_frame};
use crate::python::message::piece::{
    PieceReader, put_bytes32, put_details, put_slots, put_span, put_str16, put_tensor, put_u16, put_u32, put_u64,
};
use crate::python::message::{ClaimedResponse, MessageError, Span, SpanLayout};
use backend::{OutputNeed, OutputNeeds, RequestDetails};
use base::error::Error;
use base::limits::{BATCH_REQUESTS_MAX, PARAMETERS_MAX};
use base::metrics::{ResponseOutcome, StageTimes};
use base::tensor::Tensor;
use model::parameters::ParameterValue;

/// A message of a process on the main socket.
#[derive(Clone, Debug, PartialEq)]
pub enum MainMessage {
    /// A batch awaits something: another may begin.
    Awaits {
        /// The number of the batch.
        batch: u64,
    },
    /// `auto_complete_config` made this configuration (JSON, not looked at here).
    Completed(String),
    /// The import, `initialize` or `auto_complete_config` failed; the text of Python.
    Failed(String),
    /// `finalize` has returned.
    Finalized,
    /// `initialize` has returned.
    Initialized(Capabilities),
    /// The load failed with this error: a process of this program sends it instead of `Failed`.
    Refused(Error),
    /// `execute` has returned.
    Responses {
        /// The number of its batch.
        batch: u64,
        /// True if nothing refers to the inputs any longer.
        inputs_free: bool,
        /// The memory of the outputs.
        span: Span,
        /// The response to each request, in order, or the error of the batch.
        outcome: Result<Vec<ClaimedResponse>, String>,
    },
    /// A sender sends a response, or ends.
    Send {
        /// The number of its request.
        request: u64,
        /// `TRITONSERVER_RESPONSE_COMPLETE_FINAL`.
        is_final: bool,
        /// The last reference to the sender is gone.
        is_closed: bool,
        /// The memory of the outputs.
        span: Span,
        /// The response; `None` if there are only flags.
        response: ClaimedResponse,
    },
    /// The times of requests that the next message answers. At most `BATCH_REQUESTS_MAX`.
    Times(Vec<RequestTimes>),
    /// A backend reports on its work, behind the answer that it is about.
    Report(WorkClaim),
}

/// A backend's report on its work, as its process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkClaim {
    /// On a batch.
    Batch {
        /// Its number.
        batch: u64,
        /// Its rows.
        rows: u32,
        /// Its times.
        times: StageTimes,
    },
    /// On a request.
    Request {
        /// Its number.
        request: u64,
        /// True if it is a success.
        is_success: bool,
        /// Its times.
        times: StageTimes,
    },
    /// On a response of a decoupled model.
    Response {
        /// The number of its request.
        request: u64,
        /// Its index among the responses to it, from 0.
        index: u32,
        /// Its outcome.
        outcome: ResponseOutcome,
        /// Its time in the model.
        infer: Duration,
        /// The time to prepare its outputs.
        output: Duration,
    },
}

impl WorkClaim {
    /// The number of the request that it is about; `None` for a batch.
    pub const fn request(&self) -> Option<u64> {
        match self {
            Self::Batch { .. } => None,
            Self::Request { request, .. } | Self::Response { request, .. } => Some(*request),
        }
    }
}

/// The times of a request's run, in nanoseconds since the process began its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTimes {
    /// The number of the request.
    pub request: u64,
    /// The time at which its inputs were ready.
    pub input_end: u64,
    /// The time at which it was computed.
    pub infer_end: u64,
}

/// The capabilities of a model, and the versions that it runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// It has `is_ready`.
    pub has_is_ready: bool,
    /// It has `execute`.
    pub has_execute: bool,
    /// `execute` is a coroutine.
    pub is_async: bool,
    /// The process's id, as it sees it.
    pub pid: i64,
    /// The release of Python.
    pub python: String,
    /// The release of numpy.
    pub numpy: String,
}

/// The fields of EXECUTE for the batch.
#[derive(Clone, Copy, Debug)]
pub struct ExecuteHead<'a> {
    /// The number of the batch.
    pub batch: u64,
    /// The memory of the inputs.
    pub span: Span,
    /// Slots of the response region that are free again.
    pub released: &'a [u32],
    /// The number of the model's outputs.
    pub output_count: u16,
}

/// The fields of EXECUTE for one request.
#[derive(Clone, Copy, Debug)]
pub struct ExecuteRequest<'a> {
    /// The number of the request.
    pub request: u64,
    /// Its details, if it has any.
    pub details: Option<&'a RequestDetails>,
    /// The outputs that its answer needs: unneeded ones are not asked for.
    pub needs: &'a OutputNeeds,
    /// The tensors in the order of the model's inputs. Those that were left out are not sent.
    pub inputs: &'a [Tensor],
}

/// Reads one message.
///
/// # Errors
///
/// [`MessageError`] if it is not a message: the process is no longer usable.
pub fn decode_main(frame: Frame<'_>) -> Result<MainMessage, MessageError> {
    let mut reader = PieceReader::new(frame.body);
    let message = match frame.kind {
        1 => MainMessage::Initialized(capabilities(reader.str32()?)?),
        2 => MainMessage::Failed(reader.string32()?),
        3 => MainMessage::Responses {
            batch: reader.u64()?,
            inputs_free: reader.flag()?,
            span: reader.span()?,
            outcome: outcome(&mut reader)?,
        },
        4 => {
            let (request, flags) = (reader.u64()?, reader.u8()?);
            if flags > 3 {
                return Err(MessageError::Value("the flags of a response"));
            }
            let (is_final, is_closed) = (flags & 1 != 0, flags & 2 != 0);
            MainMessage::Send { request, is_final, is_closed, span: reader.span()?, response: reader.response()? }
        }
        5 => MainMessage::Finalized,
        6 => MainMessage::Completed(reader.string32()?),
        7 => MainMessage::Times(reader.list16(BATCH_REQUESTS_MAX, |reader| {
            Ok(RequestTimes { request: reader.u64()?, input_end: reader.u64()?, infer_end: reader.u64()? })
        })?),
        8 => MainMessage::Refused(reader.error()?),
        9 => MainMessage::Awaits { batch: reader.u64()? },
        10 => MainMessage::Report(work_claim(&mut reader)?),
        kind => return Err(MessageError::Kind(kind)),
    };
    reader.finish()?;
    Ok(message)
}

/// Appends the first message, which is not a frame: the sources of the modules that the process
/// consists of, each with its name. It goes out with three descriptors.
///
/// # Errors
///
/// [`MessageError::Count`] if a name is too long.
pub fn put_start(modules: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), MessageError> {
    put_u32(u32::try_from(modules.len()).map_err(|_| MessageError::Count)?, out);
    for (name, source) in modules {
        put_str16(name, out)?;
        put_bytes32(source.as_bytes(), out);
    }
    Ok(())
}

/// Appends INIT.
///
/// # Errors
///
/// [`MessageError::FrameSize`] if the document is larger than a frame may be.
pub fn put_init(document: &JsonItem<'_>, out: &mut Vec<u8>) -> Result<(), MessageError> {
    put_frame(1, out, |out| {
        put_sized(out, |out| document.encode(out));
        Ok(())
    })
}

/// Appends INIT of a process of this program.
///
/// # Errors
///
/// [`MessageError::FrameSize`] if it is larger than a frame may be.
pub fn put_init_bytes(order: &[u8], out: &mut Vec<u8>) -> Result<(), MessageError> {
    put_frame(1, out, |out| {
        put_bytes32(order, out);
        Ok(())
    })
}

/// Appends EXECUTE. The inputs lie in its span as [`SpanLayout`] places them, in the order of the requests.
///
/// # Errors
///
/// [`MessageError::FrameSize`] if the details are larger than a frame may be: a smaller batch may
/// pass.
pub fn put_execute<'a>(
    head: &ExecuteHead<'_>,
    requests: impl ExactSizeIterator<Item = ExecuteRequest<'a>>,
    out: &mut Vec<u8>,
) -> Result<(), MessageError> {
    put_frame(2, out, |out| {
        put_u64(head.batch, out);
        put_span(&head.span, out);
        put_slots(head.released, out);
        put_u32(u32::try_from(requests.len()).map_err(|_| MessageError::Count)?, out);
        let mut layout = SpanLayout::default();
        for request in requests {
            put_request(&request, head.output_count, &mut layout, out)?;
        }
        Ok(())
    })
}

/// Appends FINALIZE.
pub fn put_finalize(out: &mut Vec<u8>) {
    put_small_frame(3, out, |_| {});
}

/// Appends FORK, which six descriptors come with.
pub fn put_fork(out: &mut Vec<u8>) {
    put_small_frame(4, out, |_| {});
}

fn put_request(
    request: &ExecuteRequest<'_>,
    output_count: u16,
    layout: &mut SpanLayout,
    out: &mut Vec<u8>,
) -> Result<(), MessageError> {
    put_u64(request.request, out);
    out.push(u8::from(request.details.is_some()));
    if let Some(details) = request.details {
        put_details(details, out);
    }
    let wanted = || (0..output_count).filter(|index| request.needs.of(usize::from(*index)) != OutputNeed::Nothing);
    put_u16(u16::try_from(wanted().count()).unwrap_or(u16::MAX), out);
    wanted().for_each(|index| put_u16(index, out));
    let given = || (0..).zip(request.inputs).filter(|(_, tensor)| tensor.is_given());
    put_u16(u16::try_from(given().count()).map_err(|_| MessageError::Count)?, out);
    for (index, tensor) in given() {
        put_u16(index, out);
        put_tensor(tensor, layout.place(tensor.contents.len()), out)?;
    }
    Ok(())
}

fn capabilities(text: &str) -> Result<Capabilities, MessageError> {
    let found = json::decode_parameters(text, PARAMETERS_MAX).ok_or(MessageError::Json)?;
    let member = |name| found.0.iter().find(|(have, _)| have == name).map(|(_, value)| value).ok_or(MessageError::Json);
    let flag = |name| match member(name)? {
        ParameterValue::Bool(value) => Ok(*value),
        _ => Err(MessageError::Json),
    };
    let text = |name| match member(name)? {
        ParameterValue::Text(value) => Ok(value.clone()),
        _ => Err(MessageError::Json),
    };
    let ParameterValue::Int64(pid) = *member("pid")? else { return Err(MessageError::Json) };
    Ok(Capabilities {
        has_is_ready: flag("is_ready")?,
        has_execute: flag("execute")?,
        is_async: flag("is_async")?,
        pid,
        python: text("python")?,
        numpy: text("numpy")?,
    })
}

fn work_claim(reader: &mut PieceReader<'_>) -> Result<WorkClaim, MessageError> {
    let (kind, number) = (reader.u8()?, reader.u64()?);
    Ok(match kind {
        0 => WorkClaim::Batch { batch: number, rows: reader.u32()?, times: stage_times(reader)? },
        1 => WorkClaim::Request { request: number, is_success: reader.flag()?, times: stage_times(reader)? },
        2 => {
            let (index, outcome) = (reader.u32()?, reader.u8()?);
            let outcome = RESPONSE_OUTCOMES.get(usize::from(outcome)).copied();
            let outcome = outcome.ok_or(MessageError::Value("the outcome of a response"))?;
            WorkClaim::Response { request: number, index, outcome, infer: nanos(reader)?, output: nanos(reader)? }
        }
        _ => return Err(MessageError::Value("the kind of a report")),
    })
}

fn stage_times(reader: &mut PieceReader<'_>) -> Result<StageTimes, MessageError> {
    Ok(StageTimes { input: nanos(reader)?, infer: nanos(reader)?, output: nanos(reader)? })
}

fn nanos(reader: &mut PieceReader<'_>) -> Result<Duration, MessageError> {
    reader.u64().map(Duration::from_nanos)
}

/// The outcomes of responses by their number in a report.
pub(super) const RESPONSE_OUTCOMES: [ResponseOutcome; 4] =
    [ResponseOutcome::Cancelled, ResponseOutcome::Empty, ResponseOutcome::Failed, ResponseOutcome::Succeeded];

fn outcome(reader: &mut PieceReader<'_>) -> Result<Result<Vec<ClaimedResponse>, String>, MessageError> {
    if reader.flag()? {
        return Ok(Err(reader.string32()?));
    }
    let count = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
    if count > BATCH_REQUESTS_MAX {
        return Err(MessageError::Count);
    }
    reader.list(count, PieceReader::response).map(Ok)
}
