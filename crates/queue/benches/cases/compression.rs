//! Compression: a tensor of pixels (FP32 of 256 values) through each coding, in the steps that a shard does, and one copy
//! of it, which is what a plain body costs. Throughput is of the plain bytes.

use std::hint::black_box;

use base::limits::INFLATE_OUTPUT_SLICE;
use bytes::Bytes;
use wire::compression::Coding;
use wire::compression::deflate::{DeflateLevel, Deflation};
use wire::compression::inflate::Inflation;

use super::{Random, Work};

pub const DEFLATE: u8 = 0;
pub const GZIP: u8 = 1;
pub const ZSTD: u8 = 2;
pub const LOW: u8 = 0;
pub const MEDIUM: u8 = 1;
pub const HIGH: u8 = 2;
pub const SMALL: usize = 4 * 1024;
pub const LARGE: usize = 1024 * 1024;

/// Inflates a body into one buffer.
pub fn inflate<const CODING: u8, const SIZE: usize>() -> (Work, usize) {
    let coding = coding(CODING);
    let body = Bytes::from(deflated(coding, DeflateLevel::Medium, &tensor(SIZE)));
    let mut space = vec![0; SIZE + 1];
    let work = move || {
        let mut inflation = Inflation::new(coding, body.clone()).expect("a body");
        let mut filled = 0;
        loop {
            let end = space.len().min(filled + INFLATE_OUTPUT_SLICE);
            let room = space.get_mut(filled..end).unwrap_or_default();
            let (written, is_done) = inflation.step(room).expect("it was compressed");
            filled += written;
            if is_done {
                break;
            }
        }
        assert_eq!(black_box(filled), SIZE);
    };
    (Box::new(work), SIZE)
}

/// Compresses an answer. Prints the compressed size once.
pub fn deflate<const CODING: u8, const LEVEL: u8, const SIZE: usize>() -> (Work, usize) {
    let coding = coding(CODING);
    let level = match LEVEL {
        LOW => DeflateLevel::Low,
        MEDIUM => DeflateLevel::Medium,
        _ => DeflateLevel::High,
    };
    let body = tensor(SIZE);
    let size = deflated(coding, level, &body).len();
    println!("{} {level:?}: {SIZE} bytes become {size}", coding.name());
    let work = move || assert_eq!(black_box(deflated(coding, level, &body)).len(), size);
    (Box::new(work), SIZE)
}

/// Copies a body.
pub fn copy<const SIZE: usize>() -> (Work, usize) {
    let body = tensor(SIZE);
    let mut space = vec![0; SIZE];
    let work = move || {
        space.copy_from_slice(black_box(&body));
        assert_eq!(black_box(&space).len(), SIZE);
    };
    (Box::new(work), SIZE)
}

const fn coding(number: u8) -> Coding {
    match number {
        DEFLATE => Coding::Deflate,
        GZIP => Coding::Gzip,
        _ => Coding::Zstd,
    }
}

fn deflated(coding: Coding, level: DeflateLevel, body: &Bytes) -> Vec<u8> {
    let mut deflation = Deflation::new(coding, level, vec![body.clone()]).expect("an encoder");
    while !deflation.step().expect("any bytes") {}
    deflation.into_parts().concat()
}

fn tensor(size: usize) -> Bytes {
    let mut random = Random(11);
    (0..size / 4).flat_map(|_| ((random.next() % 256) as f32 / 255.0).to_le_bytes()).collect()
}
