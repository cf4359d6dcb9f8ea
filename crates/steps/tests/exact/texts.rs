//! Steps that write texts, against public code.

use crate::cases::{compare, compare_with_transformers};

#[test]
fn recognised_texts_are_those_of_public_code() {
    compare_with_transformers("ctc.py");
}

#[test]
fn entities_are_those_of_transformers() {
    compare_with_transformers("spans.py");
}

#[test]
fn json_is_pythons() {
    compare("template.py");
}
