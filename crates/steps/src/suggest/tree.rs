//! The syntax tree of a `model.py`, from the JSON that `tree.py` prints. The text is not trusted: indices, sizes and depth are
//! checked here, so that no walk can fail or run in a circle.

use base::error::Error;
use wire::json::placed;
use wire::placed::{Placed, PlacedMember, PlacedValue};

use crate::limits::{SUGGEST_DEPTH_MAX, SUGGEST_NODES_MAX, SUGGEST_TREE_SIZE_MAX};

/// A syntax tree.
#[derive(Debug)]
pub struct Tree {
    /// Children come before their parents; the last one is the module.
    nodes: Vec<SyntaxEntry>,
}

#[derive(Debug)]
struct SyntaxEntry {
    kind: String,
    line: usize,
    fields: Vec<(String, TreeField)>,
}

#[derive(Debug)]
enum TreeField {
    /// `None` stands for a child that is not there, as a key of `{**other}`.
    List(Vec<Option<usize>>),
    SyntaxNode(usize),
    Nothing,
    Text(String),
    Texts(Vec<String>),
}

/// A node of a tree.
#[derive(Clone, Copy)]
pub struct SyntaxNode<'a> {
    tree: &'a Tree,
    /// Its place in the tree.
    pub index: usize,
    node: &'a SyntaxEntry,
}

impl Tree {
    /// Reads the JSON of a tree.
    ///
    /// # Errors
    /// `InvalidArgument` if the text is no such tree, or is larger or deeper than the bounds.
    pub fn read(text: &str) -> Result<Self, Error> {
        let malformed = |why: &str| Error::invalid(format!("the syntax tree of model.py is malformed: {why}"));
        if text.len() > SUGGEST_TREE_SIZE_MAX {
            return Err(malformed(&format!("it has more than {SUGGEST_TREE_SIZE_MAX} bytes")));
        }
        let document = placed::read(text).map_err(|error| malformed(&error.text))?;
        let PlacedValue::Table(members) = document.value else { return Err(malformed("it is no object")) };
        let nodes = members.into_iter().find(|member| member.name == "nodes").map(|member| member.value.value);
        let Some(PlacedValue::List(list)) = nodes else { return Err(malformed("\"nodes\" is no list")) };
        if list.is_empty() || list.len() > SUGGEST_NODES_MAX {
            return Err(malformed(&format!("it must have 1 to {SUGGEST_NODES_MAX} nodes")));
        }
        let mut tree = Self { nodes: Vec::with_capacity(list.len()) };
        let mut depths: Vec<usize> = Vec::with_capacity(list.len());
        for (place, placed) in list.into_iter().enumerate() {
            let node = node(placed, place).ok_or_else(|| malformed(&format!("node {place} is not as expected")))?;
            let below = children(&node).map(|child| depths.get(child).copied().unwrap_or(0)).max();
            let depth = below.unwrap_or(0) + 1;
            if depth > SUGGEST_DEPTH_MAX {
                return Err(malformed(&format!("it is deeper than {SUGGEST_DEPTH_MAX} levels")));
            }
            depths.push(depth);
            tree.nodes.push(node);
        }
        Ok(tree)
    }

    /// The module.
    pub fn root(&self) -> Option<SyntaxNode<'_>> {
        self.node(self.nodes.len().checked_sub(1)?)
    }

    /// The node at a place.
    pub fn node(&self, index: usize) -> Option<SyntaxNode<'_>> {
        self.nodes.get(index).map(|node| SyntaxNode { tree: self, index, node })
    }
}

