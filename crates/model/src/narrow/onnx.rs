//! The graph of an ONNX file, as far as integers matter.

use std::collections::HashMap;

use bytes::Bytes;

use super::{Graph, IntegerOperator, Node, NumberType};
use crate::onnx::message::{AttributeMessage, GraphMessage, ModelMessage, NodeMessage, TensorMessage, element};
use base::error::Error;

/// `TensorProto.DataType`, of the integers that [`element`] lacks.
const UINT16: i32 = 4;
const INT16: i32 = 5;
const UINT32: i32 = 12;
const UINT64: i32 = 13;

/// Reads a file.
///
/// # Errors
/// `InvalidArgument` if it is not ONNX.
pub fn read(file: Bytes) -> Result<Graph, Error> {
    let model = ModelMessage::read(file)?;
    let mut reader = Reader::default();
    if let Some(graph) = &model.graph {
        reader.read(graph);
    }
    Ok(reader.graph)
}

#[derive(Default)]
struct Reader<'a> {
    graph: Graph,
    values: HashMap<&'a str, usize>,
    declared: HashMap<&'a str, i32>,
}

impl<'a> Reader<'a> {
    fn read(&mut self, graph: &'a GraphMessage) {
        for value in graph.value_info.iter().chain(&graph.output).chain(&graph.input) {
            if let Some((kind, _)) = value.tensor() {
                self.declared.insert(&value.name, kind);
            }
        }
        for tensor in &graph.initializer {
            self.add_constant(&tensor.name, tensor);
        }
        for input in &graph.input {
            if !self.values.contains_key(input.name.as_str()) {
                let kind = input.tensor().map_or(0, |(kind, _)| kind);
                let value = self.add(&input.name, of_kind(kind));
                self.graph.inputs.push((vec![input.name.clone()], value));
            }
        }
        for node in &graph.node {
            self.read_node(node);
        }
    }

    fn add(&mut self, name: &'a str, element: NumberType) -> usize {
        let value = self.graph.elements.len();
        self.graph.elements.push(element);
        self.values.insert(name, value);
        value
    }

    fn add_constant(&mut self, name: &'a str, tensor: &TensorMessage) {
        let element = of_kind(tensor.data_type);
        let (low, high) = bounds(tensor).unwrap_or((i32::MIN.into(), i32::MAX.into()));
        let value = self.add(name, element);
        let operator = IntegerOperator::constant(low, high);
        self.graph.nodes.push(Node { described: name.to_owned(), operator, inputs: vec![], outputs: vec![value] });
    }

    fn read_node(&mut self, node: &'a NodeMessage) {
        let of_value = node.attribute("value").and_then(|attribute| attribute.t.as_ref());
        let constant = of_value.filter(|_| node.op_type == "Constant").zip(node.output.first());
        if let Some((tensor, name)) = constant {
            return self.add_constant(name, tensor);
        }
        let mut inputs: Vec<Option<usize>> =
            node.input.iter().map(|name| self.values.get(name.as_str()).copied()).collect();
        let elements: Vec<NumberType> = inputs
            .iter()
            .map(|value| value.and_then(|value| self.graph.elements.get(value).copied()).unwrap_or_default())
            .collect();
        let graphs: Vec<&GraphMessage> = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()).collect();
        graphs.iter().for_each(|graph| self.add_outer(graph, &mut inputs));
        let operator = self.operator(node, !graphs.is_empty());
        let mut outputs = Vec::with_capacity(node.output.len());
        for (index, name) in node.output.iter().enumerate() {
            let declared = self.declared.get(name.as_str()).map(|kind| of_kind(*kind));
            let inner = graphs.first().map(|graph| of_kind(inner_kind(graph, node, index)));
            let element = declared.filter(|element| *element != NumberType::Other).or(inner);
            outputs.push(self.add(name, element.unwrap_or_else(|| result_element(node, index, &elements))));
        }
        let described = match node.name.as_str() {
            "" => format!("operator {} that gives '{}'", node.op_type, node.output.first().map_or("", String::as_str)),
            name => format!("operator {} '{name}'", node.op_type),
        };
        self.graph.nodes.push(Node { described, operator, inputs, outputs });
    }

    fn operator(&self, node: &NodeMessage, has_graphs: bool) -> IntegerOperator {
        let is_own = matches!(node.domain.as_str(), "" | "ai.onnx") && !has_graphs;
        let integers = |attribute: &AttributeMessage| match attribute.name.as_str() {
            "value_int" => Some(vec![attribute.i.unwrap_or_default()]),
            "value_ints" => Some(attribute.ints.clone()),
            _ => None,
        };
        match node.op_type.as_str() {
            "Constant" => {
                let integers = node.attribute.first().and_then(integers).unwrap_or_default();
                let (low, high) = (integers.iter().min().copied(), integers.iter().max().copied());
                IntegerOperator::constant(low.unwrap_or_default(), high.unwrap_or_default())
            }
            "ConstantOfShape" => {
                let value = node.attribute("value").and_then(|attribute| attribute.t.as_ref());
                let (low, high) = value.and_then(bounds).unwrap_or_default();
                IntegerOperator::constant(low, high)
            }
            name if is_own => IntegerOperator::find(name, node.text("reduction", "none") != "none"),
            _ => IntegerOperator::find("", false),
        }
    }

    /// Adds the values that a nested graph reads from those around it.
    fn add_outer(&self, graph: &GraphMessage, inputs: &mut Vec<Option<usize>>) {
        for node in &graph.node {
            inputs.extend(node.input.iter().filter_map(|name| self.values.get(name.as_str()).copied()).map(Some));
            node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()).for_each(|graph| {
                self.add_outer(graph, inputs);
            });
        }
    }
}

