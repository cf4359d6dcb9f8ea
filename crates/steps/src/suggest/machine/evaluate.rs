//! Expressions of a `model.py`.

use std::collections::BTreeSet;

use base::tensor::Datatype;

use crate::limits::{SUGGEST_ITEMS_MAX, SUGGEST_TEXT_SIZE_MAX};
use crate::suggest::library;
use crate::suggest::machine::{ClassInstance, Machine, TOO_NESTED};
use crate::suggest::op::{ArithmeticOp, CompareOp, Dim, ExprId, Kind, Logic, Op};
use crate::suggest::tree::SyntaxNode;
use crate::suggest::value::{Arguments, ArrayKind, Called, Closure, Object, PyValue};

impl<'a> Machine<'a> {
    /// The value of an expression.
    pub fn eval(&mut self, node: SyntaxNode<'a>) -> PyValue {
        self.go_to(node);
        if !self.may_work() {
            return self.unknown("the file has too much to go through");
        }
        let result = match self.descend() {
            true => self.evaluated(node),
            false => Err(TOO_NESTED.to_owned()),
        };
        self.ascend();
        result.unwrap_or_else(|why| {
            self.go_to(node);
            self.unknown(why)
        })
    }

    fn evaluated(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let child = |name| node.child(name).ok_or_else(|| format!("'{}' lacks its part '{name}'", node.kind()));
        Ok(match node.kind() {
            "Constant" => constant(node)?,
            "Name" => self.name(node.text("id")),
            "Attribute" => {
                let object = self.eval(child("value")?);
                self.attribute(&object, node.text("attr"))?
            }
            "Call" => self.call(node)?,
            "Subscript" => {
                let value = self.eval(child("value")?);
                let index = self.eval(child("slice")?);
                self.subscript(&value, &index)?
            }
            "Slice" => {
                let mut part = |name| node.child(name).map_or(PyValue::Nothing, |part| self.eval(part));
                PyValue::Slice(Box::new([part("lower"), part("upper"), part("step")]))
            }
            "Tuple" => {
                let items: Vec<_> = node.children("elts").into_iter().map(|element| self.eval(element)).collect();
                self.levels_of(items.iter())?;
                PyValue::Tuple(items)
            }
            "List" | "Set" => {
                let items = node.children("elts").into_iter().map(|element| self.eval(element)).collect();
                self.new_list(items)
            }
            "Dict" => self.dictionary(node)?,
            "BinOp" => {
                let (left, right) = (self.eval(child("left")?), self.eval(child("right")?));
                self.go_to(node);
                self.binary(node.text("op"), &left, &right, false)?
            }
            "UnaryOp" => {
                let value = self.eval(child("operand")?);
                self.unary(node.text("op"), &value)?
            }
            "BoolOp" => self.boolean(node)?,
            "Compare" => self.compare(node)?,
            "IfExp" => self.choice(node)?,
            "JoinedStr" => self.joined(node)?,
            "FormattedValue" => self.eval(child("value")?),
            "ListComp" | "GeneratorExp" | "SetComp" | "DictComp" => {
                // Its names are its own.
                let names = self.frames.get(self.frame).map(|frame| frame.names.clone()).unwrap_or_default();
                let result = match node.kind() {
                    "DictComp" => self.dict_comprehension(node),
                    _ => self.comprehension(node),
                };
                self.frames.get_mut(self.frame).into_iter().for_each(|frame| frame.names = names.clone());
                result?
            }
            "Lambda" => {
                let frame = self.captured_frame();
                PyValue::Function(Closure { node: node.index, own: None, frame })
            }
            "NamedExpr" => {
                let value = self.eval(child("value")?);
                self.assign(child("target")?, value.clone());
                value
            }
            other => return Err(format!("an expression '{other}' is not followed")),
        })
    }

    fn dictionary(&mut self, node: SyntaxNode<'a>) -> Called {
        let mut entries = Vec::new();
        for (key, value) in node.places("keys").into_iter().zip(node.children("values")) {
            let key = key.ok_or("a dictionary takes in another one")?;
            entries.push((self.eval(key), self.eval(value)));
        }
        Ok(self.new_dict(entries))
    }

