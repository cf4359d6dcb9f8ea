//! `image`: files or pixels to tensors of a model. Each row is a file that is decoded, turned upright,
//! resized, cropped or padded, and written as numbers, without regard to the others. Pixels equal those of
//! the library that the step is told, byte for byte.

use std::borrow::Cow;

use base::error::Error;
use base::tensor::{Datatype, Tensor};
use bytemuck::NoUninit;
use half::f16;

use crate::fields::StepFields;
use crate::image::colour::{FileColours, GreyWeights};
use crate::image::geometry::{ImagePlan, Size};
use crate::image::normal::{Normal, PixelLayout, Singles, ValueTable};
use crate::image::pixels::{CHANNELS, Pixels};
use crate::image::settings::{FIELDS, INPUTS, ImageSettings, OUTPUTS};
use crate::kind::{Step, StepKind};
use crate::limits::{IMAGE_OUTPUT_SIZE_MAX, IMAGE_PIXELS_MAX, IMAGE_SIDE_MAX};
use crate::tensors::{of_floats, of_numbers, strings, wrong_datatype};

mod base64;
pub mod colour;
pub mod file;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod geometry;
pub mod jpeg;
pub mod normal;
pub mod opencv;
pub mod pillow;
pub mod pixels;
pub mod preset;
pub mod sample;
pub(crate) mod settings;
mod turn;
pub(crate) mod vector;

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "image",
    about: "Decodes JPEG, PNG and WebP files, resizes them, and writes numbers for a model. `library` says whose \
            results it gives, byte for byte: those of Pillow (`Image.open(file).convert(\"RGB\")`) or of OpenCV \
            (`cv2.imdecode(file, cv2.IMREAD_COLOR)`). Alpha is dropped, grey is repeated. Animated files and those of 16 \
            bits are refused.",
    inputs: INPUTS,
    outputs: OUTPUTS,
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(Image::new(fields)?)),
};

/// The step.
struct Image {
    settings: ImageSettings,
    numbers: PixelNumbers,
    /// For each output port, true if it is connected.
    wanted: [bool; OUTPUTS.len()],
}

/// The numbers of the values of pixels, in the datatype of the output.
pub(crate) enum PixelNumbers {
    Bytes(Box<ValueTable<u8>>),
    Halves(Box<ValueTable<f16>>),
    Singles(Box<Singles>),
}

impl PixelNumbers {
    /// The numbers in a datatype; the values themselves without an arithmetic.
    pub fn new(datatype: Datatype, normal: Option<&Normal>) -> Self {
        match (datatype, normal) {
            (Datatype::Fp16, Some(normal)) => Self::Halves(Box::new(normal.halves())),
            (_, Some(normal)) => Self::Singles(Box::new(normal.singles())),
            (_, None) => Self::Bytes(Box::new(normal::identity())),
        }
    }
}

/// The encoding of the strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEncoding {
    /// A file that begins as one of a known format does is taken as it is; anything else is base64.
    Auto,
    Base64,
    Raw,
}

/// One row of the input.
pub(crate) enum Source<'a> {
    File(Cow<'a, [u8]>),
    Pixels(Size, &'a [u8]),
}

/// The reading of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceReading {
    pub encoding: FileEncoding,
    /// Turns files upright by their EXIF orientation.
    pub is_upright: bool,
    /// Decoded pixels have blue first.
    pub is_reversed: bool,
    /// The colours of files.
    pub colours: FileColours,
    /// The grey that is made of colours; `None` if they stay.
    pub grey: Option<GreyWeights>,
}

impl SourceReading {
    /// The rows of the input.
    pub fn sources<'a>(&self, input: &'a Tensor) -> Result<Vec<Source<'a>>, Error> {
        sources(input, self.encoding)
    }

    /// The pixels of a row, red first, or grey.
    pub fn pixels(&self, source: &Source<'_>) -> Result<Pixels, Error> {
        let pixels = match source {
            Source::File(file) => {
                let file::DecodedImage { pixels, orientation } = file::decode(file, self.colours)?;
                if self.is_upright { jpeg::oriented(pixels, orientation) } else { pixels }
            }
            Source::Pixels(Size { width, height }, bytes) => {
                let pixels = Pixels::from_interleaved(*width, *height, bytes, CHANNELS);
                if self.is_reversed { pixels.reversed() } else { pixels }
            }
        };
        Ok(match self.grey {
            Some(weights) => pixels.grey(weights),
            None => pixels,
        })
    }
}

/// One row on its way to the output.
struct ImageRow {
    /// The part that is kept.
    pixels: Pixels,
    /// The size of the file, upright.
    original: Size,
    plan: ImagePlan,
}

/// All rows.
struct ImageRows<T> {
    numbers: Vec<T>,
    canvas: Size,
    places: Vec<(Size, ImagePlan)>,
}

