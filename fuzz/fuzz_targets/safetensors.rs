#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    deuteron::transformer::fuzz::exercise(input);
});
