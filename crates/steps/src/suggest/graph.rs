//! The values that a `model.py` computes, as a graph of operations from inputs to outputs. It has one form for the same work in
//! numpy, torch, Pillow, OpenCV and loops over rows. Axes are counted from the end, so that an operation on a row is the same
//! operation on all rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::tensor::Datatype;

use crate::limits::SUGGEST_EXPRESSIONS_MAX;
use crate::suggest::op::{Dim, ExprId, Kind, LoopId, Op};

/// The result of an operation.
#[derive(Clone, Debug)]
pub struct Expr {
    pub op: Op,
    pub inputs: Vec<ExprId>,
    pub kind: Kind,
    pub shape: Vec<Dim>,
    /// The lines of model.py that it stands for.
    pub lines: BTreeSet<usize>,
}

/// A size that is not known.
#[derive(Clone, Debug, Default)]
struct OpenSize {
    value: Option<Dim>,
    /// True for the rows of a request.
    is_rows: bool,
}

#[derive(Debug, Default)]
pub struct ValueGraph {
    expressions: Vec<Expr>,
    sizes: Vec<OpenSize>,
    loops: Vec<Dim>,
    /// Expressions that were lifted before: the same one gives the same tensor.
    lifted: BTreeMap<(ExprId, LoopId), ExprId>,
    /// The line that is interpreted.
    pub line: usize,
}

impl ValueGraph {
    /// Adds an expression.
    pub fn add(&mut self, op: Op, inputs: Vec<ExprId>, kind: Kind, shape: Vec<Dim>) -> Result<ExprId, String> {
        if self.expressions.len() >= SUGGEST_EXPRESSIONS_MAX {
            return Err(format!("the file makes more than {SUGGEST_EXPRESSIONS_MAX} tensors"));
        }
        let lines = BTreeSet::from([self.line]);
        self.expressions.push(Expr { op, inputs, kind, shape, lines });
        Ok(self.expressions.len() - 1)
    }

    /// An expression. Ids come from [`Self::add`] alone.
    pub fn get(&self, id: ExprId) -> &Expr {
        self.expressions.get(id).expect("an id is a place in the graph")
    }

    /// The places of all expressions.
    pub fn ids(&self) -> std::ops::Range<ExprId> {
        0..self.expressions.len()
    }

    pub fn op(&self, id: ExprId) -> &Op {
        &self.get(id).op
    }

    /// The first operand.
    pub fn operand(&self, id: ExprId) -> Option<ExprId> {
        self.get(id).inputs.first().copied()
    }

    pub fn kind(&self, id: ExprId) -> Kind {
        self.get(id).kind
    }

    /// The shape, with all that is known about its sizes.
    pub fn shape(&self, id: ExprId) -> Vec<Dim> {
        self.get(id).shape.iter().map(|dim| self.resolved(*dim)).collect()
    }

    pub fn rank(&self, id: ExprId) -> usize {
        self.get(id).shape.len()
    }

    /// Counts the lines of other expressions to those of this one, which stands for them.
    pub fn absorb(&mut self, id: ExprId, others: &[ExprId]) {
        let lines: Vec<_> = others.iter().flat_map(|other| self.get(*other).lines.clone()).collect();
        if let Some(expression) = self.expressions.get_mut(id) {
            expression.lines.extend(lines);
        }
    }

    pub fn open_size(&mut self, is_rows: bool) -> Dim {
        self.sizes.push(OpenSize { value: None, is_rows });
        Dim::Open(self.sizes.len() - 1)
    }

    pub fn resolved(&self, dim: Dim) -> Dim {
        match dim {
            // A value is always resolved when it is set, and chains are as short as the assumptions.
            Dim::Open(place) => match self.sizes.get(place).and_then(|size| size.value) {
                Some(value) => self.resolved(value),
                None => dim,
            },
            known @ Dim::Known(_) => known,
        }
    }

    pub fn is_rows(&self, dim: Dim) -> bool {
        matches!(self.resolved(dim), Dim::Open(place) if self.sizes.get(place).is_some_and(|size| size.is_rows))
    }

    /// Takes it that an open size has a value.
    pub fn assume(&mut self, dim: Dim, value: u64) {
        if let Dim::Open(place) = self.resolved(dim)
            && let Some(size) = self.sizes.get_mut(place)
        {
            size.value = Some(Dim::Known(value));
        }
    }

