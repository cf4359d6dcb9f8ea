//! Decoded pixels: a plane for each channel, rows from top to bottom, a byte for each pixel. Channels stay apart until
//! numbers are written: all that resizes and normalises then reads and writes bytes that follow each other.

use crate::image::vector::vectorized;

/// Channels of a pixel in colour.
pub const CHANNELS: usize = 3;

/// An image, without padding between its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// The planes of red, green and blue, or that of grey alone: `height` × `width` bytes each. While a file is decoded, those
    /// of cyan, magenta, yellow and black.
    pub bytes: Vec<u8>,
}

impl Pixels {
    /// An image whose pixels have `samples` bytes each: grey, grey and alpha, RGB, or RGB and alpha, which is dropped.
    pub fn from_interleaved(width: usize, height: usize, bytes: &[u8], samples: usize) -> Self {
        let bytes = match samples {
            1 => bytes.to_vec(),
            2 => parted::<2, 1>(bytes),
            CHANNELS => parted::<CHANNELS, CHANNELS>(bytes),
            _ => parted::<4, CHANNELS>(bytes),
        };
        Self { width, height, bytes }
    }

    /// The planes: three, or one.
    pub fn planes(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact((self.width * self.height).max(1))
    }

    /// Red, green and blue; grey three times.
    pub fn channels(&self) -> [&[u8]; CHANNELS] {
        let mut planes = self.planes();
        match [planes.next(), planes.next(), planes.next()] {
            [Some(red), Some(green), Some(blue)] => [red, green, blue],
            [grey, ..] => [grey.unwrap_or_default(); CHANNELS],
        }
    }

    /// Red, green and blue of each pixel, one pixel after the other.
    pub fn interleaved(&self) -> Vec<u8> {
        let [reds, greens, blues] = self.channels();
        let mut bytes = vec![0; reds.len() * CHANNELS];
        for (((place, red), green), blue) in bytes.as_chunks_mut().0.iter_mut().zip(reds).zip(greens).zip(blues) {
            *place = [*red, *green, *blue];
        }
        bytes
    }

    /// An image of another size: `plane` writes each of its planes, whose bytes are 0, from that of this one.
    pub fn mapped(&self, width: usize, height: usize, mut plane: impl FnMut(&[u8], &mut [u8])) -> Self {
        let mut bytes = vec![0; self.planes().count() * width * height];
        for (from, to) in self.planes().zip(bytes.chunks_exact_mut((width * height).max(1))) {
            plane(from, to);
        }
        Self { width, height, bytes }
    }

    /// The image with its channels in reverse order.
    pub fn reversed(self) -> Self {
        let planes: Vec<_> = self.planes().collect();
        let bytes = planes.iter().rev().copied().flatten().copied().collect();
        Self { bytes, ..self }
    }

    /// Returns true if it has the bytes of one plane or of three.
    pub fn is_whole(&self) -> bool {
        let size = self.width * self.height;
        size > 0 && (self.bytes.len() == size || self.bytes.len() == size * CHANNELS)
    }
}

/// The first `WANTED` of `SAMPLES` bytes of each pixel, in planes.
fn parted<const SAMPLES: usize, const WANTED: usize>(bytes: &[u8]) -> Vec<u8> {
    let pixels = bytes.as_chunks::<SAMPLES>().0;
    let mut planes = vec![0; pixels.len() * WANTED];
    vectorized(
        #[inline(always)]
        || {
            for (channel, plane) in planes.chunks_exact_mut(pixels.len().max(1)).enumerate() {
                for (place, pixel) in plane.iter_mut().zip(pixels) {
                    *place = pixel.get(channel).copied().unwrap_or(0);
                }
            }
        },
    );
    planes
}

/// One row of a plane; empty beyond the last one.
pub fn row(plane: &[u8], width: usize, index: usize) -> &[u8] {
    let start = index.saturating_mul(width);
    plane.get(start..start.saturating_add(width)).unwrap_or_default()
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first column.
    pub left: usize,
    /// The first row.
    pub top: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Window {
    /// The whole of an image.
    pub const fn whole(width: usize, height: usize) -> Self {
        Self { left: 0, top: 0, width, height }
    }
}

/// Copies a part of an image that lies within it.
pub fn cropped(source: &Pixels, window: Window) -> Pixels {
    source.mapped(window.width, window.height, |from, to| crop(from, source.width, window, to))
}

/// Copies a part of a plane whose rows have `width` bytes.
pub fn crop(from: &[u8], width: usize, window: Window, to: &mut [u8]) {
    let rows = from.chunks_exact(width.max(1)).skip(window.top);
    for (place, row) in to.chunks_exact_mut(window.width.max(1)).zip(rows) {
        if let Some(part) = row.get(window.left..window.left + window.width) {
            place.copy_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_part_into_channels() {
        let check = |samples, bytes: &[u8], want: &[u8]| {
            let got = Pixels::from_interleaved(2, 1, bytes, samples);
            assert!(got.is_whole());
            assert_eq!(got.bytes, want, "{samples}");
        };
        check(1, &[1, 2], &[1, 2]);
        check(2, &[1, 9, 2, 9], &[1, 2]);
        check(3, &[1, 2, 3, 4, 5, 6], &[1, 4, 2, 5, 3, 6]);
        check(4, &[1, 2, 3, 9, 4, 5, 6, 9], &[1, 4, 2, 5, 3, 6]);
        assert_eq!(Pixels::from_interleaved(2, 1, &[1, 2, 3, 4, 5, 6], 3).reversed().bytes, [3, 6, 2, 5, 1, 4]);
        assert_eq!(Pixels::from_interleaved(2, 1, &[1, 2, 3, 4, 5, 6], 3).interleaved(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(Pixels::from_interleaved(2, 1, &[1, 2], 1).interleaved(), [1, 1, 1, 2, 2, 2]);
    }
}
