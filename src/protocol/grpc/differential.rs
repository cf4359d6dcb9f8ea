//! Arbitrary bytes through everything here that reads a client's bytes, held against `prost` where
//! it reads the same. Called by the fuzz target `grpc` and by tests, never by the server.

use bytes::Bytes;
use prost::Message;

use crate::protocol::grpc::message::{Contents, InferMessage, Parameter, Parameters, ReadError};
use crate::protocol::grpc::service::version;
use crate::protocol::grpc::{contents, reflection};
use crate::tensor::Datatype;
use crate::wire::proto::inference as proto;
use crate::wire::proto::inference::infer_parameter::ParameterChoice;
use crate::wire::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::wire::protobuf::{Wire, WireError, fields};

/// What two readers made of the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// Both accepted them and read the same.
    Accepted,
    /// Ours refused them for a limit, which `prost` does not have.
    Limited,
    /// Both refused them.
    Refused,
}

/// Reads bytes as a request twice; where the readers disagree, says how.
pub fn compare(bytes: &Bytes) -> Result<Agreement, String> {
    let theirs = proto::ModelInferRequest::decode(bytes.clone());
    match (InferMessage::read(bytes), theirs) {
        (Ok(ours), Ok(theirs)) => {
            let ours = to_prost(&ours);
            // Encoded, so that NaN equals NaN.
            let is_same = ours.encode_to_vec() == theirs.encode_to_vec();
            is_same.then_some(Agreement::Accepted).ok_or_else(|| format!("ours {ours:?}\ntheirs {theirs:?}"))
        }
        (Err(ReadError::Limit { .. }), _) => Ok(Agreement::Limited),
        (Err(ReadError::Wire(_)), Err(_)) => Ok(Agreement::Refused),
        // `prost` reads an entry of a map (fields 2 and 4 here) by its length, whatever its wire type.
        (Err(ReadError::Wire(WireError::Entry | WireError::Group(2 | 4))), Ok(_)) => Ok(Agreement::Refused),
        (Err(error), Ok(theirs)) => Err(format!("only ours refused: {error:?}\ntheirs {theirs:?}")),
        (Ok(_), Err(error)) => Err(format!("only theirs refused: {error}")),
    }
}

/// The fuzz target: no bytes may make a reader panic, or ours and `prost`'s disagree.
pub fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let bytes = Bytes::copy_from_slice(bytes);
    compare(&bytes)?;
    if let Ok(message) = InferMessage::read(&bytes) {
        version(message.model_version).ok();
        for contents in message.inputs.iter().filter_map(|input| input.contents.as_ref()) {
            for datatype in Datatype::ALL {
                contents::convert(contents, Some(datatype)).ok();
            }
        }
    }
    reflection::answer(&bytes).ok();
    Ok(())
}

/// A request as `prost` holds it.
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

fn parameters(parameters: &Parameters<'_>) -> std::collections::BTreeMap<String, proto::InferParameter> {
    let choice = |value| match value {
        Parameter::Bool(value) => Some(ParameterChoice::BoolParam(value)),
        Parameter::Double(value) => Some(ParameterChoice::DoubleParam(value)),
        Parameter::Int64(value) => Some(ParameterChoice::Int64Param(value)),
        Parameter::Str(value) => Some(ParameterChoice::StringParam(value.to_owned())),
        Parameter::Uint64(value) => Some(ParameterChoice::Uint64Param(value)),
        Parameter::Unset => None,
    };
    let entry = |(key, value): (&str, _)| (key.to_owned(), proto::InferParameter { parameter_choice: choice(value) });
    parameters.iter().map(entry).collect()
}

fn typed(contents: &Contents<'_>) -> proto::InferTensorContents {
    let varints = |number| contents.occurrences(number).filter_map(|wire| wire.as_varints().ok()).flatten().flatten();
    let filled: Vec<_> = contents.filled().collect();
    let bytes = |wire: Wire<'_>| wire.as_bytes().ok().map(<[u8]>::to_vec);
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
    // What is noted as filled must be what has values.
    let encoded = all.encode_to_vec();
    let mut present: Vec<_> = fields(&encoded).flatten().map(|(number, _)| number).collect();
    present.dedup();
    if present == filled { all } else { proto::InferTensorContents::default() }
}
