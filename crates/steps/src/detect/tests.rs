//! Faults and edges of `detect`; its results are held to public code in `tests/exact`.

use base::tensor::{Datatype, Tensor};

use crate::tensors::{floats, integers, of_floats, of_numbers, of_strings};
use crate::trial::{built, fault, run};

const YOLOV8: &str = r#""layout": "yolov8""#;

#[test]
fn no_boxes_and_no_images_have_results() {
    let check = |shape: &[usize], want: [&[i64]; 2]| {
        let predictions = of_floats(shape, vec![]);
        let got = run("detect", &[("predictions", &predictions)], &["boxes", "counts"], YOLOV8).unwrap();
        assert_eq!([&got[0].shape[..], &got[1].shape[..]], want);
    };
    check(&[2, 84, 0], [&[2, 0, 4], &[2]]);
    check(&[84, 0], [&[0, 4], &[]]);
    check(&[0, 84, 8400], [&[0, 0, 4], &[0]]);
}

#[test]
fn a_box_with_nan_is_dropped_and_others_stay() {
    let nan = f32::NAN;
    // Three boxes of two classes, one after the other in each row.
    let rows = [[10.0, 20.0, 30.0], [10.0, 20.0, 30.0], [4.0; 3], [4.0; 3], [0.9, 0.9, 0.1], [nan, 0.1, 0.8]];
    let predictions = of_floats(&[1, 6, 3], rows.concat());
    let got = run("detect", &[("predictions", &predictions)], &["boxes", "classes"], YOLOV8).unwrap();
    assert_eq!(floats("", &got[0]).unwrap()[..], [18.0, 18.0, 22.0, 22.0, 28.0, 28.0, 32.0, 32.0]);
    assert_eq!(integers("", &got[1]).unwrap()[..], [0, 1]);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let check = |predictions: Tensor, members: &str, want: &str| {
        assert_eq!(fault("detect", &[("predictions", &predictions)], &["boxes"], members), want);
    };
    let shape =
        "'predictions' must have 5 to 16384 numbers for each box, [numbers, boxes], but its shape is [1, 4, 10]";
    check(of_floats(&[1, 4, 10], vec![0.0; 40]), YOLOV8, shape);
    let count =
        "'predictions' must have 10 to 16384 numbers for each box, [numbers, boxes], but its shape is [1, 9, 1]";
    check(of_floats(&[1, 9, 1], vec![0.0; 9]), r#""layout": "yolov8", "class_count": 6"#, count);
    let row = "'predictions' must have 6 to 16384 numbers for each box, [boxes, numbers], but its shape is [1, 5]";
    check(of_floats(&[1, 5], vec![0.0; 5]), r#""layout": "end_to_end""#, row);
    let images = "'predictions' must have at most 4096 images, but its shape is [4097, 84, 0]";
    check(of_floats(&[4097, 84, 0], vec![]), YOLOV8, images);
    let rank = "'predictions' must have a shape that ends with [numbers, boxes], but its shape is [84]";
    check(of_floats(&[84], vec![0.0; 84]), YOLOV8, rank);
    check(of_strings(&[1, 6, 1], ["a"; 6]), YOLOV8, "'predictions' must hold numbers, but it is BYTES");
    let label = "a box has class 1, but there are only 1 labels";
    let predictions = of_floats(&[6, 1], vec![1.0, 1.0, 1.0, 1.0, 0.0, 0.9]);
    let members = r#""layout": "yolov8", "labels": ["a"]"#;
    assert_eq!(fault("detect", &[("predictions", &predictions)], &["labels"], members), label);
}

#[test]
fn images_that_do_not_fit_are_named() {
    let predictions = of_floats(&[1, 6, 1], vec![0.0; 6]);
    let check = |port: &str, tensor: Tensor, want: &str| {
        let members = r#""layout": "yolov8", "mapping": "letterbox", "input_size": [640, 640]"#;
        let pad = of_floats(&[1, 2], vec![0.0; 2]);
        let mut inputs = vec![("predictions", &predictions), (port, &tensor)];
        if port == "ratio" {
            inputs.push(("pad", &pad));
        }
        assert_eq!(fault("detect", &inputs, &["boxes"], members), want);
    };
    let size = |values: Vec<i64>| of_numbers(Datatype::Int64, &[values.len() / 2, 2], values);
    let rows = "'original_size' must have 2 numbers for each of 1 images, but its shape is [2, 2]";
    check("original_size", size(vec![1, 2, 3, 4]), rows);
    check("original_size", size(vec![0, 2]), "'original_size' must have sizes from 1 to 16777216, but one is 0");
    let integers = "'original_size' must hold integers of at most 64 bits with a sign, but it is FP32";
    check("original_size", of_floats(&[1, 2], vec![1.0; 2]), integers);
    let ratio = "'ratio' must have 1 or 2 numbers for each of 1 images, but its shape is [3]";
    check("ratio", of_floats(&[3], vec![1.0; 3]), ratio);
    check("ratio", of_floats(&[1, 2], vec![1.0, 0.0]), "'ratio' must be above 0, but one is [1.0, 0.0]");
    check("ratio", of_floats(&[1], vec![f32::NAN]), "'ratio' must be above 0, but one is [NaN, NaN]");
}

#[test]
fn separate_tensors_that_do_not_fit_are_named() {
    let (boxes, scores) = (of_floats(&[1, 2, 4], vec![0.0; 8]), of_floats(&[1, 2], vec![0.0; 2]));
    let check = |boxes: &Tensor, scores: &Tensor, port: &str, other: Tensor, want: &str| {
        let inputs = [("boxes", boxes), ("scores", scores), (port, &other)];
        assert_eq!(fault("detect", &inputs, &["boxes"], r#""layout": "apart""#), want);
    };
    let count = of_floats(&[1], vec![1.0]);
    let shape = "'boxes' must have a shape that ends with [boxes, 4], but its shape is [1, 2]";
    check(&scores, &scores, "num_detections", count.clone(), shape);
    let shape = "'scores' must have 2 scores for each of 1 images, but its shape is [1]";
    check(&boxes, &count, "num_detections", count.clone(), shape);
    let shape = "'classes' must have 2 classes for each of 1 images, but its shape is [1]";
    check(&boxes, &scores, "classes", count, shape);
    let shape = "'num_detections' must have a number for each of 1 images, but its shape is [1, 2]";
    check(&boxes, &scores, "num_detections", scores.clone(), shape);
}

#[test]
fn parameters_that_contradict_each_other_are_named() {
    let check = |inputs: &[&str], members: &str, want: &str| {
        let error = built("detect", inputs, &["boxes"], members).err().unwrap();
        assert_eq!(error, format!("step 1: line 1: {want}"), "{members}");
    };
    let yolo = |members: &str, want: &str| check(&["predictions"], &format!("{YOLOV8}, {members}"), want);
    check(&["boxes"], YOLOV8, "\"inputs\": the layout needs \"predictions\"");
    check(&["predictions", "boxes"], YOLOV8, "\"inputs\": the layout has no \"boxes\"");
    check(&["boxes"], r#""layout": "apart""#, "\"inputs\": the layout \"apart\" needs \"boxes\" and \"scores\"");
    check(&["predictions", "ratio"], YOLOV8, "\"inputs\": \"ratio\" and \"pad\" need each other");
    check(&["predictions", "ratio", "pad"], YOLOV8, "\"mapping\": the input \"ratio\" needs \"letterbox\"");
    let size =
        "\"inputs\": \"mapping\" and \"clip\" need \"original_size\", or \"ratio\" and \"pad\" for a letterbox alone";
    yolo(r#""clip": true"#, size);
    let input = "\"input_size\": must be the height and width of the model's input";
    check(&["predictions", "original_size"], r#""layout": "yolov8", "mapping": "stretch", "input_size": [1]"#, input);
    yolo(r#""epsilon": 1e-7"#, "\"epsilon\": needs \"iou\": \"numpy\"");
    yolo(r#""iou": "opencv""#, "\"iou\": \"opencv\" needs \"nms\": \"agnostic\" or \"by_class\"");
    yolo(r#""order": "class""#, "\"order\": \"class\" needs \"nms\": \"by_class\"");
    yolo(
        r#""map_at": "start", "round": "truncate""#,
        "\"map_at\": \"start\" cannot be combined with \"clip\" and \"round\"",
    );
    let rows = "\"map_at\": \"start\" cannot be combined with \"box_format\": \"yxyx\"";
    yolo(r#""map_at": "start", "box_format": "yxyx""#, rows);
    let opencv = r#""layout": "yolov8", "iou": "opencv", "nms": "agnostic", "clip": true"#;
    check(&["predictions", "original_size"], opencv, "\"clip\": cannot be combined with \"iou\": \"opencv\"");
    let labels = "step 1: line 1: \"labels\": the output \"labels\" needs \"labels\" or \"labels_file\"";
    assert_eq!(built("detect", &["predictions"], &["labels"], YOLOV8).err().unwrap(), labels);
}
