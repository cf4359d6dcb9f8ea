//! The reference and the schema beside the declarations.

use super::*;

/// The last line of the page that is written by hand.
const MARKER: &str = "A test writes the rest of this page from the source.\n";

#[test]
fn the_schema_is_json_that_has_every_kind_and_parameter() {
    let schema = schema();
    wire::json::placed::read(&schema).unwrap();
    for kind in KINDS {
        assert!(schema.contains(&format!("\"step\": {{\"const\": \"{}\"}}", kind.name)), "{}", kind.name);
        for field in kind.fields {
            assert!(schema.contains(&format!("\"{}\": {{", field.name)), "{}: {}", kind.name, field.name);
        }
    }
}

/// `UPDATE_EXPECT=1 cargo test -p steps reference` writes the page anew, beneath its marker.
#[test]
fn the_page_of_the_reference_is_what_the_source_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/steps.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (head, _) = page.split_once(MARKER).unwrap();
    let wanted = format!("{head}{MARKER}\n{}", markdown());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    assert!(page == wanted, "docs/steps.md is not what the source says: UPDATE_EXPECT=1 cargo test -p steps reference");
}

#[test]
fn every_default_is_a_value_that_its_parameter_takes() {
    for kind in KINDS {
        for field in kind.fields {
            if let FieldDefault::Json(text) = field.default {
                let value = wire::json::placed::read(text).unwrap_or_else(|_| panic!("{}: {text}", field.name));
                assert!(field.kind.accepts(&value.value), "{} {}: {text}", kind.name, field.name);
            }
        }
    }
}
