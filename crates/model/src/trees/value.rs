//! The values of XGBoost's files, which are JSON in text or in UBJSON. Arrays of numbers, which are
//! nearly all of a file, keep the file's form until they are read into typed memory.

use std::borrow::Cow;

use crate::limits::TREE_VALUES_MAX;
use crate::trees::TreeFault;
use wire::json::{Document, JsonValue, RawArray, ValueKind, read_booleans, read_numbers};

/// A value.
#[derive(Clone, Debug)]
pub(super) enum TreeValue<'a> {
    /// `null`, or an array that is not needed.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// An array of numbers.
    Numbers(NumberArray<'a>),
    /// Any other array.
    List(Vec<Self>),
    /// An object.
    Members(Vec<(Cow<'a, str>, Self)>),
    /// An array of objects, each read by itself, in JSON.
    Objects(&'a [u8]),
}

/// An array of numbers in the file's form.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberArray<'a> {
    /// JSON.
    Json(RawArray<'a>),
    /// UBJSON: elements of one type, big-endian.
    Binary(u8, &'a [u8]),
}

/// The members that are arrays of numbers, and those that are long and not needed.
const ARRAYS: [&str; 25] = [
    "base_weights",
    "categories",
    "categories_nodes",
    "categories_segments",
    "categories_sizes",
    "default_left",
    "enc",
    "feature_names",
    "feature_segments",
    "feature_types",
    "iteration_indptr",
    "leaf_child_counts",
    "leaf_weights",
    "left_children",
    "loss_changes",
    "parents",
    "right_children",
    "sorted_idx",
    "split_conditions",
    "split_indices",
    "split_type",
    "sum_hessian",
    "tree_info",
    "trees",
    "weight_drop",
];

/// Reads a document in JSON.
///
/// # Errors
///
/// If it is not valid JSON.
pub(super) fn from_json(text: &[u8]) -> Result<TreeValue<'_>, TreeFault> {
    let document = Document::parse(text, &ARRAYS).map_err(|error| TreeFault::Broken(error.to_string()))?;
    Ok(from_document(document.root()))
}

/// The document's depth is bounded by its reader.
fn from_document<'a>(value: JsonValue<'_, 'a>) -> TreeValue<'a> {
    match value.kind() {
        ValueKind::Null => TreeValue::Null,
        ValueKind::Bool(value) => TreeValue::Bool(*value),
        ValueKind::Integer(_) | ValueKind::Decimal(_) => TreeValue::Number(value.as_f64().unwrap_or(f64::NAN)),
        ValueKind::String(text) => TreeValue::Text(text.clone()),
        ValueKind::Array => TreeValue::List(value.elements().map(from_document).collect()),
        ValueKind::Object => {
            let member = |(name, value): (&str, JsonValue<'_, 'a>)| (Cow::Owned(name.to_owned()), from_document(value));
            TreeValue::Members(value.members().map(member).collect())
        }
        ValueKind::Raw(array) => match array.text {
            [b'[', rest @ ..] if rest.trim_ascii_start().starts_with(b"{") => TreeValue::Objects(rest),
            _ => TreeValue::Numbers(NumberArray::Json(*array)),
        },
    }
}

impl<'a> TreeValue<'a> {
    /// Returns a member of an object.
    ///
    /// # Errors
    ///
    /// If there is no such member.
    pub(super) fn member(&self, name: &str) -> Result<&Self, String> {
        self.find(name).ok_or_else(|| format!("it has no '{name}'"))
    }

    /// Returns an optional member.
    pub(super) fn find(&self, name: &str) -> Option<&Self> {
        let Self::Members(members) = self else { return None };
        members.iter().find(|(have, _)| have == name).map(|(_, value)| value)
    }

    /// Returns a member that is a string.
    ///
    /// # Errors
    ///
    /// If it is missing or something else.
    pub(super) fn text(&self, name: &str) -> Result<&str, String> {
        match self.member(name)? {
            Self::Text(text) => Ok(text),
            _ => Err(format!("'{name}' is not a string")),
        }
    }

    /// Returns a member that is an integer in a string, as XGBoost writes parameters; `None` if it
    /// is missing.
    ///
    /// # Errors
    ///
    /// If it is something else.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, String> {
        match self.find(name) {
            None => Ok(None),
            Some(Self::Text(text)) => match text.trim().parse() {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(format!("'{name}' is '{}', not an integer", excerpt(text))),
            },
            Some(_) => Err(format!("'{name}' is not a string")),
        }
    }

    /// Returns a member that is an array of numbers; empty if it is missing.
    ///
    /// # Errors
    ///
    /// If an element is not such a number.
    pub(super) fn numbers<T: TreeNumber>(&self, name: &str) -> Result<Vec<T>, String> {
        let wrong = |why: &str| format!("'{name}': {why}");
        match self.find(name) {
            None | Some(Self::Null) => Ok(Vec::new()),
            Some(Self::Numbers(NumberArray::Json(array))) => T::from_json(array).ok_or_else(|| wrong(T::EXPECTED)),
            Some(Self::Numbers(NumberArray::Binary(kind, bytes))) => {
                T::from_binary(*kind, bytes).ok_or_else(|| wrong(T::EXPECTED))
            }
            Some(Self::List(values)) => {
                let number = |value: &Self| match value {
                    Self::Number(number) => T::from_f64(*number),
                    Self::Bool(flag) => T::from_f64(f64::from(u8::from(*flag))),
                    _ => None,
                };
                values.iter().map(number).collect::<Option<_>>().ok_or_else(|| wrong(T::EXPECTED))
            }
            Some(_) => Err(wrong("not an array")),
        }
    }

    /// Calls a function with each element of a member that is an array of objects.
    ///
    /// # Errors
    ///
    /// The function's, with the number of the element.
    pub(super) fn each(
        &self,
        name: &str,
        mut see: impl FnMut(&TreeValue<'a>) -> Result<(), TreeFault>,
    ) -> Result<(), TreeFault> {
        match self.member(name)? {
            Self::List(values) => values.iter().try_for_each(see),
            Self::Objects(text) => {
                let (mut rest, mut count) = (*text, 0_usize);
                while let Some((object, behind)) = next_object(rest) {
                    (rest, count) = (behind, count.saturating_add(1));
                    see(&from_json(object)?)?;
                    if count > TREE_VALUES_MAX {
                        return Err(TreeFault::Broken(format!("'{name}' has more than {TREE_VALUES_MAX} elements")));
                    }
                }
                if rest.trim_ascii() == b"]" {
                    return Ok(());
                }
                Err(TreeFault::Broken(format!("'{name}' is not an array of objects alone")))
            }
            // An empty array.
            Self::Numbers(NumberArray::Json(array)) if array.element_count() == 0 => Ok(()),
            Self::Numbers(NumberArray::Binary(_, [])) | Self::Null => Ok(()),
            _ => Err(TreeFault::Broken(format!("'{name}' is not an array of objects"))),
        }
    }
}

/// The next object of an array's text, and the rest behind it; `None` at the end, or if there is no
/// object.
fn next_object(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start();
    let text = text.strip_prefix(b",").map_or(text, <[u8]>::trim_ascii_start);
    if !text.starts_with(b"{") {
        return None;
    }
    let (mut depth, mut is_quoted, mut is_escaped) = (0_usize, false, false);
    for (index, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'{' | b'[' if !is_quoted => depth = depth.saturating_add(1),
            b'}' | b']' if !is_quoted => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return text.split_at_checked(index.saturating_add(1));
                }
            }
            _ => {}
        }
    }
    None
}

