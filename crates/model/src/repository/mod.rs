//! The contents of a model repository, from a listing that the server made: the directories that
//! are models, their subdirectories that are versions, and the versions that a policy serves. Opens
//! no files.

pub mod changes;
pub mod index;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::limits::VERSIONS_MAX;
use crate::name;
use crate::parse::text::{ConfigText, Notation};
use crate::platform::{
    ONNX_FILENAME, OPENVINO_FILENAME, PYTHON_FILENAME, PYTORCH_FILENAME, SAVEDMODEL_FILENAME, TREE_FILES, pickle_advice,
};
use crate::spec::VersionPolicy;
use crate::tensorflow::SAVED_MODEL_FILE;
use base::error::Error;
use hub::folder::is_hub_folder;

/// A directory tree as listed: a repository, its model directories, their version directories.
///
/// ```
/// use model::repository::{Listing, ListingEntry};
///
/// let directory = |name: &str, children| ListingEntry {
///     name: name.to_owned(),
///     is_directory: true,
///     children,
///     ..ListingEntry::default()
/// };
/// let listing = Listing { entries: vec![directory("m", vec![directory("1", vec![]), directory("3", vec![])])] };
/// let found = listing.find_models();
/// assert_eq!(found.models[0].versions, [3, 1]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The entries of the directory, in any order.
    pub entries: Vec<ListingEntry>,
}

/// One file or directory of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListingEntry {
    /// The name.
    pub name: String,
    /// True if it is a directory.
    pub is_directory: bool,
    /// Its entries, as deep as the server listed.
    pub children: Vec<ListingEntry>,
    /// A hash of the file's inode, size and modification time, to detect changes; 0 for a directory.
    pub stamp: u64,
    /// The reason why the listing is incomplete, such as a link that cannot be followed; `None` if it is complete.
    pub fault: Option<String>,
}

/// Hashes of a model's directory, to detect changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeMark {
    /// Hash of everything outside the version directories: the configuration, labels, warm-up files.
    pub shared: u64,
    /// The same without the configuration files.
    pub files: u64,
    /// `(version, hash of its directory)`, the highest version first.
    pub versions: Vec<(u64, u64)>,
}

/// The models of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundModels {
    /// The models, by name.
    pub models: Vec<ModelDirectory>,
    /// Directories that are not valid models, with the reason.
    pub refused: Vec<(String, Error)>,
    /// Entries without a meaning: stray files, hidden directories.
    pub ignored: Vec<String>,
}

/// A model's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDirectory {
    /// The model's name.
    pub name: String,
    /// True if its name differs from that of its directory and its configuration.
    pub is_renamed: bool,
    /// The namespace of its repository; empty without `--model-namespacing`.
    pub namespace: String,
    /// The path of the directory, relative to the repository.
    pub path: String,
    /// True if the files of its only version are in the directory itself, as for a model that is
    /// one ONNX file.
    pub is_flat: bool,
    /// True if the files of its first version are those of a folder of the Hugging Face hub and it has no configuration: its
    /// `config.json` is not one.
    pub is_hub: bool,
    /// The configuration files in the directory; more than one is an error.
    pub configs: Vec<Notation>,
    /// The configurations in its directory `configs`, by their names without `.pbtxt` (`--model-config-name`).
    pub named_configs: Vec<String>,
    /// A configuration that is used instead of those: generated for a single ONNX file, or sent by a client.
    pub given: Option<(Notation, String)>,
    /// Its versions, the highest first.
    pub versions: Vec<u64>,
    /// The file names in the first version directory, in the order of names. The backend is derived from them if the
    /// configuration does not name it.
    pub files: Vec<String>,
    /// The names beside the version directories, a directory's with a slash behind it: they may
    /// explain why a version is missing.
    pub beside: Vec<String>,
    /// Hashes to detect changes.
    pub mark: ChangeMark,
}

/// The versions that a policy selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionChoice {
    /// The versions to serve, the highest first.
    pub versions: Vec<u64>,
    /// Versions that the policy names and that do not exist.
    pub missing: Vec<u64>,
}

