#![no_main]

#[path = "../../tests/it/http2/h2_peer.rs"]
mod h2_peer;

libfuzzer_sys::fuzz_target!(|input: &[u8]| h2_peer::exchange(input));
