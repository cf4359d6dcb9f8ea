//! Which operators of a graph trust what a request brings, so that an engine of foreign code may crash or never end: by the
//! values of integers (`TRUSTING`), or by an axis without elements (`DOUBTFUL`). Called when a model is loaded; bounded
//! by the graph. Both tables are what hostile requests found (`.ci/run hostile-requests`). An operator whose output is as large
//! as a request says (`work::sizing_inputs`) fills the memory of the server, and counts as trusting too.

mod openvino_ir;

use std::collections::BTreeSet;

use crate::onnx::OnnxSignature;
use crate::onnx::graph::{OnnxGraph, OnnxNode};
use crate::onnx::work::sizing_inputs;
use base::tensor::{Datatype, Shape, Tensor};

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

/// An operator that trusts what a request brings.
struct Trusting {
    engine: GraphEngine,
    /// Empty for ONNX's own operators, and for those that OpenVINO takes for the same.
    domain: &'static str,
    operator: &'static str,
    inputs: Trusted,
    /// The value that it does not survive, and the effect.
    reason: &'static str,
}

/// The inputs of an operator that it trusts, if they depend on a request.
#[derive(Clone, Copy)]
enum Trusted {
    /// Integers at these indices, that may have any value.
    Integers(&'static [usize]),
    /// Any values at these.
    Values(&'static [usize]),
    /// `is_trusting` says which.
    Asked,
}

const fn ort(domain: &'static str, operator: &'static str, inputs: Trusted, reason: &'static str) -> Trusting {
    Trusting { engine: GraphEngine::Onnxruntime, domain, operator, inputs, reason }
}

const fn openvino(operator: &'static str, inputs: Trusted, reason: &'static str) -> Trusting {
    Trusting { engine: GraphEngine::Openvino, domain: "", operator, inputs, reason }
}

const ML: &str = "ai.onnx.ml";
/// Operators that ONNX Runtime's own tools write.
const MS: &str = "com.microsoft";
const NCHWC: &str = "com.microsoft.nchwc";

const HUGE_SIZE: &str = "a huge size fills the memory";
const NOTHING_LEFT: &str = "a size that its kernel leaves nothing of raises SIGFPE";
const INDEX_OUTSIDE: &str = "an index outside reads other memory or raises SIGSEGV";
const LENGTH_OUTSIDE: &str =
    "a length outside, or keys or a cache of another size, write to other memory or raise SIGSEGV or SIGFPE";
const NO_PRODUCT: &str = "a product over an axis of size 0 is answered with other memory";
const NO_ROWS: &str = "with weights of a request, a batch of size 0 raises SIGFPE";
const PADDING: &str = "a padding beyond the axis reads other memory or raises SIGSEGV";
const DIVISOR: &str = "zero, and the lowest integer by -1, raise SIGFPE";

/// Operators that trust values or sizes of a request. Of ONNX Runtime, some in 1.23 alone: newer ones refuse the request.
const TRUSTING: [Trusting; 61] = [
    ort("", "AffineGrid", Trusted::Integers(&[1]), "a large size raises SIGSEGV"),
    ort("", "Attention", Trusted::Asked, "keys and values of different sizes are read beyond their end"),
    ort("", "AveragePool", Trusted::Asked, NOTHING_LEFT),
    ort("", "Col2Im", Trusted::Integers(&[1, 2]), "an image larger than its blocks raises SIGSEGV"),
    ort("", "Conv", Trusted::Values(&[1]), "a kernel of size 0 keeps it for ever"),
    ort("", "ConvInteger", Trusted::Values(&[1]), "a kernel of size 0 is answered with other memory"),
    ort("", "DFT", Trusted::Integers(&[1, 2]), "a large length keeps it for hours, others write to other memory"),
    ort("", "Div", Trusted::Asked, DIVISOR),
    ort("", "GRU", Trusted::Values(&[1]), NO_ROWS),
    ort("", "GatherND", Trusted::Asked, "batches of different sizes raise SIGFPE"),
    ort("", "LSTM", Trusted::Values(&[1]), NO_ROWS),
    ort("", "Loop", Trusted::Integers(&[0]), "a huge count fills the memory with what it collects"),
    ort("", "MatMulInteger", Trusted::Values(&[1]), NO_PRODUCT),
    ort("", "MaxPool", Trusted::Asked, NOTHING_LEFT),
    ort("", "MaxUnpool", Trusted::Integers(&[1]), "an index outside writes to other memory"),
    ort("", "Mod", Trusted::Asked, DIVISOR),
    ort("", "Pad", Trusted::Integers(&[1, 3]), PADDING),
    ort("", "QLinearConv", Trusted::Values(&[3, 4, 5, 8]), "a scale or bias of another size is read beyond its end"),
    ort("", "QLinearMatMul", Trusted::Values(&[3]), NO_PRODUCT),
    ort("", "RNN", Trusted::Values(&[1]), NO_ROWS),
    ort("", "RoiAlign", Trusted::Integers(&[2]), INDEX_OUTSIDE),
    ort("", "RotaryEmbedding", Trusted::Integers(&[3]), INDEX_OUTSIDE),
    ort("", "STFT", Trusted::Integers(&[3]), "a frame length of 0 raises SIGFPE"),
    ort(ML, "ArrayFeatureExtractor", Trusted::Integers(&[1]), INDEX_OUTSIDE),
    ort(ML, "FeatureVectorizer", Trusted::Asked, "inputs with different numbers of rows write to other memory"),
    ort(ML, "SVMClassifier", Trusted::Asked, "columns that a row does not have are read from other memory"),
    ort(MS, "Attention", Trusted::Asked, LENGTH_OUTSIDE),
    ort(MS, "CropAndResize", Trusted::Values(&[1, 2, 3]), "a region that is not a number raises SIGSEGV"),
    ort(MS, "DecoderMaskedMultiHeadAttention", Trusted::Asked, LENGTH_OUTSIDE),
    ort(MS, "DynamicQuantizeMatMul", Trusted::Values(&[1]), NO_PRODUCT),
    ort(MS, "EmbedLayerNormalization", Trusted::Integers(&[8]), INDEX_OUTSIDE),
    ort(MS, "ExpandDims", Trusted::Integers(&[1]), "an axis outside raises SIGSEGV"),
    ort(MS, "FusedConv", Trusted::Values(&[1]), "a kernel of size 0 keeps it for ever"),
    ort(MS, "GroupQueryAttention", Trusted::Asked, LENGTH_OUTSIDE),
    ort(MS, "Inverse", Trusted::Asked, "a matrix that is not square raises SIGSEGV"),
    ort(MS, "MatMulBnb4", Trusted::Values(&[1, 2]), "weights of another size are read beyond their end"),
    ort(MS, "MatMulIntegerToFloat", Trusted::Values(&[1, 6]), "a bias of another size is read beyond its end"),
    ort(MS, "MatMulNBits", Trusted::Integers(&[4]), INDEX_OUTSIDE),
    ort(MS, "MultiHeadAttention", Trusted::Asked, LENGTH_OUTSIDE),
    ort(MS, "NGramRepeatBlock", Trusted::Integers(&[0]), "a token outside writes to other memory"),
    ort(MS, "Pad", Trusted::Integers(&[1]), PADDING),
    ort(MS, "QAttention", Trusted::Asked, "an empty batch, or a length outside, raises SIGFPE or SIGSEGV"),
    ort(MS, "QGemm", Trusted::Values(&[3]), NO_PRODUCT),
    ort(MS, "QLinearAveragePool", Trusted::Asked, NOTHING_LEFT),
    ort(MS, "QLinearConcat", Trusted::Asked, "inputs of different sizes are answered with other memory"),
    ort(MS, "RotaryEmbedding", Trusted::Integers(&[1]), INDEX_OUTSIDE),
    ort(MS, "Trilu", Trusted::Integers(&[1]), "the lowest diagonal raises SIGSEGV"),
    ort(MS, "WordConvEmbedding", Trusted::Integers(&[0]), INDEX_OUTSIDE),
    ort(NCHWC, "AveragePool", Trusted::Asked, NOTHING_LEFT),
    ort(NCHWC, "MaxPool", Trusted::Asked, NOTHING_LEFT),
    openvino("Col2Im", Trusted::Values(&[1, 2]), "a block larger than the image keeps it for ever"),
    openvino("DFT", Trusted::Values(&[1]), "a length of 0 raises SIGFPE"),
    openvino("GRU", Trusted::Values(&[1]), NO_ROWS),
    openvino("GatherND", Trusted::Values(&[1]), "an index far outside raises SIGSEGV"),
    openvino("LSTM", Trusted::Values(&[1]), NO_ROWS),
    openvino("Pad", Trusted::Values(&[1, 3]), "a large padding, positive or negative, raises SIGSEGV"),
    openvino("RNN", Trusted::Values(&[1]), NO_ROWS),
    openvino("Resize", Trusted::Values(&[2, 3]), "a size of 2147483647 raises SIGSEGV"),
    openvino("Scatter", Trusted::Values(&[1]), "an index far outside raises SIGSEGV"),
    openvino("ScatterElements", Trusted::Values(&[1]), "an index far outside raises SIGSEGV"),
    openvino("TopK", Trusted::Values(&[1]), "a k larger than the axis raises SIGSEGV"),
];

/// Operators that do not survive every axis of size 0 in ONNX Runtime, some in 1.23 alone. OpenVINO survives them, with weights of
/// the file.
const DOUBTFUL: [&str; 15] = [
    "Attention",
    "DFT",
    "Einsum",
    "FeatureVectorizer",
    "GRU",
    "GatherND",
    "GridSample",
    "LRN",
    "LSTM",
    "LpNormalization",
    "MultiHeadAttention",
    "OneHot",
    "RNN",
    "STFT",
    "Unique",
];

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
        let is_unsigned =
            |datatype| matches!(datatype, Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 | Datatype::Uint64);
        let has_open_sizes =
            |shape: Option<&Shape>| shape.is_none_or(|shape| shape.iter().skip(1).any(|size| *size < 0));
        let mut origins = Origins {
            values: inputs().map(|input| input.name.as_str()).collect(),
            integers: inputs()
                .filter(|input| is_integer(input.datatype) || is_unsigned(input.datatype))
                .map(|input| input.name.as_str())
                .collect(),
            tables: inputs()
                .filter(|input| input.shape.as_ref().is_some_and(|shape| shape.len() > 1))
                .map(|input| input.name.as_str())
                .collect(),
        };
        let surroundings = Surroundings {
            engine,
            has_convolution: false,
            has_open_sizes: inputs().any(|input| has_open_sizes(input.shape.as_ref())),
            has_several_inputs: inputs().count() > 1,
            has_product: false,
            has_reduction: false,
        };
        let mut trust = Self { is_doubtful: graph.has_functions, ..Self::default() };
        trust.walk(&graph, &mut origins, surroundings);
        trust
    }

