#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| deuteron::backend::python::fuzz::check_any_messages(input));
