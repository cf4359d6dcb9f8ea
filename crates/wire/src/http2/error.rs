//! Error codes (RFC 9113 §7), and the faults of a peer, which end a stream or the connection (§5.4).

use std::borrow::Cow;

/// The reason for the end of a stream or connection, in RST_STREAM and GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// No error: a graceful end.
    NoError = 0,
    /// The peer violated the protocol.
    ProtocolError = 1,
    /// The sender of the code failed.
    InternalError = 2,
    /// The peer sent more than the window allows.
    FlowControlError = 3,
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout = 4,
    /// A frame arrived on a closed stream.
    StreamClosed = 5,
    /// A frame has an invalid size.
    FrameSizeError = 6,
    /// The stream was not processed, so that the request can be retried.
    RefusedStream = 7,
    /// The stream is no longer needed.
    Cancel = 8,
    /// A field block could not be decoded.
    CompressionError = 9,
    /// The connection behind a CONNECT request failed.
    ConnectError = 10,
    /// The peer causes excessive load.
    EnhanceYourCalm = 11,
    /// The transport does not meet the security requirements.
    InadequateSecurity = 12,
    /// The peer should use HTTP/1.1.
    Http11Required = 13,
}

impl ErrorCode {
    const ALL: [Self; 14] = [
        Self::NoError,
        Self::ProtocolError,
        Self::InternalError,
        Self::FlowControlError,
        Self::SettingsTimeout,
        Self::StreamClosed,
        Self::FrameSizeError,
        Self::RefusedStream,
        Self::Cancel,
        Self::CompressionError,
        Self::ConnectError,
        Self::EnhanceYourCalm,
        Self::InadequateSecurity,
        Self::Http11Required,
    ];

    /// The code with a number; an unknown number counts as an internal error (§7).
    #[inline]
    pub fn from_number(number: u32) -> Self {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        Self::ALL.get(index).copied().unwrap_or(Self::InternalError)
    }
}

/// A protocol error of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFault {
    /// The code to send to the peer.
    pub code: ErrorCode,
    /// True if it ends the whole connection, and not only the stream.
    pub is_of_connection: bool,
    /// The reason, for a person: the debug data of GOAWAY.
    pub text: Cow<'static, str>,
}

impl PeerFault {
    /// A connection error (§5.4.1).
    pub fn of_connection(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, is_of_connection: true, text: text.into() }
    }

    /// A stream error (§5.4.2).
    pub fn of_stream(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, is_of_connection: false, text: text.into() }
    }
}
