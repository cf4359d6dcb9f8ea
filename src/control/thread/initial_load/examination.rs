//! The check of the models that a server would load at start, for `deuteron doctor` and `deuteron check`.

use std::collections::BTreeMap;

use crate::control::loading::load_failure::LoadFailure;
use crate::control::loading::model_loader::examination::ExaminedModel;
use crate::control::loading::model_loader::{ModelLoader, ModelLocation};
use crate::control::repository::repositories::Repositories;
use crate::control::thread::initial_load::{InitialLoad, LoadTask, check_may_be_empty, with_composing};
use crate::error::Error;
use crate::model::ensemble::{self, ComposingModel, ComposingModels};
use crate::model::repository::ModelDirectory;
use crate::settings::Settings;

/// A model that would be loaded.
pub struct ModelFinding {
    /// Its name, qualified if it has a namespace.
    pub name: String,
    /// The index of its repository, and its directory; `None` if that is no model's.
    pub place: Option<(usize, ModelDirectory)>,
    /// The finding, or the reason that it cannot be served.
    pub outcome: Result<ExaminedModel, Error>,
}

/// Examines one model, an ensemble against the models that were examined before.
pub type Examine<'a> = &'a dyn Fn(ModelLocation<'_>, &ComposingModels) -> Result<ExaminedModel, LoadFailure>;

/// Checks the models that [`load`](super::load) would load, sorted by name. `examine` checks each.
///
/// # Errors
/// When a repository cannot be read, or has no model although the server needs one.
pub fn examine(
    settings: &Settings,
    loader: &ModelLoader,
    repositories: &Repositories,
    examine: Examine<'_>,
) -> Result<Vec<ModelFinding>, Error> {
    let mut initial = InitialLoad::default();
    let tasks = initial.find_tasks(settings, repositories)?;
    if tasks.is_empty() && initial.models.is_empty() {
        check_may_be_empty(settings)?;
    }
    let mut found: BTreeMap<String, Result<ExaminedModel, Error>> =
        initial.errors.into_iter().map(|(name, error)| (name, Err(error))).collect();
    let tasks = with_composing(tasks, settings, loader, repositories);
    let mut places: BTreeMap<_, _> =
        tasks.iter().map(|task| (task.directory.qualified_name(), (task.origin, task.directory.clone()))).collect();
    let (ensembles, others): (Vec<_>, Vec<_>) = tasks.into_iter().partition(|task| !task.composing.is_empty());
    let one = |task: &LoadTask, composing: &ComposingModels| {
        let source = repositories.source(task.origin).ok_or_else(|| Error::internal("its repository is gone"))?;
        examine(ModelLocation { source, directory: &task.directory }, composing)
    };
    // The reasons as ensembles tell them whose steps the models are.
    let mut reasons: BTreeMap<String, String> = BTreeMap::new();
    for task in &others {
        let (name, outcome) = (task.directory.qualified_name(), one(task, &ComposingModels::default()));
        reasons.extend(outcome.as_ref().err().map(|failure| (name.clone(), failure.reason_for_ensembles())));
        found.insert(name, outcome.map_err(|failure| failure.error().clone()));
    }
    let names: Vec<_> =
        ensembles.iter().map(|task| (task.directory.qualified_name(), task.composing.clone())).collect();
    for (index, refusal) in ensemble::load_order(&names) {
        let Some(task) = ensembles.get(index) else { continue };
        // A model that is completed by its own code has tensors that are not known.
        let is_unknown = |step: &String| {
            found.get(step).is_some_and(|found| found.as_ref().is_ok_and(|found| found.versions.is_empty()))
        };
        let outcome = match refusal {
            Some(error) => Err(error),
            None if task.composing.iter().any(is_unknown) => Ok(ExaminedModel {
                engine: format!("an ensemble of {}", task.composing.join(", ")),
                ..Default::default()
            }),
            None => one(task, &composing_models(&found, &reasons)).map_err(|failure| failure.error().clone()),
        };
        found.insert(task.directory.qualified_name(), outcome);
    }
    let finding = |(name, outcome)| ModelFinding { place: places.remove(&name), name, outcome };
    Ok(found.into_iter().map(finding).collect())
}

/// Returns the models examined so far, as possible steps of ensembles.
fn composing_models(
    found: &BTreeMap<String, Result<ExaminedModel, Error>>,
    reasons: &BTreeMap<String, String>,
) -> ComposingModels {
    let model = |(name, found): (&String, &Result<ExaminedModel, Error>)| {
        let model = match found {
            Ok(found) => ComposingModel { versions: found.versions.clone(), ..ComposingModel::default() },
            Err(error) => {
                let reason = reasons.get(name).map_or_else(|| error.text().to_owned(), String::clone);
                ComposingModel { failure: Some(reason), ..ComposingModel::default() }
            }
        };
        (name.clone(), model)
    };
    ComposingModels { models: found.iter().map(model).collect() }
}
