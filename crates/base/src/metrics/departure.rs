//! The ways in which clients leave before their answers.

/// The kind of a client's departure before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It cancelled a gRPC call.
    CallCancelled,
    /// It closed or reset the connection.
    ConnectionClosed,
    /// It reset an HTTP/2 stream that is not a gRPC call, or a call with a code other than CANCEL.
    StreamReset,
}

impl Departure {
    /// In the order of `/metrics`.
    pub const ALL: [Self; 3] = [Self::CallCancelled, Self::ConnectionClosed, Self::StreamReset];

    /// Its word as a label of metrics.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::CallCancelled => "call_cancelled",
            Self::ConnectionClosed => "connection_closed",
            Self::StreamReset => "stream_reset",
        }
    }
}
