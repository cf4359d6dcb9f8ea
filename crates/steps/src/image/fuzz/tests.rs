//! The seeds of the decoders' fuzz targets and files near them.

use super::*;

/// The last bytes of an image may be padding, or the mark of its end.
const SPARE: usize = 15;

/// Replays the seeds of a folder. A file without its last bytes must be refused, if these are more than `spare`.
pub(crate) fn replay(folder: &str, exercise: fn(&[u8]) -> bool, spare: usize) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 3, "the corpus is there");
    for seed in seeds {
        let whole = std::fs::read(&seed).unwrap();
        assert!(exercise(&whole), "{}", seed.display());
        for at in 0..whole.len() {
            let may_pass = whole.len() - at <= spare;
            assert!(!exercise(&whole[..at]) || may_pass, "{} without its end, from {at}", seed.display());
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
    replay("fuzz/corpus/image_jpeg", exercise_jpeg, SPARE);
}

#[test]
fn png_seeds_and_files_near_them_pass() {
    replay("fuzz/corpus/image_png", exercise_png, SPARE);
}

#[test]
fn webp_seeds_and_files_near_them_pass() {
    replay("fuzz/corpus/image_webp", exercise_webp, SPARE);
}
