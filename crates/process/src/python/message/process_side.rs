//! The messages as a process of this program reads and writes them: the other side of `main_socket`
//! and `aux_socket`, where a Python process has its own program. Pure. The server's messages are
//! trusted to be complete, and read with the same checks nevertheless.

use std::time::Duration;

use crate::python::message::frame::{Frame, put_frame, put_small_frame};
use crate::python::message::main_socket::RESPONSE_OUTCOMES;
use crate::python::message::piece::{
    PieceReader, put_bytes32, put_cut_text, put_details, put_error, put_parameters, put_slots, put_span, put_str16,
    put_str32, put_tensor, put_u16, put_u32, put_u64,
};
use crate::python::message::{
    ClaimedTensor, LogLevel, MessageError, RegionSide, ReplyValue, RequestTimes, Span, SpanLayout, WorkClaim,
};
use backend::custom_metrics::{MetricKind, MetricOperation};
use backend::gateway::OrderKind;
use backend::{RequestDetails, gateway::NestedCall};
use base::error::Error;
use base::limits::{BATCH_REQUESTS_MAX, REQUEST_TENSORS_MAX};
use base::metrics::StageTimes;
use base::tensor::Tensor;
use model::parameters::Parameters;

/// A message of the server on the main socket.
#[derive(Debug, PartialEq)]
pub enum MainOrder<'a> {
    /// Run a batch.
    Execute(ExecuteOrder),
    /// Finalize the model and end.
    Finalize,
    /// The order to load a model.
    Init(&'a [u8]),
}

/// A batch to run.
#[derive(Debug, PartialEq)]
pub struct ExecuteOrder {
    /// Its number.
    pub batch: u64,
    /// The memory of its inputs.
    pub span: Span,
    /// Slots of the response region that are free again.
    pub released: Vec<u32>,
    /// Its requests.
    pub requests: Vec<OrderedRequest>,
}

/// One request of a batch.
#[derive(Debug, PartialEq)]
pub struct OrderedRequest {
    /// Its number.
    pub request: u64,
    /// Its details beside its tensors.
    pub details: Option<RequestDetails>,
    /// The outputs that it needs, by their index.
    pub wanted: Vec<u16>,
    /// The inputs that it gives, by their index.
    pub inputs: Vec<(u16, ClaimedTensor)>,
}

/// A message of the server on the aux socket.
#[derive(Debug, PartialEq)]
pub enum AuxOrder {
    /// A response to a call of another model.
    BlsReply {
        /// The call.
        call: u64,
        /// True if it is the last.
        is_final: bool,
        /// The memory of the outputs.
        span: Span,
        /// Parameters and outputs, or the error.
        outcome: Result<(Parameters, Vec<(String, ClaimedTensor)>), Error>,
    },
    /// The readiness check of the model. Names the answer.
    IsReady(u64),
    /// A new region, whose descriptor came with it.
    Region(RegionSide, u16),
    /// The reply to a call.
    Reply {
        /// The call.
        call: u64,
        /// Its outcome.
        outcome: Result<ReplyValue, Error>,
    },
    /// The reply to [`put_space`].
    SpaceReply {
        /// The call.
        call: u64,
        /// `Ok` to look again, or the reason for having no further memory.
        outcome: Result<(), String>,
        /// Slots of the response region that are free again.
        released: Vec<u32>,
    },
}

/// The response of a process to one request.
#[derive(Clone, Copy, Debug)]
pub enum SentResponse<'a> {
    /// It fails.
    Error(&'a Error),
    /// Nothing: its answer was sent already or comes later.
    None,
    /// Outputs, in the order of the model's; those that are missing are not sent.
    Outputs {
        /// The response's parameters.
        parameters: Option<&'a Parameters>,
        /// The outputs.
        outputs: &'a [Tensor],
        /// True if the request runs again.
        is_again: bool,
    },
}

impl<'a> SentResponse<'a> {
    /// The outputs that are sent, by their index.
    pub fn given(&self) -> impl Iterator<Item = (u16, &'a Tensor)> {
        let outputs: &'a [Tensor] = if let Self::Outputs { outputs, .. } = self { outputs } else { &[] };
        (0..).zip(outputs).filter(|(_, output)| !output.is_missing())
    }
}

