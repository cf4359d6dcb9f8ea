//! The body of a prediction to an inference request. Rows are moved as text into one column for each input, and each column
//! is read like the `data` of any other request.

use std::borrow::Cow;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::check::{self, NamedTensor, check_outputs, shape_text};
use crate::infer::{InferRequest, PredictForm, ResponsePlan, SequenceParameters};
use crate::rest::data;
use crate::rest::decode::check_output_formats;
use crate::rest::fault::json_error;
use crate::rest::generate::with_inputs;
use base::budget::ReceiveReservation;
use base::error::Error;
use base::tensor::strings;
use base::tensor::{Datatype, Shape};
use model::{ModelSpec, TensorSpec};
use wire::base64;
use wire::json::{RawArray, parts};

/// The only signature: a model has one.
const SIGNATURE: &str = "serving_default";

/// The member of an object that stands for bytes.
const BYTES: &str = "b64";

type PredictTensors<'s> = SmallVec<[NamedTensor<'s>; 2]>;

/// Decodes and checks the body of a prediction. Memory that the inputs take beside the body is reserved in `memory` first.
///
/// # Errors
///
/// `InvalidArgument` if the body is malformed or does not fit the model; `Unsupported` for a decoupled model.
pub fn decode(spec: &ModelSpec, body: &Bytes, memory: &mut ReceiveReservation) -> Result<InferRequest, Error> {
    if spec.is_decoupled {
        return Err(Error::unsupported(format!(
            "model '{}' answers any number of times (decoupled), and a prediction has one answer: use generate_stream",
            spec.name
        )));
    }
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    parts::validate(text).map_err(json_error)?;
    let members = PredictMembers::read(text.trim_ascii())?;
    let mut read = || match (members.instances, members.inputs) {
        (Some(rows), None) => decode_rows(spec, rows, memory),
        (None, Some(inputs)) => Ok((decode_columns(spec, inputs, memory)?, PredictForm::Columns)),
        (Some(_), Some(_)) => Err(Error::invalid("the body has both 'instances' and 'inputs': expected one of them")),
        (None, None) => Err(Error::invalid(
            "the body has neither 'instances', a list of rows, nor 'inputs', whole tensors: expected one of them",
        )),
    };
    let (mut tensors, predict) = read().map_err(|error| with_inputs(error, spec))?;
    let outputs = check_outputs(spec, "", &[], false)?;
    check_output_formats(spec, &outputs)?;
    let (inputs, rows) = check::check(spec, "", &mut tensors).map_err(|error| with_inputs(error, spec))?;
    let sequence = SequenceParameters::default();
    check::check_sequence(spec, &sequence, rows)?;
    let repeated = ResponsePlan::repeated(spec, &sequence);
    let plan = ResponsePlan { outputs, repeated, predict, ..ResponsePlan::default() };
    let (priority, timeout, parameters) = Default::default();
    Ok(InferRequest { inputs, rows, priority, timeout, sequence, parameters, plan })
}

/// The members of a body, as texts. Others are ignored.
#[derive(Default)]
struct PredictMembers<'a> {
    instances: Option<&'a [u8]>,
    inputs: Option<&'a [u8]>,
}

impl<'a> PredictMembers<'a> {
    /// Finds them; of two with the same name the first counts.
    fn read(text: &'a [u8]) -> Result<Self, Error> {
        if text.first() != Some(&b'{') {
            return Err(Error::malformed_json(
                "the body is not an object: expected {\"instances\": [...]} or {\"inputs\": ...}",
            ));
        }
        let mut found = Self::default();
        for (name, value) in parts::members(text).filter(|(_, value)| *value != b"null") {
            match &*name {
                "instances" => found.instances = found.instances.or(Some(value)),
                "inputs" => found.inputs = found.inputs.or(Some(value)),
                "signature_name" => check_signature(value)?,
                _ => {}
            }
        }
        Ok(found)
    }
}

