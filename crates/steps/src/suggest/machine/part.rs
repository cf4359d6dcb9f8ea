//! Parts of values: elements of lists, indices and slices of arrays, assignments to them.

use base::tensor::Datatype;

use crate::limits::SUGGEST_ITEMS_MAX;
use crate::suggest::machine::Machine;
use crate::suggest::op::{Dim, ExprId, Kind, Op, Order};
use crate::suggest::tree::SyntaxNode;
use crate::suggest::value::{ArrayKind, Object, PyValue};

impl<'a> Machine<'a> {
    /// The elements of a value, if all are known.
    pub fn items(&mut self, value: &PyValue) -> Result<Vec<PyValue>, String> {
        match value {
            PyValue::Tuple(items) => Ok(items.clone()),
            PyValue::List(list) => {
                let list = self.list(*list);
                self.charge(list.items.len());
                match (list.each, list.broken) {
                    (None, None) => Ok(list.items),
                    (_, Some(reason)) => {
                        Err(self.reasons.get(reason).map(|reason| reason.text.clone()).unwrap_or_default())
                    }
                    _ => Err("a list has an element for each row".to_owned()),
                }
            }
            PyValue::Dict(dict) => Ok(self.dict(*dict).iter().map(|(key, _)| key.clone()).collect()),
            PyValue::Text(text) if text.len() > SUGGEST_ITEMS_MAX => Err("a text is too long".to_owned()),
            PyValue::Text(text) => Ok(text.chars().map(|letter| PyValue::Text(letter.to_string())).collect()),
            PyValue::File(path, true) => {
                let text = self.read_text(path)?;
                Ok(text.split_inclusive('\n').map(PyValue::text).collect())
            }
            PyValue::Unknown(reason) => {
                Err(self.reasons.get(*reason).map(|reason| reason.text.clone()).unwrap_or_default())
            }
            _ => Err("its elements are not known".to_owned()),
        }
    }

    /// The element of an array along its first axis.
    pub fn item(&mut self, id: ExprId, kind: ArrayKind, place: i64) -> Result<PyValue, String> {
        self.subscript(&PyValue::Array(id, kind), &PyValue::Int(place))
    }

    /// `value[index]`.
    pub fn subscript(&mut self, value: &PyValue, index: &PyValue) -> Result<PyValue, String> {
        if let Some(reason) = self.reason_of(&[value]).or_else(|| match value {
            // Of a dictionary and a tuple one element is asked for.
            PyValue::Dict(_) | PyValue::Tuple(_) => None,
            _ => self.reason_of(&[index]),
        }) && !matches!(value, PyValue::Tuple(_))
        {
            return Ok(PyValue::Unknown(reason));
        }
        match (value, index) {
            (PyValue::Dict(dict), _) => self.member(*dict, index),
            (PyValue::Array(id, kind), _) if self.graph.kind(*id) == Kind::Json => {
                let key = match index {
                    PyValue::Text(key) if !key.contains('.') && !key.is_empty() => key.clone(),
                    PyValue::Int(place) if *place >= 0 => place.to_string(),
                    _ => return Err("a member of a JSON text is not known".to_owned()),
                };
                let shape = self.graph.shape(*id);
                Ok(PyValue::Array(self.graph.add(Op::Json(key), vec![*id], Kind::Json, shape)?, *kind))
            }
            (PyValue::Array(id, kind), _) => self.array_part(*id, *kind, index),
            (PyValue::Object(object), _) => self.object_part(object, index),
            (PyValue::List(list), _) if self.list(*list).each.is_some() => self.each_part(*list, index),
            (PyValue::List(_) | PyValue::Tuple(_), PyValue::Array(at, _)) => self.labelled(value, *at),
            (PyValue::List(_) | PyValue::Tuple(_) | PyValue::Text(_), _) => self.known_part(value, index),
            (PyValue::Library(_), _) => Ok(value.clone()),
            _ => Err("it is not known what '[]' gives".to_owned()),
        }
    }

    fn member(&mut self, dict: usize, index: &PyValue) -> Result<PyValue, String> {
        self.charge(self.dict(dict).len());
        if let PyValue::Array(at, _) = index {
            return self.labelled(&PyValue::Dict(dict), *at);
        }
        let found = self.dict(dict).iter().find(|(key, _)| key == index).map(|(_, value)| value.clone());
        found.ok_or_else(|| match index {
            PyValue::Text(key) => format!("the member '{key}' is not known"),
            _ => "a member is not known".to_owned(),
        })
    }

