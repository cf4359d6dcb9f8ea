//! The weights of a Dense module in a safetensors file.

use wire::safetensors::{TensorEntry, read_header};

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

/// Reads the tensors `linear.weight` and `linear.bias`.
///
/// # Errors
/// A text if the file is not safetensors, or has no such matrix.
pub fn read(file: &[u8]) -> Result<DenseWeights, String> {
    let entries = read_header(file).map_err(|why| format!("is not a safetensors file: {why}"))?;
    let (matrix, shape) = tensor(&entries, file, "linear.weight")?.ok_or("has no tensor linear.weight")?;
    let [rows, columns] = shape[..] else {
        return Err(format!("'linear.weight' must have two dimensions, but is {shape:?}"));
    };
    if rows == 0 || columns == 0 {
        return Err("'linear.weight' is empty".to_owned());
    }
    let bias = match tensor(&entries, file, "linear.bias")? {
        None => vec![0.0; rows],
        Some((bias, shape)) if shape == [rows] => bias,
        Some((_, shape)) => return Err(format!("'linear.bias' must have the shape [{rows}], but is {shape:?}")),
    };
    Ok(DenseWeights { matrix, bias, columns })
}

/// The values of a tensor, and its shape.
type ShapedValues = (Vec<f32>, Vec<usize>);

/// The numbers and the shape of a tensor; `None` if the file does not have it.
fn tensor(entries: &[TensorEntry], file: &[u8], name: &str) -> Result<Option<ShapedValues>, String> {
    let Some(entry) = entries.iter().find(|entry| entry.name == name) else { return Ok(None) };
    let bytes = file.get(entry.begin..entry.end).unwrap_or_default();
    let values = entry.element.floats(bytes);
    let values = values.ok_or_else(|| format!("'{name}': must be F32, F16 or BF16"))?;
    Ok(Some((values, entry.shape.clone())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(super) mod tests {
    use half::{bf16, f16};

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
        let broken = |file: &[u8], why: &str| check(file, &format!("is not a safetensors file: {why}"));
        broken(b"", "it is shorter than the 8 bytes before its header");
        broken(&framed("[]", &[]), "its header is not a JSON object");
        check(&framed("{}", &[]), "has no tensor linear.weight");
        let entry = |rest: &str| framed(&format!("{{\"linear.weight\": {rest}}}"), &[0; 8]);
        broken(&entry("{}"), "tensor 'linear.weight': it has no 'dtype'");
        let whole = "{\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [0, 8]}";
        check(&entry(whole), "'linear.weight': must be F32, F16 or BF16");
        let weight = |shape: &[usize], values: &[f32]| file(&[("linear.weight", "F32", shape, values)]);
        check(&weight(&[2], &[1.0, 2.0]), "'linear.weight' must have two dimensions, but is [2]");
        check(&weight(&[0, 2], &[]), "'linear.weight' is empty");
        let bias = file(&[("linear.weight", "F32", &[1, 1], &[1.0]), ("linear.bias", "F32", &[2], &[1.0, 2.0])]);
        check(&bias, "'linear.bias' must have the shape [1], but is [2]");
    }
}
