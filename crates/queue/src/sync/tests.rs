//! The model check: small scenarios of shards and instances, run by loom in every order of their
//! steps up to a number of preemptions, and with every value that the memory model lets a thread
//! read. A thread that sleeps forever is a deadlock: time stands still, so no timer can hide a lost
//! wake-up.
//!
//! It runs the real code of `closable_queue`, `model_queue`, `parkings`, `queue_producer`, `completions`, `request_slots`,
//! `deferred_wakes`, `response_order` and `semaphore`. Stand-ins (`checked.rs`) replace the rings, the queues, the
//! wakers and thread parking, whose correctness is their crates' business. Counters that no protocol depends on
//! (admission, metrics) are the standard library's and change in one step. Not covered: the executor's own wake-up
//! across threads, and the end of a delay, which `model_queue`'s tests and the simulator cover.
//!
//! That it can fail: each run plants the [`PlantedFault`]s. Besides, it was seen to find each of these changes when
//! made by hand: no second poll before parking; the parked mark set only after that poll; no fence in
//! `Parkings::handle_queued`, or in `Parkings::await_rows`; no check of the rings after that; no wake-up for what a
//! batch leaves in the queue, or for an instance that was woken while it took a batch; a thread that sleeps by its token
//! while its parking is woken by the file; a waker registered without a second drain; a withdrawn request that keeps its tensors. And it found a real fault: a queue that was stopped
//! between an instance's poll and its end left a batch behind that waited to grow. (The fence in `Parkings::wake` is
//! redundant as long as each `handle_queued` has its own.)

use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::closable_queue::ClosableQueue;
use crate::completions::Completions;
use crate::deferred_wakes::DeferredWakes;
use crate::model_queue::queue_producer::QueueProducer;
use crate::model_queue::{ModelQueue, NextWork};
use crate::parking::Parking;
use crate::queued_request::QueuedRequest;
use crate::request_slots::{PendingAnswer, RequestSlots};
use crate::semaphore::{AcquireFuture, Semaphore};
use crate::sync::checked::{PlantedFault, plant};
use crate::sync::{Mutex, Thread, current, park};
use backend::{Answer, Batch, InFlightState, answering};
use base::tensor::{Datatype, Tensor};
use base::time::Instant;
use scheduler::{Entry, Policy, QueueBounds, ShapeKey};

/// Bytes of a request.
const SIZE: usize = 1;

/// A batch that may grow waits forever.
const DELAY: Duration = Duration::from_secs(3_600);

fn clock() -> Instant {
    Instant::from_micros(1)
}

/// Runs a scenario in every order with at most `preemptions` preemptions; with at most two unless `.ci/run interleave` asks
/// for all orders, most of which are those with more.
fn check(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    run(if is_whole() { preemptions } else { preemptions.min(2) }, scenario);
}

/// The same for a scenario whose two preemptions take minutes: one, unless all orders are asked for.
fn check_long(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    run(if is_whole() { preemptions } else { 1 }, scenario);
}

fn is_whole() -> bool {
    std::env::var("DEUTERON_TESTS").is_ok_and(|tests| tests == "interleave")
}

fn run(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 5_000;
    model.check(scenario);
}

/// Any number of requests up to four in one batch, which does not wait.
fn eager() -> Policy {
    Policy { rows_max: 4, is_batched: true, ..Policy::default() }
}

/// Each request alone in its batch.
fn single() -> Policy {
    Policy { rows_max: 4, ..Policy::default() }
}

/// Batches of exactly `rows_max` requests.
fn patient(rows_max: u32) -> Policy {
    Policy { rows_max, is_batched: true, queue_delay_max: DELAY, ..Policy::default() }
}

const BOUNDS: QueueBounds = QueueBounds { requests: 4, bytes: 4 * SIZE };

/// The part of a shard for requests and answers.
struct Shard {
    producer: QueueProducer,
    request_slots: Rc<RequestSlots>,
    deferred_wakes: Rc<DeferredWakes>,
    /// Shared by the tensors of its requests, as long as there are any.
    memory: Arc<()>,
}

/// The memory of a tensor.
struct Memory {
    _owner: Arc<()>,
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &[7]
    }
}

impl Shard {
    fn new(producer: QueueProducer) -> Self {
        let completions = Arc::new(Completions::with_slots(4));
        Self {
            producer,
            request_slots: Rc::new(RequestSlots::new(completions)),
            deferred_wakes: Rc::default(),
            memory: Arc::default(),
        }
    }

