//! The last program of `cargo test`, which runs them in the order of their names: prints which tests passed over, and why.
//! It tests nothing.

use std::{collections::BTreeSet, fs};

#[path = "support/folder.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod folder;
#[path = "support/skipped.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod skipped;
#[path = "support/time_limit.rs"]
#[allow(dead_code, clippy::disallowed_methods, clippy::disallowed_types, reason = "the tests use it, side by side")]
mod time_limit;

fn main() {
    let text = fs::read_to_string(skipped::list()).unwrap_or_default();
    // A run of one test alone leaves its line for the next run of all.
    let lines: BTreeSet<&str> = text.lines().collect();
    println!("\n{} tests were skipped", lines.len());
    lines.iter().for_each(|line| println!("  {line}"));
    let _ = fs::remove_file(skipped::list());
}