impl Image {
    fn new(fields: &StepFields<'_>) -> Result<Self, Error> {
        let settings = ImageSettings::read(fields)?;
        let numbers = PixelNumbers::new(settings.datatype, settings.normal.as_ref());
        let mut wanted = [false; OUTPUTS.len()];
        for (index, wanted) in wanted.iter_mut().enumerate() {
            *wanted = fields.is_wanted(index);
        }
        Ok(Self { settings, numbers, wanted })
    }

    /// Runs on all rows, and returns the tensor of numbers and the places of the rows.
    fn rows(&self, sources: &[Source<'_>]) -> Result<(Tensor, Vec<(Size, ImagePlan)>), Error> {
        match &self.numbers {
            PixelNumbers::Bytes(table) => self.tensor(Datatype::Uint8, self.written(sources, &**table, normal::write)?),
            PixelNumbers::Halves(table) => self.tensor(Datatype::Fp16, self.written(sources, &**table, normal::write)?),
            PixelNumbers::Singles(singles) => {
                self.tensor(Datatype::Fp32, self.written(sources, &**singles, normal::write_singles)?)
            }
        }
    }

    fn tensor<T: NoUninit + Send + Sync>(
        &self,
        datatype: Datatype,
        rows: ImageRows<T>,
    ) -> Result<(Tensor, Vec<(Size, ImagePlan)>), Error> {
        let Size { width, height } = rows.canvas;
        let count = rows.places.len();
        let channels = self.settings.layout.channels();
        let shape = if self.settings.layout.is_planar {
            [count, channels, height, width]
        } else {
            [count, height, width, channels]
        };
        Ok((of_numbers(datatype, &shape, rows.numbers), rows.places))
    }

    fn written<T: Copy + Default, N>(
        &self,
        sources: &[Source<'_>],
        numbers: &N,
        write: fn(&Pixels, &ImagePlan, &N, PixelLayout, &mut Vec<T>),
    ) -> Result<ImageRows<T>, Error> {
        let mut rows = ImageRows { numbers: Vec::new(), canvas: self.settings.canvas(), places: Vec::new() };
        for (index, source) in sources.iter().enumerate() {
            let prefixed = |error: Error| error.with_prefix(&format!("'image', row {index}: "));
            let row = self.row(source).map_err(prefixed)?;
            if index == 0 {
                rows.canvas = row.plan.canvas;
                let channels = self.settings.layout.channels();
                rows.numbers.reserve_exact(output_size::<T>(sources.len(), rows.canvas, channels)?);
            }
            let Size { width, height } = row.plan.canvas;
            if row.plan.canvas != rows.canvas {
                return Err(prefixed(Error::invalid(format!(
                    "it has {width} × {height} pixels, but row 0 has {} × {}: give a size, or send one row at a time",
                    rows.canvas.width, rows.canvas.height
                ))));
            }
            write(&row.pixels, &row.plan, numbers, self.settings.layout, &mut rows.numbers);
            rows.places.push((row.original, row.plan));
        }
        Ok(rows)
    }

    /// Decodes a row and brings it to its size.
    fn row(&self, source: &Source<'_>) -> Result<ImageRow, Error> {
        let pixels = self.settings.reading.pixels(source)?;
        let original = Size { width: pixels.width, height: pixels.height };
        let geometry = &self.settings.geometry;
        let plan = geometry.plan(original)?;
        Ok(ImageRow { pixels: geometry.applied(pixels, &plan), original, plan })
    }
}

impl Step for Image {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let Some(Some(input)) = inputs.first() else { return Ok(vec![None]) };
        let sources = self.settings.reading.sources(input)?;
        let (pixels, places) = self.rows(&sources)?;
        let rows = places.len();
        let [_, has_size, has_ratio, has_pad] = self.wanted;
        let original_size = has_size.then(|| {
            let sizes = places.iter().flat_map(|(size, _)| [size.height as i64, size.width as i64]).collect();
            of_numbers::<i64>(Datatype::Int64, &[rows, 2], sizes)
        });
        let ratio = has_ratio.then(|| of_floats(&[rows], places.iter().map(|(_, plan)| plan.ratio as f32).collect()));
        let pad = has_pad.then(|| {
            let pads = places.iter().flat_map(|(_, plan)| [plan.left as f32, plan.top as f32]).collect();
            of_floats(&[rows, 2], pads)
        });
        Ok(vec![Some(pixels), original_size, ratio, pad])
    }
}

/// The rows of the input.
fn sources(input: &Tensor, encoding: FileEncoding) -> Result<Vec<Source<'_>>, Error> {
    match input.datatype {
        Datatype::Bytes => {
            let elements = column("image", input)?;
            let source = |(index, element)| {
                decoded(element, encoding, file::is_known, "JPEG, PNG or WebP")
                    .map(Source::File)
                    .map_err(|error: Error| error.with_prefix(&format!("'image', row {index}: ")))
            };
            elements.into_iter().enumerate().map(source).collect()
        }
        Datatype::Uint8 => byte_sources(input),
        _ => Err(wrong_datatype("image", "BYTES or UINT8", input)),
    }
}

