#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| deuteron::model::fuzz::check_any_listing(text));
