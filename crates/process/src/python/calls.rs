//! The requests of a Python process to the server while its model runs: calls of other models
//! (BLS), model control, metrics, cancellation, memory, log lines. Part of [`PythonInstance`];
//! nothing here blocks.

use std::sync::Arc;

use crate::limits::PYTHON_CALLS_MAX;
use crate::python::inbox::{CallReplies, InboxItem};
use crate::python::instance::PythonInstance;
use crate::python::message::{
    self, AuxMessage, BlsCall, BlsParent, ControlCall, ControlOperation, LogLevel, MessageError, ReadyState,
    RegionSide, ReplyValue, SpaceOutcome, Span, SpanLayout,
};
use crate::python::open_calls::OpenNested;
use crate::python::region::TensorPolicy;
use backend::details::CallChain;
use backend::gateway::{CallState, NestedCall, NestedOrder, NestedReply, OrderKind};
use backend::{Request, RequestDetails};
use base::error::Error;
use base::time::Instant;
use model::parameters::Parameters;

impl PythonInstance {
    pub(super) fn handle_aux(&mut self) -> Result<(), MessageError> {
        loop {
            let Some(frame) = self.link.aux.input.poll_frame()? else { return Ok(()) };
            let decoded = message::decode_aux(frame)?;
            self.handle_aux_message(decoded)?;
        }
    }

    fn handle_aux_message(&mut self, decoded: AuxMessage) -> Result<(), MessageError> {
        match decoded {
            AuxMessage::Release(slots) => {
                let are_known = slots.into_iter().all(|slot| self.requests.free(slot));
                return are_known.then_some(()).ok_or(MessageError::Value("a slot"));
            }
            AuxMessage::Space { call, size, must_grow } => self.handle_space(call, size, must_grow),
            AuxMessage::RegionDropped(region) => self.responses.handle_dropped(region),
            AuxMessage::IsCancelled { call, request } => {
                // An answered request needs no further work of its model.
                let has_left = self.find(request).and_then(|running| running.request.as_ref());
                let has_left = has_left.is_none_or(|request| request.responder.has_left());
                self.reply(call, Ok(ReplyValue::Bool(has_left)));
            }
            AuxMessage::Log { level, line, file, text } => self.handle_log(level, &file, line, &text),
            AuxMessage::Ready { ask, state } => self.handle_ready(ask, &state),
            AuxMessage::BlsCall(call) => return self.handle_bls_call(*call),
            AuxMessage::BlsCancel(call) => {
                if let Some(open) = self.calls.nested.get(&call) {
                    open.state.cancel();
                }
            }
            AuxMessage::BlsRead(call) => {
                if let Some(open) = self.calls.nested.get(&call) {
                    open.state.handle_read();
                }
            }
            AuxMessage::Control(call) => return self.handle_control(*call),
            AuxMessage::MetricFamily { call, kind, name, description } => {
                let made = self.metrics.new_family(kind, &name, &description);
                self.reply(call, made.map(ReplyValue::Id));
            }
            AuxMessage::Metric { call, family, labels, buckets } => {
                let made = self.metrics.new_metric(family, labels, &buckets);
                self.reply(call, made.map(ReplyValue::Id));
            }
            AuxMessage::MetricUpdate { metric, operation, value } => {
                // No caller waits for the outcome.
                if let Err(error) = self.metrics.update(metric, operation, value) {
                    self.model.log_fault(&self.name, &format!("a metric was not updated: {error}"));
                }
            }
            AuxMessage::MetricValue { call, metric } => {
                let value = self.metrics.value(metric);
                self.reply(call, value.map(ReplyValue::Number));
            }
            AuxMessage::MetricDrop { is_metric: true, id } => self.metrics.drop_metric(id),
            AuxMessage::MetricDrop { is_metric: false, id } => self.metrics.drop_family(id),
        }
        Ok(())
    }

    fn reply(&mut self, call: u64, outcome: Result<ReplyValue, Error>) {
        let mut frame = Vec::new();
        message::put_reply(call, outcome.as_ref().copied(), &mut frame);
        self.link.aux.send(&frame);
    }

    /// The process has no room for its responses: it gets the slots that are free now, or a larger
    /// region.
    fn handle_space(&mut self, call: u64, size: u64, must_grow: bool) {
        let released = self.take_released();
        let mut frame = Vec::new();
        if !must_grow {
            message::put_space_reply(call, SpaceOutcome::Again, &released, &mut frame);
            return self.link.aux.send(&frame);
        }
        match self.responses.grow(size) {
            Ok(new) => {
                let mut region = Vec::new();
                message::put_region(RegionSide::Response, new.index, new.size, &mut region);
                self.link.aux.send_file(region, new.file);
                message::put_space_reply(call, SpaceOutcome::Grown, &released, &mut frame);
            }
            Err(error) => {
                message::put_space_reply(call, SpaceOutcome::Refused(error.text()), &released, &mut frame);
            }
        }
        self.link.aux.send(&frame);
    }

