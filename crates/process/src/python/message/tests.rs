use backend::custom_metrics::{MetricKind, MetricOperation};
use std::time::Duration;

use super::*;
use crate::limits::{PYTHON_BUFFER_KEPT, PYTHON_FRAME_SIZE_MAX, PYTHON_TEXT_SIZE_MAX};
use crate::python::json::JsonItem;
use backend::gateway::NestedReply;
use backend::{OutputNeed, OutputNeeds, RequestDetails};
use base::error::Code;
use base::limits::{
    BATCH_REQUESTS_MAX, ORDER_PARAMETERS_MAX, PARAMETERS_MAX, RANK_MAX, REQUEST_TENSORS_MAX, SEQUENCE_ID_SIZE_MAX,
};
use base::tensor::Tensor;
use model::CorrelationId;
use model::parameters::ParameterValue;

/// The other writer of the protocol: each piece as the page of the protocol spells it.
#[derive(Clone, Default)]
struct Wire(Vec<u8>);

impl Wire {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    fn u8(self, value: u8) -> Self {
        self.raw(&[value])
    }
    fn u16(self, value: u16) -> Self {
        self.u8(value as u8).u8((value >> 8) as u8)
    }
    fn u32(self, value: u32) -> Self {
        self.u16(value as u16).u16((value >> 16) as u16)
    }
    fn u64(self, value: u64) -> Self {
        self.u32(value as u32).u32((value >> 32) as u32)
    }
    fn i64(self, value: i64) -> Self {
        self.u64(value as u64)
    }
    fn f64(self, value: f64) -> Self {
        self.u64(value.to_bits())
    }
    fn str16(self, text: &str) -> Self {
        self.u16(text.len() as u16).raw(text.as_bytes())
    }
    fn str32(self, text: &str) -> Self {
        self.u32(text.len() as u32).raw(text.as_bytes())
    }
    fn span(self, slot: u32, region: u16, offset: u64, size: u64) -> Self {
        self.u32(slot).u16(region).u64(offset).u64(size)
    }
    fn tensor(self, datatype: u8, offset: u64, size: u64, dims: &[i64]) -> Self {
        let head = self.u8(datatype).u8(dims.len() as u8).u64(offset).u64(size);
        dims.iter().fold(head, |wire, dim| wire.i64(*dim))
    }
    fn details(self, id: &str, correlation: &Self, parameters: &str, trace: &str) -> Self {
        let wire = self.str32(id).raw(&correlation.0).u32(3).u64(1_500).u64(7);
        wire.str32(parameters).str32(trace)
    }
    fn frame(&self, kind: u8) -> Vec<u8> {
        Self::default().u32(self.0.len() as u32 + 1).u8(kind).raw(&self.0).0
    }
}

fn wire() -> Wire {
    Wire::default()
}

fn main(kind: u8, body: &Wire) -> Result<MainMessage, MessageError> {
    decode_main(Frame { kind, body: &body.0 })
}

fn aux(kind: u8, body: &Wire) -> Result<AuxMessage, MessageError> {
    decode_aux(Frame { kind, body: &body.0 })
}

