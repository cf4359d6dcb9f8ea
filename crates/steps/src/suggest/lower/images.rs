//! The step `image`: files to numbers. The arithmetic of a file is compared with that of each spelling of the step on all 256
//! values of a pixel, so that a spelling is proposed only if no bit differs.

use base::tensor::Datatype;

use crate::image::normal::{Normal, PixelArithmetic};
use crate::suggest::library::quoted;
use crate::suggest::lower::numbers::{number_of, numbers_of};
use crate::suggest::lower::{MadeTensor, StepLowering};
use crate::suggest::machine::array::{applied, rounded};
use crate::suggest::op::{ArithmeticOp, Dim, ExprId, Kind, LetterboxForm, Op, PictureOp};

/// An arithmetic operation on pixels: the operation, a number for each channel, true if the pixels are to the left, and the
/// datatype of the result.
type PixelStep = (ArithmeticOp, [f64; 3], bool, Datatype);

/// The effect of a chain of operations on an image.
#[derive(Default)]
struct Chain {
    file: Option<(&'static str, bool)>,
    is_base64: bool,
    is_upright: bool,
    resize: Option<PictureOp>,
    crop: Option<(u64, u64)>,
    /// The form of an image of one channel.
    grey: Option<&'static str>,
    preprocessor: Option<String>,
    is_reversed: bool,
    is_planar: bool,
    arithmetic: Vec<PixelStep>,
    datatype: Option<Datatype>,
}

impl StepLowering<'_, '_> {
    /// The step of an image; `None` for other expressions.
    pub fn image(&mut self, id: ExprId) -> Result<Option<MadeTensor>, String> {
        let Some(parts) = self.image_parts(id) else { return Ok(None) };
        let Some((source, parts)) = parts.split_first() else { return Ok(None) };
        let mut chain = Chain::default();
        for part in parts {
            self.add_part(&mut chain, *part)?;
        }
        let graph = &self.machine.graph;
        // The bytes of a tensor of UINT8 are that tensor.
        let source = match (graph.op(*source), graph.kind(*source), graph.operand(*source)) {
            (Op::Cast, Kind::Raw, Some(below)) => below,
            _ => *source,
        };
        let source = &source;
        let source_kind = graph.kind(*source);
        let is_pixels = chain.file.is_none();
        if is_pixels && (source_kind != Kind::Number(Datatype::Uint8) || graph.rank(*source) < 3) {
            return Ok(None);
        }
        let mut fields = Vec::new();
        if source_kind == Kind::Raw || source_kind == Kind::Text {
            fields.push(("encoding", quoted(if chain.is_base64 { "base64" } else { "raw" })));
        } else if chain.is_base64 {
            return Err("base64 in a tensor of UINT8".to_owned());
        }
        self.fields_of(&chain, is_pixels, &mut fields)?;
        let input = self.image_source(*source, is_pixels, id)?;
        // A grey image has the same elements in any place of its axis of channels.
        let pictured = parts.iter().rev().find(|part| matches!(self.machine.graph.op(**part), Op::Picture(_)));
        let shape = self.machine.graph.shape(pictured.copied().filter(|_| chain.grey.is_some()).unwrap_or(id));
        let mut own = shape.get(shape.len().saturating_sub(3)..).unwrap_or_default().to_vec();
        if chain.grey.is_some() {
            own.rotate_right(1);
        }
        let lead = shape.get(..shape.len().saturating_sub(3)).unwrap_or_default();
        let mut rows = Dim::Known(1);
        for dim in lead.iter().filter(|dim| **dim != Dim::Known(1)) {
            if rows != Dim::Known(1) {
                return Err("images in several axes".to_owned());
            }
            rows = *dim;
        }
        let made = std::iter::once(rows).chain(own.iter().copied()).collect();
        let name = self.step("image", vec![("image", vec![input])], "pixels", fields, id)?;
        parts.iter().for_each(|part| self.add_lines(&name, *part));
        Ok(Some((name, made)))
    }

