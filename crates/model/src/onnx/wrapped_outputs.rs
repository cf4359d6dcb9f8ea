//! Outputs of an ONNX file that wrap one tensor: `ZipMap`, which converters put after a classifier,
//! makes a list of maps of its probabilities; `SequenceConstruct` and `Optional` put a tensor into
//! another type. The protocol carries tensors only, so the wrapping node is replaced by an
//! `Identity` and the output declared as the tensor. The numbers are the same. Called when a model
//! is loaded, for its signature and for its engine. Bounded by the size of the file.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::labels::Labels;
use crate::onnx::external_data::external_files;
use crate::onnx::initializer::{MessageParts, push_varint, read_varints};
use crate::onnx::{OnnxField, OnnxFields, find};

/// An ONNX file whose wrapped outputs were replaced by the tensors in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrappedFile {
    /// The rewritten file.
    pub bytes: Vec<u8>,
    /// The classes of each output that was a map, in the order of its columns.
    pub labels: BTreeMap<String, Arc<Labels>>,
}

/// Rewrites a file. `None` if no output wraps a tensor, or the file cannot be read: its signature
/// reports the reason. A file with tensors in other files stays as it is, since an engine finds
/// those beside it.
pub fn unwrap_outputs(file: &[u8]) -> Option<UnwrappedFile> {
    let wrapped = read_wrapped(file).ok().filter(|wrapped| !wrapped.is_empty())?;
    if !external_files(file).is_ok_and(|files| files.is_empty()) {
        return None;
    }
    let bytes = rewrite(file, &wrapped).ok()?;
    let with_labels = wrapped.into_iter().filter(|(_, node)| !node.labels.is_empty());
    let labels = with_labels
        .map(|(name, node)| (String::from_utf8_lossy(name).into_owned(), Arc::new(Labels::from_names(node.labels))));
    Some(UnwrappedFile { bytes, labels: labels.collect() })
}

/// The field of `ModelProto` with the graph.
const GRAPH: u32 = 7;
/// The field of `ModelProto` with an operator set.
const OPERATOR_SET: u32 = 8;
/// The field of `GraphProto` with an operator.
const NODE: u32 = 1;
/// The field of `GraphProto` with an output.
const OUTPUT: u32 = 12;
/// The version of ONNX's operators for a file that uses none of them: any has `Identity`.
const VERSION: u8 = 13;

/// A node that wraps a tensor into an output.
struct WrappingNode<'a> {
    /// The tensor's name.
    tensor: &'a [u8],
    /// The tensor's `TypeProto`.
    kind: Vec<u8>,
    /// The names of the classes, for a map.
    labels: Vec<String>,
}

/// The nodes to replace, by the names of their outputs.
type WrappingNodes<'a> = BTreeMap<&'a [u8], WrappingNode<'a>>;

fn read_wrapped(file: &[u8]) -> Result<WrappingNodes<'_>, String> {
    let graph = find(file, GRAPH)?.unwrap_or_default();
    // Outputs that are not tensors, and their types.
    let mut outputs = BTreeMap::new();
    for field in OnnxFields::new(graph) {
        if let (OUTPUT, OnnxField::Bytes(output)) = field? {
            let kind = find(output, 2)?.unwrap_or_default();
            if find(kind, 1)?.is_none() {
                outputs.insert(find(output, 1)?.unwrap_or_default(), kind);
            }
        }
    }
    let mut wrapped = WrappingNodes::new();
    if outputs.is_empty() {
        return Ok(wrapped);
    }
    for node in list(graph, NODE)? {
        let (inputs, mut names) = (list(node, 1)?, list(node, 2)?);
        if let (&[tensor], Some(name), true) = (&inputs[..], names.pop(), names.is_empty())
            && let Some(kind) = outputs.get(name)
            && let Some(node) = read_wrapping(node, tensor, kind)?
        {
            wrapped.insert(name, node);
        }
    }
    if !wrapped.is_empty() {
        remove_read(graph, &mut wrapped)?;
    }
    Ok(wrapped)
}

