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

    /// The last 16 bits of the numbers.
    #[inline(always)]
    pub fn shorts(self) -> [i16; N] {
        let mut shorts = [0; N];
        for (short, value) in shorts.iter_mut().zip(&self.0) {
            *short = *value as i16;
        }
        shorts
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
