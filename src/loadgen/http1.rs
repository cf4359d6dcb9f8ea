//! HTTP/1.1 on the client's side, one request at a time (RFC 9112). Pure. Under load, bodies of successes are skipped and
//! not stored.

use bytes::{Buf, Bytes};

use crate::loadgen::exchange::{Exchange, FinishedRequest};
use crate::loadgen::failure::{FailureKind, RequestFailure};
use crate::loadgen::request::OutgoingRequest;
use crate::wire::http1::chunk::{self, Chunks};
use crate::wire::json::Document;

/// Fields of a reply's head, at most.
const FIELDS_MAX: usize = 64;
/// Bytes of a reply's head, at most.
const HEAD_SIZE_MAX: usize = 64 * 1024;
/// Bytes stored of a failure's body, for its message.
const ERROR_SIZE_MAX: usize = 4 * 1024;

/// The state of one connection.
#[derive(Debug)]
pub struct Http1Exchange {
    /// True if bodies of successes are stored.
    keeps_bodies: bool,
    /// The request in flight.
    token: Option<usize>,
    /// The unsent rest of the request.
    output: Bytes,
    state: ReplyState,
    /// The received part of an incomplete head or chunk line.
    partial: Vec<u8>,
    status: u16,
    body: Vec<u8>,
    finished: Option<FinishedRequest>,
    is_over: bool,
}

/// ```text
/// Head ──► Sized ────────────────► Head
///   ├────► Chunk ◄─► ChunkEnd       ▲
///   │        └──► Trailers ─────────┤
///   └────► Rest (until the end) ────┘
/// ```
#[derive(Debug)]
enum ReplyState {
    Head,
    /// In a body with a length: the bytes left.
    Sized(u64),
    /// In the data of a chunk: the bytes left. At 0, before the line of the next chunk.
    Chunk(Chunks, u64),
    ChunkEnd(Chunks),
    Trailers,
    /// RFC 9112 §6.3: without a length the body ends with the connection.
    Rest,
}

impl Http1Exchange {
    /// A new connection. Bodies of successes are stored if `keeps_bodies`.
    pub const fn new(keeps_bodies: bool) -> Self {
        Self {
            keeps_bodies,
            token: None,
            output: Bytes::new(),
            state: ReplyState::Head,
            partial: Vec::new(),
            status: 0,
            body: Vec::new(),
            finished: None,
            is_over: false,
        }
    }

