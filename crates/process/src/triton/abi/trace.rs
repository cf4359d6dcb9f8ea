//! `TRITONSERVER_InferenceTrace*`.

use crate::triton::abi::functions;
use crate::triton::object::{Handle, Out, Owned, Text};
use crate::triton::trace::TraceObject;
use base::error::Error;

functions! {
    TRITONSERVER_InferenceTraceId(trace: Handle<TraceObject>, id: Out<u64>) {
        id.set(trace.get()?.active.as_ref().map_or(0, |active| active.id))
    }

    TRITONSERVER_InferenceTraceParentId(trace: Handle<TraceObject>, id: Out<u64>) {
        id.set(trace.get()?.active.as_ref().map_or(0, |active| active.parent_id))
    }

    TRITONSERVER_InferenceTraceRequestId(trace: Handle<TraceObject>, id: Out<Text>) {
        id.set(Text::of(&trace.get()?.request_id))
    }

    TRITONSERVER_InferenceTraceContext(trace: Handle<TraceObject>, context: Out<Text>) {
        let context_of = &trace.get()?.context;
        context.set(if context_of.is_empty() { Text::null() } else { Text::of(context_of) })
    }

    TRITONSERVER_InferenceTraceSpawnChildTrace(trace: Handle<TraceObject>, child: Out<Handle<TraceObject>>) {
        let owned = Owned::new(trace.get()?.child());
        child.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONSERVER_InferenceTraceDelete(trace: Handle<TraceObject>) { trace.delete() }

    // Checked and not kept: a trace here has the stages of a request, which all engines have, and
    // no stages of a backend's own.
    TRITONSERVER_InferenceTraceReportActivity(trace: Handle<TraceObject>, _timestamp: u64, name: Text) {
        trace.get()?;
        match name.bytes() {
            Some(_) => Ok(()),
            None => Err(Error::invalid("the name of the activity is a null pointer")),
        }
    }
}
