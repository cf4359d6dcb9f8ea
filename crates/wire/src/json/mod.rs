//! JSON for request bodies and replies. [`Document`] is parsed in one pass, in which arrays under chosen keys are kept
//! as text ([`RawArray`]) and later read directly into typed memory, without a node for each number. Replies are
//! written directly to bytes. Errors have the texts and offsets of RapidJSON's iterative reader, which Triton's
//! clients see. Knows nothing of inference. Nesting is bounded by [`JSON_DEPTH_MAX`], the number of values by
//! `JSON_NODES_MAX`.
//!
//! The grammar is that of RFC 8259, in UTF-8, plus RapidJSON's `NaN`, `Inf` and `Infinity`. A byte order mark is
//! skipped.

mod cursor;
mod document;
mod element;
mod number;
pub mod parts;
pub mod placed;
mod shortest;
mod window;
pub mod writer;

use std::fmt;

pub use document::{Document, JsonValue, ValueKind};
pub use element::{ArrayError, Number, read_booleans, read_numbers, read_strings};

use crate::limits::JSON_NODES_MAX;
use base::limits::JSON_DEPTH_MAX;

/// The reason why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonFault {
    /// Only white space, or it begins with a closing bracket, a comma or a colon.
    Empty,
    /// There is text after the document.
    Trailing,
    /// No value begins here.
    Value,
    /// A member without a name.
    Name,
    /// No colon after a member's name.
    Colon,
    /// Neither a comma nor a closing brace after a member.
    Member,
    /// Neither a comma nor a closing bracket after an element.
    Element,
    /// A `\u` escape without four hexadecimal digits.
    Hex,
    /// An incomplete surrogate pair.
    Surrogate,
    /// An unknown escape, or a control character that is not escaped.
    Escape,
    /// A string without a closing quotation mark.
    Quote,
    /// Not UTF-8.
    Encoding,
    /// A number beyond the largest double.
    Large,
    /// No digit after the decimal point.
    Fraction,
    /// No digit in the exponent.
    Exponent,
    /// Nested deeper than [`JSON_DEPTH_MAX`].
    Depth,
    /// More values than `JSON_NODES_MAX`.
    Nodes,
}

/// A fault and its position in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// The fault.
    pub fault: JsonFault,
    /// Byte offset in the text.
    pub offset: usize,
}

impl fmt::Display for JsonError {
    /// RapidJSON's text and offset, in Triton's format: `Invalid value. at 10`.
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

/// An array that was skipped and kept as text, from its opening to its closing bracket. It is not
/// known to be JSON before it is read or [`RawArray::validate`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawArray<'a> {
    /// The text, brackets included.
    pub text: &'a [u8],
    /// Byte offset in the document, for errors.
    offset: usize,
    /// Number of arrays and objects around it.
    depth: usize,
}

impl<'a> RawArray<'a> {
    /// An array that is not part of a document.
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, offset: 0, depth: 0 }
    }

    /// Number of its own elements, not of those of arrays in it. The text must be valid.
    pub fn element_count(&self) -> usize {
        let (mut depth, mut commas) = (0_usize, 0_usize);
        let mut bytes = self.text.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b'[' | b'{' => depth = depth.saturating_add(1),
                b']' | b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 1 => commas = commas.saturating_add(1),
                b'"' => skip_string(&mut bytes),
                _ => {}
            }
        }
        let is_empty = matches!(self.text, [b'[', inner @ .., b']'] if inner.trim_ascii().is_empty());
        if is_empty { 0 } else { commas.saturating_add(1) }
    }

    /// Returns true if its first element is an array.
    pub fn is_nested(&self) -> bool {
        matches!(self.text, [b'[', inner @ ..] if inner.trim_ascii_start().first() == Some(&b'['))
    }

    /// The lengths of the array and of the arrays in it, by depth; `None` if arrays of one depth differ in length or
    /// elements in depth, and if an element is an object. The text must be valid.
    pub fn shape(&self) -> Option<Vec<usize>> {
        let (mut shape, mut element_depth): (Vec<Option<usize>>, Option<usize>) = Default::default();
        // The number of elements so far of each open array.
        let mut open: Vec<usize> = Vec::new();
        let mut is_inside = false;
        let mut bytes = self.text.iter();
        while let Some(byte) = bytes.next() {
            match byte {
                b']' => {
                    is_inside = false;
                    let count = open.pop()?;
                    shape.resize(shape.len().max(open.len().saturating_add(1)), None);
                    if *shape.get_mut(open.len())?.get_or_insert(count) != count {
                        return None;
                    }
                }
                b'[' => {
                    if let Some(count) = open.last_mut() {
                        *count = count.saturating_add(1);
                    }
                    open.push(0);
                }
                b'{' => return None,
                b',' | b' ' | b'\t' | b'\r' | b'\n' => is_inside = false,
                _ if is_inside => {}
                first => {
                    is_inside = true;
                    let depth = open.len();
                    let count = open.last_mut()?;
                    *count = count.saturating_add(1);
                    if *element_depth.get_or_insert(depth) != depth {
                        return None;
                    }
                    if *first == b'"' {
                        skip_string(&mut bytes);
                    }
                }
            }
        }
        let depth = shape.len();
        (element_depth.unwrap_or(depth) == depth).then(|| shape.into_iter().collect()).flatten()
    }

    /// Checks the text against the grammar.
    ///
    /// # Errors
    ///
    /// The first fault, as a [`JsonError`] with its offset in the document.
    #[inline]
    pub fn validate(&self) -> Result<(), JsonError> {
        document::validate(self.text, self.offset, self.depth)
    }
}

/// Skips the rest of a string, after its opening quotation mark.
fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next().filter(|byte| **byte != b'"') {
        if *byte == b'\\' {
            bytes.next();
        }
    }
}

/// The fuzz target `json`. Reads arbitrary bytes and asserts that parsing with and without arrays
/// kept as text, or with the first elements of arrays alone, gives the same verdict, and that a
/// document written and read back is the same. Returns true if it is JSON.
#[cfg(any(test, feature = "fuzz"))]
pub fn exercise(text: &[u8]) -> bool {
    let strict = Document::parse(text, &[]);
    let lazy = Document::parse(text, &["data"]);
    let lazy = lazy.and_then(|document| document.validate().map(|()| document));
    let some = Document::parse_some(text, &[], 2).map(drop);
    // Elements that are not stored are not counted against the limit on values.
    if !matches!(strict, Err(JsonError { fault: JsonFault::Nodes, .. })) {
        assert_eq!(strict.as_ref().map(drop).map_err(|error| *error), some, "leaving elements out changes no verdict");
    }
    match (&strict, &lazy) {
        (Ok(strict), Ok(_)) => {
            let mut again = Vec::new();
            document::write(strict.root(), &mut again);
            let reread = Document::parse(&again, &[]).expect("what the writer writes is JSON");
            let mut third = Vec::new();
            document::write(reread.root(), &mut third);
            assert_eq!(again, third, "a document written and read back is the same");
        }
        // Arrays kept as text are not counted against the limit on values.
        (Err(JsonError { fault: JsonFault::Nodes, .. }), _) => {}
        (strict, lazy) => {
            assert_eq!(strict.as_ref().err(), lazy.as_ref().err(), "keeping arrays as text changes no verdict");
        }
    }
    strict.is_ok()
}

#[cfg(test)]
mod tests;