/// The beginning of a text, for an error.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(40).collect::<String>().escape_debug().to_string()
}

/// A type that arrays are read as.
pub(super) trait TreeNumber: Sized {
    /// The expected kind of element, for errors.
    const EXPECTED: &'static str;

    fn from_json(array: &RawArray<'_>) -> Option<Vec<Self>>;

    fn from_f64(value: f64) -> Option<Self>;

    fn from_integer(value: i64) -> Option<Self>;

    fn from_binary(kind: u8, bytes: &[u8]) -> Option<Vec<Self>> {
        match kind {
            b'i' => words(bytes, |[byte]: [u8; 1]| Self::from_integer(i8::from_be_bytes([byte]).into())),
            b'U' => words(bytes, |[byte]: [u8; 1]| Self::from_integer(byte.into())),
            b'I' => words(bytes, |word: [u8; 2]| Self::from_integer(i16::from_be_bytes(word).into())),
            b'l' => words(bytes, |word: [u8; 4]| Self::from_integer(i32::from_be_bytes(word).into())),
            b'L' => words(bytes, |word: [u8; 8]| Self::from_integer(i64::from_be_bytes(word))),
            b'd' => words(bytes, |word: [u8; 4]| Self::from_f64(f32::from_be_bytes(word).into())),
            b'D' => words(bytes, |word: [u8; 8]| Self::from_f64(f64::from_be_bytes(word))),
            _ => None,
        }
    }
}

fn words<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> Option<T>) -> Option<Vec<T>> {
    let (words, rest) = bytes.as_chunks::<N>();
    if rest.is_empty() { words.iter().map(|word| read(*word)).collect() } else { None }
}

impl TreeNumber for f32 {
    const EXPECTED: &'static str = "expected numbers that fit into FP32";

    fn from_json(array: &RawArray<'_>) -> Option<Vec<Self>> {
        let mut numbers = vec![0.0; array.element_count()];
        read_numbers(array, &mut numbers).ok().map(|()| numbers)
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounded")]
    fn from_f64(value: f64) -> Option<Self> {
        Some(value as Self)
    }

    #[expect(clippy::cast_precision_loss, reason = "rounded")]
    fn from_integer(value: i64) -> Option<Self> {
        Some(value as Self)
    }
}

impl TreeNumber for i32 {
    const EXPECTED: &'static str = "expected integers of 32 bits";

    fn from_json(array: &RawArray<'_>) -> Option<Vec<Self>> {
        let mut numbers = vec![0; array.element_count()];
        read_numbers(array, &mut numbers).ok().map(|()| numbers)
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is checked to be that integer")]
    fn from_f64(value: f64) -> Option<Self> {
        let integer = value as Self;
        (f64::from(integer).total_cmp(&value).is_eq()).then_some(integer)
    }

    fn from_integer(value: i64) -> Option<Self> {
        Self::try_from(value).ok()
    }
}

impl TreeNumber for bool {
    const EXPECTED: &'static str = "expected 0 and 1, or false and true";

    fn from_json(array: &RawArray<'_>) -> Option<Vec<Self>> {
        let mut flags = vec![0_u8; array.element_count()];
        let outcome = read_numbers(array, &mut flags).or_else(|_| read_booleans(array, &mut flags));
        outcome.ok().map(|()| flags.into_iter().map(|flag| flag != 0).collect())
    }

    fn from_f64(value: f64) -> Option<Self> {
        Some(value != 0.0)
    }

    fn from_integer(value: i64) -> Option<Self> {
        Some(value != 0)
    }
}
