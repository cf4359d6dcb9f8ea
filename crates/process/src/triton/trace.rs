//! `TRITONSERVER_InferenceTrace`: a backend's view of a request's trace, which it passes to the
//! calls that it makes. The server records the stages of each request itself.

use std::ffi::CString;
use std::sync::Arc;

use crate::triton::error::c_text;
use crate::triton::object::hosted_object;
use backend::details::RequestDetails;
use trace::ActiveTrace;

/// A `TRITONSERVER_InferenceTrace`.
pub(super) struct TraceObject {
    /// The W3C context as JSON; empty for a trace to a file.
    pub(super) context: CString,
    pub(super) active: Option<Arc<ActiveTrace>>,
    pub(super) request_id: CString,
}

hosted_object!(TraceObject, "trace", 16);

impl TraceObject {
    pub(super) fn of(details: &RequestDetails) -> Self {
        Self {
            context: details.trace.as_deref().map(c_text).unwrap_or_default(),
            active: details.active_trace.clone(),
            request_id: c_text(&details.id),
        }
    }

    /// The trace of a request which this one leads to. The server makes the span of the call, so it
    /// is the same one here.
    pub(super) fn child(&self) -> Self {
        Self { context: self.context.clone(), active: self.active.clone(), request_id: self.request_id.clone() }
    }
}