    fn name(&mut self, name: &str) -> PyValue {
        if let Some(value) = self.lookup(name) {
            return value;
        }
        match name {
            "__file__" => PyValue::Path(format!("{}/model.py", self.model.version)),
            "__name__" => PyValue::Text(format!("{}.model", self.model.version)),
            _ if library::is_builtin(name) => PyValue::Library(format!("builtins.{name}")),
            _ => self.unknown(format!("'{name}' is not known")),
        }
    }

    /// The reason of a value that is not interpreted, in it or in what it holds.
    pub fn reason_of(&self, values: &[&PyValue]) -> Option<usize> {
        self.held(values).find_map(|value| match value {
            PyValue::Unknown(reason) => Some(*reason),
            PyValue::List(list) => self.lists.get(*list).and_then(|list| list.broken),
            PyValue::Dict(dict) => self.dicts.get(*dict).and_then(|dict| dict.broken),
            _ => None,
        })
    }

    /// Returns true if a value holds an array or an object.
    fn holds_array(&self, value: &PyValue) -> bool {
        self.held(&[value]).any(|value| {
            matches!(value, PyValue::Array(..) | PyValue::Dict(_) | PyValue::Object(_) | PyValue::Instance(_))
        })
    }

    /// Values and what tuples and lists among them hold, each list once: lists may hold themselves. Of many elements the first
    /// ones; the others have their reason when they are used.
    fn held<'v>(&'v self, values: &[&'v PyValue]) -> impl Iterator<Item = &'v PyValue> {
        let (mut seen, mut open) = (BTreeSet::new(), values.to_vec());
        open.reverse();
        std::iter::from_fn(move || {
            let value = open.pop()?;
            match value {
                PyValue::Tuple(items) if open.len() < HELD_MAX => open.extend(items.iter().take(HELD_ITEMS)),
                PyValue::List(list) if open.len() < HELD_MAX && seen.insert(*list) => {
                    if let Some(list) = self.lists.get(*list) {
                        open.extend(
                            list.each.iter().map(|each| &each.element).chain(list.items.iter().take(HELD_ITEMS)),
                        );
                    }
                }
                _ => {}
            }
            Some(value)
        })
    }

    fn call(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let function = node.child("func").ok_or("a call without a function")?;
        let callee = self.eval(function);
        let mut arguments = Arguments::default();
        for argument in node.children("args") {
            if argument.kind() == "Starred" {
                let value = argument.child("value").map_or(PyValue::Nothing, |value| self.eval(value));
                arguments.positional.extend(self.items(&value)?);
            } else {
                arguments.positional.push(self.eval(argument));
            }
        }
        for keyword in node.children("keywords") {
            let value = keyword.child("value").map_or(PyValue::Nothing, |value| self.eval(value));
            match (keyword.text("arg"), &value) {
                ("", PyValue::Object(object)) => match &**object {
                    Object::Encoding(fields) => {
                        let fields = fields.iter().map(|(name, (id, kind))| (name.clone(), PyValue::Array(*id, *kind)));
                        arguments.named.extend(fields);
                    }
                    _ => return Err("a call with '**' is not followed".to_owned()),
                },
                ("", PyValue::Dict(dict)) => {
                    for (key, value) in self.dict(*dict).to_vec() {
                        let PyValue::Text(key) = key else { return Err("a call with '**' is not followed".to_owned()) };
                        arguments.named.push((key, value));
                    }
                }
                ("", _) => return Err("a call with '**' is not followed".to_owned()),
                (name, _) => arguments.named.push((name.to_owned(), value)),
            }
        }
        self.go_to(node);
        self.apply(&callee, &arguments)
    }

    /// Calls a value.
    pub fn apply(&mut self, callee: &PyValue, arguments: &Arguments) -> Result<PyValue, String> {
        match callee {
            PyValue::Unknown(_) => Ok(callee.clone()),
            PyValue::Function(closure) => self.call_function(closure, arguments),
            PyValue::Class(class) => self.instantiate(*class, arguments),
            PyValue::Library(path) => {
                if let Some(effect) = library::side_effect(path) {
                    self.effect(format!("'{path}' {effect}"));
                    return Err(format!("'{path}' {effect}"));
                }
                let result = self.call_library(path, arguments).map_err(|why| named(path, &why));
                self.or_reason(result, arguments)
            }
            PyValue::Method(receiver, name) => {
                let result = self.call_method(receiver, name, arguments).map_err(|why| named(name, &why));
                self.or_reason(result, arguments)
            }
            PyValue::Object(object) => self.call_object(object, arguments),
            PyValue::Instance(_) => {
                let method = self.attribute(callee, "__call__")?;
                self.apply(&method, arguments)
            }
            _ => Err("a value that is no known function is called".to_owned()),
        }
    }

    /// The reason of an argument that is not known, in place of an error about it.
    fn or_reason(&self, result: Result<PyValue, String>, arguments: &Arguments) -> Result<PyValue, String> {
        let named = arguments.named.iter().map(|(_, value)| value);
        let all: Vec<_> = arguments.positional.iter().chain(named).collect();
        match (result, self.reason_of(&all)) {
            (Err(_), Some(reason)) => Ok(PyValue::Unknown(reason)),
            (result, _) => result,
        }
    }

    fn call_function(&mut self, closure: &Closure, arguments: &Arguments) -> Result<PyValue, String> {
        let node = self.tree.node(closure.node).ok_or("the function is not there")?;
        let parameters = node.child("args").ok_or("the function has no parameters")?;
        if parameters.child("vararg").is_some() || parameters.child("kwarg").is_some() {
            return Err(format!("the function '{}' takes any arguments", node.text("name")));
        }
        let declared: Vec<_> =
            parameters.children("posonlyargs").into_iter().chain(parameters.children("args")).collect();
        let mut positional: Vec<PyValue> = closure.own.map(PyValue::Instance).into_iter().collect();
        positional.extend(arguments.positional.iter().cloned());
        if positional.len() > declared.len() {
            return Err(format!("the function '{}' is called with too many arguments", node.text("name")));
        }
        let defaults = parameters.children("defaults");
        let without = declared.len().saturating_sub(defaults.len());
        let only_named = parameters.children("kwonlyargs").into_iter().zip(parameters.places("kw_defaults"));
        let all: Vec<_> = declared
            .iter()
            .enumerate()
            .map(|(place, parameter)| {
                let default = place.checked_sub(without).and_then(|place| defaults.get(place).copied());
                (*parameter, default, positional.get(place).cloned())
            })
            .chain(only_named.map(|(parameter, default)| (parameter, default, None)))
            .collect();
        let mut names = Vec::new();
        for (parameter, default, given) in all {
            let name = parameter.text("arg");
            let value = match (given.or_else(|| arguments.named(name)), default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.eval(default),
                (None, None) => return Err(format!("the argument '{name}' is missing")),
            };
            names.push((name.to_owned(), value));
        }
        if node.kind() == "Lambda" {
            let body = node.child("body").ok_or("a lambda without a body")?;
            let caller = self.frame;
            self.begin_frame(closure.frame, names);
            let value = self.eval(body);
            self.end_frame(caller);
            return Ok(value);
        }
        Ok(self.enter(closure.frame, names, &node.children("body")))
    }

    /// Makes an object of a class of the file.
    pub fn instantiate(&mut self, class: usize, arguments: &Arguments) -> Result<PyValue, String> {
        let node = self.tree.node(class).ok_or("the class is not there")?;
        if !node.children("bases").is_empty() {
            return Err(format!("the class '{}' has a base", node.text("name")));
        }
        self.instances.push(ClassInstance { class, attributes: Default::default() });
        let instance = PyValue::Instance(self.instances.len() - 1);
        if self.method_of(class, "__init__").is_some() {
            let method = self.attribute(&instance, "__init__")?;
            self.apply(&method, arguments)?;
        }
        Ok(instance)
    }

    /// A method of a class of the file.
    pub fn method_of(&self, class: usize, name: &str) -> Option<SyntaxNode<'a>> {
        let body = self.tree.node(class)?.children("body");
        body.into_iter().find(|node| node.kind() == "FunctionDef" && node.text("name") == name)
    }

