//! Errors as the trailers `grpc-status` and `grpc-message` that end a call.

use std::borrow::Cow;

use base::error::{Code, Error};
use wire::grpc::{GatherError, encode_status_text};

/// The values of `grpc-status` and of `grpc-message`, percent-encoded.
#[inline]
pub fn trailers(error: &Error) -> (u8, Cow<'_, str>) {
    (error.code().on_wire().1, encode_status_text(error.text()))
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
