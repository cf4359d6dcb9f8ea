//! Reads a TOML file with the positions of its values. The parser bounds the depth of brackets and of dotted keys
//! separately; the total depth is bounded here, by [`JSON_DEPTH_MAX`], since reading recurses.

use toml::de::{DeTable, DeValue};

use crate::placed::{Placed, PlacedError, PlacedMember, PlacedValue};
use base::limits::JSON_DEPTH_MAX;

/// Reads a whole text.
///
/// # Errors
///
/// A [`PlacedError`] if it is not TOML, is nested too deeply, or has a date, a time or an integer beyond 128 bits.
pub fn read(text: &str) -> Result<Placed, PlacedError> {
    let table = DeTable::parse(text).map_err(|error| PlacedError {
        offset: error.span().map_or(0, |span| span.start),
        text: error.message().replace('\n', ", "),
    })?;
    let members = members(table.into_inner(), 0)?;
    Ok(Placed { offset: 0, value: PlacedValue::Table(members) })
}

fn members(table: DeTable<'_>, depth: usize) -> Result<Vec<PlacedMember>, PlacedError> {
    let member = |(name, value): (toml::Spanned<_>, toml::Spanned<DeValue<'_>>)| {
        let (offset, name) = (name.span().start, name.into_inner());
        Ok(PlacedMember { name: String::from(name), offset, value: placed(value, depth + 1)? })
    };
    let mut members = table.into_iter().map(member).collect::<Result<Vec<_>, PlacedError>>()?;
    // Back to the order of the text, in which errors are to be reported.
    members.sort_by_key(|member| member.offset);
    Ok(members)
}

fn placed(value: toml::Spanned<DeValue<'_>>, depth: usize) -> Result<Placed, PlacedError> {
    let offset = value.span().start;
    if depth >= JSON_DEPTH_MAX {
        return Err(PlacedError { offset, text: format!("values are nested deeper than {JSON_DEPTH_MAX}") });
    }
    let value = match value.into_inner() {
        DeValue::String(text) => PlacedValue::String(text.into_owned()),
        DeValue::Integer(integer) => {
            let number = i128::from_str_radix(integer.as_str(), integer.radix());
            let number = number.map_err(|_| PlacedError { offset, text: "integer out of range".to_owned() })?;
            PlacedValue::Number(number.to_string())
        }
        DeValue::Float(float) => PlacedValue::Number(float.as_str().to_owned()),
        DeValue::Boolean(is_true) => PlacedValue::Bool(is_true),
        DeValue::Datetime(_) => {
            return Err(PlacedError { offset, text: "dates and times are not supported; quote the value".to_owned() });
        }
        DeValue::Array(array) => {
            let elements = array.into_iter().map(|element| placed(element, depth + 1));
            PlacedValue::List(elements.collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => PlacedValue::Table(members(table, depth)?),
    };
    Ok(Placed { offset, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_with_their_places_in_the_order_of_the_text() {
        let text =
            "name = \"m\"\nsize = 0x10\nlist = [1, 2.5]\n[[input]]\nz = true\na = { b = 18446744073709551615 }\n";
        let PlacedValue::Table(members) = read(text).unwrap().value else { panic!() };
        let names: Vec<_> = members.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["name", "size", "list", "input"]);
        assert_eq!(members[1].value.value, PlacedValue::Number("16".to_owned()));
        assert!(text[members[2].value.offset..].starts_with("[1"));
        let marked = format!("\u{feff}{text}");
        let PlacedValue::Table(again) = read(&marked).unwrap().value else { panic!() };
        assert!(marked[again[1].offset..].starts_with("size"), "a byte order mark is skipped and counted");
        let PlacedValue::List(tables) = &members[3].value.value else { panic!() };
        let PlacedValue::Table(input) = &tables[0].value else { panic!() };
        assert_eq!((input[0].name.as_str(), input[1].name.as_str()), ("z", "a"));
        assert!(text[input[1].offset..].starts_with("a = "));
        let PlacedValue::Table(inner) = &input[1].value.value else { panic!() };
        assert_eq!(inner[0].value.value, PlacedValue::Number(u64::MAX.to_string()));
    }

    #[test]
    fn invalid_documents_are_refused_at_their_first_fault() {
        let check = |text: &str, offset: usize| {
            let error = read(text).unwrap_err();
            assert_eq!(error.offset, offset, "{text:?}: {}", error.text);
            assert!(!error.text.contains('\n'));
        };
        check("a = ", 4);
        check("a = 1\na = 2", 6);
        check("a = 1979-05-27", 4);
        check("a = 999999999999999999999999999999999999999999", 4);
        let deep = vec!["a"; 79].join(".");
        check(&format!("{deep} = {{ {deep} = 1 }}"), 202);
        assert!(read(&format!("a.{} = 1", deep.repeat(2000))).is_err());
        assert!(read(&format!("a = {}", "[".repeat(100_000))).is_err());
    }
}
