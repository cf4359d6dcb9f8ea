//! HPACK (RFC 7541): decodes and encodes field blocks, with one file for each part of the RFC. Called by
//! `connection::http2`. A connection keeps one dynamic table in each direction, bounded by [`TABLE_SIZE_MAX`]. Does not
//! allocate once the tables have grown to their size.

mod code;
pub mod decoder;
mod dynamic_table;
pub mod encoder;
pub mod field;
pub mod huffman;
mod integer;
mod static_table;
mod string;

#[cfg(test)]
mod tests;

use std::fmt;

/// Largest size of a dynamic table in bytes, counted as in RFC 7541 §4.1. It is the initial value of
/// SETTINGS_HEADER_TABLE_SIZE, which we never change, and the most that our encoder uses, whatever the peer allows.
pub const TABLE_SIZE_MAX: usize = 4_096;

/// The reason why a field block cannot be decoded. Each is a connection error, since from here on
/// the dynamic tables of the two sides differ (RFC 7541 §2.2, RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A string is not in the Huffman code, or its padding is not the beginning of the end-of-string code (§5.2).
    Huffman,
    /// There is no entry with this index (§2.3.3, §6.1).
    Index,
    /// An integer is larger than any valid one (§5.1).
    Integer,
    /// A size update is above the setting, or not at the beginning of the block (§4.2, §6.3).
    TableSize,
    /// The block ends within a field.
    Truncated,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huffman => "a string in a field block is not in the Huffman code",
            Self::Index => "an index in a field block names no entry",
            Self::Integer => "an integer in a field block is too large",
            Self::TableSize => "a dynamic table size update is too large or too late",
            Self::Truncated => "a field block ends within a field",
        })
    }
}

impl std::error::Error for DecodeError {}
