#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| deuteron::protocol::keys::fuzz::check_any_file(input));
