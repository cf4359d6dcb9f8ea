//! The steps that make a mirror equal to the store: for each model the objects to fetch and those
//! to keep, from the store's listing and the mirror's index.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::index::StoreIndex;
use crate::store::{StoreObject, check_path, group_of};

/// The models of a store, and the plan for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorPlan {
    /// The plans by the name of the model, empty for the files beside the models; or the reason why
    /// a model is not taken.
    pub groups: BTreeMap<String, Result<GroupPlan, String>>,
    /// Groups of the mirror that the store no longer has.
    pub gone: Vec<String>,
    /// Objects that cannot belong to a model, each with the reason.
    pub ignored: Vec<String>,
}

/// The plan for one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPlan {
    /// Objects that the mirror lacks or has in an older state.
    pub fetch: Vec<StoreObject>,
    /// Objects that it has.
    pub keep: Vec<StoreObject>,
    /// True if the mirror has anything that the store no longer has.
    pub has_removed: bool,
}

impl GroupPlan {
    /// Returns true if the mirror equals the store.
    pub const fn is_done(&self) -> bool {
        self.fetch.is_empty() && !self.has_removed
    }

    /// All objects, as they will be.
    pub fn objects(&self) -> Vec<StoreObject> {
        self.fetch.iter().chain(&self.keep).cloned().collect()
    }

    /// Bytes of all objects.
    pub fn size(&self) -> u64 {
        self.fetch.iter().chain(&self.keep).fold(0, |sum: u64, object| sum.saturating_add(object.size))
    }
}

/// Compares a listing of a whole repository with the index. Models are taken in the order of their names, as long as all
/// of them have at most `bytes_max` bytes.
pub fn plan(listing: &[StoreObject], index: &StoreIndex, bytes_max: u64) -> MirrorPlan {
    let mut plan = MirrorPlan::default();
    let mut left = bytes_max;
    for (name, objects) in groups(listing, &mut plan.ignored) {
        let group = objects.and_then(|objects| compare(&name, objects, index, &mut left));
        plan.groups.insert(name, group);
    }
    plan.gone = index.groups().into_iter().filter(|name| !plan.groups.contains_key(name)).collect();
    plan
}

/// The same for the objects of one model alone; `None` if the store no longer has it.
pub fn plan_model(
    name: &str,
    listing: &[StoreObject],
    index: &StoreIndex,
    bytes_max: u64,
) -> Option<Result<GroupPlan, String>> {
    let mut left = bytes_max.saturating_sub(index.size_without(name));
    let objects = groups(listing, &mut Vec::new()).remove(name)?;
    Some(objects.and_then(|objects| compare(name, objects, index, &mut left)))
}

fn compare(name: &str, objects: Vec<StoreObject>, index: &StoreIndex, left: &mut u64) -> Result<GroupPlan, String> {
    let (keep, fetch): (Vec<_>, Vec<_>) = objects.into_iter().partition(|object| index.has(object));
    let known: BTreeSet<&str> = fetch.iter().chain(&keep).map(|object| object.path.as_str()).collect();
    let has_removed = index.of_group(name).any(|(path, ..)| !known.contains(path));
    let plan = GroupPlan { fetch, keep, has_removed };
    let size = plan.size();
    *left = left.checked_sub(size).ok_or_else(|| {
        format!("its {size} bytes are more than are left of --model-store-bytes-max; raise it, or remove models")
    })?;
    Ok(plan)
}

