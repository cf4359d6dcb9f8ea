//! Parameters of requests and responses: the client's own names and values, in the order they came, which the server
//! passes on to models and back without a meaning of its own.

/// The value of a parameter (`InferParameter` of the gRPC protocol; a JSON scalar in REST).
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// A boolean.
    Bool(bool),
    /// A number that is no integer.
    Double(f64),
    /// A signed integer.
    Int64(i64),
    /// A text.
    Text(String),
    /// An integer above the range of `i64`.
    Uint64(u64),
}

/// Parameters by name, in order. A name may occur once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(pub Vec<(String, ParameterValue)>);

impl Parameters {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
