//! Checks a `ModelInferRequest` against its model: parameters, then the contents of each input, then the requested
//! outputs, then what REST checks as well ([`check`]). The order and the texts are Triton's (`infer_handler.cc`), so
//! that a request with several faults gets the same error. Raw contents stay views of the message; typed ones are
//! converted. Called by the shard once it has found the model. Bounded by the limits of [`super::message`].

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::check::{self, AskedOutput, NamedTensor};
use crate::grpc::contents;
use crate::grpc::message::{InferMessage, InferParameter, InferParameters, InputTensor, OutputTensor};
use crate::infer::SequenceParameters;
use crate::infer::{InferRequest, ResponsePlan};
use crate::shared_memory::{self, RegionSlice, Regions};
use base::budget::ReceiveReservation;
use base::error::Error;
use base::tensor::Datatype;
use model::parameters::{ParameterValue, Parameters};
use model::{CorrelationId, ModelSpec};

/// Decodes and checks a `ModelInfer` request. `regions` are the shared memory regions it may use;
/// `None` if client shared memory is disabled. Memory for converted typed contents is reserved in
/// `memory` first.
///
/// # Errors
///
/// `Unsupported` for a decoupled model, else as [`decode_streamed`].
pub fn decode(
    spec: &ModelSpec,
    message: &InferMessage<'_>,
    regions: Option<&Regions>,
    memory: &mut ReceiveReservation,
) -> Result<InferRequest, Error> {
    if spec.is_decoupled {
        return Err(Error::unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy"));
    }
    decode_streamed(spec, message, regions, memory)
}

/// Decodes and checks a request of a `ModelStreamInfer`, which may be for a decoupled model.
///
/// # Errors
///
/// `InvalidArgument` if the request does not fit the model; `Unsupported`, `NotFound` or `TooLarge` for shared memory.
pub fn decode_streamed(
    spec: &ModelSpec,
    message: &InferMessage<'_>,
    regions: Option<&Regions>,
    memory: &mut ReceiveReservation,
) -> Result<InferRequest, Error> {
    let found = request_parameters(spec, &message.parameters, memory)?;
    let GrpcParameters { priority, timeout, sequence, wants_empty_final, own: parameters } = found;
    refuse_repeated("input", message.id, message.inputs.iter().map(|input| input.name))?;
    refuse_repeated("output", message.id, message.outputs.iter().map(|output| output.name))?;
    let mut inputs = inputs(spec, message, regions, memory)?;
    let mut destinations = Vec::new();
    let requested = message.outputs.iter().map(|output| requested_output(output, regions, &mut destinations));
    let requested: SmallVec<[AskedOutput<'_>; 2]> = requested.collect::<Result<_, _>>()?;
    let outputs = check::check_outputs(spec, message.id, &requested, true)?;
    // Refuses before the run what the encoder would refuse after it.
    for plan in outputs.iter().filter(|plan| plan.class_count > 0) {
        spec.outputs.get(plan.index).map_or(Ok(()), |output| check::check_classes(output.datatype))?;
    }
    let (tensors, rows) = check::check(spec, message.id, &mut inputs)?;
    let shared = check::shared_tensors(spec, regions, &mut inputs, destinations)?;
    let repeated = ResponsePlan::repeated(spec, &sequence);
    check::check_sequence(spec, &sequence, rows)?;
    let plan = ResponsePlan {
        id: message.id.to_owned(),
        outputs,
        wants_empty_final,
        repeated,
        shared,
        ..ResponsePlan::default()
    };
    let inputs = tensors;
    Ok(InferRequest { inputs, rows, priority, timeout, sequence, parameters, plan })
}

/// The request's parameters: those that the server acts on, and the client's own.
#[derive(Default)]
struct GrpcParameters {
    priority: u64,
    timeout: Duration,
    sequence: SequenceParameters,
    wants_empty_final: bool,
    /// The other parameters, if the model looks at them.
    own: Parameters,
}

/// Checks the request's parameters. Unknown ones are the client's own, and kept only for a model that looks at them.
fn request_parameters(
    spec: &ModelSpec,
    parameters: &InferParameters<'_>,
    memory: &mut ReceiveReservation,
) -> Result<GrpcParameters, Error> {
    let mut found = GrpcParameters::default();
    for (key, value) in parameters.iter() {
        match (key, value) {
            ("priority", InferParameter::Int64(value)) => found.priority = at_least_zero(key, value)?,
            ("priority", InferParameter::Uint64(value)) => found.priority = value,
            ("timeout", InferParameter::Int64(value)) => {
                found.timeout = Duration::from_micros(at_least_zero(key, value)?)
            }
            // An id above the range of int64 arrives as a negative number; Triton reads it back as unsigned too.
            ("sequence_id", InferParameter::Int64(value)) => {
                found.sequence.id = CorrelationId::from_number(value.cast_unsigned());
            }
            ("sequence_id", InferParameter::Str(value)) => found.sequence.id = check::sequence_text(value)?,
            ("sequence_start", InferParameter::Bool(value)) => found.sequence.is_start = value,
            ("sequence_end", InferParameter::Bool(value)) => found.sequence.is_end = value,
            (EMPTY_FINAL, InferParameter::Bool(value)) => found.wants_empty_final = value,
            _ => {
                check_parameter(key, value)?;
                if spec.takes_details() {
                    let text = if let InferParameter::Str(text) = value { text.len() } else { 0 };
                    memory.grow(key.len().saturating_add(text))?;
                    found.own.0.extend(own_value(value).map(|own| (key.to_owned(), own)));
                }
            }
        }
    }
    Ok(found)
}

/// The value of one of the client's own parameters; `None` for the types that [`check_parameter`]
/// refuses.
fn own_value(value: InferParameter<'_>) -> Option<ParameterValue> {
    match value {
        InferParameter::Bool(value) => Some(ParameterValue::Bool(value)),
        InferParameter::Double(value) => Some(ParameterValue::Double(value)),
        InferParameter::Int64(value) => Some(ParameterValue::Int64(value)),
        InferParameter::Str(value) => Some(ParameterValue::Text(value.to_owned())),
        InferParameter::Uint64(_) | InferParameter::Unset => None,
    }
}

fn at_least_zero(key: &str, value: i64) -> Result<u64, Error> {
    u64::try_from(value).map_err(|_| Error::invalid(format!("invalid value for '{key}', expected value >= 0.")))
}

/// Refuses a parameter whose type does not fit its key. Unknown keys are the client's own; unsigned integers are
/// refused among them, as in Triton.
fn check_parameter(key: &str, value: InferParameter<'_>) -> Result<(), Error> {
    use InferParameter::{Bool, Double, Int64, Str};
    let expected = match (key, value) {
        ("sequence_id", _) => "int64_param or string_param",
        ("sequence_start" | "sequence_end" | EMPTY_FINAL, _) => "bool_param",
        ("priority", _) => "int64_param or uint64_param",
        ("timeout", _) => "int64_param",
        _ if key.starts_with("triton_") => {
            return Err(Error::invalid(format!(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys \
                 starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )));
        }
        (_, Bool(_) | Double(_) | Int64(_) | Str(_)) => return Ok(()),
        _ => "int64_param, bool_param, or string_param",
    };
    Err(Error::invalid(format!("invalid value type for '{key}' parameter, expected {expected}.")))
}

const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// Refuses a tensor name that occurs twice. Sorts a copy: quadratic search would be slow at the limit of tensors.
fn refuse_repeated<'a>(what: &str, id: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut names: SmallVec<[&str; 8]> = names.collect();
    names.sort_unstable();
    let repeated = names.iter().zip(names.iter().skip(1)).find(|(name, next)| name == next);
    repeated.map_or(Ok(()), |(name, _)| Err(check::refusal(id, format!("{what} '{name}' already exists in request"))))
}

/// Pairs inputs with their contents. Raw contents belong, in order, to the inputs that are not in shared
/// memory.
fn inputs<'a>(
    spec: &ModelSpec,
    message: &InferMessage<'a>,
    regions: Option<&Regions>,
    memory: &mut ReceiveReservation,
) -> Result<SmallVec<[NamedTensor<'a>; 2]>, Error> {
    let mut inputs = SmallVec::with_capacity(message.inputs.len());
    let mut raw_index = 0;
    for input in &message.inputs {
        let shared = slice_of(input.name, &input.parameters, regions)?;
        if shared.is_some() && input.contents.is_some() {
            let (name, model) = (input.name, &spec.name);
            return Err(Error::invalid(format!(
                "unexpected 'content' provided when using shared memory for input tensor '{name}' for model '{model}'"
            )));
        }
        let datatype = Datatype::from_name(input.datatype);
        let contents = match shared {
            Some(_) => Bytes::new(),
            None => contents_of(spec, message, raw_index, input, datatype, memory)?,
        };
        raw_index += usize::from(shared.is_none());
        inputs.push(NamedTensor { name: input.name, datatype, shape: input.shape.clone(), contents, shared });
    }
    Ok(inputs)
}

