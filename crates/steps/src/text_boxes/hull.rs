//! The convex hull of integer points as OpenCV's `convexHull` gives it, counterclockwise, with its first point: rectangles of
//! equal area are told apart by the order of the points.

use std::cmp::Ordering;

/// A point, x and y.
pub type HullPoint = [i32; 2];

/// The corners of the convex hull.
pub fn convex_hull(points: &[HullPoint]) -> Vec<HullPoint> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    let at = |place: usize| points.get(place).copied().unwrap_or_default();
    order.sort_unstable_by_key(|place| (at(*place), *place));
    let sorted: Vec<_> = order.iter().map(|place| at(*place)).collect();
    let mut hull = places(&sorted);
    for place in &mut hull {
        *place = order.get(*place).copied().unwrap_or(0);
    }
    rotate(&mut hull);
    hull.into_iter().map(at).collect()
}

/// The corners, as places in points that are sorted by x and y.
fn places(sorted: &[HullPoint]) -> Vec<usize> {
    let Some(last) = sorted.len().checked_sub(1) else { return Vec::new() };
    if sorted.first() == sorted.last() {
        return vec![0];
    }
    let (mut least, mut most) = (0, 0);
    let y = |place: usize| sorted.get(place).map_or(0, |[_, y]| *y);
    for place in 1..sorted.len() {
        least = if y(place) < y(least) { place } else { least };
        most = if y(place) > y(most) { place } else { most };
    }
    let quarter = |start, end, side, turn| Quarter { sorted, side, turn }.chain(start, end);
    // From the point that is furthest right to the one with the greatest y, and on to the one that is furthest left.
    let upper_right = quarter(last, most, -1, -1);
    let upper_left = quarter(0, most, -1, 1);
    let mut hull: Vec<_> = but_last(&upper_right).to_vec();
    hull.extend(upper_left.iter().skip(1).rev());
    let stop = if upper_left.len() > 2 {
        upper_left.get(1)
    } else if upper_right.len() > 2 {
        upper_right.iter().nth_back(1)
    } else {
        None
    };
    let mut lower_left = quarter(0, least, 1, -1);
    let mut lower_right = quarter(last, least, 1, 1);
    if let Some(stop) = stop {
        let check = if lower_left.len() > 2 {
            lower_left.get(1)
        } else if lower_left.len() + lower_right.len() > 2 {
            2_usize.checked_sub(lower_left.len()).and_then(|place| lower_right.get(place))
        } else {
            None
        };
        // All points lie on a line: the lower half is the upper one, mirrored.
        if check.is_some_and(|check| check == stop || sorted.get(*check) == sorted.get(*stop)) {
            lower_left.truncate(2);
            lower_right.truncate(2);
        }
    }
    hull.extend(but_last(&lower_left));
    hull.extend(lower_right.iter().skip(1).rev());
    hull
}

fn but_last(places: &[usize]) -> &[usize] {
    places.split_last().map_or(&[], |(_, rest)| rest)
}

/// A quarter of the hull, by Sklansky's algorithm.
struct Quarter<'a> {
    sorted: &'a [HullPoint],
    /// The sign of y along points that cannot be corners.
    side: i32,
    /// The sign of a turn at a corner.
    turn: i64,
}

impl Quarter<'_> {
    /// The corners from `start` to `end`.
    fn chain(&self, start: usize, end: usize) -> Vec<usize> {
        let point = |place: usize| self.sorted.get(place).copied().unwrap_or_default();
        if start == end || point(start) == point(end) {
            return vec![start];
        }
        let next = |place: usize| if end > start { place.wrapping_add(1) } else { place.wrapping_sub(1) };
        let stop = next(end);
        let (mut before, mut current) = (start, next(start));
        let mut behind = next(current);
        let mut stack = vec![before, current, behind];
        while behind != stop {
            let ([x, y], [behind_x, behind_y]) = (point(current), point(behind));
            let rise = behind_y - y;
            if rise.signum() == self.side {
                behind = next(behind);
                replace_last(&mut stack, behind);
                continue;
            }
            let [before_x, before_y] = point(before);
            let (a, b) = ([x - before_x, y - before_y], [behind_x - x, rise]);
            let turn = i64::from(a[1]) * i64::from(b[0]) - i64::from(a[0]) * i64::from(b[1]);
            if turn.signum() == self.turn && a != [0, 0] {
                (before, current, behind) = (current, behind, next(behind));
                stack.push(behind);
            } else if before == start {
                (current, behind) = (behind, next(behind));
                stack.truncate(1);
                stack.extend([current, behind]);
            } else {
                stack.pop();
                replace_last(&mut stack, behind);
                current = before;
                before = stack.iter().nth_back(2).copied().unwrap_or(start);
            }
        }
        stack.pop();
        stack
    }
}

fn replace_last(stack: &mut [usize], place: usize) {
    if let Some(last) = stack.last_mut() {
        *last = place;
    }
}

/// Begins a hull at the place from which its places ascend or descend, if there is one.
fn rotate(hull: &mut [usize]) {
    let count = hull.len();
    if count < 3 {
        return;
    }
    let (mut least, mut most, mut ascents) = (0, 0, 0);
    let at = |index: usize| hull.get(index).copied().unwrap_or(0);
    for index in 1..count {
        ascents += usize::from(at(index - 1) < at(index));
        if ascents > 1 && ascents + 2 <= index {
            break;
        }
        least = if at(index) < at(least) { index } else { least };
        most = if at(index) > at(most) { index } else { most };
    }
    let distance = most.abs_diff(least);
    if (distance != 1 && distance != count - 1) || (ascents > 1 && ascents + 2 < count) {
        return;
    }
    let order = if (most + 1) % count == least { Ordering::Less } else { Ordering::Greater };
    let first = if order == Ordering::Less { least } else { most };
    let is_in_order = (0..count - 1).all(|step| {
        let (own, behind) = (at((first + step) % count), at((first + step + 1) % count));
        (own < behind) == (order == Ordering::Less)
    });
    if is_in_order {
        hull.rotate_left(first);
    }
}
