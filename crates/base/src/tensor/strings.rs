//! `BYTES` tensors: each element a 4-byte little-endian length, then its bytes.

/// Bytes of the length before each element.
pub const LENGTH_SIZE: usize = 4;

/// The reason why the contents of a `BYTES` tensor could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringsError {
    /// Fewer than 4 bytes are left for a length; the number of bytes left.
    Length(usize),
    /// The length of an element is more than the bytes left.
    Element {
        /// Length of the element.
        claimed: usize,
        /// Bytes left.
        left: usize,
    },
}

/// The elements of a `BYTES` tensor in order; ends after the first error.
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    rest: &'a [u8],
}

impl<'a> Strings<'a> {
    /// An iterator over the contents of a tensor.
    pub const fn new(contents: &'a [u8]) -> Self {
        Self { rest: contents }
    }
}

impl<'a> Iterator for Strings<'a> {
    type Item = Result<&'a [u8], StringsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Some((length, rest)) = self.rest.split_first_chunk::<LENGTH_SIZE>() else {
            let left = self.rest.len();
            self.rest = &[];
            return Some(Err(StringsError::Length(left)));
        };
        let claimed = u32::from_le_bytes(*length) as usize;
        let Some((element, rest)) = rest.split_at_checked(claimed) else {
            self.rest = &[];
            return Some(Err(StringsError::Element { claimed, left: rest.len() }));
        };
        self.rest = rest;
        Some(Ok(element))
    }
}

/// Appends one element. Its length must fit 32 bits, as it does for any element that came in a body.
#[inline]
pub fn encode(element: &[u8], out: &mut Vec<u8>) {
    let length = u32::try_from(element.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(element);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_read_back_and_wrong_lengths_are_errors() {
        let mut contents = Vec::new();
        for element in [&b"one"[..], b"", b"\xff\x00"] {
            encode(element, &mut contents);
        }
        let got: Result<Vec<_>, _> = Strings::new(&contents).collect();
        assert_eq!(got, Ok(vec![&b"one"[..], b"", b"\xff\x00"]));

        let check = |contents: &[u8], want| assert_eq!(Strings::new(contents).last(), Some(Err(want)));
        check(&[1, 0, 0, 0, b'a', 9], StringsError::Length(1));
        check(&[3, 0, 0, 0, b'a'], StringsError::Element { claimed: 3, left: 1 });
        check(&[255, 255, 255, 255], StringsError::Element { claimed: u32::MAX as usize, left: 0 });
    }
}
