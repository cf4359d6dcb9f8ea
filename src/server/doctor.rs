//! `deuteron doctor`: prints the state of this machine for the server. Fails only if a server with
//! the same flags could not run.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::control::doctor::Diagnosis;
use crate::log;
use crate::server::listeners;
use crate::settings::{LogSettings, Settings};

/// Prints the findings. Returns the exit code for `main`.
pub fn run(settings: &Settings) -> ExitCode {
    // The text has the content of the log.
    log::start(LogSettings::SILENT);
    let Diagnosis { text, faults, .. } = Diagnosis::new(settings, &listeners::examine(settings));
    let is_written = io::stdout().write_all(text.as_bytes()).is_ok();
    if is_written && faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