    pub fn attribute(&mut self, object: &PyValue, name: &str) -> Result<PyValue, String> {
        match object {
            PyValue::Unknown(_) => Ok(object.clone()),
            PyValue::Library(path) => Ok(library::constant(path, name)),
            PyValue::Instance(id) => {
                let instance = self.instances.get(*id).ok_or("the object is not there")?;
                if let Some(value) = instance.attributes.get(name) {
                    return Ok(value.clone());
                }
                let class = instance.class;
                if let Some(method) = self.method_of(class, name) {
                    let decorators = method.children("decorator_list");
                    let is_static = decorators.iter().any(|decorator| decorator.text("id") == "staticmethod");
                    if !decorators.is_empty() && !is_static {
                        return Err(format!("the method '{name}' has a decorator"));
                    }
                    let own = (!is_static).then_some(*id);
                    return Ok(PyValue::Function(Closure { node: method.index, own, frame: None }));
                }
                self.class_attribute(class, name)
            }
            PyValue::Class(class) => match self.method_of(*class, name) {
                Some(method) => Ok(PyValue::Function(Closure { node: method.index, own: None, frame: None })),
                None => self.class_attribute(*class, name),
            },
            PyValue::Array(id, kind) => self.array_attribute(*id, *kind, name),
            // The results of torch's `max` and `topk`.
            PyValue::Tuple(items) => match (name, items.as_slice()) {
                ("values", [values @ PyValue::Array(_, ArrayKind::Torch), _]) => Ok(values.clone()),
                ("indices", [_, indices @ PyValue::Array(_, ArrayKind::Torch)]) => Ok(indices.clone()),
                _ => Err(format!("the attribute '{name}' of a tuple is not known")),
            },
            PyValue::Object(object) => self.object_attribute(object, name),
            _ => Ok(PyValue::Method(Box::new(object.clone()), name.to_owned())),
        }
    }