    /// Decodes a head. Returns the rest of the input, or `None` while the head is incomplete.
    fn take_head<'a>(&mut self, input: &'a [u8]) -> Result<Option<&'a [u8]>, RequestFailure> {
        let mut space = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut reply = httparse::Response::new(&mut space);
        let size = match reply.parse(input) {
            Ok(httparse::Status::Complete(size)) => size,
            Ok(httparse::Status::Partial) if input.len() > HEAD_SIZE_MAX => {
                return Err(malformed("a head without an end"));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(malformed(&error.to_string())),
        };
        self.status = reply.code.unwrap_or(0);
        let mut length = None;
        let mut is_chunked = false;
        // An HTTP/1.0 server closes the connection after its answer.
        self.is_over |= reply.version == Some(0);
        for field in reply.headers.iter() {
            if field.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(field.value).ok();
                length = Some(text.and_then(|text| text.parse().ok()).ok_or_else(|| malformed("Content-Length"))?);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = field.value.eq_ignore_ascii_case(b"chunked");
            } else if field.name.eq_ignore_ascii_case("connection") {
                self.is_over |= field.value.eq_ignore_ascii_case(b"close");
            }
        }
        self.body.clear();
        self.state = match (self.status, is_chunked, length) {
            // Another head follows (RFC 9110 §15.2).
            (100..=199, ..) => ReplyState::Head,
            (204 | 304, ..) => ReplyState::Sized(0),
            (_, true, _) => ReplyState::Chunk(Chunks::default(), 0),
            (_, false, Some(length)) => ReplyState::Sized(length),
            (_, false, None) => {
                self.is_over = true;
                ReplyState::Rest
            }
        };
        Ok(input.get(size..))
    }

    /// Takes up to `left` bytes of a body. Returns the rest of the input, and the count of body
    /// bytes left.
    fn take_body<'a>(&mut self, input: &'a [u8], left: u64) -> (&'a [u8], u64) {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let (part, rest) = input.split_at_checked(size).unwrap_or((input, &[]));
        if self.keeps_bodies {
            self.body.extend_from_slice(part);
        } else if self.status != 200 {
            let room = ERROR_SIZE_MAX.saturating_sub(self.body.len()).min(part.len());
            self.body.extend_from_slice(part.get(..room).unwrap_or_default());
        }
        (rest, left - size as u64)
    }

    fn finish(&mut self) {
        self.state = ReplyState::Head;
        let body = std::mem::take(&mut self.body);
        let outcome = match self.status {
            200 => Ok(body.into()),
            status => Err(RequestFailure::new(FailureKind::Http(status), error_text(&body))),
        };
        self.finished = self.token.take().map(|token| FinishedRequest { token, outcome });
    }

    /// Decodes as much of the input as possible. Returns the rest, which must be decoded again with
    /// more bytes behind it.
    fn advance<'a>(&mut self, mut input: &'a [u8]) -> Result<&'a [u8], RequestFailure> {
        loop {
            let state = std::mem::replace(&mut self.state, ReplyState::Head);
            match state {
                ReplyState::Head if input.is_empty() => return Ok(input),
                ReplyState::Head if self.token.is_none() => {
                    return Err(malformed("an answer without a request"));
                }
                ReplyState::Head => match self.take_head(input)? {
                    Some(rest) => input = rest,
                    None => return Ok(input),
                },
                ReplyState::Sized(left) => {
                    let (rest, left) = self.take_body(input, left);
                    input = rest;
                    if left > 0 {
                        self.state = ReplyState::Sized(left);
                        return Ok(input);
                    }
                    self.finish();
                }
                ReplyState::Chunk(mut chunks, 0) => {
                    let line = chunks.decode_line(input).map_err(|refusal| malformed(refusal.text()))?;
                    let Some(line) = line else {
                        self.state = ReplyState::Chunk(chunks, 0);
                        return Ok(input);
                    };
                    input = input.get(line.line_size..).unwrap_or_default();
                    self.state =
                        if line.size == 0 { ReplyState::Trailers } else { ReplyState::Chunk(chunks, line.size) };
                }
                ReplyState::Chunk(chunks, left) => {
                    let (rest, left) = self.take_body(input, left);
                    input = rest;
                    self.state = if left == 0 { ReplyState::ChunkEnd(chunks) } else { ReplyState::Chunk(chunks, left) };
                    if left > 0 {
                        return Ok(input);
                    }
                }
                ReplyState::ChunkEnd(chunks) => {
                    if !chunk::decode_end(input).map_err(|refusal| malformed(refusal.text()))? {
                        self.state = ReplyState::ChunkEnd(chunks);
                        return Ok(input);
                    }
                    input = input.get(2..).unwrap_or_default();
                    self.state = ReplyState::Chunk(chunks, 0);
                }
                ReplyState::Trailers => {
                    let Some(size) = input.windows(2).position(|two| two == b"\r\n") else {
                        self.state = ReplyState::Trailers;
                        return if input.len() > HEAD_SIZE_MAX { Err(malformed("trailers")) } else { Ok(input) };
                    };
                    input = input.get(size + 2..).unwrap_or_default();
                    if size == 0 {
                        self.finish();
                    } else {
                        self.state = ReplyState::Trailers;
                    }
                }
                ReplyState::Rest => {
                    self.take_body(input, u64::MAX);
                    self.state = ReplyState::Rest;
                    return Ok(&[]);
                }
            }
        }
    }
}

impl Exchange for Http1Exchange {
    fn handle_request(&mut self, token: usize, request: &OutgoingRequest) {
        debug_assert!(self.token.is_none(), "one request at a time");
        self.token = Some(token);
        self.output = request.bytes.clone();
    }

    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<(), RequestFailure> {
        if self.partial.is_empty() {
            let rest = self.advance(bytes)?;
            self.partial.extend_from_slice(rest);
        } else {
            let mut input = std::mem::take(&mut self.partial);
            input.extend_from_slice(bytes);
            let rest = self.advance(&input)?.len();
            input.drain(..input.len() - rest);
            self.partial = input;
        }
        Ok(())
    }

    fn handle_end(&mut self) {
        self.is_over = true;
        if matches!(self.state, ReplyState::Rest) {
            self.finish();
        }
    }

    fn handle_cancel(&mut self, _token: usize) -> bool {
        // HTTP/1.1 cannot cancel: the answer may still come, in the place of the next one.
        false
    }

    fn poll_finished(&mut self) -> Option<FinishedRequest> {
        self.finished.take()
    }

    fn poll_output(&mut self) -> Option<&[u8]> {
        (!self.output.is_empty()).then_some(&self.output)
    }

