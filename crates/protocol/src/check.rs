//! Checks the tensors of a request against its model: names, datatypes, shapes, rows, sizes. Both the REST
//! and the gRPC decoder call it after parsing, so that both refuse the same request with the same text, which is
//! Triton's (`infer_request.cc`, `Normalize`). Knows no JSON and no protobuf. Its work is linear in the size of
//! the request.

use std::fmt::Write as _;
use std::mem::take;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::infer::{OutputPlan, SequenceParameters};
use crate::shared_memory::{RegionSlice, Regions, SharedTensors};
use base::error::Error;
use base::limits::SEQUENCE_ID_SIZE_MAX;
use base::tensor::strings::{Strings, StringsError};
use base::tensor::{Datatype, Shape, SizeError, Tensor, byte_size, element_count};
use model::{ControlKind, CorrelationId, ModelSpec, TensorSpec};

/// An input as the request gives it, not yet checked against the model.
#[derive(Clone, Debug)]
pub struct NamedTensor<'a> {
    /// Its name in the request.
    pub name: &'a str,
    /// The datatype; `None` if the request names one that the protocol does not define.
    pub datatype: Option<Datatype>,
    /// The full shape, batch axis included; dimensions may be negative.
    pub shape: Shape,
    /// The elements as raw contents; empty if they are in shared memory.
    pub contents: Bytes,
    /// The location of the elements in shared memory, if they are there.
    pub shared: Option<RegionSlice>,
}

impl<'a> NamedTensor<'a> {
    /// An input whose elements are in the request.
    pub const fn new(name: &'a str, datatype: Option<Datatype>, shape: Shape, contents: Bytes) -> Self {
        Self { name, datatype, shape, contents, shared: None }
    }

    /// The size of its elements in bytes, in the request or in shared memory.
    fn size(&self) -> usize {
        self.shared.as_ref().map_or(self.contents.len(), RegionSlice::size)
    }
}

/// An output that the request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedOutput<'a> {
    /// Its name in the request.
    pub name: &'a str,
    /// True to send it as binary data (REST only).
    pub is_binary: bool,
    /// True to send its strings as base64 (REST only).
    pub is_base64: bool,
    /// Number of best classes to send instead of the tensor; 0 sends the tensor.
    pub class_count: u32,
}

/// Checks what a model with a sequence batcher requires of a request: one row, and a correlation id of the type
/// that its control input has. Other models accept any. The texts are Triton's
/// (`sequence_batch_scheduler.cc`), without the request's id.
///
/// # Errors
///
/// `InvalidArgument` if the request has several rows, no correlation id, or one of the wrong type.
pub fn check_sequence(spec: &ModelSpec, asked: &SequenceParameters, rows: u32) -> Result<(), Error> {
    let (Some(sequence), model) = (&spec.sequence, &spec.name) else { return Ok(()) };
    if rows != 1 {
        return Err(Error::invalid(format!(
            "inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
        )));
    }
    let Some(id) = &asked.id else {
        if sequence.is_iterative {
            // The scheduler assigns an id: each request is a sequence of its own.
            return Ok(());
        }
        return Err(Error::invalid(format!(
            "inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
        )));
    };
    let control = sequence.controls.iter().find(|control| control.kind == ControlKind::CorrelationId);
    let Some(control) = control else { return Ok(()) };
    let is_text = matches!(id, CorrelationId::Text(_));
    if is_text == (control.datatype == Datatype::Bytes) {
        return Ok(());
    }
    let given = if is_text { Datatype::Bytes } else { Datatype::Uint64 };
    Err(Error::invalid(format!(
        "sequence batching control '{}' data-type is '{}', but model '{model}' expects '{}'",
        control.name,
        given.name(),
        control.datatype.name()
    )))
}

