//! Reads arrays kept as text, nested or flat, directly into typed memory. Checks only the number and type of the
//! elements; how they are nested does not matter.

use crate::json::cursor::Cursor;
use crate::json::number::{NumberError, read_f32, read_f64, read_integer, read_run};
use crate::json::{JsonError, RawArray};
use base::limits::JSON_DEPTH_MAX;

/// The reason why the elements of an array could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayError {
    /// It is not JSON.
    Json(JsonError),
    /// An element is of another kind than requested.
    Kind,
    /// A number is not an integer, but an integer type was requested.
    Fraction {
        /// Index of the element, counted flat.
        index: usize,
        /// Its text, shortened if long.
        text: String,
    },
    /// A number does not fit the type.
    Range {
        /// Index of the element, counted flat.
        index: usize,
        /// Its text, shortened if long.
        text: String,
    },
    /// Fewer elements than requested.
    TooFew,
    /// More elements than requested.
    TooMany,
}

/// A type that numbers can be read as.
pub trait Number: Copy + sealed::Read {}

mod sealed {
    use super::{Cursor, NumberError};

    pub trait Read: Sized {
        fn read(cursor: &mut Cursor<'_>) -> Result<Self, NumberError>;

        /// Reads comma-separated elements into slots, as long as the fast path applies, and leaves the cursor after
        /// the last. Returns their number, which may be 0.
        fn read_run<'o>(_: &mut Cursor<'_>, _: &mut impl Iterator<Item = &'o mut Self>) -> usize
        where
            Self: 'o,
        {
            0
        }
    }
}

/// Implements `Number` for integers.
macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Number for $integer {}
        impl sealed::Read for $integer {
            #[inline]
            fn read(cursor: &mut Cursor<'_>) -> Result<Self, NumberError> {
                read_integer(cursor)
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);

impl Number for f32 {}
impl sealed::Read for f32 {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, NumberError> {
        read_f32(cursor)
    }

    #[inline]
    fn read_run<'o>(cursor: &mut Cursor<'_>, slots: &mut impl Iterator<Item = &'o mut Self>) -> usize {
        read_run(cursor, slots, |value| value as Self)
    }
}

impl Number for f64 {}
impl sealed::Read for f64 {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, NumberError> {
        read_f64(cursor)
    }

    #[inline]
    fn read_run<'o>(cursor: &mut Cursor<'_>, slots: &mut impl Iterator<Item = &'o mut Self>) -> usize {
        read_run(cursor, slots, |value| value)
    }
}

/// The reason why an element could not be read.
enum ElementStop {
    /// There is no memory left for it: too many elements.
    Full,
    /// It is not such a number.
    Miss(NumberError),
}

/// Reads numbers into `out`, which they must fill exactly.
///
/// # Errors
///
/// An [`ArrayError`] for the first element that does not fit, or if there are too few or too many.
pub fn read_numbers<T: Number>(array: &RawArray<'_>, out: &mut [T]) -> Result<(), ArrayError> {
    let mut slots = out.iter_mut();
    // After elements that the fast path cannot read, it is not tried for a while; twice as long each time.
    let (mut pause, mut pause_next) = (0_u32, 1_u32);
    walk(array, |cursor| {
        if pause == 0 {
            let count = T::read_run(cursor, &mut slots);
            if count > 0 {
                pause_next = 1;
                return Ok(count);
            }
            pause = pause_next;
            pause_next = pause_next.saturating_mul(2).min(RUN_PAUSE_MAX);
        }
        pause = pause.saturating_sub(1);
        let slot = slots.next().ok_or(ElementStop::Full)?;
        *slot = T::read(cursor).map_err(ElementStop::Miss)?;
        Ok(1)
    })?;
    if slots.next().is_some() { Err(first_fault(array, ArrayError::TooFew)) } else { Ok(()) }
}

/// Most elements to read one by one before the fast path is tried again. Elements of a tensor mostly have the same
/// form, and a failed try costs time.
const RUN_PAUSE_MAX: u32 = 64;

