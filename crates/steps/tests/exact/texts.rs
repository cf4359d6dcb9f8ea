//! Steps that write texts, against public code.

use crate::cases::compare;

#[test]
fn recognised_texts_are_those_of_public_code() {
    compare("ctc.py");
}

#[test]
fn entities_are_those_of_transformers() {
    compare("spans.py");
}

#[test]
fn json_is_pythons() {
    compare("template.py");
}
