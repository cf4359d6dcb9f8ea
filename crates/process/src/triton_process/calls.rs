//! The requests of a backend in a process to the server beside answers: calls of other models,
//! model control, metrics. Each is a message on the aux socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use crate::python::message::ReplyValue;
use crate::python::message::process_side::{
    put_bls_call, put_bls_cancel, put_bls_read, put_control, put_metric, put_metric_drop, put_metric_family,
    put_metric_update, put_metric_value,
};
use crate::triton::{BackendMetrics, MetricSource};
use crate::triton_process::link::{NestedWaiting, ProcessLink, Waiting};
use crate::triton_process::memory::ProcessMemory;
use backend::custom_metrics::{MetricKind, MetricOperation};
use backend::gateway::{CallState, Gateway, NestedCall, NestedOrder, NestedReply, OrderKind, ReplySink};
use base::error::Error;
use model::parameters::{ParameterValue, Parameters};

/// The server as a backend in a process reaches it.
pub(super) struct RemoteServer {
    pub(super) link: Arc<ProcessLink>,
    pub(super) memory: Arc<ProcessMemory>,
}

/// A call of another model that has not had its last response.
struct OpenCall {
    replies: Arc<dyn ReplySink>,
    state: Arc<CallState>,
    /// Responses that came and were not the last.
    came: AtomicUsize,
    /// Responses that were reported to the server as read.
    told: AtomicUsize,
    is_cancel_told: AtomicBool,
    /// True if the last response has come.
    is_over: AtomicBool,
}

impl OpenCall {
    /// The last response has come: nothing further is reported.
    fn handle_end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The watch refers to the call, and the call to the watch.
        self.state.register(Waker::noop());
    }

    /// Reports to the server the number of responses that the backend has read, and that it needs
    /// no further ones, if so.
    fn tell(&self, call: u64, link: &ProcessLink) {
        if self.state.is_cancelled() && !self.is_cancel_told.swap(true, Ordering::AcqRel) {
            link.send_aux(|out| put_bls_cancel(call, out));
        }
        let read = self.came.load(Ordering::Acquire).saturating_sub(self.state.unread());
        let told = self.told.fetch_max(read, Ordering::AcqRel);
        if read > told {
            link.send_aux(|out| (told..read).for_each(|_| put_bls_read(call, out)));
        }
    }
}

impl NestedWaiting for OpenCall {
    fn handle_reply(&self, call: u64, link: &ProcessLink, reply: NestedReply) {
        let is_final = reply.is_final;
        if !is_final {
            self.state.handle_sent();
            self.came.fetch_add(1, Ordering::AcqRel);
        }
        self.replies.push(reply);
        if is_final {
            self.handle_end();
        } else {
            self.tell(call, link);
        }
    }
}

/// Woken when the backend has cancelled a call, or read a response after many.
struct CallWatch {
    link: Arc<ProcessLink>,
    call: u64,
    open: Arc<OpenCall>,
}

impl Wake for CallWatch {
    fn wake(self: Arc<Self>) {
        // Before the check: later events wake again.
        self.open.state.register(&Waker::from(Arc::clone(&self)));
        self.open.tell(self.call, &self.link);
        if self.open.is_over.load(Ordering::SeqCst) {
            self.open.handle_end();
        }
    }
}

impl Gateway for RemoteServer {
    fn infer(&self, call: NestedCall) {
        let refuse = |error: Error| {
            call.replies.push(NestedReply { outputs: Err(error), parameters: Parameters::default(), is_final: true });
        };
        let span = match self.memory.write(call.inputs.iter().map(|(_, tensor)| &*tensor.contents)) {
            Ok(span) => span,
            Err(error) => return refuse(error),
        };
        let open = Arc::new(OpenCall {
            replies: Arc::clone(&call.replies),
            state: Arc::clone(&call.state),
            came: AtomicUsize::new(0),
            told: AtomicUsize::new(0),
            is_cancel_told: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let waiting = Waiting::Nested(Arc::clone(&open) as Arc<dyn NestedWaiting>);
        match self.link.call(waiting, |number, out| put_bls_call(number, &call, &span, out)) {
            Ok(number) => Arc::new(CallWatch { link: Arc::clone(&self.link), call: number, open }).wake(),
            Err(error) => {
                self.memory.release(&[span.slot]);
                refuse(error);
            }
        }
    }

    fn control(&self, order: NestedOrder) {
        let NestedOrder { kind, model, reply, .. } = order;
        let files = if let OrderKind::Load { files, .. } = &kind { &**files } else { &[] };
        let span = match self.memory.write(files.iter().map(|(_, contents)| &**contents)) {
            Ok(span) => span,
            Err(error) => return reply(Err(error)),
        };
        // The reply goes with the call, even if that cannot be sent: the waiter learns of its end.
        let sent = self.link.call(Waiting::Order(reply), |call, out| put_control(call, &model, &kind, &span, out));
        if sent.is_err() {
            self.memory.release(&[span.slot]);
        }
    }
}

impl MetricSource for RemoteServer {
    fn metrics(&self) -> Box<dyn BackendMetrics> {
        Box::new(RemoteMetrics(Arc::clone(&self.link)))
    }
}

/// Metrics in the server's registry.
struct RemoteMetrics(Arc<ProcessLink>);

fn made(reply: ReplyValue) -> Result<u32, Error> {
    if let ReplyValue::Id(id) = reply { Ok(id) } else { Err(Error::internal("the server gave no id of a metric")) }
}

impl BackendMetrics for RemoteMetrics {
    fn new_family(&self, kind: MetricKind, name: &str, description: &str) -> Result<u32, Error> {
        self.0.ask(|call, out| put_metric_family(call, kind, name, description, out)).and_then(made)
    }

    fn new_metric(&self, family: u32, labels: Vec<(String, String)>, buckets: &[f64]) -> Result<u32, Error> {
        let labels = labels.into_iter().map(|(name, value)| (name, ParameterValue::Text(value)));
        let labels = Parameters(labels.collect());
        self.0.ask(|call, out| put_metric(call, family, &labels, buckets, out)).and_then(made)
    }

    fn update(&self, metric: u32, operation: MetricOperation, value: f64) -> Result<(), Error> {
        self.0.send_aux(|out| put_metric_update(metric, operation, value, out));
        Ok(())
    }

    fn value(&self, metric: u32) -> Result<f64, Error> {
        let reply = self.0.ask(|call, out| {
            put_metric_value(call, metric, out);
            Ok(())
        });
        match reply? {
            ReplyValue::Number(value) => Ok(value),
            _ => Err(Error::internal("the server gave no value of a metric")),
        }
    }

    fn drop_metric(&self, metric: u32) {
        self.0.send_aux(|out| put_metric_drop(true, metric, out));
    }

    fn drop_family(&self, family: u32) {
        self.0.send_aux(|out| put_metric_drop(false, family, out));
    }
}
