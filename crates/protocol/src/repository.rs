//! The model repository extension, shared by REST and gRPC: the operations a client can request. Model names and
//! file paths are checked here, once.

use bytes::Bytes;

use base::error::Error;
use base::limits::NAME_SIZE_MAX;
use model::name::{MODEL_NAME_RULE, is_model_name, is_plain_name};
use model::repository::version;

/// A repository operation that a client requests. The control thread carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepositoryOrder {
    /// List the models.
    Index {
        /// List only ready versions.
        only_ready: bool,
    },
    /// Load a model, or reload it.
    Load(LoadOrder),
    /// Unload a model.
    Unload {
        /// Its name.
        name: String,
        /// Also unload the models that no other model needs (`unload_dependents`).
        with_dependents: bool,
    },
}

/// A request to load one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOrder {
    /// The model's name.
    pub name: String,
    /// A configuration in JSON that replaces the one in the repository.
    pub config: Option<String>,
    /// Files, by their path below the model's directory, that replace its contents.
    pub files: Vec<(String, Bytes)>,
    /// The place where it is looked for.
    pub place: LoadPlace,
}

/// The place where the model of a load is looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoadPlace {
    /// In the repositories of the server.
    #[default]
    Repositories,
    /// At a path of the host of the server, where its directory may have any name.
    Hosted {
        /// The host's name of the model.
        name: String,
        /// The path.
        path: String,
    },
    /// Among the models at such a path, else in the repositories: it is a step of an ensemble that is there.
    Beside(String),
}

impl LoadPlace {
    /// The path of the host.
    pub fn root(&self) -> Option<&str> {
        match self {
            Self::Repositories => None,
            Self::Hosted { path, .. } | Self::Beside(path) => Some(path),
        }
    }
}

impl RepositoryOrder {
    /// The model that it is about.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Index { .. } => None,
            Self::Load(load) => Some(&load.name),
            Self::Unload { name, .. } => Some(name),
        }
    }

    /// Bytes of text and files in it, counted against the limit on pending operations.
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

/// Triton's refusal of a load or unload when the control mode is not explicit.
pub fn not_explicit() -> Error {
    Error::unavailable("explicit model load / unload is not allowed if polling is enabled")
}

/// Triton's refusal of `repository_name`: the field exists, but no value is supported.
pub fn named_repository() -> Error {
    Error::unsupported("'repository_name' specification is not supported")
}

/// Checks the name of a model to load or unload. The texts are Triton's for names that it refuses too.
///
/// # Errors
///
/// `InvalidArgument` if the name is empty or not valid ([`is_model_name`]).
pub fn model_name(name: &str) -> Result<String, Error> {
    let bare = name.trim();
    if bare.is_empty() {
        return Err(Error::invalid("Model name cannot be empty. Please enter a valid name to deploy."));
    }
    if is_model_name(name) {
        return Ok(name.to_owned());
    }
    let is_traversal = name.contains(['/', '\\']) || bare == "." || bare == "..";
    Err(Error::invalid(if is_traversal {
        format!("invalid model name '{name}', model name must not contain path traversal characters")
    } else {
        format!("invalid model name '{}': {MODEL_NAME_RULE}", name.escape_debug())
    }))
}

/// Checks the path of an uploaded file, `[file:]VERSION/NAME`: a version directory and plain names below it, so
/// that it cannot leave the model's directory.
///
/// # Errors
///
/// `InvalidArgument` for any other path, or one deeper than four names below the version.
pub fn file_path(parameter: &str) -> Result<String, Error> {
    let path = parameter.strip_prefix("file:").unwrap_or(parameter);
    let mut parts = path.split('/');
    let has_version = parts.next().and_then(version).is_some();
    let rest: Vec<_> = parts.collect();
    if has_version && !rest.is_empty() && rest.len() <= FILE_DEPTH_MAX && rest.iter().all(|part| is_plain_name(part)) {
        return Ok(path.to_owned());
    }
    Err(Error::invalid(format!(
        "'{path}' is not a file path in a version directory: expected VERSION/NAME, where each name has 1 to \
         {NAME_SIZE_MAX} letters, digits, '.', '_' and '-'"
    )))
}

