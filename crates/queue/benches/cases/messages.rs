//! Inference requests and responses of both protocols, as the shard has them decoded and encoded.

use std::collections::BTreeMap;
use std::hint::black_box;

use base::budget::ReceiveReservation;
use base::tensor::{Datatype, Shape, Tensor};
use bytes::Bytes;
use model::ModelSpec;
use model::config::{CompletionRules, ConfigDraft};
use protocol::classification::classify;
use protocol::grpc::{self, InferMessage};
use protocol::rest::{self, HeaderLength};

use super::protobuf::Message;
use super::{Random, Work, json};

/// FP32 of a tensor of 1 MiB.
const LARGE: usize = 1 << 18;

/// An identity model with an FP32 tensor of any size, with a batch axis.
fn spec() -> ModelSpec {
    let text = "backend: 'identity' max_batch_size: 8\n\
                input { name: 'INPUT0' data_type: TYPE_FP32 dims: [ -1 ] }\n\
                output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: [ -1 ] }";
    let draft = ConfigDraft::new("identity", Some(text.as_bytes()), &[]).expect("the text is right");
    draft.complete(None, &BTreeMap::new(), CompletionRules::default()).expect("nothing is missing")
}

/// A `ModelInferRequest` with `count` elements.
pub fn message(count: usize) -> Vec<u8> {
    let input = Message::new().bytes(1, "INPUT0").bytes(2, "FP32").packed(3, &[1, count as i64]);
    let asked = Message::new().bytes(1, "OUTPUT0");
    let request = Message::new().bytes(1, "identity").bytes(3, "42").message(5, input).message(6, asked);
    request.bytes(7, vec![0x3f; count * 4]).into_bytes()
}

/// The bytes of a message that a run reads; those of a large tensor are not read.
const fn touched(size: usize) -> usize {
    if size < LARGE { size } else { 0 }
}

pub fn read_small() -> (Work, usize) {
    read(16)
}

pub fn read_large() -> (Work, usize) {
    read(LARGE)
}

fn read(count: usize) -> (Work, usize) {
    let bytes = Bytes::from(message(count));
    let size = touched(bytes.len());
    let work = move || {
        let message = InferMessage::read(black_box(&bytes)).expect("it is a request");
        assert_eq!(black_box(message).raw_count(), 1);
    };
    (Box::new(work), size)
}

pub fn rest_json() -> (Work, usize) {
    rest(json::SMALL.to_vec(), HeaderLength::Absent)
}

pub fn rest_binary() -> (Work, usize) {
    rest_binary_of(16)
}

pub fn rest_binary_large() -> (Work, usize) {
    rest_binary_of(LARGE)
}

fn rest_binary_of(count: usize) -> (Work, usize) {
    let size = count * 4;
    let head = format!(
        "{{\"id\":\"42\",\"inputs\":[{{\"name\":\"INPUT0\",\"shape\":[1,{count}],\"datatype\":\"FP32\",\
         \"parameters\":{{\"binary_data_size\":{size}}}}}],\
         \"outputs\":[{{\"name\":\"OUTPUT0\",\"parameters\":{{\"binary_data\":true}}}}]}}"
    );
    let length = HeaderLength::Size(i32::try_from(head.len()).expect("it is short"));
    rest([head.into_bytes(), vec![0x3f; size]].concat(), length)
}

/// Decodes a request and encodes its inputs as the answer.
fn rest(body: Vec<u8>, length: HeaderLength) -> (Work, usize) {
    let (spec, body) = (spec(), Bytes::from(body));
    let size = touched(body.len());
    let work = move || {
        let request = rest::decode(&spec, length, black_box(&body).clone(), None, &mut ReceiveReservation::default())
            .expect("it is a request");
        let reply = rest::encode(&spec, 1, &request.plan, request.inputs, None).expect("it can be encoded");
        assert_eq!(black_box(reply).status, 200);
    };
    (Box::new(work), size)
}

pub fn grpc_small() -> (Work, usize) {
    grpc_of(16)
}

pub fn grpc_large() -> (Work, usize) {
    grpc_of(LARGE)
}

fn grpc_of(count: usize) -> (Work, usize) {
    let (spec, bytes) = (spec(), Bytes::from(message(count)));
    let size = touched(bytes.len());
    let work = move || {
        let message = InferMessage::read(black_box(&bytes)).expect("it is a request");
        let request =
            grpc::decode(&spec, &message, None, &mut ReceiveReservation::default()).expect("it fits the model");
        let parts = grpc::encode(&spec, 1, &request.plan, request.inputs, None).expect("it can be encoded");
        assert!(!black_box(parts).is_empty());
    };
    (Box::new(work), size)
}

pub fn top_5() -> (Work, usize) {
    let (spec, mut random) = (spec(), Random(9));
    let contents: Vec<u8> = (0..1_000).flat_map(|_| random.float().to_le_bytes()).collect();
    let size = contents.len();
    let shape = Shape::from_slice(&[1, 1_000]);
    let tensor = Tensor { datatype: Datatype::Fp32, shape, contents: Bytes::from(contents) };
    let work = move || {
        let output = spec.outputs.first().expect("there is one");
        let classes = classify(&spec, output, black_box(&tensor), 5).expect("there are classes");
        assert_eq!(black_box(classes).shape.as_slice(), [1, 5]);
    };
    (Box::new(work), size)
}
