//! A path on the command line: a model repository, one model's directory (as KServe mounts it), or
//! an ONNX file. A single model is served like a repository with one model; it needs no
//! configuration, and its name comes from `--model-name`, its configuration, its directory or its
//! file. A directory with nothing but one ONNX file, whatever its name, counts as that file. The
//! contents of a store are read in its mirror ([`StoreMirror`]).

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::repository::beneath::{LinkPolicy, RepositoryRoot};
use crate::control::repository::stores::mirror::{StoreLease, StoreMirror};
use crate::control::repository::stores::{self, StoreNames};
use crate::control::repository::{hub_cache, hub_folder};
use crate::error::Error;
use crate::hub::is_hub_config;
use crate::limits::CONFIG_SIZE_MAX;
use crate::log;
use crate::metrics::StoreCells;
use crate::model::config::{ConfigDraft, ConfigSurroundings, configured_name};
use crate::model::parse::text::Notation;
use crate::model::platform::{
    ONNX_FILENAME, PYTORCH_BACKEND, STEPS_FILENAME, TENSORFLOW_BACKEND, backend_of_file, pickle_advice,
};
use crate::model::repository::{FoundModels, Listing, ListingEntry, ModelDirectory, is_hidden};
use crate::settings::{Compat, Settings, StoreUrl};
use crate::steps;

/// Models of a repository that an error names.
const NAMES_SHOWN: usize = 5;

/// Ignored entries of a repository that the log names.
const IGNORED_SHOWN: usize = 32;

/// An opened path with one model or many.
pub struct ModelSource {
    /// The directory beneath which files are read.
    pub repository: RepositoryRoot,
    /// Its path, for messages and for engines that load by path.
    pub root: PathBuf,
    kind: SourceKind,
    /// The store that the path mirrors.
    store: Option<StoreMirror>,
    /// A hash of the ignored entries that the log named.
    ignored: AtomicU64,
}

enum SourceKind {
    /// One model's directory, as named on the command line.
    Directory(PathBuf),
    /// An ONNX file, as named on the command line, and its path beneath the root; or the only one in a directory, twice.
    File(PathBuf, PathBuf),
    /// A directory of models.
    Repository,
    /// A model in the cache of the Hugging Face hub, as named on the command line: its snapshot, `None` for that of the main
    /// branch, and its name.
    Cached { given: PathBuf, snapshot: Option<String>, name: String },
}

