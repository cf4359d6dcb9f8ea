//! `deuteron init KIND NAME`: writes a repository to begin with, a model of Python alone or an ensemble of two. It never
//! overwrites anything. The files are as a user would write them, and run on Triton too.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, ValueHint, value_parser};

use crate::model::name::check_model_name;

/// The model to write and its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewModel {
    /// The kind of model.
    pub kind: NewModelKind,
    /// The name of the model and of its directory.
    pub name: String,
    /// The directory in which that directory is made.
    pub path: PathBuf,
}

/// The kinds of models that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewModelKind {
    /// An ensemble of two models, for texts.
    Ensemble,
    /// A classifier of image files.
    Image,
    /// Numbers in, numbers out.
    Python,
    /// A classifier of texts.
    Text,
}

/// Files by their path in the repository. `NAME` in paths and texts is the name of the model.
type Files = &'static [(&'static str, &'static str)];

impl NewModelKind {
    /// All of them, in the order of the help.
    pub const ALL: [Self; 4] = [Self::Python, Self::Text, Self::Image, Self::Ensemble];

    /// Returns the name of its command, and its effect.
    pub const fn command(self) -> (&'static str, &'static str) {
        match self {
            Self::Ensemble => {
                ("ensemble", "Write an ensemble of two Python models with labels: NAME, NAME_prepare, NAME_score")
            }
            Self::Image => ("image", "Write a Python model that classifies image files, with labels"),
            Self::Python => ("python", "Write a Python model to start from: NAME/config.pbtxt and NAME/1/model.py"),
            Self::Text => ("text", "Write a Python model that classifies texts, with labels"),
        }
    }

    const fn files(self) -> Files {
        match self {
            Self::Ensemble => &[
                ("NAME/README.md", include_str!("ensemble_model/README.md")),
                ("NAME/config.pbtxt", include_str!("ensemble_model/config.pbtxt")),
                // An ensemble has a version too, whose directory is empty.
                ("NAME/1/.gitkeep", ""),
                ("NAME_prepare/config.pbtxt", include_str!("ensemble_model/prepare.pbtxt")),
                ("NAME_prepare/1/model.py", include_str!("ensemble_model/prepare.py")),
                ("NAME_score/config.pbtxt", include_str!("ensemble_model/score.pbtxt")),
                ("NAME_score/labels.txt", include_str!("ensemble_model/labels.txt")),
                ("NAME_score/1/model.py", include_str!("ensemble_model/score.py")),
            ],
            Self::Image => &[
                ("NAME/README.md", include_str!("image_model/README.md")),
                ("NAME/config.pbtxt", include_str!("image_model/config.pbtxt")),
                ("NAME/labels.txt", include_str!("image_model/labels.txt")),
                ("NAME/1/model.py", include_str!("image_model/model.py")),
            ],
            Self::Python => &[
                ("NAME/config.pbtxt", include_str!("python_model/config.pbtxt")),
                ("NAME/1/model.py", include_str!("python_model/model.py")),
            ],
            Self::Text => &[
                ("NAME/README.md", include_str!("text_model/README.md")),
                ("NAME/config.pbtxt", include_str!("text_model/config.pbtxt")),
                ("NAME/labels.txt", include_str!("text_model/labels.txt")),
                ("NAME/1/model.py", include_str!("text_model/model.py")),
            ],
        }
    }

    /// Returns the end of the line of curl behind the URL of the model.
    const fn request(self) -> &'static str {
        match self {
            Self::Ensemble => {
                r#"-d '{"inputs":[{"name":"TEXT","shape":[1,1],"datatype":"BYTES","data":["what a day!"]}]}'"#
            }
            Self::Image => "-H 'Content-Type: image/jpeg' --data-binary @picture.jpg | tail -c 12 | od -An -t f4",
            Self::Python => r#"-d '{"inputs":[{"name":"INPUT","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}'"#,
            Self::Text => r#"-d '{"inputs":[{"name":"TEXT","shape":[1,1],"datatype":"BYTES","data":["a good day"]}]}'"#,
        }
    }
}

/// The arguments of a command of `deuteron init`.
pub(super) fn arguments() -> [Arg; 2] {
    let name = Arg::new("name").value_name("NAME").required(true).help("Name of the model and of its directory");
    let path = Arg::new("path").long("path").value_name("DIRECTORY").default_value(".").value_hint(ValueHint::DirPath);
    let path = path.value_parser(value_parser!(PathBuf)).help("The model repository in which it is made");
    [name, path]
}

/// Returns the model that the command and its arguments ask for. The error is one line for a person.
pub(super) fn read(command: &str, matches: &ArgMatches) -> Result<NewModel, String> {
    let kind = NewModelKind::ALL.into_iter().find(|kind| kind.command().0 == command);
    let kind = kind.ok_or("expected `deuteron init python NAME`")?;
    let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
    check_model_name(&name).map_err(|error| error.text().to_owned())?;
    Ok(NewModel { kind, name, path: matches.get_one::<PathBuf>("path").cloned().unwrap_or_default() })
}

