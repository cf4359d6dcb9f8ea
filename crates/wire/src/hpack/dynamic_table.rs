//! The dynamic table (RFC 7541 §2.3.2, §4): newest entry first; the oldest are evicted if there is no room. All text is
//! in one buffer, which is reused.

use std::collections::VecDeque;

use super::field::{FIELD_OVERHEAD, FieldName, HeaderField};

/// A dynamic table. Owned by its connection.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// Text of the entries, oldest first, after that of evicted ones.
    text: Vec<u8>,
    /// Oldest first.
    entries: VecDeque<TableEntry>,
    /// Size in bytes, counted as in §4.1.
    size: usize,
    size_max: usize,
    /// Counts insertions and evictions.
    generation: u64,
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    name: FieldName,
    is_valid: bool,
    at: usize,
    name_size: usize,
    value_size: usize,
}

impl TableEntry {
    const fn size(&self) -> usize {
        self.name_size + self.value_size + FIELD_OVERHEAD
    }
}

impl DynamicTable {
    /// An empty table with a maximum size in bytes.
    pub(super) const fn new(size_max: usize) -> Self {
        Self { text: Vec::new(), entries: VecDeque::new(), size: 0, size_max, generation: 0 }
    }

    /// Maximum size in bytes.
    pub(super) const fn size_max(&self) -> usize {
        self.size_max
    }

    /// Changes with every insertion and eviction: an index found earlier is valid while this is the same.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    /// The entry with an index; 0 is the newest.
    pub(super) fn get(&self, index: usize) -> Option<HeaderField<'_>> {
        let entry = self.entries.get(self.entries.len().checked_sub(index + 1)?)?;
        let text = self.text.get(entry.at..)?;
        let (name_text, rest) = text.split_at_checked(entry.name_size)?;
        Some(HeaderField {
            name: entry.name,
            name_text,
            value: rest.get(..entry.value_size)?,
            is_valid: entry.is_valid,
        })
    }

    /// Returns the index of an entry with this name, and true if its value is the same too.
    pub(super) fn find(&self, name: &[u8], value: &[u8]) -> Option<(usize, bool)> {
        let mut named = None;
        for index in 0..self.entries.len() {
            match self.get(index) {
                Some(field) if field.name_text == name && field.value == value => return Some((index, true)),
                Some(field) if field.name_text == name => named = named.or(Some((index, false))),
                _ => {}
            }
        }
        named
    }

    /// Frees memory that no entry needs.
    pub(super) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// Changes the maximum size, and evicts the entries that do not fit (§4.3).
    pub(super) fn set_size_max(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.evict_for(0);
    }

    /// Inserts a field (§4.4). One that is larger than the table empties it.
    pub(super) fn insert(&mut self, field: HeaderField<'_>) {
        let HeaderField { name, name_text, value, is_valid } = field;
        let entry = TableEntry { name, is_valid, at: 0, name_size: name_text.len(), value_size: value.len() };
        self.evict_for(entry.size());
        if entry.size() > self.size_max {
            return;
        }
        // The buffer has twice the table's size, so that entries are moved to the front only once per table size
        // of inserted bytes.
        if self.text.len() + entry.size() > self.size_max.saturating_mul(2) {
            let from = self.entries.front().map_or(self.text.len(), |oldest| oldest.at);
            self.text.drain(..from);
            self.entries.iter_mut().for_each(|entry| entry.at -= from);
        }
        let at = self.text.len();
        self.text.extend_from_slice(name_text);
        self.text.extend_from_slice(value);
        self.entries.push_back(TableEntry { at, ..entry });
        self.size += entry.size();
        self.generation += 1;
    }

    /// Evicts the oldest entries until an entry of `size` fits.
    fn evict_for(&mut self, size: usize) {
        while self.size.saturating_add(size) > self.size_max
            && let Some(oldest) = self.entries.pop_front()
        {
            self.size -= oldest.size();
            self.generation += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_comes_first_and_the_oldest_leaves() {
        let mut table = DynamicTable::new(3 * 34);
        for value in [b"1", b"2", b"3", b"4"] {
            table.insert(HeaderField::new(b"a", value));
        }
        let values: Vec<_> = (0..4).map(|index| table.get(index).map(|field| field.value.to_vec())).collect();
        assert_eq!(values, [Some(b"4".to_vec()), Some(b"3".to_vec()), Some(b"2".to_vec()), None]);
        assert_eq!(table.find(b"a", b"2"), Some((2, true)));
        assert_eq!(table.find(b"a", b"1"), Some((0, false)));
        assert_eq!(table.find(b"b", b"1"), None);
        table.set_size_max(34);
        assert_eq!((table.get(0).unwrap().value, table.get(1)), (&b"4"[..], None));
        table.insert(HeaderField::new(b"name", b"larger than it all"));
        assert_eq!((table.get(0), table.size), (None, 0), "it is emptied");
    }

    #[test]
    fn its_memory_stays_within_twice_its_size() {
        let mut table = DynamicTable::new(1_000);
        for round in 0..5_000_usize {
            let (name, value) = (format!("n{round}"), "v".repeat(round * 37 % 300));
            table.insert(HeaderField::new(name.as_bytes(), value.as_bytes()));
            assert_eq!(table.get(0).unwrap().name_text, name.as_bytes());
            assert_eq!(table.size, table.entries.iter().map(TableEntry::size).sum::<usize>());
            assert!(table.size <= 1_000 && table.text.len() <= 2_000, "{round}");
        }
    }
}
