//! What a model repository holds, over a listing that the server made of it: which directories
//! are models, which of theirs are versions, and which versions a policy serves. It opens
//! nothing.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::error::Error;
use crate::limits::VERSIONS_MAX;
use crate::model::check;
use crate::model::spec::VersionPolicy;

/// Names as they lie on disk: a repository, its models' directories, their versions' directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// What the directory holds, in any order.
    pub entries: Vec<Entry>,
}

/// One name of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// What it holds, as far as the server looked.
    pub children: Vec<Entry>,
    /// What changes when the file does: made of its size, place and time of change; 0 for a directory.
    pub stamp: u64,
    /// Why the server did not look at all of it, where it did not.
    pub fault: Option<String>,
}

/// What changes when something in a model's directory does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Of what all versions share: the configuration, labels, files for warm-up.
    pub shared: u64,
    /// Of each version's directory, with its number, the highest first.
    pub versions: Vec<(u64, u64)>,
}

/// What was found in a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The models, by name.
    pub models: Vec<ModelDirectory>,
    /// Directories that cannot be models, with the reason.
    pub refused: Vec<(String, Error)>,
    /// Names that mean nothing here: stray files, hidden directories.
    pub ignored: Vec<String>,
}

/// A model's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDirectory {
    /// Its name, which is the model's.
    pub name: String,
    /// Whether it holds a `config.pbtxt`.
    pub has_config: bool,
    /// Its versions, the highest first.
    pub versions: Vec<u64>,
    /// What the directory of the first version, as names are sorted, holds: the backend is told
    /// from it where the configuration does not say.
    pub files: Vec<String>,
    /// What changes when the directory does.
    pub mark: Mark,
}

/// Versions that a policy serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// These, the highest first.
    pub versions: Vec<u64>,
    /// Named by the policy, but not there.
    pub missing: Vec<u64>,
}

impl Listing {
    /// Looks for models.
    pub fn find_models(&self) -> Found {
        let mut found = Found::default();
        for entry in &self.entries {
            // A leading dot is what mounts and editors leave behind (`..data`, `.ipynb_checkpoints`).
            if !entry.is_directory || entry.name.starts_with('.') {
                found.ignored.push(entry.name.clone());
                continue;
            }
            match ModelDirectory::from_entry(entry) {
                Ok(model) => found.models.push(model),
                Err(error) => found.refused.push((entry.name.clone(), error)),
            }
        }
        found.models.sort_by(|one, other| one.name.cmp(&other.name));
        found.refused.sort_by(|one, other| one.0.cmp(&other.0));
        found.ignored.sort();
        found
    }
}

impl ModelDirectory {
    /// Reads a directory of a repository as a model's.
    pub fn from_entry(entry: &Entry) -> Result<Self, Error> {
        check::directory(&entry.name)?;
        if let Some(fault) = &entry.fault {
            return Err(Error::invalid(format!("model '{}': {fault}", entry.name)));
        }
        let is_version = |child: &&Entry| child.is_directory && version(&child.name).is_some();
        let mut directories: Vec<_> = entry.children.iter().filter(is_version).collect();
        if directories.len() > VERSIONS_MAX {
            return Err(Error::invalid(format!(
                "model '{}' has {} versions, more than the {VERSIONS_MAX} that are looked at; remove old ones",
                entry.name,
                directories.len()
            )));
        }
        directories.sort_by(|one, other| one.name.cmp(&other.name));
        let first = directories.first().map(|first| first.children.as_slice()).unwrap_or_default();
        let mut files: Vec<_> = first.iter().map(|file| file.name.clone()).collect();
        files.sort();
        let mut versions: Vec<_> = directories.iter().filter_map(|directory| version(&directory.name)).collect();
        versions.sort_unstable_by(|one, other| other.cmp(one));
        let is_config = |child: &Entry| !child.is_directory && child.name == "config.pbtxt";
        let has_config = entry.children.iter().any(is_config);
        Ok(Self { name: entry.name.clone(), has_config, versions, files, mark: Mark::from_entry(entry) })
    }

