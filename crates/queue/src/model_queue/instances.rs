//! Instances that come to a queue and leave it while it serves (an update of `instance_group`). All stages change under
//! the lock of the queue, so that an instance that polls sees one set of instances. Called by one load thread at a time:
//! the control thread runs one load of a model after the other.
//!
//! ```text
//! join ─► Joining ─ apply ─► Serving ─ apply ─► Leaving ─ nothing left for it ─► Ending ─ thread ends ─► Gone ─ join ─► Joining
//!              └ give_up ─► Gone         ▲  stay  │ └ lost for good, thread ends ─► Gone
//!                                        └────────┘
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::model_queue::ModelQueue;
use crate::parking::{InstanceStage, Parking};
use crate::sync::fence;
use base::time::{Clock, Instant};

/// A change of the instances of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceChange {
    /// The instances that take batches from now on, or still do, each with the index of its group.
    pub serving: Vec<(usize, usize)>,
    /// The instances that leave.
    pub leaving: Vec<usize>,
}

impl ModelQueue {
    /// Returns a place for each new instance of these names, which no other instance may have; `None` if there are too few.
    /// The instances take no batches before [`Self::apply`].
    pub fn join(&self, names: &[String]) -> Option<Vec<usize>> {
        let _queue = self.lock();
        let mut joined = Vec::with_capacity(names.len());
        for name in names {
            let is_free = |parking: &Arc<Parking>| parking.stage() == InstanceStage::Gone && parking.name() == name;
            let reused = self.parkings.all().position(|parking| is_free(parking) && parking.reuse());
            let index = reused.or_else(|| {
                let parking = Parking::new(name.clone());
                parking.set_stage(InstanceStage::Joining);
                self.parkings.add(Arc::new(parking))
            });
            let Some(index) = index else {
                joined.iter().for_each(|index| self.set_stage(*index, InstanceStage::Gone));
                return None;
            };
            self.set_stage(index, InstanceStage::Joining);
            joined.push(index);
        }
        Some(joined)
    }

    /// Instances that joined are not wanted: their threads end.
    pub fn give_up(&self, joined: &[usize]) {
        let queue = self.lock();
        joined.iter().for_each(|index| self.set_stage(*index, InstanceStage::Gone));
        drop(queue);
        self.parkings.wake_all();
    }

    /// The thread of an instance has ended. If the instance was leaving, its place is free.
    pub(crate) fn handle_ended(&self, instance_index: usize) {
        let mut queue = self.lock();
        if self.is_leaving(instance_index) {
            queue.leaving.retain(|leaving| *leaving != instance_index);
            self.set_stage(instance_index, InstanceStage::Gone);
        }
    }

    /// An instance that is leaving stays after all. Returns false if it is gone.
    pub fn stay(&self, instance_index: usize, now: Instant) -> bool {
        let mut queue = self.lock();
        let is_leaving = self.parkings.get(instance_index).is_some_and(|it| it.stage() == InstanceStage::Leaving);
        if is_leaving {
            queue.leaving.retain(|leaving| *leaving != instance_index);
            self.set_stage(instance_index, InstanceStage::Serving);
            queue.batcher.handle_instance_staying(instance_index, now);
            self.admission.handle_idle(instance_index);
        }
        is_leaving
    }

    /// Changes the instances: those that joined take batches from now on, and those that leave take no others.
    pub fn apply(&self, change: &InstanceChange, now: Instant) {
        let mut queue = self.lock();
        for (index, group) in &change.serving {
            let Some(parking) = self.parkings.get(*index) else { continue };
            parking.set_group(*group);
            if parking.stage() == InstanceStage::Joining {
                parking.set_stage(InstanceStage::Serving);
                queue.batcher.handle_instance_added(*index, now);
                self.admission.handle_idle(*index);
            }
        }
        for index in &change.leaving {
            self.set_stage(*index, InstanceStage::Leaving);
            queue.batcher.handle_instance_leaving(*index);
            queue.leaving.push(*index);
            self.admission.handle_gone(*index);
        }
        // A producer that found an instance idle just before it left has queued its request before: with both fences
        // this drain sees the request, or the producer sees that the instance leaves.
        fence(Ordering::SeqCst);
        queue.drain(now, self);
        drop(queue);
        self.parkings.wake_all();
    }

