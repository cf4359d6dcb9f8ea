//! Windows of `tokenize`: a pair that is too long becomes several rows, each with its first text and a part of the second, as
//! `return_overflowing_tokens` and `stride` of transformers make them.

use base::error::Error;

use super::rows::{RowToken, TokenRows};
use crate::fields::StepFields;

/// The windows of rows that are too long.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Most tokens of a row.
    length: usize,
    /// Tokens of the second text that a window shares with the one before.
    stride: usize,
}

/// The number of the second text.
const SECOND: u32 = 2;

impl Windows {
    /// Reads the parameters; `None` if the list asks for no windows. `length` is the most tokens of a row.
    ///
    /// # Errors
    /// If `stride` has no meaning with the other parameters, or is no less than a row.
    pub fn read(fields: &StepFields<'_>, length: Option<usize>) -> Result<Option<Self>, Error> {
        let Some(stride) = fields.count("stride") else { return Ok(None) };
        let wrong = |why: &str| Err(fields.error("stride", why));
        if fields.text("truncation") != "only_second" {
            return wrong("needs \"truncation\": \"only_second\", the text that windows divide");
        }
        if !fields.is_wanted(super::WINDOW_OF) {
            return wrong("needs the output \"window_of\", which says the row that a window is of");
        }
        if fields.is_given("expansion") {
            return wrong("cannot be given with \"expansion\"");
        }
        match length {
            Some(length) if stride < length => Ok(Some(Self { length, stride })),
            Some(length) => wrong(&format!("must be less than the {length} tokens of a row")),
            None => wrong("needs the parameter \"max_length\": neither file has a length"),
        }
    }

    /// Makes windows of the row that the next [`TokenRows::end_row`] completes: the last of them is then that row, and the others
    /// are complete.
    ///
    /// # Errors
    /// If the first text leaves no room, or there are too many tokens.
    pub fn divide(self, rows: &mut TokenRows) -> Result<(), String> {
        if rows.row_mut().len() <= self.length {
            return Ok(());
        }
        let row = rows.take_row();
        let is_second = |token: &RowToken| token.text == SECOND;
        let begin = row.iter().position(is_second).unwrap_or(row.len());
        let end = row.iter().rposition(is_second).map_or(begin, |last| last + 1);
        let [before, second, behind] =
            [0..begin, begin..end, end..row.len()].map(|part| row.get(part).unwrap_or_default());
        let room = self.length.saturating_sub(before.len() + behind.len());
        if room <= self.stride {
            let stride = self.stride;
            return Err(format!("the first text leaves {room} tokens for the second, of which windows share {stride}"));
        }
        let mut start = 0;
        loop {
            let part = second.iter().skip(start).take(room);
            rows.extend(before.iter().chain(part).chain(behind).copied());
            if start + room >= second.len() {
                return Ok(());
            }
            rows.end_row()?;
            start += room - self.stride;
        }
    }
}
