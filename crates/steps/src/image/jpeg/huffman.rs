//! Bits of a scan, and the codes in them (T.81 F.2.2).

/// A Huffman table, for lookup.
pub struct HuffmanTable {
    /// By the next [`LOOKUP_BITS`] bits: see [`HuffmanEntry`].
    lookup: [u32; 1 << LOOKUP_BITS],
    /// For each length of a code from 1, the first code that is longer, in 16 bits.
    ends: [u32; 17],
    /// For each length, the index of the symbol of code 0.
    offsets: [i32; 17],
    symbols: [u8; 256],
}

/// An entry of the lookup: a code alone, a code with the number behind it, or no code as short as that.
pub enum HuffmanEntry {
    /// A symbol, whose bits were taken.
    Symbol(u8),
    /// A number of a block after `run` zeros; all bits were taken.
    Number { run: usize, value: i16 },
}

impl HuffmanTable {
    /// Builds a table from the counts of codes of each length; `None` if the codes do not fit.
    pub fn new(counts: &[u8; 16], symbols: &[u8], is_ac: bool) -> Option<Self> {
        if symbols.len() > 256 || (!is_ac && symbols.iter().any(|symbol| *symbol > 15)) {
            return None;
        }
        let mut table = Self { lookup: [0; 1 << LOOKUP_BITS], ends: [0; 17], offsets: [0; 17], symbols: [0; 256] };
        table.symbols.get_mut(..symbols.len())?.copy_from_slice(symbols);
        let mut code = 0_u32;
        let mut index = 0_usize;
        for (length, count) in (1_u32..).zip(counts) {
            let count = usize::from(*count);
            *table.offsets.get_mut(length as usize)? = i32::try_from(index).ok()? - i32::try_from(code).ok()?;
            for symbol in symbols.get(index..index + count)? {
                table.fill(code, length, *symbol, is_ac)?;
                code += 1;
            }
            if code > 1 << length {
                return None;
            }
            index += count;
            *table.ends.get_mut(length as usize)? = code << (16 - length);
            code <<= 1;
        }
        Some(table)
    }

    fn fill(&mut self, code: u32, length: u32, symbol: u8, is_ac: bool) -> Option<()> {
        let Some(free) = LOOKUP_BITS.checked_sub(length) else { return Some(()) };
        let first = (code << free) as usize;
        for (rest, entry) in (0_u32..).zip(self.lookup.get_mut(first..first + (1 << free))?) {
            let size = u32::from(symbol & 15);
            *entry = if is_ac && size > 0 && size <= free {
                let value = extended((rest >> (free - size)).cast_signed(), size);
                (value << 16).cast_unsigned() | u32::from(symbol >> 4) << 8 | NUMBER | (length + size)
            } else {
                u32::from(symbol) << 8 | length
            };
        }
        Some(())
    }
}

/// The bits of a scan, from the most significant one. Behind them come zeros. A loop works on a copy, which
/// the compiler keeps in registers, so its rare parts take and return it.
#[derive(Clone, Copy)]
pub struct Bits<'a> {
    rest: &'a [u8],
    /// The next bits, from the top.
    buffer: u64,
    count: u32,
    /// Bits among the last ones that were added behind the end of the scan.
    added: u32,
}

impl<'a> Bits<'a> {
    pub const fn new(rest: &'a [u8]) -> Self {
        Self { rest, buffer: 0, count: 0, added: 0 }
    }

    /// Has 33 bits ready.
    #[inline(always)]
    pub fn refill(&mut self) {
        if self.count > 32 {
            return;
        }
        if let Some((word, rest)) = self.rest.split_first_chunk::<4>() {
            let word = u32::from_be_bytes(*word);
            let inverted = !word;
            // No byte is 0xFF, behind which a byte is stuffed or a marker begins.
            if inverted.wrapping_sub(0x0101_0101) & !inverted & 0x8080_8080 == 0 {
                self.buffer |= u64::from(word) << 32_u32.wrapping_sub(self.count);
                self.count = self.count.wrapping_add(32);
                self.rest = rest;
                return;
            }
        }
        *self = self.refilled_slowly();
    }

