//! Tells whether the values of an ONNX graph's inputs, and not only their shapes, decide what its operators get: their
//! shapes, or which of them run. Called when a model is loaded: a run on zeros says whether other values run only where
//! they do not. Skips everything but the operators; takes no memory.

use crate::model::onnx::{OnnxField, OnnxFields, find};

/// Whether it may be so. A file that cannot be read, and an operator of a domain that is not known, count as yes.
pub fn depends_on_values(file: &[u8]) -> bool {
    read(file).unwrap_or(true)
}

/// `ModelProto`: the graph (7). `GraphProto`: operators (1).
fn read(file: &[u8]) -> Result<bool, String> {
    for field in OnnxFields::new(find(file, 7)?.unwrap_or_default()) {
        if let (1, OnnxField::Bytes(node)) = field?
            && is_dependent(node)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `NodeProto`: operator (4) and domain (7).
fn is_dependent(node: &[u8]) -> Result<bool, String> {
    let (operator, domain) = (find(node, 4)?.unwrap_or_default(), find(node, 7)?.unwrap_or_default());
    let is_known = matches!(domain, b"" | b"ai.onnx" | b"ai.onnx.ml");
    Ok(!is_known || DEPENDENT.binary_search(&operator).is_ok())
}

/// Operators whose outputs have a size, or whose graphs run, by values. Sorted. Those that take a size from a tensor
/// (`Reshape`, `Tile`) are none: it comes from shapes and constants, where all inputs of the graph are floats.
const DEPENDENT: [&[u8]; 10] = [
    b"Compress",
    b"If",
    b"Loop",
    b"NonMaxSuppression",
    b"NonZero",
    b"Scan",
    b"SequenceMap",
    b"StringSplit",
    b"TfIdfVectorizer",
    b"Unique",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, value.len() as u8], value].concat()
    }

    /// A graph of these operators.
    fn file(operators: &[(&str, &str)]) -> Vec<u8> {
        let node = |(domain, operator): &(&str, &str)| {
            field(1, &[field(4, operator.as_bytes()), field(7, domain.as_bytes())].concat())
        };
        field(7, &operators.iter().flat_map(node).collect::<Vec<u8>>())
    }

    #[test]
    fn what_decides_sizes_or_graphs_by_values_is_known() {
        for known in [("", "Relu"), ("", "Reshape"), ("ai.onnx", "Conv"), ("ai.onnx.ml", "Scaler")] {
            assert!(!depends_on_values(&file(&[known])), "{known:?}");
        }
        assert!(DEPENDENT.is_sorted());
        for operator in DEPENDENT {
            let operator = std::str::from_utf8(operator).unwrap();
            assert!(depends_on_values(&file(&[("", "Relu"), ("", operator)])), "{operator}");
        }
        assert!(depends_on_values(&file(&[("custom", "Relu")])));
        assert!(depends_on_values(b"\xff"));
    }
}
