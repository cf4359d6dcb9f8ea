//! Ports and parameters of `image`, and their checked values.

use base::error::Error;
use base::tensor::Datatype;

use crate::fields::{Field, FieldDefault, FieldKind, StepFields};
use crate::image::colour::FileColours;
use crate::image::geometry::{Crop, Geometry, Letterbox, Resize, ResizeFilter, SideBound, SideMultiple, Size};
use crate::image::normal::{Normal, PixelArithmetic, PixelLayout};
use crate::image::opencv::OpencvFilter;
use crate::image::pillow::PillowFilter;
use crate::image::pixels::CHANNELS;
use crate::image::preset::{self, Preset};
use crate::image::{FileEncoding, SourceReading};
use crate::kind::StepPort;
use crate::limits::IMAGE_SIDE_MAX;

/// The input.
pub const INPUT: StepPort = StepPort {
    name: "image",
    about: "BYTES [rows] or [rows, 1]: a file in each element. UINT8 [bytes]: one file; [rows, bytes]: a file in \
            each row, with any bytes behind it; [height, width, 3] or [rows, height, width, 3]: decoded \
            pixels.",
    is_optional: false,
};

/// All inputs.
pub const INPUTS: &[StepPort] = &[INPUT];

/// The outputs.
pub const OUTPUTS: &[StepPort] = &[
    StepPort {
        name: "pixels",
        about: "[rows, 3, height, width], or [rows, height, width, 3] with the layout NHWC; 1 in place of 3 with the order GREY.",
        is_optional: false,
    },
    StepPort {
        name: "original_size",
        about: "INT64 [rows, 2]: height and width before the resize, upright.",
        is_optional: true,
    },
    StepPort {
        name: "ratio",
        about: "FP32 [rows]: pixels of the output for one of the file, with a letterbox.",
        is_optional: true,
    },
    StepPort {
        name: "pad",
        about: "FP32 [rows, 2]: columns to the left of the image and rows above it, with a letterbox.",
        is_optional: true,
    },
];

const SIDE: i64 = IMAGE_SIDE_MAX as i64;
const SIZE: FieldKind = FieldKind::Integers { count: 2, least: 1, most: SIDE };

// Parameters that `crop` shares.
/// `encoding`.
pub const ENCODING: Field = field(
    "encoding",
    FieldKind::Choice(&["auto", "raw", "base64"]),
    "\"auto\"",
    "The strings of BYTES. `auto` takes a file as it is if it begins as JPEG, PNG or WebP does, and anything \
        else as base64.",
);
/// `library`.
pub const LIBRARY: Field = field(
    "library",
    FieldKind::Choice(&["pillow", "opencv"]),
    "\"pillow\"",
    "The library whose results the step gives.",
);
/// `exif`.
pub const EXIF: Field = unset(
    "exif",
    FieldKind::Bool,
    "Turns the image upright by its EXIF orientation: `ImageOps.exif_transpose` in Pillow, where it is off by \
         default; part of `imdecode` in OpenCV, where it is on. An orientation that only an XMP block states, \
         which Pillow would take, is ignored.",
);
/// `filter`.
pub const FILTER: Field = unset(
    "filter",
    FieldKind::Choice(&["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming", "linear", "cubic", "area"]),
    "Pillow: `nearest`, `bilinear` (the default), `bicubic`, `lanczos`, `box`, `hamming`. OpenCV: `nearest`, \
        `linear` (the default), `cubic`, `area`. `cubic` is that of OpenCV's own code (`cv2.ipp.setUseIPP(False)`): \
        Intel's library, which its x86-64 wheels have besides, gives about 4 % of the values one more or less.",
);
/// `order`.
pub const ORDER: Field =
    field("order", FieldKind::Choice(&["RGB", "BGR"]), "\"RGB\"", "Channels of the output, and of `mean` and `std`.");
/// `input_order`.
pub const INPUT_ORDER: Field =
    field("input_order", FieldKind::Choice(&["RGB", "BGR"]), "\"RGB\"", "Channels of decoded pixels in the input.");
/// `arithmetic`.
pub const ARITHMETIC: Field = field(
    "arithmetic",
    FieldKind::Choice(&["divide", "multiply", "multiply_float64", "albumentations", "float64", "transformers"]),
    "\"divide\"",
    "The spelling, to the last bit. `divide`: `(x / scale - mean) / std` in FP32. `multiply`: `(x * (1 / \
        scale) - mean) / std` in FP32. `multiply_float64`: the same with `mean` and `std` in FP64, as rapidocr. `albumentations`: `(x - mean * scale) * (1 / (std * scale))` in FP32. \
        `float64`: as `divide` in FP64, then rounded. `transformers`: `x * (1 / scale)` in FP64, rounded to \
        FP32, then `(x - mean) / std`.",
);
/// `scale`.
pub const SCALE: Field =
    field("scale", FieldKind::Number(1e-6, 1e6), "255", "The divisor of values; 1 leaves them as they are.");
