//! `pool`: the vectors of tokens to one vector of a text.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::tensors::{floats, of_numbers, rows_and, trailing};
use crate::vector::sum_of_squares;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "pool",
    about: "Makes one vector of the vectors of a text's tokens, as sentence-transformers does, in FP32.",
    inputs: &[
        StepPort { name: "states", about: "Numbers [.., tokens, dimensions].", is_optional: false },
        StepPort {
            name: "mask",
            about: "Numbers [.., tokens]: 1 for a token that counts, 0 for padding. All count without it.",
            is_optional: true,
        },
    ],
    outputs: &[StepPort { name: "vector", about: "FP32 [.., dimensions].", is_optional: false }],
    fields: &[
        Field {
            name: "mode",
            kind: FieldKind::Choice(&[
                "mean",
                "cls",
                "last",
                "max",
                "mean_sqrt_len",
                "weighted_mean",
                "splade_max",
                "splade_sum",
            ]),
            default: FieldDefault::Json("\"mean\""),
            about: "`mean`: `sum(states * mask) / clip(sum(mask), 1e-9)`. `cls`: the first token. `last`: the token at \
                    the end if the mask has it, which is padding to the left, otherwise that at `sum(mask) - 1`. \
                    `max`: the largest of each dimension, with -1e9 for padding. `mean_sqrt_len`: the sum divided by \
                    the square root of the count. `weighted_mean`: the mean with the weights 1, 2, 3, … of the \
                    positions. `splade_max`, `splade_sum`: the largest of `log1p(relu(x))` of the tokens, or their sum, 0 for \
                    padding.",
        },
        Field {
            name: "dimensions",
            kind: FieldKind::Integer(1, 1 << 20),
            default: FieldDefault::Unset,
            about: "Keeps this number of leading dimensions, before `normalize` (Matryoshka models).",
        },
        Field {
            name: "normalize",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("false"),
            about: "Divides by the L2 norm: `v / max(norm(v), epsilon)`.",
        },
        Field {
            name: "epsilon",
            kind: FieldKind::Number(0.0, 1.0),
            default: FieldDefault::Json("1e-12"),
            about: "The least norm that `normalize` divides by. With 0, a vector of zeros becomes NaN.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(Pool::build(fields))),
};

struct Pool {
    mode: Mode,
    dimensions: Option<usize>,
    /// The least norm; `None` without normalisation.
    norm_min: Option<f32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Cls,
    Last,
    Max,
    Mean,
    MeanSqrtLen,
    SpladeMax,
    SpladeSum,
    WeightedMean,
}

impl Pool {
    fn build(fields: &StepFields<'_>) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "libraries compare the norm in FP32")]
        let norm_min = fields.number("epsilon").map(|epsilon| epsilon as f32);
        Self {
            mode: match fields.text("mode").as_str() {
                "cls" => Mode::Cls,
                "last" => Mode::Last,
                "max" => Mode::Max,
                "mean_sqrt_len" => Mode::MeanSqrtLen,
                "splade_max" => Mode::SpladeMax,
                "splade_sum" => Mode::SpladeSum,
                "weighted_mean" => Mode::WeightedMean,
                _ => Mode::Mean,
            },
            dimensions: fields.count("dimensions"),
            norm_min: norm_min.filter(|_| fields.flag("normalize")),
        }
    }

    /// Appends the vector of a row of `tokens` with `size` dimensions each.
    fn pool(&self, states: &[f32], mask: &[f32], size: usize, out: &mut Vec<f32>) {
        let start = out.len();
        match self.mode {
            Mode::Cls => out.extend(states.chunks_exact(size).next().unwrap_or_default()),
            Mode::Last => out.extend(states.chunks_exact(size).nth(last(mask)).unwrap_or_default()),
            Mode::Max => max(states, mask, size, out),
            Mode::Mean => divide(weighted_sum(states, mask, size, out), mask.iter().sum::<f32>().max(COUNT_MIN)),
            Mode::MeanSqrtLen => {
                divide(weighted_sum(states, mask, size, out), mask.iter().sum::<f32>().max(COUNT_MIN).sqrt());
            }
            Mode::SpladeMax => {
                // The function grows with its argument: it is applied to the largest alone.
                splade(states, mask, size, out, |largest, value| {
                    if value > *largest {
                        *largest = value
                    }
                });
                out.iter_mut().skip(start).for_each(|value| *value = value.ln_1p());
            }
            Mode::SpladeSum => splade(states, mask, size, out, |sum, value| *sum += value.ln_1p()),
            Mode::WeightedMean => {
                #[expect(clippy::cast_precision_loss, reason = "as torch's arange in FP32")]
                let weights: Vec<f32> = mask.iter().zip(1_usize..).map(|(mask, place)| mask * place as f32).collect();
                divide(weighted_sum(states, &weights, size, out), weights.iter().sum::<f32>().max(COUNT_MIN));
            }
        }
        out.truncate(start + self.dimensions.unwrap_or(size));
        if let Some(norm_min) = self.norm_min {
            let vector = out.get_mut(start..).unwrap_or_default();
            #[expect(clippy::cast_possible_truncation, reason = "libraries divide by a norm in FP32")]
            let norm = sum_of_squares(vector).sqrt() as f32;
            // A norm that is NaN stays.
            divide(vector, if norm < norm_min { norm_min } else { norm });
        }
    }
}

impl Step for Pool {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let [Some(input), mask] = inputs else { return Ok(Vec::new()) };
        let (rows, [tokens, size]) = trailing("states", "[tokens, dimensions]", input)?;
        if tokens == 0 || size == 0 {
            let shape = &input.shape[..];
            return Err(Error::invalid(format!(
                "'states' must have a token and a dimension, but its shape is {shape:?}"
            )));
        }
        if self.dimensions.is_some_and(|dimensions| dimensions > size) {
            let wanted = self.dimensions.unwrap_or(0);
            return Err(Error::invalid(format!("'states' has {size} dimensions, but \"dimensions\" is {wanted}")));
        }
        let mask = match mask {
            Some(mask) => mask_of(mask, rows, tokens)?,
            None => Cow::Owned(vec![1.0; rows.saturating_mul(tokens)]),
        };
        let states = floats("states", input)?;
        let width = self.dimensions.unwrap_or(size);
        let mut out = Vec::with_capacity(rows.saturating_mul(width).saturating_add(size));
        for (states, mask) in states.chunks_exact(tokens.saturating_mul(size)).zip(mask.chunks_exact(tokens)) {
            self.pool(states, mask, size, &mut out);
        }
        Ok(vec![Some(Tensor { shape: rows_and(input, 2, &[width]), ..of_numbers(Datatype::Fp32, &[], out) })])
    }
}

