//! `head`: scores of classes to labels.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::topk::{Score, best};
use base::tensor::{Datatype, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::labels;
use crate::tensors::{floats, of_numbers, rows_and, trailing};
use crate::texts::TextWriter;
use crate::vector::{argmax, largest, sigmoid, softmax};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "head",
    about: "Turns the scores of classes into labels: softmax or sigmoid, then the best classes, or those above a \
            threshold. It computes in FP32. `top_k` orders by score; without it, classes stay in the order of their \
            indices. With `threshold`, rows can have different counts: shorter ones are filled up with score 0, index \
            -1 and an empty label, and `counts` has the count of each.",
    inputs: &[StepPort { name: "scores", about: "Numbers [.., classes].", is_optional: false }],
    outputs: &[
        output(
            "scores",
            "FP32 [.., n]: the scores of the chosen classes after `activation`; all classes without `top_k` and \
                          `threshold`.",
        ),
        output("indices", "INT64 [.., n]: the chosen classes."),
        output("labels", "BYTES [.., n]: the labels of the chosen classes."),
        output(
            "texts",
            "BYTES [.., n]: `score:index:label`, as Triton's classification extension writes them; without labels \
                         `score:index`.",
        ),
        output("counts", "INT64 [..]: how many classes of the row were chosen."),
        output("index", "INT64 [..]: the class with the highest score, the first of equals, as numpy's `argmax`."),
        output("score", "FP32 [..]: the score of `index`."),
        output("label", "BYTES [..]: the label of `index`."),
    ],
    fields: &[
        Field {
            name: "activation",
            kind: FieldKind::Choice(&["softmax", "sigmoid", "none"]),
            default: FieldDefault::Json("\"none\""),
            about: "`softmax`: `e = exp(x - max(x)); e / sum(e)`. `sigmoid`: `1 / (1 + exp(-x))`. Both within 1e-6 of \
                    numpy's.",
        },
        Field {
            name: "top_k",
            kind: FieldKind::Integer(1, u32::MAX as i64),
            default: FieldDefault::Unset,
            about: "Chooses this number of classes with the highest scores, or all if there are fewer, highest first.",
        },
        Field {
            name: "ties",
            kind: FieldKind::Choice(&["first", "last"]),
            default: FieldDefault::Json("\"first\""),
            about: "The order of equal scores with `top_k`. `first`: lower index first, as `np.argsort(-x, \
                    kind=\"stable\")[:k]`. `last`: higher index first, as `np.argsort(x, kind=\"stable\")[-k:][::-1]`. \
                    Without `kind=\"stable\"`, numpy promises no order.",
        },
        Field {
            name: "threshold",
            kind: FieldKind::Number(f64::MIN, f64::MAX),
            default: FieldDefault::Unset,
            about: "Drops classes with a lower score.",
        },
        Field {
            name: "compare",
            kind: FieldKind::Choice(&[">", ">="]),
            default: FieldDefault::Json("\">\""),
            about: "Keeps a class if its score is `>` or `>=` the threshold, compared in FP32.",
        },
        labels::LABELS,
        labels::LABELS_FILE,
    ],
    is_short: true,
    build: |fields| Ok(Box::new(Head::build(fields)?)),
};

const fn output(name: &'static str, about: &'static str) -> StepPort {
    StepPort { name, about, is_optional: false }
}

// Places among the outputs.
const SCORES: usize = 0;
const INDICES: usize = 1;
const LABELS: usize = 2;
const TEXTS: usize = 3;
const COUNTS: usize = 4;
const INDEX: usize = 5;
const LABEL: usize = 7;

struct Head {
    activation: HeadActivation,
    top_k: Option<usize>,
    is_last_first: bool,
    threshold: Option<f32>,
    keeps_equal: bool,
    labels: Vec<String>,
    wanted: Vec<bool>,
}

#[derive(Clone, Copy)]
enum HeadActivation {
    None,
    Sigmoid,
    Softmax,
}

