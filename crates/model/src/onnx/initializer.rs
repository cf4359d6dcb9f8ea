//! Initial values of an ONNX file's inputs: the defaults of optional inputs. An engine that folds initial values into
//! the graph would ignore a value given by a request; it gets the file without them, and the default with every request
//! that leaves the input out. Called when a model with optional inputs is loaded. Bounded by the size of the file.

use crate::onnx::{OnnxField, OnnxFields, datatype, find};
use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor, byte_size};

/// The field of `ModelProto` with the graph.
const GRAPH: u32 = 7;
/// The field of `GraphProto` with initial values.
const INITIALIZER: u32 = 5;

/// Removes the initial values of the inputs `names` from an ONNX file. Returns the file without them, and the values in
/// the order of `names`.
///
/// # Errors
/// The reason, if the file is not protobuf, or a value is missing or cannot be read.
pub fn take_initial_values(file: &[u8], names: &[&str]) -> Result<(Vec<u8>, Vec<Tensor>), String> {
    let mut values = vec![None; names.len()];
    let mut rest_of_file = Vec::with_capacity(file.len());
    for part in MessageParts::new(file) {
        match part? {
            (bytes, GRAPH, OnnxField::Bytes(graph)) => {
                // A file has one graph. Its length changes, so its key and length are written again.
                let graph = take_from_graph(graph, names, &mut values)?;
                let key = bytes.first().copied().unwrap_or_default();
                rest_of_file.push(key);
                push_varint(graph.len() as u64, &mut rest_of_file);
                rest_of_file.extend_from_slice(&graph);
            }
            (bytes, ..) => rest_of_file.extend_from_slice(bytes),
        }
    }
    let missing = values.iter().zip(names).find(|(value, _)| value.is_none());
    if let Some((_, name)) = missing {
        return Err(format!("input '{name}' has no initial value"));
    }
    Ok((rest_of_file, values.into_iter().flatten().collect()))
}

fn take_from_graph(graph: &[u8], names: &[&str], values: &mut [Option<Tensor>]) -> Result<Vec<u8>, String> {
    let mut rest = Vec::with_capacity(graph.len());
    for part in MessageParts::new(graph) {
        let (bytes, number, field) = part?;
        if let (INITIALIZER, OnnxField::Bytes(tensor)) = (number, field) {
            let name = find(tensor, 8)?.unwrap_or_default();
            let index = names.iter().position(|wanted| wanted.as_bytes() == name);
            if let Some((place, name)) = index.and_then(|index| Some((values.get_mut(index)?, names.get(index)?))) {
                *place = Some(read_tensor(tensor).map_err(|reason| format!("input '{name}' has {reason}"))?);
                continue;
            }
        }
        rest.extend_from_slice(bytes);
    }
    Ok(rest)
}

/// `TensorProto`: dims (1), data type (2), and the elements as raw bytes (9) or in a list of the
/// type that carries them: floats (4), 32-bit (5) or 64-bit integers (7), doubles (10).
pub(super) fn read_tensor(tensor: &[u8]) -> Result<Tensor, String> {
    let (mut shape, mut element, mut raw) = (Shape::new(), 0, None);
    let (mut fixed, mut integers): (&[u8], Vec<i64>) = (&[], Vec::new());
    for field in OnnxFields::new(tensor) {
        match field? {
            (1, OnnxField::Varint(size)) => shape.push(size.cast_signed()),
            (1, OnnxField::Bytes(sizes)) => shape.extend(read_varints(sizes)?),
            (2, OnnxField::Varint(number)) => element = number,
            (4 | 10, OnnxField::Bytes(elements)) => fixed = elements,
            (5 | 7, OnnxField::Bytes(elements)) => integers.extend(read_varints(elements)?),
            (5 | 7, OnnxField::Varint(number)) => integers.push(number.cast_signed()),
            (9, OnnxField::Bytes(bytes)) => raw = Some(bytes),
            (13, OnnxField::Bytes(_)) => {
                return Err("its initial value in another file, which is not supported".to_owned());
            }
            _ => {}
        }
    }
    let datatype = datatype(element).ok_or("an initial value of a datatype that the protocol does not have")?;
    let mut contents = AlignedBuffer::default();
    match raw {
        Some(raw) => contents.extend_from_slice(raw),
        None if integers.is_empty() => contents.extend_from_slice(fixed),
        None => push_integers(datatype, &integers, &mut contents),
    }
    if byte_size(datatype, &shape) != Ok(Some(contents.as_slice().len())) {
        return Err("an initial value in an encoding that is not supported".to_owned());
    }
    Ok(Tensor { datatype, shape, contents: contents.freeze() })
}

/// Appends integers from a list that is wider than their datatype: the low bytes are the value.
fn push_integers(datatype: Datatype, integers: &[i64], contents: &mut AlignedBuffer) {
    let size = datatype.size().unwrap_or_default();
    for integer in integers {
        contents.extend_from_slice(integer.to_le_bytes().get(..size).unwrap_or_default());
    }
}