fn check_signature(value: &[u8]) -> Result<(), Error> {
    match parts::string(value).as_deref() {
        Some("" | SIGNATURE) => Ok(()),
        Some(name) => Err(Error::invalid(format!(
            "signature_name is '{name}': a model has the only signature '{SIGNATURE}'; leave the member out"
        ))),
        None => Err(Error::malformed_json("signature_name is not a string")),
    }
}

/// Returns true for `{"b64": …}`, unless the model has an input of that name.
fn is_bytes(spec: &ModelSpec, value: &[u8]) -> bool {
    let mut members = parts::members(value);
    let only = (members.next(), members.next());
    matches!(only, (Some((name, _)), None) if name == BYTES) && spec.input_index(BYTES).is_none()
}

/// Returns true for an object whose members are inputs.
fn is_named(spec: &ModelSpec, value: &[u8]) -> bool {
    value.first() == Some(&b'{') && !is_bytes(spec, value)
}

/// Decodes `inputs`: an object of whole tensors, or the tensor of the only input.
fn decode_columns<'s>(
    spec: &'s ModelSpec,
    value: &[u8],
    memory: &mut ReceiveReservation,
) -> Result<PredictTensors<'s>, Error> {
    let mut tensors = PredictTensors::new();
    if !is_named(spec, value) {
        tensors.push(decode_tensor(spec, only_input(spec, "'inputs'")?, value, memory)?);
        return Ok(tensors);
    }
    for (name, value) in parts::members(value) {
        let input = find_input(spec, &name)?;
        if input.is_optional && value == b"null" {
            continue;
        }
        if tensors.iter().any(|have| have.name == input.name) {
            return Err(Error::invalid(format!("'inputs' has input '{name}' twice")));
        }
        tensors.push(decode_tensor(spec, input, value, memory)?);
    }
    Ok(tensors)
}

/// The values of one input in rows that were read so far.
#[derive(Clone, Default)]
struct RowColumn {
    /// A list of them, without the closing bracket.
    text: Vec<u8>,
    count: usize,
}

/// Decodes `instances`: a list of rows, each an object, or a value of the only input.
fn decode_rows<'s>(
    spec: &'s ModelSpec,
    value: &[u8],
    memory: &mut ReceiveReservation,
) -> Result<(PredictTensors<'s>, PredictForm), Error> {
    if value.first() != Some(&b'[') {
        return Err(Error::invalid("'instances' is not a list: expected one element for each row"));
    }
    let mut tensors = PredictTensors::new();
    let Some(first) = parts::elements(value).next() else {
        return Err(Error::invalid("'instances' is empty: expected one element for each row"));
    };
    if !is_named(spec, first) {
        tensors.push(decode_tensor(spec, only_input(spec, "a row of 'instances'")?, value, memory)?);
        return Ok((tensors, PredictForm::Rows(parts::elements(value).count())));
    }
    memory.grow(value.len())?;
    let mut columns: SmallVec<[RowColumn; 4]> = SmallVec::from_elem(RowColumn::default(), spec.inputs.len());
    let mut rows = 0_usize;
    for (row, value) in parts::elements(value).enumerate() {
        take_row(spec, row, value, &mut columns)?;
        rows = rows.saturating_add(1);
    }
    for (input, mut column) in spec.inputs.iter().zip(columns).filter(|(_, column)| column.count > 0) {
        if column.count < rows {
            return Err(missing_in(column.count, &input.name));
        }
        column.text.push(b']');
        tensors.push(decode_tensor(spec, input, &column.text, memory)?);
    }
    Ok((tensors, PredictForm::Rows(rows)))
}

