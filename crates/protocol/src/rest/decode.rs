//! Decodes the body of an inference request. The order of the checks and their texts are Triton's
//! (`http_server.cc`, `HandleInfer`), so that a request with several faults gets the same error. If
//! Triton answers a client's mistake with an internal error, we answer `InvalidArgument`.

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::check::{
    self, AskedOutput, NamedTensor, check, check_classes, check_outputs, refusal, shape_overflow, size_mismatch,
};
use crate::infer::SequenceParameters;
use crate::infer::{InferRequest, NonFinite, OutputPlan, ResponsePlan};
use crate::rest::data;
use crate::rest::fault::NOT_AN_ARRAY;
use crate::rest::fault::json_error;
use crate::rest::fault::unparsable;
use crate::rest::misspelt;
use crate::shared_memory::{self, RegionSlice, Regions};
use base::budget::ReceiveReservation;
use base::error::Error;
use base::limits::{PARAMETERS_MAX, RANK_MAX, REQUEST_TENSORS_MAX};
use base::tensor::{Datatype, Shape, byte_size, element_count, strings};
use model::parameters::{ParameterValue, Parameters};
use model::{CorrelationId, ModelSpec, TensorSpec};
use wire::json::{Document, JsonValue, ValueKind};

/// The value of `Inference-Header-Content-Length`: the size of the body's JSON part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderLength {
    /// No such field: all of the body is JSON.
    Absent,
    /// Bytes of JSON at the beginning of the body; 0 for a raw body, which is one tensor.
    Size(i32),
}

impl HeaderLength {
    /// Parses the field's value.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is not a 32-bit integer.
    pub fn from_field(value: Option<&[u8]>) -> Result<Self, Error> {
        let Some(value) = value else { return Ok(Self::Absent) };
        let text = String::from_utf8_lossy(value);
        let digits = text.strip_prefix('-').unwrap_or(&text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::invalid(format!("Unable to parse {FIELD}, got: {text}")));
        }
        text.parse().map(Self::Size).map_err(|_| {
            let (least, most) = (i32::MIN, i32::MAX);
            Error::invalid(format!("Unable to parse {FIELD}, value is out of range [ {least}, {most} ], got: {text}"))
        })
    }

    /// Bytes of JSON in a body of `body_size` bytes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the body is shorter.
    pub fn of_body(self, body_size: usize) -> Result<usize, Error> {
        let Self::Size(size) = self else { return Ok(body_size) };
        usize::try_from(size).ok().filter(|size| *size <= body_size).ok_or_else(|| {
            Error::invalid(format!("inference header size should be in range (0, {body_size}), got: {size}"))
        })
    }
}

/// The number of elements from which on a list in a request is too long: a list of inputs or
/// outputs, which are longer than shapes.
const ELEMENTS_MAX: usize = REQUEST_TENSORS_MAX + 1;

const FIELD: &str = "Inference-Header-Content-Length";

/// The request's parameters: those that the server acts on, and the client's own.
#[derive(Default)]
struct RestParameters {
    priority: u64,
    timeout: Duration,
    is_binary: bool,
    non_finite: NonFinite,
    sequence: SequenceParameters,
    /// The other parameters, if the model looks at them.
    own: Parameters,
}

/// Decodes and checks the body of an inference request. Binary inputs stay views of the body.
/// `regions` are the shared memory regions it may use; `None` if client shared memory is disabled.
/// Memory that the inputs take beside the body is reserved in `memory` first.
///
/// # Errors
///
/// `InvalidArgument` if the body is malformed or does not fit the model; `Unsupported` for a decoupled model;
/// `Unsupported`, `NotFound` or `TooLarge` for shared memory.
pub fn decode(
    spec: &ModelSpec,
    header_length: HeaderLength,
    body: Bytes,
    regions: Option<&Regions>,
    memory: &mut ReceiveReservation,
) -> Result<InferRequest, Error> {
    if spec.is_decoupled {
        return Err(Error::unsupported("HTTP end point doesn't support models with decoupled transaction policy"));
    }
    let size = header_length.of_body(body.len())?;
    if size == 0 {
        return decode_raw(spec, body, memory);
    }
    let json = body.get(..size).unwrap_or_default();
    // One input more than there may be is one too many: a list that is longer takes little memory.
    let document = Document::parse_some(json, &["data"], ELEMENTS_MAX).map_err(json_error)?;
    decode_document(spec, &document, body.slice(size..), regions, memory).map_err(|error| {
        // Triton parses the whole JSON first: a syntax fault in a `data` array not read yet takes precedence.
        document.validate().map_or_else(json_error, |()| error)
    })
}