/// The mask, which has an element for each token.
fn mask_of(mask: &Tensor, rows: usize, tokens: usize) -> Result<Cow<'_, [f32]>, Error> {
    let (mask_rows, [mask_tokens]) = trailing("mask", "[tokens]", mask)?;
    if (mask_rows, mask_tokens) != (rows, tokens) {
        let shape = &mask.shape[..];
        return Err(Error::invalid(format!(
            "'mask' must have {tokens} tokens in {rows} rows, as 'states' has, but its shape is {shape:?}"
        )));
    }
    floats("mask", mask)
}

/// The least count that a sum is divided by.
const COUNT_MIN: f32 = 1e-9;

/// The index of the last token of a row.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index beyond the row is bounded")]
fn last(mask: &[f32]) -> usize {
    let end = mask.len().saturating_sub(1);
    let count = mask.iter().sum::<f32>();
    // Without any token numpy's index is -1, the end.
    if mask.last().is_some_and(|last| *last != 0.0) || count < 1.0 {
        end
    } else {
        (count as usize).saturating_sub(1).min(end)
    }
}

/// Appends the sum of the tokens by their weights, added one after the other as numpy and torch do, and returns it.
fn weighted_sum<'a>(states: &[f32], weights: &[f32], size: usize, out: &'a mut Vec<f32>) -> &'a mut [f32] {
    let start = out.len();
    // numpy begins with 0, and so turns -0 into 0.
    out.resize(start.saturating_add(size), 0.0);
    let (mut states, mut weights) = (states, weights);
    let sums = out.get_mut(start..).unwrap_or_default();
    // Four at once: the sums are loaded and stored a quarter of the times.
    let four = size.saturating_mul(4);
    while let (Some((block, states_left)), Some(([w0, w1, w2, w3], weights_left))) =
        (states.split_at_checked(four), weights.split_first_chunk())
    {
        let mut tokens = block.chunks_exact(size);
        let mut token = || tokens.next().unwrap_or_default();
        for ((((sum, a), b), c), d) in sums.iter_mut().zip(token()).zip(token()).zip(token()).zip(token()) {
            *sum = *sum + a * w0 + b * w1 + c * w2 + d * w3;
        }
        (states, weights) = (states_left, weights_left);
    }
    for (state, weight) in states.chunks_exact(size).zip(weights) {
        for (sum, value) in sums.iter_mut().zip(state) {
            *sum += value * weight;
        }
    }
    sums
}

