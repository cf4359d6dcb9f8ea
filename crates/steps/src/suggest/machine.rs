//! Goes through a `model.py` as an interpreter would, on values as far as they are known. Statements are here, expressions in
//! `evaluate`. A loop over rows runs once, on a row that stands for all.

pub(super) mod array;
mod boxes;
mod call;
mod evaluate;
mod fbank;
mod flow;
mod json;
mod numeric;
mod part;
mod picture;
mod python;
mod sound;
mod token;
mod triton;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::limits::{
    SUGGEST_CALLS_MAX, SUGGEST_ELEMENTS_PER_WORK, SUGGEST_ITEMS_MAX, SUGGEST_LEVELS_MAX, SUGGEST_NESTING_MAX,
    SUGGEST_WORK_MAX,
};
use crate::suggest::graph::ValueGraph;
use crate::suggest::op::{Dim, ExprId, Kind, Logic, LoopId, Op};
use crate::suggest::tree::{SyntaxNode, Tree};
use crate::suggest::value::{Arguments, Closure, Dict, Each, List, Object, PyValue};
use crate::suggest::{Remark, SuggestModel};

/// The end of a block of statements.
pub(super) enum Flow {
    Break,
    Continue,
    Next,
    Raise,
    Return(PyValue),
}

#[derive(Default)]
pub(super) struct NameFrame {
    pub names: BTreeMap<String, PyValue>,
    /// The frame around a nested function.
    pub parent: Option<usize>,
    /// True if a nested function refers to it.
    pub is_captured: bool,
}

/// An object of a class of the file.
pub(super) struct ClassInstance {
    pub class: usize,
    pub attributes: BTreeMap<String, PyValue>,
}

pub(super) struct Machine<'a> {
    pub tree: &'a Tree,
    pub model: &'a SuggestModel<'a>,
    pub graph: ValueGraph,
    /// The first one has the names of the module.
    pub frames: Vec<NameFrame>,
    pub frame: usize,
    pub lists: Vec<List>,
    pub dicts: Vec<Dict>,
    pub instances: Vec<ClassInstance>,
    /// The reasons of values that are not interpreted.
    pub reasons: Vec<Remark>,
    pub effects: Vec<Remark>,
    pub assumptions: Vec<Remark>,
    /// The loops over rows around the statement, and the conditions.
    pub loops: Vec<LoopId>,
    pub conditions: Vec<ExprId>,
    /// The last value of a variable that a loop changes.
    pub carried: BTreeMap<ExprId, PyValue>,
    /// Arrays with memory of their own.
    pub copies: BTreeSet<ExprId>,
    /// The texts of files that the model reads.
    pub files: BTreeMap<String, String>,
    /// The loop over requests.
    pub requests: LoopId,
    /// The inputs that are read, and the rows of a request.
    pub inputs: Vec<(String, ExprId)>,
    pub rows: Option<Dim>,
    /// The lists and objects that were there before `execute`, which keep their changes from one call to the next.
    pub kept: Option<(usize, usize)>,
    /// Calls of tokenizers.
    pub calls: usize,
    pub depth: usize,
    nesting: usize,
    work: usize,
    line: usize,
}

impl<'a> Machine<'a> {
    pub fn new(tree: &'a Tree, model: &'a SuggestModel<'a>) -> Self {
        let mut graph = ValueGraph::default();
        let count = graph.open_size(true);
        let requests = graph.new_loop(count);
        Self {
            tree,
            model,
            graph,
            frames: vec![NameFrame::default()],
            frame: 0,
            lists: Vec::new(),
            dicts: Vec::new(),
            instances: Vec::new(),
            reasons: Vec::new(),
            effects: Vec::new(),
            assumptions: Vec::new(),
            loops: Vec::new(),
            conditions: Vec::new(),
            carried: BTreeMap::new(),
            copies: BTreeSet::new(),
            files: BTreeMap::new(),
            requests,
            inputs: Vec::new(),
            rows: None,
            kept: None,
            calls: 0,
            depth: 0,
            nesting: 0,
            work: 0,
            line: 0,
        }
    }

