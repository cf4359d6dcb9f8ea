//! Times of steps on one core: `cargo run --release -p steps --example speed`. Each figure is the median of many
//! runs of a list of one step, with its tensors made and dropped.

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

    let detect = r#"{"steps": [{"step": "detect", "layout": "yolov8", "input": "x",
        "outputs": {"boxes": "a", "scores": "b", "classes": "c"}}]}"#;
    measure("YOLOv8 [84, 8400], 300 candidates", detect, &[("x", yolov8(&mut random, 300))], &["a", "b", "c"]);
    measure("YOLOv8 [84, 8400], 30 candidates", detect, &[("x", yolov8(&mut random, 30))], &["a", "b", "c"]);
    let opencv = r#"{"steps": [{"step": "detect", "layout": "yolov8", "nms": "agnostic", "iou": "opencv", "input": "x",
        "outputs": {"boxes": "a", "scores": "b", "classes": "c"}}]}"#;
    measure("the same, 300, as cv2.dnn.NMSBoxes", opencv, &[("x", yolov8(&mut random, 300))], &["a", "b", "c"]);

    let yolov5 = r#"{"steps": [{"step": "detect", "layout": "yolov5", "input": "x",
        "outputs": {"boxes": "a", "scores": "b", "classes": "c"}}]}"#;
    let rows = (0..25_200 * 85).map(|index| random.unit() * if index % 85 == 4 { 0.2505 } else { 1.0 });
    measure("YOLOv5 [25200, 85]", yolov5, &[("x", of_floats(&[1, 25_200, 85], rows.collect()))], &["a", "b", "c"]);

    let symbols: Vec<_> = (0..6624).map(|index| format!("\"{index}\"")).collect();
    let ctc = format!(
        r#"{{"steps": [{{"step": "ctc", "vocabulary": [{}], "has_blank": false, "input": "x",
            "outputs": {{"text": "a", "score": "b"}}}}]}}"#,
        symbols.join(",")
    );
    let steps = of_floats(&[1, 40, 6625], (0..40 * 6625).map(|_| random.unit()).collect());
    measure("CTC of 40 x 6,625", &ctc, &[("x", steps)], &["a", "b"]);
}

/// Low scores, but for `count` boxes around 20 objects.
fn yolov8(random: &mut Random, count: usize) -> Tensor {
    let mut rows: Vec<Vec<f32>> = (0..84).map(|_| (0..8400).map(|_| random.unit() * 0.2).collect()).collect();
    for index in 0..count {
        let (object, at) = (index % 20, index * 8400 / count);
        let centre = object as f32 * 30.0;
        let numbers = [
            centre + random.unit() * 8.0,
            centre + random.unit() * 8.0,
            60.0 + random.unit(),
            60.0,
            0.3 + random.unit() / 2.0,
        ];
        for (row, number) in [0, 1, 2, 3, 4 + object].into_iter().zip(numbers) {
            *rows.get_mut(row).and_then(|row| row.get_mut(at)).unwrap() = number;
        }
    }
    of_floats(&[1, 84, 8400], rows.concat())
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
