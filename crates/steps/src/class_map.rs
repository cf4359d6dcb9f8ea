//! `class_map`: the scores of a network for semantic segmentation to a class for each pixel.

use base::error::Error;
use base::tensor::{Datatype, Tensor};
use bytemuck::NoUninit;

use crate::bilinear::{Neighbours, between, neighbours};
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::image::vector::vectorized;
use crate::image::{opencv, pillow};
use crate::kind::{Step, StepKind, StepPort};
use crate::limits::{CLASS_SCORES_MAX, CLASSES_MAX, IMAGE_OUTPUT_SIZE_MAX, IMAGE_SIDE_MAX, IMAGES_MAX};
use crate::original_size::original_sizes;
use crate::tensors::{floats, of_numbers, rows_and, trailing};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "class_map",
    about: "Takes the class with the highest score at each pixel, the first of equals, as `argmax` over the classes; in the size of \
            the network's output or of the image.",
    inputs: &[
        StepPort { name: "scores", about: "Numbers [.., classes, rows, columns].", is_optional: false },
        StepPort {
            name: "original_size",
            about: "INT64 [.., 2]: height and width of each image, all the same. Needed for `resize`.",
            is_optional: true,
        },
    ],
    outputs: &[StepPort { name: "classes", about: "Integers [.., height, width].", is_optional: false }],
    fields: &[
        Field {
            name: "resize",
            kind: FieldKind::Choice(&["none", "classes", "scores"]),
            default: FieldDefault::Json("\"none\""),
            about: "To the size of the image: `classes` takes the nearest pixel of the result, as `cv2.resize` with `INTER_NEAREST` \
                    or Pillow's `NEAREST`; `scores` interpolates the scores before, as transformers' \
                    `post_process_semantic_segmentation` does with torch's `interpolate(mode=\"bilinear\", \
                    align_corners=False)`.",
        },
        Field {
            name: "library",
            kind: FieldKind::Choice(&["opencv", "pillow"]),
            default: FieldDefault::Json("\"opencv\""),
            about: "With `classes`: the library whose nearest pixel it is.",
        },
        Field {
            name: "datatype",
            kind: FieldKind::Choice(&["UINT8", "INT32", "INT64"]),
            default: FieldDefault::Json("\"UINT8\""),
            about: "The datatype of the output.",
        },
    ],
    is_short: false,
    build: |fields| Ok(Box::new(ClassMap::build(fields)?)),
};

struct ClassMap {
    resize: ClassResize,
    datatype: Datatype,
}

/// The way to the size of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClassResize {
    /// The nearest pixel of OpenCV.
    NearestOpencv,
    /// The nearest pixel of Pillow.
    NearestPillow,
    /// The size of the scores stays.
    Never,
    /// Scores are interpolated.
    Scores,
}

impl ClassMap {
    fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let resize = match (&fields.text("resize")[..], &fields.text("library")[..]) {
            ("scores", _) => ClassResize::Scores,
            ("classes", "pillow") => ClassResize::NearestPillow,
            ("classes", _) => ClassResize::NearestOpencv,
            _ => ClassResize::Never,
        };
        let has_size = fields.is_connected(1);
        if has_size != (resize != ClassResize::Never) {
            return Err(
                fields.error("resize", "\"classes\" and \"scores\" need \"original_size\", and it needs one of them")
            );
        }
        Ok(Self { resize, datatype: Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Uint8) })
    }

    /// The classes of one image.
    fn classes(&self, scores: &[f32], sides: [usize; 2], image: [usize; 2]) -> Vec<u32> {
        if self.resize == ClassResize::Scores {
            return interpolated(scores, sides, image);
        }
        let mut best = BestClasses::default();
        best.restart(sides[0] * sides[1]);
        for (class, scores) in (0..).zip(scores.chunks_exact(sides[0] * sides[1])) {
            best.add(class, scores);
        }
        let places = match self.resize {
            ClassResize::NearestOpencv => opencv::nearest_places,
            ClassResize::NearestPillow => pillow::nearest_positions,
            ClassResize::Never | ClassResize::Scores => return best.classes,
        };
        let (rows, columns) = (places(sides[0], image[0]), places(sides[1], image[1]));
        let row = |row: &usize| best.classes.get(row * sides[1]..(row + 1) * sides[1]).unwrap_or_default();
        let at = |row: &[u32], column: &usize| row.get(*column).copied().unwrap_or(0);
        rows.iter().flat_map(|index| columns.iter().map(move |column| at(row(index), column))).collect()
    }
}

/// The best class at each of some pixels, and its score.
#[derive(Default)]
struct BestClasses {
    scores: Vec<f32>,
    classes: Vec<u32>,
}

impl BestClasses {
    fn restart(&mut self, count: usize) {
        self.scores.clear();
        self.scores.resize(count, f32::NEG_INFINITY);
        self.classes.clear();
        self.classes.resize(count, 0);
    }

    /// Adds a class: it is the best where its score is higher, or the first NaN.
    fn add(&mut self, class: u32, scores: &[f32]) {
        let (best_scores, classes) = (&mut self.scores, &mut self.classes);
        vectorized(
            #[inline(always)]
            || {
                for ((best, own), score) in best_scores.iter_mut().zip(classes).zip(scores) {
                    let is_better = *score > *best || (score.is_nan() & !best.is_nan());
                    *best = if is_better { *score } else { *best };
                    *own = if is_better { class } else { *own };
                }
            },
        );
    }
}