/// The contents of the input that takes raw contents number `index`, unless it has typed contents.
fn contents_of(
    spec: &ModelSpec,
    message: &InferMessage<'_>,
    index: usize,
    input: &InputTensor<'_>,
    datatype: Option<Datatype>,
    memory: &mut ReceiveReservation,
) -> Result<Bytes, Error> {
    let (name, model) = (input.name, &spec.name);
    match &input.contents {
        Some(_) if message.raw_count() > 0 => Err(Error::invalid(format!(
            "contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
        ))),
        Some(typed) => {
            contents::convert(typed, datatype, memory).map_err(|error| error.into_error(name, model, datatype))
        }
        None => message.raw(index).ok_or_else(|| {
            Error::invalid(format!("unable to find data for input tensor '{name}' for model '{model}' in request."))
        }),
    }
}

/// Reads one requested output; a destination in shared memory is added to `destinations`.
fn requested_output<'a>(
    output: &OutputTensor<'a>,
    regions: Option<&Regions>,
    destinations: &mut Vec<(&'a str, RegionSlice)>,
) -> Result<AskedOutput<'a>, Error> {
    let slice = slice_of(output.name, &output.parameters, regions)?;
    let class_count = output.parameters.get("classification").map_or(Ok(0), class_count)?;
    if let Some(slice) = slice {
        if class_count > 0 {
            return Err(Error::invalid("output can't set both 'shared_memory_region' and 'classification'"));
        }
        destinations.push((output.name, slice));
    }
    Ok(AskedOutput { name: output.name, is_binary: true, is_base64: false, class_count })
}

