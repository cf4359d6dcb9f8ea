//! `text_boxes`: the map of a text detector to boxes, as PaddleOCR's `DBPostProcess` and its copies find them.

pub mod contour;
pub mod fill;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod hull;
pub mod rectangle;
mod sort;
#[cfg(test)]
mod tests;
pub mod unclip;

use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{IMAGE_SIDE_MAX, IMAGES_MAX, TEXT_BOXES_MAX, TEXT_MAP_PIXELS_MAX, TEXT_SCORED_PIXELS_MAX};
use crate::original_size::original_sizes;
use crate::tensors::{floats, of_numbers, trailing};

use self::contour::{BinaryMap, MapPoint};
use self::fill::PolygonMask;
use self::rectangle::{Corner, Rectangle};
use self::sort::BoxOrder;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "text_boxes",
    about: "Finds the boxes of lines of text in the map of a DB text detector, as PaddleOCR's `DBPostProcess` and \
            `filter_tag_det_res` do with OpenCV 5 and pyclipper: contours of what is above the threshold, the smallest \
            rectangle around each, its mean score, the rectangle grown by `unclip_ratio`, scaled to the image and rounded. With \
            OpenCV 4, which takes other ones among rectangles of nearly equal area, about one box of a hundred differs. \
            Corners are in the order of the upper left, upper right, lower right and lower left one. Images can have \
            different counts: shorter rows are filled up with zeros, and `counts` has the count of each.",
    inputs: &[
        StepPort { name: "map", about: "Numbers [.., 1, height, width]: the probability of text.", is_optional: false },
        StepPort {
            name: "original_size",
            about: "INT64 [.., 2]: height and width of each image; those of the map without it.",
            is_optional: true,
        },
    ],
    outputs: &[
        StepPort {
            name: "boxes",
            about: "FP32 [.., n, 4, 2]: the corners in the image, whole numbers.",
            is_optional: false,
        },
        StepPort { name: "scores", about: "FP32 [.., n]: the mean of the map in each box.", is_optional: false },
        StepPort { name: "counts", about: "INT64 [..]: the count of boxes of each image.", is_optional: false },
    ],
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(TextBoxes::build(fields))),
};

const FIELDS: &[Field] = &[
    number("threshold", 0.0, 1.0, "0.3", "A pixel of the map above it is text: `thresh`."),
    number("box_threshold", 0.0, 1.0, "0.6", "Drops boxes with a lower score: `box_thresh`."),
    number("unclip_ratio", 0.01, 100.0, "1.5", "Boxes grow by their area times this for each pixel of their outline."),
    Field {
        name: "max_candidates",
        kind: FieldKind::Integer(1, TEXT_BOXES_MAX as i64),
        default: FieldDefault::Json("1000"),
        about: "Contours that are looked at: the last ones of the map from top to bottom, as OpenCV returns those first.",
    },
    Field {
        name: "dilate",
        kind: FieldKind::Bool,
        default: FieldDefault::Json("false"),
        about: "Dilates what is above the threshold with a kernel of 2 × 2: `use_dilation`, which rapidocr has on.",
    },
    Field {
        name: "score_mode",
        kind: FieldKind::Choice(&["fast", "slow"]),
        default: FieldDefault::Json("\"fast\""),
        about: "The score is the mean of the map in the rectangle (`fast`), or in the contour (`slow`).",
    },
    number("min_size", 1.0, 1000.0, "3", "Drops rectangles with a shorter side; after they have grown, below 2 more."),
    Field {
        name: "sort",
        kind: FieldKind::Choice(&["paddleocr", "rapidocr", "none"]),
        default: FieldDefault::Json("\"paddleocr\""),
        about: "The order of the boxes. `paddleocr`: from top to bottom, and from left to right where neighbours differ by less \
                than 10 rows, as `sorted_boxes`. `rapidocr`: the same for whole lines, as its version 3. `none`: that of the \
                contours. Scores keep to their boxes.",
    },
];

const fn number(name: &'static str, least: f64, most: f64, default: &'static str, about: &'static str) -> Field {
    Field { name, kind: FieldKind::Number(least, most), default: FieldDefault::Json(default), about }
}

struct TextBoxes {
    threshold: f32,
    box_threshold: f64,
    unclip_ratio: f64,
    candidates_max: usize,
    is_dilated: bool,
    is_slow: bool,
    side_min: f32,
    order: BoxOrder,
}

/// A box in an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextBox {
    /// The corners, clockwise from the upper left one.
    pub corners: [Corner; 4],
    /// The mean of the map.
    pub score: f32,
}

/// Height and width.
type Sides = [usize; 2];

