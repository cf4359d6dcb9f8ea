//! Records as spans of OTLP, with Triton's names: `InferRequest` for the request, below it a span named as the model and
//! a span `compute` for its run. Events and attributes are those of Triton's `tracer.cc`; those of the answer are of
//! OpenTelemetry's semantic conventions for HTTP and RPC.

use prost::Message;

use base::time::Instant;
use trace::{ActiveTrace, FrontSpan, FrontStatus, ModelSpan, TraceEvent, TraceFront, TraceRecord, TracedSpan};
use wire::proto::otlp as proto;
use wire::proto::otlp::any_value::Value;
use wire::proto::otlp::span::{Event, SpanKind};
use wire::proto::otlp::status::StatusCode;

/// The instrumentation scope, as Triton has it.
const SCOPE: &str = "triton-server";
/// The event that begins the span of a run.
const COMPUTE_START: &str = "COMPUTE_START";
/// The event that ends it.
const COMPUTE_END: &str = "COMPUTE_END";

/// The spans of a record. `epoch` is the time of day when the process started, in nanoseconds;
/// `run_span_id` names the span of the run, if there is one.
pub fn spans(record: TraceRecord, epoch: u64, run_span_id: u64) -> Vec<proto::Span> {
    let TraceRecord { trace, span } = record;
    match span {
        TracedSpan::Front(front) => vec![front_span(&trace, front, epoch)],
        TracedSpan::Model(model) => model_spans(&trace, &model, epoch, run_span_id),
    }
}

/// An encoded request with these spans.
pub fn request(spans: Vec<proto::Span>, resource: &[(String, String)]) -> Vec<u8> {
    let attributes = resource.iter().map(|(key, value)| attribute(key, Value::StringValue(value.clone()))).collect();
    let scope = proto::InstrumentationScope { name: SCOPE.to_owned(), version: String::new() };
    let scope_spans = vec![proto::ScopeSpans { scope: Some(scope), spans }];
    let resource = Some(proto::Resource { attributes });
    let resource_spans = vec![proto::ResourceSpans { resource, scope_spans }];
    proto::ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

fn front_span(trace: &ActiveTrace, front: FrontSpan, epoch: u64) -> proto::Span {
    let parent = front.context.as_ref().map(|context| context.parent.span_id);
    let began = front.events.first().map_or(front.ended, |event| event.at);
    let error_type = front.status.as_deref().and_then(error_type);
    proto::Span {
        attributes: front
            .status
            .as_deref()
            .map(|status| status_attributes(status, error_type.as_deref()))
            .unwrap_or_default(),
        status: front
            .status
            .filter(|_| error_type.is_some())
            .map(|status| proto::Status { message: status.error, code: StatusCode::Error.into() }),
        trace_state: front.context.map(|context| context.state).unwrap_or_default(),
        events: front.events.iter().map(|event| happened(event, epoch)).collect(),
        // The client's request; the spans below it are of work within the server, as OpenTelemetry defines the kinds.
        kind: SpanKind::Server.into(),
        ..span(
            trace,
            SpanIds { own: trace.parent_span_id, parent },
            "InferRequest",
            SpanTimes { began, ended: front.ended },
            epoch,
        )
    }
}

/// The attributes of an answer by the semantic conventions.
fn status_attributes(status: &FrontStatus, error_type: Option<&str>) -> Vec<proto::KeyValue> {
    let code = Value::IntValue(status.code.into());
    let mut attributes = match status.front {
        TraceFront::Grpc => {
            let system = Value::StringValue("grpc".to_owned());
            vec![attribute("rpc.system", system), attribute("rpc.grpc.status_code", code)]
        }
        TraceFront::Http => vec![attribute("http.response.status_code", code)],
    };
    let error = Some(&*status.error).filter(|error| !error.is_empty());
    let texts = [("error.type", error_type), ("error.message", error)];
    let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text?)));
    attributes.extend(texts.map(|(key, text)| attribute(key, Value::StringValue(text.to_owned()))));
    attributes
}

/// The type of an error that makes the span of a server an error. A client's mistake does not: a status of 4xx, and the
/// codes of gRPC that are not listed here (OpenTelemetry, "HTTP spans" and "gRPC", "Status").
fn error_type(status: &FrontStatus) -> Option<String> {
    let name = match (status.front, status.code) {
        (TraceFront::Http, 500..) => return Some(status.code.to_string()),
        (TraceFront::Grpc, 2) => "UNKNOWN",
        (TraceFront::Grpc, 4) => "DEADLINE_EXCEEDED",
        (TraceFront::Grpc, 12) => "UNIMPLEMENTED",
        (TraceFront::Grpc, 13) => "INTERNAL",
        (TraceFront::Grpc, 14) => "UNAVAILABLE",
        (TraceFront::Grpc, 15) => "DATA_LOSS",
        _ => return None,
    };
    Some(name.to_owned())
}

