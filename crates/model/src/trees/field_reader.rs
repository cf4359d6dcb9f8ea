//! Little-endian fields of binary tree models, an array or text after its length (`u64`). A length is checked against
//! the bytes that are left before anything is reserved for it.

use crate::trees::Arithmetic;

/// The rest of a file, field by field.
pub(super) struct FieldReader<'a> {
    rest: &'a [u8],
    size: usize,
}

impl<'a> FieldReader<'a> {
    pub(super) const fn new(file: &'a [u8]) -> Self {
        Self { rest: file, size: file.len() }
    }

    /// The bytes that are not yet read.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, size: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or_else(|| {
            let (at, left) = (self.size.saturating_sub(self.rest.len()), self.rest.len());
            format!("it is cut off: {size} bytes are missing at byte {at}, and {left} are there")
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], String> {
        self.take(N)?.try_into().map_err(|_| "it is cut off".to_owned())
    }

    pub(super) fn byte(&mut self) -> Result<u8, String> {
        self.word().map(|[byte]| byte)
    }

    pub(super) fn int(&mut self) -> Result<i32, String> {
        self.word().map(i32::from_le_bytes)
    }

    pub(super) fn unsigned(&mut self) -> Result<u32, String> {
        self.word().map(u32::from_le_bytes)
    }

    pub(super) fn float(&mut self) -> Result<f32, String> {
        self.word().map(f32::from_le_bytes)
    }

    /// Reads a number of elements of `size` bytes each, all of which must be present.
    pub(super) fn count(&mut self, what: &str, size: usize) -> Result<usize, String> {
        let count = u64::from_le_bytes(self.word()?);
        let count = usize::try_from(count)
            .ok()
            .filter(|count| count.checked_mul(size).is_some_and(|size| size <= self.rest.len()));
        count.ok_or_else(|| format!("{what} is more than {} bytes can hold", self.rest.len()))
    }

    pub(super) fn skip_array(&mut self, size: usize) -> Result<(), String> {
        let count = self.count("the length of an array", size)?;
        self.take(count.saturating_mul(size)).map(|_| ())
    }

    /// Fields of later versions, which older ones ignore: a name and bytes each.
    pub(super) fn skip_optional(&mut self) -> Result<(), String> {
        for _ in 0..self.int()? {
            self.skip_array(1)?;
            let size = self.count("the size of an element", 1)?;
            self.skip_array(size)?;
        }
        Ok(())
    }

    pub(super) fn array<const N: usize, T>(&mut self, read: impl Fn(&[u8; N]) -> T) -> Result<Vec<T>, String> {
        let count = self.count("the length of an array", N)?;
        let (words, _) = self.take(count.saturating_mul(N))?.as_chunks::<N>();
        Ok(words.iter().map(read).collect())
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, String> {
        self.array(|[byte]| *byte)
    }

    pub(super) fn ints(&mut self) -> Result<Vec<i32>, String> {
        self.array(|word| i32::from_le_bytes(*word))
    }

    pub(super) fn longs(&mut self) -> Result<Vec<u64>, String> {
        self.array(|word| u64::from_le_bytes(*word))
    }

    pub(super) fn floats(&mut self) -> Result<Vec<f32>, String> {
        self.array(|word| f32::from_le_bytes(*word))
    }

    pub(super) fn doubles(&mut self) -> Result<Vec<f64>, String> {
        self.array(|word| f64::from_le_bytes(*word))
    }

    pub(super) fn reals(&mut self, arithmetic: Arithmetic) -> Result<Vec<f64>, String> {
        match arithmetic {
            Arithmetic::Double => self.doubles(),
            Arithmetic::Single => self.array(|word| f32::from_le_bytes(*word).into()),
        }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, String> {
        let count = self.count("the length of a text", 1)?;
        std::str::from_utf8(self.take(count)?).map_err(|_| "a text is not UTF-8".to_owned())
    }
}