impl TextBoxes {
    fn build(fields: &StepFields<'_>) -> Self {
        let number = |name: &str| fields.number(name).unwrap_or(0.0);
        Self {
            // numpy compares an FP32 array with a Python float in FP32.
            threshold: number("threshold") as f32,
            box_threshold: number("box_threshold"),
            unclip_ratio: number("unclip_ratio"),
            candidates_max: fields.count("max_candidates").unwrap_or(0),
            is_dilated: fields.flag("dilate"),
            is_slow: fields.text("score_mode") == "slow",
            side_min: number("min_size") as f32,
            order: BoxOrder::of(&fields.text("sort")),
        }
    }

    /// The boxes of one map.
    fn found(&self, map: &[f32], sides: Sides, image: Sides) -> Result<Vec<TextBox>, Error> {
        let [_, width] = sides;
        let contours = BinaryMap::new(map, width, self.threshold, self.is_dilated).contours(self.candidates_max);
        let mut scores = ScoredMap { map, sides, mask: PolygonMask::default(), pixel_count: 0 };
        let mut boxes = Vec::new();
        for contour in &contours {
            boxes.extend(self.text_box(contour, &mut scores, image)?);
        }
        self.order.apply(&mut boxes);
        Ok(boxes)
    }

    /// The box of a contour; `None` if it is too small or its score is too low.
    fn text_box(
        &self,
        contour: &[MapPoint],
        scores: &mut ScoredMap<'_>,
        image: Sides,
    ) -> Result<Option<TextBox>, Error> {
        let points: Vec<_> = contour.iter().map(|point| point.map(i32::from)).collect();
        let Some(rectangle) = Rectangle::around(&points).filter(|found| found.shorter_side() >= self.side_min) else {
            return Ok(None);
        };
        let corners = rectangle.corners();
        let score = if self.is_slow { scores.of_contour(contour)? } else { scores.of_box(&corners)? };
        if self.box_threshold > score {
            return Ok(None);
        }
        let grown = unclip::grown(&corners, unclip::distance(&corners, self.unclip_ratio));
        let grown = Rectangle::around(&grown).filter(|found| found.shorter_side() >= self.side_min + 2.0);
        Ok(grown
            .and_then(|grown| placed(&grown.corners(), scores.sides, image))
            .map(|corners| TextBox { corners, score: score as f32 }))
    }
}

/// The corners of a box in the image, whole and in order; `None` if two of its sides have at most 3 pixels.
fn placed(corners: &[Corner; 4], sides: Sides, image: Sides) -> Option<[Corner; 4]> {
    let ([height, width], [image_height, image_width]) = (sides, image);
    // Adding 0 turns -0 into 0, as an integer is.
    let scaled = |value: f32, side: usize, image: usize| {
        (value / side as f32 * image as f32).round_ties_even().clamp(0.0, image as f32) + 0.0
    };
    let scaled = corners.map(|[x, y]| [scaled(x, width, image_width), scaled(y, height, image_height)]);
    let within = |[x, y]: Corner| [x.min(image_width as f32 - 1.0), y.min(image_height as f32 - 1.0)];
    let corners = clockwise(scaled).map(within);
    let [upper_left, upper_right, _, lower_left] = corners;
    let is_short = |[x, y]: Corner, [to_x, to_y]: Corner| {
        let (dx, dy) = (to_x - x, to_y - y);
        dx * dx + dy * dy < 16.0
    };
    (!is_short(upper_left, upper_right) && !is_short(upper_left, lower_left)).then_some(corners)
}

/// The corners from the upper left one on, clockwise: `order_points_clockwise`. Of equal coordinates the first comes first.
fn clockwise(mut corners: [Corner; 4]) -> [Corner; 4] {
    corners.sort_by(|left, right| left[0].total_cmp(&right[0]));
    let [a, b, c, d] = corners;
    let in_order = |first: Corner, second: Corner| if second[1] < first[1] { [second, first] } else { [first, second] };
    let ([upper_left, lower_left], [upper_right, lower_right]) = (in_order(a, b), in_order(c, d));
    [upper_left, upper_right, lower_right, lower_left]
}

/// A map whose parts get scores.
struct ScoredMap<'a> {
    map: &'a [f32],
    sides: Sides,
    mask: PolygonMask,
    /// Pixels that were looked at.
    pixel_count: usize,
}

