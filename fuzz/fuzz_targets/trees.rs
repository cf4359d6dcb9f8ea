#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    deuteron::engines::trees::exercise(file);
});
