//! The bounds of INT64 values. The engine computes INT64 in 32 bits and wraps. What requests bring is within 32 bits, which
//! is checked when they come, and so are shapes. A result of both that may be outside is refused.

use crate::model::onnx::message::{NodeMessage, element};

use super::Lowering;
use super::value::GraphValue;

/// Elements of one tensor: 2^30 of four bytes are 4 GiB.
pub(super) const COUNT_MAX: i64 = 1 << 30;

/// Whether an input may be the nearest number of 32 bits instead: what lies beyond the end of any tensor, and what only
/// moves a value to where it is asked again.
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

/// The least and greatest of an operator's INT64 results; `None` where they may be outside 32 bits.
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
            let most = a.1.max(a.0.saturating_neg());
            if b.0 > 0 && a.0 >= 0 {
                (0, a.1 / b.0)
            } else if b.0 > 0 {
                (-most, most)
            } else {
                (most.saturating_neg() - 1, most)
            }
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
        "Cast" | "CastLike" => a,
        "ConstantOfShape" => {
            let value = node.attribute("value").and_then(|attribute| attribute.t.as_ref()).map(|tensor| tensor.longs());
            value.and_then(|longs| longs.first().copied()).map_or((0, 0), |value| (value, value))
        }
        // The indices are of the same datatype, and are not among the results.
        "Gather" | "GatherElements" | "GatherND" | "Slice" | "Tile" | "Expand" | "Reshape" | "Squeeze"
        | "Unsqueeze" | "ReverseSequence" | "Split" | "Trilu" | "Pad" => hull(inputs.get(..1)?).unwrap_or(all),
        // What their graphs give was looked at there.
        "If" | "Loop" => (i32::MIN.into(), i32::MAX.into()),
        "OneHot" => hull(inputs.get(2..)?).unwrap_or(all),
        _ => all,
    };
    Some(found)
}

/// How many elements a sum may have.
fn count(lowering: &Lowering<'_>, node: &NodeMessage) -> i64 {
    let dims = lowering.dims(node.read_input(0)).unwrap_or(&[-1]);
    let product = dims.iter().try_fold(1_i64, |product, dim| if *dim < 0 { None } else { product.checked_mul(*dim) });
    product.map_or(COUNT_MAX, |product| product.clamp(1, COUNT_MAX))
}