impl ModelSource {
    /// Opens a path and determines which of the three it is.
    ///
    /// # Errors
    /// `InvalidArgument` when the path cannot be opened or listed, or is a repository although `--model-name` is given.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, Error> {
        match StoreUrl::read(path) {
            None => Self::open_path(path, settings, links_of(settings)),
            Some(url) => Self::open_store(url.map_err(Error::invalid)?, settings),
        }
    }

    /// Opens a store's mirror. If the store has one model, that is mirrored now; otherwise models
    /// are mirrored by the scans and the loads that look for them. A store that cannot be reached
    /// counts as its mirror.
    fn open_store(url: StoreUrl, settings: &Settings) -> Result<Self, Error> {
        let store = stores::open(url, settings)?;
        let tree = store.tree();
        let is_one = match store.names() {
            Ok(names) => has_one_model(&names),
            Err(error) if store.has_copy() => {
                log::warning(&format!("{error}; serving what was fetched earlier"));
                true
            }
            Err(error) => return Err(error),
        };
        if is_one {
            warn_of_copies(store.mirror_all());
            return Ok(Self { store: Some(store), ..Self::open_path(&tree, settings, LinkPolicy::Confined)? });
        }
        let opened = Self::of_directory(tree).map_err(|error| Error::internal(error.to_string()))?;
        Ok(Self { store: Some(store), ..opened })
    }

    fn open_path(path: &Path, settings: &Settings, links: LinkPolicy) -> Result<Self, Error> {
        if path.is_file() {
            return Self::open_one(path, links);
        }
        let repository =
            RepositoryRoot::open(path, links).map_err(|error| io_error("open the model repository", path, &error))?;
        let listing = repository.list().map_err(|error| io_error("list", path, &error))?;
        if listing.is_saved_model() {
            // A model's directory lies in the one around it, as a file does.
            return Self::open_one(path, links);
        }
        if let Some(cached) = hub_cache::find(path, &listing) {
            let repository = RepositoryRoot::open(&cached.root, links);
            let repository = repository.map_err(|error| io_error("open the model", &cached.root, &error))?;
            let name = settings.model_name.clone().unwrap_or(cached.name);
            let kind = SourceKind::Cached { given: path.to_path_buf(), snapshot: cached.snapshot, name };
            return Ok(Self::new(repository, cached.root, kind));
        }
        if let Some(only) = lone_model(path, &listing, settings, links) {
            return Self::open_path(&only, settings, links);
        }
        let kind = match (listing.is_model(), listing.lone_onnx_file()) {
            (true, _) => SourceKind::Directory(path.to_path_buf()),
            (false, Some(file)) => SourceKind::File(path.join(file), path.join(file)),
            (false, None) if settings.model_name.is_some() => return Err(misplaced_name(path, &listing)),
            (false, None) => SourceKind::Repository,
        };
        Ok(Self::new(repository, path.to_path_buf(), kind))
    }

    /// Opens a model that is one file or directory, in the directory around it. A link keeps the name that the user gave it:
    /// its target may have another, as in caches. Refused links are resolved here, for the user named the path.
    fn open_one(path: &Path, links: LinkPolicy) -> Result<Self, Error> {
        let failed = |error: io::Error| io_error("open the model", path, &error);
        let absolute = std::path::absolute(path).map_err(failed)?;
        let named = absolute.file_name().filter(|_| links == LinkPolicy::Followed);
        let model = match (absolute.parent(), named) {
            (Some(above), Some(name)) => above.canonicalize().map_err(failed)?.join(name),
            _ => path.canonicalize().map_err(failed)?,
        };
        let root = model.parent().unwrap_or(Path::new("/")).to_path_buf();
        let repository = RepositoryRoot::open(&root, links).map_err(failed)?;
        let given = if path.is_file() { path.to_path_buf() } else { model.clone() };
        Ok(Self::new(repository, root, SourceKind::File(given, model)))
    }

    const fn new(repository: RepositoryRoot, root: PathBuf, kind: SourceKind) -> Self {
        Self { repository, root, kind, store: None, ignored: AtomicU64::new(0) }
    }

    /// Opens its directory once more, to keep it open.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be opened.
    pub fn keep_open(&self) -> Result<RepositoryRoot, Error> {
        let opened = RepositoryRoot::open(&self.root, self.repository.links());
        opened.map_err(|error| Error::unavailable(format!("the repository cannot be kept open: {error}")))
    }

    /// Opens a directory as a repository without looking at its contents. No link leads out of it.
    ///
    /// # Errors
    /// The error of `open` when the path is not a readable directory.
    pub fn of_directory(root: PathBuf) -> io::Result<Self> {
        Self::of_directory_with(root, LinkPolicy::Confined)
    }

    /// The same with a treatment of links.
    ///
    /// # Errors
    /// As [`Self::of_directory`].
    pub fn of_directory_with(root: PathBuf, links: LinkPolicy) -> io::Result<Self> {
        Ok(Self::new(RepositoryRoot::open(&root, links)?, root, SourceKind::Repository))
    }

    /// Returns the path that it was opened with, and true if that is a directory of models.
    pub fn path(&self) -> (&Path, bool) {
        match &self.kind {
            SourceKind::Directory(path) | SourceKind::File(path, _) | SourceKind::Cached { given: path, .. } => {
                (path, false)
            }
            SourceKind::Repository => (&self.root, true),
        }
    }

    /// Returns the figures of the store that it mirrors.
    pub fn store_cells(&self) -> Option<&Arc<StoreCells>> {
        self.store.as_ref().map(StoreMirror::cells)
    }

    /// Returns true if it mirrors a store, whose contents others may write.
    pub const fn is_store(&self) -> bool {
        self.store.is_some()
    }

    /// Keeps the files of a model unchanged while they are loaded; only those of a mirror could
    /// change.
    ///
    /// # Errors
    /// When the cache of the mirror cannot be written.
    pub fn lease(&self, model: &ModelDirectory) -> Result<Option<StoreLease>, Error> {
        let name = if model.path == "." { "" } else { &model.path };
        self.store.as_ref().map(|store| store.lease(name)).transpose()
    }

    /// Lists the models, those of a store after mirroring it. A model that could not be mirrored
    /// stays as it was; one that never was mirrored is refused with the reason.
    ///
    /// # Errors
    /// When the path cannot be listed, or a single model's name or configuration is invalid; when the store cannot be
    /// listed and there is no mirror of it.
    pub fn scan(&self, settings: &Settings) -> Result<FoundModels, Error> {
        let refused = match self.store.as_ref().map(StoreMirror::mirror_all) {
            None => Vec::new(),
            Some(Err(error)) if !self.store.as_ref().is_some_and(StoreMirror::has_copy) => return Err(error),
            Some(outcome) => warn_of_copies(outcome),
        };
        let mut found = self.scan_path(settings)?;
        self.log_ignored(&found.ignored);
        for (name, error) in refused {
            let is_there = found.models.iter().any(|model| model.name == name);
            if !is_there && !name.is_empty() && found.refused.iter().all(|(other, _)| *other != name) {
                found.refused.push((name, error));
            }
        }
        Ok(found)
    }

    /// Logs the ignored entries, once until there are others.
    fn log_ignored(&self, ignored: &[String]) {
        let mut hasher = DefaultHasher::new();
        ignored.hash(&mut hasher);
        let hash = hasher.finish();
        if ignored.is_empty() || self.ignored.swap(hash, Ordering::Relaxed) == hash {
            return;
        }
        let root = self.root.display();
        for name in ignored.iter().take(IGNORED_SHOWN) {
            let why = match name {
                name if is_hidden(name) => "hidden names are not models",
                name if hub_cache::is_other(name) => "not a model of the hub's cache",
                _ => "not a directory",
            };
            log::info(&format!("'{}' in '{root}' is ignored: {why}", name.escape_debug()));
        }
        if let Some(more) = ignored.len().checked_sub(IGNORED_SHOWN).filter(|more| *more > 0) {
            log::info(&format!("{more} more entries of '{root}' are ignored"));
        }
    }

    fn scan_path(&self, settings: &Settings) -> Result<FoundModels, Error> {
        let list = |path: &Path| self.repository.list().map_err(|error| io_error("list", path, &error));
        let one = |model| FoundModels { models: vec![model], ..FoundModels::default() };
        let mut found = match &self.kind {
            SourceKind::Repository => self.find_models(list(&self.root)?),
            SourceKind::Cached { snapshot, name, .. } => {
                one(hub_cache::read(&self.repository, ".", snapshot.as_deref(), name)?)
            }
            SourceKind::File(given, file) => one(file_model(given, file, &self.repository, settings)?),
            SourceKind::Directory(path) => one(directory_model(path, list(path)?, &self.repository, settings)?),
        };
        let namespace = self.namespace(settings);
        found.models.iter_mut().for_each(|model| model.namespace.clone_from(&namespace));
        Ok(found)
    }

    /// The models of a repository, with those of a cache of the Hugging Face hub.
    fn find_models(&self, listing: Listing) -> FoundModels {
        let is_cached = |entry: &ListingEntry| hub_cache::is_model(entry) || hub_cache::is_other(&entry.name);
        let (cached, entries) = listing.entries.into_iter().partition(is_cached);
        let mut found = Listing { entries }.find_models();
        let mut cached: Vec<ListingEntry> = cached;
        cached.sort_by(|one, other| one.name.cmp(&other.name));
        for entry in &cached {
            let Some(name) = hub_cache::model_name(&entry.name) else {
                found.ignored.push(entry.name.clone());
                continue;
            };
            if found.models.iter().any(|model| model.name == name) {
                let why = format!("another directory has a model '{name}' too: serve one of them by its path");
                found.refused.push((entry.name.clone(), Error::invalid(why)));
                continue;
            }
            match hub_cache::read(&self.repository, &entry.name, None, name) {
                Ok(model) => found.models.push(model),
                Err(error) => found.refused.push((name.to_owned(), error)),
            }
        }
        found.models.sort_by(|one, other| one.name.cmp(&other.name));
        found.refused.sort_by(|one, other| one.0.cmp(&other.0));
        found
    }

    /// The directory of the cache of the Hugging Face hub that has the model of this name.
    fn cached_directory(&self, name: &str) -> Option<String> {
        let directories = self.repository.names().ok()?.into_iter().filter(|entry| entry.is_directory);
        let mut directories: Vec<_> = directories.map(|entry| entry.name).collect();
        directories.sort_unstable();
        directories.into_iter().find(|directory| hub_cache::model_name(directory) == Some(name))
    }

    /// Finds one model by name.
    ///
    /// # Errors
    /// When its directory cannot be listed or is not a model.
    pub fn find(&self, name: &str, settings: &Settings) -> Result<Option<ModelDirectory>, Error> {
        if let SourceKind::Repository = self.kind {
            if let Some(store) = self.store.as_ref().filter(|_| mirrors_on_demand(settings)) {
                match store.mirror_model(name) {
                    Err(error) if self.repository.contains(name) => {
                        log::warning(&format!("{error}; '{name}' is loaded as it was fetched earlier"));
                    }
                    outcome => outcome?,
                }
            }
            if !self.repository.contains(name) {
                let Some(cached) = self.cached_directory(name) else {
                    let fault = self.repository.link_fault(name);
                    return fault.map_or(Ok(None), |fault| Err(Error::invalid(format!("model '{name}': {fault}"))));
                };
                let directory = hub_cache::read(&self.repository, &cached, None, name)?;
                return Ok(Some(ModelDirectory { namespace: self.namespace(settings), ..directory }));
            }
            let directory = ModelDirectory::from_entry(&self.repository.list_model(name))?;
            return Ok(Some(ModelDirectory { namespace: self.namespace(settings), ..directory }));
        }
        let found = if mirrors_on_demand(settings) { self.scan(settings) } else { self.scan_path(settings) };
        Ok(found?.models.into_iter().find(|model| model.name == name))
    }

    /// Returns the model in a directory of another name, `.` for the repository itself.
    ///
    /// # Errors
    /// When the directory cannot be listed or is not a model.
    pub fn renamed(&self, path: &str, name: &str) -> Result<ModelDirectory, Error> {
        let directory = if path == "." {
            let listing = self.repository.list().map_err(|error| io_error("list", &self.root, &error))?;
            ModelDirectory::of_listing(name.to_owned(), listing)?
        } else {
            ModelDirectory::from_entry(&self.repository.list_model(path))?
        };
        Ok(ModelDirectory { name: name.to_owned(), is_renamed: true, ..directory })
    }

    /// Returns true if it has a model of this name.
    pub fn has(&self, name: &str, settings: &Settings) -> bool {
        match self.kind {
            SourceKind::Repository if self.repository.contains(name) => true,
            SourceKind::Repository => {
                self.store_names(settings).is_some_and(|names| names.is_ok_and(|all| all.contains(&name.to_owned())))
                    || self.cached_directory(name).is_some()
            }
            SourceKind::Cached { .. } | SourceKind::Directory(_) | SourceKind::File(..) => {
                self.find(name, settings).is_ok_and(|found| found.is_some())
            }
        }
    }

    /// Returns the namespace of its models: its path as in the flag; empty without
    /// `--model-namespacing`.
    pub fn namespace(&self, settings: &Settings) -> String {
        let path = match &self.store {
            Some(store) => store.name().into(),
            None => self.path().0.to_string_lossy(),
        };
        match path.trim_end_matches('/') {
            _ if !settings.repository_rules.has_namespaces => String::new(),
            "" => path.into_owned(),
            path => path.to_owned(),
        }
    }

    /// Returns the names of all models, without reading their directories.
    ///
    /// # Errors
    /// When the path cannot be listed.
    pub fn names(&self, settings: &Settings) -> Result<Vec<String>, Error> {
        match self.store_names(settings) {
            Some(Err(error)) => log::warning(&format!("{error}; the index shows what was fetched earlier")),
            Some(names) => return names,
            None => {}
        }
        if let SourceKind::Repository = self.kind {
            let names = self.repository.names().map_err(|error| io_error("list", &self.root, &error))?;
            let is_model = |entry: &ListingEntry| entry.is_directory || entry.fault.is_some();
            let models = names.into_iter().filter(|entry| is_model(entry) && !is_hidden(&entry.name));
            let models = models.map(|entry| entry.name).filter(|name| !hub_cache::is_other(name));
            return Ok(models.map(|name| hub_cache::model_name(&name).map_or(name.clone(), str::to_owned)).collect());
        }
        Ok(self.scan_path(settings)?.models.into_iter().map(|model| model.name).collect())
    }

    /// Returns the names of all models in the store, if models are mirrored on demand.
    fn store_names(&self, settings: &Settings) -> Option<Result<Vec<String>, Error>> {
        let is_repository = matches!(self.kind, SourceKind::Repository);
        let store = self.store.as_ref().filter(|_| is_repository && mirrors_on_demand(settings))?;
        let models = |names: StoreNames| names.directories.into_iter().filter(|name| !is_hidden(name)).collect();
        Some(store.names().map(models))
    }

    /// Returns true if a `model.onnx` lies beside the `steps.json` of the newest version and a step of the list stands for it.
    /// A list that cannot be read has none: its load says why.
    fn has_onnx_between_steps(&self, model: &ModelDirectory) -> bool {
        let has_network = model.files.iter().any(|file| file == ONNX_FILENAME);
        let Some(newest) = model.versions.first().filter(|_| has_network) else { return false };
        let list = self.read(&format!("{}/{STEPS_FILENAME}", model.version_path(*newest)), CONFIG_SIZE_MAX);
        list.is_ok_and(|list| String::from_utf8(list).is_ok_and(|list| steps::list::names_model(&list)))
    }

    /// Reads a model's configuration file, or the configuration that a client sent.
    ///
    /// # Errors
    /// When the file cannot be read or is invalid, or when it is missing and auto-completion is
    /// off.
    pub fn draft(&self, model: &ModelDirectory, settings: &Settings) -> Result<ConfigDraft, Error> {
        let files = settings.auto_complete.then_some(model.files.as_slice());
        let has_backend_file = has_backend_file(settings);
        // A library may lie beside the model or in its version's directory.
        let has_library = |file: &str| model.beside.iter().chain(&model.files).any(|have| have == file);
        let has_backend_file =
            |backend: &str, file: &str| has_backend_file(backend, file) || (file.ends_with(".so") && has_library(file));
        let has_steps = settings.uses_steps && model.files.iter().any(|file| file == STEPS_FILENAME);
        let surroundings = ConfigSurroundings {
            files,
            has_backend_file: &has_backend_file,
            forced_libraries: settings.backend_config.forced.as_slice(),
            is_renamed: model.is_renamed,
            has_steps,
            has_onnx_between_steps: has_steps && self.has_onnx_between_steps(model),
            allows_agents: settings.allows_agents,
        };
        if let Some((notation, text)) = &model.given {
            return ConfigDraft::read(&model.name, *notation, text.as_bytes(), surroundings);
        }
        let named = settings.model_config_name.as_ref().and_then(|name| model.named_config(name));
        if let Some(file) = named {
            let text = self.read(&model.file(&file), CONFIG_SIZE_MAX)?;
            let draft = ConfigDraft::read(&model.name, Notation::Text, &text, surroundings);
            return draft.map_err(|error| error.with_prefix(&format!("in {file}: ")));
        }
        // Triton serves the ONNX file in a version's directory alone.
        let is_hub = model.is_hub && (model.is_flat || settings.compat != Compat::Triton);
        if let Some(text) = self.own_config(model).filter(|_| is_hub) {
            return ConfigDraft::read(&model.name, Notation::Json, &text, surroundings);
        }
        let of_hub = ConfigSurroundings { has_steps: settings.uses_steps, ..surroundings };
        if let Some(version) = model.versions.last().filter(|_| is_hub) {
            return hub_folder::draft(&self.repository, &model.name, &model.version_path(*version), of_hub);
        }
        let foreign = foreign_config(model, &self.repository, &model.file(Notation::Json.filename()));
        let Some(notation) = model.notation_without(foreign)? else {
            if model.is_flat && foreign.is_some() {
                return hub_folder::draft(&self.repository, &model.name, &model.path, of_hub);
            }
            if settings.auto_complete {
                return ConfigDraft::read(&model.name, Notation::Text, b"", surroundings);
            }
            // Triton's text has the path on the machine, which is of no use to a client.
            let path = model.file(Notation::Text.filename());
            return Err(Error::invalid(format!("failed to open text file for read {path}: No such file or directory")));
        };
        let text = self.read(&model.file(notation.filename()), CONFIG_SIZE_MAX)?;
        ConfigDraft::read(&model.name, notation, &text, surroundings)
    }

    /// The text of a model's configuration, or `None` without one: the one that [`Self::draft`] reads.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn config_text(
        &self,
        model: &ModelDirectory,
        settings: &Settings,
    ) -> Result<Option<(Notation, Vec<u8>)>, Error> {
        if let Some((notation, text)) = &model.given {
            return Ok(Some((*notation, text.clone().into_bytes())));
        }
        let named = settings.model_config_name.as_ref().and_then(|name| model.named_config(name));
        let (notation, file) = match (named, model.notation_without(None)) {
            (Some(file), _) => (Notation::Text, file),
            (None, Ok(Some(notation))) if !model.is_hub => (notation, notation.filename().to_owned()),
            _ => return Ok(None),
        };
        self.read(&model.file(&file), CONFIG_SIZE_MAX).map(|text| Some((notation, text)))
    }

    /// The `config.json` beside the files of a folder of the hub, if it is a configuration of this server after all.
    fn own_config(&self, model: &ModelDirectory) -> Option<Vec<u8>> {
        let path = model.file(Notation::Json.filename());
        let text = self.repository.read(&path, CONFIG_SIZE_MAX).ok().filter(|_| model.is_flat)?;
        hub_folder::is_own_config(&text).then_some(text)
    }

    /// Reads a file of at most `size_max` bytes, by its path beneath the root.
    ///
    /// # Errors
    /// `InvalidArgument` when it cannot be read or is larger.
    pub fn read(&self, path: &str, size_max: usize) -> Result<Vec<u8>, Error> {
        let bytes = self.repository.read(path, size_max);
        bytes.map_err(|error| Error::invalid(format!("cannot read '{path}': {error}")))
    }
}

