//! JSON as a request body brings it and as a reply takes it. A document is read in one pass into
//! [`Document`], in which arrays under chosen keys stay text ([`RawArray`]), so that numbers go
//! from text straight to typed memory; replies are written straight to bytes. Errors carry the
//! texts and offsets of RapidJSON's iterative reader, which Triton's clients know. It knows no
//! word of inference. Nesting is bounded by [`JSON_DEPTH_MAX`], values by [`JSON_NODES_MAX`].
//!
//! The grammar is RFC 8259's, in UTF-8, and RapidJSON's `NaN`, `Inf` and `Infinity`. A byte order
//! mark may come first.

mod cursor;
mod document;
mod element;
mod number;
pub mod placed;
mod shortest;
mod window;
pub mod writer;

use std::fmt;

pub use document::{Document, JsonValue, ValueKind};
pub use element::{ArrayError, Number, read_booleans, read_numbers, read_strings};

use crate::limits::{JSON_DEPTH_MAX, JSON_NODES_MAX};

/// What is wrong with a text that should be JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonFault {
    /// Nothing but white space, or a closing sign first.
    Empty,
    /// Something follows the document.
    Trailing,
    /// No value begins here.
    Value,
    /// No name where a member is due.
    Name,
    /// No colon after a member's name.
    Colon,
    /// Neither a comma nor a closing brace after a member.
    Member,
    /// Neither a comma nor a closing bracket after an element.
    Element,
    /// A digit of `\u0000` is none.
    Hex,
    /// Half a surrogate pair.
    Surrogate,
    /// An unknown escape, or a control character without one.
    Escape,
    /// A string without an end.
    Quote,
    /// Not UTF-8.
    Encoding,
    /// Beyond the largest double.
    Large,
    /// No digit after the decimal point.
    Fraction,
    /// No digit in the exponent.
    Exponent,
    /// Nested deeper than [`JSON_DEPTH_MAX`].
    Depth,
    /// More values than [`JSON_NODES_MAX`].
    Nodes,
}

/// A fault and the offset of the byte at which it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// What is wrong.
    pub fault: JsonFault,
    /// Where, in bytes from the beginning of the text.
    pub offset: usize,
}

impl fmt::Display for JsonError {
    /// RapidJSON's text and offset as Triton puts them: `Invalid value. at 10`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            JsonFault::Depth | JsonFault::Nodes => write!(f, "{}", self.fault),
            fault => write!(f, "{fault} at {}", self.offset),
        }
    }
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "The document is empty.",
            Self::Trailing => "The document root must not be followed by other values.",
            Self::Value => "Invalid value.",
            Self::Name => "Missing a name for object member.",
            Self::Colon => "Missing a colon after a name of object member.",
            Self::Member => "Missing a comma or '}' after an object member.",
            Self::Element => "Missing a comma or ']' after an array element.",
            Self::Hex => "Incorrect hex digit after \\u escape in string.",
            Self::Surrogate => "The surrogate pair in string is invalid.",
            Self::Escape => "Invalid escape character in string.",
            Self::Quote => "Missing a closing quotation mark in string.",
            Self::Encoding => "Invalid encoding in string.",
            Self::Large => "Number too big to be stored in double.",
            Self::Fraction => "Miss fraction part in number.",
            Self::Exponent => "Miss exponent in number.",
            Self::Depth => return write!(f, "JSON nesting depth exceeds maximum allowed limit ({JSON_DEPTH_MAX})"),
            Self::Nodes => {
                return write!(f, "JSON has more than the maximum of {JSON_NODES_MAX} values outside of tensor data");
            }
        })
    }
}

impl std::error::Error for JsonError {}

/// An array that was found but not read: from its bracket to the one that closes it. Only reading
/// it, or [`RawArray::validate`], tells whether it is JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawArray<'a> {
    /// The text, brackets included.
    pub text: &'a [u8],
    /// Where it begins in the document.
    offset: usize,
    /// How many arrays and objects it lies in.
    depth: usize,
}

impl RawArray<'_> {
    /// Holds the text against the grammar.
    pub fn validate(&self) -> Result<(), JsonError> {
        document::validate(self.text, self.offset, self.depth)
    }
}

/// Reads any bytes as a document and checks what must hold of every one: that the array kept as
/// text is found where the strict reading finds it, that what was read is written and read back
/// the same. Returns whether it is JSON. For fuzzing.
pub fn exercise(text: &[u8]) -> bool {
    let strict = Document::parse(text, &[]);
    let lazy = Document::parse(text, &["data"]);
    let lazy = lazy.and_then(|document| document.validate().map(|()| document));
    match (&strict, &lazy) {
        (Ok(strict), Ok(_)) => {
            let mut again = Vec::new();
            document::write(strict.root(), &mut again);
            let reread = Document::parse(&again, &[]).expect("what the writer writes is JSON");
            let mut third = Vec::new();
            document::write(reread.root(), &mut third);
            assert_eq!(again, third, "a document written and read back is the same");
        }
        // Text that is kept is not counted as values.
        (Err(JsonError { fault: JsonFault::Nodes, .. }), _) => {}
        (strict, lazy) => {
            assert_eq!(strict.as_ref().err(), lazy.as_ref().err(), "keeping arrays as text changes no verdict");
        }
    }
    strict.is_ok()
}

#[cfg(test)]
mod tests;
