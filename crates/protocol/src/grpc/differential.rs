//! Differential fuzzing: arbitrary bytes through every reader of this folder, compared with `prost` where it reads
//! the same message. Called by the fuzz target `grpc` and by tests, never by the server.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::grpc::message::{Contents, InferMessage, InferParameter, InferParameters, RAW_INPUT_CONTENTS, ReadError};
use crate::grpc::{contents, decode, reflection};
use crate::route::version_of;
use base::budget::ReceiveReservation;
use base::tensor::Datatype;
use model::{Batching, ModelSpec, TensorSpec, VersionPolicy};
use wire::grpc::{GatherError, Gatherer};
use wire::message::BodyBuffer;
use wire::proto::inference as proto;
use wire::proto::inference::infer_parameter::ParameterChoice;
use wire::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use wire::protobuf::{MessageFields, WireType, fields};

/// The result of the comparison of two readers on the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Both accepted them, with the same result.
    Accepted,
    /// Ours refused them because of a limit, which `prost` does not have.
    Limited,
    /// Both refused them.
    Refused,
}

/// Reads bytes as a request with both readers.
///
/// # Errors
///
/// A text that shows both results, if the readers disagree.
pub fn compare(bytes: &Bytes) -> Result<Agreement, String> {
    let theirs = proto::ModelInferRequest::decode(bytes.clone());
    match (InferMessage::read(bytes), theirs) {
        (Ok(ours), Ok(theirs)) => {
            let ours = to_prost(&ours);
            // Compared in encoded form, in which NaN equals NaN.
            let is_same = ours.encode_to_vec() == theirs.encode_to_vec();
            is_same.then_some(Agreement::Accepted).ok_or_else(|| format!("ours {ours:?}\ntheirs {theirs:?}"))
        }
        (Err(ReadError::Limit { .. }), _) => Ok(Agreement::Limited),
        (Err(ReadError::Wire(_)), Err(_)) => Ok(Agreement::Refused),
        (Err(ReadError::Wire(_)), Ok(_)) if begins_wrong_entry(fields(bytes), 4, true) => Ok(Agreement::Refused),
        (Err(error), Ok(theirs)) => Err(format!("only ours refused: {error:?}\ntheirs {theirs:?}")),
        (Ok(_), Err(error)) => Err(format!("only theirs refused: {error}")),
    }
}

/// Returns true if the first fault of a message is an entry of a map (field `entry`) that is not
/// length-delimited. `prost` ignores the wire type of map entries; only there it accepts more than
/// our reader.
fn begins_wrong_entry(mut fields: MessageFields<'_>, entry: u32, is_request: bool) -> bool {
    loop {
        if fields.peek().is_some_and(|(number, is_bytes)| number == entry && !is_bytes) {
            return true;
        }
        let Some(Ok((number, wire))) = fields.next() else { return false };
        let inner = match (number, wire) {
            (5, WireType::Bytes(input)) if is_request => begins_wrong_entry(fields.inner(input), 4, false),
            (6, WireType::Bytes(output)) if is_request => begins_wrong_entry(fields.inner(output), 2, false),
            _ => false,
        };
        if inner {
            return true;
        }
    }
}

/// The fuzz target: for any bytes, no reader may panic, ours and `prost` must agree, and the
/// messages gathered must not depend on how the bytes are split into chunks.
///
/// # Errors
///
/// A text that shows the disagreement.
pub fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let bytes = Bytes::copy_from_slice(bytes);
    compare(&bytes)?;
    if let Ok(message) = InferMessage::read(&bytes) {
        version_of(message.model_version).ok();
        decode(&model(), &message, None, &mut ReceiveReservation::default()).ok();
        for contents in message.inputs.iter().filter_map(|input| input.contents.as_ref()) {
            for datatype in Datatype::ALL {
                contents::convert(contents, Some(datatype), &mut ReceiveReservation::default()).ok();
            }
        }
    }
    reflection::answer(&bytes).ok();
    compare_chunks(&bytes)
}

/// Compares messages gathered from the whole bytes with those gathered from small pieces.
fn compare_chunks(bytes: &Bytes) -> Result<(), String> {
    let whole = gather(bytes, usize::MAX);
    let size = bytes.first().map_or(1, |first| usize::from(first % 7).saturating_add(1));
    let pieces = gather(bytes, size);
    if whole == pieces { Ok(()) } else { Err(format!("whole {whole:?}\nby {size} {pieces:?}")) }
}

