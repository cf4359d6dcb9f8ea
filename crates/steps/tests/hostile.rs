//! Tensors from clients who mean harm: whatever comes, a step gives a result or an error, and never panics. Sums
//! that overflow panic in a test.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use base::error::Code;
use base::tensor::{Datatype, Shape, Tensor};
use steps::{KINDS, StepKind, StepList};

/// Steps with their inputs, `a` to `h`.
const STEPS: &[&str] = &[
    r#""step": "cast", "input": "a", "output": "y", "datatype": "INT64""#,
    r#""step": "cast", "input": "a", "output": "y", "datatype": "UINT8""#,
    r#""step": "cast", "input": "a", "output": "y", "datatype": "FP16""#,
    r#""step": "head", "activation": "softmax", "top_k": 3, "input": "a",
       "outputs": {"scores": "y", "texts": "z", "index": "i"}"#,
    r#""step": "head", "top_k": 2, "ties": "last", "threshold": 0.5, "input": "a", "outputs": {"indices": "y", "counts": "z"}"#,
    r#""step": "head", "activation": "sigmoid", "threshold": 0, "labels": ["x", "y"], "input": "a",
       "outputs": {"labels": "y", "label": "z"}"#,
    r#""step": "pool", "inputs": {"states": "a", "mask": "b"}, "output": "y", "normalize": true"#,
    r#""step": "pool", "inputs": {"states": "a", "mask": "b"}, "output": "y", "mode": "last", "dimensions": 2"#,
    r#""step": "pool", "inputs": {"states": "a", "mask": "b"}, "output": "y", "mode": "max""#,
    r#""step": "pool", "inputs": {"states": "a", "mask": "b"}, "output": "y", "mode": "weighted_mean""#,
    r#""step": "stack", "inputs": {"columns": ["a", "b", "a"]}, "output": "y", "axis": 1"#,
    r#""step": "concat", "inputs": {"tensors": ["a", "b"]}, "output": "y", "axis": -2"#,
    r#""step": "select", "input": "a", "output": "y", "indices": [1, -1, 0], "axis": 0"#,
    r#""step": "shape", "input": "a", "output": "y", "transpose": [1, 0, 2]"#,
    r#""step": "shape", "input": "a", "output": "y", "transpose": []"#,
    r#""step": "shape", "input": "a", "output": "y", "reshape": [2, -1]"#,
    r#""step": "shape", "input": "a", "output": "y", "squeeze": [0]"#,
    r#""step": "shape", "input": "a", "output": "y", "unsqueeze": [0, -1]"#,
    r#""step": "scale", "input": "a", "output": "y", "subtract": [1, 2], "divide": [0], "clip": [0, 1]"#,
    r#""step": "scale", "input": "a", "output": "y", "multiply": [1e300], "arithmetic": "float64", "datatype": "FP64""#,
    r#""step": "detect", "layout": "yolov8", "input": "a", "outputs": {"boxes": "y", "classes": "z", "detections": "w"}"#,
    r#""step": "detect", "layout": "yolov8", "input": "a", "output": "y", "multi_label": true, "nms": "by_class",
       "order": "class", "iou": "numpy", "plus_one": true, "score_threshold": -1e9"#,
    r#""step": "detect", "layout": "yolov5", "input": "a", "output": "y", "iou": "opencv", "nms": "agnostic", "ties": "last""#,
    r#""step": "detect", "layout": "end_to_end", "inputs": {"predictions": "a", "original_size": "b"}, "output": "y",
       "mapping": "letterbox", "input_size": [640, 640], "clip": true, "round": "nearest", "nms": "offset""#,
    r#""step": "detect", "layout": "end_to_end", "inputs": {"predictions": "a", "ratio": "b", "pad": "c"}, "output": "y",
       "mapping": "letterbox""#,
    r#""step": "detect", "layout": "apart", "inputs": {"boxes": "a", "scores": "b", "classes": "c", "num_detections": "d"},
       "outputs": {"boxes": "y", "labels": "z"}, "labels": ["x"]"#,
    r#""step": "grid_boxes", "input": "a", "output": "y", "form": "distribution", "bins": 2, "strides": [8, 16],
       "input_size": [16, 8]"#,
    r#""step": "grid_boxes", "input": "a", "output": "y", "form": "offsets", "strides": [8, 16], "input_size": [16, 8]"#,
    r#""step": "text_boxes", "inputs": {"map": "a", "original_size": "b"}, "outputs": {"boxes": "y", "scores": "z", "counts": "w"},
       "box_threshold": 0, "min_size": 1"#,
    r#""step": "text_boxes", "input": "a", "output": "y", "score_mode": "slow", "dilate": true, "min_size": 1, "sort": "rapidocr""#,
    r#""step": "crop", "inputs": {"image": "a", "boxes": "b"}, "outputs": {"crops": "y", "crop_size": "z"}, "size": [3, 4],
       "resize": "widest", "library": "opencv""#,
    r#""step": "masks", "inputs": {"prototypes": "a", "coefficients": "b", "boxes": "c", "counts": "d"}, "output": "y",
       "input_size": [9, 7]"#,
    r#""step": "masks", "inputs": {"prototypes": "a", "coefficients": "b", "boxes": "c", "original_size": "d"}, "output": "y",
       "resolution": "original", "activation": "sigmoid", "threshold": 0.5"#,
    r#""step": "class_map", "input": "a", "output": "y", "datatype": "INT64""#,
    r#""step": "class_map", "inputs": {"scores": "a", "original_size": "b"}, "output": "y", "resize": "scores""#,
    r#""step": "detect", "layout": "yolov8", "class_count": 1, "input": "a", "outputs": {"coefficients": "y"}"#,
    r#""step": "detect", "layout": "end_to_end", "input": "a", "outputs": {"coefficients": "y", "boxes": "z"}"#,
    r#""step": "ctc", "input": "a", "outputs": {"text": "y", "score": "z"}, "vocabulary": ["", "x", "|"], "word_delimiter": "|",
       "activation": "softmax""#,
    r#""step": "spans", "inputs": {"logits": "a", "offsets": "b", "text": "c", "special_mask": "d"}, "output": "y",
       "labels": ["O", "B-X", "I-X"]"#,
    r#""step": "spans", "inputs": {"logits": "a", "offsets": "b", "text": "c", "mask": "d", "tokens": "c"}, "output": "y",
       "labels": ["O", "B-X", "I-X"], "strategy": "average", "subwords": "length""#,
    r#""step": "template", "inputs": {"tensors": ["a", "b"]}, "output": "y",
       "template": [{"tensor": "a", "round": 2}, {"each": {"tensor": "a", "index": [0]}, "over": "b", "count": "b"}]"#,
    r#""step": "template", "inputs": {"tensors": ["a", "b"]}, "output": "y", "per_row": true,
       "template": {"a": {"tensor": "a"}, "b": {"tensor": "b", "whole": true}}"#,
    r#""step": "parse", "input": "a", "output": "y", "datatype": "FP32", "path": "a.0""#,
    r#""step": "parse", "input": "a", "output": "y", "datatype": "BYTES", "default": ["x"]"#,
    r#""step": "audio", "input": "a", "outputs": {"samples": "y", "lengths": "z", "sample_rate": "w"}"#,
    r#""step": "audio", "input": "a", "outputs": {"samples": "y", "lengths": "z"}, "channels": "all", "sample_rate": 44100,
       "resample": "torchaudio", "length": 5"#,
    r#""step": "resample", "input": "a", "output": "y", "from": 3, "to": 2"#,
    r#""step": "resample", "input": "a", "output": "y", "from": 2, "to": 3, "method": "scipy""#,
    r#""step": "log_mel", "input": "a", "output": "y", "chunk_length": 0, "n_fft": 4, "hop_length": 1, "feature_size": 3"#,
    r#""step": "log_mel", "input": "a", "output": "y", "chunk_length": 1, "sampling_rate": 1000"#,
    r#""step": "fbank", "inputs": {"samples": "a", "lengths": "b"}, "outputs": {"features": "y", "lengths": "z"},
       "sample_rate": 8000, "frame_length_ms": 4, "frame_shift_ms": 0.125, "snip_edges": false, "num_mel_bins": 3"#,
    r#""step": "fbank", "input": "a", "output": "y", "sample_rate": 1000, "frame_length_ms": 16, "frame_shift_ms": 1,
       "num_mel_bins": 3, "round_to_power_of_two": false, "snip_edges": false, "use_energy": true, "normalize": "mean_deviation",
       "lfr_window": 3, "lfr_shift": 2, "low_freq": 0, "use_power": false"#,
    r#""step": "image", "input": "a", "output": "y", "size": [3, 4]"#,
    r#""step": "normalize", "input": "a", "output": "y""#,
    r#""step": "dense", "input": "a", "output": "y", "file": "dense.safetensors""#,
    r#""step": "tokenize", "inputs": {"text": "a", "pair": "b"}, "outputs": {"ids": "y", "mask": "z"}, "file": "tokenizer.json",
       "pad_id": 0"#,
    r#""step": "detokenize", "inputs": {"ids": "a", "mask": "b"}, "output": "y", "file": "tokenizer.json""#,
    r#""step": "token_vectors", "inputs": {"states": "a", "keep": "b"}, "output": "y""#,
    r#""step": "hypotheses", "inputs": {"text": "a", "labels": "b"}, "outputs": {"texts": "y", "hypotheses": "z"}"#,
    r#""step": "entailment", "inputs": {"logits": "a", "labels": "b"}, "outputs": {"labels": "y", "scores": "z"},
       "contradiction": 0, "entailment": 2"#,
    r#""step": "answer", "inputs": {"starts": "a", "ends": "b", "texts": "c", "words": "d", "offsets": "e", "context": "f"},
       "output": "y""#,
];

