//! The lowering of graphs: texts of a few operators, one in a line, as `y = Operator(a, b) name=1`.

use expect_test::expect_file;

use super::*;
use model::onnx::message::{
    DimensionMessage, OperatorSetMessage, PairMessage, ShapeMessage, TensorTypeMessage, TypeMessage, ValueMessage,
};

/// `x:1[2,?]`: a name, an element type and dimensions.
fn value(text: &str) -> ValueMessage {
    let (name, rest) = text.split_once(':').unwrap();
    let (kind, shape) = rest.split_once('[').map_or((rest, None), |(kind, shape)| (kind, Some(shape)));
    let dim = |text: &str| DimensionMessage { dim_value: text.parse().ok(), dim_param: None };
    let dims = |text: &str| text.trim_end_matches(']').split(',').filter(|text| !text.is_empty()).map(dim).collect();
    let shape = shape.map(|text| ShapeMessage { dim: dims(text) });
    let tensor_type = Some(TensorTypeMessage { elem_type: kind.parse().unwrap(), shape });
    ValueMessage { name: name.to_owned(), r#type: Some(TypeMessage { tensor_type, ..TypeMessage::default() }) }
}

fn node(text: &str) -> NodeMessage {
    let (outputs, rest) = text.split_once(" = ").unwrap();
    let (operator, rest) = rest.split_once('(').unwrap();
    let (inputs, attributes) = rest.split_once(')').unwrap();
    let names = |text: &str| text.split(", ").map(str::to_owned).collect::<Vec<_>>();
    let attribute = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        match value.parse() {
            Ok(number) => AttributeMessage::integer(name, number),
            Err(_) if value.starts_with('[') => {
                let numbers = value.trim_matches(['[', ']']).split(',').map(|number| number.parse().unwrap());
                AttributeMessage::integers(name, &numbers.collect::<Vec<_>>())
            }
            Err(_) => AttributeMessage {
                name: name.to_owned(),
                s: Some(Bytes::copy_from_slice(value.as_bytes())),
                kind: 3,
                ..AttributeMessage::default()
            },
        }
    };
    NodeMessage {
        input: names(inputs).into_iter().filter(|name| !name.is_empty()).collect(),
        output: names(outputs),
        op_type: operator.to_owned(),
        attribute: attributes.split_whitespace().map(attribute).collect(),
        ..NodeMessage::default()
    }
}

fn longs(name: &str, values: &[i64]) -> TensorMessage {
    let dims = vec![i64::try_from(values.len()).unwrap()];
    let int64_data = values.to_vec();
    TensorMessage { name: name.to_owned(), dims, data_type: element::INT64, int64_data, ..TensorMessage::default() }
}

fn graph(nodes: &str, inputs: &[&str], constants: Vec<TensorMessage>) -> GraphMessage {
    let node: Vec<_> = nodes.lines().map(str::trim).map(node).collect();
    let output = node.last().map(|node| value(&format!("{}:0", node.output[0])));
    GraphMessage {
        node,
        initializer: constants,
        input: inputs.iter().map(|text| value(text)).collect(),
        output: output.into_iter().collect(),
        ..GraphMessage::default()
    }
}

fn file(version: i64, graph: GraphMessage) -> Bytes {
    let opset_import = vec![OperatorSetMessage { domain: String::new(), version }];
    ModelMessage { ir_version: 8, graph: Some(graph), opset_import, functions: vec![] }.encode_to_vec().into()
}

fn no_files(_: &str, _: u64, _: Option<u64>) -> Result<Vec<u8>, Error> {
    panic!("no test but one has constants in other files");
}

fn shown(nodes: &[NodeMessage]) -> String {
    let of_graphs = |node: &NodeMessage| -> String {
        let graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
        graphs.map(|graph| format!("{{{}}}", shown(&graph.node))).collect()
    };
    let one = |node: &NodeMessage| format!("{}{}", node.op_type, of_graphs(node));
    nodes.iter().filter(|node| node.op_type != "Constant").map(one).collect::<Vec<_>>().join(" ")
}

/// The operators of the file that the engine reads, or "as it is", or the refusal.
fn lowered(version: i64, graph: GraphMessage) -> String {
    match lower(file(version, graph), &no_files) {
        Err(error) => error.text().to_owned(),
        Ok(LoweredModel { file: None, .. }) => "as it is".to_owned(),
        Ok(LoweredModel { file: Some(bytes), .. }) => {
            shown(&ModelMessage::read(bytes.into()).unwrap().graph.unwrap().node)
        }
    }
}