impl Listing {
    /// Finds the models of a repository. One directory that is not valid does not affect the others.
    pub fn find_models(&self) -> FoundModels {
        let mut found = FoundModels::default();
        for entry in &self.entries {
            if (!entry.is_directory && entry.fault.is_none()) || is_hidden(&entry.name) {
                found.ignored.push(entry.name.clone());
                continue;
            }
            match ModelDirectory::from_entry(entry) {
                Ok(model) => found.models.push(model),
                Err(error) => found.refused.push((entry.name.clone(), error)),
            }
        }
        found.models.sort_by(|one, other| one.name.cmp(&other.name));
        found.refused.sort_by(|one, other| one.0.cmp(&other.0));
        found.ignored.sort();
        found
    }
}

impl Listing {
    /// Returns true if this is the directory of a single model and not a repository: it has
    /// `model.onnx`, `model.xml`, `model.savedmodel` or the file of a tree model, a version
    /// directory with such a file or `model.py`, or a version directory and a configuration.
    pub fn is_model(&self) -> bool {
        let is_trees = |name: &str| TREE_FILES.iter().any(|(file, _)| name == *file);
        // In a repository, a file with a common name such as model.json decides nothing.
        let tells_trees = |name: &str| is_trees(name) && !name.starts_with("model.");
        let is_usual = |name: &str| [ONNX_FILENAME, OPENVINO_FILENAME].contains(&name);
        let is_file = |entry: &ListingEntry| {
            let is_saved_model = entry.is_directory && entry.name == SAVEDMODEL_FILENAME;
            is_saved_model || (!entry.is_directory && (is_usual(&entry.name) || tells_trees(&entry.name)))
        };
        let is_python = |entry: &ListingEntry| !entry.is_directory && entry.name == PYTHON_FILENAME;
        let is_version = |entry: &&ListingEntry| entry.is_directory && version(&entry.name).is_some();
        let mut versions = self.entries.iter().filter(is_version);
        let has_config = !configs(&self.entries).is_empty();
        // Without a configuration it cannot be served.
        let has_module = has_config && self.entries.iter().any(|file| file.name == PYTORCH_FILENAME);
        has_module
            || is_hub(&self.entries)
            || self.entries.iter().any(is_file)
            || versions.any(|version| {
                has_config
                    || version.children.iter().any(|file| is_file(file) || is_python(file) || is_trees(&file.name))
            })
    }

    /// Returns true if this is the directory of a SavedModel.
    pub fn is_saved_model(&self) -> bool {
        self.entries.iter().any(|entry| !entry.is_directory && entry.name == SAVED_MODEL_FILE)
    }

    /// The only ONNX file of a directory that is not a repository either: it has no directories and
    /// no configuration. Exporters and stores give the file any name, and put other files beside
    /// it, such as weights.
    pub fn lone_onnx_file(&self) -> Option<&str> {
        let is_onnx = |name: &str| name.rsplit_once('.').is_some_and(|(_, end)| end.eq_ignore_ascii_case("onnx"));
        let mut seen = self.entries.iter().filter(|entry| !is_hidden(&entry.name));
        if seen.any(|entry| entry.is_directory) || !configs(&self.entries).is_empty() {
            return None;
        }
        let mut files = self.entries.iter().filter(|entry| !is_hidden(&entry.name) && is_onnx(&entry.name));
        files.next().filter(|_| files.next().is_none()).map(|entry| entry.name.as_str())
    }
}

