//! Parsing of a whole document. The reader is a state machine without recursion, modelled on RapidJSON's
//! `IterativeParse`, so that depth costs no stack. The tree that it builds is one flat vector.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::json::cursor::{Cursor, NumberForm, find};
#[cfg(any(test, feature = "fuzz"))]
use crate::json::writer;
use crate::json::{JsonError, JsonFault, RawArray, number};
use crate::limits::JSON_NODES_MAX;
use base::limits::JSON_DEPTH_MAX;

/// A parsed document. Nodes are in the order of the text, so that the descendants of an array or object directly
/// follow it.
///
/// ```
/// use wire::json::{Document, ValueKind};
///
/// let document = Document::parse(br#"{"id":"a","data":[1,2]}"#, &["data"]).unwrap();
/// let root = document.root();
/// assert_eq!(root.get("id").and_then(|id| id.as_str()), Some("a"));
/// assert!(matches!(root.get("data").unwrap().kind(), ValueKind::Raw(_)));
/// ```
#[derive(Debug)]
pub struct Document<'a> {
    nodes: Vec<DocumentNode<'a>>,
    /// The arrays with at least as many elements as are kept.
    full_arrays: SmallVec<[usize; 2]>,
}

/// A value, its name if it is a member, and the index of its next sibling.
#[derive(Debug)]
struct DocumentNode<'a> {
    name: Cow<'a, str>,
    kind: ValueKind<'a>,
    /// Index after its last descendant, which is its next sibling if it has one.
    end: usize,
}