fn decode_document(
    spec: &ModelSpec,
    document: &Document<'_>,
    mut binary: Bytes,
    regions: Option<&Regions>,
    memory: &mut ReceiveReservation,
) -> Result<InferRequest, Error> {
    let root = document.root();
    let members = RequestMembers::of(root);
    let id = members.id.map_or(Ok(""), |id| string(id, "id"))?;
    if members.has_others && !spec.follows_triton {
        misspelt::refuse(root, &RequestMembers::NAMES, &["outputs", "parameters"])?;
    }
    let parameters = members
        .parameters
        .map_or_else(|| Ok(RestParameters::default()), |asked| decode_parameters(spec, asked, memory))?;
    if document.has_full_array() {
        ["inputs", "outputs"].into_iter().try_for_each(|list| check_length(root, list))?;
    }
    let mut inputs: SmallVec<[NamedTensor<'_>; 2]> = SmallVec::new();
    let mut json_count = 0_usize;
    let listed = members.inputs.map_or_else(|| member(root, "inputs"), Ok)?;
    for input in elements(listed, "inputs")? {
        json_count = json_count.saturating_add(usize::from(input.given("data").is_some()));
        inputs.push(decode_input(spec, input, &mut binary, regions, memory)?);
    }
    if document.raw_count() > json_count {
        // An array named `data` outside of an input was kept as text, unread. It must be valid JSON all the same.
        document.validate().map_err(json_error)?;
    }
    if !binary.is_empty() {
        return Err(Error::invalid(format!("unexpected additional input data for model '{}'", spec.name)));
    }
    let mut destinations = Vec::new();
    // As the protocol says; in tritonserver each listed output has its own flag.
    let listed_is_binary = parameters.is_binary && !spec.follows_triton;
    let outputs = decode_outputs(spec, members.outputs, listed_is_binary, regions, &mut destinations)?;
    let outputs = check_outputs(spec, id, &outputs, parameters.is_binary)?;
    check_output_formats(spec, &outputs)?;
    let (tensors, rows) = check(spec, id, &mut inputs)?;
    let shared = check::shared_tensors(spec, regions, &mut inputs, destinations)?;
    let RestParameters { priority, timeout, sequence, non_finite, own: parameters, .. } = parameters;
    let repeated = ResponsePlan::repeated(spec, &sequence);
    check::check_sequence(spec, &sequence, rows)?;
    let plan = ResponsePlan { id: id.to_owned(), outputs, repeated, shared, non_finite, ..ResponsePlan::default() };
    let inputs = tensors;
    Ok(InferRequest { inputs, rows, priority, timeout, sequence, parameters, plan })
}

/// The members of a request. Of members with the same name the first counts; an optional one that is `null` is absent.
struct RequestMembers<'d, 'a> {
    id: Option<JsonValue<'d, 'a>>,
    inputs: Option<JsonValue<'d, 'a>>,
    outputs: Option<JsonValue<'d, 'a>>,
    parameters: Option<JsonValue<'d, 'a>>,
    /// True if there are members with other names.
    has_others: bool,
}

impl<'d, 'a> RequestMembers<'d, 'a> {
    const NAMES: [&'static str; 4] = ["id", "inputs", "outputs", "parameters"];

    /// Finds them in one pass.
    fn of(root: JsonValue<'d, 'a>) -> Self {
        let [mut id, mut inputs, mut outputs, mut parameters] = [None; 4];
        let mut has_others = false;
        for (name, value) in root.members() {
            let member = match name {
                "id" => &mut id,
                "inputs" => &mut inputs,
                "outputs" => &mut outputs,
                "parameters" => &mut parameters,
                _ => {
                    has_others = true;
                    continue;
                }
            };
            member.get_or_insert(value);
        }
        let given = |member: Option<JsonValue<'d, 'a>>| member.filter(|value| *value.kind() != ValueKind::Null);
        Self { id: given(id), inputs, outputs: given(outputs), parameters: given(parameters), has_others }
    }
}

/// Refuses a list of more tensors than a request may have, before the first of them takes memory.
fn check_length(root: JsonValue<'_, '_>, list: &str) -> Result<(), Error> {
    match root.get(list).is_some_and(JsonValue::is_full) {
        true => Err(too_many(list, REQUEST_TENSORS_MAX)),
        false => Ok(()),
    }
}

/// Decodes one input; takes its bytes from the front of the binary section if they are there.
fn decode_input<'d>(
    spec: &ModelSpec,
    input: JsonValue<'d, '_>,
    binary: &mut Bytes,
    regions: Option<&Regions>,
    memory: &mut ReceiveReservation,
) -> Result<NamedTensor<'d>, Error> {
    let parameters = input.get("parameters");
    let parameter = |name: &str| parameters.and_then(|parameters| parameters.given(name));
    let (json, size, region) = (input.given("data"), parameter("binary_data_size"), parameter("shared_memory_region"));
    check_sources(input, json.is_some(), size.is_some(), region.is_some())?;
    let name = string(member(input, "name")?, "name")?;
    let is_base64 = is_base64(spec, parameter("content_type"));
    if is_base64 && json.is_none() {
        return Err(Error::invalid(format!(
            "input '{name}' has content_type 'base64': expected its strings in 'data'"
        )));
    }
    let stated = string(member(input, "datatype")?, "datatype")?;
    let datatype = Datatype::from_name(stated);
    let shape = decode_shape(name, input)?;
    let contents = match (json, size) {
        (Some(_), _)
            if let Some(error) = datatype.and_then(|datatype| check::byte_size_overflow(name, datatype, &shape)) =>
        {
            return Err(error);
        }
        (Some(json), _) => {
            let decoded = data::decode(name, datatype, &shape, json, memory);
            let decoded = decoded
                .map_err(|error| if datatype.is_some() { error } else { with_meant_datatype(&error, stated) })?;
            if is_base64 { data::from_base64(name, datatype, &decoded, memory)? } else { decoded }
        }
        (None, Some(size)) => take_binary(spec, name, unsigned(size, "binary_data_size")?, binary)?,
        (None, None) => {
            let slice = decode_slice(input, regions)?;
            return Ok(NamedTensor { name, datatype, shape, contents: Bytes::new(), shared: Some(slice) });
        }
    };
    Ok(NamedTensor::new(name, datatype, shape, contents))
}

