//! The known facts about an operator's results from its inputs: datatype, dimensions, bounds, and
//! dependence on a request.

use base::error::Error;
use base::limits::RANK_MAX;
use model::onnx::message::{NodeMessage, TensorMessage, element};

use super::operator::Operator;
use super::value::GraphValue;
use super::{Lowering, integer};

impl Lowering<'_> {
    /// The known facts about an operator's results. The inner error is a reason against the
    /// operator.
    pub(super) fn results(
        &self,
        node: &NodeMessage,
        operator: &Operator,
    ) -> Result<Result<Vec<GraphValue>, String>, Error> {
        if node.op_type == "Constant" {
            return Ok(self.constant_node(node)?.map(|value| vec![value]));
        }
        let inputs: Vec<GraphValue> =
            node.input.iter().map(|name| self.values.get(name).cloned().unwrap_or_default()).collect();
        let mut results = Vec::with_capacity(node.output.len());
        for (index, name) in node.output.iter().enumerate() {
            let declared = self.values.get(name);
            let mut value = GraphValue::declared(
                self.result_element(node, index, &inputs),
                declared.and_then(|value| value.dims.clone()).or_else(|| result_dims(node, operator, &inputs)),
            );
            if value.element == 0 {
                value.element = declared.map_or(0, |value| value.element);
            }
            value.is_requested = self.is_requested(node, &inputs);
            if value.element == element::DOUBLE && !matches!(node.op_type.as_str(), "Identity") {
                return Ok(Err("it gives FP64, which the engine would compute in 32 bits".to_owned()));
            }
            if value.element == element::INT64 {
                let bounds = integer::bounds(self, node, &inputs);
                let (low, high) = bounds.unwrap_or((i64::MIN, i64::MAX));
                let is_moved = integer::may_saturate(&node.op_type, 0);
                value = value.within(low, high);
                if value.is_beyond() && value.is_requested && !integer::is_guarded(&node.op_type) {
                    let reason = "its INT64 results depend on numbers of the request and may be beyond 32 bits, in \
                                  which the engine computes";
                    return Ok(Err(reason.to_owned()));
                }
                // The result of constants alone is known: nothing checks it later.
                let is_known = bounds.is_some() && !value.is_requested && is_of_constants(node, &inputs);
                if value.is_beyond() && !is_moved && !is_known {
                    // Checked by each run; or about shapes, which no machine has memory for beyond 32 bits.
                    value.is_guarded = value.is_requested;
                    value = value.within(i32::MIN.into(), i32::MAX.into());
                }
            }
            results.push(value);
        }
        Ok(Ok(results))
    }

    fn constant_node(&self, node: &NodeMessage) -> Result<Result<GraphValue, String>, Error> {
        if let Some(tensor) = node.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
            return self.constant(tensor).map(Ok);
        }
        let longs = |dims: Vec<i64>, longs: &[i64]| {
            GraphValue::constant(&TensorMessage { dims, data_type: element::INT64, ..TensorMessage::default() }, longs)
        };
        let size = |count: usize| vec![i64::try_from(count).unwrap_or(-1)];
        let attribute = node.attribute.first();
        let value = match attribute.map(|attribute| (attribute.name.as_str(), attribute)) {
            Some(("value_int", attribute)) => longs(vec![], &[attribute.i.unwrap_or(0)]),
            Some(("value_ints", attribute)) => longs(size(attribute.ints.len()), &attribute.ints),
            Some(("value_float", _)) => GraphValue::declared(element::FLOAT, Some(vec![])),
            Some(("value_floats", attribute)) => {
                GraphValue::declared(element::FLOAT, Some(size(attribute.floats.len())))
            }
            _ => return Ok(Err("it is no tensor of numbers".to_owned())),
        };
        Ok(Ok(value))
    }

    fn is_requested(&self, node: &NodeMessage, inputs: &[GraphValue]) -> bool {
        if matches!(node.op_type.as_str(), "Shape" | "Size") {
            return false;
        }
        let of_graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
        let mut outputs = of_graphs.flat_map(|graph| &graph.output);
        inputs.iter().any(|value| value.is_requested)
            || outputs.any(|output| self.values.get(&output.name).is_some_and(|value| value.is_requested))
    }

    fn result_element(&self, node: &NodeMessage, index: usize, inputs: &[GraphValue]) -> i32 {
        let of = |index: usize| inputs.get(index).map_or(0, |value| value.element);
        let number = |name: &str, default| i32::try_from(node.integer(name, i64::from(default))).unwrap_or(0);
        match node.op_type.as_str() {
            "And" | "Equal" | "Greater" | "GreaterOrEqual" | "IsInf" | "IsNaN" | "Less" | "LessOrEqual" | "Not"
            | "Or" | "Xor" => element::BOOL,
            "ArgMax" | "ArgMin" | "NonZero" | "Shape" | "Size" | "SequenceLength" => element::INT64,
            "TopK" | "MaxPool" if index == 1 => element::INT64,
            "Dropout" if index == 1 => element::BOOL,
            "Cast" | "BitCast" => number("to", 0),
            "CastLike" | "Where" | "DequantizeLinear" => of(1),
            "OneHot" => of(2),
            "ConstantOfShape" => {
                let value = node.attribute("value").and_then(|attribute| attribute.t.as_ref());
                value.map_or(element::FLOAT, |tensor| tensor.data_type)
            }
            "EyeLike" | "RandomNormalLike" | "RandomUniformLike" => number("dtype", of(0)),
            "RandomNormal" | "RandomUniform" => number("dtype", element::FLOAT),
            "Multinomial" => number("dtype", element::INT32),
            "QuantizeLinear" => match number("output_dtype", 0) {
                0 if node.read_input(2).is_some() => of(2),
                0 => element::UINT8,
                kind => kind,
            },
            "DynamicQuantizeLinear" => {
                if index == 1 {
                    element::FLOAT
                } else {
                    element::UINT8
                }
            }
            "ConvInteger" | "MatMulInteger" => element::INT32,
            "If" | "Loop" => {
                let graph = node.attribute.iter().find_map(|attribute| attribute.g.as_ref());
                let index = index + usize::from(node.op_type == "Loop");
                graph.and_then(|graph| graph.output.get(index)).map_or(0, |output| self.element(&output.name))
            }
            // The datatype of a sequence is that of its tensors.
            "SequenceEmpty" => number("dtype", element::FLOAT),
            "SequenceInsert" => of(1),
            _ => of(0),
        }
    }
}

