//! The calls of one Python process that the server has not answered yet.

use std::collections::HashMap;
use std::sync::Arc;

use crate::python::message::BlsParent;
use backend::ReadyReply;
use backend::gateway::CallState;

/// A call of another model.
pub(super) struct OpenNested {
    pub(super) state: Arc<CallState>,
    /// The requests that it is made for.
    pub(super) parent: BlsParent,
}

/// The calls of one process that are not answered yet.
#[derive(Default)]
pub(super) struct OpenCalls {
    pub(super) nested: HashMap<u64, OpenNested>,
    /// The callers that asked if the model is ready, by number; the process is asked once for all
    /// that ask meanwhile.
    pub(super) ready: Vec<ReadyReply>,
    pub(super) ready_ask: u64,
    pub(super) orders: usize,
}

impl OpenCalls {
    /// The replies are no longer awaited.
    pub(super) fn cancel_all(&mut self) {
        self.nested.drain().for_each(|(_, open)| open.state.cancel());
        // A model whose process is gone is not ready.
        self.ready.drain(..).for_each(|reply| reply(false));
    }
}
