//! The built-ins `repeat` and `square`: decoupled models that answer a request any number of times,
//! as in Triton's tests (`repeat.cc`, the `square` example of its Python backend). `repeat` answers
//! once for each element of `IN`, each after the milliseconds in `DELAY`, and returns from its run
//! after `WAIT`; `square` answers `IN` times with `IN`, at the pace and with the failures that its
//! parameters ask for. A model that is not decoupled answers once, or with an error if it would
//! answer more often. A request with delays or many answers is answered from its own thread, so
//! that the instance can run others. Bounded by `DECOUPLED_THREADS_MAX`, beyond which the
//! instance answers itself and blocks. A cancelled request is not answered any further.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use crate::limits::DECOUPLED_THREADS_MAX;
use crate::text::ShapeText;
use crate::{Backend, Batch, Instance, LoadedModel, Request, Responder, Threads};
use base::error::{Code, Error};
use base::tensor::{Datatype, Shape, Tensor};
use base::time::Clock;
use model::{ModelSpec, TensorSpec};

/// The backend of either name.
#[derive(Clone, Copy, Debug)]
pub enum Decoupled {
    /// `repeat`.
    Repeat,
    /// `square`.
    Square,
}

#[derive(Clone)]
struct DecoupledModel {
    kind: Decoupled,
    spec: Arc<ModelSpec>,
    simulated: SimulatedRun,
    threads: Arc<AtomicUsize>,
}

/// The most answers without delay that an instance gives itself, without another thread.
const ANSWERS_AT_ONCE: usize = 64;
/// The pause between checks that a slow client has read enough.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// The effects of the parameters of `square` on each answer, for tests of statistics. A value that
/// is not a number is ignored, as in Triton.
#[derive(Clone, Copy, Debug, Default)]
struct SimulatedRun {
    /// `CUSTOM_INFER_DELAY_NS`.
    infer_delay: Duration,
    /// `CUSTOM_OUTPUT_DELAY_NS`.
    output_delay: Duration,
    /// `CUSTOM_CANCEL_DELAY_NS`.
    cancel_delay: Duration,
    /// `CUSTOM_FAIL_COUNT`: the number of the last non-empty answers that fail.
    fail_count: usize,
    /// `CUSTOM_EMPTY_COUNT`: the number of the last answers that are not sent.
    empty_count: usize,
}

/// The outcome of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimulatedAnswer {
    Sent,
    Failed,
    Empty,
}

impl SimulatedRun {
    fn of(spec: &ModelSpec) -> Self {
        let number = |key: &str| spec.parameters.get(key).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        let delay = |key: &str| Duration::from_nanos(number(key).into());
        let count = |key: &str| usize::try_from(number(key)).unwrap_or(usize::MAX);
        Self {
            infer_delay: delay("CUSTOM_INFER_DELAY_NS"),
            output_delay: delay("CUSTOM_OUTPUT_DELAY_NS"),
            cancel_delay: delay("CUSTOM_CANCEL_DELAY_NS"),
            fail_count: count("CUSTOM_FAIL_COUNT"),
            empty_count: count("CUSTOM_EMPTY_COUNT"),
        }
    }

    /// Returns true if an answer takes no time.
    const fn is_quick(&self) -> bool {
        self.infer_delay.is_zero() && self.output_delay.is_zero() && self.cancel_delay.is_zero()
    }

    /// Returns the outcome of answer `index` of `count`.
    const fn answer(&self, index: usize, count: usize) -> SimulatedAnswer {
        let from_last = count.saturating_sub(index);
        if from_last <= self.empty_count {
            SimulatedAnswer::Empty
        } else if from_last <= self.empty_count.saturating_add(self.fail_count) {
            SimulatedAnswer::Failed
        } else {
            SimulatedAnswer::Sent
        }
    }
}

/// The answers and delays that a request asks for.
struct DecoupledPlan {
    answers: RequestedAnswers,
    wait_ms: u64,
    has_index: bool,
    simulated: SimulatedRun,
    /// The shape of an answer's value.
    shape: Shape,
    /// The model's name, if it may answer once only.
    single: Option<String>,
}

