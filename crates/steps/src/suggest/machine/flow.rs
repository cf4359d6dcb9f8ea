//! Loops and conditions. A loop over rows runs once, on a row that stands for all; of a condition on a row both sides run.

use crate::suggest::machine::{Flow, Machine};
use crate::suggest::op::{CompareOp, ExprId, Kind, LoopId, Op};
use crate::suggest::tree::SyntaxNode;
use crate::suggest::value::{ArrayKind, Object, PyValue};
use std::collections::BTreeMap;

impl<'a> Machine<'a> {
    /// The row of a loop over a value.
    pub fn element_of(&mut self, value: &PyValue) -> Result<(LoopId, PyValue, Option<ExprId>), String> {
        match value {
            PyValue::Array(id, kind) => {
                let length = self.graph.shape(*id).first().copied().ok_or("a number cannot be iterated")?;
                let on = self.graph.new_loop(length);
                let row = self.graph.row(on, *id)?;
                Ok((on, PyValue::Array(row, *kind), None))
            }
            PyValue::Object(object) if **object == Object::Requests => {
                Ok((self.requests, PyValue::object(Object::Request), None))
            }
            PyValue::List(list) => {
                let each = self.list(*list).each.ok_or("it has no rows")?;
                Ok((each.on, each.element, each.condition))
            }
            _ => Err("it is not known how to iterate it".to_owned()),
        }
    }

    pub fn for_each(&mut self, node: SyntaxNode<'a>) -> Flow {
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
                    PyValue::Unknown(reason) => {
                        self.reasons.get(reason).map(|reason| reason.text.clone()).unwrap_or(why)
                    }
                    _ => why,
                };
                self.forget(node, &format!("a loop is not followed: {why}"));
                Flow::Next
            }
        }
    }

    /// Runs a loop over rows once.
    fn for_rows(&mut self, node: SyntaxNode<'a>, on: LoopId, element: PyValue, condition: Option<ExprId>) -> Flow {
        let body = node.children("body");
        let names = changed_names(&body);
        let mut carried = Vec::new();
        for name in names {
            let is_known = self.frames.get(self.frame).is_some_and(|frame| frame.names.contains_key(&name));
            let marker =
                self.graph.add(Op::Carried(on), Vec::new(), Kind::Number(base::tensor::Datatype::Int64), Vec::new());
            if let (true, Ok(marker)) = (is_known, marker) {
                self.bind(&name, PyValue::Array(marker, ArrayKind::Python));
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
            let last = self.lookup(&name).unwrap_or(PyValue::Nothing);
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
                PyValue::Unknown(_) => Flow::Return(value),
                _ => Flow::Return(self.unknown("a loop over rows returns at its first row")),
            },
            Flow::Return(value) => Flow::Return(value),
            Flow::Raise => Flow::Raise,
            Flow::Next | Flow::Continue => Flow::Next,
        }
    }

    pub fn branch(&mut self, node: SyntaxNode<'a>) -> Flow {
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
            PyValue::Array(id, _) if self.graph.rank(*id) == 0 && !self.loops.is_empty() => Some(*id),
            _ => None,
        };
        let Some(condition) = condition else {
            let why = match &value {
                PyValue::Unknown(reason) => self.reasons.get(*reason).map(|reason| reason.text.clone()),
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

    fn names(&self) -> BTreeMap<String, PyValue> {
        self.frames.get(self.frame).map(|frame| frame.names.clone()).unwrap_or_default()
    }

    fn is_unequal(&self, condition: ExprId, left: ExprId, right: ExprId) -> bool {
        let inputs = &self.graph.get(condition).inputs;
        *self.graph.op(condition) == Op::Compare(CompareOp::Unequal)
            && (inputs.as_slice() == [left, right] || inputs.as_slice() == [right, left])
    }

    /// Runs both sides of a condition on a row.
    fn branch_by_row(&mut self, body: &[SyntaxNode<'a>], other: &[SyntaxNode<'a>], condition: ExprId) -> Flow {
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
                (Some(PyValue::Array(new, kind)), Some(PyValue::Array(old, _)))
                    if self.is_unequal(condition, *new, *old) =>
                {
                    PyValue::Array(*new, *kind)
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
    fn is_refusal(&self, body: &[SyntaxNode<'a>]) -> bool {
        let is_error = |node: &SyntaxNode<'_>| {
            node.descendants().iter().any(|below| {
                below.kind() == "keyword" && below.text("arg") == "error" || below.text("attr") == "TritonError"
            })
        };
        body.iter().any(is_error)
            && body.last().is_some_and(|last| matches!(last.kind(), "Continue" | "Return" | "Expr"))
    }
}

/// The names that statements assign.
fn changed_names(body: &[SyntaxNode<'_>]) -> Vec<String> {
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
fn is_resize(node: SyntaxNode<'_>, body: &[SyntaxNode<'_>]) -> bool {
    let differs = node.child("test").is_some_and(|test| test.texts("ops") == ["NotEq"]);
    let size = node.child("test").and_then(|test| test.children("comparators").first().map(|size| size.text("id")));
    let [assign] = body else { return false };
    let Some(call) = assign.child("value").filter(|call| call.kind() == "Call") else { return false };
    let is_named = |argument: Option<&SyntaxNode<'_>>| {
        argument.is_some_and(|argument| Some(argument.text("id")) == size && size != Some(""))
    };
    let function = call.child("func").map_or("", |function| function.text("attr"));
    differs && function == "resize" && is_named(call.children("args").get(1))
}

fn ends_early(node: SyntaxNode<'_>) -> bool {
    node.descendants().iter().any(|below| matches!(below.kind(), "Return" | "Continue" | "Break"))
}
