//! Goes through a `model.py` as an interpreter would, on values as far as they are known. Statements are here, expressions in
//! `evaluate`. A loop over rows runs once, on a row that stands for all.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::limits::{
    SUGGEST_CALLS_MAX, SUGGEST_ELEMENTS_PER_WORK, SUGGEST_ITEMS_MAX, SUGGEST_LEVELS_MAX, SUGGEST_NESTING_MAX,
    SUGGEST_WORK_MAX,
};
use crate::suggest::graph::{ExprId, Graph, LoopId};
use crate::suggest::op::{Kind, Op};
use crate::suggest::tree::{Node, Tree};
use crate::suggest::value::{Dict, Each, List, Object, Value};
use crate::suggest::{Remark, SuggestModel};

/// The end of a block of statements.
pub(super) enum Flow {
    Break,
    Continue,
    Next,
    Raise,
    Return(Value),
}

#[derive(Default)]
pub(super) struct Frame {
    pub names: BTreeMap<String, Value>,
    /// The frame around a nested function.
    pub parent: Option<usize>,
    /// True if a nested function refers to it.
    pub is_captured: bool,
}

/// An object of a class of the file.
pub(super) struct Instance {
    pub class: usize,
    pub attributes: BTreeMap<String, Value>,
}

pub(super) struct Machine<'a> {
    pub tree: &'a Tree,
    pub model: &'a SuggestModel<'a>,
    pub graph: Graph,
    /// The first one has the names of the module.
    pub frames: Vec<Frame>,
    pub frame: usize,
    pub lists: Vec<List>,
    pub dicts: Vec<Dict>,
    pub instances: Vec<Instance>,
    /// The reasons of values that are not interpreted.
    pub reasons: Vec<Remark>,
    pub effects: Vec<Remark>,
    pub assumptions: Vec<Remark>,
    /// The loops over rows around the statement, and the conditions.
    pub loops: Vec<LoopId>,
    pub conditions: Vec<ExprId>,
    /// The last value of a variable that a loop changes.
    pub carried: BTreeMap<ExprId, Value>,
    /// Arrays with memory of their own.
    pub copies: BTreeSet<ExprId>,
    /// The texts of files that the model reads.
    pub files: BTreeMap<String, String>,
    /// The loop over requests.
    pub requests: LoopId,
    /// The inputs that are read, and the rows of a request.
    pub inputs: Vec<(String, ExprId)>,
    pub rows: Option<super::graph::Dim>,
    /// Calls of tokenizers.
    pub calls: usize,
    pub depth: usize,
    nesting: usize,
    work: usize,
    line: usize,
}

impl<'a> Machine<'a> {
    pub fn new(tree: &'a Tree, model: &'a SuggestModel<'a>) -> Self {
        let mut graph = Graph::default();
        let count = graph.open_size(true);
        let requests = graph.new_loop(count);
        Self {
            tree,
            model,
            graph,
            frames: vec![Frame::default()],
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
            calls: 0,
            depth: 0,
            nesting: 0,
            work: 0,
            line: 0,
        }
    }

