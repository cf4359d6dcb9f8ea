//! A step that moves a box of elements in each row of the batch by `reshape_box`. The box is made at load for one row;
//! a batch's has its rows as the first dimension, and reaches the device in the batch's upload.

use crate::gpu::plan::form::PlanShape;
use backend::kernel::LaunchPlan;
use backend::kernel::reshape::{BoxPart, ELEMENT_SIZE, RANK_MAX, box_plan, fold};
use base::error::Error;

/// A box of FP32 elements that moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BoxMove {
    /// If the value has rows, its first dimension is one row.
    part: BoxPart,
    rank: usize,
    has_rows: bool,
}

impl BoxMove {
    /// Dimension `i` of the result is dimension `axes[i]` of the source; the rows' axis stays the first.
    ///
    /// # Errors
    ///
    /// As a text, if there are too many dimensions or elements.
    pub(super) fn transposed(source: &PlanShape, axes: &[usize]) -> Result<Self, &'static str> {
        Self::of(BoxPart::transposed(0, &sizes(source)?, 0, axes), source)
    }

    /// The part of a value that begins in each dimension at the first number and steps by the
    /// second.
    ///
    /// # Errors
    ///
    /// As [`Self::transposed`].
    pub(super) fn sliced(source: &PlanShape, starts: &[(usize, i64)], part: &PlanShape) -> Result<Self, &'static str> {
        let mut new = Self::of(BoxPart::cropped(0, &sizes(source)?, 0, &sizes(part)?), source)?;
        let strides = new.part.source_strides.iter_mut().skip(usize::from(source.has_rows));
        let mut begin = 0_i64;
        for ((stride, (start, step)), count) in strides.zip(starts).zip(&part.dims) {
            let ahead = i64::try_from(*start).ok().and_then(|start| start.checked_mul(*stride));
            begin = ahead.and_then(|ahead| begin.checked_add(ahead)).ok_or(TOO_LARGE)?;
            // The step of a single element is not used, and may be any number.
            let step = if *count > 1 { *step } else { 1 };
            *stride = stride.checked_mul(step).ok_or(TOO_LARGE)?;
        }
        new.part.source =
            u64::try_from(begin).ok().and_then(|begin| begin.checked_mul(ELEMENT_SIZE as u64)).ok_or(TOO_LARGE)?;
        Ok(new)
    }

    /// A value that is put into a larger one, behind `start` elements of the axis, which does not
    /// count the rows'.
    ///
    /// # Errors
    ///
    /// As [`Self::transposed`].
    pub(super) fn joined(part: &PlanShape, whole: &PlanShape, axis: usize, start: usize) -> Result<Self, &'static str> {
        // The reverse of a crop.
        let mut new = Self::of(BoxPart::cropped(0, &sizes(whole)?, 0, &sizes(part)?), part)?;
        std::mem::swap(&mut new.part.source_strides, &mut new.part.target_strides);
        let stride = new.part.target_strides.get(axis + usize::from(part.has_rows)).copied().unwrap_or_default();
        let begin = u64::try_from(stride).ok().and_then(|stride| stride.checked_mul(start as u64));
        new.part.target = begin.and_then(|begin| begin.checked_mul(ELEMENT_SIZE as u64)).ok_or(TOO_LARGE)?;
        Ok(new)
    }

    fn of(part: Result<BoxPart, Error>, form: &PlanShape) -> Result<Self, &'static str> {
        Ok(Self { part: part.map_err(|_| TOO_LARGE)?, rank: form.rank(), has_rows: form.has_rows })
    }

    /// Returns true if a dimension is 0, so that nothing moves and no product of the others counts.
    fn is_empty(&self) -> bool {
        self.part.extents.contains(&0)
    }

    /// Returns the box of `rows` rows, and the number of its dimensions in use.
    pub(super) fn of_rows(&self, rows: usize) -> Option<(BoxPart, usize)> {
        let mut part = [self.part];
        if self.is_empty() {
            return Some((part[0], self.rank));
        }
        if self.has_rows {
            let rows = u32::try_from(rows).ok()?;
            part[0].extents[0] = rows;
        }
        let rank = fold(&mut part, self.rank);
        Some((part[0], rank))
    }

    /// Returns the launch for `rows` rows.
    ///
    /// # Errors
    ///
    /// Unsupported, if there are too many elements.
    pub(super) fn launch(&self, rows: usize) -> Result<LaunchPlan, Error> {
        if self.is_empty() {
            return Ok(LaunchPlan::default());
        }
        let (part, rank) = self.of_rows(rows).ok_or_else(|| Error::unsupported(TOO_LARGE))?;
        box_plan(&[part], rank)
    }
}

/// A shape with one row, if it has rows.
fn sizes(form: &PlanShape) -> Result<Vec<u32>, &'static str> {
    if form.rank() > RANK_MAX {
        return Err("has more than 6 dimensions, the batch's counted");
    }
    let sizes = form.has_rows.then_some(&1).into_iter().chain(&form.dims);
    sizes.map(|size| u32::try_from(*size).map_err(|_| TOO_LARGE)).collect()
}

const TOO_LARGE: &str = "has more elements than one launch takes";
