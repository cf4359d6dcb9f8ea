//! The protocol of a client connection without its socket: requests and received bytes go in, bytes to send and outcomes
//! come out. Implemented by [`http1`](super::http1), [`http2`](super::http2) and, around one of them, [`tls`](super::tls). Driven by
//! [`client_connection`](super::client_connection) under load, and by [`control`](super::control) for single requests.

use bytes::Bytes;

use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::request::OutgoingRequest;

/// A request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedRequest {
    /// The token given to [`Exchange::handle_request`].
    pub token: usize,
    /// The body of the answer (empty if bodies are not kept), or the failure.
    pub outcome: Result<Bytes, RequestFailure>,
}

/// The client's side of one connection. Any call may end requests: poll for them afterwards.
pub trait Exchange {
    /// Starts a request. Its token comes back with its outcome.
    fn handle_request(&mut self, token: usize, request: &OutgoingRequest);

    /// Takes received bytes.
    ///
    /// # Errors
    /// When the bytes break the protocol. The connection is unusable then, and its requests must be failed.
    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), RequestFailure>;

    /// The server has closed the connection.
    fn handle_end(&mut self);

    /// Gives up a request. Returns false if the connection cannot be used before that answer has come: HTTP/1.1 has no
    /// way to cancel.
    fn handle_cancel(&mut self, token: usize) -> bool;

    /// Takes the next request that has ended.
    fn poll_finished(&mut self) -> Option<FinishedRequest>;

    /// The bytes to send next.
    fn poll_output(&mut self) -> Option<&[u8]>;

    /// `size` of the bytes from [`Exchange::poll_output`] were sent.
    fn handle_sent(&mut self, size: usize);

    /// Returns true if the server takes no further requests on this connection.
    fn is_over(&self) -> bool;

    /// Returns true if requests can be sent: over TLS after the handshake, otherwise at once.
    fn is_ready(&self) -> bool {
        true
    }
}

/// The failure of the requests of a connection that the server closed.
pub fn closed_failure(exchange: &dyn Exchange) -> RequestFailure {
    if exchange.is_ready() {
        return RequestFailure::new(FailureKind::Closed, "the server closed the connection");
    }
    RequestFailure::new(FailureKind::Connect, "the server closed the connection during the TLS handshake")
}
