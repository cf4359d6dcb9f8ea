//! OpenCV's area method for sides that shrink: the mean of the source pixels beneath a pixel of the result.

use super::SideScale;
use crate::image::pixels::{Pixels, row};
use crate::image::turn::{self, GROUP, turn_rows};
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
    source.mapped(columns.to, rows.to, |plane, bytes| {
        vectorized(
            #[inline(always)]
            || {
                for (index, result) in bytes.chunks_exact_mut(columns.to.max(1)).enumerate() {
                    let upper = row(plane, source.width, index * 2).as_chunks().0;
                    let lower = row(plane, source.width, index * 2 + 1).as_chunks().0;
                    for ((result, [a, b]), [c, d]) in result.iter_mut().zip(upper).zip(lower) {
                        *result = mean([a, b, c, d]);
                    }
                }
            },
        );
    })
}

#[inline(always)]
fn mean(bytes: [&u8; 4]) -> u8 {
    let sum = bytes.into_iter().fold(2_u16, |sum, byte| sum.wrapping_add(u16::from(*byte)));
    (sum >> 2) as u8
}

/// A whole scale: the sum of integers by a float, rounded half to even.
fn whole(source: &Pixels, columns: &SideScale, rows: &SideScale, across: usize, down: usize) -> Pixels {
    let scale = 1.0 / (across * down) as f32;
    let mut sums = vec![0_i32; columns.to];
    source.mapped(columns.to, rows.to, |plane, bytes| {
        for (index, result) in bytes.chunks_exact_mut(columns.to.max(1)).enumerate() {
            sums.fill(0);
            for line in 0..down {
                let groups = row(plane, source.width, index * down + line).chunks_exact(across);
                for (sum, group) in sums.iter_mut().zip(groups) {
                    *sum = group.iter().fold(*sum, |sum, byte| sum.wrapping_add(i32::from(*byte)));
                }
            }
            for (byte, sum) in result.iter_mut().zip(&sums) {
                *byte = saturated(*sum as f32 * scale);
            }
        }
    })
}

/// A part of a source pixel in a pixel of the result.
struct Share {
    source: usize,
    result: usize,
    weight: f32,
}

/// Any scale: sums of floats, in the order of the source pixels, along the columns and then along the rows.
fn fractional(source: &Pixels, columns: &SideScale, rows: &SideScale) -> Pixels {
    let (across, down) = (shares(columns), shares(rows));
    let mut turned = turn::columns(source.width);
    // The sums along the columns, of a group of rows.
    let mut row_sums = vec![[0.0_f32; GROUP]; columns.to];
    let mut sums = vec![0.0_f32; columns.to];
    source.mapped(columns.to, rows.to, |plane, bytes| {
        let mut down = down.iter().peekable();
        let mut group = None;
        while let Some(share) = down.next() {
            if group.replace(share.source / GROUP) != Some(share.source / GROUP) {
                let first = share.source / GROUP * GROUP;
                let rows = plane.get(first * source.width..).unwrap_or_default().chunks_exact(source.width);
                turn_rows(rows, &mut turned);
                sum_columns(&turned, &across, &mut row_sums);
            }
            let lane = share.source % GROUP;
            for (sum, rows) in sums.iter_mut().zip(&row_sums) {
                *sum += share.weight * rows.get(lane).copied().unwrap_or(0.0);
            }
            if down.peek().is_some_and(|next| next.result == share.result) {
                continue;
            }
            let start = share.result * columns.to;
            let result = bytes.get_mut(start..start + columns.to).unwrap_or_default();
            for (byte, sum) in result.iter_mut().zip(&mut sums) {
                *byte = saturated(*sum);
                *sum = 0.0;
            }
        }
    })
}

fn sum_columns(turned: &[turn::Column], across: &[Share], row_sums: &mut [[f32; GROUP]]) {
    row_sums.fill([0.0; GROUP]);
    vectorized(
        #[inline(always)]
        || {
            for Share { source, result, weight } in across {
                if let (Some(sums), Some(column)) = (row_sums.get_mut(*result), turned.get(*source)) {
                    for (sum, byte) in sums.iter_mut().zip(column) {
                        *sum += f32::from(*byte) * *weight;
                    }
                }
            }
        },
    );
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
