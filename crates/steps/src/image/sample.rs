//! Pictures for the requests of a comparison: JPEG, PNG and WebP files of the kinds that clients send. The same numbers give the same
//! file. Pure.

use std::io;

use crate::image::sample::jpeg::{JpegKind, encode};

pub mod jpeg;

/// Pixels of a side of most pictures.
const SIDE_MAX: u64 = 300;
/// Pixels of a side of one picture in [`LARGE_EVERY`].
const LARGE_SIDE_MAX: u64 = 1_000;
/// Pixels of a side of one picture in [`SMALL_EVERY`].
const SMALL_SIDE_MAX: u64 = 8;
const LARGE_EVERY: u64 = 12;
const SMALL_EVERY: u64 = 6;
/// The longer side of a picture by the shorter one. A resize that keeps the ratio makes large pictures of narrow ones.
const RATIO_MAX: u64 = 50;

/// Pseudorandom numbers: the next one below a bound.
pub type NextBelow<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Pixels of a picture, with the channels of each one after the other.
pub struct SamplePixels {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Channels: grey, RGB or RGBA.
    pub channels: usize,
    /// `width` × `height` × `channels` bytes.
    pub bytes: Vec<u8>,
}

/// Returns a file: half of them are JPEG files, baseline or progressive, grey or in colours with the chroma in full or less, and with
/// any EXIF orientation; the others PNG files (grey, RGB, RGBA or with a palette) and lossless WebP files.
///
/// # Errors
/// If an encoder refuses its pixels, which it does not for these sizes.
pub fn picture(next_below: NextBelow<'_>) -> io::Result<Vec<u8>> {
    let (width, height) = sides(next_below);
    let pixels = |channels, next_below: NextBelow<'_>| pixels(width, height, channels, next_below);
    match next_below(8) {
        0..4 => {
            let kind = JpegKind {
                quality: u16::try_from(30 + next_below(70)).unwrap_or(75),
                is_progressive: next_below(3) == 0,
                sampling: match next_below(4) {
                    0 => [1, 1],
                    1 => [2, 1],
                    _ => [2, 2],
                },
                orientation: (next_below(4) == 0).then(|| u8::try_from(1 + next_below(8)).unwrap_or(1)),
            };
            let channels = if next_below(6) == 0 { 1 } else { 3 };
            Ok(encode(&pixels(channels, next_below), &kind))
        }
        4 => png(&pixels(1, next_below), png::ColorType::Grayscale),
        5 => png(&pixels(3, next_below), png::ColorType::Rgb),
        6 if next_below(2) == 0 => png(&pixels(4, next_below), png::ColorType::Rgba),
        6 => {
            let mut indexed = pixels(1, next_below);
            indexed.bytes.iter_mut().for_each(|index| *index %= 64);
            png(&indexed, png::ColorType::Indexed)
        }
        _ => webp(&pixels(if next_below(3) == 0 { 4 } else { 3 }, next_below)),
    }
}

fn sides(next_below: NextBelow<'_>) -> (u32, u32) {
    let most = match (next_below(LARGE_EVERY), next_below(SMALL_EVERY)) {
        (0, _) => LARGE_SIDE_MAX,
        (_, 0) => SMALL_SIDE_MAX,
        _ => SIDE_MAX,
    };
    let mut side = || 1 + next_below(most);
    let (width, height) = (side(), side());
    let least = (width.max(height) / RATIO_MAX).max(1);
    let [width, height] = [width, height].map(|side| u32::try_from(side.max(least)).unwrap_or(1));
    (width, height)
}