impl ModelDirectory {
    /// Reads a directory of a repository as a model.
    ///
    /// # Errors
    /// `InvalidArgument` if the name is not valid, the listing is incomplete, or there are too many versions.
    pub fn from_entry(entry: &ListingEntry) -> Result<Self, Error> {
        name::check_model_name(&entry.name)?;
        let mut versions = entry.children.iter().filter(|child| version(&child.name).is_some());
        if let Some(fault) = entry.fault.as_ref().or_else(|| versions.find_map(|child| child.fault.as_ref())) {
            return Err(Error::invalid(format!("model '{}': {fault}", entry.name)));
        }
        let is_version = |child: &&ListingEntry| child.is_directory && version(&child.name).is_some();
        let mut directories: Vec<_> = entry.children.iter().filter(is_version).collect();
        if directories.len() > VERSIONS_MAX {
            return Err(Error::invalid(format!(
                "model '{}' has {} versions, more than the {VERSIONS_MAX} allowed; remove old ones",
                entry.name,
                directories.len()
            )));
        }
        directories.sort_by(|one, other| one.name.cmp(&other.name));
        let first = directories.first().map(|first| first.children.as_slice()).unwrap_or_default();
        let mut files: Vec<_> = first.iter().map(|file| file.name.clone()).collect();
        files.sort();
        let mut versions: Vec<_> = directories.iter().filter_map(|directory| version(&directory.name)).collect();
        versions.sort_unstable_by(|one, other| other.cmp(one));
        let mut configs = configs(&entry.children);
        let mut mark = ChangeMark::from_entry(entry);
        let is_flat = versions.is_empty() && is_hub(&entry.children);
        if is_flat {
            configs.retain(|notation| *notation != Notation::Json);
            (versions, mark.versions) = (vec![1], vec![(1, mark.shared)]);
            mark.files = mark.shared;
            files = entry.children.iter().map(|file| file.name.clone()).collect();
            files.sort();
        }
        Ok(Self {
            name: entry.name.clone(),
            is_renamed: false,
            namespace: String::new(),
            path: entry.name.clone(),
            is_flat,
            is_hub: configs.is_empty() && (is_flat || is_hub(first)),
            configs,
            named_configs: named_configs(&entry.children),
            given: None,
            versions,
            files,
            beside: beside(entry),
            mark,
        })
    }

    /// A directory that is a single model outside a repository (see [`Listing::is_model`]). `name` is not checked here:
    /// a configuration or a flag may replace it.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too many versions.
    pub fn of_listing(name: String, listing: Listing) -> Result<Self, Error> {
        let files: Vec<_> = listing.entries.iter().map(|entry| entry.name.clone()).collect();
        // Any valid name will do: the directory's own may be invalid, and is not used.
        let entry = ListingEntry {
            name: "m".to_owned(),
            is_directory: true,
            children: listing.entries,
            ..ListingEntry::default()
        };
        let mut model = Self { name, path: ".".to_owned(), ..Self::from_entry(&entry)? };
        if model.versions.is_empty() {
            (model.is_flat, model.versions, model.files) = (true, vec![1], files);
            model.files.sort();
            model.mark.versions = vec![(1, model.mark.shared)];
        }
        Ok(model)
    }

    /// A model that is one file or directory, of this backend: its name and a stamp that changes when the file does. `config`
    /// is the configuration beside it, which TorchScript needs.
    ///
    /// # Errors
    /// `InvalidArgument` if `name` is not valid for a model.
    pub fn of_file(
        name: String,
        backend: &str,
        filename: &str,
        stamp: u64,
        config: Option<&str>,
    ) -> Result<Self, Error> {
        name::check_model_name(&name)
            .map_err(|error| Error::invalid(format!("{error}; give one with --model-name")))?;
        // Every byte is escaped: the file name may have quotes or any other character.
        let config = config.unwrap_or_default();
        // An unreadable configuration is refused later, with the position.
        let read = ConfigText::decode(Notation::Text, config.as_bytes()).ok();
        let says = |field: &str| read.as_ref().is_none_or(|read| read.message.has_field_by_name(field));
        let mut generated = String::new();
        if !says("backend") && !says("platform") {
            generated.push_str(&format!("backend: \"{backend}\" "));
        }
        if !says("default_model_filename") {
            generated.push_str("default_model_filename: \"");
            filename.bytes().for_each(|byte| generated.push_str(&format!("\\x{byte:02x}")));
            generated.push_str("\" ");
        }
        generated.push_str(config);
        let files = vec![filename.to_owned()];
        let path = ".".to_owned();
        let given = Some((Notation::Text, generated));
        let mark = ChangeMark { versions: vec![(1, stamp)], ..ChangeMark::default() };
        let (versions, beside) = (vec![1], Vec::new());
        let (configs, named_configs) = (Vec::new(), Vec::new());
        Ok(Self {
            name,
            namespace: String::new(),
            is_renamed: false,
            path,
            is_flat: true,
            is_hub: false,
            configs,
            named_configs,
            given,
            versions,
            files,
            beside,
            mark,
        })
    }

