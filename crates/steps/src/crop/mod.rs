//! `crop`: parts of images as the input of another network: lines of text made upright, or boxes of a detector.

mod perspective;
mod place;
mod settings;
#[cfg(test)]
mod tests;

use base::error::Error;
use base::tensor::{Datatype, Tensor};
use bytemuck::NoUninit;

use crate::fields::StepFields;
use crate::image::geometry::{ImagePlan, Size};
use crate::image::normal::{self, PixelLayout};
use crate::image::pixels::{CHANNELS, Pixels, Window, cropped};
use crate::image::{PixelNumbers, Source};
use crate::kind::{Step, StepKind};
use crate::limits::IMAGE_OUTPUT_SIZE_MAX;
use crate::tensors::of_numbers;

use self::perspective::WarpSource;
use self::place::{BoxRows, CropPlace, CropRegion};
use self::settings::{CropSettings, FIELDS, INPUTS, OUTPUTS};

/// The kind.
pub const KIND: StepKind = StepKind {
    name: "crop",
    about: "Cuts boxes out of images, and writes them as numbers for a network, in one batch. Boxes with four corners are \
            made upright byte for byte as `get_rotate_crop_image` of PaddleOCR does with OpenCV 5, which interpolates \
            with cubic weights in FP32; OpenCV 4 has tables of weights, and values that differ by a few of 255. Upright \
            boxes are cut out as they are. Then each is resized as by the step `image`. The crops of all images follow \
            each other.",
    inputs: INPUTS,
    outputs: OUTPUTS,
    fields: FIELDS,
    is_short: false,
    build: |fields| Ok(Box::new(CropStep::new(fields)?)),
};

struct CropStep {
    settings: CropSettings,
    numbers: PixelNumbers,
}

/// A crop with its place in the batch.
struct CropRow {
    image: usize,
    region: CropRegion,
}

impl CropStep {
    fn new(fields: &StepFields<'_>) -> Result<Self, Error> {
        let settings = CropSettings::read(fields)?;
        let numbers = PixelNumbers::new(settings.datatype, settings.normal.as_ref());
        Ok(Self { settings, numbers })
    }

    /// The pixels of the images that have boxes.
    fn images(&self, sources: &[Source<'_>], boxes: &BoxRows) -> Result<Vec<Option<Pixels>>, Error> {
        let mut size = 0_usize;
        let mut images = Vec::with_capacity(sources.len());
        for (image, source) in sources.iter().enumerate() {
            if !boxes.has(image) {
                images.push(None);
                continue;
            }
            let prefixed = |error: Error| error.with_prefix(&format!("'image', row {image}: "));
            let pixels = self.settings.reading.pixels(source).map_err(prefixed)?;
            size = size.saturating_add(pixels.bytes.len());
            if size > IMAGE_OUTPUT_SIZE_MAX {
                return Err(Error::invalid(format!(
                    "'image' has images with more than {IMAGE_OUTPUT_SIZE_MAX} bytes of pixels together"
                )));
            }
            images.push(Some(pixels));
        }
        Ok(images)
    }

    /// The batch, in a datatype.
    fn batch<T: Copy + Default + NoUninit + Send + Sync, N>(
        &self,
        images: &mut [Option<Pixels>],
        rows: &[CropRow],
        datatype: Datatype,
        numbers: &N,
        write: fn(&Pixels, &ImagePlan, &N, PixelLayout, &mut Vec<T>),
    ) -> Result<Tensor, Error> {
        let canvas = self.settings.canvas(rows.iter().map(|row| row.region.size()));
        let Size { width, height } = canvas;
        let row_size = width.saturating_mul(height).saturating_mul(CHANNELS);
        let count = rows.len().saturating_mul(row_size);
        if count.saturating_mul(size_of::<T>()) > IMAGE_OUTPUT_SIZE_MAX {
            return Err(Error::invalid(format!(
                "'boxes' has {} boxes, whose crops of {height} × {width} pixels make more than the {IMAGE_OUTPUT_SIZE_MAX} \
                 bytes of output that are allowed",
                rows.len()
            )));
        }
        let mut batch = Vec::with_capacity(count);
        for rows in rows.chunk_by(|left, right| left.image == right.image) {
            let Some(image) = rows.first().map(|row| row.image) else { break };
            let Some(pixels) = images.get_mut(image).and_then(Option::take) else { break };
            let cutter = Cutter::new(pixels, rows);
            for row in rows {
                let part = cutter.part(&row.region)?;
                let part = self.settings.resized(part, canvas);
                let start = batch.len();
                write(&part, &plan_of(&part), numbers, self.settings.layout, &mut batch);
                widen(&mut batch, start, self.settings.layout, part.width, canvas);
            }
        }
        let shape = if self.settings.layout.is_planar {
            [rows.len(), CHANNELS, height, width]
        } else {
            [rows.len(), height, width, CHANNELS]
        };
        Ok(of_numbers(datatype, &shape, batch))
    }
}

/// The plan of an image that is all of its canvas.
fn plan_of(part: &Pixels) -> ImagePlan {
    let size = Size { width: part.width, height: part.height };
    let window = Window::whole(part.width, part.height);
    ImagePlan { resized: size, window, canvas: size, left: 0, top: 0, colour: 0, ratio: 1.0 }
}

/// Moves the numbers from `start` on, of an image of this width, to the left of a wider canvas; zeros follow in each row.
fn widen<T: Copy + Default>(batch: &mut Vec<T>, start: usize, layout: PixelLayout, width: usize, canvas: Size) {
    if width == canvas.width {
        return;
    }
    let elements = if layout.is_planar { 1 } else { CHANNELS };
    let (from, to) = (width * elements, canvas.width * elements);
    let rows = (batch.len() - start).checked_div(from).unwrap_or(0);
    batch.resize(start + rows * to, T::default());
    // From the last row on: its new place may be the old one of others, but not of those above it.
    for row in (0..rows).rev() {
        let (old, new) = (start + row * from, start + row * to);
        batch.copy_within(old..old + from, new);
        if let Some(rest) = batch.get_mut(new + from..new + to) {
            rest.fill(T::default());
        }
    }
}

/// An image that parts are cut out of.
enum Cutter {
    Upright(Pixels),
    Warped(WarpSource),
}

impl Cutter {
    /// All boxes of an image are of one kind.
    fn new(pixels: Pixels, rows: &[CropRow]) -> Self {
        match rows.first().map(|row| &row.region) {
            Some(CropRegion::Quad { .. }) => Self::Warped(WarpSource::new(&pixels)),
            _ => Self::Upright(pixels),
        }
    }