/// The objects of each group, or the reason why it cannot be mirrored.
fn groups(listing: &[StoreObject], ignored: &mut Vec<String>) -> BTreeMap<String, Result<Vec<StoreObject>, String>> {
    let mut groups: BTreeMap<String, Result<Vec<StoreObject>, String>> = BTreeMap::new();
    let parents: BTreeSet<&str> = listing.iter().flat_map(|object| parents(&object.path)).collect();
    let mut seen = BTreeSet::new();
    for object in listing {
        let bare = object.path.strip_suffix('/').unwrap_or(&object.path);
        // Consoles and copies of directories leave empty objects that stand for directories.
        let is_empty = object.size == 0;
        let is_version = || is_version_path(bare);
        let is_directory = is_empty && (object.path.ends_with('/') || parents.contains(bare) || is_version());
        let path = if is_directory { format!("{bare}/") } else { object.path.clone() };
        let group = group_of(&path);
        let fault = check_path(&object.path).err().or_else(|| {
            let is_file_and_directory = !is_directory && (parents.contains(bare) || object.path.ends_with('/'));
            let is_twice = !is_file_and_directory && !seen.insert(bare);
            (is_file_and_directory || is_twice).then_some("its path is a file's and another's too")
        });
        match fault {
            Some(why) if check_path(group).is_err() || group.is_empty() => {
                ignored.push(format!("'{}': {why}", object.path.escape_debug()));
            }
            Some(why) => {
                let why = format!("the object '{}' cannot be mirrored: {why}", object.path.escape_debug());
                groups.insert(group.to_owned(), Err(why));
            }
            None => {
                let object = StoreObject { path: path.clone(), ..object.clone() };
                if let Ok(objects) = groups.entry(group.to_owned()).or_insert_with(|| Ok(Vec::new())) {
                    objects.push(object);
                }
            }
        }
    }
    groups
}

