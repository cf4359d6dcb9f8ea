//! `token_vectors`: the vectors of the tokens that count, one after the other.

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::kind::{Step, StepKind, StepPort};
use crate::limits::TENSOR_SIZE_MAX;
use crate::tensors::{floats, of_numbers, rows_and, trailing};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "token_vectors",
    about: "Keeps the vectors of the tokens that count, as late-interaction models (ColBERT) compare them. Rows can keep \
            different counts: shorter ones end with zeros, and `counts` has the count of each.",
    inputs: &[
        StepPort { name: "states", about: "Numbers [.., tokens, dimensions].", is_optional: false },
        StepPort {
            name: "keep",
            about: "Numbers [.., tokens]: 1 for a token whose vector is kept, such as the output `keep` of `tokenize`.",
            is_optional: false,
        },
    ],
    outputs: &[
        StepPort { name: "vectors", about: "FP32 [.., n, dimensions]: the vectors that are kept.", is_optional: false },
        StepPort { name: "counts", about: "INT64 [..]: the count of each row.", is_optional: false },
    ],
    fields: &[],
    is_short: false,
    build: |_| Ok(Box::new(TokenVectors)),
};

struct TokenVectors;

impl Step for TokenVectors {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let [Some(states), Some(keep)] = inputs else { return Ok(Vec::new()) };
        let (rows, [tokens, size]) = trailing("states", "[tokens, dimensions]", states)?;
        let flags = floats("keep", keep)?;
        if Some(flags.len()) != rows.checked_mul(tokens) {
            let shape = &keep.shape[..];
            return Err(Error::invalid(format!(
                "'keep' must fit the {rows} rows of {tokens} tokens that 'states' has, but its shape is {shape:?}"
            )));
        }
        // Rows without a token are rows without contents: a client may claim any number of them.
        if rows.saturating_mul(size_of::<i64>()) > TENSOR_SIZE_MAX {
            return Err(Error::invalid(format!("'counts' would be larger than {TENSOR_SIZE_MAX} bytes")));
        }
        let values = floats("states", states)?;
        let of_rows = || flags.chunks_exact(tokens.max(1));
        let mut counts: Vec<i64> =
            of_rows().map(|row| row.iter().filter(|flag| **flag != 0.0).count() as i64).collect();
        counts.resize(rows, 0);
        let width = counts.iter().copied().max().and_then(|most| usize::try_from(most).ok()).unwrap_or(0);
        // At most the input's own size.
        let mut kept = Vec::with_capacity(rows.saturating_mul(width).saturating_mul(size));
        for (index, row) in of_rows().enumerate() {
            for (place, _) in row.iter().enumerate().filter(|(_, flag)| **flag != 0.0) {
                let begin = (index * tokens + place) * size;
                kept.extend_from_slice(values.get(begin..begin + size).unwrap_or_default());
            }
            kept.resize((index + 1) * width * size, 0.0);
        }
        let shape = rows_and(states, 2, &[width, size]);
        Ok(vec![
            Some(Tensor { shape, ..of_numbers(Datatype::Fp32, &[], kept) }),
            Some(Tensor { shape: rows_and(states, 2, &[]), ..of_numbers(Datatype::Int64, &[], counts) }),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{integers, of_floats};
    use crate::trial::{fault, run};

    #[test]
    fn kept_vectors_move_together_and_zeros_follow() {
        let states = of_floats(&[2, 3, 2], (1_u8..=12).map(f32::from).collect());
        let keep = of_numbers(Datatype::Int64, &[2, 3], vec![1_i64, 0, 1, 0, 1, 0]);
        let got = run("token_vectors", &[("states", &states), ("keep", &keep)], &["vectors", "counts"], "").unwrap();
        assert_eq!(floats("", &got[0]).unwrap()[..], [1.0, 2.0, 5.0, 6.0, 9.0, 10.0, 0.0, 0.0]);
        assert_eq!((&got[0].shape[..], &integers("", &got[1]).unwrap()[..]), (&[2, 2, 2][..], &[2, 1][..]));
        let none = of_numbers(Datatype::Int64, &[2, 3], vec![0_i64; 6]);
        let got = run("token_vectors", &[("states", &states), ("keep", &none)], &["vectors"], "").unwrap();
        assert_eq!(got[0].shape[..], [2, 0, 2]);
    }

    #[test]
    fn faults_are_named() {
        let (states, keep) = (of_floats(&[1, 2, 1], vec![0.0; 2]), of_floats(&[1, 3], vec![1.0; 3]));
        let error = fault("token_vectors", &[("states", &states), ("keep", &keep)], &["vectors"], "");
        assert_eq!(error, "'keep' must fit the 1 rows of 2 tokens that 'states' has, but its shape is [1, 3]");
        let empty = of_floats(&[1 << 32, 0, 4], Vec::new());
        let error = fault("token_vectors", &[("states", &empty), ("keep", &empty)], &["vectors"], "");
        assert_eq!(error, "'counts' would be larger than 1073741824 bytes");
    }
}