    fn part(&self, region: &CropRegion) -> Result<Pixels, Error> {
        Ok(match (self, region) {
            (Self::Warped(source), CropRegion::Quad { matrix, size, is_turned }) => {
                let part = source.warped(matrix, size.width, size.height);
                if *is_turned { place::turned(&part) } else { part }
            }
            (Self::Upright(pixels), CropRegion::Window(window)) => cropped(pixels, *window),
            _ => return Err(Error::invalid("'boxes' has boxes of two kinds")),
        })
    }
}

impl Step for CropStep {
    fn run(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Option<Tensor>>, Error> {
        let at = |place: usize| inputs.get(place).copied().flatten();
        let (Some(image), Some(boxes)) = (at(0), at(1)) else { return Ok(Vec::new()) };
        let sources = self.settings.reading.sources(image)?;
        let boxes = BoxRows::read(boxes, at(2), sources.len(), self.settings.box_format)?;
        let mut images = self.images(&sources, &boxes)?;
        let mut rows = Vec::new();
        for (image, pixels) in images.iter().enumerate() {
            let Some(pixels) = pixels else { continue };
            let size = Size { width: pixels.width, height: pixels.height };
            let place = CropPlace { settings: &self.settings, image, size };
            rows.extend(place.regions(&boxes)?.into_iter().map(|region| CropRow { image, region }));
        }
        place::check_pixels(rows.iter().map(|row| row.region.size()))?;
        let crops = match &self.numbers {
            PixelNumbers::Bytes(table) => self.batch(&mut images, &rows, Datatype::Uint8, &**table, normal::write),
            PixelNumbers::Halves(table) => self.batch(&mut images, &rows, Datatype::Fp16, &**table, normal::write),
            PixelNumbers::Singles(singles) => {
                self.batch(&mut images, &rows, Datatype::Fp32, &**singles, normal::write_singles)
            }
        };
        let images = rows.iter().map(|row| row.image as i64).collect();
        let sizes = rows.iter().map(|row| row.region.size()).flat_map(|size| [size.height as i64, size.width as i64]);
        Ok(vec![
            Some(crops?),
            Some(of_numbers::<i64>(Datatype::Int64, &[rows.len()], images)),
            Some(of_numbers::<i64>(Datatype::Int64, &[rows.len(), 2], sizes.collect())),
        ])
    }
}
