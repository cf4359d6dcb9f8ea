//! The source of the batches of a model queue: the scheduler, or the sequence batcher if the model
//! serves sequences. The queue treats both alike, under its lock.

use std::time::Duration;

use crate::queued_request::{QueuedRequest, deadline_exceeded, timeout_expired};
use backend::{SequenceRow, reschedule_refused};
use base::error::{Code, Error};
use base::time::Instant;
use model::{CorrelationId, SequenceMark};
use scheduler::sequence::{
    BrokenRequest, RunId, SequenceBatch, SequenceBatchRow, SequenceEnd, SequenceEntry, Sequences, UnstartedRequest,
};
use scheduler::{self, Claims, Entry, Expired, Expiry, Refused, ReleaseReason, Scheduler};

/// One of the two batchers of [`scheduler`].
pub(super) enum Batcher {
    Queue(Box<Scheduler<QueuedRequest>>),
    Sequences { model: String, sequences: Box<Sequences<CorrelationId, QueuedRequest>> },
}

/// A batch that was formed.
pub(super) struct FormedBatch {
    /// Its rows; only with sequences may a row have no request.
    pub(super) rows: Vec<BatchRow>,
    /// The sum of the rows of its requests.
    pub(super) size: u32,
    pub(super) released: ReleaseReason,
    /// Slots whose sequences ended without a last request: their state is dropped before the batch runs.
    pub(super) ended: Vec<usize>,
}

pub(super) struct BatchRow {
    pub(super) request: Option<QueuedRequest>,
    pub(super) sequence: Option<SequenceRow>,
    /// Names the run of a sequence's request.
    pub(super) flight: Option<RunId>,
}

/// A request that was not accepted, with its error; `None` if the queue was full and may have room
/// after an eviction.
pub(super) struct RejectedRequest {
    pub(super) entry: Entry<QueuedRequest>,
    pub(super) error: Option<Error>,
}

/// A request that no longer waits, with its error.
pub(super) struct EndedRequest {
    pub(super) waiting: QueuedRequest,
    pub(super) error: Error,
}

impl Batcher {
    /// A request arrived. It is returned if the queue is full, and with an error if it can never be
    /// accepted.
    pub(super) fn handle_request(
        &mut self,
        entry: Entry<QueuedRequest>,
        now: Instant,
    ) -> Result<(), Box<RejectedRequest>> {
        match self {
            Self::Queue(scheduler) => scheduler
                .handle_request(entry, now)
                .map_err(|Refused(entry)| Box::new(RejectedRequest { entry, error: None })),
            Self::Sequences { model, sequences } => {
                let (queued_at, shape_key, timeout) = (entry.queued_at, entry.shape_key.clone(), entry.timeout);
                let Some(SequenceMark { id, is_start, is_end }) = entry.token.mark.clone() else {
                    let error =
                        Error::internal("a request without a sequence was queued for a model that serves sequences");
                    return Err(Box::new(RejectedRequest { entry, error: Some(error) }));
                };
                let Entry { token, rows, priority, deadline, .. } = entry;
                let taken =
                    SequenceEntry { token, id, is_start, is_end, shape_key: shape_key.clone(), queued_at, timeout };
                sequences.handle_request(taken, now).map_err(|UnstartedRequest { token }| {
                    let error = unstarted(model, &token);
                    let entry = Entry { token, rows, shape_key, queued_at, priority, timeout, deadline };
                    Box::new(RejectedRequest { entry, error: Some(error) })
                })
            }
        }
    }

    /// A client left a sequence.
    pub(super) fn handle_departure(
        &mut self,
        id: &CorrelationId,
        since: Instant,
        now: Instant,
        claims: &mut impl Claims<QueuedRequest>,
    ) {
        if let Self::Sequences { sequences, .. } = self {
            sequences.handle_departure(id, since, now, claims);
        }
    }

    /// The instance in a parking ran a batch of `rows` rows in `took`.
    pub(super) fn handle_run(&mut self, instance_index: usize, rows: u32, took: Duration, now: Instant) {
        match self {
            Self::Queue(scheduler) => scheduler.handle_run(rows, took),
            Self::Sequences { sequences, .. } => sequences.handle_done(instance_index, now),
        }
    }

