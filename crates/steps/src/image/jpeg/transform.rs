//! The inverse cosine transform of libjpeg's `jidctint.c`: integers, 13 bits behind the point, and 2 between
//! its two passes (Loeffler, Ligtenberg, Moschytz). It works on 16 blocks at once, the numbers with the same place in
//! all of them side by side: both passes are loops of vectors, and no block is transposed.

use super::ZIGZAG;
use crate::image::vector::vectorized;

/// The numbers of 16 blocks: for each place in a block, row by row, that of each block.
type BlockGroup = [[i16; GROUP]; 64];

/// A row of blocks on its way from coefficients to samples.
pub struct Band {
    /// The groups, and a row more, so that as many numbers as a group has lie behind the first one of each block.
    coefficients: Vec<[i16; GROUP]>,
}

/// A block of a band, whose coefficients are still 0.
pub struct BlockMut<'a> {
    /// From its first coefficient on; those of the blocks beside it are between.
    values: &'a mut [i16; 64 * GROUP],
}

/// The factors of coefficients, and the places of these in a group, in the file's order. Corrupt files have
/// coefficients beyond the last one, which are that one, as in libjpeg.
pub struct Factors([(i16, u16); 128]);

impl BlockMut<'_> {
    /// Sets the coefficient with this place in the file's order, multiplied by its factor in 16 bits, as the vector
    /// code of libjpeg-turbo does.
    #[inline(always)]
    pub fn set(&mut self, at: usize, value: i16, factors: &Factors) {
        let (factor, place) = factors.0.get(at & 127).copied().unwrap_or_default();
        if let Some(coefficient) = self.values.get_mut(usize::from(place) & (64 * GROUP - 1)) {
            *coefficient = value.wrapping_mul(factor);
        }
    }
}

impl Factors {
    pub fn new(quantisation: &[i16; 64]) -> Self {
        let mut factors = [(0, 0); 128];
        for (at, place) in factors.iter_mut().enumerate() {
            let natural = ZIGZAG.get(at).copied().unwrap_or(63);
            *place = (quantisation.get(usize::from(natural)).copied().unwrap_or(0), u16::from(natural) * GROUP as u16);
        }
        Self(factors)
    }
}

impl Band {
    pub fn new(blocks: usize) -> Self {
        Self { coefficients: vec![[0; GROUP]; blocks.div_ceil(GROUP) * 64 + 1] }
    }

    /// The block with this number; `None` beyond the band.
    #[inline(always)]
    pub fn block(&mut self, index: usize) -> Option<BlockMut<'_>> {
        let start = index / GROUP * 64 * GROUP + index % GROUP;
        self.coefficients.as_flattened_mut().get_mut(start..)?.first_chunk_mut().map(|values| BlockMut { values })
    }

    /// Writes the samples to eight rows, and clears the coefficients.
    pub fn write_samples(&mut self, rows: &mut [u8]) {
        let stride = rows.len() / 8;
        vectorized(
            #[inline(always)]
            || {
                let mut turned = [[0; GROUP]; 64];
                for (index, group) in self.coefficients.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                    transform_columns(group, &mut turned);
                    *group = [[0; GROUP]; 64];
                    let start = index * GROUP * 8;
                    let end = stride.min(start.saturating_add(GROUP * 8));
                    for (row, values) in rows.chunks_exact_mut(stride.max(1)).zip(turned.as_chunks::<8>().0) {
                        let samples = transformed_row(values);
                        let places = row.get_mut(start..end).unwrap_or_default().as_chunks_mut().0;
                        for (place, samples) in places.iter_mut().zip(samples) {
                            *place = samples.to_le_bytes();
                        }
                    }
                }
            },
        );
    }
}

/// The first pass, over each column.
#[inline(always)]
fn transform_columns(group: &BlockGroup, results: &mut BlockGroup) {
    let rows = group.as_chunks::<8>().0;
    let results = results.as_chunks_mut::<8>().0;
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows else { return };
    let [t0, t1, t2, t3, t4, t5, t6, t7] = results else { return };
    for column in 0..8 {
        for lane in 0..GROUP {
            let values = [r0, r1, r2, r3, r4, r5, r6, r7].map(
                #[inline(always)]
                |row| row.get(column).and_then(|row| row.get(lane)).copied().map_or(0, i32::from),
            );
            let sums = transformed::<{ BITS - PASS_BITS }>(values);
            for (row, sum) in [&mut *t0, t1, t2, t3, t4, t5, t6, t7].into_iter().zip(sums) {
                if let Some(place) = row.get_mut(column).and_then(|row| row.get_mut(lane)) {
                    // The result fits into 16 bits; for corrupt files it is clamped, as the vector code of
                    // libjpeg-turbo does.
                    *place = sum.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
                }
            }
        }
    }
}

/// The second pass, over one row of each block: eight samples in a word.
#[inline(always)]
fn transformed_row(values: &[[i16; GROUP]; 8]) -> [u64; GROUP] {
    let mut words = [0; GROUP];
    for (lane, word) in words.iter_mut().enumerate() {
        let values = values.each_ref().map(
            #[inline(always)]
            |values| values.get(lane).copied().map_or(0, i32::from),
        );
        let [a, b, c, d, e, f, g, h] = transformed::<{ BITS + PASS_BITS + 3 }>(values).map(
            #[inline(always)]
            |sum| sum.wrapping_add(128).clamp(0, 255).cast_unsigned(),
        );
        *word = u64::from(a | b << 8 | c << 16 | d << 24) | u64::from(e | f << 8 | g << 16 | h << 24) << 32;
    }
    words
}

/// The transform of eight numbers, rounded half up to `SHIFT` bits less.
#[inline(always)]
fn transformed<const SHIFT: u32>(values: [i32; 8]) -> [i32; 8] {
    let [r0, r1, r2, r3, r4, r5, r6, r7] = values;
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
    let (a, b, c, d) = (e0.wrapping_add(o3), e1.wrapping_add(o2), e2.wrapping_add(o1), e3.wrapping_add(o0));
    let (e, f, g, h) = (e3.wrapping_sub(o0), e2.wrapping_sub(o1), e1.wrapping_sub(o2), e0.wrapping_sub(o3));
    [a, b, c, d, e, f, g, h].map(
        #[inline(always)]
        |sum| sum.wrapping_add(half) >> SHIFT,
    )
}

/// Blocks that are transformed at once: one vector of AVX-512 in 32 bits, or two of AVX2.
const GROUP: usize = 16;
/// Bits of a factor behind the point.
const BITS: u32 = 13;
/// Bits behind the point between the passes.
const PASS_BITS: u32 = 2;