    fn class_attribute(&mut self, class: usize, name: &str) -> Result<PyValue, String> {
        let body = self.tree.node(class).map(|class| class.children("body")).unwrap_or_default();
        let assigned = body.into_iter().find(|node| {
            node.kind() == "Assign" && node.children("targets").iter().any(|target| target.text("id") == name)
        });
        match assigned.and_then(|node| node.child("value")) {
            Some(value) => Ok(self.eval(value)),
            None => Err(format!("the attribute '{name}' is not known")),
        }
    }

    fn array_attribute(&mut self, id: ExprId, kind: ArrayKind, name: &str) -> Result<PyValue, String> {
        let shape = self.graph.shape(id);
        Ok(match name {
            "T" | "mT" => PyValue::Array(self.transpose(id, None)?, kind),
            "shape" if kind != ArrayKind::Pillow => {
                let sizes = shape.into_iter().map(|dim| self.size(dim)).collect::<Result<_, _>>()?;
                PyValue::Tuple(sizes)
            }
            "ndim" => PyValue::Int(shape.len() as i64),
            "dtype" => match self.graph.kind(id) {
                Kind::Number(datatype) => PyValue::Library(library::datatype_name(datatype).to_owned()),
                _ => PyValue::library("numpy.object_"),
            },
            "values" | "indices" | "size" | "mode" | "info" | "format" | "width" | "height"
                if kind == ArrayKind::Pillow =>
            {
                return Err(format!("the attribute '{name}' of an image is not known"));
            }
            _ => PyValue::Method(Box::new(PyValue::Array(id, kind)), name.to_owned()),
        })
    }

    /// The size of a dimension as a number.
    pub fn size(&mut self, dim: Dim) -> Result<PyValue, String> {
        Ok(match self.graph.resolved(dim) {
            Dim::Known(size) => PyValue::Int(i64::try_from(size).unwrap_or(i64::MAX)),
            open => {
                let size = self.graph.add(Op::Size(open), Vec::new(), Kind::Number(Datatype::Int64), Vec::new())?;
                PyValue::Array(size, ArrayKind::Python)
            }
        })
    }

    /// Returns true or false if that is known.
    pub fn truth(&self, value: &PyValue) -> Option<bool> {
        match value {
            PyValue::Bool(value) => Some(*value),
            PyValue::Nothing => Some(false),
            PyValue::Int(value) => Some(*value != 0),
            PyValue::Float(value) => Some(*value != 0.0),
            PyValue::Text(text) => Some(!text.is_empty()),
            PyValue::Tuple(items) => Some(!items.is_empty()),
            PyValue::List(list) => {
                let list = self.lists.get(*list)?;
                (list.each.is_none() && list.broken.is_none()).then_some(!list.items.is_empty())
            }
            PyValue::Dict(dict) => Some(!self.dict(*dict).is_empty()),
            PyValue::Object(_)
            | PyValue::Instance(_)
            | PyValue::Function(_)
            | PyValue::Library(_)
            | PyValue::Path(_) => Some(true),
            _ => None,
        }
    }

