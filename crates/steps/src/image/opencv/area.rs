//! OpenCV's area method for sides that shrink: the mean of the source pixels beneath a pixel of the result.

use super::SideScale;
use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::vectorized;

/// Returns the image at the scale of the sides, both of which are at least 1.
pub fn resized(source: &Pixels, columns: &SideScale, rows: &SideScale) -> Pixels {
    match (columns.whole_scale(), rows.whole_scale()) {
        (Some(2), Some(2)) => halved(source, columns, rows),
        (Some(across), Some(down)) => whole(source, columns, rows, across, down),
        _ => fractional(source, columns, rows),
    }
}

/// Half the size: integers, rounded half up.
fn halved(source: &Pixels, columns: &SideScale, rows: &SideScale) -> Pixels {
    let stride = columns.to * CHANNELS;
    let mut bytes = vec![0; rows.to * stride];
    vectorized(
        #[inline(always)]
        || {
            for (index, result) in bytes.chunks_exact_mut(stride.max(1)).enumerate() {
                let upper = source.row(index * 2).as_chunks::<{ 2 * CHANNELS }>().0;
                let lower = source.row(index * 2 + 1).as_chunks::<{ 2 * CHANNELS }>().0;
                let results = result.as_chunks_mut::<CHANNELS>().0;
                for ((result, [a0, a1, a2, b0, b1, b2]), [c0, c1, c2, d0, d1, d2]) in
                    results.iter_mut().zip(upper).zip(lower)
                {
                    *result = [mean([a0, b0, c0, d0]), mean([a1, b1, c1, d1]), mean([a2, b2, c2, d2])];
                }
            }
        },
    );
    Pixels { width: columns.to, height: rows.to, bytes }
}

#[inline(always)]
fn mean(bytes: [&u8; 4]) -> u8 {
    let sum = bytes.into_iter().fold(2_u16, |sum, byte| sum.wrapping_add(u16::from(*byte)));
    (sum >> 2) as u8
}

/// A whole scale: the sum of integers by a float, rounded half to even.
fn whole(source: &Pixels, columns: &SideScale, rows: &SideScale, across: usize, down: usize) -> Pixels {
    let stride = columns.to * CHANNELS;
    let mut bytes = vec![0; rows.to * stride];
    let scale = 1.0 / (across * down) as f32;
    let mut sums = vec![0_i32; stride];
    for (index, result) in bytes.chunks_exact_mut(stride.max(1)).enumerate() {
        sums.fill(0);
        for row in 0..down {
            let groups = source.row(index * down + row).chunks_exact(across * CHANNELS);
            for (sums, group) in sums.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(groups) {
                for pixel in group.as_chunks::<CHANNELS>().0 {
                    for (sum, byte) in sums.iter_mut().zip(pixel) {
                        *sum = sum.wrapping_add(i32::from(*byte));
                    }
                }
            }
        }
        for (byte, sum) in result.iter_mut().zip(&sums) {
            *byte = saturated(*sum as f32 * scale);
        }
    }
    Pixels { width: columns.to, height: rows.to, bytes }
}

/// A part of a source pixel in a pixel of the result.
struct Share {
    source: usize,
    result: usize,
    weight: f32,
}

/// Any scale: sums of floats, in the order of the source pixels, along the columns and then along the rows.
fn fractional(source: &Pixels, columns: &SideScale, rows: &SideScale) -> Pixels {
    let stride = columns.to * CHANNELS;
    let mut bytes = vec![0; rows.to * stride];
    let across = shares(columns);
    let mut row_sums = vec![0.0_f32; stride];
    let mut sums = vec![0.0_f32; stride];
    let down = shares(rows);
    let mut down = down.iter().peekable();
    vectorized(
        #[inline(always)]
        || {
            while let Some(share) = down.next() {
                let pixels = source.row(share.source).as_chunks::<CHANNELS>().0;
                row_sums.fill(0.0);
                let results = row_sums.as_chunks_mut::<CHANNELS>().0;
                for Share { source, result, weight } in &across {
                    if let (Some(sums), Some(pixel)) = (results.get_mut(*result), pixels.get(*source)) {
                        for (sum, byte) in sums.iter_mut().zip(pixel) {
                            *sum += f32::from(*byte) * *weight;
                        }
                    }
                }
                for (sum, row) in sums.iter_mut().zip(&row_sums) {
                    *sum += share.weight * *row;
                }
                if down.peek().is_some_and(|next| next.result == share.result) {
                    continue;
                }
                let start = share.result * stride;
                for (byte, sum) in bytes.get_mut(start..start + stride).unwrap_or_default().iter_mut().zip(&mut sums) {
                    *byte = saturated(*sum);
                    *sum = 0.0;
                }
            }
        },
    );
    Pixels { width: columns.to, height: rows.to, bytes }
}

fn shares(side: &SideScale) -> Vec<Share> {
    let mut shares = Vec::with_capacity(side.from * 2);
    for result in 0..side.to {
        let start = result as f64 * side.scale;
        let end = start + side.scale;
        let width = side.scale.min(side.from as f64 - start);
        let last = (end.floor() as usize).min(side.from.saturating_sub(1));
        let first = (start.ceil() as usize).min(last);
        let mut add = |source, part: f64| shares.push(Share { source, result, weight: part as f32 });
        if first as f64 - start > 1e-3 {
            add(first.saturating_sub(1), (first as f64 - start) / width);
        }
        for source in first..last {
            add(source, 1.0 / width);
        }
        if end - last as f64 > 1e-3 {
            add(last, (end - last as f64).min(1.0).min(width) / width);
        }
    }
    shares
}

#[inline(always)]
fn saturated(value: f32) -> u8 {
    value.round_ties_even().clamp(0.0, 255.0) as u8
}
