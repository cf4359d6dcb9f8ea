//! Detections, against public code and OpenCV.

#[test]
fn detections_are_those_of_public_code() {
    crate::cases::compare("detect.py");
}

#[test]
fn boxes_of_grids_are_those_of_public_code() {
    crate::cases::compare("grid_boxes.py");
}
