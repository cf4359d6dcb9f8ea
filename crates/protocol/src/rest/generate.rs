//! Generate: requests and responses as plain JSON. A member is an input by its name, a parameter otherwise; a response
//! has the outputs by their names. The texts, the order of the checks and of the keys are Triton's (`http_server.cc`,
//! `GenerateRequestClass`). Lists within lists, which Triton refuses, are answered by lists within lists; to all others
//! outputs are flat, as Triton's are. Bounded as `decode` is.

use std::collections::BTreeMap;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::check::{self, NamedTensor, check_outputs, refusal};
use crate::infer::{InferRequest, NonFinite, ResponsePlan, SequenceParameters};
use crate::outputs::{SentOutput, planned_outputs};
use crate::rest::data;
use crate::rest::decode::{self, check_output_formats};
use crate::rest::encode::{JSON, error_json, write_parameter};
use crate::rest::fault::json_error;
use base::budget::ReceiveReservation;
use base::error::{Code, Error};
use base::limits::PARAMETERS_MAX;
use base::tensor::{Datatype, Shape, Tensor, distribute, element_count};
use model::parameters::{ParameterValue, Parameters};
use model::{CorrelationId, ModelSpec, TensorSpec};
use wire::json::{Document, JsonValue, RawArray, ValueKind, writer};
use wire::message::Reply;

/// The member whose members count as if they were outside of it.
const NESTED: &str = "parameters";

/// Members that are no inputs and may be `null`, which counts as absent. (Of the client's own parameters it is refused.)
const OPTIONAL: [&str; 5] = ["id", "non_finite_output", "sequence_end", "sequence_id", "sequence_start"];

/// The members of a request.
struct GenerateFields<'d> {
    spec: &'d ModelSpec,
    id: &'d str,
    inputs: SmallVec<[NamedTensor<'d>; 2]>,
    /// The places of inputs that came as a scalar.
    scalars: SmallVec<[usize; 2]>,
    sequence: SequenceParameters,
    parameters: Parameters,
    non_finite: NonFinite,
    /// True if an input came as lists within lists.
    is_nested: bool,
    /// Members that are no inputs.
    count: usize,
}

/// Decodes and checks the body of a request. Memory that the inputs take beside the body is
/// reserved in `memory` first.
///
/// # Errors
///
/// `InvalidArgument` if the body is malformed or does not fit the model.
pub fn decode(spec: &ModelSpec, body: &Bytes, memory: &mut ReceiveReservation) -> Result<InferRequest, Error> {
    let names: SmallVec<[&str; 8]> = spec.inputs.iter().map(|input| input.name.as_str()).collect();
    let document = Document::parse(body, &names).map_err(json_error)?;
    document.validate().map_err(json_error)?;
    let root = document.root();
    let id = root.given("id").map_or(Ok(""), |id| decode::string(id, "id"))?;
    if *root.kind() != ValueKind::Object {
        return Err(Error::malformed_json("attempt to get members for non-object"));
    }
    let (inputs, scalars, sequence, parameters, non_finite) = Default::default();
    let (is_nested, count) = (false, 0);
    let mut fields = GenerateFields { spec, id, inputs, scalars, sequence, parameters, non_finite, is_nested, count };
    fields.take_all(root, memory).map_err(|error| with_inputs(error, spec))?;
    fields.repeat_scalars(memory)?;
    let GenerateFields { mut inputs, sequence, parameters, non_finite, is_nested, .. } = fields;
    let outputs = check_outputs(spec, id, &[], false)?;
    check_output_formats(spec, &outputs)?;
    let (inputs, rows) = check::check(spec, id, &mut inputs).map_err(|error| with_inputs(error, spec))?;
    check::check_sequence(spec, &sequence, rows)?;
    let repeated = ResponsePlan::repeated(spec, &sequence);
    let plan = ResponsePlan { id: id.to_owned(), outputs, repeated, non_finite, is_nested, ..ResponsePlan::default() };
    let (priority, timeout) = Default::default();
    Ok(InferRequest { inputs, rows, priority, timeout, sequence, parameters, plan })
}

