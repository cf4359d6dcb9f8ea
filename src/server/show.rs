//! `deuteron config show`: prints the configuration that a model is served with, or its steps, or the refusal.
//! The model is loaded as the server loads it, because its file and its engine complete the
//! configuration and may refuse it; nothing is served. Of a Python model only the configuration is
//! completed: its own code may need files that exist only on the serving machine.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use prost::Message;

use crate::control::engines::model_services::ModelServices;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::repositories::Repositories;
use crate::control::serving::rate_limit;
use crate::control::thread::initial_load::{self, StartWatch};
use crate::error::Error;
use crate::log;
use crate::model::config::write;
use crate::model::parse::text::Notation;
use crate::model::repository::ModelDirectory;
use crate::settings::{ConfigForm, ControlMode, LogSettings, Settings};
use crate::wire::proto::inference::ModelConfig;

/// Prints the configuration of the model at the path, or an error. Returns the exit code for `main`.
pub fn run(settings: &Settings, form: ConfigForm) -> ExitCode {
    // Errors are printed; a warning shows facts that are not in the configuration.
    log::start(LogSettings { info: false, error: false, verbose: 0, ..settings.log });
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
    let model = only_model(&source, path, settings)?;
    let loader = ModelLoader::new(&Arc::new(settings.clone()), ModelServices::new())?.without_python_models();
    let is_ensemble = !loader.composing(ModelLocation { source: &source, directory: &model }).is_empty();
    // The composing models of an ensemble that is named by its own directory lie beside it.
    let parent = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_path_buf));
    let repository: PathBuf = parent.filter(|_| is_ensemble && model.path == ".").unwrap_or_else(|| path.clone());
    let settings = Arc::new(Settings {
        repositories: vec![repository],
        control_mode: ControlMode::Explicit,
        load_models: vec![model.name.clone()],
        exit_on_error: false,
        ..settings.clone()
    });
    let limiter = rate_limit::limiter(&settings);
    let repositories = Repositories::open(&settings)?;
    // The progress is not shown.
    let watch = StartWatch { start: &Arc::default(), found: &|_| () };
    let mut initial = initial_load::load(&settings, &loader, &repositories, limiter.as_ref(), watch)?;
    if let Some(error) = initial.errors.remove(&model.name) {
        return Err(error);
    }
    let loaded = initial.loaded.iter().find(|loaded| loaded.spec.name == model.name);
    let loaded = loaded.ok_or_else(|| Error::internal(format!("model '{}' was not loaded", model.name)))?;
    if form == ConfigForm::Steps {
        let steps = loaded.spec.steps.as_ref().map(|steps| steps.text.clone());
        return steps.ok_or_else(|| Error::invalid(format!("model '{}' has no steps", model.name)));
    }
    let config = ModelConfig::decode(&*loaded.configured.config_message);
    let config = config.map_err(|error| Error::internal(error.to_string()))?;
    let notation = match form {
        ConfigForm::Json => Notation::Json,
        ConfigForm::Pbtxt | ConfigForm::Steps => Notation::Text,
        ConfigForm::Toml => Notation::Toml,
    };
    Ok(write::encode(&config, notation))
}

/// Returns the only model at a path.
fn only_model(source: &ModelSource, path: &Path, settings: &Settings) -> Result<ModelDirectory, Error> {
    let mut found = source.scan(settings)?;
    match (found.models.as_slice(), found.refused.as_slice()) {
        ([_], []) => {}
        ([], []) => return Err(Error::invalid(format!("'{}' has no model", path.display()))),
        ([], [(_, error)]) => return Err(error.clone()),
        (models, refused) => {
            let names = models.iter().map(|model| &model.name).chain(refused.iter().map(|(name, _)| name));
            let mut names: Vec<_> = names.map(String::as_str).collect();
            names.sort_unstable();
            let (count, path) = (names.len(), path.display());
            return Err(Error::invalid(format!(
                "'{path}' has {count} models ({}): name one, as in {path}/{}, or list all with `deuteron check {path}`",
                names.join(", "),
                names.first().copied().unwrap_or_default()
            )));
        }
    }
    found.models.pop().ok_or_else(|| Error::internal("the model is gone"))
}
