//! Which file imports which. An arrow leads from the module that names an item to the module that declares it, through
//! every `pub use` between them. Among the modules of one parent the arrows must not form a circle, at every level from
//! the crate down to the smallest folder; a module and its own children count as one, since a type may have its methods
//! in several files.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// The modules by path, and the re-exports of each by `pub use`.
pub struct Tree {
    modules: BTreeMap<String, Vec<Use>>,
}

struct Use {
    /// The absolute path: `wire::json::Document`.
    path: String,
    /// The name that it has here.
    name: String,
    is_public: bool,
}

impl Tree {
    pub fn new(sources: &[Source]) -> Self {
        let names: BTreeSet<&str> = sources.iter().map(|source| source.module.as_str()).collect();
        let uses = |source: &Source| {
            let found = statements(source.code());
            let absolute = |(is_public, tree): (bool, String)| {
                let module = source.module.as_str();
                let items = leaves(&tree).into_iter();
                items
                    .map(|(path, name)| Use { path: absolute(&path, module, &names), name, is_public })
                    .collect::<Vec<_>>()
            };
            found.into_iter().flat_map(absolute).collect()
        };
        Self { modules: sources.iter().map(|source| (source.module.clone(), uses(source))).collect() }
    }

    /// The arrows of all modules, each once.
    pub fn arrows(&self, sources: &[Source]) -> BTreeSet<(String, String)> {
        let mut arrows = BTreeSet::new();
        for source in sources.iter().filter(|source| !source.is_test_only() && !source.module.is_empty()) {
            let imported = self.modules[&source.module].iter().filter(|own| !own.is_public).map(|own| own.path.clone());
            let names = inline_paths(source);
            for path in imported.chain(names) {
                let to = self.declared_in(&path, 0);
                if !to.is_empty() && to != source.module {
                    arrows.insert((source.module.clone(), to));
                }
            }
        }
        arrows
    }

    /// The module that declares an item; empty for the crate itself and for an item of another crate.
    fn declared_in(&self, path: &str, depth: usize) -> String {
        let parts: Vec<&str> = path.split("::").collect();
        let Some(size) = (1..=parts.len()).rev().find(|size| self.modules.contains_key(&parts[..*size].join("::")))
        else {
            return String::new();
        };
        let module = parts[..size].join("::");
        let handed_on = parts
            .get(size)
            .and_then(|item| self.modules[&module].iter().find(|own| own.is_public && own.name == *item));
        match handed_on {
            Some(own) if depth < 8 => {
                let to = self.declared_in(&own.path, depth + 1);
                if to.is_empty() { module } else { to }
            }
            _ => module,
        }
    }
}

/// The circles, each as the modules that reach one another, sorted.
pub fn circles(arrows: &BTreeSet<(String, String)>) -> Vec<Vec<String>> {
    // By parent: the arrows between its children.
    let mut levels: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (from, to) in arrows {
        let (from, to): (Vec<&str>, Vec<&str>) = (from.split("::").collect(), to.split("::").collect());
        let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
        if let (Some(_), Some(_)) = (from.get(shared), to.get(shared)) {
            let child = |path: &[&str]| path[..=shared].join("::");
            let level = levels.entry(from[..shared].join("::")).or_default();
            level.entry(child(&from)).or_default().insert(child(&to));
        }
    }
    let mut circles = BTreeSet::new();
    for level in levels.values() {
        for start in level.keys() {
            let reached = reachable(level, start);
            let circle: Vec<_> = reached.iter().filter(|to| reachable(level, to).contains(start)).cloned().collect();
            if !circle.is_empty() {
                circles.insert(circle);
            }
        }
    }
    circles.into_iter().collect()
}

fn reachable(level: &BTreeMap<String, BTreeSet<String>>, start: &str) -> BTreeSet<String> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![start.to_owned()]);
    while let Some(from) = left.pop() {
        for to in level.get(&from).into_iter().flatten() {
            if reached.insert(to.clone()) {
                left.push(to.clone());
            }
        }
    }
    reached
}

