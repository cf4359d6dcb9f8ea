//! The commit of a release. Only a release asks for it: otherwise every commit would rebuild the tests.

use std::env;
use std::path::Path;
use std::process::Command;

/// Hands `DEUTERON_VERSION` (`0.1.0 (985835f 2026-11-22)`) and `DEUTERON_COMMIT_HASH` to the crate. Without a
/// repository, the variable `DEUTERON_COMMIT` has them: a hash and a day.
#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by the environment alone")]
pub fn tell() -> Result<(), env::VarError> {
    println!("cargo::rerun-if-env-changed=DEUTERON_COMMIT");
    let given = env::var("DEUTERON_COMMIT").ok().filter(|text| is_commit(text));
    let is_release = env::var("PROFILE")? == "release";
    let commit = given.or_else(|| if is_release { of_repository(&env::var("CARGO_MANIFEST_DIR").ok()?) } else { None });
    let version = env::var("CARGO_PKG_VERSION")?;
    let (version, hash) = match &commit {
        Some(commit) => (format!("{version} ({commit})"), commit.split(' ').next().unwrap_or_default()),
        None => (version, ""),
    };
    println!("cargo::rustc-env=DEUTERON_VERSION={version}");
    println!("cargo::rustc-env=DEUTERON_COMMIT_HASH={hash}");
    Ok(())
}

/// The last commit of the folder's own repository. A repository around it, such as that of a project that vendors it,
/// is ignored.
fn of_repository(folder: &str) -> Option<String> {
    let folder = Path::new(folder);
    // Git writes a line for every commit.
    let log = folder.join(".git/logs/HEAD");
    if !log.exists() {
        return None;
    }
    println!("cargo::rerun-if-changed={}", log.display());
    let arguments = ["log", "-1", "--abbrev=9", "--format=%h %cd", "--date=format-local:%Y-%m-%d"];
    let output = Command::new("git").args(arguments).env("TZ", "UTC").current_dir(folder).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && is_commit(text))
}

/// Returns true if the text is a hash and a day, which go into labels and lines unescaped.
fn is_commit(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b" -.".contains(&byte);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(is_plain)
}