    /// The operations on an image, the source first; `None` if there is no operation of images.
    fn image_parts(&self, id: ExprId) -> Option<Vec<ExprId>> {
        let graph = &self.machine.graph;
        let (mut parts, mut next) = (vec![id], id);
        let mut source = None;
        loop {
            let inputs = graph.get(next).inputs.as_slice();
            let below = match (graph.op(next), inputs) {
                (Op::Binary(_), [left, right]) => {
                    match (graph.constant(*left).is_some(), graph.constant(*right).is_some()) {
                        (false, true) => *left,
                        (true, false) => *right,
                        _ => break,
                    }
                }
                (Op::Picture(_) | Op::Cast | Op::Transpose(_) | Op::View | Op::Decode | Op::Encode, [below]) => *below,
                (Op::Slice { start: None, stop: None, step: -1, .. }, [below]) => *below,
                _ => break,
            };
            if matches!(graph.op(next), Op::Picture(_)) {
                source = Some(parts.len());
            }
            parts.push(below);
            next = below;
        }
        let count = source?;
        parts.truncate(count + 1);
        parts.reverse();
        Some(parts)
    }

    fn add_part(&self, chain: &mut Chain, id: ExprId) -> Result<(), String> {
        let graph = &self.machine.graph;
        let early = chain.arithmetic.is_empty() && !chain.is_planar && chain.datatype.is_none();
        match graph.op(id).clone() {
            Op::Picture(op) => {
                if !early
                    || (chain.is_reversed
                        && !matches!(
                            op,
                            PictureOp::Resize { .. }
                                | PictureOp::Crop { .. }
                                | PictureOp::Letterbox { .. }
                                | PictureOp::Grey(_)
                        ))
                {
                    return Err("an image is changed behind its numbers".to_owned());
                }
                match op {
                    PictureOp::Base64 => chain.is_base64 = true,
                    PictureOp::Decode(library) => chain.file = Some((library, false)),
                    PictureOp::Upright if chain.resize.is_none() => chain.is_upright = true,
                    PictureOp::Rgb => {}
                    PictureOp::Grey(form) => grey(chain, form)?,
                    PictureOp::Crop { height, width } if chain.crop.is_none() => chain.crop = Some((height, width)),
                    PictureOp::Preprocessor(file) if chain.resize.is_none() && chain.crop.is_none() => {
                        chain.preprocessor = Some(file);
                        chain.is_planar = true;
                        chain.datatype = Some(Datatype::Fp32);
                    }
                    resize @ (PictureOp::Resize { .. } | PictureOp::Shortest { .. } | PictureOp::Letterbox { .. })
                        if chain.resize.is_none() && chain.crop.is_none() =>
                    {
                        chain.resize = Some(resize);
                    }
                    _ => return Err("an image is resized or cropped in an order that has no step".to_owned()),
                }
            }
            Op::Cast => match graph.kind(id) {
                Kind::Number(datatype) => chain.datatype = Some(datatype),
                _ => return Err("an image becomes a text".to_owned()),
            },
            Op::Transpose(order) => {
                let rank = order.len();
                let tail: Vec<_> =
                    order.iter().skip(rank.saturating_sub(3)).map(|axis| (axis + 3).wrapping_sub(rank)).collect();
                let is_lead = order.iter().take(rank.saturating_sub(3)).enumerate().all(|(place, axis)| place == *axis);
                match (tail.as_slice(), chain.is_planar, is_lead) {
                    ([2, 0, 1], false, true) => chain.is_planar = true,
                    ([1, 2, 0], true, true) => chain.is_planar = false,
                    _ => return Err("the axes of an image in an order that has no step".to_owned()),
                }
            }
            Op::Slice { .. } if chain.grey.is_some() => return Err("an image is mirrored".to_owned()),
            Op::Slice { axis, .. } => match (axis, chain.is_planar) {
                (-1, false) | (-3, true) => {
                    chain.is_reversed = !chain.is_reversed;
                    chain.arithmetic.iter_mut().for_each(|(_, numbers, ..)| numbers.reverse());
                }
                _ => return Err("an image is mirrored".to_owned()),
            },
            Op::Binary(op) => chain.arithmetic.push(self.pixel_step(op, id, chain.is_planar)?),
            _ => {}
        }
        Ok(())
    }