fn model_spans(trace: &ActiveTrace, model: &ModelSpan, epoch: u64, run_span_id: u64) -> Vec<proto::Span> {
    let position = |name: &str| model.events.iter().position(|event| event.name == name);
    let run = position(COMPUTE_START).zip(position(COMPUTE_END));
    let is_of_run = |index: usize| run.is_some_and(|(first, last)| (first..=last).contains(&index));
    let events = |is_wanted: &dyn Fn(usize) -> bool| {
        let wanted = model.events.iter().enumerate().filter(|(index, _)| is_wanted(*index));
        wanted.map(|(_, event)| *event).collect::<Vec<_>>()
    };
    let whole = |events: &[TraceEvent]| {
        let at = |event: Option<&TraceEvent>| event.map_or(Instant::ZERO, |event| event.at);
        SpanTimes { began: at(events.first()), ended: at(events.last()) }
    };
    let own = events(&|index| !is_of_run(index));
    let mut attributes = vec![
        attribute("triton.model_name", Value::StringValue(model.spec.name.clone())),
        attribute("triton.model_version", Value::IntValue(model.version.cast_signed())),
        attribute("triton.trace_id", Value::IntValue(trace.id.cast_signed())),
        attribute("triton.trace_parent_id", Value::IntValue(trace.parent_id.cast_signed())),
    ];
    if !model.request_id.is_empty() {
        attributes.push(attribute("triton.request_id", Value::StringValue(model.request_id.clone())));
    }
    let ids = SpanIds { own: trace.span_id, parent: Some(trace.parent_span_id) };
    let mut spans = vec![proto::Span {
        attributes,
        events: own.iter().map(|event| happened(event, epoch)).collect(),
        ..span(trace, ids, &model.spec.name, whole(&own), epoch)
    }];
    if run.is_some() {
        let own = events(&is_of_run);
        let ids = SpanIds { own: run_span_id, parent: Some(trace.span_id) };
        spans.push(proto::Span {
            events: own.iter().map(|event| happened(event, epoch)).collect(),
            ..span(trace, ids, "compute", whole(&own), epoch)
        });
    }
    spans
}

/// The place of a span in its trace.
struct SpanIds {
    /// Its own id.
    own: u64,
    /// The id of the span around it, if there is one.
    parent: Option<u64>,
}

/// The time that a span takes.
struct SpanTimes {
    began: Instant,
    ended: Instant,
}

fn span(trace: &ActiveTrace, ids: SpanIds, name: &str, times: SpanTimes, epoch: u64) -> proto::Span {
    proto::Span {
        trace_id: trace.trace_id.to_be_bytes().to_vec(),
        span_id: ids.own.to_be_bytes().to_vec(),
        parent_span_id: ids.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
        name: name.to_owned(),
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: epoch.saturating_add(times.began.as_nanos()),
        end_time_unix_nano: epoch.saturating_add(times.ended.as_nanos()),
        ..proto::Span::default()
    }
}

fn happened(event: &TraceEvent, epoch: u64) -> Event {
    Event { time_unix_nano: epoch.saturating_add(event.at.as_nanos()), name: event.name.to_owned() }
}