/// The kind of a value, and the value of a scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueKind<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer, as text.
    Integer(&'a [u8]),
    /// Any other number, as text.
    Decimal(&'a [u8]),
    /// A string.
    String(Cow<'a, str>),
    /// An array.
    Array,
    /// An object.
    Object,
    /// An array kept as text.
    Raw(RawArray<'a>),
}

/// A value in a document.
#[derive(Clone, Copy, Debug)]
pub struct JsonValue<'d, 'a> {
    document: &'d Document<'a>,
    index: usize,
}

impl<'a> Document<'a> {
    /// Parses a document. Arrays that are members with a name in `raw_names` are kept as text, and not checked.
    ///
    /// # Errors
    ///
    /// A [`JsonError`] with the first fault, which may be in an array that was kept as text before it.
    #[inline]
    pub fn parse(text: &'a [u8], raw_names: &[&str]) -> Result<Self, JsonError> {
        Self::parse_some(text, raw_names, usize::MAX)
    }

    /// As [`Self::parse`], but stores only `elements_max` elements of each array, and none of an
    /// array that is [full](JsonValue::is_full) in a document of many values. The other elements
    /// are checked, except for arrays in them that would be kept as text. They take no memory, and
    /// a caller that refuses an array for its length needs none of them.
    ///
    /// # Errors
    ///
    /// As [`Self::parse`].
    pub fn parse_some(text: &'a [u8], raw_names: &[&str], elements_max: usize) -> Result<Self, JsonError> {
        let mut reader = JsonReader::new(text, raw_names);
        reader.elements_max = elements_max;
        if elements_max < usize::MAX {
            reader.look_at = LOOK_AHEAD_NODES;
        }
        // RFC 8259 §8.1 allows a reader to ignore a byte order mark.
        reader.cursor.rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let outcome = reader.run();
        let document = Self { nodes: reader.nodes, full_arrays: reader.full_arrays };
        if let Err(error) = outcome {
            // An array kept as text came before the fault, so that a fault in it takes precedence.
            document.validate()?;
            return Err(error);
        }
        Ok(document)
    }

    /// The outermost value.
    pub const fn root(&self) -> JsonValue<'_, 'a> {
        JsonValue { document: self, index: 0 }
    }

    /// Returns true if some array is [full](JsonValue::is_full).
    #[inline]
    pub fn has_full_array(&self) -> bool {
        !self.full_arrays.is_empty()
    }

    /// Number of values that are stored.
    #[cfg(test)]
    pub(super) const fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Number of arrays kept as text.
    #[inline]
    pub fn raw_count(&self) -> usize {
        self.nodes.iter().filter(|node| matches!(node.kind, ValueKind::Raw(_))).count()
    }

    /// Checks the arrays kept as text against the grammar.
    ///
    /// # Errors
    ///
    /// The first fault, as a [`JsonError`].
    pub fn validate(&self) -> Result<(), JsonError> {
        self.nodes.iter().try_for_each(|node| match node.kind {
            ValueKind::Raw(array) => array.validate(),
            _ => Ok(()),
        })
    }
}

impl<'d, 'a> JsonValue<'d, 'a> {
    /// Its kind.
    #[inline]
    pub fn kind(self) -> &'d ValueKind<'a> {
        self.node().map_or(&ValueKind::Null, |node| &node.kind)
    }

    /// The first member of an object with a name.
    #[inline]
    pub fn get(self, name: &str) -> Option<Self> {
        self.members().find(|(have, _)| *have == name).map(|(_, value)| value)
    }

    /// The first member of an object with a name; a member that is `null` counts as absent.
    #[inline]
    pub fn given(self, name: &str) -> Option<Self> {
        self.get(name).filter(|value| !matches!(value.kind(), ValueKind::Null))
    }

    /// The members of an object; none for any other kind.
    #[inline]
    pub fn members(self) -> impl Iterator<Item = (&'d str, Self)> {
        let children = matches!(self.kind(), ValueKind::Object).then(|| self.children());
        let named = |value: Self| (value.node().map_or("", |node| &*node.name), value);
        children.into_iter().flatten().map(named)
    }

    /// The elements of an array; empty for any other kind.
    #[inline]
    pub fn elements(self) -> impl Iterator<Item = Self> {
        matches!(self.kind(), ValueKind::Array).then(|| self.children()).into_iter().flatten()
    }

    /// Returns true if it is an array with at least as many elements as [`Document::parse_some`]
    /// keeps of each.
    #[inline]
    pub fn is_full(self) -> bool {
        self.document.full_arrays.contains(&self.index)
    }

    /// The text of a string.
    #[inline]
    pub fn as_str(self) -> Option<&'d str> {
        if let ValueKind::String(text) = self.kind() { Some(text) } else { None }
    }

    /// The value of `true` or `false`.
    #[inline]
    pub fn as_bool(self) -> Option<bool> {
        if let ValueKind::Bool(value) = self.kind() { Some(*value) } else { None }
    }

    /// The value of an integer from 0 to `u64::MAX`.
    #[inline]
    pub fn as_u64(self) -> Option<u64> {
        let ValueKind::Integer(text) = self.kind() else { return None };
        if *text == b"-0" { Some(0) } else { std::str::from_utf8(text).ok()?.parse().ok() }
    }

    /// The value of an integer from `i64::MIN` to `i64::MAX`.
    #[inline]
    pub fn as_i64(self) -> Option<i64> {
        let ValueKind::Integer(text) = self.kind() else { return None };
        std::str::from_utf8(text).ok()?.parse().ok()
    }

    /// The value of any number, as the nearest double.
    #[inline]
    pub fn as_f64(self) -> Option<f64> {
        let (ValueKind::Integer(text) | ValueKind::Decimal(text)) = self.kind() else { return None };
        number::read_f64(&mut Cursor::new(text, 0)).ok()
    }

    fn node(self) -> Option<&'d DocumentNode<'a>> {
        self.document.nodes.get(self.index)
    }

    fn children(self) -> impl Iterator<Item = Self> {
        let end = self.node().map_or(0, |node| node.end);
        let at = move |index| (index < end).then_some(Self { document: self.document, index });
        std::iter::successors(at(self.index.saturating_add(1)), move |value| at(value.node()?.end))
    }
}

/// The part of the text that the reader expects next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReaderState {
    /// The outermost value.
    Root,
    /// An element or the end of an array.
    ArrayStart,
    /// An element.
    Element,
    /// A member or the end of an object.
    ObjectStart,
    /// A member.
    Member,
    /// The value of a member.
    MemberValue,
    /// A comma, or the end of the innermost array or object, or of the document.
    Comma,
}

/// An array or object that is not closed yet.
struct OpenValue {
    is_object: bool,
    node: usize,
    /// Elements that an array has had so far.
    elements: usize,
}

struct JsonReader<'a, 'n> {
    cursor: Cursor<'a>,
    raw_names: &'n [&'n str],
    /// Number of arrays and objects around the text.
    depth: usize,
    open: SmallVec<[OpenValue; 16]>,
    /// Name of the member whose value is next.
    name: Cow<'a, str>,
    /// True if nodes are stored; false only checks the grammar.
    stores_nodes: bool,
    /// The number of elements of each array that are stored.
    elements_max: usize,
    /// The number of open values, up to the array whose elements are no longer stored.
    full: Option<usize>,
    /// The nodes of the arrays that reached `elements_max`.
    full_arrays: SmallVec<[usize; 2]>,
    /// The number of nodes from which on it looks ahead for an array that will be full.
    look_at: usize,
    nodes: Vec<DocumentNode<'a>>,
}

