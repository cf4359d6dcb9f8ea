//! The time limit of runs. An instance notes in its [`RunWatch`] when a run begins and hands it the
//! run's responders; one thread looks at all watches of the server ([`RunWatches`]) when a run may
//! be due. A run that is due is stopped if the engine supports it; otherwise the thread answers its
//! requests and the instance is given up, until the run returns.
//!
//! A run costs two exchanges of a pointer and two stores, and reads no clock of its own: the lock is taken by the
//! watching thread, and by a run that it is looking at.

#![expect(clippy::disallowed_types, reason = "taken when a run is due or an instance is made, never for a batch")]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use crossbeam_utils::atomic::AtomicCell;

use crate::limits::RUN_STOP_MAX;
use crate::{Request, Responder};
use base::error::{Code, Error};
use base::time::Instant;

/// Stops the run of an instance; called from another thread, while it runs.
pub type RunStopper = Box<dyn Fn() + Send + Sync>;

/// Observes an instance whose runs take too long.
pub trait RunObserver: Send + Sync {
    /// A run reached the limit and was stopped. Called on the watching thread.
    fn handle_stopped(&self);

    /// A run reached the limit and cannot be stopped: its instance is given up. Called on the watching thread, before
    /// the requests of the run are answered.
    fn handle_given_up(&self);

    /// The run of an instance that was given up has returned. Called on the thread of the run.
    fn handle_returned(&self);
}

/// Watches the runs of one instance.
pub struct RunWatch {
    model: String,
    limit: Duration,
    observer: Arc<dyn RunObserver>,
    stopper: OnceLock<Option<RunStopper>>,
    /// The instant at which the run began, in nanoseconds; [`NO_RUN`] between runs. Only a hint:
    /// `run` decides.
    began: AtomicU64,
    /// The run in progress. The thread that takes it out settles its requests.
    run: AtomicCell<Option<Box<WatchedRun>>>,
    /// Held by the watching thread while it has taken `run` out.
    look: Mutex<()>,
}

/// A run in progress.
#[derive(Default)]
pub struct WatchedRun {
    began: Instant,
    stopped: Option<Instant>,
    responders: Vec<Responder>,
    /// The responders of requests that the instance has taken and runs afterwards.
    behind: VecDeque<Responder>,
}

/// The end of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// By itself.
    Finished,
    /// Its requests are answered: the instance was given up.
    GivenUp,
    /// It was stopped, with this error.
    Stopped(Error),
}

/// [`RunWatch::began`] between runs.
const NO_RUN: u64 = u64::MAX;

impl RunWatch {
    /// A watch of one instance of a model.
    pub fn new(model: &str, limit: Duration, observer: Arc<dyn RunObserver>) -> Self {
        let (began, look) = (AtomicU64::new(NO_RUN), Mutex::new(()));
        let (stopper, run) = (OnceLock::new(), AtomicCell::new(None));
        Self { model: model.to_owned(), limit, observer, stopper, began, run, look }
    }

    /// Sets the function that stops a run of the instance; `None` if it cannot be stopped.
    pub fn set_stopper(&self, stopper: Option<RunStopper>) {
        let _ = self.stopper.set(stopper);
    }

    /// A run begins: takes the responders of its requests. `run` is that of the last [`Self::handle_end`], used again.
    pub fn handle_begin(&self, mut run: Box<WatchedRun>, requests: &mut [Request], now: Instant) {
        (run.began, run.stopped) = (now, None);
        let responders =
            requests.iter_mut().map(|request| std::mem::replace(&mut request.responder, Responder::nobody()));
        run.responders.extend(responders);
        self.began.store(now.as_nanos(), Ordering::Relaxed);
        self.run.store(Some(run));
    }

    /// The run has returned: gives the requests their responders back, unless they were answered meanwhile.
    pub fn handle_end(&self, requests: &mut [Request]) -> (Box<WatchedRun>, RunEnd) {
        self.began.store(NO_RUN, Ordering::Relaxed);
        let Some(mut run) = self.run.take().or_else(|| self.take_looked_at()) else {
            self.observer.handle_returned();
            return (Box::default(), RunEnd::GivenUp);
        };
        for (request, responder) in requests.iter_mut().zip(run.responders.drain(..)) {
            request.responder = responder;
        }
        match run.stopped {
            None => (run, RunEnd::Finished),
            Some(_) => (run, RunEnd::Stopped(self.error("and was stopped"))),
        }
    }