fn attribute(key: &str, value: Value) -> proto::KeyValue {
    proto::KeyValue { key: key.to_owned(), value: Some(proto::AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::SmallVec;

    use super::*;
    use crate::testing::spec;
    use trace::{TraceLevel, TraceMode, TraceSetting};
    use wire::trace_context::{TraceContext, TraceParent};

    fn events<const N: usize>(names: [&'static str; N]) -> Vec<TraceEvent> {
        names.into_iter().zip(1..).map(|(name, at)| TraceEvent { name, at: Instant::from_micros(at) }).collect()
    }

    fn names(span: &proto::Span) -> Vec<&str> {
        span.events.iter().map(|event| event.name.as_str()).collect()
    }

    #[test]
    fn servers_errors_are_errors_of_the_span_and_clients_are_not() {
        let check = |front, code, error: &str, want: &str, want_error: bool| {
            let setting = Arc::new(TraceSetting::new(TraceLevel::OFF, 1, -1, 0, TraceMode::OpenTelemetry));
            let status = Some(Box::new(FrontStatus { front, code, error: error.to_owned() }));
            let front = FrontSpan { context: None, events: SmallVec::new(), ended: Instant::ZERO, status };
            let span = front_span(&ActiveTrace::root(&setting, None), front, 0);
            let text = |pair: &proto::KeyValue| match pair.value.clone().unwrap().value.unwrap() {
                Value::StringValue(text) => format!("{}={text}", pair.key),
                Value::IntValue(number) => format!("{}={number}", pair.key),
            };
            assert_eq!(span.attributes.iter().map(text).collect::<Vec<_>>().join(" "), want);
            let status = proto::Status { message: error.to_owned(), code: StatusCode::Error.into() };
            assert_eq!(span.status, want_error.then_some(status), "{want}");
        };
        let (grpc, http) = (TraceFront::Grpc, TraceFront::Http);
        check(http, 200, "", "http.response.status_code=200", false);
        check(http, 404, "no", "http.response.status_code=404 error.message=no", false);
        check(http, 503, "full", "http.response.status_code=503 error.type=503 error.message=full", true);
        check(grpc, 0, "", "rpc.system=grpc rpc.grpc.status_code=0", false);
        check(grpc, 5, "no", "rpc.system=grpc rpc.grpc.status_code=5 error.message=no", false);
        let want = "rpc.system=grpc rpc.grpc.status_code=14 error.type=UNAVAILABLE error.message=gone";
        check(grpc, 14, "gone", want, true);
    }

    #[test]
    fn a_trace_is_three_spans_below_the_clients_own() {
        let setting = Arc::new(TraceSetting::new(TraceLevel::OFF, 1, -1, 0, TraceMode::OpenTelemetry));
        let parent = TraceParent { trace_id: 5, span_id: 6 };
        let context = TraceContext { parent, state: "a=b".to_owned() };
        let trace = Arc::new(ActiveTrace::root(&setting, Some(&context)));
        let all =
            events(["REQUEST_START", "QUEUE_START", COMPUTE_START, "COMPUTE_INPUT_END", COMPUTE_END, "REQUEST_END"]);
        let model = ModelSpan {
            spec: Arc::new(spec(0, Vec::new(), Vec::new())),
            version: 3,
            request_id: "r".to_owned(),
            events: SmallVec::from_vec(all),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let front = FrontSpan {
            context: Some(Box::new(context)),
            events: SmallVec::from_vec(events(["HTTP_RECV_START", "HTTP_RECV_END"])),
            ended: Instant::from_micros(9),
            status: None,
        };
        let record = |span| TraceRecord { trace: Arc::clone(&trace), span };
        let [model, compute] = &spans(record(TracedSpan::Model(Box::new(model))), 100, 77)[..] else { panic!("two") };
        let [front] = &spans(record(TracedSpan::Front(front)), 100, 0)[..] else { panic!("one") };
        assert_eq!((front.name.as_str(), &front.parent_span_id[..]), ("InferRequest", &6_u64.to_be_bytes()[..]));
        assert_eq!((front.trace_state.as_str(), &front.trace_id[..]), ("a=b", &5_u128.to_be_bytes()[..]));
        assert_eq!((front.start_time_unix_nano, front.end_time_unix_nano), (1_100, 9_100));
        let kinds = [front, model, compute].map(proto::Span::kind);
        assert_eq!(kinds, [SpanKind::Server, SpanKind::Internal, SpanKind::Internal]);
        assert_eq!((model.name.as_str(), &model.parent_span_id), ("m", &front.span_id));
        assert_eq!(names(model), ["REQUEST_START", "QUEUE_START", "REQUEST_END"]);
        let attributes: Vec<_> = model.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        let want = ["model_name", "model_version", "trace_id", "trace_parent_id", "request_id"];
        assert_eq!(attributes, want.map(|name| format!("triton.{name}")));
        assert_eq!((compute.name.as_str(), &compute.parent_span_id), ("compute", &model.span_id));
        assert_eq!(names(compute), [COMPUTE_START, "COMPUTE_INPUT_END", COMPUTE_END]);
        assert_eq!((compute.start_time_unix_nano, compute.end_time_unix_nano), (3_100, 5_100));
        let bytes = request(vec![front.clone()], &[("service.name".to_owned(), "s".to_owned())]);
        let decoded = proto::ExportTraceServiceRequest::decode(&bytes[..]).unwrap();
        assert_eq!(decoded.resource_spans[0].scope_spans[0].spans[0], *front);
    }
}