    /// A value that is not interpreted.
    pub fn unknown(&mut self, text: impl Into<String>) -> PyValue {
        self.reasons.push(Remark { line: self.line, text: text.into() });
        PyValue::Unknown(self.reasons.len() - 1)
    }

    pub fn assume(&mut self, text: impl Into<String>) {
        let remark = Remark { line: self.line, text: text.into() };
        if !self.assumptions.contains(&remark) {
            self.assumptions.push(remark);
        }
    }

    pub fn effect(&mut self, text: impl Into<String>) {
        let remark = Remark { line: self.line, text: text.into() };
        if !self.effects.contains(&remark) {
            self.effects.push(remark);
        }
    }

    pub fn go_to(&mut self, node: SyntaxNode<'_>) {
        if node.line() > 0 {
            self.line = node.line();
            self.graph.line = node.line();
        }
    }

    pub fn go_to_line(&mut self, line: Option<usize>) {
        self.line = line.unwrap_or(self.line);
    }

    pub fn line(&self) -> usize {
        self.line
    }

    /// Counts a piece of work; false at the bound.
    pub fn may_work(&mut self) -> bool {
        self.work += 1;
        self.work <= SUGGEST_WORK_MAX
    }

    /// Counts work on `count` elements.
    pub fn charge(&mut self, count: usize) {
        self.work = self.work.saturating_add(count / SUGGEST_ELEMENTS_PER_WORK);
    }

    /// Enters a statement or expression; false at the bound of nesting. [`Self::ascend`] leaves it.
    pub fn descend(&mut self) -> bool {
        self.nesting += 1;
        self.nesting <= SUGGEST_NESTING_MAX
    }

    pub fn ascend(&mut self) {
        self.nesting = self.nesting.saturating_sub(1);
    }

    /// The levels of lists, dictionaries and tuples in a value.
    fn levels(&self, value: &PyValue) -> usize {
        match value {
            PyValue::Tuple(items) => 1 + items.iter().map(|item| self.levels(item)).max().unwrap_or(0),
            PyValue::List(list) => self.lists.get(*list).map_or(1, |list| list.levels),
            PyValue::Dict(dict) => self.dicts.get(*dict).map_or(1, |dict| dict.levels),
            _ => 0,
        }
    }

