//! One call of another model in shares of its rows.

use std::collections::VecDeque;

use crate::batch::{join_rows, split_rows};
use base::error::Error;
use base::tensor::Tensor;
use steps::list::{AwaitedCall, StepCall};

/// One call of a step in shares of its rows.
pub(super) struct Shares {
    pub(super) call: StepCall,
    /// The rows of each; empty if all rows are one call.
    rows: Vec<u32>,
    /// The inputs of those that have not begun, with their places.
    pub(super) unsent: VecDeque<(usize, Vec<Tensor>)>,
    pub(super) outputs: Vec<Option<Vec<Option<Tensor>>>>,
    /// Those without a reply.
    pub(super) left: usize,
}

impl Shares {
    /// Divides a call by its rows.
    ///
    /// # Errors
    /// `InvalidArgument` if the inputs have different numbers of rows.
    pub(super) fn new(pending: AwaitedCall<'_>) -> Result<Self, Error> {
        let AwaitedCall { call, inputs } = pending;
        let rows = match call.rows {
            Some(rows) => rows_of_shares(call, &inputs, rows)?,
            None => Vec::new(),
        };
        let parts = if rows.is_empty() { vec![inputs] } else { split_rows(&inputs, &rows)? };
        let (left, outputs) = (parts.len(), parts.iter().map(|_| None).collect());
        Ok(Self { call: call.clone(), rows, unsent: parts.into_iter().enumerate().collect(), outputs, left })
    }

    /// The outputs of the whole call.
    pub(super) fn join(self) -> Result<Vec<Option<Tensor>>, Error> {
        let mut outputs = self.outputs.into_iter().flatten();
        if self.rows.is_empty() {
            return Ok(outputs.next().unwrap_or_default());
        }
        let whole: Option<Vec<Vec<Tensor>>> = outputs.map(|share| share.into_iter().collect()).collect();
        let joined = whole.and_then(|shares| join_rows(&shares, &self.rows));
        let joined = joined.ok_or_else(|| {
            let (model, rows) = (&self.call.model, self.call.rows.unwrap_or_default());
            Error::internal(format!(
                "the outputs of the model '{model}' for {rows} rows at a time do not fit together: each must have its rows \
                 first, and otherwise one shape; without \"rows\", one call has all of them"
            ))
        })?;
        Ok(joined.into_iter().map(Some).collect())
    }
}

/// The rows of each share, at most `rows_max`; empty for a single one.
fn rows_of_shares(call: &StepCall, inputs: &[Tensor], rows_max: u32) -> Result<Vec<u32>, Error> {
    let rows_of = |tensor: &Tensor| tensor.shape.first().copied().unwrap_or(1);
    let mut named = call.inputs.iter().zip(inputs.iter().map(rows_of));
    let Some((first, rows)) = named.next() else { return Ok(Vec::new()) };
    if let Some((other, others)) = named.find(|(_, others)| *others != rows) {
        let text = format!("the inputs must have the same rows, but '{first}' has {rows} and '{other}' has {others}");
        return Err(Error::invalid(text));
    }
    let rows = u32::try_from(rows).map_err(|_| Error::invalid(format!("'{first}' has too many rows: {rows}")))?;
    if rows <= rows_max {
        return Ok(Vec::new());
    }
    let begins = (0..rows).step_by(usize::try_from(rows_max).unwrap_or(usize::MAX));
    Ok(begins.map(|begin| rows_max.min(rows - begin)).collect())
}
