//! The stages of an inference request between its bytes and its outputs, the same for REST, unary
//! gRPC and gRPC streams: decode, read shared memory, release the receive memory, run the model,
//! write shared memory. The protocols differ in the decoding, which is a closure, and in the work
//! of a stream between the stages ([`PipelineHooks`]). Encoding stays with the protocol.

use std::cell::Cell;
use std::rc::Rc;

use crate::backend::AnswerPart;
use crate::budget::ReceiveReservation;
use crate::error::Error;
use crate::model::parameters::Parameters;
use crate::protocol::infer::{InferRequest, ResponsePlan};
use crate::protocol::shared_memory::{RegionKind, Regions};
use crate::queue::request_slots::PartSink;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::models::model_table::LocalModel;
use crate::shard::requests::infer::{Arrival, InferOutcome};
use crate::shard::requests::regions::deliver_system;
use crate::shard::requests::token_charge::TokenCharge;
use crate::shard::requests::tracing::FrontTrace;
use crate::shard::services::shared_memory::HeldTensors;
use crate::tensor::Tensor;
use crate::time::{Instant, Stamps};

/// The inputs of the pipeline beside the message itself.
pub struct PipelineInput {
    /// The receive memory of the message. The pipeline releases it when the request is queued.
    pub memory: ReceiveReservation,
    /// The arrival of the request, and its deadline.
    pub arrival: Arrival,
    /// True if the response reports the durations of its stages.
    pub is_timed: bool,
    /// The request's trace; `None` while no request is traced.
    pub trace: Option<Rc<FrontTrace>>,
}

/// The result that the protocol encodes into its response.
pub struct PipelineOutput {
    /// The model version that answered.
    pub model: Rc<LocalModel>,
    /// In the order of the model's outputs; contents in shared memory are empty here.
    pub outputs: Vec<Tensor>,
    /// The parameters of the model's answer; `None` for most.
    pub parameters: Option<Box<Parameters>>,
    /// The outputs that the response sends, and their form.
    pub plan: ResponsePlan,
    /// The part of the answer: for a decoupled model perhaps only its end.
    pub part: AnswerPart,
    /// The instants at which the stages in the queue and in the backend ended.
    pub stamps: Stamps,
    /// The instant at which decoding ended; `None` unless [`PipelineInput::is_timed`].
    pub decoded_at: Option<Instant>,
}

/// The work of a protocol between the stages. The defaults do nothing, for protocols with one
/// response per request.
pub trait PipelineHooks {
    /// The request is complete and is queued next. Returns the sink for all but the last response of a decoupled model.
    fn handle_ready(&mut self, _model: &Rc<LocalModel>, _request: &InferRequest) -> Option<Rc<dyn PartSink>> {
        None
    }

    /// The model gave its last response, or failed. `has_run` is false if no instance ran the
    /// request.
    fn handle_outcome(&mut self, _outcome: &Result<(InferOutcome, AnswerPart), Error>, _has_run: bool) {}
}

/// The hooks of a protocol with one response per request.
pub struct NoHooks;

impl PipelineHooks for NoHooks {}

/// Runs one request through all stages. `decode` finds the model and decodes the message; it owns
/// the message, so that converted bytes are freed before the request waits.
///
/// # Errors
/// The refusal of the request by decoding, shared memory, or the model.
pub async fn run<D>(
    shard: &Rc<Shard>,
    input: PipelineInput,
    decode: D,
    hooks: &mut impl PipelineHooks,
) -> Result<PipelineOutput, Error>
where
    D: FnOnce(Option<&Regions>, &mut ReceiveReservation) -> Result<(Rc<LocalModel>, InferRequest), Error>,
{
    let PipelineInput { mut memory, mut arrival, is_timed, trace } = input;
    let decoded = decode(shard.services.regions.borrow().as_deref(), &mut memory);
    shard.count_shortage(&memory);
    let (model, mut request) = decoded?;
    if let Some(front) = &trace {
        arrival.trace = shard.services.traces.sample(front, &model);
    }
    let spec = &model.served().spec;
    let mut held = None;
    // Futures for shared memory are boxed: they are large, and few requests need them.
    if request.plan.shared.is_some() {
        // A trace shows the bytes of tensors, and a cache finds answers by them.
        let takes_them = arrival.trace.is_none() && !spec.is_cached;
        let gpu = if takes_them { model.served().loaded.tensor_device() } else { None };
        held = Box::pin(shard.server_context.fetch(spec, gpu, &mut request)).await?;
        arrival.on_device = held.as_ref().and_then(HeldTensors::tensors).cloned();
    }
    // The texts are complete now, those in shared memory too.
    let charge = TokenCharge::take(shard, arrival.payer.take(), spec, &request)?;
    let decoded_at = is_timed.then(clock::now);
    let sink = hooks.handle_ready(&model, &request);
    // From here on the request's bytes count against the limit of the model queue.
    drop(memory);
    let has_run = Cell::new(false);
    let outcome = if arrival.trace.is_some() {
        // Boxed: few requests are traced.
        Box::pin(shard.infer_traced(&model, request, arrival, sink, &has_run)).await
    } else {
        shard.infer(&model, request, arrival, sink, &has_run).await
    };
    if let Some(charge) = charge {
        let outputs = outcome.as_ref().ok().map(|(inferred, _)| inferred.outputs.as_slice());
        charge.settle(shard, spec, outputs);
    }
    hooks.handle_outcome(&outcome, has_run.get());
    if let Some(front) = &trace {
        front.handle_completed(clock::now());
    }
    let (InferOutcome { mut outputs, parameters, plan, stamps }, part) = outcome?;
    deliver_system(spec, &plan, &mut outputs)?;
    if plan
        .shared
        .as_ref()
        .is_some_and(|shared| shared.destinations.iter().any(|(_, to)| to.kind() == RegionKind::Cuda))
    {
        Box::pin(shard.server_context.deliver_gpu(&plan, &mut outputs, held.as_ref().and_then(HeldTensors::tensors)))
            .await?;
    }
    Ok(PipelineOutput { model, outputs, parameters, plan, part, stamps, decoded_at })
}