    /// Of a model of OpenVINO's own form, the text of its `.xml`.
    pub fn of_openvino(text: &str) -> Self {
        let trusting = openvino_ir::first_trusting(text);
        Self { trusting, is_doubtful: false, has_sizes: true }
    }

    fn walk<'a>(&mut self, graph: &'a OnnxGraph, origins: &mut Origins<'a>, around: Surroundings) {
        for name in graph.constants.keys().chain(graph.left_out.keys()) {
            // An input with an initial value is one that a request may bring.
            if !graph.inputs.contains(name) {
                origins.forget(name);
            }
        }
        let around = around.with(graph);
        for node in &graph.nodes {
            self.is_doubtful |= around.engine == GraphEngine::Onnxruntime && is_doubtful(node, origins, around);
            self.has_sizes |= reads_sizes(node, origins);
            let trusts = |row: &&Trusting| {
                let is_of_domain = row.domain == domain(node) || row.engine == GraphEngine::Openvino;
                let is_same = row.operator == node.operator && is_of_domain;
                row.engine == around.engine && is_same && row.trusts(node, graph, around, origins)
            };
            if self.trusting.is_none() {
                let row = TRUSTING.iter().find(trusts).map(|row| row.reason);
                let reason = row.or_else(|| has_any_size(node, origins).then_some(HUGE_SIZE));
                self.trusting = reason.map(|reason| (node.operator.clone(), reason));
            }
            let inputs: Vec<_> = node.inputs.iter().map(String::as_str).collect();
            let (values, integers) = (origins.any(&inputs), origins.any_integer(&inputs));
            for (_, inner) in node.graphs() {
                let mut within = origins.clone();
                for name in &inner.inputs {
                    within.set(name, values, integers);
                }
                self.walk(inner, &mut within, around);
            }
            let is_table = node.operator == "Cast" && inputs.iter().any(|name| origins.tables.contains(name));
            let (values, integers) = origins.of_outputs(node, values, integers);
            node.outputs.iter().for_each(|name| origins.set(name, values, integers));
            if is_table {
                origins.tables.extend(node.outputs.iter().map(String::as_str));
            }
        }
    }
}