/// The correlation id of a `sequence_id` that is a string; `None` if empty.
///
/// # Errors
///
/// `Unsupported` if it is longer than [`SEQUENCE_ID_SIZE_MAX`] bytes.
pub fn sequence_text(text: &str) -> Result<Option<CorrelationId>, Error> {
    if text.len() > SEQUENCE_ID_SIZE_MAX {
        // The limit counts bytes, as Triton's does although its text says characters.
        let text = format!("string correlation ID cannot be longer than {SEQUENCE_ID_SIZE_MAX} characters");
        return Err(Error::unsupported(text));
    }
    Ok(CorrelationId::from_text(text))
}

/// The name of the field by which a client tells load balancers which sequence a request belongs
/// to: an HTTP header field, or metadata of a call.
pub const SEQUENCE_FIELD: &str = "sequence-id";

/// Checks that the sequence that a client tells load balancers is the one that its request names. A
/// request outside of sequences may have any value.
///
/// # Errors
///
/// `InvalidArgument` if they differ: load balancers would split the sequence.
pub fn sequence_field(field: Option<&[u8]>, id: Option<&CorrelationId>) -> Result<(), Error> {
    let (Some(field), Some(id)) = (field, id) else { return Ok(()) };
    if id.is_written_as(field) {
        return Ok(());
    }
    let told = String::from_utf8_lossy(field.get(..field.len().min(SEQUENCE_ID_SIZE_MAX)).unwrap_or_default());
    Err(Error::invalid(format!(
        "the header '{SEQUENCE_FIELD}' is '{}' and the parameter 'sequence_id' is '{id}': expected the same sequence",
        told.escape_debug()
    )))
}

/// The prefix that Triton's core puts before its error texts: `[request id: 42] `.
#[inline]
pub fn prefix(id: &str) -> String {
    format!("[request id: {}] ", if id.is_empty() { "<id_unknown>" } else { id })
}

