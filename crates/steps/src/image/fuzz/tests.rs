//! The seeds of the decoders' fuzz targets and files near them.

use super::*;

fn replay(folder: &str, exercise: fn(&[u8]) -> bool) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 3, "the corpus is there");
    for seed in seeds {
        let whole = std::fs::read(&seed).unwrap();
        assert!(exercise(&whole), "{}", seed.display());
        for at in 0..whole.len() {
            assert!(!exercise(&whole[..at]) || at + 16 > whole.len(), "{} without its end, from {at}", seed.display());
            for byte in [0, 1, 0x7F, 0xFF, whole[at] ^ 4] {
                let mut mutant = whole.clone();
                mutant[at] = byte;
                exercise(&mutant);
            }
            let mut mutant = whole.clone();
            mutant.remove(at);
            exercise(&mutant);
        }
    }
}

#[test]
fn jpeg_seeds_and_files_near_them_pass() {
    replay("fuzz/corpus/image_jpeg", exercise_jpeg);
}

#[test]
fn png_seeds_and_files_near_them_pass() {
    replay("fuzz/corpus/image_png", exercise_png);
}

#[test]
fn webp_seeds_and_files_near_them_pass() {
    replay("fuzz/corpus/image_webp", exercise_webp);
}