/// Reads `true` and `false` as 1 and 0 into `out`, which they must fill exactly.
///
/// # Errors
///
/// An [`ArrayError`] for the first element of another kind, or if there are too few or too many.
pub fn read_booleans(array: &RawArray<'_>, out: &mut [u8]) -> Result<(), ArrayError> {
    let mut slots = out.iter_mut();
    walk(array, |cursor| {
        let slot = slots.next().ok_or(ElementStop::Full)?;
        (*slot, cursor.rest) = match cursor.rest {
            [b't', b'r', b'u', b'e', rest @ ..] => (1, rest),
            [b'f', b'a', b'l', b's', b'e', rest @ ..] => (0, rest),
            _ => return Err(ElementStop::Miss(NumberError::Other)),
        };
        Ok(1)
    })?;
    if slots.next().is_some() { Err(first_fault(array, ArrayError::TooFew)) } else { Ok(()) }
}

/// Reads strings and appends each after its size in 4 bytes, little-endian; returns their number.
///
/// # Errors
///
/// An [`ArrayError`] for the first element that is not a string.
pub fn read_strings(array: &RawArray<'_>, out: &mut Vec<u8>) -> Result<usize, ArrayError> {
    let mut count = 0_usize;
    walk(array, |cursor| {
        if cursor.peek() != Some(b'"') {
            return Err(ElementStop::Miss(NumberError::Other));
        }
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        cursor.string_into(out).map_err(|_| ElementStop::Miss(NumberError::Other))?;
        let size = out.len().saturating_sub(start).saturating_sub(4);
        // Cannot fail: a body, and so a string in it, is smaller than 4 GiB.
        let size = u32::try_from(size).map_err(|_| ElementStop::Full)?.to_le_bytes();
        if let Some(field) = out.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut::<4>()) {
            *field = size;
        }
        count = count.saturating_add(1);
        Ok(1)
    })?;
    Ok(count)
}

/// Walks an array and the arrays nested in it, and calls `read` at each other element. `read` may read several
/// elements with commas between them; it leaves the cursor after the last and returns their number.
#[inline]
fn walk<'a>(
    array: &RawArray<'a>,
    mut read: impl FnMut(&mut Cursor<'a>) -> Result<usize, ElementStop>,
) -> Result<(), ArrayError> {
    let mut cursor = Cursor::new(array.text, 0);
    let mut depth = array.depth;
    let mut index = 0_usize;
    loop {
        // Next is an element or, directly after an opening bracket, the end.
        cursor.skip_space();
        let mut may_end = false;
        while cursor.consume(b'[') {
            depth = depth.saturating_add(1);
            if depth > JSON_DEPTH_MAX {
                return Err(first_fault(array, ArrayError::Kind));
            }
            may_end = true;
            cursor.skip_space();
        }
        if !(may_end && cursor.peek() == Some(b']')) {
            let at = cursor;
            let count = read(&mut cursor).map_err(|stop| element_error(array, at, index, &stop))?;
            index = index.saturating_add(count);
            cursor.skip_space();
        }
        while cursor.consume(b']') {
            depth = depth.saturating_sub(1);
            if depth == array.depth {
                return if cursor.rest.is_empty() { Ok(()) } else { Err(first_fault(array, ArrayError::Kind)) };
            }
            cursor.skip_space();
        }
        if !cursor.consume(b',') {
            return Err(first_fault(array, ArrayError::Kind));
        }
    }
}

/// The error for an element that could not be read; the syntax error, if the text is not JSON.
#[cold]
fn element_error(array: &RawArray<'_>, at: Cursor<'_>, index: usize, stop: &ElementStop) -> ArrayError {
    let mut token = at;
    let text = token.number().map(|(text, _)| text).unwrap_or_default();
    let shown = String::from_utf8_lossy(text.get(..TEXT_SIZE_MAX).unwrap_or(text));
    let text = if text.len() > TEXT_SIZE_MAX { format!("{shown}...") } else { shown.into_owned() };
    let error = match stop {
        ElementStop::Full => ArrayError::TooMany,
        ElementStop::Miss(NumberError::Other) => ArrayError::Kind,
        ElementStop::Miss(NumberError::Fraction) => ArrayError::Fraction { index, text },
        ElementStop::Miss(NumberError::Range) => ArrayError::Range { index, text },
    };
    first_fault(array, error)
}

/// Bytes of a number's text that an error quotes at most.
const TEXT_SIZE_MAX: usize = 32;

/// The first syntax fault of the text, or else `error`. Syntax faults show up as something else first: a bare word,
/// for example, as an element of the wrong kind.
#[cold]
fn first_fault(array: &RawArray<'_>, error: ArrayError) -> ArrayError {
    array.validate().map_or_else(ArrayError::Json, |()| error)
}