    pub fn is_one(&self, dim: Dim) -> bool {
        self.resolved(dim) == Dim::Known(1)
    }

    /// Takes it that an open size is that of another one.
    pub fn unify(&mut self, dim: Dim, with: Dim) {
        let with = self.resolved(with);
        if let (Dim::Open(place), false) = (self.resolved(dim), self.resolved(dim) == with)
            && let Some(size) = self.sizes.get_mut(place)
        {
            size.value = Some(with);
        }
    }

    /// Returns true if two shapes have the same sizes.
    pub fn is_same(&self, left: &[Dim], right: &[Dim]) -> bool {
        left.len() == right.len()
            && left.iter().zip(right).all(|(left, right)| self.resolved(*left) == self.resolved(*right))
    }

    /// Returns true if two shapes differ in axes of size 1 alone.
    pub fn is_view_of(&self, left: &[Dim], right: &[Dim]) -> bool {
        let core = |shape: &[Dim]| {
            let sizes = shape.iter().map(|dim| self.resolved(*dim));
            sizes.filter(|dim| *dim != Dim::Known(1)).collect::<Vec<_>>()
        };
        core(left) == core(right)
    }

    pub fn new_loop(&mut self, length: Dim) -> LoopId {
        self.loops.push(length);
        self.loops.len() - 1
    }

    pub fn loop_length(&self, id: LoopId) -> Dim {
        self.resolved(self.loops.get(id).copied().unwrap_or(Dim::Known(0)))
    }

    /// The row of a tensor in a loop.
    pub fn row(&mut self, id: LoopId, tensor: ExprId) -> Result<ExprId, String> {
        let shape = self.shape(tensor);
        let Some((_, rest)) = shape.split_first() else { return Err("a number has no rows".to_owned()) };
        self.add(Op::Row(id), vec![tensor], self.kind(tensor), rest.to_vec())
    }

    /// The same elements in another shape.
    pub fn view(&mut self, tensor: ExprId, shape: Vec<Dim>) -> Result<ExprId, String> {
        let base = match self.op(tensor) {
            Op::View => self.operand(tensor).unwrap_or(tensor),
            _ => tensor,
        };
        if self.is_same(&self.shape(base), &shape) {
            return Ok(base);
        }
        let view = self.add(Op::View, vec![base], self.kind(base), shape)?;
        self.absorb(view, &[tensor]);
        Ok(view)
    }

    /// The tensor below a view that keeps the last `count` dimensions.
    pub fn below_view(&self, tensor: ExprId, count: usize) -> ExprId {
        let Some(base) = self.operand(tensor).filter(|_| matches!(self.op(tensor), Op::View)) else { return tensor };
        let (outer, inner) = (self.shape(tensor), self.shape(base));
        let last =
            |shape: &[Dim]| shape.len().checked_sub(count).and_then(|place| shape.get(place..).map(<[_]>::to_vec));
        match (last(&outer), last(&inner)) {
            (Some(outer), Some(inner)) if self.is_same(&outer, &inner) => base,
            _ => tensor,
        }
    }

    /// The tensor below all views.
    pub fn below_views(&self, mut tensor: ExprId) -> ExprId {
        while let (Op::View, Some(base)) = (self.op(tensor), self.operand(tensor)) {
            tensor = base;
        }
        tensor
    }

    /// The tensor below all views and conversions.
    pub fn below_casts(&self, mut tensor: ExprId) -> ExprId {
        while let (Op::View | Op::Cast, Some(base)) = (self.op(tensor), self.operand(tensor)) {
            tensor = base;
        }
        tensor
    }

    /// A tensor that holds a number; `None` for others.
    pub fn constant(&self, id: ExprId) -> Option<Arc<Vec<f64>>> {
        match self.op(self.below_views(id)) {
            Op::Constant(values) => Some(Arc::clone(values)),
            _ => None,
        }
    }

    /// A number that does not depend on an input; `None` for others.
    pub fn number(&self, id: ExprId) -> Option<f64> {
        self.constant(id).filter(|values| values.len() == 1)?.first().copied()
    }

    /// Returns true if an expression depends on the row of a loop.
    pub fn depends(&self, id: ExprId, on: LoopId) -> bool {
        self.any_below(id, &mut |expression| matches!(expression.op, Op::Row(row) | Op::Counter(row) if row == on))
    }