/// `mean`.
pub const MEAN: Field = field("mean", FieldKind::Numbers(CHANNELS), "[0, 0, 0]", "Subtracted from each channel.");
/// `std`.
pub const STD: Field = field("std", FieldKind::Numbers(CHANNELS), "[1, 1, 1]", "Each channel is divided by it.");
/// `datatype`.
pub const DATATYPE: Field = field(
    "datatype",
    FieldKind::Choice(&["FP32", "FP16", "UINT8"]),
    "\"FP32\"",
    "The datatype of the output. UINT8 has the values as they are.",
);
/// `layout`.
pub const LAYOUT: Field = field("layout", FieldKind::Choice(&["NCHW", "NHWC"]), "\"NCHW\"", "The order of dimensions.");

/// The parameters.
pub const FIELDS: &[Field] = &[
    ENCODING,
    LIBRARY,
    EXIF,
    unset(
        "preprocessor",
        FieldKind::File,
        "The `preprocessor_config.json` of a hub folder, of a processor for ViT, CLIP, ConvNeXT (ResNet) or \
        DETR. It decides sizes and numbers, as transformers' processors on numpy and Pillow do.",
    ),
    field(
        "resize",
        FieldKind::Choice(&["exact", "shortest", "letterbox", "multiple", "none"]),
        "\"exact\"",
        "`exact`: to `size`. `shortest`: by one scale, so that the shorter side has `size` pixels; the longer \
        one is truncated. `letterbox`: by one scale into `size`, with a colour around it. `multiple`: by one scale, which \
        `size` bounds, and then each side to the nearest `multiple`: the input of PaddleOCR's detectors.",
    ),
    field(
        "limit_type",
        FieldKind::Choice(&["max", "min", "resize_long"]),
        "\"max\"",
        "With `multiple`, as in PaddleOCR: `size` is what the longer side has at most, what the shorter one has at least, or \
        what the longer one has.",
    ),
    field("multiple", FieldKind::Integer(1, 1024), "32", "Sides are multiples of it, at least one."),
    unset("size", SIZE, "A list of height and width; one number is for both."),
    FILTER,
    unset("crop", SIZE, "Height and width of a part from the middle of the resized image; one number is for both."),
    field(
        "crop_rounding",
        FieldKind::Choice(&["round", "floor"]),
        "\"round\"",
        "Half a pixel: `round` to even, as torchvision does, or `floor`, as `// 2` does.",
    ),
    field("letterbox_rounding", FieldKind::Choice(&["round", "int"]), "\"round\"", "Sides of the resized image."),
    field(
        "letterbox_position",
        FieldKind::Choice(&["centre", "top_left"]),
        "\"centre\"",
        "The place of the image. In the middle, half a pixel goes to the right and below, as YOLO's `round(d - \
        0.1)` does.",
    ),
    field("letterbox_colour", FieldKind::Integer(0, 255), "114", "The value of all channels around the image."),
    field("letterbox_enlarge", FieldKind::Bool, "true", "Images smaller than `size` grow."),
    field(
        "order",
        FieldKind::Choice(&["RGB", "BGR", "GREY"]),
        "\"RGB\"",
        "Channels of the output, and of `mean` and `std`. `GREY` is one, made before the resize.",
    ),
    field(
        "grey",
        FieldKind::Choice(&["convert", "decode"]),
        "\"convert\"",
        "With `order` `GREY`. `convert`: from colours, as Pillow's `convert(\"L\")` or `cv2.cvtColor`. `decode`: as \
         `cv2.imdecode(file, cv2.IMREAD_GRAYSCALE)`, which takes the luminance of a JPEG file as it is, and other weights for \
         PNG files; those with colours and a chunk gAMA, sRGB or iCCP are refused.",
    ),
    INPUT_ORDER,
    ARITHMETIC,
    SCALE,
    MEAN,
    STD,
    DATATYPE,
    LAYOUT,
];

const fn field(name: &'static str, kind: FieldKind, default: &'static str, about: &'static str) -> Field {
    Field { name, kind, default: FieldDefault::Json(default), about }
}

const fn unset(name: &'static str, kind: FieldKind, about: &'static str) -> Field {
    Field { name, kind, default: FieldDefault::Unset, about }
}

/// The checked parameters.
pub struct ImageSettings {
    pub reading: SourceReading,
    pub geometry: Geometry,
    /// `None` for UINT8.
    pub normal: Option<Normal>,
    pub datatype: Datatype,
    pub layout: PixelLayout,
}

