//! Runs the calls and orders that models give the server: a call of a model (BLS) as a client's
//! request or a step of an ensemble is run, in a task of its own, and an order as a client's. A
//! call counts in the statistics of the model that it reaches, not among the requests of clients.
//! It ends early when its caller cancels it or its deadline passes.
//!
//! A call at the end of a chain that is too long is refused here, one that could only wait for itself by
//! [`Shard::infer`](crate::shard::Shard::infer).

#[cfg(test)]
mod tests;
#[cfg(test)]
mod trial;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use futures_lite::FutureExt;
use smallvec::SmallVec;

use crate::backend::details::{FLAG_SEQUENCE_END, FLAG_SEQUENCE_START, RequestDetails};
use crate::backend::gateway::{CallState, NestedCall, NestedOrder, NestedReply, OrderKind, ReplySink};
use crate::backend::{Answer, AnswerPart};
use crate::error::{Code, Error};
use crate::limits::{NESTED_CALLS_DEPTH_MAX, ORDER_PARAMETERS_MAX};
use crate::model::name::split_qualified;
use crate::model::parameters::Parameters;
use crate::model::{CorrelationId, ModelSpec};
use crate::protocol::check::{self, AskedOutput, NamedTensor};
use crate::protocol::infer::{InferRequest, ResponsePlan, SequenceParameters};
use crate::protocol::repository::{LoadOrder, RepositoryOrder, file_path, model_name, not_explicit};
use crate::queue::request_slots::PartSink;
use crate::runtime::{clock, executor};
use crate::shard::Shard;
use crate::shard::deadline::unless_late;
use crate::shard::models::model_table::LocalModel;
use crate::shard::nested_queue::{NestedWork, PendingCall, PendingOrder};
use crate::shard::requests::infer::{Arrival, InferOutcome};
use crate::shard::requests::response_counter::{CountedResponse, ResponseCounter};
use crate::shard::services::control_request::OrderOrigin;
use crate::tensor::Tensor;

/// Starts a task for one call or order.
pub fn begin(shard: &Rc<Shard>, work: NestedWork) {
    let shard = Rc::clone(shard);
    executor::spawn(async move {
        let run = async {
            match work {
                NestedWork::Call(call) => run_call(&shard, call).await,
                NestedWork::Order(order) => run_order(&shard, order).await,
            }
        };
        // A panic that left the task would end the executor. The work is dropped then, which answers it.
        if AssertUnwindSafe(run).catch_unwind().await.is_err() {
            shard.cells.panics.add(1);
        }
    })
    .detach();
}

async fn run_call(shard: &Rc<Shard>, mut pending: PendingCall) {
    let state = Arc::clone(&pending.call.state);
    // Boxed, and so dropped before the reply: a call that was cancelled has left its queue by then.
    let outcome = unless_cancelled(&state, Box::pin(infer(shard, &mut pending.call))).await;
    pending.end(outcome);
}

/// The result of the work, or an error as soon as the caller cancels it. The work is dropped then,
/// as when a client leaves.
async fn unless_cancelled<T>(state: &CallState, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut work = pin!(work);
    poll_fn(|context| {
        // First: anything that happens after the checks below wakes this task.
        state.register(context.waker());
        if state.is_cancelled() {
            return Poll::Ready(Err(Error::new(Code::Cancelled, "the call was cancelled by the model that made it")));
        }
        work.as_mut().poll(context)
    })
    .await
}

/// Runs a call to its final reply.
async fn infer(shard: &Rc<Shard>, call: &mut NestedCall) -> Result<NestedReply, Error> {
    let received = clock::now();
    let deadline = call.details.deadline;
    // A failure to load it is reported as for any model that is not ready.
    let _ = shard.models.want(&call.model, deadline).await;
    let prefix = format!("Model {} - Error when running inference: ", call.model);
    let model = find(shard, call).map_err(|error| error.with_prefix(&prefix))?;
    let spec = Arc::clone(&model.served().spec);
    if let Some(outputs) = outputs_without_rows(&spec, call) {
        return Ok(NestedReply { outputs: Ok(outputs), parameters: Parameters::default(), is_final: true });
    }
    let request = checked_request(&spec, call).map_err(|error| error.with_prefix(&prefix))?;
    let counter = spec.is_decoupled.then(|| ResponseCounter::new(&model, shard.index));
    let mut counted = CountedResponse::of(counter.clone());
    let sink = counter.map(|counter| {
        let (replies, state) = (Arc::clone(&call.replies), Arc::clone(&call.state));
        let (spec, plan) = (Arc::clone(&spec), request.plan.clone());
        Rc::new(NestedParts { replies, state, spec, plan, counter }) as Rc<dyn PartSink>
    });
    let chain = call.details.chain.clone();
    let trace = call.details.active_trace.take().map(|trace| Arc::new(trace.child()));
    let arrival = Arrival { received, deadline, depth: 0, chain, trace, on_device: None, payer: None };
    let has_run = Cell::new(false);
    let outcome = unless_late(shard.infer_traced(&model, request, arrival, sink, &has_run), deadline).await;
    counted.settle(&outcome, has_run.get());
    let (InferOutcome { outputs, plan, parameters, .. }, part) = outcome?;
    let outputs = if part == AnswerPart::End { Ok(Vec::new()) } else { named_outputs(&spec, &plan, outputs) };
    Ok(NestedReply { outputs, parameters: parameters.map(|own| *own).unwrap_or_default(), is_final: true })
}

