//! Rules of operators that the engine has: attributes that it reads otherwise than ONNX says get
//! their defaults written out, and uses that it does not compute correctly are refused.

use model::onnx::message::{AttributeMessage, NodeMessage, element};

use super::Lowering;

/// Keeps the operator as it is.
pub(super) fn keep(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    lowering.out.push(node);
    Ok(())
}

fn refuse(reason: &str) -> Result<(), String> {
    Err(reason.to_owned())
}

/// Before version 7 `broadcast` requested the behaviour that later versions always have, if the
/// axis is the last.
pub(super) fn broadcast(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    if lowering.version < 7 {
        if node.attribute("axis").is_some() {
            return refuse("it broadcasts along an axis, which later versions do not");
        }
        node.unset("broadcast");
    }
    keep(lowering, node)
}

/// The engine multiplies by the inverse of a single divisor, which may miss a whole number by a
/// little: harmless, unless the next operator rounds down.
pub(super) fn divide(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let is_float = |name: &String| matches!(lowering.element(name), element::FLOAT | element::FLOAT16 | 0);
    let is_stepped = node.output.iter().any(|name| lowering.stepped.contains(name));
    match (node.input.as_slice(), node.written(0)) {
        ([a, b], Some(output)) if is_stepped && is_float(a) && lowering.version >= 7 => {
            let (a, b, output) = (a.clone(), b.clone(), output.to_owned());
            lowering.add_division(&a, &b, &output);
            Ok(())
        }
        _ => broadcast(lowering, node),
    }
}

/// Before version 7 `broadcast` requested the behaviour that later versions always have.
pub(super) fn gemm(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    if lowering.version < 7 {
        node.unset("broadcast");
    }
    keep(lowering, node)
}

pub(super) fn attention(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    if node.written(3).is_some() {
        return refuse("the engine does not give the product of queries and keys");
    }
    if node.read_input(3).is_some() && node.read_input(6).is_some() {
        return refuse("the engine does not take a mask beside padding lengths");
    }
    keep(lowering, node)
}

/// Pools: the engine wants strides, and pads at the end if the rest is odd.
pub(super) fn pool(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    if node.written(1).is_some_and(|name| lowering.read.contains(name)) {
        return refuse("the engine does not give the indices");
    }
    node.output.truncate(1);
    let kernel = node.integers("kernel_shape").to_vec();
    fill_window(lowering, &mut node, kernel.len())?;
    keep(lowering, node)
}

/// Convolutions: the engine takes the number of dimensions from `kernel_shape`, which may be missing.
pub(super) fn convolution(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    if node.attribute("kernel_shape").is_none() {
        let weights = lowering.dims(node.read_input(1)).and_then(|dims| dims.get(2..)).map(<[i64]>::to_vec);
        let Some(kernel) = weights.filter(|kernel| kernel.iter().all(|size| *size > 0)) else {
            return refuse("its kernel_shape is missing, and the file does not say the shape of its weights");
        };
        node.set(AttributeMessage::integers("kernel_shape", &kernel));
    }
    let count = node.integers("kernel_shape").len();
    if node.op_type == "ConvTranspose" && node.text("auto_pad", "NOTSET").starts_with("SAME") {
        return refuse("the engine does not pad it by auto_pad");
    }
    fill_window(lowering, &mut node, count)?;
    if node.op_type == "ConvInteger" {
        pad_by_zero_point(lowering, &mut node, count)?;
    }
    if node.attribute("dilations").is_none() {
        node.set(AttributeMessage::integers("dilations", &vec![1; count]));
    }
    keep(lowering, node)
}

