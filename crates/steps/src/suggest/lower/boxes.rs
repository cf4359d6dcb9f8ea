//! The step `detect`: boxes of a detector above a threshold, without those that others suppress.

use crate::suggest::library::quoted;
use crate::suggest::lower::numbers::number_of;
use crate::suggest::lower::{MadeTensor, StepLowering};
use crate::suggest::op::{ArithmeticOp, CompareOp, Dim, ExprId, Kind, Op, Reduction};
use base::tensor::Datatype;

/// A tensor [boxes, numbers] that a detector writes, and where its classes begin.
#[derive(Clone, Copy, PartialEq)]
struct Predictions {
    rows: ExprId,
    classes_from: i64,
    /// True if the scores of the classes are multiplied by the objectness, the number before them.
    has_objectness: bool,
}

/// A number of a box as a sum of columns with factors, for comparison.
type Sum = Vec<(i64, f64)>;

impl StepLowering<'_, '_> {
    /// The step of boxes, scores or classes that a suppression keeps; `None` for other expressions.
    pub fn detection(&mut self, id: ExprId) -> Result<Option<MadeTensor>, String> {
        let graph = &self.machine.graph;
        let [kept, by] = graph.get(id).inputs.clone()[..] else { return Ok(None) };
        let mut limit = None;
        let mut by = graph.below_views(by);
        if let (Op::Slice { axis: -1, start: None, stop: Some(count @ 1..), step: 1 }, Some(below)) =
            (graph.op(by), graph.operand(by))
        {
            limit = Some(*count);
            by = graph.below_views(below);
        }
        let (Op::Rows { is_mask: false }, Op::Nms(form)) = (graph.op(id), graph.op(by).clone()) else {
            return Ok(None);
        };
        let suppressed = graph.get(by).inputs.clone();
        let (Some(boxes), Some(scores)) = (suppressed.first().copied(), suppressed.get(1).copied()) else {
            return Ok(None);
        };
        let (scores, mask) = self.unmasked(scores)?;
        let (boxes, boxes_mask) = self.unmasked(boxes)?;
        let (kept, kept_mask) = self.unmasked(kept)?;
        if boxes_mask != mask || kept_mask != mask {
            return Err("boxes and scores are selected by different conditions".to_owned());
        }
        let predictions = self.predictions_of(scores)?;
        let (threshold, compare) = self.threshold_of(mask, scores, form.score_threshold)?;
        let whole = self.whole_rows(predictions, (threshold, compare))?;
        let in_box = self.box_format(boxes, predictions)?;
        if in_box != form.box_format {
            return Err(format!("the boxes of the suppression are not {}", form.box_format));
        }
        if let Some(classes) = suppressed.get(2) {
            let (classes, _) = self.unmasked(*classes)?;
            if !self.is_class(classes, predictions) {
                return Err("the classes of the suppression are not those of the boxes".to_owned());
            }
        }
        let (port, made) = self.kept_port(kept, scores, predictions)?;
        let (layout, tensor) = self.layout_of(Predictions { rows: whole, ..predictions })?;
        let mut fields = vec![("layout", quoted(layout)), ("score_threshold", number_of(threshold))];
        if compare != ">" {
            fields.push(("compare", quoted(compare)));
        }
        fields.push(("nms", quoted(form.nms)));
        fields.push(("iou_threshold", number_of(form.iou_threshold)));
        if form.iou != "torchvision" {
            fields.push(("iou", quoted(form.iou)));
        }
        // The default of the step keeps 300 boxes; these calls keep all.
        fields.push(("max_detections", limit.unwrap_or(30_000).to_string()));
        if limit.is_none() {
            self.machine.assume("at most 30000 boxes of an image are kept");
        }
        if let Some(format) = made.filter(|format| *format != "xyxy") {
            fields.push(("output_format", quoted(format)));
        }
        let input = self.lower(tensor)?;
        let name = self.detect_step(vec![("predictions", vec![input])], port, fields, id)?;
        [kept, scores, boxes, by].into_iter().chain(mask).for_each(|part| self.add_lines(&name, part));
        let name = self.typed(name, if port == "classes" { Datatype::Int64 } else { Datatype::Fp32 }, id)?;
        let shape = std::iter::once(Dim::Known(1)).chain(self.machine.graph.shape(id)).collect();
        Ok(Some((name, shape)))
    }