    fn unary(&mut self, operator: &str, value: &PyValue) -> Result<PyValue, String> {
        match (operator, value) {
            (_, PyValue::Unknown(_)) => Ok(value.clone()),
            ("Not", PyValue::Array(id, kind)) if self.graph.rank(*id) == 0 => {
                Ok(PyValue::Array(self.logical_not(*id)?, *kind))
            }
            ("Not", value) => self
                .truth(value)
                .map(|truth| PyValue::Bool(!truth))
                .ok_or_else(|| "'not' of a value that is not known".to_owned()),
            ("USub", PyValue::Int(value)) => Ok(PyValue::Int(value.saturating_neg())),
            ("USub", PyValue::Float(value)) => Ok(PyValue::Float(-value)),
            ("USub", PyValue::Array(..)) => self.binary("Mult", value, &PyValue::Int(-1), false),
            ("UAdd", value) => Ok(value.clone()),
            ("Invert", PyValue::Array(id, kind)) if self.graph.kind(*id) == Kind::Number(Datatype::Bool) => {
                Ok(PyValue::Array(self.logical_not(*id)?, *kind))
            }
            _ => Err(format!("the operator '{operator}' is not followed")),
        }
    }

    pub fn logical_not(&mut self, id: ExprId) -> Result<ExprId, String> {
        let shape = self.graph.shape(id);
        if let (Op::Logical(Logic::Not), Some(below)) = (self.graph.op(id), self.graph.operand(id)) {
            return Ok(below);
        }
        self.graph.add(Op::Logical(Logic::Not), vec![id], Kind::Number(Datatype::Bool), shape)
    }

    pub fn logical(&mut self, logic: Logic, left: ExprId, right: ExprId) -> Result<ExprId, String> {
        let shape = self.broadcast(left, right)?;
        self.graph.add(Op::Logical(logic), vec![left, right], Kind::Number(Datatype::Bool), shape)
    }

    fn boolean(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let is_and = node.text("op") == "And";
        let mut result: Option<PyValue> = None;
        for value in node.children("values") {
            let value = self.eval(value);
            match self.truth(&value) {
                // The rest is not evaluated.
                Some(truth) if truth != is_and => {
                    return Ok(result
                        .filter(|result| self.truth(result).is_none())
                        .map_or(value, |_| PyValue::Bool(!is_and)));
                }
                Some(_) if result.is_none() => {}
                Some(_) => continue,
                None => {
                    let before = result.take().filter(|result| self.truth(result).is_none());
                    result = Some(match (before, &value) {
                        (None, _) => value,
                        (Some(PyValue::Array(left, kind)), PyValue::Array(right, _)) => {
                            let logic = if is_and { Logic::And } else { Logic::Or };
                            PyValue::Array(self.logical(logic, left, *right)?, kind)
                        }
                        (Some(_), _) => return Err("a condition is not known".to_owned()),
                    });
                    continue;
                }
            }
            result = Some(value);
        }
        result.ok_or_else(|| "an empty condition".to_owned())
    }

    fn compare(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let operators = node.texts("ops");
        let comparators = node.children("comparators");
        let ([operator], [right], Some(left)) = (operators, comparators.as_slice(), node.child("left")) else {
            return Err("a chain of comparisons is not followed".to_owned());
        };
        let (left, right) = (self.eval(left), self.eval(*right));
        self.go_to(node);
        self.comparison(operator, &left, &right)
    }

