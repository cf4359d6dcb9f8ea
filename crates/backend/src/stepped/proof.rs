//! The proof that rows of different lengths may share a run of a model. A network that does not mask its padding, or that finds
//! the range of its numbers in each run anew, gives other answers in other company. So the first batch with a short and a long
//! row is followed by two runs that no client waits for: the short row alone, and both together. They show which dimension of each
//! output is as long as the inputs, and whether the numbers are the same. Until then rows stay with their requests.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;

use crate::stepped::padding::{OutputAxes, PaddedInputs, PaddedRows};
use crate::{Answer, AnswerSink, Request, Responder, Ticket};
use base::tensor::Tensor;
use base::time::Stamps;

/// The ways in which the rows of requests may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixing {
    /// Rows of any lengths together.
    Any,
    /// Rows of one length together: others would change their numbers.
    Equal,
    /// Requests as they are.
    Whole,
}

/// The findings about one model, for all its instances.
#[derive(Debug, Default)]
pub(super) struct PaddingProof {
    state: AtomicU8,
    axes: OnceLock<OutputAxes>,
    failures: AtomicU8,
}

const UNKNOWN: u8 = 0;
const UNDER_WAY: u8 = 1;
const ANY: u8 = 2;
const EQUAL: u8 = 3;
const WHOLE: u8 = 4;

/// Proofs that fail, as they may for want of memory, before requests stay whole.
const PROOFS_MAX: u8 = 3;

/// The longer row has at least a quarter more places: a wrong mask then shows.
const PROOF_CONTRAST: u32 = 4;

impl PaddingProof {
    /// The way in which rows may run, and the dimensions of outputs that follow their length.
    pub(super) fn mixing(&self) -> (Mixing, Option<&OutputAxes>) {
        match self.state.load(Ordering::Acquire) {
            ANY => (Mixing::Any, self.axes.get()),
            EQUAL => (Mixing::Equal, self.axes.get()),
            _ => (Mixing::Whole, None),
        }
    }

    /// Returns the two runs of the proof if they are due and these rows are apt: tensors of requests, and their rows.
    pub(super) fn begin<'a>(
        self: &Arc<Self>,
        inputs: &Arc<PaddedInputs>,
        requests: impl Iterator<Item = (&'a Request, &'a PaddedRows)>,
    ) -> Option<[Vec<Request>; 2]> {
        if self.state.load(Ordering::Relaxed) != UNKNOWN {
            return None;
        }
        let each = requests.flat_map(|(request, rows)| {
            rows.widths.iter().enumerate().map(move |(row, width)| (*width, row, request, rows))
        });
        let mut shortest: Option<(u32, usize, &Request, &PaddedRows)> = None;
        let mut longest = None;
        for row in each {
            shortest = shortest.filter(|other| other.0 <= row.0).or(Some(row));
            longest = longest.filter(|other: &(u32, usize, &Request, &PaddedRows)| other.0 >= row.0).or(Some(row));
        }
        let (short, long) = (shortest?, longest?);
        if long.0 - short.0 < short.0.div_ceil(PROOF_CONTRAST) {
            return None;
        }
        let claimed = self.state.compare_exchange(UNKNOWN, UNDER_WAY, Ordering::Relaxed, Ordering::Relaxed);
        claimed.ok()?;
        let length = short.3.lengths.get(short.1).copied().unwrap_or_default();
        let sink = Arc::new(ProofSink {
            proof: Arc::clone(self),
            inputs: Arc::clone(inputs),
            widths: [short.0, long.0],
            length,
            answers: [ArrayQueue::new(1), ArrayQueue::new(1)],
        });
        let request = |(_, row, request, rows): (u32, usize, &Request, &PaddedRows), width: u32, index: u32| {
            let ticket = Ticket { index, generation: 0 };
            let sink = Arc::clone(&sink) as Arc<dyn AnswerSink>;
            let inputs = inputs.take(&request.inputs, rows, &[row], width);
            let responder = Responder::new(sink, ticket, Stamps::default());
            Request { inputs, rows: 1, responder, sequence: None, details: None }
        };
        Some([vec![request(short, short.0, 0)], vec![request(short, long.0, 1), request(long, long.0, 2)]])
    }

    fn end(&self, found: Option<(OutputAxes, bool)>) {
        let state = match found {
            None => WHOLE,
            Some((axes, is_same)) => {
                // The only proof that is under way.
                let _ = self.axes.set(axes);
                if is_same { ANY } else { EQUAL }
            }
        };
        self.state.store(state, Ordering::Release);
    }
}

/// Takes the answers of the two runs.
#[derive(Debug)]
struct ProofSink {
    proof: Arc<PaddingProof>,
    inputs: Arc<PaddedInputs>,
    /// Those of the two runs, and the length of the short row without padding.
    widths: [u32; 2],
    length: u32,
    /// Of the short row, alone and padded.
    answers: [ArrayQueue<Vec<Tensor>>; 2],
}

impl AnswerSink for ProofSink {
    fn push(&self, ticket: Ticket, answer: Answer) {
        let place = usize::try_from(ticket.index).unwrap_or(usize::MAX);
        let (Some(place), Ok(outputs)) = (self.answers.get(place), answer.outputs) else { return };
        // An answer comes once.
        let _ = place.push(outputs);
    }

    fn wake(&self) {}
}

/// All answers are there. A row that failed leaves the question open.
impl Drop for ProofSink {
    fn drop(&mut self) {
        let [alone, padded] = &self.answers;
        match (alone.pop(), padded.pop()) {
            (Some(alone), Some(padded)) => {
                self.proof.end(self.inputs.compare(&alone, &padded, self.widths, self.length));
            }
            _ if self.proof.failures.fetch_add(1, Ordering::Relaxed) + 1 >= PROOFS_MAX => self.proof.end(None),
            _ => self.proof.state.store(UNKNOWN, Ordering::Relaxed),
        }
    }
}
