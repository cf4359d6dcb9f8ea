//! Operators that only move elements within each row of the batch: Transpose, Slice, Split and
//! Concat. Each box of elements that moves is one step, a launch of `reshape_box`. If every element
//! keeps its place there is no step. An operator that would move elements from one row of the batch
//! to another is refused.

use smallvec::SmallVec;

use super::{Compiler, KnownValue, TOO_LARGE, output_name, refused};
use crate::gpu::plan::box_move::BoxMove;
use crate::gpu::plan::form::{PlanShape, StepSize};
use crate::gpu::plan::layout::ValueName;
use crate::gpu::plan::{PlanStep, StepWork};
use model::onnx::graph::OnnxNode;

/// The part of a dimension that a slice takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AxisRange {
    start: usize,
    step: i64,
    count: usize,
}

impl<'a> Compiler<'a> {
    pub(super) fn add_transpose(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let rank = known.form.rank();
        let axes: Option<Vec<usize>> = match node.integers("perm") {
            None => Some((0..rank).rev().collect()),
            Some(axes) => axes.iter().map(|axis| usize::try_from(*axis).ok()).collect(),
        };
        let axes = axes.filter(|axes| is_permutation(axes, rank));
        let axes = axes.ok_or_else(|| refused(node, "has axes that are no permutation of its input's"))?;
        let Some(dims) = behind_rows(&known.form, &axes) else { return Err(refused(node, MOVES_ROWS)) };
        let order: SmallVec<[usize; 6]> = dims.iter().map(|axis| axis - usize::from(known.form.has_rows)).collect();
        let size = |axis: &usize| known.form.dims.get(*axis).copied().unwrap_or_default();
        let form = PlanShape { has_rows: known.form.has_rows, dims: order.iter().map(size).collect() };
        // Dimensions of 1 may go anywhere: no element moves.
        if order.iter().filter(|axis| size(axis) != 1).is_sorted() {
            self.values.insert(output_name(node)?, KnownValue { form, buffer: known.buffer });
            return Ok(());
        }
        let part = BoxMove::transposed(&known.form, &axes).map_err(|why| refused(node, why))?;
        let count = form.count().ok_or_else(|| refused(node, TOO_LARGE))?;
        let size = StepSize { per_row: 1, columns: count };
        self.push(node, StepWork::Move(part), size, ValueName::Buffer(known.buffer), form)
    }

