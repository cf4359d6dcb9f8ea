//! Models with steps (`steps.json`): a list that is the model, and a wrapper around an instance of any engine that runs
//! the steps before and behind it. The steps before run where the engine's batch is formed, those behind where it
//! answers. Requests of a batch whose tensors differ in shape behind the first steps run as separate batches of the
//! engine; where the list says how rows are padded, those of about one length run together. A step that panics, which none
//! should, fails its request alone.
//!
//! A request whose step runs another model waits in its instance until the outputs are there; the instance serves others
//! meanwhile.

mod assembly;
mod calls;
mod instance;
mod padded;
#[cfg(test)]
mod padded_tests;
mod padding;
mod progress;
mod proof;
mod shares;
#[cfg(test)]
mod tests;
mod windows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::batch::fits;
use crate::gateway::Gateway;
use crate::gpu::GpuInstanceFigures;
use crate::stepped::calls::Calls;
use crate::stepped::instance::SteppedInstance;
use crate::stepped::padded::{ModelPadding, PaddedInstance};
use crate::text::ShapeText;
use crate::{Backend, Computation, Instance, LoadedModel, ReadyReply, Request, Threads};
use base::error::Error;
use base::metrics::{Gauge, PaddingCells, TeiBatchCells};
use base::tensor::{Shape, Tensor};
use base::time::Clock;
use model::spec::steps::ModelSteps;
use model::{InstanceSeat, ModelSpec, TensorSpec};

/// The backend of lists of steps without another model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steps;

impl Backend for Steps {
    fn name(&self) -> &str {
        "steps"
    }

    fn load(&self, spec: &Arc<ModelSpec>, _directory: &Path) -> Result<Box<dyn LoadedModel>, Error> {
        Ok(Box::new(SteppedModel::new(spec, None, None)?))
    }
}

/// A loaded model with steps.
pub struct SteppedModel {
    spec: Arc<ModelSpec>,
    steps: Arc<ModelSteps>,
    /// The model between the steps, which was loaded by [`ModelSteps::engine`]; `None` if the steps are the model.
    inner: Option<Box<dyn LoadedModel>>,
    /// Runs other models, if steps do that.
    caller: Option<StepCaller>,
    /// `None` unless rows of different lengths may share a run.
    padding: Option<Arc<ModelPadding>>,
}

/// The identity of a model version whose steps run other models, and its way to them.
#[derive(Clone)]
pub struct StepCaller {
    /// Runs the other models.
    pub gateway: Arc<dyn Gateway>,
    /// The model's name, with its namespace.
    pub model: Arc<str>,
    /// Its version.
    pub version: u64,
}

impl SteppedModel {
    /// A model of the steps of `spec`, around `inner` if there is a model between them. `caller` is for steps that run
    /// other models.
    ///
    /// # Errors
    /// `Internal` if the spec has no steps, which the completion of its configuration read, or if its steps run other
    /// models and there is no caller.
    pub fn new(
        spec: &Arc<ModelSpec>,
        inner: Option<Box<dyn LoadedModel>>,
        caller: Option<StepCaller>,
    ) -> Result<Self, Error> {
        let Some(steps) = spec.steps.clone() else { return Err(Error::internal("the model has no steps")) };
        let caller = caller.filter(|_| steps.has_calls());
        if let Some(call) = steps.list.calls().next().filter(|_| caller.is_none()) {
            return Err(Error::internal(format!(
                "a step runs the model '{}', which cannot be reached here",
                call.model
            )));
        }
        let padding = ModelPadding::new(spec, &steps);
        Ok(Self { spec: Arc::clone(spec), steps, inner, caller, padding })
    }

    /// Counts the runs on texts there too, if its steps make tokens of texts and its rows are padded. Before the first instance.
    pub fn with_text_batches(mut self, batches: Option<&Arc<TeiBatchCells>>) -> Self {
        let has_tokens = self.steps.list.tokenizer().is_some();
        if let Some(padding) = self.padding.as_mut().and_then(Arc::get_mut).filter(|_| has_tokens) {
            padding.text_batches = batches.map(Arc::clone);
        }
        self
    }
}

impl LoadedModel for SteppedModel {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        let inner = self.inner.as_ref().map(|inner| inner.new_instance(threads)).transpose()?;
        let (spec, steps) = (Arc::clone(&self.spec), Arc::clone(&self.steps));
        let name = threads.instance().map_or("", |identity| identity.name.as_str());
        let calls = self.caller.clone().map(|caller| Calls::new(caller, name));
        let padded = self.padding.clone().map(|padding| PaddedInstance::new(padding, spec.rows_max));
        Ok(Box::new(SteppedInstance { spec, steps, inner, calls, padded }))
    }

    fn may_run_inline(&self) -> bool {
        // A shard has a request at a time: its rows have no company.
        self.padding.is_none()
            && self.steps.list.is_short()
            && self.inner.as_ref().is_none_or(|inner| inner.may_run_inline())
    }

    fn why_not_inline(&self) -> &str {
        match &self.inner {
            _ if self.padding.is_some() => "rows of its requests share runs",
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

    fn padding(&self) -> Option<&PaddingCells> {
        self.padding.as_ref().map(|padding| &padding.cells)
    }

    fn process_memory(&self) -> Option<&Gauge> {
        self.inner.as_ref().and_then(|inner| inner.process_memory())
    }

    fn gpu_figures(&self) -> Option<Arc<GpuInstanceFigures>> {
        self.inner.as_ref().and_then(|inner| inner.gpu_figures())
    }

    fn prepare_instances(&self, spec: &ModelSpec, seats: &[InstanceSeat]) -> Result<(), Error> {
        self.inner.as_ref().map_or(Ok(()), |inner| inner.prepare_instances(spec, seats))
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

/// The result of steps; a panic becomes an error.
fn guarded<T>(steps: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let ended = catch_unwind(AssertUnwindSafe(steps));
    ended.unwrap_or_else(|_| Err(Error::internal("a step failed in a way that it should not; the log has more")))
}

/// Answers a request for which the model between the steps does not run. The first of the others counts the batch.
fn fail_without_run(mut request: Request, error: Error, clock: Clock) {
    let now = clock();
    let stamps = &mut request.responder.stamps;
    (stamps.input_end, stamps.infer_end, stamps.output_end) = (now, now, now);
    request.responder.set_batch(request.rows, false);
    request.responder.send(Err(error));
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
