//! Tracing on the side of a shard: the choice of the requests that are traced, and their records,
//! which go to a bounded queue ([`crate::queue::trace_queue`]). A request that is not traced pays a
//! look at a flag. The settings are in [`crate::shard::services::trace_settings`].

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::backend::AnswerPart;
use crate::error::Error;
use crate::metrics::Exemplar;
use crate::protocol::front_end::FrontEnd;
use crate::protocol::grpc::service::Rpc;
use crate::protocol::infer::InferRequest;
use crate::protocol::route::untraced_model;
use crate::queue::request_slots::PartSink;
use crate::queue::trace_queue::TraceQueue;
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::models::model_table::{LocalModel, ModelTable};
use crate::shard::requests::http2_link::Http2Link;
use crate::shard::requests::infer::{Arrival, InferOutcome};
use crate::shard::services::trace_settings::ShardTraces;
use crate::tensor::Tensor;
use crate::time::{Instant, Stamps};
use crate::trace::{
    ActiveTrace, FrontSpan, FrontStatus, ModelSpan, TraceEvent, TraceFront, TraceMode, TraceRecord, TraceSetting,
    TracedSpan,
};
use crate::wire::http2::StreamId;
use crate::wire::trace_context::TraceContext;

/// A client's request while a setting may trace it, from its bytes to its answer's. Dropped, it is recorded if it was
/// sampled: an answer was sent by then, or the client has left. Lives on its shard.
pub struct FrontTrace {
    front: TraceFront,
    began: Instant,
    received: Instant,
    context: Option<Box<TraceContext>>,
    queue: Arc<TraceQueue>,
    active: OnceCell<Arc<ActiveTrace>>,
    /// True once it was sampled or left out.
    is_decided: Cell<bool>,
    failure: Cell<Option<Box<FrontStatus>>>,
    completed: Cell<Option<Instant>>,
    sending: Cell<Option<Instant>>,
}

/// The state that an HTTP/1.1 connection and the request on it share for a trace.
#[derive(Default)]
pub struct HttpTrace {
    /// The paths that its port serves; `None` for a port without inference.
    pub front_end: Option<FrontEnd>,
    /// The instant at which the first bytes of the request came.
    pub began: Cell<Instant>,
    /// The request, from the end of its work until its answer is sent.
    pub front: Cell<Option<Rc<FrontTrace>>>,
}

/// The failure of a request as its client sees it.
#[derive(Clone, Copy)]
pub struct ShownFailure<'a> {
    /// The status, of HTTP or of gRPC.
    pub code: u16,
    /// The text.
    pub text: &'a str,
}

impl<'a> ShownFailure<'a> {
    /// That of a call of gRPC.
    fn of_call(error: &'a Error) -> Self {
        Self { code: error.code().on_wire().1.into(), text: error.text() }
    }
}

impl HttpTrace {
    /// The answer of a request is sent from now on.
    pub fn handle_sending(&self, trace: Option<Rc<FrontTrace>>) {
        if let Some(trace) = trace {
            trace.handle_sending(clock::now());
            self.front.set(Some(trace));
        }
    }
}

impl ShardTraces {
    /// Prepares for a request that may be traced; `None` while no setting traces any. `context`
    /// reads the client's own trace context.
    pub fn open(
        &self,
        front: TraceFront,
        began: Instant,
        received: Instant,
        context: impl FnOnce() -> Option<TraceContext>,
    ) -> Option<Rc<FrontTrace>> {
        if !self.is_on() {
            return None;
        }
        let queue = Arc::clone(self.queue.as_ref()?);
        Some(Rc::new(FrontTrace {
            front,
            began: began.min(received),
            received,
            context: context().map(Box::new),
            queue,
            active: OnceCell::new(),
            is_decided: Cell::new(false),
            failure: Cell::new(None),
            completed: Cell::new(None),
            sending: Cell::new(None),
        }))
    }

    /// The same for a call of gRPC, whose message is here.
    pub(super) fn open_call(&self, link: &Http2Link, stream: StreamId) -> Option<Rc<FrontTrace>> {
        if !self.is_on() {
            return None;
        }
        let now = clock::now();
        let context = || link.with(|connection| connection.trace_context(stream));
        self.open(TraceFront::Grpc, now, now, context)
    }