    /// The same for a run without another at the same time on its instance.
    pub(super) fn handle_lone_run(&mut self, rows: u32, took: Duration, now: Instant) {
        if let Self::Queue(scheduler) = self {
            scheduler.handle_lone_run(rows, took, now);
        }
    }

    /// A request of an iterative sequence is to run again (`again`), or had its last run. It is
    /// returned with an error if it should run again and its sequence has ended meanwhile.
    pub(super) fn handle_released(
        &mut self,
        flight: RunId,
        again: Option<QueuedRequest>,
        now: Instant,
        claims: &mut impl Claims<QueuedRequest>,
    ) -> Option<EndedRequest> {
        let Self::Sequences { model, sequences } = self else { return None };
        let Some(waiting) = again else {
            sequences.handle_finished(flight, now, claims);
            return None;
        };
        let UnstartedRequest { token } = sequences.handle_rescheduled(flight, waiting, now, claims).err()?;
        // In Triton a sequence whose client has sent the END flag is gone, so that it cannot reschedule.
        let is_end = token.mark.as_ref().is_some_and(|mark| mark.is_end);
        let error = if is_end { reschedule_refused() } else { unstarted(model, &token) };
        Some(EndedRequest { waiting: token, error })
    }

    /// Returns true if requests of iterative sequences run, or may be scheduled to run again.
    pub(super) fn has_flights(&self) -> bool {
        matches!(self, Self::Sequences { sequences, .. } if sequences.flights() > 0)
    }

    /// The instance in a parking was lost.
    pub(super) fn handle_instance_lost(
        &mut self,
        instance_index: usize,
        is_renewed: bool,
        now: Instant,
        claims: &mut impl Claims<QueuedRequest>,
    ) {
        if let Self::Sequences { sequences, .. } = self {
            sequences.handle_instance_lost(instance_index, is_renewed, now, claims);
        }
    }

    /// The instance in a parking was recreated.
    pub(super) fn handle_instance_restored(&mut self, instance_index: usize, now: Instant) {
        if let Self::Sequences { sequences, .. } = self {
            sequences.handle_instance_restored(instance_index, now);
        }
    }

    /// A new instance takes batches from now on.
    pub(super) fn handle_instance_added(&mut self, instance_index: usize, now: Instant) {
        if let Self::Sequences { sequences, .. } = self {
            sequences.handle_instance_added(instance_index, now);
        }
    }

    /// The instance takes no other sequences from now on.
    pub(super) fn handle_instance_leaving(&mut self, instance_index: usize) {
        if let Self::Sequences { sequences, .. } = self {
            sequences.handle_instance_leaving(instance_index);
        }
    }

    /// The instance that was leaving stays.
    pub(super) fn handle_instance_staying(&mut self, instance_index: usize, now: Instant) {
        if let Self::Sequences { sequences, .. } = self {
            sequences.handle_instance_staying(instance_index, now);
        }
    }

    /// Returns true if nothing that waits, or may come, is for this instance alone.
    pub(super) fn is_vacant(&self, instance_index: usize) -> bool {
        match self {
            Self::Queue(_) => true,
            Self::Sequences { sequences, .. } => sequences.is_vacant(instance_index),
        }
    }

    pub(super) fn handle_drain(&mut self) {
        match self {
            Self::Queue(scheduler) => scheduler.handle_drain(),
            Self::Sequences { sequences, .. } => sequences.handle_drain(),
        }
    }

    pub(super) fn evict_cancelled(&mut self, now: Instant, claims: &mut impl Claims<QueuedRequest>) {
        match self {
            Self::Queue(scheduler) => scheduler.evict_cancelled(claims),
            Self::Sequences { sequences, .. } => sequences.evict_cancelled(now, claims),
        }
    }

    pub(super) fn poll_batch(
        &mut self,
        instance_index: usize,
        now: Instant,
        claims: &mut impl Claims<QueuedRequest>,
    ) -> Option<FormedBatch> {
        match self {
            Self::Queue(scheduler) => scheduler.poll_batch(now, claims).map(FormedBatch::from),
            Self::Sequences { sequences, .. } => {
                sequences.poll_batch(instance_index, now, claims).map(FormedBatch::from)
            }
        }
    }

