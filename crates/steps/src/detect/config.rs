//! The parameters of a `detect` step, checked against each other.

use base::error::Error;

use crate::boxes::BoxFormat;
use crate::detect::KIND;
use crate::detect::decode::{BoxLayout, Detection, Filter, ScoreForm};
use crate::detect::place::{Border, BoxMapping, Placing, Rounding};
use crate::detect::suppress::{Overlap, Scope, Suppression};
use crate::fields::StepFields;
use crate::labels;

/// A step.
pub struct Detect {
    pub(super) layout: BoxLayout,
    pub(super) class_count: Option<usize>,
    pub(super) filter: Filter,
    pub(super) box_format: BoxFormat,
    /// That of suppression and mapping: [`BoxFormat::Corners`] or [`BoxFormat::CornerSize`].
    pub(super) working_format: BoxFormat,
    pub(super) output_format: BoxFormat,
    /// `None` without a suppression.
    pub(super) suppression: Option<Suppression>,
    pub(super) detections_max: usize,
    pub(super) placing: Placing,
    /// When boxes are mapped.
    pub(super) map_at: MapAt,
    pub(super) columns: Columns,
    pub(super) labels: Vec<String>,
    pub(super) wants_labels: bool,
    wanted: Vec<bool>,
}

/// When boxes are mapped to the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAt {
    /// Before the suppression.
    BeforeNms,
    /// After it.
    End,
    /// Before boxes become corners.
    Start,
}

/// The order of the numbers of a box in one array.
#[derive(Clone, Copy, Debug)]
pub enum Columns {
    /// `box,class,score`
    BoxClassScore,
    /// `box,score,class`
    BoxScoreClass,
    /// `class,score,box`
    ClassScoreBox,
    /// `score,class,box`
    ScoreClassBox,
}

impl Columns {
    /// The numbers of a box; those of `None` fill up.
    #[expect(clippy::cast_precision_loss, reason = "classes are small")]
    pub fn of(self, cell: Option<&Detection>) -> [f32; 6] {
        let ([a, b, c, d], score, class) =
            cell.map_or(([0.0; 4], 0.0, -1.0), |cell| (cell.corners, cell.score, cell.class as f32));
        match self {
            Self::BoxClassScore => [a, b, c, d, class, score],
            Self::BoxScoreClass => [a, b, c, d, score, class],
            Self::ClassScoreBox => [class, score, a, b, c, d],
            Self::ScoreClassBox => [score, class, a, b, c, d],
        }
    }
}

impl Detect {
    /// Builds a step from its parameters.
    ///
    /// # Errors
    /// If parameters or connections contradict each other.
    pub fn build(fields: &StepFields<'_>) -> Result<Self, Error> {
        let layout = match fields.text("layout").as_str() {
            "yolov8" => BoxLayout::Yolov8,
            "yolov8_rows" => BoxLayout::Yolov8Rows,
            "yolov5" => BoxLayout::Yolov5,
            "end_to_end" => BoxLayout::EndToEnd,
            _ => BoxLayout::Apart,
        };
        let is_yolo = matches!(layout, BoxLayout::Yolov5 | BoxLayout::Yolov8 | BoxLayout::Yolov8Rows);
        check_inputs(fields, layout)?;
        let has_coefficients = is_yolo && fields.is_given("class_count") || layout == BoxLayout::EndToEnd;
        if fields.is_wanted(COEFFICIENTS) && !has_coefficients {
            return Err(
                fields.error("class_count", "the output \"coefficients\" needs it, or the layout \"end_to_end\"")
            );
        }
        let labels = labels::read(fields)?;
        if labels.is_empty() && fields.is_wanted(LABELS) {
            return Err(fields.error("labels", "the output \"labels\" needs \"labels\" or \"labels_file\""));
        }
        let box_format = match fields.text("box_format").as_str() {
            "" if is_yolo => BoxFormat::CentreSize,
            name => BoxFormat::of(name),
        };
        let suppression = suppression(fields, is_yolo)?;
        let is_opencv = suppression.is_some_and(|suppression| suppression.overlap == Overlap::OpenCv);
        if is_opencv && fields.flag("clip") {
            return Err(fields.error("clip", "cannot be combined with \"iou\": \"opencv\""));
        }
        Ok(Self {
            layout,
            class_count: fields.count("class_count").filter(|_| is_yolo),
            filter: filter(fields, is_yolo),
            box_format,
            working_format: if is_opencv { BoxFormat::CornerSize } else { BoxFormat::Corners },
            output_format: BoxFormat::of(&fields.text("output_format")),
            suppression,
            detections_max: fields.count("max_detections").unwrap_or(0),
            placing: placing(fields)?,
            map_at: map_at(fields)?,
            columns: match fields.text("columns").as_str() {
                "box,class,score" => Columns::BoxClassScore,
                "class,score,box" => Columns::ClassScoreBox,
                "score,class,box" => Columns::ScoreClassBox,
                _ => Columns::BoxScoreClass,
            },
            labels,
            wants_labels: fields.is_wanted(LABELS),
            wanted: (0..KIND.outputs.len()).map(|output| fields.is_wanted(output)).collect(),
        })
    }

