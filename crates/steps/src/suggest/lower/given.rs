//! The step `detect` on boxes that a network has found itself, such as `EfficientNMS` of TensorRT: a count, boxes, scores and classes.

use crate::suggest::library::quoted;
use crate::suggest::lower::numbers::number_of;
use crate::suggest::lower::{MadeTensor, StepLowering};
use crate::suggest::op::{CompareOp, Dim, ExprId, Kind, Op};
use base::tensor::Datatype;

/// The tensors of the boxes of an image, each with the first rows alone.
struct GivenBoxes {
    boxes: ExprId,
    scores: ExprId,
    classes: Option<ExprId>,
}

impl StepLowering<'_, '_> {
    /// The step of the boxes, scores or classes of which a count is taken; `None` for other expressions.
    pub fn given_detection(&mut self, id: ExprId) -> Result<Option<MadeTensor>, String> {
        let graph = &self.machine.graph;
        if !matches!(graph.op(id), Op::First | Op::Rows { is_mask: true }) {
            return Ok(None);
        }
        let (kept, mask) = self.unmasked(id)?;
        let graph = &self.machine.graph;
        let (Op::First, [_, count]) = (graph.op(kept), graph.get(kept).inputs.as_slice()) else { return Ok(None) };
        let count = *count;
        let threshold = match mask {
            None => None,
            Some(mask) => Some(self.machine.threshold(mask).ok_or("the condition of the boxes is no threshold")?),
        };
        let of_mask = threshold.map(|(of, ..)| self.machine.graph.below_views(of));
        let given = self.given_boxes(count, of_mask)?;
        let port = match kept {
            kept if kept == given.boxes => "boxes",
            kept if kept == given.scores => "scores",
            kept if Some(kept) == given.classes => "classes",
            _ => return Err("a tensor with the count of the boxes is none of theirs".to_owned()),
        };
        let mut fields = vec![("layout", quoted("apart"))];
        match threshold {
            // All that the network gave.
            None => fields.extend([("score_threshold", "-1000000000".to_owned()), ("compare", quoted(">="))]),
            Some((_, CompareOp::Greater, number)) => fields.push(("score_threshold", number_of(number))),
            Some((_, CompareOp::GreaterEqual, number)) => {
                fields.extend([("score_threshold", number_of(number)), ("compare", quoted(">="))]);
            }
            Some(_) => return Err("the condition of the boxes is no threshold".to_owned()),
        }
        fields.push(("max_detections", "30000".to_owned()));
        self.machine.assume("at most 30000 boxes of an image are kept, classes are whole numbers, and no score is NaN");
        let mut inputs = Vec::new();
        let tensors = [("boxes", Some(given.boxes)), ("scores", Some(given.scores)), ("classes", given.classes)];
        for (port, part) in tensors {
            let Some(whole) = part.and_then(|part| self.machine.graph.operand(part)) else { continue };
            let shape = std::iter::once(Dim::Known(1)).chain(self.machine.graph.shape(whole)).collect();
            let of_image = self.machine.graph.view(whole, shape)?;
            inputs.push((port, vec![self.lower(of_image)?]));
        }
        let of_image = self.machine.graph.view(count, vec![Dim::Known(1)])?;
        inputs.push(("num_detections", vec![self.lower(of_image)?]));
        let name = self.detect_step(inputs, port, fields, id)?;
        [Some(kept), Some(count), mask].into_iter().flatten().for_each(|part| self.add_lines(&name, part));
        let made = if port == "classes" { Datatype::Int64 } else { Datatype::Fp32 };
        let name = self.typed(name, made, id)?;
        let shape = std::iter::once(Dim::Known(1)).chain(self.machine.graph.shape(id)).collect();
        Ok(Some((name, shape)))
    }

    /// The tensors of which this count of rows is taken, by their shapes and datatypes.
    fn given_boxes(&self, count: ExprId, scores: Option<ExprId>) -> Result<GivenBoxes, String> {
        let graph = &self.machine.graph;
        let is_part = |id: &ExprId| *graph.op(*id) == Op::First && graph.get(*id).inputs.get(1) == Some(&count);
        let (mut boxes, mut floats, mut integers) = (Vec::new(), Vec::new(), Vec::new());
        for id in graph.ids().filter(is_part) {
            match (graph.shape(id).as_slice(), graph.kind(id)) {
                ([_, Dim::Known(4)], Kind::Number(Datatype::Fp32)) => boxes.push(id),
                ([_], Kind::Number(Datatype::Fp32)) => floats.push(id),
                ([_], Kind::Number(Datatype::Int32 | Datatype::Int64)) => integers.push(id),
                _ => {
                    return Err(
                        "a tensor with the count of the boxes has another shape or datatype than theirs".to_owned()
                    );
                }
            }
        }
        let several =
            || "which tensor has the scores of the boxes, and which one their classes, is not known".to_owned();
        let (scores, classes) = match (scores, floats.as_slice(), integers.as_slice()) {
            (None, [scores], []) => (*scores, None),
            (None, [scores], [classes]) => (*scores, Some(*classes)),
            (Some(scores), [_], others) if floats.contains(&scores) && others.len() < 2 => {
                (scores, others.first().copied())
            }
            (Some(scores), [one, two], []) if floats.contains(&scores) => {
                (scores, Some(if *one == scores { *two } else { *one }))
            }
            _ => return Err(several()),
        };
        match boxes.as_slice() {
            [boxes] => Ok(GivenBoxes { boxes: *boxes, scores, classes }),
            _ => Err("the boxes [n, 4] with this count are not known".to_owned()),
        }
    }
}
