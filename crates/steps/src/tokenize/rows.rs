//! The tokens of a request, row after row in flat lists, and the tensors made of them.

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::limits::TOKENS_MAX;
use crate::tensors::of_numbers;

/// A token of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowToken {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The text that it is from, as the post-processor numbers them.
    pub type_id: u32,
    /// True if the post-processor added it.
    pub is_special: bool,
    /// First character and the one after the last; zeros for a special token.
    pub offsets: [u32; 2],
    /// 1 if it is a token of the first text, 2 of the second; 0 for a special token.
    pub text: u32,
    /// The word of its text that it is a part of, from 1; 0 for a special token.
    pub word: u32,
    /// True if its vector is not one of the row's.
    pub is_skipped: bool,
    /// True if the other tokens do not see it.
    pub is_hidden: bool,
}

/// The tokens of a request.
#[derive(Debug, Default)]
pub struct TokenRows {
    tokens: Vec<RowToken>,
    /// For each row, the number of its tokens.
    lengths: Vec<usize>,
    /// The sum of all lengths but that of the last row, which is not complete.
    complete: usize,
}

impl TokenRows {
    /// Empty, with room for `rows` rows.
    pub fn new(rows: usize) -> Self {
        Self { tokens: Vec::new(), lengths: Vec::with_capacity(rows), complete: 0 }
    }

    /// Adds a token to the row that [`Self::end_row`] will complete.
    pub fn push(&mut self, token: RowToken) {
        self.tokens.push(token);
    }

    /// The same for several tokens.
    pub fn extend(&mut self, tokens: impl IntoIterator<Item = RowToken>) {
        self.tokens.extend(tokens);
    }

    /// The tokens of the row that [`Self::end_row`] will complete.
    pub fn row_mut(&mut self) -> &mut [RowToken] {
        self.tokens.get_mut(self.complete..).unwrap_or_default()
    }

    /// Moves the tokens of that row out.
    pub fn take_row(&mut self) -> Vec<RowToken> {
        self.tokens.split_off(self.complete.min(self.tokens.len()))
    }

    /// The number of complete rows.
    pub const fn count(&self) -> usize {
        self.lengths.len()
    }

    /// Shortens that row to `length` tokens: the last ones go that are not special.
    pub fn shorten_row(&mut self, length: usize) {
        let mut excess = self.tokens.len().saturating_sub(self.complete).saturating_sub(length);
        let mut kept: Vec<RowToken> = Vec::new();
        for token in self.tokens.drain(self.complete..).rev() {
            match excess > 0 && !token.is_special {
                true => excess -= 1,
                false => kept.push(token),
            }
        }
        self.tokens.extend(kept.into_iter().rev());
    }

    /// Completes a row.
    ///
    /// # Errors
    /// If all rows have more than [`TOKENS_MAX`] tokens.
    pub fn end_row(&mut self) -> Result<(), String> {
        let length = self.tokens.len().saturating_sub(self.complete);
        self.complete = self.tokens.len();
        self.lengths.push(length);
        if self.complete > TOKENS_MAX {
            return Err(format!("the request has more than {TOKENS_MAX} tokens, the most that one may have"));
        }
        Ok(())
    }

    /// The number of tokens in the longest row.
    pub fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// The number of tokens that all rows have.
    ///
    /// # Errors
    /// If rows differ.
    pub fn common_length(&self) -> Result<usize, Error> {
        let first = self.lengths.first().copied().unwrap_or(0);
        match self.lengths.iter().position(|length| *length != first) {
            None => Ok(first),
            Some(row) => Err(Error::invalid(format!(
                "'text' has elements of different numbers of tokens without padding: {first} in the first, {} in element \
                 {row}; \"padding\" can be \"longest\"",
                self.lengths.get(row).copied().unwrap_or(0)
            ))),
        }
    }
}

/// The form of the output tensors: all rows are padded to one width.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// INT32 or INT64.
    pub datatype: Datatype,
    /// Tokens of each row, padding included.
    pub width: usize,
    /// True if padding comes before the tokens.
    pub is_left: bool,
    /// The token that pads.
    pub pad: RowToken,
}

impl Form {
    /// Checks the size of the outputs.
    ///
    /// # Errors
    /// If they have more than [`TOKENS_MAX`] tokens, or an id does not fit INT32.
    pub fn check(&self, rows: &TokenRows) -> Result<(), Error> {
        let count = rows.lengths.len().checked_mul(self.width).filter(|count| *count <= TOKENS_MAX);
        if count.is_none() {
            return Err(Error::invalid(format!(
                "'text' has {} elements of {} tokens with padding, more than the {TOKENS_MAX} tokens that one request may have",
                rows.lengths.len(),
                self.width
            )));
        }
        let is_narrow = self.datatype == Datatype::Int32;
        match rows.tokens.iter().chain([&self.pad]).map(|token| token.id).find(|id| i32::try_from(*id).is_err()) {
            Some(id) if is_narrow => {
                Err(Error::invalid(format!("the id {id} does not fit INT32; \"datatype\" can be \"INT64\"")))
            }
            _ => Ok(()),
        }
    }

