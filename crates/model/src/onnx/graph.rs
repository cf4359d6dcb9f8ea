//! Reads the graph of an ONNX file: operators, attributes and constants, with the graphs inside it (the branches of
//! `If`, the bodies of `Loop` and `Scan`), for a backend that runs or checks graphs itself. Called when a model is
//! loaded; takes at most the memory of the file. Graphs may be nested `GRAPHS_DEEP_MAX` deep.

use std::collections::BTreeMap;

use crate::limits::GRAPHS_DEEP_MAX;
use crate::onnx::initializer::{read_tensor, read_varints};
use crate::onnx::{OnnxField, OnnxFields, find};
use base::error::Error;
use base::limits::GRAPH_NODES_MAX;
use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor, element_count};

/// The graph of an ONNX file, or one inside it, which may also read values of the graphs around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxGraph {
    /// The names of its inputs; in files before IR version 4 also those of its initializers.
    pub inputs: Vec<String>,
    /// The names of its outputs.
    pub outputs: Vec<String>,
    /// Its operators, in topological order, as ONNX requires of a file.
    pub nodes: Vec<OnnxNode>,
    /// Its constants by name: initializers and the values of `Constant` nodes.
    pub constants: BTreeMap<String, Tensor>,
    /// The shapes of the constants that an outline leaves out.
    pub left_out: BTreeMap<String, Shape>,
    /// True if the file defines operators of its own, which are not read.
    pub has_functions: bool,
    /// The version of ONNX's own operator set.
    pub version: i64,
}

/// One operator.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxNode {
    /// The operator type, such as `Gemm`.
    pub operator: String,
    /// The operator's domain; empty for ONNX's own.
    pub domain: String,
    /// The names of its inputs; an empty name is an optional input left out.
    pub inputs: Vec<String>,
    /// The names of its outputs.
    pub outputs: Vec<String>,
    attributes: BTreeMap<String, OnnxAttribute>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
enum OnnxAttribute {
    Float(f32),
    Floats(Vec<f32>),
    Graph(OnnxGraph),
    Integer(i64),
    Integers(Vec<i64>),
    Text(String),
    Tensor(Tensor),
    /// A tensor that an outline leaves out.
    LeftOut(Shape),
    /// A type that no backend here uses.
    Other,
}

impl OnnxGraph {
    /// Reads the graph from the bytes of a file.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is not ONNX, has too many operators, nests graphs too deep, or has constants that
    /// cannot be read.
    pub fn decode(file: &[u8]) -> Result<Self, Error> {
        Self::read(file, false)
    }

    /// Reads the graph without its large constants and those that cannot be read: of these, only the shape.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is not ONNX, has too many operators, or nests graphs too deep.
    pub fn outline(file: &[u8]) -> Result<Self, Error> {
        Self::read(file, true)
    }

    fn read(file: &[u8], is_outline: bool) -> Result<Self, Error> {
        let graph = Self::read_file(file, is_outline);
        graph.map_err(|reason| Error::invalid(format!("not an ONNX graph that can be used: {reason}")))
    }

    fn read_file(file: &[u8], is_outline: bool) -> Result<Self, String> {
        let (mut version, mut has_functions) = (0, false);
        for field in OnnxFields::new(file) {
            match field? {
                (8, OnnxField::Bytes(set)) if find(set, 1)?.unwrap_or_default().is_empty() => {
                    version = read_version(set)?;
                }
                (25, OnnxField::Bytes(_)) => has_functions = true,
                _ => {}
            }
        }
        let graph = find(file, 7)?.ok_or("it has no graph")?;
        let graph = GraphReader { version, nodes_left: GRAPH_NODES_MAX, is_outline }.read_graph(graph, 0)?;
        Ok(Self { has_functions, ..graph })
    }

