//! Loops compiled for the vector instructions of the processor that they run on.

use rten_simd::{Isa, SimdOp};

/// Runs a function with the widest vector instructions of this processor. The function and all that it calls must be
/// `#[inline(always)]`, or they are compiled for the oldest processor. No result depends on it: integers are exact, and floats
/// are neither reordered nor fused.
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
