//! `entailment`: the scores of pairs of a text and a label to the labels, the best first.

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::tensors::{floats, of_floats, strings, trailing};
use crate::texts::TextWriter;
use crate::vector::softmax;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "entailment",
    about: "Orders labels by the scores that a network for entailment gave their sentences, as the pipeline \
            `zero-shot-classification` of transformers: a softmax over the entailment of all labels, or with several that may \
            be right, of entailment and contradiction for each. A single label is always by itself. Of equal scores the first \
            label comes first.",
    inputs: &[
        StepPort { name: "logits", about: "Numbers [n, classes]: a row for each label.", is_optional: false },
        StepPort { name: "labels", about: "BYTES [n]: the labels.", is_optional: false },
        StepPort {
            name: "multi_label",
            about: "BOOL with one element: true if several labels may be right. False without it.",
            is_optional: true,
        },
    ],
    outputs: &[
        StepPort { name: "labels", about: "BYTES [n]: the labels, the best first.", is_optional: false },
        StepPort { name: "scores", about: "FP32 [n]: their scores.", is_optional: false },
    ],
    fields: &[
        index("entailment", "The class for sentences that follow from the text."),
        index("contradiction", "The class for sentences that contradict it."),
    ],
    is_short: true,
    build: |fields| Ok(Box::new(Entailment::build(fields))),
};

const fn index(name: &'static str, about: &'static str) -> Field {
    Field { name, kind: FieldKind::Integer(0, 65_535), default: FieldDefault::Required, about }
}

struct Entailment {
    entailment: usize,
    contradiction: usize,
}

impl Entailment {
    fn build(fields: &StepFields<'_>) -> Self {
        let class = |name| fields.count(name).unwrap_or(0);
        Self { entailment: class("entailment"), contradiction: class("contradiction") }
    }

    fn scores(&self, logits: &[f32], classes: usize, is_multi: bool) -> Vec<f32> {
        let rows = logits.chunks_exact(classes.max(1));
        let class = |row: &[f32], class: usize| row.get(class).copied().unwrap_or(f32::NAN);
        if !is_multi && rows.len() > 1 {
            let logits: Vec<f32> = rows.map(|row| class(row, self.entailment)).collect();
            let mut scores = Vec::new();
            softmax(&logits, &mut scores);
            return scores;
        }
        rows.map(|row| {
            let mut both = Vec::new();
            softmax(&[class(row, self.contradiction), class(row, self.entailment)], &mut both);
            both.last().copied().unwrap_or(f32::NAN)
        })
        .collect()
    }
}

impl Step for Entailment {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let [Some(logits), Some(labels), multi] = inputs else { return Ok(Vec::new()) };
        let (rows, [classes]) = trailing("logits", "[classes]", logits)?;
        let texts = strings("labels", labels)?;
        let most = self.entailment.max(self.contradiction);
        if rows != texts.len() || classes <= most {
            let shape = &logits.shape[..];
            return Err(Error::invalid(format!(
                "'logits' must have a row of more than {most} classes for each of {} labels, but its shape is {shape:?}",
                texts.len()
            )));
        }
        let is_multi = match multi {
            None => false,
            Some(flag) if flag.datatype == Datatype::Bool && flag.contents.len() == 1 => flag.contents[..] != [0],
            Some(flag) => {
                let (datatype, shape) = (flag.datatype.name(), &flag.shape[..]);
                return Err(Error::invalid(format!(
                    "'multi_label' must be BOOL with 1 element, but it is {datatype} with shape {shape:?}"
                )));
            }
        };
        let scores = self.scores(&floats("logits", logits)?, classes, is_multi);
        let mut order: Vec<_> = texts.into_iter().zip(scores).collect();
        order.sort_by(|(_, left), (_, right)| right.total_cmp(left));
        let mut labels = TextWriter::default();
        for (label, _) in &order {
            labels.push("labels", label)?;
        }
        let scores = of_floats(&[rows], order.into_iter().map(|(_, score)| score).collect());
        Ok(vec![Some(labels.into_tensor(scores.shape.clone())), Some(scores)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_numbers, of_strings};
    use crate::trial::{fault, run};

    const MEMBERS: &str = r#""entailment": 2, "contradiction": 0"#;

    #[test]
    fn labels_share_one_softmax_or_have_their_own() {
        let check = |count: usize, multi: Option<u8>, want: &[(&str, f32)]| {
            let logits = [[1.0, 9.0, 1.0], [0.0, 0.0, 2.0], [2.0, 5.0, 1.0]].concat();
            let logits = of_floats(&[count, 3], logits[..count * 3].to_vec());
            let labels = of_strings(&[count], ["a", "b", "c"].iter().take(count));
            let flag = multi.map(|flag| of_numbers(Datatype::Bool, &[1], vec![flag]));
            let mut inputs = vec![("logits", &logits), ("labels", &labels)];
            inputs.extend(flag.as_ref().map(|flag| ("multi_label", flag)));
            let got = run("entailment", &inputs, &["labels", "scores"], MEMBERS).unwrap();
            let names = strings("", &got[0]).unwrap();
            let scores = floats("", &got[1]).unwrap();
            for ((name, score), (label, want)) in names.iter().zip(&scores[..]).zip(want) {
                assert!(*name == label.as_bytes() && (score - want).abs() < 1e-6, "{label} {score}");
            }
            assert_eq!(names.len(), want.len());
        };
        let share = 2_f32.exp() / (2_f32.exp() + 2.0 * 1_f32.exp());
        check(3, None, &[("b", share), ("a", (1.0 - share) / 2.0), ("c", (1.0 - share) / 2.0)]);
        let own = |yes: f32, no: f32| 1.0 / (1.0 + (no - yes).exp());
        check(3, Some(1), &[("b", own(2.0, 0.0)), ("a", 0.5), ("c", own(1.0, 2.0))]);
        check(1, Some(0), &[("a", 0.5)]);
    }

    #[test]
    fn faults_are_named() {
        let check = |logits: &Tensor, multi: &Tensor, want: &str| {
            let labels = of_strings(&[2], ["a", "b"]);
            let inputs = [("logits", logits), ("labels", &labels), ("multi_label", multi)];
            assert_eq!(fault("entailment", &inputs, &["labels"], MEMBERS), want);
        };
        let flag = of_numbers(Datatype::Bool, &[1], vec![1_u8]);
        let fit = "'logits' must have a row of more than 2 classes for each of 2 labels, but its shape is ";
        check(&of_floats(&[2, 2], vec![0.0; 4]), &flag, &format!("{fit}[2, 2]"));
        check(&of_floats(&[1, 3], vec![0.0; 3]), &flag, &format!("{fit}[1, 3]"));
        let wide = of_numbers(Datatype::Bool, &[2], vec![1_u8, 0]);
        let want = "'multi_label' must be BOOL with 1 element, but it is BOOL with shape [2]";
        check(&of_floats(&[2, 3], vec![0.0; 6]), &wide, want);
    }
}
