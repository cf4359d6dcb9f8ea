//! The way of one request through the steps of its model: up to the model between them or to its answer, and again
//! whenever another model that a step runs has answered.

use std::sync::Arc;

use crate::details::RequestDetails;
use crate::stepped::shares::Shares;
use crate::stepped::{checked, fail_without_run, guarded, input, prepared_input};
use crate::{Answer, AnswerSink, OutputNeed, OutputNeeds, Request, Ticket, wake_afterwards};
use base::error::{Code, Error};
use base::tensor::{Shape, Tensor};
use base::time::Clock;
use model::ModelSpec;
use model::spec::steps::ModelSteps;
use steps::list::StepRun;

/// A request on its way through the steps on one side of the model.
pub(super) struct Progress {
    spec: Arc<ModelSpec>,
    steps: Arc<ModelSteps>,
    clock: Clock,
    run: StepRun,
    stage: Stage,
}

/// Goes on with a request that the model between the steps has answered, in its instance.
pub(super) type ResumeAnswer = Arc<dyn Fn(Progress) + Send + Sync>;

/// The point that a request has reached.
pub(super) enum Advanced {
    /// It is answered.
    Answered,
    /// The model between the steps is to run. The lengths of its rows, if they are padded.
    Ready(Box<Request>, Option<Vec<u32>>),
    /// Another model is to run.
    Waits(Box<Progress>, Box<Shares>),
}

/// A request for the model between the steps, and the lengths of its rows if they are padded.
type PreparedRequest = (Request, Option<Vec<u32>>);

/// The part of the list that runs.
enum Stage {
    /// The steps before the model, or all if they are the model.
    Before(Request),
    /// The steps behind the model: its answer waits for them.
    Behind(AnswerBehind),
}

/// An answer of the model between the steps, on its way to the shard.
struct AnswerBehind {
    answer: Answer,
    ticket: Ticket,
    sink: Arc<dyn AnswerSink>,
    rest: Arc<RestOfSteps>,
}

/// The things that the steps behind the model need of a request.
struct RestOfSteps {
    spec: Arc<ModelSpec>,
    steps: Arc<ModelSteps>,
    /// Tensors from before the model ran, by name.
    kept: Vec<(String, Tensor)>,
    rows: u32,
    /// The outputs that the request needs.
    needs: OutputNeeds,
    clock: Clock,
    /// For calls of other models.
    details: Option<Arc<RequestDetails>>,
    /// Takes the answer if steps behind the model run other models: the instance goes on with it.
    resume: Option<ResumeAnswer>,
}

impl Progress {
    /// A request that arrives.
    pub(super) fn new(spec: &Arc<ModelSpec>, steps: &Arc<ModelSteps>, request: Request, clock: Clock) -> Self {
        let run = steps.list.start(|name| input(spec, &request.inputs, name));
        Self { spec: Arc::clone(spec), steps: Arc::clone(steps), clock, run, stage: Stage::Before(request) }
    }

    /// A request that the model between the steps has answered.
    fn behind(held: AnswerBehind) -> Self {
        let rest = &held.rest;
        let (spec, steps, clock) = (Arc::clone(&rest.spec), Arc::clone(&rest.steps), rest.clock);
        let run = steps.list.start_behind_model(|name| held.named(name));
        Self { spec, steps, clock, run, stage: Stage::Behind(held) }
    }

    /// The details of the request beside its tensors.
    pub(super) fn details(&self) -> Option<&RequestDetails> {
        match &self.stage {
            Stage::Before(request) => request.details.as_deref(),
            Stage::Behind(held) => held.rest.details.as_deref(),
        }
    }

    /// Returns true if its client has left.
    pub(super) fn has_left(&self) -> bool {
        match &self.stage {
            Stage::Before(request) => request.responder.has_left(),
            Stage::Behind(held) => held.sink.has_left(held.ticket),
        }
    }

