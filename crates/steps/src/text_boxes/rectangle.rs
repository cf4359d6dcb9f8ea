//! Rectangles of least area around points, as OpenCV's `minAreaRect` and `boxPoints` compute them in FP32 (version 5; before,
//! angles were counted otherwise).

use std::cmp::Ordering;
use std::f64::consts::PI;

use crate::text_boxes::hull::{HullPoint, convex_hull};

/// A point in FP32, x and y.
pub type Corner = [f32; 2];

/// A rectangle at any angle.
pub struct Rectangle {
    centre: Corner,
    width: f32,
    height: f32,
    /// In degrees.
    angle: f32,
}

/// The position at which a rectangle around a hull has the least area.
struct Calipers {
    area: f32,
    /// The direction of a side.
    base: Corner,
    /// Along the direction.
    width: f32,
    height: f32,
    left: usize,
    bottom: usize,
}

impl Rectangle {
    /// The rectangle around points; `None` if they lie on a line.
    pub fn around(points: &[HullPoint]) -> Option<Self> {
        let hull = convex_hull(points);
        // Coordinates of maps are small.
        let hull: Vec<_> = hull.iter().map(|point| point.map(|side| side as f32)).collect();
        if hull.len() < 3 {
            return None;
        }
        let [[x, y], first, second] = least(&hull);
        let length = |[x, y]: Corner| (f64::from(x) * f64::from(x) + f64::from(y) * f64::from(y)).sqrt() as f32;
        let centre = [x + (first[0] + second[0]) * 0.5, y + (first[1] + second[1]) * 0.5];
        let (width, height) = (length(second), length(first));
        if first[0] == 0.0 && first[1] > 0.0 {
            return Some(Self { centre, width: height, height: width, angle: -90.0 });
        }
        let angle = -f64::from(first[0]).atan2(f64::from(first[1]));
        Some(Self { centre, width, height, angle: (angle * 180.0 / PI) as f32 })
    }

    /// The length of the shorter side.
    pub const fn shorter_side(&self) -> f32 {
        self.width.min(self.height)
    }

    /// The corners from the upper left one on, clockwise, as DBPostProcess orders them.
    pub fn corners(&self) -> [Corner; 4] {
        let mut corners = self.raw_corners();
        corners.sort_by(|left, right| left[0].partial_cmp(&right[0]).unwrap_or(Ordering::Equal));
        let [a, b, c, d] = corners;
        let (upper_left, lower_left) = if b[1] > a[1] { (a, b) } else { (b, a) };
        let (upper_right, lower_right) = if d[1] > c[1] { (c, d) } else { (d, c) };
        [upper_left, upper_right, lower_right, lower_left]
    }

    fn raw_corners(&self) -> [Corner; 4] {
        let angle = f64::from(self.angle) * PI / 180.0;
        let (b, a) = (angle.cos() as f32 * 0.5, angle.sin() as f32 * 0.5);
        let (ah, aw) = (a * self.height, a * self.width);
        let (bh, bw) = (b * self.height, b * self.width);
        let [x, y] = self.centre;
        [[x - ah - bw, y + bh - aw], [x + ah - bw, y - bh - aw], [x + ah + bw, y - bh + aw], [x - ah + bw, y + bh + aw]]
    }
}

/// A corner of the rectangle of least area around a hull, and the vectors of two sides: rotating calipers.
fn least(hull: &[Corner]) -> [Corner; 3] {
    let count = hull.len();
    let at = |index: usize| hull.get(index).copied().unwrap_or_default();
    let behind = |index: usize| if index + 1 == count { 0 } else { index + 1 };
    let edge = |index: usize| {
        let ([x, y], [to_x, to_y]) = (at(index), at(behind(index)));
        [to_x - x, to_y - y]
    };
    let mut sides = extremes(hull);
    let mut best = Calipers { area: f32::MAX, base: [1.0, 0.0], width: 0.0, height: 0.0, left: 0, bottom: 0 };
    for _ in 0..count {
        // The edges at the four sides, each turned so that all would have the direction of the first.
        let [bottom, right, top, left] = sides;
        let turned = [
            edge(bottom),
            clockwise(edge(right)),
            edge(top).map(|side| -side),
            clockwise(clockwise(clockwise(edge(left)))),
        ];
        let mut main = 0;
        let mut main_edge = turned[0];
        for (side, edge) in turned.into_iter().enumerate().skip(1) {
            if is_right_of(edge, main_edge) {
                (main, main_edge) = (side, edge);
            }
        }
        let Some(place) = sides.get_mut(main) else { break };
        let [dx, dy] = edge(*place).map(f64::from);
        let inverse = (1.0 / (dx * dx + dy * dy).sqrt()) as f32;
        *place = behind(*place);
        let base = main_edge.map(|side| side * inverse);
        let across = |from: usize, to: usize| {
            let ([x, y], [to_x, to_y]) = (at(from), at(to));
            [to_x - x, to_y - y]
        };
        let [bottom, right, top, left] = sides;
        let ([dx, dy], [up_x, up_y]) = (across(left, right), across(bottom, top));
        let width = dx * base[0] + dy * base[1];
        let height = -up_x * base[1] + up_y * base[0];
        if width * height <= best.area {
            best = Calipers { area: width * height, base, width, height, left, bottom };
        }
    }
    best.sides(at(best.left), at(best.bottom))
}

impl Calipers {
    fn sides(&self, left: Corner, bottom: Corner) -> [Corner; 3] {
        let [a, b] = self.base;
        let first = a * left[0] + left[1] * b;
        let second = -b * bottom[0] + bottom[1] * a;
        let inverse = 1.0 / (a * a - -b * b);
        let corner = [(first * a - second * b) * inverse, (a * second - -b * first) * inverse];
        [corner, [a * self.width, b * self.width], [-b * self.height, a * self.height]]
    }
}

/// The first points that are furthest down, right, up and left.
fn extremes(hull: &[Corner]) -> [usize; 4] {
    let [mut bottom, mut right, mut top, mut left] = [0; 4];
    let at = |index: usize| hull.get(index).copied().unwrap_or_default();
    for index in 0..hull.len() {
        let [x, y] = at(index);
        left = if x < at(left)[0] { index } else { left };
        right = if x > at(right)[0] { index } else { right };
        top = if y > at(top)[1] { index } else { top };
        bottom = if y < at(bottom)[1] { index } else { bottom };
    }
    [bottom, right, top, left]
}

const fn clockwise([x, y]: Corner) -> Corner {
    [y, -x]
}

/// Returns true if the first vector is to the right of the second.
fn is_right_of(first: Corner, second: Corner) -> bool {
    let [x, y] = clockwise(first);
    x * second[0] + y * second[1] < 0.0
}
