//! Tests of rows of different lengths in runs of a stand-in for the model between the steps.

use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_queue::SegQueue;

use super::*;
use crate::trial::{TrialAnswers, TrialTensor, no_clock, spec, tensor};
use crate::{Answer, AnswerSink, Batch, InFlightState, Request, Ticket, threads};
use base::error::Code;
use base::metrics::{PaddingFigures, TeiBatchCells, encode_tei};
use base::tensor::Datatype::{Fp32, Int64};
use base::time::{Clock, Instant};
use steps::StepList;

/// The ways in which the stand-in computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// The states of a row do not depend on its padding.
    Masked,
    /// They do.
    Unmasked,
    /// Its output follows the length in two dimensions.
    Square,
    /// It fails whenever two rows come.
    Failing,
    /// It answers when it is polled.
    Later,
}

/// A row that fails its request.
const BROKEN: i64 = 13;
/// The number that pads ids.
const PAD: i64 = 9;

/// A run of the stand-in: its rows, its places, and the answers that clients had before it.
type SeenRun = (u32, i64, usize);

#[derive(Default)]
struct Seen {
    runs: SegQueue<SeenRun>,
    answered: Arc<AtomicUsize>,
}

impl Seen {
    /// The rows and the places of the runs since the last call.
    fn take(&self) -> Vec<(u32, i64)> {
        self.take_runs().into_iter().map(|(rows, width, _)| (rows, width)).collect()
    }

    fn take_runs(&self) -> Vec<SeenRun> {
        std::iter::from_fn(|| self.runs.pop()).collect()
    }
}

struct StandInEngine {
    network: Network,
    seen: Arc<Seen>,
    open: Vec<Request>,
}

struct StandInModel(Network, Arc<Seen>);

impl LoadedModel for StandInModel {
    fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(StandInEngine { network: self.0, seen: Arc::clone(&self.1), open: Vec::new() }))
    }

    fn may_run_inline(&self) -> bool {
        true
    }
}

impl Instance for StandInEngine {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, rows, .. } = batch;
        let width = requests[0].inputs[0].shape[1];
        assert!(requests.iter().all(|request| request.inputs[0].shape[1] == width), "one width in a run");
        assert_eq!(requests.iter().map(|request| request.rows).sum::<u32>(), rows);
        self.seen.runs.push((rows, width, self.seen.answered.load(Ordering::SeqCst)));
        if self.network == Network::Later {
            return self.open.extend(requests);
        }
        let fails = self.network == Network::Failing && rows > 1;
        requests.into_iter().for_each(|request| answer(request, self.network, fails));
    }

    fn poll_flight(&mut self, _: Clock) -> InFlightState {
        std::mem::take(&mut self.open).into_iter().for_each(|request| answer(request, Network::Masked, false));
        InFlightState::default()
    }
}

fn numbers(tensor: &Tensor) -> Vec<i64> {
    tensor.contents.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.contents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The states of each place are its id, and the least of all ids that count.
fn answer(request: Request, network: Network, fails: bool) {
    let (rows, width) = (request.rows as usize, request.inputs[0].shape[1] as usize);
    let (ids, mask) = (numbers(&request.inputs[0]), values(&request.inputs[1]));
    if fails || ids.contains(&BROKEN) {
        return request.responder.send(Err(Error::internal("a row is broken")));
    }
    let mut states = Vec::new();
    for (ids, mask) in ids.chunks(width).zip(mask.chunks(width)) {
        let counts = |mask: f32| network == Network::Unmasked || mask > 0.0;
        let ids_that_count = ids.iter().zip(mask).filter(|(_, mask)| counts(**mask));
        let least = ids_that_count.map(|(id, _)| *id as f32).fold(f32::INFINITY, f32::min);
        match network {
            Network::Square => states.extend(vec![least; width * width]),
            _ => states.extend(ids.iter().flat_map(|id| [*id as f32, least])),
        }
    }
    let last = if network == Network::Square { width } else { 2 };
    let shape = [rows, width, last].map(|size| size as i64);
    // An output that nothing reads may have any shape.
    let unread = tensor(&[1, 1], &[0.0_f32]);
    request.responder.send(Ok(vec![tensor(&shape, &states), unread]));
}

/// Counts the answers of clients.
struct Counting(Arc<dyn AnswerSink>, Arc<AtomicUsize>);

impl AnswerSink for Counting {
    fn push(&self, ticket: Ticket, answer: Answer) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.push(ticket, answer);
    }

    fn wake(&self) {}

    fn has_left(&self, ticket: Ticket) -> bool {
        self.0.has_left(ticket)
    }
}