/// Adds the model's inputs to a client's mistake.
pub(super) fn with_inputs(error: Error, spec: &ModelSpec) -> Error {
    if !matches!(error.code(), Code::InvalidArgument | Code::MalformedJson) {
        return error;
    }
    let text = |input: &TensorSpec| {
        let open = if input.is_optional { " (optional)" } else { "" };
        let sizes: Vec<_> = input.shape.iter().map(ToString::to_string).collect();
        let elements = elements_text(&input.shape);
        format!("{} {} [{}] of {elements}{open}", input.name, input.datatype.name(), sizes.join(","))
    };
    let inputs: Vec<_> = spec.inputs.iter().map(text).collect();
    error.with_suffix(&format!(" (inputs of model '{}': {})", spec.name, inputs.join("; ")))
}

/// The number of elements that a shape takes.
fn elements_text(shape: &[i64]) -> String {
    let fixed = shape.iter().filter(|size| **size != -1).fold(1_i64, |product, size| product.saturating_mul(*size));
    match (shape.contains(&-1), fixed) {
        (true, 1) => "any number of elements".to_owned(),
        (true, fixed) => format!("a multiple of {fixed} elements"),
        (false, 1) => "1 element".to_owned(),
        (false, fixed) => format!("{fixed} elements"),
    }
}

impl<'d> GenerateFields<'d> {
    fn take_all(&mut self, root: JsonValue<'d, '_>, memory: &mut ReceiveReservation) -> Result<(), Error> {
        for (name, own) in root.members() {
            if name == NESTED {
                if *own.kind() != ValueKind::Null {
                    self.take_nested(own, memory)?;
                }
            } else {
                self.take(name, root.get(name).unwrap_or(own), memory)?;
            }
        }
        Ok(())
    }

    fn take_nested(&mut self, nested: JsonValue<'d, '_>, memory: &mut ReceiveReservation) -> Result<(), Error> {
        if self.spec.input_index(NESTED).is_some() {
            let text = format!("Keyword '{NESTED}' for nested schema also given as input tensor name");
            return Err(Error::invalid(text));
        }
        if *nested.kind() != ValueKind::Object {
            let what = "attempt to access JSON non-object as object";
            return Err(Error::invalid(format!("Expected JSON object for keyword: '{NESTED}': {what}")));
        }
        let took = nested.members().try_for_each(|(name, own)| {
            let value = nested.get(name).unwrap_or(own);
            self.take(name, value, memory)
        });
        took.map_err(|error| error.with_prefix(&format!("Converting keyword: '{NESTED}': ")))
    }

    /// Takes one member.
    fn take(&mut self, name: &'d str, value: JsonValue<'d, '_>, memory: &mut ReceiveReservation) -> Result<(), Error> {
        let Some(input) = self.spec.input_index(name).and_then(|index| self.spec.inputs.get(index)) else {
            return self.take_parameter(name, value, memory);
        };
        if input.is_optional && *value.kind() == ValueKind::Null {
            return Ok(());
        }
        self.is_nested |= matches!(value.kind(), ValueKind::Raw(array) if array.is_nested());
        let tensor = decode_input(name, input, value, memory)?;
        if self.inputs.iter().any(|have| have.name == name) {
            return Err(refusal(self.id, format!("input '{name}' already exists in request")));
        }
        if !matches!(value.kind(), ValueKind::Raw(_)) {
            self.scalars.push(self.inputs.len());
        }
        self.inputs.push(tensor);
        Ok(())
    }

