#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    deuteron::wire::json::exercise(text);
});
