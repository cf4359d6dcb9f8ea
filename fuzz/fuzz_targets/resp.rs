#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| deuteron::wire::resp::fuzz::check_any_replies(input));
