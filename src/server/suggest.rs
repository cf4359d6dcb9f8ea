//! `deuteron steps suggest`: prints the steps that do the work of a model.py, or the reasons against them.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::control::suggest;
use crate::model::platform::STEPS_FILENAME;
use crate::settings::Settings;

/// Prints the proposal for the model at the path, and writes it if it is complete and `writes` is true. Returns the exit code for
/// `main`: 1 for a proposal that is not complete.
pub fn run(settings: &Settings, writes: bool) -> ExitCode {
    let Some(path) = settings.repositories.first() else { return ExitCode::FAILURE };
    let told = suggest::proposed(settings, path).map_err(|error| format!("error: {error}")).and_then(
        |(suggestion, version)| {
            if !suggestion.is_complete() {
                let part = match suggestion.steps.is_empty() {
                    true => "no steps are proposed\n".to_owned(),
                    false => {
                        format!("a part of the steps, which does not stand for model.py:\n{}", suggestion.steps_json())
                    }
                };
                return Err(format!("{part}{}", suggestion.report().trim_end()));
            }
            let file = version.join(STEPS_FILENAME);
            let next = match writes {
                true => {
                    suggest::write(&suggestion, &version).map_err(|why| format!("error: {why}"))?;
                    format!("{} is written", file.display())
                }
                false => {
                    // The reader may have left.
                    let _ = io::stdout().write_all(suggestion.steps_json().as_bytes());
                    format!("--write writes them to {}", file.display())
                }
            };
            Ok(format!("{}{next}; then compare both: {}", suggestion.report(), comparison(path)))
        },
    );
    // Standard output has the steps alone, and only complete ones: a file that they are redirected to can be used.
    let (text, code) = match told {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(text) => (text, ExitCode::FAILURE),
    };
    let _ = writeln!(io::stderr(), "{text}");
    code
}

fn comparison(path: &Path) -> String {
    format!("deuteron steps compare {}", path.display())
}