    /// Which of the versions a policy serves; fails where it serves none.
    pub fn choose_versions(&self, policy: &VersionPolicy) -> Result<Choice, Error> {
        let mut missing = Vec::new();
        let versions: Vec<u64> = match policy {
            VersionPolicy::All => self.versions.clone(),
            VersionPolicy::Latest(count) => {
                let count = usize::try_from(*count).unwrap_or(usize::MAX);
                self.versions.iter().take(count).copied().collect()
            }
            VersionPolicy::Specific(wanted) => {
                missing.extend(wanted.iter().filter(|version| !self.versions.contains(version)));
                self.versions.iter().filter(|version| wanted.contains(version)).copied().collect()
            }
        };
        if versions.is_empty() {
            return Err(Error::invalid(format!(
                "at least one version must be available under the version policy of model '{}'",
                self.name
            )));
        }
        Ok(Choice { versions, missing })
    }
}

impl Mark {
    fn from_entry(entry: &Entry) -> Self {
        let number = |child: &Entry| version(&child.name).filter(|_| child.is_directory);
        let shared: Vec<&Entry> = entry.children.iter().filter(|child| number(child).is_none()).collect();
        let mut versions: Vec<_> = entry
            .children
            .iter()
            .filter_map(|child| Some((number(child)?, digest(&child.children.iter().collect::<Vec<_>>()))))
            .collect();
        versions.sort_unstable_by(|one, other| other.cmp(one));
        Self { shared: digest(&shared), versions }
    }
}

/// Of the entries in any order: names, stamps, and what lies below. Hidden names do not count:
/// editors and mounts leave them behind while they work.
fn digest(entries: &[&Entry]) -> u64 {
    let mut entries: Vec<_> = entries.iter().filter(|entry| !entry.name.starts_with('.')).collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut hasher = DefaultHasher::new();
    for entry in entries {
        (&entry.name, entry.is_directory, entry.stamp).hash(&mut hasher);
        digest(&entry.children.iter().collect::<Vec<_>>()).hash(&mut hasher);
    }
    hasher.finish()
}