/// Checks all inputs and moves them out, in the order of the model's inputs; also returns the number of rows. An
/// optional input that the request leaves out becomes a tensor of empty shape without contents.
///
/// # Errors
///
/// `InvalidArgument` for the first input that does not fit the model, or if one is missing.
pub fn check(spec: &ModelSpec, id: &str, inputs: &mut [NamedTensor<'_>]) -> Result<(Vec<Tensor>, u32), Error> {
    // For each of the model's inputs, its index in the request.
    let mut slots: SmallVec<[Option<usize>; 8]> = SmallVec::from_elem(None, spec.inputs.len());
    let mut unexpected = None;
    for (index, input) in inputs.iter().enumerate() {
        match spec.input_index(input.name).and_then(|at| slots.get_mut(at)) {
            None => unexpected = unexpected.or(Some(input.name)),
            Some(Some(_)) => {
                return Err(refusal(id, format!("input '{}' already exists in request", input.name)));
            }
            Some(slot) => *slot = Some(index),
        }
    }
    check_counts(spec, id, inputs, &slots)?;
    if let Some(name) = unexpected {
        return Err(Error::invalid(format!("unexpected inference input '{name}' for model '{}'", spec.name)));
    }
    // In the model's order, so that the fault reported does not depend on the order in the request.
    let given = spec.inputs.iter().zip(&slots).filter_map(|(expected, slot)| Some((expected, inputs.get((*slot)?)?)));
    let with_rows = given.clone().filter(|(expected, _)| !expected.is_shape_tensor);
    let rows = check_rows(spec, id, with_rows.map(|(_, input)| input))?;
    for (expected, input) in given {
        check_input(spec, id, input, expected)?;
    }
    Ok((into_model_order(spec, inputs, &slots), rows.unwrap_or(1)))
}

/// Plans the outputs that a request asks for, or all but those on request if it names none (as binary data if
/// `default_is_binary`). They are in the model's order, in which Triton's backends send them.
///
/// # Errors
///
/// `InvalidArgument` if an output is unknown or named twice.
pub fn check_outputs(
    spec: &ModelSpec,
    id: &str,
    asked: &[AskedOutput<'_>],
    default_is_binary: bool,
) -> Result<SmallVec<[OutputPlan; 2]>, Error> {
    if asked.is_empty() {
        let plan = |index| OutputPlan { index, is_binary: default_is_binary, is_base64: false, class_count: 0 };
        if spec.outputs_on_request().is_empty() {
            return Ok((0..spec.outputs.len()).map(plan).collect());
        }
        let sent = spec.outputs.iter().enumerate().filter(|(_, output)| spec.is_usual_output(&output.name));
        return Ok(sent.map(|(index, _)| plan(index)).collect());
    }
    let mut is_taken: SmallVec<[bool; 16]> = SmallVec::from_elem(false, spec.outputs.len());
    let mut unexpected = None;
    let mut plans: SmallVec<[OutputPlan; 2]> = SmallVec::new();
    for output in asked {
        let Some(index) = spec.output_index(output.name) else {
            unexpected = unexpected.or(Some(output.name));
            continue;
        };
        if is_taken.get_mut(index).is_some_and(|is_taken| std::mem::replace(is_taken, true)) {
            return Err(refusal(id, format!("output '{}' already exists in request", output.name)));
        }
        plans.push(OutputPlan {
            index,
            is_binary: output.is_binary,
            is_base64: output.is_base64,
            class_count: output.class_count,
        });
    }
    match unexpected {
        Some(name) => Err(Error::invalid(format!("unexpected inference output '{name}' for model '{}'", spec.name))),
        None => {
            plans.sort_unstable_by_key(|plan| plan.index);
            Ok(plans)
        }
    }
}

/// Checks that the classification extension supports a datatype: its elements must be numbers.
///
/// # Errors
///
/// `InvalidArgument` for `BOOL` and `BYTES`.
pub fn check_classes(datatype: Datatype) -> Result<(), Error> {
    match datatype {
        Datatype::Bool | Datatype::Bytes => Err(Error::invalid(format!(
            "class result not available for output due to unsupported type '{}'",
            datatype.name()
        ))),
        _ => Ok(()),
    }
}

/// A shape as Triton's texts show it: `[-1,4]`.
pub fn shape_text(shape: &[i64]) -> String {
    let mut text = String::from("[");
    for (index, dimension) in shape.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        write!(text, "{separator}{dimension}").expect("a String takes any text");
    }
    text.push(']');
    text
}

/// Triton's error for a shape whose element count fits and whose size in bytes does not.
pub fn byte_size_overflow(name: &str, datatype: Datatype, shape: &[i64]) -> Option<Error> {
    let (count, size) = (element_count(shape).ok()?, datatype.size()?);
    let most = i64::MAX;
    byte_size(datatype, shape).is_err().then(|| {
        Error::invalid(format!(
            "byte size overflow for input '{name}': element count ({count}) * data type size ({size}) exceeds maximum \
             allowed size ({most})"
        ))
    })
}

/// Triton's error for a shape whose element count overflows.
pub fn shape_overflow(name: &str, shape: &[i64]) -> Error {
    Error::invalid(format!(
        "invalid shape for input '{name}': shape {} causes total element count to exceed maximum size of {}",
        shape_text(shape),
        i64::MAX
    ))
}

/// An error of Triton's core, whose text begins with the request's id.
pub(crate) fn refusal(id: &str, text: String) -> Error {
    Error::invalid(text).with_prefix(&prefix(id))
}

/// Triton's error for contents whose size does not match the shape. Sizes are in bytes.
pub(crate) fn size_mismatch(spec: &ModelSpec, id: &str, name: &str, expected: usize, got: usize) -> Error {
    let model = &spec.name;
    refusal(
        id,
        format!("input byte size mismatch for input '{name}' for model '{model}'. Expected {expected}, got {got}"),
    )
}

/// Refuses a request with too few or too many inputs, or without a required one.
fn check_counts(spec: &ModelSpec, id: &str, inputs: &[NamedTensor<'_>], slots: &[Option<usize>]) -> Result<(), Error> {
    let required = spec.inputs.iter().filter(|input| !input.is_optional).count();
    let is_missing = |(input, slot): &(&TensorSpec, &Option<usize>)| !input.is_optional && slot.is_none();
    let mut missing = spec.inputs.iter().zip(slots).filter(is_missing).map(|(input, _)| input.name.as_str()).peekable();
    let is_in_range = (required..=spec.inputs.len()).contains(&inputs.len());
    let has_unknown = inputs.len() > slots.iter().flatten().count();
    // If the count is right but a name is unknown, the caller reports the name: it says more than a missing input.
    if is_in_range && (missing.peek().is_none() || has_unknown) {
        return Ok(());
    }
    let most = spec.inputs.len();
    let expected = if required == most {
        format!("expected {most} inputs")
    } else {
        format!("expected number of inputs between {required} and {most}")
    };
    let text = format!(
        "{expected} but got {} inputs for model '{}'. Got input(s) {}, but missing required input(s) {}. \
         Please provide all required input(s).",
        inputs.len(),
        spec.name,
        name_list(inputs.iter().map(|input| input.name)),
        name_list(missing),
    );
    Err(refusal(id, text))
}

/// Names as Triton lists them: `['A','B']`.
fn name_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.map(|name| format!("'{name}'")).collect();
    format!("[{}]", names.join(","))
}

/// The end of a refusal of more rows than a model takes whose configuration does not state their number.
const DERIVED_ROWS: &str = "; max_batch_size was derived from the model's file: set it in config.pbtxt for more rows";

/// The size of the batch axis, which must be the same for all inputs; `None` for a model without a batch axis.
fn check_rows<'a>(
    spec: &ModelSpec,
    id: &str,
    inputs: impl Iterator<Item = &'a NamedTensor<'a>>,
) -> Result<Option<u32>, Error> {
    if !spec.has_batch_axis() {
        return Ok(None);
    }
    let model = &spec.name;
    let mut rows = None;
    for NamedTensor { name, shape, .. } in inputs {
        let Some(&first) = shape.first() else {
            let text = format!("input '{name}' has no shape but model requires batch dimension for '{model}'");
            return Err(refusal(id, text));
        };
        if rows.is_some_and(|rows| rows != first) {
            return Err(refusal(id, format!("input '{name}' batch size does not match other inputs for '{model}'")));
        }
        rows = Some(first);
    }
    // No input with rows means that all are optional and left out: one row.
    let rows = rows.unwrap_or(1);
    if rows > i64::from(spec.rows_max) {
        let derived = if spec.is_batch_axis_derived { DERIVED_ROWS } else { "" };
        let text = format!("inference request batch-size must be <= {} for '{model}'{derived}", spec.rows_max);
        return Err(refusal(id, text));
    }
    if rows == 0 {
        // Triton says that the size of an input differs, which is that of one row.
        return Err(refusal(id, format!("inference request batch-size must be >= 1 for '{model}'")));
    }
    // A negative size becomes 0 here; `check_shape` refuses it with its own text.
    Ok(Some(u32::try_from(rows).unwrap_or(0)))
}