    /// Gives each scalar to every row of the lists beside it, which Triton refuses: `{"text":["a","b"],"count":3}`.
    fn repeat_scalars(&mut self, memory: &mut ReceiveReservation) -> Result<(), Error> {
        let has_rows = |input: &NamedTensor<'_>| {
            let index = self.spec.input_index(input.name);
            index.and_then(|index| self.spec.inputs.get(index)).is_some_and(|input| !input.is_shape_tensor)
        };
        let lists = self.inputs.iter().enumerate().filter(|(index, _)| !self.scalars.contains(index));
        let mut rows = lists.filter(|(_, input)| has_rows(input)).filter_map(|(_, input)| input.shape.first().copied());
        let Some(count) = rows.next().filter(|count| self.spec.has_batch_axis() && *count > 1) else { return Ok(()) };
        // The check of the rows says which list differs.
        if rows.any(|other| other != count) {
            return Ok(());
        }
        let scalars: SmallVec<[usize; 2]> =
            self.scalars.iter().copied().filter(|index| self.inputs.get(*index).is_some_and(has_rows)).collect();
        for index in scalars {
            let Some(NamedTensor { shape, contents, .. }) = self.inputs.get_mut(index) else { continue };
            shape.iter_mut().take(1).for_each(|first| *first = count);
            // A request of more rows is refused for these.
            if count <= i64::from(self.spec.rows_max) {
                let count = usize::try_from(count).unwrap_or_default();
                memory.grow(contents.len().saturating_mul(count.saturating_sub(1)))?;
                *contents = contents.repeat(count).into();
            }
        }
        Ok(())
    }

    /// Takes a parameter. Those of a sequence count if the model has use for them, which Triton
    /// does not do; all others, `priority` and `timeout` among them, are the model's own, as in
    /// Triton.
    fn take_parameter(
        &mut self,
        name: &str,
        value: JsonValue<'_, '_>,
        memory: &mut ReceiveReservation,
    ) -> Result<(), Error> {
        self.count = self.count.saturating_add(1);
        if self.count > PARAMETERS_MAX {
            return Err(decode::too_many("parameters", PARAMETERS_MAX));
        }
        if *value.kind() == ValueKind::Null && OPTIONAL.contains(&name) {
            return Ok(());
        }
        if name == "non_finite_output" {
            self.non_finite = decode::non_finite(value)?;
            return Ok(());
        }
        let Some(own) = decode::own_value(value) else {
            return Err(Error::invalid(format!(
                "parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'. {OTHER_VALUES}"
            )));
        };
        if self.spec.sequence.is_some() || self.spec.ensemble.is_some() {
            match name {
                "sequence_id" => self.sequence.id = decode::sequence_id(value)?,
                "sequence_start" => self.sequence.is_start = decode::boolean(value, name)?,
                "sequence_end" => self.sequence.is_end = decode::boolean(value, name)?,
                _ => {}
            }
        }
        if self.spec.takes_details() {
            memory.grow(name.len().saturating_add(value.as_str().map_or(0, str::len)))?;
            self.parameters.set(name, own);
        }
        Ok(())
    }
}

/// The places for values that are no parameters, behind Triton's text.
const OTHER_VALUES: &str = "A list or an object is the value of an input, or JSON text in a string.";

/// Decodes an input: a scalar or a flat list, whose elements fill the shape of the model, or lists within lists, which
/// have a shape of their own.
fn decode_input<'d>(
    name: &'d str,
    expected: &TensorSpec,
    value: JsonValue<'_, '_>,
    memory: &mut ReceiveReservation,
) -> Result<NamedTensor<'d>, Error> {
    let datatype = expected.datatype;
    let scalar;
    let (array, count) = match value.kind() {
        ValueKind::Raw(array) => (*array, array.element_count()),
        kind => {
            scalar = list_of(kind, memory)?;
            (RawArray::new(&scalar), 1)
        }
    };
    let mut decode = |shape: &[i64]| data::decode_array(name, Some(datatype), shape, &array, memory);
    // As in Triton, an element that is not a string is reported before too many elements.
    let strings = if datatype == Datatype::Bytes { Some(decode(&[1])?) } else { None };
    let shape = if array.is_nested() { nested_shape(expected, &array) } else { distribute(&expected.shape, count) };
    let shape = shape.ok_or_else(|| {
        Error::invalid(format!("The schema can not convert input '{name}' to tensor with proper shape"))
    })?;
    let contents = strings.map_or_else(|| decode(&shape), Ok)?;
    Ok(NamedTensor::new(name, Some(datatype), shape, contents))
}