    /// Its name, in its namespace if it has one.
    pub fn qualified_name(&self) -> String {
        name::qualified(&self.namespace, &self.name)
    }

    /// Checks that there is a version's directory. `file` is a file that one of them must have;
    /// empty if none is needed.
    ///
    /// # Errors
    /// `InvalidArgument` with the expected and the actual content, and the fix.
    pub fn check_has_version(&self, file: &str) -> Result<(), Error> {
        if !self.versions.is_empty() {
            return Ok(());
        }
        let name = &self.name;
        let expected = match file {
            "" => format!("the directory {name}/1, which may be empty"),
            file => format!("{name}/1/{file}"),
        };
        let is_model = |have: &&String| *have == file || have.ends_with(".onnx") || *have == PYTHON_FILENAME;
        let model = self.beside.iter().find(is_model);
        let directory = self.beside.iter().find_map(|have| have.strip_suffix('/'));
        let pickle = self.beside.iter().find_map(|have| pickle_advice(have));
        let hint = match (model, directory) {
            (None, _) if let Some(advice) = pickle => format!("; {advice}"),
            (Some(model), _) => format!(": move {name}/{model} there"),
            (None, Some(directory)) => {
                format!("; '{directory}' is not one: its name must be a number without leading zeros")
            }
            (None, None) => String::new(),
        };
        Err(Error::invalid(format!("model '{name}' has no version directory; expected {expected}{hint}")))
    }

    /// The notation of its configuration file; `None` if it has none.
    ///
    /// # Errors
    /// `InvalidArgument` if it has several configuration files.
    pub fn notation(&self) -> Result<Option<Notation>, Error> {
        self.notation_without(None)
    }

    /// The same without a file that is not a configuration of this server: its name is that of another program's, too.
    ///
    /// # Errors
    /// As [`Self::notation`].
    pub fn notation_without(&self, foreign: Option<Notation>) -> Result<Option<Notation>, Error> {
        let mut own = self.configs.iter().copied().filter(|notation| Some(*notation) != foreign);
        match (own.next(), own.next()) {
            (Some(one), Some(other)) => {
                let (one, other) = (one.filename(), other.filename());
                Err(Error::invalid(format!("model '{}' has {one} and {other}: keep one of them", self.name)))
            }
            (first, _) => Ok(first),
        }
    }

    /// The path of the configuration of this name in its directory, if there is one.
    pub fn named_config(&self, name: &str) -> Option<String> {
        self.named_configs.iter().any(|have| have == name).then(|| format!("{CONFIGS}/{name}.pbtxt"))
    }

    /// The path of a file in the model's directory, relative to the repository.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// The path of a version's directory, relative to the repository.
    pub fn version_path(&self, version: u64) -> String {
        if self.is_flat { self.path.clone() } else { format!("{}/{version}", self.path) }
    }

    /// The versions that a policy selects.
    ///
    /// # Errors
    /// `InvalidArgument` with Triton's text if it selects no version.
    pub fn choose_versions(&self, policy: &VersionPolicy) -> Result<VersionChoice, Error> {
        let mut missing = Vec::new();
        let versions: Vec<u64> = match policy {
            VersionPolicy::All => self.versions.clone(),
            VersionPolicy::Latest(count) => {
                let count = usize::try_from(*count).unwrap_or(usize::MAX);
                self.versions.iter().take(count).copied().collect()
            }
            VersionPolicy::Specific(wanted) => {
                missing.extend(wanted.iter().filter(|version| !self.versions.contains(version)));
                self.versions.iter().filter(|version| wanted.contains(version)).copied().collect()
            }
        };
        if versions.is_empty() {
            return Err(Error::invalid(format!(
                "at least one version must be available under the version policy of model '{}'",
                self.name
            )));
        }
        Ok(VersionChoice { versions, missing })
    }
}

