//! Names of the classes that converters of scikit-learn leave in an ONNX file: the classifiers of `ai.onnx.ml` have them, a
//! `LabelEncoder` maps indices to them, and an `ArrayFeatureExtractor` picks them from a list. Read when a model is loaded; bounded by
//! the size of the file.

use std::collections::BTreeSet;

use crate::labels::Labels;
use crate::onnx::initializer::read_varints;
use crate::onnx::wrapped_outputs::list;
use crate::onnx::{OnnxField, OnnxFields, find};

/// The field of `ModelProto` with the graph.
const GRAPH: u32 = 7;
/// The field of `GraphProto` with an operator.
const NODE: u32 = 1;
/// The field of `GraphProto` with a constant.
const INITIALIZER: u32 = 5;
/// `TensorProto.DataType` of strings.
const STRING: u64 = 8;

/// Attributes that list classes, by the operator.
const CLASSIFIERS: [(&[u8], &[u8], &[u8]); 3] = [
    (b"LinearClassifier", b"classlabels_strings", b"classlabels_ints"),
    (b"SVMClassifier", b"classlabels_strings", b"classlabels_ints"),
    (b"TreeEnsembleClassifier", b"classlabels_strings", b"classlabels_int64s"),
];

/// Returns the names of the classes in the order of their scores; `None` if the file has none, or lists that differ.
/// Classes that are their own indices are no names.
pub fn class_names(file: &[u8]) -> Option<Labels> {
    let mut lists = read_lists(file).ok()?.into_iter();
    let names = lists.next().filter(|_| lists.len() == 0)?;
    Some(Labels::from_names(names))
}

fn read_lists(file: &[u8]) -> Result<BTreeSet<Vec<String>>, String> {
    let graph = find(file, GRAPH)?.unwrap_or_default();
    let mut lists = BTreeSet::new();
    let mut extracted = BTreeSet::new();
    for node in list(graph, NODE)? {
        if find(node, 7)? != Some(b"ai.onnx.ml") {
            continue;
        }
        let operator = find(node, 4)?.unwrap_or_default();
        if operator == b"LabelEncoder" {
            lists.extend(encoded_names(node)?);
        } else if operator == b"ArrayFeatureExtractor" {
            extracted.extend(list(node, 1)?.first().copied());
        } else if let Some((_, texts, numbers)) = CLASSIFIERS.iter().find(|(name, ..)| *name == operator) {
            let (texts, numbers) = (texts_of(node, texts)?, integers_of(node, numbers)?);
            lists.insert(if texts.is_empty() { numbered_names(&numbers) } else { texts });
        }
    }
    for tensor in list(graph, INITIALIZER)?.into_iter().filter(|_| !extracted.is_empty()) {
        if extracted.contains(find(tensor, 8)?.unwrap_or_default()) {
            lists.insert(names_of_tensor(tensor)?);
        }
    }
    lists.remove(&Vec::new());
    Ok(lists)
}

/// The names to which a `LabelEncoder` maps the indices 0, 1, …, in any order; `None` if it does something else.
fn encoded_names(node: &[u8]) -> Result<Option<Vec<String>>, String> {
    let (keys, values) = (integers_of(node, b"keys_int64s")?, texts_of(node, b"values_strings")?);
    let mut names = vec![None; values.len()];
    for (key, value) in keys.iter().zip(&values) {
        match usize::try_from(*key).ok().and_then(|key| names.get_mut(key)) {
            Some(name) => *name = Some(value.clone()),
            None => return Ok(None),
        }
    }
    Ok(names.into_iter().collect())
}

/// The texts of numbers; empty if they are 0, 1, …
fn numbered_names(numbers: &[i64]) -> Vec<String> {
    let are_indices = numbers.iter().zip(0..).all(|(number, index)| *number == index);
    if are_indices { Vec::new() } else { numbers.iter().map(i64::to_string).collect() }
}

/// `AttributeProto.strings` (9) of a node's attribute.
fn texts_of(node: &[u8], name: &[u8]) -> Result<Vec<String>, String> {
    let mut texts = Vec::new();
    for attribute in list(node, 5)? {
        if find(attribute, 1)? == Some(name) {
            texts.extend(list(attribute, 9)?.iter().map(|text| String::from_utf8_lossy(text).into_owned()));
        }
    }
    Ok(texts)
}

/// `AttributeProto.ints` (8) of a node's attribute, packed or not.
fn integers_of(node: &[u8], name: &[u8]) -> Result<Vec<i64>, String> {
    let mut numbers = Vec::new();
    for attribute in list(node, 5)? {
        if find(attribute, 1)? != Some(name) {
            continue;
        }
        for field in OnnxFields::new(attribute) {
            match field? {
                (8, OnnxField::Varint(number)) => numbers.push(number.cast_signed()),
                (8, OnnxField::Bytes(packed)) => numbers.extend(read_varints(packed)?),
                _ => {}
            }
        }
    }
    Ok(numbers)
}

