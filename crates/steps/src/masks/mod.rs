//! `masks`: the masks of objects, from the prototypes of a YOLO-seg network.

#[cfg(test)]
mod tests;

use std::ops::Range;

use base::error::Error;
use base::tensor::{Datatype, Tensor};

use crate::bilinear::{Neighbours, between, neighbours};
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::image::vector::vectorized;
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{IMAGE_OUTPUT_SIZE_MAX, IMAGE_SIDE_MAX, IMAGES_MAX, MASK_COEFFICIENTS_MAX, MASK_PRODUCTS_MAX};
use crate::original_size::original_sizes;
use crate::tensors::{floats, integers, of_numbers, rows_and, trailing};
use crate::vector::sigmoid;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "masks",
    about: "Makes the masks of the boxes that `detect` found: each is the sum of the prototypes of a YOLO-seg network, weighted by \
            the coefficients of the box, resized between their pixels, cut to the box, and compared with a threshold, as \
            Ultralytics' `process_mask` and `process_mask_native` do. It computes in FP32; where a value is within some millionths \
            of the threshold, torch may decide otherwise.",
    inputs: &[
        input("prototypes", "Numbers [.., m, rows, columns].", false),
        input("coefficients", "Numbers [.., n, m]: those of each box.", false),
        input(
            "boxes",
            "Numbers [.., n, 4]: left, top, right and bottom, in the network's input, or in the image with `resolution` \
             `original`.",
            false,
        ),
        input("counts", "INT64 [..]: the count of boxes of each image; all without it.", true),
        input("original_size", "INT64 [.., 2]: height and width of each image, for `resolution` `original`.", true),
    ],
    outputs: &[StepPort {
        name: "masks",
        about: "UINT8 [.., n, height, width]: 1 in an object. Zeros follow the masks of an image with fewer boxes.",
        is_optional: false,
    }],
    fields: &[
        Field {
            name: "resolution",
            kind: FieldKind::Choice(&["prototype", "input", "original"]),
            default: FieldDefault::Json("\"input\""),
            about: "The size of the masks: that of the prototypes, as `process_mask`; that of the network's input, as the same with \
                    `upsample=True`; or that of the image, as `process_mask_native`, which needs images of one size in a request.",
        },
        Field {
            name: "input_size",
            kind: FieldKind::Integers { count: 2, least: 1, most: IMAGE_SIDE_MAX as i64 },
            default: FieldDefault::Json("[]"),
            about: "Height and width of the network's input; not for `original`.",
        },
        Field {
            name: "padding",
            kind: FieldKind::Bool,
            default: FieldDefault::Json("true"),
            about: "With `original`: the image is in the middle of the input, as in a letterbox; otherwise at its left top corner.",
        },
        Field {
            name: "activation",
            kind: FieldKind::Choice(&["none", "sigmoid"]),
            default: FieldDefault::Json("\"none\""),
            about: "Of the sums, before they are resized: `sigmoid` in older code, with a threshold of 0.5.",
        },
        Field {
            name: "threshold",
            kind: FieldKind::Number(-1e9, 1e9),
            default: FieldDefault::Json("0"),
            about: "A pixel above it is of the object.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(Masks::build(fields)?)),
};

const fn input(name: &'static str, about: &'static str, is_optional: bool) -> StepPort {
    StepPort { name, about, is_optional }
}

struct Masks {
    resolution: MaskResolution,
    is_sigmoid: bool,
    threshold: f32,
}

/// The size of masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MaskResolution {
    /// That of the input: height and width.
    Input([usize; 2]),
    /// That of the image.
    Original {
        /// The image is in the middle of the input.
        is_padded: bool,
    },
    /// That of the prototypes of an input with this height and width.
    Prototype([usize; 2]),
}

/// The prototypes of one image, and the way to its masks.
struct MaskPlane<'a> {
    prototypes: &'a [f32],
    /// Height and width of the prototypes.
    sides: [usize; 2],
    rows: Vec<Neighbours>,
    columns: Vec<Neighbours>,
    /// Multiplies the coordinates of boxes, x and y.
    ratio: [f32; 2],
}