    fn pixel_step(&self, op: ArithmeticOp, id: ExprId, is_planar: bool) -> Result<PixelStep, String> {
        let graph = &self.machine.graph;
        let [left, right] = graph.get(id).inputs.clone()[..] else { return Err("arithmetic of an image".to_owned()) };
        let (constant, is_left) = if graph.constant(right).is_some() { (right, true) } else { (left, false) };
        let values = graph.constant(constant).unwrap_or_default();
        let shape = graph.shape(constant);
        let along = shape.iter().rev().position(|dim| *dim != Dim::Known(1));
        let numbers = match (values.as_slice(), along) {
            ([one], _) => [*one; 3],
            ([red, green, blue], Some(axis)) if axis == if is_planar { 2 } else { 0 } => [*red, *green, *blue],
            _ => return Err("arithmetic of an image with numbers that are not by channel".to_owned()),
        };
        let Kind::Number(datatype) = graph.kind(id) else { return Err("arithmetic of an image".to_owned()) };
        Ok((op, numbers, is_left, datatype))
    }

    fn fields_of(
        &self,
        chain: &Chain,
        is_pixels: bool,
        fields: &mut Vec<(&'static str, String)>,
    ) -> Result<(), String> {
        if let Some(file) = &chain.preprocessor {
            if !chain.arithmetic.is_empty() || chain.is_reversed || !chain.is_planar {
                return Err("numbers of an image processor are changed".to_owned());
            }
            if chain.is_upright {
                fields.push(("exif", "true".to_owned()));
            }
            fields.push(("preprocessor", quoted(file)));
            return Ok(());
        }
        let decoder = chain.file.map_or("", |(library, _)| library);
        let filter = match &chain.resize {
            Some(PictureOp::Resize { filter, .. } | PictureOp::Shortest { filter, .. }) => *filter,
            Some(PictureOp::Letterbox { form, .. }) => form.filter,
            _ => "",
        };
        let resizes_in_opencv = filter.starts_with("opencv:") || (filter.is_empty() && decoder == "opencv");
        if resizes_in_opencv {
            fields.push(("library", quoted("opencv")));
        }
        let is_upright = chain.is_upright || decoder == "opencv";
        if is_upright != resizes_in_opencv && !is_pixels {
            fields.push(("exif", is_upright.to_string()));
        }
        geometry(chain, filter.trim_start_matches("opencv:"), fields);
        if let Some(form) = chain.grey {
            if resizes_in_opencv != (form != "pillow") {
                return Err("one library makes an image grey and another one resizes it".to_owned());
            }
            fields.push(("order", quoted("GREY")));
            if form == "decode" {
                fields.push(("grey", quoted("decode")));
            }
            return self.number_fields(chain, fields);
        }
        // A decoder of OpenCV gives BGR.
        let is_blue_first = chain.is_reversed != (decoder == "opencv");
        if is_blue_first {
            fields.push(("order", quoted("BGR")));
        }
        self.number_fields(chain, fields)?;
        if !chain.is_planar {
            fields.push(("layout", quoted("NHWC")));
        }
        Ok(())
    }

    fn number_fields(&self, chain: &Chain, fields: &mut Vec<(&'static str, String)>) -> Result<(), String> {
        let datatype = chain.arithmetic.last().map(|(.., datatype)| *datatype);
        let result = chain.datatype.or(datatype).unwrap_or(Datatype::Uint8);
        let table = channel_table(chain);
        match (result, chain.arithmetic.is_empty()) {
            (Datatype::Uint8, true) => {
                fields.push(("datatype", quoted("UINT8")));
                return Ok(());
            }
            (Datatype::Fp32, true) => {
                fields.push(("scale", "1".to_owned()));
                return Ok(());
            }
            (Datatype::Fp32, false) => {}
            (other, _) => return Err(format!("pixels as {} have no step", other.name())),
        }
        for normal in candidates(&chain.arithmetic) {
            if *normal.singles().table() != table {
                continue;
            }
            if normal.arithmetic != PixelArithmetic::Divide {
                fields.push((
                    "arithmetic",
                    quoted(match normal.arithmetic {
                        PixelArithmetic::Multiply => "multiply",
                        PixelArithmetic::Albumentations => "albumentations",
                        PixelArithmetic::MultiplyFloat64 => "multiply_float64",
                        PixelArithmetic::Float64 => "float64",
                        PixelArithmetic::Divide | PixelArithmetic::Transformers => "transformers",
                    }),
                ));
            }
            let scale =
                if normal.arithmetic == PixelArithmetic::Transformers { 1.0 / normal.scale } else { normal.scale };
            if scale != 255.0 {
                fields.push(("scale", number_of(scale)));
            }
            let channels = ..if chain.grey.is_some() { 1 } else { 3 };
            let of_channels = |numbers: &[f64; 3]| numbers_of(numbers.get(channels).unwrap_or_default());
            if normal.mean != [0.0; 3] {
                fields.push(("mean", of_channels(&normal.mean)));
            }
            if normal.deviation != [1.0; 3] {
                fields.push(("std", of_channels(&normal.deviation)));
            }
            return Ok(());
        }
        Err("the arithmetic of the pixels is none of the step's spellings".to_owned())
    }

    /// The tensor of files or pixels, as the step reads it.
    fn image_source(&mut self, source: ExprId, is_pixels: bool, id: ExprId) -> Result<String, String> {
        let (name, shape) = self.raw(source)?;
        let is_bytes = matches!(self.machine.graph.kind(source), Kind::Raw | Kind::Text);
        if is_pixels {
            return match shape.len() {
                3 | 4 => Ok(name),
                _ => Err("pixels in several axes of images".to_owned()),
            };
        }
        if is_bytes {
            return Ok(self.as_rows(name, &shape, id)?.0);
        }
        match shape.len() {
            1 | 2 => Ok(name),
            _ => Err("files in several axes".to_owned()),
        }
    }
}

/// Makes the image of a chain grey, as the step does before its resize.
fn grey(chain: &mut Chain, form: &'static str) -> Result<(), String> {
    if chain.resize.is_some() || chain.crop.is_some() {
        return Err("an image becomes grey behind its resize or crop, the step makes it grey before".to_owned());
    }
    let is_opencv = chain.file.is_some_and(|(library, _)| library == "opencv");
    let is_blue_first = chain.is_reversed != is_opencv;
    let is_right = match form {
        "pillow" => !is_opencv && !is_blue_first,
        "rgb" => !is_blue_first,
        "bgr" => is_blue_first && is_opencv,
        _ => is_opencv && !chain.is_reversed,
    };
    if !is_right || chain.grey.is_some() {
        return Err("an image becomes grey from channels in another order than it has".to_owned());
    }
    chain.grey = Some(form);
    chain.is_reversed = false;
    Ok(())
}

fn geometry(chain: &Chain, filter: &str, fields: &mut Vec<(&'static str, String)>) {
    let size =
        |height: u64, width: u64| if height == width { format!("[{height}]") } else { format!("[{height}, {width}]") };
    let name_filter = |fields: &mut Vec<(&'static str, String)>| {
        if !filter.is_empty() && !["bilinear", "linear"].contains(&filter) {
            fields.push(("filter", quoted(filter)));
        }
    };
    match &chain.resize {
        None => fields.push(("resize", quoted("none"))),
        Some(PictureOp::Shortest { side, .. }) => {
            fields.extend([("resize", quoted("shortest")), ("size", format!("[{side}]"))]);
            name_filter(fields);
        }
        Some(PictureOp::Letterbox { height, width, form }) => {
            let LetterboxForm { is_rounded, is_centred, enlarges, colour, .. } = form;
            fields.extend([("resize", quoted("letterbox")), ("size", size(*height, *width))]);
            name_filter(fields);
            if !is_rounded {
                fields.push(("letterbox_rounding", quoted("int")));
            }
            if !is_centred {
                fields.push(("letterbox_position", quoted("top_left")));
            }
            if *colour != 114 {
                fields.push(("letterbox_colour", colour.to_string()));
            }
            if !enlarges {
                fields.push(("letterbox_enlarge", "false".to_owned()));
            }
        }
        Some(PictureOp::Resize { height, width, .. }) => {
            fields.push(("size", size(*height, *width)));
            name_filter(fields);
        }
        Some(_) => {}
    }
    if let Some((height, width)) = chain.crop {
        fields.push(("crop", size(height, width)));
    }
}

/// The numbers of all values of each channel, as model.py computes them.
fn channel_table(chain: &Chain) -> [[f32; 256]; 3] {
    let mut table = [[0.0_f32; 256]; 3];
    for (channel, values) in table.iter_mut().enumerate() {
        for (pixel, value) in (0_u8..=255).zip(values.iter_mut()) {
            let mut number = f64::from(pixel);
            for (op, numbers, is_left, datatype) in &chain.arithmetic {
                let other = numbers.get(channel).copied().unwrap_or(0.0);
                // An operation in FP32 takes its constants in FP32.
                let other = rounded_float(other, *datatype);
                let (left, right) = if *is_left { (number, other) } else { (other, number) };
                number = rounded_float(applied(*op, left, right), *datatype);
            }
            *value = number as f32;
        }
    }
    table
}

/// The four basic operations on doubles of FP32 values, rounded once more, are those of FP32.
fn rounded_float(value: f64, datatype: Datatype) -> f64 {
    rounded(value, datatype)
}

/// The parameters that may give the arithmetic.
fn candidates(steps: &[PixelStep]) -> Vec<Normal> {
    let mut scale = 1.0;
    let (mut mean, mut deviation) = ([0.0; 3], [1.0; 3]);
    let mut rest = steps;
    if let Some(((op @ (ArithmeticOp::Divide | ArithmeticOp::Multiply), [number, ..], true, _), others)) =
        steps.split_first().map(|(first, rest)| (*first, rest))
        && steps.first().is_some_and(|(_, numbers, ..)| numbers.iter().all(|other| other == &number))
    {
        let divisor = if op == ArithmeticOp::Divide { number } else { 1.0 / number };
        scale = if (divisor - divisor.round()).abs() < 1e-4 { divisor.round() } else { divisor };
        rest = others;
    }
    for (op, numbers, ..) in rest {
        match op {
            ArithmeticOp::Subtract => mean = *numbers,
            ArithmeticOp::Add => mean = numbers.map(|number| -number),
            ArithmeticOp::Divide => deviation = *numbers,
            ArithmeticOp::Multiply => deviation = numbers.map(|number| 1.0 / number),
            ArithmeticOp::Power => return Vec::new(),
        }
    }
    let mut forms = vec![(scale, mean, deviation)];
    if scale == 1.0 {
        // Mean and deviation of pixels in place of those of fractions.
        forms.push((255.0, mean.map(|mean| mean / 255.0), deviation.map(|deviation| deviation / 255.0)));
    }
    let spellings = [
        PixelArithmetic::Divide,
        PixelArithmetic::Multiply,
        PixelArithmetic::MultiplyFloat64,
        PixelArithmetic::Float64,
        PixelArithmetic::Transformers,
        PixelArithmetic::Albumentations,
    ];
    let all = forms.into_iter().flat_map(|(scale, mean, deviation)| {
        spellings.map(|arithmetic| {
            let scale = if arithmetic == PixelArithmetic::Transformers { 1.0 / scale } else { scale };
            Normal { arithmetic, scale, mean, deviation }
        })
    });
    all.collect()
}