/// The shared memory slice of an input or output whose parameters name a region.
fn decode_slice(tensor: JsonValue<'_, '_>, regions: Option<&Regions>) -> Result<RegionSlice, Error> {
    let regions = regions.ok_or_else(shared_memory::disabled)?;
    let parameter = |name: &'static str| Some((tensor.get("parameters")?.given(name)?, name));
    let number = |name| parameter(name).map_or(Ok(0), |(value, name)| unsigned(value, name));
    let region = parameter("shared_memory_region").map_or(Ok(""), |(value, name)| string(value, name))?;
    // A missing size counts as 0, as in Triton, and is refused for that.
    regions.find(region, number("shared_memory_offset")?, number("shared_memory_byte_size")?)
}

/// Refuses an input whose elements are given in no way, or in more than one.
fn check_sources(input: JsonValue<'_, '_>, has_json: bool, has_binary: bool, has_region: bool) -> Result<(), Error> {
    let fields = [(has_json, " 'data'"), (has_binary, " 'binary_data_size'"), (has_region, " 'shared_memory_region'")];
    let set: SmallVec<[&str; 3]> = fields.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect();
    let what = match set.len() {
        1 => return Ok(()),
        0 => format!(" no field is set{}{}", misspelt::hint(input, "data"), misspelt::hint(input, "parameters")),
        _ => format!(" set{}", set.concat()),
    };
    Err(Error::invalid(format!(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
         'shared_memory_region' in 'parameters'. But{what}"
    )))
}

fn decode_shape(name: &str, input: JsonValue<'_, '_>) -> Result<Shape, Error> {
    let mut shape = Shape::new();
    for dimension in array(input, "shape")? {
        let dimension = unsigned(dimension, "shape")?;
        let dimension = i64::try_from(dimension).map_err(|_| {
            let most = i64::MAX;
            Error::invalid(format!(
                "Unable to parse 'shape': dimension {dimension} of input '{name}' exceeds maximum size of {most}"
            ))
        })?;
        if shape.len() >= RANK_MAX {
            return Err(Error::invalid(format!("input '{name}' has more than the maximum of {RANK_MAX} dimensions")));
        }
        shape.push(dimension);
    }
    match element_count(&shape) {
        Ok(_) => Ok(shape),
        Err(_) => Err(shape_overflow(name, &shape)),
    }
}

/// Takes `size` bytes from the front of the binary section.
fn take_binary(spec: &ModelSpec, name: &str, size: u64, binary: &mut Bytes) -> Result<Bytes, Error> {
    let left = binary.len();
    match usize::try_from(size).ok().filter(|size| *size <= left) {
        Some(size) => Ok(binary.split_to(size)),
        None => Err(Error::invalid(format!(
            "unexpected size for input '{name}', expecting {} additional bytes for model '{}'",
            size.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX)),
            spec.name
        ))),
    }
}

/// The parameters of an output.
const OUTPUT_PARAMETERS: &[&str] = &[
    "binary_data",
    "classification",
    "content_type",
    "shared_memory_byte_size",
    "shared_memory_offset",
    "shared_memory_region",
];

/// Returns true for the `content_type` of MLServer that stands for strings of base64. Triton ignores it.
fn is_base64(spec: &ModelSpec, content_type: Option<JsonValue<'_, '_>>) -> bool {
    !spec.follows_triton && content_type.and_then(JsonValue::as_str) == Some("base64")
}