/// Finds the model of a call. The texts are Triton's if it has them (`request_executor.cc` of its Python backend, and the
/// core).
fn find(shard: &Shard, call: &NestedCall) -> Result<Rc<LocalModel>, Error> {
    let name = &call.model;
    if call.details.chain.depth() > NESTED_CALLS_DEPTH_MAX {
        return Err(Error::internal(format!(
            "the call is {} calls deep, at most {NESTED_CALLS_DEPTH_MAX} are allowed; models that call each other must \
             come to an end",
            call.details.chain.depth()
        )));
    }
    let found = shard.models.find(name, call.version);
    let model = found.map_err(|_| {
        Error::internal(format!("Failed for execute the inference request. Model '{name}' is not ready."))
    })?;
    let spec = &model.served().spec;
    if spec.is_decoupled && !call.is_decoupled {
        return Err(Error::internal(format!(
            "Model {name} is using the decoupled. The current BLS request call doesn't support models using the \
             decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for \
             decoupled models.'"
        )));
    }
    Ok(model)
}

/// The outputs of a call without a row, if that is allowed; `None` for one that is to run.
fn outputs_without_rows(spec: &ModelSpec, call: &NestedCall) -> Option<Vec<(String, Tensor)>> {
    let inputs = || call.inputs.iter().map(|(_, tensor)| tensor);
    if !call.allows_no_rows || !inputs().all(|tensor| tensor.shape.first() == Some(&0)) {
        return None;
    }
    let inputs: Vec<_> = inputs().cloned().collect();
    let outputs = spec.to_client(spec.outputs_without_rows(&inputs)?).ok()?;
    let named = spec.outputs.iter().map(|output| output.name.clone()).zip(outputs);
    Some(named.filter(|(name, _)| call.outputs.is_empty() || call.outputs.contains(name)).collect())
}

/// The request of a call.
fn checked_request(spec: &ModelSpec, call: &mut NestedCall) -> Result<InferRequest, Error> {
    let (inputs, outputs) = (std::mem::take(&mut call.inputs), std::mem::take(&mut call.outputs));
    // As in Triton, a call that does not fit the model is an internal error: the caller is at fault, and not its
    // client.
    request(spec, &call.details, &inputs, &outputs).map_err(|error| Error::internal(error.text().to_owned()))
}

/// The request of a call, checked against its model as a client's.
fn request(
    spec: &ModelSpec,
    details: &RequestDetails,
    inputs: &[(String, Tensor)],
    outputs: &[String],
) -> Result<InferRequest, Error> {
    let id = &details.id;
    let mut named: SmallVec<[_; 4]> = inputs
        .iter()
        .map(|(name, Tensor { datatype, shape, contents })| {
            NamedTensor::new(name, Some(*datatype), shape.clone(), contents.clone())
        })
        .collect();
    let (inputs, rows) = check::check(spec, id, &mut named)?;
    let asked: SmallVec<[_; 4]> =
        outputs.iter().map(|name| AskedOutput { name, is_binary: true, is_base64: false, class_count: 0 }).collect();
    let outputs = check::check_outputs(spec, id, &asked, true)?;
    if let Some(CorrelationId::Text(text)) = &details.correlation_id {
        check::sequence_text(text)?;
    }
    let has_flag = |flag| details.flags & flag != 0;
    let sequence = SequenceParameters {
        id: details.correlation_id.clone(),
        is_start: has_flag(FLAG_SEQUENCE_START),
        is_end: has_flag(FLAG_SEQUENCE_END),
    };
    check::check_sequence(spec, &sequence, rows)?;
    let plan = ResponsePlan { id: id.clone(), outputs, ..ResponsePlan::default() };
    let RequestDetails { priority, timeout, .. } = *details;
    let parameters = if spec.takes_details() { details.parameters.clone() } else { Parameters::default() };
    Ok(InferRequest { inputs, rows, priority, timeout, sequence, parameters, plan })
}