/// Checks datatype, shape and size of one input.
fn check_input(spec: &ModelSpec, id: &str, input: &NamedTensor<'_>, expected: &TensorSpec) -> Result<(), Error> {
    let (name, model) = (input.name, &spec.name);
    if input.datatype != Some(expected.datatype) {
        let text = format!(
            "inference input '{name}' data-type is '{}', but model '{model}' expects '{}'",
            input.datatype.map_or("<invalid>", Datatype::name),
            expected.datatype.name()
        );
        return Err(refusal(id, text));
    }
    check_shape(spec, id, input, expected)?;
    let has_no_rows = spec.has_batch_axis() && !expected.is_shape_tensor && input.shape.first() == Some(&0);
    // With a batch axis of 0, Triton computes the expected size without that axis, and so refuses the input.
    let shape = if has_no_rows { input.shape.get(1..).unwrap_or_default() } else { &input.shape };
    match byte_size(expected.datatype, shape) {
        Err(SizeError::Overflow | SizeError::Negative) => {
            Err(shape_overflow(name, &input.shape).with_prefix(&prefix(id)))
        }
        Ok(Some(size)) if size != input.size() => Err(size_mismatch(spec, id, name, size, input.size())),
        Ok(Some(_)) => Ok(()),
        // Their elements are checked after the copy from shared memory: see `check_shared_strings`.
        Ok(None) if input.shared.is_some() => Ok(()),
        Ok(None) => check_strings(spec, id, name, &input.contents, shape),
    }
}

