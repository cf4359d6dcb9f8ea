//! Resized pixels against Pillow and OpenCV: no byte may differ.

use std::fs::File;
use std::io::{BufReader, Read as _};

use steps::image::opencv::{self, OpencvFilter};
use steps::image::pillow::{self, PillowFilter};
use steps::image::pixels::{Pixels, Window};

use crate::{is_whole, played};

#[test]
fn pillows_filters_are_equal() {
    use PillowFilter::{Bicubic, Bilinear, Box, Hamming, Lanczos, Nearest};
    let filters = [Nearest, Box, Bilinear, Hamming, Bicubic, Lanczos];
    compare("pillow", &filters, |source, width, height, filter| {
        let whole = pillow::resized(source, width, height, Window::whole(width, height), filter);
        // A part of the result is what the whole has there.
        let part = Window { left: width / 3, top: height / 4, width: width - width / 2, height: height - height / 2 };
        assert_eq!(
            pillow::resized(source, width, height, part, filter),
            steps::image::pixels::cropped(&whole, part),
            "{filter:?}"
        );
        whole
    });
}

#[test]
fn opencvs_methods_are_equal() {
    use OpencvFilter::{Area, Cubic, Linear, Nearest};
    compare("opencv", &[Nearest, Linear, Cubic, Area], opencv::resized);
}

/// Resizes all cases of the script by each filter, and counts the bytes that differ.
fn compare<F: Copy + std::fmt::Debug>(
    library: &str,
    filters: &[F],
    resized: impl Fn(&Pixels, usize, usize, F) -> Pixels,
) {
    let (rounds, count) = if is_whole() { (10, "1000") } else { (1, "150") };
    let mut different = vec![0_usize; filters.len()];
    let mut first = vec![String::new(); filters.len()];
    let mut bytes = 0;
    for round in 0..rounds {
        let Some(folder) = played("image_resize.py", &[library, count, &round.to_string()]) else { return };
        let mut cases = BufReader::new(File::open(folder.path().join("cases")).unwrap());
        let mut read = |size: usize| {
            let mut bytes = vec![0; size];
            cases.read_exact(&mut bytes).map(|()| bytes)
        };
        while let Ok(sizes) = read(16) {
            let sizes: Vec<_> = sizes.as_chunks().0.iter().map(|size| u32::from_le_bytes(*size) as usize).collect();
            let [from_width, from_height, width, height] = sizes[..] else { panic!("four sizes") };
            let source = read(from_width * from_height * 3).unwrap();
            let source = Pixels::from_interleaved(from_width, from_height, &source, 3);
            for (index, filter) in filters.iter().enumerate() {
                let want = read(width * height * 3).unwrap();
                let got = resized(&source, width, height, *filter).interleaved();
                assert_eq!(want.len(), got.len());
                bytes += want.len();
                let differing = want.iter().zip(&got).filter(|(want, got)| want != got).count();
                different[index] += differing;
                if differing > 0 && first[index].is_empty() {
                    first[index] = format!("{filter:?} {from_width}x{from_height} to {width}x{height}: {differing}");
                }
            }
        }
    }
    println!("{library}: {bytes} bytes compared, different per filter: {different:?}");
    assert!(different.iter().all(|count| *count == 0), "{different:?} {first:?}");
}