    /// Adds the output to a step. The format concerns the boxes alone: scores and classes are of the same step.
    pub fn detect_step(
        &mut self,
        inputs: Vec<(&'static str, Vec<String>)>,
        port: &'static str,
        mut fields: Vec<(&'static str, String)>,
        id: ExprId,
    ) -> Result<String, String> {
        let bare = |fields: &[(&'static str, String)]| {
            fields.iter().filter(|(name, _)| *name != "output_format").cloned().collect::<Vec<_>>()
        };
        let same = self.steps.iter_mut().find(|step| {
            let has_boxes = step.outputs.iter().any(|(port, _)| *port == "boxes");
            step.kind == "detect"
                && step.inputs == inputs
                && bare(&step.fields) == bare(&fields)
                && !(has_boxes && port == "boxes")
        });
        if let Some(step) = same {
            if port == "boxes" {
                step.fields.clone_from(&fields);
            }
            fields.clone_from(&step.fields);
        }
        self.step("detect", inputs, port, fields, id)
    }

    /// A tensor below a selection by a mask, and the mask.
    pub fn unmasked(&self, id: ExprId) -> Result<(ExprId, Option<ExprId>), String> {
        let graph = &self.machine.graph;
        let mut id = graph.below_views(id);
        let mut mask = None;
        loop {
            match (graph.op(id), graph.get(id).inputs.as_slice()) {
                (Op::Rows { is_mask: true }, [below, by]) if mask.is_none() => {
                    mask = Some(graph.below_views(*by));
                    id = graph.below_views(*below);
                }
                (Op::Cast | Op::View, [below])
                    if graph.kind(id) != Kind::Number(Datatype::Int64) || self.is_integer(*below) =>
                {
                    id = *below
                }
                _ => return Ok((id, mask)),
            }
        }
    }

    fn is_integer(&self, id: ExprId) -> bool {
        matches!(self.machine.graph.kind(id), Kind::Number(Datatype::Int64 | Datatype::Int32))
    }

    /// The tensor of which scores are the best class of each box.
    fn predictions_of(&self, scores: ExprId) -> Result<Predictions, String> {
        let graph = &self.machine.graph;
        let other = || "the scores are not those of a layout that is known".to_owned();
        let Op::Reduce { kind: Reduction::Max, axis: -1, .. } = graph.op(scores) else { return Err(other()) };
        graph.operand(scores).and_then(|classes| self.classes_of(classes)).ok_or_else(other)
    }

    /// The tensor of which these are the scores of the classes, as they are or times the objectness.
    fn classes_of(&self, id: ExprId) -> Option<Predictions> {
        let graph = &self.machine.graph;
        let id = graph.below_views(id);
        if let (Op::Binary(ArithmeticOp::Multiply), [left, right]) = (graph.op(id), graph.get(id).inputs.as_slice()) {
            let product = |classes: ExprId, objectness: ExprId| {
                let predictions = self.classes_of(classes).filter(|predictions| !predictions.has_objectness)?;
                let objectness = self.single_column(objectness)?;
                let is_before = objectness == (predictions.rows, predictions.classes_from - 1);
                is_before.then_some(Predictions { has_objectness: true, ..predictions })
            };
            return product(*left, *right).or_else(|| product(*right, *left));
        }
        let Op::Slice { axis: -1, start: Some(from), stop: None, step: 1 } = *graph.op(id) else { return None };
        let rows = graph.below_views(graph.operand(id)?);
        Some(Predictions { rows, classes_from: from, has_objectness: false })
    }

    /// The tensor of which this is one column, and its place.
    fn single_column(&self, id: ExprId) -> Option<(ExprId, i64)> {
        let graph = &self.machine.graph;
        let id = graph.below_views(id);
        let rows = graph.operand(id).map(|rows| graph.below_views(rows))?;
        match *graph.op(id) {
            Op::Take { axis: -1, index } => Some((rows, index)),
            Op::Slice { axis: -1, start, stop: Some(stop), step: 1 } if start.unwrap_or(0) + 1 == stop => {
                Some((rows, stop - 1))
            }
            _ => None,
        }
    }

    /// The predictions before boxes of little objectness are dropped, as the step drops them by the threshold of the scores.
    fn whole_rows(&mut self, predictions: Predictions, threshold: (f64, &'static str)) -> Result<ExprId, String> {
        let graph = &self.machine.graph;
        let rows = predictions.rows;
        if !predictions.has_objectness {
            return Ok(rows);
        }
        let (Op::Rows { is_mask: true }, [whole, mask]) = (graph.op(rows), graph.get(rows).inputs.as_slice()) else {
            self.machine.assume(
                "scores of classes are at most 1: the step also drops boxes whose objectness is not above the threshold",
            );
            return Ok(rows);
        };
        let (whole, mask) = (graph.below_views(*whole), graph.below_views(*mask));
        let objectness = self.machine.threshold(mask).and_then(|(of, comparison, number)| {
            let compare = match comparison {
                CompareOp::Greater => ">",
                CompareOp::GreaterEqual => ">=",
                _ => return None,
            };
            Some((self.single_column(of)?, (number, compare)))
        });
        match objectness {
            Some((column, own)) if column == (whole, predictions.classes_from - 1) && own == threshold => Ok(whole),
            _ => Err("boxes are dropped by another threshold of the objectness than that of the scores".to_owned()),
        }
    }

    fn threshold_of(
        &self,
        mask: Option<ExprId>,
        scores: ExprId,
        own: Option<f64>,
    ) -> Result<(f64, &'static str), String> {
        let graph = &self.machine.graph;
        let Some(mask) = mask else {
            return own.map(|own| (own, ">")).ok_or_else(|| "the boxes have no threshold".to_owned());
        };
        let (of, comparison, threshold) =
            self.machine.threshold(mask).ok_or("the condition of the boxes is no threshold")?;
        let compare = match comparison {
            CompareOp::Greater => ">",
            CompareOp::GreaterEqual => ">=",
            _ => return Err("the condition of the boxes is no threshold".to_owned()),
        };
        if graph.below_views(of) != scores && !self.is_same_max(graph.below_views(of), scores) {
            return Err("the threshold is not that of the scores".to_owned());
        }
        match own {
            // `NMSBoxes` compares with `>` again: equal scores are dropped.
            Some(own) if own == threshold => Ok((threshold, ">")),
            Some(own) if own > threshold => Ok((own, ">")),
            _ => Ok((threshold, compare)),
        }
    }

    fn is_same_max(&self, left: ExprId, right: ExprId) -> bool {
        let graph = &self.machine.graph;
        graph.op(left) == graph.op(right)
            && graph.operand(left).map(|id| graph.below_views(id))
                == graph.operand(right).map(|id| graph.below_views(id))
    }

    /// The layout of a tensor of predictions, and the tensor with images as its first axis.
    fn layout_of(&mut self, predictions: Predictions) -> Result<(&'static str, ExprId), String> {
        let graph = &self.machine.graph;
        let rows = predictions.rows;
        match (predictions.classes_from, predictions.has_objectness) {
            (4, false) => {}
            (5, true) => {
                let below = graph.below_view(rows, 2);
                return Ok(("yolov5", self.with_images(below)?));
            }
            (5, false) => return Err("the scores are those of the classes without the objectness".to_owned()),
            _ => return Err("the classes of the boxes begin at another place than the fifth".to_owned()),
        }
        match (graph.op(rows), graph.operand(rows)) {
            (Op::Transpose(order), Some(below)) => {
                let (count, below) = (order.len(), graph.below_view(below, 2));
                let is_last_two =
                    order.iter().rev().take(2).copied().eq([count.wrapping_sub(2), count.wrapping_sub(1)]);
                if !is_last_two {
                    return Err("the axes of the predictions are in another order".to_owned());
                }
                Ok(("yolov8", self.with_images(below)?))
            }
            _ => {
                let below = graph.below_view(rows, 2);
                Ok(("yolov8_rows", self.with_images(below)?))
            }
        }
    }

    /// A tensor whose first axis is that of images.
    pub fn with_images(&mut self, id: ExprId) -> Result<ExprId, String> {
        let base = self.machine.graph.below_view(id, 2);
        match self.machine.graph.rank(base) {
            2 => {
                let shape = std::iter::once(Dim::Known(1)).chain(self.machine.graph.shape(base)).collect();
                self.machine.graph.view(base, shape)
            }
            _ => Ok(base),
        }
    }

    fn is_class(&self, id: ExprId, predictions: Predictions) -> bool {
        let graph = &self.machine.graph;
        let classes = graph.operand(id).and_then(|classes| self.classes_of(classes));
        *graph.op(id) == Op::Argmax(-1) && classes == Some(predictions)
    }

    /// The port of what is kept, and the format of boxes.
    fn kept_port(
        &self,
        kept: ExprId,
        scores: ExprId,
        predictions: Predictions,
    ) -> Result<(&'static str, Option<&'static str>), String> {
        if kept == scores || self.is_same_max(kept, scores) {
            return Ok(("scores", None));
        }
        if self.is_class(kept, predictions) {
            return Ok(("classes", None));
        }
        self.box_format(kept, predictions).map(|format| ("boxes", Some(format)))
    }

    /// The format of boxes [boxes, 4] of predictions whose boxes are centre and size.
    fn box_format(&self, boxes: ExprId, predictions: Predictions) -> Result<&'static str, String> {
        let mut sums = Vec::new();
        for column in 0..4 {
            let mut left = COLUMN_VISITS_MAX;
            sums.push(
                self.column(boxes, column, predictions, &mut left).ok_or("the numbers of the boxes are not known")?,
            );
        }
        let centre = |at: i64| vec![(at, 1.0)];
        let least = |at: i64| vec![(at, 1.0), (at + 2, -0.5)];
        let most = |at: i64| vec![(at, 1.0), (at + 2, 0.5)];
        let formats = [
            ("cxcywh", [centre(0), centre(1), centre(2), centre(3)]),
            ("xywh", [least(0), least(1), centre(2), centre(3)]),
            ("xyxy", [least(0), least(1), most(0), most(1)]),
            ("yxyx", [least(1), least(0), most(1), most(0)]),
        ];
        let found = formats.into_iter().find(|(_, format)| format.as_slice() == sums);
        found.map(|(name, _)| name).ok_or_else(|| "the boxes are in no format that is known".to_owned())
    }

    /// A column of boxes as a sum of columns of the predictions.
    fn column(&self, id: ExprId, column: i64, predictions: Predictions, left: &mut usize) -> Option<Sum> {
        *left = left.checked_sub(1)?;
        let graph = &self.machine.graph;
        let inputs = graph.get(id).inputs.as_slice();
        let mut next = |id: ExprId, column: i64| self.column(id, column, predictions, left);
        match (graph.op(id), inputs) {
            _ if id == predictions.rows => Some(vec![(column, 1.0)]),
            (Op::View, [below]) => next(*below, column),
            (Op::Slice { axis: -1, start, step: 1, .. }, [below]) => next(*below, column + start.unwrap_or(0)),
            (Op::WithColumn(changed), [base, part]) => match *changed == column {
                true => next(*part, 0),
                false => next(*base, column),
            },
            (Op::Stack(-1), columns) => next(*columns.get(usize::try_from(column).ok()?)?, 0),
            (Op::Concat(-1), parts) => {
                let mut left = column;
                for part in parts {
                    let Some(Dim::Known(size)) = graph.shape(*part).last().copied() else { return None };
                    let size = i64::try_from(size).ok()?;
                    if left < size {
                        return next(*part, left);
                    }
                    left -= size;
                }
                None
            }
            (Op::Take { axis: -1, index }, [below]) => next(*below, *index),
            (Op::Select { axis: -1, indices }, [below]) => next(*below, *indices.get(usize::try_from(column).ok()?)?),
            (Op::Binary(op), [left, right]) => match (op, graph.number(*left), graph.number(*right)) {
                (ArithmeticOp::Add, None, None) => added(next(*left, column)?, &next(*right, column)?, 1.0),
                (ArithmeticOp::Subtract, None, None) => added(next(*left, column)?, &next(*right, column)?, -1.0),
                (ArithmeticOp::Multiply, None, Some(factor)) => Some(times(next(*left, column)?, factor)),
                (ArithmeticOp::Multiply, Some(factor), None) => Some(times(next(*right, column)?, factor)),
                (ArithmeticOp::Divide, None, Some(divisor)) if divisor != 0.0 => {
                    Some(times(next(*left, column)?, 1.0 / divisor))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// Expressions that a number of a box is looked for in: those of public files have a dozen.
const COLUMN_VISITS_MAX: usize = 128;

fn times(sum: Sum, factor: f64) -> Sum {
    sum.into_iter().map(|(column, own)| (column, own * factor)).collect()
}

/// Two columns together; `None` for more, which would round in another order than the step.
fn added(mut sum: Sum, other: &Sum, sign: f64) -> Option<Sum> {
    let ([(one, _)], [(two, factor)]) = (sum.as_slice(), other.as_slice()) else { return None };
    if one == two {
        return None;
    }
    sum.push((*two, sign * factor));
    sum.sort_by_key(|(column, _)| *column);
    Some(sum)
}