    pub(super) fn poll_ready(
        &mut self,
        instance_index: usize,
        now: Instant,
        claims: &mut impl Claims<QueuedRequest>,
    ) -> bool {
        match self {
            Self::Queue(scheduler) => scheduler.poll_ready(now, claims),
            Self::Sequences { sequences, .. } => sequences.poll_ready(instance_index, now),
        }
    }

    /// Returns the next request that expired, or whose sequence ended.
    pub(super) fn poll_ended(&mut self, now: Instant) -> Option<EndedRequest> {
        match self {
            Self::Queue(scheduler) => scheduler.poll_expired(now).map(|Expired { token, cause }| EndedRequest {
                waiting: token,
                error: match cause {
                    Expiry::Deadline => deadline_exceeded(),
                    Expiry::Timeout => timeout_expired(),
                },
            }),
            Self::Sequences { model, sequences } => sequences.poll_broken(now).map(|BrokenRequest { token, end }| {
                let error = broken(model, &token, end);
                EndedRequest { waiting: token, error }
            }),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Queue(scheduler) => scheduler.poll_timeout(),
            Self::Sequences { sequences, .. } => sequences.poll_timeout(),
        }
    }

    /// Returns an instance whose sequences have new work. Without sequences any instance will do,
    /// so this is `None`.
    pub(super) fn poll_attention(&mut self, now: Instant) -> Option<usize> {
        match self {
            Self::Queue(_) => None,
            Self::Sequences { sequences, .. } => sequences.poll_attention(now),
        }
    }

    /// Returns the requests that wait and could run, and those that wait behind other sequences.
    /// `None` if batches are not formed.
    #[cfg(feature = "test-hooks")]
    pub(super) fn waiting(&self) -> Option<(usize, usize)> {
        match self {
            Self::Queue(scheduler) => scheduler.policy().is_batched.then(|| (scheduler.len(), 0)),
            Self::Sequences { sequences, .. } => {
                let backlogged = sequences.backlogged_requests();
                Some((sequences.len().saturating_sub(backlogged), backlogged))
            }
        }
    }

    /// Returns the rows missing until the next wake-up. 0 with sequences: their requests may be for
    /// any instance.
    pub(super) const fn rows_wanted(&self) -> u32 {
        match self {
            Self::Queue(scheduler) => scheduler.rows_wanted(),
            Self::Sequences { .. } => 0,
        }
    }
}

fn unstarted(model: &str, waiting: &QueuedRequest) -> Error {
    let id = waiting.mark.as_ref().map_or_else(String::new, |mark| mark.id.to_string());
    Error::invalid(format!(
        "inference request for sequence {id} to model '{model}' must specify the START flag on the first request of the \
         sequence"
    ))
}

fn broken(model: &str, waiting: &QueuedRequest, end: SequenceEnd) -> Error {
    let id = waiting.mark.as_ref().map_or_else(String::new, |mark| mark.id.to_string());
    let ended = |code, why: &str| Error::new(code, format!("sequence {id} of model '{model}' was ended: {why}"));
    match end {
        // With it Triton cancels all waiting requests of its sequence.
        SequenceEnd::Cancel => ended(Code::Cancelled, "a request before this one was cancelled"),
        SequenceEnd::Instance => ended(Code::Unavailable, "the instance that held its state was lost"),
        SequenceEnd::Model => unstarted(model, waiting),
        // Triton's text for a sequence in the backlog.
        SequenceEnd::Timeout => Error::unavailable("timeout of the corresponding sequence has been expired"),
        SequenceEnd::End | SequenceEnd::Idle | SequenceEnd::Restart | SequenceEnd::Unload => {
            Error::unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests")
        }
    }
}

impl From<scheduler::EntryBatch<QueuedRequest>> for FormedBatch {
    fn from(batch: scheduler::EntryBatch<QueuedRequest>) -> Self {
        let row = |waiting| BatchRow { request: Some(waiting), sequence: None, flight: None };
        let rows: Vec<_> = batch.tokens.into_iter().map(row).collect();
        debug_assert!(
            !rows.is_empty() && batch.rows as usize >= rows.len(),
            "a batch has a request, of a row at least"
        );
        Self { rows, size: batch.rows, released: batch.released, ended: Vec::new() }
    }
}

