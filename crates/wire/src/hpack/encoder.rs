//! Encodes field blocks (RFC 7541 §6). Fields that recur are inserted into the dynamic table once, and then take one
//! byte. Callers never insert text that a client sent.

use super::dynamic_table::DynamicTable;
use super::field::HeaderField;
use super::{TABLE_SIZE_MAX, integer, static_table, string};

/// Encoder of one connection.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    /// The smallest maximum size since the last block, if it was changed (§4.2).
    size_reduced: Option<usize>,
    /// True if the next block has to begin with a size update.
    is_size_due: bool,
}

/// The choice to insert a field into the table or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Inserted: the field will recur with this value (§6.2.1).
    Insert,
    /// Not inserted (§6.2.2).
    Without,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { table: DynamicTable::new(TABLE_SIZE_MAX), size_reduced: None, is_size_due: false }
    }
}

impl Encoder {
    /// Applies the peer's SETTINGS_HEADER_TABLE_SIZE, of which at most [`TABLE_SIZE_MAX`] are used.
    pub fn set_table_size_max(&mut self, size: usize) {
        let size = size.min(TABLE_SIZE_MAX);
        if size == self.table.size_max() {
            return;
        }
        self.table.set_size_max(size);
        self.size_reduced = Some(self.size_reduced.map_or(size, |least| least.min(size)));
        self.is_size_due = true;
    }

    /// Frees memory that no entry of the table needs.
    #[inline]
    pub fn shrink(&mut self) {
        self.table.shrink();
    }

    /// Changes with the table: while it is the same, a block encoded earlier can be sent again.
    #[inline]
    pub const fn generation(&self) -> u64 {
        self.table.generation()
    }

    /// Returns true if the next block has to begin with a size update, so that an earlier block
    /// cannot be sent instead.
    pub const fn is_size_due(&self) -> bool {
        self.is_size_due
    }

    /// Begins a block with the size updates that are due: if the size was reduced and then raised, both are sent
    /// (§4.2).
    pub fn begin_block(&mut self, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.is_size_due) {
            return;
        }
        let size = self.table.size_max();
        if let Some(least) = self.size_reduced.take().filter(|least| *least < size) {
            integer::encode(least, 0x20, 5, out);
        }
        integer::encode(size, 0x20, 5, out);
    }

    /// Appends a field. Its name must be in lower case.
    pub fn encode(&mut self, name: &[u8], value: &[u8], indexing: Indexing, out: &mut Vec<u8>) {
        // The static table first: its indices are short and never change.
        let known = static_table::find(name, value);
        if let Some((index, true)) = known {
            return integer::encode(index, 0x80, 7, out);
        }
        let ours = self.table.find(name, value).map(|(index, is_whole)| (index + static_table::COUNT + 1, is_whole));
        if let Some((index, true)) = ours {
            return integer::encode(index, 0x80, 7, out);
        }
        let named = known.or(ours).map_or(0, |(index, _)| index);
        match indexing {
            Indexing::Insert => integer::encode(named, 0x40, 6, out),
            Indexing::Without => integer::encode(named, 0, 4, out),
        }
        if named == 0 {
            string::encode(name, out);
        }
        string::encode(value, out);
        if indexing == Indexing::Insert {
            self.table.insert(HeaderField::new(name, value));
        }
    }
}