fn class_count(value: InferParameter<'_>) -> Result<u32, Error> {
    match value {
        // More classes than the output has means all of them, so that saturating is harmless.
        InferParameter::Int64(count @ 1..) => Ok(u32::try_from(count).unwrap_or(u32::MAX)),
        InferParameter::Int64(_) => Err(Error::invalid("invalid value for 'classification' parameter, expected >= 0")),
        _ => Err(Error::invalid("invalid value type for 'classification' parameter, expected int64_param")),
    }
}

/// The shared memory slice that a tensor's parameters name, if they name one.
fn slice_of(
    name: &str,
    parameters: &InferParameters<'_>,
    regions: Option<&Regions>,
) -> Result<Option<RegionSlice>, Error> {
    let (offset, size) = ("shared_memory_offset", "shared_memory_byte_size");
    let type_error = |key: &str, want: &str| {
        Error::invalid(format!("invalid value type for '{key}' parameter for tensor '{name}', expected {want}."))
    };
    // Triton casts int64 to unsigned, so that a negative number becomes a large one and fails the range check.
    let number = |key: &str| match parameters.get(key) {
        None => Ok(None),
        Some(InferParameter::Int64(number)) => Ok(Some(number.cast_unsigned())),
        Some(_) => Err(type_error(key, "int64_param")),
    };
    let Some(region) = parameters.get("shared_memory_region") else {
        let stray = [offset, size].into_iter().find(|key| parameters.get(key).is_some());
        return stray.map_or(Ok(None), |key| {
            Err(Error::invalid(format!(
                "'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{name}'"
            )))
        });
    };
    let regions = regions.ok_or_else(shared_memory::disabled)?;
    let InferParameter::Str(region) = region else { return Err(type_error("shared_memory_region", "string_param")) };
    let offset = number(offset)?.unwrap_or(0);
    let size = number(size)?.ok_or_else(|| {
        Error::invalid(format!(
            "'{size}' must be specified along with 'shared_memory_region' parameter for tensor '{name}'"
        ))
    })?;
    regions.find(region, offset, size).map(Some)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::testing::{input, output, regions, spec};
    use model::SequenceMark;
    use wire::proto::inference::infer_parameter::ParameterChoice;
    use wire::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
    use wire::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};

    /// Inputs `A` (INT32) and `B` (INT8) of four elements a row, outputs `X` (FP32) and `Y` (BYTES).
    fn model() -> ModelSpec {
        let inputs = vec![input("A", Datatype::Int32, &[4]), input("B", Datatype::Int8, &[4])];
        spec(8, inputs, vec![output("X", Datatype::Fp32, &[4]), output("Y", Datatype::Bytes, &[4])])
    }

    fn request() -> ModelInferRequest {
        let tensor = |name: &str, datatype: &str| InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![1, 4],
            ..InferInputTensor::default()
        };
        ModelInferRequest {
            model_name: "m".to_owned(),
            id: "7".to_owned(),
            inputs: vec![tensor("B", "INT8"), tensor("A", "INT32")],
            raw_input_contents: vec![Bytes::from_static(&[1, 2, 3, 4]), Bytes::from_static(&[9; 16])],
            ..ModelInferRequest::default()
        }
    }

    fn parameter(choice: ParameterChoice) -> InferParameter {
        InferParameter { parameter_choice: Some(choice) }
    }

    fn decode_prost(request: &ModelInferRequest) -> Result<InferRequest, Error> {
        let bytes = Bytes::from(request.encode_to_vec());
        decode(&model(), &InferMessage::read(&bytes)?, None, &mut ReceiveReservation::default())
    }

    fn refusal(change: impl FnOnce(&mut ModelInferRequest)) -> String {
        let mut request = request();
        change(&mut request);
        let error = decode_prost(&request).expect_err("the change is a mistake");
        format!("{:?}: {}", error.code(), error.text())
    }

    #[test]
    fn raw_contents_are_views_in_the_models_order() {
        let bytes = Bytes::from(request().encode_to_vec());
        let decoded =
            decode(&model(), &InferMessage::read(&bytes).unwrap(), None, &mut ReceiveReservation::default()).unwrap();
        let [a, b] = &decoded.inputs[..] else { panic!("{decoded:?}") };
        assert_eq!((a.datatype, &a.shape[..], &a.contents[..]), (Datatype::Int32, &[1, 4][..], &[9; 16][..]));
        assert_eq!((b.datatype, &b.shape[..], &b.contents[..]), (Datatype::Int8, &[1, 4][..], &[1, 2, 3, 4][..]));
        assert!(bytes.as_ptr_range().contains(&a.contents.as_ptr()), "copied");
        assert_eq!((decoded.rows, decoded.priority, decoded.timeout), (1, 0, Duration::ZERO));
        let plan: Vec<_> = decoded.plan.outputs.iter().map(|plan| (plan.index, plan.class_count)).collect();
        assert_eq!((decoded.plan.id.as_str(), plan), ("7", vec![(0, 0), (1, 0)]));
    }

    #[test]
    fn what_a_request_may_add_is_understood() {
        let mut request = request();
        for (key, choice) in [
            ("priority", ParameterChoice::Uint64Param(u64::MAX)),
            ("timeout", ParameterChoice::Int64Param(1500)),
            ("sequence_id", ParameterChoice::StringParam("s".to_owned())),
            ("sequence_start", ParameterChoice::BoolParam(true)),
            (EMPTY_FINAL, ParameterChoice::BoolParam(true)),
            ("own", ParameterChoice::DoubleParam(0.5)),
        ] {
            request.parameters.insert(key.to_owned(), parameter(choice));
        }
        let classes = parameter(ParameterChoice::Int64Param(1 << 40));
        let parameters = [("classification".to_owned(), classes)].into();
        request.outputs.push(InferRequestedOutputTensor { name: "X".to_owned(), parameters });
        request.raw_input_contents.push(Bytes::from_static(b"one too many is ignored"));
        let decoded = decode_prost(&request).unwrap();
        assert_eq!((decoded.priority, decoded.timeout), (u64::MAX, Duration::from_micros(1500)));
        let plan: Vec<_> = decoded.plan.outputs.iter().map(|plan| (plan.index, plan.class_count)).collect();
        assert_eq!(plan, [(0, u32::MAX)]);
    }

    #[test]
    fn a_sequence_is_named_by_a_number_or_a_string_and_by_neither_zero_nor_nothing() {
        let check = |id: Option<ParameterChoice>, want: Result<Option<CorrelationId>, &'static str>| {
            let mut request = request();
            let flag = || parameter(ParameterChoice::BoolParam(true));
            request.parameters = [("sequence_start".to_owned(), flag()), ("sequence_end".to_owned(), flag())].into();
            request.parameters.extend(id.clone().map(|id| ("sequence_id".to_owned(), parameter(id))));
            let mark = |id| SequenceMark { id, is_start: true, is_end: true };
            let got = decode_prost(&request).map(|request| request.sequence.mark());
            assert_eq!(got, want.map(|id| id.map(mark)).map_err(Error::unsupported), "{id:?}");
        };
        let text = |text: &str| Some(ParameterChoice::StringParam(text.to_owned()));
        check(Some(ParameterChoice::Int64Param(42)), Ok(CorrelationId::from_number(42)));
        check(Some(ParameterChoice::Int64Param(-1)), Ok(CorrelationId::from_number(u64::MAX)));
        check(text("42"), Ok(CorrelationId::from_text("42")));
        check(Some(ParameterChoice::Int64Param(0)), Ok(None));
        check(text(""), Ok(None));
        check(None, Ok(None));
        let longest = "x".repeat(128);
        check(text(&longest), Ok(CorrelationId::from_text(&longest)));
        check(text(&format!("{longest}x")), Err("string correlation ID cannot be longer than 128 characters"));
    }

    #[test]
    fn the_clients_own_parameters_are_kept_for_a_model_that_looks_at_them() {
        use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam};
        let of = |backend: &str, choices: &[(&str, ParameterChoice)]| {
            let model = spec(0, vec![], vec![]).run_by(backend);
            // One message for each entry, since the map of `prost` has no order: messages that follow each other merge.
            let message = |(key, choice): &(&str, ParameterChoice)| {
                let parameters = [((*key).to_owned(), parameter(choice.clone()))].into();
                ModelInferRequest { parameters, ..ModelInferRequest::default() }.encode_to_vec()
            };
            let bytes = Bytes::from(choices.iter().flat_map(message).collect::<Vec<u8>>());
            let message = InferMessage::read(&bytes).unwrap();
            decode(&model, &message, None, &mut ReceiveReservation::default()).map(|request| request.parameters.0)
        };
        let check = |choice: ParameterChoice, want: ParameterValue| {
            let got = of("python", &[("mine", choice.clone())]);
            assert_eq!(got, Ok(vec![("mine".to_owned(), want)]), "{choice:?}");
            assert_eq!(of("identity", &[("mine", choice)]), Ok(vec![]), "it does not look");
        };
        check(BoolParam(false), ParameterValue::Bool(false));
        check(BoolParam(true), ParameterValue::Bool(true));
        check(Int64Param(i64::MIN), ParameterValue::Int64(i64::MIN));
        check(DoubleParam(0.25), ParameterValue::Double(0.25));
        check(StringParam("é".to_owned()), ParameterValue::Text("é".to_owned()));
        check(StringParam(String::new()), ParameterValue::Text(String::new()));
        let all = [
            ("b", Int64Param(1)),
            ("sequence_id", Int64Param(7)),
            ("sequence_start", BoolParam(true)),
            ("priority", Int64Param(1)),
            ("timeout", Int64Param(1)),
            (EMPTY_FINAL, BoolParam(true)),
            ("a", Int64Param(2)),
            ("b", Int64Param(3)),
        ];
        let want = [("a", ParameterValue::Int64(2)), ("b", ParameterValue::Int64(3))];
        let want = want.map(|(name, value)| (name.to_owned(), value)).to_vec();
        assert_eq!(of("python", &all), Ok(want), "of two the last");
        let unsigned = of("python", &[("mine", ParameterChoice::Uint64Param(1))]).unwrap_err();
        let text = "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.";
        assert_eq!(unsigned, Error::invalid(text));
    }

    #[test]
    fn parameters_that_are_kept_take_memory() {
        use std::rc::Rc;

        use base::budget::{ReceiveBudget, testing};
        let text = parameter(ParameterChoice::StringParam("0123456".to_owned()));
        let parameters = [("abc".to_owned(), text)].into();
        let bytes = Bytes::from(ModelInferRequest { parameters, ..ModelInferRequest::default() }.encode_to_vec());
        let check = |backend: &str, size_max: usize, reserved: usize, fits: bool| {
            let model = spec(0, vec![], vec![]).run_by(backend);
            let memory = testing::Bytes::new(size_max);
            let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
            let decoded = decode(&model, &InferMessage::read(&bytes).unwrap(), None, &mut reservation);
            assert_eq!((decoded.is_ok(), memory.reserved.get()), (fits, reserved), "{backend} {size_max}");
        };
        check("python", 10, 10, true);
        check("python", 9, 0, false);
        check("identity", 0, 0, true);
    }

    #[test]
    fn parameters_of_wrong_types_are_refused_by_key() {
        let check = |key: &str, choice: Option<ParameterChoice>, want: &str| {
            let parameter_choice = choice;
            let got = refusal(|request| {
                request.parameters.insert(key.to_owned(), InferParameter { parameter_choice });
            });
            assert_eq!(got, format!("InvalidArgument: {want}"), "{key}");
        };
        let text = || Some(ParameterChoice::StringParam("x".to_owned()));
        let type_error =
            |key: &str, expected: &str| format!("invalid value type for '{key}' parameter, expected {expected}.");
        check("priority", Some(ParameterChoice::Int64Param(-1)), "invalid value for 'priority', expected value >= 0.");
        check("timeout", Some(ParameterChoice::Int64Param(-1)), "invalid value for 'timeout', expected value >= 0.");
        check("priority", text(), &type_error("priority", "int64_param or uint64_param"));
        check("timeout", Some(ParameterChoice::Uint64Param(1)), &type_error("timeout", "int64_param"));
        check(
            "sequence_id",
            Some(ParameterChoice::Uint64Param(1)),
            &type_error("sequence_id", "int64_param or string_param"),
        );
        check("sequence_start", text(), &type_error("sequence_start", "bool_param"));
        check("sequence_end", text(), &type_error("sequence_end", "bool_param"));
        check(EMPTY_FINAL, text(), &type_error(EMPTY_FINAL, "bool_param"));
        check(
            "zz",
            Some(ParameterChoice::Uint64Param(1)),
            &type_error("zz", "int64_param, bool_param, or string_param"),
        );
        check("zz", None, &type_error("zz", "int64_param, bool_param, or string_param"));
        check(
            "triton_x",
            text(),
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting \
             with 'triton_' are allowed: triton_enable_empty_final_response",
        );
    }

    #[test]
    fn mistakes_in_tensors_are_refused_in_tritons_words() {
        let check = |want: &str, change: fn(&mut ModelInferRequest)| assert_eq!(refusal(change), want);
        check("InvalidArgument: [request id: 7] input 'B' already exists in request", |request| {
            request.inputs[1].name = "B".to_owned();
            request.raw_input_contents.clear();
        });
        check("InvalidArgument: [request id: 7] output 'X' already exists in request", |request| {
            let output = InferRequestedOutputTensor { name: "X".to_owned(), ..Default::default() };
            request.outputs = vec![output.clone(), output];
        });
        check("InvalidArgument: unable to find data for input tensor 'A' for model 'm' in request.", |request| {
            request.raw_input_contents.pop();
        });
        check(
            "InvalidArgument: contents field must not be specified when using raw_input_contents for 'B' for model 'm'",
            |request| request.inputs[0].contents = Some(InferTensorContents::default()),
        );
        check("InvalidArgument: unexpected inference output 'Z' for model 'm'", |request| {
            request.outputs.push(InferRequestedOutputTensor { name: "Z".to_owned(), ..Default::default() });
        });
        check("InvalidArgument: unexpected inference input 'C' for model 'm'", |request| {
            request.inputs[1].name = "C".to_owned();
        });
        check(
            "InvalidArgument: [request id: 7] inference input 'A' data-type is '<invalid>', but model 'm' expects \
             'INT32'",
            |request| request.inputs[1].datatype = "FLOAT".to_owned(),
        );
        check(
            "InvalidArgument: [request id: 7] input byte size mismatch for input 'B' for model 'm'. Expected 4, got 3",
            |request| request.raw_input_contents[0] = Bytes::from_static(&[1, 2, 3]),
        );
        let text =
            "Unsupported: Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";
        check(text, |request| {
            let region = parameter(ParameterChoice::StringParam("r".to_owned()));
            request.inputs[0].parameters.insert("shared_memory_region".to_owned(), region);
        });
        check(
            "InvalidArgument: 'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for \
             tensor 'B'",
            |request| {
                let offset = parameter(ParameterChoice::Int64Param(1));
                request.inputs[0].parameters.insert("shared_memory_offset".to_owned(), offset);
            },
        );
    }

    #[test]
    fn classes_are_asked_for_with_a_count_and_of_numbers() {
        let check = |name: &str, choice: ParameterChoice, want: &str| {
            let got = refusal(|request| {
                let parameters = [("classification".to_owned(), parameter(choice))].into();
                request.outputs.push(InferRequestedOutputTensor { name: name.to_owned(), parameters });
            });
            assert_eq!(got, format!("InvalidArgument: {want}"));
        };
        let count = ParameterChoice::Int64Param;
        check("X", count(0), "invalid value for 'classification' parameter, expected >= 0");
        check("X", count(-3), "invalid value for 'classification' parameter, expected >= 0");
        let text = "invalid value type for 'classification' parameter, expected int64_param";
        check("X", ParameterChoice::BoolParam(true), text);
        check("Y", count(1), "class result not available for output due to unsupported type 'BYTES'");
    }

    #[test]
    fn a_decoupled_model_is_refused_before_anything_else() {
        let bytes = Bytes::new();
        let decoupled = ModelSpec { is_decoupled: true, ..model() };
        let error = decode(&decoupled, &InferMessage::read(&bytes).unwrap(), None, &mut ReceiveReservation::default())
            .unwrap_err();
        let text = "ModelInfer RPC doesn't support models with decoupled transaction policy";
        assert_eq!(error, Error::unsupported(text));
    }

    #[test]
    fn more_than_the_limits_is_refused() {
        let mut many = ModelInferRequest::default();
        many.inputs.resize(base::limits::REQUEST_TENSORS_MAX + 1, InferInputTensor::default());
        let mut deep = request();
        deep.inputs[0].shape = vec![1; base::limits::RANK_MAX + 1];
        for (request, want) in [
            (many, "a request has at most 1024 inputs, got more"),
            (deep, "a request has at most 32 dimensions in one input, got more"),
        ] {
            assert_eq!(decode_prost(&request).unwrap_err(), Error::invalid(want));
        }
        let error = InferMessage::read(&Bytes::from_static(&[8, 1])).map(|_| ()).map_err(Error::from);
        assert_eq!(error, Err(Error::internal("Unable to parse request")));
    }

    #[test]
    fn tensors_in_shared_memory_are_found_where_a_request_says_or_refused_in_tritons_words() {
        use ParameterChoice::{BoolParam, Int64Param, StringParam};
        let registry = regions();
        let outcome = |input: &[(&str, ParameterChoice)], output: &[(&str, ParameterChoice)]| {
            let parameters = |choices: &[(&str, ParameterChoice)]| {
                choices.iter().map(|(key, choice)| ((*key).to_owned(), parameter(choice.clone()))).collect()
            };
            let mut request = request();
            // `A`, which comes second; the only raw contents are those of `B`.
            request.inputs[1].parameters = parameters(input);
            request.raw_input_contents.truncate(1);
            let parameters = parameters(output);
            request.outputs.push(InferRequestedOutputTensor { name: "X".to_owned(), parameters });
            let bytes = Bytes::from(request.encode_to_vec());
            match decode(
                &model(),
                &InferMessage::read(&bytes).unwrap(),
                Some(registry.regions()),
                &mut ReceiveReservation::default(),
            ) {
                Ok(request) => {
                    let text = |tensors: &[(usize, RegionSlice)]| {
                        let text = |(index, slice): &(usize, RegionSlice)| {
                            format!("{index}:{}:{:?}", slice.size(), slice.kind())
                        };
                        tensors.iter().map(text).collect::<Vec<_>>().join(" ")
                    };
                    let shared = request.plan.shared.unwrap();
                    assert_eq!(request.inputs[1].contents[..], [1, 2, 3, 4]);
                    format!("{} > {}", text(&shared.sources), text(&shared.destinations))
                }
                Err(error) => format!("{} {}", error.code().on_wire().1, error.text()),
            }
        };
        let region = |name: &str, size| {
            vec![("shared_memory_region", StringParam(name.to_owned())), ("shared_memory_byte_size", Int64Param(size))]
        };
        let with = |key, choice| [region("r", 16), vec![(key, choice)]].concat();
        let input = |input: &[(&str, ParameterChoice)], want: &str| assert_eq!(outcome(input, &[]), want, "{input:?}");
        input(&region("r", 16), "0:16:System > ");
        input(&region("g", 16), "0:16:Cuda > ");
        input(&with("shared_memory_offset", Int64Param(48)), "0:16:System > ");
        input(&with("shared_memory_offset", Int64Param(64)), "3 Invalid offset for shared memory region: 'r'");
        input(&with("shared_memory_offset", Int64Param(-16)), "3 Invalid offset for shared memory region: 'r'");
        input(&region("r", -16), "3 Invalid offset + byte size for shared memory region: 'r'");
        input(&region("x", 16), "5 Unable to find shared memory region: 'x'");
        let mismatch = "input byte size mismatch for input 'A' for model 'm'. Expected 16, got 12";
        input(&region("r", 12), &format!("3 [request id: 7] {mismatch}"));
        input(
            &region("r", 16)[..1],
            "3 'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'A'",
        );
        let type_error = |key: &str, want: &str| {
            format!("3 invalid value type for '{key}' parameter for tensor 'A', expected {want}.")
        };
        let number = [("shared_memory_region", Int64Param(1)), ("shared_memory_byte_size", Int64Param(16))];
        input(&number, &type_error("shared_memory_region", "string_param"));
        input(&with("shared_memory_byte_size", BoolParam(true)), &type_error("shared_memory_byte_size", "int64_param"));
        input(&with("shared_memory_offset", BoolParam(true)), &type_error("shared_memory_offset", "int64_param"));

        let output = |parameters: &[(&str, ParameterChoice)], want: &str| {
            assert_eq!(outcome(&region("r", 16), parameters), want, "{parameters:?}");
        };
        output(&region("s", 64), "0:16:System > 0:64:System");
        output(&region("x", 64), "5 Unable to find shared memory region: 'x'");
        let classes = [region("s", 64), vec![("classification", Int64Param(1))]].concat();
        output(&classes, "3 output can't set both 'shared_memory_region' and 'classification'");
    }

    #[test]
    fn an_input_lies_in_shared_memory_or_in_the_message() {
        let registry = regions();
        let mut request = request();
        request.raw_input_contents.clear();
        let region = ParameterChoice::StringParam("r".to_owned());
        let size = ParameterChoice::Int64Param(4);
        request.inputs[0].parameters = [
            ("shared_memory_region".to_owned(), parameter(region)),
            ("shared_memory_byte_size".to_owned(), parameter(size)),
        ]
        .into();
        request.inputs[0].contents =
            Some(InferTensorContents { int_contents: vec![1, 2, 3, 4], ..InferTensorContents::default() });
        let refusal = |regions| {
            let bytes = Bytes::from(request.encode_to_vec());
            let error =
                decode(&model(), &InferMessage::read(&bytes).unwrap(), regions, &mut ReceiveReservation::default())
                    .unwrap_err();
            error.text().to_owned()
        };
        assert_eq!(
            refusal(Some(registry.regions())),
            "unexpected 'content' provided when using shared memory for input tensor 'B' for model 'm'"
        );
        assert_eq!(
            refusal(None),
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
        );
    }
}
