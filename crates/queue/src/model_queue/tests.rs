//! The model queue with real threads: tables, and stress tests in which no request may be lost.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use super::*;
use crate::completions::Completions;
use crate::model_queue::poll::PollOutcome;
use crate::queued_request::{deadline_exceeded, timeout_expired};
use crate::request_slots::RequestSlots;
use crate::testing::{hold_at, now};
use backend::{Batch, InFlightState};
use base::policy::AdmissionRule;
use base::tensor::Tensor;
use base::time::Instant;
use model::{CorrelationId, SequenceMark};
use scheduler::{QueuePolicy, ShapeKey};

fn clock() -> Instant {
    Instant::from_micros(1)
}

fn entry(request_slots: &RequestSlots, micros: u64, size: usize) -> Entry<QueuedRequest> {
    let ticket = request_slots.open().unwrap();
    let completions = Arc::clone(request_slots.completions());
    let token = QueuedRequest { size, ..QueuedRequest::plain(ticket, completions) };
    Entry {
        token,
        rows: 1,
        shape_key: ShapeKey::new(),
        queued_at: Instant::from_micros(micros),
        priority: 0,
        timeout: Duration::ZERO,
        deadline: None,
    }
}

/// Queues and wakes, as a shard does at the end of its turn.
fn submit(producer: &mut QueueProducer, entry: Entry<QueuedRequest>) -> Result<(), QueueRefusal> {
    if producer.submit(entry)? {
        producer.model_queue().wake();
    }
    Ok(())
}

/// A refused request leaves its ticket to the next.
fn submit_until_let_in(
    producer: &mut QueueProducer,
    request_slots: &RequestSlots,
    next: impl Fn() -> Entry<QueuedRequest>,
) {
    loop {
        let entry = next();
        let ticket = entry.token.ticket;
        if submit(producer, entry).is_ok() {
            return;
        }
        request_slots.release(ticket);
        std::thread::yield_now();
    }
}

fn model_queue(requests: usize, bytes: usize, shards: usize) -> (Arc<ModelQueue>, Vec<QueueProducer>) {
    let policy = Policy { rows_max: 8, is_batched: true, ..Policy::default() };
    ModelQueue::new(policy, QueueBounds { requests, bytes }, shards, 2)
}

fn request_slots() -> Rc<RequestSlots> {
    Rc::new(RequestSlots::new(Arc::new(Completions::new())))
}

#[test]
fn a_batch_holds_what_all_shards_queued_in_arrival_order() {
    let (model_queue, mut producers) = model_queue(16, 1000, 2);
    let request_slots = request_slots();
    for (producer, micros) in [(0, 10), (1, 5), (0, 20), (1, 15)] {
        submit(&mut producers[producer], entry(&request_slots, micros, 1)).ok().unwrap();
    }
    let batch = model_queue.next_batch(0, clock).unwrap();
    let order: Vec<_> = batch.requests.iter().map(|request| request.responder.ticket().index).collect();
    assert_eq!(order, [1, 0, 3, 2]);
    assert_eq!((batch.rows, model_queue.waiting(), model_queue.executions()), (4, 0, 1));
}

#[cfg(feature = "test-hooks")]
#[test]
fn the_first_batch_waits_for_as_many_requests_as_the_policy_says() {
    let hold = scheduler::hold::FirstBatchHold { requests: 3, backlogged: 0 };
    let policy = Policy { rows_max: 8, is_batched: true, hold, ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 1000 }, 1, 1);
    let request_slots = request_slots();
    let mut sizes = Vec::new();
    for micros in 0..5 {
        submit(&mut producers[0], entry(&request_slots, micros, 1)).ok().unwrap();
        sizes.push(match model_queue.poll(0, clock, &InFlightState::default()) {
            PollOutcome::Batch(batch) => batch.requests.len(),
            PollOutcome::Nothing(again) => {
                assert_eq!(again, Some(clock() + Duration::from_millis(10)), "it looks again by itself");
                0
            }
            _ => panic!("the queue serves"),
        });
    }
    assert_eq!(sizes, [0, 0, 3, 1, 1]);
}

#[test]
fn a_batch_is_counted_once_though_nobody_waits_for_its_first_request_any_more() {
    let (model_queue, mut producers) = model_queue(16, 1000, 1);
    let request_slots = request_slots();
    for micros in 0..3 {
        let entry = entry(&request_slots, micros, 1);
        let pending = request_slots.pending(entry.token.ticket, || ());
        producers[0].submit(entry).ok().unwrap();
        if micros == 1 {
            let batch = model_queue.next_batch(0, clock).unwrap();
            drop(pending);
            assert_eq!(model_queue.batches().rows(), 0, "it runs");
            batch.requests.into_iter().for_each(|request| request.responder.send(Ok(Vec::new())));
            assert_eq!(request_slots.drain(), 2);
        } else {
            std::mem::forget(pending);
        }
    }
    assert_eq!(model_queue.batches().rows(), 2);
    drop(model_queue.next_batch(0, clock));
    assert_eq!(model_queue.batches().rows(), 2, "a batch that its engine forgot");
}

