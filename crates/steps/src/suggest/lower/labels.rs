//! The step `head`: scores of classes, the best of them, and their labels.

use crate::suggest::library::quoted;
use crate::suggest::lower::{MadeTensor, StepLowering};
use crate::suggest::op::{CompareOp, Dim, ExprId, Kind, Op, Order, Reduction};
use base::tensor::Datatype;

/// The fields of a head besides its labels, and the expression of its scores.
struct HeadForm {
    fields: Vec<(&'static str, String)>,
    scores: ExprId,
}

impl StepLowering<'_, '_> {
    /// The step of an expression that a head makes; `None` for others.
    pub fn head(&mut self, id: ExprId) -> Result<Option<MadeTensor>, String> {
        let graph = &self.machine.graph;
        let Some(operand) = graph.operand(id) else { return Ok(None) };
        match graph.op(id).clone() {
            Op::Softmax(-1) | Op::Sigmoid => {
                let form = HeadForm { fields: Vec::new(), scores: id };
                self.made_head(form, "scores", None, id).map(Some)
            }
            Op::Argmax(-1) => {
                self.made_head(HeadForm { fields: Vec::new(), scores: operand }, "index", None, id).map(Some)
            }
            Op::Reduce { kind: Reduction::Max, axis: -1, .. } => {
                self.made_head(HeadForm { fields: Vec::new(), scores: operand }, "score", None, id).map(Some)
            }
            Op::Top { count, order, is_index } => {
                let form = self.top_form(operand, count, order);
                self.made_head(form, if is_index { "indices" } else { "scores" }, None, id).map(Some)
            }
            Op::Argsort(order) if order.is_descending => {
                let Some(Dim::Known(count)) = graph.shape(id).last().copied() else { return Ok(None) };
                let form = self.top_form(operand, count, order);
                self.made_head(form, "indices", None, id).map(Some)
            }
            Op::Labels(labels) => {
                let index = graph.below_views(operand);
                let index = match (graph.op(index), graph.operand(index), graph.kind(index)) {
                    // The datatype of an index changes no label.
                    (Op::Cast, Some(below), Kind::Number(_)) => graph.below_views(below),
                    _ => index,
                };
                let Some(of) = graph.operand(index) else { return Ok(None) };
                let (form, port) = match graph.op(index).clone() {
                    Op::Argmax(-1) => (HeadForm { fields: Vec::new(), scores: of }, "label"),
                    Op::Top { count, order, is_index: true } => (self.top_form(of, count, order), "labels"),
                    _ => return Ok(None),
                };
                let made = self.made_head(form, port, Some(&labels), id)?;
                self.add_lines(&made.0, index);
                Ok(Some(made))
            }
            Op::Rows { is_mask: true } => self.above_threshold(id),
            _ => Ok(None),
        }
    }

    fn top_form(&mut self, scores: ExprId, count: u64, order: Order) -> HeadForm {
        let mut fields = vec![("top_k", count.to_string())];
        if !order.is_stable {
            self.machine.assume("equal scores: the library promises no order, the step takes the lower index first");
        } else if order.is_last_first {
            fields.push(("ties", quoted("last")));
        }
        HeadForm { fields, scores }
    }

    /// Scores, indices or labels of the classes above a threshold.
    fn above_threshold(&mut self, id: ExprId) -> Result<Option<MadeTensor>, String> {
        let graph = &self.machine.graph;
        let [values, mask] = graph.get(id).inputs.clone()[..] else { return Ok(None) };
        let Some((scores, comparison, threshold)) = self.machine.threshold(graph.below_views(mask)) else {
            return Ok(None);
        };
        if graph.rank(values) != 1 || graph.rank(mask) != 1 {
            return Ok(None);
        }
        let compare = match comparison {
            CompareOp::Greater => ">",
            CompareOp::GreaterEqual => ">=",
            _ => return Ok(None),
        };
        let scores = graph.below_views(scores);
        let values = graph.below_views(values);
        let (port, labels) = match graph.op(values).clone() {
            _ if values == scores => ("scores", None),
            Op::Positions => ("indices", None),
            Op::Labels(labels) if graph.operand(values).is_some_and(|index| *graph.op(index) == Op::Positions) => {
                ("labels", Some(labels))
            }
            _ => return Ok(None),
        };
        let mut fields = vec![("threshold", threshold.to_string())];
        if compare != ">" {
            fields.push(("compare", quoted(compare)));
        }
        let made = self.made_head(HeadForm { fields, scores }, port, labels.as_deref(), id)?;
        self.add_lines(&made.0, mask);
        Ok(Some(made))
    }