/// Decodes the parameters of the request. Unknown ones are the client's own: their type is checked, and they are
/// kept only for a model that looks at them. Of members with the same name the first counts, as in Triton, whose reader
/// finds no other.
fn decode_parameters(
    spec: &ModelSpec,
    parameters: JsonValue<'_, '_>,
    memory: &mut ReceiveReservation,
) -> Result<RestParameters, Error> {
    if *parameters.kind() != ValueKind::Object {
        return Err(Error::malformed_json("failed to get request params.: attempt to get members for non-object"));
    }
    let mut decoded = RestParameters::default();
    for (index, (name, own)) in parameters.members().enumerate() {
        if index >= PARAMETERS_MAX {
            return Err(too_many("parameters", PARAMETERS_MAX));
        }
        let value = parameters.get(name).unwrap_or(own);
        match name {
            _ if *value.kind() == ValueKind::Null && ACTED_ON.contains(&name) => {}
            "non_finite_output" => decoded.non_finite = non_finite(value)?,
            "sequence_id" => decoded.sequence.id = sequence_id(value)?,
            "sequence_start" => decoded.sequence.is_start = boolean(value, name)?,
            "sequence_end" => decoded.sequence.is_end = boolean(value, name)?,
            "priority" => decoded.priority = unsigned(value, name)?,
            "timeout" => decoded.timeout = Duration::from_micros(unsigned(value, name)?),
            "binary_data_output" => decoded.is_binary = boolean(value, name)?,
            _ if name.starts_with("triton_") => {
                return Err(Error::invalid(
                    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be \
                     specified.",
                ));
            }
            _ if matches!(value.kind(), ValueKind::Null | ValueKind::Array | ValueKind::Object | ValueKind::Raw(_)) => {
                return Err(Error::invalid(format!(
                    "parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
                )));
            }
            _ if spec.takes_details() => {
                memory.grow(name.len().saturating_add(value.as_str().map_or(0, str::len)))?;
                own_value(value).into_iter().for_each(|value| decoded.own.set(name, value));
            }
            _ => {}
        }
    }
    Ok(decoded)
}

/// The parameters that the server acts on.
const ACTED_ON: [&str; 7] =
    ["binary_data_output", "non_finite_output", "priority", "sequence_end", "sequence_id", "sequence_start", "timeout"];

/// The value of `non_finite_output`.
pub(super) fn non_finite(value: JsonValue<'_, '_>) -> Result<NonFinite, Error> {
    match string(value, "non_finite_output")? {
        "literal" => Ok(NonFinite::Literal),
        "null" => Ok(NonFinite::Null),
        "string" => Ok(NonFinite::Text),
        other => Err(Error::invalid(format!(
            "Unable to parse 'non_finite_output', got: {other}; expected 'literal', 'null' or 'string'"
        ))),
    }
}

/// The value of a parameter of the client's own; `None` for what is no scalar. An integer that 64 bits do not hold is
/// the nearest double.
pub(super) fn own_value(value: JsonValue<'_, '_>) -> Option<ParameterValue> {
    let flag = value.as_bool().map(ParameterValue::Bool);
    let text = || value.as_str().map(|text| ParameterValue::Text(text.to_owned()));
    let signed = || value.as_i64().map(ParameterValue::Int64);
    let unsigned = || value.as_u64().map(ParameterValue::Uint64);
    let double = || value.as_f64().map(ParameterValue::Double);
    flag.or_else(text).or_else(signed).or_else(unsigned).or_else(double)
}

/// A sequence id: a number or a string.
pub(super) fn sequence_id(value: JsonValue<'_, '_>) -> Result<Option<CorrelationId>, Error> {
    match value.as_u64() {
        Some(number) => Ok(CorrelationId::from_number(number)),
        None => check::sequence_text(string(value, "sequence_id")?),
    }
}

/// Decodes the requested outputs; those that go to shared memory are added to `destinations`.
fn decode_outputs<'d>(
    spec: &ModelSpec,
    outputs: Option<JsonValue<'d, '_>>,
    default_is_binary: bool,
    regions: Option<&Regions>,
    destinations: &mut Vec<(&'d str, RegionSlice)>,
) -> Result<SmallVec<[AskedOutput<'d>; 4]>, Error> {
    let mut requested = SmallVec::new();
    let Some(outputs) = outputs else { return Ok(requested) };
    for output in elements(outputs, "outputs")? {
        let parameters = output.given("parameters");
        if !spec.follows_triton {
            misspelt::refuse(output, &["name", "parameters"], &["parameters"])?;
            parameters.map_or(Ok(()), |parameters| misspelt::refuse_in(parameters, OUTPUT_PARAMETERS))?;
        }
        let parameter = |name: &str| parameters.and_then(|parameters| parameters.given(name));
        let (classes, region) = (parameter("classification"), parameter("shared_memory_region"));
        if region.is_some() && classes.is_some() {
            let text = "Output can't set both 'shared_memory_region' and 'classification'";
            return Err(Error::invalid(text));
        }
        let name = string(member(output, "name")?, "name")?;
        let count = classes.map_or(Ok(0), |count| {
            count.as_u64().ok_or_else(|| {
                let what = "attempt to access JSON non-unsigned-integer as unsigned-integer";
                Error::malformed_json(format!("Unable to set 'classification': {what}"))
            })
        })?;
        let binary = parameter("binary_data").map(|value| boolean(value, "binary_data")).transpose()?;
        if region.is_some() {
            if binary == Some(true) {
                return Err(Error::invalid("Output can't set both 'shared_memory_region' and 'binary_data'"));
            }
            destinations.push((name, decode_slice(output, regions)?));
        }
        let is_base64 = is_base64(spec, parameter("content_type"));
        if is_base64 && (region.is_some() || classes.is_some() || binary == Some(true)) {
            return Err(Error::invalid(format!(
                "output '{name}' has content_type 'base64', which is for strings in JSON: expected none of \
                 'binary_data', 'classification' and 'shared_memory_region' beside it"
            )));
        }
        // Shared memory gets raw bytes, so that any datatype is accepted, also one that JSON cannot express.
        let is_binary = region.is_some() || binary.unwrap_or(default_is_binary && !is_base64);
        let class_count = u32::try_from(count).unwrap_or(u32::MAX);
        requested.push(AskedOutput { name, is_binary, is_base64, class_count });
    }
    Ok(requested)
}

