//! Error codes (RFC 9113 §7), and a fault with its reach: a stream or the connection (§5.4).

use std::borrow::Cow;

/// Why a stream or a connection ends, as RST_STREAM and GOAWAY carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// Nothing is wrong.
    NoError = 0,
    /// The peer broke the protocol.
    ProtocolError = 1,
    /// We did.
    InternalError = 2,
    /// More was sent than the window had room for.
    FlowControlError = 3,
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout = 4,
    /// A frame came on a stream that was closed.
    StreamClosed = 5,
    /// A frame's size is wrong.
    FrameSizeError = 6,
    /// The stream was not looked at: it may be tried again.
    RefusedStream = 7,
    /// It is not wanted any more.
    Cancel = 8,
    /// A field block could not be decoded.
    CompressionError = 9,
    /// The connection of a CONNECT ended.
    ConnectError = 10,
    /// The peer asks for too much.
    EnhanceYourCalm = 11,
    /// The transport is not safe enough.
    InadequateSecurity = 12,
    /// HTTP/1.1 is to be used.
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

    /// The code of a number; an unknown one has no meaning of its own (§7).
    pub fn from_number(number: u32) -> Self {
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        Self::ALL.get(index).copied().unwrap_or(Self::InternalError)
    }
}

/// A fault of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFault {
    /// What is told to the peer.
    pub code: ErrorCode,
    /// Whether the whole connection ends by it, or the stream alone.
    pub is_of_connection: bool,
    /// For a person.
    pub text: Cow<'static, str>,
}

impl PeerFault {
    /// One that ends the connection (§5.4.1).
    pub fn of_connection(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, is_of_connection: true, text: text.into() }
    }

    /// One that ends its stream (§5.4.2).
    pub fn of_stream(code: ErrorCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, is_of_connection: false, text: text.into() }
    }
}
