//! The bits of a FLAC frame, most significant first.

/// Reads bits; `None` at the end of the bytes.
#[derive(Clone)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    /// The next byte that is not in `word`.
    at: usize,
    /// The next bits, from the top.
    word: u64,
    /// The count of bits in `word`. Behind them are more of the same bytes, or zeros.
    count: u32,
}

impl<'a> BitReader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, word: 0, count: 0 }
    }

    /// The number of bytes that were read, the last one perhaps in part.
    pub fn position(&self) -> usize {
        self.at - (self.count / 8) as usize
    }

    /// Skips the rest of a byte.
    pub const fn align(&mut self) {
        let rest = self.count % 8;
        self.word <<= rest;
        self.count -= rest;
    }

    /// The next `size` bits as a number, at most 56.
    #[inline(always)]
    pub fn bits(&mut self, size: u32) -> Option<u64> {
        if self.count < size {
            self.fill();
            if self.count < size {
                return None;
            }
        }
        // In two steps: a shift by 64 overflows.
        let value = self.word >> 1 >> (63 - size);
        self.word <<= size;
        self.count -= size;
        Some(value)
    }

    /// The next `size` bits as a number with a sign.
    #[inline(always)]
    pub fn signed(&mut self, size: u32) -> Option<i64> {
        let shift = 64 - size.clamp(1, 64);
        self.bits(size).map(|value| value.cast_signed() << shift >> shift)
    }

    /// The count of zeros before the next one, which is read too.
    #[inline(always)]
    pub fn unary(&mut self) -> Option<u64> {
        let mut total = 0;
        loop {
            let zeros = self.word.leading_zeros();
            if zeros < self.count {
                self.word = self.word << zeros << 1;
                self.count -= zeros + 1;
                return Some(total + u64::from(zeros));
            }
            total += u64::from(self.count);
            (self.word, self.count) = (0, 0);
            self.fill();
            if self.count == 0 {
                return None;
            }
        }
    }

    /// Takes as many whole bytes as there is room for.
    #[inline(always)]
    fn fill(&mut self) {
        if let Some(next) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk) {
            self.word |= u64::from_be_bytes(*next) >> self.count;
            let taken = (63 - self.count) / 8;
            self.at += taken as usize;
            self.count += taken * 8;
            return;
        }
        while self.count <= 56
            && let Some(byte) = self.bytes.get(self.at)
        {
            self.word |= u64::from(*byte) << (56 - self.count);
            self.at += 1;
            self.count += 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_bytes() {
        let bytes: Vec<_> = (0_u8..40).map(|byte| byte.wrapping_mul(37) ^ 0x5A).collect();
        let text: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
        for size in 1..=56 {
            let (mut reader, mut rest) = (BitReader::new(&bytes), text.as_str());
            while let Some((head, tail)) = rest.split_at_checked(size) {
                assert_eq!(reader.bits(size as u32), u64::from_str_radix(head, 2).ok(), "{size}");
                assert_eq!(reader.position(), (text.len() - tail.len()).div_ceil(8));
                rest = tail;
            }
            assert_eq!(reader.bits(size as u32), None);
        }
        let (mut reader, mut rest) = (BitReader::new(&bytes), text.as_str());
        while let Some((zeros, tail)) = rest.split_once('1') {
            assert_eq!(reader.unary(), Some(zeros.len() as u64));
            rest = tail;
        }
        assert_eq!(reader.unary(), None);
        let long = [[0; 30].as_slice(), &[1]].concat();
        assert_eq!(BitReader::new(&long).unary(), Some(247));
        assert_eq!(BitReader::new(&[0b1010_0000]).signed(3), Some(-3));
        assert_eq!(BitReader::new(&[0b1010_0000]).signed(0), Some(0));
        let mut reader = BitReader::new(&bytes);
        assert_eq!((reader.bits(3).is_some(), reader.align(), reader.position()), (true, (), 1));
    }
}
