//! The parts that the rules of all operators share: their inputs, their outputs, and the reading of
//! an axis or a list of axes.

use model::onnx::graph::OnnxNode;

use super::facts::{Interval, Sizes, TensorFacts};

/// The inputs of an operator; `None` for an optional one that is left out.
pub(super) type OperatorInputs<'a> = [Option<&'a TensorFacts>];

/// The reason why a rule has no facts about an operator's outputs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RuleError {
    /// The run fails at the operator, and so asks for nothing more.
    Fails(String),
    /// Nothing is known of its outputs.
    Unknown(&'static str),
}

/// The fact that a rule needs in most cases.
pub(super) const UNKNOWN_RANK: RuleError = RuleError::Unknown("the rank of its input is not known before the run");

impl From<String> for RuleError {
    fn from(why: String) -> Self {
        Self::Fails(why)
    }
}

impl From<&str> for RuleError {
    fn from(why: &str) -> Self {
        Self::Fails(why.to_owned())
    }
}

/// The outputs of an operator.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) outputs: Vec<TensorFacts>,
    /// Elements that it needs beside its outputs while it runs.
    pub(super) workspace: f64,
}

impl From<TensorFacts> for Made {
    fn from(output: TensorFacts) -> Self {
        Self { outputs: vec![output], workspace: 0.0 }
    }
}

/// An input that an operator needs.
///
/// # Errors
/// If it is left out.
pub(super) fn require<'a>(inputs: &OperatorInputs<'a>, index: usize) -> Result<&'a TensorFacts, RuleError> {
    inputs.get(index).copied().flatten().ok_or_else(|| format!("it lacks its input {index}").into())
}

/// The sizes of an input that an operator needs.
///
/// # Errors
/// If it is left out, or its rank is not known.
pub(super) fn sizes<'a>(inputs: &OperatorInputs<'a>, index: usize) -> Result<&'a Sizes, RuleError> {
    ranked(require(inputs, index)?)
}

/// The sizes of a tensor.
///
/// # Errors
/// If its rank is not known.
pub(super) fn ranked(facts: &TensorFacts) -> Result<&Sizes, RuleError> {
    facts.sizes.as_ref().ok_or(UNKNOWN_RANK)
}

/// One size of a tensor.
///
/// # Errors
/// If it has fewer dimensions.
pub(super) fn dimension(facts: &TensorFacts, index: usize) -> Result<Interval, RuleError> {
    ranked(facts)?.get(index).copied().ok_or_else(|| format!("its input has no dimension {index}").into())
}

/// An axis of a tensor, which may count from the end.
///
/// # Errors
/// If the tensor has no such axis.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, RuleError> {
    let rank_signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let counted = if axis < 0 { axis.saturating_add(rank_signed) } else { axis };
    usize::try_from(counted).ok().filter(|axis| *axis < rank).ok_or_else(|| format!("it has no axis {axis}").into())
}

/// Reads the axes that an attribute or an input names, if any, and if they are known.
pub(super) fn axes(node: &OnnxNode, inputs: &OperatorInputs<'_>, index: usize) -> AxisList {
    if let Some(axes) = node.integers("axes") {
        return AxisList::Known(axes.to_vec());
    }
    let Some(input) = inputs.get(index).copied().flatten() else { return AxisList::Absent };
    let known = |one: &Interval| one.value().map(|value| value as i64);
    match input.elements.as_ref().and_then(|elements| elements.iter().map(known).collect()) {
        Some(axes) => AxisList::Known(axes),
        None => AxisList::Unknown,
    }
}

/// The axes that an operator is given.
pub(super) enum AxisList {
    Absent,
    Known(Vec<i64>),
    Unknown,
}

/// The sizes of two tensors that are extended to one another.
pub(super) fn broadcast(one: &[Interval], two: &[Interval]) -> Sizes {
    let rank = one.len().max(two.len());
    let at = |sizes: &[Interval], index: usize| {
        (index + sizes.len()).checked_sub(rank).and_then(|index| sizes.get(index)).copied().unwrap_or(Interval::ONE)
    };
    let size = |index| match (at(one, index), at(two, index)) {
        (one, two) if one.is(1.0) => two,
        (one, two) if two.is(1.0) => one,
        (one, two) if one.low == 0.0 || two.low == 0.0 => Interval::up_to(one.high.max(two.high)),
        (one, two) => one.max(two),
    };
    (0..rank).map(size).collect()
}
