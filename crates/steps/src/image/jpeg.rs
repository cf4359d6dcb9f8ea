//! JPEG files (ITU-T T.81) as libjpeg-turbo decodes them with its default settings, byte for byte, which is
//! how Pillow and OpenCV use it: the slow integer transform, triangular ("fancy") upsampling, colours in
//! fixed point of 16 bits. Baseline, extended and progressive files of 8 bits with one component, three, or four, which are
//! CMYK or YCCK and become colours as each of both libraries has them. Refused by name: arithmetic coding, lossless,
//! hierarchical and 12-bit files, fractional sampling, files that end early, and progressive ones that lack scans, which
//! libjpeg-turbo would smooth.

use base::error::Error;

use crate::image::colour::FileColours;
use crate::image::jpeg::frame::JpegFrame;
use crate::image::jpeg::huffman::HuffmanTable;
use crate::image::jpeg::markers::{Segment, Segments};
use crate::image::pixels::Pixels;
use crate::limits::JPEG_SCANS_MAX;

mod exif;
mod frame;
mod huffman;
mod markers;
mod output;
mod progressive;
mod scan;
mod transform;

pub use self::exif::{Orientation, oriented, tiff_orientation};

/// A decoded file.
pub struct Jpeg {
    /// Red, green and blue, or grey alone.
    pub pixels: Pixels,
    /// The orientation that its EXIF block states.
    pub orientation: Orientation,
}

/// Returns true if the bytes begin as a JPEG file does.
pub fn is_jpeg(file: &[u8]) -> bool {
    file.starts_with(&[0xFF, 0xD8, 0xFF])
}

/// Decodes a file of at most `IMAGE_PIXELS_MAX` pixels.
///
/// # Errors
/// If the file is malformed, ends early, is too large, or is of a kind that is not supported.
pub fn decode(file: &[u8], colours: FileColours) -> Result<Jpeg, Error> {
    let mut decoder = JpegDecoder::default();
    let mut segments = Segments::new(file)?;
    while let Some(segment) = segments.next()? {
        decoder.handle_segment(segment, &mut segments)?;
    }
    let JpegDecoder { frame: Some(mut frame), colour, orientation, .. } = decoder else {
        return Err(fault("the file has no image"));
    };
    frame.finish()?;
    let pixels =
        if colours == FileColours::Luminance { output::grey(&frame, colour) } else { output::pixels(&frame, colour) };
    Ok(Jpeg { pixels: colours.without_key(pixels), orientation })
}

/// An error about a file.
fn fault(why: &str) -> Error {
    Error::invalid(format!("JPEG: {why}"))
}

/// The colours that marker segments state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Colour {
    /// A JFIF segment: the components are luminance and chrominance.
    is_jfif: bool,
    /// The transform of an Adobe segment.
    adobe: Option<u8>,
}

#[derive(Default)]
struct JpegDecoder {
    quantisation: [Option<[u16; 64]>; 4],
    dc_tables: [Option<Box<HuffmanTable>>; 4],
    ac_tables: [Option<Box<HuffmanTable>>; 4],
    restart_interval: usize,
    frame: Option<JpegFrame>,
    scans: usize,
    colour: Colour,
    orientation: Orientation,
}

impl JpegDecoder {
    fn handle_segment(&mut self, segment: Segment<'_>, segments: &mut Segments<'_>) -> Result<(), Error> {
        let Segment { marker, payload } = segment;
        match marker {
            0xC0..=0xC2 if self.frame.is_some() => return Err(fault("it has two frames")),
            0xC0..=0xC2 => {
                let frame = JpegFrame::read(payload, marker == 0xC2)?;
                // Each block of a scan takes a bit at least: a small file cannot claim a large image.
                if frame.block_count() > segments.rest().len().saturating_mul(8) {
                    return Err(fault("the file is truncated: it is too small for its width and height"));
                }
                self.frame = Some(frame);
            }
            0xC4 => self.read_huffman_tables(payload)?,
            0xC3 => return Err(fault("lossless files are not supported")),
            0xC5..=0xC7 => return Err(fault("hierarchical files are not supported")),
            0xC9..=0xCB | 0xCD..=0xCF => return Err(fault("arithmetic coding is not supported")),
            0xDA => self.read_scan(payload, segments)?,
            0xDB => self.read_quantisation(payload)?,
            0xDC => return Err(fault("a height that follows the image is not supported")),
            0xDD => {
                let interval = payload.first_chunk().ok_or_else(|| fault("the restart interval is cut short"))?;
                self.restart_interval = usize::from(u16::from_be_bytes(*interval));
            }
            0xE0 => self.colour.is_jfif |= payload.starts_with(b"JFIF\0"),
            0xE1 if self.orientation == Orientation::default() => {
                let tiff = payload.strip_prefix(b"Exif\0\0");
                self.orientation = tiff.map(tiff_orientation).unwrap_or_default();
            }
            0xEE => {
                let transform = payload.strip_prefix(b"Adobe").and_then(|rest| rest.get(6)).copied();
                self.colour.adobe = transform.or(self.colour.adobe);
            }
            _ => {}
        }
        Ok(())
    }

    fn read_quantisation(&mut self, mut payload: &[u8]) -> Result<(), Error> {
        let malformed = || fault("a quantisation table is malformed");
        while let Some((kind, rest)) = payload.split_first() {
            let value_size = if kind >> 4 == 0 { 1 } else { 2 };
            let (values, rest) = rest.split_at_checked(64 * value_size).ok_or_else(malformed)?;
            let place = self.quantisation.get_mut(usize::from(kind & 15)).ok_or_else(malformed)?;
            let mut table = [0; 64];
            for (value, at) in values.chunks_exact(value_size).zip(ZIGZAG) {
                let value = value.iter().fold(0, |value, byte| value << 8 | u16::from(*byte));
                if let Some(place) = table.get_mut(usize::from(at)) {
                    *place = value;
                }
            }
            *place = Some(table);
            payload = rest;
        }
        Ok(())
    }