    /// An element of a list that has one for each row.
    fn each_part(&mut self, list: usize, index: &PyValue) -> Result<PyValue, String> {
        let Some(each) = self.list(list).each else { return Err("a list is not known".to_owned()) };
        let length = self.graph.loop_length(each.on);
        let first = |machine: &mut Self| {
            if machine.graph.is_rows(length) && each.on != machine.requests {
                machine.assume("only the first row is read: requests have one row");
                machine.graph.assume(length, 1);
            }
            machine.graph.is_one(length)
        };
        match index {
            PyValue::Array(at, _) if *self.graph.op(*at) == Op::Counter(each.on) => Ok(each.element),
            PyValue::Int(0 | -1) if each.condition.is_none() && first(self) => match each.element {
                PyValue::Array(id, kind) => {
                    let whole = self.graph.lifted(id, each.on)?;
                    self.array_part(whole, kind, &PyValue::Int(0))
                }
                _ => Err("an element of a list with one for each row".to_owned()),
            },
            PyValue::Array(at, kind) => {
                let whole = self.as_array(&PyValue::List(list))?;
                self.array_part(whole, *kind, &PyValue::Array(*at, *kind))
            }
            _ => Err("an element of a list with one for each row".to_owned()),
        }
    }

    fn known_part(&mut self, value: &PyValue, index: &PyValue) -> Result<PyValue, String> {
        let items = self.items(value)?;
        let count = items.len() as i64;
        let place = |at: i64| usize::try_from(if at < 0 { at + count } else { at }).ok();
        match index {
            PyValue::Int(at) => {
                let item = place(*at).and_then(|at| items.get(at).cloned());
                item.ok_or_else(|| format!("a list of {count} has no element {at}"))
            }
            PyValue::Slice(bounds) => {
                let [start, stop, step] = &**bounds;
                if !matches!(step, PyValue::Nothing | PyValue::Int(1 | -1)) {
                    return Err("a slice is not followed".to_owned());
                }
                let bound = |value: &PyValue, open: i64| match value {
                    PyValue::Nothing => Some(open),
                    value => value.integer().map(|at| if at < 0 { (at + count).max(0) } else { at.min(count) }),
                };
                let (start, stop) =
                    (bound(start, 0).ok_or("a slice is not known")?, bound(stop, count).ok_or("a slice is not known")?);
                let range = usize::try_from(start).unwrap_or(0)..usize::try_from(stop.max(start)).unwrap_or(0);
                let mut part: Vec<_> = items.get(range).unwrap_or_default().to_vec();
                if *step == PyValue::Int(-1) {
                    part.reverse();
                }
                match value {
                    PyValue::Tuple(_) => Ok(PyValue::Tuple(part)),
                    PyValue::Text(_) => Ok(PyValue::Text(
                        part.iter()
                            .map(|letter| if let PyValue::Text(text) = letter { text.as_str() } else { "" })
                            .collect(),
                    )),
                    _ => Ok(self.new_list(part)),
                }
            }
            _ => Err("an index is not known".to_owned()),
        }
    }

    /// The labels of classes: strings of a list or a dictionary by an index that a tensor has.
    fn labelled(&mut self, value: &PyValue, at: ExprId) -> Result<PyValue, String> {
        let counter = *self.graph.op(at) == Op::Size(Dim::Known(0)) || matches!(self.graph.op(at), Op::Counter(_));
        if let (true, PyValue::List(list)) = (counter, value)
            && self.list(*list).each.is_some()
        {
            return self.each_part(*list, &PyValue::Array(at, ArrayKind::Python));
        }
        let (labels, at) = self.labels(value, at)?;
        let id = self.each(Op::Labels(std::sync::Arc::new(labels)), at, Kind::Text)?;
        Ok(PyValue::Array(id, ArrayKind::Python))
    }

