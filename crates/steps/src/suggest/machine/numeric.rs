//! Functions and methods of numpy, torch and scipy on arrays. The defaults of arguments are those of the libraries.

use crate::suggest::library;
use crate::suggest::library::NamedType;
use crate::suggest::machine::Machine;
use crate::suggest::op::{Dim, ExprId, Kind, Op, Order, Reduction};
use crate::suggest::value::{Arguments, ArrayKind, Called, PyValue, flag_or, integer_or, needed};
use base::tensor::Datatype;

impl Machine<'_> {
    /// A function of numpy, torch or scipy, or a method of their arrays with the array as its first argument.
    pub fn numeric(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        match name {
            "array" | "asarray" | "ascontiguousarray" | "tensor" | "as_tensor" | "stack" | "vstack" | "concatenate"
            | "cat" | "hstack" | "expand_dims" | "unsqueeze" | "squeeze" | "reshape" | "view" | "flatten" | "ravel"
            | "transpose" | "permute" | "moveaxis" | "t" | "astype" | "to" | "expand" | "broadcast_to" | "split"
            | "frombuffer" | "full" | "zeros" | "ones" | "zeros_like" | "ones_like" => {
                self.forming(name, kind, arguments)
            }
            "softmax" | "argmax" | "argsort" | "sort" | "topk" | "max" | "amax" | "min" | "amin" | "sum" | "mean"
            | "norm" | "normalize" | "take_along_axis" | "gather" | "take" | "index_select" | "maximum" | "minimum"
            | "clip" | "clamp" | "where" | "dot" => self.reducing(name, kind, arguments),
            _ => self.elementwise(name, kind, arguments),
        }
    }

    fn elementwise(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        if let Some(datatype) = method_type(name) {
            let [x] = arguments.bind(["x"])?;
            let x = self.as_array(&needed(x, "x")?)?;
            return Ok(PyValue::Array(self.cast(x, datatype)?, kind));
        }
        match name {
            "exp" | "sqrt" | "abs" | "absolute" => {
                let [x] = arguments.bind(["x"])?;
                let x = self.as_array(&needed(x, "x")?)?;
                if self.graph.constant(x).is_some() {
                    return Err("a function of a constant is not followed".to_owned());
                }
                let op = match name {
                    "exp" => Op::Exp,
                    "sqrt" => Op::Sqrt,
                    _ => Op::Absolute,
                };
                let own = self.graph.kind(x);
                Ok(PyValue::Array(self.each(op, x, own)?, kind))
            }
            "sigmoid" => {
                let [x] = arguments.bind(["input"])?;
                let x = self.as_array(&needed(x, "input")?)?;
                let own = self.graph.kind(x);
                Ok(PyValue::Array(self.each(Op::Sigmoid, x, own)?, kind))
            }
            "add" | "subtract" | "multiply" | "mul" | "sub" | "divide" | "true_divide" | "div" | "power" => {
                let [x, y] = arguments.bind(["x1", "x2"])?;
                let operator = match name {
                    "add" => "Add",
                    "subtract" | "sub" => "Sub",
                    "multiply" | "mul" => "Mult",
                    "power" => "Pow",
                    _ => "Div",
                };
                self.binary(operator, &needed(x, "x1")?, &needed(y, "x2")?, false)
            }
            "from_numpy" => self.same(arguments, ArrayKind::Torch),
            "numpy" => self.same(arguments, ArrayKind::Numpy),
            "item" => self.same(arguments, ArrayKind::Python),
            "copy" | "clone" | "tobytes" if arguments.positional.len() == 1 => self.copied(name, kind, arguments),
            "detach" | "cpu" | "contiguous" | "requires_grad_" | "cuda" if arguments.positional.len() == 1 => {
                self.same(arguments, kind)
            }
            "tolist" => self.as_list(arguments),
            "size" => self.size_of(arguments),
            "dim" => {
                let x = self.as_array(arguments.positional.first().unwrap_or(&PyValue::Nothing))?;
                Ok(PyValue::Int(self.graph.rank(x) as i64))
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    /// A copy with memory of its own, or the bytes of a file.
    fn copied(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let x = self.as_array(arguments.positional.first().unwrap_or(&PyValue::Nothing))?;
        let (own, mut shape) = (self.graph.kind(x), self.graph.shape(x));
        if name != "tobytes" {
            let copy = self.graph.add(Op::View, vec![x], own, shape)?;
            self.copies.insert(copy);
            return Ok(PyValue::Array(copy, kind));
        }
        match self.graph.op(self.graph.below_views(x)) {
            Op::Input(_) if own == Kind::Number(Datatype::Uint8) => {
                shape.pop();
                Ok(PyValue::Array(self.graph.add(Op::Cast, vec![x], Kind::Raw, shape)?, ArrayKind::Python))
            }
            _ => Err("the bytes of a tensor are not followed".to_owned()),
        }
    }

    /// The first argument as an array of another library.
    fn same(&mut self, arguments: &Arguments, kind: ArrayKind) -> Called {
        let x = self.as_array(arguments.positional.first().unwrap_or(&PyValue::Nothing))?;
        Ok(PyValue::Array(x, kind))
    }

    fn size_of(&mut self, arguments: &Arguments) -> Called {
        let [x, axis] = arguments.bind(["x", "dim"])?;
        let x = needed(x, "x")?;
        let PyValue::Tuple(sizes) = self.attribute(&x, "shape")? else { return Err("a shape is not known".to_owned()) };
        match axis {
            None => Ok(PyValue::Tuple(sizes)),
            Some(axis) => self.subscript(&PyValue::Tuple(sizes), &axis),
        }
    }

    /// `tolist()`: a list with an element for each row.
    fn as_list(&mut self, arguments: &Arguments) -> Called {
        let x = self.as_array(arguments.positional.first().unwrap_or(&PyValue::Nothing))?;
        match self.graph.rank(x) {
            0 | 2.. => Ok(PyValue::Array(x, ArrayKind::Python)),
            _ => {
                let length = self.graph.shape(x).first().copied().unwrap_or(Dim::Known(0));
                let on = self.graph.new_loop(length);
                let row = self.graph.row(on, x)?;
                Ok(self.new_each(on, PyValue::Array(row, ArrayKind::Python), None))
            }
        }
    }

    fn forming(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        match name {
            "array" | "asarray" | "ascontiguousarray" | "tensor" | "as_tensor" => self.new_array(kind, arguments),
            "astype" | "to" => self.converted(kind, arguments),
            "stack" | "vstack" | "concatenate" | "cat" | "hstack" => self.joining(name, kind, arguments),
            "expand_dims" | "unsqueeze" | "squeeze" => self.resizing(name, kind, arguments),
            "reshape" | "view" | "flatten" | "ravel" => self.reshaping(name, kind, arguments),
            "transpose" | "permute" | "t" | "moveaxis" => self.transposing(name, kind, arguments),
            "expand" | "broadcast_to" => {
                let (x, sizes) = self.sizes(arguments)?;
                let own = self.graph.shape(x);
                for (own, size) in own.iter().rev().zip(sizes.iter().rev()) {
                    if let (Dim::Open(_), Dim::Open(_), true) = (own, size, own != size) {
                        self.assume("two axes of open size that are joined have the same size");
                        self.graph.unify(*own, *size);
                    } else if own != size && *own != Dim::Known(1) {
                        return Err("an axis is repeated that is not of size 1".to_owned());
                    }
                }
                let own = self.graph.kind(x);
                Ok(PyValue::Array(self.graph.add(Op::Expand, vec![x], own, sizes)?, kind))
            }
            "frombuffer" => {
                let [buffer, datatype, count, offset] = arguments.bind(["buffer", "dtype", "count", "offset"])?;
                let is_bytes =
                    datatype.as_ref().and_then(library::datatype) == Some(NamedType::Number(Datatype::Uint8));
                match (needed(buffer, "buffer")?, is_bytes, count, offset) {
                    (PyValue::Array(id, _), true, None, None) if self.graph.kind(id) == Kind::Raw => {
                        Ok(PyValue::Array(id, ArrayKind::Numpy))
                    }
                    _ => Err("only the bytes of a file are followed".to_owned()),
                }
            }
            "zeros_like" | "ones_like" => {
                let x = self.as_array(arguments.positional.first().unwrap_or(&PyValue::Nothing))?;
                let Kind::Number(datatype) = self.graph.kind(x) else { return Err("it has no numbers".to_owned()) };
                let value = if name == "ones_like" { 1.0 } else { 0.0 };
                let one = self.graph.add_constant(vec![value], datatype, &[])?;
                let (own, shape) = (self.graph.kind(one), self.graph.shape(x));
                Ok(PyValue::Array(self.graph.add(Op::Expand, vec![one], own, shape)?, kind))
            }
            _ => self.filled(name, kind, arguments),
        }
    }

    /// `full`, `zeros`, `ones`.
    fn filled(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let (shape, value, datatype) = match name {
            "full" => {
                let [shape, value, datatype] = arguments.bind(["shape", "fill_value", "dtype"])?;
                (shape, needed(value, "fill_value")?.number().ok_or("a value that is not known")?, datatype)
            }
            _ => {
                let [shape, datatype] = arguments.bind(["shape", "dtype"])?;
                (shape, f64::from(u8::from(name == "ones")), datatype)
            }
        };
        let float = if kind == ArrayKind::Torch { Datatype::Fp32 } else { Datatype::Fp64 };
        let datatype = match datatype {
            None => float,
            Some(value) => match library::datatype(&value) {
                Some(NamedType::Number(datatype)) => datatype,
                _ => return Err("its datatype is not known".to_owned()),
            },
        };
        let shape = self.dims(&needed(shape, "shape")?)?;
        let one = self.graph.add_constant(vec![value], datatype, &[])?;
        Ok(PyValue::Array(self.graph.add(Op::Expand, vec![one], Kind::Number(datatype), shape)?, kind))
    }

    fn new_array(&mut self, kind: ArrayKind, arguments: &Arguments) -> Called {
        let [data, datatype, _, _] = arguments.bind(["object", "dtype", "copy", "device"])?;
        let data = needed(data, "object")?;
        if let PyValue::Raw(_) | PyValue::Text(_) = data {
            return Err("a text that is the same for all requests has no step".to_owned());
        }
        if self.is_texts(&data) {
            // An array of strings that are known.
            return Ok(data);
        }
        let mut id = self.as_array(&data)?;
        let from_pillow = matches!(data, PyValue::Array(_, ArrayKind::Pillow));
        if from_pillow && self.is_grey(id) {
            id = self.without_channel(id)?;
        }
        if let Some(value) = datatype.filter(|value| *value != PyValue::Nothing) {
            let named = library::datatype(&value).ok_or("its datatype is not known")?;
            return Ok(PyValue::Array(self.cast_to(id, named)?, kind));
        }
        let is_float_list = kind == ArrayKind::Torch
            && self.graph.kind(id) == Kind::Number(Datatype::Fp64)
            && matches!(data, PyValue::List(_) | PyValue::Tuple(_) | PyValue::Float(_));
        if is_float_list {
            return Ok(PyValue::Array(self.cast(id, Datatype::Fp32)?, kind));
        }
        if from_pillow {
            self.assume_rgb(id);
        }
        Ok(PyValue::Array(id, kind))
    }

    /// Returns true for a list of strings that are known.
    fn is_texts(&self, value: &PyValue) -> bool {
        match value {
            PyValue::List(list) => {
                let list = self.list(*list);
                !list.items.is_empty()
                    && list.items.iter().all(|item| matches!(item, PyValue::Text(_) | PyValue::Raw(_)))
            }
            _ => false,
        }
    }

    /// `astype`, and torch's `to`, which also names devices.
    fn converted(&mut self, kind: ArrayKind, arguments: &Arguments) -> Called {
        let arguments = arguments.without("copy").without("non_blocking");
        let [x, to] = arguments
            .bind(["x", if kind == ArrayKind::Torch { "device" } else { "dtype" }])
            .or_else(|_| arguments.bind(["x", "dtype"]))?;
        let x = needed(x, "x")?;
        if self.is_texts(&x) {
            return Ok(x);
        }
        let (id, to) = (self.as_array(&x)?, needed(to, "dtype")?);
        match library::datatype(&to) {
            Some(named) => Ok(PyValue::Array(self.cast_to(id, named)?, kind)),
            None if kind == ArrayKind::Torch => Ok(PyValue::Array(id, kind)),
            None => Err("its datatype is not known".to_owned()),
        }
    }

    fn joining(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let [tensors, axis] = arguments.bind(["arrays", if kind == ArrayKind::Torch { "dim" } else { "axis" }])?;
        let tensors = needed(tensors, "arrays")?;
        let axis = integer_or(&axis, 0)?;
        let items = match self.items(&tensors) {
            Ok(items) => items,
            Err(_) if name == "stack" && axis == 0 => return Ok(PyValue::Array(self.as_array(&tensors)?, kind)),
            Err(_) if matches!(name, "concatenate" | "cat" | "vstack") && axis == 0 => {
                // Rows [1, ..] of a loop are joined to a whole.
                let id = self.as_array(&tensors)?;
                let shape = self.graph.shape(id);
                return match shape.split_first() {
                    Some((rows, [Dim::Known(1), rest @ ..])) => {
                        let shape = std::iter::once(*rows).chain(rest.iter().copied()).collect();
                        Ok(PyValue::Array(self.graph.view(id, shape)?, kind))
                    }
                    _ if name == "vstack" && shape.len() == 2 => Ok(PyValue::Array(id, kind)),
                    _ => Err("parts of different lengths are joined".to_owned()),
                };
            }
            Err(why) => return Err(why),
        };
        let mut ids = Vec::new();
        for item in &items {
            ids.push(self.as_array(item)?);
        }
        if name == "stack" {
            let rank = ids.first().map_or(0, |id| self.graph.rank(*id)) as i64;
            let axis = if axis >= 0 { axis - rank - 1 } else { axis };
            return Ok(PyValue::Array(self.stack(ids, axis)?, kind));
        }
        let ranks_of_one = ids.iter().all(|id| self.graph.rank(*id) == 1);
        let id = match name {
            "hstack" => self.concat(ids, if ranks_of_one { 0 } else { 1 })?,
            "vstack" if ranks_of_one => self.stack(ids, -2)?,
            _ => self.concat(ids, axis)?,
        };
        Ok(PyValue::Array(id, kind))
    }

    fn resizing(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let [x, axis] = arguments.bind(["a", if kind == ArrayKind::Torch { "dim" } else { "axis" }])?;
        let id = self.as_array(&needed(x, "a")?)?;
        let mut shape = self.graph.shape(id);
        if name == "squeeze" {
            let Some(axis) = axis.filter(|axis| *axis != PyValue::Nothing) else {
                if let Some(rows) = shape.iter().copied().find(|dim| self.graph.is_rows(*dim)) {
                    self.assume("'squeeze' drops the axis of rows if there is one row: requests have one row");
                    self.graph.assume(rows, 1);
                    shape = self.graph.shape(id);
                }
                shape.retain(|dim| *dim != Dim::Known(1));
                if shape.iter().any(|dim| matches!(dim, Dim::Open(_))) {
                    self.assume("'squeeze' drops no axis of open size: none of them is 1");
                }
                return Ok(PyValue::Array(self.graph.view(id, shape)?, kind));
            };
            let place = self.place(id, axis.integer().ok_or("its axis is not known")?)?;
            let Some(dim) = shape.get(place).copied() else { return Err("its axis is out of bounds".to_owned()) };
            if self.graph.is_rows(dim) {
                self.assume("the axis of rows is dropped: requests have one row");
                self.graph.assume(dim, 1);
            } else if !self.graph.is_one(dim) {
                return Err("an axis that is not of size 1 is dropped".to_owned());
            }
            shape.remove(place);
            return Ok(PyValue::Array(self.graph.view(id, shape)?, kind));
        }
        let axis = needed(axis, "axis")?.integer().ok_or("its axis is not known")?;
        let rank = shape.len() as i64 + 1;
        let place =
            usize::try_from(if axis < 0 { axis + rank } else { axis }).ok().filter(|place| *place <= shape.len());
        shape.insert(place.ok_or("its axis is out of bounds")?, Dim::Known(1));
        Ok(PyValue::Array(self.graph.view(id, shape)?, kind))
    }

    fn place(&self, id: ExprId, axis: i64) -> Result<usize, String> {
        let axis = self.axis(id, axis)?;
        usize::try_from(self.graph.rank(id) as i64 + axis).map_err(|_| "an axis is out of bounds".to_owned())
    }

    fn reshaping(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let (id, sizes) = match name {
            "flatten" | "ravel" => {
                if arguments.positional.len() > 1 || !arguments.named.is_empty() {
                    return Err("its arguments are not followed".to_owned());
                }
                (self.as_array(arguments.positional.first().unwrap_or(&PyValue::Nothing))?, vec![None])
            }
            _ => {
                let (x, rest) = arguments.positional.split_first().ok_or("it lacks its array")?;
                let id = self.as_array(x)?;
                let sizes = match (rest, arguments.named.as_slice()) {
                    ([PyValue::Tuple(_) | PyValue::List(_)], []) => {
                        self.items(rest.first().unwrap_or(&PyValue::Nothing))?
                    }
                    (sizes, []) => sizes.to_vec(),
                    ([], [(name, shape)]) if name == "shape" || name == "newshape" => self.items(shape)?,
                    _ => return Err("its arguments are not followed".to_owned()),
                };
                let sizes = sizes.iter().map(|size| match size.integer() {
                    Some(-1) => Ok(None),
                    _ => self.dim(size).map(Some),
                });
                (id, sizes.collect::<Result<Vec<_>, _>>()?)
            }
        };
        let shape = self.filled_shape(id, &sizes)?;
        Ok(PyValue::Array(self.graph.view(id, shape)?, kind))
    }

    /// The sizes of a new shape, of which one may be left open.
    fn filled_shape(&mut self, id: ExprId, sizes: &[Option<Dim>]) -> Result<Vec<Dim>, String> {
        let own = self.graph.shape(id);
        let mut left: Vec<Dim> = own.clone();
        let mut known = 1_u64;
        for size in sizes.iter().flatten() {
            match (left.iter().position(|dim| dim == size), size) {
                (Some(place), _) => drop(left.remove(place)),
                (None, Dim::Known(size)) => known = known.saturating_mul(*size),
                (None, Dim::Open(_)) => return Err("a new shape has a size that is not of the old one".to_owned()),
            }
        }
        let product = left.iter().try_fold((1_u64, None), |product, dim| match (product, dim) {
            ((count, open), Dim::Known(size)) => Some((count.checked_mul(*size)?, open)),
            ((count, None), open) => Some((count, Some(*open))),
            _ => None,
        });
        let Some((count, open)) = product else { return Err("a new shape joins open sizes".to_owned()) };
        let is_open = sizes.iter().any(Option::is_none);
        let rest = match (count % known.max(1), count / known.max(1), open) {
            (0, 1, Some(open)) => open,
            (0, count, None) => Dim::Known(count),
            (0, _, Some(_)) => self.graph.open_size(false),
            _ if open.is_some() => self.graph.open_size(false),
            _ => return Err("a new shape has another number of elements".to_owned()),
        };
        if !is_open && rest != Dim::Known(1) {
            if self.graph.is_rows(rest) {
                self.assume("a shape without an axis of rows: requests have one row");
                self.graph.assume(rest, 1);
            } else {
                return Err("a new shape has another number of elements".to_owned());
            }
        }
        Ok(sizes.iter().map(|size| size.unwrap_or(rest)).collect())
    }

    /// A size that a value states.
    fn dim(&self, value: &PyValue) -> Result<Dim, String> {
        match value {
            PyValue::Array(id, _) => match self.graph.op(*id) {
                Op::Size(dim) => Ok(self.graph.resolved(*dim)),
                _ => Err("a size is not known".to_owned()),
            },
            value => {
                let size = value.integer().and_then(|size| u64::try_from(size).ok());
                size.map(Dim::Known).ok_or_else(|| "a size is not known".to_owned())
            }
        }
    }

    fn dims(&mut self, value: &PyValue) -> Result<Vec<Dim>, String> {
        let items = self.items(value).unwrap_or_else(|_| vec![value.clone()]);
        items.iter().map(|item| self.dim(item)).collect()
    }

    /// An array and the sizes that follow it.
    fn sizes(&mut self, arguments: &Arguments) -> Result<(ExprId, Vec<Dim>), String> {
        let (x, rest) = arguments.positional.split_first().ok_or("it lacks its array")?;
        let id = self.as_array(x)?;
        let sizes = match rest {
            [one @ (PyValue::Tuple(_) | PyValue::List(_))] => self.items(one)?,
            several => several.to_vec(),
        };
        let own = self.graph.shape(id);
        let keeps = |place: usize| {
            let place = (place + own.len()).checked_sub(sizes.len());
            place.and_then(|place| own.get(place).copied()).ok_or_else(|| "a size is not known".to_owned())
        };
        let dims = sizes.iter().enumerate().map(|(place, size)| match size.integer() {
            Some(-1) => keeps(place),
            _ => self.dim(size),
        });
        Ok((id, dims.collect::<Result<_, _>>()?))
    }

    fn transposing(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let (x, rest) = arguments.positional.split_first().ok_or("it lacks its array")?;
        let id = self.as_array(x)?;
        let rank = self.graph.rank(id);
        if !arguments.named.is_empty() || name == "moveaxis" {
            return Err("its arguments are not followed".to_owned());
        }
        let axes = match rest {
            [] => return Ok(PyValue::Array(self.transpose(id, None)?, kind)),
            [one @ (PyValue::Tuple(_) | PyValue::List(_))] => self.items(one)?,
            several => several.to_vec(),
        };
        let places = axes.iter().map(|axis| self.place(id, axis.integer().ok_or("an axis is not known")?));
        let mut order = places.collect::<Result<Vec<_>, _>>()?;
        if let (ArrayKind::Torch, "transpose", [one, two]) = (kind, name, order.as_slice()) {
            let (one, two) = (*one, *two);
            order = (0..rank).collect();
            order.swap(one, two);
        }
        Ok(PyValue::Array(self.transpose(id, Some(order))?, kind))
    }

    fn reducing(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let axis_name = if kind == ArrayKind::Torch { "dim" } else { "axis" };
        let keep_name = if kind == ArrayKind::Torch { "keepdim" } else { "keepdims" };
        match name {
            "softmax" => {
                let [x, axis, datatype] = arguments.bind(["x", axis_name, "dtype"])?;
                if datatype.is_some() {
                    return Err("its datatype is not followed".to_owned());
                }
                let id = self.as_array(&needed(x, "x")?)?;
                let axis = match axis.filter(|axis| *axis != PyValue::Nothing) {
                    Some(axis) => axis.integer().ok_or("its axis is not known")?,
                    None if kind == ArrayKind::Torch => {
                        return Err("a softmax without an axis is not followed".to_owned());
                    }
                    None => {
                        // scipy takes all elements together.
                        self.reduce(
                            id,
                            &|axis| Op::Reduce { kind: Reduction::Max, axis, keeps: false },
                            self.graph.kind(id),
                            None,
                            false,
                        )?;
                        -1
                    }
                };
                Ok(PyValue::Array(self.softmax(id, axis)?, kind))
            }
            "argmax" | "max" | "amax" | "min" | "amin" | "sum" | "mean" => {
                let [x, axis, keeps] = arguments.bind(["a", axis_name, keep_name])?;
                self.reduction(name, kind, &needed(x, "a")?, axis, flag_or(&keeps, false)?)
            }
            "norm" => {
                let [x, order, axis, keeps] = arguments.bind(match kind {
                    ArrayKind::Torch => ["x", "p", "dim", "keepdim"],
                    _ => ["x", "ord", "axis", "keepdims"],
                })?;
                if order.is_some_and(|order| order != PyValue::Nothing && order.number() != Some(2.0)) {
                    return Err("only the L2 norm is followed".to_owned());
                }
                let id = self.as_array(&needed(x, "x")?)?;
                let keeps = flag_or(&keeps, false)?;
                let axis = self.optional_axis(&axis)?;
                let own = self.graph.kind(id);
                Ok(PyValue::Array(self.reduce(id, &|axis| Op::Norm { axis, keeps: false }, own, axis, keeps)?, kind))
            }
            "normalize" => {
                let [x, p, axis, eps] = arguments.bind(["input", "p", "dim", "eps"])?;
                let id = self.as_array(&needed(x, "input")?)?;
                if p.is_some_and(|p| p.number() != Some(2.0)) || self.axis(id, integer_or(&axis, 1)?)? != -1 {
                    return Err("only the L2 norm along the last axis is followed".to_owned());
                }
                let epsilon = eps.map_or(Some(1e-12), |eps| eps.number()).ok_or("its eps is not known")?;
                let (own, tail) = (self.graph.kind(id), self.graph.shape(id).last().copied());
                Ok(PyValue::Array(self.by_row(Op::Normalize(epsilon), id, 1, own, tail.as_slice())?, kind))
            }
            _ => self.choosing(name, kind, arguments),
        }
    }

    fn optional_axis(&self, axis: &Option<PyValue>) -> Result<Option<i64>, String> {
        match axis {
            None | Some(PyValue::Nothing) => Ok(None),
            Some(PyValue::Tuple(axes)) if axes.len() == 1 => self.optional_axis(&axes.first().cloned()),
            Some(axis) => axis.integer().map(Some).ok_or_else(|| "its axis is not known".to_owned()),
        }
    }

    fn reduction(&mut self, name: &str, kind: ArrayKind, x: &PyValue, axis: Option<PyValue>, keeps: bool) -> Called {
        if let (Some(PyValue::Array(..)), "max" | "min", ArrayKind::Torch) = (&axis, name, kind) {
            return Err("an elementwise comparison is not followed".to_owned());
        }
        let id = self.as_array(x)?;
        let axis = self.optional_axis(&axis)?;
        let own = self.graph.kind(id);
        let reduce = |reduction| move |axis| Op::Reduce { kind: reduction, axis, keeps: false };
        let value = match name {
            "argmax" => self.reduce(id, &Op::Argmax, Kind::Number(Datatype::Int64), axis, keeps)?,
            "max" | "amax" => self.reduce(id, &reduce(Reduction::Max), own, axis, keeps)?,
            "min" | "amin" => self.reduce(id, &reduce(Reduction::Min), own, axis, keeps)?,
            "sum" => self.reduce(id, &reduce(Reduction::Sum), own, axis, keeps)?,
            _ => self.reduce(id, &reduce(Reduction::Mean), own, axis, keeps)?,
        };
        // torch gives values and indices along an axis.
        if kind == ArrayKind::Torch && axis.is_some() && matches!(name, "max") {
            let index = self.reduce(id, &Op::Argmax, Kind::Number(Datatype::Int64), axis, keeps)?;
            return Ok(PyValue::Tuple(vec![PyValue::Array(value, kind), PyValue::Array(index, kind)]));
        }
        if kind == ArrayKind::Torch && axis.is_some() && name == "min" {
            return Err("the indices of a minimum have no step".to_owned());
        }
        Ok(PyValue::Array(value, kind))
    }

    fn choosing(&mut self, name: &str, kind: ArrayKind, arguments: &Arguments) -> Called {
        let axis_name = if kind == ArrayKind::Torch { "dim" } else { "axis" };
        match name {
            "argsort" => {
                let arguments = arguments.without("kind").without("stable");
                let is_stable = matches!(arguments.named("kind"), Some(PyValue::Text(kind)) if kind == "stable" || kind == "mergesort");
                let [x, axis, descending] = arguments.bind(["a", axis_name, "descending"])?;
                let id = self.as_array(&needed(x, "a")?)?;
                let order = Order { is_descending: flag_or(&descending, false)?, is_stable, is_last_first: false };
                Ok(PyValue::Array(self.argsort(id, integer_or(&axis, -1)?, order)?, kind))
            }
            "topk" => {
                let arguments = arguments.without("sorted");
                let [x, count, axis, largest] = arguments.bind(["input", "k", "dim", "largest"])?;
                let id = self.as_array(&needed(x, "input")?)?;
                let count = needed(count, "k")?.integer().and_then(|count| u64::try_from(count).ok());
                let count = count.filter(|count| *count > 0).ok_or("its k is not known")?;
                if self.axis(id, integer_or(&axis, -1)?)? != -1 || !flag_or(&largest, true)? {
                    return Err("only the largest along the last axis are followed".to_owned());
                }
                let order = Order { is_descending: true, is_stable: false, is_last_first: false };
                let [values, indices] = [false, true].map(|is_index| self.top(id, count, order, is_index));
                Ok(PyValue::Tuple(vec![PyValue::Array(values?, kind), PyValue::Array(indices?, kind)]))
            }
            "take_along_axis" | "gather" => {
                let [x, index, axis] = match (kind, name) {
                    (ArrayKind::Torch, _) => {
                        let [x, axis, index] = arguments.bind(["input", "dim", "index"])?;
                        [x, index, axis]
                    }
                    _ => arguments.bind(["arr", "indices", "axis"])?,
                };
                let (id, index) = (self.as_array(&needed(x, "arr")?)?, self.as_array(&needed(index, "indices")?)?);
                if self.axis(id, needed(axis, "axis")?.integer().ok_or("its axis is not known")?)? != -1 {
                    return Err("only the last axis is followed".to_owned());
                }
                Ok(PyValue::Array(self.gather(id, index)?, kind))
            }
            "clip" | "clamp" => {
                let [x, least, most] = match kind {
                    ArrayKind::Torch => arguments.bind(["input", "min", "max"])?,
                    _ => arguments.bind(["a", "a_min", "a_max"]).or_else(|_| arguments.bind(["a", "min", "max"]))?,
                };
                let bound = |value: Option<PyValue>, open: f64| match value {
                    None | Some(PyValue::Nothing) => Some(open),
                    Some(value) => value.number(),
                };
                let least = bound(least, f64::NEG_INFINITY).ok_or("its bounds are not known")?;
                let most = bound(most, f64::INFINITY).ok_or("its bounds are not known")?;
                self.clipped(&needed(x, "a")?, least, most, kind)
            }
            "maximum" | "minimum" => {
                let [x, bound] = arguments.bind(["x1", "x2"])?;
                let bound = needed(bound, "x2")?.number().ok_or("it is followed with a number alone")?;
                let (least, most) = if name == "maximum" { (bound, f64::INFINITY) } else { (f64::NEG_INFINITY, bound) };
                self.clipped(&needed(x, "x1")?, least, most, kind)
            }
            "where" => {
                let [condition] = arguments.bind(["condition"])?;
                let mask = self.as_array(&needed(condition, "condition")?)?;
                if self.graph.rank(mask) != 1 {
                    return Err("it is followed for one axis alone".to_owned());
                }
                // The indices select the same rows as the mask.
                Ok(PyValue::Tuple(vec![PyValue::Array(mask, kind)]))
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    fn clipped(&mut self, x: &PyValue, least: f64, most: f64, kind: ArrayKind) -> Called {
        let id = self.as_array(x)?;
        let own = self.graph.kind(id);
        Ok(PyValue::Array(self.each(Op::Clip(least, most), id, own)?, kind))
    }
}

/// The datatype of torch's methods `float()`, `long()` and others.
fn method_type(name: &str) -> Option<Datatype> {
    Some(match name {
        "float" | "float32" => Datatype::Fp32,
        "double" | "float64" => Datatype::Fp64,
        "half" | "float16" => Datatype::Fp16,
        "long" | "int64" => Datatype::Int64,
        "int" | "int32" => Datatype::Int32,
        "bool" | "bool_" => Datatype::Bool,
        "byte" | "uint8" => Datatype::Uint8,
        _ => return None,
    })
}
