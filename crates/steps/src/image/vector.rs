//! Loops compiled for the vector instructions of the processor that they run on.

use rten_simd::{Isa, SimdOp};

/// Runs a function with the widest vector instructions of this processor. The function and all that it calls
/// must be `#[inline(always)]`, or they are compiled for the oldest processor. No result depends on it:
/// integers are exact, and floats are neither reordered nor fused.
pub fn vectorized<R>(function: impl FnOnce() -> R) -> R {
    Function(function).dispatch()
}

struct Function<F>(F);

impl<R, F: FnOnce() -> R> SimdOp for Function<F> {
    type Output = R;

    #[inline(always)]
    fn eval<I: Isa>(self, _: I) -> R {
        (self.0)()
    }
}

/// Pixels of three bytes from words of four, of which the last one is 0. A loop that writes three bytes at a
/// time is no vector loop; this one writes 24 as three words.
#[inline(always)]
pub fn pack(words: &[u32], result: &mut [u8]) {
    let (groups, rest) = result.as_chunks_mut::<24>();
    let (word_groups, word_rest) = words.as_chunks::<8>();
    for (group, [a, b, c, d, e, f, g, h]) in groups.iter_mut().zip(word_groups) {
        let (ab, cd) = (u64::from(*a) | u64::from(*b) << 24, u64::from(*c) | u64::from(*d) << 24);
        let (ef, gh) = (u64::from(*e) | u64::from(*f) << 24, u64::from(*g) | u64::from(*h) << 24);
        let three = [ab | cd << 48, cd >> 16 | ef << 32, ef >> 32 | gh << 16];
        for (place, word) in group.as_chunks_mut().0.iter_mut().zip(three) {
            *place = word.to_le_bytes();
        }
    }
    for (place, word) in rest.as_chunks_mut().0.iter_mut().zip(word_rest) {
        let [red, green, blue, _] = word.to_le_bytes();
        *place = [red, green, blue];
    }
}

/// Numbers that are computed alike.
#[derive(Clone, Copy)]
pub struct Lanes<const N: usize>(pub [i32; N]);

impl<const N: usize> Lanes<N> {
    /// The same number in all.
    #[inline(always)]
    pub const fn of(value: i32) -> Self {
        Self([value; N])
    }

    /// The sums with the products of bytes and one weight.
    #[inline(always)]
    pub fn plus_weighted(mut self, bytes: &[u8; N], weight: i32) -> Self {
        for (value, byte) in self.0.iter_mut().zip(bytes) {
            *value = value.wrapping_add(i32::from(*byte).wrapping_mul(weight));
        }
        self
    }

    /// The numbers without their last bits.
    #[inline(always)]
    pub fn shifted<const SHIFT: u32>(mut self) -> Self {
        for value in &mut self.0 {
            *value >>= SHIFT;
        }
        self
    }

    /// The numbers as bytes, kept from 0 to 255.
    #[inline(always)]
    pub fn clamped(self) -> [u8; N] {
        let mut bytes = [0; N];
        for (byte, value) in bytes.iter_mut().zip(&self.0) {
            *byte = (*value).clamp(0, 255) as u8;
        }
        bytes
    }
}

/// Transposes a square of 8 × 8 bytes: its quarters, then theirs, then single bytes.
#[inline(always)]
pub const fn transposed_bytes(rows: [u64; 8]) -> [u64; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    let ([a, e], [b, f]) = (swapped::<32>(a, e), swapped::<32>(b, f));
    let ([c, g], [d, h]) = (swapped::<32>(c, g), swapped::<32>(d, h));
    let ([a, c], [b, d]) = (swapped::<16>(a, c), swapped::<16>(b, d));
    let ([e, g], [f, h]) = (swapped::<16>(e, g), swapped::<16>(f, h));
    let ([a, b], [c, d]) = (swapped::<8>(a, b), swapped::<8>(c, d));
    let ([e, f], [g, h]) = (swapped::<8>(e, f), swapped::<8>(g, h));
    [a, b, c, d, e, f, g, h]
}

/// Transposes a square of 4 × 4 numbers of 16 bits.
#[inline(always)]
pub const fn transposed_shorts(rows: [u64; 4]) -> [u64; 4] {
    let [a, b, c, d] = rows;
    let ([a, c], [b, d]) = (swapped::<32>(a, c), swapped::<32>(b, d));
    let ([a, b], [c, d]) = (swapped::<16>(a, b), swapped::<16>(c, d));
    [a, b, c, d]
}

/// Exchanges the upper parts of `SIZE` bits in the first with the lower ones in the second.
#[inline(always)]
const fn swapped<const SIZE: u32>(first: u64, second: u64) -> [u64; 2] {
    let lower = match SIZE {
        32 => 0x0000_0000_FFFF_FFFF,
        16 => 0x0000_FFFF_0000_FFFF,
        _ => 0x00FF_00FF_00FF_00FF,
    };
    let difference = (first >> SIZE ^ second) & lower;
    [first ^ difference << SIZE, second ^ difference]
}