/// Returns a function that is true for files in the directory of backends.
pub fn has_backend_file(settings: &Settings) -> impl Fn(&str, &str) -> bool + '_ {
    |backend, file| settings.backend_directory.join(backend).join(file).is_file()
}

/// Returns the only model of a repository, if `--model-name` names it.
fn lone_model(path: &Path, listing: &Listing, settings: &Settings, links: LinkPolicy) -> Option<PathBuf> {
    settings.model_name.as_ref()?;
    if listing.is_model() || listing.lone_onnx_file().is_some() {
        return None;
    }
    let mut found = listing.find_models().models;
    let only = path.join(found.pop().filter(|_| found.is_empty())?.name);
    // A path is opened with its links resolved, which may not be followed.
    let is_beneath = || Some(only.canonicalize().ok()?.starts_with(path.canonicalize().ok()?));
    (links == LinkPolicy::Followed || is_beneath() == Some(true)).then_some(only)
}

/// The treatment of links in a repository that the operator names.
const fn links_of(settings: &Settings) -> LinkPolicy {
    match settings.repository_rules.refuses_links {
        true => LinkPolicy::Refused,
        false => LinkPolicy::Followed,
    }
}

/// Returns the error for `--model-name` with a repository: the remedy depends on its models.
fn misplaced_name(path: &Path, listing: &Listing) -> Error {
    let found = listing.find_models().models;
    let names: Vec<_> = found.iter().take(NAMES_SHOWN).map(|model| format!("'{}'", model.name)).collect();
    let more = if found.len() > names.len() { ", …" } else { "" };
    let holds = match found.first() {
        None => "no model: expected an ONNX file, or directories such as 1/model.onnx or NAME/1/model.onnx".to_owned(),
        Some(first) => format!(
            "the models {}{more}: leave the flag out, or serve one of them, as in '{}'",
            names.join(", "),
            path.join(&first.name).display()
        ),
    };
    Error::invalid(format!(
        "--model-name is for a path that holds one model, and '{}' is a repository of {holds}",
        path.display()
    ))
}