    /// Strings by their indices, and the index without a conversion to the keys of a dictionary.
    pub fn labels(&mut self, value: &PyValue, mut at: ExprId) -> Result<(Vec<String>, ExprId), String> {
        let text = |value: &PyValue| match value {
            PyValue::Text(text) => Some(text.clone()),
            PyValue::Raw(bytes) => String::from_utf8(bytes.clone()).ok(),
            _ => None,
        };
        let labels = match value {
            PyValue::Dict(dict) => {
                let entries = self.dict(*dict).to_vec();
                let mut labels = vec![None; entries.len()];
                for (key, label) in &entries {
                    let index = match key {
                        PyValue::Int(index) => usize::try_from(*index).ok(),
                        PyValue::Text(text) => text.parse().ok(),
                        _ => None,
                    };
                    if let Some(place) = index.and_then(|index| labels.get_mut(index)) {
                        *place = text(label);
                    }
                }
                if entries.iter().any(|(key, _)| matches!(key, PyValue::Text(_))) {
                    match (self.graph.op(at), self.graph.kind(at), self.graph.operand(at)) {
                        (Op::Cast, Kind::Text, Some(below)) => at = below,
                        _ => return Err("the keys of a dictionary are strings, its index is a number".to_owned()),
                    }
                }
                labels.into_iter().collect::<Option<Vec<_>>>()
            }
            value => self.items(value)?.iter().map(text).collect(),
        };
        let labels = labels.filter(|labels| !labels.is_empty());
        let labels =
            labels.ok_or("the values that an index of a tensor selects are not strings for the indices from 0")?;
        match self.graph.kind(at) {
            Kind::Number(Datatype::Int64 | Datatype::Int32) => Ok((labels, at)),
            _ => Err("the index of a label is no integer".to_owned()),
        }
    }

    /// A part of an array by numbers, slices, masks and others.
    fn array_part(&mut self, id: ExprId, kind: ArrayKind, index: &PyValue) -> Result<PyValue, String> {
        if kind == ArrayKind::Pillow {
            return Err("a part of an image is not followed".to_owned());
        }
        let parts = match index {
            PyValue::Tuple(parts) => parts.clone(),
            one => vec![one.clone()],
        };
        if let Some(reason) = self.reason_of(&parts.iter().collect::<Vec<_>>()) {
            return Ok(PyValue::Unknown(reason));
        }
        let used = parts.iter().filter(|part| !matches!(part, PyValue::Nothing | PyValue::Ellipsis)).count();
        let rank = self.graph.rank(id);
        if used > rank {
            return Err("an array has fewer axes than its index".to_owned());
        }
        let mut all = Vec::new();
        for part in parts {
            match part {
                PyValue::Ellipsis => all.extend(std::iter::repeat_n(whole(), rank - used)),
                part => all.push(part),
            }
        }
        let (mut id, mut axis) = (id, 0);
        let count = all.len();
        for part in all {
            id = match part {
                PyValue::Nothing => {
                    let mut shape = self.graph.shape(id);
                    shape.insert(axis.min(shape.len()), Dim::Known(1));
                    axis += 1;
                    self.graph.view(id, shape)?
                }
                PyValue::Int(at) => self.take(id, axis, at)?,
                PyValue::Slice(bounds) => {
                    axis += 1;
                    self.slice(id, axis - 1, &bounds)?
                }
                PyValue::Array(by, _) => {
                    let made = self.by_array(id, axis, by, count)?;
                    if self.graph.rank(by) > 0 {
                        axis += 1;
                    }
                    made
                }
                PyValue::List(_) | PyValue::Tuple(_) => {
                    let by = self.as_array(&part)?;
                    axis += 1;
                    self.by_array(id, axis - 1, by, count)?
                }
                _ => return Err("an index is not known".to_owned()),
            };
        }
        // Numbers of numpy and torch keep their library, by which arithmetic rounds.
        Ok(PyValue::Array(id, kind))
    }

    /// The place `at` along an axis, which disappears.
    fn take(&mut self, id: ExprId, place: usize, at: i64) -> Result<ExprId, String> {
        let mut shape = self.graph.shape(id);
        let dim = shape.get(place).copied().ok_or("an axis is out of bounds")?;
        if self.graph.is_rows(dim) && matches!(at, 0 | -1) {
            self.assume("only the first row is read: requests have one row");
            self.graph.assume(dim, 1);
        }
        if self.graph.is_one(dim) && matches!(at, 0 | -1) {
            shape.remove(place);
            return self.graph.view(id, shape);
        }
        if self.graph.is_rows(dim) {
            return Err(format!("row {at} of a request is read"));
        }
        let axis = place as i64 - shape.len() as i64;
        let tail = shape.get(place + 1..).unwrap_or_default().to_vec();
        let kind = self.graph.kind(id);
        self.by_row(Op::Take { axis, index: at }, id, shape.len() - place, kind, &tail)
    }

