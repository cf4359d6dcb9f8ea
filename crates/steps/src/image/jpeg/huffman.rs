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
    /// A symbol, whose bits were taken: 16 at most.
    Symbol(u8),
    /// A number of a block after `run` zeros; all bits were taken: [`LOOKUP_BITS`] at most.
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

/// The bits of a scan up to a restart marker or its end, from the most significant one. Behind them come zeros.
pub struct Bits<'a> {
    /// The file from the marker on.
    rest: &'a [u8],
    /// The bytes before the marker, without those that are stuffed, then [`PADDING`].
    bytes: Vec<u8>,
    reader: ScanReader,
}

/// The place in the bytes. A loop works on a copy, which the compiler keeps in registers.
#[derive(Clone, Copy, Default)]
pub struct ScanReader {
    /// The next bits, from the top: those below the `count` first ones are right too, or 0.
    buffer: u64,
    count: u32,
    /// The first byte that is not among the `count` bits.
    at: usize,
}

impl ScanReader {
    /// Has 56 bits ready.
    #[inline(always)]
    pub fn refill(&mut self, bytes: &[u8]) {
        let word = bytes.get(self.at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_be_bytes(*word));
        self.buffer |= word >> (self.count & 63);
        self.at = self.at.wrapping_add((63_u32.wrapping_sub(self.count) >> 3) as usize);
        self.count |= 56;
    }

    /// Returns the next `count` bits, at most 16, without taking them.
    #[inline(always)]
    const fn peek(&self, count: u32) -> u32 {
        (self.buffer >> 1 >> (63_u32.wrapping_sub(count) & 63)) as u32
    }

    #[inline(always)]
    const fn skip(&mut self, count: u32) {
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

    /// Takes a code and, for short ones, the number behind it. [`Self::refill`] was called.
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

    /// Takes a code. [`Self::refill`] was called.
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

    /// Takes the code of a first coefficient, and the number behind it. [`Self::refill`] was called.
    #[inline(always)]
    pub fn difference(&mut self, table: &HuffmanTable) -> i32 {
        let size = u32::from(self.symbol(table) & 15);
        self.number(size)
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
}

impl<'a> Bits<'a> {
    pub fn new(scan: &'a [u8]) -> Self {
        let mut bits = Self { rest: scan, bytes: Vec::new(), reader: ScanReader::default() };
        bits.read_segment();
        bits
    }

    /// The reader, and the bytes that it reads.
    #[inline(always)]
    pub fn parts(&mut self) -> (&mut ScanReader, &[u8]) {
        (&mut self.reader, &self.bytes)
    }

    /// Takes over the bytes before the next marker.
    fn read_segment(&mut self) {
        self.bytes.clear();
        self.reader = ScanReader::default();
        loop {
            let (chunks, _) = self.rest.as_chunks::<32>();
            // A loop without an exit becomes vector code.
            let is_plain = |chunk: &[u8; 32]| !chunk.iter().fold(false, |found, byte| found | (*byte == 0xFF));
            let plain = chunks.iter().take_while(|chunk| is_plain(chunk)).count() * 32;
            let last = self.rest.get(plain..).unwrap_or_default();
            let size = plain + last.iter().position(|byte| *byte == 0xFF).unwrap_or(last.len());
            let (plain, rest) = self.rest.split_at_checked(size).unwrap_or((self.rest, &[]));
            self.bytes.extend_from_slice(plain);
            self.rest = rest;
            match rest {
                [0xFF, 0, rest @ ..] => {
                    self.bytes.push(0xFF);
                    self.rest = rest;
                }
                _ => break,
            }
        }
        self.bytes.extend_from_slice(&[0; PADDING]);
    }

    /// Bits that were not taken; below 0 if bits were taken that the scan does not have.
    #[inline(always)]
    const fn left(&self) -> i64 {
        let size = self.bytes.len().saturating_sub(PADDING).cast_signed() as i64;
        let at = self.reader.at.cast_signed() as i64;
        size.wrapping_sub(at).wrapping_mul(8).wrapping_add(self.reader.count as i64)
    }

    /// Returns true if bits were taken that the scan does not have.
    #[inline(always)]
    pub const fn is_exhausted(&self) -> bool {
        self.left() < 0
    }

    /// Goes on behind a restart marker with this number; false if another marker or none comes.
    pub fn restart(&mut self, number: u8) -> bool {
        let filled = self.rest.iter().take_while(|byte| **byte == 0xFF).count();
        match self.rest.get(filled..) {
            Some([marker, rest @ ..]) if filled > 0 && *marker == 0xD0 + number && self.left() < 8 => {
                self.rest = rest;
                self.read_segment();
                true
            }
            _ => false,
        }
    }

    /// The bytes from the marker behind the scan.
    pub fn into_rest(self) -> &'a [u8] {
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

/// Bits of the lookup: codes of typical files are mostly shorter.
const LOOKUP_BITS: u32 = 10;
/// Marks an entry that has the number behind its code. Below it is the count of bits, above it the symbol or
/// the run of zeros, then the number.
const NUMBER: u32 = 0x80;
const LENGTH: u32 = 0x7F;
/// Entries in a row that a refill is enough for, if all but the last one have their number: the last one has up to 16
/// bits, and 15 more behind it.
pub const ENTRIES: u32 = (56 - 31) / LOOKUP_BITS + 1;
/// Bytes that a refill may read behind the last one.
const PADDING: usize = 8;
