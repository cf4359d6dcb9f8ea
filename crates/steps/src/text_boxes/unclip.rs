//! A quadrilateral grown by a distance with round corners, in integers, as pyclipper's offset of Clipper 6 gives it: the same
//! points in the same order. Clipper unites the outline that the offset makes; that of a convex quadrilateral has no
//! crossings, so that it only loses points between equal slopes.

use std::f64::consts::PI;

use crate::text_boxes::hull::HullPoint;
use crate::text_boxes::rectangle::Corner;

/// The distance by which DBPostProcess grows a box: its area times the ratio, for each unit of its outline.
pub fn distance(corners: &[Corner; 4], ratio: f64) -> f64 {
    let [a, b, c, d] = corners.map(|corner| corner.map(f64::from));
    let ring = [a, b, c, d, a];
    let mut area = 0.0;
    for [before, [x, _], behind] in ring.array_windows::<3>() {
        area += (x - a[0]) * (before[1] - behind[1]);
    }
    let mut outline = 0.0;
    for [[x, y], [to_x, to_y]] in ring.array_windows::<2>() {
        let (dx, dy) = (to_x - x, to_y - y);
        outline += (dx * dx + dy * dy).sqrt();
    }
    (area / 2.0).abs() * ratio / outline
}

/// The points of the grown quadrilateral; empty if its corners, truncated to integers, are fewer than three.
pub fn grown(corners: &[Corner; 4], distance: f64) -> Vec<HullPoint> {
    let mut path: Vec<HullPoint> = Vec::with_capacity(4);
    for corner in corners {
        // Truncated, as Clipper's integers are.
        let point = corner.map(|side| side as i32);
        if path.last() != Some(&point) {
            path.push(point);
        }
    }
    while path.len() > 1 && path.first() == path.last() {
        path.pop();
    }
    if path.len() < 3 || distance.is_nan() || distance.abs() < 1e-20 {
        return Vec::new();
    }
    if doubled_area(&path) < 0 {
        path.reverse();
    }
    let mut outline = Outline::new(distance).around(&path);
    drop_flat(&mut outline);
    begin(&mut outline);
    outline
}

/// The offset of a path.
struct Outline {
    distance: f64,
    /// The sine and cosine of the angle between two points of an arc.
    step: [f64; 2],
    steps_per_radian: f64,
    points: Vec<HullPoint>,
}

impl Outline {
    fn new(distance: f64) -> Self {
        // Clipper's tolerance of arcs.
        let tolerance = if 0.25 > distance * 0.25 { distance * 0.25 } else { 0.25 };
        let steps = PI / (1.0 - tolerance / distance).acos();
        let steps = if steps > distance * PI { distance * PI } else { steps };
        let angle = PI * 2.0 / steps;
        let step = [angle.sin(), angle.cos()];
        Self { distance, step, steps_per_radian: steps / (PI * 2.0), points: Vec::new() }
    }

    fn around(mut self, path: &[HullPoint]) -> Vec<HullPoint> {
        let behind = path.iter().skip(1).chain(path.first());
        let normals: Vec<_> = path.iter().zip(behind).map(|(from, to)| normal(*from, *to)).collect();
        let Some(mut before) = normals.last().copied() else { return Vec::new() };
        for (point, normal) in path.iter().zip(normals) {
            if self.corner(point.map(f64::from), before, normal) {
                before = normal;
            }
        }
        self.points
    }

    /// Appends the points around a corner between edges with these normals. Returns false if the edges have nearly one direction:
    /// the second one is left out then.
    fn corner(&mut self, point: [f64; 2], before: [f64; 2], behind: [f64; 2]) -> bool {
        let sine = before[0] * behind[1] - behind[0] * before[1];
        let cosine = before[0] * behind[0] + behind[1] * before[1];
        let is_flat = (sine * self.distance).abs() < 1.0;
        if is_flat && cosine > 0.0 {
            self.push(point, before);
            return false;
        }
        let sine = if is_flat { sine } else { sine.clamp(-1.0, 1.0) };
        if sine * self.distance < 0.0 {
            self.push(point, before);
            self.points.push(point.map(|side| side as i32));
        } else {
            let [step_sine, step_cosine] = self.step;
            let [mut x, mut y] = before;
            let count = rounded(self.steps_per_radian * sine.atan2(cosine).abs()).max(1);
            for _ in 0..count {
                self.push(point, [x, y]);
                [x, y] = [x * step_cosine - step_sine * y, x * step_sine + y * step_cosine];
            }
        }
        self.push(point, behind);
        true
    }

    fn push(&mut self, [x, y]: [f64; 2], [along_x, along_y]: [f64; 2]) {
        self.points.push([rounded(x + along_x * self.distance), rounded(y + along_y * self.distance)]);
    }
}

/// The normal of an edge, with length 1.
fn normal(from: HullPoint, to: HullPoint) -> [f64; 2] {
    let [dx, dy] = [to[0] - from[0], to[1] - from[1]].map(f64::from);
    let factor = 1.0 / (dx * dx + dy * dy).sqrt();
    [dy * factor, -(dx * factor)]
}

/// The nearest integer, halves away from 0.
fn rounded(value: f64) -> i32 {
    (if value < 0.0 { value - 0.5 } else { value + 0.5 }) as i32
}

/// Twice the area of a path, above 0 if it is clockwise on the screen.
fn doubled_area(path: &[HullPoint]) -> i64 {
    let before = path.last().into_iter().chain(path);
    let parts = before
        .zip(path)
        .map(|(from, to)| (i64::from(from[0]) + i64::from(to[0])) * (i64::from(to[1]) - i64::from(from[1])));
    parts.sum()
}

/// Drops points that repeat another or lie between edges of one slope, as long as there is such a point.
fn drop_flat(outline: &mut Vec<HullPoint>) {
    let mut index = 0;
    let mut kept_count = 0;
    while outline.len() > 2 && kept_count < outline.len() {
        let count = outline.len();
        let at = |index: usize| outline.get(index % count).copied().unwrap_or_default();
        index %= count;
        let (before, own, behind) = (at(index + count - 1), at(index), at(index + 1));
        let delta = |from: HullPoint, to: HullPoint| [from[0] - to[0], from[1] - to[1]].map(i64::from);
        let ([ax, ay], [bx, by]) = (delta(before, own), delta(own, behind));
        if before == own || own == behind || ay * bx == ax * by {
            outline.remove(index);
            // The one before may be flat now.
            index += count - 2;
            kept_count = 0;
        } else {
            index += 1;
            kept_count += 1;
        }
    }
}

/// Begins an outline behind its uppermost point, the rightmost of several: where Clipper's sweep ends.
fn begin(outline: &mut [HullPoint]) {
    let last = outline.iter().enumerate().min_by_key(|(_, [x, y])| (*y, -x)).map_or(0, |(index, _)| index);
    if !outline.is_empty() {
        outline.rotate_left((last + 1) % outline.len());
    }
}
