//! Decides what to load and unload after a poll of the repositories: pure functions of the models as loaded and the
//! models as found now. Called by the control thread; opens no files and does not block.

use std::collections::BTreeMap;

use crate::repository::ChangeMark;

/// A model as its last load found it, whether the load succeeded or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// Its name.
    pub name: String,
    /// The index of its repository; `None` if a client sent its files.
    pub origin: Option<usize>,
    /// The hashes of its directory at that load.
    pub mark: ChangeMark,
}

/// A model as a poll found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSighting {
    /// Its name.
    pub name: String,
    /// The index of its repository.
    pub origin: usize,
    /// The hashes of its directory now, or the reason why they are unknown.
    pub mark: Result<ChangeMark, String>,
}

/// The result of one poll of all repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sightings {
    /// The models, in any order; one that is in several repositories is listed several times.
    pub models: Vec<ModelSighting>,
    /// The indices of repositories that could not be listed.
    pub unreadable: Vec<usize>,
}

/// The action on one model after a poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelAction {
    /// Load it: it is new or has changed.
    Load {
        /// The model.
        name: String,
        /// The index of its repository.
        origin: usize,
    },
    /// Report that it cannot be loaded; serving versions go on.
    Refuse {
        /// The model.
        name: String,
        /// The reason.
        why: String,
    },
    /// Unload it: it was removed, or a second repository has the same name.
    Unload {
        /// The model.
        name: String,
        /// The reason, if it was not removed.
        why: Option<String>,
    },
}

/// Triton's text for a model that two repositories have.
pub const NOT_UNIQUE: &str = "not unique across all model repositories";

/// The actions after a poll, sorted by name, at most one for each model. Models of an unreadable
/// repository are left alone: a file system that is briefly unavailable must not unload anything.
pub fn actions(known: &[KnownModel], found: &Sightings) -> Vec<ModelAction> {
    let mut sightings: Vec<&ModelSighting> = found.models.iter().collect();
    sightings.sort_by(|one, other| (&one.name, one.origin).cmp(&(&other.name, other.origin)));
    let mut actions = Vec::new();
    for group in sightings.chunk_by(|one, other| one.name == other.name) {
        let [first, others @ ..] = group else { continue };
        let known = known.iter().find(|known| known.name == first.name);
        actions.extend(if others.is_empty() { action(known, first) } else { Some(clash(known, first)) });
    }
    for known in known {
        let is_found = sightings.binary_search_by(|sighting| sighting.name.cmp(&known.name)).is_ok();
        let is_away = known.origin.is_none_or(|origin| found.unreadable.contains(&origin));
        if !is_found && !is_away {
            actions.push(ModelAction::Unload { name: known.name.clone(), why: None });
        }
    }
    actions.sort_by(|one, other| one.name().cmp(other.name()));
    actions
}

fn action(known: Option<&KnownModel>, found: &ModelSighting) -> Option<ModelAction> {
    let name = found.name.clone();
    match (&found.mark, known) {
        (Err(why), _) => Some(ModelAction::Refuse { name, why: why.clone() }),
        (Ok(mark), Some(known)) if known.mark == *mark && known.origin == Some(found.origin) => None,
        (Ok(_), _) => Some(ModelAction::Load { name, origin: found.origin }),
    }
}

fn clash(known: Option<&KnownModel>, found: &ModelSighting) -> ModelAction {
    let (name, why) = (found.name.clone(), NOT_UNIQUE.to_owned());
    if known.is_some() { ModelAction::Unload { name, why: Some(why) } } else { ModelAction::Refuse { name, why } }
}

impl ModelAction {
    /// The name of the model.
    pub fn name(&self) -> &str {
        match self {
            Self::Load { name, .. } | Self::Refuse { name, .. } | Self::Unload { name, .. } => name,
        }
    }
}

/// The dependencies of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependence {
    /// The composing models, if it is an ensemble that is loaded or to be loaded.
    pub composing: Vec<String>,
    /// True if it was requested itself, and not only as a composing model.
    pub is_asked: bool,
}

/// The models that are loaded only because the ensemble `name`, or one of its composing models, needs them. They are
/// unloaded with it if the client sets `unload_dependents`.
pub fn only_for(name: &str, models: &BTreeMap<String, Dependence>) -> Vec<String> {
    // `unloaded` is also the queue of models whose composing models are still to be examined.
    let (mut unloaded, mut next) = (vec![name.to_owned()], 0);
    while let Some(model) = unloaded.get(next).and_then(|name| models.get(name)) {
        for composing in &model.composing {
            let is_free = models.get(composing).is_some_and(|model| !model.is_asked) && !unloaded.contains(composing);
            let mut others = models.iter().filter(|(other, _)| !unloaded.contains(other));
            if is_free && !others.any(|(_, other)| other.composing.contains(composing)) {
                unloaded.push(composing.clone());
            }
        }
        next += 1;
    }
    unloaded.split_off(1)
}

/// The action on each version of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionChanges {
    /// Versions that go on serving.
    pub kept: Vec<u64>,
    /// Versions to load; an old one of the same number serves until the new one is ready.
    pub loaded: Vec<u64>,
    /// Versions to take out of service.
    pub retired: Vec<u64>,
    /// A hash of what all versions share but for the version policy; `None` if it is unknown.
    pub settings: Option<u64>,
}