    fn handle_log(&self, level: LogLevel, file: &str, line: u32, text: &str) {
        // A process of this program names the place in the text.
        let place = if file.is_empty() { String::new() } else { format!("({file}:{line}) ") };
        self.model.log(level, &format!("{} {place}{text}", self.name));
    }

    /// The process has answered the readiness check of its model.
    fn handle_ready(&mut self, ask: u64, state: &ReadyState) {
        if ask != self.calls.ready_ask {
            return;
        }
        if let ReadyState::Failed(text) = state {
            self.model.log_fault(&self.name, &format!("is_ready failed: {text}"));
        }
        self.calls.ready.drain(..).for_each(|reply| reply(*state == ReadyState::Yes));
    }

    /// A model calls another.
    fn handle_bls_call(&mut self, call: BlsCall) -> Result<(), MessageError> {
        let BlsCall { call, parent, is_decoupled, model, version, details, span, outputs, inputs } = call;
        let opened = self.responses.open(span)?;
        let taken = inputs
            .iter()
            .map(|(name, claim)| Ok((name.clone(), self.responses.take(&opened, claim, TensorPolicy::Copy)?)));
        let inputs = taken.collect::<Result<Vec<_>, MessageError>>()?;
        if self.calls.nested.len() >= PYTHON_CALLS_MAX {
            let text = format!("this instance has {PYTHON_CALLS_MAX} calls of other models in flight (the limit)");
            self.handle_nested_reply(call, failed(Error::unavailable(text)));
            return Ok(());
        }
        let state = Arc::new(CallState::default());
        self.calls.nested.insert(call, OpenNested { state: Arc::clone(&state), parent });
        let details = self.inherit(parent, details);
        let replies = Arc::new(CallReplies { inbox: Arc::clone(&self.inbox), call });
        self.model.gateway().infer(NestedCall {
            model,
            version,
            inputs,
            outputs,
            is_decoupled,
            allows_no_rows: false,
            details,
            replies,
            state,
        });
        Ok(())
    }

    /// The requests on whose behalf a call is made: all that run, if it does not say or they were answered.
    fn callers(&self, parent: BlsParent) -> Vec<&Request> {
        let known: Vec<_> = match parent {
            BlsParent::Request(key) => self.get(key).and_then(|running| running.request.as_ref()).into_iter().collect(),
            BlsParent::Batch(key) => {
                let requests = self.flights.batch_of(key).map(|flight| &flight.requests);
                requests.into_iter().flatten().filter_map(|running| running.request.as_ref()).collect()
            }
            BlsParent::Unknown => Vec::new(),
        };
        if known.is_empty() { self.running().collect() } else { known }
    }

    /// The values that a call inherits from the requests that it is made for: their callers,
    /// this instance, their deadline and priority, and the trace of a single one.
    fn inherit(&self, parent: BlsParent, details: RequestDetails) -> RequestDetails {
        let callers = self.callers(parent);
        let (chain, deadline, priority) = common_chain(&callers);
        let chain = chain.with(Arc::clone(&self.model.qualified_name), self.model.version, Arc::clone(&self.name));
        let single = match (parent, &*callers) {
            (BlsParent::Request(_), [single]) => single.details.as_deref(),
            _ => None,
        };
        let active_trace = single.and_then(|single| single.active_trace.clone());
        let trace = details.trace.or_else(|| single.and_then(|single| single.trace.clone()));
        RequestDetails { chain, deadline, priority, trace, active_trace, ..details }
    }

    /// Cancels the calls whose clients have all left.
    pub(super) fn cancel_calls_of_departed(&mut self) {
        // Most calls of a process are made for the same requests.
        let mut last = None;
        for open in self.calls.nested.values() {
            let have_left = match last {
                Some((parent, have_left)) if parent == open.parent => have_left,
                _ => {
                    let callers = self.callers(open.parent);
                    !callers.is_empty() && callers.iter().all(|request| request.responder.has_left())
                }
            };
            last = Some((open.parent, have_left));
            if have_left {
                open.state.cancel();
            }
        }
    }