/// Refuses outputs that could not be encoded, before the model runs. The answer of a Python model
/// need not match its configuration, so that only the encoder knows.
pub(super) fn check_output_formats(spec: &ModelSpec, plans: &[OutputPlan]) -> Result<(), Error> {
    if spec.is_python() || spec.library.is_some() {
        return Ok(());
    }
    for plan in plans {
        let Some(output) = spec.outputs.get(plan.index) else { continue };
        if plan.is_base64 && output.datatype != Datatype::Bytes {
            let (name, datatype) = (&output.name, output.datatype.name());
            return Err(Error::invalid(format!("output '{name}' is {datatype}: content_type 'base64' is for BYTES")));
        }
        if plan.class_count > 0 {
            check_classes(output.datatype)?;
        } else if !plan.is_binary {
            check_json_output(output.datatype)?;
        }
    }
    Ok(())
}

/// Refuses half floats as JSON, as Triton does.
/// Returns the refusal of an unknown datatype, with the one that its name means elsewhere.
fn with_meant_datatype(error: &Error, stated: &str) -> Error {
    match Datatype::meant_by(stated) {
        None => error.clone(),
        Some(meant) => {
            let meant = meant.name();
            Error::new(error.code(), format!("{error}: '{stated}' is no datatype, did you mean {meant}?"))
        }
    }
}

pub(super) fn check_json_output(datatype: Datatype) -> Result<(), Error> {
    match datatype {
        Datatype::Fp16 | Datatype::Bf16 => Err(Error::invalid(format!(
            "sending {} data via JSON is not supported. Please use the binary data format for output",
            datatype.name()
        ))),
        _ => Ok(()),
    }
}

/// Decodes a raw body: the tensor of a model's only input, or its only one that must be given, whose shape is deduced from
/// the size.
fn decode_raw(spec: &ModelSpec, body: Bytes, memory: &mut ReceiveReservation) -> Result<InferRequest, Error> {
    let mut required = spec.inputs.iter().filter(|input| !input.is_optional);
    let only = match (spec.inputs.as_slice(), required.next(), required.next()) {
        ([input], ..) | (_, Some(input), None) => Some(input),
        _ => None,
    };
    let Some(input) = only else {
        let text = format!(
            "Raw request must only have 1 input (found 1) to be deduced but got {} inputs in '{}' model configuration",
            spec.inputs.len(),
            spec.name
        );
        return Err(refusal("", text));
    };
    let shape = raw_shape(spec, input, body.len())?;
    let contents = match byte_size(input.datatype, &shape) {
        // `raw_input` is Triton's name for the input until it has checked the size.
        Ok(Some(size)) if size != body.len() => {
            return Err(size_mismatch(spec, "", "raw_input", size, body.len()));
        }
        // The body is the string itself, without the length that elements of `BYTES` begin with.
        Ok(None) => {
            memory.grow(body.len().saturating_add(4))?;
            let mut contents = Vec::with_capacity(body.len().saturating_add(4));
            strings::encode(&body, &mut contents);
            Bytes::from(contents)
        }
        _ => body,
    };
    let outputs = check_outputs(spec, "", &[], true)?;
    let mut tensor = NamedTensor::new(&input.name, Some(input.datatype), shape, contents);
    let (inputs, rows) = check(spec, "", std::slice::from_mut(&mut tensor))?;
    let sequence = SequenceParameters::default();
    check::check_sequence(spec, &sequence, rows)?;
    let repeated = ResponsePlan::repeated(spec, &sequence);
    let plan = ResponsePlan { outputs, repeated, ..ResponsePlan::default() };
    let (timeout, parameters) = (Duration::ZERO, Parameters::default());
    Ok(InferRequest { inputs, rows, priority: 0, timeout, sequence, parameters, plan })
}

