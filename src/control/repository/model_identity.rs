//! The identity of a model version by its contents (`model::ModelIdentity`), for caches that
//! servers share: a digest of its name, version and effective configuration, of the engine and of
//! every file that its directory has for it. Computed at the load, on its thread, and only if there
//! is such a cache, since every file is read once more.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

use crate::control::repository::model_source::ModelSource;
use crate::model::repository::{ListingEntry, ModelDirectory, version};
use crate::model::{ModelIdentity, ModelSpec};

/// The files of a model version, by their paths beneath the repository, as they were when they were read.
pub struct HashedFiles {
    digest: [u8; 32],
    stamps: Vec<(String, u64)>,
}

impl HashedFiles {
    /// Reads and hashes the files of a version: those of its directory and those beside the version directories.
    /// `more` are files elsewhere in the repository that it refers to, `outside` is one that is not in a repository.
    ///
    /// # Errors
    /// When one cannot be listed or read.
    pub fn new(
        source: &ModelSource,
        directory: &ModelDirectory,
        number: u64,
        more: impl Iterator<Item = String>,
        outside: Option<File>,
    ) -> io::Result<Self> {
        let mut stamps: BTreeMap<String, u64> = more.map(|path| (path, 0)).collect();
        // A single ONNX file has no directory of its own.
        if directory.given.is_none() || !directory.is_flat {
            for entry in source.repository.list_beneath(&directory.path)? {
                let other = version(&entry.name).filter(|other| !directory.is_flat && *other != number);
                if !entry.is_directory || other.is_none() {
                    add(&directory.path, &entry, &mut stamps);
                }
            }
        }
        let mut whole = Sha256::new();
        let mut hash = |path: &str, file: File| {
            // The place of the repository makes no difference.
            let path = path.strip_prefix(&directory.path).unwrap_or(path);
            whole.update((path.len() as u64).to_le_bytes());
            whole.update(path);
            whole.update(contents(file)?);
            Ok::<_, io::Error>(())
        };
        for (path, stamp) in &mut stamps {
            // Stamped before it is read, so that later writes show.
            *stamp = source.repository.stamp(path);
            hash(path, source.repository.open_file(path)?)?;
        }
        outside.into_iter().try_for_each(|file| hash("outside", file))?;
        Ok(Self { digest: whole.finalize().into(), stamps: stamps.into_iter().collect() })
    }

    /// Returns the identity of a version that was loaded from these files, by the engine of this
    /// name; `None` if one of them has changed since: then the loaded contents are unknown.
    pub fn identity(&self, source: &ModelSource, spec: &ModelSpec, number: u64, engine: &str) -> Option<ModelIdentity> {
        let is_same = |(path, stamp): &(String, u64)| source.repository.stamp(path) == *stamp;
        self.stamps.iter().all(is_same).then(|| identity(spec, number, engine, &self.digest))
    }
}

/// Returns the identity of a version without files, such as an ensemble.
pub fn without_files(spec: &ModelSpec, number: u64) -> ModelIdentity {
    identity(spec, number, "", &[0; 32])
}

fn identity(spec: &ModelSpec, number: u64, engine: &str, files: &[u8; 32]) -> ModelIdentity {
    let mut hasher = Sha256::new();
    // Another release may compute something else.
    for text in [env!("CARGO_PKG_VERSION"), &spec.name, &spec.config_json, engine] {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    hasher.update(number.to_le_bytes());
    hasher.update(files);
    ModelIdentity(hasher.finalize().into())
}

/// Adds a file, or the files in a directory. As for reloads, files that Python leaves behind belong
/// to no model.
fn add(folder: &str, entry: &ListingEntry, stamps: &mut BTreeMap<String, u64>) {
    if entry.name.starts_with('.') || entry.name == "__pycache__" {
        return;
    }
    let path = format!("{folder}/{}", entry.name);
    if entry.is_directory {
        entry.children.iter().for_each(|child| add(&path, child, stamps));
    } else {
        stamps.insert(path, 0);
    }
}

fn contents(mut file: File) -> io::Result<[u8; 32]> {
    let (mut hasher, mut space) = (Sha256::new(), vec![0; READ_SIZE]);
    loop {
        match file.read(&mut space)? {
            0 => return Ok(hasher.finalize().into()),
            count => hasher.update(space.get(..count).unwrap_or_default()),
        }
    }
}

/// The bytes of a file that are hashed at a time.
const READ_SIZE: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::backend::trial::spec;
    use crate::settings::Settings;

    /// A repository with a model of two versions; `change` is made to it.
    fn hashed(name: &str, number: u64, change: impl Fn(&Path)) -> Option<ModelIdentity> {
        let root = std::env::temp_dir().join(format!("deuteron-identity-{name}-{}", std::process::id()));
        for (path, text) in
            [("m/config.pbtxt", "a"), ("m/1/model.onnx", "b"), ("m/1/deep/w", "c"), ("m/2/model.onnx", "b")]
        {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        change(&root.join("m"));
        let source = ModelSource::open(&root, &Settings::default()).unwrap();
        let directory = source.find("m", &Settings::default()).unwrap().unwrap();
        let files = HashedFiles::new(&source, &directory, number, std::iter::empty(), None).unwrap();
        let identity = files.identity(&source, &spec(0, &[], &[]), number, "engine");
        fs::remove_dir_all(&root).unwrap();
        identity
    }

    #[test]
    fn the_same_files_elsewhere_are_the_same_and_every_other_file_is_another() {
        let write =
            |name: &'static str, text: &'static str| move |model: &Path| fs::write(model.join(name), text).unwrap();
        let plain = hashed("plain", 1, |_| {}).unwrap();
        assert_eq!(hashed("elsewhere", 1, |_| {}), Some(plain));
        assert_eq!(hashed("other-version", 1, write("2/model.onnx", "x")), Some(plain));
        assert_eq!(hashed("hidden", 1, write(".git", "x")), Some(plain));
        let cache = |model: &Path| {
            fs::create_dir(model.join("1/__pycache__")).unwrap();
            fs::write(model.join("1/__pycache__/x"), "x").unwrap();
        };
        assert_eq!(hashed("python", 1, cache), Some(plain));
        let others = [
            hashed("file", 1, write("1/model.onnx", "x")),
            hashed("deep", 1, write("1/deep/w", "x")),
            hashed("config", 1, write("config.pbtxt", "x")),
            hashed("more", 1, write("labels.txt", "")),
            hashed("moved", 1, |model| fs::rename(model.join("1/deep/w"), model.join("1/w")).unwrap()),
            hashed("version", 2, |_| {}),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(other.is_some() && *other != Some(plain), "{index}");
            assert!(others.iter().skip(index + 1).all(|one| one != other), "{index}");
        }
    }

    #[test]
    fn a_version_whose_files_change_while_it_loads_has_no_identity() {
        let root = std::env::temp_dir().join(format!("deuteron-identity-changed-{}", std::process::id()));
        fs::create_dir_all(root.join("m/1")).unwrap();
        fs::write(root.join("m/1/model.onnx"), "b").unwrap();
        let source = ModelSource::open(&root, &Settings::default()).unwrap();
        let directory = source.find("m", &Settings::default()).unwrap().unwrap();
        let files = HashedFiles::new(&source, &directory, 1, std::iter::empty(), None).unwrap();
        let of = |engine: &str| files.identity(&source, &spec(0, &[], &[]), 1, engine);
        assert!(of("a").is_some() && of("a") != of("b"), "the engine counts");
        fs::write(root.join("m/1/model.onnx"), "bb").unwrap();
        assert_eq!(of("a"), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
