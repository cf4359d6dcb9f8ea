//! Models that serve sequences: a wrapper around an instance of any engine. It adds the control
//! inputs of each row's sequence and stores each sequence's implicit state between requests. The
//! engine sees both as ordinary inputs and outputs. State belongs to the instance, by slot. It has
//! its initial value when a sequence begins, independent of the slot's earlier contents, and a row
//! sees the state of its own slot only. Bounded in bytes by `--sequence-state-bytes-max`: a
//! sequence whose state does not fit is refused.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;

use bytes::Bytes;

use crate::gpu::GpuInstanceFigures;
use crate::{
    Answer, AnswerSink, Batch, Computation, InFlightState, Instance, LoadedModel, ReadyReply, Request, RunWatch,
    Threads, Ticket, wake_afterwards,
};
use base::error::Error;
use base::metrics::Gauge;
use base::tensor::{AlignedBuffer, Datatype, Shape, Tensor, strings};
use base::time::Clock;
use model::{ControlKind, ControlSpec, CorrelationId, InstanceSeat, ModelSpec, SequenceBatching, SequenceMark};

/// The slot and sequence of one row of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceRow {
    /// The slot of the instance.
    pub slot: usize,
    /// The request's mark for the sequence; `None` if the row has no request.
    pub mark: Option<SequenceMark>,
    /// True if the sequence of a row without a request was ended since the previous batch.
    pub is_ended: bool,
}

/// A loaded model whose instances serve sequences.
pub struct StatefulModel {
    inner: Box<dyn LoadedModel>,
    sequence: Arc<SequenceBatching>,
    model: Arc<str>,
    has_batch_axis: bool,
    state_bytes_max: usize,
}

impl StatefulModel {
    /// Wraps a model that was loaded with the configuration [`SequenceBatching::engine`], which has the controls
    /// and states as inputs and outputs. `state_bytes_max` is for each instance.
    pub fn new(
        inner: Box<dyn LoadedModel>,
        spec: &ModelSpec,
        sequence: Arc<SequenceBatching>,
        state_bytes_max: usize,
    ) -> Self {
        let (model, has_batch_axis) = (spec.name.as_str().into(), spec.has_batch_axis());
        Self { inner, sequence, model, has_batch_axis, state_bytes_max }
    }
}

impl LoadedModel for StatefulModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let (sender, changes) = channel();
        Ok(Box::new(StatefulInstance {
            inner: self.inner.new_instance(threads)?,
            sequence: Arc::clone(&self.sequence),
            model: Arc::clone(&self.model),
            has_batch_axis: self.has_batch_axis,
            states: SlotStates { by_slot: HashMap::new(), bytes: 0, bytes_max: self.state_bytes_max },
            sender,
            changes,
        }))
    }

    /// Not inside a shard: requests of one sequence come from all shards, and must reach the same instance.
    fn may_run_inline(&self) -> bool {
        false
    }

    fn why_not_inline(&self) -> &str {
        "its sequences come from all shards"
    }

    /// No run of it is measured.
    fn computation(&self) -> Computation {
        match self.inner.computation() {
            Computation::Elsewhere => Computation::Elsewhere,
            Computation::OfAnyLength | Computation::Short => Computation::OfAnyLength,
        }
    }

    fn process_memory(&self) -> Option<&Gauge> {
        self.inner.process_memory()
    }

    fn gpu_figures(&self) -> Option<Arc<GpuInstanceFigures>> {
        self.inner.gpu_figures()
    }

    fn prepare_instances(&self, spec: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        self.inner.prepare_instances(spec, seats)
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        self.inner.ask_ready(reply)
    }

    fn handle_unload(&self) {
        self.inner.handle_unload();
    }

    fn process_size(&self) -> u64 {
        self.inner.process_size()
    }

    fn refuses_while_lost(&self) -> bool {
        self.inner.refuses_while_lost()
    }
}

struct StatefulInstance {
    inner: Box<dyn Instance>,
    sequence: Arc<SequenceBatching>,
    model: Arc<str>,
    has_batch_axis: bool,
    states: SlotStates,
    sender: Sender<StateChange>,
    /// New states, from the thread on which the engine answers.
    changes: Receiver<StateChange>,
}

/// The new states of a slot.
struct StateChange {
    slot: usize,
    is_end: bool,
    /// `None` for a state that the answer left out: it stays as it is.
    states: Vec<Option<Tensor>>,
}

/// The states of an instance's slots.
struct SlotStates {
    by_slot: HashMap<usize, Vec<Tensor>>,
    /// Bytes of all states, at most `bytes_max`.
    bytes: usize,
    bytes_max: usize,
}

