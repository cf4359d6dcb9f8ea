//! A path on the command line: a model repository, one model's directory (as KServe mounts it), or an ONNX file. A
//! single model is served like a repository with one model; it needs no configuration, and its name comes from
//! `--model-name`, its configuration, its directory or its file. A directory with nothing but one ONNX file, whatever its
//! name, is that file.

use std::io;
use std::path::{Path, PathBuf};

use crate::control::beneath::RepositoryRoot;
use crate::error::Error;
use crate::limits::CONFIG_SIZE_MAX;
use crate::log;
use crate::model::config::{ConfigDraft, ConfigSurroundings, configured_name};
use crate::model::parse::text::Notation;
use crate::model::platform::is_tree_filename;
use crate::model::repository::{FoundModels, Listing, ModelDirectory, is_hidden};
use crate::settings::Settings;

/// Models of a repository that an error names.
const NAMES_SHOWN: usize = 5;

/// An opened path with one model or many.
pub struct ModelSource {
    /// Files are read beneath it.
    pub repository: RepositoryRoot,
    /// Its path, for messages and for engines that load by path.
    pub root: PathBuf,
    kind: SourceKind,
}

enum SourceKind {
    /// One model's directory, as named on the command line.
    Directory(PathBuf),
    /// An ONNX file, as named on the command line, and its path with links resolved; or the only one in a directory, twice.
    File(PathBuf, PathBuf),
    /// A directory of models.
    Repository,
}

impl ModelSource {
    /// Opens a path and finds out which of the three it is.
    ///
    /// # Errors
    /// `InvalidArgument` when the path cannot be opened or listed, or is a repository although `--model-name` is given.
    pub fn open(path: &Path, settings: &Settings) -> Result<Self, Error> {
        if path.is_file() {
            // A link may lead anywhere here: the user named the path.
            let file = path.canonicalize().map_err(|error| io_error("open the model", path, &error))?;
            let root = file.parent().unwrap_or(Path::new("/")).to_path_buf();
            let repository = RepositoryRoot::open(&root).map_err(|error| io_error("open the model", path, &error))?;
            return Ok(Self { repository, root, kind: SourceKind::File(path.to_path_buf(), file) });
        }
        let repository =
            RepositoryRoot::open(path).map_err(|error| io_error("open the model repository", path, &error))?;
        let listing = repository.list().map_err(|error| io_error("list", path, &error))?;
        if let Some(only) = lone_model(path, &listing, settings) {
            return Self::open(&only, settings);
        }
        let kind = match (listing.is_model(), listing.lone_onnx_file()) {
            (true, _) => SourceKind::Directory(path.to_path_buf()),
            (false, Some(file)) => SourceKind::File(path.join(file), path.join(file)),
            (false, None) if settings.model_name.is_some() => return Err(misplaced_name(path, &listing)),
            (false, None) => SourceKind::Repository,
        };
        Ok(Self { repository, root: path.to_path_buf(), kind })
    }

    /// Opens a directory as a repository without looking at its contents.
    ///
    /// # Errors
    /// The error of `open` when the path is no readable directory.
    pub fn of_directory(root: PathBuf) -> io::Result<Self> {
        Ok(Self { repository: RepositoryRoot::open(&root)?, root, kind: SourceKind::Repository })
    }

    /// The path that it was opened with, and whether that is a directory of models.
    pub fn path(&self) -> (&Path, bool) {
        match &self.kind {
            SourceKind::Directory(path) | SourceKind::File(path, _) => (path, false),
            SourceKind::Repository => (&self.root, true),
        }
    }

    /// Lists the models.
    ///
    /// # Errors
    /// When the path cannot be listed, or a single model's name or configuration is invalid.
    pub fn scan(&self, settings: &Settings) -> Result<FoundModels, Error> {
        let list = |path: &Path| self.repository.list().map_err(|error| io_error("list", path, &error));
        let one = |model| FoundModels { models: vec![model], ..FoundModels::default() };
        let mut found = match &self.kind {
            SourceKind::Repository => list(&self.root)?.find_models(),
            SourceKind::File(given, file) => one(file_model(given, file, &self.repository, settings)?),
            SourceKind::Directory(path) => one(directory_model(path, list(path)?, &self.repository, settings)?),
        };
        let namespace = self.namespace(settings);
        found.models.iter_mut().for_each(|model| model.namespace.clone_from(&namespace));
        Ok(found)
    }

    /// Finds one model by name.
    ///
    /// # Errors
    /// When its directory cannot be listed or is no model.
    pub fn find(&self, name: &str, settings: &Settings) -> Result<Option<ModelDirectory>, Error> {
        if let SourceKind::Repository = self.kind {
            if !self.repository.contains(name) {
                return Ok(None);
            }
            let directory = ModelDirectory::from_entry(&self.repository.list_model(name))?;
            return Ok(Some(ModelDirectory { namespace: self.namespace(settings), ..directory }));
        }
        Ok(self.scan(settings)?.models.into_iter().find(|model| model.name == name))
    }

