//! Parameters of requests and responses: the client's own names and values, in the order they came, which the server
//! passes on to models and back without a meaning of its own.

/// The value of a parameter (`InferParameter` of the gRPC protocol; a JSON scalar in REST).
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// A boolean.
    Bool(bool),
    /// A number that is not an integer.
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
    /// Returns true if there are no parameters.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the value of a name. An existing name keeps its place. A linear search: decoders bound
    /// their number.
    pub fn set(&mut self, name: &str, value: ParameterValue) {
        match self.0.iter_mut().find(|(have, _)| have == name) {
            Some((_, have)) => *have = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    /// Bytes of the names and values.
    pub fn size(&self) -> usize {
        let size = |(name, value): &(String, ParameterValue)| {
            let text = if let ParameterValue::Text(text) = value { text.len() } else { 0 };
            size_of::<ParameterValue>().saturating_add(name.len()).saturating_add(text)
        };
        self.0.iter().map(size).fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_occurs_once_at_its_first_place_with_its_last_value() {
        let mut parameters = Parameters::default();
        parameters.set("a", ParameterValue::Int64(1));
        parameters.set("b", ParameterValue::Bool(true));
        parameters.set("a", ParameterValue::Text("xyz".to_owned()));
        let want = [("a", ParameterValue::Text("xyz".to_owned())), ("b", ParameterValue::Bool(true))];
        assert_eq!(parameters.0, want.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(parameters.size(), 2 * size_of::<ParameterValue>() + "a".len() + "xyz".len() + "b".len());
    }
}