    fn read_huffman_tables(&mut self, mut payload: &[u8]) -> Result<(), Error> {
        let malformed = || fault("a Huffman table is malformed");
        while let Some((kind, rest)) = payload.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or_else(malformed)?;
            let count = counts.iter().map(|count| usize::from(*count)).sum();
            let (symbols, rest) = rest.split_at_checked(count).ok_or_else(malformed)?;
            let is_ac = kind >> 4 == 1;
            let tables = if is_ac { &mut self.ac_tables } else { &mut self.dc_tables };
            let place = tables.get_mut(usize::from(kind & 15)).filter(|_| *kind < 0x20).ok_or_else(malformed)?;
            *place = Some(Box::new(HuffmanTable::new(counts, symbols, is_ac).ok_or_else(malformed)?));
            payload = rest;
        }
        Ok(())
    }

    fn read_scan(&mut self, payload: &[u8], segments: &mut Segments<'_>) -> Result<(), Error> {
        let frame = self.frame.as_mut().ok_or_else(|| fault("a scan comes before the frame"))?;
        self.scans += 1;
        if self.scans > JPEG_SCANS_MAX {
            return Err(fault(&format!("it has more than {JPEG_SCANS_MAX} scans")));
        }
        let scan = frame.scan(payload, &self.quantisation)?;
        let tables = scan::Tables { dc: &self.dc_tables, ac: &self.ac_tables };
        let bits = huffman::Bits::new(segments.rest());
        let rest = if frame.is_progressive {
            progressive::decode(frame, &scan, tables, self.restart_interval, bits)?
        } else {
            scan::decode(frame, &scan, tables, self.restart_interval, bits)?
        };
        segments.set_rest(rest);
        Ok(())
    }
}

/// The place of each coefficient in a block, in the order of the file.
pub(crate) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21,
    28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63,
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A segment with its length.
    fn segment(marker: u8, payload: &[u8]) -> Vec<u8> {
        let size = u16::try_from(payload.len() + 2).unwrap();
        [&[0xFF, marker][..], &size.to_be_bytes(), payload].concat()
    }

    fn error(segments: &[Vec<u8>]) -> String {
        let file = [&[0xFF, 0xD8][..], &segments.concat(), &[0xFF, 0xD9]].concat();
        decode(&file, FileColours::Pillow).err().unwrap().text().to_owned()
    }

    #[test]
    fn files_that_are_not_supported_are_refused_by_name() {
        let frame = |precision: u8, sides: [u8; 4], components: &[[u8; 3]]| {
            let [h1, h0, w1, w0] = sides;
            let count = u8::try_from(components.len()).unwrap();
            [&[precision, h1, h0, w1, w0, count][..], components.as_flattened()].concat()
        };
        let grey: &[[u8; 3]] = &[[1, 0x11, 0]];
        let check = |marker, payload: &[u8], want: &str| {
            assert_eq!(error(&[segment(marker, payload)]), format!("JPEG: {want}"));
        };
        let size = [0, 8, 0, 8];
        check(0xC0, &frame(12, size, grey), "samples of 12 bits are not supported");
        check(0xC0, &frame(8, size, &[[1, 0x11, 0]; 5]), "files of 5 components are not supported");
        check(0xC0, &frame(8, size, &[[1, 0x11, 0]; 2]), "files of 2 components are not supported");
        check(0xC0, &frame(8, size, &[[1, 0x51, 0]]), "a sampling factor is not from 1 to 4");
        let fractional = [[1, 0x31, 0], [2, 0x21, 0], [3, 0x11, 0]];
        check(0xC0, &frame(8, size, &fractional), "fractional sampling is not supported");
        check(0xC0, &frame(8, [0, 0, 0, 8], grey), "the image has 8 × 0 pixels");
        let large = "the image has 65535 × 65535 pixels, but at most 67108864 are allowed, and 32768 on a side";
        check(0xC0, &frame(8, [255; 4], grey), large);
        let small = "the file is truncated: it is too small for its width and height";
        check(0xC2, &frame(8, [0x20, 0, 0x20, 0], grey), small);
        check(0xC3, &[], "lossless files are not supported");
        check(0xC5, &[], "hierarchical files are not supported");
        check(0xC9, &[], "arithmetic coding is not supported");
        check(0xDA, &[], "a scan comes before the frame");
        check(0xDB, &[0, 1], "a quantisation table is malformed");
        check(0xC4, &[0; 17], "the file has no image");
        check(0xC4, &[0, 3], "a Huffman table is malformed");
        check(0xDD, &[1], "the restart interval is cut short");
        let frame = segment(0xC0, &frame(8, size, grey));
        assert_eq!(error(&[frame.clone(), frame.clone()]), "JPEG: it has two frames");
        assert_eq!(error(&[frame]), "JPEG: the file is truncated: a component has no scan");
    }

    #[test]
    fn a_malformed_exif_block_states_no_orientation() {
        let upright = Orientation::default();
        for tiff in [&b""[..], b"II*\0", b"II*\0\x08\0\0\0\xFF\xFF", b"MM\0*\xFF\xFF\xFF\xFF", b"XX*\0\x08\0\0\0\x01\0"]
        {
            assert_eq!(tiff_orientation(tiff), upright, "{tiff:?}");
        }
        let tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
        assert_eq!(tiff_orientation(tiff), Orientation::from_tag(6));
        assert_eq!(Orientation::from_tag(9), upright);
    }
}
