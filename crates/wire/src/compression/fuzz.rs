//! The fuzz target `inflate` and the tests over its seeds: arbitrary bytes as a compressed body, and as a body that is
//! compressed and read back.

use bytes::Bytes;

use crate::compression::deflate::{DeflateLevel, Deflation};
use crate::compression::inflate::{InflateFault, Inflation};
use crate::compression::{AcceptedCoding, Coding, ContentCoding};
use crate::limits::DEFLATE_SLICE;

/// Bytes of an inflated body that are read: a target runs many thousand times a second.
const READ_SIZE_MAX: usize = 1024 * 1024;

/// Reads arbitrary bytes as a body: the first byte selects the coding and the size of the steps.
/// Asserts that a result does not depend on the size of the steps, and that compressed bytes are
/// read back as they were.
pub fn exercise(bytes: &[u8]) {
    let Some((selector, body)) = bytes.split_first() else { return };
    let coding = match selector & 3 {
        0 => Coding::Deflate,
        1 => Coding::Gzip,
        2 => Coding::Zstd,
        _ => {
            let (content, accepted) = (ContentCoding::default().and(body), AcceptedCoding::from_fields([body]));
            assert!(content == content.and(b"identity") && (accepted.coding.is_some() || !accepted.is_forced));
            return;
        }
    };
    let step_size = 1 + usize::from(selector >> 2);
    let whole = inflate(coding, body, DEFLATE_SLICE);
    let cut = inflate(coding, body, step_size * 97);
    // Past the bytes that are read, a fault may be seen with one step size and not with another.
    if [&whole, &cut].iter().all(|read| read.as_ref().map_or(0, Vec::len) < READ_SIZE_MAX) {
        assert_eq!(whole, cut, "however it is cut");
    }
    let body = Bytes::copy_from_slice(body);
    let level = if step_size % 2 == 0 { DeflateLevel::Low } else { DeflateLevel::High };
    let coded = deflate(coding, level, vec![body.slice(..body.len() / 2), body.slice(body.len() / 2..)]);
    assert_eq!(inflate(coding, &coded, step_size * 89), Ok(body.to_vec()));
}

/// The first bytes that a body inflates to, up to `READ_SIZE_MAX`, by steps of this size.
pub fn inflate(coding: Coding, body: &[u8], step_size: usize) -> Result<Vec<u8>, InflateFault> {
    let mut inflation = Inflation::new(coding, Bytes::copy_from_slice(body))?;
    let (mut inflated, mut space) = (Vec::new(), vec![0; step_size]);
    loop {
        let room = READ_SIZE_MAX.saturating_sub(inflated.len()).min(step_size);
        let Some(space) = space.get_mut(..room).filter(|space| !space.is_empty()) else { return Ok(inflated) };
        let (written, is_done) = inflation.step(space)?;
        inflated.extend_from_slice(space.get(..written).unwrap_or_default());
        if is_done {
            return Ok(inflated);
        }
    }
}

/// Parts, compressed.
///
/// # Panics
/// If the encoder fails.
pub fn deflate(coding: Coding, level: DeflateLevel, parts: Vec<Bytes>) -> Vec<u8> {
    let mut deflation = Deflation::new(coding, level, parts).expect("there is memory for an encoder");
    while !deflation.step().expect("an encoder takes any bytes") {}
    let size = deflation.size();
    let coded = deflation.into_parts().concat();
    assert_eq!(coded.len(), size, "each byte is counted once");
    coded
}
