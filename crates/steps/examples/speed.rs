//! Times of steps on one core: `cargo run --release -p steps --example speed`. Each figure is the median of many runs of a list of
//! one step, with its tensors made and dropped.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a program for measurements"
)]

use std::hint::black_box;
use std::time::Instant;

use base::tensor::{Datatype, Tensor};
use steps::StepList;
use steps::tensors::{of_floats, of_numbers};

fn main() {
    let mut random = Random(1);
    let labels: Vec<_> = (0..1000).map(|index| format!("\"class {index}\"")).collect();
    let head = format!(
        r#"{{"steps": [{{"step": "head", "activation": "softmax", "top_k": 5, "labels": [{}], "input": "x",
            "outputs": {{"scores": "a", "labels": "b"}}}}]}}"#,
        labels.join(",")
    );
    let scores = of_floats(&[1, 1000], (0..1000).map(|_| random.unit() * 12.0).collect());
    measure("softmax and 5 labels of 1,000", &head, &[("x", scores)], &["a", "b"]);

    let pool =
        r#"{"steps": [{"step": "pool", "normalize": true, "inputs": {"states": "x", "mask": "m"}, "output": "a"}]}"#;
    let states = of_floats(&[1, 32, 384], (0..32 * 384).map(|_| random.unit() - 0.5).collect());
    let mask = of_numbers(Datatype::Int64, &[1, 32], vec![1_i64; 32]);
    measure("mean of 32 x 384, normalised", pool, &[("x", states), ("m", mask)], &["a"]);
}

fn measure(name: &str, text: &str, inputs: &[(&str, Tensor)], outputs: &[&str]) {
    let list = StepList::read(text, &|_, _| Err(String::new())).unwrap();
    let input = |name: &str| inputs.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor.clone());
    let mut times: Vec<_> = (0..2000)
        .map(|_| {
            let start = Instant::now();
            black_box(list.run(input, outputs).unwrap());
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0) as f64 / 1000.0;
    println!("{name}: {:.2} µs median, {:.2} at 10 %, {:.2} at 90 %", at(50), at(10), at(90));
}

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / 16_777_216.0
    }
}
