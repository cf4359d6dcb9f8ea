//! Batches as an engine takes them: the inputs of several requests behind one another along the
//! batch axis, or all elements of a ragged input in one dimension, and the outputs cut apart
//! again. Used by the backends; knows no engine. Bytes are copied at most once on the way in, and
//! never on the way out.
//!
//! What it holds is bounded by the rows of a batch times the size of a row: the staging buffers
//! stay as large as the largest batch so far.

use std::sync::Arc;

use bytes::Bytes;

use crate::backend::Request;
use crate::backend::text::ShapeText;
use crate::error::Error;
use crate::model::{ModelSpec, TensorSpec};
use crate::tensor::strings::{LENGTH_SIZE, Strings};
use crate::tensor::{AlignedBuffer, Shape, Tensor, byte_size, element_count};

/// Appends the elements of a tensor in the engine's own datatype, or says which one cannot be.
pub type Convert = fn(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error>;

/// How an engine takes an input.
#[derive(Clone, Copy, Debug)]
pub struct InputConversion {
    /// What the address of the bytes must be a multiple of.
    pub alignment: usize,
    /// How elements change on their way; `None` where the engine takes them as they are.
    pub convert: Option<Convert>,
}

/// Gathers the inputs of batches. One belongs to each instance; its buffers are used again.
pub struct Gather {
    spec: Arc<ModelSpec>,
    stages: Vec<InputStage>,
    count: usize,
    rows: u32,
}

/// How the requests of a batch share an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageKind {
    /// Their rows lie behind one another.
    Rows,
    /// Their elements lie behind one another, and its shape is how many there are.
    Ragged,
    /// A shape tensor: its values are the same for all, and before them stands the number of rows.
    Values,
}

/// One input of the batch that is being gathered.
struct InputStage {
    feed: InputConversion,
    buffer: AlignedBuffer,
    /// Bytes of the requests that are wholly in.
    size: usize,
    shape: Shape,
    kind: StageKind,
    /// The batch is one request, whose bytes the engine takes where they lie.
    is_direct: bool,
    /// The values of a shape tensor, as the requests gave them.
    values: Bytes,
}

impl Gather {
    /// For a model whose inputs are taken as `feeds` say, in the order of the configuration.
    pub fn new(spec: Arc<ModelSpec>, feeds: impl IntoIterator<Item = InputConversion>) -> Self {
        let kinds = spec.inputs.iter().map(StageKind::of).chain(std::iter::repeat(StageKind::Rows));
        let stages = feeds.into_iter().zip(kinds).map(|(feed, kind)| InputStage::new(feed, kind)).collect();
        Self { spec, stages, count: 0, rows: 0 }
    }

    /// Takes in a batch and returns the requests that are part of it. The others are answered
    /// with what is wrong with them.
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
    pub fn shape(&self, index: usize) -> &[i64] {
        self.stages.get(index).map_or(&[], |stage| &stage.shape)
    }

    /// Adds a request, wholly or not at all.
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

