//! Boxes, scores and classes in the outputs of detectors.

use std::ops::Range;

use crate::vector::{argmax, has_nan, maximum};

/// A box with its score, as floats of 32 bits throughout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// The coordinates, in the format of the place.
    pub corners: [f32; 4],
    /// The score.
    pub score: f32,
    /// The class.
    pub class: u32,
    /// The place of the box in the tensor.
    pub source: u32,
}

/// The order of the numbers of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxLayout {
    /// Four tensors: count, boxes, scores, classes.
    Apart,
    /// Rows of four coordinates, score and class.
    EndToEnd,
    /// Rows of four coordinates, objectness and a score for each class.
    Yolov5,
    /// Four rows of coordinates and a row for each class, each with all boxes.
    Yolov8,
    /// Rows of four coordinates and a score for each class.
    Yolov8Rows,
}

impl BoxLayout {
    /// Numbers of a box before the scores of classes.
    pub const fn scores_start(self) -> usize {
        match self {
            Self::Yolov5 => 5,
            Self::EndToEnd => 6,
            Self::Apart | Self::Yolov8 | Self::Yolov8Rows => 4,
        }
    }
}

/// The score of a box that has an objectness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreForm {
    /// That of the class.
    Class,
    /// The objectness.
    Objectness,
    /// Their product.
    Product,
}

/// Which boxes are candidates.
#[derive(Debug)]
pub struct Filter {
    /// The bound of scores.
    pub threshold: f32,
    /// A score that equals the bound is enough.
    pub keeps_equal: bool,
    /// The classes; all if empty.
    pub classes: Vec<i64>,
    /// A box is a candidate with each class above the bound, not with the best alone.
    pub is_multi_label: bool,
    /// The score of a box that has an objectness.
    pub score: ScoreForm,
}

impl Filter {
    #[inline(always)]
    fn is_above(&self, score: f32) -> bool {
        if self.keeps_equal { score >= self.threshold } else { score > self.threshold }
    }

    /// Appends a box if it is a candidate.
    pub fn push(&self, detection: Detection, found: &mut Vec<Detection>) {
        let class = i64::from(detection.class);
        if self.is_above(detection.score) && (self.classes.is_empty() || self.classes.contains(&class)) {
            found.push(detection);
        }
    }

    /// Appends the candidates with these scores of classes.
    fn push_classes(&self, corners: [f32; 4], source: u32, scores: &[f32], found: &mut Vec<Detection>) {
        if has_nan(scores) {
            // The maximum of a row with a NaN is NaN, which is not above any bound.
        } else if self.is_multi_label {
            for (class, score) in (0..).zip(scores) {
                self.push(Detection { corners, score: *score, class, source }, found);
            }
        } else {
            let best = argmax(scores);
            let score = scores.get(best).copied().unwrap_or(f32::NAN);
            self.push(Detection { corners, score, class: index_of(best), source }, found);
        }
    }
}

fn index_of(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Appends the candidates of an image in the layout [`Layout::Yolov8`]. The best score of each box is computed
/// along the rows of classes, which are contiguous; only boxes above the bound are looked at one by one.
pub fn rows_of_classes(image: &[f32], boxes: usize, classes: usize, filter: &Filter, found: &mut Vec<Detection>) {
    let Some((coordinates, scores)) = image.split_at_checked(boxes.saturating_mul(4)) else { return };
    let scores = scores.get(..boxes.saturating_mul(classes)).unwrap_or_default();
    let (mut space, mut column) = ([0.0; BLOCK], Vec::with_capacity(classes));
    for start in (0..boxes).step_by(BLOCK) {
        let end = boxes.min(start.saturating_add(BLOCK));
        let best = space.get_mut(..end - start).unwrap_or_default();
        best_of_block(scores, boxes, start..end, best);
        for (chunk, first) in best.chunks(CHUNK).zip((start..).step_by(CHUNK)) {
            if !chunk.iter().fold(false, |any, score| any | filter.is_above(*score)) {
                continue;
            }
            for (at, _) in (first..).zip(chunk).filter(|(_, score)| filter.is_above(**score)) {
                let mut corners = [0.0; 4];
                for (corner, row) in corners.iter_mut().zip(coordinates.chunks_exact(boxes)) {
                    *corner = row.get(at).copied().unwrap_or(f32::NAN);
                }
                column.clear();
                column.extend(scores.chunks_exact(boxes).filter_map(|row| row.get(at)));
                filter.push_classes(corners, index_of(at), &column, found);
            }
        }
    }
}

/// Writes the best score of each box of a range, NaN aside: a box with NaN is dropped later, or is not above the
/// bound here.
fn best_of_block(scores: &[f32], boxes: usize, range: Range<usize>, best: &mut [f32]) {
    best.fill(f32::NEG_INFINITY);
    let larger = |left: f32, right: f32| if right > left { right } else { left };
    // Four rows in one pass: the best are loaded and stored a quarter of the times.
    let mut fours = scores.chunks_exact(boxes.saturating_mul(4));
    for four in &mut fours {
        let mut rows = four.chunks_exact(boxes).map(|row| row.get(range.clone()).unwrap_or_default());
        let mut row = || rows.next().unwrap_or_default();
        for ((((best, a), b), c), d) in best.iter_mut().zip(row()).zip(row()).zip(row()).zip(row()) {
            *best = larger(*best, larger(larger(*a, *b), larger(*c, *d)));
        }
    }
    for row in fours.remainder().chunks_exact(boxes) {
        for (best, score) in best.iter_mut().zip(row.get(range.clone()).unwrap_or_default()) {
            *best = larger(*best, *score);
        }
    }
}

/// Appends the candidates of an image with a row of `width` numbers for each box.
pub fn rows_of_boxes(
    image: &[f32],
    layout: BoxLayout,
    [width, classes]: [usize; 2],
    filter: &Filter,
    found: &mut Vec<Detection>,
) {
    let mut products = Vec::with_capacity(classes);
    for (source, row) in (0..).zip(image.chunks_exact(width)) {
        let Some((corners, rest)) = row.split_first_chunk::<4>() else { return };
        match (layout, rest) {
            (BoxLayout::EndToEnd, [score, class, ..]) => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "classes count from 0")]
                filter.push(Detection { corners: *corners, score: *score, class: *class as u32, source }, found);
            }
            (BoxLayout::Yolov5, [objectness, scores @ ..]) => {
                let scores = scores.get(..classes).unwrap_or_default();
                if filter.score == ScoreForm::Class {
                    filter.push_classes(*corners, source, scores, found);
                } else if filter.is_above(*objectness) {
                    if filter.score == ScoreForm::Objectness {
                        let class = index_of(argmax(scores));
                        filter.push(Detection { corners: *corners, score: *objectness, class, source }, found);
                        continue;
                    }
                    products.clear();
                    products.extend(scores.iter().map(|score| score * objectness));
                    filter.push_classes(*corners, source, &products, found);
                }
            }
            (_, scores) => {
                let scores = scores.get(..classes).unwrap_or_default();
                if filter.is_above(maximum(scores)) {
                    filter.push_classes(*corners, source, scores, found);
                }
            }
        }
    }
}

/// Boxes whose best scores are computed together: they stay in the first-level cache.
const BLOCK: usize = 2048;
/// Boxes that are compared with the bound at once.
const CHUNK: usize = 16;