    /// The levels of a list of values; an error beyond the bound, which lists that hold themselves reach, too.
    pub fn levels_of<'v>(&self, values: impl Iterator<Item = &'v PyValue>) -> Result<usize, String> {
        let levels = 1 + values.map(|value| self.levels(value)).max().unwrap_or(0);
        match levels > SUGGEST_LEVELS_MAX {
            true => Err(format!("lists are nested deeper than {SUGGEST_LEVELS_MAX} levels")),
            false => Ok(levels),
        }
    }

    pub fn new_list(&mut self, items: Vec<PyValue>) -> PyValue {
        let (depth, conditions) = (self.loops.len(), self.conditions.len());
        self.charge(items.len());
        let levels = match self.levels_of(items.iter()) {
            Ok(levels) if items.len() <= SUGGEST_ITEMS_MAX => levels,
            Ok(_) => return self.unknown(format!("a list has more than {SUGGEST_ITEMS_MAX} elements")),
            Err(why) => return self.unknown(why),
        };
        self.lists.push(List { items, each: None, depth, conditions, broken: None, levels });
        PyValue::List(self.lists.len() - 1)
    }

    pub fn new_each(&mut self, on: LoopId, element: PyValue, condition: Option<ExprId>) -> PyValue {
        let levels = match self.levels_of(std::iter::once(&element)) {
            Ok(levels) => levels,
            Err(why) => return self.unknown(why),
        };
        let list = self.new_list(Vec::new());
        if let Some(list) = self.lists.last_mut() {
            list.each = Some(Each { on, element, condition });
            list.levels = levels;
        }
        list
    }

    pub fn new_dict(&mut self, entries: Vec<(PyValue, PyValue)>) -> PyValue {
        let (depth, conditions) = (self.loops.len(), self.conditions.len());
        self.charge(entries.len());
        let levels = match self.levels_of(entries.iter().map(|(_, value)| value)) {
            Ok(levels) => levels,
            Err(why) => return self.unknown(why),
        };
        self.dicts.push(Dict { entries, depth, conditions, broken: None, levels });
        PyValue::Dict(self.dicts.len() - 1)
    }

    pub fn list(&self, id: usize) -> List {
        self.lists.get(id).cloned().unwrap_or_default()
    }

    pub fn dict(&self, id: usize) -> &[(PyValue, PyValue)] {
        self.dicts.get(id).map_or(&[], |dict| dict.entries.as_slice())
    }

    pub fn lookup(&self, name: &str) -> Option<PyValue> {
        let mut frame = Some(self.frame);
        while let Some(index) = frame {
            let NameFrame { names, parent, .. } = self.frames.get(index)?;
            if let Some(value) = names.get(name) {
                return Some(value.clone());
            }
            frame = parent.or((index != 0).then_some(0));
        }
        None
    }

    pub fn bind(&mut self, name: &str, value: PyValue) {
        if let Some(frame) = self.frames.get_mut(self.frame) {
            frame.names.insert(name.to_owned(), value);
        }
    }

    pub fn run(&mut self, body: &[SyntaxNode<'a>]) -> Flow {
        let conditions = self.conditions.len();
        let flow = match self.descend() {
            true => self.run_statements(body),
            false => Flow::Return(self.unknown(TOO_NESTED)),
        };
        self.ascend();
        self.conditions.truncate(conditions);
        flow
    }

    fn run_statements(&mut self, body: &[SyntaxNode<'a>]) -> Flow {
        for statement in body {
            self.go_to(*statement);
            if !self.may_work() {
                return Flow::Return(self.unknown("the file has too much to go through"));
            }
            let flow = match statement.kind() {
                "If" => self.branch(*statement),
                _ => self.statement(*statement),
            };
            if !matches!(flow, Flow::Next) {
                return flow;
            }
        }
        Flow::Next
    }

    fn statement(&mut self, node: SyntaxNode<'a>) -> Flow {
        match node.kind() {
            "Assign" | "AnnAssign" => {
                let Some(value) = node.child("value") else { return Flow::Next };
                let value = self.eval(value);
                let targets: Vec<_> = node.children("targets").into_iter().chain(node.child("target")).collect();
                targets.into_iter().for_each(|target| self.assign(target, value.clone()));
            }
            "AugAssign" => self.augment(node),
            "Expr" => {
                let Some(value) = node.child("value") else { return Flow::Next };
                self.expression_statement(value);
            }
            "Return" => {
                let value = node.child("value").map_or(PyValue::Nothing, |value| self.eval(value));
                return Flow::Return(value);
            }
            "Raise" => return Flow::Raise,
            "Continue" => return Flow::Continue,
            "Break" => return Flow::Break,
            "For" => return self.for_each(node),
            "With" => return self.with(node),
            "Try" | "TryStar" => return self.attempt(node),
            "FunctionDef" => self.define(node),
            "ClassDef" => self.bind(node.text("name"), PyValue::Class(node.index)),
            "Import" | "ImportFrom" => self.import(node),
            "Assert" | "Pass" | "Delete" | "Nonlocal" | "Global" => {
                if matches!(node.kind(), "Nonlocal" | "Global") {
                    let why = self.unknown("variables of an outer scope are not followed");
                    node.texts("names").iter().for_each(|name| self.bind(name, why.clone()));
                }
            }
            other => self.forget(node, &format!("the statement '{}' is not followed", other.to_lowercase())),
        }
        Flow::Next
    }

    fn define(&mut self, node: SyntaxNode<'a>) {
        let frame = self.captured_frame();
        let value = match node.children("decorator_list").is_empty() {
            true => PyValue::Function(Closure { node: node.index, own: None, frame }),
            false => self.unknown(format!("the function '{}' has a decorator", node.text("name"))),
        };
        self.bind(node.text("name"), value);
    }

    /// The frame that a new function refers to; `None` for the module's.
    pub fn captured_frame(&mut self) -> Option<usize> {
        let frame = (self.frame != 0).then_some(self.frame)?;
        self.frames.get_mut(frame).into_iter().for_each(|frame| frame.is_captured = true);
        Some(frame)
    }

    /// Takes all that a statement may assign as not known.
    fn forget(&mut self, node: SyntaxNode<'a>, why: &str) {
        let why = self.unknown(why);
        for below in node.descendants() {
            match below.kind() {
                "Assign" => below.children("targets").into_iter().for_each(|target| self.assign(target, why.clone())),
                "AugAssign" | "AnnAssign" | "For" | "NamedExpr" => {
                    below.child("target").into_iter().for_each(|target| self.assign(target, why.clone()));
                }
                "Call" => self.disturb(below, &why),
                _ => {}
            }
        }
    }

    /// Takes what a call may change as not known: its arguments, and the object whose method it is.
    pub fn disturb(&mut self, call: SyntaxNode<'a>, why: &PyValue) {
        let receiver = call.child("func").and_then(|function| function.child("value"));
        let mut touched: Vec<_> = call.children("args").into_iter().chain(receiver).collect();
        touched.extend(call.children("keywords").into_iter().filter_map(|keyword| keyword.child("value")));
        for node in touched {
            match (node.kind(), self.quiet(node)) {
                (_, PyValue::List(list)) => {
                    if let (Some(list), PyValue::Unknown(reason)) = (self.lists.get_mut(list), why) {
                        list.broken = Some(*reason);
                    }
                }
                ("Name", PyValue::Array(..) | PyValue::Dict(_) | PyValue::Object(_)) => {
                    self.bind(node.text("id"), why.clone())
                }
                ("Attribute", PyValue::Array(..) | PyValue::Dict(_) | PyValue::Object(_)) => {
                    self.assign(node, why.clone())
                }
                _ => {}
            }
        }
    }

    /// The value of a name or an attribute; nothing for other expressions.
    fn quiet(&mut self, node: SyntaxNode<'a>) -> PyValue {
        match node.kind() {
            "Name" => self.lookup(node.text("id")).unwrap_or(PyValue::Nothing),
            "Attribute" => match node.child("value").map(|value| self.quiet(value)) {
                Some(PyValue::Instance(instance)) => {
                    let attributes = self.instances.get(instance).map(|instance| &instance.attributes);
                    attributes.and_then(|known| known.get(node.text("attr")).cloned()).unwrap_or(PyValue::Nothing)
                }
                _ => PyValue::Nothing,
            },
            _ => PyValue::Nothing,
        }
    }

    pub fn assign(&mut self, target: SyntaxNode<'a>, value: PyValue) {
        match target.kind() {
            "Name" => self.bind(target.text("id"), value),
            "Tuple" | "List" => self.unpack(target, value),
            "Starred" => {
                let why = self.unknown("a starred target is not followed");
                target.child("value").into_iter().for_each(|target| self.assign(target, why.clone()));
            }
            "Attribute" => {
                let Some(object) = target.child("value").map(|object| self.eval(object)) else { return };
                let value = match self.conditions.is_empty() {
                    true => value,
                    false => self.unknown("an attribute depends on a condition"),
                };
                if let PyValue::Object(object) = &object {
                    let why = self.unknown(format!("'{}' of an object is set", target.text("attr")));
                    self.replace_object(object, &why);
                }
                let is_kept = |known: &PyValue| match (known, self.kept) {
                    (PyValue::Instance(instance), Some((_, kept))) => {
                        *instance < kept && self.has_attribute(*instance, target)
                    }
                    _ => false,
                };
                let value = match is_kept(&object) {
                    true => {
                        self.unknown(format!("'{}' changes from one call of execute to the next", target.text("attr")))
                    }
                    false => value,
                };
                if let PyValue::Instance(instance) = object
                    && let Some(instance) = self.instances.get_mut(instance)
                {
                    instance.attributes.insert(target.text("attr").to_owned(), value);
                }
            }
            "Subscript" => self.assign_part(target, value),
            _ => {}
        }
    }

    fn has_attribute(&self, instance: usize, target: SyntaxNode<'_>) -> bool {
        self.instances.get(instance).is_some_and(|instance| instance.attributes.contains_key(target.text("attr")))
    }

    fn unpack(&mut self, target: SyntaxNode<'a>, value: PyValue) {
        let targets = target.children("elts");
        let parts = match self.parts(&value, targets.len()) {
            Ok(parts) => parts,
            Err(why) => {
                let why = match value {
                    PyValue::Unknown(_) => value,
                    _ => self.unknown(why),
                };
                vec![why; targets.len()]
            }
        };
        targets.into_iter().zip(parts).for_each(|(target, part)| self.assign(target, part));
    }

    /// The parts of a value that is unpacked into `count` names.
    fn parts(&mut self, value: &PyValue, count: usize) -> Result<Vec<PyValue>, String> {
        let wrong = || format!("it cannot be unpacked into {count} names");
        let parts = match value {
            PyValue::Tuple(items) => items.clone(),
            PyValue::List(list) => self.list(*list).items,
            PyValue::Array(id, kind) => {
                let first = self.graph.shape(*id).first().copied().ok_or_else(wrong)?;
                if first != Dim::Known(count as u64) {
                    return Err(wrong());
                }
                let take = |place| self.item(*id, *kind, place);
                (0..count as i64).map(take).collect::<Result<_, _>>()?
            }
            _ => return Err(wrong()),
        };
        if parts.len() == count { Ok(parts) } else { Err(wrong()) }
    }

    fn augment(&mut self, node: SyntaxNode<'a>) {
        let (Some(target), Some(value)) = (node.child("target"), node.child("value")) else { return };
        let (old, new) = (self.eval(target), self.eval(value));
        if let (PyValue::List(list), "Add") = (&old, node.text("op")) {
            self.extend(*list, &new);
            return;
        }
        let result = self.binary(node.text("op"), &old, &new, true);
        let result = result.unwrap_or_else(|why| self.unknown(why));
        if let Some((id, _)) = old.array() {
            self.change_in_place(id);
        }
        self.assign(target, result);
    }

    /// Takes all names of an array that changes in place as not known: those that share its memory change, too.
    pub fn change_in_place(&mut self, id: ExprId) {
        let root = self.memory_of(id);
        let mut places = Vec::new();
        for (frame, names) in self.frames.iter().enumerate() {
            places.extend(
                names
                    .names
                    .iter()
                    .filter_map(|(name, value)| Some((Some(frame), None, name.clone(), value.array()?.0))),
            );
        }
        for (instance, names) in self.instances.iter().enumerate() {
            places.extend(
                names
                    .attributes
                    .iter()
                    .filter_map(|(name, value)| Some((None, Some(instance), name.clone(), value.array()?.0))),
            );
        }
        for (frame, instance, name, other) in places {
            if self.memory_of(other) != root || self.graph.kind(other) == Kind::Text {
                continue;
            }
            let why = self.unknown(format!("'{name}' may share the memory of an array that is changed"));
            if let Some(frame) = frame.and_then(|frame| self.frames.get_mut(frame)) {
                frame.names.insert(name.clone(), why.clone());
            }
            if let Some(instance) = instance.and_then(|instance| self.instances.get_mut(instance)) {
                instance.attributes.insert(name, why);
            }
        }
    }

    /// The expression whose memory an array shares.
    fn memory_of(&self, mut id: ExprId) -> ExprId {
        while let (
            Op::View | Op::Slice { .. } | Op::Take { .. } | Op::Transpose(_) | Op::Row(_) | Op::WithColumn(_),
            Some(below),
            false,
        ) = (self.graph.op(id), self.graph.operand(id), self.copies.contains(&id))
        {
            id = below;
        }
        id
    }

    fn with(&mut self, node: SyntaxNode<'a>) -> Flow {
        for item in node.children("items") {
            let value = item.child("context_expr").map_or(PyValue::Nothing, |context| self.eval(context));
            item.child("optional_vars").into_iter().for_each(|target| self.assign(target, value.clone()));
        }
        self.run(&node.children("body"))
    }

    fn attempt(&mut self, node: SyntaxNode<'a>) -> Flow {
        if self.frame != 0 && !self.loops.is_empty() {
            self.assume("'except' is left out: the steps answer mistakes in their own words");
        }
        let flow = self.run(&node.children("body"));
        let flow = match flow {
            Flow::Next => self.run(&node.children("orelse")),
            Flow::Raise if self.frame == 0 => Flow::Next,
            other => other,
        };
        match self.run(&node.children("finalbody")) {
            Flow::Next => flow,
            other => other,
        }
    }

    fn import(&mut self, node: SyntaxNode<'a>) {
        for alias in node.children("names") {
            let (name, renamed) = (alias.text("name"), alias.text("asname"));
            let is_from = node.kind() == "ImportFrom";
            let full = match is_from {
                true => format!("{}.{name}", node.text("module")),
                false if renamed.is_empty() => name.split('.').next().unwrap_or_default().to_owned(),
                false => name.to_owned(),
            };
            let bound = match (renamed.is_empty(), is_from) {
                (false, _) => renamed,
                (true, true) => name,
                (true, false) => name.split('.').next().unwrap_or_default(),
            };
            let is_relative = node.text("level").parse::<u32>().is_ok_and(|level| level > 0);
            let value = match is_relative {
                true => self.unknown(format!("'{name}' is of another file, which is not read")),
                false => PyValue::Library(crate::suggest::library::canonical(&full)),
            };
            self.bind(bound, value);
        }
    }

    /// Appends an element to a list.
    pub fn append(&mut self, list: usize, value: PyValue) {
        let (depth, active) = (self.loops.len(), self.loops.last().copied());
        let Some(known) = self.lists.get(list) else { return };
        let (made, conditions) = (known.depth, self.conditions.get(known.conditions..).unwrap_or_default().to_vec());
        let known_levels = known.levels;
        let is_full = known.items.len() >= SUGGEST_ITEMS_MAX || self.kept.is_some_and(|(kept, _)| list < kept);
        let levels = match self.levels_of(std::iter::once(&value)) {
            Ok(levels) if !is_full => levels.max(known_levels),
            _ => {
                let PyValue::Unknown(reason) =
                    self.unknown("a list is nested too deeply, too long, or keeps elements from one call to the next")
                else {
                    return;
                };
                self.lists.get_mut(list).into_iter().for_each(|list| list.broken = Some(reason));
                return;
            }
        };
        self.lists.get_mut(list).into_iter().for_each(|list| list.levels = levels);
        let Some(known) = self.lists.get(list) else { return };
        let result = match (depth.saturating_sub(made), active) {
            (0, _) if conditions.is_empty() && known.each.is_none() => None,
            (1, Some(on)) if known.items.is_empty() && known.each.is_none() => {
                Some(self.all_of(&conditions).map(|all| (on, all)))
            }
            _ => Some(Err("its elements are appended in a way that is not followed".to_owned())),
        };
        match result {
            None => self.lists.get_mut(list).into_iter().for_each(|list| list.items.push(value.clone())),
            Some(Ok((on, condition))) => {
                let each = Each { on, element: value, condition };
                self.lists.get_mut(list).into_iter().for_each(|list| list.each = Some(each.clone()));
            }
            Some(Err(why)) => {
                let PyValue::Unknown(reason) = self.unknown(why) else { return };
                self.lists.get_mut(list).into_iter().for_each(|list| list.broken = Some(reason));
            }
        }
    }

    fn all_of(&mut self, conditions: &[ExprId]) -> Result<Option<ExprId>, String> {
        let mut all: Option<ExprId> = None;
        for condition in conditions {
            all = Some(match all {
                None => *condition,
                Some(before) => self.logical(Logic::And, before, *condition)?,
            });
        }
        Ok(all)
    }

    /// Appends the elements of another list.
    pub fn extend(&mut self, list: usize, other: &PyValue) {
        match self.items(other) {
            Ok(items) => items.into_iter().for_each(|item| self.append(list, item)),
            Err(why) => {
                let PyValue::Unknown(reason) = self.unknown(why) else { return };
                self.lists.get_mut(list).into_iter().for_each(|list| list.broken = Some(reason));
            }
        }
    }

    fn expression_statement(&mut self, value: SyntaxNode<'a>) {
        if value.kind() == "Constant" {
            return;
        }
        let is_known = value.kind() == "Call" && self.note_effect(value);
        if is_known {
            return;
        }
        if self.change_tokenizer(value) {
            return;
        }
        let before = self.reasons.len();
        let result = self.eval(value);
        if let (PyValue::Unknown(reason), "Call") = (&result, value.kind()) {
            let text = self.reasons.get(*reason).map(|reason| reason.text.clone()).unwrap_or_default();
            if *reason >= before {
                self.effect(format!("a call is left out: {text}"));
            }
            self.disturb(value, &result);
        }
    }

    /// A call that changes a tokenizer; false for others.
    fn change_tokenizer(&mut self, call: SyntaxNode<'a>) -> bool {
        let Some(function) = call.child("func").filter(|function| function.kind() == "Attribute") else { return false };
        let name = function.text("attr");
        if !["enable_padding", "enable_truncation", "no_padding", "no_truncation"].contains(&name) {
            return false;
        }
        let Some(receiver) = function.child("value") else { return false };
        let PyValue::Object(object) = self.eval(receiver) else { return false };
        let Object::Tokenizer(tokenizer) = &*object else { return false };
        let positional = call.children("args").into_iter().map(|argument| self.eval(argument)).collect();
        let mut arguments = Arguments { positional, named: Vec::new() };
        for keyword in call.children("keywords") {
            let value = keyword.child("value").map_or(PyValue::Nothing, |value| self.eval(value));
            arguments.named.push((keyword.text("arg").to_owned(), value));
        }
        let changed = match Self::changed_tokenizer(tokenizer, name, &arguments) {
            Some(Ok(changed)) => PyValue::object(Object::Tokenizer(changed)),
            Some(Err(why)) => self.unknown(format!("'{name}': {why}")),
            None => return false,
        };
        self.replace_object(&object, &changed);
        true
    }

    /// Gives all names of an object another value.
    fn replace_object(&mut self, object: &Arc<Object>, by: &PyValue) {
        let is_it = |value: &PyValue| matches!(value, PyValue::Object(known) if Arc::ptr_eq(known, object));
        let names = self.frames.iter_mut().flat_map(|frame| frame.names.values_mut());
        let attributes = self.instances.iter_mut().flat_map(|instance| instance.attributes.values_mut());
        names.chain(attributes).filter(|value| is_it(value)).for_each(|value| *value = by.clone());
    }

    /// The response that a value is, if it is one.
    pub fn as_object(value: &PyValue) -> Option<&Object> {
        match value {
            PyValue::Object(object) => Some(object),
            _ => None,
        }
    }

    pub fn begin_frame(&mut self, parent: Option<usize>, names: Vec<(String, PyValue)>) {
        self.frames.push(NameFrame { names: names.into_iter().collect(), parent, is_captured: false });
        self.frame = self.frames.len() - 1;
    }

    /// Leaves a frame, which is kept if a function refers to it.
    pub fn end_frame(&mut self, caller: usize) {
        if self.frame + 1 == self.frames.len() && self.frames.last().is_some_and(|frame| !frame.is_captured) {
            self.frames.pop();
        }
        self.frame = caller;
    }

    /// Calls a function of the file.
    pub fn enter(&mut self, parent: Option<usize>, names: Vec<(String, PyValue)>, body: &[SyntaxNode<'a>]) -> PyValue {
        if self.depth >= SUGGEST_CALLS_MAX {
            return self.unknown(format!("calls are nested deeper than {SUGGEST_CALLS_MAX}"));
        }
        let (caller, line) = (self.frame, self.line);
        self.begin_frame(parent, names);
        self.depth += 1;
        let flow = self.run(body);
        self.depth -= 1;
        self.end_frame(caller);
        self.line = line;
        self.graph.line = line;
        match flow {
            Flow::Return(value) => value,
            Flow::Raise => self.unknown("the function raises an exception"),
            _ => PyValue::Nothing,
        }
    }
}

/// The reason at the bound of nesting.
pub(super) const TOO_NESTED: &str = "the file is nested too deeply, or calls itself";
