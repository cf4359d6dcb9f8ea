//! Which operators of a graph trust what a request brings, so that an engine of foreign code may crash or never end: by the
//! values of integers (`TRUSTING`), or by an axis without elements (`DOUBTFUL`). Called when a model is loaded; bounded
//! by the graph. Both tables are what hostile requests found (`.ci/run hostile-requests`).

use std::collections::BTreeSet;

use crate::onnx::OnnxSignature;
use crate::onnx::graph::{OnnxGraph, OnnxNode};
use crate::onnx::work::sizing_inputs;
use base::tensor::{Datatype, Tensor};

/// An engine that runs graphs of ONNX inside the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphEngine {
    /// ONNX Runtime.
    Onnxruntime,
    /// OpenVINO.
    Openvino,
}

/// Knowledge of a graph before it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphTrust {
    /// The first operator that trusts values of a request, and what it does not survive.
    pub trusting: Option<(String, &'static str)>,
    /// True if it has an operator that may crash on an axis of size 0.
    pub is_doubtful: bool,
    /// True if integers of a request reach a size, an axis, or a division.
    pub has_sizes: bool,
}

/// Operators that trust values of a request: which engine's, and what it does not survive.
const TRUSTING: [(GraphEngine, &str, &str); 9] = [
    (GraphEngine::Onnxruntime, "Conv", "a kernel of size 0 keeps it for ever"),
    (GraphEngine::Onnxruntime, "Div", "the lowest integer divided by -1 raises SIGFPE"),
    (GraphEngine::Onnxruntime, "Mod", "the remainder of the lowest integer by -1 raises SIGFPE"),
    (GraphEngine::Onnxruntime, "STFT", "a frame length of 0 raises SIGFPE"),
    (GraphEngine::Openvino, "Col2Im", "a block larger than the image keeps it for ever"),
    (GraphEngine::Openvino, "GatherND", "an index far outside raises SIGSEGV"),
    (GraphEngine::Openvino, "Pad", "a large negative padding raises SIGSEGV"),
    (GraphEngine::Openvino, "ScatterElements", "an index far outside raises SIGSEGV"),
    (GraphEngine::Openvino, "TopK", "a k larger than the axis raises SIGSEGV"),
];

/// Operators that do not survive every axis of size 0 in ONNX Runtime. OpenVINO survives all of them.
const DOUBTFUL: [&str; 7] = ["Attention", "GRU", "LSTM", "MultiHeadAttention", "RNN", "STFT", "Unique"];

impl GraphTrust {
    /// Of an ONNX file. One that cannot be read is doubtful.
    pub fn of_onnx(file: &[u8], engine: GraphEngine) -> Self {
        let unknown = Self { trusting: None, is_doubtful: true, has_sizes: true };
        let (Ok(graph), Ok(signature)) = (OnnxGraph::outline(file), OnnxSignature::decode(file)) else {
            return unknown;
        };
        let inputs = || signature.inputs.iter().chain(&signature.initialized);
        let is_integer =
            |datatype| matches!(datatype, Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Int64);
        let mut origins = Origins {
            values: inputs().map(|input| input.name.as_str()).collect(),
            integers: inputs().filter(|input| is_integer(input.datatype)).map(|input| input.name.as_str()).collect(),
        };
        let mut trust = Self { is_doubtful: graph.has_functions, ..Self::default() };
        trust.walk(&graph, &mut origins, engine);
        trust
    }