/// Checks a text against the grammar; `offset` and `depth` are its position in the document.
pub(super) fn validate(text: &[u8], offset: usize, depth: usize) -> Result<(), JsonError> {
    let mut reader = JsonReader::new(text, &[]);
    reader.cursor = Cursor::new(text, offset);
    reader.depth = depth;
    reader.stores_nodes = false;
    reader.run()
}

impl<'a, 'n> JsonReader<'a, 'n> {
    fn new(text: &'a [u8], raw_names: &'n [&'n str]) -> Self {
        Self {
            cursor: Cursor::new(text, 0),
            raw_names,
            depth: 0,
            open: SmallVec::new(),
            name: Cow::Borrowed(""),
            stores_nodes: true,
            elements_max: usize::MAX,
            full: None,
            full_arrays: SmallVec::new(),
            look_at: JSON_NODES_MAX,
            nodes: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<(), JsonError> {
        let mut state = ReaderState::Root;
        loop {
            self.cursor.skip_space();
            let next = self.cursor.peek();
            state = match state {
                ReaderState::ArrayStart if next == Some(b']') => self.close(),
                ReaderState::Root | ReaderState::ArrayStart | ReaderState::Element | ReaderState::MemberValue => {
                    self.value(state, next)?
                }
                ReaderState::ObjectStart if next == Some(b'}') => self.close(),
                ReaderState::ObjectStart | ReaderState::Member => self.name(next)?,
                ReaderState::Comma => match (self.open.last().map(|open| open.is_object), next) {
                    (None, None) => return Ok(()),
                    (Some(false), Some(b',')) => self.skip_to(ReaderState::Element),
                    (Some(true), Some(b',')) => self.skip_to(ReaderState::Member),
                    (Some(false), Some(b']')) | (Some(true), Some(b'}')) => self.close(),
                    (None, _) => return Err(self.cursor.error(JsonFault::Trailing)),
                    (Some(false), _) => return Err(self.cursor.error(JsonFault::Element)),
                    (Some(true), _) => return Err(self.cursor.error(JsonFault::Member)),
                },
            };
        }
    }

    /// Skips a byte.
    fn skip_to(&mut self, state: ReaderState) -> ReaderState {
        self.cursor.advance();
        state
    }

    /// Reads a name and its colon.
    fn name(&mut self, next: Option<u8>) -> Result<ReaderState, JsonError> {
        if next != Some(b'"') {
            return Err(self.cursor.error(JsonFault::Name));
        }
        self.name = self.cursor.string()?;
        self.cursor.skip_space();
        match self.cursor.consume(b':') {
            true => Ok(ReaderState::MemberValue),
            false => Err(self.cursor.error(JsonFault::Colon)),
        }
    }

    /// Reads a scalar, an array to keep as text, or an opening bracket.
    fn value(&mut self, state: ReaderState, next: Option<u8>) -> Result<ReaderState, JsonError> {
        if matches!(state, ReaderState::ArrayStart | ReaderState::Element) {
            self.count_element();
        }
        let kind = match next {
            Some(b'{') => return self.open(true),
            Some(b'[') if state == ReaderState::MemberValue && self.raw_names.iter().any(|name| *name == self.name) => {
                ValueKind::Raw(self.raw()?)
            }
            Some(b'[') => return self.open(false),
            Some(b'"') => ValueKind::String(self.cursor.string()?),
            Some(b't') => self.cursor.literal(b"true").map(|()| ValueKind::Bool(true))?,
            Some(b'f') => self.cursor.literal(b"false").map(|()| ValueKind::Bool(false))?,
            Some(b'n') => self.cursor.literal(b"null").map(|()| ValueKind::Null)?,
            // RapidJSON treats a NUL as the end of the text.
            Some(b']' | b'}' | b',' | b':' | 0) | None if state == ReaderState::Root => {
                return Err(self.cursor.error(JsonFault::Empty));
            }
            _ => match self.cursor.number()? {
                (text, NumberForm::Integer) => ValueKind::Integer(text),
                (text, _) => ValueKind::Decimal(text),
            },
        };
        self.push(kind)?;
        Ok(ReaderState::Comma)
    }

    /// An element of the innermost array begins.
    fn count_element(&mut self) {
        let depth = self.open.len();
        let Some(array) = self.open.last_mut() else { return };
        array.elements = array.elements.saturating_add(1);
        if array.elements < self.elements_max || !self.stores_nodes {
            return;
        }
        if array.elements == self.elements_max {
            self.full_arrays.push(array.node);
        } else {
            self.stores_nodes = false;
            self.full = Some(depth);
        }
    }

    fn open(&mut self, is_object: bool) -> Result<ReaderState, JsonError> {
        if self.depth.saturating_add(self.open.len()) >= JSON_DEPTH_MAX {
            return Err(self.cursor.error(JsonFault::Depth));
        }
        let node = self.nodes.len();
        self.push(if is_object { ValueKind::Object } else { ValueKind::Array })?;
        self.open.push(OpenValue { is_object, node, elements: 0 });
        Ok(self.skip_to(if is_object { ReaderState::ObjectStart } else { ReaderState::ArrayStart }))
    }

    fn close(&mut self) -> ReaderState {
        let end = self.nodes.len();
        if self.full.take_if(|depth| *depth == self.open.len()).is_some() {
            self.stores_nodes = true;
        }
        let open = self.open.pop().filter(|_| self.stores_nodes);
        if let Some(node) = open.and_then(|open| self.nodes.get_mut(open.node)) {
            node.end = end;
        }
        self.skip_to(ReaderState::Comma)
    }

    fn push(&mut self, kind: ValueKind<'a>) -> Result<(), JsonError> {
        if !self.stores_nodes {
            return Ok(());
        }
        if self.nodes.len() >= self.look_at && !self.has_room()? {
            return Ok(());
        }
        if self.nodes.is_empty() {
            self.nodes.reserve(NODES_EXPECTED);
        }
        let end = self.nodes.len().saturating_add(1);
        self.nodes.push(DocumentNode { name: std::mem::take(&mut self.name), kind, end });
        Ok(())
    }

    /// Returns false if the outermost open array will be full: then neither its further nor its
    /// earlier elements are kept. Called in a document of many values.
    fn has_room(&mut self) -> Result<bool, JsonError> {
        if self.nodes.len() >= JSON_NODES_MAX {
            return Err(self.cursor.error(JsonFault::Nodes));
        }
        if let Some((at, array)) = self.open.iter().enumerate().find(|(_, open)| !open.is_object) {
            let inner = self.open.len().saturating_sub(at).saturating_sub(1);
            if commas(self.cursor.rest, inner, self.elements_max.saturating_sub(array.elements)).is_some() {
                self.nodes.truncate(array.node.saturating_add(1));
                self.full_arrays.retain(|node| *node < array.node);
                self.full_arrays.push(array.node);
                self.stores_nodes = false;
                self.full = Some(at.saturating_add(1));
                return Ok(false);
            }
        }
        self.look_at = JSON_NODES_MAX;
        Ok(true)
    }

    /// Skips an array and keeps it as text.
    fn raw(&mut self) -> Result<RawArray<'a>, JsonError> {
        let (offset, depth) = (self.cursor.offset(), self.depth.saturating_add(self.open.len()));
        let extent = extent(self.cursor.rest).and_then(|size| self.cursor.rest.split_at_checked(size));
        let Some((text, rest)) = extent else {
            // It has no end: find out why.
            validate(self.cursor.rest, offset, depth)?;
            return Err(self.cursor.error(JsonFault::Value));
        };
        self.cursor.rest = rest;
        Ok(RawArray { text, offset, depth })
    }
}

/// Capacity for the nodes of a request with one or two tensors: 1,008 bytes, a size that allocators cache per thread
/// (glibc: up to 1,032).
const NODES_EXPECTED: usize = 14;

/// Nodes from which on it pays to look ahead for a list that will be too long: 147 KB, of a request
/// with some 290 tensors.
const LOOK_AHEAD_NODES: usize = 2_048;

/// Returns the size of a text through `count` commas outside of the `depth` objects and arrays that
/// it begins in; `None` if the value around those ends before. Only counts brackets, as [`extent`]
/// does.
fn commas(text: &[u8], depth: usize, count: usize) -> Option<usize> {
    let (mut at, mut depth, mut left) = (0_usize, depth, count);
    while left > 0 {
        let rest = text.get(at..)?;
        let is_bracket = |byte| (byte == b'[') | (byte == b']') | (byte == b'{') | (byte == b'}');
        let found = find(rest, |byte| is_bracket(byte) | (byte == b',') | (byte == b'"'))?;
        at = at.saturating_add(found).saturating_add(1);
        match rest.get(found)? {
            // All but its bracket, which is behind already.
            b'[' => at = at.saturating_add(extent(rest.get(found..)?)?).saturating_sub(1),
            b'"' => at = at.saturating_add(string_end(text.get(at..)?)?),
            b'{' => depth = depth.saturating_add(1),
            b',' => left = left.saturating_sub(usize::from(depth == 0)),
            _ => depth = depth.checked_sub(1)?,
        }
    }
    Some(at)
}

/// Size of the array at the beginning of a text, if it ends. Only counts brackets and skips strings: for valid JSON
/// the result is exact, and other text is refused when it is read.
fn extent(text: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0_usize, 0_usize);
    loop {
        let rest = text.get(at..)?;
        let found = find(rest, |byte| (byte == b'[') | (byte == b']') | (byte == b'"'))?;
        at = at.saturating_add(found).saturating_add(1);
        match rest.get(found)? {
            b'[' => depth = depth.saturating_add(1),
            b']' => depth = depth.saturating_sub(1),
            _ => at = at.saturating_add(string_end(text.get(at..)?)?),
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Size of the rest of a string, its closing quotation mark included.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = 0_usize;
    loop {
        let rest = text.get(at..)?;
        let found = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        let is_end = rest.get(found) == Some(&b'"');
        at = at.saturating_add(found).saturating_add(if is_end { 1 } else { 2 });
        if is_end {
            return Some(at);
        }
    }
}

/// Writes a value as compact JSON; numbers keep their text.
#[cfg(any(test, feature = "fuzz"))]
pub(super) fn write(value: JsonValue<'_, '_>, out: &mut Vec<u8>) {
    match value.kind() {
        ValueKind::Null => out.extend_from_slice(b"null"),
        ValueKind::Bool(true) => out.extend_from_slice(b"true"),
        ValueKind::Bool(false) => out.extend_from_slice(b"false"),
        ValueKind::Integer(text) | ValueKind::Decimal(text) | ValueKind::Raw(RawArray { text, .. }) => {
            out.extend_from_slice(text)
        }
        ValueKind::String(text) => writer::string(text, out),
        ValueKind::Array => {
            out.push(b'[');
            for (index, element) in value.elements().enumerate() {
                writer::comma(index, out);
                write(element, out);
            }
            out.push(b']');
        }
        ValueKind::Object => {
            out.push(b'{');
            for (index, (name, member)) in value.members().enumerate() {
                writer::comma(index, out);
                writer::string(name, out);
                out.push(b':');
                write(member, out);
            }
            out.push(b'}');
        }
    }
}
