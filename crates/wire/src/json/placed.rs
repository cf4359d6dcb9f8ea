//! Reads a JSON file with the positions of its values; names may lack their quotes. Recursive, at most [`JSON_DEPTH_MAX`] deep.

use crate::json::cursor::{Cursor, NumberForm};
use crate::json::{JsonError, JsonFault};
use crate::limits::JSON_NODES_MAX;
use crate::placed::{Placed, PlacedError, PlacedMember, PlacedValue};
use base::limits::JSON_DEPTH_MAX;

/// Reads a whole text.
///
/// # Errors
///
/// A [`PlacedError`] if it is not JSON, or exceeds the limits on depth and values.
pub fn read(text: &str) -> Result<Placed, PlacedError> {
    let mut reader = PlacedReader { cursor: Cursor::new(text.as_bytes(), 0), nodes: 0 };
    if text.starts_with('\u{feff}') {
        reader.cursor.rest = text.as_bytes().get('\u{feff}'.len_utf8()..).unwrap_or_default();
    }
    let outcome = reader.whole();
    // Without the offset in the text: the caller reports line and column.
    outcome.map_err(|error| PlacedError { offset: error.offset, text: error.fault.to_string() })
}

struct PlacedReader<'a> {
    cursor: Cursor<'a>,
    nodes: usize,
}

impl PlacedReader<'_> {
    fn whole(&mut self) -> Result<Placed, JsonError> {
        self.cursor.skip_space();
        if self.cursor.peek().is_none() {
            return Err(self.cursor.error(JsonFault::Empty));
        }
        let value = self.value(0)?;
        self.cursor.skip_space();
        if self.cursor.peek().is_some() {
            return Err(self.cursor.error(JsonFault::Trailing));
        }
        Ok(value)
    }

    /// Reads a value; white space before it was skipped.
    fn value(&mut self, depth: usize) -> Result<Placed, JsonError> {
        if depth >= JSON_DEPTH_MAX {
            return Err(self.cursor.error(JsonFault::Depth));
        }
        self.nodes += 1;
        if self.nodes > JSON_NODES_MAX {
            return Err(self.cursor.error(JsonFault::Nodes));
        }
        let offset = self.cursor.offset();
        let value = match self.cursor.peek() {
            Some(b'{') => PlacedValue::Table(self.members(depth)?),
            Some(b'[') => PlacedValue::List(self.elements(depth)?),
            Some(b'"') => PlacedValue::String(self.cursor.string()?.into_owned()),
            Some(b't') => self.cursor.literal(b"true").map(|()| PlacedValue::Bool(true))?,
            Some(b'f') => self.cursor.literal(b"false").map(|()| PlacedValue::Bool(false))?,
            Some(b'n') => self.cursor.literal(b"null").map(|()| PlacedValue::Null)?,
            _ => {
                let (number, form) = self.cursor.number()?;
                if form == NumberForm::Literal {
                    return Err(JsonError { fault: JsonFault::Value, offset });
                }
                PlacedValue::Number(String::from_utf8_lossy(number).into_owned())
            }
        };
        Ok(Placed { offset, value })
    }

    fn members(&mut self, depth: usize) -> Result<Vec<PlacedMember>, JsonError> {
        self.cursor.advance();
        let mut members = Vec::new();
        self.cursor.skip_space();
        if self.cursor.consume(b'}') {
            return Ok(members);
        }
        loop {
            self.cursor.skip_space();
            let offset = self.cursor.offset();
            let name = self.name()?;
            self.cursor.skip_space();
            if !self.cursor.consume(b':') {
                return Err(self.cursor.error(JsonFault::Colon));
            }
            self.cursor.skip_space();
            members.push(PlacedMember { name, offset, value: self.value(depth + 1)? });
            self.cursor.skip_space();
            if self.cursor.consume(b'}') {
                return Ok(members);
            }
            if !self.cursor.consume(b',') {
                return Err(self.cursor.error(JsonFault::Member));
            }
        }
    }

    /// A name in quotes, or a plain word as protobuf's reader takes it: clients of Triton send `{direct: {}}`.
    fn name(&mut self) -> Result<String, JsonError> {
        if self.cursor.peek() == Some(b'"') {
            return Ok(self.cursor.string()?.into_owned());
        }
        let is_plain = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let size = self.cursor.rest.iter().take_while(is_plain).count();
        let word = self.cursor.rest.get(..size).unwrap_or_default();
        if word.first().is_none_or(u8::is_ascii_digit) {
            return Err(self.cursor.error(JsonFault::Name));
        }
        let name = String::from_utf8_lossy(word).into_owned();
        (0..size).for_each(|_| self.cursor.advance());
        Ok(name)
    }

    fn elements(&mut self, depth: usize) -> Result<Vec<Placed>, JsonError> {
        self.cursor.advance();
        let mut elements = Vec::new();
        self.cursor.skip_space();
        if self.cursor.consume(b']') {
            return Ok(elements);
        }
        loop {
            self.cursor.skip_space();
            elements.push(self.value(depth + 1)?);
            self.cursor.skip_space();
            if self.cursor.consume(b']') {
                return Ok(elements);
            }
            if !self.cursor.consume(b',') {
                return Err(self.cursor.error(JsonFault::Element));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_bytes_at_which_names_and_values_begin() {
        let text = "\u{feff}{ \"a\": [1, \"é\"], \"b\" : {\"c\": null} }";
        let PlacedValue::Table(members) = read(text).unwrap().value else { panic!() };
        let at = |offset: usize, want: &str| assert!(text[offset..].starts_with(want), "{offset} {want}");
        at(members[0].offset, "\"a\"");
        at(members[0].value.offset, "[1");
        let PlacedValue::List(elements) = &members[0].value.value else { panic!() };
        at(elements[1].offset, "\"é\"");
        at(members[1].offset, "\"b\"");
        let PlacedValue::Table(inner) = &members[1].value.value else { panic!() };
        at(inner[0].value.offset, "null");
    }

    #[test]
    fn names_may_lack_their_quotes() {
        let names = |text: &str| match read(text).map(|read| read.value) {
            Ok(PlacedValue::Table(members)) => {
                members.into_iter().map(|member| member.name).collect::<Vec<_>>().join(" ")
            }
            other => format!("{other:?}"),
        };
        assert_eq!(names("{direct: {}, max_batch_size:4,\"a b\":1}"), "direct max_batch_size a b");
        for text in ["{1a: 2}", "{-a: 2}", "{: 2}", "{a b: 2}", "{'a': 2}"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn it_reads_what_the_strict_reader_of_requests_reads() {
        for text in [
            "",
            " ",
            "{",
            "{}",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{\"a\":1 \"b\":2}",
            "nul",
            "1 2",
            "\"\\x\"",
            "-",
            "1.",
            "1e",
            "[[1],{\"a\":[]}]",
            "1e999",
            "\"\\ud800\"",
            "{1:2}",
            "[1 2]",
        ] {
            let strict = crate::json::Document::parse(text.as_bytes(), &[]);
            let strict = strict.map(|_| ()).map_err(|error| (error.offset, error.fault.to_string()));
            assert_eq!(read(text).map(|_| ()).map_err(|error| (error.offset, error.text)), strict, "{text:?}");
        }
        assert!(read(&"[".repeat(JSON_DEPTH_MAX + 1)).unwrap_err().text.contains("depth"));
    }
}