    /// Replaces `Constant` nodes by constants, so that backends see one kind only.
    fn take_constants(&mut self) {
        let Self { nodes, constants, left_out, .. } = self;
        nodes.retain_mut(|node| {
            let Some(name) = node.outputs.first().filter(|_| node.operator == "Constant") else { return true };
            let value = ["value", "value_float", "value_floats", "value_int", "value_ints"]
                .iter()
                .find_map(|kind| node.attributes.remove(*kind));
            match value.and_then(constant) {
                Some(ConstantRead::Whole(tensor)) => drop(constants.insert(name.clone(), tensor)),
                Some(ConstantRead::LeftOut(shape)) => drop(left_out.insert(name.clone(), shape)),
                None => return true,
            }
            false
        });
    }
}

/// A constant as far as it was read.
enum ConstantRead {
    Whole(Tensor),
    LeftOut(Shape),
}

/// The value of a `Constant` node.
fn constant(value: OnnxAttribute) -> Option<ConstantRead> {
    let list = |count: usize| Shape::from_slice(&[i64::try_from(count).unwrap_or(i64::MAX)]);
    let (datatype, shape, contents) = match value {
        OnnxAttribute::Tensor(tensor) => return Some(ConstantRead::Whole(tensor)),
        OnnxAttribute::LeftOut(shape) => return Some(ConstantRead::LeftOut(shape)),
        OnnxAttribute::Float(value) => (Datatype::Fp32, Shape::new(), value.to_le_bytes().to_vec()),
        OnnxAttribute::Floats(values) => {
            (Datatype::Fp32, list(values.len()), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        OnnxAttribute::Integer(value) => (Datatype::Int64, Shape::new(), value.to_le_bytes().to_vec()),
        OnnxAttribute::Integers(values) => {
            (Datatype::Int64, list(values.len()), values.iter().flat_map(|value| value.to_le_bytes()).collect())
        }
        _ => return None,
    };
    let mut aligned = AlignedBuffer::with_capacity(contents.len());
    aligned.extend_from_slice(&contents);
    Some(ConstantRead::Whole(Tensor { datatype, shape, contents: aligned.freeze() }))
}

impl OnnxNode {
    /// The name of an input; `None` if it is left out.
    pub fn input(&self, index: usize) -> Option<&str> {
        self.inputs.get(index).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// An integer attribute, or its default if it is missing.
    pub fn integer(&self, name: &str, default: i64) -> i64 {
        match self.attributes.get(name) {
            Some(OnnxAttribute::Integer(value)) => *value,
            _ => default,
        }
    }

    /// A float attribute, or its default if it is missing.
    pub fn float(&self, name: &str, default: f32) -> f32 {
        match self.attributes.get(name) {
            Some(OnnxAttribute::Float(value)) => *value,
            _ => default,
        }
    }

    /// An attribute that is a list of floats; `None` if it is missing.
    pub fn floats(&self, name: &str) -> Option<&[f32]> {
        match self.attributes.get(name) {
            Some(OnnxAttribute::Floats(values)) => Some(values),
            _ => None,
        }
    }

    /// An attribute that is a list of integers; `None` if it is missing.
    pub fn integers(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name) {
            Some(OnnxAttribute::Integers(values)) => Some(values),
            _ => None,
        }
    }

    /// An attribute that is a tensor; `None` if it is missing or left out.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        match self.attributes.get(name) {
            Some(OnnxAttribute::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// An attribute that is a graph, such as `body`; `None` if it is missing.
    pub fn graph(&self, name: &str) -> Option<&OnnxGraph> {
        match self.attributes.get(name) {
            Some(OnnxAttribute::Graph(graph)) => Some(graph),
            _ => None,
        }
    }

    /// The graphs inside it, by the names of their attributes.
    pub fn graphs(&self) -> impl Iterator<Item = (&str, &OnnxGraph)> {
        self.attributes.iter().filter_map(|(name, value)| match value {
            OnnxAttribute::Graph(graph) => Some((name.as_str(), graph)),
            _ => None,
        })
    }

    /// A text attribute; `None` if it is missing.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name) {
            Some(OnnxAttribute::Text(text)) => Some(text),
            _ => None,
        }
    }
}

fn read_version(set: &[u8]) -> Result<i64, String> {
    let mut version = 0;
    for field in OnnxFields::new(set) {
        if let (2, OnnxField::Varint(number)) = field? {
            version = number.cast_signed();
        }
    }
    Ok(version)
}

/// Reads a graph and those inside it, which share the bound on operators.
struct GraphReader {
    version: i64,
    nodes_left: usize,
    is_outline: bool,
}

impl GraphReader {
    /// `GraphProto`: operators (1), initializers (5), inputs (11), outputs (12), sparse
    /// initializers (15). A graph lies `level` levels inside that of the file.
    fn read_graph(&mut self, bytes: &[u8], level: usize) -> Result<OnnxGraph, String> {
        if level > GRAPHS_DEEP_MAX {
            return Err(format!("its graphs are nested more than {GRAPHS_DEEP_MAX} deep"));
        }
        let mut graph = OnnxGraph { version: self.version, ..OnnxGraph::default() };
        for field in OnnxFields::new(bytes) {
            match field? {
                (1, OnnxField::Bytes(node)) => {
                    let left = self.nodes_left.checked_sub(1);
                    self.nodes_left = left.ok_or_else(|| format!("it has more than {GRAPH_NODES_MAX} operators"))?;
                    graph.nodes.push(self.read_node(node, level)?);
                }
                (5, OnnxField::Bytes(tensor)) => {
                    let name = text(find(tensor, 8)?.unwrap_or_default())?;
                    match self.read_constant(&name, tensor)? {
                        ConstantRead::Whole(tensor) => drop(graph.constants.insert(name, tensor)),
                        ConstantRead::LeftOut(shape) => drop(graph.left_out.insert(name, shape)),
                    }
                }
                (11, OnnxField::Bytes(input)) => graph.inputs.push(text(find(input, 1)?.unwrap_or_default())?),
                (12, OnnxField::Bytes(output)) => graph.outputs.push(text(find(output, 1)?.unwrap_or_default())?),
                (15, OnnxField::Bytes(sparse)) if self.is_outline => {
                    let name = text(find(find(sparse, 1)?.unwrap_or_default(), 8)?.unwrap_or_default())?;
                    graph.left_out.insert(name, read_shape(sparse, 3)?);
                }
                (15, OnnxField::Bytes(_)) => return Err("it has sparse constants".to_owned()),
                _ => {}
            }
        }
        graph.take_constants();
        Ok(graph)
    }

    fn read_constant(&self, name: &str, tensor: &[u8]) -> Result<ConstantRead, String> {
        if self.is_outline {
            let shape = read_shape(tensor, 1)?;
            let is_small = element_count(&shape).is_ok_and(|count| count <= OUTLINE_ELEMENTS_MAX);
            let whole = if is_small { read_tensor(tensor).ok() } else { None };
            return Ok(whole.map_or(ConstantRead::LeftOut(shape), ConstantRead::Whole));
        }
        read_tensor(tensor).map(ConstantRead::Whole).map_err(|reason| format!("'{name}' has {reason}"))
    }

    /// `NodeProto`: inputs (1), outputs (2), operator (4), attributes (5), domain (7).
    fn read_node(&mut self, bytes: &[u8], level: usize) -> Result<OnnxNode, String> {
        let mut node = OnnxNode::default();
        for field in OnnxFields::new(bytes) {
            match field? {
                (1, OnnxField::Bytes(name)) => node.inputs.push(text(name)?),
                (2, OnnxField::Bytes(name)) => node.outputs.push(text(name)?),
                (4, OnnxField::Bytes(name)) => node.operator = text(name)?,
                (5, OnnxField::Bytes(attribute)) => {
                    let (name, value) = self.read_attribute(attribute, level)?;
                    node.attributes.insert(name, value);
                }
                (7, OnnxField::Bytes(name)) => node.domain = text(name)?,
                _ => {}
            }
        }
        Ok(node)
    }

    /// `AttributeProto`: name (1), float (2), integer (3), text (4), tensor (5), graph (6), floats (7), integers (8).
    fn read_attribute(&mut self, bytes: &[u8], level: usize) -> Result<(String, OnnxAttribute), String> {
        let (mut name, mut value) = (String::new(), OnnxAttribute::Other);
        let (mut floats, mut integers) = (Vec::new(), Vec::new());
        for field in OnnxFields::new(bytes) {
            match field? {
                (1, OnnxField::Bytes(bytes)) => name = text(bytes)?,
                (2, OnnxField::Fixed(bytes)) => {
                    value = bytes
                        .first_chunk()
                        .map_or(OnnxAttribute::Other, |bytes| OnnxAttribute::Float(f32::from_le_bytes(*bytes)));
                }
                (3, OnnxField::Varint(number)) => value = OnnxAttribute::Integer(number.cast_signed()),
                (4, OnnxField::Bytes(bytes)) => value = text(bytes).map_or(OnnxAttribute::Other, OnnxAttribute::Text),
                (5, OnnxField::Bytes(bytes)) => {
                    value = match self.read_constant(&name, bytes)? {
                        ConstantRead::Whole(tensor) => OnnxAttribute::Tensor(tensor),
                        ConstantRead::LeftOut(shape) => OnnxAttribute::LeftOut(shape),
                    };
                }
                (6, OnnxField::Bytes(bytes)) => value = OnnxAttribute::Graph(self.read_graph(bytes, level + 1)?),
                (7, OnnxField::Bytes(bytes) | OnnxField::Fixed(bytes)) => {
                    floats.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
                }
                (8, OnnxField::Varint(number)) => integers.push(number.cast_signed()),
                (8, OnnxField::Bytes(bytes)) => integers.extend(read_varints(bytes)?),
                _ => {}
            }
        }
        Ok((
            name,
            match (integers.is_empty(), floats.is_empty()) {
                (false, _) => OnnxAttribute::Integers(integers),
                (true, false) => OnnxAttribute::Floats(floats),
                (true, true) => value,
            },
        ))
    }
}

/// The dimensions in the field `number` of a tensor.
fn read_shape(tensor: &[u8], number: u32) -> Result<Shape, String> {
    let mut shape = Shape::new();
    for field in OnnxFields::new(tensor) {
        match field? {
            (at, OnnxField::Varint(size)) if at == number => shape.push(size.cast_signed()),
            (at, OnnxField::Bytes(sizes)) if at == number => shape.extend(read_varints(sizes)?),
            _ => {}
        }
    }
    Ok(shape)
}

/// Maximum number of elements of a constant that an outline still has: constants that set sizes are
/// smaller.
const OUTLINE_ELEMENTS_MAX: usize = 1024;

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a name in it is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let (mut key, mut size) = (vec![number << 3 | 2], value.len());
        while size >= 128 {
            key.push(size as u8 | 0x80);
            size >>= 7;
        }
        key.push(size as u8);
        [&key[..], value].concat()
    }

    fn model(graph: &[u8]) -> Vec<u8> {
        [field(7, graph), field(8, &[0x10, 17]), field(8, &[field(1, b"ai.other"), vec![0x10, 3]].concat())].concat()
    }

    #[test]
    fn operators_have_their_inputs_and_attributes_and_constants_are_separate() {
        let float = [field(1, b"alpha"), vec![0x15], 0.5_f32.to_le_bytes().to_vec()].concat();
        let packed = [field(1, b"axes"), field(8, &[1, 2])].concat();
        let loose = [field(1, b"perm"), vec![0x40, 3, 0x40, 4]].concat();
        let word = [field(1, b"approximate"), field(4, b"tanh")].concat();
        let integer = [field(1, b"transB"), vec![0x18, 1]].concat();
        let attributes: Vec<u8> =
            [float, packed, loose, word, integer].iter().flat_map(|bytes| field(5, bytes)).collect();
        let names = [field(1, b"x"), field(1, b""), field(2, b"y"), field(4, b"Gemm")].concat();
        let node = field(1, &[names, attributes].concat());
        let tensor = [vec![0x08, 1, 0x10, 1], field(9, &2.5_f32.to_le_bytes())].concat();
        let value = field(5, &[field(1, b"value"), field(5, &tensor)].concat());
        let constant = field(1, &[field(2, b"c"), field(4, b"Constant"), value].concat());
        let weight = field(5, &[tensor, field(8, b"w")].concat());
        let graph = OnnxGraph::decode(&model(&[node, constant, weight].concat())).unwrap();
        assert_eq!((graph.version, graph.nodes.len()), (17, 1));
        assert_eq!(graph.constants.keys().map(String::as_str).collect::<Vec<_>>(), ["c", "w"]);
        assert_eq!(&graph.constants["w"].contents[..], 2.5_f32.to_le_bytes());
        let node = &graph.nodes[0];
        assert_eq!((node.input(0), node.input(1), node.input(2)), (Some("x"), None, None));
        assert_eq!((node.float("alpha", 1.0), node.float("beta", 1.0)), (0.5, 1.0));
        assert_eq!((node.integer("transB", 0), node.integer("alpha", 7)), (1, 7));
        assert_eq!((node.integers("axes"), node.integers("perm")), (Some(&[1, 2][..]), Some(&[3, 4][..])));
        assert_eq!((node.text("approximate"), node.text("axes")), (Some("tanh"), None));
    }

    /// An `If` whose branches, `then_branch` and `else_branch`, have this content.
    fn branching(graph: &[u8]) -> Vec<u8> {
        let branch = |name: &str| field(5, &[field(1, name.as_bytes()), field(6, graph)].concat());
        let names = [field(1, b"condition"), field(2, b"y"), field(4, b"If")].concat();
        field(1, &[names, branch("then_branch"), branch("else_branch")].concat())
    }

    #[test]
    fn graphs_inside_operators_are_read_with_their_names_and_constants() {
        let tensor = [vec![0x08, 1, 0x10, 1], field(9, &2.5_f32.to_le_bytes()), field(8, b"w")].concat();
        let add = field(1, &[field(1, b"outer"), field(1, b"w"), field(2, b"sum"), field(4, b"Add")].concat());
        let inner = [add, field(5, &tensor), field(11, &field(1, b"i")), field(12, &field(1, b"sum"))].concat();
        let graph = OnnxGraph::decode(&model(&branching(&inner))).unwrap();
        let node = &graph.nodes[0];
        assert_eq!(node.graphs().map(|(name, _)| name).collect::<Vec<_>>(), ["else_branch", "then_branch"]);
        assert_eq!((node.graph("body"), node.integer("then_branch", 3)), (None, 3));
        let branch = node.graph("then_branch").unwrap();
        assert_eq!((&branch.inputs[..], &branch.outputs[..]), (&["i".to_owned()][..], &["sum".to_owned()][..]));
        assert_eq!((branch.version, branch.nodes[0].inputs.join(" ")), (17, "outer w".to_owned()));
        assert!(branch.constants.contains_key("w") && graph.constants.is_empty());
    }

    #[test]
    fn graphs_are_nested_to_a_bound_and_share_that_on_operators() {
        // Each level is a `Loop`, so that a file of many levels stays small.
        let deeper = |graph: Vec<u8>| field(1, &field(5, &[field(1, b"body"), field(6, &graph)].concat()));
        let nested = |levels: usize| OnnxGraph::decode(&model(&(0..levels).fold(Vec::new(), |graph, _| deeper(graph))));
        assert!(nested(GRAPHS_DEEP_MAX).is_ok());
        let error = nested(GRAPHS_DEEP_MAX + 1).unwrap_err();
        assert!(error.text().contains("nested more than 64 deep"), "{error}");
        let nodes = |count: usize| OnnxGraph::decode(&model(&branching(&field(1, b"").repeat(count))));
        assert!(nodes((GRAPH_NODES_MAX - 1) / 2).is_ok());
        let error = nodes(GRAPH_NODES_MAX / 2).unwrap_err();
        assert!(error.text().contains("more than 65536 operators"), "{error}");
    }

    #[test]
    fn constants_that_nodes_spell_out_are_tensors() {
        let constant = |attribute: Vec<u8>| field(1, &[field(2, b"c"), field(4, b"Constant"), attribute].concat());
        let check = |kind: &str, value: &[u8], datatype: Datatype, shape: &[i64], want: Vec<u8>| {
            let attribute = field(5, &[&field(1, kind.as_bytes())[..], value].concat());
            let graph = OnnxGraph::decode(&model(&constant(attribute))).unwrap();
            let got = &graph.constants["c"];
            assert_eq!((got.datatype, &got.shape[..], &got.contents[..]), (datatype, shape, &want[..]), "{kind}");
        };
        let float = 1.5_f32.to_le_bytes().to_vec();
        let (three, four) = (3_i64.to_le_bytes(), 4_i64.to_le_bytes());
        check("value_int", &[0x18, 3], Datatype::Int64, &[], three.to_vec());
        check("value_ints", &field(8, &[3, 4]), Datatype::Int64, &[2], [three, four].concat());
        check("value_float", &[&[0x15], &float[..]].concat(), Datatype::Fp32, &[], float.clone());
        check("value_floats", &field(7, &float.repeat(2)), Datatype::Fp32, &[2], float.repeat(2));
    }

    #[test]
    fn an_outline_has_small_constants_and_the_shapes_of_others() {
        let tensor = |name: &str, count: usize| {
            let dims = [&[0x08, (count % 128) as u8 | 0x80, (count / 128) as u8, 0x10, 1][..]].concat();
            field(5, &[dims, field(8, name.as_bytes()), field(9, &vec![0; 4 * count])].concat())
        };
        let external = field(5, &[vec![0x08, 1, 0x10, 1], field(8, b"far"), field(13, b"")].concat());
        let sparse = field(15, &[field(1, &field(8, b"sparse")), field(3, &[5, 6])].concat());
        let file = model(
            &[tensor("small", OUTLINE_ELEMENTS_MAX), tensor("large", OUTLINE_ELEMENTS_MAX + 1), external, sparse]
                .concat(),
        );
        let graph = OnnxGraph::outline(&[&file[..], &[0xca, 1, 0]].concat()).unwrap();
        assert_eq!(graph.constants.keys().collect::<Vec<_>>(), ["small"]);
        let left_out: Vec<_> = graph.left_out.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect();
        assert_eq!(left_out, ["far [1]", "large [1025]", "sparse [5, 6]"]);
        assert!(graph.has_functions && !OnnxGraph::outline(&file).unwrap().has_functions);
    }

    #[test]
    fn a_graph_that_cannot_be_read_is_refused_with_the_reason() {
        let check = |file: &[u8], want: &str| {
            let error = OnnxGraph::decode(file).unwrap_err();
            assert!(error.text().contains(want), "{error}");
        };
        check(&[], "it has no graph");
        check(&model(&field(15, b"")), "sparse");
        check(&model(&field(1, &[0x0a, 9])), "cut short");
        let external = [vec![0x08, 1, 0x10, 1], field(8, b"w"), field(13, b"")].concat();
        check(&model(&field(5, &external)), "'w' has its initial value in another file");
    }
}
