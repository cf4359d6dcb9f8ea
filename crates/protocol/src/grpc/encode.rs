//! Encodes `ModelInferResponse` by hand, so that tensors are sent without a copy: the message is a list of parts, in
//! which our bytes alternate with the tensors'. Outputs are always raw contents, as in Triton. Called by the shard
//! when a request is complete. Writes fields in the order of their numbers; sizes are computed first, since each
//! length precedes its bytes.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::infer::{ResponsePlan, SequenceParameters};
use crate::outputs::{SentOutput, planned_outputs};
use base::error::Error;
use base::tensor::Tensor;
use model::parameters::{ParameterValue, Parameters};
use model::{CorrelationId, ModelSpec};
use wire::grpc::{PREFIX_SIZE, prefix};
use wire::protobuf::{bytes_size, packed_size, put_bytes_head, put_packed, put_str, put_varint, str_size};

/// The parts of a framed message, to be sent one after the other.
pub type FramedParts = SmallVec<[Bytes; 4]>;

const MODEL_NAME: u32 = 1;
const MODEL_VERSION: u32 = 2;
const ID: u32 = 3;
const PARAMETERS: u32 = 4;
const OUTPUTS: u32 = 5;
const RAW_OUTPUT_CONTENTS: u32 = 6;
/// Fields of a map entry and of `InferParameter`. The `_KEY` ones are whole keys, field number and wire type.
const KEY: u32 = 1;
const VALUE: u32 = 2;
const BOOL_PARAM_KEY: u8 = 1 << 3;
const INT64_PARAM_KEY: u8 = 2 << 3;
const STRING_PARAM: u32 = 3;
const DOUBLE_PARAM_KEY: u8 = 4 << 3 | 1;
const UINT64_PARAM_KEY: u8 = 5 << 3;
/// The fields of `ModelStreamInferResponse`.
const ERROR_MESSAGE: u32 = 1;
const INFER_RESPONSE: u32 = 2;
const OUTPUT_NAME: u32 = 1;
const OUTPUT_DATATYPE: u32 = 2;
const OUTPUT_SHAPE: u32 = 3;

/// Encodes a response. `outputs` are in the order of the model's outputs; `parameters` are those that the model gave
/// its answer.
///
/// # Errors
///
/// `Internal` if an output is missing that the model may not leave out, or the message is larger than 4 GiB; the error of
/// classification.
pub fn encode(
    spec: &ModelSpec,
    version: u64,
    plan: &ResponsePlan,
    outputs: Vec<Tensor>,
    parameters: Option<&Parameters>,
) -> Result<FramedParts, Error> {
    write(spec, version, plan, outputs, parameters, None)
}

/// Encodes a response of a `ModelStreamInfer`, marked as the last to its request or not.
///
/// # Errors
///
/// As [`encode`].
pub fn encode_streamed(
    spec: &ModelSpec,
    version: u64,
    plan: &ResponsePlan,
    outputs: Vec<Tensor>,
    parameters: Option<&Parameters>,
    is_final: bool,
) -> Result<FramedParts, Error> {
    write(spec, version, plan, outputs, parameters, Some(is_final))
}

/// Encodes the empty final response of a `ModelStreamInfer`: it only marks the end of the
/// responses.
///
/// # Errors
///
/// As [`encode`].
#[inline]
pub fn encode_end(spec: &ModelSpec, version: u64, id: &str) -> Result<FramedParts, Error> {
    let plan = ResponsePlan { id: id.to_owned(), ..ResponsePlan::default() };
    write(spec, version, &plan, Vec::new(), None, Some(true))
}

/// Encodes the failure of one request of a `ModelStreamInfer`. It is a message, so that the stream goes on.
///
/// # Errors
///
/// `Internal` if the message is larger than 4 GiB.
pub fn encode_failure(id: &str, text: &str) -> Result<FramedParts, Error> {
    let response = str_size(ID, id);
    let size = str_size(ERROR_MESSAGE, text) + bytes_size(INFER_RESPONSE, response);
    let prefix = prefix(size).ok_or_else(|| too_large(size))?;
    let mut out = Vec::with_capacity(PREFIX_SIZE + size);
    out.extend_from_slice(&prefix);
    put_str(ERROR_MESSAGE, text, &mut out);
    put_bytes_head(INFER_RESPONSE, response, &mut out);
    put_str(ID, id, &mut out);
    Ok(FramedParts::from_iter([Bytes::from(out)]))
}