impl Head {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let labels = labels::read(fields)?;
        if labels.is_empty() && [LABELS, LABEL].iter().any(|output| fields.is_wanted(*output)) {
            return Err(
                fields.error("labels", "the outputs \"labels\" and \"label\" need \"labels\" or \"labels_file\"")
            );
        }
        #[expect(clippy::cast_possible_truncation, reason = "numpy compares an FP32 array with a number in FP32")]
        let threshold = fields.number("threshold").map(|threshold| threshold as f32);
        Ok(Self {
            activation: match fields.text("activation").as_str() {
                "softmax" => HeadActivation::Softmax,
                "sigmoid" => HeadActivation::Sigmoid,
                _ => HeadActivation::None,
            },
            top_k: fields.count("top_k"),
            is_last_first: fields.text("ties") == "last",
            threshold,
            keeps_equal: fields.text("compare") == ">=",
            labels,
            wanted: (0..KIND.outputs.len()).map(|output| fields.is_wanted(output)).collect(),
        })
    }

    fn activated<'a>(&self, scores: Cow<'a, [f32]>, classes: usize) -> Cow<'a, [f32]> {
        match self.activation {
            HeadActivation::None => scores,
            HeadActivation::Sigmoid => scores.iter().map(|score| sigmoid(*score)).collect(),
            HeadActivation::Softmax => {
                let mut out = Vec::with_capacity(scores.len());
                for row in scores.chunks_exact(classes) {
                    softmax(row, &mut out);
                }
                Cow::Owned(out)
            }
        }
    }

    /// The chosen classes of each row.
    fn chosen(&self, scores: &[f32], classes: usize) -> Chosen {
        let mut chosen = Chosen { indices: Vec::new(), counts: Vec::new() };
        for row in scores.chunks_exact(classes) {
            let start = chosen.indices.len();
            match self.top_k {
                Some(count) if self.is_last_first => last_first(row, count, &mut chosen.indices),
                Some(count) => largest(row, count, &mut chosen.indices),
                None => chosen.indices.extend(0..u32::try_from(classes).unwrap_or(u32::MAX)),
            }
            if let Some(threshold) = self.threshold {
                let is_kept = |score: f32| if self.keeps_equal { score >= threshold } else { score > threshold };
                let mut end = start;
                for index in start..chosen.indices.len() {
                    let Some(class) = chosen.indices.get(index).copied() else { break };
                    if row.get(class as usize).is_some_and(|score| is_kept(*score)) {
                        chosen.indices.swap(end, index);
                        end += 1;
                    }
                }
                chosen.indices.truncate(end);
            }
            chosen.counts.push(chosen.indices.len() - start);
        }
        chosen
    }

    /// The outputs `scores`, `indices`, `labels`, `texts` and `counts`.
    fn chosen_outputs(&self, input: &Tensor, scores: &[f32], classes: usize) -> Result<Vec<Option<Tensor>>, Error> {
        let chosen = self.chosen(scores, classes);
        let width = chosen.counts.iter().copied().max().unwrap_or(0);
        let shape = rows_and(input, 1, &[width]);
        let cells = || chosen.cells(scores, classes, width);
        let shaped = |tensor: Tensor| Tensor { shape: shape.clone(), ..tensor };
        let values = self.is_wanted(SCORES).then(|| {
            let values = cells().map(|cell| cell.map_or(0.0, |(_, score)| score)).collect();
            shaped(of_numbers::<f32>(Datatype::Fp32, &[], values))
        });
        let indices = self.is_wanted(INDICES).then(|| {
            let values = cells().map(|cell| cell.map_or(-1, |(class, _)| class as i64)).collect();
            shaped(of_numbers::<i64>(Datatype::Int64, &[], values))
        });
        let (mut labels, mut texts) = (TextWriter::default(), TextWriter::default());
        for cell in cells().filter(|_| self.is_wanted(LABELS)) {
            labels.push("labels", cell.map_or(&[], |(class, _)| self.label(class)))?;
        }
        for cell in cells().filter(|_| self.is_wanted(TEXTS)) {
            let text = cell.map(|(class, score)| self.text(score, class)).unwrap_or_default();
            texts.push("texts", text.as_bytes())?;
        }
        let counts: Vec<_> = chosen.counts.iter().map(|count| *count as i64).collect();
        let counts = Tensor { shape: rows_and(input, 1, &[]), ..of_numbers(Datatype::Int64, &[], counts) };
        let labels = self.is_wanted(LABELS).then(|| labels.into_tensor(shape.clone()));
        let texts = self.is_wanted(TEXTS).then(|| texts.into_tensor(shape.clone()));
        Ok(vec![values, indices, labels, texts, Some(counts)])
    }

    /// The outputs `index`, `score` and `label`.
    fn best_outputs(&self, input: &Tensor, scores: &[f32], classes: usize) -> Result<Vec<Option<Tensor>>, Error> {
        let shape = rows_and(input, 1, &[]);
        let rows = || scores.chunks_exact(classes);
        let found: Vec<_> = rows().map(argmax).collect();
        let mut label = TextWriter::default();
        for class in found.iter().filter(|_| self.is_wanted(LABEL)) {
            label.push("label", self.label(*class))?;
        }
        let values = rows().zip(&found).map(|(row, class)| row.get(*class).copied().unwrap_or(f32::NAN)).collect();
        let score = Tensor { shape: shape.clone(), ..of_numbers::<f32>(Datatype::Fp32, &[], values) };
        let values = found.iter().map(|class| *class as i64).collect();
        let index = Tensor { shape: shape.clone(), ..of_numbers::<i64>(Datatype::Int64, &[], values) };
        Ok(vec![Some(index), Some(score), self.is_wanted(LABEL).then(|| label.into_tensor(shape))])
    }

    fn is_wanted(&self, output: usize) -> bool {
        self.wanted.get(output).copied().unwrap_or(false)
    }

    fn text(&self, score: f32, index: usize) -> String {
        match self.labels.get(index) {
            Some(label) if !label.is_empty() => format!("{score:.6}:{index}:{label}"),
            _ => format!("{score:.6}:{index}"),
        }
    }

    fn label(&self, index: usize) -> &[u8] {
        self.labels.get(index).map_or(&[], |label| label.as_bytes())
    }
}