    /// The result of a comparison.
    pub fn comparison(&mut self, operator: &str, left: &PyValue, right: &PyValue) -> Result<PyValue, String> {
        if let Some(reason) = self.reason_of(&[left, right]) {
            return Ok(PyValue::Unknown(reason));
        }
        match operator {
            "Is" | "IsNot" => {
                let is_same = match (left, right) {
                    (PyValue::Nothing, PyValue::Nothing) => true,
                    (PyValue::Nothing, _) | (_, PyValue::Nothing) => false,
                    (PyValue::Bool(left), PyValue::Bool(right)) => left == right,
                    _ => return Err("'is' is not followed".to_owned()),
                };
                return Ok(PyValue::Bool(is_same == (operator == "Is")));
            }
            "In" | "NotIn" => {
                let is_in = match right {
                    PyValue::Dict(dict) => self.dict(*dict).iter().any(|(key, _)| key == left),
                    PyValue::Text(text) => matches!(left, PyValue::Text(part) if text.contains(part.as_str())),
                    PyValue::Object(object) => match (&**object, left) {
                        (Object::Encoding(fields), PyValue::Text(name)) => fields.contains_key(name),
                        _ => return Err("'in' is not followed".to_owned()),
                    },
                    other if !matches!(left, PyValue::Array(..)) => self.items(other)?.contains(left),
                    _ => return Err("'in' is not followed".to_owned()),
                };
                return Ok(PyValue::Bool(is_in == (operator == "In")));
            }
            _ => {}
        }
        let comparison = match operator {
            "Eq" => CompareOp::Equal,
            "NotEq" => CompareOp::Unequal,
            "Gt" => CompareOp::Greater,
            "GtE" => CompareOp::GreaterEqual,
            "Lt" => CompareOp::Less,
            "LtE" => CompareOp::LessEqual,
            _ => return Err(format!("the comparison '{operator}' is not followed")),
        };
        self.compared(comparison, left, right)
    }

    fn compared(&mut self, comparison: CompareOp, left: &PyValue, right: &PyValue) -> Result<PyValue, String> {
        if let (Some(left), Some(right)) = (left.number(), right.number()) {
            return Ok(PyValue::Bool(match comparison {
                CompareOp::Equal => left == right,
                CompareOp::Unequal => left != right,
                CompareOp::Greater => left > right,
                CompareOp::GreaterEqual => left >= right,
                CompareOp::Less => left < right,
                CompareOp::LessEqual => left <= right,
            }));
        }
        let kind = [left, right].iter().find_map(|value| value.array()).map(|(_, kind)| kind);
        let Some(kind) = kind else {
            if [left, right].iter().any(|value| self.holds_array(value)) {
                return Err("a comparison of sizes is not followed".to_owned());
            }
            let is_equal = left == right;
            return match comparison {
                CompareOp::Equal => Ok(PyValue::Bool(is_equal)),
                CompareOp::Unequal => Ok(PyValue::Bool(!is_equal)),
                _ => Err("a comparison is not followed".to_owned()),
            };
        };
        if let (CompareOp::Equal | CompareOp::Unequal, PyValue::Nothing) = (comparison, right) {
            return Ok(PyValue::Bool(comparison == CompareOp::Unequal));
        }
        // A list of rows is as long as its loop: `len(x) > 0`.
        let (left, right) = (self.as_array(left)?, self.as_array(right)?);
        let shape = self.broadcast(left, right)?;
        let id = self.graph.add(Op::Compare(comparison), vec![left, right], Kind::Number(Datatype::Bool), shape)?;
        Ok(PyValue::Array(id, kind))
    }

    fn choice(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let test = node.child("test").map_or(PyValue::Nothing, |test| self.eval(test));
        let side = match self.truth(&test) {
            Some(true) => "body",
            Some(false) => "orelse",
            None => {
                let [one, two] = ["body", "orelse"].map(|name| node.child(name).map(|side| self.eval(side)));
                let is_device = |value: &Option<PyValue>| {
                    matches!(value, Some(PyValue::Text(text)) if ["cuda", "cpu", "cuda:0"].contains(&text.as_str()))
                        || matches!(value, Some(PyValue::Object(object)) if **object == Object::Device)
                };
                if is_device(&one) && is_device(&two) {
                    return Ok(PyValue::object(Object::Device));
                }
                if one == two {
                    return one.ok_or_else(|| "an empty choice".to_owned());
                }
                return Err("a choice depends on a condition that is not known".to_owned());
            }
        };
        Ok(node.child(side).map_or(PyValue::Nothing, |side| self.eval(side)))
    }

