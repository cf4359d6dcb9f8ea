//! The encoded requests. They are made before the load starts, and sending one clones a reference to its bytes. Only
//! requests of a sequence are assembled when they are sent, since their parameters differ each time. Pure.

use bytes::{Bytes, BytesMut};

use crate::connection::tls::TlsClientConfig;
use crate::loadgen::input::Inputs;
use crate::loadgen::sequence::SequenceStep;
use crate::loadgen::target::{Address, Encoding, Protocol, RequestParameter};
use crate::tensor::{Datatype, Tensor, strings::Strings};
use crate::wire::json::writer;
use crate::wire::{grpc, protobuf};

/// The method of a request: a gRPC method, or the HTTP endpoint that corresponds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestMethod {
    /// `ModelConfig`.
    ModelConfig,
    /// `ModelInfer`.
    ModelInfer,
    /// `ModelMetadata`.
    ModelMetadata,
    /// `ModelStatistics`.
    ModelStatistics,
    /// `ServerMetadata`.
    ServerMetadata,
}

impl RequestMethod {
    /// The path of the gRPC call.
    pub const fn path(self) -> &'static str {
        match self {
            Self::ModelConfig => "/inference.GRPCInferenceService/ModelConfig",
            Self::ModelInfer => "/inference.GRPCInferenceService/ModelInfer",
            Self::ModelMetadata => "/inference.GRPCInferenceService/ModelMetadata",
            Self::ModelStatistics => "/inference.GRPCInferenceService/ModelStatistics",
            Self::ServerMetadata => "/inference.GRPCInferenceService/ServerMetadata",
        }
    }

    /// The part of the HTTP path behind the model; `None` for a request without a model.
    const fn suffix(self) -> Option<&'static str> {
        match self {
            Self::ModelConfig => Some("/config"),
            Self::ModelInfer => Some("/infer"),
            Self::ModelMetadata => Some(""),
            Self::ModelStatistics => Some("/stats"),
            Self::ServerMetadata => None,
        }
    }
}

/// An encoded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingRequest {
    /// The method. gRPC needs it for `:path`; an HTTP message contains it.
    pub method: RequestMethod,
    /// The HTTP message with its head, or the gRPC message with its prefix.
    pub bytes: Bytes,
}

/// The address and the encoding of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestPlan {
    /// The server's address.
    pub address: Address,
    /// HTTP or gRPC.
    pub protocol: Protocol,
    /// The model's name.
    pub model: String,
    /// The model's version; empty to let the server choose.
    pub version: String,
    /// The encoding of inputs over HTTP.
    pub input_encoding: Encoding,
    /// The encoding requested for outputs over HTTP.
    pub output_encoding: Encoding,
    /// Rows in a request.
    pub rows: usize,
    /// Parameters of every request.
    pub parameters: Vec<(String, RequestParameter)>,
    /// Additional header fields of every request; over gRPC, metadata.
    pub fields: Vec<(String, String)>,
    /// The state of TLS connections; `None` without TLS.
    pub tls: Option<TlsClientConfig>,
}

impl RequestPlan {
    /// Encodes a request without tensors: for metadata, configuration or statistics.
    pub fn control(&self, method: RequestMethod) -> OutgoingRequest {
        let bytes = match self.protocol {
            Protocol::Http => self.head("GET", method, "\r\n").into(),
            Protocol::Grpc => {
                let mut message = Vec::new();
                if method.suffix().is_some() {
                    protobuf::put_str(1, &self.model, &mut message);
                    protobuf::put_str(2, &self.version, &mut message);
                }
                framed(&[&message])
            }
        };
        OutgoingRequest { method, bytes }
    }

    /// The head of an HTTP request. `rest` is the end of it: the fields of this request, and the empty line.
    fn head(&self, verb: &str, method: RequestMethod, rest: &str) -> Vec<u8> {
        let version = if self.version.is_empty() { String::new() } else { format!("/versions/{}", self.version) };
        let model = method.suffix().map(|suffix| format!("/models/{}{version}{suffix}", self.model));
        let path = format!("{}/v2{}", self.address.prefix, model.unwrap_or_default());
        let mut head = format!("{verb} {path} HTTP/1.1\r\n");
        if !self.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("Host: {}\r\n", self.address.authority());
        }
        for (name, value) in &self.fields {
            head += &format!("{name}: {value}\r\n");
        }
        head += rest;
        head.into_bytes()
    }
}