/// The answers that a request asks for.
enum RequestedAnswers {
    /// Each answer's value, and the milliseconds before it.
    Each(Vec<(i32, u64)>),
    /// One value, and the number of answers. Not a list: the client chooses the count, which must
    /// cost no memory.
    Times(i32, usize),
}

impl RequestedAnswers {
    fn len(&self) -> usize {
        match self {
            Self::Each(answers) => answers.len(),
            Self::Times(_, count) => *count,
        }
    }

    /// The milliseconds before all of them.
    fn delay_ms(&self) -> u64 {
        match self {
            Self::Each(answers) => answers.iter().map(|(_, delay)| *delay).sum(),
            Self::Times(..) => 0,
        }
    }

    /// One answer's value, and the milliseconds before it.
    fn get(&self, index: usize) -> (i32, u64) {
        match self {
            Self::Each(answers) => answers.get(index).copied().unwrap_or_default(),
            Self::Times(value, _) => (*value, 0),
        }
    }
}

impl Backend for Decoupled {
    fn name(&self) -> &str {
        match self {
            Self::Repeat => "repeat",
            Self::Square => "square",
        }
    }

    fn load(&self, spec: &Arc<ModelSpec>, _directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let (inputs, outputs): (&[_], &[_]) = match self {
            Self::Repeat => (
                &[("IN", Datatype::Int32), ("DELAY", Datatype::Uint32), ("WAIT", Datatype::Uint32)],
                &[("OUT", Datatype::Int32), ("IDX", Datatype::Uint32)],
            ),
            Self::Square => (&[("IN", Datatype::Int32)], &[("OUT", Datatype::Int32)]),
        };
        let is_as = |have: &[TensorSpec], want: &[(&str, Datatype)]| {
            have.iter().map(|tensor| (tensor.name.as_str(), tensor.datatype)).eq(want.iter().copied())
        };
        if !is_as(&spec.inputs, inputs) || !is_as(&spec.outputs, outputs) {
            let name = self.name();
            let text = format!("model '{}': backend '{name}' takes {inputs:?} and gives {outputs:?}", spec.name);
            return Err(Error::invalid(text));
        }
        let simulated = match self {
            Self::Repeat if spec.has_batch_axis() => {
                return Err(Error::invalid("repeat backend only supports models with max_batch_size == 0"));
            }
            Self::Repeat => SimulatedRun::default(),
            Self::Square => SimulatedRun::of(spec),
        };
        Ok(Box::new(DecoupledModel { kind: *self, spec: Arc::clone(spec), simulated, threads: Arc::default() }))
    }
}

impl LoadedModel for DecoupledModel {
    fn new_instance(&self, _threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(self.clone()))
    }

    /// Answers come from other threads.
    fn may_run_inline(&self) -> bool {
        false
    }
}

impl Instance for DecoupledModel {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, .. } = batch;
        for request in requests {
            match self.plan(&request) {
                Ok(plan) => self.answer(request.responder, plan, clock),
                Err(error) => request.responder.send(Err(error)),
            }
        }
    }
}

impl DecoupledModel {
    fn plan(&self, request: &Request) -> Result<DecoupledPlan, Error> {
        let numbers = |index: usize| -> Vec<[u8; 4]> {
            let contents = request.inputs.get(index).map_or(&[][..], |tensor| &tensor.contents);
            contents.as_chunks::<4>().0.to_vec()
        };
        let values: Vec<i32> = numbers(0).into_iter().map(i32::from_ne_bytes).collect();
        let single = (!self.spec.is_decoupled).then(|| self.spec.name.clone());
        let simulated = self.simulated;
        match self.kind {
            Decoupled::Repeat => {
                let delays: Vec<u64> = numbers(1).into_iter().map(|bytes| u32::from_ne_bytes(bytes).into()).collect();
                let shape =
                    |index: usize| request.inputs.get(index).map(|input| input.shape.clone()).unwrap_or_default();
                let (left, right) = (shape(0), shape(1));
                if left != right || delays.len() != values.len() {
                    let (left, right) = (ShapeText(&left), ShapeText(&right));
                    let text = format!("expected IN and DELAY shape to match, got {left} and {right}");
                    return Err(Error::invalid(text));
                }
                let wait_ms = numbers(2).first().map_or(0, |bytes| u32::from_ne_bytes(*bytes).into());
                Ok(DecoupledPlan {
                    answers: RequestedAnswers::Each(values.into_iter().zip(delays).collect()),
                    wait_ms,
                    has_index: true,
                    simulated,
                    shape: Shape::from_slice(&[1]),
                    single,
                })
            }
            Decoupled::Square => {
                let rank = request.inputs.first().map_or(1, |input| input.shape.len());
                if request.rows > 1 {
                    return Err(Error::invalid("unexpected shape for IN input"));
                }
                let value = values.first().copied().unwrap_or(0);
                let count = usize::try_from(value).map_err(|_| {
                    Error::invalid(format!("model '{}' answers IN times, and IN is {value}", self.spec.name))
                })?;
                let shape = std::iter::repeat_n(1, rank).collect();
                let answers = RequestedAnswers::Times(value, count);
                Ok(DecoupledPlan { answers, wait_ms: 0, has_index: false, simulated, shape, single })
            }
        }
    }