/// Compares the versions that serve with the wanted ones, each given with the hash of its files. If the shared files
/// changed (the configuration, labels), all versions are loaded again.
pub fn version_changes(served: &[(u64, u64)], wanted: &[(u64, u64)], is_shared_same: bool) -> VersionChanges {
    let mut changes = VersionChanges::default();
    for (version, mark) in wanted {
        let is_kept = is_shared_same && served.contains(&(*version, *mark));
        if is_kept { &mut changes.kept } else { &mut changes.loaded }.push(*version);
    }
    let is_wanted = |version: u64| wanted.iter().any(|(wanted, _)| *wanted == version);
    changes.retired.extend(served.iter().map(|(version, _)| *version).filter(|version| !is_wanted(*version)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `5@1:7,2`: a hash of 5 for the shared files, and the versions 1 and 2 with hashes of 7 and 0.
    fn mark(text: &str) -> ChangeMark {
        let (shared, versions) = text.split_once('@').unwrap_or(("0", text));
        let number = |text: &str| text.parse::<u64>().unwrap();
        let version = |text: &str| match text.split_once(':') {
            Some((version, mark)) => (number(version), number(mark)),
            None => (number(text), 0),
        };
        ChangeMark {
            shared: number(shared),
            versions: versions.split(',').map(version).collect(),
            ..ChangeMark::default()
        }
    }

    /// Words `ORIGIN/NAME=MARK`; `ORIGIN/NAME!WHY` has no mark, `ORIGIN?` is an unreadable repository.
    fn run(known: &str, found: &str) -> String {
        let origin = |text: &str| text.parse::<usize>().unwrap();
        let known: Vec<_> = known
            .split_whitespace()
            .map(|word| {
                let (place, text) = word.split_once('=').unwrap();
                let (from, name) = place.split_once('/').unwrap();
                KnownModel { name: name.to_owned(), origin: from.parse().ok(), mark: mark(text) }
            })
            .collect();
        let mut sightings = Sightings::default();
        for word in found.split_whitespace() {
            if let Some(from) = word.strip_suffix('?') {
                sightings.unreadable.push(origin(from));
                continue;
            }
            let (from, rest) = word.split_once('/').unwrap();
            let (name, mark) = match rest.split_once('!') {
                Some((name, why)) => (name, Err(why.to_owned())),
                None => rest.split_once('=').map(|(name, text)| (name, Ok(mark(text)))).unwrap(),
            };
            sightings.models.push(ModelSighting { name: name.to_owned(), origin: origin(from), mark });
        }
        let text = |action: ModelAction| match action {
            ModelAction::Load { name, origin } => format!("load {origin}/{name}"),
            ModelAction::Refuse { name, why } => format!("refuse {name}: {why}"),
            ModelAction::Unload { name, why } => {
                format!("unload {name}{}", why.map(|why| format!(": {why}")).unwrap_or_default())
            }
        };
        actions(&known, &sightings).into_iter().map(text).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_poll_becomes_actions() {
        let check = |known: &str, found: &str, want: &str| assert_eq!(run(known, found), want, "{known} -> {found}");
        check("", "", "");
        check("", "0/b=1 0/a=1", "load 0/a; load 0/b");
        check("0/a=1", "0/a=1", "");
        check("0/a=1", "0/a=1,2", "load 0/a");
        check("0/a=1,2", "0/a=2", "load 0/a");
        check("0/a=1:5", "0/a=1:6", "load 0/a");
        check("0/a=3@1", "0/a=4@1", "load 0/a");
        check("0/a=1 0/b=1", "0/b=1", "unload a");
        check("0/a=1", "1/a=1", "load 1/a");
        check("0/a=1", "0/a!cyclic", "refuse a: cyclic");
        check("", "0/a!cyclic", "refuse a: cyclic");
        check("", "1/a=1 0/a=1", "refuse a: not unique across all model repositories");
        check("0/a=1", "1/a=2 0/a=1 0/b=1", "unload a: not unique across all model repositories; load 0/b");
        check("0/a=1 1/b=1", "0? 1/c=1", "unload b; load 1/c");
        check("-/a=1", "", "");
    }

    #[test]
    fn models_that_only_an_ensemble_needs_are_unloaded_with_it() {
        // `e:a,b` is an ensemble; `!` in front of a name means it was requested itself.
        let check = |models: &str, name: &str, want: &str| {
            let words = models.split_whitespace().map(|word| {
                let (name, composing) = word.split_once(':').unwrap_or((word, ""));
                let composing = composing.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
                let dependence = Dependence { composing, is_asked: name.starts_with('!') };
                (name.trim_start_matches('!').to_owned(), dependence)
            });
            assert_eq!(only_for(name, &words.collect()).join(" "), want, "{models} without {name}");
        };
        check("!e:a,b a b", "e", "a b");
        check("!e:a,b !a b", "e", "b");
        check("!e:a,b !f:b a b", "e", "a");
        check("!e:f,a f:a,b a b", "e", "f a b");
        check("!e:f f:a a !g:a", "e", "f");
        check("!e:a", "e", "");
        check("!a", "a", "");
        check("", "a", "");
    }

    #[test]
    fn versions_that_did_not_change_go_on_serving() {
        let check = |served: &[(u64, u64)], wanted: &[(u64, u64)], is_shared_same, want: [&[u64]; 3]| {
            let got = version_changes(served, wanted, is_shared_same);
            let want = VersionChanges {
                kept: want[0].into(),
                loaded: want[1].into(),
                retired: want[2].into(),
                settings: None,
            };
            assert_eq!(got, want, "{served:?} {wanted:?}");
        };
        check(&[], &[(1, 0)], true, [&[], &[1], &[]]);
        check(&[(1, 0)], &[(1, 0)], true, [&[1], &[], &[]]);
        check(&[(1, 0)], &[(1, 0)], false, [&[], &[1], &[]]);
        check(&[(1, 0)], &[(2, 0), (1, 0)], true, [&[1], &[2], &[]]);
        check(&[(1, 0), (2, 0)], &[(3, 0), (2, 9)], true, [&[], &[3, 2], &[1]]);
        check(&[(1, 0)], &[], true, [&[], &[], &[1]]);
    }
}
