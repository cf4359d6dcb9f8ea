//! Times of the parts of the step `image` on one file: `cargo run --release -p steps --example image_speed
//! FILE.jpg`. Prints the median of 200 runs in microseconds.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::hint::black_box;
use std::time::Instant;

use steps::image::jpeg;
use steps::image::opencv::{self, OpencvFilter};
use steps::image::pillow::{self, PillowFilter};
use steps::image::pixels::Window;

fn main() {
    let path = std::env::args().nth(1).expect("the path of a JPEG file is given");
    let file = std::fs::read(path).expect("the file can be read");
    let decoded = jpeg::decode(&file).expect("the file is a JPEG file").pixels;
    println!("{} × {} pixels", decoded.width, decoded.height);
    measured("decode", || jpeg::decode(&file));
    for filter in [PillowFilter::Bilinear, PillowFilter::Bicubic, PillowFilter::Lanczos] {
        measured(&format!("pillow {filter:?} 224"), || {
            pillow::resized(&decoded, 224, 224, Window::whole(224, 224), filter)
        });
    }
    for filter in [OpencvFilter::Linear, OpencvFilter::Area] {
        measured(&format!("opencv {filter:?} 224"), || opencv::resized(&decoded, 224, 224, filter));
    }
    measured("opencv Linear 640x480 to 640x640", || opencv::resized(&decoded, 640, 640, OpencvFilter::Linear));
}

fn measured<R>(name: &str, work: impl Fn() -> R) {
    let mut times: Vec<_> = (0..200)
        .map(|_| {
            let start = Instant::now();
            black_box(work());
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    println!("{name}: {} µs", times.get(100).copied().unwrap_or(0) / 1000);
}
