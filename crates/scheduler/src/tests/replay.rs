//! Inputs with which `cargo test` tries the fuzz targets of this room.

/// The files of a corpus, and a fuzzer's first attempts: one byte changed.
pub fn corpus(folder: &str, check: fn(&[u8])) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 6, "the corpus is there");
    for seed in seeds {
        let input = std::fs::read(&seed).unwrap();
        check(&input);
        for at in 0..input.len() {
            for byte in [0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 100, 249, 255] {
                let mut mutant = input.clone();
                mutant[at] = byte;
                check(&mutant);
            }
        }
    }
}

/// `count` inputs from a generator of numbers (xorshift), more than a corpus has.
pub fn generated(count: usize, size: usize, check: fn(&[u8])) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..count {
        let bytes = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        });
        check(&bytes.take(size).collect::<Vec<_>>());
    }
}
