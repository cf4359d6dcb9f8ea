//! Arrays that were kept as text, nested or flat, read straight into memory of one type. Only
//! counts and types are asked for here; what the elements mean is the caller's.

use crate::limits::JSON_DEPTH_MAX;
use crate::wire::json::cursor::Cursor;
use crate::wire::json::number::{NumberError, read_f32, read_f64, read_integer, read_run};
use crate::wire::json::{JsonError, RawArray};

/// Why the elements of an array could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayError {
    /// It is not JSON.
    Json(JsonError),
    /// An element is of another kind than was asked for.
    Kind,
    /// A number is not an integer where one is due.
    Fraction {
        /// Which element.
        index: usize,
        /// Its text, shortened if it is long.
        text: String,
    },
    /// A number does not fit the type.
    Range {
        /// Which element.
        index: usize,
        /// Its text, shortened if it is long.
        text: String,
    },
    /// Fewer elements than asked for.
    TooFew,
    /// More elements than asked for.
    TooMany,
}

/// A type that numbers are read as.
pub trait Number: Copy + sealed::Read {}

mod sealed {
    use super::{Cursor, NumberError};

    pub trait Read: Sized {
        fn read(cursor: &mut Cursor<'_>) -> Result<Self, NumberError>;

        /// Reads elements with commas between them into slots, as long as that is fast, and ends behind
        /// the last; how many, which may be none.
        fn read_run<'o>(_: &mut Cursor<'_>, _: &mut impl Iterator<Item = &'o mut Self>) -> usize
        where
            Self: 'o,
        {
            0
        }
    }
}

/// Declares the integers.
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

/// What ended the reading of an array early.
enum ElementStop {
    Full,
    Miss(NumberError),
}

/// Reads numbers into memory, which they must fill.
pub fn read_numbers<T: Number>(array: &RawArray<'_>, out: &mut [T]) -> Result<(), ArrayError> {
    let mut slots = out.iter_mut();
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

/// Elements that are read one by one after several that no run takes: those of a tensor are often alike,
/// and trying costs something.
const RUN_PAUSE_MAX: u32 = 64;

/// Reads `true` and `false` as 1 and 0 into memory, which they must fill.
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

/// Reads strings, each behind its size in 4 bytes, little-endian; returns how many.
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
        // A body, and so a string in it, is shorter than 4 GiB.
        let size = u32::try_from(size).map_err(|_| ElementStop::Full)?.to_le_bytes();
        if let Some(field) = out.get_mut(start..).and_then(|bytes| bytes.first_chunk_mut::<4>()) {
            *field = size;
        }
        count = count.saturating_add(1);
        Ok(1)
    })?;
    Ok(count)
}

/// Goes through an array and the arrays in it, and has every other element read, one or several
/// with a comma between each; `read` says how many, and ends behind the last.
#[inline]
fn walk<'a>(
    array: &RawArray<'a>,
    mut read: impl FnMut(&mut Cursor<'a>) -> Result<usize, ElementStop>,
) -> Result<(), ArrayError> {
    let mut cursor = Cursor::new(array.text, 0);
    let mut depth = array.depth;
    let mut index = 0_usize;
    loop {
        // An element is due, or, behind an opening bracket, the end.
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
            let count = read(&mut cursor).map_err(|stop| refused(array, at, index, &stop))?;
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

/// The error for an element that was not read: that of the text, if it is no JSON.
#[cold]
fn refused(array: &RawArray<'_>, at: Cursor<'_>, index: usize, stop: &ElementStop) -> ArrayError {
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

/// Bytes of a number's text that an error quotes.
const TEXT_SIZE_MAX: usize = 32;

/// The first fault of the text, or else the error. Most faults of JSON show as something else
/// first: a bare word, say, as an element of the wrong kind.
#[cold]
fn first_fault(array: &RawArray<'_>, error: ArrayError) -> ArrayError {
    array.validate().map_or_else(ArrayError::Json, |()| error)
}
