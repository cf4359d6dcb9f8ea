//! Top-k of a row: indices of the largest values, largest first; equal values by index, -0 equal to 0, NaN last. The
//! classification extension calls it on the shard, and the GPU kernels are tested against it (`backend::kernel`).
//!
//! A row is read once, a chunk at a time. Most chunks need only one check, that no value is above the smallest of the
//! best so far; compilers turn that check into SIMD code.

use half::{bf16, f16};
use smallvec::SmallVec;

/// A value that a row is ordered by.
pub trait Score: Copy {
    /// The key that is compared instead of the value: floats have no total order with NaN last and
    /// -0 equal to 0.
    type Key: Copy + Ord;

    /// The key: in the order of the values, the same for -0 and 0, and the smallest for NaN.
    fn key(self) -> Self::Key;
}

/// Integers are their own keys.
macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Score for $integer {
            type Key = Self;

            fn key(self) -> Self {
                self
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);

/// Floats are ordered by their bits: those of a positive float, read as an integer, are in the order of the values,
/// and the sign negates them.
macro_rules! floats {
    ($($float:ty, $key:ty;)*) => {$(
        impl Score for $float {
            type Key = $key;

            fn key(self) -> $key {
                let bits = self.to_bits().cast_signed();
                let magnitude = bits & <$key>::MAX;
                if magnitude > <$float>::INFINITY.to_bits().cast_signed() {
                    <$key>::MIN
                } else if bits < 0 {
                    -magnitude
                } else {
                    magnitude
                }
            }
        }
    )*};
}

floats! {
    f16, i16;
    bf16, i16;
    f32, i32;
    f64, i64;
}

/// Indices of the best scores, best first. Up to 16 need no allocation.
pub type Indices = SmallVec<[u32; 16]>;

/// The indices of the `count` best scores, or of all if there are fewer. A row must have fewer than 2^32.
pub fn best<T: Score>(scores: &[T], count: usize) -> Indices {
    let count = count.min(scores.len());
    if count == 0 {
        return Indices::new();
    }
    let mut kept: TopKCandidates<T::Key> = SmallVec::new();
    // Twice the count, so that a selection, which costs a pass over all candidates, is due only after as many new
    // ones: its cost for each candidate is constant.
    let capacity = count.saturating_mul(2).max(KEPT_COUNT_MIN);
    let (first, rest) = scores.split_at(capacity.min(scores.len()));
    kept.extend(first.iter().map(|score| score.key()).zip(0..));
    let mut bound = shrink(&mut kept, count);
    for (chunk, start) in rest.chunks(CHUNK_COUNT).zip((first.len()..).step_by(CHUNK_COUNT)) {
        // Strictly above: at an equal score the earlier index wins.
        if !has_above(chunk, bound) {
            continue;
        }
        for (score, index) in chunk.iter().zip(start..) {
            let key = score.key();
            if key > bound {
                // A row has fewer than 2^32.
                kept.push((key, u32::try_from(index).unwrap_or(u32::MAX)));
            }
        }
        if kept.len() > capacity - CHUNK_COUNT {
            bound = shrink(&mut kept, count);
        }
    }
    shrink(&mut kept, count);
    kept.sort_unstable_by(order);
    kept.iter().map(|(_, index)| *index).collect()
}

/// Candidates: keys with their indices, unordered. [`shrink`] reduces them to the best.
type TopKCandidates<Key> = SmallVec<[(Key, u32); KEPT_COUNT_MIN]>;

/// Values compared with the bound at once: a few vector instructions.
const CHUNK_COUNT: usize = 16;
/// Capacity for small counts: room for more than one chunk of new candidates between two selections.
const KEPT_COUNT_MIN: usize = 48;

/// Returns true if a chunk has a score above `bound`. Without an early exit, so that the loop
/// vectorizes.
fn has_above<T: Score>(chunk: &[T], bound: T::Key) -> bool {
    match <&[T; CHUNK_COUNT]>::try_from(chunk) {
        Ok(chunk) => chunk.iter().fold(false, |found, score| found | (score.key() > bound)),
        // The short chunk at the end of the row is always examined.
        Err(_) => true,
    }
}

/// Keeps the best `count` candidates, unordered, and returns the smallest key of those.
fn shrink<Key: Copy + Ord>(kept: &mut TopKCandidates<Key>, count: usize) -> Key {
    if count < kept.len() {
        kept.select_nth_unstable_by(count - 1, order);
        kept.truncate(count);
    }
    kept.iter().map(|(key, _)| *key).min().expect("a selection keeps one at least")
}

fn order<Key: Ord>(left: &(Key, u32), right: &(Key, u32)) -> std::cmp::Ordering {
    right.0.cmp(&left.0).then(left.1.cmp(&right.1))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    /// The expected result: a stable sort of the whole row.
    fn sorted<T: Score>(scores: &[T], count: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..scores.len() as u32).collect();
        all.sort_by_key(|index| std::cmp::Reverse(scores[*index as usize].key()));
        all.truncate(count);
        all
    }

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
    }

    #[test]
    fn keys_order_floats_as_comparison_does_and_put_nan_last() {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, f32::MAX, f32::MIN];
        let mut random = Random(7);
        let numbers: Vec<f32> =
            special.into_iter().chain((0..500).map(|_| f32::from_bits(random.next() as u32))).collect();
        for left in &numbers {
            for right in &numbers {
                let want = left.partial_cmp(right).unwrap_or_else(|| right.is_nan().cmp(&left.is_nan()));
                assert_eq!(left.key().cmp(&right.key()), want, "{left:e} {right:e}");
                let (left, right) = (f64::from(*left), f64::from(*right));
                assert_eq!(left.key().cmp(&right.key()), want, "{left:e} {right:e}");
            }
        }
        for bits in 0..=u16::MAX {
            let next = bits.wrapping_mul(31).wrapping_add(7);
            let (left, right) = (f16::from_bits(bits), f16::from_bits(next));
            assert_eq!(left.key().cmp(&right.key()), left.to_f32().key().cmp(&right.to_f32().key()));
            let (left, right) = (bf16::from_bits(bits), bf16::from_bits(next));
            assert_eq!(left.key().cmp(&right.key()), left.to_f32().key().cmp(&right.to_f32().key()));
        }
    }

    #[test]
    fn the_best_are_those_of_a_stable_sort() {
        let mut random = Random(1);
        for size in [0, 1, 2, 15, 16, 17, 47, 48, 49, 63, 64, 65, 100, 1000, 5000] {
            for count in [0, 1, 2, 5, 16, 23, 24, 25, 100, 1024, usize::MAX] {
                let ties: Vec<u8> = (0..size).map(|_| random.next() as u8 % 5).collect();
                assert_eq!(best(&ties, count).as_slice(), sorted(&ties, count), "{count} of {size} UINT8");
                let floats: Vec<f32> = (0..size).map(|_| f32::from_bits(random.next() as u32)).collect();
                assert_eq!(best(&floats, count).as_slice(), sorted(&floats, count), "{count} of {size} FP32");
                let rising: Vec<i64> = (0..size as i64).collect();
                assert_eq!(best(&rising, count).as_slice(), sorted(&rising, count), "{count} of {size} rising");
                let falling: Vec<f16> = (0..size).map(|index| f16::from_f32(-(index as f32))).collect();
                assert_eq!(best(&falling, count).as_slice(), sorted(&falling, count), "{count} of {size} falling");
                let none = vec![f64::NAN; size];
                assert_eq!(best(&none, count).as_slice(), sorted(&none, count), "{count} of {size} of none");
            }
        }
    }

    thread_local!(static COMPARISONS: Cell<u64> = const { Cell::new(0) });

    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Counted(u64);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Score for Counted {
        type Key = Self;

        fn key(self) -> Self {
            self
        }
    }

    #[test]
    fn five_of_a_thousand_take_a_quarter_of_a_sorts_comparisons() {
        let mut random = Random(3);
        let (mut selecting, mut sorting) = (0, 0);
        for _ in 0..20 {
            let scores: Vec<Counted> = (0..1000).map(|_| Counted(random.next())).collect();
            COMPARISONS.set(0);
            best(&scores, 5);
            selecting += COMPARISONS.take();
            let mut all: Vec<_> = scores.iter().copied().zip(0..).collect();
            all.sort_unstable_by(order);
            sorting += COMPARISONS.take();
        }
        // And most of these are vectorized, sixteen at a time.
        assert!(selecting * 4 < sorting, "{} beside {}", selecting / 20, sorting / 20);
    }
}
