#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| deuteron::protocol::rest::fuzz::exercise(bytes));
