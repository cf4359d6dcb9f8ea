//! The work of a call in the header fields and the metadata of TEI.

use base::time::{Instant, Stamps};
use bytes::Bytes;
use smallvec::SmallVec;

/// The work of a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextTimes {
    /// Characters of its texts.
    pub characters: usize,
    /// Tokens of its texts; `None` if the model does not count them.
    pub tokens: Option<u64>,
    /// True if the model is on a GPU.
    pub is_on_gpu: bool,
    /// True if the inputs of the network are made of texts by steps: their time is that of the tokens.
    pub has_tokenizer: bool,
    /// The stages of the request; `None` if no model ran.
    pub stamps: Option<Stamps>,
    /// The instant at which the last byte was read.
    pub received: Instant,
    /// The instant at which the answer was written.
    pub answered: Instant,
}

impl TextTimes {
    /// The header fields. One whose value is not known is left out.
    pub fn fields(&self) -> SmallVec<[(&'static str, Bytes); 8]> {
        let mut fields: SmallVec<[(&'static str, Bytes); 8]> = SmallVec::new();
        let mut push = |name, value: u128| fields.push((name, Bytes::from(value.to_string())));
        let total = self.answered.since(self.received).as_millis();
        push("x-compute-time", total);
        push("x-compute-characters", self.characters as u128);
        if let Some(tokens) = self.tokens {
            push("x-compute-tokens", tokens.into());
        }
        push("x-total-time", total);
        if let Some(stamps) = &self.stamps {
            if self.has_tokenizer {
                push("x-tokenization-time", stamps.compute_input_duration().as_millis());
            }
            push("x-queue-time", stamps.queue_duration().as_millis());
            push("x-inference-time", stamps.compute_infer_duration().as_millis());
            let kind = if self.is_on_gpu { "gpu" } else { "cpu" };
            fields.push(("x-compute-type", Bytes::from_static(kind.as_bytes())));
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_left_out() {
        let at = Instant::from_micros;
        let stamps = Stamps {
            received: at(1_000),
            batched: at(3_900),
            input_end: at(5_000),
            infer_end: at(25_000),
            output_end: at(26_000),
        };
        let text = |times: TextTimes| {
            let field = |(name, value): &(&str, Bytes)| format!("{name}={}", String::from_utf8_lossy(value));
            times.fields().iter().map(field).collect::<Vec<_>>().join(" ")
        };
        let times = TextTimes { characters: 5, received: at(1_000), answered: at(28_000), ..TextTimes::default() };
        assert_eq!(text(times), "x-compute-time=27 x-compute-characters=5 x-total-time=27");
        let ran = TextTimes { tokens: Some(3), stamps: Some(stamps), ..times };
        assert_eq!(
            text(ran),
            "x-compute-time=27 x-compute-characters=5 x-compute-tokens=3 x-total-time=27 x-queue-time=2 x-inference-time=20 \
             x-compute-type=cpu"
        );
        let on_gpu = text(TextTimes { has_tokenizer: true, is_on_gpu: true, ..ran });
        assert!(on_gpu.contains("x-tokenization-time=1 ") && on_gpu.ends_with("x-compute-type=gpu"), "{on_gpu}");
    }
}
