//! The thread of one instance: takes batches from its model queue and runs them until the queue stops. Blocks in the
//! engine; knows no socket and no shard.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::given_up::WorkerRuns;
#[cfg(any(test, feature = "testing"))]
use crate::model_queue::WorkPoll;
use crate::model_queue::{ModelQueue, NextWork};
use crate::parking::Parking;
use crate::served_model::{GoneInstance, RunOutcome, ServedModel, renew_guarded, run_guarded};
use backend::{InFlightState, Instance, Threads, answering};
use base::error::Error;
use base::time::Clock;

/// The pause after an instance could not be recreated; it doubles with each attempt.
const RENEW_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two attempts: long enough to cost nothing, short enough to recover soon.
const RENEW_PAUSE_MAX: Duration = Duration::from_secs(10);

/// The place of a worker: its model, its parking in the queue, and what it needs of the process.
#[derive(Clone)]
pub struct WorkerPlace {
    /// Its model version.
    pub served: Arc<ServedModel>,
    /// The queue of the model version.
    pub model_queue: Arc<ModelQueue>,
    /// The index of its parking in the queue.
    pub parking: usize,
    /// The clock that stamps its work.
    pub clock: Clock,
    /// Logs that its instance was lost, or serves again.
    pub warn: fn(&str),
}

impl WorkerPlace {
    fn parking(&self) -> Option<&Arc<Parking>> {
        self.model_queue.parking(self.parking)
    }

    fn name(&self) -> &str {
        self.parking().map_or("", |parking| parking.name())
    }

    /// An instance was lost and could not be recreated.
    fn handle_lost(&self) {
        self.model_queue.rest(self.parking);
        self.model_queue.handle_instance_lost(self.parking, false, (self.clock)());
        self.served.handle_instance_lost();
    }

    /// A lost instance was recreated.
    fn handle_restored(&self) {
        self.served.handle_instance_restored();
        self.model_queue.handle_instance_restored(self.parking, (self.clock)());
    }
}

/// Serves batches with an instance until the queue stops. A lost instance is recreated, with pauses between attempts;
/// meanwhile its model version is not ready.
///
/// # Errors
/// The text of a panic outside of a batch. That is a fault of this server: the instance is not recreated.
pub fn run(place: &WorkerPlace, instance: Box<dyn Instance>, threads: &Threads) -> Result<(), String> {
    guard(place, || {
        serve(place, instance, threads);
        place.model_queue.handle_ended(place.parking);
    })
}

fn guard(place: &WorkerPlace, body: impl FnOnce()) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        place.served.handle_instance_lost();
        // Other instances must not wait for its resources. If this panics too, the first panic is the one to report.
        let _ = catch_unwind(AssertUnwindSafe(|| place.model_queue.retire(place.parking)));
        panic_text(&*panic)
    })
}

/// Returns the text of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text").to_owned()
}

fn serve(place: &WorkerPlace, instance: Box<dyn Instance>, threads: &Threads) {
    if place.parking().is_some_and(|parking| parking.is_passive()) {
        return place.model_queue.wait_stopped(place.parking, place.clock, None);
    }
    let mut worker = Worker::new(place.clone(), instance, threads);
    if !place.model_queue.wait_joined(place.parking, place.clock) {
        return;
    }
    let mut is_lost = false;
    loop {
        let work = worker.next();
        match worker.handle_work(work) {
            WorkerStep::Next => {}
            WorkerStep::Ended => break,
            WorkerStep::Renew => is_lost = !renew(place, &mut worker),
        }
    }
    if is_lost && !place.model_queue.is_stopped() {
        // It left, and the model version lacks it no longer.
        place.served.handle_instance_restored();
    }
}

/// Tries to make another instance in the place of a lost one until that goes well. Returns false if it never will: the
/// queue is stopped, or the instance leaves.
fn renew(place: &WorkerPlace, worker: &mut Worker) -> bool {
    let mut pause = RENEW_PAUSE_MIN;
    while wait_for_attempt(place, pause) {
        pause = pause.saturating_mul(2).min(RENEW_PAUSE_MAX);
        if worker.try_renew() {
            return true;
        }
    }
    false
}

/// The instance of a worker and its state: all of the loop of [`run`] but its sleeps, so that a
/// simulation takes the same steps without a thread.
pub struct Worker {
    place: WorkerPlace,
    instance: Box<dyn Instance>,
    maker: InstanceMaker,
}

/// Makes the instances of one worker.
struct InstanceMaker {
    served: Arc<ServedModel>,
    runs: Arc<WorkerRuns>,
    waker: Waker,
    threads: Threads,
}

