//! Models of hostile requests that one operator does not tell: bodies inside an operator, sequences, and neighbours that
//! ONNX Runtime makes one.

use super::cases::{Case, graph};
use crate::support::onnx::builder::{BOOL, FLOAT, INT64, Onnx};

/// All of them.
pub fn cases() -> Vec<Case> {
    [loops(), sequences(), convolutions(), fused()].into_iter().flatten().collect()
}

/// A convolution of 16 channels, and a pooling with these attributes: a size that the pooling leaves nothing of raised
/// SIGFPE.
pub fn pooled(name: &str, operator: &str, attributes: &str) -> Case {
    graph(name, IMAGE, "y:f:4", 13, |onnx| convolution(onnx, "x", "c").node_of(operator, &["c"], &["y"], attributes))
}

const IMAGE: &str = "x:f:-1,3,-1,-1=1,3,8,8";

/// `c` is a convolution of `x` of the same size, with 16 channels.
fn convolution(onnx: Onnx, x: &str, c: &str) -> Onnx {
    let (w, b) = (format!("w{c}"), format!("b{c}"));
    ones(ones(onnx, &w, &[16, 3, 3, 3]), &b, &[16]).node_of("Conv", &[x, &w, &b], &[c], "pads=[1,1,1,1]")
}

fn ones(onnx: Onnx, name: &str, dims: &[i64]) -> Onnx {
    let count = usize::try_from(dims.iter().product::<i64>()).unwrap();
    onnx.constant(name, FLOAT, dims, &1_f32.to_le_bytes().repeat(count))
}

fn loops() -> Vec<Case> {
    // The body doubles `v`, and keeps each.
    let doubling = || {
        let body = Onnx::default().node("Identity", &["c"], &["d"], &[]).node("Add", &["v", "v"], &["w"], &[]);
        let body = body.node("Identity", &["v"], &["s"], &[]);
        let body = body.input("i", INT64, &[]).input("c", BOOL, &[]).input("v", FLOAT, &[-1]);
        body.output("d", BOOL, &[]).output("w", FLOAT, &[-1]).output("s", FLOAT, &[-1])
    };
    // The body adds `e` to `h`, and keeps each.
    let adding = || {
        let body = Onnx::default().node("Add", &["h", "e"], &["g"], &[]).node("Identity", &["g"], &["o"], &[]);
        let body = body.input("h", FLOAT, &[-1]).input("e", FLOAT, &[-1]);
        body.output("g", FLOAT, &[-1]).output("o", FLOAT, &[-1])
    };
    let taken = Onnx::default().node("Gather", &["x", "n"], &["t"], &[]).output("t", FLOAT, &[-1]);
    let kept = Onnx::default().node("Identity", &["x"], &["e"], &[]).output("e", FLOAT, &[-1]);
    let scan = |name: &str, inputs: &str, lists: &[(&str, i64)]| {
        graph(name, inputs, "z:f:2", 13, |onnx| {
            onnx.node_around("Scan", &["h", "x"], &["y", "z"], lists, vec![("body", adding())])
        })
    };
    vec![
        graph("loop", "n:i:=@3 c:b:= x:f:-1=2", "y:f:1", 13, |onnx| {
            onnx.node_around("Loop", &["n", "c", "x"], &["y", "z"], &[], vec![("body", doubling())])
        }),
        graph("loop_count", "n:i:=@3 x:f:-1=2", "z:f:2", 13, |onnx| {
            onnx.node_around("Loop", &["n", "", "x"], &["y", "z"], &[], vec![("body", doubling())])
        }),
        scan("scan", "h:f:-1=2 x:f:-1,-1=3,2", &[("num_scan_inputs", 1)]),
        graph("if", "c:b:= x:f:-1=2 n:i:-1=1@0", "y:f:1", 13, |onnx| {
            onnx.node_around("If", &["c"], &["y"], &[], vec![("then_branch", taken), ("else_branch", kept)])
        }),
    ]
}

