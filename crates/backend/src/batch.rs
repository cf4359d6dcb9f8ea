//! Gathers the inputs of a batch and scatters its outputs: the inputs of several requests are
//! concatenated along the batch axis, or a ragged input's elements in one dimension, and the outputs are
//! cut apart again. Used by the backends; knows no engine. Bytes are copied at most once on the way in,
//! and never on the way out.
//!
//! Memory is bounded by the rows of a batch times the size of a row: the staging buffers
//! stay as large as the largest batch so far.

use std::sync::Arc;

use bytes::Bytes;

use crate::Request;
use crate::text::{ShapeText, output_differs};
use base::error::Error;
use base::tensor::strings::{LENGTH_SIZE, Strings};
use base::tensor::{AlignedBuffer, Shape, Tensor, byte_size, element_count};
use model::{ModelSpec, TensorSpec};

/// Appends the elements of a tensor in the engine's own datatype, or returns the element that does
/// not fit it.
pub type Convert = fn(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error>;

/// The form in which an engine takes an input.
#[derive(Clone, Copy, Debug)]
pub struct InputConversion {
    /// The alignment that the address of the bytes must have, in bytes.
    pub alignment: usize,
    /// Converts the elements; `None` if the engine takes them as they are.
    pub convert: Option<Convert>,
}

/// Gathers the inputs of batches. Each instance has one, and reuses its buffers.
pub struct Gather {
    spec: Arc<ModelSpec>,
    stages: Vec<InputStage>,
    /// Requests in the batch so far.
    count: usize,
    rows: u32,
}

/// The way in which the requests of a batch make up one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageKind {
    /// Their rows are concatenated.
    Rows,
    /// Their elements are concatenated, and the shape is the number of elements.
    Ragged,
    /// A shape tensor: its values are the same for all requests, after the number of rows of the batch.
    Values,
}

/// One input of the batch that is being gathered.
struct InputStage {
    conversion: InputConversion,
    buffer: AlignedBuffer,
    /// Bytes of the accepted requests; bytes after them are rolled back if a request is refused.
    size: usize,
    shape: Shape,
    kind: StageKind,
    /// The batch is one request, and the engine reads its bytes in place, without a copy.
    is_direct: bool,
    /// The values of a shape tensor, as the requests brought them.
    values: Bytes,
}

impl Gather {
    /// A gatherer for a model whose inputs are converted by `conversions`, in the order of the
    /// configuration.
    pub fn new(spec: Arc<ModelSpec>, conversions: impl IntoIterator<Item = InputConversion>) -> Self {
        let kinds = spec.inputs.iter().map(StageKind::of).chain(std::iter::repeat(StageKind::Rows));
        let stages = conversions.into_iter().zip(kinds);
        let stages = stages.map(|(conversion, kind)| InputStage::new(conversion, kind)).collect();
        Self { spec, stages, count: 0, rows: 0 }
    }

    /// Gathers a batch and returns the requests that it accepted. The others are answered with their
    /// errors.
    pub fn gather(&mut self, requests: Vec<Request>) -> Vec<Request> {
        (self.count, self.rows) = (0, 0);
        self.stages.iter_mut().for_each(InputStage::clear);
        let offered = requests.len();
        let mut accepted: Vec<Request> = requests
            .into_iter()
            .filter_map(|request| match self.stage(&request, offered == 1) {
                Ok(()) => Some(request),
                Err(error) => {
                    request.responder.send(Err(error));
                    None
                }
            })
            .collect();
        if accepted.len() < offered {
            for (index, request) in accepted.iter_mut().enumerate() {
                request.responder.set_batch(self.rows, index == 0);
            }
        }
        accepted
    }

    /// The rows of the batch.
    pub const fn rows(&self) -> u32 {
        self.rows
    }

    /// The bytes of one input of the batch. `requests` are those that [`Self::gather`] returned.
    pub fn contents<'a>(&'a self, index: usize, requests: &'a [Request]) -> &'a [u8] {
        let Some(stage) = self.stages.get(index) else { return &[] };
        let direct = requests.first().and_then(|request| request.inputs.get(index)).filter(|_| stage.is_direct);
        direct.map_or(stage.buffer.as_slice(), |tensor| &tensor.contents)
    }

