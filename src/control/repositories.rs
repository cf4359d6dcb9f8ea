//! The model repositories: which models lie in them, and where. Used by the control thread and its
//! helpers; every look is bounded by `control::beneath`.

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

/// One look at them.
#[derive(Default)]
pub struct RepositoryScan {
    /// What was found, with marks.
    pub sightings: Sightings,
    /// The models' directories, by repository and name.
    pub directories: BTreeMap<(usize, String), ModelDirectory>,
    /// Why the first of those that cannot be read cannot.
    pub error: Option<Error>,
}

impl Repositories {
    /// Opens the paths; fails where one is not there.
    pub fn open(settings: &Arc<Settings>) -> Result<Self, Error> {
        let open = |path: &PathBuf| ModelSource::open(path, settings);
        let all = settings.repositories.iter().map(open).collect::<Result<_, Error>>()?;
        Ok(Self { settings: Arc::clone(settings), all })
    }

    /// One of them.
    pub fn source(&self, origin: usize) -> Option<&ModelSource> {
        self.all.get(origin)
    }

    /// Looks at all of them.
    pub fn look(&self) -> RepositoryScan {
        let mut look = RepositoryScan::default();
        for (origin, source) in self.all.iter().enumerate() {
            match source.look(&self.settings) {
                Ok(found) => look.take(origin, found),
                Err(error) => {
                    log::error(&format!("failed to poll model repository '{}': {error}", source.root.display()));
                    look.sightings.unreadable.push(origin);
                    look.error.get_or_insert(error);
                }
            }
        }
        look
    }

    /// Looks for one model in all of them.
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

    /// The names of all models, in order, and whether several repositories have one.
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
    fn take(&mut self, origin: usize, found: FoundModels) {
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
