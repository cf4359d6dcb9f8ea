//! Errors as the trailers `grpc-status` and `grpc-message` that end a call.

use std::borrow::Cow;

use base::error::{Code, Error};
use wire::grpc::{GatherError, encode_status_text};

/// Bytes of `grpc-message`, percent-encoded. gRPC clients take 8 KiB of trailers by default: a larger block ends the call
/// without the server's status and text.
const STATUS_TEXT_SIZE_MAX: usize = 7 * 1024;

/// The values of `grpc-status` and of `grpc-message`, percent-encoded.
#[inline]
pub fn trailers(error: &Error) -> (u8, Cow<'_, str>) {
    (error.code().on_wire().1, bounded(error.text()))
}

/// The text, percent-encoded; of a longer one than clients take its beginning, and its size.
fn bounded(text: &str) -> Cow<'_, str> {
    let whole = if text.len() > STATUS_TEXT_SIZE_MAX { None } else { Some(encode_status_text(text)) };
    if let Some(whole) = whole.filter(|whole| whole.len() <= STATUS_TEXT_SIZE_MAX) {
        return whole;
    }
    let rest = format!("... (cut; the whole text has {} bytes)", text.len());
    let mut left = STATUS_TEXT_SIZE_MAX.saturating_sub(rest.len());
    let mut cut = String::new();
    for char in text.chars() {
        let mut bytes = [0; 4];
        let encoded = encode_status_text(char.encode_utf8(&mut bytes));
        let Some(now_left) = left.checked_sub(encoded.len()) else { break };
        left = now_left;
        cut.push_str(&encoded);
    }
    cut.push_str(&rest);
    Cow::Owned(cut)
}

/// The error for bytes that are no message.
pub fn gather_error(error: GatherError) -> Error {
    match error {
        // gRPC over HTTP/2, "Compression": a flag without an encoding is the sender's fault, and INTERNAL.
        GatherError::Compressed => Error::internal(
            "a message has its compressed flag set, and the call has no grpc-encoding: expected 'gzip' or 'deflate'",
        ),
        GatherError::Flag(flag) => {
            Error::new(Code::Internal, format!("the compressed flag of a message must be 0 or 1, got {flag}"))
        }
        GatherError::Size { size, size_max } => Error::too_large(format!(
            "a message of {size} bytes exceeds the maximum of {size_max} bytes. \
             Use --grpc-max-message-size to increase the limit."
        )),
    }
}

/// The error for a stream that ends inside a message.
#[inline]
pub fn truncated() -> Error {
    Error::new(Code::Internal, "the stream ended within a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_longer_than_clients_take_is_cut_and_says_its_size() {
        let of = |text: &str| trailers(&Error::invalid(text.to_owned())).1.into_owned();
        let most = "x".repeat(STATUS_TEXT_SIZE_MAX);
        assert_eq!(of(&most), most);
        let check = |text: &str, unit: &str| {
            let (got, end) = (of(text), format!("... (cut; the whole text has {} bytes)", text.len()));
            let begin = got.strip_suffix(&end).unwrap();
            assert!(begin.len() > 7_000 && got.len() <= STATUS_TEXT_SIZE_MAX, "{}", got.len());
            assert_eq!(begin, unit.repeat(begin.len() / unit.len()));
        };
        check(&format!("{most}x"), "x");
        check(&"x".repeat(200 * 1024), "x");
        // Whole characters, of which each takes more bytes than it has.
        check(&"ä".repeat(STATUS_TEXT_SIZE_MAX / 2), "%C3%A4");
    }

    #[test]
    fn failures_end_calls_with_the_status_and_text_of_their_code() {
        let check = |error: Error, want: (u8, &str)| assert_eq!(trailers(&error), (want.0, Cow::Borrowed(want.1)));
        check(Error::invalid("input 'ä' is 100% wrong"), (3, "input '%C3%A4' is 100%25 wrong"));
        check(Error::new(Code::Internal, "a"), (13, "a"));
        check(Error::unsupported(""), (12, ""));
        check(Error::unavailable("later"), (14, "later"));
        check(Error::new(Code::DeadlineExceeded, "late"), (4, "late"));
        check(
            gather_error(GatherError::Size { size: 9, size_max: 8 }),
            (
                8,
                "a message of 9 bytes exceeds the maximum of 8 bytes. Use --grpc-max-message-size to increase the limit.",
            ),
        );
        check(gather_error(GatherError::Flag(7)), (13, "the compressed flag of a message must be 0 or 1, got 7"));
        check(truncated(), (13, "the stream ended within a message"));
        assert_eq!(gather_error(GatherError::Compressed).code(), Code::Internal);
    }
}