/// All requests of a load.
#[derive(Clone, Debug)]
pub struct Requests {
    plan: RequestPlan,
    /// The request template of each sample, by stream.
    streams: Vec<Vec<RequestTemplate>>,
    /// The complete request of each sample without a sequence, stream after stream.
    whole: Vec<Bytes>,
}

/// The part that all requests of a sample have in common.
#[derive(Clone, Debug)]
struct RequestTemplate {
    /// HTTP: the JSON after the opening brace, without the parameters. gRPC: the message without the parameters of a
    /// sequence.
    header: Vec<u8>,
    /// HTTP: the binary section of the body.
    binary: Vec<u8>,
}

impl Requests {
    /// Encodes the requests for all samples.
    ///
    /// # Errors
    /// A line for the user: the rows of a batch do not fit together, or a tensor cannot be encoded as JSON.
    pub fn new(plan: RequestPlan, input_names: &[String], inputs: &Inputs) -> Result<Self, String> {
        let mut streams = Vec::new();
        for (stream, samples) in inputs.streams.iter().enumerate() {
            let templates = (0..samples.len()).map(|index| {
                let tensors = inputs.batch(stream, index, plan.rows)?;
                let named: Option<Vec<_>> =
                    tensors.iter().map(|(input, tensor)| Some((input_names.get(*input)?.as_str(), tensor))).collect();
                let named = named.ok_or("more tensors than inputs")?;
                match plan.protocol {
                    Protocol::Http => http_template(&plan, &named),
                    Protocol::Grpc => Ok(grpc_template(&plan, &named)),
                }
            });
            streams.push(templates.collect::<Result<Vec<_>, String>>()?);
        }
        let mut requests = Self { plan, streams, whole: Vec::new() };
        requests.whole = requests.streams.iter().flatten().map(|template| requests.assemble(template, None)).collect();
        Ok(requests)
    }

    /// The plan of the requests: their address and encoding.
    pub const fn plan(&self) -> &RequestPlan {
        &self.plan
    }

    /// The request with a number, without a sequence: the samples take turns.
    pub fn by_number(&self, number: u64) -> OutgoingRequest {
        let index = number % self.whole.len().max(1) as u64;
        let bytes = usize::try_from(index).ok().and_then(|index| self.whole.get(index)).cloned().unwrap_or_default();
        OutgoingRequest { method: RequestMethod::ModelInfer, bytes }
    }

    /// The request for a step of a sequence.
    pub fn for_step(&self, step: &SequenceStep) -> OutgoingRequest {
        let samples = self.streams.get(step.stream).map(Vec::as_slice).unwrap_or_default();
        let template = samples.get(step.index % samples.len().max(1));
        let bytes = template.map(|template| self.assemble(template, Some(step))).unwrap_or_default();
        OutgoingRequest { method: RequestMethod::ModelInfer, bytes }
    }

    /// The number of samples in each stream.
    pub fn stream_lengths(&self) -> Vec<usize> {
        self.streams.iter().map(Vec::len).collect()
    }

    /// The size of the first request in bytes.
    pub fn request_size(&self) -> usize {
        self.whole.first().map_or(0, Bytes::len)
    }

    fn assemble(&self, template: &RequestTemplate, step: Option<&SequenceStep>) -> Bytes {
        match self.plan.protocol {
            Protocol::Grpc => {
                let parameters = step.map(grpc_sequence).unwrap_or_default();
                framed(&[&template.header, &parameters])
            }
            Protocol::Http => {
                let parameters = http_parameters(&self.plan, step);
                let json_size = 1 + parameters.len() + template.header.len();
                let mut fields = match self.plan.input_encoding {
                    Encoding::Binary => format!(
                        "Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {json_size}\r\n"
                    ),
                    Encoding::Json => "Content-Type: application/json\r\n".to_owned(),
                };
                fields += &format!("Content-Length: {}\r\n\r\n{{", json_size + template.binary.len());
                let head = self.plan.head("POST", RequestMethod::ModelInfer, &fields);
                [&head[..], &parameters, &template.header, &template.binary].concat().into()
            }
        }
    }
}

