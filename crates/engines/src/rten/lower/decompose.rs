//! Operators that the engine lacks, or computes otherwise than ONNX says, by others that give the same numbers.

use base::limits::RANK_MAX;
use model::onnx::message::{AttributeMessage, NodeMessage, element};

use super::Lowering;
use super::rule::keep;

/// No axis is further from the end.
#[expect(clippy::cast_possible_wrap, reason = "a few dimensions")]
const RANK_MOST: i64 = RANK_MAX as i64;

fn to(kind: i32) -> Vec<AttributeMessage> {
    vec![AttributeMessage::integer("to", kind.into())]
}

fn axis(axis: i64) -> AttributeMessage {
    AttributeMessage::integer("axis", axis)
}

/// The names of an operator's first input and output.
fn ends(node: &NodeMessage) -> Result<(String, String), String> {
    let (input, output) = (node.read_input(0), node.written(0));
    input
        .zip(output)
        .map(|(input, output)| (input.to_owned(), output.to_owned()))
        .ok_or("it lacks an input or output".to_owned())
}

/// Of equal elements the engine takes the last, and ONNX the first unless `select_last_index` says so: it is asked for
/// the last of them in reverse.
pub(super) fn arg(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let is_last = node.integer("select_last_index", 0) != 0;
    node.unset("select_last_index");
    if is_last {
        return keep(lowering, node);
    }
    let (input, output) = ends(&node)?;
    let dimension = node.integer("axis", 0);
    lowering.first_place(&node.op_type, &input, dimension, node.integer("keepdims", 1), &output);
    Ok(())
}

impl Lowering<'_> {
    /// Appends the place of the first greatest (`ArgMax`) or least (`ArgMin`) element along a dimension.
    fn first_place(&mut self, operator: &str, input: &str, dimension: i64, keepdims: i64, output: &str) {
        let (last, before) = (self.add_integers(&[1], &[-1]), self.add_integers(&[1], &[i32::MIN.into()]));
        let along = self.add_integers(&[1], &[dimension]);
        let reverse = self.add("Slice", &[input, &last, &before, &along, &last], vec![]);
        let place =
            self.add(operator, &[&reverse], vec![axis(dimension), AttributeMessage::integer("keepdims", keepdims)]);
        let shape = self.add("Shape", &[input], vec![]);
        let (along, one) = (self.add_integers(&[], &[dimension]), self.add_integers(&[], &[1]));
        let size = self.add("Gather", &[&shape, &along], vec![axis(0)]);
        let end = self.add("Sub", &[&size, &one], vec![]);
        self.add_as("Sub", &[&end, &place], vec![], output);
    }

    /// Appends an operator along one axis of its input. Before version 13 it is along all from that
    /// axis on at once.
    fn add_along(&mut self, node: NodeMessage, add: impl FnOnce(&mut Self, &str, i64, &str)) -> Result<(), String> {
        let (input, output) = ends(&node)?;
        if self.version >= 13 {
            add(self, &input, node.integer("axis", -1), &output);
            return Ok(());
        }
        let first = node.integer("axis", 1);
        let rank = self.dims(Some(&input)).and_then(|dims| i64::try_from(dims.len()).ok());
        if first == -1 || rank.is_some_and(|rank| first == rank - 1) {
            add(self, &input, -1, &output);
            return Ok(());
        }
        let flat = self.add("Flatten", &[&input], vec![axis(first)]);
        let done = self.fresh_name();
        add(self, &flat, 1, &done);
        let shape = self.add("Shape", &[&input], vec![]);
        self.add_as("Reshape", &[&done, &shape], vec![AttributeMessage::integer("allowzero", 1)], &output);
        Ok(())
    }
}

/// `Softmax` and `LogSoftmax`.
pub(super) fn softmax(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    if lowering.version >= 13 {
        return keep(lowering, node);
    }
    let operator = node.op_type.clone();
    lowering.add_along(node, |lowering, input, dimension, output| {
        lowering.add_as(&operator, &[input], vec![axis(dimension)], output);
    })
}

/// 1 at the first greatest element, 0 elsewhere.
pub(super) fn hardmax(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    lowering.add_along(node, |lowering, input, dimension, output| {
        let place = lowering.fresh_name();
        lowering.first_place("ArgMax", input, dimension, 0, &place);
        let shape = lowering.add("Shape", &[input], vec![]);
        let along = lowering.add_integers(&[], &[dimension]);
        let size = lowering.add("Gather", &[&shape, &along], vec![axis(0)]);
        let pair = lowering.add_integers(&[2], &[0, 1]);
        let pair = lowering.add("Cast", &[&pair], to(element::FLOAT));
        lowering.add_as("OneHot", &[&place, &size, &pair], vec![axis(dimension)], output);
    })
}

