//! Skipped tests, for lack of a program, a GPU or the network. libtest shows nothing of a test that passed, so each is
//! noted, and `tests/what_was_skipped.rs` prints the list when all have run.

use std::{env, fs::OpenOptions, io::Write as _, path::PathBuf, thread};

use super::folder::target;

/// Notes that the running test shows nothing on this machine, or less than on others, with the reason.
pub fn skip(why: &str) {
    println!("skipped: {why}");
    let test = thread::current().name().unwrap_or("a thread of a test").to_owned();
    let file = OpenOptions::new().create(true).append(true).open(list());
    // One write for each line, since processes append at the same time.
    let written = file.and_then(|mut file| file.write_all(format!("{test}: {}\n", why.replace('\n', " ")).as_bytes()));
    written.expect("the target folder can be written");
}

/// The same for a program that every machine of CI has: with `CI=true` it fails.
pub fn skip_unless_ci(why: &str) {
    assert!(env::var_os("CI").is_none_or(|value| value != "true"), "{why}");
    skip(why);
}

/// Returns true if `DEUTERON_TESTS`, a list of words with commas between, asks for tests that a plain `cargo test`
/// skips, since they fetch hundreds of megabytes or measure a machine for minutes. If it does not, reports the skipped
/// test.
pub fn is_asked_for(word: &str) -> bool {
    let words = env::var_os("DEUTERON_TESTS").unwrap_or_default();
    let is_asked_for = words.to_str().is_some_and(|words| words.split(',').any(|asked| asked == word));
    if !is_asked_for {
        skip(&format!("it runs with DEUTERON_TESTS={word}"));
    }
    is_asked_for
}

/// The file with a line for each.
pub fn list() -> PathBuf {
    target().join("tmp/skipped")
}
