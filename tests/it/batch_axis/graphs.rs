//! Graphs whose first axis is open: some of them mix the rows, and some run each row by itself.

use crate::support::onnx::builder::{BOOL, FLOAT, INT32, INT64, Onnx, UINT8};

/// `elem_type` of FP64 in `onnx.proto`.
const DOUBLE: i64 = 11;
/// `elem_type` of strings.
const STRING: i64 = 8;
/// `elem_type` of FP16.
const HALF: i64 = 10;

/// The engines that run a graph.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Runs {
    /// Both engines.
    Both,
    /// ONNX Runtime: the embedded engine has no such operator or datatype.
    OnOnnxruntime,
}

/// A graph, the facts about its first axis, and the form of its requests.
pub struct Graph {
    /// Its name.
    pub name: &'static str,
    /// True if the answer to a row depends on the other rows of its batch.
    pub mixes: bool,
    /// The engines that run it.
    pub runs: Runs,
    /// The file.
    pub file: Vec<u8>,
    /// The inputs of one row: name, datatype, sizes behind the first axis.
    pub inputs: Vec<(&'static str, &'static str, Vec<usize>)>,
}

impl Graph {
    fn on_onnxruntime(self) -> Self {
        Self { runs: Runs::OnOnnxruntime, ..self }
    }

    fn with(self, inputs: &[(&'static str, &'static str, &[usize])]) -> Self {
        let inputs = inputs.iter().map(|(name, datatype, sizes)| (*name, *datatype, sizes.to_vec())).collect();
        Self { inputs, ..self }
    }
}

fn graph(name: &'static str, mixes: bool, onnx: Onnx) -> Graph {
    Graph { name, mixes, runs: Runs::Both, file: onnx.into_bytes(), inputs: vec![("x", "FP32", vec![4])] }
}