/// A gradient with a box of another colour in it, and noise.
fn pixels(width: u32, height: u32, channels: usize, next_below: NextBelow<'_>) -> SamplePixels {
    let noise = 1 + next_below(40);
    let slopes: Vec<u64> = (0..channels * 2).map(|_| next_below(200)).collect();
    let [left, top] = [width, height].map(|side| next_below(u64::from(side)));
    let mut bytes = Vec::with_capacity(width as usize * height as usize * channels);
    for y in 0..u64::from(height) {
        for x in 0..u64::from(width) {
            let is_inside = x >= left && x < left + 40 && y >= top && y < top + 30;
            for slope in slopes.chunks_exact(2) {
                let &[across, down] = slope else { continue };
                let base = across * x / u64::from(width) + down * y / u64::from(height);
                let value = if is_inside { 255 - base % 256 } else { base } + next_below(noise);
                bytes.push(value.min(255).to_le_bytes()[0]);
            }
        }
    }
    SamplePixels { width, height, channels, bytes }
}

fn png(pixels: &SamplePixels, colour: png::ColorType) -> io::Result<Vec<u8>> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, pixels.width, pixels.height);
    encoder.set_color(colour);
    encoder.set_compression(png::Compression::Fast);
    if colour == png::ColorType::Indexed {
        let palette: Vec<u8> =
            (0..64_u8).flat_map(|index| [index * 4, 255 - index * 3, index.wrapping_mul(29)]).collect();
        encoder.set_palette(palette);
    }
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels.bytes)?;
    writer.finish()?;
    Ok(file)
}

fn webp(pixels: &SamplePixels) -> io::Result<Vec<u8>> {
    let mut file = Vec::new();
    let colour = if pixels.channels == 4 { image_webp::ColorType::Rgba8 } else { image_webp::ColorType::Rgb8 };
    let encoder = image_webp::WebPEncoder::new(&mut file);
    encoder.encode(&pixels.bytes, pixels.width, pixels.height, colour).map_err(io::Error::other)?;
    Ok(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::image::colour::FileColours;
    use crate::image::file::{DecodedImage, decode};
    use crate::image::jpeg::Orientation;

    /// SplitMix64.
    fn random(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |bound| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            u64::try_from((u128::from(mixed ^ (mixed >> 31)) * u128::from(bound)) >> 64).unwrap()
        }
    }

    #[test]
    fn pictures_of_all_kinds_can_be_decoded_and_come_again_with_their_numbers() {
        let (mut formats, mut turned, mut grey) = ([0; 3], 0, 0);
        for seed in 0..300 {
            let file = picture(&mut random(seed)).unwrap();
            assert_eq!(file, picture(&mut random(seed)).unwrap());
            let DecodedImage { pixels, orientation } = decode(&file, FileColours::Pillow).unwrap();
            assert!(pixels.is_whole());
            let longest = pixels.width.max(pixels.height) as u64;
            assert!(longest <= LARGE_SIDE_MAX && longest <= RATIO_MAX * 2 * pixels.width.min(pixels.height) as u64);
            let format = [&b"\xff\xd8\xff"[..], b"\x89PNG", b"RIFF"].iter().position(|start| file.starts_with(start));
            formats[format.unwrap()] += 1;
            turned += usize::from(orientation != Orientation::default());
            grey += usize::from(pixels.planes().count() == 1);
        }
        assert!(formats.iter().all(|count| *count > 20) && turned > 10 && grey > 10, "{formats:?} {turned} {grey}");
    }

    #[test]
    fn a_jpeg_file_looks_like_its_pixels() {
        let pixels = pixels(61, 45, 3, &mut |_| 3);
        for is_progressive in [false, true] {
            for sampling in [[1, 1], [2, 1], [2, 2]] {
                let kind = JpegKind { quality: 95, is_progressive, sampling, orientation: Some(6) };
                let DecodedImage { pixels: got, orientation } =
                    decode(&encode(&pixels, &kind), FileColours::Pillow).unwrap();
                assert_eq!((got.width, got.height, orientation), (61, 45, Orientation::from_tag(6)));
                let differing =
                    got.interleaved().iter().zip(&pixels.bytes).filter(|(got, want)| got.abs_diff(**want) > 12).count();
                assert!(differing < pixels.bytes.len() / 50, "{is_progressive} {sampling:?}: {differing}");
            }
        }
    }
}
