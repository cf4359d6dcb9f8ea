//! A folder as the caller sees it: the paths of its files, and a function that reads them.

use std::fmt;

use base::error::Error;

/// Reads a file of a folder by its path, up to a size; the error is a text.
pub type ReadHubFile<'a> = dyn Fn(&str, usize) -> Result<Vec<u8>, String> + 'a;

/// A folder of the hub.
pub struct HubFolder<'a> {
    /// The paths of its files, relative to it, in any order. Links count as the files that they lead to.
    pub names: &'a [String],
    /// Reads its files.
    pub read: &'a ReadHubFile<'a>,
}

impl HubFolder<'_> {
    /// Returns true if it has a file of this path.
    pub fn has(&self, name: &str) -> bool {
        self.names.iter().any(|have| have == name)
    }

    /// Returns the first of these names that it has.
    pub fn first<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.has(name))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `InvalidArgument` with the file if it cannot be read.
    pub fn bytes(&self, name: &str, size_max: usize) -> Result<Vec<u8>, Error> {
        (self.read)(name, size_max).map_err(|why| Error::invalid(format!("{name}: {why}")))
    }
}

impl fmt::Debug for HubFolder<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.names).finish()
    }
}

/// Returns true if the files in a directory are those of a folder of the hub: `config.json`, and a file beside it that
/// only such folders have. `names` are files; those of directories in it have a path.
pub fn is_hub_folder<'a>(names: impl Iterator<Item = &'a str> + Clone) -> bool {
    let is_mark = |name: &str| MARKS.contains(&name) || name.ends_with(".safetensors") || is_graph_in_folder(name);
    let has_config = names.clone().any(|name| name == crate::CONFIG || name == MODULES);
    has_config && names.into_iter().any(is_mark)
}

fn is_graph_in_folder(name: &str) -> bool {
    name.strip_prefix("onnx/").is_some_and(|file| file.ends_with(".onnx"))
}

/// The pipeline of sentence-transformers.
pub const MODULES: &str = "modules.json";

/// Files that only folders of the hub have.
const MARKS: [&str; 8] = [
    "config_sentence_transformers.json",
    MODULES,
    "preprocessor_config.json",
    "pytorch_model.bin",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
];
