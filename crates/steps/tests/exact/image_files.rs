//! Decoded files against Pillow (as they are, and upright by their EXIF orientation) and OpenCV, in colours and in grey: no
//! byte may differ.

use std::fs::File;
use std::io::{BufReader, Read as _};

use steps::image::colour::{FileColours, GreyWeights};
use steps::image::file::{self, DecodedImage};
use steps::image::jpeg;
use steps::image::pixels::Pixels;

use crate::{is_whole, played};

#[test]
fn jpeg_files_are_equal() {
    compare("jpeg");
}

/// Sampling factors and scans that no encoder at hand writes.
#[test]
fn unusual_jpeg_files_are_equal() {
    compare("coded");
}

#[test]
fn cmyk_files_are_equal() {
    compare("cmyk");
}

#[test]
fn png_files_are_equal() {
    compare("png");
}

#[test]
fn webp_files_are_equal() {
    compare("webp");
}

/// Decodes all files of the script, and counts the bytes that differ.
fn compare(kind: &str) {
    let (rounds, count) = if is_whole() { (10, "1000") } else { (1, "300") };
    let mut different = [0_usize; 6];
    let (mut files, mut bytes) = (0, 0);
    let mut first = String::new();
    for round in 0..rounds {
        let Some(folder) = played("image_files.py", &[kind, count, &round.to_string()]) else { return };
        let mut cases = BufReader::new(File::open(folder.path().join("cases")).unwrap());
        let mut read = |size: usize| {
            let mut bytes = vec![0; size];
            cases.read_exact(&mut bytes).map(|()| bytes)
        };
        let number = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        while let Ok(size) = read(4) {
            let file = read(number(&size)).unwrap();
            let results = decoded(&file).unwrap_or_else(|error| {
                std::fs::write(std::env::temp_dir().join("differs.bin"), &file).unwrap();
                panic!("file {files} of round {round}: {error:?}");
            });
            files += 1;
            for (index, got) in results.iter().enumerate() {
                let sizes = read(12).unwrap();
                let (width, height, channels) = (number(&sizes), number(&sizes[4..]), number(&sizes[8..]));
                let want = read(width * height * channels).unwrap();
                bytes += want.len();
                let got_bytes = if channels == 1 { got.bytes.clone() } else { got.interleaved() };
                let differing = if (width, height) == (got.width, got.height) && want.len() == got_bytes.len() {
                    want.iter().zip(&got_bytes).filter(|(want, got)| want != got).count()
                } else {
                    want.len()
                };
                different[index] += differing;
                if differing > 0 && first.is_empty() {
                    first = format!("file {files} of round {round}, reader {index}, {width}x{height}: {differing}");
                    std::fs::write(std::env::temp_dir().join("differs.bin"), &file).unwrap();
                }
            }
        }
    }
    println!("{kind}: {files} files, {bytes} bytes compared, different per reader: {different:?}");
    assert_eq!(different, [0; 6], "{first}");
}

/// The pixels of a file as each reader of the script has them.
fn decoded(file: &[u8]) -> Result<[Pixels; 6], base::error::Error> {
    let [pillow, opencv, grey] =
        [FileColours::Pillow, FileColours::OpenCv, FileColours::Luminance].map(|colours| file::decode(file, colours));
    let DecodedImage { pixels, orientation } = pillow?;
    let upright = |pixels: &Pixels| jpeg::oriented(pixels.clone(), orientation);
    let (opencv, grey) = (opencv?.pixels, grey?.pixels);
    Ok([
        pixels.clone(),
        upright(&pixels),
        upright(&opencv),
        pixels.grey(GreyWeights::PILLOW),
        upright(&opencv.grey(GreyWeights::OPENCV)),
        upright(&grey),
    ])
}
