//! Non-maximum suppression: of boxes that overlap, the one with the highest score stays.

use std::cmp::Ordering;

use crate::detect::decode::Detection;

/// The formula of the overlap of two boxes, and the comparison with its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Overlap {
    /// In FP32 on left, top, right, bottom.
    Numpy {
        /// Added to the union.
        epsilon: f32,
        /// Added to widths and heights.
        side: f32,
        /// Keeps a box if the overlap equals the bound.
        keeps_equal: bool,
    },
    /// As `cv2.dnn.NMSBoxes`: in FP64 on left, top, width, height.
    OpenCv,
    /// As `torchvision.ops.nms`: in FP32 on left, top, right, bottom, compared in FP64.
    Torchvision,
}

/// Which boxes suppress each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scope {
    /// All.
    Agnostic,
    /// Those of one class.
    ByClass,
    /// All, after each is moved by its class times this distance.
    Offset(f32),
}

/// The rules of a suppression.
#[derive(Clone, Copy, Debug)]
pub struct Suppression {
    /// The formula of the overlap.
    pub overlap: Overlap,
    /// Its bound.
    pub threshold: f64,
    /// Which boxes suppress each other.
    pub scope: Scope,
    /// Of equal scores, the last candidate comes first.
    pub is_last_first: bool,
    /// The result is in the order of classes, and of scores within one.
    pub is_by_class: bool,
    /// Candidates that are looked at, those with the highest scores.
    pub candidates_max: usize,
    /// Boxes that are kept.
    pub kept_max: usize,
}

/// A box as the suppression compares it.
#[derive(Clone, Copy)]
struct Extent {
    corners: [f32; 4],
    area: f32,
    class: u32,
}

impl Suppression {
    /// Orders the candidates by score, and keeps those that no better one suppresses.
    pub fn apply(&self, candidates: &mut Vec<Detection>) {
        if self.is_last_first {
            candidates.reverse();
        }
        // Stable. No score is NaN.
        candidates.sort_by(|left, right| right.score.partial_cmp(&left.score).unwrap_or(Ordering::Equal));
        candidates.truncate(self.candidates_max);
        if self.is_by_class {
            candidates.sort_by_key(|candidate| candidate.class);
        }
        let mut kept: Vec<Extent> = Vec::new();
        let mut kept_of_class = 0_usize;
        candidates.retain(|candidate| {
            if self.is_by_class && kept.last().is_some_and(|last| last.class != candidate.class) {
                kept_of_class = kept.len();
            }
            // Classes follow each other: boxes of earlier ones suppress nothing.
            let first = if self.is_by_class && self.scope == Scope::ByClass { kept_of_class } else { 0 };
            let rivals = kept.get(first..).unwrap_or_default();
            if rivals.len() >= self.kept_max {
                return false;
            }
            let shape = self.shape(candidate);
            let is_kept = match self.overlap {
                Overlap::OpenCv => {
                    !rivals.iter().any(|rival| self.shares_scope(rival, &shape) && self.is_over_opencv(rival, &shape))
                }
                _ => !rivals.iter().any(|rival| self.shares_scope(rival, &shape) && self.is_over(rival, &shape)),
            };
            if is_kept {
                kept.push(shape);
            }
            is_kept
        });
        candidates.truncate(self.kept_max);
    }

    fn shape(&self, candidate: &Detection) -> Extent {
        let mut corners = candidate.corners;
        if let Scope::Offset(distance) = self.scope {
            #[expect(clippy::cast_precision_loss, reason = "classes are small")]
            let offset = candidate.class as f32 * distance;
            corners = corners.map(|corner| corner + offset);
        }
        let side = self.side();
        let [x1, y1, x2, y2] = corners;
        Extent { corners, area: (x2 - x1 + side) * (y2 - y1 + side), class: candidate.class }
    }

    fn side(&self) -> f32 {
        if let Overlap::Numpy { side, .. } = self.overlap { side } else { 0.0 }
    }

    fn shares_scope(&self, left: &Extent, right: &Extent) -> bool {
        self.scope != Scope::ByClass || left.class == right.class
    }

    /// Returns true if the overlap is beyond its bound, computed in FP32.
    #[inline(always)]
    fn is_over(&self, left: &Extent, right: &Extent) -> bool {
        let larger = |left: f32, right: f32| if left < right { right } else { left };
        let smaller = |left: f32, right: f32| if right < left { right } else { left };
        let ([ax1, ay1, ax2, ay2], [bx1, by1, bx2, by2]) = (left.corners, right.corners);
        let side = self.side();
        let width = larger(0.0, smaller(ax2, bx2) - larger(ax1, bx1) + side);
        let height = larger(0.0, smaller(ay2, by2) - larger(ay1, by1) + side);
        let shared = width * height;
        let union = left.area + right.area - shared;
        // Most boxes do not meet: no division.
        if shared == 0.0 && union > 0.0 && self.threshold > 0.0 {
            return false;
        }
        #[expect(clippy::cast_possible_truncation, reason = "numpy compares in FP32")]
        let threshold = self.threshold as f32;
        match self.overlap {
            Overlap::Numpy { epsilon, keeps_equal, .. } => {
                let overlap = shared / if epsilon > 0.0 { union + epsilon } else { union };
                // NaN is over: numpy keeps what compares true.
                !(if keeps_equal { overlap <= threshold } else { overlap < threshold })
            }
            _ => f64::from(shared / union) > self.threshold,
        }
    }

    /// Returns true if the overlap of OpenCV is beyond its bound: `1 - jaccardDistance` of two `Rect2d`.
    fn is_over_opencv(&self, left: &Extent, right: &Extent) -> bool {
        let [ax, ay, aw, ah] = left.corners.map(f64::from);
        let [bx, by, bw, bh] = right.corners.map(f64::from);
        let areas = aw * ah + bw * bh;
        #[expect(clippy::cast_possible_truncation, reason = "OpenCV computes this part in FP32")]
        let overlap = if areas <= f64::EPSILON {
            1.0
        } else {
            let shared = shared_length([ax, aw], [bx, bw]) * shared_length([ay, ah], [by, bh]);
            let shared = if aw <= 0.0 || ah <= 0.0 || bw <= 0.0 || bh <= 0.0 { 0.0 } else { shared };
            1.0 - (1.0 - shared / (areas - shared)) as f32
        };
        #[expect(clippy::cast_possible_truncation, reason = "OpenCV takes the bound as FP32")]
        let threshold = self.threshold as f32;
        // NaN is over: OpenCV keeps what is at most the bound.
        overlap > threshold || overlap.is_nan()
    }
}

/// The length that two ranges share, each as start and length, in OpenCV's order of operations.
fn shared_length(left: [f64; 2], right: [f64; 2]) -> f64 {
    let ([first_start, first_length], [second_start, second_length]) =
        if left[0] < right[0] { (left, right) } else { (right, left) };
    let shared = first_length - (second_start - first_start);
    let shared = if second_length < shared { second_length } else { shared };
    if shared > 0.0 { shared } else { 0.0 }
}
