//! Decodes field blocks (RFC 7541 §3, §6).

use super::dynamic_table::DynamicTable;
use super::field::HeaderField;
use super::{DecodeError, TABLE_SIZE_MAX, integer, static_table, string};

/// Decoder of one connection. It must decode all of the connection's blocks in order, since each may change the
/// table.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// Name and value of the current literal field, one after the other.
    literal: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { table: DynamicTable::new(TABLE_SIZE_MAX), literal: Vec::new() }
    }
}

impl Decoder {
    /// Decodes a complete block and passes its fields to `field`, in order.
    ///
    /// # Errors
    ///
    /// A [`DecodeError`]; fields before the fault have been passed on.
    pub fn decode(&mut self, block: &[u8], mut field: impl FnMut(HeaderField<'_>)) -> Result<(), DecodeError> {
        let mut input = block;
        let mut is_first = true;
        while let Some(first) = input.first() {
            match first {
                // §6.1: indexed.
                0x80.. => {
                    let index = integer::decode(&mut input, 7)?;
                    field(self.entry(index)?);
                }
                // §6.2.1: literal with incremental indexing.
                0x40.. => {
                    let size = self.decode_literal(&mut input, 6)?;
                    let literal = split(&self.literal, size);
                    field(literal);
                    self.table.insert(literal);
                }
                // §6.3: dynamic table size update; only before all fields (§4.2).
                0x20.. => {
                    let size = integer::decode(&mut input, 5)?;
                    if !is_first || size > TABLE_SIZE_MAX {
                        return Err(DecodeError::TableSize);
                    }
                    self.table.set_size_max(size);
                    continue;
                }
                // §6.2.2, §6.2.3: literal without indexing, or never indexed.
                _ => {
                    let size = self.decode_literal(&mut input, 4)?;
                    field(split(&self.literal, size));
                }
            }
            is_first = false;
        }
        Ok(())
    }

    /// Frees the buffer for literals, for an idle connection.
    #[inline]
    pub fn shrink(&mut self) {
        self.literal = Vec::new();
        self.table.shrink();
    }

    fn entry(&self, index: usize) -> Result<HeaderField<'_>, DecodeError> {
        let entry = match index.checked_sub(static_table::COUNT + 1) {
            None => static_table::get(index),
            Some(index) => self.table.get(index),
        };
        entry.ok_or(DecodeError::Index)
    }

    /// Reads the name and the value of a literal into `self.literal`, one after the other. Returns the name's size.
    fn decode_literal(&mut self, input: &mut &[u8], prefix: u8) -> Result<usize, DecodeError> {
        let index = integer::decode(input, prefix)?;
        let mut literal = std::mem::take(&mut self.literal);
        literal.clear();
        let outcome = match index {
            0 => string::decode(input, &mut literal),
            // A copy: inserting the new entry may evict the one with this name (§4.4).
            index => self.entry(index).map(|entry| literal.extend_from_slice(entry.name_text)),
        };
        let name_size = literal.len();
        let outcome = outcome.and_then(|()| string::decode(input, &mut literal));
        self.literal = literal;
        outcome.map(|()| name_size)
    }
}

fn split(literal: &[u8], name_size: usize) -> HeaderField<'_> {
    let (name, value) = literal.split_at_checked(name_size).unwrap_or_default();
    HeaderField::new(name, value)
}
