//! Operations on arrays: shapes, datatypes, and the forms that public files write the same thing in.

use base::tensor::Datatype;

use crate::limits::SUGGEST_EXPRESSIONS_MAX;
use crate::suggest::library::NamedType;
use crate::suggest::machine::{Machine, TOO_NESTED};
use crate::suggest::op::{ArithmeticOp, CompareOp, Dim, ExprId, Kind, Logic, Op, Order, Reduction};
use crate::suggest::value::{ArrayKind, PyValue};

impl Machine<'_> {
    /// A value as an array: numbers and lists become constants, lists with an element for each row tensors.
    pub fn as_array(&mut self, value: &PyValue) -> Result<ExprId, String> {
        match value {
            PyValue::Array(id, _) => Ok(*id),
            PyValue::Bool(flag) => self.graph.add_constant(vec![f64::from(u8::from(*flag))], Datatype::Bool, &[]),
            PyValue::Int(number) => self.graph.add_constant(vec![*number as f64], Datatype::Int64, &[]),
            PyValue::Float(number) => self.graph.add_constant(vec![*number], Datatype::Fp64, &[]),
            PyValue::List(_) | PyValue::Tuple(_) => {
                let stacked = if self.descend() { self.stacked(value) } else { Err(TOO_NESTED.to_owned()) };
                self.ascend();
                stacked
            }
            PyValue::Unknown(reason) => {
                Err(self.reasons.get(*reason).map(|reason| reason.text.clone()).unwrap_or_default())
            }
            _ => Err("it is no array".to_owned()),
        }
    }

    /// The array of the elements of a list.
    fn stacked(&mut self, value: &PyValue) -> Result<ExprId, String> {
        if let PyValue::List(list) = value {
            let list = self.list(*list);
            if let Some(reason) = list.broken {
                return self.as_array(&PyValue::Unknown(reason));
            }
            if let Some(each) = list.each {
                self.charge(SUGGEST_EXPRESSIONS_MAX);
                let element = self.as_array(&each.element)?;
                let whole = self.graph.lifted(element, each.on)?;
                let Some(condition) = each.condition else { return Ok(whole) };
                let mask = self.graph.lifted(condition, each.on)?;
                return self.rows(whole, mask, true);
            }
        }
        let items = self.items(value)?;
        let mut ids = Vec::with_capacity(items.len());
        for item in &items {
            ids.push(self.as_array(item)?);
        }
        let Some(first) = ids.first().copied() else { return Err("a list is empty".to_owned()) };
        let shape = self.graph.shape(first);
        if ids.iter().any(|id| !self.graph.is_same(&self.graph.shape(*id), &shape)) {
            return Err("the elements of a list have different shapes".to_owned());
        }
        let constants: Option<Vec<_>> = ids.iter().map(|id| self.graph.constant(*id)).collect();
        if let Some(constants) = constants {
            let kinds = ids.iter().map(|id| self.graph.kind(*id));
            let datatype = kinds.fold(Datatype::Bool, |all, kind| match (all, kind) {
                (_, Kind::Number(Datatype::Fp64)) => Datatype::Fp64,
                (Datatype::Bool, Kind::Number(other)) => other,
                (all, _) => all,
            });
            let values = constants.iter().flat_map(|values| values.iter().copied()).collect();
            let sizes = shape.iter().map(|dim| if let Dim::Known(size) = dim { *size as usize } else { 0 });
            let sizes: Vec<_> = std::iter::once(ids.len()).chain(sizes).collect();
            return self.graph.add_constant(values, datatype, &sizes);
        }
        let axis = -(shape.len() as i64) - 1;
        self.stack(ids, axis)
    }

    /// Joins along a new axis.
    pub fn stack(&mut self, ids: Vec<ExprId>, axis: i64) -> Result<ExprId, String> {
        let Some(first) = ids.first().copied() else { return Err("nothing is stacked".to_owned()) };
        let mut shape = self.graph.shape(first);
        let place = usize::try_from(shape.len() as i64 + 1 + axis).map_err(|_| "an axis is out of bounds")?;
        if ids.len() == 1 {
            shape.insert(place.min(shape.len()), Dim::Known(1));
            return self.graph.view(first, shape);
        }
        let kind = self.one_kind(&ids)?;
        if ids.iter().any(|id| !self.graph.is_same(&self.graph.shape(*id), &shape)) {
            return Err("tensors of different shapes are stacked".to_owned());
        }
        shape.insert(place.min(shape.len()), Dim::Known(ids.len() as u64));
        self.graph.add(Op::Stack(axis), ids, kind, shape)
    }

    /// Joins along an axis.
    pub fn concat(&mut self, ids: Vec<ExprId>, axis: i64) -> Result<ExprId, String> {
        let Some(first) = ids.first().copied() else { return Err("nothing is joined".to_owned()) };
        if ids.len() == 1 {
            return Ok(first);
        }
        let axis = self.axis(first, axis)?;
        let mut shape = self.graph.shape(first);
        let place = usize::try_from(shape.len() as i64 + axis).map_err(|_| "an axis is out of bounds")?;
        let mut total = Some(0);
        for id in &ids {
            let own = self.graph.shape(*id);
            let is_same = own.len() == shape.len()
                && own.iter().zip(&shape).enumerate().all(|(index, (one, two))| index == place || one == two);
            if !is_same {
                return Err("tensors of different shapes are joined".to_owned());
            }
            total = match (total, own.get(place)) {
                (Some(total), Some(Dim::Known(size))) => Some(total + size),
                _ => None,
            };
        }
        let size = total.map_or_else(|| self.graph.open_size(false), Dim::Known);
        if let Some(place) = shape.get_mut(place) {
            *place = size;
        }
        let kind = self.one_kind(&ids)?;
        self.graph.add(Op::Concat(axis), ids, kind, shape)
    }

    fn one_kind(&self, ids: &[ExprId]) -> Result<Kind, String> {
        let first = ids.first().map(|id| self.graph.kind(*id)).ok_or("nothing is joined")?;
        match ids.iter().all(|id| self.graph.kind(*id) == first) {
            true => Ok(first),
            false => Err("tensors of different datatypes are joined".to_owned()),
        }
    }

    /// An axis, counted from the end.
    pub fn axis(&self, id: ExprId, axis: i64) -> Result<i64, String> {
        let rank = self.graph.rank(id) as i64;
        match axis {
            axis if (0..rank).contains(&axis) => Ok(axis - rank),
            axis if (-rank..0).contains(&axis) => Ok(axis),
            _ => Err(format!("the axis {axis} is out of bounds")),
        }
    }

    /// An operation on the last `count` axes, which become `tail`.
    pub fn by_row(&mut self, op: Op, id: ExprId, count: usize, kind: Kind, tail: &[Dim]) -> Result<ExprId, String> {
        let base = self.graph.below_view(id, count);
        let lead = |shape: Vec<Dim>| {
            let lead = shape.len().saturating_sub(count);
            [shape.get(..lead).unwrap_or_default(), tail].concat()
        };
        let (inner, outer) = (lead(self.graph.shape(base)), lead(self.graph.shape(id)));
        let made = self.graph.add(op, vec![base], kind, inner)?;
        self.graph.absorb(made, &[id]);
        self.graph.view(made, outer)
    }

    /// An operation on each element.
    pub fn each(&mut self, op: Op, id: ExprId, kind: Kind) -> Result<ExprId, String> {
        self.by_row(op, id, 0, kind, &[])
    }

    pub fn cast(&mut self, id: ExprId, datatype: Datatype) -> Result<ExprId, String> {
        if self.graph.kind(id) == Kind::Number(datatype) {
            return Ok(id);
        }
        if let Some(values) = self.graph.constant(id) {
            let values = values.iter().map(|value| rounded(*value, datatype)).collect();
            let shape = self.graph.shape(id);
            let sizes: Vec<_> =
                shape.iter().map(|dim| if let Dim::Known(size) = dim { *size as usize } else { 0 }).collect();
            return self.graph.add_constant(values, datatype, &sizes);
        }
        match self.graph.kind(id) {
            Kind::Number(_) => self.each(Op::Cast, id, Kind::Number(datatype)),
            _ => Err("strings become numbers".to_owned()),
        }
    }

    /// `astype`.
    pub fn cast_to(&mut self, id: ExprId, to: NamedType) -> Result<ExprId, String> {
        match (to, self.graph.kind(id)) {
            (NamedType::Number(datatype), Kind::Json) => self.parsed(id, datatype),
            (NamedType::Number(datatype), _) => self.cast(id, datatype),
            (NamedType::Object, Kind::Text | Kind::Raw) => Ok(id),
            (NamedType::Bytes, Kind::Text) => self.each(Op::Encode, id, Kind::Raw),
            (NamedType::Bytes, Kind::Raw) | (NamedType::Text, Kind::Text) => Ok(id),
            _ => Err("this conversion is not followed".to_owned()),
        }
    }

    /// The shape of two operands together.
    pub fn broadcast(&mut self, left: ExprId, right: ExprId) -> Result<Vec<Dim>, String> {
        let (mut one, mut two) = (self.graph.shape(left), self.graph.shape(right));
        one.reverse();
        two.reverse();
        let mut shape = Vec::new();
        for place in 0..one.len().max(two.len()) {
            let dim = match (one.get(place).copied(), two.get(place).copied()) {
                (Some(dim), None | Some(Dim::Known(1))) | (None | Some(Dim::Known(1)), Some(dim)) => dim,
                (Some(one), Some(two)) if one == two => one,
                (Some(one @ Dim::Open(_)), Some(two @ Dim::Open(_)))
                    if !self.graph.is_rows(one) && !self.graph.is_rows(two) =>
                {
                    self.assume("two axes of open size that are joined have the same size");
                    self.graph.unify(two, one);
                    one
                }
                _ => return Err("the shapes of two operands differ".to_owned()),
            };
            shape.push(dim);
        }
        shape.reverse();
        Ok(shape)
    }

    pub fn arithmetic(
        &mut self,
        op: ArithmeticOp,
        left: &PyValue,
        right: &PyValue,
        in_place: bool,
    ) -> Result<PyValue, String> {
        let kind = match (left.array(), right.array()) {
            (Some((_, ArrayKind::Python)), Some((_, kind))) | (Some((_, kind)), _) | (None, Some((_, kind))) => kind,
            // numpy's constants are lists here.
            (None, None) => ArrayKind::Numpy,
        };
        if let (ArithmeticOp::Add, PyValue::Text(text), PyValue::Array(id, _)) = (op, left, right)
            && self.graph.kind(*id) == Kind::Text
        {
            return Ok(PyValue::Array(self.each(Op::Prefix(text.clone()), *id, Kind::Text)?, kind));
        }
        let (one, two) = (self.as_array(left)?, self.as_array(right)?);
        let datatype = self.promoted(op, (left, one), (right, two), kind)?;
        let result = self.computed(op, one, two, datatype)?;
        let result = match self.graph.kind(one) {
            Kind::Number(own) if in_place && kind != ArrayKind::Python => self.cast(result, own)?,
            _ => result,
        };
        Ok(PyValue::Array(result, kind))
    }

    /// The datatype of a result, by the rules of the library.
    fn promoted(
        &self,
        op: ArithmeticOp,
        (left, one): (&PyValue, ExprId),
        (right, two): (&PyValue, ExprId),
        kind: ArrayKind,
    ) -> Result<Datatype, String> {
        let (Kind::Number(one_type), Kind::Number(two_type)) = (self.graph.kind(one), self.graph.kind(two)) else {
            return Err("arithmetic on strings is not followed".to_owned());
        };
        let is_float = |datatype| matches!(datatype, Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64);
        let is_weak =
            |value: &PyValue| value.number().is_some() || matches!(value, PyValue::Array(_, ArrayKind::Python));
        let float = if kind == ArrayKind::Torch { Datatype::Fp32 } else { Datatype::Fp64 };
        let joined = match (is_weak(left), is_weak(right)) {
            (false, true) if is_float(one_type) || !is_float(two_type) => one_type,
            (true, false) if is_float(two_type) || !is_float(one_type) => two_type,
            (false, true) | (true, false) => float,
            _ if one_type == two_type => one_type,
            _ if kind == ArrayKind::Torch => match (is_float(one_type), is_float(two_type)) {
                (true, false) => one_type,
                (false, true) => two_type,
                (true, true) => wider(one_type, two_type),
                _ => return Err("two integer types are mixed".to_owned()),
            },
            _ => {
                let ranks = [self.graph.rank(one), self.graph.rank(two)];
                if ranks.contains(&0) && ranks != [0, 0] {
                    return Err("numpy 1 and 2 give a number and an array of other types different results".to_owned());
                }
                numpy_joined(one_type, two_type).ok_or("two datatypes are mixed in a way that is not followed")?
            }
        };
        let divides = matches!(op, ArithmeticOp::Divide);
        let joined = if joined == Datatype::Bool { Datatype::Int64 } else { joined };
        Ok(if divides && !is_float(joined) { float } else { joined })
    }

    fn computed(&mut self, op: ArithmeticOp, one: ExprId, two: ExprId, datatype: Datatype) -> Result<ExprId, String> {
        let shape = self.broadcast(one, two)?;
        if let (Some(left), Some(right)) = (self.graph.constant(one), self.graph.constant(two)) {
            return self.folded(op, (&left, &right), datatype, &shape);
        }
        let kind = Kind::Number(datatype);
        if let Some(known) = self.known_form(op, one, two)? {
            self.graph.absorb(known, &[one, two]);
            if !self.graph.is_view_of(&self.graph.shape(known), &shape) {
                return Err("the shapes of two operands differ".to_owned());
            }
            let known = self.graph.view(known, shape)?;
            return self.typed(known, datatype);
        }
        // A constant along the last axis leaves the axes before it alone.
        let count = |graph: &Self, constant: ExprId| graph.graph.constant(constant).map(|_| graph.graph.rank(constant));
        let (tensor, constant) = match (count(self, one), count(self, two)) {
            (None, Some(count)) => (Some(one), count),
            (Some(count), None) => (Some(two), count),
            _ => (None, 0),
        };
        if let Some(tensor) = tensor.filter(|tensor| constant <= self.graph.rank(*tensor)) {
            let base = self.graph.below_view(tensor, constant);
            if base != tensor {
                let inputs = [one, two].map(|id| if id == tensor { base } else { id });
                let inner = self.broadcast(inputs[0], inputs[1])?;
                let made = self.graph.add(Op::Binary(op), inputs.to_vec(), kind, inner)?;
                return self.graph.view(made, shape);
            }
        }
        self.graph.add(Op::Binary(op), vec![one, two], kind, shape)
    }

    /// A result of the graph in another datatype, if it has another one.
    fn typed(&mut self, id: ExprId, datatype: Datatype) -> Result<ExprId, String> {
        match self.graph.kind(id) {
            Kind::Number(own) if own != datatype => self.cast(id, datatype),
            _ => Ok(id),
        }
    }

    fn folded(
        &mut self,
        op: ArithmeticOp,
        (left, right): (&[f64], &[f64]),
        datatype: Datatype,
        shape: &[Dim],
    ) -> Result<ExprId, String> {
        let count = left.len().max(right.len());
        if [left, right].iter().any(|side| side.len() != 1 && side.len() != count) {
            return Err("two constants of different shapes".to_owned());
        }
        let at =
            |side: &[f64], place: usize| side.get(if side.len() == 1 { 0 } else { place }).copied().unwrap_or(f64::NAN);
        let values = (0..count).map(|place| {
            let (left, right) = (at(left, place), at(right, place));
            rounded(applied(op, left, right), datatype)
        });
        let sizes: Vec<_> =
            shape.iter().map(|dim| if let Dim::Known(size) = dim { *size as usize } else { 0 }).collect();
        self.graph.add_constant(values.collect(), datatype, &sizes)
    }

    /// Softmax, sigmoid, mean over a mask and division by a norm, written out.
    fn known_form(&mut self, op: ArithmeticOp, one: ExprId, two: ExprId) -> Result<Option<ExprId>, String> {
        if op == ArithmeticOp::Divide {
            if let Some(id) = self.as_softmax(one, two)? {
                return Ok(Some(id));
            }
            if let Some(id) = self.as_sigmoid(one, two)? {
                return Ok(Some(id));
            }
            if let Some(id) = self.as_normalized(one, two)? {
                return Ok(Some(id));
            }
            return self.as_pooled(one, two);
        }
        Ok(None)
    }

    /// `exp(x - max(x)) / sum(exp(x - max(x)))`.
    fn as_softmax(&mut self, one: ExprId, two: ExprId) -> Result<Option<ExprId>, String> {
        let (one, two) = (self.graph.below_views(one), self.graph.below_views(two));
        let (Op::Exp, Op::Reduce { kind: Reduction::Sum, axis: -1, .. }) = (self.graph.op(one), self.graph.op(two))
        else {
            return Ok(None);
        };
        if self.graph.operand(two).map(|summed| self.graph.below_views(summed)) != Some(one) {
            return Ok(None);
        }
        let Some(exponent) = self.graph.operand(one) else { return Ok(None) };
        let mut logits = exponent;
        let below = self.graph.below_views(exponent);
        if let (Op::Binary(ArithmeticOp::Subtract), [x, most]) =
            (self.graph.op(below), self.graph.get(below).inputs.as_slice())
        {
            let (x, most) = (*x, self.graph.below_views(*most));
            let is_most = matches!(self.graph.op(most), Op::Reduce { kind: Reduction::Max, .. })
                && self.graph.operand(most).map(|of| self.graph.below_views(of)) == Some(self.graph.below_views(x));
            if !is_most {
                return Ok(None);
            }
            logits = x;
            self.graph.absorb(logits, &[below, most]);
        } else {
            self.assume("softmax without the maximum subtracted: the steps subtract it, which differs if an exponential overflows");
        }
        let result = self.softmax(logits, -1)?;
        self.graph.absorb(result, &[one, two, exponent]);
        Ok(Some(result))
    }

    /// `1 / (1 + exp(-x))`.
    fn as_sigmoid(&mut self, one: ExprId, two: ExprId) -> Result<Option<ExprId>, String> {
        let two = self.graph.below_views(two);
        if self.graph.number(one) != Some(1.0) || *self.graph.op(two) != Op::Binary(ArithmeticOp::Add) {
            return Ok(None);
        }
        let inputs = self.graph.get(two).inputs.clone();
        let power = inputs.iter().copied().find(|id| *self.graph.op(self.graph.below_views(*id)) == Op::Exp);
        let has_one = inputs.iter().any(|id| self.graph.number(*id) == Some(1.0));
        let Some(power) = power.filter(|_| has_one) else { return Ok(None) };
        let Some(exponent) = self.graph.operand(self.graph.below_views(power)) else { return Ok(None) };
        let Some(x) = self.negated(exponent) else { return Ok(None) };
        let kind = self.graph.kind(x);
        let result = self.each(Op::Sigmoid, x, kind)?;
        self.graph.absorb(result, &[two, power, exponent]);
        Ok(Some(result))
    }

    /// The operand of `-x`.
    pub fn negated(&self, id: ExprId) -> Option<ExprId> {
        let below = self.graph.below_views(id);
        let inputs = &self.graph.get(below).inputs;
        match (self.graph.op(below), inputs.as_slice()) {
            (Op::Binary(ArithmeticOp::Multiply), [x, sign]) if self.graph.number(*sign) == Some(-1.0) => Some(*x),
            (Op::Binary(ArithmeticOp::Multiply), [sign, x]) if self.graph.number(*sign) == Some(-1.0) => Some(*x),
            _ => None,
        }
    }

    /// `x / norm(x)`.
    fn as_normalized(&mut self, one: ExprId, two: ExprId) -> Result<Option<ExprId>, String> {
        let mut norm = self.graph.below_views(two);
        let mut epsilon = 0.0;
        if let (Op::Clip(least, f64::INFINITY), Some(below)) = (self.graph.op(norm), self.graph.operand(norm)) {
            epsilon = *least;
            norm = self.graph.below_views(below);
        }
        let is_norm = matches!(self.graph.op(norm), Op::Norm { axis: -1, .. });
        let of = self.graph.operand(norm).map(|of| self.graph.below_views(of));
        if !is_norm || of != Some(self.graph.below_views(one)) {
            return Ok(None);
        }
        let (kind, tail) = (self.graph.kind(one), self.graph.shape(one).last().copied());
        self.by_row(Op::Normalize(epsilon), one, 1, kind, tail.as_slice()).map(Some)
    }

    /// The mean over a mask: `sum(x * mask) / clip(sum(mask))`.
    fn as_pooled(&mut self, one: ExprId, two: ExprId) -> Result<Option<ExprId>, String> {
        let (sum, mut count) = (self.graph.below_views(one), self.graph.below_views(two));
        let Op::Reduce { kind: Reduction::Sum, axis: -2, .. } = self.graph.op(sum) else { return Ok(None) };
        let mut is_clipped = false;
        if let (Op::Clip(least, f64::INFINITY), Some(below)) = (self.graph.op(count), self.graph.operand(count)) {
            if *least != 1e-9 {
                return Ok(None);
            }
            (is_clipped, count) = (true, self.graph.below_views(below));
        }
        let Op::Reduce { kind: Reduction::Sum, axis, .. } = self.graph.op(count) else { return Ok(None) };
        let axis = *axis;
        let (Some(product), Some(counted)) = (self.graph.operand(sum), self.graph.operand(count)) else {
            return Ok(None);
        };
        let (Op::Binary(ArithmeticOp::Multiply), [left, right]) =
            (self.graph.op(product), self.graph.get(product).inputs.as_slice())
        else {
            return Ok(None);
        };
        let (left, right, counted) = (*left, *right, self.mask_below(counted));
        let (states, mask) = match (self.mask_below(left) == counted, self.mask_below(right) == counted) {
            (false, true) => (left, counted),
            (true, false) => (right, counted),
            _ => return Ok(None),
        };
        let (shape, mask_shape) = (self.graph.shape(states), self.graph.shape(mask));
        let tokens = shape.get(..shape.len().saturating_sub(1)).unwrap_or_default();
        if !(axis == -1 || axis == -2) || !self.graph.is_same(tokens, &mask_shape) {
            return Ok(None);
        }
        if !is_clipped {
            self.assume("a mask without a 1 gives NaN in model.py and 0 in the steps");
        }
        let lead = shape.get(..shape.len().saturating_sub(2)).unwrap_or_default();
        let shape = [lead, shape.last().copied().as_slice()].concat();
        let kind = self.graph.kind(states);
        let pooled = self.graph.add(Op::Pool("mean"), vec![states, mask], kind, shape)?;
        self.graph.absorb(pooled, &[sum, count, product, left, right]);
        Ok(Some(pooled))
    }

    /// A mask below its conversions and repetitions.
    fn mask_below(&self, mut id: ExprId) -> ExprId {
        while let (Op::Cast | Op::View | Op::Expand, Some(below)) = (self.graph.op(id), self.graph.operand(id)) {
            id = below;
        }
        id
    }

    pub fn softmax(&mut self, id: ExprId, axis: i64) -> Result<ExprId, String> {
        if self.axis(id, axis)? != -1 {
            return Err("a softmax along another axis than the last one has no step".to_owned());
        }
        let (kind, tail) = (self.graph.kind(id), self.graph.shape(id).last().copied());
        self.by_row(Op::Softmax(-1), id, 1, kind, tail.as_slice())
    }

    /// A reduction over an axis, or over all without one.
    pub fn reduce(
        &mut self,
        id: ExprId,
        op: &dyn Fn(i64) -> Op,
        kind: Kind,
        axis: Option<i64>,
        keeps: bool,
    ) -> Result<ExprId, String> {
        let rank = self.graph.rank(id);
        if rank == 0 {
            return Err("a number is reduced".to_owned());
        }
        let Some(axis) = axis else {
            let shape = self.graph.shape(id);
            for dim in shape.iter().take(rank - 1) {
                if self.graph.is_rows(*dim) {
                    self.assume("it is computed over all rows of a request together: requests have one row");
                    self.graph.assume(*dim, 1);
                } else if !self.graph.is_one(*dim) {
                    return Err("it is computed over several axes together".to_owned());
                }
            }
            let made = self.by_row(op(-1), id, 1, kind, &[])?;
            return self.graph.view(made, if keeps { vec![Dim::Known(1); rank] } else { Vec::new() });
        };
        let axis = self.axis(id, axis)?;
        let behind = usize::try_from(-axis).unwrap_or(1);
        let shape = self.graph.shape(id);
        let tail = shape.get(rank - behind + 1..).unwrap_or_default().to_vec();
        let made = self.by_row(op(axis), id, behind, kind, &tail)?;
        if !keeps {
            return Ok(made);
        }
        let mut kept = self.graph.shape(made);
        kept.insert(rank - behind, Dim::Known(1));
        self.graph.view(made, kept)
    }

    pub fn transpose(&mut self, id: ExprId, order: Option<Vec<usize>>) -> Result<ExprId, String> {
        let shape = self.graph.shape(id);
        let order = order.unwrap_or_else(|| (0..shape.len()).rev().collect());
        let sizes: Option<Vec<_>> = order.iter().map(|axis| shape.get(*axis).copied()).collect();
        let sizes = sizes.filter(|sizes| sizes.len() == shape.len()).ok_or("the order of axes is wrong")?;
        if order.iter().enumerate().all(|(place, axis)| place == *axis) {
            return Ok(id);
        }
        // Axes of size 1 that change their place move no element.
        let moved: Vec<_> = order.iter().filter(|axis| shape.get(**axis) != Some(&Dim::Known(1))).collect();
        if moved.is_sorted() {
            return self.graph.view(id, sizes);
        }
        let kind = self.graph.kind(id);
        self.graph.add(Op::Transpose(order), vec![id], kind, sizes)
    }

    pub fn argsort(&mut self, id: ExprId, axis: i64, mut order: Order) -> Result<ExprId, String> {
        if self.axis(id, axis)? != -1 {
            return Err("a sort along another axis than the last one has no step".to_owned());
        }
        let mut of = id;
        if let (false, Some(below)) = (order.is_descending, self.negated(id)) {
            order.is_descending = true;
            of = below;
        }
        let tail = self.graph.shape(of).last().copied();
        self.by_row(Op::Argsort(order), of, 1, Kind::Number(Datatype::Int64), tail.as_slice())
    }

    /// The highest values along the last axis, or their indices.
    pub fn top(&mut self, id: ExprId, count: u64, order: Order, is_index: bool) -> Result<ExprId, String> {
        let kind = if is_index { Kind::Number(Datatype::Int64) } else { self.graph.kind(id) };
        let size = match self.graph.shape(id).last() {
            Some(Dim::Known(size)) => Dim::Known(count.min(*size)),
            // The model of a public file has more classes than it wants.
            _ => Dim::Known(count),
        };
        self.by_row(Op::Top { count, order, is_index }, id, 1, kind, &[size])
    }

    /// `x[..., i]` along the last axis.
    pub fn gather(&mut self, id: ExprId, index: ExprId) -> Result<ExprId, String> {
        let (x, at) = (self.graph.below_views(id), self.graph.below_views(index));
        let of = self.graph.operand(at).map(|of| self.graph.below_views(of));
        let shape = self.graph.shape(index);
        let found = match self.graph.op(at).clone() {
            Op::Top { count, order, is_index: true } if of == Some(x) => Some(self.top(id, count, order, false)?),
            Op::Argmax(-1) if of == Some(x) => {
                let kind = self.graph.kind(id);
                let max = |axis| Op::Reduce { kind: Reduction::Max, axis, keeps: false };
                Some(self.reduce(id, &max, kind, Some(-1), false)?)
            }
            _ => None,
        };
        if let Some(found) = found {
            self.graph.absorb(found, &[at]);
            return if self.graph.is_view_of(&self.graph.shape(found), &shape) {
                self.graph.view(found, shape)
            } else {
                Ok(found)
            };
        }
        let kind = self.graph.kind(id);
        self.graph.add(Op::Gather, vec![id, index], kind, shape)
    }

    /// The rows at which a mask is true, or at indices.
    pub fn rows(&mut self, id: ExprId, by: ExprId, is_mask: bool) -> Result<ExprId, String> {
        let mut shape = self.graph.shape(id);
        let size = match is_mask {
            true => self.graph.open_size(false),
            false => self.graph.shape(by).first().copied().ok_or("a row is selected by a number")?,
        };
        if let Some(first) = shape.first_mut() {
            *first = size;
        }
        let kind = self.graph.kind(id);
        self.graph.add(Op::Rows { is_mask }, vec![id, by], kind, shape)
    }

    /// A threshold of a comparison with a number, with the number to the right.
    pub fn threshold(&self, id: ExprId) -> Option<(ExprId, CompareOp, f64)> {
        let Op::Compare(comparison) = *self.graph.op(id) else { return None };
        let [left, right] = self.graph.get(id).inputs.as_slice() else { return None };
        if let Some(number) = self.graph.number(*right) {
            return Some((*left, comparison, number));
        }
        let turned = match comparison {
            CompareOp::Greater => CompareOp::Less,
            CompareOp::GreaterEqual => CompareOp::LessEqual,
            CompareOp::Less => CompareOp::Greater,
            CompareOp::LessEqual => CompareOp::GreaterEqual,
            same => same,
        };
        self.graph.number(*left).map(|number| (*right, turned, number))
    }

    /// The parts of a condition that is a conjunction.
    pub fn conjuncts(&self, id: ExprId) -> Vec<ExprId> {
        let (mut parts, mut open) = (Vec::new(), vec![id]);
        while let Some(id) = open.pop() {
            match (self.graph.op(id), self.graph.get(id).inputs.as_slice()) {
                // More parts than any public condition has are not looked at.
                (Op::Logical(Logic::And), [left, right]) if parts.len() + open.len() < CONJUNCTS_MAX => {
                    open.extend([*right, *left]);
                }
                _ => parts.push(id),
            }
        }
        parts
    }
}