/// The member `parameters` of an HTTP request's JSON with a comma behind it; empty without parameters.
fn http_parameters(plan: &RequestPlan, step: Option<&SequenceStep>) -> Vec<u8> {
    let mut members: Vec<(&str, Vec<u8>)> = Vec::new();
    let text = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        out
    };
    if let Some(step) = step {
        members.push(("sequence_id", text(&|out| writer::integer(step.id, out))));
        members.push(("sequence_start", text(&|out| writer::boolean(step.is_start, out))));
        members.push(("sequence_end", text(&|out| writer::boolean(step.is_end, out))));
    }
    if plan.output_encoding == Encoding::Binary {
        members.push(("binary_data_output", b"true".to_vec()));
    }
    for (name, value) in &plan.parameters {
        let value = match value {
            RequestParameter::Bool(value) => text(&|out| writer::boolean(*value, out)),
            RequestParameter::Double(value) => text(&|out| writer::float(*value, out)),
            RequestParameter::Int(value) => text(&|out| writer::integer(*value, out)),
            RequestParameter::String(value) => text(&|out| writer::string(value, out)),
            RequestParameter::Uint(value) => text(&|out| writer::integer(*value, out)),
        };
        members.push((name, value));
    }
    if members.is_empty() {
        return Vec::new();
    }
    let mut out = b"\"parameters\":{".to_vec();
    for (index, (name, value)) in members.iter().enumerate() {
        writer::comma(index, &mut out);
        writer::string(name, &mut out);
        out.push(b':');
        out.extend_from_slice(value);
    }
    out.extend_from_slice(b"},");
    out
}

fn http_template(plan: &RequestPlan, tensors: &[(&str, &Tensor)]) -> Result<RequestTemplate, String> {
    let (mut json, mut raw) = (b"\"inputs\":[".to_vec(), Vec::new());
    for (index, (name, tensor)) in tensors.iter().enumerate() {
        writer::comma(index, &mut json);
        json.extend_from_slice(b"{\"name\":");
        writer::string(name, &mut json);
        json.extend_from_slice(b",\"shape\":[");
        for (index, dimension) in tensor.shape.iter().enumerate() {
            writer::comma(index, &mut json);
            writer::integer(*dimension, &mut json);
        }
        json.extend_from_slice(b"],\"datatype\":\"");
        json.extend_from_slice(tensor.datatype.name().as_bytes());
        match plan.input_encoding {
            Encoding::Binary => {
                json.extend_from_slice(b"\",\"parameters\":{\"binary_data_size\":");
                writer::integer(tensor.contents.len(), &mut json);
                json.extend_from_slice(b"}}");
                raw.extend_from_slice(&tensor.contents);
            }
            Encoding::Json => {
                json.extend_from_slice(b"\",\"data\":[");
                write_elements(name, tensor, &mut json)?;
                json.extend_from_slice(b"]}");
            }
        }
    }
    json.extend_from_slice(b"]}");
    Ok(RequestTemplate { header: json, binary: raw })
}

fn write_elements(name: &str, tensor: &Tensor, out: &mut Vec<u8>) -> Result<(), String> {
    macro_rules! numbers {
        ($number:ty, $write:path) => {
            for (index, bytes) in tensor.contents.as_chunks::<{ size_of::<$number>() }>().0.iter().enumerate() {
                writer::comma(index, out);
                $write(<$number>::from_le_bytes(*bytes), out);
            }
        };
    }
    match tensor.datatype {
        Datatype::Bool => {
            for (index, byte) in tensor.contents.iter().enumerate() {
                writer::comma(index, out);
                writer::boolean(*byte != 0, out);
            }
        }
        Datatype::Bytes => {
            for (index, element) in Strings::new(&tensor.contents).enumerate() {
                let text = element.ok().and_then(|element| std::str::from_utf8(element).ok());
                let text = text.ok_or_else(|| format!("input '{name}' is not UTF-8 and cannot be sent as JSON"))?;
                writer::comma(index, out);
                writer::string(text, out);
            }
        }
        Datatype::Fp16 | Datatype::Bf16 => {
            return Err(format!("input '{name}' is {} and cannot be sent as JSON", tensor.datatype.name()));
        }
        Datatype::Fp32 => numbers!(f32, writer::float),
        Datatype::Fp64 => numbers!(f64, writer::float),
        Datatype::Int16 => numbers!(i16, writer::integer),
        Datatype::Int32 => numbers!(i32, writer::integer),
        Datatype::Int64 => numbers!(i64, writer::integer),
        Datatype::Int8 => numbers!(i8, writer::integer),
        Datatype::Uint16 => numbers!(u16, writer::integer),
        Datatype::Uint32 => numbers!(u32, writer::integer),
        Datatype::Uint64 => numbers!(u64, writer::integer),
        Datatype::Uint8 => numbers!(u8, writer::integer),
    }
    Ok(())
}

