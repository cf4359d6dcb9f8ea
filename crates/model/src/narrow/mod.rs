//! The whole numbers of a model on an engine that computes 64-bit integers in 32 bits and part of its operators in FP32, as
//! OpenVINO's CPU plugin does: how large the integers of a request may be for every result to be the one that the model
//! file asks for. `engines::openvino` asks when a model is loaded and checks each request against the answer.
//!
//! Each value of a graph has bounds, which follow from those of the inputs. The limits are the largest for which no value
//! leaves what the engine computes exactly: 32 bits where it only moves, adds or multiplies numbers, 24 where it compares,
//! divides or reduces them, in any integer type.

pub mod ir;
pub mod onnx;
mod operator;

#[cfg(test)]
mod tests;

pub use operator::{Bounds, IntegerOperator};

/// The greatest whole number up to which FP32 has all.
pub const FP32_END: i64 = 1 << 24;
/// The end of 32 bits.
pub const INT32_END: i64 = 2_147_483_647;
/// Elements that a sum is taken to have at most, and sizes and positions.
const COUNT_MAX: i64 = 1 << 24;

/// An element type, as far as its range matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumberType {
    /// 64-bit float.
    Double,
    /// Another float.
    Float,
    /// An integer or truth value: the least and the greatest.
    Integer(i64, i64),
    /// Anything else, or unknown.
    #[default]
    Other,
}

impl NumberType {
    /// Truth values.
    pub const BOOL: Self = Self::Integer(0, 1);
    /// Signed, 4 bytes.
    pub const INT32: Self = Self::Integer(-1 - INT32_END, INT32_END);
    /// Signed, 8 bytes.
    pub const INT64: Self = Self::Integer(i64::MIN, i64::MAX);
    /// Unsigned, 4 bytes.
    pub const UINT32: Self = Self::Integer(0, 4_294_967_295);
    /// Unsigned, 8 bytes, as far as the bounds reach.
    pub const UINT64: Self = Self::Integer(0, i64::MAX);

    /// Returns true if it is an integer of 4 bytes or more.
    const fn is_wide(self) -> bool {
        matches!(self, Self::Integer(_, high) if high >= INT32_END)
    }

    /// Returns true if 32 bits lack some of its numbers.
    const fn is_beyond(self) -> bool {
        matches!(self, Self::Integer(_, high) if high > INT32_END)
    }

    /// The range of the numbers that a request may bring: at most 32 bits, and within a limit.
    fn range(self, limit: i64) -> (i64, i64) {
        let Self::Integer(low, high) = self else { return (i64::from(i32::MIN), INT32_END) };
        let (low, high) = (low.max(i32::MIN.into()), high.min(INT32_END));
        if limit >= high { (low, high) } else { (low.max(-limit), limit) }
    }
}

/// The operators of a graph, in the order of their run.
#[derive(Debug, Default)]
pub struct Graph {
    /// The inputs of requests: their names, and their values.
    pub inputs: Vec<(Vec<String>, usize)>,
    /// The element type of each value.
    pub elements: Vec<NumberType>,
    /// The operators, each behind those that it reads.
    pub nodes: Vec<Node>,
}

/// An operator of a graph.
#[derive(Debug)]
pub struct Node {
    /// Its kind and name, for an error.
    pub described: String,
    /// Its operation.
    pub operator: IntegerOperator,
    /// The values that it reads; `None` for one that is left out.
    pub inputs: Vec<Option<usize>>,
    /// The values that it gives.
    pub outputs: Vec<usize>,
}

/// A value: its bounds, and whether they depend on numbers of the request.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: i64,
    high: i64,
    is_requested: bool,
}

/// The largest number that each input may have, in the order of [`Graph::inputs`], or why there is no such limit.
pub type Limits = Result<Vec<i64>, String>;

impl Graph {
    /// Returns the limits of the inputs; an input without a need for one gets that of its type, or of 32 bits.
    ///
    /// # Errors
    /// The operator and reason, if its results may be wrong for any request.
    pub fn limits(&self) -> Limits {
        let whole: Vec<i64> = self.inputs.iter().map(|(_, value)| self.element(*value).range(i64::MAX).1).collect();
        let end = if self.computes_in_fp32() { FP32_END } else { INT32_END };
        let Err(why) = self.check(&whole, end) else { return Ok(whole) };
        let fits = |limits: &[i64]| self.check(limits, end).is_ok();
        let all = |limit: i64| whole.iter().map(|most| limit.min(*most)).collect::<Vec<_>>();
        if !fits(&all(1)) {
            return Err(self.check(&all(1), end).err().unwrap_or(why));
        }
        let mut limits = all(largest(INT32_END, |limit| fits(&all(limit))));
        // One that takes no part may be larger than those that do.
        for index in 0..limits.len() {
            let most = whole.get(index).copied().unwrap_or_default();
            let with = |limit: i64| {
                let mut limits = limits.clone();
                limits.iter_mut().skip(index).take(1).for_each(|place| *place = limit);
                limits
            };
            limits = with(largest(most, |limit| fits(&with(limit))));
        }
        Ok(limits)
    }

    fn element(&self, value: usize) -> NumberType {
        self.elements.get(value).copied().unwrap_or_default()
    }

