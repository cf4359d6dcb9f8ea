//! Frames that wait for the socket: frame heads and small contents in one buffer of our own, and large contents as
//! shared bytes between them, so that a vectored write copies nothing. Only whole frames are added.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::limits::TRANSMIT_SIZE_MAX;
use base::limits::COALESCE_SIZE_MAX;

/// Frames on their way out.
#[derive(Debug, Default)]
pub(super) struct FrameQueue {
    /// Our own bytes; those before `from` were sent.
    own: Vec<u8>,
    from: usize,
    parts: VecDeque<OutputPart>,
    /// Bytes of all parts.
    size: usize,
}

#[derive(Debug)]
enum OutputPart {
    /// The next bytes of `own`, by their count.
    Own(usize),
    /// Bytes of an answer, not copied.
    Shared(Bytes),
}

impl FrameQueue {
    /// Bytes that wait for the socket.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Appends the bytes that `write` appends to the buffer.
    pub(super) fn write<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.own.len();
        let outcome = write(&mut self.own);
        debug_assert!(self.own.len() >= before, "what is framed is not taken back");
        let count = self.own.len() - before;
        self.size += count;
        match self.parts.back_mut() {
            Some(OutputPart::Own(have)) => *have += count,
            _ if count > 0 => self.parts.push_back(OutputPart::Own(count)),
            _ => {}
        }
        self.invariants();
        outcome
    }

    /// Appends bytes: few are copied, many are shared.
    pub(super) fn share(&mut self, bytes: Bytes) {
        if bytes.len() <= COALESCE_SIZE_MAX {
            return self.write(|out| out.extend_from_slice(&bytes));
        }
        self.size += bytes.len();
        self.parts.push_back(OutputPart::Shared(bytes));
    }

    /// The parts in their order.
    pub(super) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = self.from;
        self.parts.iter().map(move |part| match part {
            OutputPart::Shared(bytes) => &bytes[..],
            OutputPart::Own(count) => {
                let own = self.own.get(from..from + count).unwrap_or_default();
                from += count;
                own
            }
        })
    }

    /// All of it as one buffer that the caller may take, if nothing is shared and nothing was sent.
    pub(super) fn whole(&mut self) -> Option<&mut Vec<u8>> {
        let is_whole =
            self.from == 0 && self.parts.len() == 1 && matches!(self.parts.front(), Some(OutputPart::Own(_)));
        is_whole.then_some(&mut self.own)
    }

    /// The first `count` bytes were sent.
    pub(super) fn consume(&mut self, mut count: usize) {
        count = count.min(self.size);
        self.size -= count;
        while let Some(part) = self.parts.front_mut() {
            let part_size = match part {
                OutputPart::Own(size) => {
                    let taken = count.min(*size);
                    self.from += taken;
                    *size
                }
                OutputPart::Shared(bytes) => bytes.len(),
            };
            if count < part_size {
                match part {
                    OutputPart::Own(size) => *size -= count,
                    OutputPart::Shared(bytes) => drop(bytes.split_to(count)),
                }
                break;
            }
            count -= part_size;
            self.parts.pop_front();
        }
        if self.parts.is_empty() {
            self.own.clear();
            self.from = 0;
        } else if self.from > TRANSMIT_SIZE_MAX {
            self.own.drain(..self.from);
            self.from = 0;
        }
        self.invariants();
    }

    /// Checks the invariants after every change, in constant time.
    fn invariants(&self) {
        debug_assert_eq!(self.size == 0, self.parts.is_empty(), "{} bytes in {} parts", self.size, self.parts.len());
        debug_assert!(self.from <= self.own.len(), "{} of {} bytes were sent", self.from, self.own.len());
        let is_own = matches!(self.parts.front(), Some(OutputPart::Own(_)));
        debug_assert!(!is_own || self.from < self.own.len(), "a part of our own bytes has bytes");
    }

    /// Frees the buffer if it is empty.
    pub(super) fn shrink(&mut self) {
        if self.parts.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order_whatever_is_sent_at_a_time() {
        for step in [1, 2, 7, 5_000, 100_000] {
            let (mut output, mut want, mut got) = (FrameQueue::default(), Vec::new(), Vec::new());
            for round in 0..40_usize {
                let bytes = vec![round as u8; round * 331 % 9_000];
                want.extend_from_slice(&bytes);
                if round % 3 == 0 {
                    output.write(|out| out.extend_from_slice(&bytes));
                } else {
                    output.share(bytes.into());
                }
                if round % 2 == 0 {
                    take(&mut output, step, &mut got);
                }
            }
            while output.size() > 0 {
                take(&mut output, step, &mut got);
            }
            assert!(got == want, "{step}");
            assert_eq!((output.own.len(), output.from, output.parts.len()), (0, 0, 0));
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "1 bytes in 0 parts")]
    fn a_size_that_differs_from_the_parts_is_found() {
        let mut output = FrameQueue::default();
        output.write(|out| out.push(7));
        output.size += 1;
        output.consume(1);
    }

    fn take(output: &mut FrameQueue, step: usize, got: &mut Vec<u8>) {
        let all: Vec<u8> = output.parts().flatten().copied().take(step).collect();
        assert_eq!(all.len(), step.min(output.size()));
        output.consume(all.len());
        got.extend(all);
    }
}
