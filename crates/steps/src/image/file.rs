//! Encoded files: JPEG, PNG and WebP, told by their first bytes. Sizes are checked before memory is taken.

use std::io::Cursor;

use base::error::Error;

use crate::image::check_size;
use crate::image::colour::{FileColours, GreyWeights};
use crate::image::jpeg::{self, Orientation, tiff_orientation};
use crate::image::pixels::{CHANNELS, Pixels};
use crate::limits::{IMAGE_PIXELS_MAX, IMAGE_SIDE_MAX};

/// A decoded file.
pub struct DecodedImage {
    /// Red, green and blue, or grey alone for a grey file and [`FileColours::Luminance`]. Alpha is dropped.
    pub pixels: Pixels,
    /// The orientation that its EXIF block states.
    pub orientation: Orientation,
}

/// Returns true if the bytes begin as a file of a known format does.
pub fn is_known(file: &[u8]) -> bool {
    jpeg::is_jpeg(file) || is_png(file) || is_webp(file)
}

/// Decodes a file.
///
/// # Errors
/// If its format is unknown, or it is malformed, too large, or of a kind that is not supported.
pub fn decode(file: &[u8], colours: FileColours) -> Result<DecodedImage, Error> {
    if jpeg::is_jpeg(file) {
        let jpeg::Jpeg { pixels, orientation } = jpeg::decode(file, colours)?;
        return Ok(DecodedImage { pixels, orientation });
    }
    if is_png(file) {
        return decode_png(file, colours);
    }
    if is_webp(file) {
        return decode_webp(file, colours);
    }
    Err(Error::invalid("the file is neither JPEG nor PNG nor WebP".to_owned()))
}

fn is_png(file: &[u8]) -> bool {
    file.starts_with(b"\x89PNG\r\n\x1a\n")
}

fn is_webp(file: &[u8]) -> bool {
    file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WEBP")
}

/// Decodes a PNG file of any colour type, with 1 to 8 bits, interlaced or not.
///
/// # Errors
/// If it is malformed, too large, animated, or has 16 bits; for [`FileColours::Luminance`] also if it has colours and says how
/// bright they are, by which OpenCV's decoder then weighs them.
pub fn decode_png(file: &[u8], colours: FileColours) -> Result<DecodedImage, Error> {
    let fault = |why: &dyn std::fmt::Display| Error::invalid(format!("PNG: {why}"));
    let limits = png::Limits { bytes: IMAGE_PIXELS_MAX.saturating_mul(8) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(png::Transformations::EXPAND);
    let header = decoder.read_header_info().map_err(|error| fault(&error))?;
    let (width, height) = (header.width as usize, header.height as usize);
    check_size("PNG", width, height)?;
    if header.bit_depth == png::BitDepth::Sixteen {
        return Err(fault(&"samples of 16 bits are not supported"));
    }
    let mut reader = decoder.read_info().map_err(|error| fault(&error))?;
    if reader.info().animation_control.is_some() {
        return Err(fault(&"animated files are not supported"));
    }
    // The crate panics at such a palette.
    let palette = reader.info().palette.as_deref().unwrap_or_default();
    if reader.info().color_type == png::ColorType::Indexed && !palette.len().is_multiple_of(CHANNELS) {
        return Err(fault(&"the palette is malformed"));
    }
    let size = reader.output_buffer_size().ok_or_else(|| fault(&"the image is too large"))?;
    let mut bytes = vec![0; size];
    let output = reader.next_frame(&mut bytes).map_err(|error| fault(&error))?;
    // An EXIF block may follow the pixels; what else follows does not matter.
    let _ = reader.finish();
    let orientation = reader.info().exif_metadata.as_deref().map(tiff_orientation).unwrap_or_default();
    let mut pixels = Pixels::from_interleaved(width, height, &bytes, output.color_type.samples());
    if colours == FileColours::Luminance && pixels.planes().count() == CHANNELS {
        if has_brightness(file) {
            return Err(fault(
                &"colours with a chunk gAMA, sRGB or iCCP are not supported with \"grey\": \"decode\"; \"convert\" takes them",
            ));
        }
        pixels = pixels.grey(GreyWeights::PNG);
    }
    Ok(DecodedImage { pixels, orientation })
}

/// Returns true if a chunk before the pixels of a PNG file says how bright its colours are.
fn has_brightness(file: &[u8]) -> bool {
    let mut rest = file.get(8..).unwrap_or_default();
    while let Some(([s3, s2, s1, s0, kind @ ..], behind)) = rest.split_first_chunk::<8>() {
        match kind {
            b"gAMA" | b"sRGB" | b"iCCP" => return true,
            b"IDAT" => return false,
            _ => {}
        }
        let size = u32::from_be_bytes([*s3, *s2, *s1, *s0]) as usize;
        rest = behind.get(size.saturating_add(4)..).unwrap_or_default();
    }
    false
}

/// Decodes a WebP file, lossy or lossless.
///
/// # Errors
/// If it is malformed, too large or animated.
pub fn decode_webp(file: &[u8], colours: FileColours) -> Result<DecodedImage, Error> {
    let fault = |why: &dyn std::fmt::Display| Error::invalid(format!("WebP: {why}"));
    let size = file.get(4..).and_then(<[u8]>::first_chunk).map_or(0, |size| u32::from_le_bytes(*size));
    if file.len().saturating_sub(8) < size as usize {
        return Err(fault(&"the file is truncated"));
    }
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(file)).map_err(|error| fault(&error))?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size("WebP", width, height)?;
    if decoder.is_animated() {
        return Err(fault(&"animated files are not supported"));
    }
    decoder.set_memory_limit(IMAGE_PIXELS_MAX.saturating_mul(4));
    let size = decoder.output_buffer_size().ok_or_else(|| fault(&"the image is too large"))?;
    let mut bytes = vec![0; size];
    decoder.read_image(&mut bytes).map_err(|error| fault(&error))?;
    let samples = if decoder.has_alpha() { 4 } else { 3 };
    let exif = decoder.exif_metadata().ok().flatten();
    let exif = exif.as_deref().map(|exif| exif.strip_prefix(b"Exif\0\0").unwrap_or(exif));
    let orientation = exif.map(tiff_orientation).unwrap_or_default();
    let pixels = Pixels::from_interleaved(width, height, &bytes, samples);
    let pixels = if colours == FileColours::Luminance { pixels.grey(GreyWeights::OPENCV) } else { pixels };
    Ok(DecodedImage { pixels, orientation })
}