impl Instance for StatefulInstance {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, mut ended, .. } = batch;
        // A decoupled model may have answered since the last run.
        self.store_changes();
        ended.iter().for_each(|slot| drop(self.states.forget(*slot)));
        // The scheduler compares the shapes of clients' inputs only: rows whose states differ in shape
        // must run as separate batches.
        let mut groups: Vec<Vec<Request>> = Vec::new();
        for request in requests {
            let Some(request) = self.add_inputs(request) else { continue };
            let inputs = request.inputs.len() - self.sequence.states.len();
            let shapes = |request: &Request| -> Vec<Shape> {
                request.inputs.iter().skip(inputs).map(|tensor| tensor.shape.clone()).collect()
            };
            let wanted = shapes(&request);
            match groups.iter_mut().find(|group| group.first().is_some_and(|first| shapes(first) == wanted)) {
                Some(group) => group.push(request),
                None => groups.push(vec![request]),
            }
        }
        for requests in groups {
            let rows = requests.iter().fold(0_u32, |sum, request| sum.saturating_add(request.rows));
            self.inner.run(Batch { requests, rows, clock, ended: std::mem::take(&mut ended) });
        }
        self.store_changes();
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        self.inner.poll_flight(clock)
    }

    fn set_threads(&mut self, threads: &Threads) {
        self.inner.set_threads(threads);
    }

    fn set_waker(&mut self, waker: Waker) {
        self.inner.set_waker(waker);
    }

    fn set_watch(&mut self, watch: Arc<RunWatch>) {
        self.inner.set_watch(watch);
    }

    fn event_source(&self) -> Option<Arc<OwnedFd>> {
        self.inner.event_source()
    }
}

impl StatefulInstance {
    /// Adds controls and states to a request's inputs, and wraps its sink so that the new states
    /// are stored. Refuses a request that continues a sequence without its state.
    fn add_inputs(&mut self, mut request: Request) -> Option<Request> {
        let Some(row) = request.sequence.clone() else {
            request.responder.send(Err(Error::internal("a request without a sequence came to a model of sequences")));
            return None;
        };
        let is_start = row.mark.as_ref().is_none_or(|mark| mark.is_start);
        if row.mark.as_ref().is_some_and(|mark| mark.is_start) {
            self.states.forget(row.slot);
            if self.sequence.is_iterative && !self.sequence.states.is_empty() {
                // The model may reschedule the request without new states, which must exist then.
                let initial = self.sequence.states.iter().map(|state| state.initial.clone());
                self.states.put(row.slot, initial.collect());
            }
        }
        let stored = self.states.by_slot.get(&row.slot);
        if stored.is_none() && !is_start && !self.sequence.states.is_empty() {
            let id = row.mark.map_or_else(String::new, |mark| mark.id.to_string());
            let text = format!(
                "the state of sequence {id} of model '{}' is not there: a request of it failed, or it did not fit into \
                 --sequence-state-bytes-max; start the sequence again",
                self.model
            );
            request.responder.send(Err(Error::unavailable(text)));
            return None;
        }
        request.inputs.extend(self.sequence.controls.iter().map(|spec| control(spec, &row, self.has_batch_axis)));
        match stored {
            Some(stored) => request.inputs.extend(stored.iter().cloned()),
            None => request.inputs.extend(self.sequence.states.iter().map(|state| state.initial.clone())),
        }
        if !self.sequence.states.is_empty() {
            let (sequence, sender) = (Arc::clone(&self.sequence), self.sender.clone());
            let wrap = |inner| Arc::new(StateRule { inner, sequence, sender, row }) as Arc<dyn AnswerSink>;
            request.responder.answer_through(wrap);
        }
        Some(request)
    }

    /// Stores the new states, as far as they fit.
    fn store_changes(&mut self) {
        for StateChange { slot, is_end, states } in self.changes.try_iter() {
            let before = self.states.forget(slot).unwrap_or_default();
            if is_end {
                continue;
            }
            let mut before = before.into_iter();
            let states = states.into_iter().zip(&self.sequence.states).map(|(new, spec)| {
                let old = before.next();
                new.or(old).unwrap_or_else(|| spec.initial.clone())
            });
            let states = states.collect();
            self.states.put(slot, states);
        }
    }
}

impl SlotStates {
    fn forget(&mut self, slot: usize) -> Option<Vec<Tensor>> {
        let states = self.by_slot.remove(&slot);
        self.bytes -= states.iter().flatten().map(|state| state.contents.len()).sum::<usize>();
        states
    }

