//! The report of `deuteron check`: each model of the repositories with its engine, or the reason that it cannot be served
//! and its cure. By the checks of a load ([`ModelLoader::try_out`]); small files are loaded, code of models is not run. No
//! directory of a repository is left out.

mod cure;
mod deployed;
mod imports;
mod json;
mod packages;
mod python;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use crate::control::check::cure::{MissingPart, RefusedModel};
use crate::control::check::python::PythonFindings;
use crate::control::engines::model_services::ModelServices;
use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::loaded_version::LoadedVersion;
use crate::control::loading::model_loader::examination::ExaminedModel;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::control::repository::model_source::ModelSource;
use crate::control::repository::repositories::Repositories;
use crate::control::serving::rate_limit;
use crate::control::thread::initial_load::{self, ModelFinding};
use crate::error::Error;
use crate::limits::CONFIG_SIZE_MAX;
use crate::model::ensemble::ComposingModels;
use crate::model::parse::text::{ConfigText, Notation};
use crate::model::platform::{self, ENSEMBLE_PLATFORM};
use crate::model::repository::{ListingEntry, ModelDirectory, is_hidden};
use crate::queue::worker::panic_text;
use crate::settings::Settings;

pub use cure::MissingKind;
pub use deployed::CheckedDeployment;

/// The verdict on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelVerdict {
    /// It would be served.
    Ok,
    /// It would not be served.
    Refused,
    /// It would be served, in another way than its files say, or with parts that were not checked.
    Warning,
}

impl ModelVerdict {
    /// Returns its name in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Warning => "warning",
        }
    }
}

/// One row of the report.
#[derive(Clone, Debug)]
pub struct CheckedModel {
    /// The model's name, or that of its directory.
    pub name: String,
    /// The backend, or the platform without one; empty if neither is known.
    pub backend: String,
    /// The engine that would run it; empty if it is refused.
    pub engine: String,
    /// The versions that would be served, or of a refused model those that are there, the highest first.
    pub versions: Vec<u64>,
    /// The verdict.
    pub verdict: ModelVerdict,
    /// The reason of a refusal.
    pub reason: Option<String>,
    /// The cure of a refusal.
    pub change: Option<String>,
    /// Files, packages and models that are missing.
    pub missing: Vec<MissingPart>,
    /// Parts that have another effect than they say, or were not checked and may fail.
    pub warnings: Vec<String>,
    /// Other facts.
    pub notes: Vec<String>,
}

/// The report.
#[derive(Clone, Debug, Default)]
pub struct RepositoryCheck {
    /// The rows, by name.
    pub models: Vec<CheckedModel>,
    /// Entries of the repositories that are no models, and the reason.
    pub ignored: Vec<(String, &'static str)>,
    /// The deployment that the flags came from.
    pub deployment: Option<CheckedDeployment>,
    /// The reason that there is no table.
    pub fault: Option<String>,
}

impl RepositoryCheck {
    /// Checks the models of the repositories. `installed` are the packages of a deployment, by their names in the index.
    ///
    /// # Errors
    /// When a path cannot be opened or listed.
    pub fn new(settings: &Settings, installed: Option<&[String]>) -> Result<Self, Error> {
        let settings = Arc::new(of_all_models(settings));
        let repositories = Repositories::open(&settings)?;
        let loader = match ModelLoader::new(&settings, ModelServices::new()) {
            Ok(loader) => loader.without_python_models(),
            Err(error) => return Ok(Self { fault: Some(error.text().to_owned()), ..Self::default() }),
        };
        let python = PythonFindings::new(&settings, &repositories, installed);
        let examine = |location: ModelLocation<'_>, composing: &ComposingModels| {
            let origin = origin_of(&repositories, location.source);
            let finding = python.of(origin, &location.directory.qualified_name());
            try_out(&loader, location, composing).and_then(|examined| {
                python::check(finding)?;
                Ok(examined)
            })
        };
        let found = match initial_load::examine(&settings, &loader, &repositories, &examine) {
            Ok(found) => found,
            Err(error) => return Ok(Self { fault: Some(error.text().to_owned()), ..Self::default() }),
        };
        let limiter = rate_limit::limiter(&settings);
        let (mut models, mut registered) = (Vec::with_capacity(found.len()), Vec::new());
        for mut finding in found {
            if let Ok(examined) = &finding.outcome {
                let versions = examined.versions.iter();
                let versions = versions.map(|(version, spec)| LoadedVersion::not_loaded(spec, *version, None));
                match rate_limit::register(versions.collect(), limiter.as_ref()) {
                    Ok(versions) => registered.extend(versions),
                    Err(failure) => finding.outcome = Err(failure.error().clone()),
                }
            }
            models.push(row(&settings, &repositories, &python, finding));
        }
        Ok(Self { models, ignored: ignored(&repositories, &settings), ..Self::default() })
    }

    /// Returns the number of models that would be served.
    pub fn served(&self) -> usize {
        self.models.iter().filter(|model| model.verdict != ModelVerdict::Refused).count()
    }

    /// Returns true if a server with these flags would serve all models.
    pub fn is_clean(&self) -> bool {
        let has_refused_flag = self.deployment.as_ref().is_some_and(CheckedDeployment::has_refused_flag);
        self.fault.is_none() && self.served() == self.models.len() && !has_refused_flag
    }

    /// Returns the report for a person.
    pub fn text(&self) -> String {
        table::text(self)
    }

    /// Returns the report in JSON.
    pub fn json(&self) -> String {
        json::text(self)
    }
}

/// The settings of a server that has all models of its repositories.
fn of_all_models(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    if settings.loads_when_asked() {
        settings.load_models = vec!["*".to_owned()];
    }
    settings
}