    fn joined(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let mut parts = Vec::new();
        for part in node.children("values") {
            if part.kind() == "FormattedValue"
                && (part.child("format_spec").is_some() || part.text("conversion") != "-1")
            {
                return Err("a format in an f-string is not followed".to_owned());
            }
            parts.push(self.eval(part));
        }
        if let Some(reason) = self.reason_of(&parts.iter().collect::<Vec<_>>()) {
            return Ok(PyValue::Unknown(reason));
        }
        let mut result = PyValue::text("");
        for part in parts {
            let part = match part {
                PyValue::Int(value) => PyValue::Text(value.to_string()),
                PyValue::Text(_) | PyValue::Path(_) | PyValue::Array(..) => part,
                _ => return Err("a value in an f-string is not known".to_owned()),
            };
            result = match (&result, &part) {
                (PyValue::Text(before) | PyValue::Path(before), PyValue::Text(text))
                    if before.len() + text.len() > SUGGEST_TEXT_SIZE_MAX =>
                {
                    return Err(LONG_TEXT.to_owned());
                }
                (PyValue::Text(before), PyValue::Text(text)) => PyValue::Text(format!("{before}{text}")),
                (PyValue::Text(before), PyValue::Path(_)) if before.is_empty() => part,
                (PyValue::Path(path), PyValue::Text(text)) => PyValue::Path(format!("{path}{text}")),
                _ => self.binary("Add", &result, &part, false)?,
            };
        }
        Ok(result)
    }

    fn comprehension(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let generators = node.children("generators");
        let [generator] = generators.as_slice() else {
            return Err("a comprehension with two loops is not followed".to_owned());
        };
        let element = node.child("elt").ok_or("a comprehension without an element")?;
        let iterable = generator.child("iter").map_or(PyValue::Nothing, |iterable| self.eval(iterable));
        let target = generator.child("target").ok_or("a comprehension without a name")?;
        let tests = generator.children("ifs");
        if let Some(reason) = self.reason_of(&[&iterable]) {
            return Ok(PyValue::Unknown(reason));
        }
        if let Ok(items) = self.items(&iterable) {
            let mut results = Vec::new();
            for item in items {
                self.assign(target, item);
                let mut is_kept = true;
                for test in &tests {
                    let test = self.eval(*test);
                    is_kept &= self.truth(&test).ok_or("a condition in a comprehension is not known")?;
                }
                if is_kept {
                    results.push(self.eval(element));
                }
            }
            return Ok(self.new_list(results));
        }
        let (on, row, mut condition) = self.element_of(&iterable)?;
        self.assign(target, row);
        self.loops.push(on);
        let mut result = Ok(());
        for test in tests {
            match self.eval(test) {
                PyValue::Array(test, _) => {
                    let all = match condition {
                        Some(before) => self.logical(Logic::And, before, test),
                        None => Ok(test),
                    };
                    condition = Some(all?);
                }
                value if self.truth(&value) == Some(true) => {}
                _ => result = Err("a condition in a comprehension is not known".to_owned()),
            }
        }
        let element = self.eval(element);
        self.loops.pop();
        result?;
        Ok(self.new_each(on, element, condition))
    }

    fn dict_comprehension(&mut self, node: SyntaxNode<'a>) -> Result<PyValue, String> {
        let generators = node.children("generators");
        let ([generator], Some(key), Some(value)) = (generators.as_slice(), node.child("key"), node.child("value"))
        else {
            return Err("a comprehension with two loops is not followed".to_owned());
        };
        let iterable = generator.child("iter").map_or(PyValue::Nothing, |iterable| self.eval(iterable));
        let target = generator.child("target").ok_or("a comprehension without a name")?;
        if !generator.children("ifs").is_empty() {
            return Err("a condition in a dictionary's comprehension is not followed".to_owned());
        }
        let mut entries = Vec::new();
        for item in self.items(&iterable)? {
            self.assign(target, item);
            entries.push((self.eval(key), self.eval(value)));
        }
        Ok(self.new_dict(entries))
    }

