#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| deuteron::model::config::check_any_text(text));