/// Above 0 less below 0: the engine has 1 for 0.
pub(super) fn sign(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let kind = lowering.element(&input);
    let kind = if matches!(kind, 0 | element::FLOAT16) { element::FLOAT } else { kind };
    let zero = lowering.add_number(kind, 0.0);
    let (above, below) =
        (lowering.add("Greater", &[&input, &zero], vec![]), lowering.add("Less", &[&input, &zero], vec![]));
    let (above, below) = (lowering.add("Cast", &[&above], to(kind)), lowering.add("Cast", &[&below], to(kind)));
    lowering.add_as("Sub", &[&above, &below], vec![], &output);
    Ok(())
}

/// `gamma * Elu(x)`.
pub(super) fn selu(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let elu = lowering.add("Elu", &[&input], vec![AttributeMessage::float("alpha", node.float("alpha", 1.673_263_2))]);
    let gamma = lowering.add_number(element::FLOAT, node.float("gamma", 1.050_701));
    lowering.add_as("Mul", &[&elu, &gamma], vec![], &output);
    Ok(())
}

/// `max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)`.
pub(super) fn celu(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let alpha = lowering.add_number(element::FLOAT, node.float("alpha", 1.0));
    let scaled = lowering.add("Div", &[&input, &alpha], vec![]);
    let elu = lowering.add("Elu", &[&scaled], vec![]);
    lowering.add_as("Mul", &[&elu, &alpha], vec![], &output);
    Ok(())
}

/// `x * tanh(softplus(x))`.
pub(super) fn mish(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let plus = lowering.add("Softplus", &[&input], vec![]);
    let curve = lowering.add("Tanh", &[&plus], vec![]);
    lowering.add_as("Mul", &[&input, &curve], vec![], &output);
    Ok(())
}

/// `x` above `alpha`, else 0.
pub(super) fn thresholded_relu(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let alpha = lowering.add_number(element::FLOAT, node.float("alpha", 1.0));
    let is_above = lowering.add("Greater", &[&input, &alpha], vec![]);
    let zero = lowering.add_number(element::FLOAT, 0.0);
    lowering.add_as("Where", &[&is_above, &input, &zero], vec![], &output);
    Ok(())
}

/// `x + bias` below `-lambd`, `x - bias` above `lambd`, else 0.
pub(super) fn shrink(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let (lambd, bias) = (node.float("lambd", 0.5), node.float("bias", 0.0));
    let [least, most, bias, zero] = [-lambd, lambd, bias, 0.0].map(|value| lowering.add_number(element::FLOAT, value));
    let is_below = lowering.add("Less", &[&input, &least], vec![]);
    let is_above = lowering.add("Greater", &[&input, &most], vec![]);
    let (more, less) = (lowering.add("Add", &[&input, &bias], vec![]), lowering.add("Sub", &[&input, &bias], vec![]));
    let above = lowering.add("Where", &[&is_above, &less, &zero], vec![]);
    lowering.add_as("Where", &[&is_below, &more, &above], vec![], &output);
    Ok(())
}

/// Infinities of one sign.
pub(super) fn is_inf(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let signs = (node.integer("detect_negative", 1) != 0, node.integer("detect_positive", 1) != 0);
    node.attribute.clear();
    let side = match signs {
        (true, true) => return keep(lowering, node),
        (false, true) => "Greater",
        (true, false) => "Less",
        (false, false) => return Err("it detects no infinity".to_owned()),
    };
    let is_infinite = lowering.add("IsInf", &[&input], vec![]);
    let zero = lowering.add_number(element::FLOAT, 0.0);
    let is_of_sign = lowering.add(side, &[&input, &zero], vec![]);
    lowering.add_as("And", &[&is_infinite, &is_of_sign], vec![], &output);
    Ok(())
}

