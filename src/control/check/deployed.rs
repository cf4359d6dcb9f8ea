//! The part of the report on a deployment of tritonserver: its flags, and the command and the Dockerfile of this server
//! that do the same.

use std::fmt::Write as _;

use crate::control::check::CheckedModel;
use crate::control::check::cure::MissingKind;
use crate::model::platform::{ONNX_BACKEND, PYTHON_BACKEND};
use crate::settings::deployment::{
    Deployment, FlagFinding, FlagOutcome, NewImage, ReadDeployment, package_name, quoted, rewritten, written,
};

/// A deployment, and the packages that its models need.
#[derive(Clone, Debug)]
pub struct CheckedDeployment {
    /// Its parts.
    pub deployment: Deployment,
    /// The flags of its command.
    pub flags: Vec<FlagFinding>,
    dockerfile: Option<String>,
    /// Packages that the image of this server needs beside those that are installed.
    added: Vec<String>,
}

impl CheckedDeployment {
    /// Adds the packages that these models need.
    pub fn new(source: ReadDeployment, models: &[CheckedModel]) -> Self {
        let ReadDeployment { deployment, flags, dockerfile } = source;
        let installed: Vec<_> = deployment.packages.iter().map(|package| package_name(package)).collect();
        let mut added: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            if !installed.iter().chain(&added).any(|have| have == name) {
                added.push(name.to_owned());
            }
        };
        let has = |backend: &str| models.iter().any(|model| model.backend == backend);
        if has(PYTHON_BACKEND) {
            add("numpy");
        }
        if has(ONNX_BACKEND) && !installed.iter().any(|package| package.starts_with("onnxruntime")) {
            add("onnxruntime");
        }
        let parts = models.iter().flat_map(|model| &model.missing);
        parts.filter(|part| part.kind == MissingKind::Package).for_each(|part| add(&part.name));
        Self { deployment, flags, dockerfile, added }
    }

    /// Returns true if the server would not start with a flag.
    pub fn has_refused_flag(&self) -> bool {
        self.flags.iter().any(|flag| matches!(flag.outcome, FlagOutcome::Refused(_)))
    }

    /// Returns the words of the server's command: the flags that have an effect.
    fn words(&self) -> Vec<String> {
        let taken = self.flags.iter().filter(|flag| flag.outcome == FlagOutcome::Taken);
        // The backends of Triton's image are not in the new one.
        let kept =
            taken.filter(|flag| !(flag.name == "backend-directory" && flag.value.starts_with("/opt/tritonserver")));
        let begin = ["deuteron", "serve"].map(str::to_owned);
        begin.into_iter().chain(kept.map(|flag| flag.text.clone())).chain(["--compat=triton".to_owned()]).collect()
    }

    /// Returns the command for a shell.
    pub fn command_line(&self) -> String {
        self.words().iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Returns the Dockerfile.
    pub fn dockerfile(&self) -> String {
        let new = NewImage {
            base: format!("python:{}-slim", self.deployment.python_version()),
            program: PROGRAM.to_owned(),
            packages: self.added.clone(),
            command: self.words(),
        };
        match &self.dockerfile {
            Some(text) => rewritten(text, &new),
            None => written(&self.deployment, &new),
        }
    }

    /// Writes its part of the report.
    pub fn write(&self, out: &mut String) {
        let mut line = |text: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{text}");
        };
        let unlike: Vec<_> = self.flags.iter().filter(|flag| flag.outcome != FlagOutcome::Taken).collect();
        line(&format!("\n{} flags are taken as they are", self.flags.len() - unlike.len()));
        for flag in unlike {
            match &flag.outcome {
                FlagOutcome::Ignored(why) => line(&format!("  ignored: {}: {why}", flag.text)),
                FlagOutcome::Refused(why) => line(&format!("  refused: {}: {why}; remove it", flag.text)),
                FlagOutcome::Taken => {}
            }
        }
        self.deployment.notes.iter().for_each(|note| line(&format!("  note: {note}")));
        line(&format!("\nThe same with Deuteron:\n  {}", self.command_line()));
        line("\nDockerfile:");
        self.dockerfile().lines().for_each(|text| line(format!("  {text}").trim_end()));
    }
}

/// The instruction that adds the program to an image.
const PROGRAM: &str =
    concat!("COPY --from=localhost/deuteron:", env!("CARGO_PKG_VERSION"), " /usr/bin/deuteron /usr/bin/deuteron");