    /// The shape of one input of the batch.
    #[inline]
    pub fn shape(&self, index: usize) -> &[i64] {
        self.stages.get(index).map_or(&[], |stage| &stage.shape)
    }

    /// Adds all of a request's inputs, or none of them.
    fn stage(&mut self, request: &Request, is_alone: bool) -> Result<(), Error> {
        check_request(&self.spec, request)?;
        let rows = self.rows.checked_add(request.rows).ok_or_else(|| Error::internal("a batch has too many rows"))?;
        if self.count > 0 {
            self.check_shapes(request)?;
        }
        if let Err(error) = self.append(request, is_alone) {
            self.stages.iter_mut().for_each(InputStage::roll_back);
            return Err(error);
        }
        for (stage, tensor) in self.stages.iter_mut().zip(&request.inputs) {
            stage.commit(tensor, rows, self.spec.has_batch_axis());
        }
        self.rows = rows;
        self.count += 1;
        Ok(())
    }

    /// Requests of one batch may differ in their rows only. The queue's batch key ensures that; an
    /// engine that computes on raw memory does not rely on it.
    fn check_shapes(&self, request: &Request) -> Result<(), Error> {
        if !self.spec.has_batch_axis() {
            let text = format!("model '{}' has no batch axis, but a batch of several requests came", self.spec.name);
            return Err(Error::internal(text));
        }
        let differs = |(stage, tensor): &(&InputStage, &Tensor)| match stage.kind {
            StageKind::Rows => stage.shape.get(1..) != tensor.shape.get(1..),
            StageKind::Ragged => false,
            StageKind::Values => stage.values != tensor.contents,
        };
        match self.stages.iter().zip(&request.inputs).find(differs) {
            None => Ok(()),
            Some((stage, tensor)) => Err(Error::internal(format!(
                "shapes {:?} and {:?} came in one batch of model '{}'",
                stage.shape, tensor.shape, self.spec.name
            ))),
        }
    }

    fn append(&mut self, request: &Request, is_alone: bool) -> Result<(), Error> {
        let Self { spec, stages, .. } = self;
        for ((stage, tensor), input) in stages.iter_mut().zip(&request.inputs).zip(&spec.inputs) {
            let outcome = stage.append(tensor, is_alone);
            outcome
                .map_err(|error| error.with_prefix(&format!("input '{}' of model '{}': ", input.name, spec.name)))?;
        }
        Ok(())
    }
}

impl StageKind {
    const fn of(input: &TensorSpec) -> Self {
        match (input.is_ragged, input.is_shape_tensor) {
            (_, true) => Self::Values,
            (true, false) => Self::Ragged,
            (false, false) => Self::Rows,
        }
    }
}

impl InputStage {
    fn new(conversion: InputConversion, kind: StageKind) -> Self {
        let (buffer, shape, values) = (AlignedBuffer::default(), Shape::new(), Bytes::new());
        Self { conversion, buffer, size: 0, shape, kind, is_direct: false, values }
    }

    fn clear(&mut self) {
        self.size = 0;
        self.shape.clear();
        self.is_direct = false;
        self.buffer.resize(0);
    }

    fn append(&mut self, tensor: &Tensor, is_alone: bool) -> Result<(), Error> {
        if self.kind == StageKind::Values {
            return self.append_values(tensor);
        }
        let is_aligned = tensor.contents.as_ptr().addr().is_multiple_of(self.conversion.alignment);
        match self.conversion.convert {
            Some(convert) => convert(&tensor.contents, &mut self.buffer),
            None if is_alone && is_aligned => {
                self.is_direct = true;
                Ok(())
            }
            None => {
                self.buffer.extend_from_slice(&tensor.contents);
                Ok(())
            }
        }
    }

