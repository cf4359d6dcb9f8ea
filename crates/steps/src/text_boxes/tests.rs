//! Faults and edges of `text_boxes`; its results are held to public code in `tests/exact`.

use base::tensor::{Datatype, Tensor};

use crate::limits::{TEXT_BOXES_MAX, TEXT_MAP_PIXELS_MAX};
use crate::tensors::{floats, integers, of_floats, of_numbers, of_strings};
use crate::trial::{built, fault, run};

/// A map with a block of text from these columns to those, of ten rows.
fn map(blocks: &[[usize; 2]]) -> Tensor {
    let value = |row: usize, column: usize| {
        let is_text = (10..20).contains(&row) && blocks.iter().any(|[from, to]| (*from..*to).contains(&column));
        if is_text { 0.9 } else { 0.0 }
    };
    let values = (0..32).flat_map(|row| (0..64).map(move |column| value(row, column)));
    of_floats(&[1, 32, 64], values.collect())
}

#[test]
fn a_block_of_text_grows_and_is_scaled_to_the_image() {
    let size = of_numbers::<i64>(Datatype::Int64, &[2], vec![64, 64]);
    let inputs = [("map", &map(&[[8, 29], [40, 60]])), ("original_size", &size)];
    let got = run("text_boxes", &inputs, &["boxes", "scores", "counts"], "").unwrap();
    assert_eq!((&got[0].shape[..], &got[2].shape[..]), (&[2, 4, 2][..], &[][..]));
    assert_eq!(integers("", &got[2]).unwrap()[..], [2]);
    let corners = floats("", &got[0]).unwrap();
    assert_eq!(corners[..8], [3.0, 10.0, 33.0, 10.0, 33.0, 48.0, 3.0, 48.0]);
    assert_eq!(floats("", &got[1]).unwrap()[..], [0.9, 0.9]);
}

#[test]
fn maps_without_text_have_no_boxes() {
    let two = of_floats(&[2, 1, 4, 4], vec![0.0; 32]);
    let got = run("text_boxes", &[("map", &two)], &["boxes", "counts"], "").unwrap();
    assert_eq!([&got[0].shape[..], &got[1].shape[..]], [&[2, 0, 4, 2][..], &[2]]);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let check = |tensor: &Tensor, want: &str| {
        assert_eq!(fault("text_boxes", &[("map", tensor)], &["boxes"], ""), want);
    };
    let shape = |shape: &str| {
        format!(
            "'map' must have a shape that ends with [1, height, width], with 1 to {TEXT_MAP_PIXELS_MAX} pixels, at most \
             32768 on a side and 4096 images, but its shape is {shape}"
        )
    };
    check(&of_floats(&[2, 3, 4], vec![0.0; 24]), &shape("[2, 3, 4]"));
    check(&of_floats(&[1, 0, 4], vec![]), &shape("[1, 0, 4]"));
    let side = 1 << 12;
    check(&of_floats(&[1, side + 1, side], vec![0.0; (side + 1) * side]), &shape("[1, 4097, 4096]"));
    check(&of_strings(&[1, 1, 1], ["a"]), "'map' must hold numbers, but it is BYTES");
    let size = of_numbers::<i64>(Datatype::Int64, &[1, 2], vec![1, 0]);
    let error = fault("text_boxes", &[("map", &map(&[])), ("original_size", &size)], &["boxes"], "");
    assert_eq!(error, "'original_size' must have sizes from 1 to 16777216, but one is 0");
    let error = built("text_boxes", &["map"], &["boxes"], "\"max_candidates\": 10001").err().unwrap();
    assert!(error.contains(&format!("must be an integer from 1 to {TEXT_BOXES_MAX}")), "{error}");
}

#[test]
fn boxes_in_boxes_have_a_bound() {
    // Rings of one pixel, with one between two of them.
    let side = 1400;
    let ring = |row: usize, column: usize| row.min(column).min(side - 1 - row).min(side - 1 - column);
    let values = (0..side).flat_map(|row| (0..side).map(move |column| f32::from(ring(row, column).is_multiple_of(2))));
    let map = of_floats(&[1, side, side], values.collect());
    let error = fault("text_boxes", &[("map", &map)], &["boxes"], "\"box_threshold\": 0");
    assert_eq!(error, "'map' has so large boxes that their scores would need more than 268435456 pixels");
}
