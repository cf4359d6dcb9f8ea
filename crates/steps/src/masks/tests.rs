//! Faults of `masks`; its results are held to numpy in `tests/exact`.

use crate::limits::MASK_COEFFICIENTS_MAX;
use crate::tensors::{of_floats, of_numbers};
use crate::trial::{built, fault};
use base::tensor::Datatype;

#[test]
fn tensors_that_do_not_fit_are_named() {
    let check = |shapes: [&[usize]; 3], members: &str, want: &str| {
        let tensors = shapes.map(|shape| of_floats(shape, vec![0.0; shape.iter().product()]));
        let sizes = of_numbers::<i64>(Datatype::Int64, &[2, 2], vec![4, 4, 4, 5]);
        let mut inputs = vec![("prototypes", &tensors[0]), ("coefficients", &tensors[1]), ("boxes", &tensors[2])];
        if members.contains("original") {
            inputs.push(("original_size", &sizes));
        }
        let error = fault("masks", &inputs, &["masks"], members);
        assert!(error.contains(want), "{error}");
    };
    let small = r#""input_size": [8, 8]"#;
    check([&[2, 4, 4], &[3, 1], &[3, 4]], small, "but they are [2, 4, 4], [3, 1] and [3, 4]");
    check([&[2, 4, 4], &[3, 2], &[2, 4]], small, "but they are [2, 4, 4], [3, 2] and [2, 4]");
    let many = MASK_COEFFICIENTS_MAX + 1;
    check([&[many, 1, 1], &[1, many], &[1, 4]], small, "1 to 1024 prototypes");
    check([&[1, 1, 1], &[20_000, 1], &[20_000, 4]], r#""input_size": [640, 640]"#, "more than the 1073741824 bytes");
    let products = "at most 8589934592 are allowed";
    check(
        [&[1000, 100, 100], &[1000, 1000], &[1000, 4]],
        r#""input_size": [8, 8], "resolution": "prototype""#,
        products,
    );
    let several = "'original_size' has several sizes: send one image at a time";
    check([&[2, 1, 4, 4], &[2, 1, 1], &[2, 1, 4]], r#""resolution": "original""#, several);
}

#[test]
fn parameters_that_contradict_each_other_are_named() {
    let check = |members: &str, want: &str| {
        let error = built("masks", &["prototypes", "coefficients", "boxes"], &["masks"], members).err().unwrap();
        assert_eq!(error, format!("step 1: line 1: {want}"));
    };
    check("", "\"input_size\": must be the height and width of the network's input");
    check(r#""resolution": "original""#, "\"inputs\": the resolution \"original\" needs \"original_size\"");
    let meaning = "\"input_size\": has no meaning for the resolution \"original\"";
    check(r#""resolution": "original", "input_size": [8, 8]"#, meaning);
}
