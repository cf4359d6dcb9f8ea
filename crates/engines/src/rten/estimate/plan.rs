//! A graph with its names resolved once, at load, so that a walk through it needs no look-ups: each
//! value has a slot, also in the graphs inside operators, which see the values around them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::onnx::graph::{OnnxGraph, OnnxNode};
use model::onnx::work::sizing_inputs;

use super::elements::{self, FOLLOWED};
use super::facts::TensorFacts;
use super::rules;

/// A graph that can be walked through.
pub(super) struct GraphPlan {
    pub(super) root: PlannedGraph,
    /// The known facts about each slot before any run: constants.
    pub(super) constants: Vec<Option<TensorFacts>>,
    /// The slots of the graph's inputs by name.
    pub(super) inputs: BTreeMap<String, usize>,
    /// The inputs whose values sizes are computed from.
    pub(super) sizing: BTreeSet<usize>,
}

/// One graph, with slots for names.
pub(super) struct PlannedGraph {
    pub(super) nodes: Vec<PlannedNode>,
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<usize>,
    /// The outputs that its own operators make.
    pub(super) made_outputs: Vec<usize>,
}

/// One operator, with slots for names.
pub(super) struct PlannedNode {
    pub(super) node: OnnxNode,
    pub(super) inputs: Vec<Option<usize>>,
    pub(super) outputs: Vec<Option<usize>>,
    /// The values that nothing reads after it.
    pub(super) frees: Vec<usize>,
    /// The graphs inside it by the names of their attributes.
    pub(super) graphs: BTreeMap<String, PlannedGraph>,
}

impl GraphPlan {
    /// Resolves the names of a graph. A request gives the inputs of these names; others are constants.
    ///
    /// # Errors
    /// The reason, if the graph reads a value that nothing makes, or repeats a part of it as often
    /// as a request says.
    pub(super) fn new<'a>(graph: &OnnxGraph, given: impl Iterator<Item = &'a String>) -> Result<Self, String> {
        let mut planner = Planner::default();
        let (mut root, _) = planner.plan(graph)?;
        let inputs: BTreeMap<_, _> = graph.inputs.iter().cloned().zip(root.inputs.iter().copied()).collect();
        let given: BTreeSet<usize> = given.filter_map(|name| inputs.get(name)).copied().collect();
        fold_constants(&mut root, &mut planner.constants, &given);
        find_loops(&root, &mut given.clone())?;
        let mut sizing = BTreeSet::new();
        find_sizing(&root, &mut sizing);
        sizing.retain(|slot| root.inputs.contains(slot));
        Ok(Self { root, constants: planner.constants, inputs, sizing })
    }
}

impl PlannedNode {
    /// The name by which a person finds the operator in the file.
    pub(super) fn label(&self) -> String {
        let output = self.node.outputs.iter().find(|name| !name.is_empty()).map_or("", String::as_str);
        format!("operator '{}', which makes '{output}',", self.node.operator)
    }

    fn slots<'a>(&'a self, names: impl Iterator<Item = &'a str>) -> impl Iterator<Item = usize> {
        names.filter_map(|wanted| {
            let index = self.node.inputs.iter().position(|name| name == wanted)?;
            self.inputs.get(index).copied().flatten()
        })
    }
}

#[derive(Default)]
struct Planner {
    scopes: Vec<HashMap<String, usize>>,
    constants: Vec<Option<TensorFacts>>,
}

impl Planner {
    fn slot(&mut self, name: &str, constant: Option<TensorFacts>) -> usize {
        let slot = self.constants.len();
        self.constants.push(constant);
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), slot);
        }
        slot
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        found.copied().ok_or_else(|| format!("it reads '{name}', which nothing makes"))
    }

    /// Plans a graph. Also returns the values that it reads of the graphs around it.
    fn plan(&mut self, graph: &OnnxGraph) -> Result<(PlannedGraph, BTreeSet<usize>), String> {
        let base = self.constants.len();
        self.scopes.push(HashMap::new());
        for (name, tensor) in &graph.constants {
            self.slot(name, Some(elements::of_tensor(tensor)));
        }
        for (name, shape) in &graph.left_out {
            self.slot(name, Some(TensorFacts::of(elements::exact_sizes(shape))));
        }
        let own = |planner: &Self, name: &str| planner.scopes.last().and_then(|scope| scope.get(name)).copied();
        let inputs = graph.inputs.iter().map(|name| own(self, name).unwrap_or_else(|| self.slot(name, None))).collect();
        let first_made = self.constants.len();
        let (mut nodes, mut uses) = (Vec::with_capacity(graph.nodes.len()), Vec::with_capacity(graph.nodes.len()));
        for node in &graph.nodes {
            let (planned, reads) = self.plan_node(node)?;
            nodes.push(planned);
            uses.push(reads);
        }
        let outputs = graph.outputs.iter().map(|name| self.find(name)).collect::<Result<Vec<_>, _>>()?;
        self.scopes.pop();
        free_after_last_use(&mut nodes, &uses, &outputs);
        let reads = uses.into_iter().flatten().chain(outputs.iter().copied()).filter(|slot| *slot < base).collect();
        let made_outputs = outputs.iter().copied().filter(|slot| *slot >= first_made).collect();
        Ok((PlannedGraph { nodes, inputs, outputs, made_outputs }, reads))
    }

    /// Plans an operator. Also returns the values that it and the graphs inside it read.
    fn plan_node(&mut self, node: &OnnxNode) -> Result<(PlannedNode, BTreeSet<usize>), String> {
        let find = |name: &String| if name.is_empty() { Ok(None) } else { self.find(name).map(Some) };
        let inputs = node.inputs.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let mut reads: BTreeSet<usize> = inputs.iter().flatten().copied().collect();
        let mut graphs = BTreeMap::new();
        for (name, graph) in node.graphs() {
            let (planned, inner) = self.plan(graph)?;
            reads.extend(inner);
            graphs.insert(name.to_owned(), planned);
        }
        let slot = |name: &String| if name.is_empty() { None } else { Some(self.slot(name, None)) };
        let outputs = node.outputs.iter().map(slot).collect();
        Ok((PlannedNode { node: node.clone(), inputs, outputs, frees: Vec::new(), graphs }, reads))
    }
}

