//! A small document, JSON or TOML, with the place of every value in its text, so that what is wrong
//! with one can be told by line and column. For files, not for requests: it keeps everything.
//! Read by [`crate::wire::json::placed`] and [`crate::wire::toml`], which bound its depth.

/// A value and the byte at which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The byte.
    pub offset: usize,
    /// The value.
    pub value: PlacedValue,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacedValue {
    /// `true` or `false`.
    Bool(bool),
    /// A list.
    List(Vec<Placed>),
    /// JSON's `null`.
    Null,
    /// A number: its text, in decimal.
    Number(String),
    /// A string.
    String(String),
    /// Members, in the order of the text where the notation keeps it; names may repeat in JSON.
    Table(Vec<PlacedMember>),
}

/// A member of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedMember {
    /// Its name.
    pub name: String,
    /// The byte at which the name begins.
    pub offset: usize,
    /// Its value.
    pub value: Placed,
}

/// Why a text is no document, and at which byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedError {
    /// The byte.
    pub offset: usize,
    /// Why.
    pub text: String,
}
