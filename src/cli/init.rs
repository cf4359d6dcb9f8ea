//! `deuteron init python NAME`: writes a Python model to begin with. It never overwrites anything.
//! The files are as a user would write them, and run on Triton too.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, ValueHint, value_parser};

use crate::model::name::check_model_name;

/// The model to write and its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewModel {
    /// The name of the model and of its directory.
    pub name: String,
    /// The directory in which that directory is made.
    pub path: PathBuf,
}

/// The files, by their path in the model's directory.
const FILES: [(&str, &str); 2] = [
    ("config.pbtxt", include_str!("python_model/config.pbtxt")),
    ("1/model.py", include_str!("python_model/model.py")),
];

/// The arguments of `deuteron init python`.
pub(super) fn arguments() -> [Arg; 2] {
    let name = Arg::new("name").value_name("NAME").required(true).help("Name of the model and of its directory");
    let path = Arg::new("path").long("path").value_name("DIRECTORY").default_value(".").value_hint(ValueHint::DirPath);
    let path = path.value_parser(value_parser!(PathBuf)).help("The model repository in which it is made");
    [name, path]
}

/// Returns the model that the arguments ask for. The error is one line for a person.
pub(super) fn read(matches: &ArgMatches) -> Result<NewModel, String> {
    let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
    check_model_name(&name).map_err(|error| error.text().to_owned())?;
    Ok(NewModel { name, path: matches.get_one::<PathBuf>("path").cloned().unwrap_or_default() })
}

impl NewModel {
    /// Writes the files and returns the next steps, for a person. Makes missing directories.
    ///
    /// # Errors
    /// One line for a person: the model's directory exists already, or cannot be written. Nothing
    /// is overwritten then, and files that were written stay.
    pub fn write(&self) -> Result<String, String> {
        let directory = self.path.join(&self.name);
        let shown = directory.display().to_string();
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("'{shown}' exists, and nothing is overwritten; choose another name")
            }
            _ => format!("cannot write '{shown}': {error}"),
        };
        fs::create_dir_all(&self.path).and_then(|()| fs::create_dir(&directory)).map_err(failed)?;
        for (path, text) in FILES {
            write_new(&directory.join(path), text).map_err(failed)?;
        }
        Ok(self.next_steps(&directory))
    }

    fn next_steps(&self, directory: &Path) -> String {
        let (name, directory) = (&self.name, directory.display());
        let request = r#"{"inputs":[{"name":"INPUT","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}"#;
        format!(
            "Wrote {directory}/config.pbtxt and {directory}/1/model.py.\n\n\
             Serve it (the Python must have numpy):\n  deuteron serve {directory} --model-control-mode=poll --repository-poll-secs=1\n\n\
             Ask it:\n  curl -s localhost:8000/v2/models/{name}/infer -d '{request}'\n\n\
             Then edit {directory}/1/model.py: the server loads it again.\n"
        )
    }
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{CompletionRules, ConfigDraft};

    #[test]
    fn a_new_model_is_written_once_and_never_over_another() {
        let path = std::env::temp_dir().join(format!("deuteron-init-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let model = NewModel { name: "doubler".to_owned(), path: path.join("models/new") };
        let next = model.write().unwrap();
        let directory = model.path.join("doubler");
        for text in ["deuteron serve ", "/v2/models/doubler/infer", "doubler/1/model.py"] {
            assert!(next.contains(text), "{next}");
        }
        for (file, text) in FILES {
            assert_eq!(fs::read_to_string(directory.join(file)).unwrap(), text);
            fs::write(directory.join(file), "mine").unwrap();
        }
        let want = format!("'{}' exists, and nothing is overwritten; choose another name", directory.display());
        assert_eq!(model.write(), Err(want));
        assert_eq!(fs::read_to_string(directory.join("config.pbtxt")).unwrap(), "mine");
        fs::write(path.join("file"), "").unwrap();
        let text = NewModel { path: path.join("file"), ..model }.write().unwrap_err();
        assert!(text.contains("file"), "{text}");
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn the_configuration_is_one_that_the_server_takes() {
        let [(_, config), (_, code)] = FILES;
        let draft = ConfigDraft::new("doubler", Some(config.as_bytes()), &[]).unwrap();
        assert!(draft.notes().is_empty(), "{:?}", draft.notes());
        let spec = draft.complete(None, &Default::default(), CompletionRules::default()).unwrap();
        assert_eq!(spec.python.map(|python| python.file.clone()).as_deref(), Some("model.py"));
        let named =
            spec.inputs.iter().chain(&spec.outputs).all(|tensor| code.contains(&format!("\"{}\"", tensor.name)));
        assert!(named, "the code has the tensors of the configuration");
        assert!(spec.parameters.keys().all(|key| code.contains(&format!("\"{key}\""))));
    }
}
