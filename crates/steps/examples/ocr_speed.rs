//! Times of the steps of a text recogniser on the inputs that `ocr_speed.py` writes: `cargo run --release -p steps --example
//! ocr_speed FOLDER`. Prints least and median of 60 runs, in microseconds.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::hint::black_box;
use std::time::Instant;

use base::tensor::{Datatype, Tensor};
use steps::StepList;
use steps::tensors::{of_floats, of_numbers, shape_of};

/// Steps with their names and inputs.
const STEPS: &[(&str, &str)] = &[
    ("boxes of a map", r#""step": "text_boxes", "input": "map", "outputs": {"boxes": "y", "scores": "z"}"#),
    ("the same, in contours", r#""step": "text_boxes", "input": "map", "output": "y", "score_mode": "slow""#),
    (
        "crops of a page",
        r#""step": "crop", "inputs": {"image": "picture", "boxes": "boxes"}, "output": "y", "size": [48, 320], "resize": "widest",
            "library": "opencv", "order": "BGR", "input_order": "BGR", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]"#,
    ),
    (
        "masks of 30 boxes",
        r#""step": "masks", "inputs": {"prototypes": "prototypes", "coefficients": "coefficients", "boxes": "corners"}, "output": "y",
            "input_size": [640, 640]"#,
    ),
    (
        "class map of 19 classes",
        r#""step": "class_map", "inputs": {"scores": "scores", "original_size": "size"}, "output": "y", "resize": "scores""#,
    ),
];

fn main() {
    let folder = std::env::args().nth(1).expect("the folder is given");
    let read = |name: &str| std::fs::read(format!("{folder}/{name}")).expect("ocr_speed.py wrote it");
    let tensor = |name: &str| {
        let contents = read(name);
        let (datatype, shape) = match name {
            "map" => (Datatype::Fp32, vec![1, 960, 736]),
            "boxes" => (Datatype::Fp32, vec![contents.len() / 32, 4, 2]),
            _ => (Datatype::Uint8, vec![960, 736, 3]),
        };
        Tensor { datatype, shape: shape_of(&shape), contents: contents.into() }
    };
    let mut tensors: Vec<_> = ["map", "picture", "boxes"].into_iter().map(|name| (name, tensor(name))).collect();
    let mut seed = 1_u32;
    let mut numbers = |shape: &[usize]| {
        let mut number = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / 16_777_216.0 - 0.5
        };
        of_floats(shape, (0..shape.iter().product()).map(|_| number()).collect())
    };
    tensors.extend([
        ("prototypes", numbers(&[32, 160, 160])),
        ("coefficients", numbers(&[30, 32])),
        ("corners", of_floats(&[30, 4], [100.0, 100.0, 300.0, 260.0].repeat(30))),
        ("scores", numbers(&[19, 128, 128])),
        ("size", of_numbers::<i64>(Datatype::Int64, &[2], vec![512, 512])),
    ]);
    for (name, step) in STEPS {
        let list = StepList::read(&format!("{{\"steps\": [{{{step}}}]}}"), &|_, _| Err(String::new()));
        let list = list.expect("the parameters are right");
        let input = |name: &str| tensors.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor.clone());
        let mut times: Vec<_> = (0..60)
            .map(|_| {
                let start = Instant::now();
                black_box(list.run(input, &["y", "z"])).expect("the step runs");
                start.elapsed().as_micros()
            })
            .collect();
        times.sort_unstable();
        let at = |index: usize| times.get(index).copied().unwrap_or(0);
        println!("{name}: {} µs, median {}", at(0), at(30));
    }
}
