//! What the rules of all operators share: their inputs, what they make, and how an axis or a list of axes is read.

use crate::model::onnx::graph::OnnxNode;

use super::facts::{Interval, Sizes, TensorFacts};

/// The inputs of an operator; none where an optional one is left out.
pub(super) type OperatorInputs<'a> = [Option<&'a TensorFacts>];

/// Why a rule does not say what an operator makes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RuleError {
    /// The run fails at the operator, and so asks for nothing more.
    Fails(String),
    /// Nothing is known of what it makes.
    Unknown(&'static str),
}

/// What a rule needs to know in most cases.
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

/// What an operator makes.
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
/// Where it is left out.
pub(super) fn require<'a>(inputs: &OperatorInputs<'a>, index: usize) -> Result<&'a TensorFacts, RuleError> {
    inputs.get(index).copied().flatten().ok_or_else(|| format!("it lacks its input {index}").into())
}

/// The sizes of an input that an operator needs.
///
/// # Errors
/// Where it is left out, or its rank is not known.
pub(super) fn sizes<'a>(inputs: &OperatorInputs<'a>, index: usize) -> Result<&'a Sizes, RuleError> {
    ranked(require(inputs, index)?)
}

/// The sizes of a tensor.
///
/// # Errors
/// Where its rank is not known.
pub(super) fn ranked(facts: &TensorFacts) -> Result<&Sizes, RuleError> {
    facts.sizes.as_ref().ok_or(UNKNOWN_RANK)
}

/// One size of a tensor.
///
/// # Errors
/// Where it has fewer dimensions.
pub(super) fn dimension(facts: &TensorFacts, index: usize) -> Result<Interval, RuleError> {
    ranked(facts)?.get(index).copied().ok_or_else(|| format!("its input has no dimension {index}").into())
}

/// An axis of a tensor, which may count from the end.
///
/// # Errors
/// Where the tensor has no such axis.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize, RuleError> {
    let rank_signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let counted = if axis < 0 { axis.saturating_add(rank_signed) } else { axis };
    usize::try_from(counted).ok().filter(|axis| *axis < rank).ok_or_else(|| format!("it has no axis {axis}").into())
}

/// Axes that an attribute or an input names; `None` where there are none, or they are not known.
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