impl NewModel {
    /// Writes the files and returns the next steps, for a person. Makes missing directories.
    ///
    /// # Errors
    /// One line for a person: a directory of the model exists already, or cannot be written. Nothing is overwritten then,
    /// and files that were written stay.
    pub fn write(&self) -> Result<String, String> {
        let failed = |directory: &Path, error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("'{}' exists, and nothing is overwritten; choose another name", directory.display())
            }
            _ => format!("cannot write '{}': {error}", directory.display()),
        };
        let files: Vec<_> = self.kind.files().iter().map(|(path, text)| (self.named(path), self.named(text))).collect();
        let mut directories: Vec<_> = files.iter().filter_map(|(path, _)| path.split('/').next()).collect();
        directories.dedup();
        let directories: Vec<_> = directories.into_iter().map(|name| self.path.join(name)).collect();
        if let Some(there) = directories.iter().find(|directory| directory.exists()) {
            return Err(failed(there, io::ErrorKind::AlreadyExists.into()));
        }
        for directory in &directories {
            let made = fs::create_dir_all(&self.path).and_then(|()| fs::create_dir(directory));
            made.map_err(|error| failed(directory, error))?;
        }
        for (path, text) in &files {
            let path = self.path.join(path);
            write_new(&path, text).map_err(|error| failed(&path, error))?;
        }
        Ok(self.next_steps(&files))
    }

    fn named(&self, text: &str) -> String {
        match self.kind {
            // Its texts are for any name.
            NewModelKind::Python if !text.starts_with("NAME/") => text.to_owned(),
            _ => text.replace("NAME", &self.name),
        }
    }

    fn next_steps(&self, files: &[(String, String)]) -> String {
        let (name, shown) = (&self.name, |path: &str| self.path.join(path).display().to_string());
        let written: Vec<_> = files.iter().map(|(path, _)| shown(path)).collect();
        let written = match written.as_slice() {
            [first, second] => format!("{first} and {second}"),
            all => format!("\n  {}", all.join("\n  ")),
        };
        // An ensemble is served with its steps, which lie beside it.
        let served = match self.kind {
            NewModelKind::Ensemble => self.path.display().to_string(),
            _ => shown(name),
        };
        let code =
            files.iter().find(|(path, _)| path.ends_with(".py")).map_or_else(String::new, |(path, _)| shown(path));
        let request = self.kind.request();
        let flags = "--model-control-mode=poll --repository-poll-secs=1";
        format!(
            "Wrote {written}.\n\n\
             Serve it (the Python must have numpy):\n  deuteron serve {served} {flags}\n\n\
             Ask it:\n  curl -s localhost:8000/v2/models/{name}/infer {request}\n\n\
             Then edit {code}: the server loads it again.\n"
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
        for kind in NewModelKind::ALL {
            let path = std::env::temp_dir().join(format!("deuteron-init-{}-{}", kind.command().0, std::process::id()));
            let _ = fs::remove_dir_all(&path);
            let model = NewModel { kind, name: "doubler".to_owned(), path: path.join("models/new") };
            let next = model.write().unwrap();
            let directory = model.path.join("doubler");
            for text in ["deuteron serve ", "/v2/models/doubler/infer", "/1/model.py"] {
                assert!(next.contains(text) && !next.contains("NAME"), "{next}");
            }
            for (file, text) in kind.files() {
                let file = model.path.join(file.replace("NAME", "doubler"));
                assert_eq!(fs::read_to_string(&file).unwrap().len() > 10, text.len() > 10, "{}", file.display());
                assert!(!fs::read_to_string(&file).unwrap().contains("NAME_"), "{}", file.display());
                fs::write(file, "mine").unwrap();
            }
            let want = format!("'{}' exists, and nothing is overwritten; choose another name", directory.display());
            assert_eq!(model.write(), Err(want));
            assert_eq!(fs::read_to_string(directory.join("config.pbtxt")).unwrap(), "mine");
            fs::write(path.join("file"), "").unwrap();
            let text = NewModel { path: path.join("file"), ..model }.write().unwrap_err();
            assert!(text.contains("file"), "{text}");
            fs::remove_dir_all(&path).unwrap();
        }
    }

    #[test]
    fn the_configurations_are_ones_that_the_server_takes() {
        for kind in NewModelKind::ALL {
            let configs = kind.files().iter().filter(|(path, _)| path.ends_with("config.pbtxt"));
            for (path, config) in configs {
                let config = config.replace("NAME", "doubler");
                let name = path.replace("NAME", "doubler").replace("/config.pbtxt", "");
                let draft = ConfigDraft::new(&name, Some(config.as_bytes()), &[]).unwrap();
                assert!(draft.notes().is_empty(), "{path}: {:?}", draft.notes());
                let labels: Vec<_> = draft.label_filenames().into_iter().map(str::to_owned).collect();
                let text = |file: &String| kind.files().iter().any(|(path, _)| path.ends_with(file.as_str()));
                assert!(labels.iter().all(text), "{path}: {labels:?}");
                let known = labels.into_iter().map(|file| (file, Default::default())).collect();
                let spec = draft.complete(None, &known, CompletionRules::default()).unwrap();
                let Some(python) = &spec.python else { continue };
                assert_eq!(python.file, "model.py");
                let code = path.replace("config.pbtxt", "1/model.py");
                let (_, code) = kind.files().iter().find(|(path, _)| *path == code).unwrap();
                let mut tensors = spec.inputs.iter().chain(&spec.outputs);
                assert!(tensors.all(|tensor| code.contains(&format!("\"{}\"", tensor.name))), "{path}");
                assert!(spec.parameters.keys().all(|key| code.contains(&format!("\"{key}\""))));
            }
        }
    }
}
