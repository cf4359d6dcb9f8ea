//! The version of this build, so that a dashboard shows a new one.

use std::fmt::Write;

use crate::metrics::head;

/// Appends the version and the commit of this build; `commit` is empty if it was built without a repository.
pub fn encode_build(commit: &str, out: &mut String) {
    let name = "deuteron_build_info";
    head(out, name, "gauge", "1, with the version and the commit of this build");
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(out, "{name}{{version=\"{version}\",commit=\"{commit}\"}} 1");
}
