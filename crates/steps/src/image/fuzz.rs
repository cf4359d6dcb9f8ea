//! The fuzz targets `image_jpeg`, `image_png` and `image_webp`, and the tests over their seeds: any bytes are
//! decoded or refused, and what is decoded has its size. A panic is a finding.

use std::io::Cursor;

use crate::image::colour::FileColours;
use crate::image::file::{DecodedImage, decode_png, decode_webp};
use crate::image::jpeg;
use crate::image::pixels::Pixels;

/// Decodes any bytes as a JPEG file; returns true if they are one.
pub fn exercise_jpeg(bytes: &[u8]) -> bool {
    let decoded = jpeg::decode(bytes, FileColours::OpenCv);
    decoded.is_ok_and(|jpeg::Jpeg { pixels, orientation }| {
        let grey = jpeg::decode(bytes, FileColours::Luminance).is_ok_and(|grey| is_whole(&grey.pixels));
        assert!(grey, "a file with colours has grey");
        is_whole(&pixels) && is_whole(&jpeg::oriented(pixels, orientation))
    })
}

/// Decodes any bytes as a PNG file; returns true if they are one.
pub fn exercise_png(bytes: &[u8]) -> bool {
    let side = |at: usize| bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |side| u32::from_be_bytes(*side));
    if u64::from(side(16)) * u64::from(side(20)) > PIXELS_MAX {
        return false;
    }
    decode_png(bytes, FileColours::OpenCv).is_ok_and(|DecodedImage { pixels, .. }| is_whole(&pixels))
}

/// Decodes any bytes as a WebP file; returns true if they are one.
pub fn exercise_webp(bytes: &[u8]) -> bool {
    let Ok(decoder) = image_webp::WebPDecoder::new(Cursor::new(bytes)) else { return false };
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return false;
    }
    decode_webp(bytes, FileColours::Luminance).is_ok_and(|DecodedImage { pixels, .. }| is_whole(&pixels))
}

fn is_whole(pixels: &Pixels) -> bool {
    assert!(pixels.is_whole(), "an image has its size");
    true
}

/// Larger images are left to the limits of the step: they would only make a run slow.
const PIXELS_MAX: u64 = 1 << 20;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails by panicking")]
pub(crate) mod tests;