impl ImageSettings {
    pub fn read(fields: &StepFields<'_>) -> Result<Self, Error> {
        let is_opencv = fields.text("library") == "opencv";
        let datatype = Datatype::from_name(&fields.text("datatype")).unwrap_or(Datatype::Fp32);
        let is_reversed = fields.text("order") == "BGR";
        let is_grey = fields.text("order") == GREY;
        let layout = PixelLayout { is_planar: fields.text("layout") == "NCHW", is_reversed, is_grey };
        if is_grey && fields.is_given("preprocessor") {
            return Err(
                fields.error("order", "\"GREY\" cannot be given with \"preprocessor\", which has three channels")
            );
        }
        if fields.is_given("grey") && !is_grey {
            return Err(fields.error("grey", "needs \"order\": \"GREY\""));
        }
        let is_decoded = fields.text("grey") == "decode";
        if is_decoded && !is_opencv {
            return Err(fields.error("grey", "\"decode\" needs \"library\": \"opencv\""));
        }
        let mut reading = reading(fields, is_opencv);
        if is_decoded && is_grey {
            reading.colours = FileColours::Luminance;
        }
        reading.grey = is_grey.then_some(reading.colours.grey());
        let Preset { geometry, normal } = match fields.file("preprocessor")? {
            Some(file) => preset_of(fields, &file)?,
            None => Preset { geometry: geometry(fields, is_opencv)?, normal: normal(fields)? },
        };
        let is_letterbox = matches!(geometry.resize, Resize::Letterbox(_));
        for (index, port) in OUTPUTS.iter().enumerate().skip(2) {
            if fields.is_wanted(index) && !is_letterbox {
                let why = format!("\"{}\" is there only if \"resize\" is \"letterbox\"", port.name);
                return Err(fields.error("outputs", &why));
            }
        }
        if datatype == Datatype::Uint8
            && let Some(name) = NUMBERS.iter().find(|name| fields.is_given(name))
        {
            return Err(fields.error(name, "has no meaning for the datatype UINT8"));
        }
        Ok(Self { reading, geometry, normal: (datatype != Datatype::Uint8).then_some(normal), datatype, layout })
    }

    /// The size of the output for an input without rows: 0 on a side that depends on them.
    pub fn canvas(&self) -> Size {
        let resized = match self.geometry.resize {
            Resize::Exact(size) => size,
            Resize::Letterbox(letterbox) => letterbox.canvas,
            _ => Size { width: 0, height: 0 },
        };
        self.geometry.crop.map_or(resized, |crop| crop.size)
    }
}

/// The reading of files and pixels.
pub fn reading(fields: &StepFields<'_>, is_opencv: bool) -> SourceReading {
    SourceReading {
        encoding: match &fields.text("encoding")[..] {
            "base64" => FileEncoding::Base64,
            "raw" => FileEncoding::Raw,
            _ => FileEncoding::Auto,
        },
        is_upright: if fields.is_given("exif") { fields.flag("exif") } else { is_opencv },
        is_reversed: fields.text("input_order") == "BGR",
        colours: if is_opencv { FileColours::OpenCv } else { FileColours::Pillow },
        grey: None,
    }
}

/// The order of one channel.
const GREY: &str = "GREY";

fn preset_of(fields: &StepFields<'_>, file: &[u8]) -> Result<Preset, Error> {
    if let Some(name) = NUMBERS.iter().chain(SIZES).find(|name| fields.is_given(name)) {
        return Err(fields.error(name, "cannot be given with \"preprocessor\", which decides it"));
    }
    let text = std::str::from_utf8(file).map_err(|_| fields.error("preprocessor", "the file is not UTF-8"))?;
    preset::read(text).map_err(|why| fields.error("preprocessor", &why))
}

fn geometry(fields: &StepFields<'_>, is_opencv: bool) -> Result<Geometry, Error> {
    let size = size(fields, "size")?;
    let needed = || size.ok_or_else(|| fields.error("size", "must be given, unless \"resize\" is \"none\""));
    let resize = match &fields.text("resize")[..] {
        "shortest" => {
            let Size { width, height } = needed()?;
            if width != height {
                return Err(fields.error("size", "must be one number if \"resize\" is \"shortest\""));
            }
            Resize::Shortest(width)
        }
        "letterbox" => Resize::Letterbox(Letterbox {
            canvas: needed()?,
            is_rounded: fields.text("letterbox_rounding") == "round",
            is_centred: fields.text("letterbox_position") == "centre",
            is_enlarged: fields.flag("letterbox_enlarge"),
            colour: fields.integer("letterbox_colour").and_then(|value| u8::try_from(value).ok()).unwrap_or(0),
        }),
        "multiple" => {
            let Size { width, height } = needed()?;
            if width != height {
                return Err(fields.error("size", "must be one number if \"resize\" is \"multiple\""));
            }
            Resize::Multiple(SideMultiple {
                bound: width,
                kind: match &fields.text("limit_type")[..] {
                    "min" => SideBound::Shortest,
                    "resize_long" => SideBound::LongestExact,
                    _ => SideBound::Longest,
                },
                multiple: fields.count("multiple").unwrap_or(1),
            })
        }
        "none" if size.is_some() => return Err(fields.error("size", "cannot be given if \"resize\" is \"none\"")),
        "none" => Resize::Never,
        _ => Resize::Exact(needed()?),
    };
    let is_letterbox = matches!(resize, Resize::Letterbox(_));
    let is_rounded = fields.text("crop_rounding") == "round";
    let crop = self::size(fields, "crop")?.map(|size| Crop { size, is_rounded });
    if crop.is_some() && is_letterbox {
        return Err(fields.error("crop", "cannot be given if \"resize\" is \"letterbox\""));
    }
    Ok(Geometry { resize, crop, filter: filter(fields, is_opencv)? })
}

