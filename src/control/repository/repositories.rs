//! All model repositories: the models that they contain, and their places. Used by the load and
//! scan threads. `control::repository::beneath` bounds the reads of a scan.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::control::repository::model_source::ModelSource;
use crate::error::Error;
use crate::log;
use crate::metrics::StoreCells;
use crate::model::name::{qualified, split_qualified};
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
    /// The models' directories, by index of the repository and name, qualified if it has a namespace.
    pub directories: BTreeMap<(usize, String), ModelDirectory>,
    /// The reason that the first unreadable repository cannot be read.
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

    /// Returns the figures of the stores among them.
    pub fn store_cells(&self) -> Vec<Arc<StoreCells>> {
        self.all.iter().filter_map(ModelSource::store_cells).cloned().collect()
    }

    /// Returns the repository with an index.
    pub fn source(&self, origin: usize) -> Option<&ModelSource> {
        self.all.get(origin)
    }

    /// Scans all repositories. One that cannot be read is logged and marked, so that none of its models is unloaded.
    pub fn scan(&self) -> RepositoryScan {
        let mut scan = RepositoryScan::default();
        for (origin, source) in self.all.iter().enumerate() {
            match source.scan(&self.settings) {
                Ok(found) => scan.add(origin, &source.namespace(&self.settings), found),
                Err(error) => {
                    log::error(&format!("failed to poll model repository '{}': {error}", source.root.display()));
                    scan.sightings.unreadable.push(origin);
                    scan.error.get_or_insert(error);
                }
            }
        }
        scan
    }

    /// Finds one model in all repositories: the index of the repository, and its directory. A
    /// qualified name is searched for in its namespace.
    ///
    /// # Errors
    /// `NotFound` when no repository has it, `InvalidArgument` when two have or a repository cannot be read.
    pub fn find(&self, name: &str) -> Result<(usize, ModelDirectory), Error> {
        let (namespace, name) = split_qualified(name);
        let mut found = None;
        for (origin, source) in self.all.iter().enumerate() {
            if !namespace.is_empty() && source.namespace(&self.settings) != namespace {
                continue;
            }
            if let Some(directory) = source.find(name, &self.settings)?
                && found.replace((origin, directory)).is_some()
            {
                return Err(Error::invalid(NOT_UNIQUE));
            }
        }
        found.ok_or_else(|| Error::not_found("model not found in any model repository."))
    }

    /// Returns the qualified names of the models of a name, one for each namespace that has it;
    /// empty without namespaces.
    pub fn namesakes(&self, name: &str) -> Vec<String> {
        let sources = self.all.iter().filter(|_| self.settings.repository_rules.has_namespaces);
        let has = sources.filter(|source| source.has(name, &self.settings));
        has.map(|source| qualified(&source.namespace(&self.settings), name)).collect()
    }

    /// Returns the name of the model of an ensemble's step: its own repository's, if that has it,
    /// or the only other one. If no or several namespaces have it, the name alone, which finds no
    /// model.
    pub fn step_model(&self, origin: Option<usize>, name: &str) -> String {
        let mut all = self.namesakes(name);
        let own = origin.and_then(|origin| self.source(origin)).map(|source| source.namespace(&self.settings));
        let own = own.map(|own| qualified(&own, name)).filter(|own| all.contains(own));
        own.or_else(|| all.pop().filter(|_| all.is_empty())).unwrap_or_else(|| name.to_owned())
    }

    /// Returns the names of all models, qualified if they have namespaces, sorted, each with true
    /// if more than one repository has it.
    ///
    /// # Errors
    /// When a repository cannot be listed.
    pub fn names(&self) -> Result<Vec<(String, bool)>, Error> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for source in &self.all {
            for name in source.names(&self.settings)? {
                *counts.entry(qualified(&source.namespace(&self.settings), &name)).or_default() += 1;
            }
        }
        Ok(counts.into_iter().map(|(name, count)| (name, count > 1)).collect())
    }
}

impl RepositoryScan {
    fn add(&mut self, origin: usize, namespace: &str, found: FoundModels) {
        for (name, error) in found.refused {
            let name = qualified(namespace, &name);
            let mark = Err(error.text().to_owned());
            self.sightings.models.push(ModelSighting { name, origin, mark });
        }
        for directory in found.models {
            let name = directory.qualified_name();
            self.sightings.models.push(ModelSighting { name: name.clone(), origin, mark: Ok(directory.mark.clone()) });
            self.directories.insert((origin, name), directory);
        }
    }
}