fn io_error(verb: &str, path: &Path, error: &io::Error) -> Error {
    Error::invalid(format!("cannot {verb} '{}': {error}", path.display()))
}

/// Returns true if models of stores are fetched on demand, and not all of them.
fn mirrors_on_demand(settings: &Settings) -> bool {
    settings.loads_when_asked()
}

/// Returns true if these may be the names in the directory of a single model, or of its version.
fn has_one_model(names: &StoreNames) -> bool {
    let is_version = |name: &String| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    names.directories.iter().any(is_version) || (names.directories.is_empty() && !names.files.is_empty())
}

/// Logs the models of a store that could not be mirrored, since earlier copies are served.
fn warn_of_copies(outcome: Result<Vec<(String, Error)>, Error>) -> Vec<(String, Error)> {
    match outcome {
        Ok(refused) => {
            refused.iter().for_each(|(_, error)| log::error(error.text()));
            refused
        }
        Err(error) => {
            log::error(&format!("{error}; serving what was fetched earlier"));
            Vec::new()
        }
    }
}

fn file_model(
    given: &Path,
    file: &Path,
    repository: &RepositoryRoot,
    settings: &Settings,
) -> Result<ModelDirectory, Error> {
    let text = |part: Option<&std::ffi::OsStr>| part.and_then(|part| part.to_str()).map(str::to_owned);
    let (stem, filename) = (text(given.file_stem()), text(file.file_name()));
    let (Some(stem), Some(filename)) = (stem, filename) else {
        return Err(Error::invalid(format!("the name of '{}' is not UTF-8", given.display())));
    };
    let is_saved_model = repository.is_directory(&filename);
    let named = |path: &Path| backend_of_file(path.file_name().and_then(|name| name.to_str()).unwrap_or_default());
    let Some(backend) = (if is_saved_model { Some(TENSORFLOW_BACKEND) } else { named(file).or_else(|| named(given)) })
    else {
        if let Some(advice) = pickle_advice(&filename) {
            return Err(Error::invalid(advice));
        }
        return Err(Error::invalid(format!(
            "the name of '{}' does not end in .onnx, .xml (OpenVINO), .tflite, .pt or as tree models do (.json, .ubj, .bst, \
             .model, .txt, .tl): give such a file or a directory",
            given.display()
        )));
    };
    // TorchScript keeps neither datatypes nor shapes.
    let config =
        repository.read(Notation::Text.filename(), CONFIG_SIZE_MAX).ok().filter(|_| backend == PYTORCH_BACKEND);
    let config = config.and_then(|config| String::from_utf8(config).ok());
    let named = config.as_ref().and_then(|config| configured_name(Notation::Text, config.as_bytes()).ok().flatten());
    let name = settings.model_name.clone().or(named).unwrap_or(stem);
    ModelDirectory::of_file(name, backend, &filename, repository.stamp(&filename), config.as_deref())
}