    /// A value that is not interpreted.
    pub fn unknown(&mut self, text: impl Into<String>) -> Value {
        self.reasons.push(Remark { line: self.line, text: text.into() });
        Value::Unknown(self.reasons.len() - 1)
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

    pub fn go_to(&mut self, node: Node<'_>) {
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
    fn levels(&self, value: &Value) -> usize {
        match value {
            Value::Tuple(items) => 1 + items.iter().map(|item| self.levels(item)).max().unwrap_or(0),
            Value::List(list) => self.lists.get(*list).map_or(1, |list| list.levels),
            Value::Dict(dict) => self.dicts.get(*dict).map_or(1, |dict| dict.levels),
            _ => 0,
        }
    }

    /// The levels of a list of values; an error beyond the bound, which lists that hold themselves reach, too.
    pub fn levels_of<'v>(&self, values: impl Iterator<Item = &'v Value>) -> Result<usize, String> {
        let levels = 1 + values.map(|value| self.levels(value)).max().unwrap_or(0);
        match levels > SUGGEST_LEVELS_MAX {
            true => Err(format!("lists are nested deeper than {SUGGEST_LEVELS_MAX} levels")),
            false => Ok(levels),
        }
    }

    pub fn new_list(&mut self, items: Vec<Value>) -> Value {
        let (depth, conditions) = (self.loops.len(), self.conditions.len());
        self.charge(items.len());
        let levels = match self.levels_of(items.iter()) {
            Ok(levels) if items.len() <= SUGGEST_ITEMS_MAX => levels,
            Ok(_) => return self.unknown(format!("a list has more than {SUGGEST_ITEMS_MAX} elements")),
            Err(why) => return self.unknown(why),
        };
        self.lists.push(List { items, each: None, depth, conditions, broken: None, levels });
        Value::List(self.lists.len() - 1)
    }

    pub fn new_each(&mut self, on: LoopId, element: Value, condition: Option<ExprId>) -> Value {
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

    pub fn new_dict(&mut self, entries: Vec<(Value, Value)>) -> Value {
        let (depth, conditions) = (self.loops.len(), self.conditions.len());
        self.charge(entries.len());
        let levels = match self.levels_of(entries.iter().map(|(_, value)| value)) {
            Ok(levels) => levels,
            Err(why) => return self.unknown(why),
        };
        self.dicts.push(Dict { entries, depth, conditions, broken: None, levels });
        Value::Dict(self.dicts.len() - 1)
    }

    pub fn list(&self, id: usize) -> List {
        self.lists.get(id).cloned().unwrap_or_default()
    }

    pub fn dict(&self, id: usize) -> &[(Value, Value)] {
        self.dicts.get(id).map_or(&[], |dict| dict.entries.as_slice())
    }

    pub fn lookup(&self, name: &str) -> Option<Value> {
        let mut frame = Some(self.frame);
        while let Some(index) = frame {
            let Frame { names, parent, .. } = self.frames.get(index)?;
            if let Some(value) = names.get(name) {
                return Some(value.clone());
            }
            frame = parent.or((index != 0).then_some(0));
        }
        None
    }

    pub fn bind(&mut self, name: &str, value: Value) {
        if let Some(frame) = self.frames.get_mut(self.frame) {
            frame.names.insert(name.to_owned(), value);
        }
    }

    pub fn run(&mut self, body: &[Node<'a>]) -> Flow {
        let conditions = self.conditions.len();
        let flow = match self.descend() {
            true => self.run_statements(body),
            false => Flow::Return(self.unknown(TOO_NESTED)),
        };
        self.ascend();
        self.conditions.truncate(conditions);
        flow
    }

    fn run_statements(&mut self, body: &[Node<'a>]) -> Flow {
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

    fn statement(&mut self, node: Node<'a>) -> Flow {
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
                let value = node.child("value").map_or(Value::Nothing, |value| self.eval(value));
                return Flow::Return(value);
            }
            "Raise" => return Flow::Raise,
            "Continue" => return Flow::Continue,
            "Break" => return Flow::Break,
            "For" => return self.for_each(node),
            "With" => return self.with(node),
            "Try" | "TryStar" => return self.attempt(node),
            "FunctionDef" => self.define(node),
            "ClassDef" => self.bind(node.text("name"), Value::Class(node.index)),
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

    fn define(&mut self, node: Node<'a>) {
        let frame = self.captured_frame();
        let value = match node.children("decorator_list").is_empty() {
            true => Value::Function(super::value::Closure { node: node.index, own: None, frame }),
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
    fn forget(&mut self, node: Node<'a>, why: &str) {
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
    pub fn disturb(&mut self, call: Node<'a>, why: &Value) {
        let receiver = call.child("func").and_then(|function| function.child("value"));
        let mut touched: Vec<_> = call.children("args").into_iter().chain(receiver).collect();
        touched.extend(call.children("keywords").into_iter().filter_map(|keyword| keyword.child("value")));
        for node in touched {
            match (node.kind(), self.quiet(node)) {
                (_, Value::List(list)) => {
                    if let (Some(list), Value::Unknown(reason)) = (self.lists.get_mut(list), why) {
                        list.broken = Some(*reason);
                    }
                }
                ("Name", Value::Array(..) | Value::Dict(_) | Value::Object(_)) => {
                    self.bind(node.text("id"), why.clone())
                }
                ("Attribute", Value::Array(..) | Value::Dict(_) | Value::Object(_)) => self.assign(node, why.clone()),
                _ => {}
            }
        }
    }

    /// The value of a name or an attribute; nothing for other expressions.
    fn quiet(&mut self, node: Node<'a>) -> Value {
        match node.kind() {
            "Name" => self.lookup(node.text("id")).unwrap_or(Value::Nothing),
            "Attribute" => match node.child("value").map(|value| self.quiet(value)) {
                Some(Value::Instance(instance)) => {
                    let attributes = self.instances.get(instance).map(|instance| &instance.attributes);
                    attributes.and_then(|known| known.get(node.text("attr")).cloned()).unwrap_or(Value::Nothing)
                }
                _ => Value::Nothing,
            },
            _ => Value::Nothing,
        }
    }

    pub fn assign(&mut self, target: Node<'a>, value: Value) {
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
                if let Value::Object(object) = &object {
                    let why = self.unknown(format!("'{}' of an object is set", target.text("attr")));
                    self.replace_object(object, &why);
                }
                if let Value::Instance(instance) = object
                    && let Some(instance) = self.instances.get_mut(instance)
                {
                    instance.attributes.insert(target.text("attr").to_owned(), value);
                }
            }
            "Subscript" => self.assign_part(target, value),
            _ => {}
        }
    }

    fn unpack(&mut self, target: Node<'a>, value: Value) {
        let targets = target.children("elts");
        let parts = match self.parts(&value, targets.len()) {
            Ok(parts) => parts,
            Err(why) => {
                let why = match value {
                    Value::Unknown(_) => value,
                    _ => self.unknown(why),
                };
                vec![why; targets.len()]
            }
        };
        targets.into_iter().zip(parts).for_each(|(target, part)| self.assign(target, part));
    }

    /// The parts of a value that is unpacked into `count` names.
    fn parts(&mut self, value: &Value, count: usize) -> Result<Vec<Value>, String> {
        let wrong = || format!("it cannot be unpacked into {count} names");
        let parts = match value {
            Value::Tuple(items) => items.clone(),
            Value::List(list) => self.list(*list).items,
            Value::Array(id, kind) => {
                let first = self.graph.shape(*id).first().copied().ok_or_else(wrong)?;
                if first != super::graph::Dim::Known(count as u64) {
                    return Err(wrong());
                }
                let take = |place| self.item(*id, *kind, place);
                (0..count as i64).map(take).collect::<Result<_, _>>()?
            }
            _ => return Err(wrong()),
        };
        if parts.len() == count { Ok(parts) } else { Err(wrong()) }
    }

    fn augment(&mut self, node: Node<'a>) {
        let (Some(target), Some(value)) = (node.child("target"), node.child("value")) else { return };
        let (old, new) = (self.eval(target), self.eval(value));
        if let (Value::List(list), "Add") = (&old, node.text("op")) {
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

    fn with(&mut self, node: Node<'a>) -> Flow {
        for item in node.children("items") {
            let value = item.child("context_expr").map_or(Value::Nothing, |context| self.eval(context));
            item.child("optional_vars").into_iter().for_each(|target| self.assign(target, value.clone()));
        }
        self.run(&node.children("body"))
    }

    fn attempt(&mut self, node: Node<'a>) -> Flow {
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

    fn import(&mut self, node: Node<'a>) {
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
                false => Value::Library(super::library::canonical(&full)),
            };
            self.bind(bound, value);
        }
    }

    /// Appends an element to a list.
    pub fn append(&mut self, list: usize, value: Value) {
        let (depth, active) = (self.loops.len(), self.loops.last().copied());
        let Some(known) = self.lists.get(list) else { return };
        let (made, conditions) = (known.depth, self.conditions.get(known.conditions..).unwrap_or_default().to_vec());
        let known_levels = known.levels;
        let is_full = known.items.len() >= SUGGEST_ITEMS_MAX;
        let levels = match self.levels_of(std::iter::once(&value)) {
            Ok(levels) if !is_full => levels.max(known_levels),
            _ => {
                let Value::Unknown(reason) = self.unknown("a list is nested too deeply or too long") else { return };
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
                let Value::Unknown(reason) = self.unknown(why) else { return };
                self.lists.get_mut(list).into_iter().for_each(|list| list.broken = Some(reason));
            }
        }
    }

    fn all_of(&mut self, conditions: &[ExprId]) -> Result<Option<ExprId>, String> {
        let mut all: Option<ExprId> = None;
        for condition in conditions {
            all = Some(match all {
                None => *condition,
                Some(before) => self.logical(super::op::Logic::And, before, *condition)?,
            });
        }
        Ok(all)
    }

    /// Appends the elements of another list.
    pub fn extend(&mut self, list: usize, other: &Value) {
        match self.items(other) {
            Ok(items) => items.into_iter().for_each(|item| self.append(list, item)),
            Err(why) => {
                let Value::Unknown(reason) = self.unknown(why) else { return };
                self.lists.get_mut(list).into_iter().for_each(|list| list.broken = Some(reason));
            }
        }
    }

    fn expression_statement(&mut self, value: Node<'a>) {
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
        if let (Value::Unknown(reason), "Call") = (&result, value.kind()) {
            let text = self.reasons.get(*reason).map(|reason| reason.text.clone()).unwrap_or_default();
            if *reason >= before {
                self.effect(format!("a call is left out: {text}"));
            }
            self.disturb(value, &result);
        }
    }

    /// A call that changes a tokenizer; false for others.
    fn change_tokenizer(&mut self, call: Node<'a>) -> bool {
        let Some(function) = call.child("func").filter(|function| function.kind() == "Attribute") else { return false };
        let name = function.text("attr");
        if !["enable_padding", "enable_truncation", "no_padding", "no_truncation"].contains(&name) {
            return false;
        }
        let Some(receiver) = function.child("value") else { return false };
        let Value::Object(object) = self.eval(receiver) else { return false };
        let Object::Tokenizer(tokenizer) = &*object else { return false };
        let mut arguments = super::value::Arguments::default();
        arguments.positional = call.children("args").into_iter().map(|argument| self.eval(argument)).collect();
        for keyword in call.children("keywords") {
            let value = keyword.child("value").map_or(Value::Nothing, |value| self.eval(value));
            arguments.named.push((keyword.text("arg").to_owned(), value));
        }
        let changed = match Self::changed_tokenizer(tokenizer, name, &arguments) {
            Some(Ok(changed)) => Value::object(Object::Tokenizer(changed)),
            Some(Err(why)) => self.unknown(format!("'{name}': {why}")),
            None => return false,
        };
        self.replace_object(&object, &changed);
        true
    }

    /// Gives all names of an object another value.
    fn replace_object(&mut self, object: &Rc<Object>, by: &Value) {
        let is_it = |value: &Value| matches!(value, Value::Object(known) if Rc::ptr_eq(known, object));
        let names = self.frames.iter_mut().flat_map(|frame| frame.names.values_mut());
        let attributes = self.instances.iter_mut().flat_map(|instance| instance.attributes.values_mut());
        names.chain(attributes).filter(|value| is_it(value)).for_each(|value| *value = by.clone());
    }

    /// The response that a value is, if it is one.
    pub fn as_object(value: &Value) -> Option<&Object> {
        match value {
            Value::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The row of a loop over a value.
    pub fn element_of(&mut self, value: &Value) -> Result<(LoopId, Value, Option<ExprId>), String> {
        match value {
            Value::Array(id, kind) => {
                let length = self.graph.shape(*id).first().copied().ok_or("a number cannot be iterated")?;
                let on = self.graph.new_loop(length);
                let row = self.graph.row(on, *id)?;
                Ok((on, Value::Array(row, *kind), None))
            }
            Value::Object(object) if **object == Object::Requests => {
                Ok((self.requests, Value::object(Object::Request), None))
            }
            Value::List(list) => {
                let each = self.list(*list).each.ok_or("it has no rows")?;
                Ok((each.on, each.element, each.condition))
            }
            _ => Err("it is not known how to iterate it".to_owned()),
        }
    }

    fn for_each(&mut self, node: Node<'a>) -> Flow {
        let (Some(target), Some(iterable)) = (node.child("target"), node.child("iter")) else { return Flow::Next };
        let value = self.eval(iterable);
        let body = node.children("body");
        if let Ok(items) = self.items(&value) {
            for item in items {
                self.assign(target, item);
                match self.run(&body) {
                    Flow::Next | Flow::Continue => {}
                    Flow::Break => return Flow::Next,
                    other => return other,
                }
            }
            return self.run(&node.children("orelse"));
        }
        match self.element_of(&value) {
            Ok((on, element, condition)) => self.for_rows(node, on, element, condition),
            Err(why) => {
                let why = match value {
                    Value::Unknown(reason) => self.reasons.get(reason).map(|reason| reason.text.clone()).unwrap_or(why),
                    _ => why,
                };
                self.forget(node, &format!("a loop is not followed: {why}"));
                Flow::Next
            }
        }
    }

    /// Runs a loop over rows once.
    fn for_rows(&mut self, node: Node<'a>, on: LoopId, element: Value, condition: Option<ExprId>) -> Flow {
        let body = node.children("body");
        let names = changed_names(&body);
        let mut carried = Vec::new();
        for name in names {
            let is_known = self.frames.get(self.frame).is_some_and(|frame| frame.names.contains_key(&name));
            let marker = self.graph.add(Op::Carried(on), Vec::new(), Kind::Number(super::Datatype::Int64), Vec::new());
            if let (true, Ok(marker)) = (is_known, marker) {
                self.bind(&name, Value::Array(marker, super::value::ArrayKind::Python));
                carried.push((name, marker));
            }
        }
        self.loops.push(on);
        let conditions = self.conditions.len();
        self.conditions.extend(condition);
        let target = node.child("target");
        target.into_iter().for_each(|target| self.assign(target, element.clone()));
        let flow = self.run(&body);
        self.conditions.truncate(conditions);
        self.loops.pop();
        for (name, marker) in carried {
            let last = self.lookup(&name).unwrap_or(Value::Nothing);
            self.carried.insert(marker, last);
            let why = self.unknown(format!("'{name}' changes from row to row of a loop"));
            self.bind(&name, why);
        }
        match flow {
            Flow::Break => {
                self.forget(node, "a loop over rows ends early");
                Flow::Next
            }
            Flow::Return(value) if on != self.requests => match value {
                Value::Unknown(_) => Flow::Return(value),
                _ => Flow::Return(self.unknown("a loop over rows returns at its first row")),
            },
            Flow::Return(value) => Flow::Return(value),
            Flow::Raise => Flow::Raise,
            Flow::Next | Flow::Continue => Flow::Next,
        }
    }

    fn branch(&mut self, node: Node<'a>) -> Flow {
        let Some(test) = node.child("test") else { return Flow::Next };
        let value = self.eval(test);
        let (body, other) = (node.children("body"), node.children("orelse"));
        self.go_to(node);
        match self.truth(&value) {
            Some(true) => return self.run(&body),
            Some(false) => return self.run(&other),
            None => {}
        }
        if other.is_empty() && is_resize(node, &body) {
            // A resize to its own size changes nothing.
            return self.run(&body);
        }
        let last = body.last().map_or("", |last| last.kind());
        if last == "Raise" || self.is_refusal(&body) {
            self.assume("a check of the request is left out: the steps refuse in their own words");
            return self.run(&other);
        }
        let condition = match &value {
            Value::Array(id, _) if self.graph.rank(*id) == 0 && !self.loops.is_empty() => Some(*id),
            _ => None,
        };
        let Some(condition) = condition else {
            let why = match &value {
                Value::Unknown(reason) => self.reasons.get(*reason).map(|reason| reason.text.clone()),
                _ => None,
            };
            self.forget(node, &why.unwrap_or_else(|| "a condition is not known".to_owned()));
            let leaves = [&body, &other].iter().any(|block| block.iter().any(|node| ends_early(*node)));
            if leaves {
                return Flow::Return(self.unknown("a condition that is not known decides the result"));
            }
            return Flow::Next;
        };
        self.branch_by_row(&body, &other, condition)
    }

    fn names(&self) -> BTreeMap<String, Value> {
        self.frames.get(self.frame).map(|frame| frame.names.clone()).unwrap_or_default()
    }

    fn is_unequal(&self, condition: ExprId, left: ExprId, right: ExprId) -> bool {
        let inputs = &self.graph.get(condition).inputs;
        *self.graph.op(condition) == Op::Compare(super::op::Comparison::Unequal)
            && (inputs.as_slice() == [left, right] || inputs.as_slice() == [right, left])
    }

    /// Runs both sides of a condition on a row.
    fn branch_by_row(&mut self, body: &[Node<'a>], other: &[Node<'a>], condition: ExprId) -> Flow {
        let negated = self.logical_not(condition);
        let Ok(negated) = negated else { return Flow::Return(self.unknown("the file makes too many tensors")) };
        let before = self.names();
        let (mut flows, mut results) = (Vec::new(), Vec::new());
        for (block, condition) in [(body, condition), (other, negated)] {
            self.frames.get_mut(self.frame).into_iter().for_each(|frame| frame.names = before.clone());
            self.conditions.push(condition);
            flows.push(self.run(block));
            self.conditions.pop();
            results.push(self.names());
        }
        let [ours, theirs] = [0, 1].map(|place| results.get(place).cloned().unwrap_or_default());
        for name in ours.keys().chain(theirs.keys()) {
            let (one, two) = (ours.get(name), theirs.get(name));
            if one == two {
                continue;
            }
            let merged = match (one, two) {
                // `if x != last: last = x` leaves x in any case.
                (Some(Value::Array(new, kind)), Some(Value::Array(old, _)))
                    if self.is_unequal(condition, *new, *old) =>
                {
                    Value::Array(*new, *kind)
                }
                _ => self.unknown(format!("'{name}' depends on a condition")),
            };
            self.bind(name, merged);
        }
        match (flows.first(), flows.get(1)) {
            (Some(Flow::Continue), Some(Flow::Next)) => self.conditions.push(negated),
            (Some(Flow::Next), Some(Flow::Continue)) => self.conditions.push(condition),
            (Some(Flow::Next), Some(Flow::Next)) => {}
            _ => return Flow::Return(self.unknown("a condition on a row ends the loop")),
        }
        Flow::Next
    }

    /// Returns true if a block answers a request with an error.
    fn is_refusal(&self, body: &[Node<'a>]) -> bool {
        let is_error = |node: &Node<'_>| {
            node.descendants().iter().any(|below| {
                below.kind() == "keyword" && below.text("arg") == "error" || below.text("attr") == "TritonError"
            })
        };
        body.iter().any(is_error)
            && body.last().is_some_and(|last| matches!(last.kind(), "Continue" | "Return" | "Expr"))
    }

    pub fn begin_frame(&mut self, parent: Option<usize>, names: Vec<(String, Value)>) {
        self.frames.push(Frame { names: names.into_iter().collect(), parent, is_captured: false });
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
    pub fn enter(&mut self, parent: Option<usize>, names: Vec<(String, Value)>, body: &[Node<'a>]) -> Value {
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
            _ => Value::Nothing,
        }
    }
}

/// The reason at the bound of nesting.
pub(super) const TOO_NESTED: &str = "the file is nested too deeply, or calls itself";

/// The names that statements assign.
fn changed_names(body: &[Node<'_>]) -> Vec<String> {
    let mut names = Vec::new();
    for node in body.iter().flat_map(|statement| statement.descendants()) {
        let targets = match node.kind() {
            "Assign" => node.children("targets"),
            "AugAssign" => node.child("target").into_iter().collect(),
            _ => Vec::new(),
        };
        for target in targets.into_iter().filter(|target| target.kind() == "Name") {
            if !names.contains(&target.text("id").to_owned()) {
                names.push(target.text("id").to_owned());
            }
        }
    }
    names
}

/// Returns true for `if shape != size: image = cv2.resize(image, size)`.
fn is_resize(node: Node<'_>, body: &[Node<'_>]) -> bool {
    let differs = node.child("test").is_some_and(|test| test.texts("ops") == ["NotEq"]);
    let size = node.child("test").and_then(|test| test.children("comparators").first().map(|size| size.text("id")));
    let [assign] = body else { return false };
    let Some(call) = assign.child("value").filter(|call| call.kind() == "Call") else { return false };
    let is_named = |argument: Option<&Node<'_>>| {
        argument.is_some_and(|argument| Some(argument.text("id")) == size && size != Some(""))
    };
    let function = call.child("func").map_or("", |function| function.text("attr"));
    differs && function == "resize" && is_named(call.children("args").get(1))
}

fn ends_early(node: Node<'_>) -> bool {
    node.descendants().iter().any(|below| matches!(below.kind(), "Return" | "Continue" | "Break"))
}
