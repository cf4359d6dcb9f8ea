//! Finds out whether a graph of TensorFlow changes its own variables or tables when it runs.
//! OpenVINO silently leaves such operations out, and answers as if nothing had ever been assigned.
//! Field numbers are those of `graph.proto`, `node_def.proto`, `function.proto` and
//! `attr_value.proto`.

use std::collections::{BTreeMap, BTreeSet};

use crate::tensorflow::{ChosenSignature, SAVED_MODEL_FILE};
use base::error::Error;
use wire::protobuf::{WireError, fields};

/// The operation by which the signature of a SavedModel changes a state; `None` if it has no such
/// operation. Operations that restore variables from the checkpoint assign them too, but are not
/// reached from a signature.
///
/// # Errors
/// `InvalidArgument` if the file is not a SavedModel.
pub fn changed_by_signature(file: &[u8], chosen: &ChosenSignature) -> Result<Option<String>, Error> {
    let refuse = |_| Error::invalid(format!("{SAVED_MODEL_FILE} is cut short or not protobuf"));
    let places = chosen.signature.outputs.iter().map(|output| node_of(&output.place)).collect::<Vec<_>>();
    let mut changed = None;
    // `SavedModel`: `meta_graphs` (2); `MetaGraphDef`: `graph_def` (2). Several graphs are treated
    // as one.
    for field in fields(file) {
        let (2, value) = field.map_err(refuse)? else { continue };
        for field in fields(value.as_bytes().map_err(refuse)?) {
            let (2, graph) = field.map_err(refuse)? else { continue };
            let graph = GraphView::read(graph.as_bytes().map_err(refuse)?).map_err(refuse)?;
            changed = changed.or_else(|| graph.change(places.clone()));
        }
    }
    Ok(changed)
}

/// The operation by which a frozen graph changes a state; `None` if it has no such operation.
///
/// # Errors
/// `InvalidArgument` if the file is not a graph.
pub fn changed_by_graph(file: &[u8]) -> Result<Option<String>, Error> {
    let graph = GraphView::read(file).map_err(|_| Error::invalid("the graph is cut short or not protobuf"))?;
    Ok(graph.change(graph.nodes.keys().copied().collect()))
}

/// Returns true if an operation writes to a variable, a table, a queue or another resource that
/// outlives a run.
fn writes(operation: &str) -> bool {
    let begins = ["Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign"];
    let begins_too = ["Apply", "Scatter", "SparseApply", "LookupTableInsert", "LookupTableImport", "LookupTableRemove"];
    let others = ["Enqueue", "RngReadAndSkip", "RngSkip", "CountUpTo", "StackPush", "AccumulatorApplyGradient"];
    // These scatter into a new tensor.
    let is_pure = operation.starts_with("ScatterNd") && !operation.starts_with("ScatterNdUpdate");
    let is_named = begins.iter().chain(&begins_too).any(|begin| operation.starts_with(begin));
    (is_named && !is_pure) || others.iter().any(|part| operation.contains(part))
}

/// A graph and its functions, by name.
struct GraphView<'a> {
    nodes: BTreeMap<&'a str, NodeView<'a>>,
    functions: BTreeMap<&'a str, Vec<NodeView<'a>>>,
}

/// A node: its operation, the nodes that it reads or waits for, and the functions that it calls.
#[derive(Default)]
struct NodeView<'a> {
    operation: &'a str,
    inputs: Vec<&'a str>,
    functions: Vec<&'a str>,
}