    #[cold]
    #[inline(never)]
    fn refilled_slowly(mut self) -> Self {
        while self.count <= 56 {
            let byte = match self.rest {
                [0xFF, 0, rest @ ..] => {
                    self.rest = rest;
                    0xFF
                }
                [] | [0xFF, ..] => {
                    self.added = self.added.saturating_add(8);
                    0
                }
                [byte, rest @ ..] => {
                    self.rest = rest;
                    *byte
                }
            };
            self.buffer |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
        self
    }

    /// Returns the next `count` bits, at most 16, without taking them.
    #[inline(always)]
    fn peek(&self, count: u32) -> u32 {
        (self.buffer >> 1 >> (63_u32.wrapping_sub(count) & 63)) as u32
    }

    #[inline(always)]
    fn skip(&mut self, count: u32) {
        self.buffer <<= count & 63;
        self.count = self.count.wrapping_sub(count);
    }

    /// Takes `count` bits, at most 16. [`Self::refill`] was called.
    #[inline(always)]
    pub fn take(&mut self, count: u32) -> u32 {
        let bits = self.peek(count);
        self.skip(count);
        bits
    }

    /// Takes a number of `size` bits, at most 15, whose first bit is its sign (T.81 F.2.2.1).
    #[inline(always)]
    pub fn number(&mut self, size: u32) -> i32 {
        extended(self.take(size).cast_signed(), size)
    }

    /// Takes a code and, for short ones, the number behind it. [`Self::refill`] was called; 17 bits are left.
    #[inline(always)]
    pub fn entry(&mut self, table: &HuffmanTable) -> HuffmanEntry {
        let entry = table.lookup.get(self.peek(LOOKUP_BITS) as usize).copied().unwrap_or(0);
        if entry & NUMBER != 0 {
            self.skip(entry & LENGTH);
            return HuffmanEntry::Number { run: (entry >> 8 & 15) as usize, value: (entry >> 16) as i16 };
        }
        if entry != 0 {
            self.skip(entry & LENGTH);
            return HuffmanEntry::Symbol((entry >> 8) as u8);
        }
        let (bits, symbol) = self.long_code(table);
        *self = bits;
        HuffmanEntry::Symbol(symbol)
    }

    /// Takes a code. [`Self::refill`] was called; 17 bits are left.
    #[inline(always)]
    pub fn symbol(&mut self, table: &HuffmanTable) -> u8 {
        let entry = table.lookup.get(self.peek(LOOKUP_BITS) as usize).copied().unwrap_or(0);
        if entry == 0 {
            let (bits, symbol) = self.long_code(table);
            *self = bits;
            return symbol;
        }
        if entry & NUMBER == 0 {
            self.skip(entry & LENGTH);
            return (entry >> 8) as u8;
        }
        // The entry holds the number too, which the caller reads by itself.
        let value = (entry.cast_signed() >> 16).unsigned_abs();
        let size = 32 - value.leading_zeros();
        self.skip((entry & LENGTH).wrapping_sub(size));
        ((entry >> 8 & 15) << 4 | size) as u8
    }

    /// A code that the lookup is too short for. One that no symbol has is 0, as in libjpeg.
    #[cold]
    #[inline(never)]
    fn long_code(mut self, table: &HuffmanTable) -> (Self, u8) {
        let bits = self.peek(16);
        for length in LOOKUP_BITS + 1..=16 {
            if table.ends.get(length as usize).is_some_and(|end| bits < *end) {
                self.skip(length);
                let code = (bits >> (16 - length)).cast_signed();
                let index = code + table.offsets.get(length as usize).copied().unwrap_or(0);
                let symbol = usize::try_from(index).ok().and_then(|index| table.symbols.get(index));
                return (self, symbol.copied().unwrap_or(0));
            }
        }
        self.skip(16);
        (self, 0)
    }

    /// Returns true if bits were taken that the scan does not have.
    #[inline(always)]
    pub const fn is_exhausted(&self) -> bool {
        self.added > self.count
    }

    /// Goes on behind a restart marker with this number; false if another marker or none comes.
    pub fn restart(&mut self, number: u8) -> bool {
        let filled = self.rest.iter().take_while(|byte| **byte == 0xFF).count();
        match self.rest.get(filled..) {
            Some([marker, rest @ ..]) if filled > 0 && *marker == 0xD0 + number && self.count - self.added < 8 => {
                *self = Self::new(rest);
                true
            }
            _ => false,
        }
    }

    /// The bytes from the marker behind the scan.
    pub const fn into_rest(self) -> &'a [u8] {
        self.rest
    }
}

#[inline(always)]
fn extended(bits: i32, size: u32) -> i32 {
    let half = 1_i32.wrapping_shl(size) >> 1;
    // Below half, the number is negative.
    let offset = 1_i32.wrapping_sub(half.wrapping_mul(2));
    bits.wrapping_add(if bits < half { offset } else { 0 })
}

/// Bits of the next lookup: codes of typical files are mostly shorter.
const LOOKUP_BITS: u32 = 10;
/// Marks an entry that has the number behind its code. Below it is the count of bits, above it the symbol or
/// the run of zeros, then the number.
const NUMBER: u32 = 0x80;
const LENGTH: u32 = 0x7F;