    /// Samples the request, now that its model is known: `None` if it is not traced.
    pub(super) fn sample(&self, front: &FrontTrace, model: &LocalModel) -> Option<Arc<ActiveTrace>> {
        let table = self.table();
        let setting = table.setting(&model.served().spec.name);
        front.sample(setting).cloned()
    }

    /// The request of a trace failed. One that was refused before its model was known is
    /// sampled now, by the setting of the model that it names, or by the global one if `model` is empty. Files have
    /// the form of Triton's, which has models' requests alone.
    pub(super) fn fail(&self, front: &FrontTrace, model: &str, failure: ShownFailure<'_>) {
        if !front.is_decided.get() {
            let table = self.table();
            let setting = table.setting(model);
            if setting.mode == TraceMode::OpenTelemetry {
                front.sample(setting);
            }
        }
        if front.active.get().is_some() {
            let status = FrontStatus { front: front.front, code: failure.code, error: failure.text.to_owned() };
            front.failure.set(Some(Box::new(status)));
        }
    }

    /// The answer to a request over gRPC is sent from now on.
    pub(super) fn end_call(&self, front: &FrontTrace, model: &str, error: Option<&Error>) {
        if let Some(error) = error {
            self.fail(front, model, ShownFailure::of_call(error));
        }
        front.handle_sending(clock::now());
    }

    /// Traces a call of gRPC that is refused before its request is read, if it is an inference.
    pub(super) fn refuse_call(&self, link: &Http2Link, stream: StreamId, error: &Error) {
        if !self.is_on() {
            return;
        }
        let is_inference = link.with(|connection| {
            matches!(Rpc::from_path(connection.path(stream)), Ok(Rpc::ModelInfer | Rpc::ModelStreamInfer | Rpc::Tei(_)))
        });
        if let Some(trace) = self.open_call(link, stream).filter(|_| is_inference) {
            self.fail(&trace, "", ShownFailure::of_call(error));
            trace.handle_sending(clock::now());
        }
    }
}

impl Shard {
    /// As [`Shard::infer`], for a request that is traced: records it.
    pub(super) async fn infer_traced(
        self: &Rc<Self>,
        model: &Rc<LocalModel>,
        request: InferRequest,
        arrival: Arrival,
        sink: Option<Rc<dyn PartSink>>,
        has_run: &Cell<bool>,
    ) -> Result<(InferOutcome, AnswerPart), Error> {
        let (Some(queue), Some(trace)) = (&self.server_context.traces.queue, arrival.trace.clone()) else {
            return self.infer(model, request, arrival, sink, has_run).await;
        };
        let exemplified = Arc::clone(&trace);
        let mut open = OpenModelSpan::new(queue, trace, model, &request);
        let outcome = self.infer(model, request, arrival, sink, has_run).await;
        if let Ok((outcome, part)) = &outcome {
            let has_stamps = has_run.get() && model.served().spec.ensemble.is_none();
            let outputs = if *part == AnswerPart::End { &[][..] } else { &outcome.outputs };
            open.handle_outcome(has_stamps.then_some(&outcome.stamps), outputs);
            if has_stamps {
                keep_exemplar(model, self.index, &exemplified, &outcome.stamps);
            }
        }
        outcome
    }
}

/// Checks that a model, whose trace setting is asked for, is served; an empty name is the global setting.
///
/// # Errors
/// `InvalidArgument`, as in Triton, if it is not.
pub(super) fn check_traced(models: &ModelTable, name: &str) -> Result<(), Error> {
    let is_known = name.is_empty() || models.find(name, None).is_ok();
    if is_known { Ok(()) } else { Err(untraced_model(name)) }
}

/// Keeps a request that ran as an exemplar of its model's histograms. Traces in files have no ids of OpenTelemetry.
fn keep_exemplar(model: &LocalModel, shard: usize, trace: &ActiveTrace, stamps: &Stamps) {
    let cells = model.served().cells.get(shard).filter(|_| trace.setting.mode == TraceMode::OpenTelemetry);
    if let Some(cells) = cells {
        let epoch_millis = clock::epoch_millis(stamps.output_end);
        let exemplar = Exemplar { trace_id: trace.trace_id, span_id: trace.span_id, epoch_millis };
        cells.keep_exemplar(stamps, &exemplar);
    }
}