    fn answer(&self, responder: Responder, plan: DecoupledPlan, clock: Clock) {
        let wait = Duration::from_millis(plan.wait_ms);
        let is_quick = plan.answers.delay_ms() == 0 && plan.simulated.is_quick();
        if is_quick && plan.answers.len() <= ANSWERS_AT_ONCE {
            send_answers(responder, plan, clock);
        } else if self.threads.fetch_add(1, Ordering::Relaxed) >= DECOUPLED_THREADS_MAX {
            self.threads.fetch_sub(1, Ordering::Relaxed);
            send_answers(responder, plan, clock);
        } else {
            let threads = Arc::clone(&self.threads);
            let name = self.spec.name.clone();
            let work = move || {
                send_answers(responder, plan, clock);
                threads.fetch_sub(1, Ordering::Relaxed);
            };
            // If no thread can be started, the responder is dropped and answers with an error.
            if thread::Builder::new().name(name).spawn(work).is_err() {
                self.threads.fetch_sub(1, Ordering::Relaxed);
            }
        }
        pause(clock, wait);
    }
}

/// Sends the answers, until the request is cancelled.
fn send_answers(mut responder: Responder, plan: DecoupledPlan, clock: Clock) {
    let now = clock();
    (responder.stamps.input_end, responder.stamps.infer_end) = (now, now);
    let (count, simulated) = (plan.answers.len(), plan.simulated);
    let mut only = None;
    for index in 0..count {
        let (value, delay) = plan.answers.get(index);
        pause(clock, Duration::from_millis(delay));
        // The sink has no waker for room, so this polls.
        while !responder.has_room() && !responder.has_left() {
            thread::park_timeout(ROOM_PAUSE);
        }
        if responder.has_left() {
            pause(clock, simulated.cancel_delay);
            break;
        }
        pause(clock, simulated.infer_delay);
        let kind = simulated.answer(index, count);
        if kind == SimulatedAnswer::Empty {
            continue;
        }
        responder.stamps.infer_end = clock();
        pause(clock, simulated.output_delay);
        let outcome = match kind {
            SimulatedAnswer::Failed => Err(Error::new(Code::Unknown, "simulated failure")),
            SimulatedAnswer::Sent | SimulatedAnswer::Empty => Ok(outputs(&plan, value, index)),
        };
        responder.stamps.output_end = clock();
        if plan.single.is_none() {
            responder.send_part(outcome);
        } else if index == 0 {
            only = Some(outcome);
        }
    }
    responder.stamps.output_end = clock();
    match (plan.single, only) {
        (None, _) => responder.end(),
        (Some(_), Some(outcome)) if count == 1 => responder.send(outcome),
        (Some(model), _) => responder.send(Err(Error::invalid(format!(
            "model '{model}' is not decoupled, so it answers once, and the request asks for {count} answers"
        )))),
    }
}

/// The outputs of one answer.
fn outputs(plan: &DecoupledPlan, value: i32, index: usize) -> Vec<Tensor> {
    let element = |datatype, bytes: [u8; 4]| Tensor {
        datatype,
        shape: plan.shape.clone(),
        contents: Bytes::copy_from_slice(&bytes),
    };
    let mut outputs = vec![element(Datatype::Int32, value.to_ne_bytes())];
    if plan.has_index {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        outputs.push(element(Datatype::Uint32, index.to_ne_bytes()));
    }
    outputs
}

