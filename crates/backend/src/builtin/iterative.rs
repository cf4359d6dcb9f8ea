//! The built-in `iterative_sequence`: a model that runs a request as often as its input says, as the
//! backend of that name in Triton's tests (`iterative_sequence.cc`). After each run except the last it
//! reschedules the request, which `sequence_batching { iterative_sequence: true }` allows. A decoupled
//! model answers each run with the number of runs left; any other answers once, with the number of runs. The
//! parameter `execute_delay_ms` is the duration of a run; without it Triton's takes half a second ([`Iterative::as_tritons`]). Bounded by the slots of an instance.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::builtin::identity::{delay, wait};
use crate::{Backend, Batch, Instance, LoadedModel, Request, Threads};
use base::error::Error;
use base::tensor::{Datatype, Tensor};
use model::{ModelSpec, TensorSpec};

/// The backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Iterative {
    /// The duration of a run if the model does not set it.
    delay_default: Duration,
}

impl Iterative {
    /// An iterative backend with the duration of a run that Triton's has.
    pub const fn as_tritons() -> Self {
        Self { delay_default: Duration::from_millis(500) }
    }
}

#[derive(Clone, Debug)]
struct IterativeModel {
    spec: Arc<ModelSpec>,
    delay: Duration,
}

/// An instance: the number of runs of each sequence, by slot.
struct SequenceRuns {
    model: IterativeModel,
    by_slot: HashMap<usize, i32>,
}

impl Backend for Iterative {
    fn name(&self) -> &str {
        "iterative_sequence"
    }

    fn load(&self, spec: &Arc<ModelSpec>, _directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        let is_number = |tensors: &[TensorSpec], name: &str| match tensors.first() {
            Some(tensor) => tensor.name == name && tensor.datatype == Datatype::Int32 && tensor.dims.as_slice() == [1],
            None => false,
        };
        if !is_number(&spec.inputs, "INPUT") || !is_number(&spec.outputs, "OUTPUT") {
            return Err(Error::invalid(format!(
                "model '{}': backend 'iterative_sequence' takes 'INPUT' and gives 'OUTPUT', of TYPE_INT32 with dims [ 1 ]",
                spec.name
            )));
        }
        let is_given = spec.parameters.contains_key("execute_delay_ms");
        let delay = if is_given { delay(spec)? } else { self.delay_default };
        Ok(Box::new(IterativeModel { spec: Arc::clone(spec), delay }))
    }
}

impl LoadedModel for IterativeModel {
    fn new_instance(&self, _threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        Ok(Box::new(SequenceRuns { model: self.clone(), by_slot: HashMap::new() }))
    }

    fn may_run_inline(&self) -> bool {
        false
    }
}

impl Instance for SequenceRuns {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, ended, .. } = batch;
        for slot in ended {
            self.by_slot.remove(&slot);
        }
        let input_end = clock();
        let infer_end = wait(clock, self.model.delay);
        for mut request in requests {
            let stamps = &mut request.responder.stamps;
            (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, infer_end, infer_end);
            self.step(request);
        }
    }
}