/// The `use` statements of a file: whether public, and the tree of paths.
fn statements(code: &str) -> Vec<(bool, String)> {
    let mut found = Vec::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let start = line.trim_start();
        let rest = start.strip_prefix("pub").map_or(start, |rest| {
            rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")).map_or(rest.trim_start(), |(_, rest)| rest)
        });
        let Some(tree) = rest.strip_prefix("use ") else { continue };
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            let Some(more) = lines.next() else { break };
            tree.push_str(more);
        }
        found.push((start.starts_with("pub"), tree.split(';').next().unwrap_or_default().to_owned()));
    }
    found
}

/// `a::{b, c::{self, d as e}}` as its paths, each with the name that it gives.
fn leaves(tree: &str) -> Vec<(String, String)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name)));
        let path = path.trim().trim_end_matches("::self").to_owned();
        let name = name.unwrap_or_else(|| path.rsplit("::").next().unwrap()).to_owned();
        return vec![(path, name)];
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut items) = (0, vec![String::new()]);
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        items.last_mut().unwrap().push(character);
    }
    let items = items.iter().map(|item| item.trim()).filter(|item| !item.is_empty());
    items.flat_map(|item| leaves(&format!("{}{item}", prefix.trim()))).collect()
}

/// A path from the crate's root; a foreign crate's stays as it is.
fn absolute(path: &str, module: &str, modules: &BTreeSet<&str>) -> String {
    let own: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let join = |base: &[&str], rest: &str| base.iter().copied().chain([rest]).collect::<Vec<_>>().join("::");
    if let Some(rest) = path.strip_prefix("crate::") {
        return rest.to_owned();
    }
    if let Some(rest) = path.strip_prefix("self::") {
        return join(&own, rest);
    }
    if path.starts_with("super::") {
        let ups = path.matches("super::").count();
        return join(&own[..own.len().saturating_sub(ups)], path.trim_start_matches("super::"));
    }
    let child = join(&own, path.split("::").next().unwrap_or_default());
    if modules.contains(child.as_str()) { join(&own, path) } else { path.to_owned() }
}

/// The paths from the root that are written out within the code.
fn inline_paths(source: &Source) -> Vec<String> {
    let mut paths = Vec::new();
    for line in source.lines().filter(|line| !line.trim_start().starts_with("use ") && !line.contains(" use ")) {
        for found in line.split("crate::").skip(1) {
            let end = found.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(found.len());
            paths.push(found[..end].trim_end_matches(':').to_owned());
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources: Vec<_> = files.iter().map(|(name, text)| Source::new(name, text)).collect();
        circles(&Tree::new(&sources).arrows(&sources))
    }

    #[test]
    fn a_circle_is_found_within_a_room_and_between_rooms_and_through_what_is_handed_on() {
        let files = [("src/a/mod.rs", ""), ("src/a/b.rs", "use crate::a::c::X;"), ("src/a/c.rs", "")];
        assert!(found(&files).is_empty());
        let files = [
            ("src/a/mod.rs", ""),
            ("src/a/b.rs", "use super::c::{\n    X,\n};"),
            ("src/a/c.rs", "use crate::a::{b, d};"),
        ];
        assert_eq!(found(&files), [["a::b", "a::c"]]);
        let files = [
            ("src/a.rs", "use crate::b::X;"),
            ("src/b/mod.rs", "pub use c::X;"),
            ("src/b/c.rs", "fn f() { crate::a::g() }"),
        ];
        assert_eq!(found(&files), [["a", "b"]]);
        let files = [
            ("src/a/mod.rs", "pub use c::X;"),
            ("src/a/b.rs", "use crate::a::X;"),
            ("src/a/c.rs", "use crate::a::b::Y;"),
        ];
        assert_eq!(found(&files), [["a::b", "a::c"]], "not hidden behind the parent");
        let files = [("src/a/mod.rs", "use crate::a::b::X;"), ("src/a/b.rs", "use crate::a::Y;")];
        assert!(found(&files).is_empty(), "a module and its children are one");
    }
}
