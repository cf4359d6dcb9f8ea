#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| deuteron::process::python::fuzz::check_any_messages(input));
