//! The dependence of a graph's work on the shapes of its inputs alone. If it depends on their
//! values, a run that was measured with zeros says nothing about the next one. Called by the
//! engines when a model is loaded; bounded by the graph.

use std::collections::BTreeSet;

use crate::onnx::graph::{OnnxGraph, OnnxNode};

/// Returns true if the values of a graph's inputs, and not only their shapes, decide the inputs of
/// its operators, so that a run on zeros may fail while others do not. A file that cannot be read,
/// and an operator of an unknown domain, count as yes.
pub fn depends_on_values(file: &[u8]) -> bool {
    OnnxGraph::outline(file).map_or(true, |graph| {
        let is_known = |node: &OnnxNode| matches!(node.domain.as_str(), "" | "ai.onnx" | "ai.onnx.ml");
        why_not_by_shape(&graph).is_some() || !graph.nodes.iter().all(is_known)
    })
}

/// The reason why the same shapes can take very different work; `None` if the shapes decide.
pub fn why_not_by_shape(graph: &OnnxGraph) -> Option<String> {
    if graph.has_functions {
        return Some("its file defines operators of its own".to_owned());
    }
    let mut from_values: BTreeSet<&str> = graph.inputs.iter().map(String::as_str).collect();
    from_values.retain(|name| !graph.constants.contains_key(*name) && !graph.left_out.contains_key(*name));
    for node in &graph.nodes {
        let operator = &node.operator;
        if node.graphs().next().is_some() {
            return Some(format!("its operator '{operator}' runs a graph inside it"));
        }
        let is_from_values = |name: &str| from_values.contains(name);
        if node.inputs.iter().any(|name| is_from_values(name)) && SIZED_BY_CONTENTS.contains(&operator.as_str()) {
            return Some(format!("what its operator '{operator}' finds decides how much work follows"));
        }
        if sizing_inputs(node).any(is_from_values) {
            return Some(format!("a request's values set the size of what its operator '{operator}' makes"));
        }
        // These read no values.
        let reads_values = !matches!(operator.as_str(), "Shape" | "Size");
        if reads_values && node.inputs.iter().any(|name| is_from_values(name)) {
            from_values.extend(node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty()));
        }
    }
    None
}

/// The inputs whose values set the size of an operator's outputs, beyond the bounds that the sizes
/// of its inputs set.
pub fn sizing_inputs(node: &OnnxNode) -> impl Iterator<Item = &str> {
    let indices: &[usize] = match node.operator.as_str() {
        "BlackmanWindow" | "ConstantOfShape" | "HammingWindow" | "HannWindow" => &[0],
        "AffineGrid" | "CenterCropPad" | "Col2Im" | "DFT" | "Expand" | "OneHot" | "Pad" | "Tile" | "Upsample" => &[1],
        "MaxUnpool" => &[2],
        // The generators of ONNX Runtime's own domain: the length, beams and sequences.
        "BeamSearch" | "GreedySearch" | "Sampling" | "WhisperBeamSearch" => &[1, 3, 4],
        "MelWeightMatrix" => &[0, 1],
        "Range" => &[0, 1, 2],
        "Resize" => &[1, 2, 3],
        "STFT" => &[1, 3],
        _ => &[],
    };
    indices.iter().filter_map(|index| node.input(*index))
}

/// Operators that find something in a tensor, so that its contents set the size of their outputs.
const SIZED_BY_CONTENTS: [&str; 4] = ["Compress", "NonMaxSuppression", "NonZero", "Unique"];

#[cfg(test)]
mod tests {
    use super::*;

    /// `Add a b -> c; Tile x c -> y`, of a graph with the inputs `x` and `n`, and the constant `k`.
    fn reason(nodes: &str) -> Option<String> {
        let node = |text: &str| {
            let (operator, names) = text.trim().split_once(' ').unwrap();
            let (inputs, outputs) = names.split_once("->").unwrap();
            let names = |text: &str| text.split_whitespace().map(|name| name.trim_matches('_').to_owned()).collect();
            let mut node = OnnxNode::default();
            (node.operator, node.inputs, node.outputs) = (operator.to_owned(), names(inputs), names(outputs));
            node
        };
        let inputs = ["x", "n", "k"].map(str::to_owned).to_vec();
        let left_out = [("k".to_owned(), Default::default())].into();
        let nodes = nodes.split(';').map(node).collect();
        why_not_by_shape(&OnnxGraph { inputs, left_out, nodes, ..OnnxGraph::default() })
    }

    #[test]
    fn values_of_a_request_that_reach_a_size_are_found_and_its_shapes_are_not() {
        let check = |nodes: &str, want: &str| {
            let got = reason(nodes).unwrap_or_default();
            assert!(if want.is_empty() { got.is_empty() } else { got.contains(want) }, "{nodes}: {got}");
        };
        check("Relu x -> a; Softmax a -> b; Slice b n n -> c; TopK c n -> d", "");
        check("Shape x -> s; Expand x s -> y", "");
        check("Size x -> s; Cast s -> t; Range k t k -> y", "");
        check("Tile x k -> y", "");
        check("Tile x n -> y", "a request's values set the size of what its operator 'Tile' makes");
        check("Cast n -> a; Add a k -> b; Range k b k -> y", "'Range'");
        check("Resize x _ n -> y", "'Resize'");
        check("Resize x _ _ n -> y", "'Resize'");
        check("NonZero x -> i; Gather x i -> y", "what its operator 'NonZero' finds");
        check("NonZero k -> i; Gather x i -> y", "");
        for operator in ["ConstantOfShape n", "Expand x n", "Pad x n", "OneHot x n", "Upsample x n", "Range n k k"] {
            check(&format!("{operator} -> y"), operator.split_once(' ').unwrap().0);
        }
    }

    #[test]
    fn a_file_that_says_more_than_shapes_tell_depends_on_values() {
        // graph { node { op_type "Relu", domain d } }
        let file = |domain: u8| [0x3a, 11, 0x0a, 9, 0x22, 4, b'R', b'e', b'l', b'u', 0x3a, 1, domain];
        assert!(depends_on_values(&file(b'd')));
        let own = [0x3a, 8, 0x0a, 6, 0x22, 4, b'R', b'e', b'l', b'u'];
        assert!(!depends_on_values(&own));
        assert!(depends_on_values(b"\xff"));
    }

    #[test]
    fn a_graph_inside_an_operator_and_operators_of_the_file_are_reasons() {
        let functions = OnnxGraph { has_functions: true, ..OnnxGraph::default() };
        assert_eq!(why_not_by_shape(&functions).unwrap(), "its file defines operators of its own");
        // graph { node { op_type "Loop", attribute { name "body", g {} } } }
        let file =
            [0x3a, 18, 0x0a, 16, 0x22, 4, b'L', b'o', b'o', b'p', 0x2a, 8, 0x0a, 4, b'b', b'o', b'd', b'y', 0x32, 0];
        let looping = OnnxGraph::decode(&file).unwrap();
        assert_eq!(why_not_by_shape(&looping).unwrap(), "its operator 'Loop' runs a graph inside it");
    }
}