/// The shape of lists within lists. Open axes in front that they do not have are 1. `None` if they are irregular, or not
/// of the model's shape.
fn nested_shape(expected: &TensorSpec, array: &RawArray<'_>) -> Option<Shape> {
    let own = array.shape()?;
    let (missing, last) = expected.shape.split_at_checked(expected.shape.len().checked_sub(own.len())?)?;
    let mut shape: Shape = missing.iter().map(|size| if *size == -1 { 1 } else { *size }).collect();
    for (size, expected) in own.into_iter().zip(last) {
        let size = i64::try_from(size).ok()?;
        if *expected != -1 && *expected != size {
            return None;
        }
        shape.push(size);
    }
    missing.iter().all(|size| [-1, 1].contains(size)).then_some(shape)
}

/// The text of a list with a scalar as its only element; `null` replaces a value that is not a
/// scalar, which no datatype takes.
fn list_of(scalar: &ValueKind<'_>, memory: &mut ReceiveReservation) -> Result<Vec<u8>, Error> {
    let mut text = vec![b'['];
    match scalar {
        ValueKind::Integer(number) | ValueKind::Decimal(number) => text.extend_from_slice(number),
        ValueKind::Bool(value) => writer::boolean(*value, &mut text),
        ValueKind::String(string) => {
            memory.grow(string.len())?;
            writer::string(string, &mut text);
        }
        ValueKind::Null | ValueKind::Array | ValueKind::Object | ValueKind::Raw(_) => text.extend_from_slice(b"null"),
    }
    text.push(b']');
    Ok(text)
}