/// Checks that a message that is cut anywhere, or has more bytes, is refused.
fn check_ends<T: PartialEq + fmt::Debug>(kind: u8, body: &Wire, decode: fn(Frame<'_>) -> Result<T, MessageError>) {
    for size in 0..body.0.len() {
        assert!(decode(Frame { kind, body: &body.0[..size] }).is_err(), "{size} bytes of {kind}");
    }
    let longer = body.clone().u8(0);
    assert_eq!(decode(Frame { kind, body: &longer.0 }), Err(MessageError::Trailing), "{kind}");
}

fn check_main(kind: u8, body: &Wire, want: &MainMessage) {
    assert_eq!(main(kind, body).as_ref(), Ok(want));
    check_ends(kind, body, decode_main);
}

fn check_aux(kind: u8, body: &Wire, want: &AuxMessage) {
    assert_eq!(aux(kind, body).as_ref(), Ok(want));
    check_ends(kind, body, decode_aux);
}

fn claim(datatype: Datatype, offset: u64, size: u64, shape: &[i64]) -> ClaimedTensor {
    ClaimedTensor { datatype, shape: Shape::from_slice(shape), offset, size, own_span: None }
}

fn span(slot: u32, region: u16, offset: u64, size: u64) -> Span {
    Span { slot, region, offset, size }
}

fn parameters(list: &[(&str, ParameterValue)]) -> Parameters {
    Parameters(list.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
}

#[test]
fn frames_are_found_however_they_are_cut_and_refused_by_their_size_alone() {
    let bytes = [wire().raw(b"one").frame(1), wire().frame(5), wire().raw(&[7; 1000]).frame(3)].concat();
    for piece_size in [1, 3, 5, 100, 5000] {
        let mut buffer = FrameBuffer::default();
        let mut got = Vec::new();
        for piece in bytes.chunks(piece_size) {
            // More space than bytes come, as on a socket.
            buffer.space(piece_size + 10)[..piece.len()].copy_from_slice(piece);
            buffer.commit(piece.len());
            while let Some(frame) = buffer.poll_frame().unwrap() {
                got.push((frame.kind, frame.body.to_vec()));
            }
        }
        assert_eq!(got, [(1, b"one".to_vec()), (5, vec![]), (3, vec![7; 1000])], "{piece_size}");
    }
    let size_max = PYTHON_FRAME_SIZE_MAX as u32;
    for (size, want) in
        [(0, Err(MessageError::FrameSize)), (size_max + 1, Err(MessageError::FrameSize)), (size_max, Ok(None))]
    {
        let mut buffer = FrameBuffer::default();
        buffer.space(4).copy_from_slice(&wire().u32(size).0);
        buffer.commit(4);
        assert_eq!(buffer.poll_frame(), want, "{size}");
    }
}

#[test]
fn the_memory_of_a_large_frame_is_not_kept() {
    let bytes = wire().raw(&vec![1; 3 * PYTHON_BUFFER_KEPT]).frame(6);
    let mut buffer = FrameBuffer::default();
    buffer.space(bytes.len()).copy_from_slice(&bytes);
    buffer.commit(bytes.len());
    assert_eq!(buffer.poll_frame().unwrap().unwrap().body.len(), 3 * PYTHON_BUFFER_KEPT);
    assert_eq!((buffer.space(10).len(), buffer.held_size()), (10, PYTHON_BUFFER_KEPT));
}

#[test]
fn the_life_of_a_model_is_read() {
    let text =
        r#"{"is_ready": true, "execute": false, "is_async": true, "pid": 4711, "python": "3.11.2", "numpy": "1.26"}"#;
    let capabilities = Capabilities {
        has_is_ready: true,
        has_execute: false,
        is_async: true,
        pid: 4711,
        python: "3.11.2".to_owned(),
        numpy: "1.26".to_owned(),
    };
    check_main(1, &wire().str32(text), &MainMessage::Initialized(capabilities));
    check_main(2, &wire().str32("ValueError: é"), &MainMessage::Failed("ValueError: é".to_owned()));
    check_main(5, &wire(), &MainMessage::Finalized);
    check_main(9, &wire().u64(4), &MainMessage::Awaits { batch: 4 });
    check_main(6, &wire().str32("{}"), &MainMessage::Completed("{}".to_owned()));
    for wrong in ["", "{}", "[]", &text.replace("4711", "\"\""), &text.replace("true", "1"), &text.replace("pid", "id")]
    {
        assert_eq!(main(1, &wire().str32(wrong)), Err(MessageError::Json), "{wrong}");
    }
}

#[test]
fn responses_are_read_in_order() {
    let head = wire().u64(9).u8(1).span(3, 1, 64, 4096);
    let body = head.clone().u8(0).u32(4);
    let body = body.u8(1).str32(r#"{"n": 1}"#).u16(2);
    let body = body.u16(1).tensor(11, 0, 24, &[2, 3]).u16(0).tensor(13, 64, 0, &[0]);
    let body = body.u8(0).u8(2).u8(2).str32("no such thing").u8(3).str32("").u16(0);
    let tensors = vec![(1, claim(Datatype::Fp32, 0, 24, &[2, 3])), (0, claim(Datatype::Bytes, 64, 0, &[0]))];
    let responses = vec![
        ClaimedResponse::Outputs { parameters: parameters(&[("n", ParameterValue::Int64(1))]), tensors },
        ClaimedResponse::None,
        ClaimedResponse::Error(Error::not_found("no such thing")),
        ClaimedResponse::Rescheduled { parameters: Parameters::default(), tensors: vec![] },
    ];
    let want =
        |inputs_free, outcome| MainMessage::Responses { batch: 9, inputs_free, span: span(3, 1, 64, 4096), outcome };
    check_main(3, &body, &want(true, Ok(responses)));
    let failed = wire().u64(9).u8(0).span(3, 1, 64, 4096).u8(1).str32("boom");
    check_main(3, &failed, &want(false, Err("boom".to_owned())));
    check_main(3, &head.u8(0).u32(0), &want(true, Ok(vec![])));
}

#[test]
fn a_tensor_with_a_span_of_its_own_has_it_behind_its_shape() {
    let tensor = |wire: Wire| wire.tensor(0x80 | 11, 128, 24, &[2, 3]).u32(7).u16(2);
    let own = ClaimedTensor { own_span: Some(span(7, 2, 128, 24)), ..claim(Datatype::Fp32, 0, 24, &[2, 3]) };
    let tensors = vec![(1, own.clone()), (0, claim(Datatype::Int8, 0, 2, &[2]))];
    let body = wire().u64(5).u8(1).span(1, 0, 64, 2).u8(1).str32("").u16(2);
    let body = tensor(body.u16(1)).u16(0).tensor(6, 0, 2, &[2]);
    let response = ClaimedResponse::Outputs { parameters: Parameters::default(), tensors };
    let message = MainMessage::Send { request: 5, is_final: true, is_closed: false, span: span(1, 0, 64, 2), response };
    check_main(4, &body, &message);
    let unknown = wire().u64(5).u8(1).span(0, 0, 0, 0).u8(1).str32("").u16(1).u16(0).tensor(0x80 | 15, 0, 0, &[0]);
    assert_eq!(main(4, &unknown.u32(0).u16(0)), Err(MessageError::Value("a datatype")));
}

#[test]
fn a_response_of_a_sender_has_flags() {
    for (flags, is_final, is_closed) in [(0, false, false), (1, true, false), (2, false, true), (3, true, true)] {
        let body = wire().u64(5).u8(flags).span(0, 0, 0, 0).u8(0);
        let response = ClaimedResponse::None;
        check_main(4, &body, &MainMessage::Send { request: 5, is_final, is_closed, span: Span::default(), response });
    }
    let body = wire().u64(5).u8(4).span(0, 0, 0, 0).u8(0);
    assert_eq!(main(4, &body), Err(MessageError::Value("the flags of a response")));
}

#[test]
fn every_datatype_has_its_number_both_ways() {
    use Datatype::{Bf16, Bool, Bytes, Fp16, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    let all = [Bool, Uint8, Uint16, Uint32, Uint64, Int8, Int16, Int32, Int64, Fp16, Fp32, Fp64, Bytes, Bf16];
    let read = |number: u8| {
        let body = wire().u64(0).u8(0).span(0, 0, 0, 0).u8(1).str32("").u16(1).u16(0).tensor(number, 0, 0, &[]);
        main(4, &body).map(|message| match message {
            MainMessage::Send { response: ClaimedResponse::Outputs { tensors, .. }, .. } => tensors[0].1.datatype,
            other => panic!("{other:?}"),
        })
    };
    for (number, datatype) in (1..).zip(all) {
        assert_eq!((read(number), datatype_code(datatype)), (Ok(datatype), number));
    }
    for number in [0, 15, 255] {
        assert_eq!(read(number), Err(MessageError::Value("a datatype")));
    }
}

#[test]
fn every_code_of_an_error_has_its_number_and_what_triton_lacks_the_nearest() {
    use Code::{
        AlreadyExists, Cancelled, DeadlineExceeded, Exhausted, Internal, InvalidArgument, MethodNotAllowed, NotFound,
        TooLarge, Unavailable, Unknown, Unsupported,
    };
    let all = [Unknown, Internal, NotFound, InvalidArgument, Unavailable, Unsupported, AlreadyExists, Cancelled];
    let read = |number: u8| match main(4, &wire().u64(0).u8(0).span(0, 0, 0, 0).u8(2).u8(number).str32("t")) {
        Ok(MainMessage::Send { response: ClaimedResponse::Error(error), .. }) => error.code(),
        other => panic!("{other:?}"),
    };
    let written = |code| {
        let mut out = Vec::new();
        put_reply(1, Err(&Error::new(code, "text")), &mut out);
        let number = out[14];
        assert_eq!(out, wire().u64(1).u8(1).u8(number).str32("text").frame(3), "{code:?}");
        number
    };
    for (number, code) in (0..).zip(all) {
        assert_eq!((read(number), written(code)), (code, number));
    }
    assert_eq!([8, 255].map(read), [Internal; 2]);
    assert_eq!([TooLarge, DeadlineExceeded, Exhausted, MethodNotAllowed].map(written), [3, 4, 4, 5]);
}

#[test]
fn what_a_process_says_about_memory_and_requests_is_read() {
    check_aux(1, &wire().u32(2).u32(5).u32(u32::MAX), &AuxMessage::Release(vec![5, u32::MAX]));
    check_aux(1, &wire().u32(0), &AuxMessage::Release(vec![]));
    let space = AuxMessage::Space { call: 1, size: 1 << 40, must_grow: true };
    check_aux(2, &wire().u64(1).u64(1 << 40).u8(1), &space);
    check_aux(3, &wire().u16(7), &AuxMessage::RegionDropped(7));
    check_aux(4, &wire().u64(2).u64(3), &AuxMessage::IsCancelled { call: 2, request: 3 });
    for (number, level) in
        [LogLevel::Info, LogLevel::Warning, LogLevel::Error, LogLevel::Verbose].into_iter().enumerate()
    {
        let (file, text) = ("model.py".to_owned(), "careful".to_owned());
        let body = wire().u8(number as u8).u32(42).str16("model.py").str32("careful");
        check_aux(5, &body, &AuxMessage::Log { level, line: 42, file, text });
    }
    for (number, state) in
        [ReadyState::No, ReadyState::Yes, ReadyState::Failed("why".to_owned())].into_iter().enumerate()
    {
        check_aux(6, &wire().u64(8).u8(number as u8).str32("why"), &AuxMessage::Ready { ask: 8, state });
    }
    check_aux(8, &wire().u64(4), &AuxMessage::BlsCancel(4));
    check_aux(9, &wire().u64(4), &AuxMessage::BlsRead(4));
}

#[test]
fn a_call_of_another_model_is_read_with_all_its_details() {
    let call_with = |flags, parent, version, correlation: &Wire, parameters: &str, trace: &str| {
        let head = wire().u64(1).u64(parent).u8(flags).str16("other").i64(version);
        let head = head.details("id", correlation, parameters, trace).span(9, 0, 128, 64);
        head.u16(1).str16("OUT").u16(1).str16("IN").tensor(5, 0, 16, &[-1, 2])
    };
    let call = |parent, version, correlation: &Wire, parameters: &str, trace: &str| {
        call_with(1, parent, version, correlation, parameters, trace)
    };
    let mut want = BlsCall {
        call: 1,
        parent: BlsParent::Request(6),
        is_decoupled: true,
        model: "other".to_owned(),
        version: Some(3),
        details: RequestDetails {
            id: "id".to_owned(),
            correlation_id: Some(CorrelationId::Number(42)),
            flags: 3,
            timeout: Duration::from_micros(1_500),
            priority: 7,
            parameters: parameters(&[("a", ParameterValue::Double(0.5))]),
            trace: Some("{}".to_owned()),
            ..RequestDetails::default()
        },
        span: span(9, 0, 128, 64),
        outputs: vec!["OUT".to_owned()],
        inputs: vec![("IN".to_owned(), claim(Datatype::Uint64, 0, 16, &[-1, 2]))],
    };
    let message = |want: &BlsCall| AuxMessage::BlsCall(Box::new(want.clone()));
    check_aux(7, &call(6, 3, &wire().u8(1).u64(42), r#"{"a": 0.5}"#, "{}"), &message(&want));
    (want.parent, want.version) = (BlsParent::Unknown, None);
    want.details.correlation_id = Some(CorrelationId::Text("user".into()));
    check_aux(7, &call(0, -1, &wire().u8(2).str32("user"), r#"{"a": 0.5}"#, "{}"), &message(&want));
    want.details =
        RequestDetails { correlation_id: None, parameters: Parameters::default(), trace: None, ..want.details };
    check_aux(7, &call(0, -1, &wire().u8(0), "", ""), &message(&want));
    check_aux(7, &call_with(3, 0, -1, &wire().u8(0), "", ""), &message(&want));
    (want.parent, want.is_decoupled) = (BlsParent::Batch(9), false);
    check_aux(7, &call_with(2, 9, -1, &wire().u8(0), "", ""), &message(&want));
    let flags = MessageError::Value("the flags of a call");
    assert_eq!(aux(7, &call_with(4, 9, -1, &wire().u8(0), "", "")), Err(flags));

    let check = |correlation: &Wire, parameters: &str, error| {
        assert_eq!(aux(7, &call(0, 0, correlation, parameters, "")), Err(error));
    };
    check(&wire().u8(3), "", MessageError::Value("a correlation id"));
    check(&wire().u8(2).str32(&"x".repeat(SEQUENCE_ID_SIZE_MAX + 1)), "", MessageError::Count);
    check(&wire().u8(0), "[]", MessageError::Json);
    let many = |count| format!("{{{}}}", (0..count).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(","));
    check(&wire().u8(0), &many(PARAMETERS_MAX + 1), MessageError::Json);
    assert!(aux(7, &call(0, 0, &wire().u8(0), &many(PARAMETERS_MAX), "")).is_ok());
}

#[test]
fn orders_about_models_are_read() {
    let order = |operation, config: &str| {
        let head = wire().u64(4).u8(operation).str16("m").str16("2").u8(1).str32(config);
        head.span(1, 0, 0, 100).u16(1).str16("1/model.onnx").u64(10).u64(90)
    };
    let check = |body: &Wire, operation| {
        check_aux(10, body, &AuxMessage::Control(Box::new(ControlCall { call: 4, model: "m".to_owned(), operation })));
    };
    let load = |config: Option<&str>| ControlOperation::Load {
        config: config.map(str::to_owned),
        span: span(1, 0, 0, 100),
        files: vec![ClaimedFile { path: "1/model.onnx".to_owned(), offset: 10, size: 90 }],
    };
    check(&order(0, "{}"), load(Some("{}")));
    check(&order(0, ""), load(None));
    check(&order(1, ""), ControlOperation::Unload { with_dependents: true });
    check(&order(2, ""), ControlOperation::IsReady { version: "2".to_owned() });
    check(&order(3, ""), ControlOperation::IsDecoupled { version: "2".to_owned() });
    assert_eq!(aux(10, &order(4, "")), Err(MessageError::Value("the operation")));
}

#[test]
fn metrics_are_read() {
    for (number, kind) in [MetricKind::Counter, MetricKind::Gauge, MetricKind::Histogram].into_iter().enumerate() {
        let (name, description) = ("f".to_owned(), "help".to_owned());
        let body = wire().u64(1).u8(number as u8).str16("f").str16("help");
        check_aux(11, &body, &AuxMessage::MetricFamily { call: 1, kind, name, description });
    }
    let labels = vec![("k".to_owned(), "v".to_owned())];
    let metric = AuxMessage::Metric { call: 2, family: 3, labels, buckets: vec![0.5, 1.0] };
    check_aux(12, &wire().u64(2).u32(3).str32(r#"{"k": "v"}"#).u16(2).f64(0.5).f64(1.0), &metric);
    let metric = AuxMessage::Metric { call: 2, family: 3, labels: vec![], buckets: vec![] };
    check_aux(12, &wire().u64(2).u32(3).str32("{}").u16(0), &metric);
    assert_eq!(aux(12, &wire().u64(2).u32(3).str32(r#"{"k": 1}"#).u16(0)), Err(MessageError::Json));
    let operations = [MetricOperation::Increment, MetricOperation::Set, MetricOperation::Observe];
    for (number, operation) in operations.into_iter().enumerate() {
        let update = AuxMessage::MetricUpdate { metric: 4, operation, value: -0.25 };
        check_aux(13, &wire().u32(4).u8(number as u8).f64(-0.25), &update);
    }
    check_aux(14, &wire().u64(5).u32(4), &AuxMessage::MetricValue { call: 5, metric: 4 });
    check_aux(15, &wire().u8(0).u32(4), &AuxMessage::MetricDrop { is_metric: false, id: 4 });
    check_aux(15, &wire().u8(1).u32(4), &AuxMessage::MetricDrop { is_metric: true, id: 4 });
}

#[test]
fn a_message_that_says_what_it_may_not_is_refused() {
    let check = |got: MessageError, want| assert_eq!(got, want);
    for kind in [0, 11, 255] {
        check(main(kind, &wire()).unwrap_err(), MessageError::Kind(kind));
    }
    check(main(10, &wire().u8(3).u64(1)).unwrap_err(), MessageError::Value("the kind of a report"));
    let outcome = wire().u8(2).u64(1).u32(0).u8(4).u64(0).u64(0);
    check(main(10, &outcome).unwrap_err(), MessageError::Value("the outcome of a response"));
    for kind in [0, 16, 255] {
        check(aux(kind, &wire()).unwrap_err(), MessageError::Kind(kind));
    }
    check(main(2, &wire().u32(2).raw(b"\xff\xfe")).unwrap_err(), MessageError::Text);
    check(main(2, &wire().u32(u32::MAX).raw(b"x")).unwrap_err(), MessageError::End);
    check(aux(2, &wire().u64(1).u64(1).u8(2)).unwrap_err(), MessageError::Value("a flag"));
    check(aux(5, &wire().u8(4).u32(0).str16("").str32("")).unwrap_err(), MessageError::Value("the level"));
    check(aux(6, &wire().u64(0).u8(3).str32("")).unwrap_err(), MessageError::Value("the state"));
    let kind = MessageError::Value("the kind of a family");
    check(aux(11, &wire().u64(0).u8(3).str16("").str16("")).unwrap_err(), kind);
    check(aux(13, &wire().u32(0).u8(3).f64(0.0)).unwrap_err(), MessageError::Value("the operation of a metric"));
    check(aux(15, &wire().u8(2).u32(0)).unwrap_err(), MessageError::Value("a flag"));
    let send = wire().u64(0).u8(0).span(0, 0, 0, 0);
    check(main(4, &send.u8(4)).unwrap_err(), MessageError::Value("a response"));
}

#[test]
fn as_much_as_there_may_be_is_read_and_one_more_is_refused() {
    let send = || wire().u64(0).u8(0).span(0, 0, 0, 0).u8(1).str32("");
    let check = |result: Result<(), MessageError>, is_read| {
        assert_eq!(result, if is_read { Ok(()) } else { Err(MessageError::Count) });
    };
    for (more, is_read) in [(0, true), (1, false)] {
        let rank = send().u16(1).u16(0).tensor(1, 0, 0, &vec![0; RANK_MAX + more]);
        check(main(4, &rank).map(drop), is_read);
        let tensors = (0..REQUEST_TENSORS_MAX + more)
            .fold(send().u16((REQUEST_TENSORS_MAX + more) as u16), |wire, _| wire.u16(0).tensor(1, 0, 0, &[]));
        check(main(4, &tensors).map(drop), is_read);
        let count = BATCH_REQUESTS_MAX + more;
        let responses = wire().u64(0).u8(0).span(0, 0, 0, 0).u8(0).u32(count as u32).raw(&vec![0; count]);
        check(main(3, &responses).map(drop), is_read);
        let count = ORDER_PARAMETERS_MAX + more;
        let files = wire().u64(4).u8(0).str16("m").str16("").u8(0).str32("").span(0, 0, 0, 0).u16(count as u16);
        let files = (0..count).fold(files, |wire, _| wire.str16("").u64(0).u64(0));
        check(aux(10, &files).map(drop), is_read);
        let bls = || wire().u64(1).u64(0).u8(0).str16("m").i64(0).details("", &wire().u8(0), "", "").span(0, 0, 0, 0);
        let count = REQUEST_TENSORS_MAX + more;
        let outputs = (0..count).fold(bls().u16(count as u16), |wire, _| wire.str16("")).u16(0);
        check(aux(7, &outputs).map(drop), is_read);
        let inputs = (0..count).fold(bls().u16(0).u16(count as u16), |wire, _| wire.str16("").tensor(1, 0, 0, &[]));
        check(aux(7, &inputs).map(drop), is_read);
    }
    // A count beyond the received bytes allocates nothing for missing items.
    assert_eq!(aux(1, &wire().u32(u32::MAX)), Err(MessageError::End));
}

fn tensor(datatype: Datatype, shape: &[i64], size: usize) -> Tensor {
    Tensor { datatype, shape: Shape::from_slice(shape), contents: vec![0; size].into() }
}

#[test]
fn a_batch_is_written_as_the_protocol_says() {
    let details = |correlation_id| RequestDetails {
        id: "id".to_owned(),
        correlation_id,
        flags: 3,
        timeout: Duration::from_micros(1_500),
        priority: 7,
        parameters: parameters(&[("a", ParameterValue::Double(1.0)), ("b", ParameterValue::Text("\n".to_owned()))]),
        trace: Some("{}".to_owned()),
        ..RequestDetails::default()
    };
    let inputs = [
        [tensor(Datatype::Fp32, &[1, 3], 12), tensor(Datatype::Fp32, &[], 0), tensor(Datatype::Bytes, &[1], 70)],
        [tensor(Datatype::Fp32, &[1, 3], 12), tensor(Datatype::Bf16, &[4, 2], 16), tensor(Datatype::Bytes, &[0], 0)],
    ];
    let needs = OutputNeeds([OutputNeed::Nothing, OutputNeed::Classes(3)].into_iter().collect());
    let all = OutputNeeds::default();
    let own = details(Some(CorrelationId::Own(42)));
    let text = details(Some(CorrelationId::Text("user".into())));
    let number = details(Some(CorrelationId::Number(42)));
    let requests = [
        ExecuteRequest { request: 1, details: None, needs: &all, inputs: &inputs[0] },
        ExecuteRequest { request: 2, details: Some(&own), needs: &needs, inputs: &inputs[1] },
        ExecuteRequest { request: 3, details: Some(&text), needs: &all, inputs: &[] },
        ExecuteRequest { request: 4, details: Some(&number), needs: &all, inputs: &[] },
    ];
    let head = ExecuteHead { batch: 6, span: span(2, 1, 64, 400), released: &[8, 9], output_count: 3 };
    let mut out = b"before".to_vec();
    put_execute(&head, requests.into_iter(), &mut out).unwrap();

    let parameters = r#"{"a":1.0,"b":"\u000a"}"#;
    let whole = |wire: Wire| wire.u16(3).u16(0).u16(1).u16(2);
    let want = wire().u64(6).span(2, 1, 64, 400).u32(2).u32(8).u32(9).u32(4);
    let want = whole(want.u64(1).u8(0)).u16(2);
    let want = want.u16(0).tensor(11, 0, 12, &[1, 3]).u16(2).tensor(13, 64, 70, &[1]);
    let want = want.u64(2).u8(1).details("id", &wire().u8(1).u64(42), parameters, "{}").u16(2).u16(1).u16(2).u16(3);
    let want =
        want.u16(0).tensor(11, 192, 12, &[1, 3]).u16(1).tensor(14, 256, 16, &[4, 2]).u16(2).tensor(13, 320, 0, &[0]);
    let want = want.u64(3).u8(1).details("id", &wire().u8(2).str32("user"), parameters, "{}");
    let want = whole(want).u16(0).u64(4).u8(1).details("id", &wire().u8(1).u64(42), parameters, "{}");
    assert_eq!(out, [b"before".to_vec(), whole(want).u16(0).frame(2)].concat());
}

#[test]
fn parts_lie_one_behind_the_other_on_lines() {
    let mut layout = SpanLayout::default();
    assert_eq!([12, 0, 64, 65, 0, 1].map(|size| layout.place(size)), [0, 64, 64, 128, 256, 256]);
    assert_eq!((layout.size(), SpanLayout::default().size()), (257, 0));
}

#[test]
fn the_other_messages_of_the_server_are_written_as_the_protocol_says() {
    let check = |put: &dyn Fn(&mut Vec<u8>), want: Vec<u8>| {
        let mut out = vec![1, 2, 3];
        put(&mut out);
        assert_eq!(out, [vec![1, 2, 3], want].concat());
    };
    let start = wire().u32(2).str16("a").str32("x = 1").str16("a.b").str32("");
    check(&|out| put_start(&[("a", "x = 1"), ("a.b", "")], out).unwrap(), start.0);
    let document = JsonItem::Object(vec![("mode", JsonItem::Text("serve"))]);
    check(&|out| put_init(&document, out).unwrap(), wire().str32(r#"{"mode":"serve"}"#).frame(1));
    check(&put_finalize, wire().frame(3));
    check(&put_fork, wire().frame(4));
    check(&|out| put_region(RegionSide::Request, 3, 1 << 33, out), wire().u8(0).u16(3).u64(1 << 33).frame(1));
    check(&|out| put_region(RegionSide::Response, 3, 64, out), wire().u8(1).u16(3).u64(64).frame(1));
    let again = wire().u64(7).u8(0).u32(2).u32(5).u32(6);
    check(&|out| put_space_reply(7, SpaceOutcome::Again, &[5, 6], out), again.frame(2));
    check(&|out| put_space_reply(7, SpaceOutcome::Grown, &[], out), wire().u64(7).u8(1).u32(0).frame(2));
    let refused = wire().u64(7).u8(2).str32("no memory").u32(0);
    check(&|out| put_space_reply(7, SpaceOutcome::Refused("no memory"), &[], out), refused.frame(2));
    check(&|out| put_reply(7, Ok(ReplyValue::None), out), wire().u64(7).u8(0).u8(0).frame(3));
    check(&|out| put_reply(7, Ok(ReplyValue::Bool(true)), out), wire().u64(7).u8(0).u8(1).u8(1).frame(3));
    check(&|out| put_reply(7, Ok(ReplyValue::Number(-0.5)), out), wire().u64(7).u8(0).u8(2).f64(-0.5).frame(3));
    check(&|out| put_reply(7, Ok(ReplyValue::Id(9)), out), wire().u64(7).u8(0).u8(3).u32(9).frame(3));
    check(&|out| put_is_ready(7, out), wire().u64(7).frame(5));
}

#[test]
fn responses_to_a_call_are_written_by_name() {
    let check = |reply: &NestedReply, want: Wire| {
        let mut out = Vec::new();
        put_bls_reply(3, reply, &span(4, 0, 128, 80), &mut out).unwrap();
        assert_eq!(out, want.frame(4));
    };
    let head = |flags| wire().u64(3).u8(flags).span(4, 0, 128, 80);
    let outputs = |list: &[(&str, Tensor)]| Ok(list.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect());
    let list = [("A", tensor(Datatype::Int8, &[5], 5)), ("é", tensor(Datatype::Fp64, &[2, 1], 16))];
    let reply = NestedReply {
        outputs: outputs(&list),
        parameters: parameters(&[("n", ParameterValue::Bool(true))]),
        is_final: false,
    };
    let tensors = |wire: Wire| wire.str16("A").tensor(6, 0, 5, &[5]).str16("é").tensor(12, 64, 16, &[2, 1]);
    check(&reply, tensors(head(0).u8(1).str32(r#"{"n":true}"#).u16(2)));
    let bare = NestedReply { outputs: outputs(&[]), parameters: Parameters::default(), is_final: true };
    check(&bare, head(1).u8(1).str32("").u16(0));
    let failed = NestedReply { outputs: Err(Error::unavailable("is not ready")), ..bare };
    check(&failed, head(1).u8(2).u8(4).str32("is not ready"));

    let mut out = b"before".to_vec();
    let name = "n".repeat(65_536);
    let long = NestedReply { outputs: outputs(&[(&name, list[0].1.clone())]), ..failed };
    assert_eq!(put_bls_reply(3, &long, &Span::default(), &mut out), Err(MessageError::Count));
    let many = outputs(&vec![("A", list[0].1.clone()); 65_536]);
    let long = NestedReply { outputs: many, ..long };
    assert_eq!(put_bls_reply(3, &long, &Span::default(), &mut out), Err(MessageError::Count));
    assert_eq!(out, b"before", "what is refused leaves nothing behind");
}

#[test]
fn what_is_too_large_for_a_message_is_refused_or_cut() {
    let text = "é".repeat(PYTHON_FRAME_SIZE_MAX / 2);
    let mut out = b"before".to_vec();
    assert_eq!(put_init(&JsonItem::Text(&text), &mut out), Err(MessageError::FrameSize));
    let details = RequestDetails { id: text.clone(), ..RequestDetails::default() };
    let needs = OutputNeeds::default();
    let request = ExecuteRequest { request: 1, details: Some(&details), needs: &needs, inputs: &[] };
    let head = ExecuteHead { batch: 1, span: Span::default(), released: &[], output_count: 0 };
    assert_eq!(put_execute(&head, [request].into_iter(), &mut out), Err(MessageError::FrameSize));
    let deep = [tensor(Datatype::Bool, &[1; RANK_MAX + 1], 1)];
    let request = ExecuteRequest { request: 1, details: None, needs: &needs, inputs: &deep };
    assert_eq!(put_execute(&head, [request].into_iter(), &mut out), Err(MessageError::Count));
    assert_eq!(put_start(&[(&"n".repeat(65_536), "")], &mut Vec::new()), Err(MessageError::Count));
    assert_eq!(out, b"before", "what is refused leaves nothing behind");
    // The limit lies inside a letter here, which is dropped as a whole.
    put_reply(1, Err(&Error::internal(format!("x{text}"))), &mut out);
    let kept = format!("x{}", "é".repeat(PYTHON_TEXT_SIZE_MAX / 2 - 1));
    assert!(out.ends_with(&wire().u64(1).u8(1).u8(1).str32(&kept).frame(3)));
    // As large as a frame may be, with the kind and the sizes of the text.
    let fits = "x".repeat(PYTHON_FRAME_SIZE_MAX - 1 - 4 - 2);
    let mut out = Vec::new();
    put_init(&JsonItem::Text(&fits), &mut out).unwrap();
    assert_eq!(out.len(), 4 + PYTHON_FRAME_SIZE_MAX);
}

#[test]
fn every_refusal_says_what_is_wrong() {
    let all = [
        MessageError::Count,
        MessageError::End,
        MessageError::FrameSize,
        MessageError::Json,
        MessageError::Kind(9),
        MessageError::Range,
        MessageError::Size,
        MessageError::Strings,
        MessageError::Text,
        MessageError::Trailing,
        MessageError::Value("a flag"),
    ];
    let texts: std::collections::BTreeSet<_> = all.iter().map(MessageError::to_string).collect();
    assert_eq!(texts.len(), all.len());
    assert!(texts.iter().all(|text| text.contains("message") || text.contains("tensor")), "{texts:?}");
}
