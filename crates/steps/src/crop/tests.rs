//! Faults and edges of `crop`; its results are held to OpenCV in `tests/exact`.

use base::tensor::{Datatype, Tensor};

use crate::limits::CROPS_MAX;
use crate::tensors::{floats, integers, of_floats, of_numbers, of_strings, shape_of};
use crate::trial::{built, fault, run};

/// Images whose pixels have their column as red and their row as green.
fn images(count: usize, height: usize, width: usize) -> Tensor {
    let image = (0..height).flat_map(|row| (0..width).flat_map(move |column| [column as u8, row as u8, 7]));
    let bytes = image.collect::<Vec<_>>().repeat(count);
    Tensor { datatype: Datatype::Uint8, shape: shape_of(&[count, height, width, 3]), contents: bytes.into() }
}

const BYTES: &str = r#""library": "opencv", "datatype": "UINT8", "layout": "NHWC""#;

#[test]
fn crops_of_all_images_follow_each_other() {
    let boxes = of_floats(&[3, 2, 4], [[1.9, 2.0, 3.0, 4.2], [0.0, 0.0, 2.0, 2.0]].concat().repeat(3));
    let counts = of_numbers::<i64>(Datatype::Int64, &[3], vec![2, 0, 1]);
    let image = images(3, 5, 6);
    let inputs = [("image", &image), ("boxes", &boxes), ("counts", &counts)];
    let got =
        run("crop", &inputs, &["crops", "image_index", "crop_size"], &format!("{BYTES}, \"size\": [2, 2]")).unwrap();
    assert_eq!(got[0].shape[..], [3, 2, 2, 3]);
    assert_eq!(got[0].contents[..12], [1, 2, 7, 2, 2, 7, 1, 3, 7, 2, 3, 7]);
    assert_eq!(integers("", &got[1]).unwrap()[..], [0, 0, 2]);
    assert_eq!(integers("", &got[2]).unwrap()[..], [2; 6]);
}

#[test]
fn a_high_box_is_turned_and_zeros_follow_it() {
    let quad = of_floats(&[1, 4, 2], vec![1.0, 0.0, 3.0, 0.0, 3.0, 4.0, 1.0, 4.0]);
    let image = images(1, 8, 8);
    let inputs = [("image", &image), ("boxes", &quad)];
    let got = run("crop", &inputs, &["crops", "crop_size"], r#""library": "opencv", "size": [2, 5], "resize": "pad""#);
    let got = got.unwrap();
    assert_eq!(integers("", &got[1]).unwrap()[..], [2, 4]);
    let values: Vec<_> = floats("", &got[0]).unwrap()[..10].iter().map(|value| (value * 255.0).round()).collect();
    assert_eq!(values, [2.0, 2.0, 2.0, 2.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
    let got = run("crop", &inputs, &["crops"], &format!("{BYTES}, \"size\": [4, 2], \"turn_ratio\": 0")).unwrap();
    assert_eq!(got[0].contents[..6], [1, 0, 7, 2, 0, 7]);
}

#[test]
fn without_boxes_there_are_no_crops() {
    let broken = of_strings(&[1], ["no image"]);
    let boxes = of_floats(&[1, 0, 4, 2], vec![]);
    let got = run("crop", &[("image", &broken), ("boxes", &boxes)], &["crops", "image_index"], "\"size\": [48, 320]");
    assert_eq!(got.unwrap()[0].shape[..], [0, 3, 48, 320]);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let check = |boxes: &Tensor, members: &str, want: &str| {
        let image = images(1, 4, 4);
        let error =
            fault("crop", &[("image", &image), ("boxes", boxes)], &["crops"], &format!("\"size\": [2, 2]{members}"));
        assert_eq!(error, want);
    };
    let shape = |shape: &str| {
        format!(
            "'boxes' must have the shape [1, n, 4, 2] or [1, n, 4], with at most {CROPS_MAX} boxes, but its shape is {shape}"
        )
    };
    check(&of_floats(&[1, 3], vec![0.0; 3]), "", &shape("[1, 3]"));
    check(&of_floats(&[2, 1, 4], vec![0.0; 8]), "", &shape("[2, 1, 4]"));
    check(&of_floats(&[CROPS_MAX + 1, 4], vec![0.0; 4 * CROPS_MAX + 4]), "", &shape("[10001, 4]"));
    let outside = "'boxes', box 0 of image 0: [4.0, 0.0, 9.0, 9.0] has no pixel of an image of 4 × 4";
    check(&of_floats(&[1, 4], vec![4.0, 0.0, 9.0, 9.0]), "", outside);
    let quad = |corners: [f32; 8]| of_floats(&[1, 4, 2], corners.to_vec());
    let line = "'boxes', box 0 of image 0: its corners have no perspective: three lie on a line, or nearly";
    check(&quad([0.0, 0.0, 2.0, 2.0, 4.0, 4.0, 0.0, 4.0]), "", line);
    let far = "'boxes', box 0 of image 0: a corner is further than 65536 from the image";
    check(&quad([f32::NAN; 8]), "", far);
    let thin = "'boxes', box 0 of image 0: it has 0 × 3 pixels, but must have 1 to 32768 on a side";
    check(&quad([0.0, 0.0, 0.5, 0.0, 0.5, 3.0, 0.0, 3.0]), "", thin);
    check(&of_strings(&[1, 4], ["a"; 4]), "", "'boxes' must hold numbers, but it is BYTES");
    let image = images(1, 4, 4);
    let (boxes, counts) = (of_floats(&[1, 4], vec![0.0; 4]), of_numbers::<i64>(Datatype::Int64, &[1], vec![2]));
    let inputs = [("image", &image), ("boxes", &boxes), ("counts", &counts)];
    let want = "'counts' must have a number from 0 to 1 for each of 1 images, but its shape is [1]";
    assert_eq!(fault("crop", &inputs, &["crops"], "\"size\": [2, 2]"), want);
    let error =
        built("crop", &["image", "boxes"], &["crops"], r#""size": [2], "datatype": "UINT8", "mean": [0, 0, 0]"#);
    assert!(error.err().unwrap().contains("\"mean\": has no meaning for the datatype UINT8"));
}

#[test]
fn many_and_large_crops_have_bounds() {
    let image = images(1, 4, 4);
    let large = [0.0, 0.0, 20_000.0, 0.0, 20_000.0, 20_000.0, 0.0, 20_000.0];
    let boxes = of_floats(&[1, 4, 2], large.to_vec());
    let error = fault("crop", &[("image", &image), ("boxes", &boxes)], &["crops"], "\"size\": [2, 2]");
    assert_eq!(error, "'boxes' has boxes with more than 134217728 pixels together");
    let boxes = of_floats(&[100, 4], [0.0, 0.0, 4.0, 4.0].repeat(100));
    let error = fault("crop", &[("image", &image), ("boxes", &boxes)], &["crops"], "\"size\": [1000, 1000]");
    let want = "'boxes' has 100 boxes, whose crops of 1000 × 1000 pixels make more than the 1073741824 bytes of output \
                that are allowed";
    assert_eq!(error, want);
}
