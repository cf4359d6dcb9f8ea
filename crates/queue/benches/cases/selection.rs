//! The best elements of a row, beside a sort of the whole row.

use std::hint::black_box;

use base::tensor::topk;

use super::{Random, Work};

fn scores(count: usize) -> Vec<f32> {
    let mut random = Random(5);
    (0..count).map(|_| random.float()).collect()
}

fn best(size: usize, count: usize) -> (Work, usize) {
    let scores = scores(size);
    let work = move || assert_eq!(black_box(topk::best(black_box(&scores), count)).len(), count);
    (Box::new(work), size * size_of::<f32>())
}

pub fn top_5() -> (Work, usize) {
    best(1_000, 5)
}

pub fn top_100_of_a_million() -> (Work, usize) {
    best(1_000_000, 100)
}

/// The whole row, as a list of values and indices: the least work of a sort.
pub fn sorted() -> (Work, usize) {
    let scores = scores(1_000);
    let work = move || {
        let mut all: Vec<(f32, u32)> = black_box(&scores).iter().copied().zip(0..).collect();
        all.sort_unstable_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
        all.truncate(5);
        assert_eq!(black_box(all).len(), 5);
    };
    (Box::new(work), 1_000 * size_of::<f32>())
}
