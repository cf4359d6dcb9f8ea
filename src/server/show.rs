//! `deuteron config show`: prints the effective configuration of a model. No engine is loaded and no server started.

use std::io::{self, Write};
use std::process::ExitCode;

use prost::Message;

use crate::control::config_completion::{self, ConfigCompletion};
use crate::control::model_services::ModelServices;
use crate::control::model_source::ModelSource;
use crate::control::python;
use crate::error::Error;
use crate::model::config::write;
use crate::model::parse::text::Notation;
use crate::settings::{ConfigForm, Settings};
use crate::wire::proto::inference::ModelConfig;

/// Prints the configuration of the model at the path, or an error. Returns the exit code for `main`.
pub fn run(settings: &Settings, form: ConfigForm) -> ExitCode {
    match show(settings, form) {
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn show(settings: &Settings, form: ConfigForm) -> Result<String, Error> {
    let Some(path) = settings.repositories.first() else { return Ok(String::new()) };
    let source = ModelSource::open(path, settings)?;
    let found = source.scan(settings)?;
    let model = match (found.models.as_slice(), found.refused.as_slice()) {
        ([model], []) => model,
        ([], []) => return Err(Error::invalid(format!("'{}' has no model", path.display()))),
        (models, refused) => {
            let names = models.iter().map(|model| &model.name).chain(refused.iter().map(|(name, _)| name));
            let names: Vec<_> = names.take(5).map(String::as_str).collect();
            let (count, path) = (models.len() + refused.len(), path.display());
            return Err(Error::invalid(format!(
                "'{path}' has {count} models ({}): name one, as in {path}/{}",
                names.join(", "),
                names.first().copied().unwrap_or_default()
            )));
        }
    };
    let draft = source.draft(model, settings)?;
    let labels = config_completion::read_labels(&source, model, &draft)?;
    let versions = model.choose_versions(&draft.version_policy())?.versions;
    let version = versions.first().copied().unwrap_or_default();
    let python = python::engine(settings, &ModelServices::new());
    let completion = ConfigCompletion { settings, python: Some(&python) };
    let spec = completion.complete(&source, model, version, &draft, &labels)?;
    let config = ModelConfig::decode(&*spec.config_message).map_err(|error| Error::internal(error.to_string()))?;
    let notation = match form {
        ConfigForm::Json => Notation::Json,
        ConfigForm::Pbtxt => Notation::Text,
        ConfigForm::Toml => Notation::Toml,
    };
    Ok(write::encode(&config, notation))
}
