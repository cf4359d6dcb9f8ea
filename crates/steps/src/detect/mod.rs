//! `detect`: the outputs of a detector to boxes in the image.

mod config;
mod decode;
mod place;
mod suppress;
#[cfg(test)]
mod tests;

use base::error::Error;
use base::tensor::{Datatype, Shape, Tensor};

use crate::boxes::BoxFormat;
use crate::fields::{Field, FieldDefault, FieldKind};
use crate::kind::{Step, StepKind, StepPort};
use crate::labels;
use crate::limits::{CLASSES_MAX, DETECT_CANDIDATES_MAX, IMAGES_MAX, TENSOR_SIZE_MAX};
use crate::tensors::{floats, of_numbers, rows_and, trailing};
use crate::texts::TextWriter;

use self::config::{COEFFICIENTS, Detect, MapAt};
use self::decode::{BoxLayout, Detection, rows_of_boxes, rows_of_classes};
use self::place::{BoxPlacement, Images};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "detect",
    about: "Turns the outputs of a detector into boxes: decodes the layout, drops low scores, suppresses boxes that \
            overlap, and maps what is left to the image. It computes in FP32, in the order of operations of the public \
            code that each parameter names. A box with a score that is NaN is dropped. Images can have different \
            counts: shorter rows are filled up with zeros, class -1 and an empty label, and `counts` has the count of \
            each.",
    inputs: &[
        input("predictions", "Numbers, one tensor with all of a box, as `layout` says."),
        input("boxes", "With `layout` `apart`: numbers [.., boxes, 4]."),
        input("scores", "With `layout` `apart`: numbers [.., boxes]."),
        input("classes", "With `layout` `apart`: numbers [.., boxes]; class 0 without it."),
        input("num_detections", "With `layout` `apart`: numbers, one for each image; all boxes without it."),
        input("ratio", "With `mapping` `letterbox`: the ratio of each image, one number or x and y."),
        input("pad", "With `ratio`: the left and top border of each image."),
        input("original_size", "INT64 [.., 2]: height and width of each image."),
    ],
    outputs: &[
        output("boxes", "FP32 [.., n, 4]: the boxes, in `output_format`."),
        output("scores", "FP32 [.., n]: their scores."),
        output("classes", "INT64 [.., n]: their classes."),
        output("labels", "BYTES [.., n]: the labels of the classes."),
        output("counts", "INT64 [..]: the count of boxes of each image."),
        output("detections", "FP32 [.., n, 6]: all of a box in one array, in the order of `columns`."),
        output(
            "coefficients",
            "FP32 [.., n, m]: the numbers of a box behind its classes, or behind its class in `end_to_end`: those of the masks of a \
             YOLO-seg network.",
        ),
    ],
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(Detect::build(fields)?)),
};

const fn input(name: &'static str, about: &'static str) -> StepPort {
    StepPort { name, about, is_optional: true }
}

const fn output(name: &'static str, about: &'static str) -> StepPort {
    StepPort { name, about, is_optional: false }
}

const fn choice(
    name: &'static str,
    names: &'static [&'static str],
    default: &'static str,
    about: &'static str,
) -> Field {
    Field { name, kind: FieldKind::Choice(names), default: FieldDefault::Json(default), about }
}

const fn flag(name: &'static str, about: &'static str) -> Field {
    Field { name, kind: FieldKind::Bool, default: FieldDefault::Json("false"), about }
}

