//! Values between those of a plane, as torch's `interpolate(mode="bilinear", align_corners=False)` computes them in FP32.

/// The neighbours of a place along a side, and their weights.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    /// The one before.
    pub first: usize,
    /// The one behind.
    pub second: usize,
    /// The weight of each.
    pub weights: [f32; 2],
}

/// The neighbours of each place of a side that is resized.
pub fn neighbours(from: usize, to: usize) -> Vec<Neighbours> {
    let scale = from as f32 / to as f32;
    let last = from.saturating_sub(1);
    let neighbours = |place: usize| {
        let position = (scale * (place as f32 + 0.5) - 0.5).max(0.0);
        let first = (position as usize).min(last);
        let weight = (position - first as f32).clamp(0.0, 1.0);
        Neighbours { first, second: (first + 1).min(last), weights: [1.0 - weight, weight] }
    };
    (0..to).map(neighbours).collect()
}

/// A row between two, resized: appends a value for each of the columns.
#[inline(always)]
pub fn between(rows: [&[f32]; 2], weights: [f32; 2], columns: &[Neighbours], result: &mut Vec<f32>) {
    let [upper, lower] = rows;
    result.extend(columns.iter().map(|column| {
        let along = |row: &[f32]| {
            let at = |place: usize| row.get(place).copied().unwrap_or(0.0);
            column.weights[0] * at(column.first) + column.weights[1] * at(column.second)
        };
        weights[0] * along(upper) + weights[1] * along(lower)
    }));
}
