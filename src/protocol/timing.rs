//! Where the time of one inference went, as a client reads it: the value of `Server-Timing` (W3C
//! Server Timing, "The Server-Timing Header Field"), the same for REST and gRPC. The shard stamps;
//! this only formats. Bounded: five spans.

use std::fmt::Write;
use std::time::Duration;

use crate::time::{Instant, Stamps};

/// The header field of REST; of gRPC, in lower case, a trailer.
pub const FIELD: &str = "Server-Timing";
/// The header field, or metadata, by which a client asks for it: `want-server-timing: 1`.
pub const WANT: &str = "want-server-timing";

/// Whether a value of [`WANT`] asks for it.
pub fn is_wanted(value: &[u8]) -> bool {
    value == b"1"
}

/// The instants of one inference that was answered with outputs. Its spans follow one another
/// without gaps, from its last byte read to its answer encoded.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// What statistics are made of.
    pub stamps: Stamps,
    /// The request was decoded and checked.
    pub decoded: Instant,
    /// The answer was encoded. What comes after cannot be told: the field goes before the body.
    pub encoded: Instant,
}

impl Timing {
    /// The spans under their names, in their order.
    pub const fn spans(&self) -> [(&'static str, Duration); 5] {
        let Stamps { received, batched, input_end, infer_end, .. } = self.stamps;
        [
            // The request is decoded and held against its model.
            ("parse", self.decoded.since(received)),
            // It waits in the queue of its model, where there is one.
            ("queue", batched.since(self.decoded)),
            // The inputs of its batch are brought together.
            ("batch", input_end.since(batched)),
            // The engine runs the batch.
            ("run", infer_end.since(input_end)),
            // The outputs are cut apart, come back to the shard and are encoded.
            ("write", self.encoded.since(infer_end)),
        ]
    }

    /// The value: milliseconds with three decimals, cut off, so that they never add up to more than
    /// has passed.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(TEXT_SIZE_USUAL);
        for (index, (name, span)) in self.spans().into_iter().enumerate() {
            let (comma, micros) = (if index == 0 { "" } else { ", " }, span.as_micros());
            let _ = write!(text, "{comma}{name};dur={}.{:03}", micros / 1_000, micros % 1_000);
        }
        text
    }
}

/// Bytes of most values.
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
