//! The source as the house rules see it: files by their module path, without tests and comments.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates that are one room each. Those of `base` are its modules, and all others are in `src`.
const ROOMS_OF_THEIR_OWN: &[&str] = &[
    "backend",
    "connection",
    "engines",
    "flags",
    "model",
    "process",
    "protocol",
    "scheduler",
    "settings",
    "trace",
    "transformer",
    "wire",
];

pub struct Source {
    /// `crates/wire/src/json/mod.rs`.
    pub name: String,
    /// `wire::json`; empty for the program's crate itself, and for `base`.
    pub module: String,
    /// `wire`.
    pub room: String,
    /// Paths in it begin as if all rooms were of one crate: `crate::wire::json`.
    pub text: String,
}

impl Source {
    pub fn new(name: &str, text: &str) -> Self {
        let (package, path) = match name.strip_prefix("crates/").and_then(|rest| rest.split_once("/src/")) {
            Some((package, path)) => (package, path),
            None => ("", name.trim_start_matches("src/")),
        };
        let is_room = !["", "base"].contains(&package);
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let path = match path {
            "lib" if is_room => package.to_owned(),
            path if is_room => format!("{package}/{path}"),
            path => path.to_owned(),
        };
        let module = if path == "lib" { String::new() } else { path.replace('/', "::") };
        let room = path.split('/').next().unwrap().to_owned();
        let text = rooted(text, package);
        Self { name: name.to_owned(), module, room, text }
    }

    /// The text without its tests. Tests in a file of their own are only declared, and code may follow.
    pub fn code(&self) -> &str {
        self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&self.text)
    }

    /// The lines of code: neither tests nor comments.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.code().lines().filter(|line| !line.trim_start().starts_with("//"))
    }

    pub fn is_test_only(&self) -> bool {
        ["tests.rs", "testing.rs", "trial.rs", "fake.rs", "fake_kernels.rs", "differential.rs", "onnx_builder.rs"]
            .iter()
            .any(|end| self.name.ends_with(end))
            || ["/tests/", "/simulation/"].iter().any(|folder| self.name.contains(folder))
    }
}

/// A text of a crate, with paths as if all rooms were of one: `crate::x` of `wire` becomes `crate::wire::x`, and so do
/// `wire::x` and `base::x` elsewhere.
fn rooted(text: &str, package: &str) -> String {
    let own = if ["", "base"].contains(&package) { String::new() } else { format!("{package}::") };
    // A module of the same name is meant where the file declares or imports one.
    let is_imported = |room: &str| {
        let ends = [
            format!("::{room}::{{self"),
            format!("::{room};"),
            format!(" {room},"),
            format!("{{{room},"),
            format!(" {room}}}"),
        ];
        let mut uses = text.lines().filter(|line| line.trim_start().starts_with("use "));
        uses.any(|line| ends.iter().any(|end| line.contains(end)))
    };
    let is_other = |room: &str| room != package && !text.contains(&format!("mod {room};\n")) && !is_imported(room);
    let others: Vec<_> = ROOMS_OF_THEIR_OWN.iter().copied().filter(|room| is_other(room)).collect();
    let is_inner = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut rooted = String::with_capacity(text.len() + text.len() / 16);
    for line in text.split_inclusive('\n') {
        let is_comment = line.trim_start().starts_with("//");
        let mut from = 0;
        for (at, _) in line.match_indices("::") {
            let before = line[..at].trim_end_matches(is_inner);
            let first = &line[before.len()..at];
            // The part begins a path.
            let outer = before.strip_suffix("::").unwrap_or(before);
            if outer.ends_with(|letter: char| is_inner(letter) || ['.', '>'].contains(&letter)) {
                continue;
            }
            let path = match first {
                "crate" => format!("crate::{own}"),
                "base" if !is_comment => "crate::".to_owned(),
                other if !is_comment && others.contains(&other) => format!("crate::{other}::"),
                _ => continue,
            };
            rooted.push_str(&line[from..outer.len()]);
            rooted.push_str(&path);
            from = at + 2;
        }
        rooted.push_str(&line[from..]);
    }
    rooted
}

/// The folders of all packages' source.
pub fn folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packages = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src"));
    [root.join("src")].into_iter().chain(packages).collect()
}

/// All files of them, in order.
pub fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    folders().iter().for_each(|folder| collect(folder, &mut files));
    files.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        Source::new(&name, &fs::read_to_string(&path).unwrap())
    };
    let sources: Vec<_> = files.into_iter().map(read).collect();
    assert!(sources.len() > 30, "the walk found the source");
    sources
}

/// The Rust files beneath a folder.
pub fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_and_paths_of_a_crate_are_those_of_its_room() {
        let module = |name: &str| Source::new(name, "").module;
        assert_eq!(module("crates/wire/src/json/mod.rs"), "wire::json");
        assert_eq!(module("crates/wire/src/lib.rs"), "wire");
        assert_eq!(module("crates/base/src/time.rs"), "time");
        assert_eq!((module("crates/base/src/lib.rs"), module("src/shard/mod.rs")), (String::new(), "shard".to_owned()));
        let text =
            rooted("use crate::json;\nuse base::{error, limits};\nlet a = database::b(base::time::c);\n", "wire");
        assert_eq!(text, "use crate::wire::json;\nuse crate::{error, limits};\nlet a = database::b(crate::time::c);\n");
    }
}