    /// Returns true if the list connects this output.
    pub(super) fn is_wanted(&self, output: usize) -> bool {
        self.wanted.get(output).copied().unwrap_or(false)
    }
}

/// The place of `labels` among the outputs.
const LABELS: usize = 3;
/// The place of `coefficients` among the outputs.
pub const COEFFICIENTS: usize = 6;
// Places among the inputs.
const PREDICTIONS: usize = 0;
const BOXES: usize = 1;
const SCORES: usize = 2;
const COUNTS: usize = 4;
const RATIO: usize = 5;
const PAD: usize = 6;
const SIZE: usize = 7;

fn check_inputs(fields: &StepFields<'_>, layout: BoxLayout) -> Result<(), Error> {
    let is_apart = layout == BoxLayout::Apart;
    if is_apart && !(fields.is_connected(BOXES) && fields.is_connected(SCORES)) {
        return Err(fields.error("inputs", "the layout \"apart\" needs \"boxes\" and \"scores\""));
    }
    if !is_apart && !fields.is_connected(PREDICTIONS) {
        return Err(fields.error("inputs", "the layout needs \"predictions\""));
    }
    let others = if is_apart { PREDICTIONS..=PREDICTIONS } else { BOXES..=COUNTS };
    if let Some(port) =
        others.into_iter().find(|place| fields.is_connected(*place)).and_then(|place| KIND.inputs.get(place))
    {
        return Err(fields.error("inputs", &format!("the layout has no \"{}\"", port.name)));
    }
    Ok(())
}

fn map_at(fields: &StepFields<'_>) -> Result<MapAt, Error> {
    Ok(match fields.text("map_at").as_str() {
        "before_nms" => MapAt::BeforeNms,
        "start" if fields.flag("clip") || fields.text("round") != "none" => {
            return Err(fields.error("map_at", "\"start\" cannot be combined with \"clip\" and \"round\""));
        }
        "start" if fields.text("box_format") == "yxyx" => {
            return Err(fields.error("map_at", "\"start\" cannot be combined with \"box_format\": \"yxyx\""));
        }
        "start" => MapAt::Start,
        _ => MapAt::End,
    })
}

fn filter(fields: &StepFields<'_>, is_yolo: bool) -> Filter {
    Filter {
        threshold: single(fields, "score_threshold"),
        keeps_equal: fields.text("compare") == ">=",
        classes: fields.integers("class_filter"),
        is_multi_label: fields.flag("multi_label") && is_yolo,
        score: match fields.text("score").as_str() {
            "class" => ScoreForm::Class,
            "objectness" => ScoreForm::Objectness,
            _ => ScoreForm::Product,
        },
    }
}