const _: () = assert!(IMAGE_SIDE_MAX * IMAGE_SIDE_MAX >= IMAGE_PIXELS_MAX, "both limits can be reached");

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn png_of(depth: png::BitDepth, frames: Option<u32>, bytes: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 2, 1);
        encoder.set_depth(depth);
        encoder.set_color(png::ColorType::Grayscale);
        if let Some(frames) = frames {
            encoder.set_animated(frames, 0).unwrap();
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(bytes).unwrap();
        writer.finish().unwrap();
        file
    }

    #[test]
    fn files_that_are_not_supported_are_refused_by_name() {
        let decode = |file: &[u8]| decode(file, FileColours::Pillow);
        let check = |file: &[u8], want: &str| assert_eq!(decode(file).err().unwrap().text(), want);
        check(&png_of(png::BitDepth::Sixteen, None, &[0; 4]), "PNG: samples of 16 bits are not supported");
        check(&png_of(png::BitDepth::Eight, Some(1), &[0; 2]), "PNG: animated files are not supported");
        let mut large = png_of(png::BitDepth::Eight, None, &[0; 2]);
        large.splice(16..24, [0, 0, 0x80, 0, 0, 0, 0x80, 0]);
        assert!(decode(&large).err().unwrap().text().starts_with("PNG: "), "its checksum is wrong besides");
        let mut indexed = Vec::new();
        let mut encoder = png::Encoder::new(&mut indexed, 2, 1);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_palette(&[0; 4][..]);
        encoder.write_header().unwrap().write_image_data(&[0; 2]).unwrap();
        check(&indexed, "PNG: the palette is malformed");
        check(b"GIF89a", "the file is neither JPEG nor PNG nor WebP");
        check(b"RIFF\xFF\0\0\0WEBPVP8 ", "WebP: the file is truncated");
        let animated = b"RIFF\x16\0\0\0WEBPVP8X\x0A\0\0\0\x02\0\0\0\x07\0\0\x07\0\0";
        assert!(decode(animated).err().unwrap().text().starts_with("WebP: "));
        assert_eq!(decode(&png_of(png::BitDepth::Eight, None, &[3, 9])).unwrap().pixels.bytes, [3, 9]);
    }

    #[test]
    fn a_png_that_says_how_bright_its_colours_are_is_not_decoded_to_grey() {
        let file = |colour, gamma: bool, bytes: &[u8]| {
            let mut file = Vec::new();
            let mut encoder = png::Encoder::new(&mut file, 1, 1);
            encoder.set_color(colour);
            if gamma {
                encoder.set_source_gamma(png::ScaledFloat::new(0.45455));
            }
            encoder.write_header().unwrap().write_image_data(bytes).unwrap();
            file
        };
        let colour = file(png::ColorType::Rgb, true, &[200, 100, 51]);
        assert_eq!(decode(&colour, FileColours::OpenCv).unwrap().pixels.bytes, [200, 100, 51]);
        let error = decode(&colour, FileColours::Luminance).err().unwrap();
        assert!(error.text().starts_with("PNG: colours with a chunk gAMA, sRGB or iCCP"), "{error}");
        let grey = |file: &[u8]| decode(file, FileColours::Luminance).unwrap().pixels.bytes;
        assert_eq!(grey(&file(png::ColorType::Grayscale, true, &[7])), [7]);
        assert_eq!(grey(&file(png::ColorType::Rgb, false, &[200, 100, 51])), [124]);
    }
}
