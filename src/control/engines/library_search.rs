//! The search for the shared library of an engine ([`SoughtLibrary`]): the one that the user named,
//! then those nearby, then the system's. The first usable library wins; `deuteron doctor` shows
//! every place. Done once for each engine, when the first model may use it.
//!
//! No Python is run: that would add an interpreter's start to ours, and would execute any program
//! that a directory in `PATH` calls `python3`. The price: a wheel behind a script (a pyenv shim) is
//! not found and must be named.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::limits::LOADER_CACHE_SIZE_MAX;

/// The library of an engine: its file names, and the names of its places.
#[derive(Debug, PartialEq, Eq)]
pub struct SoughtLibrary {
    /// The beginnings of the file's name, in the order to try them; a version follows.
    pub file_names: &'static [&'static str],
    /// The variable of the environment that names the file, or a directory with it.
    pub variable: &'static str,
    /// The folders of its wheel that have it, beneath `site-packages`.
    pub wheel_folders: &'static [&'static str],
    /// The folders that may have it in a directory that the user names, beside the directory itself, `lib` and `lib64`.
    pub unpacked_folders: &'static [&'static str],
}

/// The search for ONNX Runtime.
pub static ONNX_RUNTIME: SoughtLibrary = SoughtLibrary {
    file_names: &["libonnxruntime.so"],
    variable: "ORT_DYLIB_PATH",
    wheel_folders: &["onnxruntime/capi"],
    unpacked_folders: &["capi", "onnxruntime/capi"],
};

/// A path where the library may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryCandidate {
    /// The library's file.
    pub path: PathBuf,
    /// The way to it, for the log.
    pub source: &'static str,
}

/// One place of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedPlace {
    /// The name of the place: a variable, or a description.
    pub source: &'static str,
    /// The directory, interpreter or file that was examined; `None` if the variable is not set.
    pub path: Option<PathBuf>,
    /// The libraries found there, in the order to try them.
    pub libraries: Vec<PathBuf>,
}

/// The parts of the process and the system that the search uses.
#[derive(Clone, Debug)]
pub struct LibrarySearch {
    /// The library that is sought.
    pub sought: &'static SoughtLibrary,
    /// The value of its variable: the library, or a directory with it.
    pub library: Option<OsString>,
    /// The path of this program.
    pub program: Option<PathBuf>,
    /// `LD_LIBRARY_PATH`.
    pub loader_path: Option<OsString>,
    /// `VIRTUAL_ENV`.
    pub virtual_environment: Option<OsString>,
    /// `CONDA_PREFIX`.
    pub conda: Option<OsString>,
    /// `PATH`.
    pub path: Option<OsString>,
    /// The folder in which `pip install --user` installs: `PYTHONUSERBASE`, else `~/.local`.
    pub user_base: Option<PathBuf>,
    /// The file in which the loader keeps the libraries that it knows.
    pub loader_cache: Option<PathBuf>,
}

impl LibrarySearch {
    /// Returns a search in no place.
    pub const fn nowhere(sought: &'static SoughtLibrary) -> Self {
        Self {
            sought,
            library: None,
            program: None,
            loader_path: None,
            virtual_environment: None,
            conda: None,
            path: None,
            user_base: None,
            loader_cache: None,
        }
    }

    /// Returns a search in the surroundings of this process.
    pub fn of_process(sought: &'static SoughtLibrary) -> Self {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let home = || variable("HOME").map(|home| Path::new(&home).join(".local"));
        Self {
            sought,
            library: variable(sought.variable),
            program: env::current_exe().ok(),
            loader_path: variable("LD_LIBRARY_PATH"),
            virtual_environment: variable("VIRTUAL_ENV"),
            conda: variable("CONDA_PREFIX"),
            path: variable("PATH"),
            user_base: variable("PYTHONUSERBASE").map(PathBuf::from).or_else(home),
            loader_cache: Some(PathBuf::from("/etc/ld.so.cache")),
        }
    }

    /// Returns the candidates, in the order to try them, each file once.
    pub fn candidates(&self) -> Vec<LibraryCandidate> {
        let mut seen = BTreeSet::new();
        let all = self.places().into_iter().flat_map(|place| {
            place.libraries.into_iter().map(move |path| LibraryCandidate { path, source: place.source })
        });
        all.filter(|candidate| seen.insert(candidate.path.canonicalize().unwrap_or_else(|_| candidate.path.clone())))
            .collect()
    }