impl From<SequenceBatch<QueuedRequest>> for FormedBatch {
    fn from(batch: SequenceBatch<QueuedRequest>) -> Self {
        let SequenceBatch { rows, ended, released } = batch;
        let row = |SequenceBatchRow { slot, token, flight }: SequenceBatchRow<QueuedRequest>| {
            let mark = token.as_ref().and_then(|waiting| waiting.mark.clone());
            let is_ended = ended.contains(&slot);
            BatchRow { request: token, sequence: Some(SequenceRow { slot, mark, is_ended }), flight }
        };
        let rows: Vec<_> = rows.into_iter().map(row).collect();
        let size = rows.iter().filter(|row| row.request.is_some()).count();
        debug_assert!(size > 0, "a batch has a request");
        Self { rows, size: u32::try_from(size).unwrap_or(u32::MAX), released, ended }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use super::*;
    use crate::completions::Completions;
    use crate::model_queue::poll::PollOutcome;
    use crate::model_queue::queue_producer::QueueProducer;
    use crate::model_queue::{ModelQueue, QueuedSequences};
    use crate::parking::Parking;
    use crate::request_slots::RequestSlots;
    use crate::testing::now;
    use backend::details::FLAG_SEQUENCE_START;
    use backend::{self, InFlightState, OutputNeed, OutputNeeds, RequestDetails};
    use model::parameters::{ParameterValue, Parameters};
    use scheduler::sequence::{SequencePolicy, SlotStrategy};
    use scheduler::{Policy, QueueBounds, ShapeKey};

    struct Trial {
        model_queue: Arc<ModelQueue>,
        producer: QueueProducer,
        request_slots: Rc<RequestSlots>,
    }

    impl Trial {
        fn new(instances: usize, slots: usize) -> Self {
            Self::of(instances, slots, false)
        }

        fn of(instances: usize, slots: usize, is_iterative: bool) -> Self {
            let strategy = SlotStrategy::Direct { queue_delay_max: Duration::ZERO, slots_least: 0 };
            let policy = SequencePolicy { strategy, instances, slots, idle_max: Duration::from_secs(60), is_iterative };
            let parkings = (0..instances).map(|index| Arc::new(Parking::new(index.to_string()))).collect();
            let (queue, bounds) =
                (Policy { rows_max: 2, ..Policy::default() }, QueueBounds { requests: 16, bytes: 99 });
            let sequences = Some(QueuedSequences { model: "m".to_owned(), policy });
            let (model_queue, mut producers) = ModelQueue::with_parkings(queue, bounds, 1, parkings, None, sequences);
            Self {
                model_queue,
                producer: producers.remove(0),
                request_slots: Rc::new(RequestSlots::new(Arc::new(Completions::new()))),
            }
        }

        fn submit(&mut self, id: u64, is_start: bool) {
            self.submit_told(id, is_start, |_| ());
        }

        fn submit_told(&mut self, id: u64, is_start: bool, tell: impl FnOnce(&mut QueuedRequest)) {
            let (ticket, completions) =
                (self.request_slots.open().unwrap(), Arc::clone(self.request_slots.completions()));
            let mark = Some(SequenceMark { id: CorrelationId::Number(id), is_start, is_end: false });
            let mut token = QueuedRequest { mark, ..QueuedRequest::plain(ticket, completions) };
            tell(&mut token);
            let (shape_key, queued_at) = (ShapeKey::new(), now());
            let (priority, timeout, deadline) = (0, Duration::ZERO, None);
            let entry = Entry { token, rows: 1, shape_key, queued_at, priority, timeout, deadline };
            assert!(self.producer.submit(entry).ok().unwrap(), "somebody must look");
        }

        /// Polls, and returns the slots of the instance, `-` for a row without a request.
        fn poll(&self, parking: usize) -> String {
            let PollOutcome::Batch(batch) = self.model_queue.poll(parking, now, &InFlightState::default()) else {
                return String::new();
            };
            let row = |request: &backend::Request| {
                let row = request.sequence.clone().unwrap();
                row.mark.map_or("-".to_owned(), |mark| format!("{}:{}", row.slot, mark.id))
            };
            batch.requests.iter().map(row).collect::<Vec<_>>().join(" ")
        }

        fn refusals(&self) -> Vec<String> {
            let answers = std::iter::from_fn(|| self.request_slots.completions().poll_answer());
            answers.filter_map(|(_, answer)| answer.outputs.err()).map(|error| error.text().to_owned()).collect()
        }
    }

    #[test]
    fn whoever_looks_wakes_the_instance_that_something_came_for() {
        let mut trial = Trial::new(2, 2);
        for id in 1..=3 {
            trial.submit(id, true);
        }
        assert_eq!((trial.poll(0), trial.poll(1)), ("0:1 1:3".to_owned(), "0:2".to_owned()));
        assert_eq!((trial.poll(0), trial.poll(1)), (String::new(), String::new()));
        trial.submit(2, false);
        let parking = Arc::clone(trial.model_queue.parking(1).unwrap());
        parking.announce();
        assert_eq!(trial.poll(0), "", "it is not for this one");
        assert!(!parking.is_parked(), "but the other is awake");
        assert_eq!(trial.poll(1), "0:2");
        trial.submit(3, false);
        assert_eq!(trial.poll(0), "- 1:3");
        let counts = trial.model_queue.sequences().unwrap();
        assert_eq!((counts.active(), counts.backlogged()), (3, 0));
    }

    #[test]
    fn what_goes_on_with_a_state_that_died_is_told_so_and_a_stranger_what_it_lacks() {
        let mut trial = Trial::new(1, 2);
        trial.submit(1, true);
        assert_eq!(trial.poll(0), "0:1");
        trial.submit(1, false);
        trial.submit(9, false);
        trial.model_queue.handle_instance_lost(0, true, now());
        assert_eq!(trial.model_queue.sequences().unwrap().ended(SequenceEnd::Instance), 1);
        trial.submit(1, false);
        assert_eq!(trial.poll(0), "");
        let refusals = trial.refusals();
        assert!(
            refusals.iter().any(|text| text.ends_with("the instance that held its state was lost")),
            "{refusals:?}"
        );
        let unstarted = "inference request for sequence 1 to model 'm' must specify the START flag on the first \
                         request of the sequence";
        assert!(refusals.iter().any(|text| text == unstarted), "{refusals:?}");
        assert_eq!(trial.model_queue.sequences().unwrap().unknown(), 2, "sequence 9 never began, and 1 has ended");
        assert_eq!(trial.model_queue.held(), 0, "all are answered");
    }

    fn ask(trial: &Trial) -> Option<backend::Batch> {
        let PollOutcome::Batch(batch) = trial.model_queue.poll(0, now, &InFlightState::default()) else { return None };
        Some(batch)
    }

    #[test]
    fn a_request_that_is_to_run_again_comes_back_whichever_thread_says_so_and_is_waited_for() {
        let mut trial = Trial::of(1, 2, true);
        trial.submit(7, true);
        let request = ask(&trial).unwrap().requests.remove(0);
        assert!(request.sequence.unwrap().mark.unwrap().is_start);
        trial.model_queue.stop();
        assert!(
            matches!(trial.model_queue.poll(0, now, &InFlightState::default()), PollOutcome::Nothing(_)),
            "it is under way"
        );
        let parking = Arc::clone(trial.model_queue.parking(0).unwrap());
        parking.announce();
        std::thread::scope(|scope| {
            scope.spawn(|| request.responder.reschedule(Vec::new()));
        });
        assert!(!parking.is_parked(), "somebody looks");
        let again = ask(&trial).unwrap().requests.remove(0);
        assert!(!again.sequence.unwrap().mark.unwrap().is_start);
        assert!(trial.request_slots.completions().poll_answer().is_none(), "nothing is answered yet");
        again.responder.send(Ok(Vec::new()));
        assert!(trial.request_slots.completions().poll_answer().is_some_and(|(_, answer)| answer.outputs.is_ok()));
        assert!(matches!(trial.model_queue.poll(0, now, &InFlightState::default()), PollOutcome::Ended));
        assert_eq!(trial.model_queue.sequences().unwrap().ended(SequenceEnd::Model), 1);
    }

    #[test]
    fn a_request_that_runs_again_says_the_same_but_that_it_is_the_first() {
        let mut trial = Trial::of(1, 2, true);
        let details = |flags| RequestDetails { id: "7".to_owned(), flags, ..RequestDetails::default() };
        let needs = OutputNeeds([OutputNeed::Nothing, OutputNeed::Whole].into_iter().collect());
        trial.submit_told(7, true, |request| {
            request.details = Some(Arc::new(details(FLAG_SEQUENCE_START)));
            request.output_needs = needs.clone();
        });
        for flags in [FLAG_SEQUENCE_START, 0, 0] {
            let request = ask(&trial).unwrap().requests.remove(0);
            assert_eq!(request.details.as_deref(), Some(&details(flags)));
            assert_eq!(request.responder.output_needs, needs);
            request.responder.reschedule(Vec::new());
        }
        let mut last = ask(&trial).unwrap().requests.remove(0).responder;
        last.set_parameters(Parameters(vec![("n".to_owned(), ParameterValue::Int64(4))]));
        last.send(Ok(Vec::new()));
        let (_, answer) = trial.request_slots.completions().poll_answer().unwrap();
        assert_eq!(answer.parameters.unwrap().0, [("n".to_owned(), ParameterValue::Int64(4))]);
    }

    #[test]
    fn a_request_whose_client_left_does_not_run_again_and_its_ticket_is_free() {
        let mut trial = Trial::of(1, 2, true);
        trial.submit(7, true);
        let request = ask(&trial).unwrap().requests.remove(0);
        trial.request_slots.completions().leave(request.responder.ticket());
        trial.model_queue.depart(CorrelationId::Number(7), now());
        request.responder.reschedule(Vec::new());
        assert!(ask(&trial).is_none());
        assert_eq!(trial.model_queue.sequences().unwrap().ended(SequenceEnd::Cancel), 1);
        assert!(
            trial.request_slots.completions().poll_answer().is_some(),
            "nobody reads it, but its ticket is another's"
        );
    }

    #[test]
    fn what_waits_behind_a_cancelled_request_of_its_sequence_is_cancelled_too() {
        let mut trial = Trial::new(1, 1);
        let mut first = None;
        trial.submit(2, true);
        assert_eq!(trial.poll(0), "0:2");
        assert_eq!(trial.refusals().len(), 1, "its batch was dropped");
        trial.submit_told(1, true, |request| first = Some(request.ticket));
        trial.submit(1, false);
        trial.submit(1, false);
        assert_eq!(trial.poll(0), "", "the other sequence has the slot");
        assert!(trial.request_slots.completions().withdraw(first.unwrap()), "its client leaves");
        trial.model_queue.depart(CorrelationId::Number(1), now());
        assert_eq!(trial.poll(0), "");
        let answers = std::iter::from_fn(|| trial.request_slots.completions().poll_answer());
        let errors: Vec<_> = answers.filter_map(|(_, answer)| answer.outputs.err()).collect();
        let text = "sequence 1 of model 'm' was ended: a request before this one was cancelled";
        assert_eq!(errors, vec![Error::new(Code::Cancelled, text); 2]);
    }

    #[test]
    fn what_follows_a_start_that_was_cancelled_before_an_instance_looked_is_cancelled_too() {
        let mut trial = Trial::new(1, 1);
        let mut first = None;
        trial.submit_told(1, true, |request| first = Some(request.ticket));
        trial.submit(1, false);
        assert!(trial.request_slots.completions().withdraw(first.unwrap()), "its client leaves");
        trial.model_queue.depart(CorrelationId::Number(1), now());
        assert_eq!(trial.poll(0), "");
        let (_, answer) = trial.request_slots.completions().poll_answer().unwrap();
        assert_eq!(answer.outputs.unwrap_err().code(), Code::Cancelled);
        assert_eq!(trial.model_queue.sequences().unwrap().active(), 0);
    }

    #[test]
    fn a_client_that_leaves_ends_its_sequence_when_an_instance_looks() {
        let mut trial = Trial::new(1, 1);
        trial.submit(1, true);
        assert_eq!(trial.poll(0), "0:1");
        assert_eq!(trial.poll(0), "");
        trial.model_queue.depart(CorrelationId::Number(1), now());
        assert_eq!(trial.poll(0), "");
        assert_eq!(trial.model_queue.sequences().unwrap().ended(SequenceEnd::Cancel), 1);
        assert_eq!(trial.model_queue.sequences().unwrap().active(), 0);
    }
}
