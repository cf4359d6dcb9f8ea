#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| deuteron::connection::http2::fuzz_connection(input));
