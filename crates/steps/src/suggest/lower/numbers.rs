//! Steps on numbers: `cast`, `scale`, `select`, `shape`, `stack`, `concat` and `pool`.

use base::tensor::Datatype;

use crate::limits::COLUMNS_MAX;
use crate::suggest::library::quoted;
use crate::suggest::lower::{MadeTensor, StepLowering};
use crate::suggest::op::{ArithmeticOp, Dim, ExprId, Kind, Op, Reduction};

/// The operations of `scale`, in the order in which it does them.
const SCALE_ORDER: [&str; 5] = ["subtract", "divide", "multiply", "add", "clip"];

impl StepLowering<'_, '_> {
    pub fn numbers(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        let graph = &self.machine.graph;
        let shape = graph.shape(id);
        let inputs = graph.get(id).inputs.clone();
        let name = match (graph.op(id).clone(), graph.kind(id)) {
            (Op::Binary(_) | Op::Clip(..), _) => return self.scale(id),
            (Op::Cast, Kind::Number(_)) if self.is_scaled(id) => return self.scale(id),
            (Op::Cast, Kind::Number(datatype)) => {
                let below = inputs.first().copied().ok_or("a conversion without an operand")?;
                let (input, made) = self.raw(below)?;
                let fields = vec![("datatype", quoted(datatype.name()))];
                return Ok((self.step("cast", vec![("input", vec![input])], "output", fields, id)?, made));
            }
            (Op::Select { axis, indices }, Kind::Number(_)) => self.select(&inputs, axis, &indices, id)?,
            (Op::Transpose(order), Kind::Number(_)) => {
                let input = self.one(&inputs)?;
                self.step(
                    "shape",
                    vec![("input", vec![input])],
                    "output",
                    vec![("transpose", format!("{order:?}"))],
                    id,
                )?
            }
            (Op::Slice { axis, start, stop, step }, Kind::Number(_)) => {
                let indices = self.indices(&inputs, axis, (start, stop, step))?;
                self.select(&inputs, axis, &indices, id)?
            }
            (Op::Take { axis, index }, Kind::Number(_)) => {
                let name = self.select(&inputs, axis, &[index], id)?;
                let mut whole = shape;
                let place = usize::try_from(whole.len() as i64 + 1 + axis).unwrap_or(0);
                whole.insert(place.min(whole.len()), Dim::Known(1));
                return Ok((name, whole));
            }
            (Op::Stack(axis), Kind::Number(_)) => {
                let names = inputs.iter().map(|input| self.lower(*input)).collect::<Result<Vec<_>, _>>()?;
                let fields = if axis == -1 { Vec::new() } else { vec![("axis", axis.to_string())] };
                self.step("stack", vec![("columns", names)], "output", fields, id)?
            }
            (Op::Concat(axis), Kind::Number(_)) => {
                let names = inputs.iter().map(|input| self.lower(*input)).collect::<Result<Vec<_>, _>>()?;
                let fields = if axis == -1 { Vec::new() } else { vec![("axis", axis.to_string())] };
                self.step("concat", vec![("tensors", names)], "output", fields, id)?
            }
            (Op::Row(_), _) => return Err("an output is of one row of a loop".to_owned()),
            (Op::Constant(_) | Op::Expand, _)
                if inputs.iter().all(|input| self.machine.graph.constant(*input).is_some()) =>
            {
                return Err("a tensor that is the same for all requests has no step".to_owned());
            }
            (op, _) => return Err(format!("{} has no step here", op.name())),
        };
        Ok((name, shape))
    }

    fn one(&mut self, inputs: &[ExprId]) -> Result<String, String> {
        let input = inputs.first().copied().ok_or("an operation without an operand")?;
        self.lower(input)
    }

    fn indices(
        &self,
        inputs: &[ExprId],
        axis: i64,
        (start, stop, step): (Option<i64>, Option<i64>, i64),
    ) -> Result<Vec<i64>, String> {
        let shape = inputs.first().map(|input| self.machine.graph.shape(*input)).unwrap_or_default();
        let place = usize::try_from(shape.len() as i64 + axis).map_err(|_| "an axis is out of bounds")?;
        let size = match shape.get(place) {
            Some(Dim::Known(size)) => i64::try_from(*size).ok(),
            _ => None,
        };
        let indices: Vec<i64> = match (size, start, stop, step) {
            (Some(size), start, stop, 1) => {
                let at = |bound: i64| if bound < 0 { (bound + size).max(0) } else { bound.min(size) };
                (at(start.unwrap_or(0))..at(stop.unwrap_or(size))).take(COLUMNS_MAX + 1).collect()
            }
            (Some(size), None, None, -1) => (0..size).rev().take(COLUMNS_MAX + 1).collect(),
            _ => return Err("a part of an axis of open size has no step".to_owned()),
        };
        match indices.len() {
            0 => Err("a part of an axis is empty".to_owned()),
            count if count > COLUMNS_MAX => Err(format!("a part of an axis has more than {COLUMNS_MAX} places")),
            _ => Ok(indices),
        }
    }

