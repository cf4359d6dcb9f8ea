//! The settings, buffers and receive memory of a shard's connections.

use std::cell::RefCell;
use std::rc::Rc;

use crate::budget::ReceiveBudget;
use crate::connection::http2::Http2Settings;
use crate::shard::ServerContext;
use crate::shard::connections::receive_budget::ShardReceiveBudget;
use crate::shard::sessions::http2;
use crate::shard::sessions::tls::ShardTls;

/// The settings, buffers and receive memory of a shard's connections.
pub struct ShardSessions {
    /// The TLS of new connections.
    pub tls: Rc<ShardTls>,
    /// The limits of connections of HTTP/2.
    pub http2_settings: Rc<Http2Settings>,
    /// Memory for requests while they are received.
    pub receive_budget: Rc<ShardReceiveBudget>,
    /// Free buffers for replies.
    pub buffers: RefCell<Vec<Vec<u8>>>,
}

impl ShardSessions {
    /// The settings of a server, and the shard's part of its receive memory.
    pub fn new(server_context: &ServerContext, receive_budget: ShardReceiveBudget) -> Self {
        Self {
            tls: Rc::new(ShardTls::new(&server_context.tls.initial)),
            http2_settings: Rc::new(http2::settings(server_context)),
            receive_budget: Rc::new(receive_budget),
            buffers: RefCell::default(),
        }
    }

    /// The budget that a connection reserves its receive memory from.
    pub fn receive_memory(&self) -> Rc<dyn ReceiveBudget> {
        Rc::clone(&self.receive_budget) as Rc<dyn ReceiveBudget>
    }
}