    fn entry(&self, deadline: Option<Instant>) -> Entry<QueuedRequest> {
        let ticket = self.request_slots.open().expect("there are enough");
        let completions = Arc::clone(self.request_slots.completions());
        let contents = bytes::Bytes::from_owner(Memory { _owner: Arc::clone(&self.memory) });
        let input = Tensor { datatype: Datatype::Uint8, shape: [1].into_iter().collect(), contents };
        let token = QueuedRequest { size: SIZE, inputs: vec![input], ..QueuedRequest::plain(ticket, completions) };
        let (shape_key, timeout) = (ShapeKey::new(), Duration::ZERO);
        Entry { token, rows: 1, shape_key, queued_at: clock(), priority: 0, timeout, deadline }
    }

    fn submit(&mut self) -> PendingAnswer {
        self.submit_until(None)
    }

    /// Queues a request; the instances are woken at the end of the turn.
    fn submit_until(&mut self, deadline: Option<Instant>) -> PendingAnswer {
        let model_queue = Arc::clone(self.producer.model_queue());
        let entry = self.entry(deadline);
        let (ticket, room) = (entry.token.ticket, entry.token.room());
        if self.producer.submit(entry).expect("no scenario has more requests than there is room for") {
            self.deferred_wakes.handle_submission(&model_queue);
        }
        self.request_slots.pending(ticket, move || model_queue.leave(room))
    }