fn suppression(fields: &StepFields<'_>, is_yolo: bool) -> Result<Option<Suppression>, Error> {
    let scope = match fields.text("nms").as_str() {
        "off" => return Ok(None),
        "agnostic" => Scope::Agnostic,
        "by_class" => Scope::ByClass,
        "" if !is_yolo => return Ok(None),
        _ => Scope::Offset(single(fields, "class_offset")),
    };
    let iou = fields.text("iou");
    let overlap = match iou.as_str() {
        "numpy" => Overlap::Numpy {
            epsilon: single(fields, "epsilon"),
            side: if fields.flag("plus_one") { 1.0 } else { 0.0 },
            keeps_equal: fields.text("iou_compare") == "<=",
        },
        "opencv" => Overlap::OpenCv,
        _ => Overlap::Torchvision,
    };
    if let (false, Some(name)) =
        (iou == "numpy", ["iou_compare", "epsilon", "plus_one"].into_iter().find(|name| fields.is_given(name)))
    {
        return Err(fields.error(name, "needs \"iou\": \"numpy\""));
    }
    if overlap == Overlap::OpenCv && matches!(scope, Scope::Offset(_)) {
        return Err(fields.error("iou", "\"opencv\" needs \"nms\": \"agnostic\" or \"by_class\""));
    }
    let is_by_class = fields.text("order") == "class";
    if is_by_class && scope != Scope::ByClass {
        return Err(fields.error("order", "\"class\" needs \"nms\": \"by_class\""));
    }
    Ok(Some(Suppression {
        overlap,
        threshold: fields.number("iou_threshold").unwrap_or(0.0),
        scope,
        is_last_first: fields.text("ties") == "last",
        is_by_class,
        candidates_max: fields.count("max_candidates").unwrap_or(0),
        kept_max: fields.count("max_detections").unwrap_or(0),
    }))
}

fn placing(fields: &StepFields<'_>) -> Result<Placing, Error> {
    let border = match fields.text("letterbox_pad").as_str() {
        "exact" => Border::Exact,
        "none" => Border::None,
        _ => Border::Rounded,
    };
    let mapping = match fields.text("mapping").as_str() {
        "letterbox" => BoxMapping::Letterbox(border),
        "stretch" => BoxMapping::Stretch,
        "stretch_divided" => BoxMapping::StretchDivided,
        "unit" => BoxMapping::Unit,
        _ => BoxMapping::None,
    };
    let is_given = fields.is_connected(RATIO);
    if is_given != fields.is_connected(PAD) {
        return Err(fields.error("inputs", "\"ratio\" and \"pad\" need each other"));
    }
    if is_given && !matches!(mapping, BoxMapping::Letterbox(_)) {
        return Err(fields.error("mapping", "the input \"ratio\" needs \"letterbox\""));
    }
    let needs_size = fields.flag("clip") || (mapping != BoxMapping::None && !is_given);
    if needs_size && !fields.is_connected(SIZE) {
        return Err(fields.error(
            "inputs",
            "\"mapping\" and \"clip\" need \"original_size\", or \"ratio\" and \"pad\" for a letterbox alone",
        ));
    }
    #[expect(clippy::cast_precision_loss, reason = "sizes of images are small")]
    let input_size = match fields.integers("input_size")[..] {
        [height, width] => [height as f64, width as f64],
        _ if is_given || matches!(mapping, BoxMapping::None | BoxMapping::Unit) => [1.0; 2],
        _ => return Err(fields.error("input_size", "must be the height and width of the model's input")),
    };
    let rounding = match fields.text("round").as_str() {
        "truncate" => Rounding::Truncate,
        "nearest" => Rounding::Nearest,
        _ => Rounding::None,
    };
    Ok(Placing { mapping, input_size, clips: fields.flag("clip"), rounding })
}

#[expect(clippy::cast_possible_truncation, reason = "libraries compare and add in FP32")]
fn single(fields: &StepFields<'_>, name: &str) -> f32 {
    fields.number(name).unwrap_or(0.0) as f32
}
