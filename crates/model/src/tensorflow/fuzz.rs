//! Properties of reading TensorFlow's files, for the fuzz target `saved_model` and its corpus.

use crate::tensorflow::{SavedModel, init_operations, state};
use base::limits::RANK_MAX;

/// Reads any bytes as a SavedModel, as a frozen graph and as a list of operations. A chosen
/// signature can be served: each tensor has a place in the graph and at most as many dimensions as
/// the protocol carries. A panic is a finding. Returns true if a signature was chosen.
pub fn exercise(file: &[u8]) -> bool {
    // Neither depends on the other: a graph and a SavedModel differ by the name of the file.
    let _ = state::changed_by_graph(file);
    let _ = init_operations(file);
    let Ok(model) = SavedModel::decode(file) else { return false };
    assert_eq!(SavedModel::decode(file).as_ref(), Ok(&model), "the same bytes are the same model");
    let Ok(chosen) = model.choose(None, None) else { return false };
    let again = model.choose(Some(&chosen.tag), Some(&chosen.name));
    assert_eq!(again.as_ref(), Ok(&chosen), "a signature is found by its own names");
    for saved in chosen.signature.inputs.iter().chain(&chosen.signature.outputs) {
        assert!(!saved.place.is_empty(), "{} is in the graph", saved.tensor.name);
        let rank = saved.tensor.shape.as_ref().map_or(0, |shape| shape.len());
        assert!(rank <= RANK_MAX, "{} has {rank} dimensions", saved.tensor.name);
    }
    let _ = model.why_not_alone(&chosen);
    // It reads the parts that `decode` skips.
    let _ = state::changed_by_signature(file, &chosen);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_and_its_changes_hold() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/saved_model");
        let files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        let mut chosen = 0;
        for file in &files {
            let bytes = std::fs::read(file).unwrap();
            chosen += usize::from(exercise(&bytes));
            for at in 0..bytes.len() {
                exercise(&bytes[..at]);
                for byte in [0, 1, 0x0a, 0x12, 0x7f, 0x80, 0xff] {
                    let mut changed = bytes.clone();
                    changed[at] = byte;
                    exercise(&changed);
                }
            }
        }
        assert!(files.len() >= 5 && chosen >= 3, "{chosen} of {} files have a signature", files.len());
    }
}