/// Checks a shape against the configured one, in which -1 accepts any size.
fn check_shape(spec: &ModelSpec, id: &str, input: &NamedTensor<'_>, expected: &TensorSpec) -> Result<(), Error> {
    let (name, model) = (input.name, &spec.name);
    let mut is_match = input.shape.len() == expected.shape.len();
    if is_match {
        for (have, want) in input.shape.iter().zip(&expected.shape) {
            if *have < 0 {
                let got = shape_text(&input.shape);
                let text = format!(
                    "All input dimensions should be specified for input '{name}' for model '{model}', got {got}"
                );
                return Err(refusal(id, text));
            }
            if *want != -1 && have != want {
                is_match = false;
                break;
            }
        }
    }
    if is_match {
        return Ok(());
    }
    let note = if spec.has_batch_axis() { BATCH_NOTE } else { "" };
    let text = format!(
        "unexpected shape for input '{name}' for model '{model}'. Expected {}, got {}. {note}",
        shape_text(&expected.shape),
        shape_text(&input.shape)
    );
    Err(refusal(id, text))
}

/// Triton's hint after the refusal of a shape, for models that batch.
const BATCH_NOTE: &str = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to \
    be prepended to each input shape. If you want to specify the full shape including the batch dim in your input \
    dims config, try setting max_batch_size to zero. See the model configuration docs for more info on \
    max_batch_size.";

