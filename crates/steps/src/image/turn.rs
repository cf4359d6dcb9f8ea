//! Rows turned to columns and back, a group of rows at a time: a filter along the rows then works on all of them at once.
//! Interleaving the first half of some rows with the second one, n times, brings the elements of 2ⁿ rows side by side.

use rten_simd::ops::{BitOps, Interleave};
use rten_simd::{Elem, Isa, SimdOp};

/// Rows in a group.
pub const GROUP: usize = 16;

/// The bytes of a column, one of each row of a group.
pub type Column = [u8; GROUP];

/// Columns for rows of `width` elements: some more, as they are made a vector at a time.
pub fn columns<T: Copy + Default>(width: usize) -> Vec<[T; GROUP]> {
    vec![[T::default(); GROUP]; width.next_multiple_of(VECTOR_MAX)]
}

/// Turns up to [`GROUP`] rows to columns.
pub fn turn_rows<'a>(rows: impl Iterator<Item = &'a [u8]>, columns: &mut [Column]) {
    let mut group = [&[][..]; GROUP];
    group.iter_mut().zip(rows).for_each(|(place, row)| *place = row);
    TurnRows { rows: &group, columns: columns.as_flattened_mut() }.dispatch();
}

/// Turns columns to up to [`GROUP`] rows of `stride` bytes.
pub fn turn_columns(columns: &[Column], stride: usize, rows: &mut [u8]) {
    TurnColumns { columns: columns.as_flattened(), stride, rows }.dispatch();
}

/// Turns columns of numbers of 16 bits to up to [`GROUP`] rows of `stride` numbers.
pub fn turn_shorts(columns: &[[i16; GROUP]], stride: usize, rows: &mut [i16]) {
    TurnShorts { columns: columns.as_flattened(), stride, rows }.dispatch();
}

struct TurnRows<'a> {
    rows: &'a [&'a [u8]; GROUP],
    columns: &'a mut [u8],
}

struct TurnColumns<'a> {
    columns: &'a [u8],
    stride: usize,
    rows: &'a mut [u8],
}

struct TurnShorts<'a> {
    columns: &'a [i16],
    stride: usize,
    rows: &'a mut [i16],
}

impl SimdOp for TurnRows<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        let ops = isa.u8();
        for (block, places) in self.columns.chunks_exact_mut(GROUP * ops.len()).enumerate() {
            let mut vectors = [ops.zero(); GROUP];
            for (vector, row) in vectors.iter_mut().zip(self.rows) {
                *vector = loaded(ops, row.get(block * ops.len()..).unwrap_or_default());
            }
            for _ in 0..GROUP.ilog2() {
                vectors = interleaved(ops, vectors);
            }
            for (place, vector) in places.chunks_exact_mut(ops.len()).zip(vectors) {
                ops.store(vector, place);
            }
        }
    }
}

impl SimdOp for TurnColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        turn_back(isa.u8(), self.columns, self.stride, self.rows);
    }
}

impl SimdOp for TurnShorts<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<I: Isa>(self, isa: I) {
        turn_back(isa.i16(), self.columns, self.stride, self.rows);
    }
}

#[inline(always)]
fn turn_back<T: Elem, O: Interleave<T>>(ops: O, columns: &[T], stride: usize, rows: &mut [T]) {
    for (block, columns) in columns.chunks_exact(GROUP * ops.len()).take(stride.div_ceil(ops.len())).enumerate() {
        let mut vectors = [ops.zero(); GROUP];
        for (vector, columns) in vectors.iter_mut().zip(columns.chunks_exact(ops.len())) {
            *vector = ops.load(columns);
        }
        for _ in 0..ops.len().ilog2() {
            vectors = interleaved(ops, vectors);
        }
        for (row, vector) in rows.chunks_exact_mut(stride.max(1)).zip(vectors) {
            let rest = row.get_mut(block * ops.len()..).unwrap_or_default();
            match rest.get_mut(..ops.len()) {
                Some(place) => ops.store(vector, place),
                None => {
                    let mut elements = [T::default(); VECTOR_MAX];
                    ops.store(vector, &mut elements);
                    let size = rest.len().min(VECTOR_MAX);
                    rest.copy_from_slice(elements.get(..size).unwrap_or_default());
                }
            }
        }
    }
}

/// The first elements, filled up with 0.
#[inline(always)]
fn loaded<T: Elem, O: BitOps<T>>(ops: O, elements: &[T]) -> O::Simd {
    match elements.get(..ops.len()) {
        Some(elements) => ops.load(elements),
        None => {
            let mut filled = [T::default(); VECTOR_MAX];
            if let Some(place) = filled.get_mut(..elements.len()) {
                place.copy_from_slice(elements);
            }
            ops.load(&filled)
        }
    }
}

/// The elements of the first half of the vectors and those of the second one in turn. Written out, so that all of them stay
/// in registers.
#[inline(always)]
fn interleaved<T: Elem, O: Interleave<T>>(ops: O, vectors: [O::Simd; GROUP]) -> [O::Simd; GROUP] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = vectors;
    let ([a, i], [b, j], [c, k]) = (both(ops, a, i), both(ops, b, j), both(ops, c, k));
    let ([d, l], [e, m], [f, n]) = (both(ops, d, l), both(ops, e, m), both(ops, f, n));
    let ([g, o], [h, p]) = (both(ops, g, o), both(ops, h, p));
    [a, i, b, j, c, k, d, l, e, m, f, n, g, o, h, p]
}

#[inline(always)]
fn both<T: Elem, O: Interleave<T>>(ops: O, first: O::Simd, second: O::Simd) -> [O::Simd; 2] {
    [ops.interleave_low(first, second), ops.interleave_high(first, second)]
}

/// Bytes in the longest vector.
const VECTOR_MAX: usize = 64;

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_columns() {
        for (width, height) in [(1, 1), (7, 16), (8, 3), (16, 16), (33, 15), (64, 16), (130, 16)] {
            let bytes: Vec<u8> = (0..width * height).map(|at| (at * 31 % 251) as u8).collect();
            let mut turned = columns(width);
            turn_rows(bytes.chunks_exact(width), &mut turned);
            for (column, turned) in turned.iter().take(width).enumerate() {
                for (row, byte) in turned.iter().take(height).enumerate() {
                    assert_eq!(*byte, bytes[row * width + column], "{width}x{height}");
                }
            }
            let mut got = vec![0; bytes.len()];
            turn_columns(&turned, width, &mut got);
            assert_eq!(got, bytes, "{width}x{height}");
            let shorts: Vec<_> = turned.iter().map(|column| column.map(|byte| i16::from(byte) * 100)).collect();
            let mut got = vec![0; bytes.len()];
            turn_shorts(&shorts, width, &mut got);
            assert!(got.iter().zip(&bytes).all(|(got, byte)| *got == i16::from(*byte) * 100), "{width}x{height}");
        }
    }
}