    /// A tensor [rows, width] of one number of each token.
    pub fn tensor(&self, rows: &TokenRows, of: impl Fn(&RowToken) -> u32) -> Tensor {
        let shape = [rows.lengths.len(), self.width];
        self.numbers(&shape, rows, |token| [of(token)], [of(&self.pad)])
    }

    /// A tensor [rows, width] with 1 for a token and 0 for padding.
    pub fn mask(&self, rows: &TokenRows) -> Tensor {
        let shape = [rows.lengths.len(), self.width];
        self.numbers(&shape, rows, |token| [u32::from(!token.is_hidden)], [0])
    }

    /// A tensor [rows, width] with 1 for a token whose vector is one of the row's.
    pub fn kept(&self, rows: &TokenRows) -> Tensor {
        let shape = [rows.lengths.len(), self.width];
        self.numbers(&shape, rows, |token| [u32::from(!token.is_skipped)], [0])
    }

    /// A tensor [rows, width] with the places of tokens in their rows, from `first`; the place before it for padding.
    pub fn positions(&self, rows: &TokenRows, first: u32) -> Tensor {
        let mut place = first;
        let mut left = rows.lengths.iter();
        let mut in_row = left.next().copied().unwrap_or(0);
        // The tokens follow each other: a counter that begins again with each row has their places.
        let places = rows.tokens.iter().map(|_| {
            while in_row == 0 {
                in_row = left.next().copied().unwrap_or(usize::MAX);
                place = first;
            }
            in_row -= 1;
            place = place.saturating_add(1);
            RowToken { id: place - 1, ..RowToken::default() }
        });
        let placed = TokenRows { tokens: places.collect(), lengths: rows.lengths.clone(), complete: rows.complete };
        let shape = [rows.lengths.len(), self.width];
        self.numbers(&shape, &placed, |token| [token.id], [first.saturating_sub(1)])
    }

    /// A tensor [rows, width, 2] of offsets.
    pub fn offsets(&self, rows: &TokenRows) -> Tensor {
        let shape = [rows.lengths.len(), self.width, 2];
        self.numbers(&shape, rows, |token| token.offsets, [0, 0])
    }

    /// A tensor [rows] with the number of tokens without padding.
    pub fn lengths(&self, rows: &TokenRows) -> Tensor {
        self.counts(&rows.lengths)
    }

    /// A tensor [rows] with a count for each.
    pub fn counts(&self, counts: &[usize]) -> Tensor {
        let shape = [counts.len()];
        match self.datatype {
            Datatype::Int32 => {
                let counts = counts.iter().map(|count| i32::try_from(*count).unwrap_or(i32::MAX));
                of_numbers(Datatype::Int32, &shape, counts.collect())
            }
            _ => {
                let counts = counts.iter().map(|count| i64::try_from(*count).unwrap_or(i64::MAX));
                of_numbers(Datatype::Int64, &shape, counts.collect())
            }
        }
    }

    fn numbers<const N: usize>(
        &self,
        shape: &[usize],
        rows: &TokenRows,
        of: impl Fn(&RowToken) -> [u32; N],
        pad: [u32; N],
    ) -> Tensor {
        match self.datatype {
            // `check` has found that each fits.
            Datatype::Int32 => of_numbers(Datatype::Int32, shape, self.padded(rows, of, pad, u32::cast_signed)),
            _ => of_numbers(Datatype::Int64, shape, self.padded(rows, of, pad, i64::from)),
        }
    }

    fn padded<T: Copy, const N: usize>(
        &self,
        rows: &TokenRows,
        of: impl Fn(&RowToken) -> [u32; N],
        pad: [u32; N],
        as_number: impl Fn(u32) -> T,
    ) -> Vec<T> {
        // `check` has bounded the product.
        let mut numbers = Vec::with_capacity(rows.lengths.len().saturating_mul(self.width).saturating_mul(N));
        let mut rest = &rows.tokens[..];
        for length in &rows.lengths {
            let (row, after) = rest.split_at_checked(*length).unwrap_or((rest, &[]));
            rest = after;
            let padding = std::iter::repeat_n(pad, self.width.saturating_sub(row.len())).flatten().map(&as_number);
            let of_row = row.iter().flat_map(&of).map(&as_number);
            if self.is_left {
                numbers.extend(padding);
                numbers.extend(of_row);
            } else {
                numbers.extend(of_row);
                numbers.extend(padding);
            }
        }
        numbers
    }
}
