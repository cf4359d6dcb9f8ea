#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| deuteron::wire::compression::fuzz::exercise(bytes));