#[test]
fn the_bounds_in_requests_and_bytes_are_exact_and_come_free_again() {
    let (model_queue, mut producers) = model_queue(3, 100, 1);
    let request_slots = request_slots();
    for _ in 0..3 {
        assert!(submit(&mut producers[0], entry(&request_slots, 1, 10)).is_ok());
    }
    assert!(submit(&mut producers[0], entry(&request_slots, 1, 10)).is_err(), "a fourth request");
    drop(model_queue.next_batch(0, clock));
    assert!(submit(&mut producers[0], entry(&request_slots, 1, 101)).is_err(), "more bytes than may wait");
    assert!(submit(&mut producers[0], entry(&request_slots, 1, 100)).is_ok());
    assert!(submit(&mut producers[0], entry(&request_slots, 1, 1)).is_err());
    assert_eq!(model_queue.waiting(), 1);
}

#[test]
fn a_withdrawn_request_never_runs_and_leaves_its_room() {
    let (model_queue, mut producers) = model_queue(2, 100, 1);
    let request_slots = request_slots();
    let gone = entry(&request_slots, 1, 1);
    let ticket = gone.token.ticket;
    submit(&mut producers[0], gone).ok().unwrap();
    let pending = request_slots.pending(ticket, {
        let model_queue = Arc::clone(&model_queue);
        move || model_queue.leave(RequestSize { level: 0, rows: 1, size: 1 })
    });
    drop(pending);
    assert_eq!(model_queue.waiting(), 0);
    submit(&mut producers[0], entry(&request_slots, 2, 1)).ok().unwrap();
    let batch = model_queue.next_batch(1, clock).unwrap();
    assert_eq!(batch.requests.len(), 1);
}

/// Runs the waiting requests for 20 ms; the clock is held from then on.
fn run_for_20_ms(model_queue: &ModelQueue) {
    hold_at(now());
    let batch = model_queue.next_batch(0, now).unwrap();
    hold_at(now() + Duration::from_millis(20));
    drop(batch);
}

#[test]
fn a_request_that_would_be_late_is_refused_at_once_and_one_without_a_deadline_is_not() {
    let policy = Policy { admission: AdmissionRule::Deadline, ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 100 }, 1, 1);
    let request_slots = request_slots();
    let due = |after: Duration| {
        let entry = entry_now(&request_slots);
        Entry { deadline: Some(entry.queued_at + after), ..entry }
    };
    submit(&mut producers[0], due(Duration::from_millis(1))).unwrap();
    run_for_20_ms(&model_queue);
    assert!(matches!(model_queue.poll(0, now, &InFlightState::default()), PollOutcome::Nothing(_)));
    assert!(matches!(submit(&mut producers[0], due(Duration::from_millis(15))), Err(QueueRefusal::Late(_))));
    submit(&mut producers[0], due(Duration::from_secs(1))).unwrap();
    submit(&mut producers[0], entry_now(&request_slots)).unwrap();
    // Two wait, of 20 ms each.
    assert!(matches!(submit(&mut producers[0], due(Duration::from_millis(45))), Err(QueueRefusal::Late(_))));
    assert_eq!(model_queue.waiting(), 2);
}