    pub(super) fn add_slice(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let unknown = || refused(node, "has ranges that are not known at load");
        // They were attributes before opset 10 (ONNX operator Slice).
        let list = |name: &str, index: usize| match node.integers(name) {
            Some(values) => Some(values.to_vec()),
            None => self.integers(node.input(index)?),
        };
        let (starts, ends) = list("starts", 1).zip(list("ends", 2)).ok_or_else(unknown)?;
        let given = |name: &str, index: usize, default: Vec<i64>| match (node.integers(name), node.input(index)) {
            (None, None) => Some(default),
            _ => list(name, index),
        };
        let axes = given("axes", 3, (0..starts.len() as i64).collect()).ok_or_else(unknown)?;
        let steps = given("steps", 4, vec![1; starts.len()]).ok_or_else(unknown)?;
        if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
            return Err(refused(node, "has ranges of which one lacks its end, its axis or its step"));
        }
        let whole = known.form.dims.iter().map(|size| AxisRange { start: 0, step: 1, count: *size });
        let mut ranges: SmallVec<[AxisRange; 6]> = whole.collect();
        for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
            let place = self.axis_behind_rows(node, &known.form, *axis)?;
            let size = known.form.dims.get(place).copied().unwrap_or_default();
            let range = AxisRange::new(size, *start, *end, *step).ok_or_else(unknown)?;
            if let Some(place) = ranges.get_mut(place) {
                *place = range;
            }
        }
        self.push_part(node, &known, &ranges, output_name(node)?)
    }

    pub(super) fn add_split(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let known = self.value(node, 0)?;
        let axis = self.axis_behind_rows(node, &known.form, node.integer("axis", 0))?;
        let size = known.form.dims.get(axis).copied().unwrap_or_default();
        let listed = match (node.integers("split"), node.input(1)) {
            (Some(values), _) => Some(values.to_vec()),
            (None, Some(name)) => self.integers(name),
            (None, None) => Some(equal_parts(size, node.outputs.len())),
        };
        let sizes: Option<Vec<usize>> =
            listed.and_then(|sizes| sizes.iter().map(|size| usize::try_from(*size).ok()).collect());
        let is_whole = |sizes: &Vec<usize>| {
            sizes.len() == node.outputs.len() && sizes.iter().copied().fold(0, usize::saturating_add) == size
        };
        let sizes = sizes.filter(is_whole);
        let sizes = sizes.ok_or_else(|| refused(node, "has parts that are not known at load, or are not all of it"))?;
        let mut start = 0;
        for (name, count) in node.outputs.iter().zip(sizes) {
            let whole = known.form.dims.iter().map(|size| AxisRange { start: 0, step: 1, count: *size });
            let mut ranges: SmallVec<[AxisRange; 6]> = whole.collect();
            if let Some(place) = ranges.get_mut(axis) {
                *place = AxisRange { start, step: 1, count };
            }
            self.push_part(node, &known, &ranges, name)?;
            start += count;
        }
        Ok(())
    }

    pub(super) fn add_concat(&mut self, node: &'a OnnxNode) -> Result<(), String> {
        let parts: Vec<KnownValue> =
            (0..node.inputs.len()).map(|index| self.value(node, index)).collect::<Result<_, _>>()?;
        let first = parts.first().ok_or_else(|| refused(node, "joins nothing"))?.form.clone();
        let axis = self.axis_behind_rows(node, &first, node.integer("axis", 0))?;
        let mut form = first;
        let mut total = 0_usize;
        for part in &parts {
            let size = part.form.dims.get(axis).copied().unwrap_or_default();
            if let Some(place) = form.dims.get_mut(axis) {
                *place = size;
            }
            if part.form != form {
                return Err(refused(node, "joins shapes that do not go together"));
            }
            total = total.checked_add(size).ok_or_else(|| refused(node, TOO_LARGE))?;
        }
        if let Some(place) = form.dims.get_mut(axis) {
            *place = total;
        }
        let joined = self.new_value(form)?;
        let mut start = 0;
        for part in &parts {
            let boxed = BoxMove::joined(&part.form, &joined.form, axis, start).map_err(|why| refused(node, why))?;
            let columns = self.count(part.buffer);
            let (input, output) = (ValueName::Buffer(part.buffer), ValueName::Buffer(joined.buffer));
            self.steps.push(PlanStep { work: StepWork::Move(boxed), per_row: 1, columns, input, output });
            start += part.form.dims.get(axis).copied().unwrap_or_default();
        }
        self.values.insert(output_name(node)?, joined);
        Ok(())
    }

    /// Makes an output of a part of a value.
    fn push_part(
        &mut self,
        node: &'a OnnxNode,
        known: &KnownValue,
        ranges: &[AxisRange],
        name: &'a str,
    ) -> Result<(), String> {
        let dims = ranges.iter().map(|range| range.count).collect();
        let form = PlanShape { has_rows: known.form.has_rows, dims };
        let is_whole = |(range, size): (&AxisRange, &usize)| range.count == *size && (range.step == 1 || *size <= 1);
        if ranges.iter().zip(&known.form.dims).all(is_whole) {
            self.values.insert(name, KnownValue { form, buffer: known.buffer });
            return Ok(());
        }
        let starts: SmallVec<[(usize, i64); 6]> = ranges.iter().map(|range| (range.start, range.step)).collect();
        let part = BoxMove::sliced(&known.form, &starts, &form).map_err(|why| refused(node, why))?;
        let columns = form.count().ok_or_else(|| refused(node, TOO_LARGE))?;
        let taken = self.new_value(form)?;
        let (input, output) = (ValueName::Buffer(known.buffer), ValueName::Buffer(taken.buffer));
        self.steps.push(PlanStep { work: StepWork::Move(part), per_row: 1, columns, input, output });
        self.values.insert(name, taken);
        Ok(())
    }

    /// An axis of a value as an index of the dimensions behind the batch's.
    fn axis_behind_rows(&self, node: &OnnxNode, form: &PlanShape, axis: i64) -> Result<usize, String> {
        let rank = form.rank();
        let index = usize::try_from(if axis < 0 { axis.saturating_add(rank as i64) } else { axis });
        let index = index.ok().filter(|index| *index < rank);
        let index = index.ok_or_else(|| refused(node, "has an axis that its input does not have"))?;
        index.checked_sub(usize::from(form.has_rows)).ok_or_else(|| refused(node, MOVES_ROWS))
    }
}