fn gather(bytes: &Bytes, piece_size: usize) -> (Vec<Bytes>, Option<GatherError>) {
    let mut gatherer: Gatherer<PlainBuffer> = Gatherer::new(1 << 16, RAW_INPUT_CONTENTS);
    let mut messages = Vec::new();
    let mut rest = bytes.clone();
    while !rest.is_empty() {
        let piece = rest.split_to(piece_size.min(rest.len()));
        let mut piece = &piece[..];
        while !piece.is_empty() {
            match gatherer.handle_chunk(&mut piece) {
                Ok(message) => messages.extend(message),
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

/// A buffer without alignment.
struct PlainBuffer(Vec<u8>);

impl BodyBuffer for PlainBuffer {
    fn announced(_: usize, _: usize) -> Self {
        Self(Vec::new())
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn resize(&mut self, size: usize) {
        self.0.resize(size, 0);
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn freeze(self) -> Bytes {
        self.0.into()
    }
}

/// A model to check requests against, with inputs and outputs of several datatypes.
fn model() -> ModelSpec {
    let tensor = |(name, datatype): (&str, _)| TensorSpec {
        is_optional: name == "OPTIONAL",
        ..TensorSpec::new(name, datatype, &[-1], true)
    };
    let tensors = [("INPUT0", Datatype::Int32), ("OPTIONAL", Datatype::Bytes)];
    ModelSpec {
        name: "m".to_owned(),
        platform: String::new(),
        backend: "identity".to_owned(),
        rows_max: 8,
        inputs: tensors.map(tensor).into(),
        outputs: tensors.map(tensor).into(),
        batch_inputs: Vec::new(),
        ensemble: None,
        python: None,
        library: None,
        sequence: None,
        steps: None,
        batching: Some(Batching::default()),
        instance_groups: Vec::new(),
        version_policy: VersionPolicy::Latest(1),
        default_model_filename: String::new(),
        parameters: BTreeMap::new(),
        optimization: Default::default(),
        warm_ups: Vec::new(),
        metric_labels: String::new(),
        first_response_bounds: None,
        is_cached: false,
        is_batch_axis_derived: false,
        identity: None,
        refused_axes: Vec::new(),
        is_decoupled: false,
        follows_triton: false,
        namespace: String::new(),
        config_json: Arc::from("{}"),
        config_message: Arc::from([]),
    }
}

/// Converts a request to `prost`'s type.
fn to_prost(message: &InferMessage<'_>) -> proto::ModelInferRequest {
    let inputs = message.inputs.iter().map(|input| InferInputTensor {
        name: input.name.to_owned(),
        datatype: input.datatype.to_owned(),
        shape: input.shape.to_vec(),
        parameters: parameters(&input.parameters),
        contents: input.contents.as_ref().map(typed),
    });
    let outputs = message.outputs.iter().map(|output| InferRequestedOutputTensor {
        name: output.name.to_owned(),
        parameters: parameters(&output.parameters),
    });
    proto::ModelInferRequest {
        model_name: message.model_name.to_owned(),
        model_version: message.model_version.to_owned(),
        id: message.id.to_owned(),
        parameters: parameters(&message.parameters),
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        raw_input_contents: (0..message.raw_count()).filter_map(|index| message.raw(index)).collect(),
    }
}

fn parameters(parameters: &InferParameters<'_>) -> BTreeMap<String, proto::InferParameter> {
    let choice = |value| match value {
        InferParameter::Bool(value) => Some(ParameterChoice::BoolParam(value)),
        InferParameter::Double(value) => Some(ParameterChoice::DoubleParam(value)),
        InferParameter::Int64(value) => Some(ParameterChoice::Int64Param(value)),
        InferParameter::Str(value) => Some(ParameterChoice::StringParam(value.to_owned())),
        InferParameter::Uint64(value) => Some(ParameterChoice::Uint64Param(value)),
        InferParameter::Unset => None,
    };
    let entry = |(key, value): (&str, _)| (key.to_owned(), proto::InferParameter { parameter_choice: choice(value) });
    parameters.iter().map(entry).collect()
}

fn typed(contents: &Contents<'_>) -> proto::InferTensorContents {
    let varints = |number| contents.occurrences(number).filter_map(|wire| wire.as_varints().ok()).flatten().flatten();
    let filled: Vec<_> = contents.filled().collect();
    let bytes = |wire: WireType<'_>| wire.as_bytes().ok().map(<[u8]>::to_vec);
    let all = proto::InferTensorContents {
        bool_contents: varints(1).map(|value| value != 0).collect(),
        int_contents: varints(2).map(|value| value as i32).collect(),
        int64_contents: varints(3).map(u64::cast_signed).collect(),
        uint_contents: varints(4).map(|value| value as u32).collect(),
        uint64_contents: varints(5).collect(),
        fp32_contents: contents
            .occurrences(6)
            .filter_map(|wire| wire.as_fixed32s().ok())
            .flatten()
            .copied()
            .map(f32::from_le_bytes)
            .collect(),
        fp64_contents: contents
            .occurrences(7)
            .filter_map(|wire| wire.as_fixed64s().ok())
            .flatten()
            .copied()
            .map(f64::from_le_bytes)
            .collect(),
        bytes_contents: contents.occurrences(8).filter_map(bytes).collect(),
    };
    // The fields noted as filled must be those that have values.
    let encoded = all.encode_to_vec();
    let mut present: Vec<_> = fields(&encoded).flatten().map(|(number, _)| number).collect();
    present.dedup();
    if present == filled { all } else { proto::InferTensorContents::default() }
}