    /// Puts the values of the first request into the buffer, after a place for the number of rows.
    fn append_values(&mut self, tensor: &Tensor) -> Result<(), Error> {
        if self.size > 0 {
            return Ok(());
        }
        let place = [0; size_of::<i64>()];
        let place = place.get(..tensor.datatype.size().unwrap_or_default()).unwrap_or_default();
        for part in [place, &tensor.contents] {
            match self.conversion.convert {
                Some(convert) => convert(part, &mut self.buffer)?,
                None => self.buffer.extend_from_slice(part),
            }
        }
        Ok(())
    }

    /// Writes the rows of the batch so far into the place before the values, in the size that a
    /// converted value has.
    fn commit_values(&mut self, tensor: &Tensor, rows: u32) {
        self.values.clone_from(&tensor.contents);
        let count = tensor.shape.first().map_or(1, |count| count.saturating_add(1));
        self.shape = Shape::from_slice(&[count]);
        let size = self.size.checked_div(usize::try_from(count).unwrap_or_default()).unwrap_or_default();
        let rows = i64::from(rows).to_le_bytes();
        if let (Some(place), Some(rows)) = (self.buffer.as_mut_slice().get_mut(..size), rows.get(..size)) {
            place.copy_from_slice(rows);
        }
    }

    fn roll_back(&mut self) {
        self.is_direct = false;
        self.buffer.resize(self.size);
    }

    fn commit(&mut self, tensor: &Tensor, rows: u32, has_batch_axis: bool) {
        self.size = self.buffer.len();
        if self.kind == StageKind::Values {
            return self.commit_values(tensor, rows);
        }
        if self.kind == StageKind::Ragged {
            let before = self.shape.first().copied().unwrap_or(0);
            // The counts cannot overflow: all these elements are in memory.
            let count = element_count(&tensor.shape).map_or(0, |count| i64::try_from(count).unwrap_or(i64::MAX));
            self.shape = Shape::from_slice(&[before.saturating_add(count)]);
            return;
        }
        self.shape.clone_from(&tensor.shape);
        if let Some(first) = self.shape.first_mut().filter(|_| has_batch_axis) {
            *first = i64::from(rows);
        }
    }
}

/// Answers every request of a batch with the same error.
#[inline]
pub fn answer_all(requests: Vec<Request>, error: &Error) {
    requests.into_iter().for_each(|request| request.responder.send(Err(error.clone())));
}

/// Answers each request of a batch with its part of the outputs: its rows, or the number of
/// elements in the shape of the scatter source. The parts share the memory of the output. Every
/// output must have passed [`check_output`].
pub fn scatter(spec: &ModelSpec, outputs: Vec<Tensor>, requests: Vec<Request>) {
    let is_whole = |output: &TensorSpec| output.scatter_source.is_none() && !output.is_shape_tensor;
    if requests.len() == 1 && spec.outputs.iter().all(is_whole) {
        requests.into_iter().for_each(|request| request.responder.send(Ok(outputs.clone())));
        return;
    }
    let mut offsets = vec![0; outputs.len()];
    for request in requests {
        let parts = outputs.iter().zip(&mut offsets).enumerate().map(|(index, (output, offset))| {
            let expected = spec.outputs.get(index);
            if let Some(expected) = expected.filter(|expected| expected.is_shape_tensor) {
                return take_values(output, expected);
            }
            let scattered = expected.and_then(|expected| scattered_shape(expected, &request));
            let shape = scattered.unwrap_or_else(|| rows_shape(output, request.rows));
            take_part(output, offset, shape)
        });
        let parts = parts.collect();
        request.responder.send(parts);
    }
}

/// The values of a shape tensor, without the number of rows before them. All requests get the same.
fn take_values(output: &Tensor, expected: &TensorSpec) -> Result<Tensor, Error> {
    let size = output.datatype.size().unwrap_or_default();
    if output.contents.len() < size {
        return Err(Error::internal("a shape tensor came without the rows of its batch"));
    }
    Ok(Tensor { datatype: output.datatype, shape: expected.shape.clone(), contents: output.contents.slice(size..) })
}

