//! The source as the house rules see it: files by their module path, without tests and comments.

use std::fs;
use std::path::{Path, PathBuf};

pub struct Source {
    /// `src/wire/json/mod.rs`.
    pub name: String,
    /// `wire::json`; empty for the crate itself.
    pub module: String,
    /// `wire`.
    pub room: String,
    pub text: String,
}

impl Source {
    pub fn new(name: &str, text: &str) -> Self {
        let path = name.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
        let module = if path == "lib" { String::new() } else { path.replace('/', "::") };
        let room = path.split('/').next().unwrap().to_owned();
        Self { name: name.to_owned(), module, room, text: text.to_owned() }
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

/// All files of `src`, in order.
pub fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
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