    /// Makes the step, whose `scores` may be a softmax or sigmoid.
    fn made_head(
        &mut self,
        form: HeadForm,
        port: &'static str,
        labels: Option<&Vec<String>>,
        id: ExprId,
    ) -> Result<MadeTensor, String> {
        let graph = &self.machine.graph;
        let activated = graph.below_views(form.scores);
        let (activation, logits) = match (graph.op(activated), graph.operand(activated)) {
            (Op::Softmax(-1), Some(below)) => (Some("softmax"), below),
            (Op::Sigmoid, Some(below)) => (Some("sigmoid"), below),
            _ => (None, form.scores),
        };
        self.single(logits);
        let input = self.lower(logits)?;
        let mut fields: Vec<_> = activation.map(|activation| ("activation", quoted(activation))).into_iter().collect();
        fields.extend(form.fields);
        // Leading axes are those of the logits; the shape of the result follows.
        let mut shape = self.machine.graph.shape(logits);
        shape.pop();
        if !matches!(port, "index" | "score" | "label") {
            let last = self.machine.graph.shape(id).last().copied();
            shape.push(last.unwrap_or(Dim::Known(1)));
        }
        let inputs = vec![("scores", vec![input])];
        let name = match labels {
            None => self.with_labels(inputs, port, fields, id)?,
            Some(labels) => self.label_step(inputs, port, fields, labels, id)?,
        };
        self.add_lines(&name, activated);
        let name = match port {
            "scores" | "score" => self.typed(name, Datatype::Fp32, id)?,
            _ => self.typed(name, Datatype::Int64, id)?,
        };
        Ok((name, shape))
    }

    /// An output without labels, of a head that may have labels for another one.
    fn with_labels(
        &mut self,
        inputs: Vec<(&'static str, Vec<String>)>,
        port: &'static str,
        fields: Vec<(&'static str, String)>,
        id: ExprId,
    ) -> Result<String, String> {
        let is_same = |step: &super::StepDraft| {
            let own = step.fields.iter().filter(|(name, _)| !name.starts_with("labels"));
            step.kind == "head" && step.inputs == inputs && own.eq(fields.iter())
        };
        let labelled = self.steps.iter().find(|step| is_same(step)).map(|step| step.fields.clone());
        self.step("head", inputs, port, labelled.unwrap_or(fields), id)
    }

    /// An output with labels: a head that is there already without gets them.
    fn label_step(
        &mut self,
        inputs: Vec<(&'static str, Vec<String>)>,
        port: &'static str,
        fields: Vec<(&'static str, String)>,
        labels: &[String],
        id: ExprId,
    ) -> Result<String, String> {
        let field = self.label_field(labels);
        let labelled: Vec<_> = fields.iter().cloned().chain([field]).collect();
        let bare =
            self.steps.iter_mut().find(|step| step.kind == "head" && step.inputs == inputs && step.fields == fields);
        if let Some(step) = bare {
            step.fields.clone_from(&labelled);
        }
        self.step("head", inputs, port, labelled, id)
    }

    /// The labels as a file that has them, or as a list.
    pub fn label_field(&self, labels: &[String]) -> (&'static str, String) {
        let of_file = self
            .machine
            .files
            .iter()
            .find(|(_, text)| crate::labels::of_file(text.as_bytes()).is_ok_and(|known| known == labels));
        match of_file {
            Some((name, _)) => ("labels_file", quoted(name)),
            None => ("labels", list_of(labels)),
        }
    }
}

/// Strings as a JSON list.
pub(super) fn list_of(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", "))
}
