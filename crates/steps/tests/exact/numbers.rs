//! Steps on vectors of numbers, against numpy.

use crate::cases::compare;

#[test]
fn heads_are_numpys() {
    compare("head.py");
}

#[test]
fn pooled_vectors_are_numpys() {
    compare("pool.py");
}

#[test]
fn columns_are_numpys() {
    compare("columns.py");
}
