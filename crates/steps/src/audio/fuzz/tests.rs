//! The seeds of the decoders' fuzz targets and files near them.

use super::*;
use crate::image::fuzz::tests::replay;

/// A file that is cut off keeps the samples that it has.
#[test]
fn wav_seeds_and_files_near_them_pass() {
    replay("fuzz/corpus/audio_wav", exercise_wav, usize::MAX);
}

#[test]
fn flac_seeds_and_files_near_them_pass() {
    replay("fuzz/corpus/audio_flac", exercise_flac, 0);
}

/// Checksums refuse nearly all files near a seed before their samples are read: here they are right.
#[test]
fn flac_frames_with_right_checksums_pass() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/audio_flac");
    let (mut accepted, mut refused) = (0, 0);
    for seed in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let whole = std::fs::read(&seed).unwrap();
        // The metadata of the seeds ends with its first block.
        let start = 42;
        for at in start + 4..whole.len() {
            for byte in [0, 1, 0x7F, 0xFF, whole[at] ^ 4, whole[at] ^ 0x80] {
                let mut mutant = whole.clone();
                mutant[at] = byte;
                if exercise_unsummed(&mutant) {
                    accepted += 1;
                } else {
                    refused += 1;
                }
            }
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}
