//! A request of more rows than one run of the model between the steps may have, since a step made several rows of one
//! ([`Step::row_sources`](steps::Step::row_sources)): it runs in shares, one after the other.

use crate::Request;
use crate::batch::split_rows;
use crate::stepped::assembly::{Assembly, Joining};
use crate::stepped::fail_without_run;
use base::time::Clock;

/// The request, or its shares of at most `rows_max` rows. It is answered if its inputs cannot be divided.
pub(super) fn in_shares(request: Request, rows_max: u32, clock: Clock) -> Vec<Request> {
    let rows_max = rows_max.max(1);
    if request.rows <= rows_max {
        return vec![request];
    }
    let begins = (0..request.rows).step_by(usize::try_from(rows_max).unwrap_or(usize::MAX));
    let rows: Vec<u32> = begins.map(|begin| rows_max.min(request.rows - begin)).collect();
    match split_rows(&request.inputs, &rows) {
        Ok(inputs) => {
            let assembly = Assembly::new(Joining::InOrder(rows.clone()), request.responder, rows.len());
            let mut begin = 0;
            let share = |(inputs, rows): (_, u32)| {
                let count = usize::try_from(rows).unwrap_or(usize::MAX);
                let places = (begin..begin + count).collect();
                begin += count;
                // All are as wide as the request: the width says nothing.
                let responder = assembly.responder(places, 0);
                Request { inputs, rows, responder, sequence: None, details: request.details.clone() }
            };
            inputs.into_iter().zip(rows).map(share).collect()
        }
        Err(error) => {
            fail_without_run(request, error, clock);
            Vec::new()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::trial::{TrialAnswers, no_clock, tensor};
    use base::error::Error;
    use base::tensor::Tensor;

    /// The shares of a request with five rows of two numbers.
    fn shares(answers: &TrialAnswers, rows_max: u32) -> Vec<Request> {
        let numbers: Vec<i64> = (0..10).collect();
        let request = answers.batch(vec![(vec![tensor(&[5, 2], &numbers)], 5)]).requests.remove(0);
        in_shares(request, rows_max, no_clock)
    }

    fn numbers(tensor: &Tensor) -> Vec<i64> {
        tensor.contents.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn rows_run_in_shares_whose_outputs_are_joined_in_order() {
        for (rows_max, want) in [(8, vec![5]), (5, vec![5]), (2, vec![2, 2, 1]), (1, vec![1; 5]), (0, vec![1; 5])] {
            let answers = TrialAnswers::default();
            let shares = shares(&answers, rows_max);
            assert_eq!(shares.iter().map(|share| share.rows).collect::<Vec<_>>(), want, "{rows_max}");
            for share in shares.into_iter().rev() {
                share.responder.send(Ok(share.inputs));
            }
            let output = answers.outputs(1).remove(0).unwrap().remove(0);
            assert_eq!((&output.shape[..], numbers(&output)), (&[5, 2][..], (0..10).collect()), "{rows_max}");
        }
    }

    #[test]
    fn a_share_that_fails_or_does_not_fit_fails_the_request_once() {
        let answers = TrialAnswers::default();
        for (index, share) in shares(&answers, 2).into_iter().enumerate() {
            let fails = index == 1;
            share.responder.send(if fails { Err(Error::internal("broken")) } else { Ok(share.inputs) });
        }
        assert_eq!(answers.outputs(1).remove(0).unwrap_err().text(), "broken");
        for share in shares(&answers, 2) {
            share.responder.send(Ok(vec![tensor(&[1, 2], &[0_i64, 0])]));
        }
        let want = "the model's outputs for rows in several runs do not fit together";
        assert_eq!(answers.outputs(1).remove(0).unwrap_err().text(), want);
        // Inputs of fewer rows than the request says.
        let request = answers.batch(vec![(vec![tensor(&[1], &[0_i64])], 5)]).requests.remove(0);
        assert!(in_shares(request, 2, no_clock).is_empty());
        assert!(answers.outputs(1).remove(0).is_err());
    }
}