/// Appends the values of a row to their columns.
fn take_row(spec: &ModelSpec, row: usize, value: &[u8], columns: &mut [RowColumn]) -> Result<(), Error> {
    if !is_named(spec, value) {
        let text = format!("row {row} of 'instances' is not an object of inputs by name, as the rows before it are");
        return Err(Error::invalid(text));
    }
    for (name, value) in parts::members(value) {
        let input = find_input(spec, &name)?;
        if input.is_optional && value == b"null" {
            continue;
        }
        let Some(column) = spec.input_index(&name).and_then(|index| columns.get_mut(index)) else { continue };
        if column.count > row {
            return Err(Error::invalid(format!("row {row} of 'instances' has input '{name}' twice")));
        }
        if column.count < row {
            return Err(missing_in(column.count, &name));
        }
        column.text.push(if row == 0 { b'[' } else { b',' });
        column.text.extend_from_slice(value);
        column.count = column.count.saturating_add(1);
    }
    Ok(())
}

fn missing_in(row: usize, name: &str) -> Error {
    Error::invalid(format!("row {row} of 'instances' lacks input '{name}', which another row has"))
}

fn find_input<'s>(spec: &'s ModelSpec, name: &str) -> Result<&'s TensorSpec, Error> {
    let found = spec.input_index(name).and_then(|index| spec.inputs.get(index));
    found.ok_or_else(|| Error::invalid(format!("unexpected inference input '{name}' for model '{}'", spec.name)))
}

/// The input of a value without a name: the only one, or the only one that is required.
fn only_input<'s>(spec: &'s ModelSpec, place: &str) -> Result<&'s TensorSpec, Error> {
    let mut required = spec.inputs.iter().filter(|input| !input.is_optional);
    match (spec.inputs.as_slice(), required.next(), required.next()) {
        ([input], ..) | (_, Some(input), None) => Ok(input),
        _ => Err(Error::invalid(format!(
            "model '{}' has {} inputs, and {place} has no names: expected an object of inputs by name",
            spec.name,
            spec.inputs.len()
        ))),
    }
}

/// Decodes a tensor: a scalar, or lists within lists that have its shape.
fn decode_tensor<'s>(
    spec: &ModelSpec,
    input: &'s TensorSpec,
    value: &[u8],
    memory: &mut ReceiveReservation,
) -> Result<NamedTensor<'s>, Error> {
    let (name, datatype) = (input.name.as_str(), input.datatype);
    let (mut text, is_scalar) = (Cow::Borrowed(value), value.first() != Some(&b'['));
    if is_scalar {
        memory.grow(value.len())?;
        text = Cow::Owned([b"[", value, b"]"].concat());
    }
    let mut contents = None;
    if datatype == Datatype::Bytes && text.contains(&b'{') {
        memory.grow(text.len().saturating_mul(2))?;
        let (outline, decoded) = decode_bytes(name, &text)?;
        (text, contents) = (Cow::Owned(outline), Some(decoded));
    }
    let array = RawArray::new(&text);
    let irregular = || {
        let text = format!("input '{name}' is irregular: lists of one depth differ in length, or hold other values");
        Error::invalid(text)
    };
    let own = array.shape().ok_or_else(irregular)?;
    let own = if is_scalar { &[] } else { own.as_slice() };
    let shape = fitted_shape(&input.shape, own).ok_or_else(|| misfit(spec, input, own))?;
    let contents = match contents {
        Some(contents) => contents,
        None => data::decode_array(name, Some(datatype), &shape, &array, memory)?,
    };
    Ok(NamedTensor::new(name, Some(datatype), shape, contents))
}

/// Reads the strings of an array in which objects stand for bytes. Returns the array with an empty string for each, which
/// has its shape, and the contents.
fn decode_bytes(name: &str, text: &[u8]) -> Result<(Vec<u8>, Bytes), Error> {
    let (mut outline, mut contents) = (Vec::with_capacity(text.len()), Vec::with_capacity(text.len()));
    let (mut rest, mut index) = (text, 0_usize);
    while let Some(first) = rest.first() {
        let size = if matches!(first, b'"' | b'{') { parts::extent(rest) } else { 1 };
        let Some((value, after)) = rest.split_at_checked(size) else { break };
        match first {
            b'[' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' => outline.push(*first),
            _ => {
                let element = element_bytes(value)
                    .map_err(|what| Error::invalid(format!("element {index} of input '{name}' {what}")))?;
                strings::encode(&element, &mut contents);
                outline.extend_from_slice(b"\"\"");
                index = index.saturating_add(1);
            }
        }
        rest = after;
    }
    Ok((outline, Bytes::from(contents)))
}