/// A graph from `x` [N, 4] to `y` [N, 4], in FP32.
fn plain(name: &'static str, mixes: bool, body: impl FnOnce(Onnx) -> Onnx) -> Graph {
    graph(name, mixes, body(Onnx::default()).input("x", FLOAT, &[-1, 4]).output("y", FLOAT, &[-1, 4]))
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn ints(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Weights that are neither equal nor large.
fn weights(count: usize) -> Vec<u8> {
    let values: Vec<f32> = (0..count).map(|index| ((index * 37 % 23) as f32 - 11.0) / 16.0).collect();
    floats(&values)
}

trait Parts {
    fn list(self, name: &str, values: &[i64]) -> Onnx;
    fn number(self, name: &str, value: f32) -> Onnx;
    fn matrix(self, name: &str, dims: &[i64]) -> Onnx;
}

impl Parts for Onnx {
    fn list(self, name: &str, values: &[i64]) -> Onnx {
        self.constant(name, INT64, &[values.len() as i64], &ints(values))
    }

    fn number(self, name: &str, value: f32) -> Onnx {
        self.constant(name, FLOAT, &[], &floats(&[value]))
    }

    fn matrix(self, name: &str, dims: &[i64]) -> Onnx {
        self.constant(name, FLOAT, dims, &weights(dims.iter().product::<i64>() as usize))
    }
}

/// Graphs in which a row's answer depends on other rows.
pub fn mixing() -> Vec<Graph> {
    let mut graphs = mixing_by_reduction();
    graphs.extend(mixing_by_place());
    graphs.extend(mixing_by_shape());
    graphs
}

fn mixing_by_reduction() -> Vec<Graph> {
    let less = |name, operator: &'static str, second: &'static str| {
        plain(name, true, |onnx| {
            onnx.node_listed(operator, &["x"], &["all"], ("axes", &[0])).node(second, &["x", "all"], &["y"], &[])
        })
    };
    let gated = |name, over: f32| {
        plain(name, true, |onnx| {
            onnx.number("limit", over)
                .node_listed("ReduceMax", &["x"], &["all"], ("axes", &[0]))
                .node("Greater", &["x", "limit"], &["flag"], &[])
                .node("Where", &["flag", "all", "x"], &["y"], &[])
        })
    };
    vec![
        plain("softmax", true, |onnx| onnx.node("Softmax", &["x"], &["y"], &[("axis", 0)])),
        plain("log-softmax", true, |onnx| onnx.node("LogSoftmax", &["x"], &["y"], &[("axis", 0)])),
        plain("cumsum", true, |onnx| {
            onnx.constant("axis", INT64, &[], &ints(&[0])).node("CumSum", &["x", "axis"], &["y"], &[])
        }),
        less("mean-subtracted", "ReduceMean", "Sub"),
        less("max-subtracted", "ReduceMax", "Sub"),
        less("min-added", "ReduceMin", "Add"),
        less("l2-normalised", "ReduceL2", "Div"),
        plain("sum-normalised", true, |onnx| {
            onnx.list("axes", &[0])
                .node("Exp", &["x"], &["e"], &[])
                .node("ReduceSum", &["e", "axes"], &["all"], &[])
                .node("Div", &["e", "all"], &["y"], &[])
        }),
        plain("batch-statistics", true, |onnx| {
            onnx.number("epsilon", 1e-5)
                .node_listed("ReduceMean", &["x"], &["mean"], ("axes", &[0]))
                .node("Sub", &["x", "mean"], &["centred"], &[])
                .node("Mul", &["centred", "centred"], &["squares"], &[])
                .node_listed("ReduceMean", &["squares"], &["variance"], ("axes", &[0]))
                .node("Add", &["variance", "epsilon"], &["more"], &[])
                .node("Sqrt", &["more"], &["deviation"], &[])
                .node("Div", &["centred", "deviation"], &["y"], &[])
        }),
        gated("attends-if-flagged", 0.5),
        gated("attends-if-rare", 1.9),
        plain("counts", true, |onnx| {
            onnx.number("zero", 0.0)
                .list("axes", &[0])
                .node("Greater", &["x", "zero"], &["above"], &[])
                .node("Cast", &["above"], &["ones"], &[("to", FLOAT)])
                .node("ReduceSum", &["ones", "axes"], &["all"], &[])
                .node("Add", &["x", "all"], &["y"], &[])
        }),
        plain("attention", true, |onnx| {
            onnx.matrix("q", &[4, 4])
                .node("MatMul", &["x", "q"], &["queries"], &[])
                .node("Transpose", &["x"], &["keys"], &[])
                .node("MatMul", &["queries", "keys"], &["scores"], &[])
                .node("Softmax", &["scores"], &["shares"], &[("axis", 1)])
                .node("MatMul", &["shares", "x"], &["y"], &[])
        }),
        plain("gram", true, |onnx| {
            onnx.node("Transpose", &["x"], &["columns"], &[])
                .node("MatMul", &["x", "columns"], &["products"], &[])
                .node("MatMul", &["products", "x"], &["y"], &[])
        }),
        graph(
            "attention-over-two",
            true,
            Onnx::default()
                .node("Transpose", &["m"], &["keys"], &[])
                .node("MatMul", &["x", "keys"], &["scores"], &[])
                .node("Softmax", &["scores"], &["shares"], &[("axis", 1)])
                .node("MatMul", &["shares", "m"], &["y"], &[])
                .input("x", FLOAT, &[-1, 4])
                .input("m", FLOAT, &[-1, 4])
                .output("y", FLOAT, &[-1, 4]),
        )
        .with(&[("x", "FP32", &[4]), ("m", "FP32", &[4])]),
        graph(
            "dynamically-quantized",
            true,
            Onnx::default()
                .node("DynamicQuantizeLinear", &["x"], &["q", "scale", "zero"], &[])
                .node("DequantizeLinear", &["q", "scale", "zero"], &["y"], &[])
                .input("x", FLOAT, &[-1, 4])
                .output("y", FLOAT, &[-1, 4]),
        ),
    ]
}

fn mixing_by_place() -> Vec<Graph> {
    vec![
        plain("sorted", true, |onnx| {
            onnx.list("first", &[0])
                .node("Shape", &["x"], &["shape"], &[])
                .node("Gather", &["shape", "first"], &["rows"], &[])
                .node("TopK", &["x", "rows"], &["y", "places"], &[("axis", 0)])
        }),
        plain("reversed", true, |onnx| {
            onnx.list("starts", &[-1])
                .list("ends", &[i64::from(i32::MIN)])
                .list("axes", &[0])
                .list("steps", &[-1])
                .node("Slice", &["x", "starts", "ends", "axes", "steps"], &["y"], &[])
        }),
        plain("rolled", true, |onnx| {
            onnx.list("zero", &[0])
                .list("last", &[-1])
                .list("end", &[i64::from(i32::MAX)])
                .list("axes", &[0])
                .node("Slice", &["x", "last", "end", "axes"], &["tail"], &[])
                .node("Slice", &["x", "zero", "last", "axes"], &["head"], &[])
                .node("Concat", &["tail", "head"], &["y"], &[("axis", 0)])
        }),
        plain("first-subtracted", true, |onnx| {
            onnx.list("first", &[0]).node("Gather", &["x", "first"], &["row"], &[("axis", 0)]).node(
                "Sub",
                &["x", "row"],
                &["y"],
                &[],
            )
        }),
        plain("last-added", true, |onnx| {
            onnx.list("last", &[-1]).node("Gather", &["x", "last"], &["row"], &[("axis", 0)]).node(
                "Add",
                &["x", "row"],
                &["y"],
                &[],
            )
        }),
        plain("first-overwritten", true, |onnx| {
            onnx.constant("places", INT64, &[1, 1], &ints(&[0]))
                .constant("update", FLOAT, &[1, 4], &floats(&[7.0; 4]))
                .node("ScatterND", &["x", "places", "update"], &["y"], &[])
        }),
        plain("numbered", true, |onnx| {
            onnx.number("zero", 0.0)
                .constant("axis", INT64, &[], &ints(&[0]))
                .node("Mul", &["x", "zero"], &["zeros"], &[])
                .node("Exp", &["zeros"], &["ones"], &[])
                .node("CumSum", &["ones", "axis"], &["numbers"], &[])
                .node("Add", &["x", "numbers"], &["y"], &[])
        }),
        plain("gathered-across", true, |onnx| {
            onnx.node("ArgMax", &["x"], &["places"], &[("axis", 0), ("keepdims", 0)])
                .node("Gather", &["x", "places"], &["rows"], &[("axis", 0)])
                .node_listed("ReduceMean", &["rows"], &["mean"], ("axes", &[0]))
                .node("Add", &["x", "mean"], &["y"], &[])
        }),
        plain("convolved", true, |onnx| {
            onnx.list("zero", &[0])
                .matrix("w", &[4, 4, 3])
                .node("Transpose", &["x"], &["columns"], &[])
                .node("Unsqueeze", &["columns", "zero"], &["signal"], &[])
                .node_listed("Conv", &["signal", "w"], &["smooth"], ("pads", &[1, 1]))
                .node("Squeeze", &["smooth", "zero"], &["back"], &[])
                .node("Transpose", &["back"], &["y"], &[])
        }),
        plain("recurrent-over-rows", true, |onnx| {
            onnx.list("one", &[1])
                .list("two", &[1, 2])
                .matrix("w", &[1, 16, 4])
                .matrix("r", &[1, 16, 4])
                .node("Unsqueeze", &["x", "one"], &["steps"], &[])
                .node("LSTM", &["steps", "w", "r"], &["all"], &[("hidden_size", 4)])
                .node("Squeeze", &["all", "two"], &["y"], &[])
        }),
    ]
}

fn mixing_by_shape() -> Vec<Graph> {
    let wide = |name, nodes: Onnx, dims: &[i64], datatype| {
        graph(name, true, nodes.input("x", FLOAT, &[-1, 4]).output("y", datatype, dims))
    };
    vec![
        plain("folded-softmax", true, |onnx| {
            onnx.list("flat", &[1, -1])
                .list("back", &[-1, 4])
                .node("Reshape", &["x", "flat"], &["line"], &[])
                .node("Softmax", &["line"], &["shares"], &[("axis", 1)])
                .node("Reshape", &["shares", "back"], &["y"], &[])
        }),
        plain("interleaved", true, |onnx| {
            onnx.list("other", &[4, -1]).node("Reshape", &["x", "other"], &["columns"], &[]).node(
                "Transpose",
                &["columns"],
                &["y"],
                &[],
            )
        }),
        plain("folded-mean", true, |onnx| {
            onnx.node("Flatten", &["x"], &["line"], &[("axis", 0)])
                .node_listed("ReduceMean", &["line"], &["mean"], ("axes", &[1]))
                .node("Sub", &["x", "mean"], &["y"], &[])
        }),
        wide("one-for-all", Onnx::default().node_listed("ReduceMean", &["x"], &["y"], ("axes", &[0])), &[-1, 4], FLOAT),
        wide(
            "pairs",
            Onnx::default().node("Transpose", &["x"], &["columns"], &[]).node("MatMul", &["x", "columns"], &["y"], &[]),
            &[-1, -1],
            FLOAT,
        ),
        wide(
            "nonzero",
            Onnx::default().node("Relu", &["x"], &["above"], &[]).node("NonZero", &["above"], &["places"], &[]).node(
                "Transpose",
                &["places"],
                &["y"],
                &[],
            ),
            &[-1, 2],
            INT64,
        ),
        wide("unique", Onnx::default().node("Unique", &["x"], &["y"], &[]), &[-1], FLOAT).on_onnxruntime(),
        wide(
            "compressed",
            Onnx::default()
                .number("zero", 0.0)
                .node_listed("ReduceMean", &["x"], &["means"], ("axes", &[1]))
                .node("Greater", &["means", "zero"], &["flags"], &[])
                .list("line", &[-1])
                .node("Reshape", &["flags", "line"], &["condition"], &[])
                .node("Compress", &["x", "condition"], &["y"], &[("axis", 0)]),
            &[-1, 4],
            FLOAT,
        )
        .on_onnxruntime(),
    ]
}

/// Graphs that run each row by itself.
pub fn row_wise() -> Vec<Graph> {
    let mut graphs = row_wise_of_floats();
    graphs.extend(row_wise_by_order());
    graphs.extend(row_wise_of_images());
    graphs.extend(row_wise_of_sequences());
    graphs.extend(row_wise_of_other_types());
    graphs
}

fn row_wise_of_floats() -> Vec<Graph> {
    let one = |name, operator: &'static str| plain(name, false, |onnx| onnx.node(operator, &["x"], &["y"], &[]));
    vec![
        one("relu", "Relu"),
        one("sigmoid", "Sigmoid"),
        one("erf", "Erf"),
        plain("mlp", false, |onnx| {
            onnx.matrix("a", &[4, 16])
                .matrix("b", &[16, 4])
                .node("MatMul", &["x", "a"], &["wide"], &[])
                .node("Relu", &["wide"], &["above"], &[])
                .node("MatMul", &["above", "b"], &["y"], &[])
        }),
        plain("deep-mlp", false, |onnx| {
            let onnx = onnx.matrix("w", &[4, 4]).node("MatMul", &["x", "w"], &["h0"], &[]);
            let onnx = (0..8).fold(onnx, |onnx, layer| {
                let (from, to, out) = (format!("h{layer}"), format!("p{layer}"), format!("h{}", layer + 1));
                onnx.node("MatMul", &[&from, "w"], &[&to], &[]).node("Tanh", &[&to], &[&out], &[])
            });
            onnx.node("Identity", &["h8"], &["y"], &[])
        }),
        plain("gemm", false, |onnx| {
            onnx.matrix("w", &[4, 4]).matrix("b", &[4]).node("Gemm", &["x", "w", "b"], &["y"], &[("transB", 1)])
        }),
        plain("softmax-of-row", false, |onnx| onnx.node("Softmax", &["x"], &["y"], &[("axis", 1)])),
        plain("layer-norm", false, |onnx| {
            onnx.number("epsilon", 1e-5)
                .node_listed("ReduceMean", &["x"], &["mean"], ("axes", &[1]))
                .node("Sub", &["x", "mean"], &["centred"], &[])
                .node("Mul", &["centred", "centred"], &["squares"], &[])
                .node_listed("ReduceMean", &["squares"], &["variance"], ("axes", &[1]))
                .node("Add", &["variance", "epsilon"], &["more"], &[])
                .node("Sqrt", &["more"], &["deviation"], &[])
                .node("Div", &["centred", "deviation"], &["y"], &[])
        }),
        plain("batch-norm", false, |onnx| {
            onnx.matrix("scale", &[4])
                .matrix("bias", &[4])
                .matrix("mean", &[4])
                .constant("variance", FLOAT, &[4], &floats(&[1.0, 2.0, 0.5, 4.0]))
                .node("BatchNormalization", &["x", "scale", "bias", "mean", "variance"], &["y"], &[])
        }),
        plain("l2-of-row", false, |onnx| {
            onnx.node_listed("ReduceL2", &["x"], &["length"], ("axes", &[1])).node("Div", &["x", "length"], &["y"], &[])
        }),
        plain("where-of-row", false, |onnx| {
            onnx.number("limit", 0.5)
                .node("Greater", &["x", "limit"], &["flag"], &[])
                .node("Neg", &["x"], &["less"], &[])
                .node("Where", &["flag", "less", "x"], &["y"], &[])
        }),
        plain("clip", false, |onnx| {
            onnx.number("low", -1.0).number("high", 1.0).node("Clip", &["x", "low", "high"], &["y"], &[])
        }),
        plain("quantized", false, |onnx| {
            onnx.number("scale", 0.05)
                .constant("zero", UINT8, &[], &[128])
                .node("QuantizeLinear", &["x", "scale", "zero"], &["q"], &[])
                .node("DequantizeLinear", &["q", "scale", "zero"], &["y"], &[])
        }),
        plain("mean-of-row", false, |onnx| {
            onnx.node_listed("ReduceMean", &["x"], &["mean"], ("axes", &[1])).node("Sub", &["x", "mean"], &["y"], &[])
        }),
    ]
}

fn row_wise_by_order() -> Vec<Graph> {
    let to = |name, nodes: Onnx, datatype, dims: &[i64]| {
        graph(name, false, nodes.input("x", FLOAT, &[-1, 4]).output("y", datatype, dims))
    };
    vec![
        plain("cumsum-of-row", false, |onnx| {
            onnx.constant("axis", INT64, &[], &ints(&[1])).node("CumSum", &["x", "axis"], &["y"], &[])
        }),
        plain("sorted-row", false, |onnx| {
            onnx.list("k", &[4]).node("TopK", &["x", "k"], &["y", "places"], &[("axis", 1)])
        }),
        plain("reversed-row", false, |onnx| {
            onnx.list("starts", &[-1])
                .list("ends", &[i64::from(i32::MIN)])
                .list("axes", &[1])
                .list("steps", &[-1])
                .node("Slice", &["x", "starts", "ends", "axes", "steps"], &["y"], &[])
        }),
        plain("columns-gathered", false, |onnx| {
            onnx.list("columns", &[3, 0, 2, 1]).node("Gather", &["x", "columns"], &["y"], &[("axis", 1)])
        }),
        to("class", Onnx::default().node("ArgMax", &["x"], &["y"], &[("axis", 1), ("keepdims", 0)]), INT64, &[-1]),
        to(
            "value-of-row",
            Onnx::default().list("axes", &[1]).node("ReduceSum", &["x", "axes"], &["y"], &[("keepdims", 0)]),
            FLOAT,
            &[-1],
        ),
        to("doubled-row", Onnx::default().node("Concat", &["x", "x"], &["y"], &[("axis", 1)]), FLOAT, &[-1, 8]),
        to(
            "padded-row",
            Onnx::default().list("pads", &[0, 1, 0, 1]).node("Pad", &["x", "pads"], &["y"], &[]),
            FLOAT,
            &[-1, 6],
        ),
        to(
            "folded-row",
            Onnx::default().list("shape", &[-1, 2, 2]).node("Reshape", &["x", "shape"], &["y"], &[]),
            FLOAT,
            &[-1, 2, 2],
        ),
        to("cast", Onnx::default().node("Cast", &["x"], &["y"], &[("to", INT32)]), INT32, &[-1, 4]),
        graph(
            "two-inputs",
            false,
            Onnx::default()
                .node("Mul", &["x", "z"], &["y"], &[])
                .input("x", FLOAT, &[-1, 4])
                .input("z", FLOAT, &[-1, 4])
                .output("y", FLOAT, &[-1, 4]),
        )
        .with(&[("x", "FP32", &[4]), ("z", "FP32", &[4])]),
    ]
}

fn row_wise_of_images() -> Vec<Graph> {
    let image =
        |name, sizes: [i64; 3], nodes: Onnx, dims: &[i64], open: usize| {
            let [channels, height, width] = sizes;
            let of = |size: i64| usize::try_from(size).unwrap_or(open);
            graph(name, false, nodes.input("x", FLOAT, &[-1, channels, height, width]).output("y", FLOAT, dims))
                .with(&[("x", "FP32", &[of(channels), of(height), of(width)])])
        };
    let classified = || {
        Onnx::default()
            .matrix("w", &[2, 3, 3, 3])
            .node("Conv", &["x", "w"], &["maps"], &[])
            .node("GlobalAveragePool", &["maps"], &["means"], &[])
            .node("Flatten", &["means"], &["y"], &[("axis", 1)])
    };
    vec![
        image(
            "conv",
            [1, 8, 8],
            Onnx::default().matrix("w", &[2, 1, 3, 3]).node("Conv", &["x", "w"], &["y"], &[]),
            &[-1, 2, 6, 6],
            8,
        ),
        image("image-of-any-size", [3, -1, -1], classified(), &[-1, 2], 12),
        image(
            "image-of-some-size",
            [1, -1, -1],
            // Smaller images do not fit the kernel.
            Onnx::default().matrix("w", &[1, 1, 20, 20]).node("Conv", &["x", "w"], &["maps"], &[]).node(
                "GlobalMaxPool",
                &["maps"],
                &["y"],
                &[],
            ),
            &[-1, 1, 1, 1],
            24,
        ),
        image(
            "pooled",
            [2, 8, 8],
            Onnx::default().node_listed("MaxPool", &["x"], &["y"], ("kernel_shape", &[2, 2])),
            &[-1, 2, 7, 7],
            8,
        ),
        image(
            "instance-norm",
            [3, 4, 4],
            Onnx::default().matrix("scale", &[3]).matrix("bias", &[3]).node(
                "InstanceNormalization",
                &["x", "scale", "bias"],
                &["y"],
                &[],
            ),
            &[-1, 3, 4, 4],
            4,
        ),
        image(
            "channels-last",
            [2, 3, 5],
            Onnx::default().node_listed("Transpose", &["x"], &["y"], ("perm", &[0, 2, 3, 1])),
            &[-1, 3, 5, 2],
            4,
        ),
        // A window of a signal, of the one size that it takes.
        graph(
            "window-of-512",
            false,
            Onnx::default()
                .list("shape", &[-1, 32, 16])
                .list("axes", &[2])
                .node("Reshape", &["x", "shape"], &["frames"], &[])
                .node("ReduceSum", &["frames", "axes"], &["sums"], &[("keepdims", 0)])
                .matrix("w", &[32, 4])
                .node("MatMul", &["sums", "w"], &["y"], &[])
                .input("x", FLOAT, &[-1, -1])
                .output("y", FLOAT, &[-1, 4]),
        )
        .with(&[("x", "FP32", &[512])]),
    ]
}

fn row_wise_of_sequences() -> Vec<Graph> {
    let recurrent = |name, operator: &'static str, gates: i64| {
        let attributes = [("hidden_size", 4), ("linear_before_reset", 1)];
        let attributes = if operator == "GRU" { &attributes[..] } else { &attributes[..1] };
        let onnx = Onnx::default()
            .matrix("w", &[1, gates * 4, 4])
            .matrix("r", &[1, gates * 4, 4])
            .list("axis", &[0])
            .node_listed("Transpose", &["x"], &["steps"], ("perm", &[1, 0, 2]))
            .node(operator, &["steps", "w", "r"], &["all", "last"], attributes)
            .node("Squeeze", &["last", "axis"], &["y"], &[])
            .input("x", FLOAT, &[-1, -1, 4])
            .output("y", FLOAT, &[-1, 4]);
        graph(name, false, onnx).with(&[("x", "FP32", &[5, 4])])
    };
    let looked_up = |name, words: i64| {
        let onnx = Onnx::default()
            .matrix("table", &[words, 4])
            .node("Gather", &["table", "ids"], &["vectors"], &[("axis", 0)])
            .node_listed("ReduceMean", &["vectors"], &["mean"], ("axes", &[1]))
            .node("Flatten", &["mean"], &["y"], &[("axis", 1)])
            .input("ids", INT64, &[-1, -1])
            .output("y", FLOAT, &[-1, 4]);
        graph(name, false, onnx).with(&[("ids", "INT64", &[6])])
    };
    let attention = |onnx: Onnx| {
        onnx.node_listed("Transpose", &["x"], &["keys"], ("perm", &[0, 2, 1]))
            .node("MatMul", &["x", "keys"], &["scores"], &[])
            .input("x", FLOAT, &[-1, -1, 4])
            .output("y", FLOAT, &[-1, -1, 4])
    };
    vec![
        recurrent("lstm", "LSTM", 4),
        recurrent("gru", "GRU", 3),
        recurrent("rnn", "RNN", 1).on_onnxruntime(),
        looked_up("embedding", 200),
        looked_up("embedding-of-eight", 8),
        looked_up("embedding-of-two", 2),
        graph(
            "attention-in-row",
            false,
            attention(Onnx::default()).node("Softmax", &["scores"], &["shares"], &[("axis", 2)]).node(
                "MatMul",
                &["shares", "x"],
                &["y"],
                &[],
            ),
        )
        .with(&[("x", "FP32", &[5, 4])]),
        graph(
            "attention-with-mask",
            false,
            attention(Onnx::default())
                .list("middle", &[1])
                .number("one", 1.0)
                .number("far", 1e4)
                .node("Cast", &["attention_mask"], &["mask"], &[("to", FLOAT)])
                .node("Sub", &["mask", "one"], &["hidden"], &[])
                .node("Mul", &["hidden", "far"], &["below"], &[])
                .node("Unsqueeze", &["below", "middle"], &["added"], &[])
                .node("Add", &["scores", "added"], &["masked"], &[])
                .node("Softmax", &["masked"], &["shares"], &[("axis", 2)])
                .node("MatMul", &["shares", "x"], &["y"], &[])
                .input("attention_mask", INT64, &[-1, -1]),
        )
        .with(&[("x", "FP32", &[5, 4]), ("attention_mask", "INT64", &[5])]),
    ]
}

fn row_wise_of_other_types() -> Vec<Graph> {
    let of = |name, datatype, kind: &'static str, nodes: Onnx| {
        let onnx = nodes.input("x", datatype, &[-1, 4]).output("y", datatype, &[-1, 4]);
        graph(name, false, onnx).with(&[("x", kind, &[4])])
    };
    vec![
        of("integers", INT32, "INT32", Onnx::default().node("Add", &["x", "x"], &["y"], &[])),
        of("long-integers", INT64, "INT64", Onnx::default().node("Add", &["x", "x"], &["y"], &[])),
        of("flags", BOOL, "BOOL", Onnx::default().node("Not", &["x"], &["y"], &[])),
        of("bytes", UINT8, "UINT8", Onnx::default().node("Identity", &["x"], &["y"], &[])),
        of("doubles", DOUBLE, "FP64", Onnx::default().node("Abs", &["x"], &["y"], &[])).on_onnxruntime(),
        of("strings", STRING, "BYTES", Onnx::default().node("Identity", &["x"], &["y"], &[])).on_onnxruntime(),
        graph(
            "through-half",
            false,
            Onnx::default()
                .node("Cast", &["x"], &["h"], &[("to", HALF)])
                .node("Add", &["h", "h"], &["more"], &[])
                .node("Cast", &["more"], &["y"], &[("to", FLOAT)])
                .input("x", FLOAT, &[-1, 4])
                .output("y", FLOAT, &[-1, 4]),
        )
        .on_onnxruntime(),
    ]
}
