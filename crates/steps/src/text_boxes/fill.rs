//! Filled polygons, pixel by pixel as OpenCV's `fillPoly` draws them with whole coordinates: the lines between the points, and
//! what lies between edges.

use crate::text_boxes::hull::HullPoint;

/// The pixels of a rectangle of a map that lie in a polygon.
#[derive(Default)]
pub struct PolygonMask {
    width: usize,
    height: usize,
    /// 1 in the polygon.
    cells: Vec<u8>,
}

/// An edge of a polygon on its way down.
#[derive(Clone, Copy)]
struct FallingEdge {
    top: i64,
    bottom: i64,
    /// At the row, in 16 bits behind the point.
    x: i64,
    /// Added for each row.
    slope: i64,
}

impl PolygonMask {
    /// Draws a polygon on an empty mask of this size, which the caller has checked.
    pub fn draw(&mut self, width: usize, height: usize, points: impl ExactSizeIterator<Item = HullPoint> + Clone) {
        (self.width, self.height) = (width, height);
        self.cells.clear();
        self.cells.resize(width * height, 0);
        let mut edges = Vec::with_capacity(points.len());
        let Some(mut from) = points.clone().last().map(|point| point.map(i64::from)) else { return };
        for point in points {
            let to = point.map(i64::from);
            edges.extend(self.edge(from, to));
            from = to;
        }
        self.fill(edges);
    }

    /// The rows.
    pub fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.cells.chunks_exact(self.width.max(1))
    }

    /// Draws a line, and returns its edge; `None` if it is horizontal.
    fn edge(&mut self, from: [i64; 2], to: [i64; 2]) -> Option<FallingEdge> {
        let (clipped, is_inside) = self.clipped(from, to);
        if is_inside {
            self.line(clipped);
        }
        if from[1] == to[1] {
            return None;
        }
        // The parts of a line outside of the mask are cut off before its slope is taken.
        let [[from_x, mut from_y], [to_x, mut to_y]] = clipped;
        if from_y == to_y {
            (from_y, to_y) = (from[1], to[1]);
        }
        let slope = ((to_x - from_x) << SHIFT) / (to_y - from_y);
        let (top, bottom, x) = if from[1] < to[1] {
            (from[1], to[1], (from_x << SHIFT) + (from[1] - from_y) * slope)
        } else {
            (to[1], from[1], (to_x << SHIFT) + (to[1] - to_y) * slope)
        };
        Some(FallingEdge { top, bottom, x, slope })
    }

    /// The part of a line in the mask, as `clipLine` computes it, and true if there is one.
    fn clipped(&self, from: [i64; 2], to: [i64; 2]) -> ([[i64; 2]; 2], bool) {
        let (right, bottom) = (self.width as i64 - 1, self.height as i64 - 1);
        let ([mut x1, mut y1], [mut x2, mut y2]) = (from, to);
        let side = |x: i64| u8::from(x < 0) + u8::from(x > right) * 2;
        let code = |x: i64, y: i64| side(x) + u8::from(y < 0) * 4 + u8::from(y > bottom) * 8;
        let (mut first, mut second) = (code(x1, y1), code(x2, y2));
        // As C++ converts and divides: the quotient in FP64, then towards zero.
        let part = |distance: i64, along: i64, across: i64| (distance as f64 * along as f64 / across as f64) as i64;
        if first & second == 0 && first | second != 0 {
            if first & 12 != 0 {
                let y = if first < 8 { 0 } else { bottom };
                x1 += part(y - y1, x2 - x1, y2 - y1);
                y1 = y;
                first = side(x1);
            }
            if second & 12 != 0 {
                let y = if second < 8 { 0 } else { bottom };
                x2 += part(y - y2, x2 - x1, y2 - y1);
                y2 = y;
                second = side(x2);
            }
            if first & second == 0 && first | second != 0 {
                if first != 0 {
                    let x = if first == 1 { 0 } else { right };
                    y1 += part(x - x1, y2 - y1, x2 - x1);
                    x1 = x;
                    first = 0;
                }
                if second != 0 {
                    let x = if second == 1 { 0 } else { right };
                    y2 += part(x - x2, y2 - y1, x2 - x1);
                    x2 = x;
                    second = 0;
                }
            }
        }
        ([[x1, y1], [x2, y2]], first | second == 0)
    }

    /// Draws a line within the mask, from left to right.
    fn line(&mut self, [from, to]: [[i64; 2]; 2]) {
        let ([mut x, mut y], [to_x, to_y]) = if to[0] < from[0] { (to, from) } else { (from, to) };
        let (dx, dy) = (to_x - x, (to_y - y).abs());
        let down = if to_y < y { -1 } else { 1 };
        let is_steep = dy > dx;
        let (along, across) = if is_steep { (dy, dx) } else { (dx, dy) };
        let mut error = along - 2 * across;
        for _ in 0..=along {
            self.set(x, y);
            let turns = error < 0;
            error += if turns { 2 * along } else { 0 } - 2 * across;
            x += i64::from(!is_steep || turns);
            y += if is_steep || turns { down } else { 0 };
        }
    }

    fn set(&mut self, x: i64, y: i64) {
        let place = usize::try_from(y).ok().zip(usize::try_from(x).ok());
        if let Some(cell) = place.and_then(|(y, x)| self.cells.get_mut(y * self.width + x)) {
            *cell = 1;
        }
    }

    /// Fills what lies between edges: on each row, from the first to the second, from the third to the fourth, and so on.
    fn fill(&mut self, mut edges: Vec<FallingEdge>) {
        edges.sort_by_key(|edge| (edge.top, edge.x, edge.slope));
        let Some(first) = edges.first().map(|edge| edge.top) else { return };
        let last = edges.iter().map(|edge| edge.bottom).max().unwrap_or(0).min(self.height as i64);
        let mut waiting = edges.into_iter().peekable();
        let mut active: Vec<FallingEdge> = Vec::new();
        for y in first..last {
            active.retain(|edge| edge.bottom != y);
            let mut place = 0;
            while let Some(edge) = waiting.next_if(|edge| edge.top == y) {
                // Behind those that are not to its right, which are in order.
                while active.get(place).is_some_and(|active| active.x < edge.x) {
                    place += 1;
                }
                active.insert(place, edge);
                place += 1;
            }
            for pair in active.as_chunks_mut::<2>().0 {
                if let Ok(y) = usize::try_from(y) {
                    self.span(y, pair[0].x.min(pair[1].x), pair[0].x.max(pair[1].x));
                }
                for edge in pair {
                    edge.x += edge.slope;
                }
            }
            active.sort_by_key(|edge| edge.x);
        }
    }

    fn span(&mut self, y: usize, from: i64, to: i64) {
        let from = (from + ((1 << SHIFT) - 1)) >> SHIFT;
        let to = (to >> SHIFT).min(self.width as i64 - 1);
        let (Ok(from), Ok(to)) = (usize::try_from(from.max(0)), usize::try_from(to + 1)) else { return };
        if let Some(cells) = self.cells.get_mut(y * self.width + from..y * self.width + to) {
            cells.fill(1);
        }
    }
}

/// Bits behind the point of a coordinate.
const SHIFT: u32 = 16;
