//! Fields to a block (RFC 7541 §6). What comes again and again goes into the dynamic table once and
//! is a byte from then on; nothing that a client sent ever goes in.

use super::dynamic_table::DynamicTable;
use super::field::HeaderField;
use super::{TABLE_SIZE_MAX, integer, static_table, string};

/// The encoding side of a connection.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    /// The smallest size that the table had since the last block, where it was changed (§4.2).
    size_reduced: Option<usize>,
    is_size_due: bool,
}

/// Whether a field is put into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// It comes again as it is (§6.2.1).
    Insert,
    /// It does not (§6.2.2).
    Without,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { table: DynamicTable::new(TABLE_SIZE_MAX), size_reduced: None, is_size_due: false }
    }
}

impl Encoder {
    /// The peer's SETTINGS_HEADER_TABLE_SIZE. Of more than [`TABLE_SIZE_MAX`] no use is made.
    pub fn set_table_size_max(&mut self, size: usize) {
        let size = size.min(TABLE_SIZE_MAX);
        if size == self.table.size_max() {
            return;
        }
        self.table.set_size_max(size);
        self.size_reduced = Some(self.size_reduced.map_or(size, |least| least.min(size)));
        self.is_size_due = true;
    }

    /// A number that stays the same while a block that was encoded before is still good.
    pub const fn generation(&self) -> u64 {
        self.table.generation()
    }

    /// Whether the next block has to begin with the table's size, and an earlier one cannot be sent
    /// in its place.
    pub const fn is_size_due(&self) -> bool {
        self.is_size_due
    }

    /// Begins a block. Where the table was made smaller and then larger, it says both (§4.2).
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

    /// Appends a field. Its name is in lower case.
    pub fn encode(&mut self, name: &[u8], value: &[u8], indexing: Indexing, out: &mut Vec<u8>) {
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
