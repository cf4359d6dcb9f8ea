//! The weights of a Dense module in a safetensors file: eight bytes with the size of a JSON header, the header, the tensors.

use half::{bf16, f16};
use wire::json::placed;
use wire::placed::{PlacedMember, PlacedValue};

/// A matrix and a bias.
#[derive(Debug)]
pub struct DenseWeights {
    /// The matrix, row by row.
    pub matrix: Vec<f32>,
    /// A number for each row; zeros if the file has none.
    pub bias: Vec<f32>,
    /// The columns of the matrix; at least one.
    pub columns: usize,
}

/// Bytes of a header. That of a module has a few hundred.
const HEADER_SIZE_MAX: usize = 1 << 20;

/// Reads the tensors `linear.weight` and `linear.bias`.
///
/// # Errors
/// A text if the file is not safetensors, or has no such matrix.
pub fn read(file: &[u8]) -> Result<DenseWeights, String> {
    let broken = || "is not a safetensors file".to_owned();
    let (size, rest) = file.split_first_chunk::<8>().ok_or_else(broken)?;
    let size = usize::try_from(u64::from_le_bytes(*size)).ok().filter(|size| *size <= HEADER_SIZE_MAX);
    let (header, tensors) = size.and_then(|size| rest.split_at_checked(size)).ok_or_else(broken)?;
    let header = std::str::from_utf8(header).map_err(|_| broken())?;
    let header = placed::read(header).map_err(|error| format!("has a header that is not JSON: {}", error.text))?;
    let PlacedValue::Table(members) = header.value else { return Err(broken()) };
    let (matrix, shape) = tensor(&members, tensors, "linear.weight")?.ok_or("has no tensor linear.weight")?;
    let [rows, columns] = shape[..] else {
        return Err(format!("'linear.weight' must have two dimensions, but is {shape:?}"));
    };
    if rows == 0 || columns == 0 {
        return Err("'linear.weight' is empty".to_owned());
    }
    let bias = match tensor(&members, tensors, "linear.bias")? {
        None => vec![0.0; rows],
        Some((bias, shape)) if shape == [rows] => bias,
        Some((_, shape)) => return Err(format!("'linear.bias' must have the shape [{rows}], but is {shape:?}")),
    };
    Ok(DenseWeights { matrix, bias, columns })
}

/// The values of a tensor, and its shape.
type ShapedValues = (Vec<f32>, Vec<usize>);