/// Refuses a load whose files hold code, for a server that does not let clients upload code.
///
/// # Errors
///
/// `InvalidArgument` for the first file whose name says that it is code ([`holds_code`]), with the
/// flag that allows it.
pub fn check_without_code(load: &LoadOrder) -> Result<(), Error> {
    match load.files.iter().find(|(path, _)| holds_code(path)) {
        None => Ok(()),
        Some((path, _)) => Err(Error::invalid(format!(
            "'{path}' may hold code, which a load request may bring only with --allow-model-code-upload=true"
        ))),
    }
}

/// Returns true if a file, by its name, is code or is run as code when it is opened: Python,
/// libraries, pickles (which most weights of PyTorch are), and archives of any of them.
pub fn holds_code(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    // A library may have its version after its extension, and an archive its compression.
    name.split('.').skip(1).any(|part| CODE_EXTENSIONS.contains(&part))
}

/// Parts of a file's name that mark it as code.
const CODE_EXTENSIONS: [&str; 20] = [
    "7z", "ckpt", "conda", "egg", "joblib", "pickle", "pkl", "pt", "pt2", "pth", "py", "pyc", "pyd", "pyo", "pyw",
    "so", "tar", "tgz", "whl", "zip",
];

/// Names in a path below its version directory, the file's own included: enough for weights in folders.
const FILE_DEPTH_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_paths_lie_in_a_version() {
        let name = |name: &str| model_name(name).map_err(|error| error.text().to_owned());
        assert_eq!(name("a.b-c_1"), Ok("a.b-c_1".to_owned()));
        assert!(["", " "].iter().all(|empty| name(empty).unwrap_err().starts_with("Model name cannot be empty.")));
        for bad in ["..", ".", " ..", "a/b", "/etc", "..\\x"] {
            let want = format!("invalid model name '{bad}', model name must not contain path traversal characters");
            assert_eq!(name(bad), Err(want));
        }
        assert_eq!(name("nop_FP32_-1,-1"), Ok("nop_FP32_-1,-1".to_owned()));
        assert!(name("a\"b").unwrap_err().contains("of 1 to 255 bytes"));
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
    fn files_with_code_are_known_by_their_names() {
        let code = "1/model.py 1/x.PYC 1/model.pt 1/model.pt2 1/libx.so 1/libx.so.1.2 1/env.tar.gz 1/e.tgz 1/a.whl 1/a.zip \
                    1/w.pkl 1/w.joblib 1/deep/er/w.pth 1/py.py";
        assert!(code.split_whitespace().all(holds_code));
        let data =
            "1/model.onnx 1/py 1/so 1/labels.txt 1/model.json 1/model.safetensors 1/weights.bin 1/copy 1/a.py.d/x";
        assert!(!data.split_whitespace().any(holds_code));
        let load = |path: &str| {
            let files = vec![("1/model.onnx".to_owned(), Bytes::new()), (path.to_owned(), Bytes::new())];
            check_without_code(&LoadOrder { files, ..LoadOrder::default() }).map_err(|error| error.text().to_owned())
        };
        assert_eq!(load("1/labels.txt"), Ok(()));
        let want =
            "'1/model.py' may hold code, which a load request may bring only with --allow-model-code-upload=true";
        assert_eq!(load("1/model.py"), Err(want.to_owned()));
    }

    #[test]
    fn the_size_of_an_order_is_what_it_brings() {
        let files = vec![("1/a".to_owned(), Bytes::from_static(b"1234"))];
        let load = LoadOrder { name: "m".to_owned(), config: Some("{}".to_owned()), files, ..LoadOrder::default() };
        assert_eq!(RepositoryOrder::Load(load).size(), 2 + 3 + 4);
        assert_eq!(RepositoryOrder::Index { only_ready: false }.size(), 0);
    }
}
