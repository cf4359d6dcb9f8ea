//! Rules of operators that arrange elements anew, repeat them, or read sizes.

use model::onnx::graph::OnnxNode;

use super::elements::{exact_sizes, moved};
use super::facts::{Interval, Sizes, TensorFacts, count};
use super::operands::{
    AxisList, Made, OperatorInputs, RuleError, UNKNOWN_RANK, axes, axis, broadcast, ranked, require, sizes,
};

/// Applies the rule of an operator; `None` for one of another kind.
pub(super) fn apply(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Option<Result<Made, RuleError>> {
    let made = match node.operator.as_str() {
        "Concat" => concat(node, inputs),
        "Expand" => expand(inputs),
        "Flatten" => flatten(node, inputs),
        "Gather" => gather(node, inputs),
        "GatherElements" => gather_elements(inputs),
        "GatherND" => gather_nd(node, inputs),
        "OneHot" => one_hot(node, inputs),
        "Reshape" => reshape(node, inputs),
        "Shape" => shape(node, inputs),
        "Size" => size(inputs),
        "Slice" => slice(node, inputs),
        "Split" => return Some(split(node, inputs)),
        "Squeeze" => squeeze(node, inputs),
        "Tile" => tile(inputs),
        "Transpose" => transpose(node, inputs),
        "Unsqueeze" => unsqueeze(node, inputs),
        _ => return None,
    };
    Some(made.map(Made::from))
}

fn concat(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let parts: Vec<&TensorFacts> = inputs.iter().copied().flatten().collect();
    let is_whole = parts.iter().all(|part| part.is_whole);
    let all = parts.iter().map(|part| part.count_max).sum();
    let Some(mut sizes) = parts.iter().find_map(|part| part.sizes.clone()) else {
        return Ok(TensorFacts { is_whole, ..TensorFacts::unranked(all) });
    };
    let axis = axis(node.integer("axis", 0), sizes.len())?;
    let along = |part: &&TensorFacts| match part.sizes.as_ref().and_then(|sizes| sizes.get(axis)) {
        Some(size) => *size,
        None => Interval::up_to(part.count_max),
    };
    if let Some(size) = sizes.get_mut(axis) {
        *size = parts.iter().map(along).fold(Interval::exact(0.0), Interval::plus);
    }
    let elements = if sizes.len() == 1 && parts.iter().any(|part| part.elements.is_some()) {
        parts.iter().map(|part| part.known_elements()).collect::<Option<Vec<_>>>().map(|parts| parts.concat())
    } else {
        None
    };
    Ok(TensorFacts { is_whole, ..TensorFacts::of(sizes) }.at_most(all).with(elements))
}

fn expand(inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let (input, wanted) = (require(inputs, 0)?, require(inputs, 1)?);
    let Some(wanted) = wanted.known_elements() else { return Ok(TensorFacts::unranked(f64::INFINITY).like(input)) };
    let wanted: Sizes = wanted.into_iter().map(Interval::as_size).collect();
    let facts = TensorFacts::of(broadcast(ranked(input)?, &wanted)).like(input);
    let elements = match (input.elements.as_deref(), facts.exact_count()) {
        (Some([one]), Some(count)) => Some(vec![*one; count]),
        (elements, _) => elements.map(<[_]>::to_vec),
    };
    Ok(facts.with(elements))
}

fn flatten(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let sizes = ranked(input)?;
    let cut = match node.integer("axis", 1) {
        cut if usize::try_from(cut) == Ok(sizes.len()) => sizes.len(),
        cut => axis(cut, sizes.len())?,
    };
    let (outer, inner) = sizes.split_at_checked(cut).unwrap_or_default();
    let facts = TensorFacts::of(Sizes::from_slice(&[count(outer), count(inner)])).like(input);
    Ok(facts.at_most(input.count_max).with(input.elements.clone()))
}

fn gather(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let (input, places) = (require(inputs, 0)?, require(inputs, 1)?);
    let (Some(sizes), Some(place_sizes)) = (&input.sizes, &places.sizes) else {
        return Ok(TensorFacts::unranked(input.count_max.max(1.0) * places.count_max.max(1.0)).like(input));
    };
    let axis = axis(node.integer("axis", 0), sizes.len())?;
    let (outer, inner) = sizes.split_at_checked(axis).unwrap_or_default();
    let made = outer.iter().chain(place_sizes).chain(inner.iter().skip(1)).copied().collect();
    let facts = TensorFacts::of(made).like(input);
    let elements = match (&input.elements, &places.elements) {
        (Some(elements), Some(places)) if sizes.len() == 1 => {
            let at = |place: &Interval| {
                let place = place.value()?;
                let place = if place < 0.0 { place + elements.len() as f64 } else { place };
                // A place that does not exist fails the run.
                elements.get(place as usize).copied()
            };
            Some(places.iter().map(|place| at(place).unwrap_or(Interval::ANY)).collect())
        }
        _ => None,
    };
    Ok(facts.with(elements))
}

fn gather_elements(inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let (input, places) = (require(inputs, 0)?, require(inputs, 1)?);
    Ok(TensorFacts { elements: None, ..places.clone() }.like(input))
}

fn gather_nd(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let (input, places) = (require(inputs, 0)?, sizes(inputs, 1)?);
    let batch = usize::try_from(node.integer("batch_dims", 0)).unwrap_or(0);
    let (depth, outer) = places.split_last().ok_or("its places have no dimension")?;
    let sizes = ranked(input)?;
    // If the depth is not known, each place may have the whole tensor.
    let skipped = depth.value().map_or(0, |depth| depth as usize).saturating_add(batch);
    Ok(TensorFacts::of(outer.iter().chain(sizes.iter().skip(skipped)).copied().collect()).like(input))
}

fn one_hot(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let depth = require(inputs, 1)?.single().as_size();
    let mut sizes = sizes(inputs, 0)?.clone();
    let axis = axis(node.integer("axis", -1), sizes.len() + 1)?;
    sizes.insert(axis, depth);
    Ok(TensorFacts::of(sizes))
}

/// As many elements as before, for any sizes.
fn reshape(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let wanted = match (node.integers("shape"), inputs.get(1).copied().flatten()) {
        (Some(wanted), _) => Some(exact_sizes(wanted).to_vec()),
        (None, wanted) => wanted.ok_or("it has no shape")?.known_elements(),
    };
    let Some(wanted) = wanted else { return Ok(TensorFacts::unranked(input.count_max).like(input)) };
    let keeps_zero = node.integer("allowzero", 0) != 0;
    let anything = Interval::up_to(input.count_max);
    let size = |(index, wanted): (usize, &Interval)| match wanted {
        wanted if wanted.is(0.0) && !keeps_zero => {
            input.sizes.as_ref().and_then(|sizes| sizes.get(index)).copied().unwrap_or(anything)
        }
        wanted if wanted.low < 1.0 => anything,
        wanted => wanted.as_size(),
    };
    let mut sizes: Sizes = wanted.iter().enumerate().map(size).collect();
    if let Some(inferred) = wanted.iter().position(|wanted| wanted.is(-1.0)) {
        let others = sizes.iter().enumerate().filter(|(index, _)| *index != inferred);
        let others = others.fold(Interval::ONE, |all, (_, size)| all.times(*size));
        let all = input.sizes.as_ref().map_or(anything, |sizes| count(sizes).min(Interval::exact(input.count_max)));
        let rest = Interval::new(all.low / others.high.max(1.0), all.high / others.low.max(1.0)).as_size();
        sizes.get_mut(inferred).into_iter().for_each(|size| *size = rest);
    }
    Ok(TensorFacts::of(sizes).like(input).at_most(input.count_max).with(input.elements.clone()))
}

fn shape(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let Some(sizes) = &input.sizes else { return Err(UNKNOWN_RANK) };
    let rank = i64::try_from(sizes.len()).unwrap_or(i64::MAX);
    let place = |index: i64| {
        let index = if index < 0 { index.saturating_add(rank) } else { index };
        usize::try_from(index.clamp(0, rank)).unwrap_or(0)
    };
    let (start, end) = (place(node.integer("start", 0)), place(node.integer("end", rank)));
    let elements = sizes.get(start..end.max(start)).unwrap_or_default().to_vec();
    Ok(TensorFacts::whole(elements, false))
}

fn size(inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let all = input.sizes.as_ref().map_or(Interval::up_to(input.count_max), |sizes| count(sizes));
    Ok(TensorFacts::whole(vec![all], true))
}

fn slice(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let Some(mut sizes) = input.sizes.clone() else {
        return Ok(TensorFacts::unranked(input.count_max).like(input));
    };
    let rank = sizes.len();
    let list = |name: &str, index: usize| match node.integers(name) {
        Some(values) => Some(exact_sizes(values).to_vec()),
        None => inputs.get(index).copied().flatten().and_then(TensorFacts::known_elements),
    };
    let (starts, ends, steps) = (list("starts", 1), list("ends", 2), list("steps", 4));
    let count = starts.as_ref().or(ends.as_ref()).map_or(rank, Vec::len);
    let places = match axes(node, inputs, 3) {
        AxisList::Known(axes) => axes.into_iter().map(|one| axis(one, rank)).collect::<Result<Vec<_>, _>>()?,
        AxisList::Absent => (0..count.min(rank)).collect(),
        // Any axis may be cut.
        AxisList::Unknown => {
            sizes.iter_mut().for_each(|size| *size = Interval::up_to(size.high));
            return Ok(TensorFacts::of(sizes).like(input).at_most(input.count_max));
        }
    };
    let at = |list: &Option<Vec<Interval>>, index: usize, default: Interval| match list {
        Some(list) => list.get(index).copied().unwrap_or(Interval::ANY),
        None => default,
    };
    // First place and step along each axis, if they are known.
    let mut cuts = vec![Some((0_i64, 1_i64)); rank];
    for (index, place) in places.into_iter().enumerate() {
        let (start, end) = (at(&starts, index, Interval::ANY), at(&ends, index, Interval::ANY));
        let step = at(&steps, index, Interval::ONE);
        if let (Some(size), Some(cut)) = (sizes.get_mut(place), cuts.get_mut(place)) {
            (*size, *cut) = cut_axis(*size, start, end, step);
        }
    }
    let elements = cuts.into_iter().collect::<Option<Vec<_>>>().and_then(|cuts| {
        moved(input, &sizes, |place| {
            let at = |(index, (first, step)): (&usize, &(i64, i64))| {
                usize::try_from(first + step * i64::try_from(*index).ok()?).ok()
            };
            place.iter().zip(&cuts).map(at).collect()
        })
    });
    Ok(TensorFacts::of(sizes).like(input).at_most(input.count_max).with(elements))
}

/// The size of a cut axis, and its first place and step if they are known.
fn cut_axis(size: Interval, start: Interval, end: Interval, step: Interval) -> (Interval, Option<(i64, i64)>) {
    let part = Interval::up_to(size.high);
    let (Some(start), Some(end), Some(step)) = (start.value(), end.value(), step.value()) else { return (part, None) };
    let place = |place: f64, size: f64| if place < 0.0 { place + size } else { place };
    let length = |size: f64| {
        let (low, high): (f64, f64) = if step > 0.0 { (0.0, size) } else { (-1.0, size - 1.0) };
        // The end of a backward cut may lie before the first place.
        let end = if step < 0.0 && end < -size { -1.0 } else { place(end, size) };
        let start = place(start, size).clamp(low.max(0.0), high.max(0.0));
        let length = ((end.clamp(low, high.max(low)) - start) / step).ceil().max(0.0);
        (length, start)
    };
    match size.value() {
        Some(size) if step != 0.0 => {
            let (length, start) = length(size);
            (Interval::exact(length), Some((start as i64, step as i64)))
        }
        // Indices that count from the start cut at most the elements between them.
        _ if step > 0.0 && start >= 0.0 && end >= 0.0 => {
            (Interval::up_to(size.high.min(((end - start) / step).ceil().max(0.0))), None)
        }
        _ => (part, None),
    }
}

fn split(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let sizes = ranked(input)?;
    let axis = axis(node.integer("axis", 0), sizes.len())?;
    let whole = sizes.get(axis).copied().unwrap_or(Interval::ONE);
    let parts: Option<Vec<Interval>> = match (node.integers("split"), inputs.get(1).copied().flatten()) {
        (Some(parts), _) => Some(exact_sizes(parts).to_vec()),
        (None, Some(parts)) => Some(parts.elements.clone().unwrap_or_default()),
        (None, None) => None,
    };
    let pieces = node.outputs.len().max(1) as f64;
    let mut first = 0.0;
    let outputs = (0..node.outputs.len()).map(|index| {
        let part = match &parts {
            Some(parts) => parts.get(index).copied().unwrap_or(Interval::up_to(whole.high)).as_size(),
            // The last piece may be smaller.
            None => {
                let piece = whole.map(|size| (size / pieces).ceil());
                whole.minus(piece.times(Interval::exact(index as f64))).as_size().min(piece)
            }
        };
        let mut made = sizes.clone();
        made.get_mut(axis).into_iter().for_each(|size| *size = part);
        let from = part.value().map(|_| first);
        first += part.high;
        let elements = from
            .filter(|_| sizes.len() == 1)
            .and_then(|from| moved(input, &made, |place| Some(vec![place.first()?.checked_add(from as usize)?])));
        TensorFacts::of(made).like(input).at_most(input.count_max).with(elements)
    });
    Ok(Made { outputs: outputs.collect(), workspace: 0.0 })
}

fn squeeze(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let unranked = || TensorFacts::unranked(input.count_max).like(input);
    let Some(sizes) = &input.sizes else { return Ok(unranked()) };
    let is_gone: Vec<bool> = match axes(node, inputs, 1) {
        AxisList::Known(axes) => {
            let gone = axes.into_iter().map(|one| axis(one, sizes.len())).collect::<Result<Vec<_>, _>>()?;
            (0..sizes.len()).map(|index| gone.contains(&index)).collect()
        }
        AxisList::Absent if sizes.iter().all(|size| size.is(1.0) || !size.contains(1.0)) => {
            sizes.iter().map(|size| size.is(1.0)).collect()
        }
        _ => return Ok(unranked()),
    };
    let kept = sizes.iter().zip(is_gone).filter(|(_, is_gone)| !is_gone).map(|(size, _)| *size);
    let facts = TensorFacts::of(kept.collect()).like(input);
    Ok(facts.at_most(input.count_max).with(input.elements.clone()))
}

fn tile(inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let (input, repeats) = (require(inputs, 0)?, require(inputs, 1)?);
    let repeats = repeats.known_elements().unwrap_or_default();
    let repeat = |index: usize| repeats.get(index).copied().unwrap_or(Interval::ANY).as_size();
    let sizes = ranked(input)?.iter().enumerate().map(|(index, size)| size.times(repeat(index)));
    let facts = TensorFacts::of(sizes.collect()).like(input);
    let elements = match (input.elements.as_deref(), facts.exact_count()) {
        (Some([one]), Some(count)) => Some(vec![*one; count]),
        _ => None,
    };
    Ok(facts.with(elements))
}

fn transpose(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let Some(sizes) = &input.sizes else { return Ok(TensorFacts::unranked(input.count_max).like(input)) };
    let order: Vec<usize> = match node.integers("perm") {
        Some(order) => order.iter().map(|one| axis(*one, sizes.len())).collect::<Result<_, _>>()?,
        None => (0..sizes.len()).rev().collect(),
    };
    let made: Sizes = order.iter().filter_map(|one| sizes.get(*one)).copied().collect();
    let elements = moved(input, &made, |place| {
        let mut source = vec![0; sizes.len()];
        for (index, one) in place.iter().zip(&order) {
            *source.get_mut(*one)? = *index;
        }
        Some(source)
    });
    Ok(TensorFacts::of(made).like(input).at_most(input.count_max).with(elements))
}

fn unsqueeze(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<TensorFacts, RuleError> {
    let input = require(inputs, 0)?;
    let (Some(sizes), AxisList::Known(axes)) = (&input.sizes, axes(node, inputs, 1)) else {
        return Ok(TensorFacts::unranked(input.count_max).like(input));
    };
    let rank = sizes.len() + axes.len();
    let new = axes.into_iter().map(|one| axis(one, rank)).collect::<Result<Vec<_>, _>>()?;
    let mut old = sizes.iter().copied();
    let size = |index| if new.contains(&index) { Some(Interval::ONE) } else { old.next() };
    let facts = TensorFacts::of((0..rank).filter_map(size).collect()).like(input);
    Ok(facts.at_most(input.count_max).with(input.elements.clone()))
}