/// The engine pads integers with 0, not with the zero point, which represents 0.
fn pad_by_zero_point(lowering: &mut Lowering<'_>, node: &mut NodeMessage, count: usize) -> Result<(), String> {
    let Some(point) = node.read_input(2).map(str::to_owned) else { return Ok(()) };
    if node.text("auto_pad", "NOTSET").starts_with("SAME") {
        return Err("the engine pads it with 0, not with the zero point".to_owned());
    }
    let Some((before, after)) = node.integers("pads").split_at_checked(count) else { return Ok(()) };
    let pads = [&[0, 0], before, &[0, 0], after].concat();
    node.unset("pads");
    if pads.iter().all(|pad| *pad == 0) {
        return Ok(());
    }
    let pads = lowering.add_integers(&[i64::try_from(pads.len()).unwrap_or(0)], &pads);
    let scalar = lowering.add_integers(&[0], &[]);
    let point = lowering.add("Reshape", &[&point, &scalar], vec![]);
    let padded = lowering.add("Pad", &[node.read_input(0).unwrap_or_default(), &pads, &point], vec![]);
    if let Some(place) = node.input.first_mut() {
        *place = padded;
    }
    Ok(())
}

fn fill_window(lowering: &Lowering<'_>, node: &mut NodeMessage, count: usize) -> Result<(), String> {
    if !(1..=2).contains(&count) {
        return Err(format!("its window has {count} dimensions, and the engine has one and two"));
    }
    if node.attribute("strides").is_none() {
        node.set(AttributeMessage::integers("strides", &vec![1; count]));
    }
    if node.text("auto_pad", "NOTSET") == "SAME_LOWER" {
        let Some(pads) = lower_pads(lowering, node) else {
            let reason = "the engine has auto_pad SAME_UPPER, and the file does not say the shape that SAME_LOWER pads";
            return Err(reason.to_owned());
        };
        node.unset("auto_pad");
        node.set(AttributeMessage::integers("pads", &pads));
    }
    Ok(())
}

/// The pads of SAME_LOWER: the odd one comes first. With strides of 1 they do not depend on the
/// shape.
fn lower_pads(lowering: &Lowering<'_>, node: &NodeMessage) -> Option<Vec<i64>> {
    let sizes = lowering.dims(node.read_input(0)).and_then(|dims| dims.get(2..)).unwrap_or(&[]);
    let (kernel, strides, dilations) =
        (node.integers("kernel_shape"), node.integers("strides"), node.integers("dilations"));
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (index, (kernel, stride)) in kernel.iter().zip(strides).enumerate() {
        let reach = kernel.saturating_sub(1).saturating_mul(dilations.get(index).copied().unwrap_or(1));
        let size = sizes.get(index).copied().filter(|size| *size > 0);
        let total = match size {
            _ if *stride == 1 => reach,
            Some(size) if *stride > 0 => ((size - 1) / stride * stride - size + 1).saturating_add(reach).max(0),
            _ => return None,
        };
        before.push(total - total / 2);
        after.push(total / 2);
    }
    before.extend(after);
    Some(before)
}

pub(super) fn batch_normalization(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    if node.integer("training_mode", 0) != 0 || (lowering.version < 7 && node.integer("is_test", 0) == 0) {
        return refuse("it is in training mode, which the engine does not have");
    }
    node.unset("is_test");
    keep(lowering, node)
}

/// Outside of training its output is its input.
pub(super) fn dropout(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let is_training = match node.read_input(2) {
        None => lowering.version < 7 && node.integer("is_test", 0) == 0,
        Some(name) => lowering.values.get(name).is_none_or(|value| value.low != 0 || value.high != 0),
    };
    if is_training {
        return refuse("it is in training mode, or a request may say so: its numbers are random");
    }
    node.unset("is_test");
    keep(lowering, node)
}

pub(super) fn bit_cast(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let from = node.read_input(0).map_or(0, |name| lowering.element(name));
    let to = node.integer("to", 0);
    let is_eight = |kind: i64| matches!(kind, 2 | 3 | 9);
    let is_wide = |kind: i64| matches!(kind, 1 | 6);
    if is_eight(from.into()) && is_eight(to) && i64::from(element::BOOL) != to {
        // 0 and 1 are the same bits; of bytes the engine keeps the bits.
        node.op_type = "Cast".to_owned();
        return keep(lowering, node);
    }
    if is_wide(from.into()) && is_wide(to) {
        keep(lowering, node)
    } else {
        refuse("the engine holds these datatypes in other sizes")
    }
}

