//! Libraries with operators for ONNX models (`model_operations.op_library_filename`). ONNX Runtime opens one for each session
//! and calls its function `RegisterCustomOps`; their code runs inside the server, or inside the model's own process with the
//! parameter `isolation`.

use std::path::{Path, PathBuf};

use ort::session::builder::SessionBuilder;

use base::error::Error;
use model::ModelSpec;

/// A library with operators.
#[derive(Debug)]
pub(super) struct OperatorLibrary {
    /// As the configuration has it: errors show this, and no path of the server.
    name: String,
    path: PathBuf,
}

impl OperatorLibrary {
    /// Has a session know its operators.
    pub(super) fn register(&self, builder: SessionBuilder) -> ort::Result<SessionBuilder> {
        builder.with_operator_library(&self.path).map_err(|error| {
            let text = error.message().replace(&*self.path.to_string_lossy(), &self.name);
            ort::Error::new(format!("model_operations.op_library_filename '{}': {text}", self.name))
        })
    }
}

/// The libraries of a model, whose version is in `directory`.
///
/// # Errors
/// Invalid if one that is named by a path is not there.
pub(super) fn find_all(spec: &ModelSpec, directory: &Path) -> Result<Vec<OperatorLibrary>, Error> {
    let names = spec.optimization.operator_libraries.iter();
    names
        .map(|name| {
            let path = find(name, directory, &|path| path.is_file());
            let path = path.ok_or_else(|| {
                Error::invalid(format!(
                    "model_operations.op_library_filename of model '{}' names '{name}', which is not there: give an absolute \
                     path, or put the library beside the model",
                    spec.name
                ))
            })?;
            Ok(OperatorLibrary { name: name.clone(), path })
        })
        .collect()
}

/// The path of a library: beside the model, or in the model's directory; otherwise as dlopen(3) takes it, which is what Triton's
/// backend does (`onnxruntime.cc`): below the working directory if there is a slash, otherwise by the loader's search.
/// `None` if a path with a slash leads to no file.
fn find(name: &str, directory: &Path, is_file: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    let given = Path::new(name);
    let beside = [Some(directory), directory.parent()].into_iter().flatten().map(|folder| folder.join(given));
    let found = beside.into_iter().find(|path| is_file(path));
    found.or_else(|| (!name.contains('/') || is_file(given)).then(|| given.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_searched_for_beside_the_model_first() {
        let check = |name: &str, there: &[&str], want: Option<&str>| {
            let is_file = |path: &Path| there.iter().any(|file| Path::new(file) == path);
            assert_eq!(find(name, Path::new("/r/m/1"), &is_file).as_deref(), want.map(Path::new), "{name}");
        };
        check("a.so", &["/r/m/1/a.so", "/r/m/a.so"], Some("/r/m/1/a.so"));
        check("a.so", &["/r/m/a.so", "a.so"], Some("/r/m/a.so"));
        check("a.so", &[], Some("a.so"));
        check("./a.so", &["/r/m/1/./a.so"], Some("/r/m/1/./a.so"));
        check("ops/a.so", &["ops/a.so"], Some("ops/a.so"));
        check("ops/a.so", &[], None);
        check("/opt/a.so", &["/opt/a.so", "/r/m/1/a.so"], Some("/opt/a.so"));
        check("/opt/a.so", &[], None);
    }
}
