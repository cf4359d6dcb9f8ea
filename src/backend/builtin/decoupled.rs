//! The built-ins `repeat` and `square`: decoupled models that answer a request any number of times, as
//! in Triton's tests (`repeat.cc`, the `square` example of its Python backend). `repeat` answers once for
//! each element of `IN`, each after the milliseconds in `DELAY`, and returns from its run after `WAIT`;
//! `square` answers `IN` times with `IN`. A request with delays or many answers is answered from its own
//! thread, so that the instance can run others. Bounded by [`DECOUPLED_THREADS_MAX`], beyond which the
//! instance answers itself and waits. A cancelled request is not answered any further.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use crate::backend::{Backend, Batch, Instance, LoadedModel, Request, Responder, Threads};
use crate::error::Error;
use crate::limits::DECOUPLED_THREADS_MAX;
use crate::model::{ModelSpec, TensorSpec};
use crate::tensor::{Datatype, Shape, Tensor};
use crate::time::Clock;

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
    threads: Arc<AtomicUsize>,
}

/// The most answers without delay that an instance gives itself, without another thread.
const ANSWERS_AT_ONCE: usize = 64;
/// How often to check whether a slow client has read enough.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// The answers and delays that a request asks for.
struct DecoupledPlan {
    answers: RequestedAnswers,
    wait_ms: u64,
    has_index: bool,
}

/// The answers that a request asks for.
enum RequestedAnswers {
    /// Each answer's value, and the milliseconds before it.
    Each(Vec<(i32, u64)>),
    /// One value, and how often. Not a list: the client chooses the count, which must cost no memory.
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
        if !is_as(&spec.inputs, inputs) || !is_as(&spec.outputs, outputs) || spec.has_batch_axis() || !spec.is_decoupled
        {
            return Err(Error::invalid(format!(
                "model '{}': backend '{}' takes {inputs:?} and gives {outputs:?}, without batching and with \
                 'model_transaction_policy {{ decoupled: true }}'",
                spec.name,
                self.name()
            )));
        }
        Ok(Box::new(DecoupledModel { kind: *self, spec: Arc::clone(spec), threads: Arc::default() }))
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
        match self.kind {
            Decoupled::Repeat => {
                let delays: Vec<u64> = numbers(1).into_iter().map(|bytes| u32::from_ne_bytes(bytes).into()).collect();
                if delays.len() != values.len() {
                    let (have, want) = (delays.len(), values.len());
                    return Err(Error::invalid(format!("expected IN and DELAY of one size, got {want} and {have}")));
                }
                let wait_ms = numbers(2).first().map_or(0, |bytes| u32::from_ne_bytes(*bytes).into());
                Ok(DecoupledPlan {
                    answers: RequestedAnswers::Each(values.into_iter().zip(delays).collect()),
                    wait_ms,
                    has_index: true,
                })
            }
            Decoupled::Square => {
                let value = values.first().copied().unwrap_or(0);
                let count = usize::try_from(value).map_err(|_| {
                    Error::invalid(format!("model '{}' answers IN times, and IN is {value}", self.spec.name))
                })?;
                Ok(DecoupledPlan { answers: RequestedAnswers::Times(value, count), wait_ms: 0, has_index: false })
            }
        }
    }

    fn answer(&self, responder: Responder, plan: DecoupledPlan, clock: Clock) {
        let wait = Duration::from_millis(plan.wait_ms);
        if plan.answers.delay_ms() == 0 && plan.answers.len() <= ANSWERS_AT_ONCE {
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
    for index in 0..plan.answers.len() {
        let (value, delay) = plan.answers.get(index);
        pause(clock, Duration::from_millis(delay));
        // The sink has no waker for room, so this polls.
        while !responder.has_room() && !responder.has_left() {
            thread::park_timeout(ROOM_PAUSE);
        }
        if responder.has_left() {
            break;
        }
        responder.stamps.infer_end = clock();
        let element = |datatype, bytes: [u8; 4]| Tensor {
            datatype,
            shape: Shape::from_slice(&[1]),
            contents: Bytes::copy_from_slice(&bytes),
        };
        let mut outputs = vec![element(Datatype::Int32, value.to_ne_bytes())];
        if plan.has_index {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            outputs.push(element(Datatype::Uint32, index.to_ne_bytes()));
        }
        responder.stamps.output_end = clock();
        responder.send_more(outputs);
    }
    responder.stamps.output_end = clock();
    responder.end();
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
    use crate::backend::trial::{no_clock, retyped, spec, tensor};
    use crate::backend::{Answer, AnswerPart, AnswerSink, Ticket};
    use crate::time::Stamps;

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
        let (int, unsigned) = (Datatype::Int32, Datatype::Uint32);
        let (inputs, outputs): (Vec<_>, Vec<_>) = match kind {
            Decoupled::Repeat => (
                vec![("IN", int, &[-1_i64][..]), ("DELAY", unsigned, &[-1]), ("WAIT", unsigned, &[1])],
                vec![("OUT", int, &[1_i64][..]), ("IDX", unsigned, &[1])],
            ),
            Decoupled::Square => (vec![("IN", int, &[1][..])], vec![("OUT", int, &[1][..])]),
        };
        let spec = Arc::new(ModelSpec { is_decoupled, ..spec(0, &inputs, &outputs) });
        kind.load(&spec, Path::new("")).map_err(|error| error.text().to_owned())?;
        Ok(DecoupledModel { kind, spec, threads: Arc::default() })
    }

    /// The values that come, `.` for the end and `!` for an error.
    fn run(kind: Decoupled, values: &[i32], has_left: bool) -> String {
        let (sender, answers) = channel();
        let ticket = Ticket { index: 0, generation: 0 };
        let responder = Responder::new(Arc::new(Kept(sender, has_left)), ticket, Stamps::default());
        let unsigned = |count: usize| retyped(tensor(&[count as i64], &vec![0_i32; count]), Datatype::Uint32);
        let mut inputs = vec![tensor(&[values.len() as i64], values)];
        inputs.extend([unsigned(values.len()), unsigned(1)]);
        let requests = vec![Request { inputs, rows: 1, responder, sequence: None, details: None }];
        load(kind, true).unwrap().run(Batch { requests, rows: 1, clock: no_clock, ended: Vec::new() });
        let shown = |answer: Answer| match (answer.part, answer.outputs) {
            (AnswerPart::More, Ok(outputs)) => {
                i32::from_ne_bytes(outputs[0].contents[..].try_into().unwrap()).to_string()
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
    fn another_configuration_is_refused() {
        assert!(load(Decoupled::Repeat, true).is_ok());
        let refused = load(Decoupled::Square, false).err().unwrap();
        assert!(refused.starts_with("model 'm': backend 'square' takes [(\"IN\", Int32)]"), "{refused}");
    }
}