/// Returns true if it is the path of a version of a model, or of one of the only model. Some copies
/// omit the slash behind it.
fn is_version_path(path: &str) -> bool {
    let name = path.split_once('/').map_or(path, |(_, name)| name);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// The directories above a path.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    let bare = path.strip_suffix('/').unwrap_or(path);
    bare.match_indices('/').filter_map(|(at, _)| bare.get(..at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `path=size:tag` each.
    fn listing(text: &str) -> Vec<StoreObject> {
        let object = |word: &str| {
            let (path, rest) = word.split_once('=').unwrap();
            let (size, tag) = rest.split_once(':').unwrap_or((rest, "t"));
            let (size, tag) = (size.parse().unwrap(), tag.to_owned());
            StoreObject { path: path.to_owned(), size, tag, sha256: String::new() }
        };
        text.split_whitespace().map(object).collect()
    }

    fn index(text: &str) -> StoreIndex {
        let mut index = StoreIndex::default();
        let objects = listing(text);
        let groups: BTreeSet<&str> = objects.iter().map(|object| group_of(&object.path)).collect();
        for group in groups {
            let own: Vec<_> = objects.iter().filter(|object| group_of(&object.path) == group).cloned().collect();
            index.replace(group, &own);
        }
        index
    }

    fn text(plan: &MirrorPlan) -> String {
        let paths =
            |objects: &[StoreObject]| objects.iter().map(|object| object.path.as_str()).collect::<Vec<_>>().join(",");
        let mut lines = Vec::new();
        for (name, group) in &plan.groups {
            let name = if name.is_empty() { "." } else { name };
            lines.push(match group {
                Err(why) => format!("{name}: {why}"),
                Ok(group) if group.is_done() => format!("{name} as it is"),
                Ok(group) => {
                    let removed = if group.has_removed { " and less" } else { "" };
                    format!("{name} fetch {} keep {}{removed}", paths(&group.fetch), paths(&group.keep))
                }
            });
        }
        lines.extend(plan.gone.iter().map(|name| format!("{name} gone")));
        lines.extend(plan.ignored.iter().map(|why| format!("ignored {why}")));
        lines.join("; ")
    }

    #[test]
    fn only_what_changed_is_fetched_and_what_vanished_goes() {
        let check = |store: &str, mirror: &str, want: &str| {
            assert_eq!(text(&plan(&listing(store), &index(mirror), 1_000)), want, "{store} | {mirror}");
        };
        check("", "", "");
        check("m/1/a=5 m/c=1", "", "m fetch m/1/a,m/c keep ");
        check("m/1/a=5 m/c=1", "m/1/a=5 m/c=1", "m as it is");
        check("m/1/a=5:new m/c=1", "m/1/a=5:old m/c=1", "m fetch m/1/a keep m/c");
        check("m/1/a=6 m/c=1", "m/1/a=5 m/c=1", "m fetch m/1/a keep m/c");
        check("m/1/a=5 m/2/a=5", "m/1/a=5", "m fetch m/2/a keep m/1/a");
        check("m/2/a=5", "m/1/a=5 m/2/a=5", "m fetch  keep m/2/a and less");
        check("m/1/a=5", "m/1/a=5 n/1/a=5", "m as it is; n gone");
        check("x.onnx=5 m/1/a=5", "m/1/a=5", ". fetch x.onnx keep ; m as it is");
        check("m/1/a=5", "m/1/a=5 x.onnx=5", "m as it is;  gone");
    }

    #[test]
    fn objects_that_stand_for_directories_are_directories() {
        let check =
            |store: &str, want: &str| assert_eq!(text(&plan(&listing(store), &index(""), 1_000)), want, "{store}");
        check("m=0 m/1=0 m/1/a=5", "m fetch m/,m/1/,m/1/a keep ");
        check("m/1/=0 m/c=1", "m fetch m/1/,m/c keep ");
        check("m/1=0 m/c=1", "m fetch m/1/,m/c keep ");
        check("m/1/empty=0 m/1/7=0", "m fetch m/1/empty,m/1/7 keep ");
        check("1=0 config.pbtxt=4", ". fetch config.pbtxt keep ; 1 fetch 1/ keep ");
    }

    #[test]
    fn a_name_that_leads_elsewhere_or_collides_costs_its_model_alone() {
        let check =
            |store: &str, want: &str| assert_eq!(text(&plan(&listing(store), &index(""), 1_000)), want, "{store}");
        let refused = |path: &str, why: &str| format!("m: the object '{path}' cannot be mirrored: {why}");
        let good = "; n fetch n/1/a keep ";
        check("m/1/a=5 m/../../x=1 n/1/a=5", &(refused("m/../../x", "its path leads elsewhere") + good));
        check("m/../../x=1 m/1/a=5 n/1/a=5", &(refused("m/../../x", "its path leads elsewhere") + good));
        check("m//a=5 n/1/a=5", &(refused("m//a", "its path has an empty part") + good));
        check("m/1=5 m/1/a=5 n/1/a=5", &(refused("m/1", "its path is a file's and another's too") + good));
        check("m/1/a=5 m/1/a=6 n/1/a=5", &(refused("m/1/a", "its path is a file's and another's too") + good));
        check("m/1/a/=5 n/1/a=5", &(refused("m/1/a/", "its path is a file's and another's too") + good));
        check("../x=1 n/1/a=5", "n fetch n/1/a keep ; ignored '../x': its path leads elsewhere");
        check("/etc/x=1 n/1/a=5", "n fetch n/1/a keep ; ignored '/etc/x': its path has an empty part");
    }

    #[test]
    fn models_beyond_the_bytes_that_are_kept_are_refused() {
        let store = listing("a/1/x=6 b/1/x=5 c/1/x=4");
        let got = text(&plan(&store, &index("a/1/x=6"), 10));
        let refused = "its 5 bytes are more than are left of --model-store-bytes-max; raise it, or remove models";
        assert_eq!(got, format!("a as it is; b: {refused}; c fetch c/1/x keep "));
        let one = |name: &str, bytes_max| plan_model(name, &store, &index("a/1/x=6"), bytes_max).unwrap().is_ok();
        assert!(one("b", 11) && !one("b", 10) && one("a", 6));
        assert_eq!(plan_model("d", &store, &index(""), 10), None);
    }
}
