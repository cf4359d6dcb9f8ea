//! Our HTTP/2 against the `h2` crate's client, over connections that seeds decide and the corpus of the fuzz target.

#[path = "http2/h2_peer.rs"]
mod h2_peer;

use std::path::Path;

/// SplitMix64.
fn mix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[test]
fn every_call_of_another_implementation_gets_its_own_answer() {
    for round in 0..3_000_u64 {
        let mut seed = round;
        let size = 20 + mix(&mut seed) as usize % 400;
        let input: Vec<u8> = (0..size).map(|_| mix(&mut seed) as u8).collect();
        let outcome = std::panic::catch_unwind(|| h2_peer::exchange(&input));
        assert!(outcome.is_ok(), "seed {round}");
    }
}

#[test]
fn the_corpus_of_the_fuzz_target_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/http2_peer");
    for entry in std::fs::read_dir(folder).unwrap() {
        h2_peer::exchange(&std::fs::read(entry.unwrap().path()).unwrap());
    }
}
