//! Runs a request of an ensemble. A step is submitted to the same model queues as a client's
//! request, as soon as its inputs are there; `scheduler::ensemble` chooses those that can run.
//! Tensors pass by reference count. The first step that fails fails the request, and the steps
//! still running are cancelled; all are when the client leaves or the deadline passes. Between
//! requests an ensemble keeps nothing but its wiring.
//!
//! There is no deadlock: a step whose queue is full fails instead of waiting, and an answer or a permit that a step
//! waits for is never held by a task that waits for this request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;

use crate::backend::{Answer, AnswerPart, Ticket};
use crate::error::{Code, Error};
use crate::limits::{ENSEMBLE_DEPTH_MAX, ENSEMBLE_FRAMES_MAX, INLINE_LONGEST_MAX};
use crate::metrics::StepTimes;
use crate::model::ensemble::{Wiring, fits};
use crate::model::parameters::Parameters;
use crate::model::{ModelSpec, TensorSpec};
use crate::protocol::check::{self, NamedTensor};
use crate::protocol::infer::{InferRequest, OutputPlan, ResponsePlan, SequenceParameters};
use crate::queue::request_slots::{PartSink, RequestSlots};
use crate::queue::semaphore::Semaphore;
use crate::queue::served_model::Placement;
use crate::runtime::clock;
use crate::scheduler::ensemble::{EnsembleRun, StepLaunch};
use crate::shard::Shard;
use crate::shard::deadline::unless_late;
use crate::shard::models::ensemble_steps::BoundSteps;
use crate::shard::models::ensemble_steps::EnsembleSteps;
use crate::shard::models::model_table::LocalModel;
use crate::shard::requests::infer::{Arrival, InferOutcome, ModelMetrics};
use crate::tensor::{Datatype, Shape, Tensor};
use crate::time::Stamps;

/// A tensor between two steps.
#[derive(Clone)]
struct StepTensor {
    /// `None` if an optional input was left out.
    tensor: Option<Tensor>,
    /// Its rows, if it has a batch axis; else 0.
    rows: u32,
}

/// The state that all steps of a request share.
struct EnsembleContext {
    shard: Rc<Shard>,
    spec: Arc<ModelSpec>,
    models: Vec<Rc<LocalModel>>,
    bound: Rc<BoundSteps>,
    permits: Arc<[Arc<Semaphore>]>,
    rows: u32,
    priority: u64,
    timeout: Duration,
    sequence: SequenceParameters,
    parameters: Parameters,
    plan: ResponsePlan,
    arrival: Arrival,
    sink: Option<Rc<dyn PartSink>>,
}

/// A running request of an ensemble.
struct RunningEnsemble {
    common: EnsembleContext,
    run: EnsembleRun<StepTensor>,
    in_flight: Vec<StepInFlight>,
    window: Rc<AnswerWindow>,
    computed: StepTimes,
    /// The last response: the only one of an ensemble that is not decoupled, else the one after
    /// which no step is still running.
    outputs: Option<Vec<Tensor>>,
}

/// A running step.
struct StepInFlight {
    frame: usize,
    step: usize,
    rows: u32,
    /// All but the last answer of a decoupled step.
    parts: Option<Rc<UnreadAnswers>>,
    work: StepFuture,
}

type StepFuture = Pin<Box<dyn Future<Output = Result<(InferOutcome, AnswerPart), Error>>>>;

/// Backpressure on decoupled steps: the number of their answers in flight, and whether the client
/// reads.
struct AnswerWindow {
    frames: Cell<usize>,
    outer: Option<Rc<dyn PartSink>>,
}

/// The answers of a decoupled step that were not handed to later steps yet.
struct UnreadAnswers {
    answers: RefCell<VecDeque<Answer>>,
    window: Rc<AnswerWindow>,
}

/// The result of an ensemble request.
struct EnsembleOutcome {
    /// `None` if the last response of a decoupled ensemble was sent while a step still ran.
    outputs: Option<Vec<Tensor>>,
    computed: StepTimes,
}

/// A ticket held while the ensemble runs, so that it counts against the requests in flight; no queue knows it.
struct SlotGuard {
    request_slots: Rc<RequestSlots>,
    ticket: Ticket,
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.request_slots.release(self.ticket);
    }
}

