//! The strings that a step writes, within a bound.

use base::error::Error;
use base::tensor::strings::encode;
use base::tensor::{Datatype, Shape, Tensor};

use crate::limits::TEXTS_SIZE_MAX;

/// A `BYTES` tensor that is being written.
pub struct TextWriter {
    contents: Vec<u8>,
}

impl Default for TextWriter {
    fn default() -> Self {
        // A few labels need no second allocation.
        Self { contents: Vec::with_capacity(256) }
    }
}

impl TextWriter {
    /// Appends a string.
    ///
    /// # Errors
    /// If the tensor would become larger than [`TEXTS_SIZE_MAX`]: the text names the port.
    pub fn push(&mut self, port: &str, text: &[u8]) -> Result<(), Error> {
        if self.contents.len().saturating_add(text.len()) > TEXTS_SIZE_MAX {
            return Err(Error::invalid(format!("'{port}' would be larger than {TEXTS_SIZE_MAX} bytes")));
        }
        encode(text, &mut self.contents);
        Ok(())
    }

    /// Returns the tensor; the caller pushed a string for each element of the shape.
    pub fn into_tensor(self, shape: Shape) -> Tensor {
        Tensor { datatype: Datatype::Bytes, shape, contents: self.contents.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_of_strings_has_a_bound() {
        let mut writer = TextWriter::default();
        writer.push("labels", b"cat").unwrap();
        let text = vec![b'x'; TEXTS_SIZE_MAX];
        let error = writer.push("labels", &text).unwrap_err();
        assert_eq!(error.text(), "'labels' would be larger than 67108864 bytes");
        assert_eq!(writer.into_tensor(Shape::from_slice(&[1])).contents[..], *b"\x03\0\0\0cat");
    }
}
