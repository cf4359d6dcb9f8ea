//! The fuzz target `safetensors`.

use model::onnx::message::ModelMessage;

use crate::{ModelHead, Operators, SafeTensors, TransformerConfig, onnx_from_safetensors, signature_from_safetensors};

/// Between the two files.
const BETWEEN: &[u8] = b"\n---\n";

/// Reads any bytes as a `config.json` and, behind a line `---`, a safetensors file. Asserts that a graph that is
/// written is ONNX, under each head and set of operators. Returns true if one was written.
pub fn exercise(input: &[u8]) -> bool {
    let at = input.windows(BETWEEN.len()).position(|bytes| bytes == BETWEEN).unwrap_or(input.len());
    let (text, file) = (input.get(..at).unwrap_or_default(), input.get(at + BETWEEN.len()..).unwrap_or_default());
    let weights = SafeTensors::read(&[("model.safetensors", file)]);
    let (Ok(config), Ok(weights)) = (TransformerConfig::parse(text), weights) else { return false };
    let heads = [config.head(), ModelHead::Encoder, ModelHead::Pooler, ModelHead::MaskedLm];
    let mut is_written = false;
    for (head, operators) in
        heads.iter().flat_map(|head| [Operators::Standard, Operators::OnnxRuntime].map(|all| (head, all)))
    {
        if let Ok(onnx) = onnx_from_safetensors(&config.clone().with_head(*head), &weights, operators) {
            let model = ModelMessage::read(onnx.into()).expect("a written file can be read");
            let graph = model.graph.expect("a written file has a graph");
            assert!(!graph.output.is_empty(), "a written graph has outputs");
            let signature = signature_from_safetensors(&config.clone().with_head(*head), &weights);
            let signature = ModelMessage::read(signature.expect("it is part of the file").into());
            let signature = signature.expect("it can be read").graph.expect("it has a graph");
            assert_eq!((signature.input, signature.output), (graph.input, graph.output), "both have the same tensors");
            is_written = true;
        }
    }
    is_written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_and_its_changes_hold() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/safetensors");
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() >= 3, "the corpus is there");
        for path in files {
            let file = std::fs::read(&path).unwrap();
            assert!(exercise(&file), "{} is a model", path.display());
            for at in (0..file.len()).step_by(13) {
                exercise(&file[..at]);
                let mut changed = file.clone();
                changed[at] ^= 0x11;
                exercise(&changed);
            }
        }
    }
}