fn sequences() -> Vec<Case> {
    let split = |name: &str, inputs: &str, attributes: &str| {
        graph(name, inputs, "y:f:2", 13, |onnx| {
            let onnx = onnx.node_of("SplitToSequence", &["x", "s"], &["q"], attributes);
            onnx.node("SequenceAt", &["q", "p"], &["y"], &[])
        })
    };
    let two = "a:f:-1,-1=2,2 b:f:-1,-1=2,2";
    let pair = |onnx: Onnx| onnx.node("SequenceConstruct", &["a", "b"], &["q"], &[]);
    vec![
        split("sequence_split", "x:f:-1,-1=4,2 s:i:=@1 p:i:=@1", "axis=0"),
        split("sequence_split_list", "x:f:-1,-1=4,2 s:i:-1=2@2 p:i:=@1", "axis=0"),
        split("sequence_split_narrow", "x:f:-1,-1=4,2 s:i32:=@1 p:i32:=@1", "axis=1"),
        graph("sequence_insert", &format!("{two} p:i:=@1 r:i:=@0"), "y:f:2", 13, |onnx| {
            let onnx = pair(onnx).node("SequenceInsert", &["q", "a", "p"], &["t"], &[]);
            onnx.node("SequenceAt", &["t", "r"], &["y"], &[])
        }),
        graph("sequence_erase", &format!("{two} p:i:=@1"), "y:f:2", 13, |onnx| {
            let onnx = pair(onnx).node("SequenceErase", &["q", "p"], &["t"], &[]);
            onnx.node_of("ConcatFromSequence", &["t"], &["y"], "axis=0")
        }),
        graph("sequence_stack", two, "y:f:3", 13, |onnx| {
            pair(onnx).node_of("ConcatFromSequence", &["q"], &["y"], "axis=0 new_axis=1")
        }),
        graph("optional", "a:f:-1,-1=2,2", "y:f:2", 17, |onnx| {
            let onnx = onnx.node("Optional", &["a"], &["o"], &[]);
            onnx.node("OptionalGetElement", &["o"], &["y"], &[])
        }),
    ]
}

fn convolutions() -> Vec<Case> {
    vec![
        pooled("pooled", "MaxPool", "kernel_shape=[3,3] strides=[2,2]"),
        pooled("pooled_padded", "MaxPool", "kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]"),
        pooled("pooled_average", "AveragePool", "kernel_shape=[7,7]"),
        graph("convolved_twice", IMAGE, "y:f:4", 13, |onnx| {
            let onnx = ones(convolution(onnx, "x", "c"), "v", &[16, 16, 3, 3]);
            onnx.node_of("Conv", &["c", "v"], &["y"], "strides=[2,2]")
        }),
        graph("convolved_sum", &format!("{IMAGE} z:f:-1,16,-1,-1=1,16,8,8"), "y:f:4", 13, |onnx| {
            let onnx = convolution(onnx, "x", "c").node("Add", &["c", "z"], &["a"], &[]);
            onnx.node("Relu", &["a"], &["y"], &[])
        }),
        graph("convolved_joined", &format!("{IMAGE} v:f:-1,3,-1,-1=1,3,8,8"), "y:f:4", 13, |onnx| {
            let onnx = convolution(convolution(onnx, "x", "c"), "v", "d");
            onnx.node("Concat", &["c", "d"], &["y"], &[("axis", 1)])
        }),
        graph("convolved_relu", &format!("{IMAGE} w:f:-1,-1,-1,-1=16,3,3,3"), "y:f:4", 13, |onnx| {
            onnx.node("Conv", &["x", "w"], &["c"], &[]).node("Relu", &["c"], &["y"], &[])
        }),
    ]
}

fn fused() -> Vec<Case> {
    let normalized = |onnx: Onnx, x: &str| {
        let onnx = ones(ones(onnx, "g", &[8]), "e", &[8]);
        onnx.node("LayerNormalization", &[x, "g", "e"], &["y"], &[])
    };
    vec![
        graph("normalized_sum", "x:f:-1,-1,8=1,2,8 s:f:-1,-1,8=1,2,8", "y:f:3", 17, |onnx| {
            normalized(onnx.node("Add", &["x", "s"], &["a"], &[]), "a")
        }),
        graph("embedded", "i:i:-1,-1=1,4@1 t:i:-1,-1=1,4@1", "y:f:3", 17, |onnx| {
            let onnx = ones(ones(onnx, "words", &[16, 8]), "types", &[2, 8]);
            let onnx = onnx.node("Gather", &["words", "i"], &["a"], &[]).node("Gather", &["types", "t"], &["b"], &[]);
            normalized(onnx.node("Add", &["a", "b"], &["c"], &[]), "c")
        }),
        graph("biased_gelu", "x:f:-1,-1,-1=1,2,8 b:f:-1=8", "y:f:3", 20, |onnx| {
            onnx.node("Add", &["x", "b"], &["a"], &[]).node("Gelu", &["a"], &["y"], &[])
        }),
        graph("transposed_product", "a:f:-1,-1,-1=3,2,4 b:f:-1,-1,-1=2,4,3", "y:f:3", 13, |onnx| {
            let onnx = onnx.node_of("Transpose", &["a"], &["t"], "perm=[1,0,2]");
            onnx.node("MatMul", &["t", "b"], &["y"], &[])
        }),
    ]
}
