//! The symbols of first dimensions in an ONNX file. Two first dimensions with different symbols may have different sizes,
//! so that they are not the batch axis of the model.

use crate::onnx::{OnnxField, OnnxFields, OnnxSignature, find};

impl OnnxSignature {
    /// Names two tensors whose first dimensions have different symbols, as in `'x' [points] and 'y' [faces]`; `None` if
    /// no two differ. Symbols that exporters number say nothing: they are new for each tensor.
    pub fn first_axes_that_differ(&self) -> Option<String> {
        let mut named = self.first_axes.iter().filter(|(_, symbol)| !is_numbered(symbol));
        let (first, symbol) = named.next()?;
        let (other, differs) = named.find(|(_, other)| other != symbol)?;
        Some(format!("'{first}' [{}] and '{other}' [{}]", symbol.escape_debug(), differs.escape_debug()))
    }
}

/// The symbol of the first dimension of a `ValueInfoProto`: of its type (2), tensor type (1), shape (2), dimension (1),
/// the symbol (2). `None` without one.
///
/// # Errors
/// If the message is not protobuf.
pub(super) fn first_symbol(value: &[u8]) -> Result<Option<String>, String> {
    let kind = find(value, 2)?.unwrap_or_default();
    let tensor = find(kind, 1)?.unwrap_or_default();
    for field in OnnxFields::new(find(tensor, 2)?.unwrap_or_default()) {
        if let (1, OnnxField::Bytes(dimension)) = field? {
            let symbol = find(dimension, 2)?.and_then(|symbol| std::str::from_utf8(symbol).ok());
            return Ok(symbol.filter(|symbol| !symbol.is_empty()).map(str::to_owned));
        }
    }
    Ok(None)
}

/// Returns true if an exporter made the symbol up for one tensor: tf2onnx (`unk__7`), PyTorch (`Gemmy_dim_0`,
/// `x_dynamic_axes_1`), Paddle (`p2o.DynamicDimension.0`), shape inference of ONNX Runtime (`unk_3`).
fn is_numbered(symbol: &str) -> bool {
    let stem = symbol.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_open = ["?", "-1", "None", "none"].contains(&symbol);
    let ends = ["_dim_", "_dynamic_axes_", "DynamicDimension."];
    is_open || (stem != symbol && (["unk__", "unk_"].contains(&stem) || ends.iter().any(|end| stem.ends_with(end))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_axes_differ_by_their_names_unless_an_exporter_numbered_them() {
        let check = |symbols: &[&str], want: Option<&str>| {
            let first_axes = ["x", "y", "z"].iter().zip(symbols);
            let first_axes = first_axes.map(|(name, symbol)| ((*name).to_owned(), (*symbol).to_owned())).collect();
            let signature = OnnxSignature { first_axes, ..OnnxSignature::default() };
            assert_eq!(signature.first_axes_that_differ().as_deref(), want, "{symbols:?}");
        };
        check(&[], None);
        check(&["batch", "batch", "batch"], None);
        check(&["nodes", "nodes", "edges"], Some("'x' [nodes] and 'z' [edges]"));
        check(&["unk__7", "unk__8", "batch"], None);
        check(&["batch", "Gemmy_dim_0", "batch"], None);
        check(&["batch", "p2o.DynamicDimension.0", "x_dynamic_axes_1"], None);
        check(&["s0", "s1"], Some("'x' [s0] and 'y' [s1]"));
        check(&["?", "batch_size", "N"], Some("'y' [batch_size] and 'z' [N]"));
    }
}
