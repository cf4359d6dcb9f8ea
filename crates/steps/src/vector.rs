//! Arithmetic on rows of FP32 that steps share: the largest element, a sum, `exp`, softmax, sigmoid. Written in
//! lanes, so that the compiler makes vector code of it.

use std::cmp::Ordering;

use base::tensor::topk::best;
use smallvec::SmallVec;

use crate::image::vector::vectorized;

/// Elements that are worked on at once: four vectors of SSE2, so that additions do not wait for each other.
const LANES: usize = 16;

/// Returns the largest element of a row, NaN left aside. Minus infinity for an empty row.
#[inline(always)]
pub fn maximum(row: &[f32]) -> f32 {
    let (lanes, rest) = lane_maxima(row);
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |left, right| if *right > left { *right } else { left })
}

/// The largest elements at the places 0, 16, …, at 1, 17, …, and so on, NaN left aside, and the elements after the
/// last chunk.
#[inline(always)]
fn lane_maxima(row: &[f32]) -> ([f32; LANES], &[f32]) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    (lanes, rest)
}

/// Appends the indices of the `count` largest elements, largest first, equal ones by index, NaN last: as
/// [`base::tensor::topk::best`], which does the work if `count` is large or many elements are equal. Otherwise the
/// maxima of the lanes give a bound that at least `count` elements reach and few more.
pub fn largest(row: &[f32], count: usize, indices: &mut Vec<u32>) {
    let (mut lanes, _) = vectorized(
        #[inline(always)]
        || lane_maxima(row),
    );
    lanes.sort_unstable_by(|left, right| right.total_cmp(left));
    let bound = count.checked_sub(1).and_then(|last| lanes.get(last)).copied().unwrap_or(f32::NEG_INFINITY);
    let mut found: SmallVec<[(f32, u32); 4 * LANES]> = SmallVec::new();
    for (chunk, start) in row.chunks(LANES).zip((0_u32..).step_by(LANES)) {
        if bound == f32::NEG_INFINITY || found.len() > found.inline_size().saturating_sub(LANES) {
            return indices.extend(best(row, count));
        }
        if chunk.iter().fold(false, |found, value| found | (*value >= bound)) {
            found.extend(chunk.iter().copied().zip(start..).filter(|(value, _)| *value >= bound));
        }
    }
    // Stable: equal elements stay by index. No element is NaN.
    found.sort_by(|left, right| right.0.partial_cmp(&left.0).unwrap_or(Ordering::Equal));
    indices.extend(found.iter().take(count).map(|(_, index)| *index));
}

/// Returns true if a row has a NaN.
pub fn has_nan(row: &[f32]) -> bool {
    row.iter().fold(false, |found, value| found | value.is_nan())
}

/// Returns the index of the largest element, the first of equals, and that of the first NaN if there is one: as numpy's
/// `argmax`. 0 for an empty row.
pub fn argmax(row: &[f32]) -> usize {
    let found = if has_nan(row) {
        row.iter().position(|value| value.is_nan())
    } else {
        let largest = maximum(row);
        row.iter().position(|value| *value == largest)
    };
    found.unwrap_or(0)
}

/// Returns the sum of a row. Short runs are added in FP32, and the runs in FP64: the error stays that of a few
/// additions.
#[inline(always)]
pub fn sum(row: &[f32]) -> f64 {
    let mut totals = [0.0_f64; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for run in chunks.chunks(8) {
        let mut lanes = [0.0_f32; LANES];
        for chunk in run {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += *value;
            }
        }
        for (total, lane) in totals.iter_mut().zip(lanes) {
            *total += f64::from(lane);
        }
    }
    for (total, value) in totals.iter_mut().zip(rest) {
        *total += f64::from(*value);
    }
    totals.iter().sum()
}

/// Returns the sum of a row in FP32 in the order of numpy's `sum` of an array that is contiguous: eight sums side
/// by side, and rows above 128 elements in halves.
pub fn sum_as_numpy(row: &[f32]) -> f32 {
    if row.len() > 128 {
        let half = row.len() / 2;
        let (left, right) = row.split_at_checked(half - half % 8).unwrap_or((row, &[]));
        return sum_as_numpy(left) + sum_as_numpy(right);
    }
    let (chunks, rest) = row.as_chunks::<8>();
    let Some((first, chunks)) = chunks.split_first() else { return rest.iter().fold(0.0, |sum, value| sum + value) };
    let mut sums = *first;
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += *value;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, value| sum + value)
}

/// Returns the mean of a row in FP32 as numpy's `mean`; 0 for an empty row.
#[expect(clippy::cast_precision_loss, reason = "numpy divides in FP32")]
pub fn mean_as_numpy(row: &[f32]) -> f32 {
    if row.is_empty() { 0.0 } else { sum_as_numpy(row) / row.len() as f32 }
}