/// Encodes the failure of a request of a `ModelStreamInfer` that its model ran. As in Triton it
/// names the model and tells if more responses follow.
///
/// # Errors
///
/// `Internal` if the message is larger than 4 GiB.
pub fn encode_run_failure(model: &str, id: &str, text: &str, is_final: bool) -> Result<FramedParts, Error> {
    let flag = flag_parameter("triton_final_response", is_final);
    let response = str_size(MODEL_NAME, model) + str_size(ID, id) + bytes_size(PARAMETERS, flag.len());
    let size = str_size(ERROR_MESSAGE, text) + bytes_size(INFER_RESPONSE, response);
    let prefix = prefix(size).ok_or_else(|| too_large(size))?;
    let mut out = Vec::with_capacity(PREFIX_SIZE + size);
    out.extend_from_slice(&prefix);
    put_str(ERROR_MESSAGE, text, &mut out);
    put_bytes_head(INFER_RESPONSE, response, &mut out);
    put_str(MODEL_NAME, model, &mut out);
    put_str(ID, id, &mut out);
    put_bytes_head(PARAMETERS, flag.len(), &mut out);
    out.extend_from_slice(&flag);
    Ok(FramedParts::from_iter([Bytes::from(out)]))
}

/// Writes a response with the model's own parameters. With `is_final` it is wrapped in a
/// `ModelStreamInferResponse`, and a parameter has the flag.
fn write(
    spec: &ModelSpec,
    version: u64,
    plan: &ResponsePlan,
    outputs: Vec<Tensor>,
    parameters: Option<&Parameters>,
    is_final: Option<bool>,
) -> Result<FramedParts, Error> {
    let outputs = planned_outputs(spec, plan, outputs)?;
    let version = version.to_string();
    let texts = [(MODEL_NAME, &*spec.name), (MODEL_VERSION, &*version), (ID, &*plan.id)];

    let descriptions_size: usize = outputs.iter().map(|output| bytes_size(OUTPUTS, description_size(output))).sum();
    let parameters = entries(plan, parameters, is_final);
    let parameters_size: usize = parameters.iter().map(|entry| bytes_size(PARAMETERS, entry.len())).sum();
    let head_size =
        texts.iter().map(|(number, text)| str_size(*number, text)).sum::<usize>() + parameters_size + descriptions_size;
    let raw_size: usize =
        outputs.iter().map(|output| bytes_size(RAW_OUTPUT_CONTENTS, output.tensor.contents.len())).sum();
    let response = head_size.saturating_add(raw_size);
    let size = is_final.map_or(response, |_| bytes_size(INFER_RESPONSE, response));
    let prefix = prefix(size).ok_or_else(|| too_large(size))?;

    // Room for the keys and lengths of the raw contents too: `parts` puts them into the same buffer.
    let mut head = Vec::with_capacity(PREFIX_SIZE + head_size + outputs.len() * RAW_HEAD_SIZE_MAX);
    head.extend_from_slice(&prefix);
    if is_final.is_some() {
        put_bytes_head(INFER_RESPONSE, response, &mut head);
    }
    texts.iter().for_each(|(number, text)| put_str(*number, text, &mut head));
    for entry in &parameters {
        put_bytes_head(PARAMETERS, entry.len(), &mut head);
        head.extend_from_slice(entry);
    }
    outputs.iter().for_each(|output| put_description(output, &mut head));
    Ok(parts(head, outputs.into_iter().map(|output| output.tensor.contents)))
}

