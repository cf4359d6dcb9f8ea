//! What a model repository holds, over a listing that the server made of it: which directories
//! are models, which of theirs are versions, and which versions a policy serves. It opens
//! nothing.

pub mod changes;
pub mod index;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::error::Error;
use crate::limits::VERSIONS_MAX;
use crate::model::name;
use crate::model::parse::text::Notation;
use crate::model::platform::{ONNX_BACKEND, ONNX_FILENAME};
use crate::model::spec::VersionPolicy;

/// Names as they lie on disk: a repository, its models' directories, their versions' directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// What the directory holds, in any order.
    pub entries: Vec<ListingEntry>,
}

/// One name of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListingEntry {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// What it holds, as far as the server looked.
    pub children: Vec<ListingEntry>,
    /// What changes when the file does: made of its size, place and time of change; 0 for a directory.
    pub stamp: u64,
    /// Why the server did not look at all of it, where it did not.
    pub fault: Option<String>,
}

/// What changes when something in a model's directory does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeMark {
    /// Of what all versions share: the configuration, labels, files for warm-up.
    pub shared: u64,
    /// Of each version's directory, with its number, the highest first.
    pub versions: Vec<(u64, u64)>,
}

/// What was found in a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundModels {
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
    /// Where it lies beneath the repository.
    pub path: String,
    /// Whether its only version lies in the directory itself, as an ONNX file by its own name does.
    pub is_flat: bool,
    /// The configurations that it holds: more than one is one too many.
    pub configs: Vec<Notation>,
    /// A configuration that goes before those: that of a file, which brings none, or a client's.
    pub given: Option<(Notation, String)>,
    /// Its versions, the highest first.
    pub versions: Vec<u64>,
    /// What the directory of the first version, as names are sorted, holds: the backend is told
    /// from it where the configuration does not say.
    pub files: Vec<String>,
    /// What changes when the directory does.
    pub mark: ChangeMark,
}

/// Versions that a policy serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionChoice {
    /// These, the highest first.
    pub versions: Vec<u64>,
    /// Named by the policy, but not there.
    pub missing: Vec<u64>,
}

