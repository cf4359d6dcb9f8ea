//! An instance of a model with steps.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use crate::stepped::calls::Calls;
use crate::stepped::padded::{PaddedInstance, ReadyRequest};
use crate::stepped::progress::{Advanced, Progress};
use crate::stepped::windows::in_shares;
use crate::{Batch, InFlightState, Instance, Request, RunWatch, Threads, announce_answers};
use base::tensor::{Shape, Tensor};
use base::time::Clock;
use model::ModelSpec;
use model::spec::steps::ModelSteps;

/// An instance of a model with steps: that of the model between them, if there is one, and the requests that wait for
/// other models.
pub(super) struct SteppedInstance {
    pub(super) spec: Arc<ModelSpec>,
    pub(super) steps: Arc<ModelSteps>,
    pub(super) inner: Option<Box<dyn Instance>>,
    /// `None` if no step runs another model.
    pub(super) calls: Option<Calls>,
    /// `None` unless rows of different lengths may share a run.
    pub(super) padded: Option<PaddedInstance>,
}

impl Instance for SteppedInstance {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, ended, .. } = batch;
        let mut ready = Vec::new();
        for mut request in requests {
            if self.inner.is_none() {
                request.responder.stamps.input_end = clock();
            }
            let progress = Progress::new(&self.spec, &self.steps, request, clock);
            self.advance(progress, &mut ready);
        }
        self.run_engine(ready, ended, clock);
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        let mut ready = Vec::new();
        while let Some(progress) = self.calls.as_mut().and_then(Calls::poll) {
            self.advance(progress, &mut ready);
        }
        self.run_engine(ready, Vec::new(), clock);
        let engine = self.inner.as_mut().map_or_else(InFlightState::default, |inner| inner.poll_flight(clock));
        match &mut self.calls {
            Some(calls) => calls.state_beside(engine),
            None => engine,
        }
    }

    fn set_threads(&mut self, threads: &Threads) {
        if let Some(inner) = &mut self.inner {
            inner.set_threads(threads);
        }
    }

    fn set_waker(&mut self, waker: Waker) {
        if let Some(calls) = &mut self.calls {
            calls.set_waker(waker.clone());
        }
        if let Some(inner) = &mut self.inner {
            inner.set_waker(waker);
        }
    }

    fn set_watch(&mut self, watch: Arc<RunWatch>) {
        if let Some(inner) = &mut self.inner {
            inner.set_watch(watch);
        }
    }

    fn event_source(&self) -> Option<Arc<OwnedFd>> {
        self.inner.as_ref().and_then(|inner| inner.event_source())
    }
}

impl SteppedInstance {
    /// Runs the steps of a request as far as they go. It joins those that are `ready` if the model between them is next.
    fn advance(&mut self, progress: Progress, ready: &mut Vec<ReadyRequest>) {
        match progress.advance(self.calls.as_ref().map(Calls::resume_answer).as_ref()) {
            Advanced::Answered => {}
            Advanced::Ready(request, lengths) => {
                let inputs = self.padded.as_ref().map(|padded| &padded.padding.inputs);
                let rows = inputs.zip(lengths).and_then(|(padded, lengths)| {
                    padded.rows(&request.inputs, request.rows, lengths).filter(|_| request.sequence.is_none())
                });
                ready.push(ReadyRequest { request: *request, rows });
            }
            Advanced::Waits(progress, shares) => match &mut self.calls {
                Some(calls) => calls.begin(*progress, *shares),
                // Cannot happen: `SteppedModel::new` refuses such a list without a caller. Its client gets an internal error.
                None => drop(progress),
            },
        }
    }

    /// Runs the model between the steps on requests: rows of requests as they cost least, others in a batch for each
    /// combination of shapes.
    fn run_engine(&mut self, requests: Vec<ReadyRequest>, mut ended: Vec<usize>, clock: Clock) {
        let Self { inner: Some(inner), padded, spec, steps, .. } = self else { return };
        let divides = padded.as_ref().is_some_and(PaddedInstance::divides);
        let (divided, whole): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|ready| divides && ready.rows.is_some());
        let proof = padded.as_ref().filter(|_| !divides).and_then(|padded| {
            padded.padding.count_whole(&whole, spec.rows_max);
            let rows = whole.iter().filter_map(|ready| Some((&ready.request, ready.rows.as_ref()?)));
            padded.padding.proof.begin(&padded.padding.inputs, rows)
        });
        let divides_rows = steps.engine.as_ref().is_some_and(|engine| engine.has_batch_axis());
        let whole = whole.into_iter().flat_map(|ready| match divides_rows {
            true => in_shares(ready.request, spec.rows_max, clock),
            false => vec![ready.request],
        });
        for mut requests in groups_of(spec, steps, whole, clock) {
            let rows = rows_of(&requests);
            for (index, request) in requests.iter_mut().enumerate() {
                request.responder.set_batch(rows, index == 0);
            }
            inner.run(Batch { requests, rows, clock, ended: std::mem::take(&mut ended) });
        }
        if let Some(padded) = padded.as_mut().filter(|_| !divided.is_empty()) {
            padded.run(&mut **inner, divided, &mut ended, clock);
        }
        for requests in proof.into_iter().flatten() {
            // No client waits for these.
            announce_answers();
            inner.run(Batch { rows: rows_of(&requests), requests, clock, ended: Vec::new() });
        }
    }
}

/// Requests in groups of the same shapes. Those for which there is nothing to run are answered.
fn groups_of(
    spec: &ModelSpec,
    steps: &ModelSteps,
    requests: impl Iterator<Item = Request>,
    clock: Clock,
) -> Vec<Vec<Request>> {
    let mut groups: Vec<Vec<Request>> = Vec::new();
    for request in requests {
        let engine = steps.engine.as_ref().filter(|engine| !engine.has_batch_axis());
        if let Some(outputs) = engine.and_then(|engine| engine.outputs_without_rows(&request.inputs)) {
            answer_without_run(request, outputs, clock);
            continue;
        }
        let rows_max = spec.rows_max;
        let has_room = |group: &Vec<Request>| rows_of(group).saturating_add(request.rows) <= rows_max.max(1);
        let shapes = shapes_of(spec, &request);
        let fits = |group: &Vec<Request>| {
            group.first().is_some_and(|first| shapes_of(spec, first) == shapes) && has_room(group)
        };
        match groups.iter_mut().find(|group| fits(group)) {
            Some(group) => group.push(request),
            None => groups.push(vec![request]),
        }
    }
    groups
}

fn rows_of(requests: &[Request]) -> u32 {
    requests.iter().fold(0, |sum, request| sum.saturating_add(request.rows))
}

/// The shapes of a request's inputs without their batch axis.
fn shapes_of(spec: &ModelSpec, request: &Request) -> Vec<Shape> {
    let skipped = usize::from(spec.has_batch_axis());
    request.inputs.iter().map(|tensor| tensor.shape.iter().skip(skipped).copied().collect()).collect()
}

/// Answers a request for which there is nothing to run.
fn answer_without_run(mut request: Request, outputs: Vec<Tensor>, clock: Clock) {
    let now = clock();
    let stamps = &mut request.responder.stamps;
    (stamps.input_end, stamps.infer_end, stamps.output_end) = (now, now, now);
    request.responder.set_batch(request.rows, true);
    request.responder.send(Ok(outputs));
}