    /// Returns every place of the search. A variable that names the library goes first, then what
    /// was installed with the program, then the user's active environment; the whole system goes
    /// last.
    pub fn places(&self) -> Vec<SearchedPlace> {
        let sought = self.sought;
        let place = |source, path: Option<PathBuf>, look: &dyn Fn(&Path) -> Vec<PathBuf>| {
            let libraries = path.as_deref().map(look).unwrap_or_default();
            SearchedPlace { source, path, libraries }
        };
        let path = |variable: &Option<OsString>| variable.as_ref().map(PathBuf::from);
        let beside = |program: &Path| {
            let folder = program.parent().unwrap_or(Path::new("/"));
            let folders = [folder.to_owned(), folder.join("../lib")];
            folders.iter().find_map(|folder| sought.in_folder(folder)).into_iter().collect()
        };
        let environment =
            |program: &Path| program.parent().and_then(Path::parent).and_then(|prefix| sought.in_prefix(prefix));
        let folders = |list: &Path| {
            env::split_paths(list)
                .filter(|folder| folder.is_absolute())
                .filter_map(|folder| sought.in_folder(&folder))
                .collect()
        };
        let prefix = |prefix: &Path| sought.in_prefix(prefix).into_iter().collect();
        let python = self.path.as_ref().and_then(python);
        vec![
            place(sought.variable, path(&self.library), &|path| sought.in_named(path)),
            place("beside the program", self.program.clone(), &beside),
            place("LD_LIBRARY_PATH", path(&self.loader_path), &folders),
            place("VIRTUAL_ENV", path(&self.virtual_environment), &prefix),
            place("CONDA_PREFIX", path(&self.conda), &prefix),
            place("the environment of the program", self.program.clone(), &|program| {
                environment(program).into_iter().collect()
            }),
            place("python3 in PATH", python, &|python| sought.in_interpreter(python).into_iter().collect()),
            place("pip install --user", self.user_base.clone(), &prefix),
            place("the loader's cache", self.loader_cache.clone(), &|cache| sought.in_loader_cache(cache)),
        ]
    }
}

impl SoughtLibrary {
    /// Returns the files that a path given by a flag or by the variable stands for: the file
    /// itself, or the libraries in that directory, in its `lib`, in an unpacked wheel or in an
    /// environment.
    pub fn in_named(&self, path: &Path) -> Vec<PathBuf> {
        if !path.is_dir() {
            return vec![path.to_owned()];
        }
        let mut folders = ["", "lib", "lib64"].iter().chain(self.unpacked_folders);
        let found = folders.find_map(|folder| self.in_folder(&path.join(folder)));
        found.or_else(|| self.in_prefix(path)).into_iter().collect()
    }

    /// Searches the prefix of an interpreter's path, then that of the path with links resolved: in
    /// a virtual environment `python3` is a link to the system's interpreter. Debian's interpreter
    /// installs root's pip packages beneath `/usr/local`.
    fn in_interpreter(&self, python: &Path) -> Option<PathBuf> {
        let prefix = |python: &Path| self.in_prefix(python.parent()?.parent()?);
        let resolved = || python.canonicalize().ok();
        let local = || {
            let is_system = |python: &PathBuf| python.starts_with("/usr/bin");
            resolved().filter(is_system).and_then(|_| self.in_prefix("/usr/local".as_ref()))
        };
        prefix(python).or_else(|| prefix(&resolved()?)).or_else(local)
    }

    /// Returns the wheel's library in `PREFIX/lib/python3*`.
    fn in_prefix(&self, prefix: &Path) -> Option<PathBuf> {
        let versions = ["lib", "lib64"].iter().flat_map(|lib| names(&prefix.join(lib), "python3"));
        let packages = versions
            .flat_map(|version| ["site-packages", "dist-packages"].map(|packages| version.join(packages)))
            .collect::<Vec<_>>();
        packages
            .iter()
            .find_map(|packages| self.wheel_folders.iter().find_map(|wheel| self.in_folder(&packages.join(wheel))))
    }

    /// Returns the library in a folder: of several names the longest, which has the whole version.
    fn in_folder(&self, folder: &Path) -> Option<PathBuf> {
        self.file_names.iter().find_map(|name| names(folder, name).pop())
    }

    /// Returns the libraries that the loader's cache names. Its format differs between versions of
    /// glibc, but all have paths as texts that end with a zero byte.
    fn in_loader_cache(&self, cache: &Path) -> Vec<PathBuf> {
        let mut bytes = Vec::new();
        let read = fs::File::open(cache).and_then(|file| file.take(LOADER_CACHE_SIZE_MAX).read_to_end(&mut bytes));
        if read.is_err() {
            return Vec::new();
        }
        let texts = bytes.split(|byte| *byte == 0).filter(|text| text.starts_with(b"/"));
        let paths = texts.map(|text| PathBuf::from(OsStr::from_bytes(text)));
        let is_named = |name: &OsStr| {
            let name = name.as_encoded_bytes();
            self.file_names.iter().any(|beginning| name.starts_with(beginning.as_bytes()))
        };
        paths.filter(|path| path.file_name().is_some_and(is_named) && path.is_file()).collect()
    }
}

/// Returns the first `python3` in `PATH`.
fn python(path: &OsString) -> Option<PathBuf> {
    env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("python3"))
        .find(|file| file.is_file())
}