fn rows_shape(output: &Tensor, rows: u32) -> Shape {
    let mut shape = output.shape.clone();
    if let Some(first) = shape.first_mut() {
        *first = i64::from(rows);
    }
    shape
}

/// The shape of a request's part of an output with a scatter source: the output's own, with the
/// source input's size for a variable dimension.
fn scattered_shape(output: &TensorSpec, request: &Request) -> Option<Shape> {
    let input = request.inputs.get(output.scatter_source?)?;
    let dimensions = output.model_shape.iter().enumerate();
    dimensions.map(|(index, size)| if *size < 0 { input.shape.get(index).copied() } else { Some(*size) }).collect()
}

/// The next part of an output, whose bytes begin at `offset`.
fn take_part(output: &Tensor, offset: &mut usize, shape: Shape) -> Result<Tensor, Error> {
    let size = size_of_rows(output, &shape, *offset);
    let end = size.and_then(|size| offset.checked_add(size)).filter(|end| *end <= output.contents.len());
    let end = end.ok_or_else(|| Error::internal("an output has fewer bytes than its batch has rows"))?;
    let contents = output.contents.slice(*offset..end);
    *offset = end;
    Ok(Tensor { datatype: output.datatype, shape, contents })
}

/// Cuts the inputs of one request into consecutive shares of `rows` rows each, which share its memory. The first
/// dimension of each tensor is the batch axis.
///
/// # Errors
/// Internal if a tensor has fewer rows.
pub fn split_rows(inputs: &[Tensor], rows: &[u32]) -> Result<Vec<Vec<Tensor>>, Error> {
    let mut offsets = vec![0; inputs.len()];
    let share = |rows: &u32| {
        let parts = inputs.iter().zip(&mut offsets).map(|(input, offset)| {
            if input.is_given() { take_part(input, offset, rows_shape(input, *rows)) } else { Ok(input.clone()) }
        });
        parts.collect()
    };
    rows.iter().map(share).collect()
}

/// Joins the outputs of the shares of one request along the batch axis, with one copy; `None` if they do not fit
/// together: an output that does not have the rows of its share, or that has other dimensions than that of another. One that
/// all shares leave out is left out.
pub fn join_rows(shares: &[Vec<Tensor>], rows: &[u32]) -> Option<Vec<Tensor>> {
    let first = shares.first()?;
    let join = |index: usize, first: &Tensor| {
        let parts = || shares.iter().map(move |share| share.get(index));
        let fits = |(part, rows): (Option<&Tensor>, &u32)| {
            part.is_some_and(|part| {
                part.datatype == first.datatype
                    && part.shape.first() == Some(&i64::from(*rows))
                    && part.shape.get(1..) == first.shape.get(1..)
            })
        };
        if parts().all(|part| part.is_some_and(Tensor::is_missing)) {
            return Some(first.clone());
        }
        if !parts().zip(rows).all(fits) {
            return None;
        }
        let mut buffer = AlignedBuffer::default();
        parts().flatten().for_each(|part| buffer.extend_from_slice(&part.contents));
        let shape = rows_shape(first, rows.iter().sum());
        Some(Tensor { datatype: first.datatype, shape, contents: buffer.freeze() })
    };
    first.iter().enumerate().map(|(index, first)| join(index, first)).collect()
}

/// The bytes of the rows of `shape` that begin at `offset`.
fn size_of_rows(output: &Tensor, shape: &[i64], offset: usize) -> Option<usize> {
    if let Some(size) = byte_size(output.datatype, shape).ok()? {
        return Some(size);
    }
    let count = element_count(shape).ok()?;
    let mut sizes = Strings::new(output.contents.get(offset..)?).map(|text| text.map(|text| LENGTH_SIZE + text.len()));
    (0..count).try_fold(0_usize, |sum, _| sum.checked_add(sizes.next()?.ok()?))
}

/// Returns true if the bytes of a tensor are as many elements as its shape says.
fn is_whole(tensor: &Tensor) -> bool {
    match byte_size(tensor.datatype, &tensor.shape) {
        Ok(Some(size)) => size == tensor.contents.len(),
        Ok(None) => size_of_rows(tensor, &tensor.shape, 0) == Some(tensor.contents.len()),
        Err(_) => false,
    }
}

