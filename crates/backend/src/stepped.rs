//! Models with steps (`steps.json`): a list that is the model, and a wrapper around an instance of any engine that runs
//! the steps before and behind it. The steps before run where the engine's batch is formed, those behind where it
//! answers. Requests of a batch whose tensors differ in shape behind the first steps run as separate batches of the
//! engine. A step that panics, which none should, fails its request alone.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;

use crate::batch::fits;
use crate::gpu::GpuInstanceFigures;
use crate::text::ShapeText;
use crate::{
    Answer, AnswerSink, Backend, Batch, Computation, InFlightState, Instance, LoadedModel, OutputNeeds, ReadyReply,
    Request, RunWatch, Threads, Ticket, wake_afterwards,
};
use base::error::Error;
use base::metrics::Gauge;
use base::tensor::{Shape, Tensor};
use base::time::Clock;
use model::spec::steps::ModelSteps;
use model::{ModelSpec, TensorSpec};

/// The backend of lists of steps without another model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps;

impl Backend for Steps {
    fn name(&self) -> &str {
        "steps"
    }

    fn load(&self, spec: &Arc<ModelSpec>, _directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        Ok(Box::new(SteppedModel::new(spec, None)?))
    }
}

/// A loaded model with steps.
pub struct SteppedModel {
    spec: Arc<ModelSpec>,
    steps: Arc<ModelSteps>,
    /// The model between the steps, which was loaded by [`ModelSteps::engine`]; `None` if the steps are the model.
    inner: Option<Box<dyn LoadedModel>>,
}

impl SteppedModel {
    /// A model of the steps of `spec`, around `inner` if there is a model between them.
    ///
    /// # Errors
    /// `Internal` if the spec has no steps, which the completion of its configuration read.
    pub fn new(spec: &Arc<ModelSpec>, inner: Option<Box<dyn LoadedModel>>) -> Result<Self, Error> {
        let Some(steps) = spec.steps.clone() else { return Err(Error::internal("the model has no steps")) };
        Ok(Self { spec: Arc::clone(spec), steps, inner })
    }
}

impl LoadedModel for SteppedModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let inner = self.inner.as_ref().map(|inner| inner.new_instance(threads)).transpose()?;
        let (spec, steps) = (Arc::clone(&self.spec), Arc::clone(&self.steps));
        Ok(Box::new(SteppedInstance { spec, steps, inner }))
    }

    fn may_run_inline(&self) -> bool {
        self.steps.list.is_short() && self.inner.as_ref().is_none_or(|inner| inner.may_run_inline())
    }

    fn why_not_inline(&self) -> &str {
        match &self.inner {
            Some(inner) if self.steps.list.is_short() => inner.why_not_inline(),
            _ => "its steps may take long",
        }
    }

    fn computation(&self) -> Computation {
        match self.inner.as_ref().map(|inner| inner.computation()) {
            Some(computation) if self.steps.list.is_short() => computation,
            None if self.steps.list.is_short() => Computation::Short,
            _ => Computation::OfAnyLength,
        }
    }

    fn between_steps(&self) -> Option<(&Arc<ModelSpec>, &dyn LoadedModel)> {
        Some((self.steps.engine.as_ref()?, self.inner.as_deref()?))
    }

    fn process_memory(&self) -> Option<&Gauge> {
        self.inner.as_ref().and_then(|inner| inner.process_memory())
    }

    fn gpu_figures(&self) -> Option<Arc<GpuInstanceFigures>> {
        self.inner.as_ref().and_then(|inner| inner.gpu_figures())
    }

    fn ask_ready(&self, reply: ReadyReply) -> Option<ReadyReply> {
        match &self.inner {
            Some(inner) => inner.ask_ready(reply),
            None => Some(reply),
        }
    }

    fn handle_unload(&self) {
        if let Some(inner) = &self.inner {
            inner.handle_unload();
        }
    }

    fn process_size(&self) -> u64 {
        self.inner.as_ref().map_or(0, |inner| inner.process_size())
    }

    fn refuses_while_lost(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.refuses_while_lost())
    }
}

