//! The table of cases, one file per group. Every row is bytes that both servers get.
//!
//! Some things are never sent, because tritonserver 2.51 does not survive them: `classification` on a BYTES output or
//! on one without elements, JSON data whose shape says 2^62 elements or more in one row, and the load of a model
//! named `..`. To a shape of `[0,0]` it never answers.

mod binary;
mod classification;
mod error;
mod grpc;
mod json;
mod route;
mod value;

use crate::oracle::case::Case;

/// Of the server that is asked: the links at the root have no console, whose port is another each time.
pub const DEUTERON_FLAGS: &[&str] = &["--console=off"];

/// All cases, in the order in which they are played.
pub fn all() -> Vec<Case> {
    [
        route::cases(),
        json::cases(),
        value::cases(),
        error::cases(),
        binary::cases(),
        classification::cases(),
        grpc::cases(),
    ]
    .concat()
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let cases = all();
    let names: std::collections::BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 150, "{} cases", cases.len());
}
