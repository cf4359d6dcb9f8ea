//! Rewrites an ONNX graph into one that the embedded engine computes correctly, or refuses it.
//! Called when a model is loaded. The engine reads some operators, versions and datatypes as others
//! than ONNX says, or fails at each request: such an operator is replaced by a few others that give
//! the same numbers, or else refused by name. Opens no file.

mod decompose;
mod inference;
mod integer;
mod operator;
mod rule;
mod value;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use prost::Message;

use base::error::Error;
use base::limits::GRAPH_NODES_MAX;
use model::onnx::message::{AttributeMessage, GraphMessage, ModelMessage, NodeMessage, TensorMessage, element};

pub(super) use integer::BEYOND;

use super::datatype::ALTERNATIVE;
use operator::{OPSET_MAX, OperandType, Operands, Operator};
use value::GraphValue;

/// The result of lowering a file.
pub(super) struct LoweredModel {
    /// The file that the engine is to read; `None` if it may read the original.
    pub(super) file: Option<Vec<u8>>,
    /// The outputs of the graph, in its order: names and ONNX's element types.
    pub(super) outputs: Vec<(String, i32)>,
}

/// Reads the bytes of a constant in another file: its location, offset and length.
pub(super) type ExternalReader<'a> = &'a dyn Fn(&str, u64, Option<u64>) -> Result<Vec<u8>, Error>;

/// Checks a file, and rewrites it if necessary.
///
/// # Errors
/// `InvalidArgument` if it is not ONNX, `Unsupported` with node, operator and reason if the engine
/// would not compute it correctly.
pub(super) fn lower(file: Bytes, external: ExternalReader<'_>) -> Result<LoweredModel, Error> {
    let mut model = ModelMessage::read(file)?;
    let is_own = |domain: &str| domain.is_empty() || domain == "ai.onnx";
    let version = model.opset_import.iter().find(|set| is_own(&set.domain)).map_or(1, |set| set.version);
    if version > OPSET_MAX {
        return Err(refusal(format!("it needs version {version} of ONNX's operators, and this knows {OPSET_MAX}")));
    }
    let graph =
        model.graph.as_mut().ok_or_else(|| Error::invalid("not an ONNX file that can be used: it has no graph"))?;
    let mut lowering = Lowering {
        version,
        external,
        values: HashMap::new(),
        read: HashSet::new(),
        stepped: HashSet::new(),
        out: Vec::new(),
        fresh: 0,
        nodes: 0,
    };
    let is_changed = lowering.lower_graph(graph, true)?;
    let outputs = graph.output.iter().map(|output| (output.name.clone(), output.tensor().map_or(0, |(kind, _)| kind)));
    let outputs = outputs.collect();
    Ok(LoweredModel { file: is_changed.then(|| model.encode_to_vec()), outputs })
}

fn refusal(reason: String) -> Error {
    Error::unsupported(format!("the embedded engine cannot run it: {reason}; {ALTERNATIVE}"))
}

/// The walk over the graphs of one file. Names are unique in a file, nested graphs included.
struct Lowering<'a> {
    version: i64,
    external: ExternalReader<'a>,
    values: HashMap<String, GraphValue>,
    /// The names that an operator reads, or that are outputs of a graph.
    read: HashSet<String>,
    /// The names that an operator with steps reads, for which a slightly smaller value is another
    /// number.
    stepped: HashSet<String>,
    /// The operators of the current graph that are done.
    out: Vec<NodeMessage>,
    /// The number of names that were made up.
    fresh: usize,
    /// The number of operators so far.
    nodes: usize,
}

/// A result that is computed in a wider datatype, and is cast back.
struct WidenedResult {
    /// The name of the wide value.
    wide: String,
    /// The name of the value in its own datatype.
    name: String,
    /// ONNX's number of that datatype.
    kind: i32,
}