const FIELDS: &[Field] = &[
    Field {
        name: "layout",
        kind: FieldKind::Choice(&["yolov8", "yolov8_rows", "yolov5", "end_to_end", "apart"]),
        default: FieldDefault::Required,
        about: "`yolov8`: [.., 4 + classes, boxes], also v9, v11, v12. `yolov8_rows`: its transpose. `yolov5`: [.., \
                boxes, 5 + classes], with the objectness fifth; also v6, v7, X. `end_to_end`: [.., boxes, 6] with box, \
                score, class: v10, and exports with NMS. `apart`: tensors of their own, such as EfficientNMS writes.",
    },
    Field {
        name: "class_count",
        kind: FieldKind::Integer(1, CLASSES_MAX as i64),
        default: FieldDefault::Unset,
        about: "The classes of the YOLO layouts; numbers after them, such as those of masks, are for `coefficients`. All without \
                it.",
    },
    choice(
        "score",
        &["product", "class", "objectness"],
        "\"product\"",
        "With `yolov5`: objectness times the score of the class, of boxes whose objectness is above the threshold too; \
         that of the class alone; or the objectness alone.",
    ),
    Field {
        name: "score_threshold",
        kind: FieldKind::Number(-1e9, 1e9),
        default: FieldDefault::Json("0.25"),
        about: "Drops boxes with a lower score, compared in FP32.",
    },
    choice(
        "compare",
        &[">", ">="],
        "\">\"",
        "Keeps a box if its score is `>` or `>=` the threshold. `cv2.dnn.NMSBoxes` compares with `>`.",
    ),
    flag(
        "multi_label",
        "With the YOLO layouts: a box counts with each class above the threshold, not with the best alone.",
    ),
    Field {
        name: "class_filter",
        kind: FieldKind::Integers { count: CLASSES_MAX, least: 0, most: u32::MAX as i64 },
        default: FieldDefault::Json("[]"),
        about: "Keeps these classes alone; all if the list is empty.",
    },
    Field {
        name: "box_format",
        kind: FieldKind::Choice(&["cxcywh", "xyxy", "xywh", "yxyx"]),
        default: FieldDefault::Unset,
        about: "The numbers of a box: centre and size, two corners, left top corner and size, or two corners with y \
                before x. Without it, `cxcywh` for the YOLO layouts and `xyxy` for the others.",
    },
    Field {
        name: "nms",
        kind: FieldKind::Choice(&["off", "agnostic", "offset", "by_class"]),
        default: FieldDefault::Unset,
        about: "Of boxes that overlap, keeps the one with the highest score. `agnostic`: among all. `offset`: among \
                all, after each is moved by its class times `class_offset`, as Ultralytics does. `by_class`: among \
                those of a class. Without it, `offset` for the YOLO layouts and `off` for the others. `off` keeps the \
                order of the boxes; the others order by score.",
    },
    Field {
        name: "class_offset",
        kind: FieldKind::Number(0.0, 1e6),
        default: FieldDefault::Json("7680"),
        about: "The distance of `nms` `offset`: 7680 in Ultralytics, 4096 in older code.",
    },
    Field {
        name: "iou_threshold",
        kind: FieldKind::Number(0.0, 1.0),
        default: FieldDefault::Json("0.45"),
        about: "The overlap beyond which a box is dropped.",
    },
    choice(
        "iou",
        &["torchvision", "numpy", "opencv"],
        "\"torchvision\"",
        "The formula. `torchvision`: as `torchvision.ops.nms`. `numpy`: the same in FP32 throughout, as code with \
         numpy arrays does. `opencv`: as `cv2.dnn.NMSBoxes`; boxes are kept as corner and size from the start, so that \
         sizes are not rounded.",
    ),
    choice(
        "iou_compare",
        &["<=", "<"],
        "\"<=\"",
        "With `numpy`: keeps a box if its overlap is `<=` or `<` the threshold.",
    ),
    Field {
        name: "epsilon",
        kind: FieldKind::Number(0.0, 1.0),
        default: FieldDefault::Json("0"),
        about: "With `numpy`: added to the union.",
    },
    flag("plus_one", "With `numpy`: adds 1 to widths and heights."),
    choice(
        "ties",
        &["first", "last"],
        "\"first\"",
        "The order of equal scores: `first` as `np.argsort(-scores, kind=\"stable\")`, `cv2.dnn.NMSBoxes` and \
         torchvision; `last` as `np.argsort(scores, kind=\"stable\")[::-1]`.",
    ),
    choice(
        "order",
        &["score", "class"],
        "\"score\"",
        "With `by_class`: the order of the result, all by score, or class after class.",
    ),
    Field {
        name: "max_candidates",
        kind: FieldKind::Integer(1, DETECT_CANDIDATES_MAX as i64),
        default: FieldDefault::Json("30000"),
        about: "Boxes that `nms` looks at: those with the highest scores.",
    },
    Field {
        name: "max_detections",
        kind: FieldKind::Integer(1, DETECT_CANDIDATES_MAX as i64),
        default: FieldDefault::Json("300"),
        about: "Boxes of an image that are kept: the first ones in the order of the result.",
    },
    choice(
        "mapping",
        &["none", "letterbox", "stretch", "stretch_divided", "unit"],
        "\"none\"",
        "From the model's input to the image, by `original_size`. `letterbox`: `(x - pad) / ratio`, with `ratio` and \
         `pad` as inputs or computed from the sizes. `stretch`: `x * (image / input)`. `stretch_divided`: `x / input * \
         image`. `unit`: `x * image`.",
    ),
    Field {
        name: "input_size",
        kind: FieldKind::Integers { count: 2, least: 1, most: 1 << 24 },
        default: FieldDefault::Json("[]"),
        about: "Height and width of the model's input.",
    },
    choice(
        "letterbox_pad",
        &["rounded", "exact", "none"],
        "\"rounded\"",
        "The border that `letterbox` computes: `round((input - image * ratio) / 2 - 0.1)` as Ultralytics, without \
         rounding as YOLOv5, or 0 for an image at the left top corner.",
    ),
    choice(
        "map_at",
        &["end", "before_nms", "start"],
        "\"end\"",
        "When boxes are mapped: at the end with `clip` and `round`; with both before the suppression, as code that \
         scales each box in its loop; or at the start, in `box_format`, as code that scales centres and sizes.",
    ),
    flag("clip", "Keeps coordinates within the image, by `original_size`."),
    choice(
        "round",
        &["none", "truncate", "nearest"],
        "\"none\"",
        "Rounds coordinates, towards zero as `int`, or to the nearest as `round`.",
    ),
    choice(
        "output_format",
        &["xyxy", "xywh", "cxcywh", "yxyx"],
        "\"xyxy\"",
        "The numbers of a box in the outputs, as in `box_format`.",
    ),
    choice(
        "columns",
        &["box,score,class", "box,class,score", "class,score,box", "score,class,box"],
        "\"box,score,class\"",
        "The order of the numbers in `detections`.",
    ),
    labels::LABELS,
    labels::LABELS_FILE,
];

