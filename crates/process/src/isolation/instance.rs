//! One instance whose engine is in a process: hands batches to it and answers them. A process that
//! ends, or runs longer than the time limit and is killed, costs its batch and this instance, which
//! the worker replaces.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use crate::isolation::engine_process::{EngineFailure, EngineProcess};
use crate::isolation::shared::IsolatedShared;
use backend::batch::answer_all;
use backend::run_watch::{RunEnd, RunWatch, WatchedRun};
use backend::{Batch, InFlightState, Instance, Request};
use base::error::Error;
use base::limits::CRASH_LINES_MAX;
use base::time::{Clock, Instant};

/// An instance and its process.
pub(super) struct IsolatedInstance {
    shared: Arc<IsolatedShared>,
    name: String,
    /// `None` once it is lost.
    process: Option<EngineProcess>,
    /// The watch, if its runs have a time limit, and the run that is lent to it.
    watch: Option<(Arc<RunWatch>, Box<WatchedRun>)>,
    /// True if a worker has it: before, its runs belong to a load.
    serves: bool,
}

impl IsolatedInstance {
    pub(super) const fn new(shared: Arc<IsolatedShared>, name: String, process: EngineProcess) -> Self {
        Self { shared, name, process: Some(process), watch: None, serves: false }
    }

    /// Has the process run a batch. `requests` is empty afterwards if they were answered meanwhile.
    fn compute(&mut self, requests: &mut Vec<Request>, clock: Clock, sent: Instant) -> Result<(), Error> {
        let Self { shared, process, watch, serves, .. } = self;
        let Some(running) = process else {
            return Err(Error::unavailable(format!("the process of model '{}' is started again", shared.spec.name)));
        };
        let timeout = shared.options.load_timeout.filter(|_| !*serves);
        if let Some((watch, run)) = watch {
            watch.handle_begin(std::mem::take(run), requests, sent);
        }
        let outcome = running.run(&shared.spec, requests, timeout);
        if let Some((watch, run)) = watch {
            let (ended, end) = watch.handle_end(requests);
            *run = ended;
            match end {
                RunEnd::Finished => {}
                RunEnd::GivenUp => {
                    self.lose("it was given up");
                    requests.clear();
                    return Ok(());
                }
                // It was killed.
                RunEnd::Stopped(error) => {
                    self.lose("a run took too long: its process is killed");
                    return Err(error);
                }
            }
        }
        match outcome {
            Ok(answers) => {
                let output_end = clock();
                for (request, answer) in requests.drain(..).zip(answers) {
                    let mut responder = request.responder;
                    responder.set_batch(answer.batch_rows, answer.is_first);
                    let input_end = (sent + answer.input_end).min(output_end);
                    let infer_end = (sent + answer.infer_end).clamp(input_end, output_end);
                    let stamps = &mut responder.stamps;
                    (stamps.input_end, stamps.infer_end, stamps.output_end) = (input_end, infer_end, output_end);
                    responder.send(answer.outputs);
                }
                Ok(())
            }
            Err(EngineFailure::Refused(error)) => Err(error),
            Err(EngineFailure::Lost(how)) => {
                self.lose(&format!("its process {how}{}", while_it_ran(requests)));
                let name = &self.shared.spec.name;
                Err(Error::internal(format!(
                    "the process of model '{name}' {how} while it ran the batch; it is started again"
                )))
            }
        }
    }

    fn lose(&mut self, why: &str) {
        if let Some(process) = self.process.take() {
            process.kill();
            self.shared.handle_lost(&self.name, why, process.has_answered);
        }
    }
}

/// The ids of the requests of a lost batch, for the log; some of them if there are many.
fn while_it_ran(requests: &[Request]) -> String {
    let ids: Vec<_> =
        requests.iter().filter_map(Request::id).take(CRASH_LINES_MAX).map(|id| format!("'{id}'")).collect();
    if ids.is_empty() { String::new() } else { format!(" while it ran request {}", ids.join(", ")) }
}

impl Instance for IsolatedInstance {
    fn run(&mut self, batch: Batch) {
        let Batch { mut requests, clock, .. } = batch;
        if let Err(error) = self.compute(&mut requests, clock, clock()) {
            answer_all(requests, &error);
        }
    }

    fn poll_flight(&mut self, _clock: Clock) -> InFlightState {
        if let Some(why) = self.process.as_ref().and_then(EngineProcess::poll_lost) {
            self.lose(&why);
        }
        InFlightState { is_lost: self.process.is_none(), ..InFlightState::default() }
    }

    fn set_waker(&mut self, _waker: Waker) {
        self.serves = true;
    }

    fn set_watch(&mut self, watch: Arc<RunWatch>) {
        if let Some(process) = self.process.as_ref().map(EngineProcess::process) {
            watch.set_stopper(Some(Box::new(move || process.kill())));
        }
        self.watch = Some((watch, Box::default()));
    }

    fn event_source(&self) -> Option<Arc<OwnedFd>> {
        self.process.as_ref().map(|process| Arc::clone(process.event_source()))
    }
}

impl Drop for IsolatedInstance {
    fn drop(&mut self) {
        // After a panic the process may be in any state.
        if let Some(process) = self.process.take().filter(|_| !std::thread::panicking()) {
            self.shared.keep(process);
        }
    }
}
