//! The fuzz target `trees`.

use super::*;

/// The fuzz target `trees`. Reads arbitrary bytes as a model, and asserts that its answer to a row
/// does not depend on the rows beside it. Returns true if the bytes are a model.
pub fn exercise(file: &[u8]) -> bool {
    let Ok(model) = trees::decode(file, None) else { return false };
    // Larger models add no new case, and are slow.
    if model.feature_count <= EXERCISED_MAX && model.output_count() <= EXERCISED_MAX {
        match model.arithmetic {
            Arithmetic::Single => exercise_forest::<f32>(&model),
            Arithmetic::Double => exercise_forest::<f64>(&model),
        }
    }
    true
}

/// Features and outputs of a model that the fuzz target runs.
const EXERCISED_MAX: usize = 256;

fn exercise_forest<F: Real>(model: &TreeModel) {
    let values = [f32::NAN, 0.0, 1.0, -1.0, 0.5, f32::INFINITY, 3e9, -0.5, 1e-36, f32::NEG_INFINITY, 7.0];
    let cells = values.iter().copied().cycle().take(model.feature_count * 9);
    let rows: Vec<f32> = cells.collect();
    let forest = Forest::<F>::new(model);
    let sums = |rows: &[f32]| {
        let mut block = RowBlock::new();
        // A row without features is also a row.
        block.fill(rows.chunks(model.feature_count.max(1)));
        forest.sum(&mut block);
        block.sums.chunks_exact_mut(model.class_count).for_each(|scores| F::link(model.link, scores));
        block.sums.iter().map(|sum| sum.to_f32().to_bits()).collect::<Vec<_>>()
    };
    let apart: Vec<_> = rows.chunks(model.feature_count.max(1)).flat_map(sums).collect();
    assert_eq!(sums(&rows), apart, "a row's answer depends on the rows beside it");
}