/// Reads a message of the main socket.
///
/// # Errors
/// [`MessageError`] if it is not one.
pub fn decode_order(frame: Frame<'_>) -> Result<MainOrder<'_>, MessageError> {
    let mut reader = PieceReader::new(frame.body);
    let order = match frame.kind {
        1 => MainOrder::Init(reader.bytes32()?),
        2 => MainOrder::Execute(execute_order(&mut reader)?),
        3 => MainOrder::Finalize,
        kind => return Err(MessageError::Kind(kind)),
    };
    reader.finish()?;
    Ok(order)
}

fn execute_order(reader: &mut PieceReader<'_>) -> Result<ExecuteOrder, MessageError> {
    let (batch, span, released) = (reader.u64()?, reader.span()?, reader.slots()?);
    let count = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
    if count > BATCH_REQUESTS_MAX {
        return Err(MessageError::Count);
    }
    let requests = reader.list(count, |reader| {
        Ok(OrderedRequest {
            request: reader.u64()?,
            details: if reader.flag()? { Some(reader.details()?) } else { None },
            wanted: reader.list16(usize::from(u16::MAX), PieceReader::u16)?,
            inputs: reader.list16(REQUEST_TENSORS_MAX, |reader| Ok((reader.u16()?, reader.tensor()?)))?,
        })
    })?;
    Ok(ExecuteOrder { batch, span, released, requests })
}

/// Reads a message of the aux socket.
///
/// # Errors
/// [`MessageError`] if it is not one.
pub fn decode_aux_order(frame: Frame<'_>) -> Result<AuxOrder, MessageError> {
    let mut reader = PieceReader::new(frame.body);
    let order = match frame.kind {
        1 => {
            let side = if reader.flag()? { RegionSide::Response } else { RegionSide::Request };
            let (region, _size) = (reader.u16()?, reader.u64()?);
            AuxOrder::Region(side, region)
        }
        2 => {
            let (call, outcome) = (reader.u64()?, reader.u8()?);
            let outcome = if outcome == 2 { Err(reader.string32()?) } else { Ok(()) };
            AuxOrder::SpaceReply { call, outcome, released: reader.slots()? }
        }
        3 => AuxOrder::Reply { call: reader.u64()?, outcome: reply(&mut reader)? },
        4 => {
            let (call, is_final, span) = (reader.u64()?, reader.flag()?, reader.span()?);
            let outcome = match reader.u8()? {
                1 => Ok((reader.parameters()?, reader.list16(REQUEST_TENSORS_MAX, PieceReader::named_tensor)?)),
                2 => Err(reader.error()?),
                _ => return Err(MessageError::Value("a response")),
            };
            AuxOrder::BlsReply { call, is_final, span, outcome }
        }
        5 => AuxOrder::IsReady(reader.u64()?),
        kind => return Err(MessageError::Kind(kind)),
    };
    reader.finish()?;
    Ok(order)
}

fn reply(reader: &mut PieceReader<'_>) -> Result<Result<ReplyValue, Error>, MessageError> {
    if reader.flag()? {
        return Ok(Err(reader.error()?));
    }
    Ok(Ok(match reader.u8()? {
        0 => ReplyValue::None,
        1 => ReplyValue::Bool(reader.flag()?),
        2 => ReplyValue::Number(reader.f64()?),
        3 => ReplyValue::Id(reader.u32()?),
        _ => return Err(MessageError::Value("a reply")),
    }))
}

/// Appends INITIALIZED: the model serves; `has_ready` is true if it has a readiness check.
pub fn put_initialized(has_ready: bool, out: &mut Vec<u8>) {
    let pid = std::process::id();
    let text =
        format!(r#"{{"is_ready":{has_ready},"execute":true,"is_async":false,"pid":{pid},"python":"","numpy":""}}"#);
    put_small_frame(1, out, |out| put_str32(&text, out));
}

/// Appends RESPONSES. The outputs lie in its span as [`SpanLayout`] places them, in the order of the responses.
///
/// # Errors
/// [`MessageError`] if it is larger than a frame may be.
pub fn put_responses(
    batch: u64,
    inputs_free: bool,
    span: &Span,
    responses: &[SentResponse<'_>],
    out: &mut Vec<u8>,
) -> Result<(), MessageError> {
    put_frame(3, out, |out| {
        put_u64(batch, out);
        out.push(u8::from(inputs_free));
        put_span(span, out);
        out.push(0);
        put_u32(u32::try_from(responses.len()).map_err(|_| MessageError::Count)?, out);
        let mut layout = SpanLayout::default();
        responses.iter().try_for_each(|response| put_response(response, &mut layout, out))
    })
}

/// Appends SEND: one response, or the last with `is_final`.
///
/// # Errors
/// [`MessageError`] if it is larger than a frame may be.
pub fn put_send(
    request: u64,
    is_final: bool,
    span: &Span,
    response: &SentResponse<'_>,
    out: &mut Vec<u8>,
) -> Result<(), MessageError> {
    put_frame(4, out, |out| {
        put_u64(request, out);
        out.push(u8::from(is_final));
        put_span(span, out);
        put_response(response, &mut SpanLayout::default(), out)
    })
}

/// Appends FINALIZED.
pub fn put_finalized(out: &mut Vec<u8>) {
    put_small_frame(5, out, |_| {});
}

/// Appends COMPLETED with a document of the backend's kind.
///
/// # Errors
/// [`MessageError::FrameSize`] if it is larger than a frame may be.
pub fn put_completed(document: &str, out: &mut Vec<u8>) -> Result<(), MessageError> {
    put_frame(6, out, |out| {
        put_str32(document, out);
        Ok(())
    })
}

/// Appends TIMES: the times of requests that the next message answers.
pub fn put_times(times: &[RequestTimes], out: &mut Vec<u8>) {
    put_small_frame(7, out, |out| {
        put_u16(u16::try_from(times.len()).unwrap_or(u16::MAX), out);
        for RequestTimes { request, input_end, infer_end } in times.iter().take(usize::from(u16::MAX)) {
            put_u64(*request, out);
            put_u64(*input_end, out);
            put_u64(*infer_end, out);
        }
    });
}

/// Appends REFUSED: the load failed, with this error.
pub fn put_refused(error: &Error, out: &mut Vec<u8>) {
    put_small_frame(8, out, |out| put_error(error, out));
}

/// Appends REPORT: a backend reports on its work.
pub fn put_report(claim: &WorkClaim, out: &mut Vec<u8>) {
    put_small_frame(10, out, |out| {
        let times: &[Duration] = match claim {
            WorkClaim::Batch { batch, rows, times: StageTimes { input, infer, output } } => {
                out.push(0);
                put_u64(*batch, out);
                put_u32(*rows, out);
                &[*input, *infer, *output]
            }
            WorkClaim::Request { request, is_success, times: StageTimes { input, infer, output } } => {
                out.push(1);
                put_u64(*request, out);
                out.push(u8::from(*is_success));
                &[*input, *infer, *output]
            }
            WorkClaim::Response { request, index, outcome, infer, output } => {
                out.push(2);
                put_u64(*request, out);
                put_u32(*index, out);
                let number = RESPONSE_OUTCOMES.iter().position(|known| known == outcome);
                out.push(number.and_then(|number| u8::try_from(number).ok()).unwrap_or_default());
                &[*infer, *output]
            }
        };
        times.iter().for_each(|time| put_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), out));
    });
}

fn put_response(response: &SentResponse<'_>, layout: &mut SpanLayout, out: &mut Vec<u8>) -> Result<(), MessageError> {
    match response {
        SentResponse::None => out.push(0),
        SentResponse::Error(error) => {
            out.push(2);
            put_error(error, out);
        }
        SentResponse::Outputs { parameters, is_again, .. } => {
            out.push(if *is_again { 3 } else { 1 });
            match parameters {
                Some(parameters) => put_parameters(parameters, out),
                None => put_u32(0, out),
            }
            put_u16(u16::try_from(response.given().count()).map_err(|_| MessageError::Count)?, out);
            for (index, output) in response.given() {
                put_u16(index, out);
                put_tensor(output, layout.place(output.contents.len()), out)?;
            }
        }
    }
    Ok(())
}

/// Appends RELEASE of one slot of the request region.
pub fn put_release(slots: &[u32], out: &mut Vec<u8>) {
    put_small_frame(1, out, |out| put_slots(slots, out));
}

/// Appends SPACE: the response region has no room.
pub fn put_space(call: u64, size: u64, must_grow: bool, out: &mut Vec<u8>) {
    put_small_frame(2, out, |out| {
        put_u64(call, out);
        put_u64(size, out);
        out.push(u8::from(must_grow));
    });
}

/// Appends REGION_DROPPED.
pub fn put_region_dropped(region: u16, out: &mut Vec<u8>) {
    put_small_frame(3, out, |out| put_u16(region, out));
}

/// Appends IS_CANCELLED.
pub fn put_is_cancelled(call: u64, request: u64, out: &mut Vec<u8>) {
    put_small_frame(4, out, |out| {
        put_u64(call, out);
        put_u64(request, out);
    });
}

/// Appends LOG, of a line that names its place itself.
pub fn put_log(level: LogLevel, text: &str, out: &mut Vec<u8>) {
    put_small_frame(5, out, |out| {
        out.push(match level {
            LogLevel::Info => 0,
            LogLevel::Warning => 1,
            LogLevel::Error => 2,
            LogLevel::Verbose => 3,
        });
        put_u32(0, out);
        put_u16(0, out);
        put_cut_text(text, out);
    });
}

/// Appends READY.
pub fn put_ready(ask: u64, is_ready: bool, out: &mut Vec<u8>) {
    put_small_frame(6, out, |out| {
        put_u64(ask, out);
        out.push(u8::from(is_ready));
        put_u32(0, out);
    });
}

/// Appends BLS_CALL. The inputs lie in its span as [`SpanLayout`] places them.
///
/// # Errors
/// [`MessageError`] if it is larger than a frame may be, or a name is too long.
pub fn put_bls_call(number: u64, call: &NestedCall, span: &Span, out: &mut Vec<u8>) -> Result<(), MessageError> {
    put_frame(7, out, |out| {
        put_u64(number, out);
        // The interface does not name the request for which a call is made.
        put_u64(0, out);
        out.push(u8::from(call.is_decoupled));
        put_str16(&call.model, out)?;
        let version = call.version.and_then(|version| i64::try_from(version).ok()).unwrap_or(-1);
        out.extend_from_slice(&version.to_le_bytes());
        put_details(&call.details, out);
        put_span(span, out);
        put_u16(u16::try_from(call.outputs.len()).map_err(|_| MessageError::Count)?, out);
        call.outputs.iter().try_for_each(|name| put_str16(name, out))?;
        put_u16(u16::try_from(call.inputs.len()).map_err(|_| MessageError::Count)?, out);
        let mut layout = SpanLayout::default();
        for (name, tensor) in &call.inputs {
            put_str16(name, out)?;
            put_tensor(tensor, layout.place(tensor.contents.len()), out)?;
        }
        Ok(())
    })
}

/// Appends BLS_CANCEL.
pub fn put_bls_cancel(call: u64, out: &mut Vec<u8>) {
    put_small_frame(8, out, |out| put_u64(call, out));
}

/// Appends BLS_READ.
pub fn put_bls_read(call: u64, out: &mut Vec<u8>) {
    put_small_frame(9, out, |out| put_u64(call, out));
}

/// Appends CONTROL. The files lie in its span as [`SpanLayout`] places them.
///
/// # Errors
/// [`MessageError`] if it is larger than a frame may be, or a name is too long.
pub fn put_control(
    call: u64,
    model: &str,
    kind: &OrderKind,
    span: &Span,
    out: &mut Vec<u8>,
) -> Result<(), MessageError> {
    let version_text = |version: &Option<u64>| version.map(|version| version.to_string()).unwrap_or_default();
    let (operation, version, with_dependents) = match kind {
        OrderKind::Load { .. } => (0, String::new(), false),
        OrderKind::Unload { with_dependents } => (1, String::new(), *with_dependents),
        OrderKind::Ready(version) => (2, version_text(version), false),
        OrderKind::Decoupled(version) => (3, version_text(version), false),
    };
    let (config, files) = match kind {
        OrderKind::Load { config, files } => (config.as_deref().unwrap_or_default(), &**files),
        _ => ("", &[][..]),
    };
    put_frame(10, out, |out| {
        put_u64(call, out);
        out.push(operation);
        put_str16(model, out)?;
        put_str16(&version, out)?;
        out.push(u8::from(with_dependents));
        put_bytes32(config.as_bytes(), out);
        put_span(span, out);
        put_u16(u16::try_from(files.len()).map_err(|_| MessageError::Count)?, out);
        let mut layout = SpanLayout::default();
        for (path, contents) in files {
            put_str16(path, out)?;
            put_u64(layout.place(contents.len()), out);
            put_u64(contents.len() as u64, out);
        }
        Ok(())
    })
}

/// Appends METRIC_FAMILY.
///
/// # Errors
/// [`MessageError::Count`] if a text is too long.
pub fn put_metric_family(
    call: u64,
    kind: MetricKind,
    name: &str,
    description: &str,
    out: &mut Vec<u8>,
) -> Result<(), MessageError> {
    put_frame(11, out, |out| {
        put_u64(call, out);
        out.push(match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 2,
        });
        put_str16(name, out)?;
        put_str16(description, out)
    })
}