/// A tokenizer with a token for each of a few words.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"}}"#;

/// The files that steps name.
fn read_file(name: &str, _: usize) -> Result<Vec<u8>, String> {
    if name == "tokenizer.json" {
        return Ok(TOKENIZER.into());
    }
    let header = r#"{"linear.weight": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}}"#;
    Ok([&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 32]].concat())
}

/// A WAV file with four samples of 8 bits.
const WAV: &str = "RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x40\x1f\0\0\x01\0\x08\0data\x04\0\0\0abcd";

#[test]
fn all_kinds_are_tried() {
    for kind in KINDS {
        assert!(STEPS.iter().any(|step| kind_of(step).name == kind.name), "{}", kind.name);
    }
}

#[test]
fn any_tensors_give_results_or_errors_that_name_step_and_tensor() {
    let mut random = Random(1);
    let (mut result_count, mut error_count) = (0, 0);
    for step in STEPS {
        let list = StepList::read(&format!("{{\"steps\": [{{{step}}}]}}"), &read_file);
        let list = list.unwrap_or_else(|error| panic!("{}: {step}", error.text()));
        for _ in 0..1500 {
            // Dimensions that fit each other now and then.
            let sizes = [random.below(4), random.below(4), random.below(9)];
            let tensors: Vec<_> = list.inputs().map(|name| (name.to_owned(), tensor(&mut random, sizes))).collect();
            let input = |name: &str| tensors.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor.clone());
            let outputs: Vec<_> = list.outputs().collect();
            match list.run(input, &outputs) {
                Ok(results) => {
                    for result in results.into_iter().flatten() {
                        assert!(result.has_its_size(), "{step}: {result:?} of {tensors:?}");
                    }
                    result_count += 1;
                }
                Err(error) => {
                    assert_eq!(error.code(), Code::InvalidArgument, "a client's fault: {}: {step}", error.text());
                    assert!(names_step_and_tensor(step, error.text()), "{}: {step}", error.text());
                    error_count += 1;
                }
            }
        }
    }
    println!("{result_count} results, {error_count} errors");
    assert!(result_count > 1000 && error_count > 1000, "{result_count} results, {error_count} errors: both are tried");
}