impl ChangeMark {
    fn from_entry(entry: &ListingEntry) -> Self {
        let number = |child: &ListingEntry| version(&child.name).filter(|_| child.is_directory);
        let shared: Vec<&ListingEntry> = entry.children.iter().filter(|child| number(child).is_none()).collect();
        let mut versions: Vec<_> = entry
            .children
            .iter()
            .filter_map(|child| Some((number(child)?, digest(&child.children.iter().collect::<Vec<_>>()))))
            .collect();
        versions.sort_unstable_by(|one, other| other.cmp(one));
        let is_config = |child: &ListingEntry| {
            child.name == CONFIGS || Notation::ALL.iter().any(|notation| child.name == notation.filename())
        };
        let files: Vec<&ListingEntry> = shared.iter().copied().filter(|child| !is_config(child)).collect();
        Self { shared: digest(&shared), files: digest(&files), versions }
    }
}

/// Returns true if a name in a repository belongs to no model: mounts and editors create names with
/// a leading dot (`..data`, `.ipynb_checkpoints`), and file systems of the ext family have a
/// `lost+found` at their root.
pub fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name == "lost+found"
}

/// A hash of entries in any order: names, stamps, and their own entries. Hidden names are left out: editors and mounts
/// create them while they work. So are Python's caches, which a model writes when it is imported. `DefaultHasher` is
/// enough: hashes are compared within one process only.
fn digest(entries: &[&ListingEntry]) -> u64 {
    let counts = |entry: &&&ListingEntry| !entry.name.starts_with('.') && entry.name != PYTHON_CACHE;
    let mut entries: Vec<_> = entries.iter().filter(counts).collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut hasher = DefaultHasher::new();
    for entry in entries {
        (&entry.name, entry.is_directory, entry.stamp).hash(&mut hasher);
        digest(&entry.children.iter().collect::<Vec<_>>()).hash(&mut hasher);
    }
    hasher.finish()
}

/// The names in a model's directory that are neither versions nor hidden, in order.
fn beside(entry: &ListingEntry) -> Vec<String> {
    let is_version = |child: &ListingEntry| child.is_directory && version(&child.name).is_some();
    let is_beside = |child: &&ListingEntry| !child.name.starts_with('.') && !is_version(child);
    let name = |child: &ListingEntry| format!("{}{}", child.name, if child.is_directory { "/" } else { "" });
    let mut names: Vec<_> = entry.children.iter().filter(is_beside).map(name).collect();
    names.sort();
    names
}

/// Returns true if the entries of a directory are those of a folder of the hub.
fn is_hub(entries: &[ListingEntry]) -> bool {
    let below = |entry: &ListingEntry| {
        let files = entry.children.iter().filter(|file| !file.is_directory);
        files.map(|file| format!("{}/{}", entry.name, file.name)).collect::<Vec<_>>()
    };
    let files = entries.iter().filter(|entry| !entry.is_directory).map(|entry| entry.name.clone());
    let names: Vec<String> = files.chain(entries.iter().filter(|entry| entry.name == "onnx").flat_map(below)).collect();
    is_hub_folder(names.iter().map(String::as_str))
}

/// The directory of Python's compiled files.
const PYTHON_CACHE: &str = "__pycache__";

fn configs(children: &[ListingEntry]) -> Vec<Notation> {
    let is_there =
        |notation: &Notation| children.iter().any(|child| !child.is_directory && child.name == notation.filename());
    Notation::ALL.into_iter().filter(is_there).collect()
}

/// The directory of named configurations.
const CONFIGS: &str = "configs";

fn named_configs(children: &[ListingEntry]) -> Vec<String> {
    let directories = children.iter().filter(|child| child.is_directory && child.name == CONFIGS);
    let files = directories.flat_map(|directory| &directory.children).filter(|file| !file.is_directory);
    files.filter_map(|file| file.name.strip_suffix(".pbtxt")).map(str::to_owned).collect()
}