impl Listing {
    /// Looks for models.
    pub fn find_models(&self) -> FoundModels {
        let mut found = FoundModels::default();
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

impl Listing {
    /// Whether it is one model's own directory and no repository of models: it holds an ONNX file of
    /// the usual name, a version that holds one, or a configuration beside a version.
    pub fn is_model(&self) -> bool {
        let is_file = |entry: &ListingEntry| !entry.is_directory && entry.name == ONNX_FILENAME;
        let is_version = |entry: &&ListingEntry| entry.is_directory && version(&entry.name).is_some();
        let mut versions = self.entries.iter().filter(is_version);
        let has_config = !configs(&self.entries).is_empty();
        self.entries.iter().any(is_file) || versions.any(|version| has_config || version.children.iter().any(is_file))
    }
}

impl ModelDirectory {
    /// Reads a directory of a repository as a model's.
    pub fn from_entry(entry: &ListingEntry) -> Result<Self, Error> {
        name::check_model_name(&entry.name)?;
        if let Some(fault) = &entry.fault {
            return Err(Error::invalid(format!("model '{}': {fault}", entry.name)));
        }
        let is_version = |child: &&ListingEntry| child.is_directory && version(&child.name).is_some();
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
        Ok(Self {
            name: entry.name.clone(),
            path: entry.name.clone(),
            is_flat: false,
            configs: configs(&entry.children),
            given: None,
            versions,
            files,
            mark: ChangeMark::from_entry(entry),
        })
    }

    /// A directory that is not in a repository but a model by itself, under the name that it has.
    pub fn of_listing(name: String, listing: Listing) -> Result<Self, Error> {
        let files: Vec<_> = listing.entries.iter().map(|entry| entry.name.clone()).collect();
        let entry = ListingEntry {
            name: "m".to_owned(),
            is_directory: true,
            children: listing.entries,
            ..ListingEntry::default()
        };
        let mut model = Self { name, path: ".".to_owned(), ..Self::from_entry(&entry)? };
        if model.versions.is_empty() {
            (model.is_flat, model.versions, model.files) = (true, vec![1], files);
            model.files.sort();
            model.mark.versions = vec![(1, model.mark.shared)];
        }
        Ok(model)
    }

    /// An ONNX file, and what changes when it does.
    pub fn of_file(name: String, filename: &str, stamp: u64) -> Result<Self, Error> {
        name::check_model_name(&name)
            .map_err(|error| Error::invalid(format!("{error}; give one with --model-name")))?;
        let mut generated = format!("backend: \"{ONNX_BACKEND}\" default_model_filename: \"");
        filename.bytes().for_each(|byte| generated.push_str(&format!("\\x{byte:02x}")));
        generated.push('"');
        let files = vec![filename.to_owned()];
        let path = ".".to_owned();
        let given = Some((Notation::Text, generated));
        let mark = ChangeMark { shared: 0, versions: vec![(1, stamp)] };
        Ok(Self { name, path, is_flat: true, configs: vec![], given, versions: vec![1], files, mark })
    }

    /// How its configuration is written; `None` where it has none.
    pub fn notation(&self) -> Result<Option<Notation>, Error> {
        if let [one, other, ..] = self.configs.as_slice() {
            let (one, other) = (one.filename(), other.filename());
            return Err(Error::invalid(format!("model '{}' has {one} and {other}: keep one of them", self.name)));
        }
        Ok(self.configs.first().copied())
    }

    /// Where a file of the model lies beneath the repository.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Where a version lies beneath the repository.
    pub fn version_path(&self, version: u64) -> String {
        if self.is_flat { self.path.clone() } else { format!("{}/{version}", self.path) }
    }

    /// Which of the versions a policy serves; fails where it serves none.
    pub fn choose_versions(&self, policy: &VersionPolicy) -> Result<VersionChoice, Error> {
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
        Ok(VersionChoice { versions, missing })
    }
}

impl ChangeMark {
    fn from_entry(entry: &ListingEntry) -> Self {
        let number = |child: &ListingEntry| version(&child.name).filter(|_| child.is_directory);
        let shared: Vec<&ListingEntry> = entry.children.iter().filter(|child| number(child).is_none()).collect();
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
fn digest(entries: &[&ListingEntry]) -> u64 {
    let mut entries: Vec<_> = entries.iter().filter(|entry| !entry.name.starts_with('.')).collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut hasher = DefaultHasher::new();
    for entry in entries {
        (&entry.name, entry.is_directory, entry.stamp).hash(&mut hasher);
        digest(&entry.children.iter().collect::<Vec<_>>()).hash(&mut hasher);
    }
    hasher.finish()
}

fn configs(children: &[ListingEntry]) -> Vec<Notation> {
    let is_there =
        |notation: &Notation| children.iter().any(|child| !child.is_directory && child.name == notation.filename());
    Notation::ALL.into_iter().filter(is_there).collect()
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

    fn entry(name: String, is_directory: bool) -> ListingEntry {
        ListingEntry { name, is_directory, ..ListingEntry::default() }
    }

    /// `a/ b` are a directory and a file; what follows a directory in brackets is inside it.
    fn entries(text: &str) -> Vec<ListingEntry> {
        let mut stack: Vec<Vec<ListingEntry>> = vec![Vec::new()];
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
            let configs: Vec<_> = model.configs.iter().map(|config| format!(" {}", config.filename())).collect();
            let (configs, files) = (configs.concat(), model.files.join(" "));
            lines.push(format!("{}{configs} {:?} {files}", model.name, model.versions));
        }
        lines.extend(found.refused.iter().map(|(name, _)| format!("refused {name}")));
        lines.extend(found.ignored.iter().map(|name| format!("ignored {name}")));
        lines.join("; ")
    }

    #[test]
    fn listings_are_models_versions_and_strays() {
        let check = |text: &str, want: &str| assert_eq!(found(text), want, "{text}");
        check("", "");
        check("m/ [ config.pbtxt 1/ [ model.onnx ] ]", "m config.pbtxt [1] model.onnx");
        check("m/ [ config.json 1/ [ ] ]", "m config.json [1] ");
        check("m/ [ config.toml config.pbtxt 1/ [ ] ]", "m config.pbtxt config.toml [1] ");
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
        let mark = |text: &str, change: &dyn Fn(&mut ListingEntry)| {
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

    #[test]
    fn a_model_by_itself_is_told_from_a_repository() {
        let check = |text: &str, want: Option<&str>| {
            let listing = Listing { entries: entries(text) };
            assert_eq!(listing.is_model(), want.is_some(), "{text}");
            let Some(want) = want else { return };
            let model = ModelDirectory::of_listing("d".to_owned(), listing).unwrap();
            let at: Vec<_> = model.versions.iter().map(|version| model.version_path(*version)).collect();
            assert_eq!(format!("{} {} {}", model.name, at.join(","), model.files.join(" ")), want, "{text}");
        };
        check("model.onnx", Some("d . model.onnx"));
        check("model.onnx config.json README.md", Some("d . README.md config.json model.onnx"));
        check("1/ [ model.onnx ]", Some("d ./1 model.onnx"));
        check("config.pbtxt 1/ [ ] 3/ [ model.onnx ]", Some("d ./3,./1 "));
        check("config.toml 2/", Some("d ./2 "));
        check("", None);
        check("m/ [ 1/ [ model.onnx ] ]", None);
        check("1/ [ 1/ [ model.onnx ] ]", None);
        check("config.pbtxt m/ [ 1/ ]", None);
        check("model.onnx/ [ 1/ ]", None);
    }

    #[test]
    fn two_configurations_are_one_too_many() {
        let model = ModelDirectory::from_entry(&entries("m/ [ config.toml config.json 1/ ]")[0]).unwrap();
        let error = model.notation().unwrap_err();
        assert_eq!(error.text(), "model 'm' has config.json and config.toml: keep one of them");
    }

    #[test]
    fn a_file_has_any_name_in_its_configuration() {
        let model = ModelDirectory::of_file("m".to_owned(), "a \"b\".onnx", 7).unwrap();
        assert_eq!(model.mark, ChangeMark { shared: 0, versions: vec![(1, 7)] });
        let given = model.given.as_ref().map(|(_, text)| text.as_bytes());
        let draft = crate::model::config::ConfigDraft::new("m", given, &[]).unwrap();
        assert_eq!(draft.onnx_filename(), Some("a \"b\".onnx"));
        assert!(
            ModelDirectory::of_file("a b".to_owned(), "a b.onnx", 0)
                .unwrap_err()
                .text()
                .ends_with("give one with --model-name")
        );
    }
}