    /// A slice along an axis.
    fn slice(&mut self, id: ExprId, place: usize, bounds: &[PyValue; 3]) -> Result<ExprId, String> {
        if let (0, [PyValue::Nothing | PyValue::Int(0), PyValue::Array(count, _), PyValue::Nothing | PyValue::Int(1)]) =
            (place, bounds)
        {
            return self.first_rows(id, *count);
        }
        let bound = |value: &PyValue| match value {
            PyValue::Nothing => Ok(None),
            PyValue::Int(at) => Ok(Some(*at)),
            _ => Err("a bound of a slice is not known".to_owned()),
        };
        let [start, stop, step] = bounds;
        let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
        let start = start.filter(|start| *start != 0);
        if (start, stop, step) == (None, None, 1) {
            return Ok(id);
        }
        let shape = self.graph.shape(id);
        let axis = place as i64 - shape.len() as i64;
        if let (Op::Argsort(_) | Op::Slice { .. }, -1) = (self.graph.op(self.graph.below_views(id)).clone(), axis)
            && let Some(found) = self.sorted_part(id, start, stop, step)?
        {
            return Ok(found);
        }
        let dim = shape.get(place).copied().ok_or("an axis is out of bounds")?;
        if self.graph.is_rows(dim) {
            return Err("a part of the rows of a request is read".to_owned());
        }
        let size = match (dim, step) {
            (dim, -1) if start.is_none() && stop.is_none() => dim,
            (Dim::Known(size), 1) => {
                let size = i64::try_from(size).unwrap_or(i64::MAX);
                let at = |bound: i64| if bound < 0 { (bound + size).max(0) } else { bound.min(size) };
                let (start, stop) = (at(start.unwrap_or(0)), at(stop.unwrap_or(size)));
                Dim::Known(u64::try_from(stop - start).unwrap_or(0))
            }
            (Dim::Open(_), 1) => self.graph.open_size(false),
            _ => return Err("a slice with this step is not followed".to_owned()),
        };
        let mut tail = shape.get(place..).unwrap_or_default().to_vec();
        tail.first_mut().into_iter().for_each(|first| *first = size);
        let kind = self.graph.kind(id);
        self.by_row(Op::Slice { axis, start, stop, step }, id, shape.len() - place, kind, &tail)
    }

    /// `x[:count]` with a count that a tensor has.
    fn first_rows(&mut self, id: ExprId, count: ExprId) -> Result<ExprId, String> {
        let count = self.graph.below_casts(count);
        let is_integer = matches!(self.graph.kind(count), Kind::Number(Datatype::Int32 | Datatype::Int64));
        if !is_integer || matches!(self.graph.op(count), Op::Size(_) | Op::Formula(_)) {
            return Err("a bound of a slice is not known".to_owned());
        }
        let mut shape = self.graph.shape(id);
        let first = shape.first_mut().ok_or("a number has no rows")?;
        if self.graph.is_rows(*first) {
            return Err("a part of the rows of a request is read".to_owned());
        }
        // Parts with one count have one length.
        let is_same = |other: &ExprId| {
            *self.graph.op(*other) == Op::First && self.graph.get(*other).inputs.get(1) == Some(&count)
        };
        let known = self.graph.ids().find(is_same).and_then(|other| self.graph.shape(other).first().copied());
        *first = match known {
            Some(size) => size,
            None => self.graph.open_size(false),
        };
        let kind = self.graph.kind(id);
        self.graph.add(Op::First, vec![id, count], kind, shape)
    }