impl Masks {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let sizes: Vec<_> =
            fields.integers("input_size").into_iter().filter_map(|side| usize::try_from(side).ok()).collect();
        let resolution = match (&fields.text("resolution")[..], &sizes[..]) {
            ("original", []) if !fields.is_connected(SIZE) => {
                return Err(fields.error("inputs", "the resolution \"original\" needs \"original_size\""));
            }
            ("original", []) => MaskResolution::Original { is_padded: fields.flag("padding") },
            ("original", _) => return Err(fields.error("input_size", "has no meaning for the resolution \"original\"")),
            ("prototype", [height, width]) => MaskResolution::Prototype([*height, *width]),
            (_, [height, width]) => MaskResolution::Input([*height, *width]),
            _ => return Err(fields.error("input_size", "must be the height and width of the network's input")),
        };
        Ok(Self {
            resolution,
            is_sigmoid: fields.text("activation") == "sigmoid",
            threshold: fields.number("threshold").unwrap_or(0.0) as f32,
        })
    }

    /// The height and width of all masks.
    fn canvas(&self, sides: [usize; 2], images: Option<&[[usize; 2]]>) -> Result<[usize; 2], Error> {
        match self.resolution {
            MaskResolution::Input(size) => Ok(size),
            MaskResolution::Prototype(_) => Ok(sides),
            MaskResolution::Original { .. } => {
                let images = images.unwrap_or_default();
                let first = images.first().copied().unwrap_or_default();
                if images.iter().all(|size| *size == first) {
                    return Ok(first);
                }
                Err(Error::invalid("'original_size' has several sizes: send one image at a time"))
            }
        }
    }

    fn plane<'a>(&self, prototypes: &'a [f32], sides: [usize; 2], canvas: [usize; 2]) -> MaskPlane<'a> {
        let [height, width] = sides;
        let resized = |from: Range<usize>, to: usize| -> Vec<Neighbours> {
            let moved = |neighbours: Neighbours| Neighbours {
                first: neighbours.first + from.start,
                second: neighbours.second + from.start,
                ..neighbours
            };
            neighbours(from.len(), to).into_iter().map(moved).collect()
        };
        let [rows, columns] = match self.resolution {
            MaskResolution::Original { is_padded } => inner(sides, canvas, is_padded),
            _ => [0..height, 0..width],
        };
        let ratio = match self.resolution {
            MaskResolution::Prototype([input_height, input_width]) => {
                [(width as f64 / input_width as f64) as f32, (height as f64 / input_height as f64) as f32]
            }
            _ => [1.0; 2],
        };
        let (rows, columns) = (resized(rows, canvas[0]), resized(columns, canvas[1]));
        MaskPlane { prototypes, sides, rows, columns, ratio }
    }

    /// Draws the mask of a box.
    fn draw(&self, plane: &MaskPlane<'_>, coefficients: &[f32], corners: [f32; 4], mask: &mut [u8]) {
        let [x_ratio, y_ratio] = plane.ratio;
        let [left, top, right, bottom] = corners;
        let columns = within(left * x_ratio, right * x_ratio, plane.columns.len());
        let rows = within(top * y_ratio, bottom * y_ratio, plane.rows.len());
        let neighbours = plane.columns.get(columns.clone()).unwrap_or_default();
        let used = plane.rows.get(rows.clone()).unwrap_or_default();
        let (Some(first), Some(last)) = (used.first(), used.last()) else { return };
        let (Some(left), Some(right)) = (neighbours.first(), neighbours.last()) else { return };
        // The sums of all that the box needs.
        let (start, width) = (left.first, right.second + 1 - left.first);
        let mut sums = Vec::with_capacity(width * (last.second + 1 - first.first));
        vectorized(
            #[inline(always)]
            || {
                for row in first.first..=last.second {
                    let from = sums.len();
                    sums.resize(from + width, 0.0_f32);
                    let sums = sums.get_mut(from..).unwrap_or_default();
                    let [height, stride] = plane.sides;
                    let planes = plane.prototypes.chunks_exact(height * stride);
                    for (coefficient, prototypes) in coefficients.iter().zip(planes) {
                        let from = row * stride + start;
                        let prototypes = prototypes.get(from..from + width).unwrap_or_default();
                        for (sum, value) in sums.iter_mut().zip(prototypes) {
                            *sum += coefficient * value;
                        }
                    }
                    if self.is_sigmoid {
                        sums.iter_mut().for_each(|sum| *sum = sigmoid(*sum));
                    }
                }
                let columns_used: Vec<_> = neighbours
                    .iter()
                    .map(|column| Neighbours { first: column.first - start, second: column.second - start, ..*column })
                    .collect();
                let mut values = Vec::with_capacity(columns_used.len());
                let mask_rows = mask.chunks_exact_mut(plane.columns.len()).skip(rows.start);
                for (row, cells) in used.iter().zip(mask_rows) {
                    let sums = |row: usize| {
                        let from = (row - first.first) * width;
                        sums.get(from..from + width).unwrap_or_default()
                    };
                    values.clear();
                    between([sums(row.first), sums(row.second)], row.weights, &columns_used, &mut values);
                    for (cell, value) in cells.iter_mut().skip(columns.start).zip(&values) {
                        *cell = u8::from(*value > self.threshold);
                    }
                }
            },
        );
    }
}

/// The places from the first that is not below `least` to the last below `most`, among `count`.
fn within(least: f32, most: f32, count: usize) -> Range<usize> {
    // Conversions keep within the range of the integer; NaN becomes 0, and has no place in a box.
    let start = if least.is_nan() { count } else { (least.ceil() as usize).min(count) };
    let end = (most.ceil() as usize).min(count);
    start..end.max(start)
}