/// The encoded entries of `parameters`: echoed sequence parameters, the model's own, and whether the response is final.
/// That comes last, since of two entries with the same name a client sees the last.
fn entries(plan: &ResponsePlan, own: Option<&Parameters>, is_final: Option<bool>) -> SmallVec<[Vec<u8>; 1]> {
    let mut entries = SmallVec::new();
    if let Some(repeated) = plan.repeated.as_deref() {
        let SequenceParameters { id, is_start, is_end } = repeated;
        entries.push(match id {
            Some(CorrelationId::Text(text)) => text_parameter("sequence_id", text),
            // An int64, even if the client sent a uint64, as in Triton.
            Some(CorrelationId::Number(number) | CorrelationId::Own(number)) => {
                number_parameter("sequence_id", INT64_PARAM_KEY, *number)
            }
            None => number_parameter("sequence_id", INT64_PARAM_KEY, 0),
        });
        entries.push(flag_parameter("sequence_start", *is_start));
        entries.push(flag_parameter("sequence_end", *is_end));
    }
    entries.extend(own.into_iter().flat_map(|own| &own.0).map(|(name, value)| match value {
        ParameterValue::Bool(value) => flag_parameter(name, *value),
        ParameterValue::Double(number) => parameter(name, |value| {
            value.push(DOUBLE_PARAM_KEY);
            value.extend_from_slice(&number.to_le_bytes());
        }),
        ParameterValue::Int64(number) => number_parameter(name, INT64_PARAM_KEY, number.cast_unsigned()),
        ParameterValue::Text(text) => text_parameter(name, text),
        ParameterValue::Uint64(number) => number_parameter(name, UINT64_PARAM_KEY, *number),
    }));
    entries.extend(is_final.map(|is_final| flag_parameter("triton_final_response", is_final)));
    entries
}

/// A boolean parameter. Written even if false: the field is in a `oneof`, and would otherwise be unset.
fn flag_parameter(name: &str, is_set: bool) -> Vec<u8> {
    parameter(name, |value| value.extend_from_slice(&[BOOL_PARAM_KEY, u8::from(is_set)]))
}

fn number_parameter(name: &str, key: u8, number: u64) -> Vec<u8> {
    parameter(name, |value| {
        value.push(key);
        put_varint(number, value);
    })
}

/// A string parameter, written even if empty.
fn text_parameter(name: &str, text: &str) -> Vec<u8> {
    parameter(name, |value| {
        put_bytes_head(STRING_PARAM, text.len(), value);
        value.extend_from_slice(text.as_bytes());
    })
}

/// A map entry: the name, and a value that `write` encodes.
fn parameter(name: &str, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut value = Vec::new();
    write(&mut value);
    let mut entry = Vec::new();
    put_str(KEY, name, &mut entry);
    put_bytes_head(VALUE, value.len(), &mut entry);
    entry.extend_from_slice(&value);
    entry
}

/// Bytes of the key and the length before a tensor's bytes: one, and a varint of up to ten.
const RAW_HEAD_SIZE_MAX: usize = 11;

fn description_size(SentOutput { spec, tensor, .. }: &SentOutput<'_>) -> usize {
    let shape = if tensor.shape.is_empty() { 0 } else { bytes_size(OUTPUT_SHAPE, packed_size(&tensor.shape)) };
    str_size(OUTPUT_NAME, &spec.name) + str_size(OUTPUT_DATATYPE, tensor.datatype.name()) + shape
}

fn put_description(output: &SentOutput<'_>, out: &mut Vec<u8>) {
    let SentOutput { spec, tensor, .. } = output;
    put_bytes_head(OUTPUTS, description_size(output), out);
    put_str(OUTPUT_NAME, &spec.name, out);
    put_str(OUTPUT_DATATYPE, tensor.datatype.name(), out);
    put_packed(OUTPUT_SHAPE, &tensor.shape, out);
}