/// The strings of a tensor that has one in each row.
pub(crate) fn column<'a>(port: &str, input: &'a Tensor) -> Result<Vec<&'a [u8]>, Error> {
    let shape = &input.shape[..];
    let is_column = shape.len() == 1 || shape.get(1..).is_some_and(|rest| rest.iter().all(|size| *size == 1));
    if shape.is_empty() || !is_column {
        let expected = "[rows] or [rows, 1] for BYTES";
        return Err(Error::invalid(format!("'{port}' must have the shape {expected}, but its shape is {shape:?}")));
    }
    let elements = strings(port, input)?;
    if shape.first().copied() != i64::try_from(elements.len()).ok() {
        return Err(Error::invalid(format!("'{port}' has {} elements, but its shape is {shape:?}", elements.len())));
    }
    Ok(elements)
}

/// The rows of a tensor of bytes: files, or pixels.
fn byte_sources(input: &Tensor) -> Result<Vec<Source<'_>>, Error> {
    let shape = &input.shape[..];
    let sizes: Option<Vec<_>> = shape.iter().map(|size| usize::try_from(*size).ok()).collect();
    let wrong =
        || wrong_shape("[bytes], [rows, bytes], [height, width, 3] or [rows, height, width, 3] for UINT8", shape);
    if !input.has_its_size() {
        return Err(Error::invalid(format!("'image' has contents of another size than its shape {shape:?}")));
    }
    let contents = &input.contents[..];
    let (rows, size) = match sizes.ok_or_else(wrong)?[..] {
        [_] => return Ok(vec![Source::File(Cow::Borrowed(contents))]),
        [_, bytes] => {
            let files = contents.chunks_exact(bytes.max(1));
            return Ok(files.map(|file| Source::File(Cow::Borrowed(file))).collect());
        }
        [height, width, CHANNELS] => (1, Size { width, height }),
        [rows, height, width, CHANNELS] => (rows, Size { width, height }),
        _ => return Err(wrong()),
    };
    check_size("'image'", size.width, size.height)?;
    let images = contents.chunks_exact(size.width * size.height * CHANNELS).take(rows);
    Ok(images.map(|bytes| Source::Pixels(size, bytes)).collect())
}

fn wrong_shape(expected: &str, shape: &[i64]) -> Error {
    Error::invalid(format!("'image' must have the shape {expected}, but its shape is {shape:?}"))
}

/// The file in an element of BYTES. `is_known` says if bytes begin as one of the `formats` does.
pub(crate) fn decoded<'a>(
    element: &'a [u8],
    encoding: FileEncoding,
    is_known: fn(&[u8]) -> bool,
    formats: &str,
) -> Result<Cow<'a, [u8]>, Error> {
    let is_raw = match encoding {
        FileEncoding::Auto => is_known(element),
        FileEncoding::Base64 => false,
        FileEncoding::Raw => true,
    };
    if is_raw {
        return Ok(Cow::Borrowed(element));
    }
    let wrong = || match encoding {
        FileEncoding::Auto => Error::invalid(format!("the string is neither a {formats} file nor one in base64")),
        _ => Error::invalid("the string is not base64"),
    };
    base64::decode(element).map(Cow::Owned).ok_or_else(wrong)
}

/// The count of numbers of the output.
fn output_size<T>(rows: usize, canvas: Size, channels: usize) -> Result<usize, Error> {
    let count = rows.saturating_mul(canvas.width).saturating_mul(canvas.height).saturating_mul(channels);
    if count.saturating_mul(size_of::<T>()) > IMAGE_OUTPUT_SIZE_MAX {
        return Err(Error::invalid(format!(
            "'image' has {rows} rows, which make more than the {IMAGE_OUTPUT_SIZE_MAX} bytes of output that are \
            allowed"
        )));
    }
    Ok(count)
}

/// Refuses an image of 0 pixels or too many, by the sides in its header.
fn check_size(format: &str, width: usize, height: usize) -> Result<(), Error> {
    if width == 0 || height == 0 {
        return Err(Error::invalid(format!("{format}: the image has {width} × {height} pixels")));
    }
    if width > IMAGE_SIDE_MAX || height > IMAGE_SIDE_MAX || width.saturating_mul(height) > IMAGE_PIXELS_MAX {
        return Err(Error::invalid(format!(
            "{format}: the image has {width} × {height} pixels, but at most {IMAGE_PIXELS_MAX} are allowed, and \
             {IMAGE_SIDE_MAX} on a side"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