/// The kind of a result of `If`, `Loop` or `Scan`: a loop's body also gives its condition.
fn inner_kind(graph: &GraphMessage, node: &NodeMessage, index: usize) -> i32 {
    let index = index + usize::from(node.op_type == "Loop");
    graph.output.get(index).and_then(|output| output.tensor()).map_or(element::INT64, |(kind, _)| kind)
}

fn of_kind(kind: i32) -> NumberType {
    match kind {
        element::FLOAT | element::FLOAT16 | 16 => NumberType::Float,
        element::DOUBLE => NumberType::Double,
        element::BOOL => NumberType::BOOL,
        element::UINT8 => NumberType::Integer(0, 255),
        element::INT8 => NumberType::Integer(-128, 127),
        UINT16 => NumberType::Integer(0, 65_535),
        INT16 => NumberType::Integer(-32_768, 32_767),
        element::INT32 => NumberType::INT32,
        UINT32 => NumberType::UINT32,
        element::INT64 => NumberType::INT64,
        UINT64 => NumberType::UINT64,
        _ => NumberType::Other,
    }
}

/// The least and greatest of a constant's integers, if the file itself has them.
fn bounds(tensor: &TensorMessage) -> Option<(i64, i64)> {
    if tensor.is_external() {
        return None;
    }
    let of = |numbers: &mut dyn Iterator<Item = i64>| {
        numbers.map(|number| (number, number)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    };
    match (tensor.data_type, &tensor.raw_data) {
        (element::INT64, _) => of(&mut tensor.longs().into_iter()),
        (element::INT32, Some(raw)) => of(&mut raw.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes).into())),
        (element::INT32, None) => of(&mut tensor.int32_data.iter().map(|number| i64::from(*number))),
        (UINT64, None) => of(&mut tensor.uint64_data.iter().map(|number| i64::try_from(*number).unwrap_or(i64::MAX))),
        (UINT32, Some(raw)) => of(&mut raw.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes).into())),
        _ => match of_kind(tensor.data_type) {
            NumberType::Integer(low, high) => Some((low, high)),
            _ => None,
        },
    }
}

/// The element type of a result that the file does not declare.
fn result_element(node: &NodeMessage, index: usize, inputs: &[NumberType]) -> NumberType {
    let of = |index: usize| inputs.get(index).copied().unwrap_or_default();
    let kind = |name: &str, default: i32| {
        let kind = i32::try_from(node.integer(name, default.into())).unwrap_or_default();
        of_kind(kind)
    };
    match node.op_type.as_str() {
        "And" | "Equal" | "Greater" | "GreaterOrEqual" | "IsInf" | "IsNaN" | "Less" | "LessOrEqual" | "Not" | "Or"
        | "Xor" => NumberType::BOOL,
        "ArgMax" | "ArgMin" | "NonMaxSuppression" | "NonZero" | "SequenceLength" | "Shape" | "Size" => {
            NumberType::INT64
        }
        "MaxPool" | "TopK" | "Unique" if index > 0 => NumberType::INT64,
        "Cast" | "BitCast" => kind("to", 0),
        "CastLike" | "Where" => of(1),
        "DequantizeLinear" => NumberType::Float,
        "OneHot" => of(2),
        "Constant" => match node.attribute.first().map(|attribute| attribute.name.as_str()) {
            Some("value_int" | "value_ints") => NumberType::INT64,
            _ => NumberType::Float,
        },
        "ConstantOfShape" => {
            let value = node.attribute("value").and_then(|attribute| attribute.t.as_ref());
            value.map_or(NumberType::Float, |tensor| of_kind(tensor.data_type))
        }
        "ConvInteger" | "MatMulInteger" => NumberType::INT32,
        "RandomNormal" | "RandomUniform" => kind("dtype", element::FLOAT),
        _ if !matches!(node.domain.as_str(), "" | "ai.onnx") => NumberType::Other,
        _ => of(0),
    }
}