/// The chosen classes of all rows, one row after the other.
struct Chosen {
    indices: Vec<u32>,
    counts: Vec<usize>,
}

impl Chosen {
    /// The chosen classes of each row with their scores, up to `width`; `None` fills up.
    fn cells<'a>(
        &'a self,
        scores: &'a [f32],
        classes: usize,
        width: usize,
    ) -> impl Iterator<Item = Option<(usize, f32)>> + 'a {
        let mut left = self.indices.as_slice();
        scores.chunks_exact(classes).zip(&self.counts).flat_map(move |(row, count)| {
            let (chosen, rest) = left.split_at_checked(*count).unwrap_or((left, &[]));
            left = rest;
            (0..width).map(move |place| {
                let class = *chosen.get(place)? as usize;
                Some((class, *row.get(class)?))
            })
        })
    }
}

impl Step for Head {
    fn classes(&self) -> &[String] {
        &self.labels
    }

    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (_, [classes]) = trailing("scores", "[classes]", input)?;
        if classes == 0 || u32::try_from(classes).is_err() {
            let shape = &input.shape[..];
            return Err(Error::invalid(format!(
                "'scores' must have 1 to {} classes, but its shape is {shape:?}",
                u32::MAX
            )));
        }
        if !self.labels.is_empty() && self.labels.len() < classes {
            let count = self.labels.len();
            return Err(Error::invalid(format!("'scores' has {classes} classes, but there are only {count} labels")));
        }
        let scores = self.activated(floats("scores", input)?, classes);
        let mut outputs = if (SCORES..=COUNTS).any(|output| self.is_wanted(output)) {
            self.chosen_outputs(input, &scores, classes)?
        } else {
            vec![None; INDEX]
        };
        if (INDEX..=LABEL).any(|output| self.is_wanted(output)) {
            outputs.extend(self.best_outputs(input, &scores, classes)?);
        }
        Ok(outputs)
    }
}

