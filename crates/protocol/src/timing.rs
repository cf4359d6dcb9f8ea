//! The `Server-Timing` field (W3C Server Timing, "The Server-Timing Header Field"): the durations
//! of the parts of one inference, for REST and gRPC. The shard takes the time stamps; this only
//! formats them, always as five spans.

use std::fmt::Write;
use std::time::Duration;

use base::time::{Instant, Stamps};

/// Name of the field: a header field in REST, a trailer, in lower case, in gRPC.
pub const FIELD: &str = "Server-Timing";
/// The header field, or gRPC metadata, with which a client requests it: `want-server-timing: 1`.
pub const WANT: &str = "want-server-timing";

/// Returns true if a value of [`WANT`] requests it.
pub fn is_wanted(value: &[u8]) -> bool {
    value == b"1"
}

/// The time stamps of one successful inference. Its spans are contiguous, from the last byte of the request to the
/// encoded response.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The time stamps that also feed the statistics.
    pub stamps: Stamps,
    /// The instant at which the request was decoded and checked.
    pub decoded: Instant,
    /// The instant at which the response was encoded. Later times cannot be reported: the field is
    /// sent before the body.
    pub encoded: Instant,
}

impl Timing {
    /// The spans with their names, in order of time.
    pub const fn spans(&self) -> [(&'static str, Duration); 5] {
        let Stamps { received, batched, input_end, infer_end, .. } = self.stamps;
        [
            // Decode the request and check it against the model.
            ("parse", self.decoded.since(received)),
            // Wait in the model queue, if the model has one.
            ("queue", batched.since(self.decoded)),
            // Gather the inputs of the batch.
            ("batch", input_end.since(batched)),
            // Run the batch in the engine.
            ("run", infer_end.since(input_end)),
            // Split the outputs, return them to the shard and encode the response.
            ("write", self.encoded.since(infer_end)),
        ]
    }

    /// The field's value: milliseconds with three decimals. Truncated, so that the spans never add up to more than
    /// the time that has passed.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(TEXT_SIZE_USUAL);
        for (index, (name, span)) in self.spans().into_iter().enumerate() {
            let (comma, micros) = (if index == 0 { "" } else { ", " }, span.as_micros());
            let _ = write!(text, "{comma}{name};dur={}.{:03}", micros / 1_000, micros % 1_000);
        }
        text
    }
}

/// Bytes of a typical value.
const TEXT_SIZE_USUAL: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_milliseconds_that_follow_one_another() {
        let at = Instant::from_nanos;
        let stamps = Stamps {
            received: at(1_000),
            batched: at(53_999),
            input_end: at(55_000),
            infer_end: at(12_055_000),
            output_end: at(12_056_000),
        };
        let timing = Timing { stamps, decoded: at(13_000), encoded: at(12_095_000) };
        let want = "parse;dur=0.012, queue;dur=0.040, batch;dur=0.001, run;dur=12.000, write;dur=0.040";
        assert_eq!(timing.text(), want);
        let sum: Duration = timing.spans().iter().map(|(_, span)| *span).sum();
        assert_eq!(sum, timing.encoded.since(stamps.received), "no gap, no overlap");
    }

    #[test]
    fn only_a_one_asks() {
        for (value, want) in [(&b"1"[..], true), (b"0", false), (b"true", false), (b"", false), (b"11", false)] {
            assert_eq!(is_wanted(value), want, "{value:?}");
        }
    }
}
