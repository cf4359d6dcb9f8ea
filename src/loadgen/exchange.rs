//! What a connection speaks, without the socket: requests and bytes go in, bytes and outcomes come
//! out. Implemented by [`http1`](super::http1) and [`http2`](super::http2); driven by
//! [`link`](super::link) and, one call at a time, by [`control`](super::control).

use bytes::Bytes;

use crate::loadgen::failure::RequestFailure;
use crate::loadgen::request::OutgoingRequest;

/// A request that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedRequest {
    /// The name that [`Exchange::handle_request`] was given.
    pub token: usize,
    /// The body, where bodies are kept, or why there is none.
    pub outcome: Result<Bytes, RequestFailure>,
}

/// One side of one connection. An error means that nothing more can be said on it: what is in
/// flight then fails. After every call some requests may have ended.
pub trait Exchange {
    /// Begins a request; its token comes back with its outcome.
    fn handle_request(&mut self, token: usize, request: &OutgoingRequest);

    /// Takes bytes that came.
    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), RequestFailure>;

    /// The other side has closed.
    fn handle_end(&mut self);

    /// Gives a request up. `false` if the connection cannot go on without its answer.
    fn handle_cancel(&mut self, token: usize) -> bool;

    /// A request that has ended.
    fn poll_finished(&mut self) -> Option<FinishedRequest>;

    /// The bytes to be sent next.
    fn poll_output(&mut self) -> Option<&[u8]>;

    /// So many of them were sent.
    fn handle_sent(&mut self, size: usize);

    /// Whether the other side takes no more requests on this connection.
    fn is_over(&self) -> bool;
}