impl<'a> GraphView<'a> {
    /// `GraphDef`: `node` (1), `library` (2) with `function` (1).
    fn read(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (mut nodes, mut functions) = (BTreeMap::new(), BTreeMap::new());
        for field in fields(bytes) {
            match field? {
                (1, node) => {
                    let (name, node) = read_node(node.as_bytes()?)?;
                    nodes.insert(name, node);
                }
                (2, library) => {
                    for field in fields(library.as_bytes()?) {
                        if let (1, function) = field? {
                            let (name, nodes) = read_function(function.as_bytes()?)?;
                            functions.insert(name, nodes);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(Self { nodes, functions })
    }

    /// The first state-changing operation among those that these nodes depend on.
    fn change(&self, nodes: Vec<&str>) -> Option<String> {
        let mut waiting: Vec<&NodeView<'_>> = nodes.iter().filter_map(|name| self.nodes.get(name)).collect();
        let mut seen: BTreeSet<&str> = nodes.into_iter().collect();
        let mut called = BTreeSet::new();
        while let Some(node) = waiting.pop() {
            if writes(node.operation) {
                return Some(node.operation.to_owned());
            }
            for input in &node.inputs {
                if let Some((name, node)) = self.nodes.get_key_value(input)
                    && seen.insert(name)
                {
                    waiting.push(node);
                }
            }
            // A function may also be called by an operation of its name. All of its nodes count,
            // even if its result does not need them.
            for name in node.functions.iter().chain([&node.operation]) {
                if let Some((name, body)) = self.functions.get_key_value(name)
                    && called.insert(*name)
                {
                    waiting.extend(body);
                }
            }
        }
        None
    }
}

/// `NodeDef`: `name` (1), `op` (2), `input` (3), `attr` (5).
fn read_node(bytes: &[u8]) -> Result<(&str, NodeView<'_>), WireError> {
    let (mut name, mut node) = ("", NodeView::default());
    for field in fields(bytes) {
        match field? {
            (1, value) => name = value.as_str()?,
            (2, value) => node.operation = value.as_str()?,
            (3, value) => node.inputs.push(node_of(value.as_str()?)),
            (5, entry) => {
                for field in fields(entry.as_bytes()?) {
                    if let (2, value) = field? {
                        read_attribute(value.as_bytes()?, &mut node.functions)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok((name, node))
}

/// `AttrValue`: `list` (1) with `func` (9), `func` (10).
fn read_attribute<'a>(bytes: &'a [u8], functions: &mut Vec<&'a str>) -> Result<(), WireError> {
    for field in fields(bytes) {
        match field? {
            (1, list) => {
                for field in fields(list.as_bytes()?) {
                    if let (9, function) = field? {
                        functions.extend(read_name(function.as_bytes()?)?);
                    }
                }
            }
            (10, function) => functions.extend(read_name(function.as_bytes()?)?),
            _ => {}
        }
    }
    Ok(())
}

/// `FunctionDef`: `signature` (1), an `OpDef` with `name` (1), and `node_def` (3).
fn read_function(bytes: &[u8]) -> Result<(&str, Vec<NodeView<'_>>), WireError> {
    let (mut name, mut nodes) = ("", Vec::new());
    for field in fields(bytes) {
        match field? {
            (1, signature) => name = read_name(signature.as_bytes()?)?.unwrap_or_default(),
            (3, node) => nodes.push(read_node(node.as_bytes()?)?.1),
            _ => {}
        }
    }
    Ok((name, nodes))
}

/// The `name` (1) of an `OpDef` or a `NameAttrList`.
fn read_name(bytes: &[u8]) -> Result<Option<&str>, WireError> {
    for field in fields(bytes) {
        if let (1, name) = field? {
            return name.as_str().map(Some);
        }
    }
    Ok(None)
}

/// The node of an input or a tensor: `name`, `name:index`, or `^name` for a control dependency.
fn node_of(input: &str) -> &str {
    let input = input.strip_prefix('^').unwrap_or(input);
    input.split(':').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensorflow::SavedModel;
    use crate::tensorflow::testing::{message, text};
    use wire::protobuf::put_bytes_head;

    /// `name operation inputs functions`, the last two with commas between, or `-`.
    fn node(number: u32, line: &str) -> Vec<u8> {
        let words: Vec<_> = line.split(' ').collect();
        let list = |word: usize| words[word].split(',').filter(|name| *name != "-");
        let inputs = list(2).map(|name| text(3, name));
        let functions = list(3).enumerate().map(|(index, name)| {
            let name = message(if index == 0 { 10 } else { 9 }, &[text(1, name)]);
            let value = if index == 0 { name } else { message(1, &[name]) };
            message(5, &[text(1, "f"), message(2, &[value])])
        });
        message(number, &[vec![text(1, words[0]), text(2, words[1])], inputs.chain(functions).collect()].concat())
    }

    /// Lines of nodes; `function NAME` begins one whose nodes follow.
    fn graph(lines: &str) -> Vec<u8> {
        let (mut nodes, mut functions): (Vec<Vec<u8>>, Vec<Vec<Vec<u8>>>) = (Vec::new(), Vec::new());
        for line in lines.lines().map(str::trim) {
            match (line.strip_prefix("function "), functions.last_mut()) {
                (Some(name), _) => functions.push(vec![message(1, &[text(1, name)])]),
                (None, Some(function)) => function.push(node(3, line)),
                (None, None) => nodes.push(node(1, line)),
            }
        }
        let functions: Vec<_> = functions.iter().map(|function| message(1, function)).collect();
        [nodes.concat(), message(2, &functions)].concat()
    }

    /// The state change found in a SavedModel whose output `y` is the tensor `call:0`.
    fn changed(lines: &str) -> Option<String> {
        let output = message(2, &[text(1, "y"), message(2, &[text(1, "call:0")])]);
        let signature = message(5, &[text(1, "serving_default"), message(2, &[output])]);
        let graph = graph(lines);
        let mut whole = Vec::new();
        put_bytes_head(2, graph.len(), &mut whole);
        whole.extend(&graph);
        let file = message(2, &[message(1, &[text(4, "serve")]), whole, signature]);
        let chosen = SavedModel::decode(&file).unwrap().choose(None, None).unwrap();
        changed_by_signature(&file, &chosen).unwrap()
    }

    #[test]
    fn what_a_signature_changes_is_found_in_what_it_calls_and_nowhere_else() {
        let check = |lines: &str, want: Option<&str>| assert_eq!(changed(lines).as_deref(), want, "{lines}");
        check("call MatMul x,w -\nx Placeholder - -\nw ReadVariableOp - -", None);
        check("call Identity s:0 -\ns AssignAddVariableOp - -", Some("AssignAddVariableOp"));
        check("call Identity x,^s -\ns AssignVariableOp - -", Some("AssignVariableOp"));
        check("call StatefulPartitionedCall x f\nfunction f\na AssignSubVariableOp - -", Some("AssignSubVariableOp"));
        let deep = "call StatefulPartitionedCall x f\nfunction f\nb If x p,q\nfunction q\na LookupTableInsertV2 - -";
        check(deep, Some("LookupTableInsertV2"));
        check("call g x -\nfunction g\na ResourceApplyAdam - -", Some("ResourceApplyAdam"));
        // Operations that restore the variables, and functions that call each other.
        let restore = "call StatefulPartitionedCall x f\nrestore StatefulPartitionedCall x r\nfunction f\na Relu x g\nfunction g\n\
                       a Relu x f\nfunction r\na AssignVariableOp - -";
        check(restore, None);
        check("call ScatterNd x -", None);
        check("call TensorScatterUpdate x -", None);
        check("call ScatterNdUpdate x -", Some("ScatterNdUpdate"));
    }

    #[test]
    fn all_of_a_frozen_graph_counts() {
        assert_eq!(changed_by_graph(&graph("a Relu x -\nb Add a,a -")), Ok(None));
        assert_eq!(changed_by_graph(&graph("a Relu x -\nb AssignAdd a -")), Ok(Some("AssignAdd".to_owned())));
        assert!(changed_by_graph(b"\x0a\xff").is_err());
    }
}