    /// The end of a turn.
    fn wake(&self) {
        let mut waking = Box::pin(self.deferred_wakes.run());
        assert!(waking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }

    /// Sleeps as the executor does until all these are answered.
    fn wait(&self, pending: Vec<PendingAnswer>) -> Vec<Answer> {
        let waker = Waker::from(Arc::new(Unpark(current())));
        let mut pending: Vec<_> = pending.into_iter().map(|pending| (pending, None)).collect();
        loop {
            self.request_slots.drain_and_register(&waker);
            for (pending, answer) in pending.iter_mut().filter(|(_, answer)| answer.is_none()) {
                if let Poll::Ready(came) = Pin::new(pending).poll(&mut Context::from_waker(Waker::noop())) {
                    *answer = Some(came);
                }
            }
            if pending.iter().all(|(_, answer)| answer.is_some()) {
                return pending.into_iter().filter_map(|(_, answer)| answer).collect();
            }
            park();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs an instance until the queue stops, and returns the number of requests that it ran.
fn instance(
    model_queue: &Arc<ModelQueue>,
    parking: usize,
    meeting: Option<&Arc<Meeting>>,
) -> loom::thread::JoinHandle<usize> {
    let (model_queue, meeting) = (Arc::clone(model_queue), meeting.cloned());
    loom::thread::spawn(move || {
        let mut count = 0;
        while let Some(batch) = model_queue.next_batch(parking, clock) {
            // A check that failed leaves it unanswered.
            let batch = ManuallyDrop::new(batch);
            if let Some(meeting) = &meeting {
                meeting.wait();
            }
            count += batch.requests.len();
            answer(ManuallyDrop::into_inner(batch));
        }
        count
    })
}

/// An instance that sleeps beside a file for some batches and without one for others, as one does whose process was lost:
/// the last way goes on until the queue stops. How many requests it ran.
fn instance_beside(model_queue: &Arc<ModelQueue>, ways: &'static [bool]) -> loom::thread::JoinHandle<usize> {
    let model_queue = Arc::clone(model_queue);
    loom::thread::spawn(move || {
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let last = ways.last().into_iter().cycle();
        let mut count = 0;
        for has_file in ways.iter().chain(last) {
            let file = has_file.then_some(&file);
            let NextWork::Batch(batch) = model_queue.next_beside(0, clock, &mut InFlightState::default, file) else {
                break;
            };
            // A check that failed leaves it unanswered.
            let batch = ManuallyDrop::new(batch);
            count += batch.requests.len();
            answer(ManuallyDrop::into_inner(batch));
        }
        count
    })
}

/// A barrier for batches until `missing` of them run at once.
struct Meeting {
    missing: Mutex<usize>,
    is_complete: loom::sync::Condvar,
}

impl Meeting {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { missing: Mutex::new(count), is_complete: loom::sync::Condvar::new() })
    }

    fn wait(&self) {
        let mut missing = self.missing.lock().unwrap();
        *missing -= 1;
        self.is_complete.notify_all();
        while *missing > 0 {
            missing = self.is_complete.wait(missing).unwrap();
        }
    }
}

/// Answers as a worker does: each shard is woken once, at the end.
fn answer(batch: Batch) {
    answering(|| batch.requests.into_iter().for_each(|request| request.responder.send(Ok(Vec::new()))));
}

/// Stops the queue and checks that all instances end. The orders of that are explored only if asked
/// for.
fn finish(model_queue: &ModelQueue, instances: Vec<loom::thread::JoinHandle<usize>>, want: usize) {
    loom::skip_branch();
    stop(model_queue, instances, want);
}

/// Stops the queue: all instances end, they ran `want` requests, and nothing is held.
fn stop(model_queue: &ModelQueue, instances: Vec<loom::thread::JoinHandle<usize>>, want: usize) {
    model_queue.stop();
    let served: usize = instances.into_iter().map(|instance| instance.join().unwrap()).sum();
    assert_eq!(served, want, "requests ran");
    assert_eq!((model_queue.waiting(), model_queue.held()), (0, 0), "something is held");
}

/// Runs shards with these requests, all answered by `instances` instances.
fn serve(policy: Policy, requests: Turns, instances: usize) {
    serve_at(policy, requests, &vec![0; instances], None);
}

/// The same in as many batches as there are instances, each of which runs until all do.
fn serve_at_once(policy: Policy, requests: Turns, instances: usize) {
    serve_at(policy, requests, &vec![0; instances], Some(&Meeting::new(instances)));
}

/// The same if the first of two instances is the one that is woken, as often as it sleeps: the
/// other has had its turns.
fn serve_at_once_by_the_first(policy: Policy, requests: Turns) {
    serve_at(policy, requests, &[0, 1_000], Some(&Meeting::new(2)));
}

/// Serves with one instance for each element of `turns_had`, its turns so far.
fn serve_at(policy: Policy, requests: Turns, turns_had: &[u64], meeting: Option<&Arc<Meeting>>) {
    let parkings = turns_had.iter().map(|turn| {
        let parking = Parking::new(String::new());
        parking.set_turn(*turn);
        Arc::new(parking)
    });
    let (model_queue, producers) =
        ModelQueue::with_parkings(policy, BOUNDS, requests.len(), parkings.collect(), None, None);
    let instances = (0..turns_had.len()).map(|parking| instance(&model_queue, parking, meeting)).collect();
    let mut shards: Vec<_> =
        producers.into_iter().zip(requests).map(|(producer, turns)| move || submit_all(producer, turns)).collect();
    let last = shards.pop().expect("there is one shard at least");
    let others: Vec<_> = shards.into_iter().map(loom::thread::spawn).collect();
    last();
    others.into_iter().for_each(|shard| shard.join().unwrap());
    finish(&model_queue, instances, requests.iter().flat_map(|turns| turns.iter()).sum());
}

/// The requests of each turn of each shard: those of one turn are a burst, with one wake-up.
type Turns = &'static [&'static [usize]];

fn submit_all(producer: QueueProducer, turns: &[usize]) {
    let mut shard = Shard::new(producer);
    let mut pending = Vec::new();
    for count in turns {
        pending.extend((0..*count).map(|_| shard.submit()));
        shard.wake();
    }
    assert!(shard.wait(pending).iter().all(|answer| answer.outputs.is_ok()));
}

#[test]
fn a_request_is_taken_though_every_instance_sleeps_and_its_shard_is_woken() {
    check(4, || serve(eager(), &[&[1]], 1));
    check(3, || serve(eager(), &[&[1, 1]], 1));
    check(2, || serve(eager(), &[&[1], &[1]], 1));
}

/// One request after the other for an instance that changes the way it sleeps.
fn serve_beside(ways: &'static [bool], turns: &'static [usize]) {
    let (model_queue, mut producers) = ModelQueue::new(single(), BOUNDS, 1, 1);
    let instances = vec![instance_beside(&model_queue, ways)];
    submit_all(producers.remove(0), turns);
    stop(&model_queue, instances, turns.iter().sum());
}

#[test]
fn an_instance_is_woken_whichever_way_it_sleeps() {
    check(3, || serve_beside(&[true], &[1]));
    check(2, || serve_beside(&[true, false], &[1, 1]));
    check(2, || serve_beside(&[false, true], &[1, 1]));
}

#[test]
fn a_worker_that_waits_to_make_an_instance_ends_with_the_queue() {
    for has_file in [false, true] {
        check(4, move || {
            let (model_queue, _producers) = ModelQueue::new(single(), BOUNDS, 1, 1);
            let own = Arc::clone(&model_queue);
            let worker = loom::thread::spawn(move || {
                own.parking(0).unwrap().take(has_file);
                own.wait_stopped(0, clock, Some(clock() + DELAY));
                0
            });
            stop(&model_queue, vec![worker], 0);
        });
    }
}

#[test]
fn an_instance_that_is_busy_leaves_nothing_to_one_that_sleeps_on() {
    check(1, || serve_at_once(single(), &[&[1, 1]], 2));
    check(1, || serve_at_once(single(), &[&[1], &[1]], 2));
    check_long(2, || serve_at_once(single(), &[&[2]], 2));
    check_long(2, || serve_at_once_by_the_first(single(), &[&[1, 1]]));
}

#[test]
fn a_batch_that_grew_is_not_left_asleep() {
    check(3, || serve(patient(2), &[&[1, 1]], 1));
    check(2, || serve(patient(2), &[&[1], &[1]], 1));
    check(1, || serve(patient(3), &[&[1], &[1], &[1]], 1));
}

#[test]
fn whoever_watches_leaves_no_batch_asleep_when_it_becomes_busy() {
    check(1, || serve(patient(2), &[&[1, 1]], 2));
    check(1, || serve_at_once(patient(2), &[&[1, 1, 1, 1]], 2));
    check(1, || serve_at_once(patient(2), &[&[4]], 2));
}

#[test]
fn answers_that_keep_their_order_reach_a_shard_that_sleeps() {
    check(1, || serve_at_once(Policy { preserves_order: true, ..single() }, &[&[1, 1]], 2));
}

/// A request that its shard takes back: it runs or it does not, and nothing is left of it.
fn withdraw(policy: Policy) {
    let (model_queue, mut producers) = ModelQueue::new(policy, BOUNDS, 1, 1);
    let instances = vec![instance(&model_queue, 0, None)];
    let mut shard = Shard::new(producers.remove(0));
    let mut pending = shard.submit();
    shard.wake();
    let is_withdrawn = pending.withdraw();
    if !is_withdrawn {
        assert!(shard.wait(vec![pending])[0].outputs.is_ok());
    }
    finish(&model_queue, instances, usize::from(!is_withdrawn));
    assert_eq!(shard.request_slots.drain(), 0, "an answer too many");
    assert_eq!(Arc::strong_count(&shard.memory), 1, "its tensors are left");
}

#[test]
fn a_request_is_taken_or_withdrawn_and_holds_nothing_afterwards() {
    check(4, || withdraw(eager()));
    check(4, || withdraw(patient(2)));
}

#[test]
fn a_request_whose_time_is_over_is_refused_once_by_its_shard_or_by_an_instance() {
    let expire = || {
        let (model_queue, mut producers) = ModelQueue::new(eager(), BOUNDS, 1, 1);
        let instances = vec![instance(&model_queue, 0, None)];
        let mut shard = Shard::new(producers.remove(0));
        let mut pending = shard.submit_until(Some(Instant::ZERO));
        shard.wake();
        if !pending.withdraw() {
            assert!(shard.wait(vec![pending])[0].outputs.is_err());
        }
        finish(&model_queue, instances, 0);
        assert_eq!(shard.request_slots.drain(), 0, "an answer too many");
        assert_eq!(Arc::strong_count(&shard.memory), 1, "its tensors are left");
    };
    check(4, expire);
}

#[test]
fn a_feed_that_stops_ends_every_instance_and_leaves_no_batch_that_could_grow() {
    let stops = |instances: usize| {
        move || {
            let (model_queue, mut producers) = ModelQueue::new(patient(3), BOUNDS, 1, instances);
            let instances = (0..instances).map(|parking| instance(&model_queue, parking, None)).collect();
            let mut shard = Shard::new(producers.remove(0));
            let pending = vec![shard.submit(), shard.submit()];
            shard.wake();
            stop(&model_queue, instances, 2);
            assert_eq!(shard.wait(pending).len(), 2);
        }
    };
    check(4, stops(1));
    check(2, stops(2));
}

/// Memory for one request, or a ring for one: the shard makes room itself, in the instance's place.
fn make_room(bounds: QueueBounds, policy: Policy) {
    let (model_queue, mut producers) = ModelQueue::new(policy, bounds, 1, 1);
    let instances = vec![instance(&model_queue, 0, None)];
    let mut shard = Shard::new(producers.remove(0));
    let mut first = shard.submit();
    shard.wake();
    let is_withdrawn = first.withdraw();
    if !is_withdrawn {
        shard.wait(vec![first]);
    }
    let second = shard.submit();
    shard.wake();
    assert!(shard.wait(vec![second])[0].outputs.is_ok());
    finish(&model_queue, instances, 1 + usize::from(!is_withdrawn));
}

#[test]
fn a_shard_that_makes_room_in_an_instances_place_loses_nothing() {
    check(2, || make_room(QueueBounds { requests: 1, ..BOUNDS }, eager()));
    check(2, || make_room(QueueBounds { bytes: SIZE, ..BOUNDS }, eager()));
}

/// Runs a future to its end, on a thread that sleeps meanwhile.
fn block_on<F: Future + Unpin>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(current())));
    // A check that failed leaves it as it is.
    let mut future = ManuallyDrop::new(future);
    loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut Context::from_waker(&waker)) {
            drop(ManuallyDrop::into_inner(future));
            return output;
        }
        park();
    }
}

