//! The model repository extension as both protocols share it: what a client may order. Names and
//! the paths of files are checked here, once.

use bytes::Bytes;

use crate::error::Error;
use crate::limits::NAME_SIZE_MAX;
use crate::model::repository::version;
use crate::protocol::route::is_model_name;

/// What a client orders of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepositoryOrder {
    /// The index.
    Index {
        /// Only what is ready.
        only_ready: bool,
    },
    /// That a model be loaded, or loaded again.
    Load(LoadOrder),
    /// That a model serve no more.
    Unload {
        /// Its name.
        name: String,
        /// Whether the models that only it needs go with it.
        with_dependents: bool,
    },
}

/// A load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOrder {
    /// The model's name.
    pub name: String,
    /// A configuration, as JSON, instead of the one that lies in the repository.
    pub config: Option<String>,
    /// Files by their path beneath the model's directory, instead of all that lie there.
    pub files: Vec<(String, Bytes)>,
}

impl RepositoryOrder {
    /// Bytes that it holds.
    pub fn size(&self) -> usize {
        match self {
            Self::Index { .. } => 0,
            Self::Load(load) => {
                let files = load.files.iter().map(|(path, contents)| path.len().saturating_add(contents.len()));
                files.fold(load.config.as_ref().map_or(0, String::len), usize::saturating_add)
            }
            Self::Unload { name, .. } => name.len(),
        }
    }
}

/// What is asked of Triton with a control mode other than explicit.
pub fn not_explicit() -> Error {
    Error::unavailable("explicit model load / unload is not allowed if polling is enabled")
}

/// Triton knows the field and takes no value.
pub fn named_repository() -> Error {
    Error::unsupported("'repository_name' specification is not supported")
}

/// The name of a model that may be loaded; the texts are Triton's where it refuses one too.
pub fn model_name(name: &str) -> Result<String, Error> {
    if name.is_empty() {
        return Err(Error::invalid("Model name cannot be empty. Please enter a valid name to deploy."));
    }
    if is_model_name(name) {
        return Ok(name.to_owned());
    }
    let is_traversal = name.contains(['/', '\\']) || name == "." || name == "..";
    Err(Error::invalid(if is_traversal {
        format!("invalid model name '{name}', model name must not contain path traversal characters")
    } else {
        format!("invalid model name '{name}', expected 1 to {NAME_SIZE_MAX} letters, digits, '.', '_' and '-'")
    }))
}

/// The path of a file that a client brings, `VERSION/NAME`: nothing but a version's directory and
/// plain names beneath it.
pub fn file_path(parameter: &str) -> Result<String, Error> {
    let path = parameter.strip_prefix("file:").unwrap_or(parameter);
    let mut parts = path.split('/');
    let begins = parts.next().and_then(version).is_some();
    let rest: Vec<_> = parts.collect();
    if begins && !rest.is_empty() && rest.len() <= FILE_DEPTH_MAX && rest.iter().all(|part| is_model_name(part)) {
        return Ok(path.to_owned());
    }
    Err(Error::invalid(format!(
        "'{path}' is no path of a file in a version's directory: expected VERSION/NAME, where each name has 1 to \
         {NAME_SIZE_MAX} letters, digits, '.', '_' and '-'"
    )))
}

/// Directories below a version's that a file may lie in, itself counted: weights beside the model.
const FILE_DEPTH_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_paths_lie_in_a_version() {
        let name = |name: &str| model_name(name).map_err(|error| error.text().to_owned());
        assert_eq!(name("a.b-c_1"), Ok("a.b-c_1".to_owned()));
        assert!(name("").unwrap_err().starts_with("Model name cannot be empty."));
        for bad in ["..", ".", "a/b", "/etc", "..\\x"] {
            let want = format!("invalid model name '{bad}', model name must not contain path traversal characters");
            assert_eq!(name(bad), Err(want));
        }
        assert!(name("a b").unwrap_err().contains("expected 1 to 255 letters"));
        assert!(name(&"n".repeat(256)).is_err());
        for good in ["file:1/model.onnx", "file:20/weights/a.bin"] {
            assert_eq!(file_path(good).as_deref(), Ok(&good[5..]));
        }
        for bad in [
            "file:",
            "file:1",
            "file:1/",
            "file:model.onnx",
            "file:/1/a",
            "file:1/../a",
            "file:1//a",
            "file:01/a",
            "file:1/a/b/c/d/e",
        ] {
            assert!(file_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_size_of_an_order_is_what_it_brings() {
        let files = vec![("1/a".to_owned(), Bytes::from_static(b"1234"))];
        let load = LoadOrder { name: "m".to_owned(), config: Some("{}".to_owned()), files };
        assert_eq!(RepositoryOrder::Load(load).size(), 2 + 3 + 4);
        assert_eq!(RepositoryOrder::Index { only_ready: false }.size(), 0);
    }
}