/// Encodes a `ModelInferRequest` by the field numbers of `grpc_service.proto`: without prost, which would copy the tensors.
fn grpc_template(plan: &RequestPlan, tensors: &[(&str, &Tensor)]) -> RequestTemplate {
    let mut message = Vec::new();
    protobuf::put_str(1, &plan.model, &mut message);
    protobuf::put_str(2, &plan.version, &mut message);
    for (name, value) in &plan.parameters {
        put_parameter(name, value, &mut message);
    }
    for (name, tensor) in tensors {
        let mut input = Vec::new();
        protobuf::put_str(1, name, &mut input);
        protobuf::put_str(2, tensor.datatype.name(), &mut input);
        protobuf::put_packed(3, &tensor.shape, &mut input);
        put_bytes(5, &input, &mut message);
    }
    for (_, tensor) in tensors {
        put_bytes(7, &tensor.contents, &mut message);
    }
    RequestTemplate { header: message, binary: Vec::new() }
}

/// The parameters of a sequence, as entries of the map in field 4. Fields of a message may be in any order, so these can be
/// appended to the template.
fn grpc_sequence(step: &SequenceStep) -> Vec<u8> {
    let mut out = Vec::new();
    put_parameter("sequence_id", &RequestParameter::Int(step.id.cast_signed()), &mut out);
    put_parameter("sequence_start", &RequestParameter::Bool(step.is_start), &mut out);
    put_parameter("sequence_end", &RequestParameter::Bool(step.is_end), &mut out);
    out
}

fn put_parameter(name: &str, value: &RequestParameter, out: &mut Vec<u8>) {
    let mut choice = Vec::new();
    let mut varint = |number: u64, value: u64| {
        protobuf::put_varint(number << 3, &mut choice);
        protobuf::put_varint(value, &mut choice);
    };
    match value {
        RequestParameter::Bool(value) => varint(1, u64::from(*value)),
        RequestParameter::Int(value) => varint(2, value.cast_unsigned()),
        RequestParameter::Uint(value) => varint(5, *value),
        RequestParameter::String(value) => put_bytes(3, value.as_bytes(), &mut choice),
        RequestParameter::Double(value) => {
            protobuf::put_varint(4 << 3 | 1, &mut choice);
            choice.extend_from_slice(&value.to_le_bytes());
        }
    }
    let mut entry = Vec::new();
    protobuf::put_str(1, name, &mut entry);
    put_bytes(2, &choice, &mut entry);
    put_bytes(4, &entry, out);
}

fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    protobuf::put_bytes_head(number, bytes.len(), out);
    out.extend_from_slice(bytes);
}