/// The requested outputs, by name, in the model's order. Those that the model left out are left
/// out.
fn named_outputs(spec: &ModelSpec, plan: &ResponsePlan, outputs: Vec<Tensor>) -> Result<Vec<(String, Tensor)>, Error> {
    let mut outputs: SmallVec<[Option<Tensor>; 4]> = outputs.into_iter().map(Some).collect();
    let mut named = Vec::with_capacity(plan.outputs.len());
    for planned in &plan.outputs {
        let output = spec.outputs.get(planned.index).zip(outputs.get_mut(planned.index).and_then(Option::take));
        let Some((expected, tensor)) = output else {
            let text = format!("model '{}' did not produce every output that was asked for", spec.name);
            return Err(Error::internal(text));
        };
        if tensor.is_given() || !tensor.contents.is_empty() {
            named.push((expected.name.clone(), tensor));
        }
    }
    Ok(named)
}

/// Hands all but the last response of a decoupled model to the caller, as fast as it reads them.
struct NestedParts {
    replies: Arc<dyn ReplySink>,
    state: Arc<CallState>,
    spec: Arc<ModelSpec>,
    plan: ResponsePlan,
    counter: Rc<ResponseCounter>,
}

impl PartSink for NestedParts {
    /// The task is registered with the state, which wakes it when there is room.
    fn has_room(&self) -> bool {
        self.state.has_room()
    }

    fn take(&self, answer: Answer) {
        self.counter.count_part(&answer);
        let outputs = answer.outputs.and_then(|outputs| self.spec.to_client(outputs));
        let outputs = outputs.and_then(|outputs| named_outputs(&self.spec, &self.plan, outputs));
        let parameters = answer.parameters.map(|parameters| *parameters).unwrap_or_default();
        self.state.handle_sent();
        self.replies.push(NestedReply { outputs, parameters, is_final: false });
    }
}

async fn run_order(shard: &Rc<Shard>, mut pending: PendingOrder) {
    // Taken only when there is an outcome: an order that is dropped earlier answers itself.
    let Some(order) = pending.order() else { return };
    let outcome = match &order.kind {
        OrderKind::Decoupled(version) => {
            shard.models.find(&order.model, *version).map(|model| model.served().spec.is_decoupled)
        }
        OrderKind::Ready(version) => Ok(shard.models.is_told_ready(&order.model, *version).await),
        OrderKind::Load { .. } | OrderKind::Unload { .. } => match repository_order(shard, order) {
            Ok(checked) => {
                let mut callers: Vec<_> = order.details.chain.links().map(|link| link.model.to_string()).collect();
                callers.dedup();
                shard.server_context.send_order(checked, Some(Arc::new(OrderOrigin { callers }))).await.map(|_| true)
            }
            Err(error) => Err(error),
        },
    };
    if let Some(order) = pending.take() {
        (order.reply)(outcome);
    }
}

/// The order as a client would give it, with the same checks.
fn repository_order(shard: &Shard, order: &NestedOrder) -> Result<RepositoryOrder, Error> {
    if !shard.server_context.service.is_controlled {
        return Err(not_explicit());
    }
    let name = model_name(&order.model)?;
    if order.details.chain.links().any(|link| split_qualified(&link.model).1 == name) {
        return Err(Error::unavailable(format!(
            "model '{name}' waits for this call itself, and is neither loaded nor unloaded until it has answered"
        )));
    }
    match &order.kind {
        OrderKind::Unload { with_dependents } => {
            Ok(RepositoryOrder::Unload { name, with_dependents: *with_dependents })
        }
        OrderKind::Load { config, files } => {
            if files.len() + usize::from(config.is_some()) > ORDER_PARAMETERS_MAX {
                return Err(Error::invalid(format!("a load has at most {ORDER_PARAMETERS_MAX} parameters")));
            }
            let file = |(path, contents): &(String, bytes::Bytes)| {
                if !path.starts_with("file:") {
                    return Err(Error::invalid(format!("unrecognized load parameter '{path}'.")));
                }
                Ok((file_path(path)?, contents.clone()))
            };
            let files = files.iter().map(file).collect::<Result<_, _>>()?;
            Ok(RepositoryOrder::Load(LoadOrder { name, config: config.clone(), files, ..LoadOrder::default() }))
        }
        OrderKind::Decoupled(_) | OrderKind::Ready(_) => {
            Err(Error::internal("a question is not for the control thread"))
        }
    }
}