impl SequenceRuns {
    fn step(&mut self, request: Request) {
        let Request { inputs, mut responder, sequence, .. } = request;
        let Some((input, bytes)) = inputs.first().and_then(|input| Some((input, input.contents.first_chunk::<4>()?)))
        else {
            let text = format!("model '{}' takes one INT32, and none came", self.model.spec.name);
            return responder.send(Err(Error::internal(text)));
        };
        if sequence.as_ref().is_some_and(|row| row.mark.is_none()) {
            // The row has no request: the slot's sequence does not advance.
            return responder.send(Ok(Vec::new()));
        }
        let wanted = i32::from_ne_bytes(*bytes);
        let is_start = sequence.as_ref().and_then(|row| row.mark.as_ref()).is_none_or(|mark| mark.is_start);
        let slot = sequence.map_or(0, |row| row.slot);
        let before = if is_start { None } else { self.by_slot.remove(&slot) };
        let runs = before.unwrap_or(0).saturating_add(1);
        let left = wanted.saturating_sub(runs);
        let is_decoupled = self.model.spec.is_decoupled;
        let number = if is_decoupled { left } else { runs };
        let contents = Bytes::copy_from_slice(&number.to_ne_bytes());
        let output = vec![Tensor { datatype: Datatype::Int32, shape: input.shape.clone(), contents }];
        if left <= 0 {
            return responder.send(Ok(output));
        }
        self.by_slot.insert(slot, runs);
        if is_decoupled {
            responder.send_more(output);
        }
        responder.reschedule(Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::trial::{no_clock, spec, tensor};
    use crate::{Answer, AnswerPart, AnswerSink, Responder, SequenceRow, Ticket};
    use base::time::Stamps;
    use model::{CorrelationId, SequenceMark};

    struct Kept(Sender<(Ticket, Answer)>);

    impl AnswerSink for Kept {
        fn push(&self, ticket: Ticket, answer: Answer) {
            self.0.send((ticket, answer)).unwrap();
        }

        fn wake(&self) {}
    }

    fn model(is_decoupled: bool) -> SequenceRuns {
        let int = Datatype::Int32;
        let spec = ModelSpec { is_decoupled, ..spec(4, &[("INPUT", int, &[1])], &[("OUTPUT", int, &[1])]) };
        let model = IterativeModel { spec: Arc::new(spec), delay: Duration::ZERO };
        SequenceRuns { model, by_slot: HashMap::new() }
    }

    /// Runs rows `slot ^ input` and shows the answers: `*` runs again, `$` is the last.
    fn run(model: &mut SequenceRuns, ended: &[usize], rows: &[(usize, bool, i32)]) -> String {
        let (sender, answers) = channel();
        let sink: Arc<dyn AnswerSink> = Arc::new(Kept(sender));
        let request = |(index, (slot, is_start, input)): (usize, &(usize, bool, i32))| {
            let ticket = Ticket { index: index as u32, generation: 0 };
            let mark = SequenceMark { id: CorrelationId::Own(9), is_start: *is_start, is_end: false };
            Request {
                inputs: vec![tensor(&[1, 1], &[*input])],
                rows: 1,
                responder: Responder::new(Arc::clone(&sink), ticket, Stamps::default()),
                sequence: Some(SequenceRow { slot: *slot, mark: Some(mark), is_ended: false }),
                details: None,
            }
        };
        let requests = rows.iter().enumerate().map(request).collect();
        model.run(Batch { requests, rows: 1, clock: no_clock, ended: ended.to_vec() });
        let shown = |(ticket, answer): (Ticket, Answer)| {
            let outputs = answer.outputs.unwrap();
            let number = |tensor: &Tensor| i32::from_ne_bytes(tensor.contents[..].try_into().unwrap()).to_string();
            let mark = match answer.part {
                AnswerPart::Again => "*",
                AnswerPart::More => "",
                AnswerPart::End | AnswerPart::Last => "$",
            };
            format!("{}:{}{mark}", ticket.index, outputs.first().map(number).unwrap_or_default())
        };
        answers.try_iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_decoupled_model_answers_each_run_with_what_is_left_and_another_once() {
        let mut decoupled = model(true);
        assert_eq!(run(&mut decoupled, &[], &[(0, true, 3), (1, true, 1)]), "0:2 0:* 1:0$");
        assert_eq!(run(&mut decoupled, &[], &[(1, true, 2), (0, false, 3)]), "0:1 0:* 1:1 1:*");
        assert_eq!(run(&mut decoupled, &[], &[(0, false, 3), (1, false, 2)]), "0:0$ 1:0$");
        let mut other = model(false);
        assert_eq!(run(&mut other, &[], &[(0, true, 2), (1, true, -5)]), "0:* 1:1$");
        assert_eq!(run(&mut other, &[], &[(0, false, 2)]), "0:2$");
    }

    #[test]
    fn what_was_ended_is_forgotten_and_a_slot_begins_anew() {
        let mut model = model(false);
        assert_eq!(run(&mut model, &[], &[(0, true, 3), (1, true, 3)]), "0:* 1:*");
        assert_eq!(run(&mut model, &[1], &[(0, true, 2)]), "0:*");
        assert_eq!(model.by_slot, HashMap::from([(0, 1)]));
    }

    #[test]
    fn a_run_takes_as_long_as_the_model_says_and_else_as_tritons() {
        let int = Datatype::Int32;
        let delay_of = |iterative: Iterative, text: Option<&str>| {
            let mut spec = spec(4, &[("INPUT", int, &[1])], &[("OUTPUT", int, &[1])]);
            spec.parameters.extend(text.map(|text| ("execute_delay_ms".to_owned(), text.to_owned())));
            iterative.load(&Arc::new(spec.clone()), Path::new(""))?;
            Ok::<_, Error>(if text.is_some() { delay(&spec)? } else { iterative.delay_default })
        };
        assert_eq!(delay_of(Iterative::default(), None), Ok(Duration::ZERO));
        assert_eq!(delay_of(Iterative::as_tritons(), None), Ok(Duration::from_millis(500)));
        assert_eq!(delay_of(Iterative::as_tritons(), Some("20")), Ok(Duration::from_millis(20)));
        assert!(delay_of(Iterative::as_tritons(), Some("x")).is_err());
    }
}
