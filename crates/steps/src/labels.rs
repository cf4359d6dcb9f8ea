//! Names of classes, which several kinds of steps take as a parameter or from a file.

use base::error::Error;
use wire::json::{Document, JsonValue, ValueKind};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};

/// The parameter that lists them.
pub const LABELS: Field = Field {
    name: "labels",
    kind: FieldKind::Texts,
    default: FieldDefault::Unset,
    about: "The names of the classes: a list, or an object from indices to names, such as `id2label`.",
};

/// The parameter that names a file of them.
pub const LABELS_FILE: Field = Field {
    name: "labels_file",
    kind: FieldKind::File,
    default: FieldDefault::Unset,
    about: "A file with the names of the classes: a line each, a JSON list, a JSON object from indices to names, or a \
            `config.json` with `id2label`.",
};

/// Returns the labels that [`LABELS`] or [`LABELS_FILE`] gives; empty without either.
///
/// # Errors
/// If both are given, or the file is malformed.
pub fn read(fields: &StepFields<'_>) -> Result<Vec<String>, Error> {
    if fields.is_given(LABELS.name) && fields.is_given(LABELS_FILE.name) {
        return Err(fields.error(LABELS_FILE.name, "labels are given by \"labels\" already"));
    }
    let Some(file) = fields.file(LABELS_FILE.name)? else { return Ok(fields.texts(LABELS.name)) };
    of_file(&file).map_err(|why| fields.error(LABELS_FILE.name, &why))
}

/// Returns the labels in the contents of a file. White space around a line is dropped, and empty lines at the end.
pub(crate) fn of_file(file: &[u8]) -> Result<Vec<String>, String> {
    let text = std::str::from_utf8(file).map_err(|error| format!("byte {} is not UTF-8", error.valid_up_to()))?;
    let text = text.trim_start_matches('\u{feff}').trim_end();
    if !text.trim_start().starts_with(['{', '[']) {
        return Ok(text.lines().map(|line| line.trim().to_owned()).collect());
    }
    let document = Document::parse(text.as_bytes(), &[]).map_err(|error| error.to_string())?;
    let root = document.root();
    let labels = match root.kind() {
        ValueKind::Array => root.elements().map(|label| label.as_str().map(str::to_owned)).collect(),
        _ => by_index(root.get("id2label").unwrap_or(root)),
    };
    labels.ok_or_else(|| "must be a JSON list of strings, or an object from the indices 0, 1, … to strings".to_owned())
}

/// The strings of an object by their indices, without a gap.
fn by_index(object: JsonValue<'_, '_>) -> Option<Vec<String>> {
    let mut labels = vec![None; object.members().count()];
    for (index, label) in object.members() {
        *labels.get_mut(index.parse::<usize>().ok()?)? = Some(label.as_str()?.to_owned());
    }
    labels.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_lines_a_list_or_an_object() {
        let check = |text: &str, want: &[&str]| assert_eq!(of_file(text.as_bytes()).unwrap(), want, "{text}");
        check("cat\r\n dog \n\nbird\n\n", &["cat", "dog", "", "bird"]);
        check("[\"cat\", \"dog\"]", &["cat", "dog"]);
        check("{\"1\": \"dog\", \"0\": \"cat\"}", &["cat", "dog"]);
        check("\n{\"hidden_size\": 4, \"id2label\": {\"0\": \"cat\"}}", &["cat"]);
        check("", &[]);
        let shape = "must be a JSON list of strings, or an object from the indices 0, 1, … to strings";
        let bad = |text: &[u8], want: &str| assert_eq!(of_file(text).unwrap_err(), want);
        bad(b"[1]", shape);
        bad(b"{\"1\": \"dog\"}", shape);
        bad(b"{\"id2label\": 1, \"0\": \"a\"}x", "The document root must not be followed by other values. at 25");
        bad(b"cat\n\xff", "byte 4 is not UTF-8");
    }
}
