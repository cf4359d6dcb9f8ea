//! The inverse cosine transform of libjpeg's `jidctint.c`: integers, 13 bits behind the point, and 2 between
//! its two passes (Loeffler, Ligtenberg, Moschytz). It works on a row of blocks at once, pass by pass, so
//! that each pass is a loop of vectors.

use super::ZIGZAG;
use crate::image::vector::{transposed_bytes, transposed_shorts, vectorized};

/// Two blocks side by side: eight rows of 16 numbers.
type BlockPair<T> = [[T; 16]; 8];

/// A row of blocks on its way from coefficients to samples.
pub struct Band {
    coefficients: Vec<BlockPair<i16>>,
    /// After the first pass, each block transposed.
    turned: Vec<BlockPair<i16>>,
    samples: Vec<BlockPair<u8>>,
}

/// A block of a band, whose coefficients are still 0.
pub struct BlockMut<'a> {
    /// From its first value on; its rows are 16 apart, and those of the block beside it are between.
    values: &'a mut [i16; 128],
}

impl BlockMut<'_> {
    /// Sets the coefficient with this place in the file's order.
    #[inline(always)]
    pub fn set(&mut self, at: usize, value: i16) {
        let place = PLACES.get(at & 127).copied().unwrap_or(0);
        if let Some(coefficient) = self.values.get_mut(usize::from(place & 127)) {
            *coefficient = value;
        }
    }
}

impl Band {
    pub fn new(blocks: usize) -> Self {
        let pairs = blocks.div_ceil(2);
        Self {
            // One more, so that 128 values lie behind the start of each block.
            coefficients: vec![[[0; 16]; 8]; pairs + 1],
            turned: vec![[[0; 16]; 8]; pairs],
            samples: vec![[[0; 16]; 8]; pairs],
        }
    }

    /// The block with this number; `None` beyond the band.
    #[inline(always)]
    pub fn block(&mut self, index: usize) -> Option<BlockMut<'_>> {
        let start = (index / 2) * 128 + (index % 2) * 8;
        let values = self.coefficients.as_flattened_mut().as_flattened_mut();
        values.get_mut(start..)?.first_chunk_mut().map(|values| BlockMut { values })
    }

    /// Writes the samples to eight rows, and clears the coefficients, which were multiplied by their factors.
    pub fn write_samples(&mut self, rows: &mut [u8]) {
        vectorized(
            #[inline(always)]
            || {
                for (pair, result) in self.coefficients.iter().zip(&mut self.turned) {
                    // The result fits into 16 bits; for corrupt files it is clamped, as the vector code of
                    // libjpeg-turbo does.
                    pass::<{ BITS - PASS_BITS }, i16>(
                        pair,
                        result,
                        #[inline(always)]
                        |value| value.clamp(i16::MIN.into(), i16::MAX.into()) as i16,
                    );
                }
            },
        );
        self.turned.iter_mut().for_each(turn);
        vectorized(
            #[inline(always)]
            || {
                for (pair, result) in self.turned.iter().zip(&mut self.samples) {
                    pass::<{ BITS + PASS_BITS + 3 }, u8>(
                        pair,
                        result,
                        #[inline(always)]
                        |value| value.wrapping_add(128).clamp(0, 255) as u8,
                    );
                }
            },
        );
        let stride = rows.len() / 8;
        for (index, pair) in self.samples.iter().enumerate() {
            write_pair(pair, rows, stride, index * 16);
        }
        self.coefficients.fill([[0; 16]; 8]);
    }
}

/// Transposes both blocks of a pair.
fn turn(pair: &mut BlockPair<i16>) {
    // Four numbers are a word: two words of a row are of the first block, two of the second.
    let mut words = [[0_u64; 4]; 8];
    for (words, row) in words.iter_mut().zip(pair.iter()) {
        for (word, numbers) in words.iter_mut().zip(row.as_chunks::<4>().0) {
            *word = bytemuck::cast(*numbers);
        }
    }
    let [a, b, c, d, e, f, g, h] = words;
    for first in [0, 2] {
        let upper = |at: usize| transposed_shorts([a, b, c, d].map(|row| row.get(first + at).copied().unwrap_or(0)));
        let lower = |at: usize| transposed_shorts([e, f, g, h].map(|row| row.get(first + at).copied().unwrap_or(0)));
        let squares = [[upper(0), lower(0)], [upper(1), lower(1)]];
        for (rows, [left, right]) in pair.as_chunks_mut::<4>().0.iter_mut().zip(squares) {
            for (row, (left, right)) in rows.iter_mut().zip(left.into_iter().zip(right)) {
                for (numbers, word) in row.as_chunks_mut::<4>().0.iter_mut().skip(first).zip([left, right]) {
                    *numbers = bytemuck::cast(word);
                }
            }
        }
    }
}