#[test]
fn a_request_that_would_still_wait_at_its_timeout_is_refused_at_once_and_never_where_nothing_is_before_it() {
    let timeouts = |action| QueuePolicy {
        timeout_action: action,
        timeout_default: Duration::from_millis(30),
        may_override: true,
        ..QueuePolicy::default()
    };
    let levels = [(1, timeouts(TimeoutAction::Reject)), (2, timeouts(TimeoutAction::Delay))];
    let policy = Policy {
        admission: AdmissionRule::Queue,
        priority_levels: 2,
        queue_by_level: levels.into_iter().collect(),
        ..Policy::default()
    };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 100 }, 1, 1);
    let request_slots = request_slots();
    let at = |level, timeout_ms| {
        let mut entry = entry_now(&request_slots);
        entry.token.level = level;
        Entry { priority: level, timeout: Duration::from_millis(timeout_ms), ..entry }
    };
    let mut outcome = |entry| submit(&mut producers[0], entry).map(|_| ());
    outcome(at(1, 0)).unwrap();
    run_for_20_ms(&model_queue);
    assert!(matches!(model_queue.poll(0, now, &InFlightState::default()), PollOutcome::Nothing(_)));
    // Shorter than a run: taken at once if nothing waits.
    outcome(at(1, 1)).unwrap();
    assert!(matches!(outcome(at(1, 1)), Err(QueueRefusal::Stuck(_))), "one waits, for a run of 20 ms");
    outcome(at(1, 0)).unwrap();
    assert!(matches!(outcome(at(1, 0)), Err(QueueRefusal::Stuck(_))), "two wait, and the policy says 30 ms");
    outcome(at(2, 0)).unwrap();
    let late = at(2, 0);
    let late = Entry { deadline: Some(late.queued_at + Duration::from_millis(25)), ..late };
    outcome(late).expect("its client hears of its own deadline when that passes");
    assert_eq!((model_queue.waiting(), model_queue.late()), (4, 2));
}

#[test]
fn answers_of_two_instances_keep_the_order_of_their_requests() {
    let policy = Policy { preserves_order: true, ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 100 }, 1, 2);
    let request_slots = request_slots();
    for micros in 0..2 {
        let entry = entry(&request_slots, micros, 1);
        std::mem::forget(request_slots.pending(entry.token.ticket, || ()));
        submit(&mut producers[0], entry).unwrap();
    }
    let mut batches = [0, 1].map(|parking| model_queue.next_batch(parking, clock)).into_iter().flatten();
    let (first, second) = (batches.next().unwrap(), batches.next().unwrap());
    let answer = |batch: Batch| batch.requests.into_iter().for_each(|request| request.responder.send(Ok(Vec::new())));
    answer(second);
    assert_eq!((request_slots.drain(), model_queue.batches().rows()), (0, 1), "it ran, and waits for its turn");
    answer(first);
    assert_eq!(request_slots.drain(), 2);
}

fn delayed(delay: Duration) -> (Arc<ModelQueue>, Vec<QueueProducer>) {
    let policy = Policy { rows_max: 2, is_batched: true, queue_delay_max: delay, ..Policy::default() };
    ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 100 }, 1, 2)
}

fn entry_now(request_slots: &RequestSlots) -> Entry<QueuedRequest> {
    Entry { queued_at: now(), ..entry(request_slots, 0, 1) }
}

#[test]
fn a_batch_that_may_grow_leaves_when_its_delay_is_over() {
    let delay = Duration::from_millis(20);
    let (model_queue, mut producers) = delayed(delay);
    let request_slots = request_slots();
    let queued = entry_now(&request_slots);
    let queued_at = queued.queued_at;
    submit(&mut producers[0], queued).ok().unwrap();
    let batch = model_queue.next_batch(0, now).unwrap();
    assert!(now().since(queued_at) >= delay);
    assert_eq!((batch.rows, model_queue.released(ReleaseReason::Delay)), (1, 1));
}

#[test]
fn a_batch_that_is_full_does_not_wait_and_one_that_sleeps_is_woken_for_it() {
    let (model_queue, mut producers) = delayed(Duration::from_secs(600));
    std::thread::scope(|scope| {
        let instance = scope.spawn(|| model_queue.next_batch(0, now).unwrap().rows);
        let request_slots = request_slots();
        submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
        while !model_queue.parking(0).unwrap().is_parked() || model_queue.lock().watch.is_none() {
            std::thread::yield_now();
        }
        submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
        assert_eq!(instance.join().unwrap(), 2);
    });
    assert_eq!(model_queue.released(ReleaseReason::Full), 1);
}

#[test]
fn nobody_is_woken_while_the_batch_is_too_small() {
    let queue_delay_max = Duration::from_secs(600);
    let policy = Policy { rows_max: 8, is_batched: true, queue_delay_max, ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 100 }, 2, 1);
    let is_asleep = || model_queue.parking(0).unwrap().is_parked();
    std::thread::scope(|scope| {
        let instance = scope.spawn(|| model_queue.next_batch(0, now).unwrap().rows);
        let request_slots = request_slots();
        submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
        while !is_asleep() || model_queue.parkings.rows_missing() != 7 {
            std::thread::yield_now();
        }
        for producer in [0, 1, 0, 1, 0, 1] {
            submit(&mut producers[producer], entry_now(&request_slots)).ok().unwrap();
            assert!(is_asleep());
        }
        submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
        assert_eq!(instance.join().unwrap(), 8);
    });
}

