//! Checks the properties that must hold for any bytes from a Redis. Called by the fuzz target
//! `resp`, and by a test that replays its corpus.

use crate::resp::{RespFault, RespReply, decode, encode};

/// Size of a value that is taken: small, so that larger ones come often.
const SIZE_MAX: usize = 64;

/// Reads any bytes as a stream of replies and checks their properties: each reply is the same however its bytes arrive,
/// lies in the bytes that it takes, and has the size that was allowed. A panic is a finding.
pub fn check_any_replies(input: &[u8]) {
    let mut rest = input;
    loop {
        match decode(rest, SIZE_MAX) {
            Ok(Some((reply, used))) => {
                assert!(used <= rest.len() && used >= 3, "a reply has a mark and an end");
                check_reply(reply, rest.get(..used).unwrap_or_default());
                rest = rest.get(used..).unwrap_or_default();
            }
            Ok(None) => break,
            Err(fault) => {
                // More bytes do not repair a fault.
                assert_eq!(decode(&[rest, b"\r\n+OK\r\n"].concat(), SIZE_MAX), Err(fault));
                break;
            }
        }
    }
    check_command(input);
}

fn check_reply(reply: RespReply<'_>, whole: &[u8]) {
    assert_eq!(decode(whole, SIZE_MAX), Ok(Some((reply, whole.len()))), "without what follows it is the same");
    for size in 0..whole.len() {
        assert_eq!(decode(whole.get(..size).unwrap_or_default(), SIZE_MAX), Ok(None), "{size} bytes are not enough");
    }
    if let RespReply::Bulk(value) = reply {
        assert!(value.len() <= SIZE_MAX);
        let smaller = value.len().checked_sub(1).map(|size_max| decode(whole, size_max));
        assert!(smaller.is_none_or(|smaller| smaller == Err(RespFault::Size)), "a value has the size that is allowed");
    }
}

/// A server reads back the parts of a command: they are values in the same notation.
fn check_command(input: &[u8]) {
    let parts: Vec<&[u8]> = input.chunks(SIZE_MAX).take(4).collect();
    let mut command = Vec::new();
    encode(&parts, &mut command);
    let head = format!("*{}\r\n", parts.len());
    let mut rest = command.strip_prefix(head.as_bytes()).unwrap_or_default();
    for part in parts {
        let read = decode(rest, SIZE_MAX);
        let read = if let Ok(Some((RespReply::Bulk(value), used))) = read { Some((value, used)) } else { None };
        let (value, used) = read.expect("a part is a value");
        assert_eq!(value, part);
        rest = rest.get(used..).unwrap_or_default();
    }
    assert!(rest.is_empty(), "nothing follows the parts");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_and_its_changes_hold() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/resp");
        let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(seeds.len() >= 6, "the corpus is there");
        for seed in seeds {
            let input = std::fs::read(&seed).unwrap();
            check_any_replies(&input);
            for at in 0..input.len() {
                for byte in *b"$+-:*0129\r\n\xff" {
                    let mut mutant = input.clone();
                    mutant[at] = byte;
                    check_any_replies(&mutant);
                }
                let mut mutant = input.clone();
                mutant.remove(at);
                check_any_replies(&mutant);
            }
        }
    }
}