/// The engine takes BOOL for an integer: any value but 0 must become 1.
pub(super) fn cast(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let to = match node.op_type.as_str() {
        "Cast" => node.integer("to", 0),
        _ => node.read_input(1).map_or(0, |name| lowering.element(name)).into(),
    };
    let Some(name) = node.read_input(0).map(str::to_owned) else { return refuse("it has no input") };
    let from = lowering.element(&name);
    let is_held = |kind: i64| matches!(kind, 1 | 2 | 3 | 6 | 7 | 9 | 10);
    if !(is_held(from.into()) || from == element::DOUBLE) || !is_held(to) {
        return refuse("the engine does not have one of its datatypes");
    }
    node.op_type = "Cast".to_owned();
    node.input.truncate(1);
    node.set(AttributeMessage::integer("to", to));
    if to != i64::from(element::BOOL) || from == element::BOOL {
        return keep(lowering, node);
    }
    let wide = match from {
        element::INT8 | element::UINT8 => lowering.add("Cast", &[&name], vec![AttributeMessage::integer("to", 6)]),
        _ => name,
    };
    let zero = lowering.add_number(from, 0.0);
    let is_zero = lowering.add("Equal", &[&wide, &zero], vec![]);
    lowering.add_as("Not", &[&is_zero], vec![], node.written(0).unwrap_or_default());
    Ok(())
}

pub(super) fn gru(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    if node.integer("linear_before_reset", 0) == 0 {
        return refuse("the engine has it with linear_before_reset only");
    }
    keep(lowering, node)
}

pub(super) fn grid_sample(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    if lowering.dims(node.read_input(0)).is_none_or(|dims| dims.len() != 4) {
        return refuse("the engine has it for four dimensions, and the file says others or none");
    }
    keep(lowering, node)
}

/// The engine leaves a dimension in the product of many matrices and one vector.
pub(super) fn matrix_product(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let rank = |index| lowering.dims(node.read_input(index)).map(<[i64]>::len);
    if rank(1) != Some(1) || rank(0).is_some_and(|rank| rank <= 2) {
        return keep(lowering, node);
    }
    let last = lowering.add_integers(&[1], &[-1]);
    let column = lowering.add("Unsqueeze", &[node.read_input(1).unwrap_or_default(), &last], vec![]);
    let wide = lowering.fresh_name();
    let Some(output) = node.output.first_mut().map(|output| std::mem::replace(output, wide.clone())) else {
        return refuse("it has no output");
    };
    if let Some(place) = node.input.get_mut(1) {
        *place = column;
    }
    lowering.out.push(node);
    lowering.add_as("Squeeze", &[&wide, &last], vec![], &output);
    Ok(())
}

/// The engine takes a zero point of one element for one of each row.
pub(super) fn matrix_product_of_integers(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    for index in [2, 3] {
        let Some(name) = node.read_input(index).map(str::to_owned) else { continue };
        if lowering.dims(Some(&name)) == Some(&[1]) {
            let scalar = lowering.add_integers(&[0], &[]);
            let point = lowering.add("Reshape", &[&name, &scalar], vec![]);
            if let Some(place) = node.input.get_mut(index) {
                *place = point;
            }
        }
    }
    keep(lowering, node)
}

/// The engine wants indices and depth in integers.
pub(super) fn one_hot(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    for index in [0, 1] {
        let Some(name) = node.read_input(index).map(str::to_owned) else { continue };
        if !matches!(lowering.element(&name), element::INT32 | element::INT64) {
            let cast = lowering.add("Cast", &[&name], vec![AttributeMessage::integer("to", 6)]);
            if let Some(place) = node.input.get_mut(index) {
                *place = cast;
            }
        }
    }
    keep(lowering, node)
}

/// Before version 7 a vector of slopes is one for each channel.
pub(super) fn prelu(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let slopes = lowering.dims(node.read_input(1)).map(<[i64]>::to_vec);
    if lowering.version >= 7 || slopes.as_deref().is_none_or(|dims| dims.len() != 1 || dims == [1]) {
        return keep(lowering, node);
    }
    let Some(rank) = lowering.dims(node.read_input(0)).map(<[i64]>::len) else {
        return refuse("it has a slope for each channel, and the file does not say how many dimensions there are");
    };
    let axes: Vec<i64> = (1..).take(rank.saturating_sub(2)).collect();
    let count = i64::try_from(axes.len()).unwrap_or(0);
    let axes = lowering.add_integers(&[count], &axes);
    let slopes = lowering.add("Unsqueeze", &[node.read_input(1).unwrap_or_default(), &axes], vec![]);
    if let Some(place) = node.input.get_mut(1) {
        *place = slopes;
    }
    keep(lowering, node)
}