    /// Returns true if a test holds for an expression or one below it.
    pub fn any_below(&self, id: ExprId, test: &mut dyn FnMut(&Expr) -> bool) -> bool {
        let (mut seen, mut open) = (BTreeSet::new(), vec![id]);
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let expression = self.get(id);
            if test(expression) {
                return true;
            }
            open.extend(&expression.inputs);
        }
        false
    }

    /// The tensor whose rows are an expression on the row of a loop.
    pub fn lifted(&mut self, id: ExprId, on: LoopId) -> Result<ExprId, String> {
        if !self.depends(id, on) {
            return Err("it is the same for each row".to_owned());
        }
        let (mut seen, mut open) = (BTreeSet::new(), vec![id]);
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                open.extend(&self.get(id).inputs);
            }
        }
        // Inputs have smaller ids: one pass finds all that depends on the row.
        let mut below = BTreeSet::new();
        for id in seen {
            let expression = self.get(id);
            let is_row = matches!(expression.op, Op::Row(row) | Op::Counter(row) if row == on);
            if is_row || expression.inputs.iter().any(|input| below.contains(input)) {
                below.insert(id);
            }
        }
        let mut made = BTreeMap::new();
        for id in below {
            let new = match self.lifted.get(&(id, on)) {
                Some(known) => *known,
                None => self.lift_one(id, on, &made)?,
            };
            self.lifted.insert((id, on), new);
            made.insert(id, new);
        }
        Ok(made.get(&id).copied().unwrap_or(id))
    }

    fn lift_one(&mut self, id: ExprId, on: LoopId, made: &BTreeMap<ExprId, ExprId>) -> Result<ExprId, String> {
        let Expr { op, inputs, kind, shape, lines } = self.get(id).clone();
        if matches!(op, Op::Row(row) if row == on) && inputs.iter().all(|input| !made.contains_key(input)) {
            return inputs.first().copied().ok_or_else(|| "a row has no tensor".to_owned());
        }
        if op == Op::Counter(on) {
            let shape = vec![self.loop_length(on)];
            return self.add(Op::Positions, Vec::new(), kind, shape);
        }
        if !op.is_by_row() {
            return Err(format!("{} in a loop over rows is not known", op.name()));
        }
        let free = |graph: &Self, input: &ExprId| !made.contains_key(input) && graph.constant(*input).is_none();
        if inputs.iter().any(|input| free(self, input)) {
            return Err(format!("{} in a loop over rows mixes a row with a whole tensor", op.name()));
        }
        let ranks: Vec<_> = inputs.iter().filter(|input| made.contains_key(input)).map(|id| self.rank(*id)).collect();
        let most = ranks.iter().copied().max().unwrap_or(0);
        let mut lifted = Vec::with_capacity(inputs.len());
        for input in inputs {
            let Some(new) = made.get(&input).copied() else {
                lifted.push(input);
                continue;
            };
            let missing = most.saturating_sub(self.rank(input));
            if op.broadcasts() && missing > 0 {
                let mut shape = self.shape(new);
                let rest = shape.split_off(1.min(shape.len()));
                shape.extend(std::iter::repeat_n(Dim::Known(1), missing));
                shape.extend(rest);
                lifted.push(self.view(new, shape)?);
            } else {
                lifted.push(new);
            }
        }
        let mut whole = vec![self.loop_length(on)];
        whole.extend(shape);
        let new = match (&op, lifted.first()) {
            (Op::View, Some(input)) => self.view(*input, whole)?,
            (Op::Transpose(order), _) => {
                let order = std::iter::once(0).chain(order.iter().map(|axis| axis + 1)).collect();
                self.add(Op::Transpose(order), lifted, kind, whole)?
            }
            _ => self.add(op, lifted, kind, whole)?,
        };
        if let Some(expression) = self.expressions.get_mut(new) {
            expression.lines.extend(lines);
        }
        Ok(new)
    }

    /// Numbers that do not depend on an input.
    pub fn add_constant(&mut self, values: Vec<f64>, datatype: Datatype, shape: &[usize]) -> Result<ExprId, String> {
        let shape = shape.iter().map(|size| Dim::Known(*size as u64)).collect();
        self.add(Op::Constant(Arc::new(values)), Vec::new(), Kind::Number(datatype), shape)
    }
}