const LIST: &str = r#"{"steps": [
    {"step": "model", "padding": {"inputs": {"ids": 9, "mask": 0}, "lengths": "n"SIDE}},
    {"step": "pool", "inputs": {"states": "states", "mask": "mask"}, "output": "y", "mode": "mean"}
]}"#;

/// A model from ids, mask and lengths to the mean of the states, and the stand-in's runs.
fn model(network: Network, members: &str) -> (SteppedModel, Arc<Seen>) {
    let text = LIST.replace("SIDE", members);
    let list = StepList::read(&text, &|_, _| Err("no file".to_owned())).unwrap();
    let padded: [TrialTensor<'_>; 2] = [("ids", Int64, &[-1]), ("mask", Fp32, &[-1])];
    let inputs: [TrialTensor<'_>; 3] = [padded[0], padded[1], ("n", Int64, &[])];
    let mut outer = spec(8, &inputs, &[("y", Fp32, &[-1])]);
    let mut engine = spec(8, &padded, &[("states", Fp32, &[-1, -1]), ("unread", Fp32, &[-1])]);
    engine.outputs.iter_mut().for_each(|output| output.is_derived = true);
    outer.steps = Some(Arc::new(ModelSteps::new(&text, list, &outer, Some(Arc::new(engine))).unwrap()));
    let seen = Arc::new(Seen::default());
    let inner = Box::new(StandInModel(network, Arc::clone(&seen)));
    (SteppedModel::new(&Arc::new(outer), Some(inner), None).unwrap(), seen)
}

struct PaddedTrial {
    model: SteppedModel,
    instance: Box<dyn Instance>,
    seen: Arc<Seen>,
    is_left: bool,
}

impl PaddedTrial {
    fn new(network: Network, members: &str) -> Self {
        let (model, seen) = model(network, members);
        let instance = threads::enter(1, |threads| model.new_instance(threads)).unwrap();
        Self { model, instance, seen, is_left: members.contains("left") }
    }

    /// The same, once it is proven that rows may share runs.
    fn proven(members: &str) -> Self {
        let mut trial = Self::new(Network::Masked, members);
        trial.ask(&[&[3, 40]]);
        trial.seen.take();
        trial
    }

    /// Requests with rows of these lengths; a row of length n has the ids n, n + 1, …
    fn batch(&self, answers: &TrialAnswers, requests: &[&[i64]]) -> Batch {
        let request = |lengths: &&[i64]| {
            let width = lengths.iter().max().copied().unwrap_or(0);
            let (mut ids, mut mask) = (Vec::new(), Vec::new());
            for length in *lengths {
                let row = (0..*length).map(|place| if *length == BROKEN { BROKEN } else { 100 * length + place });
                let pads = (*length..width).map(|_| PAD);
                let (row, pads): (Vec<_>, Vec<_>) = (row.collect(), pads.collect());
                let counts = [vec![1.0_f32; row.len()], vec![0.0; pads.len()]];
                let parts = if self.is_left { [pads, row] } else { [row, pads] };
                let [one, two] = if self.is_left { [&counts[1], &counts[0]] } else { [&counts[0], &counts[1]] };
                ids.extend(parts.concat());
                mask.extend([one.as_slice(), two].concat());
            }
            let rows = lengths.len() as i64;
            let tensors = vec![tensor(&[rows, width], &ids), tensor(&[rows, width], &mask), tensor(&[rows], lengths)];
            (tensors, rows as u32)
        };
        let mut batch = answers.batch(requests.iter().map(request).collect());
        for request in &mut batch.requests {
            let answered = Arc::clone(&self.seen.answered);
            request.responder.answer_through(|inner| Arc::new(Counting(inner, answered)));
        }
        batch
    }

    /// The means of the states of each row, by request.
    fn ask(&mut self, requests: &[&[i64]]) -> Vec<Result<Vec<f32>, Code>> {
        let answers = TrialAnswers::default();
        let batch = self.batch(&answers, requests);
        self.instance.run(batch);
        self.instance.poll_flight(no_clock);
        let outputs = answers.outputs(requests.len() as u32);
        outputs
            .into_iter()
            .map(|outputs| outputs.map(|outputs| values(&outputs[0])).map_err(|error| error.code()))
            .collect()
    }

    fn figures(&self) -> PaddingFigures {
        self.model.padding().unwrap().read()
    }
}

/// The mean of the states of a row: of its ids, and of the least, which is the same in each place.
fn expected(lengths: &[i64]) -> Vec<f32> {
    let of = |length: &i64| {
        let sum: f32 = (0..*length).map(|place| (100 * length + place) as f32).sum();
        [sum / *length as f32, (100 * length) as f32]
    };
    lengths.iter().flat_map(of).collect()
}

#[test]
fn the_first_mixed_batch_runs_as_it_is_and_proves_that_rows_may_share_runs() {
    let mut trial = PaddedTrial::new(Network::Masked, "");
    assert_eq!(trial.ask(&[&[5], &[5], &[6]]), [Ok(expected(&[5])), Ok(expected(&[5])), Ok(expected(&[6]))]);
    assert_eq!(trial.seen.take(), [(2, 5), (1, 6)], "equal shapes together; too little contrast for a proof");
    assert_eq!(trial.ask(&[&[3, 40], &[5]]), [Ok(expected(&[3, 40])), Ok(expected(&[5]))]);
    assert_eq!(trial.seen.take_runs(), [(2, 40, 3), (1, 5, 4), (1, 3, 5), (2, 40, 5)], "the proof, after the answers");
    assert_eq!(trial.figures(), PaddingFigures { places: 16 + 80 + 5, padding: 37 });
    assert_eq!(trial.ask(&[&[3, 40, 5], &[41]]), [Ok(expected(&[3, 40, 5])), Ok(expected(&[41]))]);
    assert_eq!(trial.seen.take(), [(2, 5), (2, 41)]);
    assert_eq!(trial.figures(), PaddingFigures { places: 101 + 10 + 82, padding: 37 + 2 + 1 });
}

#[test]
fn runs_on_texts_count_as_they_run_whole_and_divided() {
    let (model, seen) = model(Network::Masked, "");
    let batches = Arc::new(TeiBatchCells::default());
    let mut model = model.with_text_batches(Some(&batches));
    let padding = model.padding.as_mut().and_then(Arc::get_mut).unwrap();
    assert!(padding.text_batches.is_none(), "its steps make no tokens of texts");
    padding.text_batches = Some(Arc::clone(&batches));
    let instance = threads::enter(1, |threads| model.new_instance(threads)).unwrap();
    let mut trial = PaddedTrial { model, instance, seen, is_left: false };
    let mut check = |requests: &[&[i64]], want: [u32; 3]| {
        trial.ask(requests);
        let mut page = String::new();
        encode_tei(&mut page, &[], &batches, 0);
        let [runs, texts, tokens] = want;
        let lines = [
            format!("te_batch_next_size_count {runs}"),
            format!("te_batch_next_size_sum {texts}"),
            format!("te_batch_next_tokens_count {runs}"),
            format!("te_batch_next_tokens_sum {tokens}"),
        ];
        lines.iter().for_each(|line| assert!(page.lines().any(|have| have == line), "{line}\n{page}"));
    };
    check(&[&[5], &[5], &[6]], [2, 3, 16]);
    check(&[&[7; 5], &[7; 4]], [4, 12, 79]);
    // The proof that follows is no run for clients.
    check(&[&[3, 40], &[5]], [6, 15, 127]);
    check(&[&[3, 40, 5], &[41]], [8, 19, 216]);
}

#[test]
fn answers_are_those_alone_on_either_side_with_any_multiple() {
    for members in ["", r#", "side": "left""#, r#", "multiple_of": 4"#, r#", "side": "left", "multiple_of": 4"#] {
        let mut trial = PaddedTrial::proven(members);
        let lengths: [i64; 8] = [40, 3, 4, 39, 1, 2, 41, 20];
        assert_eq!(trial.ask(&[&lengths]), [Ok(expected(&lengths))], "{members}");
        assert!(trial.seen.take().len() > 1, "{members}");
        let each: Vec<&[i64]> = lengths.chunks(1).collect();
        let want: Vec<_> = each.iter().map(|lengths| Ok(expected(lengths))).collect();
        assert_eq!(trial.ask(&each), want, "{members}");
        assert!(trial.seen.take().iter().any(|(rows, _)| *rows > 1), "{members}");
        for lengths in each {
            assert_eq!(trial.ask(&[lengths]), [Ok(expected(lengths))], "{members}");
        }
        assert!(trial.seen.take().iter().all(|(rows, _)| *rows == 1));
    }
}

#[test]
fn the_oldest_request_is_answered_first_and_all_before_the_next_batch() {
    let mut trial = PaddedTrial::proven("");
    trial.seen.answered.store(0, Ordering::SeqCst);
    trial.ask(&[&[40, 3], &[100], &[4], &[101], &[300]]);
    let runs = trial.seen.take_runs();
    assert_eq!(runs, [(1, 40, 0), (2, 4, 0), (2, 101, 2), (1, 300, 4)], "rows, places, answers before it");
    assert!(runs.len() <= 6, "at most a run for each row");
}

/// The bound of a wait: the oldest request of a batch is answered after at most a run for each of its rows, and any other after
/// one for each of its rows and of those before it; the next batch begins behind all of them.
#[test]
fn no_request_waits_for_more_runs_than_it_and_older_ones_have_rows() {
    let mut trial = PaddedTrial::proven("");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for round in 0..200 {
        let requests: Vec<Vec<i64>> =
            (0..=next(5)).map(|_| (0..=next(4)).map(|_| 14 + (next(8) * next(8) * next(8)) as i64).collect()).collect();
        let lengths: Vec<&[i64]> = requests.iter().map(Vec::as_slice).collect();
        trial.seen.answered.store(0, Ordering::SeqCst);
        trial.ask(&lengths);
        let runs = trial.seen.take_runs();
        let mut rows = 0;
        for (index, request) in requests.iter().enumerate() {
            rows += request.len();
            // The runs that began before the answers to this request and all older ones.
            let waited = runs.iter().filter(|(_, _, answered)| *answered <= index).count();
            assert!(waited <= rows, "round {round}, request {index} of {requests:?}: {runs:?}");
        }
        assert!(runs.len() <= rows, "round {round}: {requests:?}: {runs:?}");
    }
}

#[test]
fn rows_never_exceed_those_of_the_model() {
    let mut trial = PaddedTrial::proven("");
    let many = [7; 20];
    assert_eq!(trial.ask(&[&many]), [Ok(expected(&many))]);
    assert_eq!(trial.seen.take(), [(8, 7), (8, 7), (4, 7)]);
}

#[test]
fn a_row_that_fails_fails_its_request_alone() {
    let mut trial = PaddedTrial::proven("");
    let got = trial.ask(&[&[BROKEN, 60], &[12], &[14], &[60, 3]]);
    let want = [Err(Code::Internal), Ok(expected(&[12])), Ok(expected(&[14])), Ok(expected(&[60, 3]))];
    assert_eq!(got, want);
    let places: u32 = trial.seen.take().iter().map(|(rows, _)| rows).sum();
    assert_eq!(places, 5, "the other row of the failed request does not run");
}

#[test]
fn rows_of_clients_that_left_do_not_run() {
    let mut trial = PaddedTrial::proven("");
    let answers = TrialAnswers::default();
    let batch = trial.batch(&answers, &[&[5, 80], &[6]]);
    answers.leave();
    trial.instance.run(batch);
    assert!(trial.seen.take().is_empty());
    let codes: Vec<_> = answers.outputs(2).into_iter().map(|answer| answer.unwrap_err().code()).collect();
    assert_eq!(codes, [Code::Cancelled; 2]);
}

#[test]
fn a_network_that_does_not_mask_has_rows_of_one_length_together() {
    let mut trial = PaddedTrial::new(Network::Unmasked, "");
    trial.ask(&[&[3], &[40]]);
    trial.seen.take();
    assert_eq!(
        trial.ask(&[&[3, 4, 40], &[3], &[41]]),
        [Ok(expected(&[3, 4, 40])), Ok(expected(&[3])), Ok(expected(&[41]))]
    );
    assert_eq!(trial.seen.take(), [(2, 3), (1, 4), (1, 40), (1, 41)]);
}

#[test]
fn outputs_that_are_not_of_rows_leave_requests_whole() {
    let mut trial = PaddedTrial::new(Network::Square, "");
    for _ in 0..2 {
        assert!(trial.ask(&[&[3, 40], &[4]]).iter().all(Result::is_ok));
    }
    assert_eq!(trial.seen.take(), [(2, 40), (1, 4), (1, 3), (2, 40), (2, 40), (1, 4)], "one proof");
}

#[test]
fn a_proof_that_fails_is_tried_three_times() {
    let mut trial = PaddedTrial::new(Network::Failing, "");
    let mut runs = Vec::new();
    for _ in 0..5 {
        assert!(trial.ask(&[&[3], &[40]]).iter().all(Result::is_ok));
        runs.push(trial.seen.take().len());
    }
    assert_eq!(runs, [4, 4, 4, 2, 2]);
}

#[test]
fn an_engine_that_answers_later_is_proven_and_takes_more_padding() {
    let mut trial = PaddedTrial::new(Network::Later, "");
    assert_eq!(trial.ask(&[&[3], &[40]]), [Ok(expected(&[3])), Ok(expected(&[40]))]);
    assert_eq!(trial.seen.take().len(), 4);
    assert_eq!(trial.ask(&[&[3, 60], &[61]]), [Ok(expected(&[3, 60])), Ok(expected(&[61]))]);
    assert_eq!(trial.seen.take(), [(1, 3), (2, 61)]);
    assert_eq!(trial.ask(&[&[3, 60], &[61]]), [Ok(expected(&[3, 60])), Ok(expected(&[61]))]);
    assert_eq!(trial.seen.take(), [(3, 61)]);
}

#[test]
fn lengths_that_do_not_fit_leave_a_request_whole() {
    let mut trial = PaddedTrial::proven("");
    let answers = TrialAnswers::default();
    for wrong in [[0, 40], [3, 41], [-1, 40]] {
        let mut batch = trial.batch(&answers, &[&[3, 40]]);
        batch.requests[0].inputs[2] = tensor(&[2], &wrong);
        trial.instance.run(batch);
        assert_eq!(answers.outputs(1).remove(0).map(|outputs| values(&outputs[0])), Ok(expected(&[3, 40])));
        assert_eq!(trial.seen.take(), [(2, 40)]);
    }
}

#[test]
fn batches_count_with_the_sizes_that_ran_and_stamps_span_all_runs() {
    static NANOS: AtomicUsize = AtomicUsize::new(0);
    fn clock() -> Instant {
        Instant::from_nanos(NANOS.fetch_add(1, Ordering::SeqCst) as u64)
    }
    let mut trial = PaddedTrial::proven("");
    let cells = Arc::new(base::metrics::BatchCells::new(8));
    let answers = TrialAnswers::default();
    let mut batch = trial.batch(&answers, &[&[3, 40, 4], &[90]]);
    batch.clock = clock;
    batch.requests.iter_mut().for_each(|request| request.responder.count_in(Arc::clone(&cells) as Arc<_>));
    trial.instance.run(batch);
    assert_eq!(trial.seen.take(), [(2, 4), (1, 40), (1, 90)]);
    assert_eq!((cells.executions(), cells.rows()), (3, 4));
    let got = answers.take(2);
    assert_eq!(
        got.iter().map(|answer| (answer.batch_rows, answer.has_run())).collect::<Vec<_>>(),
        [(2, true), (1, true)]
    );
}

#[test]
fn such_a_model_runs_on_a_worker() {
    let (model, _) = model(Network::Masked, "");
    assert_eq!((model.may_run_inline(), model.why_not_inline()), (false, "rows of its requests share runs"));
}