    fn handle_control(&mut self, call: ControlCall) -> Result<(), MessageError> {
        let ControlCall { call, operation, model } = call;
        let kind = match operation {
            ControlOperation::Load { config, span, files } => {
                let opened = self.responses.open(span)?;
                let files = files.into_iter().map(|file| Ok((opened.take_file(&file)?, file.path)));
                let files = files.map(|taken| taken.map(|(contents, path)| (path, contents)));
                OrderKind::Load { config, files: files.collect::<Result<_, MessageError>>()? }
            }
            ControlOperation::IsDecoupled { version } => match self.asked_version(call, &version) {
                Some(version) => OrderKind::Decoupled(version),
                None => return Ok(()),
            },
            ControlOperation::IsReady { version } => match self.asked_version(call, &version) {
                Some(version) => OrderKind::Ready(version),
                None => return Ok(()),
            },
            ControlOperation::Unload { with_dependents } => OrderKind::Unload { with_dependents },
        };
        if self.calls.orders >= PYTHON_CALLS_MAX {
            let text = format!("this instance has {PYTHON_CALLS_MAX} model control calls in flight (the limit)");
            self.reply(call, Err(Error::unavailable(text)));
            return Ok(());
        }
        self.calls.orders += 1;
        let inbox = Arc::clone(&self.inbox);
        let details = self.inherit(BlsParent::Unknown, RequestDetails::default());
        let reply = Box::new(move |outcome| inbox.push(InboxItem::Control(call, outcome)));
        self.model.gateway().control(NestedOrder { kind, model, details, reply });
        Ok(())
    }

    /// The version of a question, `Some(None)` for any. A text that is not a number is answered
    /// here.
    fn asked_version(&mut self, call: u64, version: &str) -> Option<Option<u64>> {
        if version.is_empty() {
            return Some(None);
        }
        if let Ok(version) = version.parse() {
            return Some(Some(version));
        }
        let text = format!("failed to get model version from specified version string '{version}'");
        self.reply(call, Err(Error::invalid(text)));
        None
    }

    /// Hands over the items that other threads left.
    pub(super) fn handle_inbox(&mut self) {
        while let Some(item) = self.inbox.pop() {
            match item {
                InboxItem::AskReady(reply) => {
                    self.calls.ready.push(reply);
                    if self.calls.ready.len() == 1 {
                        self.calls.ready_ask += 1;
                        let mut frame = Vec::new();
                        message::put_is_ready(self.calls.ready_ask, &mut frame);
                        self.link.aux.send(&frame);
                    }
                }
                InboxItem::Control(call, outcome) => {
                    self.calls.orders = self.calls.orders.saturating_sub(1);
                    self.reply(call, outcome.map(ReplyValue::Bool));
                }
                InboxItem::Nested(call, reply) => self.handle_nested_reply(call, reply),
            }
        }
    }

    /// Hands one response of another model to the process.
    fn handle_nested_reply(&mut self, call: u64, mut reply: NestedReply) {
        if reply.is_final {
            self.calls.nested.remove(&call);
        }
        let outputs = || reply.outputs.iter().flatten().map(|(_, tensor)| tensor);
        let layout = SpanLayout::of(outputs().map(|tensor| tensor.contents.len()));
        let mut span = Span::default();
        match self.requests.allocate(layout.size()) {
            Ok((allocated, new)) => {
                span = allocated;
                self.requests.write(&span, outputs());
                self.announce_region(new);
            }
            Err(error) => reply.outputs = Err(error),
        }
        let mut frame = Vec::new();
        if let Err(error) = message::put_bls_reply(call, &reply, &span, &mut frame) {
            self.requests.free(span.slot);
            reply.outputs = Err(Error::internal(format!("the response cannot be sent to the Python process: {error}")));
            // An error always passes.
            let _ = message::put_bls_reply(call, &reply, &Span::default(), &mut frame);
        }
        self.link.aux.send(&frame);
    }
}

fn failed(error: Error) -> NestedReply {
    NestedReply { outputs: Err(error), parameters: Parameters::default(), is_final: true }
}

/// The callers of all these requests, the latest of their deadlines if all have one, and the highest of their priorities.
fn common_chain(requests: &[&Request]) -> (CallChain, Option<Instant>, u64) {
    let details = || requests.iter().filter_map(|request| request.details.as_deref());
    let longest = details().map(|details| &details.chain).max_by_key(|chain| chain.depth()).cloned();
    let mut chain = longest.unwrap_or_default();
    for link in details().flat_map(|details| details.chain.links()) {
        if !chain.links().any(|have| have.instance == link.instance && have.version == link.version) {
            chain = chain.with(Arc::clone(&link.model), link.version, Arc::clone(&link.instance));
        }
    }
    let deadlines = || requests.iter().map(|request| request.details.as_ref().and_then(|details| details.deadline));
    let deadline = if deadlines().all(|deadline| deadline.is_some()) { deadlines().flatten().max() } else { None };
    // 1 is the highest priority, 0 the model's default.
    let priority = details().map(|details| details.priority).filter(|priority| *priority > 0).min().unwrap_or(0);
    (chain, deadline, priority)
}