    /// Runs its steps up to the next call of another model, to the model between the steps, or to the answer. `resume` is
    /// for steps behind the model that run other models.
    pub(super) fn advance(mut self, resume: Option<&ResumeAnswer>) -> Advanced {
        let steps = Arc::clone(&self.steps);
        match guarded(|| steps.list.advance(&mut self.run)) {
            Ok(None) => {
                let ready = self.end(resume);
                return ready
                    .map_or(Advanced::Answered, |(request, lengths)| Advanced::Ready(Box::new(request), lengths));
            }
            Ok(Some(awaited)) => match Shares::new(awaited) {
                Ok(shares) => return Advanced::Waits(Box::new(self), Box::new(shares)),
                Err(error) => self.fail_call(error),
            },
            Err(error) => self.fail(error),
        }
        Advanced::Answered
    }

    /// Takes the outputs of the call that it waits for. Returns the request, which goes on, unless that fails.
    pub(super) fn resume(mut self, outputs: Result<Vec<Option<Tensor>>, Error>) -> Option<Self> {
        let steps = Arc::clone(&self.steps);
        match outputs.map_err(|error| steps.list.fail(&self.run, error)) {
            Ok(outputs) => match steps.list.resume(&mut self.run, outputs) {
                Ok(()) => return Some(self),
                Err(error) => self.fail(error),
            },
            Err(error) => self.fail(error),
        }
        None
    }

    /// Answers it with the error of the call that it waits for.
    fn fail_call(self, error: Error) {
        let error = self.steps.list.fail(&self.run, error);
        self.fail(error);
    }

    /// Answers it with an error.
    fn fail(self, error: Error) {
        let now = (self.clock)();
        match self.stage {
            Stage::Before(mut request) => {
                let stamps = &mut request.responder.stamps;
                if self.steps.engine.is_some() {
                    stamps.input_end = now;
                    // The model does not run for it: the first of the others counts the batch.
                    request.responder.set_batch(request.rows, false);
                }
                let stamps = &mut request.responder.stamps;
                (stamps.infer_end, stamps.output_end) = (now, now);
                request.responder.send(Err(error));
            }
            // They read tensors that the model made, which a client cannot help.
            Stage::Behind(held) => held.send(Err(blameless(error)), now),
        }
    }

    /// All steps on its side of the model have run.
    fn end(self, resume: Option<&ResumeAnswer>) -> Option<PreparedRequest> {
        let Self { spec, steps, clock, run, stage } = self;
        match stage {
            Stage::Before(request) if steps.engine.is_some() => prepare(&spec, &steps, run, request, clock, resume),
            Stage::Before(mut request) => {
                let (rows, needs) = (request.rows, &request.responder.output_needs);
                let named = |name: &str| input(&spec, &request.inputs, name);
                let outputs = guarded(|| outputs(&spec, &steps, run, (rows, needs), named));
                let now = clock();
                (request.responder.stamps.infer_end, request.responder.stamps.output_end) = (now, now);
                request.responder.send(outputs);
                None
            }
            Stage::Behind(held) => {
                let rest = (held.rest.rows, &held.rest.needs);
                let outputs = guarded(|| outputs(&spec, &steps, run, rest, |name| held.named(name)));
                held.send(outputs, clock());
                None
            }
        }
    }
}

/// The outputs of the model: those that steps wrote, and others that were there before. One that the request does not need
/// is left out.
fn outputs(
    spec: &ModelSpec,
    steps: &ModelSteps,
    run: StepRun,
    (rows, needs): (u32, &OutputNeeds),
    named: impl Fn(&str) -> Option<Tensor>,
) -> Result<Vec<Tensor>, Error> {
    let mut tensors = steps.list.tensors(run);
    let output = |(index, output): (usize, &model::TensorSpec)| {
        if needs.of(index) == OutputNeed::Nothing {
            let (datatype, shape) = (output.datatype, Shape::new());
            return Ok(Tensor { datatype, shape, contents: bytes::Bytes::new() });
        }
        let tensor = tensors.take(&output.name).or_else(|| named(&output.name));
        checked(spec, output, tensor, rows)
    };
    spec.outputs.iter().enumerate().map(output).collect()
}

