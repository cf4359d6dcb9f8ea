//! A JSON or TOML document in which every value has its position in the text, so that errors can be reported by line
//! and column. For configuration files, not for requests: it copies everything. Read by [`crate::json::placed`]
//! and [`crate::toml`], which bound its depth.

/// A value and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Byte offset in the text at which it begins.
    pub offset: usize,
    /// The value.
    pub value: PlacedValue,
}

/// A JSON or TOML value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacedValue {
    /// `true` or `false`.
    Bool(bool),
    /// A list.
    List(Vec<Placed>),
    /// JSON's `null`.
    Null,
    /// A number, as decimal text.
    Number(String),
    /// A string.
    String(String),
    /// Members, in the order of the text. Names may repeat in JSON.
    Table(Vec<PlacedMember>),
}

/// A member of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedMember {
    /// Its name.
    pub name: String,
    /// Byte offset in the text at which the name begins.
    pub offset: usize,
    /// Its value.
    pub value: Placed,
}

/// The reason why a text is not a document, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedError {
    /// Byte offset of the fault in the text.
    pub offset: usize,
    /// The reason.
    pub text: String,
}