impl<'a> SyntaxNode<'a> {
    /// The class in Python's module `ast`.
    pub fn kind(self) -> &'a str {
        &self.node.kind
    }

    /// Its first line, from 1.
    pub fn line(self) -> usize {
        self.node.line
    }

    /// The child with this name.
    pub fn child(self, name: &str) -> Option<SyntaxNode<'a>> {
        match self.field(name)? {
            TreeField::SyntaxNode(index) => self.tree.node(*index),
            _ => None,
        }
    }

    /// The children in a list; those that are not there are left out.
    pub fn children(self, name: &str) -> Vec<SyntaxNode<'a>> {
        self.places(name).into_iter().flatten().collect()
    }

    /// The children in a list, each with its place.
    pub fn places(self, name: &str) -> Vec<Option<SyntaxNode<'a>>> {
        match self.field(name) {
            Some(TreeField::List(list)) => list.iter().map(|index| self.tree.node((*index)?)).collect(),
            _ => Vec::new(),
        }
    }

    /// A text; empty without one.
    pub fn text(self, name: &str) -> &'a str {
        match self.field(name) {
            Some(TreeField::Text(text)) => text,
            _ => "",
        }
    }

    /// Texts in a list.
    pub fn texts(self, name: &str) -> &'a [String] {
        match self.field(name) {
            Some(TreeField::Texts(texts)) => texts,
            _ => &[],
        }
    }

    /// All nodes below it, and itself, in no order that means something.
    pub fn descendants(self) -> Vec<SyntaxNode<'a>> {
        let (mut found, mut next) = (vec![self], 0);
        while let Some(node) = found.get(next).copied() {
            // A malformed tree may use a node twice.
            if found.len() > SUGGEST_NODES_MAX {
                break;
            }
            found.extend(children(node.node).filter_map(|child| self.tree.node(child)));
            next += 1;
        }
        found
    }

    fn field(self, name: &str) -> Option<&'a TreeField> {
        self.node.fields.iter().find(|(known, _)| known == name).map(|(_, field)| field)
    }
}

fn children(node: &SyntaxEntry) -> impl Iterator<Item = usize> + '_ {
    node.fields.iter().flat_map(|(_, field)| {
        let several = match field {
            TreeField::List(list) => list.as_slice(),
            _ => &[],
        };
        let one = if let TreeField::SyntaxNode(index) = field { Some(*index) } else { None };
        one.into_iter().chain(several.iter().flatten().copied())
    })
}

/// Reads a node; `None` if it is malformed, or refers to one that is not before it.
fn node(placed: Placed, place: usize) -> Option<SyntaxEntry> {
    let PlacedValue::List(list) = placed.value else { return None };
    let [kind, line, fields] = <[Placed; 3]>::try_from(list).ok()?;
    let PlacedValue::String(kind) = kind.value else { return None };
    let PlacedValue::Table(members) = fields.value else { return None };
    let fields = members.into_iter().map(|PlacedMember { name, value, .. }| Some((name, field(value.value, place)?)));
    Some(SyntaxEntry { kind, line: index(&line.value, usize::MAX)?, fields: fields.collect::<Option<_>>()? })
}

fn field(value: PlacedValue, place: usize) -> Option<TreeField> {
    Some(match value {
        PlacedValue::Null => TreeField::Nothing,
        PlacedValue::String(text) => TreeField::Text(text),
        PlacedValue::List(list) if matches!(list.first().map(|first| &first.value), Some(PlacedValue::String(_))) => {
            let text = |element: Placed| match element.value {
                PlacedValue::String(text) => Some(text),
                _ => None,
            };
            TreeField::Texts(list.into_iter().map(text).collect::<Option<_>>()?)
        }
        PlacedValue::List(list) => {
            let child = |element: &Placed| match &element.value {
                PlacedValue::Null => Some(None),
                value => index(value, place).map(Some),
            };
            TreeField::List(list.iter().map(child).collect::<Option<_>>()?)
        }
        other => TreeField::SyntaxNode(index(&other, place)?),
    })
}

/// A number below a bound.
fn index(value: &PlacedValue, bound: usize) -> Option<usize> {
    match value {
        PlacedValue::Number(text) => text.parse().ok().filter(|index| *index < bound),
        _ => None,
    }
}
