//! A deployment of tritonserver as people keep it: a Dockerfile, a compose file, or a command line. Read as text into the
//! flags, the paths and the packages that it names, and written as that of this server. Called by `deuteron check`.
//! Pure: the caller reads the files.

mod command;
mod compose;
mod dockerfile;
mod flag_finding;
mod shell;

use crate::Settings;

pub use dockerfile::{NewImage, rewritten, written};
pub use flag_finding::{FlagFinding, FlagOutcome, read_flags};
pub use shell::quoted;

/// The parts of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    /// The image that it runs or builds on.
    pub image: Option<String>,
    /// The words behind `tritonserver`; `None` if no such command was found.
    pub command: Option<Vec<String>>,
    /// Paths of the host in the container, in the order in which they come.
    pub paths: Vec<PathMapping>,
    /// The packages that pip installs, as they are written.
    pub packages: Vec<String>,
    /// The files of requirements that pip reads.
    pub requirement_files: Vec<String>,
    /// The packages of the system.
    pub system_packages: Vec<String>,
    /// The variables of the environment.
    pub variables: Vec<(String, String)>,
    /// Parts that were not understood, for a person.
    pub notes: Vec<String>,
}

/// A deployment as it was read, with the fate of its flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadDeployment {
    /// Its parts.
    pub deployment: Deployment,
    /// The flags of its command, as this server takes them.
    pub flags: Vec<FlagFinding>,
    /// The text of its Dockerfile, if it has one.
    pub dockerfile: Option<String>,
}

/// The request of `deuteron check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckOrder {
    /// The settings of the server whose models are checked; without a repository if a deployment's is not on this machine.
    pub settings: Settings,
    /// True for a report in JSON.
    pub is_json: bool,
    /// The deployment that the settings came from.
    pub source: Option<ReadDeployment>,
}

/// A path of the host that the container has at another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathMapping {
    /// The path of the host, from the folder of the Dockerfile or the working directory.
    pub host: String,
    /// The path in the container.
    pub container: String,
}

/// Returns true if a file's name is that of a Dockerfile, a compose file or a script. A text file may be a model.
pub fn is_deployment_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let ends = [".bash", ".containerfile", ".dockerfile", ".sh", ".yaml", ".yml"];
    ["containerfile", "dockerfile"].iter().any(|begin| lower.starts_with(begin))
        || ends.iter().any(|end| lower.ends_with(end))
}

impl Deployment {
    /// Reads a file of any of the three kinds.
    pub fn read(text: &str) -> Self {
        if Self::is_dockerfile(text) {
            return dockerfile::read(text);
        }
        if compose::is_compose(text) {
            return compose::read(text);
        }
        Self::of_commands(&shell::commands(text))
    }

    /// Returns true if a text is a Dockerfile.
    pub fn is_dockerfile(text: &str) -> bool {
        dockerfile::is_dockerfile(text)
    }

    /// Reads the words of a command line; one word alone may be the whole of it, in quotes.
    pub fn of_words(words: &[String]) -> Self {
        match words {
            [one] if one.contains(char::is_whitespace) => Self::of_commands(&shell::commands(one)),
            _ => Self::of_commands(&[words.to_vec()]),
        }
    }

    fn of_commands(commands: &[Vec<String>]) -> Self {
        let mut deployment = Self::default();
        command::add_commands(&mut deployment, commands);
        deployment
    }

    /// Returns this deployment with the parts of another, whose image and command hold.
    pub fn joined(mut self, other: Self) -> Self {
        // `docker build` gives an image a name that says less than what it is built on.
        self.image = self.image.or(other.image);
        self.command = other.command.or(self.command);
        self.paths.extend(other.paths);
        self.packages.extend(other.packages);
        self.requirement_files.extend(other.requirement_files);
        self.system_packages.extend(other.system_packages);
        self.variables.extend(other.variables);
        let is_found = self.command.is_some();
        self.notes.extend(other.notes);
        self.notes.retain(|note| !(is_found && note.contains("tritonserver behind --")));
        self
    }

    /// Returns the paths of the host that a path of the container stands for, the last mapping first: those around it, or else
    /// those beneath it, if models come one by one.
    pub fn host_paths(&self, path: &str) -> Vec<String> {
        let path = path.trim_end_matches('/');
        let around = self.paths.iter().rev().filter_map(|mapping| {
            let rest = path.strip_prefix(mapping.container.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then(|| join(&mapping.host, rest))
        });
        let around: Vec<_> = around.collect();
        if !around.is_empty() {
            return around;
        }
        let is_beneath =
            |mapping: &&PathMapping| mapping.container.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        self.paths.iter().filter(is_beneath).map(|mapping| mapping.host.clone()).collect()
    }

    /// Returns the version of Python in Triton's image: `3.12` since the release 24.11, before that `3.10`.
    pub fn python_version(&self) -> &'static str {
        let tag = self.image.as_ref().and_then(|image| image.rsplit_once("tritonserver:"));
        let release = tag.and_then(|(_, tag)| {
            let mut parts = tag.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
            Some((parts.next()?, parts.next()?))
        });
        if release.is_some_and(|release| release < (24, 11)) { "3.10" } else { "3.12" }
    }
}

