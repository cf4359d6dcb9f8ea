//! Times of the step `image` on one file, and of its parts: `cargo run --release -p steps --example image_speed FILE.jpg`.
//! Prints least and median of 200 runs, in microseconds.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::hint::black_box;
use std::time::Instant;

use steps::StepList;
use steps::image::colour::FileColours;
use steps::image::jpeg;
use steps::image::opencv::{self, OpencvFilter};
use steps::image::pillow::{self, PillowFilter};
use steps::image::pixels::Window;
use steps::tensors::of_strings;

/// Pipelines with the parameters of the step.
const PIPELINES: &[(&str, &str)] = &[
    ("224, Pillow bilinear, ImageNet", r#""size": [224], "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]"#),
    (
        "224, OpenCV linear, ImageNet",
        r#""size": [224], "library": "opencv", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]"#,
    ),
    ("letterbox 640", r#""size": [640], "library": "opencv", "resize": "letterbox""#),
];

fn main() {
    let path = std::env::args().nth(1).expect("the path of a JPEG file is given");
    let file = std::fs::read(path).expect("the file can be read");
    let decoded = jpeg::decode(&file, FileColours::Pillow).expect("the file is a JPEG file").pixels;
    println!("{} × {} pixels, {} bytes", decoded.width, decoded.height, file.len());
    measured("decode", || jpeg::decode(&file, FileColours::Pillow));
    for filter in [PillowFilter::Bilinear, PillowFilter::Bicubic, PillowFilter::Lanczos] {
        let window = Window::whole(224, 224);
        measured(&format!("Pillow {filter:?}"), || pillow::resized(&decoded, 224, 224, window, filter));
    }
    for filter in [OpencvFilter::Linear, OpencvFilter::Area] {
        measured(&format!("OpenCV {filter:?}"), || opencv::resized(&decoded, 224, 224, filter));
    }
    for (input, encoding) in [(file.clone(), ""), (wire::base64::encode(&file).into_bytes(), ", base64")] {
        let input = of_strings(&[1], [input]);
        for (name, parameters) in PIPELINES {
            let text =
                format!(r#"{{"steps": [{{"step": "image", "input": "file", "output": "pixels", {parameters}}}]}}"#);
            let list = StepList::read(&text, &|_, _| Err(String::new())).expect("the parameters are right");
            measured(&format!("{name}{encoding}"), || list.run(|_| Some(input.clone()), &["pixels"]));
        }
    }
}

fn measured<R>(name: &str, work: impl Fn() -> R) {
    let mut times: Vec<_> = (0..200)
        .map(|_| {
            let start = Instant::now();
            black_box(work());
            start.elapsed().as_nanos() / 1000
        })
        .collect();
    times.sort_unstable();
    let at = |index: usize| times.get(index).copied().unwrap_or(0);
    println!("{name}: {} µs, median {}", at(0), at(100));
}