#[test]
fn an_arrival_of_a_shape_of_its_own_wakes_an_instance() {
    let (model_queue, mut producers) = delayed(Duration::from_secs(600));
    std::thread::scope(|scope| {
        let instance = scope.spawn(|| model_queue.next_batch(0, now).unwrap().rows);
        let request_slots = request_slots();
        submit(&mut producers[0], Entry { shape_key: [4].into_iter().collect(), ..entry_now(&request_slots) })
            .ok()
            .unwrap();
        while model_queue.lock().watch.is_none() {
            std::thread::yield_now();
        }
        submit(&mut producers[0], Entry { shape_key: [5].into_iter().collect(), ..entry_now(&request_slots) })
            .ok()
            .unwrap();
        assert_eq!(instance.join().unwrap(), 1);
    });
    assert_eq!(model_queue.released(ReleaseReason::Shape), 1);
}

#[test]
fn a_deadline_that_comes_while_an_instance_watches_closes_the_batch_in_time() {
    let queue_delay_max = Duration::from_secs(600);
    let policy = Policy { rows_max: 8, is_batched: true, queue_delay_max, ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 100 }, 1, 1);
    // The batch is closed this much before the deadline: a thread of a busy machine may be late.
    model_queue.lock().batcher.handle_run(0, 2, Duration::from_millis(400), Instant::ZERO);
    std::thread::scope(|scope| {
        let instance = scope.spawn(|| model_queue.next_batch(0, now).unwrap().rows);
        let request_slots = request_slots();
        submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
        while model_queue.parkings.rows_missing() != 7 {
            std::thread::yield_now();
        }
        let entry = entry_now(&request_slots);
        let deadline = Some(entry.queued_at + Duration::from_millis(800));
        submit(&mut producers[0], Entry { deadline, ..entry }).ok().unwrap();
        assert_eq!(instance.join().unwrap(), 2);
    });
    assert_eq!(model_queue.released(ReleaseReason::Deadline), 1);
}

#[test]
fn no_wake_up_is_lost_where_batches_wait_to_grow() {
    const COUNT: usize = 4_000;
    let queue_delay_max = Duration::from_secs(600);
    let policy = Policy { rows_max: 4, is_batched: true, queue_delay_max, ..Policy::default() };
    let (model_queue, producers) = ModelQueue::new(policy, QueueBounds { requests: 64, bytes: 1_000 }, 2, 2);
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for parking in 0..2 {
            let (model_queue, served) = (&model_queue, &served);
            scope.spawn(move || {
                while let Some(batch) = model_queue.next_batch(parking, now) {
                    served.fetch_add(batch.requests.len(), Ordering::SeqCst);
                }
            });
        }
        let shards = producers.into_iter().map(|mut producer| {
            scope.spawn(move || {
                let request_slots = request_slots();
                for _ in 0..COUNT / 2 {
                    submit_until_let_in(&mut producer, &request_slots, || entry_now(&request_slots));
                    request_slots.drain();
                }
            })
        });
        shards.collect::<Vec<_>>().into_iter().for_each(|shard| shard.join().unwrap());
        // Full batches leave without the delay's help: nothing else would let this end.
        while served.load(Ordering::SeqCst) < COUNT {
            std::thread::yield_now();
        }
        model_queue.stop();
    });
    assert_eq!(model_queue.executions(), model_queue.released(ReleaseReason::Full));
}

#[test]
fn one_instance_watches_the_delay_and_another_takes_its_place() {
    let (model_queue, mut producers) = delayed(Duration::from_secs(600));
    let request_slots = request_slots();
    submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
    let watches =
        |parking| matches!(model_queue.poll(parking, now, &InFlightState::default()), PollOutcome::Nothing(Some(_)));
    assert!(watches(0) && !watches(1) && watches(0), "the first does, and keeps doing so");
    submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
    assert!(matches!(model_queue.poll(0, now, &InFlightState::default()), PollOutcome::Batch(_)));
    submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
    assert!(watches(1), "the first is busy");
}

#[test]
fn an_instance_that_looks_twice_in_one_poll_watches_the_delay_all_the_same() {
    let (model_queue, mut producers) = delayed(Duration::from_secs(600));
    submit(&mut producers[0], entry_now(&request_slots())).ok().unwrap();
    let mut queue = model_queue.lock();
    queue.drain(now(), &model_queue);
    let until = queue.watch(0);
    assert!(until.is_some());
    // Requests came between the poll and the sleep: it looks again, and finds the same batch.
    queue.unwatch(0);
    assert_eq!(queue.watch(0), until);
    assert_eq!(queue.watch(1), None, "one watches");
}