/// The index of a repository.
fn origin_of(repositories: &Repositories, wanted: &ModelSource) -> usize {
    let is_it = |index: &usize| repositories.source(*index).is_none_or(|source| std::ptr::eq(source, wanted));
    (0..).find(is_it).unwrap_or_default()
}

/// Tries a model out; a panic of an engine is a refusal.
fn try_out(
    loader: &ModelLoader,
    location: ModelLocation<'_>,
    composing: &ComposingModels,
) -> Result<ExaminedModel, LoadFailure> {
    let outcome = catch_unwind(AssertUnwindSafe(|| loader.try_out(location, composing)));
    outcome.unwrap_or_else(|panic| Err(Error::internal(format!("its load panicked: {}", panic_text(&*panic))).into()))
}

fn row(
    settings: &Settings,
    repositories: &Repositories,
    python: &PythonFindings,
    finding: ModelFinding,
) -> CheckedModel {
    let ModelFinding { name, place, outcome } = finding;
    let known = place.as_ref().and_then(|(origin, directory)| Some((repositories.source(*origin)?, directory)));
    let of_python = place.as_ref().and_then(|(origin, _)| python.of(*origin, &name)).cloned().unwrap_or_default();
    let backend = known.map(|(source, directory)| backend_of(settings, source, directory)).unwrap_or_default();
    let mut row = CheckedModel {
        name,
        backend,
        engine: String::new(),
        versions: place.as_ref().map(|(_, directory)| directory.versions.clone()).unwrap_or_default(),
        verdict: ModelVerdict::Ok,
        reason: None,
        change: None,
        missing: of_python.missing,
        warnings: of_python.warnings,
        notes: of_python.notes,
    };
    match outcome {
        Ok(examined) => {
            if let Some((_, spec)) = examined.versions.first() {
                row.backend = if spec.backend.is_empty() { spec.platform.clone() } else { spec.backend.clone() };
            }
            if !examined.versions.is_empty() {
                row.versions = examined.versions.iter().map(|(version, _)| *version).collect();
            }
            row.engine = examined.engine;
            row.warnings.extend(examined.warnings);
            row.notes.extend(examined.notes);
            row.warnings.extend(examined.library.map(|file| format!("'{file}' runs it, which is not opened here")));
            if !row.warnings.is_empty() {
                row.verdict = ModelVerdict::Warning;
            }
        }
        Err(error) => {
            let nested = known.and_then(|(source, directory)| nested_repository(source, directory));
            let refused = RefusedModel { reason: error.text(), backend: &row.backend, nested };
            let of_python = of_python.refusal.filter(|(reason, _)| reason == error.text());
            row.change = Some(of_python.map_or_else(|| refused.change(), |(_, cure)| cure));
            row.missing.extend(refused.missing());
            row.reason = Some(error.text().to_owned());
            row.verdict = ModelVerdict::Refused;
        }
    }
    row
}

/// The backend that a configuration names or implies, or its platform; empty if it cannot be read.
fn backend_of(settings: &Settings, source: &ModelSource, directory: &ModelDirectory) -> String {
    let named = |platform: &str, backend: &str| match (platform, backend) {
        (ENSEMBLE_PLATFORM, _) | (_, "") => platform.to_owned(),
        (_, backend) => backend.to_owned(),
    };
    if let Ok(draft) = source.draft(directory, settings) {
        return named(draft.platform(), draft.backend());
    }
    // A configuration that is refused may still name it.
    let notation = directory.configs.first().copied().unwrap_or(Notation::Text);
    let text = source.repository.read(&directory.file(notation.filename()), CONFIG_SIZE_MAX).unwrap_or_default();
    let Ok(text) = ConfigText::decode(notation, &text) else { return String::new() };
    let field = |name: &str| {
        let value = text.message.get_field_by_name(name);
        value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let (stated, backend) = (field("platform"), field("backend"));
    let implied = platform::backend_of(&stated).filter(|_| backend.is_empty());
    named(&stated, implied.unwrap_or(&backend))
}

/// The path of a directory that has models beneath it instead of versions; `None` for any other one.
fn nested_repository(source: &ModelSource, directory: &ModelDirectory) -> Option<PathBuf> {
    let is_empty = directory.versions.is_empty() && directory.configs.is_empty() && !directory.is_flat;
    let is_version = |entry: &ListingEntry| entry.is_directory && entry.name.parse::<u64>().is_ok();
    let is_config = |entry: &ListingEntry| Notation::ALL.iter().any(|notation| entry.name == notation.filename());
    let is_model = |name: &String| {
        let path = name.strip_suffix('/').map(|name| directory.file(name))?;
        let entries = source.repository.list_beneath(&path).ok()?;
        entries.iter().any(|entry| is_version(entry) || is_config(entry)).then_some(())
    };
    let has_models = is_empty && directory.beside.iter().any(|name| is_model(name).is_some());
    has_models.then(|| source.root.join(&directory.path))
}

/// The entries of the repositories that are no models.
fn ignored(repositories: &Repositories, settings: &Settings) -> Vec<(String, &'static str)> {
    let sources = (0..).map_while(|index| repositories.source(index));
    let scans = sources.filter_map(|source| source.scan(settings).ok());
    let why = |name: &str| match () {
        () if is_hidden(name) => "hidden names are not models",
        () if name.ends_with(".onnx") => "a file: put it at NAME/1/model.onnx, or serve it by its path",
        () => "not a directory",
    };
    scans.flat_map(|scan| scan.ignored).map(|name| (name.clone(), why(&name))).collect()
}
