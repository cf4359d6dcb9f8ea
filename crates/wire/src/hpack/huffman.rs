//! The Huffman code of strings (RFC 7541 §5.2, Appendix B). Decodes four bits at a time with a state machine, whose
//! states are the inner nodes of the code's tree; its table is computed at compile time.

use super::DecodeError;
use super::code::{CODES, END};

/// A transition on four bits. A code has at least five bits, so that at most one byte ends in it.
#[derive(Clone, Copy)]
struct DecodeStep {
    next: u8,
    outcome: DecodeOutcome,
    byte: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DecodeOutcome {
    /// No code ended.
    Inside,
    /// The code of `byte` ended.
    Byte,
    /// The end-of-string code occurs, which is an error (§5.2).
    End,
}

/// Number of inner nodes: one less than codes.
const NODES: usize = CODES.len() - 1;

/// Flag of a child that is a leaf: the other bits are an index into [`CODES`], else the index of an inner node.
const LEAF: u16 = 0x8000;

/// The tree: each inner node's children for the bits 0 and 1.
const TREE: [[u16; 2]; NODES] = tree();

/// The transitions of each state.
static STEPS: [[DecodeStep; 16]; NODES] = steps();

/// The states in which a string may end: after fewer than eight bits of the end-of-string code, its padding (§5.2).
static MAY_END: [bool; NODES] = may_end();

#[expect(clippy::indexing_slicing, reason = "evaluated when the crate is compiled")]
const fn tree() -> [[u16; 2]; NODES] {
    let mut tree = [[0_u16; 2]; NODES];
    let mut node_count = 1;
    let mut symbol = 0;
    while symbol < CODES.len() {
        let (code, size) = CODES[symbol];
        let (mut node, mut left) = (0_usize, size);
        while left > 1 {
            left -= 1;
            let bit = (code >> left & 1) as usize;
            if tree[node][bit] == 0 {
                tree[node][bit] = node_count;
                node_count += 1;
            }
            node = tree[node][bit] as usize;
        }
        tree[node][(code & 1) as usize] = LEAF | symbol as u16;
        symbol += 1;
    }
    tree
}

#[expect(clippy::indexing_slicing, reason = "evaluated when the crate is compiled")]
const fn steps() -> [[DecodeStep; 16]; NODES] {
    let mut steps = [[DecodeStep { next: 0, outcome: DecodeOutcome::Inside, byte: 0 }; 16]; NODES];
    let mut state = 0;
    while state < NODES {
        let mut bits = 0;
        while bits < 16 {
            let mut node = state as u16;
            let mut step = DecodeStep { next: 0, outcome: DecodeOutcome::Inside, byte: 0 };
            let mut left = 4;
            while left > 0 {
                left -= 1;
                node = TREE[node as usize][bits >> left & 1];
                if node & LEAF != 0 {
                    let symbol = node & !LEAF;
                    step.outcome = if symbol == END { DecodeOutcome::End } else { DecodeOutcome::Byte };
                    step.byte = (symbol & 0xff) as u8;
                    node = 0;
                }
            }
            step.next = node as u8;
            steps[state][bits] = step;
            bits += 1;
        }
        state += 1;
    }
    steps
}

#[expect(clippy::indexing_slicing, reason = "evaluated when the crate is compiled")]
const fn may_end() -> [bool; NODES] {
    let mut may_end = [false; NODES];
    let (mut node, mut depth) = (0_u16, 0);
    while depth < 8 {
        may_end[node as usize] = true;
        node = TREE[node as usize][1];
        depth += 1;
    }
    may_end
}

/// Decodes a string and appends it.
///
/// # Errors
///
/// [`DecodeError::Huffman`] if the input is not in the code, or its padding is wrong.
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
    // An upper bound: the shortest code has five bits.
    out.reserve(input.len().saturating_mul(8) / 5);
    let mut state = 0_u8;
    for byte in input {
        for bits in [byte >> 4, byte & 15] {
            let Some(step) = STEPS.get(usize::from(state)).and_then(|steps| steps.get(usize::from(bits))) else {
                return Err(DecodeError::Huffman);
            };
            match step.outcome {
                DecodeOutcome::Inside => {}
                DecodeOutcome::Byte => out.push(step.byte),
                DecodeOutcome::End => return Err(DecodeError::Huffman),
            }
            state = step.next;
        }
    }
    match MAY_END.get(usize::from(state)) {
        Some(true) => Ok(()),
        _ => Err(DecodeError::Huffman),
    }
}

/// Size of a text in the code, in bytes.
#[inline]
pub fn encoded_size(text: &[u8]) -> usize {
    text.iter().map(|byte| usize::from(code(*byte).1)).sum::<usize>().div_ceil(8)
}

/// Encodes a text and appends it.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut pending, mut pending_bits) = (0_u64, 0_u32);
    for byte in text {
        let (bits, size) = code(*byte);
        pending = pending << size | u64::from(bits);
        pending_bits += u32::from(size);
        while pending_bits >= 8 {
            pending_bits -= 8;
            out.push((pending >> pending_bits & 0xff) as u8);
        }
    }
    if pending_bits > 0 {
        // Padding is the beginning of the end-of-string code, which is all ones (§5.2).
        let padding = 8 - pending_bits;
        out.push((pending << padding & 0xff) as u8 | 0xff >> pending_bits);
    }
}

fn code(byte: u8) -> (u32, u8) {
    CODES.get(usize::from(byte)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(input: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let mut out = Vec::new();
        decode(input, &mut out).map(|()| out)
    }

    #[test]
    fn every_byte_comes_back_alone_and_between_others() {
        for byte in 0..=255_u8 {
            for text in [&[byte][..], &[b'a', byte], &[byte; 9], &[byte, 0, 255, byte]] {
                let mut out = Vec::new();
                encode(text, &mut out);
                assert_eq!(out.len(), encoded_size(text));
                assert_eq!(decoded(&out).as_deref(), Ok(text));
            }
        }
    }

    #[test]
    fn padding_is_short_and_all_ones_and_the_end_is_never_inside() {
        assert_eq!(decoded(&[]), Ok(Vec::new()));
        assert_eq!(decoded(&[0b0001_1111]), Ok(b"a".to_vec()));
        assert_eq!(decoded(&[0b0001_1110]), Err(DecodeError::Huffman), "a zero in the padding");
        assert_eq!(decoded(&[0b0001_1000]), Err(DecodeError::Huffman));
        assert_eq!(decoded(&[0b0001_1111, 0xff]), Err(DecodeError::Huffman), "eleven bits of padding");
        assert_eq!(decoded(&[0xff]), Err(DecodeError::Huffman), "eight bits of padding");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(DecodeError::Huffman), "the end, whole");
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xfc, 0x1f]), Err(DecodeError::Huffman), "the end, then a byte");
    }
}
