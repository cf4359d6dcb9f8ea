//! `modules.json`: the pipeline of sentence-transformers in a folder.

use base::error::Error;
use wire::placed::PlacedValue;

use crate::config_file::{ConfigFile, read_json};
use crate::folder::{HubFolder, MODULES};
use crate::limits::HUB_MODULES_MAX;

/// The modules of a folder; empty without a `modules.json`.
#[derive(Debug, Default)]
pub struct Modules {
    /// The directory of the network's own files, empty for the folder itself.
    directory: String,
    /// The modules behind the network, in their order.
    pub behind: Vec<Module>,
    /// The vectors of tokens are the model's output: the pipeline is pylate's.
    pub is_late: bool,
    /// The network gives the scores of a vocabulary.
    pub is_masked_lm: bool,
    /// True if there is a `modules.json`.
    pub is_there: bool,
}

/// A module behind the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its kind.
    pub kind: ModuleKind,
    /// Its directory in the folder; empty if it has none.
    pub path: String,
}

/// The kinds of modules that are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleKind {
    /// A matrix and an activation.
    Dense,
    /// Division by the L2 norm.
    Normalize,
    /// The vectors of tokens to one.
    Pooling,
    /// The scores of a vocabulary to one for each of its tokens.
    SpladePooling,
}

impl Modules {
    /// Reads the file.
    ///
    /// # Errors
    /// `InvalidArgument` if it is malformed; `Unsupported` for a module that is not known.
    pub fn read(folder: &HubFolder<'_>) -> Result<Self, Error> {
        if !folder.has(MODULES) {
            return Ok(Self::default());
        }
        let wrong = |why: &str| Error::invalid(format!("{MODULES}: {why}"));
        let PlacedValue::List(list) = read_json(folder, MODULES)? else { return Err(wrong("must be a list")) };
        if list.is_empty() || list.len() > HUB_MODULES_MAX {
            return Err(wrong(&format!("must have 1 to {HUB_MODULES_MAX} modules, but has {}", list.len())));
        }
        let mut modules = Self { is_there: true, ..Self::default() };
        for (index, module) in list.iter().enumerate() {
            let text = |name: &str| match &module.value {
                PlacedValue::Table(members) => match members.iter().find(|member| member.name == name) {
                    Some(member) if let PlacedValue::String(text) = &member.value.value => Ok(text.clone()),
                    _ => Err(wrong(&format!("module {index}: '{name}' must be a string"))),
                },
                _ => Err(wrong(&format!("module {index} must be an object"))),
            };
            let (class, path) = (text("type")?, text("path")?);
            check_path(&path).map_err(|why| wrong(&format!("module {index}: 'path' {why}")))?;
            let name = class.rsplit('.').next().unwrap_or_default();
            let kind = match (index, name) {
                (0, "Transformer") => None,
                (0, "MLMTransformer") => {
                    modules.is_masked_lm = true;
                    None
                }
                (1.., "Dense") => {
                    modules.is_late |= class.starts_with("pylate.");
                    Some(ModuleKind::Dense)
                }
                (1.., "Normalize") => Some(ModuleKind::Normalize),
                (1.., "Pooling") => Some(ModuleKind::Pooling),
                (1.., "SpladePooling") => Some(ModuleKind::SpladePooling),
                _ => {
                    return Err(Error::unsupported(format!(
                        "{MODULES}: module {index}: 'type' \"{class}\" is not served; known are Transformer or \
                         MLMTransformer, and after it Pooling, Dense, Normalize and SpladePooling"
                    )));
                }
            };
            match kind {
                None => modules.directory = path,
                Some(kind) => modules.behind.push(Module { kind, path }),
            }
        }
        Ok(modules)
    }

    /// The path of a file of the network.
    pub fn place(&self, name: &str) -> String {
        in_directory(&self.directory, name)
    }
}

/// The settings of the network's module, such as the most tokens of a text; early releases gave the file other names.
const LENGTH_FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Reads the settings of the network's module; `None` if the folder has none.
///
/// # Errors
/// `InvalidArgument` if the file is malformed.
pub fn settings(folder: &HubFolder<'_>, modules: &Modules) -> Result<Option<ConfigFile>, Error> {
    let place = LENGTH_FILES.iter().map(|name| modules.place(name)).find(|name| folder.has(name));
    place.map_or(Ok(None), |name| ConfigFile::read(folder, &name))
}

/// Most tokens of a text, by the settings of the network's module.
///
/// # Errors
/// `InvalidArgument` if the file is malformed.
pub fn length(folder: &HubFolder<'_>, modules: &Modules) -> Result<Option<usize>, Error> {
    settings(folder, modules)?.map_or(Ok(None), |file| file.count("max_seq_length", crate::limits::HUB_TOKENS_MAX))
}

/// Tokens of a document without a setting, as in pylate.
const DOCUMENT_LENGTH: usize = 180;

/// Most tokens of a document in a pipeline of pylate.
///
/// # Errors
/// `InvalidArgument` for a malformed member.
pub fn document_length(folder: &HubFolder<'_>) -> Result<usize, Error> {
    let settings = ConfigFile::read(folder, crate::SETTINGS)?;
    let stated =
        settings.map_or(Ok(None), |settings| settings.count("document_length", crate::limits::HUB_TOKENS_MAX))?;
    Ok(stated.unwrap_or(DOCUMENT_LENGTH))
}

/// The path of a file in a directory of the folder.
pub fn in_directory(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn check_path(path: &str) -> Result<(), String> {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    if path.is_empty() || (path.split('/').all(is_part) && !path.contains(['\0', '\\'])) {
        return Ok(());
    }
    Err(format!("is '{}': must be a relative path without '..'", path.escape_debug()))
}