/// Deduces the shape of a raw body: one row, and along the one variable axis as many elements as the body
/// has bytes for.
fn raw_shape(spec: &ModelSpec, input: &TensorSpec, body_size: usize) -> Result<Shape, Error> {
    let wildcards = input.dims.iter().filter(|dimension| **dimension == -1).count();
    if wildcards > 1 {
        let text = format!(
            "The shape of the raw input '{}' can not be deduced because there are more than one variable-sized \
             dimension",
            input.name
        );
        return Err(refusal("", text));
    }
    let mut shape: Shape = input.dims.iter().map(|dimension| if *dimension == -1 { 1 } else { *dimension }).collect();
    if input.datatype == Datatype::Bytes && (wildcards > 0 || element_count(&shape) != Ok(1)) {
        let text = format!("For BYTE datatype raw input '{}', the model must have input shape [1]", input.name);
        return Err(refusal("", text));
    }
    let fixed = byte_size(input.datatype, &shape).ok().flatten().unwrap_or(0);
    let varying = input.dims.iter().position(|dimension| *dimension == -1).and_then(|at| shape.get_mut(at));
    // Rounded down: a body with a part of an element is refused when its size is compared with the shape's.
    if let Some(dimension) = varying {
        *dimension = i64::try_from(body_size.checked_div(fixed).unwrap_or(0)).unwrap_or(i64::MAX);
    }
    if spec.has_batch_axis() && !input.is_shape_tensor {
        shape.insert(0, 1);
    }
    Ok(shape)
}

pub(super) fn too_many(what: &str, most: usize) -> Error {
    Error::invalid(format!("request has more than the maximum of {most} {what}"))
}

fn member<'d, 'a>(value: JsonValue<'d, 'a>, name: &str) -> Result<JsonValue<'d, 'a>, Error> {
    value.get(name).ok_or_else(|| {
        let hint = misspelt::hint(value, name);
        unparsable(name, &format!("attempt to access non-existing object member '{name}'{hint}"))
    })
}

fn array<'d, 'a>(value: JsonValue<'d, 'a>, name: &str) -> Result<impl Iterator<Item = JsonValue<'d, 'a>>, Error> {
    elements(member(value, name)?, name)
}

/// The elements of the array that is the member `name`.
fn elements<'d, 'a>(array: JsonValue<'d, 'a>, name: &str) -> Result<impl Iterator<Item = JsonValue<'d, 'a>>, Error> {
    match array.kind() {
        ValueKind::Array => Ok(array.elements()),
        _ => Err(unparsable(name, NOT_AN_ARRAY)),
    }
}

pub(super) fn string<'d>(value: JsonValue<'d, '_>, name: &str) -> Result<&'d str, Error> {
    value.as_str().ok_or_else(|| unparsable(name, "attempt to access JSON non-string as string"))
}

pub(super) fn boolean(value: JsonValue<'_, '_>, name: &str) -> Result<bool, Error> {
    value.as_bool().ok_or_else(|| unparsable(name, "attempt to access JSON non-boolean as boolean"))
}

