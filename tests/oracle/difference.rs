//! Where Deuteron means to answer otherwise than tritonserver 2.51: one row per decision.
//!
//! A row says which answers of Triton it is about and what they become; the result is what Deuteron must answer, to
//! the byte. A difference that is not in this table fails, and so does a row that no answer needs any more.

use crate::oracle::{case::Case, compare::Difference};

/// The table.
pub const DIFFERENCES: &[Difference] = &[];

/// Keeps the signature of predicates in one place.
pub fn is_http(_: &Case, answer: &str) -> bool {
    answer.as_bytes().first().is_some_and(u8::is_ascii_digit)
}