struct SteppedInstance {
    spec: Arc<ModelSpec>,
    steps: Arc<ModelSteps>,
    inner: Option<Box<dyn Instance>>,
}

impl Instance for SteppedInstance {
    fn run(&mut self, batch: Batch) {
        let Batch { requests, clock, ended, .. } = batch;
        let Some(inner) = &mut self.inner else {
            requests.into_iter().for_each(|request| run_list(&self.spec, &self.steps, request, clock));
            return;
        };
        let mut groups: Vec<Vec<Request>> = Vec::new();
        for request in requests {
            let Some(request) = before(&self.spec, &self.steps, request, clock) else { continue };
            let engine = self.steps.engine.as_ref().filter(|engine| !engine.has_batch_axis());
            if let Some(outputs) = engine.and_then(|engine| outputs_of_nothing(engine, &request.inputs)) {
                answer_without_run(request, outputs, clock);
                continue;
            }
            let has_shapes_of = |group: &Vec<Request>| {
                let shapes = |request: &Request| -> Vec<Shape> {
                    let has_axis = self.spec.has_batch_axis();
                    request
                        .inputs
                        .iter()
                        .map(|tensor| tensor.shape.iter().skip(usize::from(has_axis)).copied().collect())
                        .collect()
                };
                group.first().is_some_and(|first| shapes(first) == shapes(&request))
            };
            match groups.iter_mut().find(|group| has_shapes_of(group)) {
                Some(group) => group.push(request),
                None => groups.push(vec![request]),
            }
        }
        let mut ended = Some(ended);
        for mut requests in groups {
            let rows = requests.iter().fold(0_u32, |sum, request| sum.saturating_add(request.rows));
            for (index, request) in requests.iter_mut().enumerate() {
                request.responder.set_batch(rows, index == 0);
            }
            inner.run(Batch { requests, rows, clock, ended: ended.take().unwrap_or_default() });
        }
    }

    fn poll_flight(&mut self, clock: Clock) -> InFlightState {
        self.inner.as_mut().map_or_else(InFlightState::default, |inner| inner.poll_flight(clock))
    }

    fn set_threads(&mut self, threads: &Threads) {
        if let Some(inner) = &mut self.inner {
            inner.set_threads(threads);
        }
    }