pub(super) fn read_varints(mut bytes: &[u8]) -> Result<Vec<i64>, String> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        let mut fields = OnnxFields::new(bytes);
        let number = fields.read_varint().ok_or("an initial value that is cut short")?;
        numbers.push(number.cast_signed());
        bytes = fields.rest();
    }
    Ok(numbers)
}

pub(super) fn push_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Iterates over the fields of a message with their encoded bytes, including the key.
pub(super) struct MessageParts<'a> {
    fields: OnnxFields<'a>,
}

impl<'a> MessageParts<'a> {
    pub(super) const fn new(message: &'a [u8]) -> Self {
        Self { fields: OnnxFields::new(message) }
    }
}

impl<'a> Iterator for MessageParts<'a> {
    type Item = Result<(&'a [u8], u32, OnnxField<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        let before = self.fields.rest();
        let field = self.fields.next()?;
        let size = before.len() - self.fields.rest().len();
        Some(field.map(|(number, field)| (before.get(..size).unwrap_or_default(), number, field)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::OnnxSignature;

    fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
        let mut out = vec![field << 3 | 2];
        push_varint(value.len() as u64, &mut out);
        out.extend_from_slice(value);
        out
    }

    fn tensor(name: &str, element: u8, fields: &[&[u8]]) -> Vec<u8> {
        bytes(5, &[&[0x08, 2, 0x10, element], &fields.concat()[..], &bytes(8, name.as_bytes())].concat())
    }

    fn value(field: u8, name: &str) -> Vec<u8> {
        // type { tensor { elem 1, shape { dim { 2 } } } }
        let tensor = [0x0a, 8, 0x08, 1, 0x12, 4, 0x0a, 2, 0x08, 2];
        bytes(field, &[bytes(1, name.as_bytes()), bytes(2, &tensor)].concat())
    }

    fn file(tensors: &[Vec<u8>]) -> Vec<u8> {
        let graph = [value(11, "x"), tensors.concat(), value(11, "a"), value(12, "y")].concat();
        [&[0x08, 8][..], &bytes(7, &graph), &bytes(8, &[0x10, 13])].concat()
    }

    #[test]
    fn values_are_removed_in_every_encoding_and_the_rest_stays_the_same() {
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let check = |element: u8, fields: &[&[u8]], datatype: Datatype, want: &[u8]| {
            let whole = file(&[tensor("w", 1, &[&bytes(9, &floats(&[7.0, 8.0]))]), tensor("a", element, fields)]);
            let (rest, values) = take_initial_values(&whole, &["a"]).unwrap();
            let shape = Shape::from_slice(&[2]);
            assert_eq!(values, [Tensor { datatype, shape, contents: want.to_vec().into() }]);
            let inputs = |file: &[u8]| {
                let signature = OnnxSignature::decode(file).unwrap();
                let names = signature.inputs.into_iter().map(|input| input.name);
                (names.collect::<Vec<_>>(), signature.initialized.into_iter().map(|input| input.name).collect())
            };
            assert_eq!(inputs(&whole), (vec!["x".to_owned()], vec!["a".to_owned()]));
            assert_eq!(inputs(&rest), (vec!["x".to_owned(), "a".to_owned()], Vec::new()));
            assert_eq!(rest, file(&[tensor("w", 1, &[&bytes(9, &floats(&[7.0, 8.0]))])]));
        };
        let want = floats(&[1.5, -2.0]);
        check(1, &[&bytes(9, &want)], Datatype::Fp32, &want);
        check(1, &[&bytes(4, &want)], Datatype::Fp32, &want);
        let minus_one = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        check(6, &[&bytes(5, &[&[5][..], &minus_one].concat())], Datatype::Int32, &[5, 0, 0, 0, 255, 255, 255, 255]);
        check(3, &[&[0x28, 5, 0x28, 6]], Datatype::Int8, &[5, 6]);
        check(7, &[&bytes(7, &[1, 2])], Datatype::Int64, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_missing_or_unreadable_value_is_refused_with_its_reason() {
        let check = |file: &[u8], want: &str| {
            assert_eq!(take_initial_values(file, &["a"]).unwrap_err(), want);
        };
        check(&file(&[]), "input 'a' has no initial value");
        check(&file(&[tensor("a", 1, &[])]), "input 'a' has an initial value in an encoding that is not supported");
        let elsewhere = tensor("a", 1, &[&bytes(13, b"w.bin")]);
        check(&file(&[elsewhere]), "input 'a' has its initial value in another file, which is not supported");
        let strange = tensor("a", 14, &[&bytes(9, &[0; 8])]);
        check(&file(&[strange]), "input 'a' has an initial value of a datatype that the protocol does not have");
        let whole = file(&[tensor("a", 1, &[&bytes(9, &[0; 8])])]);
        for at in 0..whole.len() {
            let _ = take_initial_values(&whole[..at], &["a"]);
        }
    }
}