    fn select(&mut self, inputs: &[ExprId], axis: i64, indices: &[i64], id: ExprId) -> Result<String, String> {
        let input = self.one(inputs)?;
        let mut fields = vec![("indices", format!("{indices:?}"))];
        if axis != -1 {
            fields.push(("axis", axis.to_string()));
        }
        self.step("select", vec![("input", vec![input])], "output", fields, id)
    }

    /// Returns true for a conversion behind arithmetic, which `scale` does itself.
    fn is_scaled(&self, id: ExprId) -> bool {
        let graph = &self.machine.graph;
        let operand = graph.operand(id).map(|operand| graph.below_views(operand));
        graph.kind(id) == Kind::Number(Datatype::Fp32)
            && operand.is_some_and(|operand| {
                matches!(graph.op(operand), Op::Binary(_) | Op::Clip(..))
                    && graph.kind(operand) == Kind::Number(Datatype::Fp64)
            })
    }

    /// ArithmeticOp with constants as a step `scale`.
    fn scale(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        let graph = &self.machine.graph;
        let mut chain: Vec<(&'static str, Vec<f64>, Kind)> = Vec::new();
        let (mut next, shape) = (id, graph.shape(id));
        let mut casts = 0;
        let mut used = vec![id];
        loop {
            let inputs = graph.get(next).inputs.clone();
            let kind = graph.kind(next);
            let at = chain.last().map_or(SCALE_ORDER.len(), |(name, ..)| place_of(name));
            match (graph.op(next).clone(), inputs.as_slice()) {
                (Op::Binary(op), [left, right]) => {
                    let Some((name, tensor, numbers)) = self.operation(op, *left, *right) else {
                        if chain.is_empty() {
                            return Err("arithmetic of two tensors has no step".to_owned());
                        }
                        break;
                    };
                    if place_of(name) >= at {
                        break;
                    }
                    chain.push((name, numbers, kind));
                    next = tensor;
                }
                (Op::Clip(least, most), [tensor]) if chain.is_empty() && least.is_finite() && most.is_finite() => {
                    chain.push(("clip", vec![least, most], kind));
                    next = *tensor;
                }
                (Op::Cast, [tensor])
                    if kind == Kind::Number(Datatype::Fp32) && graph.kind(*tensor) == Kind::Number(Datatype::Fp64) =>
                {
                    casts += 1;
                    next = *tensor;
                }
                (Op::View, [tensor]) if graph.is_same(&graph.shape(*tensor), &graph.shape(next)) => next = *tensor,
                _ => break,
            }
            used.push(next);
        }
        if chain.is_empty() {
            return Err("this arithmetic has no step".to_owned());
        }
        let kinds: Vec<_> = chain.iter().map(|(_, _, kind)| *kind).collect();
        let arithmetic = arithmetic_of(graph.kind(id), &kinds, graph.kind(next), casts)?;
        chain.reverse();
        let mut fields: Vec<_> = chain.iter().map(|(name, numbers, _)| (*name, numbers_of(numbers))).collect();
        fields.extend(arithmetic.iter().map(|(name, value)| (*name, quoted(value))));
        let is_by_column = chain.iter().any(|(name, numbers, _)| *name != "clip" && numbers.len() > 1);
        let (input, shape) = match is_by_column {
            true => (self.lower(next)?, shape),
            false => self.raw(next)?,
        };
        let name = self.step("scale", vec![("input", vec![input])], "output", fields, id)?;
        used.iter().filter(|part| **part != next).for_each(|part| self.add_lines(&name, *part));
        Ok((name, shape))
    }

    /// An operation of a tensor with constants along the last axis: its name, the tensor, the numbers.
    fn operation(&self, op: ArithmeticOp, left: ExprId, right: ExprId) -> Option<(&'static str, ExprId, Vec<f64>)> {
        let graph = &self.machine.graph;
        let along_last = |id: ExprId| {
            let shape = graph.shape(id);
            let lead = shape.get(..shape.len().saturating_sub(1)).unwrap_or_default();
            graph.constant(id).filter(|_| lead.iter().all(|dim| *dim == Dim::Known(1))).map(|values| values.to_vec())
        };
        let (tensor, numbers, is_right) = match (along_last(left), along_last(right)) {
            (None, Some(numbers)) => (left, numbers, true),
            (Some(numbers), None) => (right, numbers, false),
            _ => return None,
        };
        if graph.rank(tensor) < graph.rank(if is_right { right } else { left }) {
            return None;
        }
        let name = match (op, is_right) {
            (ArithmeticOp::Subtract, true) => "subtract",
            (ArithmeticOp::Divide, true) => "divide",
            (ArithmeticOp::Multiply, _) => "multiply",
            (ArithmeticOp::Add, _) => "add",
            _ => return None,
        };
        Some((name, tensor, numbers))
    }

    /// The step `pool`.
    pub fn pool(&mut self, id: ExprId) -> Result<MadeTensor, String> {
        let graph = &self.machine.graph;
        let mut fields = Vec::new();
        let mut pooled = id;
        if let (Op::Normalize(epsilon), Some(below)) = (graph.op(id).clone(), graph.operand(id)) {
            fields.push(("normalize", "true".to_owned()));
            if epsilon != 1e-12 {
                fields.push(("epsilon", format!("{epsilon:?}")));
            }
            pooled = graph.below_views(below);
        }
        let shape = graph.shape(pooled);
        let (states, mask, mode) = match (graph.op(pooled).clone(), graph.get(pooled).inputs.as_slice()) {
            (Op::Pool(mode), [states, mask]) => (*states, Some(*mask), mode),
            (Op::Reduce { kind: Reduction::Mean, axis: -2, .. }, [states]) => (*states, None, "mean"),
            (Op::Reduce { kind: Reduction::Max, axis: -2, .. }, [states]) => (*states, None, "max"),
            (Op::Take { axis: -2, index: 0 }, [states])
                if fields.is_empty() && graph.kind(*states) != Kind::Number(Datatype::Fp32) =>
            {
                let _ = states;
                return self.numbers(id);
            }
            (Op::Take { axis: -2, index: 0 }, [states]) => (*states, None, "cls"),
            _ if pooled != id => return self.normalized(id, pooled, fields),
            _ => return self.numbers(id),
        };
        self.single(states);
        let mut inputs = vec![("states", vec![self.lower(states)?])];
        if let Some(mask) = mask {
            inputs.push(("mask", vec![self.lower(mask)?]));
        }
        if mode != "mean" {
            fields.insert(0, ("mode", quoted(mode)));
        }
        let name = self.step("pool", inputs, "vector", fields, id)?;
        self.add_lines(&name, pooled);
        let name = self.typed(name, Datatype::Fp32, id)?;
        Ok((name, shape))
    }

    /// A division by the norm alone: the vectors are pooled over an axis of one.
    fn normalized(
        &mut self,
        id: ExprId,
        vector: ExprId,
        mut fields: Vec<(&'static str, String)>,
    ) -> Result<MadeTensor, String> {
        self.single(vector);
        let input = self.lower(vector)?;
        let shape = self.machine.graph.shape(vector);
        if shape.is_empty() {
            return Err("a number is divided by its norm".to_owned());
        }
        let tokens =
            self.step("shape", vec![("input", vec![input])], "output", vec![("unsqueeze", "[-2]".to_owned())], id)?;
        fields.insert(0, ("mode", quoted("cls")));
        let name = self.step("pool", vec![("states", vec![tokens])], "vector", fields, id)?;
        let name = self.typed(name, Datatype::Fp32, id)?;
        Ok((name, shape))
    }
}

/// The spelling of `scale`, by the datatypes of the result, of each operation and of the input, and the conversions to FP32.
fn arithmetic_of(
    result: Kind,
    kinds: &[Kind],
    input: Kind,
    casts: usize,
) -> Result<&'static [(&'static str, &'static str)], String> {
    let [single, double] = [Datatype::Fp32, Datatype::Fp64].map(Kind::Number);
    let all = |kind| kinds.iter().all(|own| *own == kind);
    match result {
        _ if result == single && all(single) && casts == 0 => Ok(&[]),
        _ if result == single && all(double) && casts == kinds.len() && input == single => {
            Ok(&[("arithmetic", "in_place")])
        }
        _ if result == single && all(double) && casts == 1 => Ok(&[("arithmetic", "float64")]),
        _ if result == double && all(double) && casts == 0 => Ok(&[("arithmetic", "float64"), ("datatype", "FP64")]),
        Kind::Number(datatype) => Err(format!("arithmetic in {} has no step", datatype.name())),
        _ => Err("arithmetic on strings has no step".to_owned()),
    }
}

fn place_of(name: &str) -> usize {
    SCALE_ORDER.iter().position(|known| *known == name).unwrap_or(0)
}

/// Numbers as a JSON list, each as Python writes it.
pub(super) fn numbers_of(numbers: &[f64]) -> String {
    let texts = numbers.iter().map(|number| number_of(*number));
    format!("[{}]", texts.collect::<Vec<_>>().join(", "))
}

/// A number in the shortest form that gives it back.
pub(super) fn number_of(number: f64) -> String {
    let single = number as f32;
    match f64::from(single) == number {
        _ if number.fract() == 0.0 && number.abs() < 1e15 => format!("{number:.0}"),
        // A constant of FP32: the shortest text that rounds to it.
        true => format!("{single:?}"),
        false => format!("{number:?}"),
    }
}