/// The behaviour of an ensemble's request with one permit that two of them want.
#[derive(Clone, Copy)]
enum Wish {
    /// It waits for the permit without a limit.
    Patient,
    /// It leaves if it has to wait.
    Fleeting,
}

/// Runs each on a thread of its own but the last: all have their turn, one at a time, and no permit
/// is out in the end.
fn share_one_permit(output_needs: &'static [Wish]) {
    let permits = Arc::new(Semaphore::new(1));
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let act = |output_need: Wish| {
        let (permits, inside) = (Arc::clone(&permits), Arc::clone(&inside));
        move || {
            let mut acquire: AcquireFuture = permits.acquire();
            let permit = match output_need {
                Wish::Patient => block_on(acquire),
                Wish::Fleeting => {
                    let polled = Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop()));
                    let Poll::Ready(permit) = polled else { return };
                    permit
                }
            };
            let permit = ManuallyDrop::new(permit);
            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two have the one permit");
            loom::thread::yield_now();
            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            drop(ManuallyDrop::into_inner(permit));
        }
    };
    let (last, others) = output_needs.split_last().expect("there is one at least");
    let others: Vec<_> = others.iter().map(|output_need| loom::thread::spawn(act(*output_need))).collect();
    act(*last)();
    others.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(permits.taken(), 0, "a permit is lost");
}

