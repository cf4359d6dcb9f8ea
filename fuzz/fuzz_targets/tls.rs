#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| deuteron::connection::tls::fuzz_connection(input));