/// Removes the nodes whose outputs other nodes read, also in nested graphs: those take them as they
/// are. With a stack of its own and not by recursion: the file sets the depth of graphs.
fn remove_read<'a>(graph: &'a [u8], wrapped: &mut WrappingNodes<'a>) -> Result<(), String> {
    let mut graphs = vec![graph];
    while let Some(graph) = graphs.pop() {
        for node in list(graph, NODE)? {
            list(node, 1)?.iter().for_each(|name| drop(wrapped.remove(name)));
            for attribute in list(node, 5)? {
                // A graph (6) or several (11). One may also give an outer value as its output.
                for nested in [list(attribute, 6)?, list(attribute, 11)?].concat() {
                    for output in list(nested, OUTPUT)? {
                        wrapped.remove(find(output, 1)?.unwrap_or_default());
                    }
                    graphs.push(nested);
                }
            }
        }
    }
    Ok(())
}

/// `NodeProto`: operator (4), domain (7) and attributes (5). `None` if it does not wrap a tensor.
fn read_wrapping<'a>(node: &'a [u8], tensor: &'a [u8], kind: &[u8]) -> Result<Option<WrappingNode<'a>>, String> {
    let (operator, domain) = (find(node, 4)?.unwrap_or_default(), find(node, 7)?.unwrap_or_default());
    let (kind, labels) = match (domain, operator) {
        (b"ai.onnx.ml", b"ZipMap") => {
            let mut labels = Vec::new();
            for attribute in list(node, 5)? {
                labels.extend(read_labels(attribute)?);
            }
            (probabilities(labels.len()), labels)
        }
        (b"" | b"ai.onnx", b"SequenceConstruct") => (element(kind, 4)?, Vec::new()),
        (b"" | b"ai.onnx", b"Optional") => (element(kind, 9)?, Vec::new()),
        _ => return Ok(None),
    };
    // Its contents may be a sequence again.
    let is_tensor = find(&kind, 1)?.is_some();
    Ok(is_tensor.then_some(WrappingNode { tensor, kind, labels }))
}

/// The `TypeProto` of FP32 `[any, classes]`.
fn probabilities(classes: usize) -> Vec<u8> {
    let (mut size, mut shape, mut tensor, mut kind) = (vec![1 << 3], Vec::new(), vec![1 << 3, 1], Vec::new());
    push_varint(classes as u64, &mut size);
    push_bytes(1, &[], &mut shape);
    push_bytes(1, &size, &mut shape);
    push_bytes(2, &shape, &mut tensor);
    push_bytes(1, &tensor, &mut kind);
    kind
}

/// The type of the elements (1) of a sequence or an optional value, which is that field of its type.
fn element(kind: &[u8], field: u32) -> Result<Vec<u8>, String> {
    let wrapping = find(kind, field)?.unwrap_or_default();
    Ok(find(wrapping, 1)?.unwrap_or_default().to_vec())
}

/// `AttributeProto` of a `ZipMap`: name (1), and the classes as integers (8) or strings (9).
fn read_labels(attribute: &[u8]) -> Result<Vec<String>, String> {
    let name = find(attribute, 1)?.unwrap_or_default();
    let mut labels = Vec::new();
    for field in OnnxFields::new(attribute) {
        match (name, field?) {
            (b"classlabels_int64s", (8, OnnxField::Varint(number))) => labels.push(number.cast_signed().to_string()),
            (b"classlabels_int64s", (8, OnnxField::Bytes(numbers))) => {
                labels.extend(read_varints(numbers)?.iter().map(i64::to_string));
            }
            (b"classlabels_strings", (9, OnnxField::Bytes(label))) => {
                labels.push(String::from_utf8_lossy(label).into_owned());
            }
            _ => {}
        }
    }
    Ok(labels)
}

/// All bytes fields with this number.
pub(super) fn list(message: &[u8], wanted: u32) -> Result<Vec<&[u8]>, String> {
    let mut found = Vec::new();
    for field in OnnxFields::new(message) {
        match field? {
            (number, OnnxField::Bytes(bytes)) if number == wanted => found.push(bytes),
            _ => {}
        }
    }
    Ok(found)
}

