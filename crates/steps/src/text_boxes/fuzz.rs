//! The fuzz targets `text_boxes` and `crop`, and the tests over their seeds: any map has boxes within the image, or too large
//! ones; any boxes are cut out or refused. A panic is a finding.

use base::tensor::{Datatype, Tensor};

use crate::list::StepList;
use crate::tensors::{floats, integers, of_floats, of_numbers, shape_of};

/// Finds the boxes in a map: the first byte is its width, the second has bits of parameters, and each other is a value. Returns
/// true if there is a box.
pub fn exercise_map(bytes: &[u8]) -> bool {
    let Some(([width, flags], rest)) = bytes.split_first_chunk::<2>() else { return false };
    let width = usize::from(*width).max(1);
    let height = rest.len() / width;
    if height == 0 {
        return false;
    }
    let value = |byte: &u8| if *byte == 254 { f32::NAN } else { f32::from(*byte) / 255.0 };
    let map = of_floats(&[1, height, width], rest.iter().take(height * width).map(value).collect());
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let parameters = format!(
        r#""dilate": {}, "score_mode": "{}", "sort": "{}", "unclip_ratio": {}, "box_threshold": {}, "max_candidates": {}"#,
        flag(0),
        if flag(1) { "slow" } else { "fast" },
        if flag(2) { "rapidocr" } else { "paddleocr" },
        if flag(3) { 40.0 } else { 1.5 },
        if flag(4) { 0.0 } else { 0.6 },
        if flag(5) { 3 } else { 1000 },
    );
    let side = if flag(6) { 1 << 18 } else { 1 };
    let size = of_numbers(Datatype::Int64, &[2], vec![height as i64 * side, width as i64]);
    let text = format!(
        r#"{{"steps": [{{"step": "text_boxes", "inputs": {{"map": "map", "original_size": "size"}},
            "outputs": {{"boxes": "boxes", "counts": "counts"}}, {parameters}}}]}}"#
    );
    let Some([boxes, counts]) = results(&text, &[("map", map), ("size", size)], ["boxes", "counts"]) else {
        return false;
    };
    let corners = floats("boxes", &boxes).unwrap_or_default();
    let most = [width as f32 - 1.0, (height as i64 * side) as f32 - 1.0];
    for [x, y] in corners.as_chunks::<2>().0 {
        assert!((0.0..=most[0]).contains(x) && (0.0..=most[1]).contains(y), "boxes are within the image");
    }
    let count = integers("counts", &counts).unwrap_or_default().first().copied().unwrap_or(0);
    assert_eq!(corners.len() as i64, count * 8, "all boxes are counted");
    count > 0
}

/// Cuts boxes out of an image: the first byte is its width, the second the count of boxes, then four bytes each for their
/// coordinates, as bits of FP32, and the pixels. Returns true if all are cut out.
pub fn exercise_crop(bytes: &[u8]) -> bool {
    let Some(([width, count], rest)) = bytes.split_first_chunk::<2>() else { return false };
    let (width, count) = (usize::from(*width).max(1), usize::from(*count % 16));
    let Some((corners, pixels)) = rest.split_at_checked(count * 32) else { return false };
    let height = pixels.len() / (width * 3);
    if height == 0 || count == 0 {
        return false;
    }
    let corners: Vec<_> = corners.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    // Larger ones are left to the limits of the step: they would only make a run slow.
    if corners.iter().any(|side| side.abs() > 1000.0) {
        return false;
    }
    let image = Tensor {
        datatype: Datatype::Uint8,
        shape: shape_of(&[height, width, 3]),
        contents: pixels.get(..height * width * 3).unwrap_or_default().to_vec().into(),
    };
    let upright = of_floats(&[count * 2, 4], corners.clone());
    let quads = of_floats(&[count, 4, 2], corners);
    let text = r#"{"steps": [{"step": "crop", "inputs": {"image": "image", "boxes": "boxes"}, "size": [8, 8], "library": "opencv",
        "outputs": {"crops": "crops", "crop_size": "sizes"}, "resize": "widest", "max_width": 64}]}"#;
    results(text, &[("image", image.clone()), ("boxes", upright)], ["crops", "sizes"]);
    results(text, &[("image", image), ("boxes", quads)], ["crops", "sizes"]).is_some()
}

/// Runs a list; `None` if it refuses the tensors.
fn results<const N: usize>(text: &str, inputs: &[(&str, Tensor)], outputs: [&str; N]) -> Option<[Tensor; N]> {
    let list = StepList::read(text, &|_, _| Err(String::new())).expect("the list is right");
    let input = |name: &str| inputs.iter().find(|(known, _)| *known == name).map(|(_, tensor)| tensor.clone());
    let tensors: Vec<_> = list.run(input, &outputs).ok()?.into_iter().flatten().collect();
    assert!(tensors.iter().all(Tensor::has_its_size), "a tensor has its size");
    tensors.try_into().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::image::fuzz::tests::replay;

    #[test]
    fn maps_and_those_near_them_pass() {
        replay("fuzz/corpus/text_boxes", exercise_map, usize::MAX);
    }

    #[test]
    fn boxes_and_those_near_them_pass() {
        replay("fuzz/corpus/crop", exercise_crop, usize::MAX);
    }
}