/// The notation of the file that only has the name of a configuration: a `config.json` of Hugging Face's libraries, which lies
/// beside the models that they export. One that cannot be read is a configuration, so that this is reported.
fn foreign_config(model: &ModelDirectory, repository: &RepositoryRoot, path: &str) -> Option<Notation> {
    let is_foreign = model.configs.contains(&Notation::Json)
        && repository.read(path, CONFIG_SIZE_MAX).is_ok_and(|file| is_hub_config(&file));
    is_foreign.then_some(Notation::Json)
}

fn directory_model(
    path: &Path,
    listing: Listing,
    repository: &RepositoryRoot,
    settings: &Settings,
) -> Result<ModelDirectory, Error> {
    // A link has the name that the user gave it.
    let absolute = std::path::absolute(path).ok().filter(|path| path.file_name().is_some());
    let absolute = absolute.or_else(|| path.canonicalize().ok()).unwrap_or_else(|| path.to_path_buf());
    let directory = absolute.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let mut model = ModelDirectory::of_listing(directory, listing)?;
    let foreign = foreign_config(&model, repository, Notation::Json.filename());
    let configured = match model.notation_without(foreign)? {
        None => None,
        Some(notation) => {
            let text = repository.read(notation.filename(), CONFIG_SIZE_MAX).map_err(|error| {
                Error::invalid(format!("cannot read '{}': {error}", path.join(notation.filename()).display()))
            })?;
            configured_name(notation, &text)?.map(|name| (notation, name))
        }
    };
    match (&settings.model_name, configured) {
        (Some(name), Some((notation, configured))) if *name != configured => {
            let filename = notation.filename();
            log::info(&format!("the model that {filename} calls '{configured}' is served as '{name}' (--model-name)"));
            model.name.clone_from(name);
            model.is_renamed = true;
        }
        (Some(name), _) => model.name.clone_from(name),
        (None, Some((_, configured))) => model.name = configured,
        (None, None) => {}
    }
    Ok(model)
}