/// `x / (bias + alpha * mean of squares over channels) ^ beta`: the mean is a pool over channels that counts its
/// padding.
pub(super) fn lrn(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let size = node.integer("size", 0);
    if size < 1 {
        return Err("its size is missing".to_owned());
    }
    let squares = lowering.add("Mul", &[&input, &input], vec![]);
    // [N, C, ...] as [N, C, P], then as [N, 1, C, P].
    let channels = lowering.add_integers(&[3], &[0, 0, -1]);
    let rows = lowering.add("Reshape", &[&squares, &channels], vec![]);
    let one = lowering.add_integers(&[1], &[1]);
    let image = lowering.add("Unsqueeze", &[&rows, &one], vec![]);
    let (before, after) = ((size - 1) / 2, size - 1 - (size - 1) / 2);
    let window = vec![
        AttributeMessage::integers("kernel_shape", &[size, 1]),
        AttributeMessage::integers("strides", &[1, 1]),
        AttributeMessage::integers("pads", &[before, 0, after, 0]),
        AttributeMessage::integer("count_include_pad", 1),
    ];
    let mean = lowering.add("AveragePool", &[&image], window);
    let shape = lowering.add("Shape", &[&input], vec![]);
    let mean = lowering.add("Reshape", &[&mean, &shape], vec![]);
    let [alpha, bias, beta] = [node.float("alpha", 0.0001), node.float("bias", 1.0), node.float("beta", 0.75)]
        .map(|value| lowering.add_number(element::FLOAT, value));
    let scaled = lowering.add("Mul", &[&mean, &alpha], vec![]);
    let base = lowering.add("Add", &[&scaled, &bias], vec![]);
    let divisor = lowering.add("Pow", &[&base, &beta], vec![]);
    lowering.add_as("Div", &[&input, &divisor], vec![], &output);
    Ok(())
}

/// The engine does not give the mean and the inverse of the deviation.
pub(super) fn layer_normalization(lowering: &mut Lowering<'_>, mut node: NodeMessage) -> Result<(), String> {
    let is_read = |lowering: &Lowering<'_>, index| node.written(index).is_some_and(|name| lowering.read.contains(name));
    if !is_read(lowering, 1) && !is_read(lowering, 2) {
        node.output.truncate(1);
        return keep(lowering, node);
    }
    let (input, output) = ends(&node)?;
    let first = node.integer("axis", -1);
    let rank = lowering.dims(Some(&input)).and_then(|dims| i64::try_from(dims.len()).ok());
    let first = match rank {
        Some(rank) if (0..rank).contains(&first) => first - rank,
        _ if (-RANK_MOST..0).contains(&first) => first,
        _ => return Err("it gives a mean, and the file does not say how many dimensions there are".to_owned()),
    };
    let axes: Vec<i64> = (first..0).collect();
    let axes = vec![AttributeMessage::integers("axes", &axes), AttributeMessage::integer("keepdims", 1)];
    let mut name = |index| node.written(index).map_or_else(|| lowering.fresh_name(), str::to_owned);
    let (mean, inverse) = (name(1), name(2));
    lowering.add_as("ReduceMean", &[&input], axes.clone(), &mean);
    let difference = lowering.add("Sub", &[&input, &mean], vec![]);
    let squares = lowering.add("Mul", &[&difference, &difference], vec![]);
    let variance = lowering.add("ReduceMean", &[&squares], axes);
    let epsilon = lowering.add_number(element::FLOAT, node.float("epsilon", 1e-5));
    let sum = lowering.add("Add", &[&variance, &epsilon], vec![]);
    let deviation = lowering.add("Sqrt", &[&sum], vec![]);
    lowering.add_as("Reciprocal", &[&deviation], vec![], &inverse);
    let normal = lowering.add("Mul", &[&difference, &inverse], vec![]);
    let scale = node.read_input(1).unwrap_or_default();
    match node.read_input(2) {
        None => lowering.add_as("Mul", &[&normal, scale], vec![], &output),
        Some(bias) => {
            let scaled = lowering.add("Mul", &[&normal, scale], vec![]);
            lowering.add_as("Add", &[&scaled, bias], vec![], &output);
        }
    }
    Ok(())
}

