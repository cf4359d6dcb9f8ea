//! The padded inputs of the model between steps: rows are taken out of a request, padded to the longest of another run, and their
//! outputs are put together as the steps behind the model expect them, padded to the longest row of their own request.

use smallvec::SmallVec;

use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor, element_count};
use half::{bf16, f16};
use model::ModelSpec;
use model::spec::steps::ModelSteps;

/// The padding of a model's inputs and the outputs that matter.
#[derive(Debug)]
pub(super) struct PaddedInputs {
    /// For each input of the model, its padding; `None` for one whose rows all have one shape.
    numbers: Vec<Option<PadBytes>>,
    multiple: u32,
    is_left: bool,
    /// For each output of the model, true if steps or the answer read it.
    pub(super) needed: Vec<bool>,
}

/// The bytes of the number that pads.
type PadBytes = SmallVec<[u8; 8]>;

/// The lengths of a request's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PaddedRows {
    /// Without padding.
    pub(super) lengths: Vec<u32>,
    /// Those that the rows have alone: rounded up to the multiple.
    pub(super) widths: Vec<u32>,
    /// That of the request: its tensors have it.
    pub(super) width: u32,
}

/// The dimension of each output that is as long as the inputs; `None` for an output without one.
pub(super) type OutputAxes = Vec<Option<usize>>;

impl PaddedInputs {
    /// The padding of a model with steps; `None` if nothing says it, the model takes one row at a time, or an input is of a kind
    /// that is not put together from rows.
    pub(super) fn new(spec: &ModelSpec, steps: &ModelSteps) -> Option<Self> {
        let (engine, padding) = (steps.engine.as_ref()?, steps.list.padding()?);
        let is_plain = |spec: &ModelSpec| {
            spec.has_batch_axis() && spec.batch_inputs.is_empty() && spec.sequence.is_none() && !spec.is_decoupled
        };
        let keeps_rows = !engine.outputs.iter().any(|output| output.is_shape_tensor || output.scatter_source.is_some());
        if !is_plain(engine) || !is_plain(spec) || !keeps_rows || spec.rows_max < 2 {
            return None;
        }
        let mut numbers = Vec::with_capacity(engine.inputs.len());
        for input in &engine.inputs {
            input.datatype.size()?;
            let sizes = input.model_shape.get(1..).unwrap_or_default();
            if input.is_ragged || input.is_shape_tensor {
                return None;
            }
            numbers.push(match padding.inputs.iter().find(|(name, _)| *name == input.name) {
                Some((_, number)) if sizes.first().is_some_and(|size| *size < 0) => {
                    Some(pad_bytes(input.datatype, *number)?)
                }
                None if sizes.iter().all(|size| *size >= 0) => None,
                _ => return None,
            });
        }
        numbers.iter().flatten().next()?;
        let behind: Vec<&str> = steps.list.outputs_behind_model().collect();
        let asked = spec.outputs.iter().map(|output| output.name.as_str()).filter(|name| !behind.contains(name));
        let read: Vec<&str> = steps.list.inputs_behind_model().chain(asked).collect();
        let needed = engine.outputs.iter().map(|output| read.contains(&output.name.as_str())).collect();
        Some(Self { numbers, multiple: padding.multiple, is_left: padding.is_left, needed })
    }

    /// The rows of a request with these inputs; `None` if its lengths do not fit them, so that it runs as it is.
    pub(super) fn rows(&self, inputs: &[Tensor], rows: u32, lengths: Vec<u32>) -> Option<PaddedRows> {
        let has_rows = |tensor: &Tensor| tensor.shape.first() == Some(&i64::from(rows)) && tensor.has_its_size();
        let is_whole = inputs.len() == self.numbers.len() && u32::try_from(lengths.len()) == Ok(rows);
        if !is_whole || !inputs.iter().all(has_rows) {
            return None;
        }
        let padded = inputs.iter().zip(&self.numbers).filter(|(_, number)| number.is_some());
        let mut widths = padded.map(|(tensor, _)| tensor.shape.get(1).copied());
        let width = widths.next()??;
        if !widths.all(|other| other == Some(width)) {
            return None;
        }
        let width = u32::try_from(width).ok()?;
        // An empty row has no tensor of its own.
        if !lengths.iter().all(|length| (1..=width).contains(length)) {
            return None;
        }
        let rounded = |length: &u32| length.checked_next_multiple_of(self.multiple).unwrap_or(width).min(width);
        Some(PaddedRows { widths: lengths.iter().map(rounded).collect(), lengths, width })
    }

    /// Some rows of a request as inputs of `width` places.
    pub(super) fn take(&self, inputs: &[Tensor], rows: &PaddedRows, chosen: &[usize], width: u32) -> Vec<Tensor> {
        if width == rows.width && chosen.iter().copied().eq(0..rows.widths.len()) {
            return inputs.to_vec();
        }
        let tensors = inputs.iter().zip(&self.numbers);
        tensors.map(|(tensor, number)| self.take_rows(tensor, number.as_ref(), rows, chosen, width)).collect()
    }

