//! ONNX files written by hand: just enough of `onnx.proto` for the models of the tests.

use super::protobuf::Message;

#[path = "../../crates/model/src/onnx_builder.rs"]
pub mod builder;

use builder::BOOL;
pub use builder::{FLOAT, INT64, Onnx};

/// `elem_type` of FP32 in `onnx.proto`.
const FP32: i64 = 1;
/// `elem_type` of INT32 in `onnx.proto`.
pub const INT32: i64 = 6;

/// Two INT32 inputs `[N, 16]`; `OUTPUT0` is their sum, `OUTPUT1` their difference.
pub fn addsub() -> Vec<u8> {
    let graph = Message::new()
        .message(1, node("Add", "OUTPUT0"))
        .message(1, node("Sub", "OUTPUT1"))
        .bytes(2, "addsub")
        .message(11, value("INPUT0"))
        .message(11, value("INPUT1"))
        .message(12, value("OUTPUT0"))
        .message(12, value("OUTPUT1"));
    let opset = Message::new().bytes(1, "").int(2, 13);
    Message::new().int(1, 8).message(7, graph).message(8, opset).into_bytes()
}

/// One FP32 input `[N, 1]` and `OUTPUT0 = (INPUT0 * INPUT0') * (INPUT0 * INPUT0') * INPUT0`: N cubed steps.
pub fn cubic() -> Vec<u8> {
    let node = |operator: &str, inputs: &[&str], output: &str| {
        let node = inputs.iter().fold(Message::new(), |node, input| node.bytes(1, input));
        node.bytes(2, output).bytes(3, output).bytes(4, operator)
    };
    let value = |name: &str| {
        let shape = Message::new().message(1, Message::new().bytes(2, "N")).message(1, Message::new().int(1, 1));
        let tensor = Message::new().int(1, FP32).message(2, shape);
        Message::new().bytes(1, name).message(2, Message::new().message(1, tensor))
    };
    let graph = Message::new()
        .message(1, node("Transpose", &["INPUT0"], "row"))
        .message(1, node("MatMul", &["INPUT0", "row"], "square"))
        .message(1, node("MatMul", &["square", "square"], "cube"))
        .message(1, node("MatMul", &["cube", "INPUT0"], "OUTPUT0"))
        .bytes(2, "cubic")
        .message(11, value("INPUT0"))
        .message(12, value("OUTPUT0"));
    let opset = Message::new().bytes(1, "").int(2, 13);
    Message::new().int(1, 8).message(7, graph).message(8, opset).into_bytes()
}

/// `Y = X + TRIPS`, one addition at a time: its run time depends on the request.
pub fn adding_up() -> Vec<u8> {
    adding().input("TRIPS", INT64, &[]).into_bytes()
}

/// `Y = X + trips` with this number of trips in the file.
pub fn adding_up_to(trips: i64) -> Vec<u8> {
    adding().constant("TRIPS", INT64, &[], &trips.to_le_bytes()).into_bytes()
}

fn adding() -> Onnx {
    let body = Onnx::default()
        .node("Identity", &["again_in"], &["again_out"], &[])
        .node("Add", &["sum_in", "one"], &["sum_out"], &[])
        .constant("one", FLOAT, &[2], &[1_f32; 2].map(f32::to_le_bytes).concat())
        .input("trip", INT64, &[])
        .input("again_in", BOOL, &[])
        .input("sum_in", FLOAT, &[2])
        .output("again_out", BOOL, &[])
        .output("sum_out", FLOAT, &[2]);
    Onnx::default()
        .node_around("Loop", &["TRIPS", "", "X"], &["Y"], &[], vec![("body", body)])
        .input("X", FLOAT, &[2])
        .output("Y", FLOAT, &[2])
}

/// One FP32 input `X` `[N, 1]`, and `products` products of matrices `[N, N]` one after the other.
pub fn heavy(products: usize) -> Vec<u8> {
    let begin = Onnx::default()
        .node("Transpose", &["X"], &["row"], &[])
        .node("MatMul", &["X", "row"], &["square"], &[])
        .node("Identity", &["square"], &["product0"], &[]);
    let onnx = (0..products).fold(begin, |onnx, index| {
        let (from, to) = (format!("product{index}"), format!("product{}", index + 1));
        onnx.node("MatMul", &[&from, "square"], &[&to], &[])
    });
    onnx.node("MatMul", &[&format!("product{products}"), "X"], &["Y"], &[])
        .input("X", FLOAT, &[-1, 1])
        .output("Y", FLOAT, &[-1, 1])
        .into_bytes()
}

fn typed_value(name: &str, datatype: i64, dims: &[i64]) -> Message {
    let shape = dims.iter().fold(Message::new(), |shape, size| shape.message(1, Message::new().int(1, *size)));
    let tensor = Message::new().int(1, datatype).message(2, shape);
    Message::new().bytes(1, name).message(2, Message::new().message(1, tensor))
}

