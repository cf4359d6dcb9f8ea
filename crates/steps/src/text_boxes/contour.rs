//! Contours of a binary map, in the order and with the points of OpenCV's `findContours` with `RETR_LIST` and
//! `CHAIN_APPROX_SIMPLE`: outer borders and those of holes, the one that a scan meets last comes first.

use std::collections::VecDeque;

/// A pixel of a map, column and row.
pub type MapPoint = [u16; 2];

/// A binary map with a border of one empty cell on each side.
pub struct BinaryMap {
    /// Cells in a row, with the border.
    stride: usize,
    cells: Vec<u8>,
}

/// The kind of a contour.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ContourKind {
    Hole,
    Outer,
}

impl BinaryMap {
    /// The cells above a threshold of a map with `width` columns, each of which spreads to the right and down by one if the
    /// map is dilated.
    pub fn new(map: &[f32], width: usize, threshold: f32, is_dilated: bool) -> Self {
        let stride = width.saturating_add(2);
        let height = map.len().checked_div(width).unwrap_or(0);
        let mut cells = vec![EMPTY; stride.saturating_mul(height.saturating_add(2))];
        for (cells, row) in cells.chunks_exact_mut(stride).skip(1).zip(map.chunks_exact(width.max(1))) {
            for (cell, value) in cells.iter_mut().skip(1).zip(row) {
                *cell = if *value > threshold { FULL } else { EMPTY };
            }
        }
        let mut binary = Self { stride, cells };
        if is_dilated {
            binary.dilate(width);
        }
        binary
    }

    /// Each cell becomes the maximum of it, that to its left, that above and the one between, as `cv2.dilate` with a kernel of
    /// 2 × 2.
    fn dilate(&mut self, width: usize) {
        let source = self.cells.clone();
        let mut rows = source.chunks_exact(self.stride);
        let mut above = rows.next().unwrap_or_default();
        let height = (self.cells.len() / self.stride).saturating_sub(2);
        for (cells, row) in self.cells.chunks_exact_mut(self.stride).skip(1).zip(rows).take(height) {
            let pairs = row.windows(2).zip(above.windows(2));
            for (cell, (own, upper)) in cells.iter_mut().skip(1).zip(pairs).take(width) {
                *cell = own.iter().chain(upper).copied().max().unwrap_or(EMPTY);
            }
            above = row;
        }
    }

    /// The last `count_max` contours that a scan meets, last first.
    pub fn contours(mut self, count_max: usize) -> Vec<Vec<MapPoint>> {
        let mut found = VecDeque::new();
        let mut points = Vec::new();
        let stride = self.stride;
        let row_count = self.cells.len() / stride;
        for row in 1..row_count.saturating_sub(1) {
            let (mut column, start) = (1, row * stride);
            while let Some(first) = self.next_full(start, column) {
                if self.cells.get(start + first) == Some(&FULL) {
                    self.trace(start + first, ContourKind::Outer, &mut points);
                    keep(&mut found, &points, count_max);
                }
                // The border on the right is empty.
                column = self.next_empty(start, first + 1);
                let is_open = self.cells.get(start + column - 1).is_some_and(|cell| *cell > SEEN_ON_THE_RIGHT);
                if is_open && self.trace(start + column - 1, ContourKind::Hole, &mut points) {
                    keep(&mut found, &points, count_max);
                }
            }
        }
        found.into_iter().rev().collect()
    }

    /// The first cell of a row from `column` on that is not empty.
    fn next_full(&self, start: usize, column: usize) -> Option<usize> {
        let cells = self.cells.get(start + column..start + self.stride)?;
        let (chunks, rest) = cells.as_chunks::<16>();
        let empty = chunks.iter().take_while(|chunk| u128::from_ne_bytes(**chunk) == 0).count() * 16;
        let rest = if empty < chunks.len() * 16 { cells.get(empty..)? } else { rest };
        rest.iter().position(|cell| *cell != EMPTY).map(|place| column + empty + place)
    }

