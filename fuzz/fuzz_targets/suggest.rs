#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    deuteron::steps::suggest::fuzz::exercise(bytes);
});