impl Lowering<'_> {
    /// Rewrites a graph in place. Returns true if anything changed.
    fn lower_graph(&mut self, graph: &mut GraphMessage, is_outermost: bool) -> Result<bool, Error> {
        if !graph.sparse_initializer.is_empty() {
            return Err(refusal("it has sparse constants".to_owned()));
        }
        self.read_declarations(graph, is_outermost)?;
        for name in graph.node.iter().flat_map(|node| &node.input).chain(graph.output.iter().map(|output| &output.name))
        {
            self.read.insert(name.clone());
        }
        let steps = graph.node.iter().filter(|node| {
            matches!(node.op_type.as_str(), "Cast" | "CastLike" | "Ceil" | "Floor" | "Mod" | "QuantizeLinear" | "Round")
        });
        self.stepped.extend(steps.flat_map(|node| node.input.iter().cloned()));
        let outer = std::mem::take(&mut self.out);
        let mut is_changed = false;
        for node in std::mem::take(&mut graph.node) {
            self.nodes += 1;
            if self.nodes > GRAPH_NODES_MAX {
                return Err(refusal(format!("it has more than {GRAPH_NODES_MAX} operators")));
            }
            is_changed |= self.lower_node(node)?;
        }
        graph.node = std::mem::replace(&mut self.out, outer);
        for output in &graph.output {
            if self.values.get(&output.name).is_some_and(GraphValue::is_beyond) {
                return Err(refusal(format!("output '{}' has INT64 values beyond 32 bits", output.name)));
            }
        }
        Ok(is_changed)
    }

    /// Reads the file's declarations of the values of a graph.
    fn read_declarations(&mut self, graph: &GraphMessage, is_outermost: bool) -> Result<(), Error> {
        for declared in graph.value_info.iter().chain(&graph.output).chain(&graph.input) {
            if let Some((element, dims)) = declared.tensor() {
                self.values.entry(declared.name.clone()).or_insert_with(|| GraphValue::declared(element, dims));
            }
        }
        if is_outermost {
            for input in &graph.input {
                if let Some(value) = self.values.get_mut(&input.name) {
                    value.is_requested = true;
                }
            }
        }
        for tensor in &graph.initializer {
            let value = self.constant(tensor)?;
            self.values.insert(tensor.name.clone(), value);
        }
        Ok(())
    }

    fn constant(&self, tensor: &TensorMessage) -> Result<GraphValue, Error> {
        if tensor.data_type != element::INT64 || !tensor.is_external() {
            return Ok(GraphValue::constant(tensor, &tensor.longs()));
        }
        let (location, offset, length) = tensor.place();
        let bytes = (self.external)(location, offset, length)?;
        let longs: Vec<_> = bytes.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
        Ok(GraphValue::constant(tensor, &longs))
    }

    /// Appends an operator, or its replacement. Returns true if it was replaced.
    fn lower_node(&mut self, mut node: NodeMessage) -> Result<bool, Error> {
        let described = describe(&node);
        let refuse = |reason: String| refusal(format!("{described}: {reason}"));
        let operator = Operator::find(&node, self.version).map_err(refuse)?;
        let mut is_changed = self.lower_branches(&mut node)?;
        self.check_values(&node).map_err(refuse)?;
        let results = self.results(&node, operator)?.map_err(refuse)?;
        let (before, original) = (self.out.len(), node.clone());
        let narrow = self.widen(&mut node, operator).map_err(refuse)?;
        let mut guarded = None;
        if results.first().is_some_and(|value| value.is_guarded)
            && let Some(output) = node.output.first_mut()
        {
            let result = self.fresh_name();
            *output = result.clone();
            guarded = Some(result);
        }
        (operator.rule)(self, node).map_err(refuse)?;
        self.narrow_again(narrow);
        if let Some(result) = guarded {
            integer::guard(self, &original, &result);
        }
        is_changed |= self.out.get(before..) != Some(std::slice::from_ref(&original));
        for (name, value) in original.output.into_iter().zip(results) {
            self.values.insert(name, value);
        }
        Ok(is_changed)
    }

    /// The graphs of `If` and `Loop`, before the operator itself.
    fn lower_branches(&mut self, node: &mut NodeMessage) -> Result<bool, Error> {
        let mut is_changed = false;
        let inputs = node.input.clone();
        let is_loop = node.op_type == "Loop";
        for attribute in &mut node.attribute {
            let Some(graph) = &mut attribute.g else { continue };
            if is_loop {
                self.declare_carried(graph, &inputs);
            }
            is_changed |= self.lower_graph(graph, false)?;
        }
        Ok(is_changed)
    }

    /// Declares the known facts about a loop body's inputs: the round, the condition, and the
    /// values carried from round to round.
    fn declare_carried(&mut self, body: &GraphMessage, inputs: &[String]) {
        let is_requested = self.reads_request(body);
        for (index, input) in body.input.iter().enumerate() {
            let first = inputs.get(index).and_then(|name| self.values.get(name));
            let mut value = match input.tensor() {
                Some((element, dims)) => GraphValue::declared(element, dims),
                None => GraphValue::default(),
            };
            if value.element == 0 {
                value.element = first.map_or(0, |first| first.element);
            }
            // A value that a round adds to is not known to stay small, unless it is only about
            // shapes.
            value.is_requested = index >= 2 && (is_requested || first.is_none_or(|first| first.is_requested));
            if index == 0 {
                value = GraphValue::declared(element::INT64, value.dims).within(0, integer::COUNT_MAX);
            }
            self.values.insert(input.name.clone(), value);
        }
    }

    /// Returns true if a nested graph reads values that depend on a request from the graphs around
    /// it.
    fn reads_request(&self, graph: &GraphMessage) -> bool {
        let is_requested = |name: &String| self.values.get(name).is_some_and(|value| value.is_requested);
        graph.node.iter().any(|node| {
            let mut graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
            node.input.iter().any(is_requested) || graphs.any(|graph| self.reads_request(graph))
        })
    }

    /// Casts 8-bit operands for an operator that the engine has on wider datatypes only. Returns the casts that its
    /// results need.
    fn widen(&mut self, node: &mut NodeMessage, operator: &Operator) -> Result<Vec<WidenedResult>, String> {
        let wide = match operator.takes {
            OperandType::Number => element::INT32,
            OperandType::Moved => element::FLOAT,
            OperandType::Any | OperandType::Float | OperandType::Eight => 0,
        };
        let (first, last) = match operator.operands {
            Operands::All => (0, node.input.len()),
            Operands::First => (0, 1),
            Operands::Rest => (1, node.input.len()),
        };
        let (mut from, mut results) = (0, Vec::new());
        for index in first..last.min(node.input.len()) {
            let Some(name) = node.read_input(index).map(str::to_owned) else { continue };
            let kind = self.element(&name);
            if matches!(kind, element::UINT8 | element::INT8) && wide != 0 {
                let cast = self.add("Cast", &[&name], vec![AttributeMessage::integer("to", wide.into())]);
                let value = self.values.get(&name).cloned().unwrap_or_default();
                self.values.insert(cast.clone(), GraphValue { element: wide, ..value });
                if let Some(place) = node.input.get_mut(index) {
                    *place = cast;
                }
                from = kind;
            } else {
                operator.takes.check(&name, kind)?;
            }
        }
        if from != 0 && !operator.gives_other {
            for output in &mut node.output {
                let cast = self.fresh_name();
                let name = std::mem::replace(output, cast.clone());
                results.push(WidenedResult { wide: cast, name, kind: from });
            }
        }
        Ok(results)
    }

    fn narrow_again(&mut self, results: Vec<WidenedResult>) {
        for WidenedResult { wide, name, kind } in results {
            self.add_as("Cast", &[&wide], vec![AttributeMessage::integer("to", kind.into())], &name);
        }
    }

    /// Refuses an operator that reads numbers which the engine does not have.
    fn check_values(&self, node: &NodeMessage) -> Result<(), String> {
        for (index, name) in node.input.iter().enumerate() {
            let Some(value) = self.values.get(name) else { continue };
            if value.is_beyond() && !integer::may_saturate(&node.op_type, index) {
                return Err(format!("'{name}' has INT64 values beyond 32 bits, in which the engine computes"));
            }
            let is_constant_cast = node.op_type == "Cast" && !value.is_requested;
            if value.element == element::DOUBLE && !is_constant_cast {
                return Err(format!("'{name}' is FP64, which the engine would compute in 32 bits"));
            }
        }
        Ok(())
    }

    /// The element type of a value; 0 if it is not known.
    fn element(&self, name: &str) -> i32 {
        self.values.get(name).map_or(0, |value| value.element)
    }

    /// The dimensions of a value; `None` if their number is not known.
    fn dims(&self, name: Option<&str>) -> Option<&[i64]> {
        self.values.get(name?)?.dims.as_deref()
    }

    /// The elements of a small constant of integers.
    fn integers(&self, name: Option<&str>) -> Option<&[i64]> {
        self.values.get(name?)?.integers.as_deref()
    }

    fn fresh_name(&mut self) -> String {
        self.fresh += 1;
        format!("deuteron/{}", self.fresh)
    }

    /// Appends an operator of one output, and returns the name of that.
    fn add(&mut self, operator: &str, inputs: &[&str], attributes: Vec<AttributeMessage>) -> String {
        let output = self.fresh_name();
        self.add_as(operator, inputs, attributes, &output);
        output
    }

    /// Appends an operator of this output.
    fn add_as(&mut self, operator: &str, inputs: &[&str], attribute: Vec<AttributeMessage>, output: &str) {
        self.out.push(NodeMessage {
            input: inputs.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            op_type: operator.to_owned(),
            attribute,
            ..NodeMessage::default()
        });
    }

    /// Appends a constant of INT64 with these dimensions.
    fn add_integers(&mut self, dims: &[i64], values: &[i64]) -> String {
        let tensor = TensorMessage {
            dims: dims.to_vec(),
            data_type: element::INT64,
            int64_data: values.to_vec(),
            ..TensorMessage::default()
        };
        self.add("Constant", &[], vec![AttributeMessage::tensor("value", tensor)])
    }

    /// Appends a constant of one number in a datatype, FP32 or an integer.
    fn add_number(&mut self, kind: i32, value: f32) -> String {
        let mut tensor =
            TensorMessage { data_type: element::FLOAT, float_data: vec![value], ..TensorMessage::default() };
        if !matches!(kind, element::FLOAT | element::FLOAT16 | 0) {
            #[expect(clippy::cast_possible_truncation, reason = "rules only ask for small whole numbers")]
            let int32_data = vec![value as i32];
            tensor = TensorMessage { data_type: element::INT32, int32_data, ..TensorMessage::default() };
        }
        self.add("Constant", &[], vec![AttributeMessage::tensor("value", tensor)])
    }
}

fn describe(node: &NodeMessage) -> String {
    let operator = match node.domain.as_str() {
        "" | "ai.onnx" => node.op_type.clone(),
        domain => format!("{domain}/{}", node.op_type),
    };
    match (node.name.as_str(), node.output.first()) {
        ("", Some(output)) => format!("operator {operator} that gives '{output}'"),
        (name, _) => format!("node '{name}', operator {operator}"),
    }
}
