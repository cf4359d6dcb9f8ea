//! HPACK (RFC 7541): field blocks to fields and back, one file for each part of the RFC. Called by
//! `connection::http2`. Reads slices it is given; what a connection keeps of it is its dynamic table,
//! which is bounded by [`TABLE_SIZE_MAX`]. No allocation once the tables have grown to their size.

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

/// Bytes of a dynamic table, counted as RFC 7541 §4.1 does: the initial value of
/// SETTINGS_HEADER_TABLE_SIZE, which ours stays at, and the most that our encoder uses whatever a
/// peer offers.
pub const TABLE_SIZE_MAX: usize = 4_096;

/// Why a field block cannot be decoded. Each ends the connection, for the dynamic tables of the two
/// sides differ from here on (RFC 7541 §2.2, RFC 9113 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A string is not in the Huffman code, or its padding is not the beginning of its end (§5.2).
    Huffman,
    /// An index of no entry (§2.3.3, §6.1).
    Index,
    /// An integer larger than any that can be meant here (§5.1).
    Integer,
    /// A size of the table above the setting, or not at the beginning of the block (§4.2, §6.3).
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
