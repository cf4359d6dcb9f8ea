//! The model repositories: which models lie in them, and where. Used by the control thread and its
//! helpers; every look is bounded by `server::beneath`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::model::changes::{NOT_UNIQUE, Sighting, Sightings};
use crate::model::repository::{Listing, ModelDirectory};
use crate::server::beneath::Repository;
use crate::server::log;

/// All model repositories, in the order of their flags.
pub struct Repositories {
    all: Vec<(PathBuf, Repository)>,
}

/// One look at them.
#[derive(Default)]
pub struct Look {
    /// What was found, with marks.
    pub sightings: Sightings,
    /// The models' directories, by repository and name.
    pub directories: BTreeMap<(usize, String), ModelDirectory>,
}

impl Repositories {
    /// Opens the directories; fails where one is not there.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        let open = |path: &PathBuf| {
            let opened = Repository::open(path).map_err(|error| {
                Error::invalid(format!("cannot open the model repository '{}': {error}", path.display()))
            })?;
            Ok((path.clone(), opened))
        };
        Ok(Self { all: paths.iter().map(open).collect::<Result<_, Error>>()? })
    }

    /// A repository and its path.
    pub fn repository(&self, origin: usize) -> Option<(&Path, &Repository)> {
        self.all.get(origin).map(|(path, repository)| (path.as_path(), repository))
    }

    /// Looks at all of them.
    pub fn look(&self) -> Look {
        let mut look = Look::default();
        for (origin, (path, repository)) in self.all.iter().enumerate() {
            match repository.list() {
                Ok(listing) => look.take(origin, &listing),
                Err(error) => {
                    log::error(&format!("failed to poll model repository '{}': {error}", path.display()));
                    look.sightings.unreadable.push(origin);
                }
            }
        }
        look
    }

    /// Looks for one model in all of them.
    pub fn find(&self, name: &str) -> Result<(usize, ModelDirectory), Error> {
        let mut having = self.all.iter().enumerate().filter(|(_, (_, repository))| repository.has(name));
        let Some((origin, (_, repository))) = having.next() else {
            return Err(Error::not_found("model not found in any model repository."));
        };
        if having.next().is_some() {
            return Err(Error::invalid(NOT_UNIQUE));
        }
        Ok((origin, ModelDirectory::from_entry(&repository.list_model(name))?))
    }

    /// The names of all models, in order, and whether several repositories have one.
    pub fn names(&self) -> io::Result<Vec<(String, bool)>> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (_, repository) in &self.all {
            let names = repository.names()?.into_iter();
            for (name, _) in names.filter(|(name, is_directory)| *is_directory && !name.starts_with('.')) {
                *counts.entry(name).or_default() += 1;
            }
        }
        Ok(counts.into_iter().map(|(name, count)| (name, count > 1)).collect())
    }
}

impl Look {
    fn take(&mut self, origin: usize, listing: &Listing) {
        let found = listing.find_models();
        for (name, error) in found.refused {
            let mark = Err(error.text().to_owned());
            self.sightings.models.push(Sighting { name, origin, mark });
        }
        for directory in found.models {
            let name = directory.name.clone();
            self.sightings.models.push(Sighting { name: name.clone(), origin, mark: Ok(directory.mark.clone()) });
            self.directories.insert((origin, name), directory);
        }
    }
}