/// The engine pads all axes: those that are not named are padded by zero.
pub(super) fn pad(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let Some(axes) = node.read_input(3).map(str::to_owned) else { return keep(lowering, node) };
    let (tensor, pads) =
        (node.read_input(0).unwrap_or_default().to_owned(), node.read_input(1).unwrap_or_default().to_owned());
    let shape = lowering.add("Shape", &[&tensor], vec![]);
    let rank = lowering.add("Shape", &[&shape], vec![]);
    let zero = lowering.add_number(element::INT64, 0.0);
    let is_behind = lowering.add("Less", &[&axes, &zero], vec![]);
    let counted = lowering.add("Add", &[&axes, &rank], vec![]);
    let starts = lowering.add("Where", &[&is_behind, &counted, &axes], vec![]);
    let ends = lowering.add("Add", &[&starts, &rank], vec![]);
    let places = lowering.add("Concat", &[&starts, &ends], vec![AttributeMessage::integer("axis", 0)]);
    let size = lowering.add("Add", &[&rank, &rank], vec![]);
    let zeros = lowering.add("Expand", &[&zero, &size], vec![]);
    let all = lowering.add("ScatterElements", &[&zeros, &places, &pads], vec![]);
    if let Some(place) = node.input.get_mut(1) {
        *place = all;
    }
    node.input.truncate(3);
    keep(lowering, node)
}

/// The engine wants the exponent in the datatype of the base.
pub(super) fn pow(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let kind = |index| node.read_input(index).map_or(0, |name| lowering.element(name));
    let is_float = |kind| matches!(kind, element::FLOAT | element::FLOAT16);
    let (base, exponent) = (kind(0), kind(1));
    if is_float(exponent) && !is_float(base) {
        return refuse("the engine computes an integer to a power of FP32 in FP32");
    }
    if is_float(base) && !is_float(exponent) {
        let name = node.read_input(1).unwrap_or_default().to_owned();
        let cast = lowering.add("Cast", &[&name], vec![AttributeMessage::integer("to", 1)]);
        if let Some(place) = node.input.get_mut(1) {
            *place = cast;
        }
    }
    broadcast(lowering, node)
}

pub(super) fn random(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    if node.attribute("seed").is_some() {
        return refuse("it has a seed, and the engine's numbers of it are others than those of ONNX Runtime");
    }
    keep(lowering, node)
}

pub(super) fn resize(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    if node.text("mode", "nearest") == "cubic" {
        return refuse("the engine has it with mode nearest and linear, not cubic");
    }
    // With scales that are not whole the last pixel is elsewhere.
    let is_aligned = node.text("coordinate_transformation_mode", "half_pixel") == "align_corners";
    let is_whole = lowering.integers(node.read_input(2)).is_some_and(|scales| scales.iter().all(|scale| *scale > 0));
    if is_aligned && !is_whole && node.read_input(3).is_none() {
        return refuse("the engine has align_corners with sizes and whole scales");
    }
    keep(lowering, node)
}

pub(super) fn sequence_position(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let index = if node.op_type == "SequenceInsert" { 2 } else { 1 };
    match node.read_input(index) {
        None => keep(lowering, node),
        Some(name) => match lowering.integers(Some(name)) {
            Some([position]) if *position >= 0 => keep(lowering, node),
            _ => refuse("the engine counts a position from the end otherwise"),
        },
    }
}

/// The engine wants a list of axes, not one alone.
pub(super) fn axes(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    if let Some(name) = node.read_input(1).map(str::to_owned)
        && lowering.dims(Some(&name)) == Some(&[])
    {
        let one = lowering.add_integers(&[1], &[1]);
        let list = lowering.add("Reshape", &[&name, &one], vec![]);
        if let Some(place) = node.input.get_mut(1) {
            *place = list;
        }
    }
    keep(lowering, node)
}
