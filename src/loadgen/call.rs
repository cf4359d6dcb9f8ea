//! One gRPC call on the client's side: the unsent rest of its message, and the part of the reply received so far
//! (PROTOCOL-HTTP2.md, "Responses"). Pure; [`http2`](super::http2) encodes and decodes the frames.

use bytes::{Buf, Bytes, BytesMut};

use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::wire::grpc::PREFIX_SIZE;
use crate::wire::hpack::field::HeaderField;

/// A call in flight.
#[derive(Debug)]
pub struct CallInFlight {
    /// The caller's token for the request.
    pub token: usize,
    /// The rest of the message.
    pub unsent: Bytes,
    /// The stream's flow-control window at the server, in bytes. Negative after the server reduced its initial window.
    pub send_window: i64,
    /// True if it waits for a larger window, and so is not in the queue of streams to send.
    pub is_blocked: bool,
    /// Bytes received since the last WINDOW_UPDATE that we sent for the stream.
    pub received: u32,
    reply: CallReply,
}

/// The part of the reply received so far.
#[derive(Debug, Default)]
struct CallReply {
    http_status: Option<u16>,
    grpc_status: Option<u32>,
    text: String,
    body: BytesMut,
}

impl CallInFlight {
    /// A new call with its whole message unsent.
    pub fn new(token: usize, message: Bytes, send_window: i64) -> Self {
        Self { token, unsent: message, send_window, is_blocked: false, received: 0, reply: CallReply::default() }
    }

    /// Takes a field of the head or of the trailers.
    pub fn handle_field(&mut self, field: &HeaderField<'_>) {
        let number = || std::str::from_utf8(field.value).ok();
        match field.name_text {
            b":status" => self.reply.http_status = number().and_then(|text| text.parse().ok()),
            b"grpc-status" => self.reply.grpc_status = number().and_then(|text| text.parse().ok()),
            b"grpc-message" => self.reply.text = percent_decoded(field.value),
            _ => {}
        }
    }

    /// The head or the trailers are complete. The status of an interim response does not count (RFC 9110 §15.2).
    pub fn handle_fields_end(&mut self) {
        self.reply.http_status = self.reply.http_status.filter(|status| *status >= 200);
    }

    /// Takes a part of the body, and stores it if `is_kept`. Returns false for a body before the head.
    pub fn handle_data(&mut self, part: &[u8], is_kept: bool) -> bool {
        if is_kept {
            self.reply.body.extend_from_slice(part);
        }
        self.reply.http_status.is_some()
    }

    /// The outcome of a call whose stream has ended: the message without its prefix (empty if bodies are not kept), or the
    /// failure that the statuses tell.
    ///
    /// # Errors
    /// [`FailureKind::Grpc`] or [`FailureKind::Http`] for a failure status, [`FailureKind::Malformed`] without a status.
    pub fn into_outcome(self) -> Result<Bytes, RequestFailure> {
        let CallReply { http_status, grpc_status, text, body } = self.reply;
        match (http_status, grpc_status) {
            (Some(200), Some(0)) => {
                let mut message = body.freeze();
                message.advance(message.len().min(PREFIX_SIZE));
                Ok(message)
            }
            (Some(200), Some(code)) => Err(RequestFailure::new(FailureKind::Grpc(code), text)),
            (Some(200), None) => Err(RequestFailure::new(FailureKind::Malformed, "no grpc-status")),
            (Some(status), _) => Err(RequestFailure::new(FailureKind::Http(status), text)),
            (None, _) => Err(RequestFailure::new(FailureKind::Malformed, "no :status")),
        }
    }
}

/// Decodes `grpc-message` (PROTOCOL-HTTP2.md, "Responses"). A malformed escape is left as it is.
fn percent_decoded(text: &[u8]) -> String {
    let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = if *first == b'%' { after.first_chunk::<2>() } else { None };
        match digits.and_then(|[high, low]| Some(hex(*high)? << 4 | hex(*low)?)) {
            Some(byte) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_status_are_decoded() {
        let check = |text: &str, want: &str| assert_eq!(percent_decoded(text.as_bytes()), want);
        check("plain", "plain");
        check("50%25 caf%C3%A9", "50% café");
        check("%zz%1", "%zz%1");
    }

    #[test]
    fn the_outcome_of_a_call_is_told_by_its_statuses() {
        let check = |fields: &[(&str, &str)], want: Result<&str, &str>| {
            let mut call = CallInFlight::new(1, Bytes::new(), 0);
            for (name, value) in fields {
                call.handle_field(&HeaderField::new(name.as_bytes(), value.as_bytes()));
            }
            call.handle_fields_end();
            call.handle_data(b"\0\0\0\0\x02ok", true);
            let got = call.into_outcome().map_err(|failure| failure.to_string());
            assert_eq!(got, want.map(|text| Bytes::from(text.to_owned())).map_err(str::to_owned), "{fields:?}");
        };
        check(&[(":status", "200"), ("grpc-status", "0")], Ok("ok"));
        check(&[(":status", "200"), ("grpc-status", "14"), ("grpc-message", "a%20b")], Err("gRPC 14 UNAVAILABLE: a b"));
        check(&[(":status", "503")], Err("HTTP 503"));
        check(&[(":status", "200")], Err("malformed answer: no grpc-status"));
        check(&[(":status", "200"), ("grpc-status", "x")], Err("malformed answer: no grpc-status"));
        check(&[(":status", "103"), ("grpc-status", "0")], Err("malformed answer: no :status"));
        check(&[], Err("malformed answer: no :status"));
    }
}