/// A score whose NaN is above all numbers, as numpy sorts it.
#[derive(Clone, Copy)]
struct NanHighest(f32);

impl Score for NanHighest {
    type Key = i32;

    fn key(self) -> i32 {
        if self.0.is_nan() { i32::MAX } else { self.0.key() }
    }
}

/// Appends the best classes, of equal ones the last first.
fn last_first(row: &[f32], count: usize, chosen: &mut Vec<u32>) {
    let reversed: Vec<_> = row.iter().rev().map(|score| NanHighest(*score)).collect();
    let last = u32::try_from(row.len().saturating_sub(1)).unwrap_or(u32::MAX);
    chosen.extend(best(&reversed, count).into_iter().map(|index| last.saturating_sub(index)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{integers, of_floats, of_strings, strings};
    use crate::trial::{built, fault, run};

    #[test]
    fn rows_of_different_counts_are_filled_up() {
        let scores = of_floats(&[2, 1, 3], vec![0.1, 0.9, 0.6, 0.2, 0.1, 0.7]);
        let outputs = ["scores", "indices", "labels", "texts", "counts"];
        let members = r#""threshold": 0.5, "labels": ["a", "b", ""]"#;
        let got = run("head", &[("scores", &scores)], &outputs, members).unwrap();
        assert_eq!(got[0].shape[..], [2, 1, 2]);
        assert_eq!(floats("", &got[0]).unwrap()[..], [0.9, 0.6, 0.7, 0.0]);
        assert_eq!(integers("", &got[1]).unwrap()[..], [1, 2, 2, -1]);
        assert_eq!(strings("", &got[2]).unwrap(), [&b"b"[..], b"", b"", b""]);
        assert_eq!(strings("", &got[3]).unwrap(), [&b"0.900000:1:b"[..], b"0.600000:2", b"0.700000:2", b""]);
        assert_eq!((&got[4].shape[..], &integers("", &got[4]).unwrap()[..]), (&[2, 1][..], &[2, 1][..]));
    }

    #[test]
    fn no_rows_give_no_results() {
        let got =
            run("head", &[("scores", &of_floats(&[0, 3], vec![]))], &["scores", "index"], "\"top_k\": 2").unwrap();
        assert_eq!((&got[0].shape[..], &got[1].shape[..]), (&[0, 0][..], &[0][..]));
    }

    #[test]
    fn faults_are_named() {
        let check = |tensor: Tensor, members: &str, want: &str| {
            assert_eq!(fault("head", &[("scores", &tensor)], &["scores"], members), want);
        };
        let scores = || of_floats(&[1, 3], vec![0.0; 3]);
        check(
            of_floats(&[], vec![0.0]),
            "",
            "'scores' must have a shape that ends with [classes], but its shape is []",
        );
        check(of_floats(&[5, 0], vec![]), "", "'scores' must have 1 to 4294967295 classes, but its shape is [5, 0]");
        check(of_floats(&[2, 3], vec![0.0; 5]), "", "'scores' has contents of another size than its shape [2, 3]");
        check(of_strings(&[1], ["a"]), "", "'scores' must hold numbers, but it is BYTES");
        check(scores(), r#""labels": ["a", "b"]"#, "'scores' has 3 classes, but there are only 2 labels");
        let twice = r#""labels": ["a"], "labels_file": "l.txt""#;
        check(scores(), twice, "step 1: line 1: \"labels_file\": labels are given by \"labels\" already");
        let file = "step 1: line 1: \"labels_file\": cannot read 'l.txt': no such file";
        check(scores(), r#""labels_file": "l.txt""#, file);
        let without =
            "step 1: line 1: \"labels\": the outputs \"labels\" and \"label\" need \"labels\" or \"labels_file\"";
        assert_eq!(built("head", &["scores"], &["label"], "").err().unwrap(), without);
    }
}