/// The best classes of scores that are interpolated, row by row.
fn interpolated(scores: &[f32], [height, width]: [usize; 2], image: [usize; 2]) -> Vec<u32> {
    let (rows, columns): (Vec<Neighbours>, Vec<Neighbours>) =
        (neighbours(height, image[0]), neighbours(width, image[1]));
    let mut classes = Vec::with_capacity(image[0] * image[1]);
    let (mut best, mut values) = (BestClasses::default(), Vec::with_capacity(image[1]));
    for row in &rows {
        best.restart(image[1]);
        for (class, plane) in (0..).zip(scores.chunks_exact(height * width)) {
            let of = |row: usize| plane.get(row * width..(row + 1) * width).unwrap_or_default();
            values.clear();
            vectorized(
                #[inline(always)]
                || between([of(row.first), of(row.second)], row.weights, &columns, &mut values),
            );
            best.add(class, &values);
        }
        classes.extend_from_slice(&best.classes);
    }
    classes
}

impl Step for ClassMap {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(Vec::new()) };
        let (images, [class_count, height, width]) = trailing::<3>("scores", "[classes, rows, columns]", input)?;
        let classes_max = if self.datatype == Datatype::Uint8 { 256 } else { CLASSES_MAX };
        let is_side = |side: usize| (1..=IMAGE_SIDE_MAX).contains(&side);
        if !(1..=classes_max).contains(&class_count) || !is_side(height) || !is_side(width) || images > IMAGES_MAX {
            let shape = &input.shape[..];
            return Err(Error::invalid(format!(
                "'scores' must have a shape that ends with [classes, rows, columns], with 1 to {classes_max} classes, 1 to \
                 {IMAGE_SIDE_MAX} pixels on a side and at most {IMAGES_MAX} images, but its shape is {shape:?}"
            )));
        }
        let sizes = inputs.get(1).copied().flatten().map(|sizes| original_sizes(sizes, images)).transpose()?;
        let size = sizes.as_ref().and_then(|sizes| sizes.first()).copied().unwrap_or([height, width]);
        if sizes.is_some_and(|sizes| sizes.iter().any(|other| *other != size)) {
            return Err(Error::invalid("'original_size' has several sizes: send one image at a time"));
        }
        let count = size[0].saturating_mul(size[1]).saturating_mul(images);
        let is_large = self.resize == ClassResize::Scores && count.saturating_mul(class_count) > CLASS_SCORES_MAX;
        if count.saturating_mul(8) > IMAGE_OUTPUT_SIZE_MAX || is_large {
            return Err(Error::invalid(format!(
                "'classes' would have {images} images of {} × {} pixels in {class_count} classes: more than the \
                 {IMAGE_OUTPUT_SIZE_MAX} bytes, or than the {CLASS_SCORES_MAX} scores that may be interpolated",
                size[0], size[1]
            )));
        }
        let scores = floats("scores", input)?;
        let mut classes = Vec::with_capacity(count);
        for scores in scores.chunks_exact(class_count * height * width) {
            classes.extend(self.classes(scores, [height, width], size));
        }
        let shape = rows_and(input, 3, &size);
        let tensor = match self.datatype {
            Datatype::Uint8 => converted(self.datatype, classes, |class| class as u8),
            Datatype::Int32 => converted(self.datatype, classes, |class| class.cast_signed()),
            _ => converted(self.datatype, classes, i64::from),
        };
        Ok(vec![Some(Tensor { shape, ..tensor })])
    }
}

fn converted<T: NoUninit + Send + Sync>(datatype: Datatype, classes: Vec<u32>, number: fn(u32) -> T) -> Tensor {
    of_numbers(datatype, &[], classes.into_iter().map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::{integers, of_floats};
    use crate::trial::{built, fault, run};

    #[test]
    fn the_first_of_equals_and_the_first_nan_win() {
        let scores = [[1.0, 0.0, f32::NAN, 0.0], [1.0, 2.0, 9.0, f32::NAN], [0.5, 2.0, f32::NAN, f32::NAN]];
        let scores = of_floats(&[3, 1, 4], scores.concat());
        let got = run("class_map", &[("scores", &scores)], &["classes"], "").unwrap();
        assert_eq!(integers("", &got[0]).unwrap()[..], [0, 1, 0, 1]);
    }

    #[test]
    fn faults_are_named() {
        let size = |sizes: Vec<i64>| of_numbers::<i64>(Datatype::Int64, &[sizes.len() / 2, 2], sizes);
        let check = |shape: &[usize], sizes: Vec<i64>, members: &str, want: &str| {
            let scores = of_floats(shape, vec![0.0; shape.iter().product()]);
            let error =
                fault("class_map", &[("scores", &scores), ("original_size", &size(sizes))], &["classes"], members);
            assert!(error.contains(want), "{error}");
        };
        let nearest = r#""resize": "classes""#;
        check(&[1, 257, 1, 1], vec![1, 1], nearest, "with 1 to 256 classes");
        check(&[2, 1, 1, 1], vec![1, 1, 1, 2], nearest, "'original_size' has several sizes");
        check(&[1, 1, 0, 1], vec![1, 1], nearest, "1 to 32768 pixels on a side");
        check(&[1, 1, 1, 1], vec![12_000, 12_000], nearest, "more than the 1073741824 bytes");
        let scores = r#""resize": "scores", "datatype": "INT64""#;
        check(&[1, 300, 1, 1], vec![4000, 4000], scores, "than the 2147483648 scores");
        let error = built("class_map", &["scores"], &["classes"], nearest).err().unwrap();
        assert!(error.contains("\"resize\": \"classes\" and \"scores\" need \"original_size\""), "{error}");
    }
}