    /// The first empty cell of a row from `column` on.
    fn next_empty(&self, start: usize, column: usize) -> usize {
        let cells = self.cells.get(start + column..start + self.stride).unwrap_or_default();
        column + cells.iter().position(|cell| *cell == EMPTY).unwrap_or(cells.len().saturating_sub(1))
    }

    /// Follows a border from its first cell on, and marks its cells. Returns false if there is no hole on the right of that
    /// cell. A cell is marked as seen on the right if the cell to its right was empty when the border passed.
    fn trace(&mut self, start: usize, kind: ContourKind, points: &mut Vec<MapPoint>) -> bool {
        points.clear();
        let mut from = match kind {
            ContourKind::Outer => 5,
            ContourKind::Hole => 1,
        };
        let first = self.next_direction(start, from);
        if kind == ContourKind::Hole && first != Some(1) {
            return false;
        }
        points.push(self.point(start));
        let Some(first) = first else {
            self.mark(start, SEEN_ON_THE_RIGHT);
            return true;
        };
        let (mut at, mut direction) = (start, first);
        // A cell is left in each direction at most once: the bound is never reached.
        for turn in 0..self.cells.len().saturating_mul(8) {
            if from <= 1 || direction + 2 <= from {
                self.mark(at, SEEN_ON_THE_RIGHT);
            } else if self.cells.get(at) == Some(&FULL) {
                self.mark(at, SEEN);
            }
            if at == start && direction == first && turn > 0 {
                break;
            }
            at = self.neighbour(at, direction);
            points.push(self.point(at));
            from = (direction + 6) % 8;
            direction = self.next_direction(at, from).unwrap_or(direction);
        }
        if points.len() > 1 && points.first() == points.last() {
            points.pop();
        }
        true
    }

    /// The first direction from `from` on, counterclockwise, in which a cell is not empty. 0 is to the right.
    fn next_direction(&self, at: usize, from: usize) -> Option<usize> {
        (from..from + 8)
            .map(|direction| direction % 8)
            .find(|direction| self.cells.get(self.neighbour(at, *direction)).is_some_and(|cell| *cell != EMPTY))
    }

    const fn neighbour(&self, at: usize, direction: usize) -> usize {
        let stride = self.stride;
        match direction {
            0 => at + 1,
            1 => at + 1 - stride,
            2 => at - stride,
            3 => at - 1 - stride,
            4 => at - 1,
            5 => at - 1 + stride,
            6 => at + stride,
            _ => at + 1 + stride,
        }
    }

    fn mark(&mut self, at: usize, mark: u8) {
        if let Some(cell) = self.cells.get_mut(at) {
            *cell = mark;
        }
    }

    /// The point of a cell that is not in the border. The caller has checked that sides fit.
    const fn point(&self, at: usize) -> MapPoint {
        [(at % self.stride - 1) as u16, (at / self.stride - 1) as u16]
    }
}

/// Appends the corners of a border, and drops the first border if there are too many.
fn keep(found: &mut VecDeque<Vec<MapPoint>>, points: &[MapPoint], count_max: usize) {
    if found.len() == count_max {
        found.pop_front();
    }
    found.push_back(corners(points));
}

/// The points at which the direction changes.
fn corners(points: &[MapPoint]) -> Vec<MapPoint> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Vec::new() };
    let delta = |[x, y]: MapPoint, [to_x, to_y]: MapPoint| [to_x.wrapping_sub(x), to_y.wrapping_sub(y)];
    let before = [last].into_iter().chain(points);
    let behind = points.iter().skip(1).chain([first]);
    let mut corners = Vec::new();
    for ((before, own), behind) in before.zip(points).zip(behind) {
        if delta(*before, *own) != delta(*own, *behind) {
            corners.push(*own);
        }
    }
    if corners.is_empty() {
        corners.push(*first);
    }
    corners
}

const EMPTY: u8 = 0;
const FULL: u8 = 255;
/// A border passed the cell.
const SEEN: u8 = 200;
/// A border passed the cell, and looked at an empty one to its right.
const SEEN_ON_THE_RIGHT: u8 = 100;
