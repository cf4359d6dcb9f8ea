//! Ports and parameters of `crop`, and their checked values.

use base::error::Error;
use base::tensor::Datatype;

use crate::boxes::BoxFormat;
use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::image::SourceReading;
use crate::image::geometry::{ResizeFilter, Size};
use crate::image::normal::{Normal, PixelLayout};
use crate::image::pixels::{Pixels, Window};
use crate::image::settings::{
    ARITHMETIC, DATATYPE, ENCODING, EXIF, FILTER, INPUT, INPUT_ORDER, LAYOUT, LIBRARY, MEAN, NUMBERS, ORDER, SCALE,
    STD, filter, normal, reading, size,
};
use crate::image::{opencv, pillow};
use crate::kind::StepPort;
use crate::limits::IMAGE_SIDE_MAX;

/// The inputs.
pub const INPUTS: &[StepPort] = &[
    INPUT,
    StepPort {
        name: "boxes",
        about: "Numbers [rows, n, 4, 2], or [n, 4, 2] for one image: corners, clockwise from the upper left one. Or \
                [rows, n, 4] or [n, 4]: upright boxes, as `box_format` says.",
        is_optional: false,
    },
    StepPort {
        name: "counts",
        about: "INT64 [rows]: the count of boxes of each image; all without it.",
        is_optional: true,
    },
];

/// The outputs.
pub const OUTPUTS: &[StepPort] = &[
    StepPort {
        name: "crops",
        about: "[crops, 3, height, width], or [crops, height, width, 3] with the layout NHWC.",
        is_optional: false,
    },
    StepPort { name: "image_index", about: "INT64 [crops]: the row of each crop's image.", is_optional: false },
    StepPort {
        name: "crop_size",
        about: "INT64 [crops, 2]: height and width of each crop before the resize.",
        is_optional: false,
    },
];

/// The parameters.
pub const FIELDS: &[Field] = &[
    ENCODING,
    LIBRARY,
    EXIF,
    Field {
        name: "box_format",
        kind: FieldKind::Choice(&["xyxy", "xywh", "cxcywh", "yxyx"]),
        default: FieldDefault::Json("\"xyxy\""),
        about: "The numbers of an upright box. It is cut out from its left top corner to its right bottom one, both \
                truncated to integers and kept within the image.",
    },
    Field {
        name: "turn_ratio",
        kind: FieldKind::Number(0.0, 1e6),
        default: FieldDefault::Json("1.5"),
        about: "Boxes with four corners that are this much higher than wide are turned by 90° to the left. 0 turns none.",
    },
    Field {
        name: "size",
        kind: FieldKind::Integers { count: 2, least: 1, most: IMAGE_SIDE_MAX as i64 },
        default: FieldDefault::Required,
        about: "Height and width of the result.",
    },
    Field {
        name: "resize",
        kind: FieldKind::Choice(&["exact", "widest", "pad"]),
        default: FieldDefault::Json("\"exact\""),
        about: "`exact`: to `size`. `pad`: to the height of `size`, and in width by the same scale, rounded up, at most to \
                that of `size`; zeros follow on the right, as PP-OCR's classifier has it. `widest`: the same, but the batch is \
                as wide as its widest crop needs if that is more than `size`, as PP-OCR's recogniser has it.",
    },
    Field {
        name: "max_width",
        kind: FieldKind::Integer(1, IMAGE_SIDE_MAX as i64),
        default: FieldDefault::Json("3200"),
        about: "With `widest`: columns that the batch has at most. A wider crop is pressed into them.",
    },
    FILTER,
    ORDER,
    INPUT_ORDER,
    ARITHMETIC,
    SCALE,
    MEAN,
    STD,
    DATATYPE,
    LAYOUT,
];

/// The width of a crop in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CropWidth {
    /// That of the batch.
    Exact,
    /// By its sides; zeros follow.
    Padded,
    /// The same, and the batch is as wide as the widest needs, up to this.
    Widest(usize),
}

/// The checked parameters.
pub struct CropSettings {
    pub reading: SourceReading,
    pub box_format: BoxFormat,
    pub turn_ratio: f64,
    /// `None` for UINT8.
    pub normal: Option<Normal>,
    pub datatype: Datatype,
    pub layout: PixelLayout,
    size: Size,
    width: CropWidth,
    filter: ResizeFilter,
}

impl CropSettings {
    /// Reads the parameters.
    ///
    /// # Errors
    /// If they contradict each other.
    pub fn read(fields: &StepFields<'_>) -> Result<Self, Error> {
        let is_opencv = fields.text("library") == "opencv";
        let datatype = Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Fp32);
        if datatype == Datatype::Uint8
            && let Some(name) = NUMBERS.iter().find(|name| fields.is_given(name))
        {
            return Err(fields.error(name, "has no meaning for the datatype UINT8"));
        }
        let width = match &fields.text("resize")[..] {
            "pad" => CropWidth::Padded,
            "widest" => CropWidth::Widest(fields.count("max_width").unwrap_or(0)),
            _ => CropWidth::Exact,
        };
        Ok(Self {
            reading: reading(fields, is_opencv),
            box_format: BoxFormat::of(&fields.text("box_format")),
            turn_ratio: fields.number("turn_ratio").unwrap_or(0.0),
            normal: if datatype == Datatype::Uint8 { None } else { Some(normal(fields)?) },
            datatype,
            layout: PixelLayout {
                is_planar: fields.text("layout") == "NCHW",
                is_reversed: fields.text("order") == "BGR",
                is_grey: false,
            },
            size: size(fields, "size")?.ok_or_else(|| fields.error("size", "must have one or two numbers"))?,
            width,
            filter: filter(fields, is_opencv)?,
        })
    }

    /// The size of all crops of a batch, in the order of operations of PP-OCR.
    pub fn canvas(&self, crops: impl Iterator<Item = Size>) -> Size {
        let CropWidth::Widest(most) = self.width else { return self.size };
        let Size { width, height } = self.size;
        let ratios = crops.map(|crop| crop.width as f64 / crop.height as f64);
        let widest = ratios.fold(width as f64 / height as f64, f64::max);
        Size { width: ((height as f64 * widest) as usize).clamp(1, most.max(width)), height }
    }

    /// Resizes a crop to its part of the canvas.
    pub fn resized(&self, part: Pixels, canvas: Size) -> Pixels {
        let width = match self.width {
            CropWidth::Exact => canvas.width,
            CropWidth::Padded | CropWidth::Widest(_) => {
                let ratio = part.width as f64 / part.height as f64;
                ((canvas.height as f64 * ratio).ceil() as usize).min(canvas.width)
            }
        };
        if (part.width, part.height) == (width, canvas.height) {
            return part;
        }
        match self.filter {
            ResizeFilter::Opencv(filter) => opencv::resized(&part, width, canvas.height, filter),
            ResizeFilter::Pillow(filter) => {
                let whole = Window::whole(width, canvas.height);
                pillow::resized(&part, width, canvas.height, whole, filter)
            }
        }
    }
}