/// Returns the sum of the squares of a row, in FP64 over short runs.
pub fn sum_of_squares(row: &[f32]) -> f64 {
    let run = |run: &[f32]| {
        let (chunks, rest) = run.as_chunks::<LANES>();
        let mut lanes = [0.0_f32; LANES];
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += *value * *value;
            }
        }
        let rest = rest.iter().map(|value| f64::from(*value * *value)).sum::<f64>();
        lanes.iter().map(|value| f64::from(*value)).sum::<f64>() + rest
    };
    row.chunks(8 * LANES).map(run).sum()
}

/// `e` to the power of `x`, within 3e-7 of the true value as long as that is a normal number: a polynomial, with
/// the least relative error of its degree, on what is left after whole powers of two. It has no branch, unlike
/// `f32::exp`, so that loops of it become vector code.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -150.0 { -150.0 } else { x };
    let x = if x > 150.0 { 150.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    // The logarithm of 2 in two parts, of which the first, 355/512, has few bits: its product is exact.
    let r = x - power * (355.0 / 512.0) - power * -2.121_944_4e-4;
    let p = ((0.008_312_516 * r + 0.041_890_2) * r + 0.166_671_14) * r + 0.499_992_3;
    let p = p * r * r + r + 1.0;
    // In two factors: one alone has no exponent for results near the ends of the range.
    let power = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = power >> 1;
    let factor = |power: i32| f32::from_bits((power.wrapping_add(127) << 23).cast_unsigned());
    p * factor(half) * factor(power.wrapping_sub(half))
}

/// Appends the softmax of a row: `e = exp(x - max(x)); e / sum(e)`. NaN throughout if the row has a NaN or plus
/// infinity.
pub fn softmax(row: &[f32], out: &mut Vec<f32>) {
    let start = out.len();
    out.resize(start + row.len(), 0.0);
    let added = out.get_mut(start..).unwrap_or_default();
    vectorized(
        #[inline(always)]
        move || {
            let largest = maximum(row);
            for (place, value) in added.iter_mut().zip(row) {
                *place = exp(*value - largest);
            }
            #[expect(clippy::cast_possible_truncation, reason = "numpy divides by a sum in FP32")]
            let total = sum(added) as f32;
            for value in added {
                *value /= total;
            }
        },
    );
}

/// The logistic function, `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_three_parts_in_ten_million() {
        let mut worst = 0.0_f64;
        for step in -8_700_i32..=8_800 {
            for offset in 0..60 {
                let x = (f64::from(step) / 100.0 + f64::from(offset) * 1.7e-4) as f32;
                let want = f64::from(x).exp();
                if want < f64::from(f32::MAX) {
                    worst = worst.max((f64::from(exp(x)) - want).abs() / want);
                }
            }
        }
        assert!(worst < 3e-7, "{worst:e}");
        assert_eq!([exp(0.0), exp(-0.0), exp(f32::NEG_INFINITY), exp(-104.0)], [1.0, 1.0, 0.0, 0.0]);
        assert_eq!([exp(f32::INFINITY), exp(89.0)], [f32::INFINITY; 2]);
        assert!(exp(f32::NAN).is_nan());
        // Results below the normal numbers are off by at most one of the smallest steps.
        for x in [-88.0_f32, -95.5, -100.0, -103.0] {
            assert!((f64::from(exp(x)) - f64::from(x).exp()).abs() <= f64::from(f32::from_bits(1)), "{x}");
        }
    }

    #[test]
    fn the_largest_are_those_of_a_stable_sort() {
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for size in [0, 1, 5, 15, 16, 17, 33, 64, 100, 1000] {
            for kinds in [1, 2, 9, 1000, 1 << 31] {
                for count in [0, 1, 2, 5, 15, 16, 17, 40] {
                    let value = |random: u64| match random {
                        0 => f32::NAN,
                        1 => f32::NEG_INFINITY,
                        2 => -0.0,
                        3 => 0.0,
                        value => value as f32 - 7.0,
                    };
                    let row: Vec<f32> = (0..size).map(|_| value(random(kinds))).collect();
                    let mut got = Vec::new();
                    largest(&row, count, &mut got);
                    assert_eq!(got, best(&row, count).to_vec(), "{count} of {row:?}");
                }
            }
        }
    }

    #[test]
    fn the_largest_is_the_first_of_equals_or_the_first_nan() {
        let mut row = vec![1.0_f32; 100];
        assert_eq!(argmax(&row), 0);
        row[77] = 2.0;
        row[98] = 2.0;
        assert_eq!(argmax(&row), 77);
        row[99] = f32::NAN;
        assert_eq!(argmax(&row), 99);
        row[3] = f32::NAN;
        assert_eq!(argmax(&row), 3);
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), 0);
        assert_eq!(argmax(&[]), 0);
    }
}