/// `TensorProto.string_data` (6) of a tensor of strings; empty for another one.
fn names_of_tensor(tensor: &[u8]) -> Result<Vec<String>, String> {
    let mut kind = 0;
    for field in OnnxFields::new(tensor) {
        if let (2, OnnxField::Varint(datatype)) = field? {
            kind = datatype;
        }
    }
    let texts = if kind == STRING { list(tensor, 6)? } else { Vec::new() };
    Ok(texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::initializer::push_varint;

    fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
        let mut out = vec![field << 3 | 2];
        push_varint(value.len() as u64, &mut out);
        [out.as_slice(), value].concat()
    }

    fn texts(name: &str, texts: &[&str]) -> Vec<u8> {
        let texts: Vec<u8> = texts.iter().flat_map(|text| bytes(9, text.as_bytes())).collect();
        bytes(5, &[bytes(1, name.as_bytes()), texts].concat())
    }

    fn integers(name: &str, numbers: &[u8]) -> Vec<u8> {
        // One by one, and the last packed.
        let (last, first) = numbers.split_last().unwrap();
        let first: Vec<u8> = first.iter().flat_map(|number| [8 << 3, *number]).collect();
        bytes(5, &[bytes(1, name.as_bytes()), first, bytes(8, &[*last])].concat())
    }

    fn node(operator: &str, input: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
        let names = [bytes(1, input.as_bytes()), bytes(4, operator.as_bytes()), bytes(7, b"ai.onnx.ml")].concat();
        bytes(1, &[names, attributes.concat()].concat())
    }

    fn names(graph: &[Vec<u8>]) -> Option<String> {
        let labels = class_names(&bytes(7, &graph.concat()))?;
        Some((0..9).map_while(|index| labels.get(index)).collect::<Vec<_>>().join(" "))
    }

    fn found(names: &str) -> Option<String> {
        Some(names.to_owned())
    }

    #[test]
    fn classifiers_list_their_classes() {
        let words = [texts("classlabels_strings", &["cat", "dog"])];
        for operator in ["LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"] {
            assert_eq!(names(&[node(operator, "x", &words)]), found("cat dog"), "{operator}");
        }
        assert_eq!(
            names(&[node("TreeEnsembleClassifier", "x", &[integers("classlabels_int64s", &[3, 5])])]),
            found("3 5")
        );
        assert_eq!(
            names(&[node("LinearClassifier", "x", &[integers("classlabels_ints", &[1, 2, 9])])]),
            found("1 2 9")
        );
        // Classes that are their own indices.
        assert_eq!(names(&[node("SVMClassifier", "x", &[integers("classlabels_ints", &[0, 1, 2])])]), None);
        assert_eq!(names(&[node("Normalizer", "x", &words)]), None);
        assert_eq!(names(&[]), None);
    }

    #[test]
    fn indices_are_mapped_to_names() {
        let encoder = |keys: &[u8], values: &[&str]| {
            names(&[node("LabelEncoder", "x", &[integers("keys_int64s", keys), texts("values_strings", values)])])
        };
        assert_eq!(encoder(&[0, 1, 2], &["a", "b", "c"]), found("a b c"));
        assert_eq!(encoder(&[1, 0], &["b", "a"]), found("a b"));
        for (keys, values) in [(&[1, 2][..], &["b", "c"][..]), (&[0, 0], &["a", "b"]), (&[0], &["a", "b"])] {
            assert_eq!(encoder(keys, values), None, "{keys:?}");
        }
    }

    #[test]
    fn names_are_picked_from_a_constant_of_strings() {
        let constant = |name: &str, kind: u8| {
            let texts = [bytes(6, b"x"), bytes(6, b"y")].concat();
            bytes(5, &[vec![2 << 3, kind], texts, bytes(8, name.as_bytes())].concat())
        };
        let picks = node("ArrayFeatureExtractor", "classes", &[]);
        assert_eq!(names(&[picks.clone(), constant("classes", 8)]), found("x y"));
        assert_eq!(names(&[picks.clone(), constant("other", 8)]), None);
        assert_eq!(names(&[picks, constant("classes", 7)]), None);
    }

    #[test]
    fn lists_that_differ_name_nothing() {
        let of = |names: &[&str]| node("LinearClassifier", "x", &[texts("classlabels_strings", names)]);
        assert_eq!(names(&[of(&["a", "b"]), of(&["a", "b"])]), found("a b"));
        assert_eq!(names(&[of(&["a", "b"]), of(&["b", "a"])]), None);
        assert_eq!(class_names(b"no ONNX file"), None);
    }
}