    /// Sleeps until an instance that joined takes batches. Returns false if it never will.
    pub(crate) fn wait_joined(&self, instance_index: usize, clock: Clock) -> bool {
        let Some(parking) = self.parkings.get(instance_index) else { return false };
        let is_joining = || parking.stage() == InstanceStage::Joining && !self.is_stopped();
        if is_joining() {
            parking.take(false);
        }
        while is_joining() {
            parking.announce();
            if !is_joining() {
                parking.clear_parked();
            }
            parking.park(None, clock, None);
        }
        parking.stage() == InstanceStage::Serving
    }

    fn set_stage(&self, instance_index: usize, stage: InstanceStage) {
        self.parkings.get(instance_index).into_iter().for_each(|parking| parking.set_stage(stage));
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::completions::Completions;
    use crate::limits::INSTANCES_ADDED_MAX;
    use crate::model_queue::QueuedSequences;
    use crate::model_queue::poll::PollOutcome;
    use crate::model_queue::queue_producer::QueueProducer;
    use crate::queued_request::QueuedRequest;
    use crate::request_slots::RequestSlots;
    use crate::testing::now;
    use backend::InFlightState;
    use model::{CorrelationId, SequenceMark};
    use scheduler::sequence::{SequencePolicy, SlotStrategy};
    use scheduler::{Entry, Policy, QueueBounds, ShapeKey};

    /// A queue with one instance, `0`, and a client.
    struct Trial {
        model_queue: Arc<ModelQueue>,
        producer: QueueProducer,
        request_slots: Rc<RequestSlots>,
    }

    impl Trial {
        fn new(has_sequences: bool) -> Self {
            let strategy = SlotStrategy::Direct { queue_delay_max: Duration::ZERO, slots_least: 0 };
            let idle_max = Duration::from_secs(3_600);
            let policy = SequencePolicy { strategy, instances: 0, slots: 1, idle_max, is_iterative: false };
            let sequences = has_sequences.then(|| QueuedSequences { model: "m".to_owned(), policy });
            let bounds = QueueBounds { requests: 64, bytes: 64 };
            let parkings = vec![Arc::new(Parking::new("0".to_owned()))];
            let policy = Policy { rows_max: 1, ..Policy::default() };
            let (model_queue, mut producers) = ModelQueue::with_parkings(policy, bounds, 1, parkings, None, sequences);
            let request_slots = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
            Self { model_queue, producer: producers.remove(0), request_slots }
        }

        /// One step: `+1` joins under this name, `do 1 -0` has `1` serve and `0` leave, `x1` gives a joined one up, `!0`
        /// stays; `ask` queues a request, `ask a^`, `ask a`, `ask a$` one of a sequence; `0` polls with the instance of
        /// this index, `0*` with a batch in flight. Returns what came of it.
        fn step(&mut self, step: &str) -> String {
            let index = |word: &str| word.parse::<usize>().unwrap();
            let queue = Arc::clone(&self.model_queue);
            match step.split_at(1) {
                ("+", name) => match queue.join(&[name.to_owned()]) {
                    Some(joined) => format!("{joined:?}"),
                    None => "full".to_owned(),
                },
                ("x", name) => {
                    queue.give_up(&[index(name)]);
                    String::new()
                }
                ("!", name) => queue.stay(index(name), now()).to_string(),
                ("d", rest) => {
                    let words = || rest.split_whitespace().skip(1);
                    let serving = words().filter(|word| !word.starts_with('-')).map(|word| (index(word), 0)).collect();
                    let leaving = words().filter_map(|word| word.strip_prefix('-')).map(index).collect();
                    queue.apply(&InstanceChange { serving, leaving }, now());
                    String::new()
                }
                ("a", rest) => {
                    self.ask(rest.split_whitespace().nth(1));
                    String::new()
                }
                _ => {
                    let (name, in_flight) = step.strip_suffix('*').map_or((step, 0), |name| (name, 1));
                    let flight = InFlightState { batches: in_flight, has_room: true, ..InFlightState::default() };
                    match queue.poll(index(name), now, &flight) {
                        PollOutcome::Batch(_) => "batch".to_owned(),
                        PollOutcome::Ended => {
                            // Its thread is about to end: the place is not free before.
                            let stage = queue.parking(index(name)).unwrap().stage();
                            assert!(stage == InstanceStage::Ending || queue.is_stopped(), "{step}: {stage:?}");
                            queue.handle_ended(index(name));
                            "ended".to_owned()
                        }
                        PollOutcome::Nothing(_) => "nothing".to_owned(),
                        PollOutcome::Blocked | PollOutcome::Lost => panic!("{step}"),
                    }
                }
            }
        }

        fn ask(&mut self, sequence: Option<&str>) {
            let (ticket, completions) =
                (self.request_slots.open().unwrap(), Arc::clone(self.request_slots.completions()));
            let mark = sequence.map(|word| SequenceMark {
                id: CorrelationId::Text(word.trim_end_matches(['^', '$']).into()),
                is_start: word.ends_with('^'),
                is_end: word.ends_with('$'),
            });
            let token = QueuedRequest { mark, ..QueuedRequest::plain(ticket, completions) };
            let (shape_key, queued_at) = (ShapeKey::new(), now());
            let (priority, timeout, deadline) = (0, Duration::ZERO, None);
            let entry = Entry { token, rows: 1, shape_key, queued_at, priority, timeout, deadline };
            self.producer.submit(entry).ok().unwrap();
        }
    }

    fn check(has_sequences: bool, script: &str, want: &str) {
        let mut trial = Trial::new(has_sequences);
        let steps = script.split(',').map(|step| trial.step(step.trim()));
        let outcomes: Vec<_> = steps.filter(|outcome| !outcome.is_empty()).collect();
        assert_eq!(outcomes.join(" "), want, "{script}");
    }

    #[test]
    fn an_instance_takes_batches_from_the_change_that_adds_it_to_the_one_that_removes_it() {
        check(false, "ask, ask, +1, do 0 1, 0, 1, 0, 1", "[1] batch batch nothing nothing");
        check(false, "+1, do 1 -0, ask, 0, 1", "[1] ended batch");
        check(false, "ask, 0, +1, do 1 -0, ask, 0, 1", "batch [1] ended batch");
        check(false, "ask, 0*, +1, do 1 -0, ask, 0*, 0*, 0, 1", "batch [1] nothing nothing ended batch");
        check(false, "+1, do 1 -0, 0, 0", "[1] ended ended");
        check(false, "+1, x1, +1, +2, do 1 2 -0, ask, 0, 2", "[1] [1] [2] ended batch");
    }

    #[test]
    fn a_place_is_used_again_under_its_name_once_it_is_free() {
        check(false, "+1, do 1 -0, +2, 0, +0, +3", "[1] [2] ended [0] [3]");
        check(false, "+1, do 1 -0, !0, ask, 0, do 1 -0, 0, !0", "[1] true batch ended false");
        let mut trial = Trial::new(false);
        for index in 1..=INSTANCES_ADDED_MAX {
            assert_eq!(trial.step(&format!("+{index}")), format!("[{index}]"));
        }
        assert_eq!(trial.step("+1000"), "full");
        let names: Vec<String> = ["1", "1001"].map(str::to_owned).into();
        trial.step("x1");
        assert_eq!(trial.model_queue.join(&names), None, "all or none");
        assert_eq!(trial.step("+1"), "[1]");
        assert_eq!(trial.model_queue.active_instances(), 1);
    }

    #[test]
    fn sequences_go_on_in_an_instance_that_leaves_and_begin_in_the_others() {
        check(
            true,
            "ask a^, 0, +1, do 1 -0, 0, ask b^, ask a, 0, 1, ask a$, 0, 0",
            "batch [1] nothing batch batch batch ended",
        );
        check(
            true,
            "ask a^, 0, +1, do 1 -0, 0, !0, ask a$, ask b^, 0, 0, 1",
            "batch [1] nothing true batch nothing batch",
        );
        check(true, "+1, do 1 -0, 0, +0, do 0 1, ask a^, ask b^, 0, 1", "[1] ended [0] batch batch");
    }

    #[test]
    fn an_instance_that_leaves_is_woken_when_its_last_sequence_has_ended() {
        let mut trial = Trial::new(true);
        for step in ["ask a^", "0", "+1", "do 1 -0", "0"] {
            trial.step(step);
        }
        let parking = Arc::clone(trial.model_queue.parking(0).unwrap());
        parking.announce();
        trial.model_queue.depart(CorrelationId::Text("a".into()), now());
        assert_eq!(trial.step("1"), "nothing", "another one sees that its client left");
        assert!(!parking.is_parked());
        assert_eq!((trial.step("0").as_str(), parking.stage()), ("ended", InstanceStage::Gone));
    }
}
