//! Finds the weights of an ONNX file that several instances can share: FP32 constants that only matrix products read.
//! Engines fold, fuse or convert other weights, for each instance separately. Called by the backends when a model is
//! loaded; copies no weights.

use std::collections::BTreeMap;

use crate::onnx::{OnnxField, OnnxFields, find};
use base::tensor::{Datatype, Shape, byte_size};

/// A constant matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightMatrix<'a> {
    /// Its name in the graph.
    pub name: &'a str,
    /// Its dimensions.
    pub shape: Shape,
    /// Its elements: little-endian FP32, not aligned.
    pub contents: &'a [u8],
}

/// Bytes below which a weight is not worth sharing.
const SIZE_MIN: usize = 64 * 1024;
/// `TensorProto.DataType`: 32-bit float.
const FLOAT: u64 = 1;

/// The weights that can be shared; empty if the file cannot be read, since sharing only saves
/// memory.
pub fn matrix_weights(file: &[u8]) -> Vec<WeightMatrix<'_>> {
    read(file).unwrap_or_default()
}

fn read(file: &[u8]) -> Result<Vec<WeightMatrix<'_>>, String> {
    let graph = find(file, 7)?.unwrap_or_default();
    let (mut uses, mut weights) = (BTreeMap::new(), Vec::new());
    for field in OnnxFields::new(graph) {
        match field? {
            (1, OnnxField::Bytes(node)) => read_uses(node, &mut uses)?,
            (5, OnnxField::Bytes(tensor)) => weights.extend(read_weight(tensor)?),
            _ => {}
        }
    }
    weights.retain(|weight: &WeightMatrix<'_>| uses.get(weight.name.as_bytes()) == Some(&true));
    Ok(weights)
}

/// `NodeProto`: records for each input (1) if all nodes that read it so far are matrix products, by
/// operator (4) and domain (7).
fn read_uses<'a>(node: &'a [u8], uses: &mut BTreeMap<&'a [u8], bool>) -> Result<(), String> {
    let operator = (find(node, 7)?.unwrap_or_default(), find(node, 4)?.unwrap_or_default());
    let is_product = matches!(operator, (b"", b"Gemm" | b"MatMul"));
    for field in OnnxFields::new(node) {
        if let (1, OnnxField::Bytes(input)) = field? {
            *uses.entry(input).or_insert(true) &= is_product;
        }
    }
    Ok(())
}

/// `TensorProto`: dims (1), data type (2), name (8) and raw data (9). `None` if the data are in another field or, by
/// their location (14), in another file.
fn read_weight(tensor: &[u8]) -> Result<Option<WeightMatrix<'_>>, String> {
    let (mut element, mut location, mut shape) = (0, 0, Shape::new());
    for field in OnnxFields::new(tensor) {
        match field? {
            (1, OnnxField::Varint(size)) => shape.push(size.cast_signed()),
            (1, OnnxField::Bytes(sizes)) => shape.extend(packed(sizes).into_iter().flatten()),
            (2, OnnxField::Varint(number)) => element = number,
            (14, OnnxField::Varint(number)) => location = number,
            _ => {}
        }
    }
    let contents = find(tensor, 9)?.unwrap_or_default();
    let name = std::str::from_utf8(find(tensor, 8)?.unwrap_or_default()).unwrap_or_default();
    let is_whole = byte_size(Datatype::Fp32, &shape) == Ok(Some(contents.len()));
    let is_wanted = element == FLOAT && location == 0 && is_whole && contents.len() >= SIZE_MIN && !name.is_empty();
    Ok(is_wanted.then_some(WeightMatrix { name, shape, contents }))
}

/// A packed list of varints; `None` if it is cut short.
fn packed(bytes: &[u8]) -> Option<Vec<i64>> {
    let mut fields = OnnxFields::new(bytes);
    let mut numbers = Vec::new();
    while !fields.is_empty() {
        numbers.push(fields.read_varint()?.cast_signed());
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
        let mut out = vec![field << 3 | 2];
        let mut size = value.len();
        while size >= 0x80 {
            out.push((size & 0x7f) as u8 | 0x80);
            size >>= 7;
        }
        out.push(size as u8);
        out.extend_from_slice(value);
        out
    }

    fn node(operator: &str, domain: &str, inputs: &[&str]) -> Vec<u8> {
        let inputs: Vec<u8> = inputs.iter().flat_map(|input| bytes(1, input.as_bytes())).collect();
        bytes(1, &[inputs, bytes(4, operator.as_bytes()), bytes(7, domain.as_bytes())].concat())
    }

    /// A tensor of 128 x 128 elements, with additional fields.
    fn tensor(name: &str, element: u8, dims: &[u8], more: &[u8]) -> Vec<u8> {
        bytes(5, &[dims, &[2 << 3, element], &bytes(8, name.as_bytes()), &bytes(9, &[7; SIZE_MIN]), more].concat())
    }

    fn names(graph: &[Vec<u8>]) -> String {
        let file = bytes(7, &graph.concat());
        let weights = matrix_weights(&file);
        assert!(
            weights.iter().all(|weight| weight.shape.as_slice() == [128, 128] && weight.contents.len() == SIZE_MIN)
        );
        weights.iter().map(|weight| weight.name).collect::<Vec<_>>().join(" ")
    }

    const DIMS: &[u8] = &[1 << 3, 0x80, 1, 1 << 3, 0x80, 1];

    #[test]
    fn only_weights_that_just_matrix_products_read_are_shared() {
        let weight = |name| tensor(name, 1, DIMS, &[]);
        let check = |nodes: &[Vec<u8>], want: &str| {
            let weights = [weight("a"), weight("b"), weight("c")];
            assert_eq!(names(&[nodes, &weights].concat()), want);
        };
        check(&[], "");
        check(&[node("MatMul", "", &["x", "a"]), node("Gemm", "", &["y", "b", "c"])], "a b c");
        check(&[node("MatMul", "", &["x", "a"]), node("Transpose", "", &["a"]), node("MatMul", "", &["x", "b"])], "b");
        check(&[node("MatMul", "com.example", &["x", "a"]), node("Conv", "", &["x", "b"])], "");
    }

    #[test]
    fn a_weight_has_all_its_floats_inline_or_is_not_shared() {
        let check = |weight: Vec<u8>, want: &str| {
            assert_eq!(names(&[node("MatMul", "", &["x", "a"]), weight]), want);
        };
        check(tensor("a", 1, DIMS, &[]), "a");
        check(tensor("a", 1, &[1 << 3 | 2, 4, 0x80, 1, 0x80, 1], &[]), "a");
        check(tensor("a", 1, &[1 << 3 | 2, 3, 0x80, 1, 0x80], &[]), "");
        check(tensor("a", 6, DIMS, &[]), "");
        check(tensor("a", 1, &DIMS[..3], &[]), "");
        check(tensor("a", 1, DIMS, &[14 << 3, 1]), "");
        assert_eq!(matrix_weights(b"no file"), []);
    }
}
