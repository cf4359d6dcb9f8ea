//! Detections, against public code and OpenCV.

#[test]
fn detections_are_those_of_public_code() {
    crate::cases::compare("detect.py");
}