    fn handle_sent(&mut self, size: usize) {
        self.output.advance(size.min(self.output.len()));
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

fn malformed(text: &str) -> RequestFailure {
    RequestFailure::new(FailureKind::Malformed, text)
}

/// The message in a body `{"error":"…"}`, or the body itself on one line.
fn error_text(body: &[u8]) -> String {
    let document = Document::parse(body, &[]).ok();
    let error = document.as_ref().and_then(|document| document.root().get("error")?.as_str().map(str::to_owned));
    error.unwrap_or_else(|| String::from_utf8_lossy(body).trim().replace(['\r', '\n'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::request::RequestMethod;

    /// The outcome of one request whose answer arrives in pieces of each size: always the same.
    fn answer(text: &str, ends: bool) -> Result<String, String> {
        let mut all = Vec::new();
        for size in 1..=text.len() {
            let mut exchange = Http1Exchange::new(true);
            exchange.handle_request(
                7,
                &OutgoingRequest { method: RequestMethod::ModelInfer, bytes: Bytes::from_static(b"ask") },
            );
            assert_eq!(exchange.poll_output(), Some(&b"ask"[..]));
            exchange.handle_sent(2);
            assert_eq!(exchange.poll_output(), Some(&b"k"[..]));
            exchange.handle_sent(1);
            assert_eq!(exchange.poll_output(), None);
            let outcome = text.as_bytes().chunks(size).try_for_each(|part| exchange.handle_bytes(part));
            if ends {
                exchange.handle_end();
            }
            let finished = exchange.poll_finished();
            assert!(finished.iter().all(|finished| finished.token == 7));
            assert_eq!(exchange.poll_finished(), None);
            all.push(match (outcome, finished) {
                (Err(failure), _) => Err(failure.to_string()),
                (Ok(()), None) => Err("nothing".to_owned()),
                (Ok(()), Some(FinishedRequest { outcome: Err(failure), .. })) => {
                    Err(format!("{failure} {}", exchange.is_over()))
                }
                (Ok(()), Some(FinishedRequest { outcome: Ok(body), .. })) => {
                    Ok(format!("{} {}", String::from_utf8_lossy(&body), exchange.is_over()))
                }
            });
        }
        assert!(all.iter().all(|outcome| *outcome == all[0]), "pieces change nothing: {all:?}");
        all.remove(0)
    }

    #[test]
    fn answers_are_read_however_they_are_framed_and_cut() {
        let check = |text: &str, want: &str| assert_eq!(answer(text, false).as_deref(), Ok(want), "{text}");
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello false");
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: close\r\n\r\n", " true");
        check("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", "x false");
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: v\r\n\r\n",
            "abcde false",
        );
        let rest = "HTTP/1.1 200 OK\r\n\r\nto the end";
        assert_eq!(answer(rest, true).as_deref(), Ok("to the end true"));
        assert_eq!(answer(rest, false), Err("nothing".to_owned()));
    }

    #[test]
    fn errors_keep_their_text_and_their_status() {
        let check = |text: &str, want: &str| assert_eq!(answer(text, false), Err(want.to_owned()), "{text}");
        check("HTTP/1.1 503 No\r\nContent-Length: 16\r\n\r\n{\"error\":\"full\"}", "HTTP 503: full false");
        check("HTTP/1.1 404 No\r\nContent-Length: 5\r\n\r\nnone\n", "HTTP 404: none false");
        check("HTTP/1.1 204 No Content\r\n\r\n", "HTTP 204 false");
        check("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "malformed answer: Content-Length");
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n", "malformed answer: invalid chunk size");
        check("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP", "malformed answer: an answer without a request");
        assert!(answer("SSH-2.0-x\r\n", false).unwrap_err().starts_with("malformed answer: "));
    }

    #[test]
    fn a_body_is_kept_only_where_it_is_wanted() {
        let mut exchange = Http1Exchange::new(false);
        for (status, want) in
            [("200 OK", Ok(Bytes::new())), ("500 No", Err(RequestFailure::new(FailureKind::Http(500), "big")))]
        {
            exchange.handle_request(
                1,
                &OutgoingRequest { method: RequestMethod::ModelInfer, bytes: Bytes::from_static(b"a") },
            );
            let text = format!("HTTP/1.1 {status}\r\nContent-Length: 3\r\n\r\nbig");
            exchange.handle_bytes(text.as_bytes()).unwrap();
            assert_eq!(exchange.poll_finished().unwrap().outcome, want);
        }
    }
}