/// The number of a version's directory: digits without a leading zero. Triton's own directories
/// beside them (`warmup`, `initial_state`, `configs`) are not numbers.
pub fn version(name: &str) -> Option<u64> {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit()) && !name.starts_with('0');
    name.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: String, is_directory: bool) -> Entry {
        Entry { name, is_directory, ..Entry::default() }
    }

    /// `a/ b` are a directory and a file; what follows a directory in brackets is inside it.
    fn entries(text: &str) -> Vec<Entry> {
        let mut stack: Vec<Vec<Entry>> = vec![Vec::new()];
        for word in text.replace('[', " [ ").replace(']', " ] ").split_whitespace() {
            match word {
                "[" => stack.push(Vec::new()),
                "]" => {
                    let children = stack.pop().unwrap();
                    stack.last_mut().unwrap().last_mut().unwrap().children = children;
                }
                _ => {
                    let name = word.trim_end_matches('/').to_owned();
                    stack.last_mut().unwrap().push(entry(name, word.ends_with('/')));
                }
            }
        }
        stack.pop().unwrap()
    }

    fn found(text: &str) -> String {
        let found = Listing { entries: entries(text) }.find_models();
        let mut lines = Vec::new();
        for model in &found.models {
            let config = if model.has_config { " config" } else { "" };
            lines.push(format!("{}{config} {:?} {}", model.name, model.versions, model.files.join(" ")));
        }
        lines.extend(found.refused.iter().map(|(name, _)| format!("refused {name}")));
        lines.extend(found.ignored.iter().map(|name| format!("ignored {name}")));
        lines.join("; ")
    }

    #[test]
    fn listings_are_models_versions_and_strays() {
        let check = |text: &str, want: &str| assert_eq!(found(text), want, "{text}");
        check("", "");
        check("m/ [ config.pbtxt 1/ [ model.onnx ] ]", "m config [1] model.onnx");
        check("b/ [ 1/ ] a/ [ 2/ [ y x ] 10/ [ z ] ]", "a [10, 2] z; b [1] ");
        check("m/ [ 1/ 007/ 0/ -1/ +1/ 1.5/ one/ 3 warmup/ initial_state/ configs/ ]", "m [1] ");
        check("m/ [ 18446744073709551615/ 18446744073709551616/ ]", "m [18446744073709551615] ");
        check("m/ [ config.pbtxt/ labels.txt ]", "m [] ");
        check("README.md ..data/ .git/ m/ [ 1/ ]", "m [1] ; ignored ..data; ignored .git; ignored README.md");
        check("lost+found/ é/ ok-1.2_3/ [ 1/ ]", "ok-1.2_3 [1] ; refused lost+found; refused é");
        let long = "a".repeat(256);
        check(&format!("{long}/ [ 1/ ]"), &format!("refused {long}"));
    }

    #[test]
    fn a_mark_changes_with_what_lies_there_and_only_where_it_does() {
        let mark = |text: &str, change: &dyn Fn(&mut Entry)| {
            let mut model = entries(text).remove(0);
            change(&mut model);
            ModelDirectory::from_entry(&model).unwrap().mark
        };
        let text = "m/ [ config.pbtxt warmup/ [ a ] 1/ [ f ] 2/ [ f ] ]";
        let base = mark(text, &|_| ());
        assert_eq!(
            base,
            mark("m/ [ 2/ [ f ] warmup/ [ a ] 1/ [ f ] config.pbtxt .x ]", &|_| ()),
            "order, hidden names"
        );
        let config = mark(text, &|model| model.children[0].stamp = 1);
        assert!(config.shared != base.shared && config.versions == base.versions);
        let warmup = mark(text, &|model| model.children[1].children[0].stamp = 1);
        assert!(warmup.shared != base.shared && warmup.versions == base.versions);
        let file = mark(text, &|model| model.children[2].children[0].stamp = 1);
        assert!(file.shared == base.shared && file.versions[0] == base.versions[0]);
        assert_ne!(file.versions[1], base.versions[1]);
        let more = mark("m/ [ config.pbtxt warmup/ [ a ] 1/ [ f ] 2/ [ f g ] ]", &|_| ());
        assert!(more.shared == base.shared && more.versions[0] != base.versions[0]);
    }

    #[test]
    fn a_directory_that_was_not_looked_at_whole_is_no_model() {
        let mut model = entries("m/ [ 1/ ]").remove(0);
        model.fault = Some("it holds more names than are looked at".to_owned());
        let error = ModelDirectory::from_entry(&model).unwrap_err();
        assert_eq!(error.text(), "model 'm': it holds more names than are looked at");
    }

    #[test]
    fn policies_pick_versions_highest_first() {
        let model = ModelDirectory::from_entry(&entries("m/ [ 1/ 3/ 20/ ]")[0]).unwrap();
        let check = |policy: VersionPolicy, versions: &[u64], missing: &[u64]| {
            let got = model.choose_versions(&policy).map(|choice| (choice.versions, choice.missing));
            assert_eq!(got, Ok((versions.to_vec(), missing.to_vec())), "{policy:?}");
        };
        check(VersionPolicy::All, &[20, 3, 1], &[]);
        check(VersionPolicy::Latest(1), &[20], &[]);
        check(VersionPolicy::Latest(2), &[20, 3], &[]);
        check(VersionPolicy::Latest(u32::MAX), &[20, 3, 1], &[]);
        check(VersionPolicy::Specific(vec![1, 3]), &[3, 1], &[]);
        check(VersionPolicy::Specific(vec![1, 1, 2]), &[1], &[2]);
    }

    #[test]
    fn a_model_without_a_version_to_serve_is_refused() {
        let check = |listing: &str, policy: VersionPolicy| {
            let model = ModelDirectory::from_entry(&entries(listing)[0]).unwrap();
            let want = "at least one version must be available under the version policy of model 'm'";
            assert_eq!(model.choose_versions(&policy).unwrap_err().text(), want, "{listing} {policy:?}");
        };
        check("m/ [ config.pbtxt ]", VersionPolicy::All);
        check("m/ [ 007/ ]", VersionPolicy::Latest(1));
        check("m/ [ 1/ ]", VersionPolicy::Latest(0));
        check("m/ [ 1/ ]", VersionPolicy::Specific(vec![2]));
        check("m/ [ 1/ ]", VersionPolicy::Specific(vec![]));
    }

    #[test]
    fn too_many_versions_fail_that_model_alone() {
        let many: Vec<_> = (1..=VERSIONS_MAX + 1).map(|version| format!("{version}/")).collect();
        let text = format!("many/ [ {} ] one/ [ 1/ ]", many.join(" "));
        assert_eq!(found(&text), "one [1] ; refused many");
    }
}