#[test]
fn what_the_engine_reads_otherwise_is_replaced_where_that_is_needed() {
    let check = |version, nodes: &str, inputs: &[&str], want: &str| {
        assert_eq!(lowered(version, graph(nodes, inputs, vec![])), want, "{nodes}");
    };
    check(17, "y = Softmax(x)", &["x:1[2,3,4]"], "as it is");
    check(11, "y = Softmax(x)", &["x:1[2,3]"], "Softmax");
    check(11, "y = Softmax(x)", &["x:1[2,3,4]"], "Flatten Softmax Shape Reshape");
    check(11, "y = LogSoftmax(x) axis=-1", &["x:1"], "as it is");
    check(17, "y = ArgMax(x) select_last_index=1", &["x:1[2,3]"], "ArgMax");
    check(17, "y = ArgMin(x)", &["x:1[2,3]"], "Slice ArgMin Shape Gather Sub Sub");
    check(17, "y = Sign(x)", &["x:3[2]"], "Cast Greater Less Cast Cast Sub Cast");
    check(17, "y = Add(x, x)", &["x:2[2]"], "Cast Cast Add Cast");
    check(17, "y = Less(x, x)", &["x:3[2]"], "Cast Cast Less");
    check(17, "y = Cast(x) to=9", &["x:1[2]"], "Equal Not");
    check(17, "y = AveragePool(x) kernel_shape=[2,2]", &["x:1[1,1,4,4]"], "AveragePool");
    check(17, "y = AveragePool(x) kernel_shape=[2,2] strides=[2,2]", &["x:1[1,1,4,4]"], "as it is");
    check(17, "y = Div(x, a)", &["x:1[2]", "a:1[1]"], "as it is");
    check(17, "z = Div(x, a)\ny = Floor(z)", &["x:1[2]", "a:1[1]"], "Unsqueeze Unsqueeze Concat Div Gather Floor");
}

#[test]
fn what_the_engine_cannot_compute_rightly_is_refused_by_name_with_what_to_do() {
    let check = |version, nodes: &str, inputs: &[&str], want: &str| {
        let got = lowered(
            version,
            graph(nodes, inputs, vec![longs("big", &[1, i64::MAX]), longs("half", &[i32::MAX.into()])]),
        );
        let refused = got.strip_prefix("the embedded engine cannot run it: ").unwrap_or(&got);
        assert_eq!(refused.strip_suffix(&format!("; {ALTERNATIVE}")), Some(want), "{nodes}");
    };
    let deep = "it needs version 99 of ONNX's operators, and this knows 28";
    check(99, "y = Abs(x)", &["x:1"], deep);
    let missing = "operator Scan that gives 'y': the engine does not have this operator";
    check(17, "y = Scan(x)", &["x:1"], missing);
    let old = "operator Resize that gives 'y': version 10 of ONNX's operators is older than 11, from which on the engine has it";
    check(10, "y = Resize(x, s)", &["x:1", "s:1"], old);
    let cubic = "operator Resize that gives 'y': the engine has it with mode nearest and linear, not cubic";
    check(17, "y = Resize(x) mode=cubic", &["x:1"], cubic);
    let kind = "operator MatMul that gives 'y': 'x' is INT32, for which the engine does not have it";
    check(17, "y = MatMul(x, x)", &["x:6"], kind);
    let wide = "operator Cast that gives 'z': it gives FP64, which the engine would compute in 32 bits";
    check(17, "z = Cast(x) to=11\ny = Cast(z) to=1", &["x:1"], wide);
    let power = "operator Pow that gives 'y': its INT64 results depend on numbers of the request and may be beyond 32 \
                 bits, in which the engine computes";
    check(17, "y = Pow(x, x)", &["x:7[2]"], power);
    let far = "operator LayerNormalization that gives 'y': it gives a mean, and the file does not say how many dimensions \
               there are";
    check(17, "y, m = LayerNormalization(x, s) axis=-4611686018427387904\nz = Identity(m)", &["x:1", "s:1"], far);
    let far = "operator QuantizeLinear that gives 'y': the file does not say how many dimensions it reads";
    check(17, "y = QuantizeLinear(x, s) axis=-4611686018427387904", &["x:1", "s:1[3]"], far);
    let weight = "operator Gather that gives 'y': 'big' has INT64 values beyond 32 bits, in which the engine computes";
    check(17, "y = Gather(big, x)", &["x:7"], weight);
    check(17, "y = Identity(big)", &[], "output 'y' has INT64 values beyond 32 bits");
    check(17, "y = Add(half, half)", &[], "output 'y' has INT64 values beyond 32 bits");
    let sum = "operator Gather that gives 'y': 'z' has INT64 values beyond 32 bits, in which the engine computes";
    check(17, "z = Mul(half, half)\ny = Gather(z, x)", &["x:7"], sum);
    check(
        17,
        "y = NonMaxSuppression(x, x)",
        &["x:1"],
        "operator NonMaxSuppression that gives 'y': the engine does not have this operator",
    );
}