fn node(operator: &str, output: &str) -> Message {
    Message::new().bytes(1, "INPUT0").bytes(1, "INPUT1").bytes(2, output).bytes(3, operator).bytes(4, operator)
}

fn value(name: &str) -> Message {
    let batch = Message::new().bytes(2, "N");
    let width = Message::new().int(1, 16);
    let shape = Message::new().message(1, batch).message(1, width);
    let tensor = Message::new().int(1, INT32).message(2, shape);
    Message::new().bytes(1, name).message(2, Message::new().message(1, tensor))
}

/// Sums the elements `X` of each request, which it finds by `ENDS`, the accumulated counts after a zero; and doubles
/// them all.
pub fn segments() -> Vec<u8> {
    segments_graph().into_bytes()
}

fn segments_graph() -> Onnx {
    let int = |value: i64| value.to_le_bytes();
    Onnx::default()
        .constant("zero", FLOAT, &[1], &0_f32.to_le_bytes())
        .constant("axis", INT64, &[], &int(0))
        .constant("begin", INT64, &[1], &int(0))
        .constant("one", INT64, &[1], &int(1))
        .constant("last", INT64, &[1], &int(-1))
        .constant("end", INT64, &[1], &int(i32::MAX.into()))
        .node("CumSum", &["X", "axis"], &["sums"], &[])
        .node("Concat", &["zero", "sums"], &["before"], &[("axis", 0)])
        .node("Gather", &["before", "ENDS"], &["marks"], &[("axis", 0)])
        .node("Slice", &["marks", "one", "end"], &["upper"], &[])
        .node("Slice", &["marks", "begin", "last"], &["lower"], &[])
        .node("Sub", &["upper", "lower"], &["flat"], &[])
        .node("Unsqueeze", &["flat", "one"], &["SUM"], &[])
        .node("Add", &["X", "X"], &["TWICE"], &[])
        .input("X", FLOAT, &[-1])
        .input("ENDS", builder::INT32, &[-1])
        .output("SUM", FLOAT, &[-1, 1])
        .output("TWICE", FLOAT, &[-1])
}

/// The same, and adds each sum to the state `STATE` of its request: `TOTAL`.
pub fn running_segments() -> Vec<u8> {
    let onnx = segments_graph().node("Add", &["SUM", "STATE"], &["TOTAL"], &[]);
    onnx.input("STATE", FLOAT, &[-1, 1]).output("TOTAL", FLOAT, &[-1, 1]).into_bytes()
}

/// `y = x + b`, two elements each; `b` is 10 and 20 by default.
pub fn add_default() -> Vec<u8> {
    let raw = [10_f32, 20.0].map(f32::to_le_bytes).concat();
    let onnx = Onnx::default().node("Add", &["x", "b"], &["y"], &[]).constant("b", FLOAT, &[2], &raw);
    onnx.input("x", FLOAT, &[2]).input("b", FLOAT, &[2]).output("y", FLOAT, &[2]).into_bytes()
}

/// `y = x + b`, two elements each; the bytes of `b` lie in another file.
pub fn add_external(place: &str) -> Vec<u8> {
    let onnx = Onnx::default().node("Add", &["x", "b"], &["y"], &[]).external("b", &[2], place);
    onnx.input("x", FLOAT, &[2]).output("y", FLOAT, &[2]).into_bytes()
}

/// Looks rows up in a table of four: a missing row fails the run.
pub fn lookup() -> Vec<u8> {
    lookup_of(&[10.0, 11.0, 12.0, 13.0])
}

/// The same in this table.
pub fn lookup_of(table: &[f32]) -> Vec<u8> {
    let raw: Vec<u8> = table.iter().flat_map(|value| value.to_le_bytes()).collect();
    let size = i64::try_from(table.len()).expect("it is short");
    let onnx = Onnx::default().constant("table", FLOAT, &[size], &raw);
    let onnx = onnx.node("Gather", &["table", "ROW"], &["VALUE"], &[("axis", 0)]);
    onnx.input("ROW", builder::INT32, &[-1, 1]).output("VALUE", FLOAT, &[-1, 1]).into_bytes()
}

/// A `Loop` with as many iterations as the input `n` says.
pub fn counting() -> Vec<u8> {
    let body = Onnx::default()
        .node("Add", &["v", "one"], &["next"], &[])
        .node("Identity", &["c"], &["again"], &[])
        .input("i", INT64, &[])
        .input("c", BOOL, &[])
        .input("v", FLOAT, &[])
        .output("again", BOOL, &[])
        .output("next", FLOAT, &[]);
    Onnx::default()
        .node_around("Loop", &["n", "", "one"], &["y"], &[], vec![("body", body)])
        .constant("one", FLOAT, &[], &1_f32.to_le_bytes())
        .input("n", INT64, &[])
        .output("y", FLOAT, &[])
        .into_bytes()
}