/// The bytes of a string, or of an object that stands for them; or the fault.
fn element_bytes(value: &[u8]) -> Result<Vec<u8>, &'static str> {
    if let Some(text) = parts::string(value) {
        return Ok(text.into_owned().into_bytes());
    }
    let mut members = parts::members(value);
    match (members.next(), members.next()) {
        (Some((name, text)), None) if name == BYTES => {
            let text = parts::string(text).ok_or("has a 'b64' that is not a string")?;
            base64::decode(&text).ok_or("is not base64 (RFC 4648, section 4)")
        }
        _ => Err("is neither a string nor {\"b64\": ...}, as BYTES requires"),
    }
}

/// The shape of a tensor: its first axis is that of the rows, axes that a row lacks in front are 1. `None` if it is not of
/// the model's shape.
fn fitted_shape(expected: &[i64], own: &[usize]) -> Option<Shape> {
    let Some((own_first, own)) = own.split_first() else {
        return expected.iter().all(|size| [-1, 1].contains(size)).then(|| expected.iter().map(|_| 1).collect());
    };
    let (first, expected) = expected.split_first()?;
    let (missing, last) = expected.split_at_checked(expected.len().checked_sub(own.len())?)?;
    let is_open = missing.iter().all(|size| [-1, 1].contains(size));
    let mut shape: Shape = [i64::try_from(*own_first).ok()?].into_iter().chain(missing.iter().map(|_| 1)).collect();
    let mut fits = is_open && (*first == -1 || shape.first() == Some(first));
    for (size, expected) in own.iter().zip(last) {
        let size = i64::try_from(*size).ok()?;
        fits &= *expected == -1 || *expected == size;
        shape.push(size);
    }
    fits.then_some(shape)
}