/// The rest of a graph, as far as it decides what an operator does not survive: the engine fuses neighbours.
#[derive(Clone, Copy)]
struct Surroundings {
    engine: GraphEngine,
    /// A convolution, whose blocks of channels go on into a pooling.
    has_convolution: bool,
    /// An axis beside the first that is open in an input.
    has_open_sizes: bool,
    has_product: bool,
    has_reduction: bool,
    /// Inputs whose sizes may differ.
    has_several_inputs: bool,
}

impl Surroundings {
    fn with(self, graph: &OnnxGraph) -> Self {
        let has = |operators: &[&str]| graph.nodes.iter().any(|node| operators.contains(&node.operator.as_str()));
        Self {
            has_convolution: self.has_convolution || has(&["Conv", "FusedConv", "QLinearConv"]),
            has_product: self.has_product || has(&["MatMul"]),
            has_reduction: self.has_reduction || has(&["ReduceMean"]),
            ..self
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
    /// Inputs of two axes or more, and what they are cast to.
    tables: BTreeSet<&'a str>,
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
        self.tables.remove(name);
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
            // Numbers of elements of a mask.
            "EmbedLayerNormalization" => (values, false),
            // Numbers of elements, and truth.
            "And" | "ArgMax" | "ArgMin" | "ConstantOfShape" | "DequantizeLinear" | "Equal" | "Greater"
            | "GreaterOrEqual" | "Less" | "LessOrEqual" | "NonZero" | "Not" | "Or" | "Sign" => (values, false),
            operator if operator.starts_with("Reduce") => (values, integer_at(0)),
            _ => (values, integers),
        }
    }
}

