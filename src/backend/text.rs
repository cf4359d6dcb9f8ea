//! Shapes and datatypes as Triton's texts write them, for the errors of the backends.

use std::fmt;

use crate::tensor::Datatype;

/// A shape as Triton writes it: `[-1,16]`.
pub struct ShapeText<'a>(pub &'a [i64]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, dimension) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{dimension}")?;
        }
        f.write_str("]")
    }
}

/// A datatype as `config.pbtxt` writes it.
pub fn config_name(datatype: Datatype) -> String {
    let name = if datatype == Datatype::Bytes { "STRING" } else { datatype.name() };
    format!("TYPE_{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tritons() {
        assert_eq!(ShapeText(&[-1, 16]).to_string(), "[-1,16]");
        assert_eq!(ShapeText(&[]).to_string(), "[]");
        assert_eq!(config_name(Datatype::Fp32), "TYPE_FP32");
        assert_eq!(config_name(Datatype::Bytes), "TYPE_STRING");
    }
}