/// Joins the parts of a gRPC message behind its length prefix.
fn framed(parts: &[&[u8]]) -> Bytes {
    let size = parts.iter().map(|part| part.len()).sum();
    let mut out = BytesMut::with_capacity(size + grpc::PREFIX_SIZE);
    // Fails only from 4 GiB on, larger than any request made here.
    out.extend_from_slice(&grpc::prefix(size).unwrap_or_default());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.freeze()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use prost::Message;

    use super::*;
    use crate::wire::proto::inference as proto;

    const STEP: SequenceStep = SequenceStep { slot: 0, id: 42, stream: 0, index: 0, is_start: true, is_end: false };

    fn plan(protocol: Protocol, encoding: Encoding) -> RequestPlan {
        RequestPlan {
            address: Address::parse("localhost:9/base", Protocol::Http).unwrap(),
            protocol,
            model: "m".to_owned(),
            version: "3".to_owned(),
            input_encoding: encoding,
            output_encoding: encoding,
            rows: 2,
            parameters: vec![
                ("note".to_owned(), RequestParameter::String("a\"b".to_owned())),
                ("weight".to_owned(), RequestParameter::Double(0.5)),
            ],
            fields: vec![("X-Key".to_owned(), "v".to_owned())],
            tls: None,
        }
    }

    fn requests(plan: RequestPlan) -> Requests {
        let tensor = |datatype, contents: &[u8]| {
            Some(Tensor { datatype, shape: [1].into_iter().collect(), contents: Bytes::copy_from_slice(contents) })
        };
        let sample =
            |float: f32, text: &[u8]| vec![tensor(Datatype::Fp32, &float.to_le_bytes()), tensor(Datatype::Bytes, text)];
        let stream = vec![sample(0.1, b"\x01\0\0\0x"), sample(2.0, b"\0\0\0\0")];
        let inputs = Inputs { streams: vec![stream], is_batching: true };
        Requests::new(plan, &["A".to_owned(), "B".to_owned()], &inputs).unwrap()
    }

    fn text(outgoing: &OutgoingRequest) -> String {
        String::from_utf8_lossy(&outgoing.bytes).replace("\r\n", "\n").replace('\0', "\\0").replace('\u{1}', "\\x01")
    }

    #[test]
    fn json_requests_are_as_written_by_hand() {
        let requests = requests(plan(Protocol::Http, Encoding::Json));
        expect![[r#"
            POST /base/v2/models/m/versions/3/infer HTTP/1.1
            Host: localhost:9
            X-Key: v
            Content-Type: application/json
            Content-Length: 178

            {"parameters":{"note":"a\"b","weight":0.5},"inputs":[{"name":"A","shape":[2,1],"datatype":"FP32","data":[0.1,2.0]},{"name":"B","shape":[2,1],"datatype":"BYTES","data":["x",""]}]}"#]]
        .assert_eq(&text(&requests.by_number(0)));
    }

    #[test]
    fn binary_requests_tell_the_size_of_their_json_with_the_parameters_of_a_sequence() {
        let requests = requests(plan(Protocol::Http, Encoding::Binary));
        let outgoing = requests.for_step(&STEP);
        let all = text(&outgoing);
        let body = all.split_once("\n\n").unwrap().1;
        let length = |name: &str| {
            let line = all.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.parse::<usize>().unwrap()
        };
        let head_size = outgoing.bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        assert_eq!(length("Content-Length: "), outgoing.bytes.len() - head_size);
        let json = &outgoing.bytes[head_size..head_size + length("Inference-Header-Content-Length: ")];
        serde_json::from_slice::<serde_json::Value>(json).unwrap();
        assert!(body.starts_with(
            r#"{"parameters":{"sequence_id":42,"sequence_start":true,"sequence_end":false,"binary_data_output":true,"#
        ));
        assert!(outgoing.bytes.ends_with(b"\x01\0\0\0x\0\0\0\0"));
    }

    #[test]
    fn grpc_requests_decode_to_what_was_asked() {
        let requests = requests(plan(Protocol::Grpc, Encoding::Binary));
        let outgoing = requests.for_step(&STEP);
        assert_eq!(outgoing.bytes[..5], grpc::prefix(outgoing.bytes.len() - 5).unwrap());
        let message = proto::ModelInferRequest::decode(&outgoing.bytes[5..]).unwrap();
        assert_eq!((&*message.model_name, &*message.model_version), ("m", "3"));
        assert_eq!(message.inputs.len(), 2);
        assert_eq!((&*message.inputs[0].datatype, &message.inputs[0].shape[..]), ("FP32", &[2, 1][..]));
        assert_eq!(message.raw_input_contents[1], &b"\x01\0\0\0x\0\0\0\0"[..]);
        let parameters: Vec<_> = message
            .parameters
            .iter()
            .map(|(name, value)| format!("{name}={:?}", value.parameter_choice.as_ref().unwrap()))
            .collect();
        let mut parameters = parameters;
        parameters.sort();
        let want = [
            "note=StringParam(\"a\\\"b\")",
            "sequence_end=BoolParam(false)",
            "sequence_id=Int64Param(42)",
            "sequence_start=BoolParam(true)",
            "weight=DoubleParam(0.5)",
        ];
        assert_eq!(parameters, want);
    }

    #[test]
    fn samples_take_turns_and_a_host_may_be_given() {
        let mut own = plan(Protocol::Http, Encoding::Binary);
        own.fields = vec![("host".to_owned(), "model.example".to_owned())];
        let requests = requests(own);
        assert_eq!(requests.by_number(0), requests.by_number(2));
        assert_ne!(requests.by_number(0), requests.by_number(1));
        let control = text(&requests.plan().control(RequestMethod::ModelStatistics));
        assert_eq!(control, "GET /base/v2/models/m/versions/3/stats HTTP/1.1\nhost: model.example\n\n");
    }

    #[test]
    fn what_json_cannot_hold_is_refused_by_name() {
        let half = Tensor {
            datatype: Datatype::Fp16,
            shape: [1].into_iter().collect(),
            contents: Bytes::from_static(b"\0\0"),
        };
        let inputs = Inputs { streams: vec![vec![vec![Some(half)]]], is_batching: false };
        let error = Requests::new(plan(Protocol::Http, Encoding::Json), &["A".to_owned()], &inputs).unwrap_err();
        assert_eq!(error, "input 'A' is FP16 and cannot be sent as JSON");
    }
}