/// The inputs of a run, by place.
struct DetectInputs<'a> {
    predictions: Option<&'a Tensor>,
    boxes: Option<&'a Tensor>,
    scores: Option<&'a Tensor>,
    classes: Option<&'a Tensor>,
    counts: Option<&'a Tensor>,
    images: Images<'a>,
}

impl<'a> DetectInputs<'a> {
    fn of(inputs: &[Option<&'a Tensor>]) -> Self {
        let at = |place: usize| inputs.get(place).copied().flatten();
        let images = Images { ratio: at(5), pad: at(6), size: at(7) };
        Self { predictions: at(0), boxes: at(1), scores: at(2), classes: at(3), counts: at(4), images }
    }
}

impl Step for Detect {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let inputs = DetectInputs::of(inputs);
        let (leading, found) = match (self.layout, inputs.predictions) {
            (BoxLayout::Apart, _) => self.candidates_apart(&inputs)?,
            (_, Some(predictions)) => self.candidates(predictions)?,
            _ => return Ok(Vec::new()),
        };
        let placements = self.placing.placements(&inputs.images, found.len())?;
        let rows: Vec<_> =
            found.into_iter().zip(&placements).map(|(found, placement)| self.finish(found, placement)).collect();
        let mut outputs = self.outputs(&leading, &rows)?;
        if let (true, Some(predictions)) = (self.is_wanted(COEFFICIENTS), inputs.predictions) {
            outputs.push(Some(self.coefficients(predictions, &leading, &rows)?));
        }
        Ok(outputs)
    }
}

impl Detect {
    /// The candidates of each image, and the dimensions of the images.
    fn candidates(&self, predictions: &Tensor) -> Result<(Shape, Vec<Vec<Detection>>), Error> {
        let meaning = if self.layout == BoxLayout::Yolov8 { "[numbers, boxes]" } else { "[boxes, numbers]" };
        let (rows, sizes) = trailing::<2>("predictions", meaning, predictions)?;
        check_images("predictions", rows, predictions)?;
        let (width, boxes) = if self.layout == BoxLayout::Yolov8 { (sizes[0], sizes[1]) } else { (sizes[1], sizes[0]) };
        let start = self.layout.scores_start();
        let least = match self.layout {
            BoxLayout::EndToEnd => start,
            _ => start.saturating_add(self.class_count.unwrap_or(1)),
        };
        if width < least || width > CLASSES_MAX {
            let shape = &predictions.shape[..];
            return Err(Error::invalid(format!(
                "'predictions' must have {least} to {CLASSES_MAX} numbers for each box, {meaning}, but its shape is \
                 {shape:?}"
            )));
        }
        let classes = self.class_count.unwrap_or(width - start);
        let values = floats("predictions", predictions)?;
        let mut found = vec![Vec::new(); rows];
        if boxes > 0 {
            for (image, found) in values.chunks_exact(width.saturating_mul(boxes)).zip(&mut found) {
                match self.layout {
                    BoxLayout::Yolov8 => rows_of_classes(image, boxes, classes, &self.filter, found),
                    layout => rows_of_boxes(image, layout, [width, classes], &self.filter, found),
                }
            }
        }
        Ok((rows_and(predictions, 2, &[]), found))
    }