    /// Only what differs in nothing but its rows can be one batch.
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
    fn new(feed: InputConversion, kind: StageKind) -> Self {
        let (buffer, shape, values) = (AlignedBuffer::default(), Shape::new(), Bytes::new());
        Self { feed, buffer, size: 0, shape, kind, is_direct: false, values }
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
        let is_aligned = tensor.contents.as_ptr().addr().is_multiple_of(self.feed.alignment);
        match self.feed.convert {
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

    /// Puts the values of the first request into the buffer, behind a place for the rows.
    fn append_values(&mut self, tensor: &Tensor) -> Result<(), Error> {
        if self.size > 0 {
            return Ok(());
        }
        let place = [0; size_of::<i64>()];
        let place = place.get(..tensor.datatype.size().unwrap_or_default()).unwrap_or_default();
        for part in [place, &tensor.contents] {
            match self.feed.convert {
                Some(convert) => convert(part, &mut self.buffer)?,
                None => self.buffer.extend_from_slice(part),
            }
        }
        Ok(())
    }

    /// The rows of the batch so far, in the place before the values; in as many bytes as the engine
    /// has for each of them.
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
            // Its bytes are in memory, and so are those of the others.
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

/// Answers every request of a batch with one failure.
pub fn answer_all(requests: Vec<Request>, error: &Error) {
    requests.into_iter().for_each(|request| request.responder.send(Err(error.clone())));
}

/// Answers the requests of a batch with their parts of its outputs, whose elements lie
/// behind one another: their rows, or as much as the shape of an input says. They share the memory.
/// Every output passed [`check_output`].
pub fn scatter(spec: &ModelSpec, outputs: Vec<Tensor>, requests: Vec<Request>) {
    let is_whole = |output: &TensorSpec| output.scatter_source.is_none() && !output.is_shape_tensor;
    if requests.len() == 1 && spec.outputs.iter().all(is_whole) {
        requests.into_iter().for_each(|request| request.responder.send(Ok(outputs.clone())));
        return;
    }
    let mut offsets = vec![0; outputs.len()];
    for request in requests {
        let cut = outputs.iter().zip(&mut offsets).enumerate().map(|(index, (output, offset))| {
            let expected = spec.outputs.get(index);
            if let Some(expected) = expected.filter(|expected| expected.is_shape_tensor) {
                return take_values(output, expected);
            }
            let scattered = expected.and_then(|expected| scattered_shape(expected, &request));
            let shape = scattered.unwrap_or_else(|| rows_shape(output, request.rows));
            take_part(output, offset, shape)
        });
        let parts = cut.collect();
        request.responder.send(parts);
    }
}

/// The values of a shape tensor, which all requests get, without the rows before them.
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

/// The shape of a request's part of an output that is cut apart by the shape of an input: where the
/// output's may be any, the input's.
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

/// The bytes of the rows of `shape` that begin at `offset`.
fn size_of_rows(output: &Tensor, shape: &[i64], offset: usize) -> Option<usize> {
    if let Some(size) = byte_size(output.datatype, shape).ok()? {
        return Some(size);
    }
    let count = element_count(shape).ok()?;
    let mut sizes = Strings::new(output.contents.get(offset..)?).map(|text| text.map(|text| LENGTH_SIZE + text.len()));
    (0..count).try_fold(0_usize, |sum, _| sum.checked_add(sizes.next()?.ok()?))
}

/// Whether the bytes of a tensor are as many elements as its shape says.
fn is_whole(tensor: &Tensor) -> bool {
    match byte_size(tensor.datatype, &tensor.shape) {
        Ok(Some(size)) => size == tensor.contents.len(),
        Ok(None) => size_of_rows(tensor, &tensor.shape, 0) == Some(tensor.contents.len()),
        Err(_) => false,
    }
}

/// Whether an output is what the configuration says, for a batch of so many rows.
pub fn check_output(
    spec: &ModelSpec,
    index: usize,
    output: &Tensor,
    rows: u32,
    requests: &[Request],
) -> Result<(), Error> {
    let Some(expected) = spec.outputs.get(index) else {
        return Err(Error::internal(format!("model '{}' gave an output that it does not have", spec.name)));
    };
    if output.datatype != expected.datatype {
        let (want, came) = (expected.datatype.name(), output.datatype.name());
        let text = format!("output '{}' of model '{}' must be {want} but came as {came}", expected.name, spec.name);
        return Err(Error::internal(text));
    }
    if expected.scatter_source.is_some() {
        return check_scattered(spec, expected, output, requests);
    }
    let has_axis = spec.has_batch_axis() && !expected.is_shape_tensor;
    let has_rows = !has_axis || output.shape.first() == Some(&i64::from(rows));
    if !has_rows || !fits(&expected.model_shape, &output.shape) {
        return Err(Error::internal(shape_text(spec, expected, &output.shape, rows)));
    }
    if !is_whole(output) {
        let text = format!("output '{}' of model '{}' has not the bytes of its shape", expected.name, spec.name);
        return Err(Error::internal(text));
    }
    Ok(())
}

/// Whether an output that is cut apart by the shape of an input has as many elements as its parts.
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

/// Whether a shape is one that the pattern, with -1 for any size, allows.
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

/// Whether a request is what the configuration says. A decoder checked it before it was queued; an engine that computes on raw memory is
/// not left to trust that.
pub fn check_request(spec: &ModelSpec, request: &Request) -> Result<(), Error> {
    if request.inputs.len() != spec.inputs.len() {
        let (want, came) = (spec.inputs.len(), request.inputs.len());
        return Err(Error::internal(format!("model '{}' takes {want} inputs but {came} came", spec.name)));
    }
    let is_sound = |(tensor, input): (&Tensor, &TensorSpec)| {
        if input.is_optional && !tensor.is_given() {
            return tensor.contents.is_empty();
        }
        let has_axis = spec.has_batch_axis() && !input.is_shape_tensor;
        let pattern = if input.is_shape_tensor { &input.shape } else { &input.model_shape };
        tensor.datatype == input.datatype
            && fits(pattern, &tensor.shape)
            && (!has_axis || tensor.shape.first() == Some(&i64::from(request.rows)))
            && is_whole(tensor)
    };
    match request.inputs.iter().zip(&spec.inputs).find(|pair| !is_sound(*pair)) {
        None => Ok(()),
        Some((tensor, input)) => Err(Error::internal(format!(
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