    /// Looks at the run in progress, and returns the instant at which to look again. Called on the
    /// watching thread.
    pub fn poll(&self, now: Instant) -> Instant {
        let began = self.began.load(Ordering::Relaxed);
        if began == NO_RUN {
            // A run that begins from now on is due later.
            return now + self.limit;
        }
        let due = Instant::from_nanos(began) + self.limit;
        if due > now {
            return due;
        }
        let _look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut run) = self.run.take() else { return now + self.limit };
        // It may be another run by now.
        let due = run.stopped.map_or_else(|| run.began + self.limit, |stopped| stopped + RUN_STOP_MAX);
        if due > now {
            self.run.store(Some(run));
            return due;
        }
        if let (Some(Some(stopper)), None) = (self.stopper.get(), run.stopped) {
            run.stopped = Some(now);
            stopper();
            self.run.store(Some(run));
            self.observer.handle_stopped();
            return now + RUN_STOP_MAX;
        }
        self.observer.handle_given_up();
        let error = self.error("and cannot be stopped: its instance is given up until the run ends");
        let WatchedRun { responders, behind, .. } = *run;
        responders.into_iter().chain(behind).for_each(|responder| responder.send(Err(error.clone())));
        now + self.limit
    }

    /// The time limit of a run, for an instance that watches its runs itself.
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// A run of such an instance has reached the limit, and was stopped: reports it, and returns
    /// the error of its requests.
    pub fn handle_overrun(&self) -> Error {
        self.observer.handle_stopped();
        self.error("and was stopped")
    }

    /// The run, if the watching thread had taken it out to look at it and has put it back.
    fn take_looked_at(&self) -> Option<Box<WatchedRun>> {
        drop(self.look.lock().unwrap_or_else(PoisonError::into_inner));
        self.run.take()
    }

    fn error(&self, outcome: &str) -> Error {
        let text = format!(
            "model '{}': the run took longer than {:?} (--run-timeout-secs, or the model's parameter \
             '{RUN_TIMEOUT_PARAMETER}') {outcome}",
            self.model, self.limit
        );
        Error::new(Code::DeadlineExceeded, text)
    }
}

impl WatchedRun {
    /// Takes the responders of requests that the instance will run one by one.
    pub fn put_behind(&mut self, requests: &mut [Request]) {
        let responders =
            requests.iter_mut().map(|request| std::mem::replace(&mut request.responder, Responder::nobody()));
        self.behind.extend(responders);
    }

    /// The first of them, for the request that runs next.
    pub fn take_behind(&mut self) -> Option<Responder> {
        self.behind.pop_front()
    }
}

/// The parameter of a model that sets its own limit, in seconds.
pub const RUN_TIMEOUT_PARAMETER: &str = "run_timeout_secs";

/// The watches of all instances. One thread polls them.
#[derive(Default)]
pub struct RunWatches {
    all: Mutex<Vec<Weak<RunWatch>>>,
    thread: OnceLock<Thread>,
}

