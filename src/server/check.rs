//! `deuteron check`: prints a table of all models of the repositories with their engines, or the reasons that they cannot
//! be served and the cures; and of a deployment of tritonserver the command and the Dockerfile that do the same.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::control::check::{CheckedDeployment, RepositoryCheck};
use crate::error::Error;
use crate::log;
use crate::settings::LogSettings;
use crate::settings::deployment::{CheckOrder, package_name};

/// The exit code without a verdict: a path cannot be read.
const NO_VERDICT: u8 = 2;

/// Prints the report. Returns the exit code for `main`: 1 if a model or a flag is refused.
pub fn run(order: CheckOrder) -> ExitCode {
    // The report has the content of the log.
    log::start(LogSettings::SILENT);
    let is_json = order.is_json;
    match check(order) {
        Ok(check) => {
            let text = if is_json { check.json() } else { check.text() };
            let is_written = io::stdout().write_all(text.as_bytes()).is_ok();
            if is_written && check.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(NO_VERDICT)
        }
    }
}

fn check(order: CheckOrder) -> Result<RepositoryCheck, Error> {
    let CheckOrder { settings, source, .. } = order;
    // Of a command line alone the packages are those of this machine.
    let in_image = source.as_ref().filter(|source| source.deployment.image.is_some());
    let packages = in_image.map(|source| &source.deployment.packages);
    let installed: Option<Vec<_>> =
        packages.map(|packages| packages.iter().map(|package| package_name(package)).collect());
    let mut check = match settings.repositories.is_empty() {
        true => RepositoryCheck::default(),
        false => RepositoryCheck::new(&settings, installed.as_deref())?,
    };
    check.deployment = source.map(|source| CheckedDeployment::new(source, &check.models));
    Ok(check)
}
