//! The marker segments of a file (T.81 B.1.1.4).

use base::error::Error;

use super::fault;

/// A marker and what belongs to it.
#[derive(Clone, Copy)]
pub struct Segment<'a> {
    pub marker: u8,
    pub payload: &'a [u8],
}

/// The segments from the start of the image to its end.
pub struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    pub fn new(file: &'a [u8]) -> Result<Self, Error> {
        match file {
            [0xFF, 0xD8, rest @ ..] => Ok(Self { rest }),
            _ => Err(fault("the file does not begin with its marker")),
        }
    }

    /// The bytes behind the segments that were read.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Goes on behind the entropy-coded bytes of a scan.
    pub const fn set_rest(&mut self, rest: &'a [u8]) {
        self.rest = rest;
    }

    /// Returns the next segment; `None` at the end of the image. Bytes that are no marker are passed over, as
    /// libjpeg does.
    pub fn next(&mut self) -> Result<Option<Segment<'a>>, Error> {
        let truncated = || fault("the file is truncated");
        loop {
            let at = self.rest.iter().position(|byte| *byte == 0xFF).ok_or_else(truncated)?;
            let rest = self.rest.get(at..).unwrap_or_default();
            let filled = rest.iter().take_while(|byte| **byte == 0xFF).count();
            let (marker, rest) = rest.get(filled..).and_then(<[u8]>::split_first).ok_or_else(truncated)?;
            self.rest = rest;
            match marker {
                0xD9 => return Ok(None),
                // Stuffed bytes, and markers without a segment.
                0x00 | 0x01 | 0xD0..=0xD8 => {}
                _ => {
                    let (size, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
                    let size = usize::from(u16::from_be_bytes(*size));
                    let size = size.checked_sub(2).ok_or_else(|| fault("a segment has a length below 2"))?;
                    let (payload, rest) = rest.split_at_checked(size).ok_or_else(truncated)?;
                    self.rest = rest;
                    return Ok(Some(Segment { marker: *marker, payload }));
                }
            }
        }
    }
}