impl ScoredMap<'_> {
    /// The mean in a rectangle whose corners are truncated: `box_score_fast`.
    fn of_box(&mut self, corners: &[Corner; 4]) -> Result<f64, Error> {
        let range = |axis: usize, side: usize| {
            let sides = corners.map(|corner| if axis == 0 { corner[0] } else { corner[1] });
            let (least, most) = sides.iter().fold((f32::MAX, f32::MIN), |(a, b), side| (a.min(*side), b.max(*side)));
            let within = |value: f32| (value as i32).clamp(0, side as i32 - 1);
            (within(least.floor()), within(most.ceil()))
        };
        let [height, width] = self.sides;
        let ((left, right), (top, bottom)) = (range(0, width), range(1, height));
        let points = corners.map(|[x, y]| [(x - left as f32) as i32, (y - top as f32) as i32]);
        self.mean([left, top, right, bottom].map(|side| side as usize), points.into_iter())
    }

    /// The mean in a contour: `box_score_slow`.
    fn of_contour(&mut self, contour: &[MapPoint]) -> Result<f64, Error> {
        let mut bounds = [u16::MAX, u16::MAX, 0, 0];
        for [x, y] in contour {
            let [left, top, right, bottom] = bounds;
            bounds = [left.min(*x), top.min(*y), right.max(*x), bottom.max(*y)];
        }
        let [left, top, ..] = bounds.map(i32::from);
        let points = contour.iter().map(|[x, y]| [i32::from(*x) - left, i32::from(*y) - top]);
        self.mean(bounds.map(usize::from), points)
    }

    /// The mean in a polygon, whose points count from the left top corner of its bounds; 0 for one without a pixel.
    fn mean(
        &mut self,
        [left, top, right, bottom]: [usize; 4],
        points: impl ExactSizeIterator<Item = [i32; 2]> + Clone,
    ) -> Result<f64, Error> {
        let (width, height) = (right + 1 - left, bottom + 1 - top);
        self.pixel_count = self.pixel_count.saturating_add(width.saturating_mul(height));
        if self.pixel_count > TEXT_SCORED_PIXELS_MAX {
            return Err(Error::invalid(format!(
                "'map' has so large boxes that their scores would need more than {TEXT_SCORED_PIXELS_MAX} pixels"
            )));
        }
        self.mask.draw(width, height, points);
        let (mut total, mut count) = (0.0, 0_u64);
        let rows = self.map.chunks_exact(self.sides[1]).skip(top);
        for (row, mask) in rows.zip(self.mask.rows()) {
            let row = row.get(left..=right).unwrap_or_default();
            for (value, cell) in row.iter().zip(mask) {
                if *cell != 0 {
                    total += f64::from(*value);
                    count += 1;
                }
            }
        }
        Ok(if count == 0 { 0.0 } else { total / count as f64 })
    }
}

impl Step for TextBoxes {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (rows, sides) = map_sides(input)?;
        let sizes = inputs.get(1).copied().flatten().map(|sizes| original_sizes(sizes, rows)).transpose()?;
        let values = floats("map", input)?;
        let maps = values.chunks_exact(sides[0] * sides[1]).enumerate();
        let found = maps.map(|(row, map)| {
            let image = sizes.as_ref().and_then(|sizes| sizes.get(row)).copied().unwrap_or(sides);
            self.found(map, sides, image)
        });
        Ok(outputs(input, &found.collect::<Result<Vec<_>, _>>()?))
    }
}

/// The count of maps, and the height and width of each.
fn map_sides(input: &Tensor) -> Result<(usize, Sides), Error> {
    let meaning = "[1, height, width]";
    let (rows, [channels, height, width]) = trailing::<3>("map", meaning, input)?;
    let is_large = height > IMAGE_SIDE_MAX || width > IMAGE_SIDE_MAX || height * width > TEXT_MAP_PIXELS_MAX;
    if channels != 1 || height == 0 || width == 0 || is_large || rows > IMAGES_MAX {
        let shape = &input.shape[..];
        return Err(Error::invalid(format!(
            "'map' must have a shape that ends with {meaning}, with 1 to {TEXT_MAP_PIXELS_MAX} pixels, at most \
             {IMAGE_SIDE_MAX} on a side and {IMAGES_MAX} images, but its shape is {shape:?}"
        )));
    }
    Ok((rows, [height, width]))
}

fn outputs(input: &Tensor, rows: &[Vec<TextBox>]) -> Vec<Option<Tensor>> {
    let width = rows.iter().map(Vec::len).max().unwrap_or(0);
    let leading = input.shape.get(..input.shape.len().saturating_sub(3)).unwrap_or_default();
    let shape =
        |sizes: &[usize]| -> Shape { leading.iter().copied().chain(sizes.iter().map(|size| *size as i64)).collect() };
    let cells = || rows.iter().flat_map(|row| (0..width).map(|place| row.get(place)));
    let corners: Vec<f32> =
        cells().flat_map(|cell| cell.map_or([[0.0; 2]; 4], |cell| cell.corners)).flatten().collect();
    let scores: Vec<f32> = cells().map(|cell| cell.map_or(0.0, |cell| cell.score)).collect();
    let counts: Vec<i64> = rows.iter().map(|row| row.len() as i64).collect();
    vec![
        Some(Tensor { shape: shape(&[width, 4, 2]), ..of_numbers(Datatype::Fp32, &[], corners) }),
        Some(Tensor { shape: shape(&[width]), ..of_numbers(Datatype::Fp32, &[], scores) }),
        Some(Tensor { shape: shape(&[]), ..of_numbers(Datatype::Int64, &[], counts) }),
    ]
}
