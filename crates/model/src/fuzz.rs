//! Properties of repository listings for the fuzz target `listing` and its corpus: the models that
//! are found, and the actions that the difference between two polls leads to.

use std::collections::BTreeSet;

use crate::repository::changes::{KnownModel, ModelAction, ModelSighting, Sightings, actions, version_changes};
use crate::repository::{FoundModels, Listing, ListingEntry};
use crate::spec::VersionPolicy;

/// Nesting depth of directories: the server lists no deeper.
const DEPTH_MAX: usize = 8;

/// Reads any bytes as two listings separated by `---`, and checks their properties: names and versions are valid,
/// an unchanged listing leads to no action, and after the actions of the second poll nothing is left to do. A panic
/// is a finding.
pub fn check_any_listing(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let (before, after) = text.split_once("---").unwrap_or((&text, &text));
    let [before, after] = [before, after].map(|text| Listing { entries: entries(text) }.find_models());
    check_found(&before);
    check_found(&after);
    let (before, after) = (sightings(&before), sightings(&after));
    let known = known(&before, &[]);
    check_steady(&known, &before);
    let after_actions = actions(&known, &after);
    let names: Vec<_> = after_actions.iter().map(ModelAction::name).collect();
    assert!(names.is_sorted_by(|one, other| one < other), "one action for each model: {names:?}");
    check_versions(&known, &after);
    check_steady(&self::known(&after, &known), &after);
}

/// Reads a listing: `name/` is a directory, the words in brackets after it are its entries; `name` is a file, and
/// `name=7` a file with this stamp.
pub fn entries(text: &str) -> Vec<ListingEntry> {
    let mut stack: Vec<Vec<ListingEntry>> = vec![Vec::new()];
    for word in text.replace('[', " [ ").replace(']', " ] ").split_whitespace() {
        match word {
            "[" if stack.len() < DEPTH_MAX => stack.push(Vec::new()),
            "]" if stack.len() > 1 => {
                let children = stack.pop().unwrap_or_default();
                let directory = stack.last_mut().and_then(|entries| entries.last_mut());
                directory.into_iter().filter(|entry| entry.is_directory).for_each(|entry| {
                    entry.children.clone_from(&children);
                });
            }
            "[" | "]" => {}
            _ => {
                let (name, stamp) = word.split_once('=').unwrap_or((word, "0"));
                let entry = ListingEntry {
                    name: name.trim_end_matches('/').to_owned(),
                    is_directory: name.ends_with('/'),
                    stamp: stamp.parse().unwrap_or_default(),
                    ..ListingEntry::default()
                };
                let entries = stack.last_mut().into_iter();
                // No directory has a name twice.
                entries.filter(|have| have.iter().all(|other| other.name != entry.name)).for_each(|entries| {
                    entries.push(entry.clone());
                });
            }
        }
    }
    stack.into_iter().next().unwrap_or_default()
}

fn check_found(found: &FoundModels) {
    for model in &found.models {
        assert!(!model.name.contains(['/', '\\', '\0']) && !model.name.starts_with('.'), "{}", model.name);
        assert!(model.versions.is_sorted_by(|one, other| one > other), "{:?}", model.versions);
        let marked: Vec<_> = model.mark.versions.iter().map(|(version, _)| *version).collect();
        assert_eq!(marked, model.versions, "each version has a mark");
        let chosen = model.choose_versions(&VersionPolicy::All);
        assert_eq!(chosen.is_ok(), !model.versions.is_empty());
    }
    let names: Vec<_> = found.models.iter().map(|model| &model.name).collect();
    assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
}

fn sightings(found: &FoundModels) -> Sightings {
    let sighting = |name: &str, mark| ModelSighting { name: name.to_owned(), origin: 0, mark };
    let models = found.models.iter().map(|model| sighting(&model.name, Ok(model.mark.clone())));
    let refused = found.refused.iter().map(|(name, error)| sighting(name, Err(error.text().to_owned())));
    Sightings { models: models.chain(refused).collect(), unreadable: Vec::new() }
}

/// The known models after all actions of a poll; refused models stay as they were in `before`.
fn known(found: &Sightings, before: &[KnownModel]) -> Vec<KnownModel> {
    let load = |sighting: &ModelSighting| match &sighting.mark {
        Ok(mark) => Some(KnownModel { name: sighting.name.clone(), origin: Some(0), mark: mark.clone() }),
        Err(_) => before.iter().find(|known| known.name == sighting.name).cloned(),
    };
    found.models.iter().filter_map(load).collect()
}

fn check_steady(known: &[KnownModel], found: &Sightings) {
    let left = actions(known, found);
    assert!(left.iter().all(|action| matches!(action, ModelAction::Refuse { .. })), "{left:?}");
}

/// Every wanted version is kept or loaded, every other version is retired.
fn check_versions(known: &[KnownModel], found: &Sightings) {
    for sighting in &found.models {
        let (Ok(mark), Some(known)) = (&sighting.mark, known.iter().find(|known| known.name == sighting.name)) else {
            continue;
        };
        let changes = version_changes(&known.mark.versions, &mark.versions, known.mark.shared == mark.shared);
        let set = |versions: &[u64]| versions.iter().copied().collect::<BTreeSet<_>>();
        let wanted: BTreeSet<u64> = mark.versions.iter().map(|(version, _)| *version).collect();
        let (kept, loaded, retired) = (set(&changes.kept), set(&changes.loaded), set(&changes.retired));
        assert!(kept.is_disjoint(&loaded) && &kept | &loaded == wanted && retired.is_disjoint(&wanted));
        assert!(known.mark.versions.iter().all(|(version, _)| wanted.contains(version) || retired.contains(version)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_and_its_changes_hold() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/listing");
        let files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.len() >= 6, "the corpus is there");
        for file in files {
            let text = std::fs::read(&file).unwrap();
            check_any_listing(&text);
            for at in 0..text.len() {
                check_any_listing(&text[..at]);
                for byte in *b"/[]=-1 a\xff" {
                    let mut changed = text.clone();
                    changed[at] = byte;
                    check_any_listing(&changed);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "each version has a mark")]
    fn a_version_without_a_mark_is_found() {
        let mut found = Listing { entries: entries("m/ [ 1/ 2/ ]") }.find_models();
        found.models[0].mark.versions.pop();
        check_found(&found);
    }
}
