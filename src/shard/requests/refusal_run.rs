//! Consecutive messages of one stream that are alike and refused alike. A client can send hundreds
//! of thousands of empty messages a second: each is counted and answered, but the lookup, encoding
//! and framing are done once for many.

use bytes::Bytes;

use crate::error::Code;

/// Bytes of answers that go in one DATA frame: the smallest largest frame of HTTP/2 (RFC 9113 §4.2).
const RUN_SIZE: usize = 16 * 1024;

/// The refusals of equal messages, until they are sent. Valid within one poll of the stream only: models come and go
/// between polls.
pub(super) struct RefusalRun {
    message: Bytes,
    code: Code,
    /// The framed answer to one message.
    answer: Bytes,
    /// As many copies of it as fit into a frame, made when there is more than one to send.
    copies: Option<Bytes>,
    unsent: usize,
}

impl RefusalRun {
    /// The refusal of a message, with the framed answer to it.
    pub(super) fn new(message: Bytes, code: Code, answer: &[Bytes]) -> Self {
        Self { message, code, answer: answer.concat().into(), copies: None, unsent: 0 }
    }

    /// Returns true if a message is refused for the same reason, being the same.
    pub(super) fn covers(&self, message: &Bytes) -> bool {
        // Most are empty, and a call of `memcmp` for nothing was a third of what one cost.
        self.message.len() == message.len() && (message.is_empty() || self.message == *message)
    }

    /// The code of the refusals.
    pub(super) const fn code(&self) -> Code {
        self.code
    }

    /// Bytes of the answer to one message.
    pub(super) const fn size(&self) -> usize {
        self.answer.len()
    }

    /// The answer to one message.
    pub(super) fn answer(&self) -> Bytes {
        self.answer.clone()
    }

    /// Refuses one more message. Returns the answers to send now, once a frame is full of them.
    pub(super) fn push(&mut self) -> Option<Bytes> {
        self.unsent += 1;
        if self.unsent >= self.count_max() { self.take() } else { None }
    }

    /// The answers that were not sent yet.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let (unsent, count_max) = (std::mem::take(&mut self.unsent), self.count_max());
        debug_assert!(unsent <= count_max, "a full frame is sent at once");
        match unsent {
            0 => None,
            1 => Some(self.answer()),
            _ => {
                let copies = self.copies.get_or_insert_with(|| self.answer.repeat(count_max).into());
                Some(copies.slice(..unsent * self.answer.len()))
            }
        }
    }

    fn count_max(&self) -> usize {
        RUN_SIZE.checked_div(self.answer.len()).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_has_its_answer_and_a_frame_has_as_many_as_fit() {
        let parts = [Bytes::from_static(b"an "), Bytes::from_static(b"answer")];
        let mut run = RefusalRun::new(Bytes::from_static(b"m"), Code::NotFound, &parts);
        assert!(run.covers(&Bytes::from_static(b"m")) && !run.covers(&Bytes::new()));
        let (mut sent, mut frames) = (Vec::new(), 0);
        for _ in 0..5_000 {
            if let Some(answers) = run.push() {
                assert!(answers.len() <= RUN_SIZE && answers.len() + 9 > RUN_SIZE, "{}", answers.len());
                sent.extend_from_slice(&answers);
                frames += 1;
            }
        }
        sent.extend_from_slice(&run.take().unwrap());
        assert_eq!((sent, run.take(), frames), (b"an answer".repeat(5_000), None, 2));
    }

    #[test]
    fn an_answer_that_is_larger_than_a_frame_goes_alone() {
        let answer = vec![7; RUN_SIZE + 1];
        let mut run = RefusalRun::new(Bytes::new(), Code::NotFound, &[answer.clone().into()]);
        assert_eq!((run.push().as_deref(), run.take(), run.answer().len()), (Some(&answer[..]), None, RUN_SIZE + 1));
    }
}
