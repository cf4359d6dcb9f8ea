//! A large request in shares: its rows are queued as several requests, which idle instances run at the same time, and
//! their outputs are joined. For the client, the statistics of its model and the log it stays one request.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use crate::backend::batch::{join_rows, split_rows};
use crate::backend::{Answer, AnswerPart};
use crate::error::Error;
use crate::shard::Shard;
use crate::shard::requests::infer::{QueueRoute, Submission};
use crate::time::Stamps;

impl Shard {
    /// Runs a request in this many shares of its rows. It runs whole where the shard has no room for that many requests,
    /// and once more where the outputs of the shares do not fit together: the model's rows are not on their own then, and
    /// its later requests stay whole.
    ///
    /// # Errors
    /// Those of the first share that fails; the others are withdrawn.
    pub(super) async fn enqueue_shares(
        self: &Rc<Self>,
        queue: QueueRoute<'_>,
        mut submission: Submission,
        shares: u32,
        id: String,
    ) -> Result<Answer, Error> {
        let rows = rows_of_shares(submission.rows, shares);
        let Ok(inputs) = split_rows(&submission.inputs, &rows) else {
            return self.submit(queue, submission, &id)?.answer().await;
        };
        let Some(tickets) = self.requests.open_tickets(submission.ticket, rows.len()) else {
            return self.submit(queue, submission, &id)?.answer().await;
        };
        let parts = tickets.into_iter().zip(inputs).zip(&rows).zip(0..);
        let parts = parts.map(|(((ticket, inputs), rows), index)| submission.share(index, ticket, inputs, *rows));
        let running = parts.map(|part| {
            let queued = self.submit(queue, part, &id);
            Box::pin(async move { queued?.answer().await }) as ShareRun<'_, _>
        });
        let answers = all_or_first_error(running.collect()).await?;
        match join(answers, &rows) {
            Some(answer) => Ok(answer),
            None => {
                queue.model_queue.forbid_row_shares();
                submission.ticket = self.requests.open_ticket()?;
                self.submit(queue, submission, &id)?.answer().await
            }
        }
    }
}

/// A share on its way to its answer.
type ShareRun<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 'a>>;

/// The rows of each share: as equal as they can be, the larger ones first.
fn rows_of_shares(rows: u32, shares: u32) -> Vec<u32> {
    let shares = shares.clamp(1, rows.max(1));
    let (least, more) = (rows / shares, rows % shares);
    (0..shares).map(|share| least + u32::from(share < more)).collect()
}

/// All results in their order, or the first error that comes; the others are dropped then.
async fn all_or_first_error<T>(mut running: Vec<ShareRun<'_, T>>) -> Result<Vec<T>, Error> {
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in running.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(Ok(value)) => *result = Some(value),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    Ok(results.into_iter().flatten().collect())
}

/// The answer to the whole request: from the first share that began to the last that ended, or the answer of a share that
/// failed. `None` if the outputs do not fit together.
fn join(mut answers: Vec<Answer>, rows: &[u32]) -> Option<Answer> {
    if let Some(failed) = answers.iter().position(|answer| answer.outputs.is_err()) {
        return Some(answers.swap_remove(failed));
    }
    let stamps = answers.iter().map(|answer| answer.stamps).reduce(around)?;
    let batch_rows = answers.iter().map(|answer| answer.batch_rows).fold(0, u32::saturating_add);
    // An engine with rows of their own has nothing to say beside its outputs.
    let is_plain = answers.iter().all(|answer| answer.part == AnswerPart::Last && answer.parameters.is_none());
    let outputs: Vec<_> = answers.into_iter().filter_map(|answer| answer.outputs.ok()).collect();
    let outputs = Ok(join_rows(&outputs, rows).filter(|_| is_plain)?);
    Some(Answer { outputs, stamps, batch_rows, is_first: true, part: AnswerPart::Last, parameters: None })
}

fn around(one: Stamps, other: Stamps) -> Stamps {
    Stamps {
        received: one.received.min(other.received),
        batched: one.batched.min(other.batched),
        input_end: one.input_end.min(other.input_end),
        infer_end: one.infer_end.max(other.infer_end),
        output_end: one.output_end.max(other.output_end),
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future;

    use super::*;
    use crate::backend::trial::tensor;
    use crate::tensor::Tensor;
    use crate::time::Instant;

    #[test]
    fn shares_are_as_equal_as_they_can_be() {
        let check = |rows, shares, want: &[u32]| assert_eq!(rows_of_shares(rows, shares), want);
        check(32, 2, &[16, 16]);
        check(7, 3, &[3, 2, 2]);
        check(2, 8, &[1, 1]);
        check(5, 1, &[5]);
    }

    fn answer(outputs: Result<Vec<Tensor>, Error>, micros: u64) -> Answer {
        let at = Instant::from_micros;
        let stamps = Stamps {
            received: at(0),
            batched: at(micros),
            input_end: at(micros + 1),
            infer_end: at(micros + 10),
            output_end: at(micros + 11),
        };
        let (batch_rows, is_first, part, parameters) = (2, true, AnswerPart::Last, None);
        Answer { outputs, stamps, batch_rows, is_first, part, parameters }
    }

    #[test]
    fn answers_of_shares_are_one_answer_in_the_order_of_the_rows() {
        let (first, second) = (tensor(&[2, 2], &[1_u8, 2, 3, 4]), tensor(&[1, 2], &[5_u8, 6]));
        let answers = vec![answer(Ok(vec![first.clone()]), 7), answer(Ok(vec![second]), 3)];
        let joined = join(answers, &[2, 1]).unwrap();
        assert_eq!(joined.outputs.unwrap(), [tensor(&[3, 2], &[1_u8, 2, 3, 4, 5, 6])]);
        let micros = |instant: Instant| instant.since(Instant::ZERO).as_micros();
        let Stamps { batched, input_end, infer_end, output_end, .. } = joined.stamps;
        assert_eq!([batched, input_end, infer_end, output_end].map(micros), [3, 4, 17, 18]);

        // Padded to the longest row of its share, for example.
        let wider = answer(Ok(vec![tensor(&[1, 3], &[5_u8, 6, 7])]), 3);
        assert!(join(vec![answer(Ok(vec![first.clone()]), 7), wider], &[2, 1]).is_none());
        let failed = answer(Err(Error::invalid("no")), 3);
        let joined = join(vec![answer(Ok(vec![first]), 7), failed], &[2, 1]).unwrap();
        assert_eq!(joined.outputs.unwrap_err().text(), "no");
    }

    #[test]
    fn the_first_error_ends_the_wait() {
        let ready = |value: Result<u32, Error>| Box::pin(future::ready(value)) as ShareRun<'_, _>;
        let never = || Box::pin(future::pending()) as ShareRun<'_, u32>;
        let all = |running| future::block_on(all_or_first_error(running));
        assert_eq!(all(vec![ready(Ok(1)), ready(Ok(2))]).unwrap(), [1, 2]);
        assert_eq!(all(vec![never(), ready(Err(Error::invalid("no")))]).unwrap_err().text(), "no");
    }
}