impl Shard {
    /// Runs a request of an ensemble and counts it once.
    ///
    /// # Errors
    /// The first failed step's error, with the ensemble's name and the step in front; or why no step could be submitted.
    pub(super) async fn infer_ensemble(
        self: &Rc<Self>,
        model: &Rc<LocalModel>,
        steps: &EnsembleSteps,
        request: InferRequest,
        arrival: Arrival,
        sink: Option<Rc<dyn PartSink>>,
    ) -> Result<(InferOutcome, AnswerPart), Error> {
        let began = clock::now();
        let _slot_guard =
            SlotGuard { request_slots: Rc::clone(&self.requests.slots), ticket: self.requests.open_ticket()? };
        let model_metrics = ModelMetrics::open(model, self.index, request.rows, arrival.received);
        let (spec, plan) = (Arc::clone(&model.served().spec), request.plan.clone());
        let Arrival { received, deadline, .. } = arrival;
        let outcome = match self.begin_ensemble(model, steps, request, arrival, sink) {
            Ok(running) => unless_late(running, deadline).await,
            Err(error) => Err(error),
        };
        let computed = outcome.as_ref().map_or_else(|_| StepTimes::default(), |outcome| outcome.computed);
        model_metrics.settle_ensemble(outcome.is_ok(), &computed);
        let EnsembleOutcome { outputs, .. } =
            outcome.map_err(|error| error.with_prefix(&format!("in ensemble '{}', ", spec.name)))?;
        let stamps = computed.stamps(received, began, clock::now());
        let Some(outputs) = outputs else {
            let outputs = Vec::new();
            return Ok((InferOutcome { outputs, parameters: None, plan, stamps }, AnswerPart::End));
        };
        let outputs = spec.to_client(outputs)?;
        Ok((InferOutcome { outputs, parameters: None, plan, stamps }, AnswerPart::Last))
    }

    fn begin_ensemble(
        self: &Rc<Self>,
        model: &Rc<LocalModel>,
        steps: &EnsembleSteps,
        request: InferRequest,
        arrival: Arrival,
        sink: Option<Rc<dyn PartSink>>,
    ) -> Result<RunningEnsemble, Error> {
        if arrival.depth > ENSEMBLE_DEPTH_MAX {
            return Err(Error::internal(format!("ensembles are more than {ENSEMBLE_DEPTH_MAX} deep")));
        }
        let served = model.served();
        let (Some(ensemble), Placement::Ensemble(permits)) = (&served.spec.ensemble, &served.placement) else {
            return Err(Error::internal("what is no ensemble has no steps"));
        };
        // The handles are kept until the answer, so that a version unloaded meanwhile is not freed.
        let models = self.models.step_models(ensemble)?;
        let bound = steps.bind(&served.spec, ensemble, models.iter().map(|model| &model.served().spec))?;
        let InferRequest { inputs, rows, priority, timeout, sequence, parameters, plan } = request;
        let batch_rows = if served.spec.has_batch_axis() { rows } else { 0 };
        let piece = |tensor: Tensor| StepTensor { tensor: tensor.is_given().then_some(tensor), rows: batch_rows };
        let brought = ensemble.inputs.iter().copied().zip(inputs.into_iter().map(piece));
        let wanted = plan.outputs.iter().filter_map(|output| ensemble.outputs.get(output.index).copied()).collect();
        let run = EnsembleRun::new(Arc::clone(&bound.graph), brought, wanted);
        let window = Rc::new(AnswerWindow { frames: Cell::new(0), outer: sink.clone() });
        let common = EnsembleContext {
            shard: Rc::clone(self),
            spec: Arc::clone(&served.spec),
            models,
            bound,
            permits: Arc::clone(permits),
            rows,
            priority,
            timeout,
            sequence,
            parameters,
            plan,
            arrival,
            sink,
        };
        Ok(RunningEnsemble {
            common,
            run,
            in_flight: Vec::new(),
            window,
            computed: StepTimes::default(),
            outputs: None,
        })
    }
}

impl Future for RunningEnsemble {
    type Output = Result<EnsembleOutcome, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.advance(context);
        if polled.is_ready() {
            // Cancels the steps that still run: nothing needs their answers.
            self.in_flight.clear();
        }
        polled
    }
}