fn free_after_last_use(nodes: &mut [PlannedNode], uses: &[BTreeSet<usize>], outputs: &[usize]) {
    let mut last_use = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        last_use.extend(node.outputs.iter().flatten().map(|slot| (*slot, index)));
    }
    for (index, reads) in uses.iter().enumerate() {
        for slot in reads {
            last_use.entry(*slot).and_modify(|last| *last = index);
        }
    }
    for (slot, index) in last_use {
        if let Some(node) = nodes.get_mut(index).filter(|_| !outputs.contains(&slot)) {
            node.frees.push(slot);
        }
    }
}

/// Takes out the operators that the engine computes when it loads the graph: those that read
/// constants only.
fn fold_constants(graph: &mut PlannedGraph, constants: &mut [Option<TensorFacts>], given: &BTreeSet<usize>) {
    graph.nodes.retain(|planned| {
        let is_random = planned.node.operator.starts_with("Random") || planned.node.operator == "Multinomial";
        if is_random || planned.inputs.is_empty() || !planned.graphs.is_empty() {
            return true;
        }
        let constant = |slot: usize| constants.get(slot)?.as_ref().filter(|_| !given.contains(&slot));
        let inputs = planned.inputs.iter().map(|slot| slot.map(constant).map_or(Some(None), |facts| facts.map(Some)));
        let Some(inputs) = inputs.collect::<Option<Vec<_>>>() else { return true };
        let Ok(made) = rules::apply(&planned.node, &inputs) else { return true };
        for (slot, facts) in planned.outputs.iter().zip(made.outputs) {
            if let Some(place) = slot.and_then(|slot| constants.get_mut(slot)) {
                *place = Some(facts);
            }
        }
        false
    });
}

/// Refuses loops whose length a request can choose freely: a run of this engine cannot be stopped.
fn find_loops(graph: &PlannedGraph, from_values: &mut BTreeSet<usize>) -> Result<(), String> {
    for planned in &graph.nodes {
        let operator = planned.node.operator.as_str();
        let is_from_values = planned.inputs.iter().flatten().any(|slot| from_values.contains(slot));
        if operator == "Loop" {
            let Some(rounds) = planned.inputs.first().copied().flatten() else {
                return Err(format!("{} repeats as long as a condition holds", planned.label()));
            };
            if from_values.contains(&rounds) {
                return Err(format!("{} repeats as often as the values of a request say", planned.label()));
            }
        }
        for inner in planned.graphs.values() {
            // The number of a round is as bounded as the rounds; values that rounds carry come from
            // the inputs.
            from_values.extend(inner.inputs.iter().skip(1).filter(|_| is_from_values));
            find_loops(inner, from_values)?;
        }
        if !matches!(operator, "Shape" | "Size") && (is_from_values || !planned.graphs.is_empty()) {
            from_values.extend(planned.outputs.iter().flatten());
        }
    }
    Ok(())
}

/// Finds the values that sizes are computed from, from the end of a graph to its start.
fn find_sizing(graph: &PlannedGraph, wanted: &mut BTreeSet<usize>) {
    for planned in graph.nodes.iter().rev() {
        let node = &planned.node;
        let is_wanted = planned.outputs.iter().flatten().any(|slot| wanted.contains(slot));
        for inner in planned.graphs.values() {
            wanted.extend(inner.outputs.iter().filter(|_| is_wanted));
            find_sizing(inner, wanted);
        }
        let operator = node.operator.as_str();
        let all = || planned.inputs.iter().copied().flatten();
        let at = |index: usize| planned.inputs.get(index).copied().flatten();
        wanted.extend(planned.slots(sizing_inputs(node)));
        match operator {
            "Reshape" | "Split" | "Squeeze" | "TopK" | "Unsqueeze" => wanted.extend(at(1)),
            "NonMaxSuppression" => wanted.extend(at(2)),
            "Pad" | "Slice" => wanted.extend((1..planned.inputs.len()).filter_map(at)),
            "If" | "Loop" => wanted.extend(all()),
            _ if operator.starts_with("Reduce") => wanted.extend(at(1)),
            _ => {}
        }
        if is_wanted && FOLLOWED.contains(&operator) {
            wanted.extend(all());
        }
    }
}