/// The library and its filter.
///
/// # Errors
/// If the library lacks the filter.
pub fn filter(fields: &StepFields<'_>, is_opencv: bool) -> Result<ResizeFilter, Error> {
    let name = fields.text("filter");
    let unknown = |known: &str| fields.error("filter", &format!("must be one of {known} for this library"));
    Ok(if is_opencv {
        ResizeFilter::Opencv(match &name[..] {
            "" | "linear" => OpencvFilter::Linear,
            "area" => OpencvFilter::Area,
            "cubic" => OpencvFilter::Cubic,
            "nearest" => OpencvFilter::Nearest,
            _ => return Err(unknown("\"nearest\", \"linear\", \"cubic\", \"area\"")),
        })
    } else {
        ResizeFilter::Pillow(match &name[..] {
            "" | "bilinear" => PillowFilter::Bilinear,
            "bicubic" => PillowFilter::Bicubic,
            "box" => PillowFilter::Box,
            "hamming" => PillowFilter::Hamming,
            "lanczos" => PillowFilter::Lanczos,
            "nearest" => PillowFilter::Nearest,
            _ => return Err(unknown("\"nearest\", \"bilinear\", \"bicubic\", \"lanczos\", \"box\", \"hamming\"")),
        })
    })
}

/// The arithmetic.
///
/// # Errors
/// If there is not a number for each channel, or one would divide by 0.
pub fn normal(fields: &StepFields<'_>) -> Result<Normal, Error> {
    let is_grey = fields.text("order") == GREY;
    let channels = |name: &str| match fields.numbers(name)[..] {
        [number] if is_grey => Ok([number; CHANNELS]),
        [red, green, blue] if !is_grey || !fields.is_given(name) => Ok([red, green, blue]),
        _ if is_grey => Err(fields.error(name, "must have 1 number")),
        _ => Err(fields.error(name, &format!("must have {CHANNELS} numbers"))),
    };
    let (mean, deviation) = (channels("mean")?, channels("std")?);
    if deviation.iter().any(|deviation| *deviation as f32 == 0.0) {
        return Err(fields.error("std", "must not be 0"));
    }
    let scale = fields.number("scale").unwrap_or(1.0);
    let (arithmetic, scale) = match &fields.text("arithmetic")[..] {
        "albumentations" => (PixelArithmetic::Albumentations, scale),
        "float64" => (PixelArithmetic::Float64, scale),
        "multiply" => (PixelArithmetic::Multiply, scale),
        "multiply_float64" => (PixelArithmetic::MultiplyFloat64, scale),
        "transformers" => (PixelArithmetic::Transformers, 1.0 / scale),
        _ => (PixelArithmetic::Divide, scale),
    };
    Ok(Normal { arithmetic, scale, mean, deviation })
}

/// Height and width, or one number for both; `None` if it is not given.
///
/// # Errors
/// If there are other than one or two numbers.
pub fn size(fields: &StepFields<'_>, name: &str) -> Result<Option<Size>, Error> {
    let sides: Vec<_> = fields.integers(name).into_iter().filter_map(|side| usize::try_from(side).ok()).collect();
    match sides[..] {
        _ if !fields.is_given(name) => Ok(None),
        [side] => Ok(Some(Size { width: side, height: side })),
        [height, width] => Ok(Some(Size { width, height })),
        _ => Err(fields.error(name, "must have one or two numbers")),
    }
}

/// The parameters of numbers.
pub const NUMBERS: &[&str] = &["arithmetic", "scale", "mean", "std"];
/// The parameters of sizes.
const SIZES: &[&str] = &[
    "library",
    "resize",
    "size",
    "filter",
    "crop",
    "crop_rounding",
    "letterbox_rounding",
    "letterbox_position",
    "letterbox_colour",
    "letterbox_enlarge",
    "limit_type",
    "multiple",
];
