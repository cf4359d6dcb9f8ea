//! The bounds of INT64 values. The engine computes INT64 in 32 bits and wraps. Values of requests
//! are within 32 bits, which is checked when they arrive, and so are shapes. A result that may be
//! outside is checked in the graph, and a request for which it is outside fails; if there is no
//! such check, the operator is refused.

use model::onnx::message::{AttributeMessage, NodeMessage, element};

use super::Lowering;
use super::value::GraphValue;

/// Elements of one tensor: 2^30 of four bytes are 4 GiB.
pub(super) const COUNT_MAX: i64 = 1 << 30;

/// Returns true if an input may be the nearest number of 32 bits instead: values beyond the end of
/// any tensor, and values that only move one to a place where it is checked again.
pub(super) fn may_saturate(operator: &str, index: usize) -> bool {
    match operator {
        "Slice" => matches!(index, 1 | 2),
        "Clip" => index > 0,
        _ => is_moved(operator),
    }
}

fn is_moved(operator: &str) -> bool {
    matches!(operator, "Concat" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Constant")
}

/// The least and greatest of an operator's INT64 results; `None` if they may be outside 32 bits.
pub(super) fn bounds(lowering: &Lowering<'_>, node: &NodeMessage, inputs: &[GraphValue]) -> Option<(i64, i64)> {
    let of = |index: usize| {
        inputs.get(index).map_or((i64::from(i32::MIN), i64::from(i32::MAX)), |value| (value.low, value.high))
    };
    let (a, b) = (of(0), of(1));
    let products = |a: (i64, i64), b: (i64, i64)| {
        let all = [a.0, a.1].map(|x| [b.0, b.1].map(|y| x.saturating_mul(y)));
        let all = all.as_flattened();
        (all.iter().copied().min().unwrap_or_default(), all.iter().copied().max().unwrap_or_default())
    };
    let hull = |values: &[GraphValue]| {
        let of_type = values.iter().filter(|value| matches!(value.element, 0 | element::INT64));
        of_type.map(|value| (value.low, value.high)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    };
    let all = hull(inputs).unwrap_or((i64::from(i32::MIN), i64::from(i32::MAX)));
    let found = match node.op_type.as_str() {
        "Add" => (a.0.saturating_add(b.0), a.1.saturating_add(b.1)),
        "Sub" => (a.0.saturating_sub(b.1), a.1.saturating_sub(b.0)),
        "Mul" => products(a, b),
        "Neg" => (a.1.saturating_neg(), a.0.saturating_neg()),
        "Abs" => (0, a.1.max(a.0.saturating_neg())),
        "Div" => {
            // Only the least number by -1 leaves 32 bits.
            let most = a.1.max(a.0.saturating_neg());
            if b.0 > 0 { (a.0.min(0), a.1.max(0)) } else { (most.saturating_neg(), most) }
        }
        "Mod" => {
            let most = b.1.max(b.0.saturating_neg()).saturating_sub(1);
            (if b.0 > 0 && node.integer("fmod", 0) == 0 { 0 } else { -most }, most)
        }
        "Sum" => inputs
            .iter()
            .fold((0, 0), |sum: (i64, i64), value| (sum.0.saturating_add(value.low), sum.1.saturating_add(value.high))),
        "CumSum" | "ReduceSum" => products((a.0.min(0), a.1.max(0)), (1, count(lowering, node))),
        "ReduceL1" => (0, a.1.max(a.0.saturating_neg()).saturating_mul(count(lowering, node))),
        "Pow" | "ReduceProd" | "ReduceSumSquare" | "Mean" | "ReduceMean" => return None,
        "ScatterElements" | "ScatterND" if matches!(node.text("reduction", "none"), "add" | "mul") => return None,
        "ArgMax" | "ArgMin" | "NonZero" | "TopK" | "Shape" | "Size" | "Hardmax" => (0, COUNT_MAX),
        "Cast" | "CastLike" if inputs.first().is_some_and(|value| value.element == element::BOOL) => (0, 1),
        "Cast" | "CastLike" if inputs.first().is_some_and(|value| is_float(value.element)) => return None,
        "Cast" | "CastLike" => a,
        "ConstantOfShape" => {
            let value = node
                .attribute("value")
                .and_then(|attribute| attribute.t.as_ref())
                .map(model::onnx::message::TensorMessage::longs);
            value.and_then(|longs| longs.first().copied()).map_or((0, 0), |value| (value, value))
        }
        // The indices are of the same datatype, and are not among the results.
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Tile" | "Expand" | "Reshape" | "Squeeze"
        | "Unsqueeze" | "ReverseSequence" | "Split" | "Trilu" | "Pad" => hull(inputs.get(..1)?).unwrap_or(all),
        // The values of their graphs were checked there.
        "If" | "Loop" => (i32::MIN.into(), i32::MAX.into()),
        "OneHot" => hull(inputs.get(2..)?).unwrap_or(all),
        _ => all,
    };
    Some(found)
}

/// The maximum number of elements in a sum.
fn count(lowering: &Lowering<'_>, node: &NodeMessage) -> i64 {
    let dims = lowering.dims(node.read_input(0)).unwrap_or(&[-1]);
    let product = dims.iter().try_fold(1_i64, |product, dim| if *dim < 0 { None } else { product.checked_mul(*dim) });
    product.map_or(COUNT_MAX, |product| product.clamp(1, COUNT_MAX))
}

fn is_float(kind: i32) -> bool {
    matches!(kind, element::FLOAT | element::FLOAT16)
}

/// The text after the operator in the name of a check. The engine quotes it in its error if a
/// request fails it.
pub(in crate::rten) const BEYOND: &str =
    "has an INT64 result on these inputs beyond 32 bits, in which the embedded engine computes";

/// Returns true if [`guard`] can check an operator.
pub(super) fn is_guarded(operator: &str) -> bool {
    matches!(
        operator,
        "Abs" | "Add" | "Cast" | "CastLike" | "CumSum" | "Div" | "Mul" | "Neg" | "ReduceL1" | "ReduceSum" | "Sub"
    )
}

/// Appends the check of an operator's result, which then has its name. A request that leaves 32 bits fails at an
/// operator whose name is the reason: it asks for the second of one element.
pub(super) fn guard(lowering: &mut Lowering<'_>, node: &NodeMessage, result: &str) {
    let (a, b) = (node.read_input(0).unwrap_or_default(), node.read_input(1).unwrap_or_default());
    let is_kept = match node.op_type.as_str() {
        "Add" | "Sub" => {
            let zero = lowering.add_integers(&[], &[0]);
            let is_up = lowering.add("GreaterOrEqual", &[b, &zero], vec![]);
            let moved = if node.op_type == "Add" { "GreaterOrEqual" } else { "LessOrEqual" };
            let has_moved = lowering.add(moved, &[result, a], vec![]);
            lowering.add("Equal", &[&is_up, &has_moved], vec![])
        }
        "Cast" | "CastLike" => {
            let [most, least] = [2_147_483_648.0, -2_147_483_648.0].map(|end| lowering.add_number(element::FLOAT, end));
            let is_below = lowering.add("Less", &[a, &most], vec![]);
            let is_above = lowering.add("GreaterOrEqual", &[a, &least], vec![]);
            lowering.add("And", &[&is_below, &is_above], vec![])
        }
        "Abs" | "Div" | "Neg" => {
            let least = lowering.add_integers(&[], &[i32::MIN.into()]);
            lowering.add("Greater", &[a, &least], vec![])
        }
        "Mul" => {
            let (a, b) = (lowering.add_float(a), lowering.add_float(b));
            let product = lowering.add("Mul", &[&a, &b], vec![]);
            lowering.add_is_small(&product)
        }
        _ => {
            // No sum is above the greatest element, as often as there are elements.
            let (floats, count) = (lowering.add_float(a), lowering.add("Size", &[a], vec![]));
            let sizes = lowering.add("Abs", &[&floats], vec![]);
            let most = lowering.add("ReduceMax", &[&sizes], vec![AttributeMessage::integer("keepdims", 0)]);
            let count = lowering.add_float(&count);
            let product = lowering.add("Mul", &[&most, &count], vec![]);
            lowering.add_is_small(&product)
        }
    };
    let flags = lowering.add("Cast", &[&is_kept], vec![AttributeMessage::integer("to", element::INT32.into())]);
    let all = lowering.add("ReduceProd", &[&flags], vec![AttributeMessage::integer("keepdims", 0)]);
    let (zero, one) = (lowering.add_integers(&[1], &[0]), lowering.add_integers(&[], &[1]));
    let place = lowering.add("Sub", &[&one, &all], vec![]);
    let nothing = lowering.add("Gather", &[&zero, &place], vec![AttributeMessage::integer("axis", 0)]);
    if let Some(check) = lowering.out.last_mut() {
        check.name = format!("{} {BEYOND}", node.op_type);
    }
    lowering.add_as("Add", &[result, &nothing], vec![], node.written(0).unwrap_or_default());
}

impl Lowering<'_> {
    fn add_float(&mut self, name: &str) -> String {
        self.add("Cast", &[name], vec![AttributeMessage::integer("to", element::FLOAT.into())])
    }

    /// Adds a check that integers are within 32 bits; they were multiplied as floats, which are
    /// exact to 2^-22 of them.
    fn add_is_small(&mut self, product: &str) -> String {
        let size = self.add("Abs", &[product], vec![]);
        let end = self.add_number(element::FLOAT, 2_147_483_000.0);
        self.add("Less", &[&size, &end], vec![])
    }
}
