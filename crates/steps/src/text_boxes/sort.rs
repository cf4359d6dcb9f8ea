//! The order of the boxes of lines of text: from top to bottom, then from left to right.

use std::cmp::Ordering;

use crate::text_boxes::TextBox;

/// A rule for the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxOrder {
    /// That of the contours.
    Contours,
    /// rapidocr's `sorted_boxes`.
    Lines,
    /// PaddleOCR's `sorted_boxes`.
    Neighbours,
}

impl BoxOrder {
    /// The rule of this name in a `steps.json`.
    pub fn of(name: &str) -> Self {
        match name {
            "none" => Self::Contours,
            "rapidocr" => Self::Lines,
            _ => Self::Neighbours,
        }
    }

    /// Orders boxes.
    pub fn apply(self, boxes: &mut [TextBox]) {
        match self {
            Self::Contours => {}
            Self::Lines => lines(boxes),
            Self::Neighbours => neighbours(boxes),
        }
    }
}

/// By rows; where the next one is less than [`LINE_HEIGHT`] below, both are of one line, whose boxes are ordered by columns.
fn lines(boxes: &mut [TextBox]) {
    boxes.sort_by(|left, right| compared(row(left), row(right)));
    for line in boxes.chunk_by_mut(|left, right| row(right) - row(left) < LINE_HEIGHT) {
        line.sort_by(|left, right| compared(column(left), column(right)));
    }
}

/// By rows and columns; then each box moves forward past those that are to its right and differ by less than [`LINE_HEIGHT`].
fn neighbours(boxes: &mut [TextBox]) {
    boxes.sort_by(|left, right| compared(row(left), row(right)).then(compared(column(left), column(right))));
    for last in 1..boxes.len() {
        for place in (1..=last).rev() {
            let Some([left, right]) = boxes.get_mut(place - 1..=place) else { break };
            if (row(right) - row(left)).abs() >= LINE_HEIGHT || column(right) >= column(left) {
                break;
            }
            std::mem::swap(left, right);
        }
    }
}

fn row(text_box: &TextBox) -> f32 {
    let [[_, y], ..] = text_box.corners;
    y
}

fn column(text_box: &TextBox) -> f32 {
    let [[x, _], ..] = text_box.corners;
    x
}

fn compared(left: f32, right: f32) -> Ordering {
    left.partial_cmp(&right).unwrap_or(Ordering::Equal)
}

/// Rows by which the boxes of one line differ at most.
const LINE_HEIGHT: f32 = 10.0;