/// The next step of a worker after its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerStep {
    /// The next work.
    Next,
    /// It ends.
    Ended,
    /// Its instance is lost: it pauses, and tries to make another one.
    Renew,
}

impl InstanceMaker {
    fn prepare(&self, instance: &mut dyn Instance) {
        instance.set_waker(self.waker.clone());
        self.runs.watch(&self.served, instance);
    }

    fn make(&self) -> Result<Box<dyn Instance>, Error> {
        let mut new = self.served.loaded.new_instance(&self.threads)?;
        self.prepare(&mut *new);
        Ok(new)
    }

    /// Makes one in the place of one that was lost just now.
    fn renew(&self) -> Result<Box<dyn Instance>, Error> {
        self.served.renewing(|| self.make())
    }
}

impl Worker {
    /// Creates the worker of a place.
    pub fn new(place: WorkerPlace, mut instance: Box<dyn Instance>, threads: &Threads) -> Self {
        let waker = place.parking().map_or_else(|| Waker::noop().clone(), |parking| Waker::from(Arc::clone(parking)));
        let runs = WorkerRuns::new(&place.served, place.parking);
        let maker = InstanceMaker { served: Arc::clone(&place.served), runs, waker, threads: threads.clone() };
        maker.prepare(&mut *instance);
        Self { place, instance, maker }
    }

    /// Returns the next work; sleeps until there is some.
    fn next(&mut self) -> NextWork {
        // Another instance, another file.
        let file = self.instance.event_source();
        let Self { place, instance, .. } = self;
        let mut poll_flight = || answering(|| poll_guarded(&mut **instance, place.clock));
        place.model_queue.next_beside(place.parking, place.clock, &mut poll_flight, file.as_deref())
    }

    /// Returns the next work, or the instant until which it may sleep.
    #[cfg(any(test, feature = "testing"))]
    pub fn poll_next(&mut self) -> WorkPoll {
        let Self { place, instance, .. } = self;
        let mut poll_flight = || answering(|| poll_guarded(&mut **instance, place.clock));
        place.model_queue.poll_beside(place.parking, place.clock, &mut poll_flight)
    }

    /// Returns true if it was not woken since [`Self::poll_next`] said that it may sleep.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_parked(&self) -> bool {
        self.place.parking().is_some_and(|parking| parking.is_parked())
    }

    /// Its sleep is over, because its time is.
    #[cfg(any(test, feature = "testing"))]
    pub fn end_sleep(&self) {
        self.place.parking().map(|parking| parking.clear_parked());
    }

    /// Does the work.
    pub fn handle_work(&mut self, work: NextWork) -> WorkerStep {
        let Self { instance, maker, place } = self;
        let ran = match work {
            NextWork::Batch(batch) => {
                answering(|| run_guarded(instance, batch, place.served.label(place.name()), || maker.renew()))
            }
            NextWork::Lost => {
                self.warn("was lost and is recreated");
                renew_guarded(&mut self.instance, || self.maker.renew())
            }
            NextWork::Ended => return WorkerStep::Ended,
        };
        // Counted as lost already, and its state may be.
        let was_given_up = self.maker.runs.take_given_up();
        let maker = &self.maker;
        let outcome = if was_given_up { renew_guarded(&mut self.instance, || maker.make()) } else { ran };
        if outcome == RunOutcome::Renewed {
            self.count_restart();
        }
        let place = &self.place;
        match outcome {
            RunOutcome::Well => return WorkerStep::Next,
            RunOutcome::Renewed if was_given_up => {
                place.handle_restored();
                return WorkerStep::Next;
            }
            RunOutcome::Renewed => {
                place.model_queue.handle_instance_lost(place.parking, true, (place.clock)());
                return WorkerStep::Next;
            }
            RunOutcome::Dead if was_given_up => {}
            RunOutcome::Dead => place.handle_lost(),
        }
        self.warn("was lost and cannot be recreated yet");
        WorkerStep::Renew
    }

    /// Tries to make another instance in the place of a lost one; returns true if that went well.
    pub fn try_renew(&mut self) -> bool {
        let Ok(Ok(new)) = catch_unwind(AssertUnwindSafe(|| self.maker.make())) else { return false };
        self.instance = new;
        self.count_restart();
        self.place.handle_restored();
        self.warn("serves again");
        true
    }

    fn count_restart(&self) {
        self.place.parking().into_iter().for_each(|parking| parking.count_restart());
    }

    fn warn(&self, what: &str) {
        let (name, model) = (self.place.name(), &self.place.served.spec.name);
        (self.place.warn)(&format!("instance '{name}' of '{model}' {what}"));
    }
}

