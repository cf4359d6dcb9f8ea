//! A case of the suite: the bytes of a client, and the required behaviour of a server.

use super::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, field, frame,
};

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL: u32 = 1;
pub const FLOW_CONTROL: u32 = 3;
pub const CLOSED: u32 = 5;
pub const SIZE: u32 = 6;
pub const REFUSED: u32 = 7;
pub const COMPRESSION: u32 = 9;

/// Required behaviour of a server.
#[derive(Clone)]
pub enum Want {
    /// To end the connection with one of these codes.
    Connection(&'static [u32]),
    /// To reset the stream with one of these codes, or to end the connection with it, which it may
    /// always do (RFC 9113 §5.4.1).
    Stream(u32, &'static [u32]),
    /// To answer these streams and live on.
    Answers(Vec<u32>),
    /// The check that the function makes.
    Check(fn(&Seen) -> Result<(), String>),
}

/// One case.
#[derive(Clone)]
pub struct Case {
    /// The clause of the RFC.
    pub clause: &'static str,
    /// The subject of the case, in words.
    pub name: String,
    /// Bytes sent before the server's settings are awaited: the preface precedes them.
    pub opening: Vec<u8>,
    /// Bytes sent then, one part after the other, with a PING and its answer between two.
    pub parts: Vec<Vec<u8>>,
    pub want: Want,
}

/// Observations of a server.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The frames, each with the part that it came after.
    pub frames: Vec<(usize, Frame)>,
    /// True if the connection ended.
    pub is_closed: bool,
}

impl Seen {
    /// The code of GOAWAY, except for an announcement.
    pub fn goaway(&self) -> Option<u32> {
        self.frames.iter().rev().find(|(_, frame)| frame.kind == GOAWAY).map(|(_, frame)| number(&frame.payload[4..]))
    }

    /// The code of a stream's RST_STREAM.
    pub fn reset(&self, stream: u32) -> Option<u32> {
        self.of(stream).find(|(_, frame)| frame.kind == RST_STREAM).map(|(_, frame)| number(&frame.payload))
    }

    pub fn of(&self, stream: u32) -> impl Iterator<Item = &(usize, Frame)> {
        self.frames.iter().filter(move |(_, frame)| frame.stream == stream)
    }

    pub fn is_answered(&self, stream: u32) -> bool {
        let has_head = self.of(stream).any(|(_, frame)| frame.kind == HEADERS);
        let is_whole = |(_, frame): &(usize, Frame)| frame.kind <= HEADERS && frame.flags & END_STREAM != 0;
        has_head && self.of(stream).any(is_whole)
    }

    /// Bytes of content received on a stream after a part.
    pub fn content(&self, stream: u32, part: usize) -> usize {
        let of_part = self.of(stream).filter(|(at, frame)| *at == part && frame.kind == DATA);
        of_part.map(|(_, frame)| frame.payload.len()).sum()
    }

    pub fn settings(&self) -> Option<&Frame> {
        self.frames.iter().map(|(_, frame)| frame).find(|frame| frame.kind == SETTINGS && frame.flags & ACK == 0)
    }

    /// The field blocks of the answers, in order.
    pub fn blocks(&self) -> Vec<Vec<u8>> {
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        for (_, frame) in &self.frames {
            match frame.kind {
                HEADERS => blocks.push(frame.payload.clone()),
                CONTINUATION => blocks.last_mut().unwrap().extend_from_slice(&frame.payload),
                _ => {}
            }
        }
        blocks
    }

    pub fn has_pong(&self, text: &[u8; 8]) -> bool {
        self.frames.iter().any(|(_, frame)| frame.kind == PING && frame.flags & ACK != 0 && frame.payload == text)
    }
}

fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload[..4].try_into().unwrap())
}

impl Want {
    /// Compares observed and required behaviour. If a connection must end, the strict check also wants its GOAWAY,
    /// which RFC 9113 §5.4.1 asks for and does not demand.
    pub fn judge(&self, seen: &Seen, is_strict: bool) -> Result<(), String> {
        let ended = |codes: &[u32]| match seen.goaway() {
            Some(code) => codes.contains(&code) && seen.is_closed,
            None => seen.is_closed && !is_strict,
        };
        let is_right = match self {
            Self::Connection(codes) => ended(codes),
            Self::Stream(stream, codes) => {
                seen.reset(*stream).map_or_else(|| ended(codes), |code| codes.contains(&code))
            }
            Self::Answers(streams) => {
                let is_alive = !seen.is_closed && seen.goaway().is_none();
                is_alive
                    && streams
                        .iter()
                        .all(|id| seen.is_answered(*id) && seen.reset(*id).is_none_or(|code| code == NO_ERROR))
            }
            Self::Check(check) => return check(seen),
        };
        if is_right { Ok(()) } else { Err(format!("closed: {}, {:?}", seen.is_closed, tail(seen))) }
    }
}

fn tail(seen: &Seen) -> Vec<String> {
    let show = |(part, frame): &(usize, Frame)| {
        let text = frame.payload.iter().take(80).copied().collect::<Vec<u8>>();
        format!("{part}: kind {} flags {} stream {} {}", frame.kind, frame.flags, frame.stream, text.escape_ascii())
    };
    seen.frames.iter().rev().take(6).rev().map(show).collect()
}

/// The fields of the request that every case builds on: a call that any gRPC server of KServe's
/// protocol answers, and any HTTP server with some status.
pub const REQUEST: [(&str, &str); 6] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ServerLive"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
];

/// A field block of the request, with more fields behind.
pub fn block(more: &[(&str, &str)]) -> Vec<u8> {
    fields(&[&REQUEST[..], more].concat())
}

pub fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| field(name.as_bytes(), value.as_bytes())).collect()
}

/// The request without one of its fields.
pub fn without(name: &str) -> Vec<u8> {
    let rest: Vec<_> = REQUEST.into_iter().filter(|(have, _)| *have != name).collect();
    fields(&rest)
}

/// The request with another value for one of its fields.
pub fn with(name: &str, value: &str) -> Vec<u8> {
    fields(&REQUEST.map(|(have, old)| (have, if have == name { value } else { old })))
}

/// The beginning of a request whose content follows.
pub fn head(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, block)
}

/// The content of the request: one empty message.
pub const CONTENT: &[u8] = &[0; 5];

/// The end of a request.
pub fn body(stream: u32) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, CONTENT)
}

/// A whole request.
pub fn request(stream: u32) -> Vec<u8> {
    [head(stream, &block(&[])), body(stream)].concat()
}