fn unsigned(value: JsonValue<'_, '_>, name: &str) -> Result<u64, Error> {
    let what = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    value.as_u64().ok_or_else(|| unparsable(name, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, output, spec};

    /// The client's own parameters of a request for a model of this backend.
    fn own(backend: &str, parameters: &str) -> Result<Parameters, Error> {
        let model = spec(0, vec![], vec![]).run_by(backend);
        let body = Bytes::from(format!("{{\"parameters\":{{{parameters}}},\"inputs\":[]}}"));
        let decoded = decode(&model, HeaderLength::Absent, body, None, &mut ReceiveReservation::default());
        decoded.map(|request| request.parameters)
    }

    #[test]
    fn the_clients_own_parameters_are_kept_for_a_model_that_looks_at_them() {
        use ParameterValue::{Bool, Double, Int64, Text, Uint64};
        let check = |value: &str, want: ParameterValue| {
            let got = own("python", &format!("\"mine\":{value}"));
            assert_eq!(got, Ok(Parameters(vec![("mine".to_owned(), want)])), "{value}");
        };
        check("true", Bool(true));
        check("false", Bool(false));
        check(r#""a\u00e9\n""#, Text("aé\n".to_owned()));
        check(r#""""#, Text(String::new()));
        check("0", Int64(0));
        check("-0", Int64(0));
        check("9223372036854775807", Int64(i64::MAX));
        check("-9223372036854775808", Int64(i64::MIN));
        check("9223372036854775808", Uint64(1 << 63));
        check("18446744073709551615", Uint64(u64::MAX));
        check("18446744073709551616", Double(18_446_744_073_709_551_616.0));
        check("-9223372036854775809", Double(-9_223_372_036_854_775_808.0));
        check("1.0", Double(1.0));
        check("-2.5e-3", Double(-0.0025));
        check("0.1", Double(0.1));
        check("Infinity", Double(f64::INFINITY));
    }

    /// The number of outputs and the id of a decoded body, or its error.
    fn outcome(body: &str) -> String {
        let model = spec(0, vec![input("A", Datatype::Uint8, &[1])], vec![output("X", Datatype::Uint8, &[1])]);
        let body = Bytes::from(body.to_owned());
        match decode(&model, HeaderLength::Absent, body, None, &mut ReceiveReservation::default()) {
            Ok(request) => format!("{} outputs, id '{}'", request.plan.outputs.len(), request.plan.id),
            Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
        }
    }

    #[test]
    fn an_optional_member_that_is_null_counts_as_absent() {
        let input = r#""inputs":[{"name":"A","datatype":"UINT8","shape":[1],"data":[1]}]"#;
        for member in [
            r#""id":null"#,
            r#""parameters":null"#,
            r#""outputs":null"#,
            r#""outputs":[{"name":"X","parameters":null}]"#,
            r#""outputs":[{"name":"X","parameters":{"binary_data":null,"classification":null,"shared_memory_region":null}}]"#,
            r#""parameters":{"sequence_id":null,"sequence_start":null,"sequence_end":null,"priority":null}"#,
            r#""parameters":{"timeout":null,"binary_data_output":null,"non_finite_output":null}"#,
        ] {
            assert_eq!(outcome(&format!("{{{member},{input}}}")), "1 outputs, id ''", "{member}");
        }
        for parameters in ["null", r#"{"binary_data_size":null,"shared_memory_region":null}"#] {
            let member = input.replace("\"data\"", &format!("\"parameters\":{parameters},\"data\""));
            assert_eq!(outcome(&format!("{{{member}}}")), "1 outputs, id ''", "{parameters}");
        }
        // No data at all, and what is required.
        let none = input.replace("[1]}", "null}");
        assert!(outcome(&format!("{{{none}}}")).contains("But no field is set"), "{}", outcome(&format!("{{{none}}}")));
        assert!(outcome(r#"{"inputs":null}"#).starts_with("400 Unable to parse 'inputs'"));
        // The rest is still read: an array named data elsewhere belongs to no input.
        let fault = format!(r#"{{"x":{{"data":[}}]}},"id":null,{input}}}"#);
        assert!(outcome(&fault).starts_with("400 failed to parse"), "{}", outcome(&fault));
    }

    #[test]
    fn misspelt_members_are_refused_with_what_was_meant_and_others_are_ignored() {
        let input = r#""inputs":[{"name":"A","datatype":"UINT8","shape":[1],"data":[1]}]"#;
        let unknown = |name: &str, meant: &str| format!("400 unknown member '{name}': did you mean '{meant}'?");
        let ok = "1 outputs, id ''";
        let check = |member: &str, want: &str| assert_eq!(outcome(&format!("{{{member},{input}}}")), want, "{member}");
        check(r#""output":[{"name":"X"}]"#, &unknown("output", "outputs"));
        check(r#""parameter":{"priority":1}"#, &unknown("parameter", "parameters"));
        check(r#""Parameters":{}"#, &unknown("Parameters", "parameters"));
        check(r#""outputs":[{"name":"X","parameter":{"binary_data":true}}]"#, &unknown("parameter", "parameters"));
        check(r#""outputs":[{"name":"X","parameters":{"binary-data":true}}]"#, &unknown("binary-data", "binary_data"));
        check(r#""model_name":"m","model_version":"1","timeout":5,"version":7,"raw_output_contents":[]"#, ok);
        check(r#""outputs":[{"name":"X","datatype":"UINT8","shape":[1],"parameters":{"mine":1}}]"#, ok);
        let missing = |name: &str, hint: &str| {
            format!(
                "400 Unable to parse '{name}': attempt to access non-existing object member '{name}' (there is '{hint}': did you mean '{name}'?)"
            )
        };
        assert_eq!(outcome(&format!("{{{}}}", input.replace("inputs", "input"))), missing("inputs", "input"));
        for (name, hint) in [("datatype", "dataype"), ("shape", "shapes"), ("name", "nmae")] {
            let body = format!("{{{}}}", input.replace(&format!("\"{name}\""), &format!("\"{hint}\"")));
            assert_eq!(outcome(&body), missing(name, hint));
        }
        let body = format!("{{{}}}", input.replace("\"data\":[1]", "\"parameter\":{\"binary_data_size\":1}"));
        assert!(
            outcome(&body).ends_with("no field is set (there is 'parameter': did you mean 'parameters'?)"),
            "{}",
            outcome(&body)
        );
    }

    #[test]
    fn content_type_base64_stands_for_bytes_in_both_directions() {
        let tensors = |name| vec![input(name, Datatype::Bytes, &[2]), input("N", Datatype::Uint8, &[1])];
        let outcome = |follows_triton: bool, first: &str, outputs: &str| {
            let mut model = spec(0, tensors("A"), tensors("X"));
            model.follows_triton = follows_triton;
            let number = r#"{"name":"N","datatype":"UINT8","shape":[1],"data":[1]}"#;
            let body = format!(r#"{{"inputs":[{{"name":"A","shape":[2],{first}}},{number}],"outputs":[{outputs}]}}"#);
            let decoded = decode(&model, HeaderLength::Absent, body.into(), None, &mut ReceiveReservation::default());
            match decoded {
                Ok(request) => {
                    let flags: Vec<_> =
                        request.plan.outputs.iter().map(|plan| (plan.is_base64, plan.is_binary)).collect();
                    format!("{:?} {flags:?}", &request.inputs[0].contents[..])
                }
                Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
            }
        };
        let asked = r#"{"name":"X","parameters":{"content_type":"base64"}}"#;
        let given =
            |data: &str| format!(r#""datatype":"BYTES","parameters":{{"content_type":"base64"}},"data":{data}"#);
        assert_eq!(outcome(false, &given(r#"["/wA=",""]"#), asked), "[2, 0, 0, 0, 255, 0, 0, 0, 0, 0] [(true, false)]");
        let kept = "[1, 0, 0, 0, 97, 1, 0, 0, 0, 98] [(false, false)]";
        assert_eq!(outcome(true, &given(r#"["a","b"]"#), asked), kept, "Triton ignores it");
        let other = r#""datatype":"BYTES","parameters":{"content_type":"str"},"data":["a","b"]"#;
        assert_eq!(outcome(false, other, r#"{"name":"X","parameters":{"content_type":"np"}}"#), kept);
        let check = |first: &str, outputs: &str, want: &str| {
            let got = outcome(false, first, outputs);
            assert!(got.starts_with(want), "{first} {outputs}: {got}");
        };
        check(
            &given(r#"["YQ","*"]"#),
            "",
            "400 element 1 of input 'A' is not base64 (RFC 4648, section 4), which its content_type states",
        );
        let number = r#""datatype":"UINT8","parameters":{"content_type":"base64"},"data":[1,2]"#;
        check(number, "", "400 input 'A' is UINT8: content_type 'base64' is for BYTES");
        let binary = r#""datatype":"BYTES","parameters":{"content_type":"base64","binary_data_size":0}"#;
        check(binary, "", "400 input 'A' has content_type 'base64': expected its strings in 'data'");
        let plain = r#""datatype":"BYTES","data":["a","b"]"#;
        let number = r#"{"name":"N","parameters":{"content_type":"base64"}}"#;
        check(plain, number, "400 output 'N' is UINT8: content_type 'base64' is for BYTES");
        for beside in [r#""binary_data":true"#, r#""classification":1"#] {
            let both = format!(r#"{{"name":"X","parameters":{{"content_type":"base64",{beside}}}}}"#);
            check(plain, &both, "400 output 'X' has content_type 'base64', which is for strings in JSON");
        }
        let near = r#"{"name":"X","parameters":{"content-type":"base64"}}"#;
        check(plain, near, "400 unknown member 'content-type': did you mean 'content_type'?");
    }

    #[test]
    fn what_is_no_finite_number_is_written_as_the_client_asks() {
        let plan = |value: &str| own("identity", &format!("\"non_finite_output\":{value}")).map(|_| ());
        for value in [r#""literal""#, r#""null""#, r#""string""#, "null"] {
            assert_eq!(plan(value), Ok(()), "{value}");
        }
        let text = "Unable to parse 'non_finite_output', got: none; expected 'literal', 'null' or 'string'";
        assert_eq!(plan(r#""none""#), Err(Error::invalid(text)));
        assert!(plan("1").is_err());
    }

    #[test]
    fn parameters_that_are_kept_take_memory() {
        use std::rc::Rc;

        use base::budget::{ReceiveBudget, testing};
        let body = Bytes::from(r#"{"parameters":{"abc":"0123456","de":1},"inputs":[]}"#);
        let check = |backend: &str, size_max: usize, reserved: usize, fits: bool| {
            let model = spec(0, vec![], vec![]).run_by(backend);
            let memory = testing::Bytes::new(size_max);
            let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
            let decoded = decode(&model, HeaderLength::Absent, body.clone(), None, &mut reservation);
            assert_eq!((decoded.is_ok(), memory.reserved.get()), (fits, reserved), "{backend} {size_max}");
        };
        check("python", 12, 12, true);
        check("python", 11, 10, false);
        check("identity", 0, 0, true);
    }

    #[test]
    fn what_the_server_acts_on_is_no_parameter_of_the_clients_own() {
        let all = r#""b":1,"sequence_id":7,"sequence_start":true,"sequence_end":true,"priority":1,"timeout":5,
                     "binary_data_output":false,"a":2,"b":3"#;
        let want = [("b", ParameterValue::Int64(1)), ("a", ParameterValue::Int64(2))];
        let want = want.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(own("python", all), Ok(Parameters(want.into())), "in order, of two the first");
        for other in ["identity", "onnxruntime"] {
            assert_eq!(own(other, all), Ok(Parameters::default()), "{other} does not look");
        }
        for backend in ["python", "identity"] {
            let refused = own(backend, "\"x\":null").unwrap_err();
            let text = "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.";
            assert_eq!(refused, Error::invalid(text));
        }
    }
}