/// The number of a version directory: digits without a leading zero; `None` for any other directory, such as
/// `warmup`, `initial_state` and `configs`.
pub fn version(name: &str) -> Option<u64> {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit()) && !name.starts_with('0');
    name.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: String, is_directory: bool) -> ListingEntry {
        ListingEntry { name, is_directory, ..ListingEntry::default() }
    }

    /// Reads a listing: `a/ b` are a directory and a file; the words in brackets after a directory are its entries.
    fn entries(text: &str) -> Vec<ListingEntry> {
        let mut stack: Vec<Vec<ListingEntry>> = vec![Vec::new()];
        for word in text.replace('[', " [ ").replace(']', " ] ").split_whitespace() {
            match word {
                "[" => stack.push(Vec::new()),
                "]" => {
                    let children = stack.pop().unwrap();
                    stack.last_mut().unwrap().last_mut().unwrap().children = children;
                }
                _ => {
                    let name = word.trim_end_matches('/').to_owned();
                    stack.last_mut().unwrap().push(entry(name, word.ends_with('/')));
                }
            }
        }
        stack.pop().unwrap()
    }

    fn found(text: &str) -> String {
        let found = Listing { entries: entries(text) }.find_models();
        let mut lines = Vec::new();
        for model in &found.models {
            let configs: Vec<_> = model.configs.iter().map(|config| format!(" {}", config.filename())).collect();
            let (configs, files) = (configs.concat(), model.files.join(" "));
            lines.push(format!("{}{configs} {:?} {files}", model.name, model.versions));
        }
        lines.extend(found.refused.iter().map(|(name, _)| format!("refused {name}")));
        lines.extend(found.ignored.iter().map(|name| format!("ignored {name}")));
        lines.join("; ")
    }

    #[test]
    fn listings_are_models_versions_and_strays() {
        let check = |text: &str, want: &str| assert_eq!(found(text), want, "{text}");
        check("", "");
        check("m/ [ config.pbtxt 1/ [ model.onnx ] ]", "m config.pbtxt [1] model.onnx");
        check("m/ [ config.json 1/ [ ] ]", "m config.json [1] ");
        check("m/ [ config.toml config.pbtxt 1/ [ ] ]", "m config.pbtxt config.toml [1] ");
        check("b/ [ 1/ ] a/ [ 2/ [ y x ] 10/ [ z ] ]", "a [10, 2] z; b [1] ");
        let text = "m/ [ 1/ config.pbtxt configs/ [ a.pbtxt b.toml c/ ] ]";
        let named = Listing { entries: entries(text) }.find_models().models.remove(0);
        assert_eq!(named.named_config("a").as_deref(), Some("configs/a.pbtxt"));
        assert!(["b", "c", "a.pbtxt", "../config", ""].iter().all(|name| named.named_config(name).is_none()));
        check("m/ [ 1/ 007/ 0/ -1/ +1/ 1.5/ one/ 3 warmup/ initial_state/ configs/ ]", "m [1] ");
        check("m/ [ 18446744073709551615/ 18446744073709551616/ ]", "m [18446744073709551615] ");
        check("m/ [ config.pbtxt/ labels.txt ]", "m [] ");
        check("README.md ..data/ .git/ m/ [ 1/ ]", "m [1] ; ignored ..data; ignored .git; ignored README.md");
        check("lost+found/ é/ ok-1.2_3/ [ 1/ ]", "ok-1.2_3 [1] ; é [] ; ignored lost+found");
        let long = "a".repeat(256);
        check(&format!("{long}/ [ 1/ ]"), &format!("refused {long}"));
    }

    #[test]
    fn a_mark_changes_with_the_part_of_the_directory_that_changed() {
        let mark = |text: &str, change: &dyn Fn(&mut ListingEntry)| {
            let mut model = entries(text).remove(0);
            change(&mut model);
            ModelDirectory::from_entry(&model).unwrap().mark
        };
        let text = "m/ [ config.pbtxt warmup/ [ a ] 1/ [ f ] 2/ [ f ] ]";
        let base = mark(text, &|_| ());
        assert_eq!(
            base,
            mark("m/ [ 2/ [ f ] warmup/ [ a ] 1/ [ f ] config.pbtxt .x ]", &|_| ()),
            "order, hidden names"
        );
        let config = mark(text, &|model| model.children[0].stamp = 1);
        assert!(config.shared != base.shared && config.versions == base.versions);
        assert_eq!(config.files, base.files);
        let warmup = mark(text, &|model| model.children[1].children[0].stamp = 1);
        assert!(warmup.shared != base.shared && warmup.versions == base.versions);
        assert_ne!(warmup.files, base.files);
        let file = mark(text, &|model| model.children[2].children[0].stamp = 1);
        assert!(file.shared == base.shared && file.versions[0] == base.versions[0]);
        assert_ne!(file.versions[1], base.versions[1]);
        let cached = "m/ [ config.pbtxt __pycache__/ [ x ] warmup/ [ a ] 1/ [ f __pycache__/ [ a b ] ] 2/ [ f ] ]";
        assert_eq!(base, mark(cached, &|_| ()), "caches of Python");
        let more = mark("m/ [ config.pbtxt warmup/ [ a ] 1/ [ f ] 2/ [ f g ] ]", &|_| ());
        assert!(more.shared == base.shared && more.versions[0] != base.versions[0]);
    }

    #[test]
    fn a_missing_version_directory_is_told_with_what_is_there_instead() {
        let check = |text: &str, file: &str, want: &str| {
            let model = ModelDirectory::from_entry(&entries(text)[0]).unwrap();
            let error = model.check_has_version(file).unwrap_err();
            assert_eq!(error.text(), format!("model 'm' has no version directory; expected {want}"), "{text}");
        };
        check("m/ [ ]", "model.onnx", "m/1/model.onnx");
        check("m/ [ config.pbtxt .git/ ]", "", "the directory m/1, which may be empty");
        let advice = pickle_advice("model.pkl").unwrap();
        check("m/ [ model.pkl ]", "model.onnx", &format!("m/1/model.onnx; {advice}"));
        check("m/ [ a.txt model.onnx labels/ ]", "model.onnx", "m/1/model.onnx: move m/model.onnx there");
        check("m/ [ resnet.onnx ]", "model.onnx", "m/1/model.onnx: move m/resnet.onnx there");
        check("m/ [ model.py ]", "model.py", "m/1/model.py: move m/model.py there");
        let number = "its name must be a number without leading zeros";
        check("m/ [ v1/ [ model.onnx ] ]", "model.onnx", &format!("m/1/model.onnx; 'v1' is not one: {number}"));
        check("m/ [ 01/ ]", "model.onnx", &format!("m/1/model.onnx; '01' is not one: {number}"));
        let model = ModelDirectory::from_entry(&entries("m/ [ 1/ ]")[0]).unwrap();
        assert_eq!(model.check_has_version("model.onnx"), Ok(()));
    }

    #[test]
    fn a_directory_with_an_incomplete_listing_is_no_model() {
        let mut model = entries("m/ [ 1/ ]").remove(0);
        model.fault = Some("it holds more names than are looked at".to_owned());
        let error = ModelDirectory::from_entry(&model).unwrap_err();
        assert_eq!(error.text(), "model 'm': it holds more names than are looked at");
    }

    #[test]
    fn policies_pick_versions_highest_first() {
        let model = ModelDirectory::from_entry(&entries("m/ [ 1/ 3/ 20/ ]")[0]).unwrap();
        let check = |policy: VersionPolicy, versions: &[u64], missing: &[u64]| {
            let got = model.choose_versions(&policy).map(|choice| (choice.versions, choice.missing));
            assert_eq!(got, Ok((versions.to_vec(), missing.to_vec())), "{policy:?}");
        };
        check(VersionPolicy::All, &[20, 3, 1], &[]);
        check(VersionPolicy::Latest(1), &[20], &[]);
        check(VersionPolicy::Latest(2), &[20, 3], &[]);
        check(VersionPolicy::Latest(u32::MAX), &[20, 3, 1], &[]);
        check(VersionPolicy::Specific(vec![1, 3]), &[3, 1], &[]);
        check(VersionPolicy::Specific(vec![1, 1, 2]), &[1], &[2]);
    }

    #[test]
    fn a_model_without_a_version_to_serve_is_refused() {
        let check = |listing: &str, policy: VersionPolicy| {
            let model = ModelDirectory::from_entry(&entries(listing)[0]).unwrap();
            let want = "at least one version must be available under the version policy of model 'm'";
            assert_eq!(model.choose_versions(&policy).unwrap_err().text(), want, "{listing} {policy:?}");
        };
        check("m/ [ config.pbtxt ]", VersionPolicy::All);
        check("m/ [ 007/ ]", VersionPolicy::Latest(1));
        check("m/ [ 1/ ]", VersionPolicy::Latest(0));
        check("m/ [ 1/ ]", VersionPolicy::Specific(vec![2]));
        check("m/ [ 1/ ]", VersionPolicy::Specific(vec![]));
    }

    #[test]
    fn too_many_versions_fail_that_model_alone() {
        let many: Vec<_> = (1..=VERSIONS_MAX + 1).map(|version| format!("{version}/")).collect();
        let text = format!("many/ [ {} ] one/ [ 1/ ]", many.join(" "));
        assert_eq!(found(&text), "one [1] ; refused many");
    }

    #[test]
    fn a_model_by_itself_is_told_from_a_repository() {
        let check = |text: &str, want: Option<&str>| {
            let listing = Listing { entries: entries(text) };
            assert_eq!(listing.is_model(), want.is_some(), "{text}");
            let Some(want) = want else { return };
            let model = ModelDirectory::of_listing("d".to_owned(), listing).unwrap();
            let at: Vec<_> = model.versions.iter().map(|version| model.version_path(*version)).collect();
            assert_eq!(format!("{} {} {}", model.name, at.join(","), model.files.join(" ")), want, "{text}");
        };
        check("model.onnx", Some("d . model.onnx"));
        check("model.onnx config.json README.md", Some("d . README.md config.json model.onnx"));
        check("1/ [ model.onnx ]", Some("d ./1 model.onnx"));
        check("config.pbtxt 1/ [ ] 3/ [ model.onnx ]", Some("d ./3,./1 "));
        check("config.toml 2/", Some("d ./2 "));
        check("1/ [ model.py helper.py ]", Some("d ./1 helper.py model.py"));
        check("model.py", None);
        check("", None);
        check("m/ [ 1/ [ model.onnx ] ]", None);
        check("1/ [ 1/ [ model.onnx ] ]", None);
        check("config.pbtxt m/ [ 1/ ]", None);
        check("model.onnx/ [ 1/ ]", None);
    }

    #[test]
    fn two_configuration_files_are_an_error() {
        let model = ModelDirectory::from_entry(&entries("m/ [ config.toml config.json 1/ ]")[0]).unwrap();
        let error = model.notation().unwrap_err();
        assert_eq!(error.text(), "model 'm' has config.json and config.toml: keep one of them");
        assert_eq!(model.notation_without(Some(Notation::Json)), Ok(Some(Notation::Toml)));
    }

    #[test]
    fn a_file_has_any_name_in_its_configuration() {
        let model = ModelDirectory::of_file("m".to_owned(), "onnxruntime", "a \"b\".onnx", 7, None).unwrap();
        assert_eq!(model.mark, ChangeMark { versions: vec![(1, 7)], ..ChangeMark::default() });
        let given = model.given.as_ref().map(|(_, text)| text.as_bytes());
        let draft = crate::config::ConfigDraft::new("m", given, &[]).unwrap();
        assert_eq!(draft.onnx_filename(), Some("a \"b\".onnx"));
        // A PyTorch module has its configuration beside it.
        let config = "max_batch_size: 4 platform: 'pytorch_libtorch'";
        let module = ModelDirectory::of_file("m".to_owned(), "pytorch", "net.pt", 7, Some(config)).unwrap();
        let given = module.given.as_ref().map(|(_, text)| text.as_bytes());
        let draft = crate::config::ConfigDraft::new("m", given, &[]).unwrap();
        assert_eq!(draft.pytorch_filename(), Some("net.pt"));
        let broken = ModelDirectory::of_file("m".to_owned(), "pytorch", "net.pt", 7, Some("x {")).unwrap();
        assert_eq!(broken.given.unwrap().1, "x {");
        assert!(
            ModelDirectory::of_file("a\"b".to_owned(), "onnxruntime", "a\"b.onnx", 0, None)
                .unwrap_err()
                .text()
                .ends_with("give one with --model-name")
        );
    }
}
