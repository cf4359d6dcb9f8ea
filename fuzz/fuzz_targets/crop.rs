#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    deuteron::steps::text_boxes::fuzz::exercise_crop(bytes);
});
