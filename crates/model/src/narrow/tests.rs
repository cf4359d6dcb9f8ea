use std::cell::RefCell;

use super::{FP32_END, INT32_END, ir, onnx};
use crate::onnx_builder::{BOOL, FLOAT, INT32, INT64, Onnx, UINT8};

const UINT32: i64 = 12;
const DOUBLE: i64 = 11;

fn longs(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The limits of a graph's inputs, or the reason against it.
fn check(onnx: Onnx, want: Result<&[i64], &str>) {
    let limits = onnx::read(onnx.into_bytes().into()).unwrap().limits();
    match (&limits, want) {
        (Ok(limits), Ok(want)) => assert_eq!(limits, want),
        (Err(why), Err(want)) => assert!(why.contains(want), "{why}"),
        _ => panic!("{limits:?} {want:?}"),
    }
}

fn graph(kind: i64) -> Onnx {
    Onnx::default().input("x", kind, &[-1]).output("y", kind, &[-1])
}

fn one(operator: &str, kind: i64) -> Onnx {
    graph(kind).constant("one", INT64, &[1], &longs(&[1])).node(operator, &["x", "one"], &["y"], &[])
}

#[test]
fn a_limit_is_as_large_as_the_operators_are_exact() {
    check(graph(INT64).node("Identity", &["x"], &["y"], &[]), Ok(&[INT32_END]));
    check(one("Add", INT64), Ok(&[INT32_END - 1]));
    check(one("Sub", INT64), Ok(&[INT32_END - 1]));
    check(graph(INT64).node("Mul", &["x", "x"], &["y"], &[]), Ok(&[46_340]));
    check(graph(INT64).node("Neg", &["x"], &["y"], &[]), Ok(&[INT32_END - 1]));
    check(one("Div", INT64), Ok(&[FP32_END]));
    check(one("CumSum", INT64), Ok(&[127]));
    check(one("ReduceSum", INT64), Ok(&[1]));
    check(one("Gather", INT64), Ok(&[INT32_END]));
    check(one("Pow", INT64), Err("operator Pow 'y': it gives integers that depend on the request"));
    // Wrapping at 32 bits is as the file asks for; computing in FP32 is not.
    check(graph(INT32).node("Add", &["x", "x"], &["y"], &[]), Ok(&[INT32_END]));
    check(graph(INT32).node("Div", &["x", "x"], &["y"], &[]), Ok(&[FP32_END]));
    check(graph(UINT8).node("Add", &["x", "x"], &["y"], &[]), Ok(&[127]));
    check(graph(UINT32).node("Identity", &["x"], &["y"], &[]), Ok(&[INT32_END]));
}

#[test]
fn an_operator_in_fp32_limits_the_arithmetic_that_may_be_fused_with_it() {
    let compared = Onnx::default()
        .input("x", INT64, &[-1])
        .constant("one", INT64, &[1], &longs(&[1]))
        .node("Add", &["x", "one"], &["next"], &[])
        .node("Equal", &["next", "one"], &["y"], &[])
        .output("y", BOOL, &[-1]);
    check(compared, Ok(&[FP32_END - 1]));
}

#[test]
fn inputs_that_take_no_part_keep_their_range() {
    let text = Onnx::default()
        .input("ids", INT64, &[-1])
        .input("mask", INT64, &[-1])
        .constant("axis", INT64, &[], &longs(&[0]))
        .constant("table", INT64, &[2], &longs(&[5, 6]))
        .node("Gather", &["table", "ids"], &["y"], &[])
        .node("CumSum", &["mask", "axis"], &["positions"], &[])
        .output("y", INT64, &[-1])
        .output("positions", INT64, &[-1]);
    check(text, Ok(&[INT32_END, 127]));
}

#[test]
fn shapes_are_no_numbers_of_a_request_and_ends_of_slices_may_be_beyond() {
    let sliced = graph(INT64)
        .constant("zero", INT64, &[1], &longs(&[0]))
        .constant("end", INT64, &[1], &longs(&[i64::MAX]))
        .node("Shape", &["x"], &["sizes"], &[])
        .node("Mul", &["sizes", "sizes"], &["square"], &[])
        .node("Slice", &["x", "zero", "end"], &["y"], &[])
        .output("square", INT64, &[1]);
    check(sliced, Ok(&[INT32_END]));
}

#[test]
fn what_no_limit_makes_exact_is_refused_by_name() {
    let cast = Onnx::default().input("x", FLOAT, &[-1]).node("Cast", &["x"], &["y"], &[("to", INT64)]).output(
        "y",
        INT64,
        &[-1],
    );
    check(cast, Err("operator Cast 'y': it gives integers that depend on the request and may be beyond 32 bits"));
    let constant =
        graph(INT64).constant("big", INT64, &[1], &longs(&[1 << 40])).node("Add", &["x", "big"], &["y"], &[]);
    check(constant, Err("operator Add 'y'"));
    let double = graph(INT64)
        .node("Cast", &["x"], &["wide"], &[("to", DOUBLE)])
        .node("Sqrt", &["wide"], &["root"], &[])
        .node("Identity", &["x"], &["y"], &[]);
    check(double, Err("operator Sqrt 'root': FP64 is computed in FP32"));
    let nested = |name: &str| Onnx::default().node("Add", &["x", "x"], &[name], &[]).output(name, INT64, &[-1]);
    let branches = graph(INT64).input("which", BOOL, &[]).node_around(
        "If",
        &["which"],
        &["y"],
        &[],
        vec![("then_branch", nested("a")), ("else_branch", nested("b"))],
    );
    check(branches, Err("operator If 'y'"));
}

/// OpenVINO's IR of `Add(x, c)`, with a layer that has a body.
const IR: &str = r#"<?xml version="1.0"?>
<net name="a > b" version="11"><layers>
<layer id="0" name="in &amp; out" type="Parameter" version="opset1"><data shape="?" element_type="i64" />
<output><port id="0" precision="I64" names="x,other"><dim>-1</dim></port></output></layer>
<layer id="1" name="c" type="Const" version="opset1"><data element_type="i64" shape="1" offset="8" size="8" />
<output><port id="0" precision="I64"><dim>1</dim></port></output></layer>
<layer id="2" name="sum" type="Add" version="opset1"><data auto_broadcast="numpy" />
<input><port id="0" precision="I64" /><port id="1" precision="I64" /></input>
<output><port id="2" precision="I64" names="y"><dim>-1</dim></port></output></layer>
<layer id="3" name="body" type="LAST" version="opset1">
<body><layers><layer id="0" name="inner" type="Parameter"><output><port id="0" precision="FP32" /></output></layer></layers>
<edges><edge from-layer="9" from-port="0" to-layer="9" to-port="0" /></edges></body>
<input><port id="0" precision="I64" /></input></layer>
</layers><edges>
<edge from-layer="0" from-port="0" to-layer="2" to-port="0" />
<edge from-layer="1" from-port="0" to-layer="2" to-port="1" />
<edge from-layer="2" from-port="2" to-layer="3" to-port="0" />
</edges></net>"#;

#[test]
fn openvinos_ir_is_read_with_its_constants() {
    let asked = RefCell::new(Vec::new());
    let weights = |offset, size| {
        asked.borrow_mut().push((offset, size));
        Some(longs(&[7]))
    };
    let graph = ir::read(&IR.replace("LAST", "Result"), &weights).unwrap();
    assert_eq!(graph.inputs, [(vec!["x".to_owned(), "other".to_owned(), "in & out".to_owned()], 0)]);
    assert_eq!(graph.limits(), Ok(vec![INT32_END - 7]));
    assert_eq!(*asked.borrow(), [(8, 8)]);
    // Without the file of weights the constant may be anything.
    let unknown = ir::read(&IR.replace("LAST", "Result"), &|_, _| None).unwrap().limits().unwrap_err();
    assert!(unknown.starts_with("operator Add 'sum': it"), "{unknown}");
    let in_fp32 = ir::read(&IR.replace("LAST", "Loop"), &weights).unwrap().limits();
    assert_eq!(in_fp32, Ok(vec![FP32_END - 7]));
    for broken in ["", "what is this", "<layer", &IR.replace("from-layer=\"2\"", "from-layer=\"8\"")] {
        assert!(ir::read(broken, &weights).is_none(), "{broken}");
    }
}

#[test]
fn a_state_is_found_in_a_body_too() {
    assert_eq!(ir::keeps_state(IR), None);
    let kept = IR.replace(r#"name="inner" type="Parameter""#, r#"name="a &lt; b" type="ReadValue""#);
    assert_eq!(ir::keeps_state(&kept).as_deref(), Some("ReadValue 'a < b'"));
}