    /// Beyond the bound the state is not stored, and the next request of the sequence is refused.
    fn put(&mut self, slot: usize, states: Vec<Tensor>) {
        let size: usize = states.iter().map(|state| state.contents.len()).sum();
        if let Some(bytes) = self.bytes.checked_add(size).filter(|bytes| *bytes <= self.bytes_max) {
            self.bytes = bytes;
            self.by_slot.insert(slot, states);
        }
    }
}

/// A sink that takes the states out of an answer on its way to the shard.
struct StateRule {
    inner: Arc<dyn AnswerSink>,
    sequence: Arc<SequenceBatching>,
    sender: Sender<StateChange>,
    row: SequenceRow,
}

impl AnswerSink for StateRule {
    fn push(&self, ticket: Ticket, mut answer: Answer) {
        if let (Ok(outputs), Some(mark)) = (&mut answer.outputs, &self.row.mark) {
            let own = |state: &model::StateSpec| {
                let output = outputs.get(state.output)?;
                Some((!output.is_missing()).then(|| copied(output)))
            };
            if let Some(states) = self.sequence.states.iter().map(own).collect() {
                let change = StateChange { slot: self.row.slot, is_end: mark.is_end, states };
                // This fails when the instance was dropped: its sequences end with it.
                let _ = self.sender.send(change);
            }
        }
        if let Ok(outputs) = &mut answer.outputs {
            outputs.truncate(self.sequence.outputs_asked);
        }
        self.inner.push(ticket, answer);
        wake_afterwards(Arc::clone(&self.inner));
    }

    /// Does nothing: `push` has already woken the shard.
    fn wake(&self) {}

    fn has_room(&self, ticket: Ticket) -> bool {
        self.inner.has_room(ticket)
    }

    fn has_left(&self, ticket: Ticket) -> bool {
        self.inner.has_left(ticket)
    }
}

/// The controls and states of a sequence that is one request long, in the order of the model's inputs
/// after those of requests.
pub fn begun_inputs(sequence: &SequenceBatching, has_batch_axis: bool) -> Vec<Tensor> {
    let mark = SequenceMark { id: CorrelationId::Own(0), is_start: true, is_end: true };
    let row = SequenceRow { slot: 0, mark: Some(mark), is_ended: false };
    let controls = sequence.controls.iter().map(|spec| control(spec, &row, has_batch_axis));
    controls.chain(sequence.states.iter().map(|state| state.initial.clone())).collect()
}

/// A copy of a tensor. A slice of a batch's output would keep the memory of the whole output.
fn copied(tensor: &Tensor) -> Tensor {
    let mut buffer = AlignedBuffer::with_capacity(tensor.contents.len());
    buffer.extend_from_slice(&tensor.contents);
    Tensor { contents: buffer.freeze(), ..tensor.clone() }
}

/// The value of a control input for a row, one element.
fn control(spec: &ControlSpec, row: &SequenceRow, has_batch_axis: bool) -> Tensor {
    let mark = row.mark.as_ref();
    let flag = match spec.kind {
        ControlKind::Start => mark.is_some_and(|mark| mark.is_start),
        ControlKind::End => mark.map_or(row.is_ended, |mark| mark.is_end),
        ControlKind::Ready => mark.is_some(),
        ControlKind::CorrelationId => false,
    };
    let bytes = match spec.kind {
        ControlKind::CorrelationId => correlation_id(spec.datatype, mark.map(|mark| &mark.id)),
        _ => spec.values.get(usize::from(flag)).cloned().unwrap_or_default(),
    };
    let shape = if has_batch_axis { Shape::from_slice(&[1, 1]) } else { Shape::from_slice(&[1]) };
    Tensor { datatype: spec.datatype, shape, contents: Bytes::from(bytes) }
}