/// Waits until the next attempt to recreate an instance; returns false without a next attempt,
/// because the queue is stopped or the instance leaves. While a model that
/// [refuses](backend::LoadedModel::refuses_while_lost) has no instance left, a placeholder
/// answers requests.
fn wait_for_attempt(place: &WorkerPlace, pause: Duration) -> bool {
    let WorkerPlace { served, model_queue, parking, clock, .. } = place;
    let (parking, clock) = (*parking, *clock);
    let retry_at = clock() + pause;
    let active = || model_queue.present_instances();
    let is_over = || model_queue.is_stopped() || model_queue.is_leaving(parking);
    let mut poll_flight = || {
        let left = retry_at.since(clock());
        // Once the queue is stopped, waiting requests are refused, and there is no other attempt.
        let is_stopped = model_queue.is_stopped();
        let look_again = (!is_stopped).then_some(left);
        // Another instance that is back takes the requests, and this one must not refuse them.
        let is_over = left.is_zero() || served.lost() < active();
        InFlightState { is_lost: is_over && !is_stopped, look_again, ..InFlightState::default() }
    };
    while served.loaded.refuses_while_lost() && served.lost() >= active() {
        match model_queue.next_beside(parking, clock, &mut poll_flight, None) {
            NextWork::Batch(batch) => answering(|| GoneInstance.run(batch)),
            NextWork::Ended => return false,
            NextWork::Lost => break,
        }
    }
    model_queue.wait_stopped(parking, clock, Some(retry_at));
    !is_over()
}