/// The value of one key of a response.
enum GenerateValue<'a> {
    Output(SentOutput<'a>),
    Parameter(ParameterValue),
    Text(&'a str),
}

/// Encodes a response as one JSON object, its keys sorted. Of two keys with the same name the
/// response's own comes before a parameter's, and a parameter's before an output's.
///
/// # Errors
///
/// As [`super::encode()`].
pub fn encode(
    spec: &ModelSpec,
    version: u64,
    plan: &ResponsePlan,
    outputs: Vec<Tensor>,
    parameters: Option<&Parameters>,
) -> Result<Vec<u8>, Error> {
    let outputs = planned_outputs(spec, plan, outputs)?;
    let mut size = spec.name.len().saturating_add(plan.id.len()).saturating_add(SIZE_EXPECTED);
    let mut fields = BTreeMap::new();
    let version = itoa::Buffer::new().format(version).to_owned();
    if !plan.id.is_empty() {
        fields.insert("id", GenerateValue::Text(&plan.id));
    }
    fields.insert("model_name", GenerateValue::Text(&spec.name));
    fields.insert("model_version", GenerateValue::Text(&version));
    if let Some(repeated) = &plan.repeated {
        for (name, value) in sequence_parameters(repeated) {
            fields.entry(name).or_insert(GenerateValue::Parameter(value));
        }
    }
    for (name, value) in parameters.into_iter().flat_map(|parameters| &parameters.0) {
        fields.entry(name).or_insert_with(|| GenerateValue::Parameter(value.clone()));
    }
    for output in outputs {
        size = size.saturating_add(output.size_expected());
        fields.entry(&output.spec.name).or_insert(GenerateValue::Output(output));
    }
    let mut json = Vec::with_capacity(size);
    json.push(b'{');
    for (index, (name, value)) in fields.iter().enumerate() {
        writer::comma(index, &mut json);
        writer::string(name, &mut json);
        json.push(b':');
        match value {
            GenerateValue::Output(output) => write_output(output, plan.is_nested, &mut json)?,
            GenerateValue::Parameter(value) => write_parameter(value, plan.non_finite, &mut json),
            GenerateValue::Text(text) => writer::string(text, &mut json),
        }
    }
    json.push(b'}');
    Ok(json)
}

/// Bytes of JSON around the outputs, roughly.
const SIZE_EXPECTED: usize = 64;

/// The sequence parameters that the response of an ensemble echoes; a numeric id as an int64, as in Triton.
fn sequence_parameters(sequence: &SequenceParameters) -> [(&'static str, ParameterValue); 3] {
    let id = match &sequence.id {
        Some(CorrelationId::Text(text)) => ParameterValue::Text(text.to_string()),
        Some(CorrelationId::Number(number) | CorrelationId::Own(number)) => ParameterValue::Int64(number.cast_signed()),
        None => ParameterValue::Int64(0),
    };
    let flag = ParameterValue::Bool;
    [("sequence_id", id), ("sequence_start", flag(sequence.is_start)), ("sequence_end", flag(sequence.is_end))]
}

/// Writes an output: its only element, a list of its elements or, if the client sent such, lists within lists.
fn write_output(output: &SentOutput<'_>, is_nested: bool, json: &mut Vec<u8>) -> Result<(), Error> {
    let shape = &output.tensor.shape;
    let count = element_count(shape).unwrap_or_default();
    if count == 1 {
        return output.write_data(json);
    }
    json.push(b'[');
    if is_nested && shape.len() > 1 && count > 1 {
        let mut elements = Vec::with_capacity(output.size_expected());
        output.write_data(&mut elements)?;
        write_rows(&elements, shape, json);
    } else {
        output.write_data(json)?;
    }
    json.push(b']');
    Ok(())
}

/// Writes elements, with commas between them, as the rows of a shape; without the outermost brackets.
pub(super) fn write_rows(elements: &[u8], shape: &[i64], json: &mut Vec<u8>) {
    // The elements of one list at each depth below the outermost, from the inside out.
    let mut sizes: SmallVec<[usize; 6]> = SmallVec::new();
    for size in shape.iter().skip(1).rev() {
        let inner = sizes.last().copied().unwrap_or(1);
        sizes.push(usize::try_from(*size).unwrap_or_default().saturating_mul(inner));
    }
    json.extend(sizes.iter().map(|_| b'['));
    let (mut index, mut is_text) = (0_usize, false);
    let mut bytes = elements.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_text = !is_text,
            b'\\' => {
                json.push(b'\\');
                json.extend(bytes.next());
                continue;
            }
            b',' if !is_text => {
                index = index.saturating_add(1);
                let ends = sizes.iter().filter(|size| index.checked_rem(**size) == Some(0)).count();
                json.extend(std::iter::repeat_n(b']', ends));
                json.push(b',');
                json.extend(std::iter::repeat_n(b'[', ends));
                continue;
            }
            _ => {}
        }
        json.push(*byte);
    }
    json.extend(sizes.iter().map(|_| b']'));
}

/// The head of a stream of events, whose status its first response decides.
#[inline]
pub fn stream_reply(first: Option<&Error>) -> Reply {
    let mut reply = Reply { status: first.map_or(200, |error| error.code().on_wire().0), ..Reply::default() };
    reply.fields.push(("Content-Type", Bytes::from_static(b"text/event-stream; charset=utf-8")));
    reply
}

/// A response as an event.
#[inline]
pub fn event(response: Result<Vec<u8>, Error>) -> Bytes {
    let json = response.unwrap_or_else(|error| error_json(&error));
    Bytes::from([&b"data: "[..], &json, b"\n\n"].concat())
}

/// The only response as a reply.
#[inline]
pub fn single_reply(response: Vec<u8>) -> Reply {
    Reply::new(200, JSON, response)
}

/// Refuses to answer with no response or with several. A client's mistake: it asked the wrong endpoint. (Triton
/// answers 200 with this text.)
pub fn not_one() -> Error {
    Error::invalid(
        "generate expects model to produce exactly 1 response, use generate stream for model that generates various \
         number of responses",
    )
}

