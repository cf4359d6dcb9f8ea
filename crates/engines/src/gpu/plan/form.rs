//! The shape of a value in a plan: a flag for the rows of the batch as its first dimension, and the
//! other dimensions, which are known at load. A change of shape moves no bytes.

use smallvec::SmallVec;

/// A shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PlanShape {
    /// True if the rows of the batch come before `dims`.
    pub(super) has_rows: bool,
    /// The known dimensions.
    pub(super) dims: SmallVec<[usize; 6]>,
}

/// The size of the matrix that a step computes.
#[derive(Clone, Copy)]
pub(super) struct StepSize {
    /// Rows for each row of the batch.
    pub(super) per_row: usize,
    pub(super) columns: usize,
}

impl PlanShape {
    /// From a full shape, whose first dimension is the batch's if `has_rows`. `None` if another is
    /// unknown.
    pub(super) fn of_shape(shape: &[i64], has_rows: bool) -> Option<Self> {
        let dims = shape.get(usize::from(has_rows)..)?.iter().map(|size| usize::try_from(*size).ok());
        Some(Self { has_rows, dims: dims.collect::<Option<_>>()? })
    }

    /// The number of its dimensions, that of the rows included.
    pub(super) fn rank(&self) -> usize {
        self.dims.len() + usize::from(self.has_rows)
    }

    /// Its elements for each row of the batch, or all of them if it has no rows. `None` on overflow.
    pub(super) fn count(&self) -> Option<usize> {
        product(&self.dims)
    }

    /// Its size as a matrix whose columns are the last `axes` dimensions.
    pub(super) fn as_matrix(&self, axes: usize) -> Option<StepSize> {
        let (rows, columns) = self.dims.split_at_checked(self.dims.len().checked_sub(axes)?)?;
        Some(StepSize { per_row: product(rows)?, columns: product(columns)? })
    }

    /// The shape with another last dimension.
    pub(super) fn with_columns(&self, columns: usize) -> Self {
        let mut new = self.clone();
        if let Some(last) = new.dims.last_mut() {
            *last = columns;
        }
        new
    }

    /// `Reshape`: a 0 keeps the dimension, unless `allows_zero` makes it a size; -1 takes the remaining elements.
    pub(super) fn reshape(&self, wanted: &[i64], allows_zero: bool) -> Option<Self> {
        let rest = match (self.has_rows, wanted) {
            (false, all) => all,
            // The batch must remain the first dimension, kept (0) or inferred (-1): another size would mix
            // elements of different rows.
            (true, [0, rest @ ..]) if !allows_zero => rest,
            (true, [-1, rest @ ..]) if !rest.contains(&-1) => rest,
            (true, _) => return None,
        };
        let mut dims = SmallVec::<[usize; 6]>::new();
        let mut open = None;
        for (index, size) in rest.iter().enumerate() {
            dims.push(match *size {
                -1 if open.is_none() => {
                    open = Some(index);
                    1
                }
                0 if !allows_zero => *self.dims.get(index)?,
                size => usize::try_from(size).ok()?,
            });
        }
        let (count, known) = (self.count()?, product(&dims)?);
        if let Some(place) = open.and_then(|index| dims.get_mut(index)) {
            *place = count.checked_div(known)?;
        }
        (product(&dims)? == count).then_some(Self { has_rows: self.has_rows, dims })
    }

    /// `Flatten`: a matrix of the dimensions before the axis by those from it on.
    pub(super) fn flatten(&self, axis: i64) -> Option<Self> {
        let axis = self.axis(axis, self.rank())?;
        if self.has_rows {
            return (axis == 1).then_some(Self { has_rows: true, dims: SmallVec::from_slice(&[self.count()?]) });
        }
        let (before, behind) = self.dims.split_at_checked(axis)?;
        Some(Self { has_rows: false, dims: SmallVec::from_slice(&[product(before)?, product(behind)?]) })
    }

    /// `Squeeze`: without these axes, whose size must be 1.
    pub(super) fn squeeze(&self, axes: &[i64]) -> Option<Self> {
        let mut dims: SmallVec<[Option<usize>; 6]> = self.dims.iter().copied().map(Some).collect();
        for axis in axes {
            let axis = self.axis(*axis, self.rank())?.checked_sub(usize::from(self.has_rows))?;
            let place = dims.get_mut(axis)?;
            if place.take() != Some(1) {
                return None;
            }
        }
        Some(Self { has_rows: self.has_rows, dims: dims.into_iter().flatten().collect() })
    }