/// The numbers and the shape of a tensor; `None` if the file does not have it.
fn tensor(members: &[PlacedMember], tensors: &[u8], name: &str) -> Result<Option<ShapedValues>, String> {
    let Some(entry) = members.iter().find(|member| member.name == name) else { return Ok(None) };
    let wrong = |what: &str| format!("'{name}': {what}");
    let PlacedValue::Table(fields) = &entry.value.value else { return Err(wrong("its entry is not an object")) };
    let field = |field: &str| fields.iter().find(|member| member.name == field).map(|member| &member.value.value);
    let numbers = |of: &str| match field(of) {
        Some(PlacedValue::List(list)) if list.len() <= 8 => {
            let number = |value: &wire::placed::Placed| match &value.value {
                PlacedValue::Number(text) => text.parse::<usize>().ok(),
                _ => None,
            };
            list.iter().map(number).collect::<Option<Vec<usize>>>()
        }
        _ => None,
    };
    let shape = numbers("shape").ok_or_else(|| wrong("its shape is malformed"))?;
    let place = numbers("data_offsets").and_then(|offsets| <[usize; 2]>::try_from(offsets).ok());
    let bytes = place.and_then(|[start, end]| tensors.get(start..end)).ok_or_else(|| wrong("lies beyond the file"))?;
    let values: Vec<f32> = match field("dtype") {
        Some(PlacedValue::String(kind)) if kind == "F32" => each(bytes, f32::from_le_bytes),
        Some(PlacedValue::String(kind)) if kind == "F16" => each(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Some(PlacedValue::String(kind)) if kind == "BF16" => each(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        _ => return Err(wrong("must be F32, F16 or BF16")),
    };
    let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
    if count != Some(values.len()) {
        return Err(wrong(&format!("has the shape {shape:?}, but {} numbers", values.len())));
    }
    Ok(Some((values, shape)))
}

fn each<const SIZE: usize>(bytes: &[u8], read: impl Fn([u8; SIZE]) -> f32) -> Vec<f32> {
    bytes.chunks_exact(SIZE).filter_map(|chunk| <[u8; SIZE]>::try_from(chunk).ok()).map(read).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(super) mod tests {
    use super::*;

    /// A file with these tensors: name, datatype, shape, numbers.
    pub fn file(tensors: &[(&str, &str, &[usize], &[f32])]) -> Vec<u8> {
        let (mut header, mut contents) = (Vec::new(), Vec::new());
        for (name, kind, shape, values) in tensors {
            let start = contents.len();
            for value in *values {
                match *kind {
                    "F16" => contents.extend(f16::from_f32(*value).to_le_bytes()),
                    "BF16" => contents.extend(bf16::from_f32(*value).to_le_bytes()),
                    _ => contents.extend(value.to_le_bytes()),
                }
            }
            let end = contents.len();
            header.push(format!(
                r#""{name}": {{"dtype": "{kind}", "shape": {shape:?}, "data_offsets": [{start}, {end}]}}"#
            ));
        }
        framed(&format!("{{{}}}", header.join(", ")), &contents)
    }

    fn framed(header: &str, contents: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), contents].concat()
    }

    #[test]
    fn matrices_of_three_datatypes_are_read() {
        for kind in ["F32", "F16", "BF16"] {
            let weights = file(&[("linear.weight", kind, &[2, 2], &[1.0, -2.0, 0.5, 4.0])]);
            let weights = read(&weights).unwrap();
            assert_eq!(
                (&weights.matrix[..], &weights.bias[..]),
                (&[1.0, -2.0, 0.5, 4.0][..], &[0.0, 0.0][..]),
                "{kind}"
            );
        }
    }

    #[test]
    fn malformed_files_are_refused() {
        let check = |file: &[u8], want: &str| assert_eq!(read(file).unwrap_err(), want);
        check(b"", "is not a safetensors file");
        check(&u64::MAX.to_le_bytes(), "is not a safetensors file");
        check(&[&9_u64.to_le_bytes()[..], b"{}"].concat(), "is not a safetensors file");
        check(&framed("[]", &[]), "is not a safetensors file");
        check(&framed("{", &[]), "has a header that is not JSON: Missing a name for object member.");
        check(&framed("{}", &[]), "has no tensor linear.weight");
        let entry = |rest: &str| framed(&format!("{{\"linear.weight\": {rest}}}"), &[0; 8]);
        check(&entry("1"), "'linear.weight': its entry is not an object");
        check(&entry("{}"), "'linear.weight': its shape is malformed");
        check(&entry("{\"shape\": [1]}"), "'linear.weight': lies beyond the file");
        check(&entry("{\"shape\": [1], \"data_offsets\": [4, 2]}"), "'linear.weight': lies beyond the file");
        check(&entry("{\"shape\": [1], \"data_offsets\": [0, 9]}"), "'linear.weight': lies beyond the file");
        check(&entry("{\"shape\": [1], \"data_offsets\": [0, 8]}"), "'linear.weight': must be F32, F16 or BF16");
        let huge = format!("{{\"shape\": [{0}, {0}], \"data_offsets\": [0, 8], \"dtype\": \"F32\"}}", 1_u64 << 40);
        check(&entry(&huge), "'linear.weight': has the shape [1099511627776, 1099511627776], but 2 numbers");
        let weight = |shape: &[usize], values: &[f32]| file(&[("linear.weight", "F32", shape, values)]);
        check(&weight(&[2], &[1.0, 2.0]), "'linear.weight' must have two dimensions, but is [2]");
        check(&weight(&[0, 2], &[]), "'linear.weight' is empty");
        let bias = file(&[("linear.weight", "F32", &[1, 1], &[1.0]), ("linear.bias", "F32", &[2], &[1.0, 2.0])]);
        check(&bias, "'linear.bias' must have the shape [1], but is [2]");
    }
}