impl FrontTrace {
    /// The model has answered, perhaps by an error.
    pub fn handle_completed(&self, now: Instant) {
        self.completed.set(Some(now));
    }

    /// The answer is encoded, and sent from now on.
    pub fn handle_sending(&self, now: Instant) {
        self.sending.set(Some(now));
    }

    /// Samples the request by a setting, once.
    fn sample(&self, setting: &Arc<TraceSetting>) -> Option<&Arc<ActiveTrace>> {
        self.is_decided.set(true);
        let is_sampled = setting.sample(self.context.is_some());
        is_sampled.then(|| self.active.get_or_init(|| Arc::new(ActiveTrace::root(setting, self.context.as_deref()))))
    }

    /// The status of the answer, if one is sent.
    fn status(&self) -> Option<Box<FrontStatus>> {
        let code = match self.front {
            TraceFront::Grpc => 0,
            TraceFront::Http => 200,
        };
        let answered = || FrontStatus { front: self.front, code, error: String::new() };
        self.failure.take().or_else(|| self.sending.get().map(|_| Box::new(answered())))
    }

    fn events(&self, ended: Instant) -> SmallVec<[TraceEvent; 5]> {
        let [receive_start, receive_end, send_start, send_end] = match self.front {
            TraceFront::Grpc => ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
            TraceFront::Http => ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
        };
        let mut events = smallvec![
            TraceEvent { name: receive_start, at: self.began },
            TraceEvent { name: receive_end, at: self.received },
        ];
        events.extend(self.completed.get().map(|at| TraceEvent { name: "INFER_RESPONSE_COMPLETE", at }));
        if let Some(at) = self.sending.get() {
            events.push(TraceEvent { name: send_start, at });
            events.push(TraceEvent { name: send_end, at: ended });
        }
        events
    }
}

impl Drop for FrontTrace {
    fn drop(&mut self) {
        let Some(trace) = self.active.take() else { return };
        let ended = clock::now();
        let (events, status) = (self.events(ended), self.status());
        let span = TracedSpan::Front(FrontSpan { context: self.context.take(), events, ended, status });
        self.queue.push(TraceRecord { trace, span });
    }
}

/// A request of a model that is traced and not recorded yet: it is recorded when this is dropped,
/// also if the client left.
struct OpenModelSpan<'a> {
    queue: &'a TraceQueue,
    /// `Some` until `drop` takes it.
    record: Option<(Arc<ActiveTrace>, Box<ModelSpan>)>,
}

impl<'a> OpenModelSpan<'a> {
    fn new(queue: &'a TraceQueue, trace: Arc<ActiveTrace>, model: &LocalModel, request: &InferRequest) -> Self {
        let (served, now) = (model.served(), clock::now());
        let inputs = if trace.setting.level.tensors { request.inputs.clone() } else { Vec::new() };
        let span = Box::new(ModelSpan {
            spec: Arc::clone(&served.spec),
            version: served.version,
            request_id: request.plan.id.clone(),
            events: ["REQUEST_START", "QUEUE_START"].into_iter().map(|name| TraceEvent { name, at: now }).collect(),
            inputs,
            outputs: Vec::new(),
        });
        Self { queue, record: Some((trace, span)) }
    }

    fn handle_outcome(&mut self, stamps: Option<&Stamps>, outputs: &[Tensor]) {
        let Some((trace, span)) = &mut self.record else { return };
        if trace.setting.level.tensors {
            span.outputs = outputs.to_vec();
        }
        if let Some(Stamps { batched, input_end, infer_end, output_end, .. }) = stamps {
            let names = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"];
            let times = [*batched, *input_end, *infer_end, *output_end];
            span.events.extend(names.into_iter().zip(times).map(|(name, at)| TraceEvent { name, at }));
        }
    }
}

impl Drop for OpenModelSpan<'_> {
    fn drop(&mut self) {
        let Some((trace, mut span)) = self.record.take() else { return };
        span.events.push(TraceEvent { name: "REQUEST_END", at: clock::now() });
        self.queue.push(TraceRecord { trace, span: TracedSpan::Model(span) });
    }
}
