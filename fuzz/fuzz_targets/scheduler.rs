#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| deuteron::scheduler::fuzz::check_any_calls(input));