    fn take_rows(
        &self,
        tensor: &Tensor,
        number: Option<&PadBytes>,
        rows: &PaddedRows,
        chosen: &[usize],
        width: u32,
    ) -> Tensor {
        let row_size = tensor.contents.len() / rows.widths.len().max(1);
        let mut shape = tensor.shape.clone();
        let dimensions =
            shape.iter_mut().zip([Some(chosen.len().try_into().unwrap_or(i64::MAX)), number.map(|_| width.into())]);
        dimensions.for_each(|(size, new)| *size = new.unwrap_or(*size));
        // Bytes of a place in a row.
        let place = row_size / usize::try_from(rows.width).unwrap_or(usize::MAX).max(1);
        let bytes = |places: u32| usize::try_from(places).unwrap_or(usize::MAX).saturating_mul(place);
        let new_size = number.map_or(row_size, |_| bytes(width));
        let mut buffer = AlignedBuffer::with_capacity(chosen.len().saturating_mul(new_size));
        for row in chosen {
            let begin = row.saturating_mul(row_size);
            let Some(number) = number else {
                buffer.extend_from_slice(tensor.contents.get(begin..begin + row_size).unwrap_or_default());
                continue;
            };
            let own = rows.widths.get(*row).copied().unwrap_or_default();
            let begin = if self.is_left { (begin + row_size).saturating_sub(bytes(own)) } else { begin };
            let content = tensor.contents.get(begin..begin + bytes(own)).unwrap_or_default();
            let pads = new_size.saturating_sub(content.len()) / number.len().max(1);
            if !self.is_left {
                buffer.extend_from_slice(content);
            }
            (0..pads).for_each(|_| buffer.extend_from_slice(number));
            if self.is_left {
                buffer.extend_from_slice(content);
            }
        }
        Tensor { datatype: tensor.datatype, shape, contents: buffer.freeze() }
    }

    /// The outputs of a request from those of its runs; `None` if they do not fit together.
    pub(super) fn join(&self, parts: &[PaddedOutputs], axes: &OutputAxes, rows: &PaddedRows) -> Option<Vec<Tensor>> {
        let outputs = self.needed.iter().zip(axes).enumerate();
        let join = |(index, (needed, axis)): (usize, (&bool, &Option<usize>))| {
            if *needed { self.join_output(parts, index, *axis, rows) } else { Some(missing()) }
        };
        outputs.map(join).collect()
    }

    fn join_output(
        &self,
        parts: &[PaddedOutputs],
        index: usize,
        axis: Option<usize>,
        rows: &PaddedRows,
    ) -> Option<Tensor> {
        let first = parts.first()?.outputs.get(index)?;
        let element = first.datatype.size()?;
        let mut shape = first.shape.clone();
        *shape.first_mut()? = i64::try_from(rows.widths.len()).ok()?;
        if let Some(axis) = axis {
            *shape.get_mut(axis)? = i64::from(rows.width);
        }
        let row_size = element_count(shape.get(1..)?).ok()?.checked_mul(element)?;
        let mut buffer = AlignedBuffer::zeroed(row_size.checked_mul(rows.widths.len())?);
        for part in parts {
            let output = part.outputs.get(index)?;
            let mut expected = shape.clone();
            *expected.first_mut()? = i64::try_from(part.rows.len()).ok()?;
            if let Some(axis) = axis {
                *expected.get_mut(axis)? = i64::from(part.width);
            }
            if output.datatype != first.datatype || output.shape != expected || !output.has_its_size() {
                return None;
            }
            let part_size = output.contents.len() / part.rows.len().max(1);
            for (row, from) in part.rows.iter().zip(output.contents.chunks_exact(part_size.max(1))) {
                let begin = row.checked_mul(row_size)?;
                let to = buffer.as_mut_slice().get_mut(begin..begin.checked_add(row_size)?)?;
                let Some(axis) = axis else {
                    to.copy_from_slice(from);
                    continue;
                };
                let place = element_count(shape.get(axis + 1..)?).ok()?.checked_mul(element)?;
                let own = usize::try_from(*rows.widths.get(*row)?).ok()?.checked_mul(place)?;
                copy_places(from, to, [part.width, rows.width], place, own, self.is_left);
            }
        }
        Some(Tensor { datatype: first.datatype, shape, contents: buffer.freeze() })
    }

    /// The dimensions of outputs that are as long as the inputs, and true if a row has the same numbers alone and padded; `None`
    /// if outputs are not as those of rows. The row ran by itself in `widths[0]` places, and beside another in `widths[1]`.
    pub(super) fn compare(
        &self,
        alone: &[Tensor],
        padded: &[Tensor],
        widths: [u32; 2],
        length: u32,
    ) -> Option<(OutputAxes, bool)> {
        let mut axes = OutputAxes::with_capacity(self.needed.len());
        let mut is_same = true;
        for (index, needed) in self.needed.iter().enumerate() {
            if !needed {
                axes.push(None);
                continue;
            }
            let (one, two) = (alone.get(index)?, padded.get(index)?);
            let axis = followed_axis(one, two, widths)?;
            axes.push(axis);
            let rows = |width: u32| PaddedRows { lengths: vec![length], widths: vec![length], width };
            let of = |tensor: &Tensor, width: u32| {
                let part = PaddedOutputs { rows: vec![0], width, outputs: vec![tensor.clone()] };
                self.join_output(&[part], 0, axis, &rows(length))
            };
            is_same &= is_near(&of(one, widths[0])?, &of(two, widths[1])?)?;
        }
        Some((axes, is_same))
    }
}