impl RunningEnsemble {
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<Result<EnsembleOutcome, Error>> {
        let began = clock::now();
        loop {
            let mut has_moved = false;
            while let Some(launch) = self.run.poll_step() {
                let step = launch.step;
                match self.common.begin(launch, &self.window) {
                    Ok(step) => self.in_flight.push(step),
                    Err(error) => return Poll::Ready(Err(self.common.in_step(step, error))),
                }
                has_moved = true;
            }
            match self.poll_steps(context).and_then(|have_moved| Ok(have_moved | self.respond()?)) {
                Ok(have_moved) => has_moved |= have_moved,
                Err(error) => return Poll::Ready(Err(error)),
            }
            has_moved |= self.window.frames.replace(self.run.frames()) > self.run.frames();
            if self.run.is_over() {
                return Poll::Ready(self.end());
            }
            if !has_moved {
                return Poll::Pending;
            }
            // Inline steps complete without waiting, so this loop could run long: yield to the shard's other tasks.
            if clock::now().since(began) > INLINE_LONGEST_MAX {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Polls all running steps; returns whether one of them progressed.
    fn poll_steps(&mut self, context: &mut Context<'_>) -> Result<bool, Error> {
        let (mut index, mut has_moved) = (0, false);
        while let Some(flight) = self.in_flight.get_mut(index) {
            let polled = flight.work.as_mut().poll(context);
            let answers = flight.parts.as_ref().map(|parts| std::mem::take(&mut *parts.answers.borrow_mut()));
            let (step, rows) = (flight.step, flight.rows);
            for answer in answers.into_iter().flatten() {
                let outputs = answer.outputs.and_then(|outputs| self.common.spec_of(step)?.to_client(outputs));
                let outputs = outputs.map_err(|error| self.common.in_step(step, error))?;
                self.run.handle_part(step, self.common.pieces(step, rows, outputs));
                has_moved = true;
            }
            let Poll::Ready(outcome) = polled else {
                index += 1;
                continue;
            };
            // In order: requests of a step that wait behind others are queued in the order of the
            // answers before it.
            let flight = self.in_flight.remove(index);
            has_moved = true;
            let (InferOutcome { outputs, stamps, .. }, part) =
                outcome.map_err(|error| self.common.in_step(step, error))?;
            self.computed.add(&stamps);
            if flight.parts.is_none() {
                let outputs = self.common.pieces(step, rows, outputs);
                self.run.handle_outputs(flight.frame, step, outputs);
                continue;
            }
            if part != AnswerPart::End {
                self.run.handle_part(step, self.common.pieces(step, rows, outputs));
            }
            self.run.handle_end(flight.frame);
        }
        Ok(has_moved)
    }

    /// Delivers ready responses, to the sink or as the outputs; returns whether there was one. As in Triton, the last of
    /// a decoupled ensemble is final if no step is under way by then (`ensemble_scheduler.cc`).
    fn respond(&mut self) -> Result<bool, Error> {
        let mut has_moved = false;
        while self.common.sink.as_ref().is_none_or(|sink| sink.has_room()) {
            let Some(response) = self.run.poll_response() else { break };
            has_moved = true;
            let outputs = self.common.outputs(response);
            let is_part = self.common.spec.is_decoupled && !self.run.is_over();
            match self.common.sink.as_ref().filter(|_| is_part) {
                None => self.outputs = Some(outputs),
                Some(sink) => {
                    let stamps = Stamps::default();
                    sink.take(Answer {
                        outputs: Ok(outputs),
                        stamps,
                        batch_rows: 0,
                        is_first: false,
                        part: AnswerPart::More,
                        parameters: None,
                    });
                }
            }
        }
        Ok(has_moved)
    }

    fn end(&mut self) -> Result<EnsembleOutcome, Error> {
        let computed = self.computed;
        let outputs = self.outputs.take();
        if outputs.is_none() && !self.common.spec.is_decoupled {
            let text = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made";
            // A step has left out what another one needs. Triton tells the client that it was its mistake.
            let code = if self.common.spec.follows_triton { Code::InvalidArgument } else { Code::Internal };
            return Err(Error::new(code, format!("{}{text}", check::prefix(&self.common.plan.id))));
        }
        Ok(EnsembleOutcome { outputs, computed })
    }
}

impl EnsembleContext {
    fn spec_of(&self, step: usize) -> Result<&Arc<ModelSpec>, Error> {
        self.bound.specs.get(step).ok_or_else(|| Error::internal("a step has a model"))
    }

    /// The error of a step, which it names by its place in the configuration and its model; as Triton, which names only the
    /// ensemble, with `--compat=triton`.
    fn in_step(&self, step: usize, error: Error) -> Error {
        if self.spec.follows_triton {
            return error;
        }
        let model = self.bound.specs.get(step).map_or("", |spec| spec.name.as_str());
        error.with_prefix(&format!("step {} ('{model}'): ", step + 1))
    }

    /// Submits a step as a client's request would be.
    fn begin(&self, launch: StepLaunch<StepTensor>, window: &Rc<AnswerWindow>) -> Result<StepInFlight, Error> {
        let StepLaunch { frame, step, inputs } = launch;
        let (Some(model), Some(wiring)) = (self.models.get(step), self.bound.wiring.steps.get(step)) else {
            return Err(Error::internal("a step has a model"));
        };
        let spec = &model.served().spec;
        let named = wiring.inputs.iter().zip(inputs).filter_map(|((index, _), piece)| {
            let (input, tensor) = (spec.inputs.get(*index)?, piece.tensor?);
            let shape = reshape(&input.dims, spec.has_batch_axis(), piece.rows, tensor.shape);
            Some(NamedTensor::new(&input.name, Some(tensor.datatype), shape, tensor.contents))
        });
        let mut named = named.collect::<SmallVec<[_; 2]>>();
        let checked = check::check(spec, &self.plan.id, &mut named);
        let (inputs, rows) = checked
            .map_err(|error| wrong_output(&self.bound.specs, &self.bound.wiring, step, &named).unwrap_or(error))?;
        check::check_sequence(spec, &self.sequence, rows)?;
        let outputs: SmallVec<[OutputPlan; 2]> = wiring
            .outputs
            .iter()
            .map(|(index, _)| OutputPlan { index: *index, is_binary: true, is_base64: false, class_count: 0 })
            .collect();
        let plan = ResponsePlan { id: self.plan.id.clone(), outputs, ..ResponsePlan::default() };
        let (priority, timeout, sequence) = (self.priority, self.timeout, self.sequence.clone());
        let parameters = if spec.takes_details() { self.parameters.clone() } else { Parameters::default() };
        let request = InferRequest { inputs, rows, priority, timeout, sequence, parameters, plan };
        let parts = spec
            .is_decoupled
            .then(|| Rc::new(UnreadAnswers { answers: RefCell::default(), window: Rc::clone(window) }));
        let sink = parts.clone().map(|parts| parts as Rc<dyn PartSink>);
        let (shard, model, permits) = (Rc::clone(&self.shard), Rc::clone(model), self.permits.get(step).cloned());
        let Arrival { deadline, depth, chain, trace, .. } = self.arrival.clone();
        let trace = trace.map(|trace| Arc::new(trace.child()));
        let successor = self.successor(step);
        let work = Box::pin(async move {
            let _permit = match permits {
                Some(permits) => Some(permits.acquire().await),
                None => None,
            };
            let arrival = Arrival {
                received: clock::now(),
                deadline,
                depth: depth + 1,
                chain,
                trace,
                on_device: None,
                payer: None,
            };
            let has_run = Cell::new(false);
            let (copy, next) = (request.clone(), arrival.clone());
            let first = if arrival.trace.is_some() {
                Box::pin(shard.infer_traced(&model, copy, next, sink.clone(), &has_run)).await
            } else {
                shard.infer(&model, copy, next, sink.clone(), &has_run).await
            };
            // The model was reloaded while the request was at an earlier step: try once more on the version that
            // replaced it. Safe, since no instance has run this request.
            match first {
                Err(error) if !has_run.get() && model.is_stopped() && error.code() == Code::Unavailable => {
                    shard.infer(&successor(&shard, &model)?, request, arrival, sink, &has_run).await
                }
                outcome => outcome,
            }
        });
        Ok(StepInFlight { frame, step, rows: if spec.has_batch_axis() { rows } else { 0 }, parts, work })
    }

    /// Finds the version that has replaced a step's model, if it has the same tensors.
    fn successor(&self, step: usize) -> impl Fn(&Shard, &LocalModel) -> Result<Rc<LocalModel>, Error> + use<> {
        let version = self.spec.ensemble.as_ref().and_then(|ensemble| ensemble.steps.get(step)?.version);
        let version = version.map(|version| u64::try_from(version).unwrap_or_default());
        move |shard, model| {
            let spec = &model.served().spec;
            let found = shard.models.find_in(&spec.namespace, &spec.name, version)?;
            if is_alike(&found.served().spec, spec) {
                return Ok(found);
            }
            Err(Error::unavailable(format!("model '{}' was reloaded with other tensors", spec.name)))
        }
    }

    /// A step's outputs in the order of its wiring.
    fn pieces(&self, step: usize, rows: u32, outputs: Vec<Tensor>) -> Vec<StepTensor> {
        let mut outputs: Vec<_> = outputs.into_iter().map(Some).collect();
        let wires = self.bound.wiring.steps.get(step).into_iter().flat_map(|wiring| &wiring.outputs);
        let piece = |(index, _): &(usize, usize)| {
            let tensor = outputs.get_mut(*index).and_then(Option::take).filter(|tensor| !tensor.is_missing());
            StepTensor { tensor, rows }
        };
        wires.map(piece).collect()
    }

    /// The outputs of the ensemble in its order; those that were not requested are empty. So are those that no step
    /// made, since a Python model or an optional input was left out: as in Triton the response lacks them.
    fn outputs(&self, response: Vec<StepTensor>) -> Vec<Tensor> {
        let spec = &self.spec;
        let empty = |datatype| Tensor { datatype, shape: Shape::new(), contents: bytes::Bytes::new() };
        let mut outputs: Vec<_> = spec.outputs.iter().map(|output| empty(output.datatype)).collect();
        let has_rows = spec.has_batch_axis() && self.rows > 0;
        for (plan, piece) in self.plan.outputs.iter().zip(response) {
            let (Some(expected), Some(output)) = (spec.outputs.get(plan.index), outputs.get_mut(plan.index)) else {
                continue;
            };
            let Some(tensor) = piece.tensor else { continue };
            let dims = expected.model_shape.get(usize::from(spec.has_batch_axis())..).unwrap_or_default();
            *output = Tensor { shape: reshape(dims, has_rows, piece.rows, tensor.shape), ..tensor };
        }
        outputs
    }
}

impl PartSink for UnreadAnswers {
    fn has_room(&self) -> bool {
        let under_way = self.window.frames.get() + self.answers.borrow().len();
        under_way < ENSEMBLE_FRAMES_MAX && self.window.outer.as_ref().is_none_or(|outer| outer.has_room())
    }

    fn take(&self, answer: Answer) {
        self.answers.borrow_mut().push_back(answer);
    }
}

/// The error of an input of a step that an earlier step made otherwise than its configuration declares: then that step is at
/// fault, and no client.
fn wrong_output(specs: &[Arc<ModelSpec>], wiring: &Wiring, step: usize, inputs: &[NamedTensor<'_>]) -> Option<Error> {
    let (spec, wires) = (specs.get(step)?, &wiring.steps.get(step)?.inputs);
    inputs.iter().find_map(|input| {
        let index = spec.input_index(input.name)?;
        let (_, tensor) = wires.iter().find(|(have, _)| *have == index)?;
        let mut makers = wiring.steps.iter().zip(specs).enumerate();
        let (maker, model, output) = makers.find_map(|(maker, (wiring, spec))| {
            let (output, _) = wiring.outputs.iter().find(|(_, have)| have == tensor)?;
            Some((maker + 1, &spec.name, spec.outputs.get(*output)?))
        })?;
        // A batch axis may have been added for the model that reads it, or removed.
        let batch_rank = input.shape.len().checked_sub(output.dims.len());
        let dims = batch_rank.filter(|rank| *rank <= 1).and_then(|rank| input.shape.get(rank..));
        if input.datatype == Some(output.datatype) && dims.is_some_and(|dims| fits(&output.dims, dims)) {
            return None;
        }
        Some(Error::internal(format!(
            "its input '{}' is output '{}' of step {maker} ('{model}'), which came as {} {} but is declared as {} {}",
            input.name,
            output.name,
            input.datatype.map_or("<invalid>", Datatype::name),
            check::shape_text(&input.shape),
            output.datatype.name(),
            check::shape_text(&output.shape),
        )))
    })
}

/// Returns true if two models have inputs and outputs of the same names, datatypes and shapes, in the same order.
fn is_alike(one: &ModelSpec, other: &ModelSpec) -> bool {
    let are_alike = |one: &[TensorSpec], other: &[TensorSpec]| {
        let face = |tensor: &TensorSpec| (tensor.name.clone(), tensor.datatype, tensor.model_shape.clone());
        one.iter().map(face).eq(other.iter().map(face))
    };
    let (is_decoupled, rows_max) = (one.is_decoupled == other.is_decoupled, one.rows_max == other.rows_max);
    is_decoupled && rows_max && are_alike(&one.inputs, &other.inputs) && are_alike(&one.outputs, &other.outputs)
}

/// The shape of a tensor as the next model expects it, if only one of the two has a batch axis
/// (Triton's `ReshapeTensorDims`): a batch axis of one row is added or removed if the other
/// dimensions fit then.
fn reshape(dims: &[i64], has_batch_axis: bool, rows: u32, shape: Shape) -> Shape {
    match (has_batch_axis, rows) {
        (true, 0) if fits(dims, &shape) => std::iter::once(1).chain(shape).collect(),
        (false, 1) if !fits(dims, &shape) => shape.into_iter().skip(1).collect(),
        _ => shape,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::ensemble::StepWiring;
    use crate::protocol::testing::{input, output, spec};

    #[test]
    fn a_step_that_makes_another_tensor_than_it_declares_is_at_fault_and_no_client() {
        let first = spec(8, vec![input("A", Datatype::Fp32, &[4])], vec![output("B", Datatype::Fp32, &[-1])]);
        let plain = spec(0, vec![], vec![output("B", Datatype::Fp32, &[2])]);
        let second = spec(8, vec![input("C", Datatype::Fp32, &[4]), input("D", Datatype::Fp32, &[4])], vec![]);
        let told = |first: &ModelSpec, name: &str, datatype, shape: &[i64]| {
            let specs = [first, &second].map(|spec| Arc::new(spec.clone()));
            let of_first = StepWiring { inputs: vec![(0, 0)], outputs: vec![(0, 1)] };
            let of_second = StepWiring { inputs: vec![(0, 1), (1, 0)], outputs: vec![] };
            let wiring = Wiring { steps: vec![of_first, of_second], is_decoupled: false };
            let tensor = NamedTensor::new(name, Some(datatype), Shape::from_slice(shape), Bytes::new());
            wrong_output(&specs, &wiring, 1, &[tensor]).map(|error| (error.code(), error.text().to_owned()))
        };
        let wrong = |came: &str, declared: &str| {
            let text = format!(
                "its input 'C' is output 'B' of step 1 ('m'), which came as {came} but is declared as {declared}"
            );
            Some((Code::Internal, text))
        };
        assert_eq!(told(&first, "C", Datatype::Fp64, &[1, 4]), wrong("FP64 [1,4]", "FP32 [-1,-1]"));
        assert_eq!(told(&first, "C", Datatype::Fp32, &[1, 4, 4]), wrong("FP32 [1,4,4]", "FP32 [-1,-1]"));
        assert_eq!(told(&plain, "C", Datatype::Fp32, &[1, 3]), wrong("FP32 [1,3]", "FP32 [2]"));
        // As declared: what does not fit the second model came from the client's values.
        assert_eq!(told(&first, "C", Datatype::Fp32, &[1, 3]), None);
        assert_eq!(told(&plain, "C", Datatype::Fp32, &[1, 2]), None);
        // The client brought it.
        assert_eq!(told(&first, "D", Datatype::Fp64, &[1, 4]), None);
    }

    #[test]
    fn a_batch_axis_of_one_row_is_added_or_removed_between_models() {
        let check = |dims: &[i64], has_batch_axis, rows, shape: &[i64], want: &[i64]| {
            let got = reshape(dims, has_batch_axis, rows, Shape::from_slice(shape));
            assert_eq!(got.as_slice(), want, "{dims:?} {has_batch_axis} {rows} {shape:?}");
        };
        check(&[4], true, 3, &[3, 4], &[3, 4]);
        check(&[4], true, 0, &[4], &[1, 4]);
        check(&[-1], true, 0, &[4], &[1, 4]);
        check(&[4], true, 0, &[5, 4], &[5, 4]); // the rows are a dimension of the other
        check(&[4], false, 0, &[4], &[4]);
        check(&[4], false, 1, &[1, 4], &[4]);
        check(&[-1, 4], false, 1, &[1, 4], &[1, 4]);
        check(&[-1, 4], false, 3, &[3, 4], &[3, 4]);
        check(&[4], false, 3, &[3, 4], &[3, 4]); // refused by the check of the step
    }
}