/// Returns the paths of a folder's entries whose names start with `beginning`, sorted.
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
        let library = library(&folder);
        fs::write(folder.join("libonnxruntime_providers_shared.so"), "").unwrap();
        library
    }

    /// An empty library in a new folder.
    fn library(folder: &Path) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
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
            ..LibrarySearch::nowhere(&ONNX_RUNTIME)
        };
        let candidate = |path: &Path, source| LibraryCandidate { path: path.to_owned(), source };
        let want = [
            candidate(Path::new("/nowhere/lib.so"), "ORT_DYLIB_PATH"),
            candidate(&in_venv, "VIRTUAL_ENV"),
            candidate(&in_system, "python3 in PATH"),
        ];
        assert_eq!(around.candidates(), want);
        assert_eq!(
            LibrarySearch { path: Some(empty.into()), ..LibrarySearch::nowhere(&ONNX_RUNTIME) }.candidates(),
            []
        );

        // An active environment is the first of `PATH` too, and its interpreter a link.
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(system.join("bin/python3"), venv.join("bin/python3")).unwrap();
        let path = Some(venv.join("bin").into());
        let around = LibrarySearch {
            virtual_environment: Some(venv.clone().into()),
            path,
            ..LibrarySearch::nowhere(&ONNX_RUNTIME)
        };
        assert_eq!(around.candidates(), [candidate(&in_venv, "VIRTUAL_ENV")]);
        fs::remove_dir_all(venv.join("lib")).unwrap();
        assert_eq!(around.candidates(), [candidate(&in_system, "python3 in PATH")]);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn each_place_is_looked_at_the_nearest_first_and_a_file_found_twice_is_tried_once() {
        let root = env::temp_dir().join(format!("deuteron-places-{}", std::process::id()));
        let at = |place: &str| root.join(place);
        let cache = at("ld.so.cache");
        let cached = library(&at("usr lib"));
        let search = LibrarySearch {
            library: Some(at("named").into()),
            program: Some(at("venv/bin/deuteron")),
            loader_path: Some(env::join_paths([at("none"), at("loaded")]).unwrap()),
            user_base: Some(at("home")),
            loader_cache: Some(cache.clone()),
            ..LibrarySearch::nowhere(&ONNX_RUNTIME)
        };
        let mut want = vec![
            (library(&at("named/lib")), "ORT_DYLIB_PATH"),
            (library(&at("venv/bin")), "beside the program"),
            (library(&at("loaded")), "LD_LIBRARY_PATH"),
            (wheel(&at("venv"), "lib64/python3.12/site-packages"), "the environment of the program"),
            (wheel(&at("home"), "lib/python3.12/site-packages"), "pip install --user"),
            (cached.clone(), "the loader's cache"),
        ];
        let gone = at("gone/libonnxruntime.so.1");
        let texts = ["glibc-ld.so.cache1.1", "libonnxruntime.so.1", cached.to_str().unwrap(), gone.to_str().unwrap()];
        fs::write(&cache, texts.join("\0") + "\0/lib/libc.so.6\0").unwrap();
        let check = |want: &[(PathBuf, &'static str)]| {
            let found = search.candidates().into_iter().map(|candidate| (candidate.path, candidate.source));
            assert_eq!(found.collect::<Vec<_>>(), want);
        };
        check(&want);
        fs::remove_file(&want[1].0).unwrap();
        want[1].0 = at("venv/bin/../lib/libonnxruntime.so.1.31.1");
        library(&at("venv/lib"));
        check(&want);
        fs::remove_file(&want[2].0).unwrap();
        symlink(&cached, at("loaded/libonnxruntime.so.1")).unwrap();
        want[2].0 = at("loaded/libonnxruntime.so.1");
        want.pop();
        check(&want);
        let unset = search.places().into_iter().filter(|place| place.path.is_none());
        assert_eq!(
            unset.map(|place| place.source).collect::<Vec<_>>(),
            ["VIRTUAL_ENV", "CONDA_PREFIX", "python3 in PATH"]
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_named_path_is_the_library_or_a_directory_that_has_it() {
        let root = env::temp_dir().join(format!("deuteron-named-{}", std::process::id()));
        let file = library(&root.join("folder"));
        assert_eq!(ONNX_RUNTIME.in_named(&file), std::slice::from_ref(&file));
        assert_eq!(
            ONNX_RUNTIME.in_named(Path::new("libonnxruntime.so")),
            [Path::new("libonnxruntime.so")],
            "for the loader to find"
        );
        assert_eq!(ONNX_RUNTIME.in_named(&root.join("folder")), [file]);
        let in_venv = wheel(&root.join("venv"), "lib/python3.12/site-packages");
        assert_eq!(ONNX_RUNTIME.in_named(&root.join("venv")), [in_venv]);
        assert!(ONNX_RUNTIME.in_named(&root).is_empty());
        fs::remove_dir_all(&root).unwrap();
    }
}
