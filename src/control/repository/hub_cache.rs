//! The cache of the Hugging Face hub: `models--ORGANISATION--NAME/{blobs,refs,snapshots/COMMIT}`, in which the files of a
//! snapshot are links into `blobs`. A snapshot is served as its folder; paths stay beneath `models--…`, so that the links
//! do.

use std::path::{Path, PathBuf};

use crate::control::repository::beneath::RepositoryRoot;
use crate::error::Error;
use crate::model::repository::{Listing, ListingEntry, ModelDirectory};

/// The beginning of a model's directory in the cache.
const PREFIX: &str = "models--";
/// The directory of snapshots in it.
const SNAPSHOTS: &str = "snapshots";
/// The file with the commit of the main branch.
const MAIN: &str = "refs/main";
/// Bytes of that file: a commit has 40.
const COMMIT_SIZE_MAX: usize = 256;

/// The directory of a model in the cache, found from a path on the command line.
pub struct HubCachedModel {
    /// The directory `models--…`.
    pub root: PathBuf,
    /// The path of a snapshot in it; `None` for that of the main branch.
    pub snapshot: Option<String>,
    /// The name of the model.
    pub name: String,
}

/// Returns the model of a path that is the directory of a model in the cache, or one of its snapshots; `None` for any other.
pub fn find(path: &Path, listing: &Listing) -> Option<HubCachedModel> {
    let absolute = std::path::absolute(path).ok()?;
    let named = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    if let Some(name) = named(&absolute).as_deref().and_then(model_name)
        && listing.entries.iter().any(is_snapshots)
    {
        return Some(HubCachedModel { root: path.to_path_buf(), snapshot: None, name: name.to_owned() });
    }
    let above = absolute.parent().filter(|above| named(above).as_deref() == Some(SNAPSHOTS))?;
    let root = above.parent()?;
    let name = model_name(&named(root)?)?.to_owned();
    let snapshot = format!("{SNAPSHOTS}/{}", named(&absolute)?);
    Some(HubCachedModel { root: root.to_path_buf(), snapshot: Some(snapshot), name })
}

/// Returns the name of the model in a directory of the cache: the last part, `NAME` of `models--ORGANISATION--NAME`; `None` for a
/// directory of another kind.
pub fn model_name(directory: &str) -> Option<&str> {
    let name = directory.strip_prefix(PREFIX)?;
    name.rsplit("--").next().filter(|name| !name.is_empty())
}

/// Returns true if an entry of a repository is the directory of a model in the cache.
pub fn is_model(entry: &ListingEntry) -> bool {
    entry.is_directory && model_name(&entry.name).is_some() && entry.children.iter().any(is_snapshots)
}

/// Returns true if an entry of a repository belongs to the cache and is no model: data sets and applications.
pub fn is_other(name: &str) -> bool {
    name.starts_with("datasets--") || name.starts_with("spaces--")
}

/// Reads a snapshot as a model; without one that of the main branch, or the only one. `directory` is the path of the directory
/// `models--…`.
///
/// # Errors
/// `InvalidArgument` if there is no such snapshot, or it is not the folder of a model.
pub fn read(
    repository: &RepositoryRoot,
    directory: &str,
    snapshot: Option<&str>,
    name: &str,
) -> Result<ModelDirectory, Error> {
    let path = match snapshot {
        Some(snapshot) => format!("{directory}/{snapshot}"),
        None => main_snapshot(repository, directory)?,
    };
    let listed = ListingEntry { name: name.to_owned(), ..repository.list_model(&path) };
    let model = ModelDirectory::from_entry(&listed)?;
    if !model.is_hub {
        return Err(Error::invalid(format!(
            "model '{name}': '{path}' is not the folder of a model: it has no config.json with files of a tokenizer or of \
             weights beside it"
        )));
    }
    Ok(ModelDirectory { path, ..model })
}

fn main_snapshot(repository: &RepositoryRoot, directory: &str) -> Result<String, Error> {
    let snapshots = format!("{directory}/{SNAPSHOTS}");
    let commit = repository.read(&format!("{directory}/{MAIN}"), COMMIT_SIZE_MAX).ok();
    if let Some(commit) = commit.and_then(|commit| String::from_utf8(commit).ok()) {
        let path = format!("{snapshots}/{}", commit.trim());
        if !commit.contains('/') && repository.is_directory(&path) {
            return Ok(path);
        }
    }
    let entries = repository.list_beneath(&snapshots);
    let entries = entries.map_err(|error| Error::invalid(format!("cannot list '{snapshots}': {error}")))?;
    let mut names = entries.iter().filter(|entry| entry.is_directory).map(|entry| &entry.name);
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(format!("{snapshots}/{only}")),
        (None, _) => Err(Error::invalid(format!("'{snapshots}' is empty: the download has not ended"))),
        (Some(_), Some(_)) => Err(Error::invalid(format!(
            "'{directory}' has several snapshots, and {MAIN} names none of them: serve one by its path"
        ))),
    }
}

fn is_snapshots(entry: &ListingEntry) -> bool {
    entry.is_directory && entry.name == SNAPSHOTS
}