    /// `Unsqueeze`: with a dimension of 1 inserted at these axes of the result.
    pub(super) fn unsqueeze(&self, axes: &[i64]) -> Option<Self> {
        let rank = self.rank().checked_add(axes.len())?;
        let mut axes: SmallVec<[usize; 6]> = axes.iter().map(|axis| self.axis(*axis, rank)).collect::<Option<_>>()?;
        axes.sort_unstable();
        let mut new = self.clone();
        for axis in axes {
            let at = axis.checked_sub(usize::from(self.has_rows))?;
            if at > new.dims.len() {
                return None;
            }
            new.dims.insert(at, 1);
        }
        (new.rank() == rank).then_some(new)
    }

    /// An axis as an index; a negative one counts from the end.
    fn axis(&self, axis: i64, rank: usize) -> Option<usize> {
        let rank = i64::try_from(rank).ok()?;
        usize::try_from(if axis < 0 { axis.checked_add(rank)? } else { axis }).ok().filter(|axis| *axis as i64 <= rank)
    }

    /// Returns the number of last dimensions that a constant operand of this shape has, if it
    /// broadcasts over the others; `None` if it does not.
    pub(super) fn repeated(&self, operand: &[i64]) -> Option<usize> {
        if operand.len() > self.rank() {
            return None;
        }
        let rest = operand.iter().skip_while(|size| **size == 1);
        let sizes: SmallVec<[usize; 6]> = rest.map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?;
        self.dims.ends_with(&sizes).then_some(sizes.len())
    }
}

fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> PlanShape {
        let has_rows = text.starts_with('N');
        let dims = text.split(' ').filter(|size| *size != "N").map(|size| size.parse().unwrap());
        PlanShape { has_rows, dims: dims.collect() }
    }

    fn shown(form: Option<PlanShape>) -> String {
        let Some(form) = form else { return "none".to_owned() };
        let rows = form.has_rows.then(|| "N".to_owned());
        rows.into_iter().chain(form.dims.iter().map(usize::to_string)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_reshape_keeps_the_rows_or_is_refused() {
        let check = |from: &str, wanted: &[i64], want: &str| {
            assert_eq!(shown(form(from).reshape(wanted, false)), want, "{from} {wanted:?}");
        };
        check("N 4 6", &[-1, 24], "N 24");
        check("N 4 6", &[0, -1], "N 24");
        check("N 4 6", &[0, 0, 3, -1], "N 4 3 2");
        check("N 4 6", &[-1, 12], "none");
        check("N 4 6", &[1, -1], "none");
        check("N 4 6", &[-1, 6, -1], "none");
        check("N 4 6", &[0, 5, -1], "none");
        check("4 6", &[-1, 8], "3 8");
        check("4 6", &[0, 2, 3], "4 2 3");
        check("4 6", &[7, -1], "none");
        assert_eq!(shown(form("N 4").reshape(&[0, 4], true)), "none");
    }

    #[test]
    fn axes_are_counted_from_both_ends_and_the_rows_stay_first() {
        assert_eq!(shown(form("N 4 6").flatten(1)), "N 24");
        assert_eq!(shown(form("N 4 6").flatten(-2)), "N 24");
        assert_eq!(shown(form("N 4 6").flatten(2)), "none");
        assert_eq!(shown(form("2 4 6").flatten(2)), "8 6");
        assert_eq!(shown(form("2 4 6").flatten(0)), "1 48");
        assert_eq!(shown(form("N 1 6 1").squeeze(&[1, -1])), "N 6");
        assert_eq!(shown(form("N 1 6").squeeze(&[0])), "none");
        assert_eq!(shown(form("N 2 6").squeeze(&[1])), "none");
        assert_eq!(shown(form("N 6").unsqueeze(&[1, -1])), "N 1 6 1");
        assert_eq!(shown(form("N 6").unsqueeze(&[0])), "none");
        assert_eq!(shown(form("6").unsqueeze(&[0, 5])), "none");
    }

    #[test]
    fn an_operand_is_repeated_over_the_dimensions_before_its_own() {
        let check = |of: &str, operand: &[i64], want| assert_eq!(form(of).repeated(operand), want, "{of} {operand:?}");
        check("N 4 6", &[], Some(0));
        check("N 4 6", &[1], Some(0));
        check("N 4 6", &[6], Some(1));
        check("N 4 6", &[1, 1, 6], Some(1));
        check("N 4 6", &[1, 4, 6], Some(2));
        check("N 4 6", &[4, 1], None);
        check("N 4 6", &[1, 1, 1, 6], None);
        check("N 6", &[3, 6], None);
    }
}