impl Trusting {
    /// Returns true if the operator gets something from a request that it does not survive.
    fn trusts(&self, node: &OnnxNode, graph: &OnnxGraph, around: Surroundings, origins: &Origins<'_>) -> bool {
        let is_in = |names: &BTreeSet<&str>, index: usize| node.input(index).is_some_and(|name| names.contains(name));
        match self.inputs {
            Trusted::Integers(indices) => indices.iter().any(|index| is_in(&origins.integers, *index)),
            Trusted::Values(indices) => indices.iter().any(|index| is_in(&origins.values, *index)),
            Trusted::Asked => is_trusting(node, graph, around, origins),
        }
    }
}

/// Returns true if an operator of [`TRUSTING`] does, where more than one input decides.
fn is_trusting(node: &OnnxNode, graph: &OnnxGraph, around: Surroundings, origins: &Origins<'_>) -> bool {
    let value_at = |index: usize| node.input(index).is_some_and(|name| origins.values.contains(name));
    let integer_at = |index: usize| node.input(index).is_some_and(|name| origins.integers.contains(name));
    // A mask with a row for each batch is read by its shape, a list of lengths is not.
    let length_at =
        |index: usize| integer_at(index) && !node.input(index).is_some_and(|name| origins.tables.contains(name));
    // An input of the graph itself, whose sizes the request sets alone.
    let is_given = |index: usize| {
        let name = node.input(index).filter(|name| origins.values.contains(name));
        name.is_some_and(|name| graph.inputs.iter().any(|input| input == name))
    };
    match node.operator.as_str() {
        "Mod" if node.integer("fmod", 0) != 0 => false,
        "Div" | "Mod" => {
            let divisor = node.input(1).and_then(|name| graph.constants.get(name));
            integer_at(1) || integer_at(0) && divisor.is_some_and(has_minus_one)
        }
        "AveragePool" | "MaxPool" => {
            let is_fused = around.has_convolution || node.domain == NCHWC;
            is_fused && around.has_open_sizes && value_at(0) && leaves_nothing(node)
        }
        "QLinearAveragePool" => {
            node.integer("channels_last", 0) != 0 && around.has_open_sizes && value_at(0) && leaves_nothing(node)
        }
        "GatherND" => node.integer("batch_dims", 0) > 0 && around.has_several_inputs && value_at(0) && value_at(1),
        "FeatureVectorizer" => around.has_several_inputs && (1..node.inputs.len()).any(value_at),
        "QLinearConcat" => around.has_several_inputs && (3..node.inputs.len()).any(value_at),
        "Inverse" | "SVMClassifier" => around.has_open_sizes && value_at(0),
        // Those of one graph agree; those of a request may not.
        "Attention" if domain(node).is_empty() => [1, 2, 4, 5].into_iter().any(is_given),
        // With weights of the file, the trial finds the sizes that it does not survive. With others it does not know
        // sizes that fit.
        "Attention" => length_at(3) || integer_at(6) || value_at(1) || is_given(4),
        "DecoderMaskedMultiHeadAttention" => {
            [7, 8, 9].into_iter().any(integer_at) || [1, 2, 5, 6].into_iter().any(is_given)
        }
        "GroupQueryAttention" => [5, 6].into_iter().any(integer_at) || (1..=4).any(is_given),
        "MultiHeadAttention" => {
            length_at(4) || integer_at(8) || integer_at(9) || [1, 2, 6, 7].into_iter().any(is_given)
        }
        "QAttention" => length_at(5) || value_at(1) || is_given(8),
        _ => false,
    }
}