/// Polls an instance's batches in flight; one that panics is lost.
fn poll_guarded(instance: &mut dyn Instance, clock: Clock) -> InFlightState {
    let polled = catch_unwind(AssertUnwindSafe(|| instance.poll_flight(clock)));
    polled.unwrap_or(InFlightState { is_lost: true, ..InFlightState::default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::completions::Completions;
    use crate::model_queue::queue_producer::QueueProducer;
    use crate::queued_request::QueuedRequest;
    use crate::request_slots::RequestSlots;
    use crate::served_model::Placement;
    use crate::testing as clock;
    use backend::{Batch, LoadedModel, threads};
    use model::ModelSpec;
    use model::config::{CompletionRules, ConfigDraft};
    use scheduler::{Entry, Policy, QueueBounds, ShapeKey};

    /// A model whose first run panics, and which then cannot be made `failures` times.
    struct Mortal {
        failures: AtomicUsize,
        made: AtomicUsize,
    }

    struct Life {
        is_first: bool,
    }

    impl LoadedModel for Mortal {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            let is_first = self.made.load(Ordering::SeqCst) == 0;
            let fail = |left: usize| left.checked_sub(1);
            if !is_first && self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fail).is_ok() {
                return Err(Error::internal("on purpose"));
            }
            self.made.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Life { is_first }))
        }

        fn may_run_inline(&self) -> bool {
            false
        }
    }

    impl Instance for Life {
        fn run(&mut self, batch: Batch) {
            assert!(!self.is_first, "on purpose");
            batch.requests.into_iter().for_each(|request| request.responder.send(Ok(Vec::new())));
        }
    }

    fn spec() -> ModelSpec {
        let text = "backend: 'identity' input { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] }\n\
                    output { name: 'y' data_type: TYPE_FP32 dims: [ 1 ] }";
        let draft = ConfigDraft::new("m", Some(text.as_bytes()), &[]).unwrap();
        draft.complete(None, &BTreeMap::new(), CompletionRules::default()).unwrap()
    }

    fn served(model: Arc<dyn LoadedModel>) -> (Arc<ServedModel>, Arc<ModelQueue>, Vec<QueueProducer>) {
        served_by(1, model)
    }

    fn served_by(
        instances: usize,
        model: Arc<dyn LoadedModel>,
    ) -> (Arc<ServedModel>, Arc<ModelQueue>, Vec<QueueProducer>) {
        let bounds = QueueBounds { requests: 8, bytes: 8 };
        let (model_queue, producers) = ModelQueue::new(Policy::default(), bounds, 1, instances);
        let served = ServedModel::new(Arc::new(spec()), 1, model, Placement::Worker(Arc::clone(&model_queue)), 1);
        (Arc::new(served), model_queue, producers)
    }

    fn place(served: &Arc<ServedModel>, model_queue: &Arc<ModelQueue>, warn: fn(&str)) -> WorkerPlace {
        let (served, model_queue) = (Arc::clone(served), Arc::clone(model_queue));
        WorkerPlace { served, model_queue, parking: 0, clock: clock::now, warn }
    }

    /// Starts a thread with the only instance of a model; it ends when the queue is stopped.
    fn spawn_worker<'scope>(
        scope: &'scope std::thread::Scope<'scope, '_>,
        served: &'scope Arc<ServedModel>,
        model_queue: &Arc<ModelQueue>,
        warn: fn(&str),
    ) -> std::thread::ScopedJoinHandle<'scope, Result<(), String>> {
        let model_queue = Arc::clone(model_queue);
        scope.spawn(move || {
            threads::enter(1, |threads| {
                let instance = served.loaded.new_instance(threads).unwrap();
                run(&place(served, &model_queue, warn), instance, threads)
            })
        })
    }

    fn submit(producer: &mut QueueProducer, request_slots: &Rc<RequestSlots>) {
        let (ticket, completions) = (request_slots.open().unwrap(), Arc::clone(request_slots.completions()));
        let token = QueuedRequest::plain(ticket, completions);
        let (shape_key, queued_at) = (ShapeKey::new(), clock::now());
        let (priority, timeout, deadline) = (0, Duration::ZERO, None);
        let entry = Entry { token, rows: 1, shape_key, queued_at, priority, timeout, deadline };
        if producer.submit(entry).ok().unwrap() {
            producer.model_queue().wake();
        }
    }

    fn answer(request_slots: &RequestSlots) -> bool {
        loop {
            if let Some((_, answer)) = request_slots.completions().poll_answer() {
                return answer.outputs.is_ok();
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_model_is_not_ready_while_an_instance_cannot_be_made_anew() {
        static WARNINGS: AtomicUsize = AtomicUsize::new(0);
        let warn = |_: &str| {
            WARNINGS.fetch_add(1, Ordering::SeqCst);
        };
        let mortal = Arc::new(Mortal { failures: AtomicUsize::new(2), made: AtomicUsize::new(0) });
        let (served, model_queue, mut producers) = served(Arc::clone(&mortal) as Arc<dyn LoadedModel>);
        std::thread::scope(|scope| {
            let worker = spawn_worker(scope, &served, &model_queue, warn);
            let request_slots = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
            assert!(served.is_ready());
            submit(&mut producers[0], &request_slots);
            assert!(!answer(&request_slots), "its batch died with it");
            while served.is_ready() {
                std::thread::yield_now();
            }
            submit(&mut producers[0], &request_slots);
            assert!(answer(&request_slots), "what waited meanwhile is answered");
            assert!(served.is_ready());
            model_queue.stop();
            assert_eq!(worker.join().unwrap(), Ok(()));
        });
        assert_eq!((mortal.made.load(Ordering::SeqCst), WARNINGS.load(Ordering::SeqCst)), (2, 2));
    }

    /// A model of which no instance can be made; the flag: it refuses requests meanwhile.
    struct Gone(bool);

    impl LoadedModel for Gone {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            Err(Error::internal("on purpose"))
        }

        fn may_run_inline(&self) -> bool {
            false
        }

        fn refuses_while_lost(&self) -> bool {
            self.0
        }
    }

    /// Waits as long as only a thread takes that nothing wakes.
    fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
        let until = clock::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(clock::now() < until, "{what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_worker_that_waits_for_its_next_attempt_is_woken_by_requests_and_by_the_stop() {
        for (refuses, has_file) in [(true, false), (true, true), (false, false), (false, true)] {
            let (served, model_queue, mut producers) = served(Arc::new(Gone(refuses)));
            served.handle_instance_lost();
            let own = (Arc::clone(&served), Arc::clone(&model_queue));
            let waiting = std::thread::spawn(move || {
                let (served, model_queue) = own;
                // As an instance that slept on a file before.
                model_queue.parking(0).unwrap().take(has_file);
                wait_for_attempt(&place(&served, &model_queue, |_| {}), Duration::from_secs(3_600))
            });
            let is_asleep = || model_queue.parking(0).unwrap().is_parked();
            let request_slots = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
            if refuses {
                soon("it does not sleep", is_asleep);
                submit(&mut producers[0], &request_slots);
                let answer = || request_slots.completions().poll_answer().map(|(_, answer)| answer.outputs.is_ok());
                let mut answered = None;
                soon("a request is not refused", || {
                    answered = answered.or_else(answer);
                    answered.is_some()
                });
                assert_eq!(answered, Some(false));
            }
            soon("it does not sleep", is_asleep);
            model_queue.stop();
            soon("the stop does not wake it", || waiting.is_finished());
            assert!(!waiting.join().unwrap(), "there is no other attempt");
        }
    }

    #[test]
    fn a_model_has_no_instance_while_its_last_one_is_recreated() {
        let (served, ..) = served_by(2, Arc::new(Mortal { failures: 0.into(), made: 0.into() }));
        let seen = || (served.is_ready(), served.has_instance());
        served.renewing(|| {
            assert_eq!(seen(), (true, true), "the other one serves");
            served.renewing(|| assert_eq!(seen(), (true, false)));
            assert_eq!(seen(), (true, true));
            served.handle_instance_lost();
            assert_eq!(seen(), (false, false));
        });
        served.handle_instance_restored();
        let panicked = catch_unwind(AssertUnwindSafe(|| served.renewing(|| served.renewing(|| panic!("on purpose")))));
        assert!(panicked.is_err());
        assert_eq!(seen(), (true, true));
    }

    /// A model whose first run panics, and whose second instance is made when the test says so.
    struct Held {
        made: AtomicUsize,
        go: std::sync::Barrier,
    }

    impl LoadedModel for Held {
        fn new_instance(&self, _: &Threads) -> Result<Box<dyn Instance>, Error> {
            let is_first = self.made.fetch_add(1, Ordering::SeqCst) == 0;
            if !is_first {
                self.go.wait();
                self.go.wait();
            }
            Ok(Box::new(Life { is_first }))
        }

        fn may_run_inline(&self) -> bool {
            false
        }
    }

    #[test]
    fn who_asks_while_an_instance_is_recreated_is_told_that_there_is_none() {
        let held = Arc::new(Held { made: AtomicUsize::new(0), go: std::sync::Barrier::new(2) });
        let (served, model_queue, mut producers) = served(Arc::clone(&held) as Arc<dyn LoadedModel>);
        std::thread::scope(|scope| {
            let worker = spawn_worker(scope, &served, &model_queue, |_| {});
            let request_slots = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
            assert!(served.has_instance());
            submit(&mut producers[0], &request_slots);
            held.go.wait();
            let seen = (served.is_ready(), served.has_instance());
            submit(&mut producers[0], &request_slots);
            held.go.wait();
            assert_eq!(seen, (true, false));
            assert!(!answer(&request_slots), "its batch died with the first");
            assert!(answer(&request_slots), "what waited meanwhile is answered");
            assert!(served.has_instance());
            model_queue.stop();
            assert_eq!(worker.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn the_worker_of_an_instance_ends_when_that_leaves_or_is_not_wanted() {
        use crate::model_queue::InstanceChange;
        // The run of the first panics, and none is made in its place.
        let mortal = Arc::new(Mortal { failures: AtomicUsize::new(usize::MAX), made: AtomicUsize::new(1) });
        let (served, model_queue, mut producers) = served(Arc::clone(&mortal) as Arc<dyn LoadedModel>);
        let instance = |is_first| Box::new(Life { is_first }) as Box<dyn Instance>;
        let start = |index: usize, is_first: bool| {
            let place = WorkerPlace { parking: index, ..place(&served, &model_queue, |_| {}) };
            std::thread::spawn(move || threads::enter(1, |threads| run(&place, instance(is_first), threads)))
        };
        let first = start(0, true);
        let joined = model_queue.join(&["a".to_owned(), "b".to_owned()]).unwrap();
        let [added, unwanted] = joined[..] else { panic!("{joined:?}") };
        let workers = [start(added, false), start(unwanted, false)];
        model_queue.give_up(&[unwanted]);
        let request_slots = Rc::new(RequestSlots::new(Arc::new(Completions::new())));
        submit(&mut producers[0], &request_slots);
        assert!(!answer(&request_slots), "the one that serves panics, and those that joined take nothing");
        soon("it is lost", || served.lost() == 1);
        model_queue.apply(&InstanceChange { serving: vec![(added, 0)], leaving: vec![0] }, clock::now());
        assert_eq!(first.join().unwrap(), Ok(()));
        assert_eq!(served.lost(), 0, "it left, and is not missed");
        submit(&mut producers[0], &request_slots);
        assert!(answer(&request_slots));
        model_queue.stop();
        assert!(workers.into_iter().all(|worker| worker.join().unwrap() == Ok(())));
    }

    #[test]
    fn a_panic_outside_of_a_batch_costs_the_instance_and_is_told() {
        let (served, model_queue, _lanes) = served(Arc::new(Mortal { failures: 0.into(), made: 0.into() }));
        let outcome = guard(&place(&served, &model_queue, |_| {}), || panic!("on {}", "purpose"));
        assert_eq!((outcome, served.is_ready()), (Err("on purpose".to_owned()), false));
        assert_eq!(panic_text(&7), "no text");
    }
}
