//! The protocol of Redis (RESP2): commands out, replies in. Only the part that a cache needs: a
//! reply with other replies inside is an error. Bounded by the size that the caller gives, and a
//! line by [`RESP_LINE_SIZE_MAX`].

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

use base::limits::RESP_LINE_SIZE_MAX;

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespReply<'a> {
    /// A value.
    Bulk(&'a [u8]),
    /// An error, which leaves the connection as it was.
    Failure(&'a [u8]),
    /// A number.
    Integer(i64),
    /// There is no such value.
    Nothing,
    /// The command is done.
    Status(&'a [u8]),
}

/// The reason why bytes are not a reply. The connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespFault {
    /// Not in the protocol.
    Malformed,
    /// Larger than the caller takes.
    Size,
}

/// Appends a command.
pub fn encode(parts: &[&[u8]], out: &mut Vec<u8>) {
    push_size(b'*', parts.len(), out);
    for part in parts {
        push_size(b'$', part.len(), out);
        out.extend_from_slice(part);
        out.extend_from_slice(LINE_END);
    }
}

fn push_size(mark: u8, size: usize, out: &mut Vec<u8>) {
    let mut digits = itoa::Buffer::new();
    out.push(mark);
    out.extend_from_slice(digits.format(size).as_bytes());
    out.extend_from_slice(LINE_END);
}

/// Returns the first reply in `input` and its size in bytes; `None` if more bytes must come.
///
/// # Errors
/// If the bytes are not a reply, or a value is larger than `size_max`.
pub fn decode(input: &[u8], size_max: usize) -> Result<Option<(RespReply<'_>, usize)>, RespFault> {
    let Some(line_size) = line_size(input)? else { return Ok(None) };
    let line = input.get(..line_size).unwrap_or_default();
    let used = line_size + LINE_END.len();
    let Some((mark, text)) = line.split_first() else { return Err(RespFault::Malformed) };
    let reply = match mark {
        b'+' => RespReply::Status(text),
        b'-' => RespReply::Failure(text),
        b':' => RespReply::Integer(number(text)?),
        b'$' => {
            let Ok(size) = usize::try_from(number(text)?) else {
                return if text == b"-1" { Ok(Some((RespReply::Nothing, used))) } else { Err(RespFault::Malformed) };
            };
            if size > size_max {
                return Err(RespFault::Size);
            }
            let rest = input.get(used..).unwrap_or_default();
            let (Some(value), Some(end)) = (rest.get(..size), rest.get(size..size + LINE_END.len())) else {
                return Ok(None);
            };
            if end != LINE_END {
                return Err(RespFault::Malformed);
            }
            return Ok(Some((RespReply::Bulk(value), used + size + LINE_END.len())));
        }
        _ => return Err(RespFault::Malformed),
    };
    Ok(Some((reply, used)))
}

/// Returns the bytes of the first line without its end; `None` if it has no end yet.
fn line_size(input: &[u8]) -> Result<Option<usize>, RespFault> {
    let head = input.get(..input.len().min(RESP_LINE_SIZE_MAX)).unwrap_or_default();
    match head.windows(LINE_END.len()).position(|pair| pair == LINE_END) {
        Some(size) => Ok(Some(size)),
        None if head.len() < RESP_LINE_SIZE_MAX => Ok(None),
        None => Err(RespFault::Size),
    }
}

fn number(text: &[u8]) -> Result<i64, RespFault> {
    // `from_str` would take a plus sign, which no server sends.
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(RespFault::Malformed);
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(RespFault::Malformed)
}

const LINE_END: &[u8] = b"\r\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_lists_of_values() {
        let mut out = Vec::new();
        encode(&[b"SET", b"a\r\nb", b""], &mut out);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$0\r\n\r\n");
    }

    #[test]
    fn replies_are_told_apart() {
        use RespReply::{Bulk, Failure, Integer, Nothing, Status};
        let check = |input: &[u8], want| assert_eq!(decode(input, 5), want, "{}", input.escape_ascii());
        check(b"+OK\r\n", Ok(Some((Status(b"OK"), 5))));
        check(b"-ERR no\r\nrest", Ok(Some((Failure(b"ERR no"), 9))));
        check(b":-12\r\n", Ok(Some((Integer(-12), 6))));
        check(b"$-1\r\n", Ok(Some((Nothing, 5))));
        check(b"$0\r\n\r\n", Ok(Some((Bulk(b""), 6))));
        check(b"$5\r\na\r\nbc\r\n+", Ok(Some((Bulk(b"a\r\nbc"), 11))));
        check(b"$6\r\n", Err(RespFault::Size));
        check(b"$99999999999999999999\r\n", Err(RespFault::Malformed));
        for wrong in
            ["\r\n", "$\r\n", "$-2\r\n", "$+1\r\na\r\n", "$1\r\nab\r\n", ":1.5\r\n", "*1\r\n+a\r\n", "HTTP/1.1 400\r\n"]
        {
            check(wrong.as_bytes(), Err(RespFault::Malformed));
        }
        check(&[b'-'; RESP_LINE_SIZE_MAX - 1], Ok(None));
        check(&[b'-'; RESP_LINE_SIZE_MAX], Err(RespFault::Size));
    }

    #[test]
    fn a_reply_is_the_same_however_its_bytes_arrive() {
        for whole in [&b"+OK\r\n"[..], b"-ERR no\r\n", b":7\r\n", b"$-1\r\n", b"$5\r\na\r\nbc\r\n"] {
            for size in 0..whole.len() {
                assert_eq!(decode(&whole[..size], 5), Ok(None), "{}", whole[..size].escape_ascii());
            }
            let (reply, used) = decode(whole, 5).unwrap().unwrap();
            assert_eq!(used, whole.len());
            assert_eq!(decode(&[whole, b"$"].concat(), 5), Ok(Some((reply, used))));
        }
    }
}