/// Returns true if a pooling may have an output of size 0 for an input that is not empty: its kernel reaches a stride
/// beyond the padding. In blocks of channels, as after a convolution, the engine divides by that size.
fn leaves_nothing(node: &OnnxNode) -> bool {
    let Some(kernel) = node.integers("kernel_shape") else { return false };
    if matches!(node.text("auto_pad"), Some("SAME_UPPER" | "SAME_LOWER")) {
        return false;
    }
    let at = |name: &str, index: usize, default: i64| {
        node.integers(name).and_then(|list| list.get(index).copied()).unwrap_or(default)
    };
    kernel.iter().enumerate().any(|(axis, size)| {
        let reach = size.saturating_sub(1).saturating_mul(at("dilations", axis, 1));
        let padding = at("pads", axis, 0).saturating_add(at("pads", axis + kernel.len(), 0));
        reach.saturating_sub(padding) >= at("strides", axis, 1)
    })
}

/// Returns true if an operator may not survive an axis of size 0 in ONNX Runtime.
fn is_doubtful(node: &OnnxNode, origins: &Origins<'_>, around: Surroundings) -> bool {
    let first = |name: &str| node.integers(name).and_then(|list| list.first().copied()).unwrap_or(0);
    if !matches!(domain(node), "" | ML) {
        return true;
    }
    match node.operator.as_str() {
        "ConvTranspose" => node.integers("output_shape").is_some(),
        // Fused with the addition before it, whose inputs may have different sizes. Older files write it out.
        "LayerNormalization" | "SimplifiedLayerNormalization" => around.has_several_inputs,
        "Sqrt" => around.has_several_inputs && around.has_reduction,
        "QuantizeLinear" => node.integer("block_size", 0) != 0,
        "Scan" => node.integers("scan_output_axes").is_some_and(|axes| axes.iter().any(|axis| *axis != 0)),
        "TopK" => node.input(0).is_some_and(|name| origins.integers.contains(name)),
        // Fused with a product.
        "Transpose" => around.has_product && first("perm") != 0,
        operator => DOUBTFUL.contains(&operator),
    }
}

/// The domain of an operator, empty for ONNX's own.
fn domain(node: &OnnxNode) -> &str {
    if node.domain == "ai.onnx" { "" } else { &node.domain }
}

/// Returns true if a request may set the size of what an operator makes to any value.
fn has_any_size(node: &OnnxNode, origins: &Origins<'_>) -> bool {
    // These also take floats: the ends of a range, and scales.
    let takes_floats = matches!(node.operator.as_str(), "Range" | "Resize" | "Upsample");
    let names = if takes_floats { &origins.values } else { &origins.integers };
    sizing_inputs(node).any(|name| names.contains(name))
}