/// The result of a check that the parts of an output can be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputRows {
    /// Its first dimension is the rows of the batch, if they matter.
    AsExpected,
    /// It does not have the rows of the batch, though the model file says so: a single request
    /// takes it whole.
    Unknown,
}

/// Checks that an output of a batch of this many rows is as configured. If the shape was read from
/// the model file, the output may have another.
///
/// # Errors
///
/// Internal if its datatype, shape or size is not: the model is at fault, not the request.
pub fn check_output(
    spec: &ModelSpec,
    index: usize,
    output: &Tensor,
    rows: u32,
    requests: &[Request],
) -> Result<OutputRows, Error> {
    let Some(expected) = spec.outputs.get(index) else {
        return Err(Error::internal(format!("model '{}' gave an output that it does not have", spec.name)));
    };
    if output.datatype != expected.datatype {
        return Err(output_differs(spec, index, output.datatype.name()));
    }
    if expected.scatter_source.is_some() {
        return check_scattered(spec, expected, output, requests).map(|()| OutputRows::AsExpected);
    }
    let has_axis = spec.has_batch_axis() && !expected.is_shape_tensor;
    let has_rows = !has_axis || output.shape.first() == Some(&i64::from(rows));
    if !expected.is_derived && (!has_rows || !fits(&expected.model_shape, &output.shape)) {
        return Err(Error::internal(shape_text(spec, expected, &output.shape, rows)));
    }
    if !is_whole(output) {
        let text = format!("output '{}' of model '{}' has not the bytes of its shape", expected.name, spec.name);
        return Err(Error::internal(text));
    }
    Ok(if has_rows { OutputRows::AsExpected } else { OutputRows::Unknown })
}

/// Checks one response, in the order of the configuration, of a model that answers its requests one by one. An output
/// that it left out is not checked, and a scalar gets the shape `[1]` by which a configuration declares it.
///
/// # Errors
///
/// Internal if the datatype or the shape of an output differs: the model is at fault, not the request.
pub fn check_response(spec: &ModelSpec, outputs: &mut [Tensor], rows: u32) -> Result<(), Error> {
    for (index, (output, expected)) in outputs.iter_mut().zip(&spec.outputs).enumerate() {
        if output.is_missing() {
            continue;
        }
        if output.datatype != expected.datatype {
            return Err(output_differs(spec, index, output.datatype.name()));
        }
        let is_scalar = expected.may_be_scalar() && output.shape.len() + 1 == expected.model_shape.len();
        let shape: Shape = output.shape.iter().copied().chain(is_scalar.then_some(1)).collect();
        if !fits_response(spec, expected, &shape, rows) {
            return Err(Error::internal(shape_text(spec, expected, &output.shape, rows)));
        }
        output.shape = shape;
    }
    Ok(())
}

/// Returns true if an output of a response to a request of this many rows has its declared shape: the model's, or with
/// `reshape` also the client's, since Triton does not reshape the outputs of a Python model.
///
/// The first dimension of a model that batches is the request's rows: more of them could be those of other requests.
/// Only a Python model that gets its requests singly may make any number of rows, or leave that dimension out, as the
/// OCR models of NVIDIA's tutorials do (Conceptual Guide, part 5).
fn fits_response(spec: &ModelSpec, expected: &TensorSpec, shape: &[i64], rows: u32) -> bool {
    let has_axis = spec.has_batch_axis() && !expected.is_shape_tensor;
    let is_single = spec.python.as_ref().is_some_and(|python| !python.is_batched);
    [&expected.model_shape, &expected.shape].into_iter().any(|pattern| {
        let (true, [_, dims @ ..]) = (has_axis, &**pattern) else { return fits(pattern, shape) };
        let has_rows = match shape {
            [first, rest @ ..] => (is_single || *first == i64::from(rows)) && fits(dims, rest),
            [] => false,
        };
        has_rows || (is_single && fits(dims, shape))
    })
}

