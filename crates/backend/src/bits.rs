//! BOOL elements for libraries in C++, where a byte that is neither 0 nor 1 is not a bool.

use base::error::Error;
use base::tensor::AlignedBuffer;

/// Appends BOOL elements as 0 or 1.
///
/// # Errors
/// None; the signature is that of a conversion.
pub fn bools_to_bits(contents: &[u8], out: &mut AlignedBuffer) -> Result<(), Error> {
    let from = out.len();
    out.extend_from_slice(contents);
    let new = out.as_mut_slice().get_mut(from..).unwrap_or_default();
    new.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bools_become_one_or_zero_after_what_is_there() {
        let mut out = AlignedBuffer::default();
        out.extend_from_slice(&[7]);
        bools_to_bits(&[0, 1, 2, 255], &mut out).unwrap();
        assert_eq!(out.as_slice(), [7, 0, 1, 1, 1]);
    }
}