    /// Of a model of OpenVINO's own form, the text of its `.xml`: looks for the trusting layers whose second input is no
    /// constant.
    pub fn of_openvino(text: &str) -> Self {
        let attribute = |tag: &str, name: &str| -> Option<String> {
            let rest = tag.split_once(&format!(" {name}=\""))?.1;
            rest.split_once('"').map(|(value, _)| value.to_owned())
        };
        let tags = |kind: &'static str| text.split('<').filter(move |tag| tag.starts_with(kind));
        let layers: Vec<_> =
            tags("layer ").filter_map(|tag| Some((attribute(tag, "id")?, attribute(tag, "type")?))).collect();
        let kind = |id: &str| layers.iter().find(|(have, _)| have == id).map_or("", |(_, kind)| kind.as_str());
        let trusting = tags("edge ").find_map(|tag| {
            let (from, to) = (attribute(tag, "from-layer")?, attribute(tag, "to-layer")?);
            let is_second = attribute(tag, "to-port")? == "1";
            // `ScatterElementsUpdate`, in versions that have a number in the type too.
            let is_of = |(engine, operator, _): &&(GraphEngine, &str, &str)| {
                *engine == GraphEngine::Openvino && kind(&to).starts_with(operator)
            };
            let found =
                TRUSTING.iter().find(is_of).filter(|_| is_second && !matches!(kind(&from), "Const" | "ShapeOf"));
            found.map(|(_, operator, reason)| ((*operator).to_owned(), *reason))
        });
        Self { trusting, is_doubtful: false, has_sizes: true }
    }

    fn walk<'a>(&mut self, graph: &'a OnnxGraph, origins: &mut Origins<'a>, engine: GraphEngine) {
        for name in graph.constants.keys().chain(graph.left_out.keys()) {
            // An input with an initial value is one that a request may bring.
            if !graph.inputs.contains(name) {
                origins.forget(name);
            }
        }
        for node in &graph.nodes {
            let is_known = matches!(node.domain.as_str(), "" | "ai.onnx" | "ai.onnx.ml");
            let is_doubtful = !is_known || DOUBTFUL.contains(&node.operator.as_str());
            self.is_doubtful |= engine == GraphEngine::Onnxruntime && is_doubtful;
            self.has_sizes |= reads_sizes(node, origins);
            let trusts = |(of, operator, _): &&(GraphEngine, &str, &str)| {
                *of == engine && *operator == node.operator && trusts(node, graph, origins)
            };
            if let (None, Some((_, operator, reason))) = (&self.trusting, TRUSTING.iter().find(trusts)) {
                self.trusting = Some(((*operator).to_owned(), *reason));
            }
            let inputs: Vec<_> = node.inputs.iter().map(String::as_str).collect();
            let (values, integers) = (origins.any(&inputs), origins.any_integer(&inputs));
            for (_, inner) in node.graphs() {
                let mut within = origins.clone();
                for name in &inner.inputs {
                    within.set(name, values, integers);
                }
                self.walk(inner, &mut within, engine);
            }
            let (values, integers) = origins.of_outputs(node, values, integers);
            node.outputs.iter().for_each(|name| origins.set(name, values, integers));
        }
    }
}

/// The names of a graph's values that depend on what a request brings.
#[derive(Clone)]
struct Origins<'a> {
    /// On the values of any tensor, and not only on its shape.
    values: BTreeSet<&'a str>,
    /// Integers that may have any value.
    integers: BTreeSet<&'a str>,
}

impl<'a> Origins<'a> {
    fn any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.values.contains(name))
    }

    fn any_integer(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.integers.contains(name))
    }

    fn set(&mut self, name: &'a str, values: bool, integers: bool) {
        self.forget(name);
        if values && !name.is_empty() {
            self.values.insert(name);
        }
        if integers && !name.is_empty() {
            self.integers.insert(name);
        }
    }

    fn forget(&mut self, name: &str) {
        self.values.remove(name);
        self.integers.remove(name);
    }

    /// Returns two flags: true if the outputs of an operator depend on values, and true if they are integers of any
    /// value.
    fn of_outputs(&self, node: &OnnxNode, values: bool, integers: bool) -> (bool, bool) {
        let integer_at = |index: usize| node.input(index).is_some_and(|name| self.integers.contains(name));
        match node.operator.as_str() {
            "Shape" | "Size" => (false, false),
            // A float of any value becomes an integer of any value.
            "Cast" => (values, values && is_integer_element(node.integer("to", 1))),
            "CastLike" => (values, values && integer_at(1)),
            // Those of a table in the file are the file's, whichever is picked.
            "Expand" | "Gather" | "GatherElements" | "GatherND" | "Reshape" | "Slice" | "Split" | "Squeeze"
            | "Tile" | "TopK" | "Trilu" | "Unsqueeze" | "CumSum" | "Compress" | "Resize" => (values, integer_at(0)),
            "Pad" | "ScatterElements" | "ScatterND" => (values, integer_at(0) || integer_at(2)),
            "OneHot" => (values, integer_at(2)),
            "Where" => (values, integer_at(1) || integer_at(2)),
            // Numbers of elements, and truth.
            "And" | "ArgMax" | "ArgMin" | "ConstantOfShape" | "DequantizeLinear" | "Equal" | "Greater"
            | "GreaterOrEqual" | "Less" | "LessOrEqual" | "NonZero" | "Not" | "Or" | "Sign" => (values, false),
            operator if operator.starts_with("Reduce") => (values, integer_at(0)),
            _ => (values, integers),
        }
    }
}

