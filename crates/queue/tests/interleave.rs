//! The model check of what threads share (`.ci/run interleave`). It compiles the library once more, under test and with
//! loom's types, as a target of its own: Cargo can then build it with the features of the whole workspace, as all that it
//! depends on is built already.

#![allow(dead_code, unreachable_pub, reason = "the library's own build checks these")]

#[path = "../src/lib.rs"]
mod library;

// The library's files name each other from the root.
#[allow(unused_imports, reason = "as above")]
use self::library::*;