/// Appends METRIC.
///
/// # Errors
/// [`MessageError::Count`] if there are too many buckets.
pub fn put_metric(
    call: u64,
    family: u32,
    labels: &Parameters,
    buckets: &[f64],
    out: &mut Vec<u8>,
) -> Result<(), MessageError> {
    put_frame(12, out, |out| {
        put_u64(call, out);
        put_u32(family, out);
        put_parameters(labels, out);
        put_u16(u16::try_from(buckets.len()).map_err(|_| MessageError::Count)?, out);
        buckets.iter().for_each(|bound| out.extend_from_slice(&bound.to_le_bytes()));
        Ok(())
    })
}

/// Appends METRIC_UPDATE.
pub fn put_metric_update(metric: u32, operation: MetricOperation, value: f64, out: &mut Vec<u8>) {
    put_small_frame(13, out, |out| {
        put_u32(metric, out);
        out.push(match operation {
            MetricOperation::Increment => 0,
            MetricOperation::Set => 1,
            MetricOperation::Observe => 2,
        });
        out.extend_from_slice(&value.to_le_bytes());
    });
}

/// Appends METRIC_VALUE.
pub fn put_metric_value(call: u64, metric: u32, out: &mut Vec<u8>) {
    put_small_frame(14, out, |out| {
        put_u64(call, out);
        put_u32(metric, out);
    });
}