fn rewrite(file: &[u8], wrapped: &WrappingNodes<'_>) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(file.len());
    let mut has_operators = false;
    for part in MessageParts::new(file) {
        let (bytes, number, field) = part?;
        match (number, field) {
            (GRAPH, OnnxField::Bytes(graph)) => push_bytes(7, &rewrite_graph(graph, wrapped)?, &mut out),
            (OPERATOR_SET, OnnxField::Bytes(set)) => {
                has_operators |= matches!(find(set, 1)?.unwrap_or_default(), b"" | b"ai.onnx");
                out.extend_from_slice(bytes);
            }
            _ => out.extend_from_slice(bytes),
        }
    }
    if !has_operators {
        push_bytes(8, &[2 << 3, VERSION], &mut out);
    }
    Ok(out)
}

fn rewrite_graph(graph: &[u8], wrapped: &WrappingNodes<'_>) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(graph.len());
    for part in MessageParts::new(graph) {
        let (bytes, number, field) = part?;
        let found = match (number, field) {
            (NODE, OnnxField::Bytes(node)) => find(node, 2)?,
            (OUTPUT, OnnxField::Bytes(output)) => find(output, 1)?,
            _ => None,
        };
        let Some((name, node)) = found.and_then(|name| wrapped.get_key_value(name)) else {
            out.extend_from_slice(bytes);
            continue;
        };
        let mut message = Vec::new();
        if number == NODE {
            push_bytes(1, node.tensor, &mut message);
            push_bytes(2, name, &mut message);
            push_bytes(4, b"Identity", &mut message);
            push_bytes(1, &message, &mut out);
        } else {
            push_bytes(1, name, &mut message);
            push_bytes(2, &node.kind, &mut message);
            push_bytes(12, &message, &mut out);
        }
    }
    Ok(out)
}