#[test]
fn integers_of_language_models_are_known_to_stay_small() {
    // Positions counted over a mask, a mask of 0 and 1 in floats, the end of a slice beyond any tensor.
    let nodes = "is_word = Equal(ids, pad)
                 mask = Cast(is_word) to=7
                 counted = CumSum(mask, axis)
                 placed = Mul(counted, mask)
                 positions = Add(placed, one)
                 rows = Gather(table, positions)
                 shape = Shape(ids)
                 twice = Mul(shape, shape)
                 zeros = Expand(one, twice)
                 cut = Slice(rows, one, end)
                 weight = Cast(attention) to=1
                 part = Sub(weight, weight)
                 y = Where(is_word, ids, zeros)";
    let constants = [("pad", 1), ("axis", 1), ("one", 1), ("end", i64::MAX)].map(|(name, value)| longs(name, &[value]));
    let graph = graph(nodes, &["ids:7[1,?]", "attention:7[1,?]", "table:1[512,8]"], constants.to_vec());
    assert_eq!(lowered(17, graph), "as it is");
}

#[test]
fn integers_that_may_leave_32_bits_are_checked_in_each_run() {
    let check = |nodes: &str, want: &str| {
        assert_eq!(lowered(17, graph(nodes, &["x:7[2]", "f:1[2]"], vec![longs("axes", &[0])])), want, "{nodes}");
    };
    let end = "Cast ReduceProd Sub Gather Add";
    check("y = Add(x, x)", &format!("Add GreaterOrEqual GreaterOrEqual Equal {end}"));
    check("y = Mul(x, x)", &format!("Mul Cast Cast Mul Abs Less {end}"));
    check("y = Neg(x)", &format!("Neg Greater {end}"));
    check("y = ReduceSum(x, axes)", &format!("ReduceSum Cast Size Abs ReduceMax Cast Mul Abs Less {end}"));
    check("y = Cast(f) to=7", &format!("Cast Less GreaterOrEqual And {end}"));
}

#[test]
fn graphs_inside_operators_are_looked_at_too() {
    let branching = |inner: &str| {
        let mut outer = graph("y = If(c)", &["c:9", "x:1[2,3,4]"], vec![]);
        outer.node[0].attribute = ["then_branch", "else_branch"]
            .map(|name| AttributeMessage {
                name: name.to_owned(),
                g: Some(graph(inner, &[], vec![])),
                kind: 5,
                ..AttributeMessage::default()
            })
            .to_vec();
        outer
    };
    assert_eq!(lowered(17, branching("z = Relu(x)")), "as it is");
    let twice = "If{Flatten Softmax Shape Reshape}{Flatten Softmax Shape Reshape}";
    assert_eq!(lowered(11, branching("z = Softmax(x)")), twice);
    assert!(lowered(17, branching("z = Det(x)")).contains("operator Det that gives 'z'"));
}

#[test]
fn integers_in_other_files_are_looked_at_too() {
    let mut elsewhere = longs("w", &[0]);
    let pair = |key: &str, value: &str| PairMessage { key: key.to_owned(), value: value.to_owned() };
    elsewhere.external_data = vec![pair("location", "w.bin"), pair("offset", "8"), pair("length", "8")];
    elsewhere.data_location = Some(1);
    let file = file(17, graph("y = Gather(w, x)", &["x:7"], vec![elsewhere]));
    let read = |value: i64| {
        move |name: &str, offset: u64, length: Option<u64>| {
            assert_eq!((name, offset, length), ("w.bin", 8, Some(8)));
            Ok(value.to_le_bytes().to_vec())
        }
    };
    assert!(lower(file.clone(), &read(7)).unwrap().file.is_none());
    assert!(lower(file, &read(1 << 40)).err().unwrap().text().contains("'w' has INT64 values beyond 32 bits"));
}

#[test]
fn the_table_is_sorted_and_documented() {
    assert!(operator::OPERATORS.is_sorted_by_key(|operator| operator.name));
    let mut text = INTRODUCTION.to_owned();
    for operator in operator::OPERATORS {
        let since = if operator.since > 1 { format!("from {}", operator.since) } else { "all".to_owned() };
        text += &format!("| {} | {since} | {} | {} |\n", operator.name, operator.takes.text(), operator.note);
    }
    expect_file!["../../../../../docs/embedded-engine.md"].assert_eq(&text);
}

const INTRODUCTION: &str = "\
# What the embedded engine runs

The embedded engine (`rten`, [decision 1](decisions/0001-embedded-engine.md)) serves ONNX models without ONNX Runtime.
It is right or refuses: operators that it would compute differently from ONNX are replaced at load by operators with the same
numbers, or the load fails and names node, operator and reason. This table is that of `engines::rten::lower`, and
`cargo test --test it onnx_suite::` checks it with the backend test suite of the `onnx` package.

Datatypes: BOOL, UINT8, INT8, INT32, INT64, FP32, and FP16, which is computed in FP32 and rounded once at the end. INT64 has
32 bits inside. Weights and values of requests beyond 32 bits are refused. Arithmetic on a request's INT64 numbers is
checked in each run, unless it cannot exceed 32 bits, as with masks and positions counted over a mask. A request that exceeds
them gets an error, never a wrapped number.

Not in the table, so refused: `NonMaxSuppression` (the engine's keeps other boxes), `Scan`, `DFT`, `STFT`, other domains
(`ai.onnx.ml`), functions of the file, computations in FP64.

| operator | versions of ONNX | datatypes | refused |
|---|---|---|---|
";
