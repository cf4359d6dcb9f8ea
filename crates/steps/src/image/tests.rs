//! The step as a whole, in a list.

use super::*;
use crate::list::StepList;
use crate::tensors::{of_strings, shape_of};

fn read(parameters: &str, outputs: &str) -> Result<StepList, Error> {
    let text = format!(
        "{{\"steps\": [{{\"step\": \"image\", \"input\": \"file\",\n\"outputs\": {{{outputs}}}{parameters}}}]}}"
    );
    StepList::read(&text, &|_, _| Err("no such file".to_owned()))
}

fn run(parameters: &str, input: &Tensor) -> Result<Tensor, Error> {
    let list = read(parameters, "\"pixels\": \"x\"")?;
    let mut got = list.run(|name| (name == "file").then(|| input.clone()), &["x"])?;
    Ok(got.remove(0).unwrap())
}

fn pixels(shape: &[usize], bytes: &[u8]) -> Tensor {
    Tensor { datatype: Datatype::Uint8, shape: shape_of(shape), contents: bytes.to_vec().into() }
}

#[test]
fn decoded_pixels_become_numbers() {
    let input = pixels(&[1, 2, 3], &[0, 51, 255, 102, 153, 204]);
    let got = run(r#", "size": [1, 2]"#, &input).unwrap();
    assert_eq!(got.shape[..], [1, 3, 1, 2]);
    let want = [0.0, 0.4, 0.2, 0.6, 1.0, 0.8_f32];
    assert_eq!(got.contents[..], want.map(f32::to_le_bytes).concat());
    let got = run(r#", "resize": "none", "order": "BGR", "datatype": "UINT8", "layout": "NHWC""#, &input).unwrap();
    assert_eq!((&got.shape[..], &got.contents[..]), (&[1, 1, 2, 3][..], &[255, 51, 0, 204, 153, 102][..]));
}

#[test]
fn colours_become_one_channel_of_grey() {
    let input = pixels(&[1, 2, 3], &[200, 100, 51, 0, 0, 255]);
    let grey = |parameters: &str| {
        let got =
            run(&format!(r#", "resize": "none", "datatype": "UINT8", "order": "GREY"{parameters}"#), &input).unwrap();
        (got.shape.to_vec(), got.contents.to_vec())
    };
    assert_eq!(grey(""), (vec![1, 1, 1, 2], vec![124, 29]));
    assert_eq!(grey(r#", "layout": "NHWC", "library": "opencv""#), (vec![1, 1, 2, 1], vec![124, 29]));
    assert_eq!(grey(r#", "input_order": "BGR""#).1, [97, 76]);
    let got = run(r#", "size": [2], "order": "GREY", "mean": [0.5], "std": [0.25]"#, &input).unwrap();
    assert_eq!(got.shape[..], [1, 1, 2, 2]);
    let number = |value: f32| ((value / 255.0 - 0.5) / 0.25).to_le_bytes();
    assert_eq!(got.contents[..], [124.0, 29.0, 124.0, 29.0].map(number).concat());
}

#[test]
fn a_letterbox_tells_its_places() {
    let list = read(
        r#", "resize": "letterbox", "size": [8], "library": "opencv", "datatype": "UINT8""#,
        r#""pixels": "x", "ratio": "r", "pad": "p", "original_size": "s""#,
    );
    let input = pixels(&[2, 2, 4, 3], &[7; 48]);
    let got = list.unwrap().run(|_| Some(input.clone()), &["x", "r", "p", "s"]).unwrap();
    let [x, r, p, s] = &got[..] else { panic!("four tensors") };
    let (x, r, p, s) = (x.as_ref().unwrap(), r.as_ref().unwrap(), p.as_ref().unwrap(), s.as_ref().unwrap());
    assert_eq!(x.shape[..], [2, 3, 8, 8]);
    assert_eq!(x.contents.iter().filter(|value| **value == 7).count(), 2 * 3 * 8 * 4);
    assert_eq!(r.contents[..], [2.0_f32, 2.0].map(f32::to_le_bytes).concat());
    assert_eq!(p.contents[..], [0.0_f32, 2.0, 0.0, 2.0].map(f32::to_le_bytes).concat());
    assert_eq!(s.contents[..], [2_i64, 4, 2, 4].map(i64::to_le_bytes).concat());
}

#[test]
fn faults_of_requests_are_named() {
    let check = |input: &Tensor, want: &str| {
        let error = run(r#", "size": [2]"#, input).unwrap_err();
        assert_eq!(error.text(), format!("step 1 (image): {want}"));
    };
    check(&of_floats(&[1], vec![0.0]), "'image' must hold BYTES or UINT8, but it is FP32");
    check(
        &of_strings(&[1, 2], ["", ""]),
        "'image' must have the shape [rows] or [rows, 1] for BYTES, but its shape is [1, 2]",
    );
    check(&of_strings(&[3], ["", ""]), "'image' has 2 elements, but its shape is [3]");
    check(&of_strings(&[1], ["?"]), "'image', row 0: the string is neither a JPEG, PNG or WebP file nor one in base64");
    check(&of_strings(&[1], ["Zm9v"]), "'image', row 0: the file is neither JPEG nor PNG nor WebP");
    check(
        &pixels(&[1, 1, 4], &[0; 4]),
        "'image' must have the shape [bytes], [rows, bytes], [height, width, 3] or [rows, height, width, 3] for \
         UINT8, but its shape is [1, 1, 4]",
    );
    check(&pixels(&[0, 1, 3], &[]), "'image': the image has 1 × 0 pixels");
    check(&pixels(&[2], &[0; 3]), "'image' has contents of another size than its shape [2]");
    check(&pixels(&[2], &[0xFF, 0xD8]), "'image', row 0: the file is neither JPEG nor PNG nor WebP");
    check(&pixels(&[3], &[0xFF, 0xD8, 0xFF]), "'image', row 0: JPEG: the file is truncated");
    let error = run(r#", "size": [32768]"#, &pixels(&[1, 1, 3], &[0; 3])).unwrap_err();
    assert!(error.text().contains("an image of 1 × 1 pixels would be resized to 32768 × 32768"), "{}", error.text());
    let error = run(r#", "size": [8192]"#, &pixels(&[2, 1, 1, 3], &[0; 6])).unwrap_err();
    let want = "'image' has 2 rows, which make more than the 1073741824 bytes of output that are allowed";
    assert!(error.text().contains(want), "{}", error.text());
}

#[test]
fn faults_of_parameters_are_named_with_their_line() {
    let check = |parameters: &str, want: &str| {
        let error = read(&format!(",\n{parameters}"), "\"pixels\": \"x\"").err().unwrap();
        assert_eq!(error.text(), format!("step 1: {want}"));
    };
    check(r#""order": "BGR""#, "line 1: \"size\": must be given, unless \"resize\" is \"none\"");
    check(r#""size": []"#, "line 3: \"size\": must have one or two numbers");
    check(r#""size": [2], "std": [1, 1, 0]"#, "line 3: \"std\": must not be 0");
    check(r#""size": [2], "mean": [1]"#, "line 3: \"mean\": must have 3 numbers");
    let three = r#""size": [2], "order": "GREY", "mean": [0, 0, 0]"#;
    check(three, "line 3: \"mean\": must have 1 number");
    check(r#""size": [2], "grey": "convert""#, "line 3: \"grey\": needs \"order\": \"GREY\"");
    let decode = r#""size": [2], "order": "GREY", "grey": "decode""#;
    let preset = r#""preprocessor": "p.json", "order": "GREY""#;
    check(preset, "line 3: \"order\": \"GREY\" cannot be given with \"preprocessor\", which has three channels");
    check(decode, "line 3: \"grey\": \"decode\" needs \"library\": \"opencv\"");
    check(
        r#""size": [2, 3], "resize": "shortest""#,
        "line 3: \"size\": must be one number if \"resize\" is \"shortest\"",
    );
    check(r#""size": [2], "resize": "none""#, "line 3: \"size\": cannot be given if \"resize\" is \"none\"");
    check(
        r#""size": [2], "resize": "letterbox", "crop": [1]"#,
        "line 3: \"crop\": cannot be given if \"resize\" is \"letterbox\"",
    );
    check(
        r#""size": [2], "datatype": "UINT8", "scale": 1"#,
        "line 3: \"scale\": has no meaning for the datatype UINT8",
    );
    check(r#""preprocessor": "p.json""#, "line 3: \"preprocessor\": cannot read 'p.json': no such file");
    let linear = "line 3: \"filter\": must be one of \"nearest\", \"bilinear\", \"bicubic\", \"lanczos\", \
                  \"box\", \"hamming\" for this library";
    check(r#""size": [2], "filter": "linear""#, linear);
    let bicubic = "line 3: \"filter\": must be one of \"nearest\", \"linear\", \"cubic\", \"area\" for this library";
    check(r#""size": [2], "filter": "bicubic", "library": "opencv""#, bicubic);
    let error = read(r#", "size": [2]"#, r#""pixels": "x", "pad": "p""#).err().unwrap();
    assert_eq!(error.text(), "step 1: line 2: \"outputs\": \"pad\" is there only if \"resize\" is \"letterbox\"");
}

#[test]
fn rows_of_other_sizes_are_refused_without_a_size() {
    let grey = |width: u8| {
        let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0".to_vec();
        file.push(width);
        file
    };
    let error = run(r#", "resize": "none""#, &of_strings(&[1], [grey(1)])).unwrap_err();
    assert!(error.text().starts_with("step 1 (image): 'image', row 0: PNG: "), "{}", error.text());
}
