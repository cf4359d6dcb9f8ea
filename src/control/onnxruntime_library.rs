//! The search for the ONNX Runtime library when no flag names it: `ORT_DYLIB_PATH`, then the wheel `onnxruntime` in the
//! active Python environment. Done once, when the first ONNX model may use it.
//!
//! No Python is run: that would add an interpreter's start to ours, and would execute whatever a directory in `PATH`
//! calls `python3`. The price: a wheel behind a script (a pyenv shim) or outside the interpreter's prefix
//! (`pip install --user`) is not found and must be named by the flag or the variable.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A path where the library may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryCandidate {
    /// The library's file.
    pub path: PathBuf,
    /// Which variable led to it, for the log.
    pub source: &'static str,
}

/// The environment variables that the search uses.
#[derive(Clone, Debug, Default)]
pub struct LibrarySearch {
    /// `ORT_DYLIB_PATH`.
    pub library: Option<OsString>,
    /// `VIRTUAL_ENV`.
    pub virtual_environment: Option<OsString>,
    /// `CONDA_PREFIX`.
    pub conda: Option<OsString>,
    /// `PATH`.
    pub path: Option<OsString>,
}

impl LibrarySearch {
    /// The variables of this process.
    pub fn of_process() -> Self {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        Self {
            library: variable("ORT_DYLIB_PATH"),
            virtual_environment: variable("VIRTUAL_ENV"),
            conda: variable("CONDA_PREFIX"),
            path: variable("PATH"),
        }
    }

    /// The candidates, in the order to try them.
    pub fn candidates(&self) -> Vec<LibraryCandidate> {
        let mut found = Vec::new();
        if let Some(path) = &self.library {
            found.push(LibraryCandidate { path: path.into(), source: "ORT_DYLIB_PATH" });
        }
        let prefixes = [("VIRTUAL_ENV", &self.virtual_environment), ("CONDA_PREFIX", &self.conda)];
        for (source, prefix) in prefixes {
            let path = prefix.as_ref().and_then(|prefix| in_prefix(Path::new(prefix)));
            found.extend(path.map(|path| LibraryCandidate { path, source }));
        }
        let path = self.path.as_ref().and_then(|path| in_interpreter(&python(path)?));
        found.extend(path.map(|path| LibraryCandidate { path, source: "python3 in PATH" }));
        found.dedup_by(|one, other| one.path == other.path);
        found
    }
}

/// The first `python3` in `PATH`.
fn python(path: &OsString) -> Option<PathBuf> {
    env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("python3"))
        .find(|file| file.is_file())
}

/// Searches the prefix of an interpreter's path, then that of the path with links resolved: in a virtual environment
/// `python3` is a link to the system's interpreter.
fn in_interpreter(python: &Path) -> Option<PathBuf> {
    let prefix = |python: &Path| in_prefix(python.parent()?.parent()?);
    prefix(python).or_else(|| prefix(&python.canonicalize().ok()?))
}

/// The wheel's library in `PREFIX/lib/python3*`.
fn in_prefix(prefix: &Path) -> Option<PathBuf> {
    let versions = names(&prefix.join("lib"), "python3");
    versions.iter().find_map(|version| {
        ["site-packages", "dist-packages"].iter().find_map(|packages| {
            let folder = version.join(packages).join("onnxruntime/capi");
            names(&folder, "libonnxruntime.so").pop()
        })
    })
}

/// The paths of a folder's entries whose names start with `beginning`, sorted.
fn names(folder: &Path, beginning: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let begins = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(beginning.as_bytes());
    let mut paths: Vec<_> = entries.flatten().filter(begins).map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn wheel(prefix: &Path, packages: &str) -> PathBuf {
        let folder = prefix.join(packages).join("onnxruntime/capi");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("libonnxruntime_providers_shared.so"), "").unwrap();
        let library = folder.join("libonnxruntime.so.1.31.1");
        fs::write(&library, "").unwrap();
        library
    }

    fn interpreter(prefix: &Path) -> OsString {
        let folder = prefix.join("bin");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("python3"), "").unwrap();
        folder.into()
    }

    #[test]
    fn the_variable_goes_before_the_wheels_and_what_is_not_there_is_left_out() {
        let root = env::temp_dir().join(format!("deuteron-library-{}", std::process::id()));
        let (venv, conda, system) = (root.join("venv"), root.join("conda"), root.join("system"));
        let in_venv = wheel(&venv, "lib/python3.12/site-packages");
        let in_system = wheel(&system, "lib/python3/dist-packages");
        fs::create_dir_all(conda.join("lib/python3.9/site-packages")).unwrap();
        let empty = root.join("empty");
        fs::create_dir_all(&empty).unwrap();
        let path = env::join_paths([OsString::from("relative"), empty.clone().into(), interpreter(&system)]).unwrap();
        let around = LibrarySearch {
            library: Some("/nowhere/lib.so".into()),
            virtual_environment: Some(venv.clone().into()),
            conda: Some(conda.into()),
            path: Some(path),
        };
        let candidate = |path: &Path, source| LibraryCandidate { path: path.to_owned(), source };
        let want = [
            candidate(Path::new("/nowhere/lib.so"), "ORT_DYLIB_PATH"),
            candidate(&in_venv, "VIRTUAL_ENV"),
            candidate(&in_system, "python3 in PATH"),
        ];
        assert_eq!(around.candidates(), want);
        assert_eq!(LibrarySearch { path: Some(empty.into()), ..LibrarySearch::default() }.candidates(), []);

        // An active environment is the first of `PATH` too, and its interpreter a link.
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(system.join("bin/python3"), venv.join("bin/python3")).unwrap();
        let path = Some(venv.join("bin").into());
        let around = LibrarySearch { virtual_environment: Some(venv.clone().into()), path, ..LibrarySearch::default() };
        assert_eq!(around.candidates(), [candidate(&in_venv, "VIRTUAL_ENV")]);
        fs::remove_dir_all(venv.join("lib")).unwrap();
        assert_eq!(around.candidates(), [candidate(&in_system, "python3 in PATH")]);
        fs::remove_dir_all(&root).unwrap();
    }
}
