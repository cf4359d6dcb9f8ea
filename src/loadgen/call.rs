//! One gRPC call from the client's side: what is left to send of its message, and what came of its
//! reply (PROTOCOL-HTTP2.md, "Responses"). Pure; [`http2`](super::http2) moves the frames.

use bytes::{Buf, Bytes, BytesMut};

use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::wire::grpc::PREFIX_SIZE;
use crate::wire::hpack::field::HeaderField;

/// A call in flight.
#[derive(Debug)]
pub struct CallInFlight {
    /// What its caller calls it.
    pub token: usize,
    /// What is not sent yet.
    pub unsent: Bytes,
    /// Room for it at the server.
    pub room: i64,
    /// Whether it waits for that room, and for no turn.
    pub is_blocked: bool,
    /// Bytes that came since the server was last given room for more.
    pub received: u32,
    reply: CallReply,
}

/// What came so far.
#[derive(Debug, Default)]
struct CallReply {
    http_status: Option<u16>,
    grpc_status: Option<u32>,
    text: String,
    body: BytesMut,
}

impl CallInFlight {
    /// A call of which nothing was sent.
    pub fn new(token: usize, message: Bytes, room: i64) -> Self {
        Self { token, unsent: message, room, is_blocked: false, received: 0, reply: CallReply::default() }
    }

    /// A field of the head or of the trailers.
    pub fn handle_field(&mut self, field: &HeaderField<'_>) {
        let number = || std::str::from_utf8(field.value).ok();
        match field.name_text {
            b":status" => self.reply.http_status = number().and_then(|text| text.parse().ok()),
            b"grpc-status" => self.reply.grpc_status = number().and_then(|text| text.parse().ok()),
            b"grpc-message" => self.reply.text = percent_decoded(field.value),
            _ => {}
        }
    }

    /// The fields of a head, or of trailers, are complete. An interim one is none (RFC 9110 §15.2).
    pub fn handle_fields_end(&mut self) {
        self.reply.http_status = self.reply.http_status.filter(|status| *status >= 200);
    }

    /// A part of the body; false where it comes before the head.
    pub fn handle_data(&mut self, part: &[u8], is_kept: bool) -> bool {
        if is_kept {
            self.reply.body.extend_from_slice(part);
        }
        self.reply.http_status.is_some()
    }

    /// The server has said all: the message without its prefix, where bodies are kept.
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

/// The text of a status (PROTOCOL-HTTP2.md, "Responses"); what is not well encoded stays as it is.
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