/// The rows and columns of the prototypes that show the image: `scale_masks`.
fn inner(sides: [usize; 2], image: [usize; 2], is_padded: bool) -> [Range<usize>; 2] {
    let gains: Vec<_> = sides.iter().zip(image).map(|(side, image)| *side as f64 / image as f64).collect();
    let gain = gains.iter().copied().fold(f64::INFINITY, f64::min);
    let range = |side: usize, image: usize| {
        let pad = side as f64 - image as f64 * gain;
        let pad = if is_padded { pad / 2.0 } else { pad };
        let start = if is_padded { (pad - 0.1).round_ties_even().max(0.0) as usize } else { 0 };
        let end = side.saturating_sub((pad + 0.1).round_ties_even().max(0.0) as usize);
        // An image that is far longer than wide keeps a row.
        if start < end { start..end } else { start.min(side - 1)..start.min(side - 1) + 1 }
    };
    let ([height, width], [image_height, image_width]) = (sides, image);
    [range(height, image_height), range(width, image_width)]
}

/// The place of `original_size` among the inputs.
const SIZE: usize = 4;

impl Step for Masks {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let at = |place: usize| inputs.get(place).copied().flatten();
        let (Some(prototypes), Some(coefficients), Some(boxes)) = (at(0), at(1), at(2)) else { return Ok(Vec::new()) };
        let (images, [m, height, width]) = trailing::<3>("prototypes", "[m, rows, columns]", prototypes)?;
        let (rows, [n, numbers]) = trailing::<2>("coefficients", "[n, m]", coefficients)?;
        let (box_rows, [box_count, four]) = trailing::<2>("boxes", "[n, 4]", boxes)?;
        let is_small = (1..=IMAGE_SIDE_MAX).contains(&height)
            && (1..=IMAGE_SIDE_MAX).contains(&width)
            && (1..=MASK_COEFFICIENTS_MAX).contains(&m)
            && images <= IMAGES_MAX;
        if !is_small || (rows, numbers) != (images, m) || (box_rows, box_count, four) != (images, n, 4) {
            let [prototypes, coefficients, boxes] = [&prototypes.shape[..], &coefficients.shape[..], &boxes.shape[..]];
            return Err(Error::invalid(format!(
                "'prototypes' must have the shape [.., m, rows, columns] with 1 to {MASK_COEFFICIENTS_MAX} prototypes, 1 to \
                 {IMAGE_SIDE_MAX} pixels on a side and at most {IMAGES_MAX} images, 'coefficients' [.., n, m] and 'boxes' \
                 [.., n, 4], but they are {prototypes:?}, {coefficients:?} and {boxes:?}"
            )));
        }
        let counts = at(3).map(|counts| integers("counts", counts)).transpose()?;
        if counts.as_ref().is_some_and(|counts| counts.len() != images) {
            return Err(Error::invalid(format!("'counts' must have a number for each of {images} images")));
        }
        let products = [n, m, height, width].into_iter().fold(images, usize::saturating_mul);
        if products > MASK_PRODUCTS_MAX {
            return Err(Error::invalid(format!(
                "'masks' would need {products} products of coefficients and prototypes, but at most {MASK_PRODUCTS_MAX} are allowed"
            )));
        }
        let sizes = at(SIZE).map(|sizes| original_sizes(sizes, images)).transpose()?;
        let canvas = self.canvas([height, width], sizes.as_deref())?;
        let mask_size = canvas[0].saturating_mul(canvas[1]);
        let size = images.saturating_mul(n).saturating_mul(mask_size);
        if size > IMAGE_OUTPUT_SIZE_MAX {
            return Err(Error::invalid(format!(
                "'masks' would have {images} × {n} masks of {} × {} pixels, more than the {IMAGE_OUTPUT_SIZE_MAX} bytes that are \
                 allowed",
                canvas[0], canvas[1]
            )));
        }
        let mut masks = vec![0; size];
        let prototypes = floats("prototypes", prototypes)?;
        let (coefficients, corners) = (floats("coefficients", coefficients)?, floats("boxes", boxes)?);
        let mut of_images = masks.chunks_exact_mut(n.saturating_mul(mask_size).max(1));
        let mut coefficients = coefficients.chunks_exact(n.saturating_mul(m).max(1));
        let mut corners = corners.as_chunks::<4>().0.chunks_exact(n.max(1));
        for (image, prototypes) in prototypes.chunks_exact(m * height * width).enumerate() {
            let plane = self.plane(prototypes, [height, width], canvas);
            let count =
                counts.as_ref().and_then(|counts| counts.get(image)).map_or(n, |count| (*count).max(0) as usize);
            let masks = of_images.next().unwrap_or_default().chunks_exact_mut(mask_size.max(1));
            let coefficients = coefficients.next().unwrap_or_default().chunks_exact(m);
            let corners = corners.next().unwrap_or_default();
            for ((mask, coefficients), corners) in masks.zip(coefficients).zip(corners).take(count) {
                self.draw(&plane, coefficients, *corners, mask);
            }
        }
        let shape = rows_and(boxes, 2, &[n, canvas[0], canvas[1]]);
        Ok(vec![Some(Tensor { shape, ..of_numbers(Datatype::Uint8, &[], masks) })])
    }
}