/// A correlation id as an element. Numbers are truncated to the datatype's size, as in Triton. A text
/// never meets a numeric datatype: the request was checked.
fn correlation_id(datatype: Datatype, id: Option<&CorrelationId>) -> Vec<u8> {
    let number = match id {
        Some(CorrelationId::Number(number) | CorrelationId::Own(number)) => *number,
        _ => 0,
    };
    let element = |text: &[u8]| {
        let mut element = Vec::with_capacity(text.len() + strings::LENGTH_SIZE);
        strings::encode(text, &mut element);
        element
    };
    match (datatype, id) {
        (Datatype::Bytes, Some(CorrelationId::Text(text))) => element(text.as_bytes()),
        (Datatype::Bytes, Some(CorrelationId::Own(number))) => element(number.to_string().as_bytes()),
        (Datatype::Bytes, _) => vec![0; strings::LENGTH_SIZE],
        (Datatype::Int32 | Datatype::Uint32, _) => {
            let [a, b, c, d, ..] = number.to_le_bytes();
            u32::from_le_bytes([a, b, c, d]).to_ne_bytes().to_vec()
        }
        _ => number.to_ne_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::trial::{TrialAnswers, no_clock, tensor};
    use model::config::{CompletionRules, ConfigDraft};

    /// Answers `y = x + s` and `t = x + s` for each row, with controls kept; a negative `x` fails.
    struct Adder(Sender<Vec<Vec<u8>>>);

    impl Instance for Adder {
        fn run(&mut self, batch: Batch) {
            for request in batch.requests {
                let inputs = request.inputs.iter().map(|input| input.contents.to_vec()).collect();
                self.0.send(inputs).unwrap();
                let number = |at: usize| i32::from_ne_bytes(request.inputs[at].contents[..4].try_into().unwrap());
                let (x, s) = (number(0), number(request.inputs.len() - 1));
                let sum = tensor(&[1, 1], &[x + s]);
                let outputs = vec![sum.clone(), sum];
                request.responder.send(if x < 0 { Err(Error::internal("on purpose")) } else { Ok(outputs) });
            }
        }
    }

    fn spec(more: &str) -> ModelSpec {
        let text = format!(
            "backend: 'sequence' max_batch_size: 4 input {{ name: 'x' data_type: TYPE_INT32 dims: 1 }} \
             output {{ name: 'y' data_type: TYPE_INT32 dims: 1 }} sequence_batching {{ {more} }}"
        );
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    const STATE: &str = "state { input_name: 's' output_name: 't' data_type: TYPE_INT32 dims: 1 }";

    struct Trial {
        instance: StatefulInstance,
        seen: Receiver<Vec<Vec<u8>>>,
    }

    impl Trial {
        fn new(more: &str, bytes_max: usize) -> Self {
            let (seen_sender, seen) = channel();
            let (sender, changes) = channel();
            let instance = StatefulInstance {
                inner: Box::new(Adder(seen_sender)),
                sequence: spec(more).sequence.unwrap(),
                model: "m".into(),
                has_batch_axis: true,
                states: SlotStates { by_slot: HashMap::new(), bytes: 0, bytes_max },
                sender,
                changes,
            };
            Self { instance, seen }
        }

        /// Runs rows `slot flags value` and shows each answer: `^` begins, `$` ends, `-` is empty.
        fn run(&mut self, ended: &[usize], rows: &[(usize, &str, i32)]) -> String {
            let answers = TrialAnswers::default();
            let mut batch = answers.batch(rows.iter().map(|row| (vec![tensor(&[1, 1], &[row.2])], 1)).collect());
            for (request, (slot, flags, _)) in batch.requests.iter_mut().zip(rows) {
                let id = CorrelationId::Number(*slot as u64 + 100);
                let mark = SequenceMark { id, is_start: flags.contains('^'), is_end: flags.contains('$') };
                let mark = (!flags.contains('-')).then_some(mark);
                request.sequence = Some(SequenceRow { slot: *slot, mark, is_ended: flags.contains('!') });
            }
            batch.ended = ended.to_vec();
            self.instance.run(batch);
            let shown = |outputs: Result<Vec<Tensor>, Error>| match outputs {
                Ok(outputs) => {
                    assert_eq!(outputs.len(), 1, "states are not answered");
                    i32::from_ne_bytes(outputs[0].contents[..].try_into().unwrap()).to_string()
                }
                Err(error) => error.text().split(' ').next().unwrap().to_owned(),
            };
            answers.outputs(rows.len() as u32).into_iter().map(shown).collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn a_thread_sleeps_on_the_descriptor_of_the_instance_within() {
        struct Foreign(Arc<OwnedFd>);
        impl Instance for Foreign {
            fn run(&mut self, _: Batch) {}

            fn event_source(&self) -> Option<Arc<OwnedFd>> {
                Some(Arc::clone(&self.0))
            }
        }
        let mut trial = Trial::new(STATE, 1_000);
        assert!(trial.instance.event_source().is_none(), "one that waits for no other process");
        let (file, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = Arc::new(OwnedFd::from(file));
        trial.instance.inner = Box::new(Foreign(Arc::clone(&file)));
        assert!(trial.instance.event_source().is_some_and(|seen| Arc::ptr_eq(&seen, &file)));
    }

    #[test]
    fn a_state_goes_with_its_slot_and_begins_anew_with_a_sequence() {
        let mut trial = Trial::new(STATE, 1_000);
        assert_eq!(trial.run(&[], &[(0, "^", 1), (1, "^", 10)]), "1 10");
        assert_eq!(trial.run(&[], &[(1, "", 5), (0, "", 2)]), "15 3");
        assert_eq!(trial.run(&[], &[(0, "-", 7), (1, "$", 1)]), "10 16", "an empty row changes nothing");
        assert_eq!(trial.run(&[], &[(0, "", 4)]), "7");
        assert_eq!(trial.run(&[], &[(0, "^", 4), (1, "^$", 2)]), "8 2".replace('8', "4"), "whatever the slot held");
        assert_eq!(trial.run(&[0], &[(1, "^", 0), (0, "", 1)]), "0 the", "what was ended is forgotten");
        assert_eq!(trial.run(&[], &[(1, "", 1)]), "1");
    }

    #[test]
    fn a_row_that_fails_leaves_the_state_as_it_was() {
        let mut trial = Trial::new(STATE, 1_000);
        assert_eq!(trial.run(&[], &[(0, "^", 1), (1, "^", 2)]), "1 2");
        assert_eq!(trial.run(&[], &[(0, "", -1), (1, "", 2)]), "on 4");
        assert_eq!(trial.run(&[], &[(0, "", 5)]), "6");
    }

    #[test]
    fn states_beyond_the_bound_are_not_kept_and_their_sequences_end() {
        let mut trial = Trial::new(STATE, 4);
        assert_eq!(trial.run(&[], &[(0, "^", 1), (1, "^", 2)]), "1 2");
        assert_eq!(trial.run(&[], &[(0, "", 1), (1, "", 2)]), "2 the");
        assert_eq!(trial.run(&[0], &[(1, "^", 2)]), "2");
        assert_eq!(trial.run(&[], &[(1, "", 2)]), "4", "there is room again");
    }

    #[test]
    fn controls_tell_of_each_row_and_of_what_ended_in_an_empty_one() {
        let control = |name: &str, rest: &str| format!("control_input {{ name: '{name}' control {{ {rest} }} }}");
        let more = [
            control("start", "kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ]"),
            control("end", "kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 1 ]"),
            control("ready", "kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ]"),
            control("id", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64"),
        ];
        let mut trial = Trial::new(&(more.concat() + STATE), 1_000);
        trial.run(&[], &[(0, "^", 1), (1, "-!", 0), (2, "^$", 3)]);
        let shown = |inputs: Vec<Vec<u8>>| {
            let start = i32::from_ne_bytes(inputs[1][..].try_into().unwrap());
            let end = f32::from_ne_bytes(inputs[2][..].try_into().unwrap());
            let id = u64::from_ne_bytes(inputs[4][..].try_into().unwrap());
            (start, end.to_string(), inputs[3][0], id)
        };
        let rows: Vec<_> = trial.seen.try_iter().map(shown).collect();
        let row = |start, end: &str, ready, id| (start, end.to_owned(), ready, id);
        assert_eq!(rows, [row(1, "0", 1, 100), row(0, "1", 0, 0), row(1, "1", 1, 102)]);
    }

    #[test]
    fn ids_are_elements_of_every_datatype() {
        let number = CorrelationId::Number(0x1_0000_0002);
        let text = CorrelationId::from_text("ab").unwrap();
        assert_eq!(correlation_id(Datatype::Uint64, Some(&number)), 0x1_0000_0002_u64.to_ne_bytes());
        assert_eq!(correlation_id(Datatype::Int64, Some(&number)), 0x1_0000_0002_u64.to_ne_bytes());
        assert_eq!(correlation_id(Datatype::Uint32, Some(&number)), 2_u32.to_ne_bytes(), "cut, as Triton does");
        assert_eq!(correlation_id(Datatype::Int32, None), [0; 4]);
        assert_eq!(correlation_id(Datatype::Bytes, Some(&text)), [2, 0, 0, 0, b'a', b'b']);
        assert_eq!(correlation_id(Datatype::Bytes, None), [0; 4]);
    }

    /// An instance that was lost.
    struct Lost;

    impl Instance for Lost {
        fn run(&mut self, _: Batch) {}

        fn poll_flight(&mut self, _: Clock) -> InFlightState {
            InFlightState { is_lost: true, ..InFlightState::default() }
        }
    }

    #[test]
    fn an_instance_that_was_lost_inside_is_lost() {
        let mut trial = Trial::new(STATE, 100);
        assert!(!trial.instance.poll_flight(no_clock).is_lost);
        trial.instance.inner = Box::new(Lost);
        assert!(trial.instance.poll_flight(no_clock).is_lost);
    }
}
