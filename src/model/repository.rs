//! What a model repository holds, over a listing that the server made of it: which directories
//! are models, which of theirs are versions, and which versions a policy serves. It opens
//! nothing.

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
    /// What it holds, as far as the server looked: two levels below the repository are enough.
    pub children: Vec<Entry>,
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
        Ok(Self { name: entry.name.clone(), has_config: entry.children.iter().any(is_config), versions, files })
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

/// The number of a version's directory: digits without a leading zero. Triton's own directories
/// beside them (`warmup`, `initial_state`, `configs`) are not numbers.
pub fn version(name: &str) -> Option<u64> {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit()) && !name.starts_with('0');
    name.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    stack.last_mut().unwrap().push(Entry { name, is_directory: word.ends_with('/'), children: vec![] });
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