/// The dimensions of a result if they follow from those of the inputs alone.
fn result_dims(node: &NodeMessage, operator: &Operator, inputs: &[GraphValue]) -> Option<Vec<i64>> {
    let of = |index: usize| inputs.get(index).and_then(|value| value.dims.clone());
    match node.op_type.as_str() {
        "Shape" => Some(vec![-1]),
        "Size" => Some(vec![]),
        "Conv" | "ConvTranspose" | "AveragePool" | "MaxPool" | "Pad" | "Resize" | "GlobalAveragePool"
        | "GlobalMaxPool" | "Transpose" | "Slice" | "Concat" => Some(vec![-1; of(0)?.len()]),
        "Gather" => Some(vec![-1; (of(0)?.len() + of(1)?.len()).checked_sub(1)?]),
        "Unsqueeze" => {
            let axes = if node.input.len() > 1 { inputs.get(1)?.integers.as_deref()? } else { node.integers("axes") };
            Some(vec![-1; of(0)?.len() + axes.len()])
        }
        "Flatten" | "Gemm" => Some(vec![-1, -1]),
        "Reshape" => {
            let rank = usize::try_from(*of(1)?.first()?).ok().filter(|rank| *rank <= RANK_MAX)?;
            Some(vec![-1; rank])
        }
        _ if operator.keeps_shape => of(0),
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "And" | "Or" | "Equal" | "Greater" | "Less" => {
            let (a, b) = (of(0)?, of(1)?);
            Some(vec![-1; a.len().max(b.len())])
        }
        _ => None,
    }
}

/// Returns true if an operator's results are those of constants, and not about shapes.
fn is_of_constants(node: &NodeMessage, inputs: &[GraphValue]) -> bool {
    let are_constants = !inputs.is_empty() && inputs.iter().all(|value| value.integers.is_some());
    are_constants || node.op_type == "ConstantOfShape"
}