    /// The model in a directory of another name, `.` for all that is here.
    ///
    /// # Errors
    /// When the directory cannot be listed or is no model.
    pub fn renamed(&self, path: &str, name: &str) -> Result<ModelDirectory, Error> {
        let directory = if path == "." {
            let listing = self.repository.list().map_err(|error| io_error("list", &self.root, &error))?;
            ModelDirectory::of_listing(name.to_owned(), listing)?
        } else {
            ModelDirectory::from_entry(&self.repository.list_model(path))?
        };
        Ok(ModelDirectory { name: name.to_owned(), is_renamed: true, ..directory })
    }

    /// Whether it has a model of this name.
    pub fn has(&self, name: &str, settings: &Settings) -> bool {
        match self.kind {
            SourceKind::Repository => self.repository.contains(name),
            SourceKind::Directory(_) | SourceKind::File(..) => {
                self.find(name, settings).is_ok_and(|found| found.is_some())
            }
        }
    }

    /// The namespace of its models: its path as the flag says it; empty without `--model-namespacing`.
    pub fn namespace(&self, settings: &Settings) -> String {
        let path = self.path().0.to_string_lossy();
        match path.trim_end_matches('/') {
            _ if !settings.repository_rules.has_namespaces => String::new(),
            "" => path.into_owned(),
            path => path.to_owned(),
        }
    }

    /// The names of all models, without reading their directories.
    ///
    /// # Errors
    /// When the path cannot be listed.
    pub fn names(&self, settings: &Settings) -> Result<Vec<String>, Error> {
        if let SourceKind::Repository = self.kind {
            let names = self.repository.names().map_err(|error| io_error("list", &self.root, &error))?;
            let models = names.into_iter().filter(|entry| entry.is_directory && !is_hidden(&entry.name));
            return Ok(models.map(|entry| entry.name).collect());
        }
        Ok(self.scan(settings)?.models.into_iter().map(|model| model.name).collect())
    }

    /// Reads a model's configuration file, or the configuration that a client sent.
    ///
    /// # Errors
    /// When the file cannot be read or is invalid, or when there is none and auto-completion is off.
    pub fn draft(&self, model: &ModelDirectory, settings: &Settings) -> Result<ConfigDraft, Error> {
        let files = settings.auto_complete.then_some(model.files.as_slice());
        let has_backend_file = has_backend_file(settings);
        let is_renamed = model.is_renamed;
        let surroundings = ConfigSurroundings { files, has_backend_file: &has_backend_file, is_renamed };
        if let Some((notation, text)) = &model.given {
            return ConfigDraft::read(&model.name, *notation, text.as_bytes(), surroundings);
        }
        let named = settings.model_config_name.as_ref().and_then(|name| model.named_config(name));
        if let Some(file) = named {
            let text = self.read(&model.file(&file), CONFIG_SIZE_MAX)?;
            let draft = ConfigDraft::read(&model.name, Notation::Text, &text, surroundings);
            return draft.map_err(|error| error.with_prefix(&format!("in {file}: ")));
        }
        let Some(notation) = model.notation()? else {
            if settings.auto_complete {
                return ConfigDraft::read(&model.name, Notation::Text, b"", surroundings);
            }
            // Triton's text has the path on the machine, which is nothing for a client.
            let path = model.file(Notation::Text.filename());
            return Err(Error::invalid(format!("failed to open text file for read {path}: No such file or directory")));
        };
        let text = self.read(&model.file(notation.filename()), CONFIG_SIZE_MAX)?;
        ConfigDraft::read(&model.name, notation, &text, surroundings)
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

/// Tells which files the directory of backends has.
pub fn has_backend_file(settings: &Settings) -> impl Fn(&str, &str) -> bool + '_ {
    |backend, file| settings.backend_directory.join(backend).join(file).is_file()
}

/// The only model of a repository, where `--model-name` says what it is called.
fn lone_model(path: &Path, listing: &Listing, settings: &Settings) -> Option<PathBuf> {
    settings.model_name.as_ref()?;
    if listing.is_model() || listing.lone_onnx_file().is_some() {
        return None;
    }
    let mut found = listing.find_models().models;
    let only = path.join(found.pop().filter(|_| found.is_empty())?.name);
    // Nothing outside the repository is read, whatever a link in it says.
    let is_beneath = only.canonicalize().ok()?.starts_with(path.canonicalize().ok()?);
    is_beneath.then_some(only)
}

/// `--model-name` with a repository: what to do depends on what is in it.
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
    let is_onnx = given.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"));
    if !is_onnx && !is_tree_filename(&filename) {
        return Err(Error::invalid(format!(
            "the name of '{}' does not end in .onnx or as tree models do (.json, .ubj, .bst, .model, .txt, .tl): give such a \
             file or a directory",
            given.display()
        )));
    }
    let name = settings.model_name.clone().unwrap_or(stem);
    ModelDirectory::of_file(name, &filename, repository.stamp(&filename))
}

fn directory_model(
    path: &Path,
    listing: Listing,
    repository: &RepositoryRoot,
    settings: &Settings,
) -> Result<ModelDirectory, Error> {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let directory = absolute.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let mut model = ModelDirectory::of_listing(directory, listing)?;
    let configured = match model.notation()? {
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
