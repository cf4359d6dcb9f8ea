//! Frames as bytes, written here independently of the code under test.

/// A frame that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const WITH_PRIORITY: u8 = 0x20;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame whose head says another size than its payload has.
pub fn lying(size: u32, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, size @ ..] = size.to_be_bytes();
    [&size[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    lying(u32::try_from(payload.len()).unwrap(), kind, flags, stream, payload)
}

pub fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> =
        entries.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    frame(SETTINGS, 0, 0, &payload)
}

pub fn ping(text: &[u8; 8]) -> Vec<u8> {
    frame(PING, 0, 0, text)
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub fn window(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub fn goaway(last: u32, code: u32, text: &[u8]) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &code.to_be_bytes(), text].concat())
}

/// A field, literal and in no table.
pub fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0][..], &string(name), &string(value)].concat()
}

/// A string without the Huffman code.
pub fn string(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if text.len() < 127 {
        out.push(text.len() as u8);
    } else {
        out.push(127);
        let mut rest = text.len() - 127;
        while rest >= 128 {
            out.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(text);
    out
}

/// The first frame, and how many bytes it has.
pub fn parse(bytes: &[u8]) -> Option<(Frame, usize)> {
    let head = bytes.first_chunk::<9>()?;
    let size = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let payload = bytes.get(9..9 + size)?.to_vec();
    let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
    Some((Frame { kind: head[3], flags: head[4], stream, payload }, 9 + size))
}
