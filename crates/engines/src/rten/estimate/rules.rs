//! The outputs of an operator by its inputs: their sizes, and the memory that it needs beside them
//! while it runs. One rule for each operator of the engine. If a file is wrong, so that its run
//! will fail, a rule may return anything.

use model::onnx::graph::OnnxNode;

use super::elements;
use super::facts::{Interval, Sizes, TensorFacts, count};
use super::operands::{
    AxisList, Made, OperatorInputs, RuleError, axes, axis, broadcast, dimension, ranked, require, sizes,
};
use super::{layout, products, windows};

/// Operators whose output has the sizes of their first input.
const UNARY: [&str; 62] = [
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BatchNormalization",
    "BiasGelu",
    "BitCast",
    "CastLike",
    "Ceil",
    "Cos",
    "Cosh",
    "CumSum",
    "DequantizeLinear",
    "Elu",
    "Erf",
    "Exp",
    "EyeLike",
    "FastGelu",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "LRN",
    "Neg",
    "Not",
    "QuantizeLinear",
    "QuickGelu",
    "RandomNormalLike",
    "RandomUniformLike",
    "Reciprocal",
    "Relu",
    "ReverseSequence",
    "RotaryEmbedding",
    "Round",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Trilu",
];

/// Operators on tensors that are extended to one another.
const EXTENDED: [&str; 19] = [
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Xor",
];

/// Applies the rule of an operator without graphs inside it.
///
/// # Errors
/// The reason why nothing is known of its outputs.
pub(super) fn apply(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    match node.operator.as_str() {
        operator if UNARY.contains(&operator) => same(node, inputs, 1),
        "Dropout" => same(node, inputs, node.outputs.len()),
        "LayerNormalization"
        | "RMSNormalization"
        | "SimplifiedLayerNormalization"
        | "SkipLayerNormalization"
        | "SkipSimplifiedLayerNormalization" => normalize(node, inputs),
        "Cast" => cast(node, inputs),
        "Clip" => {
            let input = require(inputs, 0)?;
            Ok(of_input(input).with(elements::clip(node, inputs)).into())
        }
        operator if EXTENDED.contains(&operator) => variadic(node, inputs),
        "Where" => choose(inputs),
        "DynamicQuantizeLinear" => {
            let scalar = || TensorFacts::of(Sizes::new());
            let outputs = vec![of_input(require(inputs, 0)?), scalar(), scalar()];
            Ok(Made { outputs, workspace: 0.0 })
        }
        "ArgMax" | "ArgMin" => arg_reduce(node, inputs),
        operator if operator.starts_with("Reduce") => reduce(node, inputs),
        "ConstantOfShape" => constant_of_shape(node, inputs),
        "Range" => range(inputs),
        "RandomNormal" | "RandomUniform" => {
            let sizes = node.integers("shape").unwrap_or_default();
            Ok(TensorFacts::of(elements::exact_sizes(sizes)).into())
        }
        "Multinomial" => {
            let rows = dimension(require(inputs, 0)?, 0)?;
            let samples = Interval::exact(node.integer("sample_size", 1) as f64).as_size();
            Ok(TensorFacts { is_whole: true, ..TensorFacts::of(Sizes::from_slice(&[rows, samples])) }.into())
        }
        "NonMaxSuppression" => non_max_suppression(inputs),
        "NonZero" => non_zero(inputs),
        "TopK" => top_k(node, inputs),
        "ConcatFromSequence" | "SequenceAt" | "SequenceConstruct" | "SequenceEmpty" | "SequenceErase"
        | "SequenceInsert" | "SplitToSequence" => sequence(inputs),
        "SequenceLength" => Ok(TensorFacts::whole(vec![Interval::up_to(f64::INFINITY)], true).into()),
        _ => match windows::apply(node, inputs).or_else(|| products::apply(node, inputs)) {
            Some(made) => made,
            None => layout::apply(node, inputs).unwrap_or_else(|| Err(RuleError::Unknown("its rule is not known"))),
        },
    }
}

/// The sizes and datatype of an input.
fn of_input(input: &TensorFacts) -> TensorFacts {
    TensorFacts { elements: None, ..input.clone() }
}

fn same(node: &OnnxNode, inputs: &OperatorInputs<'_>, outputs: usize) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let output = of_input(input).with(elements::unary(node, input));
    Ok(Made { outputs: vec![output; outputs.max(1)], workspace: 0.0 })
}

/// Beside the result, means and deviations, or the sum that was normalized.
fn normalize(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let mut outputs = vec![TensorFacts::unranked(input.count_max); node.outputs.len().max(1)];
    outputs.first_mut().into_iter().for_each(|first| *first = of_input(input));
    Ok(Made { outputs, workspace: 0.0 })
}

fn cast(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let made = same(node, inputs, 1)?;
    let is_whole = elements::is_cast_to_whole(node);
    Ok(Made { outputs: made.outputs.into_iter().map(|facts| TensorFacts { is_whole, ..facts }).collect(), ..made })
}

fn extended(one: &TensorFacts, two: &TensorFacts) -> TensorFacts {
    match (&one.sizes, &two.sizes) {
        (Some(one), Some(two)) => TensorFacts::of(broadcast(one, two)),
        _ => TensorFacts::unranked(one.count_max.max(1.0) * two.count_max.max(1.0)),
    }
}

fn variadic(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let is_truth = matches!(
        node.operator.as_str(),
        "And" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Or" | "Xor"
    );
    let first = require(inputs, 0)?.clone();
    let all = inputs.iter().skip(1).flatten().try_fold(first, |one, two| {
        let is_whole = is_truth || (one.is_whole && two.is_whole);
        let facts = TensorFacts { is_whole, ..extended(&one, two) };
        Ok::<_, RuleError>(facts.with(elements::binary(node, &one, two)))
    });
    all.map(Made::from)
}