    /// The same for [`Layout::Apart`].
    fn candidates_apart(&self, inputs: &DetectInputs<'_>) -> Result<(Shape, Vec<Vec<Detection>>), Error> {
        let (Some(boxes), Some(scores)) = (inputs.boxes, inputs.scores) else { return Ok((Shape::new(), Vec::new())) };
        let (rows, [count, four]) = trailing("boxes", "[boxes, 4]", boxes)?;
        check_images("boxes", rows, boxes)?;
        if four != 4 {
            let shape = &boxes.shape[..];
            return Err(Error::invalid(format!(
                "'boxes' must have a shape that ends with [boxes, 4], but its shape is {shape:?}"
            )));
        }
        let fits = |port: &str, tensor: &Tensor, each: usize, meaning: &str| {
            let shape = &tensor.shape[..];
            let elements = base::tensor::element_count(shape).ok().filter(|_| tensor.has_its_size());
            if elements == rows.checked_mul(each) {
                return Ok(());
            }
            Err(Error::invalid(format!(
                "'{port}' must have {meaning} for each of {rows} images, but its shape is {shape:?}"
            )))
        };
        fits("scores", scores, count, &format!("{count} scores"))?;
        let corners = floats("boxes", boxes)?;
        let score_values = floats("scores", scores)?;
        let classes = match inputs.classes {
            Some(classes) => {
                fits("classes", classes, count, &format!("{count} classes"))?;
                floats("classes", classes)?.into_owned()
            }
            None => vec![0.0; score_values.len()],
        };
        let counts = match inputs.counts {
            Some(counts) => {
                fits("num_detections", counts, 1, "a number")?;
                floats("num_detections", counts)?.into_owned()
            }
            None => vec![f32::INFINITY; rows],
        };
        let mut found = vec![Vec::new(); rows];
        let size = count.max(1);
        let images = corners
            .as_chunks::<4>()
            .0
            .chunks_exact(size)
            .zip(score_values.chunks_exact(size))
            .zip(classes.chunks_exact(size));
        for ((((corners, scores), classes), count), found) in images.zip(&counts).zip(&mut found) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counts and classes are from 0"
            )]
            for (((corners, score), class), source) in
                corners.iter().zip(scores).zip(classes).zip(0..).take(*count as usize)
            {
                let class = *class as u32;
                self.filter.push(Detection { corners: *corners, score: *score, class, source }, found);
            }
        }
        Ok((rows_and(boxes, 2, &[]), found))
    }

    /// The boxes of an image among its candidates, mapped to the image and in the format of the outputs.
    fn finish(&self, mut found: Vec<Detection>, placement: &BoxPlacement) -> Vec<Detection> {
        let place = |found: &mut Vec<Detection>, format: BoxFormat| {
            for detection in found.iter_mut() {
                detection.corners = placement.apply(format, detection.corners);
            }
        };
        if self.map_at == MapAt::Start {
            place(&mut found, self.box_format);
        }
        for detection in &mut found {
            detection.corners = self.box_format.to_corner(self.working_format, detection.corners);
        }
        if self.map_at == MapAt::BeforeNms {
            place(&mut found, self.working_format);
        }
        match &self.suppression {
            Some(suppression) => suppression.apply(&mut found),
            None => found.truncate(self.detections_max),
        }
        if self.map_at == MapAt::End {
            place(&mut found, self.working_format);
        }
        for detection in &mut found {
            detection.corners = self.output_format.of_corner(self.working_format, detection.corners);
        }
        found
    }

    fn outputs(&self, leading: &[i64], rows: &[Vec<Detection>]) -> Result<Vec<Option<Tensor>>, Error> {
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = || rows.iter().flat_map(move |row| (0..width).map(|place| row.get(place)));
        let shape = |sizes: &[usize]| -> Shape {
            leading.iter().copied().chain(sizes.iter().map(|size| *size as i64)).collect()
        };
        let singles = |sizes: &[usize], values: Vec<f32>| Tensor {
            shape: shape(sizes),
            ..of_numbers(Datatype::Fp32, &[], values)
        };
        let boxes = || cells().flat_map(|cell| cell.map_or([0.0; 4], |cell| cell.corners)).collect();
        let scores = || cells().map(|cell| cell.map_or(0.0, |cell| cell.score)).collect();
        let classes = || cells().map(|cell| cell.map_or(-1, |cell| i64::from(cell.class))).collect();
        let labels = if self.wants_labels { Some(self.labels_of(cells())?.into_tensor(shape(&[width]))) } else { None };
        let counts = rows.iter().map(|row| row.len() as i64).collect();
        let all = || cells().flat_map(|cell| self.columns.of(cell)).collect();
        Ok(vec![
            self.is_wanted(0).then(|| singles(&[width, 4], boxes())),
            self.is_wanted(1).then(|| singles(&[width], scores())),
            self.is_wanted(2)
                .then(|| Tensor { shape: shape(&[width]), ..of_numbers::<i64>(Datatype::Int64, &[], classes()) }),
            labels,
            Some(Tensor { shape: shape(&[]), ..of_numbers::<i64>(Datatype::Int64, &[], counts) }),
            self.is_wanted(5).then(|| singles(&[width, 6], all())),
        ])
    }

    /// The numbers behind the classes of the boxes that are left.
    fn coefficients(&self, predictions: &Tensor, leading: &[i64], rows: &[Vec<Detection>]) -> Result<Tensor, Error> {
        let (_, [first, second]) = trailing::<2>("predictions", "[boxes, numbers]", predictions)?;
        let is_by_class = self.layout == BoxLayout::Yolov8;
        let (width, boxes) = if is_by_class { (first, second) } else { (second, first) };
        let start = self.layout.scores_start() + self.class_count.unwrap_or(0);
        let (count, columns) = (width.saturating_sub(start), rows.iter().map(Vec::len).max().unwrap_or(0));
        let size = rows.len().saturating_mul(columns).saturating_mul(count);
        if size.saturating_mul(4) > TENSOR_SIZE_MAX {
            return Err(Error::invalid(format!("'coefficients' would be larger than {TENSOR_SIZE_MAX} bytes")));
        }
        let values = floats("predictions", predictions)?;
        let mut found = vec![0.0; size];
        let places = found.chunks_exact_mut(columns.saturating_mul(count).max(1));
        for ((image, row), places) in values.chunks_exact(width.saturating_mul(boxes).max(1)).zip(rows).zip(places) {
            for (detection, place) in row.iter().zip(places.chunks_exact_mut(count.max(1))) {
                let source = detection.source as usize;
                let (skipped, step) =
                    if is_by_class { (start * boxes + source, boxes) } else { (source * width + start, 1) };
                for (value, from) in place.iter_mut().zip(image.iter().skip(skipped).step_by(step.max(1))) {
                    *value = *from;
                }
            }
        }
        let shape = leading.iter().copied().chain([columns as i64, count as i64]).collect();
        Ok(Tensor { shape, ..of_numbers(Datatype::Fp32, &[], found) })
    }

    fn labels_of<'a>(&self, cells: impl Iterator<Item = Option<&'a Detection>>) -> Result<TextWriter, Error> {
        let mut writer = TextWriter::default();
        for cell in cells {
            let label = match cell {
                Some(cell) => Some(self.labels.get(cell.class as usize).ok_or_else(|| {
                    let (class, count) = (cell.class, self.labels.len());
                    Error::invalid(format!("a box has class {class}, but there are only {count} labels"))
                })?),
                None => None,
            };
            writer.push("labels", label.map_or(&[], |label| label.as_bytes()))?;
        }
        Ok(writer)
    }
}

/// Images without a box cost nothing to send.
fn check_images(port: &str, rows: usize, tensor: &Tensor) -> Result<(), Error> {
    if rows <= IMAGES_MAX {
        return Ok(());
    }
    let shape = &tensor.shape[..];
    Err(Error::invalid(format!("'{port}' must have at most {IMAGES_MAX} images, but its shape is {shape:?}")))
}