/// Checks that an output with a scatter source has as many bytes as the parts of all requests.
fn check_scattered(
    spec: &ModelSpec,
    expected: &TensorSpec,
    output: &Tensor,
    requests: &[Request],
) -> Result<(), Error> {
    let size = |request| {
        let shape = scattered_shape(expected, request)?;
        byte_size(output.datatype, &shape).ok().flatten()
    };
    let want = requests.iter().try_fold(0_usize, |sum, request| sum.checked_add(size(request)?));
    if want == Some(output.contents.len()) {
        return Ok(());
    }
    let (name, model, came) = (&expected.name, &spec.name, output.contents.len());
    let source = expected.scatter_source.and_then(|source| spec.inputs.get(source)).map_or("", |input| &input.name);
    Err(Error::internal(format!(
        "output '{name}' of model '{model}' came in {came} bytes, but the shapes of input '{source}' make {}",
        want.unwrap_or_default()
    )))
}

/// Returns true if a shape matches a pattern, in which -1 is any size.
#[inline]
pub fn fits(pattern: &[i64], shape: &[i64]) -> bool {
    pattern.len() == shape.len() && pattern.iter().zip(shape).all(|(want, came)| *want < 0 || want == came)
}

fn shape_text(spec: &ModelSpec, expected: &TensorSpec, came: &[i64], rows: u32) -> String {
    let mut want = expected.model_shape.clone();
    if let Some(first) = want.first_mut().filter(|_| spec.has_batch_axis() && !expected.is_shape_tensor) {
        *first = i64::from(rows);
    }
    format!(
        "output '{}' of model '{}' must have shape {} but came with {}",
        expected.name,
        spec.name,
        ShapeText(&want),
        ShapeText(came)
    )
}

/// Checks that a request is as configured. The decoder checked it before it was queued, but an engine that
/// computes on raw memory does not rely on that.
///
/// # Errors
///
/// Internal if the number, datatype, shape or size of its inputs is not as configured.
pub fn check_request(spec: &ModelSpec, request: &Request) -> Result<(), Error> {
    if request.on_device().is_some() {
        // An engine on the host would not see them.
        return Err(Error::internal(format!(
            "tensors on a device came to an instance of model '{}' elsewhere",
            spec.name
        )));
    }
    check_tensors(spec, request)
}

/// The same for an instance that takes tensors on its device.
///
/// # Errors
///
/// Internal if a tensor on the host or on the device does not have the size of its shape.
pub fn check_tensors(spec: &ModelSpec, request: &Request) -> Result<(), Error> {
    if request.inputs.len() != spec.inputs.len() {
        let (want, came) = (spec.inputs.len(), request.inputs.len());
        return Err(Error::internal(format!("model '{}' takes {want} inputs but {came} came", spec.name)));
    }
    let is_sound = |(index, (tensor, input)): (usize, (&Tensor, &TensorSpec))| {
        if input.is_optional && !tensor.is_given() {
            return tensor.contents.is_empty();
        }
        let has_axis = spec.has_batch_axis() && !input.is_shape_tensor;
        let pattern = if input.is_shape_tensor { &input.shape } else { &input.model_shape };
        tensor.datatype == input.datatype
            && fits(pattern, &tensor.shape)
            && (!has_axis || tensor.shape.first() == Some(&i64::from(request.rows)))
            && match request.on_device().and_then(|tensors| tensors.input(index)) {
                None => is_whole(tensor),
                Some(lease) => {
                    tensor.contents.is_empty() && byte_size(tensor.datatype, &tensor.shape) == Ok(Some(lease.size()))
                }
            }
    };
    match request.inputs.iter().zip(&spec.inputs).enumerate().find(|pair| !is_sound(*pair)) {
        None => Ok(()),
        Some((_, (tensor, input))) => Err(Error::internal(format!(
            "input '{}' of model '{}' is {} {} in {} bytes, which no check should have let through",
            input.name,
            spec.name,
            tensor.datatype.name(),
            ShapeText(&tensor.shape),
            tensor.contents.len()
        ))),
    }
}

#[cfg(test)]
mod tests;