fn choose(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let (condition, one, two) = (require(inputs, 0)?, require(inputs, 1)?, require(inputs, 2)?);
    let facts = extended(&extended(condition, one), two);
    let facts = TensorFacts { is_whole: one.is_whole && two.is_whole, ..facts };
    Ok(facts.with(elements::choose(condition, one, two)).into())
}

fn arg_reduce(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let mut sizes = sizes(inputs, 0)?.clone();
    let axis = axis(node.integer("axis", 0), sizes.len())?;
    match node.integer("keepdims", 1) {
        0 => drop(sizes.remove(axis)),
        _ => sizes.get_mut(axis).into_iter().for_each(|size| *size = Interval::ONE),
    }
    Ok(TensorFacts { is_whole: true, ..TensorFacts::of(sizes) }.into())
}

fn reduce(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let axes = axes(node, inputs, 1);
    let (Some(sizes), false) = (&input.sizes, matches!(axes, AxisList::Unknown)) else {
        return Ok(TensorFacts::unranked(input.count_max.max(1.0)).like(input).into());
    };
    let keeps_axes = node.integer("keepdims", 1) != 0;
    let is_reduced = match axes {
        AxisList::Known(axes) if !axes.is_empty() => {
            let mut is_reduced = vec![false; sizes.len()];
            for one in axes {
                let place = axis(one, sizes.len())?;
                is_reduced.get_mut(place).into_iter().for_each(|place| *place = true);
            }
            is_reduced
        }
        _ => vec![node.integer("noop_with_empty_axes", 0) == 0; sizes.len()],
    };
    let is_whole_tensor = is_reduced.iter().all(|is_reduced| *is_reduced);
    let kept = sizes.iter().zip(is_reduced).filter_map(|(size, is_reduced)| match (is_reduced, keeps_axes) {
        (false, _) => Some(*size),
        (true, true) => Some(Interval::ONE),
        (true, false) => None,
    });
    let facts = TensorFacts::of(kept.collect()).like(input);
    Ok(facts.with(if is_whole_tensor { elements::reduced(&node.operator, input) } else { None }).into())
}

fn constant_of_shape(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let wanted = require(inputs, 0)?;
    let Some(sizes) = wanted.known_elements() else { return Ok(TensorFacts::unranked(f64::INFINITY).into()) };
    let facts = TensorFacts::of(sizes.into_iter().map(Interval::as_size).collect());
    let value = node.tensor("value").map(elements::of_tensor);
    let is_whole = value.as_ref().is_some_and(|value| value.is_whole);
    let value = value.map_or(Interval::exact(0.0), |value| value.single());
    let elements = facts.exact_count().map(|count| vec![value; count]);
    Ok(TensorFacts { is_whole, ..facts }.with(elements).into())
}

fn range(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let (start, limit, step) = (require(inputs, 0)?, require(inputs, 1)?, require(inputs, 2)?);
    let is_whole = start.is_whole && limit.is_whole && step.is_whole;
    let (start, limit, step) = (start.single(), limit.single(), step.single());
    let length = match limit.minus(start).over(step) {
        length if step.contains(0.0) => Interval::up_to(length.high),
        length => length.map(f64::ceil).as_size(),
    };
    let facts = TensorFacts { is_whole, ..TensorFacts::of(Sizes::from_slice(&[length])) };
    Ok(facts.with(elements::range(start, step, length)).into())
}

/// At most each box once for each class, or as many as are wanted.
fn non_max_suppression(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let scores = sizes(inputs, 1)?;
    let wanted = inputs.get(2).copied().flatten().map_or(f64::INFINITY, |wanted| wanted.single().high);
    let &[batch, classes, boxes] = &scores[..] else { return Err("its scores have not three dimensions".into()) };
    let of_class = if wanted < 1.0 { boxes.high } else { boxes.high.min(wanted) };
    let rows = count(&[batch, classes, Interval::exact(of_class)]).high;
    let sizes = [Interval::up_to(rows), Interval::exact(3.0)];
    Ok(TensorFacts { is_whole: true, ..TensorFacts::of(Sizes::from_slice(&sizes)) }.into())
}

fn non_zero(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let rank = Interval::exact(ranked(input)?.len() as f64);
    let sizes = Sizes::from_slice(&[rank, Interval::up_to(input.count_max)]);
    Ok(TensorFacts { is_whole: true, ..TensorFacts::of(sizes) }.into())
}

fn top_k(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let mut sizes = ranked(input)?.clone();
    let axis = axis(node.integer("axis", -1), sizes.len())?;
    let wanted = match inputs.get(1).copied().flatten() {
        Some(wanted) => wanted.single(),
        None => Interval::exact(node.integer("k", 1) as f64),
    };
    if let Some(size) = sizes.get_mut(axis) {
        // The engine makes room for `k` elements, and only then compares `k` with the size of the axis.
        *size = if wanted.value().is_some() { wanted.as_size() } else { size.min(wanted.as_size()) };
    }
    let best = TensorFacts::of(sizes).like(input);
    let places = TensorFacts { is_whole: true, ..best.clone() };
    // It sorts the values of an axis with their places.
    Ok(Made { outputs: vec![best, places], workspace: 2.0 * input.count_max })
}

/// A sequence is one tensor of all its elements, of which only the number is known.
fn sequence(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let elements = inputs.iter().flatten().map(|input| input.count_max).sum();
    let is_whole = inputs.iter().flatten().all(|input| input.is_whole);
    Ok(TensorFacts { is_whole, ..TensorFacts::unranked(elements) }.into())
}