/// The engine multiplies by the inverse of the scale, which rounds otherwise than a division.
pub(super) fn quantize(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    if node.integer("block_size", 0) != 0 || node.integer("precision", 0) > 1 || node.integer("saturate", 1) != 1 {
        return Err("the engine does not have it in blocks, or in another precision".to_owned());
    }
    let scale = node.read_input(1).unwrap_or_default().to_owned();
    let point = node.read_input(2).map(str::to_owned);
    let asked = i32::try_from(node.integer("output_dtype", 0)).unwrap_or(0);
    let kind = match &point {
        _ if asked != 0 => asked,
        Some(name) => lowering.element(name),
        None => element::UINT8,
    };
    if !matches!(kind, element::INT8 | element::UINT8) {
        return Err("the engine has it to INT8 and UINT8".to_owned());
    }
    let shaped = match lowering.dims(Some(&scale)) {
        Some([] | [1]) => None,
        Some([count]) => Some(*count),
        _ => return Err("the file does not say the shape of its scale".to_owned()),
    };
    let dimension = node.integer("axis", 1);
    let rank = lowering.dims(Some(&input)).and_then(|dims| i64::try_from(dims.len()).ok());
    let behind = match (shaped, rank) {
        (None, _) => None,
        (Some(_), _) if (-RANK_MOST..0).contains(&dimension) => Some(-dimension - 1),
        (Some(_), Some(rank)) if (0..rank).contains(&dimension) => Some(rank - dimension - 1),
        (Some(_), _) => return Err("the file does not say how many dimensions it reads".to_owned()),
    };
    let shape = |lowering: &mut Lowering<'_>, name: String| {
        let Some(behind) = behind else { return name };
        let mut dims = vec![-1];
        dims.extend((0..behind).map(|_| 1));
        let shape = lowering.add_integers(&[behind + 1], &dims);
        lowering.add("Reshape", &[&name, &shape], vec![])
    };
    let scale = shape(lowering, scale);
    let point = point.map(|point| shape(lowering, point));
    lowering.add_quantized(&input, &scale, point.as_deref(), kind, &output);
    Ok(())
}

impl Lowering<'_> {
    /// Appends an exact division of floats: by two equal divisors side by side, since the engine multiplies by the
    /// inverse of a single one.
    pub(super) fn add_division(&mut self, input: &str, divisor: &str, output: &str) {
        let last = self.add_integers(&[1], &[-1]);
        let (input, divisor) =
            (self.add("Unsqueeze", &[input, &last], vec![]), self.add("Unsqueeze", &[divisor, &last], vec![]));
        let pair = self.add("Concat", &[&divisor, &divisor], vec![axis(-1)]);
        let both = self.add("Div", &[&input, &pair], vec![]);
        let first = self.add_integers(&[], &[0]);
        self.add_as("Gather", &[&both, &first], vec![axis(-1)], output);
    }

    /// `Cast(Clip(Round(x / scale) + point))`. `scale` and `point` broadcast.
    fn add_quantized(&mut self, input: &str, scale: &str, point: Option<&str>, kind: i32, output: &str) {
        let divided = self.fresh_name();
        self.add_division(input, scale, &divided);
        let mut whole = self.add("Round", &[&divided], vec![]);
        if let Some(point) = point {
            let point = self.add("Cast", &[point], to(element::FLOAT));
            whole = self.add("Add", &[&whole, &point], vec![]);
        }
        let (least, most) = if kind == element::UINT8 { (0.0, 255.0) } else { (-128.0, 127.0) };
        let [least, most] = [least, most].map(|value| self.add_number(element::FLOAT, value));
        let clipped = self.add("Clip", &[&whole, &least, &most], vec![]);
        self.add_as("Cast", &[&clipped], to(kind), output);
    }
}

/// As ONNX defines it; the engine rounds otherwise.
pub(super) fn dynamic_quantize(lowering: &mut Lowering<'_>, node: NodeMessage) -> Result<(), String> {
    let (input, output) = ends(&node)?;
    let mut name = |index| node.written(index).map_or_else(|| lowering.fresh_name(), str::to_owned);
    let (scale, point) = (name(1), name(2));
    let [zero, most] = [0.0, 255.0].map(|value| lowering.add_number(element::FLOAT, value));
    let whole = || vec![AttributeMessage::integer("keepdims", 0)];
    let (low, high) = (lowering.add("ReduceMin", &[&input], whole()), lowering.add("ReduceMax", &[&input], whole()));
    let (low, high) = (lowering.add("Min", &[&low, &zero], vec![]), lowering.add("Max", &[&high, &zero], vec![]));
    let range = lowering.add("Sub", &[&high, &low], vec![]);
    lowering.add_division(&range, &most, &scale);
    let scaled = lowering.fresh_name();
    lowering.add_division(&low, &scale, &scaled);
    let start = lowering.add("Sub", &[&zero, &scaled], vec![]);
    let clipped = lowering.add("Clip", &[&start, &zero, &most], vec![]);
    let rounded = lowering.add("Round", &[&clipped], vec![]);
    lowering.add_as("Cast", &[&rounded], to(element::UINT8), &point);
    lowering.add_quantized(&input, &scale, Some(&point), element::UINT8, &output);
    Ok(())
}