    fn set_waker(&mut self, waker: Waker) {
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

/// Runs a list that is the model on a request, and answers it.
fn run_list(spec: &ModelSpec, steps: &ModelSteps, mut request: Request, clock: Clock) {
    request.responder.stamps.input_end = clock();
    let outputs = guarded(|| {
        let mut tensors = steps.list.begin(|name| input(spec, &request.inputs, name))?;
        let outputs = spec.outputs.iter().map(|output| {
            let tensor = tensors.take(&output.name).or_else(|| input(spec, &request.inputs, &output.name));
            checked(spec, output, tensor, request.rows)
        });
        outputs.collect()
    });
    let now = clock();
    (request.responder.stamps.infer_end, request.responder.stamps.output_end) = (now, now);
    request.responder.send(outputs);
}

/// Runs the steps before the model: the request then has the model's inputs, and its answer goes through the others.
/// Answers it if a step fails.
fn before(spec: &Arc<ModelSpec>, steps: &Arc<ModelSteps>, mut request: Request, clock: Clock) -> Option<Request> {
    let prepared = guarded(|| {
        let tensors = steps.list.begin(|name| input(spec, &request.inputs, name))?;
        let named = |name: &str| tensors.get(name).cloned().or_else(|| input(spec, &request.inputs, name));
        let kept = steps.kept.iter().filter_map(|name| Some((name.clone(), named(name)?))).collect();
        let engine = steps.engine.as_ref().ok_or_else(|| Error::internal("the steps have no model between them"))?;
        let inputs = engine.inputs.iter().map(|wanted| match named(&wanted.name) {
            None if wanted.is_optional => {
                let (datatype, shape) = (wanted.datatype, Shape::new());
                Ok(Tensor { datatype, shape, contents: bytes::Bytes::new() })
            }
            tensor => prepared_input(engine, wanted, tensor, request.rows),
        });
        Ok((kept, inputs.collect::<Result<Vec<_>, _>>()?))
    });
    match prepared {
        Ok((kept, inputs)) => {
            request.inputs = inputs;
            request.responder.output_needs = OutputNeeds::default();
            let rest =
                RestOfSteps { spec: Arc::clone(spec), steps: Arc::clone(steps), kept, rows: request.rows, clock };
            request.responder.answer_through(|inner| Arc::new(StepsBehind { inner, rest }));
            Some(request)
        }
        Err(error) => {
            let now = clock();
            let stamps = &mut request.responder.stamps;
            (stamps.input_end, stamps.infer_end, stamps.output_end) = (now, now, now);
            // The model does not run for it: the first of the others counts the batch.
            request.responder.set_batch(request.rows, false);
            request.responder.send(Err(error));
            None
        }
    }
}

/// The outputs of the model between the steps for inputs without a row, such as the crops of a picture in which nothing was
/// found: engines refuse such inputs, or do worse. `None` where an input has rows, or an output has a fixed number of them.
fn outputs_of_nothing(engine: &ModelSpec, inputs: &[Tensor]) -> Option<Vec<Tensor>> {
    if inputs.is_empty() || !inputs.iter().all(|input| input.shape.first() == Some(&0)) {
        return None;
    }
    let outputs = engine.outputs.iter().map(|output| {
        let shape: Shape = output.model_shape.iter().map(|size| (*size).max(0)).collect();
        let is_empty = shape.first() == Some(&0);
        is_empty.then(|| Tensor { datatype: output.datatype, shape, contents: bytes::Bytes::new() })
    });
    outputs.collect()
}

/// Answers a request for which there is nothing to run.
fn answer_without_run(mut request: Request, outputs: Vec<Tensor>, clock: Clock) {
    let now = clock();
    let stamps = &mut request.responder.stamps;
    (stamps.input_end, stamps.infer_end, stamps.output_end) = (now, now, now);
    request.responder.set_batch(request.rows, true);
    request.responder.send(Ok(outputs));
}

/// A sink that runs the steps behind the model on an answer, on its way to the shard.
struct StepsBehind {
    inner: Arc<dyn AnswerSink>,
    rest: RestOfSteps,
}

/// The part of a list behind the model, for one request.
struct RestOfSteps {
    spec: Arc<ModelSpec>,
    steps: Arc<ModelSteps>,
    /// Tensors from before the model ran, by name.
    kept: Vec<(String, Tensor)>,
    rows: u32,
    clock: Clock,
}

impl RestOfSteps {
    fn run(&self, computed: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let engine =
            self.steps.engine.as_ref().ok_or_else(|| Error::internal("the steps have no model between them"))?;
        let named = |name: &str| match engine.output_index(name).and_then(|index| computed.get(index)) {
            Some(tensor) => Some(tensor.clone()).filter(|tensor| !tensor.is_missing()),
            None => self.kept.iter().find(|(kept, _)| kept == name).map(|(_, tensor)| tensor.clone()),
        };
        // They read tensors that the model made, which a client cannot help.
        let mut tensors = self.steps.list.finish(named).map_err(|error| Error::internal(error.text().to_owned()))?;
        let outputs = self.spec.outputs.iter().map(|output| {
            let tensor = tensors.take(&output.name).or_else(|| named(&output.name));
            checked(&self.spec, output, tensor, self.rows)
        });
        outputs.collect()
    }
}

impl AnswerSink for StepsBehind {
    fn push(&self, ticket: Ticket, mut answer: Answer) {
        if let Ok(computed) = &answer.outputs {
            answer.outputs = guarded(|| self.rest.run(computed));
            answer.stamps.output_end = (self.rest.clock)();
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

/// The result of steps; a panic becomes an error.
fn guarded<T>(steps: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let ended = catch_unwind(AssertUnwindSafe(steps));
    ended.unwrap_or_else(|_| Err(Error::internal("a step failed in a way that it should not; the log has more")))
}

/// The input of a request with this name; `None` if the model has no such input, or it was left out.
fn input(spec: &ModelSpec, inputs: &[Tensor], name: &str) -> Option<Tensor> {
    let tensor = inputs.get(spec.input_index(name)?)?;
    tensor.is_given().then(|| tensor.clone())
}

/// A tensor that steps made for the model between them.
///
/// # Errors
/// `InvalidArgument` if it is missing or has another datatype or shape: a fixed length, for example, that the request's
/// text exceeds.
fn prepared_input(engine: &ModelSpec, wanted: &TensorSpec, tensor: Option<Tensor>, rows: u32) -> Result<Tensor, Error> {
    let name = &wanted.name;
    let Some(tensor) = tensor else {
        return Err(Error::invalid(format!(
            "the model needs '{name}', which no step wrote and the request does not have"
        )));
    };
    if is_as_configured(engine, wanted, &tensor, rows) {
        return Ok(tensor);
    }
    Err(Error::invalid(format!(
        "the model's input '{name}' must be {} with shape {}, but the steps made {} with shape {}",
        wanted.datatype.name(),
        ShapeText(&pattern(engine, wanted, rows)),
        tensor.datatype.name(),
        ShapeText(&tensor.shape)
    )))
}

/// An output of the model as its configuration says.
fn checked(spec: &ModelSpec, wanted: &TensorSpec, tensor: Option<Tensor>, rows: u32) -> Result<Tensor, Error> {
    let name = &wanted.name;
    let Some(tensor) = tensor else { return Err(Error::internal(format!("no step wrote the output '{name}'"))) };
    if is_as_configured(spec, wanted, &tensor, rows) {
        return Ok(tensor);
    }
    Err(Error::internal(format!(
        "output '{name}' of model '{}' must be {} with shape {}, but the steps made {} with shape {}",
        spec.name,
        wanted.datatype.name(),
        ShapeText(&pattern(spec, wanted, rows)),
        tensor.datatype.name(),
        ShapeText(&tensor.shape)
    )))
}

/// Returns true if a tensor is as the configuration says, after its `reshape`.
fn is_as_configured(spec: &ModelSpec, wanted: &TensorSpec, tensor: &Tensor, rows: u32) -> bool {
    tensor.datatype == wanted.datatype && fits(&pattern(spec, wanted, rows), &tensor.shape)
}

/// The shape of the configuration for a request of `rows` rows.
fn pattern(spec: &ModelSpec, wanted: &TensorSpec, rows: u32) -> Shape {
    let mut shape = wanted.model_shape.clone();
    if let Some(first) = shape.first_mut().filter(|_| spec.has_batch_axis() && !wanted.is_shape_tensor) {
        *first = i64::from(rows);
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::error::Code;

    #[test]
    fn inputs_without_rows_have_outputs_without_rows() {
        use crate::trial::{spec, tensor};
        use base::tensor::Datatype::{Fp32, Int64};
        let engine =
            spec(0, &[("crops", Fp32, &[-1, 3])], &[("logits", Fp32, &[-1, -1, 9]), ("lengths", Int64, &[-1])]);
        let shapes = |rows: i64| {
            let values = vec![0.0_f32; 3 * rows as usize];
            let outputs = outputs_of_nothing(&engine, &[tensor(&[rows, 3], &values)])?;
            Some(outputs.into_iter().map(|output| output.shape.to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(shapes(0), Some(vec![vec![0, 0, 9], vec![0]]));
        assert_eq!(shapes(1), None);
        let fixed = spec(0, &[("x", Fp32, &[-1])], &[("y", Fp32, &[2])]);
        assert!(
            outputs_of_nothing(&fixed, &[tensor::<f32>(&[0], &[])]).is_none(),
            "the model has to say what they are"
        );
        assert!(outputs_of_nothing(&engine, &[]).is_none());
    }

    #[test]
    fn a_step_that_panics_fails_its_request() {
        let error = guarded::<()>(|| std::panic::panic_any("a fault")).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert_eq!(guarded(|| Ok(1)), Ok(1));
    }
}