/// Gives a request the inputs of the model between the steps, whose answer goes through the others. Answers it if the
/// tensors do not fit the model.
fn prepare(
    spec: &Arc<ModelSpec>,
    steps: &Arc<ModelSteps>,
    run: StepRun,
    mut request: Request,
    clock: Clock,
    resume: Option<&ResumeAnswer>,
) -> Option<PreparedRequest> {
    let prepared = guarded(|| {
        let tensors = steps.list.tensors(run);
        let lengths = tensors.row_lengths();
        let rows_for_model = tensors.rows_for_model().unwrap_or(request.rows);
        let named = |name: &str| tensors.get(name).cloned().or_else(|| input(spec, &request.inputs, name));
        let kept: Vec<_> = steps.kept.iter().filter_map(|name| Some((name.clone(), named(name)?))).collect();
        let engine = steps.engine.as_ref().ok_or_else(|| Error::internal("the steps have no model between them"))?;
        let inputs = engine.inputs.iter().map(|wanted| match named(&wanted.name) {
            None if wanted.is_optional => {
                let (datatype, shape) = (wanted.datatype, Shape::new());
                Ok(Tensor { datatype, shape, contents: bytes::Bytes::new() })
            }
            tensor => prepared_input(engine, wanted, tensor, rows_for_model),
        });
        Ok((kept, inputs.collect::<Result<Vec<_>, _>>()?, rows_for_model, lengths))
    });
    match prepared {
        Ok((kept, inputs, rows_for_model, lengths)) => {
            request.inputs = inputs;
            let needs = std::mem::take(&mut request.responder.output_needs);
            let resume = resume.filter(|_| steps.list.has_calls_behind_model()).cloned();
            let details = resume.as_ref().and(request.details.clone());
            let (spec, steps, rows) = (Arc::clone(spec), Arc::clone(steps), request.rows);
            request.rows = rows_for_model;
            let rest = Arc::new(RestOfSteps { spec, steps, kept, rows, needs, clock, details, resume });
            request.responder.answer_through(|inner| Arc::new(StepsBehind { inner, rest }));
            Some((request, lengths))
        }
        Err(error) => {
            fail_without_run(request, error, clock);
            None
        }
    }
}

/// An error of the steps behind the model: the client's inputs were good.
fn blameless(error: Error) -> Error {
    if error.code() == Code::InvalidArgument { Error::internal(error.text().to_owned()) } else { error }
}

impl AnswerBehind {
    /// The tensor with this name: an output of the model, or a tensor from before it ran.
    fn named(&self, name: &str) -> Option<Tensor> {
        let engine = self.rest.steps.engine.as_ref()?;
        let computed = self.answer.outputs.as_ref().ok()?;
        match engine.output_index(name).and_then(|index| computed.get(index)) {
            Some(tensor) => Some(tensor.clone()).filter(|tensor| !tensor.is_missing()),
            None => self.rest.kept.iter().find(|(kept, _)| kept == name).map(|(_, tensor)| tensor.clone()),
        }
    }

    fn send(self, outputs: Result<Vec<Tensor>, Error>, now: base::time::Instant) {
        let Self { mut answer, ticket, sink, .. } = self;
        answer.outputs = outputs;
        answer.stamps.output_end = now;
        sink.push(ticket, answer);
        wake_afterwards(sink);
    }
}

/// A sink that runs the steps behind the model on an answer, on its way to the shard.
struct StepsBehind {
    inner: Arc<dyn AnswerSink>,
    rest: Arc<RestOfSteps>,
}

impl AnswerSink for StepsBehind {
    fn push(&self, ticket: Ticket, answer: Answer) {
        let sink = Arc::clone(&self.inner);
        if answer.outputs.is_err() {
            sink.push(ticket, answer);
            return wake_afterwards(sink);
        }
        let held = AnswerBehind { answer, ticket, sink, rest: Arc::clone(&self.rest) };
        match &self.rest.resume {
            Some(resume) => resume(Progress::behind(held)),
            None => {
                Progress::behind(held).advance(None);
            }
        }
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