/// Returns true if an operator of [`TRUSTING`] gets something from a request that it does not survive.
fn trusts(node: &OnnxNode, graph: &OnnxGraph, origins: &Origins<'_>) -> bool {
    let value_at = |index: usize| node.input(index).is_some_and(|name| origins.values.contains(name));
    let integer_at = |index: usize| node.input(index).is_some_and(|name| origins.integers.contains(name));
    match node.operator.as_str() {
        "Mod" if node.integer("fmod", 0) != 0 => false,
        "Div" | "Mod" => {
            let divisor = node.input(1).and_then(|name| graph.constants.get(name));
            integer_at(0) && (integer_at(1) || divisor.is_some_and(has_minus_one))
        }
        "STFT" => integer_at(3),
        "Col2Im" => value_at(1) || value_at(2),
        _ => value_at(1),
    }
}

/// Returns true if integers of any value reach an input that is a size, an axis, an index that is computed with, or a
/// divisor.
fn reads_sizes(node: &OnnxNode, origins: &Origins<'_>) -> bool {
    let indices: &[usize] = match node.operator.as_str() {
        "BitShift" | "CumSum" | "ReverseSequence" | "ScatterElements" | "ScatterND" | "Split" | "SplitToSequence"
        | "Reshape" | "SequenceAt" | "Squeeze" | "TopK" | "Trilu" | "Unsqueeze" => &[1],
        "Div" | "Mod" | "Pow" => &[0, 1],
        "GRU" | "LSTM" | "RNN" => &[4],
        "Loop" => &[0],
        "NonMaxSuppression" | "RoiAlign" => &[2],
        "Slice" => &[1, 2, 3, 4],
        operator if operator.starts_with("Reduce") => &[1],
        _ => &[],
    };
    let of_table = indices.iter().filter_map(|index| node.input(*index));
    of_table.chain(sizing_inputs(node)).any(|name| origins.integers.contains(name))
}

/// `TensorProto.DataType` of integers.
const fn is_integer_element(element: i64) -> bool {
    matches!(element, 2..=7 | 12 | 13)
}