#[test]
fn what_a_lost_instance_watched_and_was_woken_for_goes_to_another() {
    let (model_queue, mut producers) = delayed(Duration::from_secs(600));
    let request_slots = request_slots();
    let poll = |instance_index: usize, is_lost| {
        model_queue.parking(instance_index).unwrap().take(false);
        let flight = InFlightState { is_lost, ..InFlightState::default() };
        match model_queue.poll_beside(instance_index, now, &mut || flight) {
            WorkPoll::Sleep(until) => until,
            WorkPoll::Work(NextWork::Lost) => None,
            WorkPoll::Work(_) => panic!("there is no batch yet"),
        }
    };
    let is_parked = |instance_index: usize| model_queue.parking(instance_index).unwrap().is_parked();
    submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
    assert!(poll(0, false).is_some() && poll(1, false).is_none(), "the first watches the delay");
    // A shape of its own: the woken instance must look. It is the first, which is lost just then.
    model_queue.wake();
    assert!(!is_parked(0) && is_parked(1));
    assert_eq!(poll(0, true), None);
    assert!(!is_parked(0) && !is_parked(1), "the wake-up was passed on");
    assert!(poll(1, false).is_some(), "and the second watches the delay now");
}

/// Requests that come one by one, in every moment of a poll, while fewer wait than a batch has room for: nothing but the
/// delay ends the wait.
#[test]
fn no_batch_sleeps_beyond_its_delay_whenever_its_requests_come() {
    const ROUNDS: usize = 2_000;
    const TOGETHER: usize = 4;
    let policy =
        Policy { rows_max: 8, is_batched: true, queue_delay_max: Duration::from_micros(100), ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 1000 }, 1, 1);
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Some(batch) = model_queue.next_batch(0, now) {
                taken.fetch_add(batch.requests.len(), Ordering::SeqCst);
            }
        });
        // Also if this thread fails: the instance must end.
        let _stopped = StopOnDrop(&model_queue);
        let request_slots = request_slots();
        for round in 0..ROUNDS {
            let (began, mut waiting) = (now(), Vec::with_capacity(TOGETHER));
            for index in 0..TOGETHER {
                let entry = entry_now(&request_slots);
                waiting.push(request_slots.pending(entry.token.ticket, || ()));
                submit(&mut producers[0], entry).ok().unwrap();
                (0..(round * TOGETHER + index) % 97).for_each(|_| std::hint::spin_loop());
            }
            while taken.load(Ordering::SeqCst) < (round + 1) * TOGETHER {
                assert!(now().since(began) < Duration::from_secs(20), "round {round}: requests wait for ever");
                std::thread::yield_now();
            }
            request_slots.drain();
        }
    });
}