/// Returns true if integers of any value reach an input that is a size, an axis, an index that is computed with, or a
/// divisor.
fn reads_sizes(node: &OnnxNode, origins: &Origins<'_>) -> bool {
    let indices: &[usize] = match (domain(node), node.operator.as_str()) {
        ("", "Attention") => &[6],
        (MS, "Attention") => &[3, 6],
        (MS, "BifurcationDetector" | "CropAndResize") => &[2, 3],
        (MS, "DecoderMaskedMultiHeadAttention") => &[3, 7, 8, 9],
        (MS, "EmbedLayerNormalization" | "QEmbedLayerNormalization") => &[0, 1, 7, 8],
        (MS, "GroupQueryAttention") => &[5, 6, 9],
        (MS, "MatMulNBits") => &[4],
        (MS, "MultiHeadAttention") => &[4, 8, 9],
        (MS, "NGramRepeatBlock" | "WordConvEmbedding") => &[0],
        (MS, "QAttention") => &[5],
        (MS, "RotaryEmbedding") => &[1],
        (MS, "SparseAttention") => &[5, 6, 7, 8],
        ("", "RotaryEmbedding") => &[3],
        (
            _,
            "BitShift" | "CumProd" | "CumSum" | "ReverseSequence" | "ScatterElements" | "ScatterND" | "Split"
            | "SplitToSequence" | "Reshape" | "SequenceAt" | "SequenceErase" | "Squeeze" | "TopK" | "Trilu"
            | "Unsqueeze",
        ) => &[1],
        (_, "ArrayFeatureExtractor" | "ExpandDims" | "GatherBlockQuantized" | "MaxUnpool") => &[1],
        (_, "Div" | "Mod" | "Pow") => &[0, 1],
        (_, "GRU" | "LSTM" | "RNN") => &[4],
        (_, "Loop") => &[0],
        (_, "NonMaxSuppression" | "RoiAlign" | "SequenceInsert" | "TensorScatter") => &[2],
        (_, "Pad") => &[1, 3],
        (_, "Slice") => &[1, 2, 3, 4],
        (_, operator) if operator.starts_with("Reduce") => &[1],
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
        let onnx = onnx.input("t", INT64, &[-1, -1]);
        GraphTrust::of_onnx(&onnx.output("y", FLOAT, &[]).into_bytes(), engine)
    }

    /// Nodes such as `Div n m -> a`, and `MaxPool a -> y / kernel_shape=[2,2]`.
    fn of(engine: GraphEngine, nodes: &str) -> GraphTrust {
        let integers = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let begin = Onnx::default().constant("two", INT64, &[1], &integers(&[2])).constant(
            "minus",
            INT64,
            &[2],
            &integers(&[7, -1]),
        );
        let add = |onnx: Onnx, node: &str| {
            let (node, attributes) = node.split_once('/').unwrap_or((node, ""));
            let (operator, names) = node.trim().split_once(' ').unwrap();
            let (inputs, outputs) = names.split_once("->").unwrap();
            let names = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
            let (inputs, outputs): (&str, &str) = (inputs.to_owned().leak(), outputs.to_owned().leak());
            let attributes = if operator == "Cast" { "to=7" } else { attributes };
            onnx.node_of(operator, &names(inputs), &names(outputs), attributes)
        };
        trust(engine, nodes.split(';').fold(begin, add))
    }

    #[track_caller]
    fn check_trusting(engine: GraphEngine, nodes: &str, want: &str) {
        let got = of(engine, nodes).trusting.map_or_else(String::new, |(operator, _)| operator);
        assert_eq!(got, want, "{nodes}");
    }

    #[test]
    fn operators_that_trust_values_of_a_request_are_found_and_the_same_on_its_shapes_are_not() {
        let check = |nodes: &str, want: &str| check_trusting(GraphEngine::Onnxruntime, nodes, want);
        check("Div n m -> y", "Div");
        check("Add n two -> a; Unsqueeze m two -> b; Mod a b -> y", "Mod");
        check("Div n two -> y", "");
        check("Div n minus -> y", "Div");
        check("Div x x -> y", "");
        check("Mod x x -> y / fmod=1", "");
        check("Shape x -> s; Div n s -> y", "");
        check("Shape x -> s; Div s n -> y", "Div");
        check("Floor x -> f; Cast f -> i; Div i i -> y", "Div");
        check("Gather two n -> t; Div n t -> y", "");
        check("Conv x x -> y", "Conv");
        check("Conv x two -> y", "");
        check("STFT x two two n -> y", "STFT");
        check("DFT x n -> y", "DFT");
        check("DFT x two -> y", "");
        check("Shape x -> s; Pad x s -> y", "");
        check("Pad x n -> y", "Pad");
        check("Loop n x x -> y", "Loop");
        check("Loop two x x -> y", "");
        check("Shape x -> s; Loop s x x -> y", "");
        check("OneHot two n x -> y", "OneHot");
        check("OneHot n two x -> y", "");
        check("ConstantOfShape n -> y", "ConstantOfShape");
        check("Shape x -> s; ConstantOfShape s -> y", "");
        check("NonZero x -> z; Shape z -> s; Range two s two -> y", "");
        check("ReduceMax n -> m; Range two m two -> y", "Range");
        check("Range x two two -> y", "Range");
        check("ArgMax n -> a; Tile x a -> y", "");
        check("Tile x m -> y", "Tile");
        check("Expand x n -> y", "Expand");
        check("Floor x -> f; Cast f -> i; Expand x i -> y", "Expand");
        check("Resize x two x -> y", "Resize");
        check("Resize x two two two -> y", "");
        check("com.microsoft:BeamSearch t n two two two -> y", "BeamSearch");
        check("MaxUnpool x t -> y", "MaxUnpool");
        check("RotaryEmbedding x x x t -> y", "RotaryEmbedding");
        check("Attention x x x -> y", "Attention");
        check("Relu x -> a; Attention a a a -> y", "");
        check("MatMulInteger t two -> y", "");
        check("MatMulInteger t t -> y", "MatMulInteger");
        check("GatherND x n -> y", "");
        check("GatherND x n -> y / batch_dims=1", "GatherND");
        check("TopK x n -> y", "");
        check("LSTM x x two -> y", "LSTM");
        check("GRU x two two -> y", "");
        let check = |nodes: &str, want: &str| check_trusting(GraphEngine::Openvino, nodes, want);
        check("TopK x n -> y", "TopK");
        check("TopK x two -> y", "");
        check("LSTM x x two -> y", "LSTM");
        check("LSTM x two two -> y", "");
        check("Pad x two x n -> y", "Pad");
        check("Resize x two two n -> y", "Resize");
        check("Range n two two -> y", "Range");
        check("ConstantOfShape two -> y", "");
        check("Scatter x n x -> y", "Scatter");
        check("DFT x n -> y", "DFT");
        check("com.microsoft:GatherND x n -> y", "GatherND");
        check("Div n m -> y", "");
        check("Conv x two -> c; MaxPool c -> y / kernel_shape=[3,3]", "");
    }

    #[test]
    fn operators_of_other_domains_have_rows_of_their_own() {
        let check = |nodes: &str, want: &str| check_trusting(GraphEngine::Onnxruntime, nodes, want);
        check("ai.onnx.ml:ArrayFeatureExtractor x n -> y", "ArrayFeatureExtractor");
        check("ai.onnx.ml:ArrayFeatureExtractor x two -> y", "");
        check("other:ArrayFeatureExtractor x n -> y", "");
        check("ai.onnx.ml:FeatureVectorizer x t -> y", "FeatureVectorizer");
        check("ai.onnx.ml:FeatureVectorizer x -> y", "");
        check("com.microsoft:RotaryEmbedding x t x x -> y", "RotaryEmbedding");
        check("com.microsoft:RotaryEmbedding x two x t -> y", "");
        check("com.microsoft:GroupQueryAttention x x x x x n two -> y", "GroupQueryAttention");
        check("com.microsoft:CropAndResize x x two two -> y", "CropAndResize");
        check("com.microsoft:FusedConv x x -> y", "FusedConv");
        check("com.microsoft:Inverse x -> y", "Inverse");
        check("ai.onnx.ml:SVMClassifier x -> y", "SVMClassifier");
        check("com.microsoft:QGemm x two two two -> y", "");
        check("com.microsoft:QGemm x two two x -> y", "QGemm");
        check("com.microsoft:QLinearConcat two two x two two x two two -> y", "QLinearConcat");
        check("com.microsoft:QAttention t x two two two -> y", "QAttention");
        check("com.microsoft:QAttention t two two two two -> y", "");
        // Lengths of a batch, against a mask with a row for each.
        check("com.microsoft:Attention x x x n -> y", "Attention");
        check("com.microsoft:Attention x two two t -> y", "");
        check("com.microsoft:Attention x x two -> y", "Attention");
        // Caches of the request.
        check("com.microsoft:Attention x two two t x -> y", "Attention");
        check("com.microsoft:QAttention t two two two two t two two x -> y", "QAttention");
        check("Relu x -> a; com.microsoft:MultiHeadAttention a a a x t t x a -> y", "MultiHeadAttention");
        check("Relu x -> a; com.microsoft:GroupQueryAttention a a a a a two two -> y", "");
        check("Relu x -> a; com.microsoft:GroupQueryAttention a a a x a two two -> y", "GroupQueryAttention");
        let masked = "DecoderMaskedMultiHeadAttention";
        check(&format!("Relu x -> a; com.microsoft:{masked} a a a t t a a -> y"), "");
        check(&format!("Relu x -> a; com.microsoft:{masked} a a a t t a x -> y"), masked);
        check("Relu x -> a; Cast t -> c; com.microsoft:MultiHeadAttention a a a x c -> y", "");
        check("com.microsoft:MultiHeadAttention x x x -> y", "MultiHeadAttention");
        check("Relu x -> a; ReduceSum t -> c; com.microsoft:MultiHeadAttention a a a x c -> y", "MultiHeadAttention");
        check("com.microsoft:EmbedLayerNormalization t t x -> e l; com.microsoft:Attention e two two l -> y", "");
    }

    #[test]
    fn a_pooling_behind_a_convolution_that_may_leave_nothing_is_found() {
        let check = |nodes: &str, want: &str| check_trusting(GraphEngine::Onnxruntime, nodes, want);
        check("Conv x two -> c; MaxPool c -> y / kernel_shape=[3,3] strides=[2,2]", "MaxPool");
        check("Conv x two -> c; MaxPool c -> y / kernel_shape=[2,2]", "MaxPool");
        check("Conv x two -> c; MaxPool c -> y / kernel_shape=[2,2] strides=[2,2]", "");
        check("Conv x two -> c; MaxPool c -> y / kernel_shape=[2,2] strides=[2,2] dilations=[1,2]", "MaxPool");
        check("Conv x two -> c; MaxPool c -> y / kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]", "");
        check("Conv x two -> c; MaxPool c -> y / kernel_shape=[3,3] strides=[2,2] auto_pad=SAME_UPPER", "");
        check("Conv x two -> c; Relu c -> r; AveragePool r -> y / kernel_shape=[7,7]", "AveragePool");
        check("MaxPool x -> y / kernel_shape=[3,3]", "");
        let pooled = |dims: &[i64]| {
            let onnx = Onnx::default().constant("w", FLOAT, &[1, 1, 1, 1], &[0; 4]).input("x", FLOAT, dims);
            let onnx = onnx.node("Conv", &["x", "w"], &["c"], &[]);
            let onnx = onnx.node_of("AveragePool", &["c"], &["y"], "kernel_shape=[7,7]").output("y", FLOAT, &[]);
            GraphTrust::of_onnx(&onnx.into_bytes(), GraphEngine::Onnxruntime).trusting.is_some()
        };
        assert!(pooled(&[-1, 1, -1, 224]) && !pooled(&[-1, 1, 224, 224]));
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
        check("TensorScatter x x n -> y", (false, true));
        check("TopK x two -> y", (false, false));
        check("TopK n two -> y", (true, false));
        check("ConvTranspose x two -> y", (false, false));
        check("ConvTranspose x two -> y / output_shape=[4,4]", (true, false));
        check("Transpose x -> t / perm=[0,1]; MatMul x t -> y", (false, false));
        check("Transpose x -> t / perm=[1,0]; MatMul x t -> y", (true, false));
        check("LayerNormalization x two -> y", (true, false));
        check("ReduceMean x -> m; Sqrt m -> y", (true, false));
        check("Sqrt x -> y", (false, false));
        check("com.microsoft:BiasGelu x x -> y", (true, false));
        check("com.microsoft:NGramRepeatBlock t x -> y", (true, true));
        assert!(!of(GraphEngine::Openvino, "GRU x two two -> y").is_doubtful);
        let alone = Onnx::default().node("LayerNormalization", &["x", "x"], &["y"], &[]).input("x", FLOAT, &[-1, -1]);
        let alone = alone.output("y", FLOAT, &[]).into_bytes();
        assert!(!GraphTrust::of_onnx(&alone, GraphEngine::Onnxruntime).is_doubtful);
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
}