fn has_minus_one(tensor: &Tensor) -> bool {
    let size = tensor.datatype.size().unwrap_or(1).max(1);
    tensor.contents.chunks_exact(size).any(|element| element.iter().all(|byte| *byte == 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx_builder::{FLOAT, INT64, Onnx};

    fn trust(engine: GraphEngine, onnx: Onnx) -> GraphTrust {
        let onnx = onnx.input("n", INT64, &[-1]).input("m", INT64, &[-1]).input("x", FLOAT, &[-1, -1]);
        GraphTrust::of_onnx(&onnx.output("y", FLOAT, &[]).into_bytes(), engine)
    }

    /// Nodes such as `Div n m -> a`.
    fn of(engine: GraphEngine, nodes: &str) -> GraphTrust {
        let integers = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let begin = Onnx::default().constant("two", INT64, &[1], &integers(&[2])).constant(
            "minus",
            INT64,
            &[2],
            &integers(&[7, -1]),
        );
        let add = |onnx: Onnx, node: &str| {
            let (operator, names) = node.trim().split_once(' ').unwrap();
            let (inputs, outputs) = names.split_once("->").unwrap();
            let names = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
            let (inputs, outputs): (&str, &str) = (inputs.to_owned().leak(), outputs.to_owned().leak());
            let to: &[(&str, i64)] = if operator == "Cast" { &[("to", INT64)] } else { &[] };
            onnx.node(operator, &names(inputs), &names(outputs), to)
        };
        trust(engine, nodes.split(';').fold(begin, add))
    }

    #[test]
    fn operators_that_trust_values_of_a_request_are_found_and_the_same_on_its_shapes_are_not() {
        let check = |engine, nodes: &str, want: &str| {
            let got = of(engine, nodes).trusting.map_or_else(String::new, |(operator, _)| operator);
            assert_eq!(got, want, "{nodes}");
        };
        let ort = GraphEngine::Onnxruntime;
        check(ort, "Div n m -> y", "Div");
        check(ort, "Add n two -> a; Unsqueeze m two -> b; Mod a b -> y", "Mod");
        check(ort, "Div n two -> y", "");
        check(ort, "Div n minus -> y", "Div");
        check(ort, "Div x x -> y", "");
        check(ort, "Shape x -> s; Div n s -> y", "");
        check(ort, "Shape x -> s; Div s n -> y", "");
        check(ort, "Floor x -> f; Cast f -> i; Div i i -> y", "Div");
        check(ort, "Gather two n -> t; Div n t -> y", "");
        check(ort, "Conv x x -> y", "Conv");
        check(ort, "Conv x two -> y", "");
        check(ort, "STFT x two two n -> y", "STFT");
        check(ort, "TopK x n -> y", "");
        let openvino = GraphEngine::Openvino;
        check(openvino, "TopK x n -> y", "TopK");
        check(openvino, "TopK x two -> y", "");
        check(openvino, "Div n m -> y", "");
    }

    #[test]
    fn doubtful_operators_and_integers_that_reach_sizes_are_found() {
        let check = |nodes: &str, want: (bool, bool)| {
            let GraphTrust { is_doubtful, has_sizes, .. } = of(GraphEngine::Onnxruntime, nodes);
            assert_eq!((is_doubtful, has_sizes), want, "{nodes}");
        };
        check("Relu x -> y", (false, false));
        check("GRU x two two -> y", (true, false));
        check("Reshape x n -> y", (false, true));
        check("Tile x m -> y", (false, true));
        check("Gather x n -> y", (false, false));
        check("Shape x -> s; Reshape x s -> y", (false, false));
        assert!(!of(GraphEngine::Openvino, "GRU x two two -> y").is_doubtful);
        let unreadable = GraphTrust::of_onnx(b"\xff", GraphEngine::Onnxruntime);
        assert!(unreadable.is_doubtful && unreadable.has_sizes && unreadable.trusting.is_none());
    }

    #[test]
    fn a_graph_inside_an_operator_is_looked_into() {
        let body =
            Onnx::default().node("Div", &["n", "v"], &["w"], &[]).input("v", INT64, &[-1]).output("w", INT64, &[-1]);
        let onnx = Onnx::default().node_around("Scan", &["m"], &["y"], &[("num_scan_inputs", 1)], vec![("body", body)]);
        assert_eq!(
            trust(GraphEngine::Onnxruntime, onnx).trusting.map(|(operator, _)| operator),
            Some("Div".to_owned())
        );
    }

    #[test]
    fn layers_of_openvinos_own_form_are_found_by_the_edge_of_their_second_input() {
        let file = |kind: &str| {
            format!(
                "<net><layers><layer id=\"0\" name=\"x\" type=\"Parameter\"/><layer id=\"1\" type=\"{kind}\"/>\
                 <layer id=\"2\" name=\"t\" type=\"TopK\"/></layers><edges>\
                 <edge from-layer=\"0\" from-port=\"0\" to-layer=\"2\" to-port=\"0\"/>\
                 <edge from-layer=\"1\" from-port=\"0\" to-layer=\"2\" to-port=\"1\"/></edges></net>"
            )
        };
        assert!(GraphTrust::of_openvino(&file("Parameter")).trusting.is_some());
        assert_eq!(GraphTrust::of_openvino(&file("Const")).trusting, None);
        assert_eq!(GraphTrust::of_openvino("").trusting, None);
    }
}