/// Appends a number for each dimension, which begins with 0 and meets `relu` of each token that counts. NaN counts as 0.
fn splade(states: &[f32], mask: &[f32], size: usize, out: &mut Vec<f32>, meet: impl Fn(&mut f32, f32)) {
    let start = out.len();
    out.resize(start.saturating_add(size), 0.0);
    let numbers = out.get_mut(start..).unwrap_or_default();
    for (state, mask) in states.chunks_exact(size).zip(mask) {
        if *mask != 0.0 {
            numbers
                .iter_mut()
                .zip(state)
                .filter(|(_, value)| **value > 0.0)
                .for_each(|(number, value)| meet(number, *value));
        }
    }
}

/// Appends the largest value of each dimension; NaN if one is.
fn max(states: &[f32], mask: &[f32], size: usize, out: &mut Vec<f32>) {
    let start = out.len();
    out.resize(start.saturating_add(size), f32::NEG_INFINITY);
    let largest = out.get_mut(start..).unwrap_or_default();
    for (state, mask) in states.chunks_exact(size).zip(mask) {
        let is_padding = *mask == 0.0;
        for (largest, value) in largest.iter_mut().zip(state) {
            let value = if is_padding { -1e9 } else { *value };
            let larger = if value > *largest { value } else { *largest };
            *largest = if value.is_nan() { value } else { larger };
        }
    }
}

fn divide(values: &mut [f32], by: f32) {
    for value in values {
        *value /= by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{of_floats, of_strings};
    use crate::trial::{fault, run};

    #[test]
    fn an_empty_mask_and_a_vector_of_zeros_have_results() {
        let (states, mask) = (of_floats(&[1, 2, 2], vec![1.0, 2.0, 3.0, 4.0]), of_floats(&[1, 2], vec![0.0; 2]));
        let check = |members: &str, want: [f32; 2]| {
            let got = run("pool", &[("states", &states), ("mask", &mask)], &["vector"], members).unwrap();
            assert_eq!(floats("", &got[0]).unwrap()[..], want, "{members}");
        };
        check("", [0.0; 2]);
        check(r#""normalize": true"#, [0.0; 2]);
        check(r#""mode": "max""#, [-1e9; 2]);
        check(r#""mode": "last""#, [3.0, 4.0]);
    }

    #[test]
    fn scores_of_a_vocabulary_become_weights() {
        let states = of_floats(&[1, 3, 2], vec![1.0, -1.0, 3.0, 0.0, 9.0, 9.0]);
        let mask = of_floats(&[1, 3], vec![1.0, 1.0, 0.0]);
        let weights = |members: &str| {
            let got = run("pool", &[("states", &states), ("mask", &mask)], &["vector"], members).unwrap();
            floats("", &got[0]).unwrap().to_vec()
        };
        assert_eq!(weights(r#""mode": "splade_max""#), [4.0_f32.ln(), 0.0]);
        let sum = weights(r#""mode": "splade_sum""#);
        assert!((sum[0] - 8.0_f32.ln()).abs() < 1e-6 && sum[1] == 0.0, "{sum:?}");
    }

    #[test]
    fn faults_are_named() {
        let check = |states: &Tensor, mask: &Tensor, members: &str, want: &str| {
            assert_eq!(fault("pool", &[("states", states), ("mask", mask)], &["vector"], members), want);
        };
        let (states, mask) = (of_floats(&[1, 2, 3], vec![0.0; 6]), of_floats(&[1, 2], vec![0.0; 2]));
        let shape = "'states' must have a shape that ends with [tokens, dimensions], but its shape is [2]";
        check(&of_floats(&[2], vec![0.0; 2]), &mask, "", shape);
        let empty = "'states' must have a token and a dimension, but its shape is [7, 0, 3]";
        check(&of_floats(&[7, 0, 3], vec![]), &mask, "", empty);
        check(
            &of_strings(&[1, 1, 1], ["a"]),
            &of_floats(&[1, 1], vec![1.0]),
            "",
            "'states' must hold numbers, but it is BYTES",
        );
        let wrong = "'mask' must have 2 tokens in 1 rows, as 'states' has, but its shape is [2, 1]";
        check(&states, &of_floats(&[2, 1], vec![0.0; 2]), "", wrong);
        check(&states, &of_strings(&[1, 2], ["a", "b"]), "", "'mask' must hold numbers, but it is BYTES");
        check(&states, &mask, r#""dimensions": 4"#, "'states' has 3 dimensions, but \"dimensions\" is 4");
    }
}
