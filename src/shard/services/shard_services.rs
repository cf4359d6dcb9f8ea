//! A shard's part of the server's services: snapshots, which the control thread replaces.

use std::cell::RefCell;
use std::sync::Arc;

use crate::protocol::shared_memory::Regions;
use crate::shard::services::shared_memory::SharedMemoryClient;
use crate::shard::services::trace_settings::{ShardTraces, TraceLink};

/// A shard's part of the server's services.
pub struct ShardServices {
    /// The registered shared memory regions; `None` if shared memory is disabled.
    pub regions: RefCell<Option<Arc<Regions>>>,
    /// The settings of its traces.
    pub traces: ShardTraces,
}

impl ShardServices {
    /// The state that the server starts with.
    pub fn new(client: Option<&SharedMemoryClient>, traces: &TraceLink) -> Self {
        Self {
            regions: RefCell::new(client.map(|client| Arc::new(client.regions()))),
            traces: ShardTraces::new(traces),
        }
    }
}