fn push_bytes(field: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(field << 3 | 2);
    push_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::OnnxSignature;
    use base::tensor::Datatype;

    fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        push_bytes(field, value, &mut out);
        out
    }

    fn node(operator: &str, domain: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
        let inputs: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name.as_bytes())).collect();
        let attributes: Vec<u8> = attributes.iter().flat_map(|attribute| bytes(5, attribute)).collect();
        let names = [bytes(2, output.as_bytes()), bytes(4, operator.as_bytes()), bytes(7, domain.as_bytes())].concat();
        bytes(1, &[inputs, names, attributes].concat())
    }

    fn attribute(name: &str, value: &[Vec<u8>]) -> Vec<u8> {
        [bytes(1, name.as_bytes()), value.concat()].concat()
    }

    fn output(name: &str, kind: &[u8]) -> Vec<u8> {
        bytes(12, &[bytes(1, name.as_bytes()), bytes(2, kind)].concat())
    }

    /// FP32 of any shape `[2]`.
    fn tensor() -> Vec<u8> {
        bytes(1, &[vec![1 << 3, 1], bytes(2, &bytes(1, &[1 << 3, 2]))].concat())
    }

    fn file(graph: &[Vec<u8>], sets: &[Vec<u8>]) -> Vec<u8> {
        let sets: Vec<u8> = sets.iter().flat_map(|set| bytes(8, set)).collect();
        [vec![1 << 3, 8], bytes(7, &graph.concat()), sets].concat()
    }

    /// The outputs as clients see them: name, shape, labels; or the reason why not.
    fn seen(file: &[u8]) -> Vec<String> {
        let signature = OnnxSignature::decode(file).unwrap();
        let tensors = signature.outputs.iter().map(|output| {
            assert_eq!(output.datatype, Datatype::Fp32);
            let labels = signature.labels.get(&output.name).map(|labels| {
                (0..4).map_while(|index| labels.get(index).map(str::to_owned)).collect::<Vec<_>>().join(" ")
            });
            format!("{} {:?} {}", output.name, output.shape.as_deref().unwrap(), labels.unwrap_or_default())
        });
        tensors.chain(signature.outputs_refused.iter().map(|(_, reason)| reason.clone())).collect()
    }

    #[test]
    fn a_map_becomes_the_tensor_of_its_values_with_its_keys_as_labels() {
        let map = bytes(4, &bytes(1, &bytes(5, &[1 << 3, 7])));
        let graph = |attributes: &[Vec<u8>]| {
            let inner = node("LinearClassifier", "ai.onnx.ml", &["x"], "scores", &[]);
            vec![inner, node("ZipMap", "ai.onnx.ml", &["scores"], "p", attributes), output("p", &map)]
        };
        let ml = bytes(1, b"ai.onnx.ml");
        let numbers = attribute("classlabels_int64s", &[bytes(8, &[0, 1]), vec![8 << 3, 7]]);
        let whole = file(&graph(&[numbers]), &[ml.clone(), vec![2 << 3, 9]]);
        assert_eq!(seen(&whole), ["p [-1, 3] 0 1 7"]);
        let words = attribute("classlabels_strings", &[bytes(9, b"cat"), bytes(9, b"dog")]);
        assert_eq!(seen(&file(&graph(&[words]), &[ml])), ["p [-1, 2] cat dog"]);
        let rewritten = unwrap_outputs(&whole).unwrap().bytes;
        let kept = node("LinearClassifier", "ai.onnx.ml", &["x"], "scores", &[]);
        let identity = bytes(1, &[bytes(1, b"scores"), bytes(2, b"p"), bytes(4, b"Identity")].concat());
        let graph = [kept, identity, output("p", &probabilities(3))];
        assert_eq!(rewritten, file(&graph, &[bytes(1, b"ai.onnx.ml"), vec![2 << 3, 9]]));
    }

    #[test]
    fn a_file_without_operators_of_onnx_gets_their_set() {
        let map = bytes(4, &bytes(1, &bytes(5, &[1 << 3, 7])));
        let labels = attribute("classlabels_int64s", &[bytes(8, &[0, 1])]);
        let graph = [node("ZipMap", "ai.onnx.ml", &["s"], "p", &[labels]), output("p", &map)];
        let rewritten = unwrap_outputs(&file(&graph, &[bytes(1, b"ai.onnx.ml")])).unwrap().bytes;
        let sets = OnnxSignature::decode(&rewritten).unwrap().operator_sets;
        assert_eq!(sets, [("ai.onnx.ml".to_owned(), 0), (String::new(), i64::from(VERSION))]);
    }

    #[test]
    fn a_sequence_or_an_optional_value_of_one_tensor_becomes_it_and_others_stay() {
        let (sequence, optional) = (bytes(4, &bytes(1, &tensor())), bytes(9, &bytes(1, &tensor())));
        let check = |graph: &[Vec<u8>], want: &str| assert_eq!(seen(&file(graph, &[vec![2 << 3, 15]])), [want]);
        let construct = |inputs: &[&str]| node("SequenceConstruct", "", inputs, "s", &[]);
        check(&[construct(&["x"]), output("s", &sequence)], "s [2] ");
        check(&[node("Optional", "ai.onnx", &["x"], "o", &[]), output("o", &optional)], "o [2] ");
        let refused = "'s' is a sequence, not a tensor";
        check(&[construct(&["x", "y"]), output("s", &sequence)], refused);
        check(&[node("SequenceInsert", "", &["x"], "s", &[]), output("s", &sequence)], refused);
        check(&[construct(&["x"]), node("SequenceAt", "", &["s"], "t", &[]), output("s", &sequence)], refused);
        let branch = |graph: &[u8]| node("If", "", &["c"], "t", &[attribute("then_branch", &[bytes(6, graph)])]);
        check(&[construct(&["x"]), branch(&[]), output("s", &sequence)], "s [2] ");
        let inner = node("SequenceLength", "", &["s"], "l", &[]);
        check(&[construct(&["x"]), branch(&inner), output("s", &sequence)], refused);
        check(&[construct(&["x"]), branch(&branch(&inner)), output("s", &sequence)], refused);
        check(&[construct(&["x"]), branch(&output("s", &sequence)), output("s", &sequence)], refused);
        let nested = bytes(9, &bytes(1, &sequence));
        check(
            &[node("Optional", "", &["x"], "o", &[]), output("o", &nested)],
            "'o' is an optional value, not a tensor",
        );
        let place = bytes(13, &[bytes(1, b"location"), bytes(2, b"w.bin")].concat());
        check(&[construct(&["x"]), output("s", &sequence), bytes(5, &place)], refused);
    }

    #[test]
    fn a_file_that_is_cut_short_is_not_rewritten() {
        let sequence = bytes(4, &bytes(1, &tensor()));
        let whole = file(&[node("SequenceConstruct", "", &["x"], "s", &[]), output("s", &sequence)], &[]);
        assert!(unwrap_outputs(&whole).is_some());
        for at in 0..whole.len() {
            let _ = unwrap_outputs(&whole[..at]);
        }
    }
}