/// The refusal of a tensor of another shape than the model's.
fn misfit(spec: &ModelSpec, input: &TensorSpec, own: &[usize]) -> Error {
    let own: Shape = own.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect();
    let axis = if spec.has_batch_axis() {
        "whose first axis counts the rows"
    } else {
        "without a batch axis (max_batch_size is 0): 'instances' are stacked along its first axis, 'inputs' is the whole tensor"
    };
    Error::invalid(format!(
        "input '{}' has the shape {}, and model '{}' takes {}, {axis}",
        input.name,
        shape_text(&own),
        spec.name,
        shape_text(&input.shape)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, output, spec};

    /// The inputs of a decoded body with their shapes and contents, and its form; or its error.
    fn outcome(spec: &ModelSpec, body: &str) -> String {
        match decode(spec, &Bytes::from(body.to_owned()), &mut ReceiveReservation::default()) {
            Ok(request) => {
                let show = |tensor: &base::tensor::Tensor| format!("{:?}{:?}", tensor.shape, &tensor.contents[..]);
                let tensors: Vec<_> = request.inputs.iter().map(show).collect();
                format!("{} {:?}", tensors.join(" "), request.plan.predict)
            }
            Err(error) => {
                let text = error.text().split(" (inputs of model").next().unwrap_or_default().to_owned();
                format!("{} {text}", error.code().on_wire().0)
            }
        }
    }

    fn model(rows_max: u32, inputs: &[(&str, Datatype, &[i64])]) -> ModelSpec {
        let inputs = inputs.iter().map(|(name, datatype, dims)| input(name, *datatype, dims)).collect();
        spec(rows_max, inputs, vec![output("y", Datatype::Uint8, &[-1])])
    }

    #[test]
    fn rows_and_columns_of_one_input_have_no_name() {
        let bytes = model(8, &[("x", Datatype::Uint8, &[2])]);
        let check = |body: &str, want: &str| assert_eq!(outcome(&bytes, body), want, "{body}");
        check(r#"{"instances":[[1,2],[3,4],[5,6]]}"#, "[3, 2][1, 2, 3, 4, 5, 6] Rows(3)");
        check(r#"{"inputs":[[1,2],[3,4]]}"#, "[2, 2][1, 2, 3, 4] Columns");
        check(r#"{"inputs":{"x":[[1,2]]},"signature_name":"serving_default"}"#, "[1, 2][1, 2] Columns");
        check(r#"{"instances":[{"x":[1,2]} , {"x": [3,4] }],"signature_name":null}"#, "[2, 2][1, 2, 3, 4] Rows(2)");
        check("\u{feff} {\"instances\" : [ [1 , 2] ] , \"other\":{}} ", "[1, 2][1, 2] Rows(1)");
        let one = model(8, &[("x", Datatype::Uint8, &[1])]);
        let check = |body: &str, want: &str| assert_eq!(outcome(&one, body), want, "{body}");
        check(r#"{"instances":[1,2,3]}"#, "[3, 1][1, 2, 3] Rows(3)");
        check(r#"{"instances":[[1],[2]]}"#, "[2, 1][1, 2] Rows(2)");
        check(r#"{"inputs":[1,2]}"#, "[2, 1][1, 2] Columns");
        check(r#"{"inputs":7}"#, "[1, 1][7] Columns");
        let deep = model(8, &[("x", Datatype::Uint8, &[-1, 1, 2])]);
        assert_eq!(outcome(&deep, r#"{"instances":[[1,2],[3,4]]}"#), "[2, 1, 1, 2][1, 2, 3, 4] Rows(2)");
        assert_eq!(outcome(&deep, r#"{"instances":[[[1,2]],[[3,4]]]}"#), "[2, 1, 1, 2][1, 2, 3, 4] Rows(2)");
    }

    #[test]
    fn several_inputs_are_named_in_each_row() {
        let mut two = model(8, &[("a", Datatype::Uint8, &[1]), ("b", Datatype::Bytes, &[1])]);
        let check = |spec: &ModelSpec, body: &str, want: &str| assert_eq!(outcome(spec, body), want, "{body}");
        let text = "[2, 1][1, 2] [2, 1][1, 0, 0, 0, 120, 2, 0, 0, 0, 123, 44] ";
        check(&two, r#"{"instances":[{"a":1,"b":"x"},{"b":"{,","a":2}]}"#, &format!("{text}Rows(2)"));
        check(&two, r#"{"inputs":{"a":[1,2],"b":["x","{,"]}}"#, &format!("{text}Columns"));
        let lacks = "row 1 of 'instances' lacks input 'b', which another row has";
        check(&two, r#"{"instances":[{"a":1,"b":"x"},{"a":2}]}"#, &format!("400 {lacks}"));
        check(&two, r#"{"instances":[{"a":1,"b":"x"},{"a":2},{"a":2,"b":"x"}]}"#, &format!("400 {lacks}"));
        check(&two, r#"{"instances":[{"a":1,"a":1}]}"#, "400 row 0 of 'instances' has input 'a' twice");
        check(&two, r#"{"inputs":{"a":[1],"a":[1]}}"#, "400 'inputs' has input 'a' twice");
        check(&two, r#"{"instances":[{"z":1}]}"#, "400 unexpected inference input 'z' for model 'm'");
        check(&two, r#"{"inputs":{"z":1}}"#, "400 unexpected inference input 'z' for model 'm'");
        let rest = "is not an object of inputs by name, as the rows before it are";
        check(&two, r#"{"instances":[{"a":1,"b":"x"},2]}"#, &format!("400 row 1 of 'instances' {rest}"));
        let names = "has no names: expected an object of inputs by name";
        check(&two, r#"{"instances":[1]}"#, &format!("400 model 'm' has 2 inputs, and a row of 'instances' {names}"));
        check(&two, r#"{"inputs":[1]}"#, &format!("400 model 'm' has 2 inputs, and 'inputs' {names}"));
        two.inputs[1].is_optional = true;
        check(&two, r#"{"instances":[1]}"#, "[1, 1][1] [][] Rows(1)");
        check(&two, r#"{"instances":[{"a":1,"b":null}]}"#, "[1, 1][1] [][] Rows(1)");
        check(&two, r#"{"inputs":{"a":1,"b":null}}"#, "[1, 1][1] [][] Columns");
        let missing = outcome(&two, r#"{"inputs":{"b":["x"]}}"#);
        assert!(missing.contains("missing required input(s) ['a']"), "{missing}");
    }

    #[test]
    fn objects_with_b64_are_bytes() {
        let text = model(8, &[("x", Datatype::Bytes, &[1])]);
        let check = |body: &str, want: &str| assert_eq!(outcome(&text, body), want, "{body}");
        check(r#"{"instances":[{"b64":"/wA="},"a\n"]}"#, "[2, 1][2, 0, 0, 0, 255, 0, 2, 0, 0, 0, 97, 10] Rows(2)");
        check(r#"{"instances":[{"x":{"b64":"/w"}}]}"#, "[1, 1][1, 0, 0, 0, 255] Rows(1)");
        check(r#"{"inputs":{"b64":"/w=="}}"#, "[1, 1][1, 0, 0, 0, 255] Columns");
        check(r#"{"inputs":[[{"b64":""}],["{"]]}"#, "[2, 1][0, 0, 0, 0, 1, 0, 0, 0, 123] Columns");
        check(r#"{"inputs":["a",{"b64":"*"}]}"#, "400 element 1 of input 'x' is not base64 (RFC 4648, section 4)");
        check(r#"{"inputs":["a",{"b64":1}]}"#, "400 element 1 of input 'x' has a 'b64' that is not a string");
        let neither = "is neither a string nor {\"b64\": ...}, as BYTES requires";
        check(r#"{"inputs":[{"b64":"","c":1}]}"#, &format!("400 element 0 of input 'x' {neither}"));
        check(r#"{"inputs":[{"b64":"/w"},1]}"#, &format!("400 element 1 of input 'x' {neither}"));
        // An input may have that name.
        let own = model(8, &[("b64", Datatype::Uint8, &[1])]);
        assert_eq!(outcome(&own, r#"{"instances":[{"b64":1}]}"#), "[1, 1][1] Rows(1)");
        let numbers = model(8, &[("x", Datatype::Uint8, &[1])]);
        let irregular = "400 input 'x' is irregular: lists of one depth differ in length, or hold other values";
        for body in [r#"{"instances":[{"b64":"/w"}]}"#, r#"{"inputs":{"b64":"/w"}}"#, r#"{"inputs":[[1],[1,2]]}"#] {
            assert_eq!(outcome(&numbers, body), irregular, "{body}");
        }
    }

    #[test]
    fn a_model_without_a_batch_axis_stacks_rows_along_its_first_one() {
        let fixed = model(0, &[("x", Datatype::Uint8, &[2, 2])]);
        let check = |spec: &ModelSpec, body: &str, want: &str| assert_eq!(outcome(spec, body), want, "{body}");
        check(&fixed, r#"{"instances":[[1,2],[3,4]]}"#, "[2, 2][1, 2, 3, 4] Rows(2)");
        check(&fixed, r#"{"inputs":[[1,2],[3,4]]}"#, "[2, 2][1, 2, 3, 4] Columns");
        let told = |own: &str| {
            format!(
                "400 input 'x' has the shape {own}, and model 'm' takes [2,2], without a batch axis (max_batch_size is \
                 0): 'instances' are stacked along its first axis, 'inputs' is the whole tensor"
            )
        };
        check(&fixed, r#"{"instances":[[[1,2],[3,4]]]}"#, &told("[1,2,2]"));
        check(&fixed, r#"{"instances":[[1,2]]}"#, &told("[1,2]"));
        check(&fixed, r#"{"inputs":[1,2,3,4]}"#, &told("[4]"));
        let open = model(0, &[("x", Datatype::Uint8, &[-1])]);
        check(&open, r#"{"instances":[1,2,3]}"#, "[3][1, 2, 3] Rows(3)");
        check(&open, r#"{"inputs":[]}"#, "[0][] Columns");
        let scalar = model(0, &[("x", Datatype::Uint8, &[])]);
        check(&scalar, r#"{"inputs":5}"#, "[][5] Columns");
        assert!(outcome(&scalar, r#"{"instances":[5]}"#).starts_with("400 input 'x' has the shape [1]"));
    }

    #[test]
    fn a_mistake_names_what_was_expected() {
        let spec = model(2, &[("x", Datatype::Uint8, &[2])]);
        let check = |body: &str, want: &str| {
            let got = outcome(&spec, body);
            assert!(got.starts_with(want), "{body}: {got}");
        };
        check("", "400 failed to parse the request JSON buffer: The document is empty. at 0");
        check(r#"{"instances":[[1,2}"#, "400 failed to parse the request JSON buffer: Missing a comma or ']'");
        check("[1]", "400 the body is not an object: expected {\"instances\": [...]} or {\"inputs\": ...}");
        check("{}", "400 the body has neither 'instances', a list of rows, nor 'inputs', whole tensors");
        check(r#"{"instances":[[1,2]],"inputs":[[1,2]]}"#, "400 the body has both 'instances' and 'inputs'");
        check(r#"{"instances":1}"#, "400 'instances' is not a list");
        check(r#"{"instances":[]}"#, "400 'instances' is empty");
        check(
            r#"{"signature_name":"other","inputs":1}"#,
            "400 signature_name is 'other': a model has the only signature",
        );
        check(r#"{"signature_name":1,"inputs":1}"#, "400 signature_name is not a string");
        check(
            r#"{"instances":[[1,2,3]]}"#,
            "400 input 'x' has the shape [1,3], and model 'm' takes [-1,2], whose first",
        );
        check(
            r#"{"instances":[[1,300]]}"#,
            "400 Unable to parse 'data': element 1 of input 'x' is 300, which is out of",
        );
        check(
            r#"{"instances":[["a","b"]]}"#,
            "400 Unable to parse 'data': attempt to access JSON non-unsigned-integer",
        );
        check(
            r#"{"instances":[[1,2],[1,2],[1,2]]}"#,
            "400 [request id: <id_unknown>] inference request batch-size must",
        );
        let body = Bytes::from(r#"{"instances":[[1]]}"#);
        let error = decode(&spec, &body, &mut ReceiveReservation::default()).unwrap_err();
        assert!(error.text().ends_with("(inputs of model 'm': x UINT8 [-1,2] of a multiple of 2 elements)"), "{error}");
        let decoupled = ModelSpec { is_decoupled: true, ..spec };
        assert!(outcome(&decoupled, "{}").starts_with("501 model 'm' answers any number of times (decoupled)"));
    }

    #[test]
    fn columns_and_decoded_bytes_take_memory() {
        use std::rc::Rc;

        use base::budget::{ReceiveBudget, testing};
        let spec = model(8, &[("x", Datatype::Bytes, &[1])]);
        let body = Bytes::from(r#"{"instances":[{"x":{"b64":"AAAA"}}]}"#);
        let fits = |size_max: usize| {
            let memory = testing::Bytes::new(size_max);
            let mut reservation = ReceiveReservation::new(Some(Rc::clone(&memory) as Rc<dyn ReceiveBudget>));
            decode(&spec, &body, &mut reservation).is_ok()
        };
        // The rows, and the column twice.
        assert!(fits(22 + 2 * 16) && !fits(22 + 2 * 16 - 1) && !fits(21));
    }
}
