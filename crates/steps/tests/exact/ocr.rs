//! Text in pictures, against the Python code that PaddleOCR and rapidocr share, on OpenCV, pyclipper and shapely.

use crate::cases::compare_in;
use crate::is_whole;

#[test]
fn boxes_of_text_are_paddleocrs() {
    compare("text_boxes.py");
}

#[test]
fn inputs_of_detectors_are_paddleocrs() {
    compare("ocr_input.py");
}

#[test]
fn crops_are_opencvs() {
    compare("crop.py");
}

#[test]
fn texts_are_rapidocrs() {
    compare("ocr_text.py");
}

#[test]
fn masks_are_those_of_public_code() {
    crate::cases::compare("masks.py");
}

/// The whole form has rapidocr, to which the script holds its own code.
fn compare(script: &str) {
    if is_whole() {
        compare_in("steps-rapidocr", "requirements-rapidocr.txt", script);
    } else {
        compare_in("steps-ocr", "requirements-ocr.txt", script);
    }
}
