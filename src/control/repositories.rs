//! All model repositories: the models that they contain, and where. Used by the load and scan threads. How much a scan
//! reads is bounded in `control::beneath`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::control::model_source::ModelSource;
use crate::error::Error;
use crate::log;
use crate::model::repository::changes::{ModelSighting, NOT_UNIQUE, Sightings};
use crate::model::repository::{FoundModels, ModelDirectory};
use crate::settings::Settings;

/// All model repositories, in the order of their flags.
pub struct Repositories {
    settings: Arc<Settings>,
    all: Vec<ModelSource>,
}

/// The result of one scan of all repositories.
#[derive(Default)]
pub struct RepositoryScan {
    /// The models found, with their change marks.
    pub sightings: Sightings,
    /// The models' directories, by index of the repository and name.
    pub directories: BTreeMap<(usize, String), ModelDirectory>,
    /// Why the first unreadable repository cannot be read.
    pub error: Option<Error>,
}

impl Repositories {
    /// Opens the paths that the flags name.
    ///
    /// # Errors
    /// `InvalidArgument` when one cannot be opened.
    pub fn open(settings: &Arc<Settings>) -> Result<Self, Error> {
        let open = |path: &PathBuf| ModelSource::open(path, settings);
        let all = settings.repositories.iter().map(open).collect::<Result<_, Error>>()?;
        Ok(Self { settings: Arc::clone(settings), all })
    }

    /// The repository with an index.
    pub fn source(&self, origin: usize) -> Option<&ModelSource> {
        self.all.get(origin)
    }

    /// Scans all repositories. One that cannot be read is logged and marked, so that none of its models is unloaded.
    pub fn scan(&self) -> RepositoryScan {
        let mut scan = RepositoryScan::default();
        for (origin, source) in self.all.iter().enumerate() {
            match source.scan(&self.settings) {
                Ok(found) => scan.add(origin, found),
                Err(error) => {
                    log::error(&format!("failed to poll model repository '{}': {error}", source.root.display()));
                    scan.sightings.unreadable.push(origin);
                    scan.error.get_or_insert(error);
                }
            }
        }
        scan
    }

    /// Finds one model in all repositories: the index of the repository, and its directory.
    ///
    /// # Errors
    /// `NotFound` when no repository has it, `InvalidArgument` when two have or a repository cannot be read.
    pub fn find(&self, name: &str) -> Result<(usize, ModelDirectory), Error> {
        let mut found = None;
        for (origin, source) in self.all.iter().enumerate() {
            if let Some(directory) = source.find(name, &self.settings)?
                && found.replace((origin, directory)).is_some()
            {
                return Err(Error::invalid(NOT_UNIQUE));
            }
        }
        found.ok_or_else(|| Error::not_found("model not found in any model repository."))
    }

    /// The names of all models, sorted, each with whether more than one repository has it.
    ///
    /// # Errors
    /// When a repository cannot be listed.
    pub fn names(&self) -> Result<Vec<(String, bool)>, Error> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for source in &self.all {
            for name in source.names(&self.settings)? {
                *counts.entry(name).or_default() += 1;
            }
        }
        Ok(counts.into_iter().map(|(name, count)| (name, count > 1)).collect())
    }
}

impl RepositoryScan {
    fn add(&mut self, origin: usize, found: FoundModels) {
        for (name, error) in found.refused {
            let mark = Err(error.text().to_owned());
            self.sightings.models.push(ModelSighting { name, origin, mark });
        }
        for directory in found.models {
            let name = directory.name.clone();
            self.sightings.models.push(ModelSighting { name: name.clone(), origin, mark: Ok(directory.mark.clone()) });
            self.directories.insert((origin, name), directory);
        }
    }
}
