//! The index of a mirror: the objects of the store that its files are copies of. A line each, with
//! size, tag and path between tabs; paths and tags have no control characters.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::store::{StoreObject, check_path, group_of};

/// The first line, which marks the format: an index with another one is not read.
const HEAD: &str = "deuteron store index 1";

/// The objects that a mirror has copies of, by their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreIndex {
    objects: BTreeMap<String, (u64, String)>,
}

impl StoreIndex {
    /// Reads an index. `None` if it is not one, or damaged: then everything is fetched again.
    pub fn decode(text: &str) -> Option<Self> {
        let body = text.strip_prefix(HEAD)?.strip_prefix('\n')?;
        let mut index = Self::default();
        for line in body.lines() {
            let mut parts = line.splitn(3, '\t');
            let (size, tag, path) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
            check_path(path).ok()?;
            index.objects.insert(path.to_owned(), (size, tag.to_owned()));
        }
        // A text cut within a line would end in a shorter path.
        (body.is_empty() || body.ends_with('\n')).then_some(index)
    }

    /// The text of an index.
    pub fn encode(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for (path, (size, tag)) in &self.objects {
            let _ = writeln!(text, "{size}\t{tag}\t{path}");
        }
        text
    }

    /// Returns true if it has no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The models, and the empty name for files beside them.
    pub fn groups(&self) -> Vec<String> {
        let mut groups: Vec<String> = self.objects.keys().map(|path| group_of(path).to_owned()).collect();
        groups.dedup();
        groups.sort();
        groups.dedup();
        groups
    }

    /// The objects of one group: path, size and tag.
    pub fn of_group(&self, group: &str) -> impl Iterator<Item = (&str, u64, &str)> {
        let all = self.objects.iter().filter(move |(path, _)| group_of(path) == group);
        all.map(|(path, (size, tag))| (path.as_str(), *size, tag.as_str()))
    }

    /// Returns true if it has a copy of exactly this object.
    pub fn has(&self, object: &StoreObject) -> bool {
        self.objects.get(&object.path).is_some_and(|(size, tag)| *size == object.size && *tag == line_part(&object.tag))
    }

    /// Bytes of all groups but one.
    pub fn size_without(&self, group: &str) -> u64 {
        let others = self.objects.iter().filter(|(path, _)| group_of(path) != group);
        others.fold(0, |sum: u64, (_, (size, _))| sum.saturating_add(*size))
    }

    /// Replaces all objects of a group by these.
    pub fn replace(&mut self, group: &str, objects: &[StoreObject]) {
        self.objects.retain(|path, _| group_of(path) != group);
        for object in objects {
            self.objects.insert(object.path.clone(), (object.size, line_part(&object.tag)));
        }
    }
}

/// A tag comes from the store, and must not end the line.
fn line_part(tag: &str) -> String {
    tag.chars().filter(|letter| !letter.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(path: &str, size: u64, tag: &str) -> StoreObject {
        StoreObject { path: path.to_owned(), size, tag: tag.to_owned(), sha256: String::new() }
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let mut index = StoreIndex::default();
        let of_m =
            [object("m/1/model.onnx", 7, "\"a\""), object("m/config.pbtxt", 1, "tab\there"), object("m/2/", 0, "")];
        index.replace("m", &of_m);
        index.replace("m.old", &[object("m.old/x", 5, "t")]);
        index.replace("", &[object("x.onnx", 3, "t")]);
        let read = StoreIndex::decode(&index.encode()).unwrap();
        assert_eq!(read, index);
        assert!(of_m.iter().all(|object| read.has(object)));
        assert!(!read.has(&object("m/1/model.onnx", 8, "\"a\"")) && !read.has(&object("m/1/model.onnx", 7, "\"b\"")));
        assert_eq!(read.groups(), ["", "m", "m.old"]);
        assert_eq!((read.size_without("m"), read.of_group("m").count()), (8, 3));
        index.replace("m", &[]);
        assert_eq!(index.groups(), ["", "m.old"]);
    }

    #[test]
    fn what_is_no_whole_index_is_none() {
        let mut index = StoreIndex::default();
        index.replace("m", &[object("m/1/model.onnx", 7, "t")]);
        let text = index.encode();
        for size in 0..text.len() {
            let cut = StoreIndex::decode(&text[..size]);
            assert!(cut.is_none_or(|cut| cut.is_empty()), "{size}");
        }
        for text in ["deuteron store index 2\n", "deuteron store index 1\n1\tt\t../x\n", "deuteron store index 1\nx\n"]
        {
            assert_eq!(StoreIndex::decode(text), None, "{text}");
        }
    }
}