fn join(host: &str, rest: &str) -> String {
    match rest.trim_start_matches('/') {
        "" => host.to_owned(),
        rest => format!("{}/{rest}", host.trim_end_matches('/')),
    }
}

/// Returns the names of the packages of a file of requirements.
pub fn requirements(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty() && !line.starts_with(['#', '-'])).map(str::to_owned).collect()
}

/// Returns the name of a package without its version, its extras and its spelling: `torch` of `Torch[x]==2.1`.
pub fn package_name(requirement: &str) -> String {
    let requirement = requirement.split(" @ ").next().unwrap_or_default();
    // A file or an address ends with its name.
    let requirement = requirement.rsplit('/').next().unwrap_or_default();
    let end = requirement.find(|letter: char| !letter.is_alphanumeric() && !"-_.".contains(letter));
    let name = requirement.get(..end.unwrap_or(requirement.len())).unwrap_or_default();
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(host: &str, container: &str) -> PathMapping {
        PathMapping { host: host.to_owned(), container: container.to_owned() }
    }

    #[test]
    fn the_kind_of_a_file_is_told_by_its_text_and_its_name_says_that_it_is_one() {
        let command = |text: &str| Deployment::read(text).command.map(|words| words.join(" "));
        assert_eq!(command("FROM a\nCMD tritonserver --id=a\n").as_deref(), Some("--id=a"));
        assert_eq!(command("services:\n  a:\n    command: tritonserver --id=b\n").as_deref(), Some("--id=b"));
        assert_eq!(command("#!/bin/sh\ntritonserver \\\n  --id=c\n").as_deref(), Some("--id=c"));
        for name in ["Dockerfile", "Dockerfile.gpu", "triton.Dockerfile", "Containerfile", "compose.yaml", "run.sh"] {
            assert!(is_deployment_name(name), "{name}");
        }
        for name in ["models", "model.onnx", "model.txt", "xgboost.json"] {
            assert!(!is_deployment_name(name), "{name}");
        }
        let quoted = Deployment::of_words(&["tritonserver --id=d".to_owned()]);
        assert_eq!(quoted, Deployment::of_words(&["tritonserver", "--id=d"].map(str::to_owned)));
    }

    #[test]
    fn a_path_of_the_container_is_found_on_the_host() {
        let deployment = |paths: &[PathMapping]| Deployment { paths: paths.to_vec(), ..Deployment::default() };
        let check = |paths: &[PathMapping], wanted: &str, want: &[&str]| {
            assert_eq!(deployment(paths).host_paths(wanted), want, "{wanted}");
        };
        check(&[path("repo", "/models")], "/models/", &["repo"]);
        check(&[path(".", "/app")], "/app/models", &["./models"]);
        check(&[path(".", "/app"), path("m", "/app/models")], "/app/models", &["m", "./models"]);
        check(&[path("a", "/models/a"), path("b", "/models/b")], "/models", &["a", "b"]);
        check(&[path("a", "/models2")], "/models", &[]);
    }

    #[test]
    fn a_build_and_a_run_are_one_deployment() {
        let build = Deployment::read(
            "FROM nvcr.io/nvidia/tritonserver:24.11-py3\nRUN pip install torch\nCMD [\"./start.sh\"]\n",
        );
        assert_eq!((build.notes.len(), build.python_version()), (1, "3.12"));
        let run = Deployment::of_words(&["docker run -v ./m:/models own:1 tritonserver --id=x".to_owned()]);
        let joined = build.joined(run);
        assert_eq!(joined.image.as_deref(), Some("nvcr.io/nvidia/tritonserver:24.11-py3"));
        assert_eq!(joined.command, Some(vec!["--id=x".to_owned()]));
        assert!(joined.notes.is_empty() && joined.packages == ["torch"] && joined.host_paths("/models") == ["./m"]);
        assert_eq!(Deployment::read("FROM x/tritonserver:23.10-py3\n").python_version(), "3.10");
    }

    #[test]
    fn requirements_are_named_as_the_index_names_them() {
        let text = "# a comment\n-r other.txt\nTorch[cpu]==2.1.0 # why\n\nscikit_learn>=1\nx @ https://y/x.whl\ngit+https://host/a/b.git\n";
        let names: Vec<_> = requirements(text).iter().map(|line| package_name(line)).collect();
        assert_eq!(names, ["torch", "scikit-learn", "x", "b-git"]);
    }
}
