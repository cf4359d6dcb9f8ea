//! The files of a model at a path of the host of the server, as SageMaker's multi-model endpoints
//! name it. The path holds one model, or the models of an ensemble, each in a directory. Runs on
//! load threads; `control::repository::beneath` bounds its reads, and `protocol::rest::hosted` checks the path.

use std::path::{Path, PathBuf};

use crate::control::loading::load_failure::LoadFailure;
use crate::control::repository::model_source::ModelSource;
use crate::error::Error;
use crate::model::repository::index::HostedModel;
use crate::model::repository::{Listing, ModelDirectory};
use crate::protocol::repository::{LoadOrder, LoadPlace};
use crate::settings::Settings;

/// The files of such a model.
pub struct HostedFiles {
    /// The path, opened.
    pub source: ModelSource,
    /// The path, as the host names it.
    pub root: String,
    /// The host's name for the model; `None` for a step of its ensemble.
    pub model: Option<HostedModel>,
}

/// Finds the model of a load at the path that the load names; `None` if it is to be searched for in
/// the repositories.
///
/// # Errors
/// If the path cannot be read, or is not about exactly one model.
pub fn find(load: &LoadOrder, settings: &Settings) -> Result<Option<(ModelDirectory, HostedFiles)>, LoadFailure> {
    let (root, name) = match &load.place {
        LoadPlace::Repositories => return Ok(None),
        LoadPlace::Hosted { name, path } => (path, Some(name)),
        LoadPlace::Beside(path) => (path, None),
    };
    let source = ModelSource::of_directory(PathBuf::from(root))
        .map_err(|error| LoadFailure::Config(Error::invalid(format!("cannot open '{root}': {error}"))))?;
    let Some(name) = name else {
        let found = source.find(&load.name, settings)?;
        // At a host's path there are no namespaces: the step is known by its name alone.
        let plain = |directory| ModelDirectory { namespace: String::new(), ..directory };
        let files = HostedFiles { source, root: root.clone(), model: None };
        return Ok(found.map(|directory| (plain(directory), files)));
    };
    let listing = source
        .repository
        .list()
        .map_err(|error| LoadFailure::Config(Error::invalid(format!("cannot list '{root}': {error}"))))?;
    let (url, directory) = if listing.is_model() {
        // Like tritonserver, which then takes the directory above for the repository.
        let above = Path::new(root).parent().and_then(Path::to_str).unwrap_or(root);
        (above, ModelDirectory::of_listing(load.name.clone(), listing)?)
    } else {
        (root.as_str(), chosen(&source, &listing, settings)?)
    };
    let directory = ModelDirectory { name: load.name.clone(), is_renamed: true, ..directory };
    let model = Some(HostedModel { name: name.clone(), url: url.to_owned() });
    Ok(Some((directory, HostedFiles { source, root: root.clone(), model })))
}

/// Returns the model that a directory of models is about: the only one, or the only ensemble.
fn chosen(source: &ModelSource, listing: &Listing, settings: &Settings) -> Result<ModelDirectory, Error> {
    let mut found = listing.find_models();
    if let Some((name, error)) = found.refused.pop() {
        return Err(error.with_prefix(&format!("in '{name}': ")));
    }
    if found.models.len() > 1 {
        let is_ensemble = |directory: &ModelDirectory| {
            source.draft(directory, settings).is_ok_and(|draft| !draft.composing().is_empty())
        };
        found.models.retain(is_ensemble);
    }
    let (count, first) = (found.models.len(), found.models.pop());
    match (count, first) {
        (1, Some(model)) => Ok(model),
        _ => Err(Error::invalid("expected a directory of one model, or of the models of one ensemble")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MODEL: &str = "name: 'any' backend: 'identity' max_batch_size: 4
        input { name: 'INPUT0' data_type: TYPE_FP32 dims: 1 } output { name: 'OUTPUT0' data_type: TYPE_FP32 dims: 1 }";
    const ENSEMBLE: &str = "platform: 'ensemble' max_batch_size: 4
        input { name: 'A' data_type: TYPE_FP32 dims: 1 } output { name: 'B' data_type: TYPE_FP32 dims: 1 }
        ensemble_scheduling { step { model_name: 'step' model_version: -1
            input_map { key: 'INPUT0' value: 'A' } output_map { key: 'OUTPUT0' value: 'B' } } }";

    /// Finds the model for the load of `m` below `root`: the path of its directory, its URL and the
    /// names of the steps.
    fn found(root: &Path, place: LoadPlace) -> String {
        let mut settings = Settings::default();
        settings.repository_rules.has_namespaces = true;
        let load = LoadOrder { name: "m".to_owned(), place, ..LoadOrder::default() };
        match find(&load, &settings) {
            Ok(None) => "elsewhere".to_owned(),
            Ok(Some((directory, files))) => {
                assert_eq!(directory.namespace, "", "a host knows its models by their names alone");
                let draft = files.source.draft(&directory, &settings).unwrap();
                let url = files.model.map_or("-".to_owned(), |model| model.url).replace(root.to_str().unwrap(), "");
                format!("{} {} {url} {:?}", directory.name, directory.path, draft.composing())
            }
            Err(failure) => failure.error().text().replace(root.to_str().unwrap(), ""),
        }
    }

    #[test]
    fn a_path_holds_one_model_or_those_of_one_ensemble() {
        let root = std::env::temp_dir().join(format!("deuteron-hosted-{}", std::process::id()));
        let write = |path: &str, config: &str| {
            fs::create_dir_all(root.join(path).join("1")).unwrap();
            fs::write(root.join(path).join("config.pbtxt"), config).unwrap();
        };
        write("a/model", MODEL);
        write("b/model/any", MODEL);
        write("c/model/all", ENSEMBLE);
        write("c/model/step", &MODEL.replace("any", "step"));
        write("d/model/x", &MODEL.replace("any", "x"));
        write("d/model/y", &MODEL.replace("any", "y"));
        write("e/model/all", ENSEMBLE);
        write("e/model/too", ENSEMBLE);
        fs::create_dir_all(root.join("f/model")).unwrap();
        write("g/model/m", &MODEL.replace("any", "m"));
        let path = |path: &str| root.join(path).to_str().unwrap().to_owned();
        let hosted = |at: &str| found(&root, LoadPlace::Hosted { name: "h".to_owned(), path: path(at) });
        assert_eq!(hosted("a/model"), "m . /a []");
        assert_eq!(hosted("b/model"), "m any /b/model []");
        assert_eq!(hosted("b/model/any"), "m . /b/model []");
        assert_eq!(hosted("c/model"), "m all /c/model [\"step\"]");
        for several in ["d/model", "e/model", "f/model"] {
            assert!(hosted(several).starts_with("expected a directory of one model, or of the"), "{several}");
        }
        assert!(hosted("nowhere/model").starts_with("cannot open '/nowhere/model': No such file"));
        assert_eq!(found(&root, LoadPlace::Beside(path("g/model"))), "m m - []");
        assert_eq!(found(&root, LoadPlace::Beside(path("c/model"))), "elsewhere");
        assert_eq!(found(&root, LoadPlace::Repositories), "elsewhere");
        fs::remove_dir_all(&root).unwrap();
    }
}