/// Parks until the time is over.
fn pause(clock: Clock, delay: Duration) {
    let until = clock() + delay;
    loop {
        let left = until.since(clock());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::trial::{no_clock, retyped, spec, tensor};
    use crate::{Answer, AnswerPart, AnswerSink, Ticket};
    use base::time::Stamps;

    struct Kept(std::sync::mpsc::Sender<Answer>, bool);

    impl AnswerSink for Kept {
        fn push(&self, _: Ticket, answer: Answer) {
            self.0.send(answer).unwrap();
        }

        fn wake(&self) {}

        fn has_left(&self, _: Ticket) -> bool {
            self.1
        }
    }

    fn load(kind: Decoupled, is_decoupled: bool) -> Result<DecoupledModel, String> {
        load_with(kind, is_decoupled, 0, &[])
    }

    fn load_with(
        kind: Decoupled,
        is_decoupled: bool,
        rows_max: u32,
        parameters: &[(&str, &str)],
    ) -> Result<DecoupledModel, String> {
        let (int, unsigned) = (Datatype::Int32, Datatype::Uint32);
        let (inputs, outputs): (Vec<_>, Vec<_>) = match kind {
            Decoupled::Repeat => (
                vec![("IN", int, &[-1_i64][..]), ("DELAY", unsigned, &[-1]), ("WAIT", unsigned, &[1])],
                vec![("OUT", int, &[1_i64][..]), ("IDX", unsigned, &[1])],
            ),
            Decoupled::Square => (vec![("IN", int, &[1][..])], vec![("OUT", int, &[1][..])]),
        };
        let mut spec = ModelSpec { is_decoupled, ..spec(rows_max, &inputs, &outputs) };
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        spec.parameters.extend(parameters);
        let spec = Arc::new(spec);
        kind.load(&spec, Path::new("")).map_err(|error| error.text().to_owned())?;
        let simulated =
            if matches!(kind, Decoupled::Square) { SimulatedRun::of(&spec) } else { SimulatedRun::default() };
        Ok(DecoupledModel { kind, spec, simulated, threads: Arc::default() })
    }

    fn run(kind: Decoupled, values: &[i32], has_left: bool) -> String {
        run_model(load(kind, true).unwrap(), values, values.len(), has_left)
    }

    /// The values of the answers, each with the size of its shape if that is not one; `.` for the
    /// end, `!` for an error and `?` for one after which the request goes on.
    fn run_model(mut model: DecoupledModel, values: &[i32], delays: usize, has_left: bool) -> String {
        let (sender, answers) = channel();
        let ticket = Ticket { index: 0, generation: 0 };
        let responder = Responder::new(Arc::new(Kept(sender, has_left)), ticket, Stamps::default());
        let unsigned = |count: usize| retyped(tensor(&[count as i64], &vec![0_i32; count]), Datatype::Uint32);
        let shape = [1, values.len() as i64];
        let shape = if model.spec.has_batch_axis() { &shape[..] } else { &shape[1..] };
        let mut inputs = vec![tensor(shape, values)];
        inputs.extend([unsigned(delays), unsigned(1)]);
        let requests = vec![Request { inputs, rows: 1, responder, sequence: None, details: None }];
        model.run(Batch { requests, rows: 1, clock: no_clock, ended: Vec::new() });
        let shown = |answer: Answer| match (answer.part, answer.outputs) {
            (part @ (AnswerPart::More | AnswerPart::Last), Ok(outputs)) => {
                let value = i32::from_ne_bytes(outputs[0].contents[..].try_into().unwrap());
                let rank = "'".repeat(outputs[0].shape.len() - 1);
                format!("{value}{rank}{}", if part == AnswerPart::Last { "." } else { "" })
            }
            (AnswerPart::More, Err(error)) => {
                assert_eq!(error, Error::new(Code::Unknown, "simulated failure"));
                "?".to_owned()
            }
            (AnswerPart::End, Ok(_)) => ".".to_owned(),
            _ => "!".to_owned(),
        };
        answers.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_request_has_as_many_answers_as_it_asks_for_and_then_the_end() {
        assert_eq!(run(Decoupled::Repeat, &[4, 2, 9], false), "4 2 9 .");
        assert_eq!(run(Decoupled::Repeat, &[], false), ".");
        assert_eq!(run(Decoupled::Square, &[3], false), "3 3 3 .");
        assert_eq!(run(Decoupled::Square, &[0], false), ".");
        assert_eq!(run(Decoupled::Square, &[i32::MAX], true), ".", "cancelled, and asked for 32 GB of answers");
        assert_eq!(run(Decoupled::Square, &[-1], false), "!");
    }

    #[test]
    fn a_cancelled_request_is_not_answered_any_further() {
        assert_eq!(run(Decoupled::Repeat, &[4, 2], true), ".");
    }

    #[test]
    fn a_model_that_is_not_decoupled_answers_once_or_with_an_error() {
        let run = |kind, values: &[i32]| run_model(load(kind, false).unwrap(), values, values.len(), false);
        assert_eq!(run(Decoupled::Repeat, &[7]), "7.");
        assert_eq!(run(Decoupled::Repeat, &[7, 8]), "!");
        assert_eq!(run(Decoupled::Repeat, &[]), "!");
        assert_eq!(run(Decoupled::Square, &[1]), "1.");
        assert_eq!(run(Decoupled::Square, &[2]), "!");
    }

    #[test]
    fn square_simulates_the_failures_and_pauses_that_its_parameters_ask_for() {
        let run = |parameters: &[(&str, &str)], count: i32| {
            run_model(load_with(Decoupled::Square, true, 8, parameters).unwrap(), &[count], 1, false)
        };
        let (fail, empty) = (("CUSTOM_FAIL_COUNT", "2"), ("CUSTOM_EMPTY_COUNT", "1"));
        assert_eq!(run(&[], 2), "2' 2' .", "a batch of one");
        assert_eq!(run(&[fail, empty], 4), "4' ? ? .");
        assert_eq!(run(&[fail, empty], 2), "? .");
        assert_eq!(run(&[empty], 1), ".");
        assert_eq!(run(&[("CUSTOM_FAIL_COUNT", "-1"), ("CUSTOM_INFER_DELAY_NS", "x")], 1), "1' .", "no numbers");
        let delays =
            [("CUSTOM_INFER_DELAY_NS", "1000"), ("CUSTOM_OUTPUT_DELAY_NS", "1"), ("CUSTOM_CANCEL_DELAY_NS", "2")];
        let model = load_with(Decoupled::Square, true, 0, &delays).unwrap();
        let SimulatedRun { infer_delay, output_delay, cancel_delay, .. } = model.simulated;
        assert_eq!([infer_delay, output_delay, cancel_delay].map(|delay| delay.as_nanos()), [1000, 1, 2]);
        assert!(!model.simulated.is_quick() && SimulatedRun::default().is_quick());
    }

    #[test]
    fn another_configuration_or_request_is_refused() {
        assert!(load(Decoupled::Repeat, true).is_ok());
        let refused = load_with(Decoupled::Repeat, true, 8, &[]).err().unwrap();
        assert_eq!(refused, "repeat backend only supports models with max_batch_size == 0");
        let int: (&str, Datatype, &[i64]) = ("X", Datatype::Int32, &[1]);
        let refused = Decoupled::Square.load(&Arc::new(spec(0, &[int], &[int])), Path::new("")).err().unwrap();
        assert!(refused.text().starts_with("model 'm': backend 'square' takes [(\"IN\", Int32)]"), "{refused}");
        assert_eq!(run_model(load(Decoupled::Repeat, true).unwrap(), &[1, 2], 3, false), "!");
        let model = load(Decoupled::Repeat, true).unwrap();
        let (sender, _answers) = channel();
        let responder =
            Responder::new(Arc::new(Kept(sender, false)), Ticket { index: 0, generation: 0 }, Stamps::default());
        let inputs = vec![tensor(&[2], &[1, 2]), tensor(&[3], &[0, 0, 0]), tensor(&[1], &[0])];
        let request = Request { inputs, rows: 1, responder, sequence: None, details: None };
        let refused = model.plan(&request).err().unwrap();
        assert_eq!(refused.text(), "expected IN and DELAY shape to match, got [2] and [3]");
    }
}
