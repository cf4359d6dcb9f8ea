//! Colours of files and of pixels that a library makes of others: grey, and red, green and blue of the four inks of print.

use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::vector::vectorized;

/// The colours that a decoder gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileColours {
    /// Grey, as OpenCV decodes with `IMREAD_GRAYSCALE`.
    Luminance,
    /// Red, green and blue, those of CMYK files as OpenCV computes them. Grey files stay grey.
    OpenCv,
    /// Red, green and blue, those of CMYK files as Pillow computes them. Grey files stay grey.
    #[default]
    Pillow,
}

/// The parts of red, green and blue in grey: `(red * r + green * g + blue * b + bias) >> shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreyWeights {
    weights: [u32; CHANNELS],
    bias: u32,
    shift: u32,
}

impl GreyWeights {
    /// Those of `cv2.cvtColor`, and of OpenCV for WebP files.
    pub const OPENCV: Self = Self { weights: [9_798, 19_235, 3_735], bias: 1 << 14, shift: 15 };
    /// Those of OpenCV for CMYK files.
    const OPENCV_PRINT: Self = Self { weights: [4_899, 9_617, 1_868], bias: 1 << 13, shift: 14 };
    /// Those of Pillow's `convert("L")` (ITU-R BT.601-2), and of libjpeg's grey of a file with red, green and blue.
    pub const PILLOW: Self = Self { weights: [19_595, 38_470, 7_471], bias: 1 << 15, shift: 16 };
    /// Those of libpng's `png_set_rgb_to_gray` with the parts that OpenCV asks for, which are truncated.
    pub const PNG: Self = Self { weights: [9_797, 19_234, 3_737], bias: 0, shift: 15 };
}

impl FileColours {
    /// The weights of grey that the library makes of red, green and blue.
    pub const fn grey(self) -> GreyWeights {
        match self {
            Self::Luminance | Self::OpenCv => GreyWeights::OPENCV,
            Self::Pillow => GreyWeights::PILLOW,
        }
    }

    /// The pixels of a file: those of four planes, as libjpeg writes CMYK, become colours or grey. Adobe's programs write the
    /// inks inverted, and both libraries take all files to be theirs.
    pub fn without_key(self, pixels: Pixels) -> Pixels {
        let planes: Vec<_> = pixels.planes().collect();
        let [cyans, magentas, yellows, keys] = planes[..] else { return pixels };
        let colour = match self {
            Self::Pillow => pillow_colour,
            Self::Luminance | Self::OpenCv => opencv_colour,
        };
        let mut bytes = Vec::with_capacity(keys.len() * CHANNELS);
        for inks in [cyans, magentas, yellows] {
            bytes.extend(inks.iter().zip(keys).map(|(ink, key)| colour(u32::from(*ink), u32::from(*key))));
        }
        let pixels = Pixels { bytes, ..pixels };
        if self == Self::Luminance { pixels.grey(GreyWeights::OPENCV_PRINT) } else { pixels }
    }
}

/// Pillow's `cmyk2rgb` of an ink and black, both inverted before: `key - (255 - ink) * key / 255`, rounded.
fn pillow_colour(ink: u32, key: u32) -> u8 {
    let product = (255 - ink) * key + 128;
    key.saturating_sub(((product >> 8) + product) >> 8).to_le_bytes()[0]
}

/// OpenCV's `icvCvt_CMYK2BGR`.
fn opencv_colour(ink: u32, key: u32) -> u8 {
    key.saturating_sub(((255 - ink) * key) >> 8).to_le_bytes()[0]
}

impl Pixels {
    /// Red, green and blue as grey; grey stays as it is.
    pub fn grey(self, weights: GreyWeights) -> Self {
        if self.planes().count() != CHANNELS {
            return self;
        }
        let GreyWeights { weights: [r, g, b], bias, shift } = weights;
        let [reds, greens, blues] = self.channels();
        let mut bytes = vec![0; reds.len()];
        vectorized(
            #[inline(always)]
            || {
                for (((place, red), green), blue) in bytes.iter_mut().zip(reds).zip(greens).zip(blues) {
                    let sum = u32::from(*red) * r + u32::from(*green) * g + u32::from(*blue) * b + bias;
                    // The weights add up to 1 << shift: the sum is below 256.
                    *place = (sum >> shift) as u8;
                }
            },
        );
        Self { bytes, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_is_that_of_each_library() {
        let pixels = Pixels { width: 1, height: 1, bytes: vec![200, 100, 51] };
        let grey = |weights| pixels.clone().grey(weights).bytes[0];
        assert_eq!(grey(GreyWeights::PILLOW), 124);
        assert_eq!([grey(GreyWeights::OPENCV), grey(GreyWeights::PNG)], [124, 124]);
        let white = Pixels { width: 1, height: 1, bytes: vec![255; 3] };
        for weights in [GreyWeights::OPENCV, GreyWeights::OPENCV_PRINT, GreyWeights::PILLOW, GreyWeights::PNG] {
            assert_eq!(white.clone().grey(weights).bytes, [255]);
            assert_eq!(weights.weights.iter().sum::<u32>(), 1 << weights.shift);
        }
        let grey = Pixels { width: 1, height: 1, bytes: vec![7] };
        assert_eq!(grey.clone().grey(GreyWeights::PILLOW), grey);
    }

    #[test]
    fn inks_become_colours() {
        let inks = Pixels { width: 1, height: 1, bytes: vec![255, 128, 0, 200] };
        assert_eq!(FileColours::Pillow.without_key(inks.clone()).bytes, [200, 100, 0]);
        assert_eq!(FileColours::OpenCv.without_key(inks.clone()).bytes, [200, 101, 1]);
        assert_eq!(FileColours::Luminance.without_key(inks).bytes, [119]);
        let colours = Pixels { width: 1, height: 1, bytes: vec![1, 2, 3] };
        assert_eq!(FileColours::Pillow.without_key(colours.clone()), colours);
    }
}