/// Adds the raw contents to a head, without copying them. Keys and lengths are all written to the head's buffer,
/// one allocation, which is then sliced where a tensor goes in between.
fn parts(mut head: Vec<u8>, contents: impl Iterator<Item = Bytes>) -> FramedParts {
    let mut cuts: SmallVec<[(usize, Bytes); 2]> = SmallVec::new();
    for contents in contents {
        put_bytes_head(RAW_OUTPUT_CONTENTS, contents.len(), &mut head);
        // An empty tensor needs no part: key and length say it all.
        if !contents.is_empty() {
            cuts.push((head.len(), contents));
        }
    }
    let head = Bytes::from(head);
    let mut parts = FramedParts::new();
    let mut from = 0;
    for (at, contents) in cuts {
        parts.push(head.slice(from..at));
        parts.push(contents);
        from = at;
    }
    if from < head.len() {
        parts.push(head.slice(from..));
    }
    parts
}

fn too_large(size: usize) -> Error {
    Error::internal(format!("a response of {size} bytes does not fit into a gRPC message"))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use smallvec::smallvec;

    use super::*;
    use crate::infer::OutputPlan;
    use crate::testing::{output, spec};
    use base::tensor::{Datatype, Shape};
    use wire::proto::inference::infer_parameter::ParameterChoice;
    use wire::proto::inference::model_infer_response::InferOutputTensor;
    use wire::proto::inference::{ModelInferResponse, ModelStreamInferResponse};

    fn model() -> ModelSpec {
        let outputs = ["X", "Y", "Z"].map(|name| output(name, Datatype::Fp32, &[-1]));
        spec(0, vec![], outputs.into())
    }

    fn tensor(datatype: Datatype, shape: &[i64], contents: &'static [u8]) -> Tensor {
        Tensor { datatype, shape: Shape::from_slice(shape), contents: Bytes::from_static(contents) }
    }

    fn plan(id: &str, indices: &[usize]) -> ResponsePlan {
        let plan = |index: &usize| OutputPlan { index: *index, is_binary: true, is_base64: false, class_count: 0 };
        ResponsePlan { id: id.to_owned(), outputs: indices.iter().map(plan).collect(), ..ResponsePlan::default() }
    }

    /// The response that `prost` reads, after a check that the prefix has the right size.
    fn read(parts: &FramedParts) -> ModelInferResponse {
        let bytes = parts.concat();
        let (start, message) = bytes.split_at(PREFIX_SIZE);
        assert_eq!(Some(start), prefix(message.len()).as_ref().map(|prefix| &prefix[..]));
        ModelInferResponse::decode(message).unwrap()
    }

    #[test]
    fn responses_read_back_with_the_outputs_asked_for() {
        let outputs = vec![
            tensor(Datatype::Fp32, &[2], &[1, 2, 3, 4, 5, 6, 7, 8]),
            tensor(Datatype::Bytes, &[1, 0], &[]),
            tensor(Datatype::Bool, &[], &[1]),
        ];
        for (id, indices) in [("", &[0, 1, 2][..]), ("id", &[2, 0]), ("é", &[1]), ("", &[])] {
            let parts = encode(&model(), 12, &plan(id, indices), outputs.clone(), None).unwrap();
            let planned = || indices.iter().map(|index| (["X", "Y", "Z"][*index], &outputs[*index]));
            let want = ModelInferResponse {
                model_name: "m".to_owned(),
                model_version: "12".to_owned(),
                id: id.to_owned(),
                parameters: [].into(),
                outputs: planned()
                    .map(|(name, tensor)| InferOutputTensor {
                        name: name.to_owned(),
                        datatype: tensor.datatype.name().to_owned(),
                        shape: tensor.shape.to_vec(),
                        ..InferOutputTensor::default()
                    })
                    .collect(),
                raw_output_contents: planned().map(|(_, tensor)| tensor.contents.clone()).collect(),
            };
            assert_eq!(read(&parts), want, "{id:?} {indices:?}");
        }
    }

    #[test]
    fn what_a_response_repeats_of_its_request_is_told_in_full() {
        let check = |id: Option<CorrelationId>, want: ParameterChoice| {
            let repeated = Some(Box::new(SequenceParameters { id, is_start: true, is_end: false }));
            let plan = ResponsePlan { repeated, ..plan("", &[]) };
            let got = read(&encode(&model(), 1, &plan, Vec::new(), None).unwrap()).parameters;
            let choice = |key: &str| got[key].parameter_choice.clone().unwrap();
            assert_eq!((got.len(), choice("sequence_id")), (3, want));
            assert_eq!(choice("sequence_start"), ParameterChoice::BoolParam(true));
            assert_eq!(choice("sequence_end"), ParameterChoice::BoolParam(false));
        };
        check(None, ParameterChoice::Int64Param(0));
        check(CorrelationId::from_number(7), ParameterChoice::Int64Param(7));
        check(CorrelationId::from_number(u64::MAX), ParameterChoice::Int64Param(-1));
        check(CorrelationId::from_text("é"), ParameterChoice::StringParam("é".to_owned()));
    }

    #[test]
    fn the_models_own_parameters_read_back_in_each_type_and_do_not_hide_the_final_flag() {
        use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param};
        let own = [
            ("b", ParameterValue::Bool(false), BoolParam(false)),
            ("d", ParameterValue::Double(-0.5), DoubleParam(-0.5)),
            ("i", ParameterValue::Int64(i64::MIN), Int64Param(i64::MIN)),
            ("z", ParameterValue::Int64(0), Int64Param(0)),
            ("t", ParameterValue::Text("é".to_owned()), StringParam("é".to_owned())),
            ("e", ParameterValue::Text(String::new()), StringParam(String::new())),
            ("u", ParameterValue::Uint64(u64::MAX), Uint64Param(u64::MAX)),
        ];
        let mut parameters = Parameters::default();
        own.iter().for_each(|(name, value, _)| parameters.set(name, value.clone()));
        let repeated = Some(Box::new(SequenceParameters { id: None, is_start: true, is_end: false }));
        for (repeated, count) in [(None, own.len()), (repeated, own.len() + 3)] {
            let plan = ResponsePlan { repeated, ..plan("", &[]) };
            let got = read(&encode(&model(), 1, &plan, Vec::new(), Some(&parameters)).unwrap()).parameters;
            assert_eq!(got.len(), count);
            own.iter().for_each(|(name, _, want)| assert_eq!(got[*name].parameter_choice.as_ref(), Some(want)));
        }
        parameters.set("triton_final_response", ParameterValue::Bool(true));
        let parts = encode_streamed(&model(), 1, &plan("", &[]), Vec::new(), Some(&parameters), false).unwrap();
        let response = ModelStreamInferResponse::decode(&parts.concat()[PREFIX_SIZE..]).unwrap();
        let got = response.infer_response.unwrap().parameters;
        assert_eq!(got["triton_final_response"].parameter_choice, Some(BoolParam(false)));
        assert_eq!(got["u"].parameter_choice, Some(Uint64Param(u64::MAX)));
    }

    #[test]
    fn an_output_that_a_python_model_left_out_is_not_in_the_response_and_a_scalar_is() {
        let python = model().run_by("python");
        let outputs = || {
            vec![
                tensor(Datatype::Fp32, &[], &[]),
                tensor(Datatype::Fp64, &[], &[7; 8]),
                tensor(Datatype::Fp32, &[0], &[]),
            ]
        };
        let names = |model: &ModelSpec| {
            let response = read(&encode(model, 1, &plan("", &[0, 1, 2]), outputs(), None).unwrap());
            let names: Vec<_> = response.outputs.into_iter().map(|output| output.name).collect();
            (names.concat(), response.raw_output_contents.len())
        };
        assert_eq!(names(&python), ("YZ".to_owned(), 2));
        let error = encode(&model(), 1, &plan("", &[0, 1, 2]), outputs(), None).unwrap_err();
        assert_eq!(error, Error::internal("model 'm' did not produce every output that was asked for"));
    }

    #[test]
    fn streamed_responses_say_whether_they_are_the_last_and_failures_are_in_band() {
        let read = |parts: &FramedParts| {
            let bytes = parts.concat();
            let (start, message) = bytes.split_at(PREFIX_SIZE);
            assert_eq!(Some(start), prefix(message.len()).as_ref().map(|prefix| &prefix[..]));
            ModelStreamInferResponse::decode(message).unwrap()
        };
        let outputs = vec![tensor(Datatype::Fp32, &[1], &[1; 4]), tensor(Datatype::Fp32, &[0], &[])];
        for is_final in [true, false] {
            let parts = encode_streamed(&model(), 3, &plan("é", &[0, 1]), outputs.clone(), None, is_final).unwrap();
            let response = read(&parts);
            let inner = response.infer_response.unwrap();
            let choice = inner.parameters["triton_final_response"].parameter_choice.clone();
            assert_eq!((response.error_message.as_str(), choice), ("", Some(ParameterChoice::BoolParam(is_final))));
            assert_eq!((inner.id.as_str(), inner.model_name.as_str(), inner.model_version.as_str()), ("é", "m", "3"));
            assert_eq!(inner.raw_output_contents, [Bytes::from_static(&[1; 4]), Bytes::new()]);
        }
        let end = read(&encode_end(&model(), 3, "9").unwrap()).infer_response.unwrap();
        let choice = end.parameters["triton_final_response"].parameter_choice.clone();
        assert_eq!((end.outputs.len(), end.id.as_str(), choice), (0, "9", Some(ParameterChoice::BoolParam(true))));
        let failure = read(&encode_failure("7", "no").unwrap());
        assert_eq!(failure.error_message, "no");
        assert_eq!(failure.infer_response, Some(ModelInferResponse { id: "7".to_owned(), ..Default::default() }));
        for is_final in [false, true] {
            let failure = read(&encode_run_failure("m", "7", "no", is_final).unwrap());
            let response = failure.infer_response.unwrap();
            let choice = response.parameters["triton_final_response"].parameter_choice.clone();
            assert_eq!((&*failure.error_message, &*response.model_name, &*response.id), ("no", "m", "7"));
            assert_eq!(choice, Some(ParameterChoice::BoolParam(is_final)));
        }
    }

    #[test]
    fn tensors_go_out_as_parts_of_their_own_uncopied() {
        let outputs = vec![
            tensor(Datatype::Fp32, &[1], &[1; 4]),
            tensor(Datatype::Fp32, &[0], &[]),
            tensor(Datatype::Fp32, &[1], &[2; 4]),
        ];
        let parts = encode(&model(), 1, &plan("", &[0, 1, 2]), outputs.clone(), None).unwrap();
        let [_, first, middle, second] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!((first.as_ptr(), second.as_ptr()), (outputs[0].contents.as_ptr(), outputs[2].contents.as_ptr()));
        assert_eq!(middle[..], [50, 0, 50, 4]); // of the empty tensor and of the next
    }

    #[test]
    fn classes_go_out_instead_of_the_tensor() {
        let mut plan = plan("", &[0]);
        plan.outputs[0].class_count = 2;
        let tensor = tensor(Datatype::Uint8, &[3], &[5, 9, 7]);
        let response = read(&encode(&model(), 1, &plan, vec![tensor], None).unwrap());
        assert_eq!((response.outputs[0].datatype.as_str(), &response.outputs[0].shape[..]), ("BYTES", &[2][..]));
        assert_eq!(response.raw_output_contents[0], &b"\x03\x00\x00\x009:1\x03\x00\x00\x007:2"[..]);
    }

    #[test]
    fn a_long_tensor_has_a_long_head() {
        let contents = Bytes::from(vec![7; 300]);
        let outputs = vec![Tensor { datatype: Datatype::Uint8, shape: smallvec![300], contents: contents.clone() }];
        let response = read(&encode(&model(), 1, &plan("", &[0]), outputs, None).unwrap());
        assert_eq!(response.raw_output_contents, [contents]);
    }

    #[test]
    fn outputs_that_the_model_did_not_give_are_its_failure() {
        let error = encode(&model(), 1, &plan("", &[1]), vec![tensor(Datatype::Fp32, &[0], &[])], None).unwrap_err();
        assert_eq!(error, Error::internal("model 'm' did not produce every output that was asked for"));
    }
}
