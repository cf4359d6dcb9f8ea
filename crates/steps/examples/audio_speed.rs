//! Times of the steps for audio on one core: `cargo run --release -p steps --example audio_speed FOLDER`, with the files
//! that `audio_speed.py` writes there. Each figure is the median of many runs of a list of one step.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a program for measurements"
)]

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use base::tensor::Tensor;
use steps::StepList;
use steps::tensors::of_strings;

/// Seconds of each file.
const SECONDS: f64 = 10.0;

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap());
    let file = |name: &str| of_strings(&[1], [std::fs::read(folder.join(name)).unwrap()]);
    for name in ["mono.wav", "mono.flac", "stereo.wav", "stereo.flac"] {
        measure(&format!("decode {name}"), r#""step": "audio""#, &file(name));
    }
    let decoded = |name: &str| run(r#""step": "audio""#, &file(name));
    let (speech, music) = (decoded("mono.wav"), decoded("stereo.wav"));
    for method in ["torchaudio", "scipy"] {
        let step = format!(r#""step": "resample", "from": 44100, "to": 16000, "method": "{method}""#);
        measure(&format!("resample 44.1 to 16 kHz, {method}"), &step, &music);
    }
    measure("fbank, 80 bins", r#""step": "fbank""#, &speech);
    measure("log_mel, 80 bins, 30 s", r#""step": "log_mel""#, &speech);
}

fn list(step: &str) -> StepList {
    let text = format!(r#"{{"steps": [{{{step}, "input": "x", "output": "y"}}]}}"#);
    StepList::read(&text, &|_, _| Err(String::new())).unwrap()
}

fn run(step: &str, input: &Tensor) -> Tensor {
    list(step).run(|_| Some(input.clone()), &["y"]).unwrap().remove(0).unwrap()
}

fn measure(name: &str, step: &str, input: &Tensor) {
    let list = list(step);
    let mut times: Vec<_> = (0..200)
        .map(|_| {
            let start = Instant::now();
            black_box(list.run(|_| Some(input.clone()), &["y"]).unwrap());
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or(0) as f64 / 1000.0;
    println!("{name}: {:.1} µs for a second of audio", median / SECONDS);
}
