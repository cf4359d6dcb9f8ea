//! The known elements of an operator's outputs, if they are few: a file computes sizes from sizes,
//! and those elements are followed. Elements that are not followed may be anything.

use base::tensor::{Datatype, Tensor};
use model::onnx::graph::OnnxNode;

use super::facts::{ELEMENTS_MAX, Interval, Sizes, TensorFacts};

/// Operators whose results are followed.
pub(super) const FOLLOWED: [&str; 48] = [
    "Abs",
    "Add",
    "And",
    "Cast",
    "Ceil",
    "Clip",
    "Concat",
    "ConstantOfShape",
    "Div",
    "Dropout",
    "Equal",
    "Expand",
    "Flatten",
    "Floor",
    "Gather",
    "Greater",
    "GreaterOrEqual",
    "Identity",
    "If",
    "Less",
    "LessOrEqual",
    "Loop",
    "Max",
    "Min",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Pow",
    "Range",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Round",
    "Slice",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Sum",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// The facts of a constant, or of an input with its contents. A tensor of another size in bytes than its elements take
/// has only its sizes.
pub(super) fn of_tensor(tensor: &Tensor) -> TensorFacts {
    of_contents(&tensor.shape, tensor.datatype, &tensor.contents)
}

/// As [`of_tensor`].
pub(super) fn of_contents(shape: &[i64], datatype: Datatype, contents: &[u8]) -> TensorFacts {
    let facts = TensorFacts::of(exact_sizes(shape));
    let is_whole = !matches!(datatype, Datatype::Bf16 | Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64);
    let facts = TensorFacts { is_whole, ..facts };
    let elements = match facts.exact_count() {
        Some(_) => read_elements(datatype, contents),
        None => None,
    };
    facts.with(elements)
}

/// Known sizes.
pub(super) fn exact_sizes(shape: &[i64]) -> Sizes {
    shape.iter().map(|size| Interval::exact(*size as f64)).collect()
}

fn read_elements(datatype: Datatype, contents: &[u8]) -> Option<Vec<Interval>> {
    let size = datatype.size()?;
    let read = |bytes: &[u8]| {
        Some(match datatype {
            Datatype::Bool => f64::from(u8::from(*bytes.first()? != 0)),
            Datatype::Uint8 => f64::from(*bytes.first()?),
            Datatype::Int8 => f64::from((*bytes.first()?).cast_signed()),
            Datatype::Int16 => f64::from(i16::from_le_bytes(*bytes.first_chunk()?)),
            Datatype::Uint16 => f64::from(u16::from_le_bytes(*bytes.first_chunk()?)),
            Datatype::Int32 => f64::from(i32::from_le_bytes(*bytes.first_chunk()?)),
            Datatype::Uint32 => f64::from(u32::from_le_bytes(*bytes.first_chunk()?)),
            // The engine keeps the nearest value of 32 bits.
            Datatype::Int64 => i64::from_le_bytes(*bytes.first_chunk()?).clamp(i32::MIN.into(), i32::MAX.into()) as f64,
            Datatype::Fp32 => f64::from(f32::from_le_bytes(*bytes.first_chunk()?)),
            Datatype::Fp64 => f64::from_le_bytes(*bytes.first_chunk()?),
            Datatype::Bf16 | Datatype::Bytes | Datatype::Fp16 | Datatype::Uint64 => return None,
        })
    };
    contents.chunks_exact(size).map(|bytes| read(bytes).map(Interval::exact)).collect()
}

/// An operator on one tensor, element by element.
pub(super) fn unary(node: &OnnxNode, input: &TensorFacts) -> Option<Vec<Interval>> {
    let elements = input.elements.as_ref()?;
    let each = |function: &dyn Fn(Interval) -> Interval| Some(elements.iter().map(|one| function(*one)).collect());
    match node.operator.as_str() {
        "Identity" | "Dropout" => Some(elements.clone()),
        "Cast" => each(&|one| cast(node.integer("to", 0), one)),
        "Ceil" => each(&|one| one.map(f64::ceil)),
        "Floor" => each(&|one| one.map(f64::floor)),
        "Round" => each(&|one| one.map(f64::round_ties_even)),
        "Relu" => each(&|one| one.max(Interval::exact(0.0))),
        "Sqrt" => each(&|one| one.map(f64::sqrt)),
        "Neg" => each(&|one| Interval::new(-one.high, -one.low).wrapped()),
        "Abs" => each(&|one| {
            let (low, high) = (one.low.abs(), one.high.abs());
            Interval::new(if one.contains(0.0) { 0.0 } else { low.min(high) }, low.max(high)).wrapped()
        }),
        "Not" => each(&|one| one.value().map_or(Interval::TRUTH, |value| Interval::truth(value == 0.0))),
        _ => None,
    }
}

/// `Cast`: 1, 10, 11 and 16 are floats, 9 is a truth, others are whole numbers.
fn cast(to: i64, one: Interval) -> Interval {
    match to {
        1 | 10 | 11 | 16 => one,
        9 => match one.value() {
            Some(value) => Interval::truth(value != 0.0),
            None if one.contains(0.0) => Interval::TRUTH,
            None => Interval::ONE,
        },
        _ => one.map(f64::trunc).wrapped(),
    }
}

/// Returns true if `Cast` makes whole numbers.
pub(super) fn is_cast_to_whole(node: &OnnxNode) -> bool {
    !matches!(node.integer("to", 0), 1 | 10 | 11 | 16)
}

/// An operator on two tensors of few elements, of which one may be a single one.
pub(super) fn binary(node: &OnnxNode, one: &TensorFacts, two: &TensorFacts) -> Option<Vec<Interval>> {
    if one.elements.is_none() && two.elements.is_none() {
        return None;
    }
    let is_whole = one.is_whole && two.is_whole;
    let (one, two) = (one.known_elements()?, two.known_elements()?);
    let (first, second) = (*one.first()?, *two.first()?);
    let pairs = |pair: &dyn Fn(Interval, Interval) -> Interval| match (one.len(), two.len()) {
        (left, right) if left == right => Some(one.iter().zip(&two).map(|(one, two)| pair(*one, *two)).collect()),
        (1, _) => Some(two.iter().map(|two| pair(first, *two)).collect()),
        (_, 1) => Some(one.iter().map(|one| pair(*one, second)).collect()),
        _ => None,
    };
    match node.operator.as_str() {
        "Add" | "Sum" => pairs(&|one, two| one.plus(two).wrapped()),
        "Sub" => pairs(&|one, two| one.minus(two).wrapped()),
        "Mul" => pairs(&|one, two| one.times(two).wrapped()),
        "Div" if is_whole => pairs(&|one, two| one.over(two).map(f64::trunc)),
        "Div" => pairs(&Interval::over),
        "Max" => pairs(&Interval::max),
        "Min" => pairs(&Interval::min),
        "Mod" => pairs(&|one, two| modulo(node, one, two)),
        "Pow" => pairs(&|one, two| match (one.value(), two.value()) {
            (Some(one), Some(two)) => Interval::exact(one.powf(two)).wrapped(),
            _ => Interval::ANY,
        }),
        "Equal" => pairs(&equal),
        "Less" => pairs(&|one, two| ordered(one.high < two.low, one.low >= two.high)),
        "LessOrEqual" => pairs(&|one, two| ordered(one.high <= two.low, one.low > two.high)),
        "Greater" => pairs(&|one, two| ordered(one.low > two.high, one.high <= two.low)),
        "GreaterOrEqual" => pairs(&|one, two| ordered(one.low >= two.high, one.high < two.low)),
        "And" => pairs(&|one, two| ordered(is_true(one) && is_true(two), one.is(0.0) || two.is(0.0))),
        "Or" => pairs(&|one, two| ordered(is_true(one) || is_true(two), one.is(0.0) && two.is(0.0))),
        _ => None,
    }
}

fn is_true(one: Interval) -> bool {
    !one.contains(0.0)
}

fn ordered(is_always: bool, is_never: bool) -> Interval {
    if is_always || is_never { Interval::truth(is_always) } else { Interval::TRUTH }
}

fn equal(one: Interval, two: Interval) -> Interval {
    let is_always = one.value().is_some() && one == two;
    ordered(is_always, one.high < two.low || two.high < one.low)
}

fn modulo(node: &OnnxNode, one: Interval, two: Interval) -> Interval {
    match (one.value(), two.value()) {
        (Some(one), Some(two)) if two != 0.0 && node.integer("fmod", 0) == 0 => {
            Interval::exact(one - two * (one / two).floor())
        }
        (_, Some(two)) => Interval::new(-two.abs(), two.abs()),
        _ => Interval::ANY,
    }
}

/// `Where`.
pub(super) fn choose(condition: &TensorFacts, one: &TensorFacts, two: &TensorFacts) -> Option<Vec<Interval>> {
    let (condition, one, two) = (condition.known_elements()?, one.known_elements()?, two.known_elements()?);
    let length = condition.len().max(one.len()).max(two.len());
    let at = |list: &[Interval], index: usize| list.get(if list.len() == 1 { 0 } else { index }).copied();
    let choose = |index| {
        let (one, two) = (at(&one, index)?, at(&two, index)?);
        Some(match at(&condition, index)? {
            condition if condition.is(0.0) => two,
            condition if is_true(condition) => one,
            _ => one.join(two),
        })
    };
    (0..length).map(choose).collect()
}

/// `Clip`, whose bounds are inputs or, before opset 11, attributes.
pub(super) fn clip(node: &OnnxNode, inputs: &[Option<&TensorFacts>]) -> Option<Vec<Interval>> {
    let input = inputs.first().copied().flatten()?;
    let bound = |index: usize, name, default: f32| match inputs.get(index).copied().flatten() {
        Some(bound) => bound.single(),
        None => Interval::exact(node.float(name, default).into()),
    };
    let (low, high) = (bound(1, "min", f32::NEG_INFINITY), bound(2, "max", f32::INFINITY));
    Some(input.known_elements()?.into_iter().map(|one| one.max(low).min(high)).collect())
}

/// A reduction of all elements to one.
pub(super) fn reduced(operator: &str, input: &TensorFacts) -> Option<Vec<Interval>> {
    let elements = input.elements.as_ref()?.iter().copied();
    let one = match operator {
        "ReduceMax" => elements.reduce(Interval::max)?,
        "ReduceMin" => elements.reduce(Interval::min)?,
        "ReduceProd" => elements.fold(Interval::ONE, |all, one| all.times(one).wrapped()),
        "ReduceSum" => elements.fold(Interval::exact(0.0), |all, one| all.plus(one).wrapped()),
        _ => return None,
    };
    Some(vec![one])
}

/// `Range` of a known number of elements.
pub(super) fn range(start: Interval, step: Interval, length: Interval) -> Option<Vec<Interval>> {
    let length = length.value().filter(|length| *length <= ELEMENTS_MAX as f64)? as usize;
    Some((0..length).map(|index| start.plus(step.times(Interval::exact(index as f64)))).collect())
}

/// Elements of a new tensor, each from the place in an old one that `source` computes from its
/// place in the new one. Sizes are known and few.
pub(super) fn moved(
    from: &TensorFacts,
    to: &[Interval],
    source: impl Fn(&[usize]) -> Option<Vec<usize>>,
) -> Option<Vec<Interval>> {
    let known = |sizes: &[Interval]| {
        sizes.iter().map(|size| size.value().map(|size| size as usize)).collect::<Option<Vec<usize>>>()
    };
    let elements = from.elements.as_ref()?;
    let (from, to) = (known(from.sizes.as_ref()?)?, known(to)?);
    let count = to.iter().try_fold(1_usize, |count, size| count.checked_mul(*size))?;
    if count > ELEMENTS_MAX {
        return None;
    }
    let at = |mut number: usize| {
        let mut place = vec![0; to.len()];
        for (index, size) in place.iter_mut().zip(&to).rev() {
            (*index, number) = (number % size, number / size);
        }
        let source = source(&place)?;
        let offset = source.iter().zip(&from).fold(0, |offset, (index, size)| offset * size + index);
        elements.get(offset).copied()
    };
    (0..count).map(at).collect()
}