/// Appends METRIC_DROP.
pub fn put_metric_drop(is_metric: bool, id: u32, out: &mut Vec<u8>) {
    put_small_frame(15, out, |out| {
        out.push(u8::from(is_metric));
        put_u32(id, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::message::{
        AuxMessage, BlsCall, BlsParent, ClaimedFile, ClaimedResponse, ControlCall, ControlOperation, ExecuteHead,
        ExecuteRequest, FrameBuffer, MainMessage, ReadyState, SpaceOutcome, decode_aux, decode_main, put_bls_reply,
        put_execute, put_finalize, put_init_bytes, put_is_ready, put_region, put_reply, put_space_reply,
    };
    use backend::OutputNeeds;
    use backend::gateway::NestedReply;
    use backend::trial::tensor;
    use base::tensor::{Datatype, Shape};
    use model::CorrelationId;
    use model::parameters::ParameterValue;

    const SPAN: Span = Span { slot: 7, region: 1, offset: 128, size: 192 };

    /// The messages that a reader decodes from frames.
    fn read<T>(bytes: &[u8], decode: impl Fn(Frame<'_>) -> Result<T, MessageError>) -> Vec<T> {
        let mut buffer = FrameBuffer::default();
        buffer.space(bytes.len()).copy_from_slice(bytes);
        buffer.commit(bytes.len());
        std::iter::from_fn(|| buffer.poll_frame().unwrap().map(|frame| decode(frame).unwrap())).collect()
    }

    fn one<T>(put: impl FnOnce(&mut Vec<u8>), decode: impl Fn(Frame<'_>) -> Result<T, MessageError>) -> T {
        let mut bytes = Vec::new();
        put(&mut bytes);
        read(&bytes, decode).pop().unwrap()
    }

    fn details() -> RequestDetails {
        let mut parameters = Parameters::default();
        parameters.set("depth", ParameterValue::Int64(3));
        let correlation_id = Some(CorrelationId::Text("s".into()));
        RequestDetails { id: "\u{e9}".to_owned(), correlation_id, flags: 3, parameters, ..RequestDetails::default() }
    }

    fn claim(datatype: Datatype, shape: &[i64], offset: u64, size: u64) -> ClaimedTensor {
        ClaimedTensor { datatype, shape: Shape::from_slice(shape), offset, size, own_span: None }
    }

    #[test]
    fn a_process_reads_what_the_server_says() {
        let inputs = [tensor(&[1, 2], &[1_i32, 2]), tensor(&[3], &[0_u8; 3])];
        let needs = OutputNeeds([backend::OutputNeed::Nothing].into_iter().collect());
        let details = details();
        let request = ExecuteRequest { request: 9, details: Some(&details), needs: &needs, inputs: &inputs };
        let head = ExecuteHead { batch: 4, span: SPAN, released: &[5, 6], output_count: 2 };
        let order = |put: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            put(&mut bytes);
            read(&bytes, |frame| decode_order(frame).map(|order| format!("{order:?}"))).pop().unwrap()
        };
        let want = ExecuteOrder {
            batch: 4,
            span: SPAN,
            released: vec![5, 6],
            requests: vec![OrderedRequest {
                request: 9,
                details: Some(details.clone()),
                wanted: vec![1],
                inputs: vec![(0, claim(Datatype::Int32, &[1, 2], 0, 8)), (1, claim(Datatype::Uint8, &[3], 64, 3))],
            }],
        };
        let got = order(&|out| put_execute(&head, [request].into_iter(), out).unwrap());
        assert_eq!(got, format!("{:?}", MainOrder::Execute(want)));
        assert_eq!(order(&|out| put_init_bytes(b"abc", out).unwrap()), format!("{:?}", MainOrder::Init(b"abc")));
        assert_eq!(order(&put_finalize), "Finalize");
        let aux = |put: &dyn Fn(&mut Vec<u8>)| one(put, decode_aux_order);
        assert_eq!(aux(&|out| put_region(RegionSide::Response, 3, 64, out)), AuxOrder::Region(RegionSide::Response, 3));
        let space = |outcome| AuxOrder::SpaceReply { call: 2, outcome, released: vec![8] };
        assert_eq!(aux(&|out| put_space_reply(2, SpaceOutcome::Grown, &[8], out)), space(Ok(())));
        let refused = aux(&|out| put_space_reply(2, SpaceOutcome::Refused("no"), &[8], out));
        assert_eq!(refused, space(Err("no".to_owned())));
        let values =
            [ReplyValue::None, ReplyValue::Bool(true), ReplyValue::Number(0.5), ReplyValue::Id(9)].map(Ok::<_, Error>);
        for outcome in values.into_iter().chain([Err(Error::not_found("x"))]) {
            let got = aux(&|out| put_reply(1, outcome.as_ref().copied(), out));
            assert_eq!(got, AuxOrder::Reply { call: 1, outcome });
        }
        assert_eq!(aux(&|out| put_is_ready(6, out)), AuxOrder::IsReady(6));
        let named = vec![("y".to_owned(), inputs[0].clone())];
        for (outputs, want) in [
            (
                Ok(named),
                Ok((details.parameters.clone(), vec![("y".to_owned(), claim(Datatype::Int32, &[1, 2], 0, 8))])),
            ),
            (Err(Error::unavailable("later")), Err(Error::unavailable("later"))),
        ] {
            let reply = NestedReply { outputs, parameters: details.parameters.clone(), is_final: true };
            let got = aux(&|out| put_bls_reply(3, &reply, &SPAN, out).unwrap());
            assert_eq!(got, AuxOrder::BlsReply { call: 3, is_final: true, span: SPAN, outcome: want });
        }
    }

    #[test]
    fn the_server_reads_what_a_process_says_of_batches() {
        let missing = Tensor { datatype: Datatype::Fp32, shape: Shape::new(), contents: bytes::Bytes::new() };
        let outputs = [missing, tensor(&[2], &[1_u8, 2])];
        let (error, parameters) = (Error::unavailable("no"), details().parameters);
        let given = |is_again| SentResponse::Outputs { parameters: Some(&parameters), outputs: &outputs, is_again };
        let responses = [given(false), SentResponse::Error(&error), SentResponse::None, given(true)];
        let at = |offset| vec![(1, claim(Datatype::Uint8, &[2], offset, 2))];
        let main = |put: &dyn Fn(&mut Vec<u8>)| one(put, decode_main);
        let want = vec![
            ClaimedResponse::Outputs { parameters: parameters.clone(), tensors: at(0) },
            ClaimedResponse::Error(error.clone()),
            ClaimedResponse::None,
            ClaimedResponse::Rescheduled { parameters: parameters.clone(), tensors: at(64) },
        ];
        let got = main(&|out| put_responses(4, true, &SPAN, &responses, out).unwrap());
        assert_eq!(got, MainMessage::Responses { batch: 4, inputs_free: true, span: SPAN, outcome: Ok(want) });
        let got = main(&|out| put_send(9, true, &SPAN, &SentResponse::None, out).unwrap());
        let response = ClaimedResponse::None;
        assert_eq!(got, MainMessage::Send { request: 9, is_final: true, is_closed: false, span: SPAN, response });
        let times = vec![RequestTimes { request: 9, input_end: 1, infer_end: 2 }];
        assert_eq!(main(&|out| put_times(&times, out)), MainMessage::Times(times.clone()));
        let time = Duration::from_nanos;
        let times = StageTimes { input: time(1), infer: time(2), output: time(3) };
        let outcomes = RESPONSE_OUTCOMES.into_iter();
        let responses = outcomes.map(|outcome| WorkClaim::Response {
            request: 9,
            index: 1,
            outcome,
            infer: time(2),
            output: time(3),
        });
        let others = [
            WorkClaim::Batch { batch: 4, rows: 7, times },
            WorkClaim::Request { request: 9, is_success: true, times },
            WorkClaim::Request { request: 9, is_success: false, times },
        ];
        for claim in others.into_iter().chain(responses) {
            assert_eq!(main(&|out| put_report(&claim, out)), MainMessage::Report(claim));
        }
        assert_eq!(main(&|out| put_refused(&error, out)), MainMessage::Refused(error.clone()));
        assert_eq!(main(&put_finalized), MainMessage::Finalized);
        assert_eq!(main(&|out| put_completed("{}", out).unwrap()), MainMessage::Completed("{}".to_owned()));
        let MainMessage::Initialized(found) = main(&|out| put_initialized(true, out)) else { panic!("another") };
        assert_eq!((found.has_is_ready, found.pid), (true, i64::from(std::process::id())));
    }

    #[test]
    fn the_server_reads_what_a_process_asks() {
        let aux = |put: &dyn Fn(&mut Vec<u8>)| one(put, decode_aux);
        assert_eq!(aux(&|out| put_release(&[7], out)), AuxMessage::Release(vec![7]));
        assert_eq!(aux(&|out| put_space(1, 9, true, out)), AuxMessage::Space { call: 1, size: 9, must_grow: true });
        assert_eq!(aux(&|out| put_region_dropped(2, out)), AuxMessage::RegionDropped(2));
        assert_eq!(aux(&|out| put_is_cancelled(1, 9, out)), AuxMessage::IsCancelled { call: 1, request: 9 });
        for level in [LogLevel::Error, LogLevel::Info, LogLevel::Verbose, LogLevel::Warning] {
            let want = AuxMessage::Log { level, line: 0, file: String::new(), text: "a".to_owned() };
            assert_eq!(aux(&|out| put_log(level, "a", out)), want);
        }
        assert_eq!(aux(&|out| put_ready(3, true, out)), AuxMessage::Ready { ask: 3, state: ReadyState::Yes });
        assert_eq!(aux(&|out| put_bls_cancel(3, out)), AuxMessage::BlsCancel(3));
        assert_eq!(aux(&|out| put_bls_read(3, out)), AuxMessage::BlsRead(3));
        let version = || "2".to_owned();
        let load = OrderKind::Load { config: Some("{}".to_owned()), files: vec![("file:a".to_owned(), "xy".into())] };
        let claimed = vec![ClaimedFile { path: "file:a".to_owned(), offset: 0, size: 2 }];
        for (kind, operation) in [
            (load, ControlOperation::Load { config: Some("{}".to_owned()), span: SPAN, files: claimed }),
            (OrderKind::Unload { with_dependents: true }, ControlOperation::Unload { with_dependents: true }),
            (OrderKind::Ready(Some(2)), ControlOperation::IsReady { version: version() }),
            (OrderKind::Ready(None), ControlOperation::IsReady { version: String::new() }),
            (OrderKind::Decoupled(Some(2)), ControlOperation::IsDecoupled { version: version() }),
        ] {
            let call = ControlCall { call: 1, model: "m".to_owned(), operation };
            let got = aux(&|out| put_control(1, "m", &kind, &SPAN, out).unwrap());
            assert_eq!(got, AuxMessage::Control(Box::new(call)));
        }
        let (name, description) = ("n".to_owned(), "d".to_owned());
        for kind in [MetricKind::Counter, MetricKind::Gauge, MetricKind::Histogram] {
            let want = AuxMessage::MetricFamily { call: 1, kind, name: name.clone(), description: description.clone() };
            assert_eq!(aux(&|out| put_metric_family(1, kind, "n", "d", out).unwrap()), want);
        }
        let labels = Parameters(vec![("k".to_owned(), ParameterValue::Text("v".to_owned()))]);
        let want = vec![("k".to_owned(), "v".to_owned())];
        let want = AuxMessage::Metric { call: 1, family: 2, labels: want, buckets: vec![0.5] };
        assert_eq!(aux(&|out| put_metric(1, 2, &labels, &[0.5], out).unwrap()), want);
        for operation in [MetricOperation::Increment, MetricOperation::Observe, MetricOperation::Set] {
            let want = AuxMessage::MetricUpdate { metric: 2, operation, value: 1.5 };
            assert_eq!(aux(&|out| put_metric_update(2, operation, 1.5, out)), want);
        }
        assert_eq!(aux(&|out| put_metric_value(1, 2, out)), AuxMessage::MetricValue { call: 1, metric: 2 });
        for is_metric in [false, true] {
            assert_eq!(aux(&|out| put_metric_drop(is_metric, 2, out)), AuxMessage::MetricDrop { is_metric, id: 2 });
        }
        let call = NestedCall {
            model: "m".to_owned(),
            version: None,
            inputs: vec![("x".to_owned(), tensor(&[2], &[1_u8, 2]))],
            outputs: vec!["y".to_owned()],
            is_decoupled: true,
            allows_no_rows: false,
            details: details(),
            replies: std::sync::Arc::new(Nobody),
            state: std::sync::Arc::default(),
        };
        let want = BlsCall {
            call: 5,
            parent: BlsParent::Unknown,
            is_decoupled: true,
            model: "m".to_owned(),
            version: None,
            details: details(),
            span: SPAN,
            outputs: vec!["y".to_owned()],
            inputs: vec![("x".to_owned(), claim(Datatype::Uint8, &[2], 0, 2))],
        };
        let got = aux(&|out| put_bls_call(5, &call, &SPAN, out).unwrap());
        assert_eq!(got, AuxMessage::BlsCall(Box::new(want)));
    }

    struct Nobody;

    impl backend::gateway::ReplySink for Nobody {
        fn push(&self, _: NestedReply) {}
    }
}