/// The kind of a step.
fn kind_of(step: &str) -> &'static StepKind {
    let name = step.split('"').nth(3).expect("a step names its kind");
    KINDS.iter().find(|kind| kind.name == name).expect("the kind is known")
}

/// Returns true if the text of an error begins with the step, and names a port of it or a tensor of the list.
fn names_step_and_tensor(step: &str, text: &str) -> bool {
    let kind = kind_of(step);
    let mut ports = kind.inputs.iter().chain(kind.outputs).map(|port| port.member());
    text.starts_with(&format!("step 1 ({}): ", kind.name))
        && (ports.any(|port| text.contains(port)) || ('a'..='h').any(|tensor| text.contains(&format!("'{tensor}'"))))
}

/// A tensor of any datatype, whose shape and contents mostly fit each other.
fn tensor(random: &mut Random, [rows, columns, last]: [u64; 3]) -> Tensor {
    let datatypes = [Datatype::Fp32, Datatype::Fp32, Datatype::Int64, Datatype::Bytes, Datatype::Fp16, Datatype::Fp64];
    let datatype = match random.below(8) {
        place @ 0..6 => datatypes[place as usize],
        _ => Datatype::ALL[random.below(14) as usize],
    };
    let sizes = [rows, columns, last].map(|size| size as i64);
    let mut shape = match random.below(6) {
        0 => Shape::from_slice(&sizes[..1]),
        1 => Shape::from_slice(&sizes[..2]),
        2 => Shape::from_slice(&[sizes[0], sizes[1], 2]),
        3 => Shape::from_slice(&[sizes[0], sizes[1], 3]),
        _ => Shape::from_slice(&sizes),
    };
    if random.below(50) == 0 {
        let extreme = [i64::MAX, i64::MIN, -1, 0, 1 << 40, 1 << 32][random.below(6) as usize];
        shape.insert(0, extreme);
        shape.push(0);
    }
    let count = base::tensor::element_count(&shape).unwrap_or(1).min(1000);
    let mut contents = Vec::new();
    for _ in 0..count {
        match datatype {
            Datatype::Bytes => {
                let text = ["", "x", "{\"a\": [1]}", "\u{1d11e} y", "\u{fffd}", "[[1, 2], [3]]", WAV]
                    [random.below(7) as usize];
                base::tensor::strings::encode(text.as_bytes(), &mut contents);
            }
            Datatype::Fp32 => {
                let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0, 1e-45];
                let value = match random.below(20) {
                    place @ 0..6 => special[place as usize],
                    value => value as f32 / 8.0 - 1.0,
                };
                contents.extend(value.to_le_bytes());
            }
            Datatype::Int64 => {
                let value = match random.below(20) {
                    0 => i64::MAX,
                    1 => i64::MIN,
                    value => value as i64 - 4,
                };
                contents.extend(value.to_le_bytes());
            }
            other => contents.extend((0..other.size().unwrap_or(1)).map(|_| random.below(256) as u8)),
        }
    }
    if random.below(30) == 0 {
        contents.truncate(random.below(contents.len() as u64 + 1) as usize);
    }
    Tensor { datatype, shape, contents: contents.into() }
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}