/// Collects the inputs and outputs of a request that are in shared memory, after [`check`] and [`check_outputs`];
/// `None` without any.
///
/// # Errors
///
/// `TooLarge` if the inputs in shared memory are larger than `--client-shm-bytes-max`.
pub fn shared_tensors<'a>(
    spec: &ModelSpec,
    regions: Option<&Regions>,
    inputs: &mut [NamedTensor<'_>],
    destinations: impl IntoIterator<Item = (&'a str, RegionSlice)>,
) -> Result<Option<Arc<SharedTensors>>, Error> {
    // Without regions the decoder has refused every use of one.
    let Some(regions) = regions else { return Ok(None) };
    let sources = inputs.iter_mut().filter_map(|input| Some((spec.input_index(input.name)?, input.shared.take()?)));
    let sources: Vec<_> = sources.collect();
    let destinations = destinations.into_iter().filter_map(|(name, slice)| Some((spec.output_index(name)?, slice)));
    let destinations: Vec<_> = destinations.collect();
    if sources.is_empty() && destinations.is_empty() {
        return Ok(None);
    }
    regions.check_inputs(&sources)?;
    Ok(Some(Arc::new(SharedTensors { sources, destinations })))
}

/// Checks the string elements of a `BYTES` input after it was copied from shared memory.
///
/// # Errors
///
/// `InvalidArgument` if the elements are malformed or not as many as the shape says.
pub fn check_shared_strings(spec: &ModelSpec, id: &str, index: usize, tensor: &Tensor) -> Result<(), Error> {
    match spec.inputs.get(index) {
        Some(input) if input.datatype == Datatype::Bytes => {
            check_strings(spec, id, &input.name, &tensor.contents, &tensor.shape)
        }
        _ => Ok(()),
    }
}

/// Checks that a `BYTES` input has well-formed elements, as many as its shape says.
fn check_strings(spec: &ModelSpec, id: &str, name: &str, contents: &[u8], shape: &[i64]) -> Result<(), Error> {
    let model = &spec.name;
    let Ok(expected) = element_count(shape) else {
        return Err(shape_overflow(name, shape).with_prefix(&prefix(id)));
    };
    let mut got = 0_usize;
    for element in Strings::new(contents) {
        let text = match element {
            Err(StringsError::Length(left)) => format!(
                "incomplete string length indicator for inference input '{name}' for model '{model}', expecting 4 \
                 bytes but only {left} bytes available. Please make sure the string length indicator is in one buffer."
            ),
            Err(StringsError::Element { claimed, left }) => {
                // Without the request's id: Triton checks this in its backends, which do not add it.
                return Err(Error::invalid(format!(
                    "incomplete string data for inference input '{name}', expecting string of length {claimed} but \
                     only {left} bytes available"
                )));
            }
            Ok(_) if got == expected => format!(
                "unexpected number of string elements {} for inference input '{name}' for model '{model}', expecting \
                 {expected}",
                got.saturating_add(1)
            ),
            Ok(_) => {
                got = got.saturating_add(1);
                continue;
            }
        };
        return Err(refusal(id, text));
    }
    if got != expected {
        let text =
            format!("expected {expected} string elements for inference input '{name}' for model '{model}', got {got}");
        return Err(refusal(id, text));
    }
    Ok(())
}

/// Moves checked inputs into the model's order, with the shapes that the model sees (`reshape`).
fn into_model_order(spec: &ModelSpec, inputs: &mut [NamedTensor<'_>], slots: &[Option<usize>]) -> Vec<Tensor> {
    let mut tensors = Vec::with_capacity(spec.inputs.len());
    for (expected, slot) in spec.inputs.iter().zip(slots) {
        // `take` is safe: no input fills two slots.
        let input = slot.and_then(|index| inputs.get_mut(index));
        let (mut shape, contents) =
            input.map(|input| (take(&mut input.shape), take(&mut input.contents))).unwrap_or_default();
        if expected.is_reshaped()
            && let Some(seen) = expected.to_model(&shape)
        {
            shape = seen;
        }
        tensors.push(Tensor { datatype: expected.datatype, shape, contents });
    }
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{input, output, spec};

    /// `name:datatype:shape:bytes` of each input, space between them.
    fn outcome(spec: &ModelSpec, id: &str, request: &str) -> String {
        let mut inputs = Vec::new();
        for word in request.split_whitespace() {
            let mut parts = word.split(':');
            let mut part = || parts.next().unwrap();
            let (name, datatype, shape, size) = (part(), part(), part(), part());
            let shape = shape.split(',').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect();
            let contents = Bytes::from(vec![0; size.parse().unwrap()]);
            inputs.push(NamedTensor::new(name, Datatype::from_name(datatype), shape, contents));
        }
        match check(spec, id, &mut inputs) {
            Ok((tensors, rows)) => {
                let shapes: Vec<_> = tensors.iter().map(|tensor| shape_text(&tensor.shape)).collect();
                format!("{rows} rows, {}", shapes.join(" "))
            }
            Err(error) => error.text().to_owned(),
        }
    }

    #[test]
    fn a_sequence_that_balancers_are_told_is_compared_as_it_is_written() {
        let (number, text) = (CorrelationId::Number(7), CorrelationId::Text("a-7".into()));
        let error = |field: &[u8], id| sequence_field(Some(field), Some(id)).unwrap_err().text().to_owned();
        assert!(sequence_field(Some(b"7"), Some(&number)).is_ok() && sequence_field(Some(b"a-7"), Some(&text)).is_ok());
        assert!(sequence_field(None, Some(&text)).is_ok() && sequence_field(Some(b"a"), None).is_ok());
        assert!(
            error(b"A-7", &text)
                .starts_with("the header 'sequence-id' is 'A-7' and the parameter 'sequence_id' is 'a-7'")
        );
        assert!(error(b"\xff'\t", &number).contains("is '\u{fffd}\\'\\t' and"), "{}", error(b"\xff'\t", &number));
        assert!(
            error(&[b'9'; 100_000], &number).len() < SEQUENCE_ID_SIZE_MAX + 150,
            "no more of it than an id may have"
        );
    }

    #[test]
    fn inputs_come_in_the_models_order_or_are_refused_in_tritons_words() {
        let two = spec(8, vec![input("A", Datatype::Fp32, &[4]), input("B", Datatype::Int8, &[-1])], vec![]);
        let check = |request: &str, want: &str| assert_eq!(outcome(&two, "7", request), want, "{request}");
        check("B:INT8:2,3:6 A:FP32:2,4:32", "2 rows, [2,4] [2,3]");
        check(
            "A:FP32:1,4:16",
            "[request id: 7] expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing \
             required input(s) ['B']. Please provide all required input(s).",
        );
        check(
            "A:FP32:1,4:16 B:INT8:1,1:1 C:INT8:1,1:1",
            "[request id: 7] expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['A','B','C'], but \
             missing required input(s) []. Please provide all required input(s).",
        );
        check("A:FP32:1,4:16 C:INT8:1,1:1", "unexpected inference input 'C' for model 'm'");
        check("A:FP32:1,4:16 A:FP32:1,4:16", "[request id: 7] input 'A' already exists in request");
        check("A:FP32:1,4:16 B:INT8:2,1:2", "[request id: 7] input 'B' batch size does not match other inputs for 'm'");
        check(
            "A:FP32::0 B:INT8:2,1:2",
            "[request id: 7] input 'A' has no shape but model requires batch dimension for 'm'",
        );
        check("A:FP32:9,4:144 B:INT8:9,1:9", "[request id: 7] inference request batch-size must be <= 8 for 'm'");
        let derived = ModelSpec { is_batch_axis_derived: true, ..two.clone() };
        assert_eq!(
            outcome(&derived, "7", "A:FP32:9,4:144 B:INT8:9,1:9"),
            "[request id: 7] inference request batch-size must be <= 8 for 'm'; max_batch_size was derived from the \
             model's file: set it in config.pbtxt for more rows"
        );
        check(
            "A:INT32:1,4:16 B:INT8:1,1:1",
            "[request id: 7] inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'",
        );
        check(
            "A:FP99:1,4:16 B:INT8:1,1:1",
            "[request id: 7] inference input 'A' data-type is '<invalid>', but model 'm' expects 'FP32'",
        );
        check(
            "A:FP32:1,4:12 B:INT8:1,1:1",
            "[request id: 7] input byte size mismatch for input 'A' for model 'm'. Expected 16, got 12",
        );
        check("A:FP32:0,4:0 B:INT8:0,1:0", "[request id: 7] inference request batch-size must be >= 1 for 'm'");
        check(
            "A:FP32:1,4:16 B:INT8:1,-1:1",
            "[request id: 7] All input dimensions should be specified for input 'B' for model 'm', got [1,-1]",
        );
        check(
            "A:FP32:1,3:12 B:INT8:1,1:1",
            "[request id: 7] unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [1,3]. NOTE: Setting \
             a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input \
             shape. If you want to specify the full shape including the batch dim in your input dims config, try \
             setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size.",
        );
    }

    #[test]
    fn of_two_faults_the_first_in_the_models_order_is_told() {
        let two = spec(8, vec![input("A", Datatype::Fp32, &[1]), input("B", Datatype::Int8, &[1])], vec![]);
        let check = |request: &str, want: &str| {
            let got = outcome(&two, "7", request);
            assert!(got.starts_with(want), "{request}: {got}");
        };
        for request in ["A:FP32:1,2:8 B:INT8:1,2:2", "B:INT8:1,2:2 A:FP32:1,2:8"] {
            check(request, "[request id: 7] unexpected shape for input 'A' for model 'm'");
        }
        for request in ["A:FP32:1,1:4 B:INT8:2,1:2", "B:INT8:2,1:2 A:FP32:1,1:4"] {
            check(request, "[request id: 7] input 'B' batch size does not match other inputs for 'm'");
        }
    }

    #[test]
    fn without_a_batch_axis_shapes_are_exact_and_no_rows_are_counted() {
        let plain = spec(0, vec![input("A", Datatype::Uint8, &[-1, 2])], vec![]);
        let check = |request: &str, want: &str| assert_eq!(outcome(&plain, "", request), want, "{request}");
        check("A:UINT8:3,2:6", "1 rows, [3,2]");
        check("A:UINT8:0,2:0", "1 rows, [0,2]");
        check(
            "A:UINT8:2:2",
            "[request id: <id_unknown>] unexpected shape for input 'A' for model 'm'. Expected [-1,2], got [2]. ",
        );
        check(
            "A:UINT8:9223372036854775807,2:6",
            "[request id: <id_unknown>] invalid shape for input 'A': shape [9223372036854775807,2] causes total \
             element count to exceed maximum size of 9223372036854775807",
        );
    }

    #[test]
    fn a_batch_of_no_rows_is_refused_even_where_its_size_fits() {
        let any = spec(8, vec![input("A", Datatype::Uint8, &[-1])], vec![]);
        let got = outcome(&any, "", "A:UINT8:0,0:0");
        assert_eq!(got, "[request id: <id_unknown>] inference request batch-size must be >= 1 for 'm'");
        let got = outcome(&any, "", "A:UINT8:-1,1:1");
        assert!(got.contains("All input dimensions should be specified"), "{got}");
    }

    #[test]
    fn an_optional_input_may_be_left_out_and_a_required_one_may_not() {
        let mut model = spec(0, vec![input("A", Datatype::Uint8, &[1]), input("B", Datatype::Uint8, &[1])], vec![]);
        model.inputs[1].is_optional = true;
        assert_eq!(outcome(&model, "", "A:UINT8:1:1"), "1 rows, [1] []");
        assert_eq!(
            outcome(&model, "x", "B:UINT8:1:1"),
            "[request id: x] expected number of inputs between 1 and 2 but got 1 inputs for model 'm'. Got input(s) \
             ['B'], but missing required input(s) ['A']. Please provide all required input(s)."
        );
        assert_eq!(outcome(&model, "x", "C:UINT8:1:1"), "unexpected inference input 'C' for model 'm'");
    }

    #[test]
    fn strings_are_walked_and_counted() {
        let model = spec(0, vec![input("A", Datatype::Bytes, &[2])], vec![]);
        let hold = |contents: &'static [u8], want: Result<(), &str>| {
            let contents = Bytes::from_static(contents);
            let tensor = NamedTensor::new("A", Some(Datatype::Bytes), Shape::from_slice(&[2]), contents);
            let got = check(&model, "", &mut [tensor]).map(|_| ());
            let want = want.map_err(|text| Error::invalid(format!("[request id: <id_unknown>] {text}")));
            assert_eq!(got, want);
        };
        hold(b"\x01\0\0\0a\0\0\0\0", Ok(()));
        hold(
            b"\x01\0\0\0a\0",
            Err("incomplete string length indicator for inference input 'A' for model 'm', expecting 4 bytes but \
                 only 1 bytes available. Please make sure the string length indicator is in one buffer."),
        );
        hold(b"\0\0\0\0", Err("expected 2 string elements for inference input 'A' for model 'm', got 1"));
        hold(
            b"\0\0\0\0\0\0\0\0\0\0\0\0",
            Err("unexpected number of string elements 3 for inference input 'A' for model 'm', expecting 2"),
        );
    }

    #[test]
    fn the_outputs_asked_for_or_all_are_planned_in_the_models_order() {
        let outputs = vec![output("X", Datatype::Fp32, &[1]), output("Y", Datatype::Fp32, &[1])];
        let model = spec(0, vec![], outputs);
        let outcome = |names: &str| {
            let asked: Vec<_> = names
                .split_whitespace()
                .map(|name| AskedOutput { name, is_binary: true, is_base64: false, class_count: 3 })
                .collect();
            match check_outputs(&model, "9", &asked, false) {
                Ok(plans) => {
                    format!("{:?}", plans.iter().map(|plan| (plan.index, plan.class_count)).collect::<Vec<_>>())
                }
                Err(error) => error.text().to_owned(),
            }
        };
        assert_eq!(outcome(""), "[(0, 0), (1, 0)]");
        assert_eq!(outcome("Y X"), "[(0, 3), (1, 3)]");
        assert_eq!(outcome("Y"), "[(1, 3)]");
        assert_eq!(outcome("Y Z"), "unexpected inference output 'Z' for model 'm'");
        assert_eq!(outcome("Z Y Y"), "[request id: 9] output 'Y' already exists in request");
    }
}