/// Parts of a condition.
const CONJUNCTS_MAX: usize = 64;

/// The result of an operation on two numbers.
pub fn applied(op: ArithmeticOp, left: f64, right: f64) -> f64 {
    match op {
        ArithmeticOp::Add => left + right,
        ArithmeticOp::Divide => left / right,
        ArithmeticOp::Multiply => left * right,
        ArithmeticOp::Power => left.powf(right),
        ArithmeticOp::Subtract => left - right,
    }
}

/// A number in a datatype.
pub fn rounded(value: f64, datatype: Datatype) -> f64 {
    match datatype {
        Datatype::Fp32 => f64::from(value as f32),
        Datatype::Fp16 => half::f16::from_f64(value).to_f64(),
        Datatype::Fp64 => value,
        _ => value.trunc(),
    }
}

fn wider(one: Datatype, two: Datatype) -> Datatype {
    if one.size() >= two.size() { one } else { two }
}

/// The datatype of two arrays in numpy.
fn numpy_joined(one: Datatype, two: Datatype) -> Option<Datatype> {
    use Datatype::{Bool, Fp16, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    let pair = |a: Datatype, b: Datatype| (one == a && two == b) || (one == b && two == a);
    if one == Bool || two == Bool {
        return Some(if one == Bool { two } else { one });
    }
    if pair(Fp32, Fp64) || pair(Fp16, Fp64) {
        return Some(Fp64);
    }
    if pair(Fp16, Fp32) {
        return Some(Fp32);
    }
    for float in [Fp32, Fp64] {
        let other = if one == float { two } else { one };
        if one == float || two == float {
            return match other {
                Int8 | Int16 | Uint8 | Uint16 => Some(float),
                Int32 | Int64 | Uint32 | Uint64 => Some(Fp64),
                _ => None,
            };
        }
    }
    if pair(Int32, Int64) || pair(Uint8, Int64) || pair(Uint8, Int32) {
        Some(if pair(Uint8, Int32) { Int32 } else { Int64 })
    } else {
        None
    }
}
