//! The record of a traced request: its names in the trace, and two kinds of spans, one of the
//! request as the client sees it and one for each model that it reaches. The names of events are
//! Triton's.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::setting::{TraceMode, TraceSetting};
use base::tensor::Tensor;
use base::time::Instant;
use model::ModelSpec;
use wire::trace_context::{TraceContext, TraceParent};

/// A traced request, as it is passed to the requests that it leads to.
#[derive(Clone, Debug)]
pub struct ActiveTrace {
    /// The setting that it was sampled by.
    pub setting: Arc<TraceSetting>,
    /// Its number, from 1.
    pub id: u64,
    /// The number of the client's request that it is a part of, or is.
    pub root_id: u64,
    /// The number of the request that led to it; 0 for one of a client.
    pub parent_id: u64,
    /// The trace that its span belongs to.
    pub trace_id: u128,
    /// Its span.
    pub span_id: u64,
    /// The span that it is a part of.
    pub parent_span_id: u64,
}

impl PartialEq for ActiveTrace {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl ActiveTrace {
    /// The trace of a client's request, which may be a part of the client's own trace.
    pub fn root(setting: &Arc<TraceSetting>, context: Option<&TraceContext>) -> Self {
        let trace_id = context
            .map_or_else(|| u128::from(random_id()) << 64 | u128::from(random_id()), |context| context.parent.trace_id);
        let (span_id, parent_span_id) = (random_id(), random_id());
        let (setting, id) = (Arc::clone(setting), next_id());
        Self { setting, id, root_id: id, parent_id: 0, trace_id, span_id, parent_span_id }
    }

    /// The trace of a request that this one leads to: a step of an ensemble, or a call of a model.
    #[inline]
    pub fn child(&self) -> Self {
        let (parent_id, parent_span_id) = (self.id, self.span_id);
        Self { id: next_id(), parent_id, span_id: random_id(), parent_span_id, ..self.clone() }
    }

    /// Returns the context for the code of a model, as in Triton: the W3C context as JSON; `None`
    /// for a trace to a file.
    #[inline]
    pub fn context(&self) -> Option<String> {
        let parent = TraceParent { trace_id: self.trace_id, span_id: self.span_id };
        let is_told = self.setting.mode == TraceMode::OpenTelemetry;
        is_told.then(|| format!("{{\"traceparent\":\"{}\"}}", parent.encode()))
    }
}

/// The numbers of traces, from 1, over all settings of the process.
fn next_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// The id of a trace or span: random, and never 0.
pub fn random_id() -> u64 {
    // Keyed by the system's random numbers, so that two servers do not choose the same.
    static KEYS: OnceLock<RandomState> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    KEYS.get_or_init(RandomState::new).hash_one(COUNT.fetch_add(1, Ordering::Relaxed)).max(1)
}

/// An event of a request and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Triton's name.
    pub name: &'static str,
    /// The time of the event.
    pub at: Instant,
}

/// A finished part of a trace.
#[derive(Debug)]
pub struct TraceRecord {
    /// The request.
    pub trace: Arc<ActiveTrace>,
    /// The recorded span.
    pub span: TracedSpan,
}

/// The span of a record.
#[derive(Debug)]
pub enum TracedSpan {
    /// A client's request, from its bytes to its answer's. The last record of a trace.
    Front(FrontSpan),
    /// A request of one model.
    Model(Box<ModelSpan>),
}

/// The protocol of a request, which names its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFront {
    /// gRPC.
    Grpc,
    /// REST.
    Http,
}

/// The status of the answer to a client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontStatus {
    /// The protocol of the status.
    pub front: TraceFront,
    /// The status on the wire.
    pub code: u16,
    /// The text of the error; empty without an error.
    pub error: String,
}

/// A client's request. Its span is the parent of the model's.
#[derive(Debug)]
pub struct FrontSpan {
    /// The client's own trace context; `None` if it sent none.
    pub context: Option<Box<TraceContext>>,
    /// In order of time.
    pub events: SmallVec<[TraceEvent; 5]>,
    /// The time at which the answer was handed to the system, or the client had left.
    pub ended: Instant,
    /// The status of its answer; `None` if the client left before.
    pub status: Option<Box<FrontStatus>>,
}

/// A request of one model.
#[derive(Debug)]
pub struct ModelSpan {
    /// The model.
    pub spec: Arc<ModelSpec>,
    /// Its version.
    pub version: u64,
    /// The client's id of the request; empty without one.
    pub request_id: String,
    /// In order of time: from `REQUEST_START` to `REQUEST_END`, with those of the run if there was
    /// one.
    pub events: SmallVec<[TraceEvent; 7]>,
    /// In the order of the model's inputs; empty unless tensors are recorded.
    pub inputs: Vec<Tensor>,
    /// In the order of the model's outputs.
    pub outputs: Vec<Tensor>,
}

impl TraceRecord {
    /// Bytes that it keeps in memory while it waits.
    pub fn size(&self) -> usize {
        let own = match &self.span {
            TracedSpan::Front(front) => {
                let error = front.status.as_ref().map_or(0, |status| status.error.len());
                front.context.as_ref().map_or(error, |context| error.saturating_add(context.state.len()))
            }
            TracedSpan::Model(model) => {
                let tensors = model.inputs.iter().chain(&model.outputs).map(|tensor| tensor.contents.len());
                tensors.fold(model.request_id.len(), usize::saturating_add)
            }
        };
        own.saturating_add(size_of::<Self>() + size_of::<ModelSpan>())
    }

    /// Spans that it is exported as.
    pub fn span_count(&self) -> u64 {
        match &self.span {
            TracedSpan::Model(model) if model.has_run() => 2,
            _ => 1,
        }
    }
}

impl ModelSpan {
    /// Returns true if an instance ran it.
    #[inline]
    pub fn has_run(&self) -> bool {
        self.events.iter().any(|event| event.name == "COMPUTE_START")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::TraceLevel;

    #[test]
    fn a_child_is_below_its_parent_in_the_same_trace() {
        let setting = Arc::new(TraceSetting::new(TraceLevel::OFF, 1, -1, 0, TraceMode::OpenTelemetry));
        let parent = TraceParent { trace_id: 7, span_id: 9 };
        let context = TraceContext { parent, state: String::new() };
        let root = ActiveTrace::root(&setting, Some(&context));
        let child = root.child();
        assert_eq!((root.trace_id, root.parent_id), (7, 0));
        assert_eq!(
            (child.trace_id, child.parent_id, child.root_id, child.parent_span_id),
            (7, root.id, root.id, root.span_id)
        );
        assert!(child.id > root.id && child.span_id != root.span_id);
        let told = root.context().unwrap();
        assert!(told.starts_with("{\"traceparent\":\"00-00000000000000000000000000000007-"), "{told}");
        assert_ne!(ActiveTrace::root(&setting, None).trace_id, ActiveTrace::root(&setting, None).trace_id);
    }
}