/// Refuses a body that is compressed.
#[inline]
pub fn coded() -> Error {
    Error::invalid("Unsupported content-encoding, only 'identity' is supported.")
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::infer::OutputPlan;
    use crate::testing::{input, output, spec};
    use base::budget::{ReceiveBudget, testing};

    #[test]
    fn keys_are_sorted_and_of_two_of_a_name_the_responses_own_comes_first() {
        let outputs = ["model_name", "b", "A"].map(|name| output(name, Datatype::Uint8, &[-1]));
        let model = spec(0, vec![], outputs.into());
        let planned = |index| OutputPlan { index, is_binary: false, is_base64: false, class_count: 0 };
        let outputs = [planned(0), planned(1), planned(2)].into_iter().collect();
        let plan = ResponsePlan { id: "i".to_owned(), outputs, ..ResponsePlan::default() };
        let tensor = |contents: &'static [u8]| Tensor {
            datatype: Datatype::Uint8,
            shape: Shape::from_slice(&[contents.len() as i64]),
            contents: Bytes::from_static(contents),
        };
        let tensors = vec![tensor(&[9]), tensor(&[8]), tensor(&[1, 2])];
        let own =
            [("id", 1), ("b", 2), ("z\"", 3)].map(|(name, value)| (name.to_owned(), ParameterValue::Int64(value)));
        let json = encode(&model, 7, &plan, tensors, Some(&Parameters(own.into()))).unwrap();
        let want = r#"{"A":[1,2],"b":2,"id":"i","model_name":"m","model_version":"7","z\"":3}"#;
        assert_eq!(String::from_utf8(json).unwrap(), want);
    }

    #[test]
    fn what_a_body_becomes_takes_memory() {
        let model = spec(0, vec![input("a", Datatype::Bytes, &[-1]), input("b", Datatype::Fp64, &[-1])], vec![]);
        let body = Bytes::from(r#"{"a":"0123456789","b":[1,2,3]}"#);
        let fits = |size_max: usize| {
            let memory = testing::Bytes::new(size_max);
            let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
            decode(&model, &body, &mut reservation).is_ok()
        };
        // The string, its text as a list, and three doubles.
        assert!(fits(10 + 14 + 24) && !fits(10 + 14 + 23) && !fits(9));
    }

    #[test]
    fn null_counts_as_absent_and_what_the_server_acts_on_is_no_parameter_of_the_model() {
        let model = spec(0, vec![input("a", Datatype::Uint8, &[1])], vec![]).run_by("python");
        let decode = |body: &'static str| decode(&model, &Bytes::from(body), &mut ReceiveReservation::default());
        let body = r#"{"a":1,"id":null,"sequence_id":null,"parameters":null,"non_finite_output":null}"#;
        let request = decode(body).unwrap();
        assert_eq!((request.plan.id.as_str(), request.parameters.0.len()), ("", 0));
        let request = decode(r#"{"a":1,"parameters":{"non_finite_output":"null"}}"#).unwrap();
        assert_eq!((request.plan.non_finite, request.parameters.0.len()), (NonFinite::Null, 0));
        let refused = decode(r#"{"a":1,"own":null}"#).unwrap_err();
        assert!(refused.text().starts_with("parameter 'own' has invalid type"), "{refused}");
        assert!(decode(r#"{"a":null}"#).is_err(), "an input is required");
        let mut optional = model.clone();
        optional.inputs.push(input("b", Datatype::Uint8, &[1]));
        optional.inputs[1].is_optional = true;
        let body = Bytes::from(r#"{"a":1,"b":null}"#);
        let request = super::decode(&optional, &body, &mut ReceiveReservation::default()).unwrap();
        assert!(!request.inputs[1].is_given());
    }

    #[test]
    fn what_is_no_input_is_the_models_own_parameter() {
        let model = spec(0, vec![input("a", Datatype::Uint8, &[1])], vec![]).run_by("python");
        let body = r#"{"a":1,"id":"i","sequence_id":1.5,"priority":-1,"parameters":{"timeout":"x","a_flag":true}}"#;
        let request = decode(&model, &Bytes::from(body), &mut ReceiveReservation::default()).unwrap();
        let names: Vec<_> = request.parameters.0.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["id", "sequence_id", "priority", "timeout", "a_flag"]);
        assert_eq!((request.sequence, request.priority), (SequenceParameters::default(), 0));
        assert!(request.timeout.is_zero() && request.plan.id == "i");
    }

    fn shape_of(dims: &[i64], rows_max: u32, value: &str) -> Option<(Vec<i64>, bool)> {
        let model = spec(rows_max, vec![input("x", Datatype::Fp32, dims)], vec![]);
        let body = Bytes::from(format!(r#"{{"x":{value}}}"#));
        let request = decode(&model, &body, &mut ReceiveReservation::default()).ok()?;
        Some((request.inputs[0].shape.to_vec(), request.plan.is_nested))
    }

    #[test]
    fn rows_within_rows_have_a_shape_of_their_own() {
        let nested = |shape: &[i64]| Some((shape.to_vec(), true));
        assert_eq!(shape_of(&[2], 8, "[[1,2],[3,4],[5,6]]"), nested(&[3, 2]));
        assert_eq!(shape_of(&[2, 2], 8, "[[1,2],[3,4]]"), nested(&[1, 2, 2]), "one row without its axis");
        assert_eq!(shape_of(&[-1, -1], 0, "[[1,2,3],[4,5,6]]"), nested(&[2, 3]));
        assert_eq!(shape_of(&[2], 8, "[1,2,3,4]"), Some((vec![2, 2], false)));
        for value in ["[[1,2],[3]]", "[[1,2,3]]", "[[[1,2]]]", "[[1,2],3]"] {
            assert_eq!(shape_of(&[2], 8, value), None, "{value}");
        }
        assert_eq!(shape_of(&[2, 2, 2], 0, "[[1,2],[3,4]]"), None, "an axis of a fixed size is missing");
    }

    #[test]
    fn a_scalar_counts_for_every_row_of_the_lists_beside_it() {
        let mut model = spec(
            4,
            vec![
                input("text", Datatype::Bytes, &[1]),
                input("count", Datatype::Int32, &[1]),
                input("more", Datatype::Fp32, &[-1, 2]),
            ],
            vec![],
        );
        model.inputs[1].is_optional = true;
        model.inputs[2].is_optional = true;
        let told = |body: &str| {
            let body = Bytes::from(body.to_owned());
            let request = match decode(&model, &body, &mut ReceiveReservation::default()) {
                Ok(request) => request,
                Err(error) => return error.text().split(" (inputs").next().unwrap_or_default().to_owned(),
            };
            let shape = |tensor: &Tensor| format!("{:?} {}", tensor.shape, tensor.contents.len());
            let inputs = request.inputs.iter().filter(|input| input.is_given()).map(shape);
            inputs.collect::<Vec<_>>().join(", ")
        };
        let differs =
            |name| format!("[request id: <id_unknown>] input '{name}' batch size does not match other inputs for 'm'");
        for (body, want) in [
            (r#"{"text":"a","count":3}"#, "[1, 1] 5, [1, 1] 4"),
            (r#"{"text":["a","b","c"],"count":3}"#, "[3, 1] 15, [3, 1] 12"),
            (r#"{"count":3,"text":["a","b","c"]}"#, "[3, 1] 15, [3, 1] 12"),
            (r#"{"text":[["a"],["b"]],"count":3}"#, "[2, 1] 10, [2, 1] 8"),
            (r#"{"text":["a","b"],"count":[3,4]}"#, "[2, 1] 10, [2, 1] 8"),
            (r#"{"text":"word","count":[3,4]}"#, "[2, 1] 16, [2, 1] 8"),
            (r#"{"text":["a"],"count":3}"#, "[1, 1] 5, [1, 1] 4"),
            (r#"{"text":"a","more":[[[1,2]],[[3,4]]]}"#, "[2, 1] 10, [2, 1, 2] 16"),
            (r#"{"text":["a","b"],"count":[3]}"#, &differs("count")),
            (r#"{"text":["a","b"],"count":[3,4,5]}"#, &differs("count")),
            (
                r#"{"text":["a","b","c","d","e"],"count":3}"#,
                "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'm'",
            ),
            (
                r#"{"text":"a","parameters":{"stop":["x","y"]}}"#,
                "Converting keyword: 'parameters': parameter 'stop' has invalid type. It should be either 'int', 'bool', or \
                 'string'. A list or an object is the value of an input, or JSON text in a string.",
            ),
        ] {
            assert_eq!(told(body), want, "{body}");
        }
        let memory = |size_max: usize| {
            let memory = testing::Bytes::new(size_max);
            let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
            let body = Bytes::from_static(br#"{"text":["a","b","c"],"count":3}"#);
            decode(&model, &body, &mut reservation).is_ok()
        };
        let least = (0..200).find(|size| memory(*size));
        assert!(least.is_some_and(|least| !memory(least - 1) && least >= 12), "{least:?}");
    }

    #[test]
    fn outputs_are_nested_for_those_who_send_nested_inputs() {
        let model =
            spec(0, vec![], vec![output("y", Datatype::Bytes, &[-1, -1, -1]), output("z", Datatype::Int8, &[-1])]);
        let planned = |index| OutputPlan { index, is_binary: false, is_base64: false, class_count: 0 };
        let text = |shape: &[i64], texts: &[&str], is_nested| {
            let outputs = [planned(0), planned(1)].into_iter().collect();
            let plan = ResponsePlan { outputs, is_nested, ..ResponsePlan::default() };
            let size = |text: &&str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
            let contents = Bytes::from(texts.iter().flat_map(size).collect::<Vec<_>>());
            let strings = Tensor { datatype: Datatype::Bytes, shape: Shape::from_slice(shape), contents };
            let contents = Bytes::from_static(&[1, 2]);
            let numbers = Tensor { datatype: Datatype::Int8, shape: Shape::from_slice(&[2]), contents };
            let json = encode(&model, 1, &plan, vec![strings, numbers], None).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
            assert_eq!(json["z"], serde_json::json!([1, 2]), "one axis is flat");
            json["y"].to_string()
        };
        let four = ["a,", "\"[", "\\", "d"];
        assert_eq!(text(&[2, 1, 2], &four, true), r#"[[["a,","\"["]],[["\\","d"]]]"#);
        assert_eq!(text(&[2, 2, 1], &four, true), r#"[[["a,"],["\"["]],[["\\"],["d"]]]"#);
        assert_eq!(text(&[2, 1, 2], &four, false), r#"["a,","\"[","\\","d"]"#);
        assert_eq!(text(&[1, 1, 1], &["a"], true), r#""a""#, "one element is a scalar");
        assert_eq!(text(&[0, 1, 2], &[], true), "[]");
    }

    #[test]
    fn a_mistake_names_the_inputs_of_the_model() {
        let mut model = spec(8, vec![input("x", Datatype::Fp32, &[4]), input("o", Datatype::Bytes, &[1])], vec![]);
        model.inputs[1].is_optional = true;
        let end = "(inputs of model 'm': x FP32 [-1,4] of a multiple of 4 elements; o BYTES [-1,1] of any number of elements (optional))";
        for body in [r#"{"x":[1,2,3]}"#, r#"{"y":[1]}"#, "{}", r#"{"x":[[1,2]]}"#, r#"{"x":["a",2,3,4]}"#] {
            let error = decode(&model, &Bytes::from(body), &mut ReceiveReservation::default()).unwrap_err();
            assert!(error.text().ends_with(end), "{body}: {error}");
        }
        assert_eq!(elements_text(&[2, 3]), "6 elements");
        assert_eq!(elements_text(&[1]), "1 element");
    }
}