    /// The first or last indices of a sort, as a top-k.
    fn sorted_part(
        &mut self,
        id: ExprId,
        start: Option<i64>,
        stop: Option<i64>,
        step: i64,
    ) -> Result<Option<ExprId>, String> {
        let sort = self.graph.below_views(id);
        let of = self.graph.operand(sort);
        match (self.graph.op(sort).clone(), of, start, stop, step) {
            (Op::Argsort(order), Some(of), None, None, -1) => {
                let order = Order { is_descending: !order.is_descending, is_last_first: true, ..order };
                let (tail, int) = (self.graph.shape(of).last().copied(), Kind::Number(Datatype::Int64));
                self.by_row(Op::Argsort(order), of, 1, int, tail.as_slice()).map(Some)
            }
            (Op::Argsort(order), Some(of), None, Some(count @ 1..), 1) if order.is_descending => {
                self.top(of, count.unsigned_abs(), order, true).map(Some)
            }
            // `[::-1]` behind `[-k:]`, and `[:-k - 1:-1]`.
            (Op::Argsort(order), Some(of), None, Some(stop @ ..-1), -1) if !order.is_descending => {
                let order = Order { is_descending: true, is_last_first: true, ..order };
                self.top(of, stop.unsigned_abs() - 1, order, true).map(Some)
            }
            (Op::Slice { axis: -1, start: Some(count @ ..0), stop: None, step: 1 }, Some(sort), None, None, -1) => {
                let sort = self.graph.below_views(sort);
                match (self.graph.op(sort).clone(), self.graph.operand(sort)) {
                    (Op::Argsort(order), Some(of)) if !order.is_descending => {
                        let order = Order { is_descending: true, is_last_first: true, ..order };
                        self.top(of, count.unsigned_abs(), order, true).map(Some)
                    }
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// A selection by an array: a row of a loop, a mask, or indices.
    fn by_array(&mut self, id: ExprId, place: usize, by: ExprId, count: usize) -> Result<ExprId, String> {
        let shape = self.graph.shape(id);
        if let Op::Counter(on) = *self.graph.op(by) {
            let length = self.graph.loop_length(on);
            return match shape.get(place) {
                Some(dim) if place == 0 && *dim == length => self.graph.row(on, id),
                _ => Err("an index of a loop along another axis than that of its rows".to_owned()),
            };
        }
        if let Some(values) = self.graph.constant(by) {
            if self.graph.rank(by) == 0 {
                return self.take(id, place, values.first().map_or(0, |at| *at as i64));
            }
            if self.graph.rank(by) != 1 || self.graph.kind(by) == Kind::Number(Datatype::Bool) {
                return Err("a selection by these constants is not followed".to_owned());
            }
            let axis = place as i64 - shape.len() as i64;
            let indices: Vec<_> = values.iter().map(|at| *at as i64).collect();
            let mut tail = shape.get(place..).unwrap_or_default().to_vec();
            tail.first_mut().into_iter().for_each(|first| *first = Dim::Known(indices.len() as u64));
            let kind = self.graph.kind(id);
            let op = Op::Select { axis, indices: std::sync::Arc::new(indices) };
            return self.by_row(op, id, shape.len() - place, kind, &tail);
        }
        if count != 1 || place != 0 {
            return Err("an index by a tensor together with others is not followed".to_owned());
        }
        match (self.graph.kind(by), self.graph.rank(by), shape.len()) {
            (Kind::Number(Datatype::Bool), 1, _) => self.rows(id, by, true),
            (Kind::Number(Datatype::Bool), ..) => Err("a mask of several axes is not followed".to_owned()),
            (Kind::Number(_), 0, _) if matches!(self.graph.op(by), Op::Row(_)) && self.is_nms(by) => {
                let (Op::Row(on), Some(all)) = (self.graph.op(by).clone(), self.graph.operand(by)) else {
                    return Err("a selection by an array is not followed".to_owned());
                };
                let whole = self.rows(id, all, false)?;
                self.graph.row(on, whole)
            }
            (Kind::Number(_), 0 | 1, 1) if !self.is_nms(by) => self.gather(id, by),
            (Kind::Number(_), 1, _) => self.rows(id, by, false),
            _ => Err("a selection by an array is not followed".to_owned()),
        }
    }

    /// Returns true for the boxes that a suppression keeps, or one of them.
    fn is_nms(&self, mut id: ExprId) -> bool {
        while let (Op::Slice { .. } | Op::View | Op::Row(_) | Op::Cast, Some(below)) =
            (self.graph.op(id), self.graph.operand(id))
        {
            id = below;
        }
        matches!(self.graph.op(id), Op::Nms(_) | Op::Rows { .. })
    }

    /// A part of an object of a library.
    fn object_part(&mut self, object: &Object, index: &PyValue) -> Result<PyValue, String> {
        match (object, index) {
            (Object::Encoding(fields), PyValue::Text(name)) => {
                let found = fields.get(name).map(|(id, kind)| PyValue::Array(*id, *kind));
                found.ok_or_else(|| format!("the tokenizer gives no '{name}'"))
            }
            (Object::Requests, PyValue::Int(0)) => {
                self.assume("only the first request is read: requests are not batched");
                Ok(PyValue::object(Object::Request))
            }
            (Object::Requests, PyValue::Array(at, _)) if *self.graph.op(*at) == Op::Counter(self.requests) => {
                Ok(PyValue::object(Object::Request))
            }
            _ => Err("it is not known what '[]' gives".to_owned()),
        }
    }

    /// `target[index] = value`.
    pub fn assign_part(&mut self, target: SyntaxNode<'a>, value: PyValue) {
        let (Some(object), Some(index)) = (target.child("value"), target.child("slice")) else { return };
        let (known, index) = (self.eval(object), self.eval(index));
        self.go_to(target);
        match known {
            PyValue::Dict(dict) => {
                let (depth, conditions) = (self.loops.len(), self.conditions.len());
                let why =
                    self.dicts.get(dict).filter(|dict| (dict.depth, dict.conditions) != (depth, conditions)).is_some();
                let reason = why.then(|| self.unknown("a dictionary is changed in a loop or under a condition"));
                self.charge(self.dict(dict).len());
                let levels = self.levels_of(std::iter::once(&value));
                let reason = match &levels {
                    Err(why) => Some(self.unknown(why.clone())),
                    Ok(_) if self.dict(dict).len() >= SUGGEST_ITEMS_MAX => {
                        Some(self.unknown("a dictionary is too long"))
                    }
                    Ok(_) => reason,
                };
                let Some(dict) = self.dicts.get_mut(dict) else { return };
                dict.levels = dict.levels.max(levels.unwrap_or(1));
                match reason {
                    Some(PyValue::Unknown(reason)) => dict.broken = Some(reason),
                    _ => {
                        dict.entries.retain(|(key, _)| *key != index);
                        dict.entries.push((index, value));
                    }
                }
            }
            PyValue::List(list) => {
                let why = self.unknown("an element of a list is changed");
                if let (Some(list), PyValue::Unknown(reason)) = (self.lists.get_mut(list), why) {
                    list.broken = Some(reason);
                }
            }
            PyValue::Array(id, kind) => {
                let changed = self.with_column(id, &index, &value);
                self.change_in_place(id);
                let changed = changed.map_or_else(|why| self.unknown(why), |id| PyValue::Array(id, kind));
                self.assign(object, changed);
            }
            _ => {}
        }
    }

    /// An array with a column changed: `boxes[:, 0] = x`.
    fn with_column(&mut self, id: ExprId, index: &PyValue, value: &PyValue) -> Result<ExprId, String> {
        let other = || "a part of an array is changed".to_owned();
        let PyValue::Tuple(parts) = index else { return Err(other()) };
        let Some((PyValue::Int(column), lead)) = parts.split_last() else { return Err(other()) };
        let is_lead = lead.iter().all(|part| *part == whole() || *part == PyValue::Ellipsis);
        let rank = self.graph.rank(id);
        let reaches_all = lead.len() + 1 == rank || lead.contains(&PyValue::Ellipsis);
        if !is_lead || !reaches_all || !self.conditions.is_empty() {
            return Err(other());
        }
        let part = self.as_array(value)?;
        let Some(Dim::Known(columns)) = self.graph.shape(id).last().copied() else { return Err(other()) };
        let columns = i64::try_from(columns).unwrap_or(0);
        let column = if *column < 0 { *column + columns } else { *column };
        if column < 0 || column >= columns {
            return Err(other());
        }
        let (kind, shape) = (self.graph.kind(id), self.graph.shape(id));
        let part = match kind {
            Kind::Number(datatype) => self.cast(part, datatype)?,
            _ => return Err(other()),
        };
        self.graph.add(Op::WithColumn(column), vec![id, part], kind, shape)
    }
}

/// `:`.
fn whole() -> PyValue {
    PyValue::Slice(Box::new([PyValue::Nothing, PyValue::Nothing, PyValue::Nothing]))
}