    /// The result of an operator. `in_place` is true for `x -= y`, which keeps the datatype of an array of numpy.
    pub fn binary(
        &mut self,
        operator: &str,
        left: &PyValue,
        right: &PyValue,
        in_place: bool,
    ) -> Result<PyValue, String> {
        if let Some(reason) = self.reason_of(&[left, right]) {
            return Ok(PyValue::Unknown(reason));
        }
        if let Some(result) = library::constant_arithmetic(operator, left, right) {
            return match &result {
                PyValue::Text(text) if text.len() > SUGGEST_TEXT_SIZE_MAX => Err(LONG_TEXT.to_owned()),
                PyValue::Raw(bytes) if bytes.len() > SUGGEST_TEXT_SIZE_MAX => Err(LONG_TEXT.to_owned()),
                PyValue::Tuple(items) if items.len() > SUGGEST_ITEMS_MAX => Err("a tuple is too long".to_owned()),
                _ => Ok(result),
            };
        }
        match (operator, left, right) {
            ("Div", PyValue::Path(_), PyValue::Text(text)) => return self.joined_path(left, text),
            ("Add", PyValue::Path(path), PyValue::Text(text)) if path.len() + text.len() <= SUGGEST_TEXT_SIZE_MAX => {
                return Ok(PyValue::Path(format!("{path}{text}")));
            }
            ("Add", PyValue::List(left), PyValue::List(right)) => {
                let items = [self.items(&PyValue::List(*left))?, self.items(&PyValue::List(*right))?].concat();
                return Ok(self.new_list(items));
            }
            ("Mult", PyValue::List(_), PyValue::Int(count)) => {
                let items = self.items(left)?;
                let count = usize::try_from(*count).unwrap_or(0);
                let total = items.len().checked_mul(count).filter(|total| *total <= SUGGEST_ITEMS_MAX);
                let total = total.ok_or_else(|| format!("a list has more than {SUGGEST_ITEMS_MAX} elements"))?;
                return Ok(self.new_list(items.iter().cycle().take(total).cloned().collect()));
            }
            ("BitAnd" | "BitOr", PyValue::Array(one, kind), PyValue::Array(two, _)) => {
                let logic = if operator == "BitAnd" { Logic::And } else { Logic::Or };
                return Ok(PyValue::Array(self.logical(logic, *one, *two)?, *kind));
            }
            _ => {}
        }
        if let (Some(left), Some(right)) = (self.formula(left), self.formula(right)) {
            let sign = match operator {
                "Add" => "+",
                "Sub" => "-",
                "Mult" => "*",
                "Div" => "/",
                "FloorDiv" => "//",
                _ => return Err(format!("the operator '{operator}' is not followed")),
            };
            return self.new_formula(format!("({left}{sign}{right})"));
        }
        let arithmetic = match operator {
            "Add" => ArithmeticOp::Add,
            "Sub" => ArithmeticOp::Subtract,
            "Mult" => ArithmeticOp::Multiply,
            "Div" => ArithmeticOp::Divide,
            "Pow" => ArithmeticOp::Power,
            _ => return Err(format!("the operator '{operator}' is not followed")),
        };
        self.arithmetic(arithmetic, left, right, in_place)
    }

    pub fn joined_path(&self, path: &PyValue, part: &str) -> Result<PyValue, String> {
        if matches!(path, PyValue::Path(path) | PyValue::Text(path) if path.len() + part.len() > SUGGEST_TEXT_SIZE_MAX)
        {
            return Err(LONG_TEXT.to_owned());
        }
        match path {
            PyValue::Path(path) if path.is_empty() => Ok(PyValue::Path(part.trim_matches('/').to_owned())),
            PyValue::Path(path) => {
                Ok(PyValue::Path(format!("{}/{}", path.trim_end_matches('/'), part.trim_matches('/'))))
            }
            PyValue::Text(path) => Ok(PyValue::Text(format!("{}/{}", path.trim_end_matches('/'), part))),
            _ => Err("a path is not known".to_owned()),
        }
    }
}

/// Elements of a list that are looked at for one that is not known, and those of all lists in a value.
const HELD_ITEMS: usize = 64;
const HELD_MAX: usize = 1024;

const LONG_TEXT: &str = "a text becomes too long";

/// A text about a call.
fn named(path: &str, why: &str) -> String {
    let path = path.strip_prefix("builtins.").unwrap_or(path);
    format!("'{path}': {why}")
}

fn constant(node: SyntaxNode<'_>) -> Result<PyValue, String> {
    let text = node.text("value");
    Ok(match node.text("type") {
        "name" => match text {
            "True" => PyValue::Bool(true),
            "False" => PyValue::Bool(false),
            "Ellipsis" => PyValue::Ellipsis,
            _ => PyValue::Nothing,
        },
        "int" => PyValue::Int(text.parse().map_err(|_| "an integer is too large")?),
        "float" => PyValue::Float(text.parse().map_err(|_| "a number is not known")?),
        "str" => PyValue::text(text),
        "bytes" => {
            let digits: Vec<_> = text.bytes().map(|digit| char::from(digit).to_digit(16).unwrap_or(0) as u8).collect();
            PyValue::Raw(digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
        }
        other => return Err(format!("a constant of the type '{other}' is not followed")),
    })
}