/// Outputs of one run for some rows of a request.
#[derive(Debug)]
pub(super) struct PaddedOutputs {
    pub(super) rows: Vec<usize>,
    /// That of the run.
    pub(super) width: u32,
    pub(super) outputs: Vec<Tensor>,
}

/// Copies the places of a row, `own` bytes of each block, between blocks of two widths.
fn copy_places(from: &[u8], to: &mut [u8], widths: [u32; 2], place: usize, own: usize, is_left: bool) {
    let [from_size, to_size] =
        widths.map(|width| usize::try_from(width).unwrap_or(usize::MAX).saturating_mul(place).max(1));
    for (from, to) in from.chunks_exact(from_size).zip(to.chunks_exact_mut(to_size)) {
        let own = own.min(from.len()).min(to.len());
        let (from_begin, to_begin) = if is_left { (from.len() - own, to.len() - own) } else { (0, 0) };
        if let (Some(from), Some(to)) = (from.get(from_begin..from_begin + own), to.get_mut(to_begin..to_begin + own)) {
            to.copy_from_slice(from);
        }
    }
}

/// The dimension of an output that follows the width.
fn followed_axis(alone: &Tensor, padded: &Tensor, widths: [u32; 2]) -> Option<Option<usize>> {
    let ([1, one @ ..], [1, two @ ..]) = (&alone.shape[..], &padded.shape[..]) else { return None };
    if one.len() != two.len() || alone.datatype != padded.datatype {
        return None;
    }
    alone.datatype.size()?;
    let mut axis = None;
    for (index, (one, two)) in (1..).zip(one.iter().zip(two)) {
        match [*one, *two] == widths.map(i64::from) {
            _ if one == two => {}
            true if axis.is_none() => axis = Some(index),
            _ => return None,
        }
    }
    Some(axis)
}

/// An output that nothing reads.
fn missing() -> Tensor {
    Tensor { datatype: Datatype::Fp32, shape: Shape::new(), contents: bytes::Bytes::new() }
}

/// The difference between numbers that is noise of another order of additions, as a part of the largest number.
const NOISE: f64 = 1e-3;

/// Returns true if two tensors of one shape differ by noise alone.
fn is_near(one: &Tensor, other: &Tensor) -> Option<bool> {
    if one.shape != other.shape {
        return None;
    }
    let [one, other] = [one, other].map(|tensor| steps::tensors::doubles("output", tensor).ok());
    let (one, other) = (one?, other?);
    let largest =
        one.iter().filter(|number| number.is_finite()).fold(0.0_f64, |largest, number| largest.max(number.abs()));
    let is_near = |(one, other): (&f64, &f64)| {
        (one - other).abs() <= largest * NOISE || one == other || (one.is_nan() && other.is_nan())
    };
    Some(one.iter().zip(other.iter()).all(is_near))
}

/// The bytes of a number; `None` if the datatype cannot hold it.
fn pad_bytes(datatype: Datatype, number: f64) -> Option<PadBytes> {
    #[expect(clippy::cast_possible_truncation, reason = "checked by the way back, or rounded as floats are")]
    let whole = number as i64;
    #[expect(clippy::cast_precision_loss, reason = "a number that is not exact is refused")]
    let whole = Some(whole).filter(|whole| *whole as f64 == number);
    let bytes = |bytes: &[u8]| Some(PadBytes::from_slice(bytes));
    #[expect(clippy::cast_possible_truncation, reason = "rounded as floats are")]
    let float = number as f32;
    match datatype {
        Datatype::Bool => bytes(&[u8::try_from(whole?).ok().filter(|value| *value < 2)?]),
        Datatype::Uint8 => bytes(&u8::try_from(whole?).ok()?.to_le_bytes()),
        Datatype::Uint16 => bytes(&u16::try_from(whole?).ok()?.to_le_bytes()),
        Datatype::Uint32 => bytes(&u32::try_from(whole?).ok()?.to_le_bytes()),
        Datatype::Uint64 => bytes(&u64::try_from(whole?).ok()?.to_le_bytes()),
        Datatype::Int8 => bytes(&i8::try_from(whole?).ok()?.to_le_bytes()),
        Datatype::Int16 => bytes(&i16::try_from(whole?).ok()?.to_le_bytes()),
        Datatype::Int32 => bytes(&i32::try_from(whole?).ok()?.to_le_bytes()),
        Datatype::Int64 => bytes(&whole?.to_le_bytes()),
        Datatype::Fp16 => bytes(&f16::from_f64(number).to_le_bytes()),
        Datatype::Bf16 => bytes(&bf16::from_f64(number).to_le_bytes()),
        Datatype::Fp32 => bytes(&float.to_le_bytes()),
        Datatype::Fp64 => bytes(&number.to_le_bytes()),
        Datatype::Bytes => None,
    }
}