/// More than a batch has room for, in every moment of a poll: another instance takes the rest as
/// soon as its delay is over, while the first may run on.
#[test]
fn a_rest_does_not_wait_for_the_instance_that_took_the_batch_before_it() {
    const ROUNDS: usize = 1_000;
    const TOGETHER: usize = 9;
    let policy =
        Policy { rows_max: 8, is_batched: true, queue_delay_max: Duration::from_micros(100), ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 1000 }, 1, 2);
    let (taken, running, round) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(1));
    std::thread::scope(|scope| {
        for instance in 0..2 {
            let (model_queue, taken, running, round) = (&model_queue, &taken, &running, &round);
            scope.spawn(move || {
                while let Some(batch) = model_queue.next_batch(instance, now) {
                    let all = round.load(Ordering::SeqCst) * TOGETHER;
                    let mut count = taken.fetch_add(batch.requests.len(), Ordering::SeqCst) + batch.requests.len();
                    running.fetch_add(1, Ordering::SeqCst);
                    // It runs until the rest is taken too, or no instance is left to take it: there
                    // are three batches if the producer is held up.
                    while count < all && running.load(Ordering::SeqCst) < 2 && !model_queue.is_stopped() {
                        std::thread::yield_now();
                        count = taken.load(Ordering::SeqCst);
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        let _stopped = StopOnDrop(&model_queue);
        let request_slots = request_slots();
        for number in 0..ROUNDS {
            let (began, mut waiting) = (now(), Vec::with_capacity(TOGETHER));
            round.store(number + 1, Ordering::SeqCst);
            for index in 0..TOGETHER {
                let entry = entry_now(&request_slots);
                waiting.push(request_slots.pending(entry.token.ticket, || ()));
                submit(&mut producers[0], entry).ok().unwrap();
                (0..(number * TOGETHER + index) % 61).for_each(|_| std::hint::spin_loop());
                if number % 100 == 99 && index % 3 == 2 {
                    std::thread::park_timeout(Duration::from_micros(500));
                }
            }
            while taken.load(Ordering::SeqCst) < (number + 1) * TOGETHER {
                assert!(now().since(began) < Duration::from_secs(20), "round {number}: the rest waits for the run");
                std::thread::yield_now();
            }
            request_slots.drain();
        }
    });
}

struct StopOnDrop<'a>(&'a ModelQueue);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn a_stopped_queue_delays_nothing() {
    let (model_queue, mut producers) = delayed(Duration::from_secs(600));
    let request_slots = request_slots();
    submit(&mut producers[0], entry_now(&request_slots)).ok().unwrap();
    model_queue.stop();
    assert_eq!(model_queue.next_batch(0, now).map(|batch| batch.rows), Some(1));
    assert!(model_queue.next_batch(0, now).is_none());
}

#[test]
fn an_instance_of_a_stopped_queue_sleeps_while_its_batch_is_in_flight() {
    let (model_queue, _producers) = model_queue(8, 8, 1);
    let parking = model_queue.parking(0).unwrap();
    model_queue.stop();
    let look_again = Some(Duration::from_millis(1));
    let mut in_flight = || InFlightState { batches: 1, look_again, ..InFlightState::default() };
    let polled = model_queue.poll_beside(0, clock, &mut in_flight);
    assert!(matches!(polled, WorkPoll::Sleep(Some(until)) if until == clock() + Duration::from_millis(1)));
    assert!(parking.is_parked(), "it has not woken itself: it would turn at full speed until the batch ends");
    let polled = model_queue.poll_beside(0, clock, &mut InFlightState::default);
    assert!(matches!(polled, WorkPoll::Work(NextWork::Ended)));
}

#[test]
fn an_instance_that_meets_a_request_whose_time_is_over_refuses_it() {
    let queue_default = QueuePolicy { timeout_default: Duration::from_micros(1), ..QueuePolicy::default() };
    let policy = Policy { rows_max: 8, is_batched: true, queue_default, ..Policy::default() };
    let (model_queue, mut producers) = ModelQueue::new(policy, QueueBounds { requests: 16, bytes: 100 }, 1, 1);
    let request_slots = request_slots();
    let late = entry(&request_slots, 0, 1);
    let ticket = late.token.ticket;
    let ended = Entry { deadline: Some(Instant::ZERO), timeout: Duration::ZERO, ..entry(&request_slots, 1, 1) };
    let ended_ticket = ended.token.ticket;
    submit(&mut producers[0], late).ok().unwrap();
    submit(&mut producers[0], ended).ok().unwrap();
    assert!(matches!(model_queue.poll(0, clock, &InFlightState::default()), PollOutcome::Nothing(None)));
    assert_eq!(model_queue.waiting(), 0);
    let answers: Vec<_> = std::iter::from_fn(|| request_slots.completions().poll_answer()).collect();
    let answers = answers.into_iter().map(|(ticket, answer)| (ticket, answer.outputs.unwrap_err()));
    let want = [(ended_ticket, deadline_exceeded()), (ticket, timeout_expired())];
    assert_eq!(answers.collect::<Vec<_>>(), want);
}

#[test]
fn the_size_of_each_level_is_exact_among_eight_threads() {
    const SIZES: [usize; 2] = [37, 5];
    let level = |entries_max| QueuePolicy { entries_max, ..QueuePolicy::default() };
    let queue_by_level = BTreeMap::from([(1, level(SIZES[0])), (2, level(SIZES[1]))]);
    let policy = Policy { priority_levels: 2, priority_default: 1, queue_by_level, ..Policy::default() };
    let (model_queue, producers) = ModelQueue::new(policy, QueueBounds { requests: 1, bytes: 10_000 }, 8, 1);
    let barrier = std::sync::Barrier::new(8);
    let submit = |mut producer: QueueProducer| {
        let request_slots = request_slots();
        barrier.wait();
        let counts = [1_u64, 2].map(|level| {
            let accepted = (0..64).filter(|_| {
                let mut entry = Entry { priority: level, ..entry(&request_slots, 0, 1) };
                entry.token.level = level;
                submit(&mut producer, entry).is_ok()
            });
            accepted.count()
        });
        (counts, producer, request_slots.completions().clone())
    };
    let submit = &submit;
    let got: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = producers.into_iter().map(|producer| scope.spawn(move || submit(producer))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sums = [0, 1].map(|level| got.iter().map(|(counts, ..)| counts[level]).sum::<usize>());
    assert_eq!((sums, model_queue.waiting()), (SIZES, 42));
    let runs = std::iter::from_fn(|| match model_queue.poll(0, clock, &InFlightState::default()) {
        PollOutcome::Batch(batch) => Some(batch.requests.len()),
        PollOutcome::Ended | PollOutcome::Nothing(_) | PollOutcome::Blocked | PollOutcome::Lost => None,
    });
    assert_eq!((runs.sum::<usize>(), model_queue.waiting()), (42, 0));
}

/// A request whose tensor lives as long as `memory` has two owners.
fn entry_of(request_slots: &RequestSlots, size: usize, memory: &Arc<()>) -> Entry<QueuedRequest> {
    struct Memory {
        bytes: Vec<u8>,
        _owner: Arc<()>,
    }
    impl AsRef<[u8]> for Memory {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    let mut entry = entry(request_slots, 1, size);
    let contents = bytes::Bytes::from_owner(Memory { bytes: vec![0; size], _owner: Arc::clone(memory) });
    let shape = [i64::try_from(size).unwrap()].into_iter().collect();
    entry.token.inputs = vec![Tensor { datatype: base::tensor::Datatype::Uint8, shape, contents }];
    entry
}

/// Queues a request whose client then leaves.
fn submit_and_leave(
    producer: &mut QueueProducer,
    request_slots: &Rc<RequestSlots>,
    entry: Entry<QueuedRequest>,
) -> Result<(), QueueRefusal> {
    let (ticket, room, model_queue) = (entry.token.ticket, entry.token.room(), Arc::clone(producer.model_queue()));
    let outcome = submit(producer, entry);
    match outcome {
        Ok(()) => drop(request_slots.pending(ticket, move || model_queue.leave(room))),
        Err(_) => request_slots.release(ticket),
    }
    outcome
}

#[test]
fn the_memory_of_a_request_whose_client_leaves_is_free_at_once() {
    let (model_queue, mut producers) = model_queue(16, 100, 1);
    let request_slots = request_slots();
    let memory = Arc::new(());
    // More than the ring and twice the queue have room for.
    for _ in 0..100 {
        submit_and_leave(&mut producers[0], &request_slots, entry_of(&request_slots, 60, &memory)).unwrap();
        assert_eq!((Arc::strong_count(&memory), model_queue.held()), (1, 0));
    }
    producers[0].submit(entry_of(&request_slots, 100, &memory)).ok().unwrap();
    assert!(producers[0].submit(entry(&request_slots, 2, 1)).is_err());
    let batch = model_queue.next_batch(0, clock).unwrap();
    assert_eq!(batch.requests[0].inputs[0].contents.len(), 100);
    assert_eq!((Arc::strong_count(&memory), model_queue.held()), (2, 0));
    assert!(producers[0].submit(entry(&request_slots, 2, 100)).is_ok());
}

#[test]
fn a_request_that_an_instance_refuses_leaves_no_memory_behind() {
    let (model_queue, mut producers) = model_queue(16, 100, 1);
    let request_slots = request_slots();
    let memory = Arc::new(());
    let late = Entry { deadline: Some(Instant::ZERO), ..entry_of(&request_slots, 60, &memory) };
    submit(&mut producers[0], late).unwrap();
    assert!(matches!(model_queue.poll(0, clock, &InFlightState::default()), PollOutcome::Nothing(None)));
    assert!(request_slots.completions().poll_answer().is_some_and(|(_, answer)| answer.outputs.is_err()));
    assert_eq!((Arc::strong_count(&memory), model_queue.held()), (1, 0));
}

/// Runs a function while another thread has the lock; it must not wait for that.
fn while_locked<T: Send>(model_queue: &ModelQueue, run: impl FnOnce() -> T + Send) -> T {
    let queue = model_queue.lock();
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        let until = now() + Duration::from_secs(5);
        while !running.is_finished() && now() < until {
            std::thread::yield_now();
        }
        let is_finished = running.is_finished();
        drop(queue);
        let outcome = running.join().unwrap();
        assert!(is_finished, "it waited for the lock");
        outcome
    })
}

#[test]
fn a_shard_never_waits_for_the_lock_and_frees_memory_all_the_same() {
    let (model_queue, mut producers) = model_queue(4, 100, 1);
    let producer = &mut producers[0];
    let outcomes = while_locked(&model_queue, move || {
        let request_slots = request_slots();
        let gone = (0..20).map(|_| submit_and_leave(producer, &request_slots, entry(&request_slots, 1, 100)).is_ok());
        gone.collect::<Vec<_>>()
    });
    // Twice as many as may wait: then it gives up, and does not wait.
    assert_eq!(outcomes.iter().take_while(|is_let_in| **is_let_in).count(), 8);
    assert!(!outcomes[8..].contains(&true), "{outcomes:?}");
    assert_eq!((model_queue.waiting(), model_queue.held()), (0, 0));
    let request_slots = request_slots();
    for _ in 0..4 {
        submit(&mut producers[0], entry(&request_slots, 2, 25)).unwrap();
    }
    assert_eq!(model_queue.next_batch(0, clock).unwrap().requests.len(), 4, "there is room when the lock is free");
}

fn sequence_queue() -> (Arc<ModelQueue>, Vec<QueueProducer>) {
    let strategy = scheduler::sequence::SlotStrategy::Direct { queue_delay_max: Duration::ZERO, slots_least: 0 };
    let (idle_max, is_iterative) = (Duration::from_secs(60), false);
    let policy = SequencePolicy { strategy, instances: 1, slots: 1, idle_max, is_iterative };
    let parkings = vec![Arc::new(Parking::new(String::new()))];
    let bounds = QueueBounds { requests: 16, bytes: 100 };
    let sequences = QueuedSequences { model: "m".to_owned(), policy };
    ModelQueue::with_parkings(Policy::default(), bounds, 1, parkings, None, Some(sequences))
}

fn start(request_slots: &RequestSlots, id: u64, timeout: Duration) -> Entry<QueuedRequest> {
    let mut entry = Entry { timeout, ..entry_now(request_slots) };
    entry.token.mark = Some(SequenceMark { id: CorrelationId::Number(id), is_start: true, is_end: false });
    entry
}

#[test]
fn an_expired_request_is_refused_though_another_thread_has_the_lock_or_panicked_with_it() {
    for dies in [false, true] {
        let (model_queue, mut producers) = sequence_queue();
        let request_slots = request_slots();
        submit(&mut producers[0], start(&request_slots, 1, Duration::ZERO)).unwrap();
        assert!(matches!(model_queue.poll(0, now, &InFlightState::default()), PollOutcome::Batch(_)));
        let timeout = Duration::from_millis(1);
        submit(&mut producers[0], start(&request_slots, 2, timeout)).unwrap();
        let over = now() + timeout;
        if dies {
            std::thread::scope(|scope| {
                let dying = || {
                    let _queue = model_queue.lock();
                    panic!("an instance dies at the queue");
                };
                scope.spawn(dying).join().unwrap_err();
            });
        } else {
            assert!(!while_locked(&model_queue, || model_queue.refuse_expired(over)), "it is to be asked again");
        }
        assert!(model_queue.refuse_expired(over));
        while request_slots.drain() > 0 {}
        assert_eq!(model_queue.waiting(), 0, "it was refused");
    }
}

#[test]
fn cancelled_requests_never_fill_the_queue_however_many_they_are() {
    let (model_queue, mut producers) = model_queue(3, 100, 1);
    let request_slots = request_slots();
    for _ in 0..50 {
        let gone = entry(&request_slots, 1, 1);
        let ticket = gone.token.ticket;
        submit(&mut producers[0], gone).ok().unwrap();
        let model_queue = Arc::clone(&model_queue);
        drop(request_slots.pending(ticket, move || model_queue.leave(RequestSize { level: 0, rows: 1, size: 1 })));
    }
    for _ in 0..3 {
        submit(&mut producers[0], entry(&request_slots, 2, 1)).ok().unwrap();
    }
    assert!(submit(&mut producers[0], entry(&request_slots, 2, 1)).is_err());
    assert_eq!(model_queue.next_batch(0, clock).unwrap().requests.len(), 3);
    assert!(model_queue.lock().batcher.poll_timeout().is_none());
}

#[test]
fn no_wake_up_is_lost_between_a_shard_and_two_sleeping_instances() {
    const COUNT: usize = 4_000;
    let (model_queue, mut producers) = model_queue(1_000, 1_000_000, 1);
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for parking in 0..2 {
            let (model_queue, served) = (Arc::clone(&model_queue), &served);
            scope.spawn(move || {
                while let Some(batch) = model_queue.next_batch(parking, clock) {
                    served.fetch_add(batch.requests.len(), Ordering::SeqCst);
                }
            });
        }
        let request_slots = request_slots();
        for index in 0..COUNT {
            submit_until_let_in(&mut producers[0], &request_slots, || entry(&request_slots, index as u64, 1));
            // Lets the instances fall asleep now and then.
            while index % 64 == 0 && served.load(Ordering::SeqCst) <= index {
                std::thread::yield_now();
            }
            request_slots.drain();
        }
        model_queue.stop();
    });
    assert_eq!(served.load(Ordering::SeqCst), COUNT);
}