#[test]
fn a_permit_goes_from_hand_to_hand_and_whoever_leaves_takes_none_along() {
    check(3, || share_one_permit(&[Wish::Patient, Wish::Patient]));
    check(3, || share_one_permit(&[Wish::Patient, Wish::Fleeting]));
    check(1, || share_one_permit(&[Wish::Patient, Wish::Fleeting, Wish::Patient]));
}

/// Two threads push while the owner closes: each value is polled, or given back to one of them.
fn close_while_two_push() {
    let queue = Arc::new(ClosableQueue::default());
    queue.open();
    let pushers: Vec<_> = (0..2)
        .map(|value| {
            let queue = Arc::clone(&queue);
            loom::thread::spawn(move || usize::from(queue.push(value).is_err()))
        })
        .collect();
    queue.close();
    let poll_all = || std::iter::from_fn(|| queue.poll()).count();
    let polled = poll_all();
    let returned: usize = pushers.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(polled + returned, 2, "a value is left behind");
    assert_eq!(poll_all(), 0);
}

#[test]
fn a_queue_that_closes_leaves_nothing_behind() {
    check(3, close_while_two_push);
}

#[test]
fn each_planted_fault_is_found_by_the_promise_that_it_breaks() {
    let find = |fault, scenario: fn()| {
        let check = move || {
            plant(Some(fault));
            check(2, scenario);
        };
        let found = std::thread::spawn(check).join().expect_err("it is found");
        found
            .downcast::<String>()
            .map_or_else(|other| other.downcast::<&str>().map(|text| text.to_string()).unwrap(), |text| *text)
    };
    for (fault, scenario, want) in [
        // Taken and withdrawn: it leaves the queue for both.
        (PlantedFault::Claim, (|| withdraw(eager())) as fn(), "leaves once"),
        (PlantedFault::Countdown, || serve(patient(3), &[&[1], &[1], &[1]], 1), "deadlock"),
        (PlantedFault::Fence, || serve(eager(), &[&[1]], 1), "deadlock"),
        (PlantedFault::Fence, close_while_two_push, "left behind"),
        (PlantedFault::Swap, || serve_at_once_by_the_first(single(), &[&[1, 1]]), "deadlock"),
        (PlantedFault::Token, || serve(eager(), &[&[1]], 1), "deadlock"),
        (PlantedFault::Claim, || share_one_permit(&[Wish::Patient, Wish::Patient]), "two have the one permit"),
    ] {
        let found = find(fault, scenario);
        assert!(found.contains(want), "{fault:?}: {found}");
    }
}
