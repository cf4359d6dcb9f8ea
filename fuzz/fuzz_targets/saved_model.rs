#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    deuteron::model::tensorflow::fuzz::exercise(file);
});
