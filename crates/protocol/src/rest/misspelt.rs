//! Members of a JSON object that are not read because their names are misspelt: `"output"` would ask for all outputs,
//! and `"parameter"` would lose all parameters, with status 200. Other unknown members are ignored, as in Triton: clients
//! send members of their own (`docs/decisions/0061-misspelt-members.md`).

use base::error::Error;
use wire::json::JsonValue;

/// Refuses an object with a member whose name is that of an absent optional member but for one letter, or for its case.
/// `known` are the names that are read.
///
/// # Errors
///
/// `InvalidArgument`, with the name that was meant.
pub(crate) fn refuse(object: JsonValue<'_, '_>, known: &[&str], optional: &[&str]) -> Result<(), Error> {
    for (name, _) in object.members().filter(|(name, _)| !known.contains(name)) {
        if let Some(meant) = meant(object, name, optional) {
            return Err(Error::invalid(format!("unknown member '{name}': did you mean '{meant}'?")));
        }
    }
    Ok(())
}

/// Does the same for an object whose members are all optional.
///
/// # Errors
///
/// As [`refuse`].
pub(crate) fn refuse_in(object: JsonValue<'_, '_>, known: &[&str]) -> Result<(), Error> {
    refuse(object, known, known)
}

/// Returns an addition to the text on a missing member: the misspelt name, if there is one.
pub(super) fn hint(object: JsonValue<'_, '_>, missing: &str) -> String {
    let near = object.members().find(|(name, _)| is_near(name, missing) && object.get(missing).is_none());
    near.map_or_else(String::new, |(name, _)| format!(" (there is '{name}': did you mean '{missing}'?)"))
}

/// The absent member that a name is near to.
fn meant<'a>(object: JsonValue<'_, '_>, name: &str, optional: &[&'a str]) -> Option<&'a str> {
    optional.iter().copied().find(|have| is_near(name, have) && object.get(have).is_none())
}

/// Letters from which on a name is compared: one letter more or less makes another word of a shorter one.
const NEAR_LETTERS_MIN: usize = 4;

/// Returns whether two names differ by one letter, by two swapped letters, or by upper and lower case.
fn is_near(name: &str, known: &str) -> bool {
    let fold = |text: &str| text.bytes().map(|byte| byte.to_ascii_lowercase()).collect::<Vec<_>>();
    if known.len() < NEAR_LETTERS_MIN || name.len().abs_diff(known.len()) > 1 {
        return false;
    }
    let (name, known) = (fold(name), fold(known));
    let same = name.iter().zip(&known).take_while(|(one, other)| one == other).count();
    let (rest, left) = (name.get(same..).unwrap_or_default(), known.get(same..).unwrap_or_default());
    let after = |text: &[u8], count: usize| text.get(count..).map(<[u8]>::to_vec);
    let is_swapped =
        matches!((rest, left), ([a, b, ..], [c, d, ..]) if a == d && b == c) && after(rest, 2) == after(left, 2);
    rest == left
        || is_swapped
        || after(rest, 1) == after(left, 1)
        || after(rest, 1).is_some_and(|rest| rest == left)
        || after(left, 1).is_some_and(|left| rest == left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::json::Document;

    #[test]
    fn names_are_near_that_differ_by_a_letter_or_by_case() {
        for near in ["output", "outputss", "Outputs", "ouputs", "otuputs", "outputz", "OUTPUT", "utputs", "xoutputs"] {
            assert!(is_near(near, "outputs"), "{near}");
        }
        for far in ["out", "puts", "inputs", "output_names", "", "outpt", "outputs_x", "stuptuo"] {
            assert!(!is_near(far, "outputs"), "{far}");
        }
        for (name, known) in [("ids", "id"), ("di", "id"), ("model_name", "name"), ("timeout", "outputs")] {
            assert!(!is_near(name, known), "{name} {known}");
        }
    }

    #[test]
    fn a_misspelt_member_is_refused_where_what_it_is_near_to_is_absent() {
        let known = ["id", "inputs", "outputs", "parameters"];
        let check = |json: &str, want: &str| {
            let document = Document::parse(json.as_bytes(), &[]).unwrap();
            let got = refuse(document.root(), &known, &["outputs", "parameters"]);
            assert_eq!(got.map_or_else(|error| error.text().to_owned(), |()| String::new()), want, "{json}");
        };
        check(r#"{"inputs":[],"id":"a"}"#, "");
        check(r#"{"inputs":[],"output":[]}"#, "unknown member 'output': did you mean 'outputs'?");
        check(r#"{"Parameters":{},"inputs":[]}"#, "unknown member 'Parameters': did you mean 'parameters'?");
        // The member is there, so that the other one is the client's own.
        check(r#"{"inputs":[],"outputs":[],"output":1}"#, "");
        check(r#"{"inputs":[],"model_name":"m","model_version":"1","timeout":1,"version":7,"z":{}}"#, "");
        check(r#"{"inputs":[],"inputs":[]}"#, "");
        check("[]", "");
        let document = Document::parse(br#"{"nam":1,"shapes":[]}"#, &[]).unwrap();
        assert_eq!(hint(document.root(), "name"), " (there is 'nam': did you mean 'name'?)");
        assert_eq!(hint(document.root(), "datatype"), "");
        assert_eq!(hint(document.root(), "shapes"), "", "it is there");
    }
}