/// Transposes both blocks of a pair back, into rows of samples from a column on.
fn write_pair(pair: &BlockPair<u8>, rows: &mut [u8], stride: usize, column: usize) {
    for half in [0, 8] {
        let mut words = [0; 8];
        for (word, samples) in words.iter_mut().zip(pair) {
            *word =
                samples.get(half..).and_then(|samples| samples.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it));
        }
        for (row, word) in rows.chunks_exact_mut(stride.max(1)).zip(transposed_bytes(words)) {
            // The second block of the last pair may be beyond the row.
            if let Some(place) = row.get_mut(column + half..).and_then(|row| row.first_chunk_mut()) {
                *place = word.to_le_bytes();
            }
        }
    }
}

/// One pass over 16 columns.
#[inline(always)]
fn pass<const SHIFT: u32, T>(rows: &BlockPair<i16>, results: &mut BlockPair<T>, converted: impl Fn(i32) -> T) {
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
    let [t0, t1, t2, t3, t4, t5, t6, t7] = results;
    for lane in 0..16 {
        let [r0, r1, r2, r3, r4, r5, r6, r7] = [r0, r1, r2, r3, r4, r5, r6, r7].map(
            #[inline(always)]
            |row| row.get(lane).copied().map_or(0, i32::from),
        );
        let z1 = r2.wrapping_add(r6).wrapping_mul(4433);
        let even2 = z1.wrapping_add(r6.wrapping_mul(-15137));
        let even3 = z1.wrapping_add(r2.wrapping_mul(6270));
        let even0 = r0.wrapping_add(r4) << BITS;
        let even1 = r0.wrapping_sub(r4) << BITS;
        let (e0, e3) = (even0.wrapping_add(even3), even0.wrapping_sub(even3));
        let (e1, e2) = (even1.wrapping_add(even2), even1.wrapping_sub(even2));
        let (z1, z2) = (r7.wrapping_add(r1), r5.wrapping_add(r3));
        let (z3, z4) = (r7.wrapping_add(r3), r5.wrapping_add(r1));
        let z5 = z3.wrapping_add(z4).wrapping_mul(9633);
        let (z1, z2) = (z1.wrapping_mul(-7373), z2.wrapping_mul(-20995));
        let z3 = z3.wrapping_mul(-16069).wrapping_add(z5);
        let z4 = z4.wrapping_mul(-3196).wrapping_add(z5);
        let o0 = r7.wrapping_mul(2446).wrapping_add(z1).wrapping_add(z3);
        let o1 = r5.wrapping_mul(16819).wrapping_add(z2).wrapping_add(z4);
        let o2 = r3.wrapping_mul(25172).wrapping_add(z2).wrapping_add(z3);
        let o3 = r1.wrapping_mul(12299).wrapping_add(z1).wrapping_add(z4);
        let half = 1 << (SHIFT - 1);
        put(t0, lane, converted(e0.wrapping_add(o3).wrapping_add(half) >> SHIFT));
        put(t1, lane, converted(e1.wrapping_add(o2).wrapping_add(half) >> SHIFT));
        put(t2, lane, converted(e2.wrapping_add(o1).wrapping_add(half) >> SHIFT));
        put(t3, lane, converted(e3.wrapping_add(o0).wrapping_add(half) >> SHIFT));
        put(t4, lane, converted(e3.wrapping_sub(o0).wrapping_add(half) >> SHIFT));
        put(t5, lane, converted(e2.wrapping_sub(o1).wrapping_add(half) >> SHIFT));
        put(t6, lane, converted(e1.wrapping_sub(o2).wrapping_add(half) >> SHIFT));
        put(t7, lane, converted(e0.wrapping_sub(o3).wrapping_add(half) >> SHIFT));
    }
}

#[inline(always)]
fn put<T>(row: &mut [T; 16], lane: usize, value: T) {
    if let Some(place) = row.get_mut(lane) {
        *place = value;
    }
}

/// Factors in the file's order, 0 beyond it.
pub fn in_file_order(factors: &[i16; 64]) -> [i16; 128] {
    let mut ordered = [0; 128];
    for (place, natural) in ordered.iter_mut().zip(ZIGZAG) {
        *place = factors.get(usize::from(natural)).copied().unwrap_or(0);
    }
    ordered
}

/// The place of each coefficient of the file's order in a block of a pair. Corrupt files have coefficients
/// beyond the last one, which are that one, as in libjpeg.
const PLACES: [u8; 128] = {
    let mut places = [7 * 16 + 7; 128];
    let mut at = 0;
    while at < 64 {
        #[expect(clippy::indexing_slicing, reason = "computed when it is compiled")]
        let (place, natural) = (&mut places[at], ZIGZAG[at]);
        *place = natural / 8 * 16 + natural % 8;
        at += 1;
    }
    places
};
/// Bits of a factor behind the point.
const BITS: u32 = 13;
/// Bits behind the point between the passes.
const PASS_BITS: u32 = 2;
