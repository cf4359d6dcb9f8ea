//! Rules of operators that move a window over an image, or stretch it.

use model::onnx::graph::OnnxNode;

use super::facts::{Interval, Sizes, TensorFacts, count};
use super::operands::{AxisList, Made, OperatorInputs, RuleError, axes, axis, dimension, ranked, require, sizes};

/// Applies the rule of an operator; `None` for one of another kind.
pub(super) fn apply(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Option<Result<Made, RuleError>> {
    Some(match node.operator.as_str() {
        "AveragePool" | "LpPool" | "MaxPool" => pool(node, inputs),
        "Conv" | "ConvInteger" => convolution(node, inputs),
        "ConvTranspose" => transposed_convolution(node, inputs),
        "GlobalAveragePool" | "GlobalLpPool" | "GlobalMaxPool" => global_pool(inputs),
        "DepthToSpace" => depth_to_space(node, inputs),
        "GridSample" => grid_sample(inputs),
        "Pad" => pad(node, inputs),
        "Resize" => resize(node, inputs),
        "Upsample" => upsample(node, inputs),
        _ => return None,
    })
}

/// A list of integers, one for each axis of an image, or the same for all.
fn each(node: &OnnxNode, name: &str, index: usize, default: f64) -> f64 {
    node.integers(name).and_then(|values| values.get(index)).map_or(default, |value| *value as f64)
}

/// The place of a window over one axis of an image.
fn windowed(node: &OnnxNode, index: usize, axes: usize, size: Interval, window: Interval) -> Interval {
    let (stride, dilation) = (each(node, "strides", index, 1.0), each(node, "dilations", index, 1.0));
    let (before, after) = match node.text("auto_pad").unwrap_or("NOTSET") {
        "SAME_UPPER" | "SAME_LOWER" => return size.map(|size| (size / stride).ceil()).as_size(),
        "VALID" => (0.0, 0.0),
        _ => (each(node, "pads", index, 0.0), each(node, "pads", index + axes, 0.0)),
    };
    let covered = window.minus(Interval::ONE).times(Interval::exact(dilation)).plus(Interval::ONE);
    let room = size.plus(Interval::exact(before + after)).minus(covered);
    let placed = |round: fn(f64) -> f64| room.map(|room| round(room / stride) + 1.0);
    if node.integer("ceil_mode", 0) == 0 {
        return placed(f64::floor).as_size();
    }
    // A window that would begin after the image is left out.
    let placed = placed(f64::ceil).as_size();
    match (placed.value(), size.value()) {
        (Some(last), Some(size)) if (last - 1.0) * stride >= size + before => Interval::exact(last - 1.0).as_size(),
        (Some(_), Some(_)) => placed,
        _ => Interval::new((placed.low - 1.0).max(0.0), placed.high),
    }
}

fn pool(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let (channels, image) = ranked(input)?.split_at_checked(2).ok_or("its input has fewer than two dimensions")?;
    let placed = image.iter().enumerate().map(|(index, size)| {
        let window = Interval::exact(each(node, "kernel_shape", index, 1.0));
        windowed(node, index, image.len(), *size, window)
    });
    let output = TensorFacts::of(channels.iter().copied().chain(placed).collect()).like(input);
    Ok(Made { outputs: vec![output; node.outputs.len()], workspace: 0.0 })
}

fn convolution(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let (input, weights) = (sizes(inputs, 0)?, sizes(inputs, 1)?);
    let (head, image) = input.split_at_checked(2).ok_or("its input has fewer than two dimensions")?;
    let (made, windows) = weights.split_at_checked(2).ok_or("its weights have fewer than two dimensions")?;
    let channels = head.iter().take(1).chain(made.iter().take(1)).copied();
    let placed = image.iter().zip(windows).enumerate();
    let placed = placed.map(|(index, (size, window))| windowed(node, index, image.len(), *size, *window));
    // The input may be copied into another layout.
    let workspace = require(inputs, 0)?.count_max;
    Ok(Made { outputs: vec![TensorFacts::of(channels.chain(placed).collect())], workspace })
}

fn transposed_convolution(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let (input, weights) = (sizes(inputs, 0)?, sizes(inputs, 1)?);
    let (head, image) = input.split_at_checked(2).ok_or("its input has fewer than two dimensions")?;
    let (made, windows) = weights.split_at_checked(2).ok_or("its weights have fewer than two dimensions")?;
    let groups = Interval::exact(node.integer("group", 1) as f64);
    let channels = made.get(1).copied().unwrap_or(Interval::ONE).times(groups).as_size();
    let stretched = image.iter().zip(windows).enumerate().map(|(index, (size, window))| {
        if let Some(size) = node.integers("output_shape").and_then(|sizes| sizes.get(index)) {
            return Interval::exact(*size as f64).as_size();
        }
        let (stride, dilation) = (each(node, "strides", index, 1.0), each(node, "dilations", index, 1.0));
        if matches!(node.text("auto_pad"), Some("SAME_UPPER" | "SAME_LOWER")) {
            return size.times(Interval::exact(stride)).as_size();
        }
        let more = each(node, "output_padding", index, 0.0)
            - each(node, "pads", index, 0.0)
            - each(node, "pads", index + image.len(), 0.0);
        let covered = window.minus(Interval::ONE).times(Interval::exact(dilation)).plus(Interval::ONE);
        let strides = size.minus(Interval::ONE).times(Interval::exact(stride));
        strides.plus(covered).plus(Interval::exact(more)).as_size()
    });
    let output = TensorFacts::of(head.iter().take(1).copied().chain([channels]).chain(stretched).collect());
    // A column for each place of the input, of all that its window reaches.
    let workspace = count(image).times(count(windows)).times(channels).high + require(inputs, 0)?.count_max;
    Ok(Made { outputs: vec![output], workspace })
}

fn global_pool(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let sizes = ranked(input)?.iter().enumerate().map(|(index, size)| if index < 2 { *size } else { Interval::ONE });
    Ok(TensorFacts::of(sizes.collect()).into())
}

fn depth_to_space(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let block = Interval::exact(node.integer("blocksize", 1) as f64);
    let size = |index| dimension(input, index);
    let channels = size(1)?.over(block.times(block)).as_size();
    let sizes = [size(0)?, channels, size(2)?.times(block), size(3)?.times(block)];
    Ok(TensorFacts::of(Sizes::from_slice(&sizes)).like(input).at_most(input.count_max).into())
}

fn grid_sample(inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let (input, grid) = (sizes(inputs, 0)?, sizes(inputs, 1)?);
    let places = grid.iter().skip(1).take(grid.len().saturating_sub(2));
    Ok(TensorFacts::of(input.iter().take(2).chain(places).copied().collect()).into())
}

fn pad(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let mut sizes = ranked(input)?.clone();
    let places = match axes(node, inputs, 3) {
        AxisList::Known(axes) => axes.into_iter().map(|one| axis(one, sizes.len())).collect::<Result<_, _>>()?,
        _ => (0..sizes.len()).collect::<Vec<_>>(),
    };
    let pads: Option<Vec<Interval>> = match (node.integers("pads"), inputs.get(1).copied().flatten()) {
        (Some(pads), _) => Some(pads.iter().map(|pad| Interval::exact(*pad as f64)).collect()),
        (None, Some(pads)) => pads.elements.clone(),
        (None, None) => None,
    };
    let pad = |index: usize| pads.as_ref().and_then(|pads| pads.get(index)).copied().unwrap_or(Interval::ANY);
    for (index, place) in places.iter().enumerate() {
        if let Some(size) = sizes.get_mut(*place) {
            *size = size.plus(pad(index)).plus(pad(index + places.len())).as_size();
        }
    }
    Ok(TensorFacts::of(sizes).like(input).into())
}

fn resize(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    // Opset 10 has no region of interest.
    let scales = inputs.get(if inputs.len() == 2 { 1 } else { 2 }).copied().flatten();
    // An empty input counts as left out.
    let is_given = |facts: &&TensorFacts| !facts.count_max.eq(&0.0);
    let wanted = match (inputs.get(3).copied().flatten().filter(is_given), scales.filter(is_given)) {
        (Some(wanted), _) => StretchTarget::Sizes(wanted.elements.clone().unwrap_or_default()),
        (None, Some(scales)) => StretchTarget::Scales(scales.elements.clone().unwrap_or_default()),
        (None, None) => return Err("it has neither scales nor sizes".into()),
    };
    stretch(node, inputs, &wanted)
}

fn upsample(node: &OnnxNode, inputs: &OperatorInputs<'_>) -> Result<Made, RuleError> {
    let scales = match (node.floats("scales"), inputs.get(1).copied().flatten()) {
        (Some(scales), _) => scales.iter().map(|scale| Interval::exact((*scale).into())).collect(),
        (None, Some(scales)) => scales.elements.clone().unwrap_or_default(),
        (None, None) => return Err("it has no scales".into()),
    };
    stretch(node, inputs, &StretchTarget::Scales(scales))
}

/// The size that an image is stretched to, along each axis; empty if it is not known.
enum StretchTarget {
    Scales(Vec<Interval>),
    Sizes(Vec<Interval>),
}

fn stretch(node: &OnnxNode, inputs: &OperatorInputs<'_>, target: &StretchTarget) -> Result<Made, RuleError> {
    let input = require(inputs, 0)?;
    let mut sizes = ranked(input)?.clone();
    let places = match node.integers("axes") {
        Some(axes) => axes.iter().map(|one| axis(*one, sizes.len())).collect::<Result<_, _>>()?,
        None => (0..sizes.len()).collect::<Vec<_>>(),
    };
    let anything = Interval::up_to(f64::INFINITY);
    for (index, place) in places.into_iter().enumerate() {
        let Some(size) = sizes.get_mut(place) else { continue };
        *size = match target {
            StretchTarget::Sizes(wanted) => wanted.get(index).copied().unwrap_or(anything).as_size(),
            StretchTarget::Scales(scales) => size.times(scales.get(index).copied().unwrap_or(anything)).as_size(),
        };
    }
    let output = TensorFacts::of(sizes).like(input);
    // Rows that are stretched along one axis before the other.
    let workspace = output.count_max.min(f64::MAX) + input.count_max;
    Ok(Made { outputs: vec![output], workspace })
}