impl AxisRange {
    /// Returns the range that ONNX's Slice takes of a dimension of this size; bounds outside of it
    /// are moved to its ends.
    fn new(size: usize, start: i64, end: i64, step: i64) -> Option<Self> {
        let size = i64::try_from(size).ok()?;
        let from_end = |place: i64| if place < 0 { place.saturating_add(size) } else { place };
        let (start, end) = (from_end(start), from_end(end));
        let (start, distance) = match step {
            1.. => (start.clamp(0, size), end.clamp(0, size) - start.clamp(0, size)),
            ..=-1 => {
                let start = start.clamp(-1, size - 1);
                (start, start - end.clamp(-1, size - 1))
            }
            0 => return None,
        };
        let count = usize::try_from(distance.max(0)).ok()?.div_ceil(usize::try_from(step.unsigned_abs()).ok()?);
        Some(Self { start: if count == 0 { 0 } else { usize::try_from(start).ok()? }, step, count })
    }
}

/// The sizes of equal parts; the last is smaller if they are not equal (ONNX operator Split).
fn equal_parts(size: usize, count: usize) -> Vec<i64> {
    let part = size.div_ceil(count.max(1));
    (0..count).map(|index| size.saturating_sub(index * part).min(part) as i64).collect()
}

fn is_permutation(axes: &[usize], rank: usize) -> bool {
    axes.len() == rank && (0..rank).all(|axis| axes.contains(&axis))
}

/// The axes behind that of the rows, which must stay the first.
fn behind_rows<'b>(form: &PlanShape, axes: &'b [usize]) -> Option<&'b [usize]> {
    match (form.has_rows, axes) {
        (false, all) => Some(all),
        (true, [0, rest @ ..]) => Some(rest),
        (true, _) => None,
    }
}

const MOVES_ROWS: &str = "moves or cuts the batch axis: rows of different requests would mix";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_onnx_takes_of_a_dimension() {
        let check = |size: usize, [start, end, step]: [i64; 3], want: &str| {
            let got = AxisRange::new(size, start, end, step);
            let got = got.map_or("none".to_owned(), |range| {
                let place = |index: usize| range.start as i64 + index as i64 * range.step;
                (0..range.count).map(|index| place(index).to_string()).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(got, want, "{size} {start} {end} {step}");
        };
        check(5, [0, 5, 1], "0 1 2 3 4");
        check(5, [1, i64::MAX, 2], "1 3");
        check(5, [-2, i64::MAX, 1], "3 4");
        check(5, [0, -1, 3], "0 3");
        check(5, [-1, i64::MIN, -1], "4 3 2 1 0");
        check(5, [9, 0, -2], "4 2");
        check(5, [3, 1, 1], "");
        check(5, [1, 3, -1], "");
        check(5, [i64::MIN, i64::MAX, 4], "0 4");
        check(5, [i64::MAX, i64::MIN, i64::MIN], "4");
        check(0, [0, 9, 1], "");
        check(0, [-1, i64::MIN, -1], "");
        check(5, [0, 5, 0], "none");
    }

    #[test]
    fn parts_are_equal_but_for_the_last() {
        assert_eq!(equal_parts(6, 3), [2, 2, 2]);
        assert_eq!(equal_parts(7, 3), [3, 3, 1]);
        assert_eq!(equal_parts(0, 2), [0, 0]);
    }
}