    /// Returns true if an operator computes integers of requests in FP32. Others may be fused with it.
    fn computes_in_fp32(&self) -> bool {
        let mut requested = vec![false; self.elements.len()];
        for (_, value) in &self.inputs {
            requested.iter_mut().skip(*value).take(1).for_each(|place| *place = true);
        }
        for node in &self.nodes {
            let is_requested = |value: &&usize| requested.get(**value).copied().unwrap_or_default();
            let read: Vec<NumberType> =
                node.inputs.iter().flatten().filter(is_requested).map(|value| self.element(*value)).collect();
            if node.operator.is_in_fp32 && read.iter().any(|element| element.is_wide()) {
                return true;
            }
            if !read.is_empty() && !node.operator.is_of_shapes() {
                for output in &node.outputs {
                    requested.iter_mut().skip(*output).take(1).for_each(|place| *place = true);
                }
            }
        }
        false
    }

    /// Checks every value, with inputs of these limits.
    fn check(&self, limits: &[i64], end: i64) -> Result<(), String> {
        let unknown = Range { low: i32::MIN.into(), high: INT32_END, is_requested: false };
        let mut ranges = vec![unknown; self.elements.len()];
        for ((_, value), limit) in self.inputs.iter().zip(limits) {
            let (low, high) = self.element(*value).range(*limit);
            set(&mut ranges, *value, Range { low, high, is_requested: true });
        }
        for node in &self.nodes {
            let inputs: Vec<Option<(NumberType, Range)>> = node
                .inputs
                .iter()
                .map(|value| value.and_then(|value| Some((self.element(value), ranges.get(value).copied()?))))
                .collect();
            let is_requested = inputs.iter().flatten().any(|(_, range)| range.is_requested);
            let is_requested = is_requested && !node.operator.is_of_shapes();
            let refuse = |why: String| format!("{}: {why}", node.described);
            let node_end = if node.operator.is_in_fp32 { FP32_END } else { end };
            if is_requested && node.operator.computes() {
                self.check_operands(node, &inputs, node_end).map_err(refuse)?;
            }
            for (place, output) in node.outputs.iter().enumerate() {
                let element = self.element(*output);
                let bounds = node.operator.bounds_of(place, element, &inputs);
                let range = result(&node.operator, element, bounds, is_requested, node_end).map_err(refuse)?;
                set(&mut ranges, *output, range);
            }
        }
        Ok(())
    }

    fn check_operands(&self, node: &Node, inputs: &[Option<(NumberType, Range)>], end: i64) -> Result<(), String> {
        let checked = if node.operator.checks_first { 1 } else { inputs.len() };
        for (element, range) in inputs.iter().take(checked).flatten() {
            // Numbers about shapes are small, though their bounds are not known.
            if !range.is_requested && node.operator.bounds == Bounds::Unknown {
                continue;
            }
            if element.is_wide() && (end < INT32_END || element.is_beyond()) && !is_within(range.low, range.high, end) {
                return Err(beyond("it reads", end));
            }
        }
        let is_double = |value: &usize| self.element(*value) == NumberType::Double;
        match node.inputs.iter().flatten().chain(&node.outputs).any(is_double) {
            true => Err("FP64 is computed in FP32".to_owned()),
            false => Ok(()),
        }
    }
}

/// The largest number from 1 to `most` for which a condition holds, which it does for 1.
fn largest(most: i64, holds: impl Fn(i64) -> bool) -> i64 {
    let (mut low, mut high) = (1.min(most), most);
    while low < high {
        let middle = low + (high - low + 1) / 2;
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

fn set(ranges: &mut [Range], value: usize, range: Range) {
    ranges.iter_mut().skip(value).take(1).for_each(|place| *place = range);
}

fn is_within(low: i64, high: i64, end: i64) -> bool {
    low >= -end - i64::from(end == INT32_END) && high <= end
}

fn beyond(does: &str, end: i64) -> String {
    let (bits, how) = if end == INT32_END { (32, "in 32 bits") } else { (24, "in FP32") };
    format!("{does} integers that depend on the request and may be beyond {bits} bits, and they are computed {how}")
}

/// The range of a result.
fn result(
    operator: &IntegerOperator,
    element: NumberType,
    bounds: Option<(i64, i64)>,
    is_requested: bool,
    end: i64,
) -> Result<Range, String> {
    let NumberType::Integer(least, most) = element else {
        return Ok(Range { low: i32::MIN.into(), high: INT32_END, is_requested });
    };
    let (low, high) = bounds.unwrap_or((i64::MIN, i64::MAX));
    let (narrow_low, narrow_high) = (least.max(i32::MIN.into()), most.min(INT32_END));
    let fits = low >= narrow_low && high <= narrow_high;
    let kept =
        Range { low: low.clamp(narrow_low, narrow_high), high: high.clamp(narrow_low, narrow_high), is_requested };
    if !is_requested {
        // About shapes, which no machine has memory for beyond 32 bits, or a constant, whose bounds are its own.
        return Ok(if operator.is_constant() { Range { low, high, is_requested } } else { kept });
    }
    if !operator.computes() {
        return if fits { Ok(kept) } else { Err(beyond("it gives", INT32_END)) };
    }
    // Integers of 16 and 32 bits wrap as they should, and those of 8 bits saturate.
    let wraps = matches!(most, 32_767 | 65_535) || (most == INT32_END && end == INT32_END);
    match (fits || wraps) && (wraps || !element.is_wide() || is_within(low, high, end)) {
        true => Ok(if fits { kept } else { Range { low: narrow_low, high: narrow_high, is_requested } }),
        false => Err(beyond("it gives", if element.is_wide() { end } else { INT32_END })),
    }
}