impl RunWatches {
    /// Adds the watch of a new instance, as long as that lives.
    pub fn add(&self, watch: &Arc<RunWatch>) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(watch));
        // Its limit may be shorter than those of the others.
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Makes the calling thread the one that polls: it is unparked when there is a new watch.
    pub fn take(&self) {
        self.thread.get_or_init(std::thread::current);
    }

    /// Looks at all runs, and returns the instant at which to look again; `None` while there is no
    /// instance.
    pub fn poll(&self, now: Instant) -> Option<Instant> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|watch| watch.strong_count() > 0);
        let watches: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        drop(all);
        watches.iter().map(|watch| watch.poll(now)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::Instance;
    use crate::batch::InputConversion;
    use crate::engine_run::{BatchedInstance, EngineInputs, EngineInstance};
    use crate::trial::{TrialAnswers, spec, tensor};
    use base::tensor::{Datatype, Tensor};
    use model::ModelSpec;

    /// Counts the observed events: stopped, given up, returned.
    #[derive(Clone, Default)]
    struct Told(Arc<[AtomicUsize; 3]>);

    impl Told {
        fn count(&self, index: usize) {
            self.0[index].fetch_add(1, Ordering::SeqCst);
        }

        fn counts(&self) -> [usize; 3] {
            [0, 1, 2].map(|index| self.0[index].load(Ordering::SeqCst))
        }
    }

    impl RunObserver for Told {
        fn handle_stopped(&self) {
            self.count(0);
        }

        fn handle_given_up(&self) {
            self.count(1);
        }

        fn handle_returned(&self) {
            self.count(2);
        }
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_run_is_looked_at_when_it_is_due_and_not_before() {
        let told = Told::default();
        let watch = Arc::new(RunWatch::new("m", LIMIT, Arc::new(told.clone())));
        let watches = RunWatches::default();
        assert_eq!(watches.poll(at(0)), None);
        watches.add(&watch);
        assert_eq!(watches.poll(at(1)), Some(at(61)), "no run");
        let answers = TrialAnswers::default();
        let mut requests = answers.batch(vec![(vec![], 1), (vec![], 1)]).requests;
        watch.handle_begin(Box::default(), &mut requests, at(2));
        assert_eq!(watches.poll(at(61)), Some(at(62)));
        let (run, end) = watch.handle_end(&mut requests);
        assert_eq!(end, RunEnd::Finished);
        watch.handle_begin(run, &mut requests, at(62));
        assert_eq!(watches.poll(at(121)), Some(at(122)), "another run");
        assert_eq!(watch.handle_end(&mut requests).1, RunEnd::Finished);
        requests.into_iter().for_each(|request| request.responder.send(Ok(vec![])));
        assert_eq!(answers.outputs(2), [Ok(vec![]), Ok(vec![])]);
        assert_eq!(told.counts(), [0, 0, 0]);
        drop(watch);
        assert_eq!(watches.poll(at(200)), None);
    }

    #[test]
    fn a_run_that_can_be_stopped_is_and_its_instance_goes_on() {
        let (told, stops) = (Told::default(), Arc::new(AtomicUsize::new(0)));
        let watch = RunWatch::new("m", LIMIT, Arc::new(told.clone()));
        let counted = Arc::clone(&stops);
        watch.set_stopper(Some(Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })));
        let answers = TrialAnswers::default();
        let mut requests = answers.batch(vec![(vec![], 1)]).requests;
        watch.handle_begin(Box::default(), &mut requests, at(0));
        assert_eq!(watch.poll(at(60)), at(60) + RUN_STOP_MAX);
        assert_eq!((stops.load(Ordering::SeqCst), told.counts()), (1, [1, 0, 0]));
        let (run, end) = watch.handle_end(&mut requests);
        let want = "model 'm': the run took longer than 60s (--run-timeout-secs, or the model's parameter \
                    'run_timeout_secs') and was stopped";
        assert_eq!(end, RunEnd::Stopped(Error::new(Code::DeadlineExceeded, want)));
        watch.handle_begin(run, &mut requests, at(61));
        assert_eq!(watch.handle_end(&mut requests).1, RunEnd::Finished, "the next run is another");
    }

    #[test]
    fn a_run_that_does_not_stop_is_given_up_with_all_that_waits_behind_it() {
        let told = Told::default();
        let watch = RunWatch::new("m", LIMIT, Arc::new(told.clone()));
        watch.set_stopper(Some(Box::new(|| {})));
        let answers = TrialAnswers::default();
        let mut requests = answers.batch(vec![(vec![], 1), (vec![], 1)]).requests;
        let mut run = Box::<WatchedRun>::default();
        run.put_behind(&mut requests);
        let mut first = requests.remove(0);
        first.responder = run.take_behind().unwrap();
        watch.handle_begin(run, std::slice::from_mut(&mut first), at(0));
        watch.poll(at(60));
        watch.poll(at(60) + RUN_STOP_MAX);
        assert_eq!(told.counts(), [1, 1, 0]);
        let answered = answers.outputs(2);
        assert!(answered.iter().all(|answer| matches!(answer, Err(error) if error.code() == Code::DeadlineExceeded)));
        assert_eq!(watch.handle_end(std::slice::from_mut(&mut first)).1, RunEnd::GivenUp);
        assert_eq!(told.counts(), [1, 1, 1]);
    }

    /// Fails a run of several requests at once, and one of a single request when it is told to go on.
    struct Stuck {
        spec: Arc<ModelSpec>,
        entered: Sender<()>,
        go_on: Receiver<()>,
    }

    impl EngineInstance for Stuck {
        type Outputs = ();

        fn conversion(_: Datatype) -> InputConversion {
            InputConversion { alignment: 4, convert: None }
        }

        fn spec(&self) -> &Arc<ModelSpec> {
            &self.spec
        }

        fn compute(&mut self, inputs: EngineInputs<'_>) -> Result<(), Error> {
            if inputs.shape(0)[0] == 1 {
                self.entered.send(()).unwrap();
                self.go_on.recv().unwrap();
            }
            Err(Error::internal("it fails"))
        }

        fn outputs(&self, _: (), _: EngineInputs<'_>) -> impl Iterator<Item = Result<Tensor, Error>> {
            std::iter::empty()
        }
    }

    #[test]
    fn where_requests_run_one_by_one_and_one_is_given_up_all_behind_it_are_answered_once() {
        let (entered, is_in) = channel();
        let (release, go_on) = channel();
        let spec = Arc::new(spec(8, &[("x", Datatype::Fp32, &[1])], &[("y", Datatype::Fp32, &[1])]));
        let mut instance = BatchedInstance::new(Stuck { spec, entered, go_on });
        let watch = Arc::new(RunWatch::new("m", Duration::from_secs(1), Arc::new(Told::default())));
        instance.set_watch(Arc::clone(&watch));
        let answers = TrialAnswers::default();
        let row = || (vec![tensor(&[1, 1], &[0_f32])], 1);
        let batch = answers.batch(vec![row(), row(), row()]);
        std::thread::scope(|scope| {
            let run = scope.spawn(|| instance.run(batch));
            is_in.recv().unwrap();
            release.send(()).unwrap();
            is_in.recv().unwrap();
            watch.poll(at(1));
            let codes: Vec<_> = answers.outputs(3).iter().map(|answer| answer.as_ref().unwrap_err().code()).collect();
            assert_eq!(codes, [Code::Internal, Code::DeadlineExceeded, Code::DeadlineExceeded]);
            release.send(()).unwrap();
            run.join().unwrap();
        });
        assert!(answers.take(0).is_empty(), "what returns late answers nobody");
        assert!(is_in.try_recv().is_err(), "and the last request was not run");
    }
}
